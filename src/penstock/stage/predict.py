"""What staging some files would bring: the loader's batches run again with other read times.

Knows columns, no file and no run.  Where workers fetch ahead, wait is not the sum of its reads: a
read that got faster may leave the wait as it was, or end it altogether.  So the pipeline is made
again, batch by batch: which worker, how far ahead, what it computed, how long the step loop was
busy.  First as it was, which shows how well that reproduces the run, then with the change.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.registry import Costs
from penstock.stage.evidence import Batches, Evidence

__all__ = ["Prediction", "Predictor", "kept_share", "waits_of"]

Array = NDArray[Any]

# A file's own times count as much as this many opens of its like: one slow read of one small file
# would put it first otherwise, and the next run would not see it.  On two recorded epochs of single
# opens, 4 made the best choice remove 2 to 8 % less of the remade wait than 16, and 64 no more.
OPENS_OF_ITS_LIKE = 16.0
STEPS_PER_OCTAVE = 2  # files are alike whose sizes lie in one step, on one device

# A remade pipeline whose wait differs by more from the run's is said to be no good guide.
UNLIKE = 0.15
# A run that gets less of a tier than this, of what as many readers can get there, does not wait for
# its bandwidth: with fewer readers its reads take as long as before.  One that gets more than that
# shows that the measurement read otherwise: it says nothing of the run.
SATURATED = 0.9
ROUNDS = 4  # of the concurrency on the slow tier, which settles in two or three


@dataclass(frozen=True, slots=True)
class Prediction:
    """gain_s: data wait that would be gone.  how: remade (batches were run again) or summed (the
    wait in calls of the files).  off: by how much of itself the remade wait missed the run's."""

    gain_s: float
    how: str
    off: float | None = None


def alike(evidence: Evidence) -> Array:
    """A number for each file: which others it is like, in size and device."""
    size = np.maximum(1, evidence.size_bytes).astype(float)
    step = np.floor(np.log2(size) * STEPS_PER_OCTAVE).astype(np.int64)
    # By counting, not by sorting: of a million files this is asked ten times.
    device = np.searchsorted(np.unique(evidence.device), evidence.device)
    number = device * (64 * STEPS_PER_OCTAVE) + step
    places = np.cumsum(np.bincount(number) > 0) - 1
    found: Array = places[number]
    return found


def expected_s(evidence: Evidence) -> Array:
    """The time in calls of each file, moved towards that of its like if it was opened seldom."""
    like = alike(evidence)
    opens = np.maximum(1.0, evidence.opens)
    count = np.bincount(like, opens)
    mean_s = (np.bincount(like, evidence.time_s) / count)[like]
    mean_bytes = np.maximum(1.0, (np.bincount(like, evidence.size_bytes * opens) / count)[like])
    # Within a step sizes differ by a factor of 1.4: half of a read's time goes with its bytes.
    like_s = mean_s * (0.5 + 0.5 * evidence.size_bytes / mean_bytes)
    own = opens / (opens + OPENS_OF_ITS_LIKE)
    found: Array = own * evidence.time_s + (1 - own) * like_s * opens
    return found


def kept_share(evidence: Evidence, fast: Costs) -> Array:
    """For each file what is left of its time in calls once it lies on the fast tier: that of the
    tier, and of asking at each open whether the source is unchanged."""
    fast_s = fast.of(evidence.opens, evidence.reads, evidence.read_bytes)
    fast_s = fast_s + evidence.opens * evidence.check_s
    # Of a mapped file, time is that of faults: by bytes, at the speed of reading in order.
    mapped_s = fast.byte_s * evidence.size_bytes
    slow_s = np.where(evidence.is_mapped, evidence.blocking_s, expected_s(evidence))
    fast_s = np.where(evidence.is_mapped, mapped_s, fast_s)
    share: Array = np.clip(fast_s / np.maximum(slow_s, 1e-12), 0.0, 1.0)
    return share


class Predictor:
    """Predicts for one run and one tier; what does not depend on the choice is computed once."""

    def __init__(self, evidence: Evidence, fast: Costs) -> None:
        self.evidence = evidence
        self.kept = kept_share(evidence, fast)
        # What a file of no batch held up; where no wait was seen, its time in calls, as in `worth`.
        held_up_s = expected_s(evidence) if evidence.wait_s is None else evidence.blocking_s
        held_up_s = np.where(evidence.is_mapped, evidence.blocking_s, held_up_s)
        self._summed_s = held_up_s * (1 - self.kept)
        batches = evidence.batches
        self._is_in_batches = np.zeros(len(evidence), bool)
        self._pipeline: _Pipeline | None = None
        self.off: float | None = None
        if batches is None or evidence.wait_s is None or not len(batches):
            return
        self._is_in_batches[batches.file] = True
        # What a file is expected to take next time, of what it took in its batches this time.
        took_s = np.bincount(batches.file, batches.file_s, minlength=len(evidence))
        part = np.minimum(1.0, took_s / np.maximum(1e-12, evidence.time_s))
        usual = expected_s(evidence) * part / np.maximum(1e-12, took_s)
        self._usual_s = batches.file_s * usual[batches.file]
        self._batch_bytes = float((evidence.read_bytes * part).sum())
        self._is_in_batches &= ~evidence.is_mapped
        self._pipeline = _Pipeline(batches)
        recorded_s = float((batches.got_s - batches.asked_s)[batches.is_counted].sum())
        self._before_s = self._pipeline.wait_s(batches.end_s - batches.start_s)
        if recorded_s > 0:
            self.off = abs(self._before_s - recorded_s) / recorded_s

    def predict(self, is_chosen: Array) -> Prediction:
        """is_chosen: a boolean for each file of the evidence."""
        evidence = self.evidence
        is_summed = is_chosen & ~self._is_in_batches
        summed_s = float(self._summed_s[is_summed].sum())
        if self._pipeline is None or evidence.batches is None:
            return Prediction(summed_s, "summed")
        if self._before_s <= 0:
            return Prediction(summed_s, "remade", self.off)
        batches = evidence.batches
        share = np.where(is_chosen & self._is_in_batches, self.kept, 1.0)
        is_slow = ~is_chosen[batches.file]
        relief, after_s = 1.0, self._before_s
        for _ in range(ROUNDS):
            factor = np.where(is_slow, relief, share[batches.file])
            saved = np.bincount(batches.batch, self._usual_s * (1 - factor), minlength=len(batches))
            fetch_s = np.maximum(0.0, batches.end_s - batches.start_s - saved)
            after_s = self._pipeline.wait_s(fetch_s)
            found = self._relief(float((batches.file_s * relief)[is_slow].sum()), after_s)
            if abs(found - relief) < 0.01:
                break
            relief = found
        part = 1 - after_s / self._before_s
        return Prediction(part * (evidence.wait_s or 0.0) + summed_s, "remade", self.off)

    def _relief(self, slow_s: float, after_s: float) -> float:
        """By what a read on the slow tier gets shorter as fewer are under way there.

        With n under way, a read takes n / bandwidth(n) where it is bandwidth that the run waited
        for; else, and with fewer than were measured, it is as long as it is.
        """
        levels = self.evidence.levels
        assert self._pipeline is not None
        if len(levels) < 2:
            return 1.0
        batches = self.evidence.batches
        assert batches is not None
        wall_s = self._pipeline.wall_s
        before = float(batches.file_s.sum()) / wall_s
        now = slow_s / max(1e-9, wall_s - self._before_s + after_s)
        number, bps = np.array(levels).T

        def read_s(level: float) -> float:
            if level <= number[0]:
                return float(number[0] / bps[0])
            return level / float(np.interp(level, number, bps))

        had_bps, most_bps = self._batch_bytes / wall_s, before / read_s(before)
        # More than was measured as the most: what was measured was another way of reading.
        is_saturated = SATURATED * most_bps <= had_bps <= most_bps / SATURATED
        if now >= before or not is_saturated:
            return 1.0
        return float(np.clip(read_s(now) / read_s(before), 1 / max(1.0, before), 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """One pass: what the recurrence needs of each batch; lists, as it is walked one by one."""

    first: int
    worker: list[int]
    ready_s: list[float]  # by worker: when it could begin, from when the first batch was asked for
    busy_s: list[float]  # of the step loop before it asks for the batch
    hand_s: list[float]  # from the batch being there and asked for until the step loop has it
    ahead: int
    is_counted: list[bool]


class _Pipeline:
    """The passes of a run, ready to be remade."""

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
        """The data wait if fetching took so long."""
        return sum(
            sum(
                wait
                for wait, is_counted in zip(waits_of(one, fetch_s), one.is_counted, strict=True)
                if is_counted
            )
            for one in self._passes
        )


def _pass(batches: Batches, first: int, last: int) -> _Pass:
    part = slice(first, last)
    asked, got = batches.asked_s[part], batches.got_s[part]
    start, end = batches.start_s[part], batches.end_s[part]
    worker = batches.worker[part]
    busy = np.zeros(last - first)
    busy[1:] = np.maximum(0.0, asked[1:] - got[:-1])
    # How many batches were under way or waiting when a fetch began: the loader lets no more.
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
        batches.is_counted[part].tolist(),
    )


def waits_of(one: _Pass, fetch_s: Array) -> list[float]:
    """How long the step loop waits for each batch of a pass if fetching takes so long.

    A worker begins when it is done with its batch before, and when the batch that is `ahead` places
    before was taken, as a loader hands out no more than so many.
    """
    free: list[float] = list(one.ready_s)
    got: list[float] = []
    waits: list[float] = []
    done_s = 0.0
    durations = fetch_s[one.first : one.first + len(one.worker)].tolist()
    for number, (worker, busy_s, hand_s, duration_s) in enumerate(
        zip(one.worker, one.busy_s, one.hand_s, durations, strict=True)
    ):
        begin_s = free[worker]
        if number >= one.ahead:
            begin_s = max(begin_s, got[number - one.ahead])
        end_s = begin_s + duration_s
        free[worker] = end_s
        asked_s = done_s + busy_s
        done_s = max(end_s, asked_s) + hand_s
        got.append(done_s)
        waits.append(done_s - asked_s)
    return waits
