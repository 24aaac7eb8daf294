"""Check an argument against its allowed values and raise an error with the name and the value.

The module knows no option: each module states the limits of an option.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.errors import FeedError

__all__ = ["MOST", "SCHEMES", "flag", "function", "is_remote", "key", "one_of", "shown", "whole"]

MOST = 1 << 62  # sums of two MOST are still an int64
SCHEMES = ("s3", "gs", "az", "http", "https")  # of object stores


def shown(value: object) -> str:
    """Return a value for a message: on one line, at most 80 characters."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python refuses to print so many digits
        text = f"{type(value).__name__} of too many digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def whole(name: str, value: Any, least: int = 0, most: int = MOST, or_none: bool = False) -> Any:
    """Return the value as an int; None if or_none allows None.

    Raises FeedError: not a whole number (a bool is refused), or outside least to most.
    """
    if value is None and or_none:
        return None
    try:  # bool, numpy.bool and torch's bool tensors are refused
        is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
        number = None if is_truth else operator.index(value)
    except TypeError:
        number = None
    if number is not None and least <= number <= most:
        return number
    is_too_much = number is not None and number > most
    takes = f"{least:,} to {most:,}" if is_too_much or most < MOST else f"{least:,} or more"
    takes += " or None" if or_none else ""
    wrong = "is no whole number" if number is None else "is out of range"
    raise FeedError(f"{name}={shown(value)} {wrong}; it takes {takes}")


def flag(name: str, value: Any, or_none: bool = False) -> Any:
    """Return True or False; None if or_none allows None.

    Raises FeedError: another value (the string "no" would be true).
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if value is None and or_none:
        return None
    takes = "True, False or None" if or_none else "True or False"
    raise FeedError(f"{name}={shown(value)} is neither yes nor no; it takes {takes}")


def is_remote(path: object) -> bool:
    """Return whether a string is the address of an object or several objects in a store."""
    if not isinstance(path, str):
        return False
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def function(name: str, value: Any) -> None:
    """Raise FeedError if the value is neither callable nor None."""
    if value is not None and not callable(value):
        raise FeedError(f"{name}={shown(value)} is no function; it takes one, or None")


def one_of(name: str, value: Any, choices: Iterable[str]) -> None:
    """Raise FeedError if the value is not in `choices`."""
    if not isinstance(value, str) or value not in choices:
        raise FeedError(f"{name}={shown(value)} is not known; known are {', '.join(choices)}")


def key(name: str, value: Any) -> bytes:
    """Return a key as bytes; a str is encoded.

    Raises FeedError: neither str nor bytes.
    """
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise FeedError(f"{name}={shown(value)} is no key; it takes a text, or bytes")
