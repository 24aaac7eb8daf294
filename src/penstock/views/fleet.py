"""Many runs in a terminal and as a page.  Sees a Fleet and nothing else."""

import sys
from typing import TYPE_CHECKING, TextIO

from penstock.explain.fleet import Fleet, FleetColumn, FleetTable
from penstock.safe.harmless import Shown
from penstock.views.html import page
from penstock.views.markup import safe, section
from penstock.views.paper import Paper, boxed, paper_of, printed
from penstock.words import count, show

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["markup_of", "render", "show_on"]

ROWS = 10  # of a table in a terminal; a page and JSON have more
Cell = str | int | float | None
LEFT = ("text",)


def render(fleet: Fleet, width: int = 100, color: bool = False) -> str:
    """Return the fleet as text of at most `width` columns.  Raises MissingDependency without
    rich."""
    return _drawn(fleet, Paper(width, is_utf8=True), color)


def show_on(fleet: Fleet, stream: TextIO | None = None) -> None:
    """Print the fleet in a form for the stream."""
    stream = Shown.through(sys.stdout if stream is None else stream)
    stream.write(_drawn(fleet, *paper_of(stream)))


def markup_of(fleet: Fleet) -> str:
    """Return a separate page, without a script, to be encoded as UTF-8."""
    body = "".join(
        section(table.key, safe(table.title), _table(table), _left_out(table, len(table.rows)))
        for table in fleet.tables
        if table.rows
    )
    notes = "".join(f'<p class="incomplete">{safe(note)}</p>' for note in _notes(fleet))
    return page(
        f'<section class="card"><p><b>{safe(_headline(fleet))}</b></p>{notes}</section>{body}',
        title=f"Runs below {safe(fleet.folder)}",
        facts="",
    )


def _headline(fleet: Fleet) -> str:
    if not fleet.n_runs:
        return "no summary of a run"
    share = fleet.waited_h / fleet.wall_h if fleet.wall_h else 0.0
    return (
        f"{count(fleet.n_runs, 'run')}, {hours(fleet.wall_h)} of training: {hours(fleet.waited_h)} "
        f"waited, {show(share, 'share')}"
    )


def _notes(fleet: Fleet) -> list[str]:
    notes = []
    if fleet.n_without:
        notes.append(
            f"{count(fleet.n_without, 'run folder')} without a summary: "
            f"penstock runs {fleet.folder} --make"
        )
    if fleet.n_refused:
        path, why = fleet.refused[0]
        more = f"; and {fleet.n_refused - 1:,} more" if fleet.n_refused > 1 else ""
        notes.append(f"not read: {path}: {why}{more}")
    return notes


def hours(value: float) -> str:
    """Return hours in words; less than an hour in minutes or seconds."""
    return f"{value:,.0f} h" if value >= 100 else f"{value:.1f} h" if value >= 1 else _small(value)


def _small(value: float) -> str:
    return f"{60 * value:.1f} min" if value >= 1 / 60 else show(3600 * value, "s")


def _cell(column: FleetColumn, value: Cell) -> str:
    if value is None:
        return "–"
    if column.unit == "h" and not isinstance(value, str):
        return hours(value)
    return show(value, column.unit)


def _drawn(fleet: Fleet, paper: Paper, color: bool) -> str:
    from rich.text import Text

    inner = Paper(paper.width - 4, paper.is_utf8)
    lines = [Text(row, "bold") for row in inner.wrap(_headline(fleet))]
    for note in _notes(fleet):
        lines += [Text(row, "yellow") for row in inner.wrap(note)]
    title = Text(f" {paper.clean(paper.elide(fleet.folder, 60))} ", "bold")
    parts: list[object] = [boxed(lines, title, "cyan", paper)]
    for table in fleet.tables:
        if table.rows:
            parts.append(Text("\n").join([*_grid(table, paper), Text()]))
    return printed(parts, paper, color)


def _grid(table: FleetTable, paper: Paper) -> list["Text"]:
    """Return the rows in columns; a narrow page drops the last columns."""
    from rich.cells import cell_len
    from rich.text import Text

    rows = table.rows[:ROWS]
    columns = list(table.columns)
    cells = [
        [paper.clean(_cell(column, value)) for column, value in zip(columns, row, strict=True)]
        for row in rows
    ]
    titles = [column.title for column in columns]
    while True:
        widths = [
            max(map(cell_len, column))
            for column in list(zip(titles, *cells, strict=True))[: len(titles)]
        ]
        widths[0] = min(widths[0], max(12, paper.width - sum(widths[1:]) - 2 * len(widths)))
        if sum(widths) + 2 * len(widths) <= paper.width or len(titles) < 3:
            break
        titles, cells = titles[:-1], [row[:-1] for row in cells]

    def line(words: list[str]) -> str:
        said = [paper.elide(word, width) for word, width in zip(words, widths, strict=True)]
        return "  " + "  ".join(
            word + " " * (width - cell_len(word))
            if column.unit in LEFT
            else " " * (width - cell_len(word)) + word
            for word, width, column in zip(said, widths, columns, strict=False)
        )

    head = Text(table.title, "bold")
    if len(rows) < table.n_all:
        head.append(f"  {len(rows)} of {table.n_all:,}", "not bold dim")
    return [head, Text(line(titles), "dim"), *(Text(line(row).rstrip()) for row in cells)]


def _left_out(table: FleetTable, n: int) -> str:
    return f"The first {n:,} of {table.n_all:,}." if n < table.n_all else ""


def _table(table: FleetTable) -> str:
    kinds = ["text" if column.unit in LEFT else "" for column in table.columns]
    head = "".join(
        f'<th scope="col" class="{kind}">{safe(column.title)}</th>'
        for column, kind in zip(table.columns, kinds, strict=True)
    )
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{kind}">{safe(_cell(column, value))}</td>'
            for column, value, kind in zip(table.columns, row, kinds, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{safe(table.title)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
