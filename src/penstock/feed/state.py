"""Define a feed's request, the plan of an epoch for each rank, and a state to store."""

from __future__ import annotations

import base64
import math
import operator
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError, FeedRefused
from penstock.feed import arguments, plan
from penstock.feed.index import Index, open_index
from penstock.feed.plan import Deal, Order, PartialEpoch, Share
from penstock.feed.read import Options, table_of

__all__ = [
    "BUFFER_BYTES",
    "INSTEAD",
    "MOST_EPOCH",
    "STATE_VERSION",
    "RankEpoch",
    "Request",
    "Stand",
    "check",
    "deal_of",
    "epoch_of",
    "index_of",
    "part_of",
    "refuse_no_state",
    "refuse_too_large",
    "stand_of",
    "state_of",
    "terms_of",
]

STATE_VERSION = 1
STATE_NAMES = ("version", "n_records", "total_bytes", "order", "epoch", "parts", "held")
BUFFER_BYTES = 256 << 20  # ten batches of 256 records of 100 KB


# Bytes of a portion: enough reads to keep a device's queue full, and enough records of 100 KB to
# outweigh a portion's own cost of 0.33 ms of CPU.
READ_AHEAD_BYTES = 16 << 20
ON_ERROR = ("raise", "skip")
MOST_READERS = 16
INSTEAD = "load what state_dict() gave, or begin an epoch with set_epoch"


# Limits for ranks and records of a batch; larger numbers mean a damaged state.
MOST_DEALT = 1 << 24
MOST_EPOCH = (1 << 31) - 1  # share.py stores the epoch + 1 in a word of 32 bits


@dataclass(frozen=True, slots=True)
class Request:
    """A rank's request to a data set; see Feed for the fields."""

    batch_size: int
    order: Order = field(default_factory=Order)
    rank: int = 0
    world_size: int = 1
    tail: str = "short"
    on_error: str = "raise"
    buffer_bytes: int = BUFFER_BYTES
    readers: int = 2
    options: Options = field(default_factory=Options)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("batch_size", 1, MOST_DEALT),
            ("rank", 0, arguments.MOST),
            ("world_size", 1, MOST_DEALT),
            ("buffer_bytes", plan.PAGE_BYTES, arguments.MOST),
            ("readers", 0, MOST_READERS),
        ):
            value = arguments.whole(name, getattr(self, name), least, most)
            object.__setattr__(self, name, value)
        if self.rank >= self.world_size:
            raise FeedError(
                f"rank={self.rank} with world_size={self.world_size}: ranks count from 0, the last "
                f"one is {self.world_size - 1}"
            )
        arguments.one_of("tail", self.tail, plan.TAILS)
        arguments.one_of("on_error", self.on_error, ON_ERROR)

    @property
    def slots(self) -> int:
        """Return the portions in memory at once: the consumed portion and one per reader."""
        return self.readers + 1

    @property
    def slot_bytes(self) -> int:
        return self.buffer_bytes // self.slots


def index_of(
    data: Index | str | os.PathLike[str] | Sequence[Any],
    kind: str | None = None,
    database: bytes | str | None = None,
    rows: bool | None = False,
) -> Index:
    """Return data if an Index, else the index of a path; kind, database: as in open_index.

    rows: whether the caller reads rows of Parquet; None: rows or records.  Raises FeedError: the
    index has no record, or is of Parquet where others are read, or kind or database is given with
    an Index.
    """
    for name, value in (("kind", kind), ("database", database)):
        if isinstance(data, Index) and value is not None:
            raise FeedError(
                f"{name}={value!r} is about a path, and an Index was given, which is made: say it "
                "to open_index"
            )
    index = data if isinstance(data, Index) else open_index(data, kind=kind, database=database)
    if not len(index):
        raise FeedError(f"{index.path}: holds no record; nothing can be read from it")
    if index.kind == "parquet" and rows is False:
        raise FeedRefused(
            f"{index.path} is Parquet, whose rows have no place of their own: RowFeed reads them "
            "in batches, FeedDataset and feed_stream one by one; columns= says which columns"
        )
    if rows and index.kind != "parquet":
        raise FeedRefused(f"{index.path} is {index.kind}; Feed reads its records, it has no rows")
    return index


def check(index: Index, request: Request) -> None:
    """Raise FeedError if a file has changed since it was indexed.

    With on_error="skip", a changed file of a folder fails later, when the record is read.
    """
    if index.is_remote:  # each answer is compared with the index
        return
    if index.kind != "folder" or request.on_error != "skip":
        index.check()


# --- one epoch's plan ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RankEpoch:
    """The plan of a rank for an epoch from batch `first` on; edges: portions' first batches."""

    share: Share
    first: int
    edges: NDArray[np.int64]
    deal: Deal

    @property
    def n_portions(self) -> int:
        return len(self.edges) - 1

    def portion(self, number: int, end: int | None = None) -> NDArray[np.int64]:
        """Return the records of a portion, or of all portions up to `end`, batch after batch."""
        first, last = self.edges[number], self.edges[number + 1 if end is None else end]
        size = self.share.batch_size
        return self.share.records[int(first) * size : int(last) * size]


@dataclass(frozen=True, slots=True, eq=False)
class Stand:
    """The position of a rank: `steps` batches into an epoch, after the parts in `history`.

    held: records in memory at the start of a cache-aware epoch.
    """

    epoch: int = 0
    steps: int = 0
    history: tuple[PartialEpoch, ...] = ()
    held: NDArray[np.bool_] | None = None


def epoch_of(index: Index, request: Request, stand: Stand) -> RankEpoch:
    """Return a rank's plan for the rest of an epoch; equal in every process."""
    table, how = table_of(index), request.order
    whole = plan.order(table, how, stand.epoch, stand.held)
    sequence = plan.remaining(whole, how, stand.epoch, stand.history)
    deal = deal_of(index, request)
    mine = plan.share(sequence, how, stand.epoch, deal, request.rank)
    # The reads of a portion end together.  A portion must have room for several reads, and the
    # buffer for all slots.
    target = max(request.options.coalesce_bytes, READ_AHEAD_BYTES)
    target = min(target, request.slot_bytes // 2)
    edges = plan.portions(
        table,
        mine,
        stand.steps,
        target,
        deal.batches_a_round,
        request.slot_bytes - plan.PAGE_BYTES,  # a node's slot begins with a page of status
        is_merged=request.options.coalesce_bytes > 0,
    )
    return RankEpoch(mine, min(stand.steps, len(mine)), edges, deal)


def refuse_too_large(index: Index, request: Request, epoch: RankEpoch, most_bytes: int) -> None:
    """Raise FeedError before an epoch with a portion larger than most_bytes."""
    table, is_merged = table_of(index), request.options.coalesce_bytes > 0
    excess = plan.too_large(table, epoch.share, epoch.edges, most_bytes, is_merged)
    if excess is None:
        return
    records, room = excess
    largest = int(records[np.argmax(table.length[records])])
    raise FeedError(
        f"{index.path}: a batch of {len(records):,} records needs {room:,} bytes, the largest "
        f"is {index.key(largest)[:80]!r} with {int(table.length[largest]):,}; a portion may "
        f"have {most_bytes:,}: raise buffer_bytes, or lower batch_size"
    )


def deal_of(index: Index, request: Request) -> Deal:
    """Return the deal of a data set to the ranks of a request."""
    a_round = plan.round_of(
        table_of(index),
        request.order,
        request.world_size,
        request.batch_size,
        request.options.coalesce_bytes,
        request.slot_bytes * 3 // 4,
    )
    return Deal(request.world_size, request.batch_size, a_round, request.tail)


def state_of(index: Index, request: Request, stand: Stand) -> dict[str, Any]:
    """Return a position as numbers and strings, for any format."""
    parts = (*stand.history, PartialEpoch(deal_of(index, request), stand.steps))
    held = None
    if stand.held is not None:
        packed = zlib.compress(np.packbits(stand.held).tobytes())
        held = base64.b64encode(packed).decode()
    return {
        "version": STATE_VERSION,
        "n_records": len(index),
        "total_bytes": index.total_bytes,
        "order": _as_listed(request.order),
        "epoch": stand.epoch,
        "parts": [
            [p.deal.world_size, p.deal.batch_size, p.deal.batches_a_round, p.deal.tail, p.steps]
            for p in parts
        ],
        "held": held,
    }


def _as_listed(order: Order) -> list[Any]:
    return [order.shuffle, order.seed, order.block_bytes, order.pool_bytes]


def refuse_no_state(state: Any) -> None:
    """Raise FeedError if `state` is not from state_dict()."""
    if not isinstance(state, Mapping):
        raise FeedError(f"{arguments.shown(state)} is no state of a feed; {INSTEAD}")
    lacking = [name for name in STATE_NAMES if name not in state]
    if lacking:
        raise FeedError(f"this is no state of a feed, it has no {lacking[0]!r}; {INSTEAD}")


def terms_of(state: dict[str, Any]) -> tuple[int, int, list[Any], int, list[Any]]:
    """Return the records and bytes of the data set, the parts (one or more), the epoch and the
    order in a state.  Raises FeedError: the state is damaged, or of another version."""
    refuse_no_state(state)
    try:
        if state["version"] != STATE_VERSION:
            raise FeedError(f"a feed's state of version {state['version']}; not known here")
        n, total = operator.index(state["n_records"]), operator.index(state["total_bytes"])
        parts = [part_of(each) for each in state["parts"]]
        epoch, order = operator.index(state["epoch"]), list(state["order"])
        if not parts or not 0 <= epoch <= MOST_EPOCH:
            raise ValueError(f"epoch {epoch}, {len(parts)} parts")
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise FeedError(f"this state of a feed is damaged ({error}); {INSTEAD}") from error
    return n, total, parts, epoch, order


def stand_of(index: Index, request: Request, state: dict[str, Any]) -> Stand:
    """Return the position in a state.

    Raises FeedError: the state is damaged, or of another data set or order.
    """
    n, total, parts, epoch, order = terms_of(state)
    last, packed = parts.pop(), state["held"]
    if (n, total) != (len(index), index.total_bytes):
        raise FeedError(
            f"the state is of a data set of {n:,} records and {total:,} bytes, {index.path} has "
            f"{len(index):,} and {index.total_bytes:,}; begin the epoch anew with set_epoch"
        )
    if order != _as_listed(request.order):
        raise FeedError(
            f"the state is of the order {order}, this feed has {_as_listed(request.order)}; "
            "an epoch cannot change its order half way"
        )
    _refuse_impossible((*parts, last), n, request.order, epoch)
    held = _unpacked(packed, n) if packed else None
    if last.deal == deal_of(index, request):
        return Stand(epoch, last.steps, tuple(parts), held)
    return Stand(epoch, 0, (*parts, last), held)


def part_of(each: Sequence[Any]) -> PartialEpoch:
    world_size, batch_size, a_round, tail, steps = each
    numbers = [operator.index(number) for number in (world_size, batch_size, a_round)]
    steps = operator.index(steps)
    is_deal = min(numbers) >= 1 and max(numbers) <= MOST_DEALT and tail in plan.TAILS
    if not is_deal or math.prod(numbers) > arguments.MOST or steps < 0:
        raise ValueError(f"part {arguments.shown(each)}")
    return PartialEpoch(Deal(numbers[0], numbers[1], numbers[2], tail), steps)


def _refuse_impossible(parts: Sequence[PartialEpoch], n: int, how: Order, epoch: int) -> None:
    """Raise FeedError if a state has more batches taken than exist.

    The rest of the epoch would be silently empty.
    """
    for number, part in enumerate(parts):
        most = plan.n_batches(n, part.deal, part.deal.world_size - 1)  # the last rank has most
        if part.steps > most:
            raise FeedError(
                f"this state of a feed is damaged ({part.steps:,} batches were taken of a rank's "
                f"{most:,}); {INSTEAD}"
            )
        if number + 1 < len(parts):
            n = len(plan.remaining(np.arange(n), how, epoch, [part]))


def _unpacked(packed: str, n: int) -> NDArray[np.bool_]:
    try:
        most = n // 8 + 1
        raw = zlib.decompressobj().decompress(base64.b64decode(packed), most)
    except (ValueError, TypeError, zlib.error) as error:
        raise FeedError(f"what memory held is damaged in this state: {error}") from error
    bits = np.unpackbits(np.frombuffer(raw, np.uint8))[:n].astype(bool)
    if len(bits) != n:
        raise FeedError("what memory held is cut short in this state; begin with set_epoch")
    return bits
