"""Which save is the newest, where a step does not say so: a training that goes back, epochs whose
steps begin anew, a clock that was set, parts that are saved seldom."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.checkpoint import mark_of_half
from penstock.save.drain.retention import Keep
from penstock.save.find.formats import find
from penstock.save.verify import latest_valid
from saves import drained, state

KEEP = Keep(fast=2, last=2, foreign=True)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    (tmp_path / "slow").mkdir()
    return tmp_path / "slow"


def drain(fast: Path, slow: Path, keep: Keep = KEEP) -> None:
    drained(fast, slow, keep)


def saved(fast: Path, slow: Path, *names: str, keep: Keep = KEEP) -> None:
    """Save one checkpoint after the other, with a drain after each."""
    for name in names:
        state(fast / name, 1)
        time.sleep(0.02)  # kernels keep times in ticks of some milliseconds
        drain(fast, slow, keep)


def files(folder: Path) -> set[str]:
    return {
        os.fspath(path.relative_to(folder)) for path in folder.rglob("*.safetensors")
        if ".penstock" not in path.parts
    }  # fmt: skip


def newest(fast: Path, slow: Path) -> str:
    path = latest_valid(fast, slow).path
    assert path is not None
    return os.fspath(path.relative_to(fast)) if path.is_relative_to(fast) else os.fspath(path)


def test_a_training_that_goes_back_keeps_what_it_saves(fast: Path, slow: Path) -> None:
    saved(fast, slow, *(f"step_{step}.safetensors" for step in (100, 200, 300, 400, 250, 275)))
    kept = {f"step_{step}.safetensors" for step in (250, 275, 300, 400)}
    assert files(fast) == files(slow) == kept
    assert newest(fast, slow) == "step_275.safetensors"
    (fast / "step_275.safetensors").unlink()
    assert newest(fast, slow) == str(slow / "step_275.safetensors")
    saved(fast, slow, "step_425.safetensors")
    assert newest(fast, slow) == "step_425.safetensors"


def test_a_lower_step_that_was_there_before_is_no_return(fast: Path, slow: Path) -> None:
    """Such as checkpoints that were copied into the folder in the order of their names."""
    for number, step in enumerate((100, 1000, 200, 300)):
        state(fast / f"step_{step}.safetensors", step, at_s=time.time() - 100 + number)
    drain(fast, slow)
    assert newest(fast, slow) == "step_1000.safetensors"
    assert "step_1000.safetensors" in files(slow)


def test_a_clock_that_was_set_back_changes_no_order(fast: Path, slow: Path) -> None:
    saved(fast, slow, "step_100.safetensors", "step_200.safetensors")
    state(fast / "step_300.safetensors", 300, at_s=time.time() - 3600)
    drain(fast, slow)
    assert newest(fast, slow) == "step_300.safetensors"
    assert {"step_200.safetensors", "step_300.safetensors"} <= files(slow)


@pytest.mark.parametrize(
    "names",
    [
        ("epoch_1/step_100", "epoch_1/step_150", "epoch_2/step_50"),
        ("model_ep1_it100", "model_ep1_it150", "model_ep2_it50"),
        ("model_epoch9_iter100", "model_epoch9_iter150", "model_epoch10_iter50"),
    ],
)
def test_of_epochs_whose_steps_begin_anew_the_later_epoch_is_newer(
    fast: Path, slow: Path, names: tuple[str, ...]
) -> None:
    for number, name in enumerate(names):
        state(fast / f"{name}.safetensors", number, at_s=time.time() - 100 + number)
    assert newest(fast, slow) == f"{names[-1]}.safetensors"
    drain(fast, slow, Keep(fast=1, foreign=True))
    assert files(fast) == {f"{names[-1]}.safetensors"}


def test_of_each_epoch_nothing_stays_for_ever(fast: Path, slow: Path) -> None:
    saved(fast, slow, *(f"epoch_{epoch}/step_{step}.safetensors"
                        for epoch in (1, 2, 3) for step in (50, 100)))  # fmt: skip
    assert files(slow) == {"epoch_3/step_50.safetensors", "epoch_3/step_100.safetensors"}


def test_the_newest_optimizer_stays_that_is_saved_with_each_third_model(
    fast: Path, slow: Path
) -> None:
    for step in (100, 200, 300, 400, 500):
        state(fast / f"model-{step}.safetensors", step)
        if step % 300 == 0:
            state(fast / f"optim-{step}.safetensors", step)
        time.sleep(0.02)
        drain(fast, slow)
    assert {"optim-300.safetensors", "model-300.safetensors"} <= files(slow)
    assert "model-200.safetensors" not in files(slow)


def test_the_first_file_of_a_save_that_pauses_stays(fast: Path, slow: Path) -> None:
    for step in (1, 2, 3):
        state(fast / f"lora-00000{step}-state" / "model.safetensors", step)
        state(fast / f"lora-00000{step}-state" / "optimizer.safetensors", step)
        drain(fast, slow)
    state(fast / "lora-000004-state" / "optimizer.safetensors", 4)
    drain(fast, slow)
    assert "lora-000004-state/optimizer.safetensors" in files(fast)


@pytest.mark.parametrize("damage", ["cut", "written"])
def test_a_damaged_copy_does_not_make_the_original_one_of_two_saves(
    fast: Path, slow: Path, damage: str
) -> None:
    for step in (1, 2):
        for part in ("model", "optim"):
            state(fast / f"step_{step}" / f"{part}.safetensors", step)
    drain(fast, slow)
    copy = slow / "step_2" / "optim.safetensors"
    data = copy.read_bytes()
    copy.write_bytes(data[:-50] if damage == "cut" else data[:-1] + b"x")
    assert newest(fast, slow) == "step_2"


@pytest.mark.parametrize("names", ["step_{}/{}", "{1}-{0}"])
@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_a_copy_that_lost_a_part_is_made_anew(
    fast: Path, slow: Path, damage: str, names: str
) -> None:
    for step in (1, 2):
        for part in ("model", "optim"):
            state(fast / f"{names.format(step, part)}.safetensors", step)
    drain(fast, slow)
    copy = slow / f"{names.format(2, 'optim')}.safetensors"
    data = copy.read_bytes()
    copy.unlink()
    if damage == "cut":
        copy.write_bytes(data[:-50])
    drain(fast, slow)
    assert copy.read_bytes() == data
    assert files(slow) == files(fast)


def test_the_files_of_a_first_save_that_come_one_by_one_stay(fast: Path, slow: Path) -> None:
    saved(fast, slow, "step_1.safetensors", "step_2.safetensors")
    parts = [f"state/{part}.safetensors" for part in ("model", "optimizer", "scheduler", "rng")]
    saved(fast, slow, *parts)
    assert set(parts) <= files(fast)


def test_a_checkpoint_under_a_fixed_name_stays_for_the_program(fast: Path, slow: Path) -> None:
    saved(fast, slow, "last.safetensors", *(f"step_{step}.safetensors" for step in range(1, 6)))
    assert files(fast) == {"last.safetensors", "step_4.safetensors", "step_5.safetensors"}


def test_names_that_are_new_in_each_save_leave_the_fast_tier(fast: Path, slow: Path) -> None:
    for number, name in enumerate(("best-3fa9c1", "best-7bb102", "best-11cd07")):
        state(fast / f"{name}.safetensors", number, at_s=time.time() - 1000 + number)
    drain(fast, slow)
    assert files(fast) == {"best-7bb102.safetensors", "best-11cd07.safetensors"}


@pytest.mark.parametrize(
    "draft", ["step_4-saving", "_incomplete/4", "step_4_tmp", ".tmp_step_4", "step_4.inprogress"]
)
def test_a_folder_that_its_program_will_rename_is_no_checkpoint(
    fast: Path, slow: Path, draft: str
) -> None:
    parts = ("model.safetensors", "optimizer.safetensors")
    for step in (1, 2, 3):
        for part in parts:
            state(fast / f"step_{step}" / part, step)
    drain(fast, slow)
    state(fast / draft / parts[0], 4)
    drain(fast, slow)
    assert newest(fast, slow) == "step_3"
    assert {name for name in files(slow) if not name.startswith("step_")} == set()
    assert "step_2/model.safetensors" in files(slow)


@pytest.mark.parametrize("name", ["temp-0.7", "saving-grace", "tmpfs"])
def test_a_folder_with_such_a_word_elsewhere_is_one(fast: Path, slow: Path, name: str) -> None:
    state(fast / name / "step_1.safetensors", 1)
    drain(fast, slow)
    assert files(slow) == {f"{name}/step_1.safetensors"}


def test_of_a_copy_of_two_files_that_was_killed_after_one_nothing_is_named(slow: Path) -> None:
    """On a store without renames, as S3: the first file has its name at once."""
    state(slow / "model-1.safetensors", 1)
    half = slow / "model-1.safetensors.penstock.half"
    half.write_bytes(mark_of_half("model-1.safetensors", "", 2))
    assert latest_valid(slow).path is None
    (one,) = find(LocalStore(slow))
    assert one.problem == "not all of it has arrived"
    half.write_bytes(mark_of_half("model-1.safetensors", ""))  # it is all of the checkpoint
    assert latest_valid(slow).path == slow / "model-1.safetensors"
