"""Make foreign text harmless for a terminal, a page and a spreadsheet.  Knows letters."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, TextIO

__all__ = ["Shown", "cell", "clean", "html_table", "markup", "plain"]

# Control characters except newline and tab; characters for the writing direction; characters
# without width; surrogates.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
FORMULA = ("=", "+", "-", "@", "\t")


def clean(text: str) -> str:
    """Return the text as a single line, with all unprintable characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text.encode("utf-8", "replace").decode("utf-8")
    )


def plain(text: str) -> str:
    """Return the text with control characters escaped, except newlines and tabs."""
    return CONTROLS.sub(_escaped, text)


def _escaped(match: "re.Match[str]") -> str:
    letter = match[0]
    if "\ud800" <= letter <= "\udfff":  # an undecodable byte of a file's name
        return f"\\x{ord(letter) & 0xFF:02x}"
    return letter.encode("unicode_escape").decode("ascii")


def cell(value: Any) -> Any:
    """Return the value of a CSV cell.  Put ' before text a spreadsheet would run as a formula.

    Carriage returns are escaped: csv does not quote them, and some readers begin a row there.
    """
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\\r") if "\r" in value else value
    return f"'{value}" if value.startswith(FORMULA) else value


def markup(text: str) -> str:
    """Return the text for a page: markup escaped, letters without a glyph or width made visible."""
    return escape(clean(text), quote=True)


def html_table(columns: Sequence[str], rows: Iterable[Sequence[Any]], n_all: int) -> str:
    """Return rows as an HTML table; n_all: the number of all rows, shown or not."""

    def line(cells: Iterable[Any], tag: str) -> str:
        texts = ("" if cell is None else str(cell) for cell in cells)
        return "<tr>" + "".join(f"<{tag}>{markup(text)}</{tag}>" for text in texts) + "</tr>"

    lines = [line(row, "td") for row in rows]
    more = f"<p>{len(lines):,} of {n_all:,} rows</p>" if n_all > len(lines) else ""
    head = line(columns, "th")
    return f"<table><thead>{head}</thead><tbody>{''.join(lines)}</tbody></table>{more}"


class Shown:
    """A text stream for a person; the stream escapes the control characters of every writer.

    trusted: the stream without the filter, for writers of coloured text with clean foreign parts.
    """

    def __init__(self, trusted: TextIO) -> None:
        self.trusted = trusted

    def write(self, text: str) -> int:
        self.trusted.write(plain(text))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trusted, name)

    @staticmethod
    def through(stream: TextIO) -> TextIO:
        """Return the stream for a library that writes coloured text."""
        trusted: TextIO = getattr(stream, "trusted", stream)
        return trusted
