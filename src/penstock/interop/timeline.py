"""The timeline of a run: rows, slices, counters and flows.  Knows no format.

Each thread has a row for stretches (steps, data waits, fetches, checkpoints), a row for calls, rows
for requests to remote storage, and a row for epochs of the thread's loaders; each layer and
direction has a counter; a flow leads from a worker's fetch of a batch to the data wait for the
batch, and from a request to the wait or step that waited for it.  All times are nanoseconds since
the run's start.
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from penstock.errors import QueryError
from penstock.explain.questions import prepare, query

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

    from penstock.runs.run import Run

    Array = NDArray[Any]

__all__ = [
    "MAX_SLICES",
    "BandwidthLine",
    "CallSlices",
    "Flow",
    "Row",
    "Timeline",
    "TimelineProcess",
    "TimelineSlice",
    "open_calls",
    "process_pids",
    "span_names",
    "span_starts",
    "timeline_of",
]

Progress = Callable[[int, int], None]

# The limit of browser viewers: traces of 2-3 GB fail (google/perfetto#1392), and a slice takes some
# 100 bytes of Perfetto's format, 200 of Chrome's.
MAX_SLICES = 1_000_000

# As many as a wide screen has columns; finer counters show noise.
COUNTER_BINS = 2000

# Durations and starts are rounded down separately: an inner slice may end later than the outer
# slice by the rounding.
ROUNDING_NS = 2

# The remark on a slice that continues outside the shown time.
CUT = "cut here, ns in all"

# Numbers of processes and rows for viewers that need unique numbers: above Linux's pid_max (2^22).
OWN_NUMBERS = 10_000_000

# All queries used here; questions.prepare makes the tables for the queries.
ASKED = (
    "lives",
    "timeline_bandwidth",
    "timeline_calls",
    "timeline_family",
    "timeline_flows",
    "timeline_processes",
    "timeline_request_flows",
    "timeline_requests",
    "timeline_shown",
    "timeline_slices",
    "timeline_spans",
    "timeline_widths",
)


@dataclass(frozen=True, slots=True)
class TimelineProcess:
    """A process.  number: the pid, unless another process image of the run has the pid: then a
    number made by Penstock."""

    process: int
    number: int
    pid: int
    host: str
    rank: int | None
    role: str
    name: str
    command: str


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the picture.  The slices of a row nest: no slice begins in another slice and ends
    later.

    kind: spans, loader, recording, requests or calls.  number: unique among the rows of the
    process; for spans the thread's tid.  lane: 0, or the number among several rows for overlapping
    slices.
    """

    row: int
    process: TimelineProcess
    thread: int
    tid: int
    number: int
    kind: str
    lane: int
    name: str
    is_main: bool


@dataclass(frozen=True, slots=True)
class TimelineSlice:
    """A stretch: a step, data wait, fetch, checkpoint, request, or a stretch named by the user."""

    row: int
    name: str
    category: str
    start_ns: int
    end_ns: int
    facts: dict[str, int | str]


@dataclass(frozen=True, slots=True)
class Flow:
    """An arrow from a worker's fetch, or a request, to the data wait (or step) that waited for it,
    as positions in Timeline.slices."""

    fetch: int
    wait: int


@dataclass(frozen=True, slots=True)
class BandwidthLine:
    """Bytes per second in equal bins: a value at each start_ns, the last at the timeline's end."""

    name: str
    start_ns: list[int]
    bytes_per_s: list[float]


@dataclass(frozen=True, slots=True)
class CallSlices:
    """Slices of calls as columns, by row and start; a slice of several calls is gathered.

    op, file, offset_bytes, errno: of the only call; file and offset_bytes -1: not known.  reads,
    writes: calls with bytes; errors: calls with an errno; busy_ns: sum of durations.
    """

    row: Array
    start_ns: Array
    end_ns: Array
    calls: Array
    op: Array
    file: Array
    offset_bytes: Array
    asked_bytes: Array
    moved_bytes: Array
    errno: Array
    errors: Array
    reads: Array
    writes: Array
    busy_ns: Array
    is_in_flight: Array

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True)
class Timeline:
    """A run, ready for drawing.

    start_unix_ns: the run's start, ns since 1970.  from_ns, to_ns: the shown time.  n_calls: calls
    in the shown time; calls shorter than pixel_ns may be gathered, 0: no call is gathered.
    folded_calls: calls of the whole run the recorder kept as sums, in no row.  left_out: processes
    not requested.  ops: {number: (op, layer)}. paths: {file: (path, class)}.
    """

    name: str
    start_unix_ns: int
    from_ns: int
    to_ns: int
    processes: tuple[TimelineProcess, ...]
    rows: tuple[Row, ...]
    slices: tuple[TimelineSlice, ...]
    flows: tuple[Flow, ...]
    calls: CallSlices
    rates: tuple[BandwidthLine, ...]
    ops: dict[int, tuple[str, str]]
    paths: dict[int, tuple[str, str]]
    n_calls: int
    pixel_ns: int
    folded_calls: int
    left_out: int
    is_running: bool

    @cached_property
    def gathered_calls(self) -> int:
        """Return the number of calls in gathered slices."""
        return int(self.calls.calls[self.calls.calls > 1].sum())

    @cached_property
    def gathered_slices(self) -> int:
        """Return the number of gathered slices."""
        return int((self.calls.calls > 1).sum())

    @property
    def rows_from_above(self) -> list[Row]:
        """Return the rows by process, main thread first, a thread's stretches above its calls."""
        order = {process.process: place for place, process in enumerate(self.processes)}
        kinds = ("recording", "loader", "spans", "requests", "calls")
        return sorted(
            self.rows,
            key=lambda row: (
                order[row.process.process],
                not row.is_main,
                row.thread,
                kinds.index(row.kind),
                row.lane,
            ),
        )

    @property
    def remarks(self) -> list[str]:
        """Return sentences about calls and processes missing in the picture."""
        said = []
        if self.gathered_calls:
            said.append(
                f"{self.gathered_calls:,} of {self.n_calls:,} calls, each shorter than "
                f"{_duration(self.pixel_ns)}, are gathered into {self.gathered_slices:,} slices"
            )
        if self.folded_calls:
            said.append(
                f"{self.folded_calls:,} calls of the run are known as sums only (past its trace "
                "budget, or imported as counters), and not shown"
            )
        if self.left_out:
            said.append(
                f"{self.left_out:,} other processes of the run are not shown; bandwidth is of all"
            )
        if self.is_running:
            said.append("the run goes on: what is shown is what was recorded so far")
        return said

    def is_cut(self, part: slice) -> Array:
        """Return for slices of single calls whether the call continues outside of the timeline."""
        calls = self.calls
        shown_ns = calls.end_ns[part] - calls.start_ns[part]
        cut: Array = (calls.calls[part] == 1) & (calls.busy_ns[part] > shown_ns + ROUNDING_NS)
        return cut

    def facts_of_call(self, place: int) -> dict[str, int | str]:
        """Return the facts of a slice of calls by name; sizes in bytes."""
        calls = self.calls
        facts: dict[str, int | str] = {}
        if calls.calls[place] > 1:
            facts["calls"] = int(calls.calls[place])
            facts["reads"] = int(calls.reads[place])
            facts["writes"] = int(calls.writes[place])
            facts["bytes"] = int(calls.moved_bytes[place])
            facts["ns in calls"] = int(calls.busy_ns[place])
            if calls.errors[place]:
                facts["errors"] = int(calls.errors[place])
        else:
            path = self.paths.get(int(calls.file[place]))
            if path is not None:
                facts["path"] = path[0]
            if calls.reads[place] or calls.writes[place]:
                facts["bytes"] = int(calls.moved_bytes[place])
                if calls.asked_bytes[place] != calls.moved_bytes[place]:
                    facts["asked bytes"] = int(calls.asked_bytes[place])
            if calls.offset_bytes[place] >= 0:
                facts["offset"] = int(calls.offset_bytes[place])
            if calls.errno[place]:
                facts["errno"] = errno_name(int(calls.errno[place]))
        if self.is_cut(slice(place, place + 1))[0]:
            facts[CUT] = int(calls.busy_ns[place])
        if calls.is_in_flight[place]:
            facts["in flight"] = "not ended when the log ends"
        return facts

    def name_of_call(self, place: int) -> tuple[str, str]:
        """Return name and category of a slice of calls; the category is the layer and the class."""
        if self.calls.calls[place] > 1:
            return f"{int(self.calls.calls[place])} calls", "gathered"
        op, layer = self.ops[int(self.calls.op[place])]
        path = self.paths.get(int(self.calls.file[place]))
        return op, f"{layer},{path[1] if path else 'unknown'}"


@cache
def errno_name(number: int) -> str:
    """Return ENOENT for 2; the number for an error without a name on the local system."""
    import errno

    return errno.errorcode.get(number, str(number))


def timeline_of(
    run: Run,
    from_s: float | None = None,
    to_s: float | None = None,
    max_slices: int = MAX_SLICES,
    pids: Collection[int] = (),
) -> Timeline:
    """Return the timeline of a run between from_s and to_s, seconds from the run's start.

    Slices that continue outside are cut, with a note of the length: an uncut epoch of a loader
    would stretch a profile's second to an hour.  Calls become at most about max_slices slices: the
    shortest are gathered.  pids: only rows of the processes with the given pids and of descendants;
    empty: all.  Raises QueryError: an empty stretch, or outside the run, or a run without events in
    time.
    """
    with run.connection.cursor() as engine:  # prepared tables end with the cursor
        prepare(engine, ASKED)
        _refuse_without_events(engine)
        first_ns, last_ns = _ask(engine, "SELECT min(start_ns), max(end_ns) FROM lives")[0]
        from_ns, to_ns = _stretch(first_ns, last_ns, from_s, to_s)
        engine.execute(f"SET VARIABLE from_ns = {from_ns}")
        engine.execute(f"SET VARIABLE to_ns = {to_ns}")
        engine.execute(f"SET VARIABLE pids = {sorted(pids)}::BIGINT[]")
        _ask(engine, f"CREATE TEMP TABLE timeline_family AS\n{query('timeline_family')}")
        _ask(engine, f"CREATE TEMP VIEW timeline_shown AS\n{query('timeline_shown')}")
        return _Drawing(run, engine, from_ns, to_ns, max_slices).made()


def _refuse_without_events(engine: duckdb.DuckDBPyConnection) -> None:
    """Raise QueryError for a run with counters only: the picture would show an idle run."""
    ((has_events, n_folded),) = _ask(
        engine,
        "SELECT (SELECT count(*) > 0 FROM (FROM events_raw LIMIT 1))"
        " OR (SELECT count(*) > 0 FROM (FROM spans LIMIT 1)),"
        " (SELECT coalesce(sum(calls), 0)::BIGINT FROM folded_raw)",
    )
    if n_folded and not has_events:
        raise QueryError(
            f"no single call is in this run, only sums of {n_folded:,} calls: nothing that a "
            "timeline could show; `penstock report` shows the sums"
        )


def _stretch(
    first_ns: int | None, last_ns: int | None, from_s: float | None, to_s: float | None
) -> tuple[int, int]:
    """Return the shown time in ns; the end is later than every slice that ends at the run's end."""
    first_ns, last_ns = first_ns or 0, last_ns or 0
    from_ns = first_ns if from_s is None else _ns(from_s)
    to_ns = last_ns + 1 if to_s is None else _ns(to_s)
    if from_ns >= to_ns or from_ns > last_ns or to_ns <= first_ns:
        raise QueryError(
            f"nothing lies between {from_ns / 1e9:g} s and {to_ns / 1e9:g} s: the run's timeline "
            f"goes from {first_ns / 1e9:g} s to {last_ns / 1e9:g} s"
        )
    return from_ns, to_ns


def _ns(seconds: float) -> int:
    if math.isnan(seconds):
        raise QueryError("nan is no time: give seconds from the run's start")
    limit_s = 1e9  # 30 years stands for "to the end"
    return round(max(-limit_s, min(limit_s, seconds)) * 1e9)


def span_starts(run: Run, name: str, pid: int) -> list[tuple[int, int]]:
    """Return (start, end) of the finished spans of a name in the processes with a pid, by start."""
    return [
        (start_ns, end_ns)
        for start_ns, end_ns in run.sql(
            "SELECT s.start_ns, s.start_ns + s.duration_ns FROM spans AS s "
            "JOIN processes AS p ON p.process = s.process "
            "WHERE p.pid = $pid AND s.kind = 'span' AND s.name = $name "
            "AND s.duration_ns IS NOT NULL ORDER BY s.start_ns",
            {"pid": pid, "name": name},
        )
    ]


def span_names(run: Run, pid: int) -> list[str]:
    """Return the names of the spans in the processes with a pid."""
    rows = run.sql(
        "SELECT DISTINCT s.name FROM spans AS s JOIN processes AS p ON p.process = s.process "
        "WHERE p.pid = $pid AND s.kind = 'span' ORDER BY 1",
        {"pid": pid},
    )
    return [name for (name,) in rows]


def open_calls(run: Run, pid: int) -> list[tuple[int, int]]:
    """Return (start, end) of the finished calls of open in the processes with a pid, by start."""
    return [
        (start_ns, end_ns)
        for start_ns, end_ns in run.sql(
            "SELECT e.start_ns, e.start_ns + e.duration_ns FROM events_raw AS e "
            "JOIN processes AS p ON p.process = e.process "
            "WHERE p.pid = $pid AND e.duration_ns IS NOT NULL "
            "AND e.op_number = (SELECT op_number FROM ops WHERE op = 'open') "
            "ORDER BY e.start_ns",
            {"pid": pid},
        )
    ]


def process_pids(run: Run) -> list[int]:
    """Return the pids of the run's processes with stretches."""
    return [
        pid
        for (pid,) in run.sql(
            "SELECT DISTINCT p.pid FROM processes AS p JOIN spans AS s ON s.process = p.process "
            "ORDER BY 1"
        )
    ]


def _ask(engine: duckdb.DuckDBPyConnection, text: str, **parameters: int) -> list[tuple[Any, ...]]:
    return _execute(engine, text, parameters).fetchall()


def _execute(
    engine: duckdb.DuckDBPyConnection, text: str, parameters: dict[str, int]
) -> duckdb.DuckDBPyConnection:
    import duckdb

    try:
        return engine.execute(text, parameters or None)
    except duckdb.Error as error:
        raise QueryError(f"the timeline's tables cannot be asked: {error}") from error


class _Drawing:
    """A timeline in the making."""

    def __init__(
        self,
        run: Run,
        engine: duckdb.DuckDBPyConnection,
        from_ns: int,
        to_ns: int,
        max_slices: int,
    ) -> None:
        self.run, self.engine = run, engine
        self.from_ns, self.to_ns, self.max_slices = from_ns, to_ns, max_slices
        self.rows: list[Row] = []
        self.threads = {
            (process, thread): (tid, name, is_main)
            for process, thread, tid, name, is_main in _ask(
                engine, "SELECT process, thread, tid, name, is_main FROM threads"
            )
        }

    def made(self) -> Timeline:
        processes = {process.process: process for process in self._processes()}
        spans = self._spans()
        n_calls, pixel_ns = self._pixel()
        text = query("timeline_calls")
        columns = _execute(self.engine, text, {"pixel_ns": pixel_ns}).fetchnumpy()
        columns = {name: _plain(column) for name, column in columns.items()}
        slices, places = self._span_rows(processes, spans)
        requests = self._request_rows(processes, slices)
        calls = self._call_rows(processes, columns)
        used = {row.process.process for row in self.rows}
        ((left_out,),) = _ask(
            self.engine,
            "SELECT count(*) FROM processes WHERE process NOT IN (FROM timeline_family)",
        )
        folded = _ask(self.engine, "SELECT coalesce(sum(calls), 0)::BIGINT FROM folded_raw")
        return Timeline(
            name=self.run.folder.name,
            start_unix_ns=self.run.start_unix_ns,
            from_ns=self.from_ns,
            to_ns=self.to_ns,
            processes=tuple(shown for shown in processes.values() if shown.process in used),
            rows=tuple(self.rows),
            slices=tuple(slices),
            flows=(*self._flows(places), *self._request_flows(places, requests)),
            calls=calls,
            rates=tuple(self._rates()),
            ops={
                number: (op, layer)
                for number, op, layer in _ask(
                    self.engine, "SELECT op_number, op, layer FROM ops WHERE layer IS NOT NULL"
                )
            },
            paths=self._paths(calls),
            n_calls=n_calls,
            pixel_ns=pixel_ns,
            folded_calls=folded[0][0],
            left_out=left_out,
            is_running=self.run.is_running,
        )

    def _processes(self) -> Iterator[TimelineProcess]:
        rows = _ask(self.engine, query("timeline_processes"))
        uses = Tally(row[1] for row in rows)
        for process, pid, host, rank, role, worker, command, _, _ in rows:
            name = (
                f"worker {worker}" if role == "worker" else "main" if role == "main" else "process"
            )
            name += "" if rank is None else f" of rank {rank}"
            is_own = uses[pid] > 1 or not 0 < pid < OWN_NUMBERS
            number = OWN_NUMBERS + process if is_own else pid
            yield TimelineProcess(
                process, number, pid, host or "", rank, role, f"{name} · {command or '?'}"[:200],
                command or "",
            )  # fmt: skip

    def _spans(self) -> dict[tuple[int, int, str], list[tuple[Any, ...]]]:
        """Return stretches by process, thread and kind of row."""
        spans: dict[tuple[int, int, str], list[tuple[Any, ...]]] = {}
        parameters = {"from_ns": self.from_ns, "to_ns": self.to_ns}
        for process, thread, kind, *rest in _ask(
            self.engine, query("timeline_spans"), **parameters
        ):
            row = "spans"
            if kind == "window":
                row = "recording"
            elif kind == "span" and rest[0] == "loader":
                row = "loader"
            spans.setdefault((process, thread, row), []).append((kind, *rest))
        # A single window adds nothing to the process's life.
        return {key: rows for key, rows in spans.items() if key[2] != "recording" or len(rows) > 1}

    def _span_rows(
        self,
        processes: dict[int, TimelineProcess],
        spans: dict[tuple[int, int, str], list[tuple[Any, ...]]],
    ) -> tuple[list[TimelineSlice], dict[tuple[int, int, str, int], int]]:
        """Return the slices of stretches, and the slice number of each (process, thread, name,
        start)."""
        import numpy as np

        slices: list[TimelineSlice] = []
        places: dict[tuple[int, int, str, int], int] = {}
        order = {number: place for place, number in enumerate(processes)}
        kinds = ("recording", "loader", "spans")
        for process, thread, kind in sorted(
            spans, key=lambda key: (order[key[0]], key[1], kinds.index(key[2]))
        ):
            rows = spans[process, thread, kind]
            starts = np.array([row[5] for row in rows], np.int64)
            ends = np.array([row[6] for row in rows], np.int64)
            lanes, ends = _lanes(starts, ends)
            numbers = self._add_rows(processes[process], thread, kind, int(lanes.max()) + 1)
            for place, row in enumerate(rows):
                places[process, thread, row[1], row[5]] = len(slices)
                shown = _slice(numbers[lanes[place]], row, int(ends[place]))
                slices.append(_cut(shown, self.from_ns, self.to_ns))
        return slices, places

    def _request_rows(
        self, processes: dict[int, TimelineProcess], slices: list[TimelineSlice]
    ) -> dict[tuple[int, int], int]:
        """Append the slices of requests, in rows of their own; return their numbers by (process,
        request)."""
        import numpy as np

        parameters = {"from_ns": self.from_ns, "to_ns": self.to_ns}
        by_thread: dict[tuple[int, int], list[tuple[Any, ...]]] = {}
        for row in _ask(self.engine, query("timeline_requests"), **parameters):
            by_thread.setdefault((row[0], row[1]), []).append(row)
        places: dict[tuple[int, int], int] = {}
        order = {number: place for place, number in enumerate(processes)}
        for process, thread in sorted(by_thread, key=lambda key: (order[key[0]], key[1])):
            rows = by_thread[process, thread]
            starts = np.array([row[-2] for row in rows], np.int64)
            ends = np.array([row[-1] for row in rows], np.int64)
            lanes, ends = _lanes(starts, ends)
            numbers = self._add_rows(processes[process], thread, "requests", int(lanes.max()) + 1)
            for place, row in enumerate(rows):
                places[process, row[2]] = len(slices)
                shown = _request_slice(numbers[lanes[place]], row, int(ends[place]))
                slices.append(_cut(shown, self.from_ns, self.to_ns))
        return places

    def _request_flows(
        self,
        places: dict[tuple[int, int, str, int], int],
        requests: dict[tuple[int, int], int],
    ) -> Iterator[Flow]:
        if not requests:
            return
        for request_process, _, number, process, thread, wait_ns, step, step_ns in _ask(
            self.engine, query("timeline_request_flows")
        ):
            request = requests.get((request_process, number))
            wait = places.get((process, thread, "data wait", wait_ns))
            if wait is None:  # a wait that no loader reports has no slice
                wait = places.get((process, thread, step, step_ns))
            if request is not None and wait is not None:
                yield Flow(request, wait)

    def _call_rows(
        self, processes: dict[int, TimelineProcess], columns: dict[str, Array]
    ) -> CallSlices:
        """Return the slices of calls, each in the call's row; rows of a thread follow one
        another."""
        import numpy as np

        n = len(columns["start_ns"])
        row_of = np.zeros(n, np.int64)
        key = columns["process"].astype(np.int64) << 32 | columns["thread"]
        bounds = [0, *(np.flatnonzero(np.diff(key)) + 1).tolist(), n] if n else []
        order = {number: place for place, number in enumerate(processes)}
        for begin, end in sorted(
            pairwise(bounds), key=lambda part: order[int(columns["process"][part[0]])]
        ):
            part = slice(begin, end)
            lanes, ends = _lanes(columns["start_ns"][part], columns["end_ns"][part])
            columns["end_ns"][part] = ends
            process, thread = int(columns["process"][begin]), int(columns["thread"][begin])
            numbers = self._add_rows(processes[process], thread, "calls", int(lanes.max()) + 1)
            row_of[part] = np.array(numbers)[lanes]
        return CallSlices(
            row=row_of,
            op=columns["op_number"],
            **{name: columns[name] for name in CallSlices.__slots__ if name not in ("row", "op")},
        )

    def _add_rows(self, process: TimelineProcess, thread: int, kind: str, lanes: int) -> list[int]:
        tid, name, is_main = self.threads.get((process.process, thread), (0, "", False))
        added = []
        for lane in range(lanes):
            row = len(self.rows)
            is_own = kind != "spans" or lane > 0 or self._is_taken(process, tid)
            own = name or "thread"
            what = {
                "spans": own,
                "calls": f"file calls of {own} {tid}",
                "requests": f"requests of {own} {tid}",
                "loader": "loader passes",
            }
            self.rows.append(
                Row(
                    row=row,
                    process=process,
                    thread=thread,
                    tid=tid,
                    number=OWN_NUMBERS + row if is_own else tid,
                    kind=kind,
                    lane=lane,
                    name=what.get(kind, kind),
                    is_main=bool(is_main),
                )
            )
            added.append(row)
        return added

    def _is_taken(self, process: TimelineProcess, tid: int) -> bool:
        """Return True if a row has the tid already: the kernel reuses tids, and a viewer would
        merge the two threads."""
        return not 0 < tid < OWN_NUMBERS or any(
            row.number == tid and row.process is process for row in self.rows
        )

    def _flows(self, places: dict[tuple[int, int, str, int], int]) -> Iterator[Flow]:
        for fetch_process, fetch_thread, fetch_ns, process, thread, ns in _ask(
            self.engine, query("timeline_flows")
        ):
            fetch = places.get((fetch_process, fetch_thread, "fetch", fetch_ns))
            wait = places.get((process, thread, "data wait", ns))
            if fetch is not None and wait is not None:
                yield Flow(fetch, wait)

    def _pixel(self) -> tuple[int, int]:
        """Return the number of calls, and the duration below which calls are gathered."""
        widths = _ask(self.engine, query("timeline_widths"))
        n_calls = sum(calls for _, calls in widths)
        if n_calls <= self.max_slices:
            return n_calls, 0
        log2_ns = 10
        while sum(calls for width, calls in widths if width >= log2_ns) > self.max_slices:
            log2_ns += 1
        last = (self.to_ns - self.from_ns).bit_length() + 1  # then a thread is a single slice
        while log2_ns < last:
            text = query("timeline_slices")
            ((slices,),) = _ask(self.engine, text, pixel_ns=1 << log2_ns)
            if slices <= self.max_slices:
                break
            log2_ns += 1
        return n_calls, 1 << log2_ns

    def _rates(self) -> Iterator[BandwidthLine]:
        bin_ns = -(-(self.to_ns - self.from_ns) // COUNTER_BINS)
        n_bins = -(-(self.to_ns - self.from_ns) // bin_ns)
        by_layer: dict[tuple[str, str], dict[int, float]] = {}
        for layer, group, place, moved in _ask(
            self.engine,
            query("timeline_bandwidth"),
            from_ns=self.from_ns,
            to_ns=self.to_ns,
            bin_ns=bin_ns,
        ):
            by_layer.setdefault((layer, group), {})[place] = moved
        for (layer, group), bins in sorted(by_layer.items()):
            per_s = [bins.get(place, 0.0) / (bin_ns / 1e9) for place in range(n_bins)]
            # An unchanged value needs no new point; the first and the last do.
            kept = [i for i in range(n_bins) if not i or per_s[i] != per_s[i - 1]]
            yield BandwidthLine(
                f"{group} bandwidth, {layer}",
                [self.from_ns + i * bin_ns for i in kept] + [self.to_ns],
                [per_s[i] for i in kept] + [0.0],
            )

    def _paths(self, calls: CallSlices) -> dict[int, tuple[str, str]]:
        import numpy as np

        used = np.unique(calls.file[calls.calls == 1])
        wanted = set(used[used >= 0].tolist())
        return {
            file: (path, path_class)
            for file, path, path_class in _ask(
                self.engine, "SELECT file, path, path_class FROM files"
            )
            if file in wanted
        }


def _plain(column: Array) -> Array:
    """Return a copy of an array without a mask: the query returns no NULL."""
    import numpy as np

    return np.ma.getdata(column).copy()


def _slice(row: int, span: tuple[Any, ...], end_ns: int) -> TimelineSlice:
    kind, name, number, cpu_ns, delay_ns, start_ns, _, is_in_flight, is_failed = span
    facts: dict[str, int | str] = {}
    shown, category = name, "span"
    if kind in ("step", "window"):
        category = kind
    elif name in ("data wait", "fetch", "checkpoint", "restore", "worker", "loader"):
        category = name
    if number is not None:
        facts["number"] = number
        if category in ("step", "data wait", "fetch", "worker", "loader"):
            shown = f"{name} {number}"
    elif category == "data wait":
        facts["batch"] = "none came: the pass was over"
    if cpu_ns is not None:
        facts["cpu ns"] = cpu_ns
    if delay_ns is not None:
        facts["ns ready without a CPU"] = delay_ns
    if is_failed:
        shown, facts["failed"] = f"{name} failed", "it ended in an exception"
    if is_in_flight:
        facts["in flight"] = "not ended when the log ends"
    return TimelineSlice(row, shown, category, start_ns, end_ns, facts)


def _request_slice(row: int, request: tuple[Any, ...], end_ns: int) -> TimelineSlice:
    operation, endpoint, path, status, error, received, first_byte_ns, attempt, slept_ns = request[
        3:12
    ]
    facts: dict[str, int | str] = {
        "endpoint": endpoint or "not known",
        **({} if path is None else {"path": path}),
        **({} if status is None else {"status": status}),
        **({} if error is None else {"error": error}),
        "bytes": received,
        **({} if first_byte_ns is None else {"ns to first byte": first_byte_ns}),
        **({"tries before": attempt} if attempt else {}),
        **({"ns of back-off before": slept_ns} if slept_ns else {}),
    }
    is_bad = error is not None or (status or 0) >= 400
    name = f"{operation or 'request'} {error or status}" if is_bad else operation or "request"
    return TimelineSlice(row, name, "request", request[-2], end_ns, facts)


def _cut(shown: TimelineSlice, from_ns: int, to_ns: int) -> TimelineSlice:
    start_ns, end_ns = max(shown.start_ns, from_ns), min(shown.end_ns, to_ns)
    if (start_ns, end_ns) == (shown.start_ns, shown.end_ns):
        return shown
    facts = {**shown.facts, CUT: shown.end_ns - shown.start_ns}
    return replace(shown, start_ns=start_ns, end_ns=end_ns, facts=facts)


def _lanes(starts: Array, ends: Array) -> tuple[Array, Array]:
    """Return a lane for each slice so slices of a lane nest, and the ends.  An end is cut where
    only rounding puts the end outside.  Slices are by start, longer first."""
    import numpy as np

    lanes = np.zeros(len(starts), np.int64)
    if (starts[1:] >= np.maximum.accumulate(ends)[:-1]).all():
        return lanes, ends
    ends = ends.copy()
    stacks: list[list[int]] = []
    for place, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        lane = 0
        while True:
            if lane == len(stacks):
                stacks.append([])
            stack = stacks[lane]
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or end <= stack[-1] + ROUNDING_NS:
                break
            lane += 1
        end = min(end, stack[-1]) if stack else end
        stack.append(end)
        lanes[place], ends[place] = lane, end
    return lanes, ends


def _duration(ns: int) -> str:
    for unit, size in (("s", 10**9), ("ms", 10**6), ("µs", 10**3)):
        if ns >= size:
            return f"{ns / size:.3g} {unit}"
    return f"{ns} ns"
