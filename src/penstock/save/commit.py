"""Commit a checkpoint: write into NAME.part, sync, add the manifest, then rename to NAME.

Knows local folders and the order of the system calls; knows no tensor and no framework.

    part = begin(root, step)                 an empty folder, NAME.part
    part.write("model.pt", buffers)          or any program puts files there
    path = commit(part, world_size=4)        root/NAME, durable, or an error and no NAME

The order of the steps makes the commit safe: sync every file, write the manifest, sync the folders,
rename the part, sync the parent.  A committed name is never written again.
"""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import time
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import SaveError, TierError, TierFull
from penstock.places.stores import PART, STATE, LocalStore, check_state, fsync_folder, make_folders
from penstock.save.manifest import (
    CHUNK_BYTES,
    INSIDE,
    MOST_BYTES,
    FileSum,
    Manifest,
    Summing,
    parse,
    to_json,
)

__all__ = [
    "MARK",
    "PART_SUFFIX",
    "PLACE",
    "PLACE_FOLDER",
    "STATE",
    "Claim",
    "DraftCheckpoint",
    "abort",
    "begin",
    "claim",
    "commit",
    "discard",
    "discard_as_found",
    "exchange",
    "is_alive",
    "is_strange",
    "join",
    "make_part",
    "name_of_step",
    "sum_of",
    "sweep",
    "written",
]

AnyPath = str | os.PathLike[str]
Buffer = bytes | bytearray | memoryview

PART_SUFFIX = ".part"
MARK = "penstock-part.json"  # in a part: Penstock made the part, sweep() may remove the part
# The future manifest, in a part with durable files on the move, file by file, to places beside the
# part.  sweep() leaves the part: the content is finished.
PLACE = "penstock-place.json"
PLACE_FOLDER = "penstock-place-folder.json"  # as PLACE, for places in the folder NAME
# In a complete part: the future manifest of a copy.  The copy counts only together with others.
WAITS = "penstock-waits.json"
HANDED_IN = ".penstock-sums-"  # in a part: the checksums of another rank's files
PAGE_BYTES = 4096
RENAME_EXCHANGE = 2  # linux/fs.h
SWEPT_TIMES = 5  # attempts to begin a part while another process sweeps
CLAIM_LOOK_S = 0.2


def name_of_step(step: int) -> str:
    """Return the name of a step: eight digits, so that names sort in the order of steps."""
    return f"step-{step:08d}"


@dataclass(slots=True)
class DraftCheckpoint:
    """A checkpoint that does not count yet.

    path: the checkpoint's folder.  Several processes may write there, each its own files.
    """

    root: Path
    name: str
    step: int | None
    sums: dict[str, FileSum] = field(default_factory=dict)
    _lock: "Claim | None" = field(default=None, repr=False, compare=False)  # set by begin()

    @property
    def path(self) -> Path:
        return self.root / f"{self.name}{PART_SUFFIX}"

    def write(self, name: str, buffers: Iterable[Buffer]) -> FileSum:
        """Write and sync a file of the checkpoint, past the page cache where that is faster.

        Raises TierError; TierFull where there is no room.
        """
        file_sum = written(self.path, name, buffers)
        self.sums[name] = file_sum
        return file_sum

    def hand_in(self) -> None:
        """Leave the rank's checksums for the committing rank, to save a second read of the files.

        For every rank but the committing rank.  Raises TierError.
        """
        if self.sums:
            mine = to_json(Manifest(tuple(self.sums.values()), self.step).now())
            LocalStore(self.path).put(f"{HANDED_IN}{uuid.uuid4().hex}.json", mine)


def begin(root: AnyPath, step: int | None, *, name: str | None = None) -> DraftCheckpoint:
    """Begin an empty part for a step; remove the remains of an earlier attempt.

    The part is protected from sweep() until commit(), abort(), the end of the DraftCheckpoint or
    the end of the process.
    name: replaces name_of_step(step).  Where the name is committed already (a job restarted from an
    older step), the part gets the next free name: NAME.2 and so on.
    Raises TierError: the tier is missing, read-only or full; SaveError: no name, or another process
    writes the checkpoint now.
    """
    wanted = name if name is not None else name_of_step(step) if step is not None else ""
    if not wanted or "/" in wanted or wanted.startswith(".") or "\0" in wanted:
        raise SaveError(f"{wanted!r} is no name of a checkpoint: give a step, or a name without /")
    folder = Path(root)
    with _spoken(folder):
        make_folders(folder)
        part = DraftCheckpoint(folder, _free_name(folder, wanted), step)
        if is_alive(part.path):
            raise SaveError(
                f"{part.path}: another process writes this checkpoint now; one job for one folder"
            )
        if part.path.exists():
            discard(part.path, folder)
        part._lock = make_part(part.path, folder)
    return part


def make_part(path: Path, root: Path) -> "Claim":
    """Make a part that holds a locked mark, and rename the complete part to its path atomically.

    A part without a mark belongs to another program.  A part with a locked mark has a writer.
    Raises TierError; SaveError: another process has begun the part meanwhile.
    """
    with _spoken(root):
        make_folders(path.parent)
        return _made(path, root)


def _made(path: Path, root: Path) -> "Claim":
    facts = {"pid": os.getpid(), "host": socket.gethostname(), "unix_ns": time.time_ns()}
    for _ in range(SWEPT_TIMES):
        made = _trash_of(root) / uuid.uuid4().hex
        made.mkdir()
        lock = None
        try:
            descriptor = os.open(
                made / MARK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666
            )
            lock = Claim(descriptor, is_sure=True)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, json.dumps(facts).encode())
            made.rename(path)
            return lock
        except FileNotFoundError:  # another process swept the part before the lock
            continue
        except OSError as error:
            if lock is not None:
                lock.close()
            _remove(made)
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                raise SaveError(f"{path}: another process has just begun it") from error
            raise
    raise SaveError(f"{path}: removed {SWEPT_TIMES} times while it was begun; who sweeps there?")


def is_alive(part: Path) -> bool:
    """Return True if a process writes the part now; False where the file system has no locks."""
    try:
        descriptor = os.open(part / MARK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def join(root: AnyPath, name: str, step: int | None) -> DraftCheckpoint:
    """Return the part that another rank has begun under the name.  Raises SaveError: no part."""
    part = DraftCheckpoint(Path(root), name, step)
    if not (part.path / MARK).exists():
        raise SaveError(f"{part.path}: not begun, or aborted; the first rank begins a checkpoint")
    return part


def _free_name(root: Path, name: str) -> str:
    taken, again = name, 1
    while (root / taken).exists() or is_strange(root / f"{taken}{PART_SUFFIX}"):
        again += 1
        taken = f"{name}.{again}"
    return taken


def written(folder: Path, name: str, buffers: Iterable[Buffer]) -> FileSum:
    """Write and sync a file; compute the checksums from the buffers, without reading the file.

    Raises TierError, TierFull.
    """
    upload = LocalStore(folder).upload(name, 1 << 62, CHUNK_BYTES)
    summing = Summing()
    try:
        for number, chunk in enumerate(_chunks(buffers)):
            summing.add(chunk)
            upload.write(number, chunk)
        upload.size_bytes = summing.size_bytes
        upload.finish()
    finally:
        upload.close()
    return summing.end(name)


def _chunks(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    """Yield chunks of CHUNK_BYTES (the last may be shorter), aligned for O_DIRECT.

    Aligned input is not copied.
    """
    import mmap

    room = memoryview(mmap.mmap(-1, CHUNK_BYTES))
    held = 0
    for buffer in buffers:
        rest = memoryview(buffer).cast("B")
        while len(rest):
            if not held and len(rest) >= CHUNK_BYTES and _is_aligned(rest):
                yield rest[:CHUNK_BYTES]
                rest = rest[CHUNK_BYTES:]
                continue
            now = min(len(rest), CHUNK_BYTES - held)
            room[held : held + now] = rest[:now]
            held, rest = held + now, rest[now:]
            if held == CHUNK_BYTES:
                yield room
                held = 0
    if held:
        yield room[:held]


def _is_aligned(view: memoryview) -> bool:
    address: int = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
    return address % PAGE_BYTES == 0


def commit(
    part: DraftCheckpoint,
    *,
    step: int | None = None,
    world_size: int = 1,
    metrics: dict[str, float] | None = None,
    kind: str = "files",
) -> Path:
    """Commit a part.  On return the checkpoint survives a loss of power.

    Files written by `write`, or with sums handed in, are not read again.  Other files are read
    once for their checksums, and synced.  metrics: values for retention rules ("loss": 0.3).
    Raises SaveError: no files, or a link or an unfinished file inside; TierError, TierFull.
    """
    step = part.step if step is None else step
    with _spoken(part.path):
        own_sums, notes = _known_sums(part)
        files, folders = _files_of(part.path)
        if not files:
            raise SaveError(f"{part.path}: nothing was written; a checkpoint has a file at least")
        sums = []
        for name in files:
            status = (part.path / name).stat()
            file_sum = own_sums.get(name)
            if file_sum is None or file_sum.size_bytes != status.st_size:
                file_sum = sum_of(part.path, name, is_synced=False)
            sums.append(file_sum)
        manifest = Manifest(tuple(sums), step, world_size, kind, dict(metrics or {})).now()
        for note in notes:
            note.unlink()
        with (part.path / INSIDE).open("wb") as file:
            file.write(to_json(manifest))
            file.flush()
            os.fsync(file.fileno())
        (part.path / MARK).unlink(missing_ok=True)
        for folder in sorted(folders, reverse=True):
            fsync_folder(part.path / folder)
        fsync_folder(part.path)
        path = part.root / part.name
        if path.exists():  # rename would replace an empty folder
            raise SaveError(f"{path}: is there already; a committed name is never written again")
        part.path.rename(path)
        fsync_folder(part.root)
    _let_go(part)
    return path


def _let_go(part: DraftCheckpoint) -> None:
    lock, part._lock = part._lock, None
    if lock is not None:
        lock.close()


def _known_sums(part: DraftCheckpoint) -> tuple[dict[str, FileSum], list[Path]]:
    sums, notes = dict(part.sums), []
    for note in part.path.glob(f"{HANDED_IN}*.json"):
        if note.stat().st_size <= MOST_BYTES:
            sums |= {file.name: file for file in parse(note.read_bytes(), str(note)).files}
        notes.append(note)
    return sums, notes


def _files_of(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of files and of folders below a folder, without Penstock's own files.

    Raises SaveError: an unfinished file, or a link.
    """
    files, folders = [], []
    for here, inner, names in os.walk(folder):
        start = Path(here).relative_to(folder)
        folders += [os.fspath(start / name) for name in inner]
        for name in names:
            inner_name = os.fspath(start / name)
            if inner_name in (MARK, INSIDE) or inner_name.startswith(HANDED_IN):
                continue
            if name.endswith(PART):
                raise SaveError(
                    f"{folder / inner_name}: not finished; a writer ended, or still writes"
                )
            files.append(inner_name)
        for name in (*inner, *names):
            if os.path.islink(os.path.join(here, name)):  # noqa: PTH114, PTH118 - many names
                raise SaveError(f"{here}/{name}: a link; a checkpoint holds its own bytes")
    return sorted(files), folders


def sum_of(folder: Path, name: str, *, is_synced: bool = True) -> FileSum:
    """Read a file for its checksums; sync the file too unless is_synced.  Raises OSError."""
    summing = Summing()
    with (folder / name).open("rb", buffering=0) as file:
        if not is_synced:
            os.fsync(file.fileno())
        block = bytearray(CHUNK_BYTES)
        while count := file.readinto(block):
            summing.add(memoryview(block)[:count])
    return summing.end(name)


def abort(part: DraftCheckpoint) -> None:
    """Remove a part and its files.  Raises TierError."""
    _let_go(part)
    if part.path.exists():
        discard(part.path, part.root)


# --- removal --------------------------------------------------------------------------------------


def discard(path: Path, root: Path) -> None:
    """Remove a Penstock file or folder: first the name, atomically, then the bytes.

    After a crash between the two steps the data lies in STATE/trash, and sweep() removes the data.
    Raises TierError.
    """
    with _spoken(path):
        gone = _trash_of(root) / uuid.uuid4().hex
        path.rename(gone)
        fsync_folder(path.parent)
        _remove(gone)


def discard_as_found(path: Path, root: Path, size_bytes: int, mtime_ns: int | None) -> bool:
    """Remove a file if its size and time of writing are unchanged.

    Return False if a newer file has the name; the newer file keeps the name.  Raises TierError.
    """
    with _spoken(path):
        gone = _trash_of(root) / uuid.uuid4().hex
        try:
            path.rename(gone)  # first: another program could replace the file after a check
        except FileNotFoundError:
            return True
        there = path.parent / gone.readlink() if gone.is_symlink() else gone  # may be relative
        try:
            status = there.stat()
            is_found = (status.st_size, status.st_mtime_ns) == (size_bytes, mtime_ns)
        except FileNotFoundError:  # the target of a link was removed before
            is_found = True
        if not is_found:
            try:
                os.link(gone, path, follow_symlinks=False)
            except FileExistsError:  # a still newer file has the name
                pass
            except OSError:  # the file system has no hard links
                gone.rename(path)
        fsync_folder(path.parent)
        _remove(gone)
        return is_found


def _trash_of(root: Path) -> Path:
    trash = root / STATE / "trash"
    trash.mkdir(parents=True, exist_ok=True)
    return trash


def _remove(path: Path) -> None:
    """Remove a file or a folder.  Another process may remove the same path meanwhile."""

    def failed(function: object, where: str, info: tuple[type, BaseException, object]) -> None:
        if not isinstance(info[1], FileNotFoundError):
            raise info[1]

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=failed)
    else:
        path.unlink(missing_ok=True)


def sweep(root: AnyPath, *, keep: Iterable[str] = ()) -> int:
    """Remove the remains of crashes from a tier.

    Removed are Penstock's parts without a writer, the trash and unfinished files.  The caller must
    hold the tier's claim.

    keep: names of checkpoints with parts that will be continued.  Return the bytes freed.  Raises
    TierError.
    """
    folder, kept = Path(root), tuple(keep)
    freed = 0
    with _spoken(folder):
        for path in (folder / STATE / "trash").glob("*"):
            if not is_alive(path):
                freed += _swept(path, _remove)
        for here, inner, files in os.walk(folder):
            at = Path(here)
            for name in [entry for entry in inner if entry.endswith(PART_SUFFIX)]:
                inner.remove(name)
                part = at / name
                is_kept = os.fspath(part.relative_to(folder))[: -len(PART_SUFFIX)] in kept
                if not is_kept and not part.is_symlink() and _is_left(part):
                    freed += _swept(part, lambda path: discard(path, folder))
            for name in [
                stored for stored in files if stored.startswith(".") and stored.endswith(PART)
            ]:
                file = os.fspath((at / name[1 : -len(PART)]).relative_to(folder))
                # A kept checkpoint that is no folder: the name or the prefix of the files.
                if not any(
                    file == kept_name or file.startswith(f"{kept_name}.") for kept_name in kept
                ):
                    freed += _swept(at / name, Path.unlink)
    return freed


def _is_left(part: Path) -> bool:
    """Return True if Penstock made a part, the part must be removed, and no process writes there.

    Return False where the state of the part cannot be read.
    """
    try:
        return not is_strange(part) and not is_alive(part) and not (part / PLACE).exists()
    except OSError:
        return False


def _swept(path: Path, removed: Callable[[Path], None]) -> int:
    """Return the bytes freed; 0 after a failed removal, because a job must begin nevertheless."""
    try:
        size = _size_of(path)
        removed(path)
    except (OSError, TierError):
        return 0
    return size


def is_strange(part: Path) -> bool:
    """Return True if a part exists and Penstock did not make the part."""
    is_ours = any((part / mark).exists() for mark in (MARK, INSIDE, PLACE))
    return not is_ours and part.exists()


def _size_of(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size if path.exists() else 0
    size = 0
    for at, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                size += (Path(at) / name).lstat().st_size
    return size


def exchange(new: str | Path, old: str | Path) -> None:
    """Exchange two names of one file system atomically.

    Raises OSError: ENOSYS or EINVAL where the file system has no exchange.
    """
    libc = _libc()
    if not hasattr(libc, "renameat2"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    here = -100  # AT_FDCWD
    if libc.renameat2(here, os.fsencode(new), here, os.fsencode(old), RENAME_EXCHANGE):
        import ctypes

        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), os.fspath(old))


@lru_cache(maxsize=1)
def _libc() -> Any:
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


@contextmanager
def _spoken(where: Path, now: str = "the checkpoint does not count") -> Iterator[None]:
    """Translate OSError to TierError or TierFull."""
    try:
        yield
    except OSError as error:
        path = error.filename or where
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TierFull(
                f"{path}: no room: {error.strerror}; `penstock save prune` frees some", str(path), 0
            ) from error
        raise TierError(f"{path}: {error.strerror or error}; {now}") from error


# --- claims of a folder ---------------------------------------------------------------------------


class Claim:
    """A tier's lock for one role, held until close() or until the process ends.

    is_sure: False: the file system keeps no locks, so two jobs would not notice each other.
    """

    def __init__(self, descriptor: int, is_sure: bool) -> None:
        self._descriptor, self.is_sure = descriptor, is_sure
        _claims.add(self)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1

    def __enter__(self) -> "Claim":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()


_claims: weakref.WeakSet[Claim] = weakref.WeakSet()


def _forget_claims() -> None:
    """Close the claims in a forked child: a loader worker may outlive the training process."""
    for claimed in list(_claims):
        claimed.close()


os.register_at_fork(after_in_child=_forget_claims)


def claim(
    root: AnyPath, role: str, wait_s: float = 0.0, listener: Callable[[str], None] | None = None
) -> Claim:
    """Claim a tier: role "job" for the process that saves there, "drain" for the drainer.

    wait_s: how long to wait for another holder to end, such as a child of a killed job;
    listener: receives a message when the waiting begins.  Raises SaveError: another process holds
    the claim; TierError: the tier cannot be written.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return _claim(Path(root), role)
        except SaveError as error:
            if time.monotonic() >= end_s:
                raise
            if listener is not None:
                listener(f"{error}; waiting for it to end")
                listener = None
        time.sleep(CLAIM_LOOK_S)


def _claim(folder: Path, role: str) -> Claim:
    path = folder / STATE / f"{role}.lock"
    check_state(folder)
    with _spoken(folder, "name a folder that can be written"):
        make_folders(folder / STATE)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
            os.close(descriptor)
            raise TierError(f"{path}: no file of Penstock's own lies there; remove it")
        is_sure = True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(descriptor, 200, 0).decode(errors="replace").strip()
            os.close(descriptor)
            raise SaveError(
                f"{folder}: another {role} has this folder ({holder or 'unknown'}); one "
                f"{role} for one folder: end it, or use another folder"
            ) from None
        except OSError:
            is_sure = False
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()} on {socket.gethostname()}".encode(), 0)
    return Claim(descriptor, is_sure)
