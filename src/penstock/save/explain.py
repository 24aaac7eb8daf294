"""Report for `penstock save ls --explain` whether a checkpoint of another program is cut, still
being written, or of two saves.

The module knows checkpoints and tiers, and changes nothing.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.errors import TierError
from penstock.places.stores import LocalStore, Store
from penstock.save.checkpoint import Checkpoint
from penstock.save.copy.writers import MOST_ASKED, first_open
from penstock.save.find.formats import find
from penstock.save.find.tiermarks import known_marks, mark_of
from penstock.save.unit.names import has_data, is_state
from penstock.save.verify import verify

__all__ = ["copies_elsewhere", "unfinished"]


def unfinished(checkpoint: Checkpoint) -> str:
    """Return why a checkpoint of another program does not count, by the lengths of the files and by
    the programs with a file open for writing; an empty string: no reason is known."""
    if checkpoint.problem or checkpoint.manifest is not None:
        return checkpoint.problem
    if problems := verify(checkpoint, "sizes").problems:
        return problems[0]
    if not isinstance(checkpoint.store, LocalStore):
        return ""
    state = [file for file in checkpoint.files if is_state(file.name.rpartition("/")[2])]
    state = state or [file for file in checkpoint.files if has_data(file.name)]
    latest = sorted(state, key=lambda file: file.mtime_ns or 0, reverse=True)[:MOST_ASKED]
    name = first_open(checkpoint.store.path(file.name) for file in latest)
    return f"a program has {name} open for writing" if name else ""


def copies_elsewhere(fast: Store) -> list[Checkpoint]:
    """Return the checkpoints of the present folders to which a fast tier was drained."""
    copies = list[Checkpoint]()
    with suppress(TierError):
        marks = known_marks(fast) if isinstance(fast, LocalStore) else {}
        for path, mark in marks.items():
            slow = LocalStore(path, makes_folders=False)
            with suppress(TierError):
                if mark_of(slow) == mark:
                    copies += find(slow)
    return copies
