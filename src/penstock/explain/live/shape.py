"""A run at a moment, as views show it.  Knows no log."""

from dataclasses import dataclass, fields
from typing import Literal

from penstock.explain.verdict import level_of

__all__ = [
    "NOT_FED",
    "WINDOW_S",
    "Blocked",
    "Live",
    "RemoteTraffic",
    "Second",
    "Stall",
    "Traffic",
]

NOT_FED = "steps took data from no loader that Penstock knows: the stall is not measured"
UNJOINED = 0.02  # of the wall; a test compares UNJOINED with measures.whole.UNSURE_SHARE
WINDOW_S = 60  # long enough for a save every half minute to show


@dataclass(frozen=True, slots=True)
class Stall:
    """A stretch of training, in seconds, summed over main processes.

    Where main processes wait for each other in steps, the waits and checkpoints of the slowest
    process count for all processes: the sum is the loss of the job, as in the report.

    data_storage_s: part of the data wait, blocked in file calls of the fetching thread.
    checkpoint_storage_s: part of the checkpoint block, blocked in file calls of the saving thread.
    own_s: blocked in file calls of the training thread, outside data waits and checkpoints.
    is_fed: every main process that takes steps has a known loader; else data waits may be
    unrecorded, and the stall is not measured.
    mean_stall_s: own data waits and checkpoint blocks of each main process; None: equal to
    data_wait_s + checkpoint_s.
    most_stall_s: upper bound of the loss of the job, where the coupling of main processes is not
    known.
    """

    wall_s: float = 0.0
    data_wait_s: float = 0.0
    data_storage_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_storage_s: float = 0.0
    own_s: float = 0.0
    is_fed: bool = True
    mean_stall_s: float | None = None
    most_stall_s: float | None = None

    def share(self, s: float) -> float | None:
        """Return `s` as a share of the wall time; None without wall time."""
        return s / self.wall_s if self.wall_s > 0 else None

    @property
    def stall(self) -> float | None:
        """Return (data wait + checkpoint block + own file calls) / wall: the loss of the job.

        None where data waits may be unrecorded, or where the bounds of the stall differ because
        the coupling of main processes is not known.
        """
        return self.stall_between[0] if self.is_joined else None

    @property
    def level(self) -> Literal["unknown", "not", "moderately", "highly"]:
        """Return the level of the stall, by the limits of the report's verdict."""
        return "unknown" if self.stall is None else level_of(self.stall)

    @property
    def stall_between(self) -> tuple[float | None, float | None]:
        """Return lower and upper bound of the stall; equal if the coupling of ranks is known."""
        if not self.is_fed:
            return None, None
        least = self.share(self.data_wait_s + self.checkpoint_s + self.own_s)
        if least is None:
            return None, None
        least = min(1.0, least)  # the slowest rank's stall, counted for all, may exceed the wall
        most = self.share((self.most_stall_s or 0.0) + self.own_s) or 0.0
        return least, max(least, min(1.0, most))

    @property
    def is_joined(self) -> bool:
        """Return True if the bounds of the stall agree.

        If the bounds agree, the coupling of ranks does not matter.
        """
        least, most = self.stall_between
        return least is None or most is None or most - least < UNJOINED

    @property
    def mean_stall(self) -> float | None:
        """Return the mean of the main processes' own stalls; None if data waits may be
        unrecorded."""
        if not self.is_fed:
            return None
        halts_s = self.mean_stall_s
        if halts_s is None:
            halts_s = self.data_wait_s + self.checkpoint_s
        return self.share(halts_s + self.own_s)

    @property
    def storage(self) -> float | None:
        """Return the share of wall time in which file calls of any thread delay the training.

        None if the stall is None.
        """
        if not self.is_fed or not self.is_joined:
            return None
        return self.share(self.data_storage_s + self.checkpoint_storage_s + self.own_s)

    @property
    def wait_in_calls(self) -> float | None:
        """Return the share of the data wait delayed in file calls; None without data wait."""
        return self.data_storage_s / self.data_wait_s if self.data_wait_s > 0 else None


@dataclass(frozen=True, slots=True)
class Traffic:
    """Ended file calls of all processes; layers are never added."""

    layer: str
    calls: int = 0
    errors: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RemoteTraffic:
    """Connections and requests of all processes to an endpoint, HOST:PORT.

    Bytes of a connection are at most as old as its last record: written at 1, 2, 4 … 64 s of use,
    each 64 s later, and at the close.  requests: by class of status, "2xx", or "no answer"; those
    that have ended, of clients with an adapter.  request_s, backoff_s: all threads together.
    """

    endpoint: str
    connections: int
    open_connections: int
    received_bytes: int
    sent_bytes: int
    requests: tuple[tuple[str, int], ...]
    retries: int
    request_s: float
    backoff_s: float


@dataclass(frozen=True, slots=True)
class Second:
    """A second of a run: shares of the wall time, and bytes of the layer with more bytes.

    A share is None without training, or if the second was not recorded.
    """

    data_wait: float | None
    checkpoint: float | None
    read_bytes: int
    written_bytes: int
    steps: int
    own_calls: float | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """A file call under way for more than a second; path None: not in the log."""

    op: str
    path: str | None
    s: float
    pid: int


@dataclass(frozen=True, slots=True)
class Live:
    """A run at a moment.

    state: starting (no log yet), running, paused (nothing is being recorded), over.  recent: the
    last WINDOW_S seconds.  total, traffic: since watched_s ago.  seconds: the last WINDOW_S, oldest
    first.  gaps: limits of these numbers, in words.  still: long open waits, with the activity of
    the awaited processes, in words.  ranks: the coupling of main processes: one, together, apart or
    not known.  slowest: the rank with at least half of the loss, if ranks wait for each other; "":
    none.  remote: endpoints that the job connected to, the most bytes first.
    """

    run: str
    command: str
    host: str
    state: str
    elapsed_s: float
    watched_s: float
    processes: int
    mains: int
    workers: int
    steps: int
    step_s: float | None
    recent: Stall
    total: Stall
    recent_traffic: tuple[Traffic, ...]
    traffic: tuple[Traffic, ...]
    seconds: tuple[Second, ...]
    blocked: tuple[Blocked, ...]
    gaps: tuple[str, ...]
    still: tuple[str, ...] = ()
    ranks: str = "one"
    slowest: str = ""
    remote: tuple[RemoteTraffic, ...] = ()


assert len(fields(Stall)) == 6 + 3  # first: the rows of Trainer.sums, in order
