"""The drop-in for py-lmdb, beside py-lmdb: the same answers, one request a record, no map."""

import multiprocessing
import os
import pickle
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import FeedError
from penstock.feed import lmdb as ours
from penstock.feed.index import open_index

RECORD_BYTES = 100_000


@pytest.fixture(scope="module", params=[0, 1], ids=["v1", "v3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 records, in leaves and beyond them, in three named databases and the main one."""
    path = tmp_path_factory.mktemp("set")
    rng = random.Random(5)
    with (
        lmdb.open(str(path), map_size=1 << 28, max_dbs=2, lib_version=request.param) as env,
        env.begin(write=True) as txn,
    ):
        for n in range(600):
            txn.put(b"%06d" % (7 * n), rng.randbytes(rng.choice([0, 30, 900, 2100, 9000])))
        for n in range(40):
            txn.put(b"%d" % n, b"named", db=env.open_db(b"labels", txn))
    return path


@pytest.fixture
def both(folder: Path) -> Iterator[tuple[Any, Any]]:
    with (
        lmdb.open(
            str(folder), readonly=True, lock=False, max_dbs=2, readahead=False, meminit=False
        ) as theirs,
        ours.open(
            str(folder), readonly=True, lock=False, max_dbs=2, readahead=False, meminit=False
        ) as mine,
    ):
        yield theirs, mine


def same(both: tuple[Any, Any], ask: Callable[[Any], Any]) -> Any:
    theirs, mine = (ask(env) for env in both)
    assert mine == theirs
    return mine


def test_what_an_environment_says_is_what_py_lmdb_says(both: tuple[Any, Any]) -> None:
    same(both, lambda env: env.stat())
    same(both, lambda env: env.path())
    same(both, lambda env: env.max_key_size())
    same(both, lambda env: env.max_readers())
    same(both, lambda env: {**env.info(), "map_addr": 0, "map_size": 0, "num_readers": 0})
    same(both, lambda env: env.dbs())
    same(both, lambda env: env.begin().id())


def test_get_gives_what_py_lmdb_gives(both: tuple[Any, Any]) -> None:
    for key in (b"000000", b"000007", b"004193", b"000001", b"zzz", b"labels", b" "):
        same(both, lambda env, key=key: env.begin().get(key))
        same(both, lambda env, key=key: env.begin().get(key, b"default"))
    mine = both[1]
    with mine.begin(buffers=True) as txn:
        view = txn.get(b"000007")
    assert isinstance(view, memoryview)
    with mine.begin() as txn:
        assert isinstance(txn.get(b"000007"), bytes)
        assert txn.get(b"000007") == view


def test_named_databases_are_read(both: tuple[Any, Any]) -> None:
    def ask(env: Any) -> Any:
        labels = env.open_db(b"labels")
        with env.begin(db=labels) as txn:
            whole = list(txn.cursor())
            return whole, txn.stat(labels), txn.get(b"7"), txn.get(b"000007", db=env.open_db())

    assert len(same(both, ask)[0]) == 40
    with pytest.raises(FeedError, match="no database b'depths'"):
        both[1].open_db(b"depths")


def test_cursors_go_where_py_lmdbs_go(both: tuple[Any, Any]) -> None:
    same(both, lambda env: list(env.begin().cursor()))
    same(both, lambda env: list(env.begin().cursor().iternext(values=False)))
    same(both, lambda env: list(env.begin().cursor().iternext(keys=False)))
    same(both, lambda env: list(env.begin().cursor().iterprev()))
    same(both, lambda env: [key for key, _ in env.begin().cursor()])

    def halfway(env: Any) -> Any:
        cursor = env.begin().cursor()
        assert cursor.set_range(b"002000")
        return [key for key, _ in cursor][:5], cursor.key(), cursor.item()

    same(both, halfway)

    def stopped(env: Any) -> Any:
        cursor = env.begin().cursor()
        for key, _ in cursor:
            if key > b"001000":
                break
        return cursor.key(), cursor.next(), cursor.key(), cursor.prev(), cursor.prev(), cursor.key()

    same(both, stopped)


# Calls of one row are made one after the other, an error ends none.
CALLS = """
env.stat(); env.path(); env.max_key_size(); env.max_readers(); env.flags(); env.dbs()
env.info()['last_pgno']; env.info()['last_txnid']; sorted(env.info()); env.readers()
env.reader_check(); env.set_mapsize(1 << 28); env.sync(); env.sync(True)
env.begin(write=True); env.begin(parent=txn); env.begin(None, None, False, True).get(b'000007')
env.begin(db=b'labels'); env.begin(db='labels'); env.begin(labels).get(b'7')
env.begin(nonsense=1); env.open_db(b'labels', nonsense=1)
env.open_db(b'labels', create=False).flags(); labels.flags(txn); main.flags()
env.open_db('labels'); env.open_db(7); env.open_db(txn, b'labels')
env.open_db(b'depths'); env.open_db(b'depths', create=False); env.open_db(b'000007', create=False)
env.__enter__().stat(); env.__exit__(None, None, None); env.stat()
env.close(); env.close(); env.begin(); env.stat(); env.info(); env.path(); env.flags()
env.close(); env.max_key_size(); env.max_readers(); env.readers(); env.reader_check()
env.close(); env.sync(); env.open_db(b'labels'); env.dbs(); env.set_mapsize(1 << 28)
env.close(); txn.get(b'000007'); txn.id(); txn.stat(); txn.cursor(); txn.commit()
lmdb.version(); lmdb.version(True); lmdb.version(subpatch=True); lmdb.enable_drop_gil()
env.lib_version(); env.close(); env.lib_version()
env.close(); txn.abort(); cursor.key(); cursor.next(); cursor.close()

txn.get(b'000007'); txn.get(b'nope'); txn.get(b'nope', 3); txn.get(b'nope', default=3)
txn.get(key=b'000014'); txn.get(bytearray(b'000007')); txn.get(memoryview(b'000007'))
txn.get(b'7', db=labels); txn.get(b'7', None, labels); txn.get(b'7', db=b'labels')
env.open_db(None, dupsort=True); env.open_db(reverse_key=True); env.open_db(None, integerkey=True)
env.open_db(integerdup=True); env.open_db(dupfixed=True); env.open_db(b'labels', dupsort=True)
txn.get(b''); txn.get('000007'); txn.get(7); txn.get(None); txn.get(); txn.get(b'x' * 600)
views.get(b'000007'); views.get(b'nope'); views.cursor().item()
txn.id(); txn.stat(); txn.stat(labels); txn.stat(db=main); txn.stat('labels')
txn.put(b'a', b'b'); txn.replace(b'000007', b'x'); txn.replace(b'nope', b'x'); txn.drop(labels)
txn.delete(b'000007'); txn.delete(b'nope'); txn.pop(b'000007'); txn.pop(b'nope'); txn.pop(b'')
txn.pop(b'7', db=labels); txn.pop(b'nope', labels)
txn.abort(); txn.abort(); txn.commit(); txn.get(b'000007'); txn.cursor(); txn.stat(); txn.id()
txn.commit(); txn.commit(); txn.abort(); txn.pop(b'nope')
txn.__enter__().get(b'000007'); txn.__exit__(None, None, None); txn.get(b'000007')
txn.cursor(labels).first(); txn.cursor(db=labels).get(b'7'); txn.cursor('labels')
lmdb.Transaction(env, labels).get(b'7'); lmdb.Transaction(env, buffers=True).get(b'000007')
lmdb.Cursor(labels, txn).first(); lmdb.Cursor(db=main, txn=txn).get(b'000007')

cursor.key(); cursor.value(); cursor.item(); cursor.first(); cursor.item(); cursor.last()
cursor.next(); cursor.item(); cursor.next(); cursor.prev(); cursor.item(); cursor.prev()
cursor.prev(); cursor.item(); cursor.next(); cursor.item(); cursor.next(); cursor.item()
cursor.set_key(b'000007'); cursor.item(); cursor.set_key(b'000008'); cursor.item()
cursor.set_range(b'000008'); cursor.item(); cursor.set_range(b''); cursor.item()
cursor.set_range(b'zzz'); cursor.item(); cursor.next(); cursor.prev(); cursor.item()
cursor.set_key(b''); cursor.set_key('000007'); cursor.set_key(7); cursor.set_range('')
cursor.set_range('000007'); cursor.set_range(7); cursor.set_range(None)
cursor.get(b'000007'); cursor.get(b'nope'); cursor.key(); cursor.get(b'nope', 4); cursor.get(b'')
cursor.getmulti([b'000014', b'nope', b'000007', b'000014']); cursor.key()
cursor.getmulti({b'000007': 1}); cursor.getmulti(iter([b'000007'])); cursor.getmulti(())
cursor.getmulti([b'000007', b'nope'], values=False); views.cursor().getmulti([b'000007'])
cursor.getmulti(['000007']); cursor.getmulti([b'']); cursor.getmulti([7]); cursor.getmulti(7)
cursor.getmulti([b'000007'], dupfixed_bytes=8); cursor.getmulti([b'000007'], keyfixed=True)
cursor.getmulti([b'000007'], True, 8); cursor.getmulti([b'000007'], True, 8, True)
iter(cursor); cursor.key(); cursor.iternext(); cursor.iternext(False); cursor.iterprev(True, False)
cursor.iternext(keys=False, values=False); views.cursor().iternext(); views.cursor().iterprev()
cursor.set_range(b'004000'); cursor.iternext(values=False); cursor.iterprev(values=False)
cursor.set_range(b'zzz'); cursor.iternext(values=False)
cursor.set_range(b'zzz'); cursor.iterprev(values=False)
len(list(cursor)); cursor.item(); len(list(cursor.iternext(values=False))); cursor.key()
cursor.iternext_nodup(); cursor.iterprev_nodup(); cursor.iternext_nodup(True, True)
cursor.iternext_dup(); cursor.iterprev_dup(); cursor.first(); cursor.iternext_dup(); cursor.key()
cursor.first(); cursor.iternext_dup(keys=True); cursor.iterprev_dup(True, False)
cursor.first(); cursor.next_nodup(); cursor.key(); cursor.prev_nodup(); cursor.key()
cursor.first(); cursor.next_dup(); cursor.key(); cursor.prev_dup(); cursor.key()
cursor.first(); cursor.first_dup(); cursor.last_dup(); cursor.count()
cursor.count(); cursor.set_key_dup(b'000007', b'x'); cursor.set_range_dup(b'000007', b'x')
cursor.delete(); cursor.first(); cursor.delete(); cursor.pop(b'nope'); cursor.pop(b'000007')
cursor.put(b'a', b'b'); cursor.putmulti([(b'a', b'b')]); cursor.replace(b'000007', b'x')
cursor.first(); txn.abort(); cursor.key(); cursor.value(); cursor.item(); cursor.next()
cursor.first(); txn.abort(); cursor.count(); list(cursor); cursor.get(b'7'); cursor.delete()
cursor.first(); cursor.close(); cursor.close(); cursor.key(); cursor.value(); cursor.item()
cursor.close(); cursor.first(); cursor.next(); cursor.get(b'000007'); list(cursor); cursor.count()
cursor.close(); cursor.set_range(b''); cursor.getmulti([b'000007']); cursor.put(b'a', b'b')
cursor.__enter__().first(); cursor.__exit__(None, None, None); cursor.key()

lmdb.open(env.path() + '-gone', readonly=True, lock=False); lmdb.open(None); lmdb.open()
lmdb.open('', readonly=True, lock=False); lmdb.open(env.path() + '-gone', create=False)
lmdb.open(env.path(), readonly=True, lock=False, nonsense=1)
lmdb.open(env.path() + '-new', readonly=True, lock=False)
"""
ROWS = [row for row in CALLS.splitlines() if row]


@pytest.mark.parametrize("row", ROWS)
def test_a_call_answers_or_fails_as_py_lmdbs_does(folder: Path, row: str) -> None:
    assert answers(ours, folder, row) == answers(lmdb, folder, row)


def answers(module: Any, folder: Path, row: str) -> list[tuple[str, Any]]:
    with module.open(str(folder), readonly=True, lock=False, max_dbs=4) as env:
        known = {"lmdb": module, "env": env, "labels": env.open_db(b"labels", create=False)}
        known |= {"main": env.open_db(), "views": env.begin(buffers=True)}
        known["txn"] = env.begin()
        known["cursor"] = known["txn"].cursor()
        return [(call, answer(call, known)) for call in row.split("; ")]


def answer(call: str, known: dict[str, Any]) -> Any:
    try:
        return plain(eval(call, known))
    except Exception as error:
        return {"FeedError": "Error"}.get(type(error).__name__, type(error).__name__)


def plain(found: Any) -> Any:
    if isinstance(found, list | tuple):
        return type(found)(map(plain, found))
    if isinstance(found, memoryview):
        return "a view of", bytes(found)
    if hasattr(found, "__next__"):
        return "one by one", [plain(each) for _, each in zip(range(4), found, strict=False)]
    return found if isinstance(found, dict | int | bytes | str | None) else "an object"


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["first", "last", "next", "prev", "key", "value", "item"]),
        st.sampled_from(["next_nodup", "prev_nodup", "next_dup", "prev_dup"]),
        st.tuples(
            st.sampled_from(["set_key", "set_range", "get"]),
            st.one_of(
                st.integers(0, 4300).map(lambda n: b"%06d" % n),
                st.sampled_from([b"0", b"labels", b"zzz", b"0041930"]),
            ),
        ),
        st.tuples(st.just("iternext"), st.integers(1, 9)),
        st.tuples(st.just("iterprev"), st.integers(1, 9)),
    ),
    max_size=25,
)


@given(steps=STEPS)
@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_walk_of_a_cursor_is_py_lmdbs(both: tuple[Any, Any], steps: list[Any]) -> None:
    cursors = [env.begin().cursor() for env in both]
    for step in steps:
        theirs, mine = (walked(cursor, step) for cursor in cursors)
        assert mine == theirs, step


@pytest.mark.parametrize("n", [0, 1, 3, 2000])
@pytest.mark.parametrize("version", [0, 1])
def test_a_long_random_walk_is_py_lmdbs_at_every_step(tmp_path: Path, n: int, version: int) -> None:
    """With misses, and over both ends: no key, one, one leaf, several levels."""
    with (
        lmdb.open(str(tmp_path), map_size=1 << 24, lib_version=version) as env,
        env.begin(write=True) as txn,
    ):
        for i in range(n):
            txn.put(b"%08d" % i, b"v" * (i % 300))
    rng = random.Random(11)
    with lmdb.open(str(tmp_path), readonly=True, lock=False) as theirs, ours.open(tmp_path) as mine:
        for _ in range(30):
            cursors = [theirs.begin().cursor(), mine.begin().cursor()]
            for _ in range(100):
                step: Any = rng.choice(["first", "last", "next_dup"] + ["next", "prev"] * 6)
                if rng.random() < 0.3:
                    places = [rng.randrange(n + 1), *range(2), *range(max(0, n - 2), n + 1)]
                    missed = rng.choice([b"", b"x", b"-"])
                    key = rng.choice([b"%08d" % rng.choice(places) + missed, b"zz", b"!"])
                    step = (rng.choice(["set_key", "set_range", "get"]), key)
                elif rng.random() < 0.1:
                    step = (rng.choice(["iternext", "iterprev"]), rng.randrange(1, 5))
                assert walked(cursors[1], step) == walked(cursors[0], step), step


@pytest.mark.parametrize("n", [0, 1, 500])
def test_an_iterator_goes_on_where_its_cursor_was_moved_to(tmp_path: Path, n: int) -> None:
    """Two of them and moves by turns: each ends while the cursor is nowhere, and may go on."""
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        for i in range(n):
            txn.put(b"%08d" % i, b"v" * (i % 300))
    rng = random.Random(5)
    kinds = ["iternext", "iterprev"]
    kinds += [f"{kind}_{which}" for kind in kinds for which in ("dup", "nodup")]
    with lmdb.open(str(tmp_path), readonly=True, lock=False) as theirs, ours.open(tmp_path) as mine:
        for _ in range(60):
            cursors = [env.begin().cursor() for env in (theirs, mine)]
            each: list[list[Any]] = [[], []]  # of each cursor, its two iterators
            for step in range(60):
                if step % 20 == 0:
                    for _ in range(2):
                        kind, keys, values = rng.choice(kinds), *rng.choices([True, False], k=2)
                        for cursor, made in zip(cursors, each, strict=True):
                            made[:] = [*made[-1:], getattr(cursor, kind)(keys, values)]
                how, which = rng.random(), rng.randrange(2)
                key = b"%08d" % rng.choice([0, n - 2, n - 1, rng.randrange(n + 1)])
                move = rng.choice(["first", "last", "next", "prev", "set_key", "set_range", "get"])
                key += rng.choice([b"", b"x"])
                asked = (key,) if move in ("set_key", "set_range", "get") else ()
                answers = [
                    next(made[which], "end") if how < 0.7 else getattr(cursor, move)(*asked)
                    for cursor, made in zip(cursors, each, strict=True)
                ]
                assert answers[0] == answers[1], (move, asked, how)
                assert cursors[0].key() == cursors[1].key()


def walked(cursor: Any, step: Any) -> tuple[Any, bytes]:
    if isinstance(step, str):
        return getattr(cursor, step)(), cursor.key()
    name, given = step
    if name.startswith("iter"):
        found = [item for _, item in zip(range(given), getattr(cursor, name)(), strict=False)]
        return found, cursor.key()
    return getattr(cursor, name)(given), cursor.key()


def test_getmulti_keeps_the_order_that_was_asked_for(both: tuple[Any, Any]) -> None:
    keys = [b"%06d" % (7 * n) for n in random.Random(1).sample(range(700), 200)]
    found = same(both, lambda env: list(env.begin().cursor().getmulti(keys)))
    assert [key for key, _ in found] == [key for key in keys if int(key) < 4200]
    same(both, lambda env: env.begin().cursor().getmulti([]))


def test_to_write_is_refused_with_a_sentence(both: tuple[Any, Any]) -> None:
    mine = both[1]
    with pytest.raises(FeedError, match="never written; open it with py-lmdb"):
        mine.begin(write=True)
    with mine.begin() as txn:
        for name in ("put", "delete", "replace"):
            with pytest.raises(FeedError, match="never written"):
                getattr(txn, name)(b"key", b"value")
        with pytest.raises(FeedError, match="never written"):
            txn.pop(b"000007")
        with pytest.raises(FeedError, match="never written"):
            txn.cursor().put(b"key", b"value")
    assert issubclass(FeedError, ours.Error)


def test_wrong_use_is_an_error_that_says_so(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(FeedError, match="nothing-here"):
        ours.open(tmp_path / "nothing-here")
    with pytest.raises(TypeError, match="readahaed"):
        ours.open(folder, readahaed=False)
    env = ours.open(folder)
    txn = env.begin()
    with pytest.raises(TypeError, match="is text"):
        txn.get("000007")  # type: ignore[arg-type]
    with pytest.raises(FeedError, match="empty key"):
        txn.get(b"")
    txn.abort()
    with pytest.raises(FeedError, match="transaction has ended"):
        txn.get(b"000007")
    open_txn = env.begin()
    env.close()
    env.close()
    with pytest.raises(FeedError, match="ended"):
        open_txn.get(b"000007")
    with pytest.raises(FeedError, match="closed"):
        env.begin()


# --- processes -----------------------------------------------------------------------------------


def some(env: ours.Environment) -> list[Any]:
    with env.begin() as txn:
        return [txn.get(b"%06d" % (7 * n)) for n in range(0, 600, 50)]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_an_environment_goes_to_other_processes(folder: Path, method: str) -> None:
    with ours.open(folder) as env:
        expected = some(env)
        with multiprocessing.get_context(method).Pool(2) as pool:
            for found in pool.map(some, [env] * 4):
                assert found == expected
        assert some(env) == expected


def test_forked_children_and_their_parent_read_at_once(folder: Path) -> None:
    with ours.open(folder) as env:
        expected = some(env)
        children = []
        for _ in range(4):
            child = os.fork()
            if not child:
                same_each_time = all(some(env) == expected for _ in range(20))
                os._exit(0 if same_each_time else 1)
            children.append(child)
        assert all(some(env) == expected for _ in range(20))
        assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * 4


def test_a_pickled_environment_opens_itself_again(folder: Path) -> None:
    with ours.open(folder) as env:
        again = pickle.loads(pickle.dumps(env))
        assert some(again) == some(env)
        again.close()
        with env.begin() as txn, pytest.raises(TypeError, match="pickle its environment"):
            pickle.dumps(txn)


def test_a_pickled_environment_that_was_closed_stays_closed(folder: Path) -> None:
    env = ours.open(folder)
    env.close()
    again = pickle.loads(pickle.dumps(env))
    with pytest.raises(FeedError, match="the environment is closed"):
        again.begin()
    again.close()
    assert again.lib_version() == env.lib_version()


def test_nothing_is_left_beside_the_data_and_nothing_stays_open(folder: Path) -> None:
    before = sorted(os.listdir(folder))
    opened = len(os.listdir("/proc/self/fd"))
    with ours.open(folder) as env:
        some(env)
    assert sorted(os.listdir(folder)) == before
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_file_that_shrinks_under_a_reader_is_an_error_and_no_signal(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"1" * RECORD_BYTES)
        txn.put(b"b", b"2" * RECORD_BYTES)
    with ours.open(tmp_path) as mine, mine.begin() as txn:
        assert len(txn.get(b"a")) == RECORD_BYTES
        os.truncate(tmp_path / "data.mdb", 50_000)
        with pytest.raises(FeedError, match=r"data\.mdb.*page \d+ lies beyond the end"):
            txn.get(b"b")


@pytest.mark.parametrize("n_bytes", [10, RECORD_BYTES])
@pytest.mark.parametrize("is_seen", [False, True])
def test_a_transaction_ends_when_another_is_committed(
    tmp_path: Path, n_bytes: int, is_seen: bool
) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 24) as env:
        with env.begin(write=True) as txn:
            txn.put(b"a", b"1" * n_bytes)
        with ours.open(tmp_path) as mine:
            old = mine.begin()
            if is_seen:
                assert old.get(b"a") == b"1" * n_bytes
            with env.begin(write=True) as txn:
                txn.put(b"a", b"2" * n_bytes)
            if is_seen and n_bytes == 10:  # in a page that was read and is kept
                assert old.get(b"a") == b"1" * n_bytes
            else:
                with pytest.raises(FeedError, match="transaction 2 was committed while 1"):
                    old.get(b"a")
            with mine.begin() as txn:
                assert txn.get(b"a") == b"2" * n_bytes
            assert mine.stat()["entries"] == 1


# --- what it asks the kernel for -----------------------------------------------------------------

READER = """
import sys
from penstock.feed import lmdb
env = lmdb.open(sys.argv[1])
with env.begin() as txn:
    for n in range(50):
        assert len(txn.get(b"%06d" % n)) == 100_000
"""


def test_to_list_keys_reads_no_value(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for n in range(200):
            txn.put(b"%06d" % n, b"v" * RECORD_BYTES)

    def by_cursor() -> list[bytes]:
        with ours.open(tmp_path) as env, env.begin() as txn:
            return list(txn.cursor().iternext(values=False))

    def by_index() -> list[bytes]:
        index = open_index(tmp_path, cache=False)
        return [index.key(n) for n in range(len(index))]

    for keys in (by_cursor, by_index):
        before = bytes_asked_for()
        assert keys() == [b"%06d" % n for n in range(200)]
        assert bytes_asked_for() - before < 2 * RECORD_BYTES  # of 20 MB


def bytes_asked_for() -> int:
    return int(Path("/proc/self/io").read_text().split()[1])  # rchar


def test_a_recorded_run_shows_what_was_read(tmp_path: Path, recorded: Callable[..., Any]) -> None:
    with lmdb.open(str(tmp_path / "set"), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for n in range(50):
            txn.put(b"%06d" % n, b"v" * RECORD_BYTES)
    run = recorded(READER, args=[tmp_path / "set"])
    of_values = run.sql(
        "select count(*), sum(moved_bytes) from events "
        f"where path like '%data.mdb' and op = 'pread' and moved_bytes = {RECORD_BYTES}"
    )
    assert of_values.fetchall() == [(50, 50 * RECORD_BYTES)]


def test_a_record_is_one_request_and_nothing_is_mapped(tmp_path: Path) -> None:
    """By strace: of 50 values each is asked for once and whole; the file is never mapped."""
    with lmdb.open(str(tmp_path / "set"), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for n in range(50):
            txn.put(b"%06d" % n, b"v" * RECORD_BYTES)
    told = tmp_path / "told"
    probe = subprocess.run(["sh", "-c", "strace -o /dev/null true"], capture_output=True)
    if probe.returncode:
        pytest.skip("strace is missing or may not trace here: make setup-system")
    subprocess.run(
        [
            "strace",
            "-y",
            "-e",
            "trace=pread64,mmap",
            "-o",
            told,
            sys.executable,
            "-c",
            READER,
            tmp_path / "set",
        ],
        check=True,
    )
    lines = [line for line in told.read_text().splitlines() if "data.mdb" in line]
    assert not [line for line in lines if line.startswith("mmap")]
    values = [line for line in lines if f", {RECORD_BYTES}, " in line]
    assert len(values) == 50
    assert all(line.endswith(f"= {RECORD_BYTES}") for line in values)
    # Beside each: the 16 bytes in front of it, which are of the same page, and the meta pages.
    assert len(lines) <= 50 * 3 + 40


def test_errors_have_the_names_that_py_lmdb_raises(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"no LMDB" * 2000)
    for module in (lmdb, ours):
        with pytest.raises(module.InvalidError):
            module.open(str(tmp_path / "text"), subdir=False, readonly=True, lock=False)
        env = module.open(str(folder), readonly=True, lock=False, max_dbs=4)
        with pytest.raises(module.NotFoundError):
            env.open_db(b"depths", create=False)
        with pytest.raises(module.ReadonlyError):
            env.open_db(b"depths")
        with pytest.raises(module.ReadonlyError):
            env.begin(write=True)
        with pytest.raises(module.ReadonlyError):
            env.begin().put(b"a", b"1")
        with pytest.raises(module.BadValsizeError):
            env.begin().get(b"")
        assert len(module.version()) == 3
        assert len(module.version(subpatch=True)) == 4
    names = {name for name in ours.__all__ if name.endswith("Error")}
    assert names <= set(dir(lmdb))
    assert all(issubclass(getattr(ours, name), ours.Error) for name in names)


def test_a_meta_page_that_was_lost_is_told(tmp_path: Path) -> None:
    """What a torn copy does: the newest transaction is gone, and pages of it are not."""
    with lmdb.open(str(tmp_path), map_size=1 << 20) as env:
        for i in range(6):
            with env.begin(write=True) as txn:
                txn.put(b"%d" % i, b"v" * 100)
    path = tmp_path / "data.mdb"
    raw = bytearray(path.read_bytes())
    assert ours.open(tmp_path).info()["last_txnid"] == 6
    at = raw[:4096].rindex((6).to_bytes(8, "little"))
    raw[at : at + 8] = (2).to_bytes(8, "little")
    path.write_bytes(raw)
    with pytest.raises(FeedError, match="meta page 0 holds transaction 2, the other one 5"):
        ours.open(tmp_path)


@pytest.mark.parametrize("page_bytes", [512, 8192, 16384])
def test_a_page_0_that_says_another_page_size_is_the_damaged_one(
    tmp_path: Path, page_bytes: int
) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"1" * 20_000)
    raw = bytearray((tmp_path / "data.mdb").read_bytes())
    at = 16 + 24  # behind the page's header and what a meta page begins with
    raw[at : at + 4] = page_bytes.to_bytes(4, "little")
    (tmp_path / "data.mdb").write_bytes(raw)
    with pytest.raises(FeedError, match=r"page 0 says .* and page 1 begins at 4096"):
        ours.open(tmp_path)


def test_what_py_lmdb_names_is_named_here() -> None:
    theirs = {name for name in dir(lmdb) if name.endswith("Error")} | {"__version__", "version"}
    theirs |= {"enable_drop_gil"}
    assert {name for name in theirs if not hasattr(ours, name)} == set()
    for kind in ("Cursor", "Environment", "Transaction"):
        names = {name for name in dir(getattr(lmdb, kind)) if not name.startswith("_")}
        assert {name for name in names if not hasattr(getattr(ours, kind), name)} == set()


def test_a_key_has_one_value(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path)) as env, env.begin(write=True) as txn:
        txn.put(b"a", b"5")
        txn.put(b"b", b"6")
    with ours.open(str(tmp_path)) as env, env.begin() as txn:
        assert txn.cursor().getmulti([b"b", b"a"], dupdata=True) == [(b"b", b"6"), (b"a", b"5")]
        with pytest.raises(ours.IncompatibleError, match="dupsort=True, which is not read here"):
            txn.cursor().count()


def test_keys_and_paths_are_what_py_lmdb_takes(tmp_path: Path) -> None:
    with lmdb.open(str(tmp_path), map_size=1 << 20) as env, env.begin(write=True) as txn:
        txn.put(b"\0" * 7, b"zeros")
    for module in (lmdb, ours):
        named = os.fsencode(tmp_path)
        with module.open(named, readonly=True, lock=False) as env, env.begin() as txn:
            assert txn.get(b"\0" * 7) == txn.get(bytearray(7)) == b"zeros"
            for wrong in (7, "text", None, [0]):
                with pytest.raises(TypeError):
                    txn.get(wrong)
