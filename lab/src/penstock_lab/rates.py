"""Whether a place keeps the requested limits: loops of pread past the page cache.

Knows a file and three limits.  Each limit is measured by requests that cannot pass another limit
first.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import TierError
from penstock.words import show
from penstock_lab.groups import Group

__all__ = ["FILE_BYTES", "TOLERANCE", "LimitCheck", "MeasuredLimit", "checks", "kept", "rate_of"]

TOLERANCE = 0.05
# FUSE's own share of a request, beside the latency: 77 to 256 us were measured on an idle machine.
OVERHEAD_S = 0.5e-3

FILE_BYTES = 64 << 20
LARGE, SMALL = 1 << 20, 4 << 10
MOST_THREADS = 64
QUEUED = 8  # requests that wait for the limit, beside requests that wait for the latency
ENOUGH = 60  # requests in the measured time: a request more or less is less than half of TOLERANCE
WARM_S = 0.3
MEASURED_S = 1.5
# The kernel's throttle works in slices of 100 ms: forty slices make an error of 2.5 %.
MEASURED_IN_GROUP_S = 4.0
ATTEMPTS = 3  # on a machine that is busy for a moment

CHILD = """
import json, sys
from penstock_lab.rates import rate_of
sys.stdin.readline()
path, request_bytes, threads, seconds = sys.argv[1:]
print(json.dumps(rate_of(path, int(request_bytes), int(threads), float(seconds))))
"""


@dataclass(frozen=True, slots=True)
class LimitCheck:
    """A limit, and the requests that show the limit.  seconds: duration, beside the warm-up."""

    what: str
    limit: float
    request_bytes: int
    threads: int
    seconds: float


@dataclass(frozen=True, slots=True)
class MeasuredLimit:
    """measured: in the limit's unit."""

    measured: float
    is_kept: bool
    words: str


def checks(
    bandwidth_bps: float | None, requests_hz: float | None, latency_s: float
) -> Iterator[LimitCheck]:
    """Yield the necessary measurements for the limits; a limit hidden by another is skipped."""
    slower_s = max(
        SMALL / bandwidth_bps if bandwidth_bps else 0, 1 / requests_hz if requests_hz else 0
    )
    if latency_s > slower_s:
        yield LimitCheck("latency", latency_s, SMALL, 1, max(MEASURED_S, ENOUGH * latency_s))
    if bandwidth_bps:
        # As large as possible with enough requests to count; a queue must end within the time.
        most = bandwidth_bps * MEASURED_S / ENOUGH
        size = max(SMALL, min(LARGE, 1 << int(math.log2(max(1, most)))))
        if not (requests_hz and requests_hz * size < 2 * bandwidth_bps):
            threads = QUEUED + int(bandwidth_bps * latency_s / size)
            yield LimitCheck(
                "bandwidth", bandwidth_bps, size, min(MOST_THREADS, threads), MEASURED_S
            )
    if requests_hz and not (bandwidth_bps and requests_hz * SMALL > bandwidth_bps / 2):
        threads = QUEUED + 2 * int(requests_hz * latency_s)
        seconds = max(MEASURED_S, ENOUGH / requests_hz)
        yield LimitCheck("requests", requests_hz, SMALL, min(MOST_THREADS, threads), seconds)


def kept(check: LimitCheck, file: Path, group: Group | None = None) -> MeasuredLimit:
    """Measure a limit on a file, in a control group if given.  Raises TierError."""
    tried: list[MeasuredLimit] = []
    for _ in range(ATTEMPTS):
        if group is None:
            calls, moved, seconds = rate_of(
                str(file), check.request_bytes, check.threads, check.seconds
            )
        else:
            calls, moved, seconds = _rate_inside(group, file, check)
        tried.append(_judged(check, calls, moved, seconds))
        if tried[-1].is_kept:
            return tried[-1]
    return min(tried, key=lambda attempt: abs(attempt.measured / check.limit - 1))


def _judged(check: LimitCheck, calls: int, moved: int, seconds: float) -> MeasuredLimit:
    if not calls or not seconds:
        return MeasuredLimit(0.0, False, f"{check.what}: no request ended in time")
    if check.what == "latency":
        each_s = seconds / calls
        most_s = check.limit * (1 + TOLERANCE) + OVERHEAD_S
        words = f"latency {show(each_s, 's')} of {show(check.limit, 's')} asked"
        return MeasuredLimit(each_s, check.limit * (1 - TOLERANCE) <= each_s <= most_s, words)
    measured = (moved if check.what == "bandwidth" else calls) / seconds
    is_kept = abs(measured / check.limit - 1) <= TOLERANCE
    if check.what == "bandwidth":
        words = f"{show(measured, 'B/s')} of {show(check.limit, 'B/s')} asked"
    else:
        words = f"{measured:,.0f} of {check.limit:,.0f} requests/s asked"
    return MeasuredLimit(measured, is_kept, words)


def _rate_inside(group: Group, file: Path, check: LimitCheck) -> tuple[int, int, float]:
    """Measure in a process that joins the group before the begin."""
    seconds = max(MEASURED_IN_GROUP_S, check.seconds)
    words = [str(file), str(check.request_bytes), str(check.threads), str(seconds)]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        group.add(child.pid)
        answer, said = child.communicate("\n", timeout=60 + 10 * seconds)
    finally:
        child.kill()
        child.wait()
    if child.returncode:
        raise TierError(f"{file}: cannot be measured: {(said.strip().splitlines() or ['?'])[-1]}")
    calls, moved, took_s = json.loads(answer)
    return int(calls), int(moved), float(took_s)


def rate_of(path: str, request_bytes: int, threads: int, seconds: float) -> tuple[int, int, float]:
    """Return calls, bytes and seconds of random reads past the page cache, by so many threads.

    Between the first and the last end in the measured time, without the first: requests queued
    before the time are then no gap, and ends after the time no gain.  Raises TierError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        raise TierError(
            f"{path}: cannot be read past the page cache: {error.strerror}; measure on another "
            "file system"
        ) from error
    try:
        blocks = os.fstat(descriptor).st_size // request_bytes
        end_s = time.perf_counter() + WARM_S + seconds
        ended: list[tuple[float, int]] = []
        errors: list[OSError] = []

        def work(seed: int) -> None:
            chance = random.Random(seed)
            with mmap.mmap(-1, request_bytes) as buffer:
                while time.perf_counter() < end_s and not errors:
                    offset = chance.randrange(blocks) * request_bytes
                    try:
                        got = os.preadv(descriptor, [buffer], offset)
                    except OSError as error:
                        errors.append(error)
                        return
                    ended.append((time.perf_counter(), got))

        team = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
        for thread in team:
            thread.start()
        for thread in team:
            thread.join()
    finally:
        os.close(descriptor)
    if errors:
        raise TierError(f"{path}: cannot be read: {errors[0].strerror}")
    counted = sorted(call for call in ended if end_s - seconds <= call[0] <= end_s)
    if len(counted) < 2:
        return 0, 0, 0.0
    return len(counted) - 1, sum(got for _, got in counted[1:]), counted[-1][0] - counted[0][0]
