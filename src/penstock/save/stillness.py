"""Detect at a low price that a fast tier has not changed since a search that found nothing to do.

The module knows folders, files and their times; it reads no file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.save.commit import STATE
from penstock.save.formats import Checkpoint
from penstock.save.working import LOOK_S, LOOK_SHARE, MOST_BLIND_S
from penstock.stores import Found, LocalStore

__all__ = ["Stillness"]


class Stillness:
    """Whether a fast tier is as it was at a look that found nothing to do, asked at a price far
    below that of another look.

    A name that comes or goes changes the time of its folder; a checkpoint of another program may
    change in place, so that its files are asked too.  What both hide (two changes within a tick of
    the file system's clock, a file system that keeps no times of folders) is found by the next
    look, which comes after MOST_BLIND_S at the latest.
    """

    def __init__(self, fast: LocalStore, clock: Callable[[], float]) -> None:
        self._fast, self._clock = fast, clock
        self._begun_s = self._until_s = -math.inf
        self._cost_s = 0.0
        self._folders: dict[str, int] = {}  # each with its time
        self._files: dict[str, tuple[int, int | None]] = {}  # each with its size and time

    def begin(self) -> None:
        """Before a look: what changes from now on counts as changed after it."""
        self._begun_s, self._until_s = self._clock(), -math.inf
        # Else a look costs hardly more than this does.
        is_dear = self._cost_s > LOOK_SHARE * LOOK_S
        self._folders = _times_of_folders(self._fast.url) if is_dear else {}

    def note(self, found: Sequence[Checkpoint], hints: Sequence[Found]) -> None:
        """A look has found these, and nothing to do."""
        self._cost_s = self._clock() - self._begun_s
        if not self._folders:
            return
        root = self._fast.url
        self._files = {
            f"{root}/{file.name}": (file.size_bytes, file.mtime_ns)
            for files in (hints, *(one.files for one in found if not one.is_ours))
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
    """When names came or went last, which nobody can set back.  Our own folder has none: we write
    there each second.  Empty: they cannot be told."""
    times = {}
    with suppress(OSError):
        for folder, inner, _ in os.walk(root):
            times[folder] = os.stat(folder).st_ctime_ns  # noqa: PTH116
            if STATE in inner:
                inner.remove(STATE)
        return times
    return {}
