"""Judge a copy that did not end by the format of the checkpoint, without regard to the mark of an
unfinished copy.

The mark stays.  No restart begins from such a copy, and no rule counts the copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from penstock.errors import TierError
from penstock.places.stores import Store, beside
from penstock.save.checkpoint import ARRIVING, HALF, INCOMPLETE, UNENDED, Checkpoint, parts_of_half
from penstock.save.find.formats import compared, find
from penstock.save.find.ruled import with_rules
from penstock.save.find.tree import StoreTree

__all__ = ["find_unended", "is_unended", "judgeable"]


def is_unended(checkpoint: Checkpoint) -> bool:
    """Return True for a copy with the mark of an unfinished copy, judged or not."""
    return checkpoint.problem.startswith(ARRIVING) or checkpoint.doubt == UNENDED


def find_unended(
    store: Store, name: str, others: Sequence[Checkpoint] | None = None
) -> Checkpoint | None:
    """Return the checkpoint in a folder of a store by the format, without regard to the mark of an
    unfinished copy; None: the folder is no checkpoint.  With the mark, the checkpoint counts as
    unchecked.

    others: the checkpoints of the store, for comparison; None: the store is searched.  Raises
    TierError."""
    tree = StoreTree(store, (name,))
    is_marked = tree.folders[name].files.pop(INCOMPLETE, None) is not None
    others = find(store) if others is None else [other for other in others if other.name != name]
    checkpoints = compared(with_rules([*tree.below(name, 1)], tree.rules, ()), others)
    checkpoint = next((checkpoint for checkpoint in checkpoints if checkpoint.name == name), None)
    return (
        replace(checkpoint, doubt=UNENDED) if checkpoint is not None and is_marked else checkpoint
    )


def judgeable(checkpoints: Sequence[Checkpoint], *, are_all: bool = True) -> list[Checkpoint]:
    """Return checkpoints of a store, each unfinished copy as the format describes the copy.

    A folder is then judged by the format's index and the lengths of the files, and counts as
    unchecked.  A copy of several files beside each other names the missing files.  are_all: False:
    the store has other checkpoints, which are searched for a comparison.  Raises TierError."""
    made, others = list[Checkpoint](), checkpoints if are_all else None
    for checkpoint in checkpoints:
        if checkpoint.problem == ARRIVING and checkpoint.is_folder:
            made.append(find_unended(checkpoint.store, checkpoint.name, others) or checkpoint)
        elif checkpoint.problem == ARRIVING:
            made.append(_of_files(checkpoint))
        else:
            made.append(checkpoint)
    return made


def _of_files(checkpoint: Checkpoint) -> Checkpoint:
    """Return an unfinished copy of several files with the missing files as the problem, or with a
    doubt if no file is missing."""
    names = list[str]()
    with suppress(TierError):  # the copy ended after the search
        names = parts_of_half(checkpoint.store, beside(checkpoint.name, HALF))[1]
    missing = [name for name in names if checkpoint.store.stat(name) is None]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        return replace(checkpoint, problem=f"{ARRIVING}: no {missing[0]}{more}")
    return replace(checkpoint, problem="", doubt=UNENDED) if names else checkpoint
