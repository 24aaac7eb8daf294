"""Import logs of Darshan: a single log, or the logs of all processes of a job.

Knows the tables of Penstock that Darshan's counters can fill; knows no byte (darshan_library).
Values unknown to Darshan stay NULL: the report shows "not measured".
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.errors import RunError
from penstock.interop.darshan_library import DXT_POSIX, POSIX, STDIO, counter_names, open_library
from penstock.log.layout import OPS
from penstock.runs.run import import_run
from penstock.runs.tables import Array, utf8
from penstock.safe import bounded

__all__ = ["import_logs", "looks_like_darshan"]

_MAGIC = 6567223  # DARSHAN_MAGIC_NR, in the byte order of the writer, after the version
_OP = {op.name: op.number for op in OPS}

# A log is foreign bytes for a C library: the reader may die, loop or exhaust memory.
READER_S = 300
READER_BYTES = 16 << 30
READERS = 4

# A damaged count or time: more than any job has.
MOST = 1 << 53
MOST_S = 1e9
# Above the limit, processes without calls get no row.
MAX_PROCESSES = 1 << 16

# {op: counter of calls} by module. Darshan's read stands for read, pread, readv and preadv.
_CALLS = {
    POSIX: {
        "open": "OPENS",
        "dup": "DUPS",
        "read": "READS",
        "write": "WRITES",
        "lseek": "SEEKS",
        "stat": "STATS",
        "mmap": "MMAPS",
        "fsync": "FSYNCS",
        "fdatasync": "FDSYNCS",
        "rename": "RENAME_SOURCES",
    },
    STDIO: {
        "fopen": "OPENS",
        "fdopen": "FDOPENS",
        "fread": "READS",
        "fwrite": "WRITES",
        "fseek": "SEEKS",
        "fflush": "FLUSHES",
    },
}
# Darshan sums the time of several kinds of calls; the sum goes to the first kind with calls.
_TIMES = {
    POSIX: {
        "F_READ_TIME": ("read",),
        "F_WRITE_TIME": ("write", "fsync", "fdatasync"),
        "F_META_TIME": ("open", "stat", "lseek", "dup", "rename"),
    },
    STDIO: {
        "F_READ_TIME": ("fread",),
        "F_WRITE_TIME": ("fwrite", "fflush"),
        "F_META_TIME": ("fopen", "fdopen", "fseek"),
    },
}
_STAMPS = {"open": "OPEN", "read": "READ", "write": "WRITE"}
_STAMPS |= {f"f{op}": name for op, name in _STAMPS.items()}
_NAMES = {POSIX: "posix", STDIO: "stdio"}

NOT_MEASURED = (
    "close: Darshan counts no closes; their time is in that of open",
    "time of stat, seek, dup, rename: Darshan sums it with that of open",
    "time of fsync, fflush: Darshan sums it with that of write",
    "failed calls: Darshan does not count them",
    "bytes asked for: Darshan knows the bytes moved",
    "training steps, data waits, checkpoints: Darshan knows files, not training",
)


def looks_like_darshan(head: bytes) -> bool:
    """Return True if a file with the given first bytes is a log of Darshan, of either byte
    order."""
    return int.from_bytes(head[8:16], "little") == _MAGIC or (
        int.from_bytes(head[8:16], "big") == _MAGIC
    )


def import_logs(
    logs: Sequence[Path],
    folder: str | os.PathLike[str],
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Make a run of the logs of a job: a single log of all ranks, or a log per process.

    progress: is called with (done, total) logs.  Raises MissingDependency; RunError: an unreadable
    log, logs of several jobs, a folder with files.
    """
    open_library()
    read = []
    with ThreadPoolExecutor(min(READERS, len(os.sched_getaffinity(0)))) as pool:
        for log in pool.map(_read, logs):
            read.append(log)
            if progress:
                progress(len(read), len(logs))
    read.sort(key=lambda log: (log.start_ns, str(log.path)))
    _check_one_job(read)
    build = _Build(read)
    for place, log in enumerate(read):
        build.add(place, log)
    source = str(logs[0]) if len(logs) == 1 else f"{len(logs)} logs of Darshan"
    return import_run(folder, utf8(source), read[0].start_ns, build.columns())


@dataclass(frozen=True, slots=True, eq=False)
class _Log:
    path: Path
    facts: Mapping[str, Any]
    arrays: Mapping[str, Array]
    start_ns: int
    end_ns: int

    @property
    def ranks(self) -> int:
        return int(self.facts["nprocs"])


def _version(path: Path) -> str:
    """Return a remark on the log's stated version, or ""."""
    try:
        with bounded.opened(path) as file:
            match = re.match(rb"[0-9]+\.[0-9.]+", file.read(8))
    except OSError:
        return ""
    return f" (it says version {match[0].decode()}; 3.x is read)" if match else ""


def _read(path: Path) -> _Log:
    """Read a log in another process, as reading a damaged log may kill the process."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        into = Path(folder) / "log.npz"
        said = _read_apart(path, into)
        if not into.exists():
            raise RunError(f"{path}: cannot be read as a log of Darshan{_version(path)}: {said}")
        try:
            with np.load(into) as arrays:
                columns = {name: arrays[name] for name in arrays.files}
        except (OSError, ValueError, EOFError) as error:
            raise RunError(
                f"{path}: cannot be read as a log of Darshan{_version(path)}: {said}"
            ) from error
    facts = json.loads(bytes(columns.pop("facts")))
    start_ns = facts["start_time_sec"] * 10**9 + facts["start_time_nsec"]
    end_ns = facts["end_time_sec"] * 10**9 + facts["end_time_nsec"]
    if not facts["start_time_nsec"] and not facts["end_time_nsec"]:
        end_ns += 10**9  # older logs have whole seconds; Darshan itself includes the last second
    seconds = columns["segments"][:, 3].view(np.float64)
    latest_s = max((s for s in seconds.tolist() if 0 <= s < MOST_S), default=0.0)
    end_ns = max(end_ns, start_ns + round(latest_s * 1e9))
    log = _Log(path, facts, columns, start_ns, end_ns)
    if not (0 <= start_ns <= end_ns < 1 << 62 and end_ns - start_ns < MOST_S * 1e9):
        raise _damaged(log, "its job ends before it begins")
    if not 0 < log.ranks < 1 << 31:
        raise _damaged(log, f"it has {log.ranks} processes")
    return log


# The limit is for the reader alone, so the reader sets it.
_READER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[3]), int(sys.argv[3])))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from penstock.interop.darshan_library import read_log
try:
    read_log(sys.argv[1], sys.argv[2])
except (ValueError, MemoryError) as error:
    sys.exit(str(error) or "it asks for too much memory")
"""


def _read_apart(path: Path, into: Path) -> str:
    """Run the reader; return its last words.  A complete reading leaves a file."""
    draft = into.with_suffix(".draft")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _READER, path, draft, str(READER_BYTES)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=READER_S,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    except subprocess.TimeoutExpired:
        return f"its reader did not end within {READER_S} s"
    except OSError as error:
        return f"its reader cannot be started: {error}"
    if done.returncode == 0:
        draft.replace(into)
    lines = done.stderr.decode(errors="replace").strip().splitlines()
    if done.returncode < 0:
        return f"Darshan's library died of it (signal {-done.returncode})"
    return lines[-1] if lines else f"its reader ended with status {done.returncode}"


def _damaged(log: _Log, why: str) -> RunError:
    return RunError(f"{log.path}: is damaged: {why}")


def _check_one_job(logs: Sequence[_Log]) -> None:
    first = logs[0]
    for log in logs[1:]:
        for name, meaning in (("jobid", "job"), ("uid", "user")):
            if log.facts[name] != first.facts[name]:
                raise RunError(
                    f"{log.path}: is of {meaning} {log.facts[name]}, {first.path} of"
                    f" {first.facts[name]}; import the logs of one job at a time"
                )
        if log.ranks > 1 or first.ranks > 1:
            raise RunError(
                f"{log.path}: is one of several logs, each of many processes; import one of them"
            )


@dataclass(eq=False)
class _Build:
    """The tables of a run, grown log by log."""

    logs: Sequence[_Log]
    files: dict[str, int] = field(default_factory=dict)
    processes: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Array]] = field(default_factory=list)
    folded: list[dict[str, Any]] = field(default_factory=list)
    notes: list[tuple[str, str]] = field(default_factory=list)
    single: int = 0  # reads and writes with events
    counted: int = 0  # reads and writes with counts only

    def add(self, place: int, log: _Log) -> None:
        """Add the log of the given position."""
        modules = {module["number"]: module for module in log.facts["modules"]}
        if not modules.keys() & {POSIX, STDIO, DXT_POSIX}:
            has = ", ".join(module["name"] for module in modules.values()) or "nothing"
            raise RunError(
                f"{log.path}: has no POSIX or STDIO calls in it, only {has}; nothing to import"
            )
        first = len(self.processes)
        self._add_processes(place, log)
        for path, kind in log.facts["mounts"]:
            self.notes.append(("mount", f"{utf8(path)}\t{utf8(kind)}"))
        names = {int(number): name for number, name in log.facts["names"]}
        whole = self._add_segments(log, names, first)
        for module in (POSIX, STDIO):
            for record in self._records(log, module):
                self._add_record(log, module, record, names, first, whole)
        for module in modules.values():
            name = utf8(module["name"])
            if module["is_partial"]:
                self.notes.append(
                    (
                        "imported incomplete",
                        f"Darshan marks {name} as incomplete: its memory was full",
                    )
                )
            if module["number"] not in (POSIX, STDIO, DXT_POSIX):
                self.notes.append(("not measured", f"{name}: is in Darshan's log, is not imported"))

    def _add_processes(self, place: int, log: _Log) -> None:
        seen = {0}
        for name in ("posix_records", "stdio_records", "segment_heads"):
            seen |= set(log.arrays[name][:, 1].tolist())
        if not all(-1 <= rank < log.ranks for rank in seen):
            raise _damaged(log, f"it has records of ranks that its {log.ranks} processes have not")
        ranks = range(log.ranks) if log.ranks <= MAX_PROCESSES else sorted(seen - {-1})
        self.process_of = {rank: len(self.processes) + i for i, rank in enumerate(ranks)}
        hosts = dict(
            zip(log.arrays["segment_heads"][:, 1].tolist(), log.facts["hosts"], strict=True)
        )
        shift_ns = log.start_ns - self.logs[0].start_ns
        program = " ".join(log.facts["program"].split())
        is_child = "fork_parent" in log.facts["metadata"]
        for rank in ranks:
            self.processes.append(
                {
                    "host": utf8(hosts.get(rank, "")),
                    "rank": rank if log.ranks > 1 else -1,
                    "parent": 0 if is_child and place else -1,
                    "origin": "fork" if is_child else "run",
                    "executable": program.split(" ")[0],
                    "command": program,
                    "start_ns": shift_ns,
                    "end_ns": shift_ns + log.end_ns - log.start_ns,
                    "log": utf8(log.path.name),
                }
            )

    def _file(self, number: int, names: Mapping[int, str]) -> int:
        name = names.get(number)
        path = f"record {number} of Darshan, without a name" if name is None else utf8(name)
        return self.files.setdefault(path, len(self.files))

    def _add_segments(
        self, log: _Log, names: Mapping[int, str], first: int
    ) -> set[tuple[int, str]]:
        """Add single calls of files with complete segments; return (record, op) of such files."""
        import numpy as np

        heads, segments = log.arrays["segment_heads"], log.arrays["segments"]
        writes, reads = heads[:, 2], heads[:, 3]
        if int((writes + reads).sum()) != len(segments):
            raise _damaged(log, "it has not the single calls that it counts")
        begins = np.cumsum(writes + reads) - (writes + reads)
        single: dict[tuple[int, str], int] = {}
        for number, _, n_writes, n_reads in heads.tolist():
            single[number, "write"] = single.get((number, "write"), 0) + n_writes
            single[number, "read"] = single.get((number, "read"), 0) + n_reads
        counted: dict[tuple[int, str], int] = {}
        for record in self._records(log, POSIX):
            for op in ("read", "write"):
                key = (record["id"], op)
                counted[key] = counted.get(key, 0) + max(0, record[f"{op.upper()}S"])
        whole = {key for key, n in single.items() if n and counted.get(key, n) == n}
        for (number, rank, n_writes, n_reads), begin in zip(
            heads.tolist(), begins.tolist(), strict=True
        ):
            for op, start, n in (("write", begin, n_writes), ("read", begin + n_writes, n_reads)):
                if (number, op) in whole and n:
                    process = self.process_of[max(rank, 0)]
                    file = self._file(int(np.uint64(number % 2**64)), names)
                    self._add_calls(log, process, file, op, segments[start : start + n])
        return whole

    def _add_calls(self, log: _Log, process: int, file: int, op: str, segments: Array) -> None:
        import numpy as np

        offset, moved = segments[:, 0], segments[:, 1]
        times = segments[:, 2:].view(np.float64)
        with np.errstate(invalid="ignore"):
            is_sane = (times >= 0) & (times < MOST_S)
        if not is_sane.all() or not ((moved >= 0) & (moved < MOST) & (offset < MOST)).all():
            raise _damaged(log, "a single call has an impossible time or size")
        # Two clocks may be a little apart.
        start_ns, end_ns = (np.round(times[:, i] * 1e9).astype(np.int64) for i in (0, 1))
        n = len(moved)
        self.single += n
        shift_ns = log.start_ns - self.logs[0].start_ns
        self.events.append(
            {
                "process": np.full(n, process, np.int32),
                "thread": np.full(n, process, np.int32),
                "op_number": np.full(n, _OP[op], np.uint8),
                "errno": np.zeros(n, np.int16),
                "file": np.full(n, file, np.int32),
                "start_ns": start_ns + shift_ns,
                "duration_ns": np.maximum(0, end_ns - start_ns),
                "offset_bytes": np.ma.masked_less(offset, 0),
                "moved_bytes": moved.copy(),
            }
        )

    def _records(self, log: _Log, module: int) -> Iterator[dict[str, Any]]:
        """Yield records as dictionaries of Darshan's names; refuse impossible values."""
        import math

        names, times = counter_names(module)
        numbers = log.arrays[f"{_NAMES[module]}_records"].tolist()
        seconds = log.arrays[f"{_NAMES[module]}_times"].tolist()
        free = {"MODE", "RENAMED_FROM"}
        for row, timed in zip(numbers, seconds, strict=True):
            record = dict(zip(("id", "rank", *names), row, strict=True))
            record |= dict(zip(times, timed, strict=True))
            for name in names:
                if name not in free and record[name] > MOST:
                    raise _damaged(log, f"{_NAMES[module].upper()}_{name} is {record[name]}")
            for name in times:
                is_time = not name.startswith("F_VARIANCE")
                if is_time and not (math.isfinite(record[name]) and record[name] < MOST_S):
                    raise _damaged(log, f"{_NAMES[module].upper()}_{name} is {record[name]}")
            yield record

    def _add_record(
        self,
        log: _Log,
        module: int,
        record: dict[str, Any],
        names: Mapping[int, str],
        first: int,
        whole: set[tuple[int, str]],
    ) -> None:
        """Add a record as counters of ops, without reads and writes present as single calls."""
        rank = record["rank"]
        calls = {op: max(0, record[name]) for op, name in _CALLS[module].items()}
        # OPENS counts every way to a descriptor.
        opener = "open" if module == POSIX else "fopen"
        others = ("FILENOS", "DUPS") if module == POSIX else ("FDOPENS",)
        calls[opener] = max(0, calls[opener] - sum(max(0, record[name]) for name in others))
        timed = {
            next((op for op in ops if calls[op]), ops[0]): max(0.0, record[name])
            for name, ops in _TIMES[module].items()
        }
        shift_ns = log.start_ns - self.logs[0].start_ns
        for op, n in calls.items():
            if module == POSIX and (record["id"], op) in whole:
                continue
            # Closes and filenos have a time though Darshan counts no such calls.
            if not n and not timed.get(op):
                continue
            row: dict[str, Any] = {
                # Calls of all ranks together have no process.
                "process": self.process_of[rank] if rank >= 0 else None,
                "file": self._file(record["id"] % 2**64, names),
                "op_number": _OP[op],
                "calls": n,
                "moved_bytes": 0,
            }
            if op in timed:
                row["duration_ns"] = round(timed[op] * 1e9)
            if op in _STAMPS:
                for key, end in (("first_ns", "START"), ("last_ns", "END")):
                    s = record[f"F_{_STAMPS[op]}_{end}_TIMESTAMP"]
                    row[key] = round(s * 1e9) + shift_ns if s > 0 else None
            if op.endswith(("read", "write")):
                self.counted += n
                row |= _access(record, "READ" if op.endswith("read") else "WRITE", module)
            self.folded.append(row)

    def columns(self) -> dict[str, dict[str, Array]]:
        """Return all tables, as tables.write_tables takes them."""
        import numpy as np

        n = len(self.processes)
        paths = list(self.files)
        notes = list(dict.fromkeys(self.notes)) + [("not measured", text) for text in NOT_MEASURED]
        if self.counted:
            some = f"{self.counted:,} of {self.counted + self.single:,} reads and writes"
            which = some if self.single else "single calls"
            lacks = f"{which} were not recorded" if not self.single else f"{which} are only counted"
            notes.append(("counters only", f"counters of Darshan: {lacks}"))
        processes: dict[str, Array] = {
            key: _column([row[key] for row in self.processes]) for key in self.processes[0]
        }
        for key in ("rank", "parent"):
            processes[key] = np.ma.masked_less(processes[key], 0)
        numbers = np.arange(n, dtype=np.int32)
        processes |= {"process": numbers, "state": np.array(["exited"] * n, object)}
        for key in ("folded_events", "lost_events", "unseen_calls", "damaged_units"):
            processes[key] = np.zeros(n, np.int64)
        processes["is_torn"] = np.zeros(n, bool)
        columns: dict[str, dict[str, Array]] = {
            "processes": processes,
            "threads": {"thread": numbers, "process": numbers, "is_main": np.ones(n, bool)},
            "files": {
                "file": np.arange(len(paths), dtype=np.int32),
                "path": np.array(paths, object),
                "kind": np.array([_kind(path) for path in paths], object),
            },
            "notes": {
                "key": np.array([key for key, _ in notes], object),
                "value": np.array([value for _, value in notes], object),
            },
        }
        if self.events:
            columns["events"] = {
                key: _concatenated([part[key] for part in self.events]) for key in self.events[0]
            }
        if self.folded:
            keys = dict.fromkeys(key for row in self.folded for key in row)
            columns["folded"] = {
                key: _column([row.get(key) for row in self.folded]) for key in keys
            }
        return columns


def _access(record: dict[str, Any], noun: str, module: int) -> dict[str, Any]:
    """Return a record's further facts on reads or writes, besides number and time."""
    done = "READ" if noun == "READ" else "WRITTEN"
    row: dict[str, Any] = {"moved_bytes": max(0, record[f"BYTES_{done}"])}
    end = record[f"MAX_BYTE_{done}"]
    row["max_end_bytes"] = end + 1 if end > 0 or row["moved_bytes"] else None
    if module == POSIX:
        row["max_duration_ns"] = round(max(0.0, record[f"F_MAX_{noun}_TIME"]) * 1e9)
        buckets = [name for name in record if name.startswith(f"SIZE_{noun}_")]
        row |= {f"bucket_{i}": max(0, record[name]) for i, name in enumerate(buckets)}
    return row


def _concatenated(parts: list[Array]) -> Array:
    import numpy as np

    joined: Array = np.ma.concatenate(parts)  # type: ignore[no-untyped-call]  # numpy's
    return joined


def _kind(path: str) -> str:
    if path.startswith("/"):
        return "regular"
    return "pipe" if path in ("<STDIN>", "<STDOUT>", "<STDERR>") else "unknown"


def _column(values: list[Any]) -> Array:
    """Return numbers or texts as an array, masked at missing values."""
    import numpy as np

    example = next((value for value in values if value is not None), 0)
    if isinstance(example, str):
        return np.array(values, object)
    mask = [value is None for value in values]
    numbers = np.array([0 if value is None else value for value in values], np.int64)
    return np.ma.array(numbers, mask=mask) if any(mask) else numbers
