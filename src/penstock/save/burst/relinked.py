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
from penstock.save.burst.file import NEW, BurstFile, _sweep, drop, rename_home, unmark, was_put
from penstock.save.burst.links import in_order, is_bad, is_file, linked_files, renamed_links
from penstock.save.drain.working import LOOK_S, LOOK_SHARE
from penstock.save.small.lease import leased

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

    def find_again(self, files: Sequence[BurstFile], linked: Mapping[str, BurstFile]) -> bool:
        """Remove superseded files and re-find links that were renamed.  Return True if anything
        changed."""
        for file in linked.values():
            if file.is_home and file.is_linked():  # a killed program did not remove the mark
                with suppress(OSError):
                    unmark(file)
        gone = self._drop_replaced(files, linked)
        lost = [
            file
            for file in files
            if file.name not in gone
            and (file.home_at not in linked or not (file.is_home or file is linked[file.home_at]))
        ]
        has_changed = bool(gone or lost) or any(file.is_home for file in linked.values())
        now_s = self._clock()
        lost = [file for file in lost if now_s >= self._searched_s.get(file.name, -1.0)]
        places = renamed_links(lost)
        synced: set[str] = set()
        for file in lost:
            with suppress(TierError, OSError):  # an unreadable file delays no other file
                self._end_search(file, places, synced)
        return has_changed

    def _end_search(self, file: BurstFile, places: Mapping[str, Path], synced: set[str]) -> None:
        """End the search for a file's link.  places: the new paths of renamed links, by the file's
        name.  synced: the synced folders; is extended.  Raises TierError, OSError."""
        if file.name in places:
            rename_home(file, places[file.name])
        elif file.is_home or was_put(file) or not file.size_bytes:
            # The file was replaced or removed at the path, or stayed empty.  A file renamed
            # to the path may be torn: then this file is the earlier file of the path.
            if file.home in places.values():
                return
            # A killed drain may have placed the file without a sync of the folder.
            if file.folder_at not in synced and is_file(file.home):
                fsync_folder(file.folder_at)
                synced.add(file.folder_at)
            self._drop_old(file)
        else:  # the file stays: a link to the file may be outside the searched folders
            if time.time() - file.mtime_ns / 1e9 > LOOK_S:
                self._searched_s[file.name] = self._clock() + SEARCH_AGAIN_S
            _sweep(file.beside(NEW))

    def _drop_replaced(
        self, files: Sequence[BurstFile], linked: Mapping[str, BurstFile]
    ) -> set[str]:
        """Remove the files that a closed and whole newer file of the path has replaced.  Return the
        names of the removed files."""
        replaced: dict[str, list[BurstFile]] = {}
        for file in files:
            if (
                file.is_home
                and file is not linked.get(file.home_at, file)
                and file.name not in self.copied
            ):
                replaced.setdefault(file.home_at, []).append(file)
        gone = set()
        for home, older in replaced.items():
            newest, has_whole = linked[home], False
            for version in (newest, *in_order(older, newest.name)):
                if has_whole:
                    with suppress(OSError):  # the next look tries again
                        drop(version)
                        gone.add(version.name)
                else:
                    has_whole = self._is_free(version) and not is_bad(version)
        return gone

    def _drop_old(self, file: BurstFile) -> None:
        """Remove a file without a path, unless a program is about to make the link or writes to the
        file.  A killed program may have left the earlier file of the path."""
        with suppress(FileNotFoundError), leased(file.data, 0.0) as lease:
            made_s = max(file.data.stat().st_mtime, file.way.lstat().st_mtime)
            if lease.is_free and time.time() - made_s > LOOK_S:
                if os.path.lexists(file.was):
                    self._end_earlier(file, not file.is_home)
                drop(file)

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
                files = lying()
                homes = {file.home_at for file in files if file.is_home}
                files = [file for file in files if file.home_at in homes]
                self._drop_replaced(files, linked_files(files))
            now_s = self._clock()
            self._drop_again_s = now_s + max(LOOK_S, (now_s - begun_s) / LOOK_SHARE)
        finally:
            self._dropping.release()
