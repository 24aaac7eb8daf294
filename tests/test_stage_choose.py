"""Which files are chosen, what they are expected to bring, and what a plan says of it."""

import io
import itertools
import os
import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from penstock.errors import TierError
from penstock.places import registry
from penstock.places.registry import Costs, Tier
from penstock.stage import plan as plans
from penstock.stage import planfile, predict, today
from penstock.stage import source as sources
from penstock.stage.choose import POLICIES, best, choose, worth
from penstock.stage.copy import copy
from penstock.stage.evidence import Batches, Evidence, Mounted, evidence_of, mounts_of
from penstock.stage.held import evict
from penstock.stage.manifest import Identity, Map, TierPlace, hash_of, stored_bytes
from penstock.stage.predict import Predictor, expected
from penstock.stage.source import Kinds, WantedFile
from penstock_lab.tier import slow
from slowtier import needs_fuse
from synthetic import Synthetic

MS = 1_000_000
FREE = Costs(0.0, 0.0, 0.0)  # a fast tier that costs nothing
KIB, MIB = 1 << 10, 1 << 20


def evidence(
    sizes: Any,
    time_s: Any,
    blocking_s: Any = None,
    *,
    opens: float = 1.0,
    wait_s: float | None = 100.0,
    batches: Batches | None = None,
    paths: tuple[str, ...] | None = None,
) -> Evidence:
    n = len(sizes)
    sizes = np.asarray(sizes, np.int64)
    time_s = np.asarray(time_s, float)
    return Evidence(
        paths or tuple(f"/data/{number}" for number in range(n)),
        (None,) * n,
        np.ones(n, np.int64),
        sizes,
        np.full(n, opens),
        np.full(n, opens),
        sizes * opens,
        time_s,
        time_s / 2 if blocking_s is None else np.asarray(blocking_s, float),
        np.zeros(n, bool),
        time_s / 10,
        np.zeros(n, bool),
        wait_s,
        200.0,
        (),
        batches,
    )


# Choosing


def exhaustive(value: list[float], size: list[int], budget: int) -> float:
    """The most value of any set that fits: all of them looked at."""
    sets = itertools.chain.from_iterable(
        itertools.combinations(range(len(value)), n) for n in range(len(value) + 1)
    )
    return max(
        sum(value[one] for one in chosen)
        for chosen in sets
        if sum(size[one] for one in chosen) <= budget
    )


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(1, 1000)), min_size=1, max_size=11),
    st.integers(0, 5000),
)
def test_the_choice_is_the_best_that_any_search_finds(
    items: list[tuple[float, int]], budget: int
) -> None:
    value, size = [one[0] for one in items], [one[1] for one in items]
    found = best(np.array(value), np.array(size, np.int64), budget)
    chosen = np.flatnonzero(found.is_chosen).tolist()
    assert sum(size[one] for one in chosen) <= budget
    total = sum(value[one] for one in chosen)
    most = exhaustive(value, size, budget)
    assert total >= 0.98 * most
    assert found.of_best is not None
    assert total >= found.of_best * most * (1 - 1e-9)


def test_a_dense_small_file_does_not_keep_a_large_one_out() -> None:
    # By value per byte the first goes first, and then the second does not fit.
    found = best(np.array([10.0, 90.0]), np.array([10, 100], np.int64), 100)
    assert found.is_chosen.tolist() == [False, True]
    assert found.of_best == 1.0


def test_a_million_files_are_chosen_within_the_bound() -> None:
    chance = np.random.default_rng(0)
    size = chance.lognormal(11.5, 1.0, 1_000_000).astype(np.int64)
    value = chance.gamma(2.0, 0.003, 1_000_000)
    budget = int(size.sum() // 5)
    found = best(value, size, budget)
    assert size[found.is_chosen].sum() <= budget
    assert found.of_best is not None
    assert found.of_best > 0.999


def test_small_files_that_pay_latency_go_before_large_ones_of_the_same_bytes() -> None:
    # 3 ms a file and 100 MB/s: what a copy of 100 KB brings per byte is four times that of 4 MB.
    sizes = [100_000] * 50 + [4_000_000] * 10
    known = evidence(sizes, [0.003 + size / 100e6 for size in sizes])
    value = worth(expected(known, FREE))
    found = choose(known, value, known.size_bytes, 5_000_000)
    assert found.is_chosen[:50].all()
    assert not found.is_chosen[50:].any()


def test_one_slow_read_of_one_small_file_does_not_put_it_before_its_like() -> None:
    time_s = [0.004] * 99 + [0.4]
    value = worth(expected(evidence([100_000] * 100, time_s), FREE))
    assert value[99] < 0.3 * 0.4 / 2 + 0.01
    assert value.sum() == pytest.approx(sum(time_s) / 2, rel=0.05)


def test_a_file_that_was_often_slow_is_believed() -> None:
    time_s = [0.4] * 99 + [40.0]
    value = worth(expected(evidence([100_000] * 100, time_s, opens=400.0), FREE))
    assert value[99] == pytest.approx(20.0, rel=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_files_that_were_opened_once_are_told_apart_by_size_and_not_by_chance(seed: int) -> None:
    # tf-Darshan's malware case: a seek a file, then bytes; each time is one look, and some are far
    # off.  What a copy truly brings per byte falls with the size, so its threshold is the best.
    chance = np.random.default_rng(seed)
    small = chance.uniform(2e3, 100e3, 1200)
    sizes = np.concatenate([small, 100e3 + chance.lognormal(12, 0.45, 1800)]).astype(np.int64)
    true_s = 0.0006 + sizes / 129e6
    seen_s = true_s * chance.lognormal(-0.125, 0.5, 3000)
    seen_s = np.where(chance.random(3000) < 0.02, 40 * seen_s, seen_s)
    known = evidence(sizes, seen_s, seen_s * chance.uniform(0.5, 1.0, 3000))
    size = stored_bytes(sizes)
    for part in (1200, 2400):
        budget = int(np.sort(size)[:part].sum())
        value = worth(expected(known, FREE))
        brings_s = {
            policy: float(true_s[choose(known, value, size, budget, policy).is_chosen].sum())
            for policy in ("gain", "small")
        }
        assert brings_s["gain"] >= 0.985 * brings_s["small"]


def test_what_is_seen_of_a_file_again_and_again_or_for_long_tells_of_the_file() -> None:
    # Half of the files are twice as slow: opened once they are as the others, also where one read
    # of each was slow; opened a hundred times, or read for 400 MB, they are what they were.
    is_slow = np.arange(200) % 2
    for size, opens, share in ((100_000, 1.0, 1.0), (100_000, 100.0, 1.8), (400 << 20, 1.0, 1.75)):
        time_s = opens * (1 + is_slow) * size / 100e6
        value = worth(expected(evidence([size] * 200, time_s, opens=opens), FREE))
        assert value[1] / value[0] == pytest.approx(share, abs=0.1)
        assert value.sum() == pytest.approx(time_s.sum() / 2)


def test_a_file_of_which_little_is_read_is_like_others_of_which_little_is_read() -> None:
    # Large containers: of every second one an open reads 4 KiB only.
    n = 200
    sizes = np.full(n, 400 << 20)
    is_little = np.arange(n) % 2 == 0
    reads = np.where(is_little, 4096.0, sizes / 10)
    known = replace(evidence(sizes, 0.001 + reads / 100e6), read_bytes=reads)
    found = expected(known, FREE).time_s
    assert found[is_little] == pytest.approx(0.001 + 4096 / 100e6, rel=0.1)
    assert found[~is_little] == pytest.approx(0.001 + 40 * MIB / 100e6, rel=0.1)


def test_what_the_fast_tier_still_costs_is_taken_off() -> None:
    known = evidence([1_000_000] * 4, [0.02] * 4)
    assert worth(expected(known, Costs(0.0, 0.0, 0.01 / 1e6))).sum() == pytest.approx(0.02)
    assert worth(expected(known, Costs(1.0, 0.0, 0.0))).sum() == 0


def test_no_policy_passes_the_budget_and_none_but_the_best_passes_the_best() -> None:
    chance = random.Random(4)
    sizes = [chance.randrange(1000, 5_000_000) for _ in range(300)]
    time_s = [0.003 + size / 80e6 * chance.uniform(0.5, 2) for size in sizes]
    paths = tuple(f"/data/{number % 7}/{number}" for number in range(300))
    known = evidence(sizes, time_s, paths=paths, opens=20.0)
    value, size = worth(expected(known, FREE)), stored_bytes(known.size_bytes)
    budget = int(size.sum() // 4)
    totals = {}
    for policy in POLICIES:
        chosen = choose(known, value, size, budget, policy).is_chosen
        assert size[chosen].sum() <= budget
        totals[policy] = value[chosen].sum()
    assert max(totals, key=lambda policy: totals[policy]) == "gain"
    assert totals["gain"] > 1.1 * totals["random"]


def test_the_choice_beats_the_threshold_of_tf_darshan_on_the_same_bytes() -> None:
    # Malware-like: log-normal sizes, median 4 MB; half of the large files lie on a slower server.
    chance = np.random.default_rng(7)
    sizes = chance.lognormal(np.log(4e6), 1.2, 2000).astype(np.int64)
    bps = np.where(np.arange(2000) % 2, 40e6, 400e6)
    known = evidence(sizes, 0.008 + sizes / bps)
    known = Evidence(
        *(
            np.arange(2000) % 2 if name == "device" else getattr(known, name)
            for name in Evidence.__dataclass_fields__
        )
    )
    value, size = worth(expected(known, FREE)), stored_bytes(known.size_bytes)
    for share in (0.05, 0.1, 0.3):
        budget = int(size.sum() * share)
        ours = value[choose(known, value, size, budget).is_chosen].sum()
        threshold = value[choose(known, value, size, budget, "small").is_chosen].sum()
        assert ours > 1.05 * threshold


def test_an_unknown_policy_names_those_that_there_are() -> None:
    known = evidence([1], [1.0])
    with pytest.raises(TierError, match="one of gain, small, hottest, directory, random"):
        choose(known, np.ones(1), np.ones(1), 1, "best")


# Predicting


def pipeline(
    n_batches: int, n_workers: int, read_s: Any, step_s: float, other_s: float = 0.0
) -> Batches:
    """A loader that fetches batches of one file each, two ahead for each worker, remade by hand.
    read_s: of all, or of each."""
    ahead, reads_s = 2 * n_workers, np.broadcast_to(read_s, n_batches)
    start, end, asked, got = [], [], [], []
    free = [0.0] * n_workers
    done = 0.0
    for number in range(n_batches):
        begin = max(free[number % n_workers], got[number - ahead] if number >= ahead else 0.0)
        start.append(begin)
        end.append(begin + float(reads_s[number]) + other_s)
        free[number % n_workers] = end[-1]
        asked.append(done + (step_s if number else 0.0))
        done = max(asked[-1], end[-1])
        got.append(done)
    numbers = np.arange(n_batches)
    return Batches(
        np.ones(n_batches, np.int64),
        numbers % n_workers,
        np.array(start),
        np.array(end),
        np.array(asked),
        np.array(got),
        numbers > 0,
        numbers,
        numbers,
        reads_s.astype(float),
    )


def wait_s(batches: Batches) -> float:
    return float((batches.got_s - batches.asked_s)[batches.is_counted].sum())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("step_s", [0.0, 0.01, 0.03])
@pytest.mark.parametrize("n_workers", [1, 4])
def test_a_loader_that_fetches_ahead_is_remade(share: float, step_s: float, n_workers: int) -> None:
    before = pipeline(400, n_workers, 0.050, step_s, 0.004)
    after = pipeline(400, n_workers, 0.050 * (1 - share), step_s, 0.004)
    known = evidence([100_000] * 400, [0.050] * 400, wait_s=wait_s(before), batches=before)
    costs = Costs(0.050 * (1 - share), 0.0, 0.0)
    found = Predictor(expected(known, costs)).predict(np.ones(400, bool))
    assert found.how == "remade"
    assert found.off is None or found.off < 0.01
    assert found.gain_s == pytest.approx(wait_s(before) - wait_s(after), rel=0.02, abs=0.01)


@pytest.mark.parametrize("seed", range(8))
def test_the_choice_brings_what_trying_all_would_where_workers_fetch(seed: int, tier: Tier) -> None:
    """By the remade loader, not by the sum of the files' worths."""
    chance = np.random.default_rng(seed)
    n, n_workers = 9, int(chance.integers(1, 4))
    sizes = np.clip(chance.lognormal(13, 1.0, n), 1e4, 3e6).astype(np.int64)
    fetch_s = 0.004 + sizes / 50e6 * chance.uniform(0.5, 2.0, n)
    before = pipeline(n, n_workers, fetch_s, float(chance.uniform(0, 0.02)))
    known = evidence(sizes, fetch_s, fetch_s / n_workers, wait_s=wait_s(before), batches=before)
    budget = int(stored_bytes(sizes).sum() * chance.uniform(0.3, 0.6))
    made = planned(known, tier, budget_bytes=budget)
    assert tier.costs is not None
    predictor = Predictor(expected(replace(known, check_s=plans._check_s(known)), tier.costs))
    sets = (np.array(one, bool) for one in itertools.product((0, 1), repeat=n))
    most = max(
        predictor.predict(one).gain_s for one in sets if stored_bytes(sizes[one]).sum() <= budget
    )
    taken = np.isin([*known.paths], [one.path for one in made.wanted])
    assert stored_bytes(sizes[taken]).sum() <= budget
    assert predictor.predict(taken).gain_s >= 0.98 * most


def test_a_step_that_is_longer_than_fetching_hides_all_that_is_left() -> None:
    before = pipeline(200, 2, 0.040, 0.015)
    known = evidence([1000] * 200, [0.040] * 200, wait_s=wait_s(before), batches=before)
    # Two of four batches are there at once; the other two, 40 ms, hide in the 60 ms of four steps.
    found = Predictor(expected(known, FREE)).predict(np.arange(200) // 2 % 2 == 0)
    assert found.gain_s == pytest.approx(wait_s(before), rel=0.05)


def test_a_worker_that_gets_the_slow_files_only_holds_the_others_up() -> None:
    before = pipeline(200, 2, 0.040, 0.015)
    known = evidence([1000] * 200, [0.040] * 200, wait_s=wait_s(before), batches=before)
    found = Predictor(expected(known, FREE)).predict(np.arange(200) % 2 == 0)
    assert abs(found.gain_s) < 0.05


def test_nothing_chosen_gains_nothing() -> None:
    before = pipeline(100, 2, 0.040, 0.005)
    known = evidence([1000] * 100, [0.040] * 100, wait_s=wait_s(before), batches=before)
    found = Predictor(expected(known, FREE)).predict(np.zeros(100, bool))
    assert found.gain_s == pytest.approx(0, abs=1e-9)


def test_without_workers_the_gain_is_the_wait_in_calls() -> None:
    known = evidence([1000] * 4, [0.5] * 4, [0.5, 0.5, 0.1, 0.0])
    found = Predictor(expected(known, Costs(0.25, 0.0, 0.0))).predict(np.ones(4, bool))
    assert found.how == "summed"
    assert found.gain_s == pytest.approx(1.1 / 2)


@pytest.mark.parametrize("size", [840_000, 300_000, 1_100_000])
def test_a_device_at_its_limit_is_relieved_by_fewer_readers_and_no_other(size: int) -> None:
    # Eight workers, four of them at any time at a disk that gives 94 MB/s to one, 84 to four and 77
    # to sixteen; much decoding, so that with half of the files gone fewer are there at once.  Files
    # of 840 kB in 40 ms each are all that it gives; of 300 kB, something else takes the time; of
    # 1.1 MB they are more than was measured as the most, which says nothing of these reads then.
    before = pipeline(400, 8, 0.040, 0.0, 0.040)
    known = evidence([size] * 400, [0.040] * 400, wait_s=wait_s(before), batches=before)
    levels = ((1.0, 94e6), (2.0, 92e6), (4.0, 84e6), (8.0, 80e6))
    half = np.arange(400) % 2 == 0
    plain = Predictor(expected(known, FREE)).predict(half).gain_s
    relieved = Predictor(expected(replace(known, levels=levels), FREE)).predict(half).gain_s
    if size == 840_000:
        assert plain < relieved < wait_s(before)
    else:
        assert relieved == plain


# From a run


def two_file_run(workers: bool) -> Synthetic:
    """Ten batches, each of one read of /data/a (20 ms) and one of /data/b (5 ms); steps of 1 ms."""
    run = Synthetic()
    run.process(end=400 * MS)
    if workers:
        run.worker(2, end=400 * MS)
    reader = 2 if workers else 1
    for name, size in (("a", 2 * MIB), ("b", MIB)):
        run.file(f"/data/{name}", size=size)
    for number in range(10):
        first = number * 30 * MS
        run.fetch(first, first + 27 * MS, number, process=reader, cpu=2 * MS, delay=0)
        run.call("open", first, first + MS, path="/data/a", process=reader)
        run.call("read", first + MS, first + 20 * MS, path="/data/a", moved=2 * MIB, process=reader)
        run.call("open", first + 20 * MS, first + 21 * MS, path="/data/b", process=reader)
        run.call(
            "read", first + 21 * MS, first + 25 * MS, path="/data/b", moved=MIB, process=reader
        )
        run.wait(first, first + 28 * MS, number)
        run.step(first + 28 * MS, first + 30 * MS, number)
    return run


@pytest.mark.parametrize("workers", [True, False])
def test_evidence_is_what_the_files_cost(workers: bool) -> None:
    found = evidence_of(two_file_run(workers))
    assert found.paths == ("/data/a", "/data/b")
    assert found.size_bytes.tolist() == [2 * MIB, MIB]
    assert found.opens.tolist() == found.reads.tolist() == [10, 10]
    assert found.time_s.tolist() == pytest.approx([0.2, 0.05])
    # Nine waits: the first batch belongs to the start.
    assert found.blocking_s.tolist() == pytest.approx([0.18, 0.045])
    assert (found.batches is not None) == workers
    if found.batches is not None:
        assert len(found.batches) == 10
        assert found.batches.file_s.reshape(-1).sum() == pytest.approx(0.25)


def test_bandwidth_by_readers_is_that_of_the_ceilings_if_there_are_some() -> None:
    run = two_file_run(True)
    assert len(evidence_of(run).levels) < 2
    run = two_file_run(True)
    for threads, bps in ((1, 90e6), (2, 94e6), (4, 80e6)):
        run.ceiling("/data", "read", bps)
        run.ceilings[-1]["threads"] = threads
    run.ceiling("/other", "read", 9e9)
    assert evidence_of(run).levels == ((1.0, 90e6), (2.0, 94e6), (4.0, 80e6))


def test_ceilings_are_those_of_where_the_files_lie() -> None:
    """A faster mount that was measured as often, with a name that comes first, says nothing."""
    run = two_file_run(True)
    for mount, factor in (("/", 20), ("/data", 1), ("/other", 10)):
        for threads, bps in ((1, 40e6), (4, 50e6)):
            run.ceiling(mount, "read", factor * bps)
            run.ceilings[-1]["threads"] = threads
    assert evidence_of(run).levels == ((1.0, 40e6), (4.0, 50e6))
    assert mounts_of(run) == [Mounted("/data", 2, 50e6)]
    # Of two the one that is not measured is told too.
    run = two_file_run(True)
    run.ceiling("/data", "read", 50e6)
    run.file("/far/c", size=MIB)
    run.call("read", 0, 1, path="/far/c", moved=10)
    assert mounts_of(run) == [Mounted("/data", 2, 50e6), Mounted(None, 1, None)]


def test_files_that_the_job_wrote_and_libraries_are_no_candidates() -> None:
    run = two_file_run(True)
    run.file("/data/log", size=10)
    run.call("read", 0, MS, path="/data/log", moved=10, process=2)
    run.call("write", MS, 2 * MS, path="/data/log", moved=10, process=2)
    run.file("/usr/lib/libc.so.6", path_class="library", size=10)
    run.call("read", 0, MS, path="/usr/lib/libc.so.6", moved=10)
    assert evidence_of(run).paths == ("/data/a", "/data/b")


def test_a_file_that_the_program_asks_for_before_it_opens_is_asked_again_for_little(
    tier: Tier, tmp_path: Path
) -> None:
    run = two_file_run(False)
    assert evidence_of(run).is_asked.tolist() == [False, False]
    run = two_file_run(False)
    run.call("stat", 0, 0, path="/data/a")
    run.call("stat", 290 * MS, 291 * MS, path="/data/b")  # after it was opened
    assert evidence_of(run).is_asked.tolist() == [True, False]
    known = evidence([MIB] * 20, [1.0] * 20, paths=tuple(f"{tmp_path}/{n}" for n in range(20)))
    for path in known.paths:
        Path(path).touch()
    known.is_asked[:10] = True
    told = plans._check_s(known)
    # Measured: another program may hold up one of the two.
    assert 0 < told[0] <= told[10] + 0.001 <= 0.1


def test_of_a_mapped_container_what_faults_blocked_counts() -> None:
    run = Synthetic()
    run.process(end=400 * MS)
    run.worker(2, end=400 * MS)
    run.file("/data/data.mdb", size=8 * MIB)
    run.call("open", 0, 1, path="/data/data.mdb", process=2)
    run.call("mmap", 1, 2, path="/data/data.mdb", asked=8 * MIB, process=2)
    for number in range(5):
        first = number * 30 * MS
        run.fetch(first + 10, first + 20 * MS, number, cpu=5 * MS, delay=0)
        run.span("fetch faults", first + 20 * MS, first + 20 * MS + 1, process=2, index=number, b=7)
        run.wait(first + 5, first + 21 * MS, number)
        run.step(first + 21 * MS, first + 29 * MS, number)
    found = evidence_of(run)
    assert found.paths == ("/data/data.mdb",)
    assert found.is_mapped.tolist() == [True]
    # Four counted waits, of each 15 ms neither on a processor nor in a call.
    assert found.blocking_s.tolist() == pytest.approx([0.060], rel=0.02)
    assert worth(expected(found, FREE)).tolist() == pytest.approx([0.060], rel=0.02)


# Plans


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier:
    monkeypatch.setenv(registry.ENVIRONMENT, str(tmp_path / "tiers.json"))
    folder = tmp_path / "tier"
    folder.mkdir()
    registry.add("fast", folder, 10 * MIB)
    return registry.set_measured("fast", Costs(20e-6, 2e-6, 1 / 5e9), [])


def planned(known: Evidence, tier: Tier, **more: Any) -> plans.Plan:
    """A plan of files that are as they were in the run, there or not."""
    size = dict(zip(known.paths, known.size_bytes.tolist(), strict=True))

    def look(paths: Sequence[str]) -> Any:
        now = today.now_of(paths)
        sizes = zip(paths, now["size_bytes"].tolist(), strict=True)
        now["size_bytes"] = [size.get(path, is_now) for path, is_now in sizes]
        is_not_there = now["ino"] == 0
        now["ino"][is_not_there] = [
            hash_of(path.encode()) for path in np.array(paths)[is_not_there]
        ]
        return now

    return plans.plan("run", known, tier, look=look, **more)


def test_a_plan_says_what_it_takes_and_what_it_brings(tier: Tier) -> None:
    made = planned(evidence_of(two_file_run(False)), tier, budget_bytes=2 * MIB)
    assert [one.path for one in made.wanted] == ["/data/a"]
    assert (made.files, made.size_bytes, made.all_files) == (1, 2 * MIB, 2)
    # Of 0.18 s what is left: at each of ten opens 1 ms to ask for the source (as long as an open
    # took, as it is not there to be asked), and 20 MiB at 5 GB/s, of 200 ms.
    assert made.gain_s == pytest.approx(0.18 * (1 - 0.0144 / 0.2), rel=0.01)
    assert made.curve[-1].gain_s == pytest.approx(0.2, rel=0.05)
    assert [one.policy for one in made.compared] == ["small", "hottest", "directory", "random"]
    assert made.of_best == 1.0


def test_a_plan_asks_each_thing_of_all_files_once_and_makes_no_rows(
    tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of a million files each such thing is a tenth of a second or more.
    calls: dict[str, int] = {}

    def counted(module: Any, name: str) -> None:
        call = getattr(module, name)

        def counting(*told: Any, **more: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return call(*told, **more)

        monkeypatch.setattr(module, name, counting)

    counted(predict, "_alike")
    counted(predict, "_like_s")
    counted(plans, "by_density")
    counted(plans, "WantedFile")
    fetch_s = 0.01 + np.arange(3000) / 1e6
    before = pipeline(3000, 2, fetch_s, 0.001)
    known = evidence([MIB] * 3000, fetch_s, wait_s=wait_s(before), batches=before)
    made = planned(known, tier, budget_bytes=10 * MIB)
    # By density twice: by the waits for each file, and by those for all.
    assert calls == {"_alike": 1, "_like_s": 1, "by_density": 2}
    assert made.files == len(made.wanted) == 10
    assert list(made.wanted[:2]) == [made.wanted[0], made.wanted[1]]
    assert list(made.wanted)[-1] == made.wanted[-1]


def test_files_that_cannot_gain_are_left_out_and_it_says_why(tier: Tier, tmp_path: Path) -> None:
    known = evidence([MIB, 20 * MIB, MIB], [1.0, 5.0, 1.0])
    known.device[2] = tmp_path.stat().st_dev
    made = planned(known, tier)
    assert [one.path for one in made.wanted] == ["/data/0"]
    assert any("1 file larger than the budget, up to 21" in note for note in made.notes)
    assert any("1 file on the same device as fast: no gain" in note for note in made.notes)


def test_a_plan_fits_beside_what_is_staged_and_keeps_what_is_its_own(
    tier: Tier, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    paths = [folder / f"{number}" for number in range(6)]
    for path in paths:
        path.write_bytes(bytes(2 * MIB))
    copy(
        tier, [WantedFile(str(path)) for path in paths[:2]]
    )  # 4 of 10 MiB: one of the run's, one not
    run = [str(path) for path in paths[1:]]
    known = evidence([2 * MIB] * 5, [0.1, 0.5, 0.4, 0.3, 0.2], paths=tuple(run))
    made = planned(known, tier)
    assert [Path(one.path).name for one in made.wanted] == ["1", "2", "3", "4"]
    assert any("4.19 MB are staged on fast already, 2.10 MB" in note for note in made.notes)
    assert planned(known, tier, budget_bytes=4 * MIB).files == 2
    assert copy(tier, made.wanted).copied == 3
    with pytest.raises(TierError, match=r"10\.5 MB are taken; penstock stage plan"):
        copy(tier, [WantedFile(str(paths[5]))])


def served_run(tier: str = "fast") -> Synthetic:
    """Reads a from a copy, b where it lies, c from both."""
    run = Synthetic()
    run.process(end=400 * MS)
    run.note("tier", tier)
    for name in ("b", "c"):
        run.file(f"/data/{name}", size=2 * MIB)
    for name in ("a", "c"):
        run.file(f"/data/{name}", size=2 * MIB, tier=tier)
    for number in range(5):
        first = number * 60 * MS
        for at, name, on in ((0, "a", tier), (10, "b", None), (30, "c", tier), (40, "c", None)):
            begun = first + at * MS
            run.call("read", begun, begun + 9 * MS, path=f"/data/{name}", moved=2 * MIB, tier=on)
        run.wait(first, first + 50 * MS, number)
        run.step(first + 50 * MS, first + 60 * MS, number)
    return run


def test_what_was_read_from_a_copy_that_is_gone_has_no_gain_that_is_known(tier: Tier) -> None:
    known = evidence_of(served_run())
    assert sorted(zip(known.paths, known.served_by, strict=True), key=str) == [
        ("/data/a", "fast"), ("/data/b", None), ("/data/c", "fast"), ("/data/c", None),
    ]  # fmt: skip
    made = planned(known, tier)
    assert [one.path for one in made.wanted] in (["/data/b", "/data/c"], ["/data/c", "/data/b"])
    assert (made.files, made.all_files, made.all_bytes) == (2, 3, 6 * MIB)
    # Of four waits 9 ms each for b and for c itself; nothing of what the copies took.
    assert made.gain_s == pytest.approx(2 * 4 * 0.009, rel=0.1)
    assert any("1 file read from copies that fast does not hold any more" in n for n in made.notes)
    assert any("1 file read in part from copies" in note for note in made.notes)
    assert not any("same device" in note for note in made.notes)
    # For another tier the time on this one is known, and what is left of it.
    slow_tier = replace(tier, name="other")
    made = planned(known, slow_tier)
    assert made.files == 3
    assert any("read from copies on fast: their gain is against" in note for note in made.notes)


def test_copies_that_are_there_stay_in_each_choice_and_use_the_budget(
    tier: Tier, tmp_path: Path
) -> None:
    paths = [tmp_path / name for name in "abc"]
    for path in paths:
        path.write_bytes(bytes(2 * MIB))
    copy(tier, [WantedFile(str(paths[0]))])
    known = evidence([2 * MIB] * 3, [0.1, 0.5, 0.4], paths=tuple(map(str, paths)))
    known = replace(known, served_by=("fast", None, None))
    known.device[0] = tier.path.stat().st_dev
    for policy in POLICIES:
        made = planned(known, tier, policy=policy, budget_bytes=4 * MIB)
        assert str(paths[0]) in {one.path for one in made.wanted}
        n_files = 1 if policy == "directory" else 2  # the whole folder does not fit
        assert (made.files, made.size_bytes) == (n_files, n_files * 2 * MIB)
        assert made.gain_s <= 0.25  # half of the time in calls of one other file
    made = planned(known, tier, budget_bytes=2 * MIB)
    assert ([one.path for one in made.wanted], made.gain_s) == ([str(paths[0])], 0.0)
    said = [note for note in made.notes if "the budget is used up" in note]
    assert said == ["the budget is used up, all of it, by what is held: none of 2 other files fits"]
    assert any("1 file read from copies on fast, which stay" in note for note in made.notes)
    assert not any("same device" in note or "larger than" in note for note in made.notes)


def test_a_file_with_several_names_is_one_and_stored_once(tier: Tier, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(6 * MIB))
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").symlink_to("a")
    run = Synthetic()
    run.process(end=200 * MS)
    for number, name in enumerate("abcd"):
        path = f"{tmp_path}/{name}"
        run.file(path, size=6 * MIB, inode=7 if name < "d" else 8)
        first = number * 40 * MS
        run.call("open", first, first + MS, path=path)
        run.call("read", first + MS, first + 20 * MS, path=path, moved=6 * MIB)
        run.wait(first, first + 20 * MS, number)
        run.step(first + 20 * MS, first + 40 * MS, number)
    known = evidence_of(run)
    assert (len(known), known.opens.tolist()) == (2, [3.0, 1.0])
    made = planned(known, tier, budget_bytes=7 * MIB)
    assert (made.files, made.all_files, made.size_bytes) == (1, 2, 6 * MIB)
    assert [Path(one.path).name for one in made.wanted] == ["a", "b", "c"]
    copied = copy(tier, made.wanted)
    assert (copied.copied, copied.copied_bytes) == (1, 6 * MIB)
    again = planned(known, tier, budget_bytes=7 * MIB)
    assert again.files == 1
    assert any("6.29 MB of them this run's" in note for note in again.notes)


def test_what_is_gone_or_has_grown_since_the_run_is_chosen_as_it_is_now(
    tier: Tier, tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    paths = [folder / f"{number}" for number in range(12)]
    for path in paths:
        path.write_bytes(bytes(MIB))
    known = evidence([MIB] * 12, [0.1] * 12, paths=tuple(map(str, paths)))
    for path in paths[1::2]:  # a sample by stride sees none of them
        path.unlink()
    for path in paths[:4:2]:
        os.truncate(path, 4 * MIB)
    made = plans.plan("run", known, tier)  # of 10 MiB
    assert sorted(Path(one.path).name for one in made.wanted) in (
        ["0", "10", "4", "6", "8"], ["10", "2", "4", "6", "8"],
    )  # fmt: skip
    assert (made.files, made.size_bytes, made.all_files) == (5, 8 * MIB, 12)
    assert made.gain_s == pytest.approx(5 * 0.05, rel=0.02)
    assert all(one.gain_s <= 6 * 0.05 for one in (*made.compared, *made.curve))
    assert "6 files of the run not there any more: left out" in made.notes
    assert any("2 files of another size than in the run" in note for note in made.notes)
    assert copy(tier, made.wanted).copied == 5
    # A whole folder is what is there of it.
    held = next(one for one in plans.plan("run", known, tier).compared if one.policy == "directory")
    assert held.files == 5
    for path in paths[::2]:
        path.unlink()
    assert evict(tier)[0] == 5
    none = plans.plan("run", known, tier)
    assert (none.files, none.gain_s) == (0, 0.0)
    assert none.notes == (
        "none of the run's files is there: plan where they are, or from another run",
    )


def test_a_file_whose_first_name_is_gone_is_staged_under_the_others(
    tier: Tier, tmp_path: Path
) -> None:
    for name in "bc":
        (tmp_path / name).write_bytes(bytes(MIB))
    told = tuple(f"{tmp_path}/{name}" for name in "ac")
    known = replace(
        evidence([MIB] * 2, [0.1] * 2, paths=told, wait_s=1.0),
        names={0: (f"{tmp_path}/x", f"{tmp_path}/b"), 1: (f"{tmp_path}/y",)},
    )
    made = plans.plan("run", known, tier)
    assert {Path(one.path).name for one in made.wanted} == {"b", "c"}
    assert made.files == 2


def test_one_file_read_by_one_name_from_its_copy_and_by_another_from_itself_is_one(
    tier: Tier, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(bytes(MIB))
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "c").write_bytes(bytes(MIB))
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9")
    os.link(tmp_path / "c", odd)
    copy(tier, [WantedFile(f"{tmp_path}/{name}") for name in "ac"] + [WantedFile(odd)])
    known = replace(
        evidence(
            [MIB] * 3, [0.1] * 3, paths=(f"{tmp_path}/a", f"{tmp_path}/b", f"{tmp_path}/\\xe9")
        ),
        served_by=(None, "fast", "fast"),
    )
    made = plans.plan("run", known, tier)
    assert (made.files, made.all_files) == (2, 2)
    assert any("1 file read in part from copies" in note for note in made.notes)
    assert any("1 file read from copies on fast, which stay" in note for note in made.notes)
    assert not any("does not hold any more" in note for note in made.notes)


def test_files_that_a_file_system_gives_one_number_are_no_twins_and_are_asked_once(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [f"{tmp_path}/{name}" for name in "abc"]
    for path in paths:
        Path(path).write_bytes(bytes(MIB))
    monkeypatch.setattr(Kinds, "of", lambda self, dev, path: "fuse")
    asked: list[str] = []

    def look(wanted: Sequence[str]) -> Any:
        asked.extend(wanted)
        now = today.now_of(wanted)
        for column in ("mtime_ns", "ctime_ns", "ino"):
            now[column] = 1
        return now

    known = evidence([MIB] * 3, [0.1] * 3, paths=tuple(paths))
    known = replace(known, served_by=("fast", None, None))
    status = (tmp_path / "a").stat()
    real = os.stat
    monkeypatch.setattr(
        os, "stat", lambda path, **ways: status if path in paths else real(path, **ways)
    )
    made = plans.plan("run", known, tier, look=look)
    assert made.all_files == 3
    assert not any("read in part from copies" in note for note in made.notes)
    assert sorted(asked) == paths


def linked_run(names: dict[str, int], size: int) -> Synthetic:
    """Reads the files of these names, each of the inode that is told."""
    run = Synthetic()
    run.process(end=100 * MS * len(names))
    for number, (path, inode) in enumerate(names.items()):
        run.file(path, size=size, inode=inode)
        first = number * 40 * MS
        run.call("open", first, first + MS, path=path)
        run.call("read", first + MS, first + 20 * MS, path=path, moved=size)
        run.wait(first, first + 20 * MS, number)
        run.step(first + 20 * MS, first + 40 * MS, number)
    return run


def test_a_link_that_leads_to_another_file_by_now_takes_the_room_of_both(
    tier: Tier, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(bytes(100_000))
    (tmp_path / "big").write_bytes(bytes(6 * MIB))
    (tmp_path / "b").symlink_to("a")
    run = evidence_of(linked_run({f"{tmp_path}/a": 7, f"{tmp_path}/b": 7}, 100_000))
    before = plans.plan("run", run, tier, budget_bytes=MIB)
    assert (before.files, before.size_bytes, len(before.wanted)) == (1, 100_000, 2)
    (tmp_path / "b").unlink()
    (tmp_path / "b").symlink_to("big")
    made = plans.plan("run", run, tier, budget_bytes=MIB)
    assert (made.files, made.all_files) == (0, 2)
    assert any("1 file of which some names lead to another file" in note for note in made.notes)
    made = plans.plan("run", run, tier)
    assert made.files == copy(tier, made.wanted).copied == 2
    assert made.size_bytes == 6 * MIB + 100_000
    again = plans.plan("run", run, tier)
    assert any("6.39 MB of them this run's: they stay" in note for note in again.notes)


def test_hard_links_that_were_parted_since_the_run_take_room_each(
    tier: Tier, tmp_path: Path
) -> None:
    names = {}
    for number in range(8):
        for name in (f"{number}", f"h{number}"):
            (tmp_path / name).write_bytes(bytes(MIB))
            names[f"{tmp_path}/{name}"] = number + 1
    made = plans.plan("run", evidence_of(linked_run(names, MIB)), tier)  # of 10 MiB
    assert (made.files, made.all_files, made.size_bytes) == (10, 16, 10 * MIB)
    assert copy(tier, made.wanted).copied == 10


def test_a_copy_that_another_hard_link_was_staged_under_is_one_of_each(
    tier: Tier, tmp_path: Path
) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
    for number in range(3):
        path = tmp_path / "one" / f"{number}"
        path.write_bytes(bytes([number]) * MIB)
        os.link(path, tmp_path / "two" / f"{number}")
    there = [f"{tmp_path}/one/{number}" for number in range(3)]
    assert copy(tier, [WantedFile(f"{tmp_path}/two/{number}") for number in range(3)]).copied == 3
    made = plans.plan("run", evidence([MIB] * 3, [0.1] * 3, paths=tuple(there)), tier)
    assert any("3.15 MB of them this run's: they stay" in note for note in made.notes)
    (tmp_path / "new").touch()  # with something to copy, room is looked for
    found = copy(
        replace(tier, capacity_bytes=4 * MIB), [*made.wanted, WantedFile(f"{tmp_path}/new")]
    )
    assert (found.copied, found.was_there) == (1, 3)
    with Map(TierPlace(tier).map) as found_map:
        copies = {found_map.copy_of(os.fsencode(path)) for path in there}
    assert copies == {
        os.fsencode(f"{tier.path}/staged{tmp_path}/two/{number}") for number in range(3)
    }


@pytest.mark.parametrize("size", [MIB, MIB + 4096])
def test_a_copy_of_what_was_written_over_is_none_of_the_file(
    tier: Tier, tmp_path: Path, size: int
) -> None:
    paths = [tmp_path / f"{number}" for number in range(8)]
    for path in paths:
        path.write_bytes(bytes(MIB))
    known = evidence([MIB] * 8, [0.1] * 8, paths=tuple(map(str, paths)))
    assert copy(tier, [WantedFile(str(path)) for path in paths]).copied == 8
    assert plans.plan("run", known, tier).files == 8
    for path in paths:
        path.write_bytes(bytes(size))
        os.utime(path, ns=(1, 1))  # not within a tick of what it was
    made = plans.plan("run", known, tier)  # 8 of 10 MiB are taken, by what serves nothing
    assert made.files == 8
    assert any("8.39 MB are staged on fast already, none of them" in note for note in made.notes)
    assert any("copies of 8 files, 8.39 MB, are of what was there before" in n for n in made.notes)
    assert copy(tier, made.wanted).copied == 8
    assert evict(tier, is_stale_only=True)[0] == 0


def test_a_plan_that_takes_the_room_of_stale_copies_can_be_copied(
    tier: Tier, tmp_path: Path
) -> None:
    # 8 of 10 MiB are taken, 6 of them by copies of files that have changed.
    for number in range(16):
        (tmp_path / f"{number}").write_bytes(bytes(MIB))
    paths = tuple(str(tmp_path / f"{number}") for number in range(16))
    copy(tier, [WantedFile(path) for path in paths[:8]])
    for path in paths[:6]:
        os.utime(path, ns=(1, 1))
    made = plans.plan("run", evidence([MIB] * 8, [0.1] * 8, paths=paths[8:]), tier)
    assert made.files == 8
    assert copy(tier, made.wanted).copied == 8
    held = {one.source for one in TierPlace(tier).entries().values()}
    assert held == {*paths[6:]}
    Path(paths[0]).write_bytes(bytes(MIB))
    with pytest.raises(TierError, match="are taken"):
        copy(tier, [WantedFile(paths[0])])
    assert len(TierPlace(tier).entries()) == 10


def test_a_link_that_leads_to_itself_is_gone(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("a")
    assert today.now_of([f"{tmp_path}/a"])["size_bytes"].tolist() == [today.GONE]


def test_what_files_are_is_asked_by_thousands_as_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"{tmp_path}/{number % 7}/{number}" for number in range(2500)]
    for number in range(7):
        (tmp_path / f"{number}").mkdir()
    for number, name in enumerate(names):
        if number % 5:
            Path(name).write_bytes(bytes(number))
    os.symlink(names[1], names[0])
    os.symlink(names[5], names[5])
    os.link(names[2], names[10])
    os.mkfifo(names[15])
    written = os.fsencode(tmp_path) + b"/\xff\xfe"
    Path(os.fsdecode(written)).write_bytes(b"12")
    names += [os.fsdecode(written), f"{tmp_path}/\\xff\\xfe", str(tmp_path), f"{names[1]}/below"]
    whole = today.now_of(names)
    odd = [f"{tmp_path}/a\0b", f"{tmp_path}/\ud800", "", *names[:50]]
    among_odd = today.now_of(odd)

    monkeypatch.setattr(today, "_native", lambda: None)
    assert today.now_of(names).tolist() == whole.tolist()
    assert today.now_of(odd).tolist() == among_odd.tolist()
    status = Path(names[1]).stat()
    assert whole[0].tolist() == whole[1].tolist() == astuple(Identity.of(status))
    assert whole["size_bytes"][:6].tolist() == [1, 1, 2, 3, 4, today.GONE]
    assert whole["size_bytes"][-4:].tolist() == [2, 2, today.GONE, today.GONE]
    assert among_odd["size_bytes"][:4].tolist() == [today.GONE] * 3 + [1]


def test_a_copy_that_another_name_was_staged_under_is_held(tier: Tier, tmp_path: Path) -> None:
    # The run's name is none that the manifest knows: the copy that it read is.
    (tmp_path / "a").write_bytes(bytes(MIB))
    os.link(tmp_path / "a", tmp_path / "b")
    copy(tier, [WantedFile(f"{tmp_path}/a")])
    known = replace(
        evidence([MIB], [0.1], paths=(f"{tmp_path}/b",)),
        resolved=(f"{tier.path}/staged{tmp_path}/a",),
        served_by=("fast",),
    )
    made = plans.plan("run", known, tier)
    assert made.files == 1
    assert made.notes[0].startswith("nothing more to gain: all of these files are staged on fast")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"device": 0}, "lie on fast's own device"),
        ({"blocking_s": 0.0}, "waited for none of their reads"),
        ({"time_s": 1e-7, "open_s": 1e-8}, "no slower than fast would give them"),
        ({"size_bytes": 20 * MIB}, "no file fits into the room"),
    ],
)
def test_where_nothing_is_to_gain_a_plan_says_why(
    tier: Tier, change: dict[str, float], why: str
) -> None:
    known = evidence([MIB] * 2, [0.1] * 2)
    if "device" in change:
        change = {"device": tier.path.stat().st_dev}
    columns = {name: np.full(2, value) for name, value in change.items()}
    made = planned(replace(known, **columns), tier)  # type: ignore[arg-type]
    assert made.gain_s == 0
    assert why in made.notes[0], made.notes
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(planfile.table_of(made))
    said = console.export_text()
    assert "nothing to gain" in said
    assert "removes" not in said


def test_less_than_can_be_told_from_chance_is_nothing_to_gain(tier: Tier) -> None:
    known = evidence([MIB] * 4, [0.1] * 4, [1e-5] * 4)
    made = planned(known, tier)  # 40 µs of 100 s
    assert (made.files, made.gain_s, made.curve, made.compared) == (0, 0.0, (), ())
    assert len(made.notes) == 1
    assert made.notes[0].startswith("nothing to gain: with any of them staged the run is expected")
    assert planned(replace(known, wait_s=0.01), tier).files == 4
    # A budget that holds little of much is no such thing.
    known = evidence([MIB] * 2000, [0.1] * 2000, wait_s=100.0)
    assert planned(known, tier, budget_bytes=MIB).files == 1


def test_of_copies_that_are_all_there_no_time_of_copying_is_told(
    tier: Tier, tmp_path: Path
) -> None:
    (tmp_path / "a").write_bytes(bytes(MIB))
    known = evidence([MIB], [0.1], paths=(f"{tmp_path}/a",), wait_s=0.1)
    copy(tier, [WantedFile(f"{tmp_path}/a")])
    made = planned(known, replace(tier, write_bps=1e9))
    assert planfile._sentence(made).endswith("all of them are there already")


def test_a_tier_that_was_not_measured_says_how(tier: Tier, tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    bare = registry.add("bare", tmp_path / "bare")
    with pytest.raises(TierError, match="penstock tiers measure bare"):
        planned(evidence([1], [1.0]), bare)


@pytest.mark.parametrize(
    ("n_steps", "note"), [(0, "no training was seen"), (3, "no data wait was marked")]
)
def test_a_run_without_waits_is_planned_by_time_in_calls(
    tier: Tier, n_steps: int, note: str
) -> None:
    run = Synthetic()
    run.process(end=200 * MS)
    for number in range(n_steps):
        run.step(number * 50 * MS, (number + 1) * 50 * MS, number)
    run.file("/data/a", size=MIB)
    run.call("read", 0, 50 * MS, path="/data/a", moved=MIB)
    made = planned(evidence_of(run), tier)
    assert made.files == 1
    # 50 ms in calls, less 0.2 ms for the bytes and 0.02 ms for a file on the tier.
    assert made.gain_s == pytest.approx(0.050, rel=0.01)
    assert made.compared[0].gain_s == pytest.approx(0.050, rel=0.01)
    assert [one for one in made.notes if "time in calls stands for wait" in one] == [
        f"{note}{' between steps' if n_steps else ''}: time in calls stands for wait"
    ]


def test_a_plan_is_read_as_it_was_written(tier: Tier, tmp_path: Path) -> None:
    made = planned(evidence_of(two_file_run(True)), tier)
    path = tmp_path / "plan.jsonl"
    planfile.store(made, path)
    assert planfile.is_plan(path)
    assert planfile.load(path) == tuple(made.wanted)
    assert not planfile.is_plan(tmp_path / "tiers.json")


@pytest.mark.parametrize(
    "line",
    [b"{}", b"[]", b'{"path": "rel", "gain_s": 1}', b'{"path": "/a/../b", "gain_s": 1}',
     b'{"path": "/a", "gain_s": NaN}', b"\xff", b'{"path": 3, "gain_s": 1}', b"[" * 100_000],
)  # fmt: skip
def test_a_damaged_plan_is_refused(tier: Tier, tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "plan.jsonl"
    path.write_bytes(b'{"penstock_plan": 1}\n' + line + b"\n")
    with pytest.raises(TierError, match=r"plan\.jsonl"):
        planfile.load(path)


def test_a_path_told_with_escapes_is_found_again(tmp_path: Path) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/caf\xe9")
    Path(name).touch()
    told = f"{tmp_path}/caf\\xe9"
    assert today.real_path(told) == name
    literal = f"{tmp_path}/a\\xe9"
    Path(literal).touch()
    assert today.real_path(literal) == literal
    # A name with both: a byte that is no UTF-8, and what looks like an escape and is none.
    both = f"{tmp_path}/a\\xff\\xzz"
    assert today.now_of([both])["size_bytes"].tolist() == [today.GONE]
    Path(today.real_path(both)).write_bytes(b"123")
    assert today.now_of([both])["size_bytes"].tolist() == [3]
    assert Path(os.fsdecode(bytes(tmp_path) + b"/a\xff\\xzz")).exists()


def test_the_curve_is_drawn_as_a_page_and_as_a_picture(tier: Tier, tmp_path: Path) -> None:
    made = planned(evidence_of(two_file_run(True)), tier)
    for package, name in (("plotly", "curve.html"), ("matplotlib", "curve.svg")):
        pytest.importorskip(package, reason=f"{package} draws it: an extra")
        planfile.picture(made, tmp_path / name)
        assert "data wait removed" in (tmp_path / name).read_text()
    with pytest.raises(TierError, match=r"ends in \.html"):
        planfile.picture(made, tmp_path / "curve.gif")


# The registry


def test_tiers_are_named_kept_and_forgotten(tier: Tier, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    registry.add("slow", other)
    assert [one.name for one in registry.registered()] == ["fast", "slow"]
    assert registry.tier_of("fast") == registry.tier_of(tier.path) == tier
    assert registry.add("fast", tier.path, 5).costs == tier.costs
    assert registry.add("fast", tier.path).capacity_bytes == 5
    registry.remove("slow")
    with pytest.raises(TierError, match=r"fast: is the tier in .*; penstock stage evict fast"):
        registry.add("fast", other)
    registry.remove("fast")
    assert registry.add("fast", other).costs is None
    registry.remove("fast")
    with pytest.raises(TierError, match=r"no such tier \(none yet\)"):
        registry.tier_of("fast")


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=60)
    | st.sampled_from(
        [
            b'{"version": 2, "tiers": {}}',
            b'{"version": 1, "tiers": []}',
            b'{"version": 1, "tiers": {"a": {}}}',
            b'{"version": 1, "tiers": {"a": {"path": "/", "capacity_bytes": -1}}}',
            b'{"version": 1, "tiers": {"a": {"path": "/", "costs": {"open_s": "1"}}}}',
            b'{"version": 1, "tiers": {"a": {"path": "/", "read_bps": 1e999}}}',
            b'{"version": 1, "tiers": {"a": {"path": "/", "mount": 1}}}',
        ]
    )
)
def test_a_damaged_registry_says_so(text: bytes) -> None:
    with pytest.MonkeyPatch.context() as patch, __import__("tempfile").NamedTemporaryFile() as file:
        patch.setenv(registry.ENVIRONMENT, file.name)
        Path(file.name).write_bytes(text)
        with pytest.raises(TierError, match="penstock tiers add"):
            registry.registered()


def test_a_folder_is_one_tier_and_one_that_takes_no_file_is_none(tier: Tier) -> None:
    with pytest.raises(TierError, match="is the tier fast, and copies have one owner"):
        registry.add("two", tier.path)
    within = tier.path / "within"
    within.mkdir()
    for folder, how in ((within, "lies in"), (tier.path.parent, "holds")):
        with pytest.raises(TierError, match=f"{how} the tier fast .*, and copies have one owner"):
            registry.add("three", folder)
    with pytest.raises(TierError, match="cannot be written"):
        registry.add("four", "/proc")
    assert [one.name for one in registry.registered()] == ["fast"]


def test_costs_are_those_of_a_clock_that_counts(tmp_path: Path) -> None:
    ticks = itertools.count()
    found = registry.measure_costs(tmp_path, lambda: float(next(ticks)))
    assert found.open_s == 1.0
    assert found.byte_s == 0.0
    assert found.call_s == 1.0
    assert not list(tmp_path.iterdir())


def test_wanted_is_a_plain_value() -> None:
    assert WantedFile("/a") == WantedFile("/a", 0.0)


# How long copying takes


def read_through(paths: list[Path]) -> Evidence:
    """What a run knows that read these files one after the other."""
    open_s, time_s = [], []
    for path in paths:
        begun_s = time.perf_counter()
        descriptor = os.open(path, os.O_RDONLY)
        open_s.append(time.perf_counter() - begun_s)
        while os.read(descriptor, MIB):
            pass
        time_s.append(time.perf_counter() - begun_s)
        os.close(descriptor)
    known = evidence([path.stat().st_size for path in paths], time_s, paths=tuple(map(str, paths)))
    return replace(known, open_s=np.array(open_s))


@needs_fuse
@pytest.mark.alone
def test_copying_is_said_to_take_about_as_long_as_it_takes(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(sources, "OTHER_TICK_NS", 0)  # just made, and not to be waited for
    aside = tempfile.TemporaryDirectory(dir="/dev/shm")  # where syncing waits for nobody else
    request.addfinalizer(aside.cleanup)
    registry.add("aside", Path(aside.name))
    measured = registry.set_measured("aside", tier.costs or FREE, [])
    fast = replace(measured, write_bps=1e9)
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(60):
        (folder / f"{number}").write_bytes(bytes(50 * KIB))
    with slow(folder, latency_s=0.02) as found:
        known = read_through(sorted(Path(found.path).iterdir()))
    with slow(folder, latency_s=0.02) as found:
        names = [f"{found.path}/{Path(path).name}" for path in known.paths]
        known = replace(known, paths=tuple(names))
        with_ceiling = planned(known, fast, slow_bps=1e9)
        without = planned(known, fast)
    with slow(folder, latency_s=0.02) as found:
        took = copy(fast, [WantedFile(f"{found.path}/{n}") for n in range(60)])
    assert took.copied == 60
    assert with_ceiling.copy_s == with_ceiling.copy_least_s
    assert with_ceiling.copy_s is not None
    assert without.copy_s is not None
    assert without.copy_least_s is not None
    # By bytes and ceilings alone it would be 3 ms.
    assert took.seconds / 2.5 < with_ceiling.copy_s < 2.5 * took.seconds
    assert without.copy_least_s / 2.5 < took.seconds < 2.5 * without.copy_s


def test_what_is_not_known_of_copying_is_not_said(tier: Tier) -> None:
    known = evidence([MIB, MIB], [0.1, 0.1], wait_s=1.0)
    made = planned(known, tier)  # the tier's own ceiling was not measured
    assert made.copy_s is None
    assert "the time of copying is not known" in planfile._sentence(made)
    fast = replace(tier, write_bps=1e9)
    made = planned(replace(known, read_bytes=np.zeros(2)), fast)
    assert made.copy_s is None  # no call read them
    made = planned(known, fast)
    assert made.copy_least_s is not None
    assert made.copy_s is not None
    assert made.copy_s >= 0.2
    assert made.copy_least_s < made.copy_s
    assert "penstock ceiling RUN tells more" in planfile._sentence(made)
    made = planned(known, fast, slow_bps=1e6)
    assert made.copy_s == made.copy_least_s
    assert made.copy_s == pytest.approx(2.1, rel=0.3)  # 2 MiB at 1 MB/s
