"""Plan the order of rows in row groups, and each rank's share; arithmetic only, no file access.

    pieces      parts of row groups in the sequence of an epoch; at first whole ones
    share       the pieces of one rank, an equal number of rows for each
    windows     neighbouring pieces that are in memory together; their rows are mixed

Equal arguments give equal results on every rank, so ranks need no communication.  Memory is by row
group, not by row, but for the rows of one window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from penstock.feed.plan import Order, PartialEpoch, permutation

__all__ = [
    "Pieces",
    "RowShare",
    "count",
    "mixed",
    "n_batches",
    "remaining",
    "share",
    "whole",
    "windows",
]

# (n, 3): row group, first row, end.  Rows count from the row group's first row.
Pieces = NDArray[np.int64]

PERMUTED_GROUPS = 4  # purposes of a seed's numbers, beside those of plan
PERMUTED_ROWS = 5
NOTHING: Pieces = np.zeros((0, 3), np.int64)


def whole(rows: NDArray[np.int64], how: Order, epoch: int) -> Pieces:
    """Return all row groups of an epoch, each once, without empty ones.  rows: of each group."""
    n = len(rows)
    chosen = np.arange(n)
    if how.shuffle != "none":
        chosen = permutation(n, how.seed, epoch, PERMUTED_GROUPS)
    pieces = np.stack([chosen, np.zeros(n, np.int64), rows[chosen]], axis=1)
    whole_pieces: Pieces = pieces[pieces[:, 2] > 0]
    return whole_pieces


def count(pieces: Pieces) -> int:
    """Return the number of rows."""
    return int((pieces[:, 2] - pieces[:, 1]).sum())


def _cut(pieces: Pieces, first: int, end: int) -> Pieces:
    """Return the rows from position `first` to `end` of a sequence."""
    ends = np.cumsum(pieces[:, 2] - pieces[:, 1])
    begins = ends - (pieces[:, 2] - pieces[:, 1])
    is_in = (ends > first) & (begins < end)
    inner: Pieces = pieces[is_in].copy()
    if len(inner):
        inner[0, 1] += max(0, first - int(begins[is_in][0]))
        inner[-1, 2] -= max(0, int(ends[is_in][-1]) - end)
    return inner


@dataclass(frozen=True, slots=True, eq=False)
class RowShare:
    """The pieces of one rank.

    n_own: pieces that are no repetition; later ones fill the last batch.  rest: rows that the rank
    leaves out.
    """

    pieces: Pieces
    n_own: int
    rest: Pieces


def share(pieces: Pieces, world_size: int, batch_size: int, tail: str, rank: int) -> RowShare:
    """Return a rank's share: neighbouring pieces, cut at most within two row groups."""
    n = count(pieces)
    own = _cut(pieces, n * rank // world_size, n * (rank + 1) // world_size)
    if tail == "drop":
        kept = n // world_size // batch_size * batch_size
        return RowShare(_cut(own, 0, kept), len(_cut(own, 0, kept)), _cut(own, kept, n))
    mine, n_own = own, len(own)
    if tail == "pad" and n:
        most = (n + world_size - 1) // world_size
        wanted = (most + batch_size - 1) // batch_size * batch_size
        while (lacking := wanted - count(mine)) > 0:
            mine = np.concatenate((mine, _cut(own if n_own else pieces, 0, lacking)))
    return RowShare(mine, n_own, NOTHING)


def n_batches(pieces: Pieces, world_size: int, batch_size: int, tail: str, rank: int) -> int:
    """Return a rank's number of batches."""
    return -(-count(share(pieces, world_size, batch_size, tail, rank).pieces) // batch_size)


def windows(pieces: Pieces, cost: NDArray[np.int64], most: int) -> list[int]:
    """Return the first piece of each window, and the end of the last one.

    A window's row groups cost at most `most` together, or it is of one row group.
    """
    edges, inside, spent = [0], set[int](), 0
    for number, group in enumerate(pieces[:, 0].tolist()):
        if group in inside:
            continue
        price = int(cost[group])
        if inside and spent + price > most:
            edges.append(number)
            inside, spent = set(), 0
        inside.add(group)
        spent += price
    return [*edges, len(pieces)] if len(pieces) else [0]


def mixed(pieces: Pieces, how: Order, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (piece, row) of each row of a window, in the sequence of the batches."""
    counts = pieces[:, 2] - pieces[:, 1]
    piece = np.repeat(np.arange(len(pieces)), counts)
    row = np.arange(len(piece)) - np.repeat(np.cumsum(counts) - counts, counts)
    row += np.repeat(pieces[:, 1], counts)
    if how.shuffle == "none" or not len(piece):
        return piece, row
    begin = pieces[0, :2].tolist()
    chosen = permutation(len(piece), how.seed, epoch, PERMUTED_ROWS, *begin)
    return piece[chosen], row[chosen]


def remaining(
    pieces: Pieces,
    how: Order,
    epoch: int,
    history: Sequence[PartialEpoch],
    cost: NDArray[np.int64],
    most: int,
) -> Pieces:
    """Return the rest of an epoch after parts were read under other deals."""
    for part in history:
        left = []
        for rank in range(part.deal.world_size):
            deal = part.deal
            mine = share(pieces, deal.world_size, deal.batch_size, deal.tail, rank)
            left += [_untaken(mine, how, epoch, part.steps * deal.batch_size, cost, most)]
            left += [mine.rest]
        pieces = np.concatenate(left)
    return pieces


def _untaken(
    mine: RowShare, how: Order, epoch: int, taken: int, cost: NDArray[np.int64], most: int
) -> Pieces:
    edges = windows(mine.pieces, cost, most)
    for first, end in pairwise(edges):
        inside = mine.pieces[first:end]
        n = count(inside)
        if taken >= n:
            taken -= n
            continue
        piece, row = (each[taken:] for each in mixed(inside, how, epoch))
        is_own = piece + first < mine.n_own
        sort = np.lexsort((row[is_own], piece[is_own]))
        left = _runs(inside, piece[is_own][sort], row[is_own][sort])
        return np.concatenate((left, mine.pieces[end : max(end, mine.n_own)]))
    return NOTHING


def _runs(pieces: Pieces, piece: NDArray[np.int64], row: NDArray[np.int64]) -> Pieces:
    """Return sorted rows as pieces."""
    if not len(piece):
        return NOTHING
    is_first = np.append(True, (piece[1:] != piece[:-1]) | (row[1:] != row[:-1] + 1))
    starts = np.flatnonzero(is_first)
    ends = np.append(starts[1:], len(piece)) - 1
    return np.stack([pieces[piece[starts], 0], row[starts], row[ends] + 1], axis=1)
