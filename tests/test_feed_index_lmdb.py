"""The walk over an LMDB's pages, against py-lmdb: any write history, any page size, any damage."""

import os
import random
import re
import struct
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lmdbwriter
from penstock.errors import FeedError
from penstock.feed import Feed, pages, verify
from penstock.feed import lmdb as ours
from penstock.feed.byte_file import opened
from penstock.feed.index import Index, open_index

Whole = tuple[bytes, dict[bytes, bytes]]
VERSIONS = (0, 1)  # of liblmdb: data version 1 and data version 3
SIZES = (0, 1, 9, 300, 1999, 2040, 4080, 4081, 5000, 20_000)  # inline, at the edges, and beyond


def written(
    folder: Path, seed: int, version: int, n: int = 400, rounds: int = 10
) -> dict[bytes, bytes]:
    """An LMDB with a history: puts in random order, deletions, values of another size."""
    rng = random.Random(seed)
    truth: dict[bytes, bytes] = {}
    with lmdb.open(str(folder), map_size=1 << 28, lib_version=version) as env:
        for _ in range(rounds):
            with env.begin(write=True) as txn:
                for _ in range(n // rounds):
                    key = rng.choice([b"%d", b"%08d", b"a long name of a picture/%d.jpg"])
                    key %= rng.randrange(10 * n)
                    if truth and rng.random() < 0.3:
                        key = rng.choice(sorted(truth))
                    if key in truth and rng.random() < 0.5:
                        txn.delete(key)
                        del truth[key]
                    else:
                        truth[key] = rng.randbytes(rng.choice(SIZES))
                        txn.put(key, truth[key])
    return truth


def records(index: Index) -> dict[bytes, bytes]:
    data = [Path(file).read_bytes() for file in index.files]
    places = zip(index.file.tolist(), index.offset.tolist(), index.length.tolist(), strict=True)
    return {
        index.key(number): data[file][at : at + n_bytes]
        for number, (file, at, n_bytes) in enumerate(places)
    }


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("seed", range(6))
def test_every_record_of_any_write_history_is_found_in_key_order(
    tmp_path: Path, seed: int, version: int
) -> None:
    truth = written(tmp_path, seed, version)
    index = open_index(tmp_path)
    found = records(index)
    assert found == truth
    assert list(found) == sorted(truth)
    assert index.total_bytes == sum(map(len, truth.values()))
    assert verify.check(tmp_path).problems == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_tree_of_three_levels_is_walked(tmp_path: Path, version: int) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 28, lib_version=version) as env:
        truth = {b"%09d" % n + b"k" * 200: b"%d" % n for n in range(5000)}
        with env.begin(write=True) as txn:
            txn.cursor().putmulti(sorted(truth.items()))
        assert env.stat()["depth"] >= 3
    index = open_index(tmp_path, cache=False)
    assert records(index) == truth
    places = [index.find(key) for key in sorted(truth)]
    assert places == list(range(len(truth)))
    assert index.find(b"000000001") == -1
    assert index.find(b"zzz") == -1


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("how", ["copied", "compacted", "mapped to write", "alone"])
def test_files_that_came_about_otherwise_are_read(tmp_path: Path, how: str, version: int) -> None:
    made, other = tmp_path / "made", tmp_path / "other"
    truth = written(made, 17, version)
    if how in ("copied", "compacted"):
        other.mkdir()
        with lmdb.open(str(made)) as env:
            env.copy(str(other), compact=how == "compacted")
    else:
        with lmdb.open(
            str(other), map_size=1 << 24, writemap=how != "alone", subdir=how != "alone",
            lib_version=version,
        ) as env:  # fmt: skip
            for start in (0, 1):
                with env.begin(write=True) as txn:
                    for key in sorted(truth)[start::2]:
                        txn.put(key, truth[key])
    assert records(open_index(other, cache=False)) == truth
    with ours.open(other) as env, env.begin() as txn:
        assert dict(txn.cursor()) == truth
    assert verify.check(other).problems == []


def test_chunks_of_pages_join_without_a_seam(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    truth = written(tmp_path, 3, 0)
    monkeypatch.setattr(pages, "CHUNK_BYTES", 3 * 4096)
    steps: list[tuple[int, int]] = []
    index = open_index(tmp_path, progress=lambda done, total: steps.append((done, total)))
    assert records(index) == truth
    assert len(steps) > 3
    assert steps[-1][0] == steps[-1][1]


@pytest.mark.parametrize("page_bytes", [512, 1024, 4096, 16_384, 32_768])
def test_any_page_size_is_read(tmp_path: Path, page_bytes: int) -> None:
    rng = random.Random(page_bytes)
    truth = {b"%08d" % n: rng.randbytes(rng.choice(SIZES)) for n in range(700)}
    lmdbwriter.write(tmp_path / "data.mdb", truth, page_bytes)
    assert open_index(tmp_path).total_bytes == sum(map(len, truth.values()))
    assert records(open_index(tmp_path)) == truth
    with ours.open(tmp_path) as env, env.begin() as txn:
        assert dict(txn.cursor()) == truth
    assert verify.check(tmp_path).problems == []
    # That the file is one: liblmdb reads the same from it.
    with lmdb.open(str(tmp_path), readonly=True, lock=False) as env, env.begin() as txn:
        assert env.stat()["psize"] == page_bytes
        assert dict(txn.cursor()) == truth


@given(st.dictionaries(st.binary(min_size=1, max_size=60), st.binary(max_size=3000), max_size=60))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_keys_and_values_come_back(
    tmp_path_factory: pytest.TempPathFactory, truth: dict[bytes, bytes]
) -> None:
    folder = tmp_path_factory.mktemp("any")
    with lmdb.open(str(folder), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for key, value in truth.items():
            txn.put(key, value)
    assert records(open_index(folder)) == truth
    with ours.open(folder) as env, env.begin() as txn:
        assert list(txn.cursor()) == sorted(truth.items())


def test_an_empty_database_has_no_records(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path)).close()
    index = open_index(tmp_path)
    assert len(index) == 0
    assert index.total_bytes == 0
    assert index.find(b"key") == -1


# --- databases in it -----------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_a_single_named_database_is_the_data_set(tmp_path: Path, version: int) -> None:
    with (
        lmdb.open(str(tmp_path), max_dbs=2, lib_version=version) as env,
        env.begin(write=True) as txn,
    ):
        txn.put(b"key", b"value", db=env.open_db(b"images", txn))
    assert records(open_index(tmp_path)) == {b"key": b"value"}
    assert records(open_index(tmp_path, database=b"images")) == {b"key": b"value"}


def test_of_several_databases_one_must_be_named(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=2, map_size=1 << 24) as env, env.begin(write=True) as txn:
        for name in (b"images", b"labels"):
            txn.put(b"key", name * 2000, db=env.open_db(name, txn))
    with pytest.raises(FeedError, match=r"'images', 'labels'.*which one"):
        open_index(tmp_path)
    assert records(open_index(tmp_path, database="labels")) == {b"key": b"labels" * 2000}
    with pytest.raises(FeedError, match="no database 'depths' in it, but 'images', 'labels'"):
        open_index(tmp_path, database="depths")
    with lmdb.open(str(tmp_path / "plain")) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    with pytest.raises(FeedError, match="no database 'depths' in it, nor any that has a name"):
        open_index(tmp_path / "plain", database="depths")


def test_plain_records_beside_a_database_are_the_data_set(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), max_dbs=2) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value", db=env.open_db(b"images", txn))
        txn.put(b"a", b"plain")
        txn.put(b"z", b"record")
        for number in range(3):
            txn.put(b"m%d" % number, b"more")
    assert len(open_index(tmp_path)) == 5
    index = open_index(tmp_path, database="images")
    assert records(index) == {b"key": b"value"}
    ((noun, _, n, names),) = index.left_out
    assert (noun, n, names) == ("record", 5, ("a", "m0", "m1"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dupsort": True}, "DUPSORT"),
        ({"integerkey": True}, "INTEGERKEY"),
        ({"reverse_key": True}, "REVERSEKEY"),
    ],
)
def test_an_unusual_database_is_told_and_not_misread(
    tmp_path: Path, options: dict[str, bool], said: str
) -> None:
    with lmdb.open(str(tmp_path), max_dbs=1) as env:
        db = env.open_db(b"one", **options)
        with env.begin(write=True, db=db) as txn:
            txn.put(struct.pack("<Q", 258), b"a")
            txn.put(struct.pack("<Q", 258), b"b")
    with pytest.raises(FeedError, match=f"{said}.*py-lmdb"):
        open_index(tmp_path)
    with ours.open(tmp_path) as env, pytest.raises(FeedError, match=said):
        env.open_db(b"one")


# --- damage --------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=VERSIONS, ids=["v1", "v3"])
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    truth = written(folder, 11, request.param, n=160, rounds=4)
    return (folder / "data.mdb").read_bytes(), truth


def broken(data: bytes, page: int, how: str) -> bytes:
    start, end = page * 4096, page * 4096 + 4096
    inverted = bytes(255 - byte for byte in data[start:end])
    other = 4096 * (len(data) // 4096 - 1 - page)
    return {
        "inverted": data[:start] + inverted + data[end:],
        "zeroed": data[:start] + bytes(4096) + data[end:],
        "another page": data[:start] + data[other : other + 4096] + data[end:],
        "truncated before": data[:start],
        "truncated within": data[: start + 700],
    }[how]


HARMS = ("inverted", "zeroed", "another page", "truncated before", "truncated within")


@pytest.mark.parametrize("how", HARMS)
def test_each_page_damaged_is_an_error_with_its_name_or_no_harm(
    tmp_path: Path, whole: Whole, how: str
) -> None:
    """A byte inside a value is in no sum of LMDB's: a page behind a value's first is the one place
    where damage cannot be seen, and then it stays in that record and that page."""
    data, truth = whole
    path = tmp_path / "data.mdb"
    n_errors = 0
    for page in range(len(data) // 4096):
        path.write_bytes(broken(data, page, how))
        said: list[str] = []
        try:
            index = open_index(path, kind="lmdb", cache=False)
            found = records(index)
        except FeedError as error:
            said.append(str(error))
        else:
            n_wrong = harmed(index, found, truth, page)
            problems = verify.check(path).problems
            assert problems or not n_wrong or is_behind_first(index, page), (page, how)
        said += through_the_drop_in(path, truth, page)
        said += through_a_feed(path, truth, page)
        n_errors += bool(said)
        for text in said:
            assert str(path) in text
            assert re.search(r"page \d+|is empty", text), text
    assert n_errors > len(data) // 4096 // 4


def harmed(index: Index, found: dict[bytes, bytes], truth: dict[bytes, bytes], page: int) -> int:
    """How many values are other ones; every key and length is right, and damage within the page."""
    assert {key: len(value) for key, value in found.items()} == {
        key: len(value) for key, value in truth.items()
    }
    n_wrong = 0
    for number, (key, value) in enumerate(found.items()):
        for place in (
            np.flatnonzero(np.frombuffer(value, np.uint8) != np.frombuffer(truth[key], np.uint8))[
                [0, -1]
            ]
            if value != truth[key]
            else ()
        ):
            assert (index.offset[number] + place) // 4096 == page
            n_wrong += 1
    return n_wrong


def is_behind_first(index: Index, page: int) -> bool:
    first = index.offset // 4096
    last = (index.offset + index.length - 1) // 4096
    return bool(((first < page) & (page <= last)).any())


def through_the_drop_in(path: Path, truth: dict[bytes, bytes], page: int) -> list[str]:
    said = []
    try:
        with ours.open(path) as env, env.begin() as txn:
            for key, value in truth.items():
                try:
                    found = txn.get(key)
                except FeedError as error:
                    said.append(str(error))
                    continue
                assert found is not None
                assert len(found) == len(value)
                if found != value:  # only behind the first page of a value
                    assert found[: 4096 - 24] == value[: 4096 - 24]
    except FeedError as error:
        said.append(str(error))
    return said


def through_a_feed(path: Path, truth: dict[bytes, bytes], page: int) -> list[str]:
    """What a Feed that skips says of records; those that it gives are right, or wrong behind the
    first page of a value."""
    given: set[bytes] = set()
    try:
        index = open_index(path, kind="lmdb", cache=False)
        with Feed(index, 7, shuffle="global", on_error="skip", readers=0) as feed:
            for batch in feed:
                for record in batch:
                    given.add(record.key)
                    value = truth[record.key]
                    assert len(record) == len(value)
                    if record.tobytes() != value:
                        assert record.tobytes()[: 4096 - 24] == value[: 4096 - 24]
            assert len(given) + feed.n_failed == len(index)
            return list(feed.failures)
    except FeedError as error:
        return [str(error)]


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_many_headers_are_judged_as_each_is(data: st.DataObject) -> None:
    """`are_misplaced` says of many values what `misplaced` says of one."""
    page_bytes, header_bytes = (
        data.draw(st.sampled_from([256, 4096, 1 << 15])),
        data.draw(st.sampled_from([16, 24])),
    )
    database = pages.TreeRecord(0, 0, 0, 0, 0, 0, 0, 0)
    meta = pages.Meta(pages.LAYOUTS[header_bytes], page_bytes, 0, database, 0, 0)
    n = data.draw(st.integers(1, 8))
    memory = np.zeros(n * page_bytes, np.uint8)
    numbers, sizes = [], []
    for place in range(n):
        page, size = data.draw(st.integers(2, 1 << 40)), data.draw(st.integers(1, 5 * page_bytes))
        need = (header_bytes - 1 + size) // page_bytes + 1
        header = bytearray(header_bytes)
        struct.pack_into("<Q", header, 0, page + data.draw(st.sampled_from([0, 0, 0, 1])))
        kind = data.draw(st.sampled_from([pages.OVERFLOW] * 3 + [pages.LEAF, 0x14]))
        run = max(0, need + data.draw(st.sampled_from([0, 0, 1, -1])))
        struct.pack_into("<HI", header, header_bytes - 6, kind, run)
        memory[place * page_bytes : place * page_bytes + header_bytes] = bytearray(header)
        numbers.append(page)
        sizes.append(size)
    at = np.arange(n) * page_bytes + header_bytes
    offset = np.array(numbers) * page_bytes + header_bytes
    assert pages.in_overflow(meta, offset).all()
    one_by_one = [
        pages.misplaced(meta, memory[start - header_bytes : start].tobytes(), numbers[i], sizes[i])
        != ""
        for i, start in enumerate(at.tolist())
    ]
    found = pages.are_misplaced(meta, memory, at, offset, np.array(sizes))
    assert found.tolist() == one_by_one
    beside = offset + np.arange(n) % 2  # every second value lies in a leaf and has no header
    found = pages.are_misplaced(meta, memory, at, beside, np.array(sizes))
    assert found.tolist() == [is_wrong and i % 2 == 0 for i, is_wrong in enumerate(one_by_one)]


@given(
    st.lists(st.tuples(st.integers(0, 1 << 30), st.integers(1, 255)), min_size=1, max_size=6),
    st.sampled_from([1, 2, 4, 8]),
)
@settings(max_examples=150, deadline=None)
def test_flipped_bytes_never_give_a_record_outside_the_file(
    whole: Whole,
    tmp_path_factory: pytest.TempPathFactory,
    flips: list[tuple[int, int]],
    width: int,
) -> None:
    data = bytearray(whole[0])
    for place, by in flips:
        # Mostly at the heads of pages, where the structure is.
        at = (place // 4096 * 4096 + place % 64 if by % 2 else place) % len(data)
        for step in range(width):
            data[(at + step) % len(data)] ^= by
    path = tmp_path_factory.getbasetemp() / f"flipped-{os.getpid()}.mdb"
    path.write_bytes(data)
    for look in (all_places_in, all_records_in):
        said = said_by(look, path, whole[1])
        assert not said or str(path) in said


def said_by(do: Callable[..., Any], *given: Any) -> str:
    """The FeedError that it ends in, or nothing; any other is the test's."""
    try:
        do(*given)
    except FeedError as error:
        return str(error)
    return ""


def all_places_in(path: Path, truth: dict[bytes, bytes]) -> None:
    index = open_index(path, kind="lmdb", cache=False)
    assert (index.offset >= 0).all()
    assert (index.offset + index.length <= path.stat().st_size).all()


def all_records_in(path: Path, truth: dict[bytes, bytes]) -> None:
    with ours.open(path) as env, env.begin() as txn:
        for key in list(truth)[:40]:
            txn.get(key)
        for _ in txn.cursor():
            pass


def test_pages_that_point_in_a_circle_end(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 28) as env:
        with env.begin(write=True) as txn:
            txn.cursor().putmulti([(b"%09d" % n + b"k" * 200, b"v") for n in range(5000)])
        stat = env.stat()
    path = tmp_path / "data.mdb"
    data = bytearray(path.read_bytes())
    with opened(str(path)) as source:
        root = pages.read_meta(source, str(path)).main.root
    at = root * 4096
    n = (struct.unpack_from("<H", data, at + 12)[0] - 16) // 2
    for node in range(n):
        (place,) = struct.unpack_from("<H", data, at + 16 + 2 * node)
        struct.pack_into("<IH", data, at + place, root, 0)
    path.write_bytes(data)
    assert stat["depth"] >= 3
    with pytest.raises(FeedError, match=r"page \d+ (is pointed to twice|is no leaf)"):
        open_index(path, cache=False)
    with ours.open(path) as env, env.begin() as txn, pytest.raises(FeedError, match="page"):
        txn.get(b"%09d" % 7 + b"k" * 200)


def test_foreign_files_are_told_apart(tmp_path: Path) -> None:
    good = struct.pack("<QHHIIIQQ", 0, 0, 8, 0, 0xBEEFC0DE, 1, 0, 1 << 20) + bytes(8192)
    cases = {
        "of another kind of machine": good[:16] + bytes.fromhex("beefc0de") + good[20:],
        "data version 999": good[:20] + struct.pack("<I", 999) + good[24:],
        "a page has 0 bytes": good,
        "is empty": b"",
    }
    for said, data in cases.items():
        path = tmp_path / "data.mdb"
        path.write_bytes(data)
        with pytest.raises(FeedError, match=said):
            open_index(path, kind="lmdb")


# --- a writer at the same time -------------------------------------------------------------------

WRITER = """
import lmdb, os, sys, time
env = lmdb.open(sys.argv[1], map_size=1 << 28, sync=False)
generation = 0
while not os.path.exists(sys.argv[2]):
    generation += 1
    with env.begin(write=True) as txn:
        for n in range(60):
            stamp = b"%08d" % generation
            txn.put(b"small%02d" % n, stamp)
            txn.put(b"large%02d" % n, stamp * (600 + 40 * (generation % 7)))
    if generation == 1:
        print("begun", flush=True)
    time.sleep(0.002 if generation % 100 else 0.1)
"""


def test_beside_a_writer_what_is_read_is_of_one_transaction_or_refused(tmp_path: Path) -> None:
    program = tmp_path / "writer.py"
    program.write_text(textwrap.dedent(WRITER))
    folder, over = tmp_path / "set", tmp_path / "over"
    with subprocess.Popen(
        [sys.executable, program, folder, over], stdout=subprocess.PIPE
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"begun\n"
        outcomes = {"consistent": 0, "refused": 0}
        begun_s = time.monotonic()
        try:
            with ours.open(folder) as env:
                while time.monotonic() < begun_s + 3 or outcomes["consistent"] <= 5:
                    assert writer.poll() is None
                    assert time.monotonic() < begun_s + 200, outcomes
                    for said in (said_by(by_index, folder), said_by(by_transaction, env)):
                        assert re.search("^$|changed since|commits|was committed while", said), said
                        outcomes["refused" if said else "consistent"] += 1
        finally:
            over.touch()
    assert writer.returncode == 0


def by_index(folder: Path) -> None:
    index = open_index(folder, cache=False)
    found = records(index)
    index.check()
    one_generation(found)


def by_transaction(env: ours.Environment) -> None:
    with env.begin() as txn:
        found = dict(txn.cursor())
    one_generation(found)


def one_generation(found: dict[bytes, bytes]) -> None:
    assert len(found) == 120
    assert len({value[:8] for value in found.values()}) == 1
    assert all(value == value[:8] * (len(value) // 8) for value in found.values())


def test_a_commit_during_the_walk_makes_it_begin_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env:
        read, left = pages.pages_of, [2]

        def commit_and_read(*given: Any) -> Any:
            found = read(*given)
            if left[0]:
                left[0] -= 1
                put(env, b"%d" % left[0])
            return found

        put(env, b"old")
        monkeypatch.setattr(pages, "pages_of", commit_and_read)
        index = open_index(tmp_path, cache=False)
        index.check()
        assert records(index) == dict.fromkeys((b"a", b"b"), b"0")
        left[0] = 1000
        with pytest.raises(FeedError, match=r"data\.mdb: a writer commits more often"):
            open_index(tmp_path, cache=False)


def put(env: Any, value: bytes) -> None:
    with env.begin(write=True) as txn:
        txn.put(b"a", value)
        txn.put(b"b", value)


def test_what_is_added_is_seen_and_the_old_index_says_so(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env:
        with env.begin(write=True) as txn:
            txn.put(b"a", b"1")
        before = open_index(tmp_path)
        before.check()
        with env.begin(write=True) as txn:
            txn.put(b"b", b"2" * 100_000)
        with pytest.raises(FeedError, match=r"data\.mdb has changed since it was indexed"):
            before.check()
        assert records(open_index(tmp_path)) == {b"a": b"1", b"b": b"2" * 100_000}


def test_a_process_that_reads_a_set_does_not_take_its_writers_locks(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"1")
        before = sorted(os.listdir(tmp_path))
        assert len(open_index(tmp_path)) == 0  # what is not committed is not there
        assert sorted(os.listdir(tmp_path)) == before


# --- single numbers in a page --------------------------------------------------------------------


@pytest.fixture(params=VERSIONS, ids=["v1", "v3"])
def leafy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Twelve short records in one leaf, in the second of two transactions."""
    with lmdb.open(str(tmp_path), lib_version=request.param) as env:
        for value in (b"first value", b"other value"):
            with env.begin(write=True) as txn:
                for n in range(12):
                    txn.put(b"key %03d" % n, value)
    return tmp_path / "data.mdb"


def header_bytes(data: bytes) -> int:
    return 16 if data[16:20] == bytes.fromhex("dec0efbe") else 24


def leaves(data: bytes, value: bytes) -> list[int]:
    found = [
        at for at in range(2 * 4096, len(data), 4096) if data[at : at + 4096].count(value) == 12
    ]
    assert found
    return found


def an_older_page_of_the_same_keys(data: bytearray, at: int) -> None:
    (old,) = leaves(bytes(data), b"first value")
    data[at : at + 4096] = data[old : old + 4096]


def keys_swapped(data: bytearray, at: int) -> None:
    first = at + header_bytes(data)
    data[first : first + 4] = data[first + 2 : first + 4] + data[first : first + 2]


def a_value_shorter_than_its_room(data: bytearray, at: int) -> None:
    node = at + data.index(b"key 005", at) - at - 8
    assert data[node] == len(b"other value")
    data[node] -= 4


def a_node_counted_too_few(data: bytearray, at: int) -> None:
    data[at + header_bytes(data) - 4] -= 2


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (an_older_page_of_the_same_keys, "holds the number of another page"),
        (keys_swapped, "has keys out of order"),
        (a_value_shorter_than_its_room, "do not fill the room"),
        (a_node_counted_too_few, "do not fill the room|holds 11 records and counts 12"),
    ],
)
def test_a_wrong_number_in_a_page_is_told(
    leafy: Path, harm: Callable[[bytearray, int], None], said: str
) -> None:
    data = bytearray(leafy.read_bytes())
    (at,) = leaves(bytes(data), b"other value")
    harm(data, at)
    leafy.write_bytes(data)
    with pytest.raises(FeedError, match=f"page {at // 4096} .*({said})"):
        open_index(leafy, cache=False)
    with ours.open(leafy) as env, env.begin() as txn, pytest.raises(FeedError, match=said):
        txn.get(b"key 005")
