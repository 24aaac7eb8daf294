"""Read records into memory: a portion's reads, many in flight, with the engine in native/feed.

The module handles files, descriptors and buffers, not epochs or batches.  Failures are reported per
record: after a failed merged read, each record is read alone.
"""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed import arguments, pages
from penstock.feed.byte_file import LocalFile, opened
from penstock.feed.index import Index
from penstock.feed.memory import Buffer, available_bytes
from penstock.feed.plan import (
    MERGED_WHOLLY,
    PAGE_BYTES,
    Depth,
    PlanTable,
    PortionLayout,
    fitted,
    gap_of,
    most_room,
)

if TYPE_CHECKING:
    from penstock.feed.node_cache import CachedReads
    from penstock.feed.remote import RemoteReads

__all__ = [
    "ENGINES",
    "Buffer",
    "Loaded",
    "Options",
    "ReadEngine",
    "Reader",
    "SharedReading",
    "Tally",
    "UnreadRecord",
    "available_bytes",
    "gap_for",
    "held_in_memory",
    "is_watched",
    "library",
    "table_of",
]

ENGINES = {"auto": 3, "uring": 2, "threads": 1}  # enum feed_kind of native/feed/feed.h
TRY_MEMORY, WHOLE_FILES, STAY_DEEP = 1, 2, 4  # enum feed_flags
MOST_IN_FLIGHT = 256  # MOST_THREADS of native/feed/engine.c

REQUEST = np.dtype(
    [
        ("destination", "<u8"),
        ("offset", "<i8"),
        ("length", "<i8"),
        ("moved", "<i8"),
        ("latency_ns", "<i8"),
        ("path", "<u8"),
        ("written_ns", "<i8"),
        ("fd", "<i4"),
        ("direct_fd", "<i4"),
        ("error", "<i4"),
        ("how", "<i4"),
    ]
)

TALLY = np.dtype(
    [
        ("elapsed_ns", "<i8"),
        ("latency_ns", "<i8"),
        ("bytes", "<i8"),
        ("from_memory", "<u4"),
        ("read", "<u4"),
        ("failed", "<u4"),
        ("direct", "<u4"),
        ("direct_refused", "<u4"),
        ("used_uring", "<u4"),
    ]
)


# A process may usually open 1,024 files; O_DIRECT takes twice as many descriptors.
OPEN_FILES = 128
# Portions that skip the page cache's check after a portion with nothing in memory.
ASKED_AGAIN_AFTER = 8
ALL_SHARE = 0.99  # free pages of an LMDB may be in no memory
ASKED_OF = 16  # if all records were in memory: check one in 16,
ASKED_AT_MOST = 32  # and at most 32 of a long list; the kernel evicts large parts
MEMORY_SHARE = 0.8  # above this share of free memory, a data set is read with O_DIRECT
# Initial number of requests to a store in flight.  With 20 ms per request, a start at 8 would need
# 16 portions of 0.1 s to learn the better value 64.
FIRST_REMOTE_DEPTH = 32
LEAST_PIECE_BYTES = 256 << 10  # at 200 MB/s and 2,000 requests/s, a request costs 100 KB


@dataclass(frozen=True, slots=True)
class Options:
    """How records are read.

    engine: one of ENGINES.
    direct: O_DIRECT; None: if the data set is larger than memory.
    coalesce_bytes: merge neighbours into reads of about so many bytes; 0: one read per record.
    gap_bytes: the largest gap between neighbours to read in a merge; None: by the records' size
    (plan.gap_of).
    depth: requests in flight; None: adapted.
    mapped: return records of the page cache in place, through a map of the file.
    """

    engine: str = "auto"
    direct: bool | None = None
    coalesce_bytes: int = 4 << 20
    gap_bytes: int | None = None
    depth: int | None = None
    mapped: bool = False

    def __post_init__(self) -> None:
        whole, flag = arguments.whole, arguments.flag
        arguments.one_of("engine", self.engine, ENGINES)
        for name, value in (
            ("direct", flag("direct", self.direct, or_none=True)),
            ("coalesce_bytes", whole("coalesce_bytes", self.coalesce_bytes)),
            ("gap_bytes", whole("gap_bytes", self.gap_bytes, or_none=True)),
            ("depth", whole("depth", self.depth, 1, MOST_IN_FLIGHT, or_none=True)),
            ("mapped", flag("mapped", self.mapped)),
        ):
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of reads.

    reads: requests to the kernel.  from_memory: requests served at once from the page cache.
    direct: requests with O_DIRECT.  in_place: records returned from the page cache without a
    request.  read_bytes: bytes requested from files, with gaps.  record_bytes: bytes of records.
    """

    portions: int = 0
    reads: int = 0
    from_memory: int = 0
    direct: int = 0
    in_place: int = 0
    failed: int = 0
    by_uring: int = 0
    read_bytes: int = 0
    record_bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(  # field by field: a look-up by name took 10 % of a portion in memory
            self.portions + other.portions,
            self.reads + other.reads,
            self.from_memory + other.from_memory,
            self.direct + other.direct,
            self.in_place + other.in_place,
            self.failed + other.failed,
            self.by_uring + other.by_uring,
            self.read_bytes + other.read_bytes,
            self.record_bytes + other.record_bytes,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class UnreadRecord:
    """An unread record: number in the index, and the reason as a sentence."""

    record: int
    why: str


@dataclass(frozen=True, slots=True, eq=False)
class Loaded:
    """Records in read-only memory.  at: offset of each record in memory, in the requested
    sequence."""

    records: NDArray[np.int64]
    at: NDArray[np.int64]
    failures: tuple[UnreadRecord, ...]
    memory: memoryview

    def part(self, first: int, end: int) -> Loaded:
        """Return some of the records; only for records without failures."""
        return Loaded(self.records[first:end], self.at[first:end], (), self.memory)


def table_of(index: Index) -> PlanTable:
    """Return the columns of an index for the planner."""
    return PlanTable(index.file, index.offset, index.length)


def gap_for(index: Index, table: PlanTable) -> int:
    """Return the largest gap worth reading between two records of a data set.  For a store, at most
    a page: bytes of a store cost money or are shared with other nodes."""
    gap_bytes = gap_of(table)
    return min(gap_bytes, PAGE_BYTES) if index.is_remote else gap_bytes


# --- the native library --------------------------------------------------------------------------

_native: dict[str, Any] = {}


def library() -> Any:
    """Return the functions of native/feed/feed.h.  Raises FeedError: the library is not built."""
    cdll = _native.get("library")
    if cdll is not None:
        return cdll
    import ctypes

    path = Path(__file__).parent.parent / "libfeed.so"
    try:
        cdll = ctypes.CDLL(str(path))  # ctypes releases the GIL: the reason for this library
    except OSError as error:
        raise FeedError(
            f"the reader does not load: {error}; `make native` builds it, or reinstall penstock"
        ) from error
    pointer, number, wide = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32
    for name, result, takes in (
        ("open", pointer, (number, ctypes.c_uint, ctypes.POINTER(number))),
        ("read", number, (pointer, pointer, wide, ctypes.c_uint, ctypes.c_uint, pointer)),
        ("close", None, (pointer,)),
        ("forget", None, (pointer,)),
        ("is_watched", number, ()),
        ("held", number, (number, pointer, pointer, pointer, wide)),
        ("all_held", number, (number, pointer, pointer, wide)),
        ("ends_held", number, (number, pointer, pointer, wide)),
        ("cached", ctypes.c_int64, (number,)),
        ("map", number, (number, pointer, ctypes.c_int64)),
        ("hint", number, (number, pointer, pointer, wide, wide)),
        ("load", wide, (pointer,)),
        ("store", None, (pointer, wide)),
        ("add", wide, (pointer, wide)),
        ("wait", number, (pointer, wide, ctypes.c_uint)),
    ):
        function = getattr(cdll, f"penstock_feed_{name}")
        function.restype, function.argtypes = result, takes
    _native["library"] = cdll
    return cdll


def is_watched() -> bool:
    """Return whether a recorder sees this process' reads.  Reads are then plain preads, see
    docs/feed.md."""
    return bool(library().penstock_feed_is_watched())


class ReadEngine:
    """Reads in flight, for one thread at a time; a second thread is refused.  After a fork, the
    child makes a new engine."""

    def __init__(self, kind: str = "auto", most: int = MOST_IN_FLIGHT) -> None:
        import ctypes

        self._library = library()
        self._pid = os.getpid()
        self._in_use = threading.Lock()
        error = ctypes.c_int(0)
        self._handle = self._library.penstock_feed_open(ENGINES[kind], most, ctypes.byref(error))
        if not self._handle:
            why = os.strerror(-error.value)
            raise FeedError(f"io_uring cannot be used here: {why}; engine='auto' does without")

    def read(self, requests: NDArray[np.void], depth: int, flags: int) -> NDArray[np.void]:
        """Run the requests, an array of REQUEST, and return one TALLY."""
        tally = np.zeros(1, TALLY)
        if not self._in_use.acquire(blocking=False):
            raise FeedError(
                "another thread reads with this reader; give each thread a Feed or Reader of its "
                "own, or share a FeedDataset"
            )
        try:
            failed = self._library.penstock_feed_read(
                self._handle, requests.ctypes.data, len(requests), depth, flags, tally.ctypes.data
            )
        finally:
            self._in_use.release()
        if failed:
            raise FeedError(f"the reader cannot read: {os.strerror(-failed)}; please report it")
        done: NDArray[np.void] = tally[0]
        return done

    def is_ours(self) -> bool:
        return self._handle is not None and self._pid == os.getpid()

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is None:
            return
        if self._pid == os.getpid():
            self._library.penstock_feed_close(handle)
        else:
            self._library.penstock_feed_forget(handle)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) is not None:
            self.close()


# --- files ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Mapped:
    """Files mapped one after the other.  memory: None: mapping failed.  is_placed: records with
    checked headers, valid while the file is unchanged."""

    memory: memoryview | None
    starts: NDArray[np.int64]
    is_placed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, bool))


class _Files:
    """An index's files for the engine: open descriptors, or names if there are too many files."""

    def __init__(self, index: Index, is_direct: bool) -> None:
        self.index = index
        self.is_direct = is_direct
        self.is_named = index.kind == "folder" or len(index.files) > OPEN_FILES
        self._open: dict[int, tuple[int, int]] = {}
        self._metas: dict[int, pages.Meta] = {}
        self._names: NDArray[np.uint8] | None = None
        self._name_at = self._written_ns = np.zeros(0, np.int64)

    def fill(self, requests: NDArray[np.void], file: NDArray[np.uint32]) -> None:
        requests["fd"], requests["direct_fd"] = -1, -1
        if self.is_named:
            names = self._names if self._names is not None else self._encoded()
            requests["path"] = names.ctypes.data + self._name_at[file]
            requests["written_ns"] = self._written_ns[file]
            return
        for number, of_file in self.parts(file):
            requests["fd"][of_file], requests["direct_fd"][of_file] = self.descriptors(number)

    def of(self, records: NDArray[np.int64]) -> list[int]:
        """Return the files of some records, without duplicates."""
        if len(self.index.files) == 1:
            return self.numbers(records)
        return self.numbers(self.index.file[records])

    def numbers(self, file: NDArray[Any]) -> list[int]:
        """Return the distinct files of a list."""
        if not len(file):
            return []
        if len(self.index.files) == 1:  # most data sets; a sort would take 10 % of a read
            return [0]
        numbers: list[int] = np.unique(file).tolist()
        return numbers

    def parts(self, file: NDArray[np.uint32]) -> list[tuple[int, Any]]:
        """Return the distinct files of a list with their positions; a slice for a single file."""
        numbers = self.numbers(file)
        if len(numbers) == 1:
            return [(numbers[0], slice(None))]
        return [(number, file == number) for number in numbers]

    def descriptors(self, number: int) -> tuple[int, int]:
        """Return a file's descriptors, plain and O_DIRECT; -1: not requested or refused."""
        descriptors = self._open.get(number)
        if descriptors is None:
            descriptors = self._open[number] = self._opened(self.index.files[number])
        return descriptors

    def check(self, number: int) -> None:
        """Raise FeedError if a file has changed since it was indexed.  For an object, each answer
        was compared before."""
        if self.index.is_remote:
            return
        if self.is_named:
            self.index.check_file(number)
            return
        descriptor, _ = self.descriptors(number)
        txnid = -1
        if self.index.kind == "lmdb":
            path, meta = self.index.files[number], self.meta(number)
            txnid = pages.newest_txnid(LocalFile(descriptor), meta, path)
        self.index.check_file(number, os.fstat(descriptor), txnid)

    def meta(self, number: int) -> pages.Meta:
        """Return an LMDB's meta page, read once."""
        meta_page = self._metas.get(number)
        if meta_page is None:
            path = self.index.files[number]
            if self.is_named or self.index.is_remote:
                with opened(path) as source:
                    meta_page = pages.read_meta(source, path)
            else:
                meta_page = pages.read_meta(LocalFile(self.descriptors(number)[0]), path)
            self._metas[number] = meta_page
        return meta_page

    def head_bytes(self, file: NDArray[np.uint32], offset: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the bytes of the page header before each offset of an LMDB, 0 without a header."""
        head_bytes = np.zeros(len(offset), np.int64)
        for number, mine in self.parts(file):
            meta = self.meta(number)
            head_bytes[mine] = pages.in_overflow(meta, offset[mine]) * meta.layout.header_bytes
        return head_bytes

    def holds(
        self,
        file: NDArray[np.uint32],
        offset: NDArray[np.int64],
        length: NDArray[np.int64],
        by_page: bool = False,
    ) -> bool:
        """Return whether the page cache has all of the spans.  by_page: check only the last page of
        each span.  False also means that the kernel does not report the state."""
        held = library().penstock_feed_ends_held if by_page else library().penstock_feed_all_held
        for number, of_file in self.parts(file):
            at, size = np.ascontiguousarray(offset[of_file]), np.ascontiguousarray(length[of_file])
            descriptor, _ = self.descriptors(number)
            if held(descriptor, at.ctypes.data, size.ctypes.data, len(at)) != 1:
                return False
        return True

    def are_held(self) -> bool:
        """Return whether the page cache has at least 99 % of the files' bytes."""
        opened = [self.descriptors(number)[0] for number in range(len(self.index.files))]
        cached = [library().penstock_feed_cached(descriptor) for descriptor in opened]
        sizes = [os.fstat(descriptor).st_size for descriptor in opened]
        return bool(min(cached) >= 0 and sum(cached) >= ALL_SHARE * sum(sizes))

    def mapped(self) -> _Mapped:
        """Map all files in one address range.  The result has no memory if there are too many files
        or if mapping fails."""
        sizes = np.zeros(len(self.index.files), np.int64)
        if self.is_named:
            return _Mapped(None, sizes)
        for number in range(len(sizes)):
            self.check(number)  # a map beyond the file's end would raise SIGBUS
            sizes[number] = os.fstat(self.descriptors(number)[0]).st_size
        rooms = -(-sizes // mmap.PAGESIZE) * mmap.PAGESIZE
        starts = np.cumsum(rooms) - rooms
        try:
            # Reserves addresses, no memory; the last view's end unmaps the whole range.
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            memory = mmap.mmap(-1, int(rooms.sum()), flags=flags, prot=mmap.PROT_READ)
        except (OSError, ValueError):
            return _Mapped(None, starts)
        base = np.frombuffer(memory, np.uint8).ctypes.data
        for number in np.flatnonzero(sizes).tolist():
            descriptor, _ = self.descriptors(number)
            place = base + int(starts[number])
            if library().penstock_feed_map(descriptor, place, int(sizes[number])):
                return _Mapped(None, starts)  # file system without maps
        is_placed = np.zeros(len(self.index), bool)
        return _Mapped(memoryview(memory).toreadonly(), starts, is_placed)

    def _opened(self, path: str) -> tuple[int, int]:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise FeedError(f"{path}: cannot be read: {error.strerror}") from error
        # The requests cover all needed bytes: the kernel need not read ahead.
        _advise(descriptor, os.POSIX_FADV_RANDOM)
        direct = -1
        if self.is_direct:
            try:
                direct = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECT)
            except OSError:  # tmpfs and some network file systems have no O_DIRECT
                direct = -1
        return descriptor, direct

    def _encoded(self) -> NDArray[np.uint8]:
        encoded = [os.fsencode(path) + b"\0" for path in self.index.files]
        lengths = np.fromiter(map(len, encoded), np.int64, len(encoded))
        self._name_at = np.cumsum(lengths) - lengths
        self._names = np.frombuffer(b"".join(encoded), np.uint8)
        self._written_ns = self.index.written_ns
        return self._names

    def close(self) -> None:
        for pair in self._open.values():
            for descriptor in pair:
                if descriptor >= 0:
                    os.close(descriptor)
        self._open.clear()
        self._metas.clear()

    def __del__(self) -> None:  # for a thread that has ended
        self.close()


def _advise(descriptor: int, advice: int) -> None:
    try:
        os.posix_fadvise(descriptor, 0, 0, advice)
    except OSError:
        return


# --- the reader ----------------------------------------------------------------------------------


@dataclass(slots=True)
class SharedReading:
    """State shared by the readers of a data set: depth, page cache use, tally.  Each reader writes
    the state at the end of a portion."""

    depth: Depth
    is_fixed: bool
    skip_memory: int = 0  # remaining portions without a check of the page cache
    is_warm: bool = False  # the last check found over 90 % in the page cache
    is_held: bool = False  # the page cache has all files, as last checked
    tally: Tally = field(default_factory=Tally)
    lock: threading.Lock = field(default_factory=threading.Lock)
    pid: int = field(default_factory=os.getpid)

    def note(self, native: NDArray[np.void], loaded: Tally, asked_memory: bool) -> None:
        with self.lock:
            self.tally += loaded
            n_read = int(native["read"])
            if not self.is_fixed:
                waited_s = int(native["latency_ns"]) / 1e9
                read_bytes = int(native["bytes"]) if not native["from_memory"] else 0
                if read_bytes:
                    self.depth = self.depth.after(n_read, read_bytes, loaded.seconds, waited_s)
            if asked_memory:
                self.is_warm = int(native["from_memory"]) > 9 * n_read
            if asked_memory and not native["from_memory"]:
                self.skip_memory = ASKED_AGAIN_AFTER
            elif self.skip_memory:
                self.skip_memory -= 1


class Reader:
    """Read records of one data set, for one thread at a time; a second thread is refused.  After a
    fork or pickling, a Reader opens new resources on first use."""

    def __init__(
        self, index: Index, options: Options, reading: SharedReading | None = None
    ) -> None:
        self.index = index
        self.options = options
        self.table = table_of(index)
        self._gap_bytes = gap_for(index, self.table)
        self.reading = reading or _reading(options, index.is_remote)
        self._remote: RemoteReads | CachedReads | None = None
        self._engine: ReadEngine | None = None
        self._files: _Files | None = None
        self._mapped: _Mapped | None = None
        self._direct: bool | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Reader, (self.index, self.options)

    def open(self) -> None:
        """Open the files and keep the descriptors: a later replacement of a file is not read.
        Raises FeedError: a file cannot be opened."""
        _, files, _ = self._opened()
        if not files.is_named and not self.index.is_remote:
            for number in range(len(self.index.files)):
                files.descriptors(number)

    def layout(self, records: NDArray[np.int64], most_bytes: int = MERGED_WHOLLY) -> PortionLayout:
        """Return the layout of records in memory, within most_bytes if merging allows.  See
        plan.layout."""
        gap_bytes, piece_bytes = self.options.gap_bytes, self.options.coalesce_bytes
        if gap_bytes is None:
            gap_bytes = self._gap_bytes
        if self.reading.is_warm:  # copying a gap costs time, a call only 1 us
            gap_bytes = min(gap_bytes, PAGE_BYTES)
        if piece_bytes and not self.is_direct:
            # Through the page cache, a large read becomes many requests in sequence.  On remote
            # storage, parallel pieces matter most.
            depth = self.options.depth or self.reading.depth.value
            each = int(self.table.length[records].sum()) // depth
            piece_bytes = min(piece_bytes, max(LEAST_PIECE_BYTES, each))
        return fitted(self.table, records, piece_bytes, gap_bytes, most_bytes)

    def fits(self, records: NDArray[np.int64], most_bytes: int) -> bool:
        """Return whether the records can be read into most_bytes."""
        if most_room(self.table, records) <= most_bytes:  # a fraction of a layout's time
            return True
        return self.layout(records, most_bytes).room <= most_bytes

    def read(
        self,
        records: NDArray[np.int64],
        memory: NDArray[np.uint8],
        plan: PortionLayout | None = None,
    ) -> Loaded:
        """Read records into page-aligned memory with the room of the layout.  Failed records are in
        Loaded.failures.  Raises FeedError: no file can be opened, or memory is too small."""
        plan = plan or self.layout(records)
        if plan.room > len(memory):
            raise FeedError(f"{plan.room:,} bytes do not fit a buffer of {len(memory):,}")
        requests = np.zeros(len(plan.offset), REQUEST)
        requests["destination"] = memory.ctypes.data + plan.place
        requests["offset"], requests["length"] = plan.offset, plan.length
        bad = self._run(requests, plan.file, int(self.table.length[records].sum()), memory)
        failures: tuple[UnreadRecord, ...] = ()
        if bad.any():
            alone = np.flatnonzero(bad[plan.read])
            failures = self._again(records, plan.at, alone, memory)
        if self.index.kind == "lmdb":
            failures += self._misplaced(records, plan.at, failures, memory)
        return Loaded(records, plan.at, failures, memory.data.toreadonly())

    def in_place(self, records: NDArray[np.int64]) -> Loaded | None:
        """Return records in place from the page cache, to be passed to `given`.  None: some records
        are not in the page cache, mapping is off or impossible, or a recorder watches (the recorder
        would see no read).  Raises FeedError: no file can be opened."""
        reading, table = self.reading, self.table
        is_local = not self.index.is_remote
        if not self.options.mapped or not is_local or reading.skip_memory or is_watched():
            return None
        _, files, _ = self._opened()
        if self._mapped is None:
            self._mapped = files.mapped()
            reading.is_held = self._mapped.memory is not None and files.are_held()
        mapped = self._mapped
        if mapped.memory is None:
            return None
        by_page = reading.is_held
        asked = records
        if by_page:
            asked = records[:: max(ASKED_OF, len(records) // ASKED_AT_MOST)]
        if not files.holds(table.file[asked], table.offset[asked], table.length[asked], by_page):
            reading.is_held = False
            return None
        at = mapped.starts[table.file[records]] + table.offset[records]
        failures: tuple[UnreadRecord, ...] = ()
        # Check each record's header once.  The check stays valid while `confirmed` finds the file
        # unchanged.  Touching an unused page takes as long as reading a small record.
        if self.index.kind == "lmdb" and not mapped.is_placed[records].all():
            whole = np.frombuffer(mapped.memory, np.uint8)
            failures = self._misplaced(records, at, (), whole)
            mapped.is_placed[records] = not failures
        return Loaded(records, at, failures, mapped.memory)

    def given(self, loaded: Loaded) -> Loaded | None:
        """Confirm and count records found in place; None: a recorder watches now."""
        if is_watched():
            return None
        confirmed = self.confirmed(loaded)
        record_bytes = int(self.table.length[loaded.records].sum())
        with self.reading.lock:
            self.reading.tally += Tally(
                portions=1, in_place=len(loaded.records), record_bytes=record_bytes
            )
        return confirmed

    def cancel(self) -> None:
        """End a read from a store in another thread; the records of the read fail."""
        if self._remote is not None:
            self._remote.cancel()

    def _run(
        self,
        requests: NDArray[np.void],
        file: NDArray[np.uint32],
        record_bytes: int,
        memory: NDArray[np.uint8],
    ) -> NDArray[np.bool_]:
        """Run the reads and return a flag per read: failed."""
        engine, files, reading = self._opened()
        if self.index.kind == "lmdb":
            # Also read the page header before a value that begins a page; both are in one page.
            heads = files.head_bytes(file, requests["offset"])
            requests["destination"] -= heads.astype(np.uint64)
            requests["offset"] -= heads
            requests["length"] += heads
        depth = self.options.depth or reading.depth.value
        asks = not reading.skip_memory and not self.index.is_remote
        if self.index.is_remote:
            native = self._run_remote(engine, requests, file, memory, depth)
        else:
            files.fill(requests, file)
            whole = WHOLE_FILES if self.index.kind == "folder" else 0
            native = engine.read(requests, depth, (TRY_MEMORY if asks else 0) | whole)
        done = Tally(
            portions=1,
            reads=int(native["read"]) + int(native["from_memory"]),
            from_memory=int(native["from_memory"]),
            direct=int(native["direct"]),
            failed=int(native["failed"]),
            by_uring=int(native["used_uring"]),
            read_bytes=int(native["bytes"]),
            record_bytes=record_bytes,
            seconds=int(native["elapsed_ns"]) / 1e9,
        )
        reading.note(native, done, asks)
        bad: NDArray[np.bool_] = requests["error"] != 0
        return bad

    def _run_remote(
        self,
        engine: ReadEngine,
        requests: NDArray[np.void],
        file: NDArray[np.uint32],
        memory: NDArray[np.uint8],
        depth: int,
    ) -> NDArray[np.void]:
        """Run the reads from a store.  Raises FeedError: an object has changed, so earlier reads of
        the object are not valid either."""
        remote = self._remote
        if remote is None:
            from penstock.feed import node_cache
            from penstock.feed import remote as stores

            folder = node_cache.cache_folder()
            files, seen = self.index.files, self.index.seen
            remote = self._remote = (
                stores.RemoteReads(files, seen)
                if folder is None
                else node_cache.CachedReads(folder, files, seen)
            )
        tally = np.zeros(1, TALLY)
        native: NDArray[np.void] = tally[0]

        def local(cached: NDArray[np.void]) -> None:
            engine.read(cached, depth, TRY_MEMORY)
            native["from_memory"] = len(cached)

        elapsed_ns, latency_ns = remote.read(requests, file, memory, depth, local)
        native["elapsed_ns"], native["latency_ns"] = elapsed_ns, latency_ns
        native["read"] = len(requests) - int(native["from_memory"])
        native["bytes"] = int(requests["moved"].sum())
        native["failed"] = int((requests["error"] != 0).sum())
        changed = np.flatnonzero(requests["error"] == errno.ESTALE)
        if len(changed) and self.index.kind != "folder":
            number = int(changed[0])
            path = self.index.files[int(file[number])]
            raise FeedError(f"{path}: {remote.why[number]}; open the data set again")
        return native

    def _again(
        self,
        records: NDArray[np.int64],
        at: NDArray[np.int64],
        alone: NDArray[np.int64],
        memory: NDArray[np.uint8],
    ) -> tuple[UnreadRecord, ...]:
        """Read each record of failed reads alone and return the failures."""
        numbers = records[alone]
        requests = np.zeros(len(alone), REQUEST)
        requests["destination"] = memory.ctypes.data + at[alone]
        requests["offset"] = self.table.offset[numbers]
        requests["length"] = self.table.length[numbers]
        bad = self._run(requests, self.table.file[numbers], 0, memory)
        said = self._remote.why if self._remote is not None else {}
        return tuple(
            UnreadRecord(
                int(numbers[i]),
                self._why(int(numbers[i]), said.get(i) or self._said(requests["error"][i])),
            )
            for i in np.flatnonzero(bad).tolist()
        )

    def _misplaced(
        self,
        records: NDArray[np.int64],
        at: NDArray[np.int64],
        failed: tuple[UnreadRecord, ...],
        memory: NDArray[np.uint8],
    ) -> tuple[UnreadRecord, ...]:
        """Return failures for values preceded by a wrong page header.  The read of a value also
        loads the header before the value.  Raises FeedError: the data set has changed since."""
        _, files, _ = self._opened()
        file, offset = self.table.file[records], self.table.offset[records]
        length = self.table.length[records]
        is_unread = np.isin(records, [failure.record for failure in failed]) if failed else None
        failures = []
        for number, of_file in files.parts(file):
            meta = files.meta(number)
            is_wrong = pages.are_misplaced(
                meta, memory, at[of_file], offset[of_file], length[of_file]
            )
            if is_unread is not None:
                is_wrong &= ~is_unread[of_file]
            if not is_wrong.any():
                continue
            files.check(number)
            for place in np.arange(len(records))[of_file][is_wrong].tolist():
                start = int(at[place]) - meta.layout.header_bytes
                header = memory[start : int(at[place])].tobytes()
                page = (int(offset[place]) - 1) // meta.page_bytes
                wrong = pages.misplaced(meta, header, page, int(length[place]))
                what = f"page {page} {wrong}; the file is damaged, copy it from where it is whole"
                failures.append(
                    UnreadRecord(int(records[place]), self._why(int(records[place]), what))
                )
        return tuple(failures)

    def confirmed(self, loaded: Loaded) -> Loaded:
        """Return `loaded` if the files of the records are unchanged since indexing.  In a folder,
        each file is one record, checked by its own read.  Raises FeedError: another file has
        changed, so no earlier read is valid."""
        if self.index.kind == "folder" or self.index.is_remote:
            return loaded
        _, files, _ = self._opened()
        for number in files.of(loaded.records):
            try:
                files.check(number)
            except FeedError as error:
                if loaded.failures:  # also names the record
                    raise FeedError(loaded.failures[0].why) from error
                raise
        return loaded

    def _said(self, error: int) -> str:
        if error == errno.ENODATA:
            return "the file ends before it; it was truncated since it was indexed"
        if error == errno.ESTALE and self.index.kind == "folder":
            return "the file has changed since it was indexed; open the data set again"
        return os.strerror(error)

    def _why(self, record: int, what: str) -> str:
        path = self.index.files[self.index.file[record]]
        offset, length = int(self.table.offset[record]), int(self.table.length[record])
        key = self.index.key(record)
        shown = key.decode("ascii") if key.isascii() and key.decode().isprintable() else repr(key)
        return f"{path}: record {shown} at {offset:,} with {length:,} bytes: {what}"

    def _opened(self) -> tuple[ReadEngine, _Files, SharedReading]:
        engine, files = self._engine, self._files
        if engine is None or files is None or not engine.is_ours():
            if engine is not None:  # forked: descriptors remain valid, shared with the parent
                engine.close()
            engine = self._engine = ReadEngine(self.options.engine)
        if self.reading.pid != os.getpid():  # a thread of the parent may have held the lock
            self.reading.lock, self.reading.pid = threading.Lock(), os.getpid()
        if files is None:
            files = self._files = _Files(self.index, self.is_direct)
        return engine, files, self.reading

    @property
    def is_direct(self) -> bool:
        """Return whether O_DIRECT is used; decided once, because reads change the free memory."""
        if self.index.is_remote:
            return False
        if self._direct is None:
            self._direct = self.options.direct
        if self._direct is None:
            self._direct = self.index.total_bytes > MEMORY_SHARE * available_bytes()
        return self._direct

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
        if self._files is not None:
            self._files.close()
        if self._remote is not None:
            self._remote.close()
        self._engine = self._files = self._mapped = self._remote = None


def _reading(options: Options, is_remote: bool) -> SharedReading:
    start = Depth(FIRST_REMOTE_DEPTH) if is_remote else Depth()
    if options.depth is not None:
        start = Depth(options.depth, is_settled=True)
    return SharedReading(start, is_fixed=options.depth is not None)


def held_in_memory(
    index: Index, progress: Callable[[int, int], None] | None = None
) -> NDArray[np.bool_] | None:
    """Return a flag per record: in the page cache now; None: unknown (before Linux 6.5)."""
    if index.is_remote:
        return None
    held = np.zeros(len(index), np.uint8)
    by_file = np.argsort(index.file, kind="stable")
    edges = np.searchsorted(index.file[by_file], np.arange(len(index.files) + 1))
    files = _Files(index, is_direct=False)
    try:
        for number in range(len(index.files)):
            of_file = by_file[edges[number] : edges[number + 1]]
            offset = np.ascontiguousarray(index.offset[of_file])
            length = np.ascontiguousarray(index.length[of_file])
            answer = np.zeros(len(of_file), np.uint8)
            descriptor, _ = files.descriptors(number)
            failed = library().penstock_feed_held(
                descriptor, offset.ctypes.data, length.ctypes.data, answer.ctypes.data, len(of_file)
            )
            files.close()
            if failed:
                return None
            held[of_file] = answer
            if progress is not None:
                progress(number + 1, len(index.files))
    finally:
        files.close()
    return held.astype(bool)
