"""A short round of lab/benchmarks/soak_save.py (kills, damage, power cuts, full tiers) and a
few rounds of lab/benchmarks/soak_units.py."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "lab" / "benchmarks"
SOAK, UNITS = BENCHMARKS / "soak_save.py", BENCHMARKS / "soak_units.py"


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layout", "package"),
    [("three files", "torch"), ("orbax", "orbax")],
)
def test_what_recover_names_after_kills_loads_as_one_save(
    layout: str, package: str, tmp_path: Path
) -> None:
    """The program and the drain are killed, and the fast tier is lost."""
    pytest.importorskip(package, reason=f"{package} is not installed")
    words = ["1", "--first", "7", "--layout", layout, "--fault", "lost", "--at-once", "1"]
    where = ["--folder", tmp_path, "--json", tmp_path / "rounds.json"]
    finished = subprocess.run(
        [sys.executable, UNITS, *words, *where], capture_output=True, text=True, timeout=500
    )
    assert finished.returncode == 0, finished.stdout[-3000:] + finished.stderr[-3000:]
    rounds = [json.loads(one) for one in (tmp_path / "rounds.json").read_text().splitlines()]
    assert [one["why"] for one in rounds] == [""]
    assert all(one["facts"]["found"] > 0 for one in rounds)


@pytest.mark.slow
def test_a_soak_finds_a_mixture_and_an_older_checkpoint(tmp_path: Path) -> None:
    """The soak's own judgement, without a kill."""
    pytest.importorskip("torch", reason="torch is not installed")
    program = f"""
import os, sys, time
sys.path.insert(0, {str(BENCHMARKS)!r})
from pathlib import Path
from soak_layouts import LAYOUTS
from soak_children import Wrong
from soak_units import Families, Round
from penstock.save.drain.working import DrainSettings
families = Families([("three files", "both killed", 1)], Path({str(tmp_path)!r}))
families.start()
while not families.next():
    time.sleep(0.1)
now = DrainSettings(settle_s=0, tries=1)
for n, least in (("1", 3), ("2", 2)):
    folder = Path({str(tmp_path)!r}) / n
    one = Round(LAYOUTS["three files"], "both killed", 1, folder, os.getpid())
    one.fast.mkdir(parents=True)
    one.slow.mkdir()
    one.saves(2)
    if n == "2":  # no evidence for Penstock, as nothing was drained yet
        (one.fast / "ema-2.pt").write_bytes((one.fast / "ema-1.pt").read_bytes())
    try:
        one.judge(least, now)
    except Wrong as why:
        print(why)
"""
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    older, mixed = finished.stdout.splitlines()
    assert "3 was whole, and an older one is named" in older
    assert "does not load as one save" in mixed


def test_the_table_in_the_docs_is_what_the_soaks_wrote() -> None:
    spec = importlib.util.spec_from_file_location("soak_record", BENCHMARKS / "soak_record.py")
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
