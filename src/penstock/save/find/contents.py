"""Compare a file with the checksums in a manifest.

Each version of a file is read once, up to the first difference.  The module knows stores and
manifests, and no checkpoint.
"""

from __future__ import annotations

from functools import lru_cache

from penstock.errors import TierError
from penstock.places.stores import LocalStore, Store, StoredFile
from penstock.save.manifest import CHUNK_BYTES, FileSum, checksum, n_chunks

__all__ = ["agrees", "has_content"]


def has_content(store: Store, file: StoredFile, wanted: FileSum) -> bool:
    """Return True if the bytes of a file match the checksums of a manifest.  Return False also if
    the file cannot be read."""
    if file.size_bytes != wanted.size_bytes:
        return False
    if isinstance(store, LocalStore):
        path = str(store.path(file.name))
        return _has_content(path, file.mtime_ns, wanted.size_bytes, wanted.sums)
    return agrees(store, file.name, wanted)


@lru_cache(1 << 12)
def _has_content(path: str, mtime_ns: int | None, size_bytes: int, sums: bytes) -> bool:
    folder, _, name = path.rpartition("/")
    store = LocalStore(folder or "/", makes_folders=False)
    return agrees(store, name, FileSum(name, size_bytes, sums))


def agrees(store: Store, name: str, wanted: FileSum, chunk_bytes: int = CHUNK_BYTES) -> bool:
    """Compare like has_content(), for a file of the manifest's size."""
    try:
        return all(
            checksum(store.read(name, number * chunk_bytes, chunk_bytes)) == wanted.sum_of(number)
            for number in range(n_chunks(wanted.size_bytes, chunk_bytes))
        )
    except TierError:
        return False
