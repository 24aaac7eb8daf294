"""When a checkpoint counts: written into NAME.part, synced, with its manifest, then renamed.

Knows local folders and the order of the system calls; knows no tensor and no framework.

    part = begin(root, step)                 an empty folder, NAME.part
    part.write("model.pt", buffers)          or any program puts files there
    path = commit(part, world_size=4)        root/NAME, whole and durable, or an error and no NAME

The order is the point: every file is flushed and synced, then the manifest, then the folders, then
comes the rename, then the sync of the parent.  A committed name is never written again.
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
MARK = "penstock-part.json"  # in a part: it is ours, and may be swept
# In a part whose durable files move, one after another, to places beside the part: the future
# manifest of the files.  Such a part is finished, and not swept.
PLACE = "penstock-place.json"
PLACE_FOLDER = "penstock-place-folder.json"  # the same, where the places are in the folder NAME
# In a part that is complete: the future manifest of a copy that counts together with others.
WAITS = "penstock-waits.json"
HANDED_IN = ".penstock-sums-"  # in a part: what another rank has written
PAGE_BYTES = 4096
RENAME_EXCHANGE = 2  # linux/fs.h
SWEPT_TIMES = 5  # tries to begin a part while another process sweeps
CLAIM_LOOK_S = 0.2


def name_of_step(step: int) -> str:
    """Eight digits, so that names sort as steps do."""
    return f"step-{step:08d}"


@dataclass(slots=True)
class DraftCheckpoint:
    """A checkpoint that does not count yet.  path: its folder; several processes may write there,
    each its own files."""

    root: Path
    name: str
    step: int | None
    sums: dict[str, FileSum] = field(default_factory=dict)
    _lock: "Claim | None" = field(default=None, repr=False, compare=False)  # of who has begun it

    @property
    def path(self) -> Path:
        return self.root / f"{self.name}{PART_SUFFIX}"

    def write(self, name: str, buffers: Iterable[Buffer]) -> FileSum:
        """Writes a file of the checkpoint, synced when this returns; past the page cache where
        that pays.  Raises TierError; TierFull where there is no room."""
        found = written(self.path, name, buffers)
        self.sums[name] = found
        return found

    def hand_in(self) -> None:
        """Of a rank that will not commit: leaves the checksums of what it wrote for the one that
        does, which need not read it again.  Raises TierError."""
        if self.sums:
            mine = to_json(Manifest(tuple(self.sums.values()), self.step).now())
            LocalStore(self.path).put(f"{HANDED_IN}{uuid.uuid4().hex}.json", mine)


def begin(root: AnyPath, step: int | None, *, name: str | None = None) -> DraftCheckpoint:
    """An empty part for a step; what an earlier attempt has left of it is removed.

    It is ours until commit(), abort(), or the end of the Part or the process: nobody sweeps it.
    name: instead of name_of_step(step).  Where that name is committed already (a job that begins
    again at an older step), the part gets the next free one: NAME.2 and so on.
    Raises TierError: the tier is missing, read-only or full; SaveError: no name, or another process
    writes this checkpoint now.
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
    """A part with its mark in it and locked, under its name from one moment to the next: a part
    without a mark is a stranger's, one whose mark is locked is being written.

    Raises TierError; SaveError: another process has just begun it.
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
        except FileNotFoundError:  # swept before it was locked
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
    """Whether some process writes this part now.  False where the file system knows no locks."""
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
    """The part that another rank has begun under this name.  Raises SaveError: it is not there."""
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
    """Writes a file, synced when this returns, and sums it while its bytes are at hand.

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
    """CHUNK_BYTES each but the last, in memory that O_DIRECT takes; copied only if they are not."""
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
    """Makes a part count.  When this returns, the checkpoint survives the machine's power.

    Files that came by `write`, or whose sums were handed in, are not read again; others are read
    once for their checksums and synced.  metrics: what retention may judge by ("loss": 0.3).
    Raises SaveError: no files, a link or an unfinished file among them; TierError, TierFull.
    """
    step = part.step if step is None else step
    with _spoken(part.path):
        known, notes = _known_sums(part)
        files, folders = _files_of(part.path)
        if not files:
            raise SaveError(f"{part.path}: nothing was written; a checkpoint has a file at least")
        sums = []
        for name in files:
            status = (part.path / name).stat()
            found = known.get(name)
            if found is None or found.size_bytes != status.st_size:
                found = sum_of(part.path, name, is_synced=False)
            sums.append(found)
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
        if path.exists():  # rename would take the place of an empty folder
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
    known, notes = dict(part.sums), []
    for note in part.path.glob(f"{HANDED_IN}*.json"):
        if note.stat().st_size <= MOST_BYTES:
            known |= {file.name: file for file in parse(note.read_bytes(), str(note)).files}
        notes.append(note)
    return known, notes


def _files_of(folder: Path) -> tuple[list[str], list[str]]:
    """Names of files and of folders below a folder; nothing of ours among them."""
    files, folders = [], []
    for here, inner, names in os.walk(folder):
        start = Path(here).relative_to(folder)
        folders += [os.fspath(start / name) for name in inner]
        for name in names:
            found = os.fspath(start / name)
            if found in (MARK, INSIDE) or found.startswith(HANDED_IN):
                continue
            if name.endswith(PART):
                raise SaveError(f"{folder / found}: not finished; a writer ended, or still writes")
            files.append(found)
        for name in (*inner, *names):
            if os.path.islink(os.path.join(here, name)):  # noqa: PTH114, PTH118 - many names
                raise SaveError(f"{here}/{name}: a link; a checkpoint holds its own bytes")
    return sorted(files), folders


def sum_of(folder: Path, name: str, *, is_synced: bool = True) -> FileSum:
    """Reads a file for its checksums; not is_synced: also makes it durable.  Raises OSError."""
    summing = Summing()
    with (folder / name).open("rb", buffering=0) as file:
        if not is_synced:
            os.fsync(file.fileno())
        block = bytearray(CHUNK_BYTES)
        while count := file.readinto(block):
            summing.add(memoryview(block)[:count])
    return summing.end(name)


def abort(part: DraftCheckpoint) -> None:
    """Removes a part and what is in it.  Raises TierError."""
    _let_go(part)
    if part.path.exists():
        discard(part.path, part.root)


# --- what goes ------------------------------------------------------------------------------------


def discard(path: Path, root: Path) -> None:
    """Removes something of ours: first its name, in one moment, then its bytes.  Raises TierError.

    A crash between the two leaves a nameless thing in STATE/trash, which sweep() removes.
    """
    with _spoken(path):
        gone = _trash_of(root) / uuid.uuid4().hex
        path.rename(gone)
        fsync_folder(path.parent)
        _remove(gone)


def discard_as_found(path: Path, root: Path, size_bytes: int, mtime_ns: int | None) -> bool:
    """Removes a file that is still of this size and time.  False: another one has its name by now,
    and has it after this.  Raises TierError."""
    with _spoken(path):
        gone = _trash_of(root) / uuid.uuid4().hex
        try:
            path.rename(gone)  # asked under its own name, it could be replaced before it goes
        except FileNotFoundError:
            return True
        there = path.parent / gone.readlink() if gone.is_symlink() else gone  # it is not there now
        try:
            status = there.stat()
            is_found = (status.st_size, status.st_mtime_ns) == (size_bytes, mtime_ns)
        except FileNotFoundError:  # what a link led to went before
            is_found = True
        if not is_found:
            try:
                os.link(gone, path, follow_symlinks=False)
            except FileExistsError:  # a newer one yet
                pass
            except OSError:  # no links here
                gone.rename(path)
        fsync_folder(path.parent)
        _remove(gone)
        return is_found


def _trash_of(root: Path) -> Path:
    trash = root / STATE / "trash"
    trash.mkdir(parents=True, exist_ok=True)
    return trash


def _remove(path: Path) -> None:
    """A file or a folder; another process may remove the same at the same time."""

    def failed(function: object, where: str, info: tuple[type, BaseException, object]) -> None:
        if not isinstance(info[1], FileNotFoundError):
            raise info[1]

    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, onerror=failed)
    else:
        path.unlink(missing_ok=True)


def sweep(root: AnyPath, *, keep: Iterable[str] = ()) -> int:
    """Removes what crashes have left in a tier: parts that are ours and that nobody writes, what
    was on its way out, files that were not finished.  Only for the one that holds the tier's claim.

    keep: names of checkpoints whose parts go on to be filled.  Returns bytes freed.  Raises
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
            for name in [one for one in inner if one.endswith(PART_SUFFIX)]:
                inner.remove(name)
                part = at / name
                is_kept = os.fspath(part.relative_to(folder))[: -len(PART_SUFFIX)] in kept
                if not is_kept and not part.is_symlink() and _is_left(part):
                    freed += _swept(part, lambda path: discard(path, folder))
            for name in [one for one in files if one.startswith(".") and one.endswith(PART)]:
                file = os.fspath((at / name[1 : -len(PART)]).relative_to(folder))
                # A checkpoint that is no folder: its file, or what its files begin with.
                if not any(file == one or file.startswith(f"{one}.") for one in kept):
                    freed += _swept(at / name, Path.unlink)
    return freed


def _is_left(part: Path) -> bool:
    """Return True if a part is ours, must be removed, and has no writer.  Returns False where the
    state of the part cannot be read."""
    try:
        return not is_strange(part) and not is_alive(part) and not (part / PLACE).exists()
    except OSError:
        return False


def _swept(path: Path, removed: Callable[[Path], None]) -> int:
    """Bytes freed; 0 where it cannot be removed: that keeps no job from beginning."""
    try:
        size = _size_of(path)
        removed(path)
    except (OSError, TierError):
        return 0
    return size


def is_strange(part: Path) -> bool:
    """Whether a part that is there was not begun by us."""
    is_ours = any((part / one).exists() for one in (MARK, INSIDE, PLACE))
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
    """Two names of one file system change places in one moment.  Raises OSError: ENOSYS or EINVAL
    where the file system cannot."""
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
    """Errors of the system, in our words."""
    try:
        yield
    except OSError as error:
        path = error.filename or where
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TierFull(
                f"{path}: no room: {error.strerror}; `penstock save prune` frees some", str(path), 0
            ) from error
        raise TierError(f"{path}: {error.strerror or error}; {now}") from error


# --- one job in a folder --------------------------------------------------------------------------


class Claim:
    """A tier taken for one purpose until close(), or until the process ends.

    is_sure: the file system keeps locks; else two jobs would not see each other.
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
    """A loader's worker that outlives its training holds nothing of it."""
    for one in list(_claims):
        one.close()


os.register_at_fork(after_in_child=_forget_claims)


def claim(
    root: AnyPath, role: str, wait_s: float = 0.0, told: Callable[[str], None] | None = None
) -> Claim:
    """Takes a tier: role "job" for the one that saves there, "drain" for the one that drains it.

    wait_s: how long another process may still have it, as what a killed job has left at work does;
    told: is given a sentence when that begins.  Raises SaveError: another process has it;
    TierError: it cannot be written.
    """
    end_s = time.monotonic() + wait_s
    while True:
        try:
            return _claim(Path(root), role)
        except SaveError as error:
            if time.monotonic() >= end_s:
                raise
            if told is not None:
                told(f"{error}; waiting for it to end")
                told = None
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
