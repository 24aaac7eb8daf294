"""Predict the effect of staging: run the loader's batches again with other read times.

Knows columns, no file and no run.  Where workers fetch ahead, the wait is not the sum of the reads:
a faster read may leave the wait unchanged, or end the wait.  So the pipeline is remade batch by
batch: the worker, the number of batches ahead, the computing, the busy time of the step loop.  The
first run of the model is without the change, and shows how well the model reproduces the recorded
run; the second run has the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.places.registry import Costs
from penstock.stage.evidence import Batches, Evidence

__all__ = ["Expected", "Prediction", "Predictor", "expected", "waits_of"]

Array = NDArray[Any]

# The first look at a file depends on the moment. Without correction a slow first read of a small
# file would put the file first, and the next run would not repeat the slow read. Later looks
# measure the file. The mean of the later looks is combined with the mean of similar files, weighted
# as LOOKS_OF_ITS_LIKE looks. On two recorded epochs of single opens, 4 made the best choice remove
# 2 to 8 % less of the remade wait than 16, and 64 no more.
LOOKS_OF_ITS_LIKE = 16.0
LOOK_BYTES = 4 << 20  # bytes read from a file for which one open is counted
STEPS_PER_OCTAVE = 2  # similar files: on one device, with bytes per open in one step
# The mean of files of equal size is combined with the device's mean over all sizes, weighted as
# OPENS_OF_ITS_DEVICE opens. Otherwise 4 slow opens by chance out of 30 make a size seem twice as
# slow.
OPENS_OF_ITS_DEVICE = 64.0
LEAST_KINDS, FITS = 4, 3
# A file's time is capped at CAP times the mean of similar files. The mean is computed CAPS times.
CAP, CAPS = 3.0, 3

# A remade pipeline is reported as no good guide if the wait differs by a larger share from the
# run's wait.
UNLIKE = 0.15
# Least share of a tier's bandwidth, for the run's number of readers, at which a run waits for
# bandwidth. Below the share, reads take equally long with fewer readers. A run above the measured
# bandwidth shows a measurement with another way of reading: the measurement does not apply.
SATURATED = 0.9
ROUNDS = 4  # of the concurrency on the slow tier; two or three rounds settle the value


@dataclass(frozen=True, slots=True)
class Prediction:
    """The predicted gain.  gain_s: data wait that would be gone.

    how: remade (batches were run again) or summed (the wait in calls of the files).  off: the error
    of the remade wait against the run's wait, as a share.
    """

    gain_s: float
    how: str
    off: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Expected:
    """The expected cost of each file in the next run: columns, made once for a run and a tier.

    like: the number of each file's group of similar files.  looks: how often the file was seen
    again, and so the weight of the file's own times.  usual_s: the file's time in calls in the
    recorded run, capped by the group's usual time.  time_s: the file's time in the next run on the
    present tier.  kept: the share of time_s that remains on the fast tier, 0 to 1.
    """

    evidence: Evidence
    like: Array
    looks: Array
    usual_s: Array
    time_s: Array
    kept: Array


def expected(evidence: Evidence, fast: Costs) -> Expected:
    """Return the expected costs of a run's files.  fast: the costs of the fast tier."""
    opens = np.maximum(1.0, evidence.opens)
    is_read = evidence.read_bytes > 0  # other files are mapped
    each_bytes = np.maximum(
        1.0, np.where(is_read, evidence.read_bytes / opens, evidence.size_bytes)
    )
    device, number = _numbers(evidence.device)
    like = _alike(device, each_bytes)
    looks = opens - 1 + evidence.read_bytes / LOOK_BYTES
    usual_s = _usual_s(like, opens, evidence.time_s)
    like_s = opens * _like_s(like, device, number, opens, each_bytes, usual_s)
    # Unusual times recur, but for other files: all files of a device share the excess.
    in_all_s = np.maximum(1e-12, np.bincount(device, like_s))
    like_s *= (np.bincount(device, evidence.time_s) / in_all_s)[device]
    own = looks / (looks + LOOKS_OF_ITS_LIKE)
    time_s = own * evidence.time_s + (1 - own) * like_s
    return Expected(evidence, like, looks, usual_s, time_s, _kept(evidence, time_s, fast))


def _numbers(device: Array) -> tuple[Array, int]:
    """Return devices counted from 0, and the number of devices."""
    devices = np.unique(device)
    return np.searchsorted(devices, device), len(devices)


def _alike(device: Array, each_bytes: Array) -> Array:
    """Return a group number for each file: a group has one device and about equal bytes per
    open."""
    step = np.floor(np.log2(each_bytes) * STEPS_PER_OCTAVE).astype(np.int64)
    number = device * (64 * STEPS_PER_OCTAVE) + step
    # By counting, not by sorting: there may be a million files.
    places = np.cumsum(np.bincount(number) > 0) - 1
    alike: Array = places[number]
    return alike


def _usual_s(like: Array, opens: Array, time_s: Array) -> Array:
    """Return times with a cap for few times far longer than the times of similar files.

    The reasons for such times are a busy device or a server without an answer.
    """
    count = np.bincount(like, opens)
    usual_s = time_s
    for _ in range(CAPS):
        mean_s = np.bincount(like, usual_s) / count
        usual_s = np.minimum(time_s, CAP * opens * mean_s[like])
    return usual_s


def _like_s(
    like: Array, device: Array, n_devices: int, opens: Array, each_bytes: Array, usual_s: Array
) -> Array:
    """Return the usual seconds of an open with its reads, from files of the group.

    A constant plus seconds per byte, fitted per device; then scaled by the deviation of the file's
    own size, weighted by the number of opens, so chance does not put a whole size before its
    neighbours.
    """
    count = np.bincount(like, opens)
    mean_s = np.bincount(like, usual_s) / count
    mean_bytes = np.bincount(like, each_bytes * opens) / count
    device_of = np.zeros(len(count), np.int64)
    device_of[like] = device
    fixed_s, byte_s, pull = np.zeros(n_devices), np.zeros(n_devices), np.zeros(len(count))
    for number in range(n_devices):
        kinds = np.flatnonzero(device_of == number)
        fixed_s[number], byte_s[number] = _line(mean_bytes[kinds], mean_s[kinds], count[kinds])
        pull[kinds] = OPENS_OF_ITS_DEVICE if len(kinds) >= LEAST_KINDS else 0.0
    of_line_s = np.maximum(1e-12, fixed_s[device_of] + byte_s[device_of] * mean_bytes)
    above = (count * mean_s / of_line_s + pull) / (count + pull)
    like_s: Array = (fixed_s[device] + byte_s[device] * each_bytes) * above[like]
    return like_s


def _line(x: Array, y: Array, count: Array) -> tuple[float, float]:
    """Return a and b of y = a + b x, neither negative, with the least relative error.

    Where x explains too little, each of the two terms gets half.
    """
    mean_x, mean_y = float(count @ x / count.sum()), float(count @ y / count.sum())
    fixed, slope = mean_y / 2, mean_y / 2 / mean_x
    if len(x) < LEAST_KINDS:
        return fixed, slope
    for _ in range(FITS):
        # Weighted by the fitted value, not by the measured value: groups fast by chance would
        # otherwise count more.
        weight = count / np.maximum(1e-12, fixed + slope * x) ** 2
        weight = weight / weight.sum()
        mean_x, mean_y = float(weight @ x), float(weight @ y)
        slope = float(weight @ ((x - mean_x) * (y - mean_y)) / (weight @ (x - mean_x) ** 2))
        if slope <= 0:
            fixed, slope = mean_y, 0.0
        elif slope * mean_x >= mean_y:
            fixed, slope = 0.0, float(weight @ (x * y) / (weight @ x**2))
        else:
            fixed = mean_y - slope * mean_x
    return fixed, slope


def _kept(evidence: Evidence, time_s: Array, fast: Costs) -> Array:
    """Return the share of a file's time in calls that remains on the fast tier.

    The share includes the check at each open for an unchanged source.
    """
    fast_s = fast.of(evidence.opens, evidence.reads, evidence.read_bytes)
    fast_s = fast_s + evidence.opens * evidence.check_s
    # The time of a mapped file is in page faults: by bytes, at the speed of reading in order.
    mapped_s = fast.byte_s * evidence.size_bytes
    slow_s = np.where(evidence.is_mapped, evidence.blocking_s, time_s)
    fast_s = np.where(evidence.is_mapped, mapped_s, fast_s)
    share: Array = np.clip(fast_s / np.maximum(slow_s, 1e-12), 0.0, 1.0)
    return np.where(evidence.is_gainless, 1.0, share)


class Predictor:
    """Predict for one run and one tier; compute once the values independent of the choice."""

    def __init__(self, forecast: Expected) -> None:
        self.evidence = evidence = forecast.evidence
        # Wait for files of no batch; where no wait was recorded, the files' time in calls, as in
        # `worth`.
        held_up_s = forecast.time_s if evidence.wait_s is None else evidence.blocking_s
        held_up_s = np.where(evidence.is_mapped, evidence.blocking_s, held_up_s)
        self._summed_s = held_up_s * (1 - forecast.kept)
        batches = evidence.batches
        self._is_in_batches = np.zeros(len(evidence), bool)
        self._pipeline: _Pipeline | None = None
        self.off: float | None = None
        if batches is None or evidence.wait_s is None or not len(batches):
            return
        self._is_in_batches[batches.file] = True
        # A file's expected time, scaled by the share of the file's time within batches.
        took_s = np.bincount(batches.file, batches.file_s, minlength=len(evidence))
        part = np.minimum(1.0, took_s / np.maximum(1e-12, evidence.time_s))
        usual = forecast.time_s * part / np.maximum(1e-12, took_s)
        self._usual_s = batches.file_s * usual[batches.file]
        is_slow = ~np.broadcast_to(evidence.is_gainless, len(evidence))  # rest: fast tier
        self._is_slow = is_slow[batches.file]
        self._batch_bytes = float((evidence.read_bytes * part)[is_slow].sum())
        self._is_in_batches &= ~evidence.is_mapped
        saved = np.where(self._is_in_batches, 1 - forecast.kept, 0.0)
        self._saved_s = self._usual_s * saved[batches.file]
        self._pipeline = _Pipeline(batches)
        recorded_s = float((batches.got_s - batches.asked_s)[batches.is_counted].sum())
        self._fetch_s = batches.end_s - batches.start_s
        self._before_s = self._pipeline.wait_s(self._fetch_s)
        if recorded_s > 0:
            self.off = abs(self._before_s - recorded_s) / recorded_s

    def predict(self, is_chosen: Array) -> Prediction:
        """Return the prediction for a choice.  is_chosen: a boolean for each file of the
        evidence."""
        evidence = self.evidence
        is_summed = is_chosen & ~self._is_in_batches
        summed_s = float(self._summed_s[is_summed].sum())
        batches = evidence.batches
        if self._pipeline is None or batches is None:
            return Prediction(summed_s, "summed")
        if self._before_s <= 0:
            return Prediction(summed_s, "remade", self.off)
        is_moved = is_chosen[batches.file]
        saved_s = np.bincount(batches.batch, self._saved_s * is_moved, minlength=len(batches))
        after_s = self._pipeline.wait_s(np.maximum(0.0, self._fetch_s - saved_s))
        if len(evidence.levels) > 1:
            is_slow = ~is_moved & self._is_slow
            slow_s = np.bincount(batches.batch, self._usual_s * is_slow, minlength=len(batches))
            under_way_s, relief = float(batches.file_s[is_slow].sum()), 1.0
            for _ in range(ROUNDS):
                new_relief = self._relief(under_way_s * relief, after_s)
                if abs(new_relief - relief) < 0.01:
                    break
                relief = new_relief
                fetch_s = self._fetch_s - saved_s - slow_s * (1 - relief)
                after_s = self._pipeline.wait_s(np.maximum(0.0, fetch_s))
        part = 1 - after_s / self._before_s
        return Prediction(part * (evidence.wait_s or 0.0) + summed_s, "remade", self.off)

    def _relief(self, slow_s: float, after_s: float) -> float:
        """Return the factor by which reads on the slow tier get shorter with fewer reads in flight.

        With n in flight a read takes n / bandwidth(n) if the run waited for bandwidth; else, and
        below the measured range, the factor is 1.
        """
        levels = self.evidence.levels
        assert self._pipeline is not None
        if len(levels) < 2:
            return 1.0
        batches = self.evidence.batches
        assert batches is not None
        wall_s = self._pipeline.wall_s
        before = float(batches.file_s[self._is_slow].sum()) / wall_s
        now = slow_s / max(1e-9, wall_s - self._before_s + after_s)
        number, bps = np.array(levels).T

        def read_s(level: float) -> float:
            if level <= number[0]:
                return float(number[0] / bps[0])
            return level / float(np.interp(level, number, bps))

        had_bps, most_bps = self._batch_bytes / wall_s, before / read_s(before)
        # A run above the measured maximum read in another way than the measurement.
        is_saturated = SATURATED * most_bps <= had_bps <= most_bps / SATURATED
        if now >= before or not is_saturated:
            return 1.0
        return float(np.clip(read_s(now) / read_s(before), 1 / max(1.0, before), 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """One epoch: the recurrence's inputs for each batch, as lists, since the computation goes batch
    by batch."""

    first: int
    worker: list[int]
    ready_s: list[float]  # by worker: earliest start, counted from the request for the first batch
    busy_s: list[float]  # of the step loop before the request for the batch
    hand_s: list[float]  # from a finished and requested batch until the step loop has it
    ahead: int
    is_counted: Array


class _Pipeline:
    """The epochs of a run, ready to be remade."""

    def __init__(self, batches: Batches) -> None:
        cuts = np.flatnonzero(np.diff(batches.pass_number)) + 1
        bounds = [0, *cuts.tolist(), len(batches)]
        self._passes = [_pass(batches, first, last) for first, last in pairwise(bounds)]
        self.wall_s = max(
            1e-9,
            sum(
                float(batches.got_s[last - 1] - batches.asked_s[first])
                for first, last in pairwise(bounds)
            ),
        )

    def wait_s(self, fetch_s: Array) -> float:
        """Return the data wait for the given fetch times."""
        return sum(
            float(each_pass.is_counted @ waits_of(each_pass, fetch_s)) for each_pass in self._passes
        )


def _pass(batches: Batches, first: int, last: int) -> _Pass:
    part = slice(first, last)
    asked, got = batches.asked_s[part], batches.got_s[part]
    start, end = batches.start_s[part], batches.end_s[part]
    worker = batches.worker[part]
    busy = np.zeros(last - first)
    busy[1:] = np.maximum(0.0, asked[1:] - got[:-1])
    # Number of batches under way or waiting at the start of a fetch: the loader's limit.
    taken = np.searchsorted(got, start, side="right")
    ahead = int(np.max(np.arange(last - first) - taken, initial=0)) + 1
    n_workers = int(worker.max()) + 1
    ready = [float("inf")] * n_workers
    for number, begin_s in zip(worker.tolist(), (start - asked[0]).tolist(), strict=True):
        ready[number] = min(ready[number], begin_s)
    return _Pass(
        first,
        worker.tolist(),
        ready,
        busy.tolist(),
        np.maximum(0.0, got - np.maximum(end, asked)).tolist(),
        max(ahead, n_workers),
        batches.is_counted[part].astype(float),
    )


def waits_of(timing: _Pass, fetch_s: Array) -> list[float]:
    """Return the seconds the step loop waits for each batch of an epoch, given fetch times.

    A worker begins when the worker's previous batch is finished and the batch `ahead` places before
    was taken, as a loader hands out no more than `ahead` batches.
    """
    free: list[float] = list(timing.ready_s)
    got: list[float] = []
    waits: list[float] = []
    done_s = 0.0
    durations = fetch_s[timing.first : timing.first + len(timing.worker)].tolist()
    for number, (worker, busy_s, hand_s, duration_s) in enumerate(
        zip(timing.worker, timing.busy_s, timing.hand_s, durations, strict=True)
    ):
        end_s = free[worker]
        if number >= timing.ahead and got[number - timing.ahead] > end_s:
            end_s = got[number - timing.ahead]
        free[worker] = end_s = end_s + duration_s
        asked_s = done_s + busy_s
        # No max() here: a plan of a million files runs the line half a million times.
        done_s = (end_s if end_s > asked_s else asked_s) + hand_s
        got.append(done_s)
        waits.append(done_s - asked_s)
    return waits
