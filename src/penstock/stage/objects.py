"""Objects that a run fetched from remote storage, as a plan for copies near the job.  Knows the
tables of a run and the room of a tier; copies nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import QueryError, TierError
from penstock.explain.questions import prepare, query
from penstock.places import tiers
from penstock.safe import bounded, drafts
from penstock.stage.evidence import EvidenceTables
from penstock.stage.held import taken_bytes
from penstock.stage.manifest import TierPlace, stored_bytes
from penstock.stage.plan import KEPT_FREE_BYTES
from penstock.words import count, show

__all__ = [
    "FetchedObject",
    "ObjectPlan",
    "chosen",
    "facts_of",
    "is_plan",
    "load",
    "object_plan",
    "sentences_of",
    "store",
]

MOST_PATH_BYTES = 1023  # a path of 1,024 bytes may be the begin of a longer path
MOST_LINE_BYTES = 1 << 16
FIRST = b'{"endpoint":'

if TYPE_CHECKING:
    from penstock.places.registry import Tier

CACHE = (
    "copy each object once to a fast tier: penstock stage objects RUN --to TIER (docs/stage.md), "
    "or fetch each once a node: penstock.feed with PENSTOCK_FEED_CACHE (docs/object-stores.md)"
)


@dataclass(frozen=True, slots=True)
class FetchedObject:
    """queries/stage_objects.sql"""

    endpoint: str
    bucket: str | None
    path: str
    size_bytes: int
    fetched_bytes: int
    requests: int
    processes: int
    request_s: float
    is_tls: bool = False

    @property
    def times(self) -> float:
        """Return how often the object's bytes were fetched."""
        return self.fetched_bytes / self.size_bytes if self.size_bytes else 0.0


@dataclass(frozen=True, slots=True)
class ObjectPlan:
    """The objects of a run, and what one fetch of each by the node would save.

    again_bytes: bytes fetched beyond the size of each object; ranges of an object that was not
    fetched in full may repeat unseen.  request_s: seconds in all requests, all
    threads together.  summed: requests known as sums only, in no object.
    """

    objects: tuple[FetchedObject, ...]
    summed: int

    @property
    def size_bytes(self) -> int:
        return sum(row.size_bytes for row in self.objects)

    @property
    def fetched_bytes(self) -> int:
        return sum(row.fetched_bytes for row in self.objects)

    @property
    def again_bytes(self) -> int:
        return sum(max(0, row.fetched_bytes - row.size_bytes) for row in self.objects)

    @property
    def request_s(self) -> float:
        return sum(row.request_s for row in self.objects)

    @property
    def again_s(self) -> float:
        """Return the seconds in requests that repeat bytes, in proportion to the bytes."""
        return sum(
            row.request_s * max(0, row.fetched_bytes - row.size_bytes) / row.fetched_bytes
            for row in self.objects
        )

    @property
    def endpoints(self) -> Sequence[str]:
        return sorted({row.endpoint for row in self.objects})


def object_plan(run: EvidenceTables) -> ObjectPlan:
    """Return the objects that a run fetched.  Raises QueryError for a run without such requests."""
    with run.connection.cursor() as engine:  # prepared tables end with the cursor
        prepare(engine, ("stage_objects",))
        answer = engine.execute(query("stage_objects"))
        columns = [column[0] for column in answer.description]
        rows = [dict(zip(columns, values, strict=True)) for values in answer.fetchall()]
        ((summed,),) = engine.execute(
            "SELECT coalesce(sum(requests), 0)::BIGINT FROM requests WHERE requests > 1"
        ).fetchall()
        tls = engine.execute(
            "SELECT DISTINCT endpoint FROM connections WHERE handshake_ns IS NOT NULL"
        ).fetchall()
    with_tls = {endpoint for (endpoint,) in tls}
    if not rows:
        raise QueryError(
            "no request for an object was recorded: HTTP clients with an adapter are listed in "
            "docs/limits.md, and `penstock stage plan` is for files"
        )
    objects = [FetchedObject(**row) for row in rows]
    return ObjectPlan(
        tuple(
            replace(row, is_tls=row.endpoint in with_tls or row.endpoint.endswith(":443"))
            for row in objects
        ),
        int(summed),
    )


def chosen(plan: ObjectPlan, tier: Tier, budget_bytes: int | None) -> ObjectPlan:
    """Return the objects worth a copy within the room of a tier: the most request time per byte
    first.

    budget_bytes: at most so much; None: what is free on the tier, or its capacity.  Copies of the
    objects that are there count as room.  Raises TierError: no object fits, no such tier.
    """
    place = TierPlace(tier)
    entries = place.entries()
    ours = {
        f"{'https' if row.is_tls else 'http'}://{row.endpoint}{row.path}" for row in plan.objects
    }
    theirs = [entry for entry in entries.values() if entry.source not in ours]
    mine = taken_bytes(entry for entry in entries.values() if entry.source in ours)
    room = tiers.free_bytes(tier.path) - KEPT_FREE_BYTES + mine
    if tier.capacity_bytes is not None:
        room = min(room, tier.capacity_bytes - taken_bytes(theirs))
    if budget_bytes is not None:
        room = min(room, budget_bytes)
    taken: list[FetchedObject] = []
    for row in sorted(plan.objects, key=lambda row: -row.request_s / max(1, row.size_bytes)):
        needed = int(stored_bytes(row.size_bytes))
        is_path = row.path.startswith("/") and len(row.path.encode()) <= MOST_PATH_BYTES
        if needed and needed <= room and is_path:
            taken.append(row)
            room -= needed
    if not taken:
        raise TierError(_why_none(plan, tier, room))
    return ObjectPlan(tuple(sorted(taken, key=lambda row: -row.fetched_bytes)), plan.summed)


def _why_none(plan: ObjectPlan, tier: Tier, room: int) -> str:
    least = min(int(stored_bytes(row.size_bytes)) for row in plan.objects)
    head = f"{tier.name}: none of {count(len(plan.objects), 'object')}"
    if least <= room:
        return f"{head} can be copied: they are empty, or their paths are too long"
    return (
        f"{head} fits: the smallest takes {show(least, 'B')}, and there is room for "
        f"{show(max(0, room), 'B')}; penstock stage evict {tier.name} makes room"
    )


def facts_of(plan: ObjectPlan) -> dict[str, Any]:
    """Return the sums of a plan, as JSON."""
    return {
        "endpoints": list(plan.endpoints),
        "objects": len(plan.objects),
        "size_bytes": plan.size_bytes,
        "fetched_bytes": plan.fetched_bytes,
        "again_bytes": plan.again_bytes,
        "request_s": plan.request_s,
        "again_s": plan.again_s,
        "summed_requests": plan.summed,
    }


def sentences_of(plan: ObjectPlan) -> Iterator[str]:
    """Yield the plan in words."""
    times = plan.fetched_bytes / plan.size_bytes if plan.size_bytes else 0.0
    yield (
        f"{count(len(plan.objects), 'object')} at {', '.join(plan.endpoints)}, "
        f"{show(plan.size_bytes, 'B')}; fetched {show(plan.fetched_bytes, 'B')}, "
        f"{show(times, 'x')}, in {show(plan.request_s, 's')} of requests, all threads together"
    )
    if plan.again_bytes:
        yield (
            f"fetched again: {show(plan.again_bytes, 'B')}, {show(plan.again_s, 's')} of requests; "
            f"{CACHE}"
        )
    else:
        yield (
            "no object was fetched with more bytes than its size: a copy on the node saves the "
            "requests of the next run, none of this one"
        )
    if plan.summed:
        yield f"{plan.summed:,} more requests are known as sums only, without their objects"


def store(plan: ObjectPlan, path: Path) -> None:
    """Write the objects as lines of JSON, the most bytes first.  Raises TierError."""
    try:
        with drafts.draft(path) as file:
            for row in plan.objects:
                file.write(json.dumps(asdict(row)).encode() + b"\n")
    except OSError as error:
        raise TierError(f"{path}: {error.strerror}; choose a file that can be written") from error


def is_plan(path: Path) -> bool:
    """Return True if a file begins as `store` writes it."""
    try:
        with bounded.opened(path) as file:
            return file.read(len(FIRST)) == FIRST
    except OSError:
        return False


def load(path: Path) -> tuple[FetchedObject, ...]:
    """Return the objects of a file that `store` has written.  Raises TierError."""
    try:
        with bounded.opened(path) as file:
            return tuple(_lines(file))
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TierError(
            f"{path}: no list of objects; penstock stage objects RUN -o {path.name} makes one"
        ) from error


def _lines(file: Any) -> Iterator[FetchedObject]:
    while text := file.readline(MOST_LINE_BYTES):
        facts = json.loads(text)
        row = FetchedObject(**facts)
        words = (row.endpoint, row.path, row.bucket or "")
        numbers = (row.size_bytes, row.fetched_bytes, row.requests, row.processes)
        if not all(isinstance(word, str) and word.isprintable() for word in words):
            raise ValueError("a text that is none")
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("a number that is none")
        if not row.path.startswith("/") or type(row.is_tls) is not bool:
            raise ValueError("no path of a request")
        if not isinstance(row.request_s, int | float):
            raise ValueError("a time that is none")
        yield row
