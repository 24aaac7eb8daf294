"""A rank that sums numbers with the others by gloo, and how long each sum takes.

    python -m penstock_lab.allreduce_rank JOB.json RANK [SOCKET]

Writes sums-RANK.json beside the job.  With SOCKET, a descriptor, in a separate network name space
(`wire`).
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from penstock.errors import PenstockError
from penstock_lab import wire
from penstock_lab.needs import imported

__all__ = ["AllreduceJob"]

WARM = 2  # connections are made with the first sums
GUARD_S = 0.02


@dataclass(frozen=True, slots=True)
class AllreduceJob:
    """sizes: bytes of a sum.  sums: number for each size, one after the other.  backward_s,
    buckets: for the sums beside a backward pass, which sleeps."""

    ranks: int
    algorithms: Sequence[str]
    sizes: Sequence[int]
    sums: int
    backward_s: float
    buckets: int


def _tree(dist: Any, numbers: Any, other: Any, rank: int, ranks: int) -> None:
    """A binomial reduce to rank 0, and a binomial broadcast."""
    distance = 1
    while distance < ranks:
        if rank & distance:
            dist.send(numbers, rank - distance)
            break
        if rank + distance < ranks:
            dist.recv(other, rank + distance)
            numbers += other
        distance *= 2
    distance = 1
    while distance < ranks:
        distance *= 2
    while distance > 1:
        distance //= 2
        if rank % (2 * distance) == 0 and rank + distance < ranks:
            dist.send(numbers, rank + distance)
        elif rank % (2 * distance) == distance:
            dist.recv(numbers, rank - distance)


def _timed(sums: int, sum_once: Callable[[], None]) -> float:
    """Return the median seconds from the end of a sum to the end of the next: a rank that is late
    for a sum makes the others late for the next."""
    ends_s = []
    for _ in range(WARM + sums + 1):
        sum_once()
        ends_s.append(time.perf_counter())
    counted = ends_s[WARM:]
    return median(after - before for before, after in pairwise(counted))


def _overlapped(dist: Any, parts: list[Any], job: AllreduceJob) -> float:
    """Return how long the sums of a pass go on after the pass, as the median of the repeats."""
    late = []
    for _ in range(WARM + job.sums):
        dist.barrier()
        time.sleep(GUARD_S)  # ranks leave a barrier one after the other
        begin_s = time.perf_counter()
        works = []
        for number, part in enumerate(parts, 1):
            rest_s = begin_s + job.backward_s * number / job.buckets - time.perf_counter()
            time.sleep(max(0.0, rest_s))
            works.append(dist.all_reduce(part, async_op=True))
        for work in works:
            work.wait()
        late.append(time.perf_counter() - begin_s - job.backward_s)
    return median(late[WARM:])


def _measured(job: AllreduceJob, rank: int, dist: Any, torch: Any) -> list[dict[str, Any]]:
    rows = []
    for size in job.sizes:
        numbers, other = torch.ones(size // 4), torch.zeros(size // 4)

        def ring(numbers: Any = numbers) -> None:
            numbers.fill_(1.0)
            dist.all_reduce(numbers)

        def tree(numbers: Any = numbers, other: Any = other) -> None:
            numbers.fill_(1.0)
            _tree(dist, numbers, other, rank, job.ranks)

        for algorithm in job.algorithms:
            if algorithm == "overlapped":
                parts = [torch.ones(size // 4 // job.buckets) for _ in range(job.buckets)]
                seconds = _overlapped(dist, parts, job)
                is_right = all(float(part.min()) >= job.ranks for part in parts)
            else:
                seconds = _timed(job.sums, {"ring": ring, "tree": tree}[algorithm])
                is_right = float(numbers.min()) == float(numbers.max()) == job.ranks
            rows.append(
                {"algorithm": algorithm, "bytes": size, "seconds": seconds, "is_right": is_right}
            )
            dist.barrier()
    return rows


def main() -> None:
    """Measure the sums of the named job; an error is an answer too."""
    file, rank = Path(sys.argv[1]), int(sys.argv[2])
    answer: dict[str, Any]
    try:
        if len(sys.argv) > 3:
            with socket.socket(fileno=int(sys.argv[3])) as parent:
                wire.entered(rank, parent)
        os.environ["GLOO_SOCKET_IFNAME"] = wire.INTERFACE if len(sys.argv) > 3 else "lo"
        job = AllreduceJob(**json.loads(file.read_bytes()))
        torch = imported("torch", "gloo")
        dist = imported("torch.distributed", "gloo")
        torch.set_num_threads(1)
        store = dist.FileStore(str(file.parent / "store"), job.ranks)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=job.ranks)
        answer = {"rows": _measured(job, rank, dist, torch)}
        dist.destroy_process_group()
    except (OSError, PenstockError, RuntimeError) as error:
        answer = {"error": str(error)}
    (file.parent / f"sums-{rank}.json").write_text(json.dumps(answer))
    if "error" in answer:
        raise SystemExit(answer["error"])


if __name__ == "__main__":
    main()
