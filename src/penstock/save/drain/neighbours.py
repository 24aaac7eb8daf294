"""Keep track of the runs that share a fast tier: running or ended, and notes between the drains.

    FAST/.penstock/running-OWNER   locked while a program of the run lives
    FAST/.penstock/drained-OWNER   lines about drained files of the run, from the drain of another
                                   run; removed by the drain of the run

The module knows locks and texts, and no file of a checkpoint.
"""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import suppress
from pathlib import Path

from penstock.recording import recorder
from penstock.save.commit import STATE

__all__ = [
    "DRAINED",
    "HEARD",
    "RUNNING",
    "STARTING_S",
    "Heard",
    "any_is_running",
    "forget_unheard",
    "hold",
    "is_heard",
    "is_running",
    "tell",
]

DRAINED = "drained"  # the note about a file, in a run's log
# Files below STATE, each with the owner as suffix.
HEARD, RUNNING = "drained-", "running-"
STARTING_S = 60.0  # longer than a drain takes from the start to the first look


class Heard:
    """Copies the notes of another run's drain about files of this run into the log.

    Of several processes of a run, only the process with the lock listens.  When the process ends,
    the next process listens.
    """

    def __init__(self, tier: Path, owner: str) -> None:
        self._path = tier / STATE / f"{HEARD}{owner}"
        self._descriptor = -1
        self._rest = b""

    def listen(self) -> None:
        """Copy the notes since the last call."""
        with suppress(OSError):
            if self._descriptor < 0:
                self._descriptor = _locked(self._path)
            while self._descriptor >= 0 and (got := os.read(self._descriptor, 1 << 20)):
                *said, self._rest = (self._rest + got).split(b"\0")
                for line in said:
                    recorder.note(DRAINED, os.fsdecode(line))

    def close(self) -> None:
        self.listen()
        if self._descriptor >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._descriptor)
            self._descriptor = -1


def _locked(path: Path) -> int:
    """Return a descriptor of the locked file; -1: another process has the lock.  Raises OSError."""
    path.parent.mkdir(exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except OSError:  # locked or removed by another process since the open
        pass
    os.close(descriptor)
    return -1


def is_heard(tier: Path, owner: str) -> bool:
    """Return True if the drain of a run waits for the end of another drain."""
    path = tier / STATE / f"{HEARD}{owner}"
    _forget_if_unheard(path)
    return path.exists()


def tell(tier: Path, owner: str, said: str) -> None:
    """Note a drained file for the drain of the file's run, if the run's drain waits."""
    with suppress(OSError):
        path = tier / STATE / f"{HEARD}{owner}"
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(descriptor, os.fsencode(said) + b"\0")
        finally:
            os.close(descriptor)


def forget_unheard(tier: Path) -> None:
    """Remove the notes for drains that were killed."""
    for path in (tier / STATE).glob(f"{HEARD}*"):
        _forget_if_unheard(path)
    for path in (tier / STATE).glob(f"{RUNNING}*"):
        is_running(tier, path.name.removeprefix(RUNNING))


def _forget_if_unheard(path: Path) -> None:
    with suppress(OSError):
        is_old = time.time() - path.stat().st_mtime > STARTING_S
        descriptor = _locked(path) if is_old else -1
        if descriptor >= 0:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def hold(path: Path) -> int:
    """Return a descriptor that makes is_running() true; -1: a file system without locks."""
    with suppress(OSError):
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
                if _is_still(path, descriptor):
                    return descriptor
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)  # removed since the open
    return -1


def _is_still(path: Path, descriptor: int) -> bool:
    """Return True if the open file is at the path."""
    with suppress(OSError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


def any_is_running(tier: Path) -> bool:
    """Return True if any `penstock run` with this tier lives, or if in doubt."""
    runs = [path.name.removeprefix(RUNNING) for path in (tier / STATE).glob(f"{RUNNING}*")]
    return any(is_running(tier, owner) for owner in runs)


def is_running(tier: Path, owner: str) -> bool:
    """Return True if the `penstock run` of an owner lives, and thus perhaps the program."""
    path = tier / STATE / f"{RUNNING}{owner}"
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False
