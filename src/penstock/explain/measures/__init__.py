"""Measures of a run's events.  Knows no file, no byte position, no screen, and judges nothing.

Each number has a single definition, a query in queries/; here the queries run in order and their
rows become values.  Times are seconds, sizes bytes, shares fractions of 1.
"""

from typing import Any, Protocol, TypeVar

import duckdb

from penstock.errors import QueryError
from penstock.explain.measures.calls import (
    Bandwidth,
    BlockingReads,
    CallTimes,
    ClassTotal,
    Concurrency,
    DirectoryTotal,
    Drift,
    FaultFile,
    FaultTotals,
    FileTotal,
    HistogramBin,
    MetadataCalls,
    Operation,
    PageFaults,
    Pattern,
    Reading,
    Reread,
    Sharing,
    WorkerSharing,
)
from penstock.explain.measures.machine import (
    AheadFile,
    Devices,
    Flash,
    Machine,
    Residency,
    Storage,
    SystemRate,
    TierCeiling,
)
from penstock.explain.measures.network import (
    Endpoint,
    EndpointCeiling,
    EndpointRequests,
    NetworkPart,
    RemoteRequests,
)
from penstock.explain.measures.number import PARTS, STORAGE_PARTS, Number, State
from penstock.explain.measures.recording import (
    BlindSpot,
    Death,
    Doing,
    Ending,
    ExpectedFailure,
    Failure,
    InFlight,
    LastFailure,
    LateFailure,
    Pause,
    ProcessRow,
    Recording,
    Standing,
)
from penstock.explain.measures.saves import (
    BurstTier,
    CheckpointerLife,
    Filling,
    RecordedCheckpoint,
    Restore,
    Staged,
    TieredSave,
)
from penstock.explain.measures.training import (
    ClockOfHost,
    Coupling,
    CpuUnknown,
    Epoch,
    IdleWaiting,
    Job,
    Lane,
    LaneCell,
    Program,
    Rank,
    RankCell,
    StartupImport,
    StartupPlace,
    StepTimes,
    Training,
    Worker,
    WorkerStarts,
)
from penstock.explain.measures.whole import Measures
from penstock.explain.questions import Engine, prepare, query

__all__ = [
    "PARTS",
    "STORAGE_PARTS",
    "AheadFile",
    "Bandwidth",
    "BlindSpot",
    "BlockingReads",
    "BurstTier",
    "CallTimes",
    "CheckpointerLife",
    "ClassTotal",
    "ClockOfHost",
    "Concurrency",
    "Coupling",
    "CpuUnknown",
    "Death",
    "Devices",
    "DirectoryTotal",
    "Doing",
    "Drift",
    "Ending",
    "Endpoint",
    "EndpointCeiling",
    "EndpointRequests",
    "Epoch",
    "ExpectedFailure",
    "Failure",
    "FaultFile",
    "FaultTotals",
    "FileTotal",
    "Filling",
    "Flash",
    "HistogramBin",
    "IdleWaiting",
    "InFlight",
    "Job",
    "Lane",
    "LaneCell",
    "LastFailure",
    "LateFailure",
    "Machine",
    "Measures",
    "MetadataCalls",
    "NetworkPart",
    "Number",
    "Operation",
    "PageFaults",
    "Pattern",
    "Pause",
    "ProcessRow",
    "Program",
    "Rank",
    "RankCell",
    "Reading",
    "RecordedCheckpoint",
    "Recording",
    "RemoteRequests",
    "Reread",
    "Residency",
    "Restore",
    "Sharing",
    "Staged",
    "Standing",
    "StartupImport",
    "StartupPlace",
    "State",
    "StepTimes",
    "Storage",
    "SystemRate",
    "Tables",
    "TierCeiling",
    "TieredSave",
    "Training",
    "Worker",
    "WorkerSharing",
    "WorkerStarts",
    "measure",
]


class Tables(Protocol):
    """The part of a run needed for measuring: a connection with schema.TABLES and `ops`."""

    @property
    def connection(self) -> Engine: ...


LANES = "SELECT * FROM lane_list ORDER BY lane"


def measure(run: Tables) -> Measures:
    """Run the queries over a run's tables.  Raises QueryError, naming the failed query."""
    with run.connection.cursor() as engine:  # prepared tables end with the cursor
        return _measured(engine)


def _measured(engine: Engine) -> Measures:
    prepare(engine)
    parts = _dicts(engine, "data_wait")
    job, ranks = _row(engine, "job", Job), _rows(engine, "ranks", Rank)
    return Measures(
        program=next(iter(_rows(engine, "program", Program)), None),
        training=_row(engine, "training", Training),
        recording=_row(engine, "recording", Recording),
        wait_parts={row["part"]: row["s"] for row in parts if row["in_wall"]},
        first_batch_parts={row["part"]: row["s"] for row in parts if not row["in_wall"]},
        checkpoint_parts=_seconds(engine, "checkpoint_block", "part"),
        data_blocking=_seconds(engine, "data_blocking", "op_group"),
        operations=_rows(engine, "operations", Operation),
        classes=_rows(engine, "classes", ClassTotal),
        directories=_rows(engine, "directories", DirectoryTotal),
        files=_rows(engine, "largest_files", FileTotal),
        reading=_row(engine, "reading", Reading),
        request_sizes=_rows(engine, "request_sizes", HistogramBin),
        latencies=_rows(engine, "latencies", HistogramBin),
        file_sizes=_rows(engine, "file_sizes", HistogramBin),
        bandwidth=_rows(engine, "bandwidth", Bandwidth),
        step_times=_rows(engine, "step_times", StepTimes),
        lanes=tuple(Lane(**row) for row in _answer(engine, LANES)),
        lane_cells=_rows(engine, "lanes", LaneCell),
        epochs=_rows(engine, "epochs", Epoch),
        checkpoints=_rows(engine, "checkpoints", RecordedCheckpoint),
        processes=_rows(engine, "process_list", ProcessRow),
        blind_spots=_rows(engine, "blind_spots", BlindSpot),
        in_flight=_rows(engine, "in_flight", InFlight),
        call_times=_row(engine, "call_times", CallTimes),
        metadata=_row(engine, "metadata", MetadataCalls),
        blocking_reads=_row(engine, "blocking_reads", BlockingReads),
        pattern=_row(engine, "patterns", Pattern),
        page_faults=_row(engine, "page_faults", PageFaults),
        concurrency=_rows(engine, "concurrency", Concurrency),
        drift=_rows(engine, "read_drift", Drift),
        workers=_rows(engine, "workers", Worker),
        ranks=ranks,
        restores=_rows(engine, "restores", Restore),
        machine=_row(engine, "machine", Machine),
        flash=_rows(engine, "flash", Flash),
        storage=_rows(engine, "storage", Storage),
        ceilings=_rows(engine, "ceilings", TierCeiling),
        pauses=_rows(engine, "paused", Pause),
        staged=_rows(engine, "staged", Staged),
        filling=_rows(engine, "filling", Filling),
        fault_files=_rows(engine, "fault_files", FaultFile),
        faults=_row(engine, "fault_totals", FaultTotals),
        devices=_row(engine, "devices", Devices),
        idle_waiting=_row(engine, "idle_waiting", IdleWaiting),
        system_rates=_rows(engine, "system_rates", SystemRate),
        burst=_rows(engine, "burst", BurstTier),
        checkpointers=_rows(engine, "checkpointers", CheckpointerLife),
        tiered_saves=_rows(engine, "tiered_saves", TieredSave),
        job=job,
        coupling=_row(engine, "coupling", Coupling),
        clocks=_rows(engine, "clocks", ClockOfHost),
        # A single rank has nothing to compare, and each of these queries reads all calls.
        rank_cells=_rows(engine, "rank_heat", RankCell) if len(ranks) > 1 else (),
        sharing=_rows(engine, "sharing", Sharing) if job.ranks > 1 else (),
        worker_sharing=_rows(engine, "worker_sharing", WorkerSharing),
        cpu_unknown=_row(engine, "cpu_unknown", CpuUnknown),
        rereads=_rows(engine, "rereads", Reread),
        loaders=tuple(row["loader"] for row in _dicts(engine, "loaders")),
        standing=_seconds(engine, "standing", "what"),
        **_of_network(engine),
        **_of_memory(engine),
        **_of_startup(engine),
        **_of_failures(engine),
    )


def _of_memory(engine: Engine) -> dict[str, Any]:
    """Return the measures of data in memory, before, after and ahead of the program."""
    return {
        "residency": _rows(engine, "residency", Residency),
        "ahead": _rows(engine, "ahead", AheadFile),
    }


def _of_startup(engine: Engine) -> dict[str, Any]:
    """Return the measures of the time before the training."""
    return {
        "startup_parts": _seconds(engine, "startup_parts", "part"),
        "startup_places": _rows(engine, "startup_places", StartupPlace),
        "startup_imports": _rows(engine, "startup_imports", StartupImport),
        "worker_starts": _row(engine, "worker_starts", WorkerStarts),
    }


def _of_network(engine: Engine) -> dict[str, Any]:
    """Return the measures of connections and requests."""
    return {
        "network": _rows(engine, "network_parts", NetworkPart),
        "endpoints": _rows(engine, "endpoints", Endpoint),
        "remote_requests": _rows(engine, "remote_requests", RemoteRequests),
        "endpoint_ceilings": _rows(engine, "endpoint_ceilings", EndpointCeiling),
        "endpoint_requests": _rows(engine, "endpoint_requests", EndpointRequests),
    }


def _of_failures(engine: Engine) -> dict[str, Any]:
    """Return the ends of processes, failed calls and saves, and waits that do not end."""
    return {
        "endings": _rows(engine, "endings", Ending),
        "deaths": _rows(engine, "deaths", Death),
        "failures": _rows(engine, "failures", Failure),
        "expected_failures": _rows(engine, "expected_failures", ExpectedFailure),
        "last_failures": _rows(engine, "last_failures", LastFailure),
        "late_failures": _rows(engine, "late_failures", LateFailure),
        "doing": _rows(engine, "doing", Doing),
        "hung": _rows(engine, "hung", Standing),
        "still": tuple(str(row["said"]) for row in _dicts(engine, "still")),
    }


Row = TypeVar("Row")


def _row(engine: Engine, name: str, row: type[Row]) -> Row:
    (only,) = _rows(engine, name, row)
    return only


def _rows(engine: Engine, name: str, row: type[Row]) -> tuple[Row, ...]:
    """Return the rows of a query as values: a column becomes the field of its name."""
    return tuple(row(**columns) for columns in _dicts(engine, name))


def _seconds(engine: Engine, name: str, key: str) -> dict[str, Any]:
    """Return the column `s` of a query by its column `key`."""
    return {row[key]: row["s"] for row in _dicts(engine, name)}


def _dicts(engine: Engine, name: str) -> list[dict[str, Any]]:
    """Return the rows of a query, each by column name.  Raises QueryError, naming the query."""
    try:
        return _answer(engine, query(name))
    except (duckdb.Error, QueryError) as error:
        raise QueryError(f"queries/{name}.sql: {error}") from error


def _answer(engine: Engine, text: str) -> list[dict[str, Any]]:
    answer = engine.execute(text)
    names = [column[0] for column in answer.description]
    return [dict(zip(names, values, strict=True)) for values in answer.fetchall()]
