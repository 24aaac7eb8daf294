"""Open a run folder as a Run.  Knows which tables belong to which logs; knows no byte of a log, no
measure, no screen.

The logs of a run become Parquet under RUN/tables/ once, and later openings read the Parquet until a
log changes.  `schema.TABLES` describes each table; users query the tables with `Run.sql`.
"""

import errno
import os
import platform
import re
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import duckdb

from penstock.errors import MissingDependency, QueryError, RunError
from penstock.places.classes import CLASSES, PathRule
from penstock.recording import launch
from penstock.runs.manifest import made_by, manifest_of, surroundings_of
from penstock.runs.schema import TABLES
from penstock.runs.tables import (
    PARTED,
    STORED,
    Array,
    Progress,
    connect,
    make_tables,
    translated,
    utf8,
    write_tables,
)
from penstock.safe import bounded, checksums, drafts, harmless

__all__ = ["Rows", "Run", "import_run", "open_as", "open_run"]

# Limits of classes.toml: DuckDB tries each pattern on each path.
MOST_PATTERNS, MOST_LETTERS = 500, 2000

SHOWN_ROWS = 50  # in a notebook
MOST_LOCK_S = 5.0  # another user may hold the lock of a folder that others may read

# The mark of a folder that may be removed whole.
_MADE_HERE = "made-by-penstock"


class Rows(list[tuple[Any, ...]]):
    """The answer to a query, with the columns' names."""

    def __init__(self, columns: list[str], rows: list[tuple[Any, ...]]) -> None:
        super().__init__(rows)
        self.columns = columns

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows as DuckDB's own results do."""
        return list(self)

    def df(self) -> Any:
        """Return the rows as a pandas DataFrame.  Raises MissingDependency: there is no pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingDependency("a DataFrame needs pandas: pip install pandas") from error
        return pandas.DataFrame.from_records(list(self), columns=self.columns)

    def _repr_html_(self) -> str:
        """Return the first rows as a table, for a notebook."""
        return harmless.html_table(self.columns, self[:SHOWN_ROWS], len(self))


class Run:
    """The tables of a run folder.  Made by open_run; use as a context manager, or call close.

    folder: the run folder.  tables: the folder of the Parquet files.  start_unix_ns: the run's
    start, ns since 1970 by the clock of the host that started first.  is_running: a process of the
    run still records, so the numbers are of this moment.  classes: the user's rules.  manifest: the
    sources of the tables.  connection: DuckDB with TABLES as views, for modules of this package
    with tables of their own in a cursor.
    """

    def __init__(
        self,
        folder: Path,
        tables: Path,
        manifest: dict[str, Any],
        classes: Sequence[PathRule],
        made_for_it: Path | None = None,
    ) -> None:
        self.folder = folder
        self.tables = tables
        self.start_unix_ns: int = manifest["start_unix_ns"]
        self.is_running: bool = bool(manifest["running"])
        self.classes = tuple(classes)
        self.manifest = manifest
        self._lock = threading.Lock()
        # Penstock removes only folders made for the run, with the mark, and no other folder on the
        # path.
        spilled = _made_here(tempfile.mkdtemp(prefix="penstock-"))
        self._remove_made = weakref.finalize(self, _remove_made, spilled, made_for_it)
        beside = {
            "ceilings": _read_ceilings(folder),
            "fills": _read_fills(folder, self.start_unix_ns),
        }
        self.connection = connect(tables, classes, spilled, beside)

    def sql(self, query: str, parameters: Sequence[Any] | dict[str, Any] | None = None) -> Rows:
        """Answer a SELECT (also WITH, FROM, VALUES, DESCRIBE, SHOW, SUMMARIZE) over TABLES, or make
        a temporary table or view for later queries.

        Reads only the run's tables and writes no file.  Raises QueryError in DuckDB's words.
        """
        with self._lock, translated("the query cannot be answered"):
            cursor = self._checked(query).execute(query, parameters)
            return Rows([column[0] for column in cursor.description or []], cursor.fetchall())

    def arrays(
        self, query: str, parameters: Sequence[Any] | dict[str, Any] | None = None
    ) -> dict[str, Array]:
        """Answer a query as sql does, with each column as an array, masked where the column has
        NULLs."""
        with self._lock, translated("the query cannot be answered"):
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
        """End the connection and remove tables that are not kept."""
        self.connection.close()
        self._remove_made()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


AnyRun = TypeVar("AnyRun", bound=Run)


def open_run(
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    classes: Sequence[PathRule] = (),
) -> Run:
    """Open a run folder as a Run; open_as describes the arguments and errors."""
    return open_as(Run, folder, progress, classes)


def open_as(
    kind: type[AnyRun],
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
    classes: Sequence[PathRule] = (),
) -> AnyRun:
    """Open a run folder; first turn the logs into tables if no tables exist or a log has changed.

    progress: is called with (done, total) blocks while tables are built.  classes: rules before the
    rules in RUN/classes.toml (`data = ["^/scratch/"]`, a list of patterns for each class) and
    before PATH_RULES. Raises RunError: no such folder, no log in it, no room for tables, an invalid
    pattern; LogError: a log of a newer format.
    """
    path = Path(folder)
    if utf8(str(path)) != str(path):
        raise RunError(f"{utf8(str(path))}: tables need a name in UTF-8; rename the folder")
    kept = path / "tables"
    current, damage = _read_manifest(kept)
    is_imported = current is not None and "imported" in current
    try:
        manifest = {} if is_imported else manifest_of(path, (current or {}).get("mounts"))
    except RunError as error:
        raise RunError(damage or str(error)) from error
    rules = (*classes, *_read_classes(path / "classes.toml"))
    if current and is_imported:
        if any(current.get(key) != value for key, value in made_by().items()):
            again = f"import {current['imported']} again"
            raise RunError(f"{path}: imported by another version of penstock; {again}")
        if current.get("parts", _parts(kept)) != _parts(kept):
            raise RunError(
                f"{kept}: a part of its tables is missing; import {current['imported']} again"
            )
        _check_tables(kept, current)
        return kind(path, kept, current, rules)
    if current and _are_whole(kept, manifest):
        with suppress(RunError):  # a file is missing or damaged: make the tables again
            return kind(path, kept, current, rules)
    building, is_ours = _building_folder(path, is_kept=not manifest["running"])
    try:
        return _built(kind, path, building, is_ours, manifest, rules, progress)
    except (RunError, OSError) as error:
        # A full disk may have ended the recording, so a full disk must not prevent reading it.
        if not is_ours or "No space left" not in str(error):
            raise
        _remove_made(building)
    building, is_ours = _building_folder(path, is_kept=False)
    return _built(kind, path, building, is_ours, manifest, rules, progress)


def _without_secrets(
    columns: Mapping[str, Mapping[str, Array]],
) -> dict[str, Mapping[str, Array]]:
    """Return the columns with … for secrets in command lines, as other tools record secrets."""
    processes = dict(columns.get("processes", {}))
    if "command" not in processes:
        return dict(columns)
    commands = processes["command"]
    hidden = commands.copy()
    for place, text in enumerate(commands):
        if isinstance(text, str):
            hidden[place] = "".join(launch.without_secrets([text]))
    processes["command"] = hidden
    return {**columns, "processes": processes}


def import_run(
    folder: str | os.PathLike[str],
    source: str,
    start_unix_ns: int,
    columns: Mapping[str, Mapping[str, Array]],
) -> Path:
    """Make a run folder from the records of another tool in `source`; open_run opens the folder.

    start_unix_ns: the zero of the times in columns.  columns: see tables.write_tables.  Raises
    RunError: the folder exists and is not empty, or cannot be written.
    """
    path = Path(folder)
    columns = _without_secrets(columns)
    try:
        drafts.run_folder(path)
        if any(path.iterdir()):
            raise RunError(f"{path}: not empty; import into a folder of its own")
        building, _ = _building_folder(path, is_kept=True)
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; choose a folder that can be written") from error
    try:
        with drafts.held_folder(building) as held:
            tables = Path(held, "tables")
            write_tables(tables, columns)
            facts = {"imported": source, "start_unix_ns": start_unix_ns, "running": []}
            facts["parts"] = _parts(tables)
            _write_manifest(tables, {**made_by(), **facts})
            _put_in_place(Path(held), path / "tables", facts)
    finally:
        _remove_made(building)
    return path


def _parts(tables: Path) -> dict[str, int]:
    """Return for each table in parts the number of files."""
    return {name: len(list((tables / name).glob("*.parquet"))) for name in PARTED}


def _built(
    kind: type[AnyRun],
    folder: Path,
    building: Path,
    is_ours: bool,
    manifest: dict[str, Any],
    rules: Sequence[PathRule],
    progress: Progress | None,
) -> AnyRun:
    """Make the tables in `building`, and open the run; remove the folder after a failure."""
    try:
        with (
            translated(f"{folder}: its tables cannot be made", RunError),
            drafts.held_folder(building) as held,
        ):
            tables = Path(held, "tables")
            manifest["start_unix_ns"] = make_tables(
                [folder / name for name in manifest["logs"]],
                surroundings_of(folder, manifest),
                tables,
                progress,
            )
            manifest["parts"] = _parts(tables)
            _write_manifest(tables, manifest)
            if is_ours:
                _put_in_place(Path(held), folder / "tables", manifest)
        _remove_made(building if is_ours else None)
        tables = (folder if is_ours else building) / "tables"
        return kind(folder, tables, manifest, rules, None if is_ours else building)
    except BaseException:
        _remove_made(building)
        raise


# --- the tables on disk: current, whole, where ---------------------------------------------------


def _read_manifest(tables: Path) -> tuple[dict[str, Any] | None, str]:
    """Return the manifest of the tables, None without a manifest; and the damage, or ""."""
    path = tables / "manifest.json"
    try:
        manifest = bounded.json_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return None, ""
    except (OSError, ValueError) as error:
        return None, f"{path}: cannot be read: {error}"
    return (manifest, "") if isinstance(manifest, dict) else (None, f"{path}: no manifest")


def _write_manifest(tables: Path, manifest: Mapping[str, Any]) -> None:
    drafts.write(tables / "manifest.json", checksums.sealed_json(manifest, indent=1))


def _check_tables(tables: Path, manifest: Mapping[str, Any]) -> None:
    """Compare the tables with the checksums; tables of earlier releases have no checksums.  Raises
    RunError: damaged."""
    paths = [tables / f"{name}.parquet" for name in STORED.keys() - set(PARTED)]
    paths += [path for name in PARTED for path in sorted((tables / name).glob("*.parquet"))]

    def damage(path: Path) -> str:
        try:
            checksums.check(path, is_sealed="sum" in manifest)
        except (OSError, ValueError) as error:
            return f"{path}: cannot be read: {error}"
        return ""

    with ThreadPoolExecutor(4) as pool:  # a job of a day has 2 GB of tables
        for why in filter(None, pool.map(damage, paths)):
            again = f"; import {manifest['imported']} again" if "imported" in manifest else ""
            raise RunError(why + again)


def _building_folder(folder: Path, is_kept: bool) -> tuple[Path, bool]:
    """Return an empty folder to build tables in, and True if the folder is in the run folder."""
    host = platform.node().replace("/", "_") or "host"
    if is_kept and not drafts.is_of_another(folder):
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
    for name in ("tables", *(f"tables/{part}" for part in PARTED)):
        (path / name).mkdir(mode=0o755)
    return path


def _put_in_place(building: Path, kept: Path, manifest: Mapping[str, Any]) -> None:
    """Move the tables to the final place, whole or not at all.

    Another process may put tables in place at the same time and already read its tables: whole
    tables of the same logs stay.
    """
    with _alone(kept.parent):
        if _are_whole(kept, manifest):
            return
        for attempt in range(10):
            try:
                (building / "tables").rename(kept)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or attempt == 9:
                    raise RunError(f"{kept}: cannot be put in place: {error.strerror}") from error
            with suppress(FileNotFoundError):
                kept.rename(building / f"old-{attempt}")


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; go on without the lock on a disk without locks, and when somebody
    holds the lock for too long."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        until_s = time.monotonic() + MOST_LOCK_S
        with suppress(OSError):
            while time.monotonic() < until_s:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)


def _are_whole(kept: Path, manifest: Mapping[str, Any]) -> bool:
    """Tell whether the tables in place are of the same logs, complete and without damage."""
    current, _ = _read_manifest(kept)
    if current is None or current.get("parts", _parts(kept)) != _parts(kept):
        return False
    if any(current.get(key) != value for key, value in manifest.items()):
        return False
    try:
        _check_tables(kept, current)
    except RunError:
        return False
    return True


def _read_ceilings(folder: Path) -> list[dict[str, Any]]:
    """Return the ceilings that `penstock ceiling` measured for the run.

    The measurement may be newer than the tables.
    """
    path = folder / "ceilings.json"
    try:
        ceilings = bounded.json_of(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}; remove it and measure again") from error
    if isinstance(ceilings, dict) and isinstance(ceilings.get("ceilings"), list):
        ceilings = ceilings["ceilings"]
    for ceiling in ceilings if isinstance(ceilings, list) else [ceilings]:
        if wrong := _wrong_in("ceilings", ceiling):
            raise RunError(f"{path}: {wrong}; remove it and measure again")
    return list(ceilings)


def _read_fills(folder: Path, start_unix_ns: int) -> list[dict[str, Any]]:
    """Return when a tier was filled during the run, as noted by `penstock run --fill`."""
    path = folder / "fill.json"
    try:
        fill = bounded.json_of(path)
        rows = [
            {
                "from_ns": from_ns - start_unix_ns,
                "to_ns": to_ns - start_unix_ns,
                "copied_bytes": copied_bytes,
                "is_copying": is_copying,
                "tier": fill["tier"],
                "limit_bps": fill["limit_bps"],
                "is_cut": False,
            }
            for from_ns, to_ns, copied_bytes, is_copying in fill["windows"]
        ]
        if rows and fill.get("is_whole") is False:
            rows[-1]["is_cut"] = True
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise RunError(f"{path}: cannot be read: {error}; remove it to go on without") from error
    for row in rows:
        # Time before the first process contains no call: the first pause mostly ends at the start.
        # A window of copying stays whole, because the copied bytes belong to the whole window.
        if not row["is_copying"]:
            row["from_ns"] = max(0, row["from_ns"])
        either = {name: abs(row[name]) for name in ("from_ns", "to_ns")}
        if wrong := _wrong_in("fills", row | either):
            raise RunError(f"{path}: {wrong}; remove it to go on without")
    return [row for row in rows if max(0, row["from_ns"]) < row["to_ns"]]


def _wrong_in(table: str, row: Any) -> str:
    """Return the value of a row from a file that does not fit the column, in words; or ""."""
    types = {"VARCHAR": str, "BOOLEAN": bool, "BIGINT": int, "INTEGER": int, "DOUBLE": float}
    for name, (kind, _) in TABLES[table].items():
        value = row.get(name) if isinstance(row, dict) else None
        # An int serves as a float; nothing beyond 64 bits or below zero is a measurement.
        wanted = (int, float) if types[kind] is float else types[kind]
        is_sane = isinstance(value, str | bool) or (
            isinstance(value, int | float) and 0 <= value < 1 << 63
        )
        if not isinstance(value, wanted) or not is_sane:
            return f"{name} is {value!r:.100}"
    return ""


def _read_classes(path: Path) -> list[PathRule]:
    """Return the user's rules, in the order of the file.  Raises RunError: invalid rules."""
    try:
        classes = bounded.toml_of(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read: {error}") from error
    rules = []
    for path_class, patterns in classes.items():
        if path_class not in CLASSES:
            names = f"{', '.join(CLASSES[:-1])} or {CLASSES[-1]}"
            raise RunError(f"{path}: no class is called {path_class!r}; write {names}")
        if not isinstance(patterns, list) or not all(isinstance(item, str) for item in patterns):
            raise RunError(f'{path}: write {path_class} = ["pattern", …], a list of patterns')
        rules += [PathRule(path_class, pattern) for pattern in patterns]
    if len(rules) > MOST_PATTERNS or max((len(r.pattern) for r in rules), default=0) > MOST_LETTERS:
        limits = f"{MOST_PATTERNS:,} patterns of {MOST_LETTERS:,} letters"
        raise RunError(f"{path}: more than {limits}; join them to fewer")
    _check(rules, path)
    return rules


def _check(rules: Sequence[PathRule], path: Path) -> None:
    """Check that DuckDB accepts each rule's pattern: RE2 differs from Python's syntax.  Raises
    RunError."""
    with duckdb.connect(":memory:") as engine:
        for rule in rules:
            try:
                engine.execute("SELECT regexp_matches('', ?)", [rule.pattern]).fetchall()
            except duckdb.Error as error:
                why = str(error).splitlines()[0].rpartition("Error: ")[2]
                raise RunError(
                    f"{path}: {rule.path_class} = [{rule.pattern!r}] is no regular expression "
                    f"({why}); escape what is meant as a letter with a backslash"
                ) from error


def _made_here(folder: str) -> Path:
    """Mark a new folder as a folder that may be removed whole."""
    drafts.create(Path(folder) / _MADE_HERE).close()
    return Path(folder)


def _remove_made(*folders: Path | None) -> None:
    """Remove folders with the mark of _made_here, and no other folders."""
    for folder in folders:
        if folder and (folder / _MADE_HERE).exists():
            shutil.rmtree(folder, ignore_errors=True)
