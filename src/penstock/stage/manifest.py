"""The contents of a tier: the copies, their manifest, and the map by which opens find copies.

Knows the bytes of docs/FORMAT-stage.md; copies nothing and chooses nothing.  All files read here
may be damaged or foreign: an incomplete line is skipped, a file other than a map is refused.
"""

import errno
import fcntl
import json
import mmap
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TierError
from penstock.places.registry import Tier, look
from penstock.safe import bounded, checksums, drafts

__all__ = [
    "CHUNK_BYTES",
    "FROZEN",
    "HEADER",
    "MOST_PATH_BYTES",
    "SLOT",
    "Identity",
    "Map",
    "StagedCopy",
    "TakenRoom",
    "TierPlace",
    "current_map",
    "hash_of",
    "hashes",
    "stored_bytes",
    "write_map",
]

VERSION = 1
MAGIC = b"PSTKSTG\0"
BYTE_ORDER = 0x01020304
MOST_PATH_BYTES = 4095  # PATH_MAX less the NUL
MOST_LINE_BYTES = 1 << 20  # names of a file with thousands of hard links; longer is damage
CHUNK_BYTES = 64 << 20  # a large file is copied, checked and remembered by chunks
COMPARE_INO, FROZEN = 1, 2
BLOCK_BYTES = 4096  # most file systems round a copy's size up to a multiple

HEADER = np.dtype(
    {
        "names": [
            "magic", "version", "byte_order", "map_bytes", "slots", "slots_at", "entries",
            "blob_at", "blob_bytes", "tier_at", "tier_bytes", "slot_bytes", "made_unix_ns",
            "retired",
        ],
        "formats": [
            "S8", "<u4", "<u4", "<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u8", "<u4", "<u4",
            "<i8", "<u4",
        ],
        "offsets": [0, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 76, 80, 88],
        "itemsize": 128,
    }
)  # fmt: skip
SLOT = np.dtype(
    {
        "names": [
            "hash", "path_at", "copy_at", "path_bytes", "copy_bytes", "size_bytes", "mtime_s",
            "ctime_s", "mtime_ns", "ctime_ns", "ino", "dev", "flags", "is_staged", "is_dropped",
        ],
        "formats": [
            "<u8", "<u8", "<u8", "<u4", "<u4", "<u8", "<i8", "<i8", "<u4", "<u4", "<u8", "<u8",
            "<u4", "u1", "u1",
        ],
        "offsets": [0, 8, 16, 24, 28, 32, 40, 48, 56, 60, 64, 72, 80, 84, 85],
        "itemsize": 96,
    }
)  # fmt: skip
RETIRED_AT = 88
_AT: dict[str, int] = {name: place[1] for name, place in (SLOT.fields or {}).items()}

Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Identity:
    """The numbers that distinguish a file from a changed file."""

    size_bytes: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    dev: int

    @classmethod
    def of(cls, status: os.stat_result) -> Self:
        return cls(
            status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev
        )

    def has_line(self) -> bool:
        """Return True if the manifest and the map can hold the numbers: times of the years 1678 to
        2261."""
        return _are_numbers((self.size_bytes, self.mtime_ns, self.ctime_ns, self.ino, self.dev))

    def is_same(self, other: "Identity", is_ino_kept: bool = True) -> bool:
        """Compare two identities without dev, as dev may differ from mount to mount."""
        mine, others = (
            (identity.size_bytes, identity.mtime_ns, identity.ctime_ns, identity.ino * is_ino_kept)
            for identity in (self, other)
        )
        return mine == others


@dataclass(frozen=True, slots=True)
class StagedCopy:
    """A copy: the source, the path below staged/, and the checksum.  names: other paths of the
    source.

    gain_s: the wait the copy was expected to remove.  is_ino_kept: see FORMAT-stage.md, flags.
    is_frozen: the user promises an unchanged source.
    """

    source: str
    copy: str
    identity: Identity
    checksum: str
    names: tuple[str, ...] = ()
    gain_s: float = 0.0
    is_ino_kept: bool = True
    is_frozen: bool = False

    @property
    def flags(self) -> int:
        """Return the flags of the map, without FROZEN."""
        return COMPARE_INO * self.is_ino_kept

    @property
    def is_url(self) -> bool:
        """Return True if no program can open the source by path: the copy is kept and verified, but
        not in the map."""
        return not self.source.startswith("/")

    def is_copy_of(self, other: "StagedCopy") -> bool:
        """Return True if both entries are of one copy, with any names and gains."""
        return (self.copy, self.identity, self.checksum) == (
            other.copy,
            other.identity,
            other.checksum,
        )

    def line(self) -> bytes:
        """Return the entry as a line of the manifest."""
        identity = self.identity
        facts: dict[str, Any] = {  # by hand: asdict takes longer than copying a small file's bytes
            "source": self.source,
            "copy": self.copy,
            "size_bytes": identity.size_bytes,
            "mtime_ns": identity.mtime_ns,
            "ctime_ns": identity.ctime_ns,
            "ino": identity.ino,
            "dev": identity.dev,
            "checksum": self.checksum,
            "gain_s": self.gain_s,
        }
        if self.names:
            facts["names"] = list(self.names)
        if not self.is_ino_kept:
            facts["is_ino_kept"] = False
        if self.is_frozen:
            facts["is_frozen"] = True
        return checksums.line(json.dumps(facts).encode()) + b"\n"


_decoded = json.JSONDecoder().decode
_FIVE_INTS = (int,) * 5


def _entry(facts: Mapping[str, Any]) -> StagedCopy:
    """Return the copy described by a line of the manifest.

    Raises ValueError, KeyError, TypeError, OverflowError: not in the form that `line` writes.  A
    tier may hold a million copies, all read at once: few steps for each.
    """
    names = facts.get("names", ())
    source, copy, checksum = facts["source"], facts["copy"], facts["checksum"]
    texts = "\0".join((source, copy, checksum, *names))  # TypeError: no text
    numbers = (
        facts["size_bytes"], facts["mtime_ns"], facts["ctime_ns"], facts["ino"], facts["dev"],
    )  # fmt: skip
    if texts.count("\0") != 2 + len(names):
        raise ValueError("a path that is none")
    if tuple(map(type, numbers)) != _FIVE_INTS or not _are_numbers(numbers):
        raise ValueError("a number that is none")
    if not {"", ".", ".."}.isdisjoint(copy.split("/")):
        raise ValueError("a copy outside of the tier")
    gain_s = float(facts.get("gain_s", 0.0))
    if not abs(gain_s) < 1e12:
        raise ValueError("a number that is none")
    if not texts.isascii():
        os.fsencode(texts)  # UnicodeEncodeError is a ValueError
    return StagedCopy(
        source,
        copy,
        Identity(*numbers),
        checksum,
        tuple(names),
        gain_s,
        facts.get("is_ino_kept", True) is not False,
        facts.get("is_frozen") is True,
    )


def _are_numbers(numbers: tuple[int, ...]) -> bool:
    """Return True if the map's columns can hold the numbers: size and times signed, inode and
    device unsigned."""
    *signed, ino, dev = numbers
    return (
        signed[0] >= 0
        and min(signed) >= -(1 << 63)
        and max(signed) < 1 << 63
        and min(ino, dev) >= 0
        and max(ino, dev) < 1 << 64
    )


def stored_bytes(size_bytes: Any) -> Any:
    """Return the bytes a copy takes on the tier, in whole blocks.  size_bytes: a number or an
    array."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _unwritable(path: Path, error: OSError) -> TierError:
    cure = "a tier needs a folder of your own"
    if error.errno == errno.EROFS:
        cure = "mount it to be written"
    elif error.errno in (errno.ENOSPC, errno.EDQUOT):
        cure = "penstock stage evict makes room, or remove what else lies there"
    return TierError(f"{path}: cannot be written: {error.strerror}; {cure}")


class TierPlace:
    """The paths of a tier's copies, manifest, map and parts.  Raises TierError."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.copies = tier.path / "staged"
        self.own = tier.path / ".penstock"
        self.parts = self.own / "parts"
        self.manifest = self.own / "manifest.jsonl"
        self.map = self.own / "staged.map"

    def look(self) -> None:
        """Raise TierGone if the tier is missing, see registry.look."""
        look(self.tier)

    def make(self) -> None:
        """Make the folders, for their owner only: a copy may be of a file in a private folder."""
        try:
            self.look()
            for folder in (self.own, self.copies, self.parts):
                drafts.own_folder(folder)
        except OSError as error:
            raise TierError(
                f"{self.tier.path}: cannot be written: {error.strerror}; "
                f"tier {self.tier.name} needs a folder of your own"
            ) from error

    def begin_filling(self) -> int:
        """Return a descriptor that marks, while open, that the map names copies to come."""
        try:
            descriptor = os.open(
                self.own / "filling", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise _unwritable(self.own, error) from error
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        return descriptor

    def is_filling(self) -> bool:
        """Return True while a filling is under way."""
        try:
            descriptor = os.open(self.own / "filling", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock for changes of the manifest or the map; hold it only shortly."""
        try:
            descriptor = os.open(
                self.own / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise _unwritable(self.own, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def copy_path(self, entry: StagedCopy) -> Path:
        """Return the path of the copy."""
        return self.copies / entry.copy

    def entries(self) -> dict[str, StagedCopy]:
        """Return all copies of the manifest by `copy`; the last line of each counts.

        Raises TierError: the manifest cannot be read, or is of another version; TierGone.
        """
        self.look()  # files below an empty mount point do not belong to the tier
        entries: dict[str, StagedCopy] = {}
        try:
            with bounded.opened(self.manifest) as file:
                while line := file.readline(MOST_LINE_BYTES):
                    if line.endswith(b"\n"):
                        self._take(line, entries)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise TierError(f"{self.manifest}: cannot be read: {error.strerror}") from error
        return entries

    def _take(self, line: bytes, entries: dict[str, StagedCopy]) -> None:
        content = self.line_content(line)
        if isinstance(content, str):
            entries.pop(content, None)
        elif content is not None:
            entries.pop(content.copy, None)  # of two entries with a path the last counts
            entries[content.copy] = content

    def line_content(self, line: bytes) -> StagedCopy | str | None:
        """Return a line's copy, the name of a copy that is gone, or None."""
        text = line.rstrip(b"\n")
        if checksums.line_has_sum(text) and not checksums.line_is_sound(text):
            return None  # damaged: the copy is made again
        try:
            facts = _decoded(line.decode())
            if not isinstance(facts, dict):
                return None
            if "version" in facts:
                if facts["version"] != VERSION:
                    raise TierError(
                        f"{self.manifest}: of version {facts['version']!r}, known here is "
                        f"{VERSION}; use the penstock that wrote it, or evict with it"
                    )
                return None
            if "gone" in facts:
                return facts["gone"] if isinstance(facts["gone"], str) else None
            return _entry(facts)
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None  # a line cut by a crash: the copy is made again

    def append(self, entries: Iterable[StagedCopy] = (), gone: Iterable[str] = ()) -> None:
        """Add lines for copies, and lines for removed copies.  Raises TierError."""
        with self.locked():
            self.append_locked(entries, gone)

    def append_locked(self, entries: Iterable[StagedCopy] = (), gone: Iterable[str] = ()) -> None:
        """Do as append, for a caller that holds the lock."""
        lines = b"".join(
            [entry.line() for entry in entries]
            + [checksums.line(json.dumps({"gone": copy}).encode()) + b"\n" for copy in gone]
        )
        if not lines:
            return
        try:
            # Without a file object: a copying adds thousands of small files per second.
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(self.manifest, flags, 0o666)
            try:
                end = os.fstat(descriptor).st_size
                if not end:
                    lines = _first_line(self.tier) + lines
                elif os.pread(descriptor, 1, end - 1) != b"\n":  # a crash cut the last line
                    lines = b"\n" + lines
                while lines:
                    lines = lines[os.write(descriptor, lines) :]
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _unwritable(self.manifest, error) from error

    def compact(self, entries: Mapping[str, StagedCopy]) -> None:
        """Write the manifest anew with one line per copy, once most lines are outdated.

        entries: all entries, read by the caller under a lock still held.
        """
        try:
            if not entries or self.manifest.stat().st_size < 4096 + 800 * len(entries):
                return
            drafts.sweep(self.manifest)
            with drafts.draft(self.manifest, is_durable=True) as file:
                file.write(_first_line(self.tier))
                file.writelines(entry.line() for entry in entries.values())
        except OSError as error:
            raise _unwritable(self.manifest, error) from error


class TakenRoom:
    """The bytes the copies of a tier with a capacity take, updated as the manifest grows.

    The caller holds the lock, as several processes may fill one tier.  Raises TierError.
    """

    def __init__(self, place: TierPlace) -> None:
        self._place = place
        self._bytes: dict[str, int] = {}
        self._file: IO[bytes] | None = None  # kept open against reuse of the inode number
        self._at = self._sum_bytes = 0
        self.look()  # without the lock: lines under way are read the next time

    def look(self) -> None:
        """Read the lines added since the last look."""
        place = self._place
        try:
            if self._file is None or not _is_file(self._file, place.manifest):
                self.close()
                self._bytes, self._at, self._sum_bytes = {}, 0, 0
                if not place.manifest.exists():
                    return
                self._file = open(place.manifest, "rb")  # noqa: SIM115 - for as long as this lives
            self._file.seek(self._at)
            while line := self._file.readline(MOST_LINE_BYTES):
                if not line.endswith(b"\n") and len(line) < MOST_LINE_BYTES:
                    return
                self._at += len(line)
                content = place.line_content(line)
                if isinstance(content, str):
                    self._put(content, 0)
                elif content is not None:
                    self._put(content.copy, int(stored_bytes(content.identity.size_bytes)))
        except OSError as error:
            raise TierError(f"{place.manifest}: cannot be read: {error.strerror}") from error

    def has_room(self, entry: StagedCopy) -> bool:
        """Return True if a copy fits in place of the earlier one, and count the copy from now
        on."""
        more = int(stored_bytes(entry.identity.size_bytes))
        others = self._sum_bytes - self._bytes.get(entry.copy, 0)
        if others + more > (self._place.tier.capacity_bytes or 0):
            return False
        self._put(entry.copy, more)
        return True

    def _put(self, copy: str, n_bytes: int) -> None:
        self._sum_bytes += n_bytes - self._bytes.get(copy, 0)
        self._bytes[copy] = n_bytes

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None


def _is_file(file: IO[bytes], path: Path) -> bool:
    """Return True if a path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _first_line(tier: Tier) -> bytes:
    facts = {"version": VERSION, "tier": tier.name, "chunk_bytes": CHUNK_BYTES}
    return json.dumps(facts).encode() + b"\n"


# --- the map -------------------------------------------------------------------------------------


def hashes(paths: Sequence[bytes]) -> Hashes:
    """Return FNV-1a of each path, 64 bits, all paths byte by byte at once."""
    lengths = np.fromiter(map(len, paths), np.int64, len(paths))
    data = np.frombuffer(b"".join(paths), np.uint8)
    starts = np.cumsum(lengths) - lengths
    order = np.argsort(-lengths, kind="stable")
    ordered = lengths[order]
    sums = np.full(len(paths), 0xCBF29CE484222325, np.uint64)
    prime = np.uint64(0x100000001B3)
    for place in range(int(ordered[0]) if len(paths) else 0):
        # All longer paths come first in the order.
        longer = order[: int(np.searchsorted(-ordered, -place, side="left"))]
        sums[longer] = (sums[longer] ^ data[starts[longer] + place]) * prime
    return sums


def hash_of(path: bytes) -> int:
    """Return the hash of a single path: a hundred times faster than an array of one path."""
    number = 0xCBF29CE484222325
    for byte in path:
        number = (number ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return number


def _placed(numbers: Hashes, slots: int) -> NDArray[np.int64]:
    """Return the slot of each hash, as if inserted one after the other with linear probing."""
    mask = slots - 1
    place = ((numbers ^ (numbers >> np.uint64(32))) & np.uint64(mask)).astype(np.int64)
    is_taken = np.zeros(slots, bool)
    left = np.arange(len(numbers))
    while len(left):
        wanted = place[left]
        is_free = ~is_taken[wanted]
        candidates = left[is_free]
        _, firsts = np.unique(place[candidates], return_index=True)
        is_taken[place[candidates[firsts]]] = True
        is_placed = np.zeros(len(numbers), bool)
        is_placed[candidates[firsts]] = True
        left = left[~is_placed[left]]
        place[left] = (place[left] + is_taken[place[left]]) & mask
    return place


def _rows(place: TierPlace, entries: Iterable[StagedCopy]) -> list[tuple[bytes, bytes, StagedCopy]]:
    """Return every path of the map with the path of the copy; of two entries for a path the last
    counts."""
    rows: dict[bytes, tuple[bytes, bytes, StagedCopy]] = {}
    copies = str(place.copies)
    for entry in entries:
        if entry.is_url:
            continue
        copy = os.fsencode(f"{copies}/{entry.copy}")
        for name in (entry.source, *entry.names):
            path = os.fsencode(name)
            if len(path) <= MOST_PATH_BYTES and len(copy) <= MOST_PATH_BYTES:
                rows[path] = (path, copy, entry)
    return list(rows.values())


def _map_bytes(
    rows: Sequence[tuple[bytes, bytes, StagedCopy]],
    tier: Tier,
    pending: frozenset[str],
    frozen: frozenset[str],
) -> bytes:
    slots = 8
    while slots < 2 * len(rows):
        slots *= 2
    paths, copies = [row[0] for row in rows], [row[1] for row in rows]
    name = os.fsencode(tier.name)
    blob = b"\0" + b"\0".join([name, *paths, *copies]) + b"\0"
    lengths = np.fromiter(map(len, [name, *paths, *copies]), np.int64, 1 + 2 * len(rows))
    blob_at = HEADER.itemsize + slots * SLOT.itemsize
    at = blob_at + 1 + np.cumsum(lengths + 1) - lengths - 1
    table = np.zeros(slots, SLOT)
    numbers = hashes(paths)
    place = _placed(numbers, slots)
    n = len(rows)
    identities = [row[2].identity for row in rows]
    columns: dict[str, Any] = {
        "hash": numbers,
        "path_at": at[1 : n + 1],
        "copy_at": at[n + 1 :],
        "path_bytes": lengths[1 : n + 1],
        "copy_bytes": lengths[n + 1 :],
        "size_bytes": [identity.size_bytes for identity in identities],
        "mtime_s": [identity.mtime_ns // 10**9 for identity in identities],
        "mtime_ns": [identity.mtime_ns % 10**9 for identity in identities],
        "ctime_s": [identity.ctime_ns // 10**9 for identity in identities],
        "ctime_ns": [identity.ctime_ns % 10**9 for identity in identities],
        "ino": np.array([identity.ino for identity in identities], np.uint64),
        "dev": np.array([identity.dev for identity in identities], np.uint64),
        "flags": [row[2].flags | FROZEN * (row[2].copy in frozen) for row in rows],
        "is_staged": [row[2].copy not in pending for row in rows],
    }
    for column, values in columns.items():
        table[column][place] = values
    header = np.zeros(1, HEADER)
    header["magic"], header["version"], header["byte_order"] = MAGIC, VERSION, BYTE_ORDER
    header["map_bytes"] = blob_at + len(blob)
    header["slots"], header["slots_at"], header["entries"] = slots, HEADER.itemsize, n
    header["blob_at"], header["blob_bytes"] = blob_at, len(blob)
    header["tier_at"], header["tier_bytes"] = at[0], len(name)
    header["slot_bytes"], header["made_unix_ns"] = SLOT.itemsize, time.time_ns()
    return header.tobytes() + table.tobytes() + blob


def write_map(
    place: TierPlace,
    entries: Iterable[StagedCopy],
    pending: frozenset[str] = frozenset(),
    fresh: frozenset[str] = frozenset(),
) -> Path:
    """Replace the map by a map of these copies.  Call with the lock held.

    pending: copies that do not exist yet.  fresh: copies made anew; their drops are forgotten.
    Frozen entries are marked if fresh or marked in the map before: for the others
    penstock.stage.frozen asks the sources first.  Raises TierError.
    """
    listed = list(entries)
    try:
        before = _opened(place.map)
        try:
            frozen = _frozen(before, listed, fresh - pending)
            made = _map_bytes(_rows(place, listed), place.tier, pending, frozen)
            drafts.sweep(place.map)
            drafts.write(place.map, made, is_durable=True)
            if before is not None:
                before.retire()
                _take_over(place, before, listed, fresh)
        finally:
            if before is not None:
                before.close()
    except OSError as error:
        raise _unwritable(place.map, error) from error
    return place.map


def _frozen(
    before: "Map | None", entries: Iterable[StagedCopy], fresh: frozenset[str]
) -> frozenset[str]:
    """Return the copies for which the source is not checked at each open."""
    marked = [entry for entry in entries if entry.is_frozen]
    was: set[bytes] = set()
    if marked and before is not None:
        with suppress(TierError):
            was = before.frozen()
    return frozenset(
        entry.copy for entry in marked if entry.copy in fresh or os.fsencode(entry.source) in was
    )


def _opened(path: Path) -> "Map | None":
    try:
        return Map(path)
    except TierError:
        return None


def _take_over(
    place: TierPlace, before: "Map", entries: Iterable[StagedCopy], fresh: frozenset[str]
) -> None:
    """Mark copies dropped in the earlier map as dropped, except copies made anew since."""
    try:
        dropped = before.dropped()
    except TierError:
        return  # damaged: the new map is in place, and each open checks the source anyway
    if not dropped:
        return
    with Map(place.map) as now:
        for entry in entries:
            if entry.copy in fresh or entry.is_url:
                continue
            if not dropped.isdisjoint(map(os.fsencode, (entry.source, *entry.names))):
                now.mark(entry, "is_dropped", 1)


class Map:
    """An open map: look-ups as the redirector makes them, and marks in place.

    A map on a read-only tier can be searched but not marked.  Raises TierError: missing, not a map,
    of another version or byte order, cut short.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            try:
                with open(path, "r+b") as file:
                    self._bytes = mmap.mmap(file.fileno(), 0)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
                with open(path, "rb") as file:
                    self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            cure = "penstock stage copy makes it"
            raise TierError(f"{path}: nothing is staged here; {cure}") from None
        except (OSError, ValueError) as error:
            raise TierError(f"{path}: cannot be read: {error}") from error
        try:
            self._check()
        except BaseException:
            self._bytes.close()
            raise

    def _check(self) -> None:
        size = len(self._bytes)
        cure = "penstock stage copy writes it anew"
        if size < HEADER.itemsize or self._bytes[:8] != MAGIC:
            raise TierError(f"{self.path}: no map of staged files; {cure}")
        header = np.frombuffer(self._bytes[: HEADER.itemsize], HEADER)[0]
        if header["version"] != VERSION or header["byte_order"] != BYTE_ORDER:
            raise TierError(
                f"{self.path}: version {header['version']} of another penstock or machine; {cure}"
            )
        self.slots, at = int(header["slots"]), int(header["slots_at"])
        self._blob_at, blob_bytes = int(header["blob_at"]), int(header["blob_bytes"])
        ends = (int(header["map_bytes"]), self._blob_at + blob_bytes)
        is_whole = ends == (size, size) and at + self.slots * SLOT.itemsize <= self._blob_at
        is_table = self.slots > 0 and not self.slots & (self.slots - 1) and at >= HEADER.itemsize
        if not (is_whole and is_table and header["slot_bytes"] == SLOT.itemsize):
            raise TierError(f"{self.path}: cut short or damaged; {cure}")
        self._slots_at = at
        self.entries = int(header["entries"])

    def _table(self) -> NDArray[Any]:
        """Return a copy of the current slots, so the mapping may be closed."""
        end = self._slots_at + self.slots * SLOT.itemsize
        return np.frombuffer(self._bytes[self._slots_at : end], SLOT)

    def _text(self, at: int, length: int) -> bytes:
        if at < self._blob_at or at + length > len(self._bytes):
            raise TierError(f"{self.path}: damaged; penstock stage copy writes it anew")
        return self._bytes[at : at + length]

    def slot(self, number: int) -> NDArray[Any]:
        """Return a copy of a slot."""
        at = self._slots_at + number * SLOT.itemsize
        row: NDArray[Any] = np.frombuffer(self._bytes[at : at + SLOT.itemsize], SLOT)[0]
        return row

    def find(self, path: bytes) -> int | None:
        """Return the slot of a path; None: not in the map."""
        wanted = hash_of(path)
        number = (wanted ^ (wanted >> 32)) & (self.slots - 1)
        for _ in range(self.slots):
            row = self.slot(number)
            if not row["path_at"]:
                return None
            if int(row["hash"]) == wanted and path == self._text(
                int(row["path_at"]), int(row["path_bytes"])
            ):
                return number
            number = (number + 1) & (self.slots - 1)
        return None

    def copy_of(self, path: bytes) -> bytes | None:
        """Return the path of a path's copy, or None if opens do not get a copy."""
        number = self.find(path)
        if number is None:
            return None
        row = self.slot(number)
        if not row["is_staged"] or row["is_dropped"]:
            return None
        return self._copy(number)

    def _copy(self, number: int) -> bytes:
        row = self.slot(number)
        return self._text(int(row["copy_at"]), int(row["copy_bytes"]))

    def mark(
        self, entry: StagedCopy, column: str, value: int, identity: Identity | None = None
    ) -> None:
        """Set is_staged or is_dropped for all names of a copy, after writing the source's current
        identity."""
        copy = os.fsencode(self.path.parent.parent / "staged" / entry.copy)
        for name in (entry.source, *entry.names):
            number = self.find(os.fsencode(name))
            if number is None:
                continue
            is_checked = identity is not None or column == "flags"
            if is_checked and self._copy(number) != copy:
                continue  # of another staging: another copy has the name
            at = self._slots_at + number * SLOT.itemsize
            if identity is not None:
                row = np.frombuffer(self._bytes[at : at + SLOT.itemsize], SLOT).copy()
                row["size_bytes"], row["ino"] = identity.size_bytes, identity.ino
                row["mtime_s"], row["mtime_ns"] = divmod(identity.mtime_ns, 10**9)
                row["ctime_s"], row["ctime_ns"] = divmod(identity.ctime_ns, 10**9)
                row["dev"] = identity.dev
                low, high = _AT["size_bytes"], _AT["flags"]
                self._bytes[at + low : at + high] = row.tobytes()[low:high]
            self._bytes[at + _AT[column]] = value

    def dropped(self) -> set[bytes]:
        """Return the paths dropped by programs."""
        table = self._table()
        rows = table[(table["is_dropped"] != 0) & (table["path_at"] != 0)]
        return {self._text(int(row["path_at"]), int(row["path_bytes"])) for row in rows}

    def staged(self) -> set[bytes]:
        """Return the paths served by a copy at an open, as long as the source is unchanged."""
        table = self._table()
        is_served = (table["is_staged"] != 0) & (table["is_dropped"] == 0)
        rows = table[is_served & (table["path_at"] != 0)]
        return {self._text(int(row["path_at"]), int(row["path_bytes"])) for row in rows}

    def frozen(self) -> set[bytes]:
        """Return the paths for which the source is not checked at each open."""
        table = self._table()
        rows = table[(table["flags"] & FROZEN != 0) & (table["path_at"] != 0)]
        return {self._text(int(row["path_at"]), int(row["path_bytes"])) for row in rows}

    def is_retired(self) -> bool:
        """Return True if a newer map is in place."""
        return self._bytes[RETIRED_AT] != 0

    def retire(self) -> None:
        """Tell all processes with the map open about a newer map."""
        self._bytes[RETIRED_AT] = 1

    def flush(self) -> None:
        """Make the marks durable.  Raises OSError."""
        self._bytes.flush()

    def close(self) -> None:
        self._bytes.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def current_map(tier: Tier) -> Path:
    """Return the tier's map, written anew if the manifest is younger (after a killed copying).

    Raises TierGone: the tier is missing; TierError: nothing is staged.
    """
    place = TierPlace(tier)
    place.look()
    if place.is_filling():
        with suppress(TierError), Map(place.map):
            return place.map
    try:
        told_ns = place.manifest.stat().st_mtime_ns
    except OSError:
        raise TierError(
            f"{tier.name}: nothing is staged there; penstock stage copy RUN --to {tier.name}"
        ) from None
    with suppress(OSError, TierError), Map(place.map):
        if place.map.stat().st_mtime_ns >= told_ns:
            return place.map
    try:
        with place.locked():
            return write_map(place, place.entries().values())
    except TierError:
        with suppress(TierError), Map(place.map):
            return place.map  # of a read-only tier: each open checks the source
        raise
