"""Eight trainings that know themselves what they waited for: the report says the same."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.measures import measure
from penstock.report import Report, report_of

pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")

PROGRAM = Path(__file__).parent / "workloads" / "known_wait.py"
WITHIN = 0.02  # of the wall time


class Job(NamedTuple):
    slow: dict[str, int]  # what a call takes longer, in microseconds
    level: str
    bound: str
    finds: set[str]
    not_: set[str]


JOBS = {
    "storage": Job({"READ": 15000}, "highly", "I/O", {"D2"}, {"D1", "C1", "W2"}),
    "metadata": Job({"OPEN": 15000}, "highly", "I/O", {"D1"}, {"D2", "C1", "W2"}),
    "decode": Job({"READ": 200}, "highly", "input", {"W2"}, {"D1", "D2", "C1"}),
    "checkpoint": Job({"WRITE": 60000}, "highly", "I/O", {"C1"}, {"D1", "D2", "W2"}),
    "mixed": Job({"READ": 10000, "WRITE": 20000}, "highly", "I/O", {"D2", "C1"}, {"D1"}),
    "warm": Job({"READ": 15000}, "highly", "I/O", {"D2"}, {"D1", "D5", "C1"}),
    "straggler": Job({"READ": 8000}, "highly", "I/O", {"D8", "D2"}, {"D1", "C1"}),
    "control": Job({"READ": 15000}, "not", "I/O", set(), {"D1", "D2", "D8", "W1", "W2", "C1"}),
}


class Known(NamedTuple):
    report: Report
    measures: Any
    truth: dict[str, Any]
    job: Job


@pytest.fixture(params=list(JOBS))
def known(
    request: pytest.FixtureRequest,
    recorded_command: Callable[..., Any],
    workload: Callable[..., Path],
    work: Path,
    tmp_path: Path,
) -> Known:
    job = JOBS[request.param]
    for folder in ("slow", "fast"):
        (work / folder).mkdir()
        for number in range(64):
            (work / folder / str(number)).write_bytes(bytes(20_000))
    slow = workload("slow", "-shared", "-fPIC")
    truth = tmp_path / "truth.json"
    run = recorded_command(
        [sys.executable, PROGRAM, request.param, truth],
        environment={"LD_PRELOAD": str(slow), "SLOW_UNDER": "slow/"}
        | {f"SLOW_{call}_US": str(us) for call, us in job.slow.items()},
    )
    measures = measure(run)
    return Known(report_of(measures), measures, json.loads(truth.read_text()), job)


@pytest.mark.timeout(300)
def test_the_report_says_what_the_job_waited_for(known: Known) -> None:
    measures, truth = known.measures, known.truth
    wall_s = truth["wall_s"]
    assert measures.training.wall_s == pytest.approx(wall_s, rel=0.01)
    for said, true_s in (
        (measures.training.data_wait_s, truth["data_wait_s"]),
        (measures.training.checkpoint_block_s, truth["checkpoint_s"]),
        (measures.wait_s("read"), truth["parts"].get("read", 0.0)),
        (measures.wait_s("metadata"), truth["parts"].get("metadata", 0.0)),
        # A thread that decodes may lose its processor meanwhile: the job's clock cannot tell.
        (measures.wait_s("cpu", "not scheduled", "blocked"), truth["parts"]["cpu"]),
    ):
        assert said / wall_s == pytest.approx(true_s / wall_s, abs=WITHIN)
    verdict = known.report.verdict
    assert (verdict.level, verdict.bound) == (known.job.level, known.job.bound), verdict.sentence
    rules = {finding.rule for finding in known.report.findings}
    assert rules >= known.job.finds, known.report.checks
    assert not rules & known.job.not_, known.report.findings
