"""Leases: ask the kernel whether a process has a file open for writing.  Knows paths only."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Lease", "leased", "take"]


@dataclass(frozen=True, slots=True)
class Lease:
    """is_free: no process has the file open for writing, or mapped."""

    is_free: bool
    _descriptor: int = -1

    def is_wanted(self) -> bool:
        """Return True if the kernel reports a process that waits to write to the file."""
        return self._descriptor >= 0 and (
            fcntl.fcntl(self._descriptor, fcntl.F_GETLEASE) == fcntl.F_UNLCK
        )


def take(descriptor: int, settle_s: float) -> Lease:
    """Take a lease on an open file; the lease ends when the descriptor is closed.  Raises OSError.

    The kernel grants no read lease while the file has a writer.  On a file system without leases a
    file counts as written settle_s after the last change.
    """
    try:
        # The kernel signals a writer.  SIGURG is ignored: the writer waits until the short block
        # has ended.
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        age_s = time.time() - os.fstat(descriptor).st_mtime
        return Lease(error.errno != errno.EAGAIN and age_s > settle_s)
    return Lease(True, descriptor)


@contextmanager
def leased(path: str | Path, settle_s: float) -> Iterator[Lease]:
    """Hold a lease during the block.

    A process that opens the file to write waits until the block has ended.  A file that cannot be
    opened counts as written settle_s after the last change.  Raises OSError.
    """
    descriptor = -1
    try:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            age_s = time.time() - os.stat(path).st_mtime  # noqa: PTH116 - a text
            yield Lease(age_s > settle_s)
        else:
            yield take(descriptor, settle_s)
    finally:
        if descriptor >= 0:
            os.close(descriptor)  # ends the lease
