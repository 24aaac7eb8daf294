"""Epochs of a data-parallel training; each node sees the data at a separate path, and so through a
separate page cache.  A program of `places.answer_of`.

Knows LMDBs, feeds and a job; knows no storage and no study.  One process: each node has a `Feed`
that reads ahead, a step begins when the slowest node has a batch, and a step sleeps.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import PenstockError
from penstock.feed import Feed, Index, open_index
from penstock.feed.feed import Batch
from penstock.feed.plan import PAGE_BYTES

__all__ = ["SHUFFLES", "EpochsJob", "EpochsResult", "dealt", "index_at", "part_of", "trained"]

# node: each node shuffles a fixed share.  cache-aware: each record goes to a node with the record
# in memory.
SHUFFLES = ("none", "node", "global", "cache-aware")


@dataclass(frozen=True, slots=True)
class EpochsJob:
    """data: the LMDB, the source of the index; roots: the path of the folder on each node.  batch:
    of all nodes together.  compute_s: of a step, slept."""

    data: str
    roots: tuple[str, ...]
    shuffle: str
    batch: int
    epochs: int
    compute_s: float
    seed: int = 1


@dataclass(slots=True)
class EpochsResult:
    """steps_s: of each step, from batch to batch.  hits: for each epoch, the share of the records
    in their node's memory at the begin.  first_hits: in the first epoch, before any read: not cold
    unless 0."""

    samples: int = 0
    read_bytes: int = 0
    wall_s: float = 0.0
    wait_s: float = 0.0
    steps_s: list[float] = field(default_factory=list)
    epoch_steps: int = 0
    hits: list[float] = field(default_factory=list)


def part_of(index: Index, records: NDArray[np.int64]) -> Index:
    """Return an index of some records."""
    starts = np.concatenate(([0], index.key_end[:-1]))[records]
    ends = index.key_end[records]
    keys = [index.keys[start:end] for start, end in zip(starts, ends, strict=True)]
    return replace(
        index,
        file=index.file[records],
        offset=index.offset[records],
        length=index.length[records],
        keys=np.concatenate(keys) if keys else index.keys[:0],
        key_end=np.cumsum(ends - starts),
    )


def dealt(
    held: Sequence[NDArray[np.bool_]], chance: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return each node's records: up to its share of the records in its memory, the others by lot.
    Every record once; shares differ by at most 1."""
    nodes, n = len(held), len(held[0])
    room = [(number + 1) * n // nodes - number * n // nodes for number in range(nodes)]
    given: list[list[int]] = [[] for _ in range(nodes)]
    left = []
    for record in chance.permutation(n):
        holders = [
            node for node in range(nodes) if held[node][record] and len(given[node]) < room[node]
        ]
        if holders:
            given[holders[int(chance.integers(len(holders)))]].append(int(record))
        else:
            left.append(int(record))
    for node in range(nodes):
        missing = room[node] - len(given[node])
        given[node] += left[:missing]
        left = left[missing:]
    return [np.sort(np.array(records, np.int64)) for records in given]


def index_at(data: Path, root: str) -> Index:
    """Return the index of a data set as seen at another path: nothing is read from there."""
    index = open_index(data)
    below = [Path(name).relative_to(data.absolute()) for name in index.files]
    return replace(index, path=root, files=tuple(str(Path(root) / name) for name in below))


class _Nodes:
    """Each node's index and, epoch for epoch, the feed."""

    def __init__(self, job: EpochsJob) -> None:
        self.job = job
        self.seen = [index_at(Path(job.data), root) for root in job.roots]
        self.n = len(self.seen[0])

    def shares(self, epoch: int) -> list[NDArray[np.int64]] | None:
        """Return the records of each node, where this job deals the records out itself."""
        nodes = len(self.seen)
        if self.job.shuffle == "node" or (self.job.shuffle == "cache-aware" and not epoch):
            chance = np.random.default_rng([self.job.seed, 0])
            return dealt([np.zeros(self.n, bool)] * nodes, chance)
        if self.job.shuffle == "cache-aware":
            return dealt(self.held(), np.random.default_rng([self.job.seed, epoch]))
        return None

    def held(self) -> list[NDArray[np.bool_]]:
        held_counts = []
        for index in self.seen:
            with Feed(index, 1, readers=0) as feed:
                held_counts.append(feed.held())
        return held_counts

    def feeds(self, epoch: int, stack: ExitStack) -> list[tuple[Feed, NDArray[np.int64]]]:
        """Return for each node the feed, and the number of each of its records in the whole."""
        job, nodes, made = self.job, len(self.seen), []
        shares = self.shares(epoch)
        for node, index in enumerate(self.seen):
            batch = job.batch // nodes
            shuffle, rank, world, numbers = job.shuffle, node, nodes, np.arange(self.n)
            if shares is not None:
                shuffle, rank, world, numbers = "global", 0, 1, shares[node]
                index = part_of(index, numbers)
            feed = Feed(
                index, batch, shuffle=shuffle, seed=job.seed, rank=rank, world_size=world,
                tail="drop", direct=False, readers=1,
                # Two windows of a batch: the next is read while a step computes.
                buffer_bytes=3 * batch * int(index.length.max() + 2 * PAGE_BYTES),
            )  # fmt: skip
            feed.set_epoch(epoch)
            made.append((stack.enter_context(feed), numbers))
        return made


def trained(job: EpochsJob, is_ready: Callable[[], None] = lambda: None) -> EpochsResult:
    """All epochs of a job.  is_ready: called before anything is read from the nodes' paths.

    Raises FeedError.
    """
    done, nodes = EpochsResult(), _Nodes(job)
    is_ready()
    begun = last = time.perf_counter()
    for epoch in range(job.epochs):
        looked = time.perf_counter()
        held = nodes.held()
        unmeasured_s = time.perf_counter() - looked  # only this study does this work
        begun, last = begun + unmeasured_s, last + unmeasured_s
        hits = records = 0
        with ExitStack() as stack:
            feeds = nodes.feeds(epoch, stack)
            for batches in _together([feed for feed, _ in feeds]):
                ready = time.perf_counter()
                done.wait_s += ready - last
                for (_, numbers), batch, of_node in zip(feeds, batches, held, strict=True):
                    hits += int(of_node[numbers[batch.records]].sum())
                    records += len(batch)
                    done.read_bytes += sum(map(len, batch.views()))
                time.sleep(job.compute_s)
                now = time.perf_counter()
                done.steps_s.append(now - last)
                last = now
        done.samples += records
        done.hits.append(hits / max(1, records))
    done.wall_s = last - begun
    done.epoch_steps = len(done.steps_s) // job.epochs
    return done


def _together(feeds: Sequence[Feed]) -> Iterator[tuple[Batch, ...]]:
    """Yield a batch of each feed, while all have a batch."""
    yield from zip(*map(iter, feeds), strict=False)


def main() -> None:
    """Read a job from standard input, wait for a line, print the results, as JSON."""
    message = json.loads(sys.stdin.readline())

    def is_ready() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    try:
        answer = asdict(
            trained(EpochsJob(**message | {"roots": tuple(message["roots"])}), is_ready)
        )
    except (OSError, PenstockError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
