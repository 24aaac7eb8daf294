"""A Report, a verdict or a table in a notebook: a small piece of HTML without script."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.explain.report import Finding, Report, Table, Verdict
from penstock.safe.harmless import html_table, markup
from penstock.words import show

if TYPE_CHECKING:
    from penstock.words import Cell

__all__ = ["join", "of_report", "of_table", "of_verdict"]

FINDINGS = 5
ROWS = 50
METHOD = "_repr_html_"  # the method called by notebooks


def join() -> None:
    """Let notebooks show Penstock's values as HTML.  The values know no view."""
    kinds: dict[type, Callable[[Any], str]] = {
        Report: of_report,
        Table: of_table,
        Verdict: of_verdict,
    }
    for kind, shown in kinds.items():
        setattr(kind, METHOD, shown)


def of_verdict(verdict: Verdict) -> str:
    """Return the verdict: the headline, and the sentence with the verdict's numbers."""
    return f"<p><b>{markup(verdict.headline)}</b>: {markup(verdict.sentence)}</p>"


def of_report(report: Report) -> str:
    """Return the verdict, the wall time by segments, and the first findings with their remedies."""
    parts = [f"<p>{markup(report.title)} ({markup(report.run)})</p>", of_verdict(report.verdict)]
    if report.wall:
        shares = [(part.label, show(part.s, "s"), f"{part.share:.0%}") for part in report.wall]
        parts.append(html_table(("wall time", "", "share"), shares, len(shares)))
    findings = [(finding.title, _remedy(finding)) for finding in report.findings[:FINDINGS]]
    if findings:
        head = ("finding", "remedy")
        parts.append(html_table(head, findings, len(report.findings)))
    return "".join(parts)


def _remedy(finding: Finding) -> str:
    return finding.remedies[0].says if finding.remedies else ""


def of_table(table: Table) -> str:
    """Return a table of a report with the units of the columns."""

    def text(cell: Cell, unit: str) -> object:
        is_number = isinstance(cell, int | float) and not isinstance(cell, bool)
        return show(cell, unit) if is_number and unit else cell

    rows = [
        [text(cell, column.unit) for cell, column in zip(row, table.columns, strict=True)]
        for row in table.rows[:ROWS]
    ]
    columns = [column.title for column in table.columns]
    return f"<p>{markup(table.title)}</p>" + html_table(columns, rows, len(table.rows))
