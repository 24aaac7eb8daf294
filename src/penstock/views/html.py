"""A report as one page of HTML: a file that can be mailed, needs no network and no JavaScript.

Sees a Report and nothing else.  Pictures are SVG, drawn here from the report's bins, so the page
does not grow with the run.  Every string of the run is foreign and is escaped; the page's own
policy lets no script run but the one that sorts tables.
"""

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from string import Template

from penstock.report import (
    Cell,
    Column,
    Fact,
    Number,
    Part,
    Picture,
    Report,
    Segment,
    Series,
    Table,
    show,
)

__all__ = ["render"]

WIDE, HIGH = 1000, 400  # of a plot's own coordinates, stretched to the page
MOST_HITS = 150  # places of a picture that tell their number when pointed at
TABLES = ("directories", "files", "operations", "classes", "checkpoints", "epochs", "processes")
MEANT_FOR_SORTING = ("directories", "files", "operations", "checkpoints")
MOST_ROWS = 120  # of a table; the others are in the report's JSON
FULL = 'width="100%" height="100%"'
COLORS = {"data": "data-storage", "checkpoint": "checkpoint-storage"}


def render(report: Report) -> str:
    """The page; encode it as UTF-8."""
    script = _asset("page.js").strip()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    command = f'<p class="facts"><code>{_safe(report.command)}</code></p>' if report.command else ""
    place = [word for word in (report.host, report.folder) if word]
    return Template(_asset("page.html")).substitute(
        title=_safe(report.title),
        facts=" · ".join(_safe(fact) for fact in (*report.subtitle, *place)),
        command=command,
        style=_asset("page.css").strip(),
        script=script,
        script_hash=f"sha256-{digest}",
        body="\n".join(part for part in _body(report) if part),
    )


def _asset(name: str) -> str:
    return (resources.files("penstock.views") / name).read_text(encoding="utf-8")


def _safe(text: str) -> str:
    """Foreign text as text: markup escaped; letters that do not show or move others made plain."""
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text.encode("utf-8", "replace").decode("utf-8")
    )
    return escape(shown, quote=True)


def _body(report: Report) -> Iterable[str]:
    yield _verdict(report)
    yield _waits(report)
    yield _figures(report)
    yield _histograms(report)
    yield _reading(report)
    for table in report.tables:
        yield _table_section(report, table)
    yield _gaps(report)
    yield _cost(report)
    yield _definitions(report)


def _section(key: str, title: str, content: str, note: str = "", more: str = "") -> str:
    told = f'<p class="note">{note}</p>' if note else ""
    return (
        f'<section id="{key}" class="{more}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{title}</h2>{told}{content}</section>'
    )


def _verdict(report: Report) -> str:
    verdict = report.verdict
    gain = ""
    if verdict.max_speedup.value is not None and verdict.max_speedup.value >= 1.005:
        gain = (
            f"Without the wait on storage: at most {show(verdict.max_speedup.value, 'x')} as fast."
        )
    if verdict.storage.state == "incomplete":
        gain += f' <span class="incomplete">Incomplete: {_safe(verdict.storage.why)}.</span>'
    return (
        f'<section class="card verdict" style="--level: var(--{verdict.level})">'
        f'<p class="headline">{_safe(verdict.headline)}</p>'
        f'<p class="sentence">{_safe(verdict.sentence)}</p>'
        f'<p class="gain">{gain}</p>{_wall(report.wall)}{_numbers(report.stretches)}</section>'
    )


def _wall(segments: Sequence[Segment]) -> str:
    """The bar of wall time; hatched is what waits on storage."""
    if not segments:
        return ""
    at, bars = 0.0, []
    for segment in segments:
        told = f"{segment.label}: {show(segment.s, 's')}, {show(segment.share, 'share')}"
        box = f'x="{at * 100:.3f}%" y="0" width="{segment.share * 100:.3f}%" height="100%"'
        bars.append(f"<g><title>{escape(told)}</title>{_filled(segment.key, box)}</g>")
        at += segment.share
    words = ", ".join(f"{s.label} {show(s.share, 'share')}" for s in segments)
    legend = "".join(
        f'<li><svg aria-hidden="true">{_filled(s.key, FULL)}</svg>'
        f"{escape(s.label)} <b>{show(s.share, 'share')}</b></li>"
        for s in segments
    )
    return (
        f'<svg class="wall" height="44" role="img" aria-label="Wall time: {escape(words)}">'
        '<defs><pattern id="hatch" width="7" height="7" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect width="2" height="7" fill="var(--hatch)" '
        f'opacity=".55"/></pattern></defs>{"".join(bars)}</svg>'
        f'<ul class="legend">{legend}</ul>'
    )


def _filled(key: str, box: str) -> str:
    color = f'<rect {box} fill="var(--{key.replace(" ", "-")})"/>'
    is_storage = key.endswith("storage") or key == "own"
    return color + (f'<rect {box} fill="url(#hatch)"/>' if is_storage else "")


def _numbers(facts: Sequence[Fact]) -> str:
    items = "".join(
        f"<div><dt>{_safe(fact.label)}</dt><dd>{_number(fact.number)}"
        + (f"<small>{_safe(fact.remark)}</small>" if fact.remark else "")
        + "</dd></div>"
        for fact in facts
    )
    return f'<dl class="numbers">{items}</dl>' if items else ""


def _number(number: Number) -> str:
    if number.value is None:
        return f'<span title="{_safe(number.why)}">{number.state}</span>'
    mark = ' <small class="incomplete">incomplete</small>' if number.state == "incomplete" else ""
    return f"{show(number.value, number.unit)}{mark}"


def _waits(report: Report) -> str:
    blocks = [
        _parts("What the data wait was made of", report.wait),
        _parts("What the first batch waited for", report.first_batch),
        _parts("What checkpoints spent their time on", report.checkpoint),
    ]
    if not any(blocks):
        return ""
    note = (
        "Each wait is attributed to what the worker that owed the batch was doing; the shares sum"
        " to 100 %. Hatched: storage."
    )
    return _section(
        "waits",
        "What the job waited for",
        f'<div class="columns two">{"".join(blocks)}</div>',
        note,
    )


def _parts(title: str, parts: Sequence[Part]) -> str:
    if not parts:
        return ""
    rows = []
    for part in parts:
        told = f"{part.state}: {part.why}" if part.why else part.state
        label = f'<td class="text" title="{_safe(told)}">{escape(part.label)}</td>'
        if part.s is None or part.share is None:
            rows.append(f'<tr>{label}<td colspan="3" class="text note">not measured</td></tr>')
            continue
        key = (
            "data storage" if part.is_storage else "data cpu" if part.key == "cpu" else "data other"
        )
        box = f'width="{max(0.4, part.share * 100):.2f}%" height="100%"'
        rows.append(
            f"<tr>{label}<td>{show(part.s, 's')}</td><td>{show(part.share, 'share')}</td>"
            f'<td class="bar"><svg aria-hidden="true">{_filled(key, box)}</svg></td></tr>'
        )
    is_incomplete = any(part.state == "incomplete" for part in parts)
    mark = ' <small class="incomplete">incomplete</small>' if is_incomplete else ""
    head = "".join(f'<th scope="col">{word}</th>' for word in ("time", "share", ""))
    head = f'<thead class="note"><tr><th class="text" scope="col">while</th>{head}</tr></thead>'
    return (
        f'<div class="card"><h3>{escape(title)}{mark}</h3>'
        f'<table class="parts">{head}<tbody>{"".join(rows)}</tbody></table></div>'
    )


def _figures(report: Report) -> str:
    drawn = []
    for picture in report.pictures:
        if picture.kind == "stack":
            drawn.append(_stack(picture))
        elif picture.kind == "lines":
            drawn.append(_lines(picture))
    if not drawn:
        return ""
    return _section("time", "Over the run", f'<div class="columns one">{"".join(drawn)}</div>')


def _figure(picture: Picture, content: str) -> str:
    state = (
        f' <span class="incomplete">Incomplete: {_safe(picture.why)}.</span>'
        if picture.state == "incomplete"
        else ""
    )
    return (
        f'<figure class="card" id="{picture.key}"><h3>{escape(picture.title)}</h3>'
        f"<figcaption>{_safe(picture.words)}{state}</figcaption>{content}</figure>"
    )


def _fill(series: Series) -> str:
    key = series.key.split()[0]
    return f'fill="var(--{COLORS.get(key, key)})"'


def _stack(picture: Picture) -> str:
    """Values one upon the other, a step a bin."""
    n = max(len(series.values) for series in picture.series)
    base = [0.0] * n
    layers = []
    for series in picture.series:
        top = [below + (v or 0.0) for below, v in zip(base, series.values, strict=True)]
        layers.append((series, base, top))
        base = top
    most = max(base) or 1.0
    # One step of a hundred times the usual length would press all others flat.
    usual = sorted(base)[int(0.98 * (n - 1))]
    limit = _nice_limit(most if most < 4 * usual else 2.5 * usual)
    shapes = [
        f'<path d="{_between(low, high, limit)}" {_fill(series)}/>' for series, low, high in layers
    ]
    cut = f" Bars above {show(limit, picture.y_unit)} are cut off." if limit < most else ""
    legend = "".join(
        f'<li><svg aria-hidden="true"><rect {FULL} {_fill(s)}/></svg>{escape(s.label)}</li>'
        for s in picture.series
    )
    plot = _plot(picture, shapes, limit, _hits(picture, n, picture.series, 1), n)
    return _figure(picture, f'<p class="note">{cut}</p><ul class="legend note">{legend}</ul>{plot}')


def _lines(picture: Picture) -> str:
    """One below the other, each with its own scale, all with the same axis of time."""
    plots = []
    for series in picture.series:
        values = [v or 0.0 for v in series.values]
        limit = _nice_limit(max(values) or 1.0)
        shape = f'<path d="{_between([0.0] * len(values), values, limit)}" {_fill(series)}/>'
        hits = _hits(picture, len(values), [series], 1)
        plots.append(
            f'<p class="note">{escape(series.label)}</p>'
            f'<div style="--tall:6.5rem">{_plot(picture, [shape], limit, hits, len(values))}</div>'
        )
    return _figure(picture, "".join(plots))


def _between(low: Sequence[float], high: Sequence[float], limit: float) -> str:
    """The outline of bars from low to high, as one path."""
    width = WIDE / len(high)

    def y(value: float) -> str:
        return f"{HIGH * (1 - min(value, limit) / limit):.0f}"

    path, before = [f"M0,{y(high[0])}"], y(high[0])
    for place, value in enumerate(high):
        if y(value) != before:
            before = y(value)
            path.append(f"H{place * width:.5g}V{before}")
    path.append(f"H{WIDE}V{y(low[-1])}")
    before = y(low[-1])
    for place in range(len(low) - 1, -1, -1):
        if y(low[place]) != before:
            before = y(low[place])
            path.append(f"H{(place + 1) * width:.5g}V{before}")
    return "".join(path) + "H0Z"


def _hits(picture: Picture, n: int, series: Sequence[Series], least: int) -> str:
    """Invisible bars that say their numbers when pointed at."""
    each = max(least, math.ceil(n / MOST_HITS))
    hits = []
    for first in range(0, n, each):
        last = min(n, first + each)
        told = ", ".join(
            f"{s.label} {show(_mean(s.values[first:last]), picture.y_unit)}" for s in series
        )
        at = show(picture.x_start + first * picture.x_step, picture.x_unit)
        at = f"{picture.x_label if picture.x_unit == 'count' else 'at'} {at}"
        hits.append(
            f'<rect class="hit" x="{first * WIDE / n:.5g}" width="{(last - first) * WIDE / n:.5g}" '
            f'height="{HIGH}"><title>{at}: {escape(told)}</title></rect>'
        )
    return "".join(hits)


def _mean(values: Sequence[float | None]) -> float:
    return sum(value or 0.0 for value in values) / len(values)


def _plot(picture: Picture, shapes: Sequence[str], limit: float, hits: str, n: int) -> str:
    ys = _ticks(limit)
    grid = "".join(
        f'<path class="grid" d="M0,{HIGH * (1 - y / limit):.4g}H{WIDE}"/>' for y in ys if y
    )
    first, last = picture.x_start, picture.x_start + n * picture.x_step
    xs = [x for x in _ticks(last) if x >= first] or [first]
    y_labels = "".join(
        f'<span style="bottom:{100 * y / limit:.4g}%">{_tick(y, picture.y_unit)}</span>' for y in ys
    )
    x_labels = "".join(
        _x_label((x - first) / ((last - first) or 1), _tick(x, picture.x_unit)) for x in xs
    )
    return (
        f'<div class="plot"><div class="ys" aria-hidden="true">{y_labels}</div>'
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(picture.title)}">{grid}{"".join(shapes)}{hits}</svg>'
        f'<div class="xs" aria-hidden="true">{x_labels}</div></div>'
        f'<p class="axis">{escape(picture.x_label)}</p>'
    )


def _x_label(share: float, text: str) -> str:
    kind = ' class="first"' if share < 0.02 else ' class="last"' if share > 0.96 else ""
    return f'<span{kind} style="left:{100 * min(1.0, share):.4g}%">{text}</span>'


def _tick(value: float, unit: str) -> str:
    """A round number without the zeros that a table's columns want."""
    return re.sub(r"\.0+(?= |$)", "", show(value, unit))


def _ticks(limit: float, n: int = 5) -> list[float]:
    """Round numbers from 0 to limit, at most n steps."""
    raw = limit / n
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    return [i * step for i in range(int(limit / step * 1.0001) + 1)]


def _nice_limit(most: float) -> float:
    """The first tick at or above the largest value."""
    ticks = _ticks(most)
    return ticks[-1] if ticks[-1] >= most * 0.9999 else ticks[-1] + ticks[1]


def _histograms(report: Report) -> str:
    drawn = [
        _bars(picture, series)
        for picture in report.pictures
        if picture.kind == "bars"
        for series in picture.series
    ]
    if not drawn:
        return ""
    note = "Of data and output files. Each bar is a doubling; the scale of each picture is its own."
    return _section(
        "sizes", "Sizes and latencies", f'<div class="columns">{"".join(drawn)}</div>', note
    )


def _bars(picture: Picture, series: Series) -> str:
    values = [v or 0.0 for v in series.values]
    used = [place for place, value in enumerate(values) if value]
    first, last = used[0], used[-1] + 1
    shown = values[first:last]
    limit = _nice_limit(max(shown))
    width = WIDE / max(len(shown), 8)  # a single bar is no wall
    bars = []
    for place, value in enumerate(shown):
        height = HIGH * value / limit
        edges = f"{picture.edge(first + place)} to {picture.edge(first + place + 1)}"
        bars.append(
            f'<rect x="{(place + 0.04) * width:.5g}" y="{HIGH - height:.4g}" '
            f'width="{0.92 * width:.5g}" height="{height:.4g}" '
            f"{_fill(series)}><title>{edges}: {value:,.0f} {picture.y_label}"
            "</title></rect>"
        )
    each = math.ceil(0.3 * WIDE / width)  # a label needs a third of the narrowest picture
    labels = "".join(
        _x_label(place * width / WIDE, picture.edge(first + place))
        for place in range(0, len(shown) + 1, each)
    )
    ys = _ticks(limit, 3)
    grid = "".join(
        f'<path class="grid" d="M0,{HIGH * (1 - y / limit):.4g}H{WIDE}"/>' for y in ys if y
    )
    y_labels = "".join(
        f'<span style="bottom:{100 * y / limit:.4g}%">{_tick(y, "count")}</span>' for y in ys
    )
    words = next(
        (w for w in picture.words.rstrip(".").split("; ") if w.startswith(f"{series.label}:")), ""
    )
    state = (
        f' <span class="incomplete">Incomplete: {_safe(picture.why)}.</span>'
        if picture.state == "incomplete"
        else ""
    )
    return (
        f'<figure class="card"><h3>{escape(picture.title)}, {escape(series.label)}</h3>'
        f"<figcaption>{_safe(words.partition(': ')[2])}{state}</figcaption>"
        f'<div class="plot" style="--tall:7rem"><div class="ys" aria-hidden="true">{y_labels}</div>'
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(picture.title)}, {_safe(words)}">{grid}{"".join(bars)}</svg>'
        f'<div class="xs" aria-hidden="true">{labels}</div></div></figure>'
    )


def _reading(report: Report) -> str:
    if not report.reading:
        return ""
    return _section(
        "reading", "How data files were read", f'<div class="card">{_numbers(report.reading)}</div>'
    )


def _table_section(report: Report, table: Table) -> str:
    if not table.rows:
        return ""
    places = [
        place
        for place, column in enumerate(table.columns)
        if any(row[place] not in (None, "") for row in table.rows)
        and not (column.key == "layer" and {row[place] for row in table.rows} == {"POSIX"})
    ]
    head = "".join(_head(table.columns[place]) for place in places)
    shown = table.rows[:MOST_ROWS]
    rows = "".join(
        "<tr>"
        + "".join(_cell(report, table.columns[place], row[place]) for place in places)
        + "</tr>"
        for row in shown
    )
    kind = "sortable" if table.key in MEANT_FOR_SORTING and len(table.rows) > 1 else ""
    content = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.title)}">'
        f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
    left_out = f" The first {len(shown)} of {len(table.rows)}." * (len(shown) < len(table.rows))
    return _section(table.key, escape(table.title), content, escape(table.note) + left_out, "long")


def _head(column: Column) -> str:
    kind = column.unit if column.unit in ("text", "path") else ""
    mark = ""
    if column.state == "incomplete":
        mark = f' <span class="incomplete" title="{_safe(column.why)}">(incomplete)</span>'
    return f'<th scope="col" class="{kind}">{escape(column.title)}{mark}</th>'


def _cell(report: Report, column: Column, value: Cell) -> str:
    text = show(value, column.unit)
    if column.unit == "path":
        below = f"{report.folder}/"
        short = text[len(below) :] if report.folder and text.startswith(below) else text
        return f'<td class="path">{_safe(short).replace("/", "/<wbr>")}</td>'
    if column.unit == "text":
        return f'<td class="text{" wide" if len(text) > 30 else ""}">{_safe(text)}</td>'
    if value is None or isinstance(value, str):
        return f"<td>{_safe(text)}</td>"
    return f'<td data-v="{value:.6g}">{text}</td>'


def _gaps(report: Report) -> str:
    items = "".join(
        f'<dt class="{gap.state}">{_safe(gap.what)}: {gap.state}</dt><dd>{_safe(gap.why)}</dd>'
        for gap in report.gaps
    )
    return _section(
        "gaps", "Not measured, or not completely", f'<dl class="words card">{items}</dl>'
    )


def _cost(report: Report) -> str:
    return _section(
        "cost", "The recorder's own cost", f'<div class="card">{_numbers(report.cost)}</div>'
    )


def _definitions(report: Report) -> str:
    items = "".join(
        f"<dt>{_safe(of.word)}</dt><dd>{_safe(of.meaning)}</dd>" for of in report.definitions
    )
    return _section("words", "What the words mean", f'<dl class="words card">{items}</dl>')
