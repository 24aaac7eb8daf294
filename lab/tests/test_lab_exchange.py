"""Sums over ranks: the formulas against a simulation that moves real numbers, and real ranks."""

import heapq
import math
import os
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lab_studies import result_of

from fixtures import PENSTOCK
from penstock_lab import allreduce, exchange, wire
from penstock_lab.allreduce import Network, StrongScaling, Sum

NETWORKS = st.builds(
    Network,
    latency_s=st.floats(1e-6, 1e-2),
    bandwidth_bps=st.floats(1e6, 1e10),
    reduce_bps=st.one_of(st.just(math.inf), st.floats(1e8, 1e11)),
)


class Simulated:
    """Ranks that send and receive vectors, event by event.

    A second implementation of the time: messages queue at the sender's link, take a latency and are
    added by the receiver; nothing of the formulas is used.
    """

    def __init__(self, network: Network, ranks: int, length: int) -> None:
        generator = np.random.default_rng(ranks * 1000 + length)
        self.network = network
        self.vectors = [generator.integers(0, 100, length) for _ in range(ranks)]
        self.wanted = sum(self.vectors)
        self.link_free_s = [0.0] * ranks
        self.events: list[tuple[float, int, int, int, slice, np.ndarray, bool]] = []
        self.number = 0
        self.ended_s = 0.0

    def send(self, now: float, rank: int, to: int, part: slice, is_added: bool) -> None:
        data = self.vectors[rank][part].copy()
        begin_s = max(now, self.link_free_s[rank])
        self.link_free_s[rank] = begin_s + 4 * len(data) / self.network.bandwidth_bps
        self.number += 1
        arrival_s = self.link_free_s[rank] + self.network.latency_s
        heapq.heappush(self.events, (arrival_s, self.number, rank, to, part, data, is_added))

    def received(self) -> tuple[float, int, int]:
        """Return the next message: the time of use, the sender, the receiver."""
        arrival_s, _, rank, to, part, data, is_added = heapq.heappop(self.events)
        if is_added:
            self.vectors[to][part] += data
            arrival_s += 4 * len(data) / self.network.reduce_bps
        else:
            self.vectors[to][part] = data
        self.ended_s = max(self.ended_s, arrival_s)
        return arrival_s, rank, to

    def checked_s(self) -> float:
        for vector in self.vectors:
            assert vector.tolist() == self.wanted.tolist()
        return self.ended_s


def simulated_ring_s(network: Network, ranks: int, share: int) -> float:
    ring = Simulated(network, ranks, ranks * share)
    parts = [slice(n * share, (n + 1) * share) for n in range(ranks)]
    steps = [0] * ranks  # messages received by each rank
    for rank in range(ranks):
        ring.send(0.0, rank, (rank + 1) % ranks, parts[rank], True)
    while ring.events:
        now, rank, to = ring.received()
        steps[to] += 1
        done = steps[to]
        if done < 2 * (ranks - 1):
            part = parts[(to - done) % ranks]
            ring.send(now, to, (to + 1) % ranks, part, done < ranks - 1)
    return ring.checked_s()


def simulated_tree_s(network: Network, ranks: int, length: int) -> float:
    tree = Simulated(network, ranks, length)
    whole = slice(0, length)

    def children(rank: int) -> list[int]:
        numbers, distance = [], 1
        while distance < ranks and not rank & distance:
            if rank + distance < ranks:
                numbers.append(rank + distance)
            distance *= 2
        return numbers

    waiting = {rank: set(children(rank)) for rank in range(ranks)}

    def broadcast(now: float, rank: int) -> None:
        for child in reversed(children(rank)):
            tree.send(now, rank, child, whole, False)

    def reduced(now: float, rank: int) -> None:
        if rank == 0:
            broadcast(now, 0)
        else:
            tree.send(now, rank, rank & (rank - 1), whole, True)

    for rank in range(ranks):
        if not waiting[rank]:
            reduced(0.0, rank)
    while tree.events:
        now, rank, to = tree.received()
        if rank in waiting[to]:
            waiting[to].discard(rank)
            if not waiting[to]:
                reduced(now, to)
        else:
            broadcast(now, to)
    return tree.checked_s()


@settings(deadline=None, max_examples=150)
@given(network=NETWORKS, ranks=st.integers(2, 12), share=st.integers(1, 5000))
def test_the_ring_takes_as_long_as_its_simulation(network: Network, ranks: int, share: int) -> None:
    expected = simulated_ring_s(network, ranks, share)
    seconds = allreduce.exchange_s("ring", network, ranks, 4 * ranks * share)
    assert seconds == pytest.approx(expected, rel=1e-9)
    # A receiver that asks first makes each message wait for another.
    more = 2 * (ranks - 1) * network.latency_s
    asked = allreduce.exchange_s("asked-ring", network, ranks, 4 * ranks * share)
    assert asked == pytest.approx(expected + more, rel=1e-9)


@settings(deadline=None, max_examples=150)
@given(network=NETWORKS, ranks=st.integers(2, 16), length=st.integers(1, 5000))
def test_the_tree_takes_no_longer_than_its_formula(
    network: Network, ranks: int, length: int
) -> None:
    """In the broadcast a rank serves child after child, with parallel links afterwards: the formula
    counts whole rounds, a bound reached by two ranks."""
    expected = simulated_tree_s(network, ranks, length)
    seconds = allreduce.exchange_s("tree", network, ranks, 4 * length)
    assert expected <= seconds * (1 + 1e-9)
    assert seconds <= 2 * expected
    if ranks == 2:
        assert seconds == pytest.approx(expected, rel=1e-9)


@given(
    network=NETWORKS, ranks=st.integers(2, 64), n_bytes=st.floats(1e3, 1e9),
    backward_s=st.floats(1e-3, 10), buckets=st.integers(1, 30),
)  # fmt: skip
def test_overlap_hides_no_more_than_the_pass_and_no_less_than_nothing(
    network: Network, ranks: int, n_bytes: float, backward_s: float, buckets: int
) -> None:
    exposed = allreduce.exposed_s("ring", network, ranks, n_bytes, backward_s, buckets)
    each = allreduce.exchange_s("ring", network, ranks, n_bytes / buckets)
    assert exposed >= each * (1 - 1e-6) - 1e-9 * backward_s  # the last bucket follows the pass
    assert exposed <= buckets * each * (1 + 1e-6) + 1e-9 * backward_s
    assert exposed + backward_s >= buckets * each
    assert allreduce.exposed_s("ring", network, ranks, n_bytes, backward_s, 1) == pytest.approx(
        allreduce.exchange_s("ring", network, ranks, n_bytes), abs=1e-9 * backward_s, rel=1e-6
    )


@given(latency_s=st.floats(1e-6, 1e-2), bandwidth_bps=st.floats(1e6, 1e10))
def test_the_fit_finds_the_network_that_made_the_sums(
    latency_s: float, bandwidth_bps: float
) -> None:
    made = Network(latency_s, bandwidth_bps)
    sums = [
        Sum(algorithm, ranks, n_bytes, allreduce.exchange_s(algorithm, made, ranks, n_bytes))
        for algorithm in ("ring", "tree")
        for ranks in (2, 4, 8)
        for n_bytes in (1_000, 100_000, 100_000_000)
    ]
    network = allreduce.fitted(sums)
    for timed_sum in sums:
        again = allreduce.exchange_s(
            timed_sum.algorithm, network, timed_sum.ranks, timed_sum.n_bytes
        )
        assert again == pytest.approx(timed_sum.seconds, rel=1e-3)


def test_the_speedup_is_that_of_the_steps_alone() -> None:
    """By hand: 8 samples of a second, 4 bytes; 1 and 4 s of computing on 8 and 2 nodes."""
    job = StrongScaling(8, 1.0, 4.0)
    free = Network(0.0, math.inf)
    assert allreduce.speedup(job, "ring", free, (2, 8)) == 4.0
    slow = Network(0.5, math.inf)  # 2 messages on two nodes, 14 on eight
    assert allreduce.speedup(job, "ring", slow, (2, 8)) == pytest.approx((4 + 1) / (1 + 7))
    fixed = StrongScaling(8, 1.0, 4.0, fixed_s=1.0)
    assert allreduce.speedup(fixed, "ring", free, (2, 8)) == pytest.approx(5 / 2)


def test_what_the_published_speedup_needs_gives_it() -> None:
    solved = exchange._solved()
    ends = (512, 2048)
    for network in (
        Network(solved["latency_s"], exchange.LINK_BPS),
        Network(exchange.LINK_LATENCY_S, solved["bandwidth_bps"]),
    ):
        assert allreduce.speedup(exchange.NURION, "ring", network, ends) == pytest.approx(2.60)
    few, many = 0.81, 0.2025  # 64 and 16 images of 12.66 ms
    exposed = solved["exposed_s"]
    assert (few + exposed) / (many + exposed) == pytest.approx(2.60, rel=1e-3)
    assert math.isnan(allreduce.needed(5.0, lambda value: 2.0, 1e-6, 1.0))


def test_packets_arrive_after_the_latency_at_the_bandwidth(tmp_path: Path) -> None:
    """Two ranks, a small sum and a large sum: the set values alone give the times."""
    if os.geteuid() != 0 or not wire.TUN.exists() or find_spec("torch") is None:
        pytest.skip("a network of its own needs root, TUN and PyTorch")
    seconds_of = exchange._Launched(tmp_path, exchange.ExchangeSettings("ci"))._start("far", 2)
    set_to = exchange.NETWORKS["far"]
    assert set_to is not None
    network = Network(*set_to)
    for n_bytes in exchange.SIZES["ci"]:
        least = allreduce.exchange_s("tree", network, 2, n_bytes)
        assert seconds_of["tree", n_bytes] > 0.95 * least
        assert seconds_of["tree", n_bytes] < 3 * least
    assert not (tmp_path / "penstock-bench").exists()


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.experiment(study="exchange")
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_real_sums_stand_beside_the_formulas(tmp_path: Path) -> None:
    command = [PENSTOCK, "bench", "exchange", tmp_path, "--scale", "ci", "--repeats", "1"]
    done = subprocess.run([*command, "--on", "loopback"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = result_of(tmp_path, "exchange")
    here = [point for point in result["points"] if point["factors"]["place"] == "loopback"]
    assert len(here) == 2 * 3 * 2
    assert all(point["values"]["seconds"] > 0 for point in here)
    fitted = [point for point in here if point["values"]["is_fitted"]]
    assert len(fitted) == 4
    free = {
        point["factors"]["ranks"]: point["values"]
        for point in result["points"]
        if point["factors"]["place"] == "nurion" and point["factors"]["algorithm"] == "ring"
    }
    assert free[512]["speedup"] == 1
    assert 2.6 < free[2048]["speedup"] < 4
