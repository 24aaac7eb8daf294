"""What a save cost the training: from when steps ended and saves ran.  Knows no clock, no file.

Lost time is the block and the slowdown of the steps beside the writing: what the steps that touch
the save took, less what as many quiet steps take: those just before it, or, at the beginning of a
job, just after it.  By that figure a save goes on in the background or blocks: with a core to spare
the one costs less, where the steps keep all of them busy the other can.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["FEWEST_QUIET_STEPS", "MODES", "Cheaper", "lost_s"]

MODES = ("auto", "background", "blocking")

# A median of fewer says more of chance than of the job.
FEWEST_QUIET_STEPS = 5
NEAREST_QUIET_STEPS = 50  # a job's pace drifts; what lies far off says nothing
COMPARED = 3  # saves of a kind, the last ones
# A blocking save takes about what one in the background took to be written: tried only where that
# one cost most of it anyway.
WORTH_TRYING = 0.5
RETRIED_AFTER = 32  # saves of the cheaper kind: what else runs on the machine changes


def lost_s(
    step_ends_s: Sequence[float],
    begin_s: float,
    end_s: float,
    busy: Sequence[tuple[float, float]] = (),
    *,
    block_s: float = 0.0,
    local_s: float = math.inf,
) -> float | None:
    """Seconds that the save from begin_s to end_s cost, from the ends of the steps in time's order.

    busy: stretches of other saves, whose steps are not quiet.  block_s: of the step in which it was
    called, its caller was held for so long; local_s: the writing took so long.  None: not measured,
    because fewer than FEWEST_QUIET_STEPS quiet steps are known, or no step has ended since the save
    did.
    """
    steps = list(pairwise(step_ends_s))
    touched = [after - before for before, after in steps if before < end_s and after > begin_s]
    if not touched or step_ends_s[-1] < end_s:
        return None
    stretches = [*busy, (begin_s, end_s)]
    quiet = _outside(steps, stretches)
    # Those before the save, nearest first: what comes later changes no figure that was told.
    nearest = [step for step in reversed(quiet) if step[1] <= begin_s]
    if len(nearest) < FEWEST_QUIET_STEPS:
        nearest += [step for step in quiet if step[0] >= end_s]
    quiet = nearest[:NEAREST_QUIET_STEPS]
    if len(quiet) < FEWEST_QUIET_STEPS:
        return None
    usual_s = _usual_s([after - before for before, after in quiet])
    costs_s = [step_s - usual_s for step_s in touched]
    # No writing holds a step up for longer than it takes, and what that step has lost of its pace:
    # there is something else in it, as where each epoch ends with a save, an evaluation and new
    # workers.
    if costs_s[0] > local_s + usual_s:
        costs_s[0] = block_s
    return sum(costs_s)


def _usual_s(steps_s: Sequence[float]) -> float:
    """What a step takes on average; one of twice the median holds something else, an evaluation.

    Not the median: most steps are near their shortest, a few longer, and over a hundred that a save
    touches the difference would count as its cost.
    """
    most_s = 2 * statistics.median(steps_s)
    return statistics.fmean(step_s for step_s in steps_s if step_s <= most_s)


class Cheaper:
    """Whether the next save is to block, by what those before have cost.

    mode: "auto", or one that stays.  In "auto" saves go on in the background until COMPARED of them
    have cost most of what blocking ones would; then as many block, and the cheaper kind stays.
    """

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self._lost_s: dict[bool, deque[float]] = {
            is_blocking: deque(maxlen=COMPARED) for is_blocking in (False, True)
        }
        self._would_block_s: deque[float] = deque(maxlen=COMPARED)
        self._n_same = 0
        self.is_blocking = mode == "blocking"

    def learn(self, is_blocking: bool, lost_s: float, local_s: float) -> str:
        """A save's cost.  What has changed by it, in words; empty: nothing."""
        self._lost_s[is_blocking].append(lost_s)
        if not is_blocking:
            self._would_block_s.append(local_s)
        if self.mode != "auto":
            return ""
        self._n_same += 1
        wanted = self._wanted()
        if wanted is self.is_blocking:
            return ""
        self.is_blocking, self._n_same = wanted, 0
        costs = " and ".join(
            f"{statistics.median(known) * 1e3:.0f} ms {'blocking' if kind else 'in the background'}"
            for kind, known in self._lost_s.items()
            if known
        )
        how = "block" if wanted else "go on in the background"
        return f"saves {how} from now on: one cost the training {costs}"

    def _wanted(self) -> bool:
        behind, blocking = self._lost_s[False], self._lost_s[True]
        if len(behind) < COMPARED:
            return False
        cost_s = statistics.median(behind)
        if cost_s < WORTH_TRYING * statistics.median(self._would_block_s):
            return False
        if len(blocking) < COMPARED:
            return True
        is_blocking = statistics.median(blocking) < cost_s
        if self._n_same >= RETRIED_AFTER:  # anew, by saves of today
            self._lost_s[not is_blocking].clear()
            return not is_blocking
        return is_blocking


def _outside(
    steps: Sequence[tuple[float, float]], stretches: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Steps that share no moment with a stretch; both in one walk, as a job has many of each."""
    left: list[tuple[float, float]] = []
    for begin, end in sorted(stretches, reverse=True):
        last = end
        while left and left[-1][0] < last:
            last = max(last, left.pop()[1])
        left.append((begin, last))
    outside = []
    for before, after in steps:
        while left and left[-1][1] <= before:
            left.pop()
        if not left or after <= left[-1][0]:
            outside.append((before, after))
    return outside
