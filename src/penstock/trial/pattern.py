"""Extract a stretch of a run's reading: the calls, their order, and the time between them.

Knows the tables of a run and the current files; makes no call of the pattern.
"""

import os
import re
import stat
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any

import numpy as np

from penstock.errors import RunError
from penstock.runs.run import Run
from penstock.runs.tables import Array

__all__ = ["MAX_CALLS", "CallKind", "CallPattern", "DataFile", "read_pattern"]

# A call of a pattern takes 60 bytes in columns, and 24 of a replay's results: 84 MB.
MAX_CALLS = 1_000_000

# A short read is repeated with BEYOND_BYTES more bytes beyond the result: enough to reach the end
# of the file, too little to matter.
BEYOND_BYTES = 64 << 10


class CallKind(IntEnum):
    """The kind of a pattern's call."""

    OPEN = 0
    CLOSE = 1
    STAT = 2
    FSTAT = 3
    READ = 4


_KINDS = {
    "open": CallKind.OPEN,
    "close": CallKind.CLOSE,
    "stat": CallKind.STAT,
    "lstat": CallKind.STAT,
    "access": CallKind.STAT,
    "fstat": CallKind.FSTAT,
    "read": CallKind.READ,
    "pread": CallKind.READ,
    "readv": CallKind.READ,
    "preadv": CallKind.READ,
}


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a pattern, as found now."""

    path: str
    size_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class CallPattern:
    """Calls of several threads on data files, in the order of starts: columns of one length.

    kind: see CallKind.  track: number of the recorded thread.  file: position in files.  offset,
    length: bytes of reads.  moved: the run's result.  think_ns: since the thread's call before, or
    since the window began.  recorded_ns: duration of the run's call.  window_s: wall-clock length
    of the stretch.  notes: calls left out, with the reason.
    """

    kind: Array
    track: Array
    file: Array
    offset: Array
    length: Array
    moved: Array
    think_ns: Array
    recorded_ns: Array
    files: tuple[DataFile, ...]
    tracks: int
    window_s: float
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.kind)

    @property
    def is_read(self) -> Array:
        """Return the mask of reads."""
        mask: Array = self.kind == CallKind.READ
        return mask

    def first(self, calls: int, note: str) -> "CallPattern":
        """Return a pattern of the first calls."""
        columns = {name: getattr(self, name)[:calls] for name in _COLUMNS}
        return replace(self, **columns, notes=(*self.notes, note))


_COLUMNS = ("kind", "track", "file", "offset", "length", "moved", "think_ns", "recorded_ns")

# The calls a replay can repeat, in columns of known small types.
_REPLAYABLE = f"""
    layer = 'posix' AND path_class = 'data' AND file_kind = 'regular' AND errno = 0
    AND duration_ns IS NOT NULL
    AND op IN ({", ".join(f"'{op}'" for op in _KINDS)})
    AND (offset_bytes IS NOT NULL OR op_group <> 'read')"""
_CALLS = f"""
    SELECT process, thread, file, start_ns, duration_ns,
        coalesce(offset_bytes, 0) AS offset_bytes, asked_bytes, moved_bytes,
        CASE op {" ".join(f"WHEN '{op}' THEN {kind:d}" for op, kind in _KINDS.items())} END AS kind
    FROM events
    WHERE {_REPLAYABLE} AND start_ns >= $from_ns AND start_ns < $to_ns
    ORDER BY start_ns, process, thread
    LIMIT $most"""
_COUNT = f"""
    SELECT count(*) FROM events
    WHERE {_REPLAYABLE} AND start_ns >= $from_ns AND start_ns < $to_ns"""
_EXTENT = f"SELECT min(start_ns), max(start_ns) FROM events WHERE {_REPLAYABLE}"
_TRAINING = """
    SELECT min(start_ns), max(start_ns + coalesce(duration_ns, 0)) FROM spans
    WHERE kind = 'step' OR kind = 'span' AND name = 'data wait'"""
_FILES = f"""
    SELECT file, path, resolved_path, size_bytes FROM files
    WHERE file IN (SELECT file FROM events
        WHERE {_REPLAYABLE} AND start_ns >= $from_ns AND start_ns < $to_ns)
    ORDER BY file"""
_LEFT_OUT = f"""
    SELECT CASE WHEN layer = 'stdio' THEN 'made through stdio'
            WHEN errno <> 0 THEN 'that failed'
            WHEN duration_ns IS NULL THEN 'that had not returned'
            WHEN op_group = 'read' AND op IN ({", ".join(f"'{op}'" for op in _KINDS)})
                THEN 'reads at an unknown place'
            ELSE op END AS what,
        count(*) AS calls
    FROM events
    WHERE path_class = 'data' AND file_kind = 'regular' AND layer IN ('posix', 'stdio')
        AND start_ns >= $from_ns AND start_ns < $to_ns AND NOT ({_REPLAYABLE})
        AND op NOT IN ('lseek', 'dup')
    GROUP BY what ORDER BY calls DESC"""


def read_pattern(run: Run, for_s: float = 30.0, max_calls: int = MAX_CALLS) -> CallPattern:
    """Return the run's repeatable calls on data files, in a stretch in the middle of the training.

    At most for_s seconds and max_calls calls: a longer stretch is shortened.  Raises RunError: no
    repeatable call, or all files have changed.
    """
    from_ns, to_ns = _window(run, for_s)
    notes = []
    asked_ns = to_ns - from_ns
    from_ns, to_ns = _shortened(run, from_ns, to_ns, max_calls)
    if to_ns - from_ns < asked_ns:
        notes.append(
            f"shortened from {asked_ns / 1e9:.3g} to {(to_ns - from_ns) / 1e9:.3g} s of the run, "
            f"which hold no more than {max_calls:,} calls"
        )
    within = {"from_ns": from_ns, "to_ns": to_ns}
    calls = run.arrays(_CALLS, {**within, "most": max_calls})
    left_out = [f"{count:,} {what}" for what, count in run.sql(_LEFT_OUT, within)[:5]]
    if left_out:
        notes.append(f"calls on data files that cannot be made again: {', '.join(left_out)}")
    files, numbers, gone = _files_now(run, within, calls)
    if gone:
        notes.append(gone)
    if not files:
        raise RunError(f"{run.folder}: nothing to replay: {gone or 'no data file was read'}")
    return _pattern(calls, files, numbers, from_ns, to_ns, notes)


def _window(run: Run, for_s: float) -> tuple[int, int]:
    """Return the middle of the training, as far as data files are read there."""
    ((first, last),) = run.sql(_EXTENT)
    if first is None:
        ((stdio,),) = run.sql(
            "SELECT count(*) FROM events WHERE layer = 'stdio' AND path_class = 'data' "
            "AND op_group = 'read'"
        )
        how = f": its {stdio:,} reads passed through stdio" if stdio else ""
        raise RunError(
            f"{run.folder}: no POSIX call on a data file is recorded{how}; none to replay"
        )
    last += 1
    ((begin, end),) = run.sql(_TRAINING)
    if begin is not None and max(begin, first) < min(end, last):
        first, last = max(begin, first), min(end, last)
    length = min(last - first, int(for_s * 1e9))
    from_ns = first + (last - first - length) // 2
    return from_ns, from_ns + max(1, length)


def _shortened(run: Run, from_ns: int, to_ns: int, max_calls: int) -> tuple[int, int]:
    """Shorten the window around the window's middle to at most max_calls calls."""
    for _ in range(20):  # each round comes closer; LIMIT bounds the rest
        ((calls,),) = run.sql(_COUNT, {"from_ns": from_ns, "to_ns": to_ns})
        if calls <= max_calls:
            break
        length = max(1, int((to_ns - from_ns) * 0.95 * max_calls / calls))
        from_ns += (to_ns - from_ns - length) // 2
        to_ns = from_ns + length
    return from_ns, to_ns


def _files_now(
    run: Run, within: dict[str, Any], calls: dict[str, Array]
) -> tuple[list[DataFile], dict[int, int], str]:
    """Return the unchanged files, their positions by the run's number, and a remark on the
    others."""
    ends: dict[int, int] = {}
    if len(calls["file"]):
        order = np.argsort(calls["file"], kind="stable")
        sorted_files = calls["file"][order]
        firsts = np.flatnonzero(np.diff(sorted_files, prepend=sorted_files[0] - 1))
        reads_end = np.where(calls["moved_bytes"] > 0, calls["offset_bytes"], 0)
        highest = np.maximum.reduceat((reads_end + calls["moved_bytes"])[order], firsts)
        ends = dict(zip(sorted_files[firsts].tolist(), highest.tolist(), strict=True))
    files: list[DataFile] = []
    numbers: dict[int, int] = {}
    counts = {"gone": 0, "of another size": 0, "no regular files": 0}
    for number, path, resolved, size in run.sql(_FILES, within):
        file, why = _file_now(path, resolved, size, ends.get(number, 0))
        if file is None:
            counts[why] += 1
        else:
            numbers[number] = len(files)
            files.append(file)
    bad = [f"{count:,} {why}" for why, count in counts.items() if count]
    total = len(files) + sum(counts.values())
    return files, numbers, f"of {total:,} files: {', '.join(bad)} now, left out" if bad else ""


def _file_now(
    path: str, resolved: str | None, size: int | None, end: int
) -> tuple[DataFile | None, str]:
    for name in (path, resolved):
        if name is None or not name.startswith("/"):
            continue
        for spelled in (name, _with_bytes(name)):
            try:
                status = Path(spelled).stat()
            except (OSError, ValueError):
                continue
            if not stat.S_ISREG(status.st_mode):
                return None, "no regular files"
            if status.st_size < end or (size is not None and size != status.st_size):
                return None, "of another size"
            return DataFile(spelled, status.st_size), ""
    return None, "gone"


def _with_bytes(path: str) -> str:
    r"""Return a path with the original bytes; tables hold bytes that are not UTF-8 as \xff."""
    raw = re.sub(
        rb"\\x([89a-f][0-9a-f])", lambda match: bytes([int(match[1], 16)]), os.fsencode(path)
    )
    return os.fsdecode(raw)


def _pattern(
    calls: dict[str, Array],
    files: list[DataFile],
    numbers: dict[int, int],
    from_ns: int,
    to_ns: int,
    notes: list[str],
) -> CallPattern:
    places = np.full(int(calls["file"].max()) + 1, -1, np.int64)
    places[list(numbers)] = list(numbers.values())
    kept = places[calls["file"]] >= 0
    column = {name: np.ma.getdata(values)[kept].astype(np.int64) for name, values in calls.items()}
    _, track = np.unique(column["process"] << 32 | column["thread"], return_inverse=True)
    end_ns = column["start_ns"] + column["duration_ns"]
    order = np.lexsort((column["start_ns"], track))
    before = np.zeros_like(order)
    before[order[1:]] = order[:-1]
    is_first = np.ones(len(order), bool)
    is_first[order[1:]] = track[order[1:]] != track[order[:-1]]
    before_ns = np.where(is_first, from_ns, end_ns[before])
    asked, moved = column["asked_bytes"], column["moved_bytes"]
    is_read = column["kind"] == CallKind.READ
    return CallPattern(
        kind=column["kind"].astype(np.int8),
        track=track.astype(np.int32),
        file=places[column["file"]].astype(np.int32),
        offset=column["offset_bytes"],
        length=np.where(is_read, np.minimum(asked, moved + BEYOND_BYTES), 0),
        moved=np.where(is_read, moved, 0),
        think_ns=np.maximum(0, column["start_ns"] - before_ns),
        recorded_ns=column["duration_ns"],
        files=tuple(files),
        tracks=int(track.max()) + 1,
        window_s=(to_ns - from_ns) / 1e9,
        notes=tuple(notes),
    )
