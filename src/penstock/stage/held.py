"""Describe the copies on a tier: the state, whether the copies are whole, and the order of
eviction.

Knows the manifest and the copies; copies nothing.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TierError
from penstock.places import tiers
from penstock.places.registry import Tier
from penstock.stage import frozen
from penstock.stage.checksum import checksum_of
from penstock.stage.manifest import Map, StagedCopy, TierPlace, stored_bytes, write_map
from penstock.stage.part import is_under_way, link_in, sweep
from penstock.stage.source import path_of
from penstock.stage.today import GONE, NOW, UNSEEN, now_of
from penstock.stage.work import CopyPace, Progress, Work, run_all

__all__ = [
    "Corrupted",
    "Evicted",
    "StagedStatus",
    "Verified",
    "drop",
    "dropped",
    "evict",
    "past",
    "status",
    "taken_bytes",
    "useless",
    "verify",
    "why_bad",
]

ASKED_TOGETHER = 16384  # sources between two progress reports: two seconds on a slow server
THREADS = 8  # of verifying: two per CPU of a small machine, as each reads and computes


@dataclass(frozen=True, slots=True)
class Corrupted:
    """A copy different from the manifest's entry."""

    entry: StagedCopy
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of verifying.  stale: copies whose source has changed or is gone.  thawed: changed
    sources of frozen copies."""

    copies: int
    bytes_read: int
    corrupted: tuple[Corrupted, ...]
    stale: int
    thawed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StagedStatus:
    """The state of a tier's copies.

    stale: the source changed.  orphans: the source is gone.  not_asked: the source is in a store,
    and the store was not asked.  missing: the copy itself is gone.  dropped: a program opened the
    source for writing, renamed or removed it.  parts: copies under way, or left by a kill.  strays:
    copies without a line in a damaged manifest.  foreign: files among the copies, not made by
    Penstock.  free_bytes: room for further copies.
    """

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


def why_bad(place: TierPlace, entry: StagedCopy) -> str:
    """Return a visible fault of a copy, found without reading the copy, or ""."""
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


def dropped(place: TierPlace) -> set[bytes]:
    try:
        with Map(place.map) as tier_map:
            return tier_map.dropped()
    except TierError:
        return set()


def _sources_are(entries: Sequence[StagedCopy], progress: Progress | None = None) -> list[str]:
    """Return for each source: same, changed or gone; not asked for a store or a silent server."""
    states: list[str] = []
    for first in range(0, len(entries), ASKED_TOGETHER):
        if progress is not None:
            progress(first, len(entries))
        some = entries[first : first + ASKED_TOGETHER]
        now = _now([entry for entry in some if not entry.is_url])
        is_other = iter(_is_other([entry for entry in some if not entry.is_url], now).tolist())
        size = iter(now["size_bytes"].tolist())
        for entry in some:
            if entry.is_url:
                states.append("not asked")
                continue
            changed, size_bytes = next(is_other), next(size)
            # A server without an answer now has lost nothing.
            is_here = "changed" if changed else "same"
            states.append({GONE: "gone", UNSEEN: "not asked"}.get(size_bytes, is_here))
    return states


def _now(entries: Sequence[StagedCopy]) -> NDArray[Any]:
    """Return rows of NOW for the sources, by file system in turn, as a slow file system gets more
    threads."""
    rows = np.empty(len(entries), NOW)
    device = np.array([entry.identity.dev for entry in entries], np.uint64)
    for dev in np.unique(device).tolist():
        at = np.flatnonzero(device == dev)
        rows[at] = now_of([entries[place].source for place in at.tolist()])
    return rows


def _is_other(entries: Sequence[StagedCopy], now: NDArray[Any]) -> NDArray[Any]:
    """Return for each source whether the file differs from the copied file."""
    identities = [entry.identity for entry in entries]
    then = np.fromiter(
        (
            (identity.size_bytes, identity.mtime_ns, identity.ctime_ns, identity.ino, identity.dev)
            for identity in identities
        ),
        NOW,
        len(identities),
    )
    is_changed: NDArray[Any] = now["ino"] != then["ino"]
    is_changed &= np.array([entry.is_ino_kept for entry in entries], bool)
    for column in ("size_bytes", "mtime_ns", "ctime_ns"):
        is_changed |= now[column] != then[column]
    return is_changed


def past(
    entries: Iterable[StagedCopy],
    seen: Mapping[str, int] = {},
    rows: NDArray[Any] | None = None,
) -> list[StagedCopy]:
    """Return the copies whose source has been replaced or written to.

    A write changes the ctime for good, so no open can ever use the copies.  seen: row numbers of
    sources asked already.  rows: the rows of NOW of the sources.
    """
    ours = [entry for entry in entries if not entry.is_url]
    now = np.empty(len(ours), NOW)
    at = np.array([seen.get(entry.source, -1) for entry in ours], np.int64)
    if rows is not None:
        now[at >= 0] = rows[at[at >= 0]]
    asked = np.flatnonzero(at < 0)
    now[asked] = _now([ours[place] for place in asked.tolist()])
    is_past = _is_other(ours, now) & (now["size_bytes"] >= 0)
    return [ours[place] for place in np.flatnonzero(is_past).tolist()]


def useless(place: TierPlace, entries: Iterable[StagedCopy]) -> list[StagedCopy]:
    """Return the copies no open can use: copies of past sources, and entries without a copy since a
    kill."""
    listed = list(entries)
    gone = {entry.copy for entry in listed if _is_lost(place, entry)}
    return [*past(entry for entry in listed if entry.copy not in gone)] + [
        entry for entry in listed if entry.copy in gone
    ]


def _is_lost(place: TierPlace, entry: StagedCopy) -> bool:
    """Return True if the copy is missing, and no process is putting or has just put the copy in
    place."""
    return why_bad(place, entry) == "gone" and not (
        is_under_way(place, entry) or why_bad(place, entry) != "gone"
    )


@dataclass(frozen=True, slots=True)
class _Stray:
    path: str
    size_bytes: int
    is_ours: bool


def _strays(place: TierPlace) -> list[_Stray]:
    """Return files among the copies without a line in the manifest.

    A file is Penstock's if in the state left by a copying: not writable, with the size and time of
    the source.
    """
    paths = [
        (f"{folder}/{name}", f"{folder}/{name}"[len(f"{place.copies}/") :])
        for folder, _, names in os.walk(place.copies)
        for name in names
    ]
    entries = place.entries()  # after the walk: a copying writes the line before the copy appears
    strays = []
    for path, copy in paths:
        if copy in entries:
            continue
        with suppress(OSError):
            here = os.lstat(path)
            is_ours = False
            with suppress(OSError):
                there = os.stat(path_of(copy))  # noqa: PTH116 - text, as all paths here
                is_ours = not here.st_mode & 0o222 and stat.S_ISREG(here.st_mode)
                state, other = ((it.st_size, it.st_mtime_ns) for it in (here, there))
                is_ours = is_ours and state == other
            strays.append(_Stray(path, here.st_size, is_ours))
    return strays


def taken_bytes(entries: Iterable[StagedCopy]) -> int:
    """Return the bytes copies take on the tier."""
    return sum(int(stored_bytes(entry.identity.size_bytes)) for entry in entries)


def _room(tier: Tier, free_bytes: int, taken_bytes: int) -> int:
    """Return the bytes that further copies may take: 0 on a tier with copies above the capacity."""
    if tier.capacity_bytes is None:
        return free_bytes
    return max(0, min(free_bytes, tier.capacity_bytes - taken_bytes))


def status(tier: Tier, progress: Progress | None = None) -> StagedStatus:
    """Look at each copy and each source without reading data.  Raises TierError."""
    place = TierPlace(tier)
    entries = place.entries()
    sources = _sources_are(list(entries.values()), progress)
    missing = sum(bool(why_bad(place, entry)) for entry in entries.values())
    strays = _strays(place)
    ours = [stray.size_bytes for stray in strays if stray.is_ours]
    parts = list(place.parts.glob("*.part")) if place.parts.is_dir() else []
    sizes = []
    for path in parts:
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    return StagedStatus(
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
        _room(tier, tiers.free_bytes(tier.path), taken_bytes(entries.values())),
    )


def verify(
    tier: Tier,
    *,
    threads: int = THREADS,
    progress: Progress | None = None,
    is_mending: bool = False,
) -> Verified:
    """Read every copy and compare with the checksum.  is_mending: evict corrupted copies.

    Raises TierError: no such tier.
    """
    place = TierPlace(tier)
    entries = list(place.entries().values())
    total = sum(entry.identity.size_bytes for entry in entries)
    work = Work(place, CopyPace(None), total, progress)
    bad: list[Corrupted] = []

    def check(entry: StagedCopy) -> None:
        why = why_bad(place, entry)
        kind = entry.checksum.partition(":")[0]
        if not why:
            try:
                checksum = checksum_of(place.copy_path(entry), kind, work.moved)
                why = "" if checksum == entry.checksum else "other bytes than were copied"
            except (OSError, ValueError) as error:
                why = f"cannot be checked: {getattr(error, 'strerror', None) or error}"
        if why:
            with work.lock:
                bad.append(Corrupted(entry, why))

    left = iter(sorted(entries, key=lambda entry: -entry.identity.size_bytes))

    def take(thread: int) -> Callable[[], None] | None:
        entry = next(left, None)
        return None if entry is None else partial(check, entry)

    run_all(work, take, threads)
    stale = sum(source in ("changed", "gone") for source in _sources_are(entries))
    bad.sort(key=lambda damage: damage.entry.copy)
    if is_mending and bad:
        if place.parts.is_dir():
            sweep(place, ())
        drop(place, [damage.entry for damage in bad])
    thawed = frozen.check(tier).changed
    return Verified(len(entries), work.done_bytes, tuple(bad), stale, thawed)


def drop(place: TierPlace, entries: Sequence[StagedCopy]) -> list[StagedCopy]:
    """Remove copies: first from the map, then the files, then from the manifest.  Return the
    removed copies.

    A copy stays if another staging has removed or remade the copy since the look-up, or is about to
    put the copy in place.
    """
    with place.locked():
        by_copy = place.entries()
        wanted = {entry.copy: entry for entry in entries}
        ours = [
            by_copy[copy]
            for copy, entry in wanted.items()
            if copy in by_copy
            and by_copy[copy].is_copy_of(entry)
            and not is_under_way(place, by_copy[copy])
        ]
        with suppress(TierError), Map(place.map) as tier_map:
            for entry in ours:
                tier_map.mark(entry, "is_staged", 0)
        # Under the lock: a copying writes the new line before its copy appears. The files go before
        # the lines: a kill may leave lines without copies, and later copies replace such lines; but
        # no copies without lines.
        for entry in ours:
            _unlink(place, place.copy_path(entry))
            del by_copy[entry.copy]
        place.append_locked(gone=[entry.copy for entry in ours])
        write_map(place, by_copy.values())
    return ours


class Evicted(NamedTuple):
    """The result of an eviction.  room_bytes: room for further copies; 0 while the remaining copies
    exceed the capacity."""

    copies: int
    size_bytes: int
    room_bytes: int


def evict(tier: Tier, *, free_bytes: int | None = None, is_stale_only: bool = False) -> Evicted:
    """Remove copies: all, only copies of changed or removed sources, or enough for free_bytes.

    For free_bytes useless copies go first, then copies by least gain per byte.  Copies without a
    line in the manifest always go.  A program with an open copy goes on reading; later opens get
    the original.  Raises TierError.
    """
    place = TierPlace(tier)
    entries = list(place.entries().values())
    useless = {
        entry.copy
        for entry, source in zip(entries, _sources_are(entries), strict=True)
        if source in ("changed", "gone") or why_bad(place, entry)
    }
    strays = [file for file in _strays(place) if file.is_ours]
    taken, free = taken_bytes(entries), tiers.free_bytes(tier.path)
    room = _room(tier, free, taken)
    free += sum(stored_bytes(file.size_bytes) for file in strays)
    if is_stale_only:
        chosen = [entry for entry in entries if entry.copy in useless]
    elif free_bytes is None:
        chosen = entries
    else:
        entries.sort(
            key=lambda candidate: (
                candidate.copy not in useless,
                candidate.gain_s / max(1, candidate.identity.size_bytes),
                -candidate.identity.size_bytes,
            )
        )
        chosen, freed = [], 0
        for entry in entries:
            if _room(tier, free + freed, taken - freed) >= room + free_bytes:
                break
            chosen.append(entry)
            freed += stored_bytes(entry.identity.size_bytes)
    if place.parts.is_dir():
        sweep(place, ())
    if chosen:
        chosen = drop(place, chosen)
    for stray in strays:
        _unlink(place, Path(stray.path))
    freed = taken_bytes(chosen)
    size = sum(entry.identity.size_bytes for entry in chosen)
    return Evicted(
        len(chosen) + len(strays),
        size + sum(file.size_bytes for file in strays),
        _room(tier, free + freed, taken - freed) - room,
    )


def _unlink(place: TierPlace, path: Path) -> None:
    """Remove a copy and emptied folders; remove nothing behind a link."""
    if link_in(str(path.parent), str(place.copies)):
        return
    with suppress(OSError):
        path.unlink()
    for folder in path.parents:
        if folder == place.copies:
            break
        try:
            folder.rmdir()
        except OSError:
            break
