"""What a save cost the training: from when steps ended and saves ran.  Knows no clock, no file.

Lost time is the block and the slowdown of the steps beside the writing: what the steps that touch
the save took, less what as many quiet steps take: those just before it, or, at the beginning of a
job, just after it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

__all__ = ["FEWEST_QUIET_STEPS", "lost_s"]

# A median of fewer says more of chance than of the job.
FEWEST_QUIET_STEPS = 5
NEAREST_QUIET_STEPS = 50  # a job's pace drifts; what lies far off says nothing


def lost_s(
    step_ends_s: Sequence[float],
    begin_s: float,
    end_s: float,
    busy: Sequence[tuple[float, float]] = (),
) -> float | None:
    """Seconds that the save from begin_s to end_s cost, from the ends of the steps in time's order.

    busy: stretches of other saves, whose steps are not quiet.  None: not measured, because fewer
    than FEWEST_QUIET_STEPS quiet steps are known, or no step has ended since the save did.
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
    return sum(touched) - len(touched) * statistics.median(
        after - before for before, after in quiet
    )


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
