"""The queries in queries/, and the order in which later queries find the results of earlier ones.
Knows an engine, and no number."""

import re
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import duckdb

from penstock.errors import QueryError

__all__ = ["PREPARED", "VARIABLES", "VIEWS", "Engine", "names", "prepare", "query"]

# Results for later queries, by name, in the order of making.  Single calls stay in place: every
# query that needs the fifty million calls reads them, and none copies them.
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
    "stretch_stands",
    "pool_members",
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
    "request_tries",
)

# Numbers computed before the named query, as variables instead of tables: the optimizer must know
# that few calls meet in a slot of time, and that all calls after a moment may be skipped.
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
    """Return the file of each query; the folders below queries/ only group them."""
    return {path.stem: path for path in Path(__file__).with_name("queries").glob("*/*.sql")}


class Engine(Protocol):
    """A connection that answers queries: DuckDB, or Spark (penstock.explain.spark)."""

    def execute(self, text: str, /) -> Any: ...

    def cursor(self) -> Any: ...


def prepare(engine: Engine, wanted: Collection[str] = PREPARED) -> None:
    """Make the wanted members of PREPARED, and the members they read, as temporary tables and
    views.

    Raises QueryError, naming the failed query.
    """
    needed = set().union(*map(_reads, wanted))
    for name in PREPARED:
        if name not in needed:
            continue
        kind = "VIEW" if name in VIEWS else "TABLE"
        try:
            if variable := VARIABLES.get(name):
                engine.execute(f"SET VARIABLE {variable} = (" + query(variable) + ")")
            engine.execute(f"CREATE TEMP {kind} {name} AS\n{query(name)}")
        except (duckdb.Error, QueryError) as error:
            raise QueryError(f"queries/{name}.sql: {error}") from error


@cache
def _reads(name: str) -> frozenset[str]:
    """Return the query itself and all prepared queries it reads, directly or not."""
    text = query(name) + (query(VARIABLES[name]) if name in VARIABLES else "")
    named = set(re.findall(r"\b(?:FROM|JOIN) (\w+)", text)) & set(PREPARED) - {name}
    asked = set(re.findall(r"getvariable\('(\w+)'\)", text))
    named |= {one for one, variable in VARIABLES.items() if variable in asked and one != name}
    return frozenset({name}).union(*map(_reads, named))
