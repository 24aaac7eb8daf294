"""The bytes of a log: with `texts`, the only Python that knows a position in one.  Writes nothing.

docs/FORMAT.md is the format; native/events.h is the same in C, and a test holds all three equal.
Any prefix of a log is a log.  Whatever a file holds, reading it ends, stays inside the file and
inside a few megabytes a batch, and fails only with LogError.

Files are read with `pread`, not mapped: a file that shrinks under a mapping kills the reader.
"""

import dataclasses
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LogError
from penstock.log.seals import is_running, sealed_page
from penstock.log.texts import (
    ACCESS_BLOCK,
    BLOCK_HEAD,
    CALLS_BLOCK,
    EVENTS_BLOCK,
    FILE_TEXT,
    HEADER_BYTES,
    HEADER_PAGE_BYTES,
    LOG_SUFFIX,
    LOG_SUFFIXES,
    MAGIC,
    NAME_TEXT,
    NOTE_TEXT,
    OBJECT_TEXT,
    RECORD_BYTES,
    TEXT_HEAD,
    UNIT_BYTES,
    VERSION,
    LogFile,
    Text,
    decode,
    heads_in,
    index_row,
    is_log_name,
    logs_in,
    text_spans,
    texts_in,
)

__all__ = [
    "ACCESS",
    "BLOCK",
    "CALLS",
    "EVENT",
    "FILE_TEXT",
    "HEADER",
    "LOG_SUFFIX",
    "LOG_SUFFIXES",
    "NAME_TEXT",
    "NOTE_TEXT",
    "OBJECT_TEXT",
    "OPS",
    "OUTCOMES",
    "REST",
    "REST_OP",
    "SECOND_FILE_OPS",
    "TEXT",
    "VERSION",
    "Events",
    "Follower",
    "Header",
    "Log",
    "News",
    "Op",
    "Text",
    "Thread",
    "is_alive",
    "is_log_name",
    "logs_in",
    "looks_like_log",
    "read_header",
    "read_log",
]

Array = NDArray[Any]

REST_OP = 255
LONG_BIT, LONG_SHIFT = 39, 16
IN_FLIGHT = -1
NOT_KNOWN = 0xFFFFFFFF

STATES = {1: "running", 2: "stopped", 3: "exited", 4: "execed", 5: "failed"}
ORIGINS = {1: "run", 2: "record", 3: "fork", 4: "exec", 5: "attach"}
CLOCKS = {0: "ns", 1: "tsc"}
# What came of opening a file of which a tier holds a copy.
OUTCOMES = {
    1: "served",
    2: "changed",
    3: "dropped",
    4: "absent",
    5: "gone",
    6: "damaged",
    7: "direct",
    8: "denied",
    9: "written",
}

# Units read at once: 4 MiB, more than any disk's best request and small beside the tables' buffers.
BATCH_UNITS = 64

# No host is up for 18 years: a time beyond is damage, and is cut so that sums stay in 64 bits.
TIME_LIMIT_NS = 1 << 59

# An anchor pair this far apart fixes the clock's rate better than its nominal value, which the
# recorder measures over one millisecond.
ANCHOR_NS = 10_000_000


def _layout(*fields: str) -> np.dtype[Any]:
    """A packed little-endian struct from lines of `kind name name …`."""
    kinds = {"u16": "<u2", "u32": "<u4", "i32": "<i4", "u64": "<u8", "i64": "<i8"}
    names = [(name, line.split()[0]) for line in fields for name in line.split()[1:]]
    return np.dtype([(name, kinds.get(kind, kind)) for name, kind in names])


HEADER = _layout(
    "S8 magic",
    "u32 version header_bytes unit_bytes event_bytes pid ppid clock origin state",
    "i32 error",
    "u64 units start_ticks start_ns start_unix_ns last_ticks last_ns ticks_per_s",
    "u64 budget_bytes chunk_bytes folded lost unseen attach_ns",
    "u32 slots objects slots_failed rank local_rank world_size",
    "V16 boot_id",
    "V64 host",
    "V192 reason",
    "V512 executable folder",
    "V2048 command",
    "(16,)<u8 opens",
    "u64 waits_from_ns own_calls own_ticks",
)
BLOCK = _layout(
    "u32 magic kind",
    "u64 round",
    "u32 used limit texts thread tid carried",
    "u64 first",
    "V16 name",
)
EVENT = _layout("u64 begun done", "i64 offset", "u32 asked moved")
REST = _layout("u64 mark start asked moved")
TEXT = _layout("u32 bytes kind id base mode tier", "u64 device inode", "i64 size")
_PAIR = _layout("i64 value", "u64 calls")
CALLS = _layout("u32 file op", "u64 calls errors ticks max_ticks first last asked moved")
ACCESS = np.dtype(
    [
        *_layout(
            "u32 file op",
            "u64 calls errors ticks max_ticks first last asked moved max_ticks_bytes",
            "i64 max_end first_offset last_end",
            "u64 sequential consecutive switches unaligned empty",
        ).descr,
        ("buckets", "<u8", (10,)),
        ("sizes", _PAIR, (4,)),
        ("strides", _PAIR, (4,)),
    ]
)

EVENTS_PER_UNIT = (UNIT_BYTES - BLOCK.itemsize) // EVENT.itemsize
assert BLOCK.itemsize % EVENT.itemsize == UNIT_BYTES % EVENT.itemsize == 0

# One row for each block that is kept: where it is and how much of it is whole.
_INDEX = _layout(
    "i64 unit records",
    "u32 kind texts thread tid carried",
    "u64 round first",
    "V16 name",
)
_CARRIED = _layout("u64 key first")
assert BLOCK_HEAD.size == BLOCK.itemsize
assert TEXT_HEAD.size == TEXT.itemsize
assert {
    EVENTS_BLOCK: EVENT.itemsize,
    CALLS_BLOCK: CALLS.itemsize,
    ACCESS_BLOCK: ACCESS.itemsize,
} == RECORD_BYTES


class Op(NamedTuple):
    """A recorded call: its number on disk, the layer it belongs to, what a wait is put down to."""

    number: int
    name: str
    layer: str
    group: str


def _ops(layer: str, group: str, **numbers: int) -> list[Op]:
    return [Op(number, name, layer, group) for name, number in numbers.items()]


# Numbers are never reused.
OPS: tuple[Op, ...] = tuple(
    sorted(
        [
            *_ops("posix", "read", read=3, pread=5, readv=7, preadv=9),
            *_ops("posix", "read", sendfile=36, copy_range=37, splice=38, aio_read_done=44),
            *_ops("posix", "write", write=4, pwrite=6, writev=8, pwritev=10, aio_write_done=45),
            *_ops("posix", "write", fsync=21, fdatasync=22, sync_range=23, syncfs=24, msync=35),
            *_ops("posix", "metadata", open=1, close=2, lseek=11, dup=41),
            *_ops("posix", "metadata", stat=12, fstat=13, lstat=14, access=15, readlink=16),
            *_ops("posix", "metadata", opendir=17, readdir=18, closedir=19, list=20),
            *_ops("posix", "metadata", truncate=25, fallocate=26, rename=27, unlink=28, chmod=47),
            *_ops("posix", "metadata", mkdir=29, rmdir=30, link=31, symlink=32),
            *_ops("posix", "metadata", mmap=33, munmap=34, fadvise=39, readahead=40),
            *_ops("posix", "metadata", aio_read=42, aio_write=43, io_uring=46),
            *_ops("posix", "metadata", cufile_submit=50),
            *_ops("posix", "read", cufile_read=48),
            *_ops("posix", "write", cufile_write=49),
            *_ops("stdio", "metadata", fopen=64, fdopen=65, freopen=66, fclose=67, fseek=70),
            *_ops("stdio", "read", fread=68),
            *_ops("stdio", "write", fwrite=69, fflush=71),
            *_ops("process", "process", fork=96, exec=97, spawn=98),
            *_ops("process", "account", account=99),
            *_ops("wait", "wait", sem_wait=104, cond_wait=105, futex=106, poll=107, select=108),
            *_ops("wait", "wait", epoll=109, waitpid=111, join=112, mutex=113, barrier=114),
            *_ops("wait", "wait", receive=115, signal=116),
            *_ops("wait", "sleep", sleep=110),
            *_ops("wait", "sync", sync=117),
            *_ops("wait", "exchange", collective=118),
            *_ops("app", "app", window=128, step=129, span=130),
        ]
    )
)

# Their `offset` is no offset but the id of the file at the other end.
SECOND_FILE_OPS = ("rename", "link", "sendfile", "copy_range", "splice")


@dataclass(frozen=True, slots=True)
class Header:
    """What a process says about itself.  Times are of CLOCK_MONOTONIC unless they say unix.

    clock is "ns" or "tsc"; state one of running, stopped, exited, execed, failed ("unknown" where a
    damaged file says something else); rank, local_rank and world_size are None where not known.
    Waits of waits_from_ns and longer are recorded; 0: the recorder that wrote it recorded none.
    own_calls, own_ticks: system calls of the recorder's own, and their time; 0: not counted.
    """

    version: int
    pid: int
    ppid: int
    clock: str
    origin: str
    state: str
    error: int
    units: int
    start_ticks: int
    start_ns: int
    start_unix_ns: int
    last_ticks: int
    last_ns: int
    ticks_per_s: int
    budget_bytes: int
    chunk_bytes: int
    folded: int
    lost: int
    unseen: int
    attach_ns: int
    slots: int
    objects: int
    slots_failed: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    boot_id: str
    host: str
    reason: str
    executable: str
    folder: str
    command: tuple[str, ...]
    opens: tuple[tuple[str, int], ...]  # of staged files, by outcome: those that occurred
    waits_from_ns: int
    own_calls: int
    own_ticks: int

    @property
    def anchored_ns(self) -> int:
        """How far apart the two readings of both clocks are; 0 where too near to give a rate."""
        ns = self.last_ns - self.start_ns
        return ns if ns >= ANCHOR_NS and self.last_ticks > self.start_ticks else 0

    @property
    def ns_per_tick(self) -> float:
        """The rate of this log's clock: from its own anchors, else its nominal rate."""
        if self.clock == "ns":
            return 1.0
        if self.anchored_ns:
            return self.anchored_ns / (self.last_ticks - self.start_ticks)
        return 1e9 / self.ticks_per_s if self.ticks_per_s else 1.0

    def to_ns(self, ticks: Array, ns_per_tick: float | None = None) -> Array:
        """Ticks of this log's clock (uint64) as CLOCK_MONOTONIC nanoseconds (int64)."""
        since = (ticks - np.uint64(self.start_ticks)).view(np.int64)  # what is earlier: negative
        ns: Array = _rounded(since * (ns_per_tick or self.ns_per_tick))
        ns += min(self.start_ns, TIME_LIMIT_NS)
        return ns


class Thread(NamedTuple):
    """A thread of the log's process, numbered from 1 in order of its first call."""

    number: int
    tid: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events as columns of one length.

    start_ns: int64, CLOCK_MONOTONIC of the log's host.  duration_ns: int64, -1 in flight.
    offset: int64, -1 unknown; the second file's id for SECOND_FILE_OPS.  asked, moved: int64, bytes
    or what docs/FORMAT.md says for the op.  thread, file: uint32.  op, errno: uint8.
    """

    thread: Array
    op: Array
    errno: Array
    file: Array
    start_ns: Array
    duration_ns: Array
    offset: Array
    asked: Array
    moved: Array

    def __len__(self) -> int:
        return len(self.op)

    @staticmethod
    def none() -> "Events":
        """No events."""
        kinds = (np.uint32, np.uint8, np.uint8, np.uint32, *[np.int64] * 5)
        return Events(*(np.empty(0, kind) for kind in kinds))

    def where(self, mask: Array) -> "Events":
        """The events that a boolean mask, or an array of positions, chooses."""
        return Events(*(getattr(self, name)[mask] for name in Events.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """One log: its header, and where its blocks are.  Events, texts and counters are read anew each
    time they are asked for, a batch at a time.

    blocks: one row for each block, in the file's order; of two equal rounds only the fuller.
    bases: ids of the folders that relative names start from.
    is_torn: units are missing at the end, or the last one is cut.
    damaged_units: units that are neither empty nor a whole block; what they held is not read.
    """

    path: str
    header: Header
    blocks: Array
    bases: frozenset[int]
    is_torn: bool
    damaged_units: int
    _carried: Array

    @property
    def anchored_ns(self) -> int:
        """As its header's."""
        return self.header.anchored_ns

    @property
    def ns_per_tick(self) -> float:
        """As its header's."""
        return self.header.ns_per_tick

    def to_ns(self, ticks: Array, ns_per_tick: float | None = None) -> Array:
        """As its header's."""
        return self.header.to_ns(ticks, ns_per_tick)

    @property
    def threads(self) -> tuple[Thread, ...]:
        """Threads in order of their numbers, each with its latest name."""
        latest: dict[int, Thread] = {}
        rows = self.event_blocks
        for row in rows[np.argsort(rows["first"], kind="stable")]:
            number = int(row["thread"])
            latest[number] = Thread(number, int(row["tid"]), _string(row["name"].tobytes()))
        return tuple(latest[number] for number in sorted(latest))

    @property
    def event_blocks(self) -> Array:
        """The rows of blocks that hold events: what events() counts its first and last in."""
        rows: Array = self.blocks[self.blocks["kind"] == EVENTS_BLOCK]
        return rows

    def events(
        self,
        first: int = 0,
        last: int | None = None,
        ns_per_tick: float | None = None,
        ops: Collection[int] | None = None,
    ) -> Iterator[Events]:
        """Events of event_blocks[first:last], of all ops or of these, in the file's order and in
        batches of at most BATCH_UNITS blocks.  Raises LogError if the file has gone."""
        is_wanted = np.full(256, ops is None)
        is_wanted[list(ops or ())] = True
        is_wanted[[0, REST_OP]] = False
        with _File(self.path) as file:
            for rows, units in file.batches(self.event_blocks[first:last], BATCH_UNITS):
                yield self._events(rows, units, ns_per_tick or self.ns_per_tick, is_wanted)

    def _events(self, rows: Array, units: Array, ns_per_tick: float, is_wanted: Array) -> Events:
        block, start, ticks, columns = _calls(rows, units, is_wanted)
        columns["start_ns"] = self.to_ns(start, ns_per_tick)
        columns["duration_ns"] = _durations(ticks, ns_per_tick)
        is_live = self._is_live(start, columns["op"], ticks, rows, block)
        return Events(**columns) if is_live is None else Events(**columns).where(is_live)

    def _is_live(
        self, start: Array, op: Array, ticks: Array, rows: Array, block: Array
    ) -> Array | None:
        """None, or a mask without the calls in flight that a later block carries on."""
        if not len(self._carried):
            return None
        in_flight = np.flatnonzero(ticks == 0)
        row = rows[block[in_flight]]
        keys = _call_keys(start[in_flight], row["thread"], op[in_flight])
        at = np.searchsorted(self._carried["key"], keys, side="right") - 1
        latest = self._carried[np.maximum(at, 0)]
        is_carried = (at >= 0) & (latest["key"] == keys) & (latest["first"] > row["first"])
        if not is_carried.any():
            return None
        mask = np.ones(len(start), bool)
        mask[in_flight[is_carried]] = False
        return mask

    def texts(self) -> Iterator[Text]:
        """All texts, block by block.  In a cut log an id may have none, in a damaged one two."""
        with _File(self.path) as file:
            rows = self.event_blocks
            for row in rows[rows["texts"] < UNIT_BYTES]:
                tail = file.tail(int(row["unit"]), int(row["texts"]))
                yield from texts_in(tail)

    def notes(self) -> list[tuple[str, str]]:
        """Facts about the process, as (key, value)."""
        return [(text.name, text.resolved) for text in self.texts() if text.kind == NOTE_TEXT]

    def counters(self) -> Iterator[Array]:
        """Folded counters as arrays of dtype CALLS or ACCESS, times in ticks (see to_ns).  One
        (file, op) may come several times: add them."""
        with _File(self.path) as file:
            for kind, dtype in ((CALLS_BLOCK, CALLS), (ACCESS_BLOCK, ACCESS)):
                for rows, units in file.batches(self.blocks[self.blocks["kind"] == kind], 16):
                    for row, unit in zip(rows, units, strict=True):
                        size = int(row["records"]) * dtype.itemsize
                        yield unit[BLOCK.itemsize : BLOCK.itemsize + size].view(dtype)


def _calls(
    rows: Array, units: Array, is_wanted: Array
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Of the blocks in units: which one each event is of, its start and duration in ticks, and the
    other columns of Events."""
    slots = units.view(EVENT)
    # The block's header is as long as some slots, so that events are places in one array.
    column = np.arange(slots.shape[1]) - BLOCK.itemsize // EVENT.itemsize
    is_whole = (column >= 0) & (column < rows["records"][:, None])
    ops = (slots["begun"] >> np.uint64(16)).astype(np.uint8)
    places = np.flatnonzero(is_whole & is_wanted[ops])
    raw, block = slots.reshape(-1)[places], places // slots.shape[1]
    start = rows["first"][block] + (raw["begun"] >> np.uint64(24))
    asked, moved = raw["asked"].astype(np.int64), raw["moved"].astype(np.int64)
    owners, rest = _rests(slots, places, is_whole & (ops == REST_OP))
    start[owners] = rest["start"]
    asked[owners] = rest["asked"].view(np.int64)
    moved[owners] = rest["moved"].view(np.int64)
    columns = {
        "thread": rows["thread"][block],
        "op": ops.reshape(-1)[places],
        "errno": (raw["done"] >> np.uint64(16)).astype(np.uint8),
        "file": (raw["begun"] & np.uint64(0xFFFF)).astype(np.uint32)
        | (raw["done"] & np.uint64(0xFFFF)).astype(np.uint32) << np.uint32(16),
        "offset": raw["offset"].copy(),
        "asked": np.maximum(asked, 0),
        "moved": np.maximum(moved, 0),
    }
    return block, start, _ticks(raw["done"]), columns


def _durations(ticks: Array, ns_per_tick: float) -> Array:
    """Nanoseconds, IN_FLIGHT for 0 ticks."""
    ns: Array = np.where(ticks == 0, IN_FLIGHT, _rounded(ticks * ns_per_tick))
    return ns


class _File(LogFile):
    """A log's file as arrays of units; what lies past its end reads as zeros."""

    def units(self, first: int, count: int) -> Array:
        data = self.read(HEADER_BYTES + first * UNIT_BYTES, count * UNIT_BYTES)
        if len(data) == count * UNIT_BYTES:
            return np.frombuffer(data, np.uint8).reshape(count, UNIT_BYTES)
        whole = np.zeros(count * UNIT_BYTES, np.uint8)
        whole[: len(data)] = np.frombuffer(data, np.uint8)
        return whole.reshape(count, UNIT_BYTES)

    def batches(self, rows: Array, batch_units: int) -> Iterator[tuple[Array, Array]]:
        """(rows, their units as uint8[n, UNIT_BYTES]), neighbours together."""
        begin = 0
        while begin < len(rows):
            unit = int(rows["unit"][begin])
            end = int(np.searchsorted(rows["unit"], unit + batch_units))
            count = int(rows["unit"][end - 1]) - unit + 1
            units = self.units(unit, count)
            if count != end - begin:
                units = units[rows["unit"][begin:end] - unit]
            yield rows[begin:end], units
            begin = end


def _rests(slots: Array, places: Array, is_rest: Array) -> tuple[Array, Array]:
    """Which of the events at these places have a rest, and the rests themselves.

    A rest without its event (taken back, or not chosen) belongs to nothing."""
    at = np.flatnonzero(is_rest)
    owners = np.searchsorted(places, at - 1)
    is_owned = owners < len(places)
    is_owned[is_owned] = places[owners[is_owned]] == at[is_owned] - 1
    return owners[is_owned], slots.reshape(-1)[at[is_owned]].view(REST)


def _ticks(done: Array) -> Array:
    """Durations in ticks, 0 in flight: 39 bits of ticks, or of 65536 ticks where bit 39 is set."""
    ticks = done >> np.uint64(24)
    is_long = ticks >> np.uint64(LONG_BIT) != 0
    if is_long.any():
        ticks[is_long] = (ticks[is_long] & np.uint64((1 << LONG_BIT) - 1)) << np.uint64(LONG_SHIFT)
    return ticks


# What Follower keeps of an event until its clock's rate is known.
_CALL = np.dtype(
    [
        *_layout("u64 start ticks", "i64 offset asked moved", "u32 file thread").descr,
        ("op", "u1"),
        ("errno", "u1"),
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class News:
    """What a log has gained since it was last looked at.

    finished: calls that have ended since, each told once.  in_flight: calls under way now.  texts:
    what new ids mean; one may be told twice.  skipped_ns: events that ended before are left out,
    as there are too many; None where none is.
    """

    header: Header
    finished: Events
    in_flight: Events
    texts: tuple[Text, ...]
    skipped_ns: int | None


@dataclass(slots=True)
class _Followed:
    """One thread's events: where they appear, and which have been told.

    latest is the latest start seen.  What starts later is new; of what does not, only the calls
    that were in flight (open) can still end.
    """

    unit: int  # mapped by the thread: its blocks are filled here, and copied away when full
    head: bytes = b""
    latest: int = 0
    open: Array = dataclasses.field(default_factory=lambda: np.empty(0, np.uint64))
    full: list[tuple[int, int]] = dataclasses.field(
        default_factory=list
    )  # (round, unit), not yet read


class Follower:
    """Reads a log that is being written: each look tells what is new, whatever the log's size.

    Costs its process nothing: the file is read, nothing is written, locked or signalled.  A unit
    that holds a full block never changes and is read once; of one in use the head is read, and the
    rest if that says anything new.  Remembers a few numbers a unit and a thread.
    """

    def __init__(self, path: str | os.PathLike[str], backlog_units: int = 1 << 30) -> None:
        """backlog_units: how many full blocks the first look reads at most, the latest ones."""
        self.path = os.fspath(path)
        self._backlog: int | None = backlog_units
        self._known: set[int] = set()  # units that were taken up, beyond _next
        self._next = 0  # as were all before it
        self._threads: dict[int, _Followed] = {}

    def look(self, ns_per_tick: float | None = None, is_over: bool = False) -> News:
        """What is new.  is_over: the process has ended, so that no block is on its way any more.
        Raises LogError as read_log does."""
        with _File(self.path) as file:
            texts: list[Text] = []
            found: list[tuple[int, Array]] = []
            before = set(self._threads)
            live = self._live(file, self._threads)
            header = self._find_units(file)
            fresh = {n: thread for n, thread in self._threads.items() if n not in before}
            if fresh:  # their first block may have been filled while we looked for it
                live |= self._live(file, fresh)
                header = self._find_units(file)
            skipped = self._skip_backlog(file, texts)
            for number, thread in self._threads.items():
                now = live.get(number)
                found += self._full(file, number, thread, now, texts)
                if now is not None:
                    found.append((number, self._told(thread, now[1])))
                    texts += texts_in(now[2])
                if is_over:
                    found += self._full(file, number, thread, None, texts, is_over)
        rate = ns_per_tick or header.ns_per_tick
        every = _joined(found)
        is_open = every[1]["ticks"] == 0
        return News(
            header=header,
            finished=_as_events(every[1][~is_open], every[0][~is_open], header, rate),
            in_flight=self._in_flight(live, header, rate),
            texts=tuple(texts),
            skipped_ns=None if skipped is None else int(header.to_ns(skipped, rate)[0]),
        )

    def find_file(self, number: int) -> Text | None:
        """What a file's id means, looked for from the log's end on: nobody keeps millions."""
        with _File(self.path) as file:
            live = {thread.unit for thread in self._threads.values()}
            other: Text | None = None
            others = (*sorted(self._known - live, reverse=True), *range(self._next - 1, -1, -1))
            for unit in (*live, *others):
                row, _ = index_row(unit, _head(file, unit), UNIT_BYTES)
                if row is None or row[3] >= UNIT_BYTES:
                    continue
                for text in texts_in(file.tail(unit, row[3])):
                    if text.kind == FILE_TEXT and text.id == number:
                        other = text
                        if text.name:
                            return text
        return other

    def _live(
        self, file: _File, threads: dict[int, _Followed]
    ) -> dict[int, tuple[int, Array, bytes]]:
        """(round, whole events, tail) of the blocks in use, of threads where something is new."""
        live = {}
        for number, thread in threads.items():
            head = _head(file, thread.unit)
            if head == thread.head and not len(thread.open):
                continue
            unit = file.units(thread.unit, 1)[0]
            data = unit.tobytes()
            row, _ = index_row(thread.unit, data[: BLOCK.itemsize], UNIT_BYTES)
            again = _head(file, thread.unit)
            if row is None or row[4] != number or not _is_same(data, again):
                continue
            thread.head = data[: BLOCK.itemsize]
            live[number] = (row[7], _whole(unit, row), data[row[3] :])
        return live

    def _find_units(self, file: _File) -> Header:
        """Finds blocks that are new: the first of a thread is the one it fills, and all later ones
        are full.  A thread is taken up only when two looks have seen it, so that its first block,
        which is older, has been seen too."""
        header = _read_header(self.path, file.read(0, HEADER_PAGE_BYTES))
        before = {row[4] for row in self._new_heads(file, header) if row[2] == EVENTS_BLOCK}
        for row in self._new_heads(file, header):
            unit, kind, number, round_ = row[0], row[2], row[4], row[7]
            if kind == EVENTS_BLOCK and number in self._threads:
                self._threads[number].full.append((round_, unit))
            elif kind == EVENTS_BLOCK and number in before:
                self._threads[number] = _Followed(unit)
            elif kind == EVENTS_BLOCK:
                continue
            self._known.add(unit)
        while self._next in self._known:
            self._known.remove(self._next)
            self._next += 1
        return header

    def _new_heads(self, file: _File, header: Header) -> list[tuple[Any, ...]]:
        size = os.fstat(file.fd).st_size
        units = min(header.units, max(0, size - HEADER_BYTES) // UNIT_BYTES)
        rows = []
        unit = self._next
        while unit < units:
            if unit not in self._known:
                head = _head(file, unit)
                if not any(head):
                    unit = max(unit + 1, file.next_unit_with_data(unit))
                    continue
                row, _ = index_row(unit, head, UNIT_BYTES)
                if row is not None:  # else damaged, or being written
                    rows.append(row)
            unit += 1
        return rows

    def _skip_backlog(self, file: _File, texts: list[Text]) -> Array | None:
        """On the first look: drops the oldest full blocks but their texts; until when, ticks."""
        if self._backlog is None:
            return None
        full = sorted(pair for thread in self._threads.values() for pair in thread.full)
        old = full[: max(0, len(full) - self._backlog)]
        self._backlog = None
        latest = 0
        for round_, unit in old:
            data = file.units(unit, 1)[0]
            row, _ = index_row(unit, data[: BLOCK.itemsize].tobytes(), UNIT_BYTES)
            raw = _whole(data, row)
            if row is None or row[4] not in self._threads:
                continue
            thread = self._threads[row[4]]
            thread.full.remove((round_, unit))
            if len(raw):
                ends = raw["start"] + raw["ticks"]
                latest = max(latest, int(ends.max()))
                thread.latest = max(thread.latest, int(raw["start"].max()))
            texts += texts_in(data[row[3] :].tobytes())
        return np.array([latest], np.uint64) if old else None

    def _full(
        self,
        file: _File,
        number: int,
        thread: _Followed,
        now: tuple[int, Array, bytes] | None,
        texts: list[Text],
        is_over: bool = False,
    ) -> list[tuple[int, Array]]:
        """News of full blocks: only of rounds before the one in use, as a later one may still be
        on its way to the file."""
        in_use = BLOCK_HEAD.unpack(thread.head)[2] if thread.head else 0
        in_use = now[0] if now is not None else in_use
        found = []
        for round_, unit in sorted(thread.full):
            if round_ >= in_use and not is_over:
                continue
            thread.full.remove((round_, unit))
            data = file.units(unit, 1)[0]
            row, _ = index_row(unit, data[: BLOCK.itemsize].tobytes(), UNIT_BYTES)
            if row is None or row[4] != number:
                continue
            found.append((number, self._told(thread, _whole(data, row), is_last=False)))
            texts += texts_in(data[row[3] :].tobytes())
        return found

    def _told(self, thread: _Followed, raw: Array, is_last: bool = True) -> Array:
        """Of a block's events those to tell now; remembers that they were."""
        is_finished = raw["ticks"] != 0
        is_new = (raw["start"] > np.uint64(thread.latest)) | np.isin(raw["start"], thread.open)
        new: Array = raw[is_finished & is_new]
        # What a full block shows in flight the next one carries: it has not ended yet.
        carried = raw["start"][is_new & ~is_finished]
        if len(raw):
            thread.latest = max(thread.latest, int(raw["start"].max()))
        if is_last:
            thread.open = raw["start"][~is_finished].copy()
        else:
            thread.open = np.setdiff1d(np.union1d(thread.open, carried), new["start"])
        return new

    def _in_flight(
        self, live: dict[int, tuple[int, Array, bytes]], header: Header, rate: float
    ) -> Events:
        """Of all threads: one where nothing is new has none, or it would have been looked at."""
        found = []
        for number, (_, raw, _) in live.items():
            found.append((number, raw[raw["ticks"] == 0]))
        thread, raw = _joined(found)
        return _as_events(raw, thread, header, rate)


def _as_events(calls: Array, thread: Array, header: Header, ns_per_tick: float) -> Events:
    columns = {name: calls[name] for name in ("op", "errno", "file", "offset", "asked", "moved")}
    return Events(
        thread=thread,
        start_ns=header.to_ns(calls["start"], ns_per_tick),
        duration_ns=_durations(calls["ticks"], ns_per_tick),
        **columns,
    )


def _head(file: _File, unit: int) -> bytes:
    """A block's head; of a unit past the file's end, zeros."""
    data = file.read(HEADER_BYTES + unit * UNIT_BYTES, BLOCK.itemsize)
    return data.ljust(BLOCK.itemsize, b"\0")


def _is_same(head: bytes, again: bytes) -> bool:
    """Whether a block was the same round before and after it was read, and not being emptied: the
    recorder first sets `used` to 0, then clears the slots, then gives the round its number."""
    before, after = BLOCK_HEAD.unpack(head[: BLOCK.itemsize]), BLOCK_HEAD.unpack(again)
    return bool(before[2] == after[2] and after[3] >= before[3])


def _whole(unit: Array, row: tuple[Any, ...] | None) -> Array:
    """The calls of one block, in flight or finished, each once."""
    if row is None or row[2] != EVENTS_BLOCK:
        return np.empty(0, _CALL)
    is_wanted = np.ones(256, bool)
    is_wanted[[0, REST_OP]] = False
    _, start, ticks, columns = _calls(np.array([row], _INDEX), unit.reshape(1, -1), is_wanted)
    calls = np.empty(len(start), _CALL)
    calls["start"], calls["ticks"] = start, ticks
    for name, column in columns.items():
        calls[name] = column
    if len(np.unique(start)) < len(start):  # a fold may be moving them to the front
        keys = _call_keys(start, calls["file"], calls["op"])
        calls = calls[np.sort(np.unique(keys, return_index=True)[1])]
    return calls


def _joined(found: list[tuple[int, Array]]) -> tuple[Array, Array]:
    """(thread of each event, events)"""
    threads = [np.full(len(raw), number, np.uint32) for number, raw in found]
    every = [raw for _, raw in found]
    return (
        np.concatenate([np.empty(0, np.uint32), *threads]),
        np.concatenate([np.empty(0, _CALL), *every]),
    )


def looks_like_log(page: bytes) -> bool:
    """Whether a file that begins with these bytes is a log with a whole header, of any version."""
    return len(page) >= HEADER_PAGE_BYTES and page.startswith(MAGIC)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Only the header of a log.  Raises LogError as read_log does."""
    name = os.fspath(path)
    with _File(name) as file:
        page, _ = sealed_page(file, file.read(0, HEADER_PAGE_BYTES))
        return _read_header(name, page)


def read_log(path: str | os.PathLike[str]) -> Log:
    """The log in a file, of this format or an older one, whole or cut anywhere past its header.

    Raises LogError: no such file, not a log, written by a newer format, cut inside its header.
    """
    name = os.fspath(path)
    with _File(name) as file:
        page, seal = sealed_page(file, file.read(0, HEADER_PAGE_BYTES))
        header = _read_header(name, page)
        size = os.fstat(file.fd).st_size
        units = max(0, size - HEADER_BYTES) // UNIT_BYTES
        rest = max(0, size - HEADER_BYTES) % UNIT_BYTES
        rows, damaged = heads_in(file, units, rest, is_checked=True, sums=seal.sums)
        is_torn = rest > 0 or units < header.units or size < HEADER_BYTES
        emptied = 0  # units that were not empty when the log was sealed
        if seal.units is not None and not is_torn:
            emptied = max(0, seal.units - len({row[0] for row in rows} | damaged))
        blocks = _without_equal_rounds(np.array(rows, _INDEX))
        bases, damaged_texts = _read_bases(file, blocks)
        return Log(
            path=name,
            header=header,
            blocks=blocks,
            bases=bases,
            is_torn=is_torn,
            damaged_units=len(damaged | damaged_texts) + emptied,
            _carried=_read_carried(file, blocks),
        )


def is_alive(header: Header) -> bool:
    """Whether the process of a log is still there: as far as this host can know."""
    return is_running(bytes.fromhex(header.boot_id), header.pid, header.start_ns)


# How a header page of an older version becomes one of VERSION: {version: upgrade}.  Blocks that
# changed would be upgraded where they are read; version 1 is the first.
UPGRADERS: dict[int, Callable[[bytes], bytes]] = {}


def _read_header(path: str, page: bytes) -> Header:
    if not page:
        raise LogError(
            f"{path}: no bytes: cut by another program, or its process died as it began; "
            "copy it again or remove it"
        )
    if not any(page):
        raise LogError(
            f"{path}: empty, its process died before it wrote a header; nothing is lost by "
            "removing the file"
        )
    if page[:8] != MAGIC[: len(page[:8])]:
        raise LogError(f"{path}: not a log of penstock")
    if len(page) < HEADER_PAGE_BYTES:
        raise LogError(
            f"{path}: cut after {len(page)} of {HEADER_PAGE_BYTES} bytes of header: nothing in it "
            "can be read; copy it again or remove it"
        )
    version = int.from_bytes(page[8:12], "little")
    if version > VERSION:
        raise LogError(
            f"{path}: written by format {version}, newest known here is {VERSION}; "
            "upgrade penstock to read it"
        )
    while version != VERSION:
        if version not in UPGRADERS:
            raise LogError(f"{path}: says format {version}, which never existed; it is damaged")
        page = UPGRADERS[version](page)
        version = int.from_bytes(page[8:12], "little")
    raw = np.frombuffer(page, HEADER, 1)[0]
    for field, expected in (
        ("header_bytes", HEADER_BYTES),
        ("unit_bytes", UNIT_BYTES),
        ("event_bytes", EVENT.itemsize),
    ):
        if raw[field] != expected:
            raise LogError(
                f"{path}: its header says {field} = {raw[field]} where format {VERSION} has "
                f"{expected}; the file is damaged, copy it again or remove it"
            )
    header = _header(raw)
    if not _agree(header):
        raise LogError(
            f"{path}: the clocks in its header do not agree, so no time in it is known; the file "
            "is damaged, copy it again or remove it to read the others"
        )
    return header


# A counter's nominal rate is measured over a millisecond, and whoever measures may lose the
# processor meanwhile.
RATE_FACTOR = 4
ANCHORS_APART_NS = 1_000_000_000  # two clocks read one after the other, and a process that waits


def _agree(header: Header) -> bool:
    """Whether what the header says of its clocks can be true: a flipped bit in it would move or
    stretch every time in the log."""
    ns, ticks = header.last_ns - header.start_ns, header.last_ticks - header.start_ticks
    if header.clock == "ns":
        apart = (header.start_ticks - header.start_ns, header.last_ticks - header.last_ns)
        return ns >= 0 and ticks >= 0 and max(map(abs, apart)) < ANCHORS_APART_NS
    if not 10**6 <= header.ticks_per_s <= 10**11:
        return False
    by_ticks_ns = ticks * 10**9 / header.ticks_per_s
    near = abs(ns - by_ticks_ns) < ANCHORS_APART_NS / 10
    alike = by_ticks_ns / RATE_FACTOR <= ns <= by_ticks_ns * RATE_FACTOR
    return ns >= 0 and ticks >= 0 and (near or alike)


def _header(raw: Any) -> Header:
    values: dict[str, Any] = {
        name: int(raw[name]) for name in Header.__slots__ if HEADER[name].kind in "ui"
    }
    for name in ("rank", "local_rank", "world_size"):
        values[name] = None if values[name] == NOT_KNOWN else values[name]
    values["clock"] = CLOCKS.get(values["clock"], "ns")
    values["origin"] = ORIGINS.get(values["origin"], "unknown")
    values["state"] = STATES.get(values["state"], "unknown")
    for name in ("host", "reason", "executable", "folder"):
        values[name] = _string(raw[name].tobytes())
    values["boot_id"] = raw["boot_id"].tobytes().hex()
    arguments = raw["command"].tobytes().split(b"\0\0", 1)[0].rstrip(b"\0")
    values["command"] = tuple(map(decode, arguments.split(b"\0"))) if arguments else ()
    values["opens"] = tuple(
        (OUTCOMES.get(number, f"outcome {number}"), int(n))
        for number, n in enumerate(raw["opens"])
        if n
    )
    return Header(**values)


def _without_equal_rounds(blocks: Array) -> Array:
    """Of two blocks of one round the fuller: the process was killed between writing and reuse."""
    order = np.lexsort((-blocks["unit"], blocks["records"], blocks["round"]))
    rounds = blocks["round"][order]
    is_last = np.ones(len(order), bool)
    is_last[:-1] = rounds[1:] != rounds[:-1]
    return blocks[np.sort(order[is_last])]


def _read_bases(file: _File, blocks: Array) -> tuple[frozenset[int], set[int]]:
    bases: set[int] = set()
    damaged: set[int] = set()
    for row in blocks[(blocks["kind"] == EVENTS_BLOCK) & (blocks["texts"] < UNIT_BYTES)]:
        tail = file.tail(int(row["unit"]), int(row["texts"]))
        spans, is_damaged = text_spans(tail)
        if is_damaged:
            damaged.add(int(row["unit"]))
        for at, _ in spans:
            bases.add(int.from_bytes(tail[at + 12 : at + 16], "little"))
    return frozenset(bases - {0}), damaged


def _read_carried(file: _File, blocks: Array) -> Array:
    """The calls that blocks took over from the block before: keys in order, and when each began
    to be carried for the last time."""
    found = [np.empty(0, _CARRIED)]
    for row in blocks[(blocks["kind"] == EVENTS_BLOCK) & (blocks["carried"] > 0)]:
        offset = HEADER_BYTES + int(row["unit"]) * UNIT_BYTES + BLOCK.itemsize
        data = file.read(offset, int(row["carried"]) * EVENT.itemsize)
        slots = np.frombuffer(data[: len(data) // EVENT.itemsize * EVENT.itemsize], EVENT)
        ops = (slots["begun"] >> np.uint64(16)).astype(np.uint8)
        is_event = (ops[:-1] != 0) & (ops[:-1] != REST_OP) & (ops[1:] == REST_OP)
        places = np.flatnonzero(is_event)
        carried = np.empty(len(places), _CARRIED)
        rest = slots[places + 1].view(REST)
        carried["key"] = _call_keys(rest["start"], row["thread"], ops[places])
        carried["first"] = row["first"]
        found.append(carried)
    every = np.concatenate(found)
    return every[np.lexsort((every["first"], every["key"]))]


def _call_keys(start: Array, thread: Array, op: Array) -> Array:
    """One number for a call: its start mixed with its thread and op.

    Calls of one thread differ in their start already; the mix tells threads apart (a chance of one
    in 2^64 a pair that it does not)."""
    who = thread.astype(np.uint64) << np.uint64(8) | (op & 0xFF).astype(np.uint64)
    # The odd constant is 2^64 divided by the golden ratio: Fibonacci hashing.
    mixed: Array = start ^ who * np.uint64(0x9E3779B97F4A7C15)
    return mixed


def _rounded(ns: Array) -> Array:
    """Float nanoseconds as int64, at most TIME_LIMIT_NS from zero."""
    rounded: Array = np.rint(np.clip(ns, -TIME_LIMIT_NS, TIME_LIMIT_NS)).astype(np.int64)
    return rounded


def _string(data: bytes) -> str:
    return decode(data.split(b"\0", 1)[0])
