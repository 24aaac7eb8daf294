"""The plan of penstock.feed: arithmetic, so every promise is a property of any data set."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FeedError
from penstock.feed import plan
from penstock.feed.plan import Deal, Depth, Order, PartialEpoch, PlanTable

SHUFFLES = ("none", "block", "global")


@st.composite
def tables(draw: Any, least: int = 0, most: int = 200) -> PlanTable:
    """Records in several files, with gaps, never overlapping, listed in any sequence."""
    n = draw(st.integers(least, most))
    seed = draw(st.integers(0, 2**32 - 1))
    random = np.random.default_rng(seed)
    n_files = draw(st.integers(1, 4))
    file = np.sort(random.integers(0, n_files, n)).astype(np.uint32)
    length = random.integers(0, draw(st.sampled_from([5, 5000, 300_000])), n)
    gap = random.integers(0, draw(st.sampled_from([1, 100, 100_000])), n)
    offset = np.zeros(n, np.int64)
    for number in range(n_files):
        mine = file == number
        ends = np.cumsum(length[mine] + gap[mine])
        offset[mine] = ends - length[mine]
    mixed = random.permutation(n) if draw(st.booleans()) else np.arange(n)
    return PlanTable(file[mixed], offset[mixed], length[mixed].astype(np.int64))


def orders(**more: Any) -> Any:
    return st.builds(
        Order,
        shuffle=st.sampled_from(SHUFFLES),
        seed=st.integers(0, 5),
        block_bytes=st.sampled_from([1, 4000, 1 << 20]),
        pool_bytes=st.sampled_from([1, 100_000]),
        **more,
    )


def shares(
    table: PlanTable, how: Order, deal: Deal, epoch: int = 0, history: Any = ()
) -> list[Any]:
    sequence = plan.remaining(plan.order(table, how, epoch), how, epoch, history)
    return [plan.share(sequence, how, epoch, deal, rank) for rank in range(deal.world_size)]


deals = st.builds(
    Deal,
    world_size=st.integers(1, 7),
    batch_size=st.integers(1, 20),
    batches_a_round=st.sampled_from([1, 2, 4]),
)


# Order and share


@given(tables(), orders(), deals, st.integers(0, 3))
def test_every_record_comes_exactly_once_an_epoch_for_any_world(
    table: PlanTable, how: Order, deal: Deal, epoch: int
) -> None:
    seen = np.concatenate([share.records for share in shares(table, how, deal, epoch)])
    assert sorted(seen.tolist()) == list(range(len(table)))


@given(tables(), orders(), deals)
def test_ranks_get_as_much_as_each_other(table: PlanTable, how: Order, deal: Deal) -> None:
    batches = [len(share) for share in shares(table, how, deal)]
    assert max(batches) - min(batches) <= 1
    n = len(table)
    assert batches == [plan.n_batches(n, deal, rank) for rank in range(deal.world_size)]


@pytest.mark.parametrize("tail", ["drop", "pad"])
@given(table=tables(least=1), how=orders(), deal=deals)
def test_dropped_or_padded_every_rank_has_the_same_number_of_full_batches(
    tail: str, table: PlanTable, how: Order, deal: Deal
) -> None:
    deal = Deal(deal.world_size, deal.batch_size, deal.batches_a_round, tail)
    found = shares(table, how, deal)
    n, step = len(table), deal.world_size * deal.batch_size
    expected = n // step if tail == "drop" else -(-n // step)
    assert [len(share) for share in found] == [expected] * deal.world_size
    assert all(len(share.records) == expected * deal.batch_size for share in found)
    times = Counter(np.concatenate([share.records for share in found]).tolist())
    if tail == "drop":
        assert set(times.values()) <= {1}
        assert n - len(times) < step
    else:
        assert len(times) == n
        assert sum(times.values()) - n < step


@given(tables(least=2), orders(), deals)
def test_the_same_seed_gives_the_same_order_and_another_epoch_another(
    table: PlanTable, how: Order, deal: Deal
) -> None:
    first, again = shares(table, how, deal), shares(table, how, deal)
    for one, other in zip(first, again, strict=True):
        assert one.records.tolist() == other.records.tolist()


def test_orders_differ_by_seed_and_by_epoch() -> None:
    table = PlanTable(np.zeros(1000, np.uint32), np.arange(1000) * 10, np.full(1000, 10))
    seen = {
        tuple(plan.order(table, Order(shuffle, seed, 100), epoch).tolist())
        for shuffle in ("block", "global")
        for seed in (0, 1)
        for epoch in (0, 1)
    }
    assert len(seen) == 8


@given(st.lists(st.integers(0, 3), max_size=100))
def test_numbers_that_are_equal_are_sorted_as_they_stand(numbers: list[int]) -> None:
    """So that an order is the same whatever sorts it: no sort but a stable one promises that."""
    raw = np.array(numbers, np.uint64)
    assert plan._sorted_by(raw).tolist() == sorted(range(len(raw)), key=numbers.__getitem__)


def test_an_order_is_the_same_in_every_version_from_now_on() -> None:
    # Written down once: a resumed job must find the order that it left.
    table = PlanTable(np.zeros(8, np.uint32), np.arange(8) * 100, np.full(8, 100))
    assert plan.order(table, Order("global", 7), 0).tolist() == GLOBAL_ORDER
    share = plan.share(
        plan.order(table, Order("block", 7, 200, 400), 0), Order("block", 7), 0, Deal(1, 2, 2), 0
    )
    assert share.records.tolist() == BLOCK_ORDER


def test_a_block_stays_together_until_it_is_in_the_pool() -> None:
    table = PlanTable(np.zeros(64, np.uint32), np.arange(64) * 100, np.full(64, 100))
    sequence = plan.order(table, Order("block", 3, block_bytes=400), 0)
    blocks = sequence.reshape(16, 4)
    assert (blocks == blocks[:, :1] + np.arange(4)).all()
    assert (np.diff(blocks[:, 0]) != 4).any()
    mixed = plan.share(sequence, Order("block", 3, 400), 0, Deal(1, 4, 4), 0).records.reshape(4, 16)
    for pool, lies in zip(mixed, sequence.reshape(4, 16), strict=True):
        assert sorted(pool) == sorted(lies)
        assert pool.tolist() != lies.tolist()


def test_what_memory_holds_comes_first_and_both_halves_are_mixed() -> None:
    table = PlanTable(np.zeros(100, np.uint32), np.arange(100) * 10, np.full(100, 10))
    held = np.arange(100) % 3 == 0
    sequence = plan.order(table, Order("cache-aware", 1), 0, held)
    assert sorted(sequence.tolist()) == list(range(100))
    assert held[sequence[:34]].all()
    assert not held[sequence[34:]].any()
    assert sequence[:34].tolist() != sorted(sequence[:34].tolist())


def test_an_order_that_is_not_known_is_refused() -> None:
    table = PlanTable(np.zeros(3, np.uint32), np.arange(3), np.ones(3, np.int64))
    with pytest.raises(FeedError, match="known are none, block, global"):
        plan.order(table, Order("sorted"), 0)


# Resume


@given(tables(), orders(), deals, deals, deals, st.integers(0, 9), st.integers(0, 9))
def test_resumed_at_any_batch_with_other_ranks_each_record_still_comes_once(
    table: PlanTable, how: Order, first: Deal, second: Deal, third: Deal, steps: int, more: int
) -> None:
    seen: list[int] = []
    history: list[PartialEpoch] = []
    for deal, taken in ((first, steps), (second, more)):
        for share in shares(table, how, deal, 1, history):
            seen += share.records[: taken * deal.batch_size].tolist()
        history.append(PartialEpoch(deal, taken))
    for share in shares(table, how, third, 1, history):
        seen += share.records.tolist()
    assert sorted(seen) == list(range(len(table)))


# Portions


@given(tables(), orders(), deals, st.integers(0, 12), st.sampled_from([1, 10_000, 1 << 22]))
def test_portions_are_whole_batches_in_sequence_and_cross_no_round(
    table: PlanTable, how: Order, deal: Deal, first: int, target: int
) -> None:
    mine = shares(table, how, deal)[0]
    most = 1 << 30
    edges = plan.portions(table, mine, first, target, deal.batches_a_round, most).tolist()
    assert edges == sorted(set(edges))
    assert edges[-1] == len(mine)
    if first < len(mine):
        assert edges[0] == first
    if deal.batches_a_round > 1:
        inner = edges[1:-1]
        assert all(edge % deal.batches_a_round == 0 for edge in inner)


@given(
    tables(),
    orders(),
    deals,
    st.integers(0, 12),
    st.sampled_from([1, 10_000, 1 << 22]),
    st.sampled_from([4096, 30_000, 1 << 20]),
    st.booleans(),
)
def test_a_portion_fits_or_is_one_batch(
    table: PlanTable, how: Order, deal: Deal, first: int, target: int, most: int, is_merged: bool
) -> None:
    mine = shares(table, how, deal)[0]
    target = min(target, most // 2)
    edges = plan.portions(table, mine, first, target, deal.batches_a_round, most, is_merged)
    for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        records = mine.records[start * mine.batch_size : end * mine.batch_size]
        found = plan.fitted(table, records, 4096 if is_merged else 0, 1 << 16, most)
        assert end == start + 1 or found.room <= most


def test_the_first_portions_are_smaller() -> None:
    """Of batches of 64 KiB and portions of a MiB, of which a page is kept for what two share."""
    n = 1000
    table = PlanTable(np.zeros(n, np.uint32), np.arange(n) * 65536, np.full(n, 65536))
    mine = plan.share(plan.order(table, Order(), 0), Order(), 0, Deal(1, 1), 0)
    for first in (0, 500):
        edges = plan.portions(table, mine, first, 1 << 20, 1, 1 << 30)
        assert edges[0] == first
        assert np.diff(edges)[:6].tolist() == [3, 3, 3, 3, 15, 15]


def test_a_portion_of_tiny_records_is_as_many_as_their_pages_fill() -> None:
    n = 1_300_000
    table = PlanTable(np.zeros(n, np.uint32), np.arange(n) * 112, np.full(n, 96))
    for how, least in ((Order("global"), 7), (Order("none"), 200)):
        mine = plan.share(plan.order(table, how, 0), how, 0, Deal(1, 256), 0)
        edges = plan.portions(table, mine, 0, 8 << 20, 1, 1 << 26)
        assert np.diff(edges)[plan.SOON : -1].min() >= least
        records = mine.records[: int(edges[1]) * 256]
        assert plan.fitted(table, records, 4 << 20, plan.gap_of(table), 8 << 20).room <= 8 << 20


# Reads


@given(
    tables(),
    st.sampled_from([0, 1000, 1 << 20]),
    st.sampled_from([-1, 0, 4096, 1 << 20]),
    st.integers(0, 2**32 - 1),
)
def test_every_record_lies_where_the_layout_says_and_reads_do_not_touch(
    table: PlanTable, target: int, gap: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    n = len(table)
    asked = random.integers(0, n, random.integers(0, 2 * n)) if n else np.zeros(0, np.int64)
    found = plan.layout(table, asked, target, gap)
    # A read brings the record, at the place that is told.
    of = found.read
    inside = table.offset[asked] - found.offset[of]
    assert (inside >= 0).all()
    assert (inside + table.length[asked] <= found.length[of]).all()
    assert (found.at == found.place[of] + inside).all()
    assert (table.file[asked] == found.file[of]).all()
    # In its page as in the file, and its pages are its own: it may be read past the page cache.
    assert (found.place % 4096 == found.offset % 4096).all()
    ends = -(-(found.place + found.length) // 4096) * 4096
    starts = found.place // 4096 * 4096
    assert (starts[1:] >= ends[:-1]).all()
    assert found.room == (ends[-1] if len(ends) else 0)
    # Sorted: ascending in each file.
    same = found.file[1:] == found.file[:-1]
    assert (found.offset[1:] >= found.offset[:-1])[same].all()


@given(
    tables(least=1),
    st.sampled_from([0, 1000, 1 << 20]),
    st.sampled_from([0, 4096, 1 << 20]),
    st.integers(0, 2**32 - 1),
)
def test_in_the_room_that_is_said_to_do_every_layout_fits(
    table: PlanTable, target: int, gap: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    asked = random.integers(0, len(table), random.integers(0, 2 * len(table)))
    most = plan.most_room(table, asked)
    assert plan.fitted(table, asked, target, gap, most).room <= most


def test_neighbours_are_one_read_and_far_ones_are_not() -> None:
    offset = np.array([0, 100, 5000, 1_000_000])
    table = PlanTable(np.zeros(4, np.uint32), offset, np.full(4, 100))
    records = np.array([3, 1, 0, 2])
    assert len(plan.layout(table, records, 1 << 20, 4800).offset) == 2
    assert len(plan.layout(table, records, 1 << 20, 4799).offset) == 3
    assert len(plan.layout(table, records, 0, -1).offset) == 4


def test_records_of_one_page_are_one_read_whatever_the_gap() -> None:
    offset = np.array([0, 3000, 4095, 9000])
    table = PlanTable(np.zeros(4, np.uint32), offset, np.full(4, 100))
    assert len(plan.layout(table, np.arange(4), 1 << 20, 0).offset) == 2
    assert len(plan.layout(table, np.arange(4), 1 << 20, -1).offset) == 4


def test_a_gap_is_no_longer_than_a_record_and_no_shorter_than_a_page() -> None:
    for length, gap in ((96, 4096), (10_000, 10_000), (1 << 20, 64 << 10)):
        assert plan.gap_of(PlanTable(np.zeros(1), np.zeros(1), np.full(1, length))) == gap


def test_a_long_stretch_is_cut_into_reads_of_about_the_target() -> None:
    table = PlanTable(np.zeros(1000, np.uint32), np.arange(1000) * 4096, np.full(1000, 4096))
    found = plan.layout(table, np.arange(1000), 1 << 20, 0)
    assert found.length.tolist() == [1 << 20] * 3 + [1000 * 4096 - 3 * (1 << 20)]


def test_a_record_that_is_asked_for_twice_is_read_once() -> None:
    table = PlanTable(np.zeros(2, np.uint32), np.array([0, 9000]), np.array([50, 50]))
    found = plan.layout(table, np.array([1, 1, 0, 1]), 0, -1)
    assert len(found.offset) == 2
    assert found.at[0] == found.at[1] == found.at[3]


def test_a_rank_takes_so_many_neighbours_that_a_read_is_large() -> None:
    table = PlanTable(np.zeros(10_000, np.uint32), np.arange(10_000) * 3000, np.full(10_000, 3000))
    # 32 records of 3,000 bytes are 96 KB: 4 MiB are 43.7 batches, rounded up to 64; but 8 ranks of
    # 32 records have 39 rounds only.
    assert plan.round_of(table, Order(), 8, 32, 4 << 20, 1 << 30) == 32
    assert plan.round_of(table, Order(), 2, 32, 4 << 20, 1 << 30) == 64
    assert plan.round_of(table, Order(), 2, 32, 4 << 20, 1 << 20) == 8
    assert plan.round_of(table, Order(), 1, 32, 4 << 20, 1 << 30) == 1
    assert plan.round_of(table, Order("global"), 8, 32, 4 << 20, 1 << 30) == 1


# Depth


@settings(max_examples=30)
@given(st.integers(4, 64))
def test_depth_doubles_until_more_in_flight_only_waits_longer(servers: int) -> None:
    """A device that serves `servers` requests at a time, 1 ms each."""
    depth = Depth()
    for _ in range(200):
        if depth.is_settled:
            break
        busy = min(depth.value, servers)
        latency_s = 1e-3 * max(1.0, depth.value / servers)
        reads = 64
        seconds = reads * 1e-3 / busy
        depth = depth.after(reads, reads * 100_000, seconds, reads * latency_s)
    assert depth.is_settled
    assert servers / 2 <= depth.value <= 2 * servers or depth.value == plan.LEAST_DEPTH


def test_portions_from_memory_say_nothing_about_depth() -> None:
    depth = Depth()
    assert depth.after(0, 0, 1.0, 0.0) is depth


GLOBAL_ORDER = [1, 4, 6, 2, 7, 0, 3, 5]
BLOCK_ORDER = [1, 0, 7, 6, 2, 5, 3, 4]


def test_a_block_ends_with_its_file_where_files_hold_many_records() -> None:
    """Ten files of ten records each, smaller than a block: a block is a file, no matter what its
    first record's neighbours are.  Files of one record share blocks instead."""
    table = PlanTable(
        np.repeat(np.arange(10, dtype=np.uint32), 10),
        np.tile(np.arange(10) * 100, 10),
        np.full(100, 100),
    )
    sequence = plan.order(table, Order("block", 3, block_bytes=1600), 0)
    files = table.file[sequence].reshape(10, 10)
    assert (files == files[:, :1]).all()
    single = PlanTable(np.arange(100, dtype=np.uint32), np.zeros(100, np.int64), np.full(100, 100))
    sequence = plan.order(single, Order("block", 3, block_bytes=1600), 0)
    assert np.count_nonzero(np.diff(sequence) != 1) <= 100 // 16 + 1
