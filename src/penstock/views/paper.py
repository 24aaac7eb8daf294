"""The paper of the terminal views: common width, letters and colours.

Nothing is shown by colour alone, and a stream without UTF-8 gets ASCII.
"""

import math
import os
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, TextIO

from penstock.errors import MissingDependency
from penstock.safe import harmless

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "LEVELS",
    "NARROWEST",
    "SEGMENTS",
    "WIDEST",
    "Paper",
    "bar",
    "boxed",
    "flowed",
    "in_letters_of",
    "legend",
    "paper_of",
    "printed",
]

WIDEST = 100
NARROWEST = 60

# Letter and colour of each segment of the wall bar. The letters alone suffice; colours repeat the
# letters.
SEGMENTS = {
    "compute": ("#", "green"),
    "accelerator": ("^", "green"),
    "exchange": ("*", "green"),
    "save": ("-", "cyan"),
    "interpreter lock": ("o", "yellow"),
    "after backward": ("&", "green"),
    "no CPU": ("_", "yellow"),
    "unfed": ("?", "blue"),
    "own": ("+", "red"),
    "data storage": ("=", "red"),
    "data cpu": (":", "yellow"),
    "data network": ("w", "blue"),
    "data other": (".", "bright_black"),
    "checkpoint storage": ("%", "magenta"),
    "checkpoint other": ("~", "cyan"),
}
LEVELS = {"not": "green", "moderately": "yellow", "highly": "red", "unknown": "cyan"}

ASCII = str.maketrans({"–": "-", "µ": "u", "…": "~", "·": "|", "±": "~", "→": ">"})
SPARKS = "▁▂▃▄▅▆▇█"
ASCII_SPARKS = ".:-=+*%#"
SHADES = " ·░▒▓█"
ASCII_SHADES = " '.:*#"
FAINT = 0.05  # a smaller share has a separate letter: a quarter would be wrong


@dataclass(frozen=True, slots=True)
class Paper:
    """The page of a terminal view: the width, and whether the page takes more than ASCII."""

    width: int
    is_utf8: bool

    @staticmethod
    def clean(text: str) -> str:
        """Make foreign text harmless: escape letters able to move the cursor or mislead the eye."""
        return harmless.clean(text)

    def wrap(self, text: str) -> list[str]:
        """Return lines of at most the width, in harmless letters."""
        return textwrap.wrap(self.clean(text), self.width)

    @property
    def arrow(self) -> str:
        """Return the mark before advice."""
        return "→ " if self.is_utf8 else "> "

    @property
    def block(self) -> str:
        """Return the letter of bars."""
        return "█" if self.is_utf8 else "#"

    def spark(self, values: Sequence[float | None]) -> str:
        """Return a letter per value, as high as the value; a space for 0."""
        letters = SPARKS if self.is_utf8 else ASCII_SPARKS
        most = max((v or 0.0 for v in values), default=0.0) or 1.0
        return "".join(
            letters[min(len(letters) - 1, int((v or 0.0) / most * len(letters)))] if v else " "
            for v in values
        )

    def shade(self, values: Sequence[float]) -> str:
        """Return a letter per value between 0 and 1: nothing, below 5 %, and each quarter."""
        letters = SHADES if self.is_utf8 else ASCII_SHADES
        last = len(letters) - 1
        return "".join(
            letters[0 if v <= 0 else 1 if v < FAINT else min(last, 1 + math.ceil(4 * v - 1e-9))]
            for v in values
        )

    def elide(self, text: str, width: int) -> str:
        """Return at most `width` columns: drop the middle, and keep more of the end than of the
        begin."""
        from rich.cells import cell_len, set_cell_size

        if cell_len(text) <= width:
            return text
        head = set_cell_size(text, (width - 1) // 3).rstrip()
        tail = text
        while cell_len(tail) > width - 1 - cell_len(head):
            tail = tail[1:]
        return head + ("…" if self.is_utf8 else "~") + tail


def paper_of(stream: TextIO) -> tuple[Paper, bool]:
    """Return the paper of a stream (60 to 100 columns, the letters), and whether the stream has
    colours."""
    encoding = (getattr(stream, "encoding", None) or "").lower().replace("-", "")
    is_terminal = stream.isatty()
    is_plain = "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
    width = shutil.get_terminal_size((80, 24)).columns if is_terminal else _asked_columns()
    paper = Paper(max(NARROWEST, min(width, WIDEST)), encoding == "utf8")
    return paper, is_terminal and not is_plain


def _asked_columns() -> int:
    """Return the width of a pipe or a file: the variable COLUMNS, else 80."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and len(columns) < 6 else 80


def printed(parts: Sequence[object], paper: Paper, color: bool) -> str:
    """Return rich's renderables as text.  Raises MissingDependency without rich."""
    try:
        from rich.console import Console
    except ModuleNotFoundError as error:
        raise MissingDependency("the terminal view needs rich: pip install rich") from error
    stream = StringIO()
    console = Console(
        file=stream,
        width=paper.width,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
    )
    for part in parts:
        console.print(part, overflow="crop", no_wrap=True)
    text = "\n".join(line.rstrip() for line in stream.getvalue().rstrip().split("\n")) + "\n"
    return in_letters_of(paper, text)


def in_letters_of(paper: Paper, text: str) -> str:
    """Return the text, in ASCII for a stream without UTF-8."""
    return text if paper.is_utf8 else text.translate(ASCII).encode("ascii", "replace").decode()


def boxed(
    lines: Sequence["Text"], title: "Text", style: str, paper: Paper, foot: str = ""
) -> object:
    """Return lines in a frame of the paper's width."""
    from rich import box
    from rich.panel import Panel
    from rich.text import Text

    title.truncate(paper.width - 8, overflow="ellipsis" if paper.is_utf8 else "crop")
    return Panel(
        Text("\n").join(lines),
        title=title,
        title_align="left",
        subtitle=Text(paper.elide(foot, paper.width - 8), "dim") if foot else None,
        subtitle_align="left",
        box=box.ROUNDED if paper.is_utf8 else box.ASCII,
        border_style=style,
        width=paper.width,
    )


def flowed(items: Sequence[str], width: int, gap: str = "   ") -> list[str]:
    """Arrange items side by side; break only an item wider than the line."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(gap) + len(item) <= width:
            lines[-1] += gap + item
        else:
            lines += textwrap.wrap(item, width)
    return lines


def bar(segments: Sequence[tuple[str, float]], width: int) -> "Text":
    """Return a bar with a letter per share of the whole; the smallest segment gets a letter too.

    segments: (key of SEGMENTS, share); the shares sum to 1.
    """
    from rich.text import Text

    shares = [min(1.0, max(0.0, share)) for _, share in segments]
    cells = [max(1, int(share * width)) for share in shares]
    # A fixed number of rounds: ends for any shares and any width.
    for _ in range(abs(width - sum(cells)) if cells else 0):
        # The largest segment gives or takes: there the change shows least.
        off = 1 if sum(cells) < width else -1
        errors = [
            off * (share * width - n) - (n <= 1) * (off < 0) * 9
            for share, n in zip(shares, cells, strict=True)
        ]
        cells[errors.index(max(errors))] += off
    drawn = Text()
    for (key, _), n in zip(segments, cells, strict=True):
        letter, color = SEGMENTS[key]
        drawn.append(letter * n, color)
    return drawn


def legend(segments: Sequence[tuple[str, str]], width: int) -> list["Text"]:
    """Return the meaning of the letters of a bar.  segments: (key of SEGMENTS, label with
    share)."""
    from rich.text import Text

    drawn = []
    for line in flowed([f"{SEGMENTS[key][0]} {label}" for key, label in segments], width):
        text = Text(line)
        for key, label in segments:
            letter, color = SEGMENTS[key]
            place = line.find(f"{letter} {label}")
            if place >= 0:
                text.stylize(f"bold {color}", place, place + 1)
        drawn.append(text)
    return drawn
