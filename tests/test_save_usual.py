"""A save without a file that the earlier saves have, whatever the words of the names."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from penstock import cli
from penstock.places.stores import LocalStore
from penstock.save.checkpoint import Checkpoint
from penstock.save.drain.fetching import fetch_save
from penstock.save.drain.retention import Keep
from penstock.save.find.formats import find
from penstock.save.verify import latest_valid
from saves import drained, state, value_of

# The last file of each is the one that a kill leaves unwritten.
LAYOUTS = {
    "unknown ending in the folder": ["step_#/model.safetensors", "step_#/tape.xyz"],
    "no ending in the folder": ["step_#/model.safetensors", "step_#/dataset_state"],
    "a folder in the folder": ["step_#/model.safetensors", "step_#/tapes/rank0.npq"],
    "loose": ["model-#.safetensors", "tape-#.xyz"],
    "loose, filled with zeros": ["model-00000#.safetensors", "tape_00000#"],
    "two folders": ["weights/net-#.safetensors", "tapes/tape-#.xyz"],
    "two folders of steps": ["weights/#/net.safetensors", "tapes/#/tape.xyz"],
    "folders of unknown words": ["gizmo/step_#.safetensors", "widget/step_#.safetensors"],
    "an epoch too": ["epoch=*-step=#/net.safetensors", "epoch=*-step=#/tape.xyz"],
    "a loss too": ["ckpt/step_#-loss_0.*6.safetensors", "tape/step_#.xyz"],
    "an epoch in the checkpoint": ["ckpt/epoch=*-step=#.safetensors", "tapes/step=#.xyz"],
    "thousands": ["step_#k/net.safetensors", "step_#k/tape.xyz"],
    "a folder for each node": ["model/step_#.safetensors", "io/node7/tape-#.xyz"],
    "custom states": ["checkpoint_#/model.safetensors", "checkpoint_#/custom_checkpoint_0.xyz"],
    "counts of samples": ["consumed_samples_#/net.safetensors", "consumed_samples_#/tape.xyz"],
    "a checkpoint for each rank": [f"slice{rank}-#.safetensors" for rank in range(4)],
    "a file for each rank in the folder": [
        "step_#/model.safetensors",
        *(f"step_#/tape{rank}.xyz" for rank in range(4)),
    ],
    "a file for each rank in two folders": [
        "step_#/model.safetensors",
        *(f"step_#/tapes/tape{rank}.xyz" for rank in range(4)),
    ],
    "a file for each rank beside": [
        "net/step_#.safetensors",
        *(f"tapes/#/r{rank}.xyz" for rank in range(4)),
    ],
    "a folder for each rank": [f"rank_{rank}/step_#.safetensors" for rank in range(4)],
    "counts of tokens": ["#M-tokens/net.safetensors", "#M-tokens/tape.xyz"],
}
NAMES = list(LAYOUTS)
BEGUN_S = time.time() - 40_000
KEEP = Keep(fast=1, last=1, foreign=True)


def named(name: str, step: int) -> str:
    """Return a name of a layout: # is the step, * a number that changes with the step."""
    return name.replace("#", str(step)).replace("*", str(step // 100))


def save(folder: Path, names: list[str], step: int, *, late_s: float = 0.01) -> None:
    """Write a save of a step, an hour after the save of step - 100; late_s: between two files."""
    for place, name in enumerate(names):
        at_s = BEGUN_S + 36 * step + late_s * place
        state(folder / named(name, step), float(step), at_s=at_s)


def doubts(tier: Path, others: list[Checkpoint] | None = None) -> dict[str, str]:
    there = find(LocalStore(tier), others=others or [])
    return {checkpoint.name: checkpoint.doubt for checkpoint in there if checkpoint.doubt}


@pytest.fixture
def tiers(tmp_path: Path) -> tuple[Path, Path]:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    slow.mkdir()
    return fast, slow


@pytest.mark.parametrize("how", ["one by one", "at once"])
@pytest.mark.parametrize("layout", NAMES)
def test_the_last_whole_save_stays_and_is_named(
    tiers: tuple[Path, Path], layout: str, how: str
) -> None:
    fast, slow = tiers
    names = LAYOUTS[layout]
    for step in (100, 200, 300):
        save(fast, names[:-1] if step == 300 else names, step)
        if how == "one by one" or step == 300:
            drained(fast, slow, KEEP)
    drained(fast, slow, KEEP)
    for tier in (fast, slow):
        for name in names:
            assert value_of(tier / named(name, 200)) == 200
    chosen = latest_valid(fast, slow)
    assert chosen.checkpoint is not None
    if layout == "folders of unknown words" and how == "one by one":
        return  # one earlier save with both parts may be a coincidence: both stay
    assert "200" in chosen.checkpoint.name
    lost = re.sub(r"\d+", "*", named(names[-1], 300).rpartition("/")[2])
    said = [re.sub(r"\d+", "*", why) for _, why in chosen.rejected]
    by_unit = ("widget", "slice*")  # the parts of a save that is one unit
    assert any(lost in why or any(word in why for word in by_unit) for why in said), said


@pytest.mark.parametrize("layout", NAMES)
def test_a_whole_save_is_not_doubted(tiers: tuple[Path, Path], layout: str) -> None:
    fast, slow = tiers
    for step in (100, 200, 300):
        save(fast, LAYOUTS[layout], step, late_s=20)  # a slow write is no evidence
        drained(fast, slow, KEEP)
    assert doubts(fast, find(LocalStore(slow))) == doubts(slow) == {}
    chosen = latest_valid(fast, slow).checkpoint
    assert chosen is not None
    assert "300" in chosen.name


@pytest.mark.parametrize("layout", NAMES)
def test_a_file_that_later_saves_lack_too_is_not_asked_for(
    tiers: tuple[Path, Path], layout: str
) -> None:
    fast, _ = tiers
    for step in (100, 200, 300, 400, 500):
        save(fast, LAYOUTS[layout][: 1 if step > 200 else None], step)
    assert not any("500" in name or "400" in name for name in doubts(fast))


@pytest.mark.parametrize(
    ("names", "of_steps"),
    [
        (["model-#.safetensors", "sample-#.png"], (100, 200)),  # pictures
        (["model-#.safetensors", "samples-#.xyz"], (100, 200)),
        (["step_#.safetensors", "top-3/step_#.safetensors"], (100, 200)),
        (["model-#.safetensors", "metrics-#.json"], (100, 200)),
        (["step_#/model.safetensors", "step_#/eval_results.csv"], (100, 200)),
        (["seed_1/step_#.safetensors", "seed_2/step_#.safetensors"], (100, 200)),  # another run
        (["run_7/#/net.safetensors", "run_8/#/net.safetensors"], (100, 200)),
        (["model-#.safetensors", "optim-#.xyz"], (100,)),  # each third save has one
        (["#/model.safetensors", "#/generated/answers.jsonl"], (100, 200)),
    ],
)
def test_what_is_no_part_of_each_save_is_not_asked_for(
    tiers: tuple[Path, Path], names: list[str], of_steps: tuple[int, ...]
) -> None:
    fast, _ = tiers
    for step in (100, 200, 300):
        save(fast, names if step in of_steps else names[:1], step)
    assert not [name for name, why in doubts(fast).items() if "300" in name and "no " in why]


@pytest.mark.parametrize(
    "names",
    [
        ["step_#/model.safetensors", "step_#/pieces/{}.xyz"],
        ["net/step_#.safetensors", "buffers/step_#-{}.xyz"],
    ],
    ids=["in the folder", "beside"],
)
def test_saves_that_differ_in_the_number_of_files_are_not_doubted(
    tiers: tuple[Path, Path], names: list[str]
) -> None:
    """A buffer in pieces, with three to seven pieces."""
    fast, _ = tiers
    for step, n in zip((100, 200, 300, 400, 500), (6, 7, 5, 6, 3), strict=True):
        save(fast, [names[0], *(names[1].format(piece) for piece in range(n))], step)
    assert not any("500" in name or "400" in name for name in doubts(fast))


def test_ranks_are_not_taken_for_the_numbers_of_saves(tiers: tuple[Path, Path]) -> None:
    """Epochs 0 to 3 by 4 ranks: r3 of epoch 1 is no file of save 3."""
    fast, slow = tiers
    names = ["epoch_#/model.safetensors", *(f"epoch_#/tapes/r{rank}.xyz" for rank in range(4))]
    for epoch in range(4):
        for place, name in enumerate(names[:-1] if epoch == 3 else names):
            at_s = BEGUN_S + 3600 * epoch + place
            state(fast / name.replace("#", str(epoch)), float(epoch), at_s=at_s)
    drained(fast, slow, KEEP)
    assert value_of(slow / "epoch_2/tapes/r3.xyz") == 2
    assert doubts(fast) == {
        "epoch_3": "only 3 of the 4 files tapes/r*.xyz, which the save of 2 has"
    }


def test_a_description_of_the_first_save_is_not_asked_for(tiers: tuple[Path, Path]) -> None:
    fast, _ = tiers
    names = ["step_#/model.safetensors", "step_#/code.patch", "step_#/config.yaml"]
    save(fast, names, 100)
    save(fast, names[:1], 200)
    assert doubts(fast) == {}


def test_what_is_written_long_after_the_saves_is_not_asked_for(tiers: tuple[Path, Path]) -> None:
    fast, _ = tiers
    for step in (100, 200, 300):
        save(fast, ["model-#.safetensors", "judged-#.xyz"][: 2 if step < 300 else 1], step,
             late_s=600)  # fmt: skip
    assert doubts(fast) == {}


@pytest.mark.parametrize(
    "names",
    [
        ["model-#.safetensors", "tape-#.xyz"],
        ["weights/#/net.safetensors", "tapes/#/tape.xyz"],
        ["step_#/model.safetensors", "step_#/tape.xyz"],
        ["weights/#/net.safetensors", *(f"tapes/#/r{rank:04d}.xyz" for rank in range(300))],
    ],
    ids=["loose", "folders", "folder", "300 ranks"],
)
def test_the_first_save_stays_if_the_second_was_killed(
    tiers: tuple[Path, Path], names: list[str]
) -> None:
    fast, slow = tiers
    save(fast, names, 100)
    drained(fast, slow, KEEP)
    save(fast, names[:1], 200)
    drained(fast, slow, KEEP)
    assert drained(fast, slow, KEEP) == []
    for tier in (fast, slow):
        assert all((tier / named(name, 100)).exists() for name in names)
    chosen = latest_valid(fast, slow).checkpoint
    assert chosen is not None
    assert "100" in chosen.name


def test_a_file_that_comes_late_is_there(tiers: tuple[Path, Path]) -> None:
    fast, slow = tiers
    for step, late_s in ((100, 5), (200, 30), (300, 70)):
        save(fast, ["model-#.safetensors", "tape-#.xyz"], step, late_s=late_s)
        drained(fast, slow)
    assert doubts(fast) == doubts(slow) == {}


def test_a_save_of_which_a_part_is_doubted_is_doubted(tiers: tuple[Path, Path]) -> None:
    fast, slow = tiers
    names = ["weights/#/net.safetensors", "tapes/#/a.safetensors", "tapes/#/b.xyz"]
    for step in (100, 200, 300):
        save(fast, names[: 2 if step == 300 else None], step)
        drained(fast, slow, KEEP)
    assert doubts(fast).keys() == doubts(slow).keys() == {"weights/300", "tapes/300"}
    chosen = latest_valid(fast, slow)
    assert chosen.step == 200


def test_a_file_that_never_came_to_slow_shows_on_fast(tiers: tuple[Path, Path]) -> None:
    # A damaged npz file is not copied: no name on SLOW shows what the save of 300 lacks.
    fast, slow = tiers
    for step in (100, 200):
        save(fast, ["weights/net-#.safetensors", "tapes/tape-#.npz"], step)
        drained(fast, slow)
    save(fast, ["weights/net-#.safetensors"], 300)
    drained(fast, slow, KEEP)
    assert not list(slow.glob("tapes/*"))
    assert (slow / "weights/net-200.safetensors").exists()


@pytest.mark.parametrize("layout", NAMES)
def test_fetch_brings_all_files_of_the_save_and_of_no_other(
    tiers: tuple[Path, Path], layout: str, tmp_path: Path
) -> None:
    fast, slow = tiers
    for step in (100, 200, 300):
        save(fast, LAYOUTS[layout], step)
        drained(fast, slow)
    drained(fast, slow, Keep(last=2))
    node = tmp_path / "node"
    node.mkdir()
    chosen = latest_valid(node, slow).checkpoint
    assert chosen is not None
    fetch_save(chosen, node)
    there = {
        str(path.relative_to(node))
        for path in node.rglob("*")
        if path.is_file() and "penstock" not in str(path.relative_to(node))
    }
    assert there == {named(name, 300) for name in LAYOUTS[layout]}


def test_fetch_names_the_saves_of_an_equal_step_that_it_leaves(
    tiers: tuple[Path, Path], tmp_path: Path
) -> None:
    fast, slow = tiers
    for step in (100, 200):
        save(fast, ["seed_1/step_#.safetensors", "seed_2/step_#.safetensors"], step)
        drained(fast, slow)
    node = tmp_path / "node"
    node.mkdir()
    chosen = latest_valid(node, slow).checkpoint
    assert chosen is not None
    fetched = fetch_save(chosen, node)
    other = {"seed_1", "seed_2"} - {chosen.name.partition("/")[0]}
    [said] = fetched.left
    assert said == f"{slow / other.pop() / 'step_200.safetensors'}: of an equal step; not copied"


def test_a_drain_of_files_that_are_no_checkpoint_says_so(tiers: tuple[Path, Path]) -> None:
    fast, slow = tiers
    (fast / "gizmo7.qqq").write_bytes(bytes(range(200)))
    ended = CliRunner().invoke(cli.cli, ["save", "drain", str(fast), str(slow)])
    assert ended.exit_code == 0
    said = (
        f"{fast} has 1 file gizmo7.qqq, of no checkpoint that Penstock knows: each file is copied"
    )
    assert said in ended.output
    state(fast / "model-7.safetensors", 7)
    ended = CliRunner().invoke(cli.cli, ["save", "drain", str(fast), str(slow)])
    assert "of no checkpoint" not in ended.output
