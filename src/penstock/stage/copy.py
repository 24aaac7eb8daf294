"""Copy files to a tier: many at once, with an optional rate limit, as far as there is room.

Knows sources and places; knows no run and chooses nothing.  `part` makes a single copy; `held`
knows the existing copies.
"""

import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from penstock.errors import TierError, TierFull
from penstock.places import tiers
from penstock.places.registry import Tier
from penstock.stage import manifest
from penstock.stage.held import drop, dropped, taken_bytes, useless, why_bad
from penstock.stage.manifest import (
    Identity,
    Map,
    StagedCopy,
    TakenRoom,
    TierPlace,
    hashes,
    stored_bytes,
    write_map,
)
from penstock.stage.part import Tasks, sweep
from penstock.stage.source import SourceFile, WantedFile, find, find_in, found_again, touched_ns
from penstock.stage.work import FULL, CopyPace, Progress, Work, run_all
from penstock.words import show

if TYPE_CHECKING:
    from penstock.places.stores import Store

__all__ = ["FAR_THREADS", "THREADS", "Copied", "copy", "summed"]

# A disk gains nothing from 16. A request to a server or FUSE takes milliseconds, and a small file
# needs three requests: 32 threads hide the delay.
THREADS, FAR_THREADS = 8, 32


@dataclass(frozen=True, slots=True)
class Copied:
    """The result of a copying.

    skipped: number of files by reason.  was_there: unchanged copies of an earlier copying.
    elsewhere: files another process was copying.  notes: further remarks for the user.
    """

    copied: int
    copied_bytes: int
    was_there: int
    elsewhere: int
    skipped: dict[str, int]
    notes: tuple[str, ...]
    seconds: float


def copy(
    tier: Tier,
    wanted: Iterable[WantedFile],
    *,
    store: "Store | None" = None,
    rank: int = 0,
    world_size: int = 1,
    limit_bps: float | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    pace: CopyPace | None = None,
    is_live: bool = False,
    ready: Callable[[], None] | None = None,
    is_frozen: bool = False,
) -> Copied:
    """Copy this rank's share of the files to a tier, and put the tier's map in place.

    store: copy all files of the store instead (s3://, gs://, sftp:// and other URLs of fsspec);
    programs find the copies under paths on the tier, as no program can open a URL.  threads: None
    means THREADS, or FAR_THREADS where sources are on a server's or a FUSE file system.  Existing
    unchanged copies stay.  progress: is called with the bytes done and the total.  is_live: copy in
    the given order, with a map programs may use from the beginning (`ready` is called then): opens
    get each copy once it is complete, and a file without room is skipped.  is_frozen: the caller
    promises unchanged sources; see penstock.stage.frozen.  Raises TierError: the tier is missing,
    read-only, too small, or became full; copies made until then are valid and in the map.
    """
    if not 0 <= rank < world_size:
        raise TierError(f"rank {rank} of {world_size}: ranks count from 0 to one less")
    begun_s, place = time.monotonic(), TierPlace(tier)
    place.make()
    sources, skipped = find(wanted, place) if store is None else find_in(store, place)
    mine = _share(sources, rank, world_size)
    missing, there = _missing(place, mine)
    ours = {id(source) for source in mine}
    sweep(place, [*missing, *(source for source in sources if id(source) not in ours)])
    _clear_way(place, missing)
    _check_room(place, missing, sources)
    # Every rank finds the same reasons to skip; rank 0 reports them.
    work = _work(place, missing, pace or CopyPace(limit_bps), progress, {} if rank else skipped)
    reserve = _Reserve(place, len(missing))
    work.is_ordered = work.goes_on = is_live
    live = _Live(place, missing) if is_live else None
    if live is not None:
        work.now = live.serve
    if ready is not None:
        ready()
    if threads is None:
        is_far = any(source.store is None and source.is_far for source in missing)
        threads = FAR_THREADS if is_far else THREADS
    try:
        _copy_all(work, missing, threads)
    except OSError as error:
        raise _told(work, error) from error
    finally:
        reserve.give_back()
        try:
            _publish(work, there, live, mine if is_frozen else ())
        finally:
            if live is not None:
                live.close()
    return Copied(
        work.copied,
        work.copied_bytes,
        len(mine) - len(missing),
        work.elsewhere,
        work.skipped,
        tuple(_notes(place, mine)),
        time.monotonic() - begun_s,
    )


def summed(parts: list[Copied]) -> Copied:
    """Add the results of several ranks or rounds; for the seconds return the longest."""
    skipped: dict[str, int] = {}
    for part in parts:
        for why, number in part.skipped.items():
            skipped[why] = skipped.get(why, 0) + number
    return Copied(
        sum(part.copied for part in parts),
        sum(part.copied_bytes for part in parts),
        sum(part.was_there for part in parts),
        sum(part.elsewhere for part in parts),
        skipped,
        tuple(dict.fromkeys(note for part in parts for note in part.notes)),
        max(part.seconds for part in parts),
    )


def _work(
    place: TierPlace,
    missing: Sequence[SourceFile],
    pace: CopyPace,
    progress: Progress | None,
    skipped: dict[str, int],
) -> Work:
    total = sum(source.identity.size_bytes for source in missing)
    has_limit = bool(missing) and place.tier.capacity_bytes is not None
    taken = TakenRoom(place) if has_limit else None
    return Work(place, pace, total, progress, skipped=skipped, taken=taken)


class _Live:
    """The tier's map during the copying: names every copy from the start, and serves each complete
    copy."""

    def __init__(self, place: TierPlace, missing: Sequence[SourceFile]) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._filling = place.begin_filling()
        coming = [_coming(source) for source in missing]
        pending = frozenset(entry.copy for entry in coming)
        with place.locked():
            entries = place.entries()  # under the lock: entries of another staging stay in the map
            write_map(place, [*entries.values(), *coming], pending=pending, fresh=pending)
            self._map = Map(place.map)
        self._others = {copy: entry for copy, entry in entries.items() if copy not in pending}
        self._coming, self._is_ours = len(coming), True

    def serve(self, entry: StagedCopy) -> None:
        with self._lock:
            if self._map.is_retired():  # another staging has put a newer map in place
                self._map.close()
                self._map = Map(self._place.map)
                self._is_ours = False
            self._map.mark(entry, "is_staged", 1, entry.identity)

    def is_all(self, entries: Mapping[str, StagedCopy], fresh: Collection[str]) -> bool:
        """Return True if a map of these entries, written now, would equal the current map.

        The current map then stays: a program keeps every opened map until exit, and a filling of
        many rounds would write two maps in each round.  fresh: the served copies.  Call with the
        lock held.
        """
        is_other = self._map.is_retired() or not self._is_ours
        if len(fresh) < self._coming or is_other or self._map.dropped():
            return False
        # An entry of another staging is in no map if a kill came before the staging wrote a map.
        others = {copy: entry for copy, entry in entries.items() if copy not in fresh}
        if others != self._others or len(others) + len(fresh) != len(entries):
            return False
        try:
            self._map.flush()
            os.utime(self._place.map)  # newer than the manifest, so current_map accepts the map
        except OSError:
            return False
        return True

    def close(self) -> None:
        self._map.close()
        os.close(self._filling)


def _coming(source: SourceFile) -> StagedCopy:
    return StagedCopy(
        source.path,
        source.copy,
        source.identity,
        "",
        source.names,
        source.gain_s,
        source.is_ino_kept,
    )


class _Reserve:
    """Room for the map and the manifest, kept for a full tier: a file without a name, freed at the
    end of the process."""

    def __init__(self, place: TierPlace, count: int) -> None:
        size_bytes = sum(_size_of(path) for path in (place.manifest, place.map))
        self._file: IO[bytes] | None = None
        try:
            self._file = tempfile.TemporaryFile(dir=place.own)  # noqa: SIM115 - kept open
            os.posix_fallocate(self._file.fileno(), 0, size_bytes + 65536 + 1024 * count)
        except OSError:
            self.give_back()  # full already: the copying reports a full tier

    def give_back(self) -> None:
        if self._file is not None:
            self._file.close()


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _share(sources: Sequence[SourceFile], rank: int, world_size: int) -> list[SourceFile]:
    """Return the sources for the rank to copy.  The path alone decides, so ranks with different
    lists of files still agree."""
    if world_size == 1:
        return list(sources)
    numbers = hashes([os.fsencode(source.path) for source in sources]) >> 17
    return [
        source
        for source, number in zip(sources, numbers.tolist(), strict=True)
        if number % world_size == rank
    ]


def _missing(
    place: TierPlace, sources: Sequence[SourceFile]
) -> tuple[list[SourceFile], list[StagedCopy]]:
    """Return the sources without a valid copy, and entries for valid copies with more names or
    gain."""
    # Look at the files first, then at the manifest: see Work.tell.
    stamps = [_stamp(place, source) for source in sources]
    entries = place.entries()
    away = dropped(place)
    same = _by_identity(entries.values())
    missing, more = [], []
    for source, stamp in zip(sources, stamps, strict=True):
        # The copy may have the source's own name, or the name of a hard link to the file.
        own = entries.get(source.copy)
        if own is not None and own.source != source.path:
            own = None
        twin = same.get(source.identity) if source.store is None else None
        if twin is not None and not _is_one_file(twin, source):
            twin = None
        entry = next(
            (candidate for candidate in (own, twin) if _is_copy(place, candidate, source, away)),
            None,
        )
        if entry is None:
            missing.append(replace(source, before=stamp) if stamp else source)
            continue
        names = {source.path, *source.names} - {entry.source}
        if not names <= set(entry.names) or source.gain_s not in (0.0, entry.gain_s):
            names |= set(entry.names)
            more.append(
                replace(entry, names=tuple(sorted(names)), gain_s=source.gain_s or entry.gain_s)
            )
    return missing, more


def _by_identity(entries: Iterable[StagedCopy]) -> dict[Identity, StagedCopy]:
    """Return the entries of files by identity; files of a store may share one identity."""
    return {entry.identity: entry for entry in entries if not entry.is_url}


def _is_one_file(entry: StagedCopy, source: SourceFile) -> bool:
    """Return True if an entry with the source's identity belongs to the source's file.

    Where inode numbers are made up at each mount, the number may have been another file's: both
    names must then lead to one file with several links.
    """
    if source.is_ino_kept or not source.is_told_apart:
        return source.is_ino_kept
    try:
        status = os.stat(entry.source)  # noqa: PTH116
    except OSError:
        return False
    return status.st_nlink > 1 and Identity.of(status) == source.identity


def _is_copy(
    place: TierPlace, entry: StagedCopy | None, source: SourceFile, away: set[bytes]
) -> bool:
    """Return True if the entry is a valid copy of the source's current state, not dropped by any
    program."""
    return (
        entry is not None
        and entry.identity.is_same(source.identity, source.is_ino_kept)
        and not why_bad(place, entry)
        and away.isdisjoint(map(os.fsencode, (source.path, *source.names, entry.source)))
    )


def _stamp(place: TierPlace, source: SourceFile) -> tuple[int, int] | None:
    try:
        status = os.lstat(f"{place.copies}/{source.copy}")
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _clear_way(place: TierPlace, missing: Sequence[SourceFile]) -> None:
    """Remove copies whose path is needed as a folder now, or whose folder is needed as a file."""
    entries = place.entries()
    if not entries or not missing:
        return
    above: set[str] = set()
    folders: set[str] = set()
    for source in missing:
        folder = source.copy.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            above |= {folder} & entries.keys()
            folder = folder.rpartition("/")[0]
    files = [
        f"{source.copy}/"
        for source in missing
        if source.before and os.path.isdir(f"{place.copies}/{source.copy}")  # noqa: PTH112
    ]
    below = {copy for copy in entries for file in files if copy.startswith(file)}
    if above or below:
        drop(place, [entries[copy] for copy in sorted(above | below)])


def _check_room(
    place: TierPlace, missing: Sequence[SourceFile], sources: Sequence[SourceFile]
) -> None:
    """Remove copies no open can use if the missing files of all ranks do not fit.

    missing: files of this rank.  sources: files of all ranks.  Raises TierFull: the files do not
    fit after the removal either.
    """
    if not missing:
        return
    entries = place.entries()
    coming = {source.copy: source for source in missing}
    same = _by_identity(entries.values())
    for wanted in sources:
        entry = entries.get(wanted.copy)
        is_there = entry is not None and entry.identity.is_same(wanted.identity, wanted.is_ino_kept)
        if not is_there and wanted.identity not in same:
            coming.setdefault(wanted.copy, wanted)
    again = coming.keys()  # new copies replace the current copies
    needed = sum(stored_bytes(source.identity.size_bytes) for source in coming.values())
    if not _too_much(place, entries, (), needed):
        return
    # All at once, not with each file: the first file may need the room of the last copy.
    if was := [entries[copy] for copy in sorted(again & entries.keys())]:
        drop(place, was)
        entries = place.entries()
    if not _too_much(place, entries, again, needed):
        return
    if out := useless(place, entries.values()):
        drop(place, out)
        entries = place.entries()
    if why := _too_much(place, entries, again, needed):
        tier = place.tier.name
        raise TierFull(
            f"{tier}: {show(needed, 'B')} are to be copied, and {why}; penstock stage plan RUN "
            f"--to {tier} chooses what fits, penstock stage evict {tier} makes room",
            str(place.tier.path),
            needed,
        )


def _too_much(
    place: TierPlace, entries: Mapping[str, StagedCopy], again: Collection[str], needed: int
) -> str:
    """Return why the needed bytes do not fit, or ""."""
    tier = place.tier
    held = taken_bytes(entry for copy, entry in entries.items() if copy not in again)
    if tier.capacity_bytes is not None and held + needed > tier.capacity_bytes:
        return f"of its {show(tier.capacity_bytes, 'B')} {show(held, 'B')} are taken"
    free = tiers.free_bytes(tier.path)
    return f"{show(free, 'B')} are free on {tier.path}" if needed > free else ""


def _copy_all(work: Work, missing: Sequence[SourceFile], threads: int) -> None:
    """Copy first the files unchanged for a tick of the file system's clock, then the younger
    files."""
    now_ns, seen_s = time.time_ns(), time.monotonic()
    young = [wanted for wanted in missing if now_ns - touched_ns(wanted) < wanted.tick_ns]
    if not young:
        run_all(work, Tasks(work, missing).take, threads)
        return
    names = {wanted.path for wanted in young}
    old = [wanted for wanted in missing if wanted.path not in names]
    run_all(work, Tasks(work, old).take, threads)
    ready = []
    # Counted from the look, not from the file's times: a server's clock may be ahead.
    time.sleep(
        max(0.0, max(wanted.tick_ns for wanted in young) / 1e9 - (time.monotonic() - seen_s))
    )
    for source in young:
        again = (
            found_again(source) if source.identity.size_bytes <= manifest.CHUNK_BYTES else source
        )
        if again is None or again.identity != source.identity:
            work.skip("still being written" if again else "gone", source)
        else:
            ready.append(source)
    work.is_over = False
    run_all(work, Tasks(work, ready).take, threads)


def _told(work: Work, error: OSError) -> TierError:
    tier = work.place.tier
    if error.errno in FULL:
        return TierError(
            f"{tier.name}: full after {work.copied:,} files, {show(work.copied_bytes, 'B')} "
            f"({error.strerror}); these are staged and valid, "
            f"penstock stage evict {tier.name} makes room"
        )
    where = error.filename or tier.path
    return TierError(
        f"{os.fsdecode(where)}: {error.strerror}; {work.copied:,} files were copied and are valid"
    )


def _publish(
    work: Work, more: Sequence[StagedCopy], live: _Live | None, frozen: Sequence[SourceFile]
) -> None:
    """Make names durable, write the manifest, put the map in place.  live: the map in use.

    frozen: sources that the user promises not to change.
    """
    place = work.place
    if work.taken is not None:
        work.taken.close()
    for folder in work.folders:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    with place.locked():
        entries = place.entries()
        # An eviction or another copying may have changed entries since: the later change counts.
        more = [
            entry
            for entry in more
            if entry.copy in entries and entry.is_copy_of(entries[entry.copy])
        ]
        place.append_locked(more)
        for entry in more:
            del entries[entry.copy]  # the last entry counts
            entries[entry.copy] = entry
        promised = _promised(entries.values(), frozen)
        place.append_locked(promised)
        entries.update((entry.copy, entry) for entry in promised)
        if live is None or more or promised or not live.is_all(entries, work.fresh):
            write_map(place, entries.values(), fresh=frozenset(work.fresh))
        place.compact(entries)


def _promised(entries: Iterable[StagedCopy], frozen: Sequence[SourceFile]) -> Sequence[StagedCopy]:
    """Return entries of the sources without a mark as frozen, marked."""
    paths = {source.path for source in frozen if source.store is None}
    if not paths:
        return ()
    return [
        replace(entry, is_frozen=True)
        for entry in entries
        if not entry.is_frozen and not paths.isdisjoint((entry.source, *entry.names))
    ]


def _notes(place: TierPlace, sources: Sequence[SourceFile]) -> Iterator[str]:
    if any(source.store is not None for source in sources):
        yield f"the copies lie below {place.copies / 'url'}: give the program that path"
    device = tiers.device_of(place.tier.path)
    same = sum(source.identity.dev == device for source in sources)
    if same:
        yield (
            f"{same:,} of {len(sources):,} files lie on the same device as tier "
            f"{place.tier.name}: reading their copies gains nothing"
        )
