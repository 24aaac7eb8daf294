"""A number with a state; the names of the parts of a data wait."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["PARTS", "STORAGE_PARTS", "Number", "State"]

State = Literal["measured", "derived", "not measured", "incomplete"]

# The parts of a data wait in the order of display; storage first.  wait_parts.sql defines each.
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
    "program start",
    "pass end",
    "hand-over",
    "not observed",
)
STORAGE_PARTS = ("read", "write", "metadata", "page fault")


@dataclass(frozen=True, slots=True)
class Number:
    """A value with a unit ("s", "B", "B/s", "share", "count") and a state.

    An unmeasured value is None, never zero; why names the missing information.
    """

    value: float | None
    unit: str
    state: State = "measured"
    why: str = ""
