"""Judge states without a step that all steps of a training share: torchtune's `recipe_state/`.

A training overwrites such a state at each save, or writes the state once.  The times of writing
tell whether a state belongs to the save of a step.  `recover --fetch` and retention use the same
judgement.  The module knows names and times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.save.unit.names import SELECTORS, Parts, parts_of
from penstock.save.unit.progress import FROZEN_S

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["not_of_this_save", "of_earlier_save", "of_two_saves_by_state", "shared_states"]

# Parts of a training's state that change with each step.
CHANGING = {
    "optim", "optimizer", "optimizers", "opt", "adam", "scheduler", "sched", "ema", "rng", "random",
    "scaler", "sampler", "dataloader", "loader", "trainer", "state", "states", "replay", "buffer",
    "momentum", "averaged", "swa",
}  # fmt: skip


def shared_states(
    checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]
) -> Iterator[Checkpoint]:
    """Yield the checkpoints without a step, in the folder of a checkpoint with a step or one folder
    below, that a training overwrites at each save or writes once: `recipe_state/recipe_state.pt`.
    checkpoints: all of the tier.
    """
    above, _, _ = checkpoint.name.rpartition("/")
    stepless = [other for other in checkpoints if other.step is None and not other.problem]
    for other in stepless if checkpoint.step is not None else ():
        if any(_is_newer(late, other, checkpoint) for late in stepless):
            continue
        folder, _, _ = other.name.rpartition("/")
        parent, _, last = folder.rpartition("/")
        if folder == above or (parent == above and not any(map(str.isdigit, last))):
            yield other  # not `run2/net.pt`


def _is_newer(late: Checkpoint, other: Checkpoint, checkpoint: Checkpoint) -> bool:
    """Return True if `late` is a newer save of the name of `other`: the copy of an older one has a
    name of its own.  The copies of the run of `checkpoint` come first."""
    if (late.called or late.name) != (other.called or other.name):
        return False
    own = _origin_of(checkpoint)
    facts = [(_origin_of(there) == own, there.mtime_ns, there.name) for there in (late, other)]
    return facts[0] > facts[1]


def _origin_of(checkpoint: Checkpoint) -> str:
    return checkpoint.manifest.origin if checkpoint.manifest is not None else ""


def not_of_this_save(
    other: Checkpoint, checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]
) -> str:
    """Return why a checkpoint without a step belongs to no save of a step, or to a later save; an
    empty string: it may belong to the save."""
    names = _parts_of_names(other, checkpoint)
    after_ns = other.mtime_ns - checkpoint.mtime_ns
    others = [there for there in checkpoints if there.step not in (None, checkpoint.step)]
    step = checkpoint.step or 0
    later_ns = [abs(other.mtime_ns - late.mtime_ns) for late in others if (late.step or 0) > step]
    usual_ns = [abs(checkpoint.mtime_ns - there.mtime_ns) / 2 for there in others]
    if after_ns > min([FROZEN_S * 1e9, *later_ns, *usual_ns]):
        return f"{after_ns / 1e9:,.0f} s newer than {checkpoint.name}"
    if any(part.metric or SELECTORS.intersection(part.key) for part in names):
        return "a checkpoint of its own"
    return ""


def of_earlier_save(
    other: Checkpoint, checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]
) -> tuple[str, str]:
    """Return a sentence if a checkpoint without a step was written with an earlier save, and the
    name of that save.  The sentence begins with "of two saves" if the state changes with each
    step."""
    steps = [there for there in checkpoints if there.step is not None]
    near = min(steps, key=lambda there: abs(there.mtime_ns - other.mtime_ns))
    gap_ns = checkpoint.mtime_ns - near.mtime_ns
    apart_ns = abs(near.mtime_ns - other.mtime_ns)
    is_earlier = near.step is not None and near.step < (checkpoint.step or 0)
    if not is_earlier or apart_ns > min(FROZEN_S * 1e9, gap_ns / 2):
        return "", ""
    said = f"{other.name} was written with {near.name}, before {checkpoint.name}"
    words = {word for part in _parts_of_names(other, checkpoint) for word in part.words}
    return f"{OF_TWO}: {said}" if words & CHANGING else said, near.name


OF_TWO = "of two saves"


def of_two_saves_by_state(checkpoint: Checkpoint, checkpoints: Sequence[Checkpoint]) -> str:
    """Return why a checkpoint with a step cannot be resumed as a whole: a state that changes with
    each step was written with an earlier save.  Empty: no such state.  checkpoints: all of the
    tier."""
    for other in shared_states(checkpoint, checkpoints):
        if not not_of_this_save(other, checkpoint, checkpoints):
            said, _ = of_earlier_save(other, checkpoint, checkpoints)
            if said.startswith(OF_TWO):
                return said
    return ""


def _parts_of_names(other: Checkpoint, checkpoint: Checkpoint) -> list[Parts]:
    folder, _, name = other.name.rpartition("/")
    names = (
        [name]
        if folder == checkpoint.name.rpartition("/")[0]
        else [name, folder.rpartition("/")[2]]
    )
    return [parts_of(name) for name in names]
