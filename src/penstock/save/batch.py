"""Many small files copied at once: all are written, then all are synced, then all are read back.

Each is as durable as one that is copied by itself: synced before it gets its name, and read again
after its pages were let go.  What it saves is waiting: a file system writes out many syncs that
come together at the price of few.  Knows paths; gives none of them its name.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import TierError, TierFull

__all__ = ["MOST_BYTES", "MOST_FILES", "SMALL_BYTES", "Copy", "copy_together"]

# A file of this size is synced in about 10 ms by a disk of 100 MB/s, as long as an empty one takes:
# above it the bytes count, and pieces of one file go side by side instead.
SMALL_BYTES = 1 << 20
MOST_FILES, MOST_BYTES = 256, 64 << 20  # at once: descriptors, and memory
THREADS = 16


@dataclass(slots=True)
class Copy:
    """source: whose size, mode and times are in `status`.  new: made by this, under a name of ours.
    error: what was wrong; None: it is there, synced, with the bytes of source."""

    source: Path
    new: Path
    status: os.stat_result
    error: Exception | None = None
    _data: bytes = field(default=b"", repr=False)
    _descriptor: int = -1

    def write(self) -> None:
        """Raises TierError, OSError."""
        size_bytes = self.status.st_size
        try:
            descriptor = os.open(self.source, os.O_RDONLY | os.O_CLOEXEC)
            try:
                self._data = os.pread(descriptor, size_bytes + 1, 0)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise TierError(f"{self.source}: cannot be read: {error.strerror}") from error
        if len(self._data) != size_bytes:
            raise TierError(f"{self.source}: changed while it was copied; next time")
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.new, flags, 0o600)
        except FileExistsError:  # of a drain that was killed
            self.new.unlink()
            self._descriptor = os.open(self.new, flags, 0o600)
        rest = memoryview(self._data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        os.fchmod(self._descriptor, self.status.st_mode & 0o7777)
        os.utime(self._descriptor, ns=(self.status.st_atime_ns, self.status.st_mtime_ns))

    def sync(self) -> None:
        """Raises OSError."""
        os.fsync(self._descriptor)

    def read_back(self) -> None:
        """Raises TierError, OSError."""
        with suppress(OSError):  # as penstock.tiers.evict()
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.pread(self._descriptor, len(self._data) + 1, 0) != self._data:
            raise TierError(
                f"{self.new}: reads back other bytes than were written; the fast copy stays"
            )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self._data = -1, b""


def copy_together(copies: Sequence[Copy], before_each: Callable[[Copy], None]) -> None:
    """Write, sync and read back; `error` of each says how that went.  before_each: is called before
    a file is written and before it is read, by this thread; what it raises ends all of it."""
    try:
        with ThreadPoolExecutor(THREADS) as pool:
            for number, step in enumerate((Copy.write, Copy.sync, Copy.read_back)):
                left = [copy for copy in copies if copy.error is None]
                _do(pool, step, left, before_each if number != 1 else None)
    finally:
        for copy in copies:
            copy.close()
            if copy.error is not None:
                with suppress(OSError):
                    copy.new.unlink(missing_ok=True)


def _do(
    pool: ThreadPoolExecutor,
    step: Callable[[Copy], None],
    copies: Iterable[Copy],
    before_each: Callable[[Copy], None] | None,
) -> None:
    def done(copy: Copy) -> None:
        try:
            step(copy)
        except (TierError, OSError) as error:
            copy.error = _spoken(copy, error)

    under_way = []
    for copy in copies:
        if before_each is not None:
            before_each(copy)
        under_way.append(pool.submit(done, copy))
    for future in under_way:
        future.result()


def _spoken(copy: Copy, error: TierError | OSError) -> TierError | OSError:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        size_bytes = copy.status.st_size
        said = f"{copy.new}: no room for {size_bytes:,} bytes: {error.strerror}"
        return TierFull(said, os.fspath(copy.new), size_bytes)
    return error
