"""Detect at low cost that a fast tier is unchanged since a search without work.

Knows the times of folders and files; reads no file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.places.stores import LocalStore, StoredFile
from penstock.save.checkpoint import Checkpoint
from penstock.save.commit import STATE
from penstock.save.drain.working import LOOK_S, LOOK_SHARE, MOST_BLIND_S

__all__ = ["Stillness"]


class Stillness:
    """Detect changes of a fast tier since a search without work.

    A check takes a small part of the time of a search.  A new or removed name changes the
    time of the folder.  Another program's checkpoint may change in place: therefore the sizes and
    times of such files are compared, too.  Some changes stay hidden: two changes within a tick of
    the file system's clock, and changes on a file system without times of folders.  The next
    search, after MOST_BLIND_S at the latest, finds hidden changes.
    """

    def __init__(self, fast: LocalStore, clock: Callable[[], float]) -> None:
        self._fast, self._clock = fast, clock
        self._begun_s = self._until_s = self._ended_s = -math.inf
        self._cost_s = 0.0
        self._folders: dict[str, int] = {}  # times by folder
        self._files: dict[str, tuple[int, int | None]] = {}  # size and time by file

    def begin(self) -> None:
        """Call before a search: changes from now on count as changes after the search."""
        self._begun_s, self._until_s = self._clock(), -math.inf
        # A cheap search costs hardly more than a comparison of times.
        is_dear = self._cost_s > LOOK_SHARE * LOOK_S or self._ended_s == -math.inf
        self._folders = _times_of_folders(self._fast.url) if is_dear else {}

    def end(self) -> None:
        """Call after a search."""
        self._ended_s = self._clock()
        self._cost_s = self._ended_s - self._begun_s

    def is_search_due(self) -> bool:
        """Return True if the time since the last search is at least the time of the search.

        A drain of thousands of checkpoints then spends at most half of the time on searches.
        """
        return self._clock() - self._ended_s >= self._cost_s

    def note(self, checkpoints: Sequence[Checkpoint], hints: Sequence[StoredFile]) -> None:
        """Record the files found by a search without work."""
        if not self._folders:
            return
        root = self._fast.url
        self._files = {
            f"{root}/{file.name}": (file.size_bytes, file.mtime_ns)
            for files in (
                hints, *(checkpoint.files for checkpoint in checkpoints if not checkpoint.is_ours)
            )
            for file in files
        }  # fmt: skip
        self._until_s = self._begun_s + min(MOST_BLIND_S, self._cost_s / LOOK_SHARE)

    def lasts(self) -> bool:
        if self._clock() >= self._until_s:
            return False
        try:
            for folder, time_ns in self._folders.items():
                if os.stat(folder).st_ctime_ns != time_ns:  # noqa: PTH116 - Path.stat is slow
                    return False
            for name, facts in self._files.items():
                status = os.stat(name)  # noqa: PTH116
                if (status.st_size, status.st_mtime_ns) != facts:
                    return False
        except OSError:
            return False
        return True


def _times_of_folders(root: str) -> dict[str, int]:
    """Return the change times (ctime) of all folders; no program can set a ctime back.

    Penstock's own folder is missing: the drain writes there each second.  Empty: unknown.
    """
    times = {}
    with suppress(OSError):
        for folder, inner, _ in os.walk(root):
            times[folder] = os.stat(folder).st_ctime_ns  # noqa: PTH116
            if STATE in inner:
                inner.remove(STATE)
        return times
    return {}
