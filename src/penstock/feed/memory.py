"""Memory for a window of records, and how much of it this process may take."""

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
    """Memory that reads go into; grows to what a window needs, up to a limit.

    spares: memory that somebody still refers to is left to them, and new memory taken.
    """

    def __init__(self, limit_bytes: int, spares: bool = False) -> None:
        self.limit_bytes = limit_bytes
        self._spares = spares
        self._memory: mmap.mmap | None = None
        self._given: Callable[[], NDArray[np.uint8] | None] = lambda: None

    def room(self, needed: int) -> NDArray[np.uint8]:
        """At least so many bytes, beginning on a page.  What was in it before is gone."""
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
            self._memory = None  # the old one goes before the new one comes
            self._memory = self._new(needed)
        if self._memory is None:
            return np.zeros(0, np.uint8)
        # A new array each time: all that refers to the memory, however, keeps this one alive.
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
            # A request into memory of one piece is one request at the device as well.
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory


def available_bytes() -> int:
    """Memory that this process may use for files: what the machine has free, and what its groups
    let beyond what they use."""
    found = [_available()]
    for root, name in _groups():
        for part in (name, *(str(parent) for parent in Path(name).parents)):
            group = f"{root}{part.rstrip('/')}"
            for limit, used in LIMITS:
                text = _text(f"{group}/{limit}").strip()
                if text.isdigit():
                    found.append(max(0, int(text) - _held_bytes(group, used)))
    return min(found)


# Of both versions of control groups: the limit, and what counts against it.
LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def _held_bytes(group: str, used: str) -> int:
    """What a group uses and cannot give back: files in memory go when it needs room."""
    text = _text(f"{group}/{used}").strip()
    parts = (line.split() for line in _text(f"{group}/memory.stat").splitlines())
    sums = {part[0]: int(part[1]) for part in parts if len(part) == 2}
    # Version 1 counts a group alone under these names, and with those below it as `total_`.
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
    """(mount, group) of this process, of both versions of control groups."""
    found = []
    for line in _text("/proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, name = rest.partition(":")
        if not controllers:
            found.append(("/sys/fs/cgroup", name))
        elif "memory" in controllers.split(","):
            found.append(("/sys/fs/cgroup/memory", name))
    return found


def _text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
