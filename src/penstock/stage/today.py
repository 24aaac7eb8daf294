"""Look at the current state of a run's files, or find files missing.  Knows paths; knows no run and
no tier."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from errno import ELOOP, ENOENT, ENOTDIR
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.installed import native_part
from penstock.stage.manifest import Identity
from penstock.stage.source import ASKED_AT_ONCE

__all__ = ["GONE", "NOW", "UNSEEN", "now_of", "real_path"]

Array = NDArray[Any]

# The numbers that distinguish a file from other files and from changed versions: manifest.Identity,
# and feed_seen of native/feed/feed.h.
NOW = np.dtype(
    [
        ("size_bytes", np.int64),
        ("mtime_ns", np.int64),
        ("ctime_ns", np.int64),
        ("ino", np.uint64),
        ("dev", np.uint64),
    ]
)
# Values of size_bytes without a file: missing or no regular file; not accessible, or a time outside
# the range of the columns.
GONE, UNSEEN = -1, -2

# A look takes 2 µs in memory; a server takes longer than FAR_S, and answers many at once.
TRIED, FAR_S, NEAR_THREADS = 64, 100e-6, 2
MOST_IN_A_CALL = 1024  # Ctrl-C is heard between calls, also where each file takes milliseconds


def now_of(paths: Sequence[str]) -> Array:
    """Return rows of NOW for files of a file system, by path in the tables.

    size_bytes is GONE or UNSEEN where there is no file.
    """
    states = np.empty(len(paths), NOW)

    def ask(first: int, last: int) -> None:
        rows = states[first:last]
        _look(paths[first:last], rows)
        for at in np.flatnonzero(rows["size_bytes"] < 0).tolist():
            rows[at] = _now(paths[first + at])

    begun_s = time.perf_counter()
    tried = min(TRIED, len(paths))
    ask(0, tried)
    is_far = time.perf_counter() - begun_s >= tried * FAR_S
    left = len(paths) - tried
    if left <= 0:
        return states
    threads = ASKED_AT_ONCE if is_far else NEAR_THREADS
    # In blocks, as neighbours share a folder: FUSE lets only one process at a time look into a
    # folder.
    block = min(MOST_IN_A_CALL, -(-left // (4 * threads)))
    cuts = [*range(tried, len(paths), block), len(paths)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(ask, cuts[:-1], cuts[1:]))
    return states


@cache
def _native() -> Any:
    """Return penstock_feed_look of native/feed/feed.h; None: the library is not built, or older.

    The call takes half the time of os.stat, and releases the interpreter lock.
    """
    import ctypes

    try:
        look = ctypes.CDLL(native_part("libfeed.so")).penstock_feed_look
    except (OSError, AttributeError):
        return None
    look.restype, look.argtypes = None, (ctypes.c_char_p, ctypes.c_void_p, ctypes.c_uint32)
    return look


def _look(paths: Sequence[str], rows: Array) -> None:
    """Fill rows of NOW. Where size_bytes stays negative, `_now` asks again and finds the reason."""
    rows["size_bytes"] = UNSEEN
    with suppress(UnicodeEncodeError):
        names = os.fsencode("\0".join(paths))
        if (look := _native()) is not None and names.count(0) == len(paths) - 1:
            look(names, rows.ctypes.data, len(paths))


def _now(recorded: str) -> tuple[int, int, int, int, int]:
    try:
        status = os.stat(recorded)  # noqa: PTH116 - of a million files
    except (OSError, ValueError) as error:
        path = real_path(recorded)
        if path != recorded:
            return _now(path)
        # A link to itself leads nowhere.
        is_gone = not isinstance(error, OSError) or error.errno in (ENOENT, ENOTDIR, ELOOP)
        return (GONE if is_gone else UNSEEN), 0, 0, 0, 0
    if not stat.S_ISREG(status.st_mode):
        return GONE, 0, 0, 0, 0
    if not Identity.of(status).has_line():
        return UNSEEN, 0, 0, 0, 0
    return (
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev,
    )  # fmt: skip


def real_path(name: str) -> str:
    r"""Return the real path of a path in the tables, where bytes that are not UTF-8 are written as
    \xff."""
    if "\\x" not in name or os.path.lexists(name):
        return name
    data = name.encode(errors="surrogateescape")  # of a path real already
    data = re.sub(rb"\\x([89a-f][0-9a-f])", lambda match: bytes([int(match[1], 16)]), data)
    return os.fsdecode(data)
