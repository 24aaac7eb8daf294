"""What a store is: names, bytes, uploads.  Knows no place."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from penstock.errors import MissingDependency, TierError, TierFull

__all__ = [
    "BLOCK_BYTES",
    "DIRECT_BYTES",
    "PART",
    "SECTOR_BYTES",
    "STATE",
    "Source",
    "Store",
    "StoredFile",
    "Upload",
    "beside",
    "checked",
    "draft_of",
    "pieces",
    "reason_of",
    "translated",
]

Source = bytes | bytearray | memoryview | Path | BinaryIO | Iterable[bytes]
STATE = ".penstock"  # a tier's folder for the notes, locks and status of Penstock
PART = ".penstock-part"  # ends the name of what is not finished; no store lists such names
NAME_BYTES = 255  # of a file in a folder: as many as the file systems of Linux take
BLOCK_BYTES = 4 << 20  # a request: 2 ms of a 2 GB/s disk, and a multiple of every sector
SECTOR_BYTES = 4096  # what O_DIRECT asks of offset, length and memory on every disk of today
DIRECT_BYTES = 4 << 20  # smaller files gain nothing by passing the page cache


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
        return io.BufferedReader(StoreReader(self, found), 1 << 20)

    def where(self, name: str) -> str:
        """For messages."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url


class StoreReader(io.RawIOBase):
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


def checked(name: str) -> str:
    """A name that stays below the store.  Raises TierError."""
    path = PurePosixPath(name)
    if not name or "\0" in name or path.is_absolute() or ".." in path.parts or str(path) != name:
        raise TierError(f"{name!r} is no name of a file in a store; names are relative, without ..")
    return name


def reason_of(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and error.errno is None and error.__cause__ is not None:
        return reason_of(error.__cause__)  # fsspec's own tells the path alone
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


@contextmanager
def translated(where: str, doing: str, wanted_bytes: int = 0) -> Iterator[None]:
    """Errors of the system and of backends, in our words."""
    try:
        yield
    except (TierError, MissingDependency):
        raise
    except Exception as error:  # each backend has its own family of errors
        number = error.errno if isinstance(error, OSError) else None
        if number in (errno.ENOSPC, errno.EDQUOT):
            raise TierFull(
                f"{where}: no room for {wanted_bytes:,} bytes: {reason_of(error)}; free some, or "
                "let `penstock save prune` do it",
                where,
                wanted_bytes,
            ) from error
        raise TierError(f"{where}: cannot be {doing}: {reason_of(error)}") from error


def pieces(source: Source) -> Iterator[memoryview]:
    """What is to be put, in blocks."""
    if isinstance(source, bytes | bytearray | memoryview):
        whole = memoryview(source).cast("B")
        for start in range(0, len(whole), BLOCK_BYTES):
            yield whole[start : start + BLOCK_BYTES]
    elif isinstance(source, Path):
        with source.open("rb", buffering=0) as file:
            yield from pieces(file)
    elif hasattr(source, "read"):
        while data := source.read(BLOCK_BYTES):
            yield memoryview(data)
    else:
        for data in source:
            yield from pieces(data)


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
