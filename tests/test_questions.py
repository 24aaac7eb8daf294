"""Queries that are not executed, as their inputs have no rows."""

from collections.abc import Callable
from pathlib import Path

import pytest

import findings_examples as examples
import needs
from penstock.explain import questions
from synthetic import MS, Synthetic


def test_needs_are_those_of_the_queries() -> None:
    written = Path(questions.__file__).with_name("queries") / "needs.json"
    assert written.read_text(encoding="utf-8") == needs.text(), "run python tests/needs.py"


@pytest.mark.parametrize(
    ("select", "alternatives"),
    [
        ("SELECT 1 FROM a JOIN b ON a.x = b.x LEFT JOIN c ON c.x = a.x", [{"a", "b"}]),
        ("SELECT 1 FROM a UNION ALL SELECT 2 FROM b", [{"a"}, {"b"}]),
        ("SELECT count(*) FROM a", [set()]),
        ("SELECT 1 + max(x) FROM a HAVING max(x) > 1", [set()]),
        ("SELECT x, count(*) FROM a GROUP BY x", [{"a"}]),
        ("SELECT x, count(*) FROM a GROUP BY ROLLUP (x)", [set()]),
        ("SELECT x, sum(x) OVER () FROM a", [{"a"}]),
        ("SELECT (SELECT count(*) FROM b) FROM a", [{"a"}]),
        ("SELECT 1 FROM a WHERE x IN (SELECT x FROM b)", [{"a", "b"}]),
        ("SELECT 1 FROM a WHERE x NOT IN (SELECT x FROM b)", [{"a"}]),
        ("SELECT 1 FROM a WHERE NOT EXISTS (SELECT 1 FROM b)", [{"a"}]),
        ("WITH w AS (SELECT 1 FROM a) SELECT 1 FROM w CROSS JOIN b", [{"a", "b"}]),
        ("SELECT 1 FROM a FULL JOIN b USING (x)", [{"a"}, {"b"}]),
        ("SELECT 1 FROM a ANTI JOIN b USING (x)", [{"a"}]),
        ("SELECT 1 FROM notes WHERE key = 'k'", [{"notes", "notes.key=k"}]),
        ("SELECT 1 FROM notes WHERE NOT key = 'k'", [{"notes"}]),
        ("SELECT 1 FROM notes WHERE key = 'k' OR value = '1'", [{"notes"}]),
        ("WITH notes AS (SELECT 1 FROM a) SELECT 1 FROM notes WHERE key = 'k'", [{"a"}]),
        ("SELECT 1 FROM range(3)", [set()]),
    ],
)
def test_what_a_query_needs(select: str, alternatives: list[set[str]]) -> None:
    assert needs.needs_of(select) == frozenset(map(frozenset, alternatives))


def restarting() -> Synthetic:
    return examples.restarting(5)


def noted() -> Synthetic:
    """A training with notes and a save."""
    run = examples.lmdb_like(lambda number: number * 8192)
    run.note("flash", "sda\t1")
    run.ceiling("/", "read", 1e9)
    run.span("checkpoint", 100 * MS, 200 * MS)
    return run


@pytest.mark.parametrize(
    "make", [Synthetic, examples.without_steps, examples.saving, restarting, noted]
)
def test_no_answer_with_rows_is_left_out(make: Callable[[], Synthetic]) -> None:
    run = make()
    with run.connection.cursor() as engine, run.connection.cursor() as whole:
        filled = questions.prepare(engine)
        assert filled is not None
        left_out = [name for name in questions.needs() if not questions.may_have_rows(name, filled)]
        for name in questions.PREPARED:
            if variable := questions.VARIABLES.get(name):
                whole.execute(f"SET VARIABLE {variable} = ({questions.query(variable)})")
            whole.execute(f"CREATE TEMP TABLE {name} AS {questions.query(name)}")
            types = f"SELECT column_name, column_type FROM (DESCRIBE {name})"
            assert engine.execute(types).fetchall() == whole.execute(types).fetchall(), name
        for name in left_out:
            if name not in questions.names() or name.startswith(("darshan", "timeline", "stage")):
                continue
            assert whole.execute(questions.query(name)).fetchall() == [], name
    assert len(left_out) > 20
