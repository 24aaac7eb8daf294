"""Measures of a run's events.  Knows no file, no byte position, no screen, and judges nothing.

Each number has a single definition, a query in queries/.  The module runs the queries in order and
turns the rows into values.  Times are seconds, sizes bytes, shares fractions of 1.
"""

from operator import attrgetter
from typing import Any, Protocol, TypeVar

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
    RequestLatency,
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
    FetchLine,
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
from penstock.explain.questions import Answers, Engine

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
    "FetchLine",
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
    "RequestLatency",
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


def measure(run: Tables) -> Measures:
    """Run the queries over a run's tables.  Raises QueryError, naming the failed query."""
    with run.connection.cursor() as engine:  # prepared tables end with the cursor
        return _measured(Answers(engine))


def _measured(answers: Answers) -> Measures:
    parts = answers.rows("data_wait")
    job, ranks = _row(answers, "job", Job), _rows(answers, "ranks", Rank)
    return Measures(
        program=next(iter(_rows(answers, "program", Program)), None),
        training=_row(answers, "training", Training),
        recording=_row(answers, "recording", Recording),
        wait_parts={row["part"]: row["s"] for row in parts if row["in_wall"]},
        first_batch_parts={row["part"]: row["s"] for row in parts if not row["in_wall"]},
        checkpoint_parts=_seconds(answers, "checkpoint_block", "part"),
        data_blocking=_seconds(answers, "data_blocking", "op_group"),
        operations=_rows(answers, "operations", Operation),
        classes=_rows(answers, "classes", ClassTotal),
        directories=_rows(answers, "directories", DirectoryTotal),
        files=_rows(answers, "largest_files", FileTotal),
        reading=_row(answers, "reading", Reading),
        request_sizes=_rows(answers, "request_sizes", HistogramBin),
        latencies=_rows(answers, "latencies", HistogramBin),
        file_sizes=_rows(answers, "file_sizes", HistogramBin),
        bandwidth=_rows(answers, "bandwidth", Bandwidth),
        step_times=_rows(answers, "step_times", StepTimes),
        lanes=tuple(sorted(_rows(answers, "lane_list", Lane), key=attrgetter("lane"))),
        lane_cells=_rows(answers, "lanes", LaneCell),
        epochs=_rows(answers, "epochs", Epoch),
        checkpoints=_rows(answers, "checkpoints", RecordedCheckpoint),
        processes=_rows(answers, "process_list", ProcessRow),
        blind_spots=_rows(answers, "blind_spots", BlindSpot),
        in_flight=_rows(answers, "in_flight", InFlight),
        call_times=_row(answers, "call_times", CallTimes),
        metadata=_row(answers, "metadata", MetadataCalls),
        blocking_reads=_row(answers, "blocking_reads", BlockingReads),
        pattern=_row(answers, "patterns", Pattern),
        page_faults=_row(answers, "page_faults", PageFaults),
        concurrency=_rows(answers, "concurrency", Concurrency),
        drift=_rows(answers, "read_drift", Drift),
        workers=_rows(answers, "workers", Worker),
        ranks=ranks,
        restores=_rows(answers, "restores", Restore),
        machine=_row(answers, "machine", Machine),
        flash=_rows(answers, "flash", Flash),
        storage=_rows(answers, "storage", Storage),
        ceilings=_rows(answers, "ceilings", TierCeiling),
        pauses=_rows(answers, "paused", Pause),
        staged=_rows(answers, "staged", Staged),
        filling=_rows(answers, "filling", Filling),
        fault_files=_rows(answers, "fault_files", FaultFile),
        faults=_row(answers, "fault_totals", FaultTotals),
        devices=_row(answers, "devices", Devices),
        idle_waiting=_row(answers, "idle_waiting", IdleWaiting),
        system_rates=_rows(answers, "system_rates", SystemRate),
        burst=_rows(answers, "burst", BurstTier),
        checkpointers=_rows(answers, "checkpointers", CheckpointerLife),
        tiered_saves=_rows(answers, "tiered_saves", TieredSave),
        job=job,
        coupling=_coupling(answers),
        clocks=_rows(answers, "clocks", ClockOfHost),
        # A single rank has nothing to compare, and the following queries each read all calls.
        rank_cells=_rows(answers, "rank_heat", RankCell) if len(ranks) > 1 else (),
        sharing=_rows(answers, "sharing", Sharing) if job.ranks > 1 else (),
        worker_sharing=_rows(answers, "worker_sharing", WorkerSharing),
        cpu_unknown=_row(answers, "cpu_unknown", CpuUnknown),
        rereads=_rows(answers, "rereads", Reread),
        fetch_lines=_rows(answers, "fetch_lines", FetchLine),
        loaders=tuple(row["loader"] for row in answers.rows("loaders")),
        standing=_seconds(answers, "standing", "what"),
        **_of_network(answers),
        **_of_memory(answers),
        **_of_startup(answers),
        **_of_failures(answers),
    )


def _coupling(answers: Answers) -> Coupling:
    """Return how ranks wait for each other.  The column `shift` is for other queries."""
    (row,) = answers.rows("coupling")
    return Coupling(**{name: value for name, value in row.items() if name != "shift"})


def _of_memory(answers: Answers) -> dict[str, Any]:
    """Return the measures of data in memory, before, after and ahead of the program."""
    return {
        "residency": _rows(answers, "residency", Residency),
        "ahead": _rows(answers, "ahead", AheadFile),
    }


def _of_startup(answers: Answers) -> dict[str, Any]:
    """Return the measures of the time before the training."""
    return {
        "startup_parts": _seconds(answers, "startup_parts", "part"),
        "startup_places": _rows(answers, "startup_places", StartupPlace),
        "startup_imports": _rows(answers, "startup_imports", StartupImport),
        "worker_starts": _row(answers, "worker_starts", WorkerStarts),
    }


def _of_network(answers: Answers) -> dict[str, Any]:
    """Return the measures of connections and requests."""
    parts = _rows(answers, "network_parts", NetworkPart)
    return {
        "network": tuple(part for part in parts if part.in_wall),
        "first_batch_network": tuple(part for part in parts if not part.in_wall),
        "endpoints": _rows(answers, "endpoints", Endpoint),
        "remote_requests": _rows(answers, "remote_requests", RemoteRequests),
        "request_latencies": _rows(answers, "request_latencies", RequestLatency),
        "endpoint_ceilings": _rows(answers, "endpoint_ceilings", EndpointCeiling),
        "endpoint_requests": _rows(answers, "endpoint_requests", EndpointRequests),
    }


def _of_failures(answers: Answers) -> dict[str, Any]:
    """Return the ends of processes, failed calls and saves, and waits that do not end."""
    return {
        "endings": _rows(answers, "endings", Ending),
        "deaths": _rows(answers, "deaths", Death),
        "failures": _rows(answers, "failures", Failure),
        "expected_failures": _rows(answers, "expected_failures", ExpectedFailure),
        "last_failures": _rows(answers, "last_failures", LastFailure),
        "late_failures": _rows(answers, "late_failures", LateFailure),
        "doing": _rows(answers, "doing", Doing),
        "hung": _rows(answers, "hung", Standing),
        "still": tuple(str(row["said"]) for row in answers.rows("still")),
    }


Row = TypeVar("Row")


def _row(answers: Answers, name: str, row: type[Row]) -> Row:
    (only,) = _rows(answers, name, row)
    return only


def _rows(answers: Answers, name: str, row: type[Row]) -> tuple[Row, ...]:
    """Return the rows of a query as values: a column becomes the field with the column's name."""
    return tuple(row(**columns) for columns in answers.rows(name))


def _seconds(answers: Answers, name: str, key: str) -> dict[str, Any]:
    """Return the column `s` of a query by the column `key`."""
    return {row[key]: row["s"] for row in answers.rows(name)}
