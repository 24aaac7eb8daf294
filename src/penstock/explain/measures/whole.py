"""All measures of a run as a value, and the derived shares of wall time."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
from penstock.explain.measures.number import STORAGE_PARTS, Number, State
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
from penstock.words import count, show

__all__ = ["Measures"]

# Of the wall time.  A smaller share in steps without a known loader is a first or last step, and
# changes the stall by less than findings.rule.WORTH.
UNSURE_SHARE = 0.02
UNSAMPLED = 0.2  # of the wall time without samples of accelerators: with more, nothing is concluded


@dataclass(frozen=True, slots=True)
class Measures:
    """All measures of a run.  Parts of waits are seconds, means over main processes.

    standing: seconds of the training thread outside of data waits, by awaited thing: standing.sql.
    network: the part "network" of the data wait, by endpoint and phase; first_batch_network: of
    the wait for the first batch.
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
    checkpoints: tuple[RecordedCheckpoint, ...]
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
    devices: Devices = Devices(None, None, None, asked_bytes=0, faulted=0, accelerators=0)
    idle_waiting: IdleWaiting = IdleWaiting(0, None, 0.0, None, 0.0, None, None)
    residency: tuple[Residency, ...] = ()
    ahead: tuple[AheadFile, ...] = ()
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
    fetch_lines: tuple[FetchLine, ...] = ()
    loaders: tuple[str, ...] = ()
    standing: Mapping[str, float] = field(default_factory=dict)
    failures: tuple[Failure, ...] = ()
    expected_failures: tuple[ExpectedFailure, ...] = ()
    last_failures: tuple[LastFailure, ...] = ()
    late_failures: tuple[LateFailure, ...] = ()
    doing: tuple[Doing, ...] = ()
    hung: tuple[Standing, ...] = ()
    still: tuple[str, ...] = ()
    network: tuple[NetworkPart, ...] = ()
    first_batch_network: tuple[NetworkPart, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    remote_requests: tuple[RemoteRequests, ...] = ()
    request_latencies: tuple[RequestLatency, ...] = ()
    endpoint_ceilings: tuple[EndpointCeiling, ...] = ()
    endpoint_requests: tuple[EndpointRequests, ...] = ()
    startup_parts: Mapping[str, float | None] = field(default_factory=dict)
    startup_places: tuple[StartupPlace, ...] = ()
    startup_imports: tuple[StartupImport, ...] = ()
    worker_starts: WorkerStarts = WorkerStarts(0, 0, 0, 0.0, 0.0, 0.0)

    @property
    def has_training(self) -> bool:
        """Return True if steps or data waits were seen, with time in between."""
        return bool(self.training.wall_s)

    @property
    def counts_state(self) -> tuple[State, str]:
        """Return the state of numbers from counters, which are exact if every log is whole."""
        lacks = [*filter(None, (self.missing, self._unread)), *self._lacks]
        lacks += [self.recording.imported_lacks] if self.recording.imported_lacks else []
        return ("incomplete", ", ".join(lacks)) if lacks else ("measured", "")

    @property
    def spans_state(self) -> tuple[State, str]:
        """Return the state of steps, data waits and checkpoints.

        Spans are kept past the trace budget, but in an incomplete log some spans or their names may
        be missing.
        """
        lacks, nameless = self._lacks, self.recording.nameless_spans
        if self._unread and self.job.size is None:
            lacks.insert(0, self._unread)  # perhaps the log of a training process
        if nameless:
            lacks.append(f"{nameless:,} {'spans have' if nameless > 1 else 'span has'} no name")
        return ("incomplete", ", ".join(lacks)) if lacks else ("measured", "")

    @property
    def missing(self) -> str:
        """Return which ranks of the job have no log in the run.

        "" if no rank is missing, or if the number of ranks is not known.
        """
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
        """Return the reasons why logs are not whole."""
        recording = self.recording
        return [
            f"{count:,} {what if count > 1 else singular}"
            for count, what, singular in (
                (recording.lost, "events were lost", "event was lost"),
                (recording.damaged_units, "parts of logs are damaged", "part of a log is damaged"),
                (recording.torn, "logs are cut short", "log is cut short"),
                (
                    recording.orphans,
                    "loader workers have a training process that left no log",
                    "loader worker has a training process that left no log",
                ),
            )
            if count
        ]

    @property
    def events_state(self) -> tuple[State, str]:
        """Return the state of numbers that need single events.

        Past the trace budget single events are incomplete.
        """
        folded = self.recording.folded
        state, why = self.counts_state
        if self.recording.counters_only:  # an imported run: the other tool kept counters
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
        """Return the seconds of data wait attributed to `parts`."""
        return sum(self.wait_parts.get(part, 0.0) for part in parts)

    def wait_share(self, *parts: str) -> float:
        """Return the share of the data wait attributed to `parts`; 0 without data wait."""
        whole = self.training.data_wait_s or 0.0
        return self.wait_s(*parts) / whole if whole else 0.0

    @property
    def is_cpu_unsure(self) -> bool:
        """Return True if the part "cpu" of the data wait may be time without a CPU.

        Waits in no known loader have no account of that time; the training thread's account counts.
        """
        no_cpu_s, cpu_s = self.standing.get("no CPU", 0.0), self.wait_s("cpu")
        return bool(self.training.inferred_waits) and 0 < 0.5 * cpu_s <= no_cpu_s

    @property
    def data_storage_s(self) -> float:
        """Return the data wait caused by storage: file calls of the worker that owed the batch."""
        return self.wait_s(*STORAGE_PARTS)

    @property
    def remote_s(self) -> float:
        """Return the seconds of data wait for endpoints outside of the job's processes."""
        return sum(part.s for part in self.network if part.is_remote)

    @property
    def remote_endpoints(self) -> tuple[str, ...]:
        """Return the endpoints of remote_s, the longest data wait first."""
        seconds: dict[str, float] = {}
        for part in self.network:
            if part.is_remote and part.endpoint:
                seconds[part.endpoint] = seconds.get(part.endpoint, 0.0) + part.s
        return tuple(sorted(seconds, key=lambda endpoint: -seconds[endpoint]))

    @property
    def remote_fraction(self) -> Number:
        """Return the share of wall time in which the step loop waited for remote endpoints."""
        wall_s = self.training.wall_s or 0.0
        known_s = sum(part.s for part in self.network if part.endpoint)
        hidden = (
            (self.wait_s("not observed"), "s of the data wait: the cause was not observed"),
            (self.wait_s("network") - known_s, "s of the data wait on unknown endpoints"),
            (self.wait_s("blocked"), "s of the data wait blocked on another thread or process"),
        )
        lacks = [f"{s:.2f} {what}" for s, what in hidden if wall_s and s >= 0.02 * wall_s]
        state, why = self.events_state
        if lacks and state != "not measured":
            state, why = "incomplete", "; ".join(filter(None, (why, *lacks)))
        return self._at_least(self._of_wall(self.remote_s, (state, why)))

    @property
    def checkpoint_storage_s(self) -> float:
        """Return the seconds of checkpoint block inside file calls."""
        return sum(self.checkpoint_parts.get(part, 0.0) for part in STORAGE_PARTS)

    @property
    def unsure_share(self) -> float:
        """Return the share of wall time that may be data wait besides the seen data waits."""
        training, wall_s = self.training, self.training.wall_s
        if not wall_s:
            return 0.0
        parts = (
            *(training.unfed_s, training.maybe_s, training.between_s),
            *(training.hidden_s, training.locked_s),
        )
        return min(1.0, sum(part or 0.0 for part in parts) / wall_s)

    @property
    def unsure(self) -> str:
        """Return why part of the data wait is not known; "" if all is known."""
        training = self.training
        if self.unsure_share < UNSURE_SHARE:
            return ""
        reasons = {
            "took data from no loader that Penstock knows": training.unfed_s,
            "slept or waited, outside a known loader, for what may be data": training.maybe_s,
            "used the CPU between the loader's batch and the computation": training.between_s,
            "left the training thread off the CPU in no recorded call": training.hidden_s,
            "waited for the interpreter lock while another thread was in a file call that may"
            " hold it": training.locked_s,
        }
        what = max(reasons, key=lambda reason: reasons[reason] or 0.0)
        if what.startswith("slept"):
            what += self._or_uploads
        whose = "steps"
        if what.startswith("took") and not training.unfed_steps:  # sums over ranks: see reduce
            return "steps waited, or used the CPU, outside a known loader"
        if what.startswith("took") and training.unfed_steps < training.steps:
            whose = f"{training.unfed_steps:,} of {training.steps:,} steps"
        return f"{whose} {what}"

    @property
    def _or_uploads(self) -> str:
        """Return the uploads that may explain half of the unknown waits; "" without them.

        A request that sends more than it receives brings no batch: a checkpoint, or metrics.
        """
        uploads = [row for row in self.remote_requests if row.sent_bytes > row.received_bytes]
        busy_s = sum(row.busy_s for row in uploads)
        if not uploads or busy_s < 0.5 * (self.training.maybe_s or 0.0):
            return ""
        number = count(sum(row.requests for row in uploads), "request")
        size = show(sum(row.sent_bytes for row in uploads), "B")
        return f", or for uploads: {number} sent {size} in {show(busy_s, 's')}"

    @property
    def unjoined_share(self) -> float:
        """Return the share of wall time that coupled main processes lose beyond the mean.

        Main processes are coupled if they wait for each other in their steps.  0 if the coupling is
        known.
        """
        training = self.training
        if self.coupling.how != "not known" or not training.wall_s:
            return 0.0
        most_s = min(training.most_stall_s or 0.0, training.wall_s)
        return max(0.0, most_s - (training.mean_stall_s or 0.0)) / training.wall_s

    @property
    def unjoined(self) -> str:
        """Return why the mean over main processes may be too low, or ""."""
        if self.unjoined_share < UNSURE_SHARE:
            return ""
        n = self.coupling.mains
        return f"whether the {n:,} main processes wait for each other in their steps is not known"

    @property
    def doubt(self) -> str:
        """Return why the stall is not exactly known, or ""."""
        return "; ".join(filter(None, (self.unsure, self.unjoined, self.missing)))

    @property
    def missing_share(self) -> float:
        """Return the share of wall time that may be stall because of missing ranks.

        1 if other ranks may wait for the missing ranks, else the share of the missing ranks.
        """
        size = self.job.size
        if not self.missing or not size:
            return 0.0
        return (size - self.job.ranks) / size if self.coupling.how == "apart" else 1.0

    @property
    def doubt_share(self) -> float:
        """Return the share of wall time that may be stall beyond the stall fraction."""
        return min(1.0, self.unsure_share + self.unjoined_share + self.missing_share)

    @property
    def mean_stall(self) -> Number:
        """Return the mean of the main processes' stall fractions, no matter who waits for whom."""
        return self._of_wall(self.training.mean_stall_s or 0.0, self.spans_state)

    @property
    def stall_fraction(self) -> Number:
        """Return (data wait + checkpoint block + the training thread's own file calls) / wall.

        Where main processes wait for each other, the stall of the slowest process counts for all.
        A lower bound where part of the stall is not known.
        """
        training = self.training
        parts = (training.data_wait_s, training.checkpoint_block_s, training.training_calls_s)
        stall_s = sum(part or 0.0 for part in parts)
        return self._at_least(self._of_wall(stall_s, self.spans_state))

    @property
    def stall_least(self) -> Number:
        """Return the stall fraction if no time of unknown use is stall."""
        stall, size = self.stall_fraction, self.job.size
        if stall.value is None:
            return stall
        is_mean = bool(self.missing and size and self.coupling.how != "together")
        value = stall.value * self.job.ranks / size if is_mean and size else stall.value
        return replace(stall, value=value, state="derived")

    @property
    def stall_most(self) -> Number:
        """Return the stall fraction if all time of unknown use is data wait."""
        stall = self.stall_fraction
        if stall.value is None:
            return stall
        return replace(stall, value=min(1.0, stall.value + self.doubt_share), state="derived")

    @property
    def accelerator_loss(self) -> tuple[float, float] | None:
        """Return bounds of the share of wall time that accelerators lost to waits of the loop.

        A wait while an accelerator works on earlier steps costs nothing.  No wait costs more than
        the idle time of an accelerator.  None if the idle time is not known: without samples by
        NVML, with other programs on the accelerators, or with ranks missing in the run.
        """
        idle, training = self.idle_waiting, self.training
        if (
            not training.wall_s
            or not idle.is_alone
            or self.missing
            or self.stall_most.value is None
        ):
            return None
        if idle.idle_s is None or idle.idle_least_s is None or idle.idle_most_s is None:
            return None
        unsampled_s = max(0.0, training.wall_s - idle.covered_s)
        if unsampled_s > UNSAMPLED * training.wall_s:
            return None
        least_s, most_s = idle.idle_least_s, idle.idle_s + unsampled_s
        if not self.doubt:
            unsampled_wait_s = max(0.0, (training.data_wait_s or 0.0) - idle.wait_s)
            blocked_s = (training.checkpoint_block_s or 0.0) + (training.training_calls_s or 0.0)
            most_s = min(most_s, idle.idle_most_s + unsampled_wait_s + blocked_s)
        most = min(self.stall_most.value, most_s / training.wall_s)
        return min(most, least_s / training.wall_s), most

    def _at_least(self, share: Number) -> Number:
        if not self.doubt or share.value is None or share.state == "not measured":
            return share
        return replace(
            share, state="incomplete", why="; ".join(filter(None, (share.why, self.doubt)))
        )

    @property
    def storage_fraction(self) -> Number:
        """Return the share of wall time in which file calls of any thread blocked the step loop."""
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
        """Return the state of the storage fraction.

        Waits of unknown cause may be waits on storage.
        """
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
