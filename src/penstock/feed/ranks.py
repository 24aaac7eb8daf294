"""Ranks of a job that agree on a feed: one index for all of them, readers for each node.

    with node_feed("train.lmdb", 256, ranks, shuffle="block") as feed:
        for batch in feed: ...

Knows two ways to talk (`Ranks`) and the feed of a node; knows no framework: MPI's and torch's ranks
are in penstock.adapters.  What fails on one rank is a FeedError on every rank: nobody waits for one
that has given up.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from penstock.errors import FeedError
from penstock.feed.feed import index_of
from penstock.feed.index import Index, from_bytes, to_bytes
from penstock.feed.share import NodeFeed, RankFeed, attach

__all__ = ["Ranks", "node_feed", "shared_index"]

Data = Index | str | os.PathLike[str] | Sequence[Any]


class Ranks(Protocol):
    """The ranks of a job.  Both calls are made by all of them, in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def broadcast(self, data: bytes) -> bytes:
        """Rank 0's data."""

    def gather(self, data: bytes) -> list[bytes]:
        """Each rank's data, on every rank."""


def shared_index(
    data: str | os.PathLike[str] | Sequence[Any],
    ranks: Ranks,
    kind: str | None = None,
    database: bytes | str | None = None,
) -> Index:
    """The index of a data set on every rank, made by rank 0 alone.  kind, database: see open_index.

    Raises FeedError, on every rank: rank 0 cannot make it.
    """
    said, why, caught = b"", "", None
    if ranks.rank == 0:
        try:
            said = to_bytes(index_of(data, kind, database))
        except Exception as error:
            why, caught = str(error) or repr(error), error
    told = ranks.broadcast(why.encode())
    if told:
        raise FeedError(f"rank 0: {told.decode()}") from caught
    return from_bytes(ranks.broadcast(said))


@contextmanager
def node_feed(
    data: Data,
    batch_size: int,
    ranks: Ranks,
    *,
    kind: str | None = None,
    database: bytes | str | None = None,
    **options: Any,
) -> Iterator[RankFeed]:
    """This rank's feed; the ranks of a node share readers and memory, which its first rank starts.

    data: an Index, or what rank 0 makes one of for all.  options: as NodeFeed's, the same on every
    rank.  Every rank has to leave it; the first of a node waits there for the others of the node.

    Raises FeedError, on every rank: one of them cannot begin, or asks for something else.
    """
    if isinstance(data, Index):
        index = index_of(data, kind, database)
    else:
        index = shared_index(data, ranks, kind, database)
    asked = f"{batch_size} records a batch of {len(index):,}, {sorted(options.items())}"
    told = _told(ranks, lambda: "\n".join((_node(), asked)))
    nodes, wishes = zip(*(each.split("\n", 1) for each in told), strict=True)
    for rank, wish in enumerate(wishes):
        if wish != wishes[0]:
            raise FeedError(
                f"rank {rank} asks for {wish}; rank 0 for {wishes[0]}: their orders would differ"
            )
    mine = [rank for rank, node in enumerate(nodes) if node == nodes[ranks.rank]]
    owned: list[NodeFeed] = []

    def token() -> str:
        if ranks.rank == mine[0]:
            owned.append(NodeFeed(index, batch_size, ranks=mine, world_size=ranks.size, **options))
        return owned[0].token if owned else ""

    attached: list[RankFeed] = []

    def is_attached() -> str:
        attached.append(attach(tokens[mine[0]], ranks.rank))
        return ""

    try:
        tokens = _told(ranks, token)
        _told(ranks, is_attached)  # who is not there by now never comes
        yield attached[0]
        attached[0].close()
        for node in owned:
            node.wait()
    finally:
        for feed in attached:
            feed.close()
        for node in owned:
            node.close()


def _told(ranks: Ranks, do: Callable[[], str]) -> list[str]:
    """What `do` gives on each rank, on every rank.  Raises FeedError, on every rank: it failed on
    one."""
    caught = None
    try:
        said = b"+" + do().encode()
    except Exception as error:
        said, caught = b"-" + (str(error) or repr(error)).encode(), error
    told = ranks.gather(said)
    for rank, each in enumerate(told):
        if each[:1] != b"+":
            raise FeedError(f"rank {rank}: {each[1:].decode()}") from caught
    return [each[1:].decode() for each in told]


def _node() -> str:
    """What ranks that can share memory have in common: host, and the processes that they see."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    processes = os.stat("/proc/self/ns/pid").st_ino
    return f"{os.uname().nodename} {boot} {processes} {os.getuid()}"
