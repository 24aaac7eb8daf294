"""Report to the run the files that have arrived at the program's paths, and remove the files from
the burst buffer at the next look.

The module knows links and files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.recording import recorder
from penstock.save.burstfile import (
    FOLDER,
    BurstFile,
    _link,
    _target,
    drop,
    drop_data,
    entries,
    hidden_of,
    is_that,
)
from penstock.save.burstlinks import folder_at, is_as_before, versions_in
from penstock.save.earlier import EarlierFolders
from penstock.save.lease import leased
from penstock.save.many import names_in
from penstock.save.neighbours import DRAINED, tell

if TYPE_CHECKING:
    from penstock.save.burstfile import Hidden

__all__ = ["Arrivals"]


class Arrivals:
    """The files that a drain has copied to the program's paths.

    owner: the run whose files the log reports; "": all runs.  settle_s: on a file system without
    leases, a file without changes for settle_s has no writer.  keep_earlier: keeps or removes the
    earlier file of a path.  gone: by name, the status on the tier and at the path, until the next
    look.  homes: the folders with files from the drain.
    """

    def __init__(
        self,
        tier: Path,
        owner: str,
        settle_s: float,
        earlier: EarlierFolders,
        keep_earlier: Callable[[BurstFile], None],
    ) -> None:
        self._tier, self._owner, self._settle_s = tier, owner, settle_s
        self._earlier, self._keep_earlier = earlier, keep_earlier
        self.gone: dict[str, tuple[os.stat_result, os.stat_result]] = {}
        self.homes: dict[Path, None] = {}

    def is_ours(self, one: BurstFile) -> bool:
        """Return True if the owner made the file."""
        return self._owner in ("", one.owner)

    def note(
        self,
        one: BurstFile,
        before: os.stat_result,
        put: os.stat_result,
        hidden: Hidden | None = None,
    ) -> None:
        has_was = False
        if hidden is None or hidden.has_was(one):
            self._keep_earlier(one)
            has_was = os.path.lexists(one.was)
        folder, base = folder_at(one.folder_at), one.home_at.rpartition("/")[2]
        self._earlier.came_at(one.name, folder, base, has_was)
        self.gone[one.name] = (before, put)
        self.homes[folder] = None
        self.tell(one, before.st_size, max(0.0, time.time() - before.st_mtime))

    def tell(self, one: BurstFile, size_bytes: int, lag_s: float) -> None:
        said = f"{size_bytes} {lag_s:.6f} {one.home_at}"
        if self.is_ours(one):
            recorder.note(DRAINED, said)
        else:
            tell(self._tier, one.owner, said)

    def forget_committed(self) -> None:
        """Remove from the tier the files already at the program's paths.  A program may have opened
        the path just before the exchange, and may write to the file on the tier: then the link is
        put back."""
        found = entries(self._tier) if self.gone else []
        of_path: dict[str, list[BurstFile]] = {}
        for one in found:
            of_path.setdefault(one.home_at, []).append(one)
        committed = [one for one in found if one.name in self.gone]
        hidden = hidden_of(one.folder_at for one in committed)
        drafts = frozenset[str]()
        with suppress(OSError):
            drafts = frozenset(names_in(self._tier / FOLDER / "draft"))
        for one in committed:
            if one.size_bytes is None or _target(one.home_at):
                # The path is a link.  A link to the file: a newer file was torn, and the path is
                # back at the earlier file.  A link to a newer file: the newer file may still prove
                # torn, and may have replaced the file without a backup.
                continue
            aside = None if one.name in drafts else hidden.get(one.folder_at)
            with suppress(OSError):  # the program has removed the file or folder
                self._forget(one, of_path[one.home_at], *self.gone[one.name], aside)
        self.gone.clear()

    def _forget(
        self,
        one: BurstFile,
        of_path: list[BurstFile],
        before: os.stat_result,
        put: os.stat_result,
        hidden: Hidden | None,
    ) -> None:
        with leased(one.data_at, self._settle_s) as lease:
            is_same = is_as_before(os.stat(one.data_at), before)  # noqa: PTH116 - one of many
        if is_same and lease.is_free:
            # Otherwise the path may have another file since a rename.
            if len(of_path) > 1 and is_that(one.home_at, put):
                for other in versions_in(one, of_path):
                    drop(other)
            if hidden is None or hidden.has_any(one):
                self._keep_earlier(one)
                drop(one)
            else:
                drop_data(one)
        else:
            _link(one, put)
