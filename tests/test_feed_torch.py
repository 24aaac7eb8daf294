"""FeedDataset, the stream and hints under torch's DataLoader: the same items as py-lmdb gives."""

import gc
import io
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
import textwrap
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest

import penstock
from penstock.adapters.torch import FeedDataset, feed_stream
from penstock.errors import FeedError
from penstock.feed import Record, hinted, open_index
from penstock.feed.hint import FEW, Hints
from penstock.feed.read import library
from penstock.places.tiers import evict, resident_bytes
from penstock_lab.tier import slow
from slowtier import needs_fuse

torch = pytest.importorskip("torch", reason="torch is not installed: make setup")
data = torch.utils.data

LIBRARY = Path(penstock.__file__).with_name("libfeed.so")
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the reader is not built: make native")

N = 200


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    sizes = random.Random(3)
    return [sizes.randbytes(sizes.choice([50, 3000, 20_000])) for _ in range(N)]


@pytest.fixture(scope="module")
def path(records: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torch") / "train.lmdb"
    with lmdb.open(str(folder), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i, value in enumerate(records):
            txn.put(b"%06d" % i, value)
    return folder


def decode(record: Record) -> tuple[str, bytes]:
    return record.key.decode(), record.tobytes()


class Plain(data.Dataset):  # type: ignore[misc,name-defined]
    """As it is written everywhere: py-lmdb, opened in each worker."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.env = None

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> bytes:
        if self.env is None:
            self.env = lmdb.open(self.path, readonly=True, lock=False, readahead=False)
        with self.env.begin() as txn:
            return bytes(txn.get(b"%06d" % i))


# Map-style


@pytest.mark.parametrize("workers", ["", "fork", "spawn"])
def test_a_loader_gives_what_py_lmdb_gives_in_the_same_order(
    path: Path, records: list[bytes], workers: str
) -> None:
    options: dict[str, Any] = {"batch_size": 16, "shuffle": True, "collate_fn": list}
    if workers:
        options |= {"num_workers": 2, "multiprocessing_context": workers}
    found = []
    for dataset in (FeedDataset(path), Plain(path)):
        torch.manual_seed(5)
        if workers == "spawn" and isinstance(dataset, Plain):
            options |= {"num_workers": 0, "multiprocessing_context": None}
        found.append([item for batch in data.DataLoader(dataset, **options) for item in batch])
    assert found[0] == found[1]
    assert sorted(found[0]) == sorted(records)


def test_items_by_number_slice_of_numbers_and_from_the_end(
    path: Path, records: list[bytes]
) -> None:
    dataset = FeedDataset(path, decode=decode)
    assert len(dataset) == N
    assert dataset[7] == ("000007", records[7])
    assert dataset[-1] == (f"{N - 1:06}", records[-1])
    assert [key for key, _ in dataset.__getitems__([5, 5, 199, 0])] == [
        "000005",
        "000005",
        "000199",
        "000000",
    ]
    with pytest.raises(IndexError, match=f"of a data set of {N}"):
        dataset[N]


def test_a_batch_larger_than_the_buffer_is_read_in_parts(path: Path, records: list[bytes]) -> None:
    dataset = FeedDataset(path, buffer_bytes=64 << 10)
    assert dataset.__getitems__(list(range(N))) == records
    small = FeedDataset(path, buffer_bytes=8 << 10)
    large = max(range(N), key=lambda i: len(records[i]))
    with pytest.raises(FeedError, match=r"the largest is .*raise buffer_bytes"):
        small[large]


def test_distributed_samplers_share_the_records(path: Path, records: list[bytes]) -> None:
    dataset, found = FeedDataset(path), []
    for rank in range(3):
        sampler = data.distributed.DistributedSampler(dataset, 3, rank, drop_last=True)
        loader = data.DataLoader(dataset, 8, sampler=sampler, collate_fn=list)
        found += [item for batch in loader for item in batch]
    assert len(found) == N // 3 * 3
    assert set(found) <= set(records)


def test_decoding_without_a_copy_is_collated_before_the_next_batch_comes(
    path: Path, records: list[bytes]
) -> None:
    dataset = FeedDataset(path, decode=lambda record: torch.tensor(record[:50]))
    loader = data.DataLoader(dataset, 10)
    whole = torch.cat(list(loader))
    assert [bytes(row.tolist()) for row in whole] == [value[:50] for value in records]


def test_items_are_the_records_of_the_keys_that_are_given(tmp_path: Path) -> None:
    """As data sets are written: keys without zeros in front, and records about the others."""
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for i in range(300):
            txn.put(str(i).encode(), b"record %d" % i)
        txn.put(b"__len__", b"300")
        txn.put(b"__keys__", b"many")
    dataset = FeedDataset(tmp_path, keys=[str(i) for i in range(300)])
    assert len(dataset) == 300
    loader = data.DataLoader(dataset, 7, collate_fn=list, num_workers=1)
    assert [item for batch in loader for item in batch] == [b"record %d" % i for i in range(300)]
    assert FeedDataset(tmp_path, keys=[b"299", b"2", b"2"])[-1] == b"record 2"
    with pytest.raises(FeedError, match="no record with the key b'300'"):
        FeedDataset(tmp_path, keys=["0", "300"])


# Threads that share a data set, and what items refer to


@pytest.fixture(scope="module", params=["lmdb", "folder", "tar"])
def container(
    request: pytest.FixtureRequest, path: Path, records: list[bytes], tmp_path_factory: Any
) -> Path:
    if request.param == "lmdb":
        return path
    root: Path = tmp_path_factory.mktemp(request.param)
    if request.param == "folder":
        for i, value in enumerate(records):
            (root / f"{i:06}.bin").write_bytes(value)
        return root
    with tarfile.open(root / "train.tar", "w") as tar:
        for i, value in enumerate(records):
            member = tarfile.TarInfo(f"{i:06}.bin")
            member.size = len(value)
            tar.addfile(member, io.BytesIO(value))
    return root / "train.tar"


def _is_whole(item: Any, value: bytes) -> bool:
    """A tar's record is its member with the head before it."""
    found = bytes(item)
    return found == value or (len(found) > 512 and found[512 : 512 + len(value)] == value)


@pytest.mark.parametrize("decode", [None, np.asarray, memoryview])
def test_threads_that_share_a_data_set_each_get_their_own_records(
    container: Path, records: list[bytes], decode: Any
) -> None:
    dataset = FeedDataset(container, decode)
    numbers = random.Random(2).choices(range(N), k=600)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(dataset.__getitem__, numbers))
        batches = [numbers[i : i + 30] for i in range(0, 600, 30)]
        found += [item for items in pool.map(dataset.__getitems__, batches) for item in items]
    wrong = [
        number
        for number, item in zip(numbers * 2, found, strict=True)
        if not _is_whole(item, records[number])
    ]
    assert not wrong


def test_threads_that_ended_leave_no_descriptor_and_a_data_set_can_be_closed_beside_them(
    path: Path, records: list[bytes]
) -> None:
    def opened() -> int:
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    dataset = FeedDataset(path)
    assert dataset[3] == records[3]
    before = opened()
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(dataset.__getitem__, i % N) for i in range(400)]
        for _ in range(20):
            dataset.close()
        assert [answer.result() for answer in answers] == [records[i % N] for i in range(400)]
    assert dataset[5] == records[5]
    assert opened() <= before
    del dataset
    assert opened() < before


def test_a_worker_that_is_forked_while_threads_read_gets_its_records(
    path: Path, records: list[bytes]
) -> None:
    dataset, is_over = FeedDataset(path), threading.Event()

    def read_on() -> None:
        while not is_over.is_set():
            dataset.__getitems__([1, 2, 3])

    with ThreadPoolExecutor(2) as pool:
        for _ in range(2):
            pool.submit(read_on)
        loader = data.DataLoader(dataset, 16, collate_fn=list, num_workers=2)
        found = [item for batch in loader for item in batch]
        is_over.set()
    assert found == records


@pytest.mark.parametrize("look", [np.asarray, memoryview, torch.from_numpy, lambda r: r[:]])
def test_items_that_refer_to_their_record_stay_as_they_are(
    path: Path, records: list[bytes], look: Any
) -> None:
    """A batch of several parts, batches after each other, and items one by one."""
    dataset = FeedDataset(path, look, buffer_bytes=64 << 10)
    items = dataset.__getitems__(list(range(N)))
    items += [dataset[i] for i in range(50)]
    found = [bytes(memoryview(getattr(item, "numpy", lambda item=item: item)())) for item in items]
    assert found == [*records, *records[:50]]


def test_a_batch_of_parts_is_collated_whole(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(24):
            txn.put(b"%03d" % i, bytes([i]) * (1 << 20))
    dataset = FeedDataset(tmp_path, np.asarray, buffer_bytes=8 << 20)
    rows = [row for batch in data.DataLoader(dataset, 12) for row in batch]
    assert [row.unique().tolist() for row in rows] == [[i] for i in range(24)]


def test_memory_that_no_item_refers_to_is_used_again(path: Path) -> None:
    places: set[int] = set()

    def place(record: Record) -> int:
        places.add(record.ctypes.data)
        return 0

    dataset = FeedDataset(path, place)
    large = [i for i in range(N) if dataset.index.length[i] == 20_000]
    for i in large:
        dataset[i]
    assert len({found // (1 << 16) for found in places}) <= 2  # one buffer, whatever is read


def test_a_second_thread_is_refused_by_a_reader(path: Path) -> None:
    reader = FeedDataset(path)._of_thread.reader
    memory = np.zeros(1 << 20, np.uint8)[-(1 << 19) :]
    reader.read(np.arange(3), memory)
    assert reader._engine is not None
    with reader._engine._in_use, pytest.raises(FeedError, match="another thread reads"):
        reader.read(np.arange(3), memory)


# A stream


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", ["none", "block", "global"])
def test_a_stream_gives_every_record_once_whoever_reads(
    path: Path, records: list[bytes], workers: int, shuffle: str
) -> None:
    found = []
    for rank in range(2):
        stream = feed_stream(path, 8, decode, rank=rank, world_size=2, shuffle=shuffle, seed=1)
        loader = data.DataLoader(stream, 10, num_workers=workers, collate_fn=list)
        found += [item for batch in loader for item in batch]
    assert sorted(found) == [(f"{i:06}", value) for i, value in enumerate(records)]


def as_tensor(record: Record) -> Any:
    return torch.from_numpy(np.asarray(record))


@pytest.mark.parametrize(("workers", "readers"), [(0, 0), (0, 2), (1, 1)])
def test_what_decode_returns_by_reference_stays_as_it_is_in_a_stream(
    path: Path, records: list[bytes], workers: int, readers: int
) -> None:
    """The memory of a portion is used again: items were of other records when batches went on."""
    stream = feed_stream(path, 4, as_tensor, buffer_bytes=1 << 19, readers=readers)
    loader = data.DataLoader(stream, None, num_workers=workers)
    for _ in range(2):
        items = [item.numpy() for item in loader]
        assert [item.tobytes() for item in items] == records


def test_a_stream_copies_a_record_for_decode_unless_it_is_told_not_to(
    path: Path, records: list[bytes]
) -> None:
    def look(record: Record) -> tuple[bool, bool, bytes, bytes]:
        return record.flags.owndata, record.flags.writeable, record.key, record.tobytes()

    for copies in (True, False):
        seen = list(feed_stream(path, 8, look, copy=copies))
        assert seen == [(copies, copies, b"%06d" % i, value) for i, value in enumerate(records)]


def test_a_stream_goes_on_from_its_state_and_changes_with_the_epoch(path: Path) -> None:
    def keys(stream: Any) -> list[str]:
        return [key for key, _ in stream]

    stream = feed_stream(path, 10, decode, shuffle="global")
    first = keys(stream)
    stream.set_epoch(1)
    second = keys(stream)
    assert sorted(first) == sorted(second)
    assert first != second
    stream.set_epoch(1)
    going = iter(stream)
    begun = [next(going)[0] for _ in range(30)]
    other = feed_stream(path, 10, decode, shuffle="global")
    other.load_state_dict(stream.state_dict())
    assert begun + keys(other) == second


@pytest.mark.parametrize("n_given", [0, 1, 63, 64, 100, 192, N - 1, N])
def test_a_stream_goes_on_at_any_item(path: Path, n_given: int) -> None:
    stream, whole = (feed_stream(path, 64, decode, shuffle="global", seed=3) for _ in range(2))
    expected = [key for key, _ in whole]
    following = [key for key, _ in whole]
    assert following != expected
    going = iter(stream)
    begun = [next(going)[0] for _ in range(n_given)]
    assert begun == expected[:n_given]
    state = json.loads(json.dumps(stream.state_dict()))
    other = feed_stream(path, 64, decode, shuffle="global", seed=3)
    other.load_state_dict(state)
    assert other.state_dict() == state  # taken again before it is used
    assert begun + [key for key, _ in other] == expected
    assert [key for key, _ in other] == following
    assert begun + [key for key, _ in stream] == expected  # what a `break` left
    fewer = feed_stream(path, 10, decode, shuffle="global", seed=3)
    fewer.load_state_dict(state)  # other batches: none of the one that was begun is lost
    rest = [key for key, _ in fewer]
    assert set(begun) | set(rest) == set(expected)
    assert len(rest) == len(set(rest)) == N - n_given // 64 * 64 or n_given % 64 == 0


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_the_epoch_reaches_workers_that_stay(path: Path, context: str) -> None:
    stream = feed_stream(path, 8, _key, shuffle="global")
    loader = data.DataLoader(
        stream, 8, num_workers=2, persistent_workers=True, multiprocessing_context=context
    )

    def keys(epoch: int) -> list[str]:
        stream.set_epoch(epoch)
        return [key for batch in loader for key in batch]

    first, again, other = keys(5), keys(5), keys(6)
    assert first == again
    assert sorted(first) == sorted(other)
    assert first != other


def _key(record: Record) -> str:
    return record.key.decode()


def _resumed(path: Path) -> tuple[Any, list[str]]:
    """A stream with a state of epoch 2 after 64 items, and all of the epoch in order."""
    stream, whole = (feed_stream(path, 16, _key, shuffle="global") for _ in range(2))
    for each in (stream, whole):
        each.set_epoch(2)
    going = iter(stream)
    for _ in range(64):
        next(going)
    other = feed_stream(path, 16, _key, shuffle="global")
    other.load_state_dict(stream.state_dict())
    return other, list(whole)


def test_a_state_is_kept_by_set_epoch_of_its_own_epoch(path: Path) -> None:
    stream, expected = _resumed(path)
    stream.set_epoch(2)
    assert list(stream) == expected[64:]
    stream.set_epoch(2)  # it was used
    assert list(stream) == expected
    stream, expected = _resumed(path)
    stream.set_epoch(3)
    assert sorted(stream) == sorted(expected)


@pytest.mark.parametrize("is_seeded", [False, True])
@pytest.mark.parametrize("stays", [False, True])
def test_workers_go_on_from_a_state_once(path: Path, stays: bool, is_seeded: bool) -> None:
    stream, expected = _resumed(path)
    loader = data.DataLoader(stream, 8, num_workers=2, persistent_workers=stays)

    def keys() -> list[str]:
        if is_seeded:
            torch.manual_seed(0)  # each loader then tells its workers the same
        return [key for batch in loader for key in batch]

    assert sorted(keys()) == sorted(expected[48:])  # with two ranks the batch begun comes again
    assert sorted(keys()) == sorted(expected)
    stream.set_epoch(2)
    assert sorted(keys()) == sorted(expected)


@pytest.mark.parametrize("stays", [False, True])
def test_after_a_break_workers_begin_anew_and_the_parent_has_no_state(
    path: Path, stays: bool
) -> None:
    stream = feed_stream(path, 16, _key, shuffle="global")
    assert stream.state_dict()["parts"][-1][-1] == 0  # nobody reads yet
    loader = data.DataLoader(stream, 8, num_workers=2, persistent_workers=stays)
    for _ in loader:
        break
    with pytest.raises(FeedError, match="StatefulDataLoader"):
        stream.state_dict()
    for _ in range(2):
        found = [key for batch in loader for key in batch]
        assert sorted(found) == [f"{i:06}" for i in range(N)]
    stream.set_epoch(4)
    assert stream.state_dict()["epoch"] == 4


# Errors of decode


@pytest.mark.parametrize("workers", [0, 1])
def test_a_record_that_cannot_be_decoded_is_named(path: Path, workers: int) -> None:
    stream = feed_stream(path, 8, _undecodable)
    for dataset in (FeedDataset(path, _undecodable), stream):
        with pytest.raises(ValueError, match="no picture") as raised:
            list(data.DataLoader(dataset, 8, num_workers=workers))
        told = str(raised.value) + "".join(getattr(raised.value, "__notes__", []))
        assert "record b'000005' of " in told
        assert str(path / "data.mdb") in told


def _undecodable(record: Record) -> int:
    if record.key == b"000005":
        raise ValueError("no picture")
    return 0


def test_it_is_a_data_set_of_torch_and_needs_none(path: Path, records: list[bytes]) -> None:
    dataset = FeedDataset(path)
    assert isinstance(dataset, data.Dataset)
    assert isinstance(pickle.loads(pickle.dumps(dataset)), data.Dataset)
    part, _ = data.random_split(dataset, [3, N - 3])
    assert part[1] == records[part.indices[1]]
    program = """
        import sys
        import penstock.feed, penstock.adapters.torch
        assert "torch" not in sys.modules
        sys.modules["torch"] = None
        dataset = penstock.adapters.torch.FeedDataset(sys.argv[1])
        print(sum(map(len, dataset)))
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(path)]
    assert int(subprocess.check_output(command)) == sum(map(len, records))


def test_data_sets_are_added(path: Path, records: list[bytes]) -> None:
    both = FeedDataset(path) + FeedDataset(path, np.asarray)
    assert len(both) == 2 * N
    found = [item for batch in data.DataLoader(both, 16, collate_fn=list) for item in batch]
    assert list(map(bytes, found)) == records * 2


# Ranks


def test_four_ranks_of_torchrun_share_one_index_and_read_each_record_once(
    path: Path, records: list[bytes], tmp_path: Path
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, sys, pathlib
            import torch.distributed as dist
            from penstock.adapters.torch import shared_index, feed_stream
            from penstock.errors import FeedError
            from penstock.feed import index
            dist.init_process_group("gloo")
            rank = dist.get_rank()
            if rank:  # nobody else may make one
                index.files_of = None
            found = shared_index(sys.argv[1])
            stream = feed_stream(found, 8, lambda r: r.key.decode(), shuffle="global", seed=2)
            pathlib.Path(sys.argv[2], f"keys-{rank}").write_text("\\n".join(stream))
            if not rank:
                index.files_of = lambda *_: (_ for _ in ()).throw(FeedError("gone"))
            try:
                shared_index("/nowhere")
            except FeedError as error:
                pathlib.Path(sys.argv[2], f"error-{rank}").write_text(str(error))
            dist.destroy_process_group()
            """
        )
    )
    finished = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "4",
            program,
            path,
            tmp_path,
        ],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    keys = [
        key for rank in range(4) for key in (tmp_path / f"keys-{rank}").read_text().splitlines()
    ]
    assert sorted(keys) == [f"{i:06}" for i in range(N)]
    assert {(tmp_path / f"error-{rank}").read_text() for rank in range(4)} == {"rank 0: gone"}


# Hints


@pytest.mark.parametrize("workers", [0, 2])
def test_a_hinted_loader_gives_the_same_batches_in_the_same_order(path: Path, workers: int) -> None:
    found = []
    for change in (lambda loader: loader, hinted):
        torch.manual_seed(6)
        loader = change(
            data.DataLoader(Plain(path), 16, shuffle=True, collate_fn=list, num_workers=workers)
        )
        assert len(loader) == -(-N // 16)
        found.append([list(loader), list(loader)])  # two epochs
    assert found[0] == found[1]


@pytest.mark.parametrize("batch_size", [None, 1, 16])
def test_hints_run_ahead_of_the_order_by_so_many_records(path: Path, batch_size: Any) -> None:
    order = random.Random(1).sample(range(N), N)
    items: list[Any] = order
    if batch_size:
        items = [order[i : i + batch_size] for i in range(0, N, batch_size)]
    hints = Hints(path, ahead=32)
    given: list[int] = []
    hints.give = lambda numbers, at_once=False: given.extend(numbers)  # type: ignore[method-assign]
    n_passed = 0
    for item, expected in zip(hints.along(items), items, strict=True):
        assert item == expected
        n_passed += batch_size or 1
        assert len(given) >= min(N, n_passed + 32)
        assert len(given) <= n_passed + 32 + max(FEW, batch_size or 1)
    assert given == order


def test_what_was_hinted_is_in_memory_and_nothing_else(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(100):
            txn.put(b"%06d" % i, os.urandom(300_000))
    index = open_index(tmp_path)
    file = tmp_path / "data.mdb"
    evict(file)
    if resident_bytes(file):
        pytest.skip("this file system keeps pages: what was hinted cannot be told")
    hints = Hints(index)
    hints.hint_now([3, 50, 51])
    expected = 3 * 300_000
    # The kernel reads what it was told before we look, or soon: wait for it by reading it.
    with open(file, "rb", buffering=0) as raw:
        for i in (3, 50, 51):
            os.pread(raw.fileno(), 300_000, int(index.offset[i]))
    resident = resident_bytes(file)
    assert resident is not None
    assert expected <= resident <= 3 * expected
    assert hints.n_hinted == 3


def test_a_wrong_hint_is_no_error(path: Path, records: list[bytes]) -> None:
    loader = data.DataLoader(Plain(path), 16, collate_fn=list)
    wrong = hinted(loader, record_of=lambda i: [b"no such key", -5, 10**9][i % 3])
    assert [item for batch in wrong for item in batch] == records


def test_a_data_set_whose_place_or_order_is_not_known_is_asked_for(path: Path) -> None:
    class Nowhere(Plain):
        def __init__(self) -> None:
            self.n = 1

    with pytest.raises(FeedError, match="say where its data lies"):
        hinted(data.DataLoader(Nowhere()))
    with pytest.raises(FeedError, match="say which is which"):
        hinted(_shorter(path))
    with pytest.raises(FeedError, match="Feed reads streams"):
        hinted(data.DataLoader(feed_stream(path, 8)))


def _shorter(path: Path) -> Any:
    class Shorter(Plain):
        def __len__(self) -> int:
            return N - 1

    return data.DataLoader(Shorter(path))


def test_subsets_and_keys_are_followed(path: Path, records: list[bytes]) -> None:
    class Keyed(Plain):
        def __init__(self, path: Path) -> None:
            super().__init__(path)
            self.keys = [b"%06d" % i for i in reversed(range(N))]

    hinted_loader = hinted(data.DataLoader(data.Subset(Keyed(path), [0, 5]), 1))
    sampler = hinted_loader.batch_sampler
    assert sampler._hints._records([0, 1]).tolist() == [N - 1, N - 6]
    assert sampler.batch_size == 1


def test_hints_of_a_feed_dataset_are_of_the_records_of_its_keys(path: Path) -> None:
    asked = [b"%06d" % i for i in (7, 3, 3, 199)]
    loader = hinted(data.DataLoader(FeedDataset(path, keys=asked), 2))
    assert loader.batch_sampler._hints._records(range(4)).tolist() == [7, 3, 3, 199]

    class Keyed(Plain):
        keys = np.array([b"%06d" % i for i in reversed(range(N))])

    loader = hinted(data.DataLoader(Keyed(path), 2))
    assert loader.batch_sampler._hints._records([0, 5]).tolist() == [N - 1, N - 6]
    with pytest.raises(FeedError, match="needs no hints"):
        hinted(data.DataLoader(FeedDataset(path, direct=True), 2))


def test_an_image_folder_is_hinted_by_its_samples(tmp_path: Path) -> None:
    class Images:
        def __init__(self, root: Path) -> None:
            self.root = str(root)
            found = sorted(root.rglob("*.jpg"), reverse=True)
            self.samples = [(str(path), 0) for path in found]

        def __len__(self) -> int:
            return len(self.samples)

        def __getitem__(self, i: int) -> int:
            return len(Path(self.samples[i][0]).read_bytes())

    for i in range(9):
        place = tmp_path / f"class{i % 3}" / f"{i}.jpg"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(bytes(i + 1))
    images = Images(tmp_path)
    loader = hinted(data.DataLoader(images, 3))
    hints = loader.batch_sampler._hints
    files = [hints.index.files[hints.index.file[i]] for i in hints._records(range(9))]
    assert files == [path for path, _ in images.samples]
    assert sum(int(batch.sum()) for batch in loader) == sum(range(1, 10))


def test_the_library_says_whether_ranges_are_held(path: Path) -> None:
    assert library().penstock_feed_held(-1, None, None, None, 0) == 0


# Under `penstock run`


def test_a_model_is_trained_from_an_lmdb_and_the_reads_are_in_the_report(
    path: Path, recorded: Callable[..., Any]
) -> None:
    run = recorded(
        """
        import sys, torch
        from penstock.adapters.torch import FeedDataset
        def decode(record):
            return torch.tensor(record[:32]).float() / 255, float(record.size > 1000)
        loader = torch.utils.data.DataLoader(
            FeedDataset(sys.argv[1], decode), 20, shuffle=True, num_workers=1)
        model = torch.nn.Linear(32, 1)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x)[:, 0], y.float()).backward()
            optimizer.step()
        """,
        args=[path],
    )
    [(reads, moved)] = run.sql(
        "select count(*), sum(moved_bytes) from events "
        "where op = 'pread' and path like '%/data.mdb' and errno = 0"
    )
    assert reads >= 10
    assert moved >= open_index(path).total_bytes
    [(steps,)] = run.sql("select count(*) from spans where kind = 'step'")
    assert steps >= N // 20


@pytest.mark.slow  # two recorded trainings, one of which waits for each page
@needs_fuse
def test_a_training_on_a_slow_tier_waits_no_more_with_a_feed_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "lab" / "benchmarks")
    import feed_training

    lmdb_path = feed_training.made(tmp_path, 96)
    with slow(lmdb_path, latency_s=4e-3) as tier:
        runs = [
            feed_training.training(tmp_path, Path(tier.path), reader, list)
            for reader in ("lmdb", "feed")
        ]
    before, after = (feed_training.seen(run, run.name) for run in runs)
    assert before.steps == after.steps == 3
    # 25 pages a record, each 4 ms, against a request or two: it holds on a busy machine too.
    assert before.data_wait_s > 1
    assert after.data_wait_s < before.data_wait_s / 3


def test_a_data_set_whose_lmdb_changes_is_an_error_and_no_other_bytes(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env:
        with env.begin(write=True) as txn:
            for i in range(50):
                txn.put(b"%03d" % i, bytes([i]) * 5000)
        dataset = FeedDataset(tmp_path)
        assert dataset[7] == bytes([7]) * 5000
        for new in range(3):
            with env.begin(write=True) as txn:
                for i in range(50):
                    txn.put(b"%03d" % i, bytes([200 + new]) * 5000)
            with pytest.raises(FeedError, match="changed since it was indexed"):
                dataset[7]
            with pytest.raises(FeedError, match="changed since it was indexed"):
                dataset.__getitems__([3, 4])
        assert FeedDataset(tmp_path)[7] == bytes([202]) * 5000


class HoldsItsEnvironment:
    """A data set as many are: opened when it is made, and no path kept."""

    def __init__(self, path: Path) -> None:
        self.env = lmdb.open(str(path), readonly=True, lock=False, readahead=False)

    def __len__(self) -> int:
        return N

    def __getitem__(self, number: int) -> bytes:
        with self.env.begin() as txn:
            return bytes(txn.get(b"%06d" % number))


def test_a_data_set_that_holds_only_its_environment_is_hinted(
    path: Path, records: list[bytes]
) -> None:
    dataset = HoldsItsEnvironment(path)
    loader = hinted(data.DataLoader(dataset, 10, shuffle=True, collate_fn=list))
    assert sorted(item for batch in loader for item in batch) == sorted(records)
    assert loader.batch_sampler._hints.index.path == str(path)
    dataset.env.close()
    with pytest.raises(FeedError, match="names no path"):
        hinted(data.DataLoader(dataset, 10))


def test_small_records_are_read_and_not_what_lies_between_them(tmp_path: Path) -> None:
    """A shuffled batch of records of 3 KB, each fifth of a data set: pages that no record asked for
    are read only where that saves a request."""
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(5000):
            txn.put(b"%06d" % i, bytes(3000), append=True)
    dataset = FeedDataset(tmp_path)
    numbers = random.Random(5).sample(range(5000), 1000)
    dataset.__getitems__(numbers)
    index = dataset.index
    first = index.offset[numbers] // 4096
    last = (index.offset[numbers] + 2999) // 4096
    needed = 4096 * len({*first.tolist(), *last.tolist()})
    assert dataset._of_thread.reader.reading.tally.read_bytes < 1.3 * needed


def test_an_item_is_named_by_a_whole_number(path: Path, records: list[bytes]) -> None:
    dataset = FeedDataset(path)
    for wrong in (2.5, "1", None):
        with pytest.raises(TypeError, match="whole number"):
            dataset[wrong]  # type: ignore[index]
    assert dataset.__getitems__([]) == []
    assert dataset.__getitems__([torch.tensor(3), 4]) == records[3:5]
