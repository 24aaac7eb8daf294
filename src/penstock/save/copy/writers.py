"""Detect that a program on this node has a file open for writing.

The kernel grants a read lease on a file only while nobody has the file open for writing.  A lease
is requested and released at once.  A program that opens the file between the two calls waits some
microseconds for the release; with O_NONBLOCK, unusual for files, the program gets EWOULDBLOCK.  The
kernel announces the other program by a signal, SIGURG, by default without effect.  Leases need the
file's owner and a local file system; elsewhere nothing is known.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from penstock.places import tiers
from penstock.save.small.lease import take

__all__ = ["MOST_ASKED", "MOST_OPEN_S", "first_open", "is_open_for_writing"]

# A file without a write for MOST_OPEN_S counts as ended, even if still open: some programs keep a
# file mapped to the end.
MOST_OPEN_S = 600.0
MOST_ASKED = 256  # files of a checkpoint, the latest first: 12 us each
# Local file systems: the kernel knows every writer.
_LOCAL = {
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs", "overlay",
    *tiers.MEMORY_KINDS,
}  # fmt: skip


@lru_cache(256)
def _is_local(folder: str) -> bool:
    try:
        return tiers.mount_of(Path(folder)).kind in _LOCAL
    except OSError:
        return False


def is_open_for_writing(path: str) -> bool:
    """Return True if a program has a file open, or mapped, for writing.  False also means: not
    known."""
    if not _is_local(os.path.dirname(path)):  # noqa: PTH120 - a text
        return False
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NOATIME
    try:
        descriptor = os.open(path, flags)
    except OSError:  # also the file of another user, because of O_NOATIME
        return False
    try:
        # -inf: without a lease, nothing is known.
        return not take(descriptor, -math.inf).is_free
    finally:
        os.close(descriptor)  # ends the lease


def first_open(paths: Iterable[Path]) -> str:
    """Return the name of the first file open for writing, or an empty string."""
    for path in paths:
        if is_open_for_writing(os.fspath(path)):
            return path.name
    return ""
