"""Two sides of a comparison in a terminal.  Sees a Comparison and nothing else."""

import sys
from typing import TYPE_CHECKING, TextIO

from penstock.explain.compare import Comparison, Delta, FindingChange, Side
from penstock.safe.harmless import Shown
from penstock.views.paper import Paper, bar, boxed, flowed, legend, paper_of, printed
from penstock.words import show

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["render", "show_on"]

COLORS = {"better": "green", "worse": "red", "changed": "", "not comparable": "dim"}

# Findings the other side does not mention.
WHY = {
    "suppressed in A": "in A another finding explains it",
    "suppressed in B": "in B another finding explains it",
    "not judged in A": "not judged in A",
    "not judged in B": "not judged in B",
    "other program": "the other is another program",
}


def render(comparison: Comparison, width: int = 100, color: bool = False) -> str:
    """Return the comparison as text of at most `width` columns.  Raises MissingDependency without
    rich."""
    return _drawn(comparison, Paper(width, is_utf8=True), color)


def show_on(comparison: Comparison, stream: TextIO | None = None) -> None:
    """Print the comparison in a form for the stream."""
    stream = Shown.through(sys.stdout if stream is None else stream)
    stream.write(_drawn(comparison, *paper_of(stream)))


def _drawn(comparison: Comparison, paper: Paper, color: bool) -> str:
    from rich.text import Text

    inner = Paper(paper.width - 4, paper.is_utf8)
    lines = [Text(row, "bold") for row in inner.wrap(comparison.headline)]
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        lines += [Text(), *_side(name, side, inner)]
    lines += _letters(comparison, inner)
    title = Text(f" {paper.clean(paper.elide(comparison.b.title, 30))} ", "bold")
    title.append(" A compared with B ", "not bold")
    step = {delta.key: delta for delta in comparison.deltas}.get("step_s")
    style = {"better": "green", "worse": "red"}.get(step.change if step else "", "cyan")
    parts: list[object] = [boxed(lines, title, style, paper)]
    for section in (
        _doubts(comparison, paper),
        _deltas(comparison, paper),
        _findings(comparison, paper),
    ):
        if section:
            parts.append(Text("\n").join([*section, Text()]))
    return printed(parts, paper, color)


def _side(name: str, side: Side, paper: Paper) -> list["Text"]:
    from rich.text import Text

    runs = side.runs[0] if len(side.runs) == 1 else f"{len(side.runs)} runs, {side.runs[0]} …"
    facts = ", ".join(side.subtitle)
    room = paper.width - len(facts) - 5
    head = Text(f"{name}  {paper.elide(paper.clean(runs), max(12, room))}", "bold")
    head.append(f"  {facts}", "not bold dim")
    head.truncate(paper.width)
    lines = [head, *(Text(row) for row in paper.wrap(side.verdict))]
    if side.wall:
        lines.append(bar([(segment.key, segment.share) for segment in side.wall], paper.width))
    return lines


def _letters(comparison: Comparison, paper: Paper) -> list["Text"]:
    """Return the legend of both bars at once."""
    labels: dict[str, str] = {}
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        for segment in side.wall:
            label = labels.setdefault(segment.key, segment.label)
            labels[segment.key] = f"{label} {name} {show(segment.share, 'share')}"
    return legend(list(labels.items()), paper.width) if labels else []


def _doubts(comparison: Comparison, paper: Paper) -> list["Text"]:
    from rich.text import Text

    if not comparison.doubts:
        return []
    lines = [Text("What cannot be compared", "bold")]
    for doubt in comparison.doubts:
        rows = Paper(paper.width - 4, paper.is_utf8).wrap(doubt)
        lines += [Text(("  - " if not n else "    ") + row, "yellow") for n, row in enumerate(rows)]
    return lines


def _deltas(comparison: Comparison, paper: Paper) -> list["Text"]:
    from rich.text import Text

    titles, rows, widths = _grid(comparison, paper)
    room = paper.width - sum(widths) - 2 * len(widths) - 2
    lines = [Text("From A to B", "bold"), Text(_row(titles, widths, ""), "dim")]
    for delta, row in zip(comparison.deltas, rows, strict=True):
        said = f"{delta.change}: {delta.why}" if delta.why else delta.change
        said = said if len(said) <= room else delta.change
        text = Text(_row(row, widths, said))
        style = COLORS.get(delta.change, "")
        if style:
            text.stylize(style, len(text) - len(said))
        lines.append(text)
    return lines


def _grid(comparison: Comparison, paper: Paper) -> tuple[list[str], list[list[str]], list[int]]:
    """Return titles, rows and widths; a narrow page drops first the ratio, then the spread: the
    change is also given in a word."""
    titles = ["", "A", "B", "B / A"]
    for has_ratio, has_spread in ((True, True), (False, True), (False, False)):
        rows = [_cells(delta, has_ratio, has_spread) for delta in comparison.deltas]
        titles = titles[: 3 + has_ratio]
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        if sum(widths) + 2 * len(widths) + 2 + len("not comparable") <= paper.width:
            break
    return titles, rows, widths


def _cells(delta: Delta, has_ratio: bool, has_spread: bool) -> list[str]:
    ratio = "" if delta.ratio is None or delta.unit == "share" else show(delta.ratio, "x")
    if delta.unit == "share" and delta.a is not None and delta.b is not None:
        ratio = f"{(delta.b - delta.a) * 100:+.1f} pt"
    cells = [
        delta.label,
        _value(delta.a, delta.a_spread if has_spread else None, delta.unit),
        _value(delta.b, delta.b_spread if has_spread else None, delta.unit),
    ]
    return [*cells, ratio] if has_ratio else cells


def _value(value: float | None, spread: tuple[float, float] | None, unit: str) -> str:
    if value is None:
        return "not measured"
    number = show(value, unit)
    if spread is None:
        return number
    half = max(value - spread[0], spread[1] - value)
    if unit == "share":
        return f"{number} ±{half * 100:.1f}"
    return f"{number} ±{half / value:.1%}".replace("%", " %") if value else f"{number} ±0 %"


def _row(cells: list[str], widths: list[int], last: str) -> str:
    first = f"  {cells[0]:<{widths[0]}}"
    numbers = [f"{cell:>{width}}" for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([first, *numbers, last]).rstrip()


def _findings(comparison: Comparison, paper: Paper) -> list["Text"]:
    from rich.text import Text

    if not comparison.findings:
        return []
    lines = [Text("Findings", "bold")]
    for change in comparison.findings:
        style = {"gone": "green", "new": "red"}.get(
            change.change, "dim" * (change.change != "kept")
        )
        word = change.change if change.change in ("gone", "new", "kept") else ""
        for n, row in enumerate(flowed([_finding(change, paper)], paper.width - 8)):
            lines.append(Text(f"  {word if not n else '':<5} {row}", style))
    return lines


def _finding(change: FindingChange, paper: Paper) -> str:
    is_in_a = change.change in ("gone", "kept") or change.change.endswith(" in B")
    is_in_b = change.change in ("new", "kept") or change.change.endswith(" in A")
    shares = [
        "not measured" if share is None else show(share, "share")
        for share, is_there in (
            (change.a_share, is_in_a or change.a_share is not None),
            (change.b_share, is_in_b or change.b_share is not None),
        )
        if is_there
    ]
    sentence = f"{change.rule} {paper.clean(change.title)}"
    if change.a_share is not None or change.b_share is not None:
        sentence += f": {' → '.join(shares)} of the wall time"
    return sentence + (f", {WHY[change.change]}" if change.change in WHY else "")
