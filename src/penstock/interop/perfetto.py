"""Write a timeline as a Perfetto trace.  Knows the written fields of perfetto_trace.proto.

A track per row, under the row's thread and process; slices as begin and end; names, categories and
paths written once and referenced by number.  Times are wall clock, ns since 1970.  The messages are
built by hand (wire.py explains the reason); the tests read the messages with Perfetto's classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import BinaryIO

from penstock.interop.timeline import Row, Timeline, TimelineProcess
from penstock.interop.wire import message, number, varint, varints

__all__ = ["write"]

Progress = Callable[[int, int], None]

# perfetto_trace.proto: Trace, TracePacket
PACKET = 1
TIMESTAMP, CLOCK_SNAPSHOT, SEQUENCE, TRACK_EVENT = 8, 6, 10, 11
INTERNED, FLAGS, DESCRIPTOR = 12, 13, 60
STATE_CLEARED, NEEDS_STATE = 1, 2
# TrackDescriptor, ProcessDescriptor, ThreadDescriptor, CounterDescriptor
UUID, NAME, PROCESS, THREAD, PARENT, COUNTER, ORDERING, RANK = 1, 2, 3, 4, 5, 8, 11, 12
PROCESS_PID, PROCESS_NAME = 1, 6
THREAD_PID, THREAD_TID, THREAD_NAME = 1, 2, 5
UNIT_NAME = 6
EXPLICIT = 3
# TrackEvent
CATEGORY_ID, ANNOTATION, TYPE, NAME_ID, TRACK, DOUBLE_VALUE = 3, 4, 9, 10, 11, 44
FLOWS, FLOW_ENDS = 47, 48
BEGIN, END, VALUE = 1, 2, 4
# DebugAnnotation
KEY_ID, INTEGER, TEXT, TEXT_ID = 1, 4, 6, 17
# InternedData: event_categories, event_names, debug_annotation_names and _string_values
CATEGORIES, NAMES, KEYS, TEXTS = 1, 2, 3, 29
# ClockSnapshot: clocks { clock_id, timestamp }; built-in clocks
CLOCKS, REALTIME, BOOTTIME = 1, 1, 6

CHUNK = 50_000
MAX_EVENT_BYTES = 1024  # of a call: texts are numbers, and eight facts take 200 bytes
ABOUT, SUMS = 1, 2  # tracks of the run itself; tracks of rows and processes follow
FIRST_UUID = 10


def write(
    timeline: Timeline, stream: BinaryIO, progress: Progress = lambda done, total: None
) -> None:
    """Write the trace.  progress is called with (done, total) slices of calls."""
    writer = _Writer(timeline)
    for packet in writer.head():
        stream.write(packet)
    for packet in writer.slices():
        stream.write(packet)
    for packet in writer.rates():
        stream.write(packet)
    total = len(timeline.calls)
    for begin in range(0, total, CHUNK):
        stream.write(writer.calls(begin, min(begin + CHUNK, total)))
        progress(min(begin + CHUNK, total), total)


def _packet(body: bytes) -> bytes:
    return message(PACKET, body)


class _Names:
    """Texts of a kind, each written once; new texts wait for the next packet."""

    def __init__(self, field: int) -> None:
        self.field = field
        self.ids: dict[str, int] = {}
        self.fresh: list[bytes] = []

    def id(self, text: str) -> int:
        place = self.ids.get(text)
        if place is None:
            place = self.ids[text] = len(self.ids) + 1
            # EventCategory, EventName, DebugAnnotationName, InternedString: iid 1, name or str 2
            self.fresh.append(message(self.field, number(1, place) + message(2, text)))
        return place


class _Writer:
    """A trace in the making, with the repeated parts."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.base_ns = timeline.start_unix_ns
        self.names = {field: _Names(field) for field in (CATEGORIES, NAMES, KEYS, TEXTS)}
        self.tail = number(SEQUENCE, 1) + number(FLAGS, NEEDS_STATE)
        self.row_uuid = {row.row: FIRST_UUID + row.row for row in timeline.rows}
        after = FIRST_UUID + len(timeline.rows)
        self.process_uuid = {
            process.process: after + place for place, process in enumerate(timeline.processes)
        }
        self.rate_uuid = after + len(timeline.processes)
        self.call_heads: dict[tuple[int, int, str], bytes] = {}
        self.path_facts: dict[int, bytes] = {}

    # Packets

    def head(self) -> Iterator[bytes]:
        """Yield clocks, tracks, and the facts of the trace."""
        base = self.base_ns + self.timeline.from_ns
        clocks = b"".join(
            message(CLOCKS, number(1, clock) + number(2, base)) for clock in (BOOTTIME, REALTIME)
        )
        yield _packet(
            message(CLOCK_SNAPSHOT, clocks) + number(SEQUENCE, 1) + number(FLAGS, STATE_CLEARED)
        )
        yield self._track(number(UUID, ABOUT) + message(NAME, "penstock"))
        yield self._track(number(UUID, SUMS) + message(NAME, "whole run"))
        for process in self.timeline.processes:
            yield self._track(self._process(process))
        for rank, row in enumerate(self.timeline.rows_from_above):
            yield self._track(self._row(row, rank))
        yield from self._about()

    def _track(self, body: bytes) -> bytes:
        return _packet(message(DESCRIPTOR, body) + self.tail)

    def _process(self, process: TimelineProcess) -> bytes:
        described = number(PROCESS_PID, process.number) + message(PROCESS_NAME, process.name)
        uuid = self.process_uuid[process.process]
        return number(UUID, uuid) + message(PROCESS, described) + number(ORDERING, EXPLICIT)

    def _row(self, row: Row, rank: int) -> bytes:
        uuid = number(UUID, self.row_uuid[row.row])
        parent = number(PARENT, self.process_uuid[row.process.process])
        if row.kind == "spans" and row.lane == 0:
            thread = number(THREAD_PID, row.process.number) + number(THREAD_TID, row.number)
            return uuid + parent + message(THREAD, thread + message(THREAD_NAME, row.name))
        return uuid + parent + message(NAME, row.name) + number(RANK, rank)

    def _about(self) -> Iterator[bytes]:
        timeline = self.timeline
        facts: dict[str, int | str] = {
            "run": timeline.name,
            "run start, ns since 1970": timeline.start_unix_ns,
            "calls": timeline.n_calls,
            "gathered calls": timeline.gathered_calls,
        }
        facts |= {f"remark {place}": text for place, text in enumerate(timeline.remarks, 1)}
        title = "; ".join([f"run {timeline.name}", *timeline.remarks])
        body = self._body(ABOUT, title, "penstock") + self._facts(facts)
        yield self._fresh()
        yield self._event(timeline.from_ns, body) + self._end(timeline.to_ns, ABOUT)

    def slices(self) -> Iterator[bytes]:
        """Yield stretches, with an arrow from each fetch or request to the wait for it."""
        begins: dict[int, bytes] = {}
        ends: dict[int, bytes] = {}
        for place, flow in enumerate(self.timeline.flows, 1):
            # Perfetto drops an arrow with the end before the begin: the arrow ends at the end of
            # the wait, as a fetch may begin after the wait.
            flow_id = place.to_bytes(8, "little")
            begins[flow.fetch] = begins.get(flow.fetch, b"") + varint(FLOWS << 3 | 1) + flow_id
            ends[flow.wait] = ends.get(flow.wait, b"") + varint(FLOW_ENDS << 3 | 1) + flow_id
        for place, shown in enumerate(self.timeline.slices):
            track = self.row_uuid[shown.row]
            body = self._body(track, shown.name, shown.category) + self._facts(shown.facts)
            packet = self._event(shown.start_ns, body + begins.get(place, b""))
            yield self._fresh() + packet + self._end(shown.end_ns, track, ends.get(place, b""))

    def rates(self) -> Iterator[bytes]:
        """Yield the counters."""
        import struct

        for place, rate in enumerate(self.timeline.rates):
            uuid = self.rate_uuid + place
            unit = message(COUNTER, message(UNIT_NAME, "MB/s"))
            track = number(UUID, uuid) + message(NAME, rate.name) + number(PARENT, SUMS) + unit
            yield self._track(track)
            for start_ns, value in zip(rate.start_ns, rate.bytes_per_s, strict=True):
                body = number(TYPE, VALUE) + number(TRACK, uuid)
                body += varint(DOUBLE_VALUE << 3 | 1) + struct.pack("<d", value / 1e6)
                yield self._event(start_ns, body)

    def calls(self, begin: int, end: int) -> bytes:
        """Return calls as events.  A million calls take most of the time: texts are referenced by
        number, so events are short, and repeated parts are made once."""
        calls = self.timeline.calls
        part = slice(begin, end)
        starts = varints(calls.start_ns[part] + self.base_ns)
        ends = varints(calls.end_ns[part] + self.base_ns)
        is_odd = (calls.errno[part] != 0) | calls.is_in_flight[part] | self.timeline.is_cut(part)
        plain = ((calls.calls[part] == 1) & ~is_odd).tolist()
        sizes = self._numbers_of_calls(part)
        packet, stamp = varint(PACKET << 3 | 2), varint(TIMESTAMP << 3)
        event, tail = varint(TRACK_EVENT << 3 | 2), self.tail
        lengths = [varint(length) for length in range(MAX_EVENT_BYTES)]
        finishes: dict[int, bytes] = {}
        out = []
        columns = (calls.row[part], calls.op[part], calls.file[part])
        for place, (row, op, file) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        ):
            if plain[place]:
                body = self._head_of_call(begin + place, row, op, file) + sizes[place]
            else:
                body = self._odd_call(begin + place, row)
            finish = finishes.get(row)
            if finish is None:
                finish = finishes[row] = self._finish(self.row_uuid[row]) + tail
            body = stamp + starts[place] + event + lengths[len(body)] + body + tail
            finish = stamp + ends[place] + finish
            out.append(packet + lengths[len(body)] + body + packet + lengths[len(finish)] + finish)
        return self._fresh() + b"".join(out)

    def _numbers_of_calls(self, part: slice) -> list[bytes]:
        """Return the numbers of facts_of_call for single calls, as annotations."""
        calls = self.timeline.calls
        moves = (calls.reads[part] + calls.writes[part]) > 0
        asked, moved, offset = (
            calls.asked_bytes[part], calls.moved_bytes[part], calls.offset_bytes[part]
        )  # fmt: skip
        columns = (
            ("bytes", moved, moves),
            ("asked bytes", asked, moves & (asked != moved)),
            ("offset", offset, offset >= 0),
        )
        rows = []
        for name, values, is_shown in columns:
            key = number(KEY_ID, self.names[KEYS].id(name)) + varint(INTEGER << 3)
            heads = [
                varint(ANNOTATION << 3 | 2) + varint(len(key) + length) + key
                for length in range(11)
            ]
            rows.append([
                heads[len(value)] + value if shown else b""
                for value, shown in zip(varints(values), is_shown.tolist(), strict=True)
            ])  # fmt: skip
        return [b"".join(parts) for parts in zip(*rows, strict=True)]

    # Parts of packets

    def _head_of_call(self, place: int, row: int, op: int, file: int) -> bytes:
        path = self.path_facts.get(file)
        if path is None:
            path_facts = self.timeline.paths.get(file)
            path = self._facts({"path": path_facts[0]}, is_repeated=True) if path_facts else b""
            self.path_facts[file] = path
        path_class = self.timeline.paths.get(file, ("", ""))[1]
        key = (row, op, path_class)
        head = self.call_heads.get(key)
        if head is None:
            name, category = self.timeline.name_of_call(place)
            head = self.call_heads[key] = self._body(self.row_uuid[row], name, category)
        return head + path

    def _odd_call(self, place: int, row: int) -> bytes:
        name, category = self.timeline.name_of_call(place)
        facts = self.timeline.facts_of_call(place)
        path = facts.pop("path", None)
        body = self._body(self.row_uuid[row], name, category)
        if path is not None:
            body += self._facts({"path": path}, is_repeated=True)
        return body + self._facts(facts)

    def _body(self, track: int, name: str, category: str) -> bytes:
        body = number(TYPE, BEGIN) + number(TRACK, track)
        for part in category.split(","):
            body += number(CATEGORY_ID, self.names[CATEGORIES].id(part))
        return body + number(NAME_ID, self.names[NAMES].id(name))

    def _facts(self, facts: dict[str, int | str], is_repeated: bool = False) -> bytes:
        body = b""
        for key, value in facts.items():
            said = number(KEY_ID, self.names[KEYS].id(key))
            if isinstance(value, int):
                said += number(INTEGER, value)
            elif is_repeated:
                said += number(TEXT_ID, self.names[TEXTS].id(value))
            else:
                said += message(TEXT, value)
            body += message(ANNOTATION, said)
        return body

    def _event(self, at_ns: int, body: bytes) -> bytes:
        return _packet(
            number(TIMESTAMP, at_ns + self.base_ns) + message(TRACK_EVENT, body) + self.tail
        )

    def _finish(self, track: int, more: bytes = b"") -> bytes:
        return message(TRACK_EVENT, number(TYPE, END) + number(TRACK, track) + more)

    def _end(self, at_ns: int, track: int, more: bytes = b"") -> bytes:
        at = number(TIMESTAMP, at_ns + self.base_ns)
        return _packet(at + self._finish(track, more) + self.tail)

    def _fresh(self) -> bytes:
        """Return a packet of the new texts, to be written before their use."""
        body = b"".join(text for names in self.names.values() for text in names.fresh)
        for names in self.names.values():
            names.fresh.clear()
        return _packet(message(INTERNED, body) + self.tail) if body else b""
