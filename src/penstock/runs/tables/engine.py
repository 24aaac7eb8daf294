"""Tables on disk as tables in queries: an engine without access to other files."""

from collections.abc import Mapping, Sequence
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

import duckdb

from penstock.errors import RunError
from penstock.places.classes import PathRule
from penstock.runs import waits
from penstock.runs.tables.paths import class_sql
from penstock.runs.tables.stored import (
    PARTED,
    STORED,
    create,
    insert_rows,
    make_events,
    make_ops,
    quiet,
    quoted,
    stored_view,
    translated,
    types_of,
    unglobbed,
)

__all__ = ["connect", "views"]

QUERY_MEMORY = "2GB"

# Tables up to 256 KiB on disk are read once, into memory.  Queries then run without some passes of
# the optimizer: the search for a better plan takes longer than any plan for so few rows.
SMALL_BYTES = 256 << 10
# Many equal rows also fit into 256 KiB, and a poor plan for many rows takes much memory.
SMALL_ROWS = 5000
PASSES = (
    "aggregate_function_rewriter",
    "aggregate_reuse",
    "build_side_probe_side",
    "common_subexpressions",
    "common_subplan",
    "compressed_materialization",
    "cte_filter_pusher",
    "duplicate_groups",
    "join_elimination",
    "join_filter_pushdown",
    "join_order",
    "late_materialization",
    "partial_aggregate_pushdown",
    "projection_placement",
    "projection_pullup",
    "redundant_order_keys",
    "regex_range",
    "reorder_filter",
    "self_join_aggregate",
    "statistics_propagation",
    "top_n_window_elimination",
    "type_pushdown",
)

_EVENTS_SELECT = """
    SELECT e.process, e.thread, o.layer, o.op, o.op_group, e.file, f.path, f.path_class,
        f.kind AS file_kind, g.path AS other_path, e.start_ns, e.duration_ns, e.offset_bytes,
        e.asked_bytes, e.moved_bytes, e."result", e.errno, e.step, f.served_from
    FROM events_raw e JOIN ops o ON o.op_number = e.op_number
        LEFT JOIN files f ON f.file = e.file LEFT JOIN files g ON g.file = e.other_file"""

_FAULTS_SELECT = """
    SELECT p.process, p.thread, p.file, f.path, f.path_class,
        CASE WHEN p.is_major THEN 'major' ELSE 'minor' END AS kind,
        p.start_ns, p.duration_ns, p.offset_bytes
    FROM faults_raw p LEFT JOIN files f ON f.file = p.file"""

_FAULT_COUNTS_SELECT = """
    SELECT p.process, p.file, f.path, f.path_class, p.* EXCLUDE (process, file)
    FROM fault_counts_raw p LEFT JOIN files f ON f.file = p.file"""


def views(rules: Sequence[PathRule]) -> list[tuple[str, str]]:
    """Return the views for users, in the order of creation: (name, SELECT)."""
    path_class = class_sql(rules, "path_class")
    columns = ", ".join(
        f"{path_class} AS path_class" if name == "path_class" else name for name in STORED["files"]
    )
    counters = package_files("penstock.runs").joinpath("queries/counters.sql").read_text()
    return [
        ("files", f"SELECT {columns} FROM files_raw"),
        ("events", _EVENTS_SELECT),
        ("faults", _FAULTS_SELECT),
        ("blocked", waits.BLOCKED_SELECT),
        ("blocked_totals", waits.TOTALS_SELECT),
        ("fault_counts", _FAULT_COUNTS_SELECT),
        ("counters", counters),
    ]


# Of several lists of {value, calls}, the four values with most calls.
_COMMONEST = """
    CREATE MACRO commonest(pairs) AS list_transform(
        list_reverse_sort(list_transform(
            list_distinct(list_transform(pairs, lambda p: p.value)),
            lambda v: {'calls': list_sum(list_transform(
                list_filter(pairs, lambda p: p.value = v), lambda p: p.calls))::BIGINT, 'value': v}
        ))[1:4],
        lambda p: {'value': p.value, 'calls': p.calls})"""


def connect(
    tables: Path,
    rules: Sequence[PathRule],
    spilled: Path,
    beside: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return an engine with access to the tables and no other files.

    beside: rows of tables from files beside the logs: ceilings, fills.
    """
    config: dict[str, Any] = {"memory_limit": QUERY_MEMORY, "temp_directory": str(spilled)}
    connection = quiet(duckdb.connect(":memory:", config=config))
    tables = tables.absolute()
    with translated(f"{tables}: cannot be queried", RunError):
        make_ops(connection)
        stored = "TABLE" if _is_small(connection, tables) else "VIEW"
        if stored == "TABLE":
            _do_without(connection, PASSES)
            connection.execute("SET threads = 1")  # more take a fifth of the CPU time
        make_events(connection, tables, stored)
        for name in sorted(STORED.keys() - set(PARTED)):
            path = quoted(unglobbed(tables / f"{name}.parquet"))
            connection.execute(f"CREATE {stored} {stored_view(name)} AS FROM read_parquet({path})")
        connection.execute(_COMMONEST)
        for table in ("ceilings", "fills"):
            types = types_of(table)
            create(connection, table, types)
            rows = (beside or {}).get(table, ())
            insert_rows(connection, table, types, [tuple(map(row.get, types)) for row in rows])
        for name, select in views(rules):
            kind = "TABLE" if rules and name == "files" else "VIEW"
            connection.execute(f"CREATE {kind} {name} AS {select}")
        # The given path may look like a pattern: allow the path, and a pattern that matches it.
        allowed = f"{quoted(str(tables))}, {quoted(unglobbed(tables))}"
        connection.execute(f"SET allowed_directories = [{allowed}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
    return connection


def _is_small(connection: duckdb.DuckDBPyConnection, tables: Path) -> bool:
    """Return True if the tables together have at most SMALL_BYTES and SMALL_ROWS."""
    paths = list(tables.rglob("*.parquet"))
    if not paths or sum(path.stat().st_size for path in paths) > SMALL_BYTES:
        return False
    files = ", ".join(quoted(unglobbed(path)) for path in paths)
    counted = f"SELECT coalesce(sum(num_rows), 0) FROM parquet_file_metadata([{files}])"
    row = connection.execute(counted).fetchone()
    return row is not None and row[0] <= SMALL_ROWS


def _do_without(connection: duckdb.DuckDBPyConnection, passes: Sequence[str]) -> None:
    """Disable passes of the optimizer; releases of DuckDB have different passes."""
    present = {name for (name,) in connection.execute("FROM duckdb_optimizers()").fetchall()}
    names = ",".join(name for name in passes if name in present)
    connection.execute(f"SET disabled_optimizers = {quoted(names)}")
