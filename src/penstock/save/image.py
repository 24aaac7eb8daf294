"""Checkpoint files laid out in memory before their bytes are there: torch's zip, safetensors.

The memory of a snapshot *is* the file: arrays are copied straight to where the file has them, and
the rest (headers, checksums, directory) is filled in around them by another process.  Pure: bytes
and numbers in, bytes and numbers out; knows no framework.

The zip is the one of torch.save (stored records below one folder, each aligned to 64 bytes by an
extra field), with the arrays first: so an array's place does not depend on how long the pickle
is, which differs from save to save.  Readers go by the directory at the end.
"""

from __future__ import annotations

import itertools
import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import SaveError

__all__ = [
    "ImageLayout",
    "ZipRecord",
    "arrays_layout",
    "zip_directory",
    "zip_header",
    "zip_layout",
    "zip_tail",
]

FOLDER = "archive/"  # torch takes the name from the first record and looks for all others below it
DATA_ALIGNMENT = 64  # as torch.save; its readers may map the file and want aligned numbers
LIMIT = 0xFFFFFFFF  # of a field of 32 bits: what is in it says "look into the 64-bit extra field"
STORED_VERSION, ZIP64_VERSION = 20, 45
# 1980-01-01, the first day a zip knows: two saves of one state are the same bytes.
DOS_TIME, DOS_DATE = 0, 33
PADDING_ID = 0x4246  # "FB", torch's
ZIP64_ID = 1
SAFETENSORS_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class ZipRecord:
    """One record of the zip.  header: where its local header begins; offset: its first byte."""

    name: str
    header: int
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """Where n arrays lie in a file.  head: the bytes before them, where these are known already.

    size_bytes: up to the end of the last array.
    """

    offsets: tuple[int, ...]
    size_bytes: int
    head: bytes = b""
    records: tuple[ZipRecord, ...] = ()


def zip_layout(sizes: Sequence[int]) -> ImageLayout:
    """Where torch.save's records data/0, data/1 … of `sizes` bytes lie."""
    records = []
    position = 0
    for number, n_bytes in enumerate(sizes):
        record = _placed(f"{FOLDER}data/{number}", position, n_bytes)
        records.append(record)
        position = record.offset + n_bytes
    return ImageLayout(tuple(record.offset for record in records), position, records=tuple(records))


def _placed(name: str, position: int, n_bytes: int) -> ZipRecord:
    fixed = position + 30 + len(name) + (20 if n_bytes >= LIMIT else 0) + 4
    padding = -fixed % DATA_ALIGNMENT
    return ZipRecord(name, position, fixed + padding, n_bytes)


def zip_header(record: ZipRecord, checksum: int) -> bytes:
    """The local header, up to the record's first byte.  checksum: CRC-32 of the record."""
    is_long = record.n_bytes >= LIMIT
    shown = LIMIT if is_long else record.n_bytes
    name = record.name.encode()
    extra = struct.pack("<HHQQ", ZIP64_ID, 16, record.n_bytes, record.n_bytes) if is_long else b""
    padding = record.offset - record.header - 30 - len(name) - len(extra) - 4
    extra += struct.pack("<HH", PADDING_ID, padding) + b"Z" * padding
    return (
        struct.pack(
            "<IHHHHHIIIHH", 0x04034B50, ZIP64_VERSION if is_long else STORED_VERSION, 0, 0,
            DOS_TIME, DOS_DATE, checksum, shown, shown, len(name), len(extra),
        )
        + name
        + extra
    )  # fmt: skip


def zip_tail(
    position: int, pickled: bytes, checksum: Callable[[bytes], int]
) -> tuple[bytes, tuple[tuple[ZipRecord, int], ...]]:
    """The records after the arrays, which begin at `position`: the pickle and torch's small ones.

    Gives their bytes, headers included, and each with its checksum."""
    small = (
        ("data.pkl", pickled),
        (".format_version", b"1"),
        (".storage_alignment", str(DATA_ALIGNMENT).encode()),
        ("byteorder", b"little"),
        ("version", b"3\n"),
    )
    parts, placed = bytearray(), []
    for name, content in small:
        record = _placed(FOLDER + name, position + len(parts), len(content))
        crc = checksum(content)
        parts += zip_header(record, crc) + content
        placed.append((record, crc))
    return bytes(parts), tuple(placed)


def zip_directory(position: int, records: Sequence[tuple[ZipRecord, int]]) -> bytes:
    """The directory and the end of the file, to lie at `position`."""
    entries = b"".join(_entry(record, checksum) for record, checksum in records)
    n, size = len(records), len(entries)
    end = b""
    if n >= 0xFFFF or position >= LIMIT or size >= LIMIT:
        end = struct.pack(
            "<IQHHIIQQQQ", 0x06064B50, 44, ZIP64_VERSION, ZIP64_VERSION, 0, 0, n, n, size, position
        )
        end += struct.pack("<IIQI", 0x07064B50, 0, position + size, 1)
    shown = min(n, 0xFFFF)
    end += struct.pack(
        "<IHHHHIIH", 0x06054B50, 0, 0, shown, shown, min(size, LIMIT), min(position, LIMIT), 0
    )
    return entries + end


def _entry(record: ZipRecord, checksum: int) -> bytes:
    name = record.name.encode()
    shown, wide = record.n_bytes, b""
    if record.n_bytes >= LIMIT:
        shown = LIMIT
        wide += struct.pack("<QQ", record.n_bytes, record.n_bytes)
    if record.header >= LIMIT:
        wide += struct.pack("<Q", record.header)
    extra = struct.pack("<HH", ZIP64_ID, len(wide)) + wide if wide else b""
    version = ZIP64_VERSION if wide else STORED_VERSION
    return (
        struct.pack(
            "<IHHHHHHIIIHHHHHII", 0x02014B50, version, version, 0, 0, DOS_TIME, DOS_DATE, checksum,
            shown, shown, len(name), len(extra), 0, 0, 0, 0, min(record.header, LIMIT),
        )
        + name
        + extra
    )  # fmt: skip


def arrays_layout(arrays: Mapping[str, tuple[str, Sequence[int], int]]) -> ImageLayout:
    """A safetensors file.  arrays: name → (its word for the type, shape, bytes), none padded.

    Raises SaveError for a name that the format keeps for itself."""
    if "__metadata__" in arrays:
        raise SaveError("an array cannot be called __metadata__: safetensors keeps that name")
    header: dict[str, object] = {}
    ends = itertools.accumulate((n_bytes for _, _, n_bytes in arrays.values()), initial=0)
    for (name, (word, shape, n_bytes)), begin in zip(arrays.items(), ends, strict=False):
        header[name] = {
            "dtype": word,
            "shape": list(shape),
            "data_offsets": [begin, begin + n_bytes],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % DATA_ALIGNMENT)
    head = struct.pack("<Q", len(text)) + text
    offsets = tuple(_offsets(len(head), [n_bytes for _, _, n_bytes in arrays.values()]))
    total = sum(n_bytes for _, _, n_bytes in arrays.values())
    return ImageLayout(offsets, len(head) + total, head)


def _offsets(first: int, sizes: Sequence[int]) -> Iterator[int]:
    for n_bytes in sizes:
        yield first
        first += n_bytes
