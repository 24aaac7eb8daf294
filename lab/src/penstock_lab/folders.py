"""Folders that studies fill and remove: only folders made by studies, and only with room.

Knows a mark and its holder; knows no study.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from penstock.errors import TierError
from penstock.places import tiers
from penstock.words import show

__all__ = ["WORK", "nearest", "refuse_without_room", "scratch", "work_in"]

WORK = "penstock-bench"  # in the folder of a study
MARK = ".made-by-penstock-bench"
SHARE_OF_ROOM = 0.9  # of the free space; the rest is for other programs there
SAYS = b"penstock bench made this folder, and removes it with all that is in it\n"


def nearest(path: Path) -> Path:
    """Return the nearest existing folder of a path."""
    there = path.absolute()
    while not os.path.lexists(there):
        there = there.parent
    return there


def refuse_without_room(folder: Path, n_bytes: float, less: str = "a smaller --scale") -> None:
    """Refuse a folder without room; FOLDER may be missing.  less: the way to fewer bytes.  Raises
    TierError: no room."""
    room = int(tiers.free_bytes(nearest(folder)) * SHARE_OF_ROOM)
    if n_bytes > room:
        raise TierError(
            f"{folder}: needs {show(n_bytes, 'B')}, and {show(room, 'B')} can be used there; name "
            f"another folder, or {less}"
        )


@contextmanager
def scratch(path: Path) -> Iterator[Path]:
    """Make a new folder, removed at the end; the remains of a killed study are removed first.

    Raises TierError: something is there that no study made, another study works there, or the
    folder is not writable.
    """
    _remove_left(path)
    try:
        path.mkdir(parents=True)
        (path / MARK).write_bytes(SAYS)
    except OSError as error:
        with suppress(OSError):
            path.rmdir()
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error
    with open(path / MARK, "rb") as mark:
        _lock(mark.fileno(), path)
        try:
            yield path
        finally:
            _remove(path)


def work_in(folder: Path) -> AbstractContextManager[Path]:
    """Return the scratch folder of FOLDER's study.  Raises TierError, as `scratch`."""
    return scratch(folder / WORK)


def _remove_left(path: Path) -> None:
    if not os.path.lexists(path):
        return
    try:
        with open(path / MARK, "rb") as mark:
            if path.is_symlink() or mark.read() != SAYS:
                raise _foreign(path)
            _lock(mark.fileno(), path)
            _remove(path)
    except OSError as error:
        try:
            path.rmdir()  # killed before the mark was there: the folder is then empty
        except OSError:
            raise _foreign(path) from error
    if os.path.lexists(path):
        raise TierError(f"{path}: is left of an earlier study and cannot be removed; remove it")


def _foreign(path: Path) -> TierError:
    return TierError(
        f"{path}: is there and was not made by penstock bench, which would remove it; "
        "move it away or name another folder"
    )


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise TierError(f"{path}: another study works there; wait for its end") from error
    except OSError:
        pass  # a file system without locks


def _remove(path: Path) -> None:
    """Remove the mark last: the remains of an interruption are known as ours."""
    with suppress(OSError):
        for entry in path.iterdir():
            if entry.name == MARK:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        if [entry.name for entry in path.iterdir()] == [MARK]:
            shutil.rmtree(path, ignore_errors=True)
