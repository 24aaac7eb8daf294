"""Copy one file to a tier: complete or absent, checked, held by a lock on the file's part.

Knows a source and a part; knows no other file.  A copying process holds a lock on the file's part,
so processes, ranks and two stagings at once share the work and copy no file twice.  Large files are
copied by chunks, and the finished chunks are listed beside the part: a later copying continues
after a kill.
"""

import errno
import fcntl
import mmap
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from penstock.errors import TierError
from penstock.places import tiers
from penstock.stage import manifest
from penstock.stage.checksum import KIND, checksum, new_hash
from penstock.stage.manifest import Identity, StagedCopy, TierPlace, hash_of, hashes
from penstock.stage.source import SourceFile, found_again, identity_in, touched_ns
from penstock.stage.work import CopyStopped, Work

__all__ = ["Changed", "CopyPart", "Large", "Tasks", "is_under_way", "link_in", "sweep"]

PIECE_BYTES = 4 << 20
PAGE_BYTES = 4096  # the unit of O_DIRECT for offset, length and memory
ATTEMPTS = 3
SWEPT_S = 1e-3  # the longest time a sweep usually holds a part
PUT_ATTEMPTS = 100  # each takes microseconds, as does a concurrent eviction


def _name(place: TierPlace, path: str) -> str:
    return f"{place.parts}/{hash_of(os.fsencode(path)):016x}"


def is_under_way(place: TierPlace, entry: StagedCopy) -> bool:
    """Return True if another staging has written the copy's line and is about to put the copy in
    place."""
    try:
        descriptor = os.open(f"{_name(place, entry.source)}.part", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return not os.path.lexists(place.copy_path(entry))
    finally:
        os.close(descriptor)
    return False  # a kill left the part


def _locked(path: str, flags: int, lock: int) -> int:
    """Open a part and lock it.  The copying process has the lock alone; a looking or sweeping
    process shares the lock for a moment.

    Raises BlockingIOError; OSError.
    """
    while True:
        try:
            # A FIFO put there would wait for a writer.
            descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except PermissionError:
            if flags == os.O_RDONLY:
                raise
            # A kill came just before the rename: the part had been made read-only.
            with suppress(FileNotFoundError):
                descriptor = _locked(path, os.O_RDONLY, fcntl.LOCK_EX)
                try:
                    os.fchmod(descriptor, 0o600)
                finally:
                    os.close(descriptor)
            continue
        try:
            fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
            # The holder may just have renamed or removed the part: then open again.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # noqa: PTH116
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


class CopyPart:
    """A copy under way, held by a lock on its part.  descriptor: -1 while another process holds the
    lock."""

    def __init__(self, work: Work, source: SourceFile) -> None:
        self.work, self.source = work, source
        # Text, as all paths here: of small files there are thousands a second.
        name = _name(work.place, source.path)
        self.path, self.sums_file = f"{name}.part", f"{name}.known"
        self.descriptor = -1
        self.reader = -1
        self.is_direct = False
        self.is_put = False  # the part has become the copy
        self.moved_bytes = 0  # in the current attempt

    def hold(self) -> bool:
        """Open and lock the part.  Return False if another process is making the copy, or just
        has."""
        while self.descriptor < 0:
            try:
                self.descriptor = _locked(
                    self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, fcntl.LOCK_EX
                )
            except BlockingIOError:
                if not self.is_shared():
                    return False
                time.sleep(SWEPT_S)
        if self.is_made():
            self.close()
            return False
        return True

    def is_shared(self) -> bool:
        """Return True if the process with the lock is not making the copy."""
        with suppress(FileNotFoundError):
            try:
                os.close(_locked(self.path, os.O_RDONLY, fcntl.LOCK_SH))
            except BlockingIOError:
                return False
        return True

    def is_made(self) -> bool:
        """Return True if another process has made the copy since the search."""
        path = f"{self.work.place.copies}/{self.source.copy}"
        try:
            status = os.lstat(path)
        except OSError:
            return False
        identity = self.source.identity
        is_it = (status.st_size, status.st_mtime_ns) == (identity.size_bytes, identity.mtime_ns)
        return is_it and (status.st_ino, status.st_ctime_ns) != self.source.before

    def begin(self) -> None:
        """Open the source.  Raises Changed, OSError, TierError."""
        if self.source.store is not None:
            self.check()
            return
        self.reader = os.open(self.source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.check()
        # Past the page cache: half the CPU time, and the job's data stay in memory. Pages in memory
        # are read from memory; where the kernel cannot list them, the whole file is read through
        # the cache.
        cached = tiers.cached_bytes(self.reader)
        self.is_direct = (
            cached is not None
            and 2 * cached < self.source.identity.size_bytes
            and _set_direct(self.reader, True)
        )
        if not self.is_direct:
            _in_order(self.reader)

    def check(self) -> int:
        """Return the source's mode, 0 in a store.  Raises Changed: the source has changed since the
        search."""
        if self.source.store is not None:
            state = self.source.store.stat(self.source.name)
            if state is None or identity_in(state) != self.source.identity:
                raise Changed
            return 0
        status = os.fstat(self.reader)
        if not Identity.of(status).is_same(self.source.identity):
            raise Changed
        return status.st_mode

    def chunk(self, first: int) -> bytes:
        """Copy a chunk from the offset and return the digest.  Raises Changed, Stopped."""
        hashed = new_hash()
        buffer = _buffer()
        at, end = first, min(first + manifest.CHUNK_BYTES, self.source.identity.size_bytes)
        while at < end:
            if self.work.is_over:
                raise CopyStopped
            wanted = min(len(buffer), end - at)
            self.work.pace.wait(wanted)
            got = self.read(buffer, wanted, at)
            if not got:
                raise Changed
            hashed.update(buffer[:got])
            put = 0
            while put < got:
                put += os.pwrite(self.descriptor, buffer[put:got], at + put)
            at += got
            self.moved_bytes += got
            self.work.moved(got)
        return hashed.digest()

    def read(self, buffer: memoryview, wanted: int, at: int) -> int:
        """Read a limited number of the source's bytes from the offset into a buffer of whole
        pages."""
        if self.source.store is not None:
            try:
                data = self.source.store.read(self.source.name, at, wanted)
            except TierError:
                self.check()  # a changed or missing source ends this copy alone
                raise
            buffer[: len(data)] = data
            return len(data)
        if self.is_direct:
            pages = -(-wanted // PAGE_BYTES) * PAGE_BYTES
            try:
                return min(wanted, os.preadv(self.reader, [buffer[:pages]], at))
            except OSError as error:
                # Some file systems refuse only now; or a read ended amid a page.
                if error.errno != errno.EINVAL:
                    raise
            self.is_direct = False
            _set_direct(self.reader, False)
            _in_order(self.reader)
        return os.preadv(self.reader, [buffer[:wanted]], at)

    def finish(self, digests: Sequence[bytes]) -> None:
        """Make the part a copy.  Raises Changed, TierError, OSError."""
        size, mtime_ns = self.source.identity.size_bytes, self.source.identity.mtime_ns
        mode = self.check() & 0o555 | 0o400
        os.ftruncate(self.descriptor, size)
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
        if folder not in self.work.folders:
            if link := link_in(folder, str(self.work.place.copies)):
                raise InTheWay(link)
            with self.work.lock:
                self.work.folders.add(folder)
        source = self.source
        entry = StagedCopy(
            source.path,
            copy,
            source.identity,
            checksum(digests, manifest.CHUNK_BYTES),
            source.names,
            source.gain_s,
            source.is_ino_kept,
        )
        # A kill must not leave an earlier copy under the name of the new line: the size and time
        # may be equal.
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            pass
        except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise InTheWay(_in_the_way(path, str(self.work.place.copies))) from error
        self.work.tell(entry)
        self._put(path, folder)
        with suppress(OSError):
            os.unlink(self.sums_file)  # noqa: PTH108
        self.work.finished(entry)

    def _put(self, path: str, folder: str) -> None:
        """Rename the part to the copy's name.  A concurrent eviction removes empty folders, even
        new folders: make the folders again."""
        for _ in range(PUT_ATTEMPTS):
            try:
                os.rename(self.path, path)  # noqa: PTH104
            except FileNotFoundError:
                with suppress(FileNotFoundError):
                    os.makedirs(folder, mode=0o700, exist_ok=True)  # noqa: PTH103
            else:
                self.is_put = True
                return
        os.rename(self.path, path)  # noqa: PTH104
        self.is_put = True

    def close(self, is_kept: bool = False) -> None:
        """Release the part.  Remove an unfinished part, unless kept for another attempt
        (is_kept)."""
        if self.reader >= 0:
            os.close(self.reader)
        if self.descriptor >= 0:
            if not is_kept and not self.is_put:
                with suppress(OSError):
                    here = os.stat(self.path)  # noqa: PTH116
                    if os.path.samestat(os.fstat(self.descriptor), here):
                        os.unlink(self.path)  # noqa: PTH108
                        os.unlink(self.sums_file)  # noqa: PTH108
            os.close(self.descriptor)
        self.reader = self.descriptor = -1


class Changed(Exception):  # noqa: N818 - an answer, not an error
    """The source has changed since the search."""


class InTheWay(Exception):  # noqa: N818 - an answer, not an error
    """A foreign file is at the path of the copy or of the copy's folder."""


def link_in(folder: str, top: str) -> str:
    """Return the first folder below `top` that is a link, or "".  Files behind a link are not
    Penstock's."""
    at = len(top)
    while at < len(folder):
        at = folder.find("/", at + 1)
        at = len(folder) if at < 0 else at
        if os.path.islink(folder[:at]):  # noqa: PTH114 - text, as all paths here
            return folder[:at]
    return ""


def _in_the_way(path: str, top: str) -> str:
    """Return the first path below `top` other than a folder, or the whole path."""
    at = len(top)
    while (at := path.find("/", at + 1)) > 0:
        if not os.path.isdir(path[:at]):  # noqa: PTH112
            return path[:at]
    return path


_threads = threading.local()


def _buffer() -> memoryview:
    """Return the thread's buffer, of whole pages."""
    if not hasattr(_threads, "buffer"):
        _threads.buffer = memoryview(mmap.mmap(-1, PIECE_BYTES))
    buffer: memoryview = _threads.buffer
    return buffer


def _set_direct(descriptor: int, is_direct: bool) -> bool:
    """Switch direct reads on or off.  Return False if the file system refuses."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))
    except OSError:
        return False
    return True


def _in_order(descriptor: int) -> None:
    """Tell the kernel the file will be read from start to end."""
    with suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)


class Large:
    """A file of several chunks, copied by several threads."""

    def __init__(self, work: Work, source: SourceFile) -> None:
        self.part = CopyPart(work, source)
        self.firsts = range(0, source.identity.size_bytes, manifest.CHUNK_BYTES)
        self.digests: dict[int, bytes] = {}
        self.left = len(self.firsts)
        self.has_failed = False
        self.is_told = False  # the reason of a failure

    def begin(self) -> list[int] | None:
        """Return the chunks to copy; None: another process copies the file.  Raises Changed,
        OSError."""
        if not self.part.hold():
            return None
        try:
            self.part.begin()
            self.digests = self._remembered()
        except BaseException:
            self.part.close()
            raise
        done = sum(
            min(manifest.CHUNK_BYTES, self.part.source.identity.size_bytes - first)
            for first in self.digests
        )
        self.part.work.moved(done)
        missing = [first for first in self.firsts if first not in self.digests]
        self.left = len(missing)
        return missing

    def _remembered(self) -> dict[int, bytes]:
        """Return the chunks an earlier attempt at the same file made durable."""
        head = self._head()
        size = self.part.source.identity.size_bytes
        try:
            with open(self.part.sums_file, "rb") as file:
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            lines = []
        digests = {}
        if lines and lines[0] == head and os.fstat(self.part.descriptor).st_size == size:
            for line in lines[1:]:
                first, _, digest = line.partition(b" ")
                with suppress(ValueError):
                    number, digest_bytes = int(first), bytes.fromhex(digest.decode())
                    if number in self.firsts and len(digest_bytes) == 8:
                        digests[number] = digest_bytes
        if not digests:
            os.ftruncate(self.part.descriptor, 0)
            os.ftruncate(self.part.descriptor, size)
            with open(self.part.sums_file, "wb") as file:
                file.write(head + b"\n")
        return digests

    def _head(self) -> bytes:
        identity = self.part.source.identity
        ino = identity.ino * self.part.source.is_ino_kept  # a store has only a mark
        facts = (
            KIND,
            manifest.CHUNK_BYTES,
            identity.size_bytes,
            identity.mtime_ns,
            identity.ctime_ns,
            ino,
        )
        return repr((*facts, self.part.source.path)).encode("ascii", "backslashreplace")

    def copy_chunk(self, first: int) -> None:
        """Copy a chunk; the thread copies the last chunk finishes the file."""
        digest = self.part.chunk(first)
        os.fdatasync(self.part.descriptor)
        with open(self.part.sums_file, "ab") as file:
            file.write(b"%d %s\n" % (first, digest.hex().encode()))
        with self.part.work.lock:
            self.digests[first] = digest

    def finish(self) -> None:
        self.part.finish([self.digests[first] for first in self.firsts])


def _copy_small(work: Work, source: SourceFile) -> None:
    for attempt in range(ATTEMPTS):
        part = CopyPart(work, source)
        if not part.hold():
            with work.lock:
                work.elsewhere += 1
                work.done_bytes += source.identity.size_bytes
            return
        try:
            part.begin()
            part.finish([part.chunk(0)])
            return
        except Changed:
            part.close()
            work.moved(-part.moved_bytes)
            again = None
            if attempt + 1 < ATTEMPTS:
                time.sleep(source.tick_ns / 1e9)
                again = found_again(source)
            if again is None or time.time_ns() - touched_ns(again) < again.tick_ns:
                work.skip("changed while it was copied", source)
                return
            source = again
        finally:
            part.close()


class Tasks:
    """The queue of a copying's threads.

    Half of the threads take the small files, the largest last.  The other half takes the large
    files by chunks; at the end all threads take chunks.  Large files wait for bandwidth and small
    files for answers, so both kinds go on side by side, and no kind is last alone.
    """

    def __init__(self, work: Work, sources: Sequence[SourceFile]) -> None:
        self._work = work
        ordered = sources
        if not work.is_ordered:
            ordered = sorted(sources, key=lambda source: -source.identity.size_bytes)
        self._left = deque(ordered)
        self._chunks: deque[Callable[[], None]] = deque()

    def take(self, thread: int) -> Callable[[], None] | None:
        """Return the next task for a thread; None: no task is left.  Only one thread at a time may
        call."""
        takes_small = thread % 2 == 1 and not self._work.is_ordered
        if takes_small and self._left and _is_small(self._left[-1]):
            return _task(self._work, self._left.pop(), _copy_small)
        while True:
            if self._chunks:
                return self._chunks.popleft()
            if not self._left:
                return None
            source = self._left.popleft()
            if _is_small(source):
                return _task(self._work, source, _copy_small)
            self._begin(source)

    def _begin(self, source: SourceFile) -> None:
        work, large = self._work, Large(self._work, source)
        work.large.append(large)
        try:
            firsts = large.begin()
        except Changed:
            work.skip("changed while it was copied", source)
            return
        except FileNotFoundError:
            work.skip("gone", source)
            return
        except PermissionError as error:
            if error.filename != source.path:
                raise
            work.skip("not readable", source)
            return
        if firsts is None:
            with work.lock:
                work.elsewhere += 1
                work.done_bytes += source.identity.size_bytes
        elif not firsts:
            _end_large(work, large)
        else:
            self._chunks.extend(_chunk_task(work, large, first) for first in firsts)


def _is_small(source: SourceFile) -> bool:
    return source.identity.size_bytes <= manifest.CHUNK_BYTES


def _task(
    work: Work, source: SourceFile, do: Callable[[Work, SourceFile], None]
) -> Callable[[], None]:
    def run() -> None:
        try:
            do(work, source)
        except InTheWay as what:
            work.skip_for(what, source)
        except FileNotFoundError as error:
            if error.filename != source.path:
                raise
            work.skip("gone", source)
        except PermissionError as error:
            if error.filename != source.path:
                raise
            work.skip("not readable", source)

    return run


def _chunk_task(work: Work, large: Large, first: int) -> Callable[[], None]:
    def run() -> None:
        try:
            if not large.has_failed:
                large.copy_chunk(first)
        except Changed:
            large.has_failed = True
        except BaseException:
            is_first = not large.is_told
            large.has_failed = large.is_told = True
            if is_first:
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


def _end_large(work: Work, large: Large) -> None:
    try:
        if large.is_told:
            return
        if large.has_failed:
            raise Changed
        large.finish()
    except InTheWay as what:
        work.skip_for(what, large.part.source)
    except Changed:
        work.skip("changed while it was copied", large.part.source)
    finally:
        large.part.close()


def sweep(place: TierPlace, wanted_now: Sequence[SourceFile]) -> None:
    """Remove the parts a kill left, except parts of large files wanted now."""
    wanted = {
        f"{number:016x}"
        for number in hashes(
            [
                os.fsencode(source.path)
                for source in wanted_now
                if source.identity.size_bytes > manifest.CHUNK_BYTES
            ]
        ).tolist()
    }
    with place.locked():  # alone: another process may have remade a removed part
        for path in place.parts.iterdir():
            if path.stem in wanted:
                continue
            if path.suffix == ".known":
                if not path.with_suffix(".part").exists():
                    path.unlink(missing_ok=True)
                continue
            with suppress(OSError):
                descriptor = _locked(os.fspath(path), os.O_RDONLY, fcntl.LOCK_SH)
                try:
                    path.unlink()
                    path.with_suffix(".known").unlink(missing_ok=True)
                finally:
                    os.close(descriptor)
