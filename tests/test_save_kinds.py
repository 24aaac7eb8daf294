"""Test that a folder whose name tells a step is one checkpoint, whatever the kinds of its files,
and that a format of the program's own is unchecked, and not damaged."""

from __future__ import annotations

import io
import os
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.retention import Keep
from penstock.save.find.formats import find
from penstock.save.small.partfiles import PartFiles
from penstock.save.verify import BY_NAME, UNCHECKED, latest_valid, verify
from saves import drained, state

T = 1_700_000_000


def raw(path: Path, save: int) -> None:
    """Write a file of a kind that no list has; JSON as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_text = path.suffix == ".json" or path.name.startswith(".z")
    text = b'{"save": %d}' % save if is_text else os.urandom(400)
    path.write_bytes(text)
    os.utime(path, (T + 60 * save, T + 60 * save))


KINDS = {
    "raw": ("step_{}/params.raw", "step_{}/adam.raw", "step_{}/meta.json"),
    "chunks": tuple(f"step_{{}}/{number}.bin" for number in range(20)),
    "npy": tuple(f"epoch-{{}}/p-{number:05d}.npy" for number in range(20)),
    "zarr": ("step_{}.zarr/.zgroup", "step_{}.zarr/w/.zarray", "step_{}.zarr/w/0.0",
             "step_{}.zarr/w/0.1"),
    "zarr 3": ("step_{}.zarr/zarr.json", "step_{}.zarr/w/zarr.json", "step_{}.zarr/w/c/0/0"),
    "no ending": ("ckpt_{}/weights", "ckpt_{}/moments"),
}  # fmt: skip


@pytest.mark.parametrize("names", KINDS.values(), ids=KINDS)
def test_a_folder_of_a_step_is_one_checkpoint_with_all_its_files(
    fast: Path, slow: Path, names: tuple[str, ...]
) -> None:
    for save in (1, 2, 3):
        for name in names:
            path = fast / name.format(save)
            if path.suffix == ".npy":
                path.parent.mkdir(parents=True, exist_ok=True)
                np.save(path, np.full(10, save))
                os.utime(path, (T + 60 * save, T + 60 * save))
            else:
                raw(path, save)
    assert drained(fast, slow, Keep(fast=1, last=2, foreign=True)) == []
    (on_fast,) = find(LocalStore(fast))
    on_slow = find(LocalStore(slow))
    assert ([one.step for one in on_slow], on_fast.step) == ([3, 2], 3)
    assert all(len(one.files) == len(names) for one in on_slow)
    assert all(verify(one, "full").is_whole for one in on_slow)
    shutil.rmtree(fast)
    assert latest_valid(slow).step == 3


def test_the_small_files_of_such_a_folder_are_copied_together(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        raw(fast / "step_1" / f"{number}.bin", 1)
    batches = list[int]()
    together = PartFiles.copy
    monkeypatch.setattr(
        PartFiles, "copy",
        lambda small, files, most: (batches.append(len(files)), together(small, files, most))[1],
    )  # fmt: skip
    assert drained(fast, slow) == []
    assert sum(batches) == 50


def test_of_unknown_files_nothing_is_called_checked(fast: Path) -> None:
    for name in KINDS["raw"]:
        raw(fast / name.format(1), 1)
    (one,) = find(LocalStore(fast))
    assert verify(one, "full").state in (UNCHECKED, BY_NAME)
    state(fast / "last.safetensors", 1)
    assert latest_valid(fast).path == fast / "last.safetensors"


@pytest.mark.parametrize("lost", ["params.raw", "adam.raw", "meta.json"])
def test_half_a_folder_of_unknown_files_is_told(fast: Path, slow: Path, lost: str) -> None:
    for save in (1, 2, 3, 4):
        for name in KINDS["raw"]:
            if save < 4 or not name.endswith(lost):
                raw(fast / name.format(save), save)
    (left,) = drained(fast, slow)
    assert f"step_4: no {lost}, which step 3 has" in left
    assert latest_valid(fast).step == 3


def test_a_step_written_again_in_part_is_told(fast: Path, slow: Path) -> None:
    for name in KINDS["raw"]:
        raw(fast / name.format(1), 1)
    drained(fast, slow)
    raw(fast / "step_1" / "params.raw", 9)
    (left,) = drained(fast, slow)
    assert "were written again" in left


@pytest.mark.parametrize(
    "names",
    [
        ("step_1/sample.png", "step_1/log.txt", "step_1/metrics.json"),  # pictures and texts
        ("100/data.raw", "200/data.raw"),  # a number alone: classes of a data set, perhaps
        ("run_1/data.raw", "v_2/data.raw", "rank_0/data.raw"),
    ],
)
def test_folders_that_may_be_anything_are_no_checkpoints(
    fast: Path, names: tuple[str, ...]
) -> None:
    for name in names:
        raw(fast / name, 1)
    assert find(LocalStore(fast)) == []


def test_results_beside_checkpoints_with_a_step_are_no_checkpoints(fast: Path, slow: Path) -> None:
    for save in (1, 2, 3):
        state(fast / f"ckpt-{save}.safetensors", save, at_s=T + save)
        raw(fast / "eval" / f"step_{save}" / "predictions.raw", save)
    assert drained(fast, slow, Keep(fast=1, last=1, foreign=True)) == []
    assert latest_valid(slow).path == slow / "ckpt-3.safetensors"
    assert len(list(slow.rglob("predictions.raw"))) == 3


# A file with torch's ending, by another writer


def torch_like(save: int, *, n: int = 5000) -> bytes:
    block = io.BytesIO()
    with zipfile.ZipFile(block, "w") as file:
        file.writestr("archive/data.pkl", b"x" * n)
        file.writestr("archive/version", b"%d" % save)
    return block.getvalue()


def test_a_pt_file_of_another_format_is_unchecked_and_drained(fast: Path, slow: Path) -> None:
    for save in (1, 2, 3):
        for name in (f"model-{save}.pt", f"optim-{save}.pt"):
            (fast / name).write_bytes(b"MYFMT\x01" + os.urandom(500))
            os.utime(fast / name, (T + save, T + save))
    assert drained(fast, slow) == []
    (one, *_) = find(LocalStore(fast))
    verdict = verify(one, "full")
    assert (verdict.state, len(verdict.unchecked)) == (UNCHECKED, 2)
    assert "no file of torch" in verdict.remarks[0]
    assert [copy.step for copy in find(LocalStore(slow))] == [3, 2, 1]


@pytest.mark.parametrize(
    "data",
    [
        torch_like(1)[:-40],  # cut
        b"\0" * 512 + torch_like(1)[512:],  # never written where it begins
        os.urandom(64) + torch_like(1)[64:],  # the beginning was overwritten
        b"\0" * 4096,
        b"<html>503 Service Unavailable</html>",
        b"\x81\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03." + os.urandom(900),
    ],
    ids=["cut", "hole", "overwritten", "zeros", "text", "legacy"],
)
def test_a_torn_file_of_torch_is_still_damaged(fast: Path, slow: Path, data: bytes) -> None:
    (fast / "model-1.pt").write_bytes(data)
    os.utime(fast / "model-1.pt", (T, T))
    (left,) = drained(fast, slow)
    assert "model-1.pt" in left
    assert not (slow / "model-1.pt").exists()
