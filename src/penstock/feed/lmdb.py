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

__version__ = "3.0.0"  # of py-lmdb, whose interface this is


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


def _file_of(path: str) -> str:
    """The file of a folder with data.mdb, or itself; of an address, the object."""
    if not arguments.is_remote(path):
        inside = os.path.join(path, "data.mdb")
        return os.path.abspath(inside if os.path.isdir(path) else path)
    from penstock.feed import remote

    if not path.endswith("/") and remote.is_object(path):
        return path
    return path.rstrip("/") + "/data.mdb"


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
            os.pread(descriptor, 0, 0)  # ends here for a pipe
        except OSError as error:
            self.close()
            raise FeedError(
                f"{self._file}: {error.strerror}; is it there, and readable by you?"
            ) from error
        with suppress(OSError):  # a hint; the kernel's read-ahead would fetch other records
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
        """Its transactions can no longer be read."""
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
        position, names = Position(snapshot, snapshot.file.meta.main), []
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
        if self._source is None:
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
        found: list[tuple[bytes, Leaf, int]] = []
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
        self._hinted: Leaf | None = None

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
