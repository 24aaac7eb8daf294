"""The copies that a tier holds: what has become of them, whether they are whole, which go first.

Knows the manifest and the copies; copies nothing.
"""

import os
import stat
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from penstock import tiers
from penstock.errors import TierError
from penstock.registry import Tier
from penstock.stage.checksum import checksum_of
from penstock.stage.manifest import Entry, Identity, Map, Place, write_map
from penstock.stage.part import sweep
from penstock.stage.work import Pace, Progress, Work, run_all

__all__ = [
    "Corrupted",
    "Status",
    "Verified",
    "drop",
    "dropped",
    "evict",
    "status",
    "stored_bytes",
    "verify",
    "why_bad",
]

BLOCK_BYTES = 4096  # what a copy's size is rounded up to, on most file systems
THREADS = 8  # of verifying: two for each processor of a small machine, as they read and add


@dataclass(frozen=True, slots=True)
class Corrupted:
    """A copy that is not what the manifest says."""

    entry: Entry
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What verifying found.  stale: their sources have changed or are gone."""

    copies: int
    bytes_read: int
    corrupted: tuple[Corrupted, ...]
    stale: int


@dataclass(frozen=True, slots=True)
class Status:
    """A tier's copies.  stale: their source changed; orphans: it is gone; not_asked: it is in a
    store, which was not asked; missing: the copy is; dropped: a program opened the source for
    writing, renamed or removed it; parts: under way, or left by a kill.  strays: copies of which a
    damaged manifest tells nothing; foreign: files among the copies that are none of ours.
    free_bytes: what copies may still take."""

    copies: int
    size_bytes: int
    gain_s: float
    stale: int
    orphans: int
    not_asked: int
    missing: int
    dropped: int
    parts: int
    part_bytes: int
    strays: int
    stray_bytes: int
    foreign: int
    free_bytes: int


def stored_bytes(size_bytes: Any) -> Any:
    """What a copy takes on the tier: whole blocks.  A number or an array."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def why_bad(place: Place, entry: Entry) -> str:
    """What can be seen of a copy without reading it; empty: it is as it was made."""
    try:
        status = os.lstat(place.copy_path(entry))
    except OSError as error:
        return "gone" if isinstance(error, FileNotFoundError) else str(error.strerror)
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if status.st_size != entry.identity.size_bytes:
        return f"{status.st_size:,} bytes instead of {entry.identity.size_bytes:,}"
    if status.st_mtime_ns != entry.identity.mtime_ns:
        return "changed"
    return ""


def dropped(place: Place) -> set[bytes]:
    try:
        with Map(place.map) as found:
            return found.dropped()
    except TierError:
        return set()


def _source_is(entry: Entry) -> str:
    """same, changed or gone; of a store: not asked."""
    if entry.is_url:
        return "not asked"
    try:
        now = Identity.of(os.stat(entry.source))  # noqa: PTH116
    except OSError:
        return "gone"
    return "same" if now.is_same(entry.identity, entry.is_ino_kept) else "changed"


@dataclass(frozen=True, slots=True)
class _Stray:
    path: str
    size_bytes: int
    is_ours: bool


def _strays(place: Place) -> list[_Stray]:
    """Files among the copies that no line of the manifest is about.  Ours are those that are as we
    make them: not to be written, of the size and time of the file that they would be a copy of."""
    found = [
        (f"{folder}/{name}", f"{folder}/{name}"[len(str(place.copies)) :])
        for folder, _, names in os.walk(place.copies)
        for name in names
    ]
    known = place.entries()  # after the walk: a line stands before its copy does
    strays = []
    for path, source in found:
        if source[1:] in known:
            continue
        with suppress(OSError):
            here = os.lstat(path)
            is_ours = False
            with suppress(OSError):
                there = os.stat(source)  # noqa: PTH116 - text, as all paths here
                is_ours = not here.st_mode & 0o222 and stat.S_ISREG(here.st_mode)
                one, other = ((it.st_size, it.st_mtime_ns) for it in (here, there))
                is_ours = is_ours and one == other
            strays.append(_Stray(path, here.st_size, is_ours))
    return strays


def _room(tier: Tier, entries: Iterable[Entry]) -> int:
    free = tiers.free_bytes(tier.path)
    if tier.capacity_bytes is None:
        return free
    held = sum(int(stored_bytes(entry.identity.size_bytes)) for entry in entries)
    return max(0, min(free, tier.capacity_bytes - held))


def status(tier: Tier, progress: Progress | None = None) -> Status:
    """Looks at each copy and its source, without reading them.  Raises TierError."""
    place = Place(tier)
    entries = place.entries()
    sources, missing = [], 0
    for number, entry in enumerate(entries.values()):
        if progress is not None and number % 1000 == 0:
            progress(number, len(entries))
        sources.append(_source_is(entry))
        missing += bool(why_bad(place, entry))
    strays = _strays(place)
    ours = [one.size_bytes for one in strays if one.is_ours]
    parts = list(place.parts.glob("*.part")) if place.parts.is_dir() else []
    sizes = []
    for path in parts:
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    return Status(
        len(entries),
        sum(entry.identity.size_bytes for entry in entries.values()),
        sum(entry.gain_s for entry in entries.values()),
        sources.count("changed"),
        sources.count("gone"),
        sources.count("not asked"),
        missing,
        len(dropped(place)),
        len(sizes),
        sum(sizes),
        len(ours),
        sum(ours),
        len(strays) - len(ours),
        _room(tier, entries.values()),
    )


def verify(
    tier: Tier,
    *,
    threads: int = THREADS,
    progress: Progress | None = None,
    is_mending: bool = False,
) -> Verified:
    """Reads every copy and compares it with its checksum.  is_mending: evicts the corrupted.

    Raises TierError: no such tier.
    """
    place = Place(tier)
    entries = list(place.entries().values())
    total = sum(entry.identity.size_bytes for entry in entries)
    work = Work(place, Pace(None), total, progress)
    bad: list[Corrupted] = []

    def check(entry: Entry) -> None:
        why = why_bad(place, entry)
        kind = entry.checksum.partition(":")[0]
        if not why:
            try:
                found = checksum_of(place.copy_path(entry), kind, work.moved)
                why = "" if found == entry.checksum else "other bytes than were copied"
            except (OSError, ValueError) as error:
                why = f"cannot be checked: {getattr(error, 'strerror', None) or error}"
        if why:
            with work.lock:
                bad.append(Corrupted(entry, why))

    left = iter(sorted(entries, key=lambda one: -one.identity.size_bytes))

    def take(thread: int) -> Callable[[], None] | None:
        entry = next(left, None)
        return None if entry is None else partial(check, entry)

    run_all(work, take, threads)
    stale = sum(_source_is(entry) in ("changed", "gone") for entry in entries)
    bad.sort(key=lambda one: one.entry.copy)
    if is_mending and bad:
        drop(place, [one.entry for one in bad])
    return Verified(len(entries), work.done_bytes, tuple(bad), stale)


def drop(place: Place, entries: Sequence[Entry]) -> None:
    """Takes copies away: first out of the map, then out of the manifest, then the files."""
    with place.locked(), suppress(TierError), Map(place.map) as found:
        for entry in entries:
            found.mark(entry, "is_staged", 0)
    place.append(gone=[entry.copy for entry in entries])
    for entry in entries:
        _unlink(place, place.copy_path(entry))
    with place.locked():
        write_map(place, place.entries().values())


def evict(
    tier: Tier, *, free_bytes: int | None = None, is_stale_only: bool = False
) -> tuple[int, int]:
    """Removes copies: all, or only those of changed and removed sources, or as many as give this
    much room, first the useless, then by least gain per byte.  Copies of which the manifest tells
    nothing go in any case.  Copies and bytes removed.

    Programs that have one open read on; later opens get the original.  Raises TierError.
    """
    place = Place(tier)
    entries = list(place.entries().values())
    useless = {
        entry.copy
        for entry in entries
        if _source_is(entry) in ("changed", "gone") or why_bad(place, entry)
    }
    strays = [one for one in _strays(place) if one.is_ours]
    if is_stale_only:
        chosen = [entry for entry in entries if entry.copy in useless]
    elif free_bytes is None:
        chosen = entries
    else:
        entries.sort(
            key=lambda one: (
                one.copy not in useless,
                one.gain_s / max(1, one.identity.size_bytes),
                -one.identity.size_bytes,
            )
        )
        chosen, freed = [], sum(stored_bytes(one.size_bytes) for one in strays)
        for entry in entries:
            if freed >= free_bytes:
                break
            chosen.append(entry)
            freed += stored_bytes(entry.identity.size_bytes)
    if chosen:
        drop(place, chosen)
    for stray in strays:
        _unlink(place, Path(stray.path))
    if place.parts.is_dir():
        sweep(place, ())
    sizes = [entry.identity.size_bytes for entry in chosen]
    return len(chosen) + len(strays), sum(sizes) + sum(one.size_bytes for one in strays)


def _unlink(place: Place, path: Path) -> None:
    """Removes a copy, and the folders that it leaves empty."""
    with suppress(OSError):
        path.unlink()
    for folder in path.parents:
        if folder == place.copies:
            break
        try:
            folder.rmdir()
        except OSError:
            break
