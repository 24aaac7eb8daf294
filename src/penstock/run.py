"""A run folder in, tables out.  Knows many logs, clocks, paths and Parquet; knows no byte of a log,
no measure, no screen.

The logs of a run become Parquet under RUN/tables/ once, and are read from there until one changes.
`TABLES` says what is in each table; users query them with `Run.sql`.
"""

import errno
import json
import os
import platform
import posixpath
import re
import shlex
import shutil
import tempfile
import threading
import time
import tomllib
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files as package_files
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from penstock.errors import LogError, PenstockError, QueryError, RunError
from penstock.log import (
    FILE_TEXT,
    NAME_TEXT,
    NOTE_TEXT,
    OPS,
    SECOND_FILE_OPS,
    TIME_LIMIT_NS,
    Events,
    Header,
    Log,
    Text,
    looks_like_log,
    read_header,
    read_log,
)

__all__ = [
    "PATH_RULES",
    "TABLES",
    "Rows",
    "Rule",
    "Run",
    "describe_tables",
    "open_run",
]

Array = NDArray[Any]
Progress = Callable[[int, int], None]

# Of the files under RUN/tables/; what the tables hold is part of the manifest besides.
TABLES_FORMAT = 1

# {table: {column: (type, meaning)}}.  All times are nanoseconds since the run's start, which is the
# earliest start of a recorded process.  NULL is "not known", never zero.
TABLES: dict[str, dict[str, tuple[str, str]]] = {
    "events": {
        "process": ("INTEGER", "which process called; see processes"),
        "thread": ("INTEGER", "which thread called; see threads"),
        "layer": (
            "VARCHAR",
            "posix, stdio or process; stdio calls POSIX inside: never add the two",
        ),
        "op": ("VARCHAR", "which call: read, pread, fopen …"),
        "op_group": (
            "VARCHAR",
            "what a wait for it is put down to: read, write, metadata, process",
        ),
        "file": ("INTEGER", "the file; see files.  NULL where the log does not say which"),
        "path": ("VARCHAR", "the file's path"),
        "path_class": ("VARCHAR", "data, output, library or system"),
        "file_kind": ("VARCHAR", "regular, directory, pipe …; see files.kind"),
        "other_path": ("VARCHAR", "the second file of a rename, link or copy"),
        "start_ns": ("BIGINT", "ns from the run's start to the call"),
        "duration_ns": ("BIGINT", "ns the call took; NULL: in flight when the log ends"),
        "offset_bytes": ("BIGINT", "where in the file, in bytes; NULL: unknown or no meaning"),
        "asked_bytes": ("BIGINT", "bytes asked for; the length of a mapping"),
        "moved_bytes": ("BIGINT", "bytes read or written; 0 for calls that move none"),
        "result": (
            "BIGINT",
            "what else came of it: entries (readdir, list), the child's pid (fork, spawn, exec), "
            "the address (mmap, munmap, msync), the new descriptor (dup)",
        ),
        "errno": ("SMALLINT", "0: the call succeeded"),
        "step": ("INTEGER", "the training step that was under way in the process that trains"),
    },
    "files": {
        "file": ("INTEGER", "number of the path in this run"),
        "path": (
            "VARCHAR",
            "absolute path as opened, without . and .. and //; bytes that are no UTF-8 as \\xff; "
            "relative where the folder it starts from is not known",
        ),
        "resolved_path": (
            "VARCHAR",
            "where the kernel found it at the first open, if it was opened",
        ),
        "path_class": ("VARCHAR", "data, output, library or system; see PATH_RULES"),
        "kind": (
            "VARCHAR",
            "regular, directory, pipe, socket, terminal, device, other; unknown: never opened",
        ),
        "device": ("BIGINT", "st_dev at the first open"),
        "inode": ("BIGINT", "st_ino at the first open"),
        "size_bytes": ("BIGINT", "st_size in bytes at the first open"),
    },
    "processes": {
        "process": ("INTEGER", "number of the process image in this run, by start"),
        "pid": ("BIGINT", "the kernel's process id on its host"),
        "ppid": ("BIGINT", "pid of its parent at start"),
        "parent": ("INTEGER", "the parent's process, if it was recorded"),
        "host": ("VARCHAR", "name of the machine"),
        "rank": ("INTEGER", "rank in the job, if there is one"),
        "local_rank": ("INTEGER", "rank on its host, if there is one"),
        "origin": ("VARCHAR", "how its recording began: run, record, fork or exec"),
        "executable": ("VARCHAR", "path of the program"),
        "command": ("VARCHAR", "its arguments, quoted for a shell"),
        "folder": ("VARCHAR", "working directory at start"),
        "start_ns": ("BIGINT", "ns from the run's start to the recording's start"),
        "end_ns": (
            "BIGINT",
            "ns from the run's start to the recording's end; of a killed process the latest moment "
            "its log knows; NULL: running",
        ),
        "state": ("VARCHAR", "running, killed, stopped, exited, execed, failed or unknown"),
        "reason": ("VARCHAR", "why the recording failed, or what is not known of its end"),
        "folded_events": ("BIGINT", "calls past the budget that live on only in counters"),
        "lost_events": ("BIGINT", "calls of which only this count is left"),
        "unseen_calls": ("BIGINT", "recorded calls whose contents were not seen (io_uring)"),
        "attach_ns": ("BIGINT", "ns the recorder's start took"),
        "slots": ("BIGINT", "import slots patched"),
        "log": ("VARCHAR", "name of its log in the run folder"),
        "is_torn": ("BOOLEAN", "the log is cut"),
        "damaged_units": ("INTEGER", "64 KiB units of the log that could not be read"),
    },
    "threads": {
        "thread": ("INTEGER", "number of the thread in this run"),
        "process": ("INTEGER", "its process"),
        "tid": ("BIGINT", "the kernel's thread id"),
        "name": ("VARCHAR", "its latest name"),
        "is_main": ("BOOLEAN", "the process's first thread"),
    },
    "spans": {
        "process": ("INTEGER", "which process"),
        "thread": ("INTEGER", "which thread"),
        "kind": ("VARCHAR", "window, step or span"),
        "name": ("VARCHAR", "what the stretch is called: data wait, fetch, checkpoint …"),
        "index": ("BIGINT", "number of the step or batch"),
        "a": ("BIGINT", "first number, by name: docs/FORMAT.md"),
        "b": ("BIGINT", "second number, by name: docs/FORMAT.md"),
        "start_ns": ("BIGINT", "ns from the run's start"),
        "duration_ns": ("BIGINT", "ns; NULL: not ended when the log ends"),
    },
    "counters": {
        "process": ("INTEGER", "which process"),
        "file": ("INTEGER", "which file; NULL: not known"),
        "path": ("VARCHAR", "the file's path"),
        "path_class": ("VARCHAR", "data, output, library or system"),
        "layer": ("VARCHAR", "posix, stdio or process"),
        "op": ("VARCHAR", "which call"),
        "calls": ("BIGINT", "finished calls"),
        "errors": ("BIGINT", "of them with an errno"),
        "asked_bytes": ("BIGINT", "sum of bytes asked for"),
        "moved_bytes": ("BIGINT", "sum of bytes read or written"),
        "duration_ns": ("BIGINT", "sum of ns in these calls"),
        "max_duration_ns": ("BIGINT", "ns of the longest"),
        "first_ns": ("BIGINT", "ns from the run's start to the first call"),
        "last_ns": ("BIGINT", "ns from the run's start to the end of the last call"),
        "max_end_bytes": ("BIGINT", "highest byte touched plus one"),
        "sequential": ("BIGINT", "accesses at offset 0, or at or after the end of the one before"),
        "consecutive": ("BIGINT", "accesses at offset 0, or exactly at the end of the one before"),
        "switches": ("BIGINT", "accesses after one the other way"),
        "unaligned": ("BIGINT", "accesses at an offset that is no multiple of 4096"),
        "empty": ("BIGINT", "accesses that moved nothing: reads at the end of the file"),
        "bucket_0": ("BIGINT", "accesses of 1–100 bytes"),
        "bucket_1": ("BIGINT", "accesses of 101–1024 bytes"),
        "bucket_2": ("BIGINT", "accesses of 1025–10240 bytes"),
        "bucket_3": ("BIGINT", "accesses of 10241–102400 bytes"),
        "bucket_4": ("BIGINT", "accesses of 102401–1048576 bytes"),
        "bucket_5": ("BIGINT", "accesses of 1048577–4194304 bytes"),
        "bucket_6": ("BIGINT", "accesses of 4194305–10485760 bytes"),
        "bucket_7": ("BIGINT", "accesses of 10485761–104857600 bytes"),
        "bucket_8": ("BIGINT", "accesses of 104857601–1073741824 bytes"),
        "bucket_9": ("BIGINT", "accesses of more bytes"),
        "sizes": (
            'STRUCT("value" BIGINT, calls BIGINT)[]',
            "the commonest byte counts of an access, at most four",
        ),
        "strides": (
            'STRUCT("value" BIGINT, calls BIGINT)[]',
            "the commonest distances in bytes from the end before to the begin, at most four",
        ),
        "folded": ("BOOLEAN", "some of these calls live on only in counters"),
    },
    "notes": {
        "process": ("INTEGER", "which process; NULL: the run folder itself"),
        "key": ("VARCHAR", "what the note is about"),
        "value": ("VARCHAR", "what it says"),
    },
    "unseen": {
        "process": ("INTEGER", "which process started it"),
        "pid": ("BIGINT", "the kernel's process id, if known"),
        "program": ("VARCHAR", "path of the program, if known"),
        "reason": ("VARCHAR", "why nothing of it was recorded"),
    },
}


@dataclass(frozen=True, slots=True)
class Rule:
    """A path that matches `pattern` (RE2, searched anywhere in the path) is of `path_class`."""

    path_class: str
    pattern: str
    reason: str = ""


# The first that matches decides; where none does, a path is `output` if the job wrote it and `data`
# if not.  Only library and system outrank output: a .pyc that the job wrote is a library file.
PATH_RULES: tuple[Rule, ...] = (
    Rule("system", r"^(pipe|socket|anon_inode|mnt|net|pidfd|/memfd):", "no file behind it"),
    Rule("system", r"^/(proc|sys|run)(/|$)", "the kernel's own"),
    Rule(
        "system",
        r"^/dev/shm/(torch_|psm_|wnsm_|pym-|sem\.|mp-|__KMP|nccl-|cuda\.|vader|sm_segment)",
        "shared memory of torch, multiprocessing, OpenMP, NCCL and MPI",
    ),
    Rule("data", r"^/dev/shm/", "a file system in memory, often used as the fast tier"),
    Rule("system", r"^/dev(/|$)", "devices and terminals"),
    Rule(
        "library",
        r"/(site-packages|dist-packages|__pycache__|lib-dynload|node_modules|conda-meta)(/|$)",
        "installed packages",
    ),
    Rule(
        "library",
        r"/lib(32|64)?/(python[0-9.]*(\.zip)?|pkgconfig|locale|girepository-1\.0)(/|$)",
        "the interpreter's and the system's own files, wherever installed",
    ),
    Rule("library", r"\.(py|pyc|pyo|pyi|pyd|pth|egg|whl|egg-link)$", "Python code"),
    Rule("library", r"\.so(\.[0-9.]+)?$", "shared objects"),
    Rule(
        "library",
        r"(\.(dist|egg)-info|\.cpython-[^/]*|/pyvenv\.cfg|/pybuilddir\.txt|\._pth|Setup\.local)(/|$)",
        "what the interpreter looks for when it starts",
    ),
    Rule("library", r"\.(ttf|otf|ttc|pfb|afm|mo)$|/fonts?(/|$)", "fonts and translations"),
    Rule(
        "library",
        r"/\.?(triton|torch_extensions|torchinductor_[^/]*|nv/ComputeCache|matplotlib|fontconfig)/",
        "caches of compiled kernels and fonts",
    ),
    Rule(
        "library",
        r"^/(etc|bin|sbin|lib|lib32|lib64|boot|nix/store|snap)(/|$)",
        "the operating system",
    ),
    Rule(
        "library",
        r"^/usr/(local/)?(bin|sbin|lib|lib32|lib64|libexec|share|include|cuda[^/]*)(/|$)",
        "the operating system",
    ),
    Rule("library", r"/bin/(python|pypy)[0-9.]*$", "the interpreter"),
)

_KINDS = {
    0o100000: "regular",
    0o040000: "directory",
    0o010000: "pipe",
    0o140000: "socket",
    0o020000: "device",
    0o060000: "device",
    0o120000: "other",
}
_OP_NUMBER = {op.name: op.number for op in OPS}
_FIRST_APP = min(op.number for op in OPS if op.layer == "app")
_APP_KINDS = {op.number: op.name for op in OPS if op.layer == "app"}

# Of the read and write groups, but they move no bytes of their own.
_SYNC_OPS = ("fsync", "fdatasync", "sync_range", "syncfs", "msync", "fflush")
# Where `moved` of the log is no number of bytes; see TABLES["events"]["result"].
_RESULT_OPS = ("readdir", "list", "fork", "spawn", "exec", "mmap", "munmap", "msync")

# Blocks of events in one part of the table: about a million events, 150 MB while they are turned.
PART_BLOCKS = 640
MAX_WORKERS = 4
BUILD_MEMORY = "1GB"
QUERY_MEMORY = "2GB"
TEXT_ROWS = 20_000

# Clocks of two processes of one host agree within their anchors' reading, microseconds.
CLOCK_SLACK_NS = 1_000_000

# The year 2116; log.TIME_LIMIT_NS says why there are limits.
UNIX_LIMIT_NS = 1 << 62

# Lies in every folder that may be removed whole.
_MADE_HERE = "made-by-penstock"

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

_UNSEEN_REASON = "static, set-uid or started with a cleaned environment"


def _table(op_names: Sequence[str]) -> Array:
    table = np.zeros(256, bool)
    table[[_OP_NUMBER[name] for name in op_names]] = True
    return table


_HAS_SECOND_FILE = _table(SECOND_FILE_OPS)
_HAS_RESULT = _table(_RESULT_OPS)
_MOVES_BYTES = _table(
    [op.name for op in OPS if op.group in ("read", "write") and op.name not in _SYNC_OPS]
)


# --- the run -------------------------------------------------------------------------------------


class Rows(list[tuple[Any, ...]]):
    """What a query answered, with the columns' names."""

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        super().__init__(rows)
        self.columns = columns

    def fetchall(self) -> list[tuple[Any, ...]]:
        """The rows, as DuckDB's own results give them."""
        return list(self)


class Run:
    """The tables of a run folder.  Made by open_run; use as a context manager, or call close.

    folder: the run folder.  tables: where its Parquet files are.  start_unix_ns: the run's start,
    ns since 1970 by the clock of the host that started first.  is_running: a process of the run is
    still recording, so numbers are those of this moment.  connection: DuckDB with TABLES as views,
    for modules of this package that prepare tables in a cursor of their own.
    """

    def __init__(
        self,
        folder: Path,
        tables: Path,
        manifest: dict[str, Any],
        classes: Sequence[Rule],
        made_for_it: Path | None = None,
    ) -> None:
        self.folder = folder
        self.tables = tables
        self.start_unix_ns: int = manifest["start_unix_ns"]
        self.is_running: bool = bool(manifest["running"])
        self._lock = threading.Lock()
        # Removed is only what was made for this run and is named as such: never what a path
        # happens to lie in.
        spilled = _made_here(tempfile.mkdtemp(prefix="penstock-"))
        self._remove_made = weakref.finalize(self, _remove_made, spilled, made_for_it)
        self.connection = _connect_tables(tables, classes, spilled)

    def sql(self, query: str, parameters: Sequence[Any] | dict[str, Any] | None = None) -> Rows:
        """Answers one SELECT (also WITH, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE) over TABLES, or
        makes a temporary table or view for later ones.

        Reads no file but the run's tables and writes none.  Raises QueryError in DuckDB's words.
        """
        with self._lock, _translated("the query cannot be answered"):
            cursor = self._checked(query).execute(query, parameters)
            return Rows([column[0] for column in cursor.description or []], cursor.fetchall())

    def arrays(
        self, query: str, parameters: Sequence[Any] | dict[str, Any] | None = None
    ) -> dict[str, Array]:
        """As sql, with each column an array; a masked one where it has NULLs."""
        with self._lock, _translated("the query cannot be answered"):
            columns: dict[str, Array] = self._checked(query).execute(query, parameters).fetchnumpy()
            return columns

    def _checked(self, query: str) -> duckdb.DuckDBPyConnection:
        statements = self.connection.extract_statements(query)
        if len(statements) != 1:
            raise QueryError(f"a query is one statement, this text has {len(statements)}")
        kind = statements[0].type
        is_temporary = re.match(r"\s*CREATE\s+(OR\s+REPLACE\s+)?TEMP", query, re.IGNORECASE)
        if kind != duckdb.StatementType.SELECT and not (
            kind == duckdb.StatementType.CREATE and is_temporary
        ):
            raise QueryError(f"a query only reads: SELECT or CREATE TEMP, not {kind.name}")
        return self.connection

    def close(self) -> None:
        """Ends the connection; tables that were not kept are removed."""
        self.connection.close()
        self._remove_made()

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def open_run(
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    classes: Sequence[Rule] = (),
) -> Run:
    """Opens a run folder; turns its logs into tables first unless that was done and no log changed.

    progress is called with (done, total) blocks while tables are built.  classes are rules that
    come before those in RUN/classes.toml (`data = ["^/scratch/"]`, one list of patterns for each
    class) and before PATH_RULES.  Raises RunError: no such folder, no log in it, no room for
    tables, a pattern that is none; LogError: a log of a newer format.
    """
    path = Path(folder)
    if _utf8(str(path)) != str(path):
        raise RunError(f"{_utf8(str(path))}: tables need a name in UTF-8; rename the folder")
    manifest = _manifest(path)
    rules = (*classes, *_read_classes(path / "classes.toml"))
    kept = path / "tables"
    current = _read_manifest(kept)
    if current and all(current.get(key) == manifest[key] for key in manifest):
        with suppress(RunError):  # a file of them is missing or damaged: made again
            return Run(path, kept, current, rules)
    building, is_ours = _building_folder(path, is_kept=not manifest["running"])
    try:
        return _built(path, building, is_ours, manifest, rules, progress)
    except (RunError, OSError) as error:
        # A full disk is a reason why a recording ended, so it must not keep anyone from reading it.
        if not is_ours or "No space left" not in str(error):
            raise
        _remove_made(building)
    building, is_ours = _building_folder(path, is_kept=False)
    return _built(path, building, is_ours, manifest, rules, progress)


def _built(
    folder: Path,
    building: Path,
    is_ours: bool,
    manifest: dict[str, Any],
    rules: Sequence[Rule],
    progress: Progress | None,
) -> Run:
    """Makes the tables in `building`, which is removed when that fails, and opens the run."""
    try:
        tables = building / "tables"
        with _translated(f"{folder}: its tables cannot be made", RunError):
            manifest["start_unix_ns"] = _Build(folder, manifest, tables, progress).make()
            (tables / "manifest.json").write_text(json.dumps(manifest, indent=1))
            if is_ours:
                _put_in_place(building, folder / "tables")
                tables = folder / "tables"
        return Run(folder, tables, manifest, rules, None if is_ours else building)
    except BaseException:
        _remove_made(building)
        raise


def describe_tables() -> str:
    """TABLES as Markdown, for the documentation."""
    parts = []
    for table, columns in TABLES.items():
        rows = [f"| `{name}` | {kind} | {meaning} |" for name, (kind, meaning) in columns.items()]
        head = ["| column | type | meaning |", "| --- | --- | --- |"]
        parts.append("\n".join([f"### {table}", "", *head, *rows]))
    return "\n\n".join(parts) + "\n"


# --- which tables, and are they current ----------------------------------------------------------


def _manifest(folder: Path) -> dict[str, Any]:
    """What tables of this folder are made of: equal manifests, equal tables."""
    try:
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file())
    except OSError as error:
        raise RunError(f"{folder}: not a run folder: {error.strerror}") from error
    names = [name for name in names if name.endswith(".log")]
    manifest: dict[str, Any] = {
        "format": TABLES_FORMAT,
        "definitions": zlib.crc32(repr((TABLES, PATH_RULES, OPS)).encode()),
        "logs": {},
        "running": [],
        "skipped": {},
    }
    for name in names:
        path = folder / name
        try:
            status = path.stat()
            with open(path, "rb") as file:
                page = file.read(4096)
            header = read_header(path)
        except OSError as error:
            raise RunError(f"{path}: cannot be read: {error.strerror}") from error
        except LogError as error:
            if looks_like_log(page):
                raise
            manifest["skipped"][name] = str(error)
        else:
            # A mapped page changes the file's time late, so the header's contents count too.
            manifest["logs"][name] = [status.st_size, status.st_mtime_ns, zlib.crc32(page)]
            if header.state == "running" and _is_alive(header):
                manifest["running"].append(name)
    if not manifest["logs"]:
        first = next(iter(manifest["skipped"].values()), "record one with: penstock run COMMAND")
        raise RunError(f"{folder}: no log of penstock in it ({first})")
    return manifest


def _is_alive(header: Header) -> bool:
    """Whether the process of a log is still there: as far as this host can know."""
    try:
        if Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "") != (
            header.boot_id
        ):
            return False
        status = Path(f"/proc/{header.pid}/stat").read_text(errors="replace")
    except OSError:
        return False
    # The name before the last parenthesis may hold anything; the state is field 3, the start 22.
    fields = status.rpartition(")")[2].split()
    start_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    # Field 22 counts time in suspend and the log's clock does not; a suspended host makes a
    # process look younger here than it is, so the two are compared on one clock.
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return fields[0] not in "ZX" and start_s - asleep_s <= header.start_ns / 1e9 + 1


def _read_manifest(tables: Path) -> dict[str, Any] | None:
    try:
        manifest = json.loads((tables / "manifest.json").read_bytes())
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) else None


def _building_folder(folder: Path, is_kept: bool) -> tuple[Path, bool]:
    """An empty folder to build tables in, and whether it is inside the run folder."""
    host = platform.node().replace("/", "_") or "host"
    if is_kept:
        for entry in folder.glob(".tables-*"):
            match = re.fullmatch(r"\.tables-(.*)-(\d+)-[^-]*", entry.name)
            if match and match[1] == host and not Path(f"/proc/{match[2]}").exists():
                _remove_made(entry)
        try:
            prefix = f".tables-{host}-{os.getpid()}-"
            return _with_tables(tempfile.mkdtemp(prefix=prefix, dir=folder)), True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise RunError(f"{folder}: no tables can be made here: {error.strerror}") from error
    return _with_tables(tempfile.mkdtemp(prefix="penstock-")), False


def _with_tables(folder: str) -> Path:
    path = _made_here(folder)
    path.chmod(0o755)
    for name in ("tables", "tables/events", "tables/spans"):
        (path / name).mkdir()
    return path


def _put_in_place(building: Path, kept: Path) -> None:
    """Tables appear whole or not at all; another process may be doing the same."""
    for attempt in range(10):
        try:
            (building / "tables").rename(kept)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == 9:
                raise RunError(f"{kept}: cannot be put in place: {error.strerror}") from error
        with suppress(FileNotFoundError):
            kept.rename(building / f"old-{attempt}")
    _remove_made(building)


def _read_classes(path: Path) -> list[Rule]:
    """The user's rules, in the order of the file."""
    try:
        classes = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    rules = []
    for path_class, patterns in classes.items():
        if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
            raise RunError(f'{path}: write {path_class} = ["pattern", …], a list of patterns')
        rules += [Rule(path_class, pattern) for pattern in patterns]
    return rules


# --- from logs to Parquet ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Source:
    """A log and its place in the run."""

    process: int
    parent: int | None
    log: Log
    ns_per_tick: float
    shift_ns: int  # from its host's CLOCK_MONOTONIC to ns since the run's start
    is_alive: bool
    threads: Array  # numbers in the log, ascending
    first_thread: int  # what the first of them is in the run

    @property
    def start_ns(self) -> int:
        """When its recording began, ns since the run's start."""
        return _bounded(self.log.header.start_ns) + self.shift_ns


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """Steps of one process by start; ns since the run's start."""

    start_ns: Array
    end_ns: Array
    number: Array

    def at(self, ns: Array) -> Array:
        """The step under way at each moment, -1 where there is none."""
        latest = np.searchsorted(self.start_ns, ns, side="right") - 1
        is_inside = (latest >= 0) & (ns < self.end_ns[latest])
        number: Array = np.where(is_inside, self.number[latest], -1)
        return number


@dataclass(frozen=True, slots=True, eq=False)
class _Survey:
    """What must be known of a log before any log's events can be turned into rows."""

    steps: _Steps
    started: Events  # fork, exec and spawn
    names: dict[int, str]


class _Build:
    """One making of the tables.  What grows with the run lies in DuckDB, which spills to disk
    beyond BUILD_MEMORY, or in the arrays of one part for each worker."""

    def __init__(
        self, folder: Path, manifest: dict[str, Any], tables: Path, progress: Progress | None
    ) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tables = tables
        self.progress = progress
        self.workers = min(MAX_WORKERS, len(os.sched_getaffinity(0)))
        self.surveys: dict[int, _Survey] = {}

    def make(self) -> int:
        """Writes the tables; returns the run's start, ns since 1970."""
        config: dict[str, Any] = {
            "threads": self.workers,
            "memory_limit": BUILD_MEMORY,
            "temp_directory": str(self.tables.parent / "spilled"),
        }
        with (
            _translated(f"{self.folder}: its tables cannot be made", RunError),
            duckdb.connect(":memory:", config=config) as connection,
        ):
            self.connection = _quiet(connection)
            connection.execute(_FOLDED_TABLE)
            _create(connection, "texts", _TEXT_TYPES)
            for table in ("notes", "processes", "threads"):
                _create(connection, table, _types(table))
            _make_ops(connection)
            start_unix_ns = self._find_sources()
            # Surveying reads what turning reads, without the work: a third of the way.
            self.total = 3 * sum(len(source.log.event_blocks) for source in self.sources)
            self.done = 0
            self._each(self._survey, [(source,) for source in self.sources])
            connection.execute(_INTERN)
            self._each(self._write_part, list(enumerate(self._parts())))
            self._write_small()
        shutil.rmtree(config["temp_directory"], ignore_errors=True)
        return start_unix_ns

    def _each(self, work: Callable[..., int], tasks: list[tuple[Any, ...]]) -> None:
        """work(*task) for all tasks on all workers; each returns how many blocks it did."""
        with ThreadPoolExecutor(self.workers) as pool:
            futures = [pool.submit(work, *task) for task in tasks]
            try:
                for future in as_completed(futures):
                    self.done += future.result()
                    if self.progress:
                        self.progress(self.done, self.total)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _find_sources(self) -> int:
        with ThreadPoolExecutor(self.workers) as pool:
            logs = list(pool.map(read_log, [self.folder / name for name in self.manifest["logs"]]))
        clocks = _clocks(logs)
        unix = [_bounded(log.header.start_ns) + clocks[_boot(log)].unix_minus_ns for log in logs]
        start_unix_ns = min(unix)
        order = sorted(range(len(logs)), key=lambda i: (unix[i], logs[i].path))
        starts = [unix[i] - start_unix_ns for i in order]
        logs = [logs[i] for i in order]
        parents = _parents(logs, starts)
        self.sources: list[_Source] = []
        n_threads = 0
        for process, log in enumerate(logs):
            threads = np.array([thread.number for thread in log.threads], np.uint32)
            clock = clocks[_boot(log)]
            self.sources.append(
                _Source(
                    process,
                    parents[process],
                    log,
                    clock.ns_per_tick or log.ns_per_tick,
                    clock.unix_minus_ns - start_unix_ns,
                    Path(log.path).name in self.manifest["running"],
                    threads,
                    n_threads,
                )
            )
            n_threads += len(threads)
        return start_unix_ns

    # First pass: texts, steps, started programs.

    def _survey(self, source: _Source) -> int:
        names = self._survey_texts(source)
        ops = [_OP_NUMBER[name] for name in ("step", "fork", "exec", "spawn")]
        events = _joined(source.log.events(ns_per_tick=source.ns_per_tick, ops=ops))
        is_step = events.op == _OP_NUMBER["step"]
        steps = _steps(events.where(is_step), source.shift_ns)
        self.surveys[source.process] = _Survey(steps, events.where(~is_step), names)
        return len(source.log.event_blocks)

    def _survey_texts(self, source: _Source) -> dict[int, str]:
        cursor = _quiet(self.connection.cursor())
        names: dict[int, str] = {}
        folders = _Folders(source.log)
        rows: list[tuple[Any, ...]] = []
        notes: list[tuple[Any, ...]] = []
        for text in source.log.texts():
            if text.kind == NAME_TEXT:
                names.setdefault(text.id, _utf8(text.name))
            elif text.kind == NOTE_TEXT:
                notes.append((source.process, _utf8(text.name), _utf8(text.resolved)))
            elif text.kind == FILE_TEXT:
                rows.append(_file_row(source.process, text, folders.path(text)))
                if len(rows) == TEXT_ROWS:
                    _insert(cursor, "texts", _TEXT_TYPES, rows)
                    rows = []
        _insert(cursor, "texts", _TEXT_TYPES, rows)
        _insert(cursor, "notes", _types("notes"), notes)
        return names

    # Second pass: events.

    def _parts(self) -> list[list[tuple[_Source, int, int]]]:
        """The run in pieces of logs (source, first block, last block), PART_BLOCKS a part."""
        parts: list[list[tuple[_Source, int, int]]] = [[]]
        room = PART_BLOCKS
        for source in self.sources:
            first, blocks = 0, len(source.log.event_blocks)
            while first < blocks:
                last = min(blocks, first + room)
                parts[-1].append((source, first, last))
                room -= last - first
                first = last
                if not room:
                    parts.append([])
                    room = PART_BLOCKS
        return parts

    def _write_part(self, number: int, pieces: list[tuple[_Source, int, int]]) -> int:
        cursor = _quiet(self.connection.cursor())
        calls: list[dict[str, Array]] = []
        spans: list[dict[str, Array]] = []
        for source, first, last in pieces:
            ids = _Ids(cursor, source.process)
            steps = self._steps_of(source)
            for events in source.log.events(first, last, source.ns_per_tick):
                is_app = events.op >= _FIRST_APP
                if is_app.any():
                    app = events.where(is_app)
                    spans.append(_span_columns(source, app, self.surveys[source.process].names))
                    events = events.where(~is_app)
                calls.append(_call_columns(source, events, ids, steps))
        name = f"{number:05}.parquet"
        _copy_columns(cursor, calls, _CALLS_SELECT, self.tables / "events" / name)
        _copy_columns(cursor, spans, _SPANS_SELECT, self.tables / "spans" / name)
        return 2 * sum(last - first for _, first, last in pieces)

    def _steps_of(self, source: _Source) -> _Steps:
        """The steps of a process, or of its nearest ancestor that has any."""
        steps = self.surveys[source.process].steps
        while not len(steps.number) and source.parent is not None:
            source = self.sources[source.parent]
            steps = self.surveys[source.process].steps
        return steps

    # Last: what is small, or needs all events.

    def _write_small(self) -> None:
        connection = self.connection
        for source in self.sources:
            _insert_counters(connection, source)
        _copy(connection, "FROM folded", self.tables / "folded.parquet")
        _make_events(connection, self.tables)
        connection.execute(_OUTPUTS)
        _find_renamed_outputs(connection)
        select = _FILES_SELECT.format(path_class=_class_sql(PATH_RULES, _DEFAULT_CLASS))
        _copy(connection, select, self.tables / "files.parquet")
        self._write_processes()
        self._write_unseen()
        skipped = [(None, "skipped", _utf8(why)) for why in self.manifest["skipped"].values()]
        _insert(connection, "notes", _types("notes"), skipped)
        _copy(connection, "FROM notes ORDER BY ALL", self.tables / "notes.parquet")

    def _write_processes(self) -> None:
        ends = dict(self.connection.execute(_LATEST).fetchall())
        processes = [_process_row(source, ends.get(source.process)) for source in self.sources]
        threads = [
            (source.first_thread + i, source.process, thread.tid, _utf8(thread.name))
            + (thread.tid == source.log.header.pid,)
            for source in self.sources
            for i, thread in enumerate(source.log.threads)
        ]
        for table, rows in (("processes", processes), ("threads", threads)):
            _insert(self.connection, table, _types(table), rows)
            _copy(self.connection, f"FROM {table}", self.tables / f"{table}.parquet")

    def _write_unseen(self) -> None:
        images: dict[tuple[str, int], list[_Source]] = {}
        for source in self.sources:
            images.setdefault((_boot(source.log), source.log.header.pid), []).append(source)
        rows: list[tuple[Any, ...]] = []
        for source in self.sources:
            started = self.surveys[source.process].started
            # The child of a shell that libc starts (system, popen) is not known: pid 0.
            is_program = started.op != _OP_NUMBER["fork"]
            programs = started.where(is_program & (started.errno == 0) & (started.moved > 0))
            files = _Ids(self.connection, source.process).files(programs.file)
            moments = programs.start_ns + source.shift_ns
            for pid, file, moment in zip(programs.moved, files, moments, strict=True):
                logs = images.get((_boot(source.log), int(pid)), ())
                # Two readings of the clock by two processes may differ a little.
                if not any(
                    log is not source and log.start_ns >= moment - CLOCK_SLACK_NS for log in logs
                ):
                    rows.append((source.process, int(pid), int(file)))
        types = {"process": "INTEGER", "pid": "BIGINT", "file": "INTEGER"}
        _create(self.connection, "started", types)
        _insert(self.connection, "started", types, rows)
        _copy(self.connection, _UNSEEN_SELECT, self.tables / "unseen.parquet")


# --- clocks and processes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _HostClock:
    """What all logs of one boot share: CLOCK_REALTIME minus CLOCK_MONOTONIC, and the counter's rate
    (None: the clock is in ns, or each log knows best)."""

    unix_minus_ns: int
    ns_per_tick: float | None


def _boot(log: Log) -> str:
    """Names the clock of a log: the boot of its host, or itself where that is not known."""
    return log.header.boot_id if log.header.boot_id.strip("0") else log.path


def _clocks(logs: list[Log]) -> dict[str, _HostClock]:
    """The offset is that of the earliest log, so that a host's processes stay in order if its wall
    clock is set; the rate that of the log whose two anchors are furthest apart."""
    earliest: dict[str, Log] = {}
    longest: dict[str, Log] = {}
    for log in logs:
        boot = _boot(log)
        if log.header.start_ns < earliest.setdefault(boot, log).header.start_ns:
            earliest[boot] = log
        if log.header.clock == "tsc" and log.anchored_ns > (
            longest[boot].anchored_ns if boot in longest else 0
        ):
            longest[boot] = log
    clocks = {}
    for boot, log in earliest.items():
        offset = _bounded(log.header.start_unix_ns, UNIX_LIMIT_NS) - _bounded(log.header.start_ns)
        rate = longest[boot].ns_per_tick if boot in longest else None
        clocks[boot] = _HostClock(offset, rate)
    return clocks


def _bounded(number: int, limit: int = TIME_LIMIT_NS) -> int:
    """A damaged number stays one that sums in 64 bits can bear."""
    return min(number, limit)


def _parents(logs: list[Log], starts: list[int]) -> list[int | None]:
    """For each log, in order of start, the latest before it of its parent's pid on its host."""
    latest: dict[tuple[str, int], int] = {}
    parents: list[int | None] = []
    for process, log in enumerate(logs):
        parents.append(latest.get((_boot(log), log.header.ppid)))
        latest[_boot(log), log.header.pid] = process
    return parents


def _steps(events: Events, shift_ns: int) -> _Steps:
    """Steps from STEP events.  Where any was marked by hand, the adapter's do not count."""
    if (events.moved == 1).any():
        events = events.where(events.moved == 1)
    events = events.where(np.argsort(events.start_ns, kind="stable"))
    start = events.start_ns + shift_ns
    end = np.where(events.duration_ns < 0, np.iinfo(np.int64).max, start + events.duration_ns)
    return _Steps(start, end, np.where(events.offset > INT32_MAX, -1, events.offset))


def _rank(rank: int | None) -> int | None:
    return rank if rank is None or rank <= INT32_MAX else None  # damaged


def _process_row(source: _Source, latest_ns: int | None) -> tuple[Any, ...]:
    header, log = source.log.header, source.log
    state, reason = header.state, header.reason
    end_ns: int | None = _bounded(header.last_ns) + source.shift_ns
    if state == "running":
        state = "running" if source.is_alive else "killed"
        end_ns = None if source.is_alive else max(source.start_ns, end_ns or 0, latest_ns or 0)
    return (
        source.process,
        header.pid,
        header.ppid,
        source.parent,
        _utf8(header.host),
        _rank(header.rank),
        _rank(header.local_rank),
        header.origin,
        _utf8(header.executable),
        _utf8(shlex.join(header.command)),
        _utf8(header.folder),
        source.start_ns,
        end_ns,
        state,
        _utf8(reason) or None,
        *map(_bounded, (header.folded, header.lost, header.unseen, header.attach_ns)),
        header.slots,
        _utf8(Path(log.path).name),
        log.is_torn,
        log.damaged_units,
    )


# --- texts and paths -----------------------------------------------------------------------------


class _Folders:
    """Paths of one log's file texts, whose names may start from a folder that has an id itself."""

    def __init__(self, log: Log) -> None:
        self.texts: dict[int, Text] = {}
        for text in log.texts() if log.bases else ():
            # The text that names a folder counts; without one, where it was found.
            if text.kind == FILE_TEXT and text.id in log.bases:
                self.texts.setdefault(text.id, text)
                if not self.texts[text.id].name:
                    self.texts[text.id] = text

    def path(self, text: Text) -> str:
        """The path a text names; relative where its folder is not known; "" if it names none."""
        name = text.name
        if name.startswith("/") and "/." not in name and "//" not in name and name[-1] != "/":
            return name  # most are in normal form
        parts = [name]
        seen: set[int] = set()
        while not parts[-1].startswith("/"):
            if not parts[-1] or text.base in seen or text.base not in self.texts:
                return name and parts[0]
            seen.add(text.base)
            text = self.texts[text.base]
            parts.append(text.name or text.resolved)
        path = posixpath.normpath("/".join(reversed(parts)))
        return path[1:] if path.startswith("//") else path


def _file_row(process: int, text: Text, path: str) -> tuple[Any, ...]:
    kind: str | None = None
    if text.mode:
        kind = _KINDS.get(text.mode & 0o170000, "other")
    if kind == "device" and re.match(r"/dev/(pts/|tty|console|ptmx)", text.resolved or path):
        kind = "terminal"
    return (
        process,
        text.id,
        _utf8(path) or None,
        _utf8(text.resolved) or None,
        kind,
        text.device & INT64_MAX if text.mode else None,
        text.inode & INT64_MAX if text.mode else None,
        text.size_bytes if text.mode and text.size_bytes >= 0 else None,
    )


def _utf8(text: str) -> str:
    r"""The text with bytes that are not UTF-8 as \xff, so that it can be stored and seen."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _class_sql(rules: Sequence[Rule], otherwise: str) -> str:
    cases = [
        f"WHEN regexp_matches(path, {_quoted(rule.pattern)}) THEN {_quoted(rule.path_class)}"
        for rule in rules
    ]
    return f"CASE {' '.join(cases)} ELSE {otherwise} END" if cases else otherwise


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class _Ids:
    """From a log's file ids to the run's."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, process: int) -> None:
        rows = connection.execute(
            "SELECT id, file FROM ids WHERE process = ? ORDER BY id", [process]
        ).fetchnumpy()
        self.ids: Array = np.append(rows["id"].astype(np.uint32), np.uint32(0))
        self.numbers: Array = np.append(rows["file"].astype(np.int32), np.int32(-1))
        self.table: Array | None = None
        limit = int(self.ids.max()) + 1
        # Ids count up from 1, so a plain table serves; a damaged log may hold any number.
        if limit <= 4 * len(self.ids) + 1024:
            self.table = np.full(limit + 1, -1, np.int32)
            self.table[self.ids[:-1]] = self.numbers[:-1]
            self.table[0] = -1

    def files(self, ids: Array) -> Array:
        """Numbers of files in the run, -1 where the log does not say what an id means."""
        if self.table is not None:
            found: Array = self.table[np.minimum(ids, len(self.table) - 1)]
            return found
        at = np.minimum(np.searchsorted(self.ids[:-1], ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, self.numbers[at], -1)


# --- arrays to Parquet ---------------------------------------------------------------------------


def _joined(batches: Iterable[Events]) -> Events:
    every = list(batches) or [Events.none()]
    return Events(
        *(np.concatenate([getattr(part, name) for part in every]) for name in Events.__slots__)
    )


def _call_columns(source: _Source, events: Events, ids: _Ids, steps: _Steps) -> dict[str, Array]:
    start_ns = events.start_ns + source.shift_ns
    offset, moved = events.offset, events.moved
    other = np.full(len(events), -1, np.int32)
    has_second = _HAS_SECOND_FILE[events.op]
    if has_second.any():
        other[has_second] = ids.files(offset[has_second].astype(np.uint32))
        offset[has_second] = -1
    result = np.full(len(events), -1, np.int64)
    has_result = _HAS_RESULT[events.op]
    if has_result.any():
        result[has_result] = moved[has_result]
        moved[has_result] = 0
    is_dup = events.op == _OP_NUMBER["dup"]
    if is_dup.any():
        result[is_dup] = offset[is_dup]
        offset[is_dup] = -1
    return {
        "process": np.full(len(events), source.process, np.int32),
        "thread": _threads(source, events),
        "op_number": events.op,
        "errno": events.errno.astype(np.int16),
        "file": ids.files(events.file),
        "other_file": other,
        "start_ns": start_ns,
        "duration_ns": events.duration_ns,
        "offset_bytes": offset,
        "asked_bytes": events.asked,
        "moved_bytes": moved,
        "result": result,
        "step": steps.at(start_ns).astype(np.int32)
        if len(steps.number)
        else np.full(len(events), -1, np.int32),
    }


def _span_columns(source: _Source, events: Events, names: dict[int, str]) -> dict[str, Array]:
    return {
        "process": np.full(len(events), source.process, np.int32),
        "thread": _threads(source, events),
        "kind": events.op,
        "name": np.array([names.get(int(number)) for number in events.file], object),
        "index": events.offset,
        "a": events.asked,
        "b": events.moved,
        "start_ns": events.start_ns + source.shift_ns,
        "duration_ns": events.duration_ns,
    }


def _threads(source: _Source, events: Events) -> Array:
    at = np.searchsorted(source.threads, events.thread)
    return (source.first_thread + at).astype(np.int32)


def _copy_columns(
    cursor: duckdb.DuckDBPyConnection, parts: list[dict[str, Array]], select: str, path: Path
) -> None:
    names = list(parts[0]) if parts else re.findall(r"\w+(?=\W?::)", select)
    columns = {
        name: np.concatenate([part.pop(name) for part in parts]) if parts else np.empty(0, np.int64)
        for name in names
    }
    cursor.register("part", columns)
    _copy(cursor, select, path)
    cursor.unregister("part")


def _copy(connection: duckdb.DuckDBPyConnection, select: str, path: Path) -> None:
    # Measured on 50 million events: columns of many values take half the time and 12 % less space
    # when no dictionary is tried for them.
    connection.execute(
        f"COPY ({select}) TO {_quoted(str(path))} "
        "(FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, DICTIONARY_SIZE_LIMIT 5000)"
    )


def _insert(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    types: dict[str, str],
    rows: list[tuple[Any, ...]],
) -> None:
    """Rows into a table of columns {name: type}, as arrays: row by row takes a millisecond each."""
    arrays: dict[str, Array] = {}
    select = []
    columns = zip(*rows, strict=True) if rows else [()] * len(types)
    for (name, kind), column in zip(types.items(), columns, strict=True):
        select.append(f'"{name}"')
        if kind == "VARCHAR":
            arrays[name] = np.array(column, object)
            continue
        arrays[name] = np.array([value or 0 for value in column], _NUMPY[kind])
        if None in column:
            # Not a masked array: releases of DuckDB before 2.0 pass over the mask of integers.
            arrays[f"{name} is known"] = np.array([value is not None for value in column])
            select[-1] = f'CASE WHEN "{name} is known" THEN "{name}" END'
    connection.register("new_rows", arrays)
    connection.execute(f"INSERT INTO {table} SELECT {', '.join(select)} FROM new_rows")
    connection.unregister("new_rows")


_NUMPY = {
    "BIGINT": np.int64,
    "INTEGER": np.int32,
    "UINTEGER": np.uint32,
    "UTINYINT": np.uint8,
    "BOOLEAN": np.bool_,
}
_TEXT_TYPES = {
    "process": "INTEGER",
    "id": "UINTEGER",
    "path": "VARCHAR",
    "resolved": "VARCHAR",
    "kind": "VARCHAR",
    "device": "BIGINT",
    "inode": "BIGINT",
    "size": "BIGINT",
}
_OP_TYPES = {
    "op_number": "UTINYINT",
    "op": "VARCHAR",
    "layer": "VARCHAR",
    "op_group": "VARCHAR",
    "is_access": "BOOLEAN",
}


def _types(table: str) -> dict[str, str]:
    return {name: kind for name, (kind, _) in TABLES[table].items()}


def _create(connection: duckdb.DuckDBPyConnection, table: str, types: dict[str, str]) -> None:
    columns = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    connection.execute(f"CREATE TABLE {table} ({columns})")


def _insert_counters(connection: duckdb.DuckDBPyConnection, source: _Source) -> None:
    ids = _Ids(connection, source.process)
    log, shift_ns = source.log, source.shift_ns
    for records in log.counters():
        n = len(records)
        if not n:
            continue
        fields = records.dtype.names or ()
        moves = _MOVES_BYTES[records["op"].astype(np.uint8)]
        is_access = "buckets" in fields
        columns = {
            "process": np.full(n, source.process, np.int32),
            "file": ids.files(records["file"]),
            "op_number": records["op"].astype(np.uint8),
            "first_ns": log.to_ns(records["first"], source.ns_per_tick) + shift_ns,
            "last_ns": log.to_ns(records["last"], source.ns_per_tick) + shift_ns,
            **{
                name: records[field] if is_access else np.full(n, -1)
                for name, field in _FOLDED_PLACES.items()
            },
        }
        for name, field in _FOLDED_FIELDS.items():
            has_field = field in fields
            counts = records[field] if has_field else np.zeros(n, np.uint64)
            if field in _OF_ACCESS:
                counts = counts * moves
            rate = source.ns_per_tick if field.endswith("ticks") else 1
            columns[name] = np.minimum(counts * rate, FOLDED_MAX).astype(np.int64)
        for i in range(10):
            counts = records["buckets"][:, i] * moves if is_access else np.zeros(n, np.uint64)
            columns[f"bucket_{i}"] = np.minimum(counts, FOLDED_MAX).astype(np.int64)
        for name in ("sizes", "strides"):
            for i in range(4):
                for part in ("value", "calls"):
                    counts = records[name][part][:, i] if is_access else np.zeros(n, np.int64)
                    columns[f"{name}_{i}_{part}"] = np.where(moves, counts.view(np.int64), 0)
        connection.register("counters_part", columns)
        connection.execute(f"INSERT INTO folded BY NAME {_FOLDED_SELECT}")
        connection.unregister("counters_part")


# A count that no job reaches and that a sum of thousands still holds.
FOLDED_MAX = 1 << 50
_FOLDED_FIELDS = {
    "calls": "calls",
    "errors": "errors",
    "asked_bytes": "asked",
    "moved_bytes": "moved",
    "duration_ns": "ticks",
    "max_duration_ns": "max_ticks",
    "sequential": "sequential",
    "consecutive": "consecutive",
    "switches": "switches",
    "unaligned": "unaligned",
    "empty": "empty",
}
_FOLDED_PLACES = {
    "max_end_bytes": "max_end",
    "first_offset_bytes": "first_offset",
    "last_end_bytes": "last_end",
}
_OF_ACCESS = ("moved", "sequential", "consecutive", "switches", "unaligned", "empty")


def _pairs(name: str) -> str:
    pairs = ", ".join(f"{{'value': {name}_{i}_value, 'calls': {name}_{i}_calls}}" for i in range(4))
    return f"list_filter([{pairs}], lambda pair: pair.calls > 0) AS {name}"


_FOLDED_SELECT = f"""
    SELECT process, nullif(file, -1) AS file, op_number, first_ns, last_ns,
        {", ".join(f"nullif({name}, -1) AS {name}" for name in _FOLDED_PLACES)},
        {", ".join(_FOLDED_FIELDS)},
        {", ".join(f"bucket_{i}" for i in range(10))}, {_pairs("sizes")}, {_pairs("strides")}
    FROM counters_part"""

_PAIRS_TYPE = TABLES["counters"]["sizes"][0]
_FOLDED_TABLE = f"""
    CREATE TABLE folded (process INTEGER, file INTEGER, op_number UTINYINT, first_ns BIGINT,
        last_ns BIGINT, {" BIGINT, ".join([*_FOLDED_PLACES, *_FOLDED_FIELDS])} BIGINT,
        {", ".join(f"bucket_{i} BIGINT" for i in range(10))}, sizes {_PAIRS_TYPE},
        strides {_PAIRS_TYPE});
"""

# A path has one number in the run, whoever opened it; what is known of it is from its first open.
_INTERN = """
    CREATE TABLE known AS
    SELECT process, id, coalesce(min(path), min(resolved)) AS path, max(kind) AS kind,
        CASE WHEN max(kind) IS NOT NULL THEN coalesce(max(resolved), min(path)) END AS resolved,
        max(device) AS device, max(inode) AS inode, max(size) AS size
    FROM texts GROUP BY process, id
    HAVING coalesce(min(path), min(resolved)) IS NOT NULL;
    CREATE TABLE paths AS
    SELECT (row_number() OVER (ORDER BY path) - 1)::INTEGER AS file, path, first.*
    FROM (
        SELECT path, coalesce(
            arg_min({resolved: resolved, kind: kind, device: device, inode: inode, size: size},
                (process, id)) FILTER (WHERE kind IS NOT NULL),
            {resolved: NULL, kind: 'unknown', device: NULL, inode: NULL, size: NULL}) AS first
        FROM known GROUP BY path);
    CREATE TABLE ids AS
    SELECT process, id, file FROM known JOIN paths USING (path) ORDER BY process, id;
"""

_CALLS_SELECT = """
    SELECT process::INTEGER AS process, thread::INTEGER AS thread, op_number::UTINYINT AS op_number,
        errno::SMALLINT AS errno, nullif(file::INTEGER, -1) AS file,
        nullif(other_file::INTEGER, -1) AS other_file, start_ns::BIGINT AS start_ns,
        nullif(duration_ns::BIGINT, -1) AS duration_ns,
        CASE WHEN offset_bytes::BIGINT >= 0 THEN offset_bytes::BIGINT END AS offset_bytes,
        asked_bytes::BIGINT AS asked_bytes, moved_bytes::BIGINT AS moved_bytes,
        nullif("result"::BIGINT, -1) AS "result", CASE WHEN step::INTEGER >= 0 THEN step END AS step
    FROM part"""
_SPANS_SELECT = f"""
    SELECT process::INTEGER AS process, thread::INTEGER AS thread,
        CASE kind::INTEGER {" ".join(f"WHEN {n} THEN '{kind}'" for n, kind in _APP_KINDS.items())}
            ELSE 'span' END AS kind,
        name::VARCHAR AS name, nullif("index"::BIGINT, -1) AS "index", a::BIGINT AS a,
        b::BIGINT AS b, start_ns::BIGINT AS start_ns, nullif(duration_ns::BIGINT, -1) AS duration_ns
    FROM part"""

_DEFAULT_CLASS = "CASE WHEN is_output THEN 'output' ELSE 'data' END"
_FILES_SELECT = """
    WITH known AS (
        SELECT p.*, o.file IS NOT NULL AS is_output FROM paths p LEFT JOIN outputs o USING (file))
    SELECT file, path, resolved AS resolved_path,
        CASE WHEN kind IN ('pipe', 'socket', 'terminal', 'device') THEN 'system'
            ELSE {path_class} END AS path_class,
        kind, device::BIGINT AS device, inode::BIGINT AS inode,
        CASE WHEN size >= 0 THEN size::BIGINT END AS size_bytes
    FROM known ORDER BY file"""

# What the job wrote or made: bytes written, cut or reserved, directories made, ends of copies, and
# whatever one of these was renamed or linked to.
_OUTPUTS = """
    CREATE TABLE renames AS
    SELECT DISTINCT e.file, e.other_file
    FROM events_raw e JOIN ops o USING (op_number)
    WHERE o.op IN ('rename', 'link') AND e.errno = 0 AND e.file <> e.other_file;
    CREATE TABLE outputs AS
    WITH RECURSIVE output(file) AS (
        SELECT * FROM (
            SELECT e.file
            FROM events_raw e JOIN ops o USING (op_number)
            WHERE e.errno = 0 AND e.file IS NOT NULL
                AND (o.op IN ('truncate', 'fallocate', 'mkdir')
                    OR o.op_group = 'write' AND o.is_access AND e.moved_bytes > 0)
            UNION
            SELECT e.other_file
            FROM events_raw e JOIN ops o USING (op_number)
            WHERE e.errno = 0 AND e.other_file IS NOT NULL AND e.moved_bytes > 0
            UNION
            SELECT f.file
            FROM folded f JOIN ops o USING (op_number)
            WHERE f.file IS NOT NULL AND f.calls > f.errors
                AND (o.op IN ('truncate', 'fallocate', 'mkdir')
                    OR o.op_group = 'write' AND o.is_access AND f.moved_bytes > 0))
        UNION
        SELECT r.other_file FROM output JOIN renames r USING (file))
    SELECT file FROM output;
"""

# Of a renamed directory, the files below it have new paths that no call named.
_RENAMED_BELOW = """
    INSERT INTO outputs
    SELECT DISTINCT new.file
    FROM renames r JOIN paths f ON f.file = r.file JOIN paths t ON t.file = r.other_file
        JOIN paths new ON starts_with(new.path, t.path || '/')
        JOIN paths old ON old.path = f.path || substr(new.path, length(t.path) + 1)
        JOIN outputs o ON o.file = old.file
    WHERE (f.kind = 'directory' OR t.kind = 'directory')
        AND new.file NOT IN (SELECT file FROM outputs)
"""

_LATEST = """
    SELECT process, max(start_ns + coalesce(duration_ns, 0))
    FROM (SELECT process, start_ns, duration_ns FROM events_raw
        UNION ALL SELECT process, start_ns, duration_ns FROM spans)
    GROUP BY process"""

_UNSEEN_SELECT = f"""
    SELECT process, nullif(pid, 0) AS pid, path AS program, {_quoted(_UNSEEN_REASON)} AS reason
    FROM started LEFT JOIN paths USING (file)
    UNION ALL
    SELECT process, NULL, NULL, "value" FROM notes WHERE "key" = 'unseen'
    ORDER BY ALL"""


def _find_renamed_outputs(connection: duckdb.DuckDBPyConnection) -> None:
    # A second round finds what was renamed twice; a third never found more.
    connection.execute(_RENAMED_BELOW)
    connection.execute(_RENAMED_BELOW)


# --- tables on disk to tables in a query ---------------------------------------------------------


def _make_ops(connection: duckdb.DuckDBPyConnection) -> None:
    known = {op.number: op for op in OPS}
    rows = []
    for number in range(256):
        op = known.get(number)
        name, layer, group = (op.name, op.layer, op.group) if op else (f"op_{number}", None, None)
        rows.append((number, name, layer, group, bool(_MOVES_BYTES[number])))
    _create(connection, "ops", _OP_TYPES)
    _insert(connection, "ops", _OP_TYPES, rows)


def _make_events(connection: duckdb.DuckDBPyConnection, tables: Path) -> None:
    for view, folder in (("events_raw", "events"), ("spans", "spans")):
        paths = sorted((tables / folder).glob("*.parquet"))
        names = ", ".join(_quoted(_unglobbed(path)) for path in paths)
        connection.execute(f"CREATE VIEW {view} AS FROM read_parquet([{names}])")


def _unglobbed(path: Path) -> str:
    """DuckDB reads * ? [ in a path as a pattern; in brackets they are themselves."""
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", str(path))


_EVENTS_VIEW = """
    CREATE VIEW events AS
    SELECT e.process, e.thread, o.layer, o.op, o.op_group, e.file, f.path, f.path_class,
        f.kind AS file_kind, g.path AS other_path, e.start_ns, e.duration_ns, e.offset_bytes,
        e.asked_bytes, e.moved_bytes, e."result", e.errno, e.step
    FROM events_raw e JOIN ops o ON o.op_number = e.op_number
        LEFT JOIN files f ON f.file = e.file LEFT JOIN files g ON g.file = e.other_file"""

# Of several lists of {value, calls}, the four values with most calls.
_COMMONEST = """
    CREATE MACRO commonest(pairs) AS list_transform(
        list_reverse_sort(list_transform(
            list_distinct(list_transform(pairs, lambda p: p.value)),
            lambda v: {'calls': list_sum(list_transform(
                list_filter(pairs, lambda p: p.value = v), lambda p: p.calls))::BIGINT, 'value': v}
        ))[1:4],
        lambda p: {'value': p.value, 'calls': p.calls})"""


def _made_here(folder: str) -> Path:
    """Marks a folder that was just made as one that may be removed whole."""
    (Path(folder) / _MADE_HERE).touch()
    return Path(folder)


def _remove_made(*folders: Path | None) -> None:
    """Removes folders that _made_here marked; anything else is not ours to remove."""
    for folder in folders:
        if folder and (folder / _MADE_HERE).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _connect_tables(
    tables: Path, rules: Sequence[Rule], spilled: Path
) -> duckdb.DuckDBPyConnection:
    """An engine that sees the tables and nothing else of this machine."""
    config: dict[str, Any] = {"memory_limit": QUERY_MEMORY, "temp_directory": str(spilled)}
    connection = _quiet(duckdb.connect(":memory:", config=config))
    tables = tables.absolute()
    with _translated(f"{tables}: cannot be queried", RunError):
        _make_ops(connection)
        _make_events(connection, tables)
        for name in ("files", "folded", "notes", "processes", "threads", "unseen"):
            view = {"folded": "folded_raw", "files": "files_raw"}.get(name, name)
            path = _quoted(_unglobbed(tables / f"{name}.parquet"))
            connection.execute(f"CREATE VIEW {view} AS FROM read_parquet({path})")
        kind = "TABLE" if rules else "VIEW"
        path_class = _class_sql(rules, "path_class")
        connection.execute(
            f"CREATE {kind} files AS SELECT * REPLACE ({path_class} AS path_class) FROM files_raw"
        )
        connection.execute(_EVENTS_VIEW)
        connection.execute(_COMMONEST)
        counters = package_files("penstock").joinpath("queries/counters.sql").read_text()
        connection.execute(f"CREATE VIEW counters AS {counters}")
        # Asked twice: for the path as it is given, which may be a pattern, and for what it means.
        allowed = f"{_quoted(str(tables))}, {_quoted(_unglobbed(tables))}"
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def _quiet(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """DuckDB draws a bar on standard output where it takes the program for a person's shell."""
    connection.execute("SET enable_progress_bar = false")
    return connection


@contextmanager
def _translated(what: str, kind: type[PenstockError] = QueryError) -> Iterator[None]:
    """DuckDB's errors as ours, with their first line: the rest repeats the query."""
    try:
        yield
    except duckdb.Error as error:
        raise kind(f"{what}: {str(error).splitlines()[0]}") from error
