"""Read one state of an LMDB for py-lmdb's interface: cached pages, positions in the B+ trees."""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise

import numpy as np

from penstock.errors import FeedError
from penstock.feed import pages
from penstock.feed.lmdb_errors import IncompatibleError, NotFoundError

__all__ = ["HINT_RECORDS", "Leaf", "Position", "Snapshot", "Value"]

Value = bytes | memoryview
CACHE_BYTES = 64 << 20  # of pages and their keys
PAGES_EACH = 4  # memory per page, in page sizes: the page, key objects, key offsets
ASKED_OFTEN = 4  # after so many searches, keep a page's keys as objects
FOUND_BYTES = 300  # approximate memory per found key: location, key, dict entry
COPIED_BYTES = 16 << 10  # copying up to so many bytes is cheaper than a second system call
HINT_RECORDS = 32  # more only queues: measured with a single reader, 1 ms latency
HINT_BYTES = 128 << 10  # the kernel's limit per hint at the default read-ahead
_U16, _U64 = struct.Struct("<H"), struct.Struct("<Q")
_NODE = struct.Struct("<IHH")  # size of the data, flags, size of the key


class Branch:
    __slots__ = ("children", "keys")

    def __init__(self, keys: list[bytes], children: list[int]) -> None:
        self.keys = keys
        self.children = children

    def child_of(self, key: bytes) -> int:
        return bisect_right(self.keys, key, 1) - 1


Above = list[tuple[Branch, int]]  # the branches above a page, with the index of each child


class Leaf:
    """A checked leaf page with the offsets of the nodes."""

    __slots__ = ("_keys", "_n_asked", "file", "first_byte", "nodes", "raw")

    def __init__(self, file: pages.File, number: int, raw: bytes) -> None:
        layout = file.meta.layout
        header_bytes, base = layout.header_bytes, layout.base
        n = (_U16.unpack_from(raw, header_bytes - 4)[0] - header_bytes + base) // 2
        self.file = file
        self.raw = raw
        self._keys: list[bytes] | None = None
        self._n_asked = 0
        self.first_byte = number * file.meta.page_bytes
        self.nodes = [at + base for at in struct.unpack_from(f"<{n}H", raw, header_bytes)]

    def __len__(self) -> int:
        return len(self.nodes)

    def key(self, node: int) -> bytes:
        at = self.nodes[node]
        return self.raw[at + 8 : at + 8 + _U16.unpack_from(self.raw, at + 6)[0]]

    def flags(self, node: int) -> int:
        return int(_U16.unpack_from(self.raw, self.nodes[node] + 4)[0])

    def place(self, node: int) -> tuple[int, int, int]:
        """Return (file offset of the value, bytes, first overflow page or 0)."""
        at = self.nodes[node]
        size, flags, key_bytes = _NODE.unpack_from(self.raw, at)
        layout = self.file.meta.layout
        data = at + 8 + key_bytes + (key_bytes & 1 if layout.version == 3 else 0)
        if not flags & pages.BIG:
            return self.first_byte + data, size, 0
        page = _U64.unpack_from(self.raw, data)[0]
        return page * self.file.meta.page_bytes + layout.header_bytes, size, page

    def lower_bound(self, key: bytes) -> int:
        """Return the first node whose key is not less than `key`."""
        if self._keys is not None:
            return bisect_left(self._keys, key)
        self._n_asked += 1
        if self._n_asked > ASKED_OFTEN:
            self._keys = [self.key(node) for node in range(len(self.nodes))]
        return bisect_left(range(len(self.nodes)), key, key=self.key)


class Snapshot:
    """A transaction of a file, with a cache of pages."""

    def __init__(self, file: pages.File) -> None:
        self.file = file
        meta = file.meta
        self._kept: dict[int, Branch | Leaf] = {}
        self._n_kept = max(16, CACHE_BYTES // (PAGES_EACH * meta.page_bytes))
        self._trees: dict[bytes | None, pages.TreeRecord] = {}
        # Locations of large values found before, as every epoch asks for the same keys again.
        self._found: dict[bytes | None, dict[bytes, tuple[int, int, int]]] = {}
        self._n_found = CACHE_BYTES // FOUND_BYTES
        # CRC of each checked leaf: an unchanged leaf is not checked again after another read.
        self._checked = np.zeros(file.n_pages, np.uint32)
        self.tree(None)

    def newest(self) -> int:
        """Return the number of the newest committed transaction."""
        return pages.newest_txnid(self.file.source, self.file.meta, self.file.path)

    def check(self) -> None:
        """Raise FeedError if a newer commit exists, because pages may be overwritten."""
        now = self.newest()
        if now != self.file.meta.txnid:
            raise FeedError(
                f"{self.file.path}: transaction {now} was committed while {self.file.meta.txnid} "
                "was read; begin another transaction, or let the writer end first"
            )

    def tree(self, name: bytes | None) -> pages.TreeRecord:
        """Return the record of a database.

        Raises NotFoundError: no database has the name.  Raises IncompatibleError: the name is a
        record's key.
        """
        if name in self._trees:
            return self._trees[name]
        if name is None:
            record = self.file.meta.main
        else:
            position = Position(self, self.file.meta.main)
            key = name + self.file.meta.layout.name_end
            is_there = position.find(key)
            if is_there and not position.is_database():
                raise IncompatibleError(f"{self.file.path}: {name!r} is a record, and no database")
            if not is_there:
                raise NotFoundError(f"{self.file.path}: there is no database {name!r} in it")
            record = pages.TreeRecord(*pages.DATABASE.unpack(position.data()))
        pages.refuse_order(self.file.path, record)
        self._trees[name] = record
        return record

    def page(self, number: int, is_leaf: bool, above: Above) -> Branch | Leaf:
        """Return a page, after a check of its keys against the bounds from the branches above."""
        kept = self._kept.get(number)
        if kept is not None and isinstance(kept, Leaf) is is_leaf:
            return kept
        made = self._read(number, is_leaf, *_bounds(above))
        if len(self._kept) >= self._n_kept:
            with suppress(RuntimeError, StopIteration, KeyError):  # changed by another thread
                del self._kept[next(iter(self._kept))]
        self._kept[number] = made
        return made

    def _read(self, number: int, is_leaf: bool, low: bytes, high: bytes | None) -> Branch | Leaf:
        file = self.file
        if not pages.FIRST_PAGE <= number < file.n_pages:
            raise file.damaged(number, "is pointed to and lies beyond the file")
        numbers = np.array([number], np.int64)
        raw = _read(file, number * file.meta.page_bytes, file.meta.page_bytes)
        self.check()
        crc = zlib.crc32(raw)
        if is_leaf and self._checked[number] == crc:
            return Leaf(file, number, raw)
        rows = np.frombuffer(raw, np.uint8)[None, :]
        if is_leaf:
            pages.leaf_nodes(file, numbers, rows)
            made: Branch | Leaf = (leaf := Leaf(file, number, raw))
            keys = [leaf.key(node) for node in range(len(leaf))]
        else:
            nodes, child = pages.branch_children(file, numbers, rows)
            at, sizes = (nodes.at + pages.NODE_BYTES).tolist(), nodes.key_bytes.tolist()
            keys = [raw[start : start + size] for start, size in zip(at, sizes, strict=True)]
            made = Branch(keys, child.tolist())
            keys = keys[1:]  # the first key stands for all keys below the second
        bounds = [low, *keys] if high is None else [low, *keys, high]
        is_ordered = [key < other for key, other in pairwise(bounds)]
        if is_leaf:
            is_ordered[0] = bounds[0] <= bounds[1]
        if not all(is_ordered):
            raise file.damaged(number, "has keys out of order")
        if is_leaf:
            self._checked[number] = crc
        return made

    def get(self, name: bytes | None, key: bytes, buffers: bool) -> Value | None:
        """Return the value of a key of a database; None: the key is missing."""
        places = self._found.setdefault(name, {})
        place = places.get(key)
        if place is not None:
            return self.large_value(*place, buffers)
        position = Position(self, self.tree(name))
        if not position.find(key):
            return None
        leaf, node = position.leaf, position.node
        assert leaf is not None
        place = leaf.place(node)
        if place[2] and len(places) < self._n_found:
            places[key] = place
        return self.value(leaf, node, buffers)

    def value(self, leaf: Leaf, node: int, buffers: bool) -> Value:
        at, size, first = leaf.place(node)
        if first:
            return self.large_value(at, size, first, buffers)
        at -= leaf.first_byte
        return memoryview(leaf.raw)[at : at + size] if buffers else leaf.raw[at : at + size]

    def large_value(self, at: int, size: int, first: int, buffers: bool) -> Value:
        """Return a value stored on overflow pages; arguments as from Leaf.place."""
        file = self.file
        header_bytes = file.meta.layout.header_bytes
        if size <= COPIED_BYTES or file.source.is_remote:
            whole = _read(file, at - header_bytes, header_bytes + size)
            header, data = whole[:header_bytes], whole[header_bytes:]
        else:  # value first: the request also loads the header's page
            data = _read(file, at, size)
            header = file.source.pread(header_bytes, at - header_bytes)
        wrong = pages.misplaced(file.meta, header, first, size)
        self.check()
        if wrong:
            raise file.damaged(first, wrong)
        return memoryview(data) if buffers else data

    def hint(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Prefetch values on overflow pages: by kernel hint, or at once from a remote store."""
        header_bytes = self.file.meta.layout.header_bytes
        large = [(at, n_bytes) for at, n_bytes, first in places if first]
        if self.file.source.is_remote:  # fetched now, with the headers, in a batch
            self.file.source.want([(at - header_bytes, header_bytes + n) for at, n in large])
            return
        self.file.source.want(
            [
                (start, min(HINT_BYTES, at + n_bytes - start))
                for at, n_bytes in large
                for start in range(at, at + n_bytes, HINT_BYTES)
            ]
        )


def _read(file: pages.File, at: int, n_bytes: int) -> bytes:
    data = file.source.pread(n_bytes, at)
    while len(data) < n_bytes:
        more = file.source.pread(n_bytes - len(data), at + len(data))
        if not more:
            page = (at + len(data)) // file.meta.page_bytes
            raise file.damaged(page, "lies beyond the end of the file")
        data += more
    return data


class Position:
    """A position in a tree: the branches above, a leaf, a node of the leaf.

    Position moves as liblmdb's cursors do, also after a failed search.  After a miss, the position
    is the first greater key of the searched leaf, or node len(leaf) if the leaf has no greater key.
    next() at the end keeps the position.
    """

    def __init__(self, snapshot: Snapshot, tree: pages.TreeRecord) -> None:
        self._snapshot = snapshot
        self._tree = tree
        self._above: Above = []
        self.leaf: Leaf | None = None  # None: not positioned yet
        self.node = 0
        self._is_at_end = False

    def first(self) -> bool:
        return self._descend_from_root(lambda branch: 0) and self._at(0)

    def last(self) -> bool:
        if not self._descend_from_root(lambda branch: len(branch.children) - 1):
            return False
        assert self.leaf is not None
        self._is_at_end = True
        return self._at(len(self.leaf) - 1)

    def seek(self, key: bytes) -> bool:
        """Move to the first key that is not less than `key`; return False if no key is."""
        if not self._search(key):
            return False
        assert self.leaf is not None
        if self.node < len(self.leaf) or self._aside(1):
            return True
        self._is_at_end = True
        return False

    def find(self, key: bytes) -> bool:
        """Move to `key`; return whether the key is present."""
        if not self._search(key):
            return False
        assert self.leaf is not None
        return self.node < len(self.leaf) and self.key() == key

    def next(self) -> bool:
        if self.leaf is None:
            return self.first()
        is_last = self.node + 1 >= len(self.leaf)
        if self._is_at_end and is_last:
            return False
        if is_last:
            self._is_at_end = not self._aside(1)
            return not self._is_at_end
        self._is_at_end = False
        return self._at(self.node + 1)

    def prev(self) -> bool:
        if self.leaf is None:
            return self.last()
        self._is_at_end = False
        return self._at(self.node - 1) if self.node else self._aside(-1)

    def _search(self, key: bytes) -> bool:
        """Move to the leaf that would contain a key; return False if the tree is empty."""
        if not self._descend_from_root(lambda branch: branch.child_of(key)):
            return False
        assert self.leaf is not None
        return self._at(self.leaf.lower_bound(key))

    def key(self) -> bytes:
        assert self.leaf is not None
        return self.leaf.key(self.node)

    def data(self) -> bytes:
        assert self.leaf is not None
        return bytes(self._snapshot.value(self.leaf, self.node, buffers=False))

    def is_database(self) -> bool:
        assert self.leaf is not None
        return self.leaf.flags(self.node) == pages.SUB

    def _at(self, node: int) -> bool:
        self.node = node
        return True

    def _descend_from_root(self, choose: Callable[[Branch], int]) -> bool:
        self._above, self.leaf, self._is_at_end = [], None, False
        if self._tree.root == pages.NO_PAGE:
            return False
        if not 1 <= self._tree.depth <= pages.MAX_DEPTH:
            raise self._snapshot.file.damaged(
                self._tree.root, f"is the root of a tree of depth {self._tree.depth}"
            )
        self._descend(self._tree.root, choose)
        return True

    def _descend(self, number: int, choose: Callable[[Branch], int]) -> None:
        while len(self._above) < self._tree.depth - 1:
            branch = self._snapshot.page(number, False, self._above)
            assert isinstance(branch, Branch)
            node = choose(branch)
            self._above.append((branch, node))
            number = branch.children[node]
        leaf = self._snapshot.page(number, True, self._above)
        assert isinstance(leaf, Leaf)
        self.leaf = leaf

    def _aside(self, step: int) -> bool:
        """Move to the neighbouring leaf; return False and stay at an end of the tree."""
        above = list(self._above)
        while above:
            branch, node = above.pop()
            if not 0 <= node + step < len(branch.children):
                continue
            node += step
            self._above = [*above, (branch, node)]
            is_left = step > 0
            self._descend(
                branch.children[node],
                (lambda under: 0) if is_left else (lambda under: len(under.children) - 1),
            )
            assert self.leaf is not None
            return self._at(0 if is_left else len(self.leaf) - 1)
        return False


def _bounds(above: Above) -> tuple[bytes, bytes | None]:
    """Return the bounds of a page's keys, given by the branches above."""
    low, high = b"", None
    for branch, node in above:
        if node:
            low = branch.keys[node]
        if node + 1 < len(branch.keys):
            high = branch.keys[node + 1]
    return low, high
