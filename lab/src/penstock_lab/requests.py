"""Requests of equal size to a file, by threads or by a queue, for a while: the work of IOR and fio.

And files made, looked at, opened and removed: the work of mdtest.  A program of `places.answer_of`.
Knows a file and a job.  Requests count from the first end in the measured time to the last.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle, repeat
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, TierError

__all__ = ["METADATA", "RequestsJob", "measured"]

WARM_S = 0.3
METADATA = ("create", "stat", "open", "unlink")
FILES_EACH = 200_000  # of a thread, at most
BATCH_BYTES, BATCH_NS = 64 << 20, 50_000_000  # of a queue
# Files to look at or remove are made first: as many as possible in the time, on a slow tier few.
MADE_FOR_S, MADE_EACH = 1.0, 2000


@dataclass(frozen=True, slots=True)
class RequestsJob:
    """op: read, write, or one of METADATA (then path is a folder).  order: sequential or random.
    depth: requests in flight of a thread, by io_uring; 1: a thread waits for each.  is_direct: past
    the page cache."""

    path: str
    op: str
    order: str = "sequential"
    request_bytes: int = 1 << 20
    threads: int = 1
    depth: int = 1
    is_direct: bool = True
    seconds: float = 2.0
    seed: int = 1


@dataclass(slots=True)
class _Ended:
    """When calls of a thread ended, and how many."""

    times: list[float]
    calls: list[int]

    def within(self, begin_s: float, end_s: float) -> _Ended:
        first, after = bisect_left(self.times, begin_s), bisect_right(self.times, end_s)
        return _Ended(self.times[first:after], self.calls[first:after])


def measured(job: RequestsJob, is_ready: Callable[[], None] = lambda: None) -> dict[str, float]:
    """calls_hz and bandwidth_bps.  Raises TierError."""
    if job.op in METADATA:
        return _metadata(job, is_ready)
    flags = os.O_CLOEXEC | (os.O_RDONLY if job.op == "read" else os.O_RDWR)
    try:
        descriptor = os.open(job.path, flags | (os.O_DIRECT if job.is_direct else 0))
    except OSError as error:
        raise TierError(f"{job.path}: cannot be opened so: {error.strerror}") from error
    try:
        size = os.fstat(descriptor).st_size
        blocks = size // job.request_bytes
        if not job.is_direct and job.op == "read":
            how = os.POSIX_FADV_RANDOM if job.order == "random" else os.POSIX_FADV_SEQUENTIAL
            os.posix_fadvise(descriptor, 0, 0, how)
        is_native = job.depth > 1 or (job.is_direct and job.op == "read")
        work = _in_batches if is_native else _one_by_one
        if is_native:
            import penstock.feed.read  # noqa: F401 - now, not in the measured time
        is_ready()
        rate = _team(job, lambda thread, end: work(job, descriptor, blocks, thread, end))
    finally:
        os.close(descriptor)
    return {"calls_hz": rate, "bandwidth_bps": rate * job.request_bytes}


def _team(job: RequestsJob, work: Callable[[int, float], _Ended]) -> float:
    """Calls a second of all threads together."""
    end_s = time.perf_counter() + WARM_S + job.seconds
    done: list[_Ended] = []
    errors: list[BaseException] = []

    def run(thread: int) -> None:
        try:
            done.append(work(thread, end_s))
        except (OSError, PenstockError) as error:
            errors.append(error)

    team = [threading.Thread(target=run, args=(thread,)) for thread in range(job.threads)]
    for team_thread in team:
        team_thread.start()
    for team_thread in team:
        team_thread.join()
    if errors:
        raise TierError(f"{job.path}: {job.op} failed: {errors[0]}")
    if job.is_direct:
        begin_s = end_s - job.seconds
        windows = [thread_ends.within(begin_s, end_s) for thread_ends in done]
        # Each thread by its own ends: requests begun in a thread before another's first end would
        # count too much, up to a batch of each.
        if all(len(window.times) > 1 for window in windows):
            return sum(_rate_hz([window]) for window in windows)
        if sum(len(window.times) for window in windows) > 1:
            return _rate_hz(windows)
    return _rate_hz(done)  # one pass of the file, or a sync at the end; long requests


def _rate_hz(threads: list[_Ended]) -> float:
    """Return calls a second from the first end to the last; 0.0 with fewer than two ends."""
    ended = sorted(
        (at, calls)
        for thread in threads
        for at, calls in zip(thread.times, thread.calls, strict=True)
    )
    if len(ended) < 2:
        return 0.0
    return sum(calls for _, calls in ended[1:]) / (ended[-1][0] - ended[0][0])


def _own_of(job: RequestsJob, blocks: int, thread: int) -> range:
    """Return the blocks of a thread for sequential reads or writes."""
    share = max(1, blocks // job.threads)
    first = thread * share % blocks
    return range(first, min(blocks, first + share))


def _places(job: RequestsJob, blocks: int, thread: int) -> Iterator[int]:
    """Yield the places of requests.  Past the page cache again and again; else no block twice, as a
    second read would come from memory."""
    own = _own_of(job, blocks, thread)
    chance = random.Random(job.seed * 1000 + thread)
    if not job.is_direct:
        order = chance.sample(own, len(own)) if job.order == "random" else own
        return (block * job.request_bytes for block in order)
    if job.order == "random":
        return (int(chance.random() * blocks) * job.request_bytes for _ in repeat(None))
    return (block * job.request_bytes for block in cycle(own))


def _one_by_one(
    job: RequestsJob, descriptor: int, blocks: int, thread: int, end_s: float
) -> _Ended:
    clock = time.perf_counter
    times: list[float] = []
    is_read = job.op == "read"
    with mmap.mmap(-1, job.request_bytes) as buffer:
        buffer.write(random.Random(thread).randbytes(job.request_bytes))
        for place in _places(job, blocks, thread):
            if is_read:
                os.preadv(descriptor, [buffer], place)
            else:
                os.pwritev(descriptor, [buffer], place)
            times.append(clock())
            if times[-1] > end_s:
                break
        if not is_read and not job.is_direct:
            os.fdatasync(descriptor)
            times[-1:] = [clock()]
    return _Ended(times, [1] * len(times))


def _in_batches(
    job: RequestsJob, descriptor: int, blocks: int, thread: int, end_s: float
) -> _Ended:
    """Send batches of many times the depth through the reader's engine, which keeps so many in
    flight: no interpreter stands between two requests, and no threads take turns.

    Raises TierError: only reads have a queue.
    """
    import numpy as np

    from penstock.feed.read import REQUEST, STAY_DEEP, ReadEngine

    if job.op != "read":
        raise TierError("a queue is for reads; writes have threads")
    own, clock = _own_of(job, blocks, thread), time.perf_counter
    chance, n_asked = np.random.default_rng(job.seed * 1000 + thread), 0
    engine = ReadEngine("auto" if job.depth > 1 else "threads", job.depth)
    times: list[float] = []
    counts: list[int] = []
    # Between two batches the queue runs empty for a moment: batches grow until a batch takes long
    # enough.
    n = 2 * job.depth
    most = max(n, min(256 * job.depth, BATCH_BYTES // job.request_bytes))
    try:
        with mmap.mmap(-1, job.depth * job.request_bytes) as memory:
            start = np.frombuffer(memory, np.uint8).ctypes.data
            requests = np.zeros(most, REQUEST)
            # Requests in flight share no memory; later requests use the memory again.
            requests["destination"] = start + (np.arange(most) % job.depth) * job.request_bytes
            requests["length"] = job.request_bytes
            requests["fd"] = descriptor
            requests["direct_fd"] = descriptor if job.is_direct else -1
            while clock() < end_s:
                if job.order == "random":
                    block = chance.integers(0, blocks, n)
                else:
                    block = own.start + (n_asked + np.arange(n)) % len(own)
                n_asked += n
                requests["offset"][:n] = block * job.request_bytes
                tally = engine.read(requests[:n], job.depth, STAY_DEEP)
                if tally["failed"]:
                    raise TierError(f"{job.path}: a request failed")
                times.append(clock())
                counts.append(n)
                n = min(2 * n, most) if tally["elapsed_ns"] < BATCH_NS else n
            del requests
    finally:
        engine.close()
    return _Ended(times, counts)


def _metadata(job: RequestsJob, is_ready: Callable[[], None]) -> dict[str, float]:
    """Time a kind of call on files of the thread's own folder."""
    root = Path(job.path) / f"metadata-{os.getpid()}"
    folders = [root / str(thread) for thread in range(job.threads)]
    try:
        for folder in folders:
            folder.mkdir(parents=True)
        there = _filled(folders) if job.op != "create" else 0
        is_ready()
        rate = _team(job, lambda thread, end: _calls(job, folders[thread], there, end))
    except OSError as error:
        raise TierError(f"{job.path}: cannot be written: {error.strerror}") from error
    finally:
        import shutil

        shutil.rmtree(root, ignore_errors=True)
    return {"calls_hz": rate, "bandwidth_bps": 0.0}


def _filled(folders: list[Path]) -> int:
    """Make files for a while; return the number in each folder."""
    end_s = time.perf_counter() + MADE_FOR_S
    for number in range(MADE_EACH):
        for folder in folders:
            (folder / f"{number}").touch()
        if time.perf_counter() > end_s:
            break
    return number + 1


def _calls(job: RequestsJob, folder: Path, there: int, end_s: float) -> _Ended:
    clock, times = time.perf_counter, []
    names = [f"{folder}/{number}" for number in range(there)]
    how = os.O_CREAT | os.O_EXCL | os.O_WRONLY if job.op == "create" else os.O_RDONLY
    for number in range(there if job.op == "unlink" else FILES_EACH):
        if clock() > end_s:
            break
        if job.op == "stat":
            os.stat(names[number % there])  # noqa: PTH116 - a Path costs more than the call
        elif job.op == "unlink":
            os.unlink(names[number])  # noqa: PTH108
        else:
            path = f"{folder}/n{number}" if job.op == "create" else names[number % there]
            os.close(os.open(path, how | os.O_CLOEXEC, 0o600))
        times.append(clock())
    return _Ended(times, [1] * len(times))


def main() -> None:
    """Read a job from standard input, wait for a line, print the measurement, as JSON."""
    job = RequestsJob(**json.loads(sys.stdin.readline()))

    def is_ready() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    answer: dict[str, Any]
    try:
        answer = dict(measured(job, is_ready))
    except (OSError, PenstockError) as error:
        with suppress(BrokenPipeError):
            is_ready()  # else nobody would read the error
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
