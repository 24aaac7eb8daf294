"""Say for `penstock save ls --explain` whether a checkpoint of another program is cut, still being
written, or of two saves.

Knows checkpoints and tiers; changes nothing.
"""

from __future__ import annotations

from contextlib import suppress

from penstock.errors import TierError
from penstock.save.commit import STATE
from penstock.save.formats import Checkpoint, find
from penstock.save.kept import kept_json
from penstock.save.units import has_data, is_state
from penstock.save.verify import verify
from penstock.save.writers import MOST_ASKED, first_open
from penstock.stores import LocalStore, Store

__all__ = ["copies_elsewhere", "unfinished"]

DRAINS_TO, TIER_MARK = f"{STATE}/drains-to.json", f"{STATE}/tier-id"
MOST_MARKS_BYTES, MOST_MARK_BYTES = 1 << 20, 64


def unfinished(one: Checkpoint) -> str:
    """Return why a checkpoint of another program does not count, by the lengths of its files and by
    the programs that have a file open; an empty string: nothing is known against it."""
    if one.problem or one.manifest is not None:
        return one.problem
    if problems := verify(one, "sizes").problems:
        return problems[0]
    if not isinstance(one.store, LocalStore):
        return ""
    state = [file for file in one.files if is_state(file.name.rpartition("/")[2])]
    state = state or [file for file in one.files if has_data(file.name)]
    latest = sorted(state, key=lambda file: file.mtime_ns or 0, reverse=True)[:MOST_ASKED]
    name = first_open(one.store.path(file.name) for file in latest)
    return f"a program has {name} open for writing" if name else ""


def copies_elsewhere(fast: Store) -> list[Checkpoint]:
    """Return the checkpoints of the folders that a fast tier was drained to and that are there."""
    found = list[Checkpoint]()
    with suppress(TierError):
        rows = kept_json(fast, DRAINS_TO, MOST_MARKS_BYTES)
        for path, mark in rows.items() if isinstance(rows, dict) else ():
            slow = LocalStore(str(path), makes_folders=False)
            with suppress(TierError):
                if slow.read(TIER_MARK, 0, MOST_MARK_BYTES).decode(errors="replace") == mark:
                    found += find(slow)
    return found
