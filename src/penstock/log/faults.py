"""Read the bytes of a run's page faults; the only Python with positions in these files.

docs/FORMAT.md is the format; native/events.h is the format in C, and a test holds all three equal.
With any content of a file, reading ends, stays inside the file, and fails only with LogError.  Any
prefix of a file is a file; a changed bit is refused.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import LogError
from penstock.safe import bounded
from penstock.safe.checksums import crc32c

__all__ = [
    "CHUNK",
    "COUNTS",
    "FAULT",
    "FILE",
    "HEADER",
    "IMAGE",
    "STATE",
    "SUFFIX",
    "VERSION",
    "WAITED_NS",
    "Faults",
    "check_header",
    "read_faults",
]

Array = NDArray[Any]

SUFFIX = ".faults"
MAGIC = b"PENFAULT"
MOST_BYTES = 1 << 30  # native/faults.c keeps 64 MB of single faults; the rest is counts and state
VERSION = 2  # since 2 the header and each chunk have checksums
HEADER_BYTES = 256
FILE_CHUNK, IMAGES_CHUNK, FAULTS_CHUNK, COUNTS_CHUNK, STATE_CHUNK = 1, 2, 3, 4, 5
MINOR, MAJOR = 1, 2
NO_BEGIN = 0xFFFFFFFFFFFFFFFF
WAITED_NS = 10_000  # as in native/events.h; a test compares the two
# The file of a fault is a mapped file; the recorder writes chunks of at most 256 KiB.
MOST_CHUNK_BYTES = 1 << 20


def _layout(*fields: str) -> np.dtype[Any]:
    """Return a packed little-endian struct from lines of `kind name name …`."""
    kinds = {"u32": "<u4", "i32": "<i4", "u64": "<u8"}
    names = [(name, line.split()[0]) for line in fields for name in line.split()[1:]]
    return np.dtype([(name, kinds.get(kind, kind)) for name, kind in names])


HEADER = _layout(
    "S8 magic",
    "u32 version header_bytes launcher page_bytes",
    "u64 start_ns start_unix_ns",
    "u32 cpus ring_bytes is_user_only sum",
    "V16 boot_id",
    "V64 host",
)
CHUNK = _layout("u32 kind bytes head_sum sum")
FIRST_CHUNK = _layout("u32 kind bytes")  # of version 1
FILE = _layout("u32 file device_major device_minor reserved", "u64 inode")
IMAGE = _layout("u32 image pid ppid is_joined", "u64 start_ns")
FAULT = _layout("u64 start_ns duration_ns offset", "u32 image tid file kind")
COUNTS = _layout("u32 image file", "u64 major minor waited major_ns minor_ns waited_ns max_ns kept")
STATE = _layout(
    "u64 now_ns counted_major counted_minor seen_major seen_minor foreign unpaired lost folded",
    "u32 is_ended",
    "i32 error",
)
_RECORDS = {IMAGES_CHUNK: IMAGE, FAULTS_CHUNK: FAULT, COUNTS_CHUNK: COUNTS, STATE_CHUNK: STATE}


@dataclass(frozen=True, slots=True, eq=False)
class Faults:
    """One file of page faults.

    files: {number: path}. images: dtype IMAGE, in order of numbers.  faults: dtype FAULT.  counts:
    dtype COUNTS, the latest of each image and file; file 0 is memory without a file.  state: the
    latest of dtype STATE, None if not written.  Times are CLOCK_MONOTONIC ns of the boot boot_id.
    is_user_only: faults inside system calls are missing.
    """

    path: str
    boot_id: str
    host: str
    start_ns: int
    start_unix_ns: int
    launcher: int
    is_user_only: bool
    is_torn: bool
    files: dict[int, str]
    images: Array
    faults: Array
    counts: Array
    state: Any

    @property
    def missing(self) -> int:
        """Return the number of faults the kernel counted without a sample."""
        if self.state is None:
            return 0
        counted = int(self.state["counted_major"]) + int(self.state["counted_minor"])
        return max(0, counted - int(self.state["seen_major"]) - int(self.state["seen_minor"]))


def read_faults(path: str | os.PathLike[str]) -> Faults:
    """Read a file of page faults.  Raises LogError: missing, no page faults, damaged, of a newer
    format."""
    name = os.fspath(path)
    try:
        data = bounded.read(name, MOST_BYTES)
    except (OSError, ValueError) as error:
        raise LogError(f"{name}: cannot be read: {getattr(error, 'strerror', error)}") from error
    header = _header(name, data)
    parts: dict[int, list[Array]] = {kind: [] for kind in _RECORDS}
    files: dict[int, str] = {}
    end = HEADER_BYTES
    for kind, body, chunk_end in _chunks(name, data, int(header["version"])):
        end = chunk_end
        if kind == FILE_CHUNK and len(body) > FILE.itemsize:
            text = body[FILE.itemsize :].split(b"\0", 1)[0]
            number = int(np.frombuffer(body, FILE, 1)[0]["file"])
            files[number] = text.decode("utf-8", "surrogateescape")
        elif kind in parts:
            record = _RECORDS[kind]
            parts[kind].append(np.frombuffer(body, record, len(body) // record.itemsize))
    joined = {
        kind: np.concatenate([np.empty(0, _RECORDS[kind]), *every]) for kind, every in parts.items()
    }
    states = joined[STATE_CHUNK]
    return Faults(
        path=name,
        boot_id=header["boot_id"].tobytes().hex(),
        host=header["host"].tobytes().split(b"\0", 1)[0].decode("utf-8", "surrogateescape"),
        start_ns=int(header["start_ns"]),
        start_unix_ns=int(header["start_unix_ns"]),
        launcher=int(header["launcher"]),
        is_user_only=bool(header["is_user_only"]),
        is_torn=end < len(data),
        files=files,
        images=joined[IMAGES_CHUNK],
        faults=joined[FAULTS_CHUNK],
        counts=_latest(joined[COUNTS_CHUNK]),
        state=states[-1] if len(states) else None,
    )


def check_header(path: str | os.PathLike[str]) -> None:
    """Raise LogError if read_faults would refuse the file by its header."""
    name = os.fspath(path)
    try:
        with bounded.opened(name) as file:
            _header(name, file.read(HEADER_BYTES))
    except OSError as error:
        raise LogError(f"{name}: cannot be read: {error.strerror}") from error


def _header(name: str, data: bytes) -> Any:
    if data[:8] != MAGIC or len(data) < HEADER_BYTES:
        raise LogError(f"{name}: no page faults of penstock, or cut inside the header")
    header = np.frombuffer(data, HEADER, 1)[0]
    if header["version"] > VERSION:
        raise LogError(
            f"{name}: written by format {header['version']}, newest known here is {VERSION}; "
            "upgrade penstock to read it"
        )
    is_sound = header["version"] in (1, VERSION) and header["header_bytes"] == HEADER_BYTES
    # Version 1 has no sum: 0.  A sum of 0 in version 2 is as likely as any other.
    if is_sound and (header["version"] == VERSION or header["sum"]):
        at = HEADER.fields["sum"][1] if HEADER.fields else 0
        header_bytes = data[:at] + bytes(4) + data[at + 4 : HEADER_BYTES]
        is_sound = crc32c(header_bytes) == header["sum"]
    if not is_sound:
        raise LogError(f"{name}: its header is damaged; copy it again or remove it")
    return header


def _chunks(name: str, data: bytes, version: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield (kind, records, end) of each whole chunk.  Raises LogError: a damaged chunk."""
    layout = CHUNK if version > 1 else FIRST_CHUNK
    at, body = HEADER_BYTES, HEADER_BYTES + layout.itemsize
    while body <= len(data):
        head = np.frombuffer(data, layout, 1, at)[0]
        size = int(head["bytes"])
        is_sane = layout.itemsize <= size <= MOST_CHUNK_BYTES and not size % 8
        if version > 1 and (not is_sane or crc32c(data[at : at + 8]) != head["head_sum"]):
            if not data[at:].strip(b"\0"):
                return  # zeros after a loss of power
            raise LogError(_damaged(name, at))
        if not is_sane or at + size > len(data):
            return
        if version > 1 and crc32c(data[body : at + size]) != head["sum"]:
            raise LogError(_damaged(name, at))
        yield int(head["kind"]), data[body : at + size], at + size
        at += size
        body = at + layout.itemsize


def _damaged(name: str, at: int) -> str:
    return (
        f"{name}: damaged at byte {at:,}: the chunk differs from its checksum; copy the file again "
        "or remove it"
    )


def _latest(counts: Array) -> Array:
    """Return the last of several counts of an image and file."""
    keys = counts["image"].astype(np.uint64) << np.uint64(32) | counts["file"]
    _, from_end = np.unique(keys[::-1], return_index=True)
    latest: Array = counts[len(counts) - 1 - from_end]
    return latest
