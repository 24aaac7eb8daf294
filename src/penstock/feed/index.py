"""Where each record of a data set lies: key, file, offset, length.  Reads no record.

A container of any format becomes one table, so that one planner and one reader serve them all.  The
formats are in modules of their own (`pages` for LMDB, `tar`, `tfrecord`, `folder`), which give the
spans of one file; here they are put together, checked against the files, kept and found again.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import struct
import zlib
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError, FeedRefused
from penstock.feed import arguments, folder, pages, tar, tfrecord
from penstock.feed.spans import Advance, LeftOut, Spans, left_out
from penstock.safe import bounded, drafts

__all__ = [
    "KINDS",
    "Index",
    "described",
    "from_bytes",
    "kind_of",
    "open_index",
    "shards",
    "to_bytes",
]

AnyPath = str | os.PathLike[str]
Paths = AnyPath | Sequence[AnyPath]

KINDS = ("lmdb", "tar", "tfrecord", "folder")
NAMED_AS = {"lmdb": "an LMDB", "tar": "a tar", "tfrecord": "a TFRecord file"}

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
# What tools write beside containers: lists, labels, statistics (img2dataset's .parquet and .json),
# descriptions (.pbtxt), places (.idx), sums, notes.  By the end of the name, in small letters.
BESIDE_CONTAINERS = (
    *("-lock", "lock.mdb", ".idx", ".index", ".parquet", ".csv", ".tsv", ".json", ".jsonl", ".txt"),
    *(".md", ".rst", ".yaml", ".yml", ".toml", ".xml", ".html", ".pbtxt", ".log", ".py", ".sh"),
    *("sums", "checksums", ".md5", ".sha1", ".sha256", ".sha512", "_success", "license", "readme"),
)
COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz")
TARS = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz")

MAGIC = b"PENSTIDX"
VERSION = 2
HEADER = struct.Struct("<8sIIQI")  # magic, version, CRC of what follows, bytes of it, of its JSON
COLUMNS = (("file", "<u4"), ("offset", "<i8"), ("length", "<i8"), ("key_end", "<i8"))
STATE = np.dtype([("size", "<i8"), ("mtime_ns", "<i8"), ("txnid", "<i8")])
ROW = struct.Struct("<qqq")  # of STATE, for one file: an array of one row takes ten times as long
NO_TXNID = -1

# Files that are indexed at once: the headers of a shard are read one after the other, each a
# request to the device; an LMDB's pages are asked for together, and take memory.
THREADS = {"lmdb": 2, "tar": 16, "tfrecord": 16}

# An index of fewer records is made again sooner than it is worth a file in someone's cache folder.
CACHED_RECORDS = 1000
MOST_INDEX_BYTES = 64 << 20  # of any data set; beyond, in proportion to the data
BESIDE_DATA = "beside"
BESIDE = ".penstock-index"  # the suffix of an index that lies beside its data, as a hidden file


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Index:
    """Where each of n records lies.  A record is one contiguous span of one file.

    path: as asked.  kind: one of KINDS.  files: absolute paths.  file: (n,) uint32, into files.
    offset, length: (n,) int64, bytes.  keys: (bytes of all keys,) uint8.  key_end: (n,) int64, key
    i is keys[key_end[i-1]:key_end[i]].  fingerprint: what the files were, a row of STATE each.
    left_out: what the files hold and no record does.

    In key order for LMDB, in file order for tar and TFRecord, by path for a folder.
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
        """Of all records together."""
        return int(self.length.sum())

    @property
    def written_ns(self) -> NDArray[np.int64]:
        """(files,): when each was written last, as it was indexed."""
        return np.frombuffer(self.fingerprint, STATE)["mtime_ns"]

    def key(self, record: int) -> bytes:
        """The key of a record.  LMDB: its key; tar: the members' base name; TFRecord: file/number;
        folder: the path in it."""
        record = range(len(self))[record]
        start = int(self.key_end[record - 1]) if record else 0
        return self.keys[start : int(self.key_end[record])].tobytes()

    def find(self, key: bytes | str) -> int:
        """The first record with this key, or -1; a text is encoded.  LMDB: a binary search in each
        file; else a look at all keys of its length.  Raises FeedError: it is no key."""
        key = arguments.key("key", key)
        if self.kind == "lmdb":
            return self._find_sorted(key)
        starts = np.concatenate(([0], self.key_end[:-1])) if len(self) else self.key_end
        found = np.flatnonzero(self.key_end - starts == len(key))
        for place, byte in enumerate(key):
            found = found[self.keys[starts[found] + place] == byte]
        return int(found[0]) if len(found) else -1

    def _find_sorted(self, key: bytes) -> int:
        for number in np.arange(len(self.files), dtype=self.file.dtype):  # else all are converted
            first = int(np.searchsorted(self.file, number, side="left"))
            end = int(np.searchsorted(self.file, number, side="right"))
            low = bisect_left(range(end), key, first, key=self.key)
            if low < end and self.key(low) == key:
                return low
        return -1

    def check(self) -> None:
        """Raises FeedError, with its name, if a file is not as it was when it was indexed."""
        then = np.frombuffer(self.fingerprint, STATE)
        if len(then) != len(self.files):
            raise FeedError(
                f"{self.path}: the index does not say what its files were; make it again"
            )
        if self.kind == "lmdb":  # has its transaction beside its times
            for number in range(len(self.files)):
                self.check_file(number)
            return
        now = np.full(len(then), NO_TXNID, STATE)
        now["size"], now["mtime_ns"] = folder.stats(self.files)[:, :2].T
        for number in np.flatnonzero(now != then)[:1]:
            self.check_file(int(number))

    def check_file(self, number: int, state: os.stat_result | None = None, txnid: int = -1) -> None:
        """The same of one file.  state, txnid: as who has it open sees it now."""
        path = self.files[number]
        before = ROW.unpack_from(self.fingerprint, number * ROW.size)
        if state is None:
            seen = _state_of(path, self.kind)
            now = (int(seen["size"]), int(seen["mtime_ns"]), int(seen["txnid"]))
        else:
            now = (state.st_size, state.st_mtime_ns, txnid)
        if now != before:
            raise FeedError(
                f"{path} has changed since it was indexed ({_change(before, now)}); "
                "open the data set again"
            )


def described(index: Index) -> str:
    """Which data set it is, in a few words."""
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
    try:
        stat = os.stat(path)
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror}; is the data set complete?") from error
    txnid = pages.txnid_of(path) if kind == "lmdb" else NO_TXNID
    state: np.void = np.array([(stat.st_size, stat.st_mtime_ns, txnid)], STATE)[0]
    return state


# --- making one ----------------------------------------------------------------------------------


def open_index(
    path: Paths,
    *,
    cache: bool | AnyPath = True,
    progress: Advance | None = None,
    kind: str | None = None,
    database: bytes | str | None = None,
) -> Index:
    """The index of a data set, made now or found in the cache.

    path: a file, a folder, a pattern (`shards/*.tar`, `part-{000..127}.tar`) or a list of these.
    cache: False: neither read nor written; "beside": written beside the data, a single file; a
    folder: there instead of the user's cache folder.  progress: called with (done, total), files
    or bytes.  kind: one of KINDS instead of what the files look like; of a folder, those in it
    that are called so.  database: the sub-database of an LMDB, by name.

    Raises FeedError: no such file, empty, damaged, of several kinds, or written to meanwhile.
    """
    asked, is_folder = _asked(path), kind == "folder"
    kind, files = _files_of(path, kind)
    if not isinstance(database, str | bytes | None):
        said = arguments.shown(database)
        raise FeedError(f"database={said} is no name; a text, or bytes, names a database")
    arguments.function("progress", progress)
    if not isinstance(cache, bool | str | os.PathLike) or cache == "":  # to Path this folder
        said = arguments.shown(cache)
        raise FeedError(f"cache={said} is no place; it takes True, False, 'beside' or a folder")
    name = database.encode() if isinstance(database, str) else database
    if name is not None and kind != "lmdb":
        raise FeedRefused(f"{asked}: only an LMDB has databases, this is {kind}")
    if kind == "folder":  # a file's size may change without a trace in its folder: always looked at
        index = _index_of_folder(asked, files, progress)
        if not is_folder:
            _refuse_containers(index)
        return index
    places = [] if cache is False else cache_paths(files, kind, name, cache)
    if cache == BESIDE_DATA and len(places) > 1:
        places.reverse()
    was = _identity(files) if places else b""  # before they are read: a later one is no match
    for place in places:
        kept = _kept(place, was, asked, kind, files)
        if kept is not None:
            return kept
    made = _index_of_files(asked, kind, files, name, progress)
    if places and len(made) >= CACHED_RECORDS:
        _keep(made, was, places[-1])
    return made


def _index_of_folder(asked: str, folders: tuple[str, ...], progress: Advance | None) -> Index:
    found = [folder.listing(root, progress) for root in folders]
    files = tuple(path for listing in found for path in listing.files)
    other = left_out(each for listing in found for each in listing.left_out)
    if not files:
        but = " but hidden ones" if other else ""
        raise FeedRefused(f"{asked}: no file in it{but}; name a folder that holds the records")
    state = np.empty(len(files), STATE)
    state["size"] = np.concatenate([listing.size for listing in found])
    state["mtime_ns"] = np.concatenate([listing.mtime_ns for listing in found])
    state["txnid"] = NO_TXNID
    keys = [key for listing in found for key in listing.keys]
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


def _index_of_files(
    asked: str,
    kind: str,
    files: tuple[str, ...],
    database: bytes | None,
    progress: Advance | None,
) -> Index:
    within = progress if len(files) == 1 else None
    found: list[tuple[Spans, np.void]] = []
    with ThreadPoolExecutor(THREADS[kind], thread_name_prefix="penstock-index") as pool:
        try:
            for part in pool.map(lambda path: _one(path, kind, database, within), files):
                found.append(part)
                if progress is not None and len(files) > 1:
                    progress(len(found), len(files))
        except BaseException:  # Ctrl-C too: what has not begun does not
            pool.shutdown(cancel_futures=True)
            raise
    return _joined(asked, kind, files, [part for part, _ in found], [state for _, state in found])


def _one(
    path: str, kind: str, database: bytes | None, progress: Advance | None
) -> tuple[Spans, np.void]:
    """The spans of a file and what it was, which it must have been all the time."""
    before = _state_of(path, kind)
    part = _spans_of(path, kind, database, progress)
    after = _state_of(path, kind)
    is_moved = before["size"] != after["size"] or before["mtime_ns"] != after["mtime_ns"]
    if kind != "lmdb" and is_moved:  # LMDB's own transactions say whether that matters
        raise FeedError(f"{path} is being written to; index it when it is complete")
    if kind == "lmdb":
        after["txnid"] = part.txnid
    _check_bounds(path, part, int(after["size"]))
    return part, after


def _spans_of(path: str, kind: str, database: bytes | None, progress: Advance | None) -> Spans:
    try:
        if kind == "lmdb":
            return pages.spans(path, database, progress)
        return tar.spans(path, progress) if kind == "tar" else tfrecord.spans(path, progress)
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror or error}; is it readable by you?") from error


def _check_bounds(path: str, part: Spans, size: int) -> None:
    """The one place that all formats pass: no span leaves its file."""
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
    )


# --- which files, of which kind ------------------------------------------------------------------


def _asked(path: Paths) -> str:
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    is_list = isinstance(path, Sequence) and not isinstance(path, bytes | bytearray)
    if not is_list or not all(isinstance(each, str | os.PathLike) for each in path):
        said = arguments.shown(path)
        raise FeedError(f"{said} names no data set: a path as text, or a list of paths, does")
    return ", ".join(os.fspath(each) for each in path)


def _files_of(
    path: Paths, kind: str | None, is_damage_told: bool = True
) -> tuple[str, tuple[str, ...]]:
    """The kind of a data set, and its files; for kind folder, its folders.  is_damage_told: a file
    that does not begin as it is called is an error."""
    if kind is not None:
        arguments.one_of("kind", kind, KINDS)
    found: list[tuple[str, str]] = []
    each = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not each:
        raise FeedError("an empty list names no data set; nothing to read")
    for part in each:
        for name in _expanded(os.fspath(part), is_alone=len(each) == 1):
            found += _look(name, kind, is_damage_told)
    kinds = sorted({kind for kind, _ in found})
    if not found:
        raise FeedError(f"{_asked(path)}: names no file; nothing to read")
    if len(kinds) > 1:
        raise FeedError(
            f"{_asked(path)}: holds {' and '.join(kinds)} together; name those of one kind"
        )
    files = tuple(name for _, name in found)
    if len(set(files)) < len(files):
        twice = next(name for name in files if files.count(name) > 1)
        raise FeedError(f"{twice} is named twice; each record would come twice")
    return kinds[0], files


def _expanded(path: str, is_alone: bool) -> list[str]:
    """Names from a pattern, absolute and sorted; a shard that its neighbours count is missed."""
    if not path:  # the folder where the program stands, to abspath; an unset variable, to a shell
        raise FeedError("an empty text names no data set; this folder is '.'")
    if os.path.lexists(path):
        return [os.path.abspath(path)]
    if re.match(r"[a-z][a-z0-9+.-]*://", path):
        raise FeedError(f"{path} is remote: files are read here; mount it, or bring it to a disk")
    braces = _braces(path)
    if len(braces) > 1 or not glob.has_magic(path):
        return [os.path.abspath(name) for name in braces]
    names = sorted(glob.glob(path, recursive=True))
    names = [name for name in names if not _is_ours(name)]
    if not names:
        raise FeedError(f"{path}: matches no file; is the pattern right?")
    _miss_no_shard(names)
    return [os.path.abspath(name) for name in names]


def _braces(path: str) -> list[str]:
    """WebDataset's `part-{000..127}.tar`."""
    match = re.search(r"\{(\d+)\.\.(\d+)\}", path)
    if match is None:
        return [path]
    first, last = match[1], match[2]
    numbers = range(int(first), int(last) + 1)
    if len(numbers) > 1_000_000:
        raise FeedError(f"{path}: {len(numbers):,} files; more than a million are no pattern")
    head, tail = path[: match.start()], path[match.end() :]
    return [name for number in numbers for name in _braces(f"{head}{number:0{len(first)}d}{tail}")]


def _miss_no_shard(names: Iterable[str]) -> None:
    """`train-00003-of-00010` says itself how many there are."""
    series: dict[tuple[str, str, str], set[int]] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(\d+)-of-(\d+)(.*)", name, re.DOTALL)
        if match is not None:
            series.setdefault((match[1], match[3], match[4]), set()).add(int(match[2]))
    for (head, of, tail), numbers in series.items():
        count = int(of)
        expected = range(1, count + 1) if 0 not in numbers and count in numbers else range(count)
        lacking = [number for number in expected[: len(numbers) + 100] if number not in numbers]
        if lacking:
            name = f"{head}{lacking[0]:0{len(of)}d}-of-{of}{tail}"
            raise FeedError(
                f"{name} is missing, its neighbours count {count:,} shards; "
                "give a list of files to read these only"
            )


def _is_ours(name: str) -> bool:
    return name.endswith(BESIDE)


def _look(name: str, kind: str | None, is_damage_told: bool) -> list[tuple[str, str]]:
    """(kind, file) of what a name stands for: itself, or what is in a folder."""
    try:
        os.lstat(name)
    except (FileNotFoundError, NotADirectoryError) as error:
        said = f"{name}: no such file; a shard is missing, or the name is wrong"
        raise FeedError(said) from error
    except OSError as error:
        raise FeedError(f"{name}: {error.strerror}; is its folder readable by you?") from error
    if os.path.isfile(name):
        if kind == "folder":
            raise FeedRefused(f"{name} is a file; kind='folder' takes a folder, of such records")
        return [(kind or (kind_of if is_damage_told else _called)(name), name)]
    if not os.path.isdir(name):
        raise FeedError(f"{name} is no file and no folder (a pipe, a device, or a link to nothing)")
    if kind in (None, "lmdb"):
        data = os.path.join(name, "data.mdb")
        # LSUN's way: a folder of LMDBs, each a folder.
        found = (
            [data] if os.path.exists(data) else sorted(glob.glob(glob.escape(name) + "/*/data.mdb"))
        )
        if found:
            if kind is None:
                _refuse_mixture(name, found, "an LMDB", _is_record)
            return [("lmdb", file) for file in found]
    if kind == "folder":
        return [(kind, name)]
    shards_in = _shards_in(name, kind)
    if kind is not None and not shards_in:
        said = f"{name}: no file in it is called as {NAMED_AS[kind]} is"
        if kind == "lmdb":  # one file, no shards
            raise FeedRefused(f"{said}; name its file")
        raise FeedRefused(
            f"{said}; name what is meant by a pattern, such as {os.path.join(name, '*')!r}"
        )
    return shards_in or [("folder", name)]


def _refuse_mixture(
    name: str, found: list[str], what: str, is_other: Callable[[str], bool]
) -> None:
    """Records beside the containers of a folder would be missed without a word; lists of labels and
    the like may lie there."""
    other = []
    top, known = _entries(name), set(found)
    for entries in (top, *(_entries_or_none(entry.path) for entry in top if entry.is_dir())):
        for entry in entries:
            if entry.path in known or entry.name.startswith(".") or not entry.is_file():
                continue
            if is_other(entry.name):
                other.append(entry.path)
    if other:
        raise FeedError(
            f"{name}: holds {what} and other records, such as {min(other)}; name those of one "
            f"kind, such as {found[0]}"
        )


def _is_record(name: str) -> bool:
    is_named = _kind_by_name(name) or name.lower().endswith(IMAGES)
    return bool(is_named) and not _is_beside_data(name)


def _refuse_containers(index: Index) -> None:
    """A container in a folder of files would be one record of it, which nobody means."""
    files = index.files
    found = next((p for p in files if not p.endswith(IMAGES) and _is_container(p)), None)
    if found is None:
        return
    kind = _kind_by_name(found)
    pattern = os.path.join(index.path, "**", "*" + os.path.splitext(found)[1])
    if all(map(_is_container, files)):
        raise FeedRefused(
            f"{index.path}: its files are {kind}s in folders of their own; "
            f"name them by a pattern, such as {pattern!r}, to read what is in them"
        )
    raise FeedRefused(
        f"{index.path}: holds {found}, called a {kind}, among other files; name those of one kind "
        f"(such as {pattern!r}, or a folder), or take each file as a record: --kind folder, "
        "kind='folder' in Python"
    )


def _is_container(path: str) -> bool:
    name = os.path.basename(path).lower()
    return bool(_kind_by_name(name)) and not name.endswith(IMAGES) and not _is_beside_data(name)


def _entries(name: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(name) as entries:
            return list(entries)
    except OSError as error:
        raise FeedError(f"{name}: {error.strerror}; is it readable by you?") from error


def _entries_or_none(name: str) -> list[os.DirEntry[str]]:
    try:
        return _entries(name)
    except FeedError:  # `lost+found`: nobody's records
        return []


def _shards_in(name: str, kind: str | None) -> list[tuple[str, str]]:
    """Containers that lie directly in a folder, beside which there may be what is no record."""
    entries = sorted(_entries(name), key=lambda entry: entry.name)
    files = [
        entry.path
        for entry in entries
        if not entry.name.startswith(".") and not _is_beside_data(entry.name) and entry.is_file()
    ]
    kinds = {path: _kind_in_folder(path) for path in files}
    named = [path for path in files if kinds[path] and kind in (None, kinds[path])]
    if kind is None and named and len({kinds[path] for path in named}) == 1:
        _refuse_mixture(
            name, named, f"{kinds[named[0]]} files", lambda other: not _is_beside_data(other)
        )
    _miss_no_shard(named)
    return [(kinds[path] or "", path) for path in named]


def _is_beside_data(name: str) -> bool:
    return name.lower().endswith(BESIDE_CONTAINERS)


def shards(path: Paths, kind: str | None = None) -> tuple[str, tuple[str, ...]]:
    """The kind of a data set and its files (of a folder of files: the folder), nothing but their
    first bytes read.  A file that begins like none of the kinds is of the one that it is called.
    kind: see open_index."""
    return _files_of(path, kind, is_damage_told=False)


def _kind_by_name(path: str) -> str:
    name = os.path.basename(path).lower()
    if name.endswith(TARS):
        return "tar"
    if "tfrecord" in name:
        return "tfrecord"
    if name.endswith(("lmdb", ".mdb")):
        return "lmdb"
    return ""


def _kind_in_folder(path: str) -> str:
    """By name; a file is opened only if it is called as TFRecords without a suffix are, or as
    compressed."""
    named = _kind_by_name(path) if _is_container(path) else ""
    if named and path.lower().endswith(COMPRESSED):
        return kind_of(path)
    if not named and re.search(r"\d+-of-\d+$", path):
        with suppress(FeedError):
            return kind_of(path)
    return named


def kind_of(path: AnyPath) -> str:
    """lmdb, tar or tfrecord: by a file's first bytes, then by its name.  Raises FeedError."""
    kind, begins = _seen(path)
    if not begins and not os.path.getsize(path):
        raise FeedError(f"{path} is empty; its writer has not begun, or the copy failed")
    if not begins:
        raise FeedError(
            f"{path} is called {kind} and does not begin like one; damaged, or no {kind}"
        )
    return kind


def _called(path: AnyPath) -> str:
    return _seen(path)[0]


def _seen(path: AnyPath) -> tuple[str, bool]:
    """A file's kind, and whether it begins like one, or like one without a record.  Raises
    FeedError: no kind, not readable."""
    try:
        with bounded.opened(path) as file:
            head = file.read(512)
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror}; is it readable by you?") from error
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00")):
        raise FeedRefused(
            f"{path} is compressed as a whole: its records have no place of their own; unpack it"
        )
    if pages.is_lmdb(head):
        return "lmdb", True
    if tar.is_tar(head):
        return "tar", True
    if tfrecord.is_tfrecord(head):
        return "tfrecord", True
    named = _kind_by_name(os.fspath(path))
    if not named:
        raise FeedError(
            f"{path} is no LMDB, tar or TFRecord file; a folder of files is named by its folder"
        )
    if named == "tar":
        return named, len(head) == 512 and not any(head)  # an end mark
    return named, not head and named == "tfrecord"


# --- as bytes, and kept --------------------------------------------------------------------------


def to_bytes(index: Index) -> bytes:
    """An index as bytes, to send it to other ranks or to keep it.  No pickle."""
    about = {
        "path": index.path,
        "kind": index.kind,
        "files": index.files,
        "n": len(index),
        "key_bytes": len(index.keys),
        "fingerprint": index.fingerprint.hex(),
        "left_out": index.left_out,
    }
    text = json.dumps(about, separators=(",", ":")).encode()
    text += b" " * (-(HEADER.size + len(text)) % 8)  # the columns lie aligned
    columns = [np.ascontiguousarray(getattr(index, name), kind) for name, kind in COLUMNS]
    # The widest first, so that each is aligned to its own width.
    body = b"".join([text, *(column.tobytes() for column in (*columns[1:], columns[0]))])
    body += index.keys.tobytes()
    return HEADER.pack(MAGIC, VERSION, zlib.crc32(body), len(body), len(text)) + body


def from_bytes(data: bytes | memoryview) -> Index:
    """The index that `to_bytes` wrote; its arrays look into data.  Raises FeedError: anything else.

    Every number is held against the others: whatever comes back can be used without a check.
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
        **columns,  # type: ignore[arg-type]  # the kinds are those of COLUMNS
    )
    _check_itself(index)
    return index


def _check_itself(index: Index) -> None:
    if index.kind not in KINDS:
        raise ValueError(f"kind {index.kind!r}")
    if len(index.fingerprint) != len(index.files) * STATE.itemsize:
        raise ValueError("its fingerprint")
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
    """Where an index may lie: beside a single file (`.NAME.penstock-index`), and in the user's
    cache folder ($XDG_CACHE_HOME/penstock/index, or ~/.cache) or the one that is given."""
    said = "\0".join([kind, repr(database), *files])
    name = hashlib.sha256(os.fsencode(said)).hexdigest()[:32]
    if not isinstance(cache, bool) and cache != BESIDE_DATA:
        root = Path(cache)
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        root = Path(base) / "penstock" / "index"
    in_cache = root / f"{name}.idx"
    if len(files) == 1 and database is None:
        only = Path(files[0])
        return [only.with_name(f".{only.name}{BESIDE}"), in_cache]
    return [in_cache]


def _identity(files: tuple[str, ...]) -> bytes:
    """Which files these are, beside what an index knows of them: size and time of the last write
    can be the same in a file of other records that was put in their place (`touch -r`, builds with
    one time for all).

    The time of the last change is the kernel's own, nobody can set it; the inode tells files apart
    that were changed in one tick of its clock.  Not the device: each host that mounts a file system
    has another number for it.  An index in memory is not held against these, as it is sent to hosts
    with copies of their own, and a `chmod` beside a training must not end it.
    """
    return folder.stats(files)[:, 2:].astype("<i8").tobytes()


def _kept(place: Path, was: bytes, asked: str, kind: str, files: tuple[str, ...]) -> Index | None:
    """The index at a place if it is of these files as they are; whatever is wrong with it, None."""
    try:
        with bounded.opened(place) as file:  # anybody may have put it beside the data
            # Of records of one byte an index is some 50 times as large as the data.
            most = MOST_INDEX_BYTES + 64 * sum(os.stat(path).st_size for path in files)
            if os.fstat(file.fileno()).st_size > most or file.read(len(was)) != was:
                return None
            index = from_bytes(memoryview(file.read()))
    except (OSError, FeedError):
        return None
    if index.kind != kind or len(index.files) != len(files):
        return None
    is_beside = place.name.endswith(BESIDE)  # whatever its folder is called, or mounted as
    if index.files != files and not is_beside:
        return None
    here = replace(index, path=asked, files=files)
    try:
        here.check()
    except FeedError:
        return None
    return here


def _keep(index: Index, was: bytes, place: Path) -> None:
    """Behind the identity of its files.  Written whole or not at all; a cache that cannot be
    written is no trouble of the job's."""
    with suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        drafts.write(place, was + to_bytes(index))
