"""Find the files behind a name and the kind of a data set; read at most a file's first bytes.

A name is a file, a folder, a pattern, a range of numbers or a list of these, of files or of objects
in a store.  A mixture of kinds is refused, because some part would be skipped silently.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from penstock.errors import FeedError, FeedRefused
from penstock.feed import arguments, pages, parquet, tar, tfrecord
from penstock.feed.byte_file import opened
from penstock.safe import bounded

__all__ = [
    "BESIDE",
    "KINDS",
    "AnyPath",
    "Paths",
    "asked_text",
    "files_of",
    "kind_of",
    "refuse_containers",
    "shards",
]

AnyPath = str | os.PathLike[str]
Paths = AnyPath | Sequence[AnyPath]

KINDS = ("lmdb", "tar", "tfrecord", "parquet", "folder")
NAMED_AS = {
    "lmdb": "an LMDB",
    "tar": "a tar",
    "tfrecord": "a TFRecord file",
    "parquet": "a Parquet file",
}

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm")
# Files written by tools beside containers: lists, labels, statistics (img2dataset's .parquet and
# .json), descriptions (.pbtxt), indexes (.idx), checksums, notes.  Matched by the end of the name,
# in lower case.
BESIDE_CONTAINERS = (
    *("-lock", "lock.mdb", ".idx", ".index", ".parquet", ".csv", ".tsv", ".json", ".jsonl", ".txt"),
    *(".md", ".rst", ".yaml", ".yml", ".toml", ".xml", ".html", ".pbtxt", ".log", ".py", ".sh"),
    *("sums", "checksums", ".md5", ".sha1", ".sha256", ".sha512", "_success", "license", "readme"),
)
COMPRESSED = (".gz", ".tgz", ".zst", ".bz2", ".xz")
PARQUETS = (".parquet", ".parq", ".pq")
TARS = (".tar", ".tgz", ".tar.gz", ".tar.zst", ".tar.bz2", ".tar.xz")

BESIDE = ".penstock-index"  # suffix of an index beside the data, a hidden file


def asked_text(path: Paths) -> str:
    if isinstance(path, str | os.PathLike):
        return os.fspath(path)
    is_list = isinstance(path, Sequence) and not isinstance(path, bytes | bytearray)
    if not is_list or not all(isinstance(each, str | os.PathLike) for each in path):
        said = arguments.shown(path)
        raise FeedError(f"{said} names no data set: a path as text, or a list of paths, does")
    return ", ".join(os.fspath(each) for each in path)


def files_of(
    path: Paths, kind: str | None, is_damage_told: bool = True
) -> tuple[str, tuple[str, ...]]:
    """Return (kind, files) of a data set; for kind folder the folders.

    is_damage_told: raise if a file's first bytes contradict the name.
    """
    if kind is not None:
        arguments.one_of("kind", kind, KINDS)
    pairs: list[tuple[str, str]] = []
    each = [path] if isinstance(path, str | os.PathLike) else list(path)
    if not each:
        raise FeedError("an empty list names no data set; nothing to read")
    for part in each:
        for name in _expanded(os.fspath(part)):
            pairs += _look(name, kind, is_damage_told)
    kinds = sorted({kind for kind, _ in pairs})
    if not pairs:
        raise FeedError(f"{asked_text(path)}: names no file; nothing to read")
    if len(kinds) > 1:
        raise FeedError(
            f"{asked_text(path)}: holds {' and '.join(kinds)} together; name those of one kind"
        )
    files = tuple(name for _, name in pairs)
    if len(set(files)) < len(files):
        twice = next(name for name in files if files.count(name) > 1)
        raise FeedError(f"{twice} is named twice; each record would come twice")
    return kinds[0], files


def _expanded(path: str) -> list[str]:
    """Return the absolute, sorted names of a pattern.  Raises FeedError: a shard is missing."""
    if not path:  # abspath("") is the current folder; in a shell, an unset variable
        raise FeedError("an empty text names no data set; this folder is '.'")
    if arguments.is_remote(path):
        return _expanded_remote(path)
    if os.path.lexists(path):
        return [os.path.abspath(path)]
    if re.match(r"[a-z][a-z0-9+.-]*://", path):
        schemes = ", ".join(f"{scheme}://" for scheme in arguments.SCHEMES)
        raise FeedError(
            f"{path} is remote, and read here are files and {schemes}; mount it, or bring it to a "
            "disk"
        )
    braces = _braces(path)
    if len(braces) > 1 or not glob.has_magic(path):
        return [os.path.abspath(name) for name in braces]
    names = sorted(glob.glob(path, recursive=True))
    names = [name for name in names if not _is_ours(name)]
    if not names:
        raise FeedError(f"{path}: matches no file; is the pattern right?")
    _miss_no_shard(names)
    return [os.path.abspath(name) for name in names]


def _expanded_remote(path: str) -> list[str]:
    braces = _braces(path)
    if len(braces) > 1 or not glob.has_magic(path.partition("://")[2].partition("/")[2]):
        return braces
    from penstock.feed import remote

    names = remote.matching(path)
    if not names:
        raise FeedError(f"{path}: matches no object; is the pattern right?")
    _miss_no_shard(names)
    return names


def _braces(path: str) -> list[str]:
    """Expand WebDataset's `part-{000..127}.tar`."""
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
    """Refuse an incomplete series of names such as `train-00003-of-00010`."""
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
    """Return (kind, file) for a name: the file itself, or the contents of a folder."""
    if arguments.is_remote(name):
        return _look_remote(name, kind)
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
        environments = (
            [data] if os.path.exists(data) else sorted(glob.glob(glob.escape(name) + "/*/data.mdb"))
        )
        if environments:
            if kind is None:
                _refuse_mixture(name, environments, "an LMDB", _is_record)
            return [("lmdb", file) for file in environments]
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


def _look_remote(name: str, kind: str | None) -> list[tuple[str, str]]:
    """Return (kind, address) for an object or the contents of a prefix.

    An object named as a container gets no request: there may be thousands, and a later read finds
    errors.
    """
    from penstock.feed import remote

    called = _kind_by_name(name)
    if not name.endswith("/") and kind != "folder":
        if called in ("tar", "tfrecord", "parquet"):
            return [(kind or called, name)]
        if remote.is_object(name):
            return [(kind or called or kind_of(name), name)]
    prefix = name if name.endswith("/") else f"{name}/"
    inside = remote.names_in(prefix)
    if not inside:
        raise FeedError(f"{name}: no such object, and none below it; is the name right?")
    return [(kind, prefix)] if kind == "folder" else _remote_shards(name, prefix, inside, kind)


def _remote_shards(
    name: str, prefix: str, inside: list[str], kind: str | None
) -> list[tuple[str, str]]:
    """Return the containers below a prefix, or the prefix as a folder of objects."""
    records = [each for each in inside if not _is_beside_data(each) and not _is_hidden(each)]
    pairs = [pair for pair in _remote_containers(records, inside, kind) if kind in (None, pair[0])]
    if kind is not None and not pairs:
        raise FeedRefused(f"{name}: no object in it is called as {NAMED_AS[kind]} is")
    containers = [each for _, each in pairs]
    is_alone = not pairs or kind is not None or pairs[0][0] == "parquet"
    odd = set() if is_alone else set(records) - set(containers)
    if odd:
        raise FeedError(
            f"{name}: holds {pairs[0][0]} files and other records, such as {min(odd)}; name those "
            f"of one kind, such as {pairs[0][1]}"
        )
    _miss_no_shard(containers)
    return pairs or [("folder", prefix)]


def _remote_containers(
    records: list[str], inside: list[str], kind: str | None
) -> list[tuple[str, str]]:
    pairs = [(_kind_by_name(each), each) for each in records if _is_container(each)]
    tables = _parquets(inside, is_alone=kind is None) if kind in (None, "parquet") else []
    if kind == "parquet" or (tables and all(map(_is_own, records))):
        pairs = [("parquet", each) for each in tables]
    if kind in (None, "lmdb"):
        environments = [each for each in inside if each.endswith("/data.mdb")]
        pairs = [("lmdb", each) for each in environments] or pairs
    return pairs


def _is_hidden(path: str) -> bool:
    return os.path.basename(path).startswith(".")


def _refuse_mixture(
    name: str, members: list[str], what: str, is_other: Callable[[str], bool]
) -> None:
    """Refuse records beside the containers of a folder, except lists of labels.

    Such records would be skipped silently.
    """
    other = []
    top, files = _entries(name), set(members)
    for entries in (top, *(_entries_or_none(entry.path) for entry in top if entry.is_dir())):
        for entry in entries:
            if entry.path in files or entry.name.startswith(".") or not entry.is_file():
                continue
            if is_other(entry.name):
                other.append(entry.path)
    if other:
        raise FeedError(
            f"{name}: holds {what} and other records, such as {min(other)}; name those of one "
            f"kind, such as {members[0]}"
        )


def _is_record(name: str) -> bool:
    is_named = _kind_by_name(name) or name.lower().endswith(IMAGES)
    return bool(is_named) and not _is_beside_data(name)


def refuse_containers(path: str, files: Sequence[str]) -> None:
    """Refuse a container in a folder of files, where it would be a single record."""
    if files and all(each.lower().endswith(PARQUETS) or _is_own(each) for each in files):
        pattern = os.path.join(path, "**", "*.parquet")
        raise FeedRefused(
            f"{path}: its files are Parquet in folders of their own; name them by a pattern, such "
            f"as {pattern!r}, to read what is in them"
        )
    container = next(
        (each for each in files if not each.endswith(IMAGES) and _is_container(each)), None
    )
    if container is None:
        return
    kind = _kind_by_name(container)
    pattern = os.path.join(path, "**", "*" + os.path.splitext(container)[1])
    if all(map(_is_container, files)):
        raise FeedRefused(
            f"{path}: its files are {kind}s in folders of their own; "
            f"name them by a pattern, such as {pattern!r}, to read what is in them"
        )
    raise FeedRefused(
        f"{path}: holds {container}, called a {kind}, among other files; name those of one kind "
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
    """Return the containers directly in a folder; other files beside are allowed if no records."""
    entries = sorted(_entries(name), key=lambda entry: entry.name)
    files = [
        entry.path
        for entry in entries
        if not entry.name.startswith(".") and not _is_beside_data(entry.name) and entry.is_file()
    ]
    tables = _parquets_in(entries, files, kind)
    if tables:
        _miss_no_shard(tables)
        return [("parquet", path) for path in tables]
    kinds = {path: _kind_in_folder(path) for path in files}
    named = [path for path in files if kinds[path] and kind in (None, kinds[path])]
    if kind is None and named and len({kinds[path] for path in named}) == 1:
        _refuse_mixture(
            name, named, f"{kinds[named[0]]} files", lambda other: not _is_beside_data(other)
        )
    _miss_no_shard(named)
    return [(kinds[path] or "", path) for path in named]


def _parquets_in(
    entries: Sequence[os.DirEntry[str]], files: Sequence[str], kind: str | None
) -> list[str]:
    """Return the Parquet files of a folder; none where they lie beside other records."""
    if kind not in (None, "parquet"):
        return []
    inside = [entry.path for entry in entries if entry.is_file()]
    row_files = _parquets(inside, is_alone=kind is None)
    if kind == "parquet" or not row_files:
        return row_files
    if any(not _is_own(path) for path in files):
        return []
    for entry in (entry for entry in entries if entry.is_dir() and not _is_hidden(entry.path)):
        below = [each.path for each in _entries_or_none(entry.path) if each.is_file()]
        tables = _parquets(below, is_alone=False)
        if tables:
            pattern = os.path.join(os.path.dirname(row_files[0]), "**", "*.parquet")
            raise FeedError(
                f"{os.path.dirname(row_files[0])}: holds Parquet files, and others in folders, "
                f"such as {tables[0]}; name them by a pattern, such as {pattern!r}"
            )
        if any(not (_is_hidden(path) or _is_own(path)) for path in below):
            return []  # images, with their table beside
    return row_files


def _parquets(names: Sequence[str], is_alone: bool) -> list[str]:
    """Return the Parquet files among names.

    is_alone: none, if more other files than these lie there: then they are no data set, but notes
    on one.
    """
    seen = [name for name in names if not (_is_hidden(name) or _is_own(name))]
    tables = [name for name in seen if name.lower().endswith(PARQUETS)]
    return [] if is_alone and len(seen) > 2 * len(tables) else tables


def _is_own(path: str) -> bool:
    """Return whether a writer of tables keeps the file for itself: _SUCCESS, _metadata."""
    return os.path.basename(path).startswith("_")


def _is_beside_data(name: str) -> bool:
    return name.lower().endswith(BESIDE_CONTAINERS)


def shards(path: Paths, kind: str | None = None) -> tuple[str, tuple[str, ...]]:
    """Return (kind, files) of a data set, by the first bytes; for a folder of files, the folder.

    A file that begins like no kind counts by name.  kind: see open_index.
    """
    return files_of(path, kind, is_damage_told=False)


def _kind_by_name(path: str) -> str:
    name = os.path.basename(path).lower()
    if name.endswith(TARS):
        return "tar"
    if "tfrecord" in name:
        return "tfrecord"
    if name.endswith(PARQUETS):
        return "parquet"
    if name.endswith(("lmdb", ".mdb")):
        return "lmdb"
    return ""


def _kind_in_folder(path: str) -> str:
    """Return the kind by name.

    Only files named as TFRecords without a suffix, or as compressed, are opened.
    """
    named = _kind_by_name(path) if _is_container(path) else ""
    if named and path.lower().endswith(COMPRESSED):
        return kind_of(path)
    if not named and re.search(r"\d+-of-\d+$", path):
        with suppress(FeedError):
            return kind_of(path)
    return named


def kind_of(path: AnyPath) -> str:
    """Return lmdb, tar, tfrecord or parquet, by a file's first bytes, then by name.

    Raises FeedError.
    """
    kind, begins, size = _seen(path)
    if not begins and not size:
        raise FeedError(f"{path} is empty; its writer has not begun, or the copy failed")
    if not begins:
        raise FeedError(
            f"{path} is called {kind} and does not begin like one; damaged, or no {kind}"
        )
    return kind


def _called(path: AnyPath) -> str:
    return _seen(path)[0]


def _head(path: AnyPath) -> tuple[bytes, int]:
    """Return (first bytes, size) of a file.  Raises FeedError: not readable."""
    if arguments.is_remote(path):
        with opened(os.fspath(path)) as remote:
            return remote.pread(512, 0), remote.size()
    try:
        with bounded.opened(path) as file:
            return file.read(512), os.fstat(file.fileno()).st_size
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror}; is it readable by you?") from error


def _seen(path: AnyPath) -> tuple[str, bool, int]:
    """Return (kind, whether the first bytes show the kind, size) of a file.

    Raises FeedError: no kind, not readable.
    """
    head, size = _head(path)
    if head.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00")):
        raise FeedRefused(
            f"{path} is compressed as a whole: its records have no place of their own; unpack it"
        )
    if pages.is_lmdb(head):
        return "lmdb", True, size
    if tar.is_tar(head):
        return "tar", True, size
    if tfrecord.is_tfrecord(head):
        return "tfrecord", True, size
    if parquet.is_parquet(head):
        return "parquet", True, size
    named = _kind_by_name(os.fspath(path))
    if not named:
        raise FeedError(
            f"{path} is no LMDB, tar, TFRecord or Parquet file; a folder of files is named by its "
            "folder"
        )
    if named == "tar":
        return named, len(head) == 512 and not any(head), size  # an end mark
    return named, not head and named == "tfrecord", size
