"""Data sets: sizes as published, containers read by their own libraries, never half of one."""

import io
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from test_lab_studies import result_of

from fixtures import PENSTOCK
from penstock.cli import cli
from penstock.errors import TierError
from penstock.feed import tfrecord
from penstock.places import tiers
from penstock_lab import data, ladder, provenance, sets
from penstock_lab.data import FORMS, KINDS, make, plan
from penstock_lab.folders import scratch

# Enough records that a quantile more or less is less than 2 %.
SCALES = {"imagenet": 0.002, "imagenet-alexnet": 0.02, "cifar10": 0.02}


@pytest.mark.parametrize("kind", KINDS)
def test_count_median_and_sum_are_within_2_per_cent_of_what_was_published(kind: str) -> None:
    published = KINDS[kind]
    sizes = plan(kind, scale=SCALES.get(kind, 1.0)).sizes
    assert len(sizes) == round(published.n * SCALES.get(kind, 1.0))
    assert statistics.median(sizes) == pytest.approx(published.median_bytes, rel=0.02)
    if published.total_bytes:
        assert sum(sizes) * published.n / len(sizes) == pytest.approx(
            published.total_bytes, rel=0.02
        )


def test_the_malware_files_below_2_mb_are_as_many_and_as_large_as_published() -> None:
    # tf-Darshan 2020, section on staging: about 4,420 files below 2 MB, 3.7 GB of 48 GB.
    small = [size for size in plan("malware").sizes if size < 2e6]
    assert len(small) == pytest.approx(4420, rel=0.02)
    assert sum(small) == pytest.approx(3.7e9, rel=0.02)


@pytest.mark.parametrize("kind", ["caltech101", "malware", "cifar10"])
def test_the_files_have_the_planned_sizes_and_classes(kind: str, tmp_path: Path) -> None:
    planned = plan(kind, scale={"malware": 0.0005}.get(kind, 0.005))
    made = make(planned, tmp_path / "set")
    if kind == "cifar10":
        whole = b"".join(path.read_bytes() for path in sorted((tmp_path / "set").glob("data_*")))
        labels = [whole[place] for place in range(0, len(whole), 3073)]
        assert labels == list(planned.labels[: len(labels)])
        total = sum(path.stat().st_size for path in (tmp_path / "set").glob("*.bin"))
        assert total == 300 * 3073 == made.payload_bytes
        return
    files = {int(path.stem): path for path in (tmp_path / "set").rglob("class-*/*")}
    assert sorted(files) == list(range(len(planned.sizes)))
    for number, path in files.items():
        assert path.stat().st_size == planned.sizes[number]
        assert path.parent.name == f"class-{planned.labels[number]:04}"


def test_every_jpeg_decodes_and_no_two_are_the_same(tmp_path: Path) -> None:
    make(plan("caltech101", scale=0.01), tmp_path / "set")
    contents = [path.read_bytes() for path in (tmp_path / "set").rglob("*.jpg")]
    for content in contents:
        image = Image.open(io.BytesIO(content))
        image.load()
        assert image.mode == "RGB"
    assert len(set(contents)) == len(contents) == 91


@given(st.integers(1500, 400_000), st.integers(0, 7))
@settings(max_examples=25, deadline=None)
def test_a_jpeg_of_any_size_has_that_size_and_decodes(size: int, label: int) -> None:
    content = data._pictures(1).make(size, label, 5)
    assert len(content) == size
    Image.open(io.BytesIO(content)).load()


def test_lmdb_tar_and_folder_hold_the_same_records(tmp_path: Path) -> None:
    for form in ("folder", "lmdb", "tar"):
        make(plan("caltech101", form, 0.005), tmp_path / form)
    files = {int(path.stem): path.read_bytes() for path in (tmp_path / "folder").rglob("*.jpg")}
    database = lmdb.open(str(tmp_path / "lmdb"), readonly=True, lock=False)
    with database, database.begin() as transaction:
        records = {int(key): bytes(value) for key, value in transaction.cursor()}
    assert records == files
    (shard,) = (tmp_path / "tar").glob("*.tar")
    with tarfile.open(shard) as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
        read = {name: file.read() for name, file in members.items() if file}
    assert {int(n[:-4]): c for n, c in read.items() if n.endswith(".jpg")} == files
    labels = plan("caltech101", "tar", 0.005).labels
    assert [int(c) for n, c in sorted(read.items()) if n.endswith(".cls")] == list(labels)


def test_tensorflow_reads_the_tfrecords(tmp_path: Path) -> None:
    tf = pytest.importorskip("tensorflow", reason="TensorFlow is not installed: make setup")
    make(plan("caltech101", "tfrecord", 0.002), tmp_path / "set")
    make(plan("caltech101", "folder", 0.002), tmp_path / "folder")
    files = {int(path.stem): path.read_bytes() for path in (tmp_path / "folder").rglob("*.jpg")}
    features = {
        "image/encoded": tf.io.FixedLenFeature([], tf.string),
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    }
    (shard,) = map(str, (tmp_path / "set").glob("*.tfrecord"))
    examples = [
        tf.io.parse_single_example(record, features) for record in tf.data.TFRecordDataset(shard)
    ]
    labels = plan("caltech101", scale=0.002).labels
    assert [int(example["image/class/label"]) for example in examples] == list(labels)
    encoded = [example["image/encoded"].numpy() for example in examples]
    assert encoded == [files[number] for number in range(len(files))]


def test_records_go_on_in_the_next_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "SHARD_BYTES", 200_000)
    planned = plan("caltech101", "tar", 0.005)
    make(planned, tmp_path / "set")
    shards = sorted((tmp_path / "set").glob("*.tar"))
    assert len(shards) > 2
    numbers = []
    for shard in shards:
        with tarfile.open(shard) as archive:
            mine = [member for member in archive if member.name.endswith(".jpg")]
            assert sum(member.size for member in mine) <= 200_000
            numbers += [int(member.name[:-4]) for member in mine]
    assert numbers == list(range(len(planned.sizes)))


@pytest.mark.parametrize("form", FORMS)
def test_one_seed_makes_the_same_bytes_and_another_makes_others(form: str, tmp_path: Path) -> None:
    def content(name: str, seed: int) -> dict[str, bytes]:
        make(plan("cifar10", form, 0.001, seed), tmp_path / name)
        # LMDB's meta page holds an address of the writer's memory.
        skipped = 8192 if form == "lmdb" else 0
        paths = [path for path in (tmp_path / name).rglob("*") if path.name != "dataset.json"]
        return {path.name: path.read_bytes()[skipped:] for path in paths if path.is_file()}

    first = content("a", 1)
    assert content("b", 1) == first
    assert content("c", 2) != first


# CRC-32C, by the examples of RFC 3720 and bit by bit


def crc32c(text: bytes) -> int:
    data = np.frombuffer(text, np.uint8)
    return int(tfrecord.crc32c(data, np.array([0]), np.array([len(text)]))[0])


@pytest.mark.parametrize(
    ("text", "crc"),
    [
        (b"", 0),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_the_checksum_is_that_of_the_rfc(text: bytes, crc: int) -> None:
    assert crc32c(text) == crc


@given(st.binary(max_size=700))
def test_the_checksum_is_the_polynomials_remainder(text: bytes) -> None:
    register = 0xFFFFFFFF
    for byte in text:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    assert crc32c(text) == register ^ 0xFFFFFFFF


@given(st.lists(st.integers(0, 20_000) | st.integers(0, 5), min_size=1, max_size=9))
@settings(max_examples=60, deadline=None)
def test_parts_of_any_length_have_the_sums_that_another_library_has(
    lengths: list[int],
) -> None:
    other = pytest.importorskip("crc32c")
    chance = random.Random(7)
    content = chance.randbytes(20_000)
    start = [chance.randint(0, len(content) - length) for length in lengths]
    sums = tfrecord.crc32c(np.frombuffer(content, np.uint8), np.array(start), np.array(lengths))
    parts = [content[at : at + length] for at, length in zip(start, lengths, strict=True)]
    assert sums.tolist() == [other.crc32c(part) for part in parts]


# Refusals, and remains


def test_half_a_data_set_is_never_seen(tmp_path: Path) -> None:
    def stop(what: str, share: float) -> None:
        if share > 0.5:
            raise KeyboardInterrupt

    for form in FORMS:
        with pytest.raises(KeyboardInterrupt):
            make(plan("cifar10", form, 0.002), tmp_path / form, stop)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_attempt_left_is_replaced(tmp_path: Path) -> None:
    with scratch(tmp_path / "set.partial") as work:
        shutil.copytree(work, tmp_path / "left")
    (tmp_path / "left" / "junk").write_text("x")
    (tmp_path / "left").rename(tmp_path / "set.partial")
    make(plan("cifar10", "tar", 0.001), tmp_path / "set")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set"]
    assert sorted(os.listdir(tmp_path / "set")) == ["000000.tar", "dataset.json"]


def test_what_others_call_partial_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "set.partial").mkdir()
    (tmp_path / "set.partial" / "mine").write_text("x")
    with pytest.raises(TierError, match="was not made by penstock bench"):
        make(plan("cifar10", "tar", 0.001), tmp_path / "set")
    assert (tmp_path / "set.partial" / "mine").read_text() == "x"
    assert not (tmp_path / "set").exists()


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("x")
    with pytest.raises(TierError, match="is there already"):
        make(plan("cifar10", scale=0.001), tmp_path)
    assert os.listdir(tmp_path) == ["mine"]


def test_without_room_nothing_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "free_bytes", lambda folder: 1_000_000)
    with pytest.raises(
        TierError, match=r"needs 1\.84 MB, and 900 kB can be used there; name another folder"
    ):
        make(plan("cifar10", scale=0.01), tmp_path / "set")
    assert list(tmp_path.iterdir()) == []


@contextmanager
def full_beyond(n_bytes: int) -> Iterator[None]:
    """No file grows further, as on a disk filled meanwhile by others."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "written",
    [
        lambda folder: make(plan("cifar10", "lmdb", 0.01), folder),
        lambda folder: ladder.make_lmdb(folder, 2_000_000),
        lambda folder: provenance.measure(folder, 100, (30_670,)),
    ],
)
def test_a_disk_that_is_full_meanwhile_is_said_and_nothing_stays(
    tmp_path: Path, written: Callable[[Path], object]
) -> None:
    with (
        full_beyond(500_000),
        pytest.raises(TierError, match="cannot be written, the disk may be full"),
    ):
        written(tmp_path / "set")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_room_for_the_largest_of_the_formulas_lmdbs_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "free_bytes", lambda folder: 1_000_000)
    done = CliRunner().invoke(cli, ["bench", "provenance", str(tmp_path / "new")])
    assert isinstance(done.exception, TierError)
    assert "name another folder, or fewer --records" in str(done.exception)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("n", [100, 1000])
def test_the_formulas_lmdbs_are_no_larger_than_what_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    sizes: list[int] = []
    compared = provenance._compared

    def looked_at(path: Path, *rest: Any) -> Any:
        sizes.append((path / "data.mdb").stat().st_size)
        return compared(path, *rest)

    monkeypatch.setattr(provenance, "_compared", looked_at)
    provenance.measure(tmp_path / "new", n, (30_670,))
    assert len(sizes) == len(provenance.HISTORIES)
    assert 0.7 * provenance.needed_bytes(n) < max(sizes) <= provenance.needed_bytes(n)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("mnist",), "no such data set; there are: imagenet"),
        (("cifar10", "zip"), "no such form"),
        (("cifar10", "tar", 0.0), "a scale of 0"),
        (("cifar10", "tar", 2.0), "a scale of 2"),
        (("cifar10", "tar", float("nan")), "a scale of nan"),
    ],
)
def test_what_cannot_be_planned_is_refused(words: tuple[Any, ...], said: str) -> None:
    with pytest.raises(TierError, match=said):
        plan(*words)


def test_much_is_not_written_without_a_yes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "free_bytes", lambda _: 10**12)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["bench", "data", "malware", "set"], input="n\n")
    assert done.exit_code == 130
    assert "set: 48.0 GB will be written; go on?" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_says_what_was_made(tmp_path: Path) -> None:
    words = [PENSTOCK, "bench", "data", "cifar10", "set", "--scale", "0.001", "--as", "lmdb"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    said = "set: 60 records, 184 kB (sum +0.0%), median 3.07 kB (+0.0%), seed 1\n"
    assert done.stdout == said
    assert json.loads((tmp_path / "set" / "dataset.json").read_text())["records"] == 60


@pytest.mark.experiment(study="data")
@pytest.mark.slow
def test_every_set_and_every_form_is_counted_again_and_is_as_published(tmp_path: Path) -> None:
    command = [PENSTOCK, "bench", "data", "all", tmp_path / "out", "--scale", "0.01"]
    done = subprocess.run([*command, "--most", "20MB"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    points = result_of(tmp_path / "out", "data")["points"]
    values_of = {tuple(point["factors"].values()): point["values"] for point in points}
    assert set(values_of) == {
        *((name, "folder", kind.content) for name, kind in KINDS.items()),
        *((name, form, KINDS[name].content) for name in sets.IN_EVERY_FORM for form in FORMS),
        *(("imagenet", form, "raw") for form in FORMS),
    }
    for values in values_of.values():
        assert abs(values["median_off"]) < 0.02
        assert abs(values["total_off"] or 0) < 0.02
        assert values["count_off"] == 0
        assert values["records"] >= 91  # a hundredth of Caltech-101's
    assert not (tmp_path / "out" / "set").exists()


@pytest.mark.parametrize("form", FORMS)
def test_what_is_counted_is_what_was_planned(form: str, tmp_path: Path) -> None:
    for kind, is_raw in (("caltech101", False), ("imagenet", True), ("cifar10", False)):
        planned = plan(kind, form, 40 / KINDS[kind].n, is_raw=is_raw)
        make(planned, tmp_path / kind)
        sizes = sets.sizes_in(tmp_path / kind, form, planned.kind.content)
        assert sorted(sizes) == sorted(planned.sizes)


def test_a_raw_record_is_a_picture_of_its_own(tmp_path: Path) -> None:
    make(plan("imagenet", "folder", 24 / KINDS["imagenet"].n, is_raw=True), tmp_path / "set")
    records = [path.read_bytes() for path in (tmp_path / "set").rglob("*.rgb")]
    assert {len(record) for record in records} == {256 * 256 * 3}
    assert len(set(records)) == 24
    # Noise over shapes: neither flat nor random.
    assert 10 < np.frombuffer(records[0], np.uint8).std() < 110
    with pytest.raises(TierError, match="malware: is no set of JPEG files"):
        plan("malware", is_raw=True)


def test_a_damaged_set_is_refused_when_it_is_counted(tmp_path: Path) -> None:
    (tmp_path / "000000.tar").write_bytes(b"no archive")
    with pytest.raises(TierError, match="cannot be read as tar"):
        sets.sizes_in(tmp_path, "tar", "jpeg")
