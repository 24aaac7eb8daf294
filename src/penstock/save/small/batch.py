"""Copy many small files at once: write all files, sync all files together, then read each file back
and put the file at its path.

Each file is as durable as a file copied alone: no file gets the final name before all bytes of the
batch are on the device.  The waits are per batch and not per file: if a file system's syncfs waits
for all bytes and returns write errors, one syncfs replaces an fsync per file.  The module knows
paths; the caller selects the files that are due, and renames the files.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from penstock.errors import TierError, TierFull
from penstock.places.stores.local import data_spans, is_sparse, private_mode, write_all
from penstock.places.tiers import mount_of
from penstock.save.small.lease import take

__all__ = [
    "LEAST_SYNCED_TOGETHER",
    "MOST_BYTES",
    "MOST_FILES",
    "SMALL_BYTES",
    "Copy",
    "Syncs",
    "copy_together",
    "full_or",
    "read_all",
    "syncfs",
]

# A disk of 100 MB/s syncs a file of this size in about 10 ms, as long as an empty file.
# For larger files the bytes dominate, and pieces of a single file are copied in parallel instead.
SMALL_BYTES = 1 << 20
MOST_FILES, MOST_BYTES = 4096, 64 << 20  # per batch: bounds memory, and the work lost by a kill
THREADS = 16
MOST_OPEN = 256  # open descriptors, where each file is synced separately
# Fewer files are synced separately: syncfs writes out the data of other programs too.
LEAST_SYNCED_TOGETHER = 16
MOST_IN_TURN = 64  # files per thread at a time
# File systems with a syncfs that waits for the data of all files.  FUSE's syncfs waits for no data;
# the syncfs of a network file system depends on the server.
SYNCED_TOGETHER = frozenset({"ext4", "xfs", "btrfs", "tmpfs"})
SYNCFS_TELLS = (5, 8)  # the first Linux with a syncfs that returns write errors


@dataclass(slots=True)
class Copy:
    """A file of a batch.  source: the file to copy; new: the path that `write` creates, in
    `folder`; name: for the caller.

    status: of the source, before the copy; None: a process writes to the source, or the source is
    gone.  is_plain: False: the file needs a closer look, and is not copied here.  error: the
    failure; None: the copy is durable and in place.  put: the result of `place`.  mask: the bits
    of the source's mode for a new file, less the umask; None: the copy gets the whole mode.
    """

    name: str
    source: str
    new: str
    folder: str
    mask: int | None = None
    status: os.stat_result | None = None
    is_plain: bool = True
    error: Exception | None = None
    put: os.stat_result | None = None
    _data: bytes = field(default=b"", repr=False)
    _descriptor: int = -1

    def read(self, settle_s: float | None, is_plain: Callable[[bytes], bool]) -> None:
        """Read the source into memory.  settle_s: None: without a lease.  Raises TierError,
        OSError."""
        try:
            descriptor = os.open(self.source, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise TierError(f"{self.source}: cannot be read: {error.strerror}") from error
        try:
            if settle_s is not None and not take(descriptor, settle_s).is_free:
                return
            status = os.fstat(descriptor)
            if status.st_size > SMALL_BYTES:
                self.is_plain = False  # has grown since the search
                return
            self._data = os.pread(descriptor, status.st_size + 1, 0)
        except OSError as error:
            raise TierError(f"{self.source}: cannot be read: {error.strerror}") from error
        finally:
            os.close(descriptor)
        if len(self._data) != status.st_size:
            raise TierError(f"{self.source}: changed while it was copied; next time")
        self.status, self.is_plain = status, is_plain(self._data)

    def write(self) -> None:
        """Write the copy; on failure remove the written part.  Raises OSError."""
        try:
            self._write()
        except OSError:
            self.close()
            with suppress(OSError):
                os.unlink(self.new)  # noqa: PTH108
            raise

    def _write(self) -> None:
        assert self.status is not None
        mode = 0o600 if self.mask is None else private_mode(self.status.st_mode, self.mask)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._descriptor = os.open(self.new, flags, mode)
        except FileExistsError:  # left by a killed drain
            os.unlink(self.new)  # noqa: PTH108 - a text
            self._descriptor = os.open(self.new, flags, mode)
        data = memoryview(self._data)
        for start, end in data_spans(data) if is_sparse(self.status) else ((0, len(data)),):
            write_all(self._descriptor, data[start:end], start)
        if self.mask is None:
            os.fchmod(self._descriptor, self.status.st_mode & 0o7777)
        os.utime(self._descriptor, ns=(self.status.st_atime_ns, self.status.st_mtime_ns))

    def sync(self) -> None:
        """Sync the copy alone.  Raises OSError."""
        os.fsync(self._descriptor)

    def read_back(self) -> None:
        """Read the copy back and compare the bytes.  Raises TierError, OSError."""
        if os.pread(self._descriptor, len(self._data) + 1, 0) != self._data:
            raise TierError(
                f"{self.new}: reads back other bytes than were written; the fast copy stays"
            )

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def evict(self) -> None:
        """Ask the kernel to drop the copy's pages, so that the next read is from the device."""
        self._descriptor = os.open(self.new, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with suppress(OSError):  # best effort, like penstock.places.tiers.evict()
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_WILLNEED)


class Syncs:
    """Record of the file systems with a usable syncfs, as far as a drain has seen."""

    def __init__(self) -> None:
        self._is_together: dict[int, bool] = {}  # by device

    def is_together(self, device: int, folder: str) -> bool:
        """Return True if a single syncfs makes all files of the folder's file system durable, and
        returns write errors."""
        if device not in self._is_together:
            with suppress(TierError, OSError):
                is_known = mount_of(folder).kind in SYNCED_TOGETHER
                self._is_together[device] = is_known and _kernel() >= SYNCFS_TELLS
        return self._is_together.get(device, False)

    def distrust(self, device: int) -> None:
        """Sync each file of a file system separately from now on: then an error names a file."""
        self._is_together[device] = False


def _kernel() -> tuple[int, ...]:
    numbers = os.uname().release.split(".")[:2]
    return tuple(int(number) for number in numbers if number.isdecimal())


def read_all(
    copies: Sequence[Copy],
    before: Callable[[Sequence[Copy]], None],
    settle_s: float | None,
    is_plain: Callable[[Copy, bytes], bool],
) -> None:
    """Read all sources into memory; set `error` of each failed copy.  before: see copy_together().
    settle_s: see Copy.read().  is_plain: returns True if a file with the given bytes may be copied
    without a closer look; called in several threads."""

    def read(copy: Copy) -> None:
        copy.read(settle_s, lambda data: is_plain(copy, data))

    with ThreadPoolExecutor(THREADS) as pool:
        _do(pool, read, copies, before)


def copy_together(
    copies: Sequence[Copy],
    before: Callable[[Sequence[Copy]], None],
    place: Callable[[Copy, int], os.stat_result | None],
    syncs: Syncs,
) -> None:
    """Write, sync, read back and place each copy; set `error` of each failed copy, and `put` of the
    other copies.

    before: called in the calling thread with the next files before each write and before each
    reading back; an exception from `before` ends the whole batch.  place: renames a durable copy to
    the final path; called in several threads, with a descriptor of the copy."""
    try:
        with ThreadPoolExecutor(THREADS) as pool, ExitStack() as folders:
            devices = _devices(copies)
            for device, ones in devices.items():
                is_few = len(ones) < LEAST_SYNCED_TOGETHER
                if device is not None and not is_few and syncs.is_together(device, ones[0].folder):
                    _write_together(pool, ones, before, syncs, device, folders)
                else:
                    for start in range(0, len(ones), MOST_OPEN):
                        _write_singly(pool, ones[start : start + MOST_OPEN], before)

            def end(copy: Copy) -> None:
                try:
                    copy.read_back()
                    copy.put = place(copy, copy._descriptor)
                finally:
                    copy.close()

            left = [copy for copy in copies if copy.error is None]
            for start in range(0, len(left), MOST_OPEN):
                part = left[start : start + MOST_OPEN]
                _do(pool, Copy.evict, part, before)
                _do(pool, end, [copy for copy in part if copy.error is None])
    finally:
        for copy in copies:
            copy.close()
            copy._data = b""
            if copy.put is None:
                with suppress(OSError):
                    os.unlink(copy.new)  # noqa: PTH108


def _devices(copies: Sequence[Copy]) -> dict[int | None, list[Copy]]:
    """Group the copies by the folder's device; None: the folder is missing."""
    of_folder: dict[str, int | None] = {}
    devices: dict[int | None, list[Copy]] = {}
    for copy in copies:
        if copy.folder not in of_folder:
            of_folder[copy.folder] = None
            with suppress(OSError):
                of_folder[copy.folder] = os.stat(copy.folder).st_dev  # noqa: PTH116
        devices.setdefault(of_folder[copy.folder], []).append(copy)
    return devices


def _write_together(
    pool: ThreadPoolExecutor,
    copies: Sequence[Copy],
    before: Callable[[Sequence[Copy]], None],
    syncs: Syncs,
    device: int,
    folders: ExitStack,
) -> None:
    def write(copy: Copy) -> None:
        try:
            copy.write()
        finally:
            copy.close()

    try:
        # Opened before the first write: syncfs returns the errors since the open.
        folder = os.open(copies[0].folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # the program has removed the folder, or denies access
        for start in range(0, len(copies), MOST_OPEN):
            _write_singly(pool, copies[start : start + MOST_OPEN], before)
        return
    folders.callback(os.close, folder)
    _write(pool, write, copies, before)
    try:
        syncfs(folder, copies[0].folder)
    except OSError as error:  # of an unknown file; the next attempt, file by file, shows the file
        syncs.distrust(device)
        for copy in copies:
            copy.error = copy.error or error


def _write(
    pool: ThreadPoolExecutor,
    write: Callable[[Copy], None],
    copies: Sequence[Copy],
    before: Callable[[Sequence[Copy]], None],
) -> None:
    """Write the copies.  On a full tier several threads compete for the room for a single file:
    then write the failed files again in turn, until a file fails for lack of room."""
    _do(pool, write, copies, before)
    for copy in copies:
        if isinstance(copy.error, TierFull):
            copy.error = None
            _done(write, copy)
            if copy.error is not None:
                break


def _write_singly(
    pool: ThreadPoolExecutor,
    copies: Sequence[Copy],
    before: Callable[[Sequence[Copy]], None],
) -> None:
    def sync(copy: Copy) -> None:
        try:
            copy.sync()
        finally:
            copy.close()

    _write(pool, Copy.write, copies, before)
    _do(pool, sync, [copy for copy in copies if copy.error is None])


def syncfs(descriptor: int, folder: str) -> None:
    """Write out all files of a file system.  Raises OSError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), folder)


def _do(
    pool: ThreadPoolExecutor,
    step: Callable[[Copy], None],
    copies: Sequence[Copy],
    before: Callable[[Sequence[Copy]], None] | None = None,
) -> None:
    def done(part: Sequence[Copy]) -> None:
        for copy in part:
            _done(step, copy)

    under_way = []
    size = max(1, min(MOST_IN_TURN, -(-len(copies) // THREADS)))
    for start in range(0, len(copies), size):
        part = copies[start : start + size]
        if before is not None:
            before(part)
        under_way.append(pool.submit(done, part))
    for future in under_way:
        future.result()


def _done(step: Callable[[Copy], None], copy: Copy) -> None:
    try:
        step(copy)
    except (TierError, OSError) as error:
        copy.error = full_or(error, copy.new, len(copy._data))


def full_or(error: TierError | OSError, new: str, size_bytes: int) -> TierError | OSError:
    """Return the error; for a lack of room for the copy `new`, return TierFull instead."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        said = f"{new}: no room for {size_bytes:,} bytes: {error.strerror}"
        return TierFull(said, new, size_bytes)
    return error
