"""Find the steps of checkpoints whose names contain a number without a word: `snap-300.pt`.

A name alone does not show whether such a number is a step or the size of a model.  The number is a
step where it differs between checkpoints of a folder that are otherwise named alike, and grows with
the time of writing.  A single checkpoint has no step then.  The module knows names and times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.save.units import MOST_DIGITS, Parts, parts_of

if TYPE_CHECKING:
    from penstock.save.formats import Checkpoint

__all__ = ["with_steps"]


def with_steps(found: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()) -> list[Checkpoint]:
    """Return the checkpoints, with the steps that only a comparison shows.  others: checkpoints of
    another tier."""
    lone = {id(one): key for one in found if one.step is None and (key := _series_of(one))}
    if not lone:
        return list(found)
    wanted = set(lone.values())
    series: defaultdict[object, list[Checkpoint]] = defaultdict(list)
    for one in (*found, *others):
        key = lone.get(id(one)) or _series_of(one)
        if key in wanted:
            series[key].append(one)
    steps = dict[int, int]()
    for rows in series.values():
        place = _place_of_step(rows)
        if place is not None:
            steps |= {id(one): int(_numbers_of(one)[place]) for one in rows}
    return [
        replace(one, step=steps[id(one)]) if id(one) in lone and id(one) in steps else one
        for one in found
    ]  # fmt: skip


def _parts_of(one: Checkpoint) -> Parts:
    return parts_of((one.called or one.name).rpartition("/")[2])


def _numbers_of(one: Checkpoint) -> tuple[str, ...]:
    parts = _parts_of(one)
    return parts.bare or (str(parts.step),)


def _series_of(one: Checkpoint) -> tuple[object, ...] | None:
    """Return a key that is equal for checkpoints with names that differ only in numbers; None: no
    number in the name can be a step, or a word shows the step."""
    parts = _parts_of(one)
    if parts.is_told or (parts.step is None and not parts.bare):
        return None
    folder = (one.called or one.name).rpartition("/")[0]
    return folder, one.is_folder, parts.series, len(parts.bare or "1")


def _place_of_step(rows: Iterable[Checkpoint]) -> int | None:
    """Return which number of these names is the step: the only number that differs, and grows with
    time.  A number filled with zeros needs no comparison of times."""
    times = dict[tuple[str, ...], int]()
    is_counter = False
    for one in rows:
        numbers = _numbers_of(one)
        times[numbers] = max(times.get(numbers, 0), one.mtime_ns)
        is_counter |= _parts_of(one).step is not None
    varying = [place for place, values in enumerate(zip(*times, strict=True)) if len({*values}) > 1]
    if len(varying) != 1:
        return None
    (place,) = varying
    if any(len(numbers[place]) > MOST_DIGITS for numbers in times):
        return None
    written = [times[numbers] for numbers in sorted(times, key=lambda row: int(row[place]))]
    is_growing = all(before <= after for before, after in pairwise(written))
    return place if is_counter or is_growing else None
