"""Test saves whose parts lie in several folders: a save that was killed between the parts is no
save, and folders that are no parts of one training are never missed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

import saves
from penstock import cli
from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import recover
from penstock.save.drain.retention import Keep, plan
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.unit import folders
from penstock.save.unit.rules import NameRule
from penstock.save.verify import latest_valid
from saves import drained, value_of

T = 1_700_000_000


def state(path: Path, step: float, *, at_s: float | None = None) -> None:
    saves.state(path, step, at_s=T + step if at_s is None else at_s)


def step_of_restart(fast: Path, slow: Path) -> int | None:
    return latest_valid(fast, slow).step


def weights_and_states(fast: Path, step: int, *, is_whole: bool = True) -> None:
    state(fast / "weights" / f"step_{step}.safetensors", step)
    if is_whole:
        state(fast / "states" / f"step_{step}.safetensors", step, at_s=T + step + 1)


def optimizer_below(fast: Path, step: int, *, is_whole: bool = True) -> None:
    state(fast / f"step_{step}" / "model.safetensors", step)
    if is_whole:
        state(fast / "opt" / f"step_{step}" / "optim.safetensors", step, at_s=T + step + 1)


def weights_beside_a_state(fast: Path, step: int, *, is_whole: bool = True) -> None:
    """As kohya's trainer does: the file of the weights, then the folder of Accelerate."""
    state(fast / f"cat-{step:06d}.safetensors", step)
    folder = fast / f"cat-{step:06d}-state"
    for name in ("optimizer.bin", "random_states_0.pkl") if is_whole else ("optimizer.bin",):
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"\x80\x04N.")
        os.utime(folder / name, (T + step + 1, T + step + 1))


def ranks(fast: Path, step: int, *, is_whole: bool = True) -> None:
    for rank in range(4 if is_whole else 3):
        state(fast / "ckpt" / f"rank_{rank}" / f"step_{step}.safetensors", step)


MISSING: dict[Callable[..., None], str] = {
    weights_and_states: "no states/step_400.safetensors, which step 300 has",
    optimizer_below: "no opt/step_400, which step 300 has",
    weights_beside_a_state: "cat-000400-state, of the same save: no random_states_0.pkl",
    ranks: "no ckpt/rank_3/step_400.safetensors, which step 300 has",
}


@pytest.mark.parametrize("save", MISSING, ids=lambda save: save.__name__)
def test_a_save_killed_between_two_folders_is_no_save(
    tmp_path: Path, save: Callable[..., None]
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    keep = Keep(fast=2, last=2, foreign=True)
    for step in (100, 200, 300):
        save(fast, step)
        assert drained(fast, slow, keep) == []
    save(fast, 400, is_whole=False)
    said = drained(fast, slow, keep)
    assert any(MISSING[save] in line for line in said), said
    assert {one.step for one in find(LocalStore(slow))} == {200, 300}
    assert step_of_restart(fast, slow) == 300
    choice, failed = recover(fast, slow, DrainSettings(settle_s=0, tries=1))
    assert (choice.step, failed) == (300, said)
    save(fast, 400)
    assert drained(fast, slow, keep) == []
    assert step_of_restart(fast, slow) == step_of_restart(tmp_path / "none", slow) == 400
    assert {one.step for one in find(LocalStore(slow))} == {300, 400}


@pytest.mark.parametrize("save", [weights_and_states, optimizer_below, ranks])
def test_a_save_of_which_only_some_copies_were_made_is_no_save(
    tmp_path: Path, save: Callable[..., None]
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in (100, 200, 300, 400):
        save(fast, step)
    assert drained(fast, slow) == []
    shutil.rmtree(fast)
    fast.mkdir()
    store = LocalStore(slow)
    lost = next(one for one in find(store) if one.step == 400)
    for path in (slow / lost.name, slow / lost.manifest_name):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    choice = latest_valid(fast, slow)
    assert choice.step == 300
    assert any(f"no {lost.name}, which step 300 has" in why for _, why in choice.rejected)
    # The half does not count: the newest whole save stays.
    _, going = plan(LocalStore(fast), store, Keep(last=1))
    assert {one.step for one in going} == {100, 200}


def test_the_parts_of_a_save_may_lie_on_two_tiers(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in (100, 200, 300):
        weights_and_states(fast, step)
    assert drained(fast, slow) == []
    for step in (100, 200, 300):
        (fast / "weights" / f"step_{step}.safetensors").unlink()
    assert drained(fast, slow) == []
    assert step_of_restart(fast, slow) == 300


def test_a_training_that_went_back_is_compared_with_the_saves_before(tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    for step in (100, 200, 300, 400):
        weights_and_states(fast, step)
    for at_s, step in ((500, 250), (600, 275)):
        state(fast / "weights" / f"step_{step}.safetensors", step, at_s=T + at_s)
        state(fast / "states" / f"step_{step}.safetensors", step, at_s=T + at_s + 1)
    assert not any(one.problem for one in find(LocalStore(fast)))
    state(fast / "weights" / "step_290.safetensors", 290, at_s=T + 700)
    (one,) = (one for one in find(LocalStore(fast)) if one.problem)
    assert one.problem == "no states/step_290.safetensors, which step 275 has"


def test_a_rule_of_the_user_needs_no_other_folder(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in (100, 200, 300):
        weights_and_states(fast, step)
    weights_and_states(fast, 400, is_whole=False)
    assert len(drained(fast, slow)) == 1
    assert drained(fast, slow, rules=(NameRule.of("step_{step}.safetensors"),)) == []
    assert step_of_restart(fast, slow) == 400


# --- folders that are no parts of a save ----------------------------------------------------------


def copies_of_the_best(fast: Path) -> None:
    for step in range(100, 600, 100):
        state(fast / f"step_{step}.safetensors", step)
        if step < 500:
            for folder in ("best", "top-3", "best_model"):
                state(fast / folder / f"step_{step}.safetensors", step, at_s=T + step + 1)


def outputs_of_an_evaluation(fast: Path) -> None:
    for step in range(100, 600, 100):
        state(fast / "weights" / f"step_{step}.safetensors", step)
        if step < 500:
            for folder in ("eval", "samples", "predictions"):
                state(fast / folder / f"step_{step}.safetensors", step, at_s=T + step + 60)


def average_in_each_third_save(fast: Path) -> None:
    for step in range(100, 900, 100):
        state(fast / "weights" / f"step_{step}.safetensors", step)
        if step % 300 == 100:
            state(fast / "ema" / f"step_{step}.safetensors", step)


def runs_with_unlike_steps(fast: Path) -> None:
    for step in range(100, 600, 100):
        state(fast / "run1" / f"step_{step}.safetensors", step)
    for step in range(100, 900, 100):
        state(fast / "run2" / f"step_{step + 50}.safetensors", step)


def runs_in_step(fast: Path) -> None:
    """Trainings with equal steps at the same time; one of them is ahead, or has ended."""
    for folder, last in (
        ("seed_0", 600), ("seed_1", 500), ("a", 600), ("b", 500), ("anna", 600), ("berta", 500),
        ("lightning_logs/version_0/checkpoints", 600),
        ("lightning_logs/version_1/checkpoints", 500),
        ("fold0", 600), ("fold1", 500), ("2026-11-25", 600), ("2026-11-26", 500),
    ):  # fmt: skip
        for step in range(100, last + 100, 100):
            state(fast / folder / f"step_{step}.safetensors", step)


def exports(fast: Path) -> None:
    for step in range(100, 600, 100):
        state(fast / f"step_{step}" / "model.safetensors", step)
        if step < 500:
            for folder in ("export", "hf", "onnx", "release"):
                state(fast / folder / f"step_{step}" / "model.safetensors", step, at_s=T + step + 9)


def one_training_after_the_other(fast: Path) -> None:
    for step in range(100, 600, 100):
        state(fast / "teacher" / f"step_{step}.safetensors", step)
    for step in range(100, 500, 100):
        state(fast / "student" / f"step_{step}.safetensors", step, at_s=T + 9000 + step)
    state(fast / "student" / "step_600.safetensors", 600, at_s=T + 9600)


def states_of_the_last_save_only(fast: Path) -> None:
    for step in range(100, 600, 100):
        state(fast / "weights" / f"step_{step}.safetensors", step)
    state(fast / "states" / "step_400.safetensors", 400)


def a_single_pair_before(fast: Path) -> None:
    weights_and_states(fast, 100)
    weights_and_states(fast, 200, is_whole=False)


def an_optimizer_that_is_written_later(fast: Path) -> None:
    for step in range(100, 600, 100):
        state(fast / "weights" / f"step_{step}.safetensors", step)
        state(fast / "states" / f"step_{step}.safetensors", step, at_s=T + step + 90)


@pytest.mark.parametrize(
    "layout",
    [
        copies_of_the_best, outputs_of_an_evaluation, average_in_each_third_save,
        runs_with_unlike_steps, runs_in_step, exports, one_training_after_the_other,
        states_of_the_last_save_only, a_single_pair_before, an_optimizer_that_is_written_later,
    ],
    ids=lambda layout: layout.__name__,
)  # fmt: skip
def test_nothing_is_missed_in(tmp_path: Path, layout: Callable[[Path], None]) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    layout(fast)
    assert drained(fast, slow) == []
    assert not any(
        one.problem or one.torn for tier in (fast, slow) for one in find(LocalStore(tier))
    )
    last = max(one.step or 0 for one in find(LocalStore(fast)))
    shutil.rmtree(fast)
    assert step_of_restart(fast, slow) == last


# --- a step for the second time -------------------------------------------------------------------


def test_parts_of_two_saves_of_one_step_are_told_by_their_times(tmp_path: Path) -> None:
    fast = tmp_path / "fast"
    for step in (100, 200, 300, 400):
        weights_and_states(fast, step)
    # The training begins from step 300 again, and is killed in the save of step 400.
    state(fast / "weights" / "step_400.safetensors", 400, at_s=T + 520)
    choice = latest_valid(fast)
    assert choice.step == 300
    (why,) = {why for _, why in choice.rejected}
    assert why == (
        "of two saves: weights/step_400.safetensors was written 119 s after "
        "states/step_400.safetensors"
    )
    state(fast / "states" / "step_400.safetensors", 400, at_s=T + 521)
    assert step_of_restart(fast, tmp_path / "slow") == 400


def test_a_save_is_compared_with_its_neighbours_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = list[int]()
    lacking = folders.lacking

    def counting(one: object, others: list[object]) -> str:
        lengths.append(len(others))
        return lacking(one, others)  # type: ignore[arg-type]

    monkeypatch.setattr(folders, "lacking", counting)
    for step in range(300):
        for folder in ("weights", "states"):
            path = tmp_path / folder / f"step_{step}.pt"
            path.parent.mkdir(exist_ok=True)
            path.touch()
    assert len(find(LocalStore(tmp_path))) == 600
    assert lengths == []
    for step in range(1, 300, 2):
        (tmp_path / "states" / f"step_{step}.pt").unlink()
    assert len(find(LocalStore(tmp_path))) == 450
    assert 0 < len(lengths) <= 150
    assert max(lengths) <= 2 * folders.NEAR
    lengths.clear()
    shutil.rmtree(tmp_path / "states")
    assert len(find(LocalStore(tmp_path))) == 300
    assert lengths == []


# --- the same names at each save ------------------------------------------------------------------


def same_names(fast: Path, at_s: float, *, is_whole: bool = True) -> None:
    state(fast / "weights" / "net.safetensors", at_s)
    if is_whole:
        state(fast / "states" / "opt.safetensors", at_s, at_s=T + at_s + 1)


def values(tier: Path) -> list[float]:
    return [value_of(tier / one) for one in ("weights/net.safetensors", "states/opt.safetensors")]


@pytest.mark.parametrize("keep", [None, Keep(fast=2, last=2, foreign=True)], ids=["all", "two"])
def test_the_parts_under_the_same_names_are_of_one_save(tmp_path: Path, keep: Keep | None) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for at_s in (100, 200, 300):
        same_names(fast, at_s)
        assert drained(fast, slow, keep) == []
    same_names(fast, 400, is_whole=False)
    (line,) = drained(fast, slow, keep)
    assert values(fast) == [400, 300]
    assert line.startswith(
        "weights/net.safetensors: of two saves: weights/net.safetensors was written again and "
        "states/opt.safetensors was not; not copied"
    )
    assert values(slow) == [300, 300]
    choice = latest_valid(fast, slow)
    assert choice.path is not None
    assert choice.path.is_relative_to(slow)
    same_names(fast, 400)
    assert drained(fast, slow, keep) == []
    assert values(slow) == [400, 400]
    choice = latest_valid(fast, slow)
    assert choice.path is not None
    assert choice.path.is_relative_to(fast)


def test_copies_of_two_saves_under_the_same_names_are_no_save(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for at_s in (100, 200, 300):
        same_names(fast, at_s)
        assert drained(fast, slow) == []
    same_names(fast, 400)
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
        working._drain(working.backlog()[:1])  # the node is lost before the other one
    shutil.rmtree(fast)
    fast.mkdir()
    assert sorted(values(slow)) == [300, 400]
    choice = latest_valid(fast, slow)
    assert choice.path is None
    assert {why.partition(":")[0] for _, why in choice.rejected} == {"of two saves"}
    same_names(fast, 500)
    recover(fast, slow, DrainSettings(settle_s=0, tries=1))
    assert step_or_path(fast, slow) is not None


def step_or_path(fast: Path, slow: Path) -> Path | None:
    return latest_valid(fast, slow).path


def a_part_that_never_changes(fast: Path, at_s: int) -> None:
    state(fast / "unet" / "model.safetensors", at_s)
    if at_s == 100:
        state(fast / "vae" / "model.safetensors", at_s)


def a_part_of_each_third_save(fast: Path, at_s: int) -> None:
    state(fast / "model.safetensors", at_s)
    if at_s % 300 == 100:
        state(fast / "ema" / "model.safetensors", at_s)


def two_trainings(fast: Path, at_s: int) -> None:
    for folder, last in (("seed_0", 900), ("seed_1", 500)):
        if at_s <= last:
            state(fast / folder / "model.safetensors", at_s)


def a_copy_of_the_best(fast: Path, at_s: int) -> None:
    state(fast / "model.safetensors", at_s)
    if at_s <= 500:
        state(fast / "best" / "model.safetensors", at_s)
        state(fast / "export" / "model.safetensors", at_s)


@pytest.mark.parametrize(
    "save",
    [a_part_that_never_changes, a_part_of_each_third_save, two_trainings, a_copy_of_the_best],
)
def test_names_that_are_not_written_together_are_not_compared(
    tmp_path: Path, save: Callable[[Path, int], None]
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for at_s in range(100, 1000, 100):
        save(fast, at_s)
        assert drained(fast, slow) == []


@pytest.mark.parametrize(
    "names",
    [
        ("alpha.safetensors", "beta.safetensors"),
        ("0.safetensors", "1.safetensors"),
        ("latest.safetensors", "replay.safetensors"),
        ("resnet50.safetensors", "head.safetensors"),
        ("llama3-8b.safetensors", "opt.safetensors"),
        ("weights/net.safetensors", "states/opt.safetensors"),
        ("weights/step_#.safetensors", "states/step_#.safetensors"),
    ],
)
def test_a_fetch_brings_all_parts_of_the_save(tmp_path: Path, names: Sequence[str]) -> None:
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    for at_s in (100, 200, 300):
        for place, name in enumerate(names):
            state(fast / name.replace("#", str(at_s)), at_s, at_s=T + at_s + place)
        assert drained(fast, slow) == []
    empty.mkdir()
    words = ["save", "recover", str(empty), str(slow), "--fetch"]
    ended = CliRunner().invoke(cli.cli, words)
    assert ended.exit_code == 0, ended.output
    assert [value_of(empty / name.replace("#", "300")) for name in names] == [300, 300]


@pytest.mark.parametrize(
    "names",
    [
        ("latest.safetensors", "replay.safetensors"),
        ("resnet50.safetensors", "head.safetensors"),
        ("llama3-8b.safetensors", "opt.safetensors"),
        ("final_vit_b16.safetensors", "stage2_opt.safetensors", "meters.safetensors"),
    ],
)
def test_a_save_that_was_killed_replaces_no_part_of_the_good_one(
    tmp_path: Path, names: Sequence[str]
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for at_s in (100, 200, 300):
        for place, name in enumerate(names):
            state(fast / name, at_s, at_s=T + at_s + place)
        assert drained(fast, slow) == []
    state(fast / names[0], 400, at_s=T + 400)
    assert "written again" in drained(fast, slow)[0]
    assert [value_of(slow / name) for name in names] == [300] * len(names)
    for place, name in enumerate(names):  # the job goes on from save 3
        state(fast / name, 500, at_s=T + 500 + place)
    assert drained(fast, slow) == []
    assert [value_of(slow / name) for name in names] == [500] * len(names)


STRANGE = ("alpha.safetensors", "beta.safetensors", "gamma.safetensors")
COUNTED = ("opt_00.safetensors", "opt_01.safetensors", "opt_02.safetensors")


@pytest.mark.parametrize("names", [STRANGE, COUNTED], ids=["strange", "counted"])
def test_names_that_show_no_rule_are_of_one_save(tmp_path: Path, names: Sequence[str]) -> None:
    """A program writes three files again and again under names without a common word."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for at_s in (100, 200, 300):
        for place, name in enumerate(names):
            state(fast / name, at_s, at_s=T + at_s + place)
        assert drained(fast, slow) == []
    state(fast / names[0], 400)
    (line,) = drained(fast, slow)
    assert line.startswith(
        f"{names[0]}: of two saves: {names[0]} was written again and {names[1]} was not; not copied"
    )
    assert [value_of(slow / name) for name in names] == [300, 300, 300]
    choice = latest_valid(fast, slow)
    assert choice.path is not None
    assert choice.path.is_relative_to(slow)
    for place, name in enumerate(names):
        state(fast / name, 500, at_s=T + 500 + place)
    assert drained(fast, slow) == []
    assert [value_of(slow / name) for name in names] == [500, 500, 500]


@pytest.mark.parametrize("names", [COUNTED, ("0.safetensors", "1.safetensors", "2.safetensors")])
def test_numbers_of_parts_are_no_steps_to_the_retention(
    tmp_path: Path, names: Sequence[str]
) -> None:
    """All parts of each save stay on both tiers; the files of an epoch a minute do not."""
    fast, slow, keep = tmp_path / "fast", tmp_path / "slow", Keep(fast=1, last=1, foreign=True)
    for at_s in (100, 200, 300):
        for place, name in enumerate(names):
            state(fast / name, at_s, at_s=T + at_s + place)
        assert drained(fast, slow, keep) == []
        for tier in (fast, slow):
            assert [value_of(tier / name) for name in names] == [at_s] * len(names)
    fast, slow = tmp_path / "epochs", tmp_path / "epochs-slow"
    for place, name in enumerate(names):
        state(fast / name, place, at_s=T + 60 * place)
        assert drained(fast, slow, keep) == []
    assert [path.name for path in slow.glob("*.safetensors")] == [names[-1]]


def test_a_program_that_no_longer_writes_a_part_loses_one_copy_at_most(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for at_s in (100, 200, 300):
        same_names(fast, at_s)
        assert drained(fast, slow) == []
    left = list[int]()
    for at_s in (400, 500, 600):
        same_names(fast, at_s, is_whole=False)
        left.append(len(drained(fast, slow)))
    assert left == [1, 0, 0] or left == [1, 1, 0]
    assert value_of(slow / "weights" / "net.safetensors") == 600


def test_a_strange_record_of_saves_is_no_record(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    same_names(fast, 100)
    for text in ("[]", '{"families": {"a": {"parts": 3}}}', "[" * 100_000, "\xff"):
        (fast / ".penstock").mkdir(exist_ok=True)
        (fast / ".penstock" / "together.json").write_text(text)
        assert drained(fast, slow) == []
        same_names(fast, 200)


# --- links, and names that stay -------------------------------------------------------------------


def test_a_link_stays_and_protects_its_file(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    exp = fast / "exp"
    keep = Keep(fast=2, last=2, foreign=True)
    for epoch in range(1, 6):
        state(exp / "checkpoint.pth", epoch)
        state(exp / f"{epoch}epoch.safetensors", epoch)
        links = {"latest": epoch, "valid.acc.best": min(epoch, 2)}
        for name, target in links.items():
            (exp / f"{name}.safetensors").unlink(missing_ok=True)
            (exp / f"{name}.safetensors").symlink_to(f"{target}epoch.safetensors")
        (exp / "checkpoint.pth").rename(exp / "checkpoint.safetensors")
        assert drained(fast, slow, keep) == []
    names = {path.name.partition(".safetensors")[0] for path in exp.iterdir()}
    assert names == {"2epoch", "4epoch", "5epoch", "checkpoint", "latest", "valid.acc.best"}
    assert (exp / "valid.acc.best.safetensors").is_symlink()
    # The link is a file on the slow tier: that file has the content of 2epoch.
    copy = slow / "exp" / "valid.acc.best.safetensors"
    assert copy.read_bytes() == (exp / "2epoch.safetensors").read_bytes()
    (exp / "valid.acc.best.safetensors").unlink()
    assert drained(fast, slow, keep) == []
    assert not (exp / "2epoch.safetensors").exists()


def test_what_a_program_begins_from_under_one_name_stays_on_the_fast_tier(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    keep = Keep(fast=1, foreign=True)
    for step in (100, 200, 300):
        state(fast / "last.safetensors", step)
        for name in ("best-3f", "best-4a"):
            state(fast / f"{name}{step}.safetensors", step)
        state(fast / f"step_{step}.safetensors", step)
        assert drained(fast, slow, keep) == []
        names = {path.name for path in fast.glob("*.safetensors")}
        assert {"last.safetensors", f"step_{step}.safetensors"} <= names
        assert names <= {
            "last.safetensors",
            f"step_{step}.safetensors",
            f"best-4a{step}.safetensors",
        }
    drained(fast, slow, Keep(fast=0, foreign=True))
    assert not list(fast.glob("*.safetensors"))


def test_subfolders_of_a_folder_called_as_one_checkpoint_are_of_one_save(tmp_path: Path) -> None:
    """Descript's codec: `latest/dac/` and `latest/discriminator/`, with equal names inside."""
    fast, slow, empty = tmp_path / "fast", tmp_path / "slow", tmp_path / "empty"
    names = [f"latest/{part}" for part in ("dac/weights", "dac/optimizer", "discriminator/weights")]
    for number in (1, 2, 3):
        for place, name in enumerate(names):
            state(fast / f"{name}.safetensors", number, at_s=T + 100 * number + place)
        assert drained(fast, slow) == []
    for name in names[:2]:  # killed before the third
        state(fast / f"{name}.safetensors", 4, at_s=T + 400)
    [failed] = drained(fast, slow)
    assert "of two saves" in failed
    assert {value_of(slow / f"{name}.safetensors") for name in names} == {3}
    empty.mkdir()
    ended = CliRunner().invoke(cli.cli, ["save", "recover", str(empty), str(slow), "--fetch"])
    assert ended.exit_code == 0, ended.output
    assert {value_of(empty / f"{name}.safetensors") for name in names} == {3}


def test_a_folder_of_thousands_lacks_what_the_folders_before_have(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    parts = ("dac/weights", "dac/optimizer", "discriminator/weights")
    for number in (1, 2, 3):
        for place, part in enumerate(parts):
            at_s = T + 100 * number + place
            state(fast / f"{number}00k/{part}.safetensors", number, at_s=at_s)
        assert drained(fast, slow, Keep(fast=1, last=1, foreign=True)) == []
    state(fast / "400k/dac/weights.safetensors", 4, at_s=T + 400)
    [failed] = drained(fast, slow, Keep(fast=1, last=1, foreign=True))
    assert "which step 300000 has" in failed
    assert latest_valid(slow, level="full").path == slow / "300k"
    assert (slow / "100k/dac/weights.safetensors").exists()  # 100k may be a size, no step
