"""A verdict is withheld where the run does not show what the training waited for."""

import pytest

from penstock.explain.compare import compare, limits
from penstock.explain.measures import measure
from penstock.explain.report import Report, from_json, nothing_found, report_of, to_json
from synthetic import MS, Synthetic

STEP = 100 * MS


def _report(run: Synthetic) -> Report:
    return report_of(measure(run))


def _steps(run: Synthetic, n: int, waits_ms: float | None, fed: int | None = None) -> Synthetic:
    """n steps of 100 ms; the first `fed` of them (all: None) begin with a wait for a batch."""
    for number in range(n):
        start = number * STEP
        if waits_ms is not None and (fed is None or number < fed):
            run.wait(start, start + int(waits_ms * MS), number)
        run.step(start, start + STEP, number)
    run.process(1, end=n * STEP + MS)
    return run


def test_steps_without_a_loader_are_not_judged() -> None:
    report = _report(_steps(Synthetic(), 50, None))
    assert (report.verdict.level, report.verdict.headline) == ("unknown", "NOT JUDGED")
    assert report.verdict.stall.state == "not measured"
    assert "no loader that Penstock knows" in report.verdict.sentence
    facts = {fact.key: fact.number for fact in report.stretches}
    assert facts["data_wait_s"].value is None
    assert {segment.key for segment in report.wall} == {"unfed"}


def test_rules_about_waits_are_not_judged_without_a_loader() -> None:
    report = _report(_steps(Synthetic(), 50, None))
    states = {check.rule: check.state for check in report.checks}
    assert states["D2"] == states["W1"] == states["D9"] == "not judged"
    assert states["C1"] == "fine"


@pytest.mark.parametrize("limit", ["max_stall", "max_storage"])
def test_a_limit_is_not_kept_by_a_run_without_a_loader(limit: str) -> None:
    (found,) = limits(_report(_steps(Synthetic(), 50, None)), **{limit: 0.10})
    assert found.state == "not measured"


def test_a_loader_in_every_step_is_judged_as_before() -> None:
    report = _report(_steps(Synthetic(), 50, 1))
    assert report.verdict.level == "not"
    assert report.verdict.stall.state == "derived"
    assert limits(report, max_stall=0.10)[0].state == "kept"


def test_bounds_on_the_same_level_are_a_verdict() -> None:
    """20 of 50 steps wait for 70 % of their time: 28 % at least, whatever the others did."""
    report = _report(_steps(Synthetic(), 50, 70, fed=20))
    assert report.verdict.level == "highly"
    assert "at most 88 %" in report.verdict.sentence
    assert report.verdict.stall.state == "incomplete"
    assert report.verdict.stall_most.value == pytest.approx(0.88, abs=0.01)
    assert limits(report, max_stall=0.20)[0].state == "passed"
    assert limits(report, max_stall=0.50)[0].state == "not measured"
    assert limits(report, max_stall=0.90)[0].state == "kept"


def test_bounds_on_two_levels_are_no_verdict() -> None:
    """2 of 50 steps wait, the first before the training begins: 1.4 % at least, 99 % at most."""
    report = _report(_steps(Synthetic(), 50, 70, fed=2))
    assert report.verdict.level == "unknown"
    assert "at least 1 % and at most 99 % of its time" in report.verdict.sentence


def test_one_step_without_a_batch_changes_nothing() -> None:
    report = _report(_steps(Synthetic(), 100, 1, fed=99))
    assert report.verdict.level == "not"
    assert report.verdict.stall.state == "derived"


def test_a_withheld_verdict_is_the_same_after_json() -> None:
    report = _report(_steps(Synthetic(), 50, 70, fed=2))
    assert from_json(to_json(report)) == report


def test_a_stall_that_went_out_of_sight_is_no_improvement() -> None:
    seen, unseen = (_report(_steps(Synthetic(), 50, waits)) for waits in (70, None))
    stall = {delta.key: delta for delta in compare([seen], [unseen]).deltas}["stall"]
    assert stall.b is None
    assert stall.change not in ("better", "worse")


def test_a_wait_without_a_finding_names_its_largest_part() -> None:
    report = _report(_steps(Synthetic(), 50, 70))
    assert report.verdict.level == "highly"
    assert not report.findings
    assert "not observed" in nothing_found(report)
