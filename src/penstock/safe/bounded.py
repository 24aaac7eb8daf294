"""Read small files of a stranger's folder within bounds.  Refuse at once, with the limit in the
error: other kinds than regular files, large files, deep nesting.  Knows JSON and TOML, no fields.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from io import BufferedReader
from typing import Any

from penstock.safe import checksums

__all__ = [
    "MOST_BYTES",
    "MOST_DEPTH",
    "grows",
    "json_in",
    "json_of",
    "most_unpacked",
    "opened",
    "read",
    "toml_of",
]

MOST_BYTES = 64 << 20  # a fill.json of a week has 10 MB
MOST_DEPTH = 32  # Penstock's own files have at most 6 levels
# Compression makes profiles and traces 10 to 20 times smaller, a hostile file up to 1,030 times.
MOST_GROWTH, ALWAYS_BYTES = 50, 64 << 20


def opened(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading.  Raises OSError, also for anything else than a file.

    The open does not wait for a FIFO; devices are not read."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))
    return os.fdopen(descriptor, "rb")


def read(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a regular file.  Raises OSError; ValueError: no regular file, or larger
    than most_bytes."""
    try:
        file = opened(path)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        raise ValueError("it is no regular file") from error
    with file:
        size = os.fstat(file.fileno()).st_size  # a file of holes may be larger than any memory
        data = file.read(most_bytes + 1) if size <= most_bytes else b""
    if max(size, len(data)) > most_bytes:
        raise ValueError(f"it is larger than {most_bytes:,} bytes, more than is read of it")
    return data


def json_of(path: str | os.PathLike[str], most_bytes: int = MOST_BYTES) -> Any:
    """Return the value of a JSON file.  Raises as read does; ValueError: no JSON, or too deep."""
    return json_in(read(path, most_bytes))


def json_in(text: bytes) -> Any:
    """Return the value of a JSON text.  Raises ValueError: no JSON, too deep, or different from the
    checksum; a text of an earlier release has no checksum."""
    checksums.check_text(text)
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(f"it is nested deeper than {MOST_DEPTH} levels") from error
    _check_depth(value)
    return value


def toml_of(path: str | os.PathLike[str], most_bytes: int = 1 << 20) -> dict[str, Any]:
    """Return the tables of a TOML file.  Raises OSError, ValueError as json_of does."""
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


# --- packed files --------------------------------------------------------------------------------


def most_unpacked(packed_bytes: int) -> int:
    """Return the limit in bytes for the unpacked content of a packed file."""
    return max(ALWAYS_BYTES, MOST_GROWTH * packed_bytes)


def grows(most_bytes: int) -> str:
    """Return the error text for a packed file beyond the limits."""
    return (
        f"it unpacks to more than a trace of its size holds (the limit: {most_bytes:,} bytes);"
        " unpack it yourself if it is to be trusted"
    )
