"""Copies files to a tier: whole or not at all, checked, at most at a given rate, by many at once.

Knows sources and places; knows no run and chooses nothing.  Who copies a file holds a lock on its
part, so that processes, ranks and two stagings at once share the work and none is done twice.
Large files are copied in chunks, and what is known of them lies beside their part: a copying that
was killed goes on there.
"""

import errno
import fcntl
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from penstock import tiers
from penstock.errors import TierError
from penstock.registry import Tier
from penstock.stage.manifest import (
    CHUNK_BYTES,
    MOST_PATH_BYTES,
    Entry,
    Identity,
    Map,
    Place,
    hashes,
    write_map,
)

if TYPE_CHECKING:
    from penstock.stores import Found, Store

__all__ = [
    "Copied",
    "Corrupted",
    "Pace",
    "Status",
    "Verified",
    "Wanted",
    "below",
    "checksum_of",
    "copy",
    "drop",
    "evict",
    "find",
    "status",
    "stored_bytes",
    "verify",
]

Progress = Callable[[int, int], None]

THREADS = 8  # enough for a server that answers in a millisecond; a disk gets no more from 16
PIECE_BYTES = 4 << 20
KIND = "xxh3_64"  # checksums that catch what disks and copies do to bytes, not what people do
BLOCK_BYTES = 4096  # what a copy's size is rounded up to, on most file systems
ROOM_BYTES = 64 << 20  # stays free on the tier: others write there too
# A change within one tick of a file system's clock shows in no time: these tick with the kernel,
# at most 10 ms; servers and FUSE may tick in whole seconds, FAT in two.
LOCAL = ("ext4", "xfs", "btrfs", "tmpfs", "ext3", "ext2", "zfs", "f2fs")
LOCAL_TICK_NS, OTHER_TICK_NS = 20_000_000, 2_000_000_000
ATTEMPTS = 3
HEARD_S = 0.1

# File systems whose inode numbers are made up at each mount.
FORGETFUL = ("fuse", "fuseblk", "overlay", "9p", "virtiofs")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A file to be copied, by the path with which programs open it.  gain_s: see Entry."""

    path: str
    gain_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Copied:
    """What came of a copying.  skipped: reasons and how many files each; was_there: of an earlier
    copying, unchanged; elsewhere: being copied by another process; notes: what else to know."""

    copied: int
    copied_bytes: int
    was_there: int
    elsewhere: int
    skipped: dict[str, int]
    notes: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Corrupted:
    """A copy that is not what the manifest says."""

    entry: Entry
    why: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What verifying found.  stale: their sources have changed or are gone."""

    copies: int
    bytes_read: int
    corrupted: tuple[Corrupted, ...]
    stale: int


# --- checksums -----------------------------------------------------------------------------------


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...

    def digest(self) -> bytes: ...


def _new_hash() -> _Hash:
    import xxhash

    found: _Hash = xxhash.xxh3_64()
    return found


def _checksum(digests: Sequence[bytes], chunk_bytes: int) -> str:
    if len(digests) == 1:
        return f"{KIND}:{digests[0].hex()}"
    whole = _new_hash()
    for digest in digests:
        whole.update(digest)
    return f"{KIND}/{chunk_bytes}:{whole.digest().hex()}"


def checksum_of(path: tiers.AnyPath, kind: str, tell: Callable[[int], None] | None = None) -> str:
    """The checksum of a file that is there, as the manifest has it.  kind: what stands there before
    the colon.  Raises OSError; ValueError: no kind that is known here."""
    name, _, told = kind.partition("/")
    chunk_bytes = int(told or CHUNK_BYTES)
    if name != KIND or chunk_bytes < BLOCK_BYTES:
        raise ValueError(f"{kind}: no checksum that is known here")
    digests = []
    buffer = memoryview(bytearray(PIECE_BYTES))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        for first in range(0, max(size, 1), chunk_bytes):
            hashed = _new_hash()
            at, end = first, min(first + chunk_bytes, size)
            while at < end:
                got = os.preadv(descriptor, [buffer[: end - at]], at)
                if not got:
                    break
                hashed.update(buffer[:got])
                at += got
                if tell is not None:
                    tell(got)
            digests.append(hashed.digest())
    finally:
        os.close(descriptor)
    return _checksum(digests, chunk_bytes)


# --- what is to be copied ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Source:
    """A file as it was found: one for all its names."""

    path: str  # resolved
    identity: Identity
    names: tuple[str, ...]
    gain_s: float
    is_ino_kept: bool
    tick_ns: int
    before: tuple[int, int] | None = None  # the copy that was there when it was found wanting
    store: "Store | None" = None  # where it is, if not in this machine's file systems
    name: str = ""  # in the store

    @property
    def copy(self) -> str:
        """Where its copy goes, below staged/."""
        if self.store is None:
            return self.path.lstrip("/")
        return "url/" + self.path.replace("://", "/")


def below(folder: tiers.AnyPath) -> Iterator[Wanted]:
    """All files below a folder, by path; links to folders are not followed.  Raises TierError."""
    if not os.path.isdir(folder):  # noqa: PTH112 - also bytes that are no UTF-8
        yield Wanted(os.path.abspath(folder))  # noqa: PTH100
        return
    for place, folders, names in os.walk(os.path.abspath(folder)):  # noqa: PTH100
        folders.sort()
        yield from (Wanted(f"{place}/{name}") for name in sorted(names))


def find(
    wanted: Iterable[Wanted], place: Place, progress: Callable[[int], None] | None = None
) -> tuple[list[_Source], dict[str, int]]:
    """Resolves and asks each file; hard links and symlinks of one file become one source.

    Also says why others were left out, and how many for each reason.
    """
    found: dict[tuple[int, int], _Source] = {}
    skipped: dict[str, int] = {}
    folders: dict[str, str] = {}
    kinds: dict[int, str] = {}
    ours = os.path.realpath(place.tier.path) + "/"
    for number, want in enumerate(wanted):
        if progress is not None and number % 1000 == 0:
            progress(number)
        try:
            path, status = _resolved(want.path, folders)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "no path that a file can have"
            _count(skipped, "gone" if isinstance(error, FileNotFoundError) else str(why).lower())
            continue
        why_not = _unfit(path, status, ours, place)
        if why_not:
            _count(skipped, why_not)
            continue
        key = (status.st_dev, status.st_ino)
        before = found.get(key)
        names = {want.path, path, *((before.path, *before.names) if before else ())}
        first = before.path if before else path
        if status.st_dev not in kinds:
            kinds[status.st_dev] = tiers.mount_of(path).kind.partition(".")[0]
        kind = kinds[status.st_dev]
        found[key] = _Source(
            first,
            Identity.of(status),
            tuple(sorted(names - {first})),
            want.gain_s + (before.gain_s if before else 0.0),
            kind not in FORGETFUL,
            LOCAL_TICK_NS if kind in LOCAL else OTHER_TICK_NS,
        )
    return list(found.values()), skipped


def _identity(told: "Found") -> Identity:
    """A store tells no more; where it tells no time, a file of the same size is the same."""
    return Identity(told.size_bytes, told.mtime_ns or 0, 0, 0, 0)


def _find_in(store: "Store", place: Place) -> tuple[list[_Source], dict[str, int]]:
    """The files in a store.  Raises TierError."""
    found: list[_Source] = []
    skipped: dict[str, int] = {}
    for told in store.list():
        source = _Source(
            f"{store.url.rstrip('/')}/{told.name}",
            _identity(told),
            (),
            0.0,
            False,
            0,
            None,
            store,
            told.name,
        )
        if {"", ".", ".."} & set(source.copy.split("/")):
            _count(skipped, "a name that no path can have")
        elif len(os.fsencode(f"{place.copies}/{source.copy}")) > MOST_PATH_BYTES:
            _count(skipped, "path too long for a copy")
        else:
            found.append(source)
    if not found and not skipped:
        raise TierError(f"{store.url}: holds no file that can be seen")
    return found, skipped


def _count(skipped: dict[str, int], why: str) -> None:
    skipped[why] = skipped.get(why, 0) + 1


def _resolved(path: str, folders: dict[str, str]) -> tuple[str, os.stat_result]:
    """A path without links, and what is there.  Folders are resolved once."""
    folder, _, name = path.rpartition("/")
    if folder not in folders:
        folders[folder] = os.path.realpath(folder or "/", strict=True).rstrip("/")
    resolved = f"{folders[folder]}/{name}"
    status = os.lstat(resolved)
    if stat.S_ISLNK(status.st_mode) or name in ("", ".", ".."):
        resolved = os.path.realpath(resolved, strict=True)
        status = os.stat(resolved)  # noqa: PTH116 - text, as all paths here
    return resolved, status


def _unfit(path: str, status: os.stat_result, ours: str, place: Place) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if path.startswith(ours):
        return "lies on the tier already"
    if len(os.fsencode(f"{place.copies}{path}")) > MOST_PATH_BYTES:
        return "path too long for a copy"
    if not os.access(path, os.R_OK):
        return "not readable"
    return ""


# --- the rate, and who may stop -------------------------------------------------------------------


class Pace:
    """Lets all threads together pass so many bytes per second; None: all they want."""

    def __init__(
        self,
        limit_bps: float | None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.limit_bps = limit_bps
        self._clock, self._sleep = clock, sleep
        self._lock = threading.Lock()
        self._free_s = clock()  # when the next byte may pass

    def wait(self, n_bytes: int) -> None:
        """Returns when these bytes may pass."""
        if not self.limit_bps:
            return
        with self._lock:
            now_s = self._clock()
            # What was not used is saved for a tenth of a second, no longer.
            self._free_s = max(self._free_s, now_s - 0.1) + n_bytes / self.limit_bps
            wait_s = self._free_s - now_s
        if wait_s > 0:
            self._sleep(wait_s)


class _Stopped(Exception):  # noqa: N818 - no error: another thread has one, or the user
    """The copying is over before its end."""


@dataclass(slots=True)
class _Work:
    """What the threads of one copying share."""

    place: Place
    pace: Pace
    total_bytes: int
    progress: Progress | None
    now: Callable[[Entry], None] | None = None
    is_ordered: bool = False  # as given, not the large first
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_over: bool = False
    errors: list[BaseException] = field(default_factory=list)
    done_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    elsewhere: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    fresh: set[str] = field(default_factory=set)
    folders: set[str] = field(default_factory=set)
    large: list["_Large"] = field(default_factory=list)

    def moved(self, n_bytes: int) -> None:
        with self.lock:
            self.done_bytes += n_bytes

    def skip(self, why: str, source: _Source) -> None:
        with self.lock:
            _count(self.skipped, why)
            self.done_bytes += source.identity.size_bytes

    def tell(self, entry: Entry) -> None:
        """Appends to the manifest, before the copy is in its place: so whoever finds a copy finds
        its line.  Raises OSError."""
        try:
            self.place.append([entry])
        except TierError as error:
            raise (error.__cause__ if isinstance(error.__cause__, OSError) else error) from None

    def finished(self, entry: Entry) -> None:
        """A copy is in its place."""
        with self.lock:
            self.copied += 1
            self.copied_bytes += entry.identity.size_bytes
            self.fresh.add(entry.copy)
        if self.now is not None:
            self.now(entry)


# --- one file ------------------------------------------------------------------------------------


class _Part:
    """A copy under way, held by a lock on it.  None of ours: another process holds it."""

    def __init__(self, work: _Work, source: _Source) -> None:
        self.work, self.source = work, source
        name = f"{int(hashes([os.fsencode(source.path)])[0]):016x}"
        self.path = work.place.parts / f"{name}.part"
        self.known = work.place.parts / f"{name}.known"
        self.descriptor = -1
        self.reader = -1
        self.moved_bytes = 0  # of this attempt

    def hold(self) -> bool:
        """Opens and locks the part.  False: another process is at it, or has just been."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            try:
                is_it = os.path.samestat(os.fstat(descriptor), self.path.stat())
            except FileNotFoundError:
                is_it = False
            if is_it:  # not one that its holder has just renamed or removed
                self.descriptor = descriptor
                if not self.is_made():
                    return True
                self.close()
                return False
            os.close(descriptor)

    def is_made(self) -> bool:
        """Whether another process has made the copy since it was looked for."""
        path = f"{self.work.place.copies}/{self.source.copy}"
        try:
            status = os.lstat(path)
        except OSError:
            return False
        one = self.source.identity
        is_it = (status.st_size, status.st_mtime_ns) == (one.size_bytes, one.mtime_ns)
        return is_it and (status.st_ino, status.st_ctime_ns) != self.source.before

    def begin(self) -> None:
        """Opens the source.  Raises _Changed, OSError, TierError."""
        if self.source.store is not None:
            self.check()
            return
        self.reader = os.open(self.source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with suppress(OSError):
            os.posix_fadvise(self.reader, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        self.check()

    def check(self) -> None:
        """Raises _Changed: the source is not what it was when it was found."""
        if self.source.store is not None:
            told = self.source.store.stat(self.source.name)
            if told is None or _identity(told) != self.source.identity:
                raise _Changed
            return
        now = Identity.of(os.fstat(self.reader))
        if not now.is_same(self.source.identity):
            raise _Changed

    def chunk(self, first: int) -> bytes:
        """Copies CHUNK_BYTES from there and returns their digest.  Raises _Changed, _Stopped."""
        hashed = _new_hash()
        buffer = _buffer()
        at, end = first, min(first + CHUNK_BYTES, self.source.identity.size_bytes)
        while at < end:
            if self.work.is_over:
                raise _Stopped
            piece = buffer[: end - at]
            self.work.pace.wait(len(piece))
            got = self.read(piece, at)
            if not got:
                raise _Changed
            hashed.update(piece[:got])
            put = 0
            while put < got:
                put += os.pwrite(self.descriptor, piece[put:got], at + put)
            at += got
            self.moved_bytes += got
            self.work.moved(got)
        return hashed.digest()

    def read(self, piece: memoryview, at: int) -> int:
        """Bytes of the source from there."""
        if self.source.store is None:
            return os.preadv(self.reader, [piece], at)
        data = self.source.store.read(self.source.name, at, len(piece))
        piece[: len(data)] = data
        return len(data)

    def finish(self, digests: Sequence[bytes]) -> None:
        """Makes the part a copy.  Raises _Changed, TierError, OSError."""
        size, mtime_ns = self.source.identity.size_bytes, self.source.identity.mtime_ns
        self.check()
        os.ftruncate(self.descriptor, size)
        mode = 0o400 if self.reader < 0 else os.fstat(self.reader).st_mode & 0o555 | 0o400
        os.fchmod(self.descriptor, mode)
        os.utime(self.descriptor, ns=(mtime_ns, mtime_ns))
        os.fsync(self.descriptor)
        if os.fstat(self.descriptor).st_mtime_ns != mtime_ns:
            raise TierError(
                f"{self.work.place.tier.path}: this file system keeps times too coarsely; a copy "
                "could not be told from a changed one, choose another tier"
            )
        copy = self.source.copy
        path = f"{self.work.place.copies}/{copy}"
        folder = path.rpartition("/")[0]
        with self.work.lock:
            self.work.folders.add(folder)
        source = self.source
        entry = Entry(
            source.path,
            copy,
            source.identity,
            _checksum(digests, CHUNK_BYTES),
            source.names,
            source.gain_s,
            source.is_ino_kept,
        )
        # A copy that the line is not about must not stand under its name, wherever a kill comes:
        # its size and time may be the same.
        with suppress(FileNotFoundError):
            os.unlink(path)  # noqa: PTH108
        self.work.tell(entry)
        try:
            os.rename(self.path, path)  # noqa: PTH104
        except FileNotFoundError:
            os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
            os.rename(self.path, path)  # noqa: PTH104
        with suppress(OSError):
            self.known.unlink(missing_ok=True)
        self.work.finished(entry)

    def close(self, is_kept: bool = False) -> None:
        """Lets go; what is no copy yet is removed, unless another attempt goes on with it."""
        if self.reader >= 0:
            os.close(self.reader)
        if self.descriptor >= 0:
            if not is_kept:
                with suppress(OSError):
                    if os.path.samestat(os.fstat(self.descriptor), self.path.stat()):
                        self.path.unlink()
                        self.known.unlink(missing_ok=True)
            os.close(self.descriptor)
        self.reader = self.descriptor = -1


class _Changed(Exception):  # noqa: N818 - an answer, not an error
    """The source is not what it was."""


_threads = threading.local()


def _buffer() -> memoryview:
    """This thread's own."""
    if not hasattr(_threads, "buffer"):
        _threads.buffer = memoryview(bytearray(PIECE_BYTES))
    found: memoryview = _threads.buffer
    return found


class _Large:
    """A file of several chunks, which several threads copy."""

    def __init__(self, work: _Work, source: _Source) -> None:
        self.part = _Part(work, source)
        self.firsts = range(0, source.identity.size_bytes, CHUNK_BYTES)
        self.digests: dict[int, bytes] = {}
        self.left = len(self.firsts)
        self.has_failed = False

    def begin(self) -> list[int] | None:
        """What is to be copied; None: another process is at it.  Raises _Changed, OSError."""
        if not self.part.hold():
            return None
        try:
            self.part.begin()
            self.digests = self._remembered()
        except BaseException:
            self.part.close()
            raise
        done = sum(
            min(CHUNK_BYTES, self.part.source.identity.size_bytes - first) for first in self.digests
        )
        self.part.work.moved(done)
        missing = [first for first in self.firsts if first not in self.digests]
        self.left = len(missing)
        return missing

    def _remembered(self) -> dict[int, bytes]:
        """The chunks that an earlier attempt at this very file has made durable."""
        head = self._head()
        size = self.part.source.identity.size_bytes
        try:
            lines = self.part.known.read_bytes().split(b"\n")[:-1]
        except OSError:
            lines = []
        found = {}
        if lines and lines[0] == head and os.fstat(self.part.descriptor).st_size == size:
            for line in lines[1:]:
                first, _, digest = line.partition(b" ")
                with suppress(ValueError):
                    number, known = int(first), bytes.fromhex(digest.decode())
                    if number in self.firsts and len(known) == 8:
                        found[number] = known
        if not found:
            os.ftruncate(self.part.descriptor, 0)
            os.ftruncate(self.part.descriptor, size)
            self.part.known.write_bytes(head + b"\n")
        return found

    def _head(self) -> bytes:
        one = self.part.source.identity
        facts = (KIND, CHUNK_BYTES, one.size_bytes, one.mtime_ns, one.ctime_ns)
        return repr((*facts, self.part.source.path)).encode("ascii", "backslashreplace")

    def copy_chunk(self, first: int) -> None:
        """Copies one; whoever copies the last finishes the file."""
        digest = self.part.chunk(first)
        os.fdatasync(self.part.descriptor)
        with open(self.part.known, "ab") as file:
            file.write(b"%d %s\n" % (first, digest.hex().encode()))
        with self.part.work.lock:
            self.digests[first] = digest

    def finish(self) -> None:
        self.part.finish([self.digests[first] for first in self.firsts])


# --- many files ----------------------------------------------------------------------------------


def _copy_small(work: _Work, source: _Source) -> None:
    for attempt in range(ATTEMPTS):
        part = _Part(work, source)
        if not part.hold():
            with work.lock:
                work.elsewhere += 1
                work.done_bytes += source.identity.size_bytes
            return
        try:
            part.begin()
            part.finish([part.chunk(0)])
            return
        except _Changed:
            part.close()
            work.moved(-part.moved_bytes)
            again = None
            if attempt + 1 < ATTEMPTS:
                time.sleep(source.tick_ns / 1e9)
                again = _found_again(source)
            if again is None or time.time_ns() - _touched_ns(again) < again.tick_ns:
                work.skip("changed while it was copied", source)
                return
            source = again
        finally:
            part.close()


def _found_again(source: _Source) -> _Source | None:
    """The source as it is now; None: it is gone, or large, or no file of this machine."""
    if source.store is not None:
        return None
    try:
        status = os.stat(source.path)  # noqa: PTH116
    except OSError:
        return None
    if not stat.S_ISREG(status.st_mode) or status.st_size > CHUNK_BYTES:
        return None
    return replace(source, identity=Identity.of(status))


def _tasks(work: _Work, sources: Sequence[_Source]) -> Iterator[Callable[[], None]]:
    """What threads take one after the other; large files first, so that none is last alone."""
    ordered = sources
    if not work.is_ordered:
        ordered = sorted(sources, key=lambda one: -one.identity.size_bytes)
    for source in ordered:
        if source.identity.size_bytes <= CHUNK_BYTES:
            yield _task(work, source, _copy_small)
            continue
        large = _Large(work, source)
        work.large.append(large)
        try:
            firsts = large.begin()
        except _Changed:
            work.skip("changed while it was copied", source)
            continue
        except FileNotFoundError:
            work.skip("gone", source)
            continue
        if firsts is None:
            with work.lock:
                work.elsewhere += 1
                work.done_bytes += source.identity.size_bytes
        elif not firsts:
            _end_large(work, large)
        for first in firsts or ():
            yield _chunk_task(work, large, first)


def _task(work: _Work, source: _Source, do: Callable[[_Work, _Source], None]) -> Callable[[], None]:
    def run() -> None:
        try:
            do(work, source)
        except FileNotFoundError as error:
            if error.filename != source.path:
                raise
            work.skip("gone", source)
        except PermissionError as error:
            if error.filename != source.path:
                raise
            work.skip("not readable", source)

    return run


def _chunk_task(work: _Work, large: _Large, first: int) -> Callable[[], None]:
    def run() -> None:
        try:
            if not large.has_failed:
                large.copy_chunk(first)
        except _Changed:
            large.has_failed = True
        except BaseException:
            large.has_failed = True
            raise
        finally:
            with work.lock:
                large.left -= 1
                is_last = not large.left
            if is_last and not work.is_over:
                _end_large(work, large)
            elif is_last:
                large.part.close()

    return run


def _end_large(work: _Work, large: _Large) -> None:
    try:
        if large.has_failed:
            raise _Changed
        large.finish()
    except _Changed:
        work.skip("changed while it was copied", large.part.source)
    finally:
        large.part.close()


def _run(work: _Work, tasks: Iterator[Callable[[], None]], n_threads: int) -> None:
    """Does all tasks; raises the first error of a thread, once all have ended."""
    taking = threading.Lock()

    def labour() -> None:
        try:
            while not work.is_over:
                with taking:
                    task = next(tasks, None)
                if task is None:
                    return
                task()
        except _Stopped:
            pass
        except BaseException as error:
            work.is_over = True
            work.errors.append(error)

    threads = [threading.Thread(target=labour, daemon=True) for _ in range(n_threads)]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(HEARD_S)  # in pieces, so that Ctrl-C is heard between them
                if work.progress is not None:
                    work.progress(min(work.done_bytes, work.total_bytes), work.total_bytes)
    finally:
        work.is_over = True
        for thread in threads:
            thread.join()
        for large in work.large:
            large.part.close()
    if work.errors:
        raise work.errors[0]


def copy(
    tier: Tier,
    wanted: Iterable[Wanted],
    *,
    store: "Store | None" = None,
    rank: int = 0,
    world_size: int = 1,
    limit_bps: float | None = None,
    threads: int = THREADS,
    progress: Progress | None = None,
    pace: Pace | None = None,
    is_live: bool = False,
    ready: Callable[[], None] | None = None,
) -> Copied:
    """Copies files to a tier, those of this rank's share, and puts its map in place.

    store: copies all that is in it instead (s3://, gs://, sftp:// and other URLs of fsspec); these
    copies are found under their own path on the tier, as programs cannot open a URL.
    What is there already and unchanged stays.  progress is called with bytes done and bytes in all.
    is_live: in the order given, with a map that programs may use from the beginning (`ready` is
    called then): each copy is served as soon as it is there.
    Raises TierError: the tier is missing, read-only, too small for what is wanted, or became full;
    what was copied until then is valid and in the map.
    """
    begun_s = time.monotonic()
    place = Place(tier)
    place.make()
    if store is not None and store.url.startswith(("sftp:", "ssh:")):
        threads = 1  # one connection, which answers one after the other
    sources, skipped = find(wanted, place) if store is None else _find_in(store, place)
    mine = _share(sources, rank, world_size)
    missing, there = _missing(place, mine)
    _sweep(place, missing)
    _check_room(place, missing)
    total = sum(source.identity.size_bytes for source in missing)
    work = _Work(place, pace or Pace(limit_bps), total, progress, skipped=skipped)
    reserve = _Reserve(place, len(missing))
    work.is_ordered = is_live
    live = _Live(place, missing) if is_live else None
    if live is not None:
        work.now = live.serve
    if ready is not None:
        ready()
    try:
        _copy_all(work, missing, threads)
    except OSError as error:
        raise _told(work, error) from error
    finally:
        if live is not None:
            live.close()
        reserve.give_back()
        _publish(work, there)
    return Copied(
        work.copied,
        work.copied_bytes,
        len(mine) - len(missing),
        work.elsewhere,
        work.skipped,
        tuple(_notes(place, mine)),
        time.monotonic() - begun_s,
    )


class _Live:
    """The tier's map while copies come: it names them all, and serves those that are there."""

    def __init__(self, place: Place, missing: Sequence[_Source]) -> None:
        self._place = place
        self._lock = threading.Lock()
        self._filling = place.begin_filling()
        known = place.entries()
        coming = [_coming(source) for source in missing]
        pending = frozenset(entry.copy for entry in coming)
        with place.locked():
            write_map(place, [*known.values(), *coming], pending=pending, fresh=pending)
        self._map = Map(place.map)

    def serve(self, entry: Entry) -> None:
        with self._lock:
            if self._map.is_retired():  # another staging has put its own in place
                self._map.close()
                self._map = Map(self._place.map)
            self._map.mark(entry, "is_staged", 1, entry.identity)

    def close(self) -> None:
        self._map.close()
        os.close(self._filling)


def _coming(source: _Source) -> Entry:
    return Entry(
        source.path,
        source.copy,
        source.identity,
        "",
        source.names,
        source.gain_s,
        source.is_ino_kept,
    )


class _Reserve:
    """Room for the map and the manifest, kept for when the tier is full."""

    def __init__(self, place: Place, count: int) -> None:
        self._path = place.own / f".reserve-{os.getpid()}"
        for path in place.own.glob(".reserve-*"):  # of those that were killed
            if not os.path.exists(f"/proc/{path.name.rpartition('-')[2]}"):  # noqa: PTH110
                path.unlink(missing_ok=True)
        known = sum(_size_of(path) for path in (place.manifest, place.map))
        try:
            with open(self._path, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, known + 65536 + 1024 * count)
        except OSError:
            self.give_back()  # full already: the copying will say so

    def give_back(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _share(sources: Sequence[_Source], rank: int, world_size: int) -> list[_Source]:
    """By the path alone, so that ranks which find different files still agree on who copies one."""
    if not 0 <= rank < world_size:
        raise TierError(f"rank {rank} of {world_size}: ranks count from 0 to one less")
    if world_size == 1:
        return list(sources)
    numbers = hashes([os.fsencode(source.path) for source in sources]) >> 17
    return [
        source
        for source, number in zip(sources, numbers.tolist(), strict=True)
        if number % world_size == rank
    ]


def _missing(place: Place, sources: Sequence[_Source]) -> tuple[list[_Source], list[Entry]]:
    """Those that have no valid copy; and of the others those whose entry has to say more."""
    # First what is there, then what is told of it: see _Work.tell.
    stamps = [_stamp(place, source) for source in sources]
    known = place.entries()
    dropped = _dropped(place)
    missing, more = [], []
    for source, stamp in zip(sources, stamps, strict=True):
        entry = known.get(source.copy)
        is_there = (
            entry is not None
            and entry.source == source.path
            and entry.identity.is_same(source.identity, source.is_ino_kept)
            and not _why_bad(place, entry)
            and dropped.isdisjoint(map(os.fsencode, (source.path, *source.names)))
        )
        if not is_there or entry is None:
            missing.append(replace(source, before=stamp))
        elif not set(source.names) <= set(entry.names) or source.gain_s not in (0.0, entry.gain_s):
            names = tuple(sorted({*entry.names, *source.names}))
            more.append(replace(entry, names=names, gain_s=source.gain_s or entry.gain_s))
    return missing, more


def _stamp(place: Place, source: _Source) -> tuple[int, int] | None:
    try:
        status = os.lstat(f"{place.copies}/{source.copy}")
    except OSError:
        return None
    return status.st_ino, status.st_ctime_ns


def _dropped(place: Place) -> set[bytes]:
    try:
        with Map(place.map) as found:
            return found.dropped()
    except TierError:
        return set()


def _why_bad(place: Place, entry: Entry) -> str:
    """What can be seen of a copy without reading it; empty: it is as it was made."""
    try:
        status = os.lstat(place.copy_path(entry))
    except OSError as error:
        return "gone" if isinstance(error, FileNotFoundError) else str(error.strerror)
    if not stat.S_ISREG(status.st_mode):
        return "no regular file"
    if status.st_size != entry.identity.size_bytes:
        return f"{status.st_size:,} bytes instead of {entry.identity.size_bytes:,}"
    if status.st_mtime_ns != entry.identity.mtime_ns:
        return "changed"
    return ""


def _sweep(place: Place, missing: Sequence[_Source]) -> None:
    """Removes the parts that a kill left, but those of large files which are wanted now."""
    wanted = {
        f"{number:016x}"
        for number in hashes(
            [
                os.fsencode(source.path)
                for source in missing
                if source.identity.size_bytes > CHUNK_BYTES
            ]
        ).tolist()
    }
    for path in place.parts.iterdir():
        if path.stem in wanted:
            continue
        if path.suffix == ".known":
            if not path.with_suffix(".part").exists():
                path.unlink(missing_ok=True)
            continue
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
                path.with_suffix(".known").unlink(missing_ok=True)
            finally:
                os.close(descriptor)


def stored_bytes(size_bytes: Any) -> Any:
    """What a copy takes on the tier: whole blocks.  A number or an array."""
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def _check_room(place: Place, missing: Sequence[_Source]) -> None:
    """Raises TierError: what is missing does not fit."""
    tier = place.tier
    needed = sum(stored_bytes(source.identity.size_bytes) for source in missing)
    if not needed:
        return
    again = {source.copy for source in missing}
    held = sum(
        stored_bytes(entry.identity.size_bytes)
        for copy, entry in place.entries().items()
        if copy not in again
    )
    cure = (
        f"penstock stage plan RUN --to {tier.name} chooses what fits, "
        f"penstock stage evict {tier.name} makes room"
    )
    if tier.capacity_bytes is not None and held + needed > tier.capacity_bytes:
        raise TierError(
            f"{tier.name}: {needed / 1e6:,.1f} MB are to be copied, and of its "
            f"{tier.capacity_bytes / 1e6:,.1f} MB {held / 1e6:,.1f} MB are taken; {cure}"
        )
    free = tiers.free_bytes(tier.path)
    if needed > free:
        raise TierError(
            f"{tier.name}: {needed / 1e6:,.1f} MB are to be copied and "
            f"{free / 1e6:,.1f} MB are free on {tier.path}; {cure}"
        )


def _copy_all(work: _Work, missing: Sequence[_Source], threads: int) -> None:
    """First what has been left alone for a tick of its file system's clock, then the young."""
    now_ns, seen_s = time.time_ns(), time.monotonic()
    young = [one for one in missing if now_ns - _touched_ns(one) < one.tick_ns]
    if not young:
        _run(work, _tasks(work, missing), threads)
        return
    names = {one.path for one in young}
    _run(work, _tasks(work, [one for one in missing if one.path not in names]), threads)
    ready = []
    # From when it was seen, not from what its times say: a server's clock may be ahead.
    time.sleep(max(0.0, max(one.tick_ns for one in young) / 1e9 - (time.monotonic() - seen_s)))
    for source in young:
        again = _found_again(source) if source.identity.size_bytes <= CHUNK_BYTES else source
        if again is None or again.identity != source.identity:
            work.skip("still being written" if again else "gone", source)
        else:
            ready.append(source)
    work.is_over = False
    _run(work, _tasks(work, ready), threads)


def _touched_ns(source: _Source) -> int:
    return max(source.identity.mtime_ns, source.identity.ctime_ns)


def _told(work: _Work, error: OSError) -> TierError:
    tier = work.place.tier
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return TierError(
            f"{tier.name}: full after {work.copied:,} files, {work.copied_bytes / 1e6:,.1f} MB "
            f"({error.strerror}); these are staged and valid, "
            f"penstock stage evict {tier.name} makes room"
        )
    where = error.filename or tier.path
    return TierError(
        f"{os.fsdecode(where)}: {error.strerror}; {work.copied:,} files were copied and are valid"
    )


def _publish(work: _Work, more: Sequence[Entry]) -> None:
    """Makes names durable, tells the manifest, puts the map in place."""
    place = work.place
    for folder in work.folders:
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    place.append(more)
    with place.locked():
        write_map(place, place.entries().values(), fresh=frozenset(work.fresh))
    place.compact()


def _notes(place: Place, sources: Sequence[_Source]) -> Iterator[str]:
    if any(source.store is not None for source in sources):
        yield f"the copies lie below {place.copies / 'url'}: give the program that path"
    device = place.tier.path.stat().st_dev
    same = sum(source.identity.dev == device for source in sources)
    if same:
        yield (
            f"{same:,} of {len(sources):,} files lie on the same device as tier "
            f"{place.tier.name}: reading their copies gains nothing"
        )


# --- what is there -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """A tier's copies.  stale: their source changed; orphans: it is gone; missing: the copy is;
    dropped: a program opened the source for writing, renamed or removed it; parts: under way, or
    left by a kill."""

    copies: int
    size_bytes: int
    gain_s: float
    stale: int
    orphans: int
    missing: int
    dropped: int
    parts: int
    part_bytes: int
    free_bytes: int


def _source_is(entry: Entry) -> str:
    """same, changed or gone."""
    if entry.is_url:
        return "same"
    try:
        now = Identity.of(os.stat(entry.source))  # noqa: PTH116
    except OSError:
        return "gone"
    return "same" if now.is_same(entry.identity, entry.is_ino_kept) else "changed"


def status(tier: Tier, progress: Progress | None = None) -> Status:
    """Looks at each copy and its source, without reading them.  Raises TierError."""
    place = Place(tier)
    entries = place.entries()
    sources, missing = [], 0
    for number, entry in enumerate(entries.values()):
        if progress is not None and number % 1000 == 0:
            progress(number, len(entries))
        sources.append(_source_is(entry))
        missing += bool(_why_bad(place, entry))
    parts = list(place.parts.glob("*.part")) if place.parts.is_dir() else []
    sizes = []
    for path in parts:
        with suppress(OSError):
            sizes.append(path.stat().st_size)
    return Status(
        len(entries),
        sum(entry.identity.size_bytes for entry in entries.values()),
        sum(entry.gain_s for entry in entries.values()),
        sources.count("changed"),
        sources.count("gone"),
        missing,
        len(_dropped(place)),
        len(sizes),
        sum(sizes),
        tiers.free_bytes(tier.path),
    )


def verify(
    tier: Tier,
    *,
    threads: int = THREADS,
    progress: Progress | None = None,
    is_mending: bool = False,
) -> Verified:
    """Reads every copy and compares it with its checksum.  is_mending: evicts the corrupted.

    Raises TierError: no such tier.
    """
    place = Place(tier)
    entries = list(place.entries().values())
    total = sum(entry.identity.size_bytes for entry in entries)
    work = _Work(place, Pace(None), total, progress)
    bad: list[Corrupted] = []

    def check(entry: Entry) -> None:
        why = _why_bad(place, entry)
        kind = entry.checksum.partition(":")[0]
        if not why:
            try:
                found = checksum_of(place.copy_path(entry), kind, work.moved)
                why = "" if found == entry.checksum else "other bytes than were copied"
            except (OSError, ValueError) as error:
                why = f"cannot be checked: {getattr(error, 'strerror', None) or error}"
        if why:
            with work.lock:
                bad.append(Corrupted(entry, why))

    def tasks() -> Iterator[Callable[[], None]]:
        for entry in sorted(entries, key=lambda one: -one.identity.size_bytes):
            yield lambda entry=entry: check(entry)  # type: ignore[misc]

    _run(work, tasks(), threads)
    stale = sum(_source_is(entry) != "same" for entry in entries)
    bad.sort(key=lambda one: one.entry.copy)
    if is_mending and bad:
        drop(place, [one.entry for one in bad])
    return Verified(len(entries), work.done_bytes, tuple(bad), stale)


def drop(place: Place, entries: Sequence[Entry]) -> None:
    """Takes copies away: first out of the map, then out of the manifest, then the files."""
    with place.locked(), suppress(TierError), Map(place.map) as found:
        for entry in entries:
            found.mark(entry, "is_staged", 0)
    place.append(gone=[entry.copy for entry in entries])
    for entry in entries:
        path = place.copy_path(entry)
        with suppress(OSError):
            path.unlink()
        for folder in path.parents:
            if folder == place.copies:
                break
            try:
                folder.rmdir()
            except OSError:
                break
    with place.locked():
        write_map(place, place.entries().values())


def evict(
    tier: Tier, *, free_bytes: int | None = None, is_stale_only: bool = False
) -> tuple[int, int]:
    """Removes copies: all, or only those of changed and removed sources, or as many as give this
    much room, first the useless, then by least gain per byte.  Copies and bytes removed.

    Programs that have one open read on; later opens get the original.  Raises TierError.
    """
    place = Place(tier)
    entries = list(place.entries().values())
    useless = {
        entry.copy for entry in entries if _source_is(entry) != "same" or _why_bad(place, entry)
    }
    if is_stale_only:
        chosen = [entry for entry in entries if entry.copy in useless]
    elif free_bytes is None:
        chosen = entries
    else:
        entries.sort(
            key=lambda one: (
                one.copy not in useless,
                one.gain_s / max(1, one.identity.size_bytes),
                -one.identity.size_bytes,
            )
        )
        chosen, freed = [], 0
        for entry in entries:
            if freed >= free_bytes:
                break
            chosen.append(entry)
            freed += stored_bytes(entry.identity.size_bytes)
    if chosen:
        drop(place, chosen)
    if place.parts.is_dir():
        _sweep(place, ())
    return len(chosen), sum(entry.identity.size_bytes for entry in chosen)
