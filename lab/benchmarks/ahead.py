"""`penstock run --ahead`: unchanged programs that map data or open small files, on the disk and on
tiers of 1 and 10 ms.

    python lab/benchmarks/ahead.py            all; SIZE_MB=500 sets the size of the weights
    python lab/benchmarks/ahead.py latency    one part: disk, latency, order, small or warm

order needs datasets, and reads at most 100 MB ahead of files that are larger.  latency, order and
small mount a FUSE file system (root).  A program measures its own time, from the first
open of the data to the last byte.  Runs with and without --ahead alternate, and each run begins
cold.  The ceiling is the ceiling of `penstock ceiling`: reads of 1 MiB in order by the best number
of threads.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bars import PENSTOCK, Bar, Pairs, output, pairs, report, scratch, timed_program

from penstock.places.tiers import evict, read_ceiling
from penstock_lab import places
from penstock_lab import tier as slow_tiers

__all__ = ["main"]

COMMAND = "python lab/benchmarks/ahead.py"
SIZE_BYTES = int(os.environ.get("SIZE_MB", "500")) << 20
RECORD_BYTES = 100_000
RECORDS = 600
PAIRS = int(os.environ.get("PAIRS", "5"))
WARM_PAIRS = 4 * PAIRS
TENSORS = 50
FILES_SMALL = 2000  # of 100 KB, in ten folders
BATCHES = 800  # of 12 parts of 1,025 tokens of a file of 4 GB
ROW_BATCHES = 180  # of 16 rows of 70 KB
ORDER_LIMIT = "100MB"
TOKENS = 400  # batches of nanoGPT's block size, at random offsets

# Bars of issue 28.  A tier of 1 ms serves a thread that faults some 150 to 300 MB/s.
LEAST_SMALL, LEAST_OF_IDEAL = 3.0, 0.9
LEAST_FAR, LEAST_OF_CEILING, LEAST_DISK, LEAST_TOKENS, MOST_WARM = 8.0, 0.9, 1.3, 5.0, 1.01

BEGIN = """
import sys, time
path = sys.argv[1]
"""
END = """
print(time.perf_counter() - start)
"""
PROGRAMS = {
    "safetensors": """
import torch
from safetensors.torch import load_file
start = time.perf_counter()
sum(int(tensor.view(torch.uint8)[::4096].sum()) for tensor in load_file(path).values())
""",
    "torch": """
import torch
start = time.perf_counter()
state = torch.load(path, mmap=True)
sum(int(tensor.view(torch.uint8)[::4096].sum()) for tensor in state.values())
""",
    "lmdb": """
import lmdb, torch
from torch.utils.data import DataLoader, Dataset
class Records(Dataset):
    def __init__(self):
        self.env = lmdb.open(path, readonly=True, lock=False, readahead=False, subdir=False)
    def __len__(self):
        return self.env.stat()["entries"]
    def __getitem__(self, number):
        with self.env.begin() as txn:
            return len(txn.get(b"%08d" % number))
start = time.perf_counter()
torch.manual_seed(1)
assert sum(int(batch.sum()) for batch in DataLoader(Records(), 64, shuffle=True))
""",
    "tokens": f"""
import numpy as np
rng = np.random.default_rng(1)
start = time.perf_counter()
for _ in range({TOKENS}):
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    for at in rng.integers(len(tokens) - 1025, size=12):
        tokens[at : at + 1025].astype(np.int64)
""",
}
# Programs whose loader sends the order of its samples.
ORDERED = {
    "parts": f"""
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset
class Tokens(Dataset):
    def __init__(self):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
    def __len__(self):
        return (len(self.tokens) - 1) // 1024
    def __getitem__(self, number):
        return torch.from_numpy(self.tokens[1024 * number :][:1025].astype(np.int64))
data = Tokens()
torch.manual_seed(1)
start = time.perf_counter()
for n, batch in zip(range({BATCHES}), DataLoader(data, 12, shuffle=True)):
    batch.sum()
""",
    "rows": f"""
import datasets, torch
from torch.utils.data import DataLoader
data = datasets.Dataset.from_file(path)
torch.manual_seed(1)
start = time.perf_counter()
for n, batch in zip(range({ROW_BATCHES}), DataLoader(data, 16, shuffle=True, collate_fn=list)):
    sum(len(row["image"]) for row in batch)
""",
}
SMALL = """
import os, torch
from torch.utils.data import DataLoader, Dataset
class Folder(Dataset):
    def __init__(self):
        folders = [os.path.join(path, name) for name in sorted(os.listdir(path))]
        self.samples = [os.path.join(f, name) for f in folders for name in sorted(os.listdir(f))]
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, number):
        with open(self.samples[number], "rb") as file:
            return len(file.read())
data = Folder()
start = time.perf_counter()
torch.manual_seed(1)
assert sum(int(batch.sum()) for batch in DataLoader(data, 32, shuffle=True, num_workers=2))
"""
FILES = {
    "safetensors": "w.safetensors",
    "torch": "w.pt",
    "lmdb": "train.lmdb",
    "tokens": "tokens.bin",
    "parts": "parts.bin",
    "rows": "rows.arrow",
}


def main(*parts: str) -> list[Bar]:
    folder = scratch("ahead")
    data = folder / "data"
    _make(data)
    try:
        return [bar for part in parts or PARTS for bar in PARTS[part](folder, data)]
    finally:
        shutil.rmtree(folder)


def _make(data: Path) -> None:
    """Write weights in two formats, an LMDB, and tokens."""
    import lmdb
    import torch
    from safetensors.torch import save_file

    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    state = {f"layer{n}": torch.randn(SIZE_BYTES // TENSORS // 4) for n in range(TENSORS)}
    save_file(state, data / FILES["safetensors"])
    torch.save(state, data / FILES["torch"])
    with lmdb.open(str(data / FILES["lmdb"]), map_size=1 << 32, sync=False, subdir=False) as env:
        with env.begin(write=True) as txn:
            for number in range(RECORDS):
                txn.put(b"%08d" % number, os.urandom(RECORD_BYTES))
        env.sync(True)
    with (data / FILES["tokens"]).open("wb") as file:
        for _ in range(SIZE_BYTES >> 20):
            file.write(os.urandom(1 << 20))


def _timed(folder: Path, name: str, path: Path, is_ahead: bool, is_cold: bool) -> float:
    """Run a program; return the seconds measured by the program."""
    if is_cold:
        evict(path)
    options = ["--ahead", *(["--ahead-limit", ORDER_LIMIT] if name in ORDERED else [])]
    source = BEGIN + (PROGRAMS | ORDERED)[name] + END
    return timed_program(folder, source, path, options if is_ahead else None)


def _pairs(folder: Path, data: Path, name: str, n: int = PAIRS, is_cold: bool = True) -> Pairs:
    def timed(is_ahead: bool) -> Callable[[], float]:
        return lambda: _timed(folder, name, data / FILES[name], is_ahead, is_cold)

    return pairs(timed(False), timed(True), n)


def _faster(what: str, timed_pairs: Pairs, least: float, part: str) -> Bar:
    ratio = 1 / timed_pairs.ratio
    low, high = (1 / bound for bound in reversed(timed_pairs.ratio_spread))
    measured = (
        f"{ratio:.1f}x ({low:.1f} to {high:.1f}): {_s(timed_pairs.off)} → {_s(timed_pairs.on)}"
    )
    return Bar(what, f"≥ {least:g}x", measured, ratio >= least, f"{COMMAND} {part}")


def _s(times: Sequence[float]) -> str:
    return f"{sorted(times)[len(times) // 2]:.2f} s"


def _of_ceiling(what: str, path: Path, timed_pairs: Pairs, part: str) -> Bar:
    evict(path)
    best = max(
        ceiling.bandwidth_bps for ceiling in read_ceiling([path]) if ceiling.order == "sequential"
    )
    reached = path.stat().st_size / sorted(timed_pairs.on)[len(timed_pairs.on) // 2]
    share = reached / best
    measured = f"{share:.2f}: {reached / 1e6:,.0f} of {best / 1e6:,.0f} MB/s"
    bar = f"≥ {LEAST_OF_CEILING}"
    return Bar(what, bar, measured, share >= LEAST_OF_CEILING, f"{COMMAND} {part}")


def _lmdb(folder: Path, data: Path, part: str) -> list[Bar]:
    timed_pairs = _pairs(folder, data, "lmdb")
    path = data / FILES["lmdb"]
    reader = folder / "load_pread.py"
    reader.write_text(BEGIN + PREAD + END)
    evict(path)
    times = []
    for _ in range(PAIRS):
        evict(path)
        times.append(float(output([sys.executable, reader, path])))
    share = sorted(times)[PAIRS // 2] / sorted(timed_pairs.on)[PAIRS // 2]
    return [
        _faster(f"py-lmdb, DataLoader, shuffled, {part}", timed_pairs, 1.0, part),
        Bar(
            "its records against pread of them by 8 threads",
            "≥ 0.95",
            f"{share:.2f}",
            share >= 0.95,
            f"{COMMAND} {part}",
        ),
    ]


# The records' bytes in the shuffled order, by 8 threads: the rate of an index with pread.
PREAD = f"""
import os, random
from concurrent.futures import ThreadPoolExecutor
file = os.open(path, os.O_RDONLY)
os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
places = list(range(0, os.fstat(file).st_size - {RECORD_BYTES}, 102_400))
random.Random(1).shuffle(places)
start = time.perf_counter()
with ThreadPoolExecutor(8) as pool:
    for _ in pool.map(lambda at: os.pread(file, {RECORD_BYTES}, at), places):
        pass
"""


def disk(folder: Path, data: Path) -> list[Bar]:
    bars = []
    for name, words in (("safetensors", "safetensors"), ("torch", "torch.load(mmap=True)")):
        timed_pairs = _pairs(folder, data, name)
        bars.append(
            _faster(f"{words}, {SIZE_BYTES >> 20} MiB, cold disk", timed_pairs, LEAST_DISK, "disk")
        )
    return bars + _lmdb(folder, data, "disk")


def latency(folder: Path, data: Path) -> list[Bar]:
    for path in data.iterdir():
        path.read_bytes()  # the tier's own folder is warm: the disk is not measured
    bars = []
    with slow_tiers.slow(data, bandwidth=2e9, latency_s=places.LATENCY_S) as tier:
        seen = Path(tier.path)
        for name, words in (("safetensors", "safetensors"), ("torch", "torch.load(mmap=True)")):
            timed_pairs = _pairs(folder, seen, name)
            what = f"{words}, {SIZE_BYTES >> 20} MiB, 1 ms a request"
            bars.append(_faster(what, timed_pairs, LEAST_FAR, "latency"))
            path = seen / FILES[name]
            bars.append(_of_ceiling(f"{words}: share of the ceiling", path, timed_pairs, "latency"))
        bars += _lmdb(folder, seen, "latency")
        timed_pairs = _pairs(folder, seen, "tokens")
        bars.append(
            _faster("memmap tokens at random, 1 ms a request", timed_pairs, LEAST_TOKENS, "latency")
        )
    return bars


def order(folder: Path, data: Path) -> list[Bar]:
    """Files larger than the limit: without the order of the loader, nothing could be read."""
    _make_ordered(data)
    bars = []
    with slow_tiers.slow(data, bandwidth=2e9, latency_s=places.LATENCY_S) as tier:
        for name, words in (
            ("parts", "memmap tokens, DataLoader, shuffled"),
            ("rows", "Arrow rows of datasets, DataLoader, shuffled"),
        ):
            timed_pairs = _pairs(folder, Path(tier.path), name)
            what = f"{words}, 1 ms a request, limit {ORDER_LIMIT}"
            bars.append(_faster(what, timed_pairs, LEAST_TOKENS, "order"))
    return bars


def _make_ordered(data: Path) -> None:
    from datasets import Features, Value
    from datasets.arrow_writer import ArrowWriter

    with (data / FILES["parts"]).open("wb") as file:
        file.truncate(4 << 30)  # a hole: the tier answers as slowly
    with ArrowWriter(
        path=str(data / FILES["rows"]),
        features=Features({"image": Value("binary"), "label": Value("int64")}),
        writer_batch_size=100,
    ) as writer:
        for number in range(20_000):
            writer.write({"image": os.urandom(70_000), "label": number})
        writer.finalize()


def small(folder: Path, data: Path) -> list[Bar]:
    """Compare with and without --ahead, and with all files read through the mount before."""
    del data
    behind = folder / "small"
    for number in range(FILES_SMALL):
        file = behind / f"class{number % 10}" / f"{number:05}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(RECORD_BYTES))
    program = folder / "load_small.py"
    program.write_text(BEGIN + SMALL + END)

    def once(latency_s: float, is_ahead: bool, is_ideal: bool = False) -> float:
        with slow_tiers.slow(behind, bandwidth=2e9, latency_s=latency_s) as tier:  # cold each time
            if is_ideal:
                with ThreadPoolExecutor(32) as pool:
                    files = sorted(Path(tier.path).rglob("*.jpg"), key=lambda file: file.name)
                    list(pool.map(Path.read_bytes, files))
            run = folder / "run"
            shutil.rmtree(run, ignore_errors=True)
            command: list[str | Path] = [sys.executable, program, tier.path]
            if is_ahead:
                command = [PENSTOCK, "run", "-q", "--ahead", "-o", run, *command]
            return float(output(command))

    bars = []
    for latency_s, n in ((0.001, PAIRS), (0.01, 1)):
        timed_pairs = pairs(lambda: once(latency_s, False), lambda: once(latency_s, True), n)  # noqa: B023
        what = (
            f"{FILES_SMALL} files of 100 KB, shuffled, 2 workers, {latency_s * 1e3:g} ms a request"
        )
        bars.append(_faster(what, timed_pairs, LEAST_SMALL, "small"))
        ideal_s, ahead_s = once(latency_s, False, True), sorted(timed_pairs.on)[n // 2]
        share = ideal_s / ahead_s
        measured = f"{share:.2f}: {ideal_s:.2f} s with all files in memory before"
        bar = f"≥ {LEAST_OF_IDEAL}"
        what = f"{latency_s * 1e3:g} ms: share of ideal read-ahead"
        bars.append(Bar(what, bar, measured, share >= LEAST_OF_IDEAL, f"{COMMAND} small"))
    shutil.rmtree(behind)
    return bars


def warm(folder: Path, data: Path) -> list[Bar]:
    """Both under `penstock run`: the difference is --ahead alone."""
    path = data / FILES["safetensors"]
    path.read_bytes()
    program = folder / "load_safetensors.py"
    program.write_text(BEGIN + PROGRAMS["safetensors"] + END)
    run = folder / "run"

    def timed(*options: str) -> Callable[[], float]:
        def once() -> float:
            shutil.rmtree(run, ignore_errors=True)
            words = [PENSTOCK, "run", "-q", *options, "-o", run, sys.executable, program, path]
            return float(output(words))

        return once

    timed_pairs = pairs(timed(), timed("--ahead"), WARM_PAIRS)
    facts = json.loads((run / "run.json").read_text())
    low, high = timed_pairs.ratio_spread
    measured = f"{timed_pairs.ratio:.3f} ({low:.3f} to {high:.3f})"
    assert not facts.get("ahead", {}).get("files"), "the file was not in memory"
    is_met = timed_pairs.ratio <= MOST_WARM
    what = "safetensors in memory, with --ahead / without"
    return [Bar(what, f"≤ {MOST_WARM}", measured, is_met, f"{COMMAND} warm")]


PARTS: dict[str, Callable[[Path, Path], list[Bar]]] = {
    "disk": disk,
    "latency": latency,
    "order": order,
    "small": small,
    "warm": warm,
}

if __name__ == "__main__":
    report(main(*sys.argv[1:]))
