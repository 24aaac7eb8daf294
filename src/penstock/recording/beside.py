"""Observe a program from beside: page faults, and the host each second.

Used by `penstock run` and `attach`.  Runs in the launcher, never in the job; knows native/faults.h,
and nothing of logs, tables or screens.
"""

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

# Samples are written when a ring is a quarter full, and at least at the end of each interval: a
# live view shows the last minute, and a killed launcher loses at most an interval.
DRAIN_MS = 200
SAMPLE_S = 1.0  # a sample takes 1 ms of a CPU


class PageFaultWatch:
    """Samples page faults while the context is open, into a file of the run folder.

    pids: running processes to watch; the first must exist.  Empty: programs started in the context.
    state: "measured", or the reason without samples, such as a kernel that forbids sampling.  The
    program runs in either case.  reason: why sampling is pointless from the start.
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
        """Remove the samples: their process numbers differ from the numbers in the logs."""
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
        # Block signals here: the launcher's main thread receives and forwards them.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._ends.is_set():
            self._native.penstock_faults_drain(self._handle, DRAIN_MS)
            if self._is_paused() != is_paused:
                is_paused = not is_paused
                self._native.penstock_faults_pause(self._handle, is_paused)

    def _is_paused(self) -> bool:
        return control.asked(self.folder) == control.PAUSE


class Host:
    """Samples the host while the context is open, into a file of the run folder.

    A sample is taken at the begin, each second, and at the end.  If the file cannot be written, the
    program runs without samples.  is_apart: the kernel does not count the program as a child of the
    launcher.  is_first: the first of several ranks on the host samples the host; the other ranks
    sample only their own programs, at begin and end.
    """

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
            with contextlib.suppress(OSError):  # a full disk: earlier samples stay
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
