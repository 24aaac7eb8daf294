"""Recognise a slow folder, wherever mounted, by a mark inside; an empty mount point has no mark.

Knows folders and notes; knows no checkpoint.
"""

from __future__ import annotations

import json
import uuid
from contextlib import suppress

from penstock.errors import TierError, TierFull
from penstock.places.stores import LocalStore, Store
from penstock.save.checkpoint import origin_of
from penstock.save.commit import STATE
from penstock.save.kept import kept_json

__all__ = ["DRAINS_TO", "known_marks", "mark_of", "marked", "refuse_strange"]

TIER_MARK = f"{STATE}/tier-id"  # in a slow folder: the folder's identity, wherever mounted
DRAINS_TO = f"{STATE}/drains-to.json"  # on a fast tier: the marks of earlier slow folders
MOST_MARK_BYTES, MOST_MARKS_BYTES = 64, 1 << 20


def mark_of(slow: Store) -> str:
    """Return the mark of a slow folder, empty without a mark.

    Raises TierError: the folder is not readable, and may have a mark.
    """
    if slow.stat(TIER_MARK) is None:
        return ""
    return slow.read(TIER_MARK, 0, MOST_MARK_BYTES).decode(errors="replace").strip()


def known_marks(fast: LocalStore) -> dict[str, str]:
    """Return the marks of the slow folders of earlier drains of a fast tier, by path."""
    with suppress(TierError):
        rows = kept_json(fast, DRAINS_TO, MOST_MARKS_BYTES)
        if isinstance(rows, dict):
            return {str(one): str(mark) for one, mark in rows.items()}
    return {}


def marked(fast: LocalStore, slow: LocalStore) -> str:
    """Return the slow folder's mark; make a missing mark, and record the mark on the fast tier.

    Empty: the slow folder is full, and has no mark.  A full tier is no error.  Raises TierError.
    """
    mark = mark_of(slow)
    with suppress(TierFull):
        if not mark:
            made = uuid.uuid4().hex
            slow.put(TIER_MARK, [made.encode()])
            mark = made
        known, path = known_marks(fast), origin_of(slow)
        if known.get(path) != mark:
            fast.put(DRAINS_TO, [json.dumps(known | {path: mark}).encode()])
    return mark


def refuse_strange(fast: LocalStore, slow: LocalStore, mark: str | None = None) -> None:
    """Compare the slow folder's mark with `mark`, by default the mark recorded on the fast tier.

    Raises TierError: the marks differ.  The folder may be an empty mount point, where the next
    mount would cover new files.
    """
    known = known_marks(fast).get(origin_of(slow), "") if mark is None else mark
    if known and mark_of(slow) != known:
        raise TierError(
            f"{slow.url}: is not the folder that {fast.url} was drained to: is it mounted?  If it "
            f"is to begin anew there, remove {fast.path(DRAINS_TO)}"
        )
