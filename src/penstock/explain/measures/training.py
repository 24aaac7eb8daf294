"""Rows about the training: start-up, steps, epochs, ranks and workers."""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "ClockOfHost",
    "Coupling",
    "CpuUnknown",
    "Epoch",
    "FetchLine",
    "IdleWaiting",
    "Job",
    "Lane",
    "LaneCell",
    "Program",
    "Rank",
    "RankCell",
    "StartupImport",
    "StartupPlace",
    "StepTimes",
    "Training",
    "Worker",
    "WorkerStarts",
]


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
    """queries/training.sql; means over main processes, None without a main process."""

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
    between_s: float | None = None
    inferred_waits: int = 0
    locked_s: float | None = None


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
class IdleWaiting:
    """queries/idle_waiting.sql"""

    accelerators: int
    is_alone: bool | None
    covered_s: float
    idle_s: float | None
    wait_s: float
    idle_least_s: float | None
    idle_most_s: float | None

    @property
    def share(self) -> tuple[float, float] | None:
        """Return bounds of the share of the data wait with idle accelerators: least, most."""
        if self.idle_least_s is None or self.idle_most_s is None or not self.wait_s:
            return None
        return self.idle_least_s / self.wait_s, self.idle_most_s / self.wait_s


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
    calls_s: float = 0.0


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
    how: Literal["one", "together", "groups", "apart", "not known"] = "one"
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
class FetchLine:
    """queries/fetch_lines.sql"""

    path: str | None
    line: int
    function: str
    called: str | None
    samples: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class CpuUnknown:
    """queries/cpu_unknown.sql"""

    call_s: float
    waits: int
