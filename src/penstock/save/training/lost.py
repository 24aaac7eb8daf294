"""Compute the overhead of a save from the times of steps and saves.

The overhead is the time for which a save blocks the training, plus the slowdown of the steps during
the writing: the duration of the steps that overlap the save, minus the duration of as many quiet
steps just before the save.  At the beginning of a job, quiet steps just after the save count too.
The overhead decides whether saves run in the background or block.  With a free core a background
save costs less; if the steps keep all cores busy, a blocking save can cost less.  The module knows
no clock and no file.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["FEWEST_QUIET_STEPS", "MODES", "Cheaper", "lost_s"]

MODES = ("auto", "background", "blocking")

# The median of fewer steps shows chance rather than the job.
FEWEST_QUIET_STEPS = 5
NEAREST_QUIET_STEPS = 50  # a job's pace drifts; distant steps are no reference
COMPARED = 3  # last saves of each kind
# A blocking save takes about as long as the writing of a background save.  Blocking is tried only
# where background saves cost at least this fraction of the writing time.
WORTH_TRYING = 0.5
RETRIED_AFTER = 32  # saves of the cheaper kind: the machine's other load changes


def lost_s(
    step_ends_s: Sequence[float],
    begin_s: float,
    end_s: float,
    busy: Sequence[tuple[float, float]] = (),
    *,
    block_s: float = 0.0,
    local_s: float = math.inf,
) -> float | None:
    """Return the seconds that a save from begin_s to end_s cost the training.

    step_ends_s: the ends of the steps, in order of time.  busy: intervals of other saves; steps in
    an interval are not quiet.  block_s: how long the save blocked the caller; local_s: how long the
    writing took.  None: not measured, as fewer than FEWEST_QUIET_STEPS quiet steps are known, or no
    step has ended since the end of the save.
    """
    steps = list(pairwise(step_ends_s))
    touched = [after - before for before, after in steps if before < end_s and after > begin_s]
    if not touched or step_ends_s[-1] < end_s:
        return None
    stretches = [*busy, (begin_s, end_s)]
    quiet = _outside(steps, stretches)
    # Steps before the save come first, nearest first: later steps change no reported figure.
    nearest = [step for step in reversed(quiet) if step[1] <= begin_s]
    if len(nearest) < FEWEST_QUIET_STEPS:
        nearest += [step for step in quiet if step[0] >= end_s]
    quiet = nearest[:NEAREST_QUIET_STEPS]
    if len(quiet) < FEWEST_QUIET_STEPS:
        return None
    usual_s = _usual_s([after - before for before, after in quiet])
    costs_s = [step_s - usual_s for step_s in touched]
    # The writing delays a step by at most the duration of the writing.  A longer step contains
    # other work, as an epoch may end with a save, an evaluation and new workers.
    if costs_s[0] > local_s + usual_s:
        costs_s[0] = block_s
    return sum(costs_s)


def _usual_s(steps_s: Sequence[float]) -> float:
    """Return the mean duration of a step, without steps of more than twice the median: a longer
    step contains other work, as an evaluation.

    The median is no substitute.  Most steps are near the shortest duration and a few are longer, so
    the mean exceeds the median.  Over a hundred steps the difference would count as the save's
    overhead.
    """
    most_s = 2 * statistics.median(steps_s)
    return statistics.fmean(step_s for step_s in steps_s if step_s <= most_s)


class Cheaper:
    """Decide whether the next save blocks, from the overhead of earlier saves.

    mode: "auto", or a fixed mode.  In "auto" saves run in the background until the median overhead
    of COMPARED saves reaches WORTH_TRYING of the writing time.  Then COMPARED saves block, and the
    cheaper kind stays.
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
        """Record a save's overhead.  Return a sentence if the mode changes; else an empty
        string."""
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
            f"{statistics.median(row) * 1e3:.0f} ms {'blocking' if kind else 'in the background'}"
            for kind, row in self._lost_s.items()
            if row
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
        if self._n_same >= RETRIED_AFTER:  # measure the other kind again
            self._lost_s[not is_blocking].clear()
            return not is_blocking
        return is_blocking


def _outside(
    steps: Sequence[tuple[float, float]], stretches: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the steps outside all intervals.  One walk over both lists suffices: a job has many
    steps and many intervals."""
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
