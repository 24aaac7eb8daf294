"""Shared memory of two processes, without a name.  The module knows no tensor and no file.

An arena is an anonymous file (memfd) that the training process and the writer map.  The arena has
no entry in /dev/shm or in any other folder, so nothing is left behind: the kernel frees the memory
when both processes have ended, for whatever reason.
"""

from __future__ import annotations

import mmap
import os
import re
from pathlib import Path

from penstock.errors import SaveError

__all__ = ["ALIGNMENT_BYTES", "Arena"]

# Direct I/O needs memory, offset and length in blocks of the device: 4 KiB suits all devices.
ALIGNMENT_BYTES = 4096


class Arena:
    """An arena of size_bytes, with every page already allocated: the first touch of a page costs
    more than the copy into the page.

    descriptor: of an arena that another process made; None makes a new arena.
    Raises SaveError: the size exceeds the available memory, or the memory cannot be shared.
    """

    def __init__(self, size_bytes: int, descriptor: int | None = None) -> None:
        self.size_bytes = -(-size_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        self.descriptor = _made(self.size_bytes) if descriptor is None else descriptor
        try:
            self.memory = mmap.mmap(
                self.descriptor, self.size_bytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE
            )
        except (OSError, ValueError) as error:
            os.close(self.descriptor)
            raise SaveError(
                f"{self.size_bytes:,} bytes of memory cannot be shared with the writer: {error}"
            ) from error

    def close(self) -> None:
        """Free the memory, as soon as no array refers to the memory any more."""
        if self.descriptor < 0:
            return
        os.close(self.descriptor)
        self.descriptor = -1
        try:
            self.memory.close()
        except BufferError:  # arrays of a snapshot refer to the memory and free the memory later
            del self.memory


def _made(size_bytes: int) -> int:
    available_bytes = _available_bytes()
    if available_bytes is not None and size_bytes > available_bytes:
        raise SaveError(
            f"a snapshot needs {size_bytes / 1e9:.1f} GB of memory beside the state, and "
            f"{available_bytes / 1e9:.1f} GB are available; save fewer things, or shard the state"
        )
    descriptor = -1
    try:
        descriptor = os.memfd_create("penstock-arena", os.MFD_CLOEXEC)
        os.posix_fallocate(descriptor, 0, size_bytes)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise SaveError(
            f"{size_bytes / 1e9:.1f} GB of memory for snapshots cannot be had: {error.strerror}"
        ) from error
    return descriptor


def _available_bytes() -> int | None:
    """Return the bytes of memory available without swapping; None: unknown.  The limit of a
    container is not considered."""
    try:
        match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.M)
    except OSError:
        return None
    return int(match[1]) << 10 if match else None
