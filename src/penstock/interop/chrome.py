"""A timeline as Chrome trace events (JSON), which most viewers read.  Needs no library.

One event a line, so that a file can be cut by line tools.  Times are microseconds from `base_ns`;
times, numbers and names are those of the timeline.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from penstock.interop.timeline import OWN_NUMBERS, Row, Timeline

__all__ = ["events", "facts", "write"]

Progress = Callable[[int, int], None]

RUN = OWN_NUMBERS - 1  # the process under which stands what is of the whole run
CHUNK = 20_000


def write(
    timeline: Timeline, stream: BinaryIO, progress: Progress = lambda done, total: None
) -> None:
    """Writes the trace.  progress is called with (done, total) slices of calls."""
    stream.write(b'{"displayTimeUnit": "ms", "otherData": ')
    stream.write(json.dumps(facts(timeline)).encode())
    stream.write(b', "traceEvents": [\n')
    before = b""
    for chunk in _chunks(events(timeline, 0, progress)):
        stream.write(before + ",\n".join(chunk).encode("utf-8", "replace"))
        before = b",\n"
    stream.write(b"\n]}\n")


def _chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def facts(timeline: Timeline) -> dict[str, Any]:
    """What is to be known of the whole trace."""
    return {
        "run": timeline.name,
        "run start, ns since 1970": timeline.start_unix_ns,
        "calls": timeline.n_calls,
        "gathered calls": timeline.gathered_calls,
        "remarks": timeline.remarks,
    }


def events(
    timeline: Timeline, base_ns: int, progress: Progress = lambda done, total: None
) -> Iterator[str]:
    """Each trace event as JSON; base_ns is where their time 0 is, in ns from the run's start."""
    yield from _names(timeline)
    yield from _slices(timeline, base_ns)
    yield from _rates(timeline, base_ns)
    yield from _calls(timeline, base_ns, progress)


def _us(ns: int) -> str:
    """Microseconds with the nanoseconds behind the point; no binary fraction in between."""
    sign = "-" if ns < 0 else ""
    whole, rest = divmod(abs(ns), 1000)
    return f"{sign}{whole}.{rest:03d}" if rest else f"{sign}{whole}"


def _names(timeline: Timeline) -> Iterator[str]:
    def meta(what: str, pid: int, tid: int, **args: Any) -> str:
        return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

    yield meta("process_name", RUN, 0, name="whole run")
    yield meta("process_sort_index", RUN, 0, sort_index=-1)
    for place, process in enumerate(timeline.processes):
        yield meta("process_name", process.number, 0, name=process.name)
        yield meta("process_sort_index", process.number, 0, sort_index=place)
    for place, row in enumerate(timeline.rows_from_above):
        yield meta("thread_name", row.process.number, row.number, name=row.name)
        yield meta("thread_sort_index", row.process.number, row.number, sort_index=place)


def _slices(timeline: Timeline, base_ns: int) -> Iterator[str]:
    rows: tuple[Row, ...] = timeline.rows
    title = "; ".join([f"run {timeline.name}", *timeline.remarks])
    yield json.dumps(
        {"ph": "X", "name": title, "cat": "penstock", "pid": RUN, "tid": 0, "args": facts(timeline)}
    ).removesuffix("}") + (
        f', "ts": {_us(timeline.from_ns - base_ns)}, '
        f'"dur": {_us(timeline.to_ns - timeline.from_ns)}}}'
    )
    for shown in timeline.slices:
        row = rows[shown.row]
        yield (
            f'{{"ph": "X", "name": {json.dumps(shown.name)}, "cat": "{shown.category}", '
            f'"pid": {row.process.number}, "tid": {row.number}, '
            f'"ts": {_us(shown.start_ns - base_ns)}, "dur": {_us(shown.end_ns - shown.start_ns)}, '
            f'"args": {json.dumps(shown.facts)}}}'
        )
    for place, flow in enumerate(timeline.flows, 1):
        fetch, wait = timeline.slices[flow.fetch], timeline.slices[flow.wait]
        # An arrow's ends belong to the slices around them: the fetch's first ns, the wait's last.
        for shown, phase, at_ns in (
            (fetch, '"s"', fetch.start_ns),
            (wait, '"f", "bp": "e"', max(wait.start_ns, wait.end_ns - 1)),
        ):
            row = rows[shown.row]
            yield (
                f'{{"ph": {phase}, "id": {place}, "name": "batch", "cat": "batch", '
                f'"pid": {row.process.number}, "tid": {row.number}, "ts": {_us(at_ns - base_ns)}}}'
            )


def _rates(timeline: Timeline, base_ns: int) -> Iterator[str]:
    for rate in timeline.rates:
        name = json.dumps(rate.name)
        for start_ns, value in zip(rate.start_ns, rate.bytes_per_s, strict=True):
            yield (
                f'{{"ph": "C", "name": {name}, "pid": {RUN}, "tid": 0, '
                f'"ts": {_us(start_ns - base_ns)}, "args": {{"MB/s": {value / 1e6:.6g}}}}}'
            )


def _calls(timeline: Timeline, base_ns: int, progress: Progress) -> Iterator[str]:
    calls, rows = timeline.calls, timeline.rows
    total = len(calls)
    columns = (calls.row, calls.start_ns - base_ns, calls.end_ns - calls.start_ns)
    for begin in range(0, total, CHUNK):
        end = min(begin + CHUNK, total)
        chunk = zip(*(column[begin:end].tolist() for column in columns), strict=True)
        for place, (row, start_ns, ns) in enumerate(chunk, begin):
            name, category = timeline.name_of_call(place)
            where = rows[row]
            yield (
                f'{{"ph": "X", "name": "{name}", "cat": {json.dumps(category)}, '
                f'"pid": {where.process.number}, "tid": {where.number}, '
                f'"ts": {_us(start_ns)}, "dur": {_us(ns)}, '
                f'"args": {json.dumps(timeline.facts_of_call(place))}}}'
            )
        progress(end, total)
