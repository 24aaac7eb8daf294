"""Test that the copies of one save replace the copies of the save before together, wherever the
drain is killed: a save whose parts lie in several folders, or have names without a common word.

A drain is killed before each change of a name, so that a case takes some seconds."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import recover
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.unit.rules import NameRule
from saves import safetensors, state

T = 1_700_000_000
RULES: dict[str, tuple[list[str], str]] = {
    "folders": (["weights/model.safetensors", "states/optim.safetensors"], ""),
    "rule": (["x/one.safetensors", "y/two.safetensors", "z/three.safetensors"], "all"),
    "names": (["alpha.safetensors", "beta.safetensors"], ""),
    "numbers": ([f"opt_{n}.safetensors" for n in range(4)], ""),
    "step again": (["weights/step_5.safetensors", "states/step_5.safetensors"], ""),
    "folder again": (["weights/step_5/w.safetensors", "states/step_5/o.safetensors"], ""),
}


def save(folder: Path, names: Sequence[str], number: int) -> None:
    for turn, name in enumerate(names):
        state(folder / name, number, at_s=T + 100 * number + turn / 10)


def settings_of(names: Sequence[str], is_ruled: bool) -> DrainSettings:
    rules = (NameRule.of(" ".join(names)),) if is_ruled else ()
    return DrainSettings(settle_s=0, tries=1, rules=rules)


def is_drained_before(fast: Path, slow: Path, settings: DrainSettings, change: int) -> bool:
    """Drain once and return True; return False if killed before change number `change` of names."""
    child = os.fork()
    if not child:
        n_changes = 0

        def count(event: str, words: Any) -> None:
            nonlocal n_changes
            is_below = event in ("os.rename", "os.remove", "os.rmdir") and str(slow) in str(words)
            n_changes += is_below
            if is_below and n_changes == change:
                os.kill(os.getpid(), signal.SIGKILL)

        with Drainer(fast, slow, settings) as drain:
            sys.addaudithook(count)
            drain.once()
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("kind", RULES)
def test_a_drain_killed_between_two_parts_leaves_a_whole_save(tmp_path: Path, kind: str) -> None:
    names, is_ruled = RULES[kind]
    settings = settings_of(names, bool(is_ruled))
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for number in (1, 2, 3):
        save(fast, names, number)
        with Drainer(fast, slow, settings) as drain:
            assert drain.once() == []
    save(fast, names, 4)
    for tier in (fast, slow):
        tier.rename(tmp_path / f"{tier.name}-before")
    n_older, change, is_over = 0, 0, False
    while not is_over:
        change += 1
        for tier in (fast, slow):
            shutil.rmtree(tier, ignore_errors=True)
            shutil.copytree(tmp_path / f"{tier.name}-before", tier)
        is_over = is_drained_before(fast, slow, settings, change)
        shutil.rmtree(fast)
        fast.mkdir()
        choice, failed = recover(fast, slow, settings)
        assert choice.path is not None, (change, failed)
        numbers = {number_in(slow / name) for name in names}
        assert len(numbers) == 1, (change, numbers)
        assert numbers <= {3, 4}
        assert {one.problem or one.torn for one in find(LocalStore(slow))} == {""}
        assert not list(slow.rglob("*.part"))
        n_older += numbers == {3}
    assert numbers == {4}
    assert 0 < n_older < change - 1  # killed before and after the newer save counts


def number_in(path: Path) -> int:
    data = path.read_bytes()
    (number,) = [n for n in range(10) if data == safetensors(n)]
    return number
