"""Read the bytes of a log: with `texts`, the only Python with positions in a log.  Writes nothing.

docs/FORMAT.md is the format; native/events.h is the format in C, and a test holds all three equal.
Any prefix of a log is a log.  With any content of a file, reading ends, stays inside the file and
inside a few megabytes per batch, and fails only with LogError.

Files are read with `pread`, not mapped: a file shrinking under a mapping kills the reader.
"""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.log.header import Header, MappedLog, header_of, rounded, string
from penstock.log.layout import (
    ACCESS,
    BATCH_UNITS,
    BLOCK,
    CALLS,
    CARRIED,
    EVENT,
    IN_FLIGHT,
    INDEX,
    LONG_BIT,
    LONG_SHIFT,
    REST,
    REST_OP,
    TEXT,
    Array,
)
from penstock.log.seals import sealed_page
from penstock.log.texts import (
    ACCESS_BLOCK,
    BLOCK_HEAD,
    CALLS_BLOCK,
    EVENTS_BLOCK,
    HEADER_BYTES,
    HEADER_PAGE_BYTES,
    NOTE_TEXT,
    RECORD_BYTES,
    TEXT_HEAD,
    UNIT_BYTES,
    Text,
    heads_in,
    text_spans,
    texts_in,
)

__all__ = ["Events", "Log", "Thread", "call_keys", "calls_of", "durations", "read_log"]

assert BLOCK.itemsize % EVENT.itemsize == UNIT_BYTES % EVENT.itemsize == 0


assert BLOCK_HEAD.size == BLOCK.itemsize


assert TEXT_HEAD.size == TEXT.itemsize


assert {
    EVENTS_BLOCK: EVENT.itemsize,
    CALLS_BLOCK: CALLS.itemsize,
    ACCESS_BLOCK: ACCESS.itemsize,
} == RECORD_BYTES


class Thread(NamedTuple):
    """A thread of the log's process, numbered from 1 in order of the first call."""

    number: int
    tid: int
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class Events:
    """Events as columns of one length.

    start_ns: int64, CLOCK_MONOTONIC of the log's host.  duration_ns: int64, -1 in flight.  offset:
    int64, -1 unknown; the second file's id for SECOND_FILE_OPS.  asked, moved: int64, bytes, or as
    docs/FORMAT.md defines for the op.  thread, file: uint32.  op, errno: uint8.
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
        """Return no events."""
        kinds = (np.uint32, np.uint8, np.uint8, np.uint32, *[np.int64] * 5)
        return Events(*(np.empty(0, kind) for kind in kinds))

    def where(self, mask: Array) -> "Events":
        """Return the events chosen by a boolean mask or an array of positions."""
        return Events(*(getattr(self, name)[mask] for name in Events.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """A log: the header, and the positions of the blocks.  Events, texts and counters are read anew
    at each request, in batches.

    blocks: a row per block, in the file's order; of two equal rounds only the fuller.  bases: ids
    of folders for relative names.  is_torn: units are missing at the end, or the last unit is cut.
    damaged_units: units neither empty nor a whole block, with unread content.
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
        """See Header.anchored_ns."""
        return self.header.anchored_ns

    @property
    def ns_per_tick(self) -> float:
        """See Header.ns_per_tick."""
        return self.header.ns_per_tick

    def to_ns(self, ticks: Array, ns_per_tick: float | None = None) -> Array:
        """See Header.to_ns."""
        return self.header.to_ns(ticks, ns_per_tick)

    @property
    def threads(self) -> tuple[Thread, ...]:
        """Return the threads by number, each with the thread's latest name."""
        latest: dict[int, Thread] = {}
        rows = self.event_blocks
        for row in rows[np.argsort(rows["first"], kind="stable")]:
            number = int(row["thread"])
            latest[number] = Thread(number, int(row["tid"]), string(row["name"].tobytes()))
        return tuple(latest[number] for number in sorted(latest))

    @property
    def event_blocks(self) -> Array:
        """Return the rows of blocks with events; first and last of events() count in these rows."""
        rows: Array = self.blocks[self.blocks["kind"] == EVENTS_BLOCK]
        return rows

    def events(
        self,
        first: int = 0,
        last: int | None = None,
        ns_per_tick: float | None = None,
        ops: Collection[int] | None = None,
    ) -> Iterator[Events]:
        """Yield the events of event_blocks[first:last], of all ops or of `ops`, in the file's
        order.

        Each batch has at most BATCH_UNITS blocks.  Raises LogError if the file is missing now.
        """
        is_wanted = np.full(256, ops is None)
        is_wanted[list(ops or ())] = True
        is_wanted[[0, REST_OP]] = False
        with MappedLog(self.path) as file:
            for rows, units in file.batches(self.event_blocks[first:last], BATCH_UNITS):
                yield self._events(rows, units, ns_per_tick or self.ns_per_tick, is_wanted)

    def _events(self, rows: Array, units: Array, ns_per_tick: float, is_wanted: Array) -> Events:
        block, start, ticks, columns = calls_of(rows, units, is_wanted)
        columns["start_ns"] = self.to_ns(start, ns_per_tick)
        columns["duration_ns"] = durations(ticks, ns_per_tick)
        is_live = self._is_live(start, columns["op"], ticks, rows, block)
        return Events(**columns) if is_live is None else Events(**columns).where(is_live)

    def _is_live(
        self, start: Array, op: Array, ticks: Array, rows: Array, block: Array
    ) -> Array | None:
        """Return a mask without the calls in flight a later block carries on, or None."""
        if not len(self._carried):
            return None
        in_flight = np.flatnonzero(ticks == 0)
        row = rows[block[in_flight]]
        keys = call_keys(start[in_flight], row["thread"], op[in_flight])
        at = np.searchsorted(self._carried["key"], keys, side="right") - 1
        latest = self._carried[np.maximum(at, 0)]
        is_carried = (at >= 0) & (latest["key"] == keys) & (latest["first"] > row["first"])
        if not is_carried.any():
            return None
        mask = np.ones(len(start), bool)
        mask[in_flight[is_carried]] = False
        return mask

    def texts(self) -> Iterator[Text]:
        """Yield all texts, block by block.  In a cut log an id may have no text, in a damaged log
        two."""
        with MappedLog(self.path) as file:
            rows = self.event_blocks
            for row in rows[rows["texts"] < UNIT_BYTES]:
                tail = file.tail(int(row["unit"]), int(row["texts"]))
                yield from texts_in(tail)

    def notes(self) -> list[tuple[str, str]]:
        """Return facts about the process, as (key, value)."""
        return [(text.name, text.resolved) for text in self.texts() if text.kind == NOTE_TEXT]

    def counters(self) -> Iterator[Array]:
        """Yield folded counters as arrays of dtype CALLS or ACCESS, times in ticks (see to_ns). A
        (file, op) may occur several times: add the counters."""
        with MappedLog(self.path) as file:
            for kind, dtype in ((CALLS_BLOCK, CALLS), (ACCESS_BLOCK, ACCESS)):
                for rows, units in file.batches(self.blocks[self.blocks["kind"] == kind], 16):
                    for row, unit in zip(rows, units, strict=True):
                        size = int(row["records"]) * dtype.itemsize
                        yield unit[BLOCK.itemsize : BLOCK.itemsize + size].view(dtype)


def calls_of(
    rows: Array, units: Array, is_wanted: Array
) -> tuple[Array, Array, Array, dict[str, Array]]:
    """Return for the events in units: the block, start and duration in ticks, and the other columns
    of Events."""
    slots = units.view(EVENT)
    # A block's header is as long as several slots, so events are positions in a single array.
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


def durations(ticks: Array, ns_per_tick: float) -> Array:
    """Return nanoseconds, IN_FLIGHT for 0 ticks."""
    ns: Array = np.where(ticks == 0, IN_FLIGHT, rounded(ticks * ns_per_tick))
    return ns


def _rests(slots: Array, places: Array, is_rest: Array) -> tuple[Array, Array]:
    """Return the positions in `places` of events with a rest, and the rests.

    A rest without an event (taken back, or not chosen) is ignored.
    """
    at = np.flatnonzero(is_rest)
    owners = np.searchsorted(places, at - 1)
    is_owned = owners < len(places)
    is_owned[is_owned] = places[owners[is_owned]] == at[is_owned] - 1
    return owners[is_owned], slots.reshape(-1)[at[is_owned]].view(REST)


def _ticks(done: Array) -> Array:
    """Return durations in ticks, 0 in flight: 39 bits of ticks, or of 65536 ticks where bit 39 is
    set."""
    ticks = done >> np.uint64(24)
    is_long = ticks >> np.uint64(LONG_BIT) != 0
    if is_long.any():
        ticks[is_long] = (ticks[is_long] & np.uint64((1 << LONG_BIT) - 1)) << np.uint64(LONG_SHIFT)
    return ticks


def read_log(path: str | os.PathLike[str]) -> Log:
    """Read a log of the current or an older format, whole or cut anywhere past the header.

    Raises LogError: no such file, not a log, written by a newer format, cut inside the header.
    """
    name = os.fspath(path)
    with MappedLog(name) as file:
        page, seal = sealed_page(file, file.read(0, HEADER_PAGE_BYTES))
        header = header_of(name, page)
        size = os.fstat(file.fd).st_size
        units = max(0, size - HEADER_BYTES) // UNIT_BYTES
        rest = max(0, size - HEADER_BYTES) % UNIT_BYTES
        rows, damaged = heads_in(file, units, rest, is_checked=True, sums=seal.sums)
        is_torn = rest > 0 or units < header.units or size < HEADER_BYTES
        emptied = 0  # units in use when the log was sealed
        if seal.units is not None and not is_torn:
            emptied = max(0, seal.units - len({row[0] for row in rows} | damaged))
        blocks = _without_equal_rounds(np.array(rows, INDEX))
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


def _without_equal_rounds(blocks: Array) -> Array:
    """Keep the fuller of two blocks of a round: the process was killed between writing and
    reuse."""
    order = np.lexsort((-blocks["unit"], blocks["records"], blocks["round"]))
    rounds = blocks["round"][order]
    is_last = np.ones(len(order), bool)
    is_last[:-1] = rounds[1:] != rounds[:-1]
    return blocks[np.sort(order[is_last])]


def _read_bases(file: MappedLog, blocks: Array) -> tuple[frozenset[int], set[int]]:
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


def _read_carried(file: MappedLog, blocks: Array) -> Array:
    """Return the calls that blocks took over from earlier blocks.

    The rows are sorted by key, then by `first`: the `first` of the block that carried the call.
    """
    parts = [np.empty(0, CARRIED)]
    for row in blocks[(blocks["kind"] == EVENTS_BLOCK) & (blocks["carried"] > 0)]:
        offset = HEADER_BYTES + int(row["unit"]) * UNIT_BYTES + BLOCK.itemsize
        data = file.read(offset, int(row["carried"]) * EVENT.itemsize)
        slots = np.frombuffer(data[: len(data) // EVENT.itemsize * EVENT.itemsize], EVENT)
        ops = (slots["begun"] >> np.uint64(16)).astype(np.uint8)
        is_event = (ops[:-1] != 0) & (ops[:-1] != REST_OP) & (ops[1:] == REST_OP)
        places = np.flatnonzero(is_event)
        carried = np.empty(len(places), CARRIED)
        rest = slots[places + 1].view(REST)
        carried["key"] = call_keys(rest["start"], row["thread"], ops[places])
        carried["first"] = row["first"]
        parts.append(carried)
    every = np.concatenate(parts)
    return every[np.lexsort((every["first"], every["key"]))]


def call_keys(start: Array, thread: Array, op: Array) -> Array:
    """Return a number per call: the start mixed with the thread and the op.

    Calls of a thread differ in the start; the mix distinguishes threads, except for a chance of 1
    in 2^64 per pair.
    """
    who = thread.astype(np.uint64) << np.uint64(8) | (op & 0xFF).astype(np.uint64)
    # The odd constant is 2^64 divided by the golden ratio: Fibonacci hashing.
    mixed: Array = start ^ who * np.uint64(0x9E3779B97F4A7C15)
    return mixed
