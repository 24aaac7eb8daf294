"""Render a report as one page of HTML: a file fit for mail, without network and JavaScript.

Sees a Report and nothing else.  Verdict, findings, tables and pictures are visible without a
script.  With a script, tables sort, commands copy, and the pictures over time become charts with a
common zoom.  Every string of the run is foreign and is escaped.  The page's policy allows only two
scripts: the page's own and the chart library, carried compressed in the page.
"""

import base64
import gzip
import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from string import Template

from penstock.errors import MissingDependency
from penstock.explain.report import (
    Cell,
    Check,
    Column,
    Finding,
    Part,
    Remedy,
    Report,
    Segment,
    Table,
    about_rule,
    largest_speedup,
    nothing_found,
    show,
)
from penstock.views.markup import (
    FULL,
    HATCH,
    asset,
    filled,
    incomplete,
    number,
    numbers,
    prose,
    safe,
    section,
)
from penstock.views.pictures import chart_data, histograms, of_requests, over_time

__all__ = ["PARTS", "chart_library", "page", "parts", "render", "wall_bar"]

MEANT_FOR_SORTING = ("directories", "files", "operations", "checkpoints")
MOST_ROWS = 100  # of a table; the others are in the report's JSON


def render(report: Report, library: bytes | None = None) -> str:
    """Return the page, to be encoded as UTF-8. library: the result of chart_library; None: no
    charts."""
    scripts = ["page.js", "start.js"] if library is None else ["charts.js", "page.js", "start.js"]
    script = "\n".join(asset(name).strip() for name in scripts)
    allowed, carried, images = [script.encode()], "", "'none'"
    if library is not None:
        allowed.append(library)
        # The picture of a heat map is made in the page, as a data: address.
        images = "data:"
        carried = _carried("library", library) + _carried("data", chart_data(report).encode())
    command = f'<p class="facts"><code>{safe(report.command)}</code></p>' if report.command else ""
    place = [word for word in (report.host, report.folder) if word]
    first, details = parts(report, FIRST), parts(report, DETAILS)
    return page(
        f"{_contents(first + details)}{first}\n{_folded(details)}",
        title=safe(report.title),
        facts=" · ".join(safe(fact) for fact in (*report.subtitle, *place)),
        command=command,
        carried=carried,
        images=images,
        script=script,
        script_hashes=" ".join(f"'{_hash(text)}'" for text in allowed),
    )


def page(
    body: str,
    title: str,
    facts: str,
    command: str = "",
    carried: str = "",
    images: str = "'none'",
    script: str = "",
    script_hashes: str = "'none'",
) -> str:
    """Return a separate page around markup; `page` escapes no text."""
    return Template(asset("page.html")).substitute(
        title=title,
        facts=facts,
        command=command,
        style=asset("page.css").strip(),
        carried=carried,
        images=images,
        script=script,
        script_hashes=script_hashes,
        body=HATCH + body,
    )


def chart_library() -> bytes:
    """Return Plotly's script from its package.  Raises MissingDependency: not installed."""
    spec = find_spec("plotly")  # not imported: an import takes longer than the whole report
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / "package_data" / "plotly.min.js"
        if path.is_file():
            return path.read_bytes()
    raise MissingDependency(
        "charts that zoom need an extra: pip install 'penstock[html]'; without it the pictures of"
        " the page stand still"
    )


def _carried(name: str, content: bytes) -> str:
    """Return a block of the page no browser runs: compressed, for start.js to unpack."""
    packed = base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()
    return f'<script type="application/gzip" id="{name}">{packed}</script>\n'


def _hash(script: bytes) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script).digest()).decode()


def parts(report: Report, names: Iterable[str]) -> str:
    """Return parts of the page by name: names of PARTS, keys of tables, "tables" for all tables.

    Parts without content are left out.
    """
    drawn = []
    for name in names:
        if name in PARTS:
            drawn.append(PARTS[name](report))
        else:
            drawn += [
                _table_section(report, table)
                for table in report.tables
                if name in ("tables", table.key)
            ]
    return "\n".join(part for part in drawn if part)


def _verdict(report: Report) -> str:
    verdict = report.verdict
    gain = largest_speedup(verdict) + incomplete(verdict.storage.state, verdict.storage.why)
    incidents = "".join(
        '<section class="card verdict incident" style="--level: var(--highly)">'
        f'<p class="headline">{safe(incident.headline)}</p>'
        f'<p class="sentence">{prose(incident.sentence)}</p></section>'
        for incident in report.incidents
    )
    return (
        f'{incidents}<section class="card verdict" style="--level: var(--{safe(verdict.level)})">'
        f'<p class="headline">{safe(verdict.headline)}</p>'
        f'<p class="sentence">{prose(verdict.sentence)}</p>'
        f'<p class="gain">{gain}</p>{wall_bar(report.wall)}{numbers(report.stretches)}</section>'
    )


def _contents(body: str) -> str:
    """Return links to the sections of a body."""
    sections = re.findall(r'<section id="([^"]+)"[^>]*><h2[^>]*>(.*?)</h2>', body)
    links = "".join(f'<li><a href="#{key}">{title}</a></li>' for key, title in sections)
    return f'<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav>' if links else ""


def _folded(details: str) -> str:
    """Return the details of a page, folded; a link into the details opens the fold."""
    if not details:
        return ""
    return f'<details id="details"><summary>Tables and details</summary>{details}</details>'


def _defined(report: Report, label: str) -> str:
    """Return a label as markup, linked to the definition if the report has a definition."""
    words = {label, label.rpartition(": ")[2].removeprefix("mostly "), label.partition(":")[0]}
    for place, definition in enumerate(report.definitions):
        if words & {definition.word, *definition.word.split(", ")}:
            return f'<a class="word" href="#word-{place}">{safe(label)}</a>'
    return safe(label)


def wall_bar(segments: Sequence[Segment]) -> str:
    """Return the bar of wall time, with waits on storage hatched."""
    if not segments:
        return ""
    at, bars = 0.0, []
    for segment in segments:
        caption = f"{segment.label}: {show(segment.s, 's')}, {show(segment.share, 'share')}"
        box = f'x="{at * 100:.3f}%" y="0" width="{segment.share * 100:.3f}%" height="100%"'
        bars.append(f"<g><title>{safe(caption)}</title>{filled(segment.key, box)}</g>")
        at += segment.share
    words = ", ".join(f"{s.label} {show(s.share, 'share')}" for s in segments)
    legend = "".join(
        f'<li><svg aria-hidden="true">{filled(s.key, FULL)}</svg>'
        f"{safe(s.label)} <b>{show(s.share, 'share')}</b></li>"
        for s in segments
    )
    return (
        f'<svg class="wall" height="44" role="img" aria-label="Wall time: {safe(words)}">'
        f"{''.join(bars)}</svg>"
        f'<ul class="legend">{legend}</ul>'
    )


def _findings(report: Report) -> str:
    if not report.findings and not report.checks:
        return ""
    cards = "".join(_finding(report, finding) for finding in report.findings)
    if not cards:
        cards = f'<p class="card">{prose(nothing_found(report))} What was looked for is below.</p>'
    else:
        cards = f'<ol class="findings">{cards}</ol>'
    note = (
        "Largest gain first. A gain is an upper bound: what would go away of the wall time if the"
        " cause went away and nothing else changed; gains do not add up."
    )
    return section("findings", "What to do", cards, note if report.findings else "")


def _finding(report: Report, finding: Finding) -> str:
    gain, share = finding.gain, finding.share
    if gain.value is None:
        worth = f"gain not measured: {prose(gain.why)}"
    else:
        of = safe(finding.of)
        part = "" if share.value is None else f" ({show(share.value, 'share')} of {of})"
        worth = f"gain up to <b>{number(gain)}</b>{part}"
    evidence = "".join(f"<li>{prose(line)}</li>" for line in finding.evidence)
    remedies = "".join(_remedy(remedy) for remedy in finding.remedies)
    name, title = _shown(report, finding.shown)
    see = f'<p class="see"><a href="#{name}">{title}</a> shows it.</p>' if name else ""
    return (
        f'<li class="card finding" id="finding-{safe(finding.rule)}">'
        f'<h3><a class="rule" href="#rule-{safe(finding.rule)}">{safe(finding.rule)}</a>'
        f" {safe(finding.title)}</h3>"
        f'<p class="worth">{worth}</p><ul class="evidence">{evidence}</ul>{remedies}{see}'
        f"{_about(finding.rule)}</li>"
    )


def _about(rule: str) -> str:
    """Return the rule's condition and limits, folded."""
    condition, limits = about_rule(rule)
    if not condition:
        return ""
    items = "".join(f"<li>{prose(limit)}</li>" for limit in limits)
    return (
        f'<details class="about"><summary>Rule {safe(rule)}: condition and limits</summary>'
        f'<p id="rule-{safe(rule)}">{prose(condition)}</p><ul>{items}</ul></details>'
    )


# Words in a remedy's command the user must replace.
PLACEHOLDERS = {"FAST", "SLOW", "FOLDER", "COMMAND", "PATH", "TIER"}


def _remedy(remedy: Remedy) -> str:
    says = f'<p class="says">{prose(remedy.says)}</p>' if remedy.says else ""
    if not remedy.command:
        return says
    # A complete command can be copied; a command with placeholders is for reading.
    kind = "command template" if PLACEHOLDERS & set(remedy.command.split()) else "command"
    return f'{says}<p class="{kind}"><code>{safe(remedy.command)}</code></p>'


def _shown(report: Report, key: str) -> tuple[str, str]:
    """Return the anchor and title of a table or picture on the page, or two empty strings."""
    for table in report.tables:
        if table.key == key and table.rows:
            return safe(key), safe(table.title)
    for picture in report.pictures:
        if picture.key == key or (key == "lanes" and picture.kind == "lanes"):
            name = "lanes" if picture.kind == "lanes" else key
            return safe(name), safe(picture.title)
    return "", ""


def _checks(report: Report) -> str:
    if not report.checks:
        return ""
    checks = sorted(report.checks, key=lambda check: not check.applies)
    rows = "".join(_check(check) for check in checks)
    head = "".join(f'<th scope="col" class="text">{word}</th>' for word in CHECK_HEAD)
    content = (
        '<div class="scroll" tabindex="0" role="region" aria-label="Looked for and not found">'
        f'<table class="checks"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
    note = (
        "Fine: worth too little to change. Suppressed: another finding explains it. Not judged: a"
        " measurement is missing. Not applicable: the run has nothing of the kind."
    )
    return section("checks", "Looked for, and no finding", content, note, "long")


CHECK_HEAD = ("rule", "looked for", "state", "because")


def _check(check: Check) -> str:
    state = check.state if check.applies else "not applicable"
    cells = ((check.rule, ""), (check.title, " wide"), (state, ""), (check.says, " wide"))
    row = "".join(f'<td class="text{more}">{prose(text)}</td>' for text, more in cells)
    return f"<tr>{row}</tr>"


def _waits(report: Report) -> str:
    blocks = [
        _wait_parts(report, "What the data wait was made of", report.wait),
        _wait_parts(report, "What the first batch waited for", report.first_batch),
        _startup(report),
        _saving(report),
    ]
    if not any(blocks):
        return ""
    note = (
        "Each wait is attributed to what made the batch meanwhile, where that is known; shares sum"
        " to 100 %. Hatched: storage."
    )
    return section(
        "waits",
        "What the job waited for",
        f'<div class="columns two">{"".join(blocks)}</div>',
        note,
    )


def _wait_parts(report: Report, title: str, of: Sequence[Part]) -> str:
    if not of:
        return ""
    rows = []
    for part in of:
        remark = f"{part.state}: {part.why}" if part.why else part.state
        label = f'<td class="text" title="{safe(remark)}">{_defined(report, part.label)}</td>'
        if part.s is None or part.share is None:
            rows.append(f'<tr>{label}<td colspan="3" class="text note">not measured</td></tr>')
            continue
        key = (
            "data storage" if part.is_storage else "data cpu" if part.key == "cpu" else "data other"
        )
        box = f'width="{max(0.4, part.share * 100):.2f}%" height="100%"'
        rows.append(
            f"<tr>{label}<td>{show(part.s, 's')}</td><td>{show(part.share, 'share')}</td>"
            f'<td class="bar"><svg aria-hidden="true">{filled(key, box)}</svg></td></tr>'
        )
    is_incomplete = any(part.state == "incomplete" for part in of)
    mark = ' <small class="incomplete">incomplete</small>' if is_incomplete else ""
    head = "".join(f'<th scope="col">{word}</th>' for word in ("time", "share", ""))
    head = f'<thead class="note"><tr><th class="text" scope="col">while</th>{head}</tr></thead>'
    return (
        f'<div class="card"><h3>{safe(title)}{mark}</h3>'
        f'<table class="parts">{head}<tbody>{"".join(rows)}</tbody></table></div>'
    )


def _startup(report: Report) -> str:
    if not report.shows_startup:
        return ""
    of = "Start-up" if report.wall else "What the program's life was spent on"
    return _wait_parts(report, f"{of}: {show(report.startup_s, 's')}", report.startup)


SAVING = "What checkpoints spent their time on"


def _saving(report: Report) -> str:
    return _wait_parts(report, SAVING, report.checkpoint)


def _time(report: Report) -> str:
    drawn = over_time(report, "stack", "lines", "lanes", "ranks")
    return section("time", "Over the run", drawn) if drawn else ""


def _reading(report: Report) -> str:
    if not report.reading:
        return ""
    return section(
        "reading", "How data files were read", f'<div class="card">{numbers(report.reading)}</div>'
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
    rows, rest = (
        "".join(
            "<tr>"
            + "".join(_cell(report, table.columns[place], row[place]) for place in places)
            + "</tr>"
            for row in of
        )
        for of in (shown, [row.cells for row in table.rest])
    )
    # Below the rows, however sorted.
    foot = f"<tfoot>{rest}</tfoot>" if rest else ""
    kind = "sortable" if table.key in MEANT_FOR_SORTING and len(table.rows) > 1 else ""
    content = (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{safe(table.title)}">'
        f'<table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>{foot}'
        "</table></div>"
    )
    if table.key == "remote_requests":
        content += of_requests(report)
    n_all = len(table.rows) if table.n_all is None else table.n_all
    n_told = table.things(shown)
    left_out = f" The first {n_told:,} of {n_all:,}." * (n_told < n_all)
    return section(table.key, safe(table.title), content, prose(table.note) + left_out, "long")


def _head(column: Column) -> str:
    kind = column.unit if column.unit in ("text", "path") else ""
    mark = ""
    if column.state == "incomplete":
        mark = f' <span class="incomplete" title="{safe(column.why)}">(incomplete)</span>'
    return f'<th scope="col" class="{kind}">{safe(column.title)}{mark}</th>'


def _cell(report: Report, column: Column, value: Cell) -> str:
    text = show(value, column.unit)
    if column.unit == "path":
        below = f"{report.folder}/"
        short = text[len(below) :] if report.folder and text.startswith(below) else text
        return f'<td class="path">{safe(short).replace("/", "/<wbr>")}</td>'
    if column.unit == "text":
        return f'<td class="text{" wide" if len(text) > 30 else ""}">{safe(text)}</td>'
    if value is None or isinstance(value, str):
        return f"<td>{safe(text)}</td>"
    return f'<td data-v="{value:.6g}">{text}</td>'


def _gaps(report: Report) -> str:
    items = "".join(
        f'<dt class="{safe(gap.state)}">{safe(gap.what)}: {safe(gap.state)}</dt>'
        f"<dd>{prose(gap.why)}</dd>"
        for gap in report.gaps
    )
    return section(
        "gaps", "Not measured, or not completely", f'<dl class="words card">{items}</dl>'
    )


def _cost(report: Report) -> str:
    return section(
        "cost", "The recorder's own cost", f'<div class="card">{numbers(report.cost)}</div>'
    )


def _definitions(report: Report) -> str:
    items = "".join(
        f'<dt id="word-{place}">{safe(of.word)}</dt><dd>{safe(of.meaning)}</dd>'
        for place, of in enumerate(report.definitions)
    )
    return section("words", "What the words mean", f'<dl class="words card">{items}</dl>')


# The parts of a page, by name.
PARTS: dict[str, Callable[[Report], str]] = {
    "verdict": _verdict,
    "findings": _findings,
    "waits": _waits,
    "time": _time,
    "steps": lambda report: over_time(report, "stack"),
    "saving": _saving,
    "sizes": histograms,
    "reading": _reading,
    "checks": _checks,
    "gaps": _gaps,
    "cost": _cost,
    "words": _definitions,
}
# The page above the fold, and the folded parts.
FIRST = ("verdict", "findings", "waits", "time")
DETAILS = ("sizes", "reading", "tables", "checks", "gaps", "cost", "words")
