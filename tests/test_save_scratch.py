"""Folders that programs use while they write: what a kill leaves there is never preferred, and a
program's own checkpoints there are never dropped."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.retention import Keep
from penstock.save.find.formats import find
from penstock.save.unit.rules import NameRule
from penstock.save.verify import UNCHECKED, latest_valid, verify
from saves import drained, state

LONG_AGO_S = time.time() - 4000


def save(folder: Path, value: float, *names: str, at_s: float) -> None:
    for name in names or ("model.safetensors", "optim.safetensors"):
        state(folder / name, value, at_s=at_s)


@pytest.mark.parametrize(
    "scratch", ["tmp_ck", "staging", "_temp", "ckpt-staging", "Tmp", "pending", "new", "next"]
)
def test_the_rest_of_a_killed_save_is_unchecked_and_not_preferred(
    scratch: str, fast: Path, slow: Path
) -> None:
    save(fast / "last", 1, at_s=LONG_AGO_S)
    save(fast / scratch, 2, "model.safetensors", at_s=LONG_AGO_S + 100)
    assert drained(fast, slow) == []
    for tier in (fast, slow):
        found = {one.name: verify(one, "full").state for one in find(LocalStore(tier))}
        assert UNCHECKED not in found.pop("last")
        assert set(found.values()) == {UNCHECKED}
    choice = latest_valid(fast, slow, level="full")
    assert choice.path == fast / "last"
    command = [sys.executable, "-m", "penstock", "save", "ls", str(fast)]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert f"a folder named {scratch}" in " ".join(said.split())


@pytest.mark.parametrize(
    "name",
    ["tmp_runs/exp1/checkpoint-{}", "tmp/checkpoint-{}", "staging/step_{}", "temp_0.7/step_{}"],
)
def test_checkpoints_of_a_program_that_saves_there_count_like_any_other(
    name: str, fast: Path, slow: Path
) -> None:
    for step in (100, 200, 300):
        save(fast / name.format(step), step, at_s=LONG_AGO_S + step)
    assert drained(fast, slow, Keep(fast=1, last=2, foreign=True)) == []
    assert [one.step for one in find(LocalStore(slow))] == [300, 200]
    choice = latest_valid(fast, slow, level="full")
    assert choice.path == fast / name.format(300)


@pytest.mark.parametrize("name", ["tmpfs_a", "attempt-1", "contemporary", "template", "temp-0.7"])
def test_a_word_inside_another_word_is_no_sign(name: str, fast: Path) -> None:
    save(fast / "last", 1, at_s=LONG_AGO_S)
    save(fast / name / "last", 2, at_s=LONG_AGO_S)
    assert not any(one.doubt for one in find(LocalStore(fast)))


def test_a_rule_of_the_user_ends_the_doubt(fast: Path, slow: Path) -> None:
    save(fast, 1, "a-100.safetensors", at_s=LONG_AGO_S)
    save(fast / "staging", 2, "m-200.safetensors", at_s=LONG_AGO_S)
    assert any(one.doubt for one in find(LocalStore(fast)))
    rules = (NameRule.of("m-{step}.safetensors"),)
    assert drained(fast, slow, rules=rules) == []
    assert not any(one.doubt for one in find(LocalStore(fast)))
