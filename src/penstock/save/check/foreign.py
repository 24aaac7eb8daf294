"""Check the files of a framework against the file's own format.

Knows the bytes of zip archives (torch, Keras), safetensors, DCP's metadata, TensorFlow's index and
OCDBT; knows no tier.  Nothing is unpickled here: see pickles.py.  Each check raises Damage with the
defect in words, and counts the bytes without a checksum in the format.
"""

import io
import json
import os
import random
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from penstock.save.check.pickles import PickledObject, Refused, inert, pairs_of
from penstock.save.manifest import crc32

__all__ = [
    "MOST_METADATA_BYTES",
    "Damage",
    "Scope",
    "Unended",
    "check_dcp",
    "check_json",
    "check_ocdbt",
    "check_ocdbt_tree",
    "check_safetensors",
    "check_tf",
    "check_zip",
    "dcp_slices",
    "tf_entries",
    "torch_top",
]

READ_BYTES = 1 << 20
LEAST_RECORD_BYTES = 30  # in a zip archive, before the record's name and data
SAMPLE_PARTS = 16  # of a file, at level sample
MOST_METADATA_BYTES = 512 << 20  # the metadata of a million pieces take 270 MB
MOST_OVERLAP = 4  # DCP's pieces never share bytes; the limit keeps a file from a million reads
MOST_HEADER_BYTES = 100_000_000  # safetensors' own limit
MOST_STATE_BYTES = 16 << 20  # of a pickle from which a few values are read
ITEM_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6,
    "F6_E3M2": 6, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64,
}  # fmt: skip


class Damage(Exception):  # noqa: N818 - a finding, not an accident of ours
    """A defect of a file, in words."""


class Unended(Damage):
    """Damage of a file whose writer has not finished: cut short, or marked as open."""


@dataclass(slots=True)
class Scope:
    """The depth of a check, and the results.  level: sizes, sample or full.

    read_bytes: bytes compared with checksums.  unprotected_bytes: bytes without a checksum.
    unchecked: names of files without any possible check, even of the length.  by_name: names of
    files checked only by name, and for a size above 0.  meter: receives the bytes of each step, for
    progress.
    """

    level: str
    chance: random.Random = field(default_factory=lambda: random.Random(0))
    meter: Callable[[int], None] = lambda n_bytes: None
    read_bytes: int = 0
    unprotected_bytes: int = 0
    remarks: dict[str, None] = field(default_factory=dict)
    unchecked: dict[str, None] = field(default_factory=dict)
    by_name: dict[str, None] = field(default_factory=dict)

    def chosen(self, parts: list[Any]) -> list[Any]:
        """Return the parts to check: all, none, or the first, the last and a random sample."""
        if self.level == "full" or (self.level == "sample" and len(parts) <= SAMPLE_PARTS):
            return parts
        if self.level == "sizes":
            return []
        picked = {0, len(parts) - 1, *self.chance.sample(range(len(parts)), SAMPLE_PARTS - 2)}
        return [parts[place] for place in sorted(picked)]

    def add(self, n_bytes: int) -> None:
        self.read_bytes += n_bytes
        self.meter(n_bytes)


def check_json(data: bytes, name: str) -> Any:
    """Parse JSON.  Raises Damage."""
    if not data:
        raise Damage(f"{name}: empty")
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Damage(f"{name}: no JSON: cut short or damaged") from error


# --- zip: torch.save, Keras -----------------------------------------------------------------------


def check_zip(file: BinaryIO, name: str, scope: Scope, *, is_chosen: bool = False) -> None:
    """Check a zip archive by the directory and by the CRC-32 of the records.  Raises Damage.

    is_chosen: the archive is a part of a sample already: check all records.
    """
    try:
        archive = zipfile.ZipFile(file)
        infos = archive.infolist()
    except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
        raise Unended(f"{name}: no whole zip archive ({error}): cut short or damaged") from error
    if not infos:
        raise Damage(f"{name}: an empty archive")
    for info in infos:
        if info.header_offset + LEAST_RECORD_BYTES + info.compress_size > archive.start_dir:
            raise Damage(f"{name}: record {info.filename[:80]!r} reaches into the directory")
    if sum(info.compress_size + LEAST_RECORD_BYTES for info in infos) > archive.start_dir:
        raise Damage(f"{name}: its records overlap each other")
    wanted = infos if is_chosen else scope.chosen(infos)
    wrong, right, right_bytes = [], 0, 0
    for info in wanted:
        why = _wrong_record(archive, info, scope)
        if why:
            wrong.append(f"{name}: record {info.filename!r}: {why}")
        elif info.file_size:  # an empty record matches any CRC
            right, right_bytes = right + 1, right_bytes + info.file_size
    scope.read_bytes += right_bytes
    if wrong and not right and len(wanted) > 2 and all("CRC" in problem for problem in wrong):
        # torch.serialization.set_crc32_options(False) writes no CRC at all.
        scope.unprotected_bytes += sum(info.file_size for info in infos)
        scope.remarks["written without CRC-32: content not checked"] = None
    elif wrong:
        more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise Damage(f"{wrong[0]}{more}")


def _wrong_record(archive: zipfile.ZipFile, info: zipfile.ZipInfo, scope: Scope) -> str:
    """Return why a record differs from the directory; empty: no difference."""
    try:
        with archive.open(info) as record:
            crc, size = 0, 0
            # Without zipfile's own check, which misses records that end early.
            record._expected_crc = None  # type: ignore[attr-defined]
            while data := record.read(READ_BYTES):
                crc = crc32(data, crc)
                size += len(data)
                scope.meter(len(data))
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, NotImplementedError) as error:
        return f"cannot be read: {error}"
    except (RuntimeError, OSError, struct.error) as error:  # encrypted; past the end
        return f"cannot be read: {error}"
    if size != info.file_size:
        return f"{size:,} bytes of {info.file_size:,}"
    return "" if crc == info.CRC else "its CRC-32 does not fit: the data have changed"


# --- safetensors ----------------------------------------------------------------------------------


def check_safetensors(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Check header, offsets and size; the format has no checksum.  Raises Damage."""
    if size_bytes < 8:
        raise Unended(f"{name}: {size_bytes} bytes are no safetensors file")
    (length,) = struct.unpack("<Q", file.read(8))
    if length > min(MOST_HEADER_BYTES, size_bytes - 8):
        raise Damage(f"{name}: a header of {length:,} bytes in a file of {size_bytes:,}")
    header = check_json(file.read(length), f"{name}: header")
    if not isinstance(header, dict):
        raise Damage(f"{name}: the header names no tensors")
    stretches = []
    for tensor, facts in header.items():
        if tensor != "__metadata__":
            stretches.append(_stretch_of(tensor, facts, name))
    place = 0
    for start, end in sorted(stretches):
        if start != place:
            raise Damage(f"{name}: a gap or an overlap at byte {place:,} of the data")
        place = end
    if 8 + length + place != size_bytes:
        kind = Unended if size_bytes < 8 + length + place else Damage
        raise kind(f"{name}: {size_bytes:,} bytes, and its header tells of {8 + length + place:,}")
    scope.unprotected_bytes += size_bytes


def _stretch_of(tensor: str, facts: Any, name: str) -> tuple[int, int]:
    try:
        start, end = facts["data_offsets"]
        is_right = isinstance(start, int) and isinstance(end, int) and 0 <= start <= end
        shape = facts["shape"]
        if not is_right or not all(isinstance(extent, int) and extent >= 0 for extent in shape):
            raise ValueError
        bits = 0 if 0 in shape else ITEM_BITS.get(facts["dtype"])
        for extent in shape:
            if bits is not None and bits <= 8 * (end - start):  # else wrong already
                bits *= extent
        is_right = is_right and (bits is None or bits == 8 * (end - start))
    except (TypeError, ValueError, KeyError) as error:
        raise Damage(f"{name}: tensor {tensor[:80]!r} is described wrongly") from error
    if not is_right:
        raise Damage(f"{name}: tensor {tensor[:80]!r} has bytes that do not fit its shape")
    return start, end


# --- torch.distributed.checkpoint -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ItemSlice:
    """The position of an item of a DCP checkpoint."""

    path: str
    offset: int
    length: int


def check_dcp(
    metadata: bytes, sizes: dict[str, int], open_file: Callable[[str], BinaryIO], scope: Scope
) -> None:
    """Check that each slice in .metadata lies within a file and fits the CRC-32.  Raises Damage."""
    slices = dcp_slices(metadata)
    if not slices:
        raise Damage(".metadata: names no data")
    for piece in slices:
        if piece.path not in sizes:
            raise Damage(f"{piece.path}: named in .metadata and not there")
        if piece.offset < 0 or piece.length < 0 or piece.offset + piece.length > sizes[piece.path]:
            raise Damage(
                f"{piece.path}: {sizes[piece.path]:,} bytes, and .metadata knows data up to "
                f"{piece.offset + piece.length:,}"
            )
    named, there = sum(piece.length for piece in slices), sum(sizes.values())
    if named > MOST_OVERLAP * there:
        raise Damage(f".metadata: names {named:,} bytes in files of {there:,}: not read")
    files: dict[str, BinaryIO] = {}
    try:
        for piece in scope.chosen(sorted(slices, key=lambda piece: (piece.path, piece.offset))):
            if piece.path not in files:
                for file in files.values():
                    file.close()
                files = {piece.path: open_file(piece.path)}
            _check_slice(files[piece.path], piece, scope)
    finally:
        for file in files.values():
            file.close()


def torch_top(file: BinaryIO, fields: Iterable[str] = ()) -> dict[str, Any]:
    """Return the top-level values of a file of torch.save by key.

    Numbers and texts are unchanged, objects are PickledObjects with the given fields, other values
    are inert.  Empty: no mapping, or the content cannot be read without unpickling.
    """
    try:
        archive = zipfile.ZipFile(file)
        (info,) = (entry for entry in archive.infolist() if entry.filename.endswith("/data.pkl"))
        if info.file_size > MOST_STATE_BYTES:
            return {}
        top = inert(archive.read(info), frozenset(fields))
    except (Refused, zipfile.BadZipFile, zlib.error, ValueError, NotImplementedError, EOFError):
        return {}
    except (RuntimeError, OSError, struct.error):  # encrypted; past the end
        return {}
    return {name: value for name, value in pairs_of(top) if isinstance(name, str)}


def _check_slice(file: BinaryIO, piece: ItemSlice, scope: Scope) -> None:
    where = f"{piece.path} at {piece.offset:,}"
    window = io.BufferedReader(_Window(file, piece.offset, piece.length), READ_BYTES)
    head = window.peek(4)[:4]
    if head == b"PK\x03\x04":
        check_zip(window, where, scope, is_chosen=True)
    elif piece.length and not any(head):
        raise Damage(f"{where}: zeros where an item begins: never written")
    else:
        scope.unprotected_bytes += piece.length


class _Window(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: BinaryIO, offset: int, length: int) -> None:
        self._file, self._offset, self._length, self._place = file, offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._place = max(0, (0, self._place, self._length)[whence] + offset)
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(0, self._length - self._place))
        self._file.seek(self._offset + self._place)
        data = self._file.read(wanted)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def dcp_slices(metadata: bytes) -> list[ItemSlice]:
    """Return the positions of a DCP checkpoint's items.  Raises Damage."""
    if not metadata:
        raise Damage(".metadata: empty")
    try:
        top = inert(metadata, ("storage_data", *_SLICE_FIELDS))
    except Refused as why:
        raise Damage(f".metadata: {why}") from why
    stored = top.fields.get("storage_data") if isinstance(top, PickledObject) else None
    if not isinstance(stored, list | PickledObject):
        raise Damage(".metadata: knows nothing of storage")
    pieces = []
    for _, value in pairs_of(stored):
        said = value.fields if isinstance(value, PickledObject) else {}
        path, offset, length = (said.get(key) for key in _SLICE_FIELDS)
        if not (isinstance(path, str) and isinstance(offset, int) and isinstance(length, int)):
            raise Damage(".metadata: an item without a place")
        pieces.append(ItemSlice(path, offset, length))
    return pieces


_SLICE_FIELDS = ("relative_path", "offset", "length")


# --- TensorFlow -----------------------------------------------------------------------------------

# tensorflow/core/lib/io/table_format.txt and format.h; tensor_bundle.proto.
TABLE_MAGIC = 0xDB4775248B80FB57
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # of a block: the compression, and the CRC-32C
MASK_DELTA = 0xA282EAD8
DT_STRING, DT_VARIANT = 7, 21


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor in the data files of a TensorFlow checkpoint."""

    key: str
    dtype: int
    n_items: int
    shard: int
    offset: int
    size: int
    crc: int


def check_tf(
    index: bytes, shards: dict[int, int], open_shard: Callable[[int], BinaryIO], scope: Scope
) -> None:
    """Check that every tensor of the index lies within a data file and fits the CRC-32C.

    shards: sizes of the data files by number.  Raises Damage.
    """
    entries = tf_entries(index)
    for entry in entries:
        if entry.shard not in shards:
            raise Damage(f"{entry.key}: its data file, number {entry.shard}, is not there")
        if entry.offset + entry.size > shards[entry.shard]:
            raise Damage(
                f"{entry.key}: reaches to byte {entry.offset + entry.size:,} of a data file of "
                f"{shards[entry.shard]:,}"
            )
    crc32c = _crc32c(scope, sum(entry.size for entry in entries))
    if crc32c is None:
        return
    files: dict[int, BinaryIO] = {}
    try:
        for entry in scope.chosen(entries):
            if entry.shard not in files:
                files[entry.shard] = open_shard(entry.shard)
            if entry.dtype == DT_VARIANT:
                scope.unprotected_bytes += entry.size
            else:
                _check_entry(files[entry.shard], entry, crc32c, scope)
    finally:
        for file in files.values():
            file.close()


def _check_entry(
    file: BinaryIO, entry: TensorEntry, crc32c: Callable[..., int], scope: Scope
) -> None:
    file.seek(entry.offset)
    crc, rest = 0, entry.size
    if entry.dtype == DT_STRING:
        crc, rest = _crc_of_lengths(file, entry, crc32c)
    while rest:
        data = file.read(min(READ_BYTES, rest))
        if not data:
            break
        crc = crc32c(data, crc)
        rest -= len(data)
    scope.add(entry.size)
    if rest or _masked(crc) != entry.crc:
        raise Damage(f"{entry.key}: its CRC-32C does not fit: the data have changed")


def _crc_of_lengths(
    file: BinaryIO, entry: TensorEntry, crc32c: Callable[..., int]
) -> tuple[int, int]:
    """Return the CRC of the lengths of a string tensor, and the number of bytes that follow.

    The lengths come before the strings, and are summed as numbers of four or eight bytes.  The
    checksum of the lengths follows, and is summed too.  (WriteStringTensor in tensor_bundle.cc.)
    Raises Damage.
    """
    crc, used = 0, 0
    for _ in range(entry.n_items):
        value, shift = 0, 0
        while True:
            byte = file.read(1)
            if not byte or shift > 63 or used >= entry.size:
                raise Damage(f"{entry.key}: lengths of texts that make no sense")
            used += 1
            value |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                break
        crc = crc32c(struct.pack("<I" if value <= 0xFFFFFFFF else "<Q", value & (1 << 64) - 1), crc)
    stored_crc = file.read(4)
    if len(stored_crc) < 4 or struct.unpack("<I", stored_crc)[0] != _masked(crc):
        raise Damage(f"{entry.key}: the lengths of its texts have changed")
    return crc32c(stored_crc, crc), max(0, entry.size - used - 4)


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + MASK_DELTA) & 0xFFFFFFFF


def _crc32c(scope: Scope, n_bytes: int) -> Callable[..., int] | None:
    if scope.level == "sizes":
        return None
    try:
        from crc32c import crc32c
    except ModuleNotFoundError:
        scope.unprotected_bytes += n_bytes
        scope.remarks["CRC-32C not checked: pip install 'penstock[save]'"] = None
        return None
    return crc32c  # type: ignore[no-any-return]


def tf_entries(index: bytes) -> list[TensorEntry]:
    """Return the tensors of an index, in the order of the data.  Raises Damage."""
    try:
        return sorted(_entries(index), key=lambda entry: (entry.shard, entry.offset))
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise Damage("the index cannot be read: cut short or damaged") from error


def _entries(index: bytes) -> Iterator[TensorEntry]:
    footer = index[-FOOTER_BYTES:]
    if len(footer) < FOOTER_BYTES or struct.unpack("<Q", footer[-8:])[0] != TABLE_MAGIC:
        raise Damage("the index has no footer: cut short or damaged")
    place = 0
    offset, place = _varint(footer, place)
    size, place = _varint(footer, place)
    list(_block(index, offset, size))  # empty, but with a checksum
    offset, place = _varint(footer, place)
    size, _ = _varint(footer, place)
    for _, handle in _block(index, offset, size):
        start, place = _varint(handle, 0)
        length, _ = _varint(handle, place)
        for key, value in _block(index, start, length):
            if key:  # the first entry has no name, and describes the whole checkpoint
                yield _entry(key.decode("utf-8", "replace"), value)


def _block(index: bytes, offset: int, size: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield keys and values of a block of the table; each key shares a prefix with the key before.

    Raises Damage.
    """
    if offset + size + TRAILER_BYTES > len(index) or size < 4:
        raise Damage("the index points beyond its end")
    block = index[offset : offset + size]
    trailer = index[offset + size : offset + size + TRAILER_BYTES]
    try:
        from crc32c import crc32c
    except ModuleNotFoundError:
        pass
    else:
        if struct.unpack("<I", trailer[1:])[0] != _masked(crc32c(trailer[:1], crc32c(block))):
            raise Damage("the index: the checksum of a block does not fit")
    if trailer[0]:
        raise Damage("the index is compressed: not a checkpoint's")
    (restarts,) = struct.unpack("<I", block[-4:])
    end, place, key = size - 4 - 4 * restarts, 0, b""
    while place < end:
        shared, place = _varint(block, place)
        more, place = _varint(block, place)
        length, place = _varint(block, place)
        key = key[:shared] + block[place : place + more]
        place += more
        yield key, block[place : place + length]
        place += length


def _entry(key: str, value: bytes) -> TensorEntry:
    """Parse a BundleEntryProto: dtype 1, shape 2, shard 3, offset 4, size 5, crc32c 6."""
    facts = {1: 0, 3: 0, 4: 0, 5: 0, 6: 0}
    items = 1
    for number, field_value in _fields(value):
        if number == 2 and isinstance(field_value, bytes):
            for inner, extent in _fields(field_value):
                if inner == 2 and isinstance(extent, bytes):
                    sizes = [
                        n
                        for field_number, n in _fields(extent)
                        if field_number == 1 and isinstance(n, int)
                    ]
                    items *= sizes[0] if sizes else 0
        elif number in facts and isinstance(field_value, int):
            facts[number] = field_value
    return TensorEntry(key, facts[1], items, facts[3], facts[4], facts[5], facts[6])


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a protocol buffer with their numbers."""
    place = 0
    while place < len(message):
        tag, place = _varint(message, place)
        number, kind = tag >> 3, tag & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield number, value
        elif kind == 2:
            length, place = _varint(message, place)
            yield number, message[place : place + length]
            place += length
        elif kind in (1, 5):
            width = 8 if kind == 1 else 4
            yield number, int.from_bytes(message[place : place + width], "little")
            place += width
        else:
            raise ValueError("a field of an unknown kind")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value, shift = 0, 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


# --- Orbax ----------------------------------------------------------------------------------------

# tensorstore's page on its driver ocdbt: "Storage format".
OCDBT_MANIFEST, OCDBT_NODE = b"\x0c\xdb\x3a\x2a", b"\x0c\xdb\x20\xde"
NO_PLACE = (1 << 64) - 1  # as offset and length of the root of a tree without keys
MOST_NODE_BYTES = 128 << 20  # Orbax allows 100 MB per node
MOST_TREE_BYTES = 1 << 30  # of all nodes and names of files: ten million arrays
# Limits of a tree: a fixed amount, and more for each byte in the folder.  Nodes shrink to a tenth
# when packed, but beside each key lies a value.  2 to 5 µs per key.
SOME_TREE_BYTES, SOME_KEYS, SOME_NODES = 32 << 20, 200_000, 1000
TREE_BYTES_A_BYTE, KEY_BYTES, NODE_BYTES = 4, 8, 32
DST_TOO_SMALL = 70  # zstd_errors.h


class _Unread(Exception):  # noqa: N818 - says nothing against the file
    """Why the check of a tree stopped early."""


class _Body:
    """The fields of a manifest or of a node, read in order.

    Raises ValueError, IndexError: the data end too early.
    """

    def __init__(self, data: bytes) -> None:
        self._data, self._place = data, 0

    @property
    def size(self) -> int:
        return len(self._data)

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > len(self._data) - self._place:
            raise ValueError("more than there is")
        self._place += n_bytes
        return self._data[self._place - n_bytes : self._place]

    def number(self) -> int:
        value, self._place = _varint(self._data, self._place)
        return value

    def numbers(self, n: int) -> list[int]:
        if n > len(self._data) - self._place:
            raise ValueError("more than there is")
        return [self.number() for _ in range(n)]


@dataclass(frozen=True, slots=True)
class _Reference:
    """Bytes of a data file.  base: the prefix of the paths in a node at this position."""

    base: bytes
    path: bytes
    offset: int
    length: int


@dataclass(slots=True)
class _Tree:
    """A database whose data files are checked.

    sizes: of the files beside the manifest, by path relative to the manifest.  read: returns bytes
    of a file, by name, offset and length.
    """

    name: str
    sizes: dict[str, int]
    read: Callable[[str, int, int], bytes]
    scope: Scope
    left_bytes: int = 0
    left_keys: int = 0
    left_nodes: int = 0
    is_huge: bool = False

    def __post_init__(self) -> None:
        held = sum(self.sizes.values())
        self.left_bytes = SOME_TREE_BYTES + TREE_BYTES_A_BYTE * held
        self.left_keys = SOME_KEYS + held // KEY_BYTES
        self.left_nodes = SOME_NODES + held // NODE_BYTES
        self.is_huge = self.left_bytes > MOST_TREE_BYTES
        self.left_bytes = min(self.left_bytes, MOST_TREE_BYTES)

    def _spend(self, n_bytes: int, keys: int = 0, nodes: int = 0) -> None:
        """Count work before the work is done.

        Raises Damage: more work than a tree of these files can need; _Unread: the files are so
        large that the work may be needed.
        """
        self.left_bytes -= n_bytes
        self.left_keys -= keys
        self.left_nodes -= nodes
        if min(self.left_bytes, self.left_keys, self.left_nodes) >= 0:
            return
        if self.left_bytes < 0 and self.is_huge:
            raise _Unread(f"it has more than {MOST_TREE_BYTES:,} bytes")
        raise Damage(f"{self.name}: not followed: too large a tree for the files beside it")

    def check(self, root: _Reference, height: int) -> None:
        """Follow every reference.  Raises Damage, _Unread."""
        seen: set[_Reference] = set()
        waiting = [(root, height)]
        while waiting:
            node, height = waiting.pop()
            path = self._found(node)
            if node in seen:
                continue
            seen.add(node)
            where = f"{path} at {node.offset:,}"
            if node.length > MOST_NODE_BYTES:
                raise _Unread(f"a node has {node.length:,} bytes")
            self._spend(node.length, nodes=1)
            data, compared = self.read(path, node.offset, node.length), self.scope.read_bytes
            body = _ocdbt_body(data, OCDBT_NODE, where, self.scope, self.left_bytes)
            # The caller counts the whole file as unprotected: the file may hold values, too.
            self.scope.unprotected_bytes -= self.scope.read_bytes - compared
            self._spend(body.size)
            try:
                if body.take(1)[0] != height:
                    raise ValueError("not the height that was told")
                below = self._references(body, height, node.base)
            except (ValueError, IndexError) as error:
                raise Damage(f"{where}: a node that makes no sense") from error
            for inner in below:
                if height:
                    waiting.append((inner, height - 1))
                else:
                    self._found(inner)

    def _found(self, reference: _Reference) -> str:
        """Return the file's name.  Raises Damage: the file is missing, or too short."""
        path = os.fsdecode(reference.path)
        if path not in self.sizes:
            raise Damage(f"{path}: named by the tree of {self.name} and not there")
        if reference.offset + reference.length > self.sizes[path]:
            raise Damage(
                f"{path}: {self.sizes[path]:,} bytes, and the tree of {self.name} knows data up to "
                f"{reference.offset + reference.length:,}"
            )
        return path

    def newest(self, body: _Body) -> tuple[_Reference, int] | None:
        """Return root and height of a manifest's newest version; None: the version is empty."""
        body.take(16)  # the identity
        if body.number():
            raise _Unread("its manifest is in several files")
        body.numbers(2)  # the limits of an inline value, and of a node
        body.take(1)
        if body.number():
            body.take(4)  # the level of compression
        files = self._files(body, b"")
        n = body.number()
        body.numbers(n)
        heights = body.take(n)
        ids, offsets, lengths = (body.numbers(n) for _ in range(3))
        if not n or lengths[-1] == NO_PLACE:
            return None
        return _Reference(*files[ids[-1]], offsets[-1], lengths[-1]), heights[-1]

    def _references(self, body: _Body, height: int, base: bytes) -> list[_Reference]:
        files = self._files(body, base)
        n = body.number()
        self._spend(0, keys=n)
        body.numbers(max(0, n - 1))  # the lengths of the prefixes shared with the keys before
        rest = sum(body.numbers(n))
        if height:
            body.numbers(n)
        body.take(rest)
        if height:
            ids, offsets, lengths = (body.numbers(n) for _ in range(3))
        else:
            values = list(zip(body.numbers(n), body.numbers(n), strict=True))
            lengths = [length for length, is_elsewhere in values if is_elsewhere]
            ids, offsets = (body.numbers(len(lengths)) for _ in range(2))
        places = zip(ids, offsets, lengths, strict=True)
        return [_Reference(*files[number], offset, length) for number, offset, length in places]

    def _files(self, body: _Body, above: bytes) -> list[tuple[bytes, bytes]]:
        """Return the table of data files: for each the base of the paths below, and the path."""
        n = body.number()
        self._spend(0, keys=n)
        shared = [0, *body.numbers(max(0, n - 1))]
        more, bases = body.numbers(n), body.numbers(n)
        nodes, path = [], b""
        for kept, length, base in zip(shared, more, bases, strict=n > 0):
            if kept > len(path):
                raise ValueError("more than there is")
            path = path[:kept] + body.take(length)
            self._spend(len(above) + len(path))
            nodes.append((above + path[:base], above + path))
        return nodes


def check_ocdbt(data: bytes, name: str, scope: Scope) -> None:
    """Check a manifest of OCDBT: magic, length, CRC-32C at the end.  Raises Damage."""
    _ocdbt_packed(data, OCDBT_MANIFEST, name, scope)


def check_ocdbt_tree(
    data: bytes,
    name: str,
    sizes: dict[str, int],
    read: Callable[[str, int, int], bytes],
    scope: Scope,
) -> None:
    """Check a manifest as check_ocdbt does, and every data file of the newest version.

    Each data file must be there and be long enough: tensorstore treats a missing file as empty, and
    reads zeros.
    sizes: of the files beside the manifest, by path relative to the manifest.  read: returns bytes
    of a file, by name, offset and length.  Raises Damage.
    """
    tree = _Tree(name, sizes, read, scope)
    try:
        body = _ocdbt_body(data, OCDBT_MANIFEST, name, scope, tree.left_bytes)
        try:
            root = tree.newest(body)
        except (ValueError, IndexError) as error:
            raise Damage(f"{name}: makes no sense") from error
        if root is not None:
            tree.check(*root)
    except _Unread as why:
        scope.remarks[f"which data files OCDBT needs was not looked at: {why}"] = None


def _ocdbt_packed(data: bytes, magic: bytes, name: str, scope: Scope) -> bytes:
    """Return the bytes between a header of OCDBT and the CRC-32C.  Raises Damage."""
    what = "manifest" if magic == OCDBT_MANIFEST else "node"
    if len(data) < 16 or data[:4] != magic:
        raise Damage(f"{name}: no OCDBT {what}: cut short or damaged")
    (length,) = struct.unpack("<Q", data[4:12])
    if length != len(data):
        raise Damage(f"{name}: {len(data):,} bytes of {length:,}")
    crc32c = _crc32c(scope, 0)
    if crc32c and struct.unpack("<I", data[-4:])[0] != crc32c(data[:-4]):
        raise Damage(f"{name}: its CRC-32C does not fit")
    if crc32c:
        scope.add(len(data))
    return data[12:-4]


def _ocdbt_body(data: bytes, magic: bytes, name: str, scope: Scope, most_bytes: int) -> _Body:
    """Return the unpacked body.  most_bytes: unpacked.  Raises Damage, _Unread."""
    packed = _ocdbt_packed(data, magic, name, scope)
    try:
        version, place = _varint(packed, 0)
        method, place = _varint(packed, place)
    except (ValueError, IndexError) as error:
        raise Damage(f"{name}: makes no sense") from error
    if version or method > 1:
        raise _Unread(f"it is of version {version}, compressed by method {method}")
    return _Body(_unzstd(packed[place:], name, most_bytes) if method else packed[place:])


def _unzstd(packed: bytes, name: str, most_bytes: int) -> bytes:
    """Unpack zstd data (Python has a library from 3.14 on).

    Raises Damage; _Unread: too large, or no library on this machine.
    """
    import ctypes

    try:
        zstd = ctypes.CDLL("libzstd.so.1")
    except OSError as error:
        raise _Unread("libzstd.so.1 is not on this machine") from error
    size_t, pointer = ctypes.c_size_t, ctypes.c_void_p
    unpack, code_of = zstd.ZSTD_decompress, zstd.ZSTD_getErrorCode
    unpack.restype, unpack.argtypes = size_t, [pointer, size_t, ctypes.c_char_p, size_t]
    code_of.restype, code_of.argtypes = ctypes.c_int, [size_t]
    room = 16 * len(packed) + 4096
    while True:
        room = min(room, MOST_NODE_BYTES, most_bytes)
        block = ctypes.create_string_buffer(room)
        done = unpack(block, room, packed, len(packed))
        code = code_of(done)
        if not code:
            return block.raw[:done]
        if code != DST_TOO_SMALL:
            raise Damage(f"{name}: cannot be unpacked: damaged")
        if room == most_bytes:
            raise Damage(f"{name}: not followed: too large a tree for the files beside it")
        if room == MOST_NODE_BYTES:
            raise _Unread(f"a node has more than {MOST_NODE_BYTES:,} bytes")
        room *= 8
