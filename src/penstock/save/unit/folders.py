"""Compare the saves of a training whose parts are in several folders.

`weights/step_500.pt` and `states/step_500.pt` are two checkpoints for the copy, and a single save
for a restart.  The module knows names, steps and times.  Two folders belong to one training if the
names differ only by parts of a training's state, or by ranks: `run1/step_100.pt` and
`run2/step_100.pt`, `best/step_100.pt` and `step_100.pt` are not compared.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

from penstock.save.unit.names import is_part_of_a_training, parts_of
from penstock.save.unit.progress import IDLE_S
from penstock.save.unit.shapes import LACKS, Shape, lacking
from penstock.save.unit.units import BY_RULE

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["PAUSE", "FolderSave", "in_order", "of_two_saves", "place_of", "with_other_folders"]

LEAST_OLDER = 2  # earlier saves with both parts: a single save may be a coincidence
NEAR = 8  # number of compared saves before and after a save
PAUSE = 10  # times the longest pause within an earlier save: a pause between two saves
_STEP = "\x1f"  # in the place of a step

_Family = tuple[object, ...]
_Part = tuple[tuple[str, ...], tuple[str, ...]]


@dataclass(slots=True)
class FolderSave:
    """The checkpoints of a step, by part."""

    step: int
    parts: dict[_Part, list[Checkpoint]]
    shape: Shape

    @classmethod
    def of(cls, step: int, parts: dict[_Part, list[Checkpoint]]) -> FolderSave:
        return cls(step, parts, _shape(step, parts))


def with_other_folders(
    checkpoints: Sequence[Checkpoint], others: Sequence[Checkpoint] = ()
) -> list[Checkpoint]:
    """Return the checkpoints, with a problem where a part in another folder is missing, or is of
    another save.  A copy with a manifest is whole without the other parts, and has the text in
    `torn`.  others: checkpoints of another tier."""
    said = dict[int, str]()
    for saves in _families((*checkpoints, *others)):
        for place, save in enumerate(saves):
            older = saves[max(0, place - NEAR) : place]
            newer = saves[place + 1 : place + 1 + NEAR]
            if why := _lost(save, older, newer) or of_two_saves(save, older):
                said |= {id(checkpoint): why for row in save.parts.values() for checkpoint in row}
    if not said and not any(checkpoint.torn for checkpoint in checkpoints):
        return list(checkpoints)
    return [
        _told(checkpoint, said.get(id(checkpoint), ""))
        if checkpoint.step is not None and BY_RULE not in checkpoint.why
        else checkpoint
        for checkpoint in checkpoints
    ]


def _told(checkpoint: Checkpoint, why: str) -> Checkpoint:
    if checkpoint.manifest is not None:
        return checkpoint if checkpoint.torn == why else replace(checkpoint, torn=why)
    return replace(checkpoint, problem=why) if why and not checkpoint.problem else checkpoint


def _families(checkpoints: Iterable[Checkpoint]) -> Iterator[list[FolderSave]]:
    """Yield the saves of each training with parts in several folders, from old to new."""
    families: defaultdict[_Family, dict[_Part, list[Checkpoint]]] = defaultdict(dict)
    for checkpoint in checkpoints:
        if checkpoint.step is not None and BY_RULE not in checkpoint.why:
            family, part = place_of(checkpoint.called or checkpoint.name, checkpoint.is_folder)
            families[family].setdefault(part, []).append(checkpoint)
    for parts in families.values():
        if len(parts) > 1:
            yield _saves(parts)


def _saves(parts: dict[_Part, list[Checkpoint]]) -> list[FolderSave]:
    by_step: defaultdict[int, dict[_Part, list[Checkpoint]]] = defaultdict(dict)
    for part, row in parts.items():
        for checkpoint in row:
            by_step[checkpoint.step or 0].setdefault(part, []).append(checkpoint)
    return in_order([FolderSave.of(step, by_step[step]) for step in by_step])


def in_order(unordered: Iterable[FolderSave]) -> list[FolderSave]:
    """Return the saves from old to new."""
    saves = sorted(unordered, key=lambda save: save.step)
    if all(save.shape.begin_ns for save in saves):  # a training may go back to a lower step
        saves.sort(key=lambda save: save.shape.begin_ns)
    return saves


def _shape(step: int, parts: dict[_Part, list[Checkpoint]]) -> Shape:
    whole = {
        part for part, row in parts.items() if any(not checkpoint.problem for checkpoint in row)
    }
    times = [_newest(row).mtime_ns for part, row in parts.items() if part in whole]
    times = [time_ns for time_ns in times if time_ns]
    roles = frozenset("/".join((*folders, *words)) for folders, words in whole)
    return Shape(step, roles, frozenset(), min(times, default=0), max(times, default=0))


def _newest(row: Sequence[Checkpoint]) -> Checkpoint:
    return max(row, key=lambda checkpoint: checkpoint.mtime_ns)


def _lost(save: FolderSave, older: Sequence[FolderSave], newer: Sequence[FolderSave]) -> str:
    """Name a part that a save lacks and earlier saves have in another folder.  Returns an empty
    string if no part is missing."""
    own = save.shape.roles
    if (
        len(older) < LEAST_OLDER
        or not own
        or all(save_before.shape.roles <= own for save_before in older)
    ):
        return ""
    row = [replace(member.shape, step=turn) for turn, member in enumerate((*older, save, *newer))]
    if not lacking(row[len(older)], [*row[: len(older)], *row[len(older) + 1 :]]):
        return ""
    for other in reversed(older):
        for part, ones in other.parts.items():
            if "/".join((*part[0], *part[1])) not in own:
                if part in save.parts:
                    broken = save.parts[part][0]
                    return f"{broken.called or broken.name}, of the same save: {broken.problem}"
                return f"no {_called_at(ones[0], save.step)}{LACKS}step {other.step} has"
    return ""


def _called_at(checkpoint: Checkpoint, step: int) -> str:
    """Return the name that a checkpoint would have at another step."""
    folder, slash, last = (checkpoint.called or checkpoint.name).rpartition("/")

    def digits(match: re.Match[str]) -> str:
        text = match[0]
        if int(text) != checkpoint.step:
            return text
        return f"{step:0{len(text)}d}" if text[0] == "0" else str(step)

    made = re.sub(r"\d{1,18}", digits, last)
    return f"{folder}{slash}{made}"


def of_two_saves(save: FolderSave, earlier: Sequence[FolderSave]) -> str:
    """Report parts of two saves: a training that reached a step for the second time was killed
    between the parts.  Returns an empty string if there is no evidence.

    Evidence is a pause between the parts of more than PAUSE times the longest pause within the
    earlier saves, and of more than half the shortest time between two saves.
    """
    pause = save.shape.end_ns - save.shape.begin_ns
    if pause <= IDLE_S * 1e9:
        return ""
    older = [other for other in earlier if len(other.parts) > 1]
    if len(older) < LEAST_OLDER or len(save.shape.roles) < 2:
        return ""
    shapes = [other.shape for other in older]
    if not all(shape.begin_ns for shape in (save.shape, *shapes)):
        return ""
    pauses = [shape.end_ns - shape.begin_ns for shape in shapes]
    between = [right.begin_ns - left.end_ns for left, right in pairwise(shapes)]
    if min(between) < 0 or pause <= max(PAUSE * max(pauses), min(between) / 2):
        return ""
    rows = sorted(
        (_newest(row) for row in save.parts.values()), key=lambda checkpoint: checkpoint.mtime_ns
    )
    old, new = (checkpoint.called or checkpoint.name for checkpoint in (rows[0], rows[-1]))
    return f"of two saves: {new} was written {pause / 1e9:,.0f} s after {old}"


@lru_cache(1 << 17)
def place_of(name: str, is_folder: bool) -> tuple[_Family, _Part]:
    """Return the training, and the part of the training's state."""
    folder, _, last = name.rpartition("/")
    rest, parts = _split(folder)
    name_parts = parts_of(last)
    words = (
        [word for word in name_parts.words if word not in name_parts.strange] if is_folder else []
    )
    return (rest, name_parts.strange, name_parts.key), (
        parts,
        (*words, name_parts.rank) if name_parts.rank else (*words,),
    )


@lru_cache(1 << 16)
def _split(folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders of a path in two groups: folders without the name of a part of a state,
    and folders with the name of a part."""
    rest, parts = list[str](), list[str]()
    for name in folder.split("/") if folder else ():
        (parts if is_part_of_a_training(name) else rest).append(name)
    return tuple(rest), tuple(parts)
