"""Jobs of which a process is really killed, and jobs that end their workers themselves: sentences
about the recording (X1), the end of the job, and the wait for a batch that never came."""

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK, thorough
from penstock.errors import TierError
from penstock.explain.findings import Check, Finding, judge
from penstock.explain.measures import Measures, measure
from penstock.explain.report import report_of
from penstock.runs.run import open_run
from penstock_lab import groups

# Each item is a whole file in one read.  Item 60 belongs to batch 15, which worker 1 fetches.
TRAINING = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader, Dataset

how = sys.argv[1]

class Data(Dataset):
    def __len__(self):
        return 120

    def __getitem__(self, i):
        if i == 60 and how in ("kill", "memory"):
            end = time.monotonic() + 0.5
            while time.monotonic() < end:
                pass
            hold = [bytearray(b"x" * (1 << 20)) for _ in range(8000 if how == "memory" else 0)]
            os.kill(os.getpid(), signal.SIGKILL)
        file = os.open("item", os.O_RDONLY)
        data = os.read(file, 5000)
        os.close(file)
        return torch.zeros(8) + len(data)

if __name__ == "__main__":
    model = torch.nn.Linear(8, 8)
    loader = DataLoader(Data(), 4, num_workers=2)
    for _ in range(2):
        for n, batch in enumerate(loader):
            model(batch).sum().backward()
            if how == "break" and n == 10:
                break  # the loader ends its workers, which have batches in hand
"""


def said(measures: Measures, rule: str) -> Finding | Check:
    judgement = judge(measures)
    return next(one for one in (*judgement.findings, *judgement.checks) if one.rule == rule)


def assert_whole(measures: Measures) -> None:
    check = said(measures, "X1")
    assert isinstance(check, Check), check
    assert (check.state, check.says) == ("fine", "nothing was lost")


def test_of_a_killed_worker_nothing_is_lost_and_its_wait_is_no_end_of_an_epoch(
    recorded: Callable[..., Any], work: Path
) -> None:
    pytest.importorskip("torch")
    (work / "item").write_bytes(bytes(5000))
    run = recorded(TRAINING, args=("kill",), status=1)
    measures = measure(run)
    [incident] = report_of(measures).incidents
    assert "worker 1" in incident.sentence
    assert "was killed by SIGKILL" in incident.sentence
    assert_whole(measures)
    # All reads of the killed worker are there: its batches 1, 3, ... 13 of four items each.
    ((pid,),) = run.sql("SELECT pid FROM processes WHERE status = -9")
    ((reads,),) = run.sql(
        f"""SELECT count(*) FROM events AS e JOIN processes AS p ON p.process = e.process
            WHERE p.pid = {pid} AND e.op = 'read' AND e.moved_bytes = 5000"""
    )
    assert reads == 28
    # Half a second of waiting for the batch in which it was killed.
    assert measures.wait_s("pass end") < 0.1
    assert (measures.training.data_wait_s or 0) > 0.4
    assert measures.wait_s("not observed", "cpu", "not scheduled") > 0.4
    assert isinstance(said(measures, "D8"), Check)


@pytest.mark.parametrize("how", [thorough("normal", like="break"), "break"])
def test_workers_that_end_as_their_loader_wants_are_no_incident(
    recorded: Callable[..., Any], work: Path, how: str
) -> None:
    pytest.importorskip("torch")
    (work / "item").write_bytes(bytes(5000))
    measures = measure(recorded(TRAINING, args=(how,)))
    assert report_of(measures).incidents == ()
    assert_whole(measures)


def test_a_worker_that_the_kernel_kills_for_want_of_memory_is_named(
    tmp_path: Path, work: Path
) -> None:
    """In a control group that has no memory for what the worker asks."""
    pytest.importorskip("torch")
    (work / "item").write_bytes(bytes(5000))
    try:
        group = groups.make(groups.own_name(), memory_bytes=800 << 20)
    except TierError as error:
        pytest.skip(f"no control group: {error}")
    program = tmp_path / "training.py"
    program.write_text(textwrap.dedent(TRAINING))
    command = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", sys.executable, program, "memory"]
    try:
        ended = subprocess.run(
            group.wrapped([str(word) for word in command]), cwd=work, capture_output=True,
            text=True, timeout=240,
        )  # fmt: skip
    finally:
        group.remove()
    assert ended.returncode == 1, ended.stderr[-2000:]
    with open_run(tmp_path / "run") as run:
        measures = measure(run)
        [incident] = report_of(measures).incidents
        assert "worker 1" in incident.sentence
        assert "was killed by SIGKILL" in incident.sentence
        assert "it had 0 B" not in incident.sentence
        assert_whole(measures)
        assert measures.wait_s("pass end") < 0.1


def test_a_recording_whose_disk_is_full_says_that_events_were_lost(
    tmp_path: Path, work: Path, small_disk: Callable[..., Any]
) -> None:
    """The program goes on as if nothing were: it is the recording that ends."""
    program = tmp_path / "reads.py"
    program.write_text(
        "import os\n"
        "file = os.open(__file__, os.O_RDONLY)\n"
        "for n in range(300_000):\n"
        "    os.pread(file, 1, n % 100)\n"
    )
    with small_disk(4 << 20) as disk:
        command = [PENSTOCK, "run", "-q", "-o", disk / "run", sys.executable, program]
        assert subprocess.run(command, cwd=work, timeout=240).returncode == 0
        copied = tmp_path / "run"
        subprocess.run(["cp", "-r", disk / "run", copied], check=True)
    with open_run(copied) as run:
        finding = said(measure(run), "X1")
    assert isinstance(finding, Finding), finding
    assert "events were lost" in finding.evidence[0]
