"""The Report as a frozen value, and the JSON of a Report.  Knows no run: a view needs no run."""

import json
import math
import re
import types
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from penstock.errors import PenstockError
from penstock.explain.findings import Check, Finding
from penstock.explain.incidents import Incident
from penstock.explain.measures import Number, State
from penstock.explain.verdict import MODERATELY, Verdict
from penstock.words import Cell, show

__all__ = [
    "REQUEST_TIMES",
    "VERSION",
    "Column",
    "Definition",
    "Fact",
    "Gap",
    "Mark",
    "Part",
    "Picture",
    "Report",
    "Rest",
    "Segment",
    "Series",
    "Table",
    "Unit",
    "parsed",
    "to_json",
]

VERSION = 1
REQUEST_TIMES = "request_times"  # key of a picture that belongs to a table

Unit = Literal["s", "B", "B/s", "share", "count", "x", "text", "path"]


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the bar of wall time; the shares of all segments sum to 1."""

    key: str
    label: str
    s: float
    share: float
    state: State


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a wait; share: of the whole wait, None with s None: not measured."""

    key: str
    label: str
    s: float | None
    share: float | None
    is_storage: bool
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A number with a label and an optional remark."""

    key: str
    label: str
    number: Number
    remark: str


@dataclass(frozen=True, slots=True)
class Column:
    """A table's column: unit and state apply to all cells of the column."""

    key: str
    title: str
    unit: Unit
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Things without a row: the number of things, and the cells of a row with the sums."""

    n: int
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells, a cell per column.

    rest: the things without a row, per layer.  n_all: the number of all things, including rest, if
    a thing may have several rows; None: a row each.
    """

    key: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str
    rest: tuple[Rest, ...] = ()
    n_all: int | None = None

    if TYPE_CHECKING:  # added by views.notebook: the value knows no view

        def _repr_html_(self) -> str: ...

    def things(self, rows: Sequence[tuple[Cell, ...]]) -> int:
        """Return the number of things in `rows`."""
        if self.n_all is None:
            return len(rows)
        places = [
            n for n, column in enumerate(self.columns) if column.key in ("path", "path_class")
        ]
        return len({tuple(row[place] for place in places) for row in rows})


@dataclass(frozen=True, slots=True)
class Series:
    """A value per bin; None: no value."""

    key: str
    label: str
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A meaningful height in a picture, for example a storage ceiling, in the picture's y_unit.

    group: the first word of the keys of the marked series ("read"); "": all series.
    """

    label: str
    value: float
    group: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """Binned values over an axis of equal bins, with a description in words.

    lines, stack, lanes and ranks: bin i begins at x_start + i * x_step, in x_unit.  bars: bin i
    holds 2^(x_start + i) to 2^(x_start + i + 1) of x_unit.  lanes, ranks: a series is a row, and
    the values are heat.  at_s: for bins of unequal duration, the begin of each bin and the end of
    the last bin, in seconds since the run's start.
    """

    key: str
    title: str
    kind: Literal["lines", "stack", "bars", "lanes", "ranks"]
    x_label: str
    x_unit: Unit
    x_start: float
    x_step: float
    y_label: str
    y_unit: Unit
    series: tuple[Series, ...]
    words: str
    state: State
    why: str
    marks: tuple[Mark, ...] = ()
    at_s: tuple[float, ...] = ()

    def edge(self, place: int) -> str:
        """Return the begin of a bin of bars, in words: bytes in powers of two."""
        value = 2.0 ** (self.x_start + place) * 10**self.x_step
        if self.x_unit == "B":
            return _binary(value)
        # Two digits: an edge is a power of two nanoseconds, and stands beside other edges.
        text = show(float(f"{value:.2g}"), self.x_unit)
        return re.sub(r"\.0+(?= )|(?<=\.[1-9])0+(?= )", "", text)


@dataclass(frozen=True, slots=True)
class Gap:
    """A missing or incomplete measure."""

    what: str
    state: State
    why: str


@dataclass(frozen=True, slots=True)
class Definition:
    """A word of the report and the word's meaning."""

    word: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Report:
    """A view's whole knowledge of a run.  run: the folder as named by the user."""

    report: int
    run: str
    title: str
    command: str
    folder: str
    host: str
    subtitle: tuple[str, ...]
    verdict: Verdict
    findings: tuple[Finding, ...]
    checks: tuple[Check, ...]
    wall: tuple[Segment, ...]
    stretches: tuple[Fact, ...]
    wait: tuple[Part, ...]
    first_batch: tuple[Part, ...]
    checkpoint: tuple[Part, ...]
    reading: tuple[Fact, ...]
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    gaps: tuple[Gap, ...]
    cost: tuple[Fact, ...]
    definitions: tuple[Definition, ...]
    incidents: tuple[Incident, ...] = ()
    startup: tuple[Part, ...] = ()  # of a run without training: of the program's life

    if TYPE_CHECKING:  # added by views.notebook: the value knows no view

        def _repr_html_(self) -> str: ...

    @property
    def startup_s(self) -> float:
        """Return the sum of the parts of the start-up."""
        return sum(part.s or 0.0 for part in self.startup)

    @property
    def shows_startup(self) -> bool:
        """Return True if the start-up deserves a picture: more than 2 s, or 5 % of start-up and
        wall time."""
        whole_s = self.startup_s + sum(segment.s for segment in self.wall)
        return self.startup_s > STARTUP_S or (
            bool(self.wall) and self.startup_s >= MODERATELY * whole_s > 0
        )

    def table(self, key: str) -> Table:
        """Return the table with the key `key`; an empty table if the report lacks the table.

        A report of an earlier release or of another origin may lack tables.
        """
        by_key = {table.key: table for table in self.tables}
        return by_key.get(key) or Table(key, key, (), (), "")

    def picture(self, key: str) -> Picture:
        """Return the picture with the key `key`.  Raises KeyError."""
        return {picture.key: picture for picture in self.pictures}[key]


def _binary(size_bytes: float) -> str:
    power = max(0, min(6, int(math.log2(max(1, size_bytes))) // 10))
    unit = ("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")[power]
    return f"{size_bytes / 1024**power:.0f} {unit}"


def to_json(report: Report, indent: int | None = 2) -> str:
    """Return the report as JSON text; report.from_json reads the text back unchanged."""
    return json.dumps(_plain(report), indent=indent, ensure_ascii=True, allow_nan=False)


def parsed(text: str) -> Report:
    """Return the report of a JSON text; report.sound checks the values afterwards.

    Raises PenstockError: another version or shape.
    """
    try:
        plain = json.loads(text)
        if not isinstance(plain, dict):
            raise TypeError("no object")
        version = plain["report"]
        if version != VERSION:
            raise PenstockError(
                f"a report of version {version}, known here is {VERSION}; make it anew from its run"
            )
        report: Report = _built(Report, plain)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PenstockError(f"no report of Penstock: {error!r}") from error
    return report


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _built(kind: Any, plain: Any) -> Any:
    if is_dataclass(kind) and isinstance(kind, type):
        if not isinstance(plain, dict):
            raise TypeError(f"{plain!r:.100} where an object belongs")
        hints = get_type_hints(kind)
        return kind(
            **{
                field.name: _built(hints[field.name], plain[field.name])
                for field in fields(kind)
                # A field missing in a report of an earlier release has the default value.
                if field.name in plain or field.default is MISSING
            }
        )
    if get_origin(kind) is tuple:
        if not isinstance(plain, list):
            raise TypeError(f"{plain!r:.100} where a list belongs")
        inner = get_args(kind)[0]
        return tuple(_built(inner, item) for item in plain)
    if not _is_of(kind, plain):
        raise TypeError(f"{plain!r:.100} where {kind} belongs")
    return plain


def _is_of(kind: Any, plain: Any) -> bool:
    """Return True if a plain value is valid for a field of the type `kind`."""
    if get_origin(kind) in (Union, types.UnionType):
        return any(_is_of(each, plain) for each in get_args(kind))
    if get_origin(kind) is Literal:
        return isinstance(plain, str) and plain in get_args(kind)
    if kind is float:  # whole numbers are valid
        return type(plain) in (int, float) and math.isfinite(plain)
    if kind in (str, int, bool, types.NoneType):
        return type(plain) is kind
    raise TypeError(f"{kind} is not part of a report")


# A longer start-up is shown in parts.  Any Python program has a shorter start-up.
STARTUP_S = 2.0
