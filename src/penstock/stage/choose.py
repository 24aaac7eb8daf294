"""Which files to stage: the most critical wait removed for the room that they take.

Knows columns, budgets and policies; knows no run, no tier but its costs, and no file system.  What
a copy is worth is told file by file, so that the best choice under a budget is a knapsack: by worth
per byte, and exactly where a few large files make that order miss.
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

# Whether a read was waited for depends on who else read then: chance, until it was seen often.
LOOKS_OF_ITS_LIKE_CRITICAL = 8.0

WARMTH = 0.02  # of what is brought: how much less may be gone on from, at first

NODES = 100_000  # of the exact search: half a second
GOOD_ENOUGH = 0.999  # of the bound that no choice can pass


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """is_chosen: for each file.  of_best: at least so much of the worth, file by file, that any
    choice under this budget could have; None: a policy that does not look at worth."""

    is_chosen: Array
    of_best: float | None = None


def worth(known: Expected, is_shared: bool = False) -> Array:
    """Seconds of data wait that a copy of each file is expected to remove.

    Its time in calls, times the part of such time that was waited for, less what is left on the
    fast tier.  Both are moved towards those of its like, by how seldom it was looked at.
    is_shared: the part that was waited for is that of all files which workers fetched: for whom of
    several workers the step loop waits says more of the loader than of the file.
    """
    evidence = known.evidence
    if not len(evidence):
        return np.zeros(0)
    found = known.time_s * _waited(known, is_shared) * (1 - known.kept)
    # Faults of mappings are no calls: what they block is all that is known.
    found = np.where(evidence.is_mapped, evidence.blocking_s * (1 - known.kept), found)
    result: Array = np.where(evidence.size_bytes > 0, found, 0.0)
    return result


def _waited(known: Expected, is_shared: bool) -> Array:
    """The part of its time in calls that was waited for, of each file."""
    evidence, like, looks = known.evidence, known.like, known.looks
    if evidence.wait_s is None:
        return np.ones(len(evidence))  # no wait was seen: all time counts alike
    if is_shared and evidence.batches is not None:
        like, looks = like.copy(), looks.copy()
        like[evidence.batches.file] = like.max() + 1
        looks[evidence.batches.file] = 0.0
    its = evidence.blocking_s / np.maximum(1e-12, evidence.time_s)
    usual_s = np.maximum(1e-12, np.bincount(like, known.usual_s))
    waited_s = np.bincount(like, its * known.usual_s)
    # Of a few files it is chance too, so theirs is moved towards that of all.
    few_s = LOOKS_OF_ITS_LIKE_CRITICAL * usual_s / np.maximum(1, np.bincount(like))
    of_all = float(waited_s.sum() / usual_s.sum())
    of_like = np.minimum(1.0, (waited_s + few_s * of_all) / (usual_s + few_s))
    own = looks / (looks + LOOKS_OF_ITS_LIKE_CRITICAL)
    found: Array = own * its + (1 - own) * of_like[like]
    return found


# --- the best, and plain policies ----------------------------------------------------------------


def best(value: Array, size: Array, budget: int, order: Array | None = None) -> Choice:
    """The files of most value that fit into a budget: exact, or of_best says how near.

    value: seconds, not negative.  size: bytes.  order: by_density of these, if that is known.
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
    """The files' numbers, those of most value per byte first."""
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
    """A choice that brings no less: a file more, others out for it, what then fits in; so often.

    What several files bring together is not the sum of their worths, where a step loop waits for
    the last of several workers.  Choices that bring a little less are gone on from too, less and
    less of them (simulated annealing), as often two files have to move for anything to change.
    gain_of: what a choice brings.  Returns the best choice and what it brings.
    """
    chance = np.random.default_rng(seed)
    now, gain = is_chosen.copy(), gain_of(is_chosen)
    top, top_gain = now, gain
    for left in range(tries, 0, -1):
        outside = np.flatnonzero(~now & (size <= budget))
        if not len(outside):
            break
        trial = now.copy()
        one = int(chance.choice(outside))
        trial[one] = True
        inside = chance.permutation(np.flatnonzero(now))
        over = int(size[trial].sum()) - budget
        if over > 0:
            trial[inside[: int(np.searchsorted(np.cumsum(size[inside]), over)) + 1]] = False
        others = chance.permutation(np.flatnonzero(~trial & (size <= budget)))
        trial[filled(others, size, budget - int(size[trial].sum()))] = True
        found = gain_of(trial)
        warmth = WARMTH * top_gain * left / tries
        if found >= gain or chance.random() < np.exp((found - gain) / max(1e-12, warmth)):
            now, gain = trial, found
        if found > top_gain:
            top, top_gain = trial, found
    return top, top_gain


def filled(order: Array, size: Array, budget: int) -> Array:
    """In this order whatever still fits: the longest beginning, then again from what is left."""
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
    """What cutting one file in two would give: no choice has more (Dantzig 1957)."""
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
    """Depth first, the denser first, cut off by the bound: a better choice than `least`, if one was
    found, and whether the search was whole."""
    values, sizes = [0.0], [0]
    for one, n_bytes in zip(value, size, strict=True):
        values.append(values[-1] + one)
        sizes.append(sizes[-1] + n_bytes)
    count = len(value)

    def bound(place: int, room: int) -> float:
        end = bisect_right(sizes, sizes[place] + room) - 1
        more = values[end] - values[place]
        if end < count:
            more += value[end] * (room - sizes[end] + sizes[place]) / size[end]
        return more

    found: list[int] | None = None
    taken: list[int] = []
    stack: list[tuple[int, int, float, int, bool]] = [(0, budget, 0.0, 0, False)]
    for _ in range(NODES):
        if not stack:
            return found, True
        place, room, total, depth, takes = stack.pop()
        del taken[depth:]
        if takes:
            taken.append(place - 1)
            depth += 1
        if total > least:
            least, found = total, list(taken)
        if place == count or total + bound(place, room) <= least * (1 + 1e-12):
            continue
        stack.append((place + 1, room, total, depth, False))
        if size[place] <= room:
            stack.append((place + 1, room - size[place], total + value[place], depth, True))
    return found, False


def _smallest(size: Array, budget: int) -> Array:
    """All below the size that fits, and of that size the first: a threshold, nothing larger."""
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
    """Whole folders, those of most value per byte first."""
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

# gain is ours; small is what was done by hand in tf-Darshan: all files below the size that fits.
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
    """Files for a budget by a policy.  size: what a copy takes.  order: as in best.

    Raises TierError: no such policy.
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
