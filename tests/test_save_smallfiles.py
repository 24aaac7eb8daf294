"""The check of a folder of many small files: read natively, hundreds in a call, and each damage is
found."""

import ctypes
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.places.stores import LocalStore
from penstock.save import verify as verifying
from penstock.save.checkpoint import Checkpoint
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.manifest import INSIDE, LEAST_KEPT_BYTES, FileSum, Manifest, checksum, to_json
from penstock.save.small import copier, smallfiles
from penstock.save.small.partfiles import FILE
from penstock.save.verify import verify

pytestmark = pytest.mark.skipif(not copier.is_built(), reason="`make native` builds the copier")
N = 600  # several calls
SIZES = (0, 1, 300, 9000)


def content(number: int) -> bytes:
    return bytes([number % 250 + 1]) * SIZES[number % len(SIZES)]


def name_of(number: int) -> str:
    return f"layer_{number % 7}/part-{number:05d}.bin"


def made(tier: Path, chunk_bytes: int = 4096) -> Path:
    folder = tier / "step-00000100"
    sums = []
    for number in range(N):
        path, data = folder / name_of(number), content(number)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        parts = range(0, len(data), chunk_bytes)
        summed = b"".join(checksum(data[at : at + chunk_bytes]) for at in parts)
        sums.append(FileSum(name_of(number), len(data), summed))
    (folder / INSIDE).write_bytes(to_json(Manifest(tuple(sums), 100, chunk_bytes=chunk_bytes)))
    return folder


def found(tier: Path) -> Checkpoint:
    [one] = find(LocalStore(tier))
    assert len(one.files) == N
    return one


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The native reads: whether from the device."""
    seen, real = list[bool](), copier.call

    def call(name: str, *arguments: Any) -> Any:
        if name == "part_look":
            seen.append(bool(arguments[-1]))
        return real(name, *arguments)

    monkeypatch.setattr(copier, "call", call)
    return seen


def test_a_full_check_reads_the_files_in_few_calls_from_the_device(
    tmp_path: Path, looks: list[bool]
) -> None:
    made(tmp_path)
    verdict = verify(found(tmp_path), "full")
    assert verdict.is_whole
    assert verdict.checked_bytes == sum(len(content(number)) for number in range(N))
    assert looks == [True] * -(-N // smallfiles.IN_A_CALL)


@pytest.mark.parametrize("level", ["sizes", "sample"])
def test_a_smaller_check_reads_only_what_it_needs(
    tmp_path: Path, looks: list[bool], level: str
) -> None:
    made(tmp_path)
    verdict = verify(found(tmp_path), level)
    assert verdict.is_whole
    assert looks == []
    assert verdict.checked_bytes <= verifying.SAMPLE_CHUNKS * 4096


def test_a_check_by_the_format_reads_no_more_than_the_first_bytes_of_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(tmp_path)
    (folder / INSIDE).unlink()
    for number in range(0, N, 4):
        (folder / name_of(number)).write_bytes(b"x" * (smallfiles.TINY_BYTES + 1))
    sizes, real = list[int](), copier.call

    def call(name: str, *arguments: Any) -> Any:
        if name == "part_look":
            rows = (ctypes.c_char * (arguments[2] * FILE.itemsize)).from_address(arguments[1])
            sizes.extend(np.frombuffer(rows, FILE)["size_bytes"].tolist())
        return real(name, *arguments)

    monkeypatch.setattr(copier, "call", call)
    assert verify(found(tmp_path), "full").is_whole
    assert len(sizes) == N - N // 4
    assert max(sizes) <= smallfiles.TINY_BYTES


@pytest.mark.parametrize("number", [1, 2, N // 2 + 3, N - 1])
def test_a_changed_byte_is_found_in_any_part_of_any_file(tmp_path: Path, number: int) -> None:
    folder = made(tmp_path)
    path, data = folder / name_of(number), bytearray(content(number))
    data[-1] ^= 1
    path.write_bytes(data)
    verdict = verify(found(tmp_path), "full")
    [problem] = verdict.problems
    begin = (len(data) - 1) // 4096 * 4096
    assert problem.startswith(f"{name_of(number)}: bytes {begin:,} and on are not what was saved")


def test_a_file_that_is_a_link_or_changes_after_the_listing_is_read_as_before(
    tmp_path: Path,
) -> None:
    folder = made(tmp_path)
    (tmp_path / "beside.txt").write_bytes(content(3))
    (folder / name_of(3)).unlink()
    (folder / name_of(3)).symlink_to(tmp_path / "beside.txt")
    one = found(tmp_path)
    assert verify(one, "full").is_whole
    (folder / name_of(2)).write_bytes(b"longer" * 100)
    (folder / name_of(6)).unlink()
    said = " ".join(verify(one, "full").problems)
    assert name_of(2) in said
    assert f"{name_of(6)}: bytes 0 and on are not what was saved (cannot be read" in said


def test_a_folder_that_is_a_link_is_not_read_through_natively(
    tmp_path: Path, looks: list[bool]
) -> None:
    folder = made(tmp_path / "tier")
    one = found(tmp_path / "tier")
    (folder / "layer_0").rename(tmp_path / "moved")
    (folder / "layer_0").symlink_to(tmp_path / "moved")
    reading = smallfiles.SmallFileStore(LocalStore(tmp_path / "tier"), one.files, 9000, False)
    of_link = [file for file in one.files if "/layer_0/" in file.name]
    assert of_link
    assert all(reading.content(file.name) is None for file in of_link)
    assert reading.read(of_link[2].name)  # as any store


def test_an_end_that_was_never_written_is_found_among_thousands(tmp_path: Path) -> None:
    folder = made(tmp_path)
    (folder / INSIDE).unlink()
    path = folder / name_of(3)
    with path.open("r+b") as file:
        file.truncate(8192)
        file.truncate(20_000)
    if path.stat().st_blocks * 512 >= 20_000:
        pytest.skip("the file system keeps no holes")
    verdict = verify(found(tmp_path), "full")
    assert verdict.problems == (f"{name_of(3)}: its end was never written (a hole in the file)",)
    assert verdict.is_unended


def test_files_of_more_bytes_than_are_held_are_read_part_by_part(
    tmp_path: Path, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    monkeypatch.setattr(smallfiles, "MOST_BYTES", 4096)
    monkeypatch.setattr(smallfiles, "PART_BYTES", 4096)
    one = found(tmp_path)
    reading = smallfiles.SmallFileStore(LocalStore(tmp_path), one.files, 9000, True)
    for _ in range(2):
        for file in one.files:
            number = int(file.name[-9:-4])
            assert reading.content(file.name) == content(number)
            assert reading.read(file.name, 100, 50) == content(number)[100:150]
            held = [sum(map(len, part.values())) for part in reading._held.values()]
            assert sum(held) <= 4096 or len(held) == 1
    n_parts = len(looks) // 2
    assert looks == [True] * n_parts + [False] * n_parts  # from the device once


def test_the_work_of_a_check_grows_with_the_files_and_not_with_their_square(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    calls, real = Counter[str](), Checkpoint.size_bytes
    monkeypatch.setattr(
        Checkpoint, "size_bytes",
        property(lambda one: (calls.update(["asked"]), real.__get__(one))[1]),
    )  # fmt: skip
    one, told = found(tmp_path), list[tuple[int, int]]()
    monkeypatch.setattr(copier, "is_built", lambda: False)  # a chunk at a time
    assert verify(one, "full", lambda done, total: told.append((done, total))).is_whole
    assert len(told) > N // 2
    assert told[-1] == (told[-1][1], sum(len(content(number)) for number in range(N)))
    assert calls["asked"] < 5


def test_a_check_of_the_manifest_needs_no_native_library(
    tmp_path: Path, looks: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path)
    monkeypatch.setattr(copier, "is_built", lambda: False)
    assert verify(found(tmp_path), "full").is_whole
    assert looks == []


def test_a_second_drain_of_an_unchanged_folder_searches_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    folder = made(fast)
    (folder / INSIDE).unlink()  # another program's save
    (folder / name_of(0)).unlink()
    (folder / name_of(0)).write_bytes(b"model")
    with Drainer(fast, slow) as drain:
        assert drain.once() == []
    searched = Counter[str]()
    real = find

    def counted(store: LocalStore, **words: Any) -> list[Checkpoint]:
        searched[store.folder.name] += 1
        return real(store, **words)

    monkeypatch.setattr("penstock.save.drain.drainer.find", counted)
    with Drainer(fast, slow) as drain:
        assert drain.once() == []
        assert drain.status.drained == 0
    assert searched == {"fast": 1, "slow": 1}
    path = folder / name_of(2)
    path.write_bytes(path.read_bytes()[::-1] + b"x")
    with Drainer(fast, slow, DrainSettings(tries=1)) as drain:  # its first search sees each file
        assert "1 of its" in str(drain.once())


def test_a_manifest_is_parsed_anew_where_a_byte_differs(tmp_path: Path) -> None:
    folder = made(tmp_path)
    path = folder / INSIDE
    data = path.read_bytes()
    assert len(data) > LEAST_KEPT_BYTES  # kept after the first parse
    assert found(tmp_path).manifest == found(tmp_path).manifest is not None
    path.write_bytes(data.replace(b'"size_bytes": 300', b'"size_bytes": 301', 1))
    assert path.read_bytes() != data
    one = found(tmp_path)
    assert one.manifest is None
    assert "seal" in one.problem
    path.write_bytes(data)
    assert found(tmp_path).manifest is not None
