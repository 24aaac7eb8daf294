"""A run while it goes on: what its logs gain, folded into the last minute and totals since then.

Reads log files and nothing else: no signal, no lock, nothing that the job could notice.  Knows
logs, processes and spans; knows no table, no report and no screen.

Stall and storage mean what they mean in the report (queries/mains, waits, stretches, file_waits,
bounds): a data wait is attributed to the thread that fetched the batch, here as soon as the wait
has ended, and of a file call counts what may have been waiting.  What is
kept does not grow with the job: seconds of the last minute, sums, and the calls that a wait which
has not ended may still ask for.
"""

import json
import os
import shlex
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LogError, RunError
from penstock.log import (
    FILE_TEXT,
    NAME_TEXT,
    OPS,
    Events,
    Follower,
    Header,
    News,
    Text,
    is_alive,
    read_header,
)
from penstock.threads import Look, doing, in_words

__all__ = ["NOT_FED", "WINDOW_S", "Blocked", "Live", "Monitor", "Second", "Stall", "Traffic"]

Array = NDArray[Any]

NOT_FED = "steps took data from no loader that Penstock knows: the stall is not measured"
WINDOW_S = 60  # long enough for a save every half minute to show
BINS = 64  # seconds kept; the ones beyond the window are still being filled
BLOCKED_NS = 1_000_000_000  # a call that takes longer is named
BLOCKED_SHOWN = 5
STILL_NS = 10_000_000_000  # a wait that is open for longer is named, with what its processes do
BACKLOG_UNITS = 256  # of a log, on the first look: 400,000 events, half a second of work
CALLS_KEPT = 1 << 19  # of a thread, 8 MiB: a wait of ten seconds at 50,000 calls/s
MARKS_KEPT = 100_000
IDS_KEPT = 65536  # of pipes and sockets, and of fetches
# Times of two clocks, brought together by their anchors: what ended later is told next time.
SLACK_NS = 20_000_000
ELSEWHERE_NS = 60_000_000_000  # another host's process is taken for dead when silent for so long
FOREVER = 1 << 62
# A call served from memory takes no longer: queries/file_waits.sql.
SHORT_NS = 10_000
BYTES_PER_NS = 10
# Steps by who marks them, the first that there is counts: the program, an adapter, a loader.
BY_HAND, ADAPTER, ITERATION = STEPS = (1, 0, 2)
CONTINUATION = 3  # of an adapter's step

_GROUPS = ("read", "write", "metadata")
_SYNCS = ("fsync", "fdatasync", "sync_range", "syncfs", "msync", "fflush")
_NUMBER = {op.name: op.number for op in OPS}
_NAME = {op.number: op.name for op in OPS}
_APP = min(op.number for op in OPS if op.layer == "app")
_ACCOUNT = _NUMBER["account"]
_LAYERS = ("posix", "stdio")
_NO_FILE = ("pipe:", "socket:", "anon_inode:", "/dev/pts/", "/dev/tty", "/dev/console")


def _table(of: Callable[[Any], bool]) -> Array:
    table = np.zeros(256, bool)
    table[[op.number for op in OPS if of(op)]] = True
    return table


_IS_FILE_CALL = _table(lambda op: op.group in _GROUPS)
_IS_STDIO = _table(lambda op: op.layer == "stdio")
_READS = _table(lambda op: op.group == "read")
_WRITES = _table(lambda op: op.group == "write" and op.name not in _SYNCS)


@dataclass(frozen=True, slots=True)
class Stall:
    """A stretch of training, in seconds, summed over main processes.

    data_storage_s: of the data wait, held up in file calls of whoever fetched the batch;
    checkpoint_storage_s: of the checkpoint block, the same of the thread that saves;
    own_s: the same of the training thread outside both.
    is_fed: a known loader was seen in every main process that takes steps; else data waits may have
    gone unseen, and the stall is not measured.
    """

    wall_s: float = 0.0
    data_wait_s: float = 0.0
    data_storage_s: float = 0.0
    checkpoint_s: float = 0.0
    checkpoint_storage_s: float = 0.0
    own_s: float = 0.0
    is_fed: bool = True

    def share(self, s: float) -> float | None:
        """Of the wall time; None while there is none."""
        return s / self.wall_s if self.wall_s > 0 else None

    @property
    def stall(self) -> float | None:
        """(data wait + checkpoint block) / wall; None where data waits may have gone unseen."""
        return self.share(self.data_wait_s + self.checkpoint_s) if self.is_fed else None

    @property
    def storage(self) -> float | None:
        """Wall time in which the training thread is held up by file calls, by whoever made them;
        None where data waits may have gone unseen."""
        if not self.is_fed:
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
    for long, with what the processes do that are waited for, in words.
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


# --- small state ----------------------------------------------------------------------------------


class _Bins:
    """Sums by second, of the last BINS seconds; rows are the caller's series."""

    def __init__(self, rows: int) -> None:
        self.sums = np.zeros((rows, BINS))
        self.second = 0  # the latest that has a bin

    def reach(self, second: int) -> None:
        """Makes room up to a second; what falls out is forgotten."""
        new = min(BINS, second - self.second)
        if new > 0:
            self.sums[:, np.arange(second - new + 1, second + 1) % BINS] = 0
            self.second = second

    def add(self, row: int, ns: Array, values: Array) -> None:
        """Each value into the second of its moment."""
        if not len(ns):
            return
        seconds = ns // 10**9
        self.reach(int(seconds.max()))
        is_kept = seconds > self.second - BINS
        np.add.at(self.sums[row], seconds[is_kept] % BINS, values[is_kept])

    def spread(self, row: int, start_ns: int, end_ns: int, amount: float) -> None:
        """An amount evenly over a stretch."""
        if end_ns <= start_ns:
            return
        self.reach(end_ns // 10**9)
        first = max(start_ns // 10**9, self.second - BINS + 1)
        for second in range(first, end_ns // 10**9 + 1):
            inside = min(end_ns, (second + 1) * 10**9) - max(start_ns, second * 10**9)
            self.sums[row, second % BINS] += amount * inside / (end_ns - start_ns)

    def last(self, until_s: int) -> Array:
        """The WINDOW_S seconds before until_s, oldest first."""
        self.reach(until_s)
        sums: Array = self.sums[:, np.arange(until_s - WINDOW_S, until_s) % BINS]
        return sums


class _Calls:
    """File calls of one thread, as long as a wait may ask for them: of each its start, its end and
    how long storage may have held it up."""

    def __init__(self) -> None:
        self._new: list[tuple[Array, Array, Array]] = []
        self._accounts: list[tuple[Array, Array]] = []
        self._start = np.empty(0, np.int64)
        self._end = np.empty(0, np.int64)
        self._held = np.empty(0, np.int64)
        self.open_ns: list[int] = []  # starts of those in flight
        self.n_dropped = 0

    def add(self, start: Array, end: Array, held: Array) -> None:
        self._new.append((start, end, held))

    def account(self, start: Array, ns: Array) -> None:
        """Of the calls that began then, so long was no waiting."""
        self._accounts.append((start, ns))

    def _gather(self) -> None:
        if self._new:
            known = (self._start, self._end, self._held)
            start, end, held = (
                np.concatenate([column, *(new[place] for new in self._new)])
                for place, column in enumerate(known)
            )
            order = np.argsort(start, kind="stable")
            self._start, self._end, self._held = start[order], end[order], held[order]
            self._new = []
        if self._accounts and len(self._start):
            start, ns = (np.concatenate(columns) for columns in zip(*self._accounts, strict=True))
            place = np.minimum(np.searchsorted(self._start, start), len(self._start) - 1)
            is_met = self._start[place] == start
            place = place[is_met]
            self._held[place] = np.maximum(self._held[place] - ns[is_met], 0)
            is_early = ~is_met & (start > self._start[-1])  # its call is told in the next look
            self._accounts = [(start[is_early], ns[is_early])] if is_early.any() else []

    def ns_in(self, start_ns: int, end_ns: int) -> float:
        """Time of the stretch in which calls were held up, those in flight included."""
        if end_ns <= start_ns:
            return 0.0
        self._gather()
        # Calls of one thread do not overlap, so their ends are in order too.
        first = int(np.searchsorted(self._end, start_ns, side="right"))
        last = int(np.searchsorted(self._start, end_ns))
        start = np.maximum(self._start[first:last], start_ns)
        part = np.maximum(np.minimum(self._end[first:last], end_ns) - start, 0)
        length = np.maximum(self._end[first:last] - self._start[first:last], 1)
        inside = float((part / length * self._held[first:last]).sum())
        inside += sum(max(0, end_ns - max(begun, start_ns)) for begun in self.open_ns)
        return min(inside, end_ns - start_ns)

    def forget(self, before_ns: int) -> None:
        """Drops what ended before; and the oldest, where too many are left."""
        self._gather()
        first = int(np.searchsorted(self._end, before_ns))
        too_many = len(self._end) - first - CALLS_KEPT
        if too_many > 0:
            self.n_dropped += too_many
            first += too_many
        if first:
            self._start, self._end = self._start[first:].copy(), self._end[first:].copy()
            self._held = self._held[first:].copy()


@dataclass(slots=True)
class _Mark:
    """A step (only its end counts), a data wait, the end of a loader or a checkpoint; end_ns
    FOREVER: in flight."""

    start_ns: int
    end_ns: int
    kind: str
    index: int = -1
    iterator: int = 0


@dataclass(slots=True)
class _Fetch:
    """A batch being made; idle_ns: how long at most its thread was held up; None: not known."""

    thread: int
    start_ns: int
    end_ns: int
    idle_ns: int | None = None

    def held_ns(self, calls: _Calls, from_ns: int, to_ns: int) -> float:
        """Of a stretch of it the time in file calls that may have been waiting."""
        part_ns = calls.ns_in(from_ns, to_ns)
        if self.idle_ns is None or not part_ns:
            return part_ns
        return part_ns * min(1.0, self.idle_ns / calls.ns_in(self.start_ns, self.end_ns))


WALL, WAIT, WAIT_STORAGE, SAVE, SAVE_STORAGE, OWN = range(6)


@dataclass(slots=True)
class _Trainer:
    """A thread that takes steps or waits for data: its stretch of training, piece by piece."""

    marks: list[_Mark] = field(default_factory=list)  # ended, not settled
    open: list[_Mark] = field(default_factory=list)  # in flight
    bins: _Bins = field(default_factory=lambda: _Bins(6))
    sums: Array = field(default_factory=lambda: np.zeros(6))
    step_bins: _Bins = field(default_factory=lambda: _Bins(1))
    steps: int = 0
    origin: int = ITERATION  # of the steps that count: queries/steps.sql
    waits: int = 0
    first_step: _Mark | None = None
    first_wait: _Mark | None = None
    first_ns: int | None = None  # where the training begins
    settled_ns: int = 0  # up to where pieces are summed

    def step(self, mark: _Mark, origin: int) -> None:
        if origin == CONTINUATION:
            if self.origin == ADAPTER:
                self.marks.append(mark)
            return
        rank = STEPS.index(origin) if origin in STEPS else len(STEPS) - 1
        if rank > STEPS.index(self.origin):
            return
        if rank < STEPS.index(self.origin):
            self.origin, self.steps, self.step_bins = STEPS[rank], 0, _Bins(1)
            self.first_step = None
            self.marks = [one for one in self.marks if one.kind != "step"]
        self.steps += 1
        self.step_bins.add(0, np.array([mark.end_ns]), np.ones(1))
        if self.first_step is None or mark.start_ns < self.first_step.start_ns:
            self.first_step = mark
        self.marks.append(mark)

    def wait(self, mark: _Mark) -> None:
        self.waits += 1
        if self.first_wait is None or mark.start_ns < self.first_wait.start_ns:
            self.first_wait = mark
        self.marks.append(mark)

    def find_first(self, not_before_ns: int | None) -> bool:
        """As queries/mains.sql: the first step's start, but not before the first batch is there."""
        if self.first_ns is not None:
            return True
        step, wait = self.first_step, self.first_wait
        if not_before_ns is not None and (step or wait):
            self.first_ns = not_before_ns
        elif step is not None:
            is_after = wait is not None and wait.start_ns < step.end_ns
            self.first_ns = max(step.start_ns, wait.end_ns if wait and is_after else 0)
        elif wait is not None and self.waits > 2:  # a job that evaluates takes no steps
            self.first_ns = wait.end_ns
        if self.first_ns is not None:
            self.settled_ns = self.first_ns
        return self.first_ns is not None

    @property
    def oldest_ns(self) -> int:
        """From when on calls are still asked for."""
        return min((mark.start_ns for mark in (*self.marks, *self.open)), default=FOREVER)


@dataclass(slots=True)
class _Process:
    """One log and what is remembered of it."""

    follower: Follower
    header: Header
    shift_ns: int = 0  # from its host's CLOCK_MONOTONIC to ns since 1970
    names: dict[int, str] = field(default_factory=dict)
    no_files: dict[int, None] = field(default_factory=dict)
    calls: dict[int, _Calls] = field(default_factory=dict)
    trainers: dict[int, _Trainer] = field(default_factory=dict)
    fetches: dict[tuple[int, int], _Fetch] = field(default_factory=dict)
    open_fetches: dict[int, tuple[int, int]] = field(default_factory=dict)
    pauses: list[tuple[int, int]] = field(default_factory=list)
    open_pause: int | None = None
    in_flight: Events = field(default_factory=Events.none)
    held: list[Events] = field(default_factory=list)  # spans whose name is not known yet
    skipped_ns: int | None = None
    is_pooled: bool = False  # its loader does not say who fetches
    worker_ns: int | None = None  # when its loop began, of a loader's worker
    changed_ns: int = 0
    is_alive: bool = True
    is_done: bool = False  # dead, and read to its end

    @property
    def trainer(self) -> tuple[int, _Trainer] | None:
        """The thread that takes the steps; without steps, the one that waits for data."""
        if self.worker_ns is not None:
            return None
        rank = {n: (one.steps, one.waits) for n, one in self.trainers.items()}
        best = max(rank, key=lambda n: rank[n], default=None)
        return (best, self.trainers[best]) if best is not None and any(rank[best]) else None

    def calls_of(self, thread: int) -> _Calls:
        return self.calls.setdefault(thread, _Calls())

    def paused_ns(self, start_ns: int, end_ns: int) -> int:
        """Time of a stretch in which this process was not recorded."""
        pauses = list(self.pauses)
        if self.open_pause is not None:
            pauses.append((self.open_pause, FOREVER))
        return sum(max(0, min(b, end_ns) - max(a, start_ns)) for a, b in pauses)


# --- the monitor ----------------------------------------------------------------------------------


class Monitor:
    """Watches a run folder.  Each look() reads what its logs have gained since the last one.

    Raises RunError where there is no run in the folder, LogError where no log can be read.
    """

    def __init__(self, folder: str | os.PathLike[str], name: str = "") -> None:
        self.folder = os.fspath(folder)
        self.name = name or self.folder
        self._processes: dict[str, _Process] = {}
        self._unreadable: dict[str, str] = {}
        self._shifts: dict[str, tuple[int, int]] = {}  # boot: (its earliest start, shift)
        self._traffic = _Bins(8)
        self._sums = np.zeros(8)
        self._paths: dict[tuple[str, int], str | None] = {}
        self._begun_ns: int | None = None
        self._quiet_looks = 0
        self._looked: Look | None = None
        if not os.path.isdir(self.folder):  # noqa: PTH112 - one spelling for str and Path
            raise RunError(f"{self.folder}: no such folder; `penstock run` says where a run goes")

    def was_over(self) -> bool:
        """Whether no process of the run is alive, so that there is nothing to watch."""
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
        """Whether `penstock run` says that a program of it has not ended: one for each rank that
        it stood in for."""
        for path in Path(self.folder).glob("run*.json"):
            try:
                facts = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
            if isinstance(facts, dict) and "end_unix_ns" not in facts and _is_recent(facts):
                return True
        return False

    def look(self) -> Live:
        """The run as it is now."""
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
            names = sorted(one.name for one in os.scandir(self.folder) if one.name.endswith(".log"))
        except OSError as error:
            raise RunError(f"{self.folder}: cannot be read: {error.strerror}") from error
        for name in names:
            path = os.path.join(self.folder, name)  # noqa: PTH118
            if path in self._processes:
                continue
            try:
                header = read_header(path)
            except LogError as error:
                self._unreadable[name] = str(error)  # empty for a moment while it is being made
                continue
            self._unreadable.pop(name, None)
            self._processes[path] = _Process(Follower(path, BACKLOG_UNITS), header)
            boot = _boot(header, path)
            shift = header.start_unix_ns - header.start_ns
            if boot not in self._shifts or header.start_ns < self._shifts[boot][0]:
                self._shifts[boot] = (header.start_ns, shift)
        if not self._processes and any("empty" not in why for why in self._unreadable.values()):
            raise LogError(next(why for why in self._unreadable.values() if "empty" not in why))

    def _now_ns(self) -> int:
        """On the axis of the logs: by this host's clock where it wrote one, else by wall time."""
        for process in self._processes.values():
            if is_alive(process.header):
                shift = self._shifts[process.header.boot_id or ""][1]
                return time.monotonic_ns() + shift
        return time.time_ns()

    def _rates(self) -> dict[str, float]:
        """For each boot the clock's rate: of the log whose anchors are furthest apart."""
        furthest: dict[str, Header] = {}
        for path, process in self._processes.items():
            boot = _boot(process.header, path)
            if boot not in furthest or process.header.anchored_ns > furthest[boot].anchored_ns:
                furthest[boot] = process.header
        return {boot: header.ns_per_tick for boot, header in furthest.items()}

    def _read(self, path: str, process: _Process, rates: dict[str, float]) -> None:
        was_alive = process.is_alive
        boot = _boot(process.header, path)
        process.shift_ns = self._shifts[boot][1]
        rate = rates[boot] if process.header.clock == "tsc" else None
        # Dead before this look: what it wrote is there.
        news = process.follower.look(rate, is_over=not process.is_alive)
        process.header = news.header
        if len(news.finished) or len(news.texts):
            process.changed_ns = time.monotonic_ns()
        process.is_alive = self._seems_alive(process)
        self._fold(process, news)
        if not was_alive and not process.is_alive:
            process.is_done = True

    def _seems_alive(self, process: _Process) -> bool:
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
        """Two looks in a row without a process: between an exec and its new log there is none."""
        is_quiet = bool(self._processes) and not any(
            process.is_alive for process in self._processes.values()
        )
        self._quiet_looks = self._quiet_looks + 1 if is_quiet else 0
        return self._quiet_looks > 1

    # Events

    def _fold(self, process: _Process, news: News) -> None:
        _learn(process, news.texts)
        if news.skipped_ns is not None:
            process.skipped_ns = news.skipped_ns + process.shift_ns
        finished, held = news.finished, process.held
        process.held = []
        is_app = finished.op >= _APP
        self._fold_calls(process, finished.where(~is_app))
        _fold_accounts(process, finished.where(finished.op == _ACCOUNT))
        spans = finished.where(is_app)
        for events in (*held, spans.where(np.argsort(spans.start_ns, kind="stable"))):
            _fold_spans(process, events, is_held=events is not spans and events in held)
        process.in_flight = news.in_flight
        _fold_in_flight(process, news.in_flight)

    def _fold_calls(self, process: _Process, events: Events) -> None:
        is_file = _is_file_call(process, events)
        events = events.where(is_file)
        if not len(events):
            return
        start = events.start_ns + process.shift_ns
        end = start + events.duration_ns
        is_stdio = _IS_STDIO[events.op]
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
                    moved * _READS[events.op],
                    moved * _WRITES[events.op],
                )
            ):
                place = 4 * layer + row
                self._traffic.add(place, end[mask], values[mask])
                self._sums[place] += values[mask].sum()

    # Attribution

    def _mains(self) -> list[tuple[_Process, int, _Trainer]]:
        found = []
        for process in self._processes.values():
            best = process.trainer
            if best is not None:
                found.append((process, *best))
        return found

    def _settle(self, main: _Process, thread: int, trainer: _Trainer, until_ns: int) -> None:
        """Sums the pieces of the training up to a moment."""
        if not trainer.find_first(main.skipped_ns):
            del trainer.marks[:-MARKS_KEPT]
            return
        ready = sorted(
            (mark for mark in trainer.marks if mark.end_ns <= until_ns),
            key=lambda mark: mark.end_ns if mark.kind == "step" else mark.start_ns,
        )
        trainer.marks = [mark for mark in trainer.marks if mark.end_ns > until_ns]
        while (
            ready and ready[-1].kind == "end"
        ):  # after the last step it is no part of the training
            trainer.marks.append(ready.pop())
        for mark in ready:
            for piece in self._pieces(main, thread, trainer, mark, mark.end_ns):
                _add(trainer, *piece)

    def _pieces(
        self, main: _Process, thread: int, trainer: _Trainer, mark: _Mark, end_ns: int
    ) -> list[tuple[int, int, int, int, float, float]]:
        """What a mark adds: (row, storage row, from, to, recorded ns, ns in file calls); moves
        settled_ns."""
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
        self, main: _Process, thread: int, wait: _Mark, start_ns: int, end_ns: int
    ) -> float:
        """Of a wait, the time in which file calls held up the thread that fetched its batch: until
        the fetch ended, and not before the worker's loop began."""
        for process in self._processes.values():
            if process is main or process.worker_ns is None or self._main_of(process) is not main:
                continue
            if wait.end_ns == FOREVER:
                begun = process.open_fetches.get(wait.index)
                fetch = _Fetch(*begun, end_ns) if begun else None
            else:
                fetch = process.fetches.get((wait.iterator, wait.index))
            if fetch is not None and fetch.start_ns < end_ns:
                from_ns, to_ns = max(start_ns, process.worker_ns), min(end_ns, fetch.end_ns)
                return fetch.held_ns(process.calls_of(fetch.thread), from_ns, to_ns)
        own, calls = main.fetches.get((wait.iterator, wait.index)), main.calls_of(thread)
        if own is not None and own.thread == thread and own.start_ns < end_ns:
            return own.held_ns(calls, start_ns, end_ns)
        return calls.ns_in(start_ns, end_ns)

    def _main_of(self, worker: _Process) -> _Process | None:
        """The process that a worker serves: the nearest of its ancestors that trains."""
        by_pid = {(one.header.boot_id, one.header.pid): one for one in self._processes.values()}
        seen = {worker.header.pid}
        one: _Process | None = worker
        while one is not None and one.header.ppid not in seen:
            seen.add(one.header.ppid)
            one = by_pid.get((worker.header.boot_id, one.header.ppid))
            if one is not None and one.trainer is not None:
                return one
        return None

    def _forget(self, mains: list[tuple[_Process, int, _Trainer]], until_ns: int) -> None:
        before_ns = min([until_ns, *(trainer.oldest_ns for _, _, trainer in mains)])
        training = {id(main): (thread, trainer) for main, thread, trainer in mains}
        for process in self._processes.values():
            for number, calls in process.calls.items():
                own_ns = before_ns
                if id(process) in training and training[id(process)][0] == number:
                    own_ns = min(before_ns, training[id(process)][1].settled_ns or before_ns)
                calls.forget(own_ns)
            _cap(process.no_files)
            _cap(process.fetches)
            del process.pauses[:-1000]

    # What is shown

    def _live(
        self, now_ns: int, is_over: bool, mains: list[tuple[_Process, int, _Trainer]]
    ) -> Live:
        processes = list(self._processes.values())
        alive = [process for process in processes if process.is_alive]
        latest_ns = max((trainer.settled_ns for _, _, trainer in mains), default=0)
        until_ns = max(latest_ns, 10**9) if is_over else now_ns - SLACK_NS
        until_s = until_ns // 10**9
        total, recent = np.zeros(6), np.zeros((6, WINDOW_S))
        steps, step_bins = 0, np.zeros(WINDOW_S)
        for main, thread, trainer in mains:
            extra = self._unsettled(main, thread, trainer, until_ns) if main.is_alive else _Extra()
            total += trainer.sums + extra.sums
            recent += trainer.bins.last(until_s) + extra.bins.last(until_s)
            steps += trainer.steps
            step_bins += trainer.step_bins.last(until_s)[0]
        first = min(processes, key=lambda process: process.header.start_ns, default=None)
        chosen = mains[0][0] if mains else first
        start_ns = first.header.start_ns + first.shift_ns if first else now_ns
        skipped = [p.skipped_ns for p in processes if p.skipped_ns is not None]
        since_ns = max(skipped, default=start_ns)
        end_ns = max(until_ns, start_ns) if is_over else now_ns
        is_fed = all(one.waits or not one.steps for _, _, one in mains)
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
            recent=replace(Stall(*(recent.sum(axis=1) / 1e9).tolist()), is_fed=is_fed),
            total=replace(Stall(*(total / 1e9).tolist()), is_fed=is_fed),
            recent_traffic=_traffic(self._traffic.last(until_s).sum(axis=1)),
            traffic=_traffic(self._sums),
            seconds=_seconds(recent, step_bins, self._traffic.last(until_s)),
            blocked=self._blocked(alive, now_ns),
            gaps=(*(() if is_fed else (NOT_FED,)), *self._gaps(processes, is_over)),
            still=() if is_over else self._still(mains, now_ns),
        )

    def _still(self, mains: list[tuple[_Process, int, _Trainer]], now_ns: int) -> tuple[str, ...]:
        """Waits that are open for long, and what the kernel says of the main process and of its
        workers since the look before."""
        looked, self._looked = self._looked, None
        waiting = []
        for main, _, trainer in mains:
            oldest = min(trainer.open, key=lambda mark: mark.start_ns, default=None)
            if oldest and is_alive(main.header) and now_ns - oldest.start_ns > STILL_NS:
                waiting.append((main, oldest))
        if not waiting:
            return ()
        alive = [one for one in self._processes.values() if is_alive(one.header)]
        self._looked = Look(one.header.pid for one in alive)
        does = {one.tid: one for one in (doing(looked) if looked else ())}
        told = []
        for main, mark in waiting[:BLOCKED_SHOWN]:
            pid, s = main.header.pid, (now_ns - mark.start_ns) / 1e9
            kind = "saves a checkpoint" if mark.kind == "save" else "waits for data"
            said = [f"process {pid} {kind} for {s:.0f} s"]
            workers = [
                one.header.pid
                for one in alive
                if one.worker_ns is not None and self._main_of(one) is main
            ]
            for other in (workers or [pid])[:BLOCKED_SHOWN]:
                if other in does:
                    who = "it" if other == pid else f"worker {other}"
                    it = does[other]
                    said.append(f"{who} {in_words(it.state, it.call, it.path)}")
            told.append(", ".join(said))
        return tuple(told)

    def _unsettled(self, main: _Process, thread: int, trainer: _Trainer, until_ns: int) -> "_Extra":
        """What goes on: the wait or the checkpoint under way, else computing."""
        extra = _Extra()
        if trainer.first_ns is None or until_ns <= trainer.settled_ns:
            return extra
        shadow = _Trainer(first_ns=trainer.first_ns, settled_ns=trainer.settled_ns)
        marks = [mark for mark in trainer.open if trainer.first_ns <= mark.start_ns < until_ns]
        for mark in sorted(marks, key=lambda mark: mark.start_ns)[:1] or [
            _Mark(until_ns, until_ns, "step")
        ]:
            for piece in self._pieces(main, thread, shadow, mark, until_ns):
                _add(shadow, *piece)
        return _Extra(shadow.sums, shadow.bins)

    def _blocked(self, alive: Iterable[_Process], now_ns: int) -> tuple[Blocked, ...]:
        found = []
        for process in alive:
            events = process.in_flight.where(_is_file_call(process, process.in_flight))
            age = now_ns - events.start_ns - process.shift_ns
            for place in np.flatnonzero(age > BLOCKED_NS):
                op, file = int(events.op[place]), int(events.file[place])
                found.append((int(age[place]), op, file, process))
        found.sort(key=lambda one: -one[0])
        return tuple(
            Blocked(
                _NAME.get(op, f"op {op}"), self._path(process, file), ns / 1e9, process.header.pid
            )
            for ns, op, file, process in found[:BLOCKED_SHOWN]
        )

    def _path(self, process: _Process, file: int) -> str | None:
        if not file:
            return None
        key = (process.follower.path, file)
        if key not in self._paths:
            _cap(self._paths, 256)
            self._paths[key] = _path_of(process, file)
        return self._paths[key]

    def _gaps(self, processes: list[_Process], is_over: bool) -> tuple[str, ...]:
        gaps = []
        folded = sum(process.header.folded for process in processes)
        if folded:
            gaps.append(f"{folded:,} calls past the trace budget are in no number here")
        lost = sum(process.header.lost for process in processes)
        if lost:
            gaps.append(f"{lost:,} calls are lost")
        dropped = sum(calls.n_dropped for one in processes for calls in one.calls.values())
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
    """What is under way, beside what is settled."""

    sums: Array = field(default_factory=lambda: np.zeros(6))
    bins: _Bins = field(default_factory=lambda: _Bins(6))


def _add(
    trainer: _Trainer, row: int, storage_row: int, a: int, b: int, ns: float, in_calls: float
) -> None:
    """A piece into sums and seconds; all pieces are wall time."""
    rows = {storage_row: min(in_calls, ns), WALL: ns}
    if row != WALL:
        rows[row] = ns
    for place, amount in rows.items():
        trainer.sums[place] += amount
        trainer.bins.spread(place, a, b, amount)


def _is_recent(facts: dict[str, Any]) -> bool:
    """Started a minute ago or less: a launcher that was killed writes no end."""
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


def _cap(kept: dict[Any, Any], most: int = IDS_KEPT) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]


def _learn(process: _Process, texts: tuple[Text, ...]) -> None:
    for text in texts:
        if text.kind == NAME_TEXT:
            process.names[text.id] = text.name
        elif text.kind == FILE_TEXT:
            kind = text.mode & 0o170000
            if kind in (0o010000, 0o140000) or (
                kind in (0, 0o020000) and (text.resolved or text.name).startswith(_NO_FILE)
            ):
                process.no_files[text.id] = None


def _is_file_call(process: _Process, events: Events) -> Array:
    """As queries/file_calls.sql: calls on files, and on what is not known to be none."""
    mask: Array = _IS_FILE_CALL[events.op]
    if process.no_files:
        none = np.fromiter(process.no_files, np.uint32, len(process.no_files))
        mask = mask & ~np.isin(events.file, none)
    return mask


def _fold_spans(process: _Process, events: Events, is_held: bool) -> None:
    """Finished spans, in order of their starts."""
    unknown = []
    for place in range(len(events)):
        op, name = int(events.op[place]), process.names.get(int(events.file[place]))
        if op != _NUMBER["step"] and name is None:
            unknown.append(place)
            continue
        start = int(events.start_ns[place]) + process.shift_ns
        mark = _Mark(start, start + int(events.duration_ns[place]), name or "step")
        mark.index, mark.iterator = int(events.offset[place]), int(events.asked[place])
        thread, b = int(events.thread[place]), int(events.moved[place])
        _fold_span(process, thread, op, mark, b)
    if unknown and not is_held:
        process.held.append(events.where(np.array(unknown)))


def _fold_span(process: _Process, thread: int, op: int, mark: _Mark, b: int) -> None:
    kind, mark.kind = mark.kind, _KINDS.get(mark.kind, mark.kind)
    if op == _NUMBER["window"]:
        if kind == "paused":
            process.pauses.append((mark.start_ns, mark.end_ns))
        return
    if kind == "worker":
        process.worker_ns = min(mark.start_ns, process.worker_ns or mark.start_ns)
    elif kind == "fetch":
        idle_ns = max(0, mark.end_ns - mark.start_ns - b)
        process.fetches[mark.iterator, mark.index] = _Fetch(
            thread, mark.start_ns, mark.end_ns, idle_ns
        )
    elif kind == "fetch delay":
        fetch = process.fetches.get((mark.iterator, mark.index))
        if fetch is not None and fetch.idle_ns is not None:
            fetch.idle_ns = max(0, fetch.idle_ns - b)
    elif kind == "wait cpu":
        process.is_pooled = True
    elif op == _NUMBER["step"] or kind in (*_KINDS, "delivered"):
        trainer = process.trainers.setdefault(thread, _Trainer())
        if op == _NUMBER["step"]:
            mark.kind = "step"
            trainer.step(mark, b)
        elif kind == "data wait":
            trainer.wait(mark)
        elif kind in ("loader start", "loader end", "checkpoint"):
            trainer.marks.append(mark)
        else:  # another batch than announced came of the latest wait
            waits = [one for one in trainer.marks if one.kind == "wait"]
            if waits:
                waits[-1].index = mark.index


_KINDS = {"data wait": "wait", "loader start": "wait", "loader end": "end", "checkpoint": "save"}


def _fold_accounts(process: _Process, events: Events) -> None:
    for thread in np.unique(events.thread):
        own = events.where(events.thread == thread)
        process.calls_of(int(thread)).account(
            own.start_ns + process.shift_ns, own.asked + own.moved
        )


def _fold_in_flight(process: _Process, events: Events) -> None:
    for trainer in process.trainers.values():
        trainer.open = []
    for calls in process.calls.values():
        calls.open_ns = []
    process.open_fetches = {}
    process.open_pause = None
    is_file = _is_file_call(process, events)
    for place in range(len(events)):
        thread, start = int(events.thread[place]), int(events.start_ns[place]) + process.shift_ns
        name = process.names.get(int(events.file[place]))
        index = int(events.offset[place])
        if is_file[place]:
            process.calls_of(thread).open_ns.append(start)
        elif events.op[place] == _NUMBER["window"] and name == "paused":
            process.open_pause = start
        elif events.op[place] != _NUMBER["span"]:
            continue
        elif name == "worker":
            process.worker_ns = min(start, process.worker_ns or start)
        elif name == "fetch":
            process.open_fetches[index] = (thread, start)
        elif name in _KINDS:
            trainer = process.trainers.setdefault(thread, _Trainer())
            trainer.open.append(_Mark(start, FOREVER, _KINDS[name], index))


def _state(processes: list[_Process], is_over: bool) -> str:
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


def _seconds(recent: Array, steps: Array, traffic: Array) -> tuple[Second, ...]:
    found = []
    for place in range(WINDOW_S):
        wall = recent[WALL, place]
        # Less than a millisecond of training is no second to speak of.
        wait, save = (
            (float(recent[row, place] / wall) if wall > 1e6 else None) for row in (WAIT, SAVE)
        )
        read = max(traffic[2, place], traffic[6, place])
        written = max(traffic[3, place], traffic[7, place])
        found.append(Second(wait, save, int(read), int(written), int(steps[place])))
    return tuple(found)


def _path_of(process: _Process, file: int) -> str | None:
    """The path as the call named it, from the folder it starts from where the log says that."""
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


assert len(fields(Stall)) == 6 + 1  # the rows of _Trainer.sums, in this order
