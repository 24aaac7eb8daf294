"""The interface of stores: names, bytes, uploads.  Knows no place."""

from __future__ import annotations

import errno
import hashlib
import io
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
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
PART = ".penstock-part"  # the ending of unfinished files' names; no store lists such names
NAME_BYTES = 255  # of a file in a folder: as many as the file systems of Linux take
BLOCK_BYTES = 4 << 20  # a request: 2 ms of a 2 GB/s disk, and a multiple of every sector
SECTOR_BYTES = 4096  # O_DIRECT's unit of offset, length and memory on every present disk
DIRECT_BYTES = 4 << 20  # smaller files gain nothing by passing the page cache


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file in a store.

    mtime_ns: None if the store reports no time.  mark: distinguishes versions, even within a tick
    of the store's clock (an ETag); "" without a mark.
    """

    name: str
    size_bytes: int
    mtime_ns: int | None
    mark: str = ""


class Upload(ABC):
    """An upload of a file in pieces of piece_bytes; the last piece may be shorter.  The name is not
    visible before finish() has returned.

    is_ordered: pieces must come in order, from one thread; other uploads take pieces in any order
    from several threads.  is_confirmed: the store has compared the received bytes with the sent
    bytes, so reading back is needless.  mtime_ns, mode (less the umask): of a local store's file.
    replacing: local and S3: called just before the new file replaces the old file.  keeps_holes:
    local: blocks of zeros need no room.
    """

    is_ordered = True
    is_confirmed = False
    mtime_ns: int | None = None
    mode: int | None = None
    replacing: Callable[[], None] | None = None
    keeps_holes = False

    def __init__(self, where: str, size_bytes: int, piece_bytes: int) -> None:
        self.where = where
        self.size_bytes = size_bytes
        self.piece_bytes = piece_bytes

    @abstractmethod
    def holds(self, number: int, data: memoryview) -> bool:
        """Return True if an earlier attempt has left exactly the given bytes as the piece."""

    @abstractmethod
    def write(self, number: int, data: memoryview) -> None:
        """Put a piece.  Raises TierError; TierFull where there is no room."""

    @abstractmethod
    def finish(self) -> None:
        """Make the file durable, then visible.  Raises TierError."""

    @abstractmethod
    def close(self) -> None:
        """Give up; uploaded pieces stay for the next attempt.  After finish() do nothing."""


class Store(ABC):
    """A place with files.

    url: as named by the user.  durable: a sentence on the guarantee of a put.  can_rename: whole
    folders can be renamed at once.  is_local: `path` returns real paths.
    """

    url: str
    durable: str
    can_rename = False
    is_local = False

    @abstractmethod
    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        """Yield the files below a folder, at any depth, without names ending in PART.

        A missing folder has no files.  Raises TierError.
        """

    @abstractmethod
    def stat(self, name: str) -> StoredFile | None:
        """Return a file, or None.  Raises TierError."""

    @abstractmethod
    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of a file; fewer only at the end of the file.  Raises TierError."""

    @abstractmethod
    def put(self, name: str, source: Source) -> int:
        """Put a file whole: bytes, a path, an open file or an iterable of bytes.

        Replaces an earlier file of the name in one moment.  Returns the size.  Raises TierError,
        TierFull.
        """

    @abstractmethod
    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        """Begin a put in pieces, or resume the last put in pieces.

        The store may choose larger pieces, by a whole factor.  Raises TierError.
        """

    def end_uploads(self, wanted: Collection[str], most_s: float) -> int:
        """End abandoned uploads in stores where unfinished uploads are not visible; return the
        number.

        wanted: names with uploads to keep.  most_s: younger uploads stay.  Raises TierError.
        """
        return 0

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file; a missing file is no error.  Raises TierError."""

    def move(self, name: str, to: str) -> None:
        """Rename a file, and replace a file of the new name in one moment.  After a kill both names
        may exist.  Raises TierError."""
        file = self.stat(name)
        if file is None:
            raise TierError(f"{self.where(name)}: no such file; it may have been removed")
        steps = range(0, file.size_bytes, BLOCK_BYTES)
        self.put(to, (self.read(name, start, BLOCK_BYTES) for start in steps))
        self.delete(name)

    def free_bytes(self) -> int | None:
        """Return the room for the user; None: not reported by the store."""
        return None

    def open(self, name: str) -> BinaryIO:
        """Return a file to read and seek in, through `read`.  Raises TierError."""
        file = self.stat(name)
        if file is None:
            raise TierError(f"{self.where(name)}: no such file; it may have been removed")
        return io.BufferedReader(StoreReader(self, file), 1 << 20)

    def where(self, name: str) -> str:
        """Return the name of a file's location for messages."""
        return f"{self.url.rstrip('/')}/{name}" if name else self.url


class StoreReader(io.RawIOBase):
    """A file of a store as Python's own files are."""

    def __init__(self, store: Store, file: StoredFile) -> None:
        self._store, self._found, self._place = store, file, 0

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


_NO_PARTS = frozenset(("", ".", ".."))


def checked(name: str) -> str:
    """Return a name after checking for a location below the store.  Raises TierError."""
    if not name or "\0" in name or (name != "." and not _NO_PARTS.isdisjoint(name.split("/"))):
        raise TierError(f"{name!r} is no name of a file in a store; names are relative, without ..")
    return name


def reason_of(error: BaseException) -> str:
    if isinstance(error, FileNotFoundError) and error.errno is None and error.__cause__ is not None:
        return reason_of(error.__cause__)  # fsspec's message has the path alone
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


@contextmanager
def translated(where: str, doing: str, wanted_bytes: int = 0) -> Iterator[None]:
    """Raise errors of the system and of backends as TierError, in Penstock's words."""
    try:
        yield
    except (TierError, MissingDependency):
        raise
    except Exception as error:  # each backend has other exceptions
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
    """Yield the bytes of a source in blocks."""
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
    """Return the name of a companion of another file, in one folder: the other file's name between
    start and ending.  If too long for file systems: a hidden digest before the ending."""
    folder, slash, base = name.rpartition("/")
    made = f"{start}{base}{ending}"
    if len(os.fsencode(made)) > NAME_BYTES:
        made = f".{hashlib.sha256(os.fsencode(base)).hexdigest()[:32]}{ending}"
    return f"{folder}{slash}{made}"


def draft_of(path: Path, mark: str = "") -> Path:
    """Return the path for writing a future `path`: no store lists the draft, and sweeps remove the
    draft after a crash."""
    return path.with_name(beside(path.name, f"{mark}{PART}", "."))
