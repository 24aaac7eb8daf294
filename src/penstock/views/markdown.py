"""Print Markdown in a terminal: tables fitted to the width, all other lines wrapped.  Knows no
report."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, product, takewhile, zip_longest
from textwrap import wrap

from penstock.views.paper import Paper

__all__ = ["fitted"]

GAP = 2  # columns between columns
NAME_LINES = 3  # a column is as wide as the name needs in so many lines
NARROWEST = 12  # a column for the remaining width
WORDS = 28  # of a column with the case's name, if fewer lines result

Row = list[str]


def fitted(text: str, width: int) -> str:
    """Return the text with no line longer than the width, unless the width is too small."""
    lines: list[str] = []
    for is_table, group in groupby(text.split("\n"), lambda line: line.startswith("|")):
        if is_table:
            lines += _table([_cells(line) for line in group], width)
            continue
        for line in group:
            below = "  " if line.startswith("* ") else ""
            lines += _flowed(Paper.clean(line), width, below)
    return "\n".join(lines)


def _cells(line: str) -> Row:
    return [Paper.clean(cell.strip()) for cell in line.strip().strip("|").split("|")]


def _table(lines: list[Row], width: int) -> list[str]:
    """Return a table; split a wide table into several tables, one below the other.

    Each table begins with the key columns at the left; the first key columns may become headings.
    """
    names, rule, *rows = (line + [""] * (len(lines[0]) - len(line)) for line in lines)
    is_right = [mark.endswith(":") for mark in rule]
    n_keys = len(list(takewhile(lambda right: not right, is_right)))
    n_keys = max(1, n_keys if n_keys < len(names) else 1)
    widths = [
        max(_name_width(name), *(len(row[n]) for row in rows), 1) for n, name in enumerate(names)
    ]
    printed = []
    for n_headings, most in product(range(n_keys), (width, WORDS)):
        cut = [min(most, size) if n < n_keys else size for n, size in enumerate(widths)]
        printed.append([
            line for block in _blocks(cut, n_headings, n_keys, width)
            for line in _block(block, n_headings, names, rows, cut, is_right, width)
        ][1:])  # fmt: skip
    return min(printed, key=len)


def _name_width(name: str) -> int:
    """Return the width of the narrowest column for a name."""
    words = name.replace("_", "_ ").split()
    least = max(map(len, words), default=0)
    return next(n for n in range(least, len(name) + 1) if len(_wrapped(name, n)) <= NAME_LINES)


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a text; names of code break behind an underscore."""
    if len(text) <= width:
        return [text]
    lines = [""]
    for word in text.replace("_", "_\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return [part for line in lines for part in _flowed(line, width)]


def _flowed(text: str, width: int, below: str = "") -> list[str]:
    wide = max(1, width)
    return wrap(text, wide, subsequent_indent=below, break_on_hyphens=False) or [""]


def _blocks(widths: Sequence[int], first: int, n_keys: int, width: int) -> list[list[int]]:
    """Return the columns that stand side by side, by block."""
    keys = list(range(first, n_keys))
    taken = sum(widths[n] + GAP for n in keys)
    blocks: list[list[int]] = []
    room = 0
    for n in range(n_keys, len(widths)):
        if not blocks or widths[n] > room:
            blocks.append([*keys])
            room = width - taken
        blocks[-1].append(n)
        room -= widths[n] + GAP
    return blocks or [keys]


def _block(
    block: list[int], n_headings: int, names: Row, rows: list[Row], widths: list[int],
    is_right: list[bool], width: int,
) -> list[str]:  # fmt: skip
    before = sum(widths[n] + GAP for n in block[:-1])
    at = {n: widths[n] for n in block}
    at[block[-1]] = max(min(NARROWEST, widths[block[-1]]), min(at[block[-1]], width - before))

    def lines_of(row: Row) -> list[str]:
        cells = [_wrapped(row[n], at[n]) for n in block]
        return [
            (" " * GAP).join(
                (cell or "").rjust(at[n]) if is_right[n] else (cell or "").ljust(at[n])
                for n, cell in zip(block, line, strict=True)
            ).rstrip()
            for line in zip_longest(*cells)
        ]  # fmt: skip

    lines = ["", *lines_of(names), (" " * GAP).join("-" * at[n] for n in block)]
    for head, group in groupby(rows, lambda row: row[:n_headings]):
        if head:
            said = ", ".join(map(" ".join, zip(names, head, strict=False)))
            lines += ["", *_flowed(said, width)]
        for row in group:
            lines += lines_of(row)
    return lines
