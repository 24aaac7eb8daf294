"""Whether a save that is local has arrived on the slow tier, by the manifests there, or never will.

Knows tiers and the drain's status; changes nothing.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import NamedTuple

from penstock.save.handle import SaveUnderWay
from penstock.save.tiered import Tiers, content_at
from penstock.save.working import DrainStatus

__all__ = ["Arrival", "Arriving"]

UNREAD_S = 60.0  # for so long an error on reading a local checkpoint may pass


class Arrival(NamedTuple):
    """The end of the way.  path: the copy on the slow tier; None: there will be none.  error: why
    the save is lost; empty: given up by a rule.  is_unread: the drain may still copy the save."""

    path: str | None = None
    error: str = ""
    is_unread: bool = False


class Arriving:
    """The looks of one Checkpointer at its tiers."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def end_of(self, going: SaveUnderWay, status: DrainStatus, has_drain: bool) -> Arrival | None:
        """Return the end of a save's way; None: the save is under way.  has_drain: the drain is of
        this process.  Raises TierError."""
        name = Path(going.save.path).name
        has_looked = status.looked_unix_ns > going.local_unix_s * 1e9
        is_idle = has_drain and has_looked and status.state == "idle" and not status.backlog
        is_damaged = has_looked and name in status.damaged
        # In this order: the fast tier gives up only what has arrived.
        is_gone, error = self._read_content(going)
        if not error and not has_looked and status.state == "waiting":
            error = self._unlisted()
        is_over = is_gone or is_idle or is_damaged
        is_unread = self._is_unread_for_long(going, error) or (bool(error) and is_damaged)
        path = None
        if going.content_id is not None:
            path = self._tiers.on_slow(name, going.content_id, is_over)
        if path is not None:
            return Arrival(path)
        if is_unread:
            return Arrival(None, f"cannot be read: {error}", not is_damaged)
        if going.content_id is None or not is_over:
            return None
        if is_damaged and not is_gone:
            why = dict(zip(status.damaged, status.damage, strict=False)).get(name, "damaged")
            return Arrival(None, why)
        return Arrival()

    def _read_content(self, going: SaveUnderWay) -> tuple[bool, str]:
        """Read the content's identity, if it is not known.  Return whether the save is gone from
        the fast tier, and why it cannot be read."""
        is_gone, error = _seen(going.save.path)
        if going.content_id is None and not error:
            going.content_id, error = content_at(going.save.path)
        return is_gone, error

    def _is_unread_for_long(self, going: SaveUnderWay, error: str) -> bool:
        now_s = time.perf_counter()
        going.unread_s = min(going.unread_s, now_s) if error else math.inf
        return bool(error) and now_s - going.unread_s > UNREAD_S

    def _unlisted(self) -> str:
        """Return why the waiting drain cannot list the fast tier; empty: it can."""
        try:
            next(Path(self._tiers.root).iterdir(), None)
        except OSError as error:
            return str(error)
        return ""


def _seen(path: str) -> tuple[bool, str]:
    """Return whether a path is gone, and the error that hides the answer.  Path.exists takes some
    errors for an answer, in a later Python all of them."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True, ""
    except OSError as error:
        return False, str(error)
    return False, ""
