"""Eight trainings that know themselves what they waited for: the report says the same."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.explain.measures import measure
from penstock.explain.report import Report, report_of

pytestmark = pytest.mark.alone  # shares of the wall time, within 2 %

pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")

PROGRAM = Path(__file__).parent / "workloads" / "known_wait.py"
WITHIN = 0.02  # of the wall time


class Job(NamedTuple):
    slow: dict[str, int]  # what a call takes longer, in microseconds
    finds: set[str]
    not_: set[str]


JOBS = {
    "storage": Job({"READ": 15000}, {"D2"}, {"D1", "C1", "W2"}),
    "metadata": Job({"OPEN": 15000}, {"D1"}, {"D2", "C1", "W2"}),
    "decode": Job({"READ": 0}, {"W2 or W3"}, {"D1", "D2", "C1"}),
    "checkpoint": Job({"WRITE": 25000}, {"C1"}, {"D1", "D2", "W2"}),
    "mixed": Job({"READ": 10000, "WRITE": 20000}, {"D2", "C1"}, {"D1"}),
    "warm": Job({"READ": 15000}, {"D2"}, {"D1", "D5", "C1"}),
    "straggler": Job({"READ": 8000}, {"D8", "D2"}, {"D1", "C1"}),
    "control": Job({"READ": 15000}, set(), {"D1", "D2", "D8", "W1", "W2", "C1"}),
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
        for number in range(800):
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


def storage_share(truth: dict[str, Any]) -> float:
    """What of the wall time was spent waiting for slow calls, by the job's own clock."""
    parts = truth["parts"]
    return (parts["read"] + parts["metadata"] + parts["write"]) / truth["wall_s"]


def level(storage: float, truth: dict[str, Any]) -> str:
    """How bound a job is: by storage, or by all its waiting where that is mostly for others."""
    stall = (truth["data_wait_s"] + truth["checkpoint_s"]) / truth["wall_s"]
    share = stall if stall >= 0.05 and (storage < 0.05 or storage < 0.5 * stall) else storage
    return "not" if share < 0.05 else "moderately" if share <= 0.2 else "highly"


@pytest.mark.timeout(300)
def test_the_report_says_what_the_job_waited_for(known: Known) -> None:
    measures, truth = known.measures, known.truth
    wall_s = truth["wall_s"]
    assert measures.training.wall_s == pytest.approx(wall_s, rel=0.01)
    for said, true_s in (
        (measures.training.data_wait_s, truth["data_wait_s"]),
        (measures.training.checkpoint_block_s, truth["checkpoint_s"]),
        (measures.checkpoint_storage_s, truth["parts"]["write"]),
        (measures.wait_s("read"), truth["parts"]["read"]),
        (measures.wait_s("metadata"), truth["parts"]["metadata"]),
    ):
        assert said / wall_s == pytest.approx(true_s / wall_s, abs=WITHIN)
    # Between two calls too a thread may lose its CPU: the job's clock sees that in a call only.
    true_s = truth["parts"]["cpu"] + truth["parts"]["delay"]
    least_s = measures.wait_s("cpu", "cached", "blocked")
    assert least_s / wall_s - WITHIN <= true_s / wall_s
    assert true_s <= least_s + measures.wait_s("not scheduled") + WITHIN * wall_s
    verdict, share = known.report.verdict, storage_share(truth)
    assert verdict.storage.value == pytest.approx(share, abs=WITHIN)
    # On which side of a limit a job is, how busy the machine is decides; near one both are right.
    assert verdict.level in {level(said, truth) for said in (share - WITHIN, share, share + WITHIN)}
    rules = {finding.rule for finding in known.report.findings}
    if rules & {"W2", "W3"}:  # where others compute too, a worker waits for a processor
        rules.add("W2 or W3")
    assert rules >= known.job.finds, known.report.checks
    assert not rules & known.job.not_, known.report.findings
