"""Keep with a fast tier the sets of files written by each save of a recorded run.

The module knows names, and reads no run.  penstock.save.unit.units groups files by the sets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress

from penstock.places.stores import LocalStore, Store
from penstock.save.commit import STATE
from penstock.save.kept import kept_json

__all__ = ["Saves", "by_folder", "keep_saves", "saves_of", "several"]

Saves = Sequence[frozenset[str]]  # names of files, relative to the tier; the latest save first

SAVES = f"{STATE}/saves.json"
MOST_SAVES, MOST_SAVES_BYTES = 1000, 16 << 20


def several(saves: Iterable[Iterable[str]]) -> Saves:
    """Return each set of several files once."""
    sets = dict.fromkeys(frozenset(save) for save in saves)
    return tuple(save for save in sets if len(save) > 1)[:MOST_SAVES]


def saves_of(store: Store) -> Saves:
    """Return the sets kept with a tier.  Raises TierError."""
    if not isinstance(store, LocalStore):
        return ()
    with suppress(TypeError, KeyError):
        rows = (kept_json(store, SAVES, MOST_SAVES_BYTES) or {"saves": []})["saves"]
        return several([str(name) for name in row] for row in rows)
    return ()


def keep_saves(store: LocalStore, saves: Saves) -> None:
    """Keep sets with a tier, before the sets already kept.  Raises TierError."""
    kept = saves_of(store)
    wanted = several((*saves, *kept))
    if wanted != kept:
        rows = [sorted(save) for save in wanted]
        store.put(SAVES, json.dumps({"version": 1, "saves": rows}).encode())


def by_folder(saves: Saves) -> dict[str, list[frozenset[str]]]:
    """Return the sets of files by folder, each with the names inside the folder."""
    by_name = dict[str, list[frozenset[str]]]()
    for save in saves:
        folders = dict[str, set[str]]()
        for name in save:
            folder, _, base = name.rpartition("/")
            folders.setdefault(folder, set()).add(base)
        for folder, bases in folders.items():
            if len(bases) > 1:
                by_name.setdefault(folder, []).append(frozenset(bases))
    return by_name
