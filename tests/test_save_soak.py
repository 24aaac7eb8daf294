"""A short round of benchmarks/soak_save.py: kills, damage, power cuts, tiers full and gone."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent.parent / "benchmarks" / "soak_save.py"


def soak(*words: str) -> str:
    finished = subprocess.run(
        [sys.executable, SOAK, *words],
        capture_output=True, text=True, timeout=500, env=os.environ | {"SEED": "7"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def test_ten_random_kills_lose_nothing_durable() -> None:
    assert "kills: 10 " in soak("kills", "10")


def test_damage_of_every_kind_is_found() -> None:
    assert "found" in soak("damage", "40")


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_after_the_commit_leaves_it_whole(kind: str) -> None:
    """And one without any fsync does not: the cut is one."""
    said = soak("power", "1", kind)
    if "not done" in said:
        pytest.skip(said.splitlines()[-1])
    assert f"{kind}: 1 of 1 cuts left the new checkpoint whole" in said
    assert f"{kind}, nothing synced: 0 of 1 whole" in said


@pytest.mark.parametrize("kind", ["tmpfs", "ext4", "xfs"])
def test_a_tier_that_fills_leaves_the_older_checkpoint_and_nothing_else(kind: str) -> None:
    said = soak("full", "2", kind)
    if "not done" in said:
        pytest.skip(said.splitlines()[-1])
    assert f"full: {kind}: " in said


def test_a_slow_tier_that_was_gone_gets_everything() -> None:
    assert "all arrived" in soak("gone", "3")


def test_the_table_in_the_docs_is_what_the_soaks_wrote() -> None:
    spec = importlib.util.spec_from_file_location("soak_save", SOAK)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(SOAK.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SOAK.parent))
    page = module.PAGE.read_text()
    assert module.page_of(page, json.loads(module.RESULTS.read_text())) == page
