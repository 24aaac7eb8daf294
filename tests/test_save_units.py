"""Test which files form a checkpoint, and that only whole checkpoints are copied, kept, removed or
named."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import time
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock import cli
from penstock.errors import SaveError
from penstock.places.stores import LocalStore, StoredFile
from penstock.save.checkpoint import Checkpoint
from penstock.save.commit import PLACE
from penstock.save.copy import copying, target
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import recover
from penstock.save.drain.retention import Keep, prune, remove
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find, find_file
from penstock.save.unit.names import parts_of
from penstock.save.unit.rules import NameRule
from penstock.save.unit.shapes import lacking, shape_of
from penstock.save.unit.units import grouped
from penstock.save.verify import latest_valid, verify
from saves import drained

NOW = DrainSettings(settle_s=0, tries=1)
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return tmp_path / "slow"


def written(path: Path, save: int, *, at_s: float | None = None, size: int = 100) -> Path:
    """Write a safetensors file under any name; each number in the file is the save's number."""
    path.parent.mkdir(parents=True, exist_ok=True)
    head = json.dumps({"w": {"dtype": "F32", "shape": [size], "data_offsets": [0, 4 * size]}})
    data = struct.pack("<Q", len(head)) + head.encode() + struct.pack("<f", save) * size
    path.write_bytes(data)
    if at_s is not None:
        os.utime(path, (at_s, at_s))
    return path


def save_of(path: Path) -> int:
    return int(struct.unpack("<f", path.read_bytes()[-4:])[0])


def steps(folder: Path, *, roles: Iterable[str] = ("model", "optim", "ema")) -> None:
    for step in (100, 200, 300):
        for role in roles:
            written(folder / f"{role}-{step}.safetensors", step)


def files_of(one: Checkpoint) -> list[str]:
    return sorted(one.inner(found) for found in one.files)


def there(folder: Path) -> set[str]:
    """Return the files of a tier without Penstock's own files."""
    names = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return {
        os.fspath(one) for one in names
        if one.parts[0] != ".penstock" and "penstock" not in one.name
    }  # fmt: skip


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        ("model-300.pt optim-300.pt ema-300.pt", {"model-300.pt": 3}),
        ("model_000300.pt meta_000300.json optim_000300_rank0.pt optim_000300_rank1.pt",
         {"model_000300.pt": 4}),
        ("model000300.pt opt000300.pt ema_0.9999_000300.pt", {"model000300.pt": 3}),
        ("300_net_G.pth 300_net_D.pth 400_net_G.pth 400_net_D.pth",
         {"300_net_D.pth": 2, "400_net_D.pth": 2}),
        ("netG_epoch_3.pth netD_epoch_3.pth", {"netG_epoch_3.pth": 2}),
        ("unet50-epoch3.npz unet50-epoch3.json", {"unet50-epoch3.npz": 2}),
        ("model_300.pdparams model_300.pdopt", {"model_300.pdopt": 2}),
        ("model.pt optimizer.pt scheduler.pt", {"model.pt": 3}),
        ("best_model.pt best_optim.pt last_model.pt last_optim.pt",
         {"best_model.pt": 2, "last_model.pt": 2}),
        ("model-00001-of-00002.safetensors model-00002-of-00002.safetensors"
         " model.safetensors.index.json", {"model-00001-of-00002.safetensors": 3}),
        ("any-7b-00001-of-00002.gguf any-7b-00002-of-00002.gguf",
         {"any-7b-00001-of-00002.gguf": 2}),
        ("consolidated.00.pth consolidated.01.pth params.json", {"consolidated.00.pth": 2}),
        ("rank0.pt rank1.pt rank2.pt", {"rank0.pt": 3}),
        ("step20_layer00.pt step20_layer01.pt step40_layer00.pt step40_layer01.pt",
         {"step20_layer00.pt": 2, "step40_layer00.pt": 2}),
        ("fold0_epoch3.pth fold1_epoch3.pth", {"fold0_epoch3.pth": 2}),
        ("latest_net_G_A.pth latest_net_G_B.pth latest_net_D_A.pth", {"latest_net_D_A.pth": 3}),
        ("latest.pdparams latest.pdopt", {"latest.pdopt": 2}),
        ("last.pt last_optim.pt best.pt", {"last.pt": 2}),
        ("online.pt target.pt replay.pkl", {"online.pt": 3}),
        ("rl_model_3000_steps.zip rl_model_replay_buffer_3000_steps.pkl",
         {"rl_model_3000_steps.zip": 2}),
        # Each of these files is a checkpoint by itself.
        ("best_loss.ckpt best_accuracy.ckpt", {}),
        ("last.ckpt last.pt best-300.ckpt epoch=1-step=300.ckpt", {}),
        ("resnet50-0676ba61.pth vgg16-397923af.pth", {}),
        ("runs.csv log-300.txt sample-300.png", {}),
    ],
)  # fmt: skip
def test_files_are_grouped_by_their_names(names: str, wanted: dict[str, int]) -> None:
    found = {one.name: len(one.files) for one in grouped(names.split()) if len(one.files) > 1}
    assert found == wanted


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("model-300.pt", 300), ("epoch=3-step=1200.ckpt", 1200), ("ema_0.9999_000300.pt", 300),
        ("model-epoch=3-loss=0.23.pt", 3), ("optim_000300_rank12.pt", 300),
        ("model-00001-of-00004.safetensors", None), ("mp_rank_00_model_states.pt", None),
        ("resnet50-0676ba61.pth", None), ("random_states_0.pkl", None), ("rank1.pt", None),
        ("member_3.pt", None), ("ep007.keras", 7), ("ep3_iter5.pt", 5),
        ("rl_model_3000_steps.zip", 3000),
    ],
)  # fmt: skip
def test_the_step_of_a_name(name: str, step: int | None) -> None:
    assert parts_of(name).step == step


def test_a_rule_that_cannot_be_is_refused() -> None:
    for text in ("", "a/../b-{step}.pt", "a-{step}-{step}.pt", "a-{step}.pt b.pt"):
        with pytest.raises(SaveError, match="--unit"):
            NameRule.of(text)


def shape(step: int, roles: str, begin: int = 0, end: int = 0) -> Any:
    files = [StoredFile(f"{role}-{step}.pt", 1, begin or step) for role in roles.split()]
    return shape_of(step, files[:-1] + [StoredFile(files[-1].name, 1, end or step)])


def test_a_part_is_missing_where_most_of_those_before_have_it() -> None:
    whole = [shape(step, "model optim ema") for step in (100, 200, 400)]
    assert lacking(shape(300, "model optim"), whole[:2]) == "no ema.pt, which step 200 has"
    assert lacking(shape(300, "model optim ema"), whole) == ""
    assert lacking(shape(100, "model"), whole[1:]) == ""  # no checkpoint is older
    # The part is no longer saved, or saved only every second time.
    later = [shape(400, "model optim")]
    assert lacking(shape(300, "model optim"), [*whole[:2], *later]) == ""
    seldom = [shape(step, "model optim" if step % 200 else "model optim ema")
              for step in range(100, 500, 100)]  # fmt: skip
    assert lacking(shape(500, "model optim"), seldom) == ""
    # One of the four saves was killed.
    older = [shape(step, "model optim ema" if step != 300 else "model")
             for step in range(100, 500, 100)]  # fmt: skip
    assert lacking(shape(500, "model optim"), older) == "no ema.pt, which step 400 has"


def test_two_trainings_in_one_folder_lack_nothing_of_each_other() -> None:
    older = [shape(step, "anna berta", begin=step, end=1000 + step) for step in (100, 200)]
    assert lacking(shape(300, "anna", begin=300), older) == ""
    # Models of other names are unrelated.
    older = [shape(step, "anna") for step in (100, 200)]
    assert lacking(shape(300, "clara"), older) == ""
    # Files that were each written before the next save are parts of a checkpoint.
    older = [shape(step, "anna berta") for step in (100, 200)]
    assert lacking(shape(300, "anna"), older) == "no berta.pt, which step 200 has"


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["random_states_0.pkl", "optimizer.bin", "model.safetensors"], "accelerate"),
        (["saved_model.pb", "variables/variables.index",
          "variables/variables.data-00000-of-00001", "assets/vocab.txt"], "savedmodel"),
        (["model_index.json", "unet/config.json", "unet/model.safetensors",
          "vae/config.json", "vae/model.safetensors"], "diffusers"),
        (["mp_rank_00/model_optim_rng.pt", "mp_rank_01/model_optim_rng.pt"], "megatron"),
        (["weights/a.distcp", "weights/.metadata", "context/io.json"], "nemo"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("folder", ["out", "step_100"])
def test_a_folder_is_one_checkpoint(
    fast: Path, slow: Path, folder: str, names: list[str], kind: str
) -> None:
    for name in names:
        written(fast / folder / name, 1)
    (one,) = find(LocalStore(fast))
    assert (one.kind, one.name, files_of(one)) == (kind, folder, sorted(names))


@pytest.mark.parametrize(
    "ending", [".npz", ".npy", ".h5", ".gguf", ".msgpack", ".pkl", ".bin", ".pth.tar", ".eqx"]
)
def test_a_folder_of_a_step_goes_as_a_whole(fast: Path, slow: Path, ending: str) -> None:
    for step in (1, 2):
        for name in (f"weights{ending}", "parts/optimizer.safetensors", "notes.txt", "arguments"):
            written(fast / f"iter_{step:07d}" / name, step)
    found = find(LocalStore(fast))
    assert [(one.name, one.step, len(one.files)) for one in found] == [
        ("iter_0000002", 2, 4), ("iter_0000001", 1, 4)
    ]  # fmt: skip


def test_folders_of_epochs_and_of_runs_hold_checkpoints_and_are_none(fast: Path) -> None:
    for place in ("epoch_1", "0"):
        for step in (100, 200):
            written(fast / place / f"step_{step}.safetensors", step)
    written(fast / "epoch_2" / "step_300.safetensors", 300)  # the first of its epoch
    assert {one.name for one in find(LocalStore(fast))} == {
        *(f"{place}/step_{step}.safetensors" for place in ("epoch_1", "0") for step in (100, 200)),
        "epoch_2/step_300.safetensors",
    }


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("saved_model.pb", "no saved_model.pb"),
        ("variables/variables.data-00000-of-00001", "data file is missing"),
    ],
)
def test_a_saved_model_without_a_part_is_not_whole(tmp_path: Path, name: str, lost: str) -> None:
    tensorflow = pytest.importorskip("tensorflow", reason="pip install 'penstock[tensorflow]'")
    module = tensorflow.Module()
    module.v = tensorflow.Variable([1.0] * 100)
    tensorflow.saved_model.save(module, tmp_path / "out")
    (one,) = find(LocalStore(tmp_path))
    assert (one.kind, verify(one, "full").problems) == ("savedmodel", ())
    (tmp_path / "out" / name).unlink()
    (one,) = find(LocalStore(tmp_path))
    assert lost in verify(one, "full").problems[0]


def test_what_tensorflow_is_still_writing_is_no_checkpoint(fast: Path, slow: Path) -> None:
    """PREFIX_temp/part-* get their names at the end of a save.  Such parts pass every check."""
    tensorflow = pytest.importorskip("tensorflow", reason="pip install 'penstock[tensorflow]'")
    values = tensorflow.train.Checkpoint(v=tensorflow.Variable([1.0] * 100))
    values.write(str(fast / "ckpt-1"))
    values.write(str(fast / "part-00000-of-00001"))  # a program's own name
    parts = {path.name: path.read_bytes() for path in fast.glob("part-*")}
    for folder in ("ckpt-2_temp", "export/3/variables/variables_temp"):
        (fast / folder).mkdir(parents=True)
        for name, data in parts.items():
            (fast / folder / name).write_bytes(data)
    found = {one.name: one.problem for one in find(LocalStore(fast))}
    assert found == {
        "ckpt-1": "", "part-00000-of-00001": "",
        "export/3": "no saved_model.pb: the save did not end",
    }  # fmt: skip
    assert {line.partition(":")[0].partition("/")[0] for line in drained(fast, slow)} == {
        "ckpt-2_temp", "export"
    }  # fmt: skip
    assert not any("_temp" in name for name in there(slow))


def test_a_draft_of_a_killed_writer_is_no_part_of_a_model(fast: Path, slow: Path) -> None:
    """safetensors writes .tmpXXXXXX first: the next save was killed in its first file."""
    for shard in SHARDS:
        written(fast / "out" / shard, 1, at_s=1.7e9)
    (fast / "out" / "config.json").write_text("{}")
    (fast / "out" / ".tmpKhkuxE").write_bytes(b"half")
    assert latest_valid(fast).path == fast / "out"
    assert drained(fast, slow, Keep(fast=0, foreign=True)) == []
    assert {Path(name).name for name in there(slow)} == {*SHARDS, "config.json"}
    assert there(fast) == set()


def test_a_new_draft_in_a_drained_folder_keeps_the_folder(fast: Path, slow: Path) -> None:
    """A program that writes the next save into the folder loses nothing to the retention."""
    for shard in SHARDS:
        written(fast / "out" / shard, 1, at_s=1.7e9)
    (fast / "out" / "config.json").write_text("{}")
    assert drained(fast, slow) == []
    found = find(LocalStore(fast))[0]
    (fast / "out" / ".tmpKhkuxE").write_bytes(b"half")
    assert not remove(found)
    assert (fast / "out" / ".tmpKhkuxE").exists()


def test_a_folder_of_one_save_has_not_ended_while_its_last_file_has_no_name(fast: Path) -> None:
    path = fast / "step_5"
    written(path / "model.safetensors", 1, at_s=1.7e9)
    written(path / ".tmpa1B2c3", 1, at_s=1.7e9 + 1)
    (one,) = find(LocalStore(fast))
    assert one.problem == ".tmpa1B2c3 has no name yet: the save did not end"
    written(path / "optimizer.safetensors", 2, at_s=1.7e9 + 2)  # the step again
    assert latest_valid(fast).path == path


def test_a_pipeline_without_one_of_its_parts_is_not_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for part in ("unet", "vae"):
        written(out / part / "diffusion_pytorch_model.safetensors", 1)
        (out / part / "config.json").write_text("{}")
    (one,) = find(LocalStore(tmp_path))
    assert "no model_index.json" in one.problem
    index = {"_class_name": "Any", "unet": ["diffusers", "UNet"], "vae": ["diffusers", "VAE"],
             "safety_checker": [None, None]}  # fmt: skip
    (out / "model_index.json").write_text(json.dumps(index))
    assert verify(find(LocalStore(tmp_path))[0], "full").problems == ()
    shutil.rmtree(out / "vae")
    assert "vae: named" in verify(find(LocalStore(tmp_path))[0], "sizes").problems[0]


def test_megatron_s_last_iteration_counts_when_it_is_named(tmp_path: Path) -> None:
    for step in (100, 200):
        for rank in (0, 1):
            written(tmp_path / f"iter_{step:07d}" / f"mp_rank_0{rank}" / "model_optim_rng.pt", step)
        if step == 100:
            pointer = tmp_path / "latest_checkpointed_iteration.txt"
            pointer.write_text("100")
            os.utime(pointer, ns=(1, 1 + max(
                one.stat().st_mtime_ns for one in tmp_path.rglob("*.pt"))))  # fmt: skip
            time.sleep(0.05)
    newer, older = find(LocalStore(tmp_path))
    assert ("names 100" in newer.problem, older.problem) == (True, "")
    pointer.write_text("200")
    assert [one.problem for one in find(LocalStore(tmp_path))] == ["", ""]
    shutil.rmtree(tmp_path / "iter_0000200" / "mp_rank_00")
    assert "mp_rank" in find(LocalStore(tmp_path))[0].problem


def test_a_marker_beside_it_says_that_it_is_not_finished(tmp_path: Path) -> None:
    for inner in ("weights/model.safetensors", "context/io.json"):
        written(tmp_path / "model-step=5" / inner, 1)
    (tmp_path / "model-step=5-unfinished").touch()
    (one,) = (one for one in find(LocalStore(tmp_path)) if one.is_folder)
    assert "not finished" in one.problem


def test_a_folder_that_lacks_what_those_before_it_have_is_not_whole(tmp_path: Path) -> None:
    for step, names in ((100, "model optim"), (200, "model optim"), (300, "model")):
        for name in names.split():
            written(tmp_path / f"step_{step}" / f"{name}_step{step}.pt", step)
    problems = [one.problem for one in find(LocalStore(tmp_path))]
    assert ["no optim" in one for one in problems] == [True, False, False]
    assert "which step 200 has" in problems[0]


def test_pictures_beside_a_state_tell_no_steps_of_it(fast: Path, slow: Path) -> None:
    for epoch in (1, 2):
        for name in ("model.safetensors", "optimizer.safetensors"):
            written(fast / f"epoch_{epoch}" / name, epoch)
        for step in (500, 600):
            (fast / f"epoch_{epoch}" / f"img_step_{step}.png").touch()
    assert drained(fast, slow) == []
    assert [(one.name, len(one.files)) for one in find(LocalStore(slow))] == [
        ("epoch_2", 4), ("epoch_1", 4)
    ]  # fmt: skip


def test_a_copy_of_a_folder_is_another_checkpoint(fast: Path, slow: Path) -> None:
    for name in ("model.safetensors", "optimizer.safetensors"):
        written(fast / "epoch_3" / name, 3)
    shutil.copytree(fast / "epoch_3", fast / "best" / "epoch_3")
    assert drained(fast, slow) == []
    assert {one.name for one in find(LocalStore(slow))} == {"epoch_3", "best/epoch_3"}


def test_who_saves_an_optimizer_beside_an_adapter_is_no_trainer(fast: Path, slow: Path) -> None:
    for step in (5, 10):
        for name in ("adapter_model.safetensors", "optimizer.pt"):
            written(fast / f"checkpoint-{step}" / name, step)
        (fast / f"checkpoint-{step}" / "adapter_config.json").write_text("{}")
        assert find(LocalStore(fast))[0].problem == ""


def test_small_steps_are_not_taken_for_ranks(tmp_path: Path) -> None:
    """Accelerate numbers checkpoints from 0."""
    for step in range(3):
        for name in ("model.safetensors", "optimizer.bin", "random_states_0.pkl"):
            written(tmp_path / f"checkpoint_{step}" / name, step)
    assert [one.problem for one in find(LocalStore(tmp_path))] == ["", "", ""]


# --- all or nothing -------------------------------------------------------------------------------


def test_retention_counts_checkpoints_and_not_files(fast: Path, slow: Path) -> None:
    steps(fast)
    assert drained(fast, slow, Keep(fast=1, last=2, foreign=True)) == []
    newest = {f"{role}-300.safetensors" for role in ("model", "optim", "ema")}
    assert there(fast) == newest
    assert there(slow) == newest | {one.replace("300", "200") for one in newest}


def test_all_of_a_step_counts_once_and_the_newest_of_each_training_stays(
    fast: Path, slow: Path
) -> None:
    for step in (100, 200, 300):
        for role in ("model", "optim", "ema"):
            written(fast / role / str(step) / "w.safetensors", step)
    written(fast / "other" / "step_7" / "w.safetensors", 7)
    assert drained(fast, slow, Keep(fast=1, last=1, foreign=True)) == []
    newest = {f"{role}/300/w.safetensors" for role in ("model", "optim", "ema")}
    newest |= {"other/step_7/w.safetensors"}  # it was written last
    assert there(fast) == there(slow) == newest


def test_single_copies_of_an_older_drain_become_one(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file had a manifest of its own and would be counted and removed separately."""
    steps(fast)
    with monkeypatch.context() as patched:
        patched.setattr("penstock.save.find.tree.grouped", lambda names, *more: [])
        patched.setattr("penstock.save.find.formats.compared", lambda found, *more: found)
        assert drained(fast, slow) == []
    assert len(list(slow.glob("*.penstock.json"))) == 9
    store = LocalStore(slow)
    prune(LocalStore(fast), store, Keep(fast=9, last=1))
    assert len(there(slow)) == 9  # nothing incomplete may be removed
    assert drained(fast, slow, Keep(fast=1, last=2, foreign=True)) == []
    assert [(one.name, len(one.files), one.is_ours) for one in find(store)] == [
        ("model-300.safetensors", 3, True), ("model-200.safetensors", 3, True)
    ]  # fmt: skip


@pytest.mark.parametrize("keep_fast", [0, 1])
def test_a_part_of_a_save_is_not_drained_where_the_slow_tier_knows_the_others(
    fast: Path, slow: Path, keep_fast: int
) -> None:
    steps(fast)
    keep = Keep(fast=keep_fast, last=1, foreign=True)
    drained(fast, slow, keep)
    for role in ("ema", "model"):  # then the program was killed
        written(fast / f"{role}-400.safetensors", 400)
    (line,) = drained(fast, slow, keep)
    assert "no optim.safetensors, which step 300 has; not copied" in line
    assert "--unit" not in line  # a rule brings no part back
    assert not any("400" in name for name in there(slow))
    choice, _ = recover(fast, slow, NOW)
    assert choice.step == 300
    written(fast / "optim-400.safetensors", 400)
    assert drained(fast, slow, keep) == []
    assert {name for name in there(slow) if "400" in name} == {
        f"{role}-400.safetensors" for role in ("ema", "model", "optim")
    }


def test_what_a_user_says_is_one_is_one(fast: Path, slow: Path) -> None:
    steps(fast, roles=("model", "optim", "sketch"))
    (fast / "sketch-300.safetensors").unlink()
    rules = (NameRule.of("model-{step}.safetensors optim-{step}.safetensors"),)
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1, rules=rules)) as working:
        assert working.once() == []
    assert [len(one.files) for one in find(LocalStore(slow))] == [2, 2, 2]
    assert "sketch-200.safetensors" in there(slow)  # in addition
    (fast / "optim-300.safetensors").unlink()
    written(fast / "model-300.safetensors", 301)
    (line,) = drained(fast, slow)  # the rule is stored with the tier
    assert "is missing: optim-300.safetensors" in line


@pytest.mark.parametrize("at", range(7))
def test_a_copy_of_several_files_counts_as_a_whole_or_not_at_all(
    fast: Path, slow: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop at each step of replacing an older copy of the same names."""
    names = [f"{role}.safetensors" for role in ("model", "optim", "scheduler")]
    for name in names:
        written(fast / name, 1)
    assert drained(fast, slow) == []
    for name in names:
        written(fast / name, 2)

    class Killed(BaseException):
        pass

    left = itertools.count()
    replace, put, discard = Path.replace, LocalStore.put, target.discard

    def counted(do: Any) -> Any:
        def now(*given: Any) -> Any:
            is_of_slow = any(os.fspath(slow) in str(getattr(one, "folder", one)) for one in given)
            if is_of_slow and "penstock/" not in str(given) and next(left) == at:
                raise Killed
            return do(*given)

        return now

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", counted(replace))
        patched.setattr(LocalStore, "put", counted(put))
        patched.setattr(target, "discard", counted(discard))
        with suppress(Killed):
            drained(fast, slow)
    lost = fast.with_name("lost")  # the fast tier with all files is lost
    lost.mkdir()
    before = latest_valid(lost, slow, "full")
    if before.checkpoint is not None:
        assert len({save_of(slow / name) for name in names}) == 1
    choice, _ = recover(lost, slow, NOW)
    assert choice.checkpoint is not None
    assert verify(choice.checkpoint, "full").problems == ()
    assert len({save_of(slow / name) for name in names}) == 1
    assert not list(slow.rglob(PLACE))


@pytest.mark.parametrize("marked", ["last.ckpt", "epoch=1.ckpt"])
def test_the_mark_of_a_single_copy_keeps_no_other_file_back(fast: Path, marked: str) -> None:
    newer = "last.pt" if marked == "last.ckpt" else "epoch=2.pt"
    for at_s, name in enumerate((marked, newer)):
        with zipfile.ZipFile(fast / name, "w") as archive:
            archive.writestr("archive/data.pkl", name)
        os.utime(fast / name, (at_s, at_s))
    (fast / f"{marked}.penstock.half").write_bytes(marked.encode() + b"\0/slow")
    choice = latest_valid(fast)
    assert choice.path == fast / newer, choice


def test_the_mark_of_a_copy_of_several_files_keeps_each_part_back(fast: Path) -> None:
    (fast / "model-300.safetensors.penstock.half").write_bytes(b"model-300.safetensors\0/fast")
    for part in ("optim", "ema"):  # the file of the mark itself comes last
        written(fast / f"{part}-300.safetensors", 1)
        assert latest_valid(fast).path is None
    written(fast / "model-300.safetensors", 1)
    assert latest_valid(fast).path is None


def test_markers_without_a_byte_keep_no_checkpoint_back(fast: Path, slow: Path) -> None:
    for name in ("DONE", ".lock", "_SUCCESS", "events.log"):
        written(fast / "step_1" / "model.safetensors", 1)
        (fast / "step_1" / name).touch()
    assert drained(fast, slow) == []
    (fast / "step_1" / "optimizer.pt").touch()
    assert "optimizer.pt: empty" in drained(fast, slow)[0]


@pytest.mark.parametrize(
    ("name", "copy"),
    [("last.ckpt", "last.2.ckpt"), ("run.1/last.weights.h5", "run.1/last.2.weights.h5"),
     ("last.pth.tar", "last.2.pth.tar"), ("run.1/checkpoint_3", "run.1/checkpoint_3.2")],
)  # fmt: skip
def test_the_name_of_a_second_copy_keeps_the_ending(
    fast: Path, slow: Path, name: str, copy: str
) -> None:
    """Keras refuses any other ending than .weights.h5."""
    written(slow / name, 1)
    written(fast / name, 2)
    one = Checkpoint(LocalStore(fast), name, "files", False, (LocalStore(fast).stat(name),), None)
    made, _ = copying.copy_checkpoint(one, LocalStore(slow), copying.Trip(copying.DrainPace(None)))
    assert made == copy
    assert (save_of(slow / name), save_of(slow / copy)) == (1, 2)


def test_what_a_removal_has_left_is_not_drained_over_its_copy(fast: Path, slow: Path) -> None:
    steps(fast)
    drained(fast, slow)
    for gone in ("model", "ema"):
        (fast / f"{gone}-100.safetensors").unlink()
        assert drained(fast, slow) == []
    assert len(there(slow)) == 9
    assert all(len(one.files) == 3 and one.is_ours for one in find(LocalStore(slow)))
    prune(LocalStore(fast), LocalStore(slow), Keep(fast=1, foreign=True))
    assert there(fast) == {f"{role}-300.safetensors" for role in ("model", "optim", "ema")}


def test_a_name_that_another_run_has_is_left_alone_as_a_whole(fast: Path, slow: Path) -> None:
    other = fast.with_name("other")
    steps(other)
    steps(fast)
    drained(other, slow)
    for name in there(fast):
        written(fast / name, 7)
    drained(fast, slow)
    found = {
        one.name: {save_of(slow / file.name) for file in one.files}
        for one in find(LocalStore(slow))
    }
    assert found["model-100.safetensors"] == {100}
    assert found["model-100.2.safetensors"] == {7}
    assert all(len(one) == 1 for one in found.values())
    assert len(there(slow)) == 18


# --- one save, not two ----------------------------------------------------------------------------


def sharded(folder: Path, save: int, shards: Iterable[int], at_s: float, pause_s: float) -> None:
    for number in shards:
        written(folder / f"model-0000{number}-of-00004.safetensors", save,
                at_s=at_s + number * pause_s)  # fmt: skip


def index_of(folder: Path, at_s: float) -> None:
    path = folder / "model.safetensors.index.json"
    names = [f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    path.write_text(json.dumps({"weight_map": {name: name for name in names}}))
    os.utime(path, (at_s, at_s))


@pytest.mark.parametrize("has_config", [True, False])
def test_shards_of_two_saves_are_not_whole(tmp_path: Path, has_config: bool) -> None:
    out = tmp_path / "step_5" if not has_config else tmp_path / "out"
    out.mkdir()
    begin_s = time.time() - 1000
    if has_config:
        (out / "config.json").write_text("{}")
        os.utime(out / "config.json", (begin_s, begin_s))
    sharded(out, 1, (1, 2, 3, 4), begin_s, 4)
    index_of(out, begin_s + 20)
    (one,) = find(LocalStore(tmp_path))
    assert one.problem == ""
    sharded(out, 2, (1, 2), begin_s + 22, 4)
    (one,) = find(LocalStore(tmp_path))
    assert one.problem.startswith("of two saves: model-00001-of-00004.safetensors")
    sharded(out, 2, (3, 4), begin_s + 22, 4)
    index_of(out, begin_s + 42)
    assert find(LocalStore(tmp_path))[0].problem == ""


def test_a_slow_save_and_a_plain_copy_are_of_one_save(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    begin_s = time.time() - 5000
    (out / "config.json").write_text("{}")
    os.utime(out / "config.json", (begin_s, begin_s))
    sharded(out, 1, (1, 2, 3, 4), begin_s, 300)  # a shard takes five minutes
    index_of(out, begin_s + 1500)
    assert find(LocalStore(tmp_path))[0].problem == ""
    # Copied in any order of names, without the original times.
    for number, path in enumerate(sorted(out.iterdir(), key=lambda path: path.name[::-1])):
        os.utime(path, (begin_s + number / 10, begin_s + number / 10))
    assert find(LocalStore(tmp_path))[0].problem == ""


@pytest.mark.parametrize("kind", ["files", "folder"])
def test_a_save_that_has_written_over_a_part_is_not_drained(
    fast: Path, slow: Path, kind: str
) -> None:
    folder = fast / "run" if kind == "files" else fast / "run" / "step_5"
    names = ("model.safetensors", "optimizer.safetensors")
    for name in names:
        written(folder / name, 1)
    assert drained(fast, slow) == []
    written(folder / names[0], 2, size=101)  # then the program was killed
    for _ in range(2):  # also with a new drain
        (line,) = drained(fast, slow)
        assert "1 of its 2 files were written again and 1 were not" in line
        assert {save_of(slow / folder.relative_to(fast) / name) for name in names} == {1}
    written(folder / names[1], 2)
    assert drained(fast, slow) == []
    assert {save_of(slow / folder.relative_to(fast) / name) for name in names} == {2}


TORN_ORDERS = [
    # seconds of the last write of each part, in the order of the program's writes
    ((10.0, 4.0), "of two saves: model.safetensors was written 6 s after optimizer.safetensors"),
    ((10.0, 10.1, 4.0), "of two saves: model.safetensors was written 6 s after scheduler."),
    ((10.0, 4.0, 4.1), "of two saves: model.safetensors was written 6 s after scheduler."),
    ((4.0, 10.0), ""),  # a slow save
    ((5.0, 4.0), ""),  # two threads write
    ((4.0, 10.0, 4.1), ""),  # a thread writes slowly
]


@pytest.mark.parametrize(("times", "why"), TORN_ORDERS)
def test_a_save_that_has_begun_anew_is_not_drained_over_an_older_copy(
    fast: Path, slow: Path, times: tuple[float, ...], why: str
) -> None:
    """Saves between the copy and the killed save have written each file: only the order shows."""
    names = ("model.safetensors", "optimizer.safetensors", "scheduler.safetensors")[: len(times)]
    begin_s = time.time() - 1000
    for place, name in enumerate(names):
        written(fast / name, 1, at_s=begin_s + place / 10)
    assert drained(fast, slow) == []
    for name, at_s in zip(names, times, strict=True):
        written(fast / name, 3 if at_s < max(times) else 4, at_s=begin_s + 100 + at_s)
    lines = drained(fast, slow)
    assert [why in line for line in lines] == [True] * bool(why)
    assert {save_of(slow / name) for name in names} == ({1} if why else {3, 4})
    if why:
        choice, _ = recover(fast, slow, NOW)
        assert choice.where.startswith(str(slow))
        for name in names:
            written(fast / name, 5)
        assert drained(fast, slow) == []
        assert {save_of(slow / name) for name in names} == {5}


@pytest.mark.parametrize("folder", ["iter_0000005", "step-5", "pipeline"])
def test_equal_names_in_different_folders_are_different_files(
    fast: Path, slow: Path, folder: str
) -> None:
    """Ranks of Megatron and parts of a pipeline are such files."""
    ranks, parts = ("mp_rank_00", "mp_rank_01"), ("unet", "vae")
    inner = {"iter_0000005": ranks, "step-5": ("a", "b"), "pipeline": parts}[folder]
    paths = [fast / folder / one / "model_optim.safetensors" for one in inner]

    def save(number: int) -> None:
        for path in paths:
            written(path, number, size=100 + number)
        if folder == "pipeline":
            (fast / folder / "model_index.json").write_text("{}")

    save(1)
    assert drained(fast, slow) == []
    assert latest_valid(fast, slow).path == fast / folder
    written(paths[0], 2, size=102)  # then the program was killed
    assert "1 of its 2 files were written again and 1 were not" in drained(fast, slow)[0]
    save(3)
    assert drained(fast, slow) == []
    assert {save_of(slow / path.relative_to(fast)) for path in paths} == {3}


def test_a_folder_is_compared_with_the_newest_of_its_copies(fast: Path, slow: Path) -> None:
    """The folder of a model with checkpoints inside is copied beside: NAME.2."""

    def save(number: int, *parts: str) -> None:
        for part in parts or ("model.safetensors", "optimizer.safetensors"):
            written(fast / "out" / part, number, size=100 + number)
        (fast / "out" / "config.json").write_text("{}")

    written(slow / "out" / "checkpoint-1" / "model.safetensors", 1)
    (slow / "out" / "checkpoint-1" / "trainer_state.json").write_text("{}")
    save(1)
    assert drained(fast, slow) == []
    assert (slow / "out.2" / "optimizer.safetensors").exists()
    shutil.rmtree(fast / "out")
    save(2, "model.safetensors")  # then the program was killed
    (line,) = drained(fast, slow)
    assert "no optimizer.safetensors, which its copy" in line
    assert save_of(slow / "out.2" / "model.safetensors") == 1
    save(3)
    assert drained(fast, slow) == []
    assert save_of(slow / "out.2" / "model.safetensors") == 3


def test_an_index_that_is_written_after_the_copy_ends_the_save(fast: Path, slow: Path) -> None:
    """On a slow file system the index may come seconds after the last shard."""
    index = fast / "out" / "model.safetensors.index.json"

    def save(number: int, *parts: str) -> None:
        for part in parts:
            written(fast / "out" / part, number, size=100 + number)
        (fast / "out" / "config.json").write_text("{}")

    save(1, *SHARDS)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(SHARDS, SHARDS[0])}))
    assert drained(fast, slow) == []
    index.write_text(json.dumps({"weight_map": {one: one for one in SHARDS}}))
    assert drained(fast, slow) == []
    assert (slow / "out" / index.name).read_text() == index.read_text()
    save(2, SHARDS[0])  # then the program was killed
    (line,) = drained(fast, slow)
    said = ("1 of its 3 files were written again and 2 were not", "out: of two saves")
    assert any(one in line for one in said)  # the second if the machine took seconds


def test_a_part_that_is_written_once_keeps_no_save_from_the_slow_tier(
    fast: Path, slow: Path
) -> None:
    """The frozen weights below a trained head are such a part."""
    written(fast / "backbone.safetensors", 1, at_s=time.time() - 3600)
    for save in (1, 2, 3):
        written(fast / "head.safetensors", save, size=100 + save)
        assert drained(fast, slow) == []
        assert save_of(slow / "head.safetensors") == save


# --- files that belong to no checkpoint -----------------------------------------------------------


def test_what_belongs_to_no_checkpoint_is_copied_beside(fast: Path, slow: Path) -> None:
    steps(fast)
    (fast / "train.log").write_text("a line\n")
    (fast / "plots").mkdir()
    (fast / "plots" / "loss.png").write_bytes(b"\x89PNG")
    assert drained(fast, slow, Keep(fast=1, foreign=True)) == []
    assert {"train.log", "plots/loss.png"} <= there(slow) & there(fast)
    (fast / "train.log").write_text("a line\nanother\n")
    assert drained(fast, slow) == []
    assert (slow / "train.log").read_text() == "a line\nanother\n"


def test_another_run_s_file_stays_and_is_named(fast: Path, slow: Path, tmp_path: Path) -> None:
    for folder, wanted in ((fast, 0), (tmp_path / "other", 1)):
        folder.mkdir(exist_ok=True)
        (folder / "train.log").write_text(folder.name)
        assert len(drained(folder, slow)) == wanted
    assert (slow / "train.log").read_text() == "fast"


def penstock(*words: object) -> tuple[int, str]:
    """Run the command.  Return the exit status and the whole output."""
    ended = CliRunner().invoke(cli.cli, list(map(str, words)), standalone_mode=False)
    return int(ended.return_value or 0), ended.output


def test_links_are_not_followed_out_of_the_tier(fast: Path, slow: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("of another")
    for step in (1, 2, 3):
        written(fast / f"step_{step}" / "model.safetensors", step)
    (fast / "step_1" / "notes.txt").symlink_to(secret)
    (fast / "step_2" / "optimizer.pt").symlink_to(tmp_path / "gone")
    (fast / "all.txt").symlink_to(secret)
    (fast / "away").symlink_to(tmp_path)
    (fast / "latest").symlink_to("step_3")
    os.mkfifo(fast / "pipe")
    left = {line.partition(":")[0]: line for line in drained(fast, slow)}
    assert "leads out of the tier" in left["step_1"]
    assert "not there" in left["step_2"]
    assert "leads out" in left["all.txt"]
    assert "leads out" in left["away"]
    assert "is no file" in left["pipe"]
    assert "latest" not in left
    assert [one.name for one in find(LocalStore(slow))] == ["step_3"]
    assert (slow / "latest").readlink() == Path("step_3")
    assert not any("of another" in path.read_text("latin1") for path in slow.rglob("*.txt"))


def test_a_drain_that_leaves_something_says_so_with_its_status(fast: Path, slow: Path) -> None:
    steps(fast)
    assert penstock("save", "drain", fast, slow)[0] == 0
    written(fast / "model-400.safetensors", 400)
    (fast / "optim-400.safetensors.tmp").write_bytes(b"half")
    status, said = penstock("save", "drain", fast, slow)
    assert status == 1
    assert "not drained: model-400.safetensors: no" in said
    assert "optim-400.safetensors.tmp: its name says that it is not finished" in said


def test_ls_explains_what_is_one_and_what_is_missing(fast: Path) -> None:
    steps(fast)
    (fast / "ema-300.safetensors").unlink()
    (fast / "train.log").touch()
    _, said = penstock("save", "ls", fast, "--explain")
    assert "model-300.safetensors, step 300: files of step 300 in one folder" in said
    assert "no ema.safetensors, which step 200 has" in said
    assert "files of no checkpoint" in said.split("train.log")[0]


def test_a_damaged_manifest_is_not_called_another_run_s(fast: Path, slow: Path) -> None:
    written(fast / "step_1" / "model.safetensors", 1)
    drained(fast, slow)
    manifest = slow / "step_1" / "penstock-manifest.json"
    data = manifest.read_bytes()
    manifest.write_bytes(data[:-20])
    with Drainer(fast, slow, NOW) as working:  # the files are those of the source
        working.once()
        assert working.status.warning == ""
    assert latest_valid(slow, level="full").step == 1
    assert not (slow / "step_1.2").exists()
    manifest.write_bytes(data[:-20])
    written(slow / "step_1" / "model.safetensors", 7)
    with Drainer(fast, slow, NOW) as working:
        working.once()
        assert "step_1 is step_1.2" in working.status.warning
        assert "cannot be trusted: the manifest is no JSON" in working.status.warning


def test_one_file_is_judged_with_those_that_it_belongs_to(fast: Path) -> None:
    steps(fast)
    one = find_file(LocalStore(fast), "optim-300.safetensors")
    assert one is not None
    assert (one.name, len(one.files)) == ("model-300.safetensors", 3)
    (fast / "ema-300.safetensors").unlink()
    status, said = penstock("save", "verify", fast / "model-300.safetensors")
    assert status == 1
    assert "no ema.safetensors" in said
