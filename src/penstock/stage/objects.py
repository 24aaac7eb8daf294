"""Objects that a run fetched from remote storage, as a plan for copies near the job.  Knows the
tables of a run; copies nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from penstock.errors import QueryError, TierError
from penstock.explain.questions import prepare, query
from penstock.safe import drafts
from penstock.stage.evidence import EvidenceTables
from penstock.words import count, show

__all__ = ["FetchedObject", "ObjectPlan", "facts_of", "object_plan", "sentences_of", "store"]

CACHE = (
    "fetch each object once a node: penstock.feed with PENSTOCK_FEED_CACHE=FOLDER on a fast tier "
    "(docs/object-stores.md)"
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
        rows = engine.execute(query("stage_objects")).fetchall()
        ((summed,),) = engine.execute(
            "SELECT coalesce(sum(requests), 0)::BIGINT FROM requests WHERE requests > 1"
        ).fetchall()
    if not rows:
        raise QueryError(
            "no request for an object was recorded: HTTP clients with an adapter are listed in "
            "docs/limits.md, and `penstock stage plan` is for files"
        )
    return ObjectPlan(tuple(FetchedObject(*row) for row in rows), int(summed))


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
