"""Logs in, Parquet out, and Parquet seen as tables.  Knows many logs, clocks, paths and the engine;
knows no byte of a log, no run folder, no measure.

`schema.TABLES` says what users see; STORED what lies on disk for it.
"""

import os
import posixpath
import re
import shlex
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, replace
from dataclasses import field as made_by
from functools import partial
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from penstock import clocks, waits
from penstock.container import Mounts, host_path
from penstock.endings import Ended, ended_by_note, endings_in, signal_name
from penstock.errors import PenstockError, QueryError, RunError
from penstock.faults import MAJOR, NO_BEGIN, Faults, read_faults
from penstock.log import (
    FILE_TEXT,
    NAME_TEXT,
    NOTE_TEXT,
    OBJECT_TEXT,
    OPS,
    SECOND_FILE_OPS,
    TIME_LIMIT_NS,
    Events,
    Header,
    Log,
    Op,
    Text,
    read_log,
)
from penstock.schema import EXAMINING_OPS, PATH_RULES, TABLES, Rule, rule_of_run
from penstock.system import read_system
from penstock.threads import Look, doing

__all__ = [
    "OP_TYPES",
    "PARTED",
    "STORED",
    "Array",
    "Launch",
    "Progress",
    "Surroundings",
    "connect",
    "insert_rows",
    "make_tables",
    "op_rows",
    "stored_view",
    "translated",
    "utf8",
    "views",
    "write_tables",
]

Array = NDArray[Any]
Progress = Callable[[int, int], None]

_KINDS = {
    0o100000: "regular",
    0o040000: "directory",
    0o010000: "pipe",
    0o140000: "socket",
    0o020000: "device",
    0o060000: "device",
    0o120000: "other",
}
_OP_NUMBER = {op.name: op.number for op in OPS}
# No call, and in no log: what queries see a page fault as, so that a wait for one is told like a
# wait in a call.  Kept free in native/events.h.
_FAULT = Op(127, "page fault", "fault", "page fault")
_FIRST_APP = min(op.number for op in OPS if op.layer == "app")
_ACCOUNT = next(op.number for op in OPS if op.name == "account")  # of a call; it is none
_APP_KINDS = {op.number: op.name for op in OPS if op.layer == "app"} | {_ACCOUNT: "account"}

# Of the read and write groups, but they move no bytes of their own.
_SYNC_OPS = ("fsync", "fdatasync", "sync_range", "syncfs", "msync", "fflush")
# Where `moved` of the log is no number of bytes; see TABLES["events"]["result"].
_RESULT_OPS = ("readdir", "list", "fork", "spawn", "exec", "mmap", "munmap", "msync")

# Blocks of events in one part of the table: about a million events, 150 MB while they are turned.
PART_BLOCKS = 640
MAX_WORKERS = 4
BUILD_MEMORY = "1GB"
QUERY_MEMORY = "2GB"
TEXT_ROWS = 20_000

# Clocks of two processes of one host agree within their anchors' reading, microseconds.
CLOCK_SLACK_NS = 1_000_000

# The year 2116; log.TIME_LIMIT_NS says why there are limits.
UNIX_LIMIT_NS = 1 << 62

# Who copies with copy_file_range asks for all there is, 2^63 bytes: sums of such would not fit.
MOST_ASKED = 1 << 40

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

_UNSEEN_REASON = "static, set-uid or started with a cleaned environment"


def _table(op_names: Sequence[str]) -> Array:
    table = np.zeros(256, bool)
    table[[_OP_NUMBER[name] for name in op_names]] = True
    return table


_HAS_SECOND_FILE = _table(SECOND_FILE_OPS)
_HAS_RESULT = _table(_RESULT_OPS)
_MOVES_BYTES = _table(
    [op.name for op in OPS if op.group in ("read", "write") and op.name not in _SYNC_OPS]
)


@dataclass(frozen=True, slots=True)
class Launch:
    """What `penstock run` wrote down of the program that it started.  None is not known.

    pid: its own, which is the program's parent.  end_ns: when the program had ended, ns of
    CLOCK_MONOTONIC on host.  status: how it ended, -N by signal N.  streams: the files that its
    standard output and error go to.
    """

    host: str
    pid: int
    end_ns: int | None
    status: int | None
    streams: tuple[str, ...]

    def ended(self, header: Header) -> bool:
        """Whether this is the log of the program, and it has ended."""
        is_it = header.ppid == self.pid and header.host == self.host
        return is_it and self.end_ns is not None and self.status is not None

    @property
    def state(self) -> tuple[str, str]:
        """Of a program whose log does not tell its end: state and reason."""
        status = self.status or 0
        if status >= 0:
            return "exited", f"with status {status}, without a last word to the recorder"
        return "killed", f"by {signal_name(-status)}"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of a run beside its logs.

    running: names of logs whose processes are alive.  elsewhere: of those whose processes cannot be
    asked from here.  skipped: why other files are no logs.  launches: those of `penstock run`.
    machine: keys and values of notes on the host.  faults: files of page faults.
    system: files of samples of the host.  mounts: of a container, where they lie outside.  clocks:
    by boot, what messages told of its CLOCK_MONOTONIC: (boot of another, its less ours in ns, error
    in ns).
    """

    running: Collection[str] = ()
    elsewhere: Collection[str] = ()
    skipped: Mapping[str, str] = made_by(default_factory=dict)
    launches: Sequence[Launch] = ()
    machine: Sequence[tuple[str, str]] = ()
    faults: Sequence[Path] = ()
    system: Sequence[Path] = ()
    mounts: Mounts = made_by(default_factory=dict)
    clocks: Mapping[str, tuple[str, int, int]] = made_by(default_factory=dict)


def make_tables(
    logs: Sequence[Path],
    surroundings: Surroundings,
    tables: Path,
    progress: Progress | None = None,
) -> int:
    """Turns the logs of a run into Parquet files below `tables`; returns the run's start, ns since
    1970.

    progress is called with (done, total) blocks.  Raises RunError, LogError.
    """
    return _Build(logs, surroundings, tables, progress).make()


def write_tables(tables: Path, columns: Mapping[str, Mapping[str, Array]]) -> None:
    """Writes Parquet files below `tables` from columns that another tool's format was turned into.

    columns: for each name of STORED what is known, as arrays of equal length, NULLs by a mask; a
    column that is not there is NULL.  "files" needs no path_class: it is that of PATH_RULES, with
    what the calls say the job wrote.  Raises RunError.
    """
    with (
        translated(f"{tables}: cannot be written", RunError),
        duckdb.connect(":memory:", config={"memory_limit": BUILD_MEMORY}) as connection,
    ):
        _make_ops(_quiet(connection))
        for name, types in STORED.items():
            _create(connection, _STORED_AS[name], types)
            given = dict(columns.get(name, {}))
            unknown = given.keys() - types.keys()
            assert not unknown, f"{name} has no {', '.join(sorted(unknown))}"
            if given:
                _insert_columns(connection, _STORED_AS[name], given)
        connection.execute(_PATHS_OF_FILES)
        connection.execute(_OUTPUTS)
        _find_renamed_outputs(connection)
        _find_beside_library(connection, PATH_RULES)
        select = _FILES_SELECT.format(path_class=_class_sql(PATH_RULES, _DEFAULT_CLASS))
        for name, table in _STORED_AS.items():
            path = tables / (f"{name}/00000" if name in PARTED else name)
            path.parent.mkdir(parents=True, exist_ok=True)
            _copy(
                connection,
                select if name == "files" else f"FROM {table}",
                path.with_suffix(".parquet"),
            )


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """A log and its place in the run."""

    process: int
    parent: int | None
    log: Log
    ns_per_tick: float
    shift_ns: int  # from its host's CLOCK_MONOTONIC to ns since the run's start
    is_alive: bool
    is_elsewhere: bool  # whether it is alive cannot be known here
    threads: Array  # numbers in the log, ascending
    first_thread: int  # what the first of them is in the run

    @property
    def start_ns(self) -> int:
        """When its recording began, ns since the run's start."""
        return _bounded(self.log.header.start_ns) + self.shift_ns


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Steps of one process by start; ns since the run's start."""

    start_ns: Array
    end_ns: Array
    number: Array

    def at(self, ns: Array) -> Array:
        """The step under way at each moment, -1 where there is none."""
        latest = np.searchsorted(self.start_ns, ns, side="right") - 1
        is_inside = (latest >= 0) & (ns < self.end_ns[latest])
        number: Array = np.where(is_inside, self.number[latest], -1)
        return number

    def moved(self, ns: int) -> "_Steps":
        """All of them so much later; one that has not ended stays so."""
        is_open = self.end_ns == INT64_MAX
        return _Steps(
            self.start_ns + ns, np.where(is_open, INT64_MAX, self.end_ns + ns), self.number
        )

    def finished(self) -> clocks.Steps:
        """Those that have ended."""
        ended = self.end_ns != INT64_MAX
        return clocks.Steps(self.number[ended], self.start_ns[ended], self.end_ns[ended])


@dataclass(frozen=True, slots=True, eq=False)
class _Survey:
    """What must be known of a log before any log's events can be turned into rows."""

    steps: _Steps
    started: Events  # fork, exec and spawn
    names: dict[int, str]
    objects: dict[int, str]  # paths of the programs and libraries that waited


class _Build:
    """One making of the tables.  What grows with the run lies in DuckDB, which spills to disk
    beyond BUILD_MEMORY, or in the arrays of one part for each worker."""

    def __init__(
        self,
        logs: Sequence[Path],
        surroundings: Surroundings,
        tables: Path,
        progress: Progress | None,
    ) -> None:
        self.logs = logs
        self.surroundings = surroundings
        self.tables = tables
        self.progress = progress
        self.workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        self.surveys: dict[int, _Survey] = {}
        self.read_ns = time.monotonic_ns()
        self.ended: list[tuple[str, str, Ended]] = []  # boot, host, and what was seen of an end

    def make(self) -> int:
        """Writes the tables; returns the run's start, ns since 1970."""
        config: dict[str, Any] = {
            "threads": self.workers,
            "memory_limit": BUILD_MEMORY,
            "temp_directory": str(self.tables.parent / "spilled"),
        }
        with (
            duckdb.connect(":memory:", config=config) as connection,
        ):
            self.connection = _quiet(connection)
            for table in ("folded", "blocked_totals", "objects"):
                _create(connection, table, STORED[table])
            _create(connection, "texts", _TEXT_TYPES)
            for table in ("notes", "processes", "staged", "threads"):
                _create(connection, table, _types(table))
            _make_ops(connection)
            start_unix_ns = self._find_sources()
            # Surveying reads what turning reads, without the work: a third of the way.
            self.total = 3 * sum(len(source.log.event_blocks) for source in self.sources)
            self.done = 0
            self._each(self._survey, [(source,) for source in self.sources])
            paths = [path for one in self.surveys.values() for path in one.objects.values()]
            self.objects = waits.Objects(paths)
            start_unix_ns += self._align()
            seen = [read_faults(path) for path in self.surroundings.faults]
            self._name_faulted(seen)
            connection.execute(_INTERN)
            look = Look(source.log.header.pid for source in self.sources if source.is_alive)
            self._write_faults(seen)
            self._write_system()
            self._each(self._write_part, list(enumerate(self._parts())))
            self._note_doing(look)
            self._write_small()
        shutil.rmtree(config["temp_directory"], ignore_errors=True)
        return start_unix_ns

    def _each(self, work: Callable[..., int], tasks: list[tuple[Any, ...]]) -> None:
        """work(*task) for all tasks on all workers; each returns how many blocks it did."""
        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(work, *task) for task in tasks]
            try:
                for future in as_completed(futures):
                    self.done += future.result()
                    if self.progress:
                        self.progress(self.done, self.total)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _find_sources(self) -> int:
        with ThreadPoolExecutor(self.workers) as pool:
            logs = list(pool.map(read_log, self.logs))
        clocks = _clocks(logs)
        unix = [_bounded(log.header.start_ns) + clocks[_boot(log)].unix_minus_ns for log in logs]
        start_unix_ns = min(unix)
        order = sorted(range(len(logs)), key=lambda i: (unix[i], logs[i].path))
        starts = [unix[i] - start_unix_ns for i in order]
        logs = [logs[i] for i in order]
        parents = _parents(logs, starts)
        self.sources: list[_Source] = []
        n_threads = 0
        for process, log in enumerate(logs):
            threads = np.array([thread.number for thread in log.threads], np.uint32)
            clock = clocks[_boot(log)]
            self.sources.append(
                _Source(
                    process,
                    parents[process],
                    log,
                    clock.ns_per_tick or log.ns_per_tick,
                    clock.unix_minus_ns - start_unix_ns,
                    Path(log.path).name in self.surroundings.running,
                    Path(log.path).name in self.surroundings.elsewhere,
                    threads,
                    n_threads,
                )
            )
            n_threads += len(threads)
        return start_unix_ns

    # First pass: texts, steps, started programs.

    def _survey(self, source: _Source) -> int:
        names, objects = self._survey_texts(source)
        ops = [_OP_NUMBER[name] for name in ("step", "fork", "exec", "spawn")]
        events = _joined(source.log.events(ns_per_tick=source.ns_per_tick, ops=ops))
        is_step = events.op == _OP_NUMBER["step"]
        steps = _steps(events.where(is_step), source.shift_ns)
        self.surveys[source.process] = _Survey(steps, events.where(~is_step), names, objects)
        return len(source.log.event_blocks)

    def _survey_texts(self, source: _Source) -> tuple[dict[int, str], dict[int, str]]:
        """Names of spans and paths of objects, by id; files and notes go to their tables."""
        cursor = _quiet(self.connection.cursor())
        names: dict[int, str] = {}
        objects: dict[int, str] = {}
        folders = _Folders(source.log)
        mounts = self.surroundings.mounts
        rows: list[tuple[Any, ...]] = []
        notes: list[tuple[Any, ...]] = []
        for text in source.log.texts():
            if text.kind == NAME_TEXT:
                names.setdefault(text.id, utf8(text.name))
            elif text.kind == OBJECT_TEXT:
                objects.setdefault(text.id, utf8(host_path(mounts, text.resolved)))
            elif text.kind == NOTE_TEXT:
                notes.append((source.process, utf8(text.name), utf8(text.resolved)))
                if text.name == "child ended" and (ended := ended_by_note(text.resolved)):
                    self.ended.append((*_host(source.log), ended))
            elif text.kind == FILE_TEXT:
                rows.append(_file_row(source.process, text, folders.path(text), mounts))
                if len(rows) == TEXT_ROWS:
                    insert_rows(cursor, "texts", _TEXT_TYPES, rows)
                    rows = []
        insert_rows(cursor, "texts", _TEXT_TYPES, rows)
        insert_rows(cursor, "notes", _types("notes"), notes)
        return names, objects

    # Between them: one time for all hosts.

    def _align(self) -> int:
        """Puts all hosts' times on one clock; by how much the run's start moves, in ns."""
        steps: dict[str, list[clocks.Steps]] = {}
        for source in self.sources:
            of_host = steps.setdefault(_boot(source.log), [])
            own = self.surveys[source.process].steps.finished()
            if len(own.number):
                of_host.append(own)
        if len(steps) < 2:
            return 0
        shifts = {_boot(source.log): source.shift_ns for source in self.sources}
        told, reference = self.surroundings.clocks, self._reference()
        measured = {
            boot: clocks.Measured(shifts[reference] + offset_ns - shifts[boot], error_ns)
            for boot, (other, offset_ns, error_ns) in told.items()
            if other == reference and boot in shifts
        }
        found = clocks.align(steps, reference, measured)
        starts = [s.start_ns + found[_boot(s.log)].moved_ns for s in self.sources]
        earliest_ns = min(starts)
        self._move({boot: clock.moved_ns - earliest_ns for boot, clock in found.items()})
        self._note_clocks(found)
        return earliest_ns

    def _reference(self) -> str:
        """The boot whose clock counts: the one that others were measured against, else rank 0's."""
        others = [other for other, _, _ in self.surroundings.clocks.values()]
        asked = [source for source in self.sources if _boot(source.log) in others]
        first = min(
            asked or self.sources,
            key=lambda source: (_or_last(source.log.header.rank), source.process),
        )
        return _boot(first.log)

    def _move(self, by_ns: Mapping[str, int]) -> None:
        for place, source in enumerate(self.sources):
            ns = by_ns[_boot(source.log)]
            if not ns:
                continue
            self.sources[place] = replace(source, shift_ns=source.shift_ns + ns)
            survey = self.surveys[source.process]
            self.surveys[source.process] = replace(survey, steps=survey.steps.moved(ns))

    def _note_clocks(self, found: Mapping[str, clocks.Clock]) -> None:
        """A note for each boot: host, how, moved, error, spread, steps; empty: not known."""
        hosts = {_boot(s.log): utf8(s.log.header.host) for s in reversed(self.sources)}
        rows: list[tuple[Any, ...]] = [
            (None, "clock", "\t".join(
                "" if word is None else str(word)
                for word in (hosts[boot], c.how, c.moved_ns, c.error_ns, c.spread_ns, c.steps)
            ))
            for boot, c in found.items()
        ]  # fmt: skip
        insert_rows(self.connection, "notes", _types("notes"), rows)

    # Second pass: events.

    def _parts(self) -> list[list[tuple[_Source, int, int]]]:
        """The run in pieces of logs (source, first block, last block), PART_BLOCKS a part."""
        parts: list[list[tuple[_Source, int, int]]] = [[]]
        room = PART_BLOCKS
        for source in self.sources:
            first, blocks = 0, len(source.log.event_blocks)
            while first < blocks:
                last = min(blocks, first + room)
                parts[-1].append((source, first, last))
                room -= last - first
                first = last
                if not room:
                    parts.append([])
                    room = PART_BLOCKS
        return parts

    def _write_part(self, number: int, pieces: list[tuple[_Source, int, int]]) -> int:
        cursor = _quiet(self.connection.cursor())
        calls: list[dict[str, Array]] = []
        spans: list[dict[str, Array]] = []
        blocked: list[dict[str, Array]] = []
        for source, first, last in pieces:
            ids = _Ids(cursor, source.process)
            steps = self._steps_of(source)
            for events in source.log.events(first, last, source.ns_per_tick):
                is_app = (events.op >= _FIRST_APP) | (events.op == _ACCOUNT)
                if is_app.any():
                    app = events.where(is_app)
                    spans.append(_span_columns(source, app, self.surveys[source.process].names))
                    events = events.where(~is_app)
                is_wait = waits.IS_WAIT[events.op]
                if is_wait.any():
                    blocked.append(self._blocked(source, events.where(is_wait), ids, steps))
                    events = events.where(~is_wait)
                calls.append(_call_columns(source, events, ids, steps))
        name = f"{number:05}.parquet"
        _copy_columns(cursor, calls, _CALLS_SELECT, self.tables / "events" / name)
        _copy_columns(cursor, spans, _SPANS_SELECT, self.tables / "spans" / name)
        _copy_columns(cursor, blocked, waits.STORED_SELECT, self.tables / "blocked" / name)
        return 2 * sum(last - first for _, first, last in pieces)

    def _blocked(
        self, source: _Source, events: Events, ids: "_Ids", steps: _Steps
    ) -> dict[str, Array]:
        start_ns = events.start_ns + source.shift_ns
        none = np.full(len(events), -1)
        return waits.blocked_columns(
            events,
            process=source.process,
            threads=source.threads,
            first_thread=source.first_thread,
            objects=self.objects.of(events.file, self.surveys[source.process].objects),
            descriptors=ids.files(np.maximum(events.offset, 0).astype(np.uint32)),
            start_ns=start_ns,
            steps=steps.at(start_ns) if len(steps.number) else none,
        )

    def _steps_of(self, source: _Source) -> _Steps:
        """The steps of a process, or of its nearest ancestor that has any."""
        steps = self.surveys[source.process].steps
        while not len(steps.number) and source.parent is not None:
            source = self.sources[source.parent]
            steps = self.surveys[source.process].steps
        return steps

    # Page faults: of the launcher's files, not of a log.

    def _name_faulted(self, seen: Sequence[Faults]) -> None:
        """A mapped file is known by where the kernel found it: the path is that of a call which
        opened it there, if there is one."""
        ours = {Path(log).name for log in self.logs}  # recorder's own: memory
        rows = []
        for at, faults in enumerate(seen):
            mounts = self.surroundings.mounts
            paths = {n: Path(host_path(mounts, path)) for n, path in faults.files.items()}
            folders = {path.parent for path in paths.values() if path.name in ours}
            rows += [
                (at, number, utf8(str(path)))
                for number, path in paths.items()
                if path.parent not in folders or (path.suffix != ".log" and path.name != "control")
            ]
        _create(self.connection, "faulted", _FAULTED_TYPES)
        insert_rows(self.connection, "faulted", _FAULTED_TYPES, rows)
        self.connection.execute(_FAULTED)

    def _write_faults(self, seen: Sequence[Faults]) -> None:
        for table in ("faults", "fault_counts"):
            _create(self.connection, table, STORED[table])
        notes: list[tuple[Any, ...]] = []
        for at, faults in enumerate(seen):
            of_boot = [s for s in self.sources if s.log.header.boot_id == faults.boot_id]
            # Where none has the launcher's name, they are in a container with a name of its own.
            of_host = [s for s in of_boot if s.log.header.host == faults.host]
            sources = of_host or of_boot
            if not sources:
                continue  # nothing of that host was recorded
            ids = _Ids(self.connection, -1 - at)
            images = _Images(faults, sources)
            columns = _fault_columns(faults, images, ids, sources[0].shift_ns)
            _insert_columns(self.connection, "faults", columns)
            counts = _fault_count_columns(faults, images, ids)
            _insert_columns(self.connection, "fault_counts", counts)
            notes.append((None, "page faults", "measured"))
            lacks = faults.missing + sum(int(n) for n in faults.counts["kept"]) - len(faults.faults)
            lacks = max(0, lacks)
            if lacks:
                notes.append((None, "page faults lost", str(lacks)))
            if faults.is_user_only:
                notes.append((None, "page faults in user mode only", faults.host))
            if faults.state is not None and faults.state["error"]:
                notes.append((None, "page faults cut", os.strerror(int(faults.state["error"]))))
        insert_rows(self.connection, "notes", _types("notes"), notes)
        for table in ("faults", "fault_counts"):
            _copy(self.connection, f"FROM {table}", self.tables / f"{table}.parquet")

    def _write_system(self) -> None:
        types = _types("system")
        _create(self.connection, "system", types)
        shifts = {s.log.header.boot_id: s.shift_ns for s in self.sources}
        seen: dict[tuple[str, str], Path] = {}
        for path in sorted(self.surroundings.system, key=_size, reverse=True):
            boot_id, host, samples = read_system(path)
            rows: list[tuple[Any, ...]] = []
            for one in samples if boot_id in shifts else ():
                device = utf8(one.device)
                if one.kind == "job":  # each launcher's own
                    device = utf8(path.stem)
                # What one kernel tells is told once, of two files the longer, whoever asked;
                # networks are a host's own.
                elif seen.setdefault((boot_id, host * (one.kind == "network")), path) != path:
                    continue
                at_ns = one.ns + shifts[boot_id]
                rows.append((at_ns, utf8(host), one.kind, device, one.quantity, one.value))
            insert_rows(self.connection, "system", types, rows)
            gone = endings_in(samples) if boot_id in shifts else []
            self.ended += [(boot_id, host, ended) for ended in gone]
        _copy(self.connection, "FROM system ORDER BY ALL", self.tables / "system.parquet")

    def _note_doing(self, look: Look) -> None:
        """A note for each thread of the processes that are alive: queries/doing.sql."""
        last = {source.log.header.pid: source.process for source in self.sources if source.is_alive}
        rows: list[tuple[Any, ...]] = []
        for one in doing(look):
            still_s = "" if one.still_s is None else f"{one.still_s:.3f}"
            words = [one.tid, one.state, f"{one.cpu:.3f}", still_s, one.call, one.name, one.path]
            text = "\t".join(str(word).replace("\t", " ") for word in words)
            rows.append((last[one.pid], "doing", utf8(text)))
        insert_rows(self.connection, "notes", _types("notes"), rows)

    # Last: what is small, or needs all events.

    def _write_small(self) -> None:
        connection = self.connection
        for source in self.sources:
            paths = self.surveys[source.process].objects
            _insert_counters(connection, source, partial(self.objects.of, paths=paths))
        insert_rows(connection, "objects", STORED["objects"], self.objects.rows())
        for table in ("folded", "blocked_totals", "objects"):
            _copy(connection, f"FROM {table}", self.tables / f"{table}.parquet")
        _make_events(connection, self.tables)
        connection.execute(_OUTPUTS)
        streams = {path for launch in self.surroundings.launches for path in launch.streams}
        for path in streams:
            connection.execute(_STREAM, [path, path])
        _find_renamed_outputs(connection)
        folders = {os.path.abspath(log.parent) for log in self.logs}  # noqa: PTH100 - as recorded
        folders |= {os.path.realpath(folder) for folder in folders}
        rules = (*map(rule_of_run, sorted(folders)), *PATH_RULES)
        _find_beside_library(connection, rules)
        select = _FILES_SELECT.format(path_class=_class_sql(rules, _DEFAULT_CLASS))
        _copy(connection, select, self.tables / "files.parquet")
        self._write_processes()
        self._write_unseen()
        whys = self.surroundings.skipped.values()
        notes = [(None, "skipped", utf8(why)) for why in whys]
        notes += [(None, key, value) for key, value in self.surroundings.machine]
        notes += [(None, "stream", utf8(path)) for path in sorted(streams)]
        insert_rows(connection, "notes", _types("notes"), notes)
        _copy(connection, "FROM notes ORDER BY ALL", self.tables / "notes.parquet")

    def _write_processes(self) -> None:
        ends = dict(self.connection.execute(_LATEST).fetchall())
        by_pid = {(launch.host, launch.pid): launch for launch in self.surroundings.launches}
        seen_ends = self._seen_ends()
        processes = []
        for source in self.sources:
            header = source.log.header
            launch = by_pid.get((header.host, header.ppid))
            seen = seen_ends.get(source.process)
            state, reason, end_ns = _ending(source, ends.get(source.process), launch, seen)
            if launch and launch.status is not None and state not in ("execed", "running"):
                status: int | None = launch.status
            else:
                status = seen.status if seen and state in ("killed", "exited") else None
            # Of one that is alive on this host, whose clock ours is too.
            read_ns = self.read_ns + source.shift_ns if source.is_alive else None
            processes.append(_process_row(source, state, reason, end_ns, status, read_ns))
        threads = [
            (source.first_thread + i, source.process, thread.tid, utf8(thread.name))
            + (thread.tid == source.log.header.pid,)
            for source in self.sources
            for i, thread in enumerate(source.log.threads)
        ]
        staged = [
            (source.process, outcome, _bounded(opens))
            for source in self.sources
            for outcome, opens in source.log.header.opens
        ]
        for table, rows in (("processes", processes), ("threads", threads), ("staged", staged)):
            insert_rows(self.connection, table, _types(table), rows)
            _copy(self.connection, f"FROM {table}", self.tables / f"{table}.parquet")

    def _seen_ends(self) -> dict[int, Ended]:
        """By process, what others saw of its end: its parent, or who looked each second."""
        images: dict[tuple[str, str, int], list[_Source]] = {}
        for source in self.sources:
            images.setdefault((*_host(source.log), source.log.header.pid), []).append(source)
        found: dict[int, Ended] = {}
        for boot, host, ended in self.ended:
            begun = [
                source
                for source in images.get((boot, host, ended.pid), ())
                if source.log.header.start_ns <= ended.at_ns
            ]
            if begun:
                last = max(begun, key=lambda source: source.log.header.start_ns)
                found[last.process] = ended.joined(found.get(last.process))
        return found

    def _write_unseen(self) -> None:
        images: dict[tuple[str, str, int], list[_Source]] = {}
        for source in self.sources:
            images.setdefault((*_host(source.log), source.log.header.pid), []).append(source)
        rows: list[tuple[Any, ...]] = []
        for source in self.sources:
            started = self.surveys[source.process].started
            # The child of a shell that libc starts (system, popen) is not known: pid 0.
            is_program = started.op != _OP_NUMBER["fork"]
            programs = started.where(is_program & (started.errno == 0) & (started.moved > 0))
            files = _Ids(self.connection, source.process).files(programs.file)
            moments = programs.start_ns + source.shift_ns
            for pid, file, moment in zip(programs.moved, files, moments, strict=True):
                logs = images.get((*_host(source.log), int(pid)), ())
                # Two readings of the clock by two processes may differ a little.
                if not any(
                    log is not source and log.start_ns >= moment - CLOCK_SLACK_NS for log in logs
                ):
                    rows.append((source.process, int(pid), int(file)))
        types = {"process": "INTEGER", "pid": "BIGINT", "file": "INTEGER"}
        _create(self.connection, "started", types)
        insert_rows(self.connection, "started", types, rows)
        _copy(self.connection, _UNSEEN_SELECT, self.tables / "unseen.parquet")


# --- clocks and processes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _HostClock:
    """What all logs of one boot share: CLOCK_REALTIME minus CLOCK_MONOTONIC, and the counter's rate
    (None: the clock is in ns, or each log knows best)."""

    unix_minus_ns: int
    ns_per_tick: float | None


def _boot(log: Log) -> str:
    """Names the clock of a log: the boot of its host, or itself where that is not known."""
    return log.header.boot_id if log.header.boot_id.strip("0") else log.path


def _host(log: Log) -> tuple[str, str]:
    """Names the host of a log, whose pids are one process each: two containers of one boot have
    pids of their own, and names."""
    return _boot(log), log.header.host


def _clocks(logs: list[Log]) -> dict[str, _HostClock]:
    """The offset is that of the earliest log, so that a host's processes stay in order if its wall
    clock is set; the rate that of the log whose two anchors are furthest apart."""
    earliest: dict[str, Log] = {}
    longest: dict[str, Log] = {}
    for log in logs:
        boot = _boot(log)
        if log.header.start_ns < earliest.setdefault(boot, log).header.start_ns:
            earliest[boot] = log
        if log.header.clock == "tsc" and log.anchored_ns > (
            longest[boot].anchored_ns if boot in longest else 0
        ):
            longest[boot] = log
    clocks = {}
    for boot, log in earliest.items():
        offset = _bounded(log.header.start_unix_ns, UNIX_LIMIT_NS) - _bounded(log.header.start_ns)
        rate = longest[boot].ns_per_tick if boot in longest else None
        clocks[boot] = _HostClock(offset, rate)
    return clocks


def _bounded(number: int, limit: int = TIME_LIMIT_NS) -> int:
    """A damaged number stays one that sums in 64 bits can bear."""
    return min(number, limit)


def _parents(logs: list[Log], starts: list[int]) -> list[int | None]:
    """For each log, in order of start, the latest before it of its parent's pid on its host."""
    latest: dict[tuple[str, str, int], int] = {}
    parents: list[int | None] = []
    for process, log in enumerate(logs):
        parents.append(latest.get((*_host(log), log.header.ppid)))
        latest[*_host(log), log.header.pid] = process
    return parents


def _steps(events: Events, shift_ns: int) -> _Steps:
    """Steps from STEP events.  Those marked by hand (1) outrank those an adapter found (0), and
    these the iterations of a loader (2): queries/steps.sql.  What goes
    on with an adapter's step (3) is a part of it.  An unfinished step does not tell its origin."""
    is_ended = events.duration_ns >= 0
    for origins in ((1,), (0, 3), (2,)):
        is_of = np.isin(events.moved, origins)
        if (is_of & is_ended).any():
            events = events.where(is_of & is_ended | _is_last(events))
            break
    events = events.where(np.lexsort((events.start_ns, events.thread)))
    start = events.start_ns + shift_ns
    end = np.where(events.duration_ns < 0, np.iinfo(np.int64).max, start + events.duration_ns)
    heads = np.flatnonzero(events.moved != 3)
    if len(heads) < len(events):
        heads = np.union1d([0], heads)
        end = np.maximum.reduceat(end, heads)
    number = np.where(events.offset > INT32_MAX, -1, events.offset)[heads]
    order = np.argsort(start[heads], kind="stable")
    return _Steps(start[heads][order], end[order], number[order])


def _is_last(events: Events) -> Array:
    """The step under way, if the one that began last has not ended."""
    last: Array = np.zeros(len(events), bool)
    if len(events):
        place = int(np.argmax(events.start_ns))
        last[place] = events.duration_ns[place] < 0
    return last


def _or_last(rank: int | None) -> int:
    return INT32_MAX if rank is None else rank


def _size(path: Path) -> tuple[int, str]:
    return path.stat().st_size, path.name


def _rank(rank: int | None) -> int | None:
    return rank if rank is None or rank <= INT32_MAX else None  # damaged


def _ending(
    source: _Source, latest_ns: int | None, launch: Launch | None, seen: Ended | None
) -> tuple[str, str, int | None]:
    """State and reason of a process, and when it ended, ns since the run's start; None: running.

    latest_ns: the latest moment that its events know.  seen: what others saw of its end."""
    header = source.log.header
    last_ns = _bounded(header.last_ns) + source.shift_ns
    if header.state != "running":
        return header.state, header.reason, last_ns
    if source.is_alive:
        return "running", header.reason, None
    last_ns = max(source.start_ns, last_ns, latest_ns or 0)
    if launch and launch.end_ns is not None and launch.ended(header):
        return *launch.state, max(last_ns, _bounded(launch.end_ns) + source.shift_ns)
    if source.is_elsewhere:
        host = header.host or "that its log does not name"
        return "unknown", f"on host {host}: ask there whether it is alive", last_ns
    reason = "when is not known: the end is that of its last event"
    if seen is None:
        return "killed", reason, last_ns
    if seen.alive_ns is not None:
        reason = "" if seen.status is not None else "how is not known"
        last_ns = max(last_ns, _bounded(seen.alive_ns) + source.shift_ns)
    return "killed", ", ".join(filter(None, (seen.by, reason))), last_ns


def _process_row(
    source: _Source,
    state: str,
    reason: str,
    end_ns: int | None,
    status: int | None,
    read_ns: int | None,
) -> tuple[Any, ...]:
    header, log = source.log.header, source.log
    return (
        source.process,
        header.pid,
        header.ppid,
        source.parent,
        utf8(header.host),
        _rank(header.rank),
        _rank(header.local_rank),
        _rank(header.world_size),
        header.origin,
        utf8(header.executable),
        utf8(shlex.join(header.command)),
        utf8(header.folder),
        source.start_ns,
        end_ns,
        state,
        utf8(reason) or None,
        status,
        read_ns if state == "running" else None,
        *map(_bounded, (header.folded, header.lost, header.unseen, header.attach_ns)),
        header.slots,
        utf8(Path(log.path).name),
        log.is_torn,
        log.damaged_units,
        _bounded(header.waits_from_ns) or None,
    )


# --- texts and paths -----------------------------------------------------------------------------


class _Folders:
    """Paths of one log's file texts, whose names may start from a folder that has an id itself."""

    def __init__(self, log: Log) -> None:
        self.texts: dict[int, Text] = {}
        for text in log.texts() if log.bases else ():
            # The text that names a folder counts; without one, where it was found.
            if text.kind == FILE_TEXT and text.id in log.bases:
                self.texts.setdefault(text.id, text)
                if not self.texts[text.id].name:
                    self.texts[text.id] = text

    def path(self, text: Text) -> str:
        """The path a text names; relative where its folder is not known; "" if it names none."""
        name = text.name
        if name.startswith("/") and "/." not in name and "//" not in name and name[-1] != "/":
            return name  # most are in normal form
        parts = [name]
        seen: set[int] = set()
        while not parts[-1].startswith("/"):
            if not parts[-1] or text.base in seen or text.base not in self.texts:
                return name and parts[0]
            seen.add(text.base)
            text = self.texts[text.base]
            parts.append(text.name or text.resolved)
        path = posixpath.normpath("/".join(reversed(parts)))
        return path[1:] if path.startswith("//") else path


def _file_row(process: int, text: Text, path: str, mounts: Mounts) -> tuple[Any, ...]:
    kind: str | None = None
    if text.mode:
        kind = _KINDS.get(text.mode & 0o170000, "other")
    if kind == "device" and re.match(r"/dev/(pts/|tty|console|ptmx)", text.resolved or path):
        kind = "terminal"
    return (
        process,
        text.id,
        utf8(host_path(mounts, path)) or None,
        utf8(host_path(mounts, text.resolved)) or None,
        kind,
        text.device & INT64_MAX if text.inode else None,
        text.inode & INT64_MAX if text.inode else None,
        text.size_bytes if text.mode and text.size_bytes >= 0 else None,
        min(text.tier, 2),
    )


def utf8(text: str) -> str:
    r"""The text with bytes that are not UTF-8 as \xff, so that it can be stored and seen."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _class_sql(rules: Sequence[Rule], otherwise: str) -> str:
    cases = [
        f"WHEN regexp_matches(path, {_quoted(rule.pattern)}) THEN {_quoted(rule.path_class)}"
        for rule in rules
    ]
    return f"CASE {' '.join(cases)} ELSE {otherwise} END" if cases else otherwise


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class _Ids:
    """From a log's file ids to the run's."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, process: int) -> None:
        rows = connection.execute(
            "SELECT id, file FROM ids WHERE process = ? ORDER BY id", [process]
        ).fetchnumpy()
        self.ids: Array = np.append(rows["id"].astype(np.uint32), np.uint32(0))
        self.numbers: Array = np.append(rows["file"].astype(np.int32), np.int32(-1))
        self.table: Array | None = None
        limit = int(self.ids.max()) + 1
        # Ids count up from 1, so a plain table serves; a damaged log may hold any number.
        if limit <= 4 * len(self.ids) + 1024:
            self.table = np.full(limit + 1, -1, np.int32)
            self.table[self.ids[:-1]] = self.numbers[:-1]
            self.table[0] = -1

    def files(self, ids: Array) -> Array:
        """Numbers of files in the run, -1 where the log does not say what an id means."""
        if self.table is not None:
            found: Array = self.table[np.minimum(ids, len(self.table) - 1)]
            return found
        at = np.minimum(np.searchsorted(self.ids[:-1], ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, self.numbers[at], -1)


# --- page faults ---------------------------------------------------------------------------------


class _Images:
    """Which recorded process and thread each image of a file of page faults is."""

    def __init__(self, faults: Faults, sources: Sequence[_Source]) -> None:
        by_pid: dict[int, list[_Source]] = {}
        for source in sorted(sources, key=lambda source: source.log.header.start_ns):
            by_pid.setdefault(source.log.header.pid, []).append(source)
        limit = int(faults.images["image"].max(initial=0)) + 1
        limit = min(limit, len(faults.images) + 1)  # they count up; a damaged one may say anything
        self.processes = np.full(limit + 1, -1, np.int32)  # the last stands for what is not known
        self.sources: dict[int, _Source] = {}
        until: dict[int, int] = {}
        end_ns = INT64_MAX if faults.state is None else int(faults.state["now_ns"])
        for image in faults.images[::-1]:
            pid, start = int(image["pid"]), int(image["start_ns"])
            found = [
                source
                for source in by_pid.get(pid, ())
                if start - CLOCK_SLACK_NS <= source.log.header.start_ns < until.get(pid, INT64_MAX)
            ]
            until[pid] = start
            if image["is_joined"]:
                # Its log begins while it is sampled, or goes on from a window before.
                known = by_pid.get(pid, ())
                before = [source for source in known if source.log.header.start_ns < start]
                within = [source for source in found if source.log.header.start_ns <= end_ns]
                found = within or before[-1:]
            if found and image["image"] < limit:
                first = min(found, key=lambda source: source.log.header.start_ns)
                self.processes[image["image"]] = first.process
                self.sources[first.process] = first

    def of(self, images: Array) -> Array:
        """Processes of images, -1 where none left a log."""
        return self.processes[np.minimum(images, len(self.processes) - 1)]

    def threads(self, processes: Array, tids: Array) -> Array:
        """Threads of the run, -1 where a thread made no recorded call."""
        threads = np.full(len(tids), -1, np.int32)
        for process, source in self.sources.items():
            mine = np.flatnonzero(processes == process)
            known = {thread.tid: i for i, thread in enumerate(source.log.threads)}
            for tid in np.unique(tids[mine]):
                if int(tid) in known:
                    place = source.first_thread + known[int(tid)]
                    threads[mine[tids[mine] == tid]] = place
        return threads


def _masked(values: Array, missing: Array) -> Array:
    return np.ma.masked_array(values, missing)


def _ns_of(column: Array) -> Array:
    return np.minimum(column, np.uint64(TIME_LIMIT_NS)).astype(np.int64)


def _fault_columns(faults: Faults, images: _Images, ids: _Ids, shift_ns: int) -> dict[str, Array]:
    rows = faults.faults
    processes = images.of(rows["image"])
    threads = images.threads(processes, rows["tid"])
    files = ids.files(rows["file"])
    is_named = files >= 0  # else the recorder's own
    rows, processes, threads, files = (
        column[is_named] for column in (rows, processes, threads, files)
    )
    return {
        "process": _masked(processes, processes < 0),
        "thread": _masked(threads, threads < 0),
        "file": files,
        "is_major": rows["kind"] == MAJOR,
        "start_ns": _ns_of(rows["start_ns"]) + shift_ns,
        "duration_ns": _masked(_ns_of(rows["duration_ns"]), rows["duration_ns"] == NO_BEGIN),
        "offset_bytes": np.minimum(rows["offset"], np.uint64(INT64_MAX)).astype(np.int64),
    }


def _fault_count_columns(faults: Faults, images: _Images, ids: _Ids) -> dict[str, Array]:
    rows = faults.counts
    processes, files = images.of(rows["image"]), ids.files(rows["file"])
    sums = [name for name in STORED["fault_counts"] if name not in ("process", "file")]
    return {
        "process": _masked(processes, processes < 0),
        "file": _masked(files, files < 0),
        **{name: np.minimum(rows[name], FOLDED_MAX).astype(np.int64) for name in sums},
    }


# --- arrays to Parquet ---------------------------------------------------------------------------


def _joined(batches: Iterable[Events]) -> Events:
    every = list(batches) or [Events.none()]
    return Events(
        *(np.concatenate([getattr(part, name) for part in every]) for name in Events.__slots__)
    )


def _call_columns(source: _Source, events: Events, ids: _Ids, steps: _Steps) -> dict[str, Array]:
    start_ns = events.start_ns + source.shift_ns
    offset, moved = events.offset, events.moved
    other = np.full(len(events), -1, np.int32)
    has_second = _HAS_SECOND_FILE[events.op]
    if has_second.any():
        other[has_second] = ids.files(offset[has_second].astype(np.uint32))
        offset[has_second] = -1
    result = np.full(len(events), -1, np.int64)
    has_result = _HAS_RESULT[events.op]
    if has_result.any():
        result[has_result] = moved[has_result]
        moved[has_result] = 0
    is_dup = events.op == _OP_NUMBER["dup"]
    if is_dup.any():
        result[is_dup] = offset[is_dup]
        offset[is_dup] = -1
    return {
        "process": np.full(len(events), source.process, np.int32),
        "thread": _threads(source, events),
        "op_number": events.op,
        "errno": events.errno.astype(np.int16),
        "file": ids.files(events.file),
        "other_file": other,
        "start_ns": start_ns,
        "duration_ns": events.duration_ns,
        "offset_bytes": offset,
        "asked_bytes": np.minimum(events.asked, MOST_ASKED),
        "moved_bytes": moved,
        "result": result,
        "step": steps.at(start_ns).astype(np.int32)
        if len(steps.number)
        else np.full(len(events), -1, np.int32),
    }


def _span_columns(source: _Source, events: Events, names: dict[int, str]) -> dict[str, Array]:
    return {
        "process": np.full(len(events), source.process, np.int32),
        "thread": _threads(source, events),
        "kind": events.op,
        "name": np.array(
            [
                None if op == _ACCOUNT else names.get(int(number))
                for op, number in zip(events.op, events.file, strict=True)
            ],
            object,
        ),
        "index": events.offset,
        "a": events.asked,
        "b": events.moved,
        "start_ns": events.start_ns + source.shift_ns,
        "duration_ns": events.duration_ns,
    }


def _threads(source: _Source, events: Events) -> Array:
    at = np.searchsorted(source.threads, events.thread)
    return (source.first_thread + at).astype(np.int32)


def _copy_columns(
    cursor: duckdb.DuckDBPyConnection, parts: list[dict[str, Array]], select: str, path: Path
) -> None:
    names = list(parts[0]) if parts else re.findall(r"\w+(?=\W?::)", select)
    columns = {
        name: np.concatenate([part.pop(name) for part in parts]) if parts else np.empty(0, np.int64)
        for name in names
    }
    cursor.register("part", columns)
    _copy(cursor, select, path)
    cursor.unregister("part")


def _copy(connection: duckdb.DuckDBPyConnection, select: str, path: Path) -> None:
    # Measured on 50 million events: columns of many values take half the time and 12 % less space
    # when no dictionary is tried for them.
    connection.execute(
        f"COPY ({select}) TO {_quoted(str(path))} "
        "(FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, DICTIONARY_SIZE_LIMIT 5000)"
    )


def insert_rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    types: dict[str, str],
    rows: list[tuple[Any, ...]],
) -> None:
    """Rows into a table of columns {name: type}, as arrays: row by row takes a millisecond each."""
    arrays: dict[str, Array] = {}
    select = []
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    for (name, kind), column in zip(types.items(), columns, strict=True):
        select.append(f'"{name}"')
        if kind == "VARCHAR":
            arrays[name] = np.array(column, object)
            continue
        arrays[name] = np.array([value or 0 for value in column], _NUMPY[kind])
        if None in column:
            # Not a masked array: releases of DuckDB before 2.0 pass over the mask of integers.
            arrays[f"{name} is known"] = np.array([value is not None for value in column])
            select[-1] = f'CASE WHEN "{name} is known" THEN "{name}" END'
    connection.register("new_rows", arrays)
    connection.execute(f"INSERT INTO {table} SELECT {', '.join(select)} FROM new_rows")
    connection.unregister("new_rows")


def _insert_columns(
    connection: duckdb.DuckDBPyConnection, table: str, columns: dict[str, Array]
) -> None:
    """As _insert, of columns that may be masked."""
    arrays: dict[str, Array] = {}
    select = []
    for name, column in columns.items():
        arrays[name] = np.ma.getdata(column)
        select.append(f'"{name}"')
        if np.ma.is_masked(column):
            arrays[f"{name} is known"] = ~np.ma.getmaskarray(column)
            select[-1] = f'CASE WHEN "{name} is known" THEN "{name}" END AS "{name}"'
    connection.register("new_columns", arrays)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT {', '.join(select)} FROM new_columns")
    connection.unregister("new_columns")


_NUMPY = {
    "BIGINT": np.int64,
    "INTEGER": np.int32,
    "UINTEGER": np.uint32,
    "UTINYINT": np.uint8,
    "BOOLEAN": np.bool_,
    "DOUBLE": np.float64,
}
_TEXT_TYPES = {
    "process": "INTEGER",
    "id": "UINTEGER",
    "path": "VARCHAR",
    "resolved": "VARCHAR",
    "kind": "VARCHAR",
    "device": "BIGINT",
    "inode": "BIGINT",
    "size": "BIGINT",
    "tier": "INTEGER",
}
OP_TYPES = {
    "op_number": "UTINYINT",
    "op": "VARCHAR",
    "layer": "VARCHAR",
    "op_group": "VARCHAR",
    "is_access": "BOOLEAN",
}


def _types(table: str) -> dict[str, str]:
    return {name: kind for name, (kind, _) in TABLES[table].items()}


def _create(connection: duckdb.DuckDBPyConnection, table: str, types: dict[str, str]) -> None:
    columns = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    connection.execute(f"CREATE TABLE {table} ({columns})")


def _insert_wait_totals(
    connection: duckdb.DuckDBPyConnection, source: _Source, records: Array, objects: Array
) -> None:
    log, rate = source.log, source.ns_per_tick
    fields = (("calls", "calls"), ("errors", "errors"), ("duration_ns", "ticks"))
    sums = {
        name: np.minimum(records[field] * (rate if "ticks" in field else 1), FOLDED_MAX)
        for name, field in (*fields, ("max_duration_ns", "max_ticks"))
    }
    sums = {name: column.astype(np.int64) for name, column in sums.items()} | {
        name: log.to_ns(records[name.removesuffix("_ns")], rate) + source.shift_ns
        for name in ("first_ns", "last_ns")
    }
    columns = waits.totals_columns(records, process=source.process, objects=objects, sums=sums)
    _insert_columns(connection, "blocked_totals", columns)


def _insert_counters(
    connection: duckdb.DuckDBPyConnection, source: _Source, objects: Callable[[Array], Array]
) -> None:
    """objects: the run's numbers of those that waited, by the log's ids."""
    ids = _Ids(connection, source.process)
    log, shift_ns = source.log, source.shift_ns
    for every in log.counters():
        is_wait = waits.IS_WAIT[every["op"].astype(np.uint8)]
        if is_wait.any():
            waited = every[is_wait]
            _insert_wait_totals(connection, source, waited, objects(waited["file"]))
        records = every[~is_wait & (every["op"] != _ACCOUNT)]
        n = len(records)
        if not n:
            continue
        fields = records.dtype.names or ()
        moves = _MOVES_BYTES[records["op"].astype(np.uint8)]
        is_access = "buckets" in fields
        columns = {
            "process": np.full(n, source.process, np.int32),
            "file": ids.files(records["file"]),
            "op_number": records["op"].astype(np.uint8),
            "first_ns": log.to_ns(records["first"], source.ns_per_tick) + shift_ns,
            "last_ns": log.to_ns(records["last"], source.ns_per_tick) + shift_ns,
            **{
                name: records[field] if is_access else np.full(n, -1)
                for name, field in _FOLDED_PLACES.items()
            },
        }
        for name, field in _FOLDED_FIELDS.items():
            has_field = field in fields
            counts = records[field] if has_field else np.zeros(n, np.uint64)
            if field in _OF_ACCESS:
                counts = counts * moves
            rate = source.ns_per_tick if field.endswith("ticks") else 1
            columns[name] = np.minimum(counts * rate, FOLDED_MAX).astype(np.int64)
        for i in range(10):
            counts = records["buckets"][:, i] * moves if is_access else np.zeros(n, np.uint64)
            columns[f"bucket_{i}"] = np.minimum(counts, FOLDED_MAX).astype(np.int64)
        for name in ("sizes", "strides"):
            for i in range(4):
                for part in ("value", "calls"):
                    counts = records[name][part][:, i] if is_access else np.zeros(n, np.int64)
                    columns[f"{name}_{i}_{part}"] = np.where(moves, counts.view(np.int64), 0)
        connection.register("counters_part", columns)
        connection.execute(f"INSERT INTO folded BY NAME {_FOLDED_SELECT}")
        connection.unregister("counters_part")


# A count that no job reaches and that a sum of thousands still holds.
FOLDED_MAX = 1 << 50
_FOLDED_FIELDS = {
    "calls": "calls",
    "errors": "errors",
    "asked_bytes": "asked",
    "moved_bytes": "moved",
    "duration_ns": "ticks",
    "max_duration_ns": "max_ticks",
    "sequential": "sequential",
    "consecutive": "consecutive",
    "switches": "switches",
    "unaligned": "unaligned",
    "empty": "empty",
}
_FOLDED_PLACES = {
    "max_end_bytes": "max_end",
    "first_offset_bytes": "first_offset",
    "last_end_bytes": "last_end",
}
_OF_ACCESS = ("moved", "sequential", "consecutive", "switches", "unaligned", "empty")


def _pairs(name: str) -> str:
    pairs = ", ".join(f"{{'value': {name}_{i}_value, 'calls': {name}_{i}_calls}}" for i in range(4))
    return f"list_filter([{pairs}], lambda pair: pair.calls > 0) AS {name}"


_FOLDED_SELECT = f"""
    SELECT process, nullif(file, -1) AS file, op_number, first_ns, last_ns,
        {", ".join(f"nullif({name}, -1) AS {name}" for name in _FOLDED_PLACES)},
        {", ".join(_FOLDED_FIELDS)},
        {", ".join(f"bucket_{i}" for i in range(10))}, {_pairs("sizes")}, {_pairs("strides")}
    FROM counters_part"""

_PAIRS_TYPE = TABLES["counters"]["sizes"][0]
_FOLDED_TYPES = (
    {"process": "INTEGER", "file": "INTEGER", "op_number": "UTINYINT"}
    | dict.fromkeys(("first_ns", "last_ns", *_FOLDED_PLACES, *_FOLDED_FIELDS), "BIGINT")
    | {f"bucket_{i}": "BIGINT" for i in range(10)}
    | dict.fromkeys(("sizes", "strides"), _PAIRS_TYPE)
)

# The Parquet files below RUN/tables, {file: {column: type}}; those in PARTED are folders of parts.
# What users see of them is made by views: schema.TABLES.
STORED: dict[str, dict[str, str]] = {
    "events": {
        "process": "INTEGER",
        "thread": "INTEGER",
        "op_number": "UTINYINT",
        "errno": "SMALLINT",
        "file": "INTEGER",
        "other_file": "INTEGER",
        "start_ns": "BIGINT",
        "duration_ns": "BIGINT",
        "offset_bytes": "BIGINT",
        "asked_bytes": "BIGINT",
        "moved_bytes": "BIGINT",
        "result": "BIGINT",
        "step": "INTEGER",
    },
    "folded": _FOLDED_TYPES,
    "faults": {
        "process": "INTEGER",
        "thread": "INTEGER",
        "file": "INTEGER",
        "is_major": "BOOLEAN",
        "start_ns": "BIGINT",
        "duration_ns": "BIGINT",
        "offset_bytes": "BIGINT",
    },
    "fault_counts": {
        name: kind
        for name, kind in _types("fault_counts").items()
        if name not in ("path", "path_class")
    },
    "blocked": waits.BLOCKED,
    "blocked_totals": waits.TOTALS,
    "objects": waits.OBJECTS,
    **{
        name: _types(name)
        for name in (
            "spans",
            "files",
            "processes",
            "threads",
            "notes",
            "staged",
            "system",
            "unseen",
        )
    },
}
PARTED = ("events", "spans", "blocked")
# Views make of these what users see.
_COMPLETED = ("files", "folded", "faults", "fault_counts", "blocked", "blocked_totals")
# What the queries that make tables call them.
_STORED_AS = {
    name: {"events": "events_raw", "files": "files_given", "blocked": "blocked_raw"}.get(name, name)
    for name in STORED
}


# Files of page faults: which of them, and the number of the mapped file in it.
_FAULTED_TYPES = {"at": "INTEGER", "id": "UINTEGER", "path": "VARCHAR"}
_FAULTED = """
    INSERT INTO texts (process, id, path, tier)
    SELECT -1 - f.at, f.id, coalesce(t.path, f.path), coalesce(t.tier, 0)
    FROM faulted f LEFT JOIN (
        SELECT coalesce(w.resolved, w.path) AS found, min(w.path) AS path, max(w.tier) AS tier
        FROM (
            SELECT process, id, min(path) AS path, max(resolved) AS resolved, max(tier) AS tier
            FROM texts
            WHERE (process, id) IN (
                SELECT (process, id) FROM texts
                WHERE path IN (SELECT path FROM faulted) OR resolved IN (SELECT path FROM faulted))
            GROUP BY process, id) w
        GROUP BY 1) t ON t.found = f.path;
"""

# A path has one number in the run, whoever opened it, and another where its staged copy was opened;
# what is known of it is from its first open, but its size is the largest that any process found.
_INTERN = """
    CREATE TABLE known AS
    SELECT process, id, coalesce(min(path), min(resolved)) AS path, max(kind) AS kind,
        CASE WHEN max(kind) IS NOT NULL THEN coalesce(max(resolved), min(path)) END AS resolved,
        max(device) AS device, max(inode) AS inode, max(size) AS size, max(tier) AS tier
    FROM texts GROUP BY process, id
    HAVING coalesce(min(path), min(resolved)) IS NOT NULL;
    CREATE TABLE paths AS
    SELECT (row_number() OVER (ORDER BY path, tier) - 1)::INTEGER AS file, path, first.*, size,
        tier,
        CASE tier
            WHEN 0 THEN NULL
            WHEN 1 THEN coalesce(
                (SELECT min("value") FROM notes WHERE "key" = 'tier'), 'not known')
            ELSE coalesce(
                (SELECT min("value") FROM notes WHERE "key" = 'burst tier'), 'not known')
        END AS served_from
    FROM (
        SELECT path, tier, coalesce(
            arg_min({resolved: resolved, kind: kind, device: device, inode: inode},
                (process, id)) FILTER (WHERE kind IS NOT NULL),
            {resolved: NULL, kind: 'unknown', device: NULL, inode: NULL}) AS first,
            max(size) FILTER (WHERE kind IS NOT NULL) AS size
        FROM known GROUP BY path, tier);
    CREATE TABLE ids AS
    SELECT process, id, file FROM known JOIN paths USING (path, tier) ORDER BY process, id;
"""

# The same of files that another format names.
_PATHS_OF_FILES = """
    CREATE TABLE paths AS
    SELECT file, path, resolved_path AS resolved, coalesce(kind, 'unknown') AS kind, device, inode,
        size_bytes AS size, served_from
    FROM files_given
"""

_CALLS_SELECT = """
    SELECT process::INTEGER AS process, thread::INTEGER AS thread, op_number::UTINYINT AS op_number,
        errno::SMALLINT AS errno, nullif(file::INTEGER, -1) AS file,
        nullif(other_file::INTEGER, -1) AS other_file, start_ns::BIGINT AS start_ns,
        nullif(duration_ns::BIGINT, -1) AS duration_ns,
        CASE WHEN offset_bytes::BIGINT >= 0 THEN offset_bytes::BIGINT END AS offset_bytes,
        asked_bytes::BIGINT AS asked_bytes, moved_bytes::BIGINT AS moved_bytes,
        nullif("result"::BIGINT, -1) AS "result", CASE WHEN step::INTEGER >= 0 THEN step END AS step
    FROM part"""
_SPANS_SELECT = f"""
    SELECT process::INTEGER AS process, thread::INTEGER AS thread,
        CASE kind::INTEGER {" ".join(f"WHEN {n} THEN '{kind}'" for n, kind in _APP_KINDS.items())}
            ELSE 'span' END AS kind,
        name::VARCHAR AS name, nullif("index"::BIGINT, -1) AS "index", a::BIGINT AS a,
        b::BIGINT AS b, start_ns::BIGINT AS start_ns, nullif(duration_ns::BIGINT, -1) AS duration_ns
    FROM part"""

_DEFAULT_CLASS = (
    "CASE WHEN is_output THEN 'output' WHEN is_beside_library THEN 'library' ELSE 'data' END"
)
# How large a file was at least: it was cut or written to there, or read from there.
_ENDS = f"""
    SELECT file, max(end_bytes) AS end_bytes
    FROM (
        SELECT e.file, e.offset_bytes + CASE WHEN o.op = 'truncate' THEN 0 ELSE e.moved_bytes END
            AS end_bytes
        FROM events_raw e JOIN ops o USING (op_number)
        WHERE e.errno = 0 AND e.duration_ns IS NOT NULL AND e.offset_bytes < {INT64_MAX >> 1}
            AND (o.op = 'truncate' OR o.is_access AND e.moved_bytes > 0)
        UNION ALL
        SELECT f.file, f.max_end_bytes FROM folded f JOIN ops o USING (op_number)
        WHERE o.is_access AND f.moved_bytes > 0)
    GROUP BY file"""
_FILES_SELECT = f"""
    WITH known AS (
        SELECT p.*, o.file IS NOT NULL AS is_output, l.file IS NOT NULL AS is_beside_library,
            CASE WHEN kind IN ('regular', 'unknown') THEN e.end_bytes END AS end_bytes
        FROM paths p LEFT JOIN outputs o USING (file) LEFT JOIN beside_library l USING (file)
            LEFT JOIN ({_ENDS}) e USING (file))
    SELECT file, path, resolved AS resolved_path,
        CASE WHEN kind IN ('pipe', 'socket', 'terminal', 'device') THEN 'system'
            ELSE {{path_class}} END AS path_class,
        kind, device::BIGINT AS device, inode::BIGINT AS inode,
        served_from,
        greatest(CASE WHEN size >= 0 THEN size::BIGINT END, end_bytes::BIGINT) AS size_bytes
    FROM known ORDER BY file"""

# What the job wrote or made: bytes written, cut or reserved, directories made, ends of copies,
# files of which a mapping was synced, and whatever one of these was renamed or linked to.
_OUTPUTS = """
    CREATE TABLE renames AS
    SELECT DISTINCT e.file, e.other_file
    FROM events_raw e JOIN ops o USING (op_number)
    WHERE o.op IN ('rename', 'link') AND e.errno = 0 AND e.file <> e.other_file;
    CREATE TABLE synced AS
    WITH mappings AS (
        SELECT o.op, e.process, e.file, e.start_ns, e."result" AS address, e.asked_bytes
        FROM events_raw e JOIN ops o USING (op_number)
        WHERE o.op IN ('mmap', 'msync') AND e.errno = 0 AND e."result" IS NOT NULL)
    SELECT DISTINCT file
    FROM (
        SELECT arg_max(m.file, m.start_ns) AS file
        FROM mappings s JOIN mappings m ON m.process = s.process AND m.start_ns <= s.start_ns
            AND s.address >= m.address AND s.address - m.address < m.asked_bytes
        WHERE s.op = 'msync' AND m.op = 'mmap'
        GROUP BY s.process, s.start_ns, s.address)
    WHERE file IS NOT NULL;
    CREATE TABLE outputs AS
    WITH RECURSIVE output(file) AS (
        SELECT * FROM (
            SELECT e.file
            FROM events_raw e JOIN ops o USING (op_number)
            WHERE e.errno = 0 AND e.file IS NOT NULL
                AND (o.op IN ('truncate', 'fallocate', 'mkdir')
                    OR o.op_group = 'write' AND o.is_access AND e.moved_bytes > 0)
            UNION
            SELECT e.other_file
            FROM events_raw e JOIN ops o USING (op_number)
            WHERE e.errno = 0 AND e.other_file IS NOT NULL AND e.moved_bytes > 0
            UNION
            SELECT file FROM synced
            UNION
            SELECT f.file
            FROM folded f JOIN ops o USING (op_number)
            WHERE f.file IS NOT NULL AND f.calls > coalesce(f.errors, 0)
                AND (o.op IN ('truncate', 'fallocate', 'mkdir')
                    OR o.op_group = 'write' AND o.is_access AND f.moved_bytes > 0))
        UNION
        SELECT r.other_file FROM output JOIN renames r USING (file))
    SELECT file FROM output;
"""

# Where the program's standard output or error goes is the job's log, whether or not it wrote there.
_STREAM = """
    INSERT INTO outputs
    SELECT file FROM paths
    WHERE (path = ? OR resolved = ?) AND file NOT IN (SELECT file FROM outputs)
"""

# Of a renamed directory, the files below it have new paths that no call named.
_RENAMED_BELOW = """
    INSERT INTO outputs
    SELECT DISTINCT new.file
    FROM renames r JOIN paths f ON f.file = r.file JOIN paths t ON t.file = r.other_file
        JOIN paths new ON starts_with(new.path, t.path || '/')
        JOIN paths old ON old.path = f.path || substr(new.path, length(t.path) + 1)
        JOIN outputs o ON o.file = old.file
    WHERE (f.kind = 'directory' OR t.kind = 'directory')
        AND new.file NOT IN (SELECT file FROM outputs)
"""

# schema.BESIDE_LIBRARY says what this is.  A job may examine a million files, so nothing is
# compared pair by pair.  held: what lies in a folder directly, its sub-folders by their own files;
# own_: without these.
_BESIDE_LIBRARY = f"""
    CREATE TEMP TABLE ruled AS
    SELECT p.file, p.kind, CASE WHEN p.path = '/' THEN '' ELSE p.path END AS path,
        regexp_replace(p.path, '/[^/]*$', '') AS folder, regexp_extract(p.path, '[^/]*$') AS name,
        {{path_class}} AS path_class
    FROM paths p LEFT JOIN outputs o USING (file) WHERE o.file IS NULL;
    CREATE TEMP TABLE examined AS
    SELECT c.file, bool_or(c.is_there) AS is_there, bool_or(c.is_run) AS is_run
    FROM (
        SELECT e.file, o.op, o.layer = 'process' AS is_run, e.errno = 0 AS is_there
        FROM events_raw e JOIN ops o USING (op_number)
        UNION ALL
        SELECT f.file, o.op, o.layer = 'process', f.calls > coalesce(f.errors, 0)
        FROM folded f JOIN ops o USING (op_number)
        UNION ALL
        SELECT e.other_file, 'other', false, true FROM events_raw e WHERE e.other_file IS NOT NULL
    ) c JOIN ruled r USING (file)
    WHERE r.kind = 'unknown' AND r.path_class IS NULL
    GROUP BY c.file
    HAVING bool_and(c.is_run OR c.op IN ({", ".join(map(_quoted, EXAMINING_OPS))}));
    CREATE TEMP TABLE held AS
    WITH own AS (
        SELECT folder, count(*) FILTER (path_class = 'library') AS libraries,
            count(*) FILTER (path_class IS NULL) AS others
        FROM ruled WHERE kind = 'regular' GROUP BY folder)
    SELECT folder, sum(libraries) AS libraries, sum(others) AS others,
        sum(libraries) FILTER (is_own) AS own_libraries, sum(others) FILTER (is_own) AS own_others
    FROM (
        SELECT *, true AS is_own FROM own
        UNION ALL
        SELECT regexp_replace(folder, '/[^/]*$', ''), (libraries > 0 AND libraries >= others)::INT,
            (others > libraries)::INT, false
        FROM own WHERE folder <> '')
    GROUP BY folder;
    CREATE TEMP TABLE above AS
    WITH RECURSIVE up(folder) AS (
        SELECT DISTINCT folder FROM ruled LEFT JOIN examined x USING (file)
        WHERE path_class = 'library' AND kind <> 'unknown' OR x.is_run AND x.is_there
        UNION
        SELECT regexp_replace(folder, '/[^/]*$', '') FROM up WHERE folder <> '')
    SELECT folder FROM up;
    CREATE TABLE beside_library AS
    SELECT r.file
    FROM ruled r LEFT JOIN examined x USING (file)
        LEFT JOIN held h ON h.folder = r.path LEFT JOIN above a ON a.folder = r.path
    WHERE r.path_class IS NULL AND (
        x.is_run
        OR NOT x.is_there AND r.name IN (
            SELECT name FROM ruled
            WHERE path_class = 'library' AND regexp_matches(folder, '/s?bin$'))
        OR x.is_there AND a.folder IS NOT NULL AND coalesce(h.own_libraries >= h.own_others, true)
        OR r.kind = 'directory' AND h.libraries > 0 AND h.libraries >= h.others);
"""

_LATEST = """
    SELECT process, max(start_ns + coalesce(duration_ns, 0))
    FROM (SELECT process, start_ns, duration_ns FROM events_raw
        UNION ALL SELECT process, start_ns, duration_ns FROM spans
        UNION ALL SELECT process, start_ns, duration_ns FROM blocked_raw)
    GROUP BY process"""

_UNSEEN_SELECT = f"""
    SELECT process, nullif(pid, 0) AS pid, path AS program, {_quoted(_UNSEEN_REASON)} AS reason
    FROM started LEFT JOIN paths USING (file)
    UNION ALL
    SELECT process, NULL, NULL, "value" FROM notes WHERE "key" = 'unseen'
    ORDER BY ALL"""


def _find_renamed_outputs(connection: duckdb.DuckDBPyConnection) -> None:
    # A second round finds what was renamed twice; a third never found more.
    connection.execute(_RENAMED_BELOW)
    connection.execute(_RENAMED_BELOW)


def _find_beside_library(connection: duckdb.DuckDBPyConnection, rules: Sequence[Rule]) -> None:
    connection.execute(_BESIDE_LIBRARY.format(path_class=_class_sql(rules, "NULL")))


# --- tables on disk to tables in a query ---------------------------------------------------------


def op_rows() -> list[tuple[Any, ...]]:
    """The table `ops`, whose columns are those of OP_TYPES."""
    known = {op.number: op for op in (*OPS, _FAULT)}
    rows = []
    for number in range(256):
        op = known.get(number)
        name, layer, group = (op.name, op.layer, op.group) if op else (f"op_{number}", None, None)
        rows.append((number, name, layer, group, bool(_MOVES_BYTES[number])))
    return rows


def _make_ops(connection: duckdb.DuckDBPyConnection) -> None:
    _create(connection, "ops", OP_TYPES)
    insert_rows(connection, "ops", OP_TYPES, op_rows())


def _make_events(connection: duckdb.DuckDBPyConnection, tables: Path) -> None:
    for view, folder in zip(map(stored_view, PARTED), PARTED, strict=True):
        paths = sorted((tables / folder).glob("*.parquet"))
        names = ", ".join(_quoted(_unglobbed(path)) for path in paths)
        connection.execute(f"CREATE VIEW {view} AS FROM read_parquet([{names}])")


def _unglobbed(path: Path) -> str:
    """DuckDB reads * ? [ in a path as a pattern; in brackets they are themselves."""
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", str(path))


_EVENTS_SELECT = """
    SELECT e.process, e.thread, o.layer, o.op, o.op_group, e.file, f.path, f.path_class,
        f.kind AS file_kind, g.path AS other_path, e.start_ns, e.duration_ns, e.offset_bytes,
        e.asked_bytes, e.moved_bytes, e."result", e.errno, e.step, f.served_from
    FROM events_raw e JOIN ops o ON o.op_number = e.op_number
        LEFT JOIN files f ON f.file = e.file LEFT JOIN files g ON g.file = e.other_file"""

_FAULTS_SELECT = """
    SELECT p.process, p.thread, p.file, f.path, f.path_class,
        CASE WHEN p.is_major THEN 'major' ELSE 'minor' END AS kind,
        p.start_ns, p.duration_ns, p.offset_bytes
    FROM faults_raw p LEFT JOIN files f ON f.file = p.file"""

_FAULT_COUNTS_SELECT = """
    SELECT p.process, p.file, f.path, f.path_class, p.* EXCLUDE (process, file)
    FROM fault_counts_raw p LEFT JOIN files f ON f.file = p.file"""


def stored_view(name: str) -> str:
    """What queries call the table that lies in tables/NAME."""
    return {"events": "events_raw"}.get(name, f"{name}_raw" if name in _COMPLETED else name)


def views(rules: Sequence[Rule]) -> list[tuple[str, str]]:
    """What users see of the stored tables, in the order it is made: (name, SELECT)."""
    path_class = _class_sql(rules, "path_class")
    columns = ", ".join(
        f"{path_class} AS path_class" if name == "path_class" else name for name in STORED["files"]
    )
    counters = package_files("penstock").joinpath("queries/counters.sql").read_text()
    return [
        ("files", f"SELECT {columns} FROM files_raw"),
        ("events", _EVENTS_SELECT),
        ("faults", _FAULTS_SELECT),
        ("blocked", waits.BLOCKED_SELECT),
        ("blocked_totals", waits.TOTALS_SELECT),
        ("fault_counts", _FAULT_COUNTS_SELECT),
        ("counters", counters),
    ]


# Of several lists of {value, calls}, the four values with most calls.
_COMMONEST = """
    CREATE MACRO commonest(pairs) AS list_transform(
        list_reverse_sort(list_transform(
            list_distinct(list_transform(pairs, lambda p: p.value)),
            lambda v: {'calls': list_sum(list_transform(
                list_filter(pairs, lambda p: p.value = v), lambda p: p.calls))::BIGINT, 'value': v}
        ))[1:4],
        lambda p: {'value': p.value, 'calls': p.calls})"""


def connect(
    tables: Path,
    rules: Sequence[Rule],
    spilled: Path,
    beside: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> duckdb.DuckDBPyConnection:
    """An engine that sees the tables and nothing else of this machine.

    beside: rows of the tables that are no logs' but lie beside them: ceilings, fills."""
    config: dict[str, Any] = {"memory_limit": QUERY_MEMORY, "temp_directory": str(spilled)}
    connection = _quiet(duckdb.connect(":memory:", config=config))
    tables = tables.absolute()
    with translated(f"{tables}: cannot be queried", RunError):
        _make_ops(connection)
        _make_events(connection, tables)
        for name in STORED.keys() - set(PARTED):
            path = _quoted(_unglobbed(tables / f"{name}.parquet"))
            connection.execute(f"CREATE VIEW {stored_view(name)} AS FROM read_parquet({path})")
        connection.execute(_COMMONEST)
        for table in ("ceilings", "fills"):
            types = _types(table)
            _create(connection, table, types)
            told = (beside or {}).get(table, ())
            insert_rows(connection, table, types, [tuple(map(row.get, types)) for row in told])
        for name, select in views(rules):
            kind = "TABLE" if rules and name == "files" else "VIEW"
            connection.execute(f"CREATE {kind} {name} AS {select}")
        # Asked twice: for the path as it is given, which may be a pattern, and for what it means.
        allowed = f"{_quoted(str(tables))}, {_quoted(_unglobbed(tables))}"
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def _quiet(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """DuckDB draws a bar on standard output where it takes the program for a person's shell."""
    connection.execute("SET enable_progress_bar = false")
    return connection


@contextmanager
def translated(what: str, kind: type[PenstockError] = QueryError) -> Iterator[None]:
    """DuckDB's errors as ours, with their first line: the rest repeats the query."""
    try:
        yield
    except duckdb.Error as error:
        raise kind(f"{what}: {str(error).splitlines()[0]}") from error
