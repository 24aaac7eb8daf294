"""Two reports side by side, as a part of a page: bars, differences, findings gone and new.

Says what of two runs cannot be compared, and judges nothing.
"""

from collections.abc import Iterator

from penstock.report import Cell, Report, show
from penstock.views.html import wall_bar
from penstock.views.markup import number, safe, section

__all__ = ["compare"]

HEAD = ("", "before", "after", "difference", "times")


def compare(before: Report, after: Report, names: tuple[str, str]) -> str:
    """Markup; names are what the two runs are called."""
    pair = [*zip(("before", "after"), names, (before, after), strict=True)]
    longest_s = max(_wall_s(before) or 0.0, _wall_s(after) or 0.0)
    bars = "".join(_bar(word, name, report, longest_s) for word, name, report in pair)
    return (
        section(
            "compared",
            "Before and after",
            f'<div class="card">{_warnings(before, after)}{bars}</div>',
        )
        + section("differences", "Differences", _differences(before, after))
        + section("changes", "Findings", _changes(before, after))
    )


def _wall_s(report: Report) -> float | None:
    return next((f.number.value for f in report.stretches if f.key == "wall_s"), None)


def _bar(word: str, name: str, report: Report, longest_s: float) -> str:
    """As long as the run's wall time, against the longer of the two."""
    wall_s = _wall_s(report)
    width = 100 * wall_s / longest_s if wall_s and longest_s else 100
    verdict = report.verdict
    return (
        f"<h3>{word}: {safe(name)}</h3>"
        f"<p><b>{safe(verdict.headline)}</b> {safe(verdict.sentence)}</p>"
        f'<div class="bar-of" style="--wide: {width:.3f}%">{wall_bar(report.wall)}</div>'
    )


def _warnings(before: Report, after: Report) -> str:
    """What differs between the two besides their I/O."""
    said = []
    if before.title != after.title:
        said.append("These are two programs: their times do not say which of them does better I/O.")
    elif before.command != after.command:
        said.append("The commands differ.")
    if before.host != after.host:
        said.append("The hosts differ.")
    steps = [
        [word for word in report.subtitle if word.endswith((" step", " steps"))]
        for report in (before, after)
    ]
    if steps[0] != steps[1]:
        of = " and ".join(", ".join(words) or "no steps" for words in steps)
        said.append(f"The numbers of steps differ, {of}: compare shares, not seconds.")
    if "still running" in (*before.subtitle, *after.subtitle):
        said.append("A run is still going on: its numbers are of this moment.")
    return "".join(f'<p class="incomplete">{safe(line)}</p>' for line in said)


def _rows(report: Report) -> Iterator[tuple[str, str, float | None]]:
    """Label, unit and value of what is compared; None: not measured."""
    yield "waits on storage, of the wall time", "share", report.verdict.storage.value
    yield "stall, of the wall time", "share", report.verdict.stall.value
    for fact in (*report.stretches, *report.reading):
        yield fact.label, fact.number.unit, fact.number.value
    for segment in report.wall:
        yield f"{segment.label}, of the wall time", "share", segment.share


def _differences(before: Report, after: Report) -> str:
    old = {label: (unit, value) for label, unit, value in _rows(before)}
    new = {label: (unit, value) for label, unit, value in _rows(after)}
    rows = []
    for label in dict.fromkeys((*old, *new)):
        unit = (old.get(label) or new[label])[0]
        values = (old.get(label, (unit, None))[1], new.get(label, (unit, None))[1])
        rows.append(_row(label, unit, *values))
    head = "".join(
        f'<th scope="col" class="{"" if place else "text"}">{word}</th>'
        for place, word in enumerate(HEAD)
    )
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Differences">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _row(label: str, unit: str, old: float | None, new: float | None) -> str:
    if old is None or new is None:
        change, times = "–", "–"
    else:
        sign = "+" if new > old else "−" if new < old else ""
        by = abs(new - old)
        change = sign + (f"{100 * by:.1f} points" if unit == "share" else show(by, unit))
        times = "–" if not old else show(new / old, "x") if new / old >= 0.01 else "<0.01x"
    cells: tuple[Cell, ...] = (old, new)
    shown = "".join(f"<td>{'not there' if v is None else show(v, unit)}</td>" for v in cells)
    return f'<tr><td class="text">{safe(label)}</td>{shown}<td>{change}</td><td>{times}</td></tr>'


def _changes(before: Report, after: Report) -> str:
    old = {finding.rule: finding for finding in before.findings}
    new = {finding.rule: finding for finding in after.findings}
    items = []
    for rule in dict.fromkeys((*old, *new)):
        state = "gone" if rule not in new else "new" if rule not in old else "still there"
        gains = ", then ".join(
            f"gain up to {number(of[rule].gain)}" for of in (old, new) if rule in of
        )
        title = (new.get(rule) or old[rule]).title
        name = f'<span class="rule">{safe(rule)}</span> {safe(title)}'
        items.append(f"<dt>{name}: {state}</dt><dd>{gains}</dd>")
    if not items:
        return '<p class="card">Neither run has a finding.</p>'
    return f'<dl class="words card">{"".join(items)}</dl>'
