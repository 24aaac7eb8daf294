"""Build the index of a data set: key, file, offset and length of each record; read no record.

Every container format becomes a table of one form, so a single planner and reader serve all
formats.  The modules of the formats (`pages` for LMDB, `tar`, `tfrecord`, `folder`) return the
spans of one file.  This module joins the spans, checks the bounds against the files, and caches
indexes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import struct
import zlib
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError, FeedRefused
from penstock.feed import arguments, folder, pages, parquet, tar, tfrecord
from penstock.feed.names import (
    BESIDE,
    KINDS,
    AnyPath,
    Paths,
    asked_text,
    files_of,
    refuse_containers,
)
from penstock.feed.spans import Advance, LeftOut, Spans, left_out
from penstock.safe import bounded, drafts

if TYPE_CHECKING:
    from penstock.feed.transfer import Seen

__all__ = [
    "Index",
    "described",
    "from_bytes",
    "open_index",
    "to_bytes",
]

MAGIC = b"PENSTIDX"
VERSION = 2
HEADER = struct.Struct("<8sIIQI")  # magic, version, CRC of the body, bytes of body, bytes of JSON
COLUMNS = (("file", "<u4"), ("offset", "<i8"), ("length", "<i8"), ("key_end", "<i8"))
STATE = np.dtype([("size", "<i8"), ("mtime_ns", "<i8"), ("txnid", "<i8")])
ROW = struct.Struct("<qqq")  # of STATE, for a file: ten times as fast as an array with a row
NO_TXNID = -1

# Files indexed in parallel.  The headers of a shard are read one by one, each with a request to the
# device.  An LMDB's pages are requested together and take memory.
THREADS = {"lmdb": 2, "tar": 16, "tfrecord": 16, "parquet": 16}

REMOTE_THREADS = 64  # each thread mostly waits for a header

# Below 1,000 records, a new index takes less time than the cache file is worth.
CACHED_RECORDS = 1000
MOST_INDEX_BYTES = 64 << 20  # for any data set; above, in proportion to the data
BESIDE_DATA = "beside"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Index:
    """The location of each of n records.  A record is one contiguous span of one file.

    path: as given by the caller.  kind: one of KINDS.  files: absolute paths.  file: (n,) uint32,
    into files.  offset, length: (n,) int64, bytes.  keys: (bytes of all keys,) uint8.  key_end:
    (n,) int64; key i is keys[key_end[i-1]:key_end[i]].  fingerprint: a row of STATE per file, at
    indexing time.  left_out: data in the files but in no record.  footers: of Parquet files,
    compressed, with the places of the columns.

    Records are in key order for LMDB, in file order for tar, TFRecord and Parquet (row groups), by
    path for a folder.
    """

    path: str
    kind: str
    files: tuple[str, ...]
    file: NDArray[np.uint32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    keys: NDArray[np.uint8]
    key_end: NDArray[np.int64]
    fingerprint: bytes
    left_out: tuple[LeftOut, ...] = ()
    footers: tuple[bytes, ...] = ()

    def __len__(self) -> int:
        return len(self.offset)

    def __repr__(self) -> str:
        n_files = len(self.files)
        in_files = "1 file" if n_files == 1 else f"{n_files:,} files"
        return (
            f"<Index of {described(self)}, {self.total_bytes:,} bytes in {in_files} of {self.kind}>"
        )

    @property
    def total_bytes(self) -> int:
        """Return the bytes of all records together."""
        return int(self.length.sum())

    @property
    def is_remote(self) -> bool:
        """Return whether the files are objects of a store."""
        return bool(self.files) and arguments.is_remote(self.files[0])

    def seen(self, number: int) -> Seen:
        """Return the indexed version of an object."""
        from penstock.feed.transfer import Seen

        return Seen(*ROW.unpack_from(self.fingerprint, number * ROW.size))

    @property
    def file_bytes(self) -> int:
        """Return the bytes of all files together, at indexing time."""
        return int(np.frombuffer(self.fingerprint, STATE)["size"].sum())

    @property
    def written_ns(self) -> NDArray[np.int64]:
        """Return the last write time of each file, (files,), at indexing time."""
        return np.frombuffer(self.fingerprint, STATE)["mtime_ns"]

    def key(self, record: int) -> bytes:
        """Return the key of a record.

        LMDB: the key; tar: the members' base name; TFRecord, Parquet: file/number; folder: the path
        in the folder.
        """
        record = range(len(self))[record]
        start = int(self.key_end[record - 1]) if record else 0
        return self.keys[start : int(self.key_end[record])].tobytes()

    def find(self, key: bytes | str) -> int:
        """Return the first record with a key, or -1; a str is encoded first.

        LMDB: a binary search in each file; other kinds: a scan of all keys with an equal length.
        Raises FeedError: `key` is not a valid key.
        """
        key = arguments.key("key", key)
        if self.kind == "lmdb":
            return self._find_sorted(key)
        starts = np.concatenate(([0], self.key_end[:-1])) if len(self) else self.key_end
        numbers = np.flatnonzero(self.key_end - starts == len(key))
        for place, byte in enumerate(key):
            numbers = numbers[self.keys[starts[numbers] + place] == byte]
        return int(numbers[0]) if len(numbers) else -1

    def _find_sorted(self, key: bytes) -> int:
        for number in np.arange(len(self.files), dtype=self.file.dtype):  # else numpy converts all
            first = int(np.searchsorted(self.file, number, side="left"))
            end = int(np.searchsorted(self.file, number, side="right"))
            low = bisect_left(range(end), key, first, key=self.key)
            if low < end and self.key(low) == key:
                return low
        return -1

    def check(self) -> None:
        """Raise FeedError with the name of a file that has changed since it was indexed."""
        then = np.frombuffer(self.fingerprint, STATE)
        if len(then) != len(self.files):
            raise FeedError(
                f"{self.path}: the index does not say what its files were; make it again"
            )
        if self.is_remote:
            self._check_objects()
            return
        if self.kind == "lmdb":  # an LMDB also has a transaction number
            for number in range(len(self.files)):
                self.check_file(number)
            return
        now = np.full(len(then), NO_TXNID, STATE)
        now["size"], now["mtime_ns"] = folder.stats(self.files)[:, :2].T
        for number in np.flatnonzero(now != then)[:1]:
            self.check_file(int(number))

    def _check_objects(self) -> None:
        """Compare the objects' versions with the index, by a listing or by HEAD requests."""
        from penstock.feed import remote, transfer

        now = remote.listed_states(self.files) if self.kind == "folder" else None
        for number, seen in enumerate(now or remote.states(self.files)):
            changed = transfer.changed(self.seen(number), seen)
            if changed:
                raise FeedError(
                    f"{self.files[number]} has changed since it was indexed ({changed}); "
                    "open the data set again"
                )

    def check_file(self, number: int, state: os.stat_result | None = None, txnid: int = -1) -> None:
        """Raise FeedError if one file has changed since it was indexed.

        state, txnid: current values from a caller with the file open.
        """
        path = self.files[number]
        before = ROW.unpack_from(self.fingerprint, number * ROW.size)
        if state is None:
            seen = _state_of(path, self.kind)  # three numbers for an object as well
            now = (int(seen["size"]), int(seen["mtime_ns"]), int(seen["txnid"]))
        else:
            now = (state.st_size, state.st_mtime_ns, txnid)
        if now != before:
            raise FeedError(
                f"{path} has changed since it was indexed ({_change(before, now)}); "
                "open the data set again"
            )


def described(index: Index) -> str:
    """Return a short description of a data set: path and number of records."""
    path = index.path if len(index.path) <= 80 else f"{index.path[:77]}..."
    return f"{path}, {len(index):,} records"


def _change(before: tuple[int, ...], now: tuple[int, ...]) -> str:
    (old_size, _, old_txnid), (size, _, txnid) = before, now
    if old_size != size:
        return f"it had {old_size:,} bytes and has {size:,}"
    if old_txnid != txnid:
        return f"it was at transaction {old_txnid} and is at {txnid}"
    return "it was written to"


def _state_of(path: str, kind: str) -> np.void:
    if arguments.is_remote(path):
        from penstock.feed import remote

        now: np.void = np.array(remote.states([path]), STATE)[0]
        return now
    try:
        stat = os.stat(path)
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror}; is the data set complete?") from error
    txnid = pages.txnid_of(path) if kind == "lmdb" else NO_TXNID
    state: np.void = np.array([(stat.st_size, stat.st_mtime_ns, txnid)], STATE)[0]
    return state


# --- build an index ------------------------------------------------------------------------------


def open_index(
    path: Paths,
    *,
    cache: bool | AnyPath = True,
    progress: Advance | None = None,
    kind: str | None = None,
    database: bytes | str | None = None,
) -> Index:
    """Return the index of a data set, built now or loaded from the cache.

    path: a file, a folder, a pattern (`shards/*.tar`, `part-{000..127}.tar`) or a list of these.
    cache: False: no read or write of a cache; "beside": write beside the data (single file only); a
    folder: use the folder instead of the user's cache folder.
    progress: called with (done, total), in files or bytes.
    kind: one of KINDS, instead of detection by content; for a folder, the files inside with a name
    of the kind.
    database: the name of an LMDB's sub-database.

    Raises FeedError: no such file, or files that are empty, damaged, of several kinds, or being
    written.
    """
    asked, is_folder = asked_text(path), kind == "folder"
    if cache == BESIDE_DATA and arguments.is_remote(asked):
        raise FeedError(f"{asked}: nothing is written into a store; give a folder as cache=")
    kind, files = files_of(path, kind)
    if not isinstance(database, str | bytes | None):
        said = arguments.shown(database)
        raise FeedError(f"database={said} is no name; a text, or bytes, names a database")
    arguments.function("progress", progress)
    if not isinstance(cache, bool | str | os.PathLike) or cache == "":  # Path("") is "."
        said = arguments.shown(cache)
        raise FeedError(f"cache={said} is no place; it takes True, False, 'beside' or a folder")
    name = database.encode() if isinstance(database, str) else database
    if name is not None and kind != "lmdb":
        raise FeedRefused(f"{asked}: only an LMDB has databases, this is {kind}")
    if kind == "folder":  # file sizes change without a trace in the folder: no cache
        index = _index_of_folder(asked, files, progress)
        if not is_folder:
            refuse_containers(index.path, index.files)
        return index
    places = [] if cache is False else cache_paths(files, kind, name, cache)
    if cache == BESIDE_DATA and len(places) > 1:
        places.reverse()
    was = _identity(files) if places else b""  # before indexing: a later change is no match
    for place in places:
        kept = _kept(place, was, asked, kind, files)
        if kept is not None:
            return kept
    made = _index_of_files(asked, kind, files, name, progress)
    if places and len(made) >= CACHED_RECORDS:
        _keep(made, was, places[-1])
    return made


def _index_of_folder(asked: str, folders: tuple[str, ...], progress: Advance | None) -> Index:
    listings = [_listed(root, progress) for root in folders]
    files = tuple(path for listing in listings for path in listing.files)
    other = left_out(each for listing in listings for each in listing.left_out)
    if not files:
        but = " but hidden ones" if other else ""
        raise FeedRefused(f"{asked}: no file in it{but}; name a folder that holds the records")
    state = (
        np.concatenate([listing.state for listing in listings]).astype("<i8").view(STATE).ravel()
    )
    keys = [key for listing in listings for key in listing.keys]
    return Index(
        path=asked,
        kind="folder",
        files=files,
        file=np.arange(len(files), dtype=np.uint32),
        offset=np.zeros(len(files), np.int64),
        length=state["size"].copy(),
        keys=np.frombuffer(b"".join(keys), np.uint8),
        key_end=np.cumsum([len(key) for key in keys], dtype=np.int64),
        fingerprint=state.tobytes(),
        left_out=other,
    )


def _listed(root: str, progress: Advance | None) -> folder.Listing:
    if not arguments.is_remote(root):
        return folder.listing(root, progress)
    from penstock.feed import remote

    return remote.listing(root, progress)


def _index_of_files(
    asked: str,
    kind: str,
    files: tuple[str, ...],
    database: bytes | None,
    progress: Advance | None,
) -> Index:
    within = progress if len(files) == 1 else None
    parts: list[tuple[Spans, np.void]] = []
    n_threads = REMOTE_THREADS if arguments.is_remote(files[0]) else THREADS[kind]
    with ThreadPoolExecutor(n_threads, thread_name_prefix="penstock-index") as pool:
        try:
            for part in pool.map(lambda path: _one(path, kind, database, within), files):
                parts.append(part)
                if progress is not None and len(files) > 1:
                    progress(len(parts), len(files))
        except BaseException:  # Ctrl-C too: cancel the waiting files
            pool.shutdown(cancel_futures=True)
            raise
    return _joined(asked, kind, files, [part for part, _ in parts], [state for _, state in parts])


def _one(
    path: str, kind: str, database: bytes | None, progress: Advance | None
) -> tuple[Spans, np.void]:
    """Return the spans and the state of a file.

    Raises FeedError: the file changed meanwhile.
    """
    before = _state_of(path, kind)
    part = _spans_of(path, kind, database, progress)
    after = _state_of(path, kind)
    is_moved = before["size"] != after["size"] or before["mtime_ns"] != after["mtime_ns"]
    if arguments.is_remote(path):
        is_moved, kind = before != after, ""
    if kind != "lmdb" and is_moved:  # for LMDB, the transaction number decides
        raise FeedError(f"{path} is being written to; index it when it is complete")
    if kind == "lmdb":
        after["txnid"] = part.txnid
    _check_bounds(path, part, int(after["size"]))
    return part, after


def _spans_of(path: str, kind: str, database: bytes | None, progress: Advance | None) -> Spans:
    try:
        if kind == "lmdb":
            return pages.spans(path, database, progress)
        if kind == "parquet":
            return parquet.spans(path, progress)
        return tar.spans(path, progress) if kind == "tar" else tfrecord.spans(path, progress)
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror or error}; is it readable by you?") from error


def _check_bounds(path: str, part: Spans, size: int) -> None:
    """Raise FeedError if a span leaves the file; all formats pass this check."""
    if not len(part.offset):
        return
    is_outside = (part.offset < 0) | (part.length < 0) | (part.length > size - part.offset)
    if is_outside.any():
        record = int(np.flatnonzero(is_outside)[0])
        raise FeedError(
            f"{path}: record {record} lies at {part.offset[record]:,} with "
            f"{part.length[record]:,} bytes, the file has {size:,}; it is truncated or damaged"
        )


def _joined(
    asked: str,
    kind: str,
    files: tuple[str, ...],
    parts: list[Spans],
    states: list[np.void],
) -> Index:
    counts = [len(part.offset) for part in parts]
    key_bytes = np.cumsum([0] + [len(part.keys) for part in parts])
    ends = [part.key_end + start for part, start in zip(parts, key_bytes, strict=False)]
    return Index(
        path=asked,
        kind=kind,
        files=files,
        file=np.repeat(np.arange(len(files), dtype=np.uint32), counts),
        offset=np.concatenate([part.offset for part in parts]),
        length=np.concatenate([part.length for part in parts]),
        keys=np.concatenate([part.keys for part in parts]),
        key_end=np.concatenate(ends),
        fingerprint=np.array(states, STATE).tobytes(),
        left_out=left_out(each for part in parts for each in part.left_out),
        footers=tuple(part.footer for part in parts) if kind == "parquet" else (),
    )


# --- as bytes, and in the cache ------------------------------------------------------------------


def to_bytes(index: Index) -> bytes:
    """Return an index as bytes, without pickle, to send to other ranks or to store."""
    about = {
        "path": index.path,
        "kind": index.kind,
        "files": index.files,
        "n": len(index),
        "key_bytes": len(index.keys),
        "fingerprint": index.fingerprint.hex(),
        "left_out": index.left_out,
        "footers": [base64.b64encode(footer).decode() for footer in index.footers],
    }
    text = json.dumps(about, separators=(",", ":")).encode()
    text += b" " * (-(HEADER.size + len(text)) % 8)  # aligns the columns
    columns = [np.ascontiguousarray(getattr(index, name), kind) for name, kind in COLUMNS]
    # Widest column first, so each column is aligned to the item size.
    body = b"".join([text, *(column.tobytes() for column in (*columns[1:], columns[0]))])
    body += index.keys.tobytes()
    return HEADER.pack(MAGIC, VERSION, zlib.crc32(body), len(body), len(text)) + body


def from_bytes(data: bytes | memoryview) -> Index:
    """Return the index written by `to_bytes`; the arrays are views of data.

    All numbers are checked against each other, so callers need no further check.  Raises FeedError:
    data is not a valid index.
    """
    view = memoryview(data).cast("B")
    if len(view) < HEADER.size:
        raise FeedError("these bytes are no index: too few; make the index again")
    magic, version, crc, body_bytes, text_bytes = HEADER.unpack_from(view)
    if magic != MAGIC:
        raise FeedError("these bytes are no index; make the index again")
    if version != VERSION:
        raise FeedError(f"an index of format {version}, known here is {VERSION}; make it again")
    body = view[HEADER.size :]
    if len(body) != body_bytes or zlib.crc32(body) != crc or text_bytes > body_bytes:
        raise FeedError("the bytes of an index are damaged; make it again")
    try:
        return _parsed(body, text_bytes)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise FeedError(f"an index that contradicts itself ({error}); make it again") from error


def _parsed(body: memoryview, text_bytes: int) -> Index:
    about = json.loads(bytes(body[:text_bytes]))
    n, key_bytes = int(about["n"]), int(about["key_bytes"])
    files = tuple(str(name) for name in about["files"])
    fingerprint = bytes.fromhex(about["fingerprint"])
    other = tuple(
        LeftOut(str(noun), str(why), int(count), tuple(map(str, names)))
        for noun, why, count, names in about["left_out"]
    )
    if min(n, key_bytes) < 0:
        raise ValueError("its counts")
    columns: dict[str, NDArray[np.generic]] = {}
    start = text_bytes
    for name, kind in (*COLUMNS[1:], COLUMNS[0], ("keys", "u1")):
        count = key_bytes if name == "keys" else n
        columns[name] = np.frombuffer(body, kind, count, start)
        start += columns[name].nbytes
    if start != len(body):
        raise ValueError("its size")
    index = Index(
        path=str(about["path"]),
        kind=str(about["kind"]),
        files=files,
        fingerprint=fingerprint,
        left_out=other,
        footers=tuple(base64.b64decode(footer) for footer in about.get("footers", ())),
        **columns,  # type: ignore[arg-type]  # the kinds are those of COLUMNS
    )
    _check_itself(index)
    return index


def _check_itself(index: Index) -> None:
    if index.kind not in KINDS:
        raise ValueError(f"kind {index.kind!r}")
    if len(index.fingerprint) != len(index.files) * STATE.itemsize:
        raise ValueError("its fingerprint")
    if len(index.footers) != (len(index.files) if index.kind == "parquet" else 0):
        raise ValueError("its footers")
    if not len(index):
        if len(index.keys):
            raise ValueError("keys without records")
        return
    ends = index.key_end
    if ends[0] < 0 or (ends[1:] < ends[:-1]).any() or ends[-1] != len(index.keys):
        raise ValueError("the ends of its keys")
    if int(index.file.max()) >= len(index.files):
        raise ValueError("a file that it does not name")
    size = np.frombuffer(index.fingerprint, STATE)["size"][index.file]
    if ((index.offset < 0) | (index.length < 0) | (index.length > size - index.offset)).any():
        raise ValueError("a record beyond its file")


def cache_paths(
    files: tuple[str, ...], kind: str, database: bytes | None, cache: bool | AnyPath = True
) -> list[Path]:
    """Return the possible paths of a cached index.

    First, beside a single file: `.NAME.penstock-index`.  Second, in the given cache folder or the
    user's ($XDG_CACHE_HOME/penstock/index, or ~/.cache).
    """
    said = "\0".join([kind, repr(database), *files])
    name = hashlib.sha256(os.fsencode(said)).hexdigest()[:32]
    if not isinstance(cache, bool) and cache != BESIDE_DATA:
        root = Path(cache)
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = Path(base) / "penstock" / "index"
    in_cache = root / f"{name}.idx"
    if len(files) == 1 and database is None and not arguments.is_remote(files[0]):
        only = Path(files[0])
        return [only.with_name(f".{only.name}{BESIDE}"), in_cache]
    return [in_cache]


def _identity(files: tuple[str, ...]) -> bytes:
    """Return each file's identity, in addition to the size and mtime in the index.

    Size and mtime are not enough: another file with other records may replace a file and have equal
    values (`touch -r`, builds with a fixed time).

    The ctime is set by the kernel only.  The inode distinguishes files changed within one tick of
    the kernel's clock.  The device number is unused, because hosts number a shared file system
    differently.  An index in memory is not checked against the identity: the index may go to hosts
    with their own copies, and a `chmod` during training must not end the run.
    """
    if arguments.is_remote(files[0]):
        from penstock.feed import remote

        return np.array(remote.states(files), "<i8").tobytes()
    return folder.stats(files)[:, 2:].astype("<i8").tobytes()


def _kept(place: Path, was: bytes, asked: str, kind: str, files: tuple[str, ...]) -> Index | None:
    """Return the cached index if valid for the files as they are; on any problem, None."""
    try:
        with bounded.opened(place) as file:  # anybody may have put the file beside the data
            # For records of 1 byte, an index is about 50 times as large as the data.
            most = MOST_INDEX_BYTES + 64 * sum(_sizes(files, was))
            if os.fstat(file.fileno()).st_size > most or file.read(len(was)) != was:
                return None
            index = from_bytes(memoryview(file.read()))
    except (OSError, FeedError):
        return None
    if index.kind != kind or len(index.files) != len(files):
        return None
    is_beside = place.name.endswith(BESIDE)  # the folder's path may differ
    if index.files != files and not is_beside:
        return None
    here = replace(index, path=asked, files=files)
    if here.is_remote:  # `was` is current
        return here if here.fingerprint == was else None
    try:
        here.check()
    except FeedError:
        return None
    return here


def _sizes(files: tuple[str, ...], was: bytes) -> list[int]:
    if arguments.is_remote(files[0]):
        sizes: list[int] = np.frombuffer(was, STATE)["size"].tolist()
        return sizes
    return [os.stat(path).st_size for path in files]


def _keep(index: Index, was: bytes, place: Path) -> None:
    """Write the files' identity and the index, whole or not at all.

    A failed write of the cache is ignored: the job does not depend on the cache.
    """
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        drafts.write(place, was + to_bytes(index))
