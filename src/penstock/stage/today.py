"""What a run's files are by now, or that they are gone.  Knows paths; knows no run and no tier."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import ELOOP, ENOENT, ENOTDIR
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.stage.source import ASKED_AT_ONCE

__all__ = ["GONE", "NOW", "UNSEEN", "now_of", "real_path"]

Array = NDArray[Any]

# What tells a file from another one and from a changed one, as manifest.Identity.
NOW = np.dtype(
    [
        ("size_bytes", np.int64),
        ("mtime_ns", np.int64),
        ("ctime_ns", np.int64),
        ("ino", np.uint64),
        ("dev", np.uint64),
    ]
)
# Instead of a size: not there, or no file any more; not to be looked at by who asks.
GONE, UNSEEN = -1, -2

# One thread asks for what is in memory: 2 µs each, of which more threads take nothing, as most is
# the interpreter's.  A server takes longer than this, and answers many at once.
TRIED, FAR_S = 64, 100e-6


def now_of(paths: Sequence[str]) -> Array:
    """What each file is, of one file system, as tables tell its path: rows of NOW, of which the
    size is GONE or UNSEEN where there is none."""
    found = np.empty(len(paths), NOW)

    def ask(first: int, last: int) -> None:
        found[first:last] = np.fromiter(map(_now, paths[first:last]), NOW, last - first)

    begun_s = time.perf_counter()
    tried = min(TRIED, len(paths))
    ask(0, tried)
    if time.perf_counter() - begun_s < tried * FAR_S:
        ask(tried, len(paths))
        return found
    # In blocks, as neighbours lie in one folder: FUSE lets one at a time look into a folder.
    cuts = np.linspace(tried, len(paths), 4 * ASKED_AT_ONCE + 1).astype(int).tolist()
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        list(pool.map(ask, cuts[:-1], cuts[1:]))
    return found


def _now(told: str) -> tuple[int, int, int, int, int]:
    try:
        status = os.stat(told)  # noqa: PTH116 - of a million files
    except (OSError, ValueError) as error:
        path = real_path(told)
        if path != told:
            return _now(path)
        # A link that leads to itself leads nowhere.
        is_gone = not isinstance(error, OSError) or error.errno in (ENOENT, ENOTDIR, ELOOP)
        return (GONE if is_gone else UNSEEN), 0, 0, 0, 0
    if not stat.S_ISREG(status.st_mode):
        return GONE, 0, 0, 0, 0
    return (
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev,
    )  # fmt: skip


def real_path(told: str) -> str:
    r"""The path that a table tells: there bytes that are no UTF-8 stand as \xff."""
    if "\\x" not in told or os.path.lexists(told):
        return told
    data = told.encode(errors="surrogateescape")  # of a path that was made real before
    data = re.sub(rb"\\x([89a-f][0-9a-f])", lambda match: bytes([int(match[1], 16)]), data)
    return os.fsdecode(data)
