"""What the training lost is one number: the verdict, the limits, a comparison and watch agree."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from findings_examples import EXAMPLES, example
from penstock.compare import compare, limits
from penstock.live import Stall
from penstock.measures import measure
from penstock.report import Report, report_of
from penstock.run import open_run
from penstock.verdict import HIGHLY, MODERATELY
from synthetic import MS, Synthetic

STEP = 100 * MS


def reading_itself(ms: float, *, steps: int = 50, wait_ms: float = 1.0) -> Synthetic:
    """A thread that takes a batch from a loader, and then reads for so long itself, each step."""
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
    """Reads moved from the training thread to a loader are no new loss."""
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
    """The level that a verdict tells, and what limits say of it."""
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
