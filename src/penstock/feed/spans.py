"""Hold the spans of a file, in a form independent of the format."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["NAMED", "Advance", "LeftOut", "Spans", "gathered", "left_out", "numbered", "packed"]

Advance = Callable[[int, int], None]  # (done, total): files, pages or bytes


NAMED = 3  # names kept per reason


class LeftOut(NamedTuple):
    """Data in a container but in no record.

    noun, why: for example `link`, or `file` `without an extension`.  n: number of items.  names:
    names of the first few items.
    """

    noun: str
    why: str
    n: int
    names: tuple[str, ...]


def left_out(each: Iterable[LeftOut]) -> tuple[LeftOut, ...]:
    """Merge the items with equal reasons, in the order of first appearance."""
    by_reason: dict[tuple[str, str], LeftOut] = {}
    for kind in each:
        before = by_reason.get(kind[:2])
        if before is not None:
            names = (*before.names, *kind.names)[:NAMED]
            kind = LeftOut(kind.noun, kind.why, before.n + kind.n, names)
        by_reason[kind[:2]] = kind
    return tuple(by_reason.values())


class Spans(NamedTuple):
    """The records of one file.

    offset, length: (n,) int64, bytes.  keys: bytes of all keys, uint8.  key_end: (n,) int64, see
    Index.  txnid: transaction of an LMDB, else -1.  footer: of a Parquet file,
    compressed.
    """

    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    keys: NDArray[np.uint8]
    key_end: NDArray[np.int64]
    txnid: int = -1
    left_out: tuple[LeftOut, ...] = ()
    footer: bytes = b""


def packed(keys: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return keys as (keys, key_end)."""
    ends = np.cumsum([len(key) for key in keys], dtype=np.int64)
    return np.frombuffer(b"".join(keys), np.uint8), ends


def numbered(prefix: bytes, n: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return n keys of equal width, prefix and number, as (keys, key_end)."""
    digits = max(8, len(str(n)))
    keys = np.empty((n, len(prefix) + digits), np.uint8)
    keys[:, : len(prefix)] = np.frombuffer(prefix, np.uint8)
    number = np.arange(n, dtype=np.int64)
    for place in range(digits):
        keys[:, -1 - place] = 48 + number % 10  # ASCII
        number //= 10
    return keys.reshape(-1), np.arange(1, n + 1, dtype=np.int64) * (len(prefix) + digits)


def gathered(
    flat: NDArray[np.uint8], start: NDArray[np.int64], length: NDArray[np.int64]
) -> NDArray[np.uint8]:
    """Return the concatenation of flat[start:start+length] for each start and length."""
    if not len(start):
        return np.empty(0, np.uint8)
    if (length == length[0]).all():
        rows: NDArray[np.uint8] = flat[start[:, None] + np.arange(length[0])]
        return rows.ravel()
    end = np.cumsum(length)
    place = np.repeat(start - (end - length), length)
    place += np.arange(len(place))
    gathered_bytes: NDArray[np.uint8] = flat[place]
    return gathered_bytes
