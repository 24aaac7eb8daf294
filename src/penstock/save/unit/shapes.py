"""Compare the composition of a checkpoint with the checkpoints before and after it.

The module knows names and times.  A part counts as missing where the earlier checkpoints of the
training have it.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from penstock.places.stores import StoredFile
from penstock.save.unit.companions import is_enumerated
from penstock.save.unit.divided import without_resharded
from penstock.save.unit.names import MOST_DIGITS, Parts, are_parts, is_state, may_be_state, parts_of
from penstock.save.unit.progress import FROZEN_S

__all__ = [
    "LACKS",
    "OLDER",
    "Shape",
    "lacking",
    "role_at",
    "shape_of",
    "without_others",
]
MOST_LIKE_RANKS = 9
LACKS = ", which "
OLDER, NEWER = 4, 2  # number of checkpoints compared


@dataclass(frozen=True, slots=True)
class Shape:
    """Composition of a checkpoint, for comparison with other checkpoints of the training.

    roles: the roles of all files; components: roles whose words are parts of a training's state.
    begin_ns, end_ns: when the first and the last file were written.  place: place in the order of
    saving, if a training went back or the steps of each epoch begin anew; else 0, and the steps
    give the order.
    """

    step: int
    roles: frozenset[str]
    components: frozenset[str]
    begin_ns: int = 0
    end_ns: int = 0
    place: int = 0
    sizes: tuple[tuple[str, int], ...] = ()  # in bytes, by role

    @property
    def order(self) -> tuple[int, int]:
        return self.place, self.step


def shape_of(step: int, files: Sequence[StoredFile], start: str = "") -> Shape:
    """Return the shape of a checkpoint.  step: the checkpoint's step; start: prefix of the folder,
    if any."""
    parts = are_parts([file.name for file in files])
    # Files outside a folder were grouped by name: each file is a part, as `rng-4.dat`.
    state = [file for file in files if not start or file.name in parts]
    if start:
        inner = [state_file.name[len(start) :] for state_file in state]
        is_row = is_enumerated(inner)
        by_file = [_role_inside(name, step, is_row(name)) for name in inner]
        components = frozenset(filter(None, by_file))
    else:
        names = [parts_of(state_file.name.rpartition("/")[2]) for state_file in state]
        by_file = [role_at(name, step) for name in names]
        components = frozenset(role_at(name, step) for name in names if name.is_component)
    sizes = tuple(
        (role, file.size_bytes) for role, file in zip(by_file, state, strict=True) if role
    )  # fmt: skip
    times = [file.mtime_ns for file in files if file.mtime_ns]
    begin_ns, end_ns = min(times, default=0), max(times, default=0)
    roles = frozenset(filter(None, by_file) if start else by_file)
    return Shape(step, roles, components, begin_ns, end_ns, sizes=sizes)


def _role_inside(name: str, step: int, is_row: bool) -> str:
    """Return the role of a file in a folder; empty: the name shows no role."""
    last = _last_of(name, step, is_row)
    folders = [_without_step(part, step) for part in name.split("/")[:-1]]
    return "/".join([*folders, last]) if last else ""


def role_at(parts: Parts, step: int | None) -> str:
    """Return the role of a file, with the numbers of the name other than the step, such as the rank
    in `state_00000300_00001.bin`."""
    more = parts.bare if parts.step is None and len(parts.bare) > 1 else ()
    return " ".join((parts.role, *(number for number in more if int(number[:MOST_DIGITS]) != step)))


def _last_of(name: str, step: int, is_row: bool) -> str:
    last = name.rpartition("/")[2]
    is_kept = is_row and not parts_of(last).is_told
    return last if is_kept else _without_step(last, step)


def _without_step(name: str, step: int) -> str:
    """Return the name of a part with the step removed, equal in the folder of each step.  A small
    number is kept: the number may be a rank."""
    parts = parts_of(name)
    if parts.step == step and (parts.is_told or step > MOST_LIKE_RANKS):
        return " ".join((parts.role, *parts.key))
    return name


def lacking(shape: Shape, others: Iterable[Shape]) -> str:
    """Name the parts that a checkpoint lacks and earlier checkpoints have.  Returns an empty string
    if no part is missing.

    One of the four earlier checkpoints may lack the part too, as after a killed save.  A part in
    only every second checkpoint, or absent from a later checkpoint too, is not required.

    A part without words of a training's state counts only where each checkpoint was written before
    the next: two trainings in a shared folder have separate steps.
    """
    ordered = sorted(others, key=lambda other: other.order)
    older = [other for other in ordered if other.order < shape.order][-OLDER:]
    newer = [other for other in ordered if other.order > shape.order][:NEWER]
    if not any(shape.roles & other.roles for other in older):
        return ""  # no part in common
    lost = _lost_roles(shape, older, newer)
    if not lost:
        return ""
    more = f" and {len(lost) - 1} more" if len(lost) > 1 else ""
    name = lost[0].replace("#", str(shape.step)) or "file with the step alone"
    return f"no {name}{more}{LACKS}step {older[-1].step} has"


def _lost_roles(shape: Shape, older: Sequence[Shape], newer: Sequence[Shape]) -> list[str]:
    is_one_training = all(
        left.end_ns <= right.begin_ns or not right.begin_ns
        for left, right in itertools.pairwise([*older, shape])
    )
    counts = Counter(
        role for other in older for role in (other.roles if is_one_training else other.components)
    )
    lost = [
        role for role, n in sorted(counts.items())
        if role not in shape.roles and n >= min(len(older), OLDER - 1)
        and all(role in other.roles for other in newer)
    ]  # fmt: skip
    before = {role: size for other in older for role, size in other.sizes} if lost else {}
    return without_resharded(lost, before, dict(shape.sizes))


def without_others(files: Sequence[StoredFile]) -> list[StoredFile]:
    """Return the files without data from outside the save.  A file that may hold a state, but has
    no word of a state in the name, is excluded if written more than FROZEN_S seconds before or
    after the state: the number in the name equals the step by chance."""
    state = [file for file in files if is_state(file.name.rpartition("/")[2])]
    begin, end = (
        some((state_file.mtime_ns or 0 for state_file in state), default=0) for some in (min, max)
    )
    margin_ns = FROZEN_S * 1e9
    of_state = {state_file.name for state_file in state}
    return [
        file for file in files
        if file.name in of_state
        or not file.mtime_ns
        or not may_be_state(file.name)
        or begin - margin_ns <= file.mtime_ns <= end + margin_ns
    ]  # fmt: skip
