"""List a folder of files as records, one record per file; read no file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError, FeedRefused
from penstock.feed.spans import Advance, LeftOut, left_out

__all__ = ["Listing", "listing", "stats"]

# A stat of an inode outside memory is a request to the device.  Several run at once, as from a
# loader with 16 workers.
STAT_THREADS = 16
STAT_CHUNK = 128
NO_MARK = -1
WAITED_S = (
    50e-6  # of a stat; in memory a stat takes a tenth, and threads would only wait for each other
)


class Listing(NamedTuple):
    """The files below a folder, sorted by path in the folder; the paths are the keys.

    state: (n, 3): bytes, mtime in ns, -1 or an object's mark.  left_out: other entries.
    """

    files: list[str]
    keys: list[bytes]
    state: NDArray[np.int64]
    left_out: tuple[LeftOut, ...]


def listing(root: str, progress: Advance | None = None) -> Listing:
    """Return all regular files below root, with links followed and without hidden files.

    Raises FeedError: an unreadable folder, a broken link, a folder reached twice by a link.
    """
    start = len(os.path.join(root, ""))  # start of the path in the folder
    passed: list[tuple[str, str]] = []
    pairs = sorted((os.fsencode(path[start:]), path) for path in _walk(root, passed))
    other = left_out(LeftOut(noun, "", 1, (path[start:],)) for noun, path in sorted(passed))
    keys, files = [key for key, _ in pairs], [path for _, path in pairs]
    state = stats(files, progress)[:, :3]
    state[:, 2] = NO_MARK
    return Listing(files, keys, state, other)


def stats(files: Sequence[str], progress: Advance | None = None) -> NDArray[np.int64]:
    """Return (n, 4) for files: bytes, mtime in ns, ctime in ns, inode; several files at once.

    Raises FeedError: a file is missing.
    """
    chunks = [files[start : start + STAT_CHUNK] for start in range(0, len(files), STAT_CHUNK)]
    states: list[tuple[int, int, int, int]] = []
    for part in _in_turn(chunks):
        states += part
        if progress is not None:
            progress(len(states), len(files))
    return np.array(states, np.int64).reshape(-1, 4)


def _in_turn(chunks: list[Sequence[str]]) -> Iterator[list[tuple[int, int, int, int]]]:
    """Yield the stats chunk by chunk: in sequence while inodes are in memory, then in parallel."""
    n_done, waits = 0, False
    while n_done < len(chunks) and not waits:
        begun = time.perf_counter()
        part = _stats(chunks[n_done])
        waits = time.perf_counter() - begun > WAITED_S * len(part)
        n_done += 1
        yield part
    if n_done == len(chunks):
        return
    with ThreadPoolExecutor(STAT_THREADS, thread_name_prefix="penstock-list") as pool:
        try:
            yield from pool.map(_stats, chunks[n_done:])
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _walk(root: str, passed: list[tuple[str, str]]) -> Iterator[str]:
    """Yield the files below root.

    passed: receives (kind, path) of each entry without a record; entries below such a folder are
    not listed.
    """
    waiting = [root]
    seen: set[tuple[int, int]] = set()
    while waiting:
        folder = waiting.pop()
        try:
            state = os.stat(folder)
            entries = list(os.scandir(folder))
        except OSError as error:
            raise FeedError(f"{folder}: {error.strerror}; is it readable by you?") from error
        if (state.st_dev, state.st_ino) in seen:
            raise FeedRefused(
                f"{folder} is reached twice, by a link; remove the link, its records "
                "would come twice"
            )
        seen.add((state.st_dev, state.st_ino))
        for entry in entries:
            if entry.name.startswith("."):
                passed.append(("hidden folder" if entry.is_dir() else "hidden file", entry.path))
                continue
            if entry.is_dir():
                waiting.append(entry.path)
            elif entry.is_file():
                yield entry.path
            elif entry.is_symlink() and not os.path.exists(entry.path):
                raise FeedError(f"{entry.path} is a link to nothing; a record is missing")
            else:
                passed.append(("special file", entry.path))


def _stats(paths: Sequence[str]) -> list[tuple[int, int, int, int]]:
    states = []
    for path in paths:
        try:
            state = os.stat(path)
        except OSError as error:
            raise FeedError(f"{path}: {error.strerror}; is the data set complete?") from error
        inode = state.st_ino & (1 << 63) - 1  # some cluster file systems use all 64 bits
        states.append((state.st_size, state.st_mtime_ns, state.st_ctime_ns, inode))
    return states
