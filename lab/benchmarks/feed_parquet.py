"""penstock.feed.RowFeed against pyarrow's own readers: rows of Parquet in memory and over S3.

    python lab/benchmarks/feed_parquet.py

Each reader is a separate process, timed after its imports and footers; compared readers alternate,
and a ratio is the median over the rounds.  Local files are in the page cache.  The server is
penstock_lab.objects on loopback, in a process of its own.  All readers of a pair return the same
columns of the same rows in batches of BATCH rows; a reader with other sums ends the benchmark.
"""

import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from bars import Bar, output, report, scratch

from penstock_lab.objects import server_process

FILES, GROUPS, ROWS = 8, 8, 2000  # row groups of a file, rows of a row group
TEXT_BYTES = 1000  # of a row; a row group has 2 MB of text
UNREAD_BYTES = 256  # of a column that no reader asks for
COLUMNS = ["text", "label"]
BATCH = 256
ROUNDS = 5
RATE_MB = 200
DELAYS_MS = (20, 50)
OF_LOCAL, AHEAD = 0.9, 1.0  # the bars: of pyarrow's speed in memory; ahead of each peer over S3
SETTINGS = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1"}
COMMAND = "python lab/benchmarks/feed_parquet.py"

Batches = Iterator[Any]  # first None, when the clock starts; then pyarrow.Tables or dicts


def data(root: Path) -> list[Path]:
    """Write the files once, below the bucket `data`, and return their paths."""
    folder = root / "data"
    paths = [folder / f"train-{number}.parquet" for number in range(FILES)]
    if (root / "done").exists():
        return paths
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(1)
    words = [chance.randbytes(4).hex() for _ in range(5000)]
    for number, path in enumerate(paths):
        n = GROUPS * ROWS
        text = [" ".join(chance.choices(words, k=TEXT_BYTES // 9)) for _ in range(n)]
        columns = {
            "text": text,
            "label": pa.array(range(number * n, (number + 1) * n), pa.int64()),
            "unread": [chance.randbytes(UNREAD_BYTES) for _ in range(n)],
        }
        pq.write_table(pa.table(columns), path, row_group_size=ROWS, use_dictionary=["label"])
    (root / "done").touch()
    return paths


# --- readers -------------------------------------------------------------------------------------


def files_at(where: str) -> list[pq.ParquetFile]:
    """Open the files below a folder or an address, with their footers."""
    if not where.startswith("http"):
        return [pq.ParquetFile(path, memory_map=True) for path in sorted(Path(where).iterdir())]
    store = s3(where)
    return [
        pq.ParquetFile(store.open_input_file(f"data/train-{number}.parquet"), pre_buffer=True)
        for number in range(FILES)
    ]


def s3(address: str) -> Any:
    from pyarrow import fs

    scheme, _, host = address.partition("://")
    return fs.S3FileSystem(
        access_key="id", secret_key="secret", region="us-east-1", scheme=scheme,
        endpoint_override=host,
    )  # fmt: skip


def by_feed(where: str, shuffle: str) -> Batches:
    """Make the index before the clock starts, as footers are read before it for pyarrow."""
    from penstock.feed import RowFeed

    name = "s3://data/*.parquet" if where.startswith("http") else f"{where}/*.parquet"
    with RowFeed(name, BATCH, columns=COLUMNS, shuffle=shuffle, seed=1) as feed:
        yield None
        for batch in feed:
            yield batch.table


def feed(where: str) -> Batches:
    yield from by_feed(where, "none")


def feed_shuffled(where: str) -> Batches:
    yield from by_feed(where, "block")


def feed_rows(where: str) -> Batches:
    """Yield the rows as dicts."""
    from penstock.feed import RowFeed

    with RowFeed(f"{where}/*.parquet", BATCH, columns=COLUMNS, shuffle="block", seed=1) as feed:
        yield None
        for batch in feed:
            yield list(batch)


def iter_batches(where: str) -> Batches:
    files = files_at(where)
    yield None
    for file in files:
        for batch in file.iter_batches(BATCH, columns=COLUMNS):
            yield pa.Table.from_batches([batch])


def groups_shuffled(where: str) -> Iterator[Any]:
    """Yield row groups in random sequence, the rows of each mixed."""
    files = files_at(where)
    order = [(file, group) for file in files for group in range(file.num_row_groups)]
    chance = random.Random(1)
    chance.shuffle(order)
    yield None
    for file, group in order:
        table = file.read_row_group(group, columns=COLUMNS)
        rows = list(range(table.num_rows))
        chance.shuffle(rows)
        yield table.take(pa.array(rows))


def row_groups(where: str) -> Batches:
    for table in groups_shuffled(where):
        if table is None:
            yield None
            continue
        for first in range(0, table.num_rows, BATCH):
            yield table.slice(first, BATCH)


def row_by_row(where: str) -> Batches:
    """A map-style data set: `__getitem__` returns a row of the row group in memory, as a dict."""
    for table in groups_shuffled(where):
        if table is None:
            yield None
            continue
        for first in range(0, table.num_rows, BATCH):
            numbers = range(first, min(first + BATCH, table.num_rows))
            yield [table.slice(number, 1).to_pylist()[0] for number in numbers]


def dataset(where: str) -> Batches:
    """pyarrow.dataset in the order of the files, with its own threads and read-ahead."""
    import pyarrow.dataset as ds

    paths = [f"data/train-{number}.parquet" for number in range(FILES)]
    files = ds.dataset(paths, format="parquet", filesystem=s3(where))
    for fragment in files.get_fragments():
        fragment.ensure_complete_metadata()
    yield None
    for batch in files.to_batches(columns=COLUMNS, batch_size=BATCH):
        yield pa.Table.from_batches([batch])


READERS: dict[str, Callable[[str], Batches]] = {
    reader.__name__: reader
    for reader in (feed, feed_shuffled, feed_rows, iter_batches, row_groups, row_by_row, dataset)
}


def read(name: str, where: str) -> None:
    """Run one reader, and print its seconds, peak memory and sums."""
    batches = READERS[name](where)
    next(batches)
    begun = time.perf_counter()
    rows = labels = 0
    for batch in batches:
        rows += len(batch)
        if isinstance(batch, list):
            labels += sum(row["label"] for row in batch)
        else:
            labels += pc.sum(batch.column("label")).as_py()
    seconds = time.perf_counter() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps({"seconds": seconds, "peak": peak, "sums": [rows, labels]}))


# --- comparison ----------------------------------------------------------------------------------


def run(name: str, where: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        settings = SETTINGS | {"XDG_CACHE_HOME": cache}
        if where.startswith("http"):
            settings["AWS_ENDPOINT_URL"] = where
        answer = json.loads(output([sys.executable, __file__, name, where], settings))
    n = FILES * GROUPS * ROWS
    if answer["sums"] != [n, n * (n - 1) // 2]:
        raise SystemExit(f"{name}: other rows than the files have: {answer['sums']}")
    return dict(answer)


def compared(what: str, mine: str, peer: str, where: str, bar: float) -> Bar:
    """Let two readers alternate.  The ratio is of speeds: above 1, RowFeed is ahead."""
    n = FILES * GROUPS * ROWS
    rounds = [(run(mine, where), run(peer, where)) for _ in range(ROUNDS)]
    ratio = statistics.median(other["seconds"] / own["seconds"] for own, other in rounds)
    own, other = (
        n / statistics.median(both[side]["seconds"] for both in rounds) for side in (0, 1)
    )
    peaks = [max(both[side]["peak"] for both in rounds) / 1e6 for side in (0, 1)]
    measured = (
        f"×{ratio:.2f} ({own:,.0f} and {other:,.0f} rows/s, {peaks[0]:.0f} and {peaks[1]:.0f} MB)"
    )
    return Bar(what, f"≥ ×{bar:g}", measured, ratio >= bar, COMMAND)


def main() -> list[Bar]:
    root = scratch("feed_parquet")
    for path in data(root):
        path.read_bytes()  # into the page cache
    folder = str(root / "data")
    bars = [
        compared("in memory, in order; iter_batches", "feed", "iter_batches", folder, OF_LOCAL),
        compared(
            "in memory, shuffled; read_row_group, rows mixed",
            *("feed_shuffled", "row_groups", folder, OF_LOCAL),
        ),
        compared(
            "in memory, shuffled, rows as dicts; a row at a time",
            *("feed_rows", "row_by_row", folder, AHEAD),
        ),
    ]
    for delay_ms in DELAYS_MS:
        with server_process(root, delay_ms, RATE_MB) as address:
            over = f"S3, {delay_ms} ms a request"
            bars += [
                compared(
                    f"{over}, shuffled; pyarrow.fs, read_row_group, rows mixed",
                    *("feed_shuffled", "row_groups", address, AHEAD),
                ),
                compared(
                    f"{over}, shuffled; pyarrow.dataset, in order",
                    *("feed_shuffled", "dataset", address, AHEAD),
                ),
            ]
    return bars


if __name__ == "__main__":
    if len(sys.argv) > 1:
        read(*sys.argv[1:])
    else:
        report(main())
