"""Staging while the job reads: each copy is served as soon as it is there.

Knows tiers and wanted files; starts no process.  The share of the slow tier that it may take is a
rate; what is staged already gives way to what is worth more.  Every few seconds it pauses, and
writes down when: what the job's reads took then and beside the copying is the proof that it does no
harm, or that it does.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock import tiers
from penstock.errors import TierError
from penstock.registry import Tier
from penstock.stage.choose import best, filled
from penstock.stage.copy import Copied, copy, summed
from penstock.stage.held import drop, stored_bytes
from penstock.stage.manifest import Place, write_map
from penstock.stage.source import Wanted
from penstock.stage.work import Pace, Progress
from penstock.words import count

__all__ = ["LEAST_BPS", "Journal", "fill", "fill_following"]

Array = NDArray[Any]

THREADS = 2  # a job that reads has the tier's attention; more would take what it is waiting for
LEAST_BPS = 1_000_000  # less fills no tier before the job is over
KEPT_FREE_BYTES = 64 << 20
# Long enough for hundreds of reads; of many lengths, so that no rhythm of the job hides in them.
COPYING_S, PAUSE_S = (1.0, 3.0), (0.8, 1.6)
LOOKED_EVERY_S = 0.5
MOST_WINDOWS = 100_000  # of a journal: three days of filling
REST = 10.0  # a round of looking and mapping takes a tenth of a processor at most


@dataclass(slots=True)
class Journal:
    """When a filling copied and when it paused: RUN/fill.json, written whole each time.

    windows: from, to (ns since 1970), bytes, whether it copied.
    """

    path: Path
    tier: str
    limit_bps: float
    windows: list[tuple[int, int, int, bool]] = field(default_factory=list)

    def add(self, from_ns: int, to_ns: int, n_bytes: int, is_copying: bool) -> None:
        """A window that has ended.  What cannot be written is lost: the filling goes on."""
        if to_ns <= from_ns or len(self.windows) >= MOST_WINDOWS:
            return
        self.windows.append((from_ns, to_ns, n_bytes, is_copying))
        facts = {"version": 1, "tier": self.tier, "limit_bps": self.limit_bps}
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with suppress(OSError):
            draft.write_text(json.dumps({**facts, "windows": self.windows}))
            draft.replace(self.path)


class _Breathing(Pace):
    """A rate that stands still now and then, and tells when."""

    def __init__(self, limit_bps: float, journal: Journal | None, seed: int = 0) -> None:
        super().__init__(limit_bps)
        self._journal = journal
        self._turn = threading.Lock()
        self._chance = random.Random(seed)
        self._is_copying = False
        self._from_ns = self._until_ns = time.time_ns()  # the first wait ends this empty pause
        self._moved_bytes = 0

    def wait(self, n_bytes: int) -> None:
        if self._journal is not None:
            with self._turn:  # who comes in a pause waits for its end, and so do the others
                while (now_ns := time.time_ns()) < self._until_ns and not self._is_copying:
                    time.sleep((self._until_ns - now_ns) / 1e9)
                if now_ns >= self._until_ns:
                    self._change(now_ns)
                    if not self._is_copying:
                        time.sleep((self._until_ns - now_ns) / 1e9)
                        self._change(time.time_ns())
                self._moved_bytes += n_bytes
        super().wait(n_bytes)

    def rest(self) -> None:
        """Nothing is to be copied for now: what follows is a pause, however long."""
        if self._journal is not None:
            with self._turn:
                now_ns = time.time_ns()
                if self._is_copying:
                    self._change(now_ns)
                self._until_ns = now_ns

    def _change(self, now_ns: int) -> None:
        assert self._journal is not None
        self._journal.add(self._from_ns, now_ns, self._moved_bytes, self._is_copying)
        self._is_copying = not self._is_copying
        s = self._chance.uniform(*(COPYING_S if self._is_copying else PAUSE_S))
        self._from_ns, self._until_ns, self._moved_bytes = now_ns, now_ns + int(s * 1e9), 0


def fill(
    tier: Tier,
    wanted: Iterable[Wanted],
    *,
    limit_bps: float,
    progress: Progress | None = None,
    ready: Callable[[], None] | None = None,
    journal: Journal | None = None,
) -> Copied:
    """Copies wanted files in the order given, at most so many bytes per second.

    journal: where it is told when it copied; with one, it pauses now and then.  ready is called
    once the map is in place: programs that are started then are served each copy as soon as it is
    there.  Of what is staged and what is wanted, the most gain that the tier holds stays; the rest
    is evicted, or left out.  Raises TierError.
    """
    place, pace = _begun(tier, limit_bps, journal)
    chosen, notes = _room_made(place, list(wanted))
    found = copy(
        tier,
        chosen,
        pace=pace,
        threads=THREADS,
        progress=progress,
        is_live=True,
        ready=ready,
    )
    pace.rest()
    return replace(found, notes=(*found.notes, *notes))


def fill_following(
    tier: Tier,
    look: Callable[[], Iterable[Wanted]],
    is_over: Callable[[], bool],
    *,
    limit_bps: float | Callable[[], float],
    ready: Callable[[], None] | None = None,
    journal: Journal | None = None,
) -> Copied:
    """Copies what `look` tells, round after round, until `is_over` says that nothing more comes.

    A file that a job has just read is in memory: copying it asks little of the slow tier.
    limit_bps: a function is asked for it in each round.  ready is called once there is a map, which
    programs that are started then have replaced under them as copies come.  Otherwise as `fill`.
    """
    first_bps = LEAST_BPS if callable(limit_bps) else limit_bps
    place, pace = _begun(tier, first_bps, journal)
    with place.locked():
        write_map(place, place.entries().values())
    if ready is not None:
        ready()
    total = Copied(0, 0, 0, 0, {}, (), 0.0)
    waiting: list[Wanted] = []
    begun_s = time.monotonic()
    while True:
        ended = is_over()
        looked_s = time.monotonic()
        waiting += look()
        if callable(limit_bps):
            pace.limit_bps = max(LEAST_BPS, limit_bps())
        if waiting:
            chosen, notes = _room_made(place, waiting)
            waiting = []
            found = copy(tier, chosen, pace=pace, threads=THREADS)
            total = summed([total, replace(found, notes=(*found.notes, *notes))])
        pace.rest()
        if ended:
            return replace(total, seconds=time.monotonic() - begun_s)
        # The manifest is read in each round: the more it holds, the fewer rounds.
        known_s = _known_s(place)
        time.sleep(max(LOOKED_EVERY_S, REST * known_s, looked_s - time.monotonic()))


def _known_s(place: Place) -> float:
    """What reading the manifest takes."""
    begun_s = time.monotonic()
    place.entries()
    return time.monotonic() - begun_s


def _begun(tier: Tier, limit_bps: float, journal: Journal | None) -> tuple[Place, _Breathing]:
    if limit_bps < LEAST_BPS:
        raise TierError(f"a limit of {limit_bps:,.0f} B/s fills no tier; give 1MB/s or more")
    place = Place(tier)
    place.make()
    return place, _Breathing(limit_bps, journal)


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
    choice = _most_gain(gain, size, len(fresh), room + int(stored_bytes(kept_bytes).sum()))
    is_kept = choice[len(fresh) :]
    gone = [entry for entry, stays in zip(held, is_kept.tolist(), strict=True) if not stays]
    left = {one.path for one, goes in zip(fresh, choice.tolist(), strict=False) if not goes}
    if gone:
        drop(place, gone)
    notes = [
        f"{count(len(gone), 'staged file')} gave way to what is worth more, "
        f"{count(len(left), 'file')} left out: {place.tier.name} holds no more"
    ]
    return [one for one in wanted if one.path not in left], notes


def _most_gain(gain: Array, size: Array, n_fresh: int, room: int) -> Array:
    """What stays or comes, of the fresh and then the held.  Where no gain decides (of a folder none
    is known) what is held stays, and what is wanted comes as far as there is room."""
    is_chosen: Array = best(gain, size, room).is_chosen
    left = np.flatnonzero(~is_chosen)
    left = left[np.argsort(left < n_fresh, kind="stable")]
    is_chosen[filled(left, size, room - int(size[is_chosen].sum()))] = True
    return is_chosen


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
