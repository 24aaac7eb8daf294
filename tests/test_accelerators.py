"""A wait of the step loop while the accelerator still works on earlier steps costs nothing.

The shares are those of trainings on an H100 (lab/benchmarks/gpu.py): a loop that reads no loss
waits 61 % of its time while the GPU works 98 % of it.
"""

import pytest

from penstock.explain.measures import measure
from penstock.explain.report import Report, report_of
from synthetic import MS, Synthetic

S = 1000 * MS


def training(wait_ms: int, busy: float, processes: int | None = 1) -> Report:
    """Ten seconds of steps of 100 ms, each with a wait; the accelerator works for `busy` of it."""
    run = Synthetic()
    run.file("/data/a.bin", size=500_000)
    run.wait(0, MS, 0)
    for number in range(100):
        start = number * 100 * MS + MS
        batch = start + wait_ms * MS
        run.wait(start, batch, number + 1)
        run.call("pread", start, batch, path="/data/a.bin", moved=4096)
        run.step(batch, start + 100 * MS, number)
    run.process(1, end=10 * S + MS)
    alone = {} if processes is None else {"processes": float(processes)}
    for second in range(11):
        share = busy if second else 0.0
        run.sample(second * S + MS, "accelerator", "0", busy_share=share, memory_share=0.5, **alone)
    return report_of(measure(run))


def test_a_wait_that_the_accelerator_hides_is_no_input_bound() -> None:
    verdict = training(61, 0.98).verdict
    assert (verdict.level, verdict.headline) == ("not", "NOT I/O BOUND")
    assert "at most 2 % of the training time is lost" in verdict.sentence
    assert verdict.sentence.startswith("61 % of the training waits on storage")
    assert verdict.max_speedup.value == pytest.approx(1.02, abs=0.005)


def test_a_wait_that_the_accelerator_hides_in_part_is_told_by_bounds() -> None:
    """It waits 84 % and the accelerator works 41 %: 43 % to 59 % are lost."""
    verdict = training(84, 0.41).verdict
    assert verdict.level == "highly"
    assert "43 % to 59 % of the training time is lost" in verdict.sentence


def test_bounds_of_two_levels_are_not_judged() -> None:
    """It waits 61 %, the accelerator works 65 %: no time, or 35 %, may be lost."""
    verdict = training(61, 0.65).verdict
    assert (verdict.level, verdict.headline) == ("unknown", "NOT JUDGED")
    assert "at most 35 % of the training time is lost" in verdict.sentence


@pytest.mark.parametrize(("wait_ms", "busy"), [(80, 0.05), (30, 0.65), (80, 0.20)])
def test_a_wait_in_which_the_accelerator_is_idle_is_judged_by_the_loops_clock(
    wait_ms: int, busy: float
) -> None:
    verdict = training(wait_ms, busy).verdict
    assert verdict.headline.startswith("HIGHLY I/O BOUND")
    assert "lost" not in verdict.sentence


@pytest.mark.parametrize("processes", [None, 0, 2])
def test_an_accelerator_that_others_may_use_says_nothing(processes: int | None) -> None:
    """Without the number of processes; where NVML sees none; beside another program."""
    verdict = training(61, 0.98, processes).verdict
    assert verdict.headline.startswith("HIGHLY I/O BOUND")
    assert "lost" not in verdict.sentence


def test_a_wait_that_costs_nothing_is_no_gain_of_a_finding() -> None:
    hidden, idle = training(61, 0.98), training(61, 0.0)
    assert idle.findings
    assert max((row.share.value or 0.0 for row in hidden.findings), default=0.0) < 0.03
    assert max(row.share.value or 0.0 for row in idle.findings) > 0.3
