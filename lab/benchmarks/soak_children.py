"""The processes of a round of soak_units.py: a saving program, a drain, and the faults for both.

Knows layouts and Penstock's drain; judges nothing.
"""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from soak_layouts import Layout

from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings

__all__ = [
    "GAP_IN_PLACE_S",
    "SPENT",
    "Wrong",
    "answered",
    "die_with_parent",
    "dies_at",
    "draining",
    "ended",
    "fails_on",
    "forked",
    "saving",
    "unspoilt",
]

PAUSE_S = 0.04  # most, between two files of a save
GAP_IN_PLACE_S = 2.3  # at least: Penstock takes a shorter gap for a pause within a save


class Wrong(Exception):  # noqa: N818 - a finding
    """A difference, in words."""


# --- children -------------------------------------------------------------------------------------


def die_with_parent() -> None:
    """Die with the parent: an ended soak leaves no process behind."""
    import ctypes

    pr_set_pdeathsig = 1  # linux/prctl.h
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def forked(work: Callable[[], Any], log: Path, *, is_group: bool = False) -> int:
    """Start a child for the work; the child's words go to the log."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        die_with_parent()
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if is_group:
            os.setpgid(0, 0)
        number = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(number, 1)
        os.dup2(number, 2)
        work()
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode())
        status = 3
    finally:
        os._exit(status)


# CPU seconds and children by the kind of work, of all ended children of this process.
SPENT: dict[str, list[float]] = {}


def ended(pid: int, name: str, how: int = 0) -> int | None:
    """Wait for a child.  Return the wait status; None: still alive, with WNOHANG as `how`."""
    ended_pid, status, used = os.wait4(pid, how)
    if not ended_pid:
        return None
    spent = SPENT.setdefault(name, [0.0, 0])
    spent[0] = round(spent[0] + used.ru_utime + used.ru_stime, 3)
    spent[1] += 1
    return status


def answered(work: Callable[[], Any], folder: Path, name: str) -> Any:
    """Return what `work` returns in a child.  Raises Wrong: the child has failed."""
    answer, log = folder / f"{name}.json", folder / f"{name}.log"
    answer.unlink(missing_ok=True)
    pid = forked(lambda: answer.write_text(json.dumps(work())), log)
    if status := ended(pid, name.partition("-")[0]):
        raise Wrong(f"{name}: status {status}: {log.read_text()[-1500:]}")
    return json.loads(answer.read_text())


@dataclass(frozen=True, slots=True)
class SavingProgram:
    """A program that saves again and again.

    begin: the first step and the first number.  said: the file for the times of each save.  The
    program ends after n_saves, or after the save during which the file `stop` appeared.
    """

    layout: Layout
    tier: Path
    said: Path
    begin: tuple[int, int]
    seed: int
    n_saves: int
    gap_s: float
    stop: Path


def saving(job: SavingProgram) -> None:
    """Run a job in this process, or in one process per rank."""
    layout = job.layout
    if layout.n_ranks == 1:
        _saving(job)
        return
    store = job.said.with_name(f"store-{time.time_ns()}")
    pids = []
    for rank in range(layout.n_ranks):
        pid = os.fork()
        if not pid:
            status = 3
            try:
                die_with_parent()
                os.environ |= {"SOAK_RANK": str(rank), "SOAK_STORE": str(store)}
                _saving(job, rank)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        pids.append(pid)
    if any(os.waitpid(pid, 0)[1] for pid in pids):
        raise Wrong("a rank has failed")


def _saving(job: SavingProgram, rank: int = 0) -> None:
    layout = job.layout
    chance = random.Random(job.seed)  # of all ranks
    own = random.Random(job.seed + rank)
    step, number = job.begin
    save = layout.opened()
    tell = os.open(job.said, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(words: str) -> None:
        if rank == 0:
            os.write(tell, f"{words} {time.monotonic():.4f}\n".encode())

    def pause() -> None:
        time.sleep(own.random() * PAUSE_S)

    for place in range(job.n_saves):
        say(f"began {step} {number}")
        save(job.tier, step, number, pause)
        say(f"ended {step} {number}")
        if place + 1 == job.n_saves or _is_stopped(job.stop, layout, rank):
            return
        least = GAP_IN_PLACE_S if layout.is_in_place else 0.0
        time.sleep(least + chance.random() * job.gap_s)
        step, number = step + 1, number + 1


def _is_stopped(stop: Path, layout: Layout, rank: int) -> bool:
    """All ranks end together: rank 0 looks."""
    is_over = stop.exists()
    if layout.n_ranks > 1:
        import torch.distributed as dist

        flags = [is_over]
        dist.broadcast_object_list(flags, src=0)
        is_over = flags[0]
    return is_over


def draining(
    tiers: tuple[Path, str | Path],
    settings: DrainSettings,
    over: Path,
    grace_s: float,
    spoil: Callable[[], None],
) -> None:
    spoil()
    with Drainer(*tiers, settings) as working:
        working.watch(over.exists, grace_s)


# --- faults of a drain ----------------------------------------------------------------------------

CHANGES = ("replace", "rename", "unlink", "rmdir", "mkdir", "fsync", "pwrite", "write", "open")


def dies_at(number: int) -> Callable[[], None]:
    """SIGKILL at a numbered change of a file system, counted over all file systems."""

    def spoil() -> None:
        left = [number]

        def counted(do: Callable[..., Any]) -> Callable[..., Any]:
            def now(*given: Any, **named: Any) -> Any:
                left[0] -= 1
                if left[0] <= 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return do(*given, **named)

            return now

        for name in CHANGES[:-1]:
            setattr(os, name, counted(getattr(os, name)))

    return spoil


def fails_on(slow: Path, seed: int, share: float) -> Callable[[], None]:
    """A share of the calls on the slow tier fails, in bursts; some hang for a while."""

    def spoil() -> None:
        chance = random.Random(seed)
        root = os.fspath(slow)
        bursts = [0]

        def is_slow(where: Any) -> bool:
            if isinstance(where, int):
                with suppress(OSError):
                    where = os.readlink(f"/proc/self/fd/{where}")  # noqa: PTH115 - called often
            return str(where).startswith(root)

        def failing(do: Callable[..., Any]) -> Callable[..., Any]:
            def now(*given: Any, **named: Any) -> Any:
                if given and is_slow(given[0]):
                    if bursts[0] > 0 or chance.random() < share:
                        bursts[0] = bursts[0] - 1 if bursts[0] > 0 else chance.choice((0, 0, 2, 9))
                        number = chance.choice(
                            (errno.EIO, errno.EIO, errno.ESTALE, errno.ENOSPC, errno.ETIMEDOUT)
                        )
                        raise OSError(number, os.strerror(number), os.fspath(slow))
                    if chance.random() < share / 4:
                        time.sleep(chance.random() * 0.4)
                return do(*given, **named)

            return now

        for name in (*CHANGES, "preadv", "pread", "stat", "lstat", "scandir", "listdir"):
            setattr(os, name, failing(getattr(os, name)))

    return spoil


def unspoilt() -> None:
    """The drain works as ever."""
