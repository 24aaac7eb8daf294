"""A short round of benchmarks/soak_save.py: kills, damage, a power cut."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent.parent / "benchmarks" / "soak_save.py"


def soak(*words: str) -> str:
    finished = subprocess.run(
        [sys.executable, SOAK, *words],
        capture_output=True, text=True, timeout=250, env=os.environ | {"SEED": "7"},
    )  # fmt: skip
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def test_ten_random_kills_lose_nothing_durable() -> None:
    assert "kills: 10 " in soak("kills", "10")


def test_damage_of_every_kind_is_found() -> None:
    assert "found" in soak("damage", "40")


def test_a_power_cut_after_the_commit_leaves_it_whole() -> None:
    said = soak("power", "1")
    if "power: not done" in said or "ext4: not done" in said:
        pytest.skip(said.splitlines()[-1])
    assert "ext4: 1 of 1 cuts left the new checkpoint whole" in said
