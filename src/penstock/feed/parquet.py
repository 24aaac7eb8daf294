"""Parse the footers of Parquet files, and decode row groups from the bytes of their columns.

A record of the index is a row group: the span of its column chunks.  A footer is read once, by
`spans`, and kept in the index, so later reads are of column chunks alone: those of the chosen
columns.  pyarrow parses and decodes; all offsets and counts of a footer are checked here before a
byte is read by them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError, FeedRefused, MissingDependency
from penstock.feed import footer
from penstock.feed.byte_file import ByteFile, opened
from penstock.feed.footer import Footer, FooterChunk, FooterGroup
from penstock.feed.plan import PAGE_BYTES
from penstock.feed.spans import Advance, Spans, numbered

if TYPE_CHECKING:
    from penstock.feed.index import Index

__all__ = ["Chunks", "RowGroups", "arrow", "is_parquet", "spans", "wrong_groups"]

MARK, ENCRYPTED = b"PAR1", b"PARE"
END_BYTES = 8  # the length of the footer, and the mark
TAIL_BYTES = 64 << 10  # most footers are shorter, and come with the first read
MOST_FOOTER_BYTES = 64 << 20
MOST_ROWS = 1 << 40  # of a row group; a larger number means a damaged footer
DECODED_AT_ONCE = 16 << 20  # bytes of a row group, by the footer
KEPT_FOOTERS = 64  # parsed


def arrow() -> tuple[Any, Any]:
    """Return pyarrow and pyarrow.parquet.  Raises MissingDependency."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "to read Parquet needs pyarrow: pip install 'penstock[parquet]'"
        ) from error
    return pyarrow, pyarrow.parquet


def is_parquet(head: bytes) -> bool:
    """Return whether `head` begins a Parquet file."""
    return head[:4] in (MARK, ENCRYPTED)


# --- footers -------------------------------------------------------------------------------------


def spans(path: str, progress: Advance | None = None) -> Spans:
    """Return a span for each row group of a file, in file order, and the footer.

    Raises FeedError: no footer, a damaged one, or columns outside the file.
    """
    with opened(path) as file:
        size = file.size()
        content = _footer(file, size, path)
    about = _facts(content, path)
    end = size - END_BYTES - len(content)
    offset, length = [], []
    for number, group in enumerate(about.groups):
        _check_group(group, number, end, path)
        first = min((each.offset for each in group.chunks), default=len(MARK))
        last = max((each.offset + each.length for each in group.chunks), default=first)
        offset.append(first)
        length.append(last - first)
        if progress is not None:
            progress(number + 1, len(about.groups))
    prefix = os.fsencode(Path(path).name) + b"/"
    return Spans(
        np.array(offset, np.int64),
        np.array(length, np.int64),
        *numbered(prefix, len(offset)),
        footer=zlib.compress(content, 3),
    )


def _footer(file: ByteFile, size: int, path: str) -> bytes:
    least = 2 * len(MARK) + 4
    tail = _read(file, min(size, TAIL_BYTES), size, path)
    if tail[-4:] == ENCRYPTED:
        raise FeedRefused(f"{path}: its footer is encrypted; no key of Parquet's is known here")
    if size < least or tail[-4:] != MARK:
        raise FeedError(
            f"{path}: does not end with a footer of Parquet; it is truncated, or still being "
            "written"
        )
    n_bytes = int.from_bytes(tail[-END_BYTES:-4], "little")
    if n_bytes > size - least:
        raise FeedError(
            f"{path}: its end tells a footer of {n_bytes:,} bytes, the file has {size:,}; it is "
            "damaged, copy it from where it is whole"
        )
    if n_bytes > MOST_FOOTER_BYTES:
        raise FeedRefused(f"{path}: a footer of {n_bytes:,} bytes; read are {MOST_FOOTER_BYTES:,}")
    more = n_bytes + END_BYTES - len(tail)
    if more > 0:
        tail = _read(file, more, size - len(tail), path) + tail
    return tail[-END_BYTES - n_bytes : -END_BYTES]


def _read(file: ByteFile, n_bytes: int, end: int, path: str) -> bytes:
    """Return the bytes before an offset."""
    content = file.pread(n_bytes, end - n_bytes) if n_bytes else b""
    if len(content) < n_bytes:
        raise FeedError(f"{path}: has become shorter while it was read; index it when it is whole")
    return content


def _facts(content: bytes, path: str) -> Footer:
    """Return a footer whose counts agree.  Raises FeedError."""
    try:
        about = footer.parsed(content)
    except ValueError as error:
        raise FeedError(
            f"{path}: its footer cannot be read ({_short(error)}); the file is damaged, copy it "
            "from where it is whole"
        ) from error
    if about.is_encrypted:
        raise FeedRefused(f"{path}: its columns are encrypted; no key of Parquet's is known here")
    n_rows = sum(group.n_rows for group in about.groups)
    if about.n_rows != n_rows or any(not 0 <= g.n_rows <= MOST_ROWS for g in about.groups):
        raise FeedError(
            f"{path}: the footer counts {about.n_rows:,} rows, its row groups {n_rows:,}; the file "
            "is damaged, copy it from where it is whole"
        )
    return about


def _check_group(group: FooterGroup, number: int, end: int, path: str) -> None:
    """Raise FeedError if a column lies outside the file; FeedRefused: in another file."""
    for chunk in group.chunks:
        if chunk.file:
            raise FeedRefused(
                f"{path}: holds no rows, its columns lie in {chunk.file!r}; name those files"
            )
        if not (len(MARK) <= chunk.offset and 0 <= chunk.length <= end - chunk.offset):
            raise FeedError(
                f"{path}: column {chunk.path!r} of row group {number} lies at {chunk.offset:,} "
                f"with {chunk.length:,} bytes, the columns end at {end:,}; the file is truncated "
                "or damaged"
            )


def _parsed(content: bytes, path: str) -> Any:
    """Return a footer for the decoder, pyarrow's FileMetaData."""
    pyarrow, parquet = arrow()
    whole = MARK + content + len(content).to_bytes(4, "little") + MARK
    try:
        return parquet.read_metadata(pyarrow.BufferReader(whole))
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise FeedError(
            f"{path}: its footer cannot be read ({_short(error)}); the file is damaged, copy it "
            "from where it is whole"
        ) from error


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 160 else f"{text[:157]}..."


# --- the row groups of a data set ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RowGroups:
    """The row groups of a data set with the chosen columns.

    names: the chosen columns, in the order of the batches.  rows: of each row group.  first_row: of
    each row group among all rows, and the number of all rows.  parts: the column chunks as an index
    of their own; those of row group g are first_part[g] to first_part[g + 1].  stored, decoded:
    bytes of each row group, as read and in memory.  coded: columns kept as dictionaries.  schema:
    of the columns, of every file.
    """

    index: Index
    names: tuple[str, ...]
    rows: NDArray[np.int64]
    first_row: NDArray[np.int64]
    parts: Index
    first_part: NDArray[np.int64]
    stored: NDArray[np.int64]
    decoded: NDArray[np.int64]
    coded: tuple[str, ...]
    schema: Any

    @staticmethod
    def of(index: Index, columns: Sequence[str] | None = None) -> RowGroups:
        """Return the row groups of an index.

        Raises FeedError: a column that does not exist, files that differ in a column, or a damaged
        footer.
        """
        return _row_groups(index, columns)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def n_rows(self) -> int:
        return int(self.first_row[-1])

    def parts_of(self, groups: Sequence[int]) -> NDArray[np.int64]:
        """Return the column chunks of row groups, one group after the other."""
        ranges = [np.arange(self.first_part[g], self.first_part[g + 1]) for g in groups]
        return np.concatenate(ranges) if ranges else np.zeros(0, np.int64)

    def said(self, group: int) -> str:
        """Return file and number of a row group, for a message."""
        file = int(self.index.file[group])
        first = int(np.searchsorted(self.index.file, file))
        return f"{self.index.files[file]}: row group {group - first}"

    @cached_property
    def _known(self) -> dict[int, Any]:
        return {}

    def _about(self, file: int) -> Any:
        facts = self._known.get(file)
        if facts is None:
            while len(self._known) >= KEPT_FOOTERS:
                del self._known[next(iter(self._known))]
            path = self.index.files[file]
            facts = self._known[file] = _parsed(_unpacked(self.index.footers[file], path), path)
        return facts

    def table(self, group: int, chunks: Chunks, most_bytes: int) -> Any:
        """Return a row group decoded from its column chunks, a pyarrow.Table.

        Raises FeedError: the bytes are damaged, or take more than most_bytes in memory.
        """
        pyarrow, _ = arrow()
        file = int(self.index.file[group])
        number = group - int(np.searchsorted(self.index.file, file))
        n_rows = int(self.rows[group])
        at_once = max(1, n_rows * DECODED_AT_ONCE // max(1, int(self.decoded[group])))
        said = self.said(group)
        batches, n_bytes, seen = [], 0, 0
        for batch in _decoded(
            self._about(file), chunks, number, list(self.names), min(n_rows, at_once), self.coded,
            said,
        ):  # fmt: skip
            n_bytes, seen = n_bytes + batch.nbytes, seen + batch.num_rows
            batches.append(batch)
            if n_bytes > most_bytes:
                raise FeedError(
                    f"{said}: takes more than {most_bytes:,} bytes in memory, its footer tells "
                    f"{int(self.decoded[group]):,}; raise buffer_bytes, or name fewer columns="
                )
        _refuse_count(seen, n_rows, said)
        if not batches:
            return self.schema.empty_table()
        return pyarrow.Table.from_batches(batches).select(list(self.names))

    def plain(self, table: Any) -> Any:
        """Return a small table with the columns of the files' own types."""
        return table.cast(self.schema) if self.coded else table


def _refuse_count(seen: int, n_rows: int, said: str) -> None:
    if seen != n_rows:
        raise FeedError(
            f"{said}: holds {seen:,} rows, its footer tells {n_rows:,}; the file is damaged, copy "
            "it from where it is whole"
        )


def _decoded(
    about: Any,
    source: Any,
    number: int,
    names: list[str] | None,
    at_once: int,
    coded: Sequence[str],
    said: str,
) -> Iterator[Any]:
    """Yield the rows of a row group, as pyarrow.RecordBatch."""
    pyarrow, parquet = arrow()
    try:
        file = parquet.ParquetFile(
            pyarrow.PythonFile(source, mode="r"),
            metadata=about,
            read_dictionary=list(coded),
            pre_buffer=False,  # a read then is of a column chunk
            page_checksum_verification=True,
        )
        yield from file.iter_batches(max(1, at_once), row_groups=[number], columns=names)
    except FeedError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise FeedError(
            f"{said}: cannot be decoded ({_short(error)}); the file is damaged, or encrypted"
        ) from error


def _unpacked(packed: bytes, path: str) -> bytes:
    engine = zlib.decompressobj()
    try:
        content = engine.decompress(packed, MOST_FOOTER_BYTES)
    except zlib.error as error:
        raise FeedError(f"{path}: the footer in the index is damaged; make it again") from error
    if not engine.eof:
        raise FeedError(f"{path}: the footer in the index is damaged; make it again")
    return content


def _row_groups(index: Index, columns: Sequence[str] | None) -> RowGroups:
    rows: list[int] = []
    chunks: list[list[FooterChunk]] = []
    schema: Any = None
    names: tuple[str, ...] = ()
    coded: set[str] = set()
    if len(index.footers) != len(index.files):
        raise FeedError(f"{index.path}: the index has no footers of Parquet; make it again")
    for number, path in enumerate(index.files):
        content = _unpacked(index.footers[number], path)
        about = _facts(content, path)
        arrow_types = _arrow_schema(_parsed(content, path), path)
        if schema is None:
            names = _chosen(arrow_types, columns, path)
        mine = _of_columns(arrow_types, names, path)
        if schema is None:
            schema = mine
        elif mine != schema:
            raise FeedError(
                f"{path}: its columns are {_listed(mine)}, those of {index.files[0]} are "
                f"{_listed(schema)}; read these files apart"
            )
        end = index.seen(number).size - END_BYTES - len(content)
        for place, group in enumerate(about.groups):
            _check_group(group, place, end, path)
            rows.append(group.n_rows)
            chunks.append([each for each in group.chunks if _is_of(each.path, names)])
            coded |= {each.name for each in chunks[-1] if each.is_coded}
    if len(rows) != len(index):
        raise FeedError(f"{index.path}: the index and its footers differ; make it again")
    return _gathered(index, names, rows, chunks, coded, schema)


def _gathered(
    index: Index,
    names: tuple[str, ...],
    rows: list[int],
    chunks: list[list[FooterChunk]],
    coded: set[str],
    schema: Any,
) -> RowGroups:
    counts = [len(each) for each in chunks]
    flat = [chunk for each in chunks for chunk in each]
    length = np.array([chunk.length for chunk in flat], np.int64)
    no_keys = np.zeros(0, np.uint8)
    parts = replace(
        index,
        file=np.repeat(index.file, counts),
        offset=np.array([chunk.offset for chunk in flat], np.int64),
        length=length,
        keys=no_keys,
        key_end=np.zeros(len(flat), np.int64),
    )
    first_part = np.concatenate(([0], np.cumsum(counts, dtype=np.int64)))
    # Reads lie on pages of their own: see plan.layout.
    upto = np.concatenate(([0], np.cumsum(length + 2 * PAGE_BYTES)))
    most = 1 << 62  # a footer may lie
    decoded = [min(most, sum(chunk.decoded for chunk in each)) for each in chunks]
    is_text = {name: _is_text(schema.field(name).type) for name in names}
    return RowGroups(
        index=index,
        names=names,
        rows=np.array(rows, np.int64),
        first_row=np.concatenate(([0], np.cumsum(rows, dtype=np.int64))),
        parts=parts,
        first_part=first_part,
        stored=np.diff(upto[first_part]),
        decoded=np.array(decoded, np.int64),
        coded=tuple(name for name in names if name in coded and is_text[name]),
        schema=schema,
    )


def _is_text(kind: Any) -> bool:
    types = arrow()[0].types
    return bool(
        types.is_string(kind)
        or types.is_binary(kind)
        or types.is_large_string(kind)
        or types.is_large_binary(kind)
    )


def _arrow_schema(about: Any, path: str) -> Any:
    pyarrow, _ = arrow()
    try:
        return about.schema.to_arrow_schema()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        raise FeedError(f"{path}: its columns cannot be read ({_short(error)})") from error


def _chosen(schema: Any, columns: Sequence[str] | None, path: str) -> tuple[str, ...]:
    if columns is None:
        columns = schema.names
    elif isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise FeedError(f"columns={columns!r} is no list of names; such is columns=['text']")
    twice = [name for name in columns if list(columns).count(name) > 1]
    if twice:
        raise FeedError(f"{path}: the column {twice[0]!r} comes twice; name others with columns=")
    if not columns:
        raise FeedError(f"{path}: no column is chosen; it has {_listed(schema)}")
    return tuple(columns)


def _listed(schema: Any) -> str:
    shown = [f"{field.name!r} ({field.type})" for field in schema]
    return ", ".join(shown[:20]) + (f" and {len(shown) - 20:,} more" if len(shown) > 20 else "")


def _of_columns(schema: Any, names: Sequence[str], path: str) -> Any:
    """Return the fields of the columns, without metadata.  Raises FeedError: there is no such."""
    pyarrow, _ = arrow()
    lacking = [name for name in names if len(schema.get_all_field_indices(name)) != 1]
    if lacking:
        raise FeedError(f"{path}: has no column {lacking[0]!r}; it has {_listed(schema)}")
    return pyarrow.schema([(name, schema.field(name).type) for name in names])


def _is_of(path: str, names: Sequence[str]) -> bool:
    """Return whether a column belongs to a chosen one, as pyarrow decides."""
    return any(path == name or path.startswith(f"{name}.") for name in names)


# --- bytes for the decoder -----------------------------------------------------------------------


class Chunks:
    """The column chunks of a row group as a file for pyarrow, which reads each chunk as a whole.

    parts: (offset in the file, bytes).  A read returns a view, without a copy.
    """

    def __init__(self, parts: Sequence[tuple[int, memoryview]], size: int) -> None:
        self._parts = parts
        self._size = size
        self._at = 0
        self.closed = False

    def seek(self, at: int, whence: int = 0) -> int:
        self._at = at + (0, self._at, self._size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, n_bytes: int = -1) -> memoryview:
        for offset, part in self._parts:
            first = self._at - offset
            if 0 <= first <= first + n_bytes <= len(part) and n_bytes >= 0:
                self._at += n_bytes
                return part[first : first + n_bytes]
        raise OSError(f"{n_bytes:,} bytes at {self._at:,} are in no column of the footer")

    read_buffer = read

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def flush(self) -> None:
        """Do nothing: nothing is written."""

    def close(self) -> None:
        self.closed = True


class _Whole(Chunks):
    """A file or an object as a file for pyarrow, read on request."""

    def __init__(self, file: ByteFile) -> None:
        super().__init__((), file.size())
        self._file = file

    def read(self, n_bytes: int = -1) -> memoryview:
        n_bytes = self._size - self._at if n_bytes < 0 else n_bytes
        content = self._file.pread(n_bytes, self._at)
        self._at += len(content)
        return memoryview(content)

    read_buffer = read


def wrong_groups(index: Index, progress: Advance | None = None) -> Iterator[tuple[int, str]]:
    """Decode every row group of a file; yield (record, what) for one that cannot be decoded."""
    (path,) = index.files
    about = _parsed(_unpacked(index.footers[0], path), path)
    groups = RowGroups.of(index)
    with opened(path) as file:
        for number in range(len(index)):
            seen, n_rows = 0, int(groups.rows[number])
            if not n_rows:
                continue
            at_once = max(1, n_rows * DECODED_AT_ONCE // max(1, int(groups.decoded[number])))
            try:
                for batch in _decoded(
                    about, _Whole(file), number, None, min(at_once, n_rows), (), "it"
                ):
                    seen += batch.num_rows
                _refuse_count(seen, n_rows, "it")
            except FeedError as error:
                if isinstance(error, FeedRefused):
                    raise
                yield number, str(error).removeprefix("it: ")
            if progress is not None:
                progress(number + 1, len(index))
