"""Check the arguments of a checkpointer, and the number of a step."""

from __future__ import annotations

import numbers
import re
from typing import Any

from penstock.errors import SaveError
from penstock.save.drain.retention import ON_FULL, Keep
from penstock.save.drain.tiered import rate_bps
from penstock.save.training.lost import MODES
from penstock.save.verify import LEVELS

__all__ = ["of_step", "refuse_wrong", "refuse_wrong_numbers", "whole_step"]

ON_ERROR = ("raise", "warn")
MOST_STEP = 1 << 62


def refuse_wrong(
    keep: Any, on_full: Any, on_error: Any, mode: Any, level: Any, progress: Any
) -> None:
    """Check the arguments with a fixed set of values or a type.  Raises SaveError."""
    for name, said, allowed in (
        ("on_full", on_full, ON_FULL),
        ("on_error", on_error, ON_ERROR),
        ("mode", mode, MODES),
        ("level", level, LEVELS),
    ):
        if said not in allowed:
            raise SaveError(f"{name}={said!r} is not among {', '.join(allowed)}")
    if keep is not None and not isinstance(keep, Keep):
        raise SaveError(f"keep={keep!r}: say how many stay where, as keep=Keep(fast=2, last=3)")
    if progress is not None and not callable(progress):
        raise SaveError(f"progress={progress!r}: a function that is given a line of text")


def refuse_wrong_numbers(rank_timeout_s: Any, drain_timeout_s: Any, drain: Any) -> None:
    """Check the times in seconds and the rate of the drain.  Raises SaveError."""
    rate_bps(drain)
    if not _is_number(rank_timeout_s) or not rank_timeout_s > 0:
        raise SaveError(f"rank_timeout_s={rank_timeout_s!r}: seconds, more than 0")
    if drain_timeout_s is not None and not (_is_number(drain_timeout_s) and drain_timeout_s >= 0):
        raise SaveError(
            f"drain_timeout_s={drain_timeout_s!r}: seconds, 0 or more, or None for as long as it "
            "takes"
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def of_step(step: int, why: object, what: str = ":") -> str:
    """Return a sentence with the step; an error text with the step in it stays unchanged."""
    return str(why) if re.match(rf"step {step}\b", str(why)) else f"step {step}{what} {why}"


def whole_step(step: Any) -> int:
    """Return a step as an int, from 0 to below 2**62.  Raises SaveError."""
    try:
        whole = int(step)
        is_whole = whole == step
    except (TypeError, ValueError, OverflowError):
        whole, is_whole = -1, False
    if not is_whole or not 0 <= whole < MOST_STEP:
        raise SaveError(
            f"step {step!r}: steps are 0 or more, whole numbers below 2**62; nothing else would "
            "be found again"
        )
    return whole
