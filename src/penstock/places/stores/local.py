"""A store in a local folder: durable by fsync, whole by rename."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from penstock.errors import TierError
from penstock.places import tiers
from penstock.places.stores.store import (
    BLOCK_BYTES,
    DIRECT_BYTES,
    PART,
    SECTOR_BYTES,
    STATE,
    Store,
    StoredFile,
    Upload,
    checked,
    draft_of,
    pieces,
    reason_of,
    translated,
)
from penstock.safe import drafts

if TYPE_CHECKING:
    from penstock.places.stores.store import Source

__all__ = [
    "LocalStore",
    "Sparing",
    "check_state",
    "data_spans",
    "fsync_folder",
    "is_sparse",
    "make_folders",
    "private_mode",
    "write_all",
]


BLOCK_OF_STAT_BYTES = 512  # of st_blocks, on every file system
ZEROS = bytes(SECTOR_BYTES)


def private_mode(mode: int, mask: int) -> int:
    """Return the mode of a copy, before the umask.  The owner can always write the copy again."""
    return mode & mask & 0o777 | 0o600


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names in a folder durable.  Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folders(folder: Path) -> None:
    """Make a folder and its parents, with durable names.  Raises OSError."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for missing_folder in reversed(missing):
        missing_folder.mkdir(exist_ok=True)
        fsync_folder(missing_folder.parent)


def check_state(tier: Path) -> None:
    """Raise TierError if somebody has put a link in the place of a tier's folder of notes."""
    if os.path.islink(tier / STATE):  # noqa: PTH114
        raise TierError(
            f"{tier / STATE}: a link, through which Penstock would write elsewhere; remove it"
        )


class LocalStore(Store):
    """A folder as a store.  The first put makes the folder; until then the store is empty."""

    can_rename = True
    is_local = True

    def __init__(self, folder: str | os.PathLike[str], *, makes_folders: bool = True) -> None:
        """Open a folder as a store.  makes_folders: False if a missing folder was removed or
        renamed by somebody: a put then raises TierError."""
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
        """Return the path of a file or a folder of the store.  Raises TierError: a note of
        Penstock's, and somebody has put a link in the place of the folder of notes."""
        if name.startswith(STATE + "/"):
            check_state(self.folder)
        return self.folder / checked(name)

    def list(
        self, prefix: str = "", unseen: dict[str, TierError] | None = None
    ) -> Iterator[StoredFile]:
        """Do as Store.list.  unseen: collects errors below the prefix, instead of raising the first
        error."""
        for name, entry in self._entries(prefix, unseen):
            try:
                if file := self._found(name, entry):
                    yield file
            except TierError as error:
                if unseen is None:
                    raise
                unseen[name] = error

    def names(self) -> Iterator[str]:
        """Yield the names of the files, sooner than list() does.  Raises TierError."""
        for name, entry in self._entries("", None):
            is_link = entry.is_symlink()
            if self._found(name, entry) is not None if is_link else entry.is_file():
                yield name

    def _entries(
        self, prefix: str, unseen: dict[str, TierError] | None
    ) -> Iterator[tuple[str, os.DirEntry[str]]]:
        """Yield each entry that is no folder and no draft."""
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
                refusal = TierError(f"{folder}: cannot be listed: {reason_of(error)}")
                if unseen is None or here == prefix.strip("/"):
                    raise refusal from error
                refusal.__cause__, unseen[here] = error, refusal
            start = f"{here}/" if here else ""
            for entry in entries:
                name = start + entry.name
                if entry.is_dir(follow_symlinks=False):
                    stack.append(name)
                elif not name.endswith(PART):
                    yield name, entry

    def _found(self, name: str, entry: os.DirEntry[str]) -> StoredFile | None:
        try:
            if not entry.is_file():
                return None
            status = entry.stat()
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE):
                return None  # gone meanwhile, or a link to nothing
            raise TierError(f"{self.path(name)}: cannot be seen: {reason_of(error)}") from error
        return StoredFile(name, status.st_size, status.st_mtime_ns)

    def stat(self, name: str) -> StoredFile | None:
        path = self.path(name)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise TierError(f"{path}: cannot be seen: {reason_of(error)}") from error
        is_file = stat.S_ISREG(status.st_mode)
        return StoredFile(name, status.st_size, status.st_mtime_ns) if is_file else None

    def first_changed(self, files: Iterable[StoredFile]) -> str:
        """Return the name of the first file that is not as listed, or gone; empty: none.  A file
        takes a tenth of the time of stat().  Raises TierError."""
        for file in files:
            path = f"{self.url}/{file.name}"
            try:
                status = os.stat(path)  # noqa: PTH116 - a text
            except (FileNotFoundError, NotADirectoryError):
                return file.name
            except OSError as error:
                raise TierError(f"{path}: cannot be seen: {reason_of(error)}") from error
            is_file = stat.S_ISREG(status.st_mode)
            facts = (status.st_size, status.st_mtime_ns)
            if not is_file or facts != (file.size_bytes, file.mtime_ns):
                return file.name
        return ""

    def folder_mask(self, name: str) -> int:
        """Return the permission bits left to a file by the file's folders, below the store's
        folder: a group or others without access to a folder may not read files in the folder."""
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
        with translated(os.fspath(path), "read"), path.open("rb", buffering=0) as file:
            if length is None:
                length = max(0, os.fstat(file.fileno()).st_size - offset)
            content = bytearray()
            while len(content) < length:
                data = os.pread(file.fileno(), length - len(content), offset + len(content))
                if not data:
                    break
                content += data
            return bytes(content)

    def open(self, name: str) -> BinaryIO:
        path = self.path(name)
        with translated(os.fspath(path), "read"):
            return path.open("rb")

    def put(self, name: str, source: Source, mode: int | None = None) -> int:
        """Do as Store.put.  mode: of the file; None: by the umask."""
        path = self.path(name)
        draft = draft_of(path, f".{uuid.uuid4().hex[:8]}")
        size = 0
        try:
            with translated(os.fspath(path), "written"):
                self._make(path.parent)
                with draft.open("xb", buffering=0) as file:
                    for data in pieces(source):
                        with translated(os.fspath(path), "written", len(data)):
                            write_all(file.fileno(), data, size)
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
        with translated(os.fspath(path), "written", size_bytes):
            self._make(path.parent)
            return LocalUpload(path, size_bytes, piece_bytes)

    def _make(self, folder: Path) -> None:
        if self._makes_folders:
            make_folders(folder)

    def delete(self, name: str) -> None:
        path = self.path(name)
        with translated(os.fspath(path), "removed"):
            path.unlink(missing_ok=True)

    def free_bytes(self) -> int | None:
        there = self.folder
        while not there.exists():
            there = there.parent
        return tiers.free_bytes(there)

    def sweep(self) -> int:
        """Remove leftovers of unfinished puts, and return their bytes; only while no other process
        puts.  Raises TierError."""
        freed = 0
        for folder, _, files in os.walk(self.folder):
            for name in files:
                if name.endswith(PART):
                    path = Path(folder) / name
                    with translated(os.fspath(path), "removed"):
                        freed += path.lstat().st_size
                        path.unlink()
        return freed


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while len(data):
        done = os.pwrite(descriptor, data, offset)
        data, offset = data[done:], offset + done


def is_sparse(status: os.stat_result) -> bool:
    """Return True if a file occupies less than its size: the file has holes, or is compressed."""
    return status.st_blocks * BLOCK_OF_STAT_BYTES < status.st_size


def data_spans(data: memoryview, *, has_end: bool = True) -> list[tuple[int, int]]:
    """Return the starts and ends of the parts of a sparse file's bytes that need room on a disk:
    all but whole blocks of zeros.

    has_end: the file ends with these bytes.  The file's last block is always a part, as a hole at
    the end of a file counts as an end that was never written."""
    last = len(data) - 1 if has_end else len(data)
    spans = list[tuple[int, int]]()
    start = 0
    for at in range(0, last // SECTOR_BYTES * SECTOR_BYTES, SECTOR_BYTES):
        if data[at : at + SECTOR_BYTES].tobytes() == ZEROS:
            spans.append((start, at))
            start = at + SECTOR_BYTES
    spans.append((start, len(data)))
    return [(start, end) for start, end in spans if start < end]


class LocalUpload(Upload):
    """A write past the page cache where possible: the cache belongs to the training's data.

    Measured for 1 GiB on a disk: O_DIRECT 0.40 s and 60 ms of CPU time; buffered with fsync 0.5 to
    2.2 s, and up to 2.2 s of CPU time.
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
            with suppress(OSError):  # EINVAL: the file system has no O_DIRECT
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
                block = os.pread(self._plain, min(BLOCK_BYTES, len(data) - place), start + place)
            except OSError:  # a bad sector, perhaps permanent: write the piece again
                return False
            if not block or block != data[place : place + len(block)]:
                return False
            place += len(block)
        return True

    def write(self, number: int, data: memoryview) -> None:
        start = number * self.piece_bytes
        # The draft of an earlier attempt may have other bytes in the place of a hole.
        has_holes = self.keeps_holes and start >= self._held_bytes
        has_end = start + len(data) == self.size_bytes
        spans = data_spans(data, has_end=has_end) if has_holes else [(0, len(data))]
        with translated(self.where, "written", len(data)):
            for begin, end in spans:
                self._write(data[begin:end], start + begin)

    def _write(self, data: memoryview, start: int) -> None:
        whole = len(data) // SECTOR_BYTES * SECTOR_BYTES
        if self._direct >= 0 and whole:
            try:
                write_all(self._direct, data[:whole], start)
            except OSError as error:
                if error.errno != errno.EINVAL:  # memory not aligned for the disk
                    raise
                whole = 0
        else:
            whole = 0
        write_all(self._plain, data[whole:], start + whole)

    def finish(self) -> None:
        with translated(self.where, "written"):
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
    """A local file, read with little effect on other programs: past the page cache, unless most of
    the file is cached already.

    Measured for 200 MiB not in memory: O_DIRECT 14 ms of CPU time, buffered 200 to 300 ms; from
    memory 12 to 15 ms.  Raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._direct = -1
        status = os.fstat(self.number)
        self.is_sparse, size_bytes = is_sparse(status), status.st_size
        if size_bytes >= DIRECT_BYTES and (tiers.cached_bytes(self.number) or 0) <= size_bytes // 2:
            with suppress(OSError):  # EINVAL: the file system has no O_DIRECT
                self._direct = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)

    @staticmethod
    def block(length: int) -> memoryview:
        """Return memory for `read`, of at least `length` bytes."""
        return memoryview(mmap.mmap(-1, max(-(-length // SECTOR_BYTES) * SECTOR_BYTES, 1)))

    def read(self, block: memoryview, start: int, length: int) -> memoryview:
        """Read into block, made by `block`, and return the filled part; shorter at the end of the
        file."""
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
