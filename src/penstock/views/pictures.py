"""A report's pictures: as SVG without a script, and as data of zoomable charts.

Draws the report's bins and nothing else, so neither grows with the run.
"""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

from penstock.explain.report import Mark, Picture, Report, Series, show
from penstock.explain.report.shape import REQUEST_TIMES
from penstock.views.markup import FULL, incomplete, safe, section
from penstock.words import count

__all__ = ["chart_data", "histograms", "of_requests", "over_time"]

WIDE, HIGH = 1000, 400  # of a plot's own coordinates, stretched to the page
MOST_HITS = 100  # places of a picture with a number under the pointer
MOST_STILL_LANES, MOST_STILL_BINS, SHADES = 32, 160, 6  # of lanes without a script: 60 kB
MOST_MARKED_PASSES = 100
COLORS = {"data": "data-storage", "checkpoint": "checkpoint-storage"}
# Above this multiple of the values a mark would flatten the picture: the mark is given in words.
FAR = 4


def over_time(report: Report, *kinds: str) -> str:
    """Return the pictures over time of the given kinds ("stack", "lines", "lanes"), in the report's
    order."""
    drawn = []
    for picture in report.pictures:
        if picture.kind in kinds and picture.kind == "stack":
            drawn.append(_stack(picture))
        elif picture.kind in kinds and picture.kind == "lines":
            drawn.append(_lines(picture))
    heats = _heats(report)
    if heats and "lanes" in kinds:
        drawn.append(_lanes(heats[0], "lanes", "lanes"))
    drawn += [
        _lanes(picture, picture.key, "rows")
        for picture in report.pictures
        if picture.kind in kinds and picture.kind == "ranks"
    ]
    return f'<div class="columns one">{"".join(drawn)}</div>' if drawn else ""


def histograms(report: Report) -> str:
    """Return a section with all pictures of bars, or nothing."""
    drawn = [
        _bars(picture, series, place)
        for picture in report.pictures
        if picture.kind == "bars" and picture.key != REQUEST_TIMES
        for place, series in enumerate(picture.series)
    ]
    if not drawn:
        return ""
    note = "Of data and output files. Each bar is a doubling; the scale of each picture is its own."
    return section(
        "sizes", "Sizes and latencies", f'<div class="columns">{"".join(drawn)}</div>', note
    )


def of_requests(report: Report) -> str:
    """Return the histograms of the table of requests, or nothing."""
    drawn = [
        _bars(picture, series, place)
        for picture in report.pictures
        if picture.key == REQUEST_TIMES
        for place, series in enumerate(picture.series)
    ]
    return f'<div class="columns">{"".join(drawn)}</div>' if drawn else ""


# --- data for charts ------------------------------------------------------------------------------


def chart_data(report: Report) -> str:
    """Return the pictures over time as JSON for charts.js, on one axis of seconds since the run's
    start.

    Values have four digits, heat three.  limit: the end of a scale a few larger values would
    flatten.
    """
    data: dict[str, Any] = {"steps": None, "lanes": None, "end_s": 0.0}
    for picture in report.pictures:
        if picture.kind == "stack" and picture.at_s:
            tops = [sum(v or 0.0 for v in column) for column in _columns(picture)]
            data["steps"] = _plain(picture, _usual_limit(tops)) | {
                "at": [_short(s, 7) for s in picture.at_s],
                "first": [picture.x_start + i * picture.x_step for i in range(len(tops))],
                "per": picture.x_step,
                "passes": _cells(report, "epochs", "epoch", "start_s")[:MOST_MARKED_PASSES],
            }
        elif picture.kind == "lines":
            data[picture.key] = _plain(picture, 0.0) | {
                "marks": [
                    {
                        "label": m.label,
                        "value": m.value,
                        "group": m.group,
                        "shown": _is_near(m, picture),
                    }
                    for m in picture.marks
                ]
            }
    heats = _heats(report)
    if heats:
        data["lanes"] = {
            "labels": [series.label for series in heats[0].series],
            "x_step": heats[0].x_step,
            "heats": [_heat(picture) for picture in heats],
            "saves": _cells(report, "checkpoints", "save", "start_s", "blocked_s", "background_s"),
        }
    data["end_s"] = max([_end_s(p) for p in report.pictures if p.kind != "bars"] or [0.0])
    return json.dumps(data, separators=(",", ":"), allow_nan=False)


def _heats(report: Report) -> list[Picture]:
    """Return the lanes' pictures, non-empty ones first."""
    heats = [picture for picture in report.pictures if picture.kind == "lanes"]
    return sorted(heats, key=lambda p: not any(any(s.values) for s in p.series))


def _heat(picture: Picture) -> dict[str, Any]:
    values = [v for series in picture.series for v in series.values if v]
    most = max(values, default=1.0)
    limit = min(most, _usual_limit(values))
    return {
        "key": picture.key,
        "title": picture.y_label,
        "words": picture.words,
        "unit": picture.y_unit,
        "limit": limit,
        "limit_said": show(limit, picture.y_unit) + (" and more" if limit < most else ""),
        "bin_said": show(picture.x_step, "s"),
        "rows": [[0 if v is None else _short(v, 3) for v in s.values] for s in picture.series],
    }


def _plain(picture: Picture, limit: float) -> dict[str, Any]:
    return {
        "unit": picture.y_unit,
        "x_start": picture.x_start,
        "x_step": picture.x_step,
        "limit": limit,
        "series": [
            {
                "key": series.key,
                "label": series.label,
                "color": _color(series),
                "values": [_short(value or 0.0) for value in series.values],
            }
            for series in picture.series
        ],
    }


def _short(value: float, digits: int = 4) -> float:
    short = float(f"{value:.{digits}g}")
    return int(short) if short == int(short) else short


def _end_s(picture: Picture) -> float:
    if picture.at_s:
        return picture.at_s[-1]
    n = max((len(series.values) for series in picture.series), default=0)
    return picture.x_start + n * picture.x_step


def _cells(report: Report, key: str, *columns: str) -> list[list[Any]]:
    """Return columns of a table of the report; no rows without such a table or column."""
    for table in report.tables:
        places = {column.key: place for place, column in enumerate(table.columns)}
        if table.key == key and set(columns) <= set(places):
            return [[row[places[column]] for column in columns] for row in table.rows]
    return []


# --- without a script -----------------------------------------------------------------------------


def _figure(picture: Picture, name: str, content: str, more: str = "") -> str:
    words = f"<span>{safe(picture.words)}</span>{more}{incomplete(picture.state, picture.why)}"
    name = safe(name)
    return (
        f'<figure class="card" id="{name}" data-chart="{name}"><h3>{safe(picture.title)}</h3>'
        f'<figcaption>{words}</figcaption><div class="still">{content}</div></figure>'
    )


def _color(series: Series) -> str:
    key = series.key.split()[0]
    return COLORS.get(key, safe(key))


def _fill(series: Series) -> str:
    return f'fill="var(--{_color(series)})"'


def _columns(picture: Picture) -> list[tuple[float | None, ...]]:
    return list(zip(*(series.values for series in picture.series), strict=True))


def _usual_limit(values: Sequence[float]) -> float:
    """Return the end of a scale: the largest value, or less if a few values are several times the
    others."""
    if not values:
        return 1.0
    most = max(values) or 1.0
    usual = sorted(values)[int(0.98 * (len(values) - 1))]
    return _nice_limit(most if most < 4 * usual or not usual else 2.5 * usual)


def _stack(picture: Picture) -> str:
    """Draw stacked values, a step per bin."""
    n = max(len(series.values) for series in picture.series)
    base = [0.0] * n
    layers = []
    for series in picture.series:
        top = [below + (v or 0.0) for below, v in zip(base, series.values, strict=True)]
        layers.append((series, base, top))
        base = top
    limit = _usual_limit(base)
    shapes = [
        f'<path d="{_between(low, high, limit)}" {_fill(series)}/>' for series, low, high in layers
    ]
    cut = f" Bars above {show(limit, picture.y_unit)} are cut off." if limit < max(base) else ""
    legend = "".join(
        f'<li><svg aria-hidden="true"><rect {FULL} {_fill(s)}/></svg>{safe(s.label)}</li>'
        for s in picture.series
    )
    plot = _plot(picture, shapes, limit, _hits(picture, n, picture.series, 1), n)
    return _figure(picture, picture.key, f'<ul class="legend note">{legend}</ul>{plot}', cut)


def _is_near(mark: Mark, picture: Picture) -> bool:
    reached = [v for s in picture.series if _is_for(mark, s) for v in s.values if v]
    return bool(reached) and mark.value <= FAR * max(reached)


def _is_for(mark: Mark, series: Series) -> bool:
    return mark.group in ("", series.key.split()[0])


def _lines(picture: Picture) -> str:
    """Draw series one below the other, each with a separate scale, on a common axis of time."""
    plots = []
    for series in picture.series:
        values = [v or 0.0 for v in series.values]
        marks = [m for m in picture.marks if _is_for(m, series) and _is_near(m, picture)]
        limit = _nice_limit(max([*values, *(mark.value for mark in marks)]) or 1.0)
        shapes = [f'<path d="{_between([0.0] * len(values), values, limit)}" {_fill(series)}/>']
        shapes += [
            f'<path class="mark" d="M0,{HIGH * (1 - mark.value / limit):.4g}H{WIDE}"/>'
            for mark in marks
        ]
        hits = _hits(picture, len(values), [series], 1)
        dashed = "".join(
            f"; dashed: {safe(m.label)}"
            for m in marks  # with the value
        )
        plots.append(
            f'<p class="note">{safe(series.label)}{dashed}</p>'
            f'<div style="--tall:6.5rem">{_plot(picture, shapes, limit, hits, len(values))}</div>'
        )
    far = "".join(
        f" Beyond the picture: {safe(mark.label)}."
        for mark in picture.marks
        if not _is_near(mark, picture)
    )
    return _figure(picture, picture.key, "".join(plots), far)


def _lanes(picture: Picture, name: str, what: str) -> str:
    """Return rows of heat in a few shades, each shade a single path."""
    rows = picture.series[: MOST_STILL_LANES if picture.kind == "lanes" else None]
    n = len(rows[0].values)
    each = math.ceil(n / MOST_STILL_BINS)
    sums = [
        [sum(v or 0.0 for v in row.values[at : at + each]) for at in range(0, n, each)]
        for row in rows
    ]
    values = [value for row in sums for value in row if value]
    most = max(values, default=1.0)
    limit = min(most, _usual_limit(values))
    paths = [""] * (SHADES + 1)
    for place, row in enumerate(sums):
        for at, value in enumerate(row):
            if value:
                shade = max(1, math.ceil(min(1.0, value / limit) * SHADES))
                paths[shade] += f"M{at} {place}h1v.9h-1z"
    drawn = "".join(
        f'<path d="{path}" fill="var(--heat)" fill-opacity="{shade / SHADES:.2g}"/>'
        for shade, path in enumerate(paths)
        if path
    )
    labels = "".join(
        f'<span style="bottom:{100 * (1 - (place + 0.5) / len(rows)):.4g}%">{safe(_cut(row.label))}'
        "</span>"
        for place, row in enumerate(rows)
    )
    last = picture.x_start + n * picture.x_step
    xs = "".join(_x_label(x / last, _tick(x, picture.x_unit)) for x in _ticks(last))
    tall = max(2.5, min(40.0, 1.4 * len(rows)))
    shown = (
        f"The first {len(rows)} of {len(picture.series)} {what}. "
        if len(rows) < len(picture.series)
        else ""
    )
    darkest = show(limit, picture.y_unit) + (" or more" if limit < most else "")
    note = f"{shown}Darkest: {darkest} in {show(each * picture.x_step, 's')}."
    plot = (
        f'<p class="note">{note}</p><div class="plot wide" style="--tall:{tall:.3g}rem">'
        f'<div class="ys" aria-hidden="true">{labels}</div>'
        f'<svg viewBox="0 0 {n / each:.6g} {len(rows)}" preserveAspectRatio="none" role="img" '
        f'aria-label="{safe(picture.title)}. {safe(picture.words)}">{drawn}</svg>'
        f'<div class="xs" aria-hidden="true">{xs}</div></div>'
        f'<p class="axis wide">{safe(picture.x_label)}</p>'
    )
    return _figure(picture, name, plot)


def _cut(label: str, most: int = 28) -> str:
    """Remove the middle of a label to fit the label beside a picture."""
    return label if len(label) <= most else f"{label[: most // 2]}…{label[-most // 2 + 1 :]}"


def _between(low: Sequence[float], high: Sequence[float], limit: float) -> str:
    """Return the outline of bars from low to high, as a single path."""
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
    """Return invisible bars; the pointer over a bar shows the bar's numbers."""
    each = max(least, math.ceil(n / MOST_HITS))
    hits = []
    for first in range(0, n, each):
        last = min(n, first + each)
        counts = ", ".join(
            f"{s.label} {show(_mean(s.values[first:last]), picture.y_unit)}" for s in series
        )
        at = show(picture.x_start + first * picture.x_step, picture.x_unit)
        at = f"{picture.x_label if picture.x_unit == 'count' else 'at'} {at}"
        hits.append(
            f'<rect class="hit" x="{first * WIDE / n:.5g}" width="{(last - first) * WIDE / n:.5g}" '
            f'height="{HIGH}"><title>{safe(at)}: {safe(counts)}</title></rect>'
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
        f'aria-label="{safe(picture.title)}">{grid}{"".join(shapes)}{hits}</svg>'
        f'<div class="xs" aria-hidden="true">{x_labels}</div></div>'
        f'<p class="axis">{safe(picture.x_label)}</p>'
    )


def _x_label(share: float, text: str) -> str:
    kind = ' class="first"' if share < 0.02 else ' class="last"' if share > 0.96 else ""
    return f'<span{kind} style="left:{100 * min(1.0, share):.4g}%">{text}</span>'


def _tick(value: float, unit: str) -> str:
    """Return a round number without the zeros of a table's columns."""
    return re.sub(r"\.0+(?= |$)", "", show(value, unit))


def _ticks(limit: float, n: int = 5) -> list[float]:
    """Return round numbers from 0 to limit, at most n steps."""
    raw = limit / n
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    return [i * step for i in range(int(limit / step * 1.0001) + 1)]


def _nice_limit(most: float) -> float:
    """Return the first tick at or above the largest value."""
    ticks = _ticks(most)
    return ticks[-1] if ticks[-1] >= most * 0.9999 else ticks[-1] + ticks[1]


def _counted(value: float, picture: Picture) -> str:
    # Of a histogram: calls or files; JSON may hold any text.
    return count(round(value), safe(picture.y_label[:-1]))


def _bars(picture: Picture, series: Series, place_of: int) -> str:
    values = [v or 0.0 for v in series.values]
    used = [place for place, value in enumerate(values) if value]
    if not used:
        return ""
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
            f"{_fill(series)}><title>{edges}: {_counted(value, picture)}"
            "</title></rect>"
        )
    # A label needs a third of the narrowest picture, before the label of the last edge.
    each = math.ceil(0.3 * WIDE / width)
    named = [
        place for place in range(0, len(shown), each) if place + each <= len(shown) or not place
    ]
    if len(shown) >= each:
        named.append(len(shown))
    labels = "".join(_x_label(place * width / WIDE, picture.edge(first + place)) for place in named)
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
    state = incomplete(picture.state, picture.why)
    name = "" if place_of else f' id="{safe(picture.key)}"'  # of several, the first is linked to
    return (
        f'<figure class="card"{name}><h3>{safe(picture.title)}, {safe(series.label)}</h3>'
        f"<figcaption>{safe(words.partition(': ')[2])}{state}</figcaption>"
        f'<div class="plot" style="--tall:7rem"><div class="ys" aria-hidden="true">{y_labels}</div>'
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" '
        f'aria-label="{safe(picture.title)}, {safe(words)}">{grid}{"".join(bars)}</svg>'
        f'<div class="xs" aria-hidden="true">{labels}</div></div></figure>'
    )
