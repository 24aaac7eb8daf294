"""The common parts of all pages: foreign text made harmless, sections, the fill of a bar.

Knows no part of a report; every string of a run passes through safe() into a page.
"""

import re
from collections.abc import Sequence
from importlib import resources

from penstock.explain.report import Fact, Number, show
from penstock.safe.harmless import markup as safe

__all__ = [
    "FULL",
    "HATCH",
    "asset",
    "filled",
    "incomplete",
    "number",
    "numbers",
    "prose",
    "safe",
    "section",
]

FULL = 'width="100%" height="100%"'
# The mark of storage where colour is not visible; once in a page, before any filled shape.
HATCH = (
    '<svg class="defs" aria-hidden="true"><defs><pattern id="hatch" width="7" height="7" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="2" height="7" '
    'fill="var(--hatch)" opacity=".55"/></pattern></defs></svg>'
)


def prose(text: str) -> str:
    """Return a sentence as markup: the commands between backticks as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", safe(text))


def asset(name: str) -> str:
    """Return the text of a file beside the module."""
    return (resources.files("penstock.views") / name).read_text(encoding="utf-8")


def section(key: str, title: str, content: str, note: str = "", more: str = "") -> str:
    """Return a part of a page with a heading; all arguments but the key are markup."""
    key, more = safe(key), safe(more)
    paragraph = f'<p class="note">{note}</p>' if note else ""
    return (
        f'<section id="{key}" class="{more}" aria-labelledby="{key}-title">'
        f'<h2 id="{key}-title">{title}</h2>{paragraph}{content}</section>'
    )


def incomplete(state: str, why: str) -> str:
    """Return the remark beside incomplete numbers."""
    if state != "incomplete":
        return ""
    return f' <span class="incomplete">Incomplete: {prose(why)}.</span>'


def filled(key: str, box: str) -> str:
    """Return a rectangle in the colour of a segment of time; hatched is storage."""
    color = f'<rect {box} fill="var(--{safe(key.replace(" ", "-"))})"/>'
    is_storage = key.endswith("storage") or key == "own"
    return color + (f'<rect {box} fill="url(#hatch)"/>' if is_storage else "")


def number(of: Number) -> str:
    """Return a number, or the reason for a missing number."""
    if of.value is None:
        return f'<span title="{safe(of.why)}">{of.state}</span>'
    mark = ' <small class="incomplete">incomplete</small>' if of.state == "incomplete" else ""
    return f"{show(of.value, of.unit)}{mark}"


def numbers(facts: Sequence[Fact]) -> str:
    """Return facts side by side."""
    items = "".join(
        f"<div><dt>{safe(fact.label)}</dt><dd>{number(fact.number)}"
        + (f"<small>{safe(fact.remark)}</small>" if fact.remark else "")
        + "</dd></div>"
        for fact in facts
    )
    return f'<dl class="numbers">{items}</dl>' if items else ""
