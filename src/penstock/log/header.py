"""The header of a log: process, clock, state of the recording."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.errors import LogError
from penstock.log.layout import (
    ANCHOR_NS,
    CLOCKS,
    EVENT,
    HEADER,
    NOT_KNOWN,
    ORIGINS,
    OUTCOMES,
    STATES,
    TIME_LIMIT_NS,
    Array,
)
from penstock.log.seals import is_running, sealed_page
from penstock.log.texts import (
    HEADER_BYTES,
    HEADER_PAGE_BYTES,
    MAGIC,
    UNIT_BYTES,
    VERSION,
    LogFile,
    decode,
)

__all__ = [
    "Header",
    "MappedLog",
    "header_of",
    "is_alive",
    "looks_like_log",
    "read_header",
    "rounded",
    "string",
]


@dataclass(frozen=True, slots=True)
class Header:
    """The facts of a process in the process's log.  Times are of CLOCK_MONOTONIC unless named unix.

    clock: "ns" or "tsc".  state: running, stopped, exited, execed, failed, or "unknown" in a
    damaged file.  rank, local_rank, world_size: None if not known.  waits_from_ns: the shortest
    recorded wait; 0: the recorder recorded no waits.  own_calls, own_ticks: the recorder's own
    system calls, and the time of the calls; 0: not counted.
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
    opens: tuple[tuple[str, int], ...]  # of staged files, by outcome, without zeros
    waits_from_ns: int
    own_calls: int
    own_ticks: int

    @property
    def anchored_ns(self) -> int:
        """Return the time between the two readings of both clocks; 0 if too short for a rate."""
        ns = self.last_ns - self.start_ns
        return ns if ns >= ANCHOR_NS and self.last_ticks > self.start_ticks else 0

    @property
    def ns_per_tick(self) -> float:
        """Return the rate of the log's clock: from the log's anchors, else the nominal rate."""
        if self.clock == "ns":
            return 1.0
        if self.anchored_ns:
            return self.anchored_ns / (self.last_ticks - self.start_ticks)
        return 1e9 / self.ticks_per_s if self.ticks_per_s else 1.0

    def to_ns(self, ticks: Array, ns_per_tick: float | None = None) -> Array:
        """Convert ticks of the log's clock (uint64) to CLOCK_MONOTONIC nanoseconds (int64)."""
        since = (ticks - np.uint64(self.start_ticks)).view(np.int64)  # earlier ticks: negative
        ns: Array = rounded(since * (ns_per_tick or self.ns_per_tick))
        ns += min(self.start_ns, TIME_LIMIT_NS)
        return ns


class MappedLog(LogFile):
    """A log's file as arrays of units; bytes past the end read as zeros."""

    def units(self, first: int, count: int) -> Array:
        data = self.read(HEADER_BYTES + first * UNIT_BYTES, count * UNIT_BYTES)
        if len(data) == count * UNIT_BYTES:
            return np.frombuffer(data, np.uint8).reshape(count, UNIT_BYTES)
        whole = np.zeros(count * UNIT_BYTES, np.uint8)
        whole[: len(data)] = np.frombuffer(data, np.uint8)
        return whole.reshape(count, UNIT_BYTES)

    def batches(self, rows: Array, batch_units: int) -> Iterator[tuple[Array, Array]]:
        """Yield (rows, the units of the rows as uint8[n, UNIT_BYTES]), neighbours together."""
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


def looks_like_log(page: bytes) -> bool:
    """Return True if a file with the given first page is a log with a whole header, of any
    version."""
    return len(page) >= HEADER_PAGE_BYTES and page.startswith(MAGIC)


def read_header(path: str | os.PathLike[str]) -> Header:
    """Return only the header of a log.  Raises LogError as read_log does."""
    name = os.fspath(path)
    with MappedLog(name) as file:
        page, _ = sealed_page(file, file.read(0, HEADER_PAGE_BYTES))
        return header_of(name, page)


def is_alive(header: Header) -> bool:
    """Return True if the process of a log still exists, as far as the local host can know."""
    return is_running(bytes.fromhex(header.boot_id), header.pid, header.start_ns)


# Conversions of a header page to the next version: {version: upgrade}. Changed blocks would be
# upgraded when read; version 1 is the first.
UPGRADERS: dict[int, Callable[[bytes], bytes]] = {}


def header_of(path: str, page: bytes) -> Header:
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


# A counter's nominal rate is measured over a millisecond, and the measuring thread may lose the CPU
# meanwhile.
RATE_FACTOR = 4
ANCHORS_APART_NS = 1_000_000_000  # a process may wait between two readings


def _agree(header: Header) -> bool:
    """Return True if the header's clocks are plausible: a flipped bit would move or stretch every
    time in the log."""
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
        values[name] = string(raw[name].tobytes())
    values["boot_id"] = raw["boot_id"].tobytes().hex()
    arguments = raw["command"].tobytes().split(b"\0\0", 1)[0].rstrip(b"\0")
    values["command"] = tuple(map(decode, arguments.split(b"\0"))) if arguments else ()
    values["opens"] = tuple(
        (OUTCOMES.get(number, f"outcome {number}"), int(n))
        for number, n in enumerate(raw["opens"])
        if n
    )
    return Header(**values)


def rounded(ns: Array) -> Array:
    """Return float nanoseconds as int64, at most TIME_LIMIT_NS from zero."""
    rounded: Array = np.rint(np.clip(ns, -TIME_LIMIT_NS, TIME_LIMIT_NS)).astype(np.int64)
    return rounded


def string(data: bytes) -> str:
    return decode(data.split(b"\0", 1)[0])
