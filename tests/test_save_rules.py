"""Test rules over folders, rules that say nothing, missing partners, and that a half is never all
that retention leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import SaveError
from penstock.places.stores import LocalStore
from penstock.save.drain.recover import recover
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.unit.rules import NameRule
from penstock.save.verify import latest_valid
from saves import drained, safetensors, state

T = 1_700_000_000
NOW = DrainSettings(settle_s=0, tries=1)


def files(tier: Path) -> set[str]:
    return {os.fspath(one.relative_to(tier)) for one in tier.rglob("*.safetensors")}


def penstock(*words: object) -> tuple[int, str]:
    command = [sys.executable, "-m", "penstock", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("model.pt", "one name"),
        ("{step}", "the name of any file"),
        ("*", "the name of any file"),
        ("{step}-* model-{step}.pt", "the name of any file"),
        ("a-{step}.pt a-{step}.pt", "the same name twice"),
        ("model-*.pt model-ema.pt", "is also the name of each model-ema.pt"),
        ("model-{step}.pt optim.pt", "once in each name"),
        ("/w/model-{step}.pt optim-{step}.pt", "names of the files"),
        ("../model-{step}.pt optim-{step}.pt", "names of the files"),
        ("w//model-{step}.pt optim-{step}.pt", "names of the files"),
        ("", "names of the files"),
    ],
)
def test_a_rule_that_says_nothing_is_refused(text: str, why: str) -> None:
    with pytest.raises(SaveError, match="--unit") as told:
        NameRule.of(text)
    assert why in str(told.value)


def test_the_command_refuses_such_a_rule(fast: Path, slow: Path) -> None:
    status, said = penstock("save", "drain", fast, slow, "--unit=model.pt")
    assert (status, slow.exists(), said.count("\n")) == (2, False, 1), said


@pytest.mark.parametrize(
    "text",
    [
        "model-{step}.pt optim-{step}.pt",
        "step_{step}.pt",
        "ckpt-{step}-*.pt",
        "a-*.pt b-*.pt",
        "x.pt y.pt",
    ],
)
def test_a_rule_that_says_something_is_taken(text: str) -> None:
    assert NameRule.of(text).text == text


@pytest.mark.parametrize("above", ["", "run/"])
def test_a_rule_may_name_files_of_two_folders(fast: Path, slow: Path, above: str) -> None:
    rule = NameRule.of("w/alpha-{step}.safetensors s/beta-{step}.safetensors")
    for save in (1, 2):
        state(fast / f"{above}w" / f"alpha-{save}.safetensors", save, at_s=T + save)
        if save == 1:
            state(fast / f"{above}s" / f"beta-{save}.safetensors", save, at_s=T + save)
    keep = Keep(fast=1, last=1, foreign=True)
    (left,) = drained(fast, slow, keep, rules=(rule,))
    assert f"alpha-2.safetensors: is missing: {above}s/beta-2.safetensors" in left
    assert latest_valid(fast, slow).step == 1
    state(fast / f"{above}s" / "beta-2.safetensors", 2, at_s=T + 2)
    assert drained(fast, slow, keep) == []  # the rule is kept with the tiers
    wanted = {f"{above}w/alpha-2.safetensors", f"{above}s/beta-2.safetensors"}
    assert files(slow) == files(fast) == wanted
    assert all(one.step == 2 for one in find(LocalStore(slow)))
    (slow / f"{above}s" / "beta-2.safetensors").unlink()  # a copy that is whole by itself
    (slow / f"{above}s" / "beta-2.safetensors.penstock.json").unlink()
    assert latest_valid(slow).path is None
    said = penstock("save", "ls", fast, "--explain")[1]
    assert "the rule --unit" in said


def test_a_rule_over_folders_takes_no_file_of_another_folder(fast: Path, slow: Path) -> None:
    rule = NameRule.of("w/alpha-{step}.safetensors s/beta-{step}.safetensors")
    state(fast / "alpha-1.safetensors", 1)
    state(fast / "x" / "beta-1.safetensors", 1)
    assert drained(fast, slow, rules=(rule,)) == []
    assert files(slow) == files(fast)


@pytest.mark.parametrize(
    ("names", "rule"),
    [(("weights/step_{}.safetensors", "states/step_{}.safetensors"), None),
     (("model/{}/a.safetensors", "optim/{}/b.safetensors"), None)],
)  # fmt: skip
def test_retention_never_leaves_only_a_half(
    fast: Path, slow: Path, names: tuple[str, ...], rule: None
) -> None:
    """With one earlier save nothing shows yet that the newer save is a half."""
    for save in (100, 200):
        for name in names[: 2 if save == 100 else 1]:
            state(fast / name.format(save), save, at_s=T + save)
        drained(fast, slow, Keep(fast=1, last=1, foreign=True))
    for tier in (fast, slow):
        assert {name.format(100) for name in names} <= files(tier)
    for name in names:
        state(fast / name.format(300), 300, at_s=T + 300)
    drained(fast, slow, Keep(fast=1, last=1, foreign=True))
    for tier in (fast, slow):
        assert not {name.format(100) for name in names} & files(tier)


@pytest.mark.parametrize(
    "names",
    [
        ("model_v{}.safetensors", "optim_v{}.safetensors"),
        ("model_{}00k.safetensors", "optim_{}00k.safetensors"),
        ("gen{}/agent0.safetensors", "gen{}/agent1.safetensors"),
        ("enc_{}.safetensors", "dec_{}.safetensors"),
        ("weights-{}.safetensors", "rng-{}.dat"),
        ("round_{}_client_0.safetensors", "round_{}_client_1.safetensors"),
    ],
    ids=["version", "rough", "folder", "unknown words", "dat", "clients"],
)
@pytest.mark.parametrize("side", [0, 1])
def test_a_missing_partner_is_missed(
    fast: Path, slow: Path, names: tuple[str, ...], side: int
) -> None:
    side = 0 if names[side].endswith(".dat") else side  # a .dat alone is no checkpoint
    for save in (1, 2, 3, 4):
        for name in names if save < 4 else names[side : side + 1]:
            state(fast / name.format(save), save, at_s=T + 100 * save)
        left = drained(fast, slow)
        assert bool(left) == (save == 4), (save, left)
    choice = latest_valid(fast, slow)
    assert choice.path is not None
    assert "3" in os.fspath(choice.path.relative_to(fast.parent))


@pytest.mark.parametrize(
    ("names", "others"),
    [
        (("model_v{}.safetensors",), ("best_v1.safetensors",)),
        (("run{}/model.safetensors", "run{}/optim.safetensors"), ("run4/model.safetensors",)),
        (("seed_{}/a.safetensors", "seed_{}/b.safetensors"), ("seed_4/a.safetensors",)),
        (("model_{}B.safetensors",), ("tokenizer_1k.safetensors",)),
    ],
)
def test_other_trainings_are_not_missed(
    fast: Path, slow: Path, names: tuple[str, ...], others: tuple[str, ...]
) -> None:
    for save in (1, 2, 3):
        for name in names:
            state(fast / name.format(save), save, at_s=T + 100 * save)
    for name in others:
        state(fast / name, 4, at_s=T + 400)
    assert drained(fast, slow) == []


def test_explain_says_what_is_missing_of_an_unfinished_checkpoint(fast: Path, slow: Path) -> None:
    names = ("step_{}/a.safetensors", "step_{}/b.safetensors")
    for save in (1, 2, 3):
        for name in names:
            state(fast / name.format(save), save, at_s=T + save)
    drained(fast, slow)
    state(fast / names[0].format(1), 9)  # of two saves
    state(fast / "last.safetensors", 4)
    os.truncate(fast / "last.safetensors", 150)  # cut
    with (fast / names[0].format(3)).open("r+b"):
        _, said = penstock("save", "ls", fast, "--explain")
    assert said.count("of another program") == 1  # step_2
    assert "1 of its 2 files were written again and 1 were not" in said
    assert "last.safetensors: 150 bytes, and its header tells of" in said
    assert "a program has a.safetensors open for writing" in said
    assert penstock("save", "ls", slow, "--explain")[1].count("verified copy") == 3


def test_recover_makes_no_slow_folder(fast: Path, tmp_path: Path) -> None:
    state(fast / "step_1.safetensors", 1, at_s=T)
    typo = tmp_path / "slwo"
    choice, (line,) = recover(fast, typo, NOW, makes_slow=False)
    assert f"{typo}: no such folder" in line
    assert choice.path == fast / "step_1.safetensors"
    status, said = penstock("save", "recover", fast, typo)
    assert status == 1
    assert "Nothing was drained" in said
    assert not typo.exists()


def test_a_rule_of_one_name_states_the_step_and_leaves_out_no_file(fast: Path, slow: Path) -> None:
    rule = NameRule.of("model-{step}.safetensors")
    for save in (1, 2):
        for part in ("model", "optim"):
            state(fast / f"{part}-{save}.safetensors", save, at_s=T + 60 * save)
        assert drained(fast, slow, rules=(rule,)) == []
    assert [(one.step, len(one.files)) for one in find(LocalStore(fast))] == [(2, 2), (1, 2)]
    state(fast / "model-3.safetensors", 3, at_s=T + 180)
    (left,) = drained(fast, slow)
    assert left.startswith("model-3.safetensors: no optim.safetensors, which step 2 has")
    assert latest_valid(fast, slow).step == 2


def test_a_rule_of_one_name_tells_a_number_that_is_no_step_by_itself(
    fast: Path, slow: Path
) -> None:
    state(fast / "net50-7.safetensors", 7)
    (fast / "raw-7.field").write_bytes(b"x" * 100)
    assert [one.step for one in find(LocalStore(fast))] == [None]
    rules = NameRule.of("net50-{step}.safetensors"), NameRule.of("raw-{step}.field")
    assert drained(fast, slow, rules=rules) == []
    for tier in (fast, slow):
        assert [one.step for one in find(LocalStore(tier))] == [7, 7]
    said = penstock("save", "ls", fast, "--explain")[1]
    assert "the step by the rule --unit 'net50-{step}.safetensors'" in said


def test_a_rule_of_one_name_needs_no_file_in_another_folder(fast: Path, slow: Path) -> None:
    rule = NameRule.of("weights/step_{step}.safetensors")
    for save in (1, 2, 3, 4):
        state(fast / "weights" / f"step_{save}.safetensors", save, at_s=T + 60 * save)
        if save < 4:
            state(fast / "states" / f"step_{save}.safetensors", save, at_s=T + 60 * save + 1)
    assert len(drained(fast, slow)) == 1
    assert drained(fast, slow, rules=(rule,)) == []
    assert latest_valid(fast, slow).step == 4


OVER_FOLDERS = {
    "fixed names": ("alpha/last.safetensors", "beta/last.safetensors"),
    "steps": ("alpha/{step}.safetensors", "beta/{step}.safetensors"),
}


@pytest.mark.parametrize("kind", OVER_FOLDERS)
def test_files_of_two_saves_are_no_checkpoint_by_a_rule_over_folders(
    fast: Path, slow: Path, kind: str
) -> None:
    """The second save of the same names was killed between its two files."""
    names = [name.replace("{step}", "500") for name in OVER_FOLDERS[kind]]
    rule = NameRule.of(" ".join(OVER_FOLDERS[kind]))
    for name in names:
        state(fast / name, 1, at_s=T)
    assert drained(fast, slow, rules=(rule,)) == []
    state(fast / names[0], 2, at_s=T + 600)
    (left,) = drained(fast, slow)
    assert f"of two saves: {names[0]} was written again and {names[1]} was not" in left
    choice = latest_valid(fast, slow)
    assert choice.checkpoint is not None
    assert choice.checkpoint.store.url == os.fspath(slow)
    for name in names:
        assert (slow / name).read_bytes() == safetensors(1)
    assert "of two saves" in penstock("save", "ls", fast, "--explain")[1]
    state(fast / names[1], 2, at_s=T + 601)
    assert drained(fast, slow) == []
    for name in names:
        assert (slow / name).read_bytes() == safetensors(2)


@pytest.mark.parametrize("kind", OVER_FOLDERS)
def test_a_touched_file_and_a_file_written_once_are_of_the_same_save(
    fast: Path, slow: Path, kind: str
) -> None:
    names = [name.replace("{step}", "500") for name in OVER_FOLDERS[kind]]
    rule = NameRule.of(" ".join(OVER_FOLDERS[kind]))
    state(fast / names[0], 1, at_s=T)
    state(fast / names[1], 1, at_s=T - 100)  # the second file is written once
    assert drained(fast, slow, rules=(rule,)) == []
    state(fast / names[0], 2, at_s=T + 600)
    assert drained(fast, slow) == []
    state(fast / names[1], 1, at_s=T + 900)  # as `touch` does
    assert drained(fast, slow) == []


def test_copies_of_two_saves_by_a_rule_over_folders_are_not_named(fast: Path, slow: Path) -> None:
    """The drain was killed between two copies, and the fast tier is lost."""
    names = OVER_FOLDERS["fixed names"]
    for name in names:
        state(fast / name, 1, at_s=T)
    assert drained(fast, slow, rules=(NameRule.of(" ".join(names)),)) == []
    older = (slow / names[1]).read_bytes(), (slow / f"{names[1]}.penstock.json").read_bytes()
    for name in names:
        state(fast / name, 2, at_s=T + 600)
    record = slow / ".penstock" / "together.json"
    seen = record.read_bytes()
    assert drained(fast, slow) == []
    (slow / names[1]).write_bytes(older[0])
    (slow / f"{names[1]}.penstock.json").write_bytes(older[1])
    record.write_bytes(seen)
    assert latest_valid(slow).path is None


def test_each_file_of_a_rule_counts_whatever_its_kind(fast: Path, slow: Path) -> None:
    """Also a file of an unknown kind, beside a file of a state."""
    rule = NameRule.of("model.safetensors replay.field")
    for name in ("model.safetensors", "replay.field"):
        state(fast / name, 1, at_s=T)
    assert drained(fast, slow, rules=(rule,)) == []
    state(fast / "model.safetensors", 2, at_s=T + 600)
    (left,) = drained(fast, slow)
    assert "replay.field: the save has not ended" in left
