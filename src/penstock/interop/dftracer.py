"""Import and export DFTracer's traces (.pfw, .pfw.gz): a line of JSON per call.

Knows the phases, names and units of time up to version 2.2; knows no measure, and no meaning of a
span (dftracer_layers).  An exported run has the spans of DFAnalyzer's preset for AI jobs, and
Penstock's spans under the category `penstock`, so an import loses only fractions of a microsecond.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from penstock.errors import RunError
from penstock.explain.questions import prepare, query
from penstock.interop.dftracer_layers import LOADS, TraceSpan, meant, name_of
from penstock.log.layout import OPS
from penstock.runs.run import Run, import_run
from penstock.runs.tables import Array, translated, utf8
from penstock.safe import bounded, drafts
from penstock.words import count

__all__ = ["SUFFIXES", "export", "import_traces", "looks_like_dftracer"]

Progress = Callable[[int, int], None]

_OP = {op.name: op.number for op in OPS}
SUFFIXES = (".pfw", ".pfw.gz")
_ROWS = 50_000  # of a query at once
LINE_BYTES = 1 << 20  # a longer line is no event
UNIX_LIMIT_NS = 1 << 62  # the year 2116
DURATION_LIMIT_NS = 1 << 60
NUMBER_LIMIT = 1 << 53
# Up to 2.1 a letter of Chrome's format, from 2.2 on a number.
_PHASES: dict[Any, str] = {
    "X": "event", 1: "event", "C": "counter", 2: "counter", "A": "aggregated", 3: "aggregated",
    "M": "metadata", 4: "metadata",
}  # fmt: skip
# DFTRACER_TIME_METRIC, in ns; microseconds for a trace without the variable.
_UNITS = {"NS": 1, "US": 1000, "MS": 1_000_000, "SEC": 1_000_000_000}
_UNIT_WORDS = {1_000_000: "milliseconds", 1_000_000_000: "seconds"}

# Other names of the calls: of libc's and of DFTracer's own.
_ALIASES = {
    "POSIX": {
        "openat": "open", "creat": "open", "__xstat": "stat", "__fxstat": "fstat",
        "__lxstat": "lstat", "fstatat": "stat", "__fxstatat": "stat", "ftruncate": "truncate",
        "dup2": "dup", "dup3": "dup", "remove": "unlink", "unlinkat": "unlink",
        "preadv2": "preadv", "pwritev2": "pwritev", "copy_file_range": "copy_range",
    },
    "STDIO": {"ftell": "", "rewind": "fseek", "fseeko": "fseek"},
}  # fmt: skip


def export(
    run: Run, path: str | os.PathLike[str], progress: Progress | None = None
) -> tuple[str, ...]:
    """Write the run as a trace, gzip if the name ends in .gz; return remarks on facts without a
    place in the trace.

    progress: is called with (done, total) events.  Raises RunError.
    """
    target = Path(path)
    try:
        with drafts.draft(target) as raw, translated(f"{run.folder}: cannot be read", RunError):
            if target.name.endswith(".gz"):
                with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as packed:
                    _write(run, packed, progress)  # type: ignore[arg-type]  # a file of bytes
            else:
                _write(run, raw, progress)
    except OSError as error:
        raise RunError(f"{target}: {error.strerror}; choose a file that can be written") from error
    folded = run.sql("SELECT coalesce(sum(calls), 0)::BIGINT FROM folded_raw")[0][0]
    connections, summed = run.sql(
        "SELECT (SELECT coalesce(sum(connections), 0)::BIGINT FROM connections),"
        " (SELECT coalesce(sum(requests), 0)::BIGINT FROM requests WHERE requests > 1)"
    )[0]
    remarks = []
    if folded:
        remarks.append(
            f"{folded:,} calls past the trace budget, or imported as counters, have no place in a "
            "trace of single calls"
        )
    if connections:
        remarks.append(
            f"{count(connections, 'connection')} with bytes and times, and waits for the network, "
            "have no place in a trace of DFTracer; single requests are written"
        )
    if summed:
        remarks.append(f"{summed:,} requests that are known as sums only are missing")
    return tuple(remarks)


def _write(run: Run, out: BinaryIO, progress: Progress | None) -> None:
    out.write(b"[\n")
    with run.connection.cursor() as engine:
        pids = {
            process: (pid or process, f"{zlib.crc32((host or '').encode()):08x}", host or "")
            for process, pid, host in engine.execute(
                "SELECT process, pid, host FROM processes"
            ).fetchall()
        }
        tids = dict(engine.execute("SELECT thread, coalesce(tid, thread) FROM threads").fetchall())
        first = next(iter(pids.values()), (0, "0", ""))
        for key, name in dict.fromkeys((hash_, host) for _, hash_, host in pids.values()):
            out.write(_line("HH", "dftracer", first[0], 0, {"name": name, "value": key}, "M"))
        # Each name comes before the first call with the name, so a cut trace is still a trace.
        untold = dict(engine.execute("SELECT file, path FROM files ORDER BY file").fetchall())

        def name(file: int) -> bytes:
            args = {"name": untold.pop(file), "value": f"{file:x}", "hhash": first[1]}
            return _line("FH", "dftracer", first[0], 0, args, "M")

        def lines(batch: list[Any]) -> Iterator[bytes]:
            for row in batch:
                if row[_FILE] in untold:
                    yield name(row[_FILE])
                yield _call(run, row, pids, tids)

        _write_spans(run, engine, out, pids, tids)
        _write_requests(run, engine, out, pids, tids)
        ((total,),) = engine.execute("SELECT count(*) FROM events_raw").fetchall()
        rows = engine.execute(_CALLS)
        done = 0
        while batch := rows.fetchmany(_ROWS):
            out.write(b"".join(lines(batch)))
            done += len(batch)
            if progress:
                progress(done, total)
        out.write(b"".join(name(file) for file in list(untold)))
    out.write(b"]\n")


_CALLS = """
    SELECT o.op, upper(coalesce(o.layer, 'process')), e.process, e.thread, e.start_ns,
        e.duration_ns, e.file, e.offset_bytes, e.asked_bytes, e.moved_bytes, e.errno,
        o.is_access, e."result"
    FROM events_raw AS e JOIN ops AS o ON o.op_number = e.op_number
    WHERE e.duration_ns IS NOT NULL
    ORDER BY e.start_ns"""
_FILE = 6  # the position in a row


def _call(run: Run, row: tuple[Any, ...], pids: dict[Any, Any], tids: dict[Any, Any]) -> bytes:
    op, layer, process, thread, start_ns, ns, file, offset, asked, moved, error, moves, extra = row
    pid, host, _ = pids.get(process, (process, "0", ""))
    args: dict[str, Any] = {"hhash": host}
    if file is not None:
        args["fhash"] = f"{file:x}"
    if offset is not None:
        args["offset"] = offset
    if moves and asked is not None:
        args["count"] = asked
    args["ret"] = -1 if error else moved if moves else 0 if extra is None else extra
    if error:
        args["errno"] = error
    moment = run.start_unix_ns + start_ns
    return _line(op, layer, pid, tids.get(thread, 0), args, "X", moment, moment + ns)


def _write_spans(
    run: Run, engine: Any, out: BinaryIO, pids: dict[Any, Any], tids: dict[Any, Any]
) -> None:
    prepare(engine, ("steps",))
    layers = engine.execute(query("dftracer_layers")).fetchall()
    for name, category, process, thread, start_ns, end_ns in layers:
        pid, host, _ = pids.get(process, (process, "0", ""))
        ends = (run.start_unix_ns + start_ns, run.start_unix_ns + end_ns)
        args = {"hhash": host}
        out.write(_line(name, category, pid, tids.get(thread, 0), args, "X", *ends))
    rows = engine.execute(
        'SELECT name, kind, process, thread, "index", a, b, start_ns, duration_ns FROM spans'
        " WHERE duration_ns IS NOT NULL ORDER BY start_ns"
    ).fetchall()
    for name, kind, process, thread, index, a, b, start_ns, ns in rows:
        pid, host, _ = pids.get(process, (process, "0", ""))
        # Not under the run's own name: DFAnalyzer's layers use names as well as categories.
        args = {"hhash": host, "kind": kind, "span": name, "index": index, "a": a, "b": b}
        moment = run.start_unix_ns + start_ns
        out.write(
            _line("span", "penstock", pid, tids.get(thread, 0), args, "X", moment, moment + ns)
        )


def _write_requests(
    run: Run, engine: Any, out: BinaryIO, pids: dict[Any, Any], tids: dict[Any, Any]
) -> None:
    """Write single requests to remote storage, as spans of the category `http`."""
    rows = engine.execute(
        "SELECT coalesce(operation, 'request'), process, thread, start_ns, duration_ns, endpoint,"
        " path, status, received_bytes, first_byte_ns, range_offset_bytes FROM requests"
        " WHERE requests = 1 ORDER BY start_ns"
    )
    while batch := rows.fetchmany(_ROWS):
        for name, process, thread, start_ns, ns, endpoint, path, status, got, first_ns, at in batch:
            pid, host, _ = pids.get(process, (process, "0", ""))
            args = {"hhash": host, "endpoint": endpoint, "path": path, "status": status}
            args |= {"ret": got, "offset": at, "first_byte": first_ns and first_ns // 1000}
            args = {key: value for key, value in args.items() if value is not None}
            moment = run.start_unix_ns + start_ns
            out.write(_line(name, "http", pid, tids.get(thread, 0), args, "X", moment, moment + ns))


def _line(
    name: str,
    category: str,
    pid: int,
    tid: int,
    args: dict[str, Any],
    phase: str,
    start_ns: int | None = None,
    end_ns: int = 0,
) -> bytes:
    event: dict[str, Any] = {"id": 0, "name": name, "cat": category, "pid": pid, "tid": tid}
    if start_ns is not None:
        # Both ends are cut to microseconds, so neighbours stay neighbours.
        event |= {"ts": start_ns // 1000, "dur": end_ns // 1000 - start_ns // 1000}
    event |= {"ph": phase, "args": args}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


# --- in ------------------------------------------------------------------------------------------


def looks_like_dftracer(head: bytes) -> bool:
    """Return True if a file with the given first bytes (gzip or not) is a trace of DFTracer."""
    if head[:2] == b"\x1f\x8b":
        try:
            head = zlib.decompressobj(31).decompress(head, 1 << 16)
        except zlib.error:
            return False
    for line in head.split(b"\n")[:3]:
        line = line.strip().rstrip(b",")
        if line.startswith(b"{") and line.endswith(b"}"):
            with suppress(ValueError):
                event = json.loads(line)
                return isinstance(event, dict) and {"name", "cat", "pid", "ph"} <= event.keys()
    return False


def import_traces(
    traces: Sequence[Path], folder: str | os.PathLike[str], progress: Progress | None = None
) -> Path:
    """Make a run of the traces of a job, one file or a file per process.

    progress: is called with (done, total) bytes.  Raises RunError: a trace without an event, a
    folder with files.
    """
    build = _Build()
    total = sum(trace.stat().st_size for trace in traces)
    done = 0
    for trace in traces:
        size = trace.stat().st_size
        build.begin_trace(size)
        for event in _events(trace, build):
            build.add(event)
            if progress and build.lines % 100_000 == 0:
                progress(min(done, total), total)
        done += size
    if not (build.calls or build.spans or build.own or build.aggregated):
        lacks = "is cut before its first event" if build.torn else "has no event of DFTracer in it"
        if build.empty == len(traces):
            lacks = "is empty" if build.empty == 1 else "and the other traces are empty"
        raise RunError(f"{traces[0]}: {lacks}; nothing to import")
    source = str(traces[0]) if len(traces) == 1 else f"{len(traces)} traces of DFTracer"
    start_ns = min(first for first, _ in build.lives.values())
    return import_run(folder, utf8(source), start_ns, build.columns(start_ns))


def _events(path: Path, build: "_Build") -> Iterator[dict[str, Any]]:
    """Yield the events of a trace, line by line; count other lines, and note a cut end.

    A packed trace larger than real traces after unpacking is refused before the memory is full.
    """
    unpacked = 0
    try:
        with bounded.opened(path) as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
            most = bounded.most_unpacked(os.fstat(raw.fileno()).st_size)
            try:
                while line := file.readline(LINE_BYTES):
                    build.lines += 1
                    unpacked += len(line)
                    if is_packed and unpacked > most:
                        raise RunError(f"{path}: {bounded.grows(most)}")
                    text = line.strip().rstrip(b",")
                    if text in (b"", b"[", b"]"):
                        continue
                    try:
                        event = json.loads(text)
                    except (ValueError, RecursionError):
                        event = None
                    if isinstance(event, dict):
                        yield event
                    elif line.endswith(b"\n"):
                        build.damaged += 1
                    else:
                        build.torn = True
            except (EOFError, zlib.error, gzip.BadGzipFile):
                build.torn = True  # the text unpacked so far is sound
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}") from error


def _number(value: Any, limit: int = NUMBER_LIMIT) -> int | None:
    """Return a sane number of an event, or None; some traces have numbers as texts."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return int(value) if -limit < value < limit else None


def _sum(args: dict[str, Any], name: str) -> int | None:
    """Return the sum of a field over aggregated calls; None: not in the trace."""
    if f"{name}_sum" in args:
        return _number(args[f"{name}_sum"])
    # Without a suffix: a single value, equal for all calls.
    each, calls = _number(args.get(name)), _number(args.get("dft_cnt"))
    return None if each is None or calls is None else each * calls


def _calls_needed(args: dict[str, Any]) -> int:
    """Return the least number of calls for the sums: DFTracer 2.2 counts only calls of `open` with
    a mode, and adds up the flags and the time of all."""
    least = 1
    for name, total in args.items():
        if name.endswith("_sum"):
            most, value = _number(args.get(f"{name[:-4]}_max")), _number(total)
            if most and most > 0 and value is not None:
                least = max(least, -(-value // most))
    return least


class _Call(NamedTuple):
    """A call of the trace.  key: the hash of the file's path, or the path."""

    start_ns: int
    ns: int
    process: int
    thread: int
    op: int
    error: int
    key: str | None
    offset: int | None
    asked: int | None
    moved: int | None


@dataclass(frozen=True, slots=True)
class _Aggregated:
    """Sums over calls (with an op) or spans (op None) of a name and thread.

    calls: a lower bound.  is_short: the trace's count is too small for the trace's sums.
    """

    process: int
    tid: int
    name: str
    category: str
    op: int | None
    calls: int
    is_short: bool
    ns: int
    max_ns: int | None
    moved: int | None
    key: str | None


@dataclass(eq=False)
class _Build:
    """The tables of a run, grown event by event.  Times in ns."""

    calls: list[_Call] = field(default_factory=list)
    spans: list[TraceSpan] = field(default_factory=list)
    own: list[tuple[Any, ...]] = field(default_factory=list)  # spans written by Penstock
    aggregated: list[_Aggregated] = field(default_factory=list)
    repeated: int = 0  # aggregates repeated in another process's trace
    files: dict[str, int] = field(default_factory=dict)  # path to number
    names: dict[str, str] = field(default_factory=dict)  # hash to path
    hosts: dict[str, str] = field(default_factory=dict)  # hash to name
    processes: dict[tuple[str, int], int] = field(default_factory=dict)
    threads: dict[tuple[int, int], int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # hash to command or program
    starts: dict[int, dict[str, Any]] = field(
        default_factory=dict
    )  # facts written by each process at the start
    loading: set[int] = field(default_factory=set)  # processes that load data
    lives: dict[int, tuple[int, int]] = field(default_factory=dict)  # of each process
    samples: dict[str, int] = field(default_factory=dict)  # of counters, by name
    phases: dict[str, int] = field(default_factory=dict)  # phases unknown to Penstock
    unit_ns: int = _UNITS["US"]  # of the current trace
    coarse: set[int] = field(default_factory=set)  # units coarser than microseconds
    without_steps: tuple[str, ...] = ()
    unplaced: int = 0  # processes that load data for an unknown main process
    empty: int = 0  # traces without a byte
    lines: int = 0
    damaged: int = 0
    torn: bool = False

    def begin_trace(self, size_bytes: int) -> None:
        """Begin the next file."""
        self.unit_ns = _UNITS["US"]
        self.empty += not size_bytes

    def add(self, event: dict[str, Any]) -> None:
        """Add an event, or count the event as damaged."""
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name, category = str(event.get("name", "")), str(event.get("cat", ""))
        given = event.get("ph")
        phase = _PHASES.get(given) if isinstance(given, str | int) else None
        if phase == "metadata":
            self._add_name(name, args)
        elif phase == "aggregated" or (phase == "counter" and "dft_cnt" in args):
            self._add_aggregated(event, name, category, args)
        elif phase == "counter":
            self.samples[name] = self.samples.get(name, 0) + 1
        elif phase == "event":
            self._add_event(event, name, category, args)
        else:
            text = utf8(str(given))[:20]
            self.phases[text] = self.phases.get(text, 0) + 1

    def _add_name(self, name: str, args: dict[str, Any]) -> None:
        table = {"FH": self.names, "HH": self.hosts, "SH": self.texts}.get(name)
        if table is not None:
            table[str(args.get("value"))] = str(args.get("name"))
        elif name == "CM" and args.get("name") == "time_metric":
            self.unit_ns = _UNITS.get(str(args.get("value")), self.unit_ns)
            if self.unit_ns in _UNIT_WORDS:
                self.coarse.add(self.unit_ns)

    def _time(self, value: Any, limit_ns: int) -> int | None:
        number = _number(value, limit_ns // self.unit_ns)
        return None if number is None or number < 0 else number * self.unit_ns

    def _add_event(
        self, event: dict[str, Any], name: str, category: str, args: dict[str, Any]
    ) -> None:
        start_ns = self._time(event.get("ts"), UNIX_LIMIT_NS)
        ns = self._time(event.get("dur", 0), DURATION_LIMIT_NS)
        pid, tid = _number(event.get("pid"), 1 << 31), _number(event.get("tid", 0))
        if start_ns is None or ns is None or pid is None:
            self.damaged += 1
            return
        process = self._process(pid, args)
        thread = self.threads.setdefault((process, tid or 0), len(self.threads))
        begun, ended = self.lives.get(process, (start_ns, start_ns))
        self.lives[process] = (min(begun, start_ns), max(ended, start_ns + ns))
        if category == "dftracer" and name in ("start", "end"):
            if name == "start":
                self.starts.setdefault(process, args)
        elif (layer := _layer(category)) in ("POSIX", "STDIO", "PROCESS"):
            self._add_call(name, layer, (start_ns, ns, process, thread), args)
        else:
            self._add_span(name, category, (start_ns, ns, process, thread), args)

    def _process(self, pid: int, args: dict[str, Any]) -> int:
        host = str(args.get("hhash", ""))
        return self.processes.setdefault((host, pid), len(self.processes))

    def _op(self, name: str, layer: str, calls: int = 1) -> int | None:
        plain = name.removesuffix("64")
        op = _OP.get(_ALIASES.get(layer, {}).get(plain, plain))
        if op is None:
            call = f"{layer} {name}"
            self.unknown[call] = self.unknown.get(call, 0) + calls
        return op

    def _add_call(
        self, name: str, layer: str, place: tuple[int, int, int, int], args: dict[str, Any]
    ) -> None:
        op = self._op(name, layer)
        if op is None:
            return
        result = _number(args.get("ret"))
        error = _number(args.get("errno", 0), 1 << 15) or (5 if (result or 0) < 0 else 0)
        key = args.get("fhash", args.get("fname"))
        self.calls.append(
            _Call(
                *place,
                op,
                error,
                None if key is None else str(key),
                _number(args.get("offset")),
                _number(args.get("count")),
                None if result is None else max(0, result),
            )
        )

    def _add_aggregated(
        self, event: dict[str, Any], name: str, category: str, args: dict[str, Any]
    ) -> None:
        """Add sums over calls or spans of a name and interval.

        Calls are counted with bytes and time; of spans only the number is kept, as their moments
        are not known.
        """
        start_ns = self._time(event.get("ts"), UNIX_LIMIT_NS)
        pid, calls = _number(event.get("pid"), 1 << 31), _number(args.get("dft_cnt"))
        if start_ns is None or pid is None or calls is None or calls < 1:
            self.damaged += 1
            return
        process = self._process(pid, args)
        self.lives.setdefault(process, (start_ns, start_ns))  # ts is when the interval began
        layer = _layer(category)
        is_call = layer in ("POSIX", "STDIO", "PROCESS")
        op = self._op(name, layer, calls) if is_call else None
        if is_call and op is None:
            return
        ns, most = _sum(args, "dur"), _number(args.get("dur_max", args.get("dur")))
        moved, least = _sum(args, "ret"), _number(args.get("ret_min", args.get("ret")))
        key = args.get("fhash", args.get("fname"))
        needed = _calls_needed(args)
        self.aggregated.append(
            _Aggregated(
                process=process,
                tid=_number(event.get("tid", 0)) or 0,
                name=name,
                category=category,
                op=op,
                calls=max(calls, needed),
                is_short=needed > calls,
                ns=max(0, ns or 0) * self.unit_ns,
                max_ns=None if most is None else max(0, most) * self.unit_ns,
                # A failed call is -1 in the sum.
                moved=None if moved is None or (least or 0) < 0 else moved,
                key=None if key is None else str(key),
            )
        )

    def _without_repeats(self) -> None:
        """Drop the repeats of forked children: DFTracer 2.2 keeps the parent's aggregates in a
        child, and writes the aggregates again with the child's pid and the parent's thread."""
        pids = {process: pid for (_, pid), process in self.processes.items()}
        hosts = {process: host for (host, _), process in self.processes.items()}

        def is_repeat(row: _Aggregated) -> bool:
            if row.tid == pids[row.process]:
                return False
            said = _number(self.starts.get(row.process, {}).get("ppid"), 1 << 31)
            main = self.processes.get((hosts[row.process], row.tid))
            parent = self._parent(row.process)
            return row.tid == said or main is not None or (parent, row.tid) in threads

        threads = {(row.process, row.tid) for row in self.aggregated}
        kept = [row for row in self.aggregated if not is_repeat(row)]
        self.repeated = len(self.aggregated) - len(kept)
        self.aggregated = kept

    def _add_span(
        self, name: str, category: str, place: tuple[int, int, int, int], args: dict[str, Any]
    ) -> None:
        index = _number(args.get("index", args.get("step")))
        if category == "penstock":
            kind, name = str(args.get("kind")), str(args.get("span"))
            numbers = (_number(args.get("a")), _number(args.get("b")))
            if kind in ("step", "span", "window"):
                self.own.append((*place, kind, name, index, *numbers))
        else:
            self.spans.append(TraceSpan(*place, name, category, index))

    def columns(self, start_ns: int) -> dict[str, dict[str, Array]]:
        """Return the columns of all tables, as `tables.write_tables` takes them.

        start_ns: the zero of the times in the tables.
        """
        self._without_repeats()
        # A trace written by Penstock has Penstock's spans; spans of DFAnalyzer would be repeats.
        spans = self.own or self._understood()
        self._number_files()
        columns = {
            "processes": self._process_columns(start_ns),
            "threads": self._thread_columns(),
            "files": self._file_columns(),
            "notes": self._note_columns(),
        }
        if self.calls:
            columns["events"] = self._call_columns(start_ns)
        if any(row.op is not None for row in self.aggregated):
            columns["folded"] = self._folded_columns()
        if spans:
            columns["spans"] = _span_columns(spans, start_ns)
        return columns

    def _number_files(self) -> None:
        """Give a number to every file named by a call without a description in the trace."""
        keys = [call.key for call in self.calls] + [row.key for row in self.aggregated]
        for key in keys:
            if key is not None:
                self.files.setdefault(utf8(self.names.get(key, key)), len(self.files))

    def _process_columns(self, start_ns: int) -> dict[str, Array]:
        import numpy as np

        n = len(self.processes)
        first, last = (
            [self.lives.get(process, (start_ns, start_ns))[end] - start_ns for process in range(n)]
            for end in (0, 1)
        )
        parents = [self._parent(process) for process in range(n)]
        return {
            "process": np.arange(n, dtype=np.int32),
            "pid": np.array([pid for _, pid in self.processes]),
            "host": np.array([utf8(self.hosts.get(h, h)) for h, _ in self.processes], object),
            "parent": np.ma.masked_less([-1 if p is None else p for p in parents], 0),
            "command": np.array([self._said(p, "cmd_hash") for p in range(n)], object),
            "executable": np.array([self._said(p, "exec_hash") for p in range(n)], object),
            "folder": np.array([""] * n, object),
            "origin": np.array(["run"] * n, object),
            "start_ns": np.array(first),
            "end_ns": np.array(last),
            "state": np.array(["exited"] * n, object),
            "is_torn": np.array([self.torn and not process for process in range(n)]),
            **{key: np.zeros(n, np.int64) for key in
               ("folded_events", "lost_events", "unseen_calls", "damaged_units")},
        }  # fmt: skip

    def _thread_columns(self) -> dict[str, Array]:
        import numpy as np

        return {
            "thread": np.arange(len(self.threads), dtype=np.int32),
            "process": np.array([process for process, _ in self.threads], np.int32),
            "tid": np.array([tid for _, tid in self.threads]),
            "is_main": np.zeros(len(self.threads), bool),
        }

    def _file_columns(self) -> dict[str, Array]:
        import numpy as np

        kinds = ["regular" if path.startswith("/") else "unknown" for path in self.files]
        return {
            "file": np.arange(len(self.files), dtype=np.int32),
            "path": np.array(list(self.files), object),
            "kind": np.array(kinds, object),
        }

    def _note_columns(self) -> dict[str, Array]:
        import numpy as np

        notes = self._notes()
        return {
            "key": np.array([key for key, _ in notes], object),
            "value": np.array([value for _, value in notes], object),
        }

    def _said(self, process: int, key: str) -> str:
        """Return a fact written by a process at the start."""
        return utf8(self.texts.get(str(self.starts.get(process, {}).get(key)), ""))

    def _parent(self, process: int) -> int | None:
        host, _ = list(self.processes)[process]  # numbered in order of appearance
        ppid = _number(self.starts.get(process, {}).get("ppid"), 1 << 31)
        parent = None if ppid is None else self.processes.get((host, ppid))
        return None if parent == process else parent

    def _understood(self) -> list[tuple[Any, ...]]:
        """Return the spans of another writer, with derived spans: workers of each main process, and
        waits without a known maker."""
        understood = meant(self.spans)
        self.without_steps = understood.without_steps
        rows: list[tuple[Any, ...]] = []
        mains: set[int] = set()
        for number, (span, meaning) in enumerate(understood.spans):
            place = (span.start_ns, span.ns, span.process, span.thread)
            if meaning in ("step", "data wait"):
                mains.add(span.process)
            if meaning == "step":
                rows.append((*place, "step", "step", span.index, 0, 0))
            elif meaning == "data wait":
                # Without the number of a batch the wait would count as the end of an epoch.
                index = number if span.index is None else span.index
                rows.append((*place, "span", "data wait", index, 1, 0))
                at = span.start_ns + max(0, span.ns - 1)
                rows.append((at, 0, *place[2:], "span", "wait cpu", None, 0, None))
            else:
                rows.append((*place, "span", name_of(span, meaning), span.index, 0, 0))
            if span.category in LOADS and not meaning:
                self.loading.add(span.process)
        return rows + self._workers(mains)

    def _workers(self, mains: set[int]) -> list[tuple[Any, ...]]:
        """Return spans that make loading processes workers of training processes."""
        spans = []
        alive: dict[int, dict[int, int]] = {}  # by main: worker number to the process's end
        for process in sorted(self.loading - mains, key=lambda worker: self.lives[worker]):
            main = self._main_of(process, mains)
            if main is None:
                self.unplaced += 1
                continue
            start, end = self.lives[process]
            taken = alive.setdefault(main, {})
            number = next(n for n in range(len(taken) + 1) if taken.get(n, -1) <= start)
            taken[number] = end
            thread = min(tid for (owner, _), tid in self.threads.items() if owner == process)
            _, pid = list(self.processes)[main]
            where = (start, end - start, process, thread)
            spans.append((*where, "span", "worker", number, 0, pid))
        return spans

    def _main_of(self, process: int, mains: set[int]) -> int | None:
        """Return the nearest training ancestor; without parents in the trace, the only training
        process."""
        seen: set[int | None] = {process}
        parent = self._parent(process)
        while parent is not None and parent not in seen:
            if parent in mains:
                return parent
            seen.add(parent)
            parent = self._parent(parent)
        is_told = "ppid" in self.starts.get(process, {})
        hosts = [host for host, _ in self.processes]
        near = [main for main in mains if hosts[main] == hosts[process]]
        return near[0] if len(near) == 1 and not is_told else None

    def _notes(self) -> list[tuple[str, str]]:
        lacks = "ranks" if any(self._said(p, "cmd_hash") for p in self.starts) else "command, ranks"
        notes = [("not measured", f"{lacks}: DFTracer's trace does not tell them")]
        if self.unplaced:
            loaders = count(self.unplaced, "process")
            notes.append(("not measured", f"workers: {loaders} loading data, the trace does not "
                          "say for whom"))  # fmt: skip
        elif len(self.processes) > 1 and not self.loading:
            notes.append(
                ("not measured", "workers: no process of the trace says that it loads data")
            )
        if self.without_steps:
            names = ", ".join(utf8(name) for name in self.without_steps[:5])
            notes.append(("not measured", f"steps: none of the spans {names} is an iteration"))
        return [*notes, *self._notes_of_calls(), *self._notes_of_lines()]

    def _notes_of_calls(self) -> list[tuple[str, str]]:
        notes = []
        if any(call.moved is None and call.op in _ACCESSES for call in self.calls):
            notes.append(("imported incomplete", "reads and writes have no bytes in the trace; "
                          "DFTracer writes them with DFTRACER_INC_METADATA=1"))  # fmt: skip
        if self.calls and all(call.key is None for call in self.calls):
            notes.append(("not measured", "files: calls in the trace name none; DFTracer writes "
                          "them with DFTRACER_INC_METADATA=1"))  # fmt: skip
        return [*notes, *self._notes_of_aggregates()]

    def _notes_of_aggregates(self) -> list[tuple[str, str]]:
        notes = []
        folded = [row for row in self.aggregated if row.op is not None]
        if folded:
            n = sum(row.calls for row in folded)
            notes.append(("counters only", f"aggregated by DFTracer: {count(n, 'call')} "
                          "without their moments"))  # fmt: skip
            if all(row.key is None for row in folded):
                notes.append(
                    ("imported incomplete", "DFTracer aggregated calls without their files")
                )
        if short := sorted({utf8(row.name) for row in folded if row.is_short}):
            lacks = f"DFTracer counts fewer calls of {', '.join(short)} than it added up"
            notes.append(("imported incomplete", f"{lacks}: at least so many are counted here"))
        if any(row.op in _ACCESSES and row.moved is None for row in folded):
            lacks = "aggregated reads or writes failed, or have no result"
            notes.append(("imported incomplete", f"{lacks}: their bytes are not known"))
        if self.repeated:
            what = f"{count(self.repeated, 'aggregate')} of forked processes"
            notes.append(("not measured", f"{what}: left out, they repeat those of the parent"))
        sums: dict[tuple[str, str], tuple[int, int]] = {}
        for row in self.aggregated:
            if row.op is None:
                n, ns = sums.get((row.category, row.name), (0, 0))
                sums[row.category, row.name] = (n + row.calls, ns + row.ns)
        for (category, name), (n, ns) in list(sums.items())[:20]:
            notes.append(("not measured", f"{utf8(category)} {utf8(name)}: "
                          f"{count(n, 'span')}, {ns / 1e9:.6f} s together, "
                          "aggregated by DFTracer: when each was is not in the trace"))  # fmt: skip
        return notes

    def _notes_of_lines(self) -> list[tuple[str, str]]:
        notes = []
        for unit in sorted(self.coarse):
            notes.append(("not measured", f"times below {_UNIT_WORDS[unit]}: the trace was written "
                          "in them (DFTRACER_TIME_METRIC)"))  # fmt: skip
        if self.empty:
            traces = "trace is" if self.empty == 1 else "traces are"
            notes.append(("imported incomplete", f"{self.empty:,} {traces} empty: DFTracer made "
                          "the file and wrote no event of that process"))  # fmt: skip
        if self.damaged:
            are = "line is" if self.damaged == 1 else "lines are"
            notes.append(("imported incomplete", f"{self.damaged:,} {are} no event"))
        for phase, n in list(self.phases.items())[:5]:
            are = "line has" if n == 1 else "lines have"
            notes.append(
                ("imported incomplete", f"{n:,} {are} a phase unknown to Penstock, {phase}")
            )
        if self.torn:
            notes.append(("imported incomplete", "the trace is cut"))
        if self.samples:
            n = sum(self.samples.values())
            notes.append(("not measured", f"samples of the system: {n:,} in the trace, of "
                          f"{count(len(self.samples), 'counter')}, are not imported"))  # fmt: skip
        for name, n in list(self.unknown.items())[:20]:
            notes.append(
                ("not measured", f"{utf8(name)}: {count(n, 'call')} that Penstock has no name for")
            )
        return notes

    def _file(self, key: str | None) -> int:
        return -1 if key is None else self.files[utf8(self.names.get(key, key))]

    def _call_columns(self, start_ns: int) -> dict[str, Array]:
        import numpy as np

        start, ns, process, thread, op, error, key, offset, asked, moved = (
            list(column) for column in zip(*self.calls, strict=True)
        )
        none_moves = [code not in _ACCESSES for code in op]
        return {
            "start_ns": np.array(start) - start_ns,
            "duration_ns": np.array(ns),
            "process": np.array(process, np.int32),
            "thread": np.array(thread, np.int32),
            "op_number": np.array(op, np.uint8),
            "errno": np.array(error, np.int16),
            "file": np.ma.masked_less(np.array([self._file(path) for path in key], np.int32), 0),
            "offset_bytes": np.ma.masked_less([-1 if at is None else at for at in offset], 0),
            "asked_bytes": np.ma.masked_less(
                [-1 if n_bytes is None else n_bytes for n_bytes in asked], 0
            ),
            "moved_bytes": np.ma.masked_less(
                np.where(none_moves, 0, [-1 if n_bytes is None else n_bytes for n_bytes in moved]),
                0,
            ),
        }

    def _folded_columns(self) -> dict[str, Array]:
        import numpy as np

        def column(values: list[Any], kind: Any = np.int64) -> Array:
            return np.ma.masked_less(
                np.array([-1 if value is None else value for value in values], kind), 0
            )

        rows = [row for row in self.aggregated if row.op is not None]
        return {
            "process": np.array([row.process for row in rows], np.int32),
            "file": column([self._file(row.key) for row in rows], np.int32),
            "op_number": np.array([row.op for row in rows], np.uint8),
            "calls": np.array([row.calls for row in rows], np.int64),
            "duration_ns": np.array([row.ns for row in rows], np.int64),
            "max_duration_ns": column([row.max_ns for row in rows]),
            "moved_bytes": column([row.moved if row.op in _ACCESSES else 0 for row in rows]),
        }


def _layer(category: str) -> str:
    return category.upper().split("_")[0]


_ACCESSES = {op.number for op in OPS if op.group in ("read", "write") and op.layer != "app"}


def _span_columns(spans: list[tuple[Any, ...]], start_ns: int) -> dict[str, Array]:
    import numpy as np

    start, ns, process, thread, kind, name, index, a, b = (
        list(column) for column in zip(*spans, strict=True)
    )
    return {
        "start_ns": np.array(start) - start_ns,
        "duration_ns": np.array(ns),
        "process": np.array(process, np.int32),
        "thread": np.array(thread, np.int32),
        "kind": np.array(kind, object),
        "name": np.array([utf8(text) for text in name], object),
        "index": np.ma.masked_less([-1 if number is None else number for number in index], 0),
        "a": np.array([number or 0 for number in a]),
        # Only waits without a known maker are masked: not measured, where 0 would be a measure.
        "b": np.ma.masked_less(
            [
                -1 if value is None and n == "wait cpu" else value or 0
                for n, value in zip(name, b, strict=True)
            ],
            0,
        ),
    }
