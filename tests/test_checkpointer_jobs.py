"""One run over several jobs, each with a fast tier of its own and all with one slow tier, as jobs
of a batch system have the disks of their nodes: what the next job begins from, and what stays.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from penstock.places.stores import LocalStore
from penstock.save.commit import STATE
from penstock.save.drain.working import read_status
from penstock.save.find.formats import find
from penstock.save.verify import verify

pytest.importorskip("torch", reason="the state of the training is torch's")

LAST, EVERY = 3, 4

TRAINING = f"""
import os, signal, sys
import torch
from penstock.save.training.checkpointer import Checkpointer, Keep

def made():
    torch.manual_seed(1)
    model = torch.nn.Linear(40, 40)
    return {{"model": model, "optimizer": torch.optim.AdamW(model.parameters()), "losses": []}}

def train(state, step):
    torch.manual_seed(step)
    loss = (state["model"](torch.randn(8, 40)) - 1).square().mean()
    state["optimizer"].zero_grad()
    loss.backward()
    state["optimizer"].step()
    state["losses"] = [*state["losses"], loss.item()]

fast, slow, until, ending = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
state = made()
with Checkpointer(fast, slow, keep=Keep(fast=2, last={LAST}, every={EVERY})) as ckpt:
    begin = ckpt.restore(state, default=0)
    print("began", begin, ckpt.restored.path, flush=True)
    for step in range(begin + 1, until + 1):
        train(state, step)
        handle = ckpt.save(step, state)
        handle.local.result(240)
        if ending == "ends" or step <= until - 2:
            print("durable", step, handle.durable.result(240), flush=True)
    if ending != "ends":
        print("writer", ckpt._writer._process.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
alone = made()
for step in range(1, until + 1):
    train(alone, step)
assert state["losses"] == alone["losses"]
"""


class Said(NamedTuple):
    """step, path: where the job began.  durable: a path by step."""

    step: int
    path: str
    durable: dict[int, str]


def job(folder: Path, fast: Path, slow: Path, until: int, ending: str) -> Said:
    """Trains until a step.  The job ends, is killed (its drain goes on), or its node is lost."""
    program = folder / "training.py"
    program.write_text(TRAINING)
    command = [sys.executable, program, fast, slow, str(until), ending]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480)
    assert done.returncode == (0 if ending == "ends" else -signal.SIGKILL), done.stderr
    if ending == "lost":
        status = read_status(fast)
        assert status is not None
        writers = map(int, re.findall(r"^writer (\d+)", done.stdout, re.MULTILINE))
        for pid in (status.pid, *writers):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(fast)
    [(step, path)] = re.findall(r"^began (\d+) (.*)", done.stdout, re.MULTILINE)
    durable = re.findall(r"^durable (\d+) (.*)", done.stdout, re.MULTILINE)
    return Said(int(step), path, {int(number): where for number, where in durable})


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["lost", "killed"])
def test_a_run_goes_on_through_jobs_that_each_have_a_fast_tier_of_their_own(
    tmp_path: Path, ending: str
) -> None:
    slow, durable = tmp_path / "slow", 0
    for number, until in enumerate((6, 11, 16)):
        fast = tmp_path / f"job-{number}"
        said = job(tmp_path, fast, slow, until, ending if number < 2 else "ends")
        assert said.step >= durable
        assert Path(said.path).is_relative_to(slow) == (number > 0)
        assert said.durable == {step: str(slow / f"step-{step:08}") for step in said.durable}
        durable = max(said.durable)
    kept = {step for step in range(1, 17) if step % EVERY == 0 or step > 16 - LAST}
    assert sorted(os.listdir(slow)) == [STATE, *(f"step-{step:08}" for step in sorted(kept))]
    assert all(verify(one, "full").is_whole for one in find(LocalStore(slow)))
    assert [one.step for one in find(LocalStore(fast))] == [16, 15]
