"""A rank that left no log, or one that cannot be read, is in no number, and every verdict, rule and
limit says so."""

import os
import subprocess
from pathlib import Path

import pytest

from fixtures import PENSTOCK
from penstock.explain.compare import limits
from penstock.explain.measures import measure
from penstock.explain.report import Report, report_of
from penstock.runs.run import open_run
from stepping import MS, Ranks, apart, even, one_slow, together
from synthetic import Synthetic

COMPUTE = even(20, 24)
BUSY = together(4, 40, even(0, 0.001), COMPUTE)


def limit_of(report: Report, most: float) -> str:
    (limit,) = limits(report, max_stall=most)
    return limit.state


def test_no_level_and_nothing_fine_without_a_rank() -> None:
    report = report_of(measure(BUSY.run(lacks=2)))
    assert report.verdict.headline.upper() == "NOT JUDGED"
    assert "1 of 4 ranks left no log here" in report.verdict.sentence
    assert limit_of(report, 0.1) == "not measured"
    states = {check.rule: check.state for check in report.checks}
    assert [rule for rule, state in states.items() if state == "fine"] in (["X2"], [])
    assert [finding.rule for finding in report.findings] == ["X1"]
    assert report.findings[0].evidence == ("1 of 4 ranks left no log here",)
    assert "penstock gather" in report.findings[0].remedies[0].command


def test_the_same_with_all_of_them_is_judged() -> None:
    report = report_of(measure(BUSY.run()))
    assert report.verdict.headline.upper() == "NOT I/O BOUND"
    assert limit_of(report, 0.1) == "kept"
    assert {check.rule for check in report.checks if check.state == "fine"} >= {"X1", "D8"}


def test_what_the_others_lost_is_lost_whatever_the_missing_one_did() -> None:
    report = report_of(measure(together(4, 40, one_slow(60), COMPUTE).run(lacks=2)))
    assert report.verdict.level == "highly"
    assert "at most 100 %: 1 of 4 ranks left no log here" in report.verdict.sentence
    assert [limit_of(report, most) for most in (0.1, 0.9)] == ["passed", "not measured"]


def test_of_ranks_that_do_not_meet_the_missing_ones_may_have_waited_less() -> None:
    ranks = apart(4, 40, even(18, 22), COMPUTE)  # nearly half
    report = report_of(measure(ranks.run(size=40)))  # a tenth of them
    assert report.verdict.headline.upper() == "NOT JUDGED"
    least = report.verdict.stall_least.value
    assert least == pytest.approx(ranks.mean / 10, rel=0.05)
    assert "mean over the 4 recorded ranks 4" in report.verdict.sentence
    assert limit_of(report, 0.1) == "not measured"


def test_one_recorded_rank_tells_of_itself() -> None:
    ranks = together(1, 40, even(9, 11), even(30, 30.1))
    report = report_of(measure(ranks.run(size=8)))
    assert report.verdict.headline.upper() == "NOT JUDGED"
    assert "7 of 8 ranks left no log here; rank 0 waits 24 % of its time" in report.verdict.sentence


def test_workers_whose_training_process_left_no_log_are_missed() -> None:
    run = Synthetic()
    run.worker(2, main=1, end=1000 * MS)
    run.process(3, end=1000 * MS)
    run.wait(10 * MS, 11 * MS, 0, process=3)
    for step in range(9):
        run.wait((20 + 10 * step) * MS, (21 + 10 * step) * MS, step, process=3)
        run.step((21 + 10 * step) * MS, (30 + 10 * step) * MS, step, process=3)
    report = report_of(measure(run))
    why = "1 loader worker has a training process that left no log"
    assert why in report.verdict.sentence
    assert report.findings[0].evidence == (why,)


# With real files


def damaged(ranks: Ranks, folder: Path, how: str) -> Path:
    """A run of which rank 1's log is gone, or cut within its header."""
    ranks.logs(folder)
    (log,) = folder.glob("*.101.*.events")
    if how == "gone":
        log.unlink()
    else:
        os.truncate(log, 1000)
    return folder


def check(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PENSTOCK, "check", folder, "--max-stall", "10", *words], capture_output=True, text=True
    )


@pytest.mark.parametrize("how", ["gone", "cut"])
def test_check_cannot_tell_without_a_rank_and_says_so_by_its_status(
    tmp_path: Path, how: str
) -> None:
    folder = damaged(BUSY, tmp_path / "run", how)
    ended = check(folder)
    assert ended.returncode == 3, ended.stderr
    assert "1 of 4 ranks left no log here" in ended.stderr
    with open_run(folder) as run:
        report = report_of(measure(run))
    assert report.verdict.headline.upper() == "NOT JUDGED"
    assert report.findings[0].rule == "X1"


def test_check_passes_and_fails_whole_runs(tmp_path: Path) -> None:
    assert check(BUSY.logs(tmp_path / "busy")).returncode == 0
    slow = together(4, 40, one_slow(60), COMPUTE)
    assert check(slow.logs(tmp_path / "slow")).returncode == 1


def test_a_log_that_cannot_be_read_may_be_that_of_a_process_that_trains(tmp_path: Path) -> None:
    alone = together(1, 40, even(0, 0.001), COMPUTE)
    folder = alone.logs(tmp_path / "run", launched=False)
    (folder / "node1.99.0.events").write_bytes(next(folder.glob("*.events")).read_bytes()[:1000])
    ended = check(folder)
    assert ended.returncode == 3, ended.stderr
    # A log without a byte may have been cut: nobody knows what its process did.
    (folder / "node1.99.0.events").write_bytes(b"")
    assert check(folder).returncode == 3
