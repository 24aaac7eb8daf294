"""Read a Chrome trace as a stream: a single event is in memory at a time, at any size of the trace.

Knows JSON and the key traceEvents; knows no profiler.
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from penstock.errors import ForeignError
from penstock.safe import bounded

__all__ = ["MAX_BYTES", "Trace"]

# Viewers fail at 2-3 GB (google/perfetto#1392): a larger text is no useful profile, or was packed
# to fill memory.
MAX_BYTES = 4 << 30
# Text of an event, or of all values beside the events: Kineto's largest have some kB. Parsed values
# take up to 25 times the memory.
MAX_VALUE_BYTES = 4 << 20
LEAST_EVENT_BYTES = 64  # Kineto's shortest have 100; shorter events would take hours
EVENTS = "traceEvents"
_PIECE_BYTES = 1 << 18
_SPACE = " \t\n\r"
_BEHIND = frozenset(",:]}" + _SPACE)
_SPACES = re.compile(f"[{_SPACE}]*")


class Trace:
    """The events of a trace in order, as often as asked.

    head: all values beside the events, known after the first reading.  Raises ForeignError: cut,
    damaged, not JSON, or above a limit.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self.has_events = False
        self._most = MAX_BYTES  # of the text, in bytes

    def events(self) -> Iterator[Any]:
        """Yield each value of traceEvents."""
        try:
            with closing(self._text()) as text:
                yield from self._values(_Buffer(text))
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            why = f"its gzip is damaged or cut: {error}; copy it again"
            raise ForeignError(f"{self.path}: {why}") from error
        except OSError as error:
            raise ForeignError(f"{self.path}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            why = f"no PyTorch profile: {error.object[error.start]:#x} is no UTF-8"
            raise ForeignError(f"{self.path}: {why}") from error
        except RecursionError as error:
            why = "no PyTorch profile: it is nested without end"
            raise ForeignError(f"{self.path}: {why}") from error
        except ValueError as error:
            why = f"no PyTorch profile, or cut: {str(error)[:200]}"
            raise ForeignError(f"{self.path}: {why}") from error

    def _text(self) -> Generator[str]:
        """Yield the text in pieces, within the limits."""
        with bounded.opened(self.path) as file:
            is_packed = file.read(2) == b"\x1f\x8b"
        packed = self.path.stat().st_size
        most = min(MAX_BYTES, bounded.most_unpacked(packed)) if is_packed else MAX_BYTES
        self._most = most
        decoder, total = codecs.getincrementaldecoder("utf-8")(), 0
        with gzip.open(self.path, "rb") if is_packed else open(self.path, "rb") as file:
            while piece := file.read(_PIECE_BYTES):
                total += len(piece)
                if total > MAX_BYTES:
                    raise ForeignError(
                        f"{self.path}: more than {MAX_BYTES >> 30} GiB of JSON, which no viewer"
                        " opens; profile fewer steps"
                    )
                if total > most:
                    raise ForeignError(f"{self.path}: {bounded.grows(most)}")
                yield decoder.decode(piece)
        decoder.decode(b"", final=True)

    def _values(self, buffer: _Buffer) -> Iterator[Any]:
        head: dict[str, Any] = {}
        had_events, left = False, MAX_VALUE_BYTES
        if buffer.letter() != "{":
            raise ValueError("the JSON is no object")
        buffer.take("{")
        while buffer.letter() != "}":
            if head or had_events:
                buffer.take(",")
            key = buffer.value()
            if not isinstance(key, str):
                raise ValueError("a key that is no text")
            buffer.take(":")
            if key == EVENTS and buffer.letter() == "[":
                if had_events:
                    raise ValueError(f"two lists of {EVENTS}")
                had_events = True
                for number, value in enumerate(_items(buffer)):
                    if number * LEAST_EVENT_BYTES > self._most:
                        raise ForeignError(f"{self.path}: {bounded.grows(self._most)}")
                    yield value
                continue
            before = buffer.used
            head[key] = buffer.value()
            left -= buffer.used - before
            if left < 0:
                raise ValueError(f"more than {MAX_VALUE_BYTES:,} bytes beside the events")
        buffer.take("}")
        if buffer.letter():
            raise ValueError("more behind the end of the JSON")
        self.head, self.has_events = head, had_events


def _items(buffer: _Buffer) -> Iterator[Any]:
    buffer.take("[")
    if buffer.letter() == "]":
        buffer.take("]")
        return
    while True:
        yield buffer.value()
        if buffer.letter() == "]":
            buffer.take("]")
            return
        buffer.take(",")


class _Buffer:
    """A text with a piece in memory, and a position.  used: letters consumed so far."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._text, self._at, self._is_over = "", 0, False
        self._decode = json.JSONDecoder().raw_decode
        self.used = 0

    def letter(self) -> str:
        """Return the next letter other than a space; "" at the end."""
        while True:
            self._at = _SPACES.match(self._text, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(1):
                return ""

    def take(self, letter: str) -> None:
        """Take a letter.  Raises ValueError: another letter is next."""
        if self.letter() != letter:
            raise ValueError(f"{self.letter() or 'the end'!r} where {letter!r} belongs")
        self._at += 1

    def value(self) -> Any:
        """Return the next value.  Raises ValueError: none, cut, or too large."""
        self.letter()
        while True:
            try:
                value, end = self._decode(self._text, self._at)
                # A piece may end behind the point of 1.5; the point then is not part of the number.
                if self._is_over or self._text[end : end + 1] in _BEHIND:
                    self.used += end - self._at
                    self._at = end
                    return value
            except ValueError:
                if self._is_over:
                    raise
            # As much again: a value of any size is tried some times only.
            left = len(self._text) - self._at
            if left > MAX_VALUE_BYTES:
                raise ValueError(f"a value of more than {MAX_VALUE_BYTES:,} bytes, or none")
            self._more(max(1, left))

    def _more(self, letters: int) -> bool:
        """Read on, and drop consumed text; False at the end."""
        parts, n = [self._text[self._at :]], 0
        while n < letters and not self._is_over:
            piece = next(self._pieces, None)
            self._is_over = piece is None
            parts.append(piece or "")
            n += len(piece or "")
        self._text, self._at = "".join(parts), 0
        return n > 0
