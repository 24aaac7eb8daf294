"""Check whether an HDF5 file is closed and of full length, by the file's own metadata.

Knows the superblock (versions 0 to 3), object headers, groups and the extents of datasets, as
described in "HDF5 File Format Specification Version 3.0".  Reads metadata only, no value of a
dataset; follows no link to another file.
"""

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from penstock.save.check.foreign import Damage, Scope, Unended
from penstock.save.check.judges.stream import Unfollowed, unfollowed

__all__ = ["SIGNATURE", "check_hdf5", "lookup3"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# The library looks for the superblock at 0, 512, 1024, 2048 and so on: a user block comes first.
LEAST_USER_BLOCK = 512
MOST_USER_BLOCK = 1 << 30
OFFSET_SIZES = (2, 4, 8)
# Limits of the walk.  The Keras file of a model with a thousand layers has 4,000 nodes.
MOST_NODES = 100_000
MOST_METADATA_BYTES = 64 << 20
MOST_HEADER_BYTES = 8 << 20
SUM_COST = 8  # computing a checksum takes as long as reading this many times the bytes
OPEN_FOR_WRITING = 0x01 | 0x04  # alone, or with concurrent readers (SWMR)
# Message types of object headers.
LINK_INFO, LINK, LAYOUT, CONTINUATION, SYMBOL_TABLE, DRIVER_INFO = (
    0x02,
    0x06,
    0x08,
    0x10,
    0x11,
    0x14,
)
DRIVER_NAMES = (b"NCSA", b"LANL")  # NCSAfami, NCSAmult: data in several files
ROOT = -1
NEWER_VERSIONS = 15
_WORD = 0xFFFFFFFF


def check_hdf5(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Check that the file was closed, has the length in the superblock, and contains the metadata
    and the extents of the datasets.

    Raises Damage.
    """
    scope.unprotected_bytes += size_bytes
    place = _superblock_place(file, size_bytes)
    if place is None:
        file.seek(0)
        what = "zeros at its beginning" if not any(file.read(8)) else "no HDF5 signature"
        raise Unended(f"{name}: {what}: cut short, damaged or never closed")
    source = _Source(file, name, size_bytes)
    try:
        top = _superblock(source, place)
        walk = _Walk(source, top)
        if walk.has_driver_info():
            raise Unfollowed("data in several files (family or multi driver)")
    except Unfollowed as why:
        unfollowed(name, scope, str(why))
        return
    if top.end > size_bytes:
        raise Unended(f"{name}: {size_bytes:,} bytes of {top.end:,}: cut short")
    if top.end < size_bytes:
        raise Unended(
            f"{name}: {size_bytes:,} bytes, and its superblock ends at {top.end:,}: still open for "
            "writing, or its writer was killed"
        )
    if top.version >= 3 and top.flags & OPEN_FOR_WRITING:
        raise Unended(f"{name}: marked as open for writing: not closed")
    try:
        walk.follow()
    except Unfollowed as why:
        scope.remarks[f"HDF5 metadata not followed to its end: {why}"] = None


def _superblock_place(file: BinaryIO, size_bytes: int) -> int | None:
    place = 0
    while place + len(SIGNATURE) <= min(size_bytes, MOST_USER_BLOCK + len(SIGNATURE)):
        file.seek(place)
        if file.read(len(SIGNATURE)) == SIGNATURE:
            return place
        place = 2 * place if place else LEAST_USER_BLOCK
    return None


@dataclass(slots=True)
class _Source:
    """The bytes of a file, read within the file's size and within a budget."""

    file: BinaryIO
    name: str
    size_bytes: int
    left_bytes: int = MOST_METADATA_BYTES

    def at(self, place: int, n_bytes: int, what: str) -> bytes:
        """Return bytes at a place.  Raises Damage: beyond the end of the file; Unfollowed: the
        budget is spent."""
        if place < 0 or n_bytes < 0 or place + n_bytes > self.size_bytes:
            raise self.damage(what, place, "reaches beyond the end of the file")
        self.left_bytes -= n_bytes
        if self.left_bytes < 0:
            raise Unfollowed(f"more than {MOST_METADATA_BYTES:,} bytes of it")
        self.file.seek(place)
        data = self.file.read(n_bytes)
        if len(data) != n_bytes:
            raise self.damage(what, place, "the file became shorter while it was read")
        return data

    def damage(self, what: str, place: int, why: str) -> Damage:
        return Damage(f"{self.name}: {what} at byte {place:,}: {why}")


@dataclass(frozen=True, slots=True)
class _Superblock:
    """Facts of a superblock.  base: the origin of addresses; end: the end of the file, counted from
    the file's first byte; root: address of the root group's object header."""

    version: int
    offset_size: int
    length_size: int
    flags: int
    base: int
    end: int
    root: int
    driver: int
    extension: int

    @property
    def undefined(self) -> int:
        return (1 << 8 * self.offset_size) - 1


def _superblock(source: _Source, place: int) -> _Superblock:
    """Read the superblock at a place.  Raises Damage, Unfollowed."""
    head = source.at(place, min(128, source.size_bytes - place), "superblock")
    try:
        version = head[8]
        if version in (0, 1):
            offset_size, length_size, start = head[13], head[14], 24 if version == 0 else 28
            flags = int.from_bytes(head[20:24], "little")
        elif version in (2, 3):
            offset_size, length_size, start, flags = head[9], head[10], 12, head[11]
        elif version <= NEWER_VERSIONS:
            raise Unfollowed(f"superblock version {version} is newer than this program")
        else:
            raise source.damage("superblock", place, f"version {version} is not known")
        if offset_size not in OFFSET_SIZES or length_size not in OFFSET_SIZES:
            raise source.damage("superblock", place, f"addresses of {offset_size} bytes")
        count = 6 if version in (0, 1) else 4
        stop = start + count * offset_size
        words = [
            int.from_bytes(head[at : at + offset_size], "little")
            for at in range(start, stop, offset_size)
        ]
        if stop + 4 > len(head):
            raise source.damage("superblock", place, "cut short")
    except IndexError:
        raise source.damage("superblock", place, "cut short") from None
    undefined = (1 << 8 * offset_size) - 1
    if version in (0, 1):  # base, free space, end, driver, name and header of the root group
        base, _, end, driver, _, root = words
        extension = undefined
    else:
        base, extension, end, root = words
        driver = undefined
        if lookup3(head[:stop]) != int.from_bytes(head[stop : stop + 4], "little"):
            raise source.damage("superblock", place, "its checksum does not fit")
    if end in (undefined, 0):
        raise Unended(f"{source.name}: no end of the file was written: never closed")
    # A user block was added or removed after the write: the library counts from the superblock.
    end += place - base
    return _Superblock(
        version, offset_size, length_size, flags, place, end, root, driver, extension
    )


@dataclass(slots=True)
class _Walk:
    """Follows the groups from the root."""

    source: _Source
    top: _Superblock
    seen: set[int] = field(default_factory=set)
    waiting: list[tuple[str, int, int, int]] = field(default_factory=list)
    is_dense: bool = False

    def has_driver_info(self) -> bool:
        """Return whether another driver wrote the file, by the driver block of superblock version 0
        or by the superblock extension.  Raises Damage, Unfollowed."""
        if self.top.driver != self.top.undefined:
            name = self._at(self.top.driver, 16, "driver information")[8:]
            if not name.startswith(DRIVER_NAMES):
                raise self._damage("driver information", self.top.driver, "is none: damaged")
            return True
        if self.top.extension == self.top.undefined:
            return False
        messages = self._messages(self.top.extension)
        return any(kind == DRIVER_INFO for kind, _ in messages)

    def follow(self) -> None:
        """Walk all groups and datasets.  Raises Damage, Unfollowed."""
        self._later("object", self.top.root)
        while self.waiting:
            what, address, level, n_dimensions = self.waiting.pop()
            if address in self.seen:
                continue
            self.seen.add(address)
            if len(self.seen) > MOST_NODES:
                raise Unfollowed(f"more than {MOST_NODES:,} nodes")
            if what == "object":
                self._object(address)
            elif what == "symbols":
                self._symbols(address)
            else:
                self._tree(address, level, n_dimensions)
        if self.is_dense:
            raise Unfollowed("groups with many links")

    def _later(self, what: str, address: int, level: int = ROOT, n_dimensions: int = 0) -> None:
        """Queue a node for the walk.  level: of a tree node; ROOT if the level is unknown.
        n_dimensions: of chunks; 0: the tree belongs to a group.  Raises Unfollowed: too many nodes.
        """
        if len(self.waiting) > MOST_NODES:
            raise Unfollowed(f"more than {MOST_NODES:,} nodes")
        if address != self.top.undefined:
            self.waiting.append((what, address, level, n_dimensions))

    def _at(self, address: int, n_bytes: int, what: str) -> bytes:
        return self.source.at(self.top.base + address, n_bytes, what)

    def _damage(self, what: str, address: int, why: str) -> Damage:
        return self.source.damage(what, self.top.base + address, why)

    def _offset(self, data: bytes, place: int) -> int:
        return _number(data, place, self.top.offset_size)

    # Object headers

    def _messages(self, address: int) -> Iterator[tuple[int, bytes]]:
        """Yield type and content of an object header's messages.  Raises Damage, Unfollowed."""
        head = self._at(address, 8, "object header")
        if head[:4] == b"OHDR":
            chunks, start, is_ordered = self._second(address)
        elif head[0] == 1:
            (size,) = struct.unpack("<I", self._at(address, 12, "object header")[8:])
            chunks, start, is_ordered = [(address + 16, size)], None, False
        else:
            raise self._damage("object header", address, "is none: damaged or never written")
        done: set[int] = set()
        while chunks:
            place, size = chunks.pop()
            if place in done:
                raise self._damage("object header", address, "goes on at itself")
            done.add(place)
            if size > MOST_HEADER_BYTES:
                raise self._damage("object header", address, f"a part of {size:,} bytes")
            data = self._at(place, size, "object header")
            if start is None:
                messages = _first_messages(data)
            else:
                self.source.left_bytes -= SUM_COST * len(data)
                if lookup3(data[:-4]) != int.from_bytes(data[-4:], "little") or len(data) < start:
                    raise self._damage("object header", place, "its checksum does not fit")
                messages = _second_messages(data[start:-4], is_ordered)
                start = 4  # after the signature OCHK
            try:
                for kind, content in messages:
                    if kind == CONTINUATION:
                        more = self._offset(content, 0)
                        length = _number(content, self.top.offset_size, self.top.length_size)
                        chunks.append((more, length))
                    else:
                        yield kind, content
            except ValueError:
                raise self._damage("object header", place, "a message beyond its end") from None

    def _second(self, address: int) -> tuple[list[tuple[int, int]], int, bool]:
        """Read an object header of version 2.  Return the first chunk with signature and checksum,
        the offset of the messages in that chunk, and whether messages have a creation order."""
        head = self._at(address, 6, "object header")
        version, flags = head[4], head[5]
        if version != 2:
            raise self._damage("object header", address, f"version {version} is not known")
        start = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        size = int.from_bytes(self._at(address + start, width, "object header"), "little")
        start += width
        return [(address, start + size + 4)], start, bool(flags & 0x04)

    def _object(self, address: int) -> None:
        for kind, content in self._messages(address):
            try:
                if kind == SYMBOL_TABLE:
                    self._later("tree", self._offset(content, 0))
                    self._heap(self._offset(content, self.top.offset_size))
                elif kind == LINK_INFO:
                    heap = self._offset(content, 2 + (8 if content[1] & 1 else 0))
                    self._signed(heap, (b"FRHP",), "heap of links")
                    self.is_dense = self.is_dense or heap != self.top.undefined
                elif kind == LINK:
                    self._link(content)
                elif kind == LAYOUT:
                    self._layout(content)
            except (ValueError, IndexError):
                raise self._damage("object header", address, "a message makes no sense") from None

    def _link(self, content: bytes) -> None:
        flags, place = content[1], 2
        kind = content[place] if flags & 0x08 else 0
        place += (1 if flags & 0x08 else 0) + (8 if flags & 0x04 else 0)
        place += 1 if flags & 0x10 else 0
        width = 1 << (flags & 3)
        place += width + _number(content, place, width)
        if kind == 0:
            self._later("object", self._offset(content, place))

    def _layout(self, content: bytes) -> None:
        """Check the extent of a dataset, or queue the list of the dataset's chunks."""
        version, width = content[0], self.top.offset_size
        if version in (1, 2):
            n_dimensions, kind = content[1], content[2]
            if kind == 2:
                self._later("tree", self._offset(content, 8), ROOT, n_dimensions)
            elif kind == 1:
                self._extent(self._offset(content, 8), 1)
        elif version in (3, 4, 5) and content[1] == 1:
            length = _number(content, 2 + width, self.top.length_size)
            self._extent(self._offset(content, 2), length)
        elif version == 3 and content[1] == 2:
            self._later("tree", self._offset(content, 3), ROOT, content[2])
        elif version in (4, 5) and content[1] == 2:
            self._chunks_of_4(content)

    def _chunks_of_4(self, content: bytes) -> None:
        flags, n_dimensions, width = content[2], content[3], content[4]
        place = 5 + n_dimensions * width
        sizes = [_number(content, at, width) for at in range(5, place, width)] if width else []
        kind, place = content[place], place + 1
        if kind == 1:
            length = 1
            for size in sizes:
                length *= size
            if flags & 0x02:  # filtered
                length = _number(content, place, self.top.length_size)
                place += self.top.length_size + 4
            self._extent(self._offset(content, place), length)
            return
        place += {2: 0, 3: 1, 4: 5, 5: 6}.get(kind, 0)
        address = self._offset(content, place)
        signature = {3: b"FAHD", 4: b"EAHD", 5: b"BTHD"}.get(kind)
        if signature:
            self._signed(address, (signature,), "index of chunks")

    def _extent(self, address: int, n_bytes: int) -> None:
        """Check that an extent is in the file.  Raises Damage: data beyond the end."""
        if address == self.top.undefined:  # the extent was never written
            return
        if self.top.base + address + n_bytes > self.source.size_bytes:
            raise self._damage("data", address, f"{n_bytes:,} bytes reach beyond the file's end")

    def _signed(self, address: int, signatures: tuple[bytes, ...], what: str) -> None:
        if address != self.top.undefined and self._at(address, 4, what) not in signatures:
            raise self._damage(what, address, "is none: damaged or never written")

    # Groups of the first kind, and trees of chunks

    def _heap(self, address: int) -> None:
        if address == self.top.undefined:
            return
        data = self._at(address, 8 + 2 * self.top.length_size + self.top.offset_size, "heap")
        if data[:4] != b"HEAP":
            raise self._damage("heap", address, "is none: damaged or never written")
        size = _number(data, 8, self.top.length_size)
        self._extent(self._offset(data, 8 + 2 * self.top.length_size), size)

    def _tree(self, address: int, expected_level: int, n_dimensions: int) -> None:
        width, is_group = self.top.offset_size, not n_dimensions
        head = self._at(address, 8 + 2 * width, "tree")
        level, n = head[5], int.from_bytes(head[6:8], "little")
        if head[:4] != b"TREE" or head[4] != (0 if is_group else 1):
            raise self._damage("tree", address, "is none: damaged or never written")
        siblings = self._offset(head, 8), self._offset(head, 8 + width)
        if 0 in siblings:  # the superblock's place: a node without a sibling has `undefined`
            raise self._damage("tree", address, "has zeros: damaged or never written")
        if level != (level if expected_level == ROOT else expected_level):
            raise self._damage("tree", address, f"a node of level {level}")
        key_bytes = self.top.length_size if is_group else 8 + 8 * n_dimensions
        step = key_bytes + width
        data = self._at(address + len(head), n * step + key_bytes, "tree")
        for start in range(0, n * step, step):
            child = self._offset(data, start + key_bytes)
            if level:
                self._later("tree", child, level - 1, n_dimensions)
            elif is_group:
                self._later("symbols", child)
            else:
                self._extent(child, int.from_bytes(data[start : start + 4], "little"))

    def _symbols(self, address: int) -> None:
        width = self.top.offset_size
        head = self._at(address, 8, "symbols of a group")
        n = int.from_bytes(head[6:8], "little")
        if head[:4] != b"SNOD":
            raise self._damage("symbols of a group", address, "are none: damaged or never written")
        if head[4] != 1 or not n:  # the library removes a node with its last symbol
            raise self._damage("symbols of a group", address, "have zeros: damaged, never written")
        size = 2 * width + 24
        data = self._at(address + 8, n * size, "symbols of a group")
        for start in range(0, n * size, size):
            is_soft = data[start + 2 * width] == 2
            if not is_soft:
                self._later("object", self._offset(data, start + width))


def _number(data: bytes, place: int, n_bytes: int) -> int:
    """Return the number at a place.  Raises ValueError: beyond the end."""
    if place + n_bytes > len(data):
        raise ValueError("more than there is")
    return int.from_bytes(data[place : place + n_bytes], "little")


def _first_messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a version 1 header.  Raises ValueError."""
    place = 0
    while place + 8 <= len(data):
        kind, size = struct.unpack_from("<HH", data, place)
        place += 8
        if place + size > len(data):
            raise ValueError("more than there is")
        yield kind, data[place : place + size]
        place += size


def _second_messages(data: bytes, is_ordered: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the messages of a version 2 header.  Raises ValueError."""
    place, head = 0, 6 if is_ordered else 4
    while place + head <= len(data):  # a gap at the end is shorter than a message
        kind, size = struct.unpack_from("<BH", data, place)
        place += head
        if place + size > len(data):
            raise ValueError("more than there is")
        yield kind, data[place : place + size]
        place += size


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _WORD


def lookup3(data: bytes) -> int:
    """Return Bob Jenkins' hashlittle() with initval 0: HDF5's checksum of metadata."""
    a = b = c = 0xDEADBEEF + len(data) & _WORD
    if not data:
        return c
    padded = data + bytes(-len(data) % 12)
    words: tuple[int, ...] = struct.unpack(f"<{len(padded) // 4}I", padded)
    for place in itertools.islice(range(0, len(words), 3), len(words) // 3 - 1):
        a, b, c = a + words[place], b + words[place + 1], c + words[place + 2]
        a = (a - c & _WORD) ^ _rotated(c & _WORD, 4)
        c = c + b & _WORD
        b = (b - a & _WORD) ^ _rotated(a, 6)
        a = a + c & _WORD
        c = (c - b & _WORD) ^ _rotated(b, 8)
        b = b + a & _WORD
        a = (a - c & _WORD) ^ _rotated(c, 16)
        c = c + b & _WORD
        b = (b - a & _WORD) ^ _rotated(a, 19)
        a = a + c & _WORD
        c = (c - b & _WORD) ^ _rotated(b, 4)
        b = b + a & _WORD
    a, b, c = a + words[-3] & _WORD, b + words[-2] & _WORD, c + words[-1] & _WORD
    c = (c ^ b) - _rotated(b, 14) & _WORD
    a = (a ^ c) - _rotated(c, 11) & _WORD
    b = (b ^ a) - _rotated(a, 25) & _WORD
    c = (c ^ b) - _rotated(b, 16) & _WORD
    a = (a ^ c) - _rotated(c, 4) & _WORD
    b = (b ^ a) - _rotated(a, 14) & _WORD
    return (c ^ b) - _rotated(b, 24) & _WORD
