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
from penstock.save.burst.file import (
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
from penstock.save.burst.links import folder_at, is_as_before, versions_in
from penstock.save.drain.neighbours import DRAINED, tell
from penstock.save.overwritten.earlier import EarlierFolders
from penstock.save.small.lease import leased
from penstock.save.small.many import names_in

if TYPE_CHECKING:
    from penstock.save.burst.file import Hidden

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

    def is_ours(self, file: BurstFile) -> bool:
        """Return True if the owner made the file."""
        return self._owner in ("", file.owner)

    def note(
        self,
        file: BurstFile,
        before: os.stat_result,
        put: os.stat_result,
        hidden: Hidden | None = None,
    ) -> None:
        has_was = False
        if hidden is None or hidden.has_was(file):
            self._keep_earlier(file)
            has_was = os.path.lexists(file.was)
        folder, base = folder_at(file.folder_at), file.home_at.rpartition("/")[2]
        self._earlier.came_at(file.name, folder, base, has_was)
        self.gone[file.name] = (before, put)
        self.homes[folder] = None
        self.tell(file, before.st_size, max(0.0, time.time() - before.st_mtime))

    def tell(self, file: BurstFile, size_bytes: int, lag_s: float) -> None:
        said = f"{size_bytes} {lag_s:.6f} {file.home_at}"
        if self.is_ours(file):
            recorder.note(DRAINED, said)
        else:
            tell(self._tier, file.owner, said)

    def forget_committed(self) -> None:
        """Remove from the tier the files already at the program's paths.  A program may have opened
        the path just before the exchange, and may write to the file on the tier: then the link is
        put back."""
        files = entries(self._tier) if self.gone else []
        of_path: dict[str, list[BurstFile]] = {}
        for file in files:
            of_path.setdefault(file.home_at, []).append(file)
        committed = [file for file in files if file.name in self.gone]
        hidden = hidden_of(file.folder_at for file in committed)
        drafts = frozenset[str]()
        with suppress(OSError):
            drafts = frozenset(names_in(self._tier / FOLDER / "draft"))
        for file in committed:
            if file.size_bytes is None or _target(file.home_at):
                # The path is a link.  A link to the file: a newer file was torn, and the path is
                # back at the earlier file.  A link to a newer file: the newer file may still prove
                # torn, and may have replaced the file without a backup.
                continue
            aside = None if file.name in drafts else hidden.get(file.folder_at)
            with suppress(OSError):  # the program has removed the file or folder
                self._forget(file, of_path[file.home_at], *self.gone[file.name], aside)
        self.gone.clear()

    def _forget(
        self,
        file: BurstFile,
        of_path: list[BurstFile],
        before: os.stat_result,
        put: os.stat_result,
        hidden: Hidden | None,
    ) -> None:
        with leased(file.data_at, self._settle_s) as lease:
            is_same = is_as_before(os.stat(file.data_at), before)  # noqa: PTH116 - one of many
        if is_same and lease.is_free:
            # Otherwise the path may have another file since a rename.
            if len(of_path) > 1 and is_that(file.home_at, put):
                for other in versions_in(file, of_path):
                    drop(other)
            if hidden is None or hidden.has_any(file):
                self._keep_earlier(file)
                drop(file)
            else:
                drop_data(file)
        else:
            _link(file, put)
