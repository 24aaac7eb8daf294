"""The small files of a checkpoint, copied into the folder of an unfinished copy by native/copier.

The steps are as in penstock.save.small.batch: read, write drafts, sync the file system once, read
each draft back and rename the draft.  A part of the files is read and written while a thread syncs
and places the part before.  The native library follows no link; a link or a changed file is left to
the caller.  Knows stores and descriptors; knows no checkpoint.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TierError
from penstock.places.stores import LocalStore, StoredFile, beside, make_folders
from penstock.places.stores.store import PART
from penstock.save.manifest import checksum
from penstock.save.small import copier
from penstock.save.small.batch import Syncs, full_or, syncfs

__all__ = ["FILE", "IN_A_CALL", "MOST_FOLDERS", "PartFiles", "is_for_part", "open_folder"]

# struct copier_part_file of native/copier/copier.h.
FILE = np.dtype(
    [
        *((name, np.int64) for name in ("size_bytes", "mtime_ns", "offset")),
        ("times", np.int64, 4),
        *((name, np.int32) for name in ("from", "to", "state", "error", "copy")),
        *((name, np.uint32) for name in ("mode", "is_sparse", "is_cut")),
    ]
)
IN_A_CALL = 256  # a stop of the drain waits for a call to end; a call holds a descriptor per file
PART_FILES = 4096  # written while the part before is synced and placed
MOST_FOLDERS = 128  # of a part, in each store: each takes a descriptor


def is_for_part(dest: LocalStore, syncs: Syncs) -> bool:
    """Return True if the native copier may write to a store: one sync of the store's file system
    must make all files durable."""
    if not copier.is_built():
        return False
    try:
        device = os.stat(dest.folder).st_dev  # noqa: PTH116
    except OSError:
        return False
    return syncs.is_together(device, os.fspath(dest.folder))


@dataclass(slots=True)
class _Batch:
    """A part of the files on the way.  bytes: of all files, each with room for one more."""

    files: Sequence[tuple[StoredFile, str]]
    rows: NDArray[np.void]
    calls: list[tuple[bytes, slice]]
    bytes: NDArray[np.uint8]
    opened: ExitStack
    of_folder: int  # a descriptor of a folder of the copies

    def numbers(self, state: int) -> list[int]:
        numbers: list[int] = (self.rows["state"] == state).nonzero()[0].tolist()
        return numbers

    def call(self, step: str, before: Callable[[], None], size: Callable[[int], None]) -> None:
        pointer, n_bytes = self.rows.ctypes.data, FILE.itemsize
        for names, part in self.calls:
            before()
            rows = self.rows[part]
            size(int(rows["size_bytes"].sum()))
            at = pointer + part.start * n_bytes
            copier.call(f"part_{step}", names, at, len(rows), self.bytes.ctypes.data)


class PartFiles:
    """Copy small files of a local store into folders of another one, where no such file is.

    held, paced: called in two threads.  held: called often; an exception ends the copy.  paced:
    receives the number of bytes before a write and before a reading back.  check: receives a file
    as found, the time of the opened file and the checksums, before the file is written; may raise.
    placed: receives the number of bytes of copied files.
    """

    def __init__(
        self,
        source: LocalStore,
        dest: LocalStore,
        syncs: Syncs,
        held: Callable[[], None],
        paced: Callable[[int], None],
        check: Callable[[StoredFile, int, bytes], None],
        placed: Callable[[int], None],
    ) -> None:
        self._source, self._dest, self._syncs = source, dest, syncs
        self._held, self._paced, self._check, self._placed = held, paced, check, placed
        self._masks = dict[str, int]()
        self.done = set[str]()  # names in the source, of durable and placed copies

    def copy(self, files: Sequence[tuple[StoredFile, str]], most_bytes: float) -> None:
        """Copy files; the second of each pair is the name in the destination.  Files that cannot be
        read here are left.  Raises TierError, and the exceptions of the callbacks."""
        before: Future[None] | None = None
        with ExitStack() as unfinished, ThreadPoolExecutor(1) as placing:
            for part in _parts(files, most_bytes):
                batch = self._opened(part)
                unfinished.callback(self._close, batch)
                self._read_and_write(batch)
                if before is not None:
                    before.result()
                before = placing.submit(self._sync_and_place, batch)
            if before is not None:
                before.result()

    def _sync_and_place(self, batch: _Batch) -> None:
        self._sync(batch)
        self._place(batch)

    def _opened(self, files: Sequence[tuple[StoredFile, str]]) -> _Batch:
        rows = np.zeros(len(files), FILE)
        with ExitStack() as opened:
            sources, copies = dict[str, int](), dict[str, int]()
            texts = list[tuple[str, str, str]]()
            froms, tos, modes = list[int](), list[int](), list[int]()
            for file, name in files:
                folder, _, base = file.name.rpartition("/")
                if folder not in sources:
                    sources[folder] = open_folder(opened, self._source, folder)
                    self._masks.setdefault(folder, self._source.folder_mask(file.name))
                to, _, last = name.rpartition("/")
                if to not in copies:
                    copies[to] = self._made(opened, to)
                texts.append((base, beside(last, PART, "."), last))
                froms.append(sources[folder])
                tos.append(copies[to])
                modes.append(self._masks[folder])
            rows["from"], rows["to"], rows["mode"] = froms, tos, modes
            rows["size_bytes"] = [file.size_bytes for file, _ in files]
            ends = np.cumsum(rows["size_bytes"] + 1)
            rows["offset"][1:] = ends[:-1]
            spans = [*range(0, len(files), IN_A_CALL), len(files)]
            calls = [
                (copier.joined([*chain.from_iterable(texts[start:end])]), slice(start, end))
                for start, end in pairwise(spans)
            ]
            room = np.empty(int(ends[-1]), np.uint8)
            return _Batch(files, rows, calls, room, opened.pop_all(), tos[0])

    def _made(self, opened: ExitStack, name: str) -> int:
        folder = self._dest.path(name) if name else self._dest.folder
        try:
            make_folders(folder)
            descriptor = open_folder(opened, self._dest, name)
        except OSError as error:
            raise TierError(f"{folder}: cannot be written: {error.strerror}") from error
        if descriptor < 0:
            raise TierError(f"{folder}: cannot be written: no folder, or a link")
        return descriptor

    def _read_and_write(self, batch: _Batch) -> None:
        batch.call("read", self._held, lambda n_bytes: None)
        rows, data = batch.rows, batch.bytes.data
        times, offsets = rows["mtime_ns"].tolist(), rows["offset"].tolist()
        for at in batch.numbers(copier.READ):
            file = batch.files[at][0]
            start, size = offsets[at], file.size_bytes
            self._check(file, times[at], checksum(data[start : start + size]) if size else b"")
        batch.call("write", self._held, self._paced)
        self._raise_failed(batch, batch.numbers(copier.FAILED), is_written=True)

    def _raise_failed(self, batch: _Batch, failed: Sequence[int], *, is_written: bool) -> None:
        """Raise the error of a copy; a file that could not be read (no time) is left."""
        for at in failed:
            if is_written and not int(batch.rows["times"][at].any()):
                continue
            file, name = batch.files[at]
            where = os.fspath(self._dest.path(name))
            number = int(batch.rows["error"][at]) or errno.EIO
            error = full_or(OSError(number, os.strerror(number), where), where, file.size_bytes)
            if isinstance(error, TierError):
                raise error
            raise TierError(f"{where}: cannot be written: {error.strerror}") from error

    def _sync(self, batch: _Batch) -> None:
        written = batch.numbers(copier.WRITTEN)
        if not written:
            return
        folder = os.fspath(self._dest.path(batch.files[0][1]).parent)
        try:
            syncfs(batch.of_folder, folder)
        except OSError as error:
            self._syncs.distrust(os.fstat(batch.of_folder).st_dev)
            raise TierError(f"{folder}: cannot be written: {error.strerror}") from error

    def _place(self, batch: _Batch) -> None:
        written = set(batch.numbers(copier.WRITTEN))
        batch.call("place", self._held, self._paced)
        placed = batch.numbers(copier.PLACED)
        self.done.update(batch.files[at][0].name for at in placed)
        self._placed(int(batch.rows["size_bytes"][placed].sum()))
        for at in batch.numbers(copier.DIFFERS):
            where = self._dest.path(batch.files[at][1])
            raise TierError(
                f"{where}: reads back other bytes than were written; the fast copy stays"
            )
        failed = [at for at in batch.numbers(copier.FAILED) if at in written]
        self._raise_failed(batch, failed, is_written=False)
        self._close(batch)

    def _close(self, batch: _Batch) -> None:
        """Remove the drafts that were not placed, and let go of the bytes."""
        with batch.opened:
            for state in (copier.WRITTEN, copier.DIFFERS, copier.FAILED):
                for at in batch.numbers(state):
                    last = batch.files[at][1].rpartition("/")[2]
                    with suppress(OSError):
                        os.unlink(beside(last, PART, "."), dir_fd=int(batch.rows["to"][at]))
        batch.rows["state"] = copier.NEW
        batch.opened, batch.bytes = ExitStack(), np.empty(0, np.uint8)


def open_folder(opened: ExitStack, store: LocalStore, name: str) -> int:
    """Open a folder of a store; -1: there is none, or a link.  The store itself may be a link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | (os.O_NOFOLLOW if name else 0)
    try:
        descriptor = os.open(store.path(name) if name else store.folder, flags)
    except OSError:
        return -1
    opened.callback(os.close, descriptor)
    return descriptor


def _parts(
    files: Sequence[tuple[StoredFile, str]], most_bytes: float
) -> Iterator[list[tuple[StoredFile, str]]]:
    part, n_bytes, folders = list[tuple[StoredFile, str]](), 0, set[str]()
    for file in files:
        folder = file[1].rpartition("/")[0]
        is_full = len(part) >= PART_FILES or n_bytes + file[0].size_bytes > most_bytes
        if part and (is_full or (len(folders) >= MOST_FOLDERS and folder not in folders)):
            yield part
            part, n_bytes, folders = [], 0, set()
        part.append(file)
        n_bytes += file[0].size_bytes
        folders.add(folder)
    if part:
        yield part
