"""Rows about file calls and page faults: number, size, time, files."""

from dataclasses import dataclass

from penstock.explain.measures.number import State

__all__ = [
    "Bandwidth",
    "BlockingReads",
    "CallTimes",
    "ClassTotal",
    "Concurrency",
    "DirectoryTotal",
    "Drift",
    "FaultFile",
    "FaultTotals",
    "FileTotal",
    "HistogramBin",
    "MetadataCalls",
    "Operation",
    "PageFaults",
    "Pattern",
    "Reading",
    "Reread",
    "Sharing",
    "WorkerSharing",
]


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
    """queries/largest_files.sql; path is None in the row for all other files."""

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
        """Return True if page faults were sampled, with the file of each page fault."""
        return self.state == "measured"

    @property
    def quality(self) -> tuple[State, str]:
        """Return state and reason of numbers from page-fault samples."""
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
class Drift:
    """queries/read_drift.sql"""

    piece_s: float
    steps: int
    waits_s: float
    reads: int
    read_s: float
    read_bytes: int


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
