"""Compare the speeds of two settings from pairs of runs, valid at any number of looks.
Arithmetic on ratios; runs nothing.

The logarithms of the paired ratios are taken as independent draws of one normal distribution with
unknown mean and variance.  The interval is the confidence sequence of Lai (1976), as in Wang and
Ramdas, "Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance"
(2024): with probability 1 - alpha the interval holds the mean at all numbers of pairs at once, so
a search may stop as soon as the interval decides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Interval", "interval"]

# Weight of the prior on the effect, in pairs.  So small, three pairs with a clear effect decide
# among eight candidates; a whole pair of weight would need eight pairs.
PRIOR_PAIRS = 0.01


@dataclass(frozen=True, slots=True)
class Interval:
    """The ratio of two speeds: the estimate and the bounds.  Without a bound yet: 0 and inf."""

    ratio: float
    low: float
    high: float
    pairs: int


def interval(ratios: Sequence[float], alpha: float) -> Interval:
    """Return the interval of the mean ratio, valid at any time with probability 1 - alpha."""
    n = len(ratios)
    if not n:
        return Interval(1.0, 0.0, math.inf, 0)
    logs = [math.log(ratio) for ratio in ratios]
    mean = sum(logs) / n
    variance = sum((log - mean) ** 2 for log in logs) / n
    weight = PRIOR_PAIRS
    try:
        limit = (math.sqrt((n + weight) / weight) / alpha) ** (2 / n)
    except OverflowError:
        limit = math.inf
    room = n + weight - limit * weight
    if room <= 0:
        return Interval(math.exp(mean), 0.0, math.inf, n)
    half = math.sqrt((n + weight) * variance * (limit - 1) / room)
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), n)
