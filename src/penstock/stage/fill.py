"""Stage files while the job reads: opens get each copy as soon as the copy is complete.

Knows tiers and wanted files; starts no process.  A rate limits the filling's share of the slow
tier; staged files of less worth give way to files of more worth.  Every few seconds the filling
pauses and notes the times: the job's reads during the pauses, compared with reads beside the
copying, show whether the filling harms the job.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TierError, TierFull
from penstock.places import tiers
from penstock.places.registry import Tier
from penstock.safe import checksums, drafts
from penstock.stage.choose import best, filled
from penstock.stage.copy import Copied, copy, summed
from penstock.stage.held import drop, taken_bytes, useless
from penstock.stage.manifest import Identity, StagedCopy, TierPlace, stored_bytes, write_map
from penstock.stage.source import Kinds, WantedFile
from penstock.stage.today import now_of
from penstock.stage.work import NO_ROOM, CopyPace, Progress
from penstock.words import count

__all__ = ["LEAST_BPS", "FillStopped", "Journal", "fill", "fill_following"]

Array = NDArray[Any]

ATTEMPTS = 3  # to make room for a round while others fill the tier too
THREADS = 2  # more threads would take the slow tier's attention from the job
LEAST_BPS = 1_000_000  # less fills no tier before the job is over
KEPT_FREE_BYTES = 64 << 20
# Long enough for hundreds of reads; of varying length against a rhythm of the job.
COPYING_S, PAUSE_S = (1.0, 3.0), (0.8, 1.6)
LOOKED_EVERY_S = 0.5
MOST_WINDOWS = 100_000  # of a journal: three days of filling
UNTOLD = 0.01  # of a journal, lost when the filling is killed: a journal of days writes half a GB
REST = 10.0  # a round of looking and mapping takes a tenth of a CPU at most


class FillStopped(KeyboardInterrupt):
    """A filling stopped early, for example at the end of the job.

    copied, copied_bytes: since the start.  left: wanted files without a copy.  notes: remarks for
    the user.
    """

    def __init__(
        self, copied: int, copied_bytes: int, left: int, notes: tuple[str, ...] = ()
    ) -> None:
        super().__init__()
        self.copied, self.copied_bytes, self.left = copied, copied_bytes, left
        self.notes = notes


@dataclass(slots=True)
class Journal:
    """The times of copying and of pauses of a filling, as RUN/fill.json.

    The file is written as a whole, less often as it grows.  windows: start, end (ns since 1970),
    bytes, whether the filling copied.  is_whole: the filling has ended and every window is listed;
    a killed filling lacks the last windows, at most a hundredth.
    """

    path: Path
    tier: str
    limit_bps: float
    windows: list[tuple[int, int, int, bool]] = field(default_factory=list)
    _written: int = 0

    def add(self, from_ns: int, to_ns: int, n_bytes: int, is_copying: bool) -> None:
        """Add a finished window.  A failed write is ignored: the filling goes on."""
        if to_ns <= from_ns or len(self.windows) >= MOST_WINDOWS:
            return
        self.windows.append((from_ns, to_ns, n_bytes, is_copying))
        if len(self.windows) > self._written * (1 + UNTOLD):
            self._written = len(self.windows)
            self._write(is_whole=False)

    def end(self) -> None:
        """Write all windows to the file; the filling is over."""
        self._write(is_whole=len(self.windows) < MOST_WINDOWS)

    def _write(self, is_whole: bool) -> None:
        facts = {"version": 1, "tier": self.tier, "limit_bps": self.limit_bps, "is_whole": is_whole}
        with suppress(OSError):
            text = checksums.sealed_json({**facts, "windows": self.windows})
            drafts.write_in_run(self.path, text)


class _Breathing(CopyPace):
    """A rate limit with pauses, noted in the journal."""

    def __init__(self, limit_bps: float, journal: Journal | None, seed: int = 0) -> None:
        super().__init__(limit_bps)
        self._journal = journal
        self._turn = threading.Lock()
        self._chance = random.Random(seed)
        self._is_copying = False
        self._from_ns = self._until_ns = time.time_ns()  # an empty pause, ended by the first wait
        self._moved_bytes = 0

    def wait(self, n_bytes: int) -> None:
        if self._journal is not None:
            with self._turn:  # during a pause every thread waits
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
        """Begin a pause of any length: no file is to be copied for now."""
        if self._journal is not None:
            with self._turn:
                now_ns = time.time_ns()
                if self._is_copying:
                    self._change(now_ns)
                self._until_ns = now_ns

    def end(self) -> None:
        """Note the last window, complete or not.  Nothing is copied after the call."""
        if self._journal is not None:
            with self._turn:
                self._change(time.time_ns())
                self._journal.end()

    def _change(self, now_ns: int) -> None:
        assert self._journal is not None
        self._journal.add(self._from_ns, now_ns, self._moved_bytes, self._is_copying)
        self._is_copying = not self._is_copying
        s = self._chance.uniform(*(COPYING_S if self._is_copying else PAUSE_S))
        self._from_ns, self._until_ns, self._moved_bytes = now_ns, now_ns + int(s * 1e9), 0


def fill(
    tier: Tier,
    wanted: Iterable[WantedFile],
    *,
    limit_bps: float,
    progress: Progress | None = None,
    ready: Callable[[], None] | None = None,
    journal: Journal | None = None,
) -> Copied:
    """Copy wanted files in the given order, at most limit_bps bytes per second.

    journal: notes the copying and adds short pauses.  ready: is called once the map is in place; a
    program started later gets each copy as soon as the copy is complete.  Of staged and wanted
    files, the tier keeps the files with the most gain; other files are evicted or skipped.  Raises
    TierError; FillStopped.
    """
    place, pace = _begun(tier, limit_bps, journal)
    files = list(wanted)
    room = _Room(place)
    with _counted(place, lambda: files, room, pace):
        copied = room.copied(files, pace, progress, ready)
    return replace(copied, notes=(*copied.notes, *room.notes()))


def fill_following(
    tier: Tier,
    look: Callable[[], Iterable[WantedFile]],
    is_over: Callable[[], bool],
    *,
    limit_bps: float | Callable[[], float],
    ready: Callable[[], None] | None = None,
    journal: Journal | None = None,
) -> Copied:
    """Copy the files that `look` returns, round after round, until `is_over` returns True.

    A file a job has just read is in memory: copying the file costs the slow tier little.
    limit_bps: a function is called in each round.  ready: is called once there is a map; later
    rounds replace the map under running programs.  Otherwise as `fill`.
    """
    first_bps = LEAST_BPS if callable(limit_bps) else limit_bps
    place, pace = _begun(tier, first_bps, journal)
    files: list[WantedFile] = []

    def all_told() -> list[WantedFile]:
        files.extend(look())  # files read since the last round count as left too
        return files

    room = _Room(place)
    with _counted(place, all_told, room, pace):
        with place.locked():
            write_map(place, place.entries().values())
        if ready is not None:
            ready()
        total = Copied(0, 0, 0, 0, {}, (), 0.0)
        begun_s = time.monotonic()
        while True:
            ended = is_over()
            waiting = list(look())
            files += waiting
            if callable(limit_bps):
                pace.limit_bps = max(LEAST_BPS, limit_bps())
            if waiting:
                total = summed([total, room.copied(waiting, pace)])
            pace.rest()
            if ended:
                notes = (*total.notes, *room.notes())
                return replace(total, notes=notes, seconds=time.monotonic() - begun_s)
            # Every round reads the manifest: the larger the manifest, the fewer rounds.
            known_s = _known_s(place)
            time.sleep(max(LOOKED_EVERY_S, REST * known_s))


@contextmanager
def _counted(
    place: TierPlace, wanted: Callable[[], list[WantedFile]], room: _Room, pace: _Breathing
) -> Iterator[None]:
    """Turn KeyboardInterrupt into FillStopped with counts from the manifest; always end the
    journal."""
    before = place.entries()
    try:
        try:
            yield
        finally:
            pace.end()
    except KeyboardInterrupt as stopped:
        after = place.entries()
        fresh = [entry for entry in after.values() if _is_new(entry, before)]
        held = {name for entry in after.values() for name in (entry.source, *entry.names)}
        ours = f"{place.tier.path}/"
        left = {file.path for file in wanted() if not file.path.startswith(ours)} - held
        size = sum(entry.identity.size_bytes for entry in fresh)
        raise FillStopped(len(fresh), size, len(left), tuple(room.notes())) from stopped


def _is_new(entry: StagedCopy, before: Mapping[str, StagedCopy]) -> bool:
    earlier = before.get(entry.copy)
    return earlier is None or earlier.identity != entry.identity


def _known_s(place: TierPlace) -> float:
    """Return the seconds for reading the manifest."""
    begun_s = time.monotonic()
    place.entries()
    return time.monotonic() - begun_s


def _begun(tier: Tier, limit_bps: float, journal: Journal | None) -> tuple[TierPlace, _Breathing]:
    if limit_bps < LEAST_BPS:
        raise TierError(f"a limit of {limit_bps:,.0f} B/s fills no tier; give 1MB/s or more")
    place = TierPlace(tier)
    place.make()
    return place, _Breathing(limit_bps, journal)


class _Room:
    """Makes room on a tier, round after round, and counts evicted and skipped files."""

    def __init__(self, place: TierPlace) -> None:
        self._place = place
        self._gone = 0
        self._left: set[str] = set()  # by their first names
        self._has_swept = False

    def copied(
        self,
        wanted: list[WantedFile],
        pace: CopyPace,
        progress: Progress | None = None,
        ready: Callable[[], None] | None = None,
    ) -> Copied:
        """Copy the files that fit.

        Other stagings may take the room in between: the call then makes room again, up to ATTEMPTS
        times, and skips the remaining files.
        """
        parts: list[Copied] = []
        for _ in range(ATTEMPTS):
            with suppress(TierFull):
                parts.append(self._copy(self.made_for(wanted), pace, progress, ready))
                if NO_ROOM not in parts[-1].skipped:
                    return _in_all(parts)
        files, _ = _apart(self._place, self._place.entries(), wanted)
        self._left |= {file.names[0] for file in files if file.size_bytes and not file.is_held}
        return _in_all(parts or [self._copy([], pace, progress, ready)])

    def _copy(
        self,
        chosen: list[WantedFile],
        pace: CopyPace,
        progress: Progress | None,
        ready: Callable[[], None] | None,
    ) -> Copied:
        return copy(
            self._place.tier,
            chosen,
            pace=pace,
            threads=THREADS,
            progress=progress,
            is_live=True,
            ready=ready,
        )

    def made_for(self, wanted: list[WantedFile]) -> list[WantedFile]:
        """Evict copies of less worth than wanted files; return the files that fit."""
        place = self._place
        files, held = _apart(place, place.entries(), wanted)
        fresh = [file for file in files if not file.is_held]
        self._left -= {file.names[0] for file in files}
        fresh_bytes = stored_bytes(np.array([file.size_bytes for file in fresh], np.int64))
        if int(fresh_bytes.sum()) <= _free_bytes(place):
            return wanted
        held = self._without_stale(self._without_earlier(held, fresh))
        free = _free_bytes(place)
        held_bytes = stored_bytes(np.array([copy.identity.size_bytes for copy in held], np.int64))
        choice = _most_gain(
            np.array([file.gain_s for file in fresh] + [copy.gain_s for copy in held]),
            np.concatenate([fresh_bytes, held_bytes]),
            len(fresh),
            free + int(held_bytes.sum()),
        ).tolist()
        self._evict(held, choice[len(fresh) :])
        left = [file for file, fits in zip(fresh, choice, strict=False) if not fits]
        self._left |= {file.names[0] for file in left}
        left_names = {name for file in left for name in file.names}
        return [want for want in wanted if want.path not in left_names]

    def _evict(self, held: list[StagedCopy], is_kept: list[bool]) -> None:
        """Remove the copies not kept by the choice."""
        gone = [copy for copy, stays in zip(held, is_kept, strict=True) if not stays]
        if gone:
            self._gone += len(drop(self._place, gone))

    def _without_earlier(self, held: list[StagedCopy], fresh: list[_File]) -> list[StagedCopy]:
        """Remove copies of earlier versions of wanted files: new copies replace the earlier
        copies."""
        earlier = {file.before for file in fresh}
        replaced = [copy for copy in held if copy.copy in earlier]
        if replaced:
            drop(self._place, replaced)
        return [copy for copy in held if copy.copy not in earlier]

    def _without_stale(self, held: list[StagedCopy]) -> list[StagedCopy]:
        """Remove copies no open can use; return the other copies.

        The slow tier is asked only once about source files: copies that become stale later give way
        by worth, as all other copies.
        """
        if self._has_swept:
            return held
        self._has_swept = True
        stale = useless(self._place, held)
        if stale:
            drop(self._place, stale)
        away = {entry.copy for entry in stale}
        return [entry for entry in held if entry.copy not in away]

    def notes(self) -> list[str]:
        """Return a single remark for all rounds if the tier could not hold every file."""
        if not self._gone and not self._left:
            return []
        return [
            f"{count(self._gone, 'staged file')} gave way to what is worth more, "
            f"{count(len(self._left), 'file')} left out: {self._place.tier.name} holds no more"
        ]


def _in_all(attempts: list[Copied]) -> Copied:
    """Return the result of several attempts at the same files: copies of an attempt exist already
    in the next attempt."""
    first, last = attempts[0], attempts[-1]
    skipped = {why: number for why, number in last.skipped.items() if why != NO_ROOM}
    return replace(
        summed(attempts), was_there=first.was_there, elsewhere=first.elsewhere, skipped=skipped
    )


def _most_gain(gain: Array, size: Array, n_fresh: int, room: int) -> Array:
    """Return a mark for each file, fresh files first, then held files: True if the file stays on or
    goes to the tier.

    Where no gain decides (files of a folder have none), held copies stay, and wanted files come as
    far as there is room.
    """
    is_chosen: Array = best(gain, size, room).is_chosen
    left = np.flatnonzero(~is_chosen)
    left = left[np.argsort(left < n_fresh, kind="stable")]
    is_chosen[filled(left, size, room - int(size[is_chosen].sum()))] = True
    return is_chosen


@dataclass(slots=True)
class _File:
    """A wanted file with all names of the file.  is_held: a current copy exists.  before: the copy
    of an earlier version, or ""."""

    size_bytes: int
    is_held: bool
    before: str = ""
    gain_s: float = 0.0
    names: list[str] = field(default_factory=list)


def _apart(
    place: TierPlace, staged: Mapping[str, StagedCopy], wanted: list[WantedFile]
) -> tuple[list[_File], list[StagedCopy]]:
    """Return the current wanted files, and the copies of other files.

    A missing file, or a file on the tier already, takes no room: the copying reports the file.
    """
    copies = _CopiesOf(staged.values())
    ours = f"{place.tier.path}/"
    kinds = Kinds()
    files: dict[tuple[Identity, str] | str, _File] = {}
    used: set[str] = set()
    for want, row in zip(wanted, now_of([want.path for want in wanted]), strict=True):
        identity = Identity(*row.item())
        is_file = identity.size_bytes >= 0 and not want.path.startswith(ours)
        name = kinds.one_name(identity.dev, want.path) if is_file else ""
        copy, before = copies.of(want.path, name, identity)
        key = (identity, name) if is_file else want.path
        if key not in files:
            size_bytes = identity.size_bytes if is_file else 0
            files[key] = _File(size_bytes, copy is not None, before if is_file else "")
        files[key].gain_s += want.gain_s
        files[key].names.append(want.path)
        if copy is not None:
            used.add(copy.copy)
    return list(files.values()), [copy for copy in staged.values() if copy.copy not in used]


class _CopiesOf:
    """Copies by the names and by the identities of their sources."""

    def __init__(self, copies: Collection[StagedCopy]) -> None:
        self._by_name = {name: copy for copy in copies for name in (copy.source, *copy.names)}
        # An inode number made up by the file system at each mount may belong to another file by
        # now.
        self._by_identity = {
            copy.identity: copy for copy in copies if copy.is_ino_kept and not copy.is_url
        }

    def of(self, path: str, name: str, identity: Identity) -> tuple[StagedCopy | None, str]:
        """Return the current copy of a file, and the name of a copy of an earlier version, or "".

        name: the name under which all links of the file are staged.
        """
        copy = self._by_name.get(path) or self._by_name.get(name)
        if copy is not None and identity.is_same(copy.identity, copy.is_ino_kept):
            return copy, ""
        before = copy.copy if copy is not None and copy.source == path else ""
        return self._by_identity.get(identity), before


def _free_bytes(place: TierPlace) -> int:
    free = tiers.free_bytes(place.tier.path) - KEPT_FREE_BYTES
    if place.tier.capacity_bytes is None:
        return max(0, free)
    held = taken_bytes(place.entries().values())
    return max(0, min(free, place.tier.capacity_bytes - held))
