"""The judge of `bench diagnosis`: what counts as right, as not judged and as confidently wrong."""

import pytest

from penstock.bench import diagnosis
from penstock.measures import measure
from penstock.report import Report, report_of
from synthetic import MS, Synthetic

STEP = 100 * MS


def waiting(wait_ms: float, *, op: str = "read", is_loader: bool = True) -> Report:
    """40 steps of 100 ms; in each the loop waits for a fetch that is all one call."""
    run = Synthetic()
    run.process(1, end=40 * STEP + MS)
    for number in range(40):
        start, end = number * STEP, number * STEP + int(wait_ms * MS)
        if is_loader:
            run.fetch(start, end, number, process=1, cpu=0, delay=0)
            run.wait(start, end, number)
        if op == "read":
            run.call("read", start, end, moved=1000)
        elif op == "receive":
            run.blocked("receive", start, end, descriptor="socket:")
        run.step(start, start + STEP, number)
    return report_of(measure(run))


def clocks(wait: float) -> dict[str, float]:
    return {"wall_s": 4.0, "wait_s": 4.0 * wait, "save_s": 0.0}


def test_a_report_that_agrees_with_the_clocks_is_right() -> None:
    row = diagnosis.judged(waiting(60), clocks(0.6), "storage")
    assert (row["is_judged"], row["is_level"], row["is_cause"], row["is_wrong"]) == (1, 1, 1, 0)
    assert row["off"] == pytest.approx(0, abs=0.02)


def test_a_wrong_level_is_confidently_wrong() -> None:
    row = diagnosis.judged(waiting(1), clocks(0.6), "storage")
    assert (row["is_judged"], row["is_level"], row["is_wrong"]) == (1, 0, 1)


def test_a_wrong_cause_is_confidently_wrong() -> None:
    row = diagnosis.judged(waiting(60), clocks(0.6), "decode")
    assert (row["is_level"], row["is_cause"], row["is_wrong"]) == (1, 0, 1)


def test_a_cause_that_is_left_open_is_not_right_and_not_wrong() -> None:
    row = diagnosis.judged(waiting(60, op=""), clocks(0.6), "storage")
    assert (row["is_cause"], row["is_wrong"]) == (0, 0)


def test_a_report_that_does_not_judge_is_not_wrong() -> None:
    row = diagnosis.judged(waiting(0, op="", is_loader=False), clocks(0.9), "storage")
    assert (row["is_judged"], row["is_level"], row["is_wrong"]) == (0, None, 0)
    assert row["told"] is None


def test_the_network_is_the_cause_of_a_remote_job() -> None:
    row = diagnosis.judged(waiting(60, op="receive"), clocks(0.6), "remote")
    assert (row["is_cause"], row["cause"]) == (1, "network")


@pytest.mark.parametrize(("share", "right"), [(0.04, True), (0.06, True), (0.09, False)])
def test_a_level_is_right_as_near_to_its_limit_as_clocks_can_tell(
    share: float, right: bool
) -> None:
    assert diagnosis.judged(waiting(4), clocks(share), "storage")["is_level"] == int(right)


def test_twenty_jobs_are_the_slice_of_ci() -> None:
    cases = diagnosis.cases_of(diagnosis.Settings(scale="ci"))
    assert len(cases) == 20
    assert {case["loader"] for case in cases} == set(diagnosis.LOADERS)


def test_the_whole_study_has_every_loader_with_every_fault() -> None:
    cases = diagnosis.cases_of(diagnosis.Settings(scale="small"))
    assert len(cases) * diagnosis.Settings().repeats >= 120
    assert len({tuple(case.values()) for case in cases}) == len(cases)
