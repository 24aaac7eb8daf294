"""What `penstock run` and `attach` look at beside the program: its page faults, and each second
the host.  In the launcher, never in the job; knows native/faults.h, and nothing of logs, tables or
screens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from penstock.errors import RunError
from penstock.recording import control
from penstock.recording.endings import Endings
from penstock.recording.faultwatch import MEASURED, faults_path, why_not
from penstock.recording.launch import library
from penstock.recording.system import Sampler

__all__ = ["Host", "PageFaultWatch"]

# Samples are written when a ring is a quarter full, and else so often: a watch shows the last
# minute, and a killed launcher loses no more.
DRAIN_MS = 200
SAMPLE_S = 1.0  # 1 ms of one processor each


class PageFaultWatch:
    """The page faults of what is started inside this context, or of processes that run already, as
    a file of the run's folder.

    pids: those that run already, the one that has to be there first; none: what is started.
    state: "measured", or why they are not: the kernel forbids it, or has no such thing.  The
    program runs in either case.  reason: why it is of no use to begin.
    """

    def __init__(self, folder: Path, reason: str = "", pids: Sequence[int] = ()) -> None:
        self.folder = folder
        self.state = reason or MEASURED
        self._pids = pids
        self._path: Path | None = None
        self._handle = ctypes.c_void_p()
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> PageFaultWatch:
        if self.state != MEASURED:
            return self
        try:
            self._native = _bound(ctypes.CDLL(str(library())))
        except (OSError, AttributeError, RunError) as error:
            self.state = f"the recorder has no sampler: {error}"
            return self
        path = Path(faults_path(str(self.folder)))
        is_paused, pids = self._is_paused(), self._pids
        problem = self._native.penstock_faults_open(
            *(os.fsencode(path), is_paused, (ctypes.c_int * len(pids))(*pids), len(pids)),
            ctypes.byref(self._handle),
        )
        if problem:
            self.state = why_not(-problem)
            return self
        self._path = path
        self._thread = threading.Thread(target=self._drain, args=[is_paused], daemon=True)
        self._thread.start()
        return self

    def drop(self, why: str) -> None:
        """What was sampled cannot be put down to the processes: they have other numbers."""
        if self._path is not None:
            self.state = why
            with contextlib.suppress(OSError):
                self._path.unlink()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is None:
            return
        self._ends.set()
        self._thread.join()
        if problem := self._native.penstock_faults_close(self._handle):
            self.state = f"not all could be written: {os.strerror(-problem)}"

    def _drain(self, is_paused: bool) -> None:
        # Signals are the launcher's main thread's, which passes them on.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._ends.is_set():
            self._native.penstock_faults_drain(self._handle, DRAIN_MS)
            if self._is_paused() != is_paused:
                is_paused = not is_paused
                self._native.penstock_faults_pause(self._handle, is_paused)

    def _is_paused(self) -> bool:
        return control.asked(self.folder) == control.PAUSE


class Host:
    """Samples of what the host does while the program runs inside this context, as a file of the
    run's folder: one each second, one at its begin and one when it has ended.  Where they cannot be
    written there are none; the program runs in either case.

    is_apart: the program will not be counted as a child of ours.  is_first: of several ranks here
    the first; what the others would see of the host is the same, and they tell at their begin and
    end of their own programs alone."""

    def __init__(self, folder: Path, is_apart: bool = False, is_first: bool = True) -> None:
        self.folder = folder
        self.is_apart = is_apart
        self.is_first = is_first
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Host:
        with contextlib.suppress(OSError):
            self._endings = Endings(self.folder) if self.is_first and not self.is_apart else None
            self._sampler = Sampler(self.folder, self.is_apart, self.is_first)
            self._sampler.sample()
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._thread is not None:
            self._ends.set()
            self._thread.join()
            with contextlib.suppress(OSError):  # a full disk: what was sampled stays
                self._sampler.sample(self._endings.look() if self._endings else None)
                self._sampler.close()

    def _sample(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        with contextlib.suppress(OSError):
            while not self._ends.wait(SAMPLE_S if self.is_first else None):
                self._sampler.sample(self._endings.look() if self._endings else None)


def _bound(native: ctypes.CDLL) -> ctypes.CDLL:
    handle = ctypes.c_void_p
    native.penstock_faults_open.argtypes = [
        *(ctypes.c_char_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int),
        ctypes.POINTER(handle),
    ]
    native.penstock_faults_drain.argtypes = [handle, ctypes.c_int]
    native.penstock_faults_pause.argtypes = [handle, ctypes.c_int]
    native.penstock_faults_close.argtypes = [handle]
    return native
