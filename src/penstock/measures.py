"""Events in, measures out.  Knows no file, no byte position, no screen, and judges nothing.

Each number's only definition is a query beside this file, in queries/; here they are run in order
and their rows become values.  Times are seconds, sizes bytes, shares fractions of one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

import duckdb

from penstock.errors import QueryError
from penstock.questions import Engine, prepare, query

__all__ = [
    "PARTS",
    "STORAGE_PARTS",
    "Bandwidth",
    "BlindSpot",
    "BlockingReads",
    "CallTimes",
    "Checkpoint",
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
    "Epoch",
    "ExpectedFailure",
    "Failure",
    "FaultFile",
    "FaultTotals",
    "FileTotal",
    "Flash",
    "HistogramBin",
    "InFlight",
    "Job",
    "Lane",
    "LaneCell",
    "LastFailure",
    "LateFailure",
    "Machine",
    "Measures",
    "MetadataCalls",
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
    "Recording",
    "Reread",
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
    "Training",
    "Worker",
    "WorkerSharing",
    "WorkerStarts",
    "measure",
]

State = Literal["measured", "derived", "not measured", "incomplete"]

# What a data wait is attributed to, in the order it is told; storage first.  wait_parts.sql defines
# each.
PARTS = (
    "read",
    "write",
    "metadata",
    "page fault",
    "cpu",
    "cached",
    "not scheduled",
    "blocked",
    "network",
    "idle",
    "loader start",
    "worker start",
    "pass end",
    "hand-over",
    "not observed",
)
STORAGE_PARTS = ("read", "write", "metadata", "page fault")

# Of the wall time.  Less in steps without a known loader is a first or last step, and changes the
# stall by less than a finding has to be worth.
UNSURE_SHARE = 0.02


class Tables(Protocol):
    """What measuring needs of a run: a connection that sees schema.TABLES and `ops`."""

    @property
    def connection(self) -> Engine: ...


@dataclass(frozen=True, slots=True)
class Number:
    """A value with its unit ("s", "B", "B/s", "share", "count") and where it comes from.

    The value of a number that was not measured is None, never zero; why says what is missing.
    """

    value: float | None
    unit: str
    state: State = "measured"
    why: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """queries/program.sql"""

    command: str
    executable: str
    folder: str
    host: str
    is_main: bool


@dataclass(frozen=True, slots=True)
class Training:
    """queries/training.sql; means over main processes, None where there is no main process."""

    mains: int
    steps: int
    startup_s: float | None
    first_batch_s: float | None
    wall_s: float | None
    after_s: float | None
    data_wait_s: float | None
    waits: int
    pooled_waits: int
    checkpoint_block_s: float | None
    training_calls_s: float | None
    unfed_steps: int = 0
    unfed_s: float | None = None
    mean_stall_s: float | None = None
    most_stall_s: float | None = None
    maybe_s: float | None = None
    hidden_s: float | None = None
    inferred_waits: int = 0


@dataclass(frozen=True, slots=True)
class Operation:
    """queries/operations.sql"""

    layer: str
    op: str
    calls: int
    errors: int | None
    asked_bytes: int | None
    moved_bytes: int
    time_s: float | None
    mean_s: float | None
    p50_s: float | None
    p99_s: float | None
    max_s: float | None


@dataclass(frozen=True, slots=True)
class ClassTotal:
    """queries/classes.sql"""

    path_class: str
    layer: str
    files: int
    calls: int
    read_bytes: int
    written_bytes: int
    read_s: float
    write_s: float
    metadata_s: float


@dataclass(frozen=True, slots=True)
class DirectoryTotal:
    """queries/directories.sql"""

    path: str
    path_class: str
    layer: str
    folders: int
    files: int
    calls: int
    read_bytes: int
    written_bytes: int
    time_s: float
    blocking_s: float
    all_directories: int


@dataclass(frozen=True, slots=True)
class FileTotal:
    """queries/largest_files.sql; path is None in the row that stands for the others."""

    path: str | None
    path_class: str | None
    layer: str
    files: int
    size_bytes: int | None
    opens: int
    calls: int
    read_bytes: int
    written_bytes: int
    read_times: float | None
    time_s: float
    blocking_s: float
    all_files: int


@dataclass(frozen=True, slots=True)
class Reading:
    """queries/reading.sql"""

    files: int
    size_bytes: int
    read_bytes: int
    reads: int
    empty_reads: int | None
    opens: int
    metadata: int
    metadata_s: float
    reread_files: int
    reread_bytes: int
    file_bytes_p50: float | None


@dataclass(frozen=True, slots=True)
class Reread:
    """queries/rereads.sql"""

    path: str | None
    size_bytes: int
    process: int
    passes: int
    times: float
    opens: int
    read_bytes: int
    mean_bytes: float
    blocking_s: float


@dataclass(frozen=True, slots=True)
class HistogramBin:
    """2^exponent <= size < 2^(exponent + 1); request_sizes.sql, latencies.sql, file_sizes.sql"""

    layer: str
    op_group: str
    exponent: int
    n: int


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """queries/bandwidth.sql"""

    layer: str
    op_group: str
    path_class: str
    bin: int
    bin_s: float
    moved_bytes: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """queries/step_times.sql"""

    first_step: int
    steps: int
    step_s: float
    data_wait_s: float
    checkpoint_s: float
    max_step_s: float
    start_s: float
    end_s: float
    unfed_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Lane:
    """queries/lane_list.sql; role is main, worker or other."""

    lane: int
    process: int
    thread: int
    role: str
    worker: int | None
    loader: int | None
    nth: int
    rank: int | None
    pid: int | None
    tid: int | None
    name: str | None
    is_main_thread: bool
    processes: int
    all_lanes: int


@dataclass(frozen=True, slots=True)
class LaneCell:
    """queries/lanes.sql"""

    lane: int
    bin: int
    bin_s: float
    moved_bytes: float
    calls: int
    call_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Epoch:
    """queries/epochs.sql"""

    epoch: int
    start_s: float
    duration_s: float
    workers: int | None
    batch_size: int | None
    batches: int
    data_wait_s: float
    first_wait_s: float | None
    read_bytes: int | None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """queries/checkpoints.sql"""

    save: int
    process: int
    start_s: float
    duration_s: float
    blocks: bool
    is_finished: bool
    written_bytes: int
    files: int
    call_s: float
    sync_s: float
    path: str | None
    outcome: str | None = None
    errno: int | None = None

    @property
    def is_good(self) -> bool:
        """It may count as a checkpoint: it ended, and in no exception."""
        return self.outcome is None

    @property
    def blocked_s(self) -> float | None:
        """Seconds the step loop stood still; None for a save that did not stop it."""
        return self.duration_s if self.blocks else None

    @property
    def background_s(self) -> float | None:
        """Seconds of a save that did not stop the step loop."""
        return None if self.blocks else self.duration_s

    @property
    def bandwidth_bps(self) -> float | None:
        """Bytes written per second of the whole span."""
        return self.written_bytes / self.duration_s if self.duration_s else None


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """queries/process_list.sql; role is main, worker, other or not recorded."""

    pid: int | None
    host: str | None
    rank: int | None
    role: str
    worker: int | None
    command: str
    state: str
    reason: str
    life_s: float | None
    calls: int | None
    time_s: float | None


@dataclass(frozen=True, slots=True)
class Recording:
    """queries/recording.sql"""

    processes: int
    hosts: int
    workers: int
    life_s: float | None
    calls: int
    folded: int
    lost: int
    unseen_calls: int
    torn: int
    damaged_units: int
    running: int
    failed: int
    killed: int
    killed_seen: int
    killed_mains: int
    later_mains: int
    unknown_ends: int
    unseen_programs: int
    nameless_spans: int
    mapped_files: int
    mapped_bytes: int
    in_flight: int
    attach_s: float | None
    slots: int | None
    event_cost_ns: float | None
    fetches_without_delay: int
    counters_only: str | None
    imported_lacks: str | None
    has_events: bool
    unread: int = 0
    orphans: int = 0


@dataclass(frozen=True, slots=True)
class Staged:
    """queries/staged.sql"""

    tier: str | None
    outcome: str
    opens: int
    files: int | None
    read_bytes: int | None
    time_s: float | None


@dataclass(frozen=True, slots=True)
class Filling:
    """queries/filling.sql"""

    filling: str
    seconds: float
    copied_bytes: int | None
    reads: int
    mean_read_s: float | None
    slower: float | None
    slower_error: float | None
    wait_share: float | None
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class BurstTier:
    """queries/burst.sql"""

    tier: str
    files: int
    written_bytes: int
    time_s: float
    drained: int
    drained_bytes: int
    durable_mean_s: float | None
    durable_max_s: float | None
    left_files: int | None
    left_bytes: int | None
    at_risk_s: float | None
    paused_s: float | None


@dataclass(frozen=True, slots=True)
class CheckpointerLife:
    """queries/checkpointers.sql"""

    process: int
    fast: str
    slow: str | None
    saves: int
    good: int
    blocked_s: float
    lost_s: float | None
    costed: int
    durable_mean_s: float | None
    durable_max_s: float | None
    backlog: int
    risk_s: float | None
    end_risk_s: float | None


@dataclass(frozen=True, slots=True)
class TieredSave:
    """queries/tiered_saves.sql"""

    process: int
    step: int | None
    outcome: str
    mode: str | None
    size_bytes: int | None
    blocked_s: float | None
    waited_s: float | None
    lost_s: float | None
    lost_to_durable_s: float | None
    local_s: float | None
    durable_s: float | None
    backlog: int
    risk_s: float | None


@dataclass(frozen=True, slots=True)
class Pause:
    """queries/paused.sql"""

    process: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class BlindSpot:
    """queries/blind_spots.sql"""

    key: str
    value: str
    processes: int


@dataclass(frozen=True, slots=True)
class InFlight:
    """queries/in_flight.sql"""

    op: str
    path: str | None
    role: str
    pid: int | None
    s: float


@dataclass(frozen=True, slots=True)
class Ending:
    """queries/endings.sql"""

    status: int
    programs: int
    ranks: str | None


@dataclass(frozen=True, slots=True)
class Death:
    """queries/deaths.sql"""

    process: int
    pid: int | None
    host: str | None
    role: str
    worker: int | None
    rank: int | None
    is_rank: bool
    is_program: bool
    state: str
    status: int | None
    is_sent: bool
    end_s: float
    is_seen: bool
    rss_bytes: int | None
    peak_bytes: int | None
    shm_used_bytes: int | None
    shm_bytes: int | None
    available_bytes: int | None
    oom_kills: int


@dataclass(frozen=True, slots=True)
class Doing:
    """queries/doing.sql"""

    process: int
    pid: int
    role: str
    worker: int | None
    rank: int | None
    main: int
    is_first: bool
    takes_steps: bool
    state: str
    cpu: float
    still_s: float | None
    call: str | None
    name: str | None
    path: str | None


@dataclass(frozen=True, slots=True)
class Standing:
    """queries/hung.sql"""

    process: int
    pid: int
    rank: int | None
    is_running: bool
    doing: str | None
    number: int | None
    path: str | None
    open_s: float | None
    longest_s: float
    quiet_s: float | None
    calls: int


@dataclass(frozen=True, slots=True)
class Failure:
    """queries/failures.sql"""

    op: str
    errno: int
    path: str | None
    path_class: str
    calls: int
    first_s: float
    last_s: float
    processes: int
    role: str
    worker: int | None
    rank: int | None
    pid: int | None


@dataclass(frozen=True, slots=True)
class ExpectedFailure:
    """queries/expected_failures.sql"""

    errno: int
    calls: int


@dataclass(frozen=True, slots=True)
class LastFailure:
    """queries/last_failures.sql"""

    process: int
    op: str
    errno: int
    path: str | None
    before_s: float


@dataclass(frozen=True, slots=True)
class LateFailure:
    """queries/late_failures.sql"""

    process: int
    start_s: float
    errno: int | None


@dataclass(frozen=True, slots=True)
class CallTimes:
    """queries/call_times.sql"""

    processes: int
    read_s: float
    write_s: float
    metadata_s: float
    reads: int
    empty_reads: int | None
    read_bytes: int
    opens: int
    metadata: int
    blocked_files: int
    blocked_opens: int
    blocked_s: float


@dataclass(frozen=True, slots=True)
class MetadataCalls:
    """queries/metadata.sql"""

    calls: int
    opens: int
    failed: int
    files: int
    time_s: float
    blocked_files: int
    blocked_opens: int
    blocked_s: float


@dataclass(frozen=True, slots=True)
class BlockingReads:
    """queries/blocking_reads.sql"""

    calls: int
    read_bytes: int
    files: int
    blocking_s: float
    empty_s: float
    small_s: float
    small_calls: int
    slow_calls: int
    tail_s: float
    tail_bytes: int | None
    tail_p50_s: float | None
    tail_p99_s: float | None
    reads: int
    p50_s: float | None
    p99_s: float | None
    small_all_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Pattern:
    """queries/patterns.sql"""

    files: int
    nth: int
    reads: int
    random: int
    random_bytes: int
    random_s: float
    blocking_s: float
    random_blocking_s: float
    path: str | None = None


@dataclass(frozen=True, slots=True)
class PageFaults:
    """queries/page_faults.sql"""

    fetches: int
    faulted: int
    faults: int
    blocked_s: float


@dataclass(frozen=True, slots=True)
class FaultFile:
    """queries/fault_files.sql"""

    path: str | None
    path_class: str | None
    size_bytes: int | None
    major: int
    minor: int
    waited: int
    waited_s: float
    mapped_s: float
    max_s: float
    blocking_s: float
    all_files: int


@dataclass(frozen=True, slots=True)
class FaultTotals:
    """queries/fault_totals.sql"""

    state: str | None
    lost: int
    is_user_only: bool
    cut: str | None
    major: int
    minor: int
    waited: int
    waited_s: float
    blocking_s: float
    memory: int

    @property
    def is_measured(self) -> bool:
        """Page faults were sampled, with the file of each."""
        return self.state == "measured"

    @property
    def quality(self) -> tuple[State, str]:
        """State and reason of numbers that come from them."""
        if not self.is_measured:
            return "not measured", self.state or "nobody sampled them"
        lacks = [f"{self.lost:,} were lost"] if self.lost else []
        lacks += [f"single ones end early: {self.cut}"] if self.cut else []
        lacks += ["those inside system calls are not seen"] if self.is_user_only else []
        return ("incomplete", "; ".join(lacks)) if self.lost or self.cut else ("measured", "")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """queries/concurrency.sql"""

    level: int
    slots: int
    bandwidth_bps: float
    read_bytes: float


@dataclass(frozen=True, slots=True)
class Devices:
    """queries/devices.sql"""

    job_read_bytes: int | None
    job_written_bytes: int | None
    disk_read_bytes: int | None
    disk_written_bytes: int | None
    network_received_bytes: int | None
    asked_bytes: int
    faulted: int
    accelerators: int
    accelerator_busy: float | None

    @property
    def read_amplification(self) -> Number:
        """Bytes from devices / bytes asked for by calls."""
        if self.job_read_bytes is None:
            return Number(None, "x", "not measured", "only `penstock run` asks the kernel for it")
        if not self.asked_bytes:
            return Number(None, "x", "not measured", "no call read from a file")
        if self.faulted:
            why = "mapped files were read too, and what was wanted of them no call says"
            return Number(None, "x", "not measured", why)
        return Number(self.job_read_bytes / self.asked_bytes, "x", "derived")


@dataclass(frozen=True, slots=True)
class IdleWaiting:
    """queries/idle_waiting.sql"""

    accelerators: int
    wait_s: float
    idle_least_s: float | None
    idle_most_s: float | None

    @property
    def share(self) -> tuple[float, float] | None:
        """Of the data wait, in which the accelerators were idle: at least, and at most."""
        if self.idle_least_s is None or self.idle_most_s is None or not self.wait_s:
            return None
        return self.idle_least_s / self.wait_s, self.idle_most_s / self.wait_s


@dataclass(frozen=True, slots=True)
class Residency:
    """queries/residency.sql"""

    moment: Literal["before", "after"]
    hosts: int
    files: int
    size_bytes: int
    resident_bytes: int
    left_out: bool
    is_named: bool


@dataclass(frozen=True, slots=True)
class SystemRate:
    """queries/system_rates.sql"""

    what: str
    unit: str
    bin: int
    bin_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Drift:
    """queries/read_drift.sql"""

    piece: int
    piece_s: float
    steps: int
    waits_s: float
    reads: int
    read_s: float
    read_bytes: int


@dataclass(frozen=True, slots=True)
class Worker:
    """queries/workers.sql"""

    main: int
    rank: int | None
    worker: int
    team: int
    process: int
    pid: int | None
    fetches: int
    fetch_s: float
    cpu_s: float | None
    life_s: float
    first_fetch_s: float
    delay_s: float | None
    owed_s: float
    owed_fetch_s: float
    waited_s: float
    busy_s: float


@dataclass(frozen=True, slots=True)
class Rank:
    """queries/ranks.sql"""

    process: int
    rank: int | None
    host: str | None
    steps: int
    wall_s: float
    data_wait_s: float
    checkpoint_block_s: float
    barrier_s: float | None
    own_s: float
    read_bytes: int
    lost_s: float | None = None


@dataclass(frozen=True, slots=True)
class RankCell:
    """queries/rank_heat.sql"""

    row: int
    first: int
    last: int
    bin: int
    bin_s: float
    wait_s: float


@dataclass(frozen=True, slots=True)
class Coupling:
    """queries/coupling.sql"""

    mains: int = 1
    steps: int = 0
    how: Literal["one", "together", "apart", "not known"] = "one"
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """queries/job.sql"""

    size: int | None
    ranks: int
    missing: str | None
    doubled: str | None


@dataclass(frozen=True, slots=True)
class ClockOfHost:
    """queries/clocks.sql"""

    host: str
    how: str
    moved_s: float
    error_s: float | None
    spread_s: float | None
    steps: int
    apart_s: float | None


@dataclass(frozen=True, slots=True)
class Sharing:
    """queries/sharing.sql"""

    readers: int
    files: int
    size_bytes: int | None
    read_bytes: int
    node_bytes: int | None


@dataclass(frozen=True, slots=True)
class WorkerSharing:
    """queries/worker_sharing.sql"""

    workers: int | None
    passes: int | None
    files: int
    size_bytes: int
    read_bytes: int
    whole_files: int
    whole_bytes: int


@dataclass(frozen=True, slots=True)
class Restore:
    """queries/restores.sql"""

    process: int
    loads: int
    start_s: float
    duration_s: float
    faulted_s: float
    in_startup_s: float
    read_bytes: int
    path: str | None
    size_bytes: int | None
    is_failed: bool


@dataclass(frozen=True, slots=True)
class StartupPlace:
    """queries/startup_places.sql"""

    part: str
    path: str
    files: int
    calls: int
    read_bytes: int
    written_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class StartupImport:
    """queries/startup_imports.sql; importer is main or worker."""

    importer: str
    package: str
    processes: int
    import_s: float
    cpu_s: float
    calls_s: float


@dataclass(frozen=True, slots=True)
class WorkerStarts:
    """queries/worker_starts.sql"""

    workers: int
    fresh: int
    again: int
    born_s: float
    import_s: float
    setup_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """queries/machine.sql"""

    cpus: float | None
    quota_cpus: float | None
    throttled: int | None
    throttled_s: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class CpuUnknown:
    """queries/cpu_unknown.sql"""

    call_s: float
    waits: int


@dataclass(frozen=True, slots=True)
class Storage:
    """queries/storage.sql"""

    mount: str | None
    kind: str | None
    path_class: str
    files: int
    size_bytes: int
    read_bytes: int
    written_bytes: int
    read_ceiling_bps: float | None
    write_ceiling_bps: float | None
    beneath: str | None = None


@dataclass(frozen=True, slots=True)
class Flash:
    """queries/flash.sql"""

    mount: str
    device: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class TierCeiling:
    """queries/ceilings.sql"""

    mount: str
    kind: str
    op: str
    bandwidth_bps: float


@dataclass(frozen=True, slots=True)
class Measures:
    """All that is known of a run.  Parts of waits are seconds, means over main processes.

    standing: seconds of the training thread by what it waited for, in no data wait: standing.sql.
    """

    program: Program | None
    training: Training
    recording: Recording
    wait_parts: Mapping[str, float]
    first_batch_parts: Mapping[str, float]
    checkpoint_parts: Mapping[str, float]
    data_blocking: Mapping[str, float]
    operations: tuple[Operation, ...]
    classes: tuple[ClassTotal, ...]
    directories: tuple[DirectoryTotal, ...]
    files: tuple[FileTotal, ...]
    reading: Reading
    request_sizes: tuple[HistogramBin, ...]
    latencies: tuple[HistogramBin, ...]
    file_sizes: tuple[HistogramBin, ...]
    bandwidth: tuple[Bandwidth, ...]
    step_times: tuple[StepTimes, ...]
    lanes: tuple[Lane, ...]
    lane_cells: tuple[LaneCell, ...]
    epochs: tuple[Epoch, ...]
    checkpoints: tuple[Checkpoint, ...]
    processes: tuple[ProcessRow, ...]
    blind_spots: tuple[BlindSpot, ...]
    in_flight: tuple[InFlight, ...]
    call_times: CallTimes
    metadata: MetadataCalls
    blocking_reads: BlockingReads
    pattern: Pattern
    page_faults: PageFaults
    concurrency: tuple[Concurrency, ...]
    drift: tuple[Drift, ...]
    workers: tuple[Worker, ...]
    ranks: tuple[Rank, ...]
    restores: tuple[Restore, ...]
    machine: Machine
    storage: tuple[Storage, ...]
    ceilings: tuple[TierCeiling, ...]
    flash: tuple[Flash, ...] = ()
    pauses: tuple[Pause, ...] = ()
    staged: tuple[Staged, ...] = ()
    filling: tuple[Filling, ...] = ()
    fault_files: tuple[FaultFile, ...] = ()
    faults: FaultTotals = FaultTotals(None, 0, False, None, 0, 0, 0, 0.0, 0.0, 0)
    devices: Devices = Devices(None, None, None, None, None, 0, 0, 0, None)
    idle_waiting: IdleWaiting = IdleWaiting(0, 0.0, None, None)
    residency: tuple[Residency, ...] = ()
    system_rates: tuple[SystemRate, ...] = ()
    burst: tuple[BurstTier, ...] = ()
    checkpointers: tuple[CheckpointerLife, ...] = ()
    tiered_saves: tuple[TieredSave, ...] = ()
    job: Job = Job(None, 0, None, None)
    coupling: Coupling = Coupling()
    clocks: tuple[ClockOfHost, ...] = ()
    rank_cells: tuple[RankCell, ...] = ()
    sharing: tuple[Sharing, ...] = ()
    worker_sharing: tuple[WorkerSharing, ...] = ()
    endings: tuple[Ending, ...] = ()
    deaths: tuple[Death, ...] = ()
    cpu_unknown: CpuUnknown = CpuUnknown(0.0, 0)
    rereads: tuple[Reread, ...] = ()
    loaders: tuple[str, ...] = ()
    standing: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    expected_failures: tuple[ExpectedFailure, ...] = ()
    last_failures: tuple[LastFailure, ...] = ()
    late_failures: tuple[LateFailure, ...] = ()
    doing: tuple[Doing, ...] = ()
    hung: tuple[Standing, ...] = ()
    still: tuple[str, ...] = ()
    startup_parts: Mapping[str, float | None] = field(default_factory=dict)
    startup_places: tuple[StartupPlace, ...] = ()
    startup_imports: tuple[StartupImport, ...] = ()
    worker_starts: WorkerStarts = WorkerStarts(0, 0, 0, 0.0, 0.0, 0.0)

    @property
    def has_training(self) -> bool:
        """Steps or data waits were seen, and time passed between them."""
        return bool(self.training.wall_s)

    @property
    def counts_state(self) -> tuple[State, str]:
        """Of numbers that come from counters: these are exact as long as every log is whole."""
        lacks = [*filter(None, (self.missing, self._unread)), *self._lacks]
        lacks += [self.recording.imported_lacks] if self.recording.imported_lacks else []
        return ("incomplete", ", ".join(lacks)) if lacks else ("measured", "")

    @property
    def spans_state(self) -> tuple[State, str]:
        """Of steps, data waits and checkpoints: these are kept past the trace budget, but where a
        log is not whole some may be missing, or the text that says which they are."""
        lacks, nameless = self._lacks, self.recording.nameless_spans
        if self._unread and self.job.size is None:
            lacks.insert(0, self._unread)  # it may be that of a process that trains
        if nameless:
            lacks.append(f"{nameless:,} {'spans have' if nameless > 1 else 'span has'} no name")
        return ("incomplete", ", ".join(lacks)) if lacks else ("measured", "")

    @property
    def missing(self) -> str:
        """Which of the job's ranks left no log here; "" where all did, or their number is not
        known."""
        job = self.job
        if job.size is None or job.ranks >= job.size:
            return ""
        n = job.size - job.ranks
        return f"{n:,} of {job.size:,} ranks left no log here"

    @property
    def _unread(self) -> str:
        n = self.recording.unread
        return f"{n:,} {'logs' if n > 1 else 'log'} cannot be read" if n else ""

    @property
    def _lacks(self) -> list[str]:
        """Why logs are not whole."""
        known = self.recording
        return [
            f"{count:,} {what if count > 1 else one}"
            for count, what, one in (
                (known.lost, "events were lost", "event was lost"),
                (known.damaged_units, "parts of logs are damaged", "part of a log is damaged"),
                (known.torn, "logs are cut short", "log is cut short"),
                (
                    known.orphans,
                    "loader workers have a training process that left no log",
                    "loader worker has a training process that left no log",
                ),
            )
            if count
        ]

    @property
    def events_state(self) -> tuple[State, str]:
        """Of numbers that need single events: past the trace budget these thin out."""
        folded = self.recording.folded
        state, why = self.counts_state
        if self.recording.counters_only:  # an imported run: its tool kept counters
            more = self.recording.counters_only
            return (
                "incomplete" if self.recording.has_events else "not measured",
                f"{why}, {more}" if why else more,
            )
        if not folded:
            return state, why
        more = f"{folded:,} calls past the trace budget are only counted"
        return "incomplete", f"{why}, {more}" if why else more

    def wait_s(self, *parts: str) -> float:
        """Seconds of data wait attributed to these parts."""
        return sum(self.wait_parts.get(part, 0.0) for part in parts)

    def wait_share(self, *parts: str) -> float:
        """The fraction of the data wait attributed to these parts; 0 without data wait."""
        whole = self.training.data_wait_s or 0.0
        return self.wait_s(*parts) / whole if whole else 0.0

    @property
    def data_storage_s(self) -> float:
        """Data wait that storage is to blame for: file calls of the worker that owed the batch."""
        return self.wait_s(*STORAGE_PARTS)

    @property
    def checkpoint_storage_s(self) -> float:
        """Checkpoint block inside file calls."""
        return sum(self.checkpoint_parts.get(part, 0.0) for part in STORAGE_PARTS)

    @property
    def unsure_share(self) -> float:
        """Wall time that may be data wait beyond the data waits that were seen."""
        training, wall_s = self.training, self.training.wall_s
        if not wall_s:
            return 0.0
        parts = (training.unfed_s, training.maybe_s, training.hidden_s)
        return min(1.0, sum(part or 0.0 for part in parts) / wall_s)

    @property
    def unsure(self) -> str:
        """Why part of the data wait is not known; "" where all of it is."""
        training = self.training
        if self.unsure_share < UNSURE_SHARE:
            return ""
        reasons = {
            "took data from no loader that Penstock knows": training.unfed_s,
            "slept, or waited inside a computation": training.maybe_s,
            "left the training thread off the CPU in no recorded call": training.hidden_s,
        }
        what = max(reasons, key=lambda reason: reasons[reason] or 0.0)
        whose = "steps"
        if what.startswith("took") and training.unfed_steps < training.steps:
            whose = f"{training.unfed_steps:,} of {training.steps:,} steps"
        return f"{whose} {what}"

    @property
    def unjoined_share(self) -> float:
        """Wall time that main processes lose beyond the mean if they wait for each other, where it
        is not known whether they do."""
        training = self.training
        if self.coupling.how != "not known" or not training.wall_s:
            return 0.0
        most_s = min(training.most_stall_s or 0.0, training.wall_s)
        return max(0.0, most_s - (training.mean_stall_s or 0.0)) / training.wall_s

    @property
    def unjoined(self) -> str:
        """Why the mean over main processes may be too little; "" where it is not."""
        if self.unjoined_share < UNSURE_SHARE:
            return ""
        n = self.coupling.mains
        return f"whether the {n:,} main processes wait for each other in their steps is not known"

    @property
    def doubt(self) -> str:
        """Why the stall is not known to the point; "" where it is."""
        return "; ".join(filter(None, (self.unsure, self.unjoined, self.missing)))

    @property
    def missing_share(self) -> float:
        """Wall time that may be stall because of ranks that are missing: all of it where the others
        may wait for them, else their own."""
        size = self.job.size
        if not self.missing or not size:
            return 0.0
        return (size - self.job.ranks) / size if self.coupling.how == "apart" else 1.0

    @property
    def doubt_share(self) -> float:
        """Wall time that may be stall beyond the stall fraction."""
        return min(1.0, self.unsure_share + self.unjoined_share + self.missing_share)

    @property
    def mean_stall(self) -> Number:
        """The mean of the main processes' own stall fractions, whoever waits for whom."""
        return self._of_wall(self.training.mean_stall_s or 0.0, self.spans_state)

    @property
    def stall_fraction(self) -> Number:
        """(data wait + checkpoint block) / wall.  Where main processes wait for each other, of the
        one that holds up all; at least, where some of it is not known."""
        training = self.training
        stall_s = (training.data_wait_s or 0.0) + (training.checkpoint_block_s or 0.0)
        return self._at_least(self._of_wall(stall_s, self.spans_state))

    @property
    def stall_least(self) -> Number:
        """The stall fraction if no time of unknown use is stall."""
        stall, size = self.stall_fraction, self.job.size
        if stall.value is None:
            return stall
        is_mean = bool(self.missing and size and self.coupling.how != "together")
        value = stall.value * self.job.ranks / size if is_mean and size else stall.value
        return replace(stall, value=value, state="derived")

    @property
    def stall_most(self) -> Number:
        """The stall fraction if all time of unknown use is data wait."""
        stall = self.stall_fraction
        if stall.value is None:
            return stall
        return replace(stall, value=min(1.0, stall.value + self.doubt_share), state="derived")

    def _at_least(self, share: Number) -> Number:
        if not self.doubt or share.value is None or share.state == "not measured":
            return share
        return replace(
            share, state="incomplete", why="; ".join(filter(None, (share.why, self.doubt)))
        )

    @property
    def storage_fraction(self) -> Number:
        """Wall time in which the step loop was blocked by file calls, by whoever made them."""
        return self._at_least(
            self._of_wall(
                self.data_storage_s
                + self.checkpoint_storage_s
                + (self.training.training_calls_s or 0.0),
                self._storage_state,
            )
        )

    @property
    def _storage_state(self) -> tuple[State, str]:
        """Waits that nobody saw the cause of may be waits on storage."""
        wall_s = self.training.wall_s or 0.0
        hidden = (
            (self.wait_s("not observed"), "s of the data wait: the cause was not observed"),
            (self.wait_s("network"), "s of the data wait on the network, in no file call"),
            (
                0.0 if self.faults.is_measured else self.page_faults.blocked_s,
                "s at most in page faults of mapped files",
            ),
            (self.cpu_unknown.call_s, "s in long file calls: time without a CPU was not measured"),
        )
        lacks = [f"{s:.2f} {what}" for s, what in hidden if wall_s and s >= 0.02 * wall_s]
        if self.recording.nameless_spans:
            lacks.append("waits without a name are in no number")
        state, why = self.events_state
        if not lacks or state == "not measured":
            return state, why
        return "incomplete", "; ".join(filter(None, (why, *lacks)))

    def _of_wall(self, seconds: float, quality: tuple[State, str]) -> Number:
        wall_s = self.training.wall_s
        if not wall_s:
            return Number(None, "share", "not measured", "no training steps seen")
        state, why = quality
        return Number(seconds / wall_s, "share", "derived" if state == "measured" else state, why)


LANES = "SELECT * FROM lane_list ORDER BY lane"


def measure(run: Tables) -> Measures:
    """Runs the queries over a run's tables.  Raises QueryError, naming the query that failed."""
    with run.connection.cursor() as engine:  # what is prepared goes with it
        return _measured(engine)


def _measured(engine: Engine) -> Measures:
    prepare(engine)
    _, parts = _ask(engine, "data_wait")
    job, ranks = _row(engine, "job", Job), _rows(engine, "ranks", Rank)
    return Measures(
        program=next(iter(_rows(engine, "program", Program)), None),
        training=_row(engine, "training", Training),
        recording=_row(engine, "recording", Recording),
        wait_parts={part: s for in_wall, part, s in parts if in_wall},
        first_batch_parts={part: s for in_wall, part, s in parts if not in_wall},
        checkpoint_parts=dict(_ask(engine, "checkpoint_block")[1]),
        data_blocking=dict(_ask(engine, "data_blocking")[1]),
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
        lanes=_values(*_answer(engine, LANES), Lane),
        lane_cells=_rows(engine, "lanes", LaneCell),
        epochs=_rows(engine, "epochs", Epoch),
        checkpoints=_rows(engine, "checkpoints", Checkpoint),
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
        residency=_rows(engine, "residency", Residency),
        system_rates=_rows(engine, "system_rates", SystemRate),
        burst=_rows(engine, "burst", BurstTier),
        checkpointers=_rows(engine, "checkpointers", CheckpointerLife),
        tiered_saves=_rows(engine, "tiered_saves", TieredSave),
        job=job,
        coupling=_row(engine, "coupling", Coupling),
        clocks=_rows(engine, "clocks", ClockOfHost),
        # Of one there is nothing to compare, and each reads all calls.
        rank_cells=_rows(engine, "rank_heat", RankCell) if len(ranks) > 1 else (),
        sharing=_rows(engine, "sharing", Sharing) if job.ranks > 1 else (),
        worker_sharing=_rows(engine, "worker_sharing", WorkerSharing),
        cpu_unknown=_row(engine, "cpu_unknown", CpuUnknown),
        rereads=_rows(engine, "rereads", Reread),
        loaders=tuple(name for (name,) in _ask(engine, "loaders")[1]),
        standing=dict(_ask(engine, "standing")[1]),
        **_of_startup(engine),
        **_of_failures(engine),
    )


def _of_startup(engine: Engine) -> dict[str, Any]:
    """What the time before the training was spent on."""
    return {
        "startup_parts": dict(_ask(engine, "startup_parts")[1]),
        "startup_places": _rows(engine, "startup_places", StartupPlace),
        "startup_imports": _rows(engine, "startup_imports", StartupImport),
        "worker_starts": _row(engine, "worker_starts", WorkerStarts),
    }


def _of_failures(engine: Engine) -> dict[str, Any]:
    """How processes ended, which calls and saves failed, and what stands still."""
    return {
        "endings": _rows(engine, "endings", Ending),
        "deaths": _rows(engine, "deaths", Death),
        "failures": _rows(engine, "failures", Failure),
        "expected_failures": _rows(engine, "expected_failures", ExpectedFailure),
        "last_failures": _rows(engine, "last_failures", LastFailure),
        "late_failures": _rows(engine, "late_failures", LateFailure),
        "doing": _rows(engine, "doing", Doing),
        "hung": _rows(engine, "hung", Standing),
        "still": tuple(str(said) for (said,) in _ask(engine, "still")[1]),
    }


def _ask(engine: Engine, name: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The names of a query's columns, and its rows."""
    try:
        return _answer(engine, query(name))
    except (duckdb.Error, QueryError) as error:
        raise QueryError(f"queries/{name}.sql: {error}") from error


def _answer(engine: Engine, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    answer = engine.execute(text)
    return [column[0] for column in answer.description], answer.fetchall()


Row = TypeVar("Row")


def _rows(engine: Engine, name: str, row: type[Row]) -> tuple[Row, ...]:
    return _values(*_ask(engine, name), row)


def _values(columns: list[str], rows: list[tuple[Any, ...]], row: type[Row]) -> tuple[Row, ...]:
    """Rows as values: a column becomes the field of its name."""
    return tuple(row(**dict(zip(columns, values, strict=True))) for values in rows)


def _row(engine: Engine, name: str, row: type[Row]) -> Row:
    (only,) = _rows(engine, name, row)
    return only
