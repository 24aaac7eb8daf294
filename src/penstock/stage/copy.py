"""Copies files to a tier: many at once, at most at a given rate, as far as there is room.

Knows sources and places; knows no run and chooses nothing.  What one copy is, `part` knows; what is
there already, `held`.
"""

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from penstock import tiers
from penstock.errors import TierError
from penstock.registry import Tier
from penstock.stage import manifest
from penstock.stage.held import dropped, stored_bytes, why_bad
from penstock.stage.manifest import Entry, Map, Place, hashes, write_map
from penstock.stage.part import Tasks, sweep
from penstock.stage.source import Source, Wanted, find, find_in, found_again, touched_ns
from penstock.stage.work import Pace, Progress, Work, run_all
from penstock.words import show

if TYPE_CHECKING:
    from penstock.stores import Store

__all__ = ["FAR_THREADS", "THREADS", "Copied", "copy", "summed"]

# A disk gets no more from 16.  Of a server or FUSE each request takes milliseconds, and a small
# file three of them: so many at once hide them.
THREADS, FAR_THREADS = 8, 32


@dataclass(frozen=True, slots=True)
class Copied:
    """What came of a copying.  skipped: reasons and how many files each; was_there: of an earlier
    copying, unchanged; elsewhere: being copied by another process; notes: what else to know."""

    copied: int
    copied_bytes: int
    was_there: int
    elsewhere: int
    skipped: dict[str, int]
    notes: tuple[str, ...]
    seconds: float


def copy(
    tier: Tier,
    wanted: Iterable[Wanted],
    *,
    store: "Store | None" = None,
    rank: int = 0,
    world_size: int = 1,
    limit_bps: float | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    pace: Pace | None = None,
    is_live: bool = False,
    ready: Callable[[], None] | None = None,
) -> Copied:
    """Copies files to a tier, those of this rank's share, and puts its map in place.

    store: copies all that is in it instead (s3://, gs://, sftp:// and other URLs of fsspec); these
    copies are found under their own path on the tier, as programs cannot open a URL.
    threads: None is THREADS, or FAR_THREADS where sources lie on a server's or a FUSE file system.
    What is there already and unchanged stays.  progress is called with bytes done and bytes in all.
    is_live: in the order given, with a map that programs may use from the beginning (`ready` is
    called then): each copy is served as soon as it is there.
    Raises TierError: the tier is missing, read-only, too small for what is wanted, or became full;
    what was copied until then is valid and in the map.
    """
    if not 0 <= rank < world_size:
        raise TierError(f"rank {rank} of {world_size}: ranks count from 0 to one less")
    begun_s = time.monotonic()
    place = Place(tier)
    place.make()
    sources, skipped = find(wanted, place) if store is None else find_in(store, place)
    mine = _share(sources, rank, world_size)
    missing, there = _missing(place, mine)
    ours = {id(source) for source in mine}
    sweep(place, [*missing, *(source for source in sources if id(source) not in ours)])
    _check_room(place, missing, sources)
    total = sum(source.identity.size_bytes for source in missing)
    # What was left out by all ranks alike is told by one.
    work = Work(place, pace or Pace(limit_bps), total, progress, skipped={} if rank else skipped)
    reserve = _Reserve(place, len(missing))
    work.is_ordered = is_live
    live = _Live(place, missing) if is_live else None
    if live is not None:
        work.now = live.serve
    if ready is not None:
        ready()
    if threads is None:
        is_far = any(one.store is None and one.is_far for one in missing)
        threads = FAR_THREADS if is_far else THREADS
    try:
        _copy_all(work, missing, threads)
    except OSError as error:
        raise _told(work, error) from error
    finally:
        if live is not None:
            live.close()
        reserve.give_back()
        _publish(work, there)
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
    """What came of several ranks' parts, or rounds; the longest took as long as all."""
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


class _Live:
    """The tier's map while copies come: it names them all, and serves those that are there."""

    def __init__(self, place: Place, missing: Sequence[Source]) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._filling = place.begin_filling()
        known = place.entries()
        coming = [_coming(source) for source in missing]
        pending = frozenset(entry.copy for entry in coming)
        with place.locked():
            write_map(place, [*known.values(), *coming], pending=pending, fresh=pending)
        self._map = Map(place.map)

    def serve(self, entry: Entry) -> None:
        with self._lock:
            if self._map.is_retired():  # another staging has put its own in place
                self._map.close()
                self._map = Map(self._place.map)
            self._map.mark(entry, "is_staged", 1, entry.identity)

    def close(self) -> None:
        self._map.close()
        os.close(self._filling)


def _coming(source: Source) -> Entry:
    return Entry(
        source.path,
        source.copy,
        source.identity,
        "",
        source.names,
        source.gain_s,
        source.is_ino_kept,
    )


class _Reserve:
    """Room for the map and the manifest, kept for when the tier is full."""

    def __init__(self, place: Place, count: int) -> None:
        self._path = place.own / f".reserve-{os.getpid()}"
        for path in place.own.glob(".reserve-*"):  # of those that were killed
            if not os.path.exists(f"/proc/{path.name.rpartition('-')[2]}"):  # noqa: PTH110
                path.unlink(missing_ok=True)
        known = sum(_size_of(path) for path in (place.manifest, place.map))
        try:
            with open(self._path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, known + 65536 + 1024 * count)
        except OSError:
            self.give_back()  # full already: the copying will say so

    def give_back(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _share(sources: Sequence[Source], rank: int, world_size: int) -> list[Source]:
    """By the path alone, so that ranks which find different files still agree on who copies one."""
    if world_size == 1:
        return list(sources)
    numbers = hashes([os.fsencode(source.path) for source in sources]) >> 17
    return [
        source
        for source, number in zip(sources, numbers.tolist(), strict=True)
        if number % world_size == rank
    ]


def _missing(place: Place, sources: Sequence[Source]) -> tuple[list[Source], list[Entry]]:
    """Those that have no valid copy; and of the others those whose entry has to say more."""
    # First what is there, then what is told of it: see Work.tell.
    stamps = [_stamp(place, source) for source in sources]
    known = place.entries()
    away = dropped(place)
    missing, more = [], []
    for source, stamp in zip(sources, stamps, strict=True):
        entry = known.get(source.copy)
        is_there = (
            entry is not None
            and entry.source == source.path
            and entry.identity.is_same(source.identity, source.is_ino_kept)
            and not why_bad(place, entry)
            and away.isdisjoint(map(os.fsencode, (source.path, *source.names)))
        )
        if not is_there or entry is None:
            missing.append(replace(source, before=stamp) if stamp else source)
        elif not set(source.names) <= set(entry.names) or source.gain_s not in (0.0, entry.gain_s):
            names = tuple(sorted({*entry.names, *source.names}))
            more.append(replace(entry, names=names, gain_s=source.gain_s or entry.gain_s))
    return missing, more


def _stamp(place: Place, source: Source) -> tuple[int, int] | None:
    try:
        status = os.lstat(f"{place.copies}/{source.copy}")
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _check_room(place: Place, missing: Sequence[Source], sources: Sequence[Source]) -> None:
    """Raises TierError: what is missing does not fit, with what other ranks are to copy."""
    tier = place.tier
    known = place.entries()
    again = {source.copy for source in missing}
    others = [one for one in sources if one.copy not in known and one.copy not in again]
    needed = sum(stored_bytes(one.identity.size_bytes) for one in (*missing, *others))
    if not missing:
        return
    held = sum(
        stored_bytes(entry.identity.size_bytes)
        for copy, entry in known.items()
        if copy not in again
    )
    cure = (
        f"penstock stage plan RUN --to {tier.name} chooses what fits, "
        f"penstock stage evict {tier.name} makes room"
    )
    if tier.capacity_bytes is not None and held + needed > tier.capacity_bytes:
        raise TierError(
            f"{tier.name}: {show(needed, 'B')} are to be copied, and of its "
            f"{show(tier.capacity_bytes, 'B')} {show(held, 'B')} are taken; {cure}"
        )
    free = tiers.free_bytes(tier.path)
    if needed > free:
        raise TierError(
            f"{tier.name}: {show(needed, 'B')} are to be copied and "
            f"{show(free, 'B')} are free on {tier.path}; {cure}"
        )


def _copy_all(work: Work, missing: Sequence[Source], threads: int) -> None:
    """First what has been left alone for a tick of its file system's clock, then the young."""
    now_ns, seen_s = time.time_ns(), time.monotonic()
    young = [one for one in missing if now_ns - touched_ns(one) < one.tick_ns]
    if not young:
        run_all(work, Tasks(work, missing).take, threads)
        return
    names = {one.path for one in young}
    old = [one for one in missing if one.path not in names]
    run_all(work, Tasks(work, old).take, threads)
    ready = []
    # From when it was seen, not from what its times say: a server's clock may be ahead.
    time.sleep(max(0.0, max(one.tick_ns for one in young) / 1e9 - (time.monotonic() - seen_s)))
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
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return TierError(
            f"{tier.name}: full after {work.copied:,} files, {show(work.copied_bytes, 'B')} "
            f"({error.strerror}); these are staged and valid, "
            f"penstock stage evict {tier.name} makes room"
        )
    where = error.filename or tier.path
    return TierError(
        f"{os.fsdecode(where)}: {error.strerror}; {work.copied:,} files were copied and are valid"
    )


def _publish(work: Work, more: Sequence[Entry]) -> None:
    """Makes names durable, tells the manifest, puts the map in place."""
    place = work.place
    for folder in work.folders:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    place.append(more)
    with place.locked():
        entries = place.entries()
        write_map(place, entries.values(), fresh=frozenset(work.fresh))
        place.compact(entries)


def _notes(place: Place, sources: Sequence[Source]) -> Iterator[str]:
    if any(source.store is not None for source in sources):
        yield f"the copies lie below {place.copies / 'url'}: give the program that path"
    device = tiers.device_of(place.tier.path)
    same = sum(source.identity.dev == device for source in sources)
    if same:
        yield (
            f"{same:,} of {len(sources):,} files lie on the same device as tier "
            f"{place.tier.name}: reading their copies gains nothing"
        )
