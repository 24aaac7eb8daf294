"""Read the texts of a log's ids, with the standard library alone.

Knows the positions of blocks and texts; knows no event.  `penstock run` reads the files of the
command's own run after the program's end; importing numpy takes longer than a small program runs.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

from penstock.errors import LogError
from penstock.safe.bounded import opened
from penstock.safe.checksums import crc32c

__all__ = [
    "ACCESS_BLOCK",
    "BLOCK_HEAD",
    "BLOCK_MAGIC",
    "CALLS_BLOCK",
    "CLOSED_BLOCK",
    "CONNECTION_BYTES",
    "CONNECTION_TEXT",
    "EVENTS_BLOCK",
    "FILE_TEXT",
    "HEADER_BYTES",
    "HEADER_PAGE_BYTES",
    "LOG_SUFFIX",
    "LOG_SUFFIXES",
    "MAGIC",
    "MORE_BYTES",
    "NAME_TEXT",
    "NOTE_TEXT",
    "OBJECT_TEXT",
    "RECORD_BYTES",
    "REQUEST_TEXT",
    "TEXT_HEAD",
    "UNIT_BYTES",
    "VERSION",
    "LogFile",
    "Text",
    "decode",
    "heads_in",
    "index_row",
    "is_log_name",
    "logs_in",
    "read_texts",
    "text_spans",
    "texts_in",
]

MAGIC = b"PENSTOCK"
VERSION = 1
HEADER_BYTES = 65536
# The header's fields are in the first page; the rest of the unit is a hole.
HEADER_PAGE_BYTES = 4096
UNIT_BYTES = 65536
BLOCK_MAGIC = 0x4B425350
EVENTS_BLOCK, CALLS_BLOCK, ACCESS_BLOCK = 1, 2, 3
CLOSED_BLOCK = 4  # of events, with a checksum in the place of the limit
FILE_TEXT, NAME_TEXT, NOTE_TEXT, OBJECT_TEXT, CONNECTION_TEXT = 1, 2, 3, 4, 5
REQUEST_TEXT = 6
CONNECTION_BYTES = 224  # of the record at the end of a connection's text
OLDER_CONNECTION_BYTES = 216  # before handshakes, the last field, were recorded
MORE_BYTES = {CONNECTION_TEXT: CONNECTION_BYTES, REQUEST_TEXT: 128}

BLOCK_HEAD = struct.Struct("<IIQIIIIIIQ16s")
TEXT_HEAD = struct.Struct("<IIIIIIQQq")
RECORD_BYTES = {EVENTS_BLOCK: 32, CALLS_BLOCK: 72, ACCESS_BLOCK: 352}
_SIZE = struct.Struct("<I")
_SUMMED = (4, 16, 20, 24)  # in a block's head: kind, used, checksum, texts


class Text(NamedTuple):
    """The text of an id.  base, mode, device, inode and size_bytes have a meaning for files only.

    A file may have a second text, with an empty name and facts of the first open.  tier: 1 for a
    file opened as its staged copy, on the tier of the note `tier`; 2 for a file made on the tier of
    the note `burst tier`.  name and resolved are decoded as UTF-8; other bytes become surrogates,
    as in os.fsdecode.  size_bytes is -1 and mode 0 if not measured.  An empty resolved means the
    name itself.  more is the record of a connection or a request.
    """

    kind: int
    id: int
    base: int
    mode: int
    device: int
    inode: int
    size_bytes: int
    name: str
    resolved: str
    tier: int = 0
    more: bytes = b""


class LogFile:
    """A log's file, by position."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.fd = -1

    def __enter__(self) -> Self:
        try:
            with opened(self.path) as file:
                self.fd = os.dup(file.fileno())
        except (OSError, ValueError) as error:
            raise LogError(f"{self.path}: cannot be opened: {_reason(error)}") from error
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    def read(self, offset: int, size: int) -> bytes:
        """Return up to size bytes: fewer only at the end of the file."""
        try:
            data = os.pread(self.fd, size, offset)
            while 0 < len(data) < size:
                more = os.pread(self.fd, size - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise LogError(f"{self.path}: cannot be read: {_reason(error)}") from error
        return data

    def next_unit_with_data(self, unit: int) -> int:
        """Return the first later unit outside of holes; the given unit if unknown."""
        try:
            offset = os.lseek(self.fd, HEADER_BYTES + (unit + 1) * UNIT_BYTES, os.SEEK_DATA)
        except OSError as error:
            return 1 << 62 if error.errno == errno.ENXIO else unit
        return (offset - HEADER_BYTES) // UNIT_BYTES

    def tail(self, unit: int, start: int) -> bytes:
        return self.read(HEADER_BYTES + unit * UNIT_BYTES + start, UNIT_BYTES - start)


# Not .log: programs for rotating or removing logs look for the suffix. Older runs have .log.
LOG_SUFFIX = ".events"
LOG_SUFFIXES = (LOG_SUFFIX, ".log")


def is_log_name(name: str) -> bool:
    """Return True if a file of a run folder with the given name is a log."""
    return name.endswith(LOG_SUFFIXES)


def logs_in(folder: Path, pattern: str = "*") -> list[Path]:
    """Return the logs of a run folder with stems like the pattern, sorted by name."""
    return sorted(path for path in folder.glob(f"{pattern}.*") if is_log_name(path.name))


def read_texts(path: str | os.PathLike[str]) -> Iterator[Text]:
    """Yield all texts of a log of VERSION, block by block, some perhaps twice.

    Raises LogError: no such file, no log, or another version.
    """
    with LogFile(os.fspath(path)) as file:
        page = file.read(0, HEADER_PAGE_BYTES)
        version = int.from_bytes(page[8:12], "little")
        if len(page) < HEADER_PAGE_BYTES or page[:8] != MAGIC or version != VERSION:
            raise LogError(f"{file.path}: not a log of format {VERSION} with a whole header")
        units, rest = divmod(max(0, os.fstat(file.fd).st_size - HEADER_BYTES), UNIT_BYTES)
        for unit, _, kind, start, *_ in heads_in(file, units, rest)[0]:
            if kind == EVENTS_BLOCK and start < UNIT_BYTES:
                yield from texts_in(file.tail(unit, start))


def heads_in(
    file: LogFile,
    units: int,
    rest: int,
    is_checked: bool = False,
    sums: Mapping[int, int] | None = None,
) -> tuple[list[tuple[Any, ...]], set[int]]:
    """Return rows of the readable blocks, and the numbers of unreadable units.

    is_checked: read blocks with a checksum whole and compare.  sums: from the log's seal, by unit.
    """
    rows: list[tuple[Any, ...]] = []
    damaged: set[int] = set()
    unit = 0
    while unit < units + (rest >= BLOCK_HEAD.size):
        data = file.read(HEADER_BYTES + unit * UNIT_BYTES, BLOCK_HEAD.size)
        if not any(data):
            unit = max(unit + 1, file.next_unit_with_data(unit))
            continue
        row, is_damaged = index_row(unit, data, UNIT_BYTES if unit < units else rest)
        if row and is_checked and unit < units and not _sum_fits(file, unit, data, sums or {}):
            row, is_damaged = None, True
        if row:
            rows.append(row)
        if is_damaged:
            damaged.add(unit)
        unit += 1
    return rows, damaged


def _sum_fits(file: LogFile, unit: int, head: bytes, sums: Mapping[int, int]) -> bool:
    """Return True if the checksum of a block fits, or if the block has none."""
    kind, used, expected, texts = (int.from_bytes(head[at : at + 4], "little") for at in _SUMMED)
    if unit not in sums and kind != CLOSED_BLOCK:
        return True
    data = file.read(HEADER_BYTES + unit * UNIT_BYTES, UNIT_BYTES)
    if unit in sums:
        return crc32c(data) == sums[unit]
    records = data[BLOCK_HEAD.size : BLOCK_HEAD.size + used * RECORD_BYTES[EVENTS_BLOCK]]
    crc = 0
    for part in (data[:20], bytes(4), data[24 : BLOCK_HEAD.size], records, data[texts:]):
        crc = crc32c(part, crc)
    return crc == expected


def index_row(unit: int, data: bytes, available: int) -> tuple[tuple[Any, ...] | None, bool]:
    """Return a row for the block at the begin of data, and whether its unit is damaged.

    A row is (unit, whole records, kind, texts, thread, tid, carried, round, first, name).
    """
    if len(data) < BLOCK_HEAD.size:
        return None, True
    magic, kind, round_, used, limit, texts, thread, tid, carried, first, name = BLOCK_HEAD.unpack(
        data
    )
    is_closed = kind == CLOSED_BLOCK
    kind = EVENTS_BLOCK if is_closed else kind
    if magic != BLOCK_MAGIC or kind not in RECORD_BYTES:
        return None, True
    if kind != EVENTS_BLOCK:
        texts = UNIT_BYTES
    is_damaged = not BLOCK_HEAD.size <= texts <= UNIT_BYTES
    end = UNIT_BYTES if is_damaged else texts
    fits = (end - BLOCK_HEAD.size) // RECORD_BYTES[kind]
    # Killed between the two stores that close a block: no limit yet, or a checksum instead.
    wanted = used if is_closed or used <= fits < limit else min(used, limit)
    is_damaged |= wanted > fits
    if texts != end or available < UNIT_BYTES:
        texts = UNIT_BYTES  # not all there: not read
    whole = min(wanted, fits, (available - BLOCK_HEAD.size) // RECORD_BYTES[kind])
    carried = min(carried, whole)
    return (unit, whole, kind, texts, thread, tid, carried, round_, first, name), is_damaged


def texts_in(tail: bytes) -> Iterator[Text]:
    """Yield the whole texts of a block's tail."""
    for at, end in text_spans(tail)[0]:
        _, kind, number, base, mode, tier, device, inode, size = TEXT_HEAD.unpack_from(tail, at)
        name, resolved, *_ = tail[at + TEXT_HEAD.size : end].split(b"\0", 2)
        more = b""
        size_of_more = MORE_BYTES.get(kind, 0)
        if size_of_more and end - at >= TEXT_HEAD.size + 8 + size_of_more:
            more = tail[end - size_of_more : end]
        elif kind == CONNECTION_TEXT and end - at == TEXT_HEAD.size + 8 + OLDER_CONNECTION_BYTES:
            more = tail[end - OLDER_CONNECTION_BYTES : end].ljust(CONNECTION_BYTES, b"\0")
        yield Text(
            kind,
            number,
            base,
            mode,
            device,
            inode,
            size,
            decode(name),
            decode(resolved),
            tier,
            more,
        )


def text_spans(tail: bytes) -> tuple[list[tuple[int, int]], bool]:
    """Return where each text of a block's tail begins and ends, and whether the rest is damaged."""
    spans: list[tuple[int, int]] = []
    at = 0
    while at < len(tail):
        size = _SIZE.unpack_from(tail, at)[0] if at + 4 <= len(tail) else 0
        # The smallest text has two empty strings; both must end inside the text.
        if size < TEXT_HEAD.size + 8 or size % 8 or at + size > len(tail):
            return spans, True
        if tail.count(b"\0", at + TEXT_HEAD.size, at + size) < 2:
            return spans, True
        spans.append((at, at + size))
        at += size
    return spans, False


def decode(data: bytes) -> str:
    """Return text of a log as os.fsdecode would."""
    return data.decode("utf-8", "surrogateescape")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
