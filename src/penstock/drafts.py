"""Files that appear whole or not at all, in folders where strangers may write too.

The one place that writes under a name that others can guess.  A new file is made through a
descriptor of its folder, under a random name, with O_EXCL and O_NOFOLLOW and for its owner only; it
gets its mode and its name when it is whole.  So a link that a stranger has planted is replaced,
never followed.  Knows no format.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat

# Imported by what runs inside training: pathlib and tempfile are slow to import.
# ruff: noqa: PTH103, PTH120
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from io import FileIO
    from typing import Any, BinaryIO

__all__ = [
    "acting_uid",
    "acting_user",
    "append",
    "by_name",
    "create",
    "create_in_run",
    "draft",
    "draft_in_run",
    "held_folder",
    "in_folder",
    "own_folder",
    "run_folder",
    "sweep",
    "write",
    "write_in_run",
]

PRIVATE = 0o600
NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NAME_BYTES = 180  # of the name in a draft's: 255 are the most that a file system takes
CAPABILITY_VERSION, CAP_DAC_READ_SEARCH = 0x20080522, 2  # linux/capability.h


def acting_uid() -> int:
    """The user whose files this thread makes: fsuid, which is the effective user but for root that
    works for another one (see acting_user)."""
    return _self()[0]


def _self() -> tuple[int, int]:
    """fsuid and umask.  os.umask would change it for all threads meanwhile."""
    uid, mask = os.geteuid(), 0o077
    try:
        with open("/proc/thread-self/status", "rb") as file:
            text = file.read(1 << 16)
    except OSError:  # no /proc here
        return uid, mask
    for line in text.splitlines():
        if line.startswith(b"Uid:"):
            uid = int(line.split()[4])
        elif line.startswith(b"Umask:"):
            mask = int(line.split()[1], 8)
    return uid, mask


@contextlib.contextmanager
def in_folder(path: str | os.PathLike[str]) -> Iterator[tuple[int, str]]:
    """A descriptor of the folder that a path lies in, and the name there.  Raises OSError."""
    folder, name = os.path.split(os.fspath(path))
    descriptor = os.open(folder or ".", FOLDER)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)


def _random(name: str) -> str:
    """Of a name: hidden, and known to nobody before it is there."""
    return f".{os.fsdecode(os.fsencode(name)[:NAME_BYTES])}.{os.urandom(8).hex()}"


def sweep(path: str | os.PathLike[str]) -> None:
    """Remove the drafts of a file that killed programs have left.  Only for the holder of a lock
    under which the file is written: no draft of a living program is there.  Raises OSError."""
    with in_folder(path) as (folder, name):
        start = _random(name)[:-16]
        with os.scandir(os.path.dirname(os.fspath(path)) or ".") as entries:
            there = [entry.name for entry in entries]
        for entry in there:
            if entry.startswith(start) and re.fullmatch("[0-9a-f]{16}", entry[len(start) :]):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry, dir_fd=folder)


def _mode(folder: int, is_in_run: bool) -> int:
    """Of a new file: as the umask has it; in a run's folder it can be read by whoever may read the
    folder, and written by its owner only (native/log.c does the same)."""
    if is_in_run:
        return PRIVATE | (os.fstat(folder).st_mode & 0o044)
    return 0o666 & ~_self()[1]


def _put(folder: int, draft: str, name: str, is_new: bool) -> None:
    if is_new:  # a rename would replace what is there
        os.link(draft, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        os.unlink(draft, dir_fd=folder)
    else:
        os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def draft(
    path: str | os.PathLike[str],
    mode: int | None = None,
    is_new: bool = False,
    is_durable: bool = False,
    is_in_run: bool = False,
) -> Iterator[BinaryIO]:
    """Open what will be the file `path`, which appears when the block ends without an error.

    mode: of the file; None: by the umask.  is_new: nothing is replaced.  is_durable: synced before
    it appears.  Raises OSError; FileExistsError: it is there, and is_new was asked for."""
    with in_folder(path) as (folder, name):
        made = _random(name)
        file = os.fdopen(os.open(made, NEW | os.O_RDWR, PRIVATE, dir_fd=folder), "w+b")
        try:
            with file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), _mode(folder, is_in_run) if mode is None else mode)
                if is_durable:
                    os.fsync(file.fileno())
            _put(folder, made, name, is_new)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(made, dir_fd=folder)
            raise


def draft_in_run(path: str | os.PathLike[str]) -> contextlib.AbstractContextManager[BinaryIO]:
    """As draft, of a file of a run's folder: whoever may read the folder may read it."""
    return draft(path, is_in_run=True)


def write(
    path: str | os.PathLike[str],
    data: str | bytes,
    mode: int | None = None,
    is_new: bool = False,
    is_durable: bool = False,
) -> None:
    """Make a file of this content, whole or not at all.  Raises OSError as draft does."""
    with draft(path, mode, is_new, is_durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def write_in_run(path: str | os.PathLike[str], data: str | bytes, is_new: bool = False) -> None:
    """As write, of a file of a run's folder."""
    with draft(path, is_new=is_new, is_in_run=True) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def by_name(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[str]:
    """As draft, for a library that opens files by name: the name of a file that is not there yet.

    It lies in a folder that only this user may enter, and is reached through a descriptor, so that
    renaming the folder leads nobody elsewhere."""
    with in_folder(path) as (folder, name):
        made = _random(name)
        os.mkdir(made, 0o700, dir_fd=folder)
        private = -1
        try:
            private = _opened_own(folder, made)
            yield f"/proc/self/fd/{private}/{name}"
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=private)
            try:
                os.fchmod(file, _mode(folder, False) if mode is None else mode)
            finally:
                os.close(file)
            os.replace(name, name, src_dir_fd=private, dst_dir_fd=folder)
        finally:
            with contextlib.suppress(OSError):
                if private >= 0:
                    with contextlib.suppress(OSError):
                        os.unlink(name, dir_fd=private)
                    os.close(private)
                os.rmdir(made, dir_fd=folder)


def _opened_own(folder: int, name: str) -> int:
    """A descriptor of a folder that was just made here.  Raises PermissionError: another one lies
    in its place."""
    descriptor = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    status = os.fstat(descriptor)
    if status.st_uid != acting_uid() or status.st_mode & 0o077:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "somebody has put another folder in its place", name)
    return descriptor


def create(path: str | os.PathLike[str], mode: int | None = None) -> FileIO:
    """Open a new file under its own name, to be written as time goes on.  Raises OSError;
    FileExistsError: something lies there, also a link."""
    with in_folder(path) as (folder, name):
        return _created(folder, name, mode)


def append(path: str | os.PathLike[str]) -> FileIO:
    """Open a file of our own, new or not, to be written at its end.  Raises OSError;
    PermissionError: a link, another name of a file, or no file lies there."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "no file of our own lies there", os.fspath(path))
    return os.fdopen(descriptor, "ab", buffering=0)


def create_in_run(path: str | os.PathLike[str]) -> FileIO:
    """As create, of a file of a run's folder."""
    with in_folder(path) as (folder, name):
        return _created(folder, name, _mode(folder, is_in_run=True))


def _created(folder: int, name: str, mode: int | None) -> FileIO:
    descriptor = os.open(name, NEW | os.O_RDWR, 0o666 if mode is None else PRIVATE, dir_fd=folder)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "w+b", buffering=0)


# --- folders -------------------------------------------------------------------------------------


def run_folder(path: str | os.PathLike[str], is_for_group: bool = False) -> bool:
    """Make a run's folder and what it lies in; nobody else may look into it, or with is_for_group
    the group may read it.  Return whether it was made; one that is there stays as it is.  Raises
    OSError."""
    path = os.fspath(path)
    with contextlib.suppress(FileExistsError):  # a file in its place is told of below
        os.makedirs(os.path.dirname(path) or ".")
    with in_folder(path) as (folder, name):
        try:
            os.mkdir(name, 0o700, dir_fd=folder)
        except FileExistsError:
            if os.path.isdir(path):  # noqa: PTH112
                return False
            raise
        if is_for_group:
            made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
            try:
                os.fchmod(made, 0o750)
            finally:
                os.close(made)
        return True


@contextlib.contextmanager
def held_folder(path: str | os.PathLike[str]) -> Iterator[str]:
    """A folder that was just made for its owner only, by a name that leads there whatever is put in
    its place meanwhile.  Raises OSError; PermissionError: another one lies there."""
    with in_folder(path) as (folder, name):
        descriptor = _opened_own(folder, name)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def own_folder(path: str | os.PathLike[str]) -> None:
    """Make a folder that only this user may enter; or hold one that is there against that.

    Raises OSError; PermissionError: it is a link or another user's."""
    with in_folder(path) as (folder, name):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "is a link or no folder", os.fspath(path))
        if status.st_uid not in (acting_uid(), os.geteuid()):
            raise PermissionError(errno.EPERM, f"belongs to user {status.st_uid}", os.fspath(path))


# --- root, and other users' folders --------------------------------------------------------------


@contextlib.contextmanager
def acting_user(uid: int, gid: int, groups: Sequence[int] = ()) -> Iterator[None]:
    """As root, make and write files as another user would: of root's rights on files only that to
    read is left to this thread, and to threads that it starts, until the block ends.  Rights on
    other things stay.  Nothing changes for who is not root, or where the user is root.

    Reading stays, as our own modules may lie where only root may look.  Raises OSError."""
    if os.geteuid() or not uid:
        yield
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)  # setfsuid is of one thread, as no other of its kind
    before_gid, before_groups = os.getegid(), os.getgroups()
    os.setgroups(groups or [gid])
    try:
        libc.setfsgid(gid)
        libc.setfsuid(uid)
        if libc.setfsuid(-1) != uid or libc.setfsgid(-1) != gid:
            raise PermissionError(errno.EPERM, f"root cannot act as user {uid} here")
        _raise_capability(libc, CAP_DAC_READ_SEARCH)
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(before_gid)
        os.setgroups(before_groups)


def _raise_capability(libc: Any, number: int) -> None:
    """Makes a capability below 32 effective again where it is permitted."""
    import ctypes

    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; those above 31
    if libc.capget(header, sets) == 0:
        sets[0] |= sets[1] & 1 << number
        libc.capset(header, sets)
