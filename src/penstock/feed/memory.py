"""Allocate memory for a portion of records and measure the memory free for the process."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed.plan import (
    PAGE_BYTES,
)

__all__ = ["Buffer", "available_bytes"]

HUGE_PAGE_BYTES = 2 << 20


class Buffer:
    """Memory for reads, which grows to the size of a portion, up to a limit.

    spares: if an earlier array from room() is still in use, leave the memory to the user of the
    array and allocate new memory.
    """

    def __init__(self, limit_bytes: int, spares: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self._spares = spares
        self._memory: mmap.mmap | None = None
        self._given: Callable[[], NDArray[np.uint8] | None] = lambda: None

    def room(self, needed: int) -> NDArray[np.uint8]:
        """Return at least `needed` bytes, page-aligned; earlier contents are lost.

        Raises FeedError: `needed` is above the limit, or memory is short.
        """
        if needed > self.limit_bytes:
            raise FeedError(f"{needed:,} bytes do not fit the buffer of {self.limit_bytes:,}")
        if self._spares and self._given() is not None:
            self._memory = None
        has = len(self._memory) if self._memory is not None else 0
        if needed > has and needed > available_bytes():
            raise FeedError(
                f"no memory for {needed:,} bytes: {available_bytes():,} are free; lower batch_size"
            )
        if needed > has:
            self._memory = None  # free the old memory before the allocation of new memory
            self._memory = self._new(needed)
        if self._memory is None:
            return np.zeros(0, np.uint8)
        # Each call returns a new array.  Every view into the memory keeps the array alive.
        given = np.frombuffer(self._memory, np.uint8)
        self._given = weakref.ref(given)
        return given

    def _new(self, needed: int) -> mmap.mmap:
        step = HUGE_PAGE_BYTES if needed > HUGE_PAGE_BYTES else PAGE_BYTES
        size = min(-(-(needed + needed // 8) // step) * step, self.limit_bytes)
        try:
            memory = mmap.mmap(-1, -(-size // PAGE_BYTES) * PAGE_BYTES)
        except (OSError, ValueError) as error:
            raise FeedError(f"no memory for {size:,} bytes; lower buffer_bytes") from error
        if step == HUGE_PAGE_BYTES:
            # With memory on huge pages, the device also receives a single request per read.
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory


def available_bytes() -> int:
    """Return the free memory of this process, in bytes.

    The smallest counts: the machine's free memory, or the room left in a control group of the
    process.
    """
    rooms = [_available()]
    for root, name in _groups():
        for part in (name, *(str(parent) for parent in Path(name).parents)):
            group = f"{root}{part.rstrip('/')}"
            for limit, used in LIMITS:
                text = _text(f"{group}/{limit}").strip()
                if text.isdigit():
                    rooms.append(max(0, int(text) - _held_bytes(group, used)))
    return min(rooms)


# For control groups of versions 1 and 2: the limit and the usage counted against the limit.
LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def _held_bytes(group: str, used: str) -> int:
    """Return a group's usage without file pages, because the kernel frees file pages on demand."""
    text = _text(f"{group}/{used}").strip()
    parts = (line.split() for line in _text(f"{group}/memory.stat").splitlines())
    sums = {part[0]: int(part[1]) for part in parts if len(part) == 2}
    # In version 1, plain names count the group alone; names with `total_` include subgroups.
    files = sum(
        sums.get(f"total_{name}", sums.get(name, 0)) for name in ("active_file", "inactive_file")
    )
    return max(0, int(text) - files) if text.isdigit() else 0


def _available() -> int:
    for line in _text("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _groups() -> list[tuple[str, str]]:
    """Return (mount, group) of the process, for control groups of versions 1 and 2."""
    groups = []
    for line in _text("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            groups.append(("/sys/fs/cgroup", name))
        elif "memory" in controllers.split(","):
            groups.append(("/sys/fs/cgroup/memory", name))
    return groups


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
