"""Feed(mapped=True): the same records, where the page cache has them, and only there."""

import os
import random
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from numpy.typing import NDArray

import penstock
from pagecache import kept
from penstock.errors import FeedError
from penstock.feed import Feed, open_index, read
from penstock.feed import feed as feed_module
from penstock.feed.read import Reader
from penstock.places.tiers import evict, resident_bytes

LIBRARY = Path(penstock.__file__).with_name("libfeed.so")
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the reader is not built: make native")

N = 300
RECORDS = {
    b"%08d" % i: random.Random(i).randbytes(random.Random(-i - 1).choice([7, 900, 4096, 30_000]))
    for i in range(N)
}


def lmdb_of(folder: Path, keys: list[bytes]) -> Path:
    with lmdb.open(str(folder), map_size=1 << 28) as env, env.begin(write=True) as txn:
        for key in keys:
            txn.put(key, RECORDS[key])
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return lmdb_of(tmp_path / "train.lmdb", list(RECORDS))


@pytest.fixture
def in_memory(path: Path) -> Iterator[Path]:
    """As a whole."""
    with kept(path / "data.mdb"):
        yield path


@pytest.fixture
def feed(in_memory: Path) -> Iterator[Feed]:
    with Feed(in_memory, 16, shuffle="global", seed=3, mapped=True) as made:
        feed_tells_what_memory_holds(made)
        yield made


def feed_tells_what_memory_holds(feed: Feed) -> None:
    if read.held_in_memory(feed.index) is None:
        pytest.skip("this kernel does not tell what memory holds (before Linux 6.5)")


def all_of(feed: Feed) -> dict[bytes, bytes]:
    found = [(record.key, bytes(memoryview(record))) for batch in feed for record in batch]
    assert len(found) == len(dict(found))
    return dict(found)


@pytest.mark.parametrize("shuffle", ["none", "block", "global", "cache-aware"])
@pytest.mark.parametrize("readers", [0, 2])
def test_what_is_in_memory_comes_without_a_request(
    in_memory: Path, shuffle: str, readers: int
) -> None:
    with Feed(in_memory, 16, shuffle=shuffle, seed=3, readers=readers, mapped=True) as feed:
        feed_tells_what_memory_holds(feed)
        assert all_of(feed) == RECORDS
        assert (feed.tally.in_place, feed.tally.reads) == (N, 0)


def test_files_lie_one_after_the_other(tmp_path: Path) -> None:
    keys = list(RECORDS)
    made = [lmdb_of(tmp_path / f"{part}.lmdb", keys[part::3]) for part in range(3)]
    with (
        kept(*(folder / "data.mdb" for folder in made)),
        Feed(str(tmp_path / "*.lmdb"), 16, shuffle="global", mapped=True) as feed,
    ):
        feed_tells_what_memory_holds(feed)
        assert all_of(feed) == RECORDS
        assert feed.tally.in_place == N


def test_what_is_not_in_memory_is_read(path: Path) -> None:
    evict(path / "data.mdb")
    assert not resident_bytes(path / "data.mdb")
    with Feed(path, 16, shuffle="global", seed=3, mapped=True) as feed:
        assert all_of(feed) == RECORDS
        assert feed.tally.reads
        assert feed.tally.in_place < N


def test_a_hole_in_what_memory_holds_is_noticed(path: Path) -> None:
    """Neighbours are asked for together: the hole lies between some of them."""
    file = path / "data.mdb"
    size = os.path.getsize(file)
    hole = size // 2 // 4096 * 4096
    evict(file)
    with open(file, "rb") as opened:
        os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
        os.pread(opened.fileno(), hole, 0)
        os.pread(opened.fileno(), size, hole + 16 * 4096)
    with kept(file, length=hole), kept(file, first=hole // 4096 + 16):
        assert resident_bytes(file) == size - 16 * 4096
        with Feed(path, N, mapped=True) as feed:
            assert all_of(feed) == RECORDS
            assert not feed.tally.in_place


def test_of_several_files_one_that_is_not_in_memory_is_noticed(tmp_path: Path) -> None:
    """Its records lie between two of another file, which is there."""
    keys = list(RECORDS)
    made = [lmdb_of(tmp_path / f"{part}.lmdb", keys[part::2]) for part in range(2)]
    with (
        kept(made[0] / "data.mdb"),
        Feed(str(tmp_path / "*.lmdb"), 16, mapped=True) as feed,
    ):
        feed_tells_what_memory_holds(feed)
        evict(feed.index.files[1])
        records = np.array([0, N - 1, 1])
        assert feed.index.file[records].tolist() == [0, 1, 0]
        assert Reader(feed.index, feed.request.options).in_place(records) is None
        assert all_of(feed) == RECORDS


def test_a_page_of_each_record_says_whether_it_is_still_there(path: Path) -> None:
    index = open_index(path)
    files = read._Files(index, is_direct=False)
    with kept(path / "data.mdb"):
        assert files.holds(index.file, index.offset, index.length, by_page=True)
    for _ in range(1000):  # what another processor has just let go may stay for a while
        evict(path / "data.mdb")
        if not resident_bytes(path / "data.mdb"):
            break
    assert not files.holds(index.file, index.offset, index.length, by_page=True)
    files.close()


def test_a_value_that_is_not_in_its_place_fails_in_each_epoch(path: Path) -> None:
    """What was found in its place is not looked at again; what was not, is."""
    index = open_index(path)
    record = int(np.flatnonzero(index.length == 30_000)[0])
    with open(path / "data.mdb", "r+b") as file:
        before = os.fstat(file.fileno())
        os.pwrite(file.fileno(), bytes(8), int(index.offset[record]) - 16)
        os.utime(file.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
    with Feed(index, 16, shuffle="global", mapped=True, on_error="skip") as feed:
        for epoch in (1, 2, 3):
            assert sum(map(len, feed)) == N - 1
            assert feed.n_failed == epoch


@pytest.mark.parametrize("readers", [0, 2])
def test_what_leaves_memory_half_way_is_read_from_there_on(
    feed: Feed, readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def holds(*_: object) -> bool:
        nonlocal asked
        asked += 1
        return asked <= 1

    monkeypatch.setattr(read._Files, "holds", holds)
    monkeypatch.setattr(feed_module, "LOOKED_AT", 16)  # a portion at a time
    options = {"mapped": True, "buffer_bytes": 1 << 20, "coalesce_bytes": 0, "readers": readers}
    with Feed(feed.index, 16, shuffle="global", **options) as half:  # type: ignore[arg-type]
        assert all_of(half) == RECORDS
        assert 0 < half.tally.in_place < N


PORTIONS: Any = {"mapped": True, "buffer_bytes": 1 << 20, "coalesce_bytes": 0}  # of a batch each


@pytest.fixture
def portions(in_memory: Path) -> Iterator[Feed]:
    """Of which it is known that memory holds them all."""
    with Feed(in_memory, 16, shuffle="global", seed=3, **PORTIONS) as made:
        feed_tells_what_memory_holds(made)
        next(iter(made))
        made.set_epoch(0)
        yield made


def test_portions_in_memory_are_looked_for_together_and_counted_as_they_are_given(
    portions: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds, asked = read._Files.holds, []

    def noted(self: read._Files, file: NDArray[np.uint32], *more: Any) -> bool:
        asked.append(len(file))
        return holds(self, file, *more)

    monkeypatch.setattr(read._Files, "holds", noted)
    before, given = portions.tally.in_place, 0
    for batch in portions:
        given += len(batch)
        assert portions.tally.in_place - before == given
    assert given == N
    assert asked == [-(-N // read.ASKED_OF)]
    asked.clear()
    assert portions._readers[0].in_place(np.arange(N).repeat(40)) is not None
    assert read.ASKED_AT_MOST <= asked[0] <= read.ASKED_AT_MOST + 1


def test_of_portions_that_are_not_all_in_memory_those_that_are_come_in_place(
    portions: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked for together first, then each by itself, by two threads."""
    calls = count()
    monkeypatch.setattr(read._Files, "holds", lambda *_: next(calls) in (1, 2))
    before = portions.tally.in_place
    assert all_of(portions) == RECORDS
    assert portions.tally.in_place - before == 32


def test_batches_before_one_that_failed_are_given(portions: Feed) -> None:
    order = [number for batch in portions for number in batch.records.tolist()]
    file, index = Path(portions.index.files[0]), portions.index
    place = next(i for i in range(100, N) if index.length[order[i]] == 30_000)
    before = os.stat(file)
    with open(file, "r+b") as opened:
        os.pwrite(opened.fileno(), bytes(8), int(index.offset[order[place]]) - 16)
        os.utime(opened.fileno(), ns=(before.st_atime_ns, before.st_mtime_ns))
    with Feed(index, 16, shuffle="global", seed=3, **PORTIONS) as feed:
        batches = iter(feed)
        assert [len(next(batches)) for _ in range(place // 16)] == [16] * (place // 16)
        with pytest.raises(FeedError, match="the file is damaged"):
            next(batches)


def test_a_recorder_that_comes_half_way_sees_what_is_read_from_then_on(
    portions: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, found = portions.tally, []
    for batch in portions:
        found += batch.keys
        if len(found) == 48:
            monkeypatch.setattr(read, "is_watched", lambda: True)
    assert sorted(found) == sorted(RECORDS)
    assert portions.tally.in_place - before.in_place == 48
    assert portions.tally.reads


def test_views_outlive_the_feed_and_cannot_be_written(path: Path) -> None:
    with Feed(path, 16, mapped=True) as feed:
        batch = next(iter(feed))
        record, view = batch[0], batch.views()[0]
    del feed, batch
    assert bytes(view) == bytes(memoryview(record)) == RECORDS[record.key]
    assert view.readonly
    assert not record.flags.writeable


def test_a_data_set_that_was_written_to_gives_no_batch_more(feed: Feed, path: Path) -> None:
    batches = iter(feed)
    next(batches)
    with lmdb.open(str(path), map_size=1 << 28) as env, env.begin(write=True) as txn:
        txn.put(b"another", b"one")
    with pytest.raises(FeedError, match="has changed since it was indexed"):
        list(batches)


def test_while_a_recorder_watches_nothing_is_given_in_place(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads through a map are seen by nobody."""
    monkeypatch.setattr(read, "is_watched", lambda: True)
    assert all_of(feed) == RECORDS
    assert feed.tally.in_place == 0


def test_a_torch_data_set_gives_the_same_items(path: Path) -> None:
    from penstock.adapters.torch_feed import FeedDataset

    dataset = FeedDataset(path, mapped=True)
    assert dataset.__getitems__(list(range(N))) == [RECORDS[key] for key in sorted(RECORDS)]
    dataset.close()
