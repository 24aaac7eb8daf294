"""Test folders as programs leave them: each file is copied or named, and no rule removes a file
that is not older than another of the same training."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

import saves
from penstock.places.stores import LocalStore
from penstock.save.drain.retention import Keep
from penstock.save.find.formats import find
from saves import drained

STEPS = (100, 200, 300)
T = 1_700_000_000


def state(path: Path, step: int, *, at_s: int | None = None) -> None:
    """Write a state; equal in size and time to each other file of the step."""
    saves.state(path, step, at_s=T + step if at_s is None else at_s)


def text(path: Path, content: str = "x\n") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (T, T))


def there(folder: Path) -> set[str]:
    """Return the files and links of a tier without Penstock's own."""
    return {
        os.fspath(path.relative_to(folder)) for path in folder.rglob("*")
        if not path.is_dir() and "penstock" not in os.fspath(path.relative_to(folder))
    }  # fmt: skip


def a_folder_for_each_part(fast: Path) -> None:
    for step in STEPS:
        for part in ("model", "ema", "optim"):
            state(fast / part / f"step_{step}.safetensors", step)


def runs_of_a_sweep(fast: Path) -> None:
    for job in range(4):
        run = fast / "2026-11-25" / "12-30-00" / str(job)
        state(run / "model.safetensors", job)
        state(run / "optim.safetensors", job)
        text(run / ".hydra" / "config.yaml")


def folds(fast: Path) -> None:
    for fold in range(4):
        state(fast / "folds" / str(fold) / "model.safetensors", fold)


def experiments_of_a_tracker(fast: Path) -> None:
    data = fast / "mlruns" / "0" / "a3f9c1d2" / "artifacts"
    for step in STEPS:
        state(data / f"model_{step}.safetensors", step)
    text(fast / "mlruns" / "0" / "meta.yaml")


def links_to_files_of_the_tier(fast: Path) -> None:
    state(fast / "shared" / "embed.safetensors", 1)
    for step in STEPS:
        state(fast / f"step_{step}" / "model.safetensors", step)
        (fast / f"step_{step}" / "embed.safetensors").symlink_to("../shared/embed.safetensors")
    (fast / "best.safetensors").symlink_to("step_100/model.safetensors")
    (fast / "best").symlink_to("step_100")
    (fast / "latest").symlink_to("step_300")


def only_a_number_of_zarr(fast: Path) -> None:
    for step in STEPS:
        for name in (".zgroup", "w/.zarray", "w/0.0", "w/0.1"):
            text(fast / f"ckpt_{step}.zarr" / name, "{}")


def no_endings(fast: Path) -> None:
    for step in STEPS:
        text(fast / f"g_{step:08d}", "generator")
        text(fast / f"do_{step:08d}", "discriminators and optimizers")


def unknown_endings(fast: Path) -> None:
    for step in STEPS:
        text(fast / f"state_{step}.bin")
        text(fast / f"weights_{step}.dat")
        text(fast / f"optim_{step}.raw")


def names_of_any_kind(fast: Path) -> None:
    for step in STEPS:
        for name in ("my model", "größe", "a\nb", "\x1b[31mred", "n" * 230):
            state(fast / f"{name} {step}.safetensors", step)


def dates_without_steps(fast: Path) -> None:
    for minute in range(3):
        for name in ("model.safetensors", "brain.safetensors"):
            state(fast / "save" / f"CKPT+2026-11-25+12-3{minute}-00+00" / name, minute)
        text(fast / "save" / f"CKPT+2026-11-25+12-3{minute}-00+00" / "CKPT.yaml")


def one_folder_for_the_best(fast: Path) -> None:
    for name in ("best", "last_checkpoint", "final"):
        for part in ("model.safetensors", "notes.dat", "optim.safetensors"):
            state(fast / name / part, 1)


def logs_beside(fast: Path) -> None:
    for step in STEPS:
        state(fast / f"model_{step}.safetensors", step)
    text(fast / "events.out.tfevents.1732.host.1.0")
    text(fast / "wandb" / "run-20261125_123000-abc" / "run-abc.wandb")
    (fast / "wandb" / "latest-run").symlink_to("run-20261125_123000-abc")
    text(fast / "study.db")
    text(fast / "study.db-wal")
    text(fast / "latest.txt", "model_300")
    text(fast / "latest", "model_300")


def adapters_with_a_tokenizer_at_the_top(fast: Path) -> None:
    for step in STEPS:
        state(fast / f"checkpoint-{step}" / "adapter_model.safetensors", step)
        text(fast / f"checkpoint-{step}" / "adapter_config.json", "{}")
    for name in ("tokenizer.json", "special_tokens_map.json", "README.md"):
        text(fast / name, "{}")


def parts_below_the_folder_of_a_step(fast: Path) -> None:
    for step in STEPS:
        for name in ("model", "ema/model", "optim/0", "optim/1"):
            state(fast / f"step_{step}" / f"{name}.safetensors", step)


def too_deep(fast: Path) -> None:
    for step in STEPS:
        state(fast / "a/b/c/d/e/f/g" / f"step_{step}" / "model.safetensors", step)


def archives(fast: Path) -> None:
    for step in STEPS:
        with tarfile.open(fast / f"checkpoint_{step}.tar", "w") as tar:
            tar.addfile(tarfile.TarInfo("w.bin"))
        with tarfile.open(fast / f"export_{step}.tar.gz", "w:gz") as tar:
            tar.addfile(tarfile.TarInfo("w.bin"))


def hidden(fast: Path) -> None:
    for step in STEPS:
        state(fast / ".ckpt" / f"step_{step}" / "model.safetensors", step)
    state(fast / ".model.safetensors", 1)


# For each layout: the files that a rule may remove from both tiers, by steps.
KEPT: dict[Callable[[Path], None], set[str]] = {
    a_folder_for_each_part: {"step_100."},
    runs_of_a_sweep: set(),
    folds: set(),
    experiments_of_a_tracker: {"model_100."},
    links_to_files_of_the_tier: set(),
    only_a_number_of_zarr: {"ckpt_100.zarr/"},
    no_endings: {"00000100"},
    unknown_endings: {"_100."},
    names_of_any_kind: {" 100."},
    dates_without_steps: set(),
    one_folder_for_the_best: set(),
    logs_beside: {"model_100."},
    adapters_with_a_tokenizer_at_the_top: {"checkpoint-100/"},
    parts_below_the_folder_of_a_step: {"step_100/"},
    too_deep: set(),
    archives: {"checkpoint_100."},
    hidden: {"step_100/"},
}


@pytest.mark.parametrize("layout", KEPT, ids=lambda layout: layout.__name__)
def test_each_file_is_on_the_slow_tier_or_is_older_than_the_rule_says(
    tmp_path: Path, layout: Callable[[Path], None]
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    layout(fast)
    before = there(fast)
    assert drained(fast, slow, Keep(fast=1, last=2, foreign=True)) == []
    lost = before - there(slow)
    assert {name for name in lost if not any(older in name for older in KEPT[layout])} == set()
    for path in (*fast.rglob("*"), *slow.rglob("*")):
        assert path.exists(), f"{path} leads nowhere"
    assert drained(fast, slow, Keep(fast=1, last=2, foreign=True)) == []
    assert before - there(slow) == lost


@pytest.mark.parametrize(
    ("layout", "n_units"),
    [
        (only_a_number_of_zarr, 3), (no_endings, 3), (unknown_endings, 3), (dates_without_steps, 3),
        (one_folder_for_the_best, 3), (parts_below_the_folder_of_a_step, 3), (runs_of_a_sweep, 4),
        (adapters_with_a_tokenizer_at_the_top, 3),
    ],
)  # fmt: skip
def test_the_files_of_a_save_are_one_checkpoint(
    tmp_path: Path, layout: Callable[[Path], None], n_units: int
) -> None:
    layout(tmp_path)
    assert len(find(LocalStore(tmp_path))) == n_units


def test_a_torn_file_of_no_checkpoint_replaces_no_whole_copy(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    for name in ("TD3_actor", "agent"):
        with (fast / name).open("wb") as file:
            numpy.savez(file, w=numpy.arange(10_000))
    text(fast / "train.log")
    assert drained(fast, slow) == []
    whole = (slow / "agent").read_bytes()
    (fast / "agent").write_bytes(whole[: len(whole) // 2])
    (fast / "train.log").write_text("PK\x03\x04 is the start of a line")
    (line,) = drained(fast, slow)
    assert line.startswith("agent: ")
    assert "not copied" in line
    assert (slow / "agent").read_bytes() == whole
    assert (slow / "train.log").read_text().startswith("PK")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_what_this_user_cannot_read_is_named_and_the_rest_is_copied(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    state(tmp_path / "before" / "any.safetensors", 1)
    drained(tmp_path / "before", tmp_path / "after")  # imports that the other user cannot read
    for step in STEPS:
        for name in ("model", "optim"):
            state(fast / f"step_{step}" / f"{name}.safetensors", step)
    text(fast / "train.log")
    text(fast / "secret.log")
    (fast / "closed").mkdir()
    for path in (fast / "step_200" / "optim.safetensors", fast / "secret.log", fast / "closed"):
        path.chmod(0)
    for folder in tmp_path.parents:  # another session may have closed any of them again
        if not os.stat(folder).st_mode & 0o001:
            folder.chmod(0o755)
    for path in (tmp_path, fast):
        path.chmod(0o777)
    os.seteuid(65534)
    try:
        said = {line.partition(": ")[0].rpartition("/")[2] for line in drained(fast, slow)}
    finally:
        os.seteuid(0)
    assert said == {"step_200", "secret.log", "closed"}
    assert there(slow) == {
        "train.log",
        *(f"step_{n}/{one}.safetensors" for n in (100, 300) for one in ("model", "optim")),
    }  # fmt: skip


def test_leftovers_of_a_killed_save_are_named(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for name in ("step_1", "step_2.tmp", "tmp-checkpoint-5", ".step_3.partial"):
        state(fast / name / "model.safetensors", 1)
    state(fast / "model.safetensors.tmp", 1)
    said = {line.partition(":")[0] for line in drained(fast, slow)}
    assert said == {"step_2.tmp", "tmp-checkpoint-5", ".step_3.partial", "model.safetensors.tmp"}
    assert there(slow) == {"step_1/model.safetensors"}


def test_what_is_removed_by_steps_is_the_oldest_of_each_part(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    a_folder_for_each_part(fast)
    drained(fast, slow, Keep(fast=1, last=2, foreign=True))
    parts = ("model", "ema", "optim")
    assert there(slow) == {f"{one}/step_{n}.safetensors" for one in parts for n in (200, 300)}
    assert there(fast) == {f"{one}/step_300.safetensors" for one in parts}


def test_a_checkpoint_that_no_link_names_any_more_goes(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in STEPS:
        state(fast / f"step_{step}" / "model.safetensors", step)
    (fast / "best").symlink_to("step_100")
    keep = Keep(fast=1, last=1, foreign=True)
    drained(fast, slow, keep)
    assert {one.name for one in find(LocalStore(slow))} == {"step_300", "step_100"}
    assert (slow / "best" / "model.safetensors").exists()
    (fast / "best").unlink()
    (fast / "best").symlink_to("step_300")
    drained(fast, slow, keep)
    drained(fast, slow, keep)
    assert {one.name for one in find(LocalStore(slow))} == {"step_300"}
    assert {one.name for one in find(LocalStore(fast))} == {"step_300"}


def test_a_checkpoint_that_fails_leaves_no_other_file_uncopied(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    state(fast / "step_1" / "model.safetensors", 1)
    (fast / "empty.pt").touch()  # now: its writer may go on
    text(fast / "train.log")
    (fast / "_SUCCESS").touch()
    (line,) = drained(fast, slow)
    assert "empty.pt" in line
    assert {"train.log", "_SUCCESS"} <= there(slow)
