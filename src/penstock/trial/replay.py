"""Repeat a pattern by threads: as recorded, or by any number of threads from one queue.

Knows calls and clocks; knows no run.  A thread sleeps for the time between its calls in the run.  A
call's time includes the wait for Python's interpreter lock: a microsecond for a single thread, more
with several.
"""

import mmap
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from penstock.errors import RunError
from penstock.runs.tables import Array
from penstock.trial.pattern import CallKind, CallPattern

__all__ = ["READAHEADS", "Replay", "ReplayFiles", "SystemCalls", "replay"]

# Values of --readahead. off: past the page cache (O_DIRECT) and so without the cache's read-ahead:
# the kernel has no switch for read-ahead alone per reader.
READAHEADS = ("normal", "sequential", "random", "willneed", "off")
_ADVICE = {
    "normal": os.POSIX_FADV_NORMAL,
    "sequential": os.POSIX_FADV_SEQUENTIAL,
    "random": os.POSIX_FADV_RANDOM,
}

# Number of reads hinted ahead: more than 16 gained nothing on a disk with 16 k requests per second.
AHEAD = 16
PAGE = 4096  # O_DIRECT's unit of offsets, lengths and buffers
BUFFER_BYTES = 4 << 20  # a longer read fills the buffer several times, in one call
PIECE = 4096  # calls converted from columns to numbers at once
SLEEP_NS = 100_000  # shorter thoughts are saved up: a sleep is some 60 µs too long
HEARD_S = 0.05  # a longer sleep is ended by the end of the replay
PROGRESS_S = 0.1


@dataclass(frozen=True, slots=True)
class SystemCalls:
    """The system calls of a replay, or a test's calls with a known delay."""

    open: Callable[[str, int], int] = os.open
    close: Callable[[int], None] = os.close
    stat: Callable[[str], Any] = os.stat
    fstat: Callable[[int], Any] = os.fstat
    preadv: Callable[[int, Sequence[Any], int], int] = os.preadv
    advise: Callable[[int, int, int, int], None] = os.posix_fadvise


@dataclass(frozen=True, slots=True, eq=False)
class ReplayFiles:
    """The location of a pattern's bytes: a path for each file, an offset for each call."""

    paths: Sequence[str]
    offset: Array


@dataclass(frozen=True, slots=True, eq=False)
class Replay:
    """The result of a replay: start (ns), duration and result of each call.  duration_ns is -1 for
    calls not made."""

    start_ns: Array
    duration_ns: Array
    moved: Array
    wall_s: float
    is_whole: bool
    threads: int

    @property
    def is_made(self) -> Array:
        """Return the mask of the calls made."""
        mask: Array = self.duration_ns >= 0
        return mask


def replay(
    pattern: CallPattern,
    target: ReplayFiles,
    *,
    threads: int | None = None,
    readahead: str | None = None,
    limit_s: float = float("inf"),
    calls: SystemCalls | None = None,
    progress: Callable[[float], None] | None = None,
) -> Replay:
    """Repeat the pattern's calls.

    threads: None replays each recorded thread; a number of threads takes units from one queue in
    the order of the run: a unit is the calls from an open to the close, or a single call outside.
    limit_s: later calls are not made.  progress: is called with the share done.  Raises RunError: a
    file cannot be opened or read, too many open files.
    """
    unit = pattern.track if threads is None else _units(pattern)
    script = _Script(pattern, target, unit, readahead)
    stage = _Stage(script, calls or SystemCalls(), limit_s)
    with _many_descriptors():
        # A step of a zip of lists is atomic.
        queues = [iter([bound]) for bound in script.bounds()] if threads is None else []
        stage.play(queues or [script.bounds()] * (threads or 1), progress)
    return stage.result(threads or pattern.tracks)


def _units(pattern: CallPattern) -> Array:
    """Return a unit number for each call: calls from an open until the last close belong together.
    Units are numbered by start."""
    open_files: list[dict[int, int]] = [{} for _ in range(pattern.tracks)]
    under_way = [-1] * pattern.tracks
    units = np.zeros(len(pattern), np.int64)
    n_units = 0
    columns = (pattern.track.tolist(), pattern.kind.tolist(), pattern.file.tolist())
    for place, (track, kind, file) in enumerate(zip(*columns, strict=True)):
        opened = open_files[track]
        if under_way[track] < 0:
            under_way[track], n_units = n_units, n_units + 1
        units[place] = under_way[track]
        if kind == CallKind.OPEN:
            opened[file] = opened.get(file, 0) + 1
        elif kind == CallKind.CLOSE and file in opened:
            opened[file] -= 1
            if not opened[file]:
                del opened[file]
        if not opened:
            under_way[track] = -1
    return units


class _Script:
    """A pattern's columns in the order of the replay: unit after unit."""

    def __init__(
        self,
        pattern: CallPattern,
        target: ReplayFiles,
        unit: Array,
        readahead: str | None,
    ) -> None:
        self.order = order = np.argsort(unit, kind="stable")
        self.unit = unit[order]
        self.readahead = readahead
        self.paths = target.paths
        self.is_direct = readahead == "off"
        offset, length = target.offset[order], pattern.length[order]
        if self.is_direct:
            is_empty = pattern.moved[order] == 0  # beyond the end, even after rounding
            end = -(-(offset + length) // PAGE) * PAGE
            offset = np.where(is_empty, end, offset // PAGE * PAGE)
            length = np.where(is_empty, PAGE, end - offset)
        self.kind = pattern.kind[order]
        self.file = pattern.file[order]
        self.offset = offset
        self.length = length
        self.think_ns = pattern.think_ns[order]
        self.next_read = self._next_reads() if readahead == "willneed" else None

    def __len__(self) -> int:
        return len(self.order)

    def _next_reads(self) -> Array:
        """Return for each read the next read of the file in the unit, or -1."""
        number = self.unit
        reads = np.flatnonzero(self.kind == CallKind.READ)
        reads = reads[np.lexsort((reads, self.file[reads], number[reads]))]
        is_same = (self.file[reads][1:] == self.file[reads][:-1]) & (
            number[reads][1:] == number[reads][:-1]
        )
        following = np.full(len(self), -1, np.int64)
        following[reads[:-1]] = np.where(is_same, reads[1:], -1)
        return following

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Return the first call and the end of each unit."""
        ends = np.flatnonzero(np.diff(self.unit, append=-1)) + 1
        return zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)

    def rows(self, first: int, last: int) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield (place, kind, file, offset, length, think_ns) of calls from first to last."""
        columns = (self.kind, self.file, self.offset, self.length, self.think_ns)
        for begin in range(first, last, PIECE):
            end = min(last, begin + PIECE)
            yield from zip(
                range(begin, end), *(column[begin:end].tolist() for column in columns), strict=True
            )


class _Stage:
    """Threads that follow a script, and their measurements."""

    def __init__(self, script: _Script, calls: SystemCalls, limit_s: float) -> None:
        from array import array

        self.script = script
        self.calls = calls
        self.limit_s = limit_s
        self.start = array("q", bytes(8 * len(script)))
        self.duration = array("q", [-1]) * len(script)
        self.moved = array("q", bytes(8 * len(script)))
        self.over = threading.Event()
        self.deadline_ns = 0
        self.errors: list[BaseException] = []
        self.shared: dict[int, int] = {}  # descriptors of files already open before the window
        self.lock = threading.Lock()
        self.made = [0]
        self.wall_s = 0.0

    def play(
        self, queues: Sequence[Iterator[tuple[int, int]]], progress: Callable[[float], None] | None
    ) -> None:
        """Run a thread for each queue until all queues are empty.  Raises the error of a thread."""
        ready = threading.Barrier(len(queues) + 1)
        self.made = [0] * len(queues)
        threads = [
            threading.Thread(target=self._follow, args=(number, queue, ready), daemon=True)
            for number, queue in enumerate(queues)
        ]
        try:
            for thread in threads:
                thread.start()
            start_ns = time.perf_counter_ns()
            if self.limit_s < float("inf"):
                self.deadline_ns = start_ns + int(self.limit_s * 1e9)
            ready.wait()
            start_ns = time.perf_counter_ns()
            for thread in threads:
                while thread.is_alive():
                    thread.join(PROGRESS_S)
                    if progress:
                        progress(sum(self.made) / max(1, len(self.script)))
            self.wall_s = (time.perf_counter_ns() - start_ns) / 1e9
        finally:
            self.over.set()
            ready.abort()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            for descriptor in self.shared.values():
                os.close(descriptor)
        if self.errors:
            raise self.errors[0]

    def result(self, threads: int) -> Replay:
        """Return the measurements in the pattern's order."""
        start, duration, moved = np.zeros((3, len(self.script)), np.int64)
        order = self.script.order
        start[order] = np.frombuffer(self.start, np.int64)
        duration[order] = np.frombuffer(self.duration, np.int64)
        moved[order] = np.frombuffer(self.moved, np.int64)
        return Replay(start, duration, moved, self.wall_s, not self.deadline_hit, threads)

    @property
    def deadline_hit(self) -> bool:
        """Return True if the time limit left calls unmade."""
        return bool(self.deadline_ns) and sum(self.made) < len(self.script)

    def _follow(
        self, number: int, queue: Iterator[tuple[int, int]], ready: threading.Barrier
    ) -> None:
        player = _Player(self, number)
        try:
            with suppress(threading.BrokenBarrierError):
                ready.wait()
            for first, last in queue:
                if self.over.is_set():
                    break
                player.play(first, last)
        except BaseException as error:
            self.over.set()
            self.errors.append(error)

    def shared_descriptor(self, file: int) -> int:
        """Return a descriptor of a file the run had open before the window; opened once, outside
        all timing."""
        with self.lock:
            if file not in self.shared:
                self.shared[file] = self.open(file)
            return self.shared[file]

    def open(self, file: int) -> int:
        """Open a file with the tried hint."""
        path, readahead = self.script.paths[file], self.script.readahead
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            descriptor = self.calls.open(path, flags | (os.O_DIRECT * self.script.is_direct))
            if readahead in _ADVICE:
                self.calls.advise(descriptor, 0, 0, _ADVICE[readahead])
        except OSError as error:
            raise _told(path, error, self.script.is_direct) from error
        return descriptor


def _told(path: str, error: OSError, is_direct: bool) -> RunError:
    if is_direct:
        return RunError(
            f"{path}: cannot be read past the page cache: {error.strerror}; "
            "its file system may not do that, try --readahead random"
        )
    return RunError(f"{path}: cannot be replayed: {error.strerror}; did it change meanwhile?")


@dataclass(slots=True)
class _Player:
    """A thread of a stage."""

    stage: _Stage
    number: int
    spare_ns: int = 0  # think time not slept yet; negative: slept too long
    free_ns: int = 0  # when the last call returned
    buffers: dict[int, list[Any]] = field(default_factory=dict)
    whole: mmap.mmap | None = None

    def play(self, first: int, last: int) -> None:
        """Make the calls of a unit, in order, with think time between."""
        stage, script = self.stage, self.stage.script
        opened: dict[int, list[int]] = {}
        ahead: dict[int, tuple[int, int]] = {}
        start, duration, moved = stage.start, stage.duration, stage.moved
        clock = time.perf_counter_ns
        self.free_ns = self.free_ns or clock()
        path = ""
        try:
            for place, kind, file, offset, length, think_ns in script.rows(first, last):
                path = script.paths[file]
                if not self._think(think_ns):
                    break
                descriptor = self._descriptor(opened, kind, file)
                buffers = self._buffers(length) if kind == CallKind.READ else []
                begin = clock()
                if descriptor is None and kind != CallKind.OPEN and kind != CallKind.STAT:
                    got = -1  # closes a file opened before the window, or by another thread
                elif kind == CallKind.READ:
                    if script.next_read is not None:
                        self._hint(ahead, place, file, descriptor)
                    got = stage.calls.preadv(descriptor, buffers, offset)  # type: ignore[arg-type]
                else:
                    got = self._other(opened, kind, file, descriptor)
                end = clock()
                if got >= 0:
                    start[place], duration[place], moved[place] = begin, end - begin, got
                self.free_ns = end
                stage.made[self.number] += 1
        except OSError as error:
            raise _told(path, error, script.is_direct) from error
        finally:
            for descriptors in opened.values():
                for descriptor in descriptors:
                    os.close(descriptor)

    def _think(self, think_ns: int) -> bool:
        """Sleep for the run's time between two calls; False: the replay is over."""
        now = time.perf_counter_ns()
        self.spare_ns += think_ns - (now - self.free_ns)
        if self.spare_ns > SLEEP_NS:
            up_ns = self.stage.deadline_ns or now + self.spare_ns
            sleep_s = max(0, min(self.spare_ns, up_ns - now)) / 1e9
            if sleep_s > HEARD_S:
                self.stage.over.wait(sleep_s)
            else:
                time.sleep(sleep_s)
            slept = time.perf_counter_ns()
            self.spare_ns -= slept - now
            now = slept
        deadline_ns = self.stage.deadline_ns
        return not self.stage.over.is_set() and not (deadline_ns and now > deadline_ns)

    def _descriptor(self, opened: dict[int, list[int]], kind: int, file: int) -> int | None:
        """Return the descriptor for a call on an open file."""
        if opened.get(file):
            return opened[file][-1]
        if kind in (CallKind.READ, CallKind.FSTAT):
            return self.stage.shared_descriptor(file)
        return None

    def _other(
        self, opened: dict[int, list[int]], kind: int, file: int, descriptor: int | None
    ) -> int:
        stage = self.stage
        if kind == CallKind.OPEN:
            opened.setdefault(file, []).append(stage.open(file))
        elif kind == CallKind.STAT:
            stage.calls.stat(stage.script.paths[file])
        elif kind == CallKind.FSTAT and descriptor is not None:
            stage.calls.fstat(descriptor)
        elif kind == CallKind.CLOSE:
            stage.calls.close(opened[file].pop())
        return 0

    def _hint(
        self, ahead: dict[int, tuple[int, int]], place: int, file: int, descriptor: int | None
    ) -> None:
        """Hint to the kernel the next reads of the file, up to AHEAD."""
        script = self.stage.script
        assert script.next_read is not None
        hinted, n_ahead = ahead.get(file, (place, 0))
        n_ahead -= 1 if hinted != place else 0
        while n_ahead < AHEAD:
            following = int(script.next_read[hinted])
            if following < 0:
                break
            hinted, n_ahead = following, n_ahead + 1
            where, length = int(script.offset[hinted]), int(script.length[hinted])
            if length and descriptor is not None:
                self.stage.calls.advise(descriptor, where, length, os.POSIX_FADV_WILLNEED)
        ahead[file] = (hinted, n_ahead)

    def _buffers(self, length: int) -> list[Any]:
        """Return views of `length` bytes in all, of one buffer with touched pages."""
        views = self.buffers.get(length)
        if views is None:
            if self.whole is None:
                self.whole = mmap.mmap(-1, BUFFER_BYTES)
                self.whole.write(bytes(BUFFER_BYTES))
            view = memoryview(self.whole)
            full, rest = divmod(length, BUFFER_BYTES)
            views = [view] * full + ([view[:rest]] if rest or not full else [])
            if len(self.buffers) < PIECE:
                self.buffers[length] = views
        return views


@contextmanager
def _many_descriptors() -> Iterator[None]:
    """Raise the process's limit of open files to the system's maximum."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
