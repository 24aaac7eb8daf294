"""Where files are put and found again: a local folder or an fsspec URL behind one surface.

Knows names, bytes, and what "durable" means in each place; knows no checkpoint and no data set.
A name is relative, with / between its parts.  What is put is there whole or not at all; a put in
pieces (`upload`) can be taken up again by another process.
"""

from __future__ import annotations

import errno
import hashlib
import io
import mmap
import os
import re
import stat
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from penstock.errors import MissingDependency, TierError, TierFull
from penstock.places import tiers
from penstock.safe import drafts

__all__ = [
    "PART",
    "STATE",
    "LocalStore",
    "Sparing",
    "Store",
    "StoredFile",
    "Upload",
    "beside",
    "check_state",
    "draft_of",
    "fsync_folder",
    "make_folders",
    "open_store",
]

Source = bytes | bytearray | memoryview | Path | BinaryIO | Iterable[bytes]

STATE = ".penstock"  # a tier's folder for the notes, locks and status of Penstock
PART = ".penstock-part"  # ends the name of what is not finished; no store lists such names
NAME_BYTES = 255  # of a file in a folder: as many as the file systems of Linux take
BLOCK_BYTES = 4 << 20  # a request: 2 ms of a 2 GB/s disk, and a multiple of every sector
SECTOR_BYTES = 4096  # what O_DIRECT asks of offset, length and memory on every disk of today
DIRECT_BYTES = 4 << 20  # smaller files gain nothing by passing the page cache
S3_LEAST_PIECE_BYTES = 5 << 20  # of a multipart upload; the last may be smaller
S3_MOST_PIECES = 10_000
SFTP_READERS = 8  # OpenSSH gives ten channels a connection: one lists, one writes
REMOTE_TIMEOUT_S = 30  # a server that does not answer for so long is gone; the caller tries again


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a store.  mtime_ns: None where the store does not say.  mark: by what it tells one
    version from another, within one tick of its clock too (an ETag); empty: it has none."""

    name: str
    size_bytes: int
    mtime_ns: int | None
    mark: str = ""


class Upload(ABC):
    """A file on its way into a store, in pieces of piece_bytes; the last one may be shorter.

    is_ordered: pieces have to come in order, from one thread.  Other uploads take them in any
    order from several.  is_confirmed: the store has compared what arrived with what was sent, so
    that nobody need read it back.  Nothing is seen under the name before finish() has returned.
    Of a local store: mtime_ns and mode, less the umask: which the file gets.  Of a local store and
    S3: replacing: called just before the new bytes take the name.
    """

    is_ordered = True
    is_confirmed = False
    mtime_ns: int | None = None
    mode: int | None = None
    replacing: Callable[[], None] | None = None

    def __init__(self, where: str, size_bytes: int, piece_bytes: int) -> None:
        self.where = where
        self.size_bytes = size_bytes
        self.piece_bytes = piece_bytes

    @abstractmethod
    def holds(self, number: int, data: memoryview) -> bool:
        """Whether an earlier attempt has left exactly these bytes as this piece."""

    @abstractmethod
    def write(self, number: int, data: memoryview) -> None:
        """Puts a piece.  Raises TierError; TierFull where there is no room."""

    @abstractmethod
    def finish(self) -> None:
        """Makes the file durable, then visible.  Raises TierError."""

    @abstractmethod
    def close(self) -> None:
        """Gives up; what is there stays for the next attempt.  After finish(): nothing."""


class Store(ABC):
    """A place with files in it.

    url: as it was named.  durable: a sentence, what it means here that something was put.
    can_rename: whole folders change their name at once.  is_local: `path` gives real paths.
    """

    url: str
    durable: str
    can_rename = False
    is_local = False

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        """Files below a folder, at any depth, none whose name ends in PART.  A folder that is not
        there holds none.  Raises TierError."""

    @abstractmethod
    def stat(self, name: str) -> StoredFile | None:
        """A file, or None.  Raises TierError."""

    @abstractmethod
    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Bytes of a file; fewer only at its end.  Raises TierError."""

    @abstractmethod
    def put(self, name: str, source: Source) -> int:
        """Puts a file whole: bytes, a path, an open file or an iterable of bytes.  Replaces what
        was under the name in one moment.  Returns its size.  Raises TierError, TierFull."""

    @abstractmethod
    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        """Begins a put in pieces, or takes up the last one; the store may choose larger pieces, by
        a whole factor.  Raises TierError."""

    def end_uploads(self, wanted: Collection[str], most_s: float) -> int:
        """End unfinished uploads that no process will resume, where a store keeps such uploads
        unseen: of names not in wanted, started more than most_s seconds ago.  Returns the number of
        ended uploads.  Raises TierError."""
        return 0

    @abstractmethod
    def delete(self, name: str) -> None:
        """Removes a file; one that is not there is no error.  Raises TierError."""

    def move(self, name: str, to: str) -> None:
        """Give a file another name, and replace a file of that name in one moment.  After a kill
        both names may be there.  Raises TierError."""
        found = self.stat(name)
        if found is None:
            raise TierError(f"{self.where(name)}: no such file; it may have been removed")
        steps = range(0, found.size_bytes, BLOCK_BYTES)
        self.put(to, (self.read(name, start, BLOCK_BYTES) for start in steps))
        self.delete(name)

    def free_bytes(self) -> int | None:
        """Room for this user; None where the store does not say."""
        return None

    def open(self, name: str) -> BinaryIO:
        """A file to read and seek in, through `read`.  Raises TierError."""
        found = self.stat(name)
        if found is None:
            raise TierError(f"{self.where(name)}: no such file; it may have been removed")
        return io.BufferedReader(_Reading(self, found), 1 << 20)

    def where(self, name: str) -> str:
        """For messages."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url


class _Reading(io.RawIOBase):
    """A file of a store as Python's own files are."""

    def __init__(self, store: Store, found: StoredFile) -> None:
        self._store, self._found, self._place = store, found, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._found.size_bytes}
        place = start[whence] + offset
        if place < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._place = place
        return place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), max(0, self._found.size_bytes - self._place))
        data = self._store.read(self._found.name, self._place, wanted) if wanted else b""
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def open_store(url: str | os.PathLike[str], **options: Any) -> Store:
    """A local folder (which need not exist yet), s3://, gs://, sftp://, memory:// or another fsspec
    URL.  options: for fsspec's file system, such as key and endpoint_url.

    Raises TierError: not a URL that can be used; MissingDependency: its package is not there.
    """
    text = os.fspath(url)
    if not text:  # a variable that is not set: it would be the folder where the program runs
        raise TierError("a tier without a name; name a folder or a URL")
    protocol, separator, rest = text.partition("://")
    if not separator:
        return LocalStore(text)
    if protocol in ("file", "local"):
        return LocalStore(rest)
    fs, root = _file_system(text, protocol, options)
    if protocol in ("s3", "s3a"):
        return _S3Store(text, fs, root)
    if protocol in ("sftp", "ssh"):
        return _SftpStore(text, fs, root)
    if protocol == "memory":
        return _MemoryStore(text, fs, root)
    if protocol in ("http", "https"):
        return _HttpStore(text, fs, root)
    return _ObjectStore(text, fs, root)


def _file_system(url: str, protocol: str, options: dict[str, Any]) -> tuple[Any, str]:
    needs = "a URL as a tier needs an extra: pip install 'penstock[remote]'"
    try:
        import fsspec
    except ModuleNotFoundError as error:
        raise MissingDependency(needs) from error
    # Lists that are remembered, and connections shared with the trainer, would both be wrong here.
    chosen: dict[str, Any] = {"skip_instance_cache": True}
    if protocol in ("sftp", "ssh"):
        chosen |= {"timeout": REMOTE_TIMEOUT_S, "host_key_policy": _known_hosts()}
    elif protocol != "memory":
        chosen["use_listings_cache"] = False
    try:
        fs, root = fsspec.core.url_to_fs(url, **{**chosen, **options})
    except ImportError as error:
        raise MissingDependency(f"{url}: {error}; {needs}") from error
    except TierError:
        raise
    except ValueError as error:
        raise TierError(f"{url}: {error}; name a folder, s3://, gs:// or sftp://") from error
    except Exception as error:  # each backend has its own family of errors
        raise TierError(f"{url}: cannot be reached: {_said(error)}; try again later") from error
    return fs, str(root).rstrip("/")


def _known_hosts() -> Any:
    """As ssh decides: a server whose key is not known is none to send checkpoints to."""
    try:
        import paramiko
    except ModuleNotFoundError as error:
        needs = "sftp:// needs an extra: pip install 'penstock[remote]'"
        raise MissingDependency(needs) from error

    class Known(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            for path in (Path.home() / ".ssh/known_hosts", Path("/etc/ssh/ssh_known_hosts")):
                if path.is_file() and paramiko.HostKeys(os.fspath(path)).check(hostname, key):
                    return
            raise TierError(
                f"{hostname}: its key is not in ~/.ssh/known_hosts; connect once with ssh and look"
            )

    return Known()


def _checked(name: str) -> str:
    """A name that stays below the store.  Raises TierError."""
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts or str(path) != name:
        raise TierError(f"{name!r} is no name of a file in a store; names are relative, without ..")
    return name


def _said(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and error.errno is None and error.__cause__ is not None:
        return _said(error.__cause__)  # fsspec's own tells the path alone
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


@contextmanager
def _told(where: str, doing: str, wanted_bytes: int = 0) -> Iterator[None]:
    """Errors of the system and of backends, in our words."""
    try:
        yield
    except (TierError, MissingDependency):
        raise
    except Exception as error:  # each backend has its own family of errors
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise TierFull(
                f"{where}: no room for {wanted_bytes:,} bytes: {_said(error)}; free some, or let "
                "`penstock save prune` do it",
                where,
                wanted_bytes,
            ) from error
        raise TierError(f"{where}: cannot be {doing}: {_said(error)}") from error


def _pieces(source: Source) -> Iterator[memoryview]:
    """What is to be put, in blocks."""
    if isinstance(source, bytes | bytearray | memoryview):
        whole = memoryview(source).cast("B")
        for start in range(0, len(whole), BLOCK_BYTES):
            yield whole[start : start + BLOCK_BYTES]
    elif isinstance(source, Path):
        with source.open("rb", buffering=0) as file:
            yield from _pieces(file)
    elif hasattr(source, "read"):
        while data := source.read(BLOCK_BYTES):
            yield memoryview(data)
    else:
        for data in source:
            yield from _pieces(data)


# --- a local folder -------------------------------------------------------------------------------


def beside(name: str, ending: str, start: str = "") -> str:
    """The name of a file that belongs to another one, in the same folder: that one's between start
    and ending; where a file system would not take that, a hidden digest before the ending."""
    folder, slash, base = name.rpartition("/")
    made = f"{start}{base}{ending}"
    if len(os.fsencode(made)) > NAME_BYTES:
        made = f".{hashlib.sha256(os.fsencode(base)).hexdigest()[:32]}{ending}"
    return f"{folder}{slash}{made}"


def draft_of(path: Path, mark: str = "") -> Path:
    """Where to write what will be `path`: no store lists it, and what a crash leaves is swept."""
    return path.with_name(beside(path.name, f"{mark}{PART}", "."))


def private_mode(mode: int, mask: int) -> int:
    """Return the mode of a copy, before the umask.  The owner can always write the copy again."""
    return mode & mask & 0o777 | 0o600


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Makes the names in a folder durable.  Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Makes a folder, and those above it, with names that are durable too.  Raises OSError."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(exist_ok=True)
        fsync_folder(one.parent)


def check_state(tier: Path) -> None:
    """Raise TierError if somebody has put a link in the place of a tier's folder of notes."""
    if os.path.islink(tier / STATE):  # noqa: PTH114
        raise TierError(
            f"{tier / STATE}: a link, through which Penstock would write elsewhere; remove it"
        )


class LocalStore(Store):
    """A folder.  It is made by the first put; until then it holds nothing."""

    can_rename = True
    is_local = True

    def __init__(self, folder: str | os.PathLike[str], *, makes_folders: bool = True) -> None:
        """makes_folders: False where a folder that is not there is one that somebody has removed or
        renamed: a put raises TierError then."""
        self.folder = Path(os.path.abspath(Path(folder).expanduser()))  # noqa: PTH100 - no links
        self.url = os.fspath(self.folder)
        self._makes_folders = makes_folders

    @property
    def durable(self) -> str:  # type: ignore[override]
        there = self.folder
        while not there.exists():
            there = there.parent
        mount = tiers.mount_of(there)
        if mount.kind in tiers.MEMORY_KINDS:
            return f"in the memory of this machine ({mount.kind}): lost when it stops"
        if mount.kind.startswith(("nfs", "cifs", "smb", "9p", "fuse")):
            return (
                f"fsync of file and folder on {mount.kind}: as durable as its server makes what it "
                "has confirmed"
            )
        return f"fsync of file and folder on {mount.kind} at {mount.point}"

    def path(self, name: str) -> Path:
        """Return where a file or a folder of the store lies.  Raises TierError: a note of
        Penstock's, and somebody has put a link in the place of the folder of notes."""
        if name.startswith(STATE + "/"):
            check_state(self.folder)
        return self.folder / _checked(name)

    def list(
        self, prefix: str = "", unseen: dict[str, TierError] | None = None
    ) -> Iterator[StoredFile]:
        """unseen: is given what below the prefix cannot be listed or seen, instead of the caller
        the first such error."""
        # A stack, not recursion: a folder may be deeper than Python's.
        stack = [prefix.strip("/")]
        while stack:
            here = stack.pop()
            entries = []
            folder = self.path(here) if here else self.folder
            try:
                with os.scandir(folder) as scan:
                    entries = sorted(scan, key=lambda entry: entry.name)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                if here == "lost+found" and error.errno == errno.EACCES:
                    continue  # of the file system, at the root of a mount
                told = TierError(f"{folder}: cannot be listed: {_said(error)}")
                if unseen is None or here == prefix.strip("/"):
                    raise told from error
                told.__cause__, unseen[here] = error, told
            for entry in entries:
                name = f"{here}/{entry.name}" if here else entry.name
                try:
                    if entry.is_dir(follow_symlinks=False):
                        stack.append(name)
                    elif not name.endswith(PART) and (found := self._found(name, entry)):
                        yield found
                except TierError as error:
                    if unseen is None:
                        raise
                    unseen[name] = error

    def _found(self, name: str, entry: os.DirEntry[str]) -> StoredFile | None:
        try:
            if not entry.is_file():
                return None
            status = entry.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
                return None  # gone meanwhile, or a link to nothing
            raise TierError(f"{self.path(name)}: cannot be seen: {_said(error)}") from error
        return StoredFile(name, status.st_size, status.st_mtime_ns)

    def stat(self, name: str) -> StoredFile | None:
        path = self.path(name)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TierError(f"{path}: cannot be seen: {_said(error)}") from error
        is_file = stat.S_ISREG(status.st_mode)
        return StoredFile(name, status.st_size, status.st_mtime_ns) if is_file else None

    def folder_mask(self, name: str) -> int:
        """Return the permission bits that the folders of a file, below the store's folder, leave to
        the file: a group or others that may not enter a folder may not read its files."""
        mask, folder = 0o777, self.path(name).parent
        while folder != self.folder and self.folder in folder.parents:
            with suppress(OSError):
                mode = folder.stat().st_mode
                mask &= ~(0o070 * (not mode & 0o010) | 0o007 * (not mode & 0o001))
            folder = folder.parent
        return mask

    def mode(self, name: str) -> int | None:
        """Return the mode that keeps a copy as private as the file; None: the file is gone."""
        with suppress(OSError):
            return private_mode(self.path(name).stat().st_mode, self.folder_mask(name))
        return None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self.path(name)
        with _told(os.fspath(path), "read"), path.open("rb", buffering=0) as file:
            if length is None:
                length = max(0, os.fstat(file.fileno()).st_size - offset)
            found = bytearray()
            while len(found) < length:
                data = os.pread(file.fileno(), length - len(found), offset + len(found))
                if not data:
                    break
                found += data
            return bytes(found)

    def open(self, name: str) -> BinaryIO:
        path = self.path(name)
        with _told(os.fspath(path), "read"):
            return path.open("rb")

    def put(self, name: str, source: Source, mode: int | None = None) -> int:
        """As Store.put.  mode: of the file; None: by the umask."""
        path = self.path(name)
        draft = draft_of(path, f".{uuid.uuid4().hex[:8]}")
        size = 0
        try:
            with _told(os.fspath(path), "written"):
                self._make(path.parent)
                with draft.open("xb", buffering=0) as file:
                    for data in _pieces(source):
                        with _told(os.fspath(path), "written", len(data)):
                            _write_all(file.fileno(), data, size)
                        size += len(data)
                    if mode is not None:  # by name, a chmod could follow a link
                        os.fchmod(file.fileno(), mode)
                    os.fsync(file.fileno())
                draft.rename(path)
                fsync_folder(path.parent)
        except BaseException:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
            raise
        return size

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        path = self.path(name)
        with _told(os.fspath(path), "written", size_bytes):
            self._make(path.parent)
            return _LocalUpload(path, size_bytes, piece_bytes)

    def _make(self, folder: Path) -> None:
        if self._makes_folders:
            make_folders(folder)

    def delete(self, name: str) -> None:
        path = self.path(name)
        with _told(os.fspath(path), "removed"):
            path.unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        there = self.folder
        while not there.exists():
            there = there.parent
        return tiers.free_bytes(there)

    def sweep(self) -> int:
        """Removes what unfinished puts have left; only where no other process is putting.  Returns
        how many bytes that were.  Raises TierError."""
        freed = 0
        for folder, _, files in os.walk(self.folder):
            for name in files:
                if name.endswith(PART):
                    path = Path(folder) / name
                    with _told(os.fspath(path), "removed"):
                        freed += path.lstat().st_size
                        path.unlink()
        return freed


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        done = os.pwrite(descriptor, data, offset)
        data, offset = data[done:], offset + done


class _LocalUpload(Upload):
    """Past the page cache where that is possible: it belongs to the training's data.

    Measured for 1 GiB on one disk: O_DIRECT 0.40 s and 60 ms of a processor, buffered with fsync
    0.5 to 2.2 s and up to 2.2 s.
    """

    is_ordered = False

    def __init__(self, path: Path, size_bytes: int, piece_bytes: int) -> None:
        super().__init__(os.fspath(path), size_bytes, piece_bytes)
        self._path = path
        self._draft = draft_of(path)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._plain = os.open(self._draft, flags, 0o600)  # nobody reads half a checkpoint
        self._direct = -1
        self._held_bytes = os.fstat(self._plain).st_size
        if size_bytes >= DIRECT_BYTES and piece_bytes % SECTOR_BYTES == 0:
            with suppress(OSError):  # EINVAL: this file system has none
                # Of the opened file, even if another file is at the path meanwhile.
                same = f"/proc/self/fd/{self._plain}"
                self._direct = os.open(same, os.O_WRONLY | os.O_DIRECT | os.O_CLOEXEC)

    def holds(self, number: int, data: memoryview) -> bool:
        start = number * self.piece_bytes
        if start + len(data) > self._held_bytes:
            return False
        place = 0
        while place < len(data):
            try:
                found = os.pread(self._plain, min(BLOCK_BYTES, len(data) - place), start + place)
            except OSError:  # a bad sector, perhaps for ever: it is written again
                return False
            if not found or found != data[place : place + len(found)]:
                return False
            place += len(found)
        return True

    def write(self, number: int, data: memoryview) -> None:
        start = number * self.piece_bytes
        with _told(self.where, "written", len(data)):
            whole = len(data) // SECTOR_BYTES * SECTOR_BYTES
            if self._direct >= 0 and whole:
                try:
                    _write_all(self._direct, data[:whole], start)
                except OSError as error:
                    if error.errno != errno.EINVAL:  # memory that lies elsewhere than disks want it
                        raise
                    whole = 0
            else:
                whole = 0
            _write_all(self._plain, data[whole:], start + whole)

    def finish(self) -> None:
        with _told(self.where, "written"):
            os.ftruncate(self._plain, self.size_bytes)
            if self.mtime_ns is not None:
                os.utime(self._plain, ns=(self.mtime_ns, self.mtime_ns))
            os.fchmod(self._plain, drafts.less_umask(0o666 if self.mode is None else self.mode))
            os.fsync(self._plain)
            if self.replacing is not None:
                self.replacing()
            self._draft.rename(self._path)
            fsync_folder(self._path.parent)
        self.close()

    def close(self) -> None:
        for descriptor in (self._plain, self._direct):
            if descriptor >= 0:
                os.close(descriptor)
        self._plain = self._direct = -1


class Sparing:
    """A local file read at the least cost to what runs beside: past the page cache, but where most
    of it lies there already.

    Measured for 200 MiB that were not in memory: O_DIRECT 14 ms of a processor, buffered 200 to
    300 ms, and from memory 12 to 15 ms.  Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._direct = -1
        size_bytes = os.fstat(self.number).st_size
        if size_bytes >= DIRECT_BYTES and (tiers.cached_bytes(self.number) or 0) <= size_bytes // 2:
            with suppress(OSError):  # EINVAL: this file system has none
                self._direct = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)

    @staticmethod
    def block(length: int) -> memoryview:
        """Memory that `read` takes, for so many bytes or more."""
        return memoryview(mmap.mmap(-1, max(-(-length // SECTOR_BYTES) * SECTOR_BYTES, 1)))

    def read(self, block: memoryview, start: int, length: int) -> memoryview:
        """The part of block, which is of `block`, that holds these bytes; fewer at the file's
        end."""
        held = 0
        while held < length:
            count = self._read_some(block, held, start, length)
            if not count:
                break
            held += count
        return block[: min(held, length)]

    def _read_some(self, block: memoryview, held: int, start: int, length: int) -> int:
        if self._direct >= 0 and (start + held) % SECTOR_BYTES == 0 == held % SECTOR_BYTES:
            end = -(-length // SECTOR_BYTES) * SECTOR_BYTES
            try:
                return os.preadv(self._direct, [block[held:end]], start + held)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a disk of larger sectors
                    raise
        return os.preadv(self.number, [block[held:length]], start + held)

    def close(self) -> None:
        for descriptor in (self.number, self._direct):
            if descriptor >= 0:
                os.close(descriptor)
        self.number = self._direct = -1


# --- fsspec ---------------------------------------------------------------------------------------


class _Remote(Store):
    """What every fsspec file system does alike."""

    def __init__(self, url: str, fs: Any, root: str) -> None:
        self.url, self._fs, self._root = url, fs, root

    def _path(self, name: str) -> str:
        return f"{self._root}/{_checked(name)}"

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        for name, info in self._listed(prefix):
            yield _found_of(name, info)

    def _listed(self, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
        with _told(self.where(prefix), "listed"):
            self._fs.invalidate_cache()
            folder = self._path(prefix.strip("/")) if prefix else self._root
            try:
                files = self._fs.find(folder, detail=True)
            except FileNotFoundError:
                return
        start = len(self._root) + 1
        for path in sorted(files):
            name = path.lstrip("/") if not self._root.startswith("/") else path
            if files[path].get("type") != "directory" and not name.endswith(PART):
                yield name[start:], files[path]

    def stat(self, name: str) -> StoredFile | None:
        with _told(self.where(name), "seen"):
            try:
                info = self._fs.info(self._path(name))
            except FileNotFoundError:
                return None
        return _found_of(name, info) if info.get("type") == "file" else None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        end = None if length is None else offset + length
        if length == 0:
            return b""
        path = self._path(name)
        with _told(self.where(name), "read"):
            try:
                return bytes(self._fs.cat_file(path, start=offset or None, end=end))
            except Exception:  # S3 refuses a range that begins at the end
                if self._fs.info(path)["size"] <= offset:
                    return b""
                raise

    def delete(self, name: str) -> None:
        with _told(self.where(name), "removed"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))


def _found_of(name: str, info: dict[str, Any]) -> StoredFile:
    size_bytes, mark = int(info["size"]), ""
    # S3, Azure, GCS, HTTP
    for key in ("ETag", "etag", "generation", "md5Hash", "content_md5", "Last-Modified"):
        mark = mark or str(info.get(key) or "").strip('"')
    for key in ("mtime", "LastModified", "updated", "last_modified", "created"):
        value: Any = info.get(key)
        if hasattr(value, "timestamp"):
            return StoredFile(name, size_bytes, int(value.timestamp() * 1e9), mark)
        if isinstance(value, int | float):
            return StoredFile(name, size_bytes, int(value * 1e9), mark)
    return StoredFile(name, size_bytes, None, mark)


class _ObjectStore(_Remote):
    """Objects appear whole when their upload ends: fsspec's files with a commit of their own."""

    durable = "the store has confirmed the whole object; how often it keeps it is its own affair"

    def put(self, name: str, source: Source) -> int:
        size = 0
        with _told(self.where(name), "written"):
            file = self._fs.open(self._path(name), "wb", autocommit=False)
            try:
                for data in _pieces(source):
                    file.write(data)
                    size += len(data)
                file.close()
                file.commit()
            except BaseException:
                _discard(file)
                raise
        return size

    def move(self, name: str, to: str) -> None:
        _move_in_store(self, self._fs, (self._path(name), self._path(to)), (name, to))

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        with _told(self.where(name), "written", size_bytes):
            file = self._fs.open(self._path(name), "wb", autocommit=False)
        return _StreamUpload(self.where(name), size_bytes, piece_bytes, file)


def _move_in_store(store: Store, fs: Any, paths: tuple[str, str], names: tuple[str, str]) -> None:
    """Copy an object within its store, compare the sizes, and remove the first one.  Raises
    TierError."""
    before = store.stat(names[0])
    with _told(store.where(names[1]), "written"):
        fs.cp_file(*paths)
    after = store.stat(names[1])
    sizes = [one.size_bytes if one is not None else None for one in (before, after)]
    if sizes[0] != sizes[1]:
        raise TierError(f"{store.where(names[1])}: has {sizes[1]} bytes of {sizes[0]}")
    store.delete(names[0])


class _HttpStore(_ObjectStore):
    """Of a server that refuses or does not answer fsspec says that no file is there."""

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        names = [name for name, _ in self._listed(prefix)]
        if not names:
            with _told(self.where(prefix), "listed"):
                self._asked(self._path(prefix.strip("/")) if prefix else self._root)
        with ThreadPoolExecutor(tiers.ASKED_AT_ONCE) as pool:
            # A page that links to files tells nothing of them.
            yield from (found for found in pool.map(self.stat, names) if found is not None)

    def stat(self, name: str) -> StoredFile | None:
        with _told(self.where(name), "seen"):
            info = self._asked(self._path(name))
        if info is not None and info.get("size") is None:
            raise TierError(f"{self.where(name)}: the server tells no length of it")
        return _found_of(name, info) if info and info.get("type") == "file" else None

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = super().read(name, offset, length)
        if length is not None and len(data) > length:
            where = self.where(name)
            raise TierError(f"{where}: the server gives whole files only; copy it another way")
        return data

    def _asked(self, path: str) -> dict[str, Any] | None:
        try:
            info: dict[str, Any] = self._fs.info(path)
        except FileNotFoundError as error:
            answer = getattr(error.__cause__, "status", None)
            if answer in (404, 410) or error.__cause__ is None:
                return None
            raise
        return info


class _StreamUpload(Upload):
    """Begins anew each time: the file system keeps nothing of an attempt."""

    def __init__(self, where: str, size_bytes: int, piece_bytes: int, file: Any) -> None:
        super().__init__(where, size_bytes, piece_bytes)
        self._file = file

    def holds(self, number: int, data: memoryview) -> bool:
        return False

    def write(self, number: int, data: memoryview) -> None:
        with _told(self.where, "written", len(data)):
            self._file.write(data)

    def finish(self) -> None:
        with _told(self.where, "written"):
            self._file.close()
            self._file.commit()
        self._file = None

    def close(self) -> None:
        if self._file is not None:
            _discard(self._file)
        self._file = None


def _discard(file: Any) -> None:
    with suppress(Exception):
        file.discard()
    # What is not closed writes on when it is collected, and tells that it could not.
    with suppress(Exception):
        file.closed = True


class _MemoryStore(_Remote):
    """For tests and for trying things out."""

    durable = "in the memory of this process: lost at its end"

    def put(self, name: str, source: Source) -> int:
        path = self._path(name)
        data = b"".join(_pieces(source))
        self._fs.pipe_file(path, data)
        return len(data)

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        _checked(name)
        return _StreamUpload(self.where(name), size_bytes, piece_bytes, _Held(self, name))


class _Held:
    """Bytes on their way into memory, with the words of fsspec's files."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name, self._data = store, name, bytearray()

    def write(self, data: memoryview) -> None:
        self._data += data

    def close(self) -> None:
        """Nothing to close."""

    def commit(self) -> None:
        self._store.put(self._name, bytes(self._data))

    def discard(self) -> None:
        self._data.clear()


class _S3Store(_Remote):
    """S3 by its own calls: a multipart upload survives the process that began it."""

    durable = (
        "S3 has confirmed the whole object, part by part with their MD5; how often it keeps it is "
        "its storage class"
    )

    def _place(self, name: str) -> dict[str, str]:
        bucket, _, key = self._path(name).partition("/")
        return {"Bucket": bucket, "Key": key}

    def call(self, method: str, **arguments: Any) -> Any:
        return self._fs.call_s3(method, **arguments)

    def begun(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield unfinished multipart uploads, of keys with this prefix."""
        page: dict[str, Any] = {}
        asked = {"Bucket": self._root.partition("/")[0], "Prefix": prefix}
        while True:
            page = self.call("list_multipart_uploads", **asked)
            yield from page.get("Uploads", [])
            if not page.get("IsTruncated") or not page.get("NextKeyMarker"):
                return
            asked["KeyMarker"] = page["NextKeyMarker"]
            asked["UploadIdMarker"] = page.get("NextUploadIdMarker", "")

    def end_uploads(self, wanted: Collection[str], most_s: float) -> int:
        place = self._place("any")
        start = place["Key"].removesuffix("any")
        n_ended = 0
        with _told(self.where(""), "cleared of old uploads"):
            for one in list(self.begun(start)):
                age_s = time.time() - one["Initiated"].timestamp()
                if one["Key"][len(start) :] not in wanted and age_s > most_s:
                    _Parts(self, {**place, "Key": one["Key"]}, one["UploadId"]).abort()
                    n_ended += 1
        return n_ended

    def put(self, name: str, source: Source) -> int:
        parts: _Parts | None = None
        try:
            with _told(self.where(name), "written"):
                held, size, number = bytearray(), 0, 0
                for data in _pieces(source):
                    held += data
                    size += len(data)
                    if len(held) >= S3_LEAST_PIECE_BYTES << number // 1000:  # 10,000 hold 50 TB
                        parts = parts or _Parts(self, self._place(name), None)
                        parts.write(number, bytes(held))
                        number += 1
                        held.clear()
                if parts is None:
                    answer = self.call("put_object", **self._place(name), **_body(bytes(held)))
                    _compare(answer, _md5(bytes(held)).hexdigest())
                    return size
                if held:
                    parts.write(number, bytes(held))
                parts.complete()
                return size
        except BaseException:
            if parts is not None:
                with suppress(Exception):
                    parts.abort()
            raise

    def move(self, name: str, to: str) -> None:
        _move_in_store(self, self._fs, (self._path(name), self._path(to)), (name, to))

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        least = max(S3_LEAST_PIECE_BYTES, -(-size_bytes // S3_MOST_PIECES))
        piece_bytes *= -(-least // piece_bytes)
        return _S3Upload(self, self.where(name), self._place(name), size_bytes, piece_bytes)


def _md5(data: bytes | memoryview) -> Any:
    return hashlib.md5(data, usedforsecurity=False)


def _body(data: bytes | memoryview) -> dict[str, Any]:
    """With a digest that S3 compares with what arrives."""
    import base64

    return {"Body": bytes(data), "ContentMD5": base64.b64encode(_md5(data).digest()).decode()}


def _compare(answer: dict[str, Any], wanted: str) -> None:
    """Compare the ETag from S3 with the digest of the bytes sent.  With a KMS key or a key of the
    client, the ETag is not an MD5 and is not compared.  Raises OSError."""
    is_plain = not answer.get("SSECustomerAlgorithm") and "kms" not in str(
        answer.get("ServerSideEncryption", "")
    )
    there = str(answer.get("ETag", "")).strip('"')
    if wanted and is_plain and re.fullmatch(r"[0-9a-f]{32}(-\d+)?", there) and there != wanted:
        raise OSError(errno.EIO, f"has other bytes than were sent (ETag {there}, not {wanted})")


class _Parts:
    """One multipart upload, new or taken up."""

    def __init__(self, store: _S3Store, place: dict[str, str], upload: str | None) -> None:
        self._store, self._place, self.marks = store, place, dict[int, str]()
        if upload is None:
            upload = store.call("create_multipart_upload", **place)["UploadId"]
        self._upload = {**place, "UploadId": upload}

    @classmethod
    def last_of(cls, store: _S3Store, place: dict[str, str], n_parts: int) -> _Parts | None:
        """Return the last unfinished upload of exactly this name, with the parts up to n_parts;
        older uploads of the name are ended."""
        begun = [one for one in store.begun(place["Key"]) if one["Key"] == place["Key"]]
        if not begun:
            return None
        for one in begun[:-1]:
            cls(store, place, one["UploadId"]).abort()
        parts = cls(store, place, begun[-1]["UploadId"])
        marker = 0
        while True:
            page = store.call("list_parts", **parts._upload, PartNumberMarker=marker)
            for part in page.get("Parts", []):
                if part["PartNumber"] <= n_parts:
                    parts.marks[part["PartNumber"] - 1] = part["ETag"]
            if not page.get("IsTruncated"):
                return parts
            marker = page["NextPartNumberMarker"]

    def write(self, number: int, data: bytes | memoryview) -> None:
        answer = self._store.call(
            "upload_part", **self._upload, PartNumber=number + 1, **_body(data)
        )
        _compare(answer, _md5(data).hexdigest())
        self.marks[number] = answer["ETag"]

    def abort(self) -> None:
        self._store.call("abort_multipart_upload", **self._upload)

    def complete(self) -> str:
        """Complete the upload.  Returns the expected ETag of the object, if the ETags of the parts
        are MD5s."""
        marks = sorted(self.marks.items())
        parts = [{"PartNumber": number + 1, "ETag": mark} for number, mark in marks]
        self._store.call(
            "complete_multipart_upload", **self._upload, MultipartUpload={"Parts": parts}
        )
        sums = [mark.strip('"') for _, mark in marks]
        is_plain = all(re.fullmatch(r"[0-9a-f]{32}", one) for one in sums)
        return f"{_md5(bytes.fromhex(''.join(sums))).hexdigest()}-{len(sums)}" if is_plain else ""


class _S3Upload(Upload):
    """Parts that are there are known by their MD5; what is smaller than a part goes in one call."""

    is_ordered = False
    is_confirmed = True

    def __init__(
        self, store: _S3Store, where: str, place: dict[str, str], size_bytes: int, piece_bytes: int
    ) -> None:
        super().__init__(where, size_bytes, piece_bytes)
        self._store, self._place = store, place
        self._whole = b""
        self._parts: _Parts | None = None
        if size_bytes > piece_bytes:
            with _told(where, "written"):
                n_parts = -(-size_bytes // piece_bytes)
                self._parts = _Parts.last_of(store, place, n_parts) or _Parts(store, place, None)

    def holds(self, number: int, data: memoryview) -> bool:
        import hashlib

        mark = self._parts.marks.get(number) if self._parts else None
        if mark is None:
            return False
        return hashlib.md5(data, usedforsecurity=False).hexdigest() == mark.strip('"')

    def write(self, number: int, data: memoryview) -> None:
        if self._parts is None:
            self._whole = bytes(data)
            return
        with _told(self.where, "written", len(data)):
            self._parts.write(number, data)

    def finish(self) -> None:
        if self.replacing is not None:
            self.replacing()
        with _told(self.where, "written", len(self._whole)):
            if self._parts is None:
                answer = self._store.call("put_object", **self._place, **_body(self._whole))
                wanted = _md5(self._whole).hexdigest()
                _compare(answer, wanted)
            else:
                wanted = self._parts.complete()
            there = self._store.call("head_object", **self._place)
            _compare(there, wanted)
        if there["ContentLength"] != self.size_bytes:
            raise TierError(
                f"{self.where}: has {there['ContentLength']} bytes where {self.size_bytes} were put"
            )

    def close(self) -> None:
        self._whole = b""


class _SftpStore(_Remote):
    """A folder on another machine: temporary name, fsync where the server can, posix-rename."""

    durable = (
        "written on the server under another name, synced there if it knows fsync@openssh.com (as "
        "OpenSSH does), then renamed; the folder's own fsync is the server's affair"
    )
    can_rename = False  # of a folder onto one that is there: no server does that in one moment

    def __init__(self, url: str, fs: Any, root: str) -> None:
        super().__init__(url, fs, root)
        self._turn = threading.RLock()  # paramiko mixes up the answers to two threads
        self._room = threading.BoundedSemaphore(SFTP_READERS)
        self._idle: list[Any] = []  # channels that were read through

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        with self._turn:
            return iter([*super().list(prefix)])

    def stat(self, name: str) -> StoredFile | None:
        with self._turn:
            return super().stat(name)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Several threads read at once, each through a channel, with all requests under way."""
        with (
            _told(self.where(name), "read"),
            self._channel() as channel,
            channel.open(self._path(name), "rb") as file,
        ):
            left = max(0, file.stat().st_size - offset)
            wanted = left if length is None else min(left, length)
            return b"".join(file.readv([(offset, wanted)])) if wanted else b""

    @contextmanager
    def _channel(self) -> Iterator[Any]:
        with self._room:
            try:
                channel = self._idle.pop()
            except IndexError:
                channel = self._fs.client.open_sftp()
            try:
                yield channel
            except BaseException:
                channel.close()  # answers may be on their way
                raise
            self._idle.append(channel)

    def delete(self, name: str) -> None:
        with self._turn:
            super().delete(name)

    def move(self, name: str, to: str) -> None:
        with self._turn, _told(self.where(to), "written"):
            self._fs.makedirs(self._path(to).rpartition("/")[0], exist_ok=True)
            self._fs.ftp.posix_rename(self._path(name), self._path(to))

    def put(self, name: str, source: Source) -> int:
        upload = self._upload(name, 0, BLOCK_BYTES, f".{uuid.uuid4().hex[:8]}")
        try:
            for data in _pieces(source):
                upload.append(data)
                upload.size_bytes += len(data)
            upload.finish()
        except BaseException:
            upload.remove()
            raise
        return upload.size_bytes

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        return self._upload(name, size_bytes, piece_bytes, "")

    def _upload(self, name: str, size_bytes: int, piece_bytes: int, mark: str) -> _SftpUpload:
        folder, _, base = self._path(name).rpartition("/")
        with _told(self.where(name), "written", size_bytes):
            self._fs.makedirs(folder, exist_ok=True)
            return _SftpUpload(
                (self.where(name), size_bytes, piece_bytes),
                self._fs,
                f"{folder}/{beside(base, f'{mark}{PART}', '.')}",
                f"{folder}/{base}",
            )


class _SftpUpload(Upload):
    """Written through a channel of its own: paramiko loses answers to pipelined writes where other
    requests share theirs."""

    def __init__(self, facts: tuple[str, int, int], fs: Any, draft: str, path: str) -> None:
        super().__init__(*facts)
        self._ftp, self._draft, self._path = fs.ftp, draft, path
        self._held_bytes, self._place = 0, 0
        with suppress(FileNotFoundError):
            self._held_bytes = self._ftp.stat(draft).st_size
        self._channel = fs.client.open_sftp()
        self._file = self._channel.open(draft, "r+b" if self._held_bytes else "wb")
        self._file.set_pipelined(True)  # else each 32 KiB wait for the server's answer
        self._reading: Any = None

    def holds(self, number: int, data: memoryview) -> bool:
        start = number * self.piece_bytes
        if start + len(data) > self._held_bytes:
            return False
        with _told(self.where, "read"):
            if self._reading is None:
                self._reading = self._ftp.open(self._draft, "rb")
            self._reading.seek(start)
            return bool(self._reading.read(len(data)) == data)

    def write(self, number: int, data: memoryview) -> None:
        self._place = number * self.piece_bytes
        self.append(data)

    def append(self, data: memoryview) -> None:
        with _told(self.where, "written", len(data)):
            self._file.seek(self._place)
            self._file.write(bytes(data))
            self._place += len(data)

    def finish(self) -> None:
        with _told(self.where, "written"):
            self._file.flush()
            while self._file._reqs:  # answers to what is under way, and with them its errors
                self._channel._read_response(self._file._reqs.popleft())
            if self._held_bytes > self.size_bytes:
                self._file.truncate(self.size_bytes)
            self._sync()
            self._file.close()
            found = self._ftp.stat(self._draft).st_size
            if found != self.size_bytes:
                raise TierError(f"{self.where}: {found:,} of {self.size_bytes:,} bytes arrived")
            self._ftp.posix_rename(self._draft, self._path)

    def _sync(self) -> None:
        """OpenSSH's extension, which paramiko has no name for."""
        from paramiko.sftp import CMD_EXTENDED

        with suppress(OSError):  # the server has no such word
            self._channel._request(CMD_EXTENDED, "fsync@openssh.com", self._file.handle)

    def remove(self) -> None:
        self.close()
        with suppress(Exception):
            self._ftp.remove(self._draft)

    def close(self) -> None:
        with suppress(Exception):
            if self._reading is not None:
                self._reading.close()
            self._file.close()
            self._channel.close()
