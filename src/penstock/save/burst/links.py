"""The files on a burst buffer's tier, the links to the files, and the order of the files of a path.

Knows names, links and times; moves nothing but a link.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from penstock.errors import TierError
from penstock.save.burst import crowd
from penstock.save.burst.file import BurstFile, _target, is_that, is_torn, rename_home, was_put
from penstock.save.burst.mend import search
from penstock.save.commit import exchange
from penstock.save.drain.working import LOOK_S
from penstock.save.overwritten.earlier import was_of
from penstock.save.small import copier
from penstock.save.small.batch import SMALL_BYTES

__all__ = [
    "are_one_file",
    "folder_at",
    "fsync_file",
    "has_moved",
    "in_order",
    "is_as_before",
    "is_bad",
    "is_file",
    "is_small",
    "lead_aside",
    "linked_files",
    "oldest_age_s",
    "renamed_links",
    "repeated",
    "root_of",
    "versions_in",
    "written_again",
]


def is_as_before(now: os.stat_result, before: os.stat_result) -> bool:
    """Return True if no process has written to a file.

    A second path to the file, made or removed, changes only the time of the status.
    """
    is_linked = now.st_nlink != before.st_nlink
    is_same = (now.st_size, now.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    return is_same and (is_linked or now.st_ctime_ns == before.st_ctime_ns)


def are_one_file(path: Path, other: Path) -> bool:
    with suppress(OSError):
        return is_that(path, other.lstat())
    return False


def is_file(path: Path) -> bool:
    """Return True for a regular file; a link to a file does not count."""
    with suppress(OSError):
        return stat.S_ISREG(path.lstat().st_mode)
    return False


def fsync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_moved(file: BurstFile) -> bool:
    """Return True if a file that is not on the tier was there before.

    The link to the file's path is made before the file.
    """
    if file.is_home:
        return True
    try:
        made_s = file.way.lstat().st_mtime
    except FileNotFoundError:
        return False
    return time.time() - made_s > LOOK_S or is_file(file.home)


def written_again(file: BurstFile) -> TierError:
    return TierError(f"{file.home}: is being written again; drained after that")


def is_bad(file: BurstFile) -> bool:
    return not file.size_bytes or is_torn(file.data, file.home.name)


def is_small(file: BurstFile) -> bool:
    """Return True for a file that is copied with others in a batch."""
    return file.size_bytes is not None and file.size_bytes <= SMALL_BYTES


def linked_files(files: Iterable[BurstFile]) -> dict[str, BurstFile]:
    """Return the files with a link at their paths, by path."""
    there = [file for file in files if file.size_bytes is not None]
    if len(there) < crowd.LEAST or not copier.is_built():
        return {file.home_at: file for file in there if file.is_linked()}
    leading = copier.leading([text for file in there for text in (file.home_at, file.data_at)])
    return {file.home_at: file for file, leads in zip(there, leading, strict=True) if leads}


def renamed_links(lost: Sequence[BurstFile]) -> dict[str, Path]:
    """Return the new path of each renamed link, by the name of the file on the tier."""
    roots = dict.fromkeys(root_of(file.home) for file in lost)
    # The program may have made a renamed folder anew: then the renamed folder is beside the new.
    links = search(dict.fromkeys((*roots, *(root.parent for root in roots))))
    return {
        file.name: links[path]
        for file in lost
        if (path := os.fspath(file.data)) in links and not was_put(file)
    }


def repeated(paths: Iterable[str]) -> set[str]:
    """Return the paths that occur more than once."""
    return {path for path, count in Counter(paths).items() if count > 1}


def in_order(versions: Iterable[BurstFile], newest: str) -> list[BurstFile]:
    """Sort the files of a path, newest first.

    newest: the name of the last file.  Names contain times: if the clock was set back meanwhile,
    names later than `newest` are earlier files.
    """
    return sorted(versions, key=lambda file: (file.name <= newest, file.name), reverse=True)


def versions_in(file: BurstFile, of_path: Iterable[BurstFile]) -> list[BurstFile]:
    """Return the files of a path that a file has replaced, newest first.

    Files moved away by another program do not count.
    """
    others = [
        other
        for other in of_path
        if other.name != file.name and other.size_bytes is not None and other.is_home
    ]
    ordered = in_order([*others, file], file.newest())
    return ordered[ordered.index(file) + 1 :]


def oldest_age_s(left: Sequence[BurstFile]) -> float:
    """Return the age of the oldest file in seconds."""
    oldest = min((file.mtime_ns for file in left if file.mtime_ns), default=0)
    return max(0.0, time.time() - oldest / 1e9) if oldest else 0.0


@lru_cache(maxsize=1024)
def folder_at(path: str) -> Path:
    return Path(path)  # once for all files of the folder


def lead_aside(home: Path, newer: Path) -> bool:
    """Put the earlier file of a path in the place of the path's link; move the link to `newer`.

    Return False if the link's target is torn.  After a kill in between, was_put() recognises the
    state.  Raises OSError.
    """
    was, data = was_of(home), Path(_target(home))
    if is_torn(data, home.name):
        return False
    try:
        exchange(was, home)
        was.replace(newer)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
            raise
        home.replace(newer)
        was.replace(home)
    ours = BurstFile(data.name, str(data), str(home))
    if os.path.lexists(ours.way):  # else the other node's drain finds the link
        rename_home(ours, newer)
    return True


def root_of(home: Path) -> Path:
    """Return the deepest existing folder above a path."""
    for folder in home.parents:
        with suppress(OSError):  # too long a path, or a folder without permission
            if folder.is_dir():
                return folder
    return Path("/")
