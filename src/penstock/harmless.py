"""Foreign text made harmless, for a terminal and for a spreadsheet.  Knows letters."""

import re
from typing import Any, TextIO

__all__ = ["Shown", "cell", "clean", "plain"]

# Controls but for the line's end and the tab, what turns the direction of writing, what has no
# width, and halves of letters.
CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e007f]"
)
FORMULA = ("=", "+", "-", "@", "\t")


def clean(text: str) -> str:
    """The text as one line: what would move the cursor or the eye is escaped."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in text.encode("utf-8", "replace").decode("utf-8")
    )


def plain(text: str) -> str:
    """The text with its lines and tabs, and no other control character."""
    return CONTROLS.sub(_escaped, text)


def _escaped(match: "re.Match[str]") -> str:
    letter = match[0]
    if "\ud800" <= letter <= "\udfff":  # a byte that is no text, of a file's name
        return f"\\x{ord(letter) & 0xFF:02x}"
    return letter.encode("unicode_escape").decode("ascii")


def cell(value: Any) -> Any:
    """The value of a cell of CSV: text that a spreadsheet would run as a formula begins with '.

    A carriage return is escaped: csv leaves it bare, and some readers begin a row there."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\\r") if "\r" in value else value
    return f"'{value}" if value.startswith(FORMULA) else value


class Shown:
    """A stream of text that a person reads: no control character gets through, whoever writes.

    trusted: the stream itself, for what colours its own text and cleans the rest."""

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
        """The stream that a library of coloured text may write to."""
        trusted: TextIO = getattr(stream, "trusted", stream)
        return trusted
