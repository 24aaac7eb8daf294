"""Check whether NumPy (.npy) and GGUF files have the length stated in the header."""

import ast
import math
import re
from typing import Any, BinaryIO, Final

from penstock.save.check.foreign import Damage, Scope, Unended
from penstock.save.check.judges.pickled import Budget, end_of_pickle
from penstock.save.check.judges.stream import Stream, Unfollowed, unfollowed

__all__ = ["check_gguf", "check_npy", "is_gguf", "is_npy"]

NPY_MAGIC, GGUF_MAGIC = b"\x93NUMPY", b"GGUF"
MOST_NPY_HEADER_BYTES = 64 << 10  # NumPy reads 10,000 by default, and more on request
NEWER_VERSIONS = 15
MOST_ARRAYS = 100_000  # per file
MOST_EXTENTS = 64  # NumPy's limit of dimensions
MOST_FIELDS_DEPTH = 8
_CODE = re.compile(r"[<>|=]?([?biufcSaUVmMO])(\d*)(?:\[[^\]]*\])?")
_PLAIN_BYTES: Final = {"?": 1, "b": 1}  # codes without a number of bytes


def is_npy(head: bytes) -> bool:
    return head.startswith(NPY_MAGIC)


def is_gguf(head: bytes) -> bool:
    return head.startswith(GGUF_MAGIC)


# --- NumPy ----------------------------------------------------------------------------------------


def check_npy(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Check that the last of a file's consecutive arrays ends at the end of the file.

    Raises Damage.
    """
    scope.unprotected_bytes += size_bytes
    place, n_arrays, budget = 0, 0, Budget()
    try:
        while place < size_bytes:
            end = _end_of_array(file, name, place, size_bytes, budget, scope.level == "full")
            n_arrays += 1
            if n_arrays > MOST_ARRAYS:
                raise Unfollowed(f"more than {MOST_ARRAYS:,} arrays")
            if end > size_bytes:
                raise Unended(
                    f"{name}: {size_bytes:,} bytes, its header tells of {end:,}: cut short"
                )
            place = end
    except Unfollowed as why:
        unfollowed(name, scope, str(why))


def _end_of_array(
    file: BinaryIO, name: str, start: int, size_bytes: int, budget: Budget, is_full: bool
) -> int:
    """Return where an array ends.  Raises Damage, Unfollowed."""
    stream = Stream(file, name, "its header", start, size_bytes)
    if start:
        file.seek(start)
        if file.read(len(NPY_MAGIC)) != NPY_MAGIC:
            raise Damage(
                f"{name}: {size_bytes:,} bytes, and its array ends at {start:,}: more follows"
            )
    if stream.take(len(NPY_MAGIC)) != NPY_MAGIC:
        raise stream.damage("is none of NumPy's: damaged or never written")
    major, _ = stream.take(2)
    if major not in (1, 2, 3):
        if 3 < major <= NEWER_VERSIONS:
            raise Unfollowed(f"version {major} is newer than this program")
        raise stream.damage(f"version {major} is not known: damaged")
    length = stream.number(2 if major == 1 else 4)
    if length > stream.left_bytes:
        raise stream.cut()
    if length > MOST_NPY_HEADER_BYTES:
        raise Unfollowed(f"a header of {length:,} bytes")
    text = stream.take(length).decode("utf-8" if major == 3 else "latin-1", "replace")
    try:
        header = ast.literal_eval(text.strip())
        shape, kind = header["shape"], header["descr"]
        if not isinstance(shape, tuple) or len(shape) > MOST_EXTENTS:
            raise TypeError
        if not all(isinstance(extent, int) and extent >= 0 for extent in shape):
            raise TypeError
    except (ValueError, SyntaxError, KeyError, TypeError, RecursionError, MemoryError) as error:
        if re.search(r"\d+L\b", text):  # long integers as Python 2 wrote them
            raise Unfollowed("a header that Python 2 wrote") from error
        raise stream.damage("makes no sense: damaged") from error
    item_bytes = _item_bytes(kind)
    if item_bytes < 0:  # Python objects, stored as a pickle
        return end_of_pickle(file, name, stream.place, size_bytes, budget, is_full)
    return stream.place + item_bytes * math.prod(shape)


def _item_bytes(kind: Any, depth: int = 0) -> int:
    """Return the bytes of an element by the description; -1: Python objects.  Raises Unfollowed."""
    if depth > MOST_FIELDS_DEPTH:
        raise Unfollowed("fields in fields")
    if isinstance(kind, str):
        return _bytes_of_code(kind)
    if isinstance(kind, list):
        sizes = [_bytes_of_field(field, depth) for field in kind]
        return -1 if -1 in sizes else sum(sizes)
    if isinstance(kind, tuple) and len(kind) == 2:  # a type, and the shape of each element
        return _times(_item_bytes(kind[0], depth + 1), kind[1])
    raise Unfollowed(_UNKNOWN_SIZE)


_UNKNOWN_SIZE = "elements of a size that is not known"


def _bytes_of_code(code: str) -> int:
    match = _CODE.fullmatch(code)
    if match and match[1] == "O":
        return -1
    if not match or not (match[2] or match[1] in _PLAIN_BYTES):
        raise Unfollowed(_UNKNOWN_SIZE)
    n = int(match[2][:18]) if match[2] else _PLAIN_BYTES[match[1]]
    return 4 * n if match[1] == "U" else n


def _bytes_of_field(field: Any, depth: int) -> int:
    """Return the bytes of a field (name, type) or (name, type, shape); -1: Python objects."""
    if not isinstance(field, tuple) or len(field) not in (2, 3):
        raise Unfollowed(_UNKNOWN_SIZE)
    return _times(_item_bytes(field[1], depth + 1), field[2] if len(field) == 3 else ())


def _times(n_bytes: int, shape: Any) -> int:
    extents = shape if isinstance(shape, tuple) else (shape,)
    if not all(isinstance(extent, int) and extent >= 0 for extent in extents):
        raise Unfollowed(_UNKNOWN_SIZE)
    return n_bytes if n_bytes < 0 else n_bytes * math.prod(extents)


# --- GGUF -----------------------------------------------------------------------------------------

# Elements and bytes of a block, by type.  Source:
# github.com/ggml-org/ggml/blob/master/docs/gguf.md; block sizes: ggml-common.h, and gguf-py's
# GGML_QUANT_SIZES.
_BLOCKS: Final = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34),
    10: (256, 84), 11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292),
    16: (256, 66), 17: (256, 74), 18: (256, 98), 19: (256, 50), 20: (32, 18), 21: (256, 110),
    22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8), 28: (1, 8),
    29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36),
    41: (128, 18),
}  # fmt: skip
_VALUE_BYTES: Final = {
    0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8,
}  # fmt: skip
_TEXT, _ARRAY, _UINT32 = 8, 9, 4
ALIGNMENT = 32
MOST_VALUES = 10_000_000  # about 10 s; a vocabulary has a million texts at most
MOST_TENSORS = 1_000_000
MOST_DIMENSIONS, MOST_ARRAYS_DEPTH = 4, 4


def check_gguf(file: BinaryIO, name: str, size_bytes: int, scope: Scope) -> None:
    """Check that the file is as long as its header and padded tensors require.  Raises Damage."""
    scope.unprotected_bytes += size_bytes
    try:
        _Gguf(Stream(file, name, "GGUF", 0, size_bytes)).check()
    except Unfollowed as why:
        unfollowed(name, scope, str(why))


class _Gguf:
    """A GGUF file, read in order."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._order, self._width = stream, "little", 8
        self._left_values, self._alignment = MOST_VALUES, ALIGNMENT

    def check(self) -> None:
        """Check the whole file.  Raises Damage, Unfollowed."""
        stream = self._stream
        if stream.take(4) != GGUF_MAGIC:
            raise stream.damage("no signature: damaged or never written")
        version = stream.take(4)
        if version[:2] == b"\0\0":
            self._order = "big"
        number = int.from_bytes(version, "big" if self._order == "big" else "little")
        if 3 < number <= NEWER_VERSIONS:
            raise Unfollowed(f"version {number} is newer than this program")
        if number not in (1, 2, 3):
            raise stream.damage(f"version {number} is not known")
        self._width = 4 if number == 1 else 8
        n_tensors, n_values = self._size(), self._size()
        # Each name has at least a length field.
        if (n_tensors + n_values) * self._width > stream.left_bytes:
            raise stream.cut()
        if n_values > MOST_VALUES:
            raise Unfollowed(f"more than {MOST_VALUES:,} values")
        for _ in range(n_values):
            key = stream.take(self._text_bytes())
            self._value(stream.number(4, self._order), key)
        if n_tensors > MOST_TENSORS:
            raise Unfollowed(f"more than {MOST_TENSORS:,} tensors")
        ends = [self._tensor() for _ in range(n_tensors)]
        if self._alignment == 0:
            raise stream.damage("an alignment of 0: damaged")
        start = self._aligned(stream.place)
        size_bytes = stream.place + stream.left_bytes
        if not ends:
            start = min(start, size_bytes)
        end = start + max(ends, default=0)
        if end > size_bytes:
            raise Unended(
                f"{stream.name}: {size_bytes:,} bytes, and its tensors end at {end:,}: cut short"
            )
        if size_bytes > self._aligned(end):
            raise stream.damage(f"{size_bytes:,} bytes, its tensors end at {end:,}: more follows")

    def _aligned(self, place: int) -> int:
        return -(-place // self._alignment) * self._alignment

    def _size(self) -> int:
        return self._stream.number(self._width, self._order)

    def _text_bytes(self) -> int:
        n_bytes = self._size()
        if n_bytes > self._stream.left_bytes:
            raise self._stream.cut()
        return n_bytes

    def _value(self, kind: int, key: bytes = b"", depth: int = 0) -> None:
        """Skip a value.  Raises Damage, Unfollowed."""
        stream = self._stream
        if key == b"general.alignment" and kind == _UINT32:
            self._alignment = stream.number(4, self._order)
        elif kind in _VALUE_BYTES:
            stream.skip(_VALUE_BYTES[kind])
        elif kind == _TEXT:
            stream.skip(self._size())
        elif kind == _ARRAY and depth < MOST_ARRAYS_DEPTH:
            inner, n = stream.number(4, self._order), self._size()
            if inner in _VALUE_BYTES:
                stream.skip(n * _VALUE_BYTES[inner])
                return
            self._left_values -= n
            if n > stream.left_bytes:  # each element has a length field
                raise stream.cut()
            if self._left_values < 0:
                raise Unfollowed(f"more than {MOST_VALUES:,} values")
            for _ in range(n):
                self._value(inner, b"", depth + 1)
        else:
            raise stream.damage(f"a value of type {kind} at byte {stream.place:,}: damaged")

    def _tensor(self) -> int:
        """Return the end of a tensor, relative to the start of the tensor data.  Raises Damage,
        Unfollowed."""
        stream = self._stream
        stream.skip(self._size())
        n_dimensions = stream.number(4, self._order)
        if n_dimensions > MOST_DIMENSIONS:
            raise stream.damage(f"a tensor of {n_dimensions:,} dimensions: damaged")
        n_items = math.prod(self._size() for _ in range(n_dimensions))
        kind = stream.number(4, self._order)
        offset = stream.number(8, self._order)
        if kind not in _BLOCKS:
            raise Unfollowed(f"a tensor of type {kind}")
        in_block, block_bytes = _BLOCKS[kind]
        if n_items % in_block:
            raise stream.damage("a tensor of no whole number of blocks: damaged")
        return offset + n_items // in_block * block_bytes
