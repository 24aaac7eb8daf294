"""Verify a data set: every file's structure, every record's location, every checksum.

Each index is built anew; caches are ignored.  Some formats have no checksums for contents: an
LMDB's values, a tar's contents, a folder's files.  For these, only location and size are checked.
A file without read permission raises an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from penstock.errors import FeedError, FeedRefused
from penstock.feed import pages, parquet, tar, tfrecord
from penstock.feed.byte_file import ByteFile, opened
from penstock.feed.index import Index, open_index
from penstock.feed.names import Paths, shards
from penstock.feed.spans import Advance, LeftOut, left_out

__all__ = ["Checked", "Problem", "check", "check_files"]

HINTED = 256  # headers of values requested before the first wait


class Problem(NamedTuple):
    """A defect of a file, or of a record in a file with intact structure."""

    file: str
    record: int | None
    what: str


class Checked(NamedTuple):
    """The result of a check.

    problems: in the order of discovery.
    n_unknown: damaged files (for kind folder: folders) with unknown records, out of n_files.
    n_records, n_bytes: of the other files; None: no other file.
    left_out: data in the files but in no record.
    not_seen: the defects invisible in a format without checksums.
    """

    kind: str
    n_files: int
    n_unknown: int
    n_records: int | None
    n_bytes: int | None
    problems: list[Problem]
    left_out: tuple[LeftOut, ...]
    not_seen: str


NOT_SEEN = {
    "lmdb": "LMDB keeps no sums: a byte that is flipped inside a value is not seen, nor a "
    "value's length that was changed within its pages",
    "tar": "a tar keeps no sums of contents: a byte that is flipped inside a file is not seen, nor "
    "files of its last 10.5 KiB that have become zeros",
    "tfrecord": "",
    "parquet": "Parquet's sums of pages are its writer's choice: where there are none, a byte that "
    "is flipped inside a value is not seen if the page decodes",
    "folder": "a folder keeps no sums of its files: only their sizes were looked at",
}


def check(
    path: Paths,
    progress: Advance | None = None,
    database: bytes | str | None = None,
    kind: str | None = None,
) -> Checked:
    """Check every record of a data set; database, kind: see open_index.

    Raises FeedError: no data set, an unsupported one, or no permission to read.
    """
    return check_files(*shards(path, kind), progress, database, is_said=kind is not None)


def check_files(
    kind: str,
    files: tuple[str, ...],
    progress: Advance | None = None,
    database: bytes | str | None = None,
    is_said: bool = False,
) -> Checked:
    """Check files of a known kind.

    is_said: the caller gave the kind, so a container in a folder counts as a record.
    """
    problems: list[Problem] = []
    said = kind if is_said or kind != "folder" else None
    _refuse_closed(files)
    n_records = n_bytes = n_files = n_unknown = 0
    other: list[LeftOut] = []
    for number, file in enumerate(files):
        within = progress if len(files) == 1 else None
        index = None
        try:
            index = open_index(file, cache=False, kind=said, database=database, progress=within)
            n_files += len(index.files)
            n_records += len(index)
            n_bytes += index.total_bytes
            other += index.left_out
            if kind == "folder":
                _refuse_closed(index.files)
            problems += _problems(index, within)
        except FeedError as error:
            if isinstance(error, FeedRefused) or isinstance(error.__cause__, PermissionError):
                raise
            if index is None:
                n_unknown += 1
            problems.append(Problem(file, None, str(error)))
        if progress is not None and len(files) > 1:
            progress(number + 1, len(files))
    is_known = n_unknown < len(files)
    return Checked(
        kind=kind,
        n_files=n_files + n_unknown,
        n_unknown=n_unknown,
        n_records=n_records if is_known else None,
        n_bytes=n_bytes if is_known else None,
        problems=problems,
        left_out=left_out(other),
        not_seen=NOT_SEEN[kind],
    )


def _refuse_closed(files: tuple[str, ...]) -> None:
    """Raise FeedRefused early for an unreadable file: a check of the other files may take hours."""
    for file in files:
        if os.path.exists(file) and not os.access(file, os.R_OK, effective_ids=True):
            raise FeedRefused(f"{file}: Permission denied; is it readable by you?")


def _problems(index: Index, progress: Advance | None) -> Iterator[Problem]:
    if index.kind == "lmdb":
        yield from _lost_values(index, progress)
    elif index.kind == "tfrecord":
        yield from _wrong_sums(index, progress)
    elif index.kind == "parquet":
        for record, what in parquet.wrong_groups(index, progress):
            yield Problem(index.files[0], record, what)
    elif index.kind == "tar":
        yield from _split_samples(index)
    elif index.kind == "folder":
        yield from _empty_files(index)


# Files with the extensions below may be empty on purpose: an image without labels, an empty
# caption.
TEXTS = (".caption", ".cls", ".csv", ".json", ".txt")


def _empty_files(index: Index) -> Iterator[Problem]:
    for record in np.flatnonzero(index.length == 0).tolist():
        name = os.fsdecode(index.key(record))
        if not name.lower().endswith(TEXTS):
            yield Problem(index.files[int(index.file[record])], record, f"({name}) is empty")


def _lost_values(index: Index, progress: Advance | None) -> Iterator[Problem]:
    """Yield a problem for each value with a wrong overflow page header."""
    path = index.files[0]
    with opened(path) as source:
        file = pages.file_of(source, path)
        page_bytes, header_bytes = file.meta.page_bytes, file.meta.layout.header_bytes
        in_overflow = np.flatnonzero(pages.in_overflow(file.meta, index.offset))
        order = in_overflow[np.argsort(index.offset[in_overflow], kind="stable")].tolist()
        for start in range(0, len(order), HINTED):
            part = order[start : start + HINTED]
            source.want([(int(index.offset[each]) - header_bytes, header_bytes) for each in part])
            for record in part:
                at = int(index.offset[record]) - header_bytes
                header, page = source.pread(header_bytes, at), at // page_bytes
                wrong = pages.misplaced(file.meta, header, page, int(index.length[record]))
                if wrong:
                    yield Problem(path, record, f"page {page} {wrong}")
            if progress is not None:
                progress(start + len(part), len(order))
    index.check()


def _wrong_sums(index: Index, progress: Advance | None) -> Iterator[Problem]:
    path, total = index.files[0], index.total_bytes
    for record, done, is_wrong in tfrecord.wrong_payloads(path, index.offset, index.length):
        if is_wrong:
            yield Problem(path, record, "has not the sum that is written beside it")
        if progress is not None and record % 64 == 0:
            progress(done, total)


def _split_samples(index: Index) -> Iterator[Problem]:
    """Yield a problem for each repeated key.

    The key's members are not neighbours, or two samples share the key.
    """
    seen: dict[bytes, int] = {}
    for record in range(len(index)):
        key = index.key(record)
        if key in seen:
            what = f"has the key {key!r} of record {seen[key]}: its files are not neighbours"
            yield Problem(index.files[0], record, what)
        seen.setdefault(key, record)
    with opened(index.files[0]) as file:
        for record in range(len(index)):
            yield from _doubled(index, record, file)


def _doubled(index: Index, record: int, file: ByteFile) -> Iterator[Problem]:
    start = int(index.offset[record])
    end = start + int(index.length[record])
    extensions: set[str] = set()

    def read(at: int, n_bytes: int) -> bytes:
        return file.pread(min(n_bytes, end - at), at)

    for member in tar.members(read, start, end, index.files[0], is_part=True):
        parts = tar.name_parts(member.name)
        if parts is None:  # a member between the sample's files, outside the sample
            continue
        if parts[1] in extensions:
            yield Problem(index.files[0], record, f"holds two files {parts[1]!r}")
        extensions.add(parts[1])
