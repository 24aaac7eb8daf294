"""Parse the footer of a Parquet file: row groups, and the place of each column.

The footer is Thrift's compact protocol.  Parsed here, and not by pyarrow, because pyarrow ends the
process when it is asked about an encrypted column, and a footer may be anybody's.  Every number is
checked before it is used; statistics, and what else is not needed, are skipped.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

__all__ = ["Footer", "FooterChunk", "FooterGroup", "parsed"]

TRUE, FALSE, BYTE, SHORT, INT, LONG, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
BEGIN = 4  # of the first column: behind the mark
MOST_DEPTH = 32  # of structures in each other; a footer has 8
DECIMAL = 5  # a field of LogicalType, and a value of ConvertedType
REPEATED = 2
PHYSICAL = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY",
            "FIXED_LEN_BYTE_ARRAY")  # fmt: skip
DICTIONARIES = {2, 8}  # encodings: PLAIN_DICTIONARY, RLE_DICTIONARY

# The wanted fields of each structure, {number: structure of the value, or of a list's items}.
Wanted = dict[int, Any]
COLUMN: Wanted = {1: None, 2: None, 3: None, 5: None, 6: None, 7: None, 9: None, 11: None}
CHUNK: Wanted = {1: None, 3: COLUMN, 8: {}}
GROUP: Wanted = {1: CHUNK, 3: None}
ELEMENT: Wanted = {1: None, 2: None, 3: None, 4: None, 5: None, 6: None, 10: {DECIMAL: {}}}
FILE: Wanted = {2: ELEMENT, 3: None, 4: GROUP, 8: {}}


class FooterChunk(NamedTuple):
    """A column of a row group.  name: of the top column.  path: names from the top, with dots.

    decoded: bytes in memory, estimated.  is_coded: most values are numbers into a dictionary.
    file: another file that holds the bytes, "" for none.
    """

    name: str
    path: str
    offset: int
    length: int
    decoded: int
    is_coded: bool
    file: str


class FooterGroup(NamedTuple):
    """A row group."""

    n_rows: int
    chunks: tuple[FooterChunk, ...]


class Footer(NamedTuple):
    """A footer.  is_encrypted: some columns cannot be read without a key."""

    n_rows: int
    groups: tuple[FooterGroup, ...]
    is_encrypted: bool


class _Leaf(NamedTuple):
    """A column of the schema.  width: bytes of a value in memory, 0: by length."""

    path: tuple[str, ...]
    width: int
    is_repeated: bool


# A column with fewer bytes a value than this is mostly numbers into a dictionary.  The decoded
# texts would take a multiple of what the footer says, so such a column stays a dictionary until a
# batch is given.
CODED_BYTES = 8
WIDTHS = {
    "BOOLEAN": 1,
    "INT32": 4,
    "INT64": 8,
    "INT96": 8,
    "FLOAT": 4,
    "DOUBLE": 8,
    "BYTE_ARRAY": 0,
}
DECIMAL_BYTES = 32  # at most


def parsed(content: bytes) -> Footer:
    """Return a footer.  Raises ValueError: it is damaged."""
    try:
        about = _Compact(content).structure(FILE, 0)
        leaves = _leaves(about[2])
        groups = tuple(_group(each, leaves) for each in about.get(4, []))
        return Footer(_whole(about[3]), groups, 8 in about)
    except (KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
        raise ValueError(f"a field of it is missing or of another type: {error!r}") from error


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError("a field of it is no number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, bytes):
        raise ValueError("a name in it is no text")
    return value.decode("utf-8", "surrogateescape")


def _leaves(elements: list[dict[int, Any]]) -> list[_Leaf]:
    """Return the columns of a schema, which lists a tree from its root on."""
    leaves: list[_Leaf] = []
    # (path, whether repeated, elements that are missing below)
    open_: list[tuple[tuple[str, ...], bool, int]] = []
    for number, element in enumerate(elements):
        if number and not open_:
            raise ValueError("its schema has more than one root")
        above: tuple[str, ...] = ()
        is_repeated = False
        if open_:
            above, is_repeated, left = open_.pop()
            open_.append((above, is_repeated, left - 1))
        path = (*above, _text(element[4])) if number else ()
        is_repeated = is_repeated or element.get(3) == REPEATED
        n_below = _whole(element.get(5, 0))
        if not 0 <= n_below <= len(elements) or len(path) > MOST_DEPTH:
            raise ValueError("its schema is no tree")
        if n_below or not number:
            open_.append((path, is_repeated, n_below))
        else:
            leaves.append(_Leaf(path, _width(element), is_repeated))
        while open_ and not open_[-1][2]:
            open_.pop()
    if open_:
        raise ValueError("its schema ends too soon")
    return leaves


def _width(element: dict[int, Any]) -> int:
    is_decimal = element.get(6) == DECIMAL or DECIMAL in element.get(10, {})
    if is_decimal:
        return DECIMAL_BYTES
    kind = _whole(element[1])
    if not 0 <= kind < len(PHYSICAL):
        raise ValueError(f"a column of type {kind}")
    return WIDTHS.get(PHYSICAL[kind], max(1, _whole(element.get(2, 1))))


def _group(about: dict[int, Any], leaves: list[_Leaf]) -> FooterGroup:
    columns = about.get(1, [])
    if len(columns) != len(leaves):
        raise ValueError(f"a row group of {len(columns):,} columns, the schema has {len(leaves):,}")
    chunks = tuple(map(_chunk, columns, leaves))
    n_rows = _whole(about[3])
    if not n_rows:  # has no page, so the places say nothing
        chunks = tuple(chunk._replace(offset=BEGIN, length=0) for chunk in chunks)
    return FooterGroup(n_rows, chunks)


def _chunk(about: dict[int, Any], leaf: _Leaf) -> FooterChunk:
    path = ".".join(leaf.path)
    if 3 not in about:  # an encrypted column keeps its own facts
        return FooterChunk(leaf.path[0], path, 0, 0, 0, False, _text(about.get(1, b"")))
    column = about[3]
    n, stored, length = (_whole(column[field]) for field in (5, 6, 7))
    if min(n, stored) < 0:
        raise ValueError(f"column {path!r} counts {n:,} values of {stored:,} bytes")
    offset, dictionary = _whole(column[9]), _whole(column.get(11, 0))
    if 0 < dictionary < offset:
        offset = dictionary
    is_coded = False
    decoded = n // 8 + 1 + (4 * n if leaf.is_repeated else 0) + leaf.width * n
    if not leaf.width:
        has_dictionary = any(encoding in DICTIONARIES for encoding in column[2])
        is_coded = has_dictionary and stored < CODED_BYTES * n
        decoded += stored + 4 * n
    file = _text(about.get(1, b""))
    return FooterChunk(leaf.path[0], path, offset, length, decoded, is_coded, file)


class _Compact:
    """Thrift's compact protocol.  Raises IndexError at the end of the bytes, ValueError."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    def structure(self, wanted: Wanted, depth: int) -> dict[int, Any]:
        """Return the wanted fields of a structure."""
        if depth > MOST_DEPTH:
            raise ValueError("it has too many structures in each other")
        values: dict[int, Any] = {}
        field = 0
        while (head := self._byte()) != 0:
            kind, step = head & 15, head >> 4
            field = field + step if step else self._number()
            if field in wanted:
                values[field] = self._value(kind, wanted[field] or {}, depth)
            else:
                self._value(kind, {}, depth)
        return values

    def _value(self, kind: int, wanted: Wanted, depth: int) -> Any:
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind == BYTE:
            return self._byte()
        if kind in (SHORT, INT, LONG):
            return self._number()
        if kind == DOUBLE:
            return self._bytes(8)
        if kind == BINARY:
            return self._bytes(self._varint())
        if kind == STRUCT:
            return self.structure(wanted, depth + 1)
        if kind in (LIST, SET):
            return self._list(wanted, depth + 1)
        if kind == MAP:
            return self._map(depth + 1)
        raise ValueError(f"a value of type {kind}")

    def _list(self, wanted: Wanted, depth: int) -> list[Any]:
        head = self._byte()
        n, kind = head >> 4, head & 15
        n = self._varint() if n == 15 else n
        if n > len(self._content) - self._at or depth > MOST_DEPTH:  # an item has a byte or more
            raise ValueError(f"a list of {n:,} values")
        if kind in (TRUE, FALSE):
            return list(self._bytes(n))
        return [self._value(kind, wanted, depth) for _ in range(n)]

    def _map(self, depth: int) -> None:
        n = self._varint()
        if n > len(self._content) - self._at or depth > MOST_DEPTH:
            raise ValueError(f"a map of {n:,} values")
        kinds = self._byte() if n else 0
        for _ in range(n):
            for kind in (kinds >> 4, kinds & 15):
                if kind in (TRUE, FALSE):
                    self._byte()
                else:
                    self._value(kind, {}, depth)

    def _byte(self) -> int:
        byte = self._content[self._at]
        self._at += 1
        return byte

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _number(self) -> int:
        varint = self._varint()
        return varint >> 1 ^ -(varint & 1)

    def _bytes(self, n_bytes: int) -> bytes:
        end = self._at + n_bytes
        if end > len(self._content):
            raise ValueError("it ends too soon")
        content = self._content[self._at : end]
        self._at = end
        return content
