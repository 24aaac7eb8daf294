"""Simulate a training and a loader with prefetching workers.

Knows no run, no clock and no storage: times in seconds come in, times go out.  The model is fluid:
between two events each task advances at a constant rate.  Storage tasks share bandwidth and
requests per second, tasks with CPU share the CPUs of a rank; other time is not shared.
The semantics are of PyTorch's DataLoader: worker w of n fetches batches w, w + n, ... in order, at
most `prefetch` batches ahead of the training, and batches are consumed in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["BatchWork", "Limits", "Loop", "LoopTime", "simulate"]

_DONE_S = 1e-12


@dataclass(frozen=True, slots=True)
class BatchWork:
    """The work for one batch, alone on an idle machine.

    storage_s: in storage; requests and moved_bytes are the load during storage_s.  other_s: neither
    in storage nor on a CPU.  cpu_s: on one CPU.
    """

    storage_s: float
    requests: float
    moved_bytes: float
    other_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Loop:
    """An epoch of a rank.  Times in seconds.

    fetches: of the batches, in order.  consume_s: after each batch, until the request for the next
    batch.  start_s: from the begin of the epoch until each worker may fetch; further workers start
    as far apart as the last two.  before_s: from the begin until the first request for a batch.
    after_s: from the last batch's consumption to the end.  hand_s: taking over a finished batch,
    within the wait.  gap_s: of a worker between two fetches.  consume_cpus: CPUs in use by the
    training during consumption.
    """

    fetches: Sequence[BatchWork]
    consume_s: Sequence[float]
    start_s: Sequence[float] = (0.0,)
    before_s: float = 0.0
    after_s: float = 0.0
    hand_s: float = 0.0
    gap_s: float = 0.0
    consume_cpus: float = 1.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The capacity of a place.  cpus: of each rank.  bandwidth_bps, requests_hz: of the storage,
    shared by all ranks."""

    cpus: float = float("inf")
    bandwidth_bps: float = float("inf")
    requests_hz: float = float("inf")


@dataclass(frozen=True, slots=True)
class LoopTime:
    """wall_s: of the epoch.  wait_s: data wait of the training, mean of the ranks."""

    wall_s: float
    wait_s: float


@dataclass(slots=True)
class _Task:
    """A stretch of work.  cpus, bps, hz: the load at full rate."""

    left_s: float
    cpus: float = 0.0
    bps: float = 0.0
    hz: float = 0.0


@dataclass(slots=True)
class _Worker:
    queue: deque[int] = field(default_factory=deque)
    stages: deque[_Task] = field(default_factory=deque)
    batch: int = -1


def _start_s(starts_s: Sequence[float], number: int) -> float:
    last = len(starts_s) - 1
    apart_s = max(0.0, starts_s[last] - starts_s[last - 1]) if last else 0.0
    return starts_s[min(number, last)] + max(0, number - last) * apart_s


class _Rank:
    """The state of a rank: the workers, and the training thread."""

    def __init__(self, loop: Loop, workers: int, prefetch: int) -> None:
        self.loop = loop
        self.n = len(loop.fetches)
        self.workers = [_Worker() for _ in range(max(1, workers))]
        self.ahead = prefetch * workers
        self.is_own = workers == 0  # the training thread fetches
        self.sent = 0
        self.ready: set[int] = set()
        self.batch = 0
        self.wait_s = 0.0
        self.is_waiting = False
        self.is_taking = False  # a batch is there, and is taken over
        self.stage = _Task(loop.before_s)
        for number, worker in enumerate(self.workers):
            worker.stages.append(_Task(_start_s(loop.start_s, number)))
        for _ in range(min(self.n, self.ahead)):
            self._send()

    def _send(self) -> None:
        self.workers[self.sent % len(self.workers)].queue.append(self.sent)
        self.sent += 1

    def tasks(self) -> list[_Task]:
        running = [worker.stages[0] for worker in self.workers if worker.stages]
        return [*running, self.stage] if self.stage.left_s > 0 else running

    def work(self) -> bool:
        """Begin all work that can begin now; return True if any work began."""
        changed = False
        for worker in self.workers:
            changed |= self._work_of(worker)
        if self.is_taking and self.stage.left_s <= _DONE_S:
            self.is_waiting = self.is_taking = False
            loop = self.loop
            self.stage = _Task(loop.consume_s[self.batch], cpus=loop.consume_cpus)
            changed = True
        elif self.is_waiting and not self.is_taking and self.batch in self.ready:
            self.is_taking = True
            self.ready.remove(self.batch)
            if self.sent < self.n and not self.is_own:
                self._send()
            self.stage = _Task(self.loop.hand_s)
            changed = True
        return changed

    def _work_of(self, worker: _Worker) -> bool:
        changed = False
        while worker.stages and worker.stages[0].left_s <= _DONE_S:
            worker.stages.popleft()
            changed = True
            if not worker.stages and worker.batch >= 0:
                self.ready.add(worker.batch)
                worker.batch = -1
        if not worker.stages and worker.queue:
            worker.batch = worker.queue.popleft()
            fetch = self.loop.fetches[worker.batch]
            storage_s = max(fetch.storage_s, _DONE_S)
            worker.stages.extend((
                _Task(self.loop.gap_s + fetch.other_s),
                _Task(
                    fetch.storage_s, bps=fetch.moved_bytes / storage_s,
                    hz=fetch.requests / storage_s,
                ),
                _Task(fetch.cpu_s, cpus=1.0),
            ))  # fmt: skip
            changed = True
        return changed

    def go_on(self) -> None:
        """Ask for the next batch, once the last batch is consumed and all ranks have met."""
        self.is_waiting = True
        if self.is_own:
            self._send()


def simulate(loops: Sequence[Loop], workers: int, prefetch: int, limits: Limits) -> LoopTime:
    """Return the time of an epoch of several ranks that meet after each batch.

    loops: of each rank, all of equal length.  workers: of each rank; 0: the training thread
    fetches.
    """
    ranks = [_Rank(loop, workers, prefetch) for loop in loops]
    batches = len(loops[0].fetches)
    now_s, at = 0.0, -1  # at: the batch in consumption; -1: before the first batch
    while True:
        _settle(ranks)
        if all(not rank.is_waiting and rank.stage.left_s <= _DONE_S for rank in ranks):
            at += 1
            if at >= batches:
                break
            for rank in ranks:
                rank.batch = at
                rank.go_on()
            continue
        step_s = _advance(ranks, limits)
        now_s += step_s
        for rank in ranks:
            if rank.is_waiting:
                rank.wait_s += step_s
    after_s = max(loop.after_s for loop in loops)
    return LoopTime(now_s + after_s, sum(rank.wait_s for rank in ranks) / len(ranks))


def _settle(ranks: Sequence[_Rank]) -> None:
    begun = True
    while begun:
        begun = bool(sum(rank.work() for rank in ranks))


def _advance(ranks: Sequence[_Rank], limits: Limits) -> float:
    """Advance all tasks until the first task ends; return the passed time."""
    tasks = [rank.tasks() for rank in ranks]
    every = [task for group in tasks for task in group]
    storage = min(
        1.0,
        limits.bandwidth_bps / max(sum(task.bps for task in every), 1e-9),
        limits.requests_hz / max(sum(task.hz for task in every), 1e-9),
    )
    rates: list[tuple[_Task, float]] = []
    for group in tasks:
        cpu = min(1.0, limits.cpus / max(sum(task.cpus for task in group), 1e-9))
        for task in group:
            is_storage = task.bps > 0 or task.hz > 0
            rates.append((task, storage if is_storage else cpu if task.cpus else 1.0))
    step_s = min((max(task.left_s, 0.0) / rate for task, rate in rates), default=0.0)
    for task, rate in rates:
        task.left_s = max(0.0, task.left_s - rate * step_s)
        if task.left_s < _DONE_S:
            task.left_s = 0.0
    return step_s
