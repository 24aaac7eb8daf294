"""Test `recover --fetch` that is killed, and that meets older states on the fast tier."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import cli
from penstock.places.stores import LocalStore
from penstock.save.commit import claim
from penstock.save.find.formats import find
from penstock.save.find.unfetched import FETCH, RECORD, UNFETCHED
from saves import drained, state, value_of

T = 1_700_000_000
# Fetch, and end the process before copy number N.
KILLED = """
import os, signal, sys
from penstock import cli
from penstock.save.drain import fetching

real, calls = fetching.fetch, []

def fetch(one, fast):
    if len(calls) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(one)
    return real(one, fast)

fetching.fetch = fetch
cli.cli(["save", "recover", *sys.argv[2:], "--fetch"])
"""


def recovered(fast: Path, slow: Path, *more: str) -> Result:
    return CliRunner().invoke(cli.cli, ["save", "recover", str(fast), str(slow), *more])


def parts_saved(fast: Path, slow: Path) -> None:
    for step in (1, 2):
        for place, part in enumerate(("weights", "optim", "ema")):
            state(fast / f"{part}/step_{step}.safetensors", step, at_s=T + 100 * step + place)
        assert drained(fast, slow) == []
    shutil.rmtree(fast)
    fast.mkdir()


@pytest.mark.parametrize("n_copies", [1, 2])
def test_a_kill_between_two_parts_leaves_no_part_that_counts(tmp_path: Path, n_copies: int) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    parts_saved(fast, slow)
    words = [sys.executable, "-c", KILLED, str(n_copies), str(fast), str(slow)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    lone = find(LocalStore(fast))
    assert [one.problem for one in lone] == [UNFETCHED] * n_copies
    listed = CliRunner().invoke(cli.cli, ["save", "ls", str(fast)])
    assert "a part of a save whose copy from the slow tier did not end" in listed.output
    left = drained(fast, slow)
    assert len(left) == n_copies
    assert all(UNFETCHED in line for line in left)
    ended = recovered(fast, slow)
    assert ended.stdout.startswith(f"{slow}/"), ended.output
    assert not list(fast.rglob("*.safetensors"))
    ended = recovered(fast, slow, "--fetch")
    assert ended.exit_code == 0, ended.output
    there = sorted(path.relative_to(fast).as_posix() for path in fast.rglob("*.safetensors"))
    assert there == [f"{part}/step_2.safetensors" for part in ("ema", "optim", "weights")]
    assert not (fast / RECORD).exists()
    assert [one.problem for one in find(LocalStore(fast))] == ["", "", ""]


def test_two_fetches_at_once_pass_over_no_checkpoint(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    parts_saved(fast, slow)
    with claim(fast, FETCH):
        ended = recovered(fast, slow, "--fetch")
    assert ended.exit_code != 0
    assert "passed over" not in ended.output
    assert "another fetch has this folder" in f"{ended.output} {ended.exception}"


def test_what_a_program_writes_after_the_kill_counts_and_stays(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    parts_saved(fast, slow)
    words = [sys.executable, "-c", KILLED, "2", str(fast), str(slow)]
    assert subprocess.run(words, check=False).returncode == -signal.SIGKILL
    for part in ("weights", "optim", "ema"):
        state(fast / f"{part}/step_2.safetensors", 22)
    assert [one.problem for one in find(LocalStore(fast))] == ["", "", ""]
    assert drained(fast, slow) == []
    assert recovered(fast, slow).exit_code == 0
    assert {value_of(path) for path in fast.rglob("*.safetensors")} == {22}


@pytest.mark.parametrize("shared", ["recipe_state/recipe_state.safetensors", "optim.safetensors"])
def test_an_older_state_on_the_node_replaces_no_newer_state(tmp_path: Path, shared: str) -> None:
    """The node has the files of an earlier job of the run; the newest are on the slow tier only."""
    fast, slow, earlier = tmp_path / "fast", tmp_path / "slow", tmp_path / "earlier"
    for epoch in (1, 2, 3):
        at_s = T + 1000 * epoch
        state(fast / f"epoch_{epoch}/model.safetensors", epoch, at_s=at_s)
        state(fast / shared, epoch, at_s=at_s + 5)
        state(fast / "last.safetensors", epoch, at_s=at_s + 6)
        assert drained(fast, slow) == []
        if epoch == 2:
            shutil.copytree(fast, earlier)
    shutil.rmtree(fast)
    earlier.rename(fast)
    ended = recovered(fast, slow, "--fetch")
    assert (ended.exit_code, ended.stdout) == (0, f"{fast}/epoch_3\n"), ended.output
    assert value_of(fast / shared) == 3
    assert f"{fast}/{shared}: replaced by {slow}/{shared}; now it is {slow}/" in ended.stderr
    again = shared.replace(".safetensors", ".2.safetensors")
    assert (value_of(slow / shared), value_of(slow / again)) == (3, 2)
    assert value_of(slow / "last.safetensors") == 3
    assert value_of(slow / "last.2.safetensors") == 2
    assert "is older than the copy there, which stays" in ended.stderr
