"""Commands that print for people print the same facts as JSON for programs."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.places.stores import LocalStore
from penstock.save.commit import begin, commit
from penstock.save.find.formats import find


def saved(root: Path, step: int) -> None:
    draft = begin(root, step)
    draft.write("model.pt", [b"weights" * step])
    commit(draft)


def facts_of(*words: str | Path, status: int = 0) -> Any:
    done = subprocess.run([PENSTOCK, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_recover_names_the_state_and_what_it_passed_over(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    slow.mkdir()
    for step in (1, 2):
        saved(fast, step)
    torn = fast / "step-00000002" / "model.pt"
    torn.write_bytes(torn.read_bytes()[:-1])
    facts = facts_of("save", "recover", fast, slow, "--json", status=1)
    assert facts["step"] == 1
    assert Path(facts["path"]).name == "step-00000001"
    assert facts["state"] == "whole"
    (passed,) = facts["passed_over"]
    assert Path(passed["path"]).name == "step-00000002"
    assert "model.pt" in passed["reason"]
    assert len(facts["not_drained"]) == 1


def test_recover_without_a_whole_checkpoint_has_the_path_null(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    slow.mkdir()
    saved(fast, 1)
    (fast / "step-00000001" / "model.pt").write_bytes(b"")
    facts = facts_of("save", "recover", fast, slow, "--json", status=1)
    assert (facts["path"], facts["step"], facts["state"]) == (None, None, None)


def test_recover_names_files_of_no_known_checkpoint_instead_of_a_new_beginning(
    tmp_path: Path,
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for folder in (fast, slow):
        folder.mkdir()
    (slow / "model_iter_3.txt").write_text("a booster of a library that Penstock does not know")
    done = subprocess.run(
        [PENSTOCK, "save", "recover", fast, slow], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert "model_iter_3.txt, of no checkpoint that Penstock knows" in done.stderr
    assert "begin anew" not in done.stderr
    (slow / "model_iter_3.txt").unlink()
    done = subprocess.run(
        [PENSTOCK, "save", "recover", fast, slow], capture_output=True, text=True, timeout=120
    )
    assert "no whole checkpoint on any tier: begin anew" in done.stderr


def test_prune_lists_what_it_removes_and_what_it_would(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    slow.mkdir()
    for step in (1, 2, 3):
        saved(fast, step)
    facts_of("save", "recover", fast, slow, "--json")
    wanted = ("save", "prune", fast, slow, "--keep-last", "1", "--json")
    planned = facts_of(*wanted, "--dry-run")
    assert [Path(path).name for path in planned["removed"]] == ["step-00000002", "step-00000001"]
    assert planned["is_dry_run"]
    assert len(find(LocalStore(slow))) == 3
    done = facts_of(*wanted)
    assert sorted(done["removed"]) == sorted(planned["removed"])
    assert done["freed_bytes"] == planned["freed_bytes"] > 0
    assert [one.step for one in find(LocalStore(slow))] == [3]


def test_watch_prints_an_object_for_each_second(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the steps are torch's")
    program = """
import time, torch
from torch.utils.data import DataLoader
weights = torch.nn.Parameter(torch.zeros(1))
optimizer = torch.optim.SGD([weights], lr=0.1)
for batch in DataLoader(range(40)):
    weights.grad = torch.ones(1)
    optimizer.step()
    time.sleep(0.1)
"""
    words = ["run", "-q", "-o", tmp_path / "run", "--", sys.executable, "-c", program]
    with subprocess.Popen([PENSTOCK, *words]) as job:
        watch = subprocess.run(
            [PENSTOCK, "watch", tmp_path / "run", "--wait", "60s", "--json"],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert job.wait() == 0
    assert watch.returncode == 0, watch.stderr
    values = [json.loads(line) for line in watch.stdout.splitlines()]
    assert len(values) > 2
    assert (values[-1]["state"], values[-1]["steps"]) == ("over", 40)
    low, high = values[-1]["total"]["stall"]
    assert 0 <= low <= high < 0.5
