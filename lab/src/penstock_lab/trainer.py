"""A rank of a data-parallel training that reads its share, sleeps a step and sums gradients.

    torchrun ... -m penstock_lab.trainer JOB.json
    mpirun ... python -m penstock_lab.trainer JOB.json

Knows a feed and a communicator; knows no storage and no study.  Writes rank-N.json beside the job.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from penstock.errors import PenstockError
from penstock.feed import Feed
from penstock.feed.plan import PAGE_BYTES
from penstock_lab.epochs import index_at
from penstock_lab.needs import imported

__all__ = ["LAUNCHERS", "TrainerJob", "TrainerResult", "trained"]

LAUNCHERS = ("torchrun", "mpirun")


@dataclass(frozen=True, slots=True)
class TrainerJob:
    """data: the LMDB, the source of the index; root: the path for reads.  batch: of a rank.
    compute_s: of a step, slept.  gradients: numbers summed after each step."""

    data: str
    root: str
    launcher: str
    batch: int
    steps: int
    compute_s: float
    gradients: int
    seed: int = 1


@dataclass(slots=True)
class TrainerResult:
    """The results of a rank.  sum_s: of each step, the time in the sum over all ranks, including
    the wait for the last rank.  held: records in memory before any read."""

    rank: int = 0
    samples: int = 0
    read_bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    held: int = 0
    waits_s: list[float] = field(default_factory=list)
    sum_s: list[float] = field(default_factory=list)


class _Torch:
    def __init__(self, gradients: int) -> None:
        torch = imported("torch", "--launcher torchrun")
        dist = imported("torch.distributed", "--launcher torchrun")
        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.dist = dist
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.numbers = torch.zeros(gradients)

    def add(self) -> None:
        self.dist.all_reduce(self.numbers)

    def close(self) -> None:
        self.dist.destroy_process_group()


class _Mpi:
    def __init__(self, gradients: int) -> None:
        self.mpi = imported("mpi4py.MPI", "--launcher mpirun")
        self.all = self.mpi.COMM_WORLD
        self.rank, self.size = self.all.Get_rank(), self.all.Get_size()
        self.numbers = np.zeros(gradients, np.float32)

    def add(self) -> None:
        self.all.Allreduce(self.mpi.IN_PLACE, self.numbers)

    def close(self) -> None:
        pass  # mpi4py ends MPI when the program ends


_RANKS: dict[str, Callable[[int], _Torch | _Mpi]] = {"torchrun": _Torch, "mpirun": _Mpi}


def trained(job: TrainerJob, ranks: _Torch | _Mpi) -> TrainerResult:
    """Run the steps of this rank, in step with the others.  Raises FeedError."""
    clock = time.perf_counter
    index = index_at(Path(job.data), job.root)
    done = TrainerResult(ranks.rank)
    room = 3 * job.batch * int(index.length.max() + 2 * PAGE_BYTES)
    with Feed(
        index, job.batch, shuffle="global", seed=job.seed, rank=ranks.rank, world_size=ranks.size,
        tail="drop", direct=False, readers=1, buffer_bytes=room,
    ) as feed:  # fmt: skip
        done.held = int(feed.held().sum())
        ranks.add()  # connections are made with the first
        ranks.add()
        used = resource.getrusage(resource.RUSAGE_SELF)
        begun = asked = clock()
        for step, batch in enumerate(feed, 1):
            ready = clock()
            done.waits_s.append(ready - asked)
            done.samples += len(batch)
            done.read_bytes += sum(map(len, batch.views()))
            time.sleep(job.compute_s)
            computed = clock()
            ranks.add()
            asked = clock()
            done.sum_s.append(asked - computed)
            if step == job.steps:
                break
        done.wall_s = clock() - begun
        after = resource.getrusage(resource.RUSAGE_SELF)
    done.cpu_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return done


def main() -> None:
    """Run the job of the named file; any error is the rank's answer too."""
    file = Path(sys.argv[1])
    rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0"))
    try:
        job = TrainerJob(**json.loads(file.read_bytes()))
        ranks = _RANKS[job.launcher](job.gradients)
        answer = asdict(trained(job, ranks))
        ranks.close()
    except (OSError, PenstockError) as error:
        answer = {"error": str(error)}
    (file.parent / f"rank-{rank}.json").write_text(json.dumps(answer))
    if "error" in answer:
        raise SystemExit(answer["error"])


if __name__ == "__main__":
    main()
