"""Reader processes and ranks of one node: every record once, and whoever is killed is noticed."""

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.errors import FeedError
from penstock.feed import Batch, Feed, NodeFeed, attach, node_memory, open_index, serve, share
from penstock.feed.serve import Readers
from penstock.places.tiers import evict
from penstock_lab.tier import capped
from slowtier import WHY_NO_MEMORY

LIBRARY = Path(penstock.__file__).with_name("libfeed.so")
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="the reader is not built: make native")

N = 240


@pytest.fixture(scope="module")
def records() -> dict[bytes, bytes]:
    sizes = random.Random(4)
    return {b"%06d" % i: sizes.randbytes(sizes.choice([9, 3000, 20_000])) for i in range(N)}


@pytest.fixture(scope="module")
def path(records: dict[bytes, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("node") / "train.lmdb"
    with lmdb.open(str(folder), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for key, value in records.items():
            txn.put(key, value)
    return folder


def shared() -> set[str]:
    """What of ours or of Python's shared memory is in /dev/shm; others use it meanwhile."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("penstock-feed", "psm_"))}


def in_children(n: int, work: Callable[[int, Path], None], folder: Path) -> list[int]:
    """Runs work(rank, folder) in n forked processes; their exit statuses."""
    children = []
    for rank in range(n):
        child = os.fork()
        if not child:
            status = 1
            try:
                work(rank, folder)
                status = 0
            finally:
                os._exit(status)
        children.append(child)
    return [os.waitpid(child, 0)[1] for child in children]


@pytest.mark.parametrize("shuffle", ["none", "block", "global"])
@pytest.mark.parametrize(("readers", "stagger"), [(1, 0), (3, 0), (3, 1), (None, 2)])
def test_ranks_of_a_node_get_each_record_once_in_each_epoch(
    path: Path,
    records: dict[bytes, bytes],
    tmp_path: Path,
    shuffle: str,
    readers: int | None,
    stagger: int,
) -> None:
    def work(rank: int, folder: Path) -> None:
        feed = attach(token, rank)
        with open(folder / f"{rank}", "wb") as said:
            for _ in range(2):
                n_batches = len(feed)
                for batch in feed:
                    n_batches -= 1
                    for record in batch:
                        assert record.tobytes() == records[record.key]
                        said.write(b"%d %s\n" % (feed.epoch, record.key))
                assert not n_batches

    with NodeFeed(
        path,
        8,
        ranks=range(3),
        world_size=3,
        shuffle=shuffle,
        seed=2,
        readers=readers,
        stagger=stagger,
        buffer_bytes=8 << 20,
        pool_bytes=200_000,
    ) as node:
        token = node.token
        assert in_children(3, work, tmp_path) == [0, 0, 0]
    lines = [line for rank in range(3) for line in (tmp_path / f"{rank}").read_bytes().splitlines()]
    assert sorted(lines) == sorted(b"%d %s" % (epoch, key) for epoch in (0, 1) for key in records)


@pytest.mark.timeout(300)
def test_ranks_in_step_do_not_wait_for_each_other_when_their_portions_differ(
    tmp_path: Path,
) -> None:
    """As synchronous training takes batches: one rank's records are large, the other's small."""
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for i in range(200):
            txn.put(b"%06d" % i, bytes(40_000 if i % 2 == 0 else 10))
    with NodeFeed(
        tmp_path, 1, ranks=[0, 1], world_size=2, readers=1, buffer_bytes=6 * 100_000,
        coalesce_bytes=0,
    ) as node:  # fmt: skip
        feeds = [node.rank(0), node.rank(1)]
        portions = [node._node.plan(place, node._node.stand()).n_portions for place in range(2)]
        assert portions[0] > portions[1] + 2 * node_memory.SLOTS
        for _ in range(2):
            found = [
                [len(record) for record in batch]
                for both in zip(*feeds, strict=True)
                for batch in both
            ]
            assert found == [[40_000], [10]] * 100


@pytest.mark.parametrize("n_taken", [0, 1, 2, 5, 12, 13])
def test_a_for_that_was_left_goes_on_with_the_next_one(path: Path, n_taken: int) -> None:
    with Feed(path, 8, shuffle="global", world_size=2) as feed:
        expected = [[batch.keys for batch in feed] for _ in range(2)]
    options: dict[str, Any] = {"shuffle": "global", "world_size": 2, "buffer_bytes": 4 << 20}
    with NodeFeed(path, 8, ranks=[0], engine="threads", **options) as node:
        rank, found = node.rank(0), []
        for batch in rank:
            found.append(batch.keys)
            if len(found) > n_taken:
                break
        left = iter(rank)
        if n_taken % 2:  # one that is never begun, or is left alone
            found.append(next(left).keys)
        for batch in rank:
            found.append(batch.keys)
        assert found == expected[0]
        assert [batch.keys for batch in rank] == expected[1]
        with pytest.raises(FeedError, match="ended by another one"):
            next(left)


def test_a_rank_is_not_gone_on_with_in_a_forked_child(path: Path) -> None:
    with NodeFeed(path, 8, ranks=[0], world_size=1, buffer_bytes=1 << 20) as node:
        going = iter(node.rank(0))
        first = next(going).keys
        child = os.fork()
        if not child:
            try:
                next(going)
            except FeedError as error:
                os._exit(0 if "attach()" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert first not in (rest := [batch.keys for batch in going])
        assert len(rest) == N // 8 - 1


def test_reads_of_a_node_are_merged_as_asked(path: Path) -> None:
    index = open_index(path)
    records = np.arange(len(index))
    reads = []
    for options in ({}, {"coalesce_bytes": 0}, {"coalesce_bytes": 8 << 20}):
        with NodeFeed(index, 8, ranks=[0], world_size=1, buffer_bytes=64 << 20, **options) as node:
            reads.append(len(node._node.layout(records).length))
    assert reads[1] > reads[0] > reads[2]


def test_a_rank_of_a_node_gets_what_a_feed_of_its_own_gives(path: Path) -> None:
    options: dict[str, Any] = {"shuffle": "global", "seed": 3, "world_size": 2}
    with NodeFeed(path, 8, ranks=[1], buffer_bytes=4 << 20, epoch=4, **options) as node:
        shared = node.rank(1)
        assert shared.epoch == 4
        found = [batch.keys for batch in shared]
        state = shared.state_dict()
    with Feed(path, 8, rank=1, **options) as feed:
        feed.set_epoch(4)
        assert [batch.keys for batch in feed] == found
        assert feed.state_dict() == state


def test_a_node_goes_on_from_a_state(path: Path) -> None:
    with Feed(path, 8, shuffle="block", seed=1) as feed:
        going = iter(feed)
        begun = [next(going).keys for _ in range(7)]
        state = feed.state_dict()
        rest = [batch.keys for batch in going]
    with NodeFeed(path, 8, ranks=[0], world_size=1, shuffle="block", seed=1, state=state) as node:
        found = [batch.keys for batch in node.rank(0)]
    keys = [
        sorted(key for batch in part for key in batch) for part in (begun + found, begun + rest)
    ]
    assert keys[0] == keys[1]


@pytest.mark.alone
def test_the_memory_has_no_name_and_the_readers_end_with_the_feed(path: Path) -> None:
    before = shared()
    with NodeFeed(path, 8, ranks=[0], world_size=1, readers=2) as node:
        readers = node.processes
        assert shared() == before
        assert all(Path(f"/proc/{reader}").exists() for reader in readers)
        next(iter(node.rank(0)))
    assert not any(Path(f"/proc/{reader}").exists() for reader in readers)


# Who is killed is noticed


@pytest.fixture
def stopped(path: Path) -> Iterator[tuple[NodeFeed, Any]]:
    """A feed whose readers wait for their rank, which waits for nothing yet."""
    with NodeFeed(
        path, 4, ranks=[0], world_size=1, readers=2, shuffle="global", buffer_bytes=1 << 20
    ) as node:
        yield node, node.rank(0)


def test_a_reader_that_is_killed_is_named_and_nobody_hangs(stopped: tuple[NodeFeed, Any]) -> None:
    node, feed = stopped
    going = iter(feed)
    next(going)
    for process in node.processes:
        os.kill(process, signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(FeedError, match=r"reader [01] of .*train.lmdb \(process \d+\) has ended"):
        list(going)
    assert time.monotonic() - began < 100  # without it they would wait for ever


@pytest.mark.alone
def test_readers_end_when_their_owner_is_killed_and_ranks_are_told(
    path: Path, tmp_path: Path
) -> None:
    before = shared()
    program = """
        import sys, time
        from penstock.feed import NodeFeed
        node = NodeFeed(sys.argv[1], 4, ranks=[0], world_size=1, shuffle="global", readers=2,
                        buffer_bytes=1 << 20)
        print(node.token, *node.processes, flush=True)
        time.sleep(1000)
    """
    owner = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), path], stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    token, *readers = owner.stdout.readline().split()
    feed = attach(token, 0)
    going = iter(feed)
    next(going)
    owner.kill()
    owner.wait()
    owner.stdout.close()
    deadline = time.monotonic() + 240
    while any(_runs(int(reader)) for reader in readers):
        assert time.monotonic() < deadline, "a reader outlives its owner"
        os.sched_yield()
    with pytest.raises(
        FeedError, match=f"process {owner.pid}, which owns the readers .* has ended"
    ):
        list(going)
    assert shared() == before
    with pytest.raises(FeedError, match="has ended"):
        attach(token, 0)


def _runs(process: int) -> bool:
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def test_a_rank_that_is_killed_holds_up_no_other(
    path: Path, records: dict[bytes, bytes], tmp_path: Path
) -> None:
    def work(rank: int, folder: Path) -> None:
        feed = attach(token, rank)
        going = iter(feed)
        next(going)
        if rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        n = 1 + sum(1 for _ in going)
        (folder / "seen").write_text(str(n))

    with NodeFeed(
        path, 4, ranks=[0, 1], world_size=2, shuffle="global", readers=1, buffer_bytes=1 << 20
    ) as node:
        token = node.token
        assert in_children(2, work, tmp_path) == [signal.SIGKILL, 0]
    assert (tmp_path / "seen").read_text() == str(N // 2 // 4)


def test_a_rank_that_never_comes_is_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with NodeFeed(
        path, 4, ranks=[0, 1], world_size=2, shuffle="global", readers=1, buffer_bytes=1 << 20
    ) as node:
        monkeypatch.setattr(share, "STARTED_S", 1.0)  # the readers were given their time
        feed = node.rank(1)
        with pytest.raises(FeedError, match="rank 0 of this node has not attached"):
            list(feed)


# What goes wrong


def test_a_file_that_was_cut_short_is_an_error_of_the_rank_that_reads_it(
    path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "data.mdb"
    copy.write_bytes((path / "data.mdb").read_bytes())
    index = open_index(copy)
    with NodeFeed(
        index, 8, ranks=[0], world_size=1, shuffle="global", buffer_bytes=1 << 20
    ) as node:
        feed = node.rank(0)
        going = iter(feed)
        next(going)
        os.truncate(copy, copy.stat().st_size // 3)
        with pytest.raises(FeedError, match=r"truncated since|changed since"):
            list(going)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"ranks": [0, 0]}, "each of this node once"),
        ({"ranks": []}, "each of this node once"),
        ({"ranks": [2]}, "rank=2 is out of range; it takes 0 to 1"),
        ({"readers": 65}, "1 to 64"),
        ({"shuffle": "cache-aware"}, "1 of 2 ranks: other nodes hold other records"),
        ({"buffer_bytes": 1000}, "too few"),
    ],
)
def test_what_makes_no_sense_is_refused(path: Path, wrong: dict[str, Any], said: str) -> None:
    options = {"ranks": [0], "world_size": 2} | wrong
    with pytest.raises(FeedError, match=said):
        NodeFeed(path, 8, **options)


def test_no_room_for_the_memory_is_said(path: Path) -> None:
    with pytest.raises(FeedError, match=r"no shared memory|lower buffer_bytes"):
        NodeFeed(path, 8, ranks=[0], world_size=1, buffer_bytes=1 << 55)


@pytest.mark.parametrize("token", ["", "penstock-feed:1:2:3", "penstock-feed:x:1:1", "a:1:2:3"])
def test_a_token_of_nothing_is_refused(token: str) -> None:
    with pytest.raises(FeedError):
        attach(token, 0)


def test_a_rank_of_another_node_is_refused_and_one_attaches_once(path: Path) -> None:
    with NodeFeed(path, 8, ranks=[1], world_size=2) as node:
        with pytest.raises(FeedError, match="not of this node"):
            node.rank(0)
        feed = node.rank(1)
        with pytest.raises(FeedError, match="attached before"):
            node.rank(1)
        feed.close()


def copied(path: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "data.mdb"
    copy.write_bytes((path / "data.mdb").read_bytes())
    return copy


def taken(keys: list[bytes], batches: Iterator[Batch], records: dict[bytes, bytes]) -> None:
    """Adds the keys of all batches, whose records are right."""
    for batch in batches:
        assert all(record.tobytes() == records[record.key] for record in batch)
        keys += batch.keys


def test_an_lmdb_that_a_writer_changes_gives_no_rank_a_batch_more(
    path: Path, records: dict[bytes, bytes], tmp_path: Path
) -> None:
    copied(path, tmp_path)
    with NodeFeed(
        tmp_path, 4, ranks=[0, 1], world_size=2, shuffle="global", buffer_bytes=1 << 20, readers=1
    ) as node:
        feeds = [node.rank(0), node.rank(1)]
        going = [iter(feed) for feed in feeds]
        for each in going:
            next(each)
        with lmdb.open(str(tmp_path), map_size=1 << 26) as env, env.begin(write=True) as txn:
            txn.put(b"000000", b"another")
        for each in going:  # what was read before the change is right
            with pytest.raises(FeedError, match="changed since it was indexed"):
                taken([], each, records)


def test_a_file_that_is_replaced_is_read_on_as_it_was_and_missed_at_the_end(
    path: Path, records: dict[bytes, bytes], tmp_path: Path
) -> None:
    copy = copied(path, tmp_path)
    with NodeFeed(copy, 8, ranks=[0], world_size=1, buffer_bytes=1 << 20) as node:
        going = iter(node.rank(0))
        found = list(next(going).keys)
        (tmp_path / "new").write_bytes(bytes(100_000))
        (tmp_path / "new").replace(copy)
        with pytest.raises(FeedError, match=r"changed since it was indexed|no LMDB"):
            taken(found, going, records)
    assert found == sorted(records)


def test_files_that_are_gone_are_skipped_and_counted(tmp_path: Path) -> None:
    for i in range(20):
        (tmp_path / f"{i:02}.jpg").write_bytes(bytes([i]) * 3000)
    index = open_index(tmp_path)
    for gone in (3, 11):
        (tmp_path / f"{gone:02}.jpg").unlink()
    options: dict[str, Any] = {"ranks": [0], "world_size": 1, "buffer_bytes": 1 << 20}
    with NodeFeed(index, 4, on_error="skip", **options) as node:
        feed = node.rank(0)
        found = [key for batch in feed for key in batch.keys]
        assert feed.n_failed == 2
    assert found == [b"%02d.jpg" % i for i in range(20) if i not in (3, 11)]


@pytest.fixture
def lopsided(tmp_path: Path) -> Path:
    """Small records, and a last one that needs 25 pages."""
    with lmdb.open(str(tmp_path), map_size=1 << 22) as env, env.begin(write=True) as txn:
        for i in range(40):
            txn.put(b"%06d" % i, b"x" * (100_000 if i == 39 else 9))
    return tmp_path


@pytest.mark.parametrize("coalesce_bytes", [0, 1 << 20])
def test_a_batch_larger_than_the_buffer_is_refused_before_a_reader_is_there(
    lopsided: Path, coalesce_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeFeed, "_made", lambda _: pytest.fail("memory was taken"))
    pages = 25 + (3 if not coalesce_bytes else 1)  # unmerged each small one has a page to itself
    options = {"ranks": [0, 1], "world_size": 2, "coalesce_bytes": coalesce_bytes}
    with pytest.raises(FeedError, match=r"4 records needs .*'000039'.* raise buffer_bytes"):
        NodeFeed(lopsided, 4, buffer_bytes=2 * node_memory.SLOTS * pages * 4096, **options)
    monkeypatch.undo()
    room = 2 * node_memory.SLOTS * (pages + 1) * 4096  # and the slot's first page
    with NodeFeed(lopsided, 4, buffer_bytes=room, **options) as node:
        going = [iter(node.rank(rank)) for rank in (0, 1)]
        found = [key for pair in zip(*going, strict=True) for batch in pair for key in batch.keys]
    assert sorted(found) == [b"%06d" % i for i in range(40)]


def test_a_batch_of_an_order_that_is_known_late_is_refused_before_the_first_one(
    lopsided: Path,
) -> None:
    """The other rank goes on."""
    given, refused = [], []
    options: dict[str, Any] = {"ranks": [0, 1], "world_size": 2, "shuffle": "cache-aware"}
    with NodeFeed(lopsided, 4, buffer_bytes=2 * node_memory.SLOTS * 8 * 4096, **options) as node:
        for feed in [node.rank(0), node.rank(1)]:
            going = iter(feed)
            try:
                given += [next(going).keys]
            except FeedError as error:
                refused.append(str(error))
            else:
                goes_on = going
        given += [batch.keys for batch in goes_on]
    assert len(refused) == 1
    assert "'000039'" in refused[0]
    assert [len(keys) for keys in given] == 5 * [4]


def test_one_reader_of_two_that_is_killed_is_named(path: Path) -> None:
    with NodeFeed(
        path, 4, ranks=[0], world_size=1, readers=2, shuffle="global", buffer_bytes=1 << 20
    ) as node:
        feed = node.rank(0)
        going = iter(feed)
        next(going)
        deadline = time.monotonic() + 240
        while (
            node._node.get(node_memory.TICKET) < node_memory.SLOTS + 2
        ):  # each waits for a slot to fill
            assert time.monotonic() < deadline
            os.sched_yield()
        os.kill(node.processes[1], signal.SIGKILL)
        with pytest.raises(FeedError, match=r"reader 1 of .* has ended .* killed for memory"):
            list(going)
        assert feed.state_dict()["parts"][-1][-1] >= 1  # and can be gone on from


@pytest.mark.skipif(bool(WHY_NO_MEMORY), reason=WHY_NO_MEMORY)
def test_what_a_control_group_has_not_is_refused_and_nobody_is_killed(
    path: Path, tmp_path: Path
) -> None:
    program = """
        import sys
        from penstock.errors import FeedError
        from penstock.feed import NodeFeed
        filled = bytearray(b"x") * (100 << 20)     # of 160 MiB
        try:
            NodeFeed(sys.argv[1], 4, ranks=[0], world_size=1, buffer_bytes=60 << 20)
        except FeedError as error:
            print(error)
    """
    with capped(tmp_path, memory_bytes=160 << 20) as group:
        words = [sys.executable, "-c", textwrap.dedent(program), str(path)]
        done = subprocess.run(group.wrapped(words), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no shared memory for" in done.stdout
    assert "lower buffer_bytes" in done.stdout


# Tiny data sets, and the ends of epochs


@pytest.mark.parametrize(
    ("shuffle", "tail"), [("none", "short"), ("block", "drop"), ("global", "pad")]
)
def test_fewer_records_than_ranks_are_dealt_as_a_feed_deals_them(
    tmp_path: Path, shuffle: str, tail: Any
) -> None:
    for n in (1, 3):
        folder = tmp_path / str(n)
        with lmdb.open(str(folder), map_size=1 << 20) as env, env.begin(write=True) as txn:
            for i in range(n):
                txn.put(b"%d" % i, bytes(100 * i))
        options: dict[str, Any] = {"shuffle": shuffle, "tail": tail, "world_size": 4}
        truth = []
        for rank in range(4):
            with Feed(folder, 2, rank=rank, readers=0, **options) as feed:
                truth.append([[batch.keys for batch in feed] for _ in range(2)])
        with NodeFeed(
            folder, 2, ranks=range(4), readers=1, buffer_bytes=1 << 20, **options
        ) as node:
            feeds = [node.rank(rank) for rank in range(4)]
            found: list[list[Any]] = [[], [], [], []]
            for _ in range(2):
                for rank, shared in enumerate(feeds):
                    found[rank].append([batch.keys for batch in shared])
        assert found == truth


def test_a_state_of_the_last_batch_of_an_epoch_goes_on_with_the_next(path: Path) -> None:
    with Feed(path, 8, shuffle="global", seed=1, readers=0) as feed:
        for _ in feed:
            state = feed.state_dict()  # after the loop it would be the next epoch's
        after = [batch.keys for batch in feed]
    with NodeFeed(path, 8, ranks=[0], world_size=1, shuffle="global", seed=1, state=state) as node:
        rank = node.rank(0)
        assert list(rank) == []
        assert [batch.keys for batch in rank] == after


# What memory holds


def test_cache_aware_ranks_of_a_node_begin_with_what_its_memory_holds(
    path: Path, records: dict[bytes, bytes], tmp_path: Path
) -> None:
    copy = copied(path, tmp_path)
    index = open_index(copy)
    evict(copy)
    with open(copy, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(copy.stat().st_size // 3)
    options: dict[str, Any] = {"shuffle": "cache-aware", "seed": 5, "world_size": 2}
    with Feed(index, 4, rank=0, readers=0, **options) as feed:
        before = feed.held()
    if not before.any() or before.all():
        pytest.skip("this kernel or file system does not tell what memory holds")
    with NodeFeed(index, 4, ranks=[0, 1], readers=2, buffer_bytes=1 << 20, **options) as node:
        feeds = [node.rank(0), node.rank(1)]
        for epoch in range(3):
            going = [iter(feed) for feed in feeds]
            found: list[list[bytes]] = [[], []]
            for _ in range(len(feeds[0])):  # in step, as ranks are
                for rank in range(2):
                    found[rank] += next(going[rank]).keys
            state = feeds[0].state_dict()
            for each in going:
                assert list(each) == []
            assert sorted(found[0] + found[1]) == sorted(records)
            with Feed(index, 4, rank=1, readers=0, **options) as alone:
                alone.load_state_dict(state)
                held = alone._stand.held
                assert held is not None
                alone.set_epoch(epoch)
                alone.set_held(held)
                assert [key for batch in alone for key in batch.keys] == found[1]
            if epoch == 0:
                assert (held == before).all()
                n_held = int(before.sum()) // 2 - 4
                assert all(before[index.find(key)] for keys in found for key in keys[:n_held])


def test_a_cache_aware_node_goes_on_with_what_memory_held_then(path: Path) -> None:
    index = open_index(path)
    options: dict[str, Any] = {"shuffle": "cache-aware", "seed": 5}
    held = np.arange(N) % 3 == 0
    with Feed(index, 8, readers=0, **options) as feed:
        feed.set_held(held)
        going = iter(feed)
        for _ in range(3):
            next(going)
        state = feed.state_dict()
        rest = [batch.keys for batch in going]
    with NodeFeed(index, 8, ranks=[0], world_size=1, state=state, **options) as node:
        assert [batch.keys for batch in node.rank(0)] == rest


# How many readers


@given(st.integers(1, 64), st.integers(1, 64))
def test_readers_are_halved_while_that_costs_nothing(most: int, enough: int) -> None:
    readers = Readers(most)
    for _ in range(20):
        readers = readers.after(100.0 * min(1.0, readers.active / enough))
    assert readers.is_settled
    # A power of two below: at least what is needed, or all there are.
    assert readers.active >= min(most, WORTH * enough) - 1e-9
    assert readers.active == 1 or readers.active // 2 < enough


@pytest.mark.parametrize(
    ("cpus", "n_ranks", "n_readers"), [(2, 1, 2), (2, 2, 4), (2, 8, 4), (16, 4, 4), (16, 8, 8)]
)
def test_readers_to_begin_with_go_by_ranks_and_processors(
    monkeypatch: pytest.MonkeyPatch, cpus: int, n_ranks: int, n_readers: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(cpus)))
    assert share._dealt(n_ranks, None, 256 << 20)[0] == n_readers
    assert share._dealt(n_ranks, 1, 256 << 20)[0] == 1


def test_what_readers_wait_for_ranks_is_no_rate_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four readers give four portions a second, two give two: but the first rank came late."""
    words: dict[Any, int] = {node_memory.DONE: 0, "consumed": 0}
    node = SimpleNamespace(
        get=words.__getitem__, put=words.__setitem__, consumed=lambda place: "consumed",
        terms=SimpleNamespace(ranks=(0,)),
    )  # fmt: skip
    server = serve._Server.__new__(serve._Server)
    server.node, server.tuner, server.judged = node, Readers(4), None  # type: ignore[assignment]
    clock = [0.0]
    monkeypatch.setattr(share.time, "monotonic", lambda: clock[0])
    for second in range(200):
        clock[0] = float(second)
        if second >= 100:  # the slots were full after the first portions
            words["consumed"] += 1
        if second >= 100 or words[node_memory.DONE] < 3:
            words[node_memory.DONE] += server.tuner.active
            server._tune()
    assert server.tuner == Readers(4, is_settled=True, tried=((4, 4.0), (2, 2.0)))


def test_a_node_tries_fewer_readers_and_every_record_still_comes_once(
    path: Path, records: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(16)))
    seen: set[int] = set()
    epochs = 0
    with NodeFeed(
        path, 4, ranks=range(4), world_size=4, shuffle="global", buffer_bytes=1 << 20
    ) as node:
        assert len(node.processes) == 4
        feeds = [node.rank(rank) for rank in range(4)]
        # Half of four is always tried, once reader 0 has its turn: on a busy machine that may be
        # epochs later.  It cannot pass unseen: it lasts 16 portions, and 12 are read ahead.
        while epochs < 2 or 2 not in seen:
            found: list[bytes] = []
            going = [iter(feed) for feed in feeds]
            for _ in range(len(feeds[0])):
                for each in going:
                    found += next(each).keys
                    seen.add(node.n_active)
            assert sorted(found) == sorted(records)
            assert [list(each) for each in going] == [[]] * 4
            epochs += 1


WORTH = 0.95
