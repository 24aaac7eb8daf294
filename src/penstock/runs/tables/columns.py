"""Convert events, counters and page faults to columns, with the run's file and thread numbers."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import duckdb
import numpy as np

from penstock.log.events import Events
from penstock.log.faults import MAJOR, NO_BEGIN, Faults
from penstock.log.layout import OPS, PHASES, SECOND_FILE_OPS, TIME_LIMIT_NS
from penstock.runs import waits
from penstock.runs.tables.sources import CLOCK_SLACK_NS, LogSource, ProcessSteps
from penstock.runs.tables.stored import (
    ACCOUNT,
    FOLDED_FIELDS,
    FOLDED_MAX,
    FOLDED_PLACES,
    INT64_MAX,
    MOVES_BYTES,
    OP_NUMBER,
    STORED,
    Array,
    copy_out,
    insert_columns,
    ops_table,
)

__all__ = [
    "CALLS_SELECT",
    "SPANS_SELECT",
    "Ids",
    "Images",
    "call_columns",
    "copy_columns",
    "fault_columns",
    "fault_count_columns",
    "insert_counters",
    "joined",
    "span_columns",
]

_APP_KINDS = {op.number: op.name for op in OPS if op.layer == "app"} | {ACCOUNT: "account"}

# Ops with a `moved` in the log that is no number of bytes; see TABLES["events"]["result"].
_RESULT_OPS = ("readdir", "list", "fork", "spawn", "exec", "mmap", "munmap", "msync")

# Programs ask copy_file_range for 2^63 bytes to copy all: sums of such numbers would overflow.
MOST_ASKED = 1 << 40

_HAS_SECOND_FILE = ops_table(SECOND_FILE_OPS)
_HAS_RESULT = ops_table(_RESULT_OPS)


class Ids:
    """A map from a log's file ids to the run's file numbers."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, process: int) -> None:
        rows = connection.execute(
            "SELECT id, file FROM ids WHERE process = ? ORDER BY id", [process]
        ).fetchnumpy()
        self.ids: Array = np.append(rows["id"].astype(np.uint32), np.uint32(0))
        self.numbers: Array = np.append(rows["file"].astype(np.int32), np.int32(-1))
        self.table: Array | None = None
        limit = int(self.ids.max()) + 1
        # Ids count up from 1, so a plain table is enough; a damaged log may have any number.
        if limit <= 4 * len(self.ids) + 1024:
            self.table = np.full(limit + 1, -1, np.int32)
            self.table[self.ids[:-1]] = self.numbers[:-1]
            self.table[0] = -1

    def files(self, ids: Array) -> Array:
        """Return the run's file numbers of a log's ids, -1 for ids without a text."""
        if self.table is not None:
            numbers: Array = self.table[np.minimum(ids, len(self.table) - 1)]
            return numbers
        at = np.minimum(np.searchsorted(self.ids[:-1], ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, self.numbers[at], -1)


class Images:
    """A map from process images in a file of page faults to recorded processes and threads."""

    def __init__(self, faults: Faults, sources: Sequence[LogSource]) -> None:
        by_pid: dict[int, list[LogSource]] = {}
        for source in sorted(sources, key=lambda source: source.log.header.start_ns):
            by_pid.setdefault(source.log.header.pid, []).append(source)
        limit = int(faults.images["image"].max(initial=0)) + 1
        limit = min(limit, len(faults.images) + 1)  # images count up, unless damaged
        self.processes = np.full(limit + 1, -1, np.int32)  # last: unknown images
        self.sources: dict[int, LogSource] = {}
        until: dict[int, int] = {}
        end_ns = INT64_MAX if faults.state is None else int(faults.state["now_ns"])
        for image in faults.images[::-1]:
            pid, start = int(image["pid"]), int(image["start_ns"])
            images = [
                source
                for source in by_pid.get(pid, ())
                if start - CLOCK_SLACK_NS <= source.log.header.start_ns < until.get(pid, INT64_MAX)
            ]
            until[pid] = start
            if image["is_joined"]:
                # The image's log begins during the sampling, or continues from an earlier window.
                of_pid = by_pid.get(pid, ())
                before = [source for source in of_pid if source.log.header.start_ns < start]
                within = [source for source in images if source.log.header.start_ns <= end_ns]
                images = within or before[-1:]
            if images and image["image"] < limit:
                first = min(images, key=lambda source: source.log.header.start_ns)
                self.processes[image["image"]] = first.process
                self.sources[first.process] = first

    def of(self, images: Array) -> Array:
        """Return the processes of images, -1 for a process without a log."""
        return self.processes[np.minimum(images, len(self.processes) - 1)]

    def threads(self, processes: Array, tids: Array) -> Array:
        """Return the run's thread numbers, -1 for a thread without a recorded call."""
        threads = np.full(len(tids), -1, np.int32)
        for process, source in self.sources.items():
            mine = np.flatnonzero(processes == process)
            places = {thread.tid: i for i, thread in enumerate(source.log.threads)}
            for tid in np.unique(tids[mine]):
                if int(tid) in places:
                    place = source.first_thread + places[int(tid)]
                    threads[mine[tids[mine] == tid]] = place
        return threads


def _masked(values: Array, missing: Array) -> Array:
    return np.ma.masked_array(values, missing)


def _ns_of(column: Array) -> Array:
    return np.minimum(column, np.uint64(TIME_LIMIT_NS)).astype(np.int64)


def fault_columns(faults: Faults, images: Images, ids: Ids, shift_ns: int) -> dict[str, Array]:
    rows = faults.faults
    processes = images.of(rows["image"])
    threads = images.threads(processes, rows["tid"])
    files = ids.files(rows["file"])
    is_named = files >= 0  # only the recorder's own files have no number
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


def fault_count_columns(faults: Faults, images: Images, ids: Ids) -> dict[str, Array]:
    rows = faults.counts
    processes, files = images.of(rows["image"]), ids.files(rows["file"])
    sums = [name for name in STORED["fault_counts"] if name not in ("process", "file")]
    return {
        "process": _masked(processes, processes < 0),
        "file": _masked(files, files < 0),
        **{name: np.minimum(rows[name], FOLDED_MAX).astype(np.int64) for name in sums},
    }


def joined(batches: Iterable[Events]) -> Events:
    every = list(batches) or [Events.none()]
    return Events(
        *(np.concatenate([getattr(part, name) for part in every]) for name in Events.__slots__)
    )


def call_columns(
    source: LogSource, events: Events, ids: Ids, steps: ProcessSteps
) -> dict[str, Array]:
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
    # A read from a connection has no offset but names the awaited bytes of an answer.
    is_phase = (offset < -2) & (offset >= -2 - max(PHASES))
    if is_phase.any():
        result[is_phase] = -2 - offset[is_phase]
        offset[is_phase] = -1
    is_dup = events.op == OP_NUMBER["dup"]
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


def span_columns(source: LogSource, events: Events, names: dict[int, str]) -> dict[str, Array]:
    return {
        "process": np.full(len(events), source.process, np.int32),
        "thread": _threads(source, events),
        "kind": events.op,
        "name": np.array(
            [
                None if op == ACCOUNT else names.get(int(number))
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


def _threads(source: LogSource, events: Events) -> Array:
    at = np.searchsorted(source.threads, events.thread)
    return (source.first_thread + at).astype(np.int32)


def copy_columns(
    cursor: duckdb.DuckDBPyConnection, parts: list[dict[str, Array]], select: str, path: Path
) -> None:
    names = list(parts[0]) if parts else re.findall(r"\w+(?=\W?::)", select)
    columns = {
        name: np.concatenate([part.pop(name) for part in parts]) if parts else np.empty(0, np.int64)
        for name in names
    }
    cursor.register("part", columns)
    copy_out(cursor, select, path)
    cursor.unregister("part")


def _insert_wait_totals(
    connection: duckdb.DuckDBPyConnection, source: LogSource, records: Array, objects: Array
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
    insert_columns(connection, "blocked_totals", columns)


def insert_counters(
    connection: duckdb.DuckDBPyConnection, source: LogSource, objects: Callable[[Array], Array]
) -> int:
    """Insert folded counters; return how many folded events are no calls.

    Waits and accounts of calls are no calls.  objects: maps the log's ids of waiting objects to the
    run's numbers.
    """
    ids = Ids(connection, source.process)
    log, shift_ns = source.log, source.shift_ns
    no_calls = 0
    for every in log.counters():
        is_wait = waits.IS_WAIT[every["op"].astype(np.uint8)]
        no_calls += int(every["calls"][is_wait | (every["op"] == ACCOUNT)].sum())
        if is_wait.any():
            waited = every[is_wait]
            _insert_wait_totals(connection, source, waited, objects(waited["file"]))
        records = every[~is_wait & (every["op"] != ACCOUNT)]
        n = len(records)
        if not n:
            continue
        fields = records.dtype.names or ()
        moves = MOVES_BYTES[records["op"].astype(np.uint8)]
        is_access = "buckets" in fields
        columns = {
            "process": np.full(n, source.process, np.int32),
            "file": ids.files(records["file"]),
            "op_number": records["op"].astype(np.uint8),
            "first_ns": log.to_ns(records["first"], source.ns_per_tick) + shift_ns,
            "last_ns": log.to_ns(records["last"], source.ns_per_tick) + shift_ns,
            **{
                name: records[field] if is_access else np.full(n, -1)
                for name, field in FOLDED_PLACES.items()
            },
        }
        for name, field in FOLDED_FIELDS.items():
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
    return no_calls


_OF_ACCESS = ("moved", "sequential", "consecutive", "switches", "unaligned", "empty")


def _pairs(name: str) -> str:
    pairs = ", ".join(f"{{'value': {name}_{i}_value, 'calls': {name}_{i}_calls}}" for i in range(4))
    return f"list_filter([{pairs}], lambda pair: pair.calls > 0) AS {name}"


_FOLDED_SELECT = f"""
    SELECT process, nullif(file, -1) AS file, op_number, first_ns, last_ns,
        {", ".join(f"nullif({name}, -1) AS {name}" for name in FOLDED_PLACES)},
        {", ".join(FOLDED_FIELDS)},
        {", ".join(f"bucket_{i}" for i in range(10))}, {_pairs("sizes")}, {_pairs("strides")}
    FROM counters_part"""

CALLS_SELECT = """
    SELECT process::INTEGER AS process, thread::INTEGER AS thread, op_number::UTINYINT AS op_number,
        errno::SMALLINT AS errno, nullif(file::INTEGER, -1) AS file,
        nullif(other_file::INTEGER, -1) AS other_file, start_ns::BIGINT AS start_ns,
        nullif(duration_ns::BIGINT, -1) AS duration_ns,
        CASE WHEN offset_bytes::BIGINT >= 0 THEN offset_bytes::BIGINT END AS offset_bytes,
        asked_bytes::BIGINT AS asked_bytes, moved_bytes::BIGINT AS moved_bytes,
        nullif("result"::BIGINT, -1) AS "result", CASE WHEN step::INTEGER >= 0 THEN step END AS step
    FROM part"""
SPANS_SELECT = f"""
    SELECT process::INTEGER AS process, thread::INTEGER AS thread,
        CASE kind::INTEGER {" ".join(f"WHEN {n} THEN '{kind}'" for n, kind in _APP_KINDS.items())}
            ELSE 'span' END AS kind,
        name::VARCHAR AS name, nullif("index"::BIGINT, -1) AS "index", a::BIGINT AS a,
        b::BIGINT AS b, start_ns::BIGINT AS start_ns, nullif(duration_ns::BIGINT, -1) AS duration_ns
    FROM part"""
