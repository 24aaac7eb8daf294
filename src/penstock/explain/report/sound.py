"""Check the plausibility of a Report: shares from 0 to 1, no negative seconds or bytes, tables and
pictures of a drawable size.  Knows no run and no view.

A report outside the ranges is refused: the data are damaged, or the report is written by hand.
"""

import math
from collections.abc import Iterator

from penstock.errors import PenstockError
from penstock.explain.measures import Number
from penstock.explain.report.shape import Picture, Report, Table, parsed
from penstock.words import Cell

__all__ = ["check", "from_json"]

ROUNDING = 1e-6  # a share is a ratio of sums of floats
LARGEST = 1e30  # a day has 1e14 ns, the largest file systems 1e19 bytes
# A report of 10,000 ranks has 10,000 rows and pictures of 10,000 bins at most.
MOST_ROWS, MOST_COLUMNS, MOST_SERIES, MOST_BINS, MOST_ITEMS = 100_000, 100, 1000, 100_000, 10_000
MOST_CELLS = 2_000_000
MOST_LETTERS = 1 << 20  # a command line has at most 128 KiB, six times as much with escapes
MOST_POWER = 120  # of two: bins of bars


def check(report: Report) -> None:
    """Raise PenstockError for a value that no run can have."""
    for why in _wrong(report):
        raise PenstockError(f"a report with {why}: its data is damaged; record or import it again")


def from_json(text: str) -> Report:
    """Return the report of a JSON text.

    Raises PenstockError: the version, the shape or a value is not valid for a report.
    """
    report = parsed(text)
    check(report)
    for table in report.tables:
        for row in (*table.rows, *(rest.cells for rest in table.rest)):
            for column, cell in zip(table.columns, row, strict=True):
                if isinstance(cell, str) and column.unit not in ("text", "path"):
                    raise PenstockError(
                        f"no report of Penstock: the text {cell!r:.40} in a column of numbers, "
                        f"{table.key:.40}.{column.key:.40}"
                    )
    return report


def _wrong(report: Report) -> Iterator[str]:
    verdict = report.verdict
    for name in ("storage", "stall", "stall_least", "stall_most", "remote"):
        yield from _number(f"verdict, {name}", getattr(verdict, name), "share")
    yield from _number("verdict, max_speedup", verdict.max_speedup, "x")
    for segment in report.wall:
        yield from _value(segment.label, segment.s, "s")
        yield from _value(segment.label, segment.share, "share")
    if sum(segment.share for segment in report.wall) > 1 + ROUNDING:
        yield "parts of the wall time that sum to more than the wall time"
    for parts in (report.wait, report.first_batch, report.checkpoint, report.startup):
        for part in parts:
            yield from _value(part.label, part.s, "s")
            yield from _value(part.label, part.share, "share")
    for finding in report.findings:
        yield from _number(f"{finding.rule}, gain", finding.gain, finding.gain.unit)
        yield from _number(f"{finding.rule}, share", finding.share, finding.share.unit)
    for fact in (*report.stretches, *report.reading, *report.cost):
        yield from _number(fact.label, fact.number, fact.number.unit)
    for table in report.tables:
        yield from _table(table)
    for picture in report.pictures:
        yield from _picture(picture)
    yield from _sizes(report)


def _number(what: str, number: Number, unit: str) -> Iterator[str]:
    if number.unit != unit:
        yield f"{number.unit!r:.40} as the unit of {what}"
    yield from _value(what, number.value, unit)


def _value(what: str, value: Cell, unit: str) -> Iterator[str]:
    """Yield an error for a value that the unit does not allow."""
    if value is None or isinstance(value, str | bool):
        return
    if not math.isfinite(value) or abs(value) > LARGEST:
        yield f"{value!r:.40} as {what:.100}"
    elif unit == "share" and not -ROUNDING <= value <= 1 + ROUNDING:
        yield f"a share of {value:.3g}, not between 0 and 1, as {what:.100}"
    elif unit in ("s", "B", "B/s", "count", "x") and value < 0:
        yield f"{value:.3g} {unit} as {what:.100}"


def _table(table: Table) -> Iterator[str]:
    if len(table.columns) > MOST_COLUMNS or len(table.rows) > MOST_ROWS:
        yield f"a table larger than {MOST_ROWS:,} rows of {MOST_COLUMNS} columns"
        return
    for cells in (*table.rows, *(rest.cells for rest in table.rest)):
        if len(cells) != len(table.columns):
            yield f"a row of {len(cells)} cells for {len(table.columns)} columns in {table.key:.40}"
            return
        for column, cell in zip(table.columns, cells, strict=True):
            yield from _value(f"{table.key}, {column.key}", cell, column.unit)
    for rest in table.rest:
        yield from _value(f"{table.key}, rest", rest.n, "count")
    yield from _value(f"{table.key}, all", table.n_all, "count")


def _picture(picture: Picture) -> Iterator[str]:
    what = f"picture {picture.key:.40}"
    bins = max((len(series.values) for series in picture.series), default=0)
    if (
        len(picture.series) > MOST_SERIES
        or bins > MOST_BINS
        or bins * len(picture.series) > MOST_CELLS
    ):
        yield f"a picture larger than {MOST_SERIES:,} series or {MOST_BINS:,} bins"
        return
    if any(len(series.values) != bins for series in picture.series):
        yield f"series of different lengths in {what}"
    if picture.kind == "bars":
        if not (abs(picture.x_start) <= MOST_POWER and abs(picture.x_step) <= 30):
            yield f"bins from 2^{picture.x_start:.3g} in {what}"
    elif not 0 < picture.x_step < LARGEST or abs(picture.x_start) > LARGEST:
        yield f"bins of {picture.x_step:.3g} in {what}"
    for series in picture.series:
        for value in series.values:
            yield from _value(what, value, picture.y_unit)
    for mark in picture.marks:
        yield from _value(what, mark.value, picture.y_unit)
    if any(later < earlier for earlier, later in zip(picture.at_s, picture.at_s[1:], strict=False)):
        yield f"bins that go back in time in {what}"


def _sizes(report: Report) -> Iterator[str]:
    for name in (
        *("subtitle", "findings", "checks", "wall", "stretches", "wait", "first_batch", "gaps"),
        *("checkpoint", "reading", "tables", "pictures", "cost", "definitions", "incidents"),
    ):
        if len(getattr(report, name)) > MOST_ITEMS:
            yield f"more than {MOST_ITEMS:,} {name}"
    for name in ("run", "title", "command", "folder", "host"):
        if len(getattr(report, name) or "") > MOST_LETTERS:
            yield f"more than {MOST_LETTERS:,} letters as {name}"
