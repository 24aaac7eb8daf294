"""The loss of a training is one number: verdict, limits, comparison and watch agree."""

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from findings_examples import EXAMPLES, example
from penstock.explain.compare import compare, limits
from penstock.explain.live import Stall
from penstock.explain.measures import measure
from penstock.explain.report import Report, report_of
from penstock.explain.verdict import HIGHLY, MODERATELY
from penstock.runs.run import open_run
from stepping import Array, Ranks, apart, even, together
from synthetic import MS, Synthetic

STEP = 100 * MS


def reading_itself(ms: float, *, steps: int = 50, wait_ms: float = 1.0) -> Synthetic:
    """A thread that takes a batch from a loader and then reads for `ms` milliseconds, each step."""
    run = Synthetic()
    for number in range(steps):
        start = number * STEP
        end = start + int(wait_ms * MS)
        run.wait(start, end, number)
        if ms:
            run.call("read", end, end + int(ms * MS), moved=100_000, path=f"/data/{number}")
        run.step(start, start + STEP, number)
    run.process(1, end=steps * STEP + MS)
    return run


def report(run: Synthetic) -> Report:
    return report_of(measure(run))


def test_the_training_threads_own_file_calls_are_part_of_what_is_lost() -> None:
    known = report(reading_itself(40))
    assert known.verdict.headline == "HIGHLY I/O BOUND"
    assert known.verdict.stall.value == pytest.approx(0.41, abs=0.01)
    (kept,) = limits(known, max_stall=0.10)
    assert kept.state == "passed"
    assert "stall 41" in kept.says


def test_a_thread_that_reads_nothing_itself_keeps_the_limit() -> None:
    known = report(reading_itself(0))
    assert known.verdict.stall.value == pytest.approx(0.01, abs=0.005)
    assert limits(known, max_stall=0.10)[0].state == "kept"


def test_a_comparison_counts_them() -> None:
    """Reads that move from the training thread to a loader add no loss."""
    made = compare([report(reading_itself(40))], [report(reading_itself(0, wait_ms=5))])
    assert made.delta("stall").change == "better"
    assert made.delta("calls_step_s").a == pytest.approx(0.04, rel=0.02)
    assert made.delta("calls_step_s").change == "better"


def test_live_numbers_count_them() -> None:
    assert Stall(wall_s=10, data_wait_s=1, own_s=3).stall == pytest.approx(0.4)
    assert Stall(wall_s=10, data_wait_s=1, own_s=3, is_fed=False).stall is None


def golden(tmp_path: Path) -> Report:
    packed = Path(__file__).parent / "logs" / "v1.log.gz"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "4711.log").write_bytes(gzip.decompress(packed.read_bytes()))
    return report_of(measure(open_run(tmp_path / "run")))


RUNS: dict[str, Callable[[], Report]] = {
    **{rule: lambda rule=rule: report_of(example(rule)) for rule in EXAMPLES},  # type: ignore[misc]
    **{
        f"{wait} {own}": lambda wait=wait, own=own: report(reading_itself(own, wait_ms=wait))  # type: ignore[misc]
        for wait in (1, 8)
        for own in (3, 12, 30)
    },
}


def agrees(known: Report) -> None:
    """Compare the level of the verdict with the states of two limits."""
    (above,) = limits(known, max_stall=HIGHLY / 2)
    (below,) = limits(known, max_stall=HIGHLY)
    if known.verdict.level == "highly":
        assert above.state in ("passed", "not measured")
    if known.verdict.level == "not" and known.verdict.stall_most.value is None:
        assert (known.verdict.stall.value or 0.0) < MODERATELY
        assert below.state == "kept"
    if above.state == "passed":
        assert known.verdict.level != "not"


@pytest.mark.parametrize("name", RUNS)
def test_verdict_and_limits_agree(name: str) -> None:
    agrees(RUNS[name]())


def test_verdict_and_limits_agree_on_a_log_of_the_first_version(tmp_path: Path) -> None:
    agrees(golden(tmp_path))


# Ranks that wait for each other: the loss of the job is the loss of the slowest rank.


def ranks_of(
    own_ms: tuple[float, ...], *, unfed: tuple[int, ...] = (), is_by_turns: bool = False
) -> tuple[Synthetic, Ranks]:
    """Each rank waits 1 ms, reads for own_ms[rank], computes 40 ms, and then meets the other ranks.

    is_by_turns: one rank reads per step, in turn.  unfed: ranks without a recorded batch.
    """
    n = len(own_ms)

    def own(step: int) -> Array:
        turn = np.arange(n) == step % n if is_by_turns else np.ones(n)
        return np.array(own_ms) * turn

    steps = iter(range(300))
    ranks = together(
        n, 300, even(0.5, 1.5), lambda rng, n: rng.uniform(38, 42, n) + own(next(steps))
    )
    run = Synthetic()
    for rank in range(n):
        at, waits = (ranks.ends[:, rank] * MS).astype(int), (ranks.waits[:, rank] * MS).astype(int)
        run.process(1 + rank, end=int(at[-1]) + MS, rank=rank, world_size=n)
        for step, wait in enumerate(waits):
            fed = int(at[step] + wait)
            if rank not in unfed:
                run.wait(int(at[step]), fed, step, process=1 + rank)
            if rank not in unfed and (ms := own(step)[rank]):
                run.call("read", fed, fed + int(ms * MS), process=1 + rank, moved=4096)
            run.step(fed, int(at[step + 1]), step, process=1 + rank)
    return run, ranks


@pytest.mark.parametrize("is_by_turns", [False, True], ids=["one", "by turns"])
def test_own_calls_of_the_rank_that_holds_up_all_are_what_the_job_lost(is_by_turns: bool) -> None:
    own = (25.0, 25.0) if is_by_turns else (0.0, 25.0)
    run, _ = ranks_of(own, is_by_turns=is_by_turns)
    measures = measure(run)
    known = report_of(measures)
    assert measures.coupling.how == "together"
    assert known.verdict.level == "highly"
    assert known.verdict.stall.value == pytest.approx(26 / 67, abs=0.02)
    assert measures.mean_stall.value == pytest.approx(13.5 / 67, abs=0.02)
    assert known.verdict.storage.value == pytest.approx(25 / 67, abs=0.02)
    assert limits(known, max_stall=0.30)[0].state == "passed"
    assert sum(row.lost_s or 0.0 for row in measures.ranks) == pytest.approx(
        (known.verdict.stall.value or 0.0) * (measures.training.wall_s or 0.0), rel=0.01
    )
    if not is_by_turns:
        assert "rank 1's own file calls" in known.verdict.sentence


def test_own_calls_of_ranks_that_do_not_meet_are_a_mean() -> None:
    ranks = apart(2, 300, even(0.5, 1.5), even(40, 90))
    run = ranks.run()
    for step, (at, wait) in enumerate(zip(ranks.ends[:-1, 1], ranks.waits[:, 1], strict=True)):
        fed = int((at + wait) * MS)
        run.call("read", fed, fed + 20 * MS, process=2, moved=4096, path=f"/data/{step}")
    measures = measure(run)
    assert measures.coupling.how == "apart"
    assert measures.stall_fraction.value == pytest.approx(measures.mean_stall.value)
    assert measures.stall_fraction.value == pytest.approx(11 / 66, abs=0.03)


def test_time_of_unknown_use_is_bounded_by_the_rank_that_may_hold_up_all() -> None:
    """Rank 1 has no known loader: the job may wait all the time, not half the time."""
    run, _ = ranks_of((0.0, 0.0), unfed=(1,))
    measures = measure(run)
    assert measures.stall_most.value == pytest.approx(1, abs=0.05)
    assert limits(report_of(measures), max_stall=0.60)[0].state == "not measured"


# A thread that reads in a C library may hold the interpreter lock meanwhile.


def locked(op: str = "fread", path_class: str = "data", ms: float = 30) -> Synthetic:
    """In each step a thread of a loader is in a call for so long, and the training thread waits
    for the interpreter lock."""
    run = reading_itself(0)
    path = "/data/all.npy"
    run.file(path, path_class=path_class)
    for number in range(50):
        start = number * STEP + 10 * MS
        end = start + int(ms * MS)
        run.call(op, start, end, thread=7, moved=4096, path=path)
        run.blocked("cond_wait", start + MS, end)
    return run


def test_a_lock_that_a_reading_thread_may_hold_is_no_computing() -> None:
    known = report(locked())
    assert known.verdict.headline == "NOT JUDGED"
    assert "waited for the interpreter lock while another thread" in known.verdict.sentence
    assert known.verdict.stall_most.value == pytest.approx(0.30, abs=0.02)
    for limit in ({"max_stall": 0.10}, {"max_storage": 0.10}):
        assert limits(known, **limit)[0].state == "not measured"


@pytest.mark.parametrize(
    "more",
    [{"op": "read"}, {"path_class": "library"}, {"ms": 1.5}],
    ids=["read", "no data", "short"],
)
def test_a_lock_that_no_reading_thread_holds_is_no_doubt(more: dict[str, Any]) -> None:
    """CPython releases it in its own calls; Python threads that compute take turns."""
    known = report(locked(**more))
    assert known.verdict.level == "not"
    assert known.verdict.stall_most.value is None
