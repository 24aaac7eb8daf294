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
from penstock.save.checkpoint import (
    ARRIVING,
    HALF,
    INCOMPLETE,
    UNENDED,
    Checkpoint,
    parts_of_half,
)
from penstock.save.formats import compared, find
from penstock.save.ruled import with_rules
from penstock.save.tree import StoreTree

__all__ = ["find_unended", "is_unended", "judgeable"]


def is_unended(one: Checkpoint) -> bool:
    """Return True for a copy with the mark of an unfinished copy, judged or not."""
    return one.problem.startswith(ARRIVING) or one.doubt == UNENDED


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
    others = find(store) if others is None else [one for one in others if one.name != name]
    found = compared(with_rules([*tree.below(name, 1)], tree.rules, ()), others)
    one = next((one for one in found if one.name == name), None)
    return replace(one, doubt=UNENDED) if one is not None and is_marked else one


def judgeable(found: Sequence[Checkpoint], *, are_all: bool = True) -> list[Checkpoint]:
    """Return checkpoints of a store, each unfinished copy as the format describes the copy.

    A folder is then judged by the format's index and the lengths of the files, and counts as
    unchecked.  A copy of several files beside each other names the missing files.  are_all: False:
    the store has other checkpoints, which are searched for a comparison.  Raises TierError."""
    made, others = list[Checkpoint](), found if are_all else None
    for one in found:
        if one.problem == ARRIVING and one.is_folder:
            made.append(find_unended(one.store, one.name, others) or one)
        elif one.problem == ARRIVING:
            made.append(_of_files(one))
        else:
            made.append(one)
    return made


def _of_files(one: Checkpoint) -> Checkpoint:
    """Return an unfinished copy of several files with the missing files as the problem, or with a
    doubt if no file is missing."""
    names = list[str]()
    with suppress(TierError):  # the copy ended after the search
        names = parts_of_half(one.store, beside(one.name, HALF))[1]
    missing = [name for name in names if one.store.stat(name) is None]
    if missing:
        more = f" and {len(missing) - 1:,} more" if len(missing) > 1 else ""
        return replace(one, problem=f"{ARRIVING}: no {missing[0]}{more}")
    return replace(one, problem="", doubt=UNENDED) if names else one
