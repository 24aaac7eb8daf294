"""How recorded processes end, as others see it: one that is killed cannot say so itself.  Looks at
/proc beside the job, and understands later what was seen; knows the names of logs, and nothing of
their bytes.
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

__all__ = ["Ended", "Endings", "ended_by_note", "endings_in", "signal_name"]

SHARED_MEMORY = "/dev/shm"  # where loaders hand batches over
MOST_WATCHED = 4096  # processes at once: 20 us each, once a second
MOST_TOLD = 1000  # of a run: a program that starts processes in a loop fills no file


@dataclass(slots=True)
class _Watched:
    """A process as it was when it was last seen alive."""

    start_ticks: int  # since boot: another process may get its number
    seen_ns: int
    rss_bytes: int


class Endings:
    """The processes of this host that have a log in the run folder.  look() says which are gone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._host = socket.gethostname().replace("/", "_")
        self._known: set[str] = set()
        self._watched: dict[int, _Watched] = {}
        self._n_told = 0
        self._oom_kills = _oom_kills()

    def look(self) -> dict[str, list[float | None]]:
        """By pid, of each process that is gone since the look before: the values of "process" in
        system.QUANTITIES; None is not known.  Most of them ended well: their logs say so."""
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
            # A child whose parent has not asked yet: the low bits say which signal ended it.
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
        """Logs that are new.  Their names hold host and pid: HOST.PID.SERIAL.events."""
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
class Ended:
    """What was seen of the end of a process.

    at_ns: when, CLOCK_MONOTONIC; it had ended before.  status: as of processes.status.  is_sent:
    its parent had sent it that signal.  alive_ns: when it was last seen alive; None: nobody looked.
    """

    pid: int
    at_ns: int
    status: int | None
    is_sent: bool = False
    alive_ns: int | None = None

    @property
    def by(self) -> str:
        """What ended it, in words; "": not known."""
        if self.status is None or self.status >= 0:
            return ""
        return f"by {signal_name(-self.status)}" + ", sent by its parent" * self.is_sent

    def joined(self, other: Ended | None) -> Ended:
        """This, and what another one saw of the same end: a parent knows more of how, and who looks
        each second more of when."""
        if other is None:
            return self
        knows = self if self.status is not None else other
        alive = [ns for ns in (self.alive_ns, other.alive_ns) if ns is not None]
        return replace(knows, alive_ns=max(alive, default=None))


def ended_by_note(text: str) -> Ended | None:
    """What a parent noted as `child ended`; None: the note is damaged."""
    words = text.split("\t")[:4]
    if len(words) < 4 or not all(word.removeprefix("-").isdecimal() for word in words):
        return None
    pid, status, is_sent, at_ns = (int(word[:20]) for word in words)
    if not (0 < pid < 1 << 31 and abs(status) < 1 << 31 and 0 <= at_ns < 1 << 59):
        return None
    return Ended(pid, at_ns, status, bool(is_sent))


def endings_in(samples: Sequence[Sample]) -> list[Ended]:
    """Of a file of samples, the processes that were gone."""
    seen: dict[tuple[str, int], dict[str, float]] = {}
    for one in samples:
        if one.kind == "process" and one.device.isdecimal():
            seen.setdefault((one.device, one.ns), {})[one.quantity] = one.value
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
    """SIGKILL of 9; `signal 70` of one without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _stat(pid: int) -> tuple[str, int, int, int]:
    """State, start in ticks since boot, resident bytes and, of a zombie, status as wait has it;
    state X: it is not there."""
    text = _text(f"/proc/{pid}/stat").rpartition(")")[2].split()
    if len(text) < 22:
        return "X", -1, 0, 0
    status = int(text[49]) if len(text) > 49 else 0
    return text[0], int(text[19]), int(text[21]) * os.sysconf("SC_PAGE_SIZE"), status


def _shared_memory() -> tuple[int | None, int | None]:
    """Bytes of shared memory that are in use, and how many there are."""
    try:
        seen = os.statvfs(SHARED_MEMORY)
    except OSError:
        return None, None
    return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_blocks * seen.f_frsize


def _oom_kills() -> int:
    """How many processes this kernel has ended for want of memory, in any control group."""
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
