"""How long an all-reduce takes: ring, tree and halving, and the part hidden by a backward pass.

Formulas only: nothing is measured here and nothing is sent.  The ring is from Patarasuk and Yuan
(2009), halving and doubling from Rabenseifner (2004), the tree a binomial reduce and broadcast.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = [
    "EXCHANGES",
    "Network",
    "StrongScaling",
    "Sum",
    "exchange_s",
    "exposed_s",
    "fitted",
    "needed",
    "speedup",
    "step_s",
]


@dataclass(frozen=True, slots=True)
class Network:
    """Equal links.  latency_s: of a message, software included.  bandwidth_bps: of a rank, in each
    direction at once.  reduce_bps: bytes per second that a rank adds."""

    latency_s: float
    bandwidth_bps: float
    reduce_bps: float = math.inf


def _ring_terms(ranks: int, n_bytes: float) -> tuple[float, float, float]:
    """Return the messages one after the other, the bytes in them, and the bytes added."""
    share = n_bytes / ranks
    return 2 * (ranks - 1), 2 * (ranks - 1) * share, (ranks - 1) * share


def _asked_ring_terms(ranks: int, n_bytes: float) -> tuple[float, float, float]:
    """A ring in which the receiver requests each message, as in gloo: two latencies for each
    message."""
    messages, sent, added = _ring_terms(ranks, n_bytes)
    return 2 * messages, sent, added


def _tree_terms(ranks: int, n_bytes: float) -> tuple[float, float, float]:
    rounds = math.ceil(math.log2(ranks))
    return 2 * rounds, 2 * rounds * n_bytes, rounds * n_bytes


def _halving_terms(ranks: int, n_bytes: float) -> tuple[float, float, float]:
    rounds = math.ceil(math.log2(ranks))
    share = (ranks - 1) / ranks * n_bytes
    return 2 * rounds, 2 * share, share


EXCHANGES: dict[str, Callable[[int, float], tuple[float, float, float]]] = {
    "ring": _ring_terms,
    "asked-ring": _asked_ring_terms,
    "tree": _tree_terms,
    "halving": _halving_terms,
}


def exchange_s(algorithm: str, network: Network, ranks: int, n_bytes: float) -> float:
    """Return the seconds of an all-reduce of ranks that begin together.

    The tree's number of rounds is exact for powers of two and an upper bound for other numbers.
    """
    messages, sent, added = EXCHANGES[algorithm](ranks, n_bytes)
    return messages * network.latency_s + sent / network.bandwidth_bps + added / network.reduce_bps


def exposed_s(
    algorithm: str, network: Network, ranks: int, n_bytes: float, backward_s: float, buckets: int
) -> float:
    """Return the seconds from the end of the backward pass to the end of the exchange.

    The gradients are in buckets of equal size, ready one after the other at equal distances, the
    last at the end of the pass; a bucket waits for the exchange of the earlier bucket.
    """
    each_s = exchange_s(algorithm, network, ranks, n_bytes / buckets)
    ended_s = 0.0
    for number in range(1, buckets + 1):
        ended_s = max(ended_s, backward_s * number / buckets) + each_s
    return ended_s - backward_s


# --- parameters from measured sums ----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sum:
    """A measured all-reduce."""

    algorithm: str
    ranks: int
    n_bytes: int
    seconds: float


def fitted(sums: Sequence[Sum]) -> Network:
    """Return the latency and the bandwidth with the least squares of the relative errors.

    Adding is within the bandwidth: two of the three terms of an algorithm differ by a constant.
    """
    rows = []
    for timed_sum in sums:
        messages, sent, _ = EXCHANGES[timed_sum.algorithm](timed_sum.ranks, timed_sum.n_bytes)
        rows.append((messages / timed_sum.seconds, sent / timed_sum.seconds))
    aa = math.fsum(a * a for a, _ in rows)
    ab = math.fsum(a * b for a, b in rows)
    bb = math.fsum(b * b for _, b in rows)
    a1, b1 = math.fsum(a for a, _ in rows), math.fsum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    latency_s = (a1 * bb - b1 * ab) / determinant if determinant > 0 else -1.0
    per_byte_s = (b1 * aa - a1 * ab) / determinant if determinant > 0 else -1.0
    if latency_s < 0:  # the best with only one term
        latency_s, per_byte_s = 0.0, b1 / bb
    elif per_byte_s <= 0:
        latency_s, per_byte_s = a1 / aa, 0.0
    return Network(latency_s, 1 / per_byte_s if per_byte_s else math.inf)


# --- strong scaling -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StrongScaling:
    """A training with a batch divided among the nodes.  sample_s: computing of a sample on a node.
    backward: the share of computing in which gradients become ready."""

    batch: int
    sample_s: float
    gradient_bytes: float
    backward: float = 2 / 3  # a backward pass costs two forward passes
    buckets: int = 1
    is_overlapped: bool = False
    fixed_s: float = 0.0  # of each step, for any number of samples


def step_s(job: StrongScaling, algorithm: str, network: Network, nodes: int) -> float:
    """Return the seconds of a step: computing, and the visible part of the exchange."""
    compute_s = job.fixed_s + job.sample_s * job.batch / nodes
    if not job.is_overlapped:
        return compute_s + exchange_s(algorithm, network, nodes, job.gradient_bytes)
    return compute_s + exposed_s(
        algorithm, network, nodes, job.gradient_bytes, job.backward * compute_s, job.buckets
    )


def speedup(job: StrongScaling, algorithm: str, network: Network, nodes: tuple[int, int]) -> float:
    """Return how many times as fast the second number of nodes is as the first."""
    few, many = nodes
    return step_s(job, algorithm, network, few) / step_s(job, algorithm, network, many)


def needed(wanted: float, speedup_at: Callable[[float], float], least: float, most: float) -> float:
    """Return the value between least and most with the wanted speed-up, by bisection of the
    logarithm; nan if the speed-up is not reached in the range."""
    low, high = speedup_at(least) - wanted, speedup_at(most) - wanted
    if low * high > 0:
        return math.nan
    for _ in range(200):
        middle = math.sqrt(least * most)
        if (speedup_at(middle) - wanted) * low > 0:
            least = middle
        else:
            most = middle
    return math.sqrt(least * most)
