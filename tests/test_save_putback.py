"""The list of files that were put back from an older save."""

import json
import os
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore, StoredFile
from penstock.save.checkpoint import Checkpoint
from penstock.save.overwritten.putback import MARK, mark_put_back, mixed, put_back


def facts(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    for number in range(3):
        (made / f"shard-{number}.pt").write_bytes(b"x" * (number + 1))
    (made / "config.json").write_text("{}")
    return made


def checkpoint_of(folder: Path) -> Checkpoint:
    store = LocalStore(folder.parent)
    files = tuple(
        StoredFile(f"{folder.name}/{path.name}", *facts(path)) for path in sorted(folder.iterdir())
    )
    return Checkpoint(store, folder.name, "torch", True, files, None)


def test_a_folder_of_which_some_files_were_put_back_is_mixed(folder: Path) -> None:
    assert mixed(checkpoint_of(folder)) == ""
    mark_put_back(folder, {"shard-0.pt": facts(folder / "shard-0.pt")})
    assert put_back(LocalStore(folder.parent), "out") == {
        "shard-0.pt": facts(folder / "shard-0.pt")
    }
    said = "mixed: 1 of its 3 files were put back from an older save"
    assert mixed(checkpoint_of(folder)) == said
    assert (folder / MARK).stat().st_mode & 0o777 == 0o644


def test_a_folder_that_was_put_back_as_a_whole_is_no_mixture(folder: Path) -> None:
    shards = sorted(folder.glob("shard-*"))
    mark_put_back(folder, {path.name: facts(path) for path in shards})
    assert mixed(checkpoint_of(folder)) == ""


def test_a_file_that_a_newer_save_has_replaced_is_no_longer_listed(folder: Path) -> None:
    old = folder / "shard-0.pt"
    mark_put_back(folder, {old.name: facts(old)})
    os.utime(old, ns=(0, 1))
    assert mixed(checkpoint_of(folder)) == ""
    mark_put_back(folder, {})
    assert not (folder / MARK).exists()


def test_a_second_list_keeps_what_is_still_as_listed(folder: Path) -> None:
    first, second = folder / "shard-0.pt", folder / "shard-1.pt"
    mark_put_back(folder, {first.name: facts(first)})
    mark_put_back(folder, {second.name: facts(second)})
    assert set(put_back(LocalStore(folder))) == {first.name, second.name}


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "[]", "null", '{"version": 2, "files": {"shard-0.pt": [1, 2]}}',
        '{"version": 1, "files": [1]}', '{"version": 1, "files": {"shard-0.pt": ["1", 2]}}',
        '{"version": 1, "files": {"shard-0.pt": [true, 2]}}', "[" * 100_000, "\ufffe",
    ],
)  # fmt: skip
def test_a_damaged_list_lists_nothing(folder: Path, text: str) -> None:
    (folder / MARK).write_text(text)
    assert put_back(LocalStore(folder)) == {}
    assert mixed(checkpoint_of(folder)) == ""


def test_a_list_beyond_all_bounds_is_not_read(folder: Path) -> None:
    (folder / MARK).write_text(json.dumps({"version": 1, "files": {"shard-0.pt": [1, 1]}}))
    assert put_back(LocalStore(folder))
    os.truncate(folder / MARK, 17 << 20)
    assert put_back(LocalStore(folder)) == {}
