"""Check the chunks of Zarr arrays (versions 2 and 3) by the shape in the array's metadata.

Zarr has no checksum by default, and an absent chunk means the array's fill value.  An absent chunk
is reported, and counts as missing only if the writer stores every chunk.
"""

import itertools
import math
import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, BinaryIO

from penstock.places.stores import StoredFile
from penstock.save.check.foreign import Damage, Scope, Unended
from penstock.save.check.interior import Folders, by_folder, read_json
from penstock.save.check.judges.packed import check_gzip, check_zstd
from penstock.save.checkpoint import Checkpoint

__all__ = ["check_zarr"]

_ARRAYS = (".zarray", "zarr.json")
_GROUP, _CONSOLIDATED, _ATTRIBUTES = ".zgroup", ".zmetadata", ".zattrs"
_NODES = (*_ARRAYS, _GROUP)
_CHUNK = re.compile(r"(?:c[./])?\d+(?:[./]\d+)*|c")
# numcodecs and c-blosc: bytes 12 to 15 of the header are the length of the chunk.
BLOSC_HEADER_BYTES, BLOSC_LENGTH_AT = 16, 12
MOST_SEARCHED = 1_000_000
_ITEM_BITS = re.compile(r"(?:u?int|b?float|complex)(\d+)")


@dataclass(frozen=True, slots=True)
class _Array:
    """An array by its metadata.

    name: of the metadata's file.  start: the prefix of the names of chunks.  chunk_bytes: the
    length of each chunk; None: compressed, or unknown.  codec: the only compression; empty: none,
    or several steps.  fill: the value of an absent chunk; None: an absent chunk has no meaning.
    """

    name: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    start: str
    separator: str
    chunk_bytes: int | None
    codec: str
    fill: object

    @property
    def grid(self) -> tuple[int, ...]:
        """The number of chunks along each axis."""
        return tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    def key(self, place: Sequence[int]) -> str:
        numbers = self.separator.join(map(str, place))
        if not place:
            return self.start[:-1] if self.start else "0"
        return f"{self.start}{numbers}"

    def keys(self) -> Iterator[str]:
        """Return the names of all chunks, relative to the array's folder."""
        return map(self.key, itertools.product(*map(range, self.grid)))


def check_zarr(checkpoint: Checkpoint, scope: Scope, *, is_dense: bool = False) -> frozenset[str]:
    """Check the arrays of a checkpoint.  Return the names of the files judged here.

    is_dense: the writer stores every chunk, also a chunk of fill values.  Raises Damage.
    """
    folders = by_folder(checkpoint)
    nodes = _nodes_of(checkpoint, folders)
    if not nodes:
        return frozenset()
    _check_groups(checkpoint, folders, nodes)
    arrays = {folder: made for folder, data in nodes.items() if (made := _array_of(folder, data))}
    chunks: defaultdict[str, dict[str, StoredFile]] = defaultdict(dict)
    for folder, files in folders.items():
        array = folder if folder in arrays else _array_folder(folder)
        for name, file in files.items() if array in arrays else ():
            if _is_key(arrays[array], key := f"{folder}{name}"[len(array) :]):
                chunks[array][f"{array}{key}"] = file
    for folder, array_there in arrays.items():
        _check_array(checkpoint, folder, array_there, chunks[folder], scope, is_dense)
    return frozenset(name for there in chunks.values() for name in there)


def _nodes_of(checkpoint: Checkpoint, folders: Folders) -> dict[str, Any]:
    """Return the metadata of each array and group, by folder.  Raises Damage."""
    nodes = dict[str, Any]()
    for folder, files in folders.items():
        for name in _NODES:
            if name in files:
                data = read_json(checkpoint, files[name])
                if isinstance(data, dict) and data.get("zarr_format") in (2, 3):
                    nodes[folder] = {**data, "is_array": name != _GROUP and "shape" in data}
                    break
    return nodes


def _check_groups(checkpoint: Checkpoint, folders: Folders, nodes: Mapping[str, Any]) -> None:
    """Check that the metadata of each array and group is there.  Raises Damage."""
    for folder, data in nodes.items():
        for inner in _consolidated_in(checkpoint, folders, folder, data):
            if f"{folder}{inner}" not in nodes:
                raise Damage(f"{folder}{inner}: its metadata is missing, and the index names it")
    is_new = any(data["zarr_format"] == 3 for data in nodes.values())
    for folder, files in folders.items():
        array = _array_folder(folder)
        is_of_array = any(
            folder_of in nodes and nodes[folder_of]["is_array"] for folder_of in (folder, array)
        )
        if not is_of_array and _are_chunks(files) and not nodes.keys().isdisjoint(_above(folder)):
            mark = "zarr.json" if is_new else ".zarray"
            raise Damage(f"{array}{mark}: is missing, and chunks are there")
    wanted = _groups_above(nodes) | ({""} if checkpoint.name.endswith(".zarr") else set())
    for folder in sorted(wanted - nodes.keys()):
        raise Damage(f"{folder}{'zarr.json' if is_new else _GROUP}: is missing")


def _are_chunks(files: Mapping[str, StoredFile]) -> bool:
    names = files.keys() - {_ATTRIBUTES}
    return bool(names) and all(map(_CHUNK.fullmatch, names))


def _groups_above(nodes: Mapping[str, Any]) -> set[str]:
    """Return the folders that must be groups.

    These are the folders named `.zarr`, and the folders between the outermost group and each node.
    Orbax writes arrays without groups.
    """
    groups = {folder for folder, data in nodes.items() if not data["is_array"]}
    wanted = set[str]()
    for folder in nodes:
        above = _above(folder)
        wanted.update(path for path in above if path.endswith(".zarr/"))
        tops = [at for at, path in enumerate(above) if path in groups]
        wanted.update(above[tops[0] :] if tops else ())
    return wanted


def _above(folder: str) -> list[str]:
    """Return the folders above a folder, from the outermost: of `a/b/` the folders `` and `a/`."""
    parts = folder.split("/")[:-2]
    above = ["".join(f"{part}/" for part in parts[:n]) for n in range(len(parts) + 1)]
    return above if folder else []


def _consolidated_in(
    checkpoint: Checkpoint, folders: Folders, folder: str, data: Mapping[str, Any]
) -> list[str]:
    """Return the folders of the nodes in a group's index."""
    own = data.get("consolidated_metadata")
    if isinstance(own, dict) and isinstance(own.get("metadata"), dict):
        return [f"{name}/" for name in own["metadata"]]
    file = folders[folder].get(_CONSOLIDATED)
    index = read_json(checkpoint, file) if file is not None else {}
    named = index.get("metadata") if isinstance(index, dict) else None
    names = named if isinstance(named, dict) else {}
    return [name.removesuffix(suffix) for name in names for suffix in (".zarray", _GROUP)
            if name.endswith(f"/{suffix}")]  # fmt: skip


def _array_folder(folder: str) -> str:
    """Return the array's folder for a folder of chunks: `w/` for `w/c/0/1/`."""
    return re.sub(r"(?:(?<=/)|^)(?:c/)?(?:\d+/)*$", "", folder)


def _array_of(folder: str, data: Mapping[str, Any]) -> _Array | None:
    """Return an array; None: a group, or a grid of an unknown kind.  Raises Damage."""
    if not data["is_array"]:
        return None
    is_new = data["zarr_format"] == 3
    name = f"{folder}{'zarr.json' if is_new else '.zarray'}"
    chunks: Any = data.get("chunks")
    start, separator = "", data.get("dimension_separator") or "."
    if is_new:
        chunks = _inner(data, "chunk_grid", "chunk_shape")
        encoding = data.get("chunk_key_encoding")
        is_default = not isinstance(encoding, dict) or encoding.get("name") == "default"
        separator = _inner(data, "chunk_key_encoding", "separator") or "./"[is_default]
        start = f"c{separator}" if is_default else ""
    shape: Any = data.get("shape")
    if not _are_sizes(shape, 0):
        raise Damage(f"{name}: no shape: damaged")
    if not _are_sizes(chunks, 1) or len(chunks) != len(shape) or separator not in ("/", "."):
        return None
    codec, item_bytes = _codec_of(data), _item_bytes(data)
    chunk_bytes = None
    if codec is not None and not codec and item_bytes:
        chunk_bytes = math.prod(chunks) * item_bytes
    fill = data.get("fill_value")
    return _Array(
        name, tuple(shape), tuple(chunks), start, separator, chunk_bytes, codec or "", fill
    )


def _inner(data: Mapping[str, Any], key: str, inner: str) -> Any:
    outer = data.get(key)
    settings = outer.get("configuration") if isinstance(outer, dict) else None
    return settings.get(inner) if isinstance(settings, dict) else None


def _are_sizes(value: Any, least: int) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= least for size in value)


def _codec_of(data: Mapping[str, Any]) -> str | None:
    """Return the name of the compression; empty: none; None: several steps, or not known."""
    if data["zarr_format"] == 2:
        codec = data.get("compressor")
        return None if data.get("filters") else str(codec.get("id")) if codec else ""
    rows = data.get("codecs")
    names = [checkpoint.get("name") for checkpoint in rows] if isinstance(rows, list) else []
    if not names or names[0] != "bytes" or len(names) > 2:
        return None
    return "" if len(names) == 1 else str(names[1])


def _item_bytes(data: Mapping[str, Any]) -> int:
    """Return the size of an element; 0: not known."""
    kind = data.get("dtype") if data["zarr_format"] == 2 else data.get("data_type")
    if not isinstance(kind, str):
        return 0
    if match := re.fullmatch(r"[<>|=]?[biufcV](\d+)", kind):
        return int(match[1][:6])
    match = _ITEM_BITS.fullmatch(kind)
    return 1 if kind == "bool" else int(match[1][:4]) // 8 if match else 0


def _check_array(
    checkpoint: Checkpoint,
    folder: str,
    array: _Array,
    there: Mapping[str, StoredFile],
    scope: Scope,
    is_dense: bool,
) -> None:
    """Check the chunks of an array.  Raises Damage."""
    n_wanted = math.prod(array.grid)
    if len(there) < n_wanted:
        keys = itertools.islice(array.keys(), MOST_SEARCHED)
        lost = next((key for key in keys if f"{folder}{key}" not in there), "a chunk")
        if is_dense or array.fill is None:
            raise Damage(f"{folder}{lost}: is missing, of {n_wanted:,} chunks by {array.name}")
        scope.by_name[array.name] = None
        scope.remarks[
            f"{folder}{lost}: absent, as {n_wanted - len(there):,} of {n_wanted:,} chunks, which "
            f"means {array.fill}: cannot be told from a chunk that is lost"
        ] = None
    for name, chunk in there.items():
        if not chunk.size_bytes:
            raise Unended(f"{name}: empty")
    _check_lengths(checkpoint, array, there, scope)


def _is_key(array: _Array, key: str) -> bool:
    """Return True for the name of a chunk inside the array's shape."""
    if not array.grid:
        return key == array.key(())
    numbers = key.removeprefix(array.start).split(array.separator)
    return (
        key.startswith(array.start)
        and len(numbers) == len(array.grid)
        and all(number.isdecimal() and number.isascii() for number in numbers)
        and all(int(number[:18]) < most for number, most in zip(numbers, array.grid, strict=True))
    )


def _check_lengths(
    checkpoint: Checkpoint, array: _Array, there: Mapping[str, StoredFile], scope: Scope
) -> None:
    judge = _LENGTHS.get(array.codec)
    for name, chunk in there.items():
        if array.chunk_bytes is not None:
            if chunk.size_bytes != array.chunk_bytes:
                raise Unended(f"{name}: {chunk.size_bytes:,} bytes of {array.chunk_bytes:,}")
            scope.unprotected_bytes += chunk.size_bytes
        elif judge is None:
            scope.by_name[name] = None
            scope.unprotected_bytes += chunk.size_bytes
    if judge is None or array.chunk_bytes is not None:
        return
    for name in scope.chosen(sorted(there)):
        with closing(checkpoint.store.open(there[name].name)) as file:
            judge(file, name, there[name].size_bytes, scope)


def _check_blosc(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    head = file.read(BLOSC_HEADER_BYTES)
    wanted = struct.unpack_from("<I", head.ljust(BLOSC_HEADER_BYTES, b"\0"), BLOSC_LENGTH_AT)[0]
    if size_bytes < BLOSC_HEADER_BYTES or wanted != size_bytes:
        raise Unended(f"{name}: {size_bytes:,} bytes, and the chunk's header states {wanted:,}")
    scope.unprotected_bytes += size_bytes


_LENGTHS: dict[str, Callable[[BinaryIO, str, int, Scope], None]] = {
    "blosc": _check_blosc, "gzip": check_gzip, "zstd": check_zstd,
}  # fmt: skip
