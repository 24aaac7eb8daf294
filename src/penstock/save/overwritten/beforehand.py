"""Mark a mixture before the first file of a save replaces an earlier file.

A drain that brings files home singly may be killed between two files, with the loss of the tier:
the folder alone must show files of two saves.  The mark of penstock.save.overwritten.mixture is
written before the first file moves, and holds only while new and earlier files lie side by side.
Knows rounds and files; brings nothing home.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from penstock.errors import TierError
from penstock.places.stores import LocalStore
from penstock.save.commit import STATE
from penstock.save.kept import kept_json
from penstock.save.overwritten.earlier import was_of
from penstock.save.overwritten.mixture import (
    TICK_NS,
    Mixture,
    forget_mixtures,
    keep_mixtures,
    mark_mixture,
)
from penstock.save.overwritten.putback import BEFOREHAND
from penstock.save.overwritten.rounds import Rounds

__all__ = ["Beforehand"]

RECORD = f"{STATE}/beforehand.json"
MOST_RECORD_BYTES, MOST_SEARCHED = 1 << 20, 100_000
_Facts = tuple[int, int]


class _Arriving(Protocol):
    """A file that goes to its path.  home_at: the path; size_bytes: None: not on the tier."""

    @property
    def home_at(self) -> str: ...

    @property
    def size_bytes(self) -> int | None: ...

    @property
    def mtime_ns(self) -> int: ...


class Beforehand:
    """The marks of a drain, for use in a single thread."""

    def __init__(self, rounds: Rounds, tier: Path) -> None:
        self._rounds, self._store = rounds, LocalStore(tier, makes_folders=False)
        # Folders with marks, also of a drain that was killed.
        self._folders = dict[str, None]()
        with suppress(TierError, TypeError):
            rows = kept_json(self._store, RECORD, MOST_RECORD_BYTES)
            self._folders = dict.fromkeys(
                str(folder) for folder in rows or () if str(folder)[:1] == "/"
            )
        self._marked: dict[str, tuple[int, Mixture]] = {}  # by family, with the begin of the save

    def mark(self, batch: Sequence[_Arriving]) -> None:
        """Mark the folders of the saves with files in the batch.

        Raises TierError: a mark could not be written, and no file may move.
        """
        arriving = {
            file.home_at: (file.size_bytes, file.mtime_ns)
            for file in batch if file.size_bytes is not None
        }  # fmt: skip
        for family, begun, usual in self._rounds.of_paths(arriving):
            begun_ns = min(begun.values(), default=0) - TICK_NS
            since_ns, before = self._marked.get(family, (0, None))
            if before is not None and since_ns == begun_ns:
                coming = {Path(name) for name in usual if name in arriving}
                if coming <= before.again.keys():
                    continue
            mixture = _mixture_to_come(usual, begun_ns, arriving)
            if mixture.again and len(mixture.kept) > 1:
                self._note(dict.fromkeys(map(os.fspath, mixture.folders)) | self._folders)
                mark_mixture(mixture, BEFOREHAND)
                self._marked[family] = begun_ns, mixture

    def end(self, left: Collection[str], is_over: bool) -> None:
        """Remove the marks of the saves that are home.

        left: the paths that are links to the tier.  is_over: no program writes any more.  Raises
        TierError.
        """
        for family, (_, mixture) in list(self._marked.items()):
            if not self._rounds.is_open(family) and _are_apart(mixture, left):
                forget_mixtures(mixture.paths)
                del self._marked[family]
        if is_over and self._folders:  # by now an incomplete save has the mark of mixture
            busy = {path.rpartition("/")[0] for path in left}
            for folder in self._folders.keys() - busy:
                for at in _places(Path(folder)):
                    keep_mixtures(at, lambda mark: not _are_apart(mark, left), [BEFOREHAND])
            self._note({folder: None for folder in self._folders if folder in busy})

    def _note(self, folders: dict[str, None]) -> None:
        if folders.keys() == self._folders.keys():
            return
        self._folders = folders
        with suppress(TierError):  # on a full tier only the current drain knows the folders
            self._store.put(RECORD, [json.dumps(list(folders)).encode()])


def _mixture_to_come(
    usual: Iterable[str], begun_ns: int, arriving: Mapping[str, _Facts]
) -> Mixture:
    """Return the mixture while the files of a save move to their paths.

    usual: the paths written by each save.  arriving: the size and time of each file to move next.
    """
    again, kept = dict[Path, _Facts](), dict[Path, _Facts]()
    for name in usual:
        path = Path(name)
        now, old = _facts(path), _facts(was_of(path))
        is_old = now is not None and now[1] < begun_ns
        old = now if is_old else old
        if old is None:
            continue
        kept[path] = old
        newer = None if is_old else arriving.get(name, now)
        if newer is not None:
            again[path] = newer
    return Mixture(again, kept)


def _are_apart(mixture: Mixture, left: Collection[str]) -> bool:
    return not any(os.fspath(path) in left for path in mixture.paths)


def _places(folder: Path) -> list[Path]:
    """Return the folders with the mark.

    Without a mark in the folder, search the nearest existing folder above: the program may have
    renamed the folder.
    """
    if os.path.lexists(folder / BEFOREHAND):
        return [folder]
    above = next((parent for parent in folder.parents if parent.is_dir()), folder)
    places, n_seen = list[Path](), 0
    for at, folders, names in os.walk(above):
        n_seen += len(folders) + len(names)
        if BEFOREHAND in names:
            places.append(Path(at))
        if n_seen > MOST_SEARCHED or above == Path("/"):
            break
    return places


def _facts(path: Path) -> _Facts | None:
    with suppress(OSError, ValueError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode):
            return status.st_size, status.st_mtime_ns
    return None
