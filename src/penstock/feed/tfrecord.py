"""Parse a TFRecord file: lengths, checksums of lengths and payloads.

A record is 8 bytes of length, 4 bytes of checksum, the payload, and 4 bytes of checksum.  The
checksum is CRC-32C, rotated and shifted (TensorFlow's record_writer.cc).  Checksums of lengths are
always checked, because all records after a wrong length are lost.  Checksums of payloads are
checked on request.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed.byte_file import ByteFile, opened
from penstock.feed.spans import Advance, Spans, numbered

__all__ = ["crc32c", "framed", "is_tfrecord", "masked", "spans", "wrong_payloads"]

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

HEAD, TAIL = 12, 4  # bytes around a payload
MASK = 0xA282EAD8
POLYNOMIAL = 0x82F63B78  # CRC-32C, reflected
LANE = 1024  # bytes summed in sequence; all lanes in parallel
CHUNK_BYTES = 4 << 20
# A header outside the current chunk is read with the following bytes: small records are then
# included, large records cost at most a page.
PROBE_BYTES = 4 << 10
REMOTE_DENSE_BYTES = 32 << 10  # for an object: read through shorter records, skip longer
_LENGTH = struct.Struct("<Q")


def is_tfrecord(head: bytes) -> bool:
    """Return whether `head` begins a TFRecord: the first length has the right checksum."""
    if len(head) < HEAD:
        return False
    length = np.frombuffer(head[:8], np.uint8)
    said = int.from_bytes(head[8:HEAD], "little")
    return int(masked(_sums(length[None, :]))[0]) == said


def spans(path: str, progress: Advance | None = None) -> Spans:
    """Return a span for each payload in file order; a key is the file's name and a number.

    Raises FeedError: a wrong checksum of a length, or a record beyond the file.
    """
    with opened(path) as file:
        size = file.size()
        offsets, heads, torn = _scan(file, size, progress)
    head = np.frombuffer(bytes(heads), np.uint8).reshape(-1, HEAD)
    said = head[:, 8:].copy().view("<u4").ravel()
    wrong = np.flatnonzero(masked(_sums(head[:, :8])) != said)
    if len(wrong):
        record = int(wrong[0])
        raise FeedError(
            f"{path}: the length of record {record}, at {offsets[record] - HEAD:,}, does not have "
            "the sum that is written beside it; the file is damaged, or no TFRecord"
        )
    if torn >= 0:
        raise FeedError(
            f"{path}: ends at {size:,}, within the record that begins at {torn:,}; it is truncated"
        )
    length = head[:, :8].copy().view("<i8").ravel()
    prefix = os.fsencode(Path(path).name) + b"/"
    return Spans(np.array(offsets, np.int64), length, *numbered(prefix, len(offsets)))


def _scan(file: ByteFile, size: int, progress: Advance | None) -> tuple[list[int], bytearray, int]:
    """Return payload offsets, header bytes, and the start of a truncated record or -1."""
    offsets: list[int] = []
    heads = bytearray()
    least, dense = (HEAD, REMOTE_DENSE_BYTES) if file.is_remote else (PROBE_BYTES, PROBE_BYTES)
    at, kept, begin, probe = 0, b"", 0, least if file.is_remote else CHUNK_BYTES
    while at < size:
        if at + HEAD > begin + len(kept):
            # With fewer than two records per chunk, records are large and headers far apart.
            kept, begin = file.pread(probe, at), at
            if progress is not None:
                progress(at, size)
            if len(kept) < HEAD:
                return offsets, heads, at
        place = at - begin
        heads += kept[place : place + HEAD]
        length = _LENGTH.unpack_from(kept, place)[0]
        offsets.append(at + HEAD)
        at += HEAD + length + TAIL
        probe = CHUNK_BYTES if length < dense else least
    return offsets, heads, offsets[-1] - HEAD if at > size else -1


def wrong_payloads(path: str, offset: Numbers, length: Numbers) -> Iterator[tuple[int, int, bool]]:
    """Yield (record, bytes read so far, checksum is wrong) for each record of a file, in order."""
    with opened(path) as file:
        start, done = 0, 0
        while start < len(offset):
            end = int(np.searchsorted(offset, offset[start] + CHUNK_BYTES, side="left"))
            end = max(end, start + 1)
            begin = int(offset[start])
            n_bytes = int(offset[end - 1] + length[end - 1]) + TAIL - begin
            data = np.frombuffer(_read_all(file, n_bytes, begin, path), np.uint8)
            places = offset[start:end] - begin
            sums = masked(crc32c(data, places, length[start:end]))
            for record in range(start, end):
                at = int(places[record - start] + length[record])
                done += int(length[record])
                said = int.from_bytes(data[at : at + TAIL].tobytes(), "little")
                yield record, done, said != int(sums[record - start])
            start = end


def _read_all(file: ByteFile, n_bytes: int, at: int, path: str) -> bytes:
    parts = []
    while n_bytes:
        part = file.pread(n_bytes, at)
        if not part:
            raise FeedError(f"{path}: ends at {at:,}; it has been truncated since it was indexed")
        parts.append(part)
        at, n_bytes = at + len(part), n_bytes - len(part)
    return b"".join(parts)


def framed(payload: bytes) -> bytes:
    """Return a record in TFRecord's form: length, checksum, payload, checksum."""
    length = struct.pack("<Q", len(payload))
    data = np.frombuffer(length + payload, np.uint8)
    sums = masked(crc32c(data, np.array([0, len(length)]), np.array([len(length), len(payload)])))
    of_length, of_payload = (struct.pack("<I", number) for number in sums.tolist())
    return length + of_length + payload + of_payload


# --- CRC-32C -------------------------------------------------------------------------------------


def masked(sums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return TFRecord's masked form of checksums.

    A CRC over data with embedded CRCs would be weak.
    """
    rotated = sums >> np.uint32(15) | sums << np.uint32(17)
    return rotated + np.uint32(MASK)


def crc32c(data: Bytes, start: Numbers, length: Numbers) -> NDArray[np.uint32]:
    """Return the CRC-32C of data[start:start+length] for each start and length.

    Leading zeros do not change a CRC with initial value zero.  An initial value of ones equals an
    inversion of the first four bytes.  Each part is therefore padded to whole lanes, all lanes are
    computed in parallel, and the lanes of a part are combined.
    """
    lanes = -(-np.maximum(length, 4) // LANE)
    last = np.cumsum(lanes)
    padded = np.zeros((int(last[-1]) if len(last) else 0) * LANE, np.uint8)
    for number, (at, n_bytes) in enumerate(zip(start.tolist(), length.tolist(), strict=True)):
        end = int(last[number]) * LANE
        padded[end - n_bytes : end] = data[at : at + n_bytes]
        padded[end - n_bytes : end][:4] ^= 0xFF
    sums = _inverted(_put_together(_sums_from_zero(padded.reshape(-1, LANE)), lanes))
    for number in np.flatnonzero(length < 4).tolist():  # fewer than four bytes to invert
        at = int(start[number])
        sums[number] = _sums(data[None, at : at + int(length[number])])[0]
    return sums


def _put_together(sums: NDArray[np.uint32], lanes: Numbers) -> NDArray[np.uint32]:
    """Combine the CRCs of lanes into one CRC per part.

    Neighbouring lanes are paired, level by level, until each part has one CRC.
    """
    level = 0
    while len(lanes) and lanes.max() > 1:
        # Pairs are aligned to the part's end; a leading zero changes nothing.
        odd = lanes & 1
        paired = np.zeros(len(sums) + int(odd.sum()), np.uint32)
        paired[np.arange(len(sums)) + np.repeat(np.cumsum(odd), lanes)] = sums
        sums = _moved(paired[::2], level) ^ paired[1::2]
        lanes, level = (lanes + odd) // 2, level + 1
    return sums


def _inverted(sums: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return sums ^ np.uint32(0xFFFFFFFF)


def _sums(rows: Bytes) -> NDArray[np.uint32]:
    """Return the CRC-32C of each row, computed for all rows byte by byte."""
    sums = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    table = _table(8)
    for place in range(rows.shape[1]):
        sums = table[(sums ^ rows[:, place]) & np.uint32(0xFF)] ^ sums >> np.uint32(8)
    return _inverted(sums)


def _sums_from_zero(lanes: Bytes) -> NDArray[np.uint32]:
    words = np.ascontiguousarray(lanes.view("<u2").T)
    sums = np.zeros(len(lanes), np.uint32)
    table = _table(16)
    for word in words:
        sums = table[(sums ^ word) & np.uint32(0xFFFF)] ^ sums >> np.uint32(16)
    return sums


@cache
def _table(bits: int) -> NDArray[np.uint32]:
    table = np.arange(1 << bits, dtype=np.uint32)
    for _ in range(bits):
        table = np.where(table & 1, table >> 1 ^ np.uint32(POLYNOMIAL), table >> 1)
    return table.astype(np.uint32)


@cache
def _lane_tables(level: int) -> NDArray[np.uint32]:
    """Return tables (4, 256): the effect of LANE << level zeros on each byte of a CRC."""
    if level:
        return _moved(_lane_tables(level - 1), level - 1)
    table = _table(16)
    values = np.arange(256, dtype=np.uint32)
    table_row = np.stack([values << np.uint32(8 * byte) for byte in range(4)])
    for _ in range(LANE // 2):
        table_row = table[table_row & np.uint32(0xFFFF)] ^ table_row >> np.uint32(16)
    return table_row


def _moved(sums: NDArray[np.uint32], level: int) -> NDArray[np.uint32]:
    tables = _lane_tables(level)
    moved = np.zeros_like(sums)
    for byte in range(4):
        moved ^= tables[byte, sums >> np.uint32(8 * byte) & np.uint32(0xFF)]
    return moved
