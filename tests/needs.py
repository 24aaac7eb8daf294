"""What each query needs to have rows, by its syntax tree: writes queries/needs.json.

    python tests/needs.py

An answer is a set of alternatives; each alternative is a set of tables, of which all must have
rows.  What is not understood here needs nothing, so its query is always executed.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb

from penstock.explain import questions
from penstock.runs.tables import views
from synthetic import Synthetic

Node = dict[str, Any]
Needs = frozenset[frozenset[str]]

NOTHING: Needs = frozenset({frozenset()})
NEVER: Needs = frozenset()

# Columns by whose values rows are told apart.  timed_spans takes the names of spans as they are.
KEYED = {
    ("notes", "key"): "notes.key",
    ("spans", "kind"): "spans.kind",
    ("spans", "name"): "spans.name",
    ("timed_spans", "name"): "spans.name",
}
ALWAYS = "ops"  # has rows in every run

CONNECTION = duckdb.connect()
AGGREGATES = {
    name
    for (name,) in CONNECTION.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type = 'aggregate'"
    ).fetchall()
}


def either(one: Needs, other: Needs) -> Needs:
    return _shortest(one | other)


def both(one: Needs, other: Needs) -> Needs:
    return _shortest(frozenset(a | b for a in one for b in other))


def _shortest(needs: Needs) -> Needs:
    return frozenset(a for a in needs if not any(b < a for b in needs))


def needs_of(text: str) -> Needs:
    """Return what a SELECT needs to have rows."""
    (answer,) = CONNECTION.execute("SELECT json_serialize_sql(?)", [text]).fetchone() or ("",)
    (statement,) = json.loads(answer)["statements"]
    return _of_node(statement["node"], {})


def _of_node(node: Node, outer: dict[str, Needs]) -> Needs:
    known = dict(outer)
    for entry in (node.get("cte_map") or {}).get("map", []):
        known[entry["key"]] = _of_node(entry["value"]["query_node"], known)
    if node["type"] == "SET_OPERATION_NODE":
        return _of_set(node, known)
    if node["type"] == "RECURSIVE_CTE_NODE":
        return _of_node(node["left"], known)
    if node["type"] != "SELECT_NODE":
        return NOTHING
    groups, sets = node["group_expressions"] or [], node["group_sets"] or []
    is_one_row = not groups and any(
        _is_aggregate(part) for part in _within([node["select_list"], node["having"]])
    )
    if is_one_row or (groups and not all(sets)):
        return NOTHING
    tables: dict[str, str | None] = {}
    given = _of_source(node["from_table"], known, tables)
    return both(given, _of_condition(node["where_clause"], known, tables))


def _of_set(node: Node, known: dict[str, Needs]) -> Needs:
    children = node.get("children") or [node["left"], node["right"]]
    if node["setop_type"] == "EXCEPT":
        return _of_node(children[0], known)
    if node["setop_type"] not in ("UNION", "UNION_BY_NAME"):
        return NOTHING
    needs = NEVER
    for child in children:
        needs = either(needs, _of_node(child, known))
    return needs


def _of_source(source: Node, known: dict[str, Needs], tables: dict[str, str | None]) -> Needs:
    """tables: becomes the names in FROM, and which tables they are; None: none of a run."""
    if source["type"] == "JOIN":
        left = _of_source(source["left"], known, tables)
        right = _of_source(source["right"], known, tables)
        match source["join_type"]:
            case "INNER" | "SEMI":
                on = _of_condition(source.get("condition"), known, tables)
                return both(both(left, right), on)
            case "LEFT" | "ANTI":
                return left
            case "RIGHT":
                return right
            case "OUTER" | "FULL":
                return either(left, right)
        return NOTHING
    name = source.get("table_name", "")
    alias = source.get("alias") or name or f"nameless {id(source)}"
    if source["type"] == "BASE_TABLE":
        tables[alias] = None if name in known else name
        needed = frozenset() if name == ALWAYS else frozenset({name})
        return known.get(name, frozenset({needed}))
    tables[alias] = None
    return _of_node(source["subquery"]["node"], known) if source["type"] == "SUBQUERY" else NOTHING


def _of_condition(
    condition: Node | None, known: dict[str, Needs], tables: dict[str, str | None]
) -> Needs:
    if not condition:
        return NOTHING
    if condition["type"] in ("CONJUNCTION_AND", "CONJUNCTION_OR"):
        is_and = condition["type"] == "CONJUNCTION_AND"
        needs = NOTHING if is_and else NEVER
        for child in condition["children"]:
            join: Callable[[Needs, Needs], Needs] = both if is_and else either
            needs = join(needs, _of_condition(child, known, tables))
        return needs
    if condition["class"] == "SUBQUERY" and condition["subquery_type"] in ("EXISTS", "ANY"):
        return _of_node(condition["subquery"]["node"], known)
    values = list(_required(condition, tables))
    return frozenset(frozenset({value}) for value in values) if values else NOTHING


def _required(condition: Node, tables: dict[str, str | None]) -> Iterator[str]:
    """Yield the values of a keyed column of which `column = value`, `column IN (…)` need one."""
    if condition["type"] == "COMPARE_EQUAL":
        column, *values = condition["left"], condition["right"]
    elif condition["type"] == "COMPARE_IN":
        column, *values = condition["children"]
    else:
        return
    if column["class"] != "COLUMN_REF" or any(one["class"] != "CONSTANT" for one in values):
        return
    *of, name = column["column_names"]
    table = tables.get(of[0]) if of else next(iter(tables.values()), None)
    keyed = KEYED.get((table or "", name))
    if keyed and (of or len(tables) == 1):
        yield from (f"{keyed}={value['literal']['text']}" for value in values)


def _is_aggregate(part: Node) -> bool:
    return part.get("class") == "FUNCTION" and part.get("function_name") in AGGREGATES


def _within(tree: Any) -> Iterator[Node]:
    """Yield the parts of expressions, without those of queries within."""
    if isinstance(tree, dict):
        yield tree
        is_query = tree.get("class") == "SUBQUERY"
        for value in [tree.get("child")] if is_query else tree.values():
            yield from _within(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _within(value)


def table() -> dict[str, Any]:
    """Return the contents of needs.json."""
    texts = dict(views(())) | {name: questions.query(name) for name in questions.names()}
    entries = {name: {"needs": sorted(map(sorted, needs_of(text)))} for name, text in texts.items()}
    empty = Synthetic()  # held, as its tables go with it
    with empty.connection.cursor() as engine:
        for name in questions.PREPARED:
            if variable := questions.VARIABLES.get(name):
                engine.execute(f"SET VARIABLE {variable} = ({questions.query(variable)})")
            engine.execute(f"CREATE TEMP TABLE {name} AS {questions.query(name)}")
            columns = engine.execute(f"DESCRIBE {name}").fetchall()
            entries[name]["columns"] = ", ".join(f'"{column[0]}" {column[1]}' for column in columns)
    return entries


def text() -> str:
    """Return the text of needs.json, a query in a line."""
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in table().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    written = Path(__file__).parents[1] / "src/penstock/explain/queries/needs.json"
    written.write_text(text(), encoding="utf-8")
