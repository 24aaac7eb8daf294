"""A save that was killed between two files is no save, by the names that programs use.

Each layout saves three times; of the fourth save some files are written.  The truth is the number
in each file: the copies are of the third save, and a restart begins from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from penstock.save.unit.names import is_part_of_a_training
from penstock.save.verify import latest_valid
from saves import drained, safetensors

T = 1_700_000_000
HASHES = ("a1b2c3d4", "b2c3d4e5", "c3d4e5f6", "d4e5f607")


def put(path: Path, save: int, second: int = 0, data: bytes | None = None) -> None:
    """Write a file of a save by its ending; the content shows the save."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = safetensors(save) if path.suffix == ".safetensors" else b"\x80\x04K%cN." % (48 + save)
    path.write_bytes(made if data is None else data)
    at_s = T + 600 * save + second
    os.utime(path, (at_s, at_s))


def gensim(save: int) -> list[str]:
    name = f"w2v_epoch{save}.model"
    return [f"{name}.wv.vectors.pkl", f"{name}.syn1neg.pkl", name]


def nnunet(save: int) -> list[str]:
    return ["fold_0/model_latest.model", "fold_0/model_latest.model.pkl"]


def percents(save: int) -> list[str]:
    return [f"model_{10 * save}%.safetensors", f"optim_{10 * save}%.safetensors"]


def short_words(save: int) -> list[str]:
    return [f"e{save}_s{31 * save}_{part}.safetensors" for part in ("model", "opt")]


def folders_of_hashes(save: int) -> list[str]:
    return [f"{HASHES[save - 1]}/{part}.safetensors" for part in ("model", "optim")]


def folders_of_parts(save: int) -> list[str]:
    return [f"{part}/{100 * save}.safetensors" for part in ("gen", "disc", "opts")]


def a_folder_of_unknown_files(save: int) -> list[str]:
    return [f"model-last/{part}" for part in ("tok2vec/model", "ner/model", "vocab/vectors")]


LAYOUTS = [
    gensim, nnunet, percents, short_words, folders_of_hashes, folders_of_parts,
    a_folder_of_unknown_files,
]  # fmt: skip


def save_of(path: Path) -> int:
    """Return the save that wrote a file; 0: there is no such file."""
    if not path.is_file():
        return 0
    data = path.read_bytes()
    return next(
        save for save in range(1, 6) if data in (safetensors(save), b"\x80\x04K%cN." % (48 + save))
    )


def written(fast: Path, names: Iterable[str], save: int) -> None:
    for second, name in enumerate(names):
        put(fast / name, save, second)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_save_that_was_killed_is_no_save(
    tmp_path: Path, layout: Callable[[int], list[str]]
) -> None:
    for n_files in range(1, len(layout(4))):
        fast, slow = tmp_path / f"fast-{n_files}", tmp_path / f"slow-{n_files}"
        for save in (1, 2, 3):
            written(fast, layout(save), save)
            assert drained(fast, slow) == []
        written(fast, layout(4)[:n_files], 4)
        assert drained(fast, slow) != [], n_files
        assert [save_of(slow / name) for name in layout(3)] == [3] * len(layout(3))
        choice = latest_valid(fast, slow)
        assert choice.path is not None
        found = [choice.path] if choice.path.is_file() else choice.path.rglob("*")
        saves = {save_of(one) for one in found if one.is_file() and "penstock" not in one.name}
        assert saves == {3}, n_files
        written(fast, layout(4), 4)
        assert drained(fast, slow) == []
        assert [save_of(slow / name) for name in layout(4)] == [4] * len(layout(4))


def test_an_empty_file_that_is_empty_in_no_other_save_is_not_written_yet(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for save in (1, 2, 3):
        put(fast / f"step_{save}00" / "model.safetensors", save)
        put(fast / f"step_{save}00" / "rng.dat", save, data=b"" if save == 3 else b"abc")
        put(fast / f"step_{save}00" / "lock.dat", save, data=b"")
        lines = drained(fast, slow)
    assert lines == ["step_300: rng.dat: empty, and in step_200 it is not; not copied"]
    choice = latest_valid(fast, slow)
    assert choice.step == 200


def test_other_names_that_begin_alike_are_two_checkpoints(tmp_path: Path) -> None:
    """Drafts, sums, packed copies, and descriptions."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for ending in ("", ".sha256", ".json", ".gz", ".bak"):
        put(fast / f"model_3.safetensors{ending}", 1, data=b"{}" if ending else None)
    drained(fast, slow)
    choice = latest_valid(fast, slow)
    assert choice.path is not None
    assert choice.path.name == "model_3.safetensors"
    assert not is_part_of_a_training("gen4")
