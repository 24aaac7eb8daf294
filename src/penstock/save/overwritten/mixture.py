"""Mark the folders of an unended last save: some files were written again, others were not.

    FOLDER/.penstock-two-saves.json   {"version": 1, "saves": [{"again": FILES, "not": FILES}]}

FILES: {NAME: [size_bytes, mtime_ns]}, NAME relative to the folder.  Each folder of a save has the
mark.  The mark holds under two conditions.  At least one file in "not" still has the listed size
and time.  At least one file in "again" has the listed time or a later time.  So the mark ends when
a save writes the other files, or when the earlier files are put back.  The module knows stores and
names, and no fast tier.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import TierError
from penstock.places.stores import LocalStore, Store
from penstock.save.kept import kept_json
from penstock.save.overwritten.earlier import Mended, give_back, is_earlier, was_of
from penstock.save.overwritten.putback import BEFOREHAND, TWO_SAVES

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = [
    "Mixture",
    "end_mixtures",
    "forget_mixtures",
    "is_mixed",
    "keep_mixtures",
    "mark_mixture",
    "mixture_of",
    "said_of_mixtures",
]

MOST_BYTES, MOST_SAVES, MOST_NAMES = 16 << 20, 16, 100_000
# The kernel's time of a write may be a tick (10 ms) before the clock's time of the open.
TICK_NS = 10_000_000
_Files = dict[Path, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Mixture:
    """The files of a training by path, with size in bytes and time in ns.

    again: files that the last save wrote again; kept: files that the last save did not write again.
    A path may be in both mappings before the files are moved."""

    again: _Files
    kept: _Files

    def holds(self) -> bool:
        """Return True if the files are still of two saves."""
        is_newer = any(
            (now := _facts(path)) is not None and now[1] >= facts[1]
            for path, facts in self.again.items()
        )
        return is_newer and any(_facts(path) == facts for path, facts in self.kept.items())

    def why(self, folder: Path) -> str:
        again = [path for path, at in self.again.items() if (_facts(path) or (0, 0))[1] >= at[1]]
        kept = [path for path, facts in self.kept.items() if _facts(path) == facts]
        sides = (again or self.again, kept or self.kept)
        new, old = (os.path.relpath(min(files), folder) for files in sides)
        return f"of two saves: {new} was written again and {old} was not"

    @property
    def paths(self) -> set[Path]:
        return {*self.again, *self.kept}

    @property
    def folders(self) -> list[Path]:
        return list(dict.fromkeys(path.parent for path in (*self.again, *self.kept)))


def mixture_of(again: Mapping[str, int], missing: Iterable[str]) -> Mixture | None:
    """Return the mixture that an unended save has left.  again: paths written again, with the times
    at which the files were begun, in ns; missing: the other paths of the save.  None: no mixture,
    as files are gone, or the earlier file of a path is back and all files are of a single save."""
    begun_ns = min(again.values(), default=0) - TICK_NS
    new = {Path(path): facts for path in again if (facts := _facts(Path(path)))}
    old = {Path(path): facts for path in missing if (facts := _facts(Path(path)))}
    new = {path: facts for path, facts in new.items() if facts[1] >= begun_ns}
    old = {path: facts for path, facts in old.items() if facts[1] < begun_ns}
    return Mixture(new, old) if new and old else None


def mark_mixture(mixture: Mixture, name: str = TWO_SAVES) -> None:
    """Write the mark into each folder.  name: name of the mark's file.  Raises TierError."""
    for folder in mixture.folders:
        others = [mark for mark in _read_one(folder, name) if mark != mixture and mark.holds()]
        _write(folder, name, [mixture, *others])


def forget_mixtures(paths: Iterable[Path]) -> None:
    """Remove the marks of ended saves, and the marks that hold no longer.  paths: paths of ended
    saves; a mark with a path in `again` is removed.  Raises TierError."""
    wanted = set(paths)
    for folder in {path.parent for path in wanted}:
        keep_mixtures(folder, lambda mixture: wanted.isdisjoint(mixture.again))


def keep_mixtures(
    folder: Path,
    is_wanted: Callable[[Mixture], bool],
    names: Sequence[str] = (TWO_SAVES, BEFOREHAND),
) -> None:
    """Remove the marks of a folder that no longer hold, or are not wanted.  Raises TierError."""
    for name in names:
        left = [
            mixture for mixture in _read_one(folder, name) if mixture.holds() and is_wanted(mixture)
        ]
        if left:
            _write(folder, name, left)
        elif os.path.lexists(folder / name):
            LocalStore(folder, makes_folders=False).delete(name)


def is_mixed(paths: Iterable[Path]) -> bool:
    """Return True if a mark of an unended save names a path of `paths`, and holds."""
    wanted = set(paths)
    folders = {path.parent for path in wanted}
    marks = [mark for folder in folders for mark in _read_one(folder, TWO_SAVES) if mark.holds()]
    return any(not wanted.isdisjoint((*mark.again, *mark.kept)) for mark in marks)


def end_mixtures(root: Path) -> list[Mended]:
    """Put back the earlier files of each unended save below a folder, if the earlier files exist.
    The call may be interrupted and repeated.  Raises TierError, OSError."""
    done: list[Mended] = []
    for folder in _marked(root):
        for mixture in _read(folder):
            files = (*mixture.again, *mixture.kept)
            is_below = all(root in path.parents and ".." not in path.parts for path in files)
            has_earlier = all(
                is_earlier(was_of(path)) or (_facts(path) or (0, 0))[1] < facts[1]
                for path, facts in mixture.again.items()
            )
            if is_below and has_earlier and _is_one_save(mixture) and mixture.holds():
                done += give_back(dict.fromkeys(files))
        keep_mixtures(folder, lambda mark: True)
    return done


def _is_one_save(mixture: Mixture) -> bool:
    """Return True if the earlier files and the files without an earlier file are of a single save.
    The result is False if the drain has never had the earlier save at the paths."""
    earlier = [facts[1] for path in mixture.again if (facts := _facts(was_of(path)))]
    again_ns = min((facts[1] for facts in mixture.again.values()), default=0)
    return all(
        abs(at_ns - facts[1]) <= abs(again_ns - facts[1]) / 2
        for path, facts in mixture.kept.items()
        if path not in mixture.again and not is_earlier(was_of(path))
        for at_ns in earlier
    )


def _marked(root: Path) -> Iterator[Path]:
    """Yield the folders with a mark."""
    for folder, _, names in os.walk(root):
        if TWO_SAVES in names or BEFOREHAND in names:
            yield Path(folder)


def said_of_mixtures(store: Store, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints, with a problem where files are of two saves."""
    if not isinstance(store, LocalStore):
        return list(checkpoints)
    marks: dict[str, list[Mixture]] = {}
    said = []
    for checkpoint in checkpoints:
        why = (
            ""
            if checkpoint.problem or checkpoint.manifest is not None
            else _why(store, checkpoint, marks)
        )
        said.append(replace(checkpoint, problem=why) if why else checkpoint)
    return said


def _why(store: LocalStore, checkpoint: Checkpoint, marks: dict[str, list[Mixture]]) -> str:
    for file in checkpoint.files:
        folder = file.name.rpartition("/")[0]
        if folder not in marks:
            marks[folder] = [mark for mark in _read(store.folder / folder) if mark.holds()]
        for mixture in marks[folder]:
            path = store.folder / file.name
            if path in mixture.again or path in mixture.kept:
                return mixture.why(Path(store.folder))
    return ""


def _facts(path: Path) -> tuple[int, int] | None:
    with suppress(OSError, ValueError):
        status = path.lstat()
        if stat.S_ISREG(status.st_mode):
            return status.st_size, status.st_mtime_ns
    return None


def _read(folder: Path) -> list[Mixture]:
    return [*_read_one(folder, TWO_SAVES), *_read_one(folder, BEFOREHAND)]


def _read_one(folder: Path, name: str) -> list[Mixture]:
    with suppress(TierError, TypeError, KeyError, ValueError, AttributeError):
        record = kept_json(LocalStore(folder, makes_folders=False), name, MOST_BYTES)
        if record is not None and record["version"] == 1:
            rows = record["saves"][:MOST_SAVES]
            return [
                Mixture(_files(folder, row["again"]), _files(folder, row["not"])) for row in rows
            ]
    return []


def _files(folder: Path, row: dict[str, Any]) -> _Files:
    """Return the files of a mark.  Raises TypeError, ValueError, AttributeError: another program
    wrote the mark."""
    files = {}
    for name, (size_bytes, mtime_ns) in list(row.items())[:MOST_NAMES]:
        path = os.path.normpath(folder / str(name))
        files[Path(path)] = int(size_bytes), int(mtime_ns)
    return files


def _write(folder: Path, name: str, saves: Sequence[Mixture]) -> None:
    rows = [
        {"again": _row(folder, save.again), "not": _row(folder, save.kept)}
        for save in saves[:MOST_SAVES]
    ]
    if saves == _read_one(folder, name):
        return
    store = LocalStore(folder, makes_folders=False)
    # Any reader of the checkpoint needs the mark.
    store.put(name, [json.dumps({"version": 1, "saves": rows}, indent=1).encode()], mode=0o644)


def _row(folder: Path, files: _Files) -> dict[str, list[int]]:
    return {os.path.relpath(path, folder): list(facts) for path, facts in sorted(files.items())}
