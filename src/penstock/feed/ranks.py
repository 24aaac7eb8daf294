"""Agree on a feed among the ranks of a job: one index for all ranks, readers per node.

    with node_feed("train.lmdb", 256, ranks, shuffle="block") as feed:
        for batch in feed: ...

The module needs only two collective calls (`Ranks`) and the feed of a node, and no framework:
adapters for MPI's and torch's ranks are in penstock.adapters.  A failure on one rank raises
FeedError on every rank, so no rank waits for a rank that gave up.
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
    """The ranks of a job.

    All ranks make the calls below, in equal order.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def broadcast(self, data: bytes) -> bytes:
        """Return rank 0's data, on every rank."""

    def gather(self, data: bytes) -> list[bytes]:
        """Return each rank's data, on every rank."""


def shared_index(
    data: str | os.PathLike[str] | Sequence[Any],
    ranks: Ranks,
    kind: str | None = None,
    database: bytes | str | None = None,
) -> Index:
    """Return the index of a data set on every rank; only rank 0 builds the index.

    kind, database: see open_index.  Raises FeedError on every rank: rank 0 failed.
    """
    said, why, caught = b"", "", None
    if ranks.rank == 0:
        try:
            said = to_bytes(index_of(data, kind, database, rows=None))
        except Exception as error:
            why, caught = str(error) or repr(error), error
    reason = ranks.broadcast(why.encode())
    if reason:
        raise FeedError(f"rank 0: {reason.decode()}") from caught
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
    """Yield the feed of the calling rank; the ranks of a node share readers and memory.

    The first rank of a node starts the readers.  data: an Index, or a data set for rank 0 to index.
    options: as for NodeFeed, equal on every rank.  Every rank has to leave the context; the first
    rank of a node waits at the end for the node's other ranks.

    Raises FeedError on every rank: a rank cannot begin, or asks for something else than rank 0.
    """
    if isinstance(data, Index):
        index = index_of(data, kind, database)
    else:
        index = shared_index(data, ranks, kind, database)
    asked = f"{batch_size} records a batch of {len(index):,}, {sorted(options.items())}"
    answers = _told(ranks, lambda: "\n".join((_node(), asked)))
    nodes, wishes = zip(*(each.split("\n", 1) for each in answers), strict=True)
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
        _told(ranks, is_attached)  # an absent rank would fail here
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
    """Return the result of `do` from each rank, on every rank.

    Raises FeedError on every rank: `do` failed on a rank.
    """
    caught = None
    try:
        said = b"+" + do().encode()
    except Exception as error:
        said, caught = b"-" + (str(error) or repr(error)).encode(), error
    answers = ranks.gather(said)
    for rank, each in enumerate(answers):
        if each[:1] != b"+":
            raise FeedError(f"rank {rank}: {each[1:].decode()}") from caught
    return [each[1:].decode() for each in answers]


def _node() -> str:
    """Return an identity of the node, equal for ranks that can share memory.

    The identity has the host, the boot, the PID namespace and the user.
    """
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    processes = os.stat("/proc/self/ns/pid").st_ino
    return f"{os.uname().nodename} {boot} {processes} {os.getuid()}"
