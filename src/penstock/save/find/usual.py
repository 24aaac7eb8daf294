"""Doubt a save that lacks a file of the earlier saves, whatever the words of the names.

The step of a save stands in the names of the files: `step_300/tape.xyz`, `tapes/tape-300.xyz`.  A
name with `#` in the place of the step is equal for all saves of a training.  The names may belong
to files of no checkpoint.  A program may also have ended to write such a file: the save is copied
and doubted, and never called checked while there are others.  The module knows names and times.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.places.stores import StoredFile
from penstock.save.unit.names import SELECTORS, parts_of
from penstock.save.unit.progress import FROZEN_S, SLOW_BPS
from penstock.save.unit.shapes import LACKS, OLDER, role_at, roles_inside
from penstock.save.unit.units import BY_RULE

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = [
    "LEAST_SAVES",
    "is_doubted",
    "number_of",
    "of_equal_number",
    "of_other_saves",
    "usual_files",
    "usual_parts",
    "without_usual",
]

LEAST_SAVES = 2  # numbers with a file outside: a single number may be a coincidence
NEWER = 2  # compared later saves
MOST_PAIRS = 1 << 16  # of a checkpoint and a file with one number
_NUMBER = re.compile(r"\d+")
# Files that a program writes beside its saves: pictures, tables, logs.
_OUTPUT = re.compile(
    r"\.(?:png|jpe?g|gif|svg|pdf|html|mp4|wav|csv|tsv|jsonl|ndjson|parquet|arrow|log|out|err|lock)$"
    r"|tfevents",
    re.IGNORECASE,
)
# Descriptions, which a program may write with its first save alone.
_TEXT = re.compile(r"\.(?:json|ya?ml|toml|txt|md|cfg|ini|conf|py|sh|patch|diff|xml)$")
_RUN = re.compile(
    r"(?:^|[^a-z])(?:run|exp|experiment|trial|seed|job|try|folds?|v|ver|version|rev)(?![a-z])"
)
_OUTPUT_WORDS = {
    "sample", "samples", "image", "images", "pred", "preds", "predictions", "eval", "evaluation",
    "metric", "metrics", "result", "results", "log", "logs", "plot", "plots", "figure", "history",
    "export", "exports", "exported", "release", "releases", "onnx", "hf", "deploy", "serving",
    "top",
}  # fmt: skip
_LACKS = f"{LACKS}the save of "
# The format's own index names the other files, or the names of the files are random.
_WITH_INDEX = ("dcp", "orbax", "tensorflow", "deepspeed", "savedmodel")


class _File(NamedTuple):
    """A file with the number of a save in the path.  key: the path with # in the place of the
    number."""

    key: str
    time_ns: int
    size_bytes: int


@dataclass(slots=True)
class _Save:
    """The files of a number of a series.  inside: of the checkpoints; there: of no checkpoint of
    the series, but with the number in the path and near in the tier; outside: those written with
    the checkpoints."""

    number: int
    begin_ns: int
    end_ns: int
    inside: set[str] = field(default_factory=set)
    there: set[str] = field(default_factory=set)
    outside: set[str] = field(default_factory=set)


def without_usual(
    checkpoints: Sequence[Checkpoint],
    others: Sequence[Checkpoint] = (),
    rest: Sequence[StoredFile] = (),
) -> dict[int, str]:
    """Return doubts by id of checkpoint, for saves that lack a file of the earlier saves.

    others: checkpoints of another tier.  rest: the files of no checkpoint."""
    numbered = _Numbered([*checkpoints, *others], rest)
    said = dict[int, str]()
    for checkpoint in checkpoints:
        if checkpoint.problem or BY_RULE in checkpoint.why:
            continue
        if why := numbered.lost_of(checkpoint):
            said[id(checkpoint)] = why
    return said


def is_doubted(checkpoint: Checkpoint) -> bool:
    """Return True if a checkpoint lacks a file of the earlier saves, by without_usual() alone."""
    return _LACKS in checkpoint.doubt and not checkpoint.torn


def usual_parts(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the other checkpoints of the save of a checkpoint: with an equal number in the path,
    and written together in earlier saves too.  checkpoints: all of the tier."""
    number, near = number_of(checkpoint), of_equal_number(checkpoint, checkpoints)
    if number is None or not near:
        return []
    usual = _Numbered(checkpoints, ()).usual_of(checkpoint)
    return [other for other in near if _key(_name_of(other), number) in usual]


def usual_files(
    checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint], rest: Sequence[StoredFile]
) -> list[StoredFile]:
    """Return the files of no checkpoint that were written with the save of a checkpoint, as with
    earlier saves.  rest: the files of no checkpoint."""
    number = number_of(checkpoint)
    if number is None:
        return []
    numbered = _Numbered(checkpoints, rest)
    usual = numbered.usual_of(checkpoint)
    return [file for file in rest if _key(file.name, number) in usual]


def of_equal_number(checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Return the other checkpoints near in the tier and in time, with the number of a checkpoint
    in the path."""
    number, name = number_of(checkpoint), _name_of(checkpoint)
    if number is None:
        return []
    begin_ns, end_ns = _times_of(checkpoint)
    series = _key(name, number)
    return [
        other for other in checkpoints
        if number in _numbers_in(_name_of(other)) and _name_of(other) != name
        and _key(_name_of(other), number) != series
        and _is_near(_key(_name_of(other), number), series)
        and _is_at_once(*_times_of(other), other.size_bytes, begin_ns, end_ns)
    ]  # fmt: skip


def of_other_saves(
    checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint], rest: Iterable[StoredFile]
) -> set[str]:
    """Return the names of the files of no checkpoint that carry the number of another save of the
    series of a checkpoint, and not the number of the checkpoint; or that differ in the number only
    from a file with the number of the checkpoint."""
    number, rest = number_of(checkpoint), list(rest)
    if number is None:
        return set()
    keys = {_key(file.name, number) for file in rest if number in _numbers_in(file.name)}
    series = _key(_name_of(checkpoint), number)
    numbers = {
        there for other in checkpoints
        if (there := number_of(other)) not in (None, number)
        and _key(_name_of(other), there or 0) == series
    }  # fmt: skip
    return {
        file.name for file in rest
        if (own := _numbers_in(file.name)) and number not in own
        and (not own.isdisjoint(numbers) or any(_key(file.name, other) in keys for other in own))
    }  # fmt: skip


def number_of(checkpoint: Checkpoint) -> int | None:
    """Return the number that stands for the save in the name: the step, or without a step the only
    number in the name of the file or the folder (`consumed_samples_300/`).  None: no such number,
    or the number of a run."""
    name = _name_of(checkpoint)
    if checkpoint.step is not None:
        return checkpoint.step if checkpoint.step in _numbers_in(name) else None
    for part in reversed(name.split("/")[-2:]):
        numbers = set(map(int, (text for text in _NUMBER.findall(part) if len(text) <= 18)))
        if len(numbers) == 1 and not _is_run(part):
            return numbers.pop()
    return None


class _Numbered:
    """The saves of a tier by series and number."""

    def __init__(self, checkpoints: Sequence[Checkpoint], rest: Sequence[StoredFile]) -> None:
        self._saves = defaultdict[str, dict[int, _Save]](dict)
        self._inside = dict[int, set[str]]()  # roles of the files, by id of checkpoint
        self._recurrent = set[str]()  # keys outside; of a checkpoint only those of two numbers
        series: defaultdict[str, list[tuple[int, Checkpoint]]] = defaultdict(list)
        for checkpoint in checkpoints:
            if not checkpoint.problem and (number := number_of(checkpoint)) is not None:
                series[_key(_name_of(checkpoint), number)].append((number, checkpoint))
        for key, rows in series.items():
            self._add(self._saves[key], rows)
        self._rows = {
            series: sorted(saves.values(), key=lambda save: (save.end_ns, save.number))
            for series, saves in self._saves.items()
        }
        self._places = {
            (series, save.number): place
            for series, rows in self._rows.items() for place, save in enumerate(rows)
        }  # fmt: skip
        if self._saves:
            self._add_outside(checkpoints, rest)

    def _add(self, saves: dict[int, _Save], rows: Sequence[tuple[int, Checkpoint]]) -> None:
        """Add the checkpoints of a series.  Roles are compared only if the names are not equal."""
        names = _names_in(rows[0][1])
        is_equal = all(_names_in(checkpoint) == names for _, checkpoint in rows)
        for number, checkpoint in rows:
            begin_ns, end_ns = _times_of(checkpoint)
            save = saves.setdefault(number, _Save(number, begin_ns, end_ns))
            save.begin_ns, save.end_ns = min(save.begin_ns, begin_ns), max(save.end_ns, end_ns)
            if not is_equal:
                self._inside[id(checkpoint)] = own = _inside_of(checkpoint, number)
                save.inside |= own

    def _add_outside(self, checkpoints: Sequence[Checkpoint], rest: Sequence[StoredFile]) -> None:
        """Add the files outside the checkpoints of each series.  A checkpoint that is not whole is
        no part of a whole save."""
        by_number = defaultdict[int, list[_File]](list)
        keys = defaultdict[str, set[int]](set)  # numbers by key
        for checkpoint in checkpoints:
            name = _name_of(checkpoint)
            if checkpoint.problem or self._lost_inside(checkpoint) or not _may_be_of_save(name):
                continue
            for number in _numbers_in(name):
                row = _File(_key(name, number), _times_of(checkpoint)[1], checkpoint.size_bytes)
                by_number[number].append(row)
                keys[row.key].add(number)
        self._recurrent = {key for key, numbers in keys.items() if len(numbers) >= LEAST_SAVES}
        for file in filter(lambda file: _may_be_of_save(file.name), rest):
            for number in _numbers_in(file.name):
                row = _File(_key(file.name, number), file.mtime_ns or 0, file.size_bytes)
                by_number[number].append(row)
                self._recurrent.add(row.key)
        n_series = Counter(number for saves in self._saves.values() for number in saves)
        for series, saves in self._saves.items():
            for number, save in saves.items():
                rows = by_number[number]
                if len(rows) * n_series[number] <= MOST_PAIRS:
                    _add_near(save, series, rows)

    def _of(self, checkpoint: Checkpoint) -> tuple[_Save | None, list[_Save], list[_Save]]:
        """Return the save of a checkpoint, the earlier and the later saves, from old to new."""
        number = number_of(checkpoint)
        if number is None:
            return None, [], []
        series = _key(_name_of(checkpoint), number)
        place = self._places.get((series, number))
        if place is None:
            return None, [], []
        rows = self._rows[series]
        return rows[place], rows[max(0, place - OLDER) : place], rows[place + 1 : place + 1 + NEWER]

    def lost_of(self, checkpoint: Checkpoint) -> str:
        """Name a file that the save of a checkpoint lacks; empty: none."""
        save, older, newer = self._of(checkpoint)
        if save is None or not older:
            return ""
        before = [row.outside & self._recurrent for row in older]
        after = [row.there for row in newer]
        lost = [*self._lost_inside(checkpoint), *_lost_outside(save.there, before, after)]
        if not lost:
            return ""
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        text = next(
            text for text in _NUMBER.findall(_name_of(checkpoint)) if int(text) == save.number
        )  # perhaps filled with zeros
        name = lost[0].replace("#", text)
        return f"no {name}{more}{_LACKS}{older[-1].number} has"

    def _lost_inside(self, checkpoint: Checkpoint) -> list[str]:
        """Return the roles that a checkpoint lacks and the earlier checkpoints of the series
        have."""
        save, older, newer = self._of(checkpoint)
        own = self._inside.get(id(checkpoint))
        if save is None or own is None:
            return []
        return _lost(own, [row.inside for row in older], [row.inside for row in newer])

    def usual_of(self, checkpoint: Checkpoint) -> set[str]:
        """Return the keys outside that belong to the save of a checkpoint."""
        save, _, _ = self._of(checkpoint)
        return save.outside & self._recurrent if save is not None else set()


def _add_near(save: _Save, series: str, rows: Iterable[_File]) -> None:
    """Add the files near in the tier to a save.  rows: files with the number of the save."""
    for file in rows:
        if file.key != series and _is_near(file.key, series):
            save.there.add(file.key)
            at = file.time_ns, file.time_ns, file.size_bytes
            if _is_at_once(*at, save.begin_ns, save.end_ns):
                save.outside.add(file.key)


def _lost(own: set[str], older: Sequence[set[str]], newer: Sequence[set[str]]) -> list[str]:
    """Return the keys that the earlier saves have, but for one of four, and all later saves; of
    descriptions two earlier saves."""
    return [
        key for key in sorted({key for row in older for key in row} - own)
        if sum(key in row for row in older) >= min(len(older), OLDER - 1)
        and all(key in row for row in newer)
        and (len(older) > 1 or not _TEXT.search(key))
    ]  # fmt: skip


def _lost_outside(
    own: set[str], older: Sequence[set[str]], newer: Sequence[set[str]]
) -> Iterator[str]:
    """Yield the keys of _lost().  The oldest saves may have lost the file to a removal, which goes
    part by part: the saves before the first with the file do not count."""
    for key in sorted({key for row in older for key in row} - own):
        first = next(place for place, row in enumerate(older) if key in row)
        if _lost(own, [row & {key} for row in older[first:]], newer):
            yield key


def _inside_of(checkpoint: Checkpoint, number: int) -> set[str]:
    """Return the roles of the files of a checkpoint."""
    names = _names_in(checkpoint)
    if checkpoint.kind in _WITH_INDEX:
        names = tuple(name for name in names if "/" not in name)
    own = filter(_may_be_of_save, names)
    if checkpoint.is_folder:
        return roles_inside(list(own), number)
    return {role_at(parts_of(name), number) for name in own}


def _names_in(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return the names of the files at the save."""
    manifest = checkpoint.manifest
    return checkpoint.inner_names if manifest is None else tuple(manifest.by_saved_name)


def _times_of(checkpoint: Checkpoint) -> tuple[int, int]:
    times = [at for _, at in checkpoint.manifest.saved if at] if checkpoint.manifest else []
    times = times or [file.mtime_ns for file in checkpoint.files if file.mtime_ns]
    if checkpoint.manifest is not None and not checkpoint.manifest.saved:
        times = [checkpoint.mtime_ns]
    return min(times, default=0), max(times, default=0)


def _name_of(checkpoint: Checkpoint) -> str:
    return checkpoint.called or checkpoint.name


def _is_run(folder: str) -> bool:
    return _RUN.search(folder.lower()) is not None


@lru_cache(1 << 16)  # a drain asks for each checkpoint that is due
def _numbers_in(name: str) -> frozenset[int]:
    return frozenset(int(text) for text in _NUMBER.findall(name) if len(text) <= 18)


def _key(name: str, number: int) -> str:
    """Return a name with # in the place of a number."""
    if "#" in name:
        name = name.replace("#", "_")
    return _NUMBER.sub(lambda match: "#" if int(match[0][:18]) == number else match[0], name)


def _may_be_of_save(name: str) -> bool:
    """Return False for outputs (pictures, tables, logs, exports), copies of the best save and
    hidden files."""
    *folders, base = name.split("/")
    if base.startswith(".") or _OUTPUT.search(base) or parts_of(base).is_history:
        return False
    named = (folder for folder in folders[-2:] if not _NUMBER.search(folder))
    parts = map(parts_of, (*named, base))  # not `consumed_samples_300`
    return all(
        _OUTPUT_WORDS.isdisjoint(part.words) and SELECTORS.isdisjoint(part.key) for part in parts
    )


def _is_near(key: str, series: str) -> bool:
    """Return True if two names with # lie in one folder, or in two folders beside each other, and
    no folder on the way is of a run."""
    left, right = key.split("/"), series.split("/")
    n_common = 0
    while n_common < min(len(left), len(right)) - 1 and left[n_common] == right[n_common]:
        n_common += 1
    left, right = left[n_common:-1], right[n_common:-1]
    is_close = len(left) <= 2 and len(right) <= 2
    return is_close and not any(
        _is_run(folder) or _NUMBER.search(folder) for folder in left + right
    )


def _is_at_once(begin_ns: int, end_ns: int, size_bytes: int, first_ns: int, last_ns: int) -> bool:
    """Return True if a file was written with a save, in the time of a slow write."""
    margin_ns = (FROZEN_S + size_bytes / SLOW_BPS) * 1e9
    return first_ns - margin_ns <= end_ns and begin_ns <= last_ns + margin_ns
