"""Divide the files of several saves in a folder, if the files have no step: by a metric in the name
(`model_0.52.pt`), and by the number of shards (`-of-00004`, later `-of-00002`).

Files without a metric, as `optim.pt` and the index of the shards, belong to the save nearest in
time.  The module knows names, sizes and times.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.save.unit.names import Parts

__all__ = ["divided", "without_resharded"]

# A file that takes over the content of other files grows by the ratio of the numbers of files.  A
# fraction LEAST_GROWTH of the expected growth is enough evidence.  A ratio below LEAST_RATIO is no
# evidence: a state may grow by a sixth.
LEAST_GROWTH, LEAST_RATIO = 0.8, 1.2
_SHARD = re.compile(r"(.*?)[-_.](\d+)[-_]of[-_](\d+)(.*)")


def divided(
    members: list[Parts], times: Mapping[str, int]
) -> list[tuple[list[Parts], tuple[str, ...]]]:
    """Return the files of each save, with the names of the files that the save lacks because the
    files are of an older save.  times: time of writing of each file, in ns."""
    return [
        (some, lost + lost_of_metric)
        for part, lost_of_metric in _by(members, times, lambda member: member.metric)
        for some, lost in _by(part, times, _count_of)
    ]


def _count_of(parts: Parts) -> str:
    return f"{parts.shard[2]}" if parts.shard is not None else ""


def _by(
    members: list[Parts], times: Mapping[str, int], sign_of: Callable[[Parts], str]
) -> list[tuple[list[Parts], tuple[str, ...]]]:
    """Divide by a sign if two files of equal role have different signs."""
    by_sign = defaultdict[str, "list[Parts]"](list)
    for member in members:
        by_sign[sign_of(member)].append(member)
    plain = by_sign.pop("", [])
    roles = [{member.role for member in some} for some in by_sign.values()]
    if len(roles) < 2 or len(set().union(*roles)) == sum(map(len, roles)):
        return [(members, ())]
    saves = sorted(by_sign.values(), key=lambda save: _end_of(save, times))
    owners = {member.name: _nearest(saves, times, member) for member in plain}
    made = []
    for place, save in enumerate(saves):
        own = [member for member in plain if owners[member.name] == place]
        lost = [member.name for member in plain if owners[member.name] < place]
        made.append(([*save, *own], tuple(f"{name} of this save" for name in lost)))
    return made


def _end_of(save: Iterable[Parts], times: Mapping[str, int]) -> int:
    return max(times.get(member.name, 0) for member in save)


def _nearest(saves: list[list[Parts]], times: Mapping[str, int], parts: Parts) -> int:
    """Return the index of the save nearest in time; of equally near saves the last."""
    at_ns = times.get(parts.name, 0)
    away_ns = [min(abs(times.get(it.name, 0) - at_ns) for it in save) for save in saves]
    return max(place for place, away in enumerate(away_ns) if away == min(away_ns))


def without_resharded(
    lost: Iterable[str], before: Mapping[str, int], now: Mapping[str, int]
) -> list[str]:
    """Return the names of lost files, without the files with content moved to fewer or more files.

    before, now: the sizes in bytes of an earlier save and of the present save, by name.  Evidence
    for shards with a count in the name: the shards are complete under another count.  Evidence for
    numbered files without a count: the remaining files are larger by the ratio of the numbers of
    files.
    """
    return [name for name in lost if not _is_resharded(name, before, now)]


def _is_resharded(name: str, before: Mapping[str, int], now: Mapping[str, int]) -> bool:
    if match := _SHARD.fullmatch(name):
        return any(
            set(range(first, count + first)) <= numbers
            for count, numbers in _sets_like(match, now).items()
            for first in (0, 1)
        )
    series, number = _numbered(name)
    if number is None:
        return False
    row = {at: member for member in now if (at := _number_in(member, series)) is not None}
    n_before = sum(_number_in(member, series) is not None for member in before)
    if not row or max(row) >= number or max(row) >= len(row) + min(row) or min(row) > 1:
        return False
    ratio = n_before / len(row)
    least = 1 + LEAST_GROWTH * (ratio - 1)
    return ratio >= LEAST_RATIO and all(
        member in before and now[member] >= least * before[member] for member in row.values()
    )


def _sets_like(match: re.Match[str], names: Iterable[str]) -> dict[int, set[int]]:
    """Return the numbers of the shards of equal name and another count, by count."""
    sets = defaultdict[int, set[int]](set)
    for name in names:
        other = _SHARD.fullmatch(name)
        is_alike = other is not None and (other[1], other[4]) == (match[1], match[4])
        if other is not None and is_alike and other[3] != match[3]:
            sets[int(other[3][:9])].add(int(other[2][:9]))
    return sets


def _numbered(name: str) -> tuple[str, int | None]:
    """Return the name with # for its only number, and the number; None: no number, or several."""
    numbers = re.findall(r"\d+", name)
    if len(numbers) != 1:
        return name, None
    return re.sub(r"\d+", "#", name), int(numbers[0][:9])


def _number_in(name: str, series: str) -> int | None:
    text, number = _numbered(name)
    return number if text == series else None
