"""Thousands of runs at once: the hours waited, by cause, user, data set and rule.

Reads the summaries of runs (`summary`) below a folder, and asks DuckDB.  Knows no screen.
"""

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import duckdb

from penstock.errors import PenstockError, RunError
from penstock.explain import summary
from penstock.log.texts import is_log_name

__all__ = [
    "VERSION",
    "Fleet",
    "FleetColumn",
    "FleetTable",
    "fleet_of",
    "summaries",
    "without_summary",
]

VERSION = 1
MOST_DEPTH = 8  # of folders below the given folder
MOST_RUNS = 1_000_000
MOST_ROWS = 20  # of a table
SHOWN_EVERY = 500  # files between two looks at the clock

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class FleetColumn:
    """A column of a FleetTable.  unit: h (hours), share, count or text."""

    key: str
    title: str
    unit: str


@dataclass(frozen=True, slots=True)
class FleetTable:
    """The rows with the most hours waited.  n_all: the rows of the whole answer."""

    key: str
    title: str
    columns: tuple[FleetColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    n_all: int


@dataclass(frozen=True, slots=True)
class Fleet:
    """Many runs.  Hours are of training processes: an hour of a run of 8 ranks counts 8 times.

    refused: files without a sound summary, with the reason; n_refused: the number.  n_without: run
    folders without a summary.
    """

    fleet: int
    folder: str
    n_runs: int
    wall_h: float
    waited_h: float
    tables: tuple[FleetTable, ...]
    n_refused: int
    refused: tuple[tuple[str, str], ...]
    n_without: int


def fleet_of(
    folder: Path,
    since_unix_s: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> Fleet:
    """Return the hours waited by the runs below a folder.

    since_unix_s: only runs with a later start.  Raises RunError: the folder cannot be read.
    """
    refused: list[tuple[str, str]] = []
    n_refused = n_without = n_runs = 0
    with tempfile.TemporaryDirectory(prefix="penstock-runs-") as made:
        path = Path(made) / "summaries.jsonl"
        with path.open("w") as lines:
            for n, entry in enumerate(_read_in(folder, since_unix_s)):
                if progress is not None and n % SHOWN_EVERY == 0:
                    progress(n, n + SHOWN_EVERY)
                if entry is None:
                    n_without += 1
                elif isinstance(entry, summary.RunSummary):
                    n_runs += 1
                    lines.write(_line(entry, n))
                else:
                    n_refused += 1
                    if len(refused) < MOST_ROWS:
                        refused.append(entry)
        with duckdb.connect() as connection:
            tables, wall_h, waited_h = _asked(connection, path)
    return Fleet(
        VERSION,
        os.fspath(folder),
        n_runs,
        wall_h,
        waited_h,
        tables,
        n_refused,
        tuple(refused),
        n_without,
    )


def summaries(folder: Path, since_unix_s: float = 0.0) -> Iterator[summary.RunSummary]:
    """Yield the sound summaries below a folder, of runs with a later start.  Raises RunError."""
    for entry in _read_in(folder, since_unix_s):
        if isinstance(entry, summary.RunSummary):  # fleet_of names unsound summaries
            yield entry


def without_summary(folder: Path) -> Iterator[Path]:
    """Yield the run folders without a summary below a folder.  Raises RunError."""
    for path, is_run in _walk(folder):
        if is_run:
            yield path


def _read_in(
    folder: Path, since_unix_s: float
) -> Iterator[summary.RunSummary | tuple[str, str] | None]:
    """Yield each summary of a run with a later start; the path and the reason for an unsound
    summary; None for each run folder without a summary."""
    for path, is_run in _walk(folder):
        if is_run:
            yield None
            continue
        try:
            run_summary = summary.read(path)
        except PenstockError as error:
            yield os.fspath(path), str(error)
            continue
        if run_summary.start_unix_s >= since_unix_s:
            yield run_summary


def _walk(folder: Path) -> Iterator[tuple[Path, bool]]:
    """Yield files of summaries as (path, False), run folders without a summary as (path, True).

    Links are not followed.  Folders below a run folder are not entered.
    """
    waiting, n_found = [(folder, 0)], 0
    while waiting:
        here, depth = waiting.pop()
        below, summaries, is_run = [], [], False
        try:
            with os.scandir(here) as entries:
                for entry in entries:
                    name = entry.name
                    if name == summary.NAME or name.endswith(summary.SUFFIX):
                        summaries.append(Path(entry.path))
                    elif name == "run.json" or is_log_name(name):
                        is_run = True
                    elif depth < MOST_DEPTH and entry.is_dir(follow_symlinks=False):
                        below.append((Path(entry.path), depth + 1))
        except OSError as error:
            if here == folder:
                raise RunError(f"{folder}: {error.strerror}") from error
            continue  # a folder of another user
        for path in sorted(summaries):
            yield path, False
        if is_run and not summaries:
            yield here, True
        if not is_run:
            waiting += sorted(below, reverse=True)
        n_found += len(summaries) + is_run
        if n_found > MOST_RUNS:
            raise RunError(f"{folder}: more than {MOST_RUNS:,} runs; name a folder below it")


def _line(run_summary: summary.RunSummary, number: int) -> str:
    facts: dict[str, object] = {name: getattr(run_summary, name) for name in _NAMES}
    facts["number"] = number
    facts["waits_s"] = [{"name": name, "s": s} for name, s in run_summary.waits_s.items()]
    facts["findings"] = [{"name": name, "s": s} for name, s in run_summary.findings.items()]
    return json.dumps(facts) + "\n"


# dataclasses.asdict copies each value and takes longer than reading the file.
_NAMES = tuple(field.name for field in fields(summary.RunSummary))


_COLUMNS = {
    "number": "BIGINT",
    **dict.fromkeys(
        ("run", "title", "user", "host", "job", "partition", "account", "data", "level"), "VARCHAR"
    ),
    "headline": "VARCHAR",
    **dict.fromkeys(("start_unix_s", "life_s", "wall_s", "read_bytes"), "DOUBLE"),
    **dict.fromkeys(("n_mains", "steps"), "BIGINT"),
    **dict.fromkeys(("waits_s", "findings"), "STRUCT(name VARCHAR, s DOUBLE)[]"),
}

# A stretch of compute or data wait is shown as a cause, and is in no sum.
_VIEWS = """
CREATE TABLE waits AS
SELECT s.number, w.name AS cause, w.s * n_mains / 3600 AS h
FROM summaries AS s, unnest(waits_s) AS t(w);
CREATE TABLE runs AS
SELECT
    s.*,
    wall_s * n_mains / 3600 AS wall_h,
    coalesce(w.waited_h, 0) AS waited_h,
    coalesce(w.data_h, 0) AS data_h,
    w.cause
FROM summaries AS s
LEFT JOIN (
    SELECT
        number,
        sum(h) AS waited_h,
        sum(h) FILTER (WHERE cause LIKE 'data %') AS data_h,
        arg_max(cause, h) AS cause
    FROM waits
    WHERE cause <> 'unfed'
    GROUP BY number
) AS w USING (number)
"""

_RUNS, _WAITED = FleetColumn("runs", "runs", "count"), FleetColumn("waited_h", "waited", "h")
_WALL, _SHARE = FleetColumn("wall_h", "training", "h"), FleetColumn("share", "share", "share")
_CAUSE = FleetColumn("cause", "most for", "text")

# Key, title, columns and query of each table; the columns are in the order of the query's columns.
_TABLES: tuple[tuple[str, str, tuple[FleetColumn, ...], str], ...] = (
    (
        "causes",
        "Hours waited, by cause",
        (FleetColumn("cause", "cause", "text"), _WAITED, _SHARE, _RUNS),
        """SELECT cause, sum(h) AS waited_h,
            sum(h) / nullif((SELECT sum(wall_h) FROM runs), 0), count(DISTINCT number)
        FROM waits GROUP BY cause""",
    ),
    (
        "users",
        "Hours waited, by user",
        (FleetColumn("user", "user", "text"), _WAITED, _SHARE, _WALL, _RUNS, _CAUSE),
        """SELECT "user", waited_h, waited_h / nullif(wall_h, 0), wall_h, n, cause FROM (
            SELECT "user", sum(waited_h) AS waited_h, sum(wall_h) AS wall_h, count(*) AS n,
                arg_max(cause, waited_h) AS cause
            FROM runs GROUP BY "user")""",
    ),
    (
        "data",
        "Hours waited for data, by data set",
        (FleetColumn("data", "data set", "text"), _WAITED, _SHARE, _WALL, _RUNS, _CAUSE),
        """SELECT data, waited_h, waited_h / nullif(wall_h, 0), wall_h, n, cause FROM (
            SELECT data, sum(data_h) AS waited_h, sum(wall_h) AS wall_h, count(*) AS n,
                arg_max(cause, data_h) AS cause
            FROM runs WHERE data <> '' GROUP BY data)""",
    ),
    (
        "findings",
        "Findings, by the hours that a remedy saves at most",
        (FleetColumn("rule", "rule", "text"), FleetColumn("gain_h", "up to", "h"), _RUNS),
        """SELECT f.name, sum(f.s * n_mains) / 3600 AS waited_h, count(*)
        FROM runs, unnest(findings) AS t(f) GROUP BY f.name""",
    ),
    (
        "runs",
        "Runs that waited longest",
        (
            FleetColumn("run", "run", "text"), FleetColumn("user", "user", "text"),
            FleetColumn("job", "job", "text"), _WAITED, _SHARE, _WALL, _CAUSE,
        ),
        """SELECT run, "user", job, waited_h, waited_h / nullif(wall_h, 0), wall_h, cause
        FROM runs""",
    ),
)  # fmt: skip


def _asked(
    connection: duckdb.DuckDBPyConnection, path: Path
) -> tuple[tuple[FleetTable, ...], float, float]:
    """Return the tables, and the hours of training and of waiting of all runs."""
    connection.execute("SET threads = 2")
    if path.stat().st_size:
        connection.execute(
            "CREATE TABLE summaries AS SELECT * FROM read_json(?, format = 'newline_delimited', "
            "columns = $columns)".replace("$columns", _struct(_COLUMNS)),
            [os.fspath(path)],
        )
    else:
        columns = ", ".join(f'"{name}" {kind}' for name, kind in _COLUMNS.items())
        connection.execute(f"CREATE TABLE summaries ({columns})")
    connection.execute(_VIEWS)
    tables = tuple(
        _table(connection, key, title, columns, query) for key, title, columns, query in _TABLES
    )
    sums = connection.execute("SELECT sum(wall_h), sum(waited_h) FROM runs").fetchone() or (0, 0)
    return tables, float(sums[0] or 0.0), float(sums[1] or 0.0)


def _struct(columns: dict[str, str]) -> str:
    return "{" + ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items()) + "}"


def _table(
    connection: duckdb.DuckDBPyConnection,
    key: str,
    title: str,
    columns: Sequence[FleetColumn],
    query: str,
) -> FleetTable:
    rows = connection.execute(
        f"SELECT *, count(*) OVER () FROM ({query}) ORDER BY waited_h DESC NULLS LAST, 1 "
        f"LIMIT {MOST_ROWS}"
    ).fetchall()
    places = [place for place, column in enumerate(columns) if column.key == "cause"]
    made = []
    for row in rows:
        cells = list(row[:-1])
        for place in places:
            cells[place] = summary.CAUSES.get(cells[place], "–")
        made.append(tuple(cells))
    return FleetTable(key, title, tuple(columns), tuple(made), int(rows[0][-1]) if rows else 0)
