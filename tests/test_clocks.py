"""Clocks of hosts made one: offsets that are known beforehand are found, and never beyond the error
that is told with them."""

import json
from pathlib import Path

import numpy as np
import pytest

import logwriter
from penstock.explain.measures import measure
from penstock.runs.clocks import Clock, ClockSteps, MeasuredOffset, align
from penstock.runs.run import Run, open_run

MS = 1_000_000
HOUR = 3_600 * 1000 * MS


def trained(
    n: int = 50, *, ranks: int = 2, step_ms: float = 100, jitter_ms: float = 1, seed: int = 1
) -> list[ClockSteps]:
    """Ranks that exchange gradients in each step: none leaves it before all have come."""
    rng = np.random.default_rng(seed)
    begun = np.zeros(ranks)
    starts, ends = [], []
    for _ in range(n):
        met = (begun + step_ms * MS * rng.uniform(0.5, 1.0, ranks)).max()
        end = met + jitter_ms * MS * rng.uniform(0, 1, ranks)
        starts.append(begun)
        ends.append(end)
        begun = end
    return [
        ClockSteps(np.arange(n), np.array(starts)[:, r].astype(np.int64),
              np.array(ends)[:, r].astype(np.int64))
        for r in range(ranks)
    ]  # fmt: skip


def off_by(steps: ClockSteps, ns: int) -> ClockSteps:
    """As a clock that is so much ahead shows them."""
    return ClockSteps(steps.number, steps.start_ns + ns, steps.end_ns + ns)


@pytest.mark.parametrize("ahead_ns", [0, 3 * MS, -250 * MS, 7 * HOUR])
@pytest.mark.parametrize("seed", range(5))
def test_steps_taken_together_tell_how_far_a_clock_is_off(ahead_ns: int, seed: int) -> None:
    here, there = trained(seed=seed)
    clock = align({"a": [here], "b": [off_by(there, ahead_ns)]}, "a")["b"]
    assert clock.how == "steps"
    assert clock.error_ns is not None
    assert abs(clock.moved_ns + ahead_ns) <= clock.error_ns  # the promise
    assert abs(clock.moved_ns + ahead_ns) <= 1 * MS  # and what the jitter allows
    assert clock.error_ns <= 110 * MS


def test_a_rank_that_always_leaves_later_stays_within_the_error() -> None:
    """It looks like an offset, and the spread is small; the error knows better."""
    here, there = trained(jitter_ms=0.1)
    late = ClockSteps(there.number, there.start_ns + 20 * MS, there.end_ns + 20 * MS)
    clock = align({"a": [here], "b": [late]}, "a")["b"]
    assert clock.spread_ns is not None
    assert clock.spread_ns < 1 * MS
    assert clock.error_ns is not None
    assert clock.error_ns >= 20 * MS


def test_ranks_that_take_no_steps_together_leave_their_clocks_alone() -> None:
    (here,), (there,) = trained(ranks=1, seed=1), trained(ranks=1, seed=2)
    assert align({"a": [here], "b": [there]}, "a")["b"] == Clock("wall clock")


def test_steps_that_only_keep_pace_are_not_taken_together() -> None:
    """No step ends before the other host has begun it, and yet nobody waits for the other."""
    rng = np.random.default_rng(1)
    ends = np.arange(1, 51) * 100 * MS
    loose = (ends + rng.uniform(-40, 40, 50) * MS).astype(np.int64)
    here, there = (
        ClockSteps(np.arange(50), np.concatenate([[0], one[:-1]]), one) for one in (ends, loose)
    )
    assert align({"a": [here], "b": [there]}, "a")["b"].how == "wall clock"


@pytest.mark.parametrize("seed", range(20))
def test_ranks_of_one_pace_that_begin_apart_keep_their_clocks(seed: int) -> None:
    """Steps of 50 ms and a little, on clocks that are right, two seconds apart: they end together
    only by number."""
    rng = np.random.default_rng(seed)
    hosts = []
    for late_ms in (0, 2000):
        ends = (late_ms + np.cumsum(50 + rng.uniform(0, 2, 60))) * MS
        start = np.concatenate([[late_ms * MS], ends[:-1]])
        hosts.append(ClockSteps(np.arange(60), start.astype(np.int64), ends.astype(np.int64)))
    assert align({"a": [hosts[0]], "b": [hosts[1]]}, "a")["b"] == Clock("wall clock")


@pytest.mark.parametrize("n", [0, 4])
def test_few_steps_tell_nothing(n: int) -> None:
    here, there = trained(n) if n else ([], [])
    of = {"a": [here] if n else [], "b": [there] if n else []}
    assert align(of, "a")["b"] == Clock("wall clock")


def test_steps_of_other_numbers_are_not_compared() -> None:
    here, there = trained()
    shifted = ClockSteps(there.number + 1, there.start_ns, there.end_ns)
    assert align({"a": [here], "b": [shifted]}, "a")["b"].how == "wall clock"


def test_what_messages_measured_counts_where_it_is_nearer() -> None:
    here, there = trained()
    of = {"a": [here], "b": [off_by(there, 5 * MS)]}
    told = align(of, "a", {"b": MeasuredOffset(-5 * MS, 100_000)})["b"]
    assert (told.how, told.moved_ns, told.error_ns) == ("measured", -5 * MS, 100_000)
    assert align(of, "a", {"b": MeasuredOffset(-5 * MS, HOUR)})["b"].how == "steps"
    assert align({"a": [], "b": []}, "a", {"b": MeasuredOffset(7, 9)})["b"].moved_ns == 7


# Of whole runs


def written(
    folder: Path, ahead_s: float, *, together: bool = True, facts: dict[str, object] | None = None
) -> None:
    """Two hosts that train together, the second one's wall clock so much ahead; its CLOCK_MONOTONIC
    began at another time."""
    steps = trained(20) if together else [trained(20, ranks=1, seed=s)[0] for s in (1, 2)]
    for number, own in enumerate(steps):
        process = logwriter.Process(
            pid=100 + number,
            start_ns=logwriter.START_NS * (1 + number),
            start_ticks=logwriter.START_NS * (1 + number),
            unix_s=ahead_s * number,
            header={"rank": number, "local_rank": 0, "world_size": 2,
                    "host": f"node{number}".encode(), "boot_id": bytes([number + 1] * 16)},
        )  # fmt: skip
        for index, start, end in zip(own.number, own.start_ns, own.end_ns, strict=True):
            process.step(int(index), int(start), int(end - start), b=1)
            process.call("read", int(start), 1000, f"/data/{number}", asked=10, moved=10)
        process.write(folder, number)
    (folder / "run.json").write_text(json.dumps(facts or {}))


def ends(run: Run) -> list[tuple[int, int, int]]:
    return run.sql(
        "SELECT process, min(start_ns), max(start_ns + duration_ns) FROM spans WHERE kind = 'step'"
        " GROUP BY 1 ORDER BY 1"
    )


@pytest.mark.parametrize("ahead_s", [0.003, -3 * 3600.0, 5 * 3600.0])
def test_a_run_whose_hosts_clocks_differ_is_shown_on_one(tmp_path: Path, ahead_s: float) -> None:
    written(tmp_path, ahead_s)
    with open_run(tmp_path) as run:
        (_, first, last), (_, other_first, other_last) = ends(run)
        assert abs(first - other_first) <= 2 * MS
        assert abs(last - other_last) <= 2 * MS
        # All that a process did moved with its steps, and the run begins where its first one does.
        assert run.sql("SELECT count(*) FROM events WHERE step IS NULL AND op = 'read'") == [(0,)]
        assert run.sql("SELECT min(start_ns) FROM processes") == [(0,)]
        reference, moved = measure(run).clocks
    assert (reference.host, reference.how, moved.how) == ("node0", "reference", "steps")
    assert moved.error_s is not None
    assert abs(moved.moved_s + ahead_s) <= moved.error_s
    assert moved.apart_s is None


def test_clocks_hours_apart_that_nothing_aligns_are_said_and_left(tmp_path: Path) -> None:
    written(tmp_path, 3 * 3600.0, together=False)
    with open_run(tmp_path) as run:
        _, other = measure(run).clocks
        (_, first, _), (_, other_first, _) = ends(run)
    assert (other.how, other.moved_s, other.error_s) == ("wall clock", 0, None)
    assert other.apart_s is not None
    assert other.apart_s > 10_000
    assert other_first - first == 3 * HOUR


def test_a_measured_offset_of_the_run_file_counts(tmp_path: Path) -> None:
    # By their monotonic clocks: the second host's began START_NS earlier and is 3 hours wrong.
    told = {"boot_id": bytes([2] * 16).hex(), "other_boot_id": bytes([1] * 16).hex(),
            "offset_ns": -logwriter.START_NS, "error_ns": 50_000}  # fmt: skip
    written(tmp_path, 3 * 3600.0, together=False, facts={"clock": told})
    with open_run(tmp_path) as run:
        _, other = measure(run).clocks
        (_, first, _), (_, other_first, _) = ends(run)
    assert (other.how, other.error_s) == ("measured", 5e-5)
    assert other.moved_s == -3 * 3600
    assert abs(other_first - first) <= 2 * MS


@pytest.mark.parametrize(
    "clock", [{}, {"boot_id": 5}, {"boot_id": "a", "other_boot_id": "b", "offset_ns": 1 << 70,
              "error_ns": 1}, {"boot_id": "a", "other_boot_id": "b", "offset_ns": 1,
              "error_ns": -1}, {"boot_id": "a", "other_boot_id": "b", "offset_ns": True,
              "error_ns": None}],
)  # fmt: skip
def test_a_damaged_offset_says_nothing(tmp_path: Path, clock: dict[str, object]) -> None:
    written(tmp_path, 0.003, facts={"clock": clock})
    with open_run(tmp_path) as run:
        assert measure(run).clocks[1].how == "steps"


def test_one_host_has_one_clock(tmp_path: Path) -> None:
    process = logwriter.Process()
    process.step(0, 0, 10)
    process.write(tmp_path)
    with open_run(tmp_path) as run:
        assert measure(run).clocks == ()


def test_one_long_step_does_not_make_hosts_take_their_steps_together() -> None:
    """How far apart steps may end is a share of a usual step: a step of an hour (a save, a pause)
    widens it for none of the others."""
    n = 60
    length = np.random.default_rng(1).integers(70 * MS, 130 * MS, n)
    length[30] = HOUR
    ends = np.cumsum(length)
    here = ClockSteps(np.arange(n), ends - length, ends)
    apart = np.where(np.arange(n) % 2, 40 * MS, -40 * MS)  # of no exchange: one is early or late
    there = ClockSteps(np.arange(n), here.start_ns + apart, here.end_ns + apart)
    assert align({"a": [here], "b": [there]}, "a")["b"].how == "wall clock"
    near = ClockSteps(np.arange(n), here.start_ns + apart // 20, here.end_ns + apart // 20)
    assert align({"a": [here], "b": [near]}, "a")["b"].how == "steps"


def test_clocks_that_run_apart_are_not_made_one_because_of_one_long_step() -> None:
    """The spread is held against a usual step: here 40 ms in steps of some 75 ms."""
    here, there = trained(n=100)
    long_ns = np.where(np.arange(100) >= 50, 1000 * MS, 0)  # what ends after a step of one second
    drift_ns = np.linspace(0, 50 * MS, 100).astype(np.int64)
    before = long_ns * (np.arange(100) > 50)
    slow = ClockSteps(here.number, here.start_ns + before, here.end_ns + long_ns)
    apart = ClockSteps(
        there.number, there.start_ns + before + drift_ns, there.end_ns + long_ns + drift_ns
    )
    assert align({"a": [slow], "b": [apart]}, "a")["b"].how != "steps"
    still = ClockSteps(there.number, there.start_ns + before, there.end_ns + long_ns)
    assert align({"a": [slow], "b": [still]}, "a")["b"].how == "steps"
