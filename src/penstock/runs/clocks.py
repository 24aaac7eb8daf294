"""Convert the clocks of several hosts to a common clock: by joint steps, or by a measured offset.
Knows arrays of times; knows no log, no file, no screen.

Two hosts' clocks may differ by any amount.  Ranks that train together cannot end a step before
every rank has begun the step, because each rank waits for the gradients of the other ranks.  So
each step bounds the offset between two clocks from both sides, and the spread of step ends shows
the accuracy.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Clock", "ClockSteps", "MeasuredOffset", "align"]

Array = NDArray[Any]

# Fewer steps may end together by chance.
LEAST_STEPS = 10
# Of a step's length: steps with ends further apart are not taken together.
TOGETHER = 0.25
# Of the variation of a host's step lengths: ranks in step have long and short steps together;
# between independent ranks the differences vary 1.4 times as much.
ALIKE = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class ClockSteps:
    """The finished steps of a process in order: numbers, begins and ends in ns."""

    number: Array
    start_ns: Array
    end_ns: Array


@dataclass(frozen=True, slots=True)
class MeasuredOffset:
    """The offset from messages between two hosts.

    offset_ns: the other host's clock minus the host's own clock.  error_ns: the largest error.
    """

    offset_ns: int
    error_ns: int


@dataclass(frozen=True, slots=True)
class Clock:
    """The correction of a host's times.

    how: "reference", "measured", "steps" or "wall clock" (unchanged). moved_ns: added to the host's
    times.  error_ns: the largest remaining error; None: not known.  spread_ns: the range of step
    ends, 10th to 90th percentile.  steps: the number of steps used.
    """

    how: str
    moved_ns: int = 0
    error_ns: int | None = None
    spread_ns: int | None = None
    steps: int = 0


def align(
    steps: Mapping[str, Sequence[ClockSteps]],
    reference: str,
    measured: Mapping[str, MeasuredOffset] | None = None,
) -> dict[str, Clock]:
    """Return for each host the correction onto the reference's clock.

    steps: by host, the steps of each process.  measured: by host, the offset from messages.
    """
    clocks = {}
    for host, own in steps.items():
        if host == reference:
            clocks[host] = Clock("reference", 0, 0)
            continue
        by_steps = _by_steps(steps[reference], own)
        clock = (measured or {}).get(host)
        if clock is not None and (by_steps is None or clock.error_ns <= (by_steps.error_ns or 0)):
            clocks[host] = Clock("measured", clock.offset_ns, clock.error_ns)
        else:
            clocks[host] = by_steps or Clock("wall clock")
    return clocks


def _by_steps(there: Sequence[ClockSteps], here: Sequence[ClockSteps]) -> Clock | None:
    """Return the correction from the steps of two hosts; None: the steps are not taken together."""
    numbers = _common(*there, *here)
    n = len(numbers)
    if n < LEAST_STEPS or not there or not here:
        return None
    begun_there, ended_there, usual_there = _of_host(there, n)
    begun_here, ended_here, usual_here = _of_host(here, n)
    # Bounds of the offset: no step ends on a host before it has begun on the other.
    least = int((begun_there - ended_here).max())
    most = int((ended_there - begun_here).min())
    apart = usual_there - usual_here
    low, middle, high = (int(ns) for ns in np.percentile(apart, (10, 50, 90)))
    length_ns = float(np.median(ended_there - begun_there))
    if least > most or not least <= middle <= most or high - low > TOGETHER * length_ns:
        return None
    if not _vary_together(usual_there, usual_here):
        return None
    error_ns = max(most - middle, middle - least)
    return Clock("steps", middle, error_ns, high - low, n)


def _vary_together(there: Array, here: Array) -> bool:
    """Return True if steps are long and short on both hosts at once.

    Step ends show the clocks only if ranks wait for each other.  An equal pace alone does not show
    that ranks wait for each other.
    """

    def spread(ns: Array) -> float:
        low, high = np.percentile(ns, (10, 90))
        return float(high - low)

    lengths_there, lengths_here = np.diff(there), np.diff(here)
    own = min(spread(lengths_there), spread(lengths_here))
    return spread(lengths_there - lengths_here) <= ALIKE * own


def _common(*processes: ClockSteps) -> Array:
    """Return the step numbers with which all processes begin, in order."""
    n = min((len(process.number) for process in processes), default=0)
    if not n:
        return np.empty(0, np.int64)
    first: Array = processes[0].number[:n]
    for process in processes[1:]:
        differs = np.flatnonzero(process.number[:n] != first[:n])
        n = int(differs[0]) if len(differs) else n
    return first[:n]


def _of_host(processes: Sequence[ClockSteps], n: int) -> tuple[Array, Array, Array]:
    """Return for each step of a host the last begin, the first end and the median end."""
    ends = np.stack([process.end_ns[:n] for process in processes])
    begun = np.stack([process.start_ns[:n] for process in processes]).max(axis=0)
    return begun, ends.min(axis=0), np.median(ends, axis=0)
