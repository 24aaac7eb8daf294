"""Rows about checkpoints and restores, and about bytes that passed a fast tier."""

from dataclasses import dataclass

__all__ = [
    "BurstTier",
    "CheckpointerLife",
    "Filling",
    "RecordedCheckpoint",
    "Restore",
    "Staged",
    "TieredSave",
]


@dataclass(frozen=True, slots=True)
class RecordedCheckpoint:
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
    waited_s: float = 0.0  # of the training thread, for a save of another thread

    @property
    def is_good(self) -> bool:
        """Return True if the save ended without an exception, and so may count as a checkpoint."""
        return self.outcome is None

    @property
    def blocked_s(self) -> float | None:
        """Return the seconds in which the save blocked the step loop; None without blocking."""
        return self.duration_s if self.blocks else self.waited_s or None

    @property
    def background_s(self) -> float | None:
        """Return the seconds of a save beside the step loop."""
        return None if self.blocks else max(0.0, self.duration_s - self.waited_s)

    @property
    def bandwidth_bps(self) -> float | None:
        """Return the bytes written per second of the whole span."""
        return self.written_bytes / self.duration_s if self.duration_s else None


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
class Restore:
    """queries/restores.sql"""

    process: int
    loads: int
    start_s: float
    duration_s: float
    faulted_s: float
    read_bytes: int
    path: str | None
    size_bytes: int | None
    is_failed: bool
