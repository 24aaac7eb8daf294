"""Write a file from memory to disk, past the page cache, with checksums.  Knows no checkpoint.

Two threads: the first completes the file (a zip's headers need checksums) and computes the
checksums of the chunks; the second writes the finished chunks.  Both threads release the
interpreter's lock while working.
"""

from __future__ import annotations

import errno
import mmap
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import TierError, TierFull
from penstock.save.manifest import CHUNK_BYTES, SUM_BYTES, FileSum, checksum, crc32
from penstock.save.training.arena import ALIGNMENT_BYTES
from penstock.save.training.image import ZipRecord, zip_directory, zip_header, zip_layout, zip_tail

__all__ = ["Image", "write_image", "write_text"]

# Some file systems refuse O_DIRECT when the file is opened, others at the first write.
NOT_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


@dataclass(slots=True)
class Image:
    """A file in memory: the first body_bytes of `memory`, and the parts still to be added.

    records: of a zip, with headers still to be written between the arrays.
    """

    memory: mmap.mmap
    body_bytes: int
    records: tuple[ZipRecord, ...] = ()
    pickled: bytes = b""

    @classmethod
    def of_zip(cls, memory: mmap.mmap, sizes: list[int], pickled: bytes) -> Image:
        layout = zip_layout(sizes)
        return cls(memory, layout.size_bytes, layout.records, pickled)


def write_image(path: str, image: Image, name: str) -> FileSum:
    """Write and sync a file; the caller syncs the folder.

    name: the file's name in the manifest.  Raises TierFull with path and bytes, TierError.
    """
    ready: queue.Queue[tuple[int, memoryview] | BaseException | None] = queue.Queue()
    sums: list[bytes] = []
    filler = threading.Thread(target=_fill, args=(image, ready, sums), daemon=True)
    filler.start()
    size_bytes = 0
    try:
        with _Output(path) as output:
            while (piece := ready.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                offset, data = piece
                output.write(offset, data)
                size_bytes = offset + len(data)
            output.finish(size_bytes)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TierFull(
                f"{path}: full after {size_bytes:,} bytes of {image.body_bytes:,}; the older "
                "checkpoints are as they were; make room, or keep fewer",
                path,
                max(0, image.body_bytes - size_bytes),
            ) from error
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        filler.join()
    return FileSum(name, size_bytes, b"".join(sums))


def write_text(path: str, content: bytes, name: str) -> FileSum:
    """Write and sync a small file.  Raises the exceptions of write_image."""
    memory = mmap.mmap(-1, max(1, len(content)))
    memory[: len(content)] = content
    return write_image(path, Image(memory, len(content)), name)


def _fill(
    image: Image, ready: queue.Queue[tuple[int, memoryview] | BaseException | None],
    sums: list[bytes],
) -> None:  # fmt: skip
    try:
        for offset, data in _chunks(image):
            sums.append(checksum(data))
            assert len(sums[-1]) == SUM_BYTES
            ready.put((offset, data))
        ready.put(None)
    except BaseException as error:
        ready.put(error)


def _chunks(image: Image) -> Iterator[tuple[int, memoryview]]:
    """Yield the finished file in chunks of CHUNK_BYTES; the last chunk may be shorter.

    A chunk is finished when all records that begin in the chunk have headers.  A header needs the
    checksum of the whole record.
    """
    view = memoryview(image.memory)
    checksums: list[int] = []
    whole = image.body_bytes // CHUNK_BYTES * CHUNK_BYTES

    def head_all_before(end: int) -> None:
        while (n := len(checksums)) < len(image.records) and image.records[n].header < end:
            record = image.records[n]
            crc = crc32(view[record.offset : record.offset + record.n_bytes])
            checksums.append(crc)
            view[record.header : record.offset] = zip_header(record, crc)

    for offset in range(0, whole, CHUNK_BYTES):
        head_all_before(offset + CHUNK_BYTES)
        yield offset, view[offset : offset + CHUNK_BYTES]
    head_all_before(image.body_bytes)
    end = _ended(image, bytes(view[whole : image.body_bytes]), checksums)
    for offset in range(0, len(end), CHUNK_BYTES):
        yield whole + offset, end[offset : offset + CHUNK_BYTES]


def _ended(image: Image, rest: bytes, checksums: list[int]) -> memoryview:
    """Return the data after the last whole chunk of the arrays, aligned for direct I/O."""
    if image.pickled:
        tail, placed = zip_tail(image.body_bytes, image.pickled, crc32)
        directory = zip_directory(
            image.body_bytes + len(tail),
            [*zip(image.records, checksums, strict=True), *placed],
        )
        rest += tail + directory
    memory = mmap.mmap(-1, -(-max(1, len(rest)) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
    memory[: len(rest)] = rest
    return memoryview(memory)[: len(rest)]


class _Output:
    """A new file, written with O_DIRECT where the file system allows O_DIRECT."""

    def __init__(self, path: str) -> None:
        self.path = path
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
        try:
            self.descriptor = os.open(path, flags | os.O_DIRECT, 0o644)
            self.is_direct = True
        except OSError as error:
            if error.errno not in NOT_DIRECT:
                raise
            with suppress(FileNotFoundError):  # some file systems refuse after creating the file
                os.unlink(path)  # noqa: PTH108 - as the calls around it
            self.descriptor = os.open(path, flags, 0o644)
            self.is_direct = False

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self.descriptor)

    def write(self, offset: int, data: memoryview) -> None:
        if self.is_direct:
            try:
                self._write_all(offset, _padded(data))
                return
            except OSError as error:
                if error.errno not in NOT_DIRECT:
                    raise
            import fcntl

            flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self.is_direct = False
        self._write_all(offset, data)

    def _write_all(self, offset: int, data: memoryview) -> None:
        while len(data):
            written = os.pwrite(self.descriptor, data, offset)
            offset, data = offset + written, data[written:]

    def finish(self, size_bytes: int) -> None:
        os.ftruncate(self.descriptor, size_bytes)  # direct writes end with a whole block
        os.fsync(self.descriptor)
        if not self.is_direct:
            os.posix_fadvise(self.descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


def _padded(data: memoryview) -> memoryview:
    """Return the data padded to a whole block; finish() cuts the padding off the file."""
    if len(data) % ALIGNMENT_BYTES == 0:
        return data
    memory = mmap.mmap(-1, -(-len(data) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
    memory[: len(data)] = data
    return memoryview(memory)
