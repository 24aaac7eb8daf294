"""A number and where it comes from; the words for what a data wait is attributed to."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PARTS", "STORAGE_PARTS", "Number", "State"]

State = Literal["measured", "derived", "not measured", "incomplete"]

# What a data wait is attributed to, in the order it is told; storage first.  wait_parts.sql defines
# each.
PARTS = (
    "read",
    "write",
    "metadata",
    "page fault",
    "cpu",
    "cached",
    "not scheduled",
    "blocked",
    "network",
    "idle",
    "loader start",
    "worker start",
    "pass end",
    "hand-over",
    "not observed",
)
STORAGE_PARTS = ("read", "write", "metadata", "page fault")


@dataclass(frozen=True, slots=True)
class Number:
    """A value with its unit ("s", "B", "B/s", "share", "count") and where it comes from.

    The value of a number that was not measured is None, never zero; why says what is missing.
    """

    value: float | None
    unit: str
    state: State = "measured"
    why: str = ""
