"""Rows of Parquet, held against pyarrow's own reader: from files, and from a server on loopback by
its own counts."""

import datetime
import decimal
import itertools
import os
import pickle
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fixtures import PENSTOCK
from penstock.adapters.torch_feed import FeedDataset, feed_stream
from penstock.errors import FeedError, FeedRefused
from penstock.feed import Feed, NodeFeed, RowFeed, footer, parquet, row_plan, transfer, verify
from penstock.feed.index import from_bytes, open_index, to_bytes
from penstock.feed.plan import Deal, Order, PartialEpoch
from penstock.feed.rows import RowBatch
from penstock.feed.transfer import Patience
from penstock_lab.objects import ObjectServer, certificate, faults_at
from test_feed_objects import _hasty, caches, served

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

__all__ = ["caches", "served"]

DAY = datetime.datetime(2026, 1, 1)
LEAST = 1 << 20  # a buffer that holds some row groups of these tests, and not all


def made(n: int, first: int = 0, seed: int = 5) -> Any:
    """Rows of many types, numbered by `id`."""
    chance = random.Random(seed + first)
    numbers = range(first, first + n)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "text": [chance.randbytes(chance.randint(0, 60)).hex() for _ in numbers],
            "kind": [f"one of seven kinds, with a long name: {i % 7}" for i in numbers],
            "image": [chance.randbytes(chance.randint(0, 200)) for _ in numbers],
            "tokens": [list(range(i % 5)) if i % 11 else None for i in numbers],
            "about": [{"x": i, "y": str(i), "z": [b"1"] * (i % 3)} for i in numbers],
            "price": pa.array([decimal.Decimal(i) / 100 for i in numbers], pa.decimal128(12, 2)),
            "when": [
                datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=i) for i in numbers
            ],
            "is_odd": [bool(i % 2) if i % 7 else None for i in numbers],
            "label": pa.array([f"l{i % 3}" for i in numbers]).dictionary_encode(),
        }
    )


def put(folder: Path, sizes: tuple[int, ...] = (700, 333, 1, 512), **how: Any) -> Any:
    """Write files of some rows each, and return all rows by pyarrow's own reader."""
    folder.mkdir(parents=True, exist_ok=True)
    first = 0
    for number, size in enumerate(sizes):
        path = folder / f"part-{number:03d}.parquet"
        pq.write_table(made(size, first), path, **({"row_group_size": 100} | how))
        first += size
    return pa.concat_tables([pq.read_table(path) for path in sorted(folder.glob("*.parquet"))])


def rows_of(feed: RowFeed) -> Any:
    tables = []
    for batch in feed:
        assert batch.table.num_rows == len(batch) == len(batch.rows)
        assert len(batch) <= feed.request.batch_size
        tables.append(batch.table)
    return pa.concat_tables(tables)


def same(first: Any, second: Any) -> bool:
    """Equal rows, whatever dictionaries the columns have."""
    schema = first.schema
    for number, field in enumerate(schema):
        if pa.types.is_dictionary(field.type):
            schema = schema.set(number, field.with_type(field.type.value_type))
    return bool(first.cast(schema).equals(second.cast(schema)))


def ids_of(feed: RowFeed) -> list[int]:
    return [number for batch in feed for number in batch.rows.tolist()]


# --- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "2.6"])
@pytest.mark.parametrize("pages", ["1.0", "2.0"])
@pytest.mark.parametrize("how", [{}, {"compression": "zstd", "use_dictionary": False}])
def test_all_rows_come_as_pyarrow_reads_them(
    tmp_path: Path, version: str, pages: str, how: dict[str, Any]
) -> None:
    truth = put(tmp_path, version=version, data_page_version=pages, **how)
    for buffer_bytes in (LEAST, 64 << 20):
        assert same(rows_of(RowFeed(tmp_path, 64, buffer_bytes=buffer_bytes)), truth)
        feed = RowFeed(tmp_path, 64, shuffle="block", seed=1, buffer_bytes=buffer_bytes)
        shuffled = rows_of(feed)
        assert not shuffled.equals(truth)
        back = shuffled.take(np.argsort(shuffled["id"].to_numpy()))
        assert back.schema.equals(truth.schema)
        assert same(back, truth)
        assert not rows_of(feed).equals(shuffled)  # the next epoch
        feed.set_epoch(0)
        assert rows_of(feed).equals(shuffled)


@pytest.mark.parametrize(
    "columns", [["id"], ["text", "id"], ["about"], ["tokens", "image"], ["kind", "label"]]
)
def test_chosen_columns_come_in_the_asked_order(tmp_path: Path, columns: list[str]) -> None:
    truth = put(tmp_path)
    got = rows_of(RowFeed(tmp_path, 100, columns=columns))
    assert got.column_names == columns
    assert got.equals(truth.select(columns))


def test_a_batch_gives_rows_columns_and_arrays(tmp_path: Path) -> None:
    truth = put(tmp_path)
    (first, *_) = RowFeed(tmp_path, 8, columns=["id", "text", "tokens"])
    assert isinstance(first, RowBatch)
    assert first[3] == truth.select(["id", "text", "tokens"]).slice(3, 1).to_pylist()[0]
    assert first[-2:] == truth.select(["id", "text", "tokens"]).slice(6, 2).to_pylist()
    assert list(first) == first.table.to_pylist()
    assert first.numpy()["id"].tolist() == list(range(8))


def test_rows_are_mixed_over_all_row_groups_that_the_buffer_holds(tmp_path: Path) -> None:
    put(tmp_path, (2000,))
    feed = RowFeed(tmp_path, 50, columns=["id"], shuffle="block")  # holds all
    (first, *_) = feed
    assert len({number // 100 for number in first.rows.tolist()}) > 12
    few = RowFeed(tmp_path, 50, columns=["id"], shuffle="block", buffer_bytes=70_000)
    (first, *_) = few
    assert len({number // 100 for number in first.rows.tolist()}) <= 3


# --- ranks, resume -------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any),
    shuffle=st.sampled_from(["none", "block"]),
    tail=st.sampled_from(["short", "drop", "pad"]),
    deals=st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=3
    ),
    most=st.integers(1, 90),
    seed=st.integers(0, 1000),
)
def test_every_row_comes_once_whatever_ranks_and_stops(
    rows: list[int],
    shuffle: str,
    tail: str,
    deals: list[tuple[int, int, int]],
    most: int,
    seed: int,
) -> None:
    """Parts of an epoch by some ranks each, then the rest by one."""
    how, of = Order(shuffle, seed), np.array(rows)
    wanted = Counter((group, row) for group, n in enumerate(rows) for row in range(n))
    got: Counter[tuple[int, int]] = Counter()
    history: list[PartialEpoch] = []
    for world, batch, steps in [*deals, (1, 1, 1 << 30)]:
        kind = tail if history or len(deals) > 1 or steps < 1 << 30 else "short"
        kind = "short" if steps == 1 << 30 else kind
        pieces = row_plan.remaining(row_plan.whole(of, how, 3), how, 3, history, of, most)
        shares = [row_plan.share(pieces, world, batch, kind, rank) for rank in range(world)]
        numbers = [row_plan.n_batches(pieces, world, batch, kind, rank) for rank in range(world)]
        if kind != "short":
            assert len(set(numbers)) == 1
        assert max(numbers) - min(numbers) <= 1
        steps = min(steps, *numbers) if steps < 1 << 30 else max(numbers)
        for mine in shares:
            edges, sequence = row_plan.windows(mine.pieces, of, most), []
            for first, end in itertools.pairwise(edges):
                inside = mine.pieces[first:end]
                groups = set(inside[:, 0].tolist())
                assert len(groups) == 1 or of[list(groups)].sum() <= most
                piece, row = row_plan.mixed(inside, how, 3)
                own = (piece + first < mine.n_own).tolist()
                sequence += list(zip(inside[piece, 0].tolist(), row.tolist(), own, strict=True))
            got.update((group, row) for group, row, own in sequence[: steps * batch] if own)
        history.append(PartialEpoch(Deal(world, batch, 1, kind), steps))
    assert got == wanted


@pytest.mark.parametrize("shuffle", ["none", "block"])
@pytest.mark.parametrize("steps", [0, 1, 5, 11])
def test_resume_is_exact_also_with_other_ranks(tmp_path: Path, shuffle: str, steps: int) -> None:
    put(tmp_path)
    made_so = {"columns": ["id"], "shuffle": shuffle, "seed": 4, "buffer_bytes": 70_000}
    whole = ids_of(RowFeed(tmp_path, 32, **made_so))
    feed = RowFeed(tmp_path, 32, **made_so)
    batches = iter(feed)
    begun = [number for _ in range(steps) for number in next(batches).rows.tolist()]
    state = feed.state_dict()
    feed.close()
    again = RowFeed(tmp_path, 32, **made_so)
    again.load_state_dict(state)
    assert begun + ids_of(again) == whole
    rest = []
    for rank in range(3):
        one = RowFeed(tmp_path, 7, rank=rank, world_size=3, **made_so)
        one.load_state_dict(state)
        rest += ids_of(one)
    assert sorted(begun + rest) == sorted(whole)
    for other in ({"seed": 5}, {"columns": ["is_odd"]}, {"buffer_bytes": 80_000}):
        feed = RowFeed(tmp_path, 32, **(made_so | other))
        with pytest.raises(FeedError, match="cannot change its order half way"):
            feed.load_state_dict(state)
    broken = {**state, "parts": [[1, 32, 1, "short", 1_000]]}
    with pytest.raises(FeedError, match=r"1,000 batches were taken of a rank's 49"):
        RowFeed(tmp_path, 32, **made_so).load_state_dict(broken)


def test_a_pass_goes_on_after_a_break(tmp_path: Path) -> None:
    put(tmp_path)
    whole = ids_of(RowFeed(tmp_path, 32, columns=["id"]))
    feed, got = RowFeed(tmp_path, 32, columns=["id"]), []
    for batch in feed:
        got += batch.rows.tolist()
        if len(got) > 300:
            break
    assert got + ids_of(feed) == whole


# --- FeedDataset, streams ------------------------------------------------------------------------


def test_a_dataset_s_items_are_rows(tmp_path: Path) -> None:
    truth = put(tmp_path).to_pylist()
    dataset = FeedDataset(tmp_path, buffer_bytes=2 * LEAST)
    assert len(dataset) == len(truth)
    order = random.Random(3).sample(range(len(truth)), len(truth))
    for first in range(0, len(order), 40):
        numbers = order[first : first + 40]
        assert dataset.__getitems__(numbers) == [truth[number] for number in numbers]
    assert dataset[-1] == truth[-1]
    assert dataset.__getitems__([]) == []
    assert dataset.__getitems__([5, 5, 701]) == [truth[5], truth[5], truth[701]]
    with pytest.raises(IndexError):
        dataset[len(truth)]
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[9] == truth[9]
    found = []
    thread = threading.Thread(target=lambda: found.append(dataset[7]))
    thread.start()
    thread.join()
    assert found == [truth[7]]
    texts = FeedDataset(tmp_path, lambda row: row["text"].upper(), columns=["text"])
    assert texts[3] == truth[3]["text"].upper()
    with pytest.raises(KeyError) as caught:
        FeedDataset(tmp_path, lambda row: row["no"], columns=["text"])[3]
    assert caught.value.__notes__ == ["while decoding row 3"]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_share_a_dataset_and_a_stream_without_loss(tmp_path: Path, start: str) -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    truth = put(tmp_path).to_pylist()
    dataset = FeedDataset(tmp_path)
    assert dataset[0] == truth[0]
    how = {"num_workers": 2, "collate_fn": list, "multiprocessing_context": start}
    loader = torch_data.DataLoader(dataset, batch_size=50, **how)
    assert [row for batch in loader for row in batch] == truth
    stream = feed_stream(tmp_path, 50, columns=["id"], shuffle="block", seed=2)
    for epoch in range(2):
        stream.set_epoch(epoch)
        loader = torch_data.DataLoader(stream, batch_size=50, **how)
        got = [row["id"] for batch in loader for row in batch]
        assert sorted(got) == list(range(len(truth)))
        assert got != sorted(got)


def test_a_stream_goes_on_at_any_row(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    put(tmp_path)
    options = {"columns": ["id"], "shuffle": "block", "seed": 2, "buffer_bytes": 70_000}
    whole = [row["id"] for row in feed_stream(tmp_path, 50, **options)]
    stream = feed_stream(tmp_path, 50, **options)
    rows = iter(stream)
    begun = [next(rows)["id"] for _ in range(123)]
    other = feed_stream(tmp_path, 50, lambda row: row["id"], **options)
    other.load_state_dict(stream.state_dict())
    assert begun + list(other) == whole


def test_what_is_not_of_rows_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "rows")
    index = open_index(tmp_path / "rows")
    for make in (
        lambda: Feed(index, 8),
        lambda: NodeFeed(index, 8, ranks=range(1), world_size=1),
    ):
        with pytest.raises(FeedRefused, match=r"RowFeed reads them in batches.*columns="):
            make()
    for shuffle in ("global", "cache-aware"):
        with pytest.raises(FeedError, match="'block' takes row groups"):
            RowFeed(index, 8, shuffle=shuffle)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.bin").write_bytes(b"1")
    with pytest.raises(FeedRefused, match="is folder; Feed reads its records"):
        RowFeed(open_index(tmp_path / "files"), 8)
    with pytest.raises(FeedError, match=r"columns=\['a'\] is about Parquet"):
        FeedDataset(tmp_path / "files", columns=["a"])
    with pytest.raises(FeedError, match="have no keys"):
        FeedDataset(index, keys=["a"])


# --- the index -----------------------------------------------------------------------------------


def test_an_index_has_the_places_that_pyarrow_tells(tmp_path: Path) -> None:
    put(tmp_path)
    index = open_index(tmp_path)
    at = 0
    for number, path in enumerate(index.files):
        about = pq.read_metadata(path)
        for group in range(about.num_row_groups):
            columns = [about.row_group(group).column(i) for i in range(about.num_columns)]
            starts = [min(c.dictionary_page_offset or 1 << 62, c.data_page_offset) for c in columns]
            ends = [s + c.total_compressed_size for s, c in zip(starts, columns, strict=True)]
            assert (index.file[at], index.offset[at]) == (number, min(starts))
            assert index.offset[at] + index.length[at] == max(ends)
            assert index.key(at) == f"part-{number:03d}.parquet/{group:08d}".encode()
            at += 1
    assert at == len(index)
    again = from_bytes(to_bytes(index))
    assert again.footers == index.footers
    assert ids_of(RowFeed(again, 64)) == ids_of(RowFeed(index, 64))


@pytest.mark.parametrize("beside", ["_SUCCESS", "_metadata", ".hidden", "README.md", "labels.csv"])
def test_a_folder_of_parquet_is_its_files(tmp_path: Path, beside: str) -> None:
    put(tmp_path)
    (tmp_path / beside).write_bytes(b"beside")
    assert open_index(tmp_path).kind == "parquet"
    assert open_index(tmp_path / "*.parquet").kind == "parquet"
    assert open_index(tmp_path / "part-{000..003}.parquet").kind == "parquet"
    assert open_index(tmp_path, kind="folder").kind == "folder"


def test_parquet_beside_other_records_is_a_note_on_them(tmp_path: Path) -> None:
    put(tmp_path, (5,))
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "cat.jpg").write_bytes(b"\xff\xd8\xff")
    assert open_index(tmp_path).kind == "folder"
    (tmp_path / "train" / "cat.jpg").rename(tmp_path / "cat.jpg")
    assert open_index(tmp_path).kind == "folder"
    (tmp_path / "cat.jpg").unlink()
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(b"a record")
    assert open_index(tmp_path).kind == "folder"
    assert open_index(tmp_path, kind="parquet").kind == "parquet"


def test_parquet_in_folders_is_named_by_a_pattern(tmp_path: Path) -> None:
    put(tmp_path / "a", (5,))
    with pytest.raises(FeedRefused, match=r"folders of their own.*\*\*/\*\.parquet"):
        open_index(tmp_path)
    put(tmp_path, (5,))
    with pytest.raises(FeedError, match=r"others in folders, such as .*\*\*/\*\.parquet"):
        open_index(tmp_path)
    assert len(open_index(tmp_path / "**" / "*.parquet").files) == 2


def feed_command(command: str, *arguments: object, status: int = 0) -> str:
    words = [PENSTOCK, "feed", command, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stdout if status < 2 else done.stderr


def test_the_commands_know_it(tmp_path: Path) -> None:
    put(tmp_path)
    said = feed_command("inspect", tmp_path)
    assert "parquet: 18 records" in said
    assert "1,546 rows; a record is a row group of 1 to 100 rows" in said
    assert "id (int64), text (string)" in said
    assert "nothing is wrong" in feed_command("verify", tmp_path)
    assert len(feed_command("inspect", tmp_path, "--records").splitlines()) == 18
    assert "time a loop over RowFeed" in feed_command("bench", tmp_path, status=2)
    path = tmp_path / "part-001.parquet"
    index = open_index(path)
    content = bytearray(path.read_bytes())
    at = int(index.offset[2]) + 5
    content[at : at + 40] = bytes(40)
    path.write_bytes(content)
    said = feed_command("verify", tmp_path, status=1)
    assert f"{path}: record 2 cannot be decoded" in said


# --- damage --------------------------------------------------------------------------------------


def one(tmp_path: Path, table: Any = None, **how: Any) -> Path:
    path = tmp_path / "one.parquet"
    pq.write_table(made(300) if table is None else table, path, **({"row_group_size": 100} | how))
    return path


def _cut_short(content: bytearray) -> None:
    del content[-100:]


def _footer_of(content: bytearray) -> int:
    return len(content) - 8 - int.from_bytes(content[-8:-4], "little")


def _long_footer(content: bytearray) -> None:
    content[-8:-4] = (1 << 30).to_bytes(4, "little")


def _zeroed_footer(content: bytearray) -> None:
    first = _footer_of(content)
    content[first:-8] = bytes(len(content) - 8 - first)


def _marked_as_encrypted(content: bytearray) -> None:
    content[-4:] = b"PARE"


def _without_begin(content: bytearray) -> None:
    content[:4] = b"nono"


def _without_middle(content: bytearray) -> None:
    """As a copy that lost a part: the end is there, the columns are not."""
    del content[1000 : len(content) // 2]


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (_cut_short, "does not end with a footer of Parquet; it is truncated"),
        (_long_footer, "its end tells a footer of 1,073,741,824 bytes"),
        (_zeroed_footer, "its footer cannot be read"),
        (_marked_as_encrypted, "its footer is encrypted"),
        (_without_begin, "called parquet and does not begin like one"),
        (_without_middle, "the columns end at .* truncated or damaged"),
        (lambda content: content.clear(), "is empty"),
        (lambda content: content.__delitem__(slice(6, None)), "does not end with a footer"),
    ],
)
def test_a_damaged_file_is_an_error_with_its_name(
    tmp_path: Path, damage: Callable[[bytearray], None], why: str
) -> None:
    path = one(tmp_path)
    content = bytearray(path.read_bytes())
    damage(content)
    path.write_bytes(content)
    with pytest.raises(FeedError, match=rf"one\.parquet.*{why}"):
        open_index(path)


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ({"n_rows": 301}, "the footer counts 300 rows, its row groups 903"),
        ({"n_rows": -1}, "its row groups -3"),
        ({"offset": -5}, "column 'id' of row group 0 lies at -5"),
        ({"offset": 1 << 60}, "the columns end at"),
        ({"length": 1 << 62}, "the columns end at"),
        ({"length": -1}, "truncated or damaged"),
        ({"file": "other.parquet"}, "its columns lie in 'other.parquet'"),
    ],
)
def test_a_footer_that_lies_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lies: dict[str, Any], why: str
) -> None:
    path = one(tmp_path)
    true = footer.parsed

    def lying(content: bytes) -> footer.Footer:
        about = true(content)
        groups = []
        for group in about.groups:
            of_group = {name: lie for name, lie in lies.items() if name == "n_rows"}
            of_chunk = {name: lie for name, lie in lies.items() if name != "n_rows"}
            chunks = tuple(chunk._replace(**of_chunk) for chunk in group.chunks)
            groups.append(group._replace(chunks=chunks, **of_group))
        return about._replace(groups=tuple(groups))

    monkeypatch.setattr(footer, "parsed", lying)
    with pytest.raises(FeedError, match=why):
        open_index(path)


@pytest.mark.parametrize("seed", range(3))
def test_a_footer_is_parsed_as_pyarrow_parses_it_and_damage_is_an_error(
    tmp_path: Path, seed: int
) -> None:
    """Any bytes: an error that says so, never another one, and never the end of the process."""
    path = one(tmp_path, sorting_columns=[pq.SortingColumn(0)])
    content = path.read_bytes()
    whole, about = bytes(content[_footer_of(bytearray(content)) : -8]), pq.read_metadata(path)
    found = footer.parsed(whole)
    for number, group in enumerate(found.groups):
        assert group.n_rows == about.row_group(number).num_rows
        for leaf, chunk in enumerate(group.chunks):
            column = about.row_group(number).column(leaf)
            assert chunk.path == column.path_in_schema
            assert chunk.length == column.total_compressed_size
            places = (column.dictionary_page_offset or 1 << 62, column.data_page_offset)
            assert chunk.offset == min(places)
    chance = random.Random(seed)
    n_refused = 0
    for _ in range(200):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if chance.random() < 0.2:
            del damaged[chance.randrange(len(damaged)) :]
        try:
            footer.parsed(bytes(damaged))
        except ValueError:
            n_refused += 1
    assert n_refused


def test_more_or_fewer_rows_than_the_footer_tells_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = RowFeed(one(tmp_path), 10)
    feed.groups.rows[1] = 99
    with pytest.raises(FeedError, match=r"row group 1: holds 100 rows, its footer tells 99"):
        rows_of(feed)


def test_a_damaged_page_is_an_error_that_names_the_row_group(tmp_path: Path) -> None:
    path = one(tmp_path, write_page_checksum=True)
    index = open_index(path)
    content = bytearray(path.read_bytes())
    content[int(index.offset[1]) + int(index.length[1]) // 2] ^= 1
    path.write_bytes(content)
    feed = RowFeed(path, 10)
    got = []
    with pytest.raises(FeedError, match=r"one\.parquet: row group 1: cannot be decoded"):
        got += list(feed)
    (problem,) = verify.check(path).problems
    assert (problem.record, problem.what[:17]) == (1, "cannot be decoded")
    dataset = FeedDataset(path)
    assert dataset[5]["id"] == 5
    with pytest.raises(FeedError, match="row group 1: cannot be decoded"):
        dataset[150]


def test_files_without_rows_are_passed_over_and_none_at_all_is_an_error(tmp_path: Path) -> None:
    schema = made(30).schema
    for name, n_groups in (("a", 0), ("b", 1)):
        with pq.ParquetWriter(tmp_path / f"{name}.parquet", schema) as out:
            for _ in range(n_groups):
                out.write_table(schema.empty_table())
    with pytest.raises(FeedError, match=r"holds no (row|record)"):
        RowFeed(tmp_path, 8)
    with pytest.raises(FeedError, match="holds no record"):
        RowFeed(tmp_path / "a.parquet", 8)
    assert not verify.check(tmp_path).problems
    pq.write_table(made(30), tmp_path / "c.parquet", row_group_size=10)
    for shuffle in ("none", "block"):
        assert sorted(ids_of(RowFeed(tmp_path, 7, shuffle=shuffle))) == list(range(30))
    assert len(FeedDataset(tmp_path)) == 30


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        (["no"], r"has no column 'no'; it has 'id' \(int64\), 'text' \(string\)"),
        (["about.x"], "has no column 'about.x'"),
        ([], "no column is chosen"),
        (["id", "id"], "the column 'id' comes twice"),
        ("id", r"columns='id' is no list of names"),
    ],
)
def test_columns_that_cannot_be_are_an_error(tmp_path: Path, columns: Any, why: str) -> None:
    with pytest.raises(FeedError, match=why):
        RowFeed(one(tmp_path), 8, columns=columns)


def test_files_that_differ_in_a_chosen_column_are_refused(tmp_path: Path) -> None:
    put(tmp_path, (10, 10))
    other = made(10).drop_columns(["text"]).append_column("text", pa.array(range(10)))
    pq.write_table(other, tmp_path / "part-002.parquet")
    with pytest.raises(FeedError, match=r"part-002.*'text' \(int64\).*read these files apart"):
        RowFeed(tmp_path, 8)
    assert sorted(ids_of(RowFeed(tmp_path, 8, columns=["id"]))) == list(range(30))
    pq.write_table(other.drop_columns(["id"]), tmp_path / "part-003.parquet")
    with pytest.raises(FeedError, match=r"part-003\.parquet: has no column 'id'"):
        RowFeed(tmp_path, 8, columns=["id"])


@pytest.mark.parametrize("is_plain", [False, True])
def test_an_encrypted_file_is_refused(tmp_path: Path, is_plain: bool) -> None:
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):  # type: ignore[misc,name-defined]
        def wrap_key(self, key: bytes, _: str) -> bytes:
            return key.hex().encode()

        def unwrap_key(self, key: bytes, _: str) -> bytes:
            return bytes.fromhex(key.decode())

    factory = encryption.CryptoFactory(lambda _: Keys())
    properties = factory.file_encryption_properties(
        encryption.KmsConnectionConfig(),
        encryption.EncryptionConfiguration(
            footer_key="f", column_keys={"c": ["text"]}, plaintext_footer=is_plain
        ),
    )
    path = one(tmp_path, encryption_properties=properties)
    with pytest.raises(FeedError, match=r"one\.parquet.*encrypted"):
        rows_of(RowFeed(path, 8, columns=["text"]))


# --- memory --------------------------------------------------------------------------------------


def test_a_row_group_that_the_buffer_does_not_hold_is_refused_with_the_size(tmp_path: Path) -> None:
    path = one(tmp_path, made(20_000), row_group_size=20_000)
    with pytest.raises(FeedError, match=r"row group 0 takes .* buffer_bytes=1,048,576 does not"):
        RowFeed(path, 8, buffer_bytes=LEAST)
    with pytest.raises(FeedError, match="does not hold it: raise it, or name fewer columns="):
        FeedDataset(path, buffer_bytes=LEAST)
    assert len(ids_of(RowFeed(path, 8, columns=["id"], buffer_bytes=LEAST))) == 20_000


def test_texts_that_repeat_take_no_more_memory_than_their_dictionary(tmp_path: Path) -> None:
    """1 MB as texts, of which the file holds a few kB."""
    table = pa.table({"kind": ["a long name of a kind " * 20 + str(i % 5) for i in range(2500)]})
    path = one(tmp_path, table, row_group_size=2500)
    feed = RowFeed(path, 100, shuffle="block", buffer_bytes=150_000)
    assert feed.groups.coded == ("kind",)
    assert Counter(rows_of(feed)["kind"].to_pylist()) == Counter(table["kind"].to_pylist())
    assert feed.schema.field("kind").type == pa.string()


def test_what_decodes_to_more_than_the_footer_tells_is_refused(tmp_path: Path) -> None:
    """In nested columns dictionaries are not kept."""
    texts = [["a long name of a kind " * 20 + str(i % 5)] for i in range(5000)]
    path = one(tmp_path, pa.table({"kinds": texts}), row_group_size=5000)
    with pytest.raises(FeedError, match=r"row group 0: takes more than .* bytes in memory"):
        rows_of(RowFeed(path, 100, buffer_bytes=800_000))
    assert len(rows_of(RowFeed(path, 100))) == 5000


@pytest.mark.parametrize("shuffle", ["none", "block"])
def test_memory_stays_within_the_budget(tmp_path: Path, shuffle: str) -> None:
    """pyarrow's own count of its memory, beside what is read."""
    chance = random.Random(1)
    table = pa.table({"image": [chance.randbytes(2000) for _ in range(20_000)]})
    path = one(tmp_path, table, row_group_size=500)
    del table
    budget = 16 << 20
    feed = RowFeed(path, 64, shuffle=shuffle, buffer_bytes=budget)
    before, most, n_rows = pa.total_allocated_bytes(), 0, 0
    for batch in feed:
        slots = 2 * int(feed.groups.stored[:1].sum())
        most = max(most, pa.total_allocated_bytes() - before + slots)
        n_rows += len(batch)
    assert n_rows == 20_000
    assert 2 << 20 < most <= budget


def test_a_row_group_counts_once_in_a_window() -> None:
    """Two pieces of one row group, as a border between ranks or a padded batch makes them."""
    pieces = np.array([[0, 0, 5], [1, 0, 5], [0, 5, 9], [2, 0, 5]])
    assert row_plan.windows(pieces, np.array([10, 10, 10]), 20) == [0, 3, 4]


def test_a_kept_batch_of_mixed_rows_keeps_no_window(tmp_path: Path) -> None:
    chance = random.Random(1)
    table = pa.table({"image": [chance.randbytes(2000) for _ in range(10_000)]})
    path = one(tmp_path, table, row_group_size=500)
    del table
    before = pa.total_allocated_bytes()
    with RowFeed(path, 10, shuffle="block", buffer_bytes=16 << 20) as feed:
        kept = [batch for number, batch in enumerate(feed) if number % 100 == 0]
    assert 100 * 2000 <= sum(batch.table.nbytes for batch in kept) < 400_000
    assert pa.total_allocated_bytes() - before < 1_000_000


# --- object stores -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["s3://data/", "s3://data/part-*.parquet"])
def test_only_the_chosen_columns_are_fetched(served: ObjectServer, name: str) -> None:
    truth = put(served.root / "data", (4000, 4000), row_group_size=500)
    index = open_index(name, cache=False)
    footers = served.counts.bytes
    assert footers <= 2 * parquet.TAIL_BYTES
    gets = served.counts.gets
    feed = RowFeed(index, 64, columns=["image", "id"], shuffle="block", seed=1)
    got = rows_of(feed)
    assert got.sort_by("id").equals(truth.select(["image", "id"]))
    chosen = 0
    for path in sorted((served.root / "data").glob("*.parquet")):
        about = pq.read_metadata(path)
        for group in range(about.num_row_groups):
            for number in range(about.num_columns):
                column = about.row_group(group).column(number)
                if column.path_in_schema in ("image", "id"):
                    chosen += column.total_compressed_size
    n_bytes = served.counts.bytes - footers
    assert chosen == int(feed.groups.parts.length.sum())
    assert chosen <= n_bytes <= 1.02 * chosen
    assert served.counts.gets - gets <= 2 * 16  # two columns of 16 row groups
    rows_of(feed)
    assert served.counts.bytes - footers == 2 * n_bytes  # no footer again


def test_neighbouring_columns_come_by_one_request(served: ObjectServer) -> None:
    put(served.root / "data", (4000,), row_group_size=500)
    feed = RowFeed("s3://data/", 64, columns=["id", "text", "kind"])
    gets = served.counts.gets
    assert len(ids_of(feed)) == 4000
    assert served.counts.gets - gets == 8


def test_a_long_footer_takes_a_second_request(served: ObjectServer) -> None:
    table = pa.table({f"column {i:04d} with a long name": [i] for i in range(1500)})
    (served.root / "data").mkdir(exist_ok=True)
    pq.write_table(table, served.root / "data" / "wide.parquet")
    gets = served.counts.gets
    index = open_index("s3://data/wide.parquet")
    assert served.counts.gets - gets == 2
    assert rows_of(RowFeed(index, 8, columns=["column 0007 with a long name"])).num_rows == 1


def test_an_object_that_changes_in_mid_epoch_is_named_and_never_mixed(served: ObjectServer) -> None:
    truth = put(served.root / "data", (400, 400, 400, 400))  # more than is read ahead
    feed = RowFeed("s3://data/", 10, columns=["id", "text"], buffer_bytes=150_000)
    path = served.root / "data" / "part-003.parquet"
    got = []

    def read_on() -> None:
        for batch in batches:
            got.extend(batch)

    batches = iter(feed)
    got += list(next(batches))
    pq.write_table(made(400, 5000), path, row_group_size=100)
    with pytest.raises(FeedError, match=r"s3://data/part-003\.parquet: the object has changed"):
        read_on()
    assert got == truth.select(["id", "text"]).slice(0, len(got)).to_pylist()


def test_a_file_that_changes_in_mid_epoch_is_named(tmp_path: Path) -> None:
    put(tmp_path, (400, 400))
    feed = RowFeed(tmp_path, 10, columns=["id"], buffer_bytes=30_000)
    batches = iter(feed)
    next(batches)
    with (tmp_path / "part-001.parquet").open("ab") as out:
        out.write(b"more")
    with pytest.raises(FeedError, match=r"part-001\.parquet has changed since it was indexed"):
        list(batches)


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(seed=st.integers(0, 1 << 30), rate=st.sampled_from([0.05, 0.3]), batch=st.integers(1, 90))
def test_no_row_is_lost_or_repeated_under_faults(
    served: ObjectServer, monkeypatch: pytest.MonkeyPatch, seed: int, rate: float, batch: int
) -> None:
    """Every kind of fault, by chance, over three ranks: what comes is right, whole and once."""
    monkeypatch.setenv("PENSTOCK_FEED_TIMEOUT_S", "0.3")
    monkeypatch.setenv("PENSTOCK_FEED_TRIES", "30")
    monkeypatch.setattr(Patience, "__init__", _hasty)
    transfer._of_process.clear()
    served.choose = None
    truth = put(served.root / "data", (150, 90, 3), row_group_size=20).select(["id", "text"])
    served.choose = faults_at(rate, seed)
    tables = []
    for rank in range(3):
        feed = RowFeed(
            "s3://data/", batch, columns=["id", "text"], shuffle="block", seed=seed, rank=rank,
            world_size=3, buffer_bytes=200_000,
        )  # fmt: skip
        tables += [batch.table for batch in feed]
        feed.close()
    assert pa.concat_tables(tables).sort_by("id").equals(truth)


@pytest.mark.parametrize("fault", ["503", "reset-mid", "hang"])
def test_a_fault_that_stays_names_object_row_group_and_reason(
    served: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    put(served.root / "data", (300,))
    transfer._of_process[os.getpid()] = transfer.Transfers(
        Patience(timeout_s=0.2, tries=2, first_pause_s=0.001)
    )
    feed = RowFeed("s3://data/", 10, columns=["text"])
    served.choose = lambda asked: fault
    with pytest.raises(FeedError, match=r"part-000\.parquet: row group 0: a column at .*2 tries"):
        rows_of(feed)


def test_closing_ends_the_wait_for_a_server_that_hangs(served: ObjectServer) -> None:
    put(served.root / "data", (300,))
    transfer._of_process[os.getpid()] = transfer.Transfers(Patience(timeout_s=0.5, tries=1000))
    feed = RowFeed("s3://data/", 10, columns=["text"])
    served.choose = lambda asked: "hang"
    iter(feed)
    feed.close()  # within the test's own limit


def test_rows_come_through_the_node_s_cache(
    served: ObjectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_FEED_CACHE", str(tmp_path / "tier"))
    truth = put(served.root / "data")
    feed = RowFeed("s3://data/", 64, shuffle="block")
    rows_of(feed)
    begun = served.counts.bytes
    assert same(rows_of(feed).sort_by("id"), truth)
    assert served.counts.bytes == begun


@pytest.fixture(params=["http", "https"])
def moto(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Another S3 server: moto's, with and without TLS."""
    module = pytest.importorskip("moto.server")
    from werkzeug.serving import make_server

    context = None
    if request.param == "https":
        context, authority = certificate(tmp_path)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    transfer._tls.cache_clear()
    application = module.DomainDispatcherApplication(module.create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=True, ssl_context=context)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    for name, text in {
        "AWS_ENDPOINT_URL": f"{request.param}://127.0.0.1:{server.port}",
        "AWS_ACCESS_KEY_ID": "id",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, text)
    yield pytest.importorskip("boto3").client("s3", region_name="us-east-1")
    server.shutdown()
    thread.join()
    transfer._tls.cache_clear()


def test_rows_come_from_moto_s_server(moto: Any, tmp_path: Path) -> None:
    truth = put(tmp_path / "set")
    moto.create_bucket(Bucket="train")
    for path in (tmp_path / "set").glob("*.parquet"):
        moto.upload_file(str(path), "train", f"day/{path.name}")
    got = rows_of(RowFeed("s3://train/day/", 64, shuffle="block", columns=["id", "about"]))
    assert got.sort_by("id").equals(truth.select(["id", "about"]))
    dataset = FeedDataset("s3://train/day/*.parquet", columns=["text"])
    assert dataset[1000] == {"text": truth["text"][1000].as_py()}
