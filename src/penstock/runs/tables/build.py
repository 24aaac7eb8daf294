"""Make the tables: survey the logs, convert times to a common clock, write Parquet in parts."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from penstock.errors import LogError, RunError
from penstock.log.events import Events, read_log
from penstock.log.faults import Faults, read_faults
from penstock.log.texts import (
    CONNECTION_TEXT,
    FILE_TEXT,
    NAME_TEXT,
    NOTE_TEXT,
    OBJECT_TEXT,
    REQUEST_TEXT,
    is_log_name,
)
from penstock.places.classes import PATH_RULES, rule_of_run
from penstock.recording.container import host_path
from penstock.recording.endings import Ended, Sent, ended_by_note, endings_in, sent_by_note
from penstock.recording.kernel_clock import monotonic_ns
from penstock.recording.system import read_system
from penstock.recording.threads import Look, doing
from penstock.runs import clocks, waits
from penstock.runs.tables.columns import (
    CALLS_SELECT,
    SPANS_SELECT,
    Ids,
    Images,
    call_columns,
    copy_columns,
    fault_columns,
    fault_count_columns,
    insert_counters,
    joined,
    span_columns,
)
from penstock.runs.tables.connections import Connections, connection_rows
from penstock.runs.tables.endings import seen_ends
from penstock.runs.tables.paths import (
    DEFAULT_CLASS,
    FAULTED,
    FAULTED_TYPES,
    FILES_SELECT,
    INTERN,
    OUTPUTS,
    PATHS_OF_FILES,
    STREAM,
    class_sql,
    find_beside_library,
    find_renamed_outputs,
)
from penstock.runs.tables.requests import RequestTexts
from penstock.runs.tables.sources import (
    CLOCK_SLACK_NS,
    Folders,
    LogSource,
    ProcessSteps,
    Surroundings,
    Survey,
    boot_of,
    bounded,
    clocks_of,
    ending_of,
    file_row,
    host_of,
    or_last,
    parents_of,
    process_row,
    steps_in,
)
from penstock.runs.tables.stored import (
    ACCOUNT,
    FIRST_APP,
    OP_NUMBER,
    PARTED,
    STORED,
    STORED_AS,
    TEXT_TYPES,
    Array,
    copy_out,
    create,
    insert_columns,
    insert_rows,
    make_events,
    make_ops,
    quiet,
    quoted,
    translated,
    types_of,
    utf8,
)

__all__ = ["Progress", "make_tables", "write_tables"]

Progress = Callable[[int, int], None]

# Blocks of events in a part of the table: about a million events, 150 MB during the conversion.
PART_BLOCKS = 640
MAX_WORKERS = 4
BUILD_MEMORY = "1GB"

TEXT_ROWS = 20_000

_UNSEEN_REASON = "static, set-uid or started with a cleaned environment"


def make_tables(
    logs: Sequence[Path],
    surroundings: Surroundings,
    tables: Path,
    progress: Progress | None = None,
) -> int:
    """Turn the logs of a run into Parquet files below `tables`.

    Return the run's start, ns since 1970.  progress: is called with (done, total) blocks.  Raises
    RunError, LogError.
    """
    return _Build(logs, surroundings, tables, progress).make()


def write_tables(tables: Path, columns: Mapping[str, Mapping[str, Array]]) -> None:
    """Write Parquet files below `tables` from columns converted from another tool's format.

    columns: for each name of STORED, arrays of equal length with NULLs by a mask; a missing column
    is NULL. "files" needs no path_class: PATH_RULES and the calls' outputs decide.  Raises
    RunError.
    """
    with (
        translated(f"{tables}: cannot be written", RunError),
        duckdb.connect(":memory:", config={"memory_limit": BUILD_MEMORY}) as connection,
    ):
        make_ops(quiet(connection))
        for name, types in STORED.items():
            create(connection, STORED_AS[name], types)
            given = dict(columns.get(name, {}))
            unknown = given.keys() - types.keys()
            assert not unknown, f"{name} has no {', '.join(sorted(unknown))}"
            if given:
                insert_columns(connection, STORED_AS[name], given)
        connection.execute(PATHS_OF_FILES)
        connection.execute(OUTPUTS)
        find_renamed_outputs(connection)
        find_beside_library(connection, PATH_RULES)
        select = FILES_SELECT.format(path_class=class_sql(PATH_RULES, DEFAULT_CLASS))
        for name, table in STORED_AS.items():
            path = tables / (f"{name}/00000" if name in PARTED else name)
            path.parent.mkdir(parents=True, exist_ok=True)
            copy_out(
                connection,
                select if name == "files" else f"FROM {table}",
                path.with_suffix(".parquet"),
            )


class _Build:
    """The state while the tables are made.

    Data that grow with the run are in DuckDB, or in the arrays of a part for each worker.  DuckDB
    spills to disk beyond BUILD_MEMORY.
    """

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
        self.surveys: dict[int, Survey] = {}
        self.connected: dict[int, Connections] = {}
        self.requests: dict[int, RequestTexts] = {}
        self.read_ns = monotonic_ns()
        self.ended: list[tuple[str, str, Ended]] = []  # boot, host, and an observed end
        self.sent: list[tuple[LogSource, Sent]] = []  # with the process that sent the signal

    def make(self) -> int:
        """Write the tables, and return the run's start, ns since 1970."""
        config: dict[str, Any] = {
            "threads": self.workers,
            "memory_limit": BUILD_MEMORY,
            "temp_directory": str(self.tables.parent / "spilled"),
        }
        with (
            duckdb.connect(":memory:", config=config) as connection,
        ):
            self.connection = quiet(connection)
            for table in ("folded", "blocked_totals", "objects"):
                create(connection, table, STORED[table])
            create(connection, "texts", TEXT_TYPES)
            for table in ("notes", "processes", "staged", "threads"):
                create(connection, table, types_of(table))
            make_ops(connection)
            start_unix_ns = self._find_sources()
            # A survey reads as many bytes as the conversion, but takes a third of the total time.
            self.total = 3 * sum(len(source.log.event_blocks) for source in self.sources)
            self.done = 0
            self._each(self._survey, [(source,) for source in self.sources])
            paths = [path for survey in self.surveys.values() for path in survey.objects.values()]
            self.objects = waits.Objects(paths)
            start_unix_ns += self._align()
            seen = [
                faults for path in self.surroundings.faults if (faults := self._faults_of(path))
            ]
            self._name_faulted(seen)
            connection.execute(INTERN)
            look = Look(source.log.header.pid for source in self.sources if source.is_alive)
            self._write_faults(seen)
            self._write_system()
            self._each(self._write_part, list(enumerate(self._parts())))
            self._note_doing(look)
            self._write_small()
        shutil.rmtree(config["temp_directory"], ignore_errors=True)
        return start_unix_ns

    def _each(self, work: Callable[..., int], tasks: list[tuple[Any, ...]]) -> None:
        """Call work(*task) for all tasks on all workers; work returns the number of blocks done."""
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
        clocks = clocks_of(logs)
        unix = [bounded(log.header.start_ns) + clocks[boot_of(log)].unix_minus_ns for log in logs]
        start_unix_ns = min(unix)
        order = sorted(range(len(logs)), key=lambda i: (unix[i], logs[i].path))
        starts = [unix[i] - start_unix_ns for i in order]
        logs = [logs[i] for i in order]
        parents = parents_of(logs, starts)
        self.sources: list[LogSource] = []
        n_threads = 0
        for process, log in enumerate(logs):
            threads = np.array([thread.number for thread in log.threads], np.uint32)
            clock = clocks[boot_of(log)]
            self.sources.append(
                LogSource(
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

    def _survey(self, source: LogSource) -> int:
        names, objects = self._survey_texts(source)
        ops = [OP_NUMBER[name] for name in ("step", "fork", "exec", "spawn")]
        events = joined(source.log.events(ns_per_tick=source.ns_per_tick, ops=ops))
        is_step = events.op == OP_NUMBER["step"]
        steps = steps_in(events.where(is_step), source.shift_ns)
        self.surveys[source.process] = Survey(steps, events.where(~is_step), names, objects)
        return len(source.log.event_blocks)

    def _survey_texts(self, source: LogSource) -> tuple[dict[int, str], dict[int, str]]:
        """Return the names of spans and the paths of objects, by id.

        Files and notes go to the tables of files and notes.
        """
        cursor = quiet(self.connection.cursor())
        names: dict[int, str] = {}
        objects: dict[int, str] = {}
        connected = self.connected[source.process] = Connections()
        requests = self.requests[source.process] = RequestTexts()
        folders = Folders(source.log)
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
                    self.ended.append((*host_of(source.log), ended))
                elif text.name == "signal sent" and (sent := sent_by_note(text.resolved)):
                    self.sent.append((source, sent))
            elif text.kind == CONNECTION_TEXT:
                connected.add(text)
            elif text.kind == REQUEST_TEXT:
                requests.add(text)
            elif text.kind == FILE_TEXT:
                connected.add_file(text)
                rows.append(file_row(source.process, text, folders.path(text), mounts))
                if len(rows) == TEXT_ROWS:
                    insert_rows(cursor, "texts", TEXT_TYPES, rows)
                    rows = []
        insert_rows(cursor, "texts", TEXT_TYPES, rows)
        insert_rows(cursor, "notes", types_of("notes"), notes)
        return names, objects

    # Between survey and conversion: a common time for all hosts.

    def _align(self) -> int:
        """Convert the times of all hosts to a common clock; return the move of the run's start, in
        ns."""
        steps: dict[str, list[clocks.ClockSteps]] = {}
        for source in self.sources:
            of_host = steps.setdefault(boot_of(source.log), [])
            own = self.surveys[source.process].steps.finished()
            if len(own.number):
                of_host.append(own)
        if len(steps) < 2:
            return 0
        shifts = {boot_of(source.log): source.shift_ns for source in self.sources}
        offsets, reference = self.surroundings.clocks, self._reference()
        measured = {
            boot: clocks.MeasuredOffset(shifts[reference] + offset_ns - shifts[boot], error_ns)
            for boot, (other, offset_ns, error_ns) in offsets.items()
            if other == reference and boot in shifts
        }
        aligned = clocks.align(steps, reference, measured)
        starts = [s.start_ns + aligned[boot_of(s.log)].moved_ns for s in self.sources]
        earliest_ns = min(starts)
        self._move({boot: clock.moved_ns - earliest_ns for boot, clock in aligned.items()})
        self._note_clocks(aligned)
        return earliest_ns

    def _reference(self) -> str:
        """Return the boot of the reference clock.

        The reference is the other boot of the measured clock offsets, else the boot of rank 0.
        """
        others = [other for other, _, _ in self.surroundings.clocks.values()]
        asked = [source for source in self.sources if boot_of(source.log) in others]
        first = min(
            asked or self.sources,
            key=lambda source: (or_last(source.log.header.rank), source.process),
        )
        return boot_of(first.log)

    def _move(self, by_ns: Mapping[str, int]) -> None:
        for place, source in enumerate(self.sources):
            ns = by_ns[boot_of(source.log)]
            if not ns:
                continue
            self.sources[place] = replace(source, shift_ns=source.shift_ns + ns)
            survey = self.surveys[source.process]
            self.surveys[source.process] = replace(survey, steps=survey.steps.moved(ns))

    def _note_clocks(self, of_boots: Mapping[str, clocks.Clock]) -> None:
        """Write a note for each boot: host, how, moved, error, spread, steps; empty: not known."""
        hosts = {boot_of(s.log): utf8(s.log.header.host) for s in reversed(self.sources)}
        rows: list[tuple[Any, ...]] = [
            (None, "clock", "\t".join(
                "" if word is None else str(word)
                for word in (hosts[boot], c.how, c.moved_ns, c.error_ns, c.spread_ns, c.steps)
            ))
            for boot, c in of_boots.items()
        ]  # fmt: skip
        insert_rows(self.connection, "notes", types_of("notes"), rows)

    # Second pass: events.

    def _parts(self) -> list[list[tuple[LogSource, int, int]]]:
        """Return parts of PART_BLOCKS blocks: pieces of logs (source, first block, last block)."""
        parts: list[list[tuple[LogSource, int, int]]] = [[]]
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

    def _write_part(self, number: int, pieces: list[tuple[LogSource, int, int]]) -> int:
        cursor = quiet(self.connection.cursor())
        calls: list[dict[str, Array]] = []
        spans: list[dict[str, Array]] = []
        blocked: list[dict[str, Array]] = []
        for source, first, last in pieces:
            ids = Ids(cursor, source.process)
            steps = self._steps_of(source)
            for events in source.log.events(first, last, source.ns_per_tick):
                is_app = (events.op >= FIRST_APP) | (events.op == ACCOUNT)
                if is_app.any():
                    app = events.where(is_app)
                    spans.append(span_columns(source, app, self.surveys[source.process].names))
                    events = events.where(~is_app)
                is_wait = waits.IS_WAIT[events.op]
                if is_wait.any():
                    blocked.append(self._blocked(source, events.where(is_wait), ids, steps))
                    events = events.where(~is_wait)
                calls.append(call_columns(source, events, ids, steps))
        name = f"{number:05}.parquet"
        copy_columns(cursor, calls, CALLS_SELECT, self.tables / "events" / name)
        copy_columns(cursor, spans, SPANS_SELECT, self.tables / "spans" / name)
        copy_columns(cursor, blocked, waits.STORED_SELECT, self.tables / "blocked" / name)
        return 2 * sum(last - first for _, first, last in pieces)

    def _blocked(
        self, source: LogSource, events: Events, ids: "Ids", steps: ProcessSteps
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

    def _steps_of(self, source: LogSource) -> ProcessSteps:
        """Return the steps of a process, or of the nearest ancestor with steps."""
        steps = self.surveys[source.process].steps
        while not len(steps.number) and source.parent is not None:
            source = self.sources[source.parent]
            steps = self.surveys[source.process].steps
        return steps

    # Page faults: of the launcher's files, not of a log.

    def _faults_of(self, path: Path) -> Faults | None:
        """Read a file of page faults; a damaged file is noted and not used."""
        try:
            return read_faults(path)
        except LogError as error:
            self._note_damaged(error, "page faults")
            return None

    def _note_damaged(self, error: LogError, what: str) -> None:
        notes = [(None, "damaged file", utf8(str(error))), (None, what, utf8(str(error)))]
        insert_rows(self.connection, "notes", types_of("notes"), notes[: 1 + (what != "")])

    def _name_faulted(self, seen: Sequence[Faults]) -> None:
        """Name the mapped files: by the path of a call that opened the file, else by the kernel's
        path."""
        ours = {Path(log).name for log in self.logs}  # recorder's own: memory
        rows = []
        for at, faults in enumerate(seen):
            mounts = self.surroundings.mounts
            paths = {n: Path(host_path(mounts, path)) for n, path in faults.files.items()}
            folders = {path.parent for path in paths.values() if path.name in ours}
            rows += [
                (at, number, utf8(str(path)))
                for number, path in paths.items()
                if path.parent not in folders
                or (not is_log_name(path.name) and path.name != "control")
            ]
        create(self.connection, "faulted", FAULTED_TYPES)
        insert_rows(self.connection, "faulted", FAULTED_TYPES, rows)
        self.connection.execute(FAULTED)

    def _write_faults(self, seen: Sequence[Faults]) -> None:
        for table in ("faults", "fault_counts"):
            create(self.connection, table, STORED[table])
        notes: list[tuple[Any, ...]] = []
        for at, faults in enumerate(seen):
            of_boot = [s for s in self.sources if s.log.header.boot_id == faults.boot_id]
            # If no log has the launcher's host name, the processes are in a container with a
            # separate host name.
            of_host = [s for s in of_boot if s.log.header.host == faults.host]
            sources = of_host or of_boot
            if not sources:
                continue  # no process of the host was recorded
            ids = Ids(self.connection, -1 - at)
            images = Images(faults, sources)
            columns = fault_columns(faults, images, ids, sources[0].shift_ns)
            insert_columns(self.connection, "faults", columns)
            counts = fault_count_columns(faults, images, ids)
            insert_columns(self.connection, "fault_counts", counts)
            notes.append((None, "page faults", "measured"))
            lacks = faults.missing + sum(int(n) for n in faults.counts["kept"]) - len(faults.faults)
            lacks = max(0, lacks)
            if lacks:
                notes.append((None, "page faults lost", str(lacks)))
            if faults.is_user_only:
                notes.append((None, "page faults in user mode only", faults.host))
            if faults.state is not None and faults.state["error"]:
                notes.append((None, "page faults cut", os.strerror(int(faults.state["error"]))))
        insert_rows(self.connection, "notes", types_of("notes"), notes)
        for table in ("faults", "fault_counts"):
            copy_out(self.connection, f"FROM {table}", self.tables / f"{table}.parquet")

    def _write_system(self) -> None:
        types = types_of("system")
        create(self.connection, "system", types)
        shifts = {s.log.header.boot_id: s.shift_ns for s in self.sources}
        seen: dict[tuple[str, str], Path] = {}
        for path in sorted(self.surroundings.system, key=_size, reverse=True):
            try:
                boot_id, host, samples = read_system(path)
            except LogError as error:
                self._note_damaged(error, "")
                continue
            rows: list[tuple[Any, ...]] = []
            for sample in samples if boot_id in shifts else ():
                device = utf8(sample.device)
                if sample.kind == "job":  # samples of a single launcher
                    device = utf8(path.stem)
                # Samples of a kernel count once, from the longer of two files; networks belong to a
                # host, not a kernel.
                elif seen.setdefault((boot_id, host * (sample.kind == "network")), path) != path:
                    continue
                at_ns = sample.ns + shifts[boot_id]
                rows.append((at_ns, utf8(host), sample.kind, device, sample.quantity, sample.value))
            insert_rows(self.connection, "system", types, rows)
            gone = endings_in(samples) if boot_id in shifts else []
            self.ended += [(boot_id, host, ended) for ended in gone]
        copy_out(self.connection, "FROM system ORDER BY ALL", self.tables / "system.parquet")

    def _note_doing(self, look: Look) -> None:
        """Write a note for each thread of a live process: queries/doing.sql."""
        last = {source.log.header.pid: source.process for source in self.sources if source.is_alive}
        rows: list[tuple[Any, ...]] = []
        for thread in doing(look):
            still_s = "" if thread.still_s is None else f"{thread.still_s:.3f}"
            words = [
                thread.tid,
                thread.state,
                f"{thread.cpu:.3f}",
                still_s,
                thread.call,
                thread.name,
                thread.path,
            ]
            text = "\t".join(str(word).replace("\t", " ") for word in words)
            rows.append((last[thread.pid], "doing", utf8(text)))
        insert_rows(self.connection, "notes", types_of("notes"), rows)

    # Last: small tables, and tables that need all events.

    def _write_small(self) -> None:
        connection = self.connection
        no_calls = {}
        for source in self.sources:
            of = partial(self.objects.of, paths=self.surveys[source.process].objects)
            no_calls[source.process] = insert_counters(connection, source, of)
        insert_rows(connection, "objects", STORED["objects"], self.objects.rows())
        for table in ("folded", "blocked_totals", "objects"):
            copy_out(connection, f"FROM {table}", self.tables / f"{table}.parquet")
        make_events(connection, self.tables)
        connection.execute(OUTPUTS)
        streams = {path for launch in self.surroundings.launches for path in launch.streams}
        for path in streams:
            connection.execute(STREAM, [path, path])
        find_renamed_outputs(connection)
        folders = {os.path.abspath(log.parent) for log in self.logs}  # noqa: PTH100 - as recorded
        folders |= {os.path.realpath(folder) for folder in folders}
        rules = (*map(rule_of_run, sorted(folders)), *PATH_RULES)
        find_beside_library(connection, rules)
        select = FILES_SELECT.format(path_class=class_sql(rules, DEFAULT_CLASS))
        copy_out(connection, select, self.tables / "files.parquet")
        self._write_processes(no_calls)
        self._write_connections()
        self._write_requests()
        self._write_unseen()
        notes = [
            (None, "skipped" if is_log_name(name) else "damaged file", utf8(why))
            for name, why in self.surroundings.skipped.items()
        ]
        notes += [(None, key, value) for key, value in self.surroundings.machine]
        notes += [(None, "stream", utf8(path)) for path in sorted(streams)]
        insert_rows(connection, "notes", types_of("notes"), notes)
        copy_out(connection, "FROM notes ORDER BY ALL", self.tables / "notes.parquet")

    def _write_processes(self, no_calls: dict[int, int]) -> None:
        ends = dict(self.connection.execute(_LATEST).fetchall())
        by_pid = {(launch.host, launch.pid): launch for launch in self.surroundings.launches}
        seen_of = seen_ends(self.sources, self.ended, self.sent)
        processes = []
        for source in self.sources:
            header = source.log.header
            launch = by_pid.get((header.host, header.ppid))
            seen = seen_of.get(source.process)
            state, reason, end_ns = ending_of(source, ends.get(source.process), launch, seen)
            if launch and launch.status is not None and state not in ("execed", "running"):
                status: int | None = launch.status
            else:
                status = seen.status if seen and state in ("killed", "exited") else None
            # A live process is on the local host, and so uses the local clock.
            read_ns = self.read_ns + source.shift_ns if source.is_alive else None
            end = (state, reason, end_ns, status, read_ns, no_calls[source.process])
            processes.append(process_row(source, *end))
        threads = [
            (source.first_thread + i, source.process, thread.tid, utf8(thread.name))
            + (thread.tid == source.log.header.pid,)
            for source in self.sources
            for i, thread in enumerate(source.log.threads)
        ]
        staged = [
            (source.process, outcome, bounded(opens))
            for source in self.sources
            for outcome, opens in source.log.header.opens
        ]
        for table, rows in (("processes", processes), ("threads", threads), ("staged", staged)):
            insert_rows(self.connection, table, types_of(table), rows)
            copy_out(self.connection, f"FROM {table}", self.tables / f"{table}.parquet")

    def _write_connections(self) -> None:
        rows = connection_rows(
            (source, self.connected[source.process], self.surveys[source.process].objects)
            for source in self.sources
        )
        types = types_of("connections")
        create(self.connection, "connections", types)
        insert_rows(self.connection, "connections", types, rows)
        copy_out(self.connection, "FROM connections", self.tables / "connections.parquet")

    def _write_requests(self) -> None:
        create(self.connection, "requests", types_of("requests"))
        for source in self.sources:
            steps = self._steps_of(source)
            requests = self.requests.pop(source.process)
            columns = requests.columns(source, steps.at if len(steps.number) else None)
            if columns:
                insert_columns(self.connection, "requests", columns)
        copy_out(self.connection, "FROM requests", self.tables / "requests.parquet")

    def _write_unseen(self) -> None:
        images: dict[tuple[str, str, int], list[LogSource]] = {}
        for source in self.sources:
            images.setdefault((*host_of(source.log), source.log.header.pid), []).append(source)
        rows: list[tuple[Any, ...]] = []
        for source in self.sources:
            started = self.surveys[source.process].started
            # The child of a shell started by libc (system, popen) is not known: pid 0.
            is_program = started.op != OP_NUMBER["fork"]
            programs = started.where(is_program & (started.errno == 0) & (started.moved > 0))
            files = Ids(self.connection, source.process).files(programs.file)
            moments = programs.start_ns + source.shift_ns
            for pid, file, moment in zip(programs.moved, files, moments, strict=True):
                logs = images.get((*host_of(source.log), int(pid)), ())
                # Two readings of the clock by two processes may differ a little.
                if not any(
                    log is not source and log.start_ns >= moment - CLOCK_SLACK_NS for log in logs
                ):
                    rows.append((source.process, int(pid), int(file)))
        types = {"process": "INTEGER", "pid": "BIGINT", "file": "INTEGER"}
        create(self.connection, "started", types)
        insert_rows(self.connection, "started", types, rows)
        copy_out(self.connection, _UNSEEN_SELECT, self.tables / "unseen.parquet")


def _size(path: Path) -> tuple[int, str]:
    return path.stat().st_size, path.name


_LATEST = """
    SELECT process, max(start_ns + coalesce(duration_ns, 0))
    FROM (SELECT process, start_ns, duration_ns FROM events_raw
        UNION ALL SELECT process, start_ns, duration_ns FROM spans
        UNION ALL SELECT process, start_ns, duration_ns FROM blocked_raw)
    GROUP BY process"""

_UNSEEN_SELECT = f"""
    SELECT process, nullif(pid, 0) AS pid, path AS program, {quoted(_UNSEEN_REASON)} AS reason
    FROM started LEFT JOIN paths USING (file)
    UNION ALL
    SELECT process, NULL, NULL, "value" FROM notes WHERE "key" = 'unseen'
    ORDER BY ALL"""
