"""Parse a tar file's headers and group members into samples, without reading contents.

A sample is defined as in WebDataset: neighbouring members with equal names up to the first dot
after the last slash.  A sample's record is the span from its first header to the end of its last
member, so one read fetches the whole sample; `members` then splits the record.  Members outside
samples are counted.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from penstock.errors import FeedError, FeedRefused
from penstock.feed.byte_file import ByteFile, opened
from penstock.feed.spans import Advance, LeftOut, Spans, left_out, packed

__all__ = ["TarMember", "is_tar", "members", "name_parts", "spans"]

Read = Callable[[int, int], bytes | memoryview]  # (offset, bytes) → at most so many bytes

BLOCK = 512
# Headers lie between contents: one read of 8 KiB fetches a header and the small members after the
# header.
PROBE_BYTES = 8 << 10
# For an object: a header, a small member, the next header.  An index of records of 100 KB then
# reads 1.5 % of the bytes.  For small members, the index reads the whole object in large pieces.
REMOTE_PROBE_BYTES = 3 * BLOCK
DENSE_BYTES = 32 << 10  # mean distance of headers; a connection reads as much in 1 ms
LEAST_JUMPS = 8  # before the mean distance counts
REMOTE_PIECE_BYTES = 1 << 20
MAX_NAME_BYTES = 1 << 20  # of an extended header: PATH_MAX is 4096

# A tar ends with two blocks of zeros, then zeros up to the end of a tape record of 20 blocks, or as
# many as `tar -b` set.  The first block of zeros may end the previous record.
END_BLOCKS = 2
RECORD_BLOCKS = 20
MOST_RECORD_BLOCKS = 2048  # 1 MiB, the largest size in use
USUAL_END_BYTES = (1 + RECORD_BLOCKS) * BLOCK
END = b"end mark"  # kind of the end mark; a header's kind is one byte

REGULAR, EXTENDED, GNU_NAME, GNU_LINK, GLOBAL = b"07\0", b"xX", b"L", b"K", b"g"  # X: Solaris'
OF_NEXT = EXTENDED + GNU_NAME + GNU_LINK
WITHOUT_CONTENT = b"123456"  # links, devices, folders, pipes
FOLDER, GNU_FOLDER, GNU_SPARSE, GNU_CONTINUED = b"5", b"D", b"S", b"M"
NOUNS = {b"1": "link", b"2": "link", b"3": "device", b"4": "device", b"6": "pipe"}


class TarMember(NamedTuple):
    """A member of a tar.

    begin: offset of the first of its headers.  data, size: offset and bytes of the content.  kind:
    type flag of the header, in REGULAR for a file; END for the zeros at the end.
    """

    name: bytes
    begin: int
    data: int
    size: int
    kind: bytes


def is_tar(head: bytes) -> bool:
    """Return whether `head` begins a tar: the first header's checksum is right."""
    return len(head) >= BLOCK and any(head[:BLOCK]) and _sum_is_right(head[:BLOCK])


def name_parts(name: bytes) -> tuple[bytes, str] | None:
    """Return (key, extension) of a member in a sample; None: the member is in no sample.

    The rules are WebDataset's, also for hidden files: the key of a hidden file is its folder if the
    folder's name has no dot; any other hidden file has no key.
    """
    folder, slash, file = name.rpartition(b"/")
    stem, dot, extension = file.partition(b".")
    if not dot or _is_own(name):
        return None
    if not stem and (not slash or b"." in folder.rpartition(b"/")[2]):
        return None
    return folder + slash + stem, extension.decode("utf-8", "surrogateescape").lower()


def _is_own(name: bytes) -> bool:
    """Return whether WebDataset reserves a name: `__index__`, or any in a folder `__x__`."""
    top = name.partition(b"/")[0]
    return len(top) >= 4 and top.startswith(b"__") and top.endswith(b"__")


def _passed_over(member: TarMember, where: str) -> LeftOut | None:
    """Describe a member outside samples; None: the member holds no data."""
    if member.kind == END:
        if member.size <= USUAL_END_BYTES:
            return None
        why = "of more than 10.5 KiB of zeros: what `tar -b` pads, or files that are lost"
        return LeftOut("end", why, 1, (f"{os.path.basename(where)} from {member.begin:,} on",))
    file = member.name.rpartition(b"/")[2]
    if member.kind in FOLDER + GNU_FOLDER:
        return None
    if member.kind not in REGULAR:
        kind = member.kind.decode("latin-1")
        noun, why = NOUNS.get(member.kind, "member"), ""
        if noun == "member":
            why = f"of the type {kind!r}, which is no file"
    elif _is_own(member.name):
        noun, why = "file", "that WebDataset takes for its own"
    elif file.startswith(b"."):
        noun, why = "hidden file", ""
    else:
        noun, why = "file", "without an extension"
    return LeftOut(noun, why, 1, (f"{os.path.basename(where)}/{os.fsdecode(member.name)}",))


def spans(path: str, progress: Advance | None = None) -> Spans:
    """Return a span for each sample of a tar, in file order.

    Raises FeedError: a wrong checksum, a member beyond the file's end, no end mark, or data after
    the end mark.
    """
    with opened(path) as file:
        size = file.size()
        offsets: list[int] = []
        ends: list[int] = []
        keys: list[bytes] = []
        passed: tuple[LeftOut, ...] = ()
        for number, member in enumerate(_all(_reader(file), 0, size, path)):
            parts = name_parts(member.name) if member.kind in REGULAR else None
            if parts is None:
                other = _passed_over(member, path)
                passed = left_out((*passed, other)) if other is not None else passed
                continue
            if not keys or keys[-1] != parts[0]:
                keys.append(parts[0])
                offsets.append(member.begin)
                ends.append(0)
            ends[-1] = member.data + member.size
            if progress is not None and number % 1024 == 0:
                progress(member.data, size)
    offset = np.array(offsets, np.int64)
    length = np.array(ends, np.int64) - offset
    return Spans(offset, length, *packed(keys), left_out=passed)


def _reader(file: ByteFile) -> Read:
    kept, at, before, n_jumps = b"", 0, 0, 0

    def read(offset: int, n_bytes: int) -> bytes:
        nonlocal kept, at, before, n_jumps
        n_jumps += offset - before > REMOTE_PROBE_BYTES  # each jump would cost a request
        before = offset
        if not at <= offset <= offset + n_bytes <= at + len(kept):
            probe = PROBE_BYTES
            if file.is_remote:
                is_dense = n_jumps >= LEAST_JUMPS and offset < n_jumps * DENSE_BYTES
                probe = REMOTE_PIECE_BYTES if is_dense else REMOTE_PROBE_BYTES
            kept, at = file.pread(max(n_bytes, probe), offset), offset
        return kept[offset - at : offset - at + n_bytes]

    return read


def members(
    read: Read, at: int, end: int, where: str, is_part: bool = False
) -> Iterator[TarMember]:
    """Yield the regular files between two offsets of a tar.

    where: the tar's name in errors.  is_part: the range is one record, without an end mark.
    """
    return (each for each in _all(read, at, end, where, is_part) if each.kind in REGULAR)


def _all(read: Read, at: int, end: int, where: str, is_part: bool = False) -> Iterator[TarMember]:
    begin, name, size, lone = at, b"", -1, -1
    while at < end:
        header = bytes(read(at, BLOCK))
        if not is_part and len(header) == BLOCK and not any(header):
            _refuse_behind(read, at, end, where)
            if lone >= 0:
                raise FeedError(
                    f"{where}: the header at {lone:,} is of a member that is not there; the tar is "
                    "damaged"
                )
            yield TarMember(b"", at, at, end - at, END)
            return
        _refuse_header(header, at, where)
        kind, n_bytes = header[156:157], _number(header[124:136], at, where)
        if kind == b"\0" and _name(header).endswith(b"/"):  # a folder in the oldest tars
            kind = FOLDER
        if size >= 0 and kind in REGULAR:
            n_bytes, size = size, -1
        if kind in WITHOUT_CONTENT:  # whatever the header's size field is
            n_bytes = 0
        data = at + BLOCK
        if n_bytes > end - data:
            raise FeedError(
                f"{where}: the member at {at:,} has {n_bytes:,} bytes, {max(0, end - data):,} are "
                "left; it is truncated or damaged"
            )
        following = data + -(-n_bytes // BLOCK) * BLOCK
        if kind in OF_NEXT:
            lone = at
        if kind in EXTENDED + GNU_NAME:
            if n_bytes > MAX_NAME_BYTES:
                raise FeedError(f"{where}: the header at {at:,} has {n_bytes:,} bytes; damaged")
            content = bytes(read(data, n_bytes))
            if kind == GNU_NAME:
                name = content.rstrip(b"\0")
            else:
                name, size = _extended(content, name, at, where)
        elif kind == GLOBAL:
            _refuse_global(read, data, n_bytes, at, where)
        elif kind != GNU_LINK:
            _refuse_fragment(kind, at, where)
            yield TarMember(name or _name(header), begin, data, n_bytes, kind)
            begin, name, size, lone = following, b"", -1, -1
        at = following
    if not is_part:
        raise FeedError(f"{where}: ends at {end:,} without an end mark; the tar is truncated")


def _refuse_fragment(kind: bytes, at: int, where: str) -> None:
    if kind == GNU_SPARSE:
        raise FeedRefused(f"{where}: the member at {at:,} is a sparse file; unpack the tar")
    if kind == GNU_CONTINUED:
        raise FeedRefused(
            f"{where}: the member at {at:,} is the end of one that begins in another volume; "
            "unpack the volumes together"
        )


def _refuse_global(read: Read, data: int, n_bytes: int, at: int, where: str) -> None:
    """Raise FeedRefused if a global header sets a path or a size for all later members.

    Raises FeedError: the header is damaged.
    """
    if n_bytes > MAX_NAME_BYTES:
        raise FeedError(f"{where}: the header at {at:,} has {n_bytes:,} bytes; damaged")
    if _extended(bytes(read(data, n_bytes)), b"", at, where) != (b"", -1):
        raise FeedRefused(
            f"{where}: the header at {at:,} gives one path or size to all that follows; "
            "unpack the tar"
        )


def _refuse_behind(read: Read, at: int, end: int, where: str) -> None:
    """Raise FeedError if data follow a block of zeros, or more zeros than a tar's padding.

    A header overwritten by zeros looks like an end mark, so only zeros may follow, and no more
    zeros than the padding of a tar of this size.
    """
    left, n_blocks = end - at, end // BLOCK
    if left < END_BLOCKS * BLOCK:
        raise FeedError(
            f"{where}: ends at {end:,} with one block of zeros, an end mark has {END_BLOCKS}; the "
            "tar is truncated"
        )
    fitting = (each for each in range(MOST_RECORD_BLOCKS, 0, -1) if n_blocks % each == 0)
    record_blocks = RECORD_BLOCKS if end % BLOCK else max(RECORD_BLOCKS, next(fitting))
    zeros = bytes(read(at, min(left, (1 + record_blocks) * BLOCK)))
    if left > len(zeros) or zeros.count(0) < left:
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
    if field[0] == 0x80:  # GNU's format for sizes of 8 GiB and more
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
    """Return (path, size) from a POSIX extended header for the next member."""
    size, place, content = -1, 0, content.rstrip(b"\0")
    while place < len(content):
        space = content.find(b" ", place, place + len(str(MAX_NAME_BYTES)) + 1)
        length = content[place : max(space, place)]
        end = place + int(length) if length.isdigit() else 0
        line = content[max(space, place) + 1 : end]
        key, equals, value = line.removesuffix(b"\n").partition(b"=")
        if not space < end <= len(content) or not equals or not line.endswith(b"\n"):
            raise FeedError(f"{where}: the extended header at {at:,} is damaged")
        if key.startswith(b"GNU.sparse"):
            _refuse_fragment(GNU_SPARSE, at, where)
        if key == b"path":
            name = value
        elif key == b"size":
            if not value.isdigit():
                raise FeedError(f"{where}: the extended header at {at:,} is damaged")
            size = int(value)
        place = end
    return name, size
