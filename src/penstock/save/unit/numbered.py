"""Find the numbers of parts in the names of a folder: `last_optim1.pt` and `last_optim2.pt` beside
`last.pt`, `optimizer_0.pt` and `scheduler_0.pt` beside `model.pt`.

The number of a part follows the word for a part of a training's state that a model may have several
times.  The numbers have no gap, and the model's own file has no number.  Numbers of steps look
alike, but there is a long pause between the files of two steps.  The module knows names and times.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.save.unit.names import Parts

__all__ = ["has_numbered_parts", "join_numbered_parts"]

# A pause between two small files of a save is shorter; a pause between two saves may be longer.
PAUSE_NS = 60 * 10**9
LEAST_STEPS = 3  # the older of two files may be of a save in the middle of replacement
_Kin = tuple[int | None, tuple[str, ...]]


def has_numbered_parts(members: Sequence[Parts]) -> bool:
    """Return whether numbered parts are among the files of one save."""
    return any(member.kin[0] is not None for member in members)


def join_numbered_parts(by_kin: dict[_Kin, list[Parts]], times: Mapping[str, int]) -> None:
    """Move numbered parts to the files without a number.  by_kin: the files that may form
    checkpoints, by Parts.kin; times: when each file was written, in ns."""
    numbers = defaultdict[tuple[str, ...], list[int]](list)
    for number, key in by_kin:
        if number is not None and (None, key) in by_kin:
            numbers[key].append(number)
    for key, of_key in numbers.items():
        members = [member for number in of_key for member in by_kin[number, key]]
        if _are_parts(members, by_kin[None, key], times):
            by_kin[None, key] += members
            for number in of_key:
                del by_kin[number, key]


def _are_parts(members: Sequence[Parts], plain: Sequence[Parts], times: Mapping[str, int]) -> bool:
    if not all(member.numbered for member in members):
        return False
    series = defaultdict[tuple[object, ...], dict[int, str]](dict)
    for member in members:
        series[member.series][member.kin[0] or 0] = member.name
    has_first = {member.series for member in plain}
    return max(map(len, series.values())) > 1 and all(
        _has_no_gap(sorted(row), 2 if of in has_first else 1) and not _are_steps(row, times)
        for of, row in series.items()
    )


def _has_no_gap(numbers: Sequence[int], most_first: int) -> bool:
    return numbers[0] <= most_first and numbers[-1] - numbers[0] == len(numbers) - 1


def _are_steps(row: Mapping[int, str], times: Mapping[str, int]) -> bool:
    """Return whether each file was written long after the file of the number before."""
    written = [times.get(row[number], 0) for number in sorted(row)]
    pauses = [later - earlier for earlier, later in itertools.pairwise(written)]
    return len(written) >= LEAST_STEPS and min(pauses) > PAUSE_NS
