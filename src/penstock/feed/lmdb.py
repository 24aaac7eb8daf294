"""The part of py-lmdb's interface that training code uses, without liblmdb.  Never writes.

    from penstock.feed import lmdb          # instead of: import lmdb

Pages and values come by `pread`: one request a record instead of a page fault for each 4 KiB of
it.  No map, so a file that shrinks is an error and no SIGBUS; no lock file, so a folder that is
read-only will do; no state that a fork could share by mistake, and an Environment can be pickled.
A transaction is the newest one that was committed when it began.  A reader that holds no lock
cannot keep a writer from overwriting it: what is read once another was committed is a FeedError,
and a new transaction reads that one.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any, NoReturn, Self

import numpy as np

from penstock.errors import FeedError
from penstock.feed import pages

__all__ = [
    "BadChecksumError",
    "BadDbiError",
    "BadRslotError",
    "BadTxnError",
    "BadValsizeError",
    "CorruptedError",
    "CryptoFailError",
    "Cursor",
    "CursorFullError",
    "Database",
    "DbsFullError",
    "DiskError",
    "EnvEncryptionError",
    "Environment",
    "Error",
    "IncompatibleError",
    "InvalidError",
    "InvalidParameterError",
    "KeyExistsError",
    "LockError",
    "MapFullError",
    "MapResizedError",
    "MemoryError",
    "NotFoundError",
    "PageFullError",
    "PageNotFoundError",
    "PanicError",
    "ProblemError",
    "ReadersFullError",
    "ReadonlyError",
    "TlsFullError",
    "Transaction",
    "TxnFullError",
    "VersionMismatchError",
    "__version__",
    "enable_drop_gil",
    "open",
    "version",
]

__version__ = "3.0.0"  # of py-lmdb, whose interface this is

Error = FeedError  # what `except lmdb.Error` catches


class NotFoundError(Error):
    """There is no database of this name."""


class ReadonlyError(Error):
    """Something was to be written."""


class InvalidError(Error):
    """The file is no LMDB."""


class BadValsizeError(Error):
    """A key that LMDB cannot have."""


class IncompatibleError(Error):
    """What only a database of another kind has or is."""


class InvalidParameterError(Error):
    """What LMDB takes no such argument for."""


class _NeverError(Error):
    """What only writing, locking or mapping raises, none of which is done here: so that an `except`
    that names it is no AttributeError.  Damage is an Error that says which page it is in."""


class CorruptedError(_NeverError):
    pass


class KeyExistsError(_NeverError):
    pass


class LockError(_NeverError):
    pass


class MapFullError(_NeverError):
    pass


class MapResizedError(_NeverError):
    pass


class PageNotFoundError(_NeverError):
    pass


class VersionMismatchError(_NeverError):
    pass


class BadChecksumError(_NeverError):
    pass


class BadDbiError(_NeverError):
    pass


class BadRslotError(_NeverError):
    pass


class BadTxnError(_NeverError):
    pass


class CryptoFailError(_NeverError):
    pass


class CursorFullError(_NeverError):
    pass


class DbsFullError(_NeverError):
    pass


class DiskError(_NeverError):
    pass


class EnvEncryptionError(_NeverError):
    pass


class MemoryError(_NeverError):  # noqa: A001 - the name is the interface
    pass


class PageFullError(_NeverError):
    pass


class PanicError(_NeverError):
    pass


class ProblemError(_NeverError):
    pass


class ReadersFullError(_NeverError):
    pass


class TlsFullError(_NeverError):
    pass


class TxnFullError(_NeverError):
    pass


Value = bytes | memoryview

CACHE_BYTES = 64 << 20  # of pages and their keys
PAGES_EACH = 4  # what a page takes: itself, its keys as objects and where they are
ASKED_OFTEN = 4  # so often searched, a page's keys are worth keeping as objects
FOUND_BYTES = 300  # what a key that was found before takes, about: its place, itself and its entry
COPIED_BYTES = 16 << 10  # to copy so much costs less than to ask the kernel again
HINT_RECORDS = 32  # past that, depth is only queueing: measured with one reader and 1 ms latency
HINT_BYTES = 128 << 10  # the kernel takes no more of one hint where read-ahead is as usual
_NEVER = (
    "is read here and never written; open it with py-lmdb to write, and with this once that is done"
)


class Database:
    """A named database of an Environment, or with name None the main one."""

    __slots__ = ("name",)

    def __init__(self, name: bytes | None = None) -> None:
        self.name = name

    def flags(self, txn: Transaction | None = None) -> dict[str, bool]:
        """As py-lmdb gives them: all False, as other databases are not read."""
        names = ("reverse_key", "dupsort", "integerkey", "integerdup", "dupfixed")
        return dict.fromkeys(names, False)


_MAIN = Database()

_U16, _U64 = struct.Struct("<H"), struct.Struct("<Q")
_NODE = struct.Struct("<IHH")  # size of the data, flags, size of the key


class _Branch:
    __slots__ = ("children", "keys")

    def __init__(self, keys: list[bytes], children: list[int]) -> None:
        self.keys = keys
        self.children = children

    def child_of(self, key: bytes) -> int:
        return bisect_right(self.keys, key, 1) - 1


_Above = list[tuple[_Branch, int]]  # the branches on the way to a page, and which child it was


class _Leaf:
    """A leaf page as it is, checked before, and where its nodes begin in it."""

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
        """(where in the file its value begins, its bytes, its first overflow page or 0)."""
        at = self.nodes[node]
        size, flags, key_bytes = _NODE.unpack_from(self.raw, at)
        layout = self.file.meta.layout
        data = at + 8 + key_bytes + (key_bytes & 1 if layout.version == 3 else 0)
        if not flags & pages.BIG:
            return self.first_byte + data, size, 0
        page = _U64.unpack_from(self.raw, data)[0]
        return page * self.file.meta.page_bytes + layout.header_bytes, size, page

    def lower_bound(self, key: bytes) -> int:
        """The first node whose key is not less."""
        if self._keys is not None:
            return bisect_left(self._keys, key)
        self._n_asked += 1
        if self._n_asked > ASKED_OFTEN:
            self._keys = [self.key(node) for node in range(len(self.nodes))]
        return bisect_left(range(len(self.nodes)), key, key=self.key)


class _Snapshot:
    """One transaction of a file, and what was seen of its pages."""

    def __init__(self, file: pages.File) -> None:
        self.file = file
        meta = file.meta
        self._kept: dict[int, _Branch | _Leaf] = {}
        self._n_kept = max(16, CACHE_BYTES // (PAGES_EACH * meta.page_bytes))
        self._trees: dict[bytes | None, pages.TreeRecord] = {}
        # Where the large values of keys are that were asked for: each epoch asks for them again.
        self._found: dict[bytes | None, dict[bytes, tuple[int, int, int]]] = {}
        self._n_found = CACHE_BYTES // FOUND_BYTES
        # The sum of each leaf that was looked at as a whole: read again, it need not be again.
        self._checked = np.zeros(file.n_pages, np.uint32)
        self.tree(None)

    def newest(self) -> int:
        """The transaction that is the newest one now."""
        return pages.newest_txnid(self.file.fd, self.file.meta, self.file.path)

    def check(self) -> None:
        """Raises FeedError once another transaction was committed: what was read may be its."""
        now = self.newest()
        if now != self.file.meta.txnid:
            raise FeedError(
                f"{self.file.path}: transaction {now} was committed while {self.file.meta.txnid} "
                "was read; begin another transaction, or let the writer end first"
            )

    def tree(self, name: bytes | None) -> pages.TreeRecord:
        """The record of a database.  Raises FeedError: there is none of this name."""
        if name in self._trees:
            return self._trees[name]
        if name is None:
            found = self.file.meta.main
        else:
            position = _Position(self, self.file.meta.main)
            key = name + self.file.meta.layout.name_end
            is_there = position.find(key)
            if is_there and not position.is_database():
                raise IncompatibleError(f"{self.file.path}: {name!r} is a record, and no database")
            if not is_there:
                raise NotFoundError(f"{self.file.path}: there is no database {name!r} in it")
            found = pages.TreeRecord(*pages.DATABASE.unpack(position.data()))
        pages.refuse_order(self.file.path, found)
        self._trees[name] = found
        return found

    def page(self, number: int, is_leaf: bool, above: _Above) -> _Branch | _Leaf:
        """A page whose keys must lie where the branches above it say."""
        kept = self._kept.get(number)
        if kept is not None and isinstance(kept, _Leaf) is is_leaf:
            return kept
        made = self._read(number, is_leaf, *_bounds(above))
        if len(self._kept) >= self._n_kept:
            with suppress(RuntimeError, StopIteration, KeyError):  # another thread was here
                del self._kept[next(iter(self._kept))]
        self._kept[number] = made
        return made

    def _read(self, number: int, is_leaf: bool, low: bytes, high: bytes | None) -> _Branch | _Leaf:
        file = self.file
        if not pages.FIRST_PAGE <= number < file.n_pages:
            raise file.damaged(number, "is pointed to and lies beyond the file")
        numbers = np.array([number], np.int64)
        raw = _read(file, number * file.meta.page_bytes, file.meta.page_bytes)
        self.check()
        crc = zlib.crc32(raw)
        if is_leaf and self._checked[number] == crc:
            return _Leaf(file, number, raw)
        rows = np.frombuffer(raw, np.uint8)[None, :]
        if is_leaf:
            pages.leaf_nodes(file, numbers, rows)
            made: _Branch | _Leaf = (leaf := _Leaf(file, number, raw))
            keys = [leaf.key(node) for node in range(len(leaf))]
        else:
            nodes, child = pages.branch_children(file, numbers, rows)
            at, sizes = (nodes.at + pages.NODE_BYTES).tolist(), nodes.key_bytes.tolist()
            keys = [raw[one : one + size] for one, size in zip(at, sizes, strict=True)]
            made = _Branch(keys, child.tolist())
            keys = keys[1:]  # the first stands for whatever is less than the second
        bounds = [low, *keys] if high is None else [low, *keys, high]
        is_ordered = [one < other for one, other in pairwise(bounds)]
        if is_leaf:
            is_ordered[0] = bounds[0] <= bounds[1]
        if not all(is_ordered):
            raise file.damaged(number, "has keys out of order")
        if is_leaf:
            self._checked[number] = crc
        return made

    def get(self, name: bytes | None, key: bytes, buffers: bool) -> Value | None:
        """The value of a key of a database; None: it is not there."""
        found = self._found.setdefault(name, {})
        place = found.get(key)
        if place is not None:
            return self.large_value(*place, buffers)
        position = _Position(self, self.tree(name))
        if not position.find(key):
            return None
        leaf, node = position.leaf, position.node
        assert leaf is not None
        place = leaf.place(node)
        if place[2] and len(found) < self._n_found:
            found[key] = place
        return self.value(leaf, node, buffers)

    def value(self, leaf: _Leaf, node: int, buffers: bool) -> Value:
        at, size, first = leaf.place(node)
        if first:
            return self.large_value(at, size, first, buffers)
        at -= leaf.first_byte
        return memoryview(leaf.raw)[at : at + size] if buffers else leaf.raw[at : at + size]

    def large_value(self, at: int, size: int, first: int, buffers: bool) -> Value:
        """A value that has pages of its own: see _Leaf.place."""
        file = self.file
        header_bytes = file.meta.layout.header_bytes
        if size <= COPIED_BYTES:
            whole = _read(file, at - header_bytes, header_bytes + size)
            header, data = whole[:header_bytes], whole[header_bytes:]
        else:  # the header second: its page is in memory then, and one request has brought both
            data = _read(file, at, size)
            header = os.pread(file.fd, header_bytes, at - header_bytes)
        wrong = pages.misplaced(file.meta, header, first, size)
        self.check()
        if wrong:
            raise file.damaged(first, wrong)
        return memoryview(data) if buffers else data

    def hint(self, places: Iterable[tuple[int, int, int]]) -> None:
        """Has the kernel fetch values that are not in their leaf while something else is done."""
        with suppress(OSError):
            for at, n_bytes, first in places:
                if not first:
                    continue
                for start in range(at, at + n_bytes, HINT_BYTES):
                    part = min(HINT_BYTES, at + n_bytes - start)
                    os.posix_fadvise(self.file.fd, start, part, os.POSIX_FADV_WILLNEED)


def _read(file: pages.File, at: int, n_bytes: int) -> bytes:
    data = os.pread(file.fd, n_bytes, at)
    while len(data) < n_bytes:
        more = os.pread(file.fd, n_bytes - len(data), at + len(data))
        if not more:
            page = (at + len(data)) // file.meta.page_bytes
            raise file.damaged(page, "lies beyond the end of the file")
        data += more
    return data


class _Position:
    """A place in a tree: the branches above it, a leaf, a node of it.

    It moves as liblmdb's cursors do, also where it does not arrive: after a miss it stands at the
    first greater key of the leaf that was searched, node len(leaf) if there is none in it; after
    next() at the end it stays there.
    """

    def __init__(self, snapshot: _Snapshot, tree: pages.TreeRecord) -> None:
        self._snapshot = snapshot
        self._tree = tree
        self._above: _Above = []
        self.leaf: _Leaf | None = None  # None: it was never anywhere
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
        """To the first key that is not less."""
        if not self._search(key):
            return False
        assert self.leaf is not None
        if self.node < len(self.leaf) or self._aside(1):
            return True
        self._is_at_end = True
        return False

    def find(self, key: bytes) -> bool:
        """To this key."""
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
        """To the leaf where a key is, if it is anywhere; False: there is no leaf."""
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

    def _descend_from_root(self, choose: Callable[[_Branch], int]) -> bool:
        self._above, self.leaf, self._is_at_end = [], None, False
        if self._tree.root == pages.NO_PAGE:
            return False
        if not 1 <= self._tree.depth <= pages.MAX_DEPTH:
            raise self._snapshot.file.damaged(
                self._tree.root, f"is the root of a tree of depth {self._tree.depth}"
            )
        self._descend(self._tree.root, choose)
        return True

    def _descend(self, number: int, choose: Callable[[_Branch], int]) -> None:
        while len(self._above) < self._tree.depth - 1:
            branch = self._snapshot.page(number, False, self._above)
            assert isinstance(branch, _Branch)
            node = choose(branch)
            self._above.append((branch, node))
            number = branch.children[node]
        leaf = self._snapshot.page(number, True, self._above)
        assert isinstance(leaf, _Leaf)
        self.leaf = leaf

    def _aside(self, step: int) -> bool:
        """To the neighbouring leaf.  At an end of the tree nothing moves."""
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


def _bounds(above: _Above) -> tuple[bytes, bytes | None]:
    """Between which keys those of a page lie, by the branches above it."""
    low, high = b"", None
    for branch, node in above:
        if node:
            low = branch.keys[node]
        if node + 1 < len(branch.keys):
            high = branch.keys[node + 1]
    return low, high


class Environment:
    """An LMDB, read.  Takes what lmdb.Environment takes; what is about writing, locking and mapping
    changes nothing.  path: a folder with data.mdb, or the file."""

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        map_size: int = 10485760,
        subdir: bool = True,
        readonly: bool = True,
        *unused: object,
        **ignored: object,
    ) -> None:
        unknown = set(ignored) - _IGNORED
        if unknown:
            raise TypeError(f"open() got an unexpected argument {sorted(unknown)[0]!r}")
        self._path = os.fsdecode(path)
        if not self._path:  # the folder where the program stands, to abspath
            raise FeedError("an empty text names no LMDB; this folder is '.'")
        inside = os.path.join(self._path, "data.mdb")
        self._file = os.path.abspath(inside if os.path.isdir(self._path) else self._path)
        self._max_readers = ignored.get("max_readers", 126)
        self._flags = {name: bool(ignored.get(name, value)) for name, value in _FLAGS.items()}
        self._snapshot: _Snapshot | None = None
        self._fd = -1
        self._open()
        try:
            self._lib_version = _LIB_VERSIONS[self._now().file.meta.layout.version]
        except FeedError as error:
            if not pages.is_lmdb(os.pread(self._fd, pages.HEAD_BYTES, 0)):
                raise InvalidError(str(error)) from error
            raise

    readonly = True

    def _open(self) -> None:
        try:
            self._fd = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.pread(self._fd, 0, 0)  # ends here for a pipe
        except OSError as error:
            raise FeedError(
                f"{self._file}: {error.strerror}; is it there, and readable by you?"
            ) from error
        with suppress(OSError):  # a hint; the kernel's read-ahead would fetch other records
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def _now(self) -> _Snapshot:
        self._refuse_closed()
        kept = self._snapshot
        if kept is not None and kept.newest() == kept.file.meta.txnid:
            return kept
        self._snapshot = _Snapshot(pages.file_of(self._fd, self._file))
        return self._snapshot

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_path", "_file", "_max_readers", "_flags", "_lib_version")
        return {name: self.__dict__[name] for name in kept} | {"is_open": self._fd >= 0}

    def __setstate__(self, state: dict[str, Any]) -> None:
        is_open = state.pop("is_open")
        self.__dict__.update(state)
        self._snapshot, self._fd = None, -1
        if is_open:
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def close(self) -> None:
        """Its transactions can no longer be read."""
        fd, self._fd, self._snapshot = self._fd, -1, None
        if fd >= 0:
            os.close(fd)

    def begin(
        self,
        db: Database | None = None,
        parent: Transaction | None = None,
        write: bool = False,
        buffers: bool = False,
    ) -> Transaction:
        """A transaction to read with.  Raises ReadonlyError: one to write; InvalidParameterError:
        one within another, which LMDB has to write only."""
        return Transaction(self, db, parent, write, buffers)

    def open_db(
        self,
        key: bytes | None = None,
        txn: Transaction | None = None,
        reverse_key: bool = False,
        dupsort: bool = False,
        create: bool = True,
        integerkey: bool = False,
        integerdup: bool = False,
        dupfixed: bool = False,
    ) -> Database:
        """A named database, None: the main one.  Raises NotFoundError: there is none of this name;
        ReadonlyError: it would have to be made; IncompatibleError: this is a record's key;
        ValueError: the main one is to be of some kind, which it is already."""
        if key is None and (reverse_key or dupsort or integerkey or integerdup or dupfixed):
            raise ValueError(
                "the main database is as it was made: say dupsort and the like of none"
            )
        key = None if key is None else _key(key)
        snapshot = self._now() if txn is None else txn._snapshot_of()
        try:
            snapshot.tree(key)
        except NotFoundError as error:
            if create:
                raise ReadonlyError(f"{error}, and none is made here") from error
            raise
        return Database(key)

    def dbs(self, txn: Transaction | None = None) -> list[bytes]:
        """The names of the databases in it."""
        snapshot = self._now() if txn is None else txn._snapshot_of()
        position, names = _Position(snapshot, snapshot.file.meta.main), []
        there = position.first()
        while there:
            if position.is_database():
                names.append(position.key().removesuffix(snapshot.file.meta.layout.name_end))
            there = position.next()
        return names

    def stat(self) -> dict[str, int]:
        """Of the main database, now."""
        snapshot = self._now()
        return _stat(snapshot, snapshot.tree(None))

    def info(self) -> dict[str, Any]:
        """As py-lmdb gives it; nothing is mapped and no reader is registered."""
        meta = self._now().file.meta
        return {
            "map_addr": 0,
            "map_size": meta.map_bytes,
            "last_pgno": meta.last_page,
            "last_txnid": meta.txnid,
            "max_readers": self._max_readers,
            "num_readers": 0,
        }

    def _refuse_closed(self) -> None:
        if self._fd < 0:
            raise FeedError(f"{self._path}: the environment is closed; open it again")

    def path(self) -> str:
        self._refuse_closed()
        return self._path

    def flags(self) -> dict[str, bool]:
        """As it was opened; of these only `subdir` and `readonly` mean anything here."""
        self._refuse_closed()
        return {"subdir": os.path.isdir(self._path), "readonly": True} | self._flags

    def lib_version(self) -> tuple[int, int, int]:
        """Of the LMDB that py-lmdb would read this file with."""
        return self._lib_version

    def max_key_size(self) -> int:
        """Of LMDB 0.9 as it is usually built; of LMDB 1.0, which takes what a page has room for."""
        layout, page_bytes = self._now().file.meta.layout, self._now().file.meta.page_bytes
        if layout.version == 1:
            return 511
        node_bytes = ((page_bytes - layout.header_bytes) // 2 & ~1) - 2  # two nodes and offsets
        return node_bytes - pages.NODE_BYTES - pages.DATABASE.size

    def max_readers(self) -> Any:
        self._refuse_closed()
        return self._max_readers

    def readers(self) -> str:
        self._refuse_closed()
        return "(no reader locks)\n"

    def reader_check(self) -> int:
        self._refuse_closed()
        return 0

    def sync(self, force: bool = False) -> NoReturn:
        """Raises ReadonlyError, as py-lmdb does of an environment that is read only."""
        self._refuse_closed()
        raise ReadonlyError(f"{self._path} {_NEVER}; nothing was written")

    def set_mapsize(self, map_size: int) -> None:
        """Nothing is mapped."""
        self._refuse_closed()

    def copy(self, path: str, *args: object, **options: object) -> NoReturn:
        raise ReadonlyError(f"{self._path} {_NEVER}; to copy it, copy its file or use mdb_copy")

    copyfd = copy


# What py-lmdb's open takes and a reader without map and lock has no use for: with its defaults
# there, what flags() says.
_FLAGS = {
    "metasync": True, "sync": True, "map_async": False, "readahead": True, "writemap": False,
    "meminit": True, "lock": True,
}  # fmt: skip
# By the layout of a file: what is in py-lmdb 3.0.
_LIB_VERSIONS = {1: (0, 9, 36), 3: (1, 0, 2)}
_IGNORED = {*_FLAGS, "mode", "create", "max_readers", "max_dbs", "max_spare_txns", "lib_version"}


def version(subpatch: bool = False) -> tuple[int, ...]:
    """The LMDB of the py-lmdb whose interface this is; see Environment.lib_version of a file."""
    return (*_LIB_VERSIONS[1], 1) if subpatch else _LIB_VERSIONS[1]


def enable_drop_gil() -> None:
    """Nothing: a read never holds it."""


open = Environment  # noqa: A001 - the name is the interface


def _stat(snapshot: _Snapshot, tree: pages.TreeRecord) -> dict[str, int]:
    return {
        "psize": snapshot.file.meta.page_bytes,
        "depth": tree.depth,
        "branch_pages": tree.branch_pages,
        "leaf_pages": tree.leaf_pages,
        "overflow_pages": tree.overflow_pages,
        "entries": tree.entries,
    }


class Transaction:
    """Reads what was committed when it began."""

    def __init__(
        self,
        env: Environment,
        db: Database | None = None,
        parent: Transaction | None = None,
        write: bool = False,
        buffers: bool = False,
    ) -> None:
        if parent is not None:
            raise InvalidParameterError("a transaction that reads cannot be within another one")
        if write:
            raise ReadonlyError(f"{env._path} {_NEVER}")
        self.env = env
        self._db = _database(db, _MAIN)
        self._buffers = buffers
        self._snapshot: _Snapshot | None = env._now()

    def _snapshot_of(self) -> _Snapshot:
        if self._snapshot is None or self.env._fd < 0:
            raise FeedError(f"{self.env._path}: the transaction has ended; begin another")
        return self._snapshot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.abort()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a transaction cannot be pickled; pickle its environment")

    def abort(self) -> None:
        self._snapshot = None

    def commit(self) -> None:
        self._snapshot_of()
        self._snapshot = None

    def id(self) -> int:
        return self._snapshot_of().file.meta.txnid

    def stat(self, db: Database | None = None) -> dict[str, int]:
        snapshot = self._snapshot_of()
        return _stat(snapshot, snapshot.tree(_database(db, self._db).name))

    def get(self, key: bytes, default: Any = None, db: Database | None = None) -> Any:
        """A key's value, or default."""
        name = (self._db if db is None else _database(db, self._db)).name
        found = self._snapshot_of().get(name, _key(key), self._buffers)
        return default if found is None else found

    def cursor(self, db: Database | None = None) -> Cursor:
        return Cursor(_database(db, self._db), self)

    def pop(self, key: bytes, db: Database | None = None) -> None:
        """None of a key that is not there, as from py-lmdb.  Raises ReadonlyError: it is there."""
        if self.get(key, db=db) is not None:
            self._write()

    def _write(self, *args: object, **options: object) -> NoReturn:
        self._snapshot_of()
        raise ReadonlyError(f"{self.env._path} {_NEVER}")

    put = replace = delete = drop = _write


def _database(db: Database | None, default: Database) -> Database:
    if db is None:
        return default
    if not isinstance(db, Database):
        raise TypeError(f"{db!r} is no database; open_db() gives one")
    return db


def _key(key: Any) -> bytes:
    if isinstance(key, str):
        raise TypeError(f"a key is bytes, and {key!r} is text; encode it")
    found = bytes(memoryview(key))  # bytes(7) would be seven zeros
    if not found:
        raise BadValsizeError("an empty key; LMDB has none")
    return found


class Cursor:
    """A place in a database, as py-lmdb's.  Each key has one value: what asks how many there are,
    or for a certain one, is an IncompatibleError, and the next one is the next key's, as there."""

    def __init__(self, db: Database, txn: Transaction) -> None:
        self.db = _database(db, txn._db)
        self.txn = txn
        snapshot = txn._snapshot_of()
        self._position = _Position(snapshot, snapshot.tree(self.db.name))
        self._is_there = False
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_there, self._is_closed = False, True

    def _snapshot_of(self) -> _Snapshot:
        if self._is_closed:
            raise FeedError(f"{self.txn.env._path}: the cursor is closed; take another")
        return self.txn._snapshot_of()

    # --- where it is

    def key(self) -> Value:
        self._snapshot_of()
        return self._key()

    def value(self) -> Value:
        snapshot = self._snapshot_of()
        leaf = self._position.leaf
        if not self._is_there or leaf is None:
            return self._as_asked(b"")
        return snapshot.value(leaf, self._position.node, self.txn._buffers)

    def item(self) -> tuple[Value, Value]:
        value = self.value()
        return self._key(), value

    def _key(self) -> Value:
        return self._as_asked(self._position.key() if self._is_there else b"")

    def _as_asked(self, data: bytes) -> Value:
        return memoryview(data) if self.txn._buffers else data

    # --- moving

    def _moved(self, is_there: bool) -> bool:
        self._is_there = is_there
        return is_there

    def first(self) -> bool:
        self._snapshot_of()
        return self._moved(self._position.first())

    def last(self) -> bool:
        self._snapshot_of()
        return self._moved(self._position.last())

    def next(self) -> bool:
        self._snapshot_of()
        return self._moved(self._position.next())

    def prev(self) -> bool:
        self._snapshot_of()
        return self._moved(self._position.prev())

    next_nodup = next_dup = next  # noqa: A003 - the names are the interface
    prev_nodup = prev_dup = prev

    def set_key(self, key: bytes) -> bool:
        self._snapshot_of()
        return self._moved(self._position.find(_key(key)))

    def set_range(self, key: bytes) -> bool:
        """To the first key that is not less; an empty one: to the first."""
        self._snapshot_of()
        if isinstance(key, bytes | bytearray | memoryview) and not len(key):
            return self.first()
        return self._moved(self._position.seek(_key(key)))

    def _of_several(self, *args: object) -> NoReturn:
        self._snapshot_of()
        raise IncompatibleError(
            f"{self.txn.env._path}: keys have one value each; this is for a database opened with "
            "dupsort=True, which is not read here"
        )

    count = first_dup = last_dup = set_key_dup = set_range_dup = _of_several

    # --- many

    def get(self, key: bytes, default: Any = None) -> Any:
        return self.value() if self.set_key(key) else default

    def getmulti(
        self,
        keys: Iterable[bytes],
        dupdata: bool = False,
        dupfixed_bytes: int | None = None,
        keyfixed: bool = False,
        values: bool = True,
    ) -> list[Any]:
        """(key, value) of those that are there, in the order that was asked for; dupdata changes
        nothing, as each key has one value.

        The values are read in the order of the file, each hinted ahead of its turn: many requests
        at a time where py-lmdb has one.
        """
        if (dupfixed_bytes or keyfixed) and not dupdata:
            raise TypeError("dupfixed_bytes and keyfixed need dupdata=True")
        if dupfixed_bytes or keyfixed:
            self._of_several()
        snapshot = self._snapshot_of()
        found: list[tuple[bytes, _Leaf, int]] = []
        for key in keys:
            if self.set_key(key):
                assert self._position.leaf is not None
                found.append((self._position.key(), self._position.leaf, self._position.node))
        if not values:
            return [self._as_asked(key) for key, _, _ in found]
        places = [leaf.place(node) for _, leaf, node in found]
        order = sorted(range(len(found)), key=places.__getitem__)
        answers: list[Any] = [None] * len(found)
        for place, number in enumerate(order):
            ahead = order[:HINT_RECORDS] if not place else order[place + HINT_RECORDS - 1 :][:1]
            snapshot.hint(places[one] for one in ahead)
            key, leaf, node = found[number]
            value = snapshot.value(leaf, node, self.txn._buffers)
            answers[number] = (self._as_asked(key), value)
        return answers

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        """From where it is, or from the first; what it yields is where it is."""
        if not self._is_there:
            self.first()
        return self._each(self.next, keys, values, is_forward=True)

    def iterprev(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        if not self._is_there:
            self.last()
        return self._each(self.prev, keys, values, is_forward=False)

    def iternext_nodup(self, keys: bool = True, values: bool = False) -> Iterator[Any]:
        return self.iternext(keys, values)

    def iterprev_nodup(self, keys: bool = True, values: bool = False) -> Iterator[Any]:
        return self.iterprev(keys, values)

    def iternext_dup(self, keys: bool = False, values: bool = True) -> Iterator[Any]:
        """From where it is, to the last key; none if it is nowhere."""
        self._snapshot_of()
        return self._each(self.next, keys, values, is_forward=True)

    def iterprev_dup(self, keys: bool = False, values: bool = True) -> Iterator[Any]:
        self._snapshot_of()
        return self._each(self.prev, keys, values, is_forward=False)

    def __iter__(self) -> Iterator[Any]:
        return self.iternext()

    def _each(
        self, step: Callable[[], bool], keys: bool, values: bool, is_forward: bool
    ) -> Iterator[Any]:
        return _Each(self, step, keys, values, is_forward)

    def _hint(self, start: int, end: int) -> None:
        """Announces the values of nodes in this leaf, counted from here."""
        leaf, node = self._position.leaf, self._position.node
        assert leaf is not None
        nodes = range(node + start, min(node + end, len(leaf)))
        self._snapshot_of().hint(leaf.place(one) for one in nodes)

    def pop(self, key: bytes) -> None:
        """None of a key that is not there, as from py-lmdb.  Raises ReadonlyError: it is there."""
        if self.set_key(key):
            self._write()

    def delete(self, dupdata: bool = False) -> bool:
        """False where it is nowhere, as from py-lmdb.  Raises ReadonlyError: it is somewhere."""
        self._snapshot_of()
        return self._write() if self._is_there else False

    def _write(self, *args: object, **options: object) -> NoReturn:
        self._snapshot_of()
        raise ReadonlyError(f"{self.txn.env._path} {_NEVER}")

    put = putmulti = replace = _write


class _Each:
    """What a cursor meets on its way, as py-lmdb's iterators give it: a step from wherever the
    cursor is by then, so that it ends while the cursor is nowhere, and goes on once it is
    somewhere again."""

    def __init__(
        self,
        cursor: Cursor,
        step: Callable[[], bool],
        keys: bool,
        values: bool,
        is_forward: bool,
    ) -> None:
        self._cursor = cursor
        self._step = step
        self._is_forward = is_forward and values
        self._give: Callable[[], Any] = cursor.key
        if values:
            self._give = cursor.item if keys else cursor.value
        self._is_begun = False
        self._hinted: _Leaf | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        cursor = self._cursor
        if not cursor._is_there:
            cursor._snapshot_of()  # of one that was closed an error
            raise StopIteration
        if self._is_begun and not self._step():
            raise StopIteration
        if self._is_forward and cursor._position.leaf is not self._hinted:
            self._hinted = cursor._position.leaf
            cursor._hint(0, HINT_RECORDS)
        elif self._is_forward:
            cursor._hint(HINT_RECORDS - 1, HINT_RECORDS)
        found = self._give()
        self._is_begun = True
        return found
