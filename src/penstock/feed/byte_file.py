"""Read the bytes of a file or an object, for the formats: small reads by position.

`opened` decides by the scheme of a path; the formats are independent of the difference.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Protocol

from penstock.errors import FeedError
from penstock.feed import arguments

__all__ = ["ByteFile", "LocalFile", "RemoteFile", "opened"]

HEAD_BYTES = 16 << 10  # of an object, read with the first byte: an LMDB's meta pages
Ranges = Sequence[tuple[int, int]]  # (first byte, bytes)


class ByteFile(Protocol):
    """The bytes of a file or an object.

    is_remote: each read is a request to a store, and all bytes are of a single version.  A local
    file may change at any time.
    """

    @property
    def is_remote(self) -> bool: ...

    def size(self) -> int:
        """Return the present size in bytes."""

    def pread(self, n_bytes: int, at: int) -> bytes:
        """Return at most n_bytes, fewer at the end.  Raises OSError, FeedError."""

    def readinto(self, memory: memoryview, at: int) -> int:
        """Read into memory and return the number of bytes."""

    def want(self, ranges: Ranges) -> None:
        """Request ranges that will be read next, all at once."""

    def close(self) -> None:
        """End all reads."""


class LocalFile:
    """A local file; close() closes the descriptor."""

    is_remote = False

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def size(self) -> int:
        return os.fstat(self.descriptor).st_size

    def pread(self, n_bytes: int, at: int) -> bytes:
        return os.pread(self.descriptor, n_bytes, at)

    def readinto(self, memory: memoryview, at: int) -> int:
        return os.preadv(self.descriptor, [memory], at)

    def want(self, ranges: Ranges) -> None:
        with suppress(OSError):  # a hint
            for at, n_bytes in ranges:
                os.posix_fadvise(self.descriptor, at, n_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class RemoteFile:
    """An object in the version at opening.  The ranges of the last want() are kept in memory."""

    is_remote = True

    def __init__(self, url: str) -> None:
        from penstock.feed.object_stores import object_at

        self._url = url
        self._object = object_at(url)
        self._seen = self._object.state()
        self._head: bytes | None = None
        self._kept: tuple[list[int], list[bytes]] = ([], [])  # a tuple: atomic for other threads

    def size(self) -> int:
        return self._seen.size

    def pread(self, n_bytes: int, at: int) -> bytes:
        n_bytes = min(n_bytes, self._seen.size - at)
        if n_bytes <= 0:
            return b""
        if at + n_bytes <= HEAD_BYTES:
            if self._head is None:
                (self._head,) = self._read([(0, min(HEAD_BYTES, self._seen.size))])
            return self._head[at : at + n_bytes]
        starts, contents = self._kept
        number = bisect_right(starts, at) - 1
        if number >= 0:
            kept, start = contents[number], starts[number]
            if at + n_bytes <= start + len(kept):
                return kept[at - start : at - start + n_bytes]
        (content,) = self._read([(at, n_bytes)])
        return content

    def readinto(self, memory: memoryview, at: int) -> int:
        content = self.pread(len(memory), at)
        memory[: len(content)] = content
        return len(content)

    def want(self, ranges: Ranges) -> None:
        size = self._seen.size
        asked = sorted((at, min(n_bytes, size - at)) for at, n_bytes in ranges if at < size)
        self._kept = ([at for at, _ in asked], self._read(asked))

    def _read(self, ranges: Ranges) -> list[bytes]:
        from penstock.feed.transfer import ObjectRange, transfers

        memories = [bytearray(n_bytes) for _, n_bytes in ranges]
        parts = [
            ObjectRange(self._object, self._seen, at, memoryview(memory))
            for (at, _), memory in zip(ranges, memories, strict=True)
        ]
        transfers().read(parts, MOST_AT_ONCE)
        for part in parts:
            if part.error:
                raise FeedError(f"{self._url}: {part.why}") from OSError(part.error, part.why)
        return [bytes(memory) for memory in memories]

    def close(self) -> None:
        self._head, self._kept = None, ([], [])


MOST_AT_ONCE = 64  # requests for the pages of an index


@contextmanager
def opened(path: str) -> Iterator[ByteFile]:
    """Open a file or an object for reads of parts, without the kernel's read-ahead.

    Raises FeedError: missing, not readable, or no regular file.
    """
    if arguments.is_remote(path):
        remote = RemoteFile(path)
        try:
            yield remote
        finally:
            remote.close()
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise FeedError(f"{path}: {error.strerror}; is it there, and readable by you?") from error
    local = LocalFile(descriptor)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise FeedError(f"{path}: it is no regular file")
        with suppress(OSError):  # a hint
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        yield local
    finally:
        local.close()
