"""Recognise a slow folder, wherever mounted, by a mark inside; an empty mount point has no mark.
Recognise a second job that drains to the folder, by the folder's list of fast tiers.

Knows folders and notes; knows no checkpoint.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import suppress

from penstock.errors import SaveError, TierError, TierFull
from penstock.places.stores import LocalStore, Store
from penstock.save.checkpoint import origin_of, origins
from penstock.save.commit import STATE
from penstock.save.kept import kept_json

__all__ = ["DRAINS_TO", "known_marks", "mark_of", "marked", "refuse_strange"]

TIER_MARK = f"{STATE}/tier-id"  # in a slow folder: the folder's identity, wherever mounted
DRAINS_TO = f"{STATE}/drains-to.json"  # on a fast tier: the marks of earlier slow folders
DRAINED_FROM = f"{STATE}/drained-from.json"  # on a slow folder: the fast tiers of all drains
MOST_MARK_BYTES, MOST_MARKS_BYTES = 64, 1 << 20
MOST_SOURCES = 1000  # each job of a batch system may have a fast tier of its own


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
            return {str(path): str(mark) for path, mark in rows.items()}
    return {}


def marked(fast: LocalStore, slow: LocalStore, *, is_shared: bool = True) -> str:
    """Return the slow folder's mark; make a missing mark, and record the mark on the fast tier, and
    the fast tier on the slow folder.

    is_shared: the user lets several jobs drain to the slow folder.  Empty: the slow folder is full,
    and has no mark.  A full tier is no error.  Raises TierError; SaveError: the slow folder is
    another job's, and not shared.
    """
    mark = mark_of(slow)
    sources = _sources(slow)
    if not is_shared:
        _refuse_other_job(fast, slow, mark, sources)
    with suppress(TierFull):
        if not mark:
            made = uuid.uuid4().hex
            slow.put(TIER_MARK, [made.encode()])
            mark = made
        by_path, path = known_marks(fast), origin_of(slow)
        if by_path.get(path) != mark:
            fast.put(DRAINS_TO, [json.dumps(by_path | {path: mark}).encode()])
        if sources[-1:] != [origin_of(fast)]:
            sources = [
                *(source for source in sources if source != origin_of(fast)),
                origin_of(fast),
            ]
            slow.put(DRAINED_FROM, [json.dumps(sources[-MOST_SOURCES:]).encode()])
    return mark


def _sources(slow: LocalStore) -> list[str]:
    """Return the fast tiers of all drains to a slow folder, the last drain's last."""
    with suppress(TierError):
        rows = kept_json(slow, DRAINED_FROM, MOST_MARKS_BYTES)
        if isinstance(rows, list):
            return [row for row in rows if isinstance(row, str)]
    return []


def _refuse_other_job(fast: LocalStore, slow: LocalStore, mark: str, sources: list[str]) -> None:
    """Raise SaveError if a fast tier of another job is still there, and drains to the slow folder.

    The fast tier of an earlier job on another node, or removed after the job, is no reason: the
    next job of the run may have a new one."""
    own = origins(fast)
    for other in reversed(sources):
        if other in own or not mark or not os.path.isabs(other) or not os.path.isdir(other):  # noqa: PTH112, PTH117
            continue
        if mark in known_marks(LocalStore(other)).values():
            raise SaveError(
                f"{slow.url}: {other} is drained to this folder too; a restart of one job could "
                "take the checkpoint of the other.  Nothing was copied: name another folder; if "
                "this job goes on with that run, run `penstock save recover FAST SLOW` before the "
                "first save; or say --share-slow"
            )


def refuse_strange(fast: LocalStore, slow: LocalStore, mark: str | None = None) -> None:
    """Compare the slow folder's mark with `mark`, by default the mark recorded on the fast tier.

    Raises TierError: the marks differ.  The folder may be an empty mount point, where the next
    mount would cover new files.
    """
    earlier_mark = known_marks(fast).get(origin_of(slow), "") if mark is None else mark
    if earlier_mark and mark_of(slow) != earlier_mark:
        raise TierError(
            f"{slow.url}: is not the folder that {fast.url} was drained to: is it mounted?  If it "
            f"is to begin anew there, remove {fast.path(DRAINS_TO)}"
        )
