"""Ranks of an MPI job that share an index, and the readers of each node.  Imports mpi4py only
inside functions.

    from penstock.adapters.mpi import node_feed

    with node_feed("train.lmdb", 256, shuffle="block", seed=7) as feed:
        for batch in feed: ...
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from penstock.errors import MissingDependency
from penstock.feed import ranks
from penstock.feed.index import Index
from penstock.feed.share import RankFeed

__all__ = ["node_feed", "shared_index"]


PIECE_BYTES = 1 << 30  # of a message: MPI counts bytes in an int


class _MpiRanks:
    """The ranks of a communicator for feed.ranks: by buffers, without pickling."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self.rank, self.size = own.Get_rank(), own.Get_size()

    def broadcast(self, data: bytes) -> bytes:
        import numpy as np

        length = np.array([len(data)], np.int64)
        self._own.Bcast(length, 0)
        body = np.zeros(int(length[0]), np.uint8)
        if self.rank == 0:
            body[:] = np.frombuffer(data, np.uint8)
        for start in range(0, len(body), PIECE_BYTES):
            self._own.Bcast(body[start : start + PIECE_BYTES], 0)
        return body.tobytes()

    def gather(self, data: bytes) -> list[bytes]:
        import numpy as np

        lengths = np.zeros(self.size, np.int64)
        self._own.Allgather(np.array([len(data)], np.int64), lengths)
        body = np.zeros(int(lengths.sum()), np.uint8)
        self._own.Allgatherv(np.frombuffer(data, np.uint8), [body, lengths])
        ends = np.cumsum(lengths).tolist()
        starts = [0, *ends[:-1]]
        return [body[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]


@contextmanager
def _ranks_of(communicator: Any) -> Iterator[_MpiRanks]:
    """Yield ranks with a communicator of their own, apart from the training's messages."""
    if communicator is None:
        try:
            from mpi4py import MPI
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "ranks of MPI need mpi4py: pip install 'penstock[mpi]'"
            ) from error
        communicator = MPI.COMM_WORLD
    own = communicator.Dup()
    yield _MpiRanks(own)
    own.Free()  # collective: not after an error, as other ranks may have none


def shared_index(
    data: str | os.PathLike[str] | Sequence[Any],
    communicator: Any = None,
    *,
    kind: str | None = None,
    database: bytes | str | None = None,
) -> Index:
    """Return the index of a data set on every rank of a communicator, made by rank 0 alone.

    communicator: MPI.COMM_WORLD by default.  kind, database: see open_index.  Raises FeedError, on
    every rank: rank 0 cannot make the index; MissingDependency.
    """
    with _ranks_of(communicator) as talking:
        return ranks.shared_index(data, talking, kind, database)


@contextmanager
def node_feed(
    data: Index | str | os.PathLike[str] | Sequence[Any],
    batch_size: int,
    communicator: Any = None,
    **options: Any,
) -> Iterator[RankFeed]:
    """Return the feed of a rank in an MPI job: `with node_feed(...) as feed`, on every rank.

    communicator: MPI.COMM_WORLD by default.  The ranks of a node share readers and memory.  See
    feed.ranks.node_feed.
    """
    with (
        _ranks_of(communicator) as talking,
        ranks.node_feed(data, batch_size, talking, **options) as feed,
    ):
        yield feed
