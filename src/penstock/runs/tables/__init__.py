"""Logs to Parquet, and Parquet to tables.  Knows many logs, clocks, paths and the engine; knows no
byte of a log, no run folder, no measure.

`schema.TABLES` describes the tables for users; STORED describes the files behind the tables.
"""

from penstock.runs.tables.build import Progress, make_tables, write_tables
from penstock.runs.tables.engine import connect, views
from penstock.runs.tables.sources import Launch, Surroundings
from penstock.runs.tables.stored import (
    OP_TYPES,
    PARTED,
    STORED,
    Array,
    insert_rows,
    op_rows,
    stored_view,
    translated,
    utf8,
)

__all__ = [
    "OP_TYPES",
    "PARTED",
    "STORED",
    "Array",
    "Launch",
    "Progress",
    "Surroundings",
    "connect",
    "insert_rows",
    "make_tables",
    "op_rows",
    "stored_view",
    "translated",
    "utf8",
    "views",
    "write_tables",
]
