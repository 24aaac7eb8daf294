"""A tier as a place: its mount, the part of files in memory, and its storage ceiling.

Knows paths and the kernel; knows no run, no screen.  A ceiling is measured by threads calling
preadv and pwrite with buffers made before.  `empty_call_s` measures the cost of a call without
data: a lower bound for the time of small requests.
"""

import errno
import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from penstock.errors import TierError

__all__ = [
    "COLD_SHARE",
    "LARGE_BYTES",
    "MEMORY_KINDS",
    "SMALL_BYTES",
    "Ceiling",
    "Mount",
    "Warmth",
    "ask_anew",
    "cached_bytes",
    "device_of",
    "empty_call_s",
    "evict",
    "free_bytes",
    "mount_of",
    "read_ceiling",
    "resident_bytes",
    "size_bytes",
    "sync",
    "warmth_of",
    "write_ceiling",
]

AnyPath = str | os.PathLike[str]
Announce = Callable[[str], None]

# Files with a smaller share in memory count as cold: read-ahead of a reader that just ended, and
# pages mapped by others, often leave a few pages.
COLD_SHARE = 0.02

LARGE_BYTES = 1 << 20  # IOR's and fio's usual large request
SMALL_BYTES = (4 << 10, 64 << 10)  # a page, and the middle of loaders' request sizes
THREADS = (1, 2, 4, 8, 16)
WORTH_MORE_THREADS = 1.1  # a smaller gain is the disk's own noise

# File systems without a device: their bytes are always in memory.
MEMORY_KINDS = ("tmpfs", "ramfs", "devtmpfs", "hugetlbfs")

ASKED_AT_ONCE = 16  # files to be opened, sized or evicted
OPEN_AT_ONCE = 256  # of the 1,024 descriptors a process usually may have
RANDOM_CALLS_HZ = 150_000  # more than Python's threads make on any device; bounds the plan's memory
MIN_WRITTEN_BYTES = 16 << 20
MAX_WRITTEN_BYTES = 1 << 30
SHARE_OF_ROOM = 0.25  # the rest is the job's: a full disk ends a recording, or a training

# linux/include/uapi/asm-generic/unistd.h; the same number on x86-64, aarch64, riscv64 and ppc64.
CACHESTAT = 451


@dataclass(frozen=True, slots=True)
class Mount:
    """The mount of a path: mount point, type of the file system, and source."""

    point: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Warmth:
    """The bytes of some files in the local page cache; resident_bytes None: not known.

    is_cold: less than COLD_SHARE.  why_not_cold: why coldness cannot be claimed.  Caches of a
    server or of a host of virtual machines are not visible here.
    """

    resident_bytes: int | None
    size_bytes: int
    is_cold: bool
    why_not_cold: str


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A single measurement of a tier.  A tier's ceiling is the best of several measurements.

    path: the file read or written, or the folder of several files.  op: read or write.  order:
    sequential or random.  request_bytes: per call.  bandwidth_bps: bytes per second.  calls_hz:
    calls per second.  is_cold: of a read, see Warmth; of a write, synced within the time.  seconds:
    the duration.  unix_ns: the moment.
    """

    path: str
    mount: str
    kind: str
    op: str
    order: str
    request_bytes: int
    threads: int
    bandwidth_bps: float
    calls_hz: float
    is_cold: bool
    why_not_cold: str
    seconds: float
    unix_ns: int


# --- where, and what of it is in memory ----------------------------------------------------------


def mount_of(path: AnyPath) -> Mount:
    """Return the mount of a path.  Raises TierError: no such path, or no mount table."""
    try:
        real = os.path.realpath(path, strict=True)
        table = Path("/proc/self/mountinfo").read_bytes()
    except OSError as error:
        raise TierError(f"{os.fspath(path)}: {error.strerror}; name a path that is there") from None
    return _mount_in(table, os.fsencode(real))


def _mount_in(table: bytes, path: bytes) -> Mount:
    """Return the longest mount point above the path; of several at one place the last."""
    best = Mount("/", "unknown", "unknown")
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        places, facts = before.split(), after.split()
        if len(places) < 5 or len(facts) < 2:
            continue
        point = _unescaped(places[4])
        is_above = path == point or path.startswith(point.rstrip(b"/") + b"/")
        if is_above and len(point) >= len(os.fsencode(best.point)):
            best = Mount(os.fsdecode(point), facts[0].decode(), os.fsdecode(_unescaped(facts[1])))
    return best


def _unescaped(text: bytes) -> bytes:
    r"""Undo the kernel's escapes: space, tab, newline and \ as \040 and so on.

    Source: seq_path in fs/seq_file.c.
    """
    return re.sub(rb"\\([0-3][0-7]{2})", lambda match: bytes([int(match[1], 8)]), text)


def evict(path: AnyPath, is_synced: bool = False) -> None:
    """Ask the kernel to drop a file's pages.  is_synced: nobody has written to the file since a
    sync.

    Pages a process has mapped and touched stay, as do all pages of a file system in memory:
    `resident_bytes` shows the result.  Raises TierError.
    """
    with _Descriptor(path) as descriptor:
        if not is_synced:
            with suppress(OSError):  # read-only file systems refuse, and have nothing to write
                os.fsync(descriptor)
        with suppress(OSError):  # a refusal shows in the remaining pages
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def sync(folder: AnyPath) -> None:
    """Write out the unsynced data of a folder's file system.  Raises TierError."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    with _Descriptor(folder) as descriptor:
        if libc.syncfs(descriptor):
            why = os.strerror(ctypes.get_errno())
            raise TierError(f"{os.fspath(folder)}: cannot be written out: {why}")


def resident_bytes(path: AnyPath) -> int | None:
    """Return the bytes of a file in the page cache, in whole pages; None: shown only to the file's
    owner.

    Raises TierError.
    """
    with _Descriptor(path) as descriptor:
        status = os.fstat(descriptor)
        if not status.st_size:
            return 0
        resident, refused = _cachestat(descriptor)
        # mincore claims the whole file is resident for users without write permission.
        is_ours = os.geteuid() in (0, status.st_uid) or os.access(path, os.W_OK)
        if resident is None and refused != errno.EPERM and is_ours:
            resident = _mincore(descriptor, status.st_size)
        return None if resident is None else min(resident, status.st_size)


def cached_bytes(descriptor: int) -> int | None:
    """Return the bytes of an open file in the page cache, in whole pages.

    None: the kernel cannot or does not report (needs Linux 6.5, and a file owned or writable by the
    user).
    """
    return _cachestat(descriptor)[0]


class _Descriptor:
    """A file opened for reading; errors become TierError."""

    def __init__(self, path: AnyPath) -> None:
        self.path = path

    def __enter__(self) -> int:
        try:
            self.number = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise TierError(f"{os.fspath(self.path)}: cannot be read: {error.strerror}") from error
        return self.number

    def __exit__(self, *error: object) -> None:
        os.close(self.number)


@cache
def _libc() -> Any:
    """Return the C library, looked up once: a look-up takes 0.1 ms, and every file needs a call."""
    import ctypes

    return ctypes.CDLL(None, use_errno=True)


def _cachestat(descriptor: int) -> tuple[int | None, int]:
    """Return the bytes in the page cache, or the reason for no answer: needs Linux 6.5."""
    import ctypes

    libc = _libc()
    whole = (ctypes.c_uint64 * 2)(0, 0)  # offset and length; 0: to the end
    answer = (ctypes.c_uint64 * 5)()  # cached, dirty, in writeback, evicted, recently evicted
    if libc.syscall(CACHESTAT, descriptor, whole, answer, 0):
        return None, ctypes.get_errno()
    return answer[0] * os.sysconf("SC_PAGESIZE"), 0


def _mincore(descriptor: int, size: int) -> int | None:
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    number = ctypes.c_size_t
    libc.mmap.argtypes = (ctypes.c_void_p, number, *(ctypes.c_int,) * 3, ctypes.c_int64)
    libc.munmap.argtypes = [ctypes.c_void_p, number]
    libc.mincore.argtypes = [ctypes.c_void_p, number, ctypes.c_char_p]
    page, pages = os.sysconf("SC_PAGESIZE"), 0
    stretch = 1 << 30  # a byte for each page: 256 KiB
    for offset in range(0, size, stretch):
        length = min(stretch, size - offset)
        place = libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, offset)
        if place in (None, ctypes.c_void_p(-1).value):
            return None
        seen = ctypes.create_string_buffer(-(-length // page))
        failed = libc.mincore(place, length, seen)
        libc.munmap(place, length)
        if failed:
            return None
        pages += sum(byte & 1 for byte in seen.raw)
    return pages * page


def warmth_of(paths: Sequence[AnyPath], mount: Mount | None = None) -> Warmth:
    """Return the bytes of the files, all on one mount, in memory now.  Raises TierError."""
    counts = _of_each(resident_bytes, paths)
    size = sum(_of_each(lambda path: Path(path).stat().st_size, paths))
    resident, hidden = sum(n_bytes or 0 for n_bytes in counts), counts.count(None)
    mount = mount or (mount_of(paths[0]) if paths else None)
    if mount and mount.kind in MEMORY_KINDS:
        return Warmth(size, size, False, "in memory by nature")
    if hidden:
        return Warmth(None, size, False, f"{hidden} files of another user: cache not shown")
    if resident >= COLD_SHARE * max(1, size):
        return Warmth(resident, size, False, f"{100 * resident / size:.0f} % of it was in memory")
    return Warmth(resident, size, True, "")


def _of_each(ask: Callable[[AnyPath], Any], paths: Sequence[AnyPath]) -> list[Any]:
    """Ask each file, several at once: a server takes milliseconds for each."""
    from concurrent.futures import ThreadPoolExecutor

    if len(paths) < ASKED_AT_ONCE:
        return [ask(path) for path in paths]
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        return list(pool.map(ask, paths))


def _file_system(folder: AnyPath) -> os.statvfs_result:
    try:
        return os.statvfs(folder)
    except OSError as error:
        raise TierError(f"{os.fspath(folder)}: {error.strerror}; name a folder") from error


def free_bytes(folder: AnyPath) -> int:
    """Return the room for the user on the file system of a folder.  Raises TierError."""
    space = _file_system(folder)
    return space.f_bavail * space.f_frsize


def size_bytes(folder: AnyPath) -> int:
    """Return the total size of a folder's file system; 0: not reported.  Raises TierError."""
    space = _file_system(folder)
    return space.f_blocks * space.f_frsize


def device_of(folder: AnyPath) -> int:
    """Return the device number of files in a folder: not the folder's own number on overlayfs.

    Raises TierError: no such folder.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name, where possible
            return os.fstat(file.fileno()).st_dev
    except OSError:
        pass  # read-only or full
    try:
        return Path(folder).stat().st_dev
    except OSError as error:
        raise TierError(f"{os.fspath(folder)}: {error.strerror}; name a folder") from error


AT_FDCWD, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, STATX_BYTES = -100, 0x2000, 0x7FF, 256


def ask_anew(path: AnyPath) -> None:
    """Ask a server for a file's attributes, past any cache, as each open of a staged file does.
    Raises OSError."""
    import ctypes

    answer = ctypes.create_string_buffer(STATX_BYTES)
    if not _statx()(AT_FDCWD, os.fsencode(path), AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, answer):
        return
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EPERM):  # a kernel or a sandbox without statx
        raise OSError(number, os.strerror(number), os.fspath(path))
    os.stat(path)  # noqa: PTH116 - also bytes that are no UTF-8


@cache
def _statx() -> Callable[..., int]:
    """Return libc's statx, looked up once: the look-up takes longer than a call."""
    import ctypes

    function: Callable[..., int] = ctypes.CDLL(None, use_errno=True).statx
    return function


# --- threads that call, and what they measured ---------------------------------------------------


class _Count(NamedTuple):
    """The work of all threads between the first start and the last end."""

    calls: int
    moved_bytes: int
    seconds: float


class _Team:
    """Threads doing one kind of work until done, or until the deadline."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.deadline = 0.0
        self.is_over = False
        self.errors: list[BaseException] = []
        self.done: list[tuple[int, int, float, float]] = []

    def run(self, works: Sequence[Callable[["_Team"], tuple[int, int]]]) -> _Count:
        """Run each work in a separate thread.  Raises TierError: a thread failed."""
        ready = threading.Barrier(len(works))
        threads = [
            threading.Thread(target=self._work, args=(work, ready), daemon=True) for work in works
        ]
        self.deadline = time.perf_counter() + self.seconds
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive():
                    thread.join(0.1)  # in pieces, so Ctrl-C is handled in between
        finally:
            self.is_over = True
            ready.abort()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self.errors:
            raise self.errors[0]
        first = min(start for _, _, start, _ in self.done)
        last = max(end for _, _, _, end in self.done)
        return _Count(
            sum(calls for calls, _, _, _ in self.done),
            sum(moved for _, moved, _, _ in self.done),
            last - first,
        )

    def _work(self, work: Callable[["_Team"], tuple[int, int]], ready: threading.Barrier) -> None:
        try:
            ready.wait()
            start = time.perf_counter()
            calls, moved = work(self)
            self.done.append((calls, moved, start, time.perf_counter()))
        except threading.BrokenBarrierError:
            pass
        except BaseException as error:
            self.is_over = True
            self.errors.append(error)


class _Piece(NamedTuple):
    """Bytes of a file for one thread to read in order."""

    path: str
    offset: int
    length: int


def _read_pieces(pieces: Iterator[_Piece], team: _Team) -> tuple[int, int]:
    """Take pieces from a queue shared by all threads, and read each in large requests."""
    import mmap

    whole = mmap.mmap(-1, LARGE_BYTES)
    whole.write(bytes(LARGE_BYTES))  # the first touch of a page is not the disk's
    clock, calls, moved = time.perf_counter, 0, 0
    for path, offset, length in pieces:  # a list's iterator: each step is atomic
        if team.is_over or clock() > team.deadline:
            break
        with _Descriptor(path) as descriptor:
            with suppress(OSError):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            end = offset + length
            while offset < end and not team.is_over:
                buffer = whole if end - offset >= LARGE_BYTES else memoryview(whole)[: end - offset]
                got = _preadv(path, descriptor, [buffer], offset)
                calls += 1
                moved += got
                offset += got
                if not got or clock() > team.deadline:
                    break
    return calls, moved


def _read_blocks(
    blocks: Sequence[tuple[int, int]], request_bytes: int, team: _Team
) -> tuple[int, int]:
    """Read blocks (descriptor, offset) in the order given."""
    buffers = [bytearray(request_bytes)]
    clock, calls, moved = time.perf_counter, 0, 0
    for descriptor, offset in blocks:
        moved += _preadv("", descriptor, buffers, offset)
        calls += 1
        if clock() > team.deadline or team.is_over:
            break
    return calls, moved


def _preadv(path: str, descriptor: int, buffers: Sequence["bytearray | object"], at: int) -> int:
    try:
        return os.preadv(descriptor, buffers, at)  # type: ignore[arg-type]  # mmap is a buffer
    except OSError as error:
        raise TierError(f"{path or 'a file'}: cannot be read: {error.strerror}") from error


def _write_blocks(
    descriptor: int, offsets: Sequence[int], data: bytes, team: _Team
) -> tuple[int, int]:
    clock, calls, moved = time.perf_counter, 0, 0
    for offset in offsets:
        moved += os.pwrite(descriptor, data, offset)
        calls += 1
        if clock() > team.deadline or team.is_over:
            break
    return calls, moved


def empty_call_s(threads: int = 1) -> float:
    """Measure the seconds of a call without data: reads of /dev/null by `threads` threads."""
    with _Descriptor(os.devnull) as descriptor:
        blocks = [(descriptor, 0)] * 20_000
        count = _Team(1.0).run([partial(_read_blocks, blocks, SMALL_BYTES[0])] * threads)
    return count.seconds / count.calls


def read_ceiling(
    files: Sequence[AnyPath],
    seconds_each: float = 2.0,
    progress: Announce | None = None,
    seed: int = 0,
    place: AnyPath | None = None,
    orders: Sequence[str] = ("sequential", "random"),
) -> list[Ceiling]:
    """Measure reads of files of one mount, evicted before each measurement.

    Large requests go in order, small requests at random (orders: both, or a single order), with
    more and more threads while a step gains a tenth.  seconds_each: the limit for each number of
    threads; a measurement ends earlier at the end of the files.  Files smaller than a large request
    are opened and read within the time, and give the ceiling of small files.  place: the name and
    the mount of the result; None: taken from the files.  Raises TierError: no files, or an
    unreadable file.
    """
    names = [os.fspath(path) for path in files]
    sizes = dict(zip(names, _of_each(_size, names), strict=True))
    paths = sorted((path for path in sizes if sizes[path]), key=lambda path: -sizes[path])
    if not paths:
        raise TierError("no bytes to read: name a file, or a folder with files in it")
    mount = mount_of(place or paths[0])
    named = os.fspath(place) if place else paths[0]
    if not place and len(paths) > 1:
        named = os.path.commonpath([Path(path).absolute() for path in paths])
    # The first measurement is dropped: memory lent by a host costs time at the first touch. On a
    # virtual machine the first pass over a file reached 550 MB/s and each later pass 1,200.
    reader = _Reader(paths, sizes, mount, named, seconds_each, progress, random.Random(seed))
    reader.sequential(THREADS[0])
    ceilings = _climb(reader.sequential) if "sequential" in orders else []
    for request_bytes in SMALL_BYTES if "random" in orders else ():
        if sum(sizes[path] // request_bytes for path in reader.large_enough(request_bytes)):
            ceilings += _climb(partial(reader.random, request_bytes))
    return ceilings


def _size(path: AnyPath) -> int:
    with _Descriptor(path) as descriptor:
        return os.fstat(descriptor).st_size


def _climb(measure: Callable[[int], Ceiling]) -> list[Ceiling]:
    """Measure with more and more threads while a step gains a tenth."""
    ceilings: list[Ceiling] = []
    for threads in THREADS:
        ceilings.append(measure(threads))
        if len(ceilings) > 1 and ceilings[-1].bandwidth_bps < WORTH_MORE_THREADS * max(
            ceiling.bandwidth_bps for ceiling in ceilings[:-1]
        ):
            break
    return ceilings


@dataclass(slots=True)
class _Reader:
    """The files of a read_ceiling, evicted before each measurement."""

    paths: list[str]
    sizes: dict[str, int]
    mount: Mount
    place: str
    seconds: float
    progress: Announce | None
    chance: random.Random
    is_synced: bool = False

    def sequential(self, threads: int) -> Ceiling:
        total = sum(self.sizes.values())
        # Several pieces per thread, so all threads end together; a single thread reads one long
        # piece.
        most = total if threads == 1 else max(8, (total >> 20) // (4 * threads)) << 20
        pieces = [
            _Piece(path, offset, min(most, self.sizes[path] - offset))
            for path in self.paths
            for offset in range(0, self.sizes[path], most)
        ]
        warmth = self._evicted(f"sequential reads, {threads} threads", self.paths)
        queue = iter(pieces)
        count = _Team(self.seconds).run([partial(_read_pieces, queue)] * threads)
        return self._ceiling("sequential", LARGE_BYTES, threads, count, warmth)

    def large_enough(self, request_bytes: int) -> list[str]:
        return [path for path in self.paths if self.sizes[path] >= request_bytes][:OPEN_AT_ONCE]

    def random(self, request_bytes: int, threads: int) -> Ceiling:
        paths = self.large_enough(request_bytes)
        warmth = self._evicted(
            f"random reads of {request_bytes >> 10} KiB, {threads} threads", paths
        )
        with ExitStack() as opened:
            firsts = [0]  # number of each file's first block
            numbers = []
            for path in paths:
                numbers.append(opened.enter_context(_Descriptor(path)))
                with suppress(OSError):
                    os.posix_fadvise(numbers[-1], 0, 0, os.POSIX_FADV_RANDOM)
                firsts.append(firsts[-1] + self.sizes[path] // request_bytes)
            blocks = self._drawn(firsts, numbers, request_bytes)
            works = [
                partial(_read_blocks, blocks[thread::threads], request_bytes)
                for thread in range(min(threads, len(blocks)))
            ]
            count = _Team(self.seconds).run(works)
        return self._ceiling("random", request_bytes, threads, count, warmth)

    def _drawn(
        self, firsts: Sequence[int], numbers: Sequence[int], request_bytes: int
    ) -> list[tuple[int, int]]:
        """Return random blocks, none twice: a second read would come from memory."""
        import bisect

        most = max(1, int(self.seconds * RANDOM_CALLS_HZ))
        blocks = self.chance.sample(range(firsts[-1]), min(most, firsts[-1]))
        files = [bisect.bisect_right(firsts, block) - 1 for block in blocks]
        return [
            (numbers[file], (block - firsts[file]) * request_bytes)
            for block, file in zip(blocks, files, strict=True)
        ]

    def _evicted(self, what: str, paths: Sequence[str]) -> Warmth:
        if self.progress:
            self.progress(what)
        _of_each(partial(evict, is_synced=self.is_synced), paths)
        self.is_synced = self.is_synced or len(paths) == len(self.paths)
        return warmth_of(paths, self.mount)

    def _ceiling(
        self, order: str, request_bytes: int, threads: int, count: _Count, warmth: Warmth
    ) -> Ceiling:
        return _ceiling(
            self.place, self.mount, ("read", order, request_bytes), threads, count, warmth
        )


def _ceiling(
    place: str,
    mount: Mount,
    kind: tuple[str, str, int],
    threads: int,
    count: _Count,
    warmth: Warmth,
) -> Ceiling:
    seconds = max(count.seconds, 1e-9)
    return Ceiling(
        place, mount.point, mount.kind, *kind, threads, count.moved_bytes / seconds,
        count.calls / seconds, warmth.is_cold, warmth.why_not_cold, seconds, time.time_ns(),
    )  # fmt: skip


def write_ceiling(
    folder: AnyPath,
    seconds_each: float = 2.0,
    progress: Announce | None = None,
    max_bytes: int = MAX_WRITTEN_BYTES,
    seed: int = 0,
) -> list[Ceiling]:
    """Measure writes to a file without a name in the folder, synced within the time; see
    read_ceiling.

    At most max_bytes and a quarter of the room.  At any end of the process the kernel frees the
    room.  Raises TierError: no such folder, read-only, full, a limit on the size of files.
    """
    mount = mount_of(folder)
    size = min(max_bytes, int(free_bytes(folder) * SHARE_OF_ROOM)) // LARGE_BYTES * LARGE_BYTES
    if size < min(MIN_WRITTEN_BYTES, max_bytes):
        least = int(MIN_WRITTEN_BYTES / SHARE_OF_ROOM) >> 20
        raise TierError(
            f"{os.fspath(folder)}: full: writing is measured where {least} MiB are free"
        )
    try:
        descriptor = _nameless(folder)
        try:
            writer = _Writer(descriptor, size, mount, folder, seconds_each, progress, seed)
            first = writer.sequential(THREADS[0])  # for nothing: see read_ceiling
            # No more than can be synced in the time, even where the page cache takes more at once.
            in_time = int(first.bandwidth_bps * seconds_each) // LARGE_BYTES * LARGE_BYTES
            writer.size = min(size, max(MIN_WRITTEN_BYTES, in_time))
            ceilings = _climb(writer.sequential)
            for request_bytes in SMALL_BYTES:
                ceilings += _climb(partial(writer.random, request_bytes))
        finally:
            os.close(descriptor)
    except OSError as error:
        raise TierError(f"{os.fspath(folder)}: cannot be written: {error.strerror}") from error
    return ceilings


def _nameless(folder: AnyPath) -> int:
    """Return a descriptor of a file without a name; the file vanishes when closed."""
    import tempfile

    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
            raise
    descriptor, name = tempfile.mkstemp(prefix=".penstock-ceiling-", dir=folder)
    Path(name).unlink()
    return descriptor


@dataclass(slots=True)
class _Writer:
    """The file of a write_ceiling."""

    descriptor: int
    size: int
    mount: Mount
    folder: AnyPath
    seconds: float
    progress: Announce | None
    seed: int

    def sequential(self, threads: int) -> Ceiling:
        self._say(f"sequential writes, {threads} threads")
        os.ftruncate(self.descriptor, 0)  # blocks are allocated anew, as for a checkpoint
        share = max(1, self.size // threads // LARGE_BYTES) * LARGE_BYTES
        parts = [
            range(first, min(first + share, self.size), LARGE_BYTES)
            for first in range(0, self.size, share)
        ][:threads]
        return self._written("sequential", LARGE_BYTES, parts)

    def random(self, request_bytes: int, threads: int) -> Ceiling:
        self._say(f"random writes of {request_bytes >> 10} KiB, {threads} threads")
        if os.fstat(self.descriptor).st_size < self.size:
            data = os.urandom(LARGE_BYTES)
            for offset in range(0, self.size, LARGE_BYTES):
                os.pwrite(self.descriptor, data, offset)
        os.fdatasync(self.descriptor)
        most = max(1, int(self.seconds * RANDOM_CALLS_HZ))
        blocks = range(self.size // request_bytes)
        drawn = random.Random(self.seed).sample(blocks, min(most, len(blocks)))
        offsets = [block * request_bytes for block in drawn]
        return self._written(
            "random", request_bytes, [offsets[thread::threads] for thread in range(threads)]
        )

    def _written(self, order: str, request_bytes: int, parts: Sequence[Sequence[int]]) -> Ceiling:
        data = os.urandom(request_bytes)
        count = _Team(self.seconds).run(
            [partial(_write_blocks, self.descriptor, part, data) for part in parts]
        )
        start = time.perf_counter()
        os.fdatasync(self.descriptor)
        count = count._replace(seconds=count.seconds + time.perf_counter() - start)
        is_memory = self.mount.kind in MEMORY_KINDS
        why = "in memory by nature" if is_memory else ""
        warmth = Warmth(None, self.size, not is_memory, why)
        kind = ("write", order, request_bytes)
        return _ceiling(os.fspath(self.folder), self.mount, kind, len(parts), count, warmth)

    def _say(self, what: str) -> None:
        if self.progress:
            self.progress(what)
