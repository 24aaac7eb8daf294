"""Recognise the files of a save by neighbouring files, if no word names a training's state.

`learner_300.npz` beside `actor_300.npz`, `state_00000300_00001.bin` beside `model_00000300.bin`,
the marker `DONE_00000300`, and files with only a number.  The module knows names;
penstock.save.unit.units parses the names.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.save.unit.names import Parts

__all__ = ["add_companions", "chunks_of_arrays", "gap_in", "is_enumerated", "is_marker", "rows_in"]

# Outputs of a training: a program may write outputs at any time after a save.
_OUTPUTS = {
    *("pred", "preds", "prediction", "predictions", "sample", "samples", "output", "outputs"),
    *("result", "results", "eval", "evaluation", "test", "metric", "metrics", "log", "logs"),
    *("history", "figure", "fig", "plot", "plots", "image", "images", "fake", "fakes", "real"),
    *("feature", "features", "data", "dataset", "label", "labels", "batch", "confusion", "roc"),
    *("hist", "curve", "attention", "generated", "recon", "reconstruction", "grid", "vis"),
    *("debug", "trace", "profile", "score", "scores", "loss", "losses", "acc", "accuracy", "fid"),
    *("psnr", "ssim", "bleu", "wer", "map", "val", "valid", "error", "auc", "video", "audio"),
    *("export", "exported"),
}
# A file written at the end of a save.
_MARKER = re.compile(
    r"[._-]*(?:done|completed?|success|finished|commit_success)(?:[._-]*(\d+))?(?:\.txt)?", re.I
)
# A shorter number may be anything; a counter filled with zeros, or of three digits, is the step.
LEAST_DIGITS = 3
# Files numbered without a gap.  Files of layers have gaps: layers without parameters have no file.
_COUNTED = re.compile(
    r"(?P<start>(?:.*[-_.])?(?:rank|shard|part|chunk|piece|proc|process|worker)[-_]?|)"
    r"(?P<number>\d{1,9})(?P<end>(?:[-_.][A-Za-z][^/]*)?)",
    re.I,
)
_WORLD = re.compile(r"world_size_(\d{1,6})_rank_$")
LEAST_NUMBERED = 3  # files: two numbers show no row

_Groups = Mapping[tuple[int | None, tuple[str, ...]], "list[Parts]"]


def is_marker(name: str) -> bool:
    """Return True if a file's own name marks the end of a save: `DONE_00000300`, `_SUCCESS`."""
    return _MARKER.fullmatch(name) is not None


def add_companions(
    candidates: Iterable[Parts],
    by_key: _Groups,
    is_state: Callable[[str], bool],
    is_of_save: bool = False,
) -> None:
    """Add files to the groups of states with an equal step, date or version.  candidates: markers,
    and files that may be a state by the ending; by_key: the groups, by Parts.kin.

    A file with two numbers belongs to the group of a state with a single number, if exactly one of
    the two numbers is equal, digit by digit.  is_of_save: the name of the folder has a date or a
    hash: the folder is of a single save.
    """
    texts: dict[str, list[Parts]] = {}
    taken = set[str]()
    for group in by_key.values():
        for member in group:
            taken.add(member.name)
            if is_state(member.name) and len(digits := _digits_of(member.name)) == 1:
                texts[digits[0]] = group
    wanted: list[tuple[Parts, list[Parts]]] = []
    n_alone = defaultdict[object, int](int)  # by series: numbers that no state has
    for candidate in candidates:
        is_taken = candidate.name in taken and len(candidate.bare) != 2
        if is_taken or not _OUTPUTS.isdisjoint(candidate.words):
            continue
        members = _group_of(candidate, texts, by_key, is_of_save)
        if members is not None and any(is_state(member.name) for member in members):
            wanted.append((candidate, members))
        else:
            n_alone[_series_of(candidate)] += 1
    n_joined = Counter(_series_of(candidate) for candidate, _ in wanted)
    for candidate, joined in wanted:
        series = _series_of(candidate)
        # Files with other numbers than the states, as `episode_101.npz`, are data.  A killed save
        # leaves at most a single file without a state.
        if n_alone[series] <= max(1, n_joined[series] // 2):
            if candidate.name in taken:
                by_key[candidate.kin].remove(candidate)
            joined.append(candidate)


def _group_of(
    parts: Parts, texts: Mapping[str, list[Parts]], by_key: _Groups, is_of_save: bool
) -> list[Parts] | None:
    """Return the files to which a companion may belong, by its numbers; None: no group."""
    if is_marker(parts.name):
        digits = _digits_of(parts.name)
        if is_of_save and not digits:
            return by_key.get((None, ()))
        return texts.get(digits[0]) if len(digits) == 1 else None
    if len(parts.bare) == 2:
        return _of_one_number(parts, texts)
    has_sign = parts.kin[0] is not None or parts.marks or is_of_save
    return by_key.get(parts.kin) if has_sign else None


def _series_of(parts: Parts) -> object:
    return parts.words, parts.ending, len(parts.bare)


def _of_one_number(parts: Parts, texts: Mapping[str, list[Parts]]) -> list[Parts] | None:
    fits = [number for number in parts.bare if len(number) >= LEAST_DIGITS and number in texts]
    return texts[fits[0]] if len(fits) == 1 else None


def _digits_of(name: str) -> list[str]:
    return re.findall(r"\d+", name.partition(".")[0])


# --- files with only a number ---------------------------------------------------------------------


def is_enumerated(names: Iterable[str]) -> Callable[[str], bool]:
    """Return a function that returns True for a name that differs from another name only in the
    single number: `p-00012.npy`, `7.bin`.  The number is no step."""
    n_alike = defaultdict[str, int](int)
    for name in names:
        n_alike[_with_sign(name)] += 1
    return lambda name: n_alike[_with_sign(name)] > 1 and len(_digits_of(_base(name))) == 1


def _base(name: str) -> str:
    return name.rpartition("/")[2]


def _with_sign(name: str) -> str:
    folder, _, base = name.rpartition("/")
    return f"{folder}/{re.sub(r'[0-9]+', '#', base)}"


_ARRAYS = (".zarray", "zarr.json")
_CHUNK = re.compile(r"(?:c\.)?\d+(?:\.\d+)*|c")
_OF_CHUNKS = re.compile(r"(?:/c)?(?:/\d+)*$")


def chunks_of_arrays(names: Iterable[str]) -> frozenset[str]:
    """Return the names of chunks of Zarr arrays, by the folders of the arrays' metadata."""
    names = list(names)
    if not any(name.endswith(_ARRAYS) for name in names):
        return frozenset()
    rows = [(name, *name.rpartition("/")[::2]) for name in names]
    arrays = {f"/{folder}" for _, folder, base in rows if base in _ARRAYS}
    if not arrays:
        return frozenset()
    return frozenset(
        name for name, folder, base in rows
        if _CHUNK.fullmatch(base)
        and (f"/{folder}" in arrays or _OF_CHUNKS.sub("", f"/{folder}") in arrays)
    )  # fmt: skip


def gap_in(names: Iterable[str], elsewhere: Collection[Collection[str]] = ()) -> str:
    """Return the name missing from a row of numbers from 0 or 1; an empty string: no gap is known.
    elsewhere: the names in the other saves; only a name present in all other saves counts as
    missing."""
    rows = _numbers_in(frozenset(names))
    there = defaultdict[str, set[int]](set)  # by word: also in other folders, with other endings
    for (start, _), row in rows.items():
        there[start.rpartition("/")[2]].update(row)
    for (start, end), row in sorted(rows.items()):
        numbers = there[start.rpartition("/")[2]]
        first, last, n_least = min(numbers), max(numbers), LEAST_NUMBERED
        if match := _WORLD.search(start):
            numbers, first, last, n_least = set(row), 0, int(match[1]) - 1, 1
        n_lost = last + 1 - first - len(numbers)
        if first > 1 or len(row) < n_least or (n_least > 1 and n_lost >= len(row)):
            continue
        lost = [number for number in range(first, last + 1) if number not in numbers]
        is_filled = any(text[0] == "0" and len(text) > 1 for text in row.values())
        width = max(map(len, row.values())) if is_filled else 1
        for number in lost:
            name = f"{start}{number:0{width}d}{end}"
            if all(name in other for other in elsewhere):
                return name
    return ""


def rows_in(names: Iterable[str]) -> dict[tuple[str, str], int]:
    """Return the number of files of each row of numbers from 0 or 1, by the text before and after
    the number.  Rows with the count in the names are left out.  Chunks of Zarr arrays are no
    rows."""
    return {
        (start, end): len(row) for (start, end), row in _numbers_in(frozenset(names)).items()
        if len(row) >= LEAST_NUMBERED and min(row) <= 1 and not _WORLD.search(start)
    }  # fmt: skip


@lru_cache(8)  # the same names at each look, on both tiers
def _numbers_in(names: frozenset[str]) -> dict[tuple[str, str], dict[int, str]]:
    """Return the digits of each number of a row, by the text before and after the number.  Chunks
    of Zarr arrays, which may be absent, are no rows."""
    rows = defaultdict[tuple[str, str], dict[int, str]](dict)
    for name in names - chunks_of_arrays(names):
        folder, slash, base = name.rpartition("/")
        if match := _COUNTED.fullmatch(base):
            start, digits, end = match.groups()
            rows[f"{folder}{slash}{start}", end][int(digits)] = digits
    return dict(rows)
