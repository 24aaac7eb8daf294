"""Keep objects of a data set on a fast tier of the node: a single process fetches each byte, once.

The folder in PENSTOCK_FEED_CACHE gets a folder for the cache, owned by the user alone; other files
in the parent folder are never touched.  The cache has one folder per data set and exact state of
all its objects, so no stale byte can be read.  In a data set's folder, `data` has room for the
objects, at first without their bytes.  `units` has a byte per unit: 1 once the unit is written.  A
process locks the byte of a unit during the fetch; the kernel releases the lock if the process ends.

The cache is bounded: objects beyond the budget are always read from the store.  Eviction would not
help: in shuffled epochs, a removed object is needed again before the next epoch ends.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import mmap
import os
import re
import shutil
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed.object_stores import object_at
from penstock.feed.remote import RemoteReads
from penstock.feed.transfer import ObjectRange, Ongoing, Seen, transfers
from penstock.safe import drafts

__all__ = ["CachedReads", "NodeCache", "cache_folder"]

UNIT_BYTES = 1 << 20  # a request; at 200 MB/s 5 ms, less than most stores' latency
GROUP_UNITS = 32  # in flight at once; also the memory of a fetch
PAGE_BYTES = 4096
VERSION = 1
FREE_SHARE = 0.5  # of the free space, without a set budget
LOCK = struct.Struct("hhqqi4x")  # struct flock
MADE_S = 60.0  # a younger draft may still be in progress
OWN_FOLDER = "penstock-feed-cache"
SET_NAME = re.compile(r"[0-9a-f]{32}")
DRAFT_NAME = re.compile(r"\.[0-9a-f]{32}\.\d+\.\d+")

Local = Callable[[NDArray[np.void]], None]  # fills requests with fd and offset of a file


def cache_folder() -> Path | None:
    """Return the cache's folder, inside the folder PENSTOCK_FEED_CACHE; None: no cache."""
    text = os.environ.get("PENSTOCK_FEED_CACHE", "")
    return Path(text) / OWN_FOLDER if text else None


def _budget(folder: Path) -> int:
    text = os.environ.get("PENSTOCK_FEED_CACHE_BYTES", "")
    if not text:
        return int(FREE_SHARE * shutil.disk_usage(folder).free)
    if not text.isdigit():
        raise FeedError(f"PENSTOCK_FEED_CACHE_BYTES={text!r} is no number of bytes")
    return int(text)


class NodeCache:
    """The cache of one data set, opened by one thread of one process.

    Raises FeedError: the folder cannot be used.
    """

    def __init__(self, folder: Path, files: Sequence[str], seen: Sequence[Seen]) -> None:
        self.pid = os.getpid()
        self._files, self._seen = files, seen
        self._ongoing = Ongoing()
        sizes = np.array([each.size for each in seen], np.int64)
        name = hashlib.sha256(repr((VERSION, list(files), [*map(tuple, seen)])).encode())
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            drafts.own_folder(folder)
            self.path = folder / name.hexdigest()[:32]
            self._about = _opened(folder, self.path, sizes)
            about = json.loads(os.pread(self._about, 4096, 0))
            self.n_cached = int(about["n_cached"])
            self._lay_out(sizes)
            self.data = os.open(self.path / "data", os.O_RDWR | os.O_CLOEXEC)
            self._units = os.open(self.path / "units", os.O_RDWR | os.O_CLOEXEC)
            self._map = mmap.mmap(self._units, max(1, int(self.first_unit[-1])))
        except (OSError, ValueError, KeyError) as error:
            raise FeedError(
                f"{folder}: the cache of PENSTOCK_FEED_CACHE cannot be used: {error}"
            ) from error
        self._is_there = np.frombuffer(self._map, np.uint8)

    def _lay_out(self, sizes: NDArray[np.int64]) -> None:
        rooms = -(-sizes[: self.n_cached] // PAGE_BYTES) * PAGE_BYTES
        units = -(-sizes[: self.n_cached] // UNIT_BYTES)
        self.start = np.concatenate(([0], np.cumsum(rooms)))
        self.first_unit = np.concatenate(([0], np.cumsum(units)))

    def units_of(
        self, file: NDArray[np.int64], offset: NDArray[np.int64], length: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (first, end) of each range's units; first == end for an empty range."""
        first = self.first_unit[file] + offset // UNIT_BYTES
        end = self.first_unit[file] + -(-(offset + length) // UNIT_BYTES)
        return first, np.where(length > 0, end, first)

    def bring(self, units: NDArray[np.int64], depth: int) -> dict[int, tuple[int, str]]:
        """Fetch the missing units, or wait for another process's fetch.

        Return (errno, reason) for each failed unit.
        """
        failed: dict[int, tuple[int, str]] = {}
        missing = units[self._is_there[units] == 0].tolist()
        while missing:
            mine: list[int] = []
            for unit in missing:
                if len(mine) < GROUP_UNITS and self._lock(unit, fcntl.F_WRLCK):
                    mine.append(unit)
            try:
                self._fetch([unit for unit in mine if not self._is_there[unit]], depth, failed)
            finally:
                for unit in mine:
                    self._lock(unit, fcntl.F_UNLCK)
            done = set(mine)
            missing = [each for each in missing if each not in done and not self._is_there[each]]
            if missing and not mine:  # hold no lock while waiting for others
                self._lock(missing[0], fcntl.F_WRLCK, waits=True)
                self._lock(missing[0], fcntl.F_UNLCK)
                missing = [each for each in missing if not self._is_there[each]]
        return failed

    def _lock(self, unit: int, kind: int, waits: bool = False) -> bool:
        command = fcntl.F_OFD_SETLKW if waits else fcntl.F_OFD_SETLK
        try:
            fcntl.fcntl(self._units, command, LOCK.pack(kind, os.SEEK_SET, unit, 1, 0))
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

    def _fetch(self, units: list[int], depth: int, failed: dict[int, tuple[int, str]]) -> None:
        parts = [self._part(unit) for unit in units]
        transfers().read([part for part, _ in parts], depth, self._ongoing)
        for unit, (part, place) in zip(units, parts, strict=True):
            if part.error:
                failed[unit] = (part.error, part.why)
                continue
            try:
                _write(self.data, part.view, place)
            except OSError as error:
                failed[unit] = (
                    error.errno or errno.EIO,
                    f"the cache {self.path}: {error.strerror}",
                )
                continue
            self._is_there[unit] = 1  # after the bytes, for readers without the lock

    def cancel(self) -> None:
        """End another thread's fetch: the missing units fail."""
        self._ongoing.cancel()

    def _part(self, unit: int) -> tuple[ObjectRange, int]:
        file = int(np.searchsorted(self.first_unit, unit, side="right")) - 1
        offset = (unit - int(self.first_unit[file])) * UNIT_BYTES
        n_bytes = min(UNIT_BYTES, self._seen[file].size - offset)
        memory = memoryview(bytearray(n_bytes))
        part = ObjectRange(object_at(self._files[file]), self._seen[file], offset, memory)
        return part, int(self.start[file]) + offset

    def close(self) -> None:
        self._is_there = np.zeros(0, np.uint8)
        with suppress(BufferError):
            self._map.close()
        for descriptor in (self.data, self._units, self._about):
            if descriptor >= 0:
                os.close(descriptor)
        self.data = self._units = self._about = -1

    def __del__(self) -> None:  # the descriptor's lock keeps the folder
        if getattr(self, "_is_there", None) is not None:
            self.close()


def _write(descriptor: int, data: memoryview, place: int) -> None:
    while data:
        n_bytes = os.pwrite(descriptor, data, place)
        data, place = data[n_bytes:], place + n_bytes


# --- folders of data sets ------------------------------------------------------------------------


def _boot() -> str:
    """Return the machine's boot id.

    Caches of an earlier boot are not used: a crash can lose data of units marked as written.
    """
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _opened(folder: Path, path: Path, sizes: NDArray[np.int64]) -> int:
    """Open `about` of a data set's folder, and lock the folder; make the folder if missing."""
    while True:
        try:
            descriptor = os.open(path / "about", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            _make(folder, path, sizes)
            continue
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        try:
            is_same = os.fstat(descriptor).st_ino == (path / "about").stat().st_ino
        except FileNotFoundError:
            is_same = False
        if is_same and json.loads(os.pread(descriptor, 4096, 0)).get("boot") == _boot():
            os.utime(descriptor)
            return descriptor
        os.close(descriptor)
        if is_same and not _remove(path):
            raise OSError(errno.EBUSY, f"{path} is of another boot, and in use")


def _make(folder: Path, path: Path, sizes: NDArray[np.int64]) -> None:
    budget = _budget(folder)
    rooms = np.cumsum(-(-sizes // PAGE_BYTES) * PAGE_BYTES)
    budget = _made_room(folder, min(budget, int(rooms[-1]) if len(rooms) else 0), budget)
    n_cached = int(np.searchsorted(rooms, budget, side="right"))
    n_units = int((-(-sizes[:n_cached] // UNIT_BYTES)).sum())
    draft = folder / f".{path.name}.{os.getpid()}.{time.monotonic_ns()}"
    draft.mkdir()
    for name, size in (("data", int(rooms[n_cached - 1]) if n_cached else 0), ("units", n_units)):
        with drafts.create(draft / name) as file:
            file.truncate(max(1, size))
    about = {"version": VERSION, "boot": _boot(), "n_cached": n_cached}
    drafts.write(draft / "about", json.dumps(about))
    try:
        draft.rename(path)
    except OSError:  # another process was first
        shutil.rmtree(draft, ignore_errors=True)
        if not (path / "about").exists():
            raise


def _made_room(folder: Path, wanted: int, budget: int) -> int:
    """Return how many bytes of the budget a new data set may take.

    To make room, remove unused data sets, the longest unused first, and drafts of ended processes.
    """
    others = []
    for each in folder.iterdir():
        with suppress(OSError):
            if DRAFT_NAME.fullmatch(each.name):
                if time.time() - each.stat().st_mtime > MADE_S:
                    shutil.rmtree(each, ignore_errors=True)
            elif SET_NAME.fullmatch(each.name):
                state = (each / "about").stat()
                others.append((state.st_mtime, (each / "data").stat().st_size, each))
    used = sum(size for _, size, _ in others)
    for _, size, each in sorted(others):
        if used + wanted <= budget:
            break
        if _remove(each):
            used -= size
    return max(0, min(wanted, budget - used))


def _remove(path: Path) -> bool:
    """Remove a data set's folder, unless a process uses it."""
    try:
        descriptor = os.open(path / "about", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        gone = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


# --- reads ---------------------------------------------------------------------------------------


class CachedReads:
    """Reads like RemoteReads, of cached objects through the cache."""

    def __init__(self, folder: Path, files: Sequence[str], seen: Callable[[int], Seen]) -> None:
        self._folder = folder
        self._files = files
        self._seen = [seen(number) for number in range(len(files))]
        self._past = RemoteReads(files, seen)
        self._cache: NodeCache | None = None
        self.why: dict[int, str] = {}

    def read(
        self,
        requests: NDArray[np.void],
        file: NDArray[np.uint32],
        memory: NDArray[np.uint8],
        depth: int,
        local: Local,
    ) -> tuple[int, int]:
        """Fill the requests, as RemoteReads.  local: fills requests from the cache's file."""
        begun = time.perf_counter_ns()
        cache = self._opened()
        self.why = {}
        is_cached = file < cache.n_cached
        inside, past = np.flatnonzero(is_cached), np.flatnonzero(~is_cached)
        latency_ns = 0
        if len(inside):
            asked, of = requests[inside], file[inside].astype(np.int64)
            self._bring(cache, asked, of, inside, depth)
            is_good = asked["error"] == 0
            good = asked[is_good]
            good["fd"], good["direct_fd"] = cache.data, -1
            offset = good["offset"].copy()
            good["offset"] += cache.start[of[is_good]]
            local(good)
            good["offset"] = offset
            asked[is_good] = good
            requests[inside] = asked
        if len(past):
            asked = requests[past]
            _, latency_ns = self._past.read(asked, file[past], memory, depth)
            requests[past] = asked
            self.why |= {int(past[number]): why for number, why in self._past.why.items()}
        return time.perf_counter_ns() - begun, latency_ns

    def _bring(
        self,
        cache: NodeCache,
        asked: NDArray[np.void],
        file: NDArray[np.int64],
        numbers: NDArray[np.int64],
        depth: int,
    ) -> None:
        """Fetch the units of the requests; set an error in each request with a failed unit."""
        first, end = cache.units_of(file, asked["offset"], asked["length"])
        spans = [np.arange(a, b) for a, b in zip(first.tolist(), end.tolist(), strict=True)]
        units = np.unique(np.concatenate(spans)) if spans else np.zeros(0, np.int64)
        failed = cache.bring(units.astype(np.int64), min(depth, GROUP_UNITS))
        asked["error"] = 0
        for unit, (code, why) in failed.items():
            for number in np.flatnonzero((first <= unit) & (unit < end)).tolist():
                asked["error"][number] = code
                self.why[int(numbers[number])] = why

    def _opened(self) -> NodeCache:
        cache = self._cache
        if cache is None or cache.pid != os.getpid():  # a parent's locks stay with the parent
            cache = self._cache = NodeCache(self._folder, self._files, self._seen)
        return cache

    def cancel(self) -> None:
        """End a read in another thread, as RemoteReads.cancel does."""
        self._past.cancel()
        if self._cache is not None:
            self._cache.cancel()

    def close(self) -> None:
        """Close the cache, which other processes may then remove."""
        cache, self._cache = self._cache, None
        if cache is not None:
            cache.close()
