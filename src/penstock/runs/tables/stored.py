"""The Parquet files of a run: columns, and the insertion of rows and arrays into tables."""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError, QueryError
from penstock.log.layout import OPS, Op
from penstock.runs import ctrl_c, waits
from penstock.runs.schema import TABLES
from penstock.safe import checksums

__all__ = [
    "ACCOUNT",
    "FIRST_APP",
    "FOLDED_FIELDS",
    "FOLDED_MAX",
    "FOLDED_PLACES",
    "INT32_MAX",
    "INT64_MAX",
    "MOVES_BYTES",
    "OP_NUMBER",
    "OP_TYPES",
    "PARTED",
    "STORED",
    "STORED_AS",
    "TEXT_TYPES",
    "Array",
    "copy_out",
    "create",
    "insert_columns",
    "insert_rows",
    "make_events",
    "make_ops",
    "op_rows",
    "ops_table",
    "quiet",
    "quoted",
    "stored_view",
    "translated",
    "types_of",
    "unglobbed",
    "utf8",
]

Array = NDArray[Any]

OP_NUMBER = {op.name: op.number for op in OPS}
# An op for page faults, so queries treat a wait for a fault as a wait in a call.  The op is no
# call, and no log has the op.  native/events.h keeps the number free.
_FAULT = Op(127, "page fault", "fault", "page fault")
FIRST_APP = min(op.number for op in OPS if op.layer == "app")
ACCOUNT = next(op.number for op in OPS if op.name == "account")  # an account of a call, not a call

# Ops in the read and write groups that move no bytes.
_SYNC_OPS = ("fsync", "fdatasync", "sync_range", "syncfs", "msync", "fflush")

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


def ops_table(op_names: Sequence[str]) -> Array:
    table = np.zeros(256, bool)
    table[[OP_NUMBER[name] for name in op_names]] = True
    return table


MOVES_BYTES = ops_table(
    [op.name for op in OPS if op.group in ("read", "write") and op.name not in _SYNC_OPS]
)


def utf8(text: str) -> str:
    r"""Return the text with bytes that are not UTF-8 written as \xff, for storing and display."""
    if text.isascii():
        return text
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def copy_out(connection: duckdb.DuckDBPyConnection, select: str, path: Path) -> None:
    # Measured on 50 million events: without a dictionary, columns of many values take half the time
    # and 12 % less space.
    connection.execute(
        f"COPY ({select}) TO {quoted(str(path))} "
        "(FORMAT parquet, COMPRESSION zstd, PARQUET_VERSION v2, DICTIONARY_SIZE_LIMIT 5000,"
        f" KV_METADATA {{{checksums.KEY}: {quoted(checksums.MARK)}}})"
    )
    checksums.seal(path)


def insert_rows(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    types: dict[str, str],
    rows: list[tuple[Any, ...]],
) -> None:
    """Insert rows into a table of columns {name: type}, as arrays.

    Inserting single rows would take a millisecond per row.
    """
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
            # Not a masked array: releases of DuckDB before 2.0 ignore the mask of integers.
            arrays[f"{name} is known"] = np.array([value is not None for value in column])
            select[-1] = f'CASE WHEN "{name} is known" THEN "{name}" END'
    connection.register("new_rows", arrays)
    connection.execute(f"INSERT INTO {table} SELECT {', '.join(select)} FROM new_rows")
    connection.unregister("new_rows")


def insert_columns(
    connection: duckdb.DuckDBPyConnection, table: str, columns: dict[str, Array]
) -> None:
    """Insert columns, which may be masked, as insert_rows does rows."""
    arrays: dict[str, Array] = {}
    select = []
    for name, column in columns.items():
        arrays[name] = np.ma.getdata(column)
        select.append(f'"{name}"')
        if np.ma.is_masked(column):
            arrays[f"{name} is known"] = ~np.ma.getmaskarray(column)
            select[-1] = f'CASE WHEN "{name} is known" THEN "{name}" END AS "{name}"'
    connection.register("new_columns", arrays)
    connection.execute(f"INSERT INTO {table} BY NAME SELECT {', '.join(select)} FROM new_columns")
    connection.unregister("new_columns")


_NUMPY = {
    "BIGINT": np.int64,
    "INTEGER": np.int32,
    "UINTEGER": np.uint32,
    "UTINYINT": np.uint8,
    "BOOLEAN": np.bool_,
    "DOUBLE": np.float64,
}
TEXT_TYPES = {
    "process": "INTEGER",
    "id": "UINTEGER",
    "path": "VARCHAR",
    "resolved": "VARCHAR",
    "kind": "VARCHAR",
    "device": "BIGINT",
    "inode": "BIGINT",
    "size": "BIGINT",
    "tier": "INTEGER",
}
OP_TYPES = {
    "op_number": "UTINYINT",
    "op": "VARCHAR",
    "layer": "VARCHAR",
    "op_group": "VARCHAR",
    "is_access": "BOOLEAN",
}


def types_of(table: str) -> dict[str, str]:
    return {name: kind for name, (kind, _) in TABLES[table].items()}


def create(connection: duckdb.DuckDBPyConnection, table: str, types: dict[str, str]) -> None:
    columns = ", ".join(f'"{name}" {kind}' for name, kind in types.items())
    connection.execute(f"CREATE TABLE {table} ({columns})")


# No job reaches 2^50, and a sum of thousands of such counts still fits 64 bits.
FOLDED_MAX = 1 << 50
FOLDED_FIELDS = {
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
FOLDED_PLACES = {
    "max_end_bytes": "max_end",
    "first_offset_bytes": "first_offset",
    "last_end_bytes": "last_end",
}

_PAIRS_TYPE = TABLES["counters"]["sizes"][0]
_FOLDED_TYPES = (
    {"process": "INTEGER", "file": "INTEGER", "op_number": "UTINYINT"}
    | dict.fromkeys(("first_ns", "last_ns", *FOLDED_PLACES, *FOLDED_FIELDS), "BIGINT")
    | {f"bucket_{i}": "BIGINT" for i in range(10)}
    | dict.fromkeys(("sizes", "strides"), _PAIRS_TYPE)
)

# The Parquet files below RUN/tables, {file: {column: type}}; names in PARTED are folders of parts.
# Views make the tables of schema.TABLES.
STORED: dict[str, dict[str, str]] = {
    "events": {
        "process": "INTEGER",
        "thread": "INTEGER",
        "op_number": "UTINYINT",
        "errno": "SMALLINT",
        "file": "INTEGER",
        "other_file": "INTEGER",
        "start_ns": "BIGINT",
        "duration_ns": "BIGINT",
        "offset_bytes": "BIGINT",
        "asked_bytes": "BIGINT",
        "moved_bytes": "BIGINT",
        "result": "BIGINT",
        "step": "INTEGER",
    },
    "folded": _FOLDED_TYPES,
    "faults": {
        "process": "INTEGER",
        "thread": "INTEGER",
        "file": "INTEGER",
        "is_major": "BOOLEAN",
        "start_ns": "BIGINT",
        "duration_ns": "BIGINT",
        "offset_bytes": "BIGINT",
    },
    "fault_counts": {
        name: kind
        for name, kind in types_of("fault_counts").items()
        if name not in ("path", "path_class")
    },
    "blocked": waits.BLOCKED,
    "blocked_totals": waits.TOTALS,
    "objects": waits.OBJECTS,
    **{
        name: types_of(name)
        for name in (
            "connections",
            "requests",
            "spans",
            "files",
            "processes",
            "threads",
            "notes",
            "staged",
            "system",
            "unseen",
        )
    },
}
PARTED = ("events", "spans", "blocked")
# Views derive the users' tables from the following stored tables.
_COMPLETED = ("files", "folded", "faults", "fault_counts", "blocked", "blocked_totals")
# Names of stored tables in the queries that build other tables.
STORED_AS = {
    name: {"events": "events_raw", "files": "files_given", "blocked": "blocked_raw"}.get(name, name)
    for name in STORED
}


def op_rows() -> list[tuple[Any, ...]]:
    """Return the rows of the table `ops`, with the columns of OP_TYPES."""
    ops = {op.number: op for op in (*OPS, _FAULT)}
    rows = []
    for number in range(256):
        op = ops.get(number)
        name, layer, group = (op.name, op.layer, op.group) if op else (f"op_{number}", None, None)
        rows.append((number, name, layer, group, bool(MOVES_BYTES[number])))
    return rows


def make_ops(connection: duckdb.DuckDBPyConnection) -> None:
    create(connection, "ops", OP_TYPES)
    insert_rows(connection, "ops", OP_TYPES, op_rows())


def make_events(connection: duckdb.DuckDBPyConnection, tables: Path, kind: str = "VIEW") -> None:
    """Make the tables in parts, as a VIEW of the files or as a TABLE in memory."""
    for view, folder in zip(map(stored_view, PARTED), PARTED, strict=True):
        paths = sorted((tables / folder).glob("*.parquet"))
        names = ", ".join(quoted(unglobbed(path)) for path in paths)
        connection.execute(f"CREATE {kind} {view} AS FROM read_parquet([{names}])")


def unglobbed(path: Path) -> str:
    """Return the path with * ? [ in brackets: DuckDB reads the bare letters as a pattern."""
    return re.sub(r"[*?\[]", lambda match: f"[{match[0]}]", str(path))


def stored_view(name: str) -> str:
    """Return the name in queries of the table in tables/NAME."""
    return {"events": "events_raw"}.get(name, f"{name}_raw" if name in _COMPLETED else name)


def quiet(connection: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    """Disable DuckDB's progress bar, and let Ctrl-C interrupt the connection's queries.

    DuckDB would draw a bar on standard output if DuckDB takes the program for a person's shell.
    """
    ctrl_c.queries_follow()
    connection.execute("SET enable_progress_bar = false")
    return connection


@contextmanager
def translated(what: str, kind: type[PenstockError] = QueryError) -> Iterator[None]:
    """Turn errors of DuckDB into `kind`, with only the first line: the rest repeats the query."""
    try:
        yield
    except (duckdb.Error, UnicodeDecodeError) as error:  # names in a damaged Parquet file
        raise kind(f"{what}: {str(error).splitlines()[0]}") from error
