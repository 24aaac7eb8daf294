"""Ranks of an MPI job that copy together: real processes under mpirun."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fixtures import PENSTOCK
from penstock.places import registry
from penstock.places.registry import Tier
from penstock.stage.held import verify
from penstock.stage.manifest import TierPlace

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
MPIRUN = shutil.which("mpirun")
pytestmark = pytest.mark.skipif(
    MPIRUN is None, reason="there is no mpirun: apt install openmpi-bin"
)

FILES = 24


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tier:
    monkeypatch.setenv(registry.ENVIRONMENT, str(tmp_path / "tiers.json"))
    (tmp_path / "tier").mkdir()
    (tmp_path / "data").mkdir()
    for number in range(FILES):
        (tmp_path / "data" / f"{number}").write_bytes(os.urandom(10_000 + number))
    return registry.add("fast", tmp_path / "tier")


def mpirun(*words: str | Path, ranks: int = 3) -> subprocess.CompletedProcess[str]:
    options = ["--allow-run-as-root", "--oversubscribe", "--mca", "btl", "self,tcp", "-n"]
    command = [MPIRUN or "", *options, str(ranks), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240)


def test_ranks_share_the_copies_and_one_tells_of_all(tier: Tier, tmp_path: Path) -> None:
    done = mpirun(PENSTOCK, "stage", "copy", tmp_path / "data", "--to", "fast", "--mpi", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)  # one object: one rank has told
    assert (told["copied"], told["elsewhere"], told["skipped"]) == (FILES, 0, {})
    # No file was copied twice: the manifest has a line for each and no more.
    assert TierPlace(tier).manifest.read_text().count('"checksum"') == FILES
    found = verify(tier)
    assert (found.copies, found.corrupted) == (FILES, ())
    assert not list(TierPlace(tier).own.glob("rank-*"))


def test_a_rank_without_room_ends_all_of_them_with_one_sentence(tier: Tier, tmp_path: Path) -> None:
    registry.add("fast", tier.path, 100_000)
    done = mpirun(PENSTOCK, "stage", "copy", tmp_path / "data", "--to", "fast", "--mpi")
    assert done.returncode
    assert "are to be copied, and of its 100 kB" in done.stderr
    assert not TierPlace(tier).entries()


def test_ranks_with_tiers_of_their_own_copy_everything_each(tier: Tier, tmp_path: Path) -> None:
    program = tmp_path / "node.py"
    program.write_text(
        "import os, sys\n"
        "rank = os.environ['OMPI_COMM_WORLD_RANK']\n"
        "os.environ['PENSTOCK_TIERS'] = f'{sys.argv[1]}/tiers-{rank}.json'\n"
        "os.makedirs(f'{sys.argv[1]}/tier-{rank}')\n"
        "from penstock.places import registry\n"
        "registry.add('fast', f'{sys.argv[1]}/tier-{rank}')\n"
        "from penstock.__main__ import main\n"
        "sys.argv = ['penstock', 'stage', 'copy', f'{sys.argv[1]}/data', '--to', 'fast', '--mpi']\n"
        "main()\n"
    )
    done = mpirun(sys.executable, program, tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        place = TierPlace(Tier("fast", tmp_path / f"tier-{rank}"))
        assert len(place.entries()) == FILES
