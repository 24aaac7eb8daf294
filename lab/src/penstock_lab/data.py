"""Data sets with the sizes that studies published: made here, with a seed, in any container.

Knows the published figures and the formats of containers; reads none.  Sizes are quantiles of the
distribution in a shuffled order, not draws: the median and the sum equal the published figures
however few files are made.
"""

from __future__ import annotations

import io
import json
import math
import random
import struct
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import NormalDist, median
from typing import Any, NamedTuple

import numpy as np

from penstock.errors import TierError
from penstock.feed.tfrecord import framed
from penstock.words import show
from penstock_lab.folders import refuse_without_room, scratch
from penstock_lab.needs import imported

__all__ = [
    "FORMS",
    "KINDS",
    "RAW_BYTES",
    "SUFFIX",
    "DataPlan",
    "DataSet",
    "PublishedSet",
    "example_of",
    "made",
    "make",
    "needed_bytes",
    "needs",
    "plan",
]

PhaseProgress = Callable[[str, float], None]

FORMS = ("folder", "lmdb", "tfrecord", "tar")
SHARD_BYTES = 256 << 20  # WebDataset's and TensorFlow's guides: 100 MB to 1 GB a shard

# A JPEG is no smaller than its tables and a few blocks.
SMALLEST_JPEG = 1500
# Pictures of the pool: each is larger than the previous picture by this factor; comment segments,
# which decoders skip, fill the rest.
POOL_STEP = 1.08
NEAR = 0.96  # of the step: a picture of this size is large enough
SEARCHES = 8  # widths to try
# Bae 2019's raw records: 256 x 256 pixels of three bytes.
RAW_SIDE = 256
RAW_BYTES = RAW_SIDE * RAW_SIDE * 3
RAW_FROM_BYTES = 30_600  # the JPEG to decode: about the study's size for as many pixels
COMMENT_BYTES = 65_533  # and two bytes for the length
HEX_POOL_BYTES = 8 << 20


class SizeShare(NamedTuple):
    """A share of the records with log-normal sizes.  mean: else the mean by sigma."""

    share: float
    median_bytes: float
    sigma: float
    mean_bytes: float | None = None
    most_bytes: float = math.inf


@dataclass(frozen=True, slots=True)
class PublishedSet:
    """A study's published data.  total_bytes: None where only the median was given."""

    name: str
    source: str
    n: int
    classes: int
    content: str
    parts: tuple[SizeShare, ...]
    median_bytes: float
    total_bytes: float | None = None


def _images(
    name: str, source: str, n: int, classes: int, median_bytes: float, total: float | None
) -> PublishedSet:
    """Log-normal; sigma from the sum where published, else ImageNet's sigma, see jpegs.py."""
    mean = total / n if total else None
    sigma = math.sqrt(2 * math.log(mean / median_bytes)) if mean else 0.5
    part = SizeShare(1.0, median_bytes, sigma, mean)
    return PublishedSet(name, source, n, classes, "jpeg", (part,), median_bytes, total)


# kB and GB are powers of ten.  Where a study says "about", so do we.
KINDS = {
    kind.name: kind
    for kind in (
        _images("imagenet", "ImageNet-1K's train set; the median of Chien 2018's subset",
                1_281_167, 1000, 112e3, None),
        _images("imagenet-chien", "Chien 2018, thread scaling", 16_384, 1000, 112e3, None),
        _images("imagenet-stream", "tf-Darshan 2020, STREAM", 12_800, 1000, 76e3, 1.0e9),
        _images("imagenet-alexnet", "tf-Darshan 2020, AlexNet", 128_000, 1000, 88e3, 11.6e9),
        _images("caltech101", "Chien 2018, mini-application; Caltech-101's own listing",
                9_144, 102, 12e3, None),
        # A single log-normal cannot have a median of 4 MB, a mean of 4.4 MB and 4,420 files below 2
        # MB with 3.7 GB: two can.  The large files' median and sigma follow from the median of all.
        PublishedSet("malware", "tf-Darshan 2020, Kaggle's BIG 2015", 10_868, 9, "hex",
             (SizeShare(4420 / 10_868, 0.65e6, 0.7, 3.7e9 / 4420, 1.99e6),
              SizeShare(6448 / 10_868, 6.23e6, 0.441, 44.3e9 / 6448)),
             4e6, 48e9),
        PublishedSet("cifar10", "CIFAR-10's binary version", 60_000, 10, "pixels",
             (SizeShare(1.0, 3073, 0.0),), 3073, 60_000 * 3073),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataPlan:
    """The records to make: sizes and labels in order."""

    kind: PublishedSet
    form: str
    scale: float
    seed: int
    sizes: tuple[int, ...]
    labels: tuple[int, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(self.sizes)

    @property
    def disk_bytes(self) -> int:
        """Return about the size on a disk: pages of LMDB, blocks of tar and of a file system."""
        block = {"folder": 4096, "lmdb": 4096, "tar": 512, "tfrecord": 1}[self.form]
        per = {"folder": 0, "lmdb": 16, "tar": 2048, "tfrecord": 120}[self.form]
        if self.kind.content == "pixels" and self.form == "folder":
            block = 1
        return sum(-(-(size + per) // block) * block for size in self.sizes)


@dataclass(frozen=True, slots=True)
class DataSet:
    """The made data set, and its distance from the published figures."""

    kind: str
    form: str
    seed: int
    scale: float
    source: str
    records: int
    payload_bytes: int
    median_bytes: float
    median_deviation: float
    total_deviation: float | None

    def words(self) -> str:
        total = "" if self.total_deviation is None else f" (sum {self.total_deviation:+.1%})"
        return (
            f"{self.records:,} records, {show(self.payload_bytes, 'B')}{total}, median "
            f"{show(self.median_bytes, 'B')} ({self.median_deviation:+.1%}), seed {self.seed}"
        )


# --- sizes ----------------------------------------------------------------------------------------


def plan(
    kind: str, form: str = "folder", scale: float = 1.0, seed: int = 1, is_raw: bool = False
) -> DataPlan:  # fmt: skip
    """The records of a data set, scale times as many as published.  is_raw: pixels in place of
    each JPEG.  Raises TierError."""
    if kind not in KINDS:
        raise TierError(f"{kind}: no such data set; there are: {', '.join(KINDS)}")
    if form not in FORMS:
        raise TierError(f"{form}: no such form; there are: {', '.join(FORMS)}")
    published = KINDS[kind]
    if is_raw:
        if published.content != "jpeg":
            raise TierError(f"{kind}: is no set of JPEG files that could be raw")
        published = replace(
            published, content="raw", parts=(SizeShare(1.0, RAW_BYTES, 0.0),),
            median_bytes=RAW_BYTES, total_bytes=published.n * RAW_BYTES,
            source=f"{published.source}; raw as in Bae 2019",
        )  # fmt: skip
    n = round(published.n * scale) if 0 < scale <= 1 else 0
    if n < 1:
        raise TierError(f"a scale of {scale:g}: more than 0, so that a record is left, at most 1")
    least = SMALLEST_JPEG if published.content == "jpeg" else 1
    sizes: list[int] = []
    for part in published.parts:
        count = (
            min(n - len(sizes), round(n * part.share))
            if part != published.parts[-1]
            else n - len(sizes)
        )
        sizes += [max(least, size) for size in _sizes(part, count)]
    labels = [number % published.classes for number in range(n)]
    chance = random.Random(seed)
    chance.shuffle(sizes)
    chance.shuffle(labels)
    return DataPlan(published, form, scale, seed, tuple(sizes), tuple(labels))


def _sizes(part: SizeShare, n: int) -> list[int]:
    """Return n quantiles, with the tail stretched until the mean is the published mean."""
    if not n:
        return []
    normal = NormalDist()
    drawn = [
        math.exp(part.sigma * normal.inv_cdf((number + 0.5) / n)) for number in range(n)
    ] if part.sigma else [1.0] * n  # fmt: skip
    stretch = _stretch(part, drawn) if part.mean_bytes and part.sigma else 1.0
    return [round(_size(part, ratio, stretch)) for ratio in drawn]


def _size(part: SizeShare, ratio: float, stretch: float) -> float:
    """Move only sizes above the median: the median stays."""
    return min(part.most_bytes, part.median_bytes * (ratio**stretch if ratio > 1 else ratio))


def _stretch(part: SizeShare, drawn: Sequence[float]) -> float:
    low, high = 0.0, 4.0
    assert part.mean_bytes is not None
    for _ in range(40):
        middle = (low + high) / 2
        mean = math.fsum(_size(part, ratio, middle) for ratio in drawn) / len(drawn)
        low, high = (middle, high) if mean < part.mean_bytes else (low, middle)
    return (low + high) / 2


# --- content --------------------------------------------------------------------------------------


def _content(planned: DataPlan) -> Callable[[int], bytes]:
    """Make the bytes of record number n, all different, of exactly the planned size."""
    chance = random.Random(planned.seed + 1)
    if planned.kind.content == "jpeg":
        pictures = _pictures(planned.seed)
        return lambda number: pictures.make(planned.sizes[number], planned.labels[number], number)
    if planned.kind.content == "raw":
        return _raw(_pictures(planned.seed), planned.labels)
    if planned.kind.content == "hex":
        pool = _hex_lines(chance)

        def listing(number: int) -> bytes:
            start = chance.randrange(len(pool) // 2)
            size = planned.sizes[number]
            return (pool[start:] + pool * (size // len(pool) + 1))[:size]

        return listing
    return lambda number: bytes([planned.labels[number]]) + chance.randbytes(3072)


def _raw(pictures: _Pictures, labels: Sequence[int]) -> Callable[[int], bytes]:
    """Decode pictures; the first pixels of each are its number."""
    step = int(math.log(RAW_FROM_BYTES / SMALLEST_JPEG, POOL_STEP))
    pixels: dict[int, bytes] = {}

    def picture(number: int) -> bytes:
        tint = labels[number] % 8
        if tint not in pixels:
            pixels[tint] = pictures.pixels(step, tint)
        return struct.pack(">Q", number) + pixels[tint][8:]

    return picture


def _hex_lines(chance: random.Random) -> bytes:
    """As the .bytes files of BIG 2015: an address and sixteen bytes a line."""
    lines, address, size = [], 0x401000, 0
    while size < HEX_POOL_BYTES:
        line = f"{address:08X} {chance.randbytes(16).hex(' ').upper()}\r\n"
        lines.append(line)
        size += len(line)
        address += 16
    return "".join(lines).encode()


@lru_cache(maxsize=1)
def _pictures(seed: int) -> _Pictures:
    """Return one pool for all sets of a seed: a picture costs more time than writing a file."""
    return _Pictures(seed)


class _Pictures:
    """A pool of real pictures, each made at the first need; records differ by a comment."""

    def __init__(self, seed: int) -> None:
        from penstock_lab.jpegs import picture

        pillow = imported("PIL.Image", "making pictures")
        chance = random.Random(seed + 1)
        self._image, self._picture, self._seed = pillow, picture, chance.randrange(1 << 30)
        # Pillow's own noise knows no seed.  Three bytes' mean is bell-shaped enough; the factor 1.4
        # gives the deviation of 60, as in jpegs.py.
        bytes_ = np.frombuffer(chance.randbytes(3 << 22), np.uint8).reshape(3, 2048, 2048)
        grain = np.clip(127.5 + 1.4 * (bytes_.mean(axis=0) - 127.5), 0, 255).astype(np.uint8)
        self._noise = pillow.fromarray(grain)
        self._pool: dict[tuple[int, int], bytes] = {}

    def make(self, size: int, label: int, number: int) -> bytes:
        """Make a JPEG of exactly the size: a smaller picture, and comments behind the first
        marker."""
        step = int(math.log(max(size, SMALLEST_JPEG) / SMALLEST_JPEG, POOL_STEP))
        picture = self._made(step, label % 8)
        spare, mark, segments = size - len(picture), struct.pack(">Q", number), b""
        while spare >= 4:
            length = min(spare, COMMENT_BYTES + 4)
            text = (mark + bytes(length))[: length - 4]
            segments += b"\xff\xfe" + struct.pack(">H", length - 2) + text
            spare -= length
        # A marker may follow fill bytes: ITU-T T.81, B.1.1.2.
        return picture[:2] + segments + b"\xff" * spare + picture[2:]

    def pixels(self, step: int, tint: int) -> bytes:
        """A picture of the pool, decoded and resized."""
        with self._image.open(io.BytesIO(self._made(step, tint))) as picture:
            return bytes(picture.convert("RGB").resize((RAW_SIDE, RAW_SIDE)).tobytes())

    def _made(self, step: int, tint: int) -> bytes:
        """Return the largest picture that fits the step, or nearly: found once, by the width."""
        key = (step, tint)
        if key in self._pool:
            return self._pool[key]
        wanted = SMALLEST_JPEG * POOL_STEP**step
        best, low, high = b"", 8, 2001  # widths: a fitting width, a width that is too large
        side = min(2000, max(8, int((wanted * 2.7) ** 0.5)))
        for _ in range(SEARCHES):
            # The same draws for each width: only the width changes the size.
            chance = random.Random(self._seed * 1_000_003 + step * 8 + tint)
            picture = self._picture(self._image, self._noise, side, tint, chance)
            if len(picture) <= wanted:
                best, low = max(best, picture, key=len), side
            else:
                high = side
            guess = round(side * (0.98 * wanted / len(picture)) ** 0.5)
            side = guess if low < guess < high else (low + high) // 2
            if NEAR * wanted <= len(best) or high - low < 2:
                break
        self._pool[key] = best or self._made(step - 1, tint)
        return self._pool[key]


# --- containers -----------------------------------------------------------------------------------


def make(planned: DataPlan, folder: Path, progress: PhaseProgress | None = None) -> DataSet:
    """Make the data set in a new folder; complete or not at all.

    The data grows as FOLDER.partial and is renamed at the end; the remains of a killed attempt are
    removed.  Raises TierError: something is there, or no room; MissingDependency.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TierError(f"{folder}: is there already; name a folder that is not")
    refuse_without_room(folder, planned.disk_bytes)
    with scratch(folder.with_name(f"{folder.name}.partial")) as work:
        draft = work / "set"
        try:
            draft.mkdir()
            content = _content(planned)
            records = _told(((number, content(number)) for number in range(len(planned.sizes))),
                            planned, progress)  # fmt: skip
            sizes = _WRITERS[planned.form](planned, draft, records)
            data_set = _described(planned, sizes)
            (draft / "dataset.json").write_text(json.dumps(asdict(data_set), indent=1))
            if folder.exists():
                folder.rmdir()
            draft.replace(folder)
        except OSError as error:
            where = error.filename or draft
            raise TierError(f"{where}: cannot be written: {error.strerror}") from error
    return data_set


def needs(planned: DataPlan) -> dict[str, str]:
    """See needs.look_for."""
    pictures = {"PIL": "making pictures"} if planned.kind.content in ("jpeg", "raw") else {}
    return pictures | ({"lmdb": "--as lmdb"} if planned.form == "lmdb" else {})


def needed_bytes(sets: Mapping[str, int], folder: Path, seed: int = 1) -> int:
    """Return the bytes that `made` would write for so many records of each kind below FOLDER."""
    return sum(
        plan(kind, "folder", n / KINDS[kind].n, seed).disk_bytes
        for kind, n in sets.items()
        if not (folder / f"{kind}-{n}-{seed}" / "dataset.json").exists()
    )


def made(
    kind: str, folder: Path, n: int, seed: int = 1, progress: PhaseProgress | None = None
) -> Path:
    """Return the place of n records of a data set, as files below FOLDER; make missing files.

    Raises TierError: no room, fewer were published; MissingDependency.
    """
    place = folder / f"{kind}-{n}-{seed}"
    if not (place / "dataset.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        make(plan(kind, "folder", n / KINDS[kind].n, seed), place, progress)
    return place


def _told(
    records: Iterator[tuple[int, bytes]], planned: DataPlan, progress: PhaseProgress | None
) -> Iterator[tuple[int, bytes]]:
    total, done = planned.payload_bytes, 0
    for number, data in records:
        if progress and number % 16 == 0:
            progress(f"making {planned.kind.name} as {planned.form}", done / total)
        done += len(data)
        yield number, data


def _described(planned: DataPlan, sizes: Sequence[int]) -> DataSet:
    kind, total = planned.kind, sum(sizes)
    expected = kind.total_bytes * len(sizes) / kind.n if kind.total_bytes else None
    middle = median(sizes)
    return DataSet(
        kind.name, planned.form, planned.seed, planned.scale, kind.source, len(sizes), total,
        middle, middle / kind.median_bytes - 1, total / expected - 1 if expected else None,
    )  # fmt: skip


Records = Iterator[tuple[int, bytes]]
SUFFIX = {"jpeg": "jpg", "raw": "rgb", "hex": "bytes", "pixels": "bin"}


def _write_folder(planned: DataPlan, folder: Path, records: Records) -> list[int]:
    """Write a folder for each class; CIFAR-10 as its six batches of 10,000."""
    sizes = []
    if planned.kind.content == "pixels":
        each = max(1, len(planned.sizes) // 6)
        for number, data in records:
            batch = min(6, number // each + 1)
            name = "test_batch.bin" if batch == 6 else f"data_batch_{batch}.bin"
            with open(folder / name, "ab") as file:
                file.write(data)
            sizes.append(len(data))
        return sizes
    suffix = SUFFIX[planned.kind.content]
    for label in range(min(planned.kind.classes, len(planned.sizes))):
        (folder / f"class-{label:04}").mkdir()
    for number, data in records:
        place = folder / f"class-{planned.labels[number]:04}"
        place.mkdir(exist_ok=True)
        (place / f"{number:08}.{suffix}").write_bytes(data)
        sizes.append(len(data))
    return sizes


def _write_lmdb(planned: DataPlan, folder: Path, records: Records) -> list[int]:
    """Keys are numbers of eight digits, values the files' bytes, in key order, 1,000 a commit."""
    lmdb = imported("lmdb", "--as lmdb")
    room = 2 * planned.disk_bytes + (64 << 20)
    try:
        with closing(lmdb.open(str(folder), map_size=room, sync=False, lock=False)) as database:
            return _put(database, records)
    except lmdb.Error as error:
        raise TierError(f"{folder}: cannot be written, the disk may be full: {error}") from error


def _put(database: Any, records: Records) -> list[int]:
    sizes = []
    transaction = database.begin(write=True)
    try:
        for number, data in records:
            transaction.put(b"%08d" % number, data, append=True)
            sizes.append(len(data))
            if (number + 1) % 1000 == 0:
                transaction.commit()
                transaction = database.begin(write=True)
        transaction.commit()
    except BaseException:
        transaction.abort()
        raise
    database.sync(True)
    return sizes


def _write_tar(planned: DataPlan, folder: Path, records: Records) -> list[int]:
    """Write as WebDataset: members with a common name are a sample."""
    sizes: list[int] = []
    suffix = SUFFIX[planned.kind.content]
    for shard, group in enumerate(_shards(planned, records)):
        with tarfile.open(folder / f"{shard:06}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
            for number, data in group:
                for end, text in ((suffix, data), ("cls", b"%d" % planned.labels[number])):
                    member = tarfile.TarInfo(f"{number:08}.{end}")
                    member.size = len(text)
                    archive.addfile(member, io.BytesIO(text))
                sizes.append(len(data))
    return sizes


def _write_tfrecord(planned: DataPlan, folder: Path, records: Records) -> list[int]:
    """tf.train.Example with image/encoded and image/class/label."""
    sizes: list[int] = []
    for shard, group in enumerate(_shards(planned, records)):
        with open(folder / f"{shard:06}.tfrecord", "wb") as file:
            for number, data in group:
                label = planned.labels[number]
                example = example_of({"image/class/label": label, "image/encoded": data})
                file.write(framed(example))
                sizes.append(len(data))
    return sizes


_WRITERS: dict[str, Callable[[DataPlan, Path, Records], list[int]]] = {
    "folder": _write_folder,
    "lmdb": _write_lmdb,
    "tar": _write_tar,
    "tfrecord": _write_tfrecord,
}


def _shards(planned: DataPlan, records: Records) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Records in shards of about SHARD_BYTES; each is used up before the next is asked for."""
    waiting = next(records, None)
    while waiting is not None:
        first: tuple[int, bytes] = waiting
        rest: list[tuple[int, bytes] | None] = [None]

        def shard(
            begun: tuple[int, bytes] = first, left: list[tuple[int, bytes] | None] = rest
        ) -> Iterator[tuple[int, bytes]]:
            size = len(begun[1])
            yield begun
            for record in records:
                if size + len(record[1]) > SHARD_BYTES:
                    left[0] = record
                    return
                size += len(record[1])
                yield record

        yield shard()
        waiting = rest[0]


def example_of(features: Mapping[str, bytes | int]) -> bytes:
    """tensorflow/core/example/example.proto by hand: features = 1, feature = map entries of 1,
    Feature.bytes_list = 1 and Feature.int64_list = 3, packed; of each the values are 1."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, int):
            feature = _field(3, _field(1, _varint(value)))
        else:
            feature = _field(1, _field(1, value))
        entries += _field(1, _field(1, name.encode()) + _field(2, feature))
    return _field(1, entries)


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])
