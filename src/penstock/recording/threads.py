"""A process's threads, observed from outside: on a CPU, or in a call, on a file, and since when.
Reads /proc alone: no signal, no ptrace, nothing the process could notice.  Knows no log."""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from penstock.recording.kernel_clock import monotonic_ns

__all__ = ["Look", "ThreadState", "doing", "in_words"]

MOST_THREADS = 64  # per process; a framework has dozens of threads waiting for work
MOST_PROCESSES = 256
# Calls that may block for long, by number; the first argument of each call is a descriptor.
_ON_FILES = {
    "x86_64": "0 read 1 write 17 pread 18 pwrite 19 readv 20 writev 295 preadv 296 pwritev 74 fsync"
    " 75 fdatasync 73 flock 72 fcntl 5 fstat 217 getdents 16 ioctl 45 recvfrom 47 recvmsg"
    " 42 connect 44 sendto 46 sendmsg 43 accept 288 accept 232 epoll_wait 281 epoll_wait"
    " 426 io_uring_enter 285 fallocate 77 ftruncate",
    "aarch64": "63 read 64 write 67 pread 68 pwrite 65 readv 66 writev 69 preadv 70 pwritev"
    " 82 fsync 83 fdatasync 32 flock 25 fcntl 80 fstat 61 getdents 29 ioctl 207 recvfrom"
    " 212 recvmsg 203 connect 206 sendto 211 sendmsg 202 accept 22 epoll_wait"
    " 426 io_uring_enter 47 fallocate 46 ftruncate",
}
_OTHERS = {
    "x86_64": "7 poll 271 poll 23 select 270 select 34 pause 35 sleep 230 sleep 61 wait 247 wait"
    " 202 futex 449 futex 257 open 2 open 4 stat 6 stat 262 stat 332 stat 82 rename 87 unlink"
    " 65 semop 220 semop 162 sync 306 syncfs",
    "aarch64": "73 poll 72 select 101 sleep 115 sleep 260 wait 95 wait 98 futex 449 futex 56 open"
    " 79 stat 291 stat 81 sync 193 semop 192 semop 267 syncfs",
}


def _numbered(calls: dict[str, str]) -> dict[int, str]:
    """Return the names of the calls by number on this machine."""
    words = calls.get(platform.machine(), "").split()
    return {int(number): name for number, name in zip(words[::2], words[1::2], strict=True)}


# Words for the system calls of sleeping threads.
MEANS = {
    "futex": "futex: a lock, a queue or a future",
    "futex_wait_queue": "futex: a lock, a queue or a future",
    "poll": "poll: pipes or sockets",
    "select": "select: pipes or sockets",
    "epoll_wait": "epoll_wait: pipes or sockets",
    "wait": "wait: for a process of its own",
}


def in_words(state: str, call: str | None, path: str | None) -> str:
    """Describe a thread: runs, is stopped, or sleeps in a call on a file."""
    if state in "Tt":
        return "is stopped"
    if state == "R":
        return "runs"
    named = MEANS.get(call or "", call or "a call that is not known")
    deep = ", in the kernel" if state == "D" else ""
    return f"sleeps in {named}{f' {path}' if path else ''}{deep}"


@dataclass(frozen=True, slots=True)
class ThreadState:
    """A thread between two looks.

    state: the kernel's letter: R on a CPU or ready, S asleep, D asleep in the kernel, T stopped.
    call: the current system call, or "". path: the file of the call's descriptor, or "". cpu: the
    share of a CPU used between the looks.  still_s: seconds since the thread last ran; None: not
    known, or running.
    """

    pid: int
    tid: int
    name: str
    state: str
    call: str
    path: str
    cpu: float
    still_s: float | None


class Look:
    """Processes at a moment, for comparison with a later look."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.ns = monotonic_ns()
        self.ran = {
            (pid, tid): ran
            for pid in list(pids)[:MOST_PROCESSES]
            for tid in _tids(pid)
            if (ran := _ran(pid, tid)) is not None
        }


def doing(before: Look) -> list[ThreadState]:
    """Return the threads of an earlier look that still exist.

    Each thread has the CPU share since the earlier look and the present state.
    """
    passed_ns = max(1, monotonic_ns() - before.ns)
    now_ms = _last_ran_ms("self", threading.get_native_id())
    threads = []
    for (pid, tid), was in before.ran.items():
        ran, state = _ran(pid, tid), _state(pid, tid)
        if ran is None or state is None:
            continue
        call, path = _call(pid, tid)
        still_s = None
        if ran == was:
            still_s = passed_ns / 1e9
            last_ms = _last_ran_ms(pid, tid)
            if now_ms is not None and last_ms is not None:
                still_s = max(still_s, (now_ms - last_ms) / 1e3)
        cpu = min(1.0, (ran[0] - was[0]) / passed_ns)
        name = _text(pid, tid, "comm").rstrip("\n")
        threads.append(ThreadState(pid, tid, name, state, call, path, cpu, still_s))
    return threads


def _tids(pid: int) -> list[int]:
    """Return the first threads of a process, including the main thread."""
    try:
        return sorted(int(name) for name in os.listdir(f"/proc/{pid}/task"))[:MOST_THREADS]  # noqa: PTH208
    except OSError:
        return []


def _ran(pid: int, tid: int) -> tuple[int, int] | None:
    """Return the ns on a CPU, and how often the thread was scheduled."""
    words = _text(pid, tid, "schedstat").split()
    return (int(words[0]), int(words[2])) if len(words) == 3 else None


def _state(pid: int, tid: int) -> str | None:
    words = _text(pid, tid, "stat").rpartition(")")[2].split()
    return words[0] if words else None


def _last_ran_ms(pid: int | str, tid: int) -> float | None:
    """Return when the thread was last on a CPU, by the scheduler's clock.

    None: the kernel does not report the time.
    """
    for line in _text(pid, tid, "sched").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "se.exec_start":
            try:
                return float(value)
            except ValueError:
                return None
    return None


def _call(pid: int, tid: int) -> tuple[str, str]:
    """Return the system call of a thread, and the file of the call's descriptor."""
    words = _text(pid, tid, "syscall").split()
    if len(words) < 3 or not words[0].isdecimal():
        waits_in = _text(pid, tid, "wchan")
        return ("" if waits_in in ("", "0") else waits_in), ""
    number, on_files = int(words[0]), _numbered(_ON_FILES)
    if number in on_files:
        try:
            path = os.readlink(f"/proc/{pid}/fd/{int(words[1], 16)}")  # noqa: PTH115
        except (OSError, ValueError):
            path = ""
        return on_files[number], path
    return _numbered(_OTHERS).get(number, f"system call {number}"), ""


def _text(pid: int | str, tid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{tid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
