"""The bytes of a tar file: headers, and which members make a sample.  Reads no member's content.

A sample is what WebDataset takes for one: neighbours whose names are the same up to the first dot
behind the last slash.  Its record is the span from the first one's header to the last one's end,
so that one read brings all of it; `members` then takes it apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from penstock.errors import FeedError
from penstock.feed.spans import Advance, Spans, packed

__all__ = ["Member", "is_tar", "members", "name_parts", "spans"]

Read = Callable[[int, int], bytes | memoryview]  # (offset, bytes) → what is there, at most so much

BLOCK = 512
# Headers lie between contents: this much brings one together with the small members behind it.
PROBE_BYTES = 8 << 10
MAX_NAME_BYTES = 1 << 20  # of an extended header: PATH_MAX is 4096

# A tar ends with two blocks of zeros, and with more of them to the end of a tape's record: 20
# blocks unless `tar -b` said another number, which is a power of two then.
END_BLOCKS = 2
RECORD_BYTES = 20 * BLOCK
OTHER_RECORDS_BYTES = tuple(BLOCK << power for power in range(5, 12))

REGULAR, EXTENDED, GNU_NAME, GNU_LINK, GLOBAL = b"07\0", b"x", b"L", b"K", b"g"
WITHOUT_CONTENT = b"123456"  # links, devices, folders, pipes


class Member(NamedTuple):
    """A regular file in a tar.  begin: of its header and those that belong to it.  data, size: its
    content."""

    name: bytes
    begin: int
    data: int
    size: int


def is_tar(head: bytes) -> bool:
    """Whether a file that begins so is a tar: its first header sums up to what it says."""
    return len(head) >= BLOCK and any(head[:BLOCK]) and _sum_is_right(head[:BLOCK])


def name_parts(name: bytes) -> tuple[bytes, str] | None:
    """(key, extension) of a member in a sample; None: it belongs to none."""
    folder, slash, file = name.rpartition(b"/")
    stem, dot, extension = file.partition(b".")
    if not stem or not dot or (file.startswith(b"__") and file.endswith(b"__")):
        return None
    return folder + slash + stem, extension.decode("utf-8", "surrogateescape").lower()


def spans(path: str, progress: Advance | None = None) -> Spans:
    """A span for each sample of a tar, in the order of the file.

    Raises FeedError: a header that does not sum up, a member beyond the file, no end mark or
    something behind it.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        offsets: list[int] = []
        ends: list[int] = []
        keys: list[bytes] = []
        for number, member in enumerate(members(_reader(fd), 0, size, path)):
            parts = name_parts(member.name)
            if parts is None:
                continue
            if not keys or keys[-1] != parts[0]:
                keys.append(parts[0])
                offsets.append(member.begin)
                ends.append(0)
            ends[-1] = member.data + member.size
            if progress is not None and number % 1024 == 0:
                progress(member.data, size)
    finally:
        os.close(fd)
    offset = np.array(offsets, np.int64)
    return Spans(offset, np.array(ends, np.int64) - offset, *packed(keys))


def _reader(fd: int) -> Read:
    kept, at = b"", 0

    def read(offset: int, n_bytes: int) -> bytes:
        nonlocal kept, at
        if not at <= offset <= offset + n_bytes <= at + len(kept):
            kept, at = os.pread(fd, max(n_bytes, PROBE_BYTES), offset), offset
        return kept[offset - at : offset - at + n_bytes]

    return read


def members(read: Read, at: int, end: int, where: str, is_part: bool = False) -> Iterator[Member]:
    """The regular files between two places of a tar.  where: what it is called in an error.
    is_part: it is one record, which has no end mark."""
    begin, name, size = at, b"", -1
    while at < end:
        header = bytes(read(at, BLOCK))
        if not is_part and len(header) == BLOCK and not any(header):
            _refuse_behind(read, at, end, where)
            return
        _refuse_header(header, at, where)
        kind, n_bytes = header[156:157], _number(header[124:136], at, where)
        if size >= 0 and kind in REGULAR:
            n_bytes, size = size, -1
        if kind in WITHOUT_CONTENT:  # whatever their size says
            n_bytes = 0
        data = at + BLOCK
        if n_bytes > end - data:
            raise FeedError(
                f"{where}: the member at {at:,} has {n_bytes:,} bytes, {max(0, end - data):,} are "
                "left; it is truncated or damaged"
            )
        following = data + -(-n_bytes // BLOCK) * BLOCK
        if kind in (EXTENDED, GNU_NAME):
            if n_bytes > MAX_NAME_BYTES:
                raise FeedError(f"{where}: the header at {at:,} has {n_bytes:,} bytes; damaged")
            content = bytes(read(data, n_bytes))
            if kind == GNU_NAME:
                name = content.rstrip(b"\0")
            else:
                name, size = _extended(content, name, at, where)
        elif kind in (GNU_LINK, GLOBAL):
            pass
        else:
            if kind == b"S":
                raise FeedError(f"{where}: the member at {at:,} is a sparse file; unpack the tar")
            if kind in REGULAR:
                yield Member(name or _name(header), begin, data, n_bytes)
            begin, name, size = following, b"", -1
        at = following
    if not is_part:
        raise FeedError(f"{where}: ends at {end:,} without an end mark; the tar is truncated")


def _refuse_behind(read: Read, at: int, end: int, where: str) -> None:
    """A header that became zeros looks like the end mark: what follows it must be nothing else."""
    records = [RECORD_BYTES, *(each for each in OTHER_RECORDS_BYTES if end % each == 0)]
    left = end - at
    zeros = bytes(read(at, min(left, max(records) + BLOCK)))
    if left > len(zeros) or zeros.count(0) < left or left < END_BLOCKS * BLOCK:
        raise FeedError(
            f"{where}: a block of zeros at {at:,} is no end mark, {left - BLOCK:,} bytes lie "
            "behind it; the tar is damaged, or several are joined: name the parts, or unpack with "
            "`tar --ignore-zeros`"
        )


def _sum_is_right(header: bytes) -> bool:
    said = header[148:156].strip(b"\0 ")
    try:
        number = int(said, 8)
    except ValueError:
        return False
    return number == sum(header[:148]) + 8 * 0x20 + sum(header[156:])


def _refuse_header(header: bytes, at: int, where: str) -> None:
    if len(header) < BLOCK:
        raise FeedError(f"{where}: the header at {at:,} is cut off; the tar is truncated")
    if not _sum_is_right(header):
        raise FeedError(f"{where}: the header at {at:,} does not sum up; the tar is damaged")


def _number(field: bytes, at: int, where: str) -> int:
    if field[0] == 0x80:  # GNU's way above 8 GiB
        return int.from_bytes(field[1:], "big")
    try:
        number = int(field.strip(b"\0 ") or b"0", 8)
    except ValueError:
        number = -1
    if number < 0:
        raise FeedError(f"{where}: the header at {at:,} has no size; the tar is damaged")
    return number


def _name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == b"ustar\0" else b""
    return prefix + b"/" + name if prefix else name


def _extended(content: bytes, name: bytes, at: int, where: str) -> tuple[bytes, int]:
    """The path and the size that a POSIX extended header gives to the member behind it."""
    size, place, content = -1, 0, content.rstrip(b"\0")
    while place < len(content):
        space = content.find(b" ", place, place + len(str(MAX_NAME_BYTES)) + 1)
        length = content[place : max(space, place)]
        end = place + int(length) if length.isdigit() else 0
        if not space < end <= len(content):
            raise FeedError(f"{where}: the extended header at {at:,} is damaged")
        key, _, value = content[space + 1 : end].removesuffix(b"\n").partition(b"=")
        if key.startswith(b"GNU.sparse"):
            raise FeedError(f"{where}: the member at {at:,} is a sparse file; unpack the tar")
        if key == b"path":
            name = value
        elif key == b"size" and value.isdigit():
            size = int(value)
        place = end
    return name, size
