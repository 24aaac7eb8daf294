"""Provide the part of py-lmdb's interface that training code uses, without liblmdb; never write.

    from penstock.feed import lmdb          # instead of: import lmdb

Reads of pages and values use `pread`: one request per record instead of one page fault per 4 KiB.
Without a memory map, a shrinking file raises an error instead of SIGBUS.  Without a lock file, a
read-only folder is enough.  Without state shared by a fork, an Environment can be pickled.  A
transaction reads the newest commit at its start.  A reader without a lock cannot keep a writer from
overwriting pages, so a read after another commit raises FeedError; a new transaction then reads the
new commit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, Self

from penstock.errors import FeedError
from penstock.feed import arguments, pages
from penstock.feed.byte_file import ByteFile, LocalFile, RemoteFile
from penstock.feed.lmdb_errors import (
    BadChecksumError,
    BadDbiError,
    BadRslotError,
    BadTxnError,
    BadValsizeError,
    CorruptedError,
    CryptoFailError,
    CursorFullError,
    DbsFullError,
    DiskError,
    EnvEncryptionError,
    Error,
    IncompatibleError,
    InvalidError,
    InvalidParameterError,
    KeyExistsError,
    LockError,
    MapFullError,
    MapResizedError,
    MemoryError,  # noqa: A004 - py-lmdb's own name
    NotFoundError,
    PageFullError,
    PageNotFoundError,
    PanicError,
    ProblemError,
    ReadersFullError,
    ReadonlyError,
    TlsFullError,
    TxnFullError,
    VersionMismatchError,
)
from penstock.feed.lmdb_pages import HINT_RECORDS, Position, Snapshot

if TYPE_CHECKING:
    from penstock.feed.lmdb_pages import Leaf, Value

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

__version__ = "3.0.0"  # of py-lmdb, whose interface this module copies


_NEVER = (
    "is read here and never written; open it with py-lmdb to write, and with this once that is done"
)


class Database:
    """A named database of an Environment; name None: the main database."""

    __slots__ = ("name",)

    def __init__(self, name: bytes | None = None) -> None:
        self.name = name

    def flags(self, txn: Transaction | None = None) -> dict[str, bool]:
        """Return py-lmdb's flags: all False, as databases of other kinds are refused."""
        names = ("reverse_key", "dupsort", "integerkey", "integerdup", "dupfixed")
        return dict.fromkeys(names, False)


_MAIN = Database()


def _file_of(path: str) -> str:
    """Return data.mdb of a folder, or the path of a file; for an address, the object."""
    if not arguments.is_remote(path):
        inside = os.path.join(path, "data.mdb")
        return os.path.abspath(inside if os.path.isdir(path) else path)
    from penstock.feed import remote

    if not path.endswith("/") and remote.is_object(path):
        return path
    return path.rstrip("/") + "/data.mdb"


class Environment:
    """An LMDB, opened for reading.

    The arguments are lmdb.Environment's; arguments about writing, locking and mapping are ignored.
    path: a folder with data.mdb, or the file.
    """

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
        if not self._path:  # abspath("") would be the current folder
            raise FeedError("an empty text names no LMDB; this folder is '.'")
        self._file = _file_of(self._path)
        self._max_readers = ignored.get("max_readers", 126)
        self._flags = {name: bool(ignored.get(name, value)) for name, value in _FLAGS.items()}
        self._snapshot: Snapshot | None = None
        self._source: ByteFile | None = None
        self._open()
        try:
            self._lib_version = _LIB_VERSIONS[self._now().file.meta.layout.version]
        except FeedError as error:
            source = self._source
            if source is None or not pages.is_lmdb(source.pread(pages.HEAD_BYTES, 0)):
                raise InvalidError(str(error)) from error
            raise

    readonly = True

    def _open(self) -> None:
        if arguments.is_remote(self._file):
            self._source = RemoteFile(self._file)
            return
        try:
            descriptor = os.open(self._file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._source = LocalFile(descriptor)
            os.pread(descriptor, 0, 0)  # raises OSError for a pipe
        except OSError as error:
            self.close()
            raise FeedError(
                f"{self._file}: {error.strerror}; is it there, and readable by you?"
            ) from error
        with suppress(OSError):  # only a hint; the kernel's read-ahead would fetch other records
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def _now(self) -> Snapshot:
        self._refuse_closed()
        kept = self._snapshot
        if kept is not None and kept.newest() == kept.file.meta.txnid:
            return kept
        assert self._source is not None
        self._snapshot = Snapshot(pages.file_of(self._source, self._file))
        return self._snapshot

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_path", "_file", "_max_readers", "_flags", "_lib_version")
        return {name: self.__dict__[name] for name in kept} | {"is_open": self._source is not None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        is_open = state.pop("is_open")
        self.__dict__.update(state)
        self._snapshot, self._source = None, None
        if is_open:
            self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_source", None) is not None:
            self.close()

    def close(self) -> None:
        """Close the file; transactions of the environment can no longer read."""
        source, self._source, self._snapshot = self._source, None, None
        if source is not None:
            source.close()

    def begin(
        self,
        db: Database | None = None,
        parent: Transaction | None = None,
        write: bool = False,
        buffers: bool = False,
    ) -> Transaction:
        """Begin a read transaction.

        Raises ReadonlyError: write is True.  Raises InvalidParameterError: a nested transaction,
        which LMDB has for writing only.
        """
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
        """Return a named database; None: the main database.

        Raises NotFoundError: no database has the name and create is False.  Raises ReadonlyError:
        the database is missing and would be created.  Raises IncompatibleError: the key belongs to
        a record.  Raises ValueError: flags given for the main database, which exists already.
        """
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
        """Return the names of the databases in the environment."""
        snapshot = self._now() if txn is None else txn._snapshot_of()
        position, names = Position(snapshot, snapshot.file.meta.main), []
        there = position.first()
        while there:
            if position.is_database():
                names.append(position.key().removesuffix(snapshot.file.meta.layout.name_end))
            there = position.next()
        return names

    def stat(self) -> dict[str, int]:
        """Return the current statistics of the main database."""
        snapshot = self._now()
        return _stat(snapshot, snapshot.tree(None))

    def info(self) -> dict[str, Any]:
        """Return py-lmdb's info; without map or reader lock, map_addr and num_readers are 0."""
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
        if self._source is None:
            raise FeedError(f"{self._path}: the environment is closed; open it again")

    def path(self) -> str:
        self._refuse_closed()
        return self._path

    def flags(self) -> dict[str, bool]:
        """Return the flags given at opening; only `subdir` and `readonly` have a meaning here."""
        self._refuse_closed()
        return {"subdir": os.path.isdir(self._path), "readonly": True} | self._flags

    def lib_version(self) -> tuple[int, int, int]:
        """Return the version of LMDB that py-lmdb would use for this file."""
        return self._lib_version

    def max_key_size(self) -> int:
        """Return the largest key in bytes: 511 for usual LMDB 0.9, limited by the page for 1.0."""
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
        """Raise ReadonlyError, as py-lmdb does for a read-only environment."""
        self._refuse_closed()
        raise ReadonlyError(f"{self._path} {_NEVER}; nothing was written")

    def set_mapsize(self, map_size: int) -> None:
        """Do nothing, as nothing is mapped."""
        self._refuse_closed()

    def copy(self, path: str, *args: object, **options: object) -> NoReturn:
        raise ReadonlyError(f"{self._path} {_NEVER}; to copy it, copy its file or use mdb_copy")

    copyfd = copy


# Arguments of py-lmdb's open without use for a reader without map and lock, with py-lmdb's
# defaults; flags() returns the values.
_FLAGS = {
    "metasync": True, "sync": True, "map_async": False, "readahead": True, "writemap": False,
    "meminit": True, "lock": True,
}  # fmt: skip


# The LMDB versions in py-lmdb 3.0, by the layout of a file.
_LIB_VERSIONS = {1: (0, 9, 36), 3: (1, 0, 2)}
_IGNORED = {*_FLAGS, "mode", "create", "max_readers", "max_dbs", "max_spare_txns", "lib_version"}


def version(subpatch: bool = False) -> tuple[int, ...]:
    """Return the LMDB version of the copied py-lmdb; for a file see Environment.lib_version."""
    return (*_LIB_VERSIONS[1], 1) if subpatch else _LIB_VERSIONS[1]


def enable_drop_gil() -> None:
    """Do nothing: a read never holds the GIL."""


open = Environment  # noqa: A001 - the name is the interface


def _stat(snapshot: Snapshot, tree: pages.TreeRecord) -> dict[str, int]:
    return {
        "psize": snapshot.file.meta.page_bytes,
        "depth": tree.depth,
        "branch_pages": tree.branch_pages,
        "leaf_pages": tree.leaf_pages,
        "overflow_pages": tree.overflow_pages,
        "entries": tree.entries,
    }


class Transaction:
    """A read transaction: sees the newest commit at its start."""

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
        self._snapshot: Snapshot | None = env._now()

    def _snapshot_of(self) -> Snapshot:
        if self._snapshot is None or self.env._source is None:
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
        """Return the value of a key, or default."""
        name = (self._db if db is None else _database(db, self._db)).name
        value = self._snapshot_of().get(name, _key(key), self._buffers)
        return default if value is None else value

    def cursor(self, db: Database | None = None) -> Cursor:
        return Cursor(_database(db, self._db), self)

    def pop(self, key: bytes, db: Database | None = None) -> None:
        """Return None for a missing key, as py-lmdb does.

        Raises ReadonlyError: the key exists.
        """
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
    raw = bytes(memoryview(key))  # bytes(7) would be seven zeros
    if not raw:
        raise BadValsizeError("an empty key; LMDB has none")
    return raw


class Cursor:
    """A cursor in a database, like py-lmdb's.

    Each key has one value.  Methods for duplicate values raise IncompatibleError, except next_dup
    and prev_dup, which move to the neighbouring key.
    """

    def __init__(self, db: Database, txn: Transaction) -> None:
        self.db = _database(db, txn._db)
        self.txn = txn
        snapshot = txn._snapshot_of()
        self._position = Position(snapshot, snapshot.tree(self.db.name))
        self._is_there = False
        self._is_closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_there, self._is_closed = False, True

    def _snapshot_of(self) -> Snapshot:
        if self._is_closed:
            raise FeedError(f"{self.txn.env._path}: the cursor is closed; take another")
        return self.txn._snapshot_of()

    # --- current position

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
        """Move to the first key that is not less than `key`; an empty key: to the first."""
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
        """Return (key, value) of the keys that exist, in the given order.

        dupdata has no effect, as each key has one value.  The values are read in file order, with
        hints ahead: many requests in flight where py-lmdb has one.
        """
        if (dupfixed_bytes or keyfixed) and not dupdata:
            raise TypeError("dupfixed_bytes and keyfixed need dupdata=True")
        if dupfixed_bytes or keyfixed:
            self._of_several()
        snapshot = self._snapshot_of()
        entries: list[tuple[bytes, Leaf, int]] = []
        for key in keys:
            if self.set_key(key):
                assert self._position.leaf is not None
                entries.append((self._position.key(), self._position.leaf, self._position.node))
        if not values:
            return [self._as_asked(key) for key, _, _ in entries]
        places = [leaf.place(node) for _, leaf, node in entries]
        order = sorted(range(len(entries)), key=places.__getitem__)
        answers: list[Any] = [None] * len(entries)
        for place, number in enumerate(order):
            ahead = order[:HINT_RECORDS] if not place else order[place + HINT_RECORDS - 1 :][:1]
            snapshot.hint(places[at] for at in ahead)
            key, leaf, node = entries[number]
            value = snapshot.value(leaf, node, self.txn._buffers)
            answers[number] = (self._as_asked(key), value)
        return answers

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        """Iterate from the current position, else from the first key, and move the cursor."""
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
        """Iterate from the current position to the last key; without a position, yield nothing."""
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
        """Prefetch the values of nodes `start` to `end`, counted from the current node."""
        leaf, node = self._position.leaf, self._position.node
        assert leaf is not None
        nodes = range(node + start, min(node + end, len(leaf)))
        self._snapshot_of().hint(leaf.place(node_number) for node_number in nodes)

    def pop(self, key: bytes) -> None:
        """Return None for a missing key, as py-lmdb does.

        Raises ReadonlyError: the key exists.
        """
        if self.set_key(key):
            self._write()

    def delete(self, dupdata: bool = False) -> bool:
        """Return False without a position, as py-lmdb does.

        Raises ReadonlyError: the cursor is at a key.
        """
        self._snapshot_of()
        return self._write() if self._is_there else False

    def _write(self, *args: object, **options: object) -> NoReturn:
        self._snapshot_of()
        raise ReadonlyError(f"{self.txn.env._path} {_NEVER}")

    put = putmulti = replace = _write


class _Each:
    """An iterator over a cursor, like py-lmdb's.

    Each step starts at the cursor's current position.  The iterator ends while the cursor has no
    position and continues once the cursor has a position again.
    """

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
        self._hinted: Leaf | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        cursor = self._cursor
        if not cursor._is_there:
            cursor._snapshot_of()  # raises an error if the cursor was closed
            raise StopIteration
        if self._is_begun and not self._step():
            raise StopIteration
        if self._is_forward and cursor._position.leaf is not self._hinted:
            self._hinted = cursor._position.leaf
            cursor._hint(0, HINT_RECORDS)
        elif self._is_forward:
            cursor._hint(HINT_RECORDS - 1, HINT_RECORDS)
        item = self._give()
        self._is_begun = True
        return item
