"""Read Penstock's notes in a tier, as JSON.  The module knows the format of no note."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from penstock.places.stores import Store
from penstock.safe import bounded

__all__ = ["kept_json"]


def kept_json(store: Store, name: str, most_bytes: int) -> Any:
    """Return the value of a note; None: there is no note, or the text is not JSON.  Raises
    TierError."""
    if store.stat(name) is None:
        return None
    with suppress(ValueError):
        return bounded.json_in(store.read(name, 0, most_bytes))
    return None
