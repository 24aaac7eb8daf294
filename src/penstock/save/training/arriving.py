"""Find out, by the manifests, whether a local save has arrived on the slow tier or never will.

The module knows tiers and the drain's status, and changes nothing.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from penstock.save.drain.tiered import Tiers, content_at
from penstock.save.drain.working import DrainStatus
from penstock.save.training.handle import SaveUnderWay

__all__ = ["Arrival", "Arriving"]

UNREAD_S = 60.0  # until then an error on reading a local checkpoint counts as temporary


class Arrival(NamedTuple):
    """The end of a save's way to the slow tier.  path: the copy on the slow tier; None: there will
    be no copy.  error: why the save is lost; empty: given up by a rule.  is_unread: the drain may
    still copy the save."""

    path: str | None = None
    error: str = ""
    is_unread: bool = False


@dataclass(frozen=True, slots=True)
class _LocalSave:
    """The state of a save on the fast tier, from the tier and from the drain's status.

    is_passed_over: the drain has looked after the save's end and has nothing left to copy.
    damage: the damage that such a look has found; None: no damage.  error: why the save cannot be
    read; has_long_error: for longer than UNREAD_S.
    """

    is_gone: bool
    is_passed_over: bool
    damage: str | None
    error: str
    has_long_error: bool

    @property
    def is_over(self) -> bool:
        """Return True if no copy will be made any more."""
        return self.is_gone or self.is_passed_over or self.damage is not None

    @property
    def is_unread(self) -> bool:
        """Return True if the save counts as unreadable."""
        return self.has_long_error or (bool(self.error) and self.damage is not None)


class Arriving:
    """Check for a Checkpointer whether the saves have arrived."""

    def __init__(self, tiers: Tiers) -> None:
        self._tiers = tiers

    def end_of(self, going: SaveUnderWay, status: DrainStatus, has_drain: bool) -> Arrival | None:
        """Return the end of a save's way; None: the save is under way.  has_drain: this process
        runs the drain.  Raises TierError."""
        local = self._look(going, status, has_drain)
        path = None
        if going.content_id is not None:
            name = Path(going.save.path).name
            path = self._tiers.on_slow(name, going.content_id, local.is_over)
        if path is not None:
            return Arrival(path)
        if local.is_unread:
            return Arrival(None, f"cannot be read: {local.error}", local.damage is None)
        if going.content_id is None or not local.is_over:
            return None
        if local.damage is None or local.is_gone:
            return Arrival()
        return Arrival(None, local.damage)

    def _look(self, going: SaveUnderWay, status: DrainStatus, has_drain: bool) -> _LocalSave:
        """Return the state of a save on the fast tier.

        The caller reads the slow tier afterwards: the fast tier gives up a save only after the
        arrival.
        """
        name = Path(going.save.path).name
        has_looked = status.looked_unix_ns > going.local_unix_s * 1e9
        is_gone, error = self._read_content(going)
        if not error and not has_looked and status.state == "waiting":
            error = self._unlisted()
        damage = None
        if has_looked and name in status.damaged:
            damage = dict(zip(status.damaged, status.damage, strict=False)).get(name, "damaged")
        is_idle = status.state == "idle" and not status.backlog
        return _LocalSave(
            is_gone=is_gone,
            is_passed_over=has_drain and has_looked and is_idle,
            damage=damage,
            error=error,
            has_long_error=self._has_long_error(going, error),
        )

    def _read_content(self, going: SaveUnderWay) -> tuple[bool, str]:
        """Read the content's identity, if not known yet.  Return whether the save is gone from the
        fast tier, and why the save cannot be read."""
        is_gone, error = _seen(going.save.path)
        if going.content_id is None and not error:
            going.content_id, error = content_at(going.save.path)
        return is_gone, error

    def _has_long_error(self, going: SaveUnderWay, error: str) -> bool:
        now_s = time.perf_counter()
        going.unread_s = min(going.unread_s, now_s) if error else math.inf
        return bool(error) and now_s - going.unread_s > UNREAD_S

    def _unlisted(self) -> str:
        """Return why the waiting drain cannot list the fast tier; empty: no error."""
        try:
            next(Path(self._tiers.root).iterdir(), None)
        except OSError as error:
            return str(error)
        return ""


def _seen(path: str) -> tuple[bool, str]:
    """Return whether a path is gone, and the error if there is no answer.  Path.exists returns
    False for some errors, in a later Python for all errors."""
    try:
        Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True, ""
    except OSError as error:
        return False, str(error)
    return False, ""
