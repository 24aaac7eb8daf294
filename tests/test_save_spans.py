"""Test that the files which one save of a recorded run wrote form a checkpoint."""

from __future__ import annotations

import functools
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock import cli
from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.unit.units import BY_SAVE, grouped
from penstock.save.unit.written import saves_of_run

# Each save writes two files of an unknown kind by way of drafts, a file with a step, and the best.
# The log is also written outside of the saves.
PROGRAM = """
    import os, sys, penstock
    folder = sys.argv[1]
    log = open(f"{folder}/train.log", "w", buffering=1)
    for step, tag in enumerate(("3fa9", "b07c", "e1d2")):
        log.write("a step\\n")
        with penstock.span("checkpoint"):
            for name in ("alpha", "beta"):
                with open(f"{folder}/draft", "wb") as file:
                    file.write(os.urandom(100 + step))
                os.rename(f"{folder}/draft", f"{folder}/{name}-{tag}.dat")
            for name in (f"model_{step}.pt", "best.pt"):
                with open(f"{folder}/{name}", "wb") as file:
                    file.write(os.urandom(100))
            log.write("saved\\n")
        with open(f"{folder}/sample-{tag}.dat", "wb") as file:
            file.write(b"outside")
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("recorded")
    (root / "fast").mkdir()
    command = [sys.executable, "-m", "penstock", "run", "-q", "-o", str(root / "run"), "--"]
    program = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(root / "fast")]
    subprocess.run([*command, *program], check=True)
    return root / "run", root / "fast"


def test_each_save_is_read_from_the_run(recorded: tuple[Path, Path]) -> None:
    run, fast = recorded
    assert [sorted(save) for save in saves_of_run(run, LocalStore(fast))] == [
        [f"alpha-{tag}.dat", "best.pt", f"beta-{tag}.dat", f"model_{step}.pt"]
        for step, tag in ((2, "e1d2"), (1, "b07c"), (0, "3fa9"))
    ]


def test_files_of_one_save_whose_names_show_no_rule_are_one_checkpoint(
    recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    run, fast = recorded
    saves = saves_of_run(run, LocalStore(fast))
    units = {
        one.name: len(one.files) for one in find(LocalStore(fast), saves=saves)
    }  # fmt: skip
    assert units == {
        "alpha-3fa9.dat": 2, "alpha-b07c.dat": 2, "alpha-e1d2.dat": 2,
        "model_0.pt": 1, "model_1.pt": 1, "model_2.pt": 1, "best.pt": 1,
    }  # fmt: skip
    said = CliRunner().invoke(cli.cli, ["save", "ls", str(fast), "--explain", "--run", str(run)])
    assert said.output.count(BY_SAVE) == 3
    assert find(LocalStore(fast)) != find(LocalStore(fast), saves=saves)  # ls keeps nothing


def test_the_drain_keeps_the_files_of_a_save_together(
    recorded: tuple[Path, Path], tmp_path: Path
) -> None:
    run, fast = recorded
    slow = tmp_path / "slow"
    saves = functools.partial(saves_of_run, run, LocalStore(fast))
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1, saves=saves)) as working:
        working.once()
    copies = {one.name: one for one in find(LocalStore(slow))}
    assert [len(copies[f"alpha-{tag}.dat"].files) for tag in ("3fa9", "b07c", "e1d2")] == [2, 2, 2]
    assert (slow / "train.log").exists()
    assert (slow / "sample-3fa9.dat").exists()
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:  # kept with the tier
        assert not any(one.name.endswith(".dat") for one in working.backlog())


@pytest.mark.parametrize(
    ("names", "saves", "wanted"),
    [
        ("a.dat b.dat", ["a.dat b.dat"], {"a.dat": 2}),
        ("a.dat b.dat", ["a.dat c.dat"], {}),
        ("epoch_3.pt best.pt", ["epoch_3.pt best.pt"], {}),  # the best stays for longer
        ("model_3.pt optim_3.pt a.dat b.dat", ["model_3.pt optim_3.pt a.dat b.dat"],
         {"model_3.pt": 2, "a.dat": 2}),
        ("loss.png loss.csv", ["loss.png loss.csv"], {}),
        ("a.dat b.dat c.dat", ["b.dat c.dat", "a.dat b.dat"], {"b.dat": 2}),
    ],
)  # fmt: skip
def test_a_save_decides_only_where_names_do_not(
    names: str, saves: list[str], wanted: dict[str, int]
) -> None:
    sets = [frozenset(save.split()) for save in saves]
    found = {one.name: len(one.files) for one in grouped(names.split(), (), sets)}
    assert {name: n for name, n in found.items() if n > 1} == wanted
