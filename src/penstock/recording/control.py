"""The page of a run: asks the run's processes to record or to pause.  Knows no log.

RUN/control is a page of 8 bytes: generation << 32 | request.  Every process of the run maps the
page and reads the request at the begin and end of a step.  native/recorder.h defines the same page
in C.
"""

import contextlib
import os
import stat
import struct
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from penstock.errors import RunError
from penstock.safe import bounded, drafts

__all__ = ["NAME", "PAUSE", "RECORD", "ask", "asked", "attending", "make"]

RECORD, PAUSE = 1, 2  # as in native/recorder.h; a test compares both
PAGE_BYTES = 4096
NAME = "control"
_WORD = struct.Struct("<Q")


def make(folder: str | os.PathLike[str], asked: int = RECORD) -> None:
    """Write the page of a new run.  Raises RunError: the page cannot be written."""
    path = Path(folder) / NAME
    try:
        with drafts.create_in_run(path) as file:
            file.write(_WORD.pack(1 << 32 | asked).ljust(PAGE_BYTES, b"\0"))
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error


def ask(folder: str | os.PathLike[str], asked: int) -> int:
    """Ask all processes of a run; return the generation, which grows with each call.

    Raises RunError: the run has no page, or the page cannot be written.
    """
    path = Path(folder) / NAME
    try:
        with _opened(path) as file:
            page = file.read(PAGE_BYTES)
            if len(page) != PAGE_BYTES:
                raise RunError(
                    f"{path}: {len(page)} bytes where {PAGE_BYTES} belong; it is damaged"
                )
            word: int = _WORD.unpack_from(page)[0]
            generation = (word >> 32) + 1 & 0xFFFFFFFF
            file.seek(0)
            file.write(_WORD.pack(generation << 32 | asked))
    except FileNotFoundError as error:
        raise RunError(
            f"{folder}: cannot be asked: it was not started by `penstock run`, or by an older one"
        ) from error
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error
    return generation


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[FileIO]:
    """Open the file for a change, with the rights of the folder's owner, also for root.

    The owner may have planted a link.  Raises OSError; RunError: several hard links, or no regular
    file.
    """
    status = path.parent.stat()
    with drafts.acting_user(status.st_uid, status.st_gid):
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
                raise RunError(f"{path}: no file of the run's own; nothing was asked")
            yield file


def asked(folder: str | os.PathLike[str]) -> int:
    """Return the current request to the processes of a run; RECORD without a page."""
    try:
        word: int = _WORD.unpack_from(bounded.read(Path(folder) / NAME, PAGE_BYTES))[0]
    except (OSError, ValueError, struct.error):
        return RECORD
    return word & 0xFFFFFFFF


def attending(folder: str | os.PathLike[str]) -> set[int]:
    """Return the processes of this host and user that have mapped the page."""
    inode = str((Path(folder) / NAME).stat().st_ino)
    pids = set()
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            with open(process / "maps", errors="replace") as file:
                lines = [line.split(None, 5) for line in file if NAME in line]
        except OSError:  # another user's process, or an ended process
            continue
        if any(len(line) > 5 and line[4] == inode and f"/{NAME}" in line[5] for line in lines):
            pids.add(int(process.name))
    return pids
