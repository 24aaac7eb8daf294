"""Frozen copies: the user promises unchanged sources, asked at a run's start, not at each open.

Knows the manifest and the map; knows no run.  docs/stage.md has the promise, native/staged.c keeps
the promise.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from penstock.errors import TierError
from penstock.places.registry import Tier
from penstock.stage.manifest import FROZEN, Map, StagedCopy, TierPlace
from penstock.stage.today import NOW, now_of

__all__ = ["Frozen", "changed", "check"]


@dataclass(frozen=True, slots=True)
class Frozen:
    """The result of a check.  copies: of sources marked as frozen; changed: paths of sources with
    another file than was copied, or without an answer."""

    copies: int
    changed: tuple[str, ...]


def check(tier: Tier) -> Frozen:
    """Ask each frozen source, by each name, and mark in the map the copies served without asking.

    A changed source loses the mark, also for programs that run already: each open asks again, and
    gets the original.  Raises TierGone; TierError: the map of a read-only tier has to be marked and
    cannot be.
    """
    place = TierPlace(tier)
    entries = [entry for entry in place.entries().values() if entry.is_frozen and not entry.is_url]
    if not entries:
        return Frozen(0, ())
    different = changed(entries)
    _mark(place, {entry.copy: entry for entry in entries}, different)
    return Frozen(len(entries), tuple(different.values()))


def changed(entries: Sequence[StagedCopy]) -> dict[str, str]:
    """Return the copies with a name of another file than was copied, and the name."""
    names = [(entry, name) for entry in entries for name in (entry.source, *entry.names)]
    now = np.empty(len(names), NOW)
    device = np.array([entry.identity.dev for entry, _ in names], np.uint64)
    for dev in np.unique(device).tolist():  # by file system in turn: see now_of
        at = np.flatnonzero(device == dev)
        now[at] = now_of([names[number][1] for number in at.tolist()])
    different: dict[str, str] = {}
    for (entry, name), row in zip(names, now.tolist(), strict=True):
        then = entry.identity
        recorded = (then.size_bytes, then.mtime_ns, then.ctime_ns, then.ino * entry.is_ino_kept)
        if (*row[:3], row[3] * entry.is_ino_kept) != recorded:
            different.setdefault(entry.copy, name)
    return different


def _mark(
    place: TierPlace, entries: Mapping[str, StagedCopy], different: Mapping[str, str]
) -> None:
    """Mark exactly the unchanged entries in the map."""
    marked: set[bytes] = set()
    with suppress(TierError), Map(place.map) as current:
        marked = current.frozen()
        if not _wrong(entries, different, marked):
            return
    try:
        with place.locked(), Map(place.map) as current:
            for entry in _wrong(entries, different, current.frozen()):
                current.mark(entry, "flags", entry.flags | FROZEN * (entry.copy not in different))
    except (TierError, TypeError) as error:  # TypeError: a read-only map
        if any(os.fsencode(name) in marked for name in different.values()):
            raise TierError(
                f"{place.tier.name}: it is read-only, and the frozen source "
                f"{next(iter(different.values()))} has changed: run without --staged, or mount "
                "the tier to be written"
            ) from error


def _wrong(
    entries: Mapping[str, StagedCopy], different: Mapping[str, str], marked: set[bytes]
) -> list[StagedCopy]:
    """Return the entries with a wrong mark in the map."""
    return [
        entry
        for entry in entries.values()
        if any(
            (os.fsencode(name) in marked) != (entry.copy not in different)
            for name in (entry.source, *entry.names)
        )
    ]
