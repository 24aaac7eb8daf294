"""Ranks save side by side, jobs drain to one slow tier at once, checkpoints hold links: each copy
is of one save and of one job, or the command refuses in words."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.recover import recover
from penstock.save.drain.retention import Keep, prune
from penstock.save.find.formats import find
from penstock.save.verify import UNCHECKED, latest_valid, verify
from saves import drained, safetensors, state

# The files of each rank in each layout, with equal names in each save.
LAYOUTS = {
    "one folder": [["last/model_rank_0.safetensors", "last/optim_rank_0.safetensors"],
                   ["last/model_rank_1.safetensors", "last/optim_rank_1.safetensors"]],
    "parts": [["model.safetensors"], ["optim.safetensors"]],
    "numbers": [["model_0.safetensors", "optim_0.safetensors"],
                ["model_1.safetensors", "optim_1.safetensors"]],
    "no common word": [["alpha.safetensors"], ["beta.safetensors"]],
    "folders of ranks": [["rank_0/model.safetensors", "rank_0/optim.safetensors"],
                         ["rank_1/model.safetensors", "rank_1/optim.safetensors"]],
}  # fmt: skip

RANK = """
import sys, time
from pathlib import Path
sys.path.insert(0, {tests!r})
from saves import safetensors
folder, value, wait_s, *names = sys.argv[1:]
time.sleep(float(wait_s))
for name in names:
    path = Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{{path.name}}.tmp")
    draft.write_bytes(safetensors(float(value)))
    draft.replace(path)
    time.sleep(0.02)
"""


def ranks_save(fast: Path, layout: list[list[str]], value: int, slow_s: float = 0.0) -> None:
    """Save with a process for each rank; the last rank waits for slow_s.  With slow_s above 10, all
    ranks are killed when the first has written its files."""
    code = RANK.format(tests=str(Path(__file__).parent))
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(fast), str(value), str(slow_s * rank), *names]
        )
        for rank, names in enumerate(layout)
    ]
    assert ranks[0].wait(60) == 0
    if slow_s > 10:
        for rank in ranks[1:]:
            rank.kill()
    assert [rank.wait(60) for rank in ranks[1:]] == [-signal.SIGKILL if slow_s > 10 else 0]


def values_in(folder: Path) -> set[bytes]:
    return {path.read_bytes() for path in folder.rglob("*.safetensors")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ranks_killed_in_a_save_over_an_older_copy_leave_the_copy_whole(
    layout: str, fast: Path, slow: Path
) -> None:
    """Without a common word two saves show which files belong together."""
    for value in (1, 2):
        ranks_save(fast, LAYOUTS[layout], value, 0.2)
        assert drained(fast, slow) == []
        time.sleep(2.1)  # a pause between two saves, by which the drain knows them
    ranks_save(fast, LAYOUTS[layout], 3, 60)
    failed = drained(fast, slow)
    assert failed, "a part of a save was copied"
    assert values_in(slow) == {safetensors(2)}
    choice = latest_valid(fast, slow, level="full")
    assert choice.path is not None
    assert choice.path.is_relative_to(slow), choice
    ranks_save(fast, LAYOUTS[layout], 4, 0.2)
    assert drained(fast, slow) == []
    assert values_in(slow) == {safetensors(4)}


def test_ranks_of_two_saves_without_a_copy_are_unchecked(fast: Path) -> None:
    """Nothing but the times of writing shows that a rank has not saved again."""
    for rank, at_s in ((0, 1_700_000_000), (1, 1_700_000_000), (0, 1_700_000_400)):
        for part in ("model", "optim"):
            state(fast / f"last/{part}_world_size_2_rank_{rank}.safetensors", rank, at_s=at_s)
        (verdict,) = [verify(one, "full") for one in find(LocalStore(fast))]
        if rank == 1:
            assert verdict.is_checked
    assert verdict.state == UNCHECKED
    assert "rank1 wrote 400 s before rank0" in verdict.checkpoint.doubt


def drain_of(fast: Path, slow: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "save", "drain", str(fast), str(slow)]
    words = ["--foreign", "--keep-fast", "9", "--limit", "20kB/s", "--share-slow"]
    return subprocess.Popen(
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def job(fast: Path, layout: str, value: int, names: str) -> None:
    """Write three checkpoints a while ago."""
    for step in (1, 2, 3):
        for part in ("model", "optim"):
            name = f"{part}-{names}{step}" if layout == "files" else f"step-{names}{step}/{part}"
            at_s = time.time() - 1000 + 100 * step
            state(fast / f"{name}.safetensors", 10 * value + step, at_s=at_s)


@pytest.mark.parametrize("layout", ["files", "folders"])
@pytest.mark.parametrize("are_equal", [True, False])
def test_two_drains_at_once_of_two_jobs_mix_nothing_and_lose_nothing(
    layout: str, are_equal: bool, tmp_path: Path
) -> None:
    slow, jobs = tmp_path / "slow", [tmp_path / "a", tmp_path / "b"]
    for number, fast in enumerate(jobs):
        job(fast, layout, number, "" if are_equal or not number else "2000")
    drains = [drain_of(fast, slow) for fast in jobs]
    said = [one.communicate(timeout=120)[0] for one in drains]
    # One at a time; a drain that comes after the end of the other is not refused.
    for one, text in zip(drains, said, strict=True):
        assert one.returncode == 0 or "another drain has this folder" in text
    assert 0 in [one.returncode for one in drains]
    for fast in jobs:
        again = drain_of(fast, slow)
        text = again.communicate(timeout=120)[0]
        assert again.returncode == 0, text
    expected = {safetensors(10 * number + step) for number in (0, 1) for step in (1, 2, 3)}
    copies = find(LocalStore(slow))
    assert len(copies) == 6
    found = set[bytes]()
    for one in copies:
        assert verify(one, "full").is_whole
        contents = {LocalStore(slow).path(file.name).read_bytes() for file in one.files}
        assert len(contents) == 1, one.name
        found |= contents
    assert found == expected


def test_two_drains_of_one_job_at_once_copy_each_checkpoint_once(tmp_path: Path) -> None:
    fast, slow = tmp_path / "a", tmp_path / "slow"
    job(fast, "folders", 1, "")
    drains = [drain_of(fast, slow) for _ in range(3)]
    said = [one.communicate(timeout=120)[0] for one in drains]
    n_drained = sum(int(n) for text in said for n in re.findall(r"(\d+) drained", text))
    assert n_drained == 3
    assert all(
        one.returncode == 0 or "another drain has this folder" in text
        for one, text in zip(drains, said, strict=True)
    )
    assert sorted(path.name for path in slow.iterdir() if path.name != ".penstock") == [
        "step-1", "step-2", "step-3",
    ]  # fmt: skip


def test_a_link_inside_a_checkpoint_that_is_not_copied_takes_no_name(
    fast: Path, slow: Path
) -> None:
    """Once the link is a folder, the checkpoint gets its own name on the slow tier."""
    for step in (1, 2):
        state(fast / f"step-{step}" / "model.safetensors", step)
    (fast / "step-2" / "base").symlink_to("../step-1")
    (failed, *_) = drained(fast, slow)
    assert "step-2/base: a link to a folder" in failed
    assert not os.path.lexists(slow / "step-2")
    (fast / "step-2" / "base").unlink()
    shutil.copytree(fast / "step-1", fast / "step-2" / "base")
    assert drained(fast, slow) == []
    assert (slow / "step-2" / "base" / "model.safetensors").read_bytes() == safetensors(1)


def other_jobs(tmp_path: Path) -> tuple[Path, list[Path]]:
    """Make two jobs with a fast tier each; the first job is drained."""
    slow, jobs = tmp_path / "slow", [tmp_path / "a", tmp_path / "b"]
    job(jobs[0], "files", 0, "")
    job(jobs[1], "files", 1, "2000")
    assert drained(jobs[0], slow) == []
    return slow, jobs


def drain_once(fast: Path, slow: Path, *words: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "penstock", "save", "drain", str(fast), str(slow), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_a_second_job_on_the_node_is_refused_the_slow_folder_of_the_first(tmp_path: Path) -> None:
    slow, jobs = other_jobs(tmp_path)
    before = values_in(slow)
    status, said = drain_once(jobs[1], slow)
    assert status == 2
    assert f"{jobs[0]} is drained to this folder too" in said
    assert "--share-slow" in said
    assert values_in(slow) == before
    status, said = drain_once(jobs[1], slow, "--share-slow")
    assert status == 0, said
    assert len(find(LocalStore(slow))) == 6
    for fast in jobs:  # the first job goes on only with the word, too: the folder is shared
        assert drain_once(fast, slow)[0] != 0


def test_the_same_job_goes_on_from_a_fresh_fast_tier(tmp_path: Path) -> None:
    """Emptied, at another path after the earlier tier is gone, and after `recover`."""
    slow, jobs = other_jobs(tmp_path)
    shutil.rmtree(jobs[0])
    job(jobs[0], "files", 0, "1000")
    assert drain_once(jobs[0], slow)[0] == 0
    third = tmp_path / "c"
    third.mkdir()
    command = [sys.executable, "-m", "penstock", "save", "recover", str(third), str(slow)]
    assert "10003" in subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    job(third, "files", 2, "3000")
    assert drain_once(third, slow)[0] == 0
    shutil.rmtree(jobs[0])
    shutil.rmtree(third)
    assert drain_once(jobs[1], slow)[0] == 0
    assert len(find(LocalStore(slow))) == 12


def test_recover_says_that_the_newest_copy_may_be_of_another_run(tmp_path: Path) -> None:
    slow, jobs = other_jobs(tmp_path)
    assert drained(jobs[1], slow) == []
    for fast, is_other in [(jobs[0], True), (tmp_path / "new", False)]:
        fast.mkdir(exist_ok=True)
        choice, _ = recover(fast, slow)
        assert choice.step == 20003
        assert bool(choice.other_run) == is_other, fast
        if is_other:
            assert f"a copy from {jobs[1]}" in choice.other_run
            assert "model-3.safetensors instead" in choice.other_run
    (slow / "model-3.safetensors").write_bytes(b"damaged")
    shutil.rmtree(jobs[0])
    jobs[0].mkdir()
    assert "model-2.safetensors instead" in recover(jobs[0], slow)[0].other_run  # the newest whole


@pytest.mark.parametrize("is_pruned", [True, False])
def test_retention_of_one_job_keeps_all_copies_of_another(tmp_path: Path, is_pruned: bool) -> None:
    """The steps of the second job are higher: they would push the first job's out, and the first
    job's would never stay."""
    slow, jobs = other_jobs(tmp_path)
    keep = Keep(fast=1, last=1, foreign=True)
    assert drained(jobs[1], slow, None if is_pruned else keep) == []
    if is_pruned:
        prune(LocalStore(jobs[1]), LocalStore(slow), keep)
    assert [one.step for one in find(LocalStore(slow))] == [20003, 3, 2, 1]
    job(jobs[0], "files", 0, "10")
    assert drained(jobs[0], slow, keep) == []
    assert [one.step for one in find(LocalStore(slow))] == [20003, 103]
