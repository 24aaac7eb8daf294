"""Mark the copies of a `recover --fetch` that has not ended: a lone part is no save.

    FAST/.penstock/fetching.json   {"version": 1, "from": TIER, "names": [NAME, ...]}

The mark is written before the first copy and deleted after the last copy.  Until then no copy of
the list counts; after a kill the next `recover` removes the copies.  The module knows names and
manifests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from penstock.errors import TierError
from penstock.places.stores import LocalStore, Store
from penstock.save.commit import STATE
from penstock.save.kept import kept_json

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["FETCH", "UNFETCHED", "begin_fetch", "end_fetch", "marks_of", "with_unfetched"]

FETCH = "fetch"  # the role of the process that copies: see commit.claim()
RECORD = f"{STATE}/fetching.json"
MOST_RECORD_BYTES = 1 << 20
UNFETCHED = "a part of a save whose copy from the slow tier did not end (recover --fetch)"


def begin_fetch(fast: Store, come_from: str, names: Iterable[str]) -> None:
    """Mark the copies of a fetch.  come_from: the tier of the sources.  Raises TierError."""
    record = {"version": 1, "from": come_from, "names": sorted(names)}
    fast.put(RECORD, [json.dumps(record).encode()])


def end_fetch(fast: Store) -> None:
    """Delete the mark: all copies are there, or none.  Raises TierError."""
    fast.delete(RECORD)


def marks_of(checkpoint: Checkpoint) -> set[str]:
    """Return the identities of a checkpoint and, of a copy, of the source."""
    return {
        checkpoint.identity,
        checkpoint.manifest.source if checkpoint.manifest is not None else "",
    } - {""}


def with_unfetched(store: Store, checkpoints: Sequence[Checkpoint]) -> Sequence[Checkpoint]:
    """Return the checkpoints, with a problem for each copy of a fetch that has not ended.  What a
    program has written under a listed name is no such copy."""
    come_from, names = _marked(store)
    return [
        _with_problem(checkpoint, come_from) if checkpoint.name in names else checkpoint
        for checkpoint in checkpoints
    ]


def _with_problem(checkpoint: Checkpoint, come_from: str) -> Checkpoint:
    is_copy = checkpoint.manifest is not None and checkpoint.manifest.origin == come_from
    return (
        replace(checkpoint, problem=UNFETCHED) if is_copy and not checkpoint.problem else checkpoint
    )


def _marked(store: Store) -> tuple[str, frozenset[str]]:
    """Return the tier of the sources and the names of the marked copies."""
    if isinstance(store, LocalStore):
        with suppress(TierError, TypeError, KeyError):  # another program may have written the mark
            record = kept_json(store, RECORD, MOST_RECORD_BYTES)
            if record is not None:
                return str(record["from"]), frozenset(map(str, record["names"]))
    return "", frozenset()
