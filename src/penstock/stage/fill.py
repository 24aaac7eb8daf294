"""Staging while the job reads: each copy is served as soon as it is there.

Knows tiers and wanted files; starts no process and knows no run.  The share of the slow tier that
it may take is a rate; what is staged already gives way to what is worth more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from penstock import tiers
from penstock.errors import TierError
from penstock.registry import Tier
from penstock.stage.choose import best
from penstock.stage.copy import Copied, copy
from penstock.stage.held import drop, stored_bytes
from penstock.stage.manifest import Place
from penstock.stage.source import Wanted
from penstock.stage.work import Progress

__all__ = ["LEAST_BPS", "fill"]

THREADS = 2  # a job that reads has the tier's attention; more would take what it is waiting for
LEAST_BPS = 1_000_000  # less fills no tier before the job is over
KEPT_FREE_BYTES = 64 << 20


def fill(
    tier: Tier,
    wanted: Iterable[Wanted],
    *,
    limit_bps: float,
    progress: Progress | None = None,
    ready: Callable[[], None] | None = None,
) -> Copied:
    """Copies wanted files in the order given, at most so many bytes per second.

    ready is called once the map is in place: programs that are started then are served each copy
    as soon as it is there.  Of what is staged and what is wanted, the most gain that the tier holds
    stays; the rest is evicted, or left out.  Raises TierError.
    """
    if limit_bps < LEAST_BPS:
        raise TierError(f"a limit of {limit_bps:,.0f} B/s fills no tier; give 1MB/s or more")
    place = Place(tier)
    place.make()
    chosen, notes = _room_made(place, list(wanted))
    found = copy(
        tier,
        chosen,
        limit_bps=limit_bps,
        threads=THREADS,
        progress=progress,
        is_live=True,
        ready=ready,
    )
    return replace(found, notes=(*found.notes, *notes))


def _room_made(place: Place, wanted: list[Wanted]) -> tuple[list[Wanted], list[str]]:
    """What of it fits, beside what is worth more already; evicts what has to give way."""
    staged = place.entries()
    names = {name for entry in staged.values() for name in (entry.source, *entry.names)}
    fresh = [one for one in wanted if one.path not in names]
    paths = {one.path for one in wanted}
    held = [one for one in staged.values() if paths.isdisjoint((one.source, *one.names))]
    sizes = np.array([_size_of(one.path) for one in fresh], np.int64)
    needed, room = int(stored_bytes(sizes).sum()), _room(place)
    if needed <= room:
        return wanted, []
    kept_bytes = np.array([one.identity.size_bytes for one in held], np.int64)
    size = np.concatenate([stored_bytes(sizes), stored_bytes(kept_bytes)])
    gain = np.array([one.gain_s for one in fresh] + [one.gain_s for one in held])
    choice = best(gain, size, room + int(stored_bytes(kept_bytes).sum())).is_chosen
    is_kept = choice[len(fresh) :]
    gone = [entry for entry, stays in zip(held, is_kept.tolist(), strict=True) if not stays]
    left = {one.path for one, goes in zip(fresh, choice.tolist(), strict=False) if not goes}
    if gone:
        drop(place, gone)
    notes = [
        f"{len(gone):,} copies of less gain gave way, {len(left):,} files were left out: "
        f"{place.tier.name} holds no more"
    ]
    return [one for one in wanted if one.path not in left], notes


def _size_of(path: str) -> int:
    """0: not there, which copying will say."""
    try:
        return os.stat(path).st_size  # noqa: PTH116
    except (OSError, ValueError):
        return 0


def _room(place: Place) -> int:
    free = tiers.free_bytes(place.tier.path) - KEPT_FREE_BYTES
    if place.tier.capacity_bytes is None:
        return max(0, free)
    held = sum(int(stored_bytes(one.identity.size_bytes)) for one in place.entries().values())
    return max(0, min(free, place.tier.capacity_bytes - held))
