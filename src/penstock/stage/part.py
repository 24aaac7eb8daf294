"""One file on its way to a tier: whole or not there, checked, held by a lock on its part.

Knows one source and one part; knows no other file.  Who copies a file holds a lock on its part, so
that processes, ranks and two stagings at once share the work and none is done twice.  Large files
are copied in chunks, and what is known of them lies beside their part: a copying that was killed
goes on there.
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
PAGE_BYTES = 4096  # what O_DIRECT wants of offset, length and memory
ATTEMPTS = 3
SWEPT_S = 1e-3  # what a sweep holds a part at most, mostly
PUT_ATTEMPTS = 100  # each takes microseconds, and an eviction that is at it as long


def _name(place: TierPlace, path: str) -> str:
    return f"{place.parts}/{hash_of(os.fsencode(path)):016x}"


def is_under_way(place: TierPlace, entry: StagedCopy) -> bool:
    """Whether a copy was told of that another staging is about to put in place."""
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
    return False  # a kill left it


def _locked(path: str, flags: int, lock: int) -> int:
    """A descriptor of a part, which nobody else has locked otherwise.  Who makes the copy has it
    alone; who looks at it or sweeps shares it, for a moment.

    Raises BlockingIOError; OSError.
    """
    while True:
        try:
            # A FIFO put there would wait for a writer.
            descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
        except PermissionError:
            if flags == os.O_RDONLY:
                raise
            # A kill came when it was about to be renamed: nobody may write to it any more.
            with suppress(FileNotFoundError):
                descriptor = _locked(path, os.O_RDONLY, fcntl.LOCK_EX)
                try:
                    os.fchmod(descriptor, 0o600)
                finally:
                    os.close(descriptor)
            continue
        try:
            fcntl.flock(descriptor, lock | fcntl.LOCK_NB)
            # Not one that its holder has just renamed or removed.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):  # noqa: PTH116
                    return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


class CopyPart:
    """A copy under way, held by a lock on it.  None of ours: another process holds it."""

    def __init__(self, work: Work, source: SourceFile) -> None:
        self.work, self.source = work, source
        # Text, as all paths here: of small files there are thousands a second.
        name = _name(work.place, source.path)
        self.path, self.known = f"{name}.part", f"{name}.known"
        self.descriptor = -1
        self.reader = -1
        self.is_direct = False
        self.is_put = False  # it is the copy now
        self.moved_bytes = 0  # of this attempt

    def hold(self) -> bool:
        """Opens and locks the part.  False: another process is at it, or has just been."""
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
        """Whether nobody makes the copy who has it locked, or had."""
        with suppress(FileNotFoundError):
            try:
                os.close(_locked(self.path, os.O_RDONLY, fcntl.LOCK_SH))
            except BlockingIOError:
                return False
        return True

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
        """Opens the source.  Raises Changed, OSError, TierError."""
        if self.source.store is not None:
            self.check()
            return
        self.reader = os.open(self.source.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.check()
        # Past the page cache: half the processor time, and the job's data stay in memory.  What is
        # there already is taken from there; where the kernel cannot say, so is all.
        cached = tiers.cached_bytes(self.reader)
        self.is_direct = (
            cached is not None
            and 2 * cached < self.source.identity.size_bytes
            and _set_direct(self.reader, True)
        )
        if not self.is_direct:
            _in_order(self.reader)

    def check(self) -> int:
        """The source's mode, 0 in a store.  Raises Changed: it is not what it was when found."""
        if self.source.store is not None:
            told = self.source.store.stat(self.source.name)
            if told is None or identity_in(told) != self.source.identity:
                raise Changed
            return 0
        status = os.fstat(self.reader)
        if not Identity.of(status).is_same(self.source.identity):
            raise Changed
        return status.st_mode

    def chunk(self, first: int) -> bytes:
        """Copies a chunk from there and returns their digest.  Raises Changed, Stopped."""
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
        """Puts at most so many bytes of the source from there into a buffer of whole pages."""
        if self.source.store is not None:
            data = self.source.store.read(self.source.name, at, wanted)
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
        """Makes the part a copy.  Raises Changed, TierError, OSError."""
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
        # A copy that the line is not about must not stand under its name, wherever a kill comes:
        # its size and time may be the same.
        try:
            os.unlink(path)  # noqa: PTH108
        except FileNotFoundError:
            pass
        except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise InTheWay(_in_the_way(path, str(self.work.place.copies))) from error
        self.work.tell(entry)
        self._put(path, folder)
        with suppress(OSError):
            os.unlink(self.known)  # noqa: PTH108
        self.work.finished(entry)

    def _put(self, path: str, folder: str) -> None:
        """Gives the part the copy's name.  An eviction removes folders as they become empty, also
        those that are just being made; then they are made again."""
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
        """Lets go; what is no copy yet is removed, unless another attempt goes on with it."""
        if self.reader >= 0:
            os.close(self.reader)
        if self.descriptor >= 0:
            if not is_kept and not self.is_put:
                with suppress(OSError):
                    here = os.stat(self.path)  # noqa: PTH116
                    if os.path.samestat(os.fstat(self.descriptor), here):
                        os.unlink(self.path)  # noqa: PTH108
                        os.unlink(self.known)  # noqa: PTH108
            os.close(self.descriptor)
        self.reader = self.descriptor = -1


class Changed(Exception):  # noqa: N818 - an answer, not an error
    """The source is not what it was."""


class InTheWay(Exception):  # noqa: N818 - an answer, not an error
    """What is not ours lies where the copy belongs, or its folder."""


def link_in(folder: str, top: str) -> str:
    """The first on the way down to a folder that is a link: what lies behind it is none of ours.
    Empty: there is none."""
    at = len(top)
    while at < len(folder):
        at = folder.find("/", at + 1)
        at = len(folder) if at < 0 else at
        if os.path.islink(folder[:at]):  # noqa: PTH114 - text, as all paths here
            return folder[:at]
    return ""


def _in_the_way(path: str, top: str) -> str:
    """The first on the way down that is no folder, or what lies at its end."""
    at = len(top)
    while (at := path.find("/", at + 1)) > 0:
        if not os.path.isdir(path[:at]):  # noqa: PTH112
            return path[:at]
    return path


_threads = threading.local()


def _buffer() -> memoryview:
    """This thread's own, of whole pages."""
    if not hasattr(_threads, "buffer"):
        _threads.buffer = memoryview(mmap.mmap(-1, PIECE_BYTES))
    found: memoryview = _threads.buffer
    return found


def _set_direct(descriptor: int, is_direct: bool) -> bool:
    """Whether reads now go past the page cache, or through it, as told."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | (os.O_DIRECT if is_direct else 0))
    except OSError:
        return False
    return True


def _in_order(descriptor: int) -> None:
    """Tells the kernel that a file is read from one end to the other."""
    with suppress(OSError):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)


class Large:
    """A file of several chunks, which several threads copy."""

    def __init__(self, work: Work, source: SourceFile) -> None:
        self.part = CopyPart(work, source)
        self.firsts = range(0, source.identity.size_bytes, manifest.CHUNK_BYTES)
        self.digests: dict[int, bytes] = {}
        self.left = len(self.firsts)
        self.has_failed = False
        self.is_told = False  # why it failed

    def begin(self) -> list[int] | None:
        """What is to be copied; None: another process is at it.  Raises Changed, OSError."""
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
        """The chunks that an earlier attempt at this very file has made durable."""
        head = self._head()
        size = self.part.source.identity.size_bytes
        try:
            with open(self.part.known, "rb") as file:
                lines = file.read().split(b"\n")[:-1]
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
            with open(self.part.known, "wb") as file:
                file.write(head + b"\n")
        return found

    def _head(self) -> bytes:
        one = self.part.source.identity
        ino = one.ino * self.part.source.is_ino_kept  # of a store its mark: all that it may tell
        facts = (KIND, manifest.CHUNK_BYTES, one.size_bytes, one.mtime_ns, one.ctime_ns, ino)
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
    """What the threads of one copying take one after the other.

    Half of them take the small files, those last that are largest; the others the large ones, in
    chunks, and so do all in the end: a large file waits for bandwidth and a small one for answers,
    so that both go on beside each other, and none is last alone.
    """

    def __init__(self, work: Work, sources: Sequence[SourceFile]) -> None:
        self._work = work
        ordered = sources
        if not work.is_ordered:
            ordered = sorted(sources, key=lambda one: -one.identity.size_bytes)
        self._left = deque(ordered)
        self._chunks: deque[Callable[[], None]] = deque()

    def take(self, thread: int) -> Callable[[], None] | None:
        """The next for the thread of that number; None: all are taken.  One may ask at a time."""
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
    """Removes the parts that a kill left, but those of large files which are wanted now."""
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
    with place.locked():  # one at a time: what another removed may be there anew
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
