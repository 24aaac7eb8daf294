"""penstock.feed against py-lmdb, pread, a DataLoader, webdataset and tf.data: ratios of one run.

    python benchmarks/feed.py                           on the disk of the checkout, 3 GB of data
    python benchmarks/feed.py --folder /mnt/slow --gb 0.5
    python benchmarks/feed.py --only cold,hot

--folder: any tier; `penstock bench tier` makes slow ones.  Each reader is a process of its own; the
files are evicted before it, and a row whose files were not cold says so.  Readers that are compared
alternate.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bars import Bar, report, scratch

from penstock import tiers

COMMAND = "python benchmarks/feed.py"
ROUNDS = 3
SECONDS = 8.0  # of a reader, at the most
PROCESSES = (1, 2, 4, 8)
GROUPS = ("cold", "small", "hot", "once", "hinted", "files", "tar", "tfrecord")

# The bars of the issue that asked for the reader.
OF_BEST_PREAD, OF_CEILING, OF_PREAD_HINTED, DEVICE_BYTES = 0.9, 0.8, 0.95, 1.05


# --- data ----------------------------------------------------------------------------------------


def data(folder: Path, name: str, record_bytes: tuple[int, int], total: float) -> Path:
    """An LMDB of random bytes in key order, made once."""
    import lmdb

    path = folder / name
    if (path / "done").exists():
        return path
    random_bytes = random.Random(1)
    pool = random_bytes.randbytes(8 << 20)
    path.mkdir(parents=True, exist_ok=True)
    with lmdb.open(str(path), map_size=int(total * 2) + (1 << 28), sync=False) as env:
        i, written = 0, 0
        while written < total:
            with env.begin(write=True) as txn:
                for _ in range(2000):
                    size = random_bytes.randint(*record_bytes)
                    start = random_bytes.randrange(len(pool) - size)
                    txn.put(b"%08d" % i, pool[start : start + size], append=True)
                    i, written = i + 1, written + size
                    if written >= total:
                        break
        env.sync(True)
    (path / "done").touch()
    return path


def image_files(folder: Path, n: int) -> Path:
    path, random_bytes = folder / "images", random.Random(2)
    if (path / "done.txt").exists():
        return path
    for i in range(n):
        place = path / f"{i % 100:03}" / f"{i:07}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(random_bytes.randbytes(random_bytes.randrange(5_000, 20_000)))
    (path / "done.txt").write_text("made by benchmarks/feed.py")
    return path


def tar_file(folder: Path, n: int) -> Path:
    import io
    import tarfile

    path, random_bytes = folder / "samples.tar", random.Random(3)
    if not path.exists():
        draft = path.with_suffix(".draft")
        with tarfile.open(draft, "w") as tar:
            for i in range(n):
                for extension, size in (("jpg", 100_000), ("cls", 2)):
                    member = tarfile.TarInfo(f"{i:07}.{extension}")
                    member.size = size
                    tar.addfile(member, io.BytesIO(random_bytes.randbytes(size)))
        draft.rename(path)
    return path


def tfrecord_file(folder: Path, n: int) -> Path:
    import tensorflow

    path, random_bytes = folder / "samples.tfrecord", random.Random(4)
    if not path.exists():
        draft = str(path) + ".draft"
        with tensorflow.io.TFRecordWriter(draft) as writer:
            for _ in range(n):
                writer.write(random_bytes.randbytes(100_000))
        Path(draft).rename(path)
    return path


# --- readers: each yields the bytes of a record --------------------------------------------------


def by_feed(
    path: str, order: str, rank: int, world: int, batch: int = 64, copies: bool = False
) -> Iterator[int]:
    from penstock.feed import Feed

    with Feed(path, batch, shuffle=order, seed=1, rank=rank, world_size=world) as feed:
        for one in feed:
            yield from map(len, one.as_bytes() if copies else one.views())


def by_lmdb(
    path: str, order: str, rank: int, world: int, is_ahead: bool = False, buffers: bool = True
) -> Iterator[int]:
    import lmdb

    options = {"readonly": True, "lock": False, "readahead": is_ahead}
    with lmdb.open(path, **options) as env, env.begin(buffers=buffers) as txn:
        if order == "none":
            for value in txn.cursor().iternext(keys=False, values=True):
                yield len(value)
            return
        keys = list(range(env.stat()["entries"]))
        random.Random(1).shuffle(keys)
        for i in keys[rank::world]:
            yield len(txn.get(b"%08d" % i))


def by_pread(path: str, order: str, rank: int, world: int, threads: int = 8) -> Iterator[int]:
    """os.pread at the index, from threads: what anyone could write."""
    from concurrent.futures import ThreadPoolExecutor

    from penstock.feed import open_index

    index = open_index(path)
    numbers = list(range(len(index)))
    random.Random(1).shuffle(numbers)
    descriptor = os.open(index.files[0], os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    offset, length = index.offset.tolist(), index.length.tolist()

    def read(i: int) -> int:
        return len(os.pread(descriptor, length[i], offset[i]))

    mine = numbers[rank::world]
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(mine), 512):
            yield from pool.map(read, mine[start : start + 512])


def by_ring(path: str, order: str, rank: int, world: int, direct: bool = True) -> Iterator[int]:
    """The engine alone at a depth of 32, a list of 2,048 reads at a time."""
    import numpy as np

    from penstock.feed import open_index
    from penstock.feed.read import Buffer, Options, Reader

    index = open_index(path)
    options = Options("auto", direct, coalesce_bytes=0, gap_bytes=0, depth=32)
    reader, buffer = Reader(index, options), Buffer(1 << 30)
    mine = np.random.default_rng(1).permutation(len(index))[rank::world]
    for start in range(0, len(mine), 2048):
        records = mine[start : start + 2048]
        layout = reader.layout(records)
        reader.read(records, buffer.room(layout.room), layout)
        yield from index.length[records].tolist()


def by_hints(path: str, order: str, rank: int, world: int) -> Iterator[int]:
    """py-lmdb as it is, its order hinted."""
    import lmdb

    from penstock.feed.hint import Hints

    with (
        lmdb.open(path, readonly=True, lock=False, readahead=False) as env,
        env.begin(buffers=False) as txn,
    ):
        keys = list(range(env.stat()["entries"]))
        random.Random(1).shuffle(keys)
        for i in Hints(path).along(keys):
            yield len(txn.get(b"%08d" % i))


def by_loader(path: str, order: str, rank: int, world: int, is_ours: bool = False) -> Iterator[int]:
    """A torch DataLoader with two workers over files: FeedDataset, or open and read."""
    import torch

    from penstock.adapters.torch import FeedDataset

    files = sorted(str(file) for file in Path(path).rglob("*.jpg"))

    class Files:
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, i: int) -> int:
            with open(files[i], "rb") as file:
                return len(file.read())

    dataset = FeedDataset(path, decode=len) if is_ours else Files()
    loader = torch.utils.data.DataLoader(dataset, 64, shuffle=True, num_workers=2, collate_fn=list)
    for batch in loader:
        yield from batch


def by_webdataset(path: str, order: str, rank: int, world: int) -> Iterator[int]:
    import webdataset

    for sample in webdataset.WebDataset(path, shardshuffle=False):
        yield len(sample["jpg"]) + len(sample["cls"])


def by_tar_feed(path: str, order: str, rank: int, world: int) -> Iterator[int]:
    from penstock.feed import Feed
    from penstock.feed.decode import sample

    with Feed(path, 64) as feed:
        for batch in feed:
            for view in batch.views():
                yield sum(map(len, sample(view).values()))


def by_tf(path: str, order: str, rank: int, world: int) -> Iterator[int]:
    import tensorflow

    for record in tensorflow.data.TFRecordDataset(path, buffer_size=8 << 20).prefetch(64):
        yield len(record.numpy())


READERS: dict[str, Callable[..., Iterator[int]]] = {
    "feed": by_feed,
    "lmdb": by_lmdb,
    "pread": by_pread,
    "ring": by_ring,
    "hints": by_hints,
    "loader": by_loader,
    "webdataset": by_webdataset,
    "tar": by_tar_feed,
    "tf": by_tf,
}


def one(job: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own: reads until the end or the time limit."""
    passes = job.get("warm_passes", 0)
    for _ in range(passes):
        for _ in READERS[job["reader"]](**job["arguments"]):
            pass
    sys.stdin.readline()  # all processes of a measurement begin together
    before, n, n_bytes = device_bytes(), 0, 0
    begun = time.perf_counter()
    for record_bytes in READERS[job["reader"]](**job["arguments"]):
        n, n_bytes = n + 1, n_bytes + record_bytes
        if not n % 64 and time.perf_counter() - begun > job["seconds"]:
            break
    seconds = time.perf_counter() - begun
    return {"n": n, "bytes": n_bytes, "device": device_bytes() - before, "seconds": seconds}


def device_bytes() -> int:
    text = Path("/proc/self/io").read_text()
    return int(text.partition("\nread_bytes:")[2].split()[0])


def run(
    reader: str, path: Path, order: str = "global", world: int = 1, cold: bool = True,
    seconds: float = SECONDS, **more: Any,
) -> dict[str, float]:  # fmt: skip
    """All processes of one measurement together."""
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]
    children = []
    for rank in range(world):
        arguments = {"path": str(path), "order": order, "rank": rank, "world": world, **more}
        job = {
            "reader": reader, "arguments": arguments, "seconds": seconds,
            "warm_passes": 0 if cold else 1,
        }  # fmt: skip
        children.append(
            subprocess.Popen(
                [sys.executable, __file__, "--job", json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    if cold:
        for file in files:
            tiers.evict(file)
        warmth = tiers.warmth_of(files)
        if not warmth.is_cold:
            print(f"{path.name} was not cold for {reader}: {warmth.why_not_cold}", file=sys.stderr)
    told = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        out, _ = child.communicate()
        if child.returncode:
            raise SystemExit(f"{reader} failed on {path}")
        told.append(json.loads(out))
    took = max(each["seconds"] for each in told)
    whole = {key: sum(each[key] for each in told) for key in ("n", "bytes", "device")}
    return {
        **whole,
        "seconds": took,
        "records_hz": whole["n"] / took,
        "bps": whole["bytes"] / took,
    }


def median_of(what: dict[str, Callable[[], dict[str, float]]], key: str) -> dict[str, float]:
    """The readers in turn, several rounds; the median of each."""
    seen: dict[str, list[float]] = {name: [] for name in what}
    for _ in range(ROUNDS):
        for name, measure in what.items():
            seen[name].append(measure()[key])
    return {name: statistics.median(values) for name, values in seen.items()}


# --- bars ----------------------------------------------------------------------------------------


def ratio(what: str, ours: float, others: float, least: float, unit: str = "MB/s") -> Bar:
    scale = 1e6 if unit == "MB/s" else 1.0
    found = ours / others
    measured = f"{found:.2f} ({ours / scale:,.0f} of {others / scale:,.0f} {unit})"
    return Bar(what, f"≥ {least:g}", measured, found >= least, COMMAND)


def cold(folder: Path, total: float) -> list[Bar]:
    path, bars = data(folder, "100k.lmdb", (70_000, 130_000), total), []
    for world in PROCESSES:
        found = median_of(
            {
                "feed": partial(run, "feed", path, world=world),
                "pread": partial(run, "pread", path, world=world),
                "ring": partial(run, "ring", path, world=world),
                "lmdb": partial(run, "lmdb", path, world=world),
                "ahead": partial(run, "lmdb", path, world=world, is_ahead=True),
            },
            "bps",
        )
        name = f"100 KB, shuffled, cold, {world} processes"
        best = max(found["pread"], found["ring"])
        bars.append(ratio(f"{name}: of pread/io_uring", found["feed"], best, OF_BEST_PREAD))
        lmdb = max(found["lmdb"], found["ahead"])
        bars.append(ratio(f"{name}: of py-lmdb's best", found["feed"], lmdb, 1.0))
    return bars


def small(folder: Path, total: float) -> list[Bar]:
    """By bytes of the file: records of 3 KB lie one to a page, what lies between is read too."""
    path = data(folder, "3k.lmdb", (3073, 3073), total / 2)
    file = path / "data.mdb"
    found = run("feed", path, "block", seconds=60)
    ceilings = tiers.read_ceiling([file], seconds_each=2.0)
    best = max(c.bandwidth_bps for c in ceilings if c.order == "sequential")
    rate = file.stat().st_size * (found["bytes"] / (total / 2)) / found["seconds"]
    return [ratio("3 KB, block shuffle, cold: of the ceiling", rate, best, OF_CEILING)]


def hot(folder: Path, total: float) -> list[Bar]:
    """py-lmdb's views are of the file's own pages: who looks at none of them moves no byte."""
    bars = []
    for name, sizes in (("100k-hot", (70_000, 130_000)), ("3k-hot", (3073, 3073))):
        path = data(folder, f"{name}.lmdb", sizes, min(total / 8, 4e8))
        (path / "data.mdb").read_bytes()
        for order, copies in (("global", False), ("none", False), ("global", True), ("none", True)):
            found = median_of(
                {
                    "feed": partial(run, "feed", path, order, cold=False, batch=256, copies=copies),
                    "lmdb": partial(run, "lmdb", path, order, cold=False, buffers=not copies),
                },
                "records_hz",
            )
            what = f"{name[:-4]}, in memory, {'shuffled' if order == 'global' else 'in order'}"
            how = "copied to bytes" if copies else "as views, not looked at"
            what = f"{what}, {how}: of py-lmdb"
            bars.append(ratio(what, found["feed"], found["lmdb"], 1, "records/s"))
    return bars


def once(folder: Path, total: float) -> list[Bar]:
    """Each process reads its share: is anything fetched twice?"""
    path, bars = data(folder, "100k-once.lmdb", (70_000, 130_000), min(total / 4, 1e9)), []
    size = (path / "data.mdb").stat().st_size
    for world in PROCESSES:
        device = run("feed", path, world=world, seconds=300)["device"] / size
        what = f"{world} processes: bytes from the device / of the file"
        is_met = device <= DEVICE_BYTES
        bars.append(Bar(what, f"≤ {DEVICE_BYTES}", f"{device:.3f}", is_met, COMMAND))
    return bars


def hinted(folder: Path, total: float) -> list[Bar]:
    path = data(folder, "100k.lmdb", (70_000, 130_000), total)
    found = median_of(
        {
            "hints": lambda: run("hints", path),
            "pread": lambda: run("pread", path),
            "lmdb": lambda: run("lmdb", path, buffers=False),
        },
        "bps",
    )
    return [
        ratio("py-lmdb hinted: of pread, 8 threads", found["hints"], found["pread"],
              OF_PREAD_HINTED),
        ratio("py-lmdb hinted: of py-lmdb as it is", found["hints"], found["lmdb"], 1.0),
    ]  # fmt: skip


def compared(
    what: str, path: Path, ours: str, others: str, more: dict[str, Any] | None = None
) -> list[Bar]:
    found = median_of(
        {
            "ours": lambda: run(ours, path, **(more or {})),
            "others": lambda: run(others, path),
        },
        "records_hz",
    )
    return [ratio(what, found["ours"], found["others"], 1.0, "records/s")]


def files(folder: Path, total: float) -> list[Bar]:
    path = image_files(folder, 100_000 if total >= 2e9 else 10_000)
    what = "image folder: FeedDataset of open and read, 2 workers"
    return compared(what, path, "loader", "loader", {"is_ours": True})


def tar(folder: Path, total: float) -> list[Bar]:
    try:
        import webdataset  # noqa: F401
    except ModuleNotFoundError:
        print("no webdataset to compare with: pip install webdataset", file=sys.stderr)
        return []
    path = tar_file(folder, int(min(total / 4, 1e9) / 100_000))
    return compared("tar: of webdataset", path, "tar", "webdataset")


def tfrecord(folder: Path, total: float) -> list[Bar]:
    try:
        path = tfrecord_file(folder, int(min(total / 4, 1e9) / 100_000))
    except ModuleNotFoundError:
        print("no tensorflow to compare with", file=sys.stderr)
        return []
    return compared("TFRecord: of tf.data", path, "feed", "tf", None)


def main(folder: Path | None = None, gb: float = 3.0, only: str = ",".join(GROUPS)) -> list[Bar]:
    place = folder or scratch("feed")
    bars: list[Bar] = []
    for name in only.split(","):
        if name not in GROUPS:
            raise SystemExit(f"{name}: no group of bars; known are {', '.join(GROUPS)}")
        bars += globals()[name](place, gb * 1e9)
    return bars


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gb", type=float, default=3.0)
    parser.add_argument("--only", default=",".join(GROUPS))
    parser.add_argument("--job", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(one(json.loads(asked.job))))
    else:
        report(main(asked.folder, asked.gb, asked.only))
