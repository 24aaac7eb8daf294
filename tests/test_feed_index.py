"""Indexes of tar, TFRecord and folders; the value itself, its bytes and its cache; what decodes a
record; `penstock feed`.  LMDB's walk has a file of its own."""

import contextlib
import csv
import dataclasses
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fixtures import PENSTOCK, needs
from penstock.errors import FeedError, FeedRefused
from penstock.feed import decode, tar, tfrecord, verify
from penstock.feed.index import (
    CACHED_RECORDS,
    Index,
    cache_paths,
    from_bytes,
    open_index,
    to_bytes,
)
from penstock.feed.names import kind_of
from penstock.safe.harmless import FORMULA


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder / "penstock" / "index"


def records(index: Index) -> list[tuple[bytes, bytes]]:
    data = [Path(file).read_bytes() for file in index.files]
    places = zip(index.file.tolist(), index.offset.tolist(), index.length.tolist(), strict=True)
    return [
        (index.key(number), data[file][at : at + n_bytes])
        for number, (file, at, n_bytes) in enumerate(places)
    ]


# --- tar -----------------------------------------------------------------------------------------


def tarred(
    path: Path, members: Iterable[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT
) -> None:
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))


def samples(seed: int, n: int, prefix: str = "") -> list[tuple[str, bytes]]:
    rng = random.Random(seed)
    return [
        (f"{prefix}{number:05d}.{extension}", rng.randbytes(rng.choice([0, 1, 511, 512, 9000])))
        for number in range(n)
        for extension in ("jpg", "cls", "seg.PNG")
    ]


FORMS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("prefix", ["", "train/n01440764/", "a long folder name é/" * 5])
def test_samples_of_a_tar_come_apart_as_tarfile_sees_them(
    tmp_path: Path, form: int, prefix: str
) -> None:
    members = samples(1, 30, prefix)
    tarred(tmp_path / "a.tar", members, form)
    index = open_index(tmp_path / "a.tar")
    assert index.kind == "tar"
    found = records(index)
    assert [key for key, _ in found] == [f"{prefix}{n:05d}".encode() for n in range(30)]
    with tarfile.open(tmp_path / "a.tar") as archive:
        truth = {info.name: archive.extractfile(info).read() for info in archive}  # type: ignore
    assert truth == dict(members)
    for key, record in found:
        parts = decode.sample(record)
        assert list(parts) == ["jpg", "cls", "seg.png"]
        for extension, name in (("jpg", "jpg"), ("cls", "cls"), ("seg.png", "seg.PNG")):
            assert parts[extension] == truth[f"{key.decode()}.{name}"]
    assert verify.check(tmp_path / "a.tar").problems == []


# What WebDataset makes of a name: its key and extension, or None.
NAMES: dict[str, tuple[str, str] | None] = {
    "1.jpg": ("1", "jpg"),
    "a/1.seg.PNG": ("a/1", "seg.png"),
    "a.b/1.jpg": ("a.b/1", "jpg"),
    "a//1.jpg": ("a//1", "jpg"),
    "./1.jpg": ("./1", "jpg"),
    "1.": ("1", ""),
    "README": None,
    "a.b/README": None,
    "a/": None,
    ".hid": None,
    ".hid.jpg": None,
    "./.hid": None,
    "a.b/.hid": None,
    "/.hid": ("/", "hid"),
    "a/.hid": ("a/", "hid"),
    "a.b/c/.hid.jpg": ("a.b/c/", "hid.jpg"),
    "__index__": None,
    "__a.b__": None,
    "__about__/1.jpg": None,
    "a/__about__/1.jpg": ("a/__about__/1", "jpg"),
    "a/__b.c__": ("a/__b", "c__"),
    "__1__.jpg": ("__1__", "jpg"),
    "__.jpg": ("__", "jpg"),
}


def test_a_sample_is_what_webdataset_takes_for_one() -> None:
    found = {name: tar.name_parts(name.encode()) for name in NAMES}
    assert found == {name: parts and (parts[0].encode(), parts[1]) for name, parts in NAMES.items()}


def with_others(path: Path) -> None:
    """A sample among all that makes none."""
    with tarfile.open(path, "w") as archive:
        for name, kind, data in (
            ("train", tarfile.DIRTYPE, b""),
            ("train/README", tarfile.REGTYPE, b"no dot"),
            (".hidden", tarfile.REGTYPE, b"no stem"),
            ("train/1.jpg", tarfile.REGTYPE, b"one"),
            ("train/link.jpg", tarfile.SYMTYPE, b""),
            ("train/hard.jpg", tarfile.LNKTYPE, b""),
            ("train/1.cls", tarfile.REGTYPE, b"7"),
            ("train/pipe.jpg", tarfile.FIFOTYPE, b""),
            ("train/odd.jpg", b"V", b""),
            ("__index__", tarfile.REGTYPE, b"about"),
            *((f"more/{number}", tarfile.REGTYPE, b"") for number in range(9)),
        ):
            about = tarfile.TarInfo(name)
            about.type, about.size, about.linkname = kind, len(data), "train/1.jpg"
            archive.addfile(about, io.BytesIO(data))


def test_what_is_in_no_sample_is_passed_over_and_counted(tmp_path: Path) -> None:
    with_others(tmp_path / "a.tar")
    index = open_index(tmp_path / "a.tar")
    ((key, record),) = records(index)
    assert key == b"train/1"
    assert {name: bytes(part) for name, part in decode.sample(record).items()} == {
        "jpg": b"one",
        "cls": b"7",
    }
    told = {f"{each.noun} {each.why}".strip(): (each.n, each.names) for each in index.left_out}
    assert told == {
        "file without an extension": (10, ("a.tar/train/README", "a.tar/more/0", "a.tar/more/1")),
        "hidden file": (1, ("a.tar/.hidden",)),
        "link": (2, ("a.tar/train/link.jpg", "a.tar/train/hard.jpg")),
        "pipe": (1, ("a.tar/train/pipe.jpg",)),
        "member of the type 'V', which is no file": (1, ("a.tar/train/odd.jpg",)),
        "file that WebDataset takes for its own": (1, ("a.tar/__index__",)),
    }
    assert verify.check(tmp_path / "a.tar").left_out == index.left_out


def test_what_is_left_out_of_many_shards_is_told_once_for_each_reason(
    tmp_path: Path, cache: Path
) -> None:
    for shard in range(3):
        members = [(f"{number:05d}.jpg", b"") for number in range(CACHED_RECORDS // 2)]
        tarred(tmp_path / f"{shard}.tar", [("README", b""), *members, ("LICENSE", b"")])
    index = open_index(tmp_path)
    (other,) = index.left_out
    assert (other.n, other.names) == (6, ("0.tar/README", "0.tar/LICENSE", "1.tar/README"))
    assert len(list(cache.iterdir())) == 1
    assert open_index(tmp_path).left_out == from_bytes(to_bytes(index)).left_out == (other,)


def test_what_a_folder_and_an_lmdb_leave_out_is_told(tmp_path: Path) -> None:
    for name in ("a/1.jpg", "a/.DS_Store", ".git/config", ".git/head"):
        (tmp_path / "set" / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / "set" / name).touch()
    os.mkfifo(tmp_path / "set/pipe")
    assert set(open_index(tmp_path / "set").left_out) == {
        ("hidden file", "", 1, ("a/.DS_Store",)),
        ("hidden folder", "", 1, (".git",)),
        ("special file", "", 1, ("pipe",)),
    }
    with lmdb.open(str(tmp_path / "b"), map_size=1 << 20, max_dbs=2) as env:
        for name in (b"images", b"labels"):
            with env.begin(write=True, db=env.open_db(name)) as txn:
                txn.put(b"a", b"1")
        with env.begin(write=True) as txn:
            txn.put(b"key", b"value")
    index = open_index(tmp_path / "b")
    assert len(index) == 1
    ((noun, why, n, names),) = index.left_out
    assert (noun, n, names) == ("database", 2, ("images", "labels"))
    assert "--database" in why
    (other,) = open_index(tmp_path / "b", database="images").left_out
    assert other == ("record", "outside the database that was named", 1, ("key",))


def header(name: bytes, kind: bytes, content: bytes = b"", size: int | None = None) -> bytes:
    about = tarfile.TarInfo(os.fsdecode(name))
    about.type, about.size = kind, len(content) if size is None else size
    return about.tobuf(tarfile.GNU_FORMAT) + content + bytes(-len(content) % 512)


TAR_END = bytes(10 << 10)


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (header(b"1.jpg", b"S"), "at 1,024 is a sparse file"),
        (header(b"1.jpg", b"M", b"rest"), "at 1,024 is the end of one that begins in another"),
        (header(b"all", b"g", b"18 path=every.one\n"), "at 1,024 gives one path or size to all"),
        (header(b"all", b"g", b"11 size=10\n"), "at 1,024 gives one path or size to all"),
        (header(b"x", b"x", b"15 path=one.jpg"), "extended header at 1,024 is damaged"),
        (header(b"x", b"x", b"11 size=1x\n"), "extended header at 1,024 is damaged"),
        (header(b"x", b"x", b"13 path:a.jp\n"), "extended header at 1,024 is damaged"),
    ],
)
def test_members_of_which_not_all_is_here_are_refused(
    tmp_path: Path, before: bytes, why: str
) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(header(b"0.jpg", b"0", b"x") + before + header(b"2.jpg", b"0") + TAR_END)
    with pytest.raises(FeedError, match=f"a.tar: the (member|header|).*{why}"):
        open_index(path)


def test_a_tar_of_nothing_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    subprocess.run(["tar", "-cf", path, "-T", "/dev/null"], check=True)
    checked = verify.check(path)
    assert (len(open_index(path)), checked.n_records, checked.problems) == (0, 0, [])
    path.write_bytes(bytes(1 << 21))
    with pytest.raises(FeedError, match="block of zeros at 0 is no end mark"):
        open_index(path)


def test_a_long_name_whose_member_is_not_there_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    for kind, name in ((b"L", b"2.jpg\0"), (b"K", b"2.jpg\0"), (b"x", b"14 path=2.jpg\n")):
        path.write_bytes(header(b"0.jpg", b"0") + header(b"long", kind, name) + TAR_END)
        with pytest.raises(FeedError, match=r"the header at 512 is of a member that is not there"):
            open_index(path)


def test_headers_of_other_writers_are_read(tmp_path: Path) -> None:
    """Folders as the first tars had them, Solaris' extended headers, a comment for all members."""
    path = tmp_path / "a.tar"
    path.write_bytes(
        header(b"about", b"g", b"22 comment=0123456789\n")
        + header(b"train/", b"\0", size=700)
        + header(b"x", b"X", b"17 path=long.jpg\n")
        + header(b"short.jpg", b"0", b"one")
        + TAR_END
    )
    index = open_index(path)
    assert [index.key(record) for record in range(len(index))] == [b"long"]
    assert index.left_out == ()
    with tarfile.open(path) as archive:
        assert [(each.name, each.isdir()) for each in archive] == [
            ("train", True), ("long.jpg", False),
        ]  # fmt: skip


def test_shards_are_one_data_set_in_their_order(tmp_path: Path) -> None:
    for shard in range(3):
        tarred(tmp_path / f"s-{shard:03d}.tar", samples(shard, 4, f"{shard}-"))
    asked: list[Any] = [
        tmp_path,
        tmp_path / "*.tar",
        tmp_path / "s-{000..002}.tar",
        [tmp_path / f"s-{shard:03d}.tar" for shard in range(3)],
    ]
    for path in asked:
        index = open_index(path)
        assert len(index) == 12
        assert index.key(4) == b"1-00000"
        assert index.file.tolist() == [0] * 4 + [1] * 4 + [2] * 4
        assert index.find(b"2-00003") == 11
        assert index.find(b"2-00004") == -1


@pytest.mark.parametrize("cut", [1, 511, 700, 1024, 5000])
def test_a_truncated_tar_is_told(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.tar"
    tarred(path, [(f"{n}.bin", bytes([n]) * 700) for n in range(20)])
    size = 20 * (512 + 1024)
    path.write_bytes(path.read_bytes()[: size - cut])
    with pytest.raises(FeedError, match=r"a\.tar.*truncated"):
        open_index(path)


def test_an_end_mark_of_one_block_is_told_as_that(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(header(b"0.jpg", b"0", b"x") + bytes(512))
    with pytest.raises(FeedError, match=r"ends at 1,536 with one block of zeros.*truncated"):
        open_index(path)


def test_a_damaged_header_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    tarred(path, [(f"{n}.bin", bytes(700)) for n in range(20)])
    data = bytearray(path.read_bytes())
    data[3 * 1536 + 130] ^= 1
    path.write_bytes(data)
    with pytest.raises(FeedError, match=r"a\.tar: the header at 4,608 does not sum up"):
        open_index(path)


@pytest.mark.parametrize("sizes", [600, 9000])
def test_a_tar_with_a_hole_in_it_is_not_whole(tmp_path: Path, sizes: int) -> None:
    rng = random.Random(4)
    members = [(f"{number:03}.jpg", rng.randbytes(sizes)) for number in range(20)]
    tarred(tmp_path / "a.tar", members)
    whole = (tmp_path / "a.tar").read_bytes()
    begins = [found.begin for found in tar.members(_bytes_of(whole), 0, len(whole), "a.tar")]
    assert len(verify.check(tmp_path / "a.tar").problems) == 0
    for begin in begins[1:]:  # the first one says that it is a tar
        for n_bytes in (512, 1024, 2000, len(whole)):
            torn = bytearray(whole)
            torn[begin : begin + n_bytes] = bytes(len(torn[begin : begin + n_bytes]))
            (tmp_path / "a.tar").write_bytes(torn)
            found = verify.check(tmp_path / "a.tar")
            if not any(torn[begin:]):  # as a tar of this size may be padded
                is_usual = len(whole) - begin <= 21 * 512
                ends = [("end", (f"a.tar from {begin:,} on",))] * (not is_usual)
                assert [(each.noun, each.names) for each in found.left_out] == ends
                assert found.problems == []
                continue
            assert [problem.what.split(": ")[1][:20] for problem in found.problems] == [
                f"a block of zeros at {begin:,} is"[:20]
            ], (begin, n_bytes)
            with pytest.raises(FeedError, match="is no end mark"):
                open_index(tmp_path / "a.tar")


def _bytes_of(whole: bytes) -> Callable[[int, int], bytes]:
    return lambda at, n_bytes: whole[at : at + n_bytes]


def test_tars_that_are_joined_are_told_and_those_of_any_writer_are_whole(tmp_path: Path) -> None:
    tarred(tmp_path / "a.tar", samples(1, 20))
    one = (tmp_path / "a.tar").read_bytes()
    (tmp_path / "b.tar").write_bytes(one + one)
    with pytest.raises(FeedError, match=r"b\.tar: a block of zeros .*several are joined"):
        open_index(tmp_path / "b.tar")
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_bytes(bytes(700 * number))
    for blocks in (1, 2, 3, 20, 30, 40, 64, 100, 128, 2048):  # padded to so many
        archive = tmp_path / f"c{blocks}.tar"
        names = [f"{number}.jpg" for number in range(3)]
        command = ["tar", "-b", str(blocks), "-cf", archive, "-C", tmp_path, *names]
        subprocess.run(command, check=True)
        checked = verify.check(archive)
        assert (checked.n_records, checked.problems) == (3, [])
        assert bool(checked.left_out) == (archive.stat().st_size > 5 << 12 or blocks in (30, 40))


def test_more_zeros_at_its_end_than_a_tar_of_its_size_may_have_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    rng = random.Random(5)
    tarred(path, [(f"{number:03}.jpg", rng.randbytes(4096 - 512)) for number in range(510)])
    whole = path.read_bytes()[: 510 << 12].ljust(2 << 20, b"\0")  # records of it: up to 1 MiB
    for lost, said in ((1 << 20, "from 1,048,576 on"), ((1 << 20) + 4096, "no end mark")):
        path.write_bytes(whole[:-lost] + bytes(lost))
        checked = verify.check(path)
        assert said in f"{checked.left_out} {checked.problems}"
        assert bool(checked.problems) == ("no end" in said)


def test_verify_names_samples_that_are_no_neighbours(tmp_path: Path) -> None:
    tarred(tmp_path / "a.tar", [("1.jpg", b"a"), ("2.jpg", b"b"), ("1.cls", b"c"), ("1.cls", b"d")])
    said = [problem.what for problem in verify.check(tmp_path / "a.tar").problems]
    assert any("b'1' of record 0" in what for what in said)
    assert any("two files 'cls'" in what for what in said)
    tarred(tmp_path / "b.tar", [("1.jpg", b"a"), ("README", b"b"), ("1.", b"c"), ("NOTES", b"d")])
    assert verify.check(tmp_path / "b.tar").problems == []


@given(st.binary(max_size=3000), st.integers(0, 40), st.integers(1, 255))
@settings(max_examples=100, deadline=None)
def test_whatever_bytes_a_tar_has_it_ends(noise: bytes, place: int, flip: int) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        about = tarfile.TarInfo("é" * 60 + ".bin")
        about.size = len(noise)
        archive.addfile(about, io.BytesIO(noise))
    for data in (noise, bytearray(out.getvalue())):
        if isinstance(data, bytearray):
            data[(place * 37) % len(data)] ^= flip
        said, found = taken_apart(data)
        assert not said or said.startswith("a tar")
        for member in found:
            assert 0 <= member.begin < member.data <= member.data + member.size <= len(data)


@pytest.fixture(scope="module")
def small_tar(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A long name, an empty content, one of a block and one of more."""
    path = tmp_path_factory.mktemp("small") / "a.tar"
    tarred(path, [(f"{'long/' * 30}1.jpg", b"x" * 512), ("2.jpg", b""), ("3.cls", b"y" * 700)])
    return path


def test_each_byte_of_a_tar_flipped_is_told_with_its_place_or_changes_no_record(
    small_tar: Path, tmp_path: Path
) -> None:
    whole = small_tar.read_bytes()
    known = open_index(small_tar)
    found = list(tar.members(_bytes_of(whole), 0, len(whole), "a.tar"))
    contents = [range(each.data, each.data + each.size) for each in found]
    long_name = range(512, 1024)  # has no sum, and is padded with zeros
    padding = [range(each.data + each.size, -(-(each.data + each.size) // 512) * 512)
               for each in found]  # fmt: skip
    end = found[-1].data + 1024
    path = tmp_path / "a.tar"
    for place in range(len(whole)):
        if place % 7 and (place >= end or any(place in each for each in (*contents, *padding))):
            continue
        torn = bytearray(whole)
        torn[place] ^= 0x04
        path.write_bytes(torn)
        checked = verify.check_files("tar", (str(path),))
        if checked.problems:
            assert str(path) in checked.problems[0].what
            assert any(letter.isdigit() for letter in checked.problems[0].what)
            assert checked.n_records is None
            continue
        if place in long_name:
            continue
        assert any(place in each for each in (*contents, *padding)), place
        index = open_index(path, cache=False)
        for column in ("offset", "length", "keys"):
            assert getattr(index, column).tolist() == getattr(known, column).tolist()


def test_a_tar_cut_anywhere_is_told_or_lacks_padding_alone(small_tar: Path, tmp_path: Path) -> None:
    whole = small_tar.read_bytes()
    known, path = open_index(small_tar), tmp_path / "a.tar"
    end = int(known.offset[-1] + 512 + 1024)
    for size in range(0, len(whole), 128):
        path.write_bytes(whole[:size])
        checked = verify.check_files("tar", (str(path),))
        assert bool(checked.problems) == (size < end + 1024), size
        assert checked.n_records == (None if checked.problems else len(known))


def taken_apart(data: bytes | bytearray) -> tuple[str, list[tar.TarMember]]:
    view, found = memoryview(data), []
    try:
        for member in tar.members(lambda at, n: view[at : at + n], 0, len(view), "a tar"):
            found.append(member)
    except FeedError as error:
        return str(error), found
    return "", found


# --- TFRecord ------------------------------------------------------------------------------------


def slow_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def slow_masked(data: bytes) -> bytes:
    crc = slow_crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecords(payloads: Iterable[bytes]) -> bytes:
    parts = []
    for payload in payloads:
        length = struct.pack("<Q", len(payload))
        parts += [length, slow_masked(length), payload, slow_masked(payload)]
    return b"".join(parts)


def test_the_sum_is_crc_32c() -> None:
    assert slow_crc32c(b"123456789") == 0xE3069283  # the check value of every CRC catalogue
    for data in (
        b"",
        b"1",
        b"123",
        b"123456789",
        bytes(32),
        b"\xff" * 32,
        bytes(1024),
        bytes(5000),
    ):
        flat = np.frombuffer(b"??" + data, np.uint8)
        (found,) = tfrecord.crc32c(flat, np.array([2]), np.array([len(data)]))
        assert found == slow_crc32c(data), len(data)


@given(st.lists(st.binary(max_size=5000), max_size=12))
@settings(max_examples=50, deadline=None)
def test_sums_of_many_are_the_sums_of_each(parts: list[bytes]) -> None:
    length = np.array([len(part) for part in parts], np.int64)
    flat = np.frombuffer(b"".join(parts), np.uint8)
    found = tfrecord.crc32c(flat, np.cumsum(length) - length, length)
    assert found.tolist() == [slow_crc32c(part) for part in parts]


def test_the_payloads_of_a_tfrecord_are_its_records(tmp_path: Path) -> None:
    rng = random.Random(2)
    payloads = [rng.randbytes(rng.choice([0, 1, 3, 100, 5000, 40_000])) for _ in range(60)]
    (tmp_path / "a.tfrecord").write_bytes(tfrecords(payloads))
    index = open_index(tmp_path / "a.tfrecord")
    assert index.kind == "tfrecord"
    assert [record for _, record in records(index)] == payloads
    assert index.key(7) == b"a.tfrecord/00000007"
    assert index.find(b"a.tfrecord/00000059") == 59
    checked = verify.check(tmp_path / "a.tfrecord")
    assert (checked.n_records, checked.problems) == (60, [])


@pytest.mark.slow
def test_what_tensorflow_writes_is_read(tmp_path: Path) -> None:
    needs("tensorflow")
    program = (
        "import sys, tensorflow as tf\n"
        "with tf.io.TFRecordWriter(sys.argv[1]) as writer:\n"
        "    for n in range(50): writer.write(bytes([n]) * (n * 97))\n"
    )
    path = tmp_path / "train-00000-of-00001"
    subprocess.run([sys.executable, "-c", program, path], check=True, capture_output=True)
    for asked in (path, tmp_path):  # by its first bytes: the name says nothing
        found = records(open_index(asked))
        assert [record for _, record in found] == [bytes([n]) * (n * 97) for n in range(50)]
    assert verify.check(path).problems == []


@pytest.mark.parametrize("size", [40, 6000])
def test_each_byte_of_a_tfrecord_flipped_is_found(tmp_path: Path, size: int) -> None:
    data = tfrecords([bytes([n]) * size for n in range(4)])
    path = tmp_path / "a.tfrecord"
    for place in range(0, len(data), 1 if size < 100 else 499):
        broken = bytearray(data)
        broken[place] ^= 0x10
        path.write_bytes(broken)
        checked = verify.check_files("tfrecord", (str(path),))
        assert checked.problems, place
        assert all(str(path) in problem.file for problem in checked.problems)
        record = place // (size + 16)
        assert checked.problems[0].record in (None, record)


@pytest.mark.parametrize("cut", [1, 4, 20, 56, 60, 100])
def test_a_truncated_tfrecord_is_told(tmp_path: Path, cut: int) -> None:
    """With the record that is not all there."""
    data = tfrecords([b"x" * 40] * 5)
    path = tmp_path / "a.tfrecord"
    path.write_bytes(data[:-cut])
    if cut == 56:  # a whole record: nothing in the format counts them
        assert len(open_index(path)) == 4
        return
    begins = (len(data) - cut) // 56 * 56
    where = rf"a\.tfrecord: ends at {len(data) - cut}, within .* begins at {begins}; it is trunc"
    with pytest.raises(FeedError, match=where):
        open_index(path)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6), st.data())
@settings(max_examples=150, deadline=None)
def test_a_tfrecord_cut_or_flipped_anywhere_is_told_or_whole(
    payloads: list[bytes], data: st.DataObject
) -> None:
    whole = tfrecords(payloads)
    ends = np.cumsum([len(payload) + 16 for payload in payloads]).tolist()
    place = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(0, 255))  # 0: cut there
    torn = bytearray(whole) if flip else bytearray(whole[:place])
    if flip:
        torn[place] ^= flip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "a.tfrecord"
        path.write_bytes(torn)
        checked = verify.check(path)
        if not flip and place in (0, *ends):  # between two records: nothing counts them
            assert (checked.problems, checked.n_records) == ([], [0, *ends].index(place))
            return
        ((file, record, what),) = checked.problems
        assert file == str(path)
        assert record is not None or str(path) in what
        if record is not None:
            assert ends[record] - len(payloads[record]) - 4 <= place < ends[record]


# --- folders -------------------------------------------------------------------------------------


def test_each_file_below_a_folder_is_a_record(tmp_path: Path) -> None:
    truth = {
        f"class {n % 3}/{n}.jpg".encode(): random.Random(n).randbytes(n * 10) for n in range(40)
    }
    for key, data in truth.items():
        path = tmp_path / "images" / key.decode()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "images" / ".hidden").write_bytes(b"no record")
    index = open_index(tmp_path / "images")
    assert index.kind == "folder"
    assert records(index) == sorted(truth.items())
    assert index.find(b"class 1/7.jpg") == sorted(truth).index(b"class 1/7.jpg")
    (tmp_path / "images" / "class 1" / "7.jpg").write_bytes(b"another")
    with pytest.raises(FeedError, match=r"class 1/7\.jpg has changed"):
        index.check()
    assert dict(records(open_index(tmp_path / "images")))[b"class 1/7.jpg"] == b"another"


def test_links_are_followed_and_circles_refused(tmp_path: Path) -> None:
    (tmp_path / "images" / "a").mkdir(parents=True)
    (tmp_path / "one.jpg").write_bytes(b"one")
    (tmp_path / "images" / "a" / "1.jpg").symlink_to(tmp_path / "one.jpg")
    assert records(open_index(tmp_path / "images")) == [(b"a/1.jpg", b"one")]
    (tmp_path / "images" / "a" / "up").symlink_to(tmp_path / "images")
    with pytest.raises(FeedError, match="reached twice"):
        open_index(tmp_path / "images")
    (tmp_path / "images" / "a" / "up").unlink()
    (tmp_path / "images" / "a" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
    with pytest.raises(FeedError, match=r"2\.jpg is a link to nothing"):
        open_index(tmp_path / "images")


# --- which files ---------------------------------------------------------------------------------


def test_what_cannot_be_a_data_set_is_told(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("notes")
    (tmp_path / "a.tar.gz").write_bytes(b"\x1f\x8b" + bytes(600))
    (tmp_path / "bad.tar").write_bytes(b"x" * 2000)
    tarred(tmp_path / "a.tar", samples(0, 1))
    (tmp_path / "a.tfrecord").write_bytes(tfrecords([b"1"]))
    cases: list[tuple[Any, str]] = [
        (tmp_path / "gone.tar", "no such file"),
        (tmp_path / "*.parquet", "matches no file"),
        (tmp_path / "empty", "no file in it"),
        (tmp_path / "notes.txt", "no LMDB, tar, TFRecord or Parquet file"),
        (tmp_path / "a.tar.gz", "compressed as a whole"),
        (tmp_path / "bad.tar", "does not begin like one"),
        (tmp_path / "s-{00..02}.tar", r"s-00\.tar: no such file; a shard is missing"),
        ([tmp_path / "a.tar", tmp_path / "a.tfrecord"], "tar and tfrecord together"),
        ([tmp_path / "a.tar", tmp_path / "a.tar"], "named twice"),
        ([], "an empty list names no data set"),
    ]
    for path, said in cases:
        with pytest.raises(FeedError, match=said):
            open_index(path)
    with pytest.raises(FeedError, match="only an LMDB has databases"):
        open_index(tmp_path / "a.tar", database="images")


def test_a_name_that_looks_like_a_pattern_is_a_name_first(tmp_path: Path) -> None:
    folder = tmp_path / "r{1..3}"
    folder.mkdir()
    (folder / "a.bin").write_bytes(b"one")
    assert len(open_index(folder)) == 1
    with pytest.raises(FeedError, match="is remote"):
        open_index("hdfs://bucket/train.lmdb")


def test_a_long_extended_header_is_read_in_the_time_of_its_length() -> None:
    """Records of it were cut off one by one, and all that was left copied for each."""
    many = b"12 k=567890\n" * 80_000 + b"13 path=a.jp\n"
    begun = time.process_time()
    assert tar._extended(many, b"", 0, "") == (b"a.jp", -1)
    assert time.process_time() - begun < 5


def test_a_pipe_is_no_data_set(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar")
    with pytest.raises(FeedError, match="no file and no folder"):
        open_index(tmp_path / "a.tar")


def test_a_folder_of_lmdbs_is_one_data_set(tmp_path: Path) -> None:
    for name in (b"tower", b"church"):
        with lmdb.open(str(tmp_path / name.decode())) as env, env.begin(write=True) as txn:
            txn.put(name, b"of " + name)
            txn.put(b"key", b"twice")
    index = open_index(tmp_path)
    assert records(index) == [
        (b"church", b"of church"), (b"key", b"twice"), (b"key", b"twice"), (b"tower", b"of tower"),
    ]  # fmt: skip
    assert [index.find(key) for key in (b"church", b"key", b"tower", b"dome")] == [0, 1, 3, -1]


def test_shards_in_folders_are_not_taken_for_records(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / part).mkdir()
        tarred(tmp_path / part / "0.tar", samples(0, 2, part))
    with pytest.raises(FeedError, match=r"tars in folders of their own.*\*\*"):
        open_index(tmp_path)
    assert len(open_index(tmp_path / "**" / "*.tar")) == 4
    assert len(open_index(tmp_path, kind="folder")) == 2


BESIDE_SHARDS = (
    "SHA256SUMS", "md5sums", "00000.parquet", "00000_stats.json", "labels.JSONL", "a.csv", "a.tsv",
    "0.tar.idx", "features.pbtxt", "README.md", "README", "notes.txt", "_SUCCESS", ".DS_Store",
    "make_tfrecords.py",
)  # fmt: skip


@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_shards_are_what_is_read_where_lists_and_sums_lie_beside_them(
    tmp_path: Path, kind: str
) -> None:
    for shard in range(3):
        path = tmp_path / f"{shard}.{kind}"
        if kind == "tar":
            tarred(path, samples(shard * 2, 2))
        else:
            path.write_bytes(tfrecords([b"1", b"2"]))
    for beside in BESIDE_SHARDS:
        (tmp_path / beside).write_bytes(b"beside")
        index = open_index(tmp_path)
        assert (index.kind, len(index)) == (kind, 6), beside
    checked = verify.check(tmp_path)
    assert (checked.kind, checked.n_records, checked.problems) == (kind, 6, [])


@pytest.mark.parametrize("other", ["cat.npy", "cat.JPG", "class/cat.png", "val/0.tar", "b.tar.gz"])
def test_shards_among_other_records_are_refused(tmp_path: Path, other: str) -> None:
    tarred(tmp_path / "0.tar", samples(0, 2))
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).write_bytes(b"\x1f\x8b" + bytes(600))
    for look in (open_index, verify.check):
        with pytest.raises(FeedError, match=rf"other records, such as .*{other}|as a whole"):
            look(tmp_path)
    assert len(open_index(tmp_path / "*.tar")) == 2
    (tmp_path / other).unlink()
    (tmp_path / "a.tfrecord").write_bytes(tfrecords([b"1"]))
    with pytest.raises(FeedError, match=r"tar and tfrecord together"):
        open_index(tmp_path)


@pytest.mark.parametrize("name", ["a/0.tar", "a/0.tar.gz", "a/train-tfrecord-1"])
def test_a_container_among_the_files_of_a_folder_is_no_record(tmp_path: Path, name: str) -> None:
    for each in ("a/cat.jpg", "b/dog.JPG", name):
        (tmp_path / each).parent.mkdir(exist_ok=True)
        (tmp_path / each).write_bytes(b"x" * 2000)
    for look in (open_index, verify.check):
        with pytest.raises(FeedError, match=f"{name}, called a t.* among other files"):
            look(tmp_path)
    assert len(open_index(tmp_path, kind="folder")) == 3
    (tmp_path / name).rename(tmp_path / "a/about_tfrecords.txt")
    assert len(open_index(tmp_path)) == 3


def test_a_kind_that_is_said_is_what_is_read(tmp_path: Path) -> None:
    for shard in range(3):
        tarred(tmp_path / f"part{shard}", samples(shard, 2, f"{shard}-"))
    for kind, named, cure in (
        ("tar", "a tar", "pattern"),
        ("tfrecord", "a TFRecord file", "pattern"),
        ("lmdb", "an LMDB", "name its file"),
    ):
        with pytest.raises(FeedRefused, match=f"no file in it is called as {named} is; .*{cure}"):
            open_index(tmp_path, kind=kind)
    index = open_index(tmp_path / "*", kind="tar")
    assert (index.kind, len(index)) == ("tar", 6)
    (tmp_path / "part1").rename(tmp_path / "a.tar")
    assert len(open_index(tmp_path, kind="tar")) == 2
    with pytest.raises(FeedRefused, match=r"a\.tar is a file; kind='folder' takes a folder"):
        open_index(tmp_path / "a.tar", kind="folder")
    (tmp_path / "in").mkdir()
    (tmp_path / "a.tar").rename(tmp_path / "in" / "a.tar")
    for command in ("inspect", "verify", "bench"):
        assert "--kind folder" in penstock(command, tmp_path, status=2).stderr
    for command in ("inspect", "verify"):
        assert "folder: 3 records" in penstock(command, tmp_path, "--kind", "folder").stdout
    assert (
        "kind='zip' is not known" in penstock("verify", tmp_path, "--kind", "zip", status=2).stderr
    )


def test_a_shard_that_its_neighbours_count_is_missed(tmp_path: Path) -> None:
    for shard in (0, 1, 3):
        path = tmp_path / f"train-{shard:05d}-of-00004"
        path.write_bytes(tfrecords([b"%d" % shard]))
    for asked in (tmp_path, tmp_path / "train-*"):
        with pytest.raises(FeedError, match="train-00002-of-00004 is missing"):
            open_index(asked)
    assert len(open_index([tmp_path / f"train-{shard:05d}-of-00004" for shard in (0, 1, 3)])) == 3
    (tmp_path / "train-00002-of-00004").write_bytes(b"")
    assert len(open_index(sorted(tmp_path.glob("train*")), kind="tfrecord")) == 3


NOBODY = 65534


def test_a_file_that_may_not_be_read_is_told() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are their owner's alone
        path, closed = Path(folder) / "a.tar", Path(folder) / "closed"
        tarred(path, samples(0, 1))
        closed.mkdir()
        tarred(closed / "b.tar", samples(0, 1))
        Path(folder).chmod(0o755)
        path.chmod(0)
        closed.chmod(0)
        asked = (path, closed / "b.tar", closed)
        was = os.geteuid()
        try:
            os.seteuid(was or NOBODY)
            said = [refused(each) for each in asked]
        finally:
            os.seteuid(was)
        closed.chmod(0o700)
    for each, told in zip(asked, said, strict=True):
        assert str(each) in told
        assert "Permission denied" in told


def refused(path: Path) -> str:
    with pytest.raises(FeedError) as caught:
        open_index(path, cache=False)
    return str(caught.value)


# --- the value, its bytes, its cache -------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path) -> Index:
    for shard in range(2):
        tarred(tmp_path / f"{shard}.tar", samples(shard, 9, f"{shard}-"))
    return open_index(tmp_path / "*.tar")


def same(one: Index, other: Index) -> bool:
    fields = [field.name for field in dataclasses.fields(Index)]
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in fields)


def test_an_index_survives_its_bytes(index: Index) -> None:
    again = from_bytes(to_bytes(index))
    assert same(index, again)
    again.check()
    assert [array.dtype for array in (again.file, again.offset, again.length, again.key_end)] == [
        np.uint32, np.int64, np.int64, np.int64,
    ]  # fmt: skip
    assert b"pickle" not in to_bytes(index)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_whatever_bytes_come_for_an_index_they_are_one_or_an_error(data: st.DataObject) -> None:
    whole = Index(
        path="a.tar", kind="tar", files=("/a.tar",), file=np.zeros(2, np.uint32),
        offset=np.array([0, 700]), length=np.array([600, 30]),
        keys=np.frombuffer(b"onetwo", np.uint8), key_end=np.array([3, 6]),
        fingerprint=np.array([(1000, 1, -1)], "<i8,<i8,<i8").tobytes(),
    )  # fmt: skip
    raw = bytearray(to_bytes(whole))
    body = data.draw(st.booleans())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(28 if body else 0, len(raw) - 1))
        raw[place] ^= data.draw(st.integers(1, 255))
    if body:  # as one would who makes it on purpose
        import zlib

        struct.pack_into("<I", raw, 12, zlib.crc32(raw[28:]))
    try:
        found = from_bytes(bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) - 3]))]))
    except FeedError:
        return
    sizes = np.frombuffer(found.fingerprint, "<i8").reshape(-1, 3)[:, 0]
    for number in range(len(found)):
        assert isinstance(found.key(number), bytes)
        assert found.offset[number] >= 0
        assert found.offset[number] + found.length[number] <= sizes[found.file[number]]


def big_tar(path: Path, n: int = CACHED_RECORDS) -> None:
    tarred(path, ((f"{number:05d}.bin", b"%d" % number) for number in range(n)))


def test_a_cached_index_is_used_until_its_file_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.tar"
    big_tar(path)
    made = open_index(path)
    (kept,) = cache.iterdir()
    calls: list[str] = []
    walk = tar.spans
    monkeypatch.setattr(tar, "spans", lambda *args: calls.append(args[0]) or walk(*args))
    assert same(open_index(path), made)
    assert calls == []
    kept.write_bytes(kept.read_bytes()[:-20])  # damaged: made again, without a word
    assert same(open_index(path), made)
    assert calls == [str(path)]
    assert same(from_bytes(kept.read_bytes()[16:]), made)  # behind one file's identity
    open_index(path, cache=False)
    assert len(calls) == 2
    big_tar(path, CACHED_RECORDS + 1)
    assert len(open_index(path)) == CACHED_RECORDS + 1
    assert [entry.name for entry in cache.iterdir()] == [kept.name]


def in_one_tar(path: Path, swapped: bool) -> None:
    """Two contents of one size: a record of 1 byte and one of 1,000, and the same in turn."""
    sizes = [1, 1000, *[1] * CACHED_RECORDS]
    if swapped:
        sizes[:2] = sizes[1::-1]
    tarred(path, ((f"{number:05d}.bin", b"x" * size) for number, size in enumerate(sizes)))


def in_one_lmdb(path: Path, swapped: bool) -> None:
    sizes = [5000, 9000] + [1] * CACHED_RECORDS
    if swapped:
        sizes[:2] = sizes[1::-1]
    path.unlink(missing_ok=True)
    env = lmdb.open(str(path), subdir=False, lock=False, map_size=1 << 24)
    with env, env.begin(write=True) as txn:
        for number, size in enumerate(sizes):
            txn.put(b"%05d" % number, b"x" * size)


@pytest.mark.parametrize("make", [in_one_tar, in_one_lmdb])
@pytest.mark.parametrize("cache_at", [True, "beside"])
def test_a_file_replaced_by_one_of_its_size_and_time_is_indexed_anew(
    tmp_path: Path, make: Callable[[Path, bool], None], cache_at: bool | str
) -> None:
    path, other = tmp_path / "a.mdb", tmp_path / "b.mdb"
    make(path, False)
    made = open_index(path, cache=cache_at)
    assert same(open_index(path, cache=cache_at), made)
    make(other, True)
    state = path.stat()
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns)
    anew = open_index(path, cache=cache_at)
    assert same(anew, open_index(path, cache=False))
    assert anew.length.tolist()[:2] == made.length.tolist()[1::-1] != made.length.tolist()[:2]
    assert same(open_index(path, cache=cache_at), anew)


def test_a_file_overwritten_in_place_with_its_time_set_back_is_indexed_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    in_one_tar(path, False)
    made = open_index(path)
    before = path.stat()
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # a clock of some milliseconds
        in_one_tar(path, True)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (
        before.st_ino, before.st_size, before.st_mtime_ns,
    )  # fmt: skip
    assert open_index(path).length.tolist()[:2] == made.length.tolist()[1::-1]


def test_one_of_many_shards_replaced_is_seen(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.tar" for number in range(3)]
    for path in paths:
        in_one_tar(path, False)
    made = open_index(paths)
    state = paths[1].stat()
    paths[1].unlink()
    in_one_tar(paths[1], True)
    os.utime(paths[1], ns=(state.st_atime_ns, state.st_mtime_ns))
    anew = open_index(paths)
    assert (np.flatnonzero(anew.length != made.length) // (CACHED_RECORDS + 2)).tolist() == [1, 1]


def test_a_cached_index_of_an_earlier_release_is_made_again(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.tar"
    big_tar(path)
    made = open_index(path)
    (kept,) = cache.iterdir()
    as_written_now = kept.read_bytes()
    kept.write_bytes(to_bytes(made))  # without the identity of its files
    assert same(open_index(path), made)
    assert kept.read_bytes() == as_written_now


def test_a_small_index_leaves_nothing_in_the_cache(tmp_path: Path, cache: Path) -> None:
    big_tar(tmp_path / "a.tar", 10)
    open_index(tmp_path / "a.tar")
    assert not cache.exists()


def test_an_index_beside_its_data_moves_with_its_folder(tmp_path: Path, cache: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    big_tar(folder / "a.tar")
    made = open_index(folder / "a.tar", cache="beside")
    assert sorted(os.listdir(folder)) == [".a.tar.penstock-index", "a.tar"]
    assert not cache.exists()
    folder.rename(tmp_path / "there")
    moved = open_index(tmp_path / "there")
    assert not cache.exists()
    assert moved.files == (str(tmp_path / "there" / "a.tar"),)
    assert np.array_equal(moved.offset, made.offset)


def test_a_cache_that_cannot_be_written_is_no_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    big_tar(tmp_path / "a.tar")
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(open_index(tmp_path / "a.tar")) == CACHED_RECORDS
    assert len(open_index(tmp_path / "a.tar", cache=tmp_path / "own")) == CACHED_RECORDS
    assert len(list((tmp_path / "own").iterdir())) == 1


def test_another_files_index_in_the_cache_is_not_taken(tmp_path: Path, cache: Path) -> None:
    big_tar(tmp_path / "a.tar")
    os.link(tmp_path / "a.tar", tmp_path / "b.tar")  # else it is another file, which is seen before
    open_index(tmp_path / "a.tar")
    (kept,) = cache.iterdir()
    place = cache_paths((str(tmp_path / "b.tar"),), "tar", None)[-1]
    place.write_bytes(kept.read_bytes())
    assert open_index(tmp_path / "b.tar").files == (str(tmp_path / "b.tar"),)


def test_kinds_are_told_by_the_first_bytes(tmp_path: Path) -> None:
    tarred(tmp_path / "one", samples(0, 1))
    (tmp_path / "two").write_bytes(tfrecords([b"1"]))
    lmdb.open(str(tmp_path / "three"), subdir=False).close()
    assert [kind_of(tmp_path / name) for name in ("one", "two", "three")] == [
        "tar", "tfrecord", "lmdb",
    ]  # fmt: skip


# --- decoders ------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    out = b""
    value &= (1 << 64) - 1
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def caffe(
    shape: tuple[int, int, int], label: int, data: bytes = b"", floats: Iterable[float] = ()
) -> bytes:
    out = b"".join(bytes([8 * n + 8]) + varint(size) for n, size in enumerate(shape))
    out += b"\x22" + varint(len(data)) + data if data else b""
    out += b"\x28" + varint(label)
    packed = struct.pack(f"<{len(list(floats))}f", *floats)
    return out + (b"\x32" + varint(len(packed)) + packed if packed else b"")


def test_a_datum_is_what_caffe_wrote() -> None:
    pixels = bytes(range(24))
    found = decode.datum(caffe((3, 2, 4), 281, pixels))
    assert found.array().tolist() == np.arange(24).reshape(3, 2, 4).tolist()
    assert (found.label, found.is_encoded) == (281, False)
    assert decode.datum(caffe((1, 1, 2), -5, floats=[0.5, 2.0])).array().tolist() == [[[0.5, 2.0]]]
    assert decode.datum(caffe((1, 1, 2), -5, floats=[0.5, 2.0])).label == -5
    with pytest.raises(FeedError, match=r"shape \(3, 2, 5\) with 24 values"):
        decode.datum(caffe((3, 2, 5), 0, pixels)).array()


@given(st.binary(max_size=80))
@settings(max_examples=300, deadline=None)
def test_whatever_bytes_a_record_has_it_is_named_and_not_run(data: bytes) -> None:
    assert decode.content_of(data)
    readers: list[Callable[[bytes], Any]] = [
        decode.datum, decode.npy, decode.sample, lambda record: decode.datum(record).array(),
    ]  # fmt: skip
    for read in readers:
        with contextlib.suppress(FeedError):
            read(data)


def test_pictures_and_arrays_come_out_as_they_went_in() -> None:
    image = pytest.importorskip("PIL.Image", reason="the extra [images] is not installed")
    pixels = np.random.default_rng(1).integers(0, 255, (5, 7, 3), np.uint8)
    out = io.BytesIO()
    image.fromarray(pixels).save(out, "PNG")
    assert np.array_equal(decode.decoded(out.getvalue()), pixels)
    assert decode.image(memoryview(out.getvalue())).shape == (5, 7, 3)
    with pytest.raises(FeedError, match="cannot be decoded"):
        decode.image(out.getvalue()[:40])
    saved = io.BytesIO()
    np.save(saved, pixels)
    assert np.array_equal(decode.decoded(saved.getvalue()), pixels)


def test_a_pickle_is_named_and_left_alone() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return (os.system, ("exit 1",))

    for record in (pickle.dumps({"a": 1}), pickle.dumps(Trap.__reduce__(Trap()))):
        assert decode.content_of(record) == decode.PICKLE
        with pytest.raises(FeedError, match="is a pickle, and to load one is to run it"):
            decode.decoded(record)
    saved = io.BytesIO()
    np.save(saved, np.array([{"a": 1}], object))
    with pytest.raises(FeedError, match="without running it"):
        decode.npy(saved.getvalue())


# --- penstock feed -------------------------------------------------------------------------------


def penstock(*words: Any, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [PENSTOCK, "feed", *map(str, words)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == status, done
    return done


def test_inspect_says_what_is_in_a_data_set(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "a"), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for n in range(20):
            txn.put(b"%06d" % n, caffe((3, 8, 8), n, bytes(192)))
    facts = json.loads(penstock("inspect", tmp_path / "a", "--json").stdout)
    assert facts["records"] == 20
    assert facts["lmdb"][0]["data_version"] == 1
    assert (facts["first_key"], facts["last_key"]) == ("000000", "000019")
    assert facts["looks_like"] == ["Caffe Datum"]
    tarred(tmp_path / "a.tar", [("1.txt", b"words"), ("1.jpg", b"\xff\xd8\xff")])
    assert "look like: txt (text) + jpg (JPEG)" in penstock("inspect", tmp_path / "a.tar").stdout
    said = penstock("inspect", tmp_path / "a").stdout
    assert "lmdb: 20 records" in said
    assert "look like: Caffe Datum" in said


def unescaped(text: str) -> bytes:
    """Return the key that `inspect --records --csv` wrote, without the ' before a formula."""
    text = text.removeprefix("'") if text[1:].startswith(FORMULA) else text
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1")


HOSTILE = [b"a,b", b'a"b', b"line\nline", b"\x1b[2Jgone", b"\\x41", b"\xff\x00", b" ", b"=1+1"]


def test_inspect_lists_each_records_bounds(tmp_path: Path) -> None:
    path = tmp_path / "a.mdb"
    with lmdb.open(str(path), subdir=False, map_size=1 << 26) as env, env.begin(write=True) as txn:
        for number in range(5000):  # more than are printed at once
            txn.put(b"%06d" % number, b"x" * (number % 300))
        for number, key in enumerate(HOSTILE):
            txn.put(key, b"y" * (5000 + number))
    index = open_index(path)
    said = penstock("inspect", path, "--records", "--csv").stdout
    assert said.replace("\n", "").isprintable()
    header, *rows = csv.reader(io.StringIO(said))
    assert header == ["key", "file", "offset", "length"]
    assert len(said.splitlines()) == len(rows) + 1 == len(index) + 1
    assert [(unescaped(key), file, int(at), int(n)) for key, file, at, n in rows] == [
        (index.key(record), str(path), index.offset[record], index.length[record])
        for record in range(len(index))
    ]
    data = path.read_bytes()
    with lmdb.open(str(path), subdir=False, readonly=True, lock=False) as env, env.begin() as txn:
        for key, _, at, n in rows[:: len(rows) // 50]:
            assert data[int(at) : int(at) + int(n)] == txn.get(unescaped(key))
    lines = penstock("inspect", path, "--records").stdout.splitlines()
    assert len(lines) == len(index)
    assert [line.split()[:3] for line in lines] == [
        [f"{int(at):,}", f"{int(n):,}", file] for _, file, at, n in rows
    ]
    assert [line.split("  ")[-1] for line in lines if "[2J" in line] == ["\\x1b[2Jgone"]


def test_inspect_lists_an_empty_set_and_refuses_options_that_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"")
    assert penstock("inspect", tmp_path, "--records").stdout == ""
    listed = penstock("inspect", tmp_path, "--records", "--csv").stdout
    assert listed == "key,file,offset,length\n"
    assert "--records --csv" in penstock("inspect", tmp_path, "--csv", status=2).stderr
    assert (
        "--records --csv" in penstock("inspect", tmp_path, "--json", "--records", status=2).stderr
    )


def test_an_empty_file_of_a_folder_is_a_record_that_verify_names(tmp_path: Path) -> None:
    for name, size in (("a.jpg", 0), ("a.txt", 0), ("b.jpg", 3)):
        (tmp_path / name).write_bytes(bytes(size))
    assert open_index(tmp_path).length.tolist() == [0, 0, 3]
    checked = verify.check(tmp_path)
    assert (checked.n_records, checked.n_bytes) == (3, 3)
    assert [problem.what for problem in checked.problems] == ["(a.jpg) is empty"]
    assert "a.jpg) is empty" in penstock("verify", tmp_path, status=1).stdout
    (tmp_path / "a.jpg").write_bytes(b"\xff\xd8\xff")
    said = penstock("verify", tmp_path).stdout
    assert "contents not checked" in said
    assert "nothing is wrong" not in said


def test_what_is_left_out_is_told_by_inspect_and_verify(tmp_path: Path) -> None:
    with_others(tmp_path / "a.tar")
    for command in ("inspect", "verify"):
        said = penstock(command, tmp_path / "a.tar").stdout
        assert "in no record: 10 files without an extension (a.tar/train/README, a.tar" in said
        assert "in no record: 2 links (a.tar/train/link.jpg, a.tar/train/hard.jpg)" in said
        assert "nothing is wrong" not in said
        told = json.loads(penstock(command, tmp_path / "a.tar", "--json").stdout)["left_out"]
        assert sum(each["n"] for each in told) == 16


def test_what_cannot_be_asked_is_no_damage_and_what_is_unknown_is_not_zero(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for command in ("inspect", "verify", "bench"):
        said = penstock(command, tmp_path / "empty", status=2)
        assert (said.stdout, "no file in it" in said.stderr) == ("", True)
    for name, data in (
        ("a.lmdb", b"garbage" * 999),
        ("b.tar", b"garbage" * 99),
        ("c.tfrecord", b"g"),
    ):
        (tmp_path / name).write_bytes(data)
        said = penstock("verify", tmp_path / name, status=1).stdout
        assert "an unknown number of records in 1 file: 1 problem" in said
        assert " 0 records" not in said
        for command in ("inspect", "bench"):
            assert name in penstock(command, tmp_path / name, status=2).stderr
    facts = json.loads(penstock("verify", tmp_path / "b.tar", "--json", status=1).stdout)
    assert (facts["n_files"], facts["n_unknown"], facts["n_records"]) == (1, 1, None)
    tarred(tmp_path / "d.tar", [("1.jpg", b"x")])
    said = penstock("verify", tmp_path / "b.tar", tmp_path / "d.tar", status=1).stdout
    assert "1 record, 513 B in 1 file, an unknown number in 1 more: 1 problem" in said


def test_what_is_asked_wrongly_is_no_damage_and_a_folder_is_no_file(tmp_path: Path) -> None:
    tarred(tmp_path / "s.tar", [("1.jpg", b"x")])
    said = penstock("verify", "--database", "images", tmp_path / "s.tar", status=2)
    assert (said.stdout, "only an LMDB has databases" in said.stderr) == ("", True)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.jpg").write_bytes(b"x")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a")
    said = penstock("verify", tmp_path / "a", status=2)
    assert (said.stdout, "loop is reached twice" in said.stderr) == ("", True)
    (tmp_path / "a" / "loop").unlink()
    (tmp_path / "a" / "2.jpg").symlink_to(tmp_path / "gone.jpg")
    said = penstock("verify", tmp_path / "a", status=1)
    assert "an unknown number of records in 1 folder: 1 problem" in said.stdout
    said = penstock("verify", tmp_path / "a", tmp_path / "b", status=1)
    assert "1 record, 1 B in 1 file, an unknown number in 1 more folder: 1" in said.stdout


def test_verify_says_at_once_what_may_not_be_read() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own folders are their owner's alone
        for name in ("1.tar", "2.tar"):
            tarred(Path(folder) / name, samples(0, 1))
        (Path(folder) / "set").mkdir()
        for name in ("1.jpg", "2.jpg"):
            (Path(folder) / "set" / name).write_bytes(b"x")
        for name in ("", "set"):
            (Path(folder) / name).chmod(0o755)
        for name in ("2.tar", "set/2.jpg"):
            (Path(folder) / name).chmod(0)
        (Path(folder) / "1.tar").write_bytes(b"damaged")
        was = os.geteuid()
        try:
            os.seteuid(was or NOBODY)
            for asked in ([Path(folder, "1.tar"), Path(folder, "2.tar")], Path(folder, "set")):
                with pytest.raises(FeedError, match=r"2\..*Permission denied"):
                    verify.check(asked)
        finally:
            os.seteuid(was)


def test_verify_says_what_is_damaged_by_its_status_too(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.tfrecord").write_bytes(tfrecords([b"x" * 100] * 5))
    assert "15 records" in penstock("verify", tmp_path).stdout
    data = bytearray((tmp_path / "1.tfrecord").read_bytes())
    data[2 * 116 + 30] ^= 1
    (tmp_path / "1.tfrecord").write_bytes(data)
    (tmp_path / "2.tfrecord").write_bytes(data[:50])
    said = penstock("verify", tmp_path, status=1).stdout
    assert "1.tfrecord: record 2 has not the sum" in said
    assert "2.tfrecord" in said
    facts = json.loads(penstock("verify", tmp_path, "--json", status=1).stdout)
    assert len(facts["problems"]) == 2
    gone = penstock("verify", tmp_path / "gone", status=2)
    assert "no such file" in gone.stderr
    assert len(gone.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "other", ["a.tfrecord", "shard.tar", "cat.JPEG", "class1/cat.png", "more.lmdb/data.mdb"]
)
def test_an_lmdb_among_other_records_is_refused_and_among_labels_is_not(
    tmp_path: Path, other: str
) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"1")
    for name in ("README.md", "labels.pkl", "classes.csv", "lock.mdb", ".hidden.tar"):
        (tmp_path / name).touch()
    assert len(open_index(tmp_path)) == 1
    (tmp_path / other).parent.mkdir(exist_ok=True)
    (tmp_path / other).touch()
    with pytest.raises(FeedError, match=f"other records, such as .*{other}"):
        open_index(tmp_path)
    assert len(open_index(tmp_path / "data.mdb")) == 1


def test_verify_refuses_what_is_not_read_here_and_calls_it_no_damage(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path / "many"), map_size=1 << 20, max_dbs=2) as env:
        for name, is_dup in ((b"images", False), (b"labels", True)):
            with env.begin(write=True, db=env.open_db(name, dupsort=is_dup)) as txn:
                txn.put(b"a", b"1")
    for options in ([], ["--database", "labels"], ["--database", "none"]):
        said = penstock("verify", tmp_path / "many", *options, status=2)
        assert (said.stdout, len(said.stderr.splitlines())) == ("", 1)
        assert "--database NAME" in said.stderr or "'images', 'labels'" in said.stderr
    assert "1 record," in penstock("verify", tmp_path / "many", "--database", "images").stdout
