"""Test that no part of a save is left out of its checkpoint, by the names that programs use."""

from __future__ import annotations

import gzip
import json
import os
import struct
import tarfile
import time
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.retention import Keep, doomed_on_fast
from penstock.save.find.formats import find
from penstock.save.unit.names import parts_of
from penstock.save.unit.units import grouped
from penstock.save.verify import UNCHECKED, latest_valid, verify
from saves import drained, state

T = 1_700_000_000


def written(path: Path, save: int, at_s: float | None = None) -> None:
    """Write a file of a state, or a description; the content and the time are those of a save."""
    time_s = T + save if at_s is None else at_s
    if path.suffix == ".json":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"save": save}))
        os.utime(path, (time_s, time_s))
    else:
        state(path, save, at_s=time_s)


def several(names: str) -> dict[str, int]:
    return {one.name: len(one.files) for one in grouped(names.split()) if len(one.files) > 1}


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        # The averages of an optimizer: `v` is no version here.
        ("params_400.npy adam_m_400.npy adam_v_400.npy", {"params_400.npy": 3}),
        ("params_4.npy adamm_4.npy adamv_4.npy", {"params_4.npy": 3}),
        ("params_400.npy adam_m400.npy adam_v400.npy", {"params_400.npy": 3}),
        ("params_400.npy m_400.npy v_400.npy", {"params_400.npy": 3}),
        ("params_400.npz opt_mu_400.npz opt_nu_400.npz exp_avg_sq_400.npz", {"params_400.npz": 4}),
        # A version, and letters without a state beside them.
        ("model_v_2.pt model_v_3.pt model_v2.pt model_v3.pt", {}),
        ("m_400.npy v_400.npy", {}),
        ("params_400.npy v_2.npy model_v_400.npy", {}),
        # An ending that no list has, with the name and the step of a state.
        ("epoch_1.pdparams epoch_1.pdopt epoch_1.pdstates", {"epoch_1.pdopt": 3}),
        ("latest.pdparams latest.pdopt latest.states", {"latest.pdopt": 3}),
        ("net_300.pt net_300.quant net_400.pt net_400.quant", {"net_300.pt": 2, "net_400.pt": 2}),
        ("net_300.pt net_300.txt net_300.log net_300.png net_300.part other_300.quant", {}),
        # Steps that begin anew in each epoch.
        ("model_ep1_it50.pt optim_ep1_it50.pt model_ep2_it50.pt optim_ep2_it50.pt",
         {"model_ep1_it50.pt": 2, "model_ep2_it50.pt": 2}),
        ("model_epoch1_iter50.pt optim_epoch1_iter50.pt model_epoch2_iter50.pt",
         {"model_epoch1_iter50.pt": 2}),
        ("model_epoch3_step50.pt optim_step50.pt", {"model_epoch3_step50.pt": 2}),
        # A description that each save writes, and a configuration.
        ("net.pt opt.pt state.json config.json", {"net.pt": 3}),
        ("model.pt ema.pt trainer_state.json args.json state_config.json", {"model.pt": 3}),
        ("model.pt trainer_state.json", {}),
        ("weights-3fa9c1.pt optimizer-3fa9c1.pt meta-3fa9c1.json meta-77be02.json",
         {"weights-3fa9c1.pt": 3}),
        ("resnet50-0676ba61.pth state.json", {}),
        ("last.ckpt best.ckpt state.json", {}),
    ],
)  # fmt: skip
def test_the_parts_of_a_save_are_one_checkpoint(names: str, wanted: dict[str, int]) -> None:
    assert several(names) == wanted


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("adam_v_400.npy", 400), ("adam_m_400.npy", 400), ("model_ep1_it50.pt", 50),
        ("ep2_globalstep100.pt", 100), ("ep1-ba2000-rank0.pt", 2000), ("v_2.pt", None),
        ("model_v_2.pt", None), ("vit_m_16.pt", None), ("ckpt-3.tar.gz", 3),
    ],
)  # fmt: skip
def test_the_step_beside_other_numbers(name: str, step: int | None) -> None:
    assert parts_of(name).step == step


def test_a_save_without_an_average_of_its_optimizer_is_not_drained(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    names = ("params", "adam_m", "adam_v")
    numpy = pytest.importorskip("numpy")
    for step in (100, 200, 300, 400):
        fast.mkdir(exist_ok=True)
        for name in names if step < 400 else names[:2]:
            path = fast / f"{name}_{step}.npy"
            numpy.save(path, numpy.full(10, step))
            os.utime(path, (T + step, T + step))
        lines = drained(fast, slow, Keep(fast=2, last=2, foreign=True))
        assert len(lines) == (step == 400)
    assert lines[0].startswith("params_400.npy: no adam_v.npy, which step 300 has")
    assert {path.name for path in slow.glob("*.npy")} == {
        f"{name}_{step}.npy" for name in names for step in (200, 300)
    }  # fmt: skip
    assert (fast / "adam_v_300.npy").exists()
    assert latest_valid(fast, slow).step == 300


def test_a_save_that_left_an_old_state_of_paddle_is_not_drained(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in (1, 2, 3, 4):
        for ending in ("pdparams", "pdopt", "states")[: 2 if step == 4 else 3]:
            written(fast / f"iter_epoch_{step}.{ending}", step)
        lines = drained(fast, slow, Keep(fast=2, last=2, foreign=True))
    assert len(lines) == 1
    assert "no .states, which step 3 has" in lines[0]
    assert {path.name for path in slow.glob("*.states")} == {
        "iter_epoch_2.states", "iter_epoch_3.states"
    }  # fmt: skip


@pytest.mark.parametrize("folder", ["", "last"])
@pytest.mark.parametrize(("text", "is_each_time"), [("state", True), ("config", False)])
def test_a_description_of_the_save_before_is_of_the_save_before(
    tmp_path: Path, folder: str, text: str, is_each_time: bool
) -> None:
    """A configuration is written once, and is no sign of a save that has not ended."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    names = ("net.safetensors", "opt.safetensors", f"{text}.json")
    for save in (1, 2):
        for name in names:
            written(fast / folder / name, save)
        assert drained(fast, slow) == []
    for name in names[:2]:
        written(fast / folder / name, 3)
    lines = drained(fast, slow)
    if not is_each_time:
        assert lines == []
        return
    (line,) = lines
    assert "2 of its 3 files were written again and 1 were not, as state.json" in line
    assert (slow / folder / names[0]).read_bytes()[-4:] == struct.pack("<f", 2)
    written(fast / folder / names[2], 3)
    assert drained(fast, slow) == []


def test_a_description_that_is_written_all_the_time_delays_no_copy(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for save in (1, 2):
        for name in ("net.safetensors", "opt.safetensors"):
            written(fast / name, 1000 * save)
        for beat in (50, 70):  # seconds after the save
            written(fast / "state.json", 1000 * save + beat, T + 1000 * save + beat)
            (one,) = find(LocalStore(fast))
            assert len(one.files) == (3 if beat < 60 else 2)
        assert drained(fast, slow) == []
        assert (slow / "net.safetensors").read_bytes()[-4:] == struct.pack("<f", 1000 * save)
        assert json.loads((slow / "state.json").read_bytes())["save"] == 1000 * save + 70
    (copy,) = find(LocalStore(slow))
    assert (copy.manifest is not None, len(copy.files)) == (True, 2)


@pytest.mark.parametrize("stamps", [
    ("2026-11-26_12-30-01", "2026-11-26_12-30-02", "2026-11-26_12-30-03", "2026-11-26_12-30-04"),
    ("3fa9c1", "77be02", "a0911f", "bb12cd"),
])  # fmt: skip
def test_a_newest_save_without_a_part_of_all_before_is_not_whole(
    tmp_path: Path, stamps: tuple[str, ...]
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for save, stamp in enumerate(stamps[:3]):
        for name in ("weights", "optimizer"):
            written(fast / f"{name}-{stamp}.safetensors", 10 * save)
        assert drained(fast, slow, Keep(fast=1, foreign=True)) == []
    written(fast / f"weights-{stamps[3]}.safetensors", 30)
    (line,) = drained(fast, slow, Keep(fast=1, foreign=True))
    assert f"no optimizer.safetensors, which weights-{stamps[2]}.safetensors has" in line
    choice = latest_valid(fast, slow)
    assert choice.checkpoint is not None
    assert choice.checkpoint.name == f"weights-{stamps[2]}.safetensors"
    written(fast / f"optimizer-{stamps[3]}.safetensors", 31)
    assert drained(fast, slow, Keep(fast=1, foreign=True)) == []


def test_models_with_a_hash_or_a_date_lack_nothing_of_each_other(tmp_path: Path) -> None:
    """Models of a hub, one model of each day, and trainings of two kinds."""
    for save, name in enumerate((
        "resnet50-0676ba61", "resnet50-11ad3fa6", "vgg16-397923af", "model_2026-11-25",
        "model_2026-11-26", "actor-3fa9c1", "critic-3fa9c1", "actor-77be02", "model-a0911f",
    )):  # fmt: skip
        written(tmp_path / f"{name}.pt", save)
    assert {one.problem for one in find(LocalStore(tmp_path))} == {""}


@pytest.mark.parametrize("name", [
    "{part}-{step}", "step_{step}/{part}", "epoch_{epoch}/step_{step}/{part}",
    "{part}_ep{epoch}_it{step}",
])  # fmt: skip
def test_a_save_at_a_lower_step_is_compared_with_those_before(tmp_path: Path, name: str) -> None:
    """A training went back, or the steps of an epoch begin anew; the save has no optimizer yet."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    keep = Keep(fast=2, last=2, foreign=True)
    for step in (100, 200, 300):
        for part in ("model", "optim"):
            path = f"{name.format(part=part, step=step, epoch=1)}.safetensors"
            written(fast / path, step)
        assert drained(fast, slow, keep) == []
    now_s = time.time() + 5  # after the copies
    path = f"{name.format(part='model', step=50, epoch=2)}.safetensors"
    written(fast / path, 50, now_s)
    (line,) = drained(fast, slow, keep)
    assert "no optim" in line
    assert "which step 300 has" in line
    assert latest_valid(fast, slow).step == 300
    path = f"{name.format(part='optim', step=50, epoch=2)}.safetensors"
    written(fast / path, 50, now_s)
    assert drained(fast, slow, keep) == []
    assert latest_valid(fast, slow).step == 50


def packed(path: Path, save: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    data = path.with_name("data")
    data.write_bytes(os.urandom(5000))
    with tarfile.open(path, "w:gz") as tar:
        tar.add(data, "model.pt")
    data.unlink()
    os.utime(path, (T + save, T + save))


def test_packed_checkpoints_have_steps_and_packed_data_is_none(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in (1, 2, 3):
        packed(fast / f"ckpt-{step}.tar.gz", step)
        packed(fast / f"export_{step}.tar.gz", step)
        packed(fast / "model.tar.gz", 1)
    assert {one.name: one.step for one in find(LocalStore(fast))} == {
        f"ckpt-{step}.tar.gz": step for step in (1, 2, 3)
    }
    assert drained(fast, slow, Keep(fast=1, last=2, foreign=True)) == []
    assert {path.name for path in slow.glob("*.gz")} == {
        "ckpt-2.tar.gz", "ckpt-3.tar.gz", "export_1.tar.gz", "export_2.tar.gz", "export_3.tar.gz",
        "model.tar.gz",
    }  # fmt: skip
    data = (fast / "ckpt-3.tar.gz").read_bytes()
    (fast / "ckpt-4.tar.gz").write_bytes(data[: len(data) // 2])
    for level in ("sizes", "sample", "full"):
        assert "cut short" in verify(find(LocalStore(fast))[0], level).problems[0]
    assert latest_valid(fast, slow).step == 3
    (fast / "ckpt-4.tar.gz").write_bytes(data + data)  # two members, and padding
    assert verify(find(LocalStore(fast))[0], "full").problems == ()
    (fast / "ckpt-4.tar.gz").write_bytes(data + bytes(100))
    assert verify(find(LocalStore(fast))[0], "full").problems == ()
    for damaged in (data + b"more", data[:200] + b"\0\0\0\0" + data[204:]):
        (fast / "ckpt-4.tar.gz").write_bytes(damaged)
        assert verify(find(LocalStore(fast))[0], "full").problems
    (fast / "ckpt-4.tar.gz").write_bytes(gzip.compress(bytes(80 << 20)))
    assert verify(find(LocalStore(fast))[0], "sizes").state == UNCHECKED
    assert verify(find(LocalStore(fast))[0], "full").problems == ()


@pytest.mark.parametrize("name", ["ckpt-1.tar.gz", "step_1.tgz", "step_1.npz"])
def test_a_copy_under_another_name_is_found_again(tmp_path: Path, name: str) -> None:
    """Another run's file has the name; of `step_1.2.npz` the name alone shows no checkpoint."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for folder, save in ((slow, 1), (fast, 2)):
        packed(folder / "made.tar.gz", save)
        (folder / "made.tar.gz").rename(folder / name)
    if name.endswith(".npz"):
        numpy = pytest.importorskip("numpy")
        for folder in (slow, fast):
            numpy.savez(folder / name, w=numpy.full(10, folder == fast))
    before = (slow / name).read_bytes()
    for _ in range(2):
        assert drained(fast, slow) == []
    assert (slow / name).read_bytes() == before
    stem, dot, ending = name.partition(".")
    copies = {path.name for path in slow.iterdir() if path.is_file() and "2" in path.name}
    assert {one for one in copies if "penstock" not in one} == {f"{stem}.2{dot}{ending}"}
    (copy,) = [one for one in find(LocalStore(slow)) if one.manifest is not None]
    assert (copy.name, copy.step) == (f"{stem}.2{dot}{ending}", parts_of(name).step)


@pytest.mark.parametrize(
    ("order", "pause_s", "index_after", "is_of_two"),
    [
        # One save, in another order than the numbers, with pauses.
        ((1, 2, 4, 3), 3, 3, False), ((4, 3, 2, 1), 3, 1, False), ((2, 3, 4, 1), 3, 4, False),
        ((3, 1, 2, 4), 3, 1, False),
        # The second save has written the first shards, and another minutes later.
        ((3, 4, 1, 2), 3, 2, True), ((1, 2, 4, 3), 300, 3, True),
    ],
)  # fmt: skip
def test_shards_in_any_order_are_of_two_saves_only_where_one_begins_anew(
    tmp_path: Path, order: tuple[int, ...], pause_s: int, index_after: int, is_of_two: bool
) -> None:
    for place, number in enumerate(order):
        at_s = T + place * (0.1 if place < index_after else 1) + pause_s * (place >= index_after)
        written(tmp_path / "out" / f"model-0000{number}-of-00004.safetensors", 1, at_s)
    index = tmp_path / "out" / "model.safetensors.index.json"
    names = [f"model-0000{number}-of-00004.safetensors" for number in (1, 2, 3, 4)]
    index.write_text(json.dumps({"weight_map": {name: name for name in names}}))
    at_s = T + (index_after - 1) * 0.1 + 0.05
    os.utime(index, (at_s, at_s))
    (tmp_path / "out" / "config.json").write_text("{}")
    os.utime(tmp_path / "out" / "config.json", (T - 1, T - 1))
    (one,) = find(LocalStore(tmp_path))
    assert one.problem.startswith("of two saves") is is_of_two


def test_a_newer_save_of_one_folder_leaves_the_newest_save_of_both_on_the_fast_tier(
    tmp_path: Path,
) -> None:
    """The parts lie in two folders: the save with a part alone may be a half."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in (100, 200):
        for part in ("model", "optim"):
            written(fast / part / f"step_{step}.safetensors", step)
        drained(fast, slow)
    for step in (300, 400):
        written(fast / "model" / f"step_{step}.safetensors", step)
        drained(fast, slow)
    checkpoints = find(LocalStore(fast)), find(LocalStore(slow))
    doomed = doomed_on_fast(*checkpoints, Keep(fast=1, foreign=True))
    left = {one.name for one in checkpoints[0]} - {one.name for one, _ in doomed}
    assert {f"{part}/step_200.safetensors" for part in ("model", "optim")} <= left
    assert "model/step_100.safetensors" not in left
