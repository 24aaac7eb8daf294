"""Logs that no recorder wrote, for tests.  Nothing in src writes a log.

Bytes are laid out by log.py's dtypes, which test_format.py holds equal to native/events.h.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from penstock.log import layout
from penstock.log import texts as of_texts
from penstock.log.texts import BLOCK_MAGIC


class Event(NamedTuple):
    """One event, times in ticks; duration 0 is in flight."""

    op: int
    start: int
    duration: int
    file: int
    offset: int
    asked: int
    moved: int
    errno: int

    def slots(self, first: int, *, is_wide: bool = False) -> list[tuple[int, ...]]:
        """It in a block that began at first: one slot, or two where it does not fit one."""
        since = self.start - first
        is_wide |= not 0 <= since < 1 << 40 or max(self.asked, self.moved) >= 1 << 32
        duration = self.duration
        if duration >> layout.LONG_BIT:
            duration = duration >> layout.LONG_SHIFT | 1 << layout.LONG_BIT
        begun = self.op << 16 | self.file & 0xFFFF
        done = duration << 24 | self.errno << 16 | self.file >> 16
        if not is_wide:
            return [(since << 24 | begun, done, self.offset, self.asked, self.moved)]
        low, high = self.moved & 0xFFFFFFFF, self.moved >> 32
        return [
            (begun, done, self.offset, 0, 0),
            (layout.REST_OP << 16, self.start, self.asked, low, high),
        ]


NO_EVENT = Event(*[0] * 8)
Record = dict[str, Any]

OP = {op.name: op.number for op in layout.OPS}
BOOT = bytes(range(16))
START_NS = 5_000_000_000
START_UNIX_NS = 1_700_000_000_000_000_000
RUN_NS = 10_000_000_000
NUMBERS = {
    "state": {name: number for number, name in layout.STATES.items()},
    "origin": {name: number for number, name in layout.ORIGINS.items()},
    "clock": {name: number for number, name in layout.CLOCKS.items()},
}
HEADER_BYTES = of_texts.HEADER_BYTES
UNIT_BYTES = of_texts.UNIT_BYTES
BLOCK_BYTES = layout.BLOCK.itemsize
EVENT_BYTES = layout.EVENT.itemsize


def header_page(**fields: Any) -> bytes:
    """The header of a process that exited; any field can be given by name."""
    values: Record = {
        "magic": of_texts.MAGIC,
        "version": of_texts.VERSION,
        "header_bytes": HEADER_BYTES,
        "unit_bytes": UNIT_BYTES,
        "event_bytes": layout.EVENT.itemsize,
        "pid": 100,
        "ppid": 1,
        "clock": "ns",
        "origin": "run",
        "state": "exited",
        "start_ticks": START_NS,
        "start_ns": START_NS,
        "start_unix_ns": START_UNIX_NS,
        "last_ticks": START_NS + RUN_NS,
        "last_ns": START_NS + RUN_NS,
        "ticks_per_s": 1_000_000_000,
        "budget_bytes": 1 << 30,
        "rank": layout.NOT_KNOWN,
        "local_rank": layout.NOT_KNOWN,
        "world_size": layout.NOT_KNOWN,
        "boot_id": BOOT,
        "host": b"node1",
        "executable": b"/usr/bin/python3",
        "folder": b"/work",
        "command": b"python\0train.py\0\0",
        **fields,
    }
    page = np.zeros(1, layout.HEADER)
    for name, value in values.items():
        names = NUMBERS.get(name)
        page[name] = names.get(value, value) if names else value
    return page.tobytes().ljust(HEADER_BYTES, b"\0")


def event(
    op: str | int,
    start: int,
    duration: int = 10,
    *,
    file: int = 0,
    offset: int = -1,
    asked: int = 0,
    moved: int = 0,
    errno: int = 0,
) -> Event:
    """One event, in ticks; duration 0 is in flight."""
    number = OP[op] if isinstance(op, str) else op
    return Event(number, start, duration, file, offset, asked, moved, errno)


def text(
    kind: int,
    number: int,
    name: str | bytes,
    resolved: str | bytes = b"",
    *,
    base: int = 0,
    mode: int = 0,
    device: int = 0,
    inode: int = 0,
    size: int = -1,
    tier: int = 0,
) -> bytes:
    """One text, padded."""
    names = b"".join(
        (part.encode() if isinstance(part, str) else part) + b"\0" for part in (name, resolved)
    )
    names = names.ljust(-(-len(names) // 8) * 8, b"\0")
    fields = (48 + len(names), kind, number, base, mode, tier, device, inode, size)
    return np.array([fields], layout.TEXT).tobytes() + names


def block_head(**values: Any) -> bytes:
    """A block's header; what is not given is zero."""
    head = np.zeros(1, layout.BLOCK)
    for key, value in {"magic": BLOCK_MAGIC, **values}.items():
        head[key] = value
    return head.tobytes()


def events_unit(
    events: Iterable[Event] = (),
    tail: Iterable[bytes] = (),
    *,
    n_carried: int = 0,
    **fields: Any,
) -> bytes:
    """A unit with a block of events, the first n_carried of them from the block before; fields
    overrides what the block says of itself."""
    first = fields.get("first", 1)
    slots = [
        slot for i, event in enumerate(events) for slot in event.slots(first, is_wide=i < n_carried)
    ]
    body = np.array(slots, layout.EVENT).tobytes()
    texts = b"".join(tail)
    begin = UNIT_BYTES - len(texts)
    values = {
        "kind": of_texts.EVENTS_BLOCK,
        "round": 1,
        "used": len(slots),
        "limit": (begin - BLOCK_BYTES) // EVENT_BYTES,
        "texts": begin,
        "thread": 1,
        "tid": 100,
        "first": first,
        "carried": 2 * n_carried,
        "name": b"python",
        **fields,
    }
    return block_head(**values) + body.ljust(begin - BLOCK_BYTES, b"\0") + texts


def counters_unit(records: list[Record], is_access: bool, **fields: Any) -> bytes:
    """A unit with a block of counters, each given by its fields."""
    dtype = layout.ACCESS if is_access else layout.CALLS
    body = np.zeros(len(records), dtype)
    for place in {"max_end", "first_offset", "last_end"} & set(dtype.names or ()):
        body[place] = -1  # as the recorder does where no access had an offset
    for i, record in enumerate(records):
        for key, value in record.items():
            body[key][i] = OP[value] if key == "op" else value
    values = {
        "kind": of_texts.ACCESS_BLOCK if is_access else of_texts.CALLS_BLOCK,
        "round": 1,
        "used": len(records),
        "limit": (UNIT_BYTES - 64) // dtype.itemsize,
        "texts": UNIT_BYTES,
        **fields,
    }
    return (block_head(**values) + body.tobytes()).ljust(UNIT_BYTES, b"\0")


def _that_fit(events: list[Event], first: int, slots: int) -> int:
    """How many of the events have room in so many slots."""
    ends = np.cumsum([len(event.slots(first)) for event in events[:slots]])
    return int(np.searchsorted(ends, slots, side="right"))


@dataclass
class Process:
    """One process image that writes itself down.  Times in ns since its own start, on any clock.

    start_ticks and ticks_per_ns make a counter's clock; start_ns is its host's CLOCK_MONOTONIC and
    unix_s when it starts by its host's wall clock, in seconds since START_UNIX_NS.
    """

    pid: int = 100
    ppid: int = 1
    ticks_per_ns: float = 1.0
    start_ticks: int = START_NS
    start_ns: int = START_NS
    unix_s: float = 0.0
    header: Record = field(default_factory=dict)
    events: dict[int, list[Event]] = field(default_factory=dict)
    texts: list[bytes] = field(default_factory=list)
    folded: list[bytes] = field(default_factory=list)
    ids: dict[tuple[int, str | bytes], int] = field(default_factory=dict)

    def ticks(self, ns: float) -> int:
        return self.start_ticks + round(ns * self.ticks_per_ns)

    def file(self, name: str | bytes, resolved: str | bytes = b"", **fields: Any) -> int:
        """The id of a file, told to the log once."""
        key = (fields.get("base", 0), name)
        if key not in self.ids:
            self.ids[key] = len(self.ids) + 1
            self.texts.append(text(of_texts.FILE_TEXT, self.ids[key], name, resolved, **fields))
        return self.ids[key]

    def name(self, name: str) -> int:
        """The id of a span's name."""
        key = (-1, name)
        if key not in self.ids:
            self.ids[key] = len(self.ids) + 1
            self.texts.append(text(of_texts.NAME_TEXT, self.ids[key], name))
        return self.ids[key]

    def note(self, key: str, value: str) -> None:
        self.texts.append(text(of_texts.NOTE_TEXT, 0, key, value))

    def call(
        self,
        op: str,
        start: float,
        duration: float = 1000,
        path: str | bytes | None = None,
        *,
        thread: int = 1,
        **fields: int,
    ) -> None:
        """A call, on a path or a file's id; duration 0 is in flight."""
        if path is not None:
            fields["file"] = self.file(path)
        ticks = max(1, round(duration * self.ticks_per_ns)) if duration else 0
        self.events.setdefault(thread, []).append(event(op, self.ticks(start), ticks, **fields))

    def span(
        self,
        name: str,
        start: float,
        duration: float,
        index: int = -1,
        a: int = 0,
        b: int = 0,
        *,
        op: str = "span",
        thread: int = 1,
    ) -> None:
        number = self.name(name)
        self.call(op, start, duration, file=number, offset=index, asked=a, moved=b, thread=thread)

    def step(self, index: int, start: float, duration: float, b: int = 0) -> None:
        self.span("step", start, duration, index, b=b, op="step")

    def fold(self, *records: Record, is_access: bool = True) -> None:
        self.folded.append(counters_unit(list(records), is_access, round=1000 + len(self.folded)))

    def bytes(self) -> bytes:
        """The whole log."""
        units = list(self.folded)
        texts = list(self.texts)
        for thread, events in (self.events or {1: []}).items():
            rows = list(events)
            while rows or texts:
                tail: list[bytes] = []
                while texts and sum(map(len, tail)) + len(texts[0]) < UNIT_BYTES // 2:
                    tail.append(texts.pop(0))
                first = min((row.start for row in rows), default=1)
                room = (UNIT_BYTES - BLOCK_BYTES - sum(map(len, tail))) // EVENT_BYTES
                n = _that_fit(rows, first, room)
                units.append(
                    events_unit(
                        rows[:n],
                        tail,
                        round=1 + len(units),
                        thread=thread,
                        tid=self.pid + thread - 1,
                        first=first,
                    )
                )
                rows = rows[n:]
        fields = {
            "pid": self.pid,
            "ppid": self.ppid,
            "clock": "ns" if self.ticks_per_ns == 1 else "tsc",
            "start_ticks": self.start_ticks,
            "start_ns": self.start_ns,
            "start_unix_ns": START_UNIX_NS + round(self.unix_s * 1e9),
            "last_ticks": self.ticks(RUN_NS),
            "last_ns": self.start_ns + RUN_NS,
            "ticks_per_s": round(1e9 * self.ticks_per_ns),
            "units": len(units),
        }
        return header_page(**{**fields, **self.header}) + b"".join(units)

    def write(self, folder: Path, serial: int = 1) -> Path:
        path = folder / f"node1.{self.pid}.{serial}.events"
        path.write_bytes(self.bytes())
        return path


def training(pid: int, steps: int) -> Process:
    """Return a process that waits 10 ms for the data of each step, and reads them from one file."""
    process = Process(pid=pid)
    process.span("loader", 0, 900_000_000, 1, 0, 8)
    for step in range(steps):
        at = step * 40_000_000
        process.span("data wait", at, 10_000_000, step, 1, 1000)
        process.file("/data/own", mode=0o100644, inode=1, size=50_000)
        process.call("read", at, 1_000_000, "/data/own", asked=4096, moved=4000)
        process.step(step, at + 10_000_000, 20_000_000, b=1)
    return process
