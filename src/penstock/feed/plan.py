"""Plan the order of records, each rank's share, and the reads; arithmetic only, no file access.

    order      all records of an epoch in sequence, from (seed, epoch)
    share      the records of one rank, batch by batch, from (world, batch, rank)
    portions    the batches fetched together
    layout     a portion's reads, merged and sorted, and each record's offset in memory

Equal arguments give equal results on every rank, so ranks need no communication.

A round is a part of the order read by all ranks before the next round.  Each rank reads
`batches_a_round` batches of neighbours in the order, so neighbours on disk are read by one rank in
one request (LMDBIO's coalescing).  Records after the last round are dealt evenly: see TAILS.
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
    "PortionLayout",
    "Share",
    "all_fit",
    "fitted",
    "gap_of",
    "layout",
    "most_room",
    "n_batches",
    "order",
    "permutation",
    "portions",
    "remaining",
    "round_of",
    "share",
    "too_large",
]

Records = NDArray[np.int64]

ORDERS = ("none", "block", "global", "cache-aware")
# short: every record once; the last batches may be smaller, and ranks may differ by one batch.
# drop: only full batches, in equal numbers per rank; fewer than world x batch records are dropped.
# pad: full batches, in equal numbers per rank; the first records of the order come twice.
TAILS = ("short", "drop", "pad")

PAGE_BITS = 12
PAGE_BYTES = 1 << PAGE_BITS  # alignment for O_DIRECT; native/feed/feed.h: FEED_PAGE
# At 200 MB/s and 2,000 requests/s, a request costs as much as 100 KB.
MOST_GAP_BYTES = 64 << 10
# The first portions are smaller: on slow storage the first batch comes sooner, and fewer bytes are
# read before the depth is adapted.
SOON, SOONER = 4, 4
MANY = 1 << 62  # no limit on the number of portions
MERGED_WHOLLY = 1 << 62  # above any read's size: merges into the least memory
MOST_SEED = (1 << 64) - 1  # torch.initial_seed() returns 64 bits
PERMUTED_BLOCKS = 1  # purpose of a seed's numbers: a new use needs a new number
PERMUTED_RECORDS = 2
PERMUTED_PORTION = 3


@dataclass(frozen=True, slots=True, eq=False)
class PlanTable:
    """The columns of an index for the planner: three arrays of equal length."""

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
    """The order of an epoch's records.

    shuffle: one of ORDERS.  block_bytes: size of contiguous blocks, kept together until in memory.
    pool_bytes: size of the pool mixed in memory.
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
    """The deal of an order to ranks; tail: one of TAILS."""

    world_size: int
    batch_size: int
    batches_a_round: int = 1
    tail: str = "short"


@dataclass(frozen=True, slots=True)
class PartialEpoch:
    """The part of an epoch read under another deal: `steps` batches by every rank."""

    deal: Deal
    steps: int


# --- order ---------------------------------------------------------------------------------------


def order(
    table: PlanTable, how: Order, epoch: int, held: NDArray[np.bool_] | None = None
) -> Records:
    """Return all records of an epoch, each once.

    held: a flag per record in memory, for `cache-aware`.
    """
    n = len(table)
    if how.shuffle == "none":
        return np.arange(n)
    if how.shuffle == "block":
        return _by_blocks(table, how, epoch)
    permuted = permutation(n, how.seed, epoch, PERMUTED_RECORDS)
    if how.shuffle == "global" or held is None:
        return permuted
    if len(held) != n:
        raise FeedError(f"held says {len(held):,} records, the data set has {n:,}")
    # Read records in memory first, before eviction.  Each half is a random sample of its kind.
    is_held = held[permuted]
    return np.concatenate((permuted[is_held], permuted[~is_held]))


def permutation(n: int, seed: int, epoch: int, use: int, *more: int) -> Records:
    """Return a random sequence of n numbers, equal on every machine.

    numpy guarantees the raw stream of a bit generator across versions, but no shuffle.
    """
    raw = np.random.Philox(np.random.SeedSequence([seed, epoch, use, *more])).random_raw(n)
    return _sorted_by(raw)


def _sorted_by(raw: NDArray[np.uint64]) -> Records:
    """Return a stable argsort, by the unstable sort if no numbers are equal.

    The stable sort takes several times as long.  Two of a million random numbers are equal only
    once in forty million cases.
    """
    places = np.argsort(raw)
    ordered = raw[places]
    if (ordered[1:] == ordered[:-1]).any():
        return np.argsort(raw, kind="stable")
    return places


def _by_blocks(table: PlanTable, how: Order, epoch: int) -> Records:
    """Return blocks of neighbours on disk in random sequence; inside a block, in disk order."""
    lies = np.lexsort((table.offset, table.file))
    if not len(lies):
        return lies
    starts = _block_starts(table, lies, how.block_bytes)
    ends = np.append(starts[1:], len(lies))
    chosen = permutation(len(starts), how.seed, epoch, PERMUTED_BLOCKS)
    lengths = (ends - starts)[chosen]
    # For each position: the start of its block on disk plus the offset in the block.
    begun = np.cumsum(lengths) - lengths
    return lies[np.repeat(starts[chosen] - begun, lengths) + np.arange(len(lies))]


def _block_starts(table: PlanTable, lies: Records, block_bytes: int) -> Records:
    """Return the starts of blocks as positions in `lies`: per file and per block_bytes."""
    file = table.file[lies]
    is_first = np.append(True, file[1:] != file[:-1])
    before = np.cumsum(table.length[lies]) - table.length[lies]  # bytes of all earlier records
    in_file = before - np.maximum.accumulate(np.where(is_first, before, 0))
    piece = in_file // block_bytes
    # Files smaller than a block share a block; else an image folder would have blocks of one
    # record.
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
    """Return the number of batches a rank reads per round.

    A round has enough neighbours for one read of target_bytes, or for the mixed pool.  The number
    is a power of two, limited by about most_bytes and by the number of rounds in the data set.
    """
    if how.shuffle in ("global", "cache-aware") or not len(table):
        return 1  # no neighbours
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
    """Return a rank's positions in an order of n records, in sequence."""
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
    """Return a rank's number of batches in an order of n records."""
    return -(-len(_dealt(n, deal, rank)) // deal.batch_size)


def remaining(
    sequence: Records, how: Order, epoch: int, history: Sequence[PartialEpoch]
) -> Records:
    """Return the rest of an order after parts were read under other deals."""
    for part in history:
        is_taken = np.zeros(len(sequence), bool)
        for rank in range(part.deal.world_size):
            places = _places(len(sequence), how, epoch, part.deal, rank)
            is_taken[places[: part.steps * part.deal.batch_size]] = True
        sequence = sequence[~is_taken]
    return sequence


@dataclass(frozen=True, slots=True, eq=False)
class Share:
    """The records of one rank in an epoch; batch i is the i-th part of batch_size records."""

    records: Records
    batch_size: int

    def __len__(self) -> int:
        return -(-len(self.records) // self.batch_size)

    def batch(self, number: int) -> Records:
        return self.records[number * self.batch_size : (number + 1) * self.batch_size]


def share(sequence: Records, how: Order, epoch: int, deal: Deal, rank: int) -> Share:
    """Return a rank's share of an epoch, or of the rest of an epoch."""
    return Share(sequence[_places(len(sequence), how, epoch, deal, rank)], deal.batch_size)


def _places(n: int, how: Order, epoch: int, deal: Deal, rank: int) -> Records:
    """Return a rank's positions; with `block`, the records of a round are mixed as the pool."""
    places = _dealt(n, deal, rank)
    if how.shuffle == "block" and len(places):
        return _mixed(places, how, epoch, deal.batch_size * deal.batches_a_round)
    return places


def _mixed(places: Records, how: Order, epoch: int, pool: int) -> Records:
    mixed = np.empty_like(places)
    for start in range(0, len(places), pool):
        # Seed by position, not by rank: a pool is mixed alike for any reader.
        part = places[start : start + pool]
        seen = permutation(len(part), how.seed, epoch, PERMUTED_PORTION, int(part[0]))
        mixed[start : start + pool] = part[seen]
    return mixed


# --- portions and reads ---------------------------------------------------------------------------


def portions(
    table: PlanTable,
    mine: Share,
    first: int,
    target_bytes: int,
    a_round: int,
    most_bytes: int,
    is_merged: bool = True,
) -> Records:
    """Return the first batch of each portion from `first` on, and the end of the last portion.

    A portion has as many batches as fit in target_bytes of memory, at least one; the first portions
    are smaller.  A portion never crosses a round.  If a round is larger than a batch, a portion is
    a whole round (a pool is read as a whole) unless the round needs more than most_bytes.
    is_merged: records of a shared page are read together.
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
    """Return whether every possible batch fits in most_bytes, for any order."""
    return batch_size * (int(table.length.max(initial=0)) + 2 * PAGE_BYTES) <= most_bytes


def too_large(
    table: PlanTable, mine: Share, edges: NDArray[np.int64], most_bytes: int, is_merged: bool = True
) -> tuple[Records, int] | None:
    """Return the first portion larger than most_bytes under any merging, with its size.

    None: all portions fit.  Portions of several batches fit by construction.
    """
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
    """Return the edges of portions from batch first to last.

    A portion has at most target_bytes, or one batch.  At most `most` portions are made.
    """
    edges = [first]
    target_bytes -= PAGE_BYTES  # the first record may share its page with earlier records
    while edges[-1] < last and len(edges) <= most:
        start = edges[-1]
        end = int(np.searchsorted(upto, upto[start] + target_bytes, side="right")) - 1
        edges.append(min(max(end, start + 1), last))
    return edges


def _room_upto(table: PlanTable, mine: Share, is_merged: bool) -> NDArray[np.int64]:
    """Return an upper bound of the memory of all batches before each batch, and of all batches.

    A record needs whole pages and shares a page only with the record before.
    """
    records = mine.records
    page, last = _pages(table, records)
    n_pages = last - page + 1
    if is_merged:
        file = table.file[records]
        is_near = (file[1:] == file[:-1]) & (page[1:] <= last[:-1]) & (last[1:] >= page[:-1])
        n_pages[1:] -= is_near  # at least one page was counted before
    ends = np.minimum(np.arange(len(mine) + 1) * mine.batch_size, len(records))
    upto = np.zeros(len(ends), np.int64)
    upto[1:] = np.cumsum(n_pages)[ends[1:] - 1] * PAGE_BYTES
    return upto


def _pages(table: PlanTable, records: Records) -> tuple[Records, Records]:
    """Return the first and the last page of each record."""
    offset = table.offset[records]
    last = np.maximum(table.length[records], 1)
    last += offset
    last -= 1
    last >>= PAGE_BITS  # five times as fast as a division; runs per record
    return offset >> PAGE_BITS, last


def _pages_bytes(table: PlanTable, records: Records) -> int:
    """Return the memory of records merged wherever pages touch."""
    return layout(table, records, MERGED_WHOLLY, 0).room


@dataclass(frozen=True, slots=True, eq=False)
class PortionLayout:
    """The reads of a portion, sorted by file and offset, and the layout in memory.

    file, offset, length, place: per read; place: bytes from the portion's start.
    at: per record, in the requested sequence.
    read: number of the read with the record.
    room: bytes of the portion.

    Reads share no page of memory, and the offset in the page equals the file's, so O_DIRECT is
    possible.
    """

    file: NDArray[np.uint32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    place: NDArray[np.int64]
    at: NDArray[np.int64]
    read: NDArray[np.int64]
    room: int


def gap_of(table: PlanTable) -> int:
    """Return the largest gap worth reading between two records.

    The gap is the mean record size, so at least half of a merged read is records.  The gap is at
    least a page, because devices read whole pages, and at most MOST_GAP_BYTES, the cost of a
    request.
    """
    return min(MOST_GAP_BYTES, max(PAGE_BYTES, int(table.mean_bytes)))


def layout(table: PlanTable, records: Records, target_bytes: int, gap_bytes: int) -> PortionLayout:
    """Merge records within gap_bytes of each other into reads of about target_bytes.

    gap_bytes >= 0 also merges records of a shared page, because devices read whole pages; -1: no
    merging by page.
    """
    file, offset, length = table.file[records], table.offset[records], table.length[records]
    if not len(records):
        none = np.zeros(0, np.int64)
        return PortionLayout(file, none, none, none, none, none, 0)
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
    return PortionLayout(
        file=file[starts],
        offset=read_offset,
        length=read_end - read_offset,
        place=place,
        at=at,
        read=read,
        room=int(pages.sum()),
    )


def _reach(is_other: NDArray[np.bool_], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the running maximum of `end` within each file.

    is_other: the file differs from the previous file.
    """
    if not is_other.any():
        return np.maximum.accumulate(end)
    # A single accumulate: each file's ends are raised above the ends of earlier files.
    lift = np.zeros_like(end)
    lift[1:] = np.cumsum(is_other) * (int(end.max()) + 1)
    reach: NDArray[np.int64] = np.maximum.accumulate(end + lift) - lift
    return reach


def fitted(
    table: PlanTable, records: Records, target_bytes: int, gap_bytes: int, most_bytes: int
) -> PortionLayout:
    """Return the layout, with smaller gaps if needed for most_bytes.

    If no gap is enough, return the smallest layout.
    """
    if not target_bytes:
        return layout(table, records, 0, -1)
    fit = layout(table, records, target_bytes, gap_bytes)
    for target, gap in ((target_bytes, PAGE_BYTES), (target_bytes, 0), (MERGED_WHOLLY, 0)):
        if fit.room <= most_bytes:
            break
        if gap < gap_bytes or target > target_bytes:
            fit = layout(table, records, target, gap)
    return fit


def most_room(table: PlanTable, records: Records) -> int:
    """Return an upper bound of `fitted`'s need: for each record, all touched pages."""
    return int(table.length[records].sum()) + 2 * PAGE_BYTES * len(records)


# --- depth ---------------------------------------------------------------------------------------

GAIN_WORTH_MORE = 1.1  # less is a device's noise; tiers.py uses an equal rule
READS_JUDGED = 64  # reads per depth before a judgement
LATENCY_MEANS_QUEUE = 1.5  # at twice the depth, so much more latency per read is only queueing
LEAST_DEPTH, MOST_DEPTH = 4, 128


@dataclass(frozen=True, slots=True)
class Depth:
    """The number of requests in flight: doubled while throughput grows, until latency rises.

    best_bps: best rate so far.  latency_s: latency per read at the previous depth.  is_settled: no
    further trials.  reads, seconds, read_bytes, waited_s: measured at this depth so far.
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
        """Return the depth after a portion.

        reads, read_bytes: without reads from memory.  seconds: duration of the portion.  waited_s:
        sum of all reads' latencies.
        """
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
