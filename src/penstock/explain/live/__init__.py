"""A running job: new events in the job's logs, folded into the last minute and totals.

Reads log files and nothing else: no signal, no lock, no effect on the job.  Knows logs, processes
and spans; knows no table, no report and no screen.

Stall and storage have the definitions of the report: queries/mains, waits, stretches, file_waits,
bounds, and for ranks that wait for each other coupling and shares.  A data wait is attributed to
the thread that fetched the batch, as soon as the wait has ended.  A file call counts with the time
that may have been waiting.  Memory does not grow with the job: Penstock keeps the seconds of the
last minute, sums, some thousand steps, and the calls that an open wait may still need.
"""

import os
import shlex
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import LogError, RunError
from penstock.explain.live.kept import (
    ACCOUNT,
    APP,
    FOREVER,
    IS_STDIO,
    ITERATION,
    OP_NAME,
    OWN,
    READS,
    SAVE,
    SAVE_STORAGE,
    WAIT,
    WAIT_STORAGE,
    WALL,
    WRITES,
    Array,
    Bins,
    Fetch,
    Halt,
    KeptProcess,
    TimeMark,
    Trainer,
    cap,
    fold_accounts,
    fold_in_flight,
    fold_spans,
    is_file_call,
    learn,
)
from penstock.explain.live.ranks import MOST, CoupledRanks, Main
from penstock.explain.live.remote import remote_traffic
from penstock.explain.live.shape import (
    NOT_FED,
    WINDOW_S,
    Blocked,
    Live,
    RemoteTraffic,
    Second,
    Stall,
    Traffic,
)
from penstock.log.events import Events
from penstock.log.follow import Follower, News
from penstock.log.header import Header, is_alive, read_header
from penstock.log.layout import OPS
from penstock.log.texts import is_log_name
from penstock.recording.threads import Look, doing, in_words
from penstock.safe import bounded

__all__ = [
    "NOT_FED",
    "WINDOW_S",
    "Blocked",
    "Live",
    "Monitor",
    "RemoteTraffic",
    "Second",
    "Stall",
    "Traffic",
]

BLOCKED_NS = 1_000_000_000  # the report names a longer call
BLOCKED_SHOWN = 5
# Calls that may block without end.  epoll is excluded: an idle event loop waits in epoll.
ENDLESS = [
    op.number
    for op in OPS
    if op.layer == "wait"
    and op.name not in ("epoll", "sleep", "waitpid", "sync", "collective", "signal")
]
STILL_NS = 10_000_000_000  # the report names a longer open wait and the processes' activity
BACKLOG_UNITS = 256  # of a log, on the first look: 400,000 events, half a second of work

MARKS_KEPT = 100_000

# Tolerance between two clocks joined by anchors: the next look returns later events.
SLACK_NS = 20_000_000
ELSEWHERE_NS = 60_000_000_000  # after 60 s of silence a process of another host counts as dead

# A longer call is not served from memory: queries/file_waits.sql.
SHORT_NS = 10_000
BYTES_PER_NS = 10

_LAYERS = ("posix", "stdio")
HALTS = (WAIT, WAIT_STORAGE, SAVE, SAVE_STORAGE)


class Monitor:
    """A watch on a run folder: each look() reads the new events in the logs.

    Raises RunError: no run in the folder; LogError: no readable log.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str = "") -> None:
        self.folder = os.fspath(folder)
        self.name = name or self.folder
        self._processes: dict[str, KeptProcess] = {}
        self._unreadable: dict[str, str] = {}
        self._shifts: dict[str, tuple[int, int]] = {}  # boot: (earliest start, shift)
        self._traffic = Bins(8)
        self._sums = np.zeros(8)
        self._paths: dict[tuple[str, int], str | None] = {}
        self._begun_ns: int | None = None
        self._quiet_looks = 0
        self._looked: Look | None = None
        self._ranks = CoupledRanks()
        if not os.path.isdir(self.folder):  # noqa: PTH112 - one spelling for str and Path
            raise RunError(f"{self.folder}: no such folder; `penstock run` says where a run goes")

    def was_over(self) -> bool:
        """Return True if no process of the run is alive."""
        self._find_logs()
        if not self._processes and not self._is_launched():
            raise RunError(
                f"{self.folder}: no log of penstock in it; record one with: penstock run COMMAND"
            )
        return (
            bool(self._processes)
            and not any(
                process.header.state in ("running", "stopped")
                and (is_alive(process.header) or not _is_here(process.header))
                for process in self._processes.values()
            )
            and not self._is_launched()
        )

    def _is_launched(self) -> bool:
        """Return True if a `run.json` shows a program of `penstock run` without an end.

        Each rank has a `run.json`.
        """
        for path in Path(self.folder).glob("run*.json"):
            try:
                facts = bounded.json_of(path)
            except (OSError, ValueError):
                continue
            if isinstance(facts, dict) and "end_unix_ns" not in facts and _is_recent(facts):
                return True
        return False

    def look(self) -> Live:
        """Return the run at this moment."""
        self._find_logs()
        now_ns = self._now_ns()
        if self._begun_ns is None:
            self._begun_ns = now_ns
        rates = self._rates()
        for path, process in self._processes.items():
            if not process.is_done:
                self._read(path, process, rates)
        is_over = self._is_over()
        until_ns = FOREVER if is_over else now_ns - SLACK_NS
        mains = self._mains()
        for main, thread, trainer in mains:
            self._settle(main, thread, trainer, until_ns)
        self._forget(mains, until_ns)
        return self._live(now_ns, is_over, mains)

    # Logs

    def _find_logs(self) -> None:
        try:
            names = sorted(
                entry.name for entry in os.scandir(self.folder) if is_log_name(entry.name)
            )
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be read: {error.strerror}") from error
        for name in names:
            path = os.path.join(self.folder, name)  # noqa: PTH118
            if path in self._processes:
                continue
            try:
                header = read_header(path)
            except LogError as error:
                self._unreadable[name] = str(error)  # a new log is empty for a moment
                continue
            self._unreadable.pop(name, None)
            self._processes[path] = KeptProcess(Follower(path, BACKLOG_UNITS), header)
            boot = _boot(header, path)
            shift = header.start_unix_ns - header.start_ns
            if boot not in self._shifts or header.start_ns < self._shifts[boot][0]:
                self._shifts[boot] = (header.start_ns, shift)
        if not self._processes and any("empty" not in why for why in self._unreadable.values()):
            raise LogError(next(why for why in self._unreadable.values() if "empty" not in why))

    def _now_ns(self) -> int:
        """Return the present time on the time axis of the logs.

        By the monotonic clock of this host if a live process of this host writes a log, else by
        wall time.
        """
        for process in self._processes.values():
            if is_alive(process.header):
                shift = self._shifts[process.header.boot_id or ""][1]
                return time.monotonic_ns() + shift
        return time.time_ns()

    def _rates(self) -> dict[str, float]:
        """Return each boot's clock rate, from the log with the largest distance of anchors."""
        furthest: dict[str, Header] = {}
        for path, process in self._processes.items():
            boot = _boot(process.header, path)
            if boot not in furthest or process.header.anchored_ns > furthest[boot].anchored_ns:
                furthest[boot] = process.header
        return {boot: header.ns_per_tick for boot, header in furthest.items()}

    def _read(self, path: str, process: KeptProcess, rates: dict[str, float]) -> None:
        was_alive = process.is_alive
        boot = _boot(process.header, path)
        process.shift_ns = self._shifts[boot][1]
        rate = rates[boot] if process.header.clock == "tsc" else None
        # The log of a process that was dead before the look is complete.
        news = process.follower.look(rate, is_over=not process.is_alive)
        process.header = news.header
        if len(news.finished) or len(news.texts):
            process.changed_ns = time.monotonic_ns()
        process.is_alive = self._seems_alive(process)
        self._fold(process, news)
        if not was_alive and not process.is_alive:
            process.is_done = True

    def _seems_alive(self, process: KeptProcess) -> bool:
        header = process.header
        if header.state in ("exited", "execed"):
            return False
        if is_alive(header):
            return True
        is_elsewhere = not any(is_alive(other.header) for other in self._processes.values())
        silent_ns = time.monotonic_ns() - process.changed_ns
        return (
            header.state == "running"
            and not _is_here(header)
            and is_elsewhere
            and (silent_ns < ELSEWHERE_NS)
        )

    def _is_over(self) -> bool:
        """Return True after two looks in a row without a process.

        One look is not enough: between an exec and the new log no process is visible.
        """
        is_quiet = bool(self._processes) and not any(
            process.is_alive for process in self._processes.values()
        )
        self._quiet_looks = self._quiet_looks + 1 if is_quiet else 0
        return self._quiet_looks > 1

    # Events

    def _fold(self, process: KeptProcess, news: News) -> None:
        learn(process, news.texts)
        if news.skipped_ns is not None:
            process.skipped_ns = news.skipped_ns + process.shift_ns
        finished, held = news.finished, process.held
        process.held = []
        is_app = finished.op >= APP
        self._fold_calls(process, finished.where(~is_app))
        fold_accounts(process, finished.where(finished.op == ACCOUNT))
        spans = finished.where(is_app)
        for events in (*held, spans.where(np.argsort(spans.start_ns, kind="stable"))):
            fold_spans(process, events, is_held=events is not spans and events in held)
        process.in_flight = news.in_flight
        fold_in_flight(process, news.in_flight)

    def _fold_calls(self, process: KeptProcess, events: Events) -> None:
        is_file = is_file_call(process, events)
        events = events.where(is_file)
        if not len(events):
            return
        start = events.start_ns + process.shift_ns
        end = start + events.duration_ns
        is_stdio = IS_STDIO[events.op]
        moved = np.where(events.errno == 0, events.moved, 0)
        is_short = events.duration_ns < SHORT_NS + moved // BYTES_PER_NS
        held = np.where(is_short, 0, events.duration_ns)
        for thread in np.unique(events.thread):
            own = events.thread == thread
            process.calls_of(int(thread)).add(start[own], end[own], held[own])
        ones = np.ones(len(events))
        for layer, mask in enumerate((~is_stdio, is_stdio)):
            for row, values in enumerate(
                (
                    ones,
                    (events.errno != 0) * ones,
                    moved * READS[events.op],
                    moved * WRITES[events.op],
                )
            ):
                place = 4 * layer + row
                self._traffic.add(place, end[mask], values[mask])
                self._sums[place] += values[mask].sum()

    # Attribution

    def _mains(self) -> list[tuple[KeptProcess, int, Trainer]]:
        mains = []
        for process in self._processes.values():
            best = process.trainer
            if best is not None:
                mains.append((process, *best))
        # As in queries/mains.sql: a process that only iterates a loader is no main process if
        # another process trains.
        trains = [main for main in mains if main[2].steps and main[2].origin != ITERATION]
        return trains or mains

    def _settle(self, main: KeptProcess, thread: int, trainer: Trainer, until_ns: int) -> None:
        """Add the pieces of the training up to a moment to the sums."""
        if not trainer.find_first(main.skipped_ns):
            del trainer.marks[:-MARKS_KEPT]
            return
        ready = sorted(
            (mark for mark in trainer.marks if mark.end_ns <= until_ns),
            key=lambda mark: mark.end_ns if mark.kind == "step" else mark.start_ns,
        )
        trainer.marks = [mark for mark in trainer.marks if mark.end_ns > until_ns]
        while ready and ready[-1].kind == "end":  # not part of the training after the last step
            trainer.marks.append(ready.pop())
        trainer.is_cut = main.skipped_ns is not None
        for mark in ready:
            for piece in self._pieces(main, thread, trainer, mark, mark.end_ns):
                _add(trainer, *piece)
            if mark.kind == "step":
                begun = (end for start, end in main.pauses if start <= mark.start_ns)
                trainer.close_step(mark, max(begun, default=0))

    def _pieces(
        self, main: KeptProcess, thread: int, trainer: Trainer, mark: TimeMark, end_ns: int
    ) -> list[tuple[int, int, int, int, float, float]]:
        """Return the contributions of a mark, and move settled_ns to the mark's end.

        A contribution: (row, storage row, from, to, recorded ns, ns in file calls).
        """
        calls = main.calls_of(thread)
        pieces: list[tuple[int, int, int, int, float, float]] = []
        from_ns = trainer.settled_ns
        start_ns = end_ns if mark.kind == "step" else max(mark.start_ns, from_ns)
        if mark.kind != "step" and mark.start_ns < (trainer.first_ns or 0) <= mark.end_ns:
            start_ns = from_ns if main.skipped_ns is not None else end_ns  # the first batch
        if start_ns > from_ns:
            recorded = start_ns - from_ns - main.paused_ns(from_ns, start_ns)
            pieces.append((WALL, OWN, from_ns, start_ns, recorded, calls.ns_in(from_ns, start_ns)))
        if mark.kind != "step" and end_ns > start_ns:
            recorded = end_ns - start_ns - main.paused_ns(start_ns, end_ns)
            if mark.kind in ("wait", "end"):
                in_calls = self._wait_ns(main, thread, mark, start_ns, end_ns)
                pieces.append((WAIT, WAIT_STORAGE, start_ns, end_ns, recorded, in_calls))
            else:
                in_calls = calls.ns_in(start_ns, end_ns)
                pieces.append((SAVE, SAVE_STORAGE, start_ns, end_ns, recorded, in_calls))
        trainer.settled_ns = max(from_ns, end_ns)
        return pieces

    def _wait_ns(
        self, main: KeptProcess, thread: int, wait: TimeMark, start_ns: int, end_ns: int
    ) -> float:
        """Return how long file calls delayed the fetch of the awaited batch, in ns of the wait.

        Counts the calls of the fetching thread, from the begin of the worker's loop to the end of
        the fetch.
        """
        for process in self._processes.values():
            if process is main or process.worker_ns is None or self._main_of(process) is not main:
                continue
            if wait.end_ns == FOREVER:
                begun = process.open_fetches.get(wait.index)
                fetch = Fetch(*begun, end_ns) if begun else None
            else:
                fetch = process.fetches.get((wait.iterator, wait.index))
            if fetch is not None and fetch.start_ns < end_ns:
                from_ns, to_ns = max(start_ns, process.worker_ns), min(end_ns, fetch.end_ns)
                return fetch.held_ns(process.calls_of(fetch.thread), from_ns, to_ns)
        own, calls = main.fetches.get((wait.iterator, wait.index)), main.calls_of(thread)
        if own is not None and own.thread == thread and own.start_ns < end_ns:
            return own.held_ns(calls, start_ns, end_ns)
        return calls.ns_in(start_ns, end_ns)

    def _main_of(self, worker: KeptProcess) -> KeptProcess | None:
        """Return the main process of a worker: the worker's nearest training ancestor."""
        by_pid = {
            (process.header.boot_id, process.header.pid): process
            for process in self._processes.values()
        }
        seen = {worker.header.pid}
        parent: KeptProcess | None = worker
        while parent is not None and parent.header.ppid not in seen:
            seen.add(parent.header.ppid)
            parent = by_pid.get((worker.header.boot_id, parent.header.ppid))
            if parent is not None and parent.trainer is not None:
                return parent
        return None

    def _forget(self, mains: list[tuple[KeptProcess, int, Trainer]], until_ns: int) -> None:
        before_ns = min([until_ns, *(trainer.oldest_ns for _, _, trainer in mains)])
        training = {id(main): (thread, trainer) for main, thread, trainer in mains}
        for process in self._processes.values():
            for number, calls in process.calls.items():
                own_ns = before_ns
                if id(process) in training and training[id(process)][0] == number:
                    own_ns = min(before_ns, training[id(process)][1].settled_ns or before_ns)
                calls.forget(own_ns)
            cap(process.no_files)
            cap(process.fetches)
            del process.pauses[:-1000]

    # Presentation

    def _live(
        self, now_ns: int, is_over: bool, mains: list[tuple[KeptProcess, int, Trainer]]
    ) -> Live:
        processes = list(self._processes.values())
        alive = [process for process in processes if process.is_alive]
        latest_ns = max((trainer.settled_ns for _, _, trainer in mains), default=0)
        until_ns = max(latest_ns, 10**9) if is_over else now_ns - SLACK_NS
        until_s = until_ns // 10**9
        total, recent = np.zeros(6), np.zeros((6, WINDOW_S))
        steps, step_bins, ranks = 0, np.zeros(WINDOW_S), []
        for main, thread, trainer in mains:
            extra = self._unsettled(main, thread, trainer, until_ns) if main.is_alive else _Extra()
            total += trainer.sums + extra.sums
            recent += trainer.bins.last(until_s) + extra.bins.last(until_s)
            steps += trainer.steps
            step_bins += trainer.step_bins.last(until_s)[0]
            ranks.append(Main(main.header.rank, trainer, extra.halts, main.is_done))
        shared = self._ranks.look(ranks)
        first = min(processes, key=lambda process: process.header.start_ns, default=None)
        chosen = mains[0][0] if mains else first
        start_ns = first.header.start_ns + first.shift_ns if first else now_ns
        skipped = [p.skipped_ns for p in processes if p.skipped_ns is not None]
        since_ns = max(skipped, default=start_ns)
        end_ns = max(until_ns, start_ns) if is_over else now_ns
        is_fed = all(of_main.waits or not of_main.steps for _, _, of_main in mains)
        return Live(
            run=self.name,
            command=shlex.join(chosen.header.command) if chosen else "",
            host=chosen.header.host if chosen else "",
            state=_state(processes, is_over),
            elapsed_s=(end_ns - start_ns) / 1e9,
            watched_s=max(0, end_ns - since_ns) / 1e9,
            processes=len(alive),
            mains=len(mains),
            workers=sum(process.worker_ns is not None for process in alive),
            steps=steps,
            step_s=_step_s(recent[WALL].sum(), step_bins.sum()),
            recent=_stall(recent.sum(axis=1), shared.bins.last(until_s).sum(axis=1), is_fed),
            total=_stall(total, shared.sums, is_fed),
            ranks=self._ranks.how,
            slowest=self._ranks.slowest(ranks, shared),
            recent_traffic=_traffic(self._traffic.last(until_s).sum(axis=1)),
            traffic=_traffic(self._sums),
            seconds=_seconds(
                recent, shared.bins.last(until_s), step_bins, self._traffic.last(until_s)
            ),
            blocked=self._blocked(alive, now_ns),
            gaps=(*(() if is_fed else (NOT_FED,)), *self._gaps(processes, is_over)),
            remote=remote_traffic(process.remote for process in processes),
            still=() if is_over else self._still(mains, now_ns),
        )

    def _still(self, mains: list[tuple[KeptProcess, int, Trainer]], now_ns: int) -> tuple[str, ...]:
        """Describe long open waits: the kernel's view of main processes and workers since the
        last look."""
        looked, self._looked = self._looked, None
        waiting = []
        for main, thread, trainer in mains:
            oldest = min(trainer.open, key=lambda mark: mark.start_ns, default=None)
            oldest = oldest or _blocked_in(main, thread)
            if oldest and is_alive(main.header) and now_ns - oldest.start_ns > STILL_NS:
                waiting.append((main, oldest))
        if not waiting:
            return ()
        alive = [process for process in self._processes.values() if is_alive(process.header)]
        self._looked = Look(process.header.pid for process in alive)
        does = {task.tid: task for task in (doing(looked) if looked else ())}
        lines = []
        for main, mark in waiting[:BLOCKED_SHOWN]:
            pid, s = main.header.pid, (now_ns - mark.start_ns) / 1e9
            kind = {"save": "saves a checkpoint", "wait": "waits for data"}.get(
                mark.kind, mark.kind
            )
            said = [f"process {pid} {kind} for {s:.0f} s"]
            workers = [
                process.header.pid
                for process in alive
                if process.worker_ns is not None and self._main_of(process) is main
            ]
            for other in (workers or [pid])[:BLOCKED_SHOWN]:
                if other in does:
                    who = "it" if other == pid else f"worker {other}"
                    it = does[other]
                    said.append(f"{who} {in_words(it.state, it.call, it.path)}")
            lines.append(", ".join(said))
        return tuple(lines)

    def _unsettled(
        self, main: KeptProcess, thread: int, trainer: Trainer, until_ns: int
    ) -> "_Extra":
        """Return the contribution of the wait or checkpoint under way, else of computing."""
        extra = _Extra()
        if trainer.first_ns is None or until_ns <= trainer.settled_ns:
            return extra
        shadow = Trainer(first_ns=trainer.first_ns, settled_ns=trainer.settled_ns)
        shadow.closed = trainer.closed
        marks = [mark for mark in trainer.open if trainer.first_ns <= mark.start_ns < until_ns]
        for mark in sorted(marks, key=lambda mark: mark.start_ns)[:1] or [
            TimeMark(until_ns, until_ns, "step")
        ]:
            for piece in self._pieces(main, thread, shadow, mark, until_ns):
                _add(shadow, *piece)
        return _Extra(shadow.sums, shadow.bins, shadow.halts)

    def _blocked(self, alive: Iterable[KeptProcess], now_ns: int) -> tuple[Blocked, ...]:
        calls = []
        for process in alive:
            events = process.in_flight.where(is_file_call(process, process.in_flight))
            age = now_ns - events.start_ns - process.shift_ns
            for place in np.flatnonzero(age > BLOCKED_NS):
                op, file = int(events.op[place]), int(events.file[place])
                calls.append((int(age[place]), op, file, process))
        calls.sort(key=lambda call: -call[0])
        return tuple(
            Blocked(
                OP_NAME.get(op, f"op {op}"), self._path(process, file), ns / 1e9, process.header.pid
            )
            for ns, op, file, process in calls[:BLOCKED_SHOWN]
        )

    def _path(self, process: KeptProcess, file: int) -> str | None:
        if not file:
            return None
        key = (process.follower.path, file)
        if key not in self._paths:
            cap(self._paths, 256)
            self._paths[key] = _path_of(process, file)
        return self._paths[key]

    def _gaps(self, processes: list[KeptProcess], is_over: bool) -> tuple[str, ...]:
        gaps = []
        folded = sum(process.header.folded for process in processes)
        if folded:
            gaps.append(f"{folded:,} calls past the trace budget are in no number here")
        lost = sum(process.header.lost for process in processes)
        if lost:
            gaps.append(f"{lost:,} calls are lost")
        dropped = sum(calls.n_dropped for process in processes for calls in process.calls.values())
        if dropped:
            gaps.append(f"{dropped:,} calls were too many to wait for: storage is a lower bound")
        failed = [
            process.header.reason for process in processes if process.header.state == "failed"
        ]
        if failed:
            gaps.append(f"recording ended in {len(failed)} process: {failed[0]}")
        if any(process.is_pooled for process in processes):
            gaps.append("a loader does not say who fetches: storage of its waits is a lower bound")
        if any(process.skipped_ns is not None for process in processes):
            gaps.append("totals count from when the watch began: the log before it is long")
        if self._unreadable and is_over:
            gaps.append(next(iter(self._unreadable.values())))
        return tuple(gaps)


@dataclass(frozen=True, slots=True)
class _Extra:
    """Contributions under way, beside the settled ones."""

    sums: Array = field(default_factory=lambda: np.zeros(6))
    bins: Bins = field(default_factory=lambda: Bins(6))
    halts: list[Halt] = field(default_factory=list)


def _add(
    trainer: Trainer, row: int, storage_row: int, a: int, b: int, ns: float, in_calls: float
) -> None:
    """Add a piece to the sums and the seconds; every piece is wall time."""
    rows = {storage_row: min(in_calls, ns), WALL: ns}
    if row != WALL:
        rows[row] = ns
        trainer.halts.append(Halt(trainer.closed + 1, row, a, b, ns, rows[storage_row]))
    for place, amount in rows.items():
        trainer.sums[place] += amount
        trainer.bins.spread(place, a, b, amount)


def _is_recent(facts: dict[str, Any]) -> bool:
    """Return True for a start at most a minute ago: a killed launcher writes no end."""
    start_ns = facts.get("start_unix_ns")
    return isinstance(start_ns, int) and time.time_ns() - start_ns < ELSEWHERE_NS


def _boot(header: Header, path: str) -> str:
    return header.boot_id if header.boot_id.strip("0") else path


def _is_here(header: Header) -> bool:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip().replace("-", "") == header.boot_id
    except OSError:
        return False


def _state(processes: list[KeptProcess], is_over: bool) -> str:
    if is_over:
        return "over"
    alive = [process for process in processes if process.is_alive]
    if not processes:
        return "starting"
    is_recording = any(process.header.state == "running" for process in alive)
    return "running" if is_recording or not alive else "paused"


def _step_s(wall_ns: float, steps: float) -> float | None:
    return wall_ns / 1e9 / steps if steps and wall_ns else None


def _traffic(sums: Array) -> tuple[Traffic, ...]:
    return tuple(
        Traffic(layer, *(round(value) for value in sums[4 * n : 4 * n + 4]))
        for n, layer in enumerate(_LAYERS)
    )


def _stall(own: Array, shared: Array, is_fed: bool) -> Stall:
    """Build the Stall of all main processes, in seconds.

    own: Trainer.sums in ns, summed over main processes, each with its own halts.
    shared: Shared sums in ns, with halts weighted by the loss of the job.
    """
    rows = own.copy()
    rows[list(HALTS)] = shared[list(HALTS)]
    return replace(
        Stall(*(rows / 1e9).tolist()),
        is_fed=is_fed,
        mean_stall_s=float(own[WAIT] + own[SAVE]) / 1e9,
        most_stall_s=float(shared[MOST]) / 1e9,
    )


def _seconds(recent: Array, shared: Array, steps: Array, traffic: Array) -> tuple[Second, ...]:
    seconds = []
    for place in range(WINDOW_S):
        wall = recent[WALL, place]
        # A second with less than a millisecond of training has no share.
        wait, save = (
            (min(1.0, float(shared[row, place] / wall)) if wall > 1e6 else None)
            for row in (WAIT, SAVE)
        )
        own = float(recent[OWN, place] / wall) if wall > 1e6 else None
        read = max(traffic[2, place], traffic[6, place])
        written = max(traffic[3, place], traffic[7, place])
        seconds.append(Second(wait, save, int(read), int(written), int(steps[place]), own))
    return tuple(seconds)


def _blocked_in(process: KeptProcess, thread: int) -> TimeMark | None:
    """Return the endless call that blocks the thread as a mark; None: no such call is open."""
    events = process.in_flight
    blocked = np.flatnonzero(np.isin(events.op, ENDLESS) & (events.thread == thread))
    if not len(blocked):
        return None
    op = OP_NAME[int(events.op[blocked[0]])]
    start_ns = int(events.start_ns[blocked[0]]) + process.shift_ns
    return TimeMark(start_ns, start_ns, f"is blocked in {op}")


def _path_of(process: KeptProcess, file: int) -> str | None:
    """Return the path of a call's file, with the folder if the log has the folder."""
    parts: list[str] = []
    seen: set[int] = set()
    while file and file not in seen:
        seen.add(file)
        text = process.follower.find_file(file)
        if text is None:
            break
        parts.append(text.name or text.resolved)
        if parts[-1].startswith("/"):
            break
        file = text.base
    return "/".join(reversed(parts)) or None
