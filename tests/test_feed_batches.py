"""penstock.feed.Feed against py-lmdb and the bytes that were written: every record, once."""

import io
import os
import pickle
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import FeedError
from penstock.feed import Feed, Index, open_index, read
from penstock.feed import feed as feeding
from penstock.feed.feed import Batch
from penstock.feed.read import (
    Buffer,
    Options,
    ReadEngine,
    Reader,
    Tally,
    available_bytes,
    is_watched,
)
from penstock.feed.tfrecord import framed
from penstock.places.tiers import evict, resident_bytes
from penstock_lab.tier import slow
from slowtier import needs_fuse

LIBRARY = Path(penstock.__file__).with_name("libfeed.so")
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the reader is not built: make native")

N = 300


def has_uring() -> bool:
    try:
        ReadEngine("uring").close()
    except FeedError:
        return False
    return True


needs_uring = pytest.mark.skipif(not has_uring(), reason="this kernel or sandbox has no io_uring")


@pytest.fixture(scope="module")
def records() -> dict[bytes, bytes]:
    """From a few bytes, which LMDB keeps in its leaves, to many pages."""
    sizes = random.Random(1)
    return {b"%08d" % i: sizes.randbytes(sizes.choice([7, 900, 4096, 30_000])) for i in range(N)}


@pytest.fixture(scope="module")
def lmdb_path(records: dict[bytes, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "train.lmdb"
    keys = list(records)
    random.Random(2).shuffle(keys)  # the sequence in the file is not that of the keys
    with lmdb.open(str(folder), map_size=1 << 28) as env, env.begin(write=True) as txn:
        for key in keys:
            txn.put(key, records[key])
    return folder


@pytest.fixture(scope="module")
def folder_path(records: dict[bytes, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for key, value in records.items():
        path = folder / f"class{key[-1:].decode()}" / f"{key.decode()}.bin"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(value)
    return folder


def read_all(feed: Feed) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for batch in feed:
        for record, view in zip(batch, batch.views(), strict=True):
            assert record.key not in found
            found[record.key] = bytes(memoryview(record))
            assert found[record.key] == bytes(view)
    return found


# What comes is what is there


@pytest.mark.parametrize("shuffle", ["none", "block", "global", "cache-aware"])
@pytest.mark.parametrize("engine", ["threads", pytest.param("uring", marks=needs_uring)])
@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("readers", [0, 1, 3])
def test_every_record_comes_once_as_py_lmdb_has_it(
    lmdb_path: Path,
    records: dict[bytes, bytes],
    shuffle: str,
    engine: str,
    direct: bool,
    readers: int,
) -> None:
    evict(lmdb_path / "data.mdb")
    options = {"engine": engine, "direct": direct, "readers": readers}
    with Feed(lmdb_path, 16, shuffle=shuffle, seed=3, **options) as feed:  # type: ignore[arg-type]
        assert read_all(feed) == records
        assert read_all(feed) == records  # the next epoch
        assert feed.epoch == 2


@pytest.mark.parametrize("coalesce_bytes", [0, 10_000, 4 << 20])
@pytest.mark.parametrize("gap_bytes", [0, 1 << 20])
@pytest.mark.parametrize("depth", [1, 7, None])
def test_how_reads_are_merged_changes_no_record(
    lmdb_path: Path,
    records: dict[bytes, bytes],
    coalesce_bytes: int,
    gap_bytes: int,
    depth: int | None,
) -> None:
    evict(lmdb_path / "data.mdb")
    with Feed(
        lmdb_path,
        32,
        shuffle="global",
        coalesce_bytes=coalesce_bytes,
        gap_bytes=gap_bytes,
        depth=depth,
    ) as feed:
        assert read_all(feed) == records


@pytest.mark.parametrize("engine", ["threads", "auto"])
def test_a_folder_of_files_is_a_data_set(
    folder_path: Path, records: dict[bytes, bytes], engine: str
) -> None:
    with Feed(folder_path, 16, shuffle="global", engine=engine) as feed:
        found = read_all(feed)
    assert {Path(os.fsdecode(key)).stem.encode(): value for key, value in found.items()} == records


def test_ranks_share_an_epoch_among_them(lmdb_path: Path, records: dict[bytes, bytes]) -> None:
    for shuffle in ("none", "block", "global"):
        found: dict[bytes, bytes] = {}
        for rank in range(3):
            with Feed(lmdb_path, 8, shuffle=shuffle, rank=rank, world_size=3) as feed:
                part = read_all(feed)
            assert not set(part) & set(found)
            found |= part
        assert found == records


def test_length_and_batches_agree_and_in_order_is_key_order(
    lmdb_path: Path, records: dict[bytes, bytes]
) -> None:
    with Feed(lmdb_path, 7) as feed:
        assert len(feed) == -(-N // 7)
        batches = [(batch.keys, batch.as_bytes()) for batch in feed]
    assert [key for keys, _ in batches for key in keys] == sorted(records)
    assert [len(keys) for keys, _ in batches] == [7] * 42 + [6]


def test_a_record_is_an_array_with_a_key_and_cannot_be_written(
    lmdb_path: Path, records: dict[bytes, bytes]
) -> None:
    with Feed(lmdb_path, 4) as feed:
        batch = next(iter(feed))
        record = batch[1]
        assert (record.key, record.tobytes()) == (b"00000001", records[b"00000001"])
        assert len(memoryview(record)) == len(records[b"00000001"])
        assert [one.key for one in batch[1:3]] == [b"00000001", b"00000002"]
        for other in (record[1:], record.copy(), pickle.loads(pickle.dumps(record))):
            with pytest.raises(AttributeError, match="ask the record itself"):
                assert other.key
        with pytest.raises(ValueError, match="read-only"):
            record[0] = 1
        with pytest.raises(IndexError):
            batch[4]


# Resume


@pytest.mark.parametrize("shuffle", ["none", "block", "global", "cache-aware"])
@settings(max_examples=8, deadline=None)
@given(steps=st.integers(0, 19))
def test_a_feed_goes_on_exactly_where_its_state_was_taken(
    lmdb_path: Path, shuffle: str, steps: int
) -> None:
    index = open_index(lmdb_path)
    whole, first = (Feed(index, 16, shuffle=shuffle, seed=5, readers=1) for _ in range(2))
    whole.set_epoch(2)
    first.set_epoch(2)
    if shuffle == "cache-aware":
        held = np.arange(N) % 4 == 0
        whole.set_held(held)
        first.set_held(held)
    expected = [batch.keys for batch in whole]
    going = iter(first)
    begun = [next(going).keys for _ in range(steps)]
    second = Feed(index, 16, shuffle=shuffle, seed=5)
    second.load_state_dict(first.state_dict())
    assert begun + [batch.keys for batch in second] == expected
    assert second.epoch == 3
    for feed in (whole, first, second):
        feed.close()


def test_a_state_goes_on_with_another_number_of_ranks(
    lmdb_path: Path, records: dict[bytes, bytes]
) -> None:
    index = open_index(lmdb_path)
    seen: list[bytes] = []
    for rank in range(2):
        feed = Feed(index, 8, shuffle="block", rank=rank, world_size=2, pool_bytes=100_000)
        going = iter(feed)
        for _ in range(5):
            seen += next(going).keys
        state = feed.state_dict()
        feed.close()
    for rank in range(3):
        feed = Feed(index, 10, shuffle="block", rank=rank, world_size=3, pool_bytes=100_000)
        feed.load_state_dict(state)
        n_batches = len(feed)
        found = [batch.keys for batch in feed]
        assert len(found) == n_batches
        seen += [key for keys in found for key in keys]
        feed.close()
    assert sorted(seen) == sorted(records)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"n_records": 5},
        {"order": ["none", 0, 1 << 20, 16 << 20]},
        {"parts": []},
        {"parts": [[0, 1, 1, "short", 0]]},
        {"parts": [[1 << 40, 1, 1, "short", 0]]},
        {"parts": [[1, 1, 1, "long", 0]]},
        {"parts": "x"},
        {"held": "no base64!"},
        {"epoch": None},
    ],
)
def test_a_state_of_something_else_is_refused_with_a_sentence(
    lmdb_path: Path, change: dict[str, Any]
) -> None:
    with Feed(lmdb_path, 8, shuffle="global") as feed:
        state = feed.state_dict() | change
        with pytest.raises(FeedError, match=r".{20}"):
            feed.load_state_dict(state)


def test_a_pass_that_another_one_ended_does_not_look_complete(lmdb_path: Path) -> None:
    with Feed(lmdb_path, 10) as feed:
        first = iter(feed)
        next(first)
        assert len(list(feed)) == N // 10 - 1  # it goes on: one batch was taken
        with pytest.raises(FeedError, match="ended by another one"):
            next(first)


@pytest.mark.parametrize("readers", [0, 2])
def test_set_epoch_ends_the_pass_that_goes_on(lmdb_path: Path, readers: int) -> None:
    with Feed(lmdb_path, 10, shuffle="global", readers=readers) as feed:
        going = iter(feed)
        next(going)
        feed.set_epoch(3)
        with pytest.raises(FeedError, match="by set_epoch"):
            next(going)
        state = feed.state_dict()
        assert (state["epoch"], state["parts"][-1][-1]) == (3, 0)
        assert sum(map(len, feed)) == N


def test_a_feed_is_pickled_with_the_place_where_it_stands(
    lmdb_path: Path, records: dict[bytes, bytes]
) -> None:
    with Feed(lmdb_path, 10, shuffle="global", seed=4) as feed:
        going = iter(feed)
        first = [key for _ in range(3) for key in next(going).keys]
        copied = pickle.loads(pickle.dumps(feed))
    rest = [key for batch in copied for key in batch.keys]
    copied.close()
    assert sorted(first + rest) == sorted(records)


def test_a_forked_child_reads_with_an_engine_of_its_own(lmdb_path: Path) -> None:
    with Feed(lmdb_path, 10) as feed:
        expected = [batch.keys for batch in feed]
        child = os.fork()
        if not child:
            feed.set_epoch(0)
            os._exit(0 if [batch.keys for batch in feed] == expected else 1)
        assert os.waitpid(child, 0)[1] == 0
        feed.set_epoch(0)
        assert [batch.keys for batch in feed] == expected


@needs_uring
def test_a_reader_goes_from_thread_to_thread_and_its_ring_with_it(
    lmdb_path: Path, records: dict[bytes, bytes]
) -> None:
    """A ring may be of one thread alone.  Where it refuses another, threads would read instead."""
    evict(lmdb_path / "data.mdb")
    reader = Reader(open_index(lmdb_path), Options("uring", direct=True, coalesce_bytes=0))
    buffer = Buffer(16 << 20)
    every = np.arange(N)
    found = []

    def read_all_of_it() -> None:
        layout = reader.layout(every)
        loaded = reader.read(every, buffer.room(layout.room), layout)
        given = Batch(reader.index, loaded.memory, every, loaded.at)
        found.append(dict(zip(given.keys, given.as_bytes(), strict=True)) == records)

    for _ in range(2):
        read_all_of_it()
        other = threading.Thread(target=read_all_of_it)
        other.start()
        other.join()
    assert found == [True] * 4
    assert reader.reading.tally.by_uring == 4
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert "penstock-feed\n" not in names
    reader.close()


@pytest.mark.parametrize("readers", [0, 2])
def test_a_pass_is_not_gone_on_with_in_a_forked_child(lmdb_path: Path, readers: int) -> None:
    with Feed(lmdb_path, 10, readers=readers, buffer_bytes=1 << 20) as feed:
        going = iter(feed)
        first = next(going).keys
        child = os.fork()
        if not child:
            signal.alarm(20)  # it used to wait for threads that only the parent has
            try:
                next(going)
            except FeedError as error:
                is_told = "another process" in str(error) and "new `for`" in str(error)
                feed.set_epoch(0)  # what it says helps
                os._exit(0 if is_told and next(iter(feed)).keys == first else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert len(list(going)) == N // 10 - 1  # the parent's goes on


# Records without a byte


def test_an_empty_file_of_a_folder_is_a_record(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_bytes(b"%d" % number if number % 3 else b"")
    for on_error in ("raise", "skip"):
        with Feed(tmp_path, 8, on_error=on_error) as feed:  # type: ignore[arg-type]
            found = read_all(feed)
            assert feed.n_failed == 0
        assert found == {
            b"%02d.txt" % number: b"%d" % number if number % 3 else b"" for number in range(20)
        }
    index = open_index(tmp_path)
    (tmp_path / "03.txt").write_bytes(b"no more")
    with Feed(index, 8, on_error="skip") as feed:
        assert len(read_all(feed)) == 19
        assert "03.txt" in feed.failures[0]


@pytest.mark.parametrize("n_shards", [3, read.OPEN_FILES + 2])
def test_an_empty_payload_is_a_record_however_many_shards_there_are(
    tmp_path: Path, n_shards: int
) -> None:
    for number in range(n_shards):
        payloads = (b"", b"%d" % number)
        (tmp_path / f"{number:03}.tfrecord").write_bytes(b"".join(map(framed, payloads)))
    with Feed(tmp_path, 8, coalesce_bytes=0) as feed:
        found = [view.tobytes() for batch in feed for view in batch.views()]
    assert found == [each for number in range(n_shards) for each in (b"", b"%d" % number)]


# What goes wrong


def truncated(lmdb_path: Path, tmp_path: Path) -> tuple[Index, set[bytes]]:
    """A copy that loses its last half after it was indexed, and the keys that are lost."""
    path = tmp_path / "data.mdb"
    path.write_bytes((lmdb_path / "data.mdb").read_bytes())
    index = open_index(path, cache=False)
    size = path.stat().st_size // 2
    ends = index.offset + index.length
    lost = {index.key(i) for i in range(len(index)) if ends[i] > size}
    os.truncate(path, size)
    return index, lost


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("engine", ["threads", "auto"])
def test_a_file_that_was_cut_short_is_an_error_that_names_file_and_record(
    lmdb_path: Path, tmp_path: Path, direct: bool, engine: str
) -> None:
    index, lost = truncated(lmdb_path, tmp_path)
    assert 10 < len(lost) < N - 10
    reader = Reader(index, Options(engine=engine, direct=direct))
    every = np.arange(N)
    layout = reader.layout(every)
    raw = np.zeros(layout.room + 4096, np.uint8)
    skip = -raw.ctypes.data % 4096
    loaded = reader.read(every, raw[skip : skip + layout.room], layout)
    failed = {index.key(failure.record) for failure in loaded.failures}
    assert failed == lost
    why = loaded.failures[0].why
    assert str(tmp_path / "data.mdb") in why
    assert "truncated" in why
    assert index.key(loaded.failures[0].record).decode() in why
    reader.close()


def test_a_data_set_that_changed_is_refused_before_it_is_read(
    lmdb_path: Path, tmp_path: Path
) -> None:
    index, _ = truncated(lmdb_path, tmp_path)
    with pytest.raises(FeedError, match="changed since it was indexed"), Feed(index, 8) as feed:
        iter(feed)


@pytest.mark.parametrize("readers", [0, 2])
def test_a_data_set_that_changes_meanwhile_gives_no_batch_of_other_bytes(
    tmp_path: Path, readers: int
) -> None:
    """A writer that goes on overwrites pages that the index points to."""
    written = {b"%03d" % i: bytes([i]) * 5000 for i in range(100)}
    env = lmdb.open(str(tmp_path), map_size=1 << 24)
    with env.begin(write=True) as txn:
        for key, value in written.items():
            txn.put(key, value)
    with Feed(tmp_path, 10, readers=readers, buffer_bytes=100_000 * (readers + 1)) as feed:
        going = iter(feed)
        next(going)
        for new in range(3):
            with env.begin(write=True) as txn:
                for key in written:
                    txn.put(key, bytes([200 + new]) * 5000)
        given: list[tuple[list[bytes], list[bytes]]] = []
        with pytest.raises(FeedError, match="changed since"):
            given.extend((batch.keys, batch.as_bytes()) for batch in going)
        assert all(found == [written[key] for key in keys] for keys, found in given)
        assert len(given) <= readers  # portions that were read before
    env.close()


def tar_of(path: Path, contents: list[bytes]) -> list[bytes]:
    """A tar of these files, and its records as they lie in it."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as shard:
        for i, content in enumerate(contents):
            member = tarfile.TarInfo(f"{i:04d}.bin")
            member.size = len(content)
            shard.addfile(member, io.BytesIO(content))
    index, raw = open_index(path), path.read_bytes()
    spans = zip(index.offset.tolist(), index.length.tolist(), strict=True)
    return [raw[start : start + length] for start, length in spans]


IN_FIVES: dict[str, Any] = {"readers": 0, "buffer_bytes": 16_384}  # of records of two sectors


def test_a_file_that_is_replaced_while_it_is_read_goes_on_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    written = tar_of(path, [bytes([i]) * 500 for i in range(100)])
    with Feed(path, 10, **IN_FIVES) as feed:
        going = iter(feed)
        found = next(going).as_bytes()
        tar_of(tmp_path / "b.tar", [b"x" * 500] * 100)
        (tmp_path / "b.tar").replace(path)
        with pytest.raises(FeedError, match="changed since"):  # at the end: it is there no more
            found.extend(record for batch in going for record in batch.as_bytes())
        assert found == written


def test_a_file_that_is_written_to_gives_no_batch_more(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    tar_of(path, [bytes([i]) * 500 for i in range(100)])
    with Feed(path, 10, **IN_FIVES) as feed:
        going = iter(feed)
        next(going)
        with path.open("r+b") as file:
            file.seek(80_000)
            file.write(b"x" * 10)
        with pytest.raises(FeedError, match="changed since"):
            next(going)


def keys_into(found: set[bytes], batches: Iterator[Any]) -> None:
    for batch in batches:
        found |= set(batch.keys)


@pytest.fixture
def images(folder_path: Path, tmp_path: Path) -> Index:
    copy = tmp_path / "images"
    shutil.copytree(folder_path, copy)
    return open_index(copy)


# Portions of half a megabyte, read when asked.
WHEN_ASKED: dict[str, Any] = {"readers": 0, "buffer_bytes": 1 << 20}


def test_a_file_that_vanishes_from_a_folder_is_an_error_that_names_it(
    images: Index, tmp_path: Path
) -> None:
    with Feed(images, 8, **WHEN_ASKED) as feed:
        going = iter(feed)
        next(going)
        Path(images.files[N - 1]).rename(tmp_path / "elsewhere")
        with pytest.raises(FeedError, match="No such file"):
            list(going)


def vanish(path: Path) -> None:
    path.unlink()


def overwrite(path: Path) -> None:
    path.write_bytes(b"x" * path.stat().st_size)


@pytest.mark.parametrize("harm", [vanish, overwrite])
@pytest.mark.parametrize("is_before", [True, False])
def test_a_file_of_a_folder_that_is_gone_or_other_is_skipped_and_counted(
    images: Index, harm: Callable[[Path], None], is_before: bool
) -> None:
    with Feed(images, 8, on_error="skip", **WHEN_ASKED) as feed:
        going = iter(feed)
        found: set[bytes] = set()
        if not is_before:
            found |= set(next(going).keys)
        gone = Path(images.files[N - 1])
        harm(gone)
        keys_into(found, going)
        assert len(found) == N - 1
        assert images.key(N - 1) not in found
        assert feed.n_failed == 1
        assert str(gone) in feed.failures[0]
        keys_into(found := set(), iter(feed))  # and so in the next epoch
        assert (len(found), feed.n_failed) == (N - 1, 2)


def test_an_empty_data_set_has_nothing_to_read(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path), map_size=1 << 20).close()
    with pytest.raises(FeedError, match=r"no record|empty|nothing"):
        Feed(tmp_path, 8)


def test_a_record_larger_than_the_buffer_is_told_with_its_key_and_what_to_do(
    lmdb_path: Path,
) -> None:
    with (
        Feed(lmdb_path, 16, buffer_bytes=100_000) as feed,
        pytest.raises(FeedError, match="raise buffer_bytes, or lower batch_size"),
    ):
        list(feed)


def test_a_pass_that_two_threads_ask_at_once_says_what_to_do(
    lmdb_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that was first goes on, and a thread after it."""
    is_waiting, may_go_on = threading.Event(), threading.Event()
    load = feeding.load

    def waiting(*arguments: Any) -> Any:
        is_waiting.set()
        assert may_go_on.wait(20)
        return load(*arguments)

    monkeypatch.setattr(feeding, "load", waiting)
    with Feed(lmdb_path, 16, readers=0) as feed:
        going = iter(feed)
        found: list[list[bytes]] = []
        first = threading.Thread(target=lambda: found.append(next(going).keys))
        first.start()
        assert is_waiting.wait(20)
        with pytest.raises(FeedError, match=r"another thread .* a Feed of its own"):
            next(going)
        may_go_on.set()
        first.join()
        found += [batch.keys for batch in going]
    assert sorted(key for keys in found for key in keys) == [b"%08d" % i for i in range(N)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size": 0},
        {"batch_size": 1, "rank": 2, "world_size": 2},
        {"batch_size": 1, "shuffle": "sorted"},
        {"batch_size": 1, "seed": -1},
        {"batch_size": 1, "tail": "long"},
        {"batch_size": 1, "on_error": "ignore"},
        {"batch_size": 1, "readers": 99},
        {"batch_size": 1, "engine": "aio"},
        {"batch_size": 1, "depth": 0},
        {"batch_size": 2.5},
        {"batch_size": None},
        {"batch_size": 1, "seed": "a"},
        {"batch_size": 1, "rank": 0.0},
        {"batch_size": 1, "block_bytes": 1.5},
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(
    lmdb_path: Path, wrong: dict[str, Any]
) -> None:
    with pytest.raises(FeedError, match=r".{15}"):
        Feed(lmdb_path, **wrong)


def test_what_is_no_number_is_refused_with_a_sentence(lmdb_path: Path) -> None:
    for wrong in ({"coalesce_bytes": "4M"}, {"coalesce_bytes": None}, {"depth": 2.5}):
        with pytest.raises(FeedError, match="is no whole number"):
            Feed(lmdb_path, 8, **wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, b"train.lmdb", 7, [None], [b"a"]])
def test_what_is_no_path_is_refused_with_a_sentence(wrong: Any) -> None:
    with pytest.raises(FeedError, match="names no data set"):
        Feed(wrong, 1)


def test_cache_aware_ranks_must_be_told_what_memory_holds(lmdb_path: Path) -> None:
    with Feed(lmdb_path, 8, shuffle="cache-aware", world_size=2) as feed:
        with pytest.raises(FeedError, match="set_held"):
            iter(feed)
        feed.set_held(feed.held())
        assert sum(map(len, feed)) == N // 2


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """200,000 records of 96 bytes: of pages of 4,096 bytes in memory they would be 800 MB."""
    folder = tmp_path_factory.mktemp("tiny")
    with lmdb.open(str(folder), map_size=1 << 28) as env, env.begin(write=True) as txn:
        for i in range(200_000):
            txn.put(b"%08d" % i, b"%08d" % i * 12, append=True)
    return open_index(folder)


@pytest.mark.parametrize("shuffle", ["none", "block", "global", "cache-aware"])
@pytest.mark.parametrize("options", [{}, {"coalesce_bytes": 0}, {"block_bytes": 1}])
def test_tiny_records_need_no_options(tiny: Index, shuffle: str, options: dict[str, int]) -> None:
    seen = np.zeros(len(tiny), bool)
    with Feed(tiny, 256, shuffle=shuffle, buffer_bytes=32 << 20, **options) as feed:  # type: ignore[arg-type]
        for batch in feed:
            assert bytes(batch[0]) == batch[0].key * 12
            seen[batch.records] = True
    assert seen.all()


@pytest.mark.parametrize("buffer_bytes", [60_000, 100_000])
@pytest.mark.parametrize("shuffle", ["none", "block", "global"])
def test_a_small_buffer_takes_batches_that_fit_it_one_by_one(
    tmp_path: Path, buffer_bytes: int, shuffle: str
) -> None:
    sizes = random.Random(3)
    written = {b"%04d" % i: sizes.randbytes(sizes.randrange(1, 12_000)) for i in range(200)}
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for key, value in written.items():
            txn.put(key, value)
    with Feed(tmp_path, 1, shuffle=shuffle, buffer_bytes=buffer_bytes) as feed:
        assert read_all(feed) == written


# Memory, and what it costs


def test_memory_is_the_buffer_whatever_the_data_set(tmp_path: Path) -> None:
    """64 MB of records through a buffer of 6 MB: the process grows by no more than that."""
    program = """
        import os, sys, numpy as np
        from penstock.feed import Feed, open_index
        def resident(): return int(open("/proc/self/statm").read().split()[1]) * 4096
        index = open_index(sys.argv[1])
        with Feed(index, 4, shuffle="global", buffer_bytes=6 << 20) as feed:
            before = resident()
            most = max(resident() for batch in feed for _ in batch.views())
        print(most - before)
    """
    with lmdb.open(str(tmp_path / "a"), map_size=1 << 28) as env, env.begin(write=True) as txn:
        for i in range(640):
            txn.put(b"%05d" % i, os.urandom(100_000))
    said = run_python(program, tmp_path / "a")
    assert int(said) < 12 << 20  # the buffer, and threads with their stacks


def run_python(source: str, *args: Any, environment: dict[str, str] | None = None) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, args)],
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_read_past_the_page_cache_leaves_nothing_in_it(lmdb_path: Path, tmp_path: Path) -> None:
    path = tmp_path / "data.mdb"
    path.write_bytes((lmdb_path / "data.mdb").read_bytes())
    index = open_index(path)
    evict(path)
    if resident_bytes(path):
        pytest.skip("this file system keeps pages: nothing can be read past it")
    reader = Reader(index, Options(direct=True))
    layout = reader.layout(np.arange(N))
    loaded = reader.read(np.arange(N), Buffer(1 << 24).room(layout.room), layout)
    tally = reader.reading.tally
    reader.close()
    assert not loaded.failures
    if not tally.direct:
        pytest.skip("this file system has no O_DIRECT")
    assert tally.direct == tally.reads
    assert (resident_bytes(path) or 0) <= 2 * 4096  # the meta pages: where heads of values are


def test_a_file_system_in_memory_is_read_whatever_it_says_to_o_direct(
    lmdb_path: Path, records: dict[bytes, bytes]
) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        shutil.copy(lmdb_path / "data.mdb", folder)
        with Feed(Path(folder) / "data.mdb", 16, shuffle="global", direct=True) as feed:
            assert read_all(feed) == records


# A file system without O_DIRECT, as some network file systems are: it is refused when a file is
# opened, or only when it is read.
NO_DIRECT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

int open64(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    if ((flags & O_DIRECT) && !getenv("READS_REFUSE")) {
        errno = EINVAL;
        return -1;
    }
    return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, "open64"))(path, flags, mode);
}

ssize_t pread64(int fd, void *to, size_t size, off64_t offset)
{
    if (fcntl(fd, F_GETFL) & O_DIRECT) {
        errno = EINVAL;
        return -1;
    }
    return ((ssize_t (*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64"))(fd, to, size,
                                                                                    offset);
}

ssize_t pread(int fd, void *to, size_t size, off_t offset)
{
    return pread64(fd, to, size, offset);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("where", ["OPENS_REFUSE", "READS_REFUSE"])
def test_a_file_system_without_o_direct_is_read_through_the_page_cache(
    lmdb_path: Path, records: dict[bytes, bytes], tmp_path: Path, where: str
) -> None:
    (tmp_path / "no.c").write_text(NO_DIRECT)
    library = tmp_path / "no.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "no.c"], check=True)
    said = run_python(
        """
        import os, sys, zlib
        try:
            os.close(os.open(sys.argv[1] + "/data.mdb", os.O_RDONLY | os.O_DIRECT))
            print("opened")
        except OSError as error:
            print(error.errno)
        from penstock.feed import Feed
        found = {}
        with Feed(sys.argv[1], 16, shuffle="global", direct=True) as feed:
            for batch in feed:
                found |= {record.key: record.tobytes() for record in batch}
            print(zlib.crc32(repr(sorted(found.items())).encode()))
            print(feed.tally.direct, feed.tally.failed)
        """,
        lmdb_path,
        environment={"LD_PRELOAD": str(library), where: "1"},
    )
    opened = "opened" if where == "READS_REFUSE" else "22"
    truth = zlib.crc32(repr(sorted(records.items())).encode())
    assert said.split() == [opened, str(truth), "0", "0"]


def test_a_data_set_that_memory_cannot_hold_is_read_past_the_page_cache(
    lmdb_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = open_index(lmdb_path)
    for free, is_direct in ((10 * index.total_bytes, False), (index.total_bytes, True)):
        monkeypatch.setattr(read, "available_bytes", lambda free=free: free)
        with Feed(index, 16) as feed:
            assert feed._readers[0].is_direct == is_direct


@needs_fuse
def test_on_a_tier_with_latency_more_requests_are_in_flight(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(1500):
            txn.put(b"%06d" % i, bytes(5000), append=True)
    with slow(tmp_path, latency_s=5e-3) as tier, Feed(tier.path, 250, shuffle="global") as feed:
        assert feed.depth == 8
        assert sum(map(len, feed)) == 1500
        # Twice as many waits of 5 ms at once are twice as many records, whatever else runs here.
        assert feed.depth >= 16


@needs_fuse
@needs_uring
def test_a_ring_is_used_where_it_pays(lmdb_path: Path, records: dict[bytes, bytes]) -> None:
    """What the kernel reads through FUSE for a ring, threads of its own wait for."""

    def by_uring(path: Path | str, depth: int, engine: str = "auto") -> bool:
        evict(lmdb_path / "data.mdb")
        with Feed(path, 50, engine=engine, depth=depth, coalesce_bytes=0, direct=False) as feed:
            found = [pair for b in feed for pair in zip(b.keys, b.as_bytes(), strict=True)]
            assert dict(found) == records
            return feed.tally.by_uring > 0

    with slow(lmdb_path) as tier:
        assert [by_uring(tier.path, depth) for depth in (1, 8, 32)] == [False, False, True]
        assert by_uring(tier.path, 8, "uring")
    assert not by_uring(lmdb_path, 1)


def test_what_memory_holds_is_seen_and_taken_from_it(lmdb_path: Path) -> None:
    path = lmdb_path / "data.mdb"
    path.read_bytes()
    with Feed(lmdb_path, 16, shuffle="global") as feed:
        list(feed)
        assert feed.tally.from_memory == feed.tally.reads
        assert feed.held().all() or not feed.held().any()  # or the kernel does not tell
    evict(path)
    with Feed(lmdb_path, 16, readers=0) as feed:
        assert not feed.held().all()


def test_a_process_may_use_no_more_memory_than_there_is() -> None:
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_bytes() <= total


def test_ending_in_the_middle_of_a_pass_leaves_no_thread(lmdb_path: Path) -> None:
    said = run_python(
        """
        import sys, threading
        from penstock.feed import Feed
        feed = Feed(sys.argv[1], 2, shuffle="global")
        for batch in feed: break
        del batch
        before = threading.active_count()
        feed.close()
        print(threading.active_count())
        going = iter(Feed(sys.argv[1], 2)); next(going)  # and at the interpreter's end
        """,
        lmdb_path,
    )
    assert said.split() == ["1"]


# Under a recorder


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_a_recorded_run_shows_every_read_of_every_record(
    lmdb_path: Path, recorded: Callable[..., Any], engine: str
) -> None:
    """io_uring passes no import slot: while a recorder watches, the reads are preads."""
    assert not is_watched()
    run = recorded(
        """
        import sys
        from penstock.feed import Feed
        from penstock.feed.read import is_watched
        assert is_watched()
        with Feed(sys.argv[1], 16, coalesce_bytes=0, engine=sys.argv[2], direct=False) as feed:
            assert sum(map(len, feed)) == 300
            assert not feed.tally.by_uring
        """,
        args=[lmdb_path, engine],
    )
    index = open_index(lmdb_path)
    rows = run.sql(
        "select offset_bytes, asked_bytes, moved_bytes, errno from events "
        "where op = 'pread' and path like '%/data.mdb'"
    )
    seen = {(offset, asked) for offset, asked, moved, error in rows if moved == asked and not error}
    # A value that has pages of its own is read with the 16 bytes of its page's header.
    heads = np.where((index.offset - 16) % 4096 == 0, 16, 0)
    asked = zip((index.offset - heads).tolist(), (index.length + heads).tolist(), strict=True)
    assert set(asked) <= seen
    [(unseen,)] = run.sql("select sum(unseen_calls) from processes")
    assert not unseen


def test_in_a_portion_the_reads_are_seen_and_after_it_the_ring_is_used_again(
    lmdb_path: Path, tmp_path: Path
) -> None:
    from penstock.runs.run import open_run

    said = run_python(
        """
        import sys, penstock
        from penstock.feed import Feed
        from penstock.places.tiers import evict
        engine, asked = sys.argv[3], {"coalesce_bytes": 0, "direct": False, "readers": 0}
        with Feed(sys.argv[1], 16, engine=engine, **asked) as feed:
            for is_recorded in (False, True, False):
                evict(sys.argv[1] + "/data.mdb")
                window = penstock.record(sys.argv[2]) if is_recorded else None
                before = feed.tally
                list(feed)
                if window: window.stop()
                print(feed.tally.reads - before.reads, feed.tally.by_uring - before.by_uring)
        """,
        lmdb_path,
        tmp_path / "run",
        "uring" if has_uring() else "threads",
    )
    reads, by_uring = zip(*(map(int, line.split()) for line in said.splitlines()), strict=True)
    assert reads == (N, N, N)
    assert by_uring[1] == 0
    with open_run(tmp_path / "run") as run:
        [(n,)] = run.sql(
            "select count(*) from events where op = 'pread' and path like '%/data.mdb' "
            "and asked_bytes = moved_bytes and asked_bytes <> 4096"
        )
    small = int((open_index(lmdb_path).length == 4096).sum())
    assert n >= N - small
    if has_uring():
        assert by_uring[0] >= 1
        assert by_uring[2] >= 1


def test_tallies_add_up_field_by_field() -> None:
    names = Tally.__slots__
    one, two = (Tally(**{name: 10**at * n for at, name in enumerate(names)}) for n in (1, 2))
    assert one + two == Tally(**{name: 3 * 10**at for at, name in enumerate(names)})
