"""Render a report as text for a terminal, a job's log or a pipe.  Sees a Report and nothing else.

The layout is made for 80 columns, better at 100, never wider.  No fact depends on colour alone:
each segment of the bar has a letter, and a stream that takes no UTF-8 gets ASCII.
"""

import itertools
import math
import re
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from penstock.errors import MissingDependency, PenstockError
from penstock.explain.report import (
    Cell,
    Fact,
    Finding,
    Part,
    Picture,
    Remedy,
    Report,
    Series,
    Table,
    largest_speedup,
    nothing_found,
)
from penstock.explain.report.shape import REQUEST_TIMES
from penstock.safe.harmless import Shown, plain
from penstock.views.paper import (
    LEVELS,
    NARROWEST,
    WIDEST,
    bar,
    boxed,
    flowed,
    in_letters_of,
    legend,
    paper_of,
    printed,
)
from penstock.views.paper import Paper as _Paper
from penstock.words import count, show

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["render", "render_finding", "show_on"]

# Columns of the tables, least needed last. A column that does not fit appears only on the page and
# in JSON.
COLUMNS = {
    "directories": "path blocking_s time_s read_bytes written_bytes files calls",
    "files": "path blocking_s time_s read_bytes written_bytes read_times opens size_bytes",
    "endpoints": "endpoint whose wait_s received_bytes answers first_byte_s connections"
    " most_at_once retransmits rtt_s sent_bytes transfer_s failed",
    "remote_requests": "endpoint operation requests received_bytes first_byte_p50_s"
    " first_byte_p99_s busy_s most_at_once retries lost_s bucket broken refused unanswered",
    "operations": "op calls moved_bytes time_s p50_s p99_s max_s errors layer",
    "checkpoints": "start_s blocked_s background_s written_bytes bandwidth_bps ended call_s path",
    "failures": "errno op path calls first_s last_s pid",
    "epochs": "epoch start_s duration_s data_wait_s first_wait_s batches read_bytes workers",
    "workers": "worker pid owed_s fetches mean_fetch_s cpu_s busy_share rank",
    "fetch_lines": "path line function called cpu_s samples",
    "fault_files": "path blocking_s waited_s major waited minor max_s",
    "ahead": "path access ahead_bytes hit_bytes size_bytes why",
    "staged": "outcome opens files read_bytes time_s tier",
    "filling": "filling seconds copied_bytes reads mean_read_s slower slower_error wait_share",
    "burst": "tier written_bytes drained_bytes durable_mean_s durable_max_s left_bytes paused_s",
    "checkpointers": "saves lost_s durable_mean_s durable_max_s backlog risk_s end_risk_s fast",
    "tiered_saves": "step mode blocked_s lost_s lost_to_durable_s durable_s backlog risk_s outcome",
    "ranks": "rank data_wait_s checkpoint_block_s barrier_s own_s wall_s read_bytes steps host",
    "sharing": "readers files size_bytes read_bytes node_bytes",
    "clocks": "host how moved_s error_s spread_s steps",
    "startup_places": "path part time_s calls read_bytes written_bytes files",
    "startup_imports": "package importer import_s cpu_s calls_s processes",
    "storage": "mount kind path_class read_bytes written_bytes read_ceiling_bps files beneath",
}
ROWS = {
    "directories": 6,
    "files": 6,
    "endpoints": 6,
    "remote_requests": 6,
    "operations": 8,
    "checkpoints": 6,
    "failures": 6,
    "epochs": 6,
    "workers": 4,
    "fetch_lines": 5,
    "fault_files": 6,
    "ahead": 5,
    "staged": 5,
    "filling": 2,
    "burst": 1,
    "checkpointers": 2,
    "tiered_saves": 6,
    "ranks": 6,
    "sharing": 4,
    "startup_places": 4,
    "startup_imports": 4,
    "clocks": 6,
    "storage": 4,
}
# Tables with easily confused words and numbers: shown with notes.
NOTED = ("staged", "filling")
SAVES = ("checkpointers", "tiered_saves")
HEADINGS = {
    "blocking_s": "blocked",
    "time_s": "in calls",
    "moved_bytes": "bytes",
    "max_s": "longest",
    "p99_s": "p99",
    "waited": "minor, waited",
    "first_wait_s": "1st batch",
    "background_s": "off loop",
    "call_s": "in calls",
    "read_bytes": "read",
    "read_times": "read/size",
}
# Columns of the table of files for which sums are shown.
SUMMED = ("blocking_s", "time_s", "read_bytes", "written_bytes", "size_bytes", "opens", "calls")
FINDINGS = 5  # at most, on the screen; the page shows all
SCREEN_ROWS = 24  # of the end of a run
SENTENCE_ROWS = 4  # in the summary, for a verdict or an incident
WORTH_A_LETTER = 0.01  # in the summary: least share of a segment with a letter


class Detail(NamedTuple):
    """How much the summary at the end of a run shows: findings, and lines of evidence and
    remedies."""

    findings: int
    evidence: int
    remedy: int
    is_airy: bool = False


DETAILS = (
    Detail(2, 3, 2, True),
    Detail(2, 2, 2),
    Detail(2, 1, 2),
    Detail(2, 1, 1),
    Detail(1, 1, 1),
)
# A run without training is trivial below TRIVIAL_S in calls on the program's own files, and below
# ten times TRIVIAL_S with files of the system and the interpreter included.
TRIVIAL_S = 0.1
# Measures missing in almost every run: shown in one line if there is little else to show.
EVERY_RUN = (
    "page faults",
    "page cache",
    "device bytes per byte requested",
    "accelerator",
    "data in memory before",
    "direct system calls",
)
# No system call that moves bytes is shorter (an empty call takes about 100 ns). A buffer of libc
# answered any shorter call, so the latency shows nothing about storage.
BUFFERED_NS = 256
BUFFERED_SHARE = 0.99
HEAT_ROWS = 16
NAMED = 6  # rules with a common reason are named up to this number
PATH_COLUMNS = 34  # a narrower path is useless: the table drops a column instead


def render(
    report: Report,
    width: int | None = None,
    color: bool | None = None,
    is_brief: bool = False,
) -> str:
    """Return the report as text of at most `width` columns (60 to 100; 100 if None).

    color: with escapes for colours.  is_brief: only the summary at the end of a run: one screen of
    24 rows with the verdict, the bar, the two largest findings and the next commands.  Raises
    MissingDependency without rich; PenstockError: a report from JSON lacks a column of the view.
    """
    paper = _Paper(max(NARROWEST, min(width or WIDEST, WIDEST)), is_utf8=True)
    return (_end if is_brief else _drawn)(report, paper, bool(color))


def show_on(report: Report, stream: TextIO | None = None, is_brief: bool = False) -> None:
    """Print the report in the width, colours and encoding of the stream."""
    stream = Shown.through(sys.stdout if stream is None else stream)
    paper, color = paper_of(stream)
    stream.write((_end if is_brief else _drawn)(report, paper, color))


def render_finding(finding: Finding, width: int = WIDEST) -> str:
    """Return a finding in the form of a report's first finding.  Raises MissingDependency."""
    paper = _Paper(width, is_utf8=True)
    return printed(_finding(1, finding, paper), paper, False).rstrip("\n")


def _drawn(report: Report, paper: _Paper, color: bool) -> str:
    Text = _rich_text()  # noqa: N806
    report = _harmless(report)
    inner = _Paper(paper.width - 4, paper.is_utf8)
    try:
        parts = [_framed(report, _top(report, inner), paper)]
        for section in _sections(report, paper):
            if section:
                parts.append(Text("\n").join([*section, Text()]))
    except KeyError as error:  # in a file of JSON
        raise PenstockError(f"a report without {error}, which this release needs") from error
    return printed(parts, paper, color)


def _rich_text() -> type["Text"]:
    try:
        from rich.text import Text
    except ModuleNotFoundError as error:
        raise MissingDependency("the terminal view needs rich: pip install rich") from error
    return Text


def _framed(report: Report, lines: list["Text"], paper: _Paper) -> object:
    title = _text(f" {paper.clean(report.title)} ", "bold")
    title.append(f" {paper.clean(', '.join(report.subtitle))} ", "not bold")
    return boxed(lines, title, LEVELS[report.verdict.level], paper)


def _end(report: Report, paper: _Paper, color: bool) -> str:
    """Return the summary at the end of a run, with as many details as the screen has rows for."""
    _rich_text()
    from rich.cells import cell_len

    report = _harmless(report)
    inner = _Paper(paper.width - 4, paper.is_utf8)
    commands = _next_commands(report, paper)
    rows = [math.ceil(cell_len(line) / paper.width) for line in commands]
    for detail in DETAILS:
        text = printed([_framed(report, _brief(report, inner, detail), paper)], paper, color)
        rows_left = SCREEN_ROWS - text.count("\n")
        if sum(rows) <= rows_left:
            break
    # A command is shown whole or not at all: part of a command is another command.
    while sum(rows) > rows_left and len(rows) > 2:
        rows.pop()
    return text + in_letters_of(paper, "\n".join([*commands[: len(rows)], ""]))


def _brief(report: Report, paper: _Paper, detail: Detail) -> list["Text"]:
    """Return the verdict, the bar and the largest findings, in few lines."""
    verdict = report.verdict
    drawn = []
    for incident in report.incidents[:1]:
        drawn += _sentence(incident.headline, incident.sentence, LEVELS["highly"], paper)
        drawn = _cut(drawn, SENTENCE_ROWS, paper)
    said = _sentence(verdict.headline, verdict.sentence, LEVELS[verdict.level], paper)
    drawn += _cut(said, SENTENCE_ROWS, paper)
    if verdict.storage.state == "incomplete":
        lines = [_text(line, "yellow") for line in paper.wrap(f"Incomplete: {verdict.storage.why}")]
        drawn += _cut(lines, 1, paper)
    gap = [_text()] if detail.is_airy else []
    wall = tuple(segment for segment in report.wall if segment.share >= WORTH_A_LETTER)
    if wall:
        large = replace(report, wall=wall)
        drawn += [*gap, _bar(large, paper), *_legend(large, paper)]
    for number, finding in enumerate(_telling(report)[: detail.findings], 1):
        drawn += [*gap, *_finding(number, finding, paper, detail)]
    if not report.findings and verdict.level in ("moderately", "highly"):
        drawn += [_text(line) for line in paper.wrap(nothing_found(report))]
    return drawn


def _cut(lines: list["Text"], rows: int, paper: _Paper) -> list["Text"]:
    """Return at most `rows` lines; the last ends in an ellipsis if lines were cut."""
    if len(lines) > rows:
        lines = lines[:rows]
        lines[-1].truncate(paper.width - 2)
        lines[-1].append(" …" if paper.is_utf8 else " ~")
    return lines


def _next_commands(report: Report, paper: _Paper) -> list[str]:
    """Return the commands to type after a run, each on a line."""
    run = shlex.quote(report.run)
    unjudged = sum(check.state == "not judged" for check in report.checks)
    more = count(len(report.findings), "finding")
    commands = {
        f"penstock report {run}": f"{more}, {count(unjudged, 'rule')} not judged",
        f"penstock report {run} -o report.html": "as a page",
        f"penstock compare {run} NEXT": "after the next run: what changed",
        "penstock watch NEXT": "while it runs",
    }
    width = max(map(len, commands))
    lines = [f"Recorded in {report.run}. Next:"]
    for command, purpose in commands.items():
        line = f"  {command:<{width}}  {purpose}"
        lines.append(line if len(line) <= paper.width else f"  {command}")
    return list(map(paper.clean, lines))


def _telling(report: Report) -> tuple[Finding, ...]:
    """Return the findings to show: for a run without a wait, only failures and defects."""
    if _is_trivial(report):
        return tuple(finding for finding in report.findings if finding.gain.value is None)
    return report.findings


def _harmless(value: Any) -> Any:
    """Return the report, or a part of it, without control characters in any text."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, tuple):
        return tuple(map(_harmless, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _harmless(getattr(value, f.name)) for f in fields(value)})
    return value


def _text(text: str = "", style: str = "") -> "Text":
    from rich.text import Text

    return Text(text, style)


def _top(report: Report, paper: _Paper) -> list["Text"]:
    """Return the verdict and the bar: a reader takes in both within ten seconds."""
    verdict = report.verdict
    drawn = []
    for incident in report.incidents:
        drawn += [
            *_sentence(incident.headline, incident.sentence, LEVELS["highly"], paper),
            _text(),
        ]
    drawn += _sentence(verdict.headline, verdict.sentence, LEVELS[verdict.level], paper)
    if gain := largest_speedup(verdict):
        drawn += [_text(line) for line in paper.wrap(gain)]
    if verdict.storage.state == "incomplete":
        drawn += [
            _text(line, "yellow") for line in paper.wrap(f"Incomplete: {verdict.storage.why}")
        ]
    if report.wall:
        drawn += [_text(), _bar(report, paper), *_legend(report, paper)]
    drawn.append(_text())
    facts = [_fact(fact) for fact in report.stretches]
    drawn += [_text(line) for line in flowed(facts, paper.width)]
    findings = _telling(report)
    if not report.findings and report.verdict.level in ("moderately", "highly"):
        drawn += [_text(), *(_text(line) for line in paper.wrap(nothing_found(report)))]
    for number, finding in enumerate(findings[:FINDINGS], 1):
        drawn += [_text(), *_finding(number, finding, paper)]
    if more := findings[FINDINGS:]:
        titles = ", ".join(f"{finding.title} ({finding.rule})" for finding in more)
        drawn += [_text(), *(_text(line, "dim") for line in paper.wrap(f"Also: {titles}"))]
    return drawn


def _sentence(headline: str, sentence: str, style: str, paper: _Paper) -> list["Text"]:
    """Return headline, colon, sentence."""
    drawn = [_text(line) for line in _filled(paper.clean(f"{headline}: {sentence}"), paper.width)]
    left = len(headline) + 1
    for line in drawn:
        line.stylize(f"bold {style}", 0, min(left, len(line)))
        left = max(0, left - len(line) - 1)
    return drawn


def _finding(
    number: int, finding: Finding, paper: _Paper, detail: Detail | None = None
) -> list["Text"]:
    """Return title and gain in one line, then evidence and remedies; a command is never cut.

    detail: the limits of the end of a run; None: all evidence and up to three remedies.
    """
    title = f"{number}  {finding.title} ({finding.rule})"
    gain = ""
    if finding.gain.value is not None:
        gain = f"up to {show(finding.gain.value, 's')}, {show(finding.share.value, 'share')}"
    head = _text(paper.elide(title, paper.width - len(gain) - 1), "bold")
    head.append(gain.rjust(paper.width - len(head)), "not bold")
    lines = [head]
    proofs = [line for text in finding.evidence for line in _indented("", text, "", paper)]
    lines += _cut(proofs, detail.evidence, paper) if detail else proofs
    remedies = _told(finding.remedies)
    if detail:  # a single remedy, if possible with a command
        remedies = [*(remedy for remedy in remedies if remedy.command), *remedies][:1]
    for remedy in remedies:
        words = _indented(paper.arrow, remedy.says, "green", paper)
        lines += _cut(words, detail.remedy, paper) if detail else words
        if remedy.command:
            lines += _indented(" " * len(paper.arrow), remedy.command, "bold", paper)
    return lines


def _indented(mark: str, text: str, style: str, paper: _Paper) -> list["Text"]:
    wrapped = _filled(paper.clean(text), paper.width - 3 - len(mark))
    return [
        _text(f"   {mark if not place else ' ' * len(mark)}{line}", style)
        for place, line in enumerate(wrapped)
    ]


def _told(remedies: Sequence[Remedy]) -> list[Remedy]:
    """Return the first two remedies and the first command; the page shows the others."""
    commands = [remedy for remedy in remedies if remedy.command]
    return [*remedies[:2], *(remedy for remedy in commands[:1] if remedy not in remedies[:2])]


def _filled(text: str, width: int) -> list[str]:
    """Return lines of at most `width`; a number and the unit stay together."""
    held = re.sub(r"(\d) (?=(%|[kMGTPnµm]?[sB](/s)?)(\W|$))", "\\1\xa0", text)
    return [line.replace("\xa0", " ") for line in textwrap.wrap(held, width)]


def _fact(fact: Fact) -> str:
    said = f"{fact.label} {show(fact.number.value, fact.number.unit)}"
    return f"{said} ({fact.remark})" if fact.remark else said


def _bar(report: Report, paper: _Paper) -> "Text":
    return bar([(segment.key, segment.share) for segment in report.wall], paper.width)


def _legend(report: Report, paper: _Paper) -> list["Text"]:
    items = [
        (segment.key, f"{segment.label} {show(segment.share, 'share')}") for segment in report.wall
    ]
    return legend(items, paper.width)


def _sections(report: Report, paper: _Paper) -> list[list["Text"]]:
    if _is_trivial(report):
        failures = _table(report, report.table("failures"), paper)
        files = _table(report, report.table("files"), paper)
        ahead = _table(report, report.table("ahead"), paper)
        staged = _table(report, report.table("staged"), paper)
        filling = _table(report, report.table("filling"), paper)
        burst = _table(report, report.table("burst"), paper)
        saves = [_table(report, report.table(key), paper) for key in SAVES]
        return [
            failures,
            *_startup(report, paper),
            files,
            ahead,
            staged,
            filling,
            burst,
            *saves,
            _missing(report, paper, is_brief=True),
            _cost(report, paper),
        ]
    data_s = sum(part.s or 0.0 for part in report.wait)
    return [
        _checks(report, paper),
        _parts(f"What the job waited for: {show(data_s, 's')} of data wait", report.wait, paper),
        _parts("What the first batch waited for", report.first_batch, paper),
        *_startup(report, paper),
        _parts("What the checkpoints spent their time on", report.checkpoint, paper),
        _table(report, report.table("failures"), paper),
        _table(report, report.table("endpoints"), paper),
        _table(report, report.table("remote_requests"), paper),
        _request_times(report, paper),
        _table(report, report.table("directories"), paper),
        _table(report, report.table("files"), paper),
        _table(report, report.table("fetch_lines"), paper),
        _table(report, report.table("fault_files"), paper),
        _table(report, report.table("ahead"), paper),
        _reading(report, paper),
        _histograms(report, paper),
        _over_time(report, paper),
        _rank_heat(report, paper),
        _table(report, report.table("ranks"), paper),
        _table(report, report.table("sharing"), paper),
        _table(report, report.table("clocks"), paper),
        _table(report, report.table("operations"), paper),
        _table(report, report.table("checkpoints"), paper),
        _table(report, report.table("burst"), paper),
        *(_table(report, report.table(key), paper) for key in SAVES),
        _table(report, report.table("epochs"), paper),
        _table(report, report.table("workers"), paper),
        _table(report, report.table("storage"), paper),
        _table(report, report.table("staged"), paper),
        _table(report, report.table("filling"), paper),
        _missing(report, paper),
        _cost(report, paper),
    ]


def _startup(report: Report, paper: _Paper) -> list[list["Text"]]:
    """Return the parts of a start-up worth showing, and the locations of the files."""
    if not report.shows_startup:
        return []
    of = "Start-up" if report.wall else "What the program's life was spent on"
    return [
        _parts(f"{of}: {show(report.startup_s, 's')}", report.startup, paper),
        _table(report, report.table("startup_places"), paper),
        _table(report, report.table("startup_imports"), paper),
    ]


def _is_trivial(report: Report) -> bool:
    """Return True for a run without training and with hardly any time in calls on files.

    The tables of such a run show nothing.
    """
    table = report.table("classes")
    places = {column.key: place for place, column in enumerate(table.columns)}
    own_s, all_s = 0.0, 0.0
    for row in table.rows:
        s = sum(float(row[places[key]] or 0) for key in ("read_s", "write_s", "metadata_s"))
        path_class = row[places["path_class"]]
        own_s += s if path_class in ("data", "output") else 0.0
        all_s += s if path_class != "other than files" else 0.0
    own_s += _waited_for_pages(report)
    return not report.wall and own_s < TRIVIAL_S and all_s < 10 * TRIVIAL_S


def _waited_for_pages(report: Report) -> float:
    """Return the seconds in page faults of data files."""
    table = report.table("fault_files")
    places = {column.key: place for place, column in enumerate(table.columns)}
    return sum(
        float(row[places["waited_s"]] or 0)
        for row in table.rows
        if row[places["path_class"]] == "data"
    )


def _checks(report: Report, paper: _Paper) -> list["Text"]:
    """Return the rules checked without a finding, and the rules that could not be judged."""
    fine = [check.title for check in report.checks if check.state == "fine" and check.applies]
    n_others = sum(check.state == "fine" and not check.applies for check in report.checks)
    others = f"{count(n_others, 'rule')} not applicable to this run" if n_others else ""
    lines = []
    if fine or others:
        lines.append(_heading("Checked and fine", paper, others))
        lines += [_text(f"  {line}", "dim") for line in flowed(fine, paper.width - 2, " · ")]
    for state, title in (("suppressed", "Explained by another"), ("not judged", "Not judged")):
        # Several rules may lack the same measure: print the reason once.
        whys: dict[str, list[str]] = {}
        for check in report.checks:
            if check.state == state:
                whys.setdefault(check.says, []).append(check.title)
        if whys:
            lines.append(_heading(title, paper))
        for why, titles in whys.items():
            many = count(len(titles), "rule")  # a long list of unjudged rules helps nobody
            sentence = f"{', '.join(titles) if len(titles) <= NAMED else many}: {why}"
            wrapped = _filled(paper.clean(sentence), paper.width - 4)
            lines += [
                _text(f"  {'  ' if place else ''}{line}", "dim")
                for place, line in enumerate(wrapped)
            ]
    return lines


def _heading(text: str, paper: _Paper, remark: str = "") -> "Text":
    line = _text(text, "bold")
    if remark and len(text) + len(remark) + 2 <= paper.width:
        line.append(f"  {remark}", "not bold dim")
    return line


def _parts(title: str, parts: Sequence[Part], paper: _Paper) -> list["Text"]:
    if not parts:
        return []
    label = max(len(part.label) for part in parts)
    bar = min(50, paper.width - label - 22)
    is_incomplete = any(part.state == "incomplete" for part in parts)
    lines = [_heading(title, paper, "incomplete" if is_incomplete else "")]
    for part in parts:
        line = _text(f"  {part.label:<{label}} ")
        if part.s is None or part.share is None:
            line.append("not measured", "dim")
        else:
            color = "red" if part.is_storage else "yellow"
            line.append(f"{show(part.s, 's'):>9} {show(part.share, 'share'):>7}  ")
            line.append((paper.block * round(part.share * bar)) or "·", color)
        lines.append(line)
    return lines


def _table(report: Report, table: Table, paper: _Paper) -> list["Text"]:
    """Return the rows of most weight, without columns that are empty or do not fit."""
    shown = _once_a_path(table) if table.key == "directories" else table.rows
    rows = shown[: ROWS[table.key]]
    if not rows:
        return []
    n_all = len(shown) if table.n_all is None else table.n_all
    n_rows = table.things(rows)
    remark = f"{n_rows} of {n_all:,}" if n_rows < n_all else ""
    rest = _rest(table, shown[len(rows) :]) if table.key == "files" else []
    grid = _Grid.of(report, table, [*rows, *rest], paper)
    lines = [_heading(table.title, paper, remark), _text(grid.line(grid.titles), "dim")]
    lines += [_text(grid.line(cells)) for cells in grid.cells]
    if table.key in NOTED:
        note = textwrap.wrap(table.note.replace("`", ""), paper.width - 2)
        lines += [_text(f"  {line}", "dim") for line in note]
    return lines


def _rest(table: Table, left: Sequence[tuple[Cell, ...]]) -> list[tuple[Cell, ...]]:
    """Return a row for each layer, the sum of the remaining rows and of files without a row."""
    places = {column.key: place for place, column in enumerate(table.columns)}
    gathered: dict[Cell, tuple[int, list[tuple[Cell, ...]]]] = {}
    for n, cells in [(1, row) for row in left] + [(rest.n, rest.cells) for rest in table.rest]:
        before, rows = gathered.get(cells[places["layer"]], (0, []))
        gathered[cells[places["layer"]]] = (before + n, [*rows, cells])
    made = []
    for layer, (n, rows) in sorted(gathered.items(), key=lambda item: str(item[0])):
        row: list[Cell] = [None] * len(places)
        row[places["layer"]], row[places["path"]] = layer, count(n, "other file")
        for key in SUMMED:
            row[places[key]] = sum(float(cells[places[key]] or 0) for cells in rows)
        made.append(tuple(row))
    return made


def _once_a_path(table: Table) -> list[tuple[Cell, ...]]:
    """Return a single row for each directory.

    The calls of the two layers are never added.  For a directory with both layers, return the row
    with more blocking time, else with more bytes, else of POSIX.  The page and JSON have both rows.
    """
    places = {column.key: place for place, column in enumerate(table.columns)}

    def weight(row: tuple[Cell, ...]) -> tuple[float, float, bool]:
        blocked, read, written = (
            float(row[places[key]] or 0) for key in ("blocking_s", "read_bytes", "written_bytes")
        )
        return blocked, read + written, row[places["layer"]] == "POSIX"

    chosen: dict[tuple[Cell, Cell], tuple[Cell, ...]] = {}
    for row in table.rows:
        key = (row[places["path"]], row[places["path_class"]])
        if key not in chosen or weight(row) > weight(chosen[key]):
            chosen[key] = row
    return [row for row in table.rows if row in chosen.values()]


def _is_buffered(picture: Picture, series: Series) -> bool:
    """Return True for latencies of STDIO calls answered from a buffer of libc."""
    first = round(math.log2(BUFFERED_NS)) - int(picture.x_start)
    calls = [value or 0.0 for value in series.values]
    short = sum(calls[: max(0, first)])
    is_stdio = picture.key == "latencies" and series.key.endswith("stdio")
    return is_stdio and short >= BUFFERED_SHARE * sum(calls)


@dataclass(frozen=True, slots=True)
class _Grid:
    """The cells as text, the widths of the columns, and the left-aligned column (-1: none)."""

    titles: list[str]
    cells: list[list[str]]
    widths: list[int]
    left: int
    elide: Callable[[str, int], str]

    @classmethod
    def of(
        cls, report: Report, table: Table, rows: Sequence[Sequence[Cell]], paper: _Paper
    ) -> "_Grid":
        places = {column.key: place for place, column in enumerate(table.columns)}
        wanted = [
            key
            for key in COLUMNS[table.key].split()
            # A worker 0 or a rank 0 is no empty cell.
            if key in ("worker", "readers") or any(row[places[key]] for row in rows)
        ]
        if "layer" in wanted and {row[places["layer"]] for row in rows} == {"POSIX"}:
            wanted.remove("layer")
        while True:
            grid = cls._with(report, table, rows, paper, wanted)
            if sum(grid.widths) + 2 * len(grid.widths) <= paper.width or len(wanted) < 3:
                return grid
            wanted.remove(next(key for key in reversed(wanted) if key != "path"))

    @classmethod
    def _with(
        cls,
        report: Report,
        table: Table,
        rows: Sequence[Sequence[Cell]],
        paper: _Paper,
        wanted: Sequence[str],
    ) -> "_Grid":
        from rich.cells import cell_len

        places = {column.key: place for place, column in enumerate(table.columns)}
        columns = [table.columns[places[key]] for key in wanted]
        titles = [HEADINGS.get(column.key, column.title) for column in columns]
        cells = [
            [paper.clean(_said(report, row[places[column.key]], column.unit)) for column in columns]
            for row in rows
        ]
        if wanted[0] == "path":
            for line, row in zip(cells, rows, strict=True):
                if "layer" in places and row[places["layer"]] == "STDIO":
                    line[0] += " (STDIO)"
        widths = [
            max(cell_len(title), *(cell_len(row[place]) for row in cells))
            for place, title in enumerate(titles)
        ]
        paths = [place for place, column in enumerate(columns) if column.unit == "path"]
        for place in paths:
            room = paper.width - 2 * len(widths) - (sum(widths) - widths[place])
            widths[place] = max(min(widths[place], room), min(widths[place], PATH_COLUMNS))
        texts = [place for place, column in enumerate(columns) if column.unit == "text"]
        return cls(titles, cells, widths, (paths or texts or [-1])[0], paper.elide)

    def line(self, cells: Sequence[str]) -> str:
        from rich.cells import cell_len

        words = []
        for place, (cell, width) in enumerate(zip(cells, self.widths, strict=True)):
            shown = self.elide(cell, width)
            space = " " * (width - cell_len(shown))
            words.append(shown + space if place == self.left else space + shown)
        return "  " + "  ".join(words)


def _said(report: Report, value: Cell, unit: str) -> str:
    """Return a cell as text; a path below the run's working folder as the user would type the
    path."""
    text = show(value, unit)
    below = f"{report.folder}/"
    if unit == "path" and report.folder and text.startswith(below):
        return text[len(below) :]
    return text


def _reading(report: Report, paper: _Paper) -> list["Text"]:
    if not report.reading:
        return []
    label = max(len(fact.label) for fact in report.reading)
    lines = [_heading("How data files were read", paper)]
    for fact in report.reading:
        value = show(fact.number.value, fact.number.unit)
        line = _text(f"  {fact.label:<{label}}  {value:>9}")
        if fact.remark and len(line) + 2 + len(fact.remark) <= paper.width:
            line.append(f"  {fact.remark}", "dim")
        lines.append(line)
    return lines


def _histograms(report: Report, paper: _Paper) -> list["Text"]:
    bars = [
        picture
        for picture in report.pictures
        if picture.kind == "bars" and picture.key != REQUEST_TIMES
    ]
    if not bars:
        return []
    remark = "each letter a doubling"
    if any(picture.state == "incomplete" for picture in bars):
        remark += "; incomplete: of the single calls that were kept"
    lines = [_heading("Sizes and latencies", paper, remark)]
    for picture in bars:
        for series in picture.series:
            if _is_buffered(picture, series):
                continue
            used = [place for place, value in enumerate(series.values) if value]
            first, last = used[0], used[-1] + 1
            name = f"{picture.title.lower()}, {series.label}"
            spark = paper.spark(_fewer(series.values[first:last], paper.width - 48))
            line = f"  {name:<27} {picture.edge(first):>8} {spark} {picture.edge(last):<8}"
            all_of_it = count(round(sum(v or 0 for v in series.values)), picture.y_label[:-1])
            caption = f"{line} {all_of_it}"
            lines.append(_text(caption if len(caption) <= paper.width else line))
    return lines if len(lines) > 1 else []


def _request_times(report: Report, paper: _Paper) -> list["Text"]:
    lines = []
    for picture in report.pictures:
        if picture.key != REQUEST_TIMES:
            continue
        remark = "each letter a doubling" + "; incomplete" * (picture.state == "incomplete")
        lines.append(_heading(picture.title, paper, remark))
        words = picture.words.rstrip(".").split("; ")
        for series, caption in zip(picture.series, words, strict=True):
            used = [place for place, value in enumerate(series.values) if value]
            first, last = used[0], used[-1] + 1
            spark = paper.spark(_fewer(series.values[first:last], paper.width - 48))
            lines.append(_text(f"  {picture.edge(first):>8} {spark} {picture.edge(last)}"))
            lines += [_text(f"    {line}") for line in _filled(caption, paper.width - 4)]
    return lines


def _over_time(report: Report, paper: _Paper) -> list["Text"]:
    lines = []
    width = paper.width - 46
    for picture in report.pictures:
        if picture.kind not in ("lines", "stack"):
            continue
        for series in picture.series:
            most = max(value or 0.0 for value in series.values)
            if not most:
                continue
            name = series.label if picture.kind == "lines" else f"step: {series.label}"
            spark = paper.spark(_fewer(series.values, width))
            at_most = f"at most {show(most, picture.y_unit)}"
            lines.append(_text(f"  {name:<24} {spark:<{width}}  {at_most}"))
    if not lines:
        return []
    return [_heading("Over the run", paper, "steps by number, bandwidth by time"), *lines]


def _rank_heat(report: Report, paper: _Paper) -> list["Text"]:
    """Return ranks by time: the share of each stretch in which a rank waited for data."""
    lines: list[Text] = []
    for picture in report.pictures:
        if picture.kind != "ranks":
            continue
        shades = paper.shade([0.01, 0.25, 0.5, 0.75, 1.0])
        remark = f"of the time: {shades[0]} below 5 %, {shades[1:]} up to 25, 50, 75, 100 %"
        lines.append(_heading(picture.title, paper, remark))
        each = math.ceil(len(picture.series) / HEAT_ROWS)
        for first in range(0, len(picture.series), each):
            rows = picture.series[first : first + each]
            columns = zip(*(row.values for row in rows), strict=True)
            longest = [max(value or 0.0 for value in column) for column in columns]
            shares = [s / picture.x_step for s in _fewer(longest, paper.width - 24)]
            name = _spanned(rows[0].label, rows[-1].label)
            lines.append(_text(f"  {name:<18} {paper.shade(shares)}"))
    return lines


def _spanned(first: str, last: str) -> str:
    """Return the range from the first number of one label to the last number of another."""
    if first == last:
        return first
    begin, end = re.findall(r"\d+", first), re.findall(r"\d+", last)
    return f"ranks {begin[0]}-{end[-1]}" if begin and end else f"{first} to {last}"


def _fewer(values: Sequence[float | None], width: int) -> list[float]:
    """Return at most `width` means of neighbours."""
    numbers = [value or 0.0 for value in values]
    if len(numbers) <= width:
        return numbers
    edges = [i * len(numbers) // width for i in range(width + 1)]
    return [sum(numbers[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _missing(report: Report, paper: _Paper, is_brief: bool = False) -> list["Text"]:
    """Return missing measures and reasons; if brief, reasons only for what is special to this
    run."""
    lines = [_heading("Not measured, or not completely", paper)]
    for gap in report.gaps:
        if is_brief and gap.what in EVERY_RUN:
            continue
        state = "" if gap.state == "not measured" else f", {gap.state}"
        said = f"{gap.what}{state}: {gap.why}"
        wrapped = textwrap.wrap(paper.clean(said), paper.width - 4)
        lines += [
            _text(
                ("  - " if i == 0 else "    ") + line, "yellow" if gap.state == "incomplete" else ""
            )
            for i, line in enumerate(wrapped)
        ]
    if is_brief:
        always = ", ".join(gap.what for gap in report.gaps if gap.what in EVERY_RUN)
        wrapped = textwrap.wrap(f"{always}: as in every run, --json says why", paper.width - 4)
        lines += [_text(("    " if i else "  - ") + line) for i, line in enumerate(wrapped)]
    return lines


def _cost(report: Report, paper: _Paper) -> list["Text"]:
    said = []
    for fact in report.cost:
        number = fact.number
        value = number.state if number.value is None else show(number.value, number.unit)
        said.append(f"{fact.label}: {value}" + (f" ({fact.remark})" if fact.remark else ""))
    lines = [_text("  " + (line)) for line in flowed(said, paper.width - 2)]
    return [_heading("The recorder's own cost", paper), *lines]
