"""Doubt a save that lacks a file of the earlier saves, whatever the words of the names.

The step of a save stands in the names of the files: `step_300/tape.xyz`, `tapes/tape-300.xyz`.  A
name with `*` in the place of each number is equal for all saves of a training, and for all ranks:
`epoch=3-step=300.ckpt`, `rank0-300.pt`.  The files of one such name are counted: a save may lack
the file of one rank.  The names may belong to files of no checkpoint.  A program may also have
ended to write such a file: the save is copied and doubted, and never called checked
while there are others.  The module knows names and times.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from penstock.places.stores import StoredFile
from penstock.save.unit.companions import chunks_of_arrays
from penstock.save.unit.names import SELECTORS, parts_of
from penstock.save.unit.order import Count, counts_of
from penstock.save.unit.progress import FROZEN_S, SLOW_BPS
from penstock.save.unit.shapes import LACKS, OLDER
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

LEAST_SAVES = 2  # numbers with a checkpoint outside: a single number may be a coincidence
NEWER = 2  # compared later saves
MOST_PAIRS = 1 << 16  # of a checkpoint and a file with one number
DEEPEST = 4  # folders between a file and the folder that it shares with a checkpoint
_NUMBER = re.compile(r"\d+")
_NUMBERS = re.compile(r"\d+(?:\.\d+)*")
_NUMBERS_OF_KEY = re.compile(rf"\*|{_NUMBERS.pattern}")
# Files that a program writes beside its saves: pictures, tables, logs.
_OUTPUT = re.compile(
    r"\.(?:png|jpe?g|gif|svg|pdf|html|mp4|wav|csv|tsv|jsonl|ndjson|parquet|arrow|log|out|err|lock)$"
    r"|tfevents|\.trace\b",
    re.IGNORECASE,
)
# Descriptions, which a program may write with its first save alone.
_TEXT = re.compile(r"\.(?:json|ya?ml|toml|txt|md|cfg|ini|conf|py|sh|patch|diff|xml|info)$")
_RUN = re.compile(
    r"(?:^|[^a-z])(?:run|exp|experiment|trial|seed|job|try|folds?|v|ver|version|rev)(?![a-z])"
)
_OUTPUT_WORDS = {
    "sample", "samples", "image", "images", "pred", "preds", "predictions", "eval", "evaluation",
    "metric", "metrics", "result", "results", "log", "logs", "plot", "plots", "figure", "history",
    "export", "exports", "exported", "release", "releases", "onnx", "hf", "deploy", "serving",
    "top", "generations", "generated", "dump", "dumps", "media", "embeddings", "attn", "attention",
    "quant", "quantized", "converted", "uploaded",
}  # fmt: skip
_LACKS = f"{LACKS}the save of "
# The format's own index names the other files, or the names of the files are random.
_WITH_INDEX = ("dcp", "orbax", "tensorflow", "deepspeed", "savedmodel")


class _File(NamedTuple):
    """A file with the number of a save in the path.  key: the path with * for each number; place:
    of the save's number among the numbers of the path."""

    name: str
    key: str
    place: int
    time_ns: int
    size_bytes: int


@dataclass(slots=True)
class _Save:
    """The files of a number of a series, counted by key.  inside: in the checkpoints; near: with
    the number in the path and near in the tier; outside: those written with the checkpoints."""

    number: int
    begin_ns: int
    end_ns: int
    inside: Counter[str] = field(default_factory=Counter)
    near: Counter[str] = field(default_factory=Counter)
    outside: Counter[str] = field(default_factory=Counter)


def without_usual(
    checkpoints: Sequence[Checkpoint],
    others: Sequence[Checkpoint] = (),
    rest: Sequence[StoredFile] = (),
) -> dict[int, str]:
    """Return doubts by id of checkpoint, for saves that lack a file of the earlier saves.

    others: checkpoints of another tier.  rest: the files of no checkpoint, of both tiers."""
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
    and beside checkpoints of another number too.  checkpoints: all of the tier."""
    near = of_equal_number(checkpoint, checkpoints)
    if not near:
        return []
    keys, number = {_key(_name_of(other)) for other in near}, number_of(checkpoint)
    series = _key(_name_of(checkpoint))
    own = defaultdict[str, set[int | None]](set)  # other numbers, by key
    for other in checkpoints:
        key = _key(_name_of(other))
        if (key in keys or key == series) and (there := number_of(other)) != number:
            own[key].add(there)
    return [other for other in near if own[_key(_name_of(other))] & own[series]]


def usual_files(
    checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint], rest: Sequence[StoredFile]
) -> list[StoredFile]:
    """Return the files of no checkpoint that were written with the save of a checkpoint.  rest: the
    files of no checkpoint."""
    outside = _Numbered(checkpoints, rest).outside_of(checkpoint)
    number = number_of(checkpoint)
    return [
        file for file in rest if number in _numbers_in(file.name) and _key(file.name) in outside
    ]


def of_equal_number(checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Return the other checkpoints near in the tier and in time, with the number of a checkpoint
    in the path."""
    number, name = number_of(checkpoint), _name_of(checkpoint)
    if number is None:
        return []
    begin_ns, end_ns = _times_of(checkpoint)
    series = _key(name)
    return [
        other for other in checkpoints
        if number in _numbers_in(_name_of(other)) and _key(_name_of(other)) != series
        and _is_near(_key(_name_of(other)), series)
        and _is_at_once(*_times_of(other), other.size_bytes, begin_ns, end_ns)
    ]  # fmt: skip


def of_other_saves(
    checkpoint: Checkpoint, checkpoints: Iterable[Checkpoint], rest: Iterable[StoredFile]
) -> set[str]:
    """Return the names of the files of no checkpoint that carry the number of another save of the
    series of a checkpoint, and not the number of the checkpoint; or that differ in numbers only
    from a file with the number of the checkpoint."""
    number, rest = number_of(checkpoint), list(rest)
    if number is None:
        return set()
    keys = {_key(file.name) for file in rest if number in _numbers_in(file.name)}
    series = _key(_name_of(checkpoint))
    numbers = {number_of(other) for other in checkpoints if _key(_name_of(other)) == series}
    return {
        file.name for file in rest
        if (own := _numbers_in(file.name)) and number not in own
        and (not own.isdisjoint(numbers) or _key(file.name) in keys)
    }  # fmt: skip


def number_of(checkpoint: Checkpoint) -> int | None:
    """Return the number that stands for the save in the name: the step, or without a step in digits
    (`400k`, `consumed_samples_300/`) the only number in the name of the file or the folder.  None:
    no such number, or the number of a run."""
    name = _name_of(checkpoint)
    if checkpoint.step is not None and checkpoint.step in _numbers_in(name):
        return checkpoint.step
    for part in reversed(name.split("/")[-2:]):
        numbers = _numbers_in(part)
        if len(numbers) == 1 and not _is_run(part):
            return next(iter(numbers))
    return None


class _Numbered:
    """The saves of the tiers by series and number."""

    def __init__(self, checkpoints: Sequence[Checkpoint], rest: Sequence[StoredFile]) -> None:
        self._inside = dict[int, Counter[str]]()  # by id of checkpoint
        self._asked = set[str]()  # keys outside; of a checkpoint only those of two numbers
        counts = counts_of(checkpoints)
        series: defaultdict[str, list[tuple[Count, Checkpoint]]] = defaultdict(list)
        for checkpoint in checkpoints:
            if not checkpoint.problem and (number := number_of(checkpoint)) is not None:
                epoch = counts[id(checkpoint)][0]
                series[_key(_name_of(checkpoint))].append(((epoch, number), checkpoint))
        self._counts = {id(made): count for rows in series.values() for count, made in rows}
        self._saves = {key: self._added(rows) for key, rows in series.items()}
        self._places = {
            key: {count: place for place, count in enumerate(saves)}
            for key, saves in self._saves.items()
        }
        self._rows = {key: list(saves.values()) for key, saves in self._saves.items()}
        if self._saves:
            self._add_near(checkpoints, rest)

    def _added(self, rows: Sequence[tuple[Count, Checkpoint]]) -> dict[Count, _Save]:
        """Return the saves of a series, from old to new.  Names inside are compared only if they
        are not equal in all checkpoints."""
        saves = dict[Count, _Save]()
        names = _names_in(rows[0][1])
        is_equal = all(_names_in(checkpoint) == names for _, checkpoint in rows)
        for count, checkpoint in rows:
            begin_ns, end_ns = _times_of(checkpoint)
            save = saves.setdefault(count, _Save(count[1], begin_ns, end_ns))
            save.begin_ns, save.end_ns = min(save.begin_ns, begin_ns), max(save.end_ns, end_ns)
            if not is_equal:
                self._inside[id(checkpoint)] = own = _inside_of(checkpoint)
                save.inside |= own
        return dict(sorted(saves.items(), key=lambda row: (row[1].end_ns, row[0])))

    def _add_near(self, checkpoints: Sequence[Checkpoint], rest: Sequence[StoredFile]) -> None:
        """Add the files outside the checkpoints of each series.  A checkpoint that is not whole is
        no part of a whole save."""
        by_number = defaultdict[int, list[_File]](list)
        values = defaultdict[tuple[str, int], set[int]](set)  # by key and place in the path
        numbers_of = defaultdict[str, set[int]](set)
        for checkpoint in checkpoints:
            name = _name_of(checkpoint)
            if not _may_be_of_save(name):
                continue
            key, ended_ns = _key(name), _times_of(checkpoint)[1]
            numbers_of[key] |= _numbers_in(name)
            if checkpoint.problem or self._lost_inside(checkpoint):
                continue
            for number, place in _places_in(name):
                by_number[number].append(_File(name, key, place, ended_ns, checkpoint.size_bytes))
                values[key, place].add(number)
        self._asked = {key for key, there in numbers_of.items() if len(there) >= LEAST_SAVES}
        for file in filter(lambda file: _may_be_of_save(file.name), rest):
            key = _key(file.name)
            self._asked.add(key)
            for number, place in _places_in(file.name):
                row = _File(file.name, key, place, file.mtime_ns or 0, file.size_bytes)
                by_number[number].append(row)
                values[key, place].add(number)
        n_series = Counter(number for saves in self._saves.values() for _, number in saves)
        n_values = {pair: len(there & n_series.keys()) for pair, there in values.items()}
        for series, saves in self._saves.items():
            for (_, number), save in saves.items():
                rows = by_number[number]
                if len(rows) * n_series[number] <= MOST_PAIRS:
                    _add_rows(save, series, rows, n_values)

    def _of(self, checkpoint: Checkpoint) -> tuple[_Save | None, list[_Save], list[_Save]]:
        """Return the save of a checkpoint, the earlier and the later saves, from old to new."""
        key = _key(_name_of(checkpoint))
        count, places = self._counts.get(id(checkpoint)), self._places.get(key, {})
        if count is None and (number := number_of(checkpoint)) is not None:
            count = next((count for count in places if count[1] == number), None)
        if count not in places:
            return None, [], []
        place, rows = places[count], self._rows[key]
        return rows[place], rows[max(0, place - OLDER) : place], rows[place + 1 : place + 1 + NEWER]

    def lost_of(self, checkpoint: Checkpoint) -> str:
        """Name a file that the save of a checkpoint lacks; empty: none."""
        save, older, newer = self._of(checkpoint)
        if save is None or not older:
            return ""
        before, after = [row.outside for row in older], [row.near for row in newer]
        digits = _NUMBER.findall(_name_of(checkpoint))  # perhaps filled with zeros
        number = next((text for text in digits if int(text) == save.number), str(save.number))
        lost = self._lost_inside(checkpoint)
        said = [_key(_name_of(checkpoint)), *(key for key, _, _ in lost)] if lost else []
        lost += [
            (key.replace("*", number) if key.count("*") == 1 else key, n_there, n)
            for key, n_there, n in _lost(save.near, before, after)
            if key in self._asked and not key.endswith(tuple(said))
        ]
        if not lost:
            return ""
        name, n_there, n = lost[0]
        more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
        few = f"only {n_there} of the {n} files" if n_there else "no"
        return f"{few} {name}{more}{_LACKS}{older[-1].number} has"

    def _lost_inside(self, checkpoint: Checkpoint) -> list[tuple[str, int, int]]:
        """Return the files that a checkpoint lacks and the earlier checkpoints of the series
        have."""
        own = self._inside.get(id(checkpoint))
        if own is None:
            return []
        _, older, newer = self._of(checkpoint)
        return _lost(own, [row.inside for row in older], [row.inside for row in newer])

    def outside_of(self, checkpoint: Checkpoint) -> set[str]:
        """Return the keys outside that belong to the save of a checkpoint."""
        save, _, _ = self._of(checkpoint)
        if save is None:
            return set()
        return self._asked & save.outside.keys() - {_key(_name_of(checkpoint))}


def _add_rows(
    save: _Save, series: str, rows: Iterable[_File], n_values: Mapping[tuple[str, int], int]
) -> None:
    """Add the files near in the tier to a save.  rows: files with the number of the save, perhaps
    as the number of a rank.  n_values: of numbers of saves, by key and place in the path."""
    near, outside = [], []
    for file in rows:
        if not _is_near(file.key, series):
            continue
        margin_ns = (FROZEN_S + file.size_bytes / SLOW_BPS) * 1e9
        if not file.time_ns or file.time_ns >= save.begin_ns - margin_ns:
            near.append(file)
            if file.time_ns <= save.end_ns + margin_ns:
                outside.append(file)
    places = {key: _place_of_number(key, series, n_values) for key in {row.key for row in near}}
    save.near, save.outside = _counted(near, places), _counted(outside, places)


def _counted(files: Iterable[_File], places: Mapping[str, int]) -> Counter[str]:
    """Return the numbers of files by key.  places: of the save's number in the path; -1: not known,
    and the files count as one."""
    names = {(file.key, file.name) for file in files if file.place == places[file.key]}
    return Counter(key for key, _ in names) | Counter({file.key: 1 for file in files})


def _place_of_number(key: str, series: str, n_values: Mapping[tuple[str, int], int]) -> int:
    """Return the place of the save's number among the numbers of a path: where most numbers of
    saves stand; of several such places, the one in a folder of the checkpoint too; -1: none."""
    n_shared = sum(len(_NUMBERS_OF_KEY.findall(folder)) for folder in _shared(key, series))
    counts = [n_values.get((key, at), 0) for at in range(len(_NUMBERS_OF_KEY.findall(key)))]
    places = [at for at, n in enumerate(counts) if n == max(counts)]
    if len(places) > 1:
        places = [at for at in places if at < n_shared][-1:]
    return places[0] if places else -1


def _lost(
    own: Counter[str], older: Sequence[Counter[str]], newer: Sequence[Counter[str]]
) -> list[tuple[str, int, int]]:
    """Return the keys that the earlier saves have, but for one of four, and all later saves, with
    the numbers of files in this save and in the earlier; of descriptions two earlier saves."""
    n_least = min(len(older), OLDER - 1)
    lost = []
    for key in sorted({key for row in older for key in row}):
        n_files = Counter(row[key] for row in older if row[key])
        if n_files.total() < n_least or (len(older) == 1 and _TEXT.search(key)):
            continue
        n, n_times = n_files.most_common(1)[0]
        n = n if n_times >= n_least else 1  # else the saves differ in the number
        if own[key] < n and all(row[key] >= n for row in newer):
            lost.append((key, own[key], n))
    return lost


def _inside_of(checkpoint: Checkpoint) -> Counter[str]:
    """Return the files of a checkpoint, counted by key, without the chunks of arrays."""
    names = _names_in(checkpoint)
    if checkpoint.kind in _WITH_INDEX:
        names = tuple(name for name in names if "/" not in name)
    chunks = chunks_of_arrays(names)
    keys = [_key(name) for name in names if name not in chunks and _may_be_of_save(name)]
    return Counter(keys) if checkpoint.kind not in _WITH_INDEX else Counter(set(keys))


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
    return _NUMBER.search(folder) is not None and _RUN.search(folder.lower()) is not None


@lru_cache(1 << 16)  # a drain asks for each checkpoint that is due
def _numbers_in(name: str) -> frozenset[int]:
    return frozenset(int(text) for text in _NUMBER.findall(name) if len(text) <= 18)


def _places_in(name: str) -> Iterator[tuple[int, int]]:
    """Yield the numbers of a path with their places; 0.12 are two numbers at one place."""
    for place, text in enumerate(_NUMBERS.findall(name)):
        for number in {int(digits) for digits in text.split(".") if len(digits) <= 18}:
            yield number, place


@lru_cache(1 << 16)
def _key(name: str) -> str:
    """Return a name with * in the place of each number, but for the numbers of runs."""
    *folders, base = name.split("/")
    above = [folder if _is_run(folder) else _NUMBERS.sub("*", folder) for folder in folders]
    return "/".join([*above, _NUMBERS.sub("*", base)])


def _may_be_of_save(name: str) -> bool:
    """Return False for outputs (pictures, tables, logs, exports), copies of the best save and
    hidden files."""
    *folders, base = name.split("/")
    if base.startswith(".") or _OUTPUT.search(base) or parts_of(base).is_history:
        return False
    for part in (*folders[-2:], base):
        words = set(parts_of(part).words)
        if part is not base and _NUMBER.search(part):
            words -= {"sample", "samples"}  # `consumed_samples_300/`
        if not _OUTPUT_WORDS.isdisjoint(words) or not SELECTORS.isdisjoint(parts_of(part).key):
            return False
    return True


def _is_near(key: str, series: str) -> bool:
    """Return True if no folder between two files is of a run, and not many are between."""
    n_common = len(_shared(key, series))
    left, right = key.split("/")[n_common:-1], series.split("/")[n_common:-1]
    return max(len(left), len(right)) <= DEEPEST and not any(map(_is_run, left + right))


def _shared(key: str, series: str) -> list[str]:
    """Return the folders that two files share."""
    folders = []
    for left, right in zip(key.split("/")[:-1], series.split("/")[:-1], strict=False):
        if left != right:
            break
        folders.append(left)
    return folders


def _is_at_once(begin_ns: int, end_ns: int, size_bytes: int, first_ns: int, last_ns: int) -> bool:
    """Return True if a file was written with a save, in the time of a slow write."""
    margin_ns = (FROZEN_S + size_bytes / SLOW_BPS) * 1e9
    return first_ns - margin_ns <= end_ns and begin_ns <= last_ns + margin_ns
