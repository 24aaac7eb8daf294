"""Estimate the wait for remote storage with other requests at once, or at another endpoint.

A calculation from recorded requests; sends none.  The recording does not tell the requests that
need an earlier answer, so the answer is an interval between two readings of the recording: every
request waits for the requests with an earlier end (dependent), or no request waits (independent).
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from penstock.errors import QueryError
from penstock.explain.measures import Measures, measure
from penstock.explain.questions import prepare
from penstock.runs.run import Run
from penstock.words import show

__all__ = ["RemoteChange", "RemoteWhatIf", "sentences_of", "to_json", "whatif_remote"]

FEW = 20  # requests: with fewer, single requests decide

# The requests, each with its fetch: of the thread itself; of a helper thread (a thread pool, an
# event loop) the fetch of the process begun latest, of those under way when the request began.
# Helper threads are chosen as in queries/waits/watched.sql.
_REQUESTS = """
WITH asked AS (
    SELECT *, start_ns + duration_ns AS end_ns
    FROM requests
    WHERE start_ns IS NOT NULL AND duration_ns IS NOT NULL
),
workers AS (
    SELECT DISTINCT process, thread FROM spans
    WHERE kind = 'step' OR name IN ('data wait', 'fetch')
),
fetchers AS (
    SELECT DISTINCT process, thread FROM fetches
),
candidates AS (
    SELECT a.process, a.request, a.start_ns, f.thread
    FROM asked AS a
    JOIN fetchers AS f ON f.process = a.process
    LEFT JOIN workers AS w ON w.process = a.process AND w.thread = a.thread
    WHERE w.process IS NULL OR f.thread = a.thread
),
met AS (
    SELECT c.process, c.request, arg_max(f.fetch_id, f.start_ns) AS fetch_id
    FROM candidates AS c
    ASOF JOIN fetches AS f
        ON f.process = c.process AND f.thread = c.thread AND f.start_ns <= c.start_ns
    WHERE f.end_ns > c.start_ns
    GROUP BY c.process, c.request
)
SELECT
    a.process, coalesce(m.fetch_id, -2 - a.batch, -1), a.start_ns / 1e9, a.end_ns / 1e9,
    least(coalesce(a.first_byte_ns, a.duration_ns), a.duration_ns) / 1e9, a.received_bytes,
    a.requests, a.endpoint
FROM asked AS a
LEFT JOIN met AS m ON m.process = a.process AND m.request = a.request
ORDER BY a.start_ns
"""
UNKNOWN = -1  # the group of requests of no fetch


@dataclass(frozen=True, slots=True)
class RemoteChange:
    """The change.  concurrency: requests at once, of each process.  latency_s: to the first byte.
    bandwidth_bps, requests_hz: limits of the endpoint for all processes.  None: as recorded."""

    concurrency: int | None = None
    latency_s: float | None = None
    bandwidth_bps: float | None = None
    requests_hz: float | None = None

    def __str__(self) -> str:
        says = [
            f"{self.concurrency} requests at once" if self.concurrency else "",
            f"{show(self.latency_s, 's')} a request" if self.latency_s is not None else "",
            show(self.bandwidth_bps, "B/s") if self.bandwidth_bps else "",
            f"{self.requests_hz:,.0f} requests/s" if self.requests_hz else "",
        ]
        return ", ".join(filter(None, says))


@dataclass(frozen=True, slots=True)
class RemoteWhatIf:
    """The answer.  wait_s: of the data wait for remote storage.  least_s, most_s: what remains.

    recorded_s: time with a request under way, all processes together; independent_s and
    dependent_s: with the change.
    """

    change: str
    endpoints: tuple[str, ...]
    requests: int
    processes: int
    at_once: int
    wait_s: float
    recorded_s: float
    independent_s: float
    dependent_s: float
    least_s: float
    most_s: float
    notes: tuple[str, ...]


class _Request(NamedTuple):
    process: int
    group: int
    begin_s: float
    end_s: float
    first_s: float
    size_bytes: int


def whatif_remote(run: Run, change: RemoteChange) -> RemoteWhatIf:
    """Calculate the wait for remote storage with a change.  Raises QueryError: no request, or no
    wait for one, is recorded."""
    measures = measure(run)
    endpoints = measures.remote_endpoints
    rows, summed = _requests(run, endpoints)
    if not rows or not measures.remote_s:
        raise QueryError(
            "no data wait for recorded requests: HTTP clients with an adapter are listed in "
            "docs/limits.md; penstock whatif RUN --tier and --threads are for files"
        )
    groups: dict[tuple[int, int], list[_Request]] = {}
    for row in rows:
        groups.setdefault((row.process, row.group), []).append(row)
    processes = len({row.process for row in rows})
    at_once = max(_most_at_once(group) for group in groups.values())
    active = _active(rows)
    recorded_s = independent_s = dependent_s = 0.0
    for group in groups.values():
        slots = change.concurrency or _most_at_once(group)
        floor_s = _floor_s(group, change, active)
        recorded_s += _busy_s([(request.begin_s, request.end_s) for request in group])
        independent_s += max(floor_s, _independent_s(group, change, slots))
        dependent_s += max(floor_s, _dependent_s(group, change, change.concurrency))
    least_s, most_s = _remaining(measures, recorded_s, (independent_s, dependent_s), active)
    return RemoteWhatIf(
        *(str(change), endpoints, len(rows), processes, at_once, measures.remote_s, recorded_s),
        *(independent_s, dependent_s, least_s, most_s, tuple(_notes(rows, summed, change))),
    )


def _requests(run: Run, endpoints: Sequence[str]) -> tuple[list[_Request], int]:
    """Return the requests to the endpoints, and the number of requests known as sums only.

    A group is a fetch of a batch, or all requests of a process outside of fetches.
    """
    with run.connection.cursor() as engine:
        prepare(engine, ("fetches",))
        rows = engine.execute(_REQUESTS).fetchall()
    ours = [row for row in rows if row[7] in endpoints]
    summed = sum(row[6] for row in ours if row[6] > 1)
    return [_Request(*row[:6]) for row in ours if row[6] == 1], int(summed)


def _parts(request: _Request, change: RemoteChange) -> float:
    """Return the seconds of a request alone, with the change."""
    first_s = request.first_s if change.latency_s is None else change.latency_s
    rest_s = request.end_s - request.begin_s - request.first_s
    if change.bandwidth_bps is not None:
        rest_s = request.size_bytes / change.bandwidth_bps
    return first_s + rest_s


def _floor_s(group: Sequence[_Request], change: RemoteChange, active: float) -> float:
    """Return the least time of a group, by limits that `active` processes share."""
    by_bytes = by_requests = 0.0
    if change.bandwidth_bps:
        by_bytes = sum(request.size_bytes for request in group) * active / change.bandwidth_bps
    if change.requests_hz:
        by_requests = len(group) * active / change.requests_hz
    return max(by_bytes, by_requests)


def _active(rows: Sequence[_Request]) -> float:
    """Return how many processes have requests under way, while any has."""
    by_process: dict[int, list[tuple[float, float]]] = {}
    for request in rows:
        by_process.setdefault(request.process, []).append((request.begin_s, request.end_s))
    together_s = _busy_s([(request.begin_s, request.end_s) for request in rows])
    return max(1.0, sum(map(_busy_s, by_process.values())) / together_s) if together_s else 1.0


def _busy_s(stretches: Sequence[tuple[float, float]]) -> float:
    """Return the time covered by stretches."""
    total = 0.0
    until = float("-inf")
    for begin, end in sorted(stretches):
        total += max(0.0, end - max(begin, until))
        until = max(until, end)
    return total


def _most_at_once(group: Sequence[_Request]) -> int:
    marks = sorted(
        [(request.begin_s, 1) for request in group] + [(request.end_s, -1) for request in group]
    )
    most = now = 0
    for _, change in marks:
        now += change
        most = max(most, now)
    return max(1, most)


def _independent_s(group: Sequence[_Request], change: RemoteChange, slots: int) -> float:
    """Return the time of a group if each request begins as soon as a slot is free."""
    free = [0.0] * min(slots, len(group))
    for request in group:
        heapq.heappush(free, heapq.heappop(free) + _parts(request, change))
    return max(free)


def _dependent_s(group: Sequence[_Request], change: RemoteChange, slots: int | None) -> float:
    """Return the time with a request under way if each request waits for all requests with an
    earlier end, and for the recorded pause."""
    ended: list[tuple[float, float]] = []  # (recorded end, latest new end up to there)
    pending: list[tuple[float, float]] = []
    free: list[float] = []
    made = []
    for request in sorted(group):
        while pending and pending[0][0] <= request.begin_s:
            was_s, now_s = heapq.heappop(pending)
            ended.append((was_s, max(now_s, ended[-1][1] if ended else now_s)))
        begin_s = request.begin_s
        if ended:
            begin_s = ended[-1][1] + request.begin_s - ended[-1][0]
        if slots is not None and len(free) >= slots:
            begin_s = max(begin_s, heapq.heappop(free))
        end_s = begin_s + _parts(request, change)
        heapq.heappush(free, end_s)
        heapq.heappush(pending, (request.end_s, end_s))
        made.append((begin_s, end_s))
    return _busy_s(made)


def _remaining(
    measures: Measures, recorded_s: float, changed: Sequence[float], active: float
) -> tuple[float, float]:
    """Return the least and the most wait that remains.

    The wait shrinks at least in proportion to the time with requests under way, and at most by the
    whole saved time, divided by the active processes: a loader ahead of the training may hide the
    rest.
    """
    wait_s = measures.remote_s
    remaining = []
    for new_s in changed:
        remaining.append(wait_s * new_s / recorded_s)
        remaining.append(max(0.0, wait_s + (new_s - recorded_s) / active))
    return min(remaining), max(remaining)


def _notes(rows: Sequence[_Request], summed: int, change: RemoteChange) -> Iterator[str]:
    yield "which requests need the answer of an earlier request is not recorded: an interval"
    if change.concurrency:
        yield "the endpoint is taken to answer each of more requests at once as fast as it did"
    loose = sum(row.group == UNKNOWN for row in rows)
    if loose == len(rows):
        yield "the batches of the requests are not known: each process counts as one batch"
    elif loose:
        yield f"{loose:,} requests began in no fetch: those of a process count as one batch"
    if len(rows) < FEW:
        yield f"only {len(rows)} requests: single requests decide"
    if summed:
        yield f"{summed:,} more requests are known as sums only and do not count"


def to_json(answer: RemoteWhatIf) -> str:
    """Return the answer as a JSON object."""
    return json.dumps(asdict(answer), indent=1)


def sentences_of(answer: RemoteWhatIf) -> Iterator[str]:
    """Yield the answer in words."""
    yield (
        f"{answer.requests:,} requests of {answer.processes:,} processes to "
        f"{', '.join(answer.endpoints)}, at most {answer.at_once:,} of a process at once: "
        f"{show(answer.wait_s, 's')} of data wait"
    )
    yield (
        f"{answer.change}: between {show(answer.least_s, 's')} and {show(answer.most_s, 's')} of "
        "the wait remain"
    )
    for note in answer.notes:
        yield f"  {note}"
