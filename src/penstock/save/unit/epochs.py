"""Join the files of an epoch with the files of a step of the epoch: `optim-epoch=4.pt` and
`ema-4.pt` belong to `epoch=4-step=400.ckpt`.

A series joins only if the numbers of the series are the epochs of the folder, and each epoch has a
single step.  The module knows names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.save.unit.names import Parts

__all__ = ["join_epochs"]

_Kin = tuple[int | None, tuple[str, ...]]
_EPOCH = re.compile(r"ep(?:och)?s?(\d{1,18})")


def join_epochs(by_kin: dict[_Kin, list[Parts]]) -> None:
    """Move the files of an epoch to the files of the only step of the epoch.  by_kin: the files
    that may form checkpoints, by Parts.kin."""
    steps = defaultdict[_Kin, list[_Kin]](list)  # by epoch
    for kin, members in by_kin.items():
        for epoch in {_epoch_of(member) for member in members} - {None}:
            steps[epoch, kin[1]].append(kin)
    of_steps = {kin for kins in steps.values() for kin in kins}
    if not of_steps:
        return
    series = defaultdict[object, list[_Kin]](list)
    for kin, members in by_kin.items():
        if kin[0] is not None and kin not in of_steps:
            series[kin[1], frozenset(member.role for member in members)].append(kin)
    for kins in series.values():
        joined = [kin for kin in kins if len(steps.get(kin, ())) == 1]
        # The newest save may lack the file of the step.
        if joined and len(kins) - len(joined) <= (len(joined) > 1):
            for kin in joined:
                _join(by_kin, kin, steps[kin][0])


def _join(by_kin: dict[_Kin, list[Parts]], kin: _Kin, of_step: _Kin) -> None:
    roles = {member.role for member in by_kin[of_step]}
    if roles.isdisjoint(member.role for member in by_kin[kin]):
        by_kin[of_step] += by_kin.pop(kin)


def _epoch_of(parts: Parts) -> int | None:
    """Return the epoch in a name that has a step, too."""
    numbers = [int(match[1]) for text in parts.coarse if (match := _EPOCH.fullmatch(text))]
    return numbers[0] if len(numbers) == len(parts.coarse) == 1 else None
