"""penstock.feed against py-lmdb, pread, a DataLoader, webdataset and tf.data: ratios of one run.

    python lab/benchmarks/feed.py                   every part: half an hour, 9 GB on the disk
    python lab/benchmarks/feed.py disk throttled    only these parts
    python lab/benchmarks/feed.py disk --folder /mnt/data --gb 0.5

throttled and memory make control groups and set the disk's read-ahead (root), latency mounts a FUSE
tier.  Each reader is a separate process; the files are evicted before each reader, and a row whose
files were not cold reports so.  Compared readers alternate; a ratio is the median over the rounds.
"""

import argparse
import importlib
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from bars import Bar, report, scratch

from penstock.feed import open_index
from penstock.places import tiers
from penstock_lab import places
from penstock_lab import tier as slow_tiers
from penstock_lab.groups import Group, device_of

ROUNDS = 3
SECONDS = 2.0  # of a reader, at the most
PROCESSES = (1, 2, 4, 8)
MANY = 1 << 20  # epochs: until the time is over
LARGE, SMALL = (70_000, 130_000), (3073, 3073)  # bytes of a record: of images, and as CIFAR's

# The bars of the issue about the reader.
OF_BEST, OF_SEQUENTIAL, OF_HINTED, DEVICE_BYTES, CPU_US = 0.9, 0.8, 0.95, 1.05, 20.0
OF_SLOW = 0.95  # for storage so slow that little else counts
TIMES_READ_AHEAD, TIMES_UNAHEAD = 3.0, 20.0  # py-lmdb by default, and without read-ahead
USUAL_AHEAD_KB, LARGE_AHEAD_KB = 128, 8192  # Linux's default, and the setting of some machines
ORDER_BYTES = 64  # a record, beside the buffer: docs/reading.md tells 55


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
    done = folder / "images.done"
    if done.exists():
        return path
    for i in range(n):
        place = path / f"{i % 100:03}" / f"{i:07}.jpg"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(random_bytes.randbytes(random_bytes.randrange(5_000, 20_000)))
    done.touch()
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


def looked_at(view: Any) -> int:
    """Use every byte of a record once: the checksum is computed by zlib alone."""
    zlib.crc32(view)
    return len(view)


def by_feed(
    path: str, order: str, rank: int, world: int, batch: int = 64, epochs: int = 1,
    is_looked_at: bool = False, **options: Any,
) -> Iterator[int]:  # fmt: skip
    from penstock.feed import Feed

    use = looked_at if is_looked_at else len
    with Feed(path, batch, shuffle=order, seed=1, rank=rank, world_size=world, **options) as feed:
        for _ in range(epochs):
            for fed_batch in feed:
                yield from map(use, fed_batch.views())


def by_lmdb(
    path: str, order: str, rank: int, world: int, is_ahead: bool = False, buffers: bool = True,
    epochs: int = 1, drop_in: bool = False, is_looked_at: bool = False, batch: int = 0,
) -> Iterator[int]:  # fmt: skip
    """batch: so many records are held until the next batch, as a batch iterator's are."""
    use = looked_at if is_looked_at else len
    lmdb = importlib.import_module("penstock.feed.lmdb" if drop_in else "lmdb")
    options = {"readonly": True, "lock": False, "readahead": is_ahead}
    with lmdb.open(path, **options) as env, env.begin(buffers=buffers) as txn:
        is_shuffled = order != "none"
        keys = [b"%08d" % i for i in range(env.stat()["entries"] if is_shuffled else 0)]
        random.Random(1).shuffle(keys)
        for _ in range(epochs):
            in_order = txn.cursor().iternext(keys=False, values=True)
            records = map(txn.get, keys[rank::world]) if is_shuffled else in_order
            held: list[Any] = []
            while batch and (held := list(itertools.islice(records, batch))):
                yield from map(use, held)
            yield from map(use, records)


def by_pread(path: str, order: str, rank: int, world: int, threads: int = 8) -> Iterator[int]:
    """os.pread at the index, from threads: code that anyone could write."""
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
    """Unchanged py-lmdb, with its order hinted."""
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

    files = [] if is_ours else sorted(str(file) for file in Path(path).rglob("*.jpg"))

    class ImageFiles:
        def __len__(self) -> int:
            return len(files)

        def __getitem__(self, i: int) -> int:
            with open(files[i], "rb") as file:
                return len(file.read())

    dataset = FeedDataset(path, decode=len) if is_ours else ImageFiles()
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


# And the imports of a reader: before the clock runs.
READERS: dict[str, tuple[Callable[..., Iterator[int]], str]] = {
    "feed": (by_feed, "penstock.feed numpy.random"),
    "lmdb": (by_lmdb, "lmdb penstock.feed.lmdb"),
    "pread": (by_pread, "penstock.feed"),
    "ring": (by_ring, "penstock.feed numpy.random"),
    "hints": (by_hints, "lmdb penstock.feed.hint"),
    "loader": (by_loader, "torch.utils.data penstock.feed penstock.adapters.torch_feed"),
    "webdataset": (by_webdataset, "webdataset"),
    "tar": (by_tar_feed, "penstock.feed penstock.feed.decode"),
    "tf": (by_tf, "tensorflow"),
}


# --- one measurement -----------------------------------------------------------------------------


def measured_read(job: dict[str, Any]) -> dict[str, float]:
    """Run in a separate process: read until the end or the time limit."""
    read, needs = READERS[job["reader"]]
    for module in needs.split():
        importlib.import_module(module)
    records = read(**job["arguments"])
    for _ in itertools.islice(records, job["warm"]):
        pass
    sys.stdin.readline()  # all processes of a measurement begin together
    Path("/proc/self/clear_refs").write_text("5")  # the peak of memory counts from here
    device, cpu_s, n, n_bytes = device_bytes(), time.process_time(), 0, 0
    memory = status_bytes("VmRSS")
    begun = time.perf_counter()
    for record_bytes in records:
        n, n_bytes = n + 1, n_bytes + record_bytes
        if not n % 16 and time.perf_counter() - begun > job["seconds"]:
            break
    seconds = time.perf_counter() - begun
    return {
        "n": n,
        "bytes": n_bytes,
        "device": device_bytes() - device,
        "seconds": seconds,
        "cpu_s": time.process_time() - cpu_s,
        "grown": status_bytes("VmHWM") - memory,
    }


def device_bytes() -> int:
    text = Path("/proc/self/io").read_text()
    return int(text.partition("\nread_bytes:")[2].split()[0])


def status_bytes(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{name}:")[2].split()[0]) << 10


def run(
    reader: str, path: Path, order: str = "global", world: int = 1, *, cold: bool = True,
    seconds: float = SECONDS, group: Group | None = None, **more: Any,
) -> dict[str, float]:  # fmt: skip
    """Run all processes of a measurement together; `more` is the reader's own."""
    files = [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]
    children, warm = [], 0 if cold else len(open_index(path))  # the first epoch is not measured
    for rank in range(world):
        arguments = {"path": str(path), "order": order, "rank": rank, "world": world, **more}
        job = {"reader": reader, "arguments": arguments, "seconds": seconds, "warm": warm}
        command = [sys.executable, __file__, "--job", json.dumps(job)]
        children.append(
            subprocess.Popen(
                group.wrapped(command) if group else command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    if cold:
        tiers.sync(path.parent)  # as a whole: single syncs take long for many files
        for file in files:
            tiers.evict(file, is_synced=True)
        # for 100,000 files warmth takes 14 s
        warmth = tiers.warmth_of(files[:: len(files) // 1000 + 1])
        if not warmth.is_cold:
            print(f"{path.name} was not cold for {reader}: {warmth.why_not_cold}", file=sys.stderr)
    answers = []
    for child in children:
        assert child.stdin is not None
        child.stdin.write("\n")
        child.stdin.flush()
    for child in children:
        out, _ = child.communicate()
        if child.returncode:
            raise SystemExit(f"{reader} failed on {path}")
        answers.append(json.loads(out))
    took = max(each["seconds"] for each in answers)
    whole = {key: sum(each[key] for each in answers) for key in answers[0]}
    rates = {"records_hz": whole["n"] / took, "bps": whole["bytes"] / took}
    return whole | rates | {"seconds": took}


class ReaderRounds:
    """Results of readers that alternated: rounds of name -> measurement."""

    def __init__(self, readers: dict[str, Callable[[], dict[str, float]]]) -> None:
        self.each = [{name: measure() for name, measure in readers.items()} for _ in range(ROUNDS)]

    def median(self, name: str, key: str = "bps") -> float:
        return statistics.median(round_[name][key] for round_ in self.each)

    def bar(
        self, what: str, others: Sequence[str], least: float | None, part: str,
        ours: str = "feed", key: str = "bps",
    ) -> Bar:  # fmt: skip
        """Ours against the best of the others, neighbours in time."""
        best = max(others, key=lambda name: self.median(name, key))
        ratio = statistics.median(each[ours][key] / each[best][key] for each in self.each)
        scale, unit = (1e6, "MB/s") if key == "bps" else (1.0, "records/s")
        mine, its = self.median(ours, key) / scale, self.median(best, key) / scale
        measured = f"{ratio:.2f} ({mine:,.0f} of {its:,.0f} {unit})"
        if least is None:
            return Bar(what, "–", measured, None, command(part))
        return Bar(what, f"≥ {least:g}", measured, ratio >= least, command(part))


def command(part: str) -> str:
    return f"python lab/benchmarks/feed.py {part}"


@contextmanager
def read_ahead(folder: Path, kilobytes: int) -> Iterator[None]:
    """Set the disk's read-ahead, which mapped files use, while the block runs."""
    place = Path(f"/sys/dev/block/{device_of(str(folder))}/queue/read_ahead_kb")
    before = place.read_text()
    place.write_text(str(kilobytes))
    try:
        yield
    finally:
        place.write_text(before)


def ahead_of(kilobytes: int, path: Path, **more: Any) -> dict[str, float]:
    """Run py-lmdb with its default, which reads ahead by so much."""
    with read_ahead(path, kilobytes):
        return run("lmdb", path, is_ahead=True, buffers=False, **more)


# --- bars ----------------------------------------------------------------------------------------


def processes(folder: Path, total: float) -> list[Bar]:
    path, bars = data(folder, "100k.lmdb", LARGE, total), []
    for world in PROCESSES:
        rounds = ReaderRounds(
            {
                "feed": partial(run, "feed", path, world=world),
                "pread": partial(run, "pread", path, world=world),
                "ring": partial(run, "ring", path, world=world),
                "lmdb": partial(run, "lmdb", path, world=world),
                "ahead": partial(run, "lmdb", path, world=world, is_ahead=True),
            }
        )
        name = f"100 KB, shuffled, cold, {world} processes"
        best = ("pread", "ring")
        bars.append(rounds.bar(f"{name}: of pread/io_uring", best, OF_BEST, "processes"))
        lmdb = ("lmdb", "ahead")
        bars.append(rounds.bar(f"{name}: of py-lmdb's best", lmdb, 1.0, "processes"))
    return bars


def disk(folder: Path, total: float) -> list[Bar]:
    return small(folder, total) + hinted(folder, total)


def small(folder: Path, total: float) -> list[Bar]:
    """Measure by bytes of the file: records of 3 KB lie in separate pages, and the gaps are read
    too."""
    path = data(folder, "3k.lmdb", SMALL, total / 2)
    file = path / "data.mdb"
    size = file.stat().st_size

    def feed() -> dict[str, float]:
        return {"bps": size / run("feed", path, "block", seconds=60)["seconds"]}

    def ceiling() -> dict[str, float]:
        ceilings = tiers.read_ceiling([file], seconds_each=1.0)
        return {
            "bps": max(
                ceiling_row.bandwidth_bps
                for ceiling_row in ceilings
                if ceiling_row.order == "sequential"
            )
        }

    rounds = ReaderRounds({"feed": feed, "ceiling": ceiling})
    what = "3 KB, block shuffle, cold: of the sequential ceiling"
    return [rounds.bar(what, ("ceiling",), OF_SEQUENTIAL, "disk")]


def hinted(folder: Path, total: float) -> list[Bar]:
    path = data(folder, "100k.lmdb", LARGE, total)
    rounds = ReaderRounds(
        {
            "hints": partial(run, "hints", path),
            "pread": partial(run, "pread", path),
            "lmdb": partial(run, "lmdb", path, buffers=False),
        }
    )
    return hinted_bars(rounds, "disk")


def hinted_bars(rounds: ReaderRounds, part: str) -> list[Bar]:
    what = "py-lmdb hinted, 100 KB, shuffled, cold"
    return [
        rounds.bar(f"{what}: of pread, 8 threads", ("pread",), OF_HINTED, part, "hints"),
        rounds.bar(f"{what}: of py-lmdb as it is", ("lmdb",), None, part, "hints"),
    ]


def counts(folder: Path, total: float) -> list[Bar]:
    return once(folder, total) + peaks(folder, total)


def once(folder: Path, total: float) -> list[Bar]:
    """Read a share in each process: are any bytes fetched twice?"""
    path, bars = data(folder, "100k.lmdb", LARGE, total), []
    size = (path / "data.mdb").stat().st_size
    for world in PROCESSES:
        device = run("feed", path, world=world, seconds=300)["device"] / size
        what = f"{world} processes: bytes from the device / of the file"
        is_met = device <= DEVICE_BYTES
        bars.append(Bar(what, f"≤ {DEVICE_BYTES}", f"{device:.3f}", is_met, command("counts")))
    return bars


def hot(folder: Path, total: float) -> list[Bar]:
    """Compare equal with equal: views of the file's own pages (`mapped`, py-lmdb's buffers=True),
    copies (the buffer, buffers=False), and both with every byte used once.  Also a copy against
    unused views, which move no byte: no copy of 100 KB can equal such views."""
    bars = []
    for name, sizes in (("100k-hot", LARGE), ("3k-hot", SMALL)):
        path = data(folder, f"{name}.lmdb", sizes, min(total / 8, 4e8))
        (path / "data.mdb").read_bytes()
        for order in ("global", "none"):
            common = {"order": order, "cold": False, "seconds": 0.7, "epochs": MANY}
            feed, lmdb = (partial(run, reader, path, **common) for reader in ("feed", "lmdb"))
            readers = {
                "feed": partial(feed, batch=256),
                "mapped": partial(feed, batch=256, mapped=True),
                "lmdb": lmdb,
                "copies": partial(lmdb, buffers=False),
                "batches": partial(lmdb, buffers=False, batch=256),
                "feed, used": partial(feed, batch=256, is_looked_at=True),
                "mapped, used": partial(feed, batch=256, mapped=True, is_looked_at=True),
                "lmdb, used": partial(lmdb, is_looked_at=True),
            }
            if order == "global":
                readers["drop-in"] = partial(lmdb, drop_in=True)
            rounds = ReaderRounds(readers)
            what = f"{name[:-4]}, in memory, {'shuffled' if order == 'global' else 'in order'}"
            for then, ours, theirs, least in (
                ("views, mapped=True: of py-lmdb's views", "mapped", "lmdb", 1.0),
                ("copies, in the buffer: of py-lmdb's copies", "feed", "copies", 1.0),
                ("copies, in the buffer: of py-lmdb's, held for a batch", "feed", "batches", 1.0),
                ("used once, mapped=True: of py-lmdb's views", "mapped, used", "lmdb, used", 1.0),
                ("used once, in the buffer: of py-lmdb's views", "feed, used", "lmdb, used", 1.0),
                ("copies against views that nobody looks at", "feed", "lmdb", 1.0),
                ("get() of penstock.feed.lmdb: of py-lmdb's views", "drop-in", "lmdb", None),
            ):
                if ours in readers:
                    then = f"{what}, {then}"
                    bars.append(rounds.bar(then, (theirs,), least, "hot", ours, "records_hz"))
    return bars


def throttled(folder: Path, total: float) -> list[Bar]:
    path = data(folder, "100k.lmdb", LARGE, total)
    limits = {"bandwidth": places.THROTTLED_BPS, "iops": places.THROTTLED_HZ}
    with slow_tiers.capped(folder, **limits) as group:
        # Bytes read ahead when the clock stops are not counted: 2 % of 3 s at this rate.
        cold = {"group": group, "seconds": 6.0}
        rounds = ReaderRounds(
            {
                "feed": partial(run, "feed", path, **cold),
                "hints": partial(run, "hints", path, **cold),
                "pread": partial(run, "pread", path, **cold),
                "ring": partial(run, "ring", path, **cold),
                "lmdb": partial(run, "lmdb", path, buffers=False, **cold),
                "ahead": partial(ahead_of, USUAL_AHEAD_KB, path, **cold),
                "far ahead": partial(ahead_of, LARGE_AHEAD_KB, path, **cold),
            }
        )
    name, part = "100 KB, shuffled, cold, at 200 MB/s and 2,000 reads/s", "throttled"
    large = f"{name}: of py-lmdb, read-ahead {LARGE_AHEAD_KB} kB"
    usual = f"{name}: of py-lmdb, read-ahead {USUAL_AHEAD_KB} kB, the default"
    return [
        rounds.bar(f"{name}: of pread/io_uring", ("pread", "ring"), OF_SLOW, part),
        rounds.bar(usual, ("ahead",), TIMES_READ_AHEAD, part),
        rounds.bar(f"{name}: of py-lmdb, no read-ahead", ("lmdb",), TIMES_UNAHEAD, part),
        rounds.bar(large, ("far ahead",), TIMES_UNAHEAD, part),
        *hinted_bars(rounds, part),
    ]


def latency(folder: Path, total: float) -> list[Bar]:
    data(folder, "100k.lmdb", LARGE, total)
    bars: list[Bar] = []
    with slow_tiers.slow(folder, bandwidth=places.LATENCY_BPS, latency_s=places.LATENCY_S) as tier:
        path = Path(tier.path) / "100k.lmdb"
        one_in_flight = {"readers": 1, "depth": 1}
        eight_in_flight = {"readers": 2, "depth": 4}
        rounds = ReaderRounds(
            {
                "feed": partial(run, "feed", path),
                "feed 1": partial(run, "feed", path, **one_in_flight),
                "feed 8": partial(run, "feed", path, **eight_in_flight),
                "hints": partial(run, "hints", path),
                "pread 1": partial(run, "pread", path, threads=1),
                "pread": partial(run, "pread", path, threads=8),
                "lmdb": partial(run, "lmdb", path, buffers=False),
            }
        )
        many = ReaderRounds(
            {
                "feed": partial(run, "feed", path, world=8),
                "feed 1": partial(run, "feed", path, world=8, **one_in_flight),
                "feed 8": partial(run, "feed", path, world=8, **eight_in_flight),
                "pread 1": partial(run, "pread", path, world=8, threads=1),
                "pread": partial(run, "pread", path, world=8, threads=8),
                "lmdb": partial(run, "lmdb", path, world=8, buffers=False),
            }
        )
    name, part, unit = "100 KB, shuffled, cold, 1 ms a request", "latency", "records_hz"
    for depth, other in ((1, "pread 1"), (8, "pread")):
        what = f"{name}, 1 worker, {depth} in flight: of pread"
        bars.append(rounds.bar(what, (other,), OF_SLOW, part, f"feed {depth}", unit))
        what = f"{name}, 8 workers, {depth} in flight each: of pread"
        bars.append(many.bar(what, (other,), OF_SLOW, part, f"feed {depth}", unit))
    bars += [
        rounds.bar(f"{name}, 1 worker: of py-lmdb", ("lmdb",), TIMES_UNAHEAD, part, key=unit),
        many.bar(f"{name}, 8 workers: of py-lmdb", ("lmdb",), TIMES_UNAHEAD, part, key=unit),
    ]
    return bars + hinted_bars(rounds, part)


def memory(folder: Path, total: float) -> list[Bar]:
    path, part = data(folder, "100k.lmdb", LARGE, total), "memory"
    size = (path / "data.mdb").stat().st_size
    with slow_tiers.capped(folder, memory_bytes=int(size * places.MEMORY_SHARE)) as group:
        rounds = ReaderRounds(
            {
                "feed": partial(run, "feed", path, group=group),
                "hints": partial(run, "hints", path, group=group),
                "pread": partial(run, "pread", path, group=group),
                "ring": partial(run, "ring", path, group=group),
                "lmdb": partial(run, "lmdb", path, buffers=False, group=group),
            }
        )
    name = "100 KB, shuffled, cold, memory for a quarter of the data"
    cpu_us = rounds.median("feed", "cpu_s") / rounds.median("feed", "n") * 1e6
    what, is_met = f"{name}: processor a record", cpu_us <= CPU_US
    return [
        rounds.bar(f"{name}: of io_uring", ("ring",), OF_SLOW, part),
        rounds.bar(f"{name}: of py-lmdb, no read-ahead", ("lmdb",), None, part),
        Bar(what, f"≤ {CPU_US:g} µs", f"{cpu_us:.1f} µs", is_met, command(part)),
        *hinted_bars(rounds, part),
    ]


def peaks(folder: Path, total: float) -> list[Bar]:
    """Measure the growth of a process during reading: its buffer, and the order of an epoch."""
    bars = []
    for name, sizes, share in (("100k-hot", LARGE, 0.125), ("100k", LARGE, 1), ("3k", SMALL, 0.5)):
        path = data(folder, f"{name}.lmdb", sizes, total * share)
        n = len(open_index(path))
        for buffer_bytes in (64 << 20, 256 << 20):
            result = run("feed", path, "block", seconds=60, buffer_bytes=buffer_bytes)
            least = buffer_bytes + ORDER_BYTES * n
            what = f"memory grows by, {n:,} records, buffer_bytes={buffer_bytes >> 20} MiB"
            measured, is_met = f"{result['grown'] / 2**20:.0f} MiB", result["grown"] <= least
            bar = f"≤ {least / 2**20:.0f} MiB"
            bars.append(Bar(what, bar, measured, is_met, command("counts")))
    return bars


def others(folder: Path, total: float) -> list[Bar]:
    """Measure the usual readers of frameworks for such data."""
    images = image_files(folder, 100_000 if total >= 2e9 else 10_000)
    samples = int(min(total / 4, 1e9) / 100_000)
    return [
        *compared("image folder of small files: FeedDataset of open and read, 2 workers", images,
                  partial(run, "loader", images, is_ours=True, seconds=20.0),
                  partial(run, "loader", images, seconds=20.0)),
        *tar(tar_file(folder, samples)),
        *tfrecord(folder, samples),
    ]  # fmt: skip


def compared(
    what: str, path: Path, ours: Callable[[], dict[str, float]],
    theirs: Callable[[], dict[str, float]],
) -> list[Bar]:  # fmt: skip
    rounds = ReaderRounds({"feed": ours, "theirs": theirs})
    return [rounds.bar(what, ("theirs",), 1.0, "others", key="records_hz")]


def tar(path: Path) -> list[Bar]:
    return compared("tar: of webdataset", path, partial(run, "tar", path),
                    partial(run, "webdataset", path))  # fmt: skip


def tfrecord(folder: Path, samples: int) -> list[Bar]:
    path = tfrecord_file(folder, samples)
    return compared("TFRecord: of tf.data", path, partial(run, "feed", path, "none"),
                    partial(run, "tf", path))  # fmt: skip


PARTS: dict[str, Callable[[Path, float], list[Bar]]] = {
    "disk": disk,
    "processes": processes,
    "hot": hot,
    "counts": counts,
    "others": others,
    "throttled": throttled,
    "latency": latency,
    "memory": memory,
}


def ended(*_: Any) -> None:
    raise SystemExit("ended by a signal; groups, tiers and the read-ahead are as they were")


def main(*parts: str, folder: Path | None = None, gb: float = 3.0) -> list[Bar]:
    unknown = set(parts) - set(PARTS)
    if unknown:
        raise SystemExit(f"{unknown.pop()}: no such part; known are {', '.join(PARTS)}")
    place = folder or scratch("feed")
    os.environ["XDG_CACHE_HOME"] = str(scratch("feed") / "cache")  # of indexes
    signal.signal(signal.SIGTERM, ended)  # undo the changes of a part
    bars: list[Bar] = []
    for name in parts or PARTS:
        bars += PARTS[name](place, gb * 1e9)
    return bars


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gb", type=float, default=3.0)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.job:
        print(json.dumps(measured_read(json.loads(asked.job))))
    else:
        report(main(*asked.parts, folder=asked.folder, gb=asked.gb))
