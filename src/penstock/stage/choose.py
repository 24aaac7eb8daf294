"""Choose files to stage: remove the most critical wait with the room of a tier.

Knows columns, budgets and policies; knows no file system, no run, and of a tier only the costs.
The worth of a copy is a number per file, so the best choice under a budget is a knapsack: by worth
per byte, and by an exact search where a few large files spoil the order.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TierError
from penstock.stage.evidence import Evidence
from penstock.stage.predict import Expected

__all__ = ["POLICIES", "Choice", "best", "by_density", "choose", "exchanged", "filled", "worth"]

Array = NDArray[Any]

# Whether a job waited for a read depends on the other reads of the moment: few looks are chance.
LOOKS_OF_ITS_LIKE_CRITICAL = 8.0

WARMTH = 0.02  # of the gain: how much less a choice may bring at first, to be continued

NODES = 100_000  # of the exact search: half a second
GOOD_ENOUGH = 0.999  # of the upper bound of all choices


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The chosen files of a run.

    is_chosen: for each file.  of_best: a lower bound of the choice's worth as a share of the best
    worth under the budget; None: the policy does not use worth.
    """

    is_chosen: Array
    of_best: float | None = None


def worth(expected: Expected, is_shared: bool = False) -> Array:
    """Return the expected gain of a copy of each file: seconds of data wait.

    The worth is the file's time in calls, times the share of call time spent in data waits, less
    the remaining time on the fast tier.  The less often a file was read, the closer the file's
    numbers are moved to the mean of similar files.  is_shared: use one share for all files fetched
    by workers, because the worker that the step loop waits for depends more on the loader than on
    the file.
    """
    evidence = expected.evidence
    if not len(evidence):
        return np.zeros(0)
    saved_s = expected.time_s * _waited(expected, is_shared) * (1 - expected.kept)
    # Page faults of mapped files are no calls: only their blocking time is known.
    saved_s = np.where(evidence.is_mapped, evidence.blocking_s * (1 - expected.kept), saved_s)
    result: Array = np.where(evidence.size_bytes > 0, saved_s, 0.0)
    return result


def _waited(expected: Expected, is_shared: bool) -> Array:
    """Return for each file the share of call time spent in data waits."""
    evidence, like, looks = expected.evidence, expected.like, expected.looks
    if evidence.wait_s is None:
        return np.ones(len(evidence))  # no wait was seen: all time counts alike
    if is_shared and evidence.batches is not None:
        like, looks = like.copy(), looks.copy()
        like[evidence.batches.file] = like.max() + 1
        looks[evidence.batches.file] = 0.0
    its = evidence.blocking_s / np.maximum(1e-12, evidence.time_s)
    usual_s = np.maximum(1e-12, np.bincount(like, expected.usual_s))
    waited_s = np.bincount(like, its * expected.usual_s)
    # The mean of few similar files is chance too, so the mean is moved to the mean of all files.
    few_s = LOOKS_OF_ITS_LIKE_CRITICAL * usual_s / np.maximum(1, np.bincount(like))
    of_all = float(waited_s.sum() / usual_s.sum())
    of_like = np.minimum(1.0, (waited_s + few_s * of_all) / (usual_s + few_s))
    own = looks / (looks + LOOKS_OF_ITS_LIKE_CRITICAL)
    share: Array = own * its + (1 - own) * of_like[like]
    return share


# --- the best, and plain policies ----------------------------------------------------------------


def best(value: Array, size: Array, budget: int, order: Array | None = None) -> Choice:
    """Choose the files of most value that fit into a budget.

    value: seconds, not negative.  size: bytes.  order: by_density of value and size, if already
    known.  The choice is exact, or of_best bounds the choice's share of the optimum.
    """
    is_chosen = np.zeros(len(value), bool)
    order = by_density(value, size) if order is None else order
    order = order[(value[order] > 0) & (size[order] <= budget)]
    if not len(order):
        return Choice(is_chosen, 1.0)
    picked = filled(order, size, budget)
    bound = _bound(value[order], size[order], budget)
    total = float(value[picked].sum())
    if total < GOOD_ENOUGH * bound:
        exact, is_whole = _searched(value[order].tolist(), size[order].tolist(), budget, total)
        if exact is not None:
            picked = order[exact]
            total = float(value[picked].sum())
        if is_whole:
            bound = total
    is_chosen[picked] = True
    return Choice(is_chosen, min(1.0, total / bound) if bound else 1.0)


def by_density(value: Array, size: Array) -> Array:
    """Return the numbers of the files, most value per byte first."""
    order: Array = np.argsort(-value / np.maximum(1, size), kind="stable")
    return order


def exchanged(
    is_chosen: Array,
    size: Array,
    budget: int,
    gain_of: Callable[[Array], float],
    tries: int,
    seed: int = 0,
) -> tuple[Array, float]:
    """Improve a choice by random exchanges; return the best choice and the gain.

    Each of `tries` exchanges adds a file, removes other files to make room, and fills the rest of
    the budget.  The gain of several files is not the sum of their worths where a step loop waits
    for the last of several workers.  A slightly worse choice is kept at times, less and less often
    (simulated annealing), because often two files must move before the wait changes.  gain_of: the
    gain of a choice.
    """
    chance = np.random.default_rng(seed)
    now, gain = is_chosen.copy(), gain_of(is_chosen)
    top, top_gain = now, gain
    for left in range(tries, 0, -1):
        outside = np.flatnonzero(~now & (size <= budget))
        if not len(outside):
            break
        trial = now.copy()
        added = int(chance.choice(outside))
        trial[added] = True
        inside = chance.permutation(np.flatnonzero(now))
        over = int(size[trial].sum()) - budget
        if over > 0:
            trial[inside[: int(np.searchsorted(np.cumsum(size[inside]), over)) + 1]] = False
        others = chance.permutation(np.flatnonzero(~trial & (size <= budget)))
        trial[filled(others, size, budget - int(size[trial].sum()))] = True
        trial_gain = gain_of(trial)
        warmth = WARMTH * top_gain * left / tries
        if trial_gain >= gain or chance.random() < np.exp((trial_gain - gain) / max(1e-12, warmth)):
            now, gain = trial, trial_gain
        if trial_gain > top_gain:
            top, top_gain = trial, trial_gain
    return top, top_gain


def filled(order: Array, size: Array, budget: int) -> Array:
    """Return the files that fit when taken in order: the longest prefix, then the longest prefix of
    the remaining files, and so on."""
    picked, room = [], int(budget)
    left = order
    while len(left):
        left = left[size[left] <= room]
        if not len(left):
            break
        n = int(np.searchsorted(np.cumsum(size[left]), room, side="right"))
        picked.append(left[:n])
        room -= int(size[left[:n]].sum())
        left = left[n + 1 :]
    return np.concatenate(picked) if picked else order[:0]


def _bound(value: Array, size: Array, budget: int) -> float:
    """Return the value with a single file cut in two, an upper bound of every choice (Dantzig
    1957)."""
    ends = np.cumsum(size)
    n = int(np.searchsorted(ends, budget, side="right"))
    total = float(value[:n].sum())
    if n < len(value):
        room = budget - (int(ends[n - 1]) if n else 0)
        total += float(value[n]) * room / int(size[n])
    return total


def _searched(
    value: list[float], size: list[int], budget: int, least: float
) -> tuple[list[int] | None, bool]:
    """Search depth first, the denser files first, cut off by the bound.

    Return a better choice than `least`, if found, and whether the search was whole.
    """
    values, sizes = [0.0], [0]
    for worth_s, n_bytes in zip(value, size, strict=True):
        values.append(values[-1] + worth_s)
        sizes.append(sizes[-1] + n_bytes)
    count = len(value)

    def bound(place: int, room: int) -> float:
        end = bisect_right(sizes, sizes[place] + room) - 1
        more = values[end] - values[place]
        if end < count:
            more += value[end] * (room - sizes[end] + sizes[place]) / size[end]
        return more

    best_places: list[int] | None = None
    taken: list[int] = []
    stack: list[tuple[int, int, float, int, bool]] = [(0, budget, 0.0, 0, False)]
    for _ in range(NODES):
        if not stack:
            return best_places, True
        place, room, total, depth, takes = stack.pop()
        del taken[depth:]
        if takes:
            taken.append(place - 1)
            depth += 1
        if total > least:
            least, best_places = total, list(taken)
        if place == count or total + bound(place, room) <= least * (1 + 1e-12):
            continue
        stack.append((place + 1, room, total, depth, False))
        if size[place] <= room:
            stack.append((place + 1, room - size[place], total + value[place], depth, True))
    return best_places, False


def _smallest(size: Array, budget: int) -> Array:
    """Choose all files below the largest fitting size, and as many files of the largest size as
    fit."""
    ordered = np.sort(size)
    n = int(np.searchsorted(np.cumsum(ordered), budget, side="right"))
    if n == len(size):
        return np.ones(n, bool)
    is_chosen: Array = size < ordered[n]
    is_chosen[np.flatnonzero(size == ordered[n])[: n - int(is_chosen.sum())]] = True
    return is_chosen


def _hottest(evidence: Evidence, value: Array, size: Array, seed: int) -> Array:
    times = evidence.read_bytes / np.maximum(1, evidence.size_bytes)
    return np.lexsort((size, -times))


def _random(evidence: Evidence, value: Array, size: Array, seed: int) -> Array:
    return np.random.default_rng(seed).permutation(len(size))


def _by_directory(evidence: Evidence, value: Array, size: Array, budget: int) -> Array:
    """Choose whole folders, most value per byte first."""
    # Sorting a million names would take as long as all the rest.
    numbers: dict[str, int] = defaultdict(itertools.count().__next__)
    folder = np.array([numbers[path.rpartition("/")[0]] for path in evidence.paths], np.int64)
    values = np.bincount(folder, value)
    sizes = np.bincount(folder, size).astype(np.int64)
    chosen = filled(by_density(values, sizes), sizes, budget)
    is_chosen: Array = np.isin(folder, chosen)
    return is_chosen


_ORDERS: dict[str, Callable[[Evidence, Array, Array, int], Array]] = {
    "hottest": _hottest,
    "random": _random,
}

# `gain` is our policy; `small` is the manual choice in tf-Darshan: all files below the size that
# fits.
POLICIES = ("gain", "small", "hottest", "directory", "random")


def choose(
    evidence: Evidence,
    value: Array,
    size: Array,
    budget: int,
    policy: str = "gain",
    *,
    order: Array | None = None,
    seed: int = 0,
) -> Choice:
    """Choose files for a budget by a policy.  size: bytes of each copy.  order: see best.

    Raises TierError: an unknown policy.
    """
    if policy == "gain":
        return best(value, size, budget, order)
    if policy == "directory":
        return Choice(_by_directory(evidence, value, size, budget))
    if policy == "small":
        return Choice(_smallest(size, budget))
    if policy not in _ORDERS:
        raise TierError(f"{policy}: no such policy; one of {', '.join(POLICIES)}")
    is_chosen = np.zeros(len(size), bool)
    is_chosen[filled(_ORDERS[policy](evidence, value, size, seed), size, budget)] = True
    return Choice(is_chosen)
