"""Small files of a stranger's folder, read within bounds: what is no file, too large or nested too
deep is refused at once, in words that name the limit.  Knows JSON and TOML; knows no field of them.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any

__all__ = [
    "MOST_BYTES",
    "MOST_DEPTH",
    "grows",
    "json_of",
    "most_parsed",
    "most_unpacked",
    "parsed_bytes",
    "read",
    "toml_of",
]

MOST_BYTES = 64 << 20  # a fill.json of a week has 10 MB
MOST_DEPTH = 32  # none of ours is deeper than 6
# Profiles and traces in JSON shrink by 10 to 20, what is made to grow by up to 1,030.
MOST_GROWTH, ALWAYS_BYTES = 50, 64 << 20


def read(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a regular file.  Raises OSError; ValueError: it is no file, or larger.

    A FIFO is not waited for, and no device is read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is no regular file")
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes:,} bytes, more than is read of it")
    return data


def json_of(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Any:
    """The value of a JSON file.  Raises OSError; ValueError: as read, no JSON, nested too deep."""
    try:
        value = json.loads(read(path, most_bytes))
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels") from error
    _check_depth(value)
    return value


def toml_of(path: str | os.PathLike[str], most_bytes: int = 1 << 20) -> dict[str, Any]:
    """The tables of a TOML file.  Raises OSError, ValueError as json_of does."""
    import tomllib

    try:
        value = tomllib.loads(read(path, most_bytes).decode())
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels") from error
    _check_depth(value)
    return value


def _check_depth(value: Any) -> None:
    level, depth = [value], 0
    while level:
        level = [
            inner
            for item in level
            if isinstance(item, list | dict)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        depth += 1
        if depth > MOST_DEPTH:
            raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels")


# --- what is packed ------------------------------------------------------------------------------


def most_unpacked(packed_bytes: int) -> int:
    """How many bytes a packed file of this size may unpack to."""
    return max(ALWAYS_BYTES, MOST_GROWTH * packed_bytes)


def parsed_bytes(text: bytes) -> int:
    """About how much memory the values of a JSON text take: small ones take much more than their
    letters.  An object 72 bytes, a list 64, a text 27 at each of its quotes, a place in one 8."""
    marks = ((b"{", 72), (b"[", 64), (b'"', 27), (b",", 8))
    return sum(text.count(mark) * cost for mark, cost in marks)


def most_parsed(packed_bytes: int) -> int:
    """How much memory the values of a packed file of this size may take: profiles take 70 times
    their packed size."""
    return max(2 * ALWAYS_BYTES, 8 * MOST_GROWTH * packed_bytes)


def grows(most_bytes: int) -> str:
    """The sentence about a packed file beyond these."""
    return (
        f"it unpacks to more than a trace of its size holds (the limit: {most_bytes:,} bytes, or"
        " as many small values); unpack it yourself if it is to be trusted"
    )
