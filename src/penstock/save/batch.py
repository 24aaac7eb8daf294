"""Copy many small files at once: write all files, then sync all files, then read all files back.

Each file is as durable as a file copied alone: the file is synced before the rename to its final
name, and is read back after its pages were dropped from the page cache.  Copying files together
saves waiting: a file system combines concurrent syncs.  Knows paths; does not rename files.
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

# A disk of 100 MB/s syncs a file of this size in about 10 ms, the time that an empty file takes.
# Above this size the bytes dominate, and pieces of a single file are copied in parallel instead.
SMALL_BYTES = 1 << 20
MOST_FILES, MOST_BYTES = 256, 64 << 20  # per batch: bounds descriptors and memory
THREADS = 16


@dataclass(slots=True)
class Copy:
    """One file of a batch.  source: the file to copy; `status` has the size, mode and times of
    source.  new: the path that `write` creates.  error: the failure; None: the copy at `new` is
    synced and has the bytes of source."""

    source: Path
    new: Path
    status: os.stat_result
    error: Exception | None = None
    _data: bytes = field(default=b"", repr=False)
    _descriptor: int = -1

    def write(self) -> None:
        """Write the copy.  Raises TierError, OSError."""
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
        except FileExistsError:  # left by a killed drain
            self.new.unlink()
            self._descriptor = os.open(self.new, flags, 0o600)
        rest = memoryview(self._data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        os.fchmod(self._descriptor, self.status.st_mode & 0o7777)
        os.utime(self._descriptor, ns=(self.status.st_atime_ns, self.status.st_mtime_ns))

    def sync(self) -> None:
        """Sync the copy.  Raises OSError."""
        os.fsync(self._descriptor)

    def read_back(self) -> None:
        """Read the copy back and compare the bytes.  Raises TierError, OSError."""
        with suppress(OSError):  # best effort, like penstock.tiers.evict()
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
    """Write, sync and read back each copy; set `error` of each copy that fails.  before_each:
    called in the calling thread before a file is written and before a file is read back; an
    exception from before_each ends the whole batch."""
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
