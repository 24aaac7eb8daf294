"""Test how libraries and programs mark the parts and the end of a save: a text in a .ckpt file, a
hidden index, a folder for drafts, a step in brackets, numbers that count parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.recover import fetch, recover
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.unit.rules import NameRule, add_rules
from penstock.save.verify import BY_NAME, NOT_WHOLE, UNCHECKED, latest_valid, verify
from saves import drained, state

T = 1_700_000_000
NOW = DrainSettings(settle_s=0, tries=1)


def put(path: Path, data: bytes, *, at_s: float = T) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (at_s, at_s))


def files(tier: Path) -> set[str]:
    return {
        os.fspath(one.relative_to(tier)) for one in tier.rglob("*")
        if one.is_file() and "penstock" not in os.fspath(one.relative_to(tier))
    }  # fmt: skip


def named(fast: Path, slow: Path | None = None) -> str:
    choice = latest_valid(fast, slow)
    return choice.checkpoint.name if choice.checkpoint is not None else ""


@pytest.mark.parametrize(
    ("counter", "verdict"),
    [(b"3", BY_NAME), (b"300\n", BY_NAME), (bytes(4), NOT_WHOLE), (b"\x80\x02}", NOT_WHOLE)],
)
def test_a_text_in_a_file_with_the_ending_of_torch_is_no_damage(
    tmp_path: Path, counter: bytes, verdict: str
) -> None:
    """SpeechBrain writes the number of the epoch as a text into `counter.ckpt`."""
    save = tmp_path / "CKPT+2026-11-25+12-30-00+00"
    state(save / "model.safetensors", 3, at_s=T)
    put(save / "counter.ckpt", counter)
    put(save / "CKPT.yaml", b"end-of-epoch: true\n")
    [one] = find(LocalStore(tmp_path))
    assert verify(one, "full").state == verdict


SKORCH = ("params.safetensors", "optimizer.safetensors", "criterion.safetensors", "history.json")


def test_the_files_of_skorch_are_one_checkpoint_and_come_back_together(tmp_path: Path) -> None:
    fast, slow, new = tmp_path / "fast", tmp_path / "slow", tmp_path / "new"
    for name in SKORCH[:3]:
        state(fast / name, 3, at_s=T)
    put(fast / "history.json", b"[]")
    assert drained(fast, slow) == []
    new.mkdir()
    choice, _ = recover(new, slow, NOW)
    assert choice.checkpoint is not None
    fetch(choice.checkpoint, new)
    assert files(new) == set(SKORCH)


def test_a_history_of_the_end_of_the_training_makes_no_later_save_incomplete(
    tmp_path: Path,
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for number, has_history in enumerate((False, True, False, False)):
        at_s = T + 300 * number
        for name in SKORCH[:3]:
            state(fast / name, number, at_s=at_s)
        if has_history:
            put(fast / "history.json", b"[]", at_s=at_s + 1)
        assert drained(fast, slow) == [], number


def test_a_folder_without_the_hidden_index_of_the_saves_before_is_not_whole(tmp_path: Path) -> None:
    """TorchSnapshot writes `.snapshot_metadata` last."""
    for step in (1, 2, 3, 4):
        for name in ("0/app/model.weight", "0/app/optim.state", "1/app/model.weight"):
            state(tmp_path / f"run_epoch_{step}" / name, step, at_s=T + 10 * step)
        put(tmp_path / f"run_epoch_{step}" / ".DS_Store", b"x") if step < 4 else None
        if step < 4:
            put(tmp_path / f"run_epoch_{step}" / ".snapshot_metadata", b"{}", at_s=T + 10 * step)
    newest = next(one for one in find(LocalStore(tmp_path)) if one.step == 4)
    assert newest.problem == "no .snapshot_metadata, which step 3 has"
    assert named(tmp_path) == "run_epoch_3"
    put(tmp_path / "run_epoch_4" / ".snapshot_metadata", b"{}", at_s=T + 41)
    assert named(tmp_path) == "run_epoch_4"


@pytest.mark.parametrize("draft", ["ck.tmp", "tmp-ck", ".tmp_ck", "ck.incomplete"])
def test_a_file_in_a_folder_for_drafts_is_not_finished(tmp_path: Path, draft: str) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for name in ("net.safetensors", "opt.safetensors"):
        state(fast / "cur" / name, 3, at_s=T)
    state(fast / draft / "net.safetensors", 4, at_s=T + 100)
    assert len(drained(fast, slow)) == 1
    assert files(slow) == {"cur/net.safetensors", "cur/opt.safetensors"}
    assert named(fast, slow) == "cur/net.safetensors"


@pytest.mark.parametrize("text", ["my {} (step {})", "{} [epoch={}]", "{}#step:{}", "{}; iter {}"])
def test_a_step_with_a_word_counts_in_brackets_and_after_other_signs(
    tmp_path: Path, text: str
) -> None:
    for step in (10, 20, 30):
        for part in ("model", "optimizer"):
            state(tmp_path / f"{text.format(part, step)}.safetensors", step, at_s=T + 100 * step)
    state(tmp_path / f"{text.format('model', 40)}.safetensors", 40, at_s=T + 4000)
    found = {one.step: (len(one.files), bool(one.problem)) for one in find(LocalStore(tmp_path))}
    assert found == {10: (2, False), 20: (2, False), 30: (2, False), 40: (1, True)}


def test_the_number_of_a_copy_made_by_hand_is_no_step(tmp_path: Path) -> None:
    for name in ("model.pt", "model (1).pt", "model (2).pt"):
        state(tmp_path / name, 1, at_s=T)
    assert {one.step for one in find(LocalStore(tmp_path))} == {None}


def test_the_training_states_of_basicsr_are_parts_of_the_saves(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in (5000, 10000, 15000, 20000):
        for part in ("g", "d"):
            state(fast / "models" / f"net_{part}_{step}.pth", step, at_s=T + step)
        state(fast / "training_states" / f"{step}.state", step, at_s=T + step + 1)
    drained(fast, slow, Keep(2, 2, foreign=True))
    names = {
        name for step in (15000, 20000)
        for name in (f"models/net_g_{step}.pth", f"models/net_d_{step}.pth")
    }  # fmt: skip
    names |= {f"training_states/{step}.state" for step in (15000, 20000)}
    assert files(slow) == names
    for part in ("g", "d"):
        state(fast / "models" / f"net_{part}_25000.pth", 1, at_s=T + 25000)
    problems = {one.name: one.problem for one in find(LocalStore(fast)) if one.step == 25000}
    assert problems == {
        "models/net_d_25000.pth": "no training_states/25000.state, which step 20000 has"
    }


def row(tier: Path, names: Sequence[str], pause_s: float) -> None:
    for number, name in enumerate(names):
        state(tier / name, number, at_s=T + pause_s * number)


@pytest.mark.parametrize("text", ["weights.{}.safetensors", "model_{}.pt", "net-0{}.safetensors"])
def test_numbers_without_a_word_written_at_once_are_unchecked_until_a_rule_decides(
    tmp_path: Path, text: str
) -> None:
    names = [text.format(number) for number in range(4)]
    row(tmp_path, names, 0.1)
    found = find(LocalStore(tmp_path))
    assert {verify(one).state for one in found if one.name.endswith("safetensors")} <= {UNCHECKED}
    assert all("may be 4 steps or 4 parts of one save (--unit)" in one.doubt for one in found)
    row(tmp_path, names, 100)
    assert not any(one.doubt for one in find(LocalStore(tmp_path)))
    row(tmp_path, names, 0.1)
    add_rules(LocalStore(tmp_path), [NameRule.of(text.format("{step}"))])
    found = find(LocalStore(tmp_path))
    assert {(one.step, one.doubt) for one in found} == {(number, "") for number in range(4)}


def test_a_copy_of_a_file_that_may_be_a_part_is_not_preferred_to_a_newer_file(
    tmp_path: Path,
) -> None:
    """A copy has equal bytes: no step is surer than a later step."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    names = [f"model-{number}.safetensors" for number in range(1, 6)]
    state(fast / names[2], 2, at_s=T + 0.2)
    drained(fast, slow)
    row(fast, names, 0.1)
    assert not any(one.doubt for one in find(LocalStore(slow)))
    choice = latest_valid(fast, slow)
    assert choice.checkpoint is not None
    assert (choice.checkpoint.name, choice.state) == (names[-1], UNCHECKED)


def test_all_files_of_a_rule_without_a_step_are_one_checkpoint(tmp_path: Path) -> None:
    row(tmp_path, [f"weights.{number}.safetensors" for number in range(4)], 0.1)
    add_rules(LocalStore(tmp_path), [NameRule.of("weights.*.safetensors")])
    [one] = find(LocalStore(tmp_path))
    assert len(one.files) == 4
    assert not one.doubt


def test_retention_leaves_all_files_that_may_be_the_parts_of_one_save(tmp_path: Path) -> None:
    """A newer checkpoint that counts lets none of them go."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    names = [f"weights.{number}.safetensors" for number in range(4)]
    row(fast, names, 0.1)
    for step in (50, 60, 70):
        state(fast / f"snap-step{step}.safetensors", step, at_s=T + 1000 * step)
    drained(fast, slow, Keep(1, 1, foreign=True))
    assert files(slow) == {*names, "snap-step70.safetensors"}
    assert files(fast) == {*names, "snap-step70.safetensors"}


EPOCHS = [
    ("epoch={epoch}-step={step}.safetensors", "optim-epoch={epoch}.safetensors"),
    ("model_epoch{epoch}_iter{step}.safetensors", "optim_epoch{epoch}.safetensors"),
    ("ep{epoch}-ba{step}-rank0.safetensors", "ema-{epoch}.safetensors"),
]


@pytest.mark.parametrize(("of_step", "of_epoch"), EPOCHS)
@pytest.mark.parametrize("is_at_each_save", [True, False])
def test_a_file_of_the_epoch_belongs_to_the_step_of_the_epoch(
    tmp_path: Path, of_step: str, of_epoch: str, is_at_each_save: bool
) -> None:
    """The program is killed between the two files of save 5; the last whole save stays."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    keep = Keep(1, 1, foreign=True)
    for number in range(1, 6):
        for late, name in enumerate((of_step, of_epoch)):
            if number < 5 or not late:
                path = fast / name.format(epoch=number, step=100 * number)
                state(path, number, at_s=T + 100 * number + late)
        if is_at_each_save and number < 5:
            assert drained(fast, slow, keep) == []
    assert len(drained(fast, slow, keep)) == 1
    last = {name.format(epoch=4, step=400) for name in (of_step, of_epoch)}
    assert files(slow) == last
    assert named(fast, slow) in last


def test_the_step_of_one_file_shows_that_the_numbers_count_no_parts(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for number in range(1, 5):
        for name in (EPOCHS[2][0], EPOCHS[2][1]):
            path = fast / name.format(epoch=number, step=100 * number)
            state(path, number, at_s=T + number / 10)
    assert drained(fast, slow, Keep(2, 2, foreign=True)) == []
    assert len(files(slow)) == len(files(fast)) == 4


def test_steps_beside_the_epochs_of_another_saver_stay_apart(tmp_path: Path) -> None:
    for number in range(1, 4):
        state(tmp_path / f"epoch={number}-step={100 * number + 7}.safetensors", number, at_s=T)
    for step in (1, 2, 50, 100, 200):
        state(tmp_path / f"ema-{step}.safetensors", step, at_s=T + step)
    found = {one.name: len(one.files) for one in find(LocalStore(tmp_path))}
    assert found["epoch=1-step=107.safetensors"] == found["ema-1.safetensors"] == 1
