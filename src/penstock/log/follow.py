"""A growing log: the news since the last look."""

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.log.events import Events, call_keys, calls_of, durations
from penstock.log.header import Header, MappedLog, header_of
from penstock.log.layout import BLOCK, CALL, INDEX, REST_OP, Array
from penstock.log.texts import (
    BLOCK_HEAD,
    EVENTS_BLOCK,
    FILE_TEXT,
    HEADER_BYTES,
    HEADER_PAGE_BYTES,
    UNIT_BYTES,
    Text,
    index_row,
    texts_in,
)

__all__ = ["Follower", "News"]


@dataclass(frozen=True, slots=True, eq=False)
class News:
    """The news of a log since the last look.

    finished: calls ended since, each returned once.  in_flight: calls under way now.  texts: the
    meaning of new ids; a text may come twice.  skipped_ns: earlier events are left out, as there
    are too many; None: no event is left out.
    """

    header: Header
    finished: Events
    in_flight: Events
    texts: tuple[Text, ...]
    skipped_ns: int | None


@dataclass(slots=True)
class _Followed:
    """The events of a thread: where new events appear, and which were returned already.

    latest is the latest start seen.  Later starts are new; among earlier starts only calls in
    flight (open) can still end.
    """

    unit: int  # mapped by the thread: the thread fills blocks here, and copies full blocks away
    head: bytes = b""
    latest: int = 0
    open: Array = dataclasses.field(default_factory=lambda: np.empty(0, np.uint64))
    full: list[tuple[int, int]] = dataclasses.field(
        default_factory=list
    )  # (round, unit), not yet read


class Follower:
    """Read a growing log: each look returns the news, at any size of the log.

    The recorded process has no overhead: the file is only read, without locks and signals.  A unit
    with a full block never changes and is read once; of a unit in use the head is read, and the
    rest if the head has changed.  Remembers a few numbers per unit and thread.
    """

    def __init__(self, path: str | os.PathLike[str], backlog_units: int = 1 << 30) -> None:
        """Follow a log.  backlog_units: the most full blocks the first look reads, the latest
        first."""
        self.path = os.fspath(path)
        self._backlog: int | None = backlog_units
        self._known: set[int] = set()  # units already read, beyond _next
        self._next = 0  # all earlier units were read
        self._threads: dict[int, _Followed] = {}

    def look(self, ns_per_tick: float | None = None, is_over: bool = False) -> News:
        """Return the news.  is_over: the process has ended, so no block is on its way.  Raises
        LogError as read_log does."""
        with MappedLog(self.path) as file:
            texts: list[Text] = []
            rows: list[tuple[int, Array]] = []
            before = set(self._threads)
            live = self._live(file, self._threads)
            header = self._find_units(file)
            fresh = {n: thread for n, thread in self._threads.items() if n not in before}
            if fresh:  # a thread's first block may have been filled during the search
                live |= self._live(file, fresh)
                header = self._find_units(file)
            skipped = self._skip_backlog(file, texts)
            for number, thread in self._threads.items():
                now = live.get(number)
                rows += self._full(file, number, thread, now, texts)
                if now is not None:
                    rows.append((number, self._told(thread, now[1])))
                    texts += texts_in(now[2])
                if is_over:
                    rows += self._full(file, number, thread, None, texts, is_over)
        rate = ns_per_tick or header.ns_per_tick
        every = _joined(rows)
        is_open = every[1]["ticks"] == 0
        return News(
            header=header,
            finished=_as_events(every[1][~is_open], every[0][~is_open], header, rate),
            in_flight=self._in_flight(live, header, rate),
            texts=tuple(texts),
            skipped_ns=None if skipped is None else int(header.to_ns(skipped, rate)[0]),
        )

    def find_file(self, number: int) -> Text | None:
        """Return the text of a file's id, searched from the log's end, as nobody keeps millions of
        texts."""
        with MappedLog(self.path) as file:
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
        self, file: MappedLog, threads: dict[int, _Followed]
    ) -> dict[int, tuple[int, Array, bytes]]:
        """Return (round, whole events, tail) of the blocks in use, of threads with news."""
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

    def _find_units(self, file: MappedLog) -> Header:
        """Find new blocks: the first of a thread is the block in use, and all later blocks are
        full.

        A thread counts only after two looks have seen the thread, so the thread's first, older
        block has been seen too.
        """
        header = header_of(self.path, file.read(0, HEADER_PAGE_BYTES))
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

    def _new_heads(self, file: MappedLog, header: Header) -> list[tuple[Any, ...]]:
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

    def _skip_backlog(self, file: MappedLog, texts: list[Text]) -> Array | None:
        """Drop the oldest full blocks except texts on the first look; return the end of the dropped
        time in ticks."""
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
        file: MappedLog,
        number: int,
        thread: _Followed,
        now: tuple[int, Array, bytes] | None,
        texts: list[Text],
        is_over: bool = False,
    ) -> list[tuple[int, Array]]:
        """Return news of full blocks: only of rounds before the round in use, as a later block may
        not have reached the file yet."""
        in_use = BLOCK_HEAD.unpack(thread.head)[2] if thread.head else 0
        in_use = now[0] if now is not None else in_use
        rows = []
        for round_, unit in sorted(thread.full):
            if round_ >= in_use and not is_over:
                continue
            thread.full.remove((round_, unit))
            data = file.units(unit, 1)[0]
            row, _ = index_row(unit, data[: BLOCK.itemsize].tobytes(), UNIT_BYTES)
            if row is None or row[4] != number:
                continue
            rows.append((number, self._told(thread, _whole(data, row), is_last=False)))
            texts += texts_in(data[row[3] :].tobytes())
        return rows

    def _told(self, thread: _Followed, raw: Array, is_last: bool = True) -> Array:
        """Return the events of a block to return now, and remember the returned events."""
        is_finished = raw["ticks"] != 0
        is_new = (raw["start"] > np.uint64(thread.latest)) | np.isin(raw["start"], thread.open)
        new: Array = raw[is_finished & is_new]
        # Calls in flight in a full block continue in the next block: such calls have not ended yet.
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
        """Return the calls in flight of all threads; a thread without news has none."""
        calls = []
        for number, (_, raw, _) in live.items():
            calls.append((number, raw[raw["ticks"] == 0]))
        thread, raw = _joined(calls)
        return _as_events(raw, thread, header, rate)


def _as_events(calls: Array, thread: Array, header: Header, ns_per_tick: float) -> Events:
    columns = {name: calls[name] for name in ("op", "errno", "file", "offset", "asked", "moved")}
    return Events(
        thread=thread,
        start_ns=header.to_ns(calls["start"], ns_per_tick),
        duration_ns=durations(calls["ticks"], ns_per_tick),
        **columns,
    )


def _head(file: MappedLog, unit: int) -> bytes:
    """Return a block's head; zeros for a unit past the file's end."""
    data = file.read(HEADER_BYTES + unit * UNIT_BYTES, BLOCK.itemsize)
    return data.ljust(BLOCK.itemsize, b"\0")


def _is_same(head: bytes, again: bytes) -> bool:
    """Return True if a block had the same round before and after the read, and was not being
    emptied.

    The recorder first sets `used` to 0, then clears the slots, then writes the new round.
    """
    before, after = BLOCK_HEAD.unpack(head[: BLOCK.itemsize]), BLOCK_HEAD.unpack(again)
    return bool(before[2] == after[2] and after[3] >= before[3])


def _whole(unit: Array, row: tuple[Any, ...] | None) -> Array:
    """Return the calls of a block, in flight or finished, each once."""
    if row is None or row[2] != EVENTS_BLOCK:
        return np.empty(0, CALL)
    is_wanted = np.ones(256, bool)
    is_wanted[[0, REST_OP]] = False
    _, start, ticks, columns = calls_of(np.array([row], INDEX), unit.reshape(1, -1), is_wanted)
    calls = np.empty(len(start), CALL)
    calls["start"], calls["ticks"] = start, ticks
    for name, column in columns.items():
        calls[name] = column
    if len(np.unique(start)) < len(start):  # a fold may be moving calls to the front
        keys = call_keys(start, calls["file"], calls["op"])
        calls = calls[np.sort(np.unique(keys, return_index=True)[1])]
    return calls


def _joined(rows: list[tuple[int, Array]]) -> tuple[Array, Array]:
    """Return (thread of each event, events)."""
    threads = [np.full(len(raw), number, np.uint32) for number, raw in rows]
    every = [raw for _, raw in rows]
    return (
        np.concatenate([np.empty(0, np.uint32), *threads]),
        np.concatenate([np.empty(0, CALL), *every]),
    )
