"""Test names that other programs give their saves: a metric, a word of another language, shards
whose number changes between two saves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.retention import Keep
from penstock.save.find.formats import find
from penstock.save.unit.rules import NameRule
from penstock.save.verify import UNCHECKED, latest_valid, verify
from saves import drained, safetensors, state

T = 1_700_000_000


def write(folder: Path, names: Sequence[str], at_s: float, *, n_times: int = 1) -> None:
    for turn, name in enumerate(names):
        state(folder / name, at_s)
        (folder / name).write_bytes(safetensors(at_s) * n_times)
        time_ns = int((T + at_s + turn / 10) * 1e9)
        os.utime(folder / name, ns=(time_ns, time_ns))


def problems(folder: Path) -> Mapping[str, str]:
    return {one.name: one.problem for one in find(LocalStore(folder))}


def files_of(folder: Path) -> Mapping[str, int]:
    return {one.name: len(one.files) for one in find(LocalStore(folder))}


# --- a metric in the name -------------------------------------------------------------------------


def test_a_metric_divides_the_saves_of_a_folder(tmp_path: Path) -> None:
    write(tmp_path, ["model_0.5.safetensors", "optim_0.5.safetensors"], 0)
    write(tmp_path, ["model_0.41.safetensors", "optim_0.41.safetensors"], 100)
    assert files_of(tmp_path) == {"model_0.41.safetensors": 2, "model_0.5.safetensors": 2}
    write(tmp_path, ["ema_0.9999_000300.pt", "model000300.pt", "opt000300.pt"], 200)
    assert files_of(tmp_path)["model000300.pt"] == 3


def test_a_file_written_again_belongs_to_the_nearest_metric(tmp_path: Path) -> None:
    write(tmp_path, ["model_0.5.safetensors"], 0)
    write(tmp_path, ["model_0.41.safetensors", "optim.safetensors"], 100)
    assert files_of(tmp_path) == {"model_0.41.safetensors": 2, "model_0.5.safetensors": 1}
    write(tmp_path, ["model_0.3.safetensors"], 200)
    wanted = "is missing: optim.safetensors of this save"
    assert problems(tmp_path)["model_0.3.safetensors"] == wanted
    slow = tmp_path / "slow"
    fast = tmp_path / "fast"
    fast.mkdir(exist_ok=True)
    for path in tmp_path.glob("*.safetensors"):
        path.rename(fast / path.name)
    assert any("optim.safetensors of this save" in said for said in drained(fast, slow))
    assert latest_valid(fast, slow).path.name == "model_0.41.safetensors"


# --- folders with a word of another language ------------------------------------------------------


@pytest.mark.parametrize(
    "word", ["Schritt_", "etape-", "paso_", "étape ", "krok_", "snap.", "ステップ_"]
)
def test_the_number_of_a_folder_is_the_step_whatever_the_word(tmp_path: Path, word: str) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in (100, 200, 300):
        write(fast / f"{word}{step}", ["modell.safetensors", "rest.safetensors"], step)
    assert drained(fast, slow) == []
    write(fast / f"{word}400", ["modell.safetensors"], 400)
    (said,) = drained(fast, slow)
    assert "no rest.safetensors, which step 300 has" in said
    assert latest_valid(fast, slow).step == 300
    # No rule removes such a copy: the number may be the number of a run.
    drained(fast, slow, keep=Keep(last=1, fast=1, foreign=True))
    assert {one.step for one in find(LocalStore(slow))} == {100, 200, 300}


@pytest.mark.parametrize(
    "folder", ["run_3", "seed-4", "fold_2", "rank_1", "vit_16", "v_2", "model_7", "lauf_1"]
)
def test_the_folder_of_a_run_or_of_a_size_is_no_save(tmp_path: Path, folder: str) -> None:
    write(tmp_path / folder, ["epoch_1.safetensors", "epoch_2.safetensors"], 0)
    write(tmp_path / "other_3", ["best.safetensors", "last.safetensors"], 0)
    assert not any(one.is_folder for one in find(LocalStore(tmp_path)))


# --- another number of shards ---------------------------------------------------------------------


def shards(n: int) -> list[str]:
    return [f"model-{shard:05d}-of-{n:05d}.safetensors" for shard in range(1, n + 1)]


TRAINER = ["config.json", "optimizer.safetensors", "training_args.bin", "trainer_state.json"]


@pytest.mark.parametrize(("before", "now"), [(4, 2), (2, 4)])
def test_a_save_in_another_number_of_shards_is_whole(tmp_path: Path, before: int, now: int) -> None:
    for step, n in ((100, before), (200, before), (300, now)):
        write(tmp_path / f"checkpoint-{step}", [*shards(n), *TRAINER], step)
    assert set(problems(tmp_path).values()) == {""}
    (tmp_path / "checkpoint-300" / shards(now)[-1]).unlink()
    assert problems(tmp_path)["checkpoint-300"] == f"is missing: {shards(now)[-1]}"


@pytest.mark.parametrize("is_removed", [True, False])
def test_shards_written_over_in_another_number_are_whole(tmp_path: Path, is_removed: bool) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    write(fast, [*shards(4), "optimizer.safetensors"], 0)
    assert drained(fast, slow) == []
    for name in shards(4) if is_removed else ():
        (fast / name).unlink()
    write(fast, [*shards(2), "optimizer.safetensors"], 100)
    assert drained(fast, slow) == []
    assert latest_valid(fast, slow).path.name == "model-00001-of-00002.safetensors"


def ranks(step: int, n: int) -> list[str]:
    return [f"model_{step}_rank{rank}.bin" for rank in range(n)]


def test_fewer_ranks_are_whole_only_if_their_files_are_larger(tmp_path: Path) -> None:
    for step in (100, 200):
        write(tmp_path, ranks(step, 4), step)
    write(tmp_path, ranks(300, 2), 300)
    wanted = "no model.bin rank2 and 1 more, which step 200 has"
    assert problems(tmp_path)["model_300_rank0.bin"] == wanted
    write(tmp_path, ranks(300, 2), 300, n_times=2)
    assert problems(tmp_path)["model_300_rank0.bin"] == ""


# --- numbered files, and no name that states how many ---------------------------------------------


def test_the_only_save_of_numbered_files_is_unchecked_until_another_save_shows_how_many(
    tmp_path: Path,
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    row = [f"{number}.safetensors" for number in range(16)]  # and 16.safetensors, which is missing
    write(fast / "step_100", row, 100)
    drained(fast, slow)
    shutil.rmtree(fast / "step_100")
    for tier in (fast, slow):
        for one in find(LocalStore(tier)):
            assert one.doubt == "16 numbered files, and no name or other save shows how many"
            assert verify(one).state == UNCHECKED
    assert latest_valid(fast, slow).state == UNCHECKED
    write(fast / "step_200", row, 200)
    assert drained(fast, slow) == []
    assert {one.doubt for one in find(LocalStore(slow))} == {""}


@pytest.mark.parametrize("last", ["DONE", "meta.json"])
def test_a_file_after_the_numbered_files_ends_a_save(tmp_path: Path, last: str) -> None:
    row = [f"model_rank{number}.safetensors" for number in range(4)]
    write(tmp_path / "step_100", row, 100)
    (one,) = find(LocalStore(tmp_path))
    assert one.doubt
    write(tmp_path / "step_100", [last], 101)
    (one,) = find(LocalStore(tmp_path))
    assert not one.doubt


# --- a file that a framework writes after its index, or that no index names -----------------------

DCP = ["__0_0.distcp", "__1_0.distcp", ".metadata"]
LAYOUTS: dict[str, list[str]] = {  # the files in the order of writing; # is the step
    "epoch=1-step=#.ckpt": [*DCP, "meta.pt"],  # Lightning's FSDP
    "iter_0000#": ["common.pt", *DCP, "metadata.json"],  # Megatron's distributed checkpoint
    "model--step=#": ["context/io.json", "context/model.yaml",
                      *(f"weights/{name}" for name in DCP)],  # NeMo
    "checkpoint-#": ["pytorch_model_fsdp_0/__0_0.distcp", "pytorch_model_fsdp_0/.metadata",
                     "scheduler.pt", "trainer_state.json"],  # the Trainer with FSDP
    "CKPT+2026-11-27+#": ["brain.ckpt", "counter.ckpt", "optimizer.ckpt"],  # SpeechBrain
    "ckpt_20261127T100#": ["model.safetensors", "opt.safetensors"],
    "round_#": ["history.json", "model.ubj", "rng.pkl"],  # XGBoost
    "": ["checkpoint_#", "opt_#.msgpack"],  # Flax
    "boosters": ["booster_#.ubj", "state_#.pkl"],
}  # fmt: skip


@pytest.mark.parametrize("folder", LAYOUTS)
def test_half_of_a_stranger_s_save_is_named_by_no_rule(tmp_path: Path, folder: str) -> None:
    names = [f"{folder}/{name}".lstrip("/") for name in LAYOUTS[folder]]
    for step in (110, 120, 130):
        write(tmp_path, [name.replace("#", str(step)) for name in names], step)
    assert set(problems(tmp_path).values()) == {""}
    third = [name.replace("#", "130") for name in names]
    index = {name for name in third if name.endswith(".metadata")}
    for lost in third:
        is_named_by_index = lost.endswith(".distcp") and index
        if lost.endswith((".yaml", "history.json")) or is_named_by_index:
            continue
        content = (tmp_path / lost).read_bytes()
        (tmp_path / lost).unlink()
        half = [one for one in find(LocalStore(tmp_path)) if {f.name for f in one.files} & {*third}]
        assert half
        assert all(one.problem for one in half), lost
        (tmp_path / lost).write_bytes(content)
        at_ns = int((T + 130 + third.index(lost) / 10) * 1e9)
        os.utime(tmp_path / lost, ns=(at_ns, at_ns))


# --- trainings other than of networks -------------------------------------------------------------

LIBRARIES = {
    "NEAT": ("neat-checkpoint-{}", {}),
    "NEAT, prefix of the user": ("runner_checkpoint-{}", {}),
    "LightGBM": ("model.txt.snapshot_iter_{}", {}),
    "XGBoost": ("{:04d}.model", {}),
    "XGBoost, ubj": ("model_{}.ubj", {}),
    "XGBoost, by a rule": ("model_{}.json", {"rules": (NameRule.of("model_{step}.json"),)}),
}


@pytest.mark.parametrize("library", LIBRARIES)
def test_saves_of_other_trainings_have_a_step_and_are_retired(
    library: str, fast: Path, slow: Path
) -> None:
    name, settings = LIBRARIES[library]
    fast.mkdir(exist_ok=True)
    for step in (8, 9, 10, 11):
        content = f'{{"learner": {step}}}' if name.endswith("json") else f"content {step} " * 100
        (fast / name.format(step)).write_text(content)
        time_ns = (T + 100 * step) * 10**9
        os.utime(fast / name.format(step), ns=(time_ns, time_ns))
    assert drained(fast, slow, Keep(fast=1, last=2, foreign=True), **settings) == []
    assert [one.step for one in find(LocalStore(slow))] == [11, 10]
    assert [one.step for one in find(LocalStore(fast))] == [11]
    choice = latest_valid(fast, slow, level="full")
    assert choice.path == fast / name.format(11)


@pytest.mark.parametrize(
    "name", ["tokenizer.model", "12.model", "model.txt", "checkpoint-3a", "my-checkpoints-4"]
)
def test_a_name_without_a_step_of_such_a_training_is_no_checkpoint(name: str, fast: Path) -> None:
    fast.mkdir(exist_ok=True)
    (fast / name).write_text("content")
    assert find(LocalStore(fast)) == []


def test_a_file_that_the_steps_share_stays_on_both_tiers(fast: Path, slow: Path) -> None:
    """MXNet writes the network's description once, beside the parameters of each epoch."""
    shared = "model-symbol.json"
    for epoch in (4, 5, 6):
        names = [shared] if epoch == 4 else []
        for name in (*names, f"model-{epoch:04d}.params", f"model-{epoch:04d}.states"):
            (fast / name).parent.mkdir(exist_ok=True)
            (fast / name).write_text(f'{{"nodes": {epoch}}}' * 50)
            time_ns = (T + 100 * epoch) * 10**9
            os.utime(fast / name, ns=(time_ns, time_ns))
    assert drained(fast, slow, Keep(fast=1, last=1, foreign=True)) == []
    for tier in (fast, slow):
        [one] = find(LocalStore(tier))
        assert {file.name for file in one.files} == {"model-0006.params", "model-0006.states"}
        assert (tier / shared).exists()
