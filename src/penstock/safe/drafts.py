"""Write files that appear whole or not at all, in folders where strangers may write too.

Only this module creates files under names that other users can guess.  A new file is created
through a descriptor of the folder, under a random name, with O_EXCL, O_NOFOLLOW and mode 0600; the
complete file gets the final mode and name.  So a link planted by a stranger is replaced, never
followed.  Knows no format.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat

# Imported by what runs inside training: pathlib and tempfile are slow to import.
# ruff: noqa: PTH103, PTH116, PTH120
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
    "is_of_another",
    "less_umask",
    "own_folder",
    "run_folder",
    "sweep",
    "write",
    "write_in_run",
]

PRIVATE = 0o600
NEW = os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NAME_BYTES = 180  # of the file's name in a draft's name: a file system allows 255 bytes
CAPABILITY_VERSION, CAP_DAC_READ_SEARCH = 0x20080522, 2  # linux/capability.h


def acting_uid() -> int:
    """Return the owner of the files created by the thread: the fsuid.  Except inside acting_user,
    the fsuid is the effective user."""
    return _self()[0]


def _self() -> tuple[int, int]:
    """Return the fsuid and the umask.  os.umask would change the umask of all threads for a
    moment."""
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
    """Yield a descriptor of the path's folder, and the name in the folder.  Raises OSError."""
    folder, name = os.path.split(os.fspath(path))
    descriptor = os.open(folder or ".", FOLDER)
    try:
        yield descriptor, name
    finally:
        os.close(descriptor)


def _random(name: str) -> str:
    """Return a hidden name for a draft, with random digits unknown to other users."""
    return f".{os.fsdecode(os.fsencode(name)[:NAME_BYTES])}.{os.urandom(8).hex()}"


def sweep(path: str | os.PathLike[str]) -> None:
    """Remove the drafts of a file left by killed programs.  Call with the lock of the file's
    writers: then no draft belongs to a living program.  Raises OSError."""
    with in_folder(path) as (folder, name):
        start = _random(name)[:-16]
        with os.scandir(os.path.dirname(os.fspath(path)) or ".") as entries:
            there = [entry.name for entry in entries]
        for entry in there:
            if entry.startswith(start) and re.fullmatch("[0-9a-f]{16}", entry[len(start) :]):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(entry, dir_fd=folder)


def _mode(folder: int, is_in_run: bool) -> int:
    """Return the mode of a new file: the umask's; in a run's folder, readable by every reader of
    the folder, and writable by the owner only (in step with native/log.c)."""
    if is_in_run:
        return PRIVATE | (os.fstat(folder).st_mode & 0o044)
    return less_umask(0o666)


def less_umask(mode: int) -> int:
    """Return the mode of a new file for the mode requested by a program."""
    return mode & ~_self()[1]


def _put(folder: int, draft: str, name: str, is_new: bool) -> None:
    if is_new:  # a rename would replace an existing file
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
    """Open a draft of the file `path`; the file appears when the block ends without an error.

    mode: of the file; None: by the umask.  is_new: never replace a file.  is_durable: sync the file
    before the rename.  Raises OSError; FileExistsError: with is_new, the path exists."""
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
    """Open a draft of a file in a run's folder: every reader of the folder may read the file."""
    return draft(path, is_in_run=True)


def write(
    path: str | os.PathLike[str],
    data: str | bytes,
    mode: int | None = None,
    is_new: bool = False,
    is_durable: bool = False,
) -> None:
    """Write a complete file or none.  Raises OSError as draft does."""
    with draft(path, mode, is_new, is_durable) as file:
        file.write(data.encode() if isinstance(data, str) else data)


def is_of_another(folder: str | os.PathLike[str]) -> bool:
    """Return True for root in another user's folder: root writes no file there, as the owner may
    have planted links."""
    return acting_uid() == 0 and os.stat(folder).st_uid != 0


def write_in_run(path: str | os.PathLike[str], data: str | bytes, is_new: bool = False) -> None:
    """Write a file in a run's folder, as write does."""
    with draft(path, is_new=is_new, is_in_run=True) as file:
        file.write(data.encode() if isinstance(data, str) else data)


@contextlib.contextmanager
def by_name(path: str | os.PathLike[str], mode: int | None = None) -> Iterator[str]:
    """Yield the name of a new file, for a library that opens files by name; otherwise as draft.

    The draft is in a folder that only the user may enter.  The name goes through a descriptor of
    the folder, so a renamed folder does not redirect the library.
    """
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


def _opened_own(folder: int, name: str, is_private: bool = True) -> int:
    """Return a descriptor of a folder of ours.  Raises PermissionError: another folder has replaced
    the folder."""
    descriptor = os.open(name, FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    status = os.fstat(descriptor)
    if status.st_uid != acting_uid() or status.st_mode & (0o077 if is_private else 0o022):
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "somebody has put another folder in its place", name)
    return descriptor


def create(path: str | os.PathLike[str], mode: int | None = None) -> FileIO:
    """Create a file under the final name and open the file for writing.  Raises OSError;
    FileExistsError: the path exists, possibly as a link."""
    with in_folder(path) as (folder, name):
        return _created(folder, name, mode)


def append(path: str | os.PathLike[str]) -> FileIO:
    """Open a new or an existing file for appending.  Raises OSError, also for a link;
    PermissionError: the file has several hard links, or is no regular file."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(path, flags, PRIVATE)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "no file of our own lies there", os.fspath(path))
    return os.fdopen(descriptor, "ab", buffering=0)


def create_in_run(path: str | os.PathLike[str]) -> FileIO:
    """Create a file in a run's folder, as create does."""
    with in_folder(path) as (folder, name):
        return _created(folder, name, _mode(folder, is_in_run=True))


def _created(folder: int, name: str, mode: int | None) -> FileIO:
    descriptor = os.open(name, NEW | os.O_RDWR, 0o666 if mode is None else PRIVATE, dir_fd=folder)
    if mode is not None:
        os.fchmod(descriptor, mode)
    return os.fdopen(descriptor, "w+b", buffering=0)


# --- folders -------------------------------------------------------------------------------------


def run_folder(path: str | os.PathLike[str], is_for_group: bool = False) -> bool:
    """Make a run's folder, with missing parent folders.  The folder is for the owner only; with
    is_for_group the group may read the folder.  Return True if the folder is new; an existing
    folder stays unchanged.  Raises OSError."""
    path = os.fspath(path)
    with contextlib.suppress(FileExistsError):  # in_folder() reports a file in the folder's place
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
def held_folder(path: str | os.PathLike[str], is_private: bool = True) -> Iterator[str]:
    """Yield a name of the user's folder; the name stays valid if another user replaces the folder.
    is_private: only the owner may enter the folder; else others may read the folder.  Raises
    OSError; PermissionError: another folder is at the path."""
    with in_folder(path) as (folder, name):
        descriptor = _opened_own(folder, name, is_private)
    try:
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def own_folder(path: str | os.PathLike[str], mode: int = 0o700) -> None:
    """Make a folder that only the user may write, or check the owner of an existing folder.

    Raises OSError; NotADirectoryError: a link or no folder; PermissionError: another user's.
    """
    with in_folder(path) as (folder, name):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, mode, dir_fd=folder)
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(errno.ENOTDIR, "is a link or no folder", os.fspath(path))
        if status.st_uid not in (acting_uid(), os.geteuid()):
            raise PermissionError(errno.EPERM, f"belongs to user {status.st_uid}", os.fspath(path))


# --- root, and other users' folders --------------------------------------------------------------


@contextlib.contextmanager
def acting_user(uid: int, gid: int, groups: Sequence[int] = ()) -> Iterator[None]:
    """Create and write files with another user's rights, as root, until the block ends.  Of root's
    rights on files, the thread and threads started by the thread keep only the right to read.
    Other rights of root stay.  Without root, and for the user root, nothing changes.

    The right to read stays because only root may be able to read Penstock's modules.  Raises
    OSError.
    """
    if os.geteuid() or not uid:
        yield
        return
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)  # setfsuid concerns a single thread, unlike setuid
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
    """Make a permitted capability below 32 effective again."""
    import ctypes

    header = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0)
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; then capabilities above 31
    if libc.capget(header, sets) == 0:
        sets[0] |= sets[1] & 1 << number
        libc.capset(header, sets)
