"""What a feed is asked for in Python: taken, or refused in a sentence that names it."""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lmdb
import numpy as np
import pytest

from penstock.adapters.torch_feed import FeedDataset, feed_stream, shared_index
from penstock.errors import FeedError
from penstock.feed import Index, NodeFeed, attach, hinted, open_index, ranks
from penstock.feed.feed import Feed
from penstock.feed.hint import Hints

Take = Callable[..., Any]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An LMDB with 30 images and 20 masks, in databases of their names."""
    path = tmp_path_factory.mktemp("two")
    with lmdb.open(str(path), map_size=1 << 24, max_dbs=2) as env, env.begin(write=True) as txn:
        for name, n in ((b"images", 30), (b"masks", 20)):
            for number in range(n):
                txn.put(b"%03d" % number, name * 10, db=env.open_db(name, txn))
    return path


@pytest.fixture(scope="module")
def one(two: Path) -> Any:
    return open_index(two, database="images")


class Images(list[Any]):
    """A data set of 30, as `hinted` looks at one."""


def loader(place: Any = None) -> Any:
    """A DataLoader, as `hinted` looks at one."""
    images = Images(range(30))
    setattr(images, "index" if isinstance(place, Index) else "place", place)
    return SimpleNamespace(dataset=images, sampler=range(30), batch_sampler=None)


class Alone:
    """The ranks of a job of one."""

    rank, size = 0, 1

    def broadcast(self, data: bytes) -> bytes:
        return data

    def gather(self, data: bytes) -> list[bytes]:
        return [data]


def node(data: Any, *_: Any, **options: Any) -> NodeFeed:
    return NodeFeed(data, 4, ranks=[0], world_size=1, buffer_bytes=1 << 20, **options)


def of_rank(data: Any, *_: Any, **options: Any) -> Any:
    options = {"buffer_bytes": 1 << 20, "readers": 1} | options
    with ranks.node_feed(data, 4, Alone(), **options) as feed:
        return SimpleNamespace(index=feed.index)


TAKERS: dict[str, Take] = {
    "Feed": lambda data, **options: Feed(data, 4, **options),
    "FeedDataset": FeedDataset,
    "Hints": Hints,
    "hinted": lambda data, **options: hinted(loader(), data, **options).sampler._hints,
    "hinted by an attribute": lambda data, **options: (
        hinted(loader(data), **options).sampler._hints
    ),
    "NodeFeed": lambda data, **options: node(data, readers=1, **options),
    "node_feed": of_rank,
    "shared_index": lambda data, **options: SimpleNamespace(
        index=ranks.shared_index(data, Alone(), **options)
    ),
}


@pytest.mark.parametrize("name", TAKERS)
def test_all_that_take_a_path_take_the_name_of_a_database(two: Path, name: str) -> None:
    take = TAKERS[name]
    for said in ("images", b"images"):
        made = take(two, database=said)
        assert len(made.index) == 30
        getattr(made, "close", lambda: None)()
    with pytest.raises(FeedError, match=r"'images', 'masks'.*database="):
        take(two)
    with pytest.raises(FeedError, match="no database 'labels'"):
        take(two, database="labels")


@pytest.mark.parametrize("name", TAKERS)
def test_what_is_about_a_path_is_refused_of_an_index(one: Any, name: str) -> None:
    for wrong in ({"database": "images"}, {"kind": "lmdb"}):
        with pytest.raises(FeedError, match=r"an Index was given.*say it to open_index"):
            TAKERS[name](one, **wrong)


def test_a_kind_makes_a_container_a_record(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "b.tar").write_bytes(b"2")
    with pytest.raises(FeedError, match="kind='folder'"):
        Feed(tmp_path, 1)
    assert len(Feed(tmp_path, 1, kind="folder").index) == 2
    assert len(FeedDataset(tmp_path, kind="folder")) == 2
    with pytest.raises(FeedError, match="kind='zip' is not known"):
        Feed(tmp_path, 1, kind="zip")


def test_a_stream_takes_the_name_of_a_database(two: Path) -> None:
    pytest.importorskip("torch")
    assert len(list(feed_stream(two, 4, database="masks"))) == 20
    assert len(shared_index(two, database="masks")) == 20


def test_a_stream_refuses_an_epoch_and_a_state_that_are_none(one: Any) -> None:
    pytest.importorskip("torch")
    stream = feed_stream(one, 4)
    for wrong in ("a", None, -1, True):
        with pytest.raises(FeedError, match=r"^epoch="):
            stream.set_epoch(wrong)
    good = stream.state_dict()
    for state, said in STATE_IS_WRONG + [(good | change, said) for change, said in CHANGED]:
        with pytest.raises(FeedError, match=said):
            stream.load_state_dict(state)
    assert len(list(stream)) == 30


# --- what makes no sense -------------------------------------------------------------------------

MANY = 1 << 70


class Truth:
    """As torch.tensor(True)."""

    dtype = "torch.bool"

    def __index__(self) -> int:
        return 1


READING: list[tuple[str, list[Any]]] = [
    ("engine", ["fast", None, 1]),
    ("direct", ["yes", 1, 0, "auto"]),
    ("coalesce_bytes", [-1, "4M", None, True, 0.5, MANY]),
    ("gap_bytes", [-1, "4K", False, 1.5]),
    ("depth", [0, -1, 257, "8", True]),
]
BUFFER: list[tuple[str, list[Any]]] = [("buffer_bytes", [0, -1, "1G", None, True, 1e9, MANY])]
MAPPED: list[tuple[str, list[Any]]] = [("mapped", ["no", None, 1])]
ORDER: list[tuple[str, list[Any]]] = [
    ("batch_size", [0, -4, 2.5, None, "4", True, [], MANY, Truth()]),
    ("shuffle", ["sorted", None, True, ["block"]]),
    ("seed", [-1, "a", None, True, 0.5, 1 << 64]),
    ("tail", ["keep", None]),
    ("on_error", ["ignore", None]),
    ("block_bytes", [0, -1, "1M", 1.5, True, MANY]),
    ("pool_bytes", [0, -1, "1M", None, MANY]),
    ("database", [7, ["images"]]),
]
RANK: list[tuple[str, list[Any]]] = [
    ("world_size", [0, -1, "2", None, True, MANY]),
    ("readers", [-1, 17, "x", None, True, 2.0]),
    ("rank", [-1, "0", None, 0.0, True]),
]
OF_NODE: list[tuple[str, list[Any]]] = [
    ("readers", [0, -1, 65, "x", True, 2.0]),
    ("stagger", [-1, "x", None, True]),
    ("epoch", [-1, "a", None, True, MANY]),
    ("world_size", [0, -1, "2", None, True]),
    ("ranks", [7, None, "01", b"\0"]),
    ("rank", [["0"], [0.0], [3], [-1], [True]]),
]
HINTS: list[tuple[str, list[Any]]] = [
    ("ahead", [0, -1, "x", None, True]),
    ("record_of", ["x", 7]),
    ("database", [7]),
]
DATASET: list[tuple[str, list[Any]]] = [("decode", ["jpeg", 7]), ("keys", ["000", b"000", 7])]


def feed(path: Path, **wrong: Any) -> Feed:
    return Feed(path, **({"batch_size": 4, "database": "images"} | wrong))


def node_feed(path: Path, **wrong: Any) -> NodeFeed:
    if "rank" in wrong:
        wrong["ranks"] = wrong.pop("rank")
    options = {"batch_size": 4, "database": "images", "ranks": [0], "world_size": 1} | wrong
    return NodeFeed(path, **options)


def dataset(path: Path, **wrong: Any) -> FeedDataset:
    return FeedDataset(path, **({"database": "images"} | wrong))


def hints(path: Path, **wrong: Any) -> Hints:
    return Hints(path, **({"database": "images"} | wrong))


WRONG = [
    (make, name, value)
    for make, rows in (
        (feed, READING + MAPPED + BUFFER + ORDER + RANK),
        (node_feed, READING + BUFFER + ORDER + OF_NODE),
        (dataset, READING + MAPPED + BUFFER + DATASET),
        (hints, HINTS),
    )
    for name, values in rows
    for value in values
]


@pytest.mark.parametrize(("make", "name", "value"), WRONG)
def test_what_makes_no_sense_is_refused_by_its_name(
    two: Path, make: Take, name: str, value: Any
) -> None:
    said = value[0] if name == "rank" and isinstance(value, list) else value
    with pytest.raises(FeedError) as caught:
        make(two, **{name: value})
    assert str(caught.value).startswith(f"{name}={said!r} ")
    assert len(str(caught.value)) < 300


def test_numbers_of_numpy_are_numbers(one: Any) -> None:
    made = Feed(one, np.int64(4), seed=np.uint8(3), mapped=np.bool_(True), readers=np.int32(0))  # type: ignore[arg-type]
    assert json.dumps(made.state_dict())
    assert made.request.options.mapped is True


def test_a_number_that_is_too_large_is_told_what_the_largest_is(one: Any) -> None:
    with pytest.raises(FeedError, match=r"takes 0 to 18,446,744,073,709,551,615$"):
        Feed(one, 4, seed=1 << 64)
    with pytest.raises(FeedError, match=r"takes 0 to 4,611,686,018,427,387,904$"):
        Feed(one, 4, rank=1 << 70)
    with pytest.raises(
        FeedError,
        match=r"^batch_size=int of too many digits is out of range; it takes 1 to 16,777,216$",
    ):
        Feed(one, 10**5000)
    with pytest.raises(FeedError, match=r"^rank=-1 .* takes 0 or more$"):
        Feed(one, 4, rank=-1)


@pytest.mark.parametrize("seed", [9223372036854775813, (1 << 64) - 1, np.uint64((1 << 64) - 1)])
def test_a_seed_may_have_64_bits_as_torchs_has(one: Any, seed: Any) -> None:
    made = Feed(one, 4, seed=seed, shuffle="global")
    orders = [[key for batch in made for key in batch.keys]]
    state = json.loads(json.dumps(made.state_dict()))
    Feed(one, 4, seed=seed, shuffle="global").load_state_dict(state)
    with node(one, seed=seed, shuffle="global", readers=1) as shared:
        orders.append([key for batch in shared.rank(0) for key in batch.keys])
    orders.append([key for batch in Feed(one, 4, seed=5, shuffle="global") for key in batch.keys])
    assert orders[0] == orders[1] != orders[2]


def test_a_value_of_several_lines_is_told_on_one(one: Any) -> None:
    with pytest.raises(FeedError, match=r"^depth=array\(\[\[0\., 0\.") as caught:
        Feed(one, 4, depth=np.zeros((3, 3)))  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_a_stream_takes_rank_and_world_together(one: Any) -> None:
    pytest.importorskip("torch")
    for alone, lacks in (("rank", "world_size"), ("world_size", "rank")):
        for value in (4, 0, "3"):
            with pytest.raises(FeedError, match=f"^{alone}={value!r} is said without {lacks}"):
                feed_stream(one, 4, **{alone: value})
    assert len(list(feed_stream(one, 4, rank=3, world_size=4))) == 8


def test_a_key_may_be_a_text_and_nothing_else(one: Any, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for number in range(3):
            tar.addfile(tarfile.TarInfo(f"{number:03d}.txt"))
    for index in (one, open_index(tmp_path / "a.tar")):
        assert index.find("001") == index.find(b"001") == index.find(memoryview(b"001")) == 1
        assert index.find("1") == -1
        for wrong in (1, None, ["001"]):
            with pytest.raises(FeedError, match=r"^key=.* is no key; it takes a text, or bytes"):
                index.find(wrong)


def test_a_hint_is_of_the_record_whose_key_is_given_as_text_too(one: Any) -> None:
    for record_of in ("{:03d}".format, lambda number: b"%03d" % number, np.int64):
        named = Hints(one, record_of=record_of)
        assert named._records([29, 4]).tolist() == [29, 4]
    lost = Hints(one, record_of=lambda number: 0.5 * number)  # type: ignore[arg-type,return-value]
    lost.give([7])
    assert "record_of(7) gives 3.5, which is no record" in lost.why_not


def test_a_rank_beyond_the_world_says_which_there_are(one: Any) -> None:
    for rank in (4, 5):
        with pytest.raises(FeedError, match=f"rank={rank} with world_size=4: .* is 3"):
            Feed(one, 4, rank=rank, world_size=4)


def test_who_attaches_is_refused_by_name(one: Any) -> None:
    for token in (None, 7, "", "a:b:c:d"):
        with pytest.raises(FeedError, match=r"^token=.* is no token of a feed"):
            attach(token, 0)  # type: ignore[arg-type]
    with node(one, readers=1) as made:
        for rank in ("0", None, 0.0, 1):
            with pytest.raises(FeedError, match=r"^rank="):
                made.rank(rank)  # type: ignore[arg-type]
        assert sum(map(len, made.rank(0))) == 30


def test_a_key_that_is_a_number_is_none(one: Any) -> None:
    with pytest.raises(FeedError, match=r"^keys\[0\]=7 is no key"):
        FeedDataset(one, keys=[7])  # type: ignore[list-item]
    assert len(FeedDataset(one, keys=(key for key in ("001", b"002")))) == 2  # type: ignore[arg-type]


# --- no data set, no epoch, no state -------------------------------------------------------------


def test_nothing_is_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.bin").write_bytes(b"1")
    monkeypatch.chdir(tmp_path)
    for nothing in ("", [""]):
        with pytest.raises(FeedError, match=r"an empty text names no data set; .* '\.'"):
            Feed(nothing, 1)
    with pytest.raises(FeedError, match="an empty list names no data set"):
        Feed([], 1)
    assert len(Feed(".", 1).index) == 1
    command = [sys.executable, "-m", "penstock", "feed", "inspect", ""]
    said = subprocess.run(command, capture_output=True, text=True)
    assert (said.returncode, said.stderr.count("\n")) == (2, 1)
    assert "an empty text names no data set" in said.stderr


def test_an_epoch_that_is_none_is_refused(one: Any) -> None:
    made = Feed(one, 4)
    for wrong in ("a", None, -1, 1.5, True, 1 << 40):
        with pytest.raises(FeedError, match=r"^epoch="):
            made.set_epoch(wrong)  # type: ignore[arg-type]
    made.set_epoch(np.int64(3))  # type: ignore[arg-type]
    assert made.epoch == 3


def test_what_memory_held_is_told_by_true_and_false(one: Any) -> None:
    made = Feed(one, 4, shuffle="cache-aware", world_size=2)
    wrong: Any
    for wrong in (
        5,
        None,
        "x" * 30,
        ["a"] * 30,
        [0.5] * 30,
        [2] * 30,
        [[True] * 30],
        [[1], [1, 2]],
    ):
        with pytest.raises(FeedError, match=r"^held="):
            made.set_held(wrong)
    with pytest.raises(FeedError, match="held says 29 records, the data set has 30"):
        made.set_held(np.ones(29, bool))
    for held in (np.arange(30) < 4, np.uint8([1] * 4 + [0] * 26), [True] * 4 + [False] * 26):
        made.set_epoch(0)
        made.set_held(held)  # type: ignore[arg-type]
        assert sorted(next(iter(made)).records.tolist()) == [0, 1, 2, 3]


def test_a_path_a_cache_and_a_progress_that_are_none_are_refused(
    two: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for wrong, said in (
        ({"cache": ""}, r"^cache='' is no place"),
        ({"progress": 5}, r"^progress=5 is no function"),
        ({"path": None}, "^None names no data set"),
    ):
        with pytest.raises(FeedError, match=said):
            open_index(**({"path": two, "database": "images"} | wrong))  # type: ignore[arg-type]
    assert os.listdir(tmp_path) == []
    with pytest.raises(FeedError, match="names no data set") as caught:
        Feed(list(range(100_000)), 8)
    assert len(str(caught.value)) < 200


STATE_IS_WRONG: list[tuple[Any, str]] = [
    (None, "None is no state of a feed; load what"),
    ([1], r"\[1\] is no state"),
    ("x" * 500, r"\.\.\. is no state"),
    ({}, "has no 'version'"),
    ({"version": 1, "model": {}}, "has no 'n_records'"),
]
CHANGED: list[tuple[dict[str, Any], str]] = [
    ({"version": 9}, "version 9"),
    ({"epoch": -1}, "damaged .epoch -1"),
    ({"epoch": "a"}, "damaged"),
    ({"epoch": 1.7}, "damaged"),
    ({"n_records": 30.5}, "damaged"),
    ({"n_records": float("inf")}, "damaged"),
    ({"parts": []}, "damaged"),
    ({"parts": [[1, 4, 1, "short", -1]]}, "damaged"),
    ({"parts": 7}, "damaged"),
    ({"parts": [[1, 4, 1, "short", 1.5]]}, "damaged"),
    ({"parts": [[1.5, 4, 1, "short", 1]]}, "damaged"),
    ({"parts": [[1, 4, 1, "short", 10**18]]}, r"damaged .1,0+,0+.* of a rank's 8\)"),
    ({"parts": [[4, 4, 1, "short", 3]]}, r"damaged .3 batches were taken of a rank's 2\)"),
    ({"parts": [[2, 4, 1, "drop", 1], [1, 4, 1, "short", 7]]}, r"taken of a rank's 6\)"),
    ({"parts": [[1 << 24, 1 << 24, 1 << 24, "short", 0], [1, 4, 1, "short", 1]]}, "damaged"),
    ({"held": 7}, "what memory held is damaged"),
    ({"n_records": 31}, "data set of 31 records and .* has 30"),
    ({"order": ["global", 0, 1, 1]}, "an epoch cannot change its order"),
]


def test_a_state_that_is_none_is_refused_and_the_pass_goes_on(one: Any) -> None:
    made = Feed(one, 4)
    going = iter(made)
    next(going)
    good = made.state_dict()
    for wrong, said in STATE_IS_WRONG + [(good | change, said) for change, said in CHANGED]:
        with pytest.raises(FeedError, match=said):
            made.load_state_dict(wrong)
        if isinstance(wrong, dict):
            with pytest.raises(FeedError, match=said):
                node(one, state=wrong)
    assert sum(map(len, going)) == 26


# --- a part of a record --------------------------------------------------------------------------


def test_a_part_of_a_record_is_owned_as_it_is_and_says_that_it_has_no_place(one: Any) -> None:
    record = next(iter(Feed(one, 4)))[1]
    assert record.owned().key == record.key == b"001"
    assert record.owned().where == record.where
    for part in (record[:6], record[::2], record.copy(), record.view(np.uint16)):
        owned = part.owned()
        assert owned.dtype == part.dtype
        assert owned.tolist() == part.tolist()
        assert owned.flags.writeable
        assert not np.shares_memory(owned, part)
        for made in (part, owned):
            for name in ("place", "key"):
                with pytest.raises(AttributeError, match=f"no {name}: ask the record itself"):
                    getattr(made, "where" if name == "place" else name)


# --- what it says of itself ----------------------------------------------------------------------


def test_what_is_printed_is_short_and_says_what_it_is(two: Path, one: Any) -> None:
    where = f"{two}, 30 records"
    assert repr(one) == f"<Index of {where}, 1,800 bytes in 1 file of lmdb>"
    made = Feed(one, 4, shuffle="global", rank=1, world_size=3)
    said = f"<Feed of {where}: batch_size=4, shuffle='global', rank 1 of 3, next is batch "
    assert repr(made) == f"{said}0 of epoch 0>"
    batch = next(iter(made))
    assert repr(batch) == "<Batch of 4 records, 240 bytes>"
    assert repr(made) == f"{said}1 of epoch 0>"
    assert repr(FeedDataset(one)) == f"<FeedDataset of {where}>"
    assert repr(FeedDataset(one, keys=["001"])) == f"<FeedDataset of {where}, 1 of them by keys>"
    many = open_index([two / "data.mdb"], database="images")
    assert len(repr(many)) < 300
    with node(one, readers=1) as shared:
        of_all = f"of {where}: batch_size=4, shuffle='none', "
        assert repr(shared) == f"<NodeFeed {of_all}1 of 1 ranks, 1 readers>"
        said = f"<RankFeed {of_all}rank 0 of 1, next is batch 0 of epoch 0>"
        assert repr(shared.rank(0)) == said


# --- after `import penstock` ---------------------------------------------------------------------


def test_its_packages_are_there_after_import_penstock() -> None:
    program = """
import sys, penstock
assert not {"numpy", "penstock.feed", "penstock.save", "penstock.adapters"} & set(sys.modules)
assert {"adapters", "feed", "record", "save"} <= set(dir(penstock))
assert not {"penstock.feed", "penstock.save"} & set(sys.modules)
assert not hasattr(penstock, "feeds") and "numpy" not in sys.modules
penstock.feed.Feed, penstock.feed.lmdb.open, penstock.feed.hinted
penstock.save.Checkpointer, penstock.adapters.torch.FeedDataset
from penstock import feed, save, adapters
assert feed is penstock.feed is sys.modules["penstock.feed"]
try:
    penstock.feeds
except AttributeError as error:
    print(error)
"""
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ
    )
    assert said.stdout == "module 'penstock' has no attribute 'feeds'\n", said.stderr
