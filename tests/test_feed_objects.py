"""Data sets in object stores: read by the feed from servers on loopback, held against the bytes
that were put there, and against the server's own counts."""

import gc
import hashlib
import io
import json
import os
import pickle
import random
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import PENSTOCK
from penstock.adapters.torch_feed import FeedDataset
from penstock.errors import FeedError
from penstock.feed import lmdb, object_stores, remote, tfrecord, transfer, verify
from penstock.feed.decode import sample
from penstock.feed.feed import Feed
from penstock.feed.index import open_index
from penstock.feed.share import NodeFeed
from penstock.feed.transfer import HttpTarget, ObjectRange, Patience, Seen, Transfers
from penstock_lab.objects import FAULTS, Asked, ObjectServer, certificate, faults_at


@pytest.fixture(autouse=True)
def caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    transfer._of_process.clear()


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """An empty bucket `data` of a server that speaks S3."""
    (tmp_path / "data").mkdir()
    with ObjectServer(tmp_path) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_REGION", "us-east-1")
        yield server


def put_objects(folder: Path, n: int, most_bytes: int = 20_000) -> dict[bytes, bytes]:
    chance = random.Random(7)
    contents = {b"%03d/%05d.bin" % (i % 3, i): chance.randbytes(i % most_bytes) for i in range(n)}
    for key, content in contents.items():
        path = folder / os.fsdecode(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return contents


def records_of(feed: Feed) -> list[tuple[bytes, bytes]]:
    return [(record.key, record.tobytes()) for batch in feed for record in batch]


# --- folders -------------------------------------------------------------------------------------


def test_a_folder_of_objects_comes_whole_once_an_epoch(served: ObjectServer) -> None:
    contents = put_objects(served.root / "data" / "train", 300)
    feed = Feed("s3://data/train", 16, shuffle="global", seed=3)
    first = records_of(feed)
    assert sorted(first) == sorted(contents.items())
    second = records_of(feed)
    assert sorted(second) == sorted(first)
    assert second != first
    n_bytes = sum(map(len, contents.values()))
    assert served.counts.bytes == 2 * n_bytes
    assert served.counts.gets == 2 * sum(1 for content in contents.values() if content)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_web_server_s_pages_of_links_are_folders(host: str, tmp_path: Path) -> None:
    contents = put_objects(tmp_path / "train", 40)
    with ObjectServer(tmp_path, host=host) as server:
        feed = Feed(f"{server.url}/train/", 7)
        assert records_of(feed) == sorted(contents.items())


def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = put_objects(tmp_path / "train", 20)
    context, authority = certificate(tmp_path)
    with ObjectServer(tmp_path, tls=context) as server:
        transfer._tls.cache_clear()
        with pytest.raises(FeedError, match="certificate is not trusted"):
            Feed(f"{server.url}/train/", 7)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
        transfer._tls.cache_clear()
        assert records_of(Feed(f"{server.url}/train/", 7)) == sorted(contents.items())
    transfer._tls.cache_clear()


def test_resume_is_exact(served: ObjectServer) -> None:
    put_objects(served.root / "data", 100)
    whole = records_of(Feed("s3://data/", 8, shuffle="block", seed=1, pool_bytes=1 << 16))
    feed = Feed("s3://data/", 8, shuffle="block", seed=1, pool_bytes=1 << 16)
    batches = iter(feed)
    begun = [(record.key, record.tobytes()) for _ in range(5) for record in next(batches)]
    state = feed.state_dict()
    feed.close()
    other = Feed("s3://data/", 8, shuffle="block", seed=1, pool_bytes=1 << 16)
    other.load_state_dict(state)
    assert begun + records_of(other) == whole


def test_a_dataset_reads_in_forked_workers_of_a_parent_that_has_read(served: ObjectServer) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    contents = put_objects(served.root / "data", 60)
    dataset = FeedDataset("s3://data/")
    assert dataset[3] == contents[dataset.index.key(3)]
    loader = torch_data.DataLoader(
        dataset, batch_size=8, num_workers=2, collate_fn=list, multiprocessing_context="fork"
    )
    assert [item for batch in loader for item in batch] == [
        contents[key] for key in sorted(contents)
    ]
    assert pickle.loads(pickle.dumps(dataset))[5] == dataset[5]


# --- names ---------------------------------------------------------------------------------------


def test_names_are_patterns_ranges_and_prefixes(served: ObjectServer) -> None:
    for name in ("a/x-0.txt", "a/x-1.txt", "a/b/x-2.txt", "a/y.txt"):
        path = served.root / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"1")
    assert remote.matching("s3://data/a/x-*.txt") == ["s3://data/a/x-0.txt", "s3://data/a/x-1.txt"]
    assert remote.matching("s3://data/a/**/x-?.txt") == [
        "s3://data/a/b/x-2.txt",
        "s3://data/a/x-0.txt",
        "s3://data/a/x-1.txt",
    ]
    assert remote.matching("s3://data/a/x-[1-9].txt") == ["s3://data/a/x-1.txt"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("s3://data/nothing/", "no such object"),
        ("s3://data/*.tar", "matches no object"),
        ("s3://", "no address of an object"),
        ("ftp://host/file", "read here are files and s3://"),
        ("http://user:secret@host/file", "password or a query is refused"),
        ("az://container/x", "AZURE_STORAGE_ACCOUNT_NAME"),
    ],
)
def test_a_name_that_is_none_is_an_error(served: ObjectServer, name: str, why: str) -> None:
    with pytest.raises(FeedError, match=why) as caught:
        open_index(name)
    assert "secret" not in str(caught.value)


def test_nothing_is_written_into_a_store(served: ObjectServer) -> None:
    put_objects(served.root / "data", 3)
    with pytest.raises(FeedError, match="nothing is written into a store"):
        open_index("s3://data/", cache="beside")


# --- changes and faults --------------------------------------------------------------------------


def test_an_object_that_changes_in_mid_epoch_is_named_and_never_mixed(served: ObjectServer) -> None:
    contents = put_objects(served.root / "data", 200)
    feed = Feed("s3://data/", 4, buffer_bytes=400_000, depth=2)
    changed = sorted(contents)[-1]
    given: dict[bytes, bytes] = {}

    def read_on() -> None:
        for batch in batches:
            given.update({record.key: record.tobytes() for record in batch})

    batches = iter(feed)
    given.update({record.key: record.tobytes() for record in next(batches)})
    path = served.root / "data" / os.fsdecode(changed)
    path.write_bytes(bytes(len(contents[changed])))  # the same length
    with pytest.raises(FeedError, match=os.fsdecode(changed)) as caught:
        read_on()
    assert "has changed since it was indexed" in str(caught.value)
    assert all(contents[key] == content for key, content in given.items())


def test_records_that_cannot_be_read_are_skipped_and_named(served: ObjectServer) -> None:
    contents = put_objects(served.root / "data", 50)
    feed = Feed("s3://data/", 8, on_error="skip")
    gone = sorted(contents)[20]
    (served.root / "data" / os.fsdecode(gone)).unlink()
    assert records_of(feed) == [pair for pair in sorted(contents.items()) if pair[0] != gone]
    assert feed.n_failed == 1
    assert "the object is not there (HTTP status 404)" in feed.failures[0]


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 30), rate=st.sampled_from([0.05, 0.3]), batch=st.integers(1, 40))
def test_no_record_is_lost_or_repeated_under_faults(
    served: ObjectServer, monkeypatch: pytest.MonkeyPatch, seed: int, rate: float, batch: int
) -> None:
    """Every kind of fault, by chance: what comes is right, whole and once."""
    monkeypatch.setenv("PENSTOCK_FEED_TIMEOUT_S", "0.3")
    monkeypatch.setenv("PENSTOCK_FEED_TRIES", "30")
    monkeypatch.setattr(Patience, "__init__", _hasty)
    transfer._of_process.clear()
    served.choose = None
    contents = put_objects(served.root / "data", 120)
    feed = Feed("s3://data/", batch, shuffle="global", seed=seed)
    served.choose = faults_at(rate, seed)
    assert sorted(records_of(feed)) == sorted(contents.items())
    assert feed.n_failed == 0
    feed.close()


def _hasty(
    self: Patience,
    timeout_s: float = 0.3,
    tries: int = 30,
    first_pause_s: float = 0.001,
    most_pause_s: float = 0.01,
) -> None:
    for name, value in locals().items():
        if name != "self":
            object.__setattr__(self, name, value)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault != "whole"])
def test_a_fault_that_stays_is_an_error_with_the_object_s_name(
    served: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    contents = put_objects(served.root / "data", 12)
    bad = "000/00009.bin"
    transfers = Transfers(Patience(timeout_s=0.2, tries=2, first_pause_s=0.001))
    transfer._of_process[os.getpid()] = transfers
    feed = Feed("s3://data/", 3, on_error="skip")
    served.choose = lambda asked: fault if asked.path.endswith(bad) else ""
    got = records_of(feed)
    assert got == [pair for pair in sorted(contents.items()) if pair[0] != bad.encode()]
    assert feed.n_failed == 1
    assert f"s3://data/{bad}: record {bad} at 0 with 9 bytes: " in feed.failures[0]
    assert "2 tries" in feed.failures[0]


def test_a_pause_that_the_server_asks_for_is_kept_and_bounded() -> None:
    pauses: list[float] = []
    patience = Patience(tries=4, first_pause_s=0.5, most_pause_s=3.0)

    def attempt() -> None:
        raise transfer._Retried("busy", after_s=60.0 if len(pauses) == 1 else 1.0)

    code, why = transfer._tried(attempt, patience, lambda s: not pauses.append(s))
    assert code
    assert "busy; 4 tries" in why
    for pause, (least, most) in zip(pauses, [(1.0, 1.5), (3.0, 4.0), (1.0, 3.0)], strict=True):
        assert least <= pause <= most


def test_closing_a_feed_ends_the_wait_for_a_server_that_hangs(served: ObjectServer) -> None:
    put_objects(served.root / "data", 50)
    transfer._of_process[os.getpid()] = Transfers(Patience(timeout_s=0.5, tries=1000))
    feed = Feed("s3://data/", 4)
    served.choose = lambda asked: "hang" if asked.method == "GET" and asked.end > 0 else ""
    iter(feed)
    feed.close()  # within the test's own limit


def test_requests_in_flight_are_bounded(served: ObjectServer) -> None:
    put_objects(served.root / "data", 200)
    served.delay_s = 0.002
    feed = Feed("s3://data/", 100, depth=5)
    records_of(feed)
    assert served.counts.most_in_flight <= 5


class _Object:
    """An object without a store."""

    url = "test://object"

    def __init__(self, server: ObjectServer) -> None:
        self.port = server.port

    def target(self, method: str) -> HttpTarget:
        return HttpTarget(False, "127.0.0.1", self.port, "/data/object")

    def seen(self, headers: transfer.Headers, size: int) -> Seen:
        return Seen(size, 0, -1)


def test_a_large_range_is_read_in_parts_side_by_side(served: ObjectServer) -> None:
    content = random.Random(1).randbytes(3 * transfer.PART_BYTES + 7)
    (served.root / "data" / "object").write_bytes(content)
    memory = bytearray(len(content) - 1)
    part = ObjectRange(_Object(served), None, 1, memoryview(memory))
    Transfers().read([part], 8)
    assert part.error == 0
    assert memory == content[1:]
    assert served.counts.gets == 4


# --- containers ----------------------------------------------------------------------------------


def put_tars(folder: Path, n_shards: int, n: int, most_bytes: int) -> dict[bytes, bytes]:
    chance = random.Random(5)
    contents: dict[bytes, bytes] = {}
    for shard in range(n_shards):
        with tarfile.open(folder / f"train-{shard:03d}.tar", "w") as tar:
            for number in range(n):
                key, image = (
                    f"{shard:03d}/{number:04d}",
                    chance.randbytes(chance.randint(0, most_bytes)),
                )
                for name, part in ((f"{key}.jpg", image), (f"{key}.cls", b"%d" % number)):
                    about = tarfile.TarInfo(name)
                    about.size = len(part)
                    tar.addfile(about, io.BytesIO(part))
                contents[key.encode()] = image
    return contents


@pytest.mark.parametrize("most_bytes", [3_000, 200_000])
@pytest.mark.parametrize(
    "name", ["s3://data/", "s3://data/train-*.tar", "s3://data/train-{000..002}.tar"]
)
def test_tar_shards_are_indexed_and_read_by_ranges(
    served: ObjectServer, name: str, most_bytes: int
) -> None:
    contents = put_tars(served.root / "data", 3, 40, most_bytes)
    (served.root / "data" / "SHA256SUMS").write_text("beside")
    index = open_index(name, cache=False)
    local = open_index(served.root / "data", cache=False)
    assert [index.key(n) for n in range(len(index))] == [local.key(n) for n in range(len(local))]
    assert (index.offset == local.offset).all()
    assert (index.length == local.length).all()
    if most_bytes > 100_000:
        assert served.counts.bytes < 0.05 * index.total_bytes  # headers
    feed = Feed(index, 8, shuffle="global", seed=2)
    images = {record.key: bytes(sample(record)["jpg"]) for batch in feed for record in batch}
    assert images == contents


def test_tfrecords_are_indexed_verified_and_read_by_ranges(served: ObjectServer) -> None:
    chance = random.Random(5)
    payloads = [chance.randbytes(chance.randint(0, 90_000)) for _ in range(80)]
    path = served.root / "data" / "train.tfrecord"
    path.write_bytes(b"".join(map(tfrecord.framed, payloads)))
    feed = Feed("s3://data/train.tfrecord", 9)
    assert [record for _, record in records_of(feed)] == payloads
    assert not verify.check("s3://data/train.tfrecord").problems
    damaged = bytearray(path.read_bytes())
    damaged[int(feed.index.offset[40]) + 5] ^= 1
    path.write_bytes(damaged)
    (problem,) = verify.check("s3://data/train.tfrecord").problems
    assert problem[:2] == ("s3://data/train.tfrecord", 40)
    with pytest.raises(FeedError, match=r"train\.tfrecord: the object has changed since it was"):
        records_of(feed)


def test_an_index_is_kept_for_the_versions_that_it_is_of(served: ObjectServer) -> None:
    put_tars(served.root / "data", 2, 600, 10)
    first = open_index("s3://data/*.tar")
    read = served.counts.bytes
    assert open_index("s3://data/*.tar").fingerprint == first.fingerprint
    assert served.counts.bytes == read
    os.utime(served.root / "data" / "train-001.tar", (1e9, 1e9))
    assert open_index("s3://data/*.tar").fingerprint != first.fingerprint
    assert served.counts.bytes > read


def test_damage_in_a_shard_is_named(served: ObjectServer) -> None:
    put_tars(served.root / "data", 2, 10, 10_000)
    path = served.root / "data" / "train-001.tar"
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(FeedError, match=r"s3://data/train-001\.tar: .*truncated"):
        open_index("s3://data/")


def test_commands_read_a_store(served: ObjectServer) -> None:
    put_tars(served.root / "data", 2, 30, 50_000)
    for command in (["inspect"], ["verify"], ["inspect", "--records"]):
        done = subprocess.run(
            [PENSTOCK, "feed", *command, "s3://data/*.tar"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert "60" in done.stdout or "000/0000" in done.stdout


def put_lmdb(path: Path, n: int, most_bytes: int) -> dict[bytes, bytes]:
    py_lmdb = pytest.importorskip("lmdb")
    chance = random.Random(5)
    contents = {
        b"%06d" % number: chance.randbytes(chance.randint(1, most_bytes)) for number in range(n)
    }
    with (
        py_lmdb.open(str(path), map_size=1 << 28, subdir=False) as env,
        env.begin(write=True) as txn,
    ):
        txn.cursor().putmulti(sorted(contents.items()))
    return contents


def test_an_lmdb_is_indexed_by_its_pages_and_read_by_ranges(served: ObjectServer) -> None:
    contents = put_lmdb(served.root / "data" / "train.lmdb", 500, 60_000)
    index = open_index("s3://data/train.lmdb", cache=False)
    assert served.counts.bytes < 0.05 * index.total_bytes
    feed = Feed(index, 16, shuffle="global", seed=1)
    assert sorted(records_of(feed)) == sorted(contents.items())
    assert not verify.check("s3://data/train.lmdb").problems
    folder = served.root / "data" / "as-folder"
    folder.mkdir()
    (served.root / "data" / "train.lmdb").rename(folder / "data.mdb")
    assert len(open_index("s3://data/as-folder/")) == 500


def test_the_lmdb_drop_in_reads_an_object(served: ObjectServer) -> None:
    contents = put_lmdb(served.root / "data" / "train.lmdb", 300, 30_000)
    with lmdb.open("s3://data/train.lmdb", readonly=True, lock=False) as env:
        again = pickle.loads(pickle.dumps(env))
        for opened in (env, again):
            with opened.begin(buffers=True) as txn:
                assert {key: bytes(value) for key, value in txn.cursor()} == contents
                keys = [b"000200", b"000100", b"nothing"]
                found = [(key, bytes(value)) for key, value in txn.cursor().getmulti(keys)]
                assert dict(found) == {key: contents[key] for key in keys[:2]}
        gets = served.counts.gets
        with env.begin() as txn:
            assert txn.get(b"000007") == contents[b"000007"]
        assert served.counts.gets - gets == 1  # pages that were seen are kept
        put_lmdb(served.root / "data" / "other.lmdb", 300, 20_000)
        (served.root / "data" / "other.lmdb").rename(served.root / "data" / "train.lmdb")
        with env.begin() as txn, pytest.raises(FeedError, match="the object has changed"):
            txn.get(b"000008")
    with pytest.raises(FeedError, match="not there"):
        lmdb.open("s3://data/none.lmdb")


def test_ranks_of_a_node_read_each_byte_once(served: ObjectServer) -> None:
    contents = put_tars(served.root / "data", 3, 40, 60_000)
    index = open_index("s3://data/*.tar", cache=False)
    begun = served.counts.bytes
    got = []
    for rank in range(4):
        feed = Feed(index, 5, shuffle="global", rank=rank, world_size=4)
        got += [(record.key, bytes(sample(record)["jpg"])) for batch in feed for record in batch]
    assert sorted(got) == sorted(contents.items())
    assert served.counts.bytes - begun <= 1.02 * index.total_bytes


def test_a_node_s_readers_feed_its_ranks_from_a_store(served: ObjectServer) -> None:
    contents = put_objects(served.root / "data", 90)
    with NodeFeed(
        "s3://data/", 5, ranks=range(4), world_size=4, shuffle="global", buffer_bytes=32 << 20
    ) as node:
        got = [
            (record.key, record.tobytes())
            for together in zip_longest(*[node.rank(rank) for rank in range(4)], fillvalue=())
            for batch in together
            for record in batch
        ]
    assert sorted(got) == sorted(contents.items())


# --- the cache on the node -----------------------------------------------------------------------


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tier"
    monkeypatch.setenv("PENSTOCK_FEED_CACHE", str(folder))
    return folder / "penstock-feed-cache"


READ_ALL = """
import hashlib, sys
from penstock.feed import Feed
feed = Feed("s3://data/", 7, shuffle="global", seed=int(sys.argv[1]))
for _ in range(2):
    for batch in feed:
        for record in batch:
            print(record.key.decode(), hashlib.sha256(record).hexdigest())
"""


def test_processes_of_a_node_fetch_each_byte_once(served: ObjectServer, cached: Path) -> None:
    """Four processes, each all records twice, in orders of their own."""
    put_tars(served.root / "data", 4, 50, 100_000)
    index = open_index(served.root / "data")
    total = sum(path.stat().st_size for path in (served.root / "data").iterdir())
    served.delay_s = 0.005
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", READ_ALL, str(seed)], stdout=subprocess.PIPE, text=True
        )
        for seed in range(4)
    ]
    answers = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    local = Feed(index, 7)
    wanted = sorted(
        f"{record.key.decode()} {hashlib.sha256(record).hexdigest()}"
        for batch in local
        for record in batch
    )
    for answer in answers:
        assert sorted(answer) == sorted(wanted * 2)
    headers = 4 * 0.06 * total  # of each process's index
    assert served.counts.bytes <= total + headers
    assert len(list(cached.iterdir())) == 1


@pytest.fixture
def served_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """An empty bucket `data` of a server that speaks S3 with a certificate of its own."""
    (tmp_path / "data").mkdir()
    context, authority = certificate(tmp_path)
    transfer._tls.cache_clear()
    with ObjectServer(tmp_path, tls=context) as server:
        for name, value in (
            ("AWS_ENDPOINT_URL", server.url),
            ("AWS_CA_BUNDLE", str(authority)),
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_REGION", "us-east-1"),
        ):
            monkeypatch.setenv(name, value)
        yield server
    transfer._tls.cache_clear()


def test_over_tls_no_record_is_lost_or_repeated_under_faults(
    served_over_tls: ObjectServer,
) -> None:
    server = served_over_tls
    hasty = Patience(tries=30, first_pause_s=0.001, most_pause_s=0.01)
    transfer._of_process[os.getpid()] = Transfers(hasty)
    contents = put_objects(server.root / "data", 200)
    kinds = ("503", "reset", "reset-mid", "half-open", "short", "other-range", "garbage")
    feed = Feed("s3://data/", 16, shuffle="global", seed=5)
    for seed in range(2):
        server.choose = faults_at(0.2, seed, kinds)
        assert sorted(records_of(feed)) == sorted(contents.items())
    assert feed.n_failed == 0
    assert {"503", "reset", "half-open", "garbage"} <= server.counts.statuses.keys()
    feed.close()


def test_a_reader_that_is_killed_within_a_piece_leaves_no_part_of_it_to_others(
    served_over_tls: ObjectServer, cached: Path
) -> None:
    server = served_over_tls
    contents = put_objects(server.root / "data", 30, most_bytes=200_000)
    wanted = sorted(
        f"{key.decode()} {hashlib.sha256(content).hexdigest()}" for key, content in contents.items()
    )
    hung: list[str] = []

    def choose(asked: Asked) -> str:
        if asked.method == "GET" and asked.path.endswith("/00020.bin") and not hung:
            hung.append(asked.path)
            return "hang-mid"
        return ""

    server.choose = choose
    reading = [sys.executable, "-c", READ_ALL]
    killed = subprocess.Popen([*reading, "0"], stdout=subprocess.PIPE, text=True)
    end_s = time.monotonic() + 120
    while not (hung and server.counts.in_flight == 1):
        assert time.monotonic() < end_s
        time.sleep(0.01)
    waiting = subprocess.Popen([*reading, "1"], stdout=subprocess.PIPE, text=True)
    time.sleep(0.5)  # half of the bytes have come
    killed.kill()
    killed.communicate()
    later = subprocess.run([*reading, "2"], stdout=subprocess.PIPE, text=True, check=True)
    for answer in (waiting.communicate()[0], later.stdout):
        assert sorted(answer.splitlines()) == sorted(wanted * 2)


def test_the_cache_holds_one_version_of_each_object(served: ObjectServer, cached: Path) -> None:
    contents = put_objects(served.root / "data", 40)
    assert records_of(Feed("s3://data/", 8)) == sorted(contents.items())
    begun = served.counts.bytes
    assert records_of(Feed("s3://data/", 8, shuffle="global")) != []
    assert served.counts.bytes == begun
    changed = sorted(contents)[7]
    contents[changed] = bytes(len(contents[changed]))
    (served.root / "data" / os.fsdecode(changed)).write_bytes(contents[changed])
    assert records_of(Feed("s3://data/", 8)) == sorted(contents.items())


def test_the_cache_is_bounded_and_what_is_beyond_is_read_past_it(
    served: ObjectServer, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = put_objects(served.root / "data", 60)
    monkeypatch.setenv("PENSTOCK_FEED_CACHE_BYTES", str(100_000))
    for _ in range(2):
        assert records_of(Feed("s3://data/", 8, shuffle="global")) != []
    assert records_of(Feed("s3://data/", 8)) == sorted(contents.items())
    (kept,) = cached.iterdir()
    assert (kept / "data").stat().st_size <= 100_000


def test_caches_that_nobody_uses_make_room(
    served: ObjectServer, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "ab":
        put_objects(served.root / "data" / name, 20)
    monkeypatch.setenv("PENSTOCK_FEED_CACHE_BYTES", str(100_000))
    records_of(Feed("s3://data/a/", 8))
    gc.collect()
    rest = cached / f".{0:032x}.1.2"  # as a killed process leaves it
    rest.mkdir()
    os.utime(rest, (1, 1))
    (first,) = [path for path in cached.iterdir() if path != rest]
    with Feed("s3://data/b/", 8) as feed:
        records_of(feed)
    assert not rest.exists()
    assert not first.exists()


def test_old_folders_of_the_user_beside_the_cache_stay(
    served: ObjectServer, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Room is made for a data set: hidden folders and other data sets' names are the user's."""
    put_objects(served.root / "data", 20)
    monkeypatch.setenv("PENSTOCK_FEED_CACHE_BYTES", str(100_000))
    theirs = []
    for parent in (cached.parent, cached):
        for name in (".ssh", "data", "0123456789abcdef"):
            (parent / name).mkdir(parents=True)
            for file in ("about", "data"):
                (parent / name / file).write_bytes(bytes(200_000))
            os.utime(parent / name, (1, 1))
            theirs.append(parent / name / "about")
    records_of(Feed("s3://data/", 8))
    assert all(path.exists() for path in theirs)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to another user")
def test_a_cache_of_another_user_is_refused(served: ObjectServer, cached: Path) -> None:
    put_objects(served.root / "data", 3)
    cached.mkdir(parents=True)
    os.chown(cached, 12345, 12345)
    with pytest.raises(FeedError, match=r"cannot be used: .*belongs to user 12345"):
        records_of(Feed("s3://data/", 8))


def test_a_link_in_the_place_of_the_cache_is_refused(served: ObjectServer, cached: Path) -> None:
    put_objects(served.root / "data", 3)
    cached.parent.mkdir()
    (cached.parent / "elsewhere").mkdir()
    cached.symlink_to(cached.parent / "elsewhere")
    with pytest.raises(FeedError, match="is a link or no folder"):
        records_of(Feed("s3://data/", 8))
    assert list((cached.parent / "elsewhere").iterdir()) == []


def test_a_cache_of_another_boot_is_not_trusted(served: ObjectServer, cached: Path) -> None:
    contents = put_objects(served.root / "data", 20)
    records_of(Feed("s3://data/", 8))
    gc.collect()
    (kept,) = cached.iterdir()
    about = json.loads((kept / "about").read_text())
    (kept / "about").write_text(json.dumps({**about, "boot": "another"}))
    size = (kept / "data").stat().st_size
    (kept / "data").write_bytes(bytes(size))
    assert records_of(Feed("s3://data/", 8)) == sorted(contents.items())


def test_a_fault_is_an_error_also_through_the_cache(
    served: ObjectServer, cached: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = put_objects(served.root / "data", 30)
    transfer._of_process[os.getpid()] = Transfers(
        Patience(timeout_s=0.2, tries=2, first_pause_s=0.001)
    )
    feed = Feed("s3://data/", 8, on_error="skip")
    bad = sorted(contents)[11]
    served.choose = lambda asked: "503" if asked.path.endswith(bad.decode()) else ""
    assert records_of(feed) == [pair for pair in sorted(contents.items()) if pair[0] != bad]
    assert "SlowDown" in feed.failures[0]
    served.choose = None
    assert records_of(feed) == sorted(contents.items())


def test_versions_asked_for_one_after_the_other_need_no_second_try(served: ObjectServer) -> None:
    """A HEAD whose answer was not read to its end left a connection that refused the next one."""
    put_objects(served.root / "data", 200)
    files = [f"s3://data/{path.parent.name}/{path.name}" for path in served.root.rglob("*.bin")]
    begun = served.counts.connections
    remote.states(files)
    assert served.counts.connections - begun <= remote.ASKED_AT_ONCE


def test_gs_is_refused_until_it_is_known_to_read_right() -> None:
    with pytest.raises(FeedError, match=r"gs:// is not ready: .*PENSTOCK_FEED_GS=1"):
        object_stores.store_of("gs://bucket/train/a")
