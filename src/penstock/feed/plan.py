"""Which record comes when, to whom, and by which reads.  Arithmetic only: opens and reads nothing.

    order      all records of an epoch in their sequence, from (seed, epoch)
    share      which of them one rank gets, batch by batch, from (world, batch, rank)
    windows    the batches that are fetched together
    layout     a window's reads, merged and sorted, and where each record lands in memory

The same numbers in give the same numbers out, on every rank: nobody has to be asked.

A round is what all ranks read between them before the next begins: each gets `batches_a_round`
batches of neighbours in the order, so that neighbours on the disk are read by one rank in one
request (LMDBIO's coalescing).  What is left at the end is dealt out evenly: see TAILS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed import arguments

__all__ = [
    "MERGED_WHOLLY",
    "ORDERS",
    "PAGE_BYTES",
    "TAILS",
    "Deal",
    "Depth",
    "Order",
    "PartialEpoch",
    "PlanTable",
    "Share",
    "WindowLayout",
    "all_fit",
    "fitted",
    "gap_of",
    "layout",
    "most_room",
    "n_batches",
    "order",
    "remaining",
    "round_of",
    "share",
    "too_large",
    "windows",
]

Records = NDArray[np.int64]

ORDERS = ("none", "block", "global", "cache-aware")
# short: every record once; the last batches may be smaller, and ranks may differ by one batch.
# drop: only full batches, the same number on every rank; fewer than world x batch records are left.
# pad: full batches, the same number on every rank; the first records of the order come twice.
TAILS = ("short", "drop", "pad")

PAGE_BITS = 12
PAGE_BYTES = 1 << PAGE_BITS  # what O_DIRECT wants of offsets; native/feed/feed.h: FEED_PAGE
# At 200 MB/s and 2,000 requests a second a request costs as much as 100 KB.
MOST_GAP_BYTES = 64 << 10
# The first windows are smaller: on slow storage a batch comes sooner, and less is read before the
# depth fits it.
SOON, SOONER = 4, 4
MANY = 1 << 62  # windows: all of them
MERGED_WHOLLY = 1 << 62  # a target that no read reaches: as little memory as merging can do with
MOST_SEED = (1 << 64) - 1  # torch.initial_seed() gives 64 bits
PERMUTED_BLOCKS = 1  # what the numbers of a seed are for: a new use needs a new number
PERMUTED_RECORDS = 2
PERMUTED_WINDOW = 3


@dataclass(frozen=True, slots=True, eq=False)
class PlanTable:
    """What the plan needs of an index: three arrays of one length."""

    file: NDArray[np.uint32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def mean_bytes(self) -> float:
        return float(self.length.mean()) if len(self) else 0.0


@dataclass(frozen=True, slots=True)
class Order:
    """How an epoch's records follow each other.

    shuffle: one of ORDERS.  block_bytes: of contiguous records that stay together until they are
    in memory; pool_bytes: of what is mixed there.
    """

    shuffle: str = "none"
    seed: int = 0
    block_bytes: int = 1 << 20
    pool_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        arguments.one_of("shuffle", self.shuffle, ORDERS)
        for name, least, most in (
            ("seed", 0, MOST_SEED),
            ("block_bytes", 1, arguments.MOST),
            ("pool_bytes", 1, arguments.MOST),
        ):
            value = arguments.whole(name, getattr(self, name), least, most)
            object.__setattr__(self, name, value)


@dataclass(frozen=True, slots=True)
class Deal:
    """How an order is dealt out to ranks.  tail: one of TAILS."""

    world_size: int
    batch_size: int
    batches_a_round: int = 1
    tail: str = "short"


@dataclass(frozen=True, slots=True)
class PartialEpoch:
    """Of an epoch that was begun under another deal: every rank has taken `steps` batches."""

    deal: Deal
    steps: int


# --- order ---------------------------------------------------------------------------------------


def order(
    table: PlanTable, how: Order, epoch: int, held: NDArray[np.bool_] | None = None
) -> Records:
    """All records of an epoch, each once.  held: which of them memory has, for `cache-aware`."""
    n = len(table)
    if how.shuffle == "none":
        return np.arange(n)
    if how.shuffle == "block":
        return _by_blocks(table, how, epoch)
    permuted = _permutation(n, how.seed, epoch, PERMUTED_RECORDS)
    if how.shuffle == "global" or held is None:
        return permuted
    if len(held) != n:
        raise FeedError(f"held says {len(held):,} records, the data set has {n:,}")
    # What memory holds comes while it still does.  Both halves are a random sample of their kind.
    is_held = held[permuted]
    return np.concatenate((permuted[is_held], permuted[~is_held]))


def _permutation(n: int, seed: int, epoch: int, use: int, *more: int) -> Records:
    """A random sequence of n numbers, the same on every machine: numpy promises that of the raw
    stream of a bit generator, and of no shuffle."""
    raw = np.random.Philox(np.random.SeedSequence([seed, epoch, use, *more])).random_raw(n)
    return _sorted_by(raw)


def _sorted_by(raw: NDArray[np.uint64]) -> Records:
    """Places by their numbers, equal ones as they stand.  The stable sort takes several times as
    long, and no two of a million random numbers are equal but once in forty million times."""
    found = np.argsort(raw)
    ordered = raw[found]
    if (ordered[1:] == ordered[:-1]).any():
        return np.argsort(raw, kind="stable")
    return found


def _by_blocks(table: PlanTable, how: Order, epoch: int) -> Records:
    """Blocks of neighbours on the disk in random sequence; inside a block, as they lie."""
    lies = np.lexsort((table.offset, table.file))
    if not len(lies):
        return lies
    starts = _block_starts(table, lies, how.block_bytes)
    ends = np.append(starts[1:], len(lies))
    chosen = _permutation(len(starts), how.seed, epoch, PERMUTED_BLOCKS)
    lengths = (ends - starts)[chosen]
    # For each place in the result: where its block begins on the disk, plus how far in it is.
    begun = np.cumsum(lengths) - lengths
    return lies[np.repeat(starts[chosen] - begun, lengths) + np.arange(len(lies))]


def _block_starts(table: PlanTable, lies: Records, block_bytes: int) -> Records:
    """Where blocks begin, as places in `lies`: at each file, and each block_bytes of one."""
    file = table.file[lies]
    is_first = np.append(True, file[1:] != file[:-1])
    before = np.cumsum(table.length[lies]) - table.length[lies]  # bytes of all records in front
    in_file = before - np.maximum.accumulate(np.where(is_first, before, 0))
    piece = in_file // block_bytes
    # Files smaller than a block share one: an image folder would have blocks of one record.
    if is_first.mean() > 0.5:
        piece = before // block_bytes
        is_first = np.arange(len(lies)) == 0
    is_start = is_first | np.append(True, piece[1:] != piece[:-1])
    return np.flatnonzero(is_start)


# --- share ---------------------------------------------------------------------------------------


def round_of(
    table: PlanTable,
    how: Order,
    world_size: int,
    batch_size: int,
    target_bytes: int,
    most_bytes: int,
) -> int:
    """How many batches a rank takes at once: enough neighbours for one read of target_bytes, or
    for the pool that is mixed.  A power of two, of no more than about most_bytes, and no more than
    the data set has rounds for."""
    if how.shuffle in ("global", "cache-aware") or not len(table):
        return 1  # there are no neighbours
    if how.shuffle == "block":
        target_bytes = how.pool_bytes
    elif world_size == 1:
        return 1  # the next batch is the neighbour
    batch_bytes = max(1.0, batch_size * table.mean_bytes)
    most = min(len(table) // (world_size * batch_size), most_bytes / batch_bytes)
    power = 1
    while power * batch_bytes < target_bytes and 2 * power <= most:
        power *= 2
    return power


def _dealt(n: int, deal: Deal, rank: int) -> Records:
    """The places in an order of n records that a rank gets, in its sequence."""
    world, batch = deal.world_size, deal.batch_size
    in_round = batch * deal.batches_a_round
    rounds = n // (world * in_round)
    begins = np.arange(rounds) * (world * in_round) + rank * in_round
    full = (begins[:, None] + np.arange(in_round if rounds else 0)).reshape(-1)
    first = rounds * world * in_round
    left = n - first
    if deal.tail == "short":
        edges = first + left * np.arange(world + 1) // world
        return np.concatenate((full, np.arange(edges[rank], edges[rank + 1])))
    batches = left // (world * batch) if deal.tail == "drop" else -(-left // (world * batch))
    share = batches * batch
    places = first + rank * share + np.arange(share)
    return np.concatenate((full, places % n if n else places[:0]))


def n_batches(n: int, deal: Deal, rank: int) -> int:
    """Batches that a rank gets of an order of n records."""
    return -(-len(_dealt(n, deal, rank)) // deal.batch_size)


def remaining(
    sequence: Records, how: Order, epoch: int, history: Sequence[PartialEpoch]
) -> Records:
    """What is left of an order after parts of it were taken under other deals."""
    for part in history:
        is_taken = np.zeros(len(sequence), bool)
        for rank in range(part.deal.world_size):
            places = _places(len(sequence), how, epoch, part.deal, rank)
            is_taken[places[: part.steps * part.deal.batch_size]] = True
        sequence = sequence[~is_taken]
    return sequence


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """What one rank reads in an epoch: record numbers, batch i is records[ends[i-1]:ends[i]]."""

    records: Records
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.records) // self.batch_size)

    def batch(self, number: int) -> Records:
        return self.records[number * self.batch_size : (number + 1) * self.batch_size]


def share(sequence: Records, how: Order, epoch: int, deal: Deal, rank: int) -> Share:
    """The share of a rank of an epoch, or of what remains of one."""
    return Share(sequence[_places(len(sequence), how, epoch, deal, rank)], deal.batch_size)


def _places(n: int, how: Order, epoch: int, deal: Deal, rank: int) -> Records:
    """The places that a rank gets.  Under `block` those of a round are mixed: that is the pool."""
    places = _dealt(n, deal, rank)
    if how.shuffle == "block" and len(places):
        return _mixed(places, how, epoch, deal.batch_size * deal.batches_a_round)
    return places


def _mixed(places: Records, how: Order, epoch: int, pool: int) -> Records:
    mixed = np.empty_like(places)
    for start in range(0, len(places), pool):
        # By the place, not by the rank: a pool is mixed in the same way whoever reads it.
        part = places[start : start + pool]
        seen = _permutation(len(part), how.seed, epoch, PERMUTED_WINDOW, int(part[0]))
        mixed[start : start + pool] = part[seen]
    return mixed


# --- windows and reads ---------------------------------------------------------------------------


def windows(
    table: PlanTable,
    mine: Share,
    first: int,
    target_bytes: int,
    a_round: int,
    most_bytes: int,
    is_merged: bool = True,
) -> Records:
    """Where windows begin, as batch numbers from `first` on, and where the last one ends.

    A window is as many batches as make target_bytes in memory, at least one, the first ones of
    less; it never crosses a round, and begins with one where a round is larger than a batch: a pool
    is read as a whole, unless it needs more than most_bytes.  is_merged: records of one page are
    read together.
    """
    n_batches = len(mine)
    if first >= n_batches:
        return np.array([n_batches])
    upto = _room_upto(table, mine, is_merged)
    if a_round == 1:
        edges = _filled(upto, first, n_batches, target_bytes // SOONER, SOON)
        edges += _filled(upto, edges[-1], n_batches, target_bytes)[1:]
        return np.array(edges, np.int64)
    edges = [first]
    while edges[-1] < n_batches:
        start = edges[-1]
        end = min((start // a_round + 1) * a_round, n_batches)
        if upto[end] - upto[start] + PAGE_BYTES > most_bytes:
            records = mine.records[start * mine.batch_size : end * mine.batch_size]
            if not is_merged or _pages_bytes(table, records) > most_bytes:
                edges += _filled(upto, start, end, min(target_bytes, most_bytes))[1:]
                continue
        edges.append(end)
    return np.array(edges, np.int64)


def all_fit(table: PlanTable, batch_size: int, most_bytes: int) -> bool:
    """Whether any batch has room in most_bytes, whatever the order: no need to look at each."""
    return batch_size * (int(table.length.max(initial=0)) + 2 * PAGE_BYTES) <= most_bytes


def too_large(
    table: PlanTable, mine: Share, edges: NDArray[np.int64], most_bytes: int, is_merged: bool = True
) -> tuple[Records, int] | None:
    """The first window whose records need more than most_bytes however they are merged, and what
    they need; None: each has room.  Windows of several batches have it by their making."""
    size = mine.batch_size
    if all_fit(table, size, most_bytes):
        return None
    alone = edges[:-1][np.diff(edges) == 1]
    upto = np.concatenate(([0], np.cumsum(table.length[mine.records] + 2 * PAGE_BYTES)))
    n = len(mine.records)
    needs = upto[np.minimum((alone + 1) * size, n)] - upto[np.minimum(alone * size, n)]
    for batch in alone[needs > most_bytes].tolist():
        records = mine.records[batch * size : (batch + 1) * size]
        room = _pages_bytes(table, records) if is_merged else layout(table, records, 0, -1).room
        if room > most_bytes:
            return records, room
    return None


def _filled(
    upto: NDArray[np.int64], first: int, last: int, target_bytes: int, most: int = MANY
) -> list[int]:
    """Batches first to last in windows of target_bytes at the most, or of one batch; the first
    `most` of these windows."""
    edges = [first]
    target_bytes -= PAGE_BYTES  # the page that a window's first record shares with those before it
    while edges[-1] < last and len(edges) <= most:
        start = edges[-1]
        end = int(np.searchsorted(upto, upto[start] + target_bytes, side="right")) - 1
        edges.append(min(max(end, start + 1), last))
    return edges


def _room_upto(table: PlanTable, mine: Share, is_merged: bool) -> NDArray[np.int64]:
    """Bytes of memory that all batches before one need at the most, for each batch and the end: a
    record needs whole pages, and shares one only with the record before it."""
    records = mine.records
    page, last = _pages(table, records)
    n_pages = last - page + 1
    if is_merged:
        file = table.file[records]
        is_near = (file[1:] == file[:-1]) & (page[1:] <= last[:-1]) & (last[1:] >= page[:-1])
        n_pages[1:] -= is_near  # one of them at the least was there
    ends = np.minimum(np.arange(len(mine) + 1) * mine.batch_size, len(records))
    upto = np.zeros(len(ends), np.int64)
    upto[1:] = np.cumsum(n_pages)[ends[1:] - 1] * PAGE_BYTES
    return upto


def _pages(table: PlanTable, records: Records) -> tuple[Records, Records]:
    """The first and the last page that each record has a byte in."""
    offset = table.offset[records]
    last = np.maximum(table.length[records], 1)
    last += offset
    last -= 1
    last >>= PAGE_BITS  # a division takes five times as long, and this is for each record
    return offset >> PAGE_BITS, last


def _pages_bytes(table: PlanTable, records: Records) -> int:
    """What records that are merged as far as pages touch need in memory."""
    return layout(table, records, MERGED_WHOLLY, 0).room


@dataclass(frozen=True, slots=True, eq=False)
class WindowLayout:
    """The reads of a window, sorted by file and offset, and where all of it lies in memory.

    file, offset, length, place: of each read, place: bytes from the window's start.  at: of each
    record, in the sequence that was asked for.  read: which read brings a record.  room: bytes that
    the window needs.  Each read has its pages to itself, and its place in them is that of its
    offset: so it can be read with O_DIRECT.
    """

    file: NDArray[np.uint32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    place: NDArray[np.int64]
    at: NDArray[np.int64]
    read: NDArray[np.int64]
    room: int


def gap_of(table: PlanTable) -> int:
    """What may be read for nothing between two records: as much as a record has on average, so that
    a merged read is of records by half at the least; no less than a device reads anyhow, and no
    more than a request costs."""
    return min(MOST_GAP_BYTES, max(PAGE_BYTES, int(table.mean_bytes)))


def layout(table: PlanTable, records: Records, target_bytes: int, gap_bytes: int) -> WindowLayout:
    """Merges what lies within gap_bytes of each other into reads of about target_bytes.

    gap_bytes 0 and more: also what lies in one page, which the device gives as a whole; -1: none.
    """
    file, offset, length = table.file[records], table.offset[records], table.length[records]
    if not len(records):
        none = np.zeros(0, np.int64)
        return WindowLayout(file, none, none, none, none, none, 0)
    is_one_file = (file == file[0]).all()
    sort = np.argsort(offset) if is_one_file else np.lexsort((offset, file))
    file, offset, end = file[sort], offset[sort], (offset + length)[sort]
    is_other = file[1:] != file[:-1]
    reach = _reach(is_other, end)[:-1]  # the furthest byte of the file so far: records may overlap
    is_new = np.ones(len(records), bool)
    np.greater(offset[1:] - reach, gap_bytes, out=is_new[1:])
    if gap_bytes >= 0:
        is_new[1:] &= offset[1:] >> PAGE_BITS > (reach - 1) >> PAGE_BITS
    is_new[1:] |= is_other
    if not is_new.all():
        run_start = offset[is_new][np.cumsum(is_new) - 1]
        piece = (offset - run_start) // max(1, target_bytes)
        is_new[1:] |= piece[1:] != piece[:-1]
    starts = np.flatnonzero(is_new)
    read_of = np.cumsum(is_new) - 1
    read_offset = offset[starts]
    read_end = np.maximum.reduceat(end, starts)
    lead = read_offset & (PAGE_BYTES - 1)
    pages = (lead + read_end - read_offset + PAGE_BYTES - 1) & -PAGE_BYTES
    place = np.cumsum(pages) - pages + lead
    at, read = np.empty_like(offset), np.empty_like(read_of)
    at[sort] = place[read_of] + offset - read_offset[read_of]
    read[sort] = read_of
    return WindowLayout(
        file=file[starts],
        offset=read_offset,
        length=read_end - read_offset,
        place=place,
        at=at,
        read=read,
        room=int(pages.sum()),
    )


def _reach(is_other: NDArray[np.bool_], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The running maximum of `end` within each file; is_other: than the one before it."""
    if not is_other.any():
        return np.maximum.accumulate(end)
    # One pass: each file's ends are lifted above those of the files before it.
    lift = np.zeros_like(end)
    lift[1:] = np.cumsum(is_other) * (int(end.max()) + 1)
    reach: NDArray[np.int64] = np.maximum.accumulate(end + lift) - lift
    return reach


def fitted(
    table: PlanTable, records: Records, target_bytes: int, gap_bytes: int, most_bytes: int
) -> WindowLayout:
    """The layout, with smaller gaps where it needs more than most_bytes; if none will do, the one
    that needs the least."""
    if not target_bytes:
        return layout(table, records, 0, -1)
    found = layout(table, records, target_bytes, gap_bytes)
    for target, gap in ((target_bytes, PAGE_BYTES), (target_bytes, 0), (MERGED_WHOLLY, 0)):
        if found.room <= most_bytes:
            break
        if gap < gap_bytes or target > target_bytes:
            found = layout(table, records, target, gap)
    return found


def most_room(table: PlanTable, records: Records) -> int:
    """What `fitted` needs at the most to keep to most_bytes: each record the pages it touches."""
    return int(table.length[records].sum()) + 2 * PAGE_BYTES * len(records)


# --- depth ---------------------------------------------------------------------------------------

GAIN_WORTH_MORE = 1.1  # less is a device's noise; tiers.py climbs by the same rule
READS_JUDGED = 64  # of a depth, before it is judged
LATENCY_MEANS_QUEUE = 1.5  # twice the depth at so much more latency per read: they only wait longer
LEAST_DEPTH, MOST_DEPTH = 4, 128


@dataclass(frozen=True, slots=True)
class Depth:
    """How many requests are in flight: doubled while that brings more, until latency rises.

    best_bps: the rate at the depth before; latency_s: a read's, there.  is_settled: no more is
    tried.  reads, seconds, read_bytes, waited_s: measured at this depth so far.
    """

    value: int = 8
    best_bps: float = 0.0
    latency_s: float = 0.0
    is_settled: bool = False
    reads: int = 0
    seconds: float = 0.0
    read_bytes: int = 0
    waited_s: float = 0.0

    def after(self, reads: int, read_bytes: int, seconds: float, waited_s: float) -> Depth:
        """After a window: what was not in memory, how long it took, and all reads' latencies."""
        if self.is_settled or not reads:
            return self
        seen = replace(
            self,
            reads=self.reads + reads,
            seconds=self.seconds + seconds,
            read_bytes=self.read_bytes + read_bytes,
            waited_s=self.waited_s + waited_s,
        )
        return seen if seen.reads < max(READS_JUDGED, 4 * self.value) else seen._judged()

    def _judged(self) -> Depth:
        bps = self.read_bytes / max(self.seconds, 1e-9)
        latency_s = self.waited_s / self.reads
        is_first = not self.best_bps
        is_gain = bps > GAIN_WORTH_MORE * self.best_bps
        is_queue = latency_s > LATENCY_MEANS_QUEUE * self.latency_s
        if is_first or is_gain or not is_queue:
            at_end = self.value >= MOST_DEPTH
            more = min(MOST_DEPTH, 2 * self.value)
            return Depth(more, max(bps, self.best_bps), latency_s, is_settled=at_end)
        return Depth(max(LEAST_DEPTH, self.value // 2), self.best_bps, self.latency_s, True)
