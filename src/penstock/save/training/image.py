"""Lay out checkpoint files in memory before the bytes are written: torch's zip, safetensors.

The memory of a snapshot *is* the file.  Each array is copied straight to the array's offset in the
file, and another process fills in the rest (headers, checksums, directory).  The functions are
pure: bytes and numbers in, bytes and numbers out.  The module knows no framework.

The zip has the format of torch.save: stored records below a folder, each aligned to 64 bytes by an
extra field.  The arrays come first, because the length of the pickle differs from save to save: so
the offset of an array does not depend on the pickle.  Readers use the directory at the end.
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

FOLDER = "archive/"  # torch takes the folder's name from the first record, for all other records
DATA_ALIGNMENT = 64  # as torch.save: readers may map the file and need aligned numbers
LIMIT = 0xFFFFFFFF  # in a 32-bit field, the value that refers to the 64-bit extra field
STORED_VERSION, ZIP64_VERSION = 20, 45
# 1980-01-01, the first day of the zip format: two saves of a state have equal bytes.
DOS_TIME, DOS_DATE = 0, 33
PADDING_ID = 0x4246  # "FB", torch's
ZIP64_ID = 1
SAFETENSORS_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class ZipRecord:
    """A record of the zip.  header: offset of the local header; offset: offset of the first byte of
    data; both in bytes from the start of the file."""

    name: str
    header: int
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class ImageLayout:
    """The offsets of n arrays in a file.  head: the bytes before the arrays, if known already.

    size_bytes: size of the file up to the end of the last array.
    """

    offsets: tuple[int, ...]
    size_bytes: int
    head: bytes = b""
    records: tuple[ZipRecord, ...] = ()


def zip_layout(sizes: Sequence[int]) -> ImageLayout:
    """Return the layout of torch.save's records data/0, data/1 … of `sizes` bytes."""
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
    """Return the local header, up to the record's first byte.  checksum: CRC-32 of the record."""
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
    """Lay out the records after the arrays, from `position`: the pickle and torch's small records.

    Returns the bytes, headers included, and each record with the checksum."""
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
    """Return the directory and the end of the file, for the offset `position`."""
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
    """Return the layout of a safetensors file.  arrays: name → (type in the format's words, shape,
    size in bytes), without padding.

    Raises SaveError for the name that the format reserves, __metadata__."""
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
