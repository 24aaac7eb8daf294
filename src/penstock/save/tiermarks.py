"""Recognise a slow folder by a mark in it, wherever it is mounted, and an empty mount point by the
lack of the mark.

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

TIER_MARK = f"{STATE}/tier-id"  # in a slow folder: which one it is, wherever it is mounted
DRAINS_TO = f"{STATE}/drains-to.json"  # on a fast tier: the marks of those it was drained to
MOST_MARK_BYTES, MOST_MARKS_BYTES = 64, 1 << 20


def mark_of(slow: Store) -> str:
    """Return the mark of a slow folder, empty without a mark.  Raises TierError: not readable, so
    that a mark may be there."""
    if slow.stat(TIER_MARK) is None:
        return ""
    return slow.read(TIER_MARK, 0, MOST_MARK_BYTES).decode(errors="replace").strip()


def known_marks(fast: LocalStore) -> dict[str, str]:
    """Return the marks of the slow folders of earlier drains of this fast tier, by path."""
    with suppress(TierError):
        rows = kept_json(fast, DRAINS_TO, MOST_MARKS_BYTES)
        if isinstance(rows, dict):
            return {str(one): str(mark) for one, mark in rows.items()}
    return {}


def marked(fast: LocalStore, slow: LocalStore) -> str:
    """Return the slow folder's mark, empty without a mark.  Make a missing mark, and record the
    mark on the fast tier; a full tier is no error in both cases.  Raises TierError."""
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
    """Compare the slow folder's mark with an earlier mark, by default the mark recorded on the fast
    tier.  Raises TierError: another folder, perhaps an empty mount point, where the next mount
    would cover new files."""
    known = known_marks(fast).get(origin_of(slow), "") if mark is None else mark
    if known and mark_of(slow) != known:
        raise TierError(
            f"{slow.url}: is not the folder that {fast.url} was drained to: is it mounted?  If it "
            f"is to begin anew there, remove {fast.path(DRAINS_TO)}"
        )
