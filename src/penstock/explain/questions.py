"""The queries in queries/, and an order of execution: a query follows the queries with its inputs.
Knows an engine, and no number."""

import json
import re
from collections.abc import Collection, Iterator, Set
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import duckdb

from penstock.errors import QueryError
from penstock.runs.tables import STORED, stored_view

__all__ = [
    "PREPARED",
    "VARIABLES",
    "VIEWS",
    "Answers",
    "Engine",
    "may_have_rows",
    "names",
    "needs",
    "prepare",
    "query",
]

# Results for later queries, by name, in the order of execution.  Views do not copy single calls: a
# query that needs the fifty million calls reads the table of calls.
VIEWS = (
    "file_calls",
    "waited_faults",
    "file_waits",
    "calls",
    "data_reads",
    "gains",
    "inside",
    "held",
    "blocking_calls",
    "request_tries",
)
PREPARED = (
    "file_kinds",
    "file_calls",
    "waited_faults",
    "accounts",
    "file_waits",
    "calls",
    "data_reads",
    "op_totals",
    "process_totals",
    "file_sums",
    "failed_calls",
    "lives",
    "timed_spans",
    "pauses",
    "steps",
    "step_balances",
    "input_stretches",
    "graph_waits",
    "mains",
    "barriers",
    "roles",
    "main_reads",
    "request_tries",
    "backoffs",
    "standstills",
    "saves",
    "loader_waits",
    "input_time",
    "started",
    "gains",
    "taken_in",
    "stood",
    "own_batches",
    "waits",
    "helper_waits",
    "step_stretches",
    "generations",
    "step_bins",
    "coupling_by_steps",
    "meetings",
    "met",
    "coupling",
    "teams",
    "fetches",
    "owed_fetches",
    "stretches",
    "watched",
    "long_calls",
    "fetchers",
    "stretch_stands",
    "pool_members",
    "pool_bystanders",
    "own_endpoints",
    "pool_stands",
    "pool_makers",
    "pool_calls",
    "inside",
    "bounds",
    "held",
    "helped",
    "stretch_calls",
    "fits",
    "own_calls",
    "step_stalls",
    "shares",
    "held_up",
    "blocking_calls",
    "blocking_files",
    "hidden_time",
    "own_hidden",
    "program_starts",
    "wait_parts",
    "unsure",
    "unsure_lost",
    "locked_calls",
    "call_bins",
    "read_quantiles",
    "like_reads",
    "read_slots",
    "file_totals",
    "binned",
    "lane_threads",
    "lane_list",
    "beginnings",
    "restored",
    "caches",
    "imports",
    "segments",
    "beginning_calls",
    "checkpointer_lives",
    "checkpointer_saves",
)

# Numbers computed before the named query.  Variables instead of tables, because the optimizer must
# know two facts: few calls meet in a slot of time, and all calls after a moment may be skipped.
VARIABLES = {"watched": "slot_ns", "beginning_calls": "begun_ns"}


@cache
def query(name: str) -> str:
    """Return the text of queries/*/NAME.sql."""
    return _files()[name].read_text(encoding="utf-8")


def names() -> tuple[str, ...]:
    """Return the names of all queries, sorted."""
    return tuple(sorted(_files()))


@cache
def _files() -> dict[str, Path]:
    """Return the file of each query; the folders below queries/ only group the files."""
    return {path.stem: path for path in Path(__file__).with_name("queries").glob("*/*.sql")}


class Engine(Protocol):
    """A connection that answers queries: DuckDB, or Spark (penstock.explain.spark)."""

    def execute(self, text: str, /) -> Any: ...

    def cursor(self) -> Any: ...


class Answers:
    """The answers of an engine to queries, with the members of PREPARED made.

    A query with empty inputs has an empty answer and is not executed: the engine takes some
    milliseconds to plan a query, and a small run has few rows of few kinds.  Raises QueryError,
    naming the failed query.
    """

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._filled = prepare(engine)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the rows of a query or of a prepared table, each by column name."""
        if self._filled is not None and not may_have_rows(name, self._filled):
            return []
        with _named(name):
            text = f"SELECT * FROM {name}" if name in PREPARED else query(name)
            answer = self.engine.execute(text)
            columns = [column[0] for column in answer.description]
            return [dict(zip(columns, values, strict=True)) for values in answer.fetchall()]


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Turn the engine's error into QueryError with the query's name."""
    try:
        yield
    except (duckdb.Error, QueryError) as error:
        raise QueryError(f"queries/{name}.sql: {error}") from error


def prepare(engine: Engine, wanted: Collection[str] = PREPARED) -> Set[str] | None:
    """Make the wanted members of PREPARED, and the inputs of the wanted members in PREPARED.

    The results are temporary tables and views.  Return the names of tables and views that may have
    rows; None: not known.  Raises QueryError, naming the failed query.
    """
    needed = set().union(*map(_reads, wanted))
    filled = _filled(engine) if isinstance(engine, duckdb.DuckDBPyConnection) else None
    for name in PREPARED:
        if name not in needed:
            continue
        with _named(name):
            if variable := VARIABLES.get(name):
                engine.execute(f"SET VARIABLE {variable} = (" + query(variable) + ")")
            if filled is not None and not may_have_rows(name, filled):
                engine.execute(f"CREATE TEMP TABLE {name} ({needs()[name]['columns']})")
                continue
            kind = "VIEW" if name in VIEWS else "TABLE"
            made = engine.execute(f"CREATE TEMP {kind} {name} AS\n{query(name)}")
            if filled is not None and (kind == "VIEW" or made.fetchone()[0]):
                filled.add(name)
    return filled


@cache
def needs() -> dict[str, Any]:
    """Return the needs of each query, of queries/needs.json (written by tests/needs.py).

    needs: alternatives.  Without rows in all tables of an alternative, the query has no rows.
    A table and a value ("notes.key=flash") stand for the table's rows with the value.
    columns: of PREPARED, as CREATE TABLE writes them.
    """
    path = Path(__file__).with_name("queries") / "needs.json"
    return dict(json.loads(path.read_text(encoding="utf-8")))


def may_have_rows(name: str, filled: Set[str]) -> bool:
    """Return True if a query may have rows when only the tables in `filled` have rows."""
    return any(filled >= set(alternative) for alternative in needs()[name]["needs"])


def _filled(engine: Engine) -> set[str]:
    """Return the tables with rows, also by value, named as in `needs`."""
    views = [name for name in needs() if name not in _files()]
    atoms = {atom for need in needs().values() for all_of in need["needs"] for atom in all_of}
    values = {atom.partition("=")[0] for atom in atoms if "=" in atom}
    tables = atoms & {"ceilings", "fills", *map(stored_view, STORED)}
    texts = [f"(SELECT '{table}' FROM {table} LIMIT 1)" for table in sorted(tables)]
    for column in sorted(values):
        table, _, name = column.partition(".")
        texts.append(f"SELECT DISTINCT '{column}=' || {name} FROM {table}")
    filled = {fact for (fact,) in engine.execute(" UNION ALL ".join(texts)).fetchall()}
    filled.update(name for name in views if may_have_rows(name, filled))
    return filled


@cache
def _reads(name: str) -> frozenset[str]:
    """Return the query and all prepared queries that the query reads, directly or indirectly."""
    text = query(name) + (query(VARIABLES[name]) if name in VARIABLES else "")
    named = set(re.findall(r"\b(?:FROM|JOIN) (\w+)", text)) & set(PREPARED) - {name}
    asked = set(re.findall(r"getvariable\('(\w+)'\)", text))
    named |= {other for other, variable in VARIABLES.items() if variable in asked and other != name}
    return frozenset({name}).union(*map(_reads, named))
