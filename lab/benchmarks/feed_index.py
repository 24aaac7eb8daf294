"""The time for indexing an LMDB, in memory and not, beside py-lmdb's listing of the keys.

    python lab/benchmarks/feed_index.py [RECORDS]      default: a million

Each measurement is a separate process.  Cold is cold: pages that stay in memory after the eviction
are counted, and a measurement of a warm file is refused.
"""

import json
import os
import random
import statistics
import subprocess
import sys
from pathlib import Path

from bars import Bar, report, scratch

from penstock.places import tiers

COMMAND = "python lab/benchmarks/feed_index.py"
RECORDS = 1_000_000
REPEATS = 5
BATCH = 50_000
WARM_S, COLD_S = 2.0, 5.0  # permitted time of a job before the first record

OURS = """
import json, sys, time
from penstock.feed.index import open_index
start_s = time.perf_counter()
n = len(open_index(sys.argv[1], cache=False))
print(json.dumps([n, time.perf_counter() - start_s]))
"""
THEIRS = """
import json, sys, time
import lmdb
start_s = time.perf_counter()
with lmdb.open(sys.argv[1], readonly=True, lock=False, readahead=False) as env:
    with env.begin() as txn:
        n = sum(1 for _ in txn.cursor().iternext(values=False))
print(json.dumps([n, time.perf_counter() - start_s]))
"""


def main(n: int = RECORDS) -> list[Bar]:
    inside = _made("inside", n, 100)  # values in the leaves: the whole file is read
    behind = _made("behind", n // 4, 3073)  # a separate page for each value
    bars = []
    for folder, what in (
        (inside, f"index {n:,} records of 100 B"),
        (behind, f"index {n // 4:,} records of 3,073 B"),
    ):
        for is_cold, limit in ((False, WARM_S), (True, COLD_S)):
            ours = [_measured(OURS, folder, is_cold) for _ in range(REPEATS)]
            # A single cold listing suffices: the listing is not our measurement, and may take a
            # minute.
            theirs = [_measured(THEIRS, folder, is_cold) for _ in range(1 if is_cold else REPEATS)]
            took, beside = statistics.median(ours), statistics.median(theirs)
            state = "cold" if is_cold else "in memory"
            bars.append(
                Bar(
                    f"{what}, {state}",
                    f"≤ {limit:g} s",
                    f"{took:.2f} s; py-lmdb lists the keys in {beside:.2f} s",
                    took <= limit,
                    COMMAND,
                )
            )
    return bars


def _made(name: str, n: int, record_bytes: int) -> Path:
    import lmdb

    folder = scratch(f"feed-index-{name}-{n}")
    if (folder / "complete").exists():
        return folder
    pool = random.Random(7).randbytes(1 << 20)
    with lmdb.open(str(folder), map_size=n * (record_bytes + 4096) * 2, sync=False) as env:
        for start in range(0, n, BATCH):
            places = (
                (number, number * 7919 % (len(pool) - record_bytes))
                for number in range(start, min(n, start + BATCH))
            )
            with env.begin(write=True) as txn:
                txn.cursor().putmulti(
                    [(b"%08d" % number, pool[at : at + record_bytes]) for number, at in places],
                    append=True,
                )
        env.sync(True)
    (folder / "complete").touch()
    return folder


def _measured(program: str, folder: Path, is_cold: bool) -> float:
    data = folder / "data.mdb"
    if is_cold:
        tiers.evict(data)
        warmth = tiers.warmth_of([data])
        if not warmth.is_cold:
            raise SystemExit(f"{data} is not cold: {warmth.why_not_cold}")
    else:
        data.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", program, folder],
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    n, seconds = json.loads(done.stdout)
    print(f"{folder.name} {'cold' if is_cold else 'warm'} {n} {seconds:.3f} s", file=sys.stderr)
    return float(seconds)


if __name__ == "__main__":
    report(main(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS))
