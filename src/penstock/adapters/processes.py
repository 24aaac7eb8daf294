"""Record how child processes end, as seen by the parent: a killed worker writes nothing.

Patches both ways of starting processes in the standard library; knows no framework.

A child with a status other than 0 becomes a note in the log of the parent, `child ended`;
docs/FORMAT.md describes the value.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters.marks import quietly, wrap
from penstock.recording import recorder

__all__ = ["PATCHES", "look"]

SHARED_MEMORY = "/dev/shm"  # loaders hand over batches in shared memory
MOST_NOTES = 64  # per process: a program that starts others in a loop must not fill the log

_n_notes = [0]


def _patch_fork(module: ModuleType) -> None:
    # popen_spawn_posix inherits from popen_fork
    wrap("processes", module, "Popen.poll", _wrap_poll)
    wrap("processes", module, "Popen._send_signal", _wrap_signal)


def _patch_forkserver(module: ModuleType) -> None:
    wrap("processes", module, "Popen.poll", _wrap_poll)


def _patch_subprocess(module: ModuleType) -> None:
    wrap("processes", module, "Popen._handle_exitstatus", _wrap_poll)
    wrap("processes", module, "Popen.send_signal", _wrap_signal)


def _wrap_poll(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap the method that sets `returncode`."""

    @functools.wraps(original)
    def polled(self: Any, *args: Any, **kwargs: Any) -> Any:
        was_known = self.returncode is not None
        result = original(self, *args, **kwargs)
        try:
            if not was_known and self.returncode:
                _note(self)
        except Exception:  # at the interpreter's end our names may be gone
            pass
        return result

    return polled


def _wrap_signal(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def sent(self: Any, number: int, *args: Any, **kwargs: Any) -> Any:
        _remember(self, number)
        return original(self, number, *args, **kwargs)

    return sent


@quietly
def _remember(child: Any, number: int) -> None:
    if not _has_ended(child.pid):
        child._penstock_sent = int(number)


def _has_ended(pid: int) -> bool:
    """Return True if the child waits for its status to be read: it ended before the signal."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except OSError:  # no child: of a fork server, or read already
        return False


@quietly
def _note(child: Any) -> None:
    if _n_notes[0] >= MOST_NOTES or not recorder.is_recording():
        return
    _n_notes[0] += 1
    is_sent = getattr(child, "_penstock_sent", None) == -child.returncode
    words = [child.pid, child.returncode, int(is_sent), time.monotonic_ns(), *_shared_memory()]
    words.append(_peak_bytes())
    recorder.note("child ended", "\t".join(map(str, words)))


def _peak_bytes() -> int:
    """Return the peak memory over all ended children: an upper bound for a single child."""
    import resource

    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024


def _shared_memory() -> tuple[int, int]:
    """Return the used and the total bytes of shared memory."""
    seen = os.statvfs(SHARED_MEMORY)
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_blocks * seen.f_frsize


@quietly
def look(processes: Any) -> None:
    """Ask processes for their end, so that each ended process is noted.

    processes: children, of multiprocessing.
    """
    for process in processes:
        process.exitcode  # noqa: B018 - a property that asks


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "multiprocessing.popen_fork": _patch_fork,
    "multiprocessing.popen_forkserver": _patch_forkserver,
    "subprocess": _patch_subprocess,
}
