"""Checksums of copies, while a source is read and from the copy itself.  Knows bytes; knows no
tier.

A file of several chunks has the checksum of its chunks' digests, so threads may copy the chunks in
any order.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from penstock.places import tiers
from penstock.stage import manifest

__all__ = ["KIND", "Hash", "checksum", "checksum_of", "new_hash"]

KIND = "xxh3_64"  # a checksum against faults of disks and copies, not against people
PIECE_BYTES = 4 << 20
LEAST_CHUNK_BYTES = 4096  # no manifest of ours has smaller chunks


class Hash(Protocol):
    def update(self, data: Any, /) -> None: ...

    def digest(self) -> bytes: ...


def new_hash() -> Hash:
    import xxhash

    hasher: Hash = xxhash.xxh3_64()
    return hasher


def checksum(digests: Sequence[bytes], chunk_bytes: int) -> str:
    if len(digests) == 1:
        return f"{KIND}:{digests[0].hex()}"
    whole = new_hash()
    for digest in digests:
        whole.update(digest)
    return f"{KIND}/{chunk_bytes}:{whole.digest().hex()}"


def checksum_of(path: tiers.AnyPath, kind: str, tell: Callable[[int], None] | None = None) -> str:
    """Return the checksum of an existing file in the manifest's notation.

    kind: the part of a manifest's checksum before the colon.  tell: is called with the bytes of
    each read.  Raises OSError; ValueError: an unknown kind.
    """
    name, _, chunk_size = kind.partition("/")
    chunk_bytes = int(chunk_size or manifest.CHUNK_BYTES)
    if name != KIND or chunk_bytes < LEAST_CHUNK_BYTES:
        raise ValueError(f"{kind}: no checksum that is known here")
    digests = []
    buffer = memoryview(bytearray(PIECE_BYTES))
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        size = os.fstat(descriptor).st_size
        for first in range(0, max(size, 1), chunk_bytes):
            hashed = new_hash()
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
    return checksum(digests, chunk_bytes)
