"""Measure how much of a run's data is in memory, before and after: of named files, or of files
named in the logs.  Reads no file content and starts nothing."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import LogError, TierError
from penstock.log.texts import FILE_TEXT, logs_in, read_texts
from penstock.places.classes import PATH_RULES
from penstock.places.tiers import resident_bytes

__all__ = ["Resident", "opened", "resident"]

MOST_FILES = 100_000
MOST_S = 2.0  # the largest delay of a run's begin and end
MOST_LOGS = 64  # of a job with many processes and common files


@dataclass(frozen=True, slots=True)
class Resident:
    """files: how many were counted.  size_bytes: their total size.  resident_bytes: the part in
    memory.  left_out: some files were not counted, for lack of time or rights, or because of their
    number."""

    files: int
    size_bytes: int
    resident_bytes: int
    left_out: bool


def resident(
    paths: Iterable[Path],
    most_files: int = MOST_FILES,
    most_s: float = MOST_S,
    clock: Callable[[], float] = time.monotonic,
) -> Resident:
    """Measure files, and all regular files below folders; links in folders are not followed.  Never
    raises: inaccessible files are skipped."""
    until_s = clock() + most_s
    files = size_bytes = cached_bytes = 0
    left_out = False
    for path in _files(paths):
        if files >= most_files or clock() > until_s:
            return Resident(files, size_bytes, cached_bytes, True)
        try:
            status = os.stat(path)  # noqa: PTH116 - a hundred thousand of them
            # Opening a pipe would show the writer a reader for a moment.
            cached = resident_bytes(path) if stat.S_ISREG(status.st_mode) else None
        except (OSError, TierError):
            cached = None
        if cached is None:
            left_out = True
            continue
        files += 1
        size_bytes += status.st_size
        cached_bytes += min(cached, status.st_size)
    return Resident(files, size_bytes, cached_bytes, left_out)


def _files(paths: Iterable[Path]) -> Iterator[str]:
    for path in paths:
        if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir() raises where the storage is gone
            yield str(path)
            continue
        for folder, _, names in os.walk(path):
            yield from (f"{folder}/{name}" for name in names)


def opened(folder: Path) -> Iterator[Path]:
    """Yield the regular files a run's processes opened, without files of libraries and the
    system."""
    others = re.compile("|".join(f"(?:{rule.pattern})" for rule in PATH_RULES))
    paths: set[str] = set()
    for log in logs_in(folder)[:MOST_LOGS]:
        try:
            for text in read_texts(log):
                path = text.resolved or text.name
                if text.kind != FILE_TEXT or not stat.S_ISREG(text.mode) or path in paths:
                    continue
                paths.add(path)
                if path.startswith("/") and not others.search(path):
                    yield Path(path)
        except (LogError, OSError):  # an unreadable log: the files are not known
            continue
