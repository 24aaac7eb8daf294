"""The memory of a growing log: calls, marks and fetches, bounded in number.

Takes the events of a process; the monitor decides which events make a wait or a pause.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.explain.live.remote import KeptRemote
from penstock.explain.live.shape import WINDOW_S
from penstock.log.events import Events
from penstock.log.follow import Follower
from penstock.log.header import Header
from penstock.log.layout import OPS
from penstock.log.texts import FILE_TEXT, NAME_TEXT, Text

__all__ = [
    "ACCOUNT",
    "APP",
    "FOREVER",
    "IS_STDIO",
    "ITERATION",
    "OP_NAME",
    "OWN",
    "READS",
    "SAVE",
    "SAVE_STORAGE",
    "WAIT",
    "WAIT_STORAGE",
    "WALL",
    "WRITES",
    "Array",
    "Bins",
    "Fetch",
    "Halt",
    "KeptProcess",
    "TimeMark",
    "Trainer",
    "cap",
    "fold_accounts",
    "fold_in_flight",
    "fold_spans",
    "is_file_call",
    "learn",
]

Array = NDArray[Any]

BINS = 64  # seconds kept; seconds beyond the window are still being filled

CALLS_KEPT = 1 << 19  # of a thread, 8 MiB: a wait of ten seconds at 50,000 calls/s

IDS_KEPT = 65536  # of pipes and sockets, and of fetches

FOREVER = 1 << 62

# Origins of steps; the first present origin counts: the program, an adapter, a loader.
BY_HAND, ADAPTER, ITERATION = STEPS = (1, 0, 2)
CONTINUATION = 3  # of an adapter's step

_GROUPS = ("read", "write", "metadata")
_SYNCS = ("fsync", "fdatasync", "sync_range", "syncfs", "msync", "fflush")
_NUMBER = {op.name: op.number for op in OPS}
OP_NAME = {op.number: op.name for op in OPS}
APP = min(op.number for op in OPS if op.layer == "app")
ACCOUNT = _NUMBER["account"]

_NO_FILE = ("pipe:", "socket:", "anon_inode:", "/dev/pts/", "/dev/tty", "/dev/console")


def _table(of: Callable[[Any], bool]) -> Array:
    table = np.zeros(256, bool)
    table[[op.number for op in OPS if of(op)]] = True
    return table


_IS_FILE_CALL = _table(lambda op: op.group in _GROUPS)
IS_STDIO = _table(lambda op: op.layer == "stdio")
READS = _table(lambda op: op.group == "read")
WRITES = _table(lambda op: op.group == "write" and op.name not in _SYNCS)


class Bins:
    """Sums by second, of the last BINS seconds; rows are the caller's series."""

    def __init__(self, rows: int) -> None:
        self.sums = np.zeros((rows, BINS))
        self.second = 0  # the latest second with a bin

    def reach(self, second: int) -> None:
        """Make room up to a second; older seconds are dropped."""
        new = min(BINS, second - self.second)
        if new > 0:
            self.sums[:, np.arange(second - new + 1, second + 1) % BINS] = 0
            self.second = second

    def add(self, row: int, ns: Array, values: Array) -> None:
        """Add each value to the second of the value's moment."""
        if not len(ns):
            return
        seconds = ns // 10**9
        self.reach(int(seconds.max()))
        is_kept = seconds > self.second - BINS
        np.add.at(self.sums[row], seconds[is_kept] % BINS, values[is_kept])

    def spread(self, row: int, start_ns: int, end_ns: int, amount: float) -> None:
        """Spread an amount evenly over a stretch."""
        if end_ns <= start_ns:
            return
        self.reach(end_ns // 10**9)
        first = max(start_ns // 10**9, self.second - BINS + 1)
        for second in range(first, end_ns // 10**9 + 1):
            inside = min(end_ns, (second + 1) * 10**9) - max(start_ns, second * 10**9)
            self.sums[row, second % BINS] += amount * inside / (end_ns - start_ns)

    def last(self, until_s: int) -> Array:
        """Return the sums of the WINDOW_S seconds before until_s, oldest first."""
        self.reach(until_s)
        sums: Array = self.sums[:, np.arange(until_s - WINDOW_S, until_s) % BINS]
        return sums


class KeptCalls:
    """File calls of a thread, kept as long as a wait may need the calls.

    Of each call: the start, the end, and how long storage may have delayed the call.
    """

    def __init__(self) -> None:
        self._new: list[tuple[Array, Array, Array]] = []
        self._accounts: list[tuple[Array, Array]] = []
        self._start = np.empty(0, np.int64)
        self._end = np.empty(0, np.int64)
        self._held = np.empty(0, np.int64)
        self.open_ns: list[int] = []  # starts of calls in flight
        self.n_dropped = 0

    def add(self, start: Array, end: Array, held: Array) -> None:
        self._new.append((start, end, held))

    def account(self, start: Array, ns: Array) -> None:
        """Record the time without waiting (`ns`) of the calls that begin at `start`."""
        self._accounts.append((start, ns))

    def _gather(self) -> None:
        if self._new:
            kept_columns = (self._start, self._end, self._held)
            start, end, held = (
                np.concatenate([column, *(new[place] for new in self._new)])
                for place, column in enumerate(kept_columns)
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
            is_early = ~is_met & (start > self._start[-1])  # the next look reads the call
            self._accounts = [(start[is_early], ns[is_early])] if is_early.any() else []

    def ns_in(self, start_ns: int, end_ns: int) -> float:
        """Return the delayed time of calls in a stretch, including calls in flight."""
        if end_ns <= start_ns:
            return 0.0
        self._gather()
        # Calls of a thread do not overlap, so the ends are in order too.
        first = int(np.searchsorted(self._end, start_ns, side="right"))
        last = int(np.searchsorted(self._start, end_ns))
        start = np.maximum(self._start[first:last], start_ns)
        part = np.maximum(np.minimum(self._end[first:last], end_ns) - start, 0)
        length = np.maximum(self._end[first:last] - self._start[first:last], 1)
        inside = float((part / length * self._held[first:last]).sum())
        inside += sum(max(0, end_ns - max(begun, start_ns)) for begun in self.open_ns)
        return min(inside, end_ns - start_ns)

    def forget(self, before_ns: int) -> None:
        """Drop calls that ended before the moment, and the oldest calls if too many remain."""
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
class TimeMark:
    """A step, a data wait, the end of a loader, or a checkpoint.

    Only the end of a step counts.  end_ns FOREVER: in flight.
    """

    start_ns: int
    end_ns: int
    kind: str
    index: int = -1
    iterator: int = 0
    goes_on: bool = False  # of a step: extends the previous step, counts as no new step


@dataclass(slots=True)
class Halt:
    """Part of a data wait or a checkpoint.

    step: number of the step during which the part starts.  row: row of Trainer.sums.
    ns: recorded time.  in_calls: ns of file calls within the recorded time.
    """

    step: int
    row: int
    from_ns: int
    to_ns: int
    ns: float
    in_calls: float


@dataclass(slots=True)
class Fetch:
    """A batch being made.  idle_ns: an upper bound of the thread's delay; None: not known."""

    thread: int
    start_ns: int
    end_ns: int
    idle_ns: int | None = None

    def held_ns(self, calls: KeptCalls, from_ns: int, to_ns: int) -> float:
        """Return the possible waiting time in file calls, in a stretch of the fetch."""
        part_ns = calls.ns_in(from_ns, to_ns)
        if self.idle_ns is None or not part_ns:
            return part_ns
        return part_ns * min(1.0, self.idle_ns / calls.ns_in(self.start_ns, self.end_ns))


WALL, WAIT, WAIT_STORAGE, SAVE, SAVE_STORAGE, OWN = range(6)


@dataclass(slots=True)
class Trainer:
    """A thread that takes steps or waits for data: its training time, piece by piece."""

    marks: list[TimeMark] = field(default_factory=list)  # ended, not settled
    open: list[TimeMark] = field(default_factory=list)  # in flight
    bins: Bins = field(default_factory=lambda: Bins(6))
    sums: Array = field(default_factory=lambda: np.zeros(6))
    step_bins: Bins = field(default_factory=lambda: Bins(1))
    steps: int = 0
    origin: int = ITERATION  # of the counted steps: queries/steps.sql
    waits: int = 0
    first_step: TimeMark | None = None
    first_wait: TimeMark | None = None
    first_ns: int | None = None  # where the training begins
    settled_ns: int = 0  # up to where pieces are summed
    # Single steps and halts, for live/ranks.py.
    halts: list[Halt] = field(default_factory=list)
    n_counted: int = 0  # leading halts already counted
    ends: list[tuple[int, int]] = field(default_factory=list)  # end of the previous step, own end
    closed: int = 0  # number of settled steps
    forgotten: int = 0  # number of dropped settled steps
    first_index: int = 0  # own number of the first settled step
    is_counting: bool = True  # own numbers of settled steps are consecutive
    is_cut: bool = False  # reading started in the middle of the log

    def close_step(self, mark: TimeMark, from_ns: int) -> None:
        """Append a settled step.  from_ns: earliest possible start of the step."""
        if mark.goes_on:
            if self.ends:
                self.ends[-1] = (self.ends[-1][0], max(self.ends[-1][1], mark.end_ns))
            return
        if not self.closed:
            self.first_index = mark.index
        self.is_counting &= mark.index == self.first_index + self.closed
        before_ns = self.ends[-1][1] if self.ends else self.first_ns or 0
        self.ends.append((max(before_ns, from_ns), mark.end_ns))
        self.closed += 1

    def forget_steps(self, until: int) -> None:
        """Drop the steps up to number `until`, and the counted halts of the dropped steps."""
        n = min(max(0, until - self.forgotten), len(self.ends) - 1)
        if n > 0:
            del self.ends[:n]
            self.forgotten += n
        n_old = sum(halt.step <= until for halt in self.halts[: self.n_counted])
        del self.halts[:n_old]
        self.n_counted -= n_old

    def forget_halts(self, most: int) -> bool:
        """Drop the oldest counted halts beyond `most`.  Return True if any halt was dropped."""
        n_old = min(len(self.halts) - most, self.n_counted)
        if n_old <= 0:
            return False
        del self.halts[:n_old]
        self.n_counted -= n_old
        return True

    def step(self, mark: TimeMark, origin: int) -> None:
        if origin == CONTINUATION:
            if self.origin == ADAPTER:
                mark.goes_on = True
                self.marks.append(mark)
            return
        rank = STEPS.index(origin) if origin in STEPS else len(STEPS) - 1
        if rank > STEPS.index(self.origin):
            return
        if rank < STEPS.index(self.origin):
            self.origin, self.steps, self.step_bins = STEPS[rank], 0, Bins(1)
            self.first_step = None
            self.marks = [kept_mark for kept_mark in self.marks if kept_mark.kind != "step"]
            self.ends, self.closed, self.forgotten = [], 0, 0
            self.is_counting = True
            for halt in self.halts:
                halt.step = 1
        self.steps += 1
        self.step_bins.add(0, np.array([mark.end_ns]), np.ones(1))
        if self.first_step is None or mark.start_ns < self.first_step.start_ns:
            self.first_step = mark
        self.marks.append(mark)

    def wait(self, mark: TimeMark) -> None:
        self.waits += 1
        if self.first_wait is None or mark.start_ns < self.first_wait.start_ns:
            self.first_wait = mark
        self.marks.append(mark)

    def find_first(self, not_before_ns: int | None) -> bool:
        """Find the start of the training, as queries/mains.sql does; return True if found.

        The start is the start of the first step, but not before the arrival of the first batch.
        """
        if self.first_ns is not None:
            return True
        step, wait = self.first_step, self.first_wait
        if not_before_ns is not None and (step or wait):
            self.first_ns = not_before_ns
        elif step is not None:
            is_after = wait is not None and wait.start_ns < step.end_ns
            self.first_ns = max(step.start_ns, wait.end_ns if wait and is_after else 0)
        elif wait is not None and self.waits > 2:  # an evaluating job takes no steps
            self.first_ns = wait.end_ns
        if self.first_ns is not None:
            self.settled_ns = self.first_ns
        return self.first_ns is not None

    @property
    def oldest_ns(self) -> int:
        """Return the start of the oldest mark that still needs calls; FOREVER if there is none."""
        return min((mark.start_ns for mark in (*self.marks, *self.open)), default=FOREVER)


@dataclass(slots=True)
class KeptProcess:
    """A process: the log, and the calls, marks and fetches kept from the log."""

    follower: Follower
    header: Header
    shift_ns: int = 0  # added to the host's CLOCK_MONOTONIC to get ns since 1970
    names: dict[int, str] = field(default_factory=dict)
    no_files: dict[int, None] = field(default_factory=dict)
    calls: dict[int, KeptCalls] = field(default_factory=dict)
    trainers: dict[int, Trainer] = field(default_factory=dict)
    fetches: dict[tuple[int, int], Fetch] = field(default_factory=dict)
    open_fetches: dict[int, tuple[int, int]] = field(default_factory=dict)
    pauses: list[tuple[int, int]] = field(default_factory=list)
    open_pause: int | None = None
    in_flight: Events = field(default_factory=Events.none)
    held: list[Events] = field(default_factory=list)  # spans without a known name yet
    skipped_ns: int | None = None
    is_pooled: bool = False  # the loader does not report who fetches
    worker_ns: int | None = None  # begin of the loop of a loader's worker
    remote: KeptRemote = field(default_factory=KeptRemote)
    changed_ns: int = 0
    is_alive: bool = True
    is_done: bool = False  # dead, and completely read

    @property
    def trainer(self) -> tuple[int, Trainer] | None:
        """Return the thread that takes steps; without steps, the thread that waits for data."""
        if self.worker_ns is not None:
            return None
        rank = {n: (trainer.steps, trainer.waits) for n, trainer in self.trainers.items()}
        best = max(rank, key=lambda n: rank[n], default=None)
        return (best, self.trainers[best]) if best is not None and any(rank[best]) else None

    def calls_of(self, thread: int) -> KeptCalls:
        return self.calls.setdefault(thread, KeptCalls())

    def paused_ns(self, start_ns: int, end_ns: int) -> int:
        """Return for how much of a stretch the process was not recorded."""
        pauses = list(self.pauses)
        if self.open_pause is not None:
            pauses.append((self.open_pause, FOREVER))
        return sum(max(0, min(b, end_ns) - max(a, start_ns)) for a, b in pauses)


def cap(kept: dict[Any, Any], most: int = IDS_KEPT) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]


def learn(process: KeptProcess, texts: tuple[Text, ...]) -> None:
    process.remote.learn(texts)
    for text in texts:
        if text.kind == NAME_TEXT:
            process.names[text.id] = text.name
        elif text.kind == FILE_TEXT:
            kind = text.mode & 0o170000
            if kind in (0o010000, 0o140000) or (
                kind in (0, 0o020000) and (text.resolved or text.name).startswith(_NO_FILE)
            ):
                process.no_files[text.id] = None


def is_file_call(process: KeptProcess, events: Events) -> Array:
    """Return the mask of calls on files and on descriptors of unknown kind, as
    queries/file_calls.sql."""
    mask: Array = _IS_FILE_CALL[events.op]
    if process.no_files:
        none = np.fromiter(process.no_files, np.uint32, len(process.no_files))
        mask = mask & ~np.isin(events.file, none)
    return mask


def fold_spans(process: KeptProcess, events: Events, is_held: bool) -> None:
    """Fold finished spans, given in order of start, into the kept marks and fetches."""
    unknown = []
    for place in range(len(events)):
        op, name = int(events.op[place]), process.names.get(int(events.file[place]))
        if op != _NUMBER["step"] and name is None:
            unknown.append(place)
            continue
        start = int(events.start_ns[place]) + process.shift_ns
        mark = TimeMark(start, start + int(events.duration_ns[place]), name or "step")
        mark.index, mark.iterator = int(events.offset[place]), int(events.asked[place])
        thread, b = int(events.thread[place]), int(events.moved[place])
        _fold_span(process, thread, op, mark, b)
    if unknown and not is_held:
        process.held.append(events.where(np.array(unknown)))


def _fold_span(process: KeptProcess, thread: int, op: int, mark: TimeMark, b: int) -> None:
    kind, mark.kind = mark.kind, _KINDS.get(mark.kind, mark.kind)
    if op == _NUMBER["window"]:
        if kind == "paused":
            process.pauses.append((mark.start_ns, mark.end_ns))
        return
    if kind == "worker":
        process.worker_ns = min(mark.start_ns, process.worker_ns or mark.start_ns)
    elif kind == "fetch":
        idle_ns = max(0, mark.end_ns - mark.start_ns - b)
        process.fetches[mark.iterator, mark.index] = Fetch(
            thread, mark.start_ns, mark.end_ns, idle_ns
        )
    elif kind == "fetch delay":
        fetch = process.fetches.get((mark.iterator, mark.index))
        if fetch is not None and fetch.idle_ns is not None:
            fetch.idle_ns = max(0, fetch.idle_ns - b)
    elif kind == "wait cpu":
        process.is_pooled = True
    elif op == _NUMBER["step"] or kind in (*_KINDS, "delivered"):
        trainer = process.trainers.setdefault(thread, Trainer())
        if op == _NUMBER["step"]:
            mark.kind = "step"
            trainer.step(mark, b)
        elif kind == "data wait":
            trainer.wait(mark)
        elif kind in ("loader start", "loader end", "checkpoint"):
            trainer.marks.append(mark)
        else:  # the latest wait delivered another batch than announced
            waits = [wait for wait in trainer.marks if wait.kind == "wait"]
            if waits:
                waits[-1].index = mark.index


_KINDS = {"data wait": "wait", "loader start": "wait", "loader end": "end", "checkpoint": "save"}


def fold_accounts(process: KeptProcess, events: Events) -> None:
    for thread in np.unique(events.thread):
        own = events.where(events.thread == thread)
        process.calls_of(int(thread)).account(
            own.start_ns + process.shift_ns, own.asked + own.moved
        )


def fold_in_flight(process: KeptProcess, events: Events) -> None:
    for trainer in process.trainers.values():
        trainer.open = []
    for calls in process.calls.values():
        calls.open_ns = []
    process.open_fetches = {}
    process.open_pause = None
    is_file = is_file_call(process, events)
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
            trainer = process.trainers.setdefault(thread, Trainer())
            trainer.open.append(TimeMark(start, FOREVER, _KINDS[name], index))
