"""Find renamed links to a burst buffer's files again, and remove files that a newer file of the
path has replaced.

The module knows links and files, and copies nothing.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from penstock.errors import TierError
from penstock.places.stores import fsync_folder
from penstock.save.burstfile import NEW, BurstFile, _sweep, drop, rename_home, unmark, was_put
from penstock.save.burstlinks import in_order, is_bad, is_file, linked_files, renamed_links
from penstock.save.lease import leased
from penstock.save.working import LOOK_S, LOOK_SHARE

__all__ = ["Refinding"]

SEARCH_AGAIN_S = 60.0


class Refinding:
    """The searches of a drain.

    is_free: returns True if no process writes to a file.  end_earlier: keeps, removes or puts back
    the earlier file of a path with the file in place; the second argument states that the program
    was killed.  copied: names of the files with a copy in progress.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        is_free: Callable[[BurstFile], bool],
        end_earlier: Callable[[BurstFile, bool], None],
    ) -> None:
        self._clock, self._is_free, self._end_earlier = clock, is_free, end_earlier
        self.copied: set[str] = set()
        self._searched_s: dict[str, float] = {}
        self._dropping, self._drop_again_s = threading.Lock(), -math.inf

    def find_again(self, found: Sequence[BurstFile], linked: Mapping[str, BurstFile]) -> bool:
        """Remove superseded files and re-find links that were renamed.  Return True if anything
        changed."""
        for one in linked.values():
            if one.is_home and one.is_linked():  # a killed program did not remove the mark
                with suppress(OSError):
                    unmark(one)
        gone = self._drop_replaced(found, linked)
        lost = [
            one
            for one in found
            if one.name not in gone
            and (one.home_at not in linked or not (one.is_home or one is linked[one.home_at]))
        ]
        has_changed = bool(gone or lost) or any(one.is_home for one in linked.values())
        now_s = self._clock()
        lost = [one for one in lost if now_s >= self._searched_s.get(one.name, -1.0)]
        places = renamed_links(lost)
        synced: set[str] = set()
        for one in lost:
            with suppress(TierError, OSError):  # an unreadable file delays no other file
                self._end_search(one, places, synced)
        return has_changed

    def _end_search(self, one: BurstFile, places: Mapping[str, Path], synced: set[str]) -> None:
        """End the search for a file's link.  places: the new paths of renamed links, by the file's
        name.  synced: the synced folders; is extended.  Raises TierError, OSError."""
        if one.name in places:
            rename_home(one, places[one.name])
        elif one.is_home or was_put(one) or not one.size_bytes:
            # The file was replaced or removed at the path, or stayed empty.  A file renamed
            # to the path may be torn: then this file is the earlier file of the path.
            if one.home in places.values():
                return
            # A killed drain may have placed the file without a sync of the folder.
            if one.folder_at not in synced and is_file(one.home):
                fsync_folder(one.folder_at)
                synced.add(one.folder_at)
            self._drop_old(one)
        else:  # the file stays: a link to the file may be outside the searched folders
            if time.time() - one.mtime_ns / 1e9 > LOOK_S:
                self._searched_s[one.name] = self._clock() + SEARCH_AGAIN_S
            _sweep(one.beside(NEW))

    def _drop_replaced(
        self, found: Sequence[BurstFile], linked: Mapping[str, BurstFile]
    ) -> set[str]:
        """Remove the files that a closed and whole newer file of the path has replaced.  Return the
        names of the removed files."""
        replaced: dict[str, list[BurstFile]] = {}
        for one in found:
            if (
                one.is_home
                and one is not linked.get(one.home_at, one)
                and one.name not in self.copied
            ):
                replaced.setdefault(one.home_at, []).append(one)
        gone = set()
        for home, older in replaced.items():
            newest, has_whole = linked[home], False
            for one in (newest, *in_order(older, newest.name)):
                if has_whole:
                    with suppress(OSError):  # the next look tries again
                        drop(one)
                        gone.add(one.name)
                else:
                    has_whole = self._is_free(one) and not is_bad(one)
        return gone

    def _drop_old(self, one: BurstFile) -> None:
        """Remove a file without a path, unless a program is about to make the link or writes to the
        file.  A killed program may have left the earlier file of the path."""
        with suppress(FileNotFoundError), leased(one.data, 0.0) as lease:
            made_s = max(one.data.stat().st_mtime, one.way.lstat().st_mtime)
            if lease.is_free and time.time() - made_s > LOOK_S:
                if os.path.lexists(one.was):
                    self._end_earlier(one, not one.is_home)
                drop(one)

    def put_off(self) -> None:
        """Drop no replaced files for LOOK_S: the last removal was a moment ago."""
        self._drop_again_s = self._clock() + LOOK_S

    def drop_meanwhile(self, lying: Callable[[], list[BurstFile]]) -> None:
        """Remove replaced files during a long copy: the tier has no room for all new files.  lying:
        returns the files on the tier."""
        if self._clock() < self._drop_again_s or not self._dropping.acquire(blocking=False):
            return
        try:
            begun_s = self._clock()
            with suppress(OSError, TierError):  # the next look tries again
                found = lying()
                homes = {one.home_at for one in found if one.is_home}
                found = [one for one in found if one.home_at in homes]
                self._drop_replaced(found, linked_files(found))
            now_s = self._clock()
            self._drop_again_s = now_s + max(LOOK_S, (now_s - begun_s) / LOOK_SHARE)
        finally:
            self._dropping.release()
