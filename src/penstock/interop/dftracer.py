"""DFTracer's traces (.pfw, .pfw.gz) out and in: a line of JSON for each call.  Knows its names and
its microseconds; knows no measure.

A run goes out with the spans of DFAnalyzer's preset for AI jobs, and with its own spans under the
category `penstock`, so that it comes in again with nothing lost but fractions of a microsecond.
"""

import gzip
import json
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from penstock.errors import RunError
from penstock.log import OPS
from penstock.questions import query
from penstock.run import Run, import_run
from penstock.tables import Array, translated, utf8
from penstock.words import count

__all__ = ["export", "import_traces", "looks_like_dftracer"]

Progress = Callable[[int, int], None]

_OP = {op.name: op.number for op in OPS}
_ROWS = 50_000  # of a query at once
LINE_BYTES = 1 << 20  # a longer line is no event
UNIX_LIMIT_US = 1 << 52  # the year 2112
DURATION_LIMIT_US = 1 << 50
NUMBER_LIMIT = 1 << 53

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
# Layers of DFAnalyzer's presets for DLIO.
_WAITS = ("fetch.iter", "fetch-data.iter", "<module>.iter", "loop.iter")
_COMPUTE = ("compute", "ai_framework")
_LOADS = ("reader", "data_loader", "dataloader", "dataset", "data")  # what makes batches


def export(
    run: Run, path: str | os.PathLike[str], progress: Progress | None = None
) -> tuple[str, ...]:
    """Writes the run as one trace, gzip if the name ends in .gz; says what it could not hold.

    progress is called with (done, total) events.  Raises RunError.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with draft.open("wb") as raw, translated(f"{run.folder}: cannot be read", RunError):
            if target.name.endswith(".gz"):
                with gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3, mtime=0) as packed:
                    _write(run, packed, progress)  # type: ignore[arg-type]  # a file of bytes
            else:
                _write(run, raw, progress)
        draft.replace(target)
    except OSError as error:
        raise RunError(f"{target}: {error.strerror}; choose a file that can be written") from error
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
    folded = run.sql("SELECT coalesce(sum(calls), 0)::BIGINT FROM folded_raw")[0][0]
    return (
        (
            f"{folded:,} calls past the trace budget, or imported as counters, have no place in a "
            "trace of single calls",
        )
        if folded
        else ()
    )


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
        # Each name before the first call that uses it, so that a trace cut anywhere is a trace.
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
_FILE = 6  # its place in a row


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
        # Not under its own name: DFAnalyzer's layers go by names as well as by categories.
        args = {"hhash": host, "kind": kind, "span": name, "index": index, "a": a, "b": b}
        moment = run.start_unix_ns + start_ns
        out.write(
            _line("span", "penstock", pid, tids.get(thread, 0), args, "X", moment, moment + ns)
        )


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
        # Both ends are cut to microseconds, so that neighbours stay neighbours.
        event |= {"ts": start_ns // 1000, "dur": end_ns // 1000 - start_ns // 1000}
    event |= {"ph": phase, "args": args}
    return json.dumps(event, separators=(",", ":"), ensure_ascii=True).encode() + b"\n"


# --- in ------------------------------------------------------------------------------------------


def looks_like_dftracer(head: bytes) -> bool:
    """Whether a file that begins with these bytes (gzip or not) is a trace of DFTracer."""
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
    """Makes a run of the traces of one job, one file or one a process.

    progress is called with (done, total) bytes.  Raises RunError: a trace without an event, a
    folder that is not empty.
    """
    build = _Build()
    total = sum(trace.stat().st_size for trace in traces)
    done = 0
    for trace in traces:
        for event in _events(trace, build):
            build.add(event)
            if progress and build.lines % 100_000 == 0:
                progress(min(done, total), total)
        done += trace.stat().st_size
    if not build.calls and not build.spans:
        lacks = "is cut before its first event" if build.torn else "has no event of DFTracer in it"
        raise RunError(f"{traces[0]}: {lacks}; nothing to import")
    source = str(traces[0]) if len(traces) == 1 else f"{len(traces)} traces of DFTracer"
    start_us = min(first for first, _ in build.lives.values())
    return import_run(folder, utf8(source), start_us * 1000, build.columns(start_us))


def _events(path: Path, build: "_Build") -> Iterator[dict[str, Any]]:
    """The events of a trace line by line; what is no event is counted, a cut end remembered."""
    try:
        with path.open("rb") as raw:
            is_packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            file: Any = gzip.GzipFile(fileobj=raw) if is_packed else raw
            try:
                while line := file.readline(LINE_BYTES):
                    build.lines += 1
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
                build.torn = True  # what was unpacked until here is whole
    except OSError as error:
        raise RunError(f"{path}: cannot be read: {error.strerror or error}") from error


def _number(value: Any, limit: int = NUMBER_LIMIT) -> int | None:
    """A number of an event, if it is one and sane: some traces have numbers as texts."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        return None
    return int(value) if -limit < value < limit else None


@dataclass(eq=False)
class _Build:
    """The tables of a run, grown event by event."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    spans: list[tuple[Any, ...]] = field(default_factory=list)
    files: dict[str, int] = field(default_factory=dict)  # path to number
    names: dict[str, str] = field(default_factory=dict)  # hash to path
    hosts: dict[str, str] = field(default_factory=dict)  # hash to name
    processes: dict[tuple[str, int], int] = field(default_factory=dict)
    threads: dict[tuple[int, int], int] = field(default_factory=dict)
    unknown: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)  # hash to command or program
    starts: dict[int, dict[str, Any]] = field(default_factory=dict)  # process to what it said
    loading: set[int] = field(default_factory=set)  # processes that load data
    lives: dict[int, tuple[int, int]] = field(default_factory=dict)  # of each process, in µs
    unplaced: int = 0  # processes that load data for nobody knows whom
    lines: int = 0
    damaged: int = 0
    torn: bool = False

    def add(self, event: dict[str, Any]) -> None:
        """Takes in one event, or counts it as one that cannot be."""
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        name, category = str(event.get("name", "")), str(event.get("cat", ""))
        if event.get("ph") == "M":
            table = {"FH": self.names, "HH": self.hosts, "SH": self.texts}.get(name)
            if table is not None:
                table[str(args.get("value"))] = str(args.get("name"))
            return
        start_us = _number(event.get("ts"), UNIX_LIMIT_US)
        us = _number(event.get("dur", 0), DURATION_LIMIT_US)
        pid, tid = _number(event.get("pid"), 1 << 31), _number(event.get("tid", 0))
        if event.get("ph") != "X" or start_us is None or us is None or pid is None:
            self.damaged += event.get("ph") == "X"
            return
        if start_us < 0 or us < 0:
            self.damaged += 1
            return
        host = str(args.get("hhash", ""))
        process = self.processes.setdefault((host, pid), len(self.processes))
        thread = self.threads.setdefault((process, tid or 0), len(self.threads))
        begun, ended = self.lives.get(process, (start_us, start_us))
        self.lives[process] = (min(begun, start_us), max(ended, start_us + us))
        layer = category.upper().split("_")[0]
        if category == "dftracer" and name in ("start", "end"):
            if name == "start":
                self.starts.setdefault(process, args)
        elif layer in ("POSIX", "STDIO", "PROCESS"):
            self._add_call(name, layer, (start_us, us, process, thread), args)
        else:
            self._add_span(name, category, (start_us, us, process, thread), args)

    def _add_call(
        self, name: str, layer: str, place: tuple[int, ...], args: dict[str, Any]
    ) -> None:
        plain = name.removesuffix("64")
        op = _OP.get(_ALIASES.get(layer, {}).get(plain, plain))
        if op is None:
            self.unknown[f"{layer} {name}"] = self.unknown.get(f"{layer} {name}", 0) + 1
            return
        result = _number(args.get("ret"))
        error = _number(args.get("errno", 0), 1 << 15) or (5 if (result or 0) < 0 else 0)
        key = args.get("fhash", args.get("fname"))
        count = _number(args.get("count"))
        offset = _number(args.get("offset"))
        self.calls.append((*place, op, error, None if key is None else str(key), offset, count,
                           max(0, result or 0)))  # fmt: skip

    def _add_span(
        self, name: str, category: str, place: tuple[int, ...], args: dict[str, Any]
    ) -> None:
        index = _number(args.get("index", args.get("step")))
        if category in _LOADS and name not in _WAITS:
            self.loading.add(place[2])
        if category == "penstock":
            kind, name = str(args.get("kind")), str(args.get("span"))
            numbers = (_number(args.get("a")), _number(args.get("b")))
            if kind in ("step", "span", "window"):
                self.spans.append((*place, kind, name, index, *numbers, True))
        elif name in _WAITS:
            self.spans.append((*place, "span", "data wait", index, 1, 0, False))
        elif category == "checkpoint":
            self.spans.append((*place, "span", "checkpoint", index, 0, 0, False))
        elif category in _COMPUTE:
            self.spans.append((*place, "step", "step", index, 0, 0, False))
        else:
            self.spans.append((*place, "span", name, index, 0, 0, False))

    def columns(self, start_us: int) -> dict[str, dict[str, Array]]:
        """All tables, as tables.write_tables takes them; times from start_us on."""
        import numpy as np

        # A trace that Penstock wrote has its own spans: DFAnalyzer's are the same again.
        spans = [row for row in self.spans if row[9]] or self._understood()
        n = len(self.processes)
        first, last = (
            [self.lives.get(process, (start_us, start_us))[end] - start_us for process in range(n)]
            for end in (0, 1)
        )
        parents = [self._parent(process) for process in range(n)]
        for row in self.calls:
            if row[6] is not None:
                path = self.names.get(row[6], row[6])
                self.files.setdefault(utf8(path), len(self.files))
        columns = {
            "processes": {
                "process": np.arange(n, dtype=np.int32),
                "pid": np.array([pid for _, pid in self.processes]),
                "host": np.array([utf8(self.hosts.get(h, h)) for h, _ in self.processes], object),
                "parent": np.ma.masked_less([-1 if p is None else p for p in parents], 0),
                "command": np.array([self._said(p, "cmd_hash") for p in range(n)], object),
                "executable": np.array([self._said(p, "exec_hash") for p in range(n)], object),
                "folder": np.array([""] * n, object),
                "origin": np.array(["run"] * n, object),
                "start_ns": np.array(first) * 1000,
                "end_ns": np.array(last) * 1000,
                "state": np.array(["exited"] * n, object),
                "is_torn": np.array([self.torn and not place for place in range(n)]),
                **{key: np.zeros(n, np.int64) for key in
                   ("folded_events", "lost_events", "unseen_calls", "damaged_units")},
            },
            "threads": {
                "thread": np.arange(len(self.threads), dtype=np.int32),
                "process": np.array([process for process, _ in self.threads], np.int32),
                "tid": np.array([tid for _, tid in self.threads]),
                "is_main": np.zeros(len(self.threads), bool),
            },
            "files": {
                "file": np.arange(len(self.files), dtype=np.int32),
                "path": np.array(list(self.files), object),
                "kind": np.array(["regular" if p.startswith("/") else "unknown"
                                  for p in self.files], object),
            },
        }  # fmt: skip
        notes = self._notes()
        columns["notes"] = {
            "key": np.array([key for key, _ in notes], object),
            "value": np.array([value for _, value in notes], object),
        }
        if self.calls:
            columns["events"] = self._call_columns(start_us)
        if spans:
            columns["spans"] = _span_columns(spans, start_us)
        return columns

    def _said(self, process: int, key: str) -> str:
        """What a process said of itself when it started."""
        return utf8(self.texts.get(str(self.starts.get(process, {}).get(key)), ""))

    def _parent(self, process: int) -> int | None:
        host, _ = list(self.processes)[process]  # numbered as they came
        ppid = _number(self.starts.get(process, {}).get("ppid"), 1 << 31)
        found = None if ppid is None else self.processes.get((host, ppid))
        return None if found == process else found

    def _understood(self) -> list[tuple[Any, ...]]:
        """The spans of another writer, with what they imply: which processes are workers of which,
        and that nobody said who made a batch."""
        spans = []
        for number, row in enumerate(self.spans):
            if row[5] != "data wait":
                spans.append(row)
                continue
            # Without a number of its batch it would be the wait for the end of a pass.
            spans.append((*row[:6], number if row[6] is None else row[6], *row[7:]))
            at = row[0] + max(0, row[1] - 1)
            spans.append((at, 0, *row[2:4], "span", "wait cpu", None, 0, None, False))
        mains = {row[2] for row in spans if row[5] in ("step", "data wait")}
        alive: dict[int, dict[int, int]] = {}  # of each main: number to the end of who has it
        for process in sorted(self.loading - mains, key=lambda one: self.lives[one]):
            main = self._main_of(process, mains)
            if main is None:
                self.unplaced += 1
                continue
            start, end = self.lives[process]
            taken = alive.setdefault(main, {})
            number = next(n for n in range(len(taken) + 1) if taken.get(n, -1) <= start)
            taken[number] = end
            thread = min(one for (owner, _), one in self.threads.items() if owner == process)
            _, pid = list(self.processes)[main]
            where = (start, end - start, process, thread)
            spans.append((*where, "span", "worker", number, 0, pid, False))
        return spans

    def _main_of(self, process: int, mains: set[int]) -> int | None:
        """The nearest ancestor that trains; without parents in the trace, the only one there."""
        seen: set[int | None] = {process}
        one = self._parent(process)
        while one is not None and one not in seen:
            if one in mains:
                return one
            seen.add(one)
            one = self._parent(one)
        is_told = "ppid" in self.starts.get(process, {})
        hosts = [host for host, _ in self.processes]
        near = [main for main in mains if hosts[main] == hosts[process]]
        return near[0] if len(near) == 1 and not is_told else None

    def _notes(self) -> list[tuple[str, str]]:
        lacks = "ranks" if any(self._said(p, "cmd_hash") for p in self.starts) else "command, ranks"
        notes = [("not measured", f"{lacks}: DFTracer's trace does not tell them")]
        if self.unplaced:
            told = count(self.unplaced, "process")
            notes.append(("not measured", f"workers: {told} loading data, the trace does not say "
                          "for whom"))  # fmt: skip
        elif len(self.processes) > 1 and not self.loading:
            notes.append(
                ("not measured", "workers: no process of the trace says that it loads data")
            )
        if self.damaged:
            are = "line is" if self.damaged == 1 else "lines are"
            notes.append(("imported incomplete", f"{self.damaged:,} {are} no event"))
        if self.torn:
            notes.append(("imported incomplete", "the trace is cut"))
        for name, n in list(self.unknown.items())[:20]:
            notes.append(
                ("not measured", f"{name}: {count(n, 'call')} that Penstock has no name for")
            )
        return notes

    def _call_columns(self, start_us: int) -> dict[str, Array]:
        import numpy as np

        start, us, process, thread, op, error, key, offset, count, moved = (
            list(column) for column in zip(*self.calls, strict=True)
        )
        file = [-1 if one is None else self.files[utf8(self.names.get(one, one))] for one in key]
        is_access = {op.number for op in OPS if op.group in ("read", "write") and op.layer != "app"}
        return {
            "start_ns": (np.array(start) - start_us) * 1000,
            "duration_ns": np.array(us) * 1000,
            "process": np.array(process, np.int32),
            "thread": np.array(thread, np.int32),
            "op_number": np.array(op, np.uint8),
            "errno": np.array(error, np.int16),
            "file": np.ma.masked_less(np.array(file, np.int32), 0),
            "offset_bytes": np.ma.masked_less([-1 if one is None else one for one in offset], 0),
            "asked_bytes": np.ma.masked_less([-1 if one is None else one for one in count], 0),
            "moved_bytes": np.where(np.isin(op, list(is_access)), moved, 0),
        }


def _span_columns(spans: list[tuple[Any, ...]], start_us: int) -> dict[str, Array]:
    import numpy as np

    start, us, process, thread, kind, name, index, a, b, _ = (
        list(column) for column in zip(*spans, strict=True)
    )
    return {
        "start_ns": (np.array(start) - start_us) * 1000,
        "duration_ns": np.array(us) * 1000,
        "process": np.array(process, np.int32),
        "thread": np.array(thread, np.int32),
        "kind": np.array(kind, object),
        "name": np.array([utf8(one) for one in name], object),
        "index": np.ma.masked_less([-1 if one is None else one for one in index], 0),
        "a": np.array([one or 0 for one in a]),
        # Only of a wait whose maker nobody told: not measured, where 0 would be a measure.
        "b": np.ma.masked_less(
            [
                -1 if one is None and n == "wait cpu" else one or 0
                for n, one in zip(name, b, strict=True)
            ],
            0,
        ),
    }
