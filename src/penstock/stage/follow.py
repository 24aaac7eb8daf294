"""Follow the files read by a running job, from the job's growing logs.  Knows logs; copies nothing.

A file counts once the file's first reads have ended.  The worth of a file is the time of calls on
the file, shared among the reading processes, as a step loop waits for one process at a time; a
plan's expected wait is comparable, so both order the files on a tier.
"""

from __future__ import annotations

import os
import re
import stat
import time
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from penstock.errors import LogError
from penstock.log.follow import Follower, News
from penstock.log.header import is_alive
from penstock.log.layout import OPS
from penstock.log.texts import FILE_TEXT, Text, is_log_name
from penstock.places.classes import PATH_RULES
from penstock.stage.source import WantedFile

__all__ = ["Following"]

_SYNCS = ("fsync", "fdatasync", "sync_range", "syncfs", "msync", "fflush")
_COSTS = [
    op.number for op in OPS if op.layer in ("posix", "stdio") and op.group in ("read", "open")
]
_READS = [op.number for op in OPS if op.group == "read"]
_WRITES = [op.number for op in OPS if op.group == "write" and op.name not in _SYNCS]


@dataclass(slots=True)
class _Process:
    follower: Follower
    texts: dict[int, Text] = field(default_factory=dict)
    is_over: bool = False


class Following:
    """The data files the programs of a run read, each returned once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: dict[str, _Process] = {}
        self._told: set[str] = set()
        self._written: set[str] = set()
        self._readers: set[str] = set()
        self._quiet_looks = 0
        self._since_s = time.monotonic()
        self.read_bytes = 0

    def look(self) -> list[WantedFile]:
        """Return the files read since the last look, in order of reading.  A log without a header
        yet is skipped."""
        time_s: dict[str, float] = {}
        for name in self._logs():
            process = self._processes.setdefault(name, _Process(Follower(self._folder / name)))
            if process.is_over:
                continue
            try:
                news = process.follower.look(is_over=False)
            except (LogError, OSError):
                continue
            self._learn(process, news)
            if self._take(process, news, time_s):
                self._readers.add(name)
            process.is_over = not is_alive(news.header) and not len(news.finished)
        alive = any(not process.is_over for process in self._processes.values())
        self._quiet_looks = 0 if alive or not self._processes else self._quiet_looks + 1
        fresh = [path for path in time_s if path not in self._told and path not in self._written]
        self._told.update(fresh)
        n_readers = max(1, len(self._readers))
        return [WantedFile(path, time_s[path] / n_readers) for path in fresh if _is_data(path)]

    def read_bps(self) -> float:
        """Return the mean rate of data reads so far, in bytes per second."""
        return self.read_bytes / max(1e-3, time.monotonic() - self._since_s)

    @property
    def is_over(self) -> bool:
        """Return True after two looks in a row without a process: between an exec and the new log
        no process is visible."""
        return self._quiet_looks > 1

    def _logs(self) -> list[str]:
        try:
            return sorted(
                entry.name for entry in os.scandir(self._folder) if is_log_name(entry.name)
            )
        except OSError:
            return []

    def _learn(self, process: _Process, news: News) -> None:
        for text in news.texts:
            if text.kind != FILE_TEXT:
                continue
            before = process.texts.get(text.id)
            if not text.name and before is not None:  # adds the facts of the first open
                text = text._replace(name=before.name, base=before.base)
            process.texts[text.id] = text

    def _take(self, process: _Process, news: News, time_s: dict[str, float]) -> bool:
        """Add the time in calls by file; return True if the process read data."""
        before_bytes = self.read_bytes
        events = news.finished
        is_fine = events.errno == 0
        is_cost = np.isin(events.op, _COSTS) & is_fine
        is_read = np.isin(events.op, _READS) & is_fine & (events.moved > 0)
        is_write = np.isin(events.op, _WRITES) & is_fine
        self._written.update(_path(process, file) for file in np.unique(events.file[is_write]))
        read = {file: _path(process, file) for file in np.unique(events.file[is_read]).tolist()}
        for number, n_bytes in zip(
            events.file[is_read].tolist(), events.moved[is_read].tolist(), strict=True
        ):
            if _is_data(read[number]):
                self.read_bytes += n_bytes
        for number, ns in zip(
            events.file[is_cost].tolist(), events.duration_ns[is_cost].tolist(), strict=True
        ):
            if path := read.get(number, ""):
                time_s[path] = time_s.get(path, 0.0) + ns / 1e9
        return self.read_bytes > before_bytes


def _path(process: _Process, number: int) -> str:
    """Return the path of a file; empty: not known, no regular file, or a copy on a tier already."""
    text = process.texts.get(int(number))
    if text is None or text.tier or (text.mode and not stat.S_ISREG(text.mode)):
        return ""
    path = text.resolved or text.name
    seen = {text.id}
    while not path.startswith("/") and text.base not in seen:
        seen.add(text.base)
        above = process.texts.get(text.base)
        if above is None:
            return ""
        path, text = f"{above.resolved or above.name}/{path}", above
    return path if path.startswith("/") else ""


@lru_cache(1 << 16)
def _is_data(path: str) -> bool:
    """Return True if the tables would class the file, read and not written, as data."""
    if not path:
        return False
    first = next((rule for rule in PATH_RULES if re.search(rule.pattern, path)), None)
    return first is None or first.path_class == "data"
