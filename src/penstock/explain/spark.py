"""The queries in queries/ on Spark, for runs too large for a single machine.  Takes a run's tables,
returns rows as DuckDB does; knows no query and no number.

A query is written for DuckDB, and sqlglot translates the query to Spark.  This module first
rewrites constructs that sqlglot cannot translate.  tests/test_spark.py holds the reports of both
engines equal.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingDependency, QueryError, RunError
from penstock.explain.questions import PREPARED
from penstock.places.classes import PathRule
from penstock.runs.manifest import made_by
from penstock.runs.run import Run
from penstock.runs.schema import TABLES
from penstock.runs.tables import OP_TYPES, PARTED, STORED, Progress, op_rows, stored_view, views
from penstock.safe import bounded, checksums

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from sqlglot import exp

__all__ = ["Connection", "SparkRun", "in_sparks_words", "open_on_spark"]

OLDEST = (4, 1)  # the first version with recursion in SQL, which two queries need
EXTRA = "--engine spark needs an extra: pip install 'penstock[spark]'"
QUESTIONS = len(PREPARED) + 46  # of a report, about
ANSWER_S = 5.0  # limit for the answer of a master's port; Spark itself would try for a minute
# Spark 4.3 takes the parts of a union for partitioned alike where the parts are not, and a join of
# such a union fails ("unequal numbers of partitions").
UNION_SETTING = "spark.sql.unionOutputPartitioning"
# Spark's names of the types in schema.TABLES and tables.OP_TYPES.
TYPES = {"VARCHAR": "STRING", "DOUBLE": "DOUBLE", "BIGINT": "BIGINT", "INTEGER": "INT",
         "UTINYINT": "SMALLINT", "BOOLEAN": "BOOLEAN"}  # fmt: skip


class SparkRun:
    """A run's tables on Spark, for measures.measure.  Made by open_on_spark.

    A context manager: the exit also ends a session made for the run.  folder: as given.
    start_unix_ns: the run's start.  connection: answers queries.
    """

    def __init__(self, folder: str, start_unix_ns: int, connection: Connection) -> None:
        self.folder = folder
        self.start_unix_ns = start_unix_ns
        self.connection = connection

    def __enter__(self) -> SparkRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session, if made for the run."""
        self.connection.close()


class Connection:
    """The part of DuckDB's connection the queries use, over a Spark session."""

    def __init__(self, session: SparkSession, is_ours: bool, progress: Progress | None) -> None:
        self.session = session
        self._is_ours = is_ours
        self._progress = progress
        self._asked = 0
        self._variables: dict[str, Any] = {}
        self._made: list[str] = []
        self._answer: DataFrame | None = None
        self._union_setting = session.conf.get(UNION_SETTING, None)
        session.conf.set(UNION_SETTING, "false")

    def cursor(self) -> Connection:
        """Return the connection: prepared tables end with the surrounding block."""
        return self

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        for name in self._made:
            self.session.catalog.dropTempView(name)
        self._made.clear()

    def execute(self, text: str, parameters: Mapping[str, Any] | None = None, /) -> Connection:
        """Run a SELECT for fetchall, or a SET VARIABLE or CREATE TEMP for later queries.

        Raises QueryError in Spark's words.
        """
        self._asked += 1
        if self._progress:
            self._progress(self._asked, max(QUESTIONS, self._asked))
        variable = re.fullmatch(r"SET VARIABLE (\w+) = (.*)", text, re.DOTALL)
        created = re.match(r"CREATE TEMP (TABLE|VIEW) (\w+) AS\s", text)
        try:
            if variable:
                rows = self._frame(f"SELECT {variable[2]} AS value", parameters).collect()
                self._variables[variable[1]] = rows[0][0]
            elif created:
                frame = self._frame(text[created.end() :], parameters)
                self._keep(created[1], created[2], frame)
            else:
                self._answer = self._frame(text, parameters)
        except Exception as error:
            raise _as_ours(error) from error
        return self

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return all rows of the latest SELECT.

        Raises QueryError: Spark executes a SELECT only when rows are fetched.
        """
        assert self._answer is not None, "nothing was asked"
        try:
            return [tuple(map(_plain, row)) for row in self._answer.collect()]
        except Exception as error:
            raise _as_ours(error) from error

    @property
    def columns(self) -> list[str]:
        """Return the column names of the latest SELECT."""
        return list(self._answer.columns) if self._answer is not None else []

    @property
    def description(self) -> list[tuple[str]]:
        """Return the columns of the latest SELECT, as DuckDB's connection does."""
        return [(name,) for name in self.columns]

    def close(self) -> None:
        """End the session, if made for the connection; restore the setting of another session."""
        if self._is_ours:
            self.session.stop()
        elif self._union_setting is not None:
            self.session.conf.set(UNION_SETTING, self._union_setting)
        else:
            self.session.conf.unset(UNION_SETTING)

    def _frame(self, text: str, parameters: Mapping[str, Any] | None) -> DataFrame:
        return self.session.sql(in_sparks_words(text, self._variables, parameters or {}))

    def _keep(self, kind: str, name: str, frame: DataFrame) -> None:
        if kind == "TABLE":
            # Keep the rows without the plan: a plan grows with each dependent query, and planning
            # would take most of the time.
            frame = _of_unknown_size(frame.localCheckpoint(eager=True))
        frame.createOrReplaceTempView(name)
        self._made.append(name)


def open_on_spark(run: Run | str, engine: str, progress: Progress | None = None) -> SparkRun:
    """Open a run's tables in a Spark session.

    run: an opened Run, in a folder that the workers see under the same path; or the URL of a run
    folder with tables.  Spark's own connectors (hdfs://, s3a://) read the tables at a URL, without
    the run's ceilings, fillings and classes of paths.  engine: "spark" for the CPUs of the local
    machine, or the address of a master.  An existing session is used and remains open.  progress:
    is called with (done, total) queries.

    Raises RunError: no tables, another version, a missing part, no master answers;
    MissingDependency: no pyspark or sqlglot, too old a version, no Java.
    """
    session, is_ours = _session(engine)
    rules: Sequence[PathRule]
    try:
        if isinstance(run, str):
            root, rules = run.rstrip("/"), ()
            manifest = _manifest(session, root)
        else:
            root, manifest, rules = run.folder.absolute().as_uri(), run.manifest, run.classes
            root = root if run.tables.parent == run.folder else run.tables.parent.as_uri()
        paths = _make_views(session, f"{root}/tables", manifest, rules)
        if isinstance(run, str):  # open_run has checked the tables of a folder
            _check_at_url(session, paths, "sum" in manifest)
        for name in ("ceilings", "fills"):
            rows = [] if isinstance(run, str) else run.sql(f"FROM {name}").fetchall()
            _table(session, name, {key: kind for key, (kind, _) in TABLES[name].items()}, rows)
        return SparkRun(
            root, int(manifest["start_unix_ns"]), Connection(session, is_ours, progress)
        )
    except BaseException:
        if is_ours:
            session.stop()
        raise


def _of_unknown_size(kept: DataFrame) -> DataFrame:
    """Return kept rows without the estimated size of the rows.

    Spark estimates a join's size as the product of the inputs' sizes, and a checkpoint keeps the
    estimate.  Over dependent tables the estimates become numbers of thousands of digits;
    the multiplications took most of the planning.
    """
    made = getattr(kept.sparkSession, "_jsparkSession", None)
    if made is None:  # a session of Spark Connect
        return kept
    rows, columns = kept._jdf.queryExecution().toRdd(), kept._jdf.schema()
    return type(kept)(made.internalCreateDataFrame(rows, columns, False), kept.sparkSession)


# --- session and tables --------------------------------------------------------------------------


def _session(engine: str) -> tuple[SparkSession, bool]:
    """Return the existing session or a new session, and True if the session is new."""
    try:
        import pyspark
        import sqlglot  # noqa: F401 - asked for before anything is started
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise MissingDependency(f"{EXTRA} ({error.name} is not there)") from error
    version = tuple(int(word) for word in re.findall(r"\d+", pyspark.__version__)[:2])
    if version < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise MissingDependency(
            f"pyspark {pyspark.__version__} is too old, {wanted} is needed; {EXTRA}"
        )
    if active := SparkSession.getActiveSession():
        return active, False
    master = "local[*]" if engine == "spark" else engine
    _answers(master)
    builder = SparkSession.builder.appName("penstock report").master(master)
    builder = builder.config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.log.level", "OFF")
    try:
        return builder.getOrCreate(), True
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else repr(error)
        if "JAVA_GATEWAY" in first or "JAVA_HOME" in first or "java" in first.lower():
            raise MissingDependency(
                f"Spark needs Java 17 or newer: install default-jre-headless ({first})"
            ) from error
        raise RunError(f"{master}: no session of Spark: {first}") from error


def _answers(master: str) -> None:
    """Check that a standalone cluster's master accepts a connection.  Raises RunError."""
    if not master.startswith("spark://"):
        return
    whys = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            with socket.create_connection((host, int(port)), ANSWER_S):
                return
        except (OSError, ValueError) as error:
            whys.append(f"{address}: {error}")
    raise RunError(
        f"{master}: no master of Spark answers ({'; '.join(whys)}); start one, or say where"
    )


def _manifest(session: SparkSession, root: str) -> dict[str, Any]:
    """Return the manifest of a run at a URL. Raises RunError."""
    try:
        rows = session.read.text(f"{root}/tables/manifest.json", wholetext=True).collect()
        manifest = bounded.json_in(rows[0][0].encode(errors="replace"))
    except Exception as error:
        first = str(error).splitlines()[0]
        raise RunError(
            f"{root}/tables: cannot be read: {first}; make the tables with `penstock report` where "
            "the run is, and copy the whole folder there"
        ) from error
    if any(manifest.get(key) != value for key, value in made_by().items()):
        raise RunError(f"{root}/tables: made by another version of penstock; make them again")
    return dict(manifest)


# The files at a URL with a wrong checksum (checksums.seal).  Spark computes the checksums, because
# only Spark's connectors may reach the tables.  e: bytes behind the sum's 8 digits.
_DAMAGED = """
SELECT path FROM (
    SELECT
        path, content, n, k, CAST((k - 1) / 2 AS INT) + {word_bytes} + 1 AS e
    FROM (
        SELECT
            path, content, length(content) AS n,
            instr(
                reverse(hex(substring(content, greatest(length(content) - 4095, 1), 4096))),
                reverse(hex(':{word}'))
            ) AS k
        FROM files_at_url
    )
)
WHERE CASE
    WHEN k = 0 THEN {is_sealed}
    WHEN k % 2 = 0 OR n < e + 9 + {word_bytes} THEN TRUE
    ELSE substring(content, n - e - 8 - {word_bytes}, {word_bytes} + 1) <> CAST('{word}:' AS BINARY)
        OR CAST(substring(content, n - e - 7, 8) AS STRING) <> lower(lpad(hex(crc32(concat(
            substring(content, 1, n - e - 8), X'3030303030303030', substring(content, n - e + 1, e)
        ))), 8, '0'))
END
ORDER BY path
"""


def _check_at_url(session: SparkSession, paths: Sequence[str], is_sealed: bool) -> None:
    """Compare tables at a URL with the tables' checksums.  Raises RunError: damaged."""
    session.read.format("binaryFile").load(list(paths)).createOrReplaceTempView("files_at_url")
    word = checksums.MARK.partition(":")[0]
    text = _DAMAGED.format(word=word, word_bytes=len(word), is_sealed=str(is_sealed).upper())
    try:
        damaged = session.sql(text).collect()
    except Exception as error:
        raise RunError(f"{paths[0]}: cannot be read: {str(error).splitlines()[0]}") from error
    finally:
        session.catalog.dropTempView("files_at_url")
    if damaged:
        raise RunError(
            f"{damaged[0][0]}: cannot be read: it is damaged: its content differs from its "
            "checksum; copy it again"
        )


def _make_views(
    session: SparkSession, tables: str, manifest: Mapping[str, Any], rules: Sequence[PathRule]
) -> list[str]:
    """Make the tables' views.  Return the tables' files.  Raises RunError."""
    parts = manifest.get("parts", {})
    every: list[str] = []
    for name in STORED:
        if name in PARTED:
            paths = [f"{tables}/{name}/{number:05}.parquet" for number in range(parts[name])]
        else:
            paths = [f"{tables}/{name}.parquet"]
        every += paths
        try:
            frame = session.read.parquet(*paths)
        except Exception as error:
            match = re.search(r"Path does not exist: (\S+?)\.?(?:\s|$)", str(error))
            lost = match[1] if match else str(error).splitlines()[0]
            raise RunError(
                f"{tables}: a part of the tables is missing: {lost}; remove that folder and make "
                "it again with `penstock report`, or copy it whole"
            ) from error
        frame.createOrReplaceTempView(stored_view(name))
    _table(session, "ops", OP_TYPES, op_rows())
    for name, select in views(rules):
        session.sql(in_sparks_words(select, {}, {})).createOrReplaceTempView(name)
    return every


def _table(
    session: SparkSession, name: str, types: Mapping[str, str], rows: Sequence[tuple[Any, ...]]
) -> None:
    columns = ", ".join(f"`{column}` {TYPES[kind]}" for column, kind in types.items())
    session.createDataFrame(list(rows), columns).createOrReplaceTempView(name)


def _as_ours(error: Exception) -> QueryError:
    return QueryError(str(error).split("\n\nJVM stacktrace")[0].strip()[:2000])


def _plain(value: Any) -> Any:
    """Return a cell as DuckDB does."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value.asDict() if hasattr(value, "asDict") else value


# --- words ---------------------------------------------------------------------------------------


def in_sparks_words(text: str, variables: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """Translate a query from DuckDB's SQL to Spark's.

    variables: the values of getvariable.  parameters: the values of $NAME. Raises QueryError: the
    query cannot be translated.
    """
    import sqlglot
    from sqlglot import exp

    try:
        tree = sqlglot.parse_one(text, read="duckdb")
    except sqlglot.errors.SqlglotError as error:
        raise QueryError(f"sqlglot does not read it: {error}") from error
    for node in list(tree.find_all(exp.Placeholder, exp.Parameter)):
        node.replace(exp.convert(parameters[node.name]))
    for called in list(tree.find_all(exp.Anonymous)):
        _say_function(called, variables)
    for pick in list(tree.find_all(exp.ArgMax, exp.ArgMin)):
        _say_pick(pick)
    for window in list(tree.find_all(exp.Window)):
        if isinstance(window.this, exp.RowNumber):
            _say_numbering(window)
        elif window.args.get("alias") and isinstance(window.parent, exp.Binary):
            window.replace(exp.paren(window.copy()))  # else Spark reads "along - ns" as a name
    for bracket in list(tree.find_all(exp.Bracket)):
        _say_bracket(bracket)
    for join in list(tree.find_all(exp.Join)):
        if join.args.get("method") == "ASOF":
            _say_asof(join)
    for select in list(tree.find_all(exp.Select)):
        _say_unnest(select)
    for union in reversed(list(tree.find_all(exp.Union))):
        if union.args.get("by_name"):
            _say_by_name(union, tree)
    for part in tree.find_all(exp.CTE):
        part.set("materialized", None)
    said: str = tree.sql("spark", comments=False)
    return said


def _say_function(called: exp.Anonymous, variables: Mapping[str, Any]) -> None:
    """Translate functions with another name in Spark, or with another result for "none"."""
    from sqlglot import exp

    name, arguments = called.name.lower(), called.expressions
    if name == "getvariable":
        called.replace(exp.convert(variables[arguments[0].name]))
    elif name == "list_position":  # NULL if missing in the list; Spark's is 0
        position = exp.func("array_position", *[argument.copy() for argument in arguments])
        called.replace(exp.Nullif(this=position, expression=exp.Literal.number(0)))
    elif name == "printf":
        called.set("this", "format_string")
    elif name == "json_valid":
        json_text = exp.func("get_json_object", arguments[0].copy(), exp.convert("$"))
        called.replace(exp.paren(json_text.is_(exp.null()).not_()))
    elif name == "list_slice":  # arguments: from, to; in Spark: from, length
        items, first, last = (argument.copy() for argument in arguments)
        many = exp.paren(
            exp.Add(this=exp.Sub(this=last, expression=first.copy()), expression=_one())
        )
        called.replace(exp.func("slice", items, first, many))
    elif name == "commonest":  # tables.engine._COMMONEST
        pairs = arguments[0].sql("spark")
        called.replace(exp.maybe_parse(_COMMONEST.format(pairs=pairs), dialect="spark"))


def _one() -> exp.Expression:
    from sqlglot import exp

    return exp.Literal.number(1)


# NULL for no pairs, as DuckDB's list() without rows.
_COMMONEST = (
    "IF(SIZE({pairs}) = 0, NULL, TRANSFORM(SLICE(SORT_ARRAY(TRANSFORM("
    "ARRAY_DISTINCT(TRANSFORM({pairs}, p -> p.value)),"
    " v -> STRUCT(AGGREGATE(FILTER({pairs}, p -> p.value = v), CAST(0 AS BIGINT),"
    " (total, p) -> total + p.calls) AS calls, v AS value)), FALSE), 1, 4),"
    " p -> STRUCT(p.value AS value, p.calls AS calls)))"
)


def _say_by_name(union: exp.Union, tree: Any) -> None:
    """Name all columns of both sides in one order: Spark joins the columns of a UNION by
    position."""
    from sqlglot import exp

    named = {cte.alias: cte.this.named_selects for cte in tree.find_all(exp.CTE)}
    named |= {stored_view(name): list(columns) for name, columns in STORED.items()}

    def columns_of(side: Any) -> list[str]:
        if isinstance(side, exp.Union):
            return columns_of(side.this)
        table = side.find(exp.From).this.name
        return [
            name
            for column in side.named_selects
            for name in (named[table] if column == "*" else [column])
        ]

    sides: list[Any] = []
    left: Any = union
    while isinstance(left, exp.Union):
        sides.append(left.expression)
        left.set("by_name", None)
        left = left.this
    sides.append(left)
    every = list(dict.fromkeys(name for side in sides[::-1] for name in columns_of(side)))
    for side in sides:
        given = {
            expression.alias_or_name: expression
            for expression in side.expressions
            if expression.alias_or_name != "*"
        }
        has = columns_of(side)
        side.set("expressions", [
            given.get(name, exp.column(name)).copy() if name in has
            else exp.alias_(exp.null(), name)
            for name in every
        ])  # fmt: skip


def _say_pick(pick: Any) -> None:
    """Translate arg_max and arg_min: DuckDB skips rows with an unknown value.

    Spark would return NULL for rows with an unknown value.
    """
    from sqlglot import exp

    value, by = pick.this, pick.expression
    is_complete = exp.and_(*(operand.copy().is_(exp.null()).not_() for operand in (value, by)))
    above = pick.parent
    if pick.args.get("count"):
        many = (
            f"TRANSFORM(SLICE(SORT_ARRAY(COLLECT_LIST(STRUCT({by.sql('spark')} AS x,"
            f" {value.sql('spark')} AS y)) FILTER (WHERE {{where}}), FALSE),"
            f" 1, {pick.args['count'].sql('spark')}), q -> q.y)"
        )
        where = is_complete
        if isinstance(above, exp.Filter):
            where = exp.and_(above.expression.this.copy(), is_complete)
            pick = above
        pick.replace(exp.maybe_parse(many.format(where=where.sql("spark")), dialect="spark"))
    elif isinstance(above, exp.Filter):
        above.expression.set("this", exp.and_(above.expression.this.copy(), is_complete))
    else:
        filtered = exp.Filter(this=pick.copy(), expression=exp.Where(this=is_complete))
        pick.replace(filtered)


def _say_numbering(window: exp.Window) -> None:
    """Add an order to a row_number without an order: Spark requires an order, and any order will
    do."""
    from sqlglot import exp

    definition = window
    if window.args.get("alias"):
        select = window.find_ancestor(exp.Select)
        assert select is not None
        definition = next(
            named_window
            for named_window in select.args["windows"]
            if named_window.name == window.alias
        )
    if not definition.args.get("order"):
        parts = [column.copy() for column in definition.args["partition_by"]]
        order = exp.Order(expressions=[exp.Ordered(this=parts[0].copy())])
        window.replace(exp.Window(this=exp.RowNumber(), partition_by=parts, order=order))


def _say_bracket(bracket: exp.Bracket) -> None:
    """Translate an index: in DuckDB a missing element is NULL.

    Spark counts from 0, and only GET accepts a missing element.
    """
    from sqlglot import exp

    index = bracket.expressions[0]
    if len(bracket.expressions) == 1 and not isinstance(index, exp.Literal | exp.Slice):
        below = exp.Sub(this=exp.paren(index.copy()), expression=_one())
        bracket.replace(exp.func("get", bracket.this.copy(), below))


def _say_asof(join: exp.Join) -> None:
    """Translate an ASOF join to a join on the time from each row to the next row of the kind.

    An ASOF join finds the latest row of the other table that is not after our row.
    """
    from sqlglot import exp

    other = join.this.alias_or_name
    alike, ours, theirs = [], None, None
    for term in (
        join.args["on"].flatten() if isinstance(join.args["on"], exp.And) else [join.args["on"]]
    ):
        sides = [term.this, term.expression]
        is_other = [any(c.table == other for c in side.find_all(exp.Column)) for side in sides]
        mine, its = sides if is_other[1] else sides[::-1]
        if isinstance(term, exp.EQ):
            alike.append(its)
        else:
            is_before = isinstance(term, exp.LT | exp.LTE) == is_other[0]
            assert is_before, f"no row after ours is found: {join.sql()}"
            ours, theirs = mine, its
    assert ours is not None
    assert theirs is not None, f"no time to join on: {join.sql()}"

    def bare(expression: exp.Expression) -> exp.Expression:
        return (
            exp.column(expression.name) if isinstance(expression, exp.Column) else expression.copy()
        )

    following = exp.Window(
        this=exp.Lead(this=bare(theirs)),
        partition_by=[bare(column) for column in alike],
        order=exp.Order(expressions=[exp.Ordered(this=bare(theirs), nulls_first=True)]),
    )
    source = exp.select("*", exp.alias_(following, "following_")).from_(
        exp.to_table(join.this.name)
    )
    join.set("this", source.subquery(other))
    join.set("method", None)
    until = exp.column("following_", other)
    last = exp.or_(until.copy().is_(exp.null()), exp.LT(this=ours.copy(), expression=until))
    join.set("on", exp.and_(join.args["on"].copy(), exp.paren(last)))


def _say_unnest(select: exp.Select) -> None:
    """Translate lists that become rows: Spark allows a single list beside the columns.

    Spark does not allow two lists, or a list inside a sum.
    """
    from sqlglot import exp

    calls = [
        node
        for projection in select.expressions
        for node in projection.find_all(exp.Explode)
        if node.find_ancestor(exp.Select) is select
    ]
    if not calls:
        return
    if not select.args.get("from_", select.args.get("from")):
        if len(calls) == 1 and calls[0].find_ancestor(exp.Select, exp.Cast) is select:
            return  # with a single list Spark agrees with DuckDB
        select.from_(exp.select(exp.alias_(_one(), "one_")).subquery("one_"), copy=False)
    lists = [node.this.copy() for node in calls]
    names = [f"unnested_{number}" for number in range(len(lists))]
    for node, name in zip(calls, names, strict=True):
        is_whole = node.parent is select
        column: exp.Expression = exp.column(name, "unnested")
        node.replace(exp.alias_(column, name) if is_whole else column)
    exploded = exp.Explode(this=lists[0])
    rows = exploded if len(lists) == 1 else exp.func("inline", exp.func("arrays_zip", *lists))
    alias = exp.TableAlias(
        this=exp.to_identifier("unnested"), columns=[exp.to_identifier(name) for name in names]
    )
    for star in select.expressions:
        if isinstance(star, exp.Star):  # * also has the columns of the lateral view
            hidden = [*(star.args.get("except_") or []), *map(exp.column, names)]
            star.set("except_", hidden)
    select.append("laterals", exp.Lateral(this=rows, view=True, alias=alias))
