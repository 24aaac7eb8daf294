"""A run at one moment, as views show it.  Knows no log."""

from dataclasses import dataclass, fields

__all__ = ["NOT_FED", "WINDOW_S", "Blocked", "Live", "Second", "Stall", "Traffic"]

NOT_FED = "steps took data from no loader that Penstock knows: the stall is not measured"
UNJOINED = 0.02  # of the wall: as measures.whole.UNSURE_SHARE, which a test holds it equal to
WINDOW_S = 60  # long enough for a save every half minute to show


@dataclass(frozen=True, slots=True)
class Stall:
    """A stretch of training, in seconds, summed over main processes.  Where these wait for each
    other in their steps, the waits and checkpoints of the one that holds up all count for all:
    these are what the job lost, as in the report.

    data_storage_s: of the data wait, held up in file calls of whoever fetched the batch;
    checkpoint_storage_s: of the checkpoint block, the same of the thread that saves;
    own_s: the same of the training thread outside both.
    is_fed: a known loader was seen in every main process that takes steps; else data waits may have
    gone unseen, and the stall is not measured.
    mean_stall_s: data wait and checkpoint block as each main process had them, whoever waits for
    whom; None: as above.  most_stall_s: what the job lost at most, where it is not known whether
    they wait for each other.
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
        """Of the wall time; None while there is none."""
        return s / self.wall_s if self.wall_s > 0 else None

    @property
    def stall(self) -> float | None:
        """(data wait + checkpoint block + own file calls) / wall, what the job lost; None where
        data waits may have gone unseen, or it is not known whether main processes wait for each
        other."""
        return self.stall_between[0] if self.is_joined else None

    @property
    def stall_between(self) -> tuple[float | None, float | None]:
        """The stall at least and at most; where ranks are known to wait or not, both the same."""
        if not self.is_fed:
            return None, None
        least = self.share(self.data_wait_s + self.checkpoint_s + self.own_s)
        if least is None:
            return None, None
        least = min(1.0, least)  # a stall that counts for all is longer than some had in that time
        most = self.share((self.most_stall_s or 0.0) + self.own_s) or 0.0
        return least, max(least, min(1.0, most))

    @property
    def is_joined(self) -> bool:
        """Whether bounds of the stall, that are of ranks that may wait for each other, agree."""
        least, most = self.stall_between
        return least is None or most is None or most - least < UNJOINED

    @property
    def mean_stall(self) -> float | None:
        """The mean of the main processes' own stalls; None where data waits may have gone
        unseen."""
        if not self.is_fed:
            return None
        halts_s = self.mean_stall_s
        if halts_s is None:
            halts_s = self.data_wait_s + self.checkpoint_s
        return self.share(halts_s + self.own_s)

    @property
    def storage(self) -> float | None:
        """Wall time in which the training thread is held up by file calls, by whoever made them;
        None as the stall is."""
        if not self.is_fed or not self.is_joined:
            return None
        return self.share(self.data_storage_s + self.checkpoint_storage_s + self.own_s)

    @property
    def wait_in_calls(self) -> float | None:
        """The fraction of the data wait that is held up in file calls; None without data wait."""
        return self.data_storage_s / self.data_wait_s if self.data_wait_s > 0 else None


@dataclass(frozen=True, slots=True)
class Traffic:
    """File calls of all processes that have ended; layers are never added."""

    layer: str
    calls: int = 0
    errors: int = 0
    read_bytes: int = 0
    written_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Second:
    """One second: shares of the wall time (None: nothing was training, or it was not recorded),
    bytes of the layer that moved more."""

    data_wait: float | None
    checkpoint: float | None
    read_bytes: int
    written_bytes: int
    steps: int
    own_calls: float | None = None


@dataclass(frozen=True, slots=True)
class Blocked:
    """A file call under way for more than a second; path None: the log does not say."""

    op: str
    path: str | None
    s: float
    pid: int


@dataclass(frozen=True, slots=True)
class Live:
    """A run at one moment.

    state: starting (no log yet), running, paused (nothing is being recorded), over.
    recent: the last WINDOW_S seconds; total and traffic: since watched_s ago.  seconds: the last
    WINDOW_S, oldest first.  gaps: what these numbers lack, in words.  still: waits that are open
    for long, with what the processes do that are waited for, in words.  ranks: whether main
    processes wait for each other in their steps: one, together, apart or not known.
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


assert len(fields(Stall)) == 6 + 3  # first the rows of Trainer.sums, in this order
