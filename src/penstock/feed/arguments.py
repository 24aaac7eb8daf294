"""An argument held against what it may be, told with its name and its value.  Knows no option: each
says what it takes where it lies."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np

from penstock.errors import FeedError

__all__ = ["MOST", "SCHEMES", "flag", "function", "is_remote", "key", "one_of", "shown", "whole"]

MOST = 1 << 62  # sums of two such numbers are still an int64
SCHEMES = ("s3", "gs", "az", "http", "https")  # of object stores


def shown(value: object) -> str:
    """A value in a message: on one line, and an array or a list of a million names is cut short."""
    try:
        text = " ".join(repr(value).split())
    except ValueError:  # Python writes no number of so many digits
        text = f"{type(value).__name__} of too many digits"
    return text if len(text) <= 80 else f"{text[:77]}..."


def whole(name: str, value: Any, least: int = 0, most: int = MOST, or_none: bool = False) -> Any:
    """The value as an int; None where that is allowed.

    Raises FeedError: it is no whole number (True is none), or not of least to most.
    """
    if value is None and or_none:
        return None
    try:  # True is none, nor is numpy's, nor torch's in a tensor
        is_truth = isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool")
        found = None if is_truth else operator.index(value)
    except TypeError:
        found = None
    if found is not None and least <= found <= most:
        return found
    is_too_much = found is not None and found > most
    takes = f"{least:,} to {most:,}" if is_too_much or most < MOST else f"{least:,} or more"
    takes += " or None" if or_none else ""
    wrong = "is no whole number" if found is None else "is out of range"
    raise FeedError(f"{name}={shown(value)} {wrong}; it takes {takes}")


def flag(name: str, value: Any, or_none: bool = False) -> Any:
    """True, False, or None where that is allowed.  Raises FeedError: anything else ("no" is
    true)."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if value is None and or_none:
        return None
    takes = "True, False or None" if or_none else "True or False"
    raise FeedError(f"{name}={shown(value)} is neither yes nor no; it takes {takes}")


def is_remote(path: object) -> bool:
    """Whether a text is the address of an object, or of several, in a store."""
    if not isinstance(path, str):
        return False
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.lower() in SCHEMES


def function(name: str, value: Any) -> None:
    """Raises FeedError: it cannot be called; None is none."""
    if value is not None and not callable(value):
        raise FeedError(f"{name}={shown(value)} is no function; it takes one, or None")


def one_of(name: str, value: Any, known: Iterable[str]) -> None:
    """Raises FeedError: it is none of these."""
    if not isinstance(value, str) or value not in known:
        raise FeedError(f"{name}={shown(value)} is not known; known are {', '.join(known)}")


def key(name: str, value: Any) -> bytes:
    """A key as bytes; a text is encoded.  Raises FeedError: it is neither."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise FeedError(f"{name}={shown(value)} is no key; it takes a text, or bytes")
