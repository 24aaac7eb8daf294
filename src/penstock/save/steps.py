"""Find the steps of checkpoints with a number without a word in the name: `snap-300.pt`.

A name alone does not show whether the number is a step or the size of a model.  The number is a
step if the number differs between checkpoints of a folder that are otherwise named alike, and grows
with the time of writing.  A single checkpoint has no step.  The module knows names and times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.save.units import BY_RULE, LACKS, MOST_DIGITS, OLDER, Parts, is_part, parts_of

if TYPE_CHECKING:
    from penstock.save.formats import Checkpoint

__all__ = ["unlike_earlier", "with_steps"]

FEWEST_EARLIER = 2  # saves needed to know the parts of a save without a step


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
    """Return the place of the step in the names: the only number that differs, and grows with time.
    A number filled with zeros needs no comparison of times."""
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


def unlike_earlier(
    found: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()
) -> dict[int, str]:
    """Return problems by id of checkpoint, for saves that differ in dates or hashes and not in
    steps: a checkpoint lacks a part that the four checkpoints before and all later ones have.

    The order is the order of writing.  others: checkpoints of another tier."""
    series: defaultdict[object, list[Checkpoint]] = defaultdict(list)
    for one in (*found, *others):
        if one.step is None and not one.is_folder and _parts_of(one).stamps:
            series[_stamped_series_of(one)].append(one)
    said = dict[int, str]()
    for rows in series.values():
        rows.sort(key=lambda one: one.mtime_ns)
        for place, one in enumerate(rows):
            if one.manifest is not None or one.problem or one.why.startswith(BY_RULE):
                continue
            stamps = _parts_of(one).stamps
            near = rows[max(0, place - 2 * OLDER) : place + 1 + 2 * OLDER]  # of two tiers
            apart = [other for other in near if _parts_of(other).stamps != stamps]
            before = [other for other in apart if other.mtime_ns < one.mtime_ns][-OLDER:]
            after = [other for other in apart if other.mtime_ns >= one.mtime_ns]
            if len({_parts_of(other).stamps for other in before}) < FEWEST_EARLIER:
                continue
            own = _components_of(one)
            common = frozenset.intersection(*map(_components_of, (*before, *after)))
            lost = sorted(common - own)
            if lost and own & common:
                said[id(one)] = f"no {lost[0]}{LACKS}{before[-1].name.rpartition('/')[2]} has"
    return said


def _stamped_series_of(one: Checkpoint) -> tuple[object, ...]:
    parts = _parts_of(one)
    rest = tuple(text for text in parts.key if text not in parts.stamps)
    folder = (one.called or one.name).rpartition("/")[0]
    return folder, rest, parts.bare, len(parts.stamps)


def _components_of(one: Checkpoint) -> frozenset[str]:
    names = (file.name.rpartition("/")[2] for file in one.files)
    return frozenset(
        parts.role for parts in map(parts_of, filter(is_part, names)) if parts.is_component
    )
