"""Sample the lines of code on which a fetch spends CPU time, from a thread of the process.

While a fetch runs, a sampling thread looks at the fetch's Python stack some 50 times a second,
later 10 times.  A look counts by the share of a CPU that the fetching thread had since the look
before.  A look counts for the innermost line outside installed packages and the standard library,
with the function called there; or for the innermost function of a package, if the fetch shows no
other code.  A function that holds the interpreter's lock delays a look until the function ends, and
gets the looks that were due meanwhile.  Imports no framework.

The sampling thread exists in processes that fetch, never across a fork, and blocks every signal.
docs/FORMAT.md describes the note `fetch line`.
"""

from __future__ import annotations

import atexit
import gc
import operator
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from penstock.adapters.marks import quietly
from penstock.recording import recorder

__all__ = ["ENABLED", "LineSampler", "sampler"]

ENABLED = "PENSTOCK_LINES"  # environment variable: `penstock run` sets 1; windows set none
PERIOD_NS = 20_000_000  # a look takes some 70 µs: 0.4 % of a CPU
LATER_NS = 100_000_000  # after MANY looks of a process: 0.07 %
MANY = 400
# varies the period: a loop of equal length must not be sampled at a single point
JITTER = (0.8, 1.0, 1.2, 0.9, 1.1, 1.05, 0.95)
# after so long without a fetch the sampling thread ends until the next fetch
IDLE_NS = 1_000_000_000
MOST_LINES = 64  # per process; further lines count together
MOST_FRAMES = 100
NAME_BYTES = 300

Line = tuple[str, int, str, str]  # file, line, function, called function
OTHERS: Line = ("", 0, "", "")


def _packages() -> tuple[str, ...]:
    """Return the folders of the standard library, installed packages and penstock."""
    import site
    import sysconfig

    folders = {*sysconfig.get_paths().values(), *site.getsitepackages(), site.getusersitepackages()}
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
    kept = {sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    kept |= {folder for folder in folders if folder.endswith("-packages")} | {ours}
    return tuple(f"{folder}{os.sep}" for folder in kept)


@dataclass(slots=True)
class _Fetch:
    """A fetch under way.

    below: the code of the calling frame.  clock: of the thread's CPU time.  looked_ns, cpu_ns: wall
    and CPU time of the last look, or of the begin.
    """

    below: CodeType
    clock: int
    looked_ns: int
    cpu_ns: int


class LineSampler:
    """Samples the lines of all fetches of this process."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Forget all samples, in a forked child: the sampling thread belongs to the parent."""
        self._fetches: dict[int, _Fetch] = {}  # by thread
        self._lines: dict[Line, tuple[int, int]] = {}  # → looks, CPU ns
        self._written: dict[Line, int] = {}
        self._n_looks = 0
        self._thread: threading.Thread | None = None
        # held; a release ends the sampling thread, from a signal handler too
        self._end = threading.Lock()
        self._is_off = os.environ.get(ENABLED) != "1"
        self._packages: tuple[str, ...] | None = None

    @quietly
    def begin(self, below: CodeType, cpu_ns: int) -> None:
        """Begin to sample a fetch of the calling thread.

        below: the code of the calling frame.  cpu_ns: the CPU time of the thread.
        """
        if self._is_off:
            return
        ident = threading.get_ident()
        clock = time.pthread_getcpuclockid(ident)
        self._fetches[ident] = _Fetch(below, clock, time.monotonic_ns(), cpu_ns)
        if self._thread is None:
            self._start()

    @quietly
    def end(self) -> None:
        """End the fetch of the calling thread."""
        self._fetches.pop(threading.get_ident(), None)

    @quietly
    def write(self) -> None:
        """Write the lines with new samples to the log."""
        for line, (n_samples, cpu_ns) in list(self._lines.items()):
            if self._written.get(line) != n_samples:
                self._written[line] = n_samples
                words = (n_samples, cpu_ns // 1000, *line)
                recorder.note("fetch line", "\t".join(map(str, words)))

    def before_fork(self) -> None:
        """End the sampling thread until the next fetch.

        Python warns at a fork of a process with several threads.
        """
        thread, self._thread = self._thread, None
        if thread is not None and self._end.locked():
            self._end.release()
            thread.join()

    def _start(self) -> None:
        self._is_off = True  # stays off if the start fails
        if self._packages is None:
            self._packages = _packages()
        self._end = threading.Lock()
        self._end.acquire()
        arguments = (self._end,)
        thread = threading.Thread(
            target=self._run, args=arguments, name="penstock lines", daemon=True
        )
        thread.start()
        self._thread, self._is_off = thread, False

    def _run(self, end: threading.Lock) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        n_periods, idle_ns, due_ns = 0, 0, time.monotonic_ns()
        try:
            # not equal: a new sampling thread has begun
            while idle_ns < IDLE_NS and self._end is end:
                # The times of looks do not depend on the delay of earlier looks: otherwise a loop
                # would be sampled at a single point.
                n_periods += 1
                usual_ns = PERIOD_NS if self._n_looks < MANY else LATER_NS
                period_ns = int(usual_ns * JITTER[n_periods % len(JITTER)])
                missed = max(0, time.monotonic_ns() - due_ns) // period_ns
                due_ns += (1 + missed) * period_ns
                if end.acquire(timeout=max(0.0, (due_ns - time.monotonic_ns()) / 1e9)):
                    return
                idle_ns = 0 if self._fetches else idle_ns + period_ns
                self._look(due_ns, period_ns)
            if self._end is end:
                self._thread = None  # until the next fetch
            self.write()
        except Exception:
            self._is_off = True

    def _look(self, due_ns: int, period_ns: int) -> None:
        if not self._fetches:
            return
        frames = _frames()
        for ident, fetch in list(self._fetches.items()):
            frame = frames.get(ident)
            now_ns, cpu_ns = time.monotonic_ns(), time.clock_gettime_ns(fetch.clock)
            # looks due before the last look are over
            first = max(0, -(-(fetch.looked_ns - due_ns) // period_ns))
            n_due = (now_ns - due_ns) // period_ns + 1 - first
            if frame is None or n_due <= 0:
                continue
            share = min(1.0, (cpu_ns - fetch.cpu_ns) / max(1, now_ns - fetch.looked_ns))
            fetch.looked_ns, fetch.cpu_ns = now_ns, cpu_ns
            if share > 0:
                self._count(frame, fetch.below, int(share * n_due * period_ns))

    def _count(self, frame: FrameType, below: CodeType, cpu_ns: int) -> None:
        line = _line(frame, below, self._packages or ())
        if line is None:
            return
        if line not in self._lines and len(self._lines) >= MOST_LINES:
            line = OTHERS
        n_samples, sum_ns = self._lines.get(line, (0, 0))
        self._lines[line] = n_samples + 1, sum_ns + cpu_ns
        self._n_looks += 1
        if self._n_looks >= 32 and self._n_looks & (self._n_looks - 1) == 0:
            self.write()  # at powers of two: a killed process loses at most half of the samples


def _frames() -> dict[int, FrameType]:
    """Return the current frame of each thread, without a garbage collection meanwhile.

    Before 3.12 the call holds a lock of the interpreter, and its allocations may begin a
    collection.  If the end of a collected object (a tensor) releases the GIL, a thread that starts
    another thread waits for the lock with the GIL held: the process stands still for ever.
    """
    if sys.version_info >= (3, 12) or not gc.isenabled():
        return sys._current_frames()
    calls: tuple[Callable[[], Any], ...] = (gc.disable, sys._current_frames, gc.enable)
    try:
        # From C, so that no other thread runs between the calls and sees collections disabled.
        frames: dict[int, FrameType] = tuple(map(operator.call, calls))[1]
    except BaseException:
        gc.enable()
        raise
    return frames


def _line(frame: FrameType, below: CodeType, packages: tuple[str, ...]) -> Line | None:
    """Return the current line of a fetch; None: the stack shows no fetch."""
    inner: FrameType | None = None
    called: FrameType | None = None
    own: FrameType | None = None
    deepest = frame
    at: FrameType | None = frame
    for _ in range(MOST_FRAMES):
        if at is None:
            return None
        if at.f_code is below:
            break
        if own is None:
            file = at.f_code.co_filename
            if not file.startswith(packages) and not file.startswith("<frozen"):
                own, called = at, inner
        inner, at = at, at.f_back
    else:
        return None
    if inner is None:
        return None  # before or after the call of the fetch
    if own is None:
        own = deepest
    code = own.f_code
    name = _qualified(called) if called is not None else ""
    return _word(code.co_filename), own.f_lineno or 0, _word(code.co_qualname), name


def _qualified(frame: FrameType) -> str:
    module = frame.f_globals.get("__name__", "")
    return _word(f"{module}.{frame.f_code.co_qualname}".lstrip("."))


def _word(text: str) -> str:
    kept = text[:NAME_BYTES]
    return kept if kept.isprintable() else "".join(c if c.isprintable() else "?" for c in kept)


sampler = LineSampler()
os.register_at_fork(before=sampler.before_fork, after_in_child=sampler.forget)
atexit.register(sampler.write)
