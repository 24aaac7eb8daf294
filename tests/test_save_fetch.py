"""Test `recover --fetch`: with a checkpoint come the files of its training that no step has."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from penstock import cli
from penstock.cli.draining import fetch_choice
from penstock.save.drain import fetching
from penstock.save.drain.retention import Keep
from penstock.save.verify import latest_valid
from saves import drained, state, value_of

T = 1_700_000_000


def write(path: Path, text: str, at_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(int(at_s * 1e9), int(at_s * 1e9)))


def fetched(slow: Path, empty: Path) -> Result:
    empty.mkdir(exist_ok=True)
    return CliRunner().invoke(cli.cli, ["save", "recover", str(empty), str(slow), "--fetch"])


def damage(path: Path) -> None:
    """Flip the last bit of a file; the times stay."""
    times, data = path.stat(), bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def torchtune(fast: Path, slow: Path, n_epochs: int, drains: int) -> None:
    """Save as torchtune does: a folder for each epoch, and one state that each save replaces."""
    for epoch in range(n_epochs):
        at_s = T + 1000 * epoch
        state(fast / f"epoch_{epoch}/model.safetensors", epoch, at_s=at_s)
        write(fast / f"epoch_{epoch}/config.json", json.dumps({"epoch": epoch}), at_s)
        state(fast / "recipe_state/recipe_state.safetensors", epoch, at_s=at_s + 5)
        if epoch < drains:
            assert drained(fast, slow) == []


def test_a_state_that_each_save_replaces_comes_with_the_newest(tmp_path: Path) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    torchtune(fast, slow, 3, 3)
    ended = fetched(slow, empty)
    assert (ended.exit_code, ended.stdout) == (0, f"{empty}/epoch_2\n"), ended.output
    assert value_of(empty / "epoch_2/model.safetensors") == 2
    assert value_of(empty / "recipe_state/recipe_state.safetensors") == 2
    assert sorted(path.name for path in empty.iterdir()) == [".penstock", "epoch_2", "recipe_state"]
    assert "not copied" not in ended.stderr


def test_a_state_of_a_later_save_stays_and_is_named(tmp_path: Path) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    torchtune(fast, slow, 3, 3)
    (slow / "epoch_2/model.safetensors").unlink()
    ended = fetched(slow, empty)
    assert (ended.exit_code, ended.stdout) == (0, f"{empty}/epoch_1\n"), ended.output
    assert not (empty / "recipe_state").exists()
    assert "recipe_state.safetensors: 1,005 s newer than epoch_1; not copied" in ended.stderr


def test_a_save_that_turns_out_damaged_leaves_no_state_for_the_save_before(tmp_path: Path) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    torchtune(fast, slow, 3, 3)
    empty.mkdir()
    choice = latest_valid(empty, slow)
    damage(slow / "epoch_2/model.safetensors")
    earlier, where = fetch_choice(choice, empty, str(slow))
    assert (earlier.step, where) == (1, f"{empty}/epoch_1")
    assert not list((empty / "recipe_state").glob("*"))


def test_a_state_in_the_middle_between_two_quick_saves_comes_with_its_own(tmp_path: Path) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    for step in (10, 20, 30):
        state(fast / f"step_{step}.safetensors", step, at_s=T + step)
        state(fast / "optim.safetensors", step, at_s=T + step + 4)
        assert drained(fast, slow) == []
    (slow / "step_30.safetensors").unlink()
    assert fetched(slow, empty).stdout == f"{empty}/step_20.safetensors\n"
    assert not (empty / "optim.safetensors").exists()


@pytest.mark.parametrize("shared", ["model-symbol.json", "tokenizer.model", "config.yaml"])
def test_a_file_that_all_steps_share_comes_with_any(tmp_path: Path, shared: str) -> None:
    """MXNet writes the network's description once, beside the parameters of each epoch."""
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    write(fast / shared, '{"nodes": 1}', T)
    for epoch in (4, 5):
        for ending in ("params", "states"):
            write(fast / f"model-{epoch:04d}.{ending}", "content" * 50, T + 100 * epoch)
    assert drained(fast, slow) == []
    write(slow / "other-run.txt", "of another program", T)
    ended = fetched(slow, empty)
    assert ended.exit_code == 0, ended.output
    names = ["model-0005.params", "model-0005.states", shared]
    assert {path.name for path in empty.iterdir()} >= set(names)
    assert (empty / shared).read_text() == '{"nodes": 1}'
    assert not (empty / "other-run.txt").exists()
    assert drained(empty, slow) == []  # and nothing of it goes to the slow tier again


def test_a_file_on_the_fast_tier_is_not_replaced(tmp_path: Path) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    write(fast / "config.yaml", "lr: 1", T)
    state(fast / "step_100.safetensors", 100, at_s=T)
    assert drained(fast, slow) == []
    write(empty / "config.yaml", "lr: 2", T)
    assert fetched(slow, empty).exit_code == 0
    assert (empty / "config.yaml").read_text() == "lr: 2"


def test_a_file_too_large_is_named_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    state(fast / "step_100.safetensors", 100, at_s=T)
    for name, size in (("a.txt", 10), ("b.txt", 2000), ("c.txt", 3000)):
        write(fast / name, "x" * size, T)
    assert drained(fast, slow) == []
    monkeypatch.setattr(fetching, "HINT_BYTES", 1000)
    ended = fetched(slow, empty)
    assert ended.exit_code == 0, ended.output
    assert f"{slow}/b.txt and 1 larger files: no part of a checkpoint; not copied" in ended.stderr
    assert (empty / "a.txt").exists()
    assert not (empty / "b.txt").exists()


@pytest.mark.parametrize("newest", [200, 100])
def test_a_pointer_comes_if_it_names_the_checkpoint(tmp_path: Path, newest: int) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    for step in (100, 200):
        state(fast / f"step_{step}/model.safetensors", step, at_s=T + step)
    write(fast / "latest", "step_200", T + 201)
    assert drained(fast, slow) == []
    if newest == 100:
        (slow / "step_200/model.safetensors").unlink()
    ended = fetched(slow, empty)
    assert ended.stdout == f"{empty}/step_{newest}\n", ended.output
    assert (empty / "latest").exists() == (newest == 200)
    assert ("latest: names another checkpoint; not copied" in ended.stderr) == (newest == 100)


@pytest.mark.parametrize(
    "name", ["best.safetensors", "final/model.safetensors", "run2/net.safetensors"]
)
def test_a_checkpoint_of_its_own_stays_on_the_slow_tier(tmp_path: Path, name: str) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    state(fast / name, 50, at_s=T + 50)
    state(fast / "step_100/model.safetensors", 100, at_s=T + 100)
    assert drained(fast, slow) == []
    ended = fetched(slow, empty)
    assert ended.stdout == f"{empty}/step_100\n", ended.output
    assert not (empty / name).exists()


@pytest.mark.parametrize("broken", ["weights", "optim", "ema"])
def test_of_a_save_with_a_damaged_part_no_part_is_copied(tmp_path: Path, broken: str) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    for step in (1, 2, 3):
        for place, part in enumerate(("weights", "optim", "ema")):
            state(fast / f"{part}/step_{step}.safetensors", step, at_s=T + 100 * step + place)
        assert drained(fast, slow) == []
    empty.mkdir()
    choice = latest_valid(empty, slow)
    damage(slow / f"{broken}/step_3.safetensors")
    earlier, where = fetch_choice(choice, empty, str(slow))
    assert earlier.step == 2
    assert value_of(Path(where)) == 2
    there = sorted(path.relative_to(empty) for path in empty.rglob("*.safetensors"))
    assert there == [Path(f"{part}/step_2.safetensors") for part in ("ema", "optim", "weights")]


@pytest.mark.parametrize(
    ("shared", "chosen"),
    [
        ("recipe_state/recipe_state.safetensors", 3),
        ("optim.safetensors", 3),
        ("replay_buffer.safetensors", 3),
        ("tokens.safetensors", 4),  # need not change with each step
    ],
)
def test_a_step_without_its_state_gives_way_to_the_step_of_the_state(
    tmp_path: Path, shared: str, chosen: int
) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    for step in (1, 2, 3, 4):
        state(fast / f"epoch_{step}/model.safetensors", step, at_s=T + 100 * step)
        if step < 4:  # killed before the second part of the save
            state(fast / shared, step, at_s=T + 100 * step + 5)
        drained(fast, slow)
    shutil.rmtree(fast)
    ended = fetched(slow, empty)
    assert (ended.exit_code, ended.stdout) == (0, f"{empty}/epoch_{chosen}\n"), ended.output
    assert value_of(empty / shared) == 3
    name = shared.rpartition("/")[2]
    assert f"{name} was written with epoch_3, before epoch_4" in ended.stderr
    said = "of two saves" if chosen == 3 else "if the training reads both, begin from epoch_3"
    assert said in ended.stderr


def test_a_state_that_was_written_once_comes_with_any_step(tmp_path: Path) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    state(fast / "ema_init_state.safetensors", 0, at_s=T)
    state(fast / "vae.safetensors", 0, at_s=T - 1000)
    for step in (1, 2, 3):
        state(fast / f"step_{step}.safetensors", step, at_s=T + 100 * step)
    assert drained(fast, slow) == []
    ended = fetched(slow, empty)
    assert ended.stdout == f"{empty}/step_3.safetensors\n", ended.output
    assert (empty / "vae.safetensors").exists()


def test_pointers_beside_each_part_come_too(tmp_path: Path) -> None:
    """OpenRLHF: two models, each in a folder with DeepSpeed's pointer."""
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    for step in (10, 20):
        for place, part in enumerate(("actor", "critic")):
            at_s = T + 100 * step + place
            state(fast / f"{part}/step_{step}/model.safetensors", step, at_s=at_s)
            write(fast / f"{part}/latest", f"step_{step}", at_s + 0.5)
        assert drained(fast, slow) == []
    ended = fetched(slow, empty)
    assert ended.exit_code == 0, ended.output
    for part in ("actor", "critic"):
        assert (empty / f"{part}/latest").read_text() == "step_20"
        assert value_of(empty / f"{part}/step_20/model.safetensors") == 20


@pytest.mark.parametrize(
    ("pointer", "content", "is_copied"),
    [
        ("latest", "step_1", True),
        ("latest", "step_10", False),
        ("latest", "step_2", False),
        ("latest", "1", True),
        ("latest", "iteration 1 of 10", False),
        ("latest", "runs/tuesday/step_1", True),
        ("latest_checkpointed_iteration.txt", "1\n", True),
        ("latest_checkpointed_iteration.txt", "10\n", False),
        ("checkpoint", 'model_checkpoint_path: "step_1"\nall: "step_10"\n', True),
    ],
)
def test_a_pointer_is_read_by_whole_names(
    tmp_path: Path, pointer: str, content: str, is_copied: bool
) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    state(fast / "step_1/model.safetensors", 1, at_s=T + 1)
    write(fast / pointer, content, T + 2)
    assert drained(fast, slow) == []
    ended = fetched(slow, empty)
    assert ended.stdout == f"{empty}/step_1\n", ended.output
    assert (empty / pointer).exists() == is_copied


def test_a_checkpoint_of_its_own_is_named(tmp_path: Path) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    for step in (1, 2):
        state(fast / f"checkpoint_{step}_{step}00.safetensors", step, at_s=T + 100 * step)
        state(fast / "checkpoint_last.safetensors", step, at_s=T + 100 * step + 1)
        assert drained(fast, slow) == []
    ended = fetched(slow, empty)
    assert ended.exit_code == 0, ended.output
    assert "checkpoint_last.safetensors: a checkpoint of its own; not copied" in ended.stderr


def test_a_new_node_needs_no_folder_and_reads_where_the_copy_is(tmp_path: Path) -> None:
    fast, slow, lost = tmp_path / "fast", tmp_path / "slow", tmp_path / "lost"
    torchtune(fast, slow, 1, 1)
    words = ["save", "recover", str(lost), str(slow)]
    without = CliRunner().invoke(cli.cli, words)
    assert without.exit_code == 2
    assert f"mkdir -p {lost}, then this command with --fetch" in " ".join(without.stderr.split())
    ended = CliRunner().invoke(cli.cli, [*words, "--fetch"])
    assert (ended.exit_code, ended.stdout) == (0, f"{lost}/epoch_0\n"), ended.output
    said = f"copied to {lost}/epoch_0, with recipe_state/recipe_state.safetensors"
    assert said in " ".join(ended.stderr.split())
    no_parent = CliRunner().invoke(
        cli.cli, ["save", "recover", f"{lost}/a/b", str(slow), "--fetch"]
    )
    assert no_parent.exit_code == 2  # a tier that is not mounted


def test_without_fetch_an_older_state_on_the_fast_tier_is_named(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    torchtune(fast, slow, 3, 3)
    state(fast / "epoch_3/model.safetensors", 3, at_s=T + 3000)
    write(fast / "epoch_3/config.json", "{}", T + 3000)
    ended = CliRunner().invoke(cli.cli, ["save", "recover", str(fast), str(slow)])
    assert ended.stdout == f"{fast}/epoch_3\n", ended.output
    said = "of two saves: recipe_state/recipe_state.safetensors was written with epoch_2, before"
    assert said in ended.stderr


@pytest.mark.parametrize("command", ["drain", "prune"])
@pytest.mark.parametrize(
    ("shared", "is_kept"),
    [
        ("recipe_state/recipe_state.safetensors", True),
        ("optim.safetensors", True),
        ("tokens.safetensors", False),  # need not change with each step
    ],
)
def test_retention_keeps_the_newest_save_that_has_its_state(
    tmp_path: Path, shared: str, is_kept: bool, command: str
) -> None:
    """A kill came between the two parts of the newest save."""
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    keep = Keep(fast=1, last=1, foreign=True)
    for step in (1, 2, 3, 4):
        state(fast / f"epoch_{step}/model.safetensors", step, at_s=T + 100 * step)
        if step < 4:
            state(fast / shared, step, at_s=T + 100 * step + 5)
        rule = keep if command == "drain" else None
        assert drained(fast, slow, rule) == []
    words = ["--keep-fast", "1", "--keep-last", "1", "--foreign"]
    if command == "prune":
        words = ["save", "prune", str(fast), str(slow), *words]
        assert CliRunner().invoke(cli.cli, words).exit_code == 0
    there = {"epoch_3", "epoch_4"} if is_kept else {"epoch_4"}
    for tier in (fast, slow):
        assert {path.name for path in tier.glob("epoch_*")} == there
    shutil.rmtree(fast)
    ended = fetched(slow, empty)
    chosen = 3 if is_kept else 4
    assert (ended.exit_code, ended.stdout) == (0, f"{empty}/epoch_{chosen}\n"), ended.output
    assert value_of(empty / shared) == 3


def test_a_save_with_its_state_lets_the_older_saves_go(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in range(1, 6):
        state(fast / f"epoch_{step}/model.safetensors", step, at_s=T + 100 * step)
        state(fast / "recipe_state/recipe_state.safetensors", step, at_s=T + 100 * step + 5)
        assert drained(fast, slow, Keep(fast=1, last=1, foreign=True)) == []
    for tier in (fast, slow):
        assert [path.name for path in tier.glob("epoch_*")] == ["epoch_5"]
