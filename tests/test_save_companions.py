"""Test checkpoints of files without a known word: each whole save is one checkpoint with all its
files, and a save without one of its files is reported."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.checkpoint import Checkpoint
from penstock.save.drain.retention import Keep
from penstock.save.find.formats import find
from penstock.save.unit.companions import gap_in, is_marker
from penstock.save.unit.units import grouped
from penstock.save.verify import latest_valid
from saves import drained, safetensors

T = 1_700_000_000


def write(tier: Path, names: Sequence[str], save: int) -> None:
    """Write the files of a save, a hundredth of a second after each other; saves are a minute
    apart."""
    for place, name in enumerate(names):
        path = tier / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(safetensors(save) if path.suffix == ".safetensors" else os.urandom(300))
        at_ns = round(1e9 * (T + 60 * save + place / 100))
        os.utime(path, ns=(at_ns, at_ns))


def of_save(tier: Path, names: Sequence[str], like: Sequence[str] = ()) -> list[Checkpoint]:
    """Return the checkpoints with a file of these names."""
    return [one for one in find(LocalStore(tier)) if {file.name for file in one.files} & set(names)]


# {0} is the number of the save, {1} the step.
SAVES = {
    "a file without a known word": ("actor_{1}.params", "learner_{1}.params", "replay_{1}.params"),
    "a version": ("model_v{0}.params", "optim_v{0}.params", "vectorizer_v{0}.params"),
    "llm.c": ("model_{1:08d}.bin", "state_{1:08d}_00000.bin", "state_{1:08d}_00001.bin",
              "DONE_{1:08d}"),
    "a folder with a date": tuple(
        f"ckpt/2026110{{0}}T120000F77/{name}.pkl" for name in ("agent", "replay", "step")
    ),
    "numbers": tuple(f"step_{{1}}/{number}.raw" for number in range(5)),
    "numbers with zeros": tuple(f"step_{{1}}/{number:04d}.raw" for number in range(5)),
    "numbers without an ending": tuple(f"step_{{1}}/{number}" for number in range(5)),
    "arrays of Zarr": ("step_{1}/w/.zarray", "step_{1}/w/0.0", "step_{1}/m/.zarray",
                       "step_{1}/m/0.0"),
    "a marker": ("step_{1}/model.safetensors", "step_{1}/optim.safetensors", "step_{1}/_SUCCESS"),
}  # fmt: skip
CHUNKS = {"step_400/w/0.0", "step_400/m/0.0"}  # of which a missing one means zeros


def names_of(kind: str, save: int) -> list[str]:
    return [name.format(save, 100 * save) for name in SAVES[kind]]


@pytest.mark.parametrize("kind", SAVES)
def test_the_files_of_a_save_are_one_checkpoint_and_a_missing_file_is_reported(
    tmp_path: Path, kind: str
) -> None:
    for save in (1, 2, 3):
        write(tmp_path, names_of(kind, save), save)
    for save in (1, 2, 3):
        names = names_of(kind, save)
        (one,) = of_save(tmp_path, names)
        assert {file.name for file in one.files} == set(names)
        assert one.problem == ""
    names = names_of(kind, 4)
    for lost in sorted(set(names) - CHUNKS):
        tier = tmp_path / "again"
        shutil.copytree(tmp_path, tier)
        write(tier, [name for name in names if name != lost], 4)
        units = [one for one in of_save(tier, names) if one.step is not None or "v4" in one.name]
        assert all(one.problem for one in units), (lost, units)
        shutil.rmtree(tier)


@pytest.mark.parametrize("kind", sorted(set(SAVES) - {"arrays of Zarr", "a folder with a date"}))
def test_a_drain_never_copies_a_part_and_retention_keeps_the_newest_whole_save(
    fast: Path, slow: Path, kind: str
) -> None:
    keep = Keep(fast=1, last=1, foreign=True)
    for save in (1, 2, 3):
        write(fast, names_of(kind, save), save)
        assert drained(fast, slow, keep) == []
    whole, part = names_of(kind, 3), names_of(kind, 4)[:-1]
    write(fast, part, 4)
    left = drained(fast, slow, keep)
    assert any(line.startswith(part[0][:5]) for line in left), left
    for tier in (fast, slow):
        assert all((tier / name).exists() for name in whole)
    assert not any((slow / name).exists() for name in part)
    choice = latest_valid(fast, slow)
    assert choice.checkpoint is not None
    assert {file.name for file in choice.checkpoint.files} == set(whole)


def test_outputs_of_a_training_are_no_part_of_the_save() -> None:
    names = ["model_300.pt", "predictions_300.npz", "samples_300.npz", "val_loss_300.npy",
             "fid_300.pkl", "features_v3.npz", "model_v3.pt"]  # fmt: skip
    assert all(len(unit.files) == 1 for unit in grouped(names))


def test_data_with_numbers_of_its_own_is_never_removed(fast: Path, slow: Path) -> None:
    """Episodes are numbered by themselves; a data set has a number that happens to be a step."""
    episodes = [f"episode_{number}.bin" for number in range(1, 41)]
    keep = Keep(fast=1, last=1, foreign=True)
    write(fast, ["tokens_10.bin"], -100)
    for save in (1, 2, 3, 4):
        write(fast, episodes[10 * (save - 1) : 10 * save], save)
        write(fast, [f"model_{10 * save}.params", f"optim_{10 * save}.params"], save)
        assert drained(fast, slow, keep) == []
    for tier in (fast, slow):
        assert all((tier / name).exists() for name in (*episodes, "tokens_10.bin"))
    assert {path.name for path in slow.glob("*.params")} == {"model_40.params", "optim_40.params"}


def test_two_numbers_of_which_neither_is_the_step_of_another_file_make_no_group() -> None:
    names = ["model_00000300.bin", "state_00000100_00001.bin", "state_00000200_00001.bin"]
    assert {unit.files for unit in grouped(names)} == {("model_00000300.bin",)}


@pytest.mark.parametrize("pattern", ["p-{:05d}.raw", "{}.raw", "{}.npy"])
def test_a_file_whose_number_equals_the_step_is_not_missing(tmp_path: Path, pattern: str) -> None:
    for step in range(9, 14):
        write(tmp_path, [f"step_{step}/{pattern.format(n)}" for n in range(20)], step)
    assert {one.step: one.problem for one in find(LocalStore(tmp_path))} == dict.fromkeys(
        range(9, 14), ""
    )


def test_a_program_that_writes_more_or_fewer_numbered_files_is_not_reported(
    tmp_path: Path,
) -> None:
    for save, n in enumerate((5, 3, 4, 3, 5, 4), 1):
        write(tmp_path, [f"step_{save}00/{number}.raw" for number in range(n)], save)
    assert all(not one.problem for one in find(LocalStore(tmp_path)) if one.step != 200)


def test_a_gap_in_the_first_save_is_reported_until_another_save_has_it_too(
    tmp_path: Path,
) -> None:
    numbers = (0, 1, 3, 4)
    write(tmp_path, [f"step_100/{number}.raw" for number in numbers], 1)
    (one,) = find(LocalStore(tmp_path))
    assert one.problem == "no 2.raw: a gap in the numbers of its files"
    write(tmp_path, [f"step_200/{number}.raw" for number in numbers], 2)
    assert [one.problem for one in find(LocalStore(tmp_path))] == ["", ""]


@pytest.mark.parametrize(
    ("names", "lost"),
    [
        (["0.bin", "1.bin", "3.bin"], "2.bin"),
        (["a/0001.raw", "a/0002.raw", "a/0004.raw"], "a/0003.raw"),
        (["ep1-rank0.pt", "ep1-rank1.pt", "ep1-rank3.pt"], "ep1-rank2.pt"),
        (["m_world_size_4_rank_0.pt", "m_world_size_4_rank_1.pt"], "m_world_size_4_rank_2.pt"),
        (["m_world_size_2_rank_0.pt", "m_world_size_2_rank_1.pt"], ""),
        (["0.bin", "1.bin", "2.bin"], ""),
        (["10.bin", "20.bin", "30.bin"], ""),
        (["a/part-0.bin", "b/part-1.bin", "a/part-2.bin", "b/part-3.bin", "a/part-4.bin"], ""),
        (["0.bin", "1.json", "2.bin", "3.json", "4.bin"], ""),
        (["0.bin", "7.bin"], ""),
        (["layer_00.pt", "layer_02.pt", "layer_03.pt"], ""),
        (["step_1.pt", "step_2.pt", "step_4.pt"], ""),
        (["0.bin", "100.bin", "200.bin"], ""),
        (["0.bin", "1.bin", "999999999.bin"], ""),  # no list of a billion numbers
    ],
)
def test_a_gap_is_one_of_ranks_and_bare_numbers_only(names: list[str], lost: str) -> None:
    assert gap_in(names) == lost


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("DONE_00000300", True), ("_SUCCESS", True), ("done", True), ("step_3.done", False),
     ("commit_success.txt", True), ("done_model.pt", False), ("abandoned", False)],
)  # fmt: skip
def test_a_marker_of_the_end_of_a_save(name: str, is_one: bool) -> None:
    assert is_marker(name) is is_one


# Pointers that a framework writes at the end of a save.

POINTED = {
    "verl": ("latest_checkpointed_iteration.txt", "global_step_{}", "{}",
             ("actor/model.safetensors", "data.safetensors")),
    "DeepSpeed": ("latest", "global_step{}", "global_step{}",
                  ("layer_00-model_00-model_states.pt", "layer_02-model_00-model_states.pt",
                   "mp_rank_00_model_states.pt")),
}  # fmt: skip


@pytest.mark.parametrize("kind", POINTED)
def test_a_save_newer_than_the_pointer_has_not_ended(tmp_path: Path, kind: str) -> None:
    pointer, folder, text, names = POINTED[kind]
    for save in (1, 2):
        write(tmp_path, [f"{folder.format(save)}/{name}" for name in names], save)
        (tmp_path / pointer).write_text(text.format(save))
        os.utime(tmp_path / pointer, (T + 60 * save + 1, T + 60 * save + 1))
    assert [one.problem for one in find(LocalStore(tmp_path))] == ["", ""]
    write(tmp_path, [f"{folder.format(3)}/{name}" for name in names], 3)
    newest = find(LocalStore(tmp_path))[0]
    assert newest.problem == f"{pointer} names {text.format(2)}: the save did not end"
    # A program that writes a second save without the pointer does not use the pointer.
    write(tmp_path, [f"{folder.format(4)}/{name}" for name in names], 4)
    assert [one.problem for one in find(LocalStore(tmp_path))] == [""] * 4


def test_a_pipeline_without_a_layer_or_without_its_ranks_is_reported(tmp_path: Path) -> None:
    names = POINTED["DeepSpeed"][3]
    for save in (1, 2):
        write(tmp_path, [f"global_step{save}/{name}" for name in names], save)
    write(tmp_path, [f"global_step3/{name}" for name in names[1:]], 3)
    assert find(LocalStore(tmp_path))[0].problem == (
        "no layer_00-model_00-model_states.pt, which global_step2 beside it has"
    )
    shutil.rmtree(tmp_path / "global_step3")
    write(tmp_path, [f"global_step3/{name}" for name in names[:2]], 3)
    assert "no mp_rank_00_model_states.pt" in find(LocalStore(tmp_path))[0].problem


@pytest.mark.parametrize("late", [5, -5])
def test_a_state_without_its_companion_of_another_time_is_copied_once(
    fast: Path, slow: Path, late: int
) -> None:
    """Written minutes before or after the state: the number equals the step by chance."""
    for step in (100, 200):
        write(fast, [f"model-{step}.pdparams"], step)
        write(fast, [f"alpha-{step}.bin"], step + late)
    assert drained(fast, slow) == []
    before = {path.name: path.stat().st_ino for path in slow.iterdir()}
    assert drained(fast, slow) == []
    assert {path.name: path.stat().st_ino for path in slow.iterdir()} == before
    assert all(one.is_ours for one in find(LocalStore(slow)))
    assert drained(fast, slow, Keep(fast=1, last=1, foreign=True)) == []
    assert [one.name for one in find(LocalStore(slow))] == ["model-200.pdparams"]
