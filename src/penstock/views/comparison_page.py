"""Two sides of a comparison as a part of a page: bars, differences, findings gone and new.  Sees a
Comparison and nothing else."""

from penstock.explain.compare import Comparison, Delta, FindingChange, Side
from penstock.views.html import page, wall_bar
from penstock.views.markup import safe, section
from penstock.words import show

__all__ = ["markup_of", "render"]

HEAD = ("", "A, before", "B, after", "times", "change")
STATES = {
    "gone": "gone",
    "new": "new",
    "kept": "still there",
    "suppressed in A": "before, another finding explains it",
    "suppressed in B": "after, another finding explains it",
    "not judged in A": "not judged before",
    "not judged in B": "not judged after",
    "other program": "the other is another program",
}


def render(comparison: Comparison, names: tuple[str, str]) -> str:
    """Return a separate page, without a script, to be encoded as UTF-8.  names: of the two
    sides."""
    return page(
        markup_of(comparison, names),
        title=f"{safe(names[0])} and {safe(names[1])} compared",
        facts=safe(comparison.headline),
    )


def markup_of(comparison: Comparison, names: tuple[str, str]) -> str:
    """Return the markup; names: of the two runs."""
    doubts = "".join(f'<p class="incomplete">{safe(doubt)}</p>' for doubt in comparison.doubts)
    longest_s = max(_wall_s(side) for side in (comparison.a, comparison.b))
    bars = "".join(
        _bar(word, name, side, longest_s)
        for word, name, side in zip(
            ("A, before", "B, after"), names, (comparison.a, comparison.b), strict=True
        )
    )
    headline = f"<p><b>{safe(comparison.headline)}</b></p>"
    return (
        section("compared", "Before and after", f'<div class="card">{headline}{doubts}{bars}</div>')
        + section("differences", "Differences", _differences(comparison.deltas))
        + section("changes", "Findings", _changes(comparison.findings))
    )


def _wall_s(side: Side) -> float:
    return sum(segment.s for segment in side.wall)


def _bar(word: str, name: str, side: Side, longest_s: float) -> str:
    """Return a bar as long as the run's wall time, against the longer of the two runs."""
    width = 100 * _wall_s(side) / longest_s if side.wall and longest_s else 100
    return (
        f"<h3>{word}: {safe(name)}</h3><p>{safe(side.verdict)}</p>"
        f'<div class="bar-of" style="--wide: {width:.3f}%">{wall_bar(side.wall)}</div>'
    )


def _differences(deltas: tuple[Delta, ...]) -> str:
    head = "".join(
        f'<th scope="col" class="{"" if 0 < place < 4 else "text"}">{word}</th>'
        for place, word in enumerate(HEAD)
    )
    rows = "".join(_row(delta) for delta in deltas)
    return (
        '<div class="scroll" tabindex="0" role="region" aria-label="Differences">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _row(delta: Delta) -> str:
    values = (delta.a, delta.b)
    shown = "".join(f"<td>{'not there' if v is None else show(v, delta.unit)}</td>" for v in values)
    times = "–" if delta.ratio is None else show(delta.ratio, "x")
    change = f"{delta.change}: {delta.why}" if delta.why else delta.change
    return (
        f'<tr><td class="text">{safe(delta.label)}</td>{shown}<td>{times}</td>'
        f'<td class="text">{safe(change)}</td></tr>'
    )


def _changes(findings: tuple[FindingChange, ...]) -> str:
    if not findings:
        return '<p class="card">Neither run has a finding.</p>'
    items = []
    for finding in findings:
        shares = [
            f"{word} {show(share, 'share')} of the wall time"
            for word, share in (("before", finding.a_share), ("after", finding.b_share))
            if share is not None
        ]
        name = f'<span class="rule">{safe(finding.rule)}</span> {safe(finding.title)}'
        items.append(f"<dt>{name}: {STATES[finding.change]}</dt><dd>{', '.join(shares)}</dd>")
    return f'<dl class="words card">{"".join(items)}</dl>'
