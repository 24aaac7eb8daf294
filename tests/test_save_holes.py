"""A copy of a sparse file has the source's bytes and the source's holes, by each way of copying."""

import os
from pathlib import Path

import numpy as np
import pytest

from penstock.places.stores import LocalStore
from penstock.places.stores.local import data_spans
from penstock.save.find.formats import find
from penstock.save.small import copier
from penstock.save.verify import verify
from saves import drained

MIB = 1 << 20


def sparse_array(path: Path, size_bytes: int, spots: tuple[int, ...]) -> None:
    """Write a .npy file as np.memmap programs do: a header, holes, and data at a few spots."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (size_bytes,))
    for spot in (*spots, size_bytes - 10):
        array[spot : spot + 10] = 7
    array.flush()
    if path.stat().st_blocks * 512 >= size_bytes:
        pytest.skip(f"the file system of {path} keeps no holes")


def occupied(path: Path) -> int:
    return path.stat().st_blocks * 512


@pytest.mark.parametrize("is_native", [True, False])
def test_small_sparse_files_of_a_folder_keep_their_holes(
    fast: Path, slow: Path, is_native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_native:
        monkeypatch.setattr(copier, "is_built", lambda: False)
    elif not copier.is_built():
        pytest.skip("`make native` builds the copier")
    for number in range(12):
        sparse_array(fast / f"step-100/part_{number:02d}.npy", 512 << 10, (200_000 + number,))
    assert drained(fast, slow) == []
    for path in sorted((fast / "step-100").iterdir()):
        copy = slow / "step-100" / path.name
        assert copy.read_bytes() == path.read_bytes()
        assert occupied(copy) <= occupied(path), path.name
    [copied] = find(LocalStore(slow))
    assert verify(copied, "full").is_whole


@pytest.mark.parametrize("size_mib", [2, 40])
def test_a_large_sparse_file_keeps_its_holes(fast: Path, slow: Path, size_mib: int) -> None:
    """40 MiB are written past the page cache, in several pieces."""
    spots = (MIB - 5, 9 * MIB // 8, size_mib * MIB // 2 + 4096)
    sparse_array(fast / "buffer_100.npy", size_mib * MIB, spots)
    assert drained(fast, slow) == []
    path, copy = fast / "buffer_100.npy", slow / "buffer_100.npy"
    assert copy.read_bytes() == path.read_bytes()
    assert occupied(copy) <= occupied(path)


def test_a_copy_that_goes_on_from_a_draft_writes_zeros_over_other_bytes(tmp_path: Path) -> None:
    """The draft of a killed drain may be of another version of the file."""
    store = LocalStore(tmp_path)
    for is_first in (True, False):
        upload = store.upload("a.npy", 64 << 10, 64 << 10)
        upload.keeps_holes = not is_first
        data = memoryview(b"x" * (64 << 10) if is_first else bytes((64 << 10) - 1) + b"y")
        assert not upload.holds(0, data)
        upload.write(0, data)
        if is_first:
            upload.close()
        else:
            upload.finish()
    assert (tmp_path / "a.npy").read_bytes() == data


def test_a_file_without_holes_gets_no_holes(fast: Path, slow: Path) -> None:
    """Zeros that the program has written keep their room."""
    folder = fast / "step-100"
    folder.mkdir(parents=True)
    for number in range(12):
        np.save(folder / f"part_{number:02d}.npy", np.zeros(256 << 10, np.uint8))
    np.save(folder / "large.npy", np.zeros(2 * MIB, np.uint8))
    os.sync()
    assert drained(fast, slow) == []
    for path in folder.iterdir():
        assert occupied(slow / "step-100" / path.name) >= path.stat().st_size


@pytest.mark.parametrize(
    ("data", "has_end", "wanted"),
    [
        (b"", True, []),
        (b"a", True, [(0, 1)]),
        (bytes(8192), True, [(4096, 8192)]),
        (bytes(8192), False, []),
        (bytes(4096) + b"a" * 5000 + bytes(8000), False, [(4096, 12288), (16384, 17096)]),
    ],
)
def test_only_whole_blocks_of_zeros_need_no_room(
    data: bytes, has_end: bool, wanted: list[tuple[int, int]]
) -> None:
    assert data_spans(memoryview(data), has_end=has_end) == wanted
