"""Observe from outside how recorded processes end: a killed process cannot report the end.

Looks at /proc beside the job, and interprets the observations later.  Knows the names of logs;
knows nothing of their bytes.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from penstock.log.texts import is_log_name
from penstock.recording.kernel_clock import monotonic_ns
from penstock.recording.system import Sample

__all__ = ["Ended", "Endings", "Sent", "ended_by_note", "endings_in", "sent_by_note", "signal_name"]

SHARED_MEMORY = "/dev/shm"  # loaders hand over batches in shared memory
MOST_WATCHED = 4096  # at once: a look takes 20 us per process, once a second
MOST_TOLD = 1000  # per run: a program that starts processes in a loop must not fill the file


@dataclass(slots=True)
class _Watched:
    """A process at the last look that found the process alive."""

    start_ticks: int  # since boot; distinguishes processes with a reused pid
    seen_ns: int
    rss_bytes: int


class Endings:
    """Watches the processes of this host with a log in the run folder.

    look() returns the processes gone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._host = socket.gethostname().replace("/", "_")
        self._known: set[str] = set()
        self._watched: dict[int, _Watched] = {}
        self._n_told = 0
        self._oom_kills = _oom_kills()

    def look(self) -> dict[str, list[float | None]]:
        """Return, by pid, the processes gone since the last look.

        Values are in the order of "process" in system.QUANTITIES; None: not known.  Most of the
        processes ended well, as their logs show.
        """
        self._find()
        before, self._oom_kills = self._oom_kills, _oom_kills()
        now_ns, gone = monotonic_ns(), {}
        for pid, watched in list(self._watched.items()):
            state, start_ticks, rss_bytes, status = _stat(pid)
            if start_ticks == watched.start_ticks and state not in "ZX":
                watched.seen_ns, watched.rss_bytes = now_ns, rss_bytes
                continue
            del self._watched[pid]
            if self._n_told >= MOST_TOLD:
                continue
            self._n_told += 1
            # A zombie: the parent has not read the status yet, and the low bits are the signal.
            number = status & 0x7F if start_ticks == watched.start_ticks else 0
            gone[str(pid)] = [
                number or None,
                (now_ns - watched.seen_ns) / 1e9,
                watched.rss_bytes,
                *_shared_memory(),
                self._oom_kills - before,
            ]
        return gone

    def _find(self) -> None:
        """Find new logs.

        A log's name holds host and pid: HOST.PID.SERIAL.events.
        """
        for entry in os.scandir(self._folder):
            if entry.name in self._known or not is_log_name(entry.name):
                continue
            self._known.add(entry.name)
            host, _, rest = entry.name.rsplit(".", 2)[0].rpartition(".")
            if host == self._host and rest.isdecimal() and len(self._watched) < MOST_WATCHED:
                state, start_ticks, rss_bytes, _ = _stat(int(rest))
                if state not in "ZX":
                    seen_ns = monotonic_ns()
                    self._watched[int(rest)] = _Watched(start_ticks, seen_ns, rss_bytes)


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that a process of the run sent, by the note `signal sent`.

    target: a pid; -N: process group N; -1: all processes.  at_ns: just before (CLOCK_MONOTONIC).
    """

    target: int
    number: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Ended:
    """An observed end of a process.

    at_ns: the moment of the observation (CLOCK_MONOTONIC), after the end.  status: as
    processes.status.  is_sent: the parent had sent the signal.  alive_ns: last seen alive; None:
    nobody looked.  sender: pid of another process of the run that had sent the signal.
    """

    pid: int
    at_ns: int
    status: int | None
    is_sent: bool = False
    alive_ns: int | None = None
    sender: int | None = None

    @property
    def by(self) -> str:
        """Return the cause of the end in words, or "" if not known."""
        if self.status is None or self.status >= 0:
            return ""
        sent = ", sent by its parent" * self.is_sent
        if self.sender is not None and not self.is_sent:
            sent = f", sent by process {self.sender} of this run"
        return f"by {signal_name(-self.status)}{sent}"

    def joined(self, other: Ended | None) -> Ended:
        """Combine two observations of an end: a parent's with the cause, a look's with the time."""
        if other is None:
            return self
        knows = self if self.status is not None else other
        alive = [ns for ns in (self.alive_ns, other.alive_ns) if ns is not None]
        return replace(knows, alive_ns=max(alive, default=None))


def ended_by_note(text: str) -> Ended | None:
    """Parse a parent's note `child ended`; return None if the note is damaged."""
    words = text.split("\t")[:4]
    if len(words) < 4 or not all(word.removeprefix("-").isdecimal() for word in words):
        return None
    pid, status, is_sent, at_ns = (int(word[:20]) for word in words)
    if not (0 < pid < 1 << 31 and abs(status) < 1 << 31 and 0 <= at_ns < 1 << 59):
        return None
    return Ended(pid, at_ns, status, bool(is_sent))


def sent_by_note(text: str) -> Sent | None:
    """Parse a note `signal sent`; return None if the note is damaged."""
    words = text.split("\t")
    if len(words) != 3 or not all(word.removeprefix("-").isdecimal() for word in words):
        return None
    target, number, at_ns = (int(word[:20]) for word in words)
    if not (target and abs(target) < 1 << 31 and 0 < number < 128 and 0 <= at_ns < 1 << 59):
        return None
    return Sent(target, number, at_ns)


def endings_in(samples: Sequence[Sample]) -> list[Ended]:
    """Return the ended processes in a file of samples."""
    seen: dict[tuple[str, int], dict[str, float]] = {}
    for sample in samples:
        if sample.kind == "process" and sample.device.isdecimal():
            seen.setdefault((sample.device, sample.ns), {})[sample.quantity] = sample.value
    return [
        Ended(
            int(device),
            ns,
            -int(values["signal"]) if 0 < values.get("signal", 0) < 128 else None,
            alive_ns=ns - int(1e9 * min(values.get("silent_s", 0.0), ns / 1e9)),
        )
        for (device, ns), values in seen.items()
    ]


def signal_name(number: int) -> str:
    """Return SIGKILL for 9, or `signal 70` for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stat(pid: int) -> tuple[str, int, int, int]:
    """Return state, start in ticks since boot, resident bytes and, for a zombie, the wait status.

    State X: no process has the pid.
    """
    text = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(text) < 22:
        return "X", -1, 0, 0
    status = int(text[49]) if len(text) > 49 else 0
    return text[0], int(text[19]), int(text[21]) * os.sysconf("SC_PAGE_SIZE"), status


def _shared_memory() -> tuple[int | None, int | None]:
    """Return the used and the total bytes of shared memory."""
    try:
        seen = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None, None
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_blocks * seen.f_frsize


def _oom_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory.

    The processes of all control groups count.
    """
    for line in _text("/proc/vmstat").splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="backslashreplace") as file:
            return file.read()
    except OSError:
        return ""
