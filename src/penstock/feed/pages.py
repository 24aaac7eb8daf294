"""Parse the pages of an LMDB file: meta pages, branches, leaves; no library, no access to values.

Both formats are read: data version 1 (LMDB 0.9) and 3 (LMDB 1.0), 64 bit and little-endian, with
any page size.  Before use, every page is checked: page number, type, and room for the nodes.  A
damaged file raises FeedError with the page's number.  The format has no checksums, so changed bytes
inside a key or a value go unnoticed.

The module takes no lock and writes nothing.  LMDB never overwrites a page of the newest committed
transaction.  Data are thus consistent if the transaction is still the newest after the read;
`read_meta` returns the newest transaction.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError, FeedRefused
from penstock.feed.byte_file import ByteFile, opened
from penstock.feed.spans import NAMED, Advance, LeftOut, Spans, gathered, left_out

__all__ = [
    "DATABASE",
    "LAYOUTS",
    "File",
    "LmdbTree",
    "Meta",
    "Nodes",
    "PageLayout",
    "TreeRecord",
    "are_misplaced",
    "branch_children",
    "database_of",
    "in_overflow",
    "is_lmdb",
    "leaf_nodes",
    "misplaced",
    "name_in",
    "newest_txnid",
    "read_meta",
    "spans",
    "tree_of",
    "txnid_of",
]

Numbers = NDArray[np.int64]
Bytes = NDArray[np.uint8]

MAGIC = 0xBEEFC0DE
BRANCH, LEAF, OVERFLOW, META = 0x01, 0x02, 0x04, 0x08  # page types
BIG, SUB, DUP = 0x01, 0x02, 0x04  # node flags
REVERSE_KEY, DUP_SORT, INTEGER_KEY = 0x02, 0x04, 0x08  # database flags
NO_PAGE = (1 << 64) - 1
MAX_PAGE = 1 << 47  # a page number has 48 bits
NODE_BYTES = 8  # bytes before a node's key
FIRST_PAGE = 2  # after the meta pages
MAX_DEPTH = 32  # LMDB's limit: pages in a cursor
MIN_PAGE_BYTES = 256  # LMDB's limit

CHUNK_BYTES = 16 << 20  # pages in memory at once; the columns take about as much again
HEAD_BYTES = 32  # enough to recognise an LMDB
SNAPSHOT_TRIES = 8  # a file with more frequent commits is not yet a data set


class PageLayout(NamedTuple):
    """Offsets in a page.

    header_bytes: bytes before the first node offset.  base: origin of node offsets.  pointer_bytes:
    bytes of a leaf's pointer to overflow pages.  name_end: suffix of a database's name in a key.
    """

    version: int
    header_bytes: int
    base: int
    pointer_bytes: int
    max_page_bytes: int
    name_end: bytes


LAYOUTS = {
    16: PageLayout(1, 16, 0, 8, 1 << 15, b""),  # LMDB 0.9
    24: PageLayout(3, 24, 24, 24, 1 << 16, b"\0"),  # LMDB 1.0
}

DATABASE = struct.Struct("<IHHQQQQQ")
_META = struct.Struct("<IIQQ")  # magic, version, address, map size
_U64 = struct.Struct("<Q")
META_BYTES = _META.size + 2 * DATABASE.size + 16


class TreeRecord(NamedTuple):
    """The record of one tree."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class Meta:
    """The newest committed transaction of a file."""

    layout: PageLayout
    page_bytes: int
    map_bytes: int
    main: TreeRecord
    last_page: int
    txnid: int


@dataclass(frozen=True, slots=True)
class File:
    """An open LMDB file and one transaction.

    n_pages: pages present in both the file and the meta page.
    """

    source: ByteFile
    path: str
    meta: Meta
    size: int
    n_pages: int

    def damaged(self, page: int, what: str) -> FeedError:
        return FeedError(
            f"{self.path}: page {page} {what}; the file is damaged or truncated, copy it again "
            "from where it is whole"
        )


class Nodes(NamedTuple):
    """The nodes of some pages, in order.

    row: index of the page.  at: start of a node in the flat bytes of the pages.  size: bytes of the
    data, or the low 32 bits.  flags, key_bytes: from the node's header.
    """

    row: Numbers
    at: Numbers
    size: Numbers
    flags: Numbers
    key_bytes: Numbers


class LmdbTree(NamedTuple):
    """The result of a walk through one database.

    subs: named databases inside.  first: first overflow page of each record, 0 for a value in a
    leaf.
    """

    spans: Spans
    subs: dict[bytes, TreeRecord]
    first: Numbers


# --- meta pages ----------------------------------------------------------------------------------


def is_lmdb(head: bytes) -> bool:
    """Return whether `head` begins an LMDB of any version, word size and byte order."""
    magics = (MAGIC.to_bytes(4, "little"), MAGIC.to_bytes(4, "big"))
    return any(head[at : at + 4] in magics for at in (12, 16, 24))


def _layout_of(head: bytes, path: str) -> PageLayout:
    little, big = MAGIC.to_bytes(4, "little"), MAGIC.to_bytes(4, "big")
    for at, layout in LAYOUTS.items():
        if head[at : at + 4] != little:
            continue
        version = int.from_bytes(head[at + 4 : at + 8], "little")
        if version != layout.version:
            versions = " and ".join(str(layout.version) for layout in LAYOUTS.values())
            raise FeedRefused(
                f"{path}: LMDB data version {version}, known here are {versions}; "
                "convert it with mdb_dump and mdb_load of the LMDB that wrote it"
            )
        return layout
    if any(head[at : at + 4] == big for at in (12, 16, 24)) or head[12:16] == little:
        raise FeedRefused(
            f"{path}: an LMDB of another kind of machine (32 bit, or other byte order); "
            "convert it there with mdb_dump, here with mdb_load"
        )
    raise FeedError(f"{path}: page 0 is no LMDB meta page; damaged, or no LMDB")


def read_meta(source: ByteFile, path: str) -> Meta:
    """Return the newest committed transaction.

    Raises FeedError: a meta page is damaged, or a writer commits faster than reads finish.
    """
    for _ in range(SNAPSHOT_TRIES):
        head = source.pread(32 + META_BYTES, 0)
        if not head:
            raise FeedError(f"{path} is empty; its writer has not begun, or the copy failed")
        layout = _layout_of(head, path)
        page_bytes = _page_bytes(head, layout, path)
        raw = [head, source.pread(32 + META_BYTES, page_bytes)]
        if not is_lmdb(raw[1]):
            _refuse_wrong_page_bytes(source, page_bytes, layout, path)
        again = [source.pread(32 + META_BYTES, 0), source.pread(32 + META_BYTES, page_bytes)]
        if raw == again:  # else a commit was in progress
            metas = [_meta_of(page, page_bytes, n, layout, path) for n, page in enumerate(raw)]
            _refuse_lost_meta(metas, path)
            return max(metas, key=lambda meta: meta.txnid)
    raise FeedError(f"{path}: a writer commits faster than it can be read; let it end first")


def _refuse_lost_meta(metas: list[Meta], path: str) -> None:
    """Raise FeedError if the two meta pages are not of consecutive transactions.

    LMDB writes the meta pages in turn.
    """
    older, newer = sorted(metas, key=lambda meta: meta.txnid)
    if newer.txnid - older.txnid > 1:
        page = older.txnid & 1 if older.txnid else 1 - (newer.txnid & 1)
        raise FeedError(
            f"{path}: meta page {page} holds transaction {older.txnid}, the other one "
            f"{newer.txnid}; one of them was lost: the file is damaged, copy it again from where "
            "it is whole"
        )


def _page_bytes(head: bytes, layout: PageLayout, path: str) -> int:
    at = layout.header_bytes + _META.size
    if len(head) < at + DATABASE.size:
        raise FeedError(f"{path}: page 0 is cut off; the file is truncated")
    page_bytes = int(DATABASE.unpack_from(head, at)[0])
    is_power = page_bytes & (page_bytes - 1) == 0
    if not is_power or not MIN_PAGE_BYTES <= page_bytes <= layout.max_page_bytes:
        raise FeedError(f"{path}: page 0 says that a page has {page_bytes} bytes; it is damaged")
    return page_bytes


def _refuse_wrong_page_bytes(
    source: ByteFile, page_bytes: int, layout: PageLayout, path: str
) -> None:
    """Check the offset of page 1 against page 0, which is damaged if page 1 is elsewhere."""
    size = MIN_PAGE_BYTES
    while size <= layout.max_page_bytes:
        head = source.pread(HEAD_BYTES, size)
        if is_lmdb(head) and head[:8] == (1).to_bytes(8, "little"):
            raise FeedError(
                f"{path}: page 0 says that a page has {page_bytes} bytes, and page 1 begins at "
                f"{size}; it is damaged"
            )
        size *= 2


def _meta_of(raw: bytes, page_bytes: int, number: int, layout: PageLayout, path: str) -> Meta:
    def wrong(what: str) -> FeedError:
        return FeedError(f"{path}: meta page {number} {what}; the file is damaged or truncated")

    at = layout.header_bytes
    if len(raw) < at + META_BYTES:
        raise wrong("is cut off")
    magic, version, _, map_bytes = _META.unpack_from(raw, at)
    free = TreeRecord(*DATABASE.unpack_from(raw, at + _META.size))
    main = TreeRecord(*DATABASE.unpack_from(raw, at + _META.size + DATABASE.size))
    last_page, txnid = struct.unpack_from("<QQ", raw, at + _META.size + 2 * DATABASE.size)
    page, flags = struct.unpack_from("<Q", raw)[0], struct.unpack_from("<H", raw, at - 6)[0]
    if (magic, version) != (MAGIC, layout.version):
        raise wrong("does not begin as the other one")
    if page != number or not flags & META:
        raise wrong("is not marked as one")
    if free.pad != page_bytes:
        raise wrong(f"says that a page has {free.pad} bytes, the other one {page_bytes}")
    if txnid >> 63 or (txnid and txnid & 1 != number):  # LMDB writes transaction N to page N & 1
        raise wrong(f"holds transaction {txnid}, which belongs to the other one")
    return Meta(layout, page_bytes, map_bytes, main, min(last_page, MAX_PAGE), txnid)


def txnid_of(path: str) -> int:
    """Return the number of a file's newest committed transaction."""
    with opened(path) as source:
        return read_meta(source, path).txnid


def newest_txnid(source: ByteFile, meta: Meta, path: str) -> int:
    """Return the newest committed transaction of an open file with known meta pages.

    The cost is one request, for pages in memory.
    """
    if source.is_remote:  # an object has one version; another version is refused on read
        return meta.txnid
    at, both = meta.layout.header_bytes + META_BYTES - 8, _both(meta.page_bytes)
    raw = source.pread(both.size, at)
    if len(raw) < both.size:
        page = min((at + len(raw)) // meta.page_bytes, 1)
        raise FeedError(f"{path}: page {page} lies beyond the end of the file; it is truncated")
    first, second = both.unpack(raw)
    return int(max(first, second))


@cache
def _both(page_bytes: int) -> struct.Struct:
    """Return the struct of two numbers at equal offsets of two neighbouring pages."""
    return struct.Struct(f"<Q{page_bytes - 8}xQ")


def file_of(source: ByteFile, path: str) -> File:
    """Return an open file with the newest transaction."""
    meta = read_meta(source, path)
    size = source.size()
    return File(source, path, meta, size, min(meta.last_page + 1, -(-size // meta.page_bytes)))


# --- pages ---------------------------------------------------------------------------------------


def pages_of(file: File, numbers: Numbers) -> Bytes:
    """Return pages as (n, page bytes); neighbouring pages are read in one call."""
    page_bytes = file.meta.page_bytes
    order = np.argsort(numbers, kind="stable")
    wanted = numbers[order]
    read = np.empty((len(wanted), page_bytes), np.uint8)
    breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
    starts = np.concatenate(([0], breaks)).tolist()
    ends = np.concatenate((breaks, [len(wanted)])).tolist()
    runs = list(zip(starts, ends, strict=True))
    if len(runs) > 1:  # request all runs before the first wait
        file.source.want(
            [(int(wanted[start]) * page_bytes, (end - start) * page_bytes) for start, end in runs]
        )
    for start, end in runs:
        done, total = 0, (end - start) * page_bytes
        target = memoryview(read[start:end].reshape(-1).data)
        while done < total:
            got = file.source.readinto(target[done:], int(wanted[start]) * page_bytes + done)
            if got <= 0:
                page = int(wanted[start]) + done // page_bytes
                raise file.damaged(page, "lies beyond the end of the file")
            done += got
    if (order[1:] > order[:-1]).all():
        return read
    pages = np.empty_like(read)
    pages[order] = read
    return pages


def _u16(pages: Bytes, at: int) -> Numbers:
    return pages[:, at : at + 2].copy().view("<u2").ravel().astype(np.int64)


def _u64(flat: Bytes, at: Numbers) -> NDArray[np.uint64]:
    """Return little-endian numbers at any alignment."""
    value = np.zeros(len(at), np.uint64)
    for byte in range(8):
        value |= flat[at + byte].astype(np.uint64) << np.uint64(8 * byte)
    return value


def _refuse(file: File, numbers: Numbers, is_bad: NDArray[np.bool_], what: str) -> None:
    if is_bad.any():
        raise file.damaged(int(numbers[np.flatnonzero(is_bad)[0]]), what)


def _nodes(file: File, numbers: Numbers, pages: Bytes, kind: int) -> Nodes:
    """Return the nodes of pages of one kind, each checked to be inside the page."""
    layout, page_bytes = file.meta.layout, file.meta.page_bytes
    header, base = layout.header_bytes, layout.base
    own = pages[:, :8].copy().view("<u8").ravel()
    _refuse(file, numbers, own != numbers.astype(np.uint64), "holds the number of another page")
    name = "leaf" if kind == LEAF else "branch"
    _refuse(file, numbers, _u16(pages, header - 6) != kind, f"is no {name} page")
    lower = _u16(pages, header - 4) + base - header
    upper = _u16(pages, header - 2) + base
    is_bad = (lower < 2) | (lower % 2 != 0) | (header + lower > upper) | (upper > page_bytes)
    _refuse(file, numbers, is_bad, "has no room for the nodes that it counts")
    counts = lower // 2
    row = np.repeat(np.arange(len(pages)), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    words = pages.reshape(-1).view("<u2")  # pages, and nodes in pages, begin at even offsets
    start = words[(row * page_bytes + header) // 2 + within].astype(np.int64) + base
    is_bad = (start % 2 != 0) | (start < upper[row]) | (start > page_bytes - NODE_BYTES)
    _refuse(file, numbers[row], is_bad, "has a node outside its room")
    at = row * page_bytes + start
    word = at // 2
    size = words[word].astype(np.int64) | words[word + 1].astype(np.int64) << 16
    flags, key_bytes = words[word + 2].astype(np.int64), words[word + 3].astype(np.int64)
    nodes = Nodes(row, at, size, flags, key_bytes)
    used = _data_at(layout, nodes) - at
    if kind == LEAF:
        used += np.where(flags & BIG, layout.pointer_bytes, size)
    used += used & 1
    # LMDB packs the nodes of a page: the sum of their sizes is the page's used space.
    taken = np.add.reduceat(used, np.cumsum(counts) - counts)
    is_bad = (start + used > page_bytes) | (taken != page_bytes - upper)[row]
    _refuse(file, numbers[row], is_bad, "has nodes that do not fill the room that it says")
    return nodes


def _data_at(layout: PageLayout, nodes: Nodes) -> Numbers:
    padding = nodes.key_bytes & 1 if layout.version == 3 else 0
    return nodes.at + NODE_BYTES + nodes.key_bytes + padding


def branch_children(file: File, numbers: Numbers, pages: Bytes) -> tuple[Nodes, Numbers]:
    """Return the nodes of branch pages and the child pages."""
    nodes = _nodes(file, numbers, pages, BRANCH)
    child = nodes.size | nodes.flags << 32
    is_bad = (child < FIRST_PAGE) | (child >= file.n_pages)
    _refuse(file, numbers[nodes.row], is_bad, "points to a page beyond the file")
    return nodes, child


def leaf_nodes(file: File, numbers: Numbers, pages: Bytes) -> tuple[Nodes, Numbers, Numbers]:
    """Return the nodes of leaf pages, each value's file offset, and first overflow page or 0."""
    layout, page_bytes = file.meta.layout, file.meta.page_bytes
    nodes = _nodes(file, numbers, pages, LEAF)
    of = numbers[nodes.row]
    _refuse(file, of, nodes.key_bytes == 0, "has a node without a key")
    is_known = (nodes.flags == 0) | (nodes.flags == BIG) | (nodes.flags == SUB)
    _refuse(file, of, ~is_known, "has a node of an unknown kind")
    is_bad = (nodes.flags == SUB) & (nodes.size != DATABASE.size)
    _refuse(file, of, is_bad, "has a sub-database of another size")
    data_at = _data_at(layout, nodes)
    offset = of * page_bytes + data_at - nodes.row * page_bytes
    first = np.zeros(len(of), np.int64)
    big = np.flatnonzero(nodes.flags & BIG)
    if len(big):
        flat = pages.reshape(-1)
        page = _u64(flat, data_at[big])
        need = (layout.header_bytes - 1 + nodes.size[big]) // page_bytes + 1
        is_bad = (page < FIRST_PAGE) | (page >= file.n_pages)
        page = np.where(is_bad, 0, page).astype(np.int64)
        is_bad |= page + need > file.meta.last_page + 1
        if layout.pointer_bytes == 24:
            # A value has more pages than needed after an overwrite by a shorter value.
            said = _u64(flat, data_at[big] + 16)
            is_bad |= (said < need.astype(np.uint64)) | (said > np.uint64(file.n_pages))
        is_bad |= page * page_bytes + layout.header_bytes + nodes.size[big] > file.size
        _refuse(file, of[big], is_bad, "points to overflow pages beyond the file")
        first[big] = page
        offset[big] = page * page_bytes + layout.header_bytes
    return nodes, offset, first


@cache
def _run_head(header_bytes: int) -> struct.Struct:
    """Return the struct of an overflow page's header: page number, type, pages in the run."""
    return struct.Struct(f"<Q{header_bytes - 14}xHI")


def misplaced(meta: Meta, header: bytes, page: int, size: int) -> str:
    """Return the defect of a value's first overflow page header; "" if correct."""
    at = meta.layout.header_bytes
    if len(header) < at:
        return "lies beyond the end of the file"
    number, kind, run = _run_head(at).unpack_from(header)
    if number != page:
        return "holds the number of another page"
    if kind != OVERFLOW:
        return "is no overflow page"
    if run < (at - 1 + size) // meta.page_bytes + 1:
        return "begins a run of pages that is shorter than its value"
    return ""


def in_overflow(meta: Meta, offset: Numbers) -> NDArray[np.bool_]:
    """Return a flag per value: stored on overflow pages.

    A value in a leaf never begins right after the page header, because a node header precedes the
    value.
    """
    # A page's size is a power of two.
    is_first: NDArray[np.bool_] = offset & (meta.page_bytes - 1) == meta.layout.header_bytes
    return is_first


def are_misplaced(
    meta: Meta, memory: Bytes, at: Numbers, offset: Numbers, size: Numbers
) -> NDArray[np.bool_]:
    """Return a flag per value: the overflow page header before the value is wrong.

    The function is a vectorised `misplaced`: offset is in the file, at in memory.  Memory holds
    pages as in the file, so headers are whole words.
    """
    is_headed = in_overflow(meta, offset)
    if is_headed.all():
        return _are_misplaced(meta, memory, at, offset, size)
    is_wrong, headed = np.zeros(len(offset), bool), np.flatnonzero(is_headed)
    is_wrong[headed] = _are_misplaced(meta, memory, at[headed], offset[headed], size[headed])
    return is_wrong


def _are_misplaced(
    meta: Meta, memory: Bytes, at: Numbers, offset: Numbers, size: Numbers
) -> NDArray[np.bool_]:
    words = memory[: len(memory) // 8 * 8].view("<i8")
    header_bytes, shift = meta.layout.header_bytes, meta.page_bytes.bit_length() - 1
    number, kinds = words[(at - header_bytes) >> 3], words[(at >> 3) - 1]
    need = ((header_bytes - 1 + size) >> shift) + 1
    is_wrong: NDArray[np.bool_] = number != offset >> shift
    is_wrong |= (kinds >> 16) & 0xFFFF != OVERFLOW
    is_wrong |= (kinds >> 32) & 0xFFFFFFFF < need
    return is_wrong


# --- the walk ------------------------------------------------------------------------------------


def spans(path: str, database: bytes | None = None, progress: Advance | None = None) -> Spans:
    """Return the spans of a database's records in key order, of one transaction.

    database: a name; None: the main database, or the only named database.  Raises FeedError: a
    writer commits more often than the index can be built, or the file is damaged.
    """
    with opened(path) as source:
        for _ in range(SNAPSHOT_TRIES):
            file = file_of(source, path)
            try:
                spans = _records(file, database, progress)
            except FeedError:
                if read_meta(source, path).txnid == file.meta.txnid:
                    raise
                continue  # the error was caused by a new commit
            if read_meta(source, path).txnid == file.meta.txnid:
                return spans._replace(txnid=file.meta.txnid)
    raise FeedError(
        f"{path}: a writer commits more often than it can be indexed; let it end first, or index "
        "a copy"
    )


def _beside(main: LmdbTree, name: bytes | None) -> tuple[LeftOut, ...]:
    """Return data outside the chosen database.

    Without a name: the named databases beside the main database's records.  With a name: the
    records of the main database.
    """
    n, ends = len(main.spans.offset), main.spans.key_end[:NAMED].tolist()
    if not main.subs or not n:
        return ()
    if name is not None:
        keys = main.spans.keys[: ends[-1]].tobytes()
        shown = (keys[at:to] for at, to in zip([0, *ends], ends, strict=False))
        texts = tuple(key.decode("utf-8", "surrogateescape") for key in shown)
        return (LeftOut("record", "outside the database that was named", n, texts),)
    names = (name.decode("utf-8", "surrogateescape") for name in main.subs)
    why = "beside the records (--database NAME, database= in Python)"
    return left_out(LeftOut("database", why, 1, (name,)) for name in names)


def name_in(path: str, asked: bytes | None) -> bytes | None:
    """Return the name of the database used by `spans`; None: the main database."""
    if asked is not None:
        return asked
    with opened(path) as source:
        file = file_of(source, path)
        return _only_one(file, tree_of(file, file.meta.main))


def _records(file: File, database: bytes | None, progress: Advance | None) -> Spans:
    main = tree_of(file, file.meta.main, progress)
    name = _only_one(file, main) if database is None else database
    tree = main if name is None else tree_of(file, database_of(file, main, name), progress)
    return tree.spans._replace(left_out=_beside(main, name))


def _only_one(file: File, main: LmdbTree) -> bytes | None:
    """Return the only named database of an LMDB without main records; None: main database."""
    if len(main.spans.offset) or not main.subs:
        return None
    if len(main.subs) > 1:
        raise FeedRefused(
            f"{file.path}: holds the databases {_named(main.subs)}; say which one is the data set: "
            "--database NAME, database= in Python"
        )
    return next(iter(main.subs))


def database_of(file: File, main: LmdbTree, name: bytes) -> TreeRecord:
    """Return a named database.

    Raises FeedError: no database has the name.
    """
    if name not in main.subs:
        there = f"but {_named(main.subs)}" if main.subs else "nor any that has a name"
        raise FeedRefused(f"{file.path}: no database {_named([name])} in it, {there}")
    return main.subs[name]


def _named(names: Iterator[bytes] | list[bytes] | dict[bytes, TreeRecord]) -> str:
    listed = [repr(name.decode("utf-8", "backslashreplace")) for name in names]
    return ", ".join([*listed[:8], f"and {len(listed) - 8} more"] if len(listed) > 8 else listed)


def refuse_order(path: str, database: TreeRecord) -> None:
    """Raise FeedRefused for a kind of database not read here."""
    kinds = {
        DUP_SORT: "several values a key (DUPSORT)",
        INTEGER_KEY: "keys in the order of a machine's integers (INTEGERKEY)",
        REVERSE_KEY: "keys in the order of their ends (REVERSEKEY)",
    }
    for flag, what in kinds.items():
        if database.flags & flag:
            raise FeedRefused(
                f"{path}: holds {what}, which is not read here; read it with py-lmdb, or name "
                "another database of it: --database NAME"
            )


def tree_of(file: File, database: TreeRecord, progress: Advance | None = None) -> LmdbTree:
    """Walk one database: branches level by level, leaves in chunks."""
    refuse_order(file.path, database)
    if database.root == NO_PAGE:
        if database.entries or database.leaf_pages or database.depth:
            raise FeedError(f"{file.path}: a database has entries and no root; damaged meta page")
        none = np.empty(0, np.int64)
        return LmdbTree(Spans(none, none, np.empty(0, np.uint8), none), {}, none)
    leaves, branches = _leaves(file, database)
    parts: list[tuple[Spans, Numbers]] = []
    subs: dict[bytes, TreeRecord] = {}
    order = _Order(file)
    n_chunk = max(1, CHUNK_BYTES // file.meta.page_bytes)
    for start in range(0, len(leaves), n_chunk):
        parts.append(_part(file, leaves[start : start + n_chunk], order, subs))
        if progress is not None:
            progress(min(start + n_chunk, len(leaves)), len(leaves))
    tree = _together(parts, subs)
    n_entries = len(tree.spans.offset) + len(subs)
    if n_entries != database.entries:
        raise FeedError(
            f"{file.path}: the tree at page {database.root} holds {n_entries:,} records and "
            f"counts {database.entries:,}; the file is damaged"
        )
    _refuse_shared(file, tree, np.concatenate([leaves, branches]))
    return tree


def _leaves(file: File, database: TreeRecord) -> tuple[Numbers, Numbers]:
    """Return the numbers of the leaf pages in key order, and of the branch pages."""
    root, depth = database.root, database.depth
    if not FIRST_PAGE <= root < file.n_pages or not 1 <= depth <= MAX_DEPTH:
        raise FeedError(
            f"{file.path}: a tree of depth {depth} begins at page {root} of {file.n_pages}; "
            "the file is damaged or truncated"
        )
    level = np.array([root], np.int64)
    branches = [np.empty(0, np.int64)]
    n_chunk = max(1, CHUNK_BYTES // file.meta.page_bytes)
    for _ in range(depth - 1):
        branches.append(level)
        chunks = [level[start : start + n_chunk] for start in range(0, len(level), n_chunk)]
        level = np.concatenate(
            [branch_children(file, chunk, pages_of(file, chunk))[1] for chunk in chunks]
        )
        # Pages with pointers to each other would multiply without end.
        ordered = np.sort(level)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if len(twice):
            raise file.damaged(int(twice[0]), "is pointed to twice")
    branch = np.concatenate(branches)
    if (len(level), len(branch)) != (database.leaf_pages, database.branch_pages):
        raise FeedError(
            f"{file.path}: the tree at page {root} has {len(level):,} leaves under {len(branch):,} "
            f"branches and counts {database.leaf_pages:,} and {database.branch_pages:,}; "
            "the file is damaged"
        )
    return level, branch


def _part(
    file: File, numbers: Numbers, order: _Order, subs: dict[bytes, TreeRecord]
) -> tuple[Spans, Numbers]:
    pages = pages_of(file, numbers)
    flat = pages.reshape(-1)
    nodes, offset, first = leaf_nodes(file, numbers, pages)
    keys = gathered(flat, nodes.at + NODE_BYTES, nodes.key_bytes)
    ends = np.cumsum(nodes.key_bytes)
    order.check(keys, ends, nodes.key_bytes, numbers[nodes.row])
    is_sub = nodes.flags == SUB
    if is_sub.any():
        data_at = _data_at(file.meta.layout, nodes)
        for node in np.flatnonzero(is_sub).tolist():
            name = keys[ends[node] - nodes.key_bytes[node] : ends[node]].tobytes()
            record = flat[data_at[node] : data_at[node] + DATABASE.size].tobytes()
            subs[name.removesuffix(file.meta.layout.name_end)] = TreeRecord(
                *DATABASE.unpack(record)
            )
        kept = ~is_sub
        keys = gathered(flat, (nodes.at + NODE_BYTES)[kept], nodes.key_bytes[kept])
        ends = np.cumsum(nodes.key_bytes[kept])
        return Spans(offset[kept], nodes.size[kept], keys, ends), first[kept]
    return Spans(offset, nodes.size, keys, ends), first


def _together(parts: list[tuple[Spans, Numbers]], subs: dict[bytes, TreeRecord]) -> LmdbTree:
    ends, start = [], 0
    for part, _ in parts:
        ends.append(part.key_end + start)
        start += len(part.keys)
    all_spans = Spans(
        np.concatenate([part.offset for part, _ in parts]),
        np.concatenate([part.length for part, _ in parts]),
        np.concatenate([part.keys for part, _ in parts]),
        np.concatenate(ends),
    )
    return LmdbTree(all_spans, subs, np.concatenate([first for _, first in parts]))


def _refuse_shared(file: File, tree: LmdbTree, own: Numbers) -> None:
    """Raise FeedError if a page has two uses."""
    page_bytes, header = file.meta.page_bytes, file.meta.layout.header_bytes
    big = tree.first > 0
    start = np.concatenate([tree.first[big], own])
    need = (header - 1 + tree.spans.length[big]) // page_bytes + 1
    end = start + np.concatenate([need, np.ones(len(own), np.int64)])
    order = np.argsort(start, kind="stable")
    is_shared = start[order][1:] < end[order][:-1]
    if is_shared.any():
        page = int(start[order][1:][np.flatnonzero(is_shared)[0]])
        raise file.damaged(page, "is used twice")


class _Order:
    """Check for ascending keys across all chunks of a walk.

    The last key of a chunk is compared with the first key of the next.
    """

    def __init__(self, file: File) -> None:
        self._file = file
        self._last = b""

    def check(self, keys: Bytes, ends: Numbers, key_bytes: Numbers, of: Numbers) -> None:
        """Raise FeedError if keys do not ascend; of: the page of each key."""
        first = keys[: ends[0]].tobytes()
        if first <= self._last:
            raise self._file.damaged(int(of[0]), "does not begin behind the key before it")
        self._last = keys[ends[-1] - key_bytes[-1] :].tobytes()
        _refuse(self._file, of[1:], ~_ascends(keys, ends, key_bytes), "has keys out of order")


def _ascends(keys: Bytes, ends: Numbers, key_bytes: Numbers) -> NDArray[np.bool_]:
    """Return whether each key is greater than the key before, compared eight bytes at a time."""
    padded = np.concatenate([keys, np.zeros(8, np.uint8)])
    starts = ends - key_bytes
    ascends = key_bytes[1:] > key_bytes[:-1]  # if a key is a prefix of the next
    open_pairs = np.arange(len(ends) - 1)
    done = 0
    while len(open_pairs):
        before = _word(padded, starts[open_pairs], key_bytes[open_pairs], done)
        after = _word(padded, starts[open_pairs + 1], key_bytes[open_pairs + 1], done)
        differs = before != after
        ascends[open_pairs[differs]] = (after > before)[differs]
        done += 8
        rest = np.minimum(key_bytes[open_pairs], key_bytes[open_pairs + 1]) > done
        open_pairs = open_pairs[~differs & rest]
    return ascends


def _word(padded: Bytes, start: Numbers, key_bytes: Numbers, done: int) -> NDArray[np.uint64]:
    """Return bytes done..done+8 of each key as a number in key order, zero-padded."""
    words = np.ndarray((len(padded) - 7,), ">u8", padded, strides=(1,))
    value: NDArray[np.uint64] = words[np.minimum(start + done, len(words) - 1)].astype(np.uint64)
    return value & _KEPT[np.clip(key_bytes - done, 0, 8)]


# Masks for the first n bytes of a big-endian number of eight bytes.
_KEPT = np.array([(1 << 64) - (1 << 8 * (8 - n)) for n in range(9)], np.uint64)
