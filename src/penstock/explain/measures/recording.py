"""Rows about the recording: processes, ends of processes, and failures."""

from dataclasses import dataclass

__all__ = [
    "BlindSpot",
    "Death",
    "Doing",
    "Ending",
    "ExpectedFailure",
    "Failure",
    "InFlight",
    "LastFailure",
    "LateFailure",
    "Pause",
    "ProcessRow",
    "Recording",
    "Standing",
]


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
    lives_s: float | None = None
    starts_s: float | None = None
    starts: int = 0
    trained_starts: int = 0
    own_calls: int | None = None
    own_s: float | None = None


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
    is_blocked: bool = False


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
