"""Rules about the readers: too few workers, too few CPUs, a slow worker or rank."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from statistics import median

from penstock.explain.findings.rule import Fine, RuleResult, Said, Threshold, Unjudged
from penstock.explain.measures import STORAGE_PARTS, Measures, Rank, Worker
from penstock.explain.remedies import PROFILER, SHORTER_CODE, Remedy, fewer_threads, more_workers
from penstock.words import count, per_cent, show

__all__ = [
    "BUSY",
    "CPU_SHARE",
    "LEAST_FETCHES",
    "LINE",
    "MOSTLY",
    "OF_THE_WALL",
    "QUEUE_SHARE",
    "SAMPLES",
    "STRAGGLES",
    "decode_bound",
    "oversubscribed",
    "straggler",
    "too_few_workers",
    "workers_wanted",
]

MORE_CPUS = Remedy("job", "ask for more CPUs (Slurm: --cpus-per-task)")

STRAGGLES = Threshold(
    1.5,
    "x",
    "the median of the others",
    "as DFAnalyzer's rule for ranks; the slow one is left out of the median, as of two it would be "
    "half of it",
)
LEAST_FETCHES = Threshold(
    4,
    "count",
    "batches of a worker after its first, which may open the data set",
    "chosen: the mean of fewer says how one file was",
)


def straggler(measures: Measures) -> Said:
    """One worker takes longer for a batch than the others, or one rank waits longer for data."""
    slow = [said for said in (_slow_worker(measures), _slow_rank(measures)) if said]
    if slow:
        return max(slow, key=lambda said: said.gain_s or 0.0)
    if len(measures.workers) < 2 and len(measures.ranks) < 2:
        return Fine("one worker, one rank: none to compare", applies=False)
    return Fine("workers and ranks are balanced")


BUSY = Threshold(
    0.90,
    "share",
    "of the data wait all workers are in fetches",
    "chosen: what is left are queues and hand-overs, which more workers do not shorten",
)
CPU_SHARE = Threshold(
    0.50,
    "share",
    "of the data wait that is not for a CPU",
    "chosen: then a faster disk would end less than half of it",
)
OF_THE_WALL = Threshold(
    0.05,
    "share",
    "of the wall time, however small a part of the data wait that is",
    "chosen: a job that waits so long for one cause alone is moderately bound by it",
)
SAMPLES = Threshold(
    20,
    "count",
    "samples of the fetches' CPU time at least, else no line of code is named",
    "a share of one half is then known to about a tenth",
)
LINE = Threshold(
    0.10,
    "share",
    "of the fetches' CPU time in a line of code that is named, three lines at most",
    "chosen: to shorten less does not end the wait",
)
MOST_LINES = 3
QUEUE_SHARE = Threshold(
    0.20,
    "share",
    "of the data wait",
    "chosen: every fifth second of a worker that could go on; the step at which XProf says highly",
)


MOSTLY = Threshold(
    0.50,
    "share",
    "of the data wait is blocked, on storage or elsewhere, and fewer workers are no remedy",
    "chosen: then most of the wait is for something that one worker does not have from another",
)


@dataclass(frozen=True, slots=True)
class _Fetching:
    """The fetching of a run's batches: the number of concurrent workers, and the CPUs.

    fetch_s: seconds of fetching, of a rank.  steps_s: wall time of a rank without the data wait, in
    seconds.
    """

    workers: int
    mains: int
    busy: float
    fetch_s: float
    steps_s: float
    cpu_s: float
    cpus: float | None

    @property
    def cpu_share(self) -> float:
        """Return the share of a fetch spent on a CPU, at most 1."""
        return min(1.0, self.cpu_s / self.fetch_s) if self.fetch_s else 0.0

    @property
    def room(self) -> int | None:
        """Return how many workers of a rank have a CPU beside the step loop.

        None if the number of CPUs is not known.
        """
        if self.cpus is None:
            return None
        return int((self.cpus / self.mains - 1) / max(self.cpu_share, 0.05))

    @property
    def wanted(self) -> int:
        """Return how many workers fetch as fast as the steps compute, within the number of CPUs."""
        as_fast = -(-self.fetch_s // max(self.steps_s, 1e-9)) + 1
        return int(min(as_fast, 64 if self.room is None else self.room))

    @property
    def says(self) -> str:
        if not self.workers:
            return "no workers"
        busy = per_cent(self.busy)
        if self.busy < BUSY.value and busy == per_cent(BUSY.value):  # 89.96 % is no 90 %
            busy = f"less than {busy}"
        return f"{count(self.workers, 'worker')}, busy {busy} of the wait"

    def gain_s(self, wait_s: float) -> float:
        """Return the seconds of the wait that the wanted number of workers would end."""
        return max(0.0, wait_s - max(0.0, self.fetch_s / self.wanted - self.steps_s))


def _fetching(measures: Measures, wait_s: float) -> _Fetching:
    training, workers = measures.training, measures.workers
    mains = max(1, training.mains)
    waited_s = sum(row.waited_s for row in workers)
    return _Fetching(
        workers=_workers(measures),
        mains=mains,
        busy=sum(row.busy_s for row in workers) / waited_s if waited_s else 1.0,
        fetch_s=sum(row.fetch_s for row in workers) / mains if workers else wait_s,
        steps_s=(training.wall_s or 0.0) - (training.data_wait_s or 0.0),
        cpu_s=sum(row.cpu_s or 0.0 for row in workers) / mains
        if workers
        else measures.wait_s("cpu", "cached"),
        cpus=measures.machine.cpus,
    )


def too_few_workers(measures: Measures) -> Said:
    """While the step loop waits all workers fetch, or it fetches itself, and there is a CPU for
    another worker."""
    wait_s = measures.wait_s(
        "read", "write", "metadata", "cpu", "cached", "network", "blocked", "not scheduled"
    )
    if not wait_s:
        return Fine("the step loop does not wait for fetches")
    if measures.training.pooled_waits:
        return Unjudged("the loader does not say who makes a batch")
    if measures.training.inferred_waits and not measures.workers:
        return Unjudged("data waits in no known loader: how many fetch at once is not known")
    # Another worker would also wait for a CPU, no matter which program uses the CPUs.
    if measures.wait_share("not scheduled") >= QUEUE_SHARE.value:
        return Fine("fetches wait for a CPU already: there is none for another worker")
    now = _fetching(measures, wait_s)
    if now.busy < BUSY.value:
        return Fine(now.says)
    if now.wanted <= now.workers:
        return Fine(f"{now.says}, and {_cpus(now.cpus or 0.0)} leave no room for more")
    on_cpu = f"a fetch is {per_cent(now.cpu_share)} on a CPU"
    on_cpu += f", {_cpus(now.cpus)}" if now.cpus else ""
    evidence = [
        f"{now.says}; fetching takes {show(now.fetch_s, 's')}, the steps {show(now.steps_s, 's')}",
        on_cpu,
    ]
    if now.cpus is None:
        evidence.append("how many CPUs there are was not noted")
    remedy = more_workers(measures, now.wanted)
    return RuleResult(now.gain_s(wait_s), tuple(evidence), (remedy,), "epochs")


def workers_wanted(measures: Measures, wait_s: float) -> int | None:
    """Return how many workers would fetch as fast as the steps compute.

    None if no more workers than now are needed, or if the loader is not PyTorch's.
    """
    if measures.loaders != ("torch",):
        return None
    now = _fetching(measures, wait_s)
    return now.wanted if now.wanted > now.workers else None


def decode_bound(measures: Measures) -> Said:
    """Much of the data wait is workers' time on a CPU, outside file calls: decoding, augmenting.  A
    faster disk would not shorten it."""
    share, queued = measures.wait_share("cpu"), measures.wait_share("not scheduled")
    says = f"{per_cent(share)} of the data wait is on a CPU, outside file calls"
    is_most = share >= CPU_SHARE.value * (1 - queued)  # a wait for a CPU is a wait for computing
    if not share or not (is_most or _is_worth_it(measures, "cpu")):
        return Fine(says)
    if measures.is_cpu_unsure:
        return Unjudged(
            f"{says}, or ready without one: waits in no known loader do not tell which, and the "
            f"training thread had no CPU for {show(measures.standing['no CPU'], 's')}"
        )
    lines = _lines(measures)
    remedy = PROFILER if not lines else SHORTER_CODE
    return RuleResult(measures.wait_s("cpu"), (says, *lines), (remedy,), "epochs")


def _lines(measures: Measures) -> tuple[str, ...]:
    """Return the lines of code with the most CPU time in fetches; none if samples are too few."""
    n_samples = sum(row.samples for row in measures.fetch_lines)
    if n_samples < SAMPLES.value:
        return ()
    cpu_s = sum(row.cpu_s for row in measures.fetch_lines)
    shown = [row for row in measures.fetch_lines if row.cpu_s >= LINE.value * cpu_s]
    return tuple(
        f"{per_cent(row.cpu_s / cpu_s)} of the fetches' CPU time:"
        f" {PurePath(row.path).name}:{row.line}, {row.function}"
        f"{f', in {row.called}' if row.called else ''}"
        for row in shown[:MOST_LINES]
        if row.path
    )


def _is_worth_it(measures: Measures, part: str) -> bool:
    return measures.wait_s(part) >= OF_THE_WALL.value * (measures.training.wall_s or 0.0) > 0


def oversubscribed(measures: Measures) -> Said:
    """For much of the data wait the threads that make batches are ready to run and have no CPU."""
    share = measures.wait_share("not scheduled")
    says = f"for {per_cent(share)} of the data wait fetches were ready to run and had no CPU"
    if share < QUEUE_SHARE.value and not _is_worth_it(measures, "not scheduled"):
        return Fine(says)
    sentence, remedy = _short_of_cpus(measures)
    return RuleResult(measures.wait_s("not scheduled"), (says, sentence), (remedy,), "processes")


def _short_of_cpus(measures: Measures) -> tuple[str, Remedy]:
    """Return which processes need the CPUs, and a remedy."""
    seen = measures.machine
    has = _cpus(seen.cpus) if seen.cpus else "how many CPUs there are was not noted"
    stopped_s, waited_s = seen.throttled_s, measures.wait_s("not scheduled")
    if seen.quota_cpus is not None and (
        stopped_s is None or stopped_s >= QUEUE_SHARE.value * waited_s
    ):
        sentence = f"the control group's quota is {has}"
        if seen.throttled and stopped_s is not None:
            sentence += f": it stopped the job {seen.throttled:,} times, {show(stopped_s, 's')}"
        return sentence, Remedy(
            "job", "raise the CPU quota (Kubernetes: limits.cpu; Docker: --cpus)"
        )
    if measures.training.pooled_waits:
        sentence = f"the loader's threads share {has}"
        return sentence, replace(MORE_CPUS, says=f"{MORE_CPUS.says}, or leave these to this job")
    wants = max(1, measures.training.mains) * (_workers(measures) + 1)  # of all ranks together
    sentence = f"{wants:,} workers and ranks need a CPU" if wants > 1 else "one rank needs a CPU"
    sentence += f", {has}" if seen.cpus else f"; {has}"
    if seen.cpus and wants <= seen.cpus:
        remedy = Remedy("job", "leave CPUs to this job: other programs run on this node")
        return f"{sentence}; other programs use them too", remedy
    # Fewer workers would lengthen every wait other than for a CPU.
    is_elsewhere = measures.wait_share("blocked", *STORAGE_PARTS) >= MOSTLY.value
    return sentence, MORE_CPUS if is_elsewhere else fewer_threads(measures)


def _cpus(n: float) -> str:
    """Return a number of CPUs in words; a quota may be half a CPU."""
    return f"{n:,.6g} CPU{'' if n == 1 else 's'}"


def _workers(measures: Measures) -> int:
    """Return the number of concurrent workers of a rank.

    Each epoch may start new workers, with the numbers of the previous workers.
    """
    return max((row.worker + 1 for row in measures.workers), default=0)


@dataclass(frozen=True, slots=True)
class _Numbered:
    """The work of all workers with one number, over all epochs; each epoch may start new workers.

    later: fetches without the first fetch of each worker, because a first fetch may open the data
    set.  later_s: seconds of the later fetches, less time without a CPU.  owed_s: seconds in which
    the step loop waited for the worker during a fetch.
    """

    worker: int
    rank: int | None
    fetches: int
    later: int
    later_s: float
    owed_s: float

    @property
    def mean_s(self) -> float:
        return self.later_s / self.later


def _by_number(measures: Measures) -> list[list[_Numbered]]:
    """Return the numbered workers of each main process and loader.

    The number of workers distinguishes loaders.
    """
    teams: dict[tuple[int, int], dict[int, list[Worker]]] = {}
    # The last fetch of a killed worker lasts as long as the loop waits for the batch.
    killed = {
        death.process for death in measures.deaths if (death.status or 0) < 0 and not death.is_sent
    }
    for row in measures.workers:
        if row.process in killed:
            continue
        teams.setdefault((row.main, row.team), {}).setdefault(row.worker, []).append(row)
    return [
        [
            _Numbered(
                worker,
                rows[0].rank,
                sum(row.fetches for row in rows),
                sum(row.fetches - 1 for row in rows),
                sum(row.fetch_s - row.first_fetch_s - (row.delay_s or 0.0) for row in rows),
                sum(row.owed_fetch_s for row in rows),
            )
            for worker, rows in sorted(of_team.items())
        ]
        for of_team in teams.values()
    ]


def _slow_worker(measures: Measures) -> RuleResult | None:
    best: RuleResult | None = None
    for team in _by_number(measures):
        rows = [row for row in team if row.later >= LEAST_FETCHES.value]
        if len(rows) < 2:
            continue
        slow = max(rows, key=lambda row: row.mean_s)
        others = [row for row in rows if row is not slow]
        usual_s = median(row.mean_s for row in others)
        if slow.mean_s < STRAGGLES.value * usual_s:
            continue
        # At most the wait beyond the wait for other workers, and at most the worker's extra time.
        gain_s = max(
            0.0,
            min(
                slow.owed_s - median(row.owed_s for row in others),
                slow.fetches * (slow.mean_s - usual_s),
            ),
        )
        of_rank = "" if slow.rank is None else f" of rank {slow.rank}"
        result = RuleResult(
            gain_s / max(1, measures.training.mains),
            (
                f"worker {slow.worker}{of_rank} takes {show(slow.mean_s, 's')} a batch, "
                f"the others {show(usual_s, 's')}",
                f"the step loop waited {show(slow.owed_s, 's')} while it fetched",
            ),
            (Remedy("loader", "give each worker an equal share: files of like size, mixed"),),
            "workers",
        )
        if best is None or (result.gain_s or 0.0) > (best.gain_s or 0.0):
            best = result
    return best


def _slow_rank(measures: Measures) -> RuleResult | None:
    if measures.coupling.how == "apart":  # independent trainings do not delay each other
        return None
    ranks = {row.rank: row for row in measures.ranks if row.rank is not None}
    if len(ranks) < 2:  # other training processes are named by their host, not by a rank
        ranks = {}
    waits = ranks or {row.process: row for row in measures.ranks}
    if len(waits) < 2:
        return None
    slow, row = max(waits.items(), key=lambda item: item[1].data_wait_s)
    usual = median(wait.data_wait_s for name, wait in waits.items() if name != slow)
    if row.data_wait_s < STRAGGLES.value * usual:
        return None
    gain_s = row.data_wait_s - usual
    if measures.coupling.how == "groups":  # a slow rank delays only the rank's own group
        gain_s = min(gain_s, row.lost_s or 0.0)
    name = f"rank {slow}" if ranks else f"one of {len(waits)} main processes, without a rank,"
    return RuleResult(
        gain_s,
        (
            f"{name} on {row.host} waits {show(row.data_wait_s, 's')} for data, "
            f"the others {show(usual, 's')}",
            *_held_up(waits, slow),
        ),
        (Remedy("job", "give each rank an equal share of the bytes; look at that node's tier"),),
        "ranks",
    )


def _held_up(ranks: Mapping[int, Rank], slow: int) -> tuple[str, ...]:
    """Return the waits of the other ranks at barriers, if known."""
    others = [row.barrier_s or 0.0 for name, row in ranks.items() if name != slow]
    own_s = ranks[slow].barrier_s or 0.0
    if median(others) <= own_s:
        return ()
    waits_told = f"{show(median(others), 's')}, it itself {show(own_s, 's')}"
    return (f"the others wait for it at barriers: {waits_told}",)
