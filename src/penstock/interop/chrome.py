"""Write a timeline as Chrome trace events (JSON), for most viewers.  Needs no library.

One event per line, so line tools can cut a file.  Times are microseconds from `base_ns`; times,
numbers and names are the timeline's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from penstock.interop.timeline import OWN_NUMBERS, Row, Timeline

__all__ = ["chunks", "dumps", "events", "facts", "write"]

Progress = Callable[[int, int], None]

RUN = OWN_NUMBERS - 1  # the process of facts about the whole run
CHUNK = 20_000


def write(
    timeline: Timeline, stream: BinaryIO, progress: Progress = lambda done, total: None
) -> None:
    """Write the trace.  progress is called with (done, total) slices of calls."""
    stream.write(b'{"displayTimeUnit": "ms", "otherData": ')
    stream.write(dumps(facts(timeline)).encode())
    stream.write(b', "traceEvents": [\n')
    before = b""
    for chunk in chunks(events(timeline, 0, progress)):
        stream.write(before + ",\n".join(chunk).encode())
        before = b",\n"
    stream.write(b"\n]}\n")


def chunks(texts: Iterator[str]) -> Iterator[list[str]]:
    """Yield lists of many texts, for fewer writes."""
    chunk: list[str] = []
    for text in texts:
        chunk.append(text)
        if len(chunk) == CHUNK:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def dumps(value: Any) -> str:
    """Return JSON, in UTF-8 if possible: Perfetto shows escapes in names literally."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or _is_utf8(text) else json.dumps(value)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, allowed in JSON
        return False
    return True


def facts(timeline: Timeline) -> dict[str, Any]:
    """Return the facts about the whole trace."""
    return {
        "run": timeline.name,
        "run start, ns since 1970": timeline.start_unix_ns,
        "calls": timeline.n_calls,
        "gathered calls": timeline.gathered_calls,
        "remarks": timeline.remarks,
    }


def events(
    timeline: Timeline,
    base_ns: int,
    progress: Progress = lambda done, total: None,
    named: Collection[int] = (),
    remark: str = "",
) -> Iterator[str]:
    """Yield each trace event as JSON. base_ns: the time 0 of the events, in ns from the run's
    start.

    named: numbers of processes already named by another writer of the same file: ours get separate
    rows.  remark: is added to the title.
    """
    writer = _Writer(timeline, base_ns, frozenset(named), remark)
    yield from writer.names()
    yield from writer.slices()
    yield from writer.rates()
    yield from writer.calls(progress)


def _us(ns: int) -> str:
    """Return microseconds with the nanoseconds behind the point; no binary fraction in between."""
    sign = "-" if ns < 0 else ""
    whole, rest = divmod(abs(ns), 1000)
    return f"{sign}{whole}.{rest:03d}" if rest else f"{sign}{whole}"


class _Writer:
    """The events of a timeline."""

    def __init__(
        self, timeline: Timeline, base_ns: int, named: frozenset[int], remark: str
    ) -> None:
        self.timeline, self.base_ns, self.named, self.remark = timeline, base_ns, named, remark
        self.where = {
            row.row: f'"pid": {row.process.number}, "tid": {self._tid(row)}'
            for row in timeline.rows
        }

    def _tid(self, row: Row) -> int:
        return OWN_NUMBERS + row.row if row.process.number in self.named else row.number

    def names(self) -> Iterator[str]:
        """Yield the names of processes and rows, and the order of both."""
        yield self._meta("process_name", RUN, 0, name="penstock · whole run")
        yield self._meta("process_sort_index", RUN, 0, sort_index=-1)
        for place, process in enumerate(self.timeline.processes):
            if process.number not in self.named:
                yield self._meta("process_name", process.number, 0, name=process.name)
                yield self._meta("process_sort_index", process.number, 0, sort_index=place)
        for place, row in enumerate(self.timeline.rows_from_above):
            pid, tid = row.process.number, self._tid(row)
            is_beside = pid in self.named  # the profiler's rows are sorted by their tids
            name = f"penstock · {row.name}" if is_beside else row.name
            yield self._meta("thread_name", pid, tid, name=name)
            order = row.tid if is_beside else place
            yield self._meta("thread_sort_index", pid, tid, sort_index=order)

    def _meta(self, what: str, pid: int, tid: int, **args: Any) -> str:
        return dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})

    def slices(self) -> Iterator[str]:
        """Yield the title of the file, the stretches, and the arrows between them."""
        timeline = self.timeline
        said = [f"run {timeline.name}", *([self.remark] if self.remark else []), *timeline.remarks]
        yield (
            f'{{"ph": "X", "name": {dumps("; ".join(said))}, "cat": "penstock", '
            f'"pid": {RUN}, "tid": 0, {self._when(timeline.from_ns, timeline.to_ns)}, '
            f'"args": {dumps(facts(timeline))}}}'
        )
        for shown in timeline.slices:
            yield (
                f'{{"ph": "X", "name": {dumps(shown.name)}, "cat": "{shown.category}", '
                f"{self.where[shown.row]}, {self._when(shown.start_ns, shown.end_ns)}, "
                f'"args": {dumps(shown.facts)}}}'
            )
        for place, flow in enumerate(timeline.flows, 1):
            fetch, wait = timeline.slices[flow.fetch], timeline.slices[flow.wait]
            of = "request" if fetch.category == "request" else "batch"
            # An arrow's ends belong to the surrounding slices: the fetch's first ns, the wait's
            # last.
            for shown, phase, at_ns in (
                (fetch, '"s"', fetch.start_ns),
                (wait, '"f", "bp": "e"', max(wait.start_ns, wait.end_ns - 1)),
            ):
                yield (
                    f'{{"ph": {phase}, "id": {place}, "name": "{of}", "cat": "{of}", '
                    f'{self.where[shown.row]}, "ts": {_us(at_ns - self.base_ns)}}}'
                )

    def rates(self) -> Iterator[str]:
        """Yield the counters."""
        for rate in self.timeline.rates:
            name = dumps(rate.name)
            for start_ns, value in zip(rate.start_ns, rate.bytes_per_s, strict=True):
                yield (
                    f'{{"ph": "C", "name": {name}, "pid": {RUN}, "tid": 0, '
                    f'"ts": {_us(start_ns - self.base_ns)}, '
                    f'"args": {{"MB/s": {value / 1e6:.6g}}}}}'
                )

    def calls(self, progress: Progress) -> Iterator[str]:
        """Yield the calls."""
        timeline, calls = self.timeline, self.timeline.calls
        total = len(calls)
        columns = (calls.row, calls.start_ns, calls.end_ns)
        for begin in range(0, total, CHUNK):
            end = min(begin + CHUNK, total)
            chunk = zip(*(column[begin:end].tolist() for column in columns), strict=True)
            for place, (row, start_ns, end_ns) in enumerate(chunk, begin):
                name, category = timeline.name_of_call(place)
                yield (
                    f'{{"ph": "X", "name": "{name}", "cat": {dumps(category)}, '
                    f"{self.where[row]}, {self._when(start_ns, end_ns)}, "
                    f'"args": {dumps(timeline.facts_of_call(place))}}}'
                )
            progress(end, total)

    def _when(self, start_ns: int, end_ns: int) -> str:
        return f'"ts": {_us(start_ns - self.base_ns)}, "dur": {_us(end_ns - start_ns)}'
