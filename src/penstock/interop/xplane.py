"""A run's rows inside a profile of TensorFlow or JAX (.xplane.pb), for XProf's trace viewer.

Knows the used fields of xplane.proto (openxla/xla, tsl/profiler/protobuf); needs neither TensorFlow
nor JAX.  The profile's own bytes stay unchanged, with unknown fields.

XProf draws the plane /host:CPU, and further the planes of GPUs, else of TPUs, else planes named
/device:CUSTOM:. So without an accelerator Penstock's plane is named /device:CUSTOM:, after the
profile's bytes; with an accelerator, Penstock's rows follow the bytes of /host:CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from penstock.errors import ForeignError
from penstock.interop.clocks import Alignment, Marks, align, require_overlap
from penstock.interop.timeline import (
    Row,
    Timeline,
    open_calls,
    process_pids,
    span_names,
    span_starts,
)
from penstock.interop.wire import fields, message, number, placed_fields
from penstock.runs.run import Run
from penstock.safe import bounded

__all__ = ["OWN_PLANE", "XProfile", "aligned", "read", "write"]

Progress = Callable[[int, int], None]

# XSpace, XPlane, XLine, XEvent, XStat and the two kinds of metadata
PLANES, HOSTNAMES = 1, 4
PLANE_ID, PLANE_NAME, LINES, EVENT_NAMES, STAT_NAMES, PLANE_STATS = 1, 2, 3, 4, 5, 6
LINE_ID, LINE_NAME, LINE_NS, EVENTS, LINE_PS, LINE_TITLE = 1, 2, 3, 4, 9, 11
EVENT_NAME_ID, EVENT_PS, EVENT_LENGTH_PS, EVENT_STATS = 1, 2, 3, 4
STAT_ID, STAT_UINT, STAT_INT, STAT_TEXT, STAT_REF = 1, 3, 4, 5, 7
KEY, VALUE = 1, 2
META_ID, META_NAME = 1, 2

OWN_PLANE = "/device:CUSTOM:penstock"
HOST_PLANE = "/host:CPU"
ACCELERATORS = ("/device:GPU:", "/device:TPU:")
START_NS = "profile_start_time"  # of the plane "Task Environment": the zero of lines' times

# Times of lines are since 1970, or since the profile's start: 2001 is before any profile, and
# thirty years are longer than any.
SINCE_1970_NS = 10**18
TIME_LIMIT_NS = 1 << 62
MAX_BYTES = 2 << 30  # protobuf's own limit
# Of events looked at for marks: a second's work.
MAX_EVENTS = 300_000
CHUNK = 20_000
TRACED_OPEN = "$io open"  # the name of open() in the Python tracer of TensorFlow and JAX


@dataclass
class _Plane:
    """The needed part of a plane.  place, size: of its bytes in the file."""

    place: int
    size: int
    name: str = ""
    id: int = 0
    event_names: dict[int, str] = field(default_factory=dict)
    stat_names: dict[int, str] = field(default_factory=dict)
    stats: dict[str, int] = field(default_factory=dict)
    lines: list[memoryview] = field(default_factory=list)
    line_ids: set[int] = field(default_factory=set)
    line_ns: list[int] = field(default_factory=list)
    last_ns: int = 0


@dataclass(frozen=True)
class XProfile:
    """A profile (.xplane.pb). Times are ns since 1970 by the profiler's clock.

    base_ns: the zero of lines' times: 0, or the profile's start.  marks: {name: (start, end) of
    host events with the name}. pid: of the profiled process; None: not stated.
    """

    path: Path
    data: bytes
    base_ns: int
    first_ns: int
    last_ns: int
    hosts: tuple[str, ...]
    pid: int | None
    marks: dict[str, list[tuple[int, int]]]
    host_plane: _Plane | None
    has_accelerator: bool
    last_plane_id: int


def read(path: Path) -> XProfile:
    """Read a profile.  Raises ForeignError: not an XSpace, cut, empty, or without a time."""
    try:
        with bounded.opened(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ForeignError(f"{path}: {error.strerror}") from error
    if len(data) > MAX_BYTES:
        raise ForeignError(f"{path}: more than {MAX_BYTES >> 30} GiB, which is no .xplane.pb")
    try:
        planes, hosts = _space(memoryview(data))
        return _profile(path, data, planes, hosts)
    except ForeignError as error:
        raise ForeignError(
            f"{path}: no profile of TensorFlow or JAX (.xplane.pb), or cut: {error}"
        ) from error


def _space(data: memoryview) -> tuple[list[_Plane], list[str]]:
    planes, hosts, place = [], [], 0
    for number_, _, value, end in placed_fields(data):
        if number_ == PLANES and isinstance(value, memoryview):
            plane = _plane(value)
            plane.place, plane.size = place, end - place
            planes.append(plane)
        elif number_ == HOSTNAMES and isinstance(value, memoryview):
            hosts.append(_text(value))
        place = end
    if not any(plane.name for plane in planes):
        raise ForeignError("it has no planes")
    return planes, hosts


def _text(value: memoryview) -> str:
    return bytes(value).decode("utf-8", "replace")


def _plane(data: memoryview) -> _Plane:
    plane = _Plane(0, 0)
    stats = []
    for number_, _, value in fields(data):
        if number_ == PLANE_ID and isinstance(value, int):
            plane.id = value
        elif isinstance(value, int):
            continue
        elif number_ == PLANE_NAME:
            plane.name = _text(value)
        elif number_ == EVENT_NAMES:
            plane.event_names.update([_entry(value)])
        elif number_ == STAT_NAMES:
            plane.stat_names.update([_entry(value)])
        elif number_ == PLANE_STATS:
            stats.append(dict(_numbers(value)))
        elif number_ == LINES:
            plane.lines.append(value)
            _read_line(plane, value)
    for stat in stats:
        name = plane.stat_names.get(stat.get(STAT_ID, 0))
        content = stat.get(STAT_UINT, stat.get(STAT_INT))
        if name is not None and content is not None:
            plane.stats[name] = content
    return plane


def _numbers(data: memoryview) -> list[tuple[int, int]]:
    return [(number_, value) for number_, _, value in fields(data) if isinstance(value, int)]


def _entry(data: memoryview) -> tuple[int, str]:
    """Return an entry of a map from an id to metadata: the id and the name."""
    key, name = 0, ""
    for number_, _, value in fields(data):
        if number_ == KEY and isinstance(value, int):
            key = value
        elif number_ == VALUE and isinstance(value, memoryview):
            for inner, _, part in fields(value):
                if inner == META_NAME and isinstance(part, memoryview):
                    name = _text(part)
    return key, name


def _read_line(plane: _Plane, data: memoryview) -> None:
    start_ns = length_ps = 0
    for number_, _, value in fields(data):
        if not isinstance(value, int):
            continue
        if number_ == LINE_ID:
            plane.line_ids.add(value)
        elif number_ == LINE_NS:
            start_ns = value
        elif number_ == LINE_PS:
            length_ps = value
    if start_ns >= TIME_LIMIT_NS or length_ps >= TIME_LIMIT_NS:
        raise ForeignError("a line is at no time")
    plane.line_ns.append(start_ns)
    plane.last_ns = max(plane.last_ns, start_ns + length_ps // 1000)


def _profile(path: Path, data: bytes, planes: list[_Plane], hosts: list[str]) -> XProfile:
    stats = {name: value for plane in planes for name, value in plane.stats.items()}
    line_ns = [ns for plane in planes for ns in plane.line_ns]
    base_ns = _base_ns(stats, line_ns)
    host = next((plane for plane in planes if plane.name == HOST_PLANE), None)
    marks = _marks(host, base_ns) if host else {}
    pid = stats.get("process_id", 0)
    return XProfile(
        path=path,
        data=data,
        base_ns=base_ns,
        first_ns=base_ns or min(line_ns),
        last_ns=_last_ns(planes, marks, base_ns, stats.get("profile_stop_time", 0)),
        hosts=tuple(name for name in hosts if name not in ("", "localhost")),
        pid=pid if 0 < pid < 1 << 31 else None,
        marks=marks,
        host_plane=host,
        has_accelerator=any(plane.name.startswith(ACCELERATORS) for plane in planes),
        last_plane_id=max(plane.id for plane in planes),
    )


def _base_ns(stats: dict[str, int], line_ns: list[int]) -> int:
    """Return the zero of lines' times: 0 for times since 1970 already.

    Raises ForeignError: neither the lines nor the profile has a date.
    """
    if line_ns and max(line_ns) >= SINCE_1970_NS:
        return 0
    base_ns = stats.get(START_NS, 0)
    if not SINCE_1970_NS <= base_ns < TIME_LIMIT_NS:
        raise ForeignError(
            "it does not say when it was made; record it with a newer TensorFlow or JAX"
        )
    return base_ns


def _last_ns(
    planes: list[_Plane], marks: dict[str, list[tuple[int, int]]], base_ns: int, stop_ns: int
) -> int:
    """Return the latest moment of a line, a host event or the profiler's stop."""
    event_ends = [end for events in marks.values() for _, end in events]
    latest_ns = max([base_ns + max(plane.last_ns for plane in planes), *event_ends])
    return max(latest_ns, stop_ns) if base_ns <= stop_ns < TIME_LIMIT_NS else latest_ns


def _marks(plane: _Plane, base_ns: int) -> dict[str, list[tuple[int, int]]]:
    """Return the events of the host's rows by name, up to MAX_EVENTS."""
    marks: dict[str, list[tuple[int, int]]] = {}
    left = MAX_EVENTS
    for start_ns, line in zip(plane.line_ns, plane.lines, strict=True):
        for number_, _, value in fields(line):
            if number_ != EVENTS or not isinstance(value, memoryview):
                continue
            left -= 1
            if left < 0:
                return marks
            event = dict(_numbers(value))
            offset_ps, length_ps = event.get(EVENT_PS, 0), event.get(EVENT_LENGTH_PS, 0)
            name = plane.event_names.get(event.get(EVENT_NAME_ID, 0))
            if name and max(offset_ps, length_ps) < TIME_LIMIT_NS:
                begin_ns = base_ns + start_ns + offset_ps // 1000
                marks.setdefault(name, []).append((begin_ns, begin_ns + length_ps // 1000))
    return marks


def aligned(profile: XProfile, run: Run) -> Alignment:
    """Return the alignment of the two clocks, by stretches named by both sides, and by open() calls
    in the profiler's Python trace.

    Raises ForeignError: the profile is of another time or machine.
    """
    require_overlap(profile.path, run, profile.first_ns, profile.last_ns, profile.hosts)
    candidates = []
    for pid in process_pids(run) if profile.pid is None else [profile.pid]:
        sides = [
            (f"stretches named {name!r}", name, span_starts(run, name, pid))
            for name in span_names(run, pid)
            if name in profile.marks
        ]
        if TRACED_OPEN in profile.marks:
            sides.append(("calls of open", TRACED_OPEN, open_calls(run, pid)))
        for said, name, spans in sides:
            ours = [(run.start_unix_ns + start, run.start_unix_ns + end) for start, end in spans]
            candidates.append(Marks(said, ours, profile.marks[name]))
    return align(candidates)


def write(
    profile: XProfile,
    timeline: Timeline,
    alignment: Alignment,
    stream: BinaryIO,
    progress: Progress = lambda done, total: None,
) -> None:
    """Write the profile with the run's rows."""
    host = profile.host_plane
    shift_ns = timeline.start_unix_ns + alignment.offset_ns - profile.base_ns
    if profile.has_accelerator and host is not None:
        rows = _Rows(timeline, shift_ns, host, progress)
        body = profile.data[host.place : host.place + host.size]
        own = _content(body) + rows.made(alignment.sentence)
        stream.write(profile.data[: host.place])
        stream.write(message(PLANES, own))
        stream.write(profile.data[host.place + host.size :])
        return
    rows = _Rows(timeline, shift_ns, _Plane(0, 0), progress)
    head = number(PLANE_ID, profile.last_plane_id + 1) + message(PLANE_NAME, OWN_PLANE)
    stream.write(profile.data)
    stream.write(message(PLANES, head + rows.made(alignment.sentence)))


def _content(data: bytes) -> bytes:
    """Return the content of a field of bytes."""
    ((_, _, value),) = fields(memoryview(data))
    assert isinstance(value, memoryview)
    return bytes(value)


class _Rows:
    """Lines with names, under ids free in the plane."""

    def __init__(
        self, timeline: Timeline, shift_ns: int, plane: _Plane, progress: Progress
    ) -> None:
        self.timeline, self.shift_ns, self.progress = timeline, shift_ns, progress
        self.free_events = _free(plane.event_names)
        self.free_stats = _free(plane.stat_names)
        self.free_lines = _free(plane.line_ids)
        self.is_host = bool(plane.name)
        self.event_ids: dict[str, int] = {}
        self.stat_ids: dict[str, int] = {}
        self.line_ns = max(0, timeline.from_ns + shift_ns)

    def made(self, remark: str) -> bytes:
        """Return the fields of a plane: lines, and the names of events and stats."""
        timeline = self.timeline
        parts = self._parts()
        said = "; ".join([f"run {timeline.name}", remark, *timeline.remarks])
        about = self._event(timeline.from_ns, timeline.to_ns, said, {"clocks": remark})
        lines = [self._line("penstock", [about])]
        for row in timeline.rows_from_above:
            lines.append(self._line(self._title(row), parts.get(row.row, [])))
        names = [
            message(
                which, number(KEY, id_) + message(VALUE, number(META_ID, id_) + message(2, name))
            )
            for which, ids in ((EVENT_NAMES, self.event_ids), (STAT_NAMES, self.stat_ids))
            for name, id_ in ids.items()
        ]
        return b"".join([*lines, *names])

    def _title(self, row: Row) -> str:
        mark = "penstock · " if self.is_host else ""
        return f"{mark}{row.name} · {row.process.name}"

    def _line(self, name: str, events: Iterable[bytes]) -> bytes:
        head = number(LINE_ID, next(self.free_lines)) + message(LINE_NAME, name)
        return message(LINES, head + number(LINE_NS, self.line_ns) + b"".join(events))

    def _parts(self) -> dict[int, list[bytes]]:
        """Return events by row."""
        timeline, calls = self.timeline, self.timeline.calls
        parts: dict[int, list[bytes]] = {}
        for shown in timeline.slices:
            facts = {"kind": shown.category, **shown.facts}
            event = self._event(shown.start_ns, shown.end_ns, shown.name, facts)
            parts.setdefault(shown.row, []).append(event)
        total = len(calls)
        for begin in range(0, total, CHUNK):
            end = min(begin + CHUNK, total)
            chunk = (column[begin:end].tolist() for column in (
                calls.row, calls.start_ns, calls.end_ns
            ))  # fmt: skip
            for place, (row, start_ns, end_ns) in enumerate(zip(*chunk, strict=True), begin):
                name, category = timeline.name_of_call(place)
                facts = {**timeline.facts_of_call(place), "kind": category}
                event = self._event(start_ns, end_ns, name, facts)
                parts.setdefault(row, []).append(event)
            self.progress(end, total)
        return parts

    def _event(self, start_ns: int, end_ns: int, name: str, facts: dict[str, int | str]) -> bytes:
        id_ = self.event_ids.get(name)
        if id_ is None:
            id_ = self.event_ids[name] = next(self.free_events)
        offset_ns = max(0, start_ns + self.shift_ns - self.line_ns)  # 0: lost by rounding
        body = number(EVENT_NAME_ID, id_) + number(EVENT_PS, offset_ns * 1000)
        body += number(EVENT_LENGTH_PS, (end_ns - start_ns) * 1000)
        for key, value in facts.items():
            stat = number(STAT_ID, self._stat(key))
            if isinstance(value, int):
                stat += number(STAT_INT, value)
            else:  # a repeated text is written once, as the name of a stat
                stat += number(STAT_REF, self._stat(value))
            body += message(EVENT_STATS, stat)
        return message(EVENTS, body)

    def _stat(self, name: str) -> int:
        id_ = self.stat_ids.get(name)
        if id_ is None:
            id_ = self.stat_ids[name] = next(self.free_stats)
        return id_


def _free(taken: Container[int]) -> Iterator[int]:
    """Yield free ids."""
    return (id_ for id_ in itertools.count(1) if id_ not in taken)
