"""Align a profile's clock with a run's, with the accuracy.

Knows moments, no format.  Both sides use wall clocks, and still differ by the delay between reading
a clock and noting the moment.  Marks made by both sides show the difference.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ForeignError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from penstock.runs.run import Run

__all__ = ["WALL_CLOCK", "Alignment", "Marks", "align", "require_overlap"]

# Two wall clocks of a machine agree within the limit; marks further apart are not compared.
SEARCH_NS = 1_000_000_000
# Wider than the overhead of a wrapper or a tracer around a mark, narrower than the variation of
# steps.
WINDOW_NS = 200_000
# The accepted probability of an equal fit of unrelated marks.
CHANCE = 0.01
# Differences to be sorted: 80 MB.
MAX_DIFFERENCES = 10_000_000
LEAST_PAIRS = 3


@dataclass(frozen=True, slots=True)
class Marks:
    """Moments known to both sides, as (start, end) in ns since 1970, each by the side's own
    clock."""

    name: str
    ours: Sequence[tuple[int, int]]
    theirs: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Alignment:
    """offset_ns: add to the run's wall clock to get the profile's.

    error_ns: the median absolute deviation of the pairs; None: not known.
    """

    offset_ns: int
    error_ns: int | None
    pairs: int
    marks: str

    @property
    def sentence(self) -> str:
        """Return the alignment as a sentence for a reader of the picture."""
        if self.error_ns is None:
            return "aligned by wall clock only; error unknown"
        return (
            f"aligned by {self.pairs:,} pairs of {self.marks}: offset "
            f"{self.offset_ns / 1e3:.1f} µs, error {self.error_ns / 1e3:.1f} µs (median absolute "
            "deviation)"
        )


WALL_CLOCK = Alignment(0, None, 0, "")


def align(candidates: Sequence[Marks]) -> Alignment:
    """Return the alignment by the best agreeing pairs of marks; by wall clock without agreement."""
    alignments = [alignment for marks in candidates if (alignment := _by_marks(marks))]
    return min(alignments, key=lambda alignment: alignment.error_ns or 0, default=WALL_CLOCK)


def _by_marks(marks: Marks) -> Alignment | None:
    """Return the offset that puts most of `theirs` within the window of a mark of `ours`."""
    import numpy as np

    if not marks.ours or not marks.theirs:
        return None
    # Middles, because a wrapper begins before the wrapped call and ends later.
    ours = np.sort(np.array([(start + end) // 2 for start, end in marks.ours], np.int64))
    theirs = np.sort(np.array([(start + end) // 2 for start, end in marks.theirs], np.int64))
    first = np.searchsorted(ours, theirs - SEARCH_NS)
    last = np.searchsorted(ours, theirs + SEARCH_NS)
    fitting = np.searchsorted(np.cumsum(last - first), MAX_DIFFERENCES)
    theirs = theirs[: max(LEAST_PAIRS, int(fitting))]
    if len(theirs) < LEAST_PAIRS:
        return None
    parts = [
        moment - ours[begin:end][::-1]
        for moment, begin, end in zip(theirs, first, last, strict=False)
    ]
    middle = _best_middle(parts)
    if middle is None:
        return None
    place = np.clip(np.searchsorted(ours, theirs - middle), 1, max(1, len(ours) - 1))
    around = np.stack([theirs - ours[place - 1], theirs - ours[np.minimum(place, len(ours) - 1)]])
    nearest = np.where(
        np.abs(around[0] - middle) <= np.abs(around[1] - middle), around[0], around[1]
    )
    paired = nearest[np.abs(nearest - middle) <= WINDOW_NS // 2]
    if not _is_no_chance(len(paired), len(theirs), sum(map(len, parts))):
        return None
    offset_ns = int(np.median(paired))
    error_ns = int(np.median(np.abs(paired - offset_ns)))
    return Alignment(offset_ns, error_ns, len(paired), marks.name)


def _best_middle(parts: list[NDArray[Any]]) -> int | None:
    """Return the middle of the window with most of the foreign marks, the nearest to zero.

    parts: for each foreign mark the differences from Penstock's marks, ascending.  A mark is in
    every window with a begin up to WINDOW_NS before a difference; close marks of Penstock count
    once.
    """
    import numpy as np

    differences = np.concatenate(parts)
    if not len(differences):
        return None
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    is_apart = (np.diff(differences) > WINDOW_NS) | (np.diff(owner) > 0)
    begins = np.sort(differences[np.append(True, is_apart)] - WINDOW_NS)
    ends = np.sort(differences[np.append(is_apart, True)])
    counts = np.searchsorted(begins, begins, "right") - np.searchsorted(ends, begins)
    best = begins[counts == counts.max()]
    until = ends[np.searchsorted(ends, best)]
    middles = (best + until) // 2 + WINDOW_NS // 2
    return int(middles[np.argmin(np.abs(middles))])


def _is_no_chance(pairs: int, theirs: int, differences: int) -> bool:
    """Return True if the fit is unlikely to be chance: bounds the probability over all windows that
    `pairs` of `theirs` fit, from the known rate of unrelated marks."""
    if pairs < LEAST_PAIRS or 2 * pairs < theirs:
        return False
    windows = 2 * SEARCH_NS / WINDOW_NS
    rate = min(1.0, differences / theirs / windows)
    log_ways = math.lgamma(theirs + 1) - math.lgamma(pairs + 1) - math.lgamma(theirs - pairs + 1)
    return math.log(windows) + log_ways + pairs * math.log(rate) < math.log(CHANCE)


def require_overlap(
    path: object, run: Run, first_unix_ns: int, last_unix_ns: int, hosts: Sequence[str]
) -> None:
    """Raise ForeignError if a profile is of another time or machine than the run.

    hosts: the machine's names in the profile; empty: not stated.
    """
    rows = run.sql("SELECT DISTINCT host FROM processes WHERE host IS NOT NULL AND host <> ''")
    hosts_of_run = {host for (host,) in rows}
    if (
        hosts_of_run
        and hosts
        and not {_short(host) for host in hosts_of_run} & {_short(host) for host in hosts}
    ):
        raise ForeignError(
            f"{path}: this profile is of the machine {', '.join(hosts)}, the run of "
            f"{', '.join(sorted(hosts_of_run))}; give the profile that was made in this run"
        )
    ((begin_ns, end_ns, is_open),) = run.sql(
        "SELECT min(start_ns), max(end_ns), bool_or(end_ns IS NULL) FROM processes"
    )
    if is_open:  # running, or killed before the end was noted
        ((last_ns,),) = run.sql("SELECT max(start_ns + coalesce(duration_ns, 0)) FROM events_raw")
        end_ns = max(end_ns or 0, last_ns or 0)
    begin, end = (run.start_unix_ns + (ns or 0) for ns in (begin_ns, end_ns))
    if first_unix_ns > end or last_unix_ns < begin:
        raise ForeignError(
            f"{path}: this profile is of {_when(first_unix_ns)} to {_when(last_unix_ns)}, the run "
            f"of {_when(begin)} to {_when(end)}; give the profile that was made in this run"
        )


def _short(host: str) -> str:
    return host.split(".")[0].lower()


def _when(unix_ns: int) -> str:
    import datetime

    try:
        moment = datetime.datetime.fromtimestamp(unix_ns // 10**9, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{unix_ns} ns since 1970"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
