"""Page faults of mapped files: how many are seen, of which file, and the cost of a fault.

    python lab/benchmarks/faults.py          SIZE_MB=100 for a smaller LMDB

The LMDB is cold, and its records are read in random order without read-ahead: a major fault for
each page.  The truth is the system's count for the program (getrusage).
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from bars import PENSTOCK, Bar, output, pairs, report, scratch

from penstock.runs.run import open_run

__all__ = ["main"]

COMMAND = "python lab/benchmarks/faults.py"
SIZE_BYTES = int(os.environ.get("SIZE_MB", "500")) * 10**6
RECORD_BYTES = 100_000
PAIRS = 15
ROUNDS = 4  # over 64 MB: 65,536 faults
FORKS = 500
MOST_FAULT_NS = 1000
LEAST_ATTRIBUTED = 0.99
MOST_OFF = 0.01

READ = """
import json, lmdb, os, random, resource, sys, time
before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
env = lmdb.open(sys.argv[1], readonly=True, lock=False, readahead=False)
with env.begin() as txn:
    keys = list(txn.cursor().iternext(values=False))
    random.Random(1).shuffle(keys)
    for key in keys:
        txn.get(key)
    spent, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
json.dump([after.ru_majflt, after.ru_majflt - before.ru_majflt, spent], open(sys.argv[2], "w"))
"""


def main() -> list[Bar]:
    folder = scratch("faults")
    data = folder / "lmdb"
    _make(data)
    try:
        return [*_counted(folder, data), *_cost(folder)]
    finally:
        shutil.rmtree(folder)


def _make(data: Path) -> None:
    import lmdb

    shutil.rmtree(data, ignore_errors=True)
    with lmdb.open(str(data), map_size=2 * SIZE_BYTES, sync=False) as env:
        for first in range(0, SIZE_BYTES // RECORD_BYTES, 100):
            with env.begin(write=True) as txn:
                for number in range(first, first + 100):
                    txn.put(b"%08d" % number, os.urandom(RECORD_BYTES), append=True)
        env.sync(True)


def _counted(folder: Path, data: Path) -> list[Bar]:
    with open(data / "data.mdb", "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    run, truth = folder / "run", folder / "truth"
    shutil.rmtree(run, ignore_errors=True)
    output([PENSTOCK, "run", "-q", "-o", run, sys.executable, "-c", READ, data, truth])
    major, of_lmdb, spent_s = json.loads(truth.read_text())
    with open_run(run) as opened:
        ((seen, of_file, file_s, kept),) = opened.sql(
            "SELECT sum(major)::BIGINT, (sum(major) FILTER (path LIKE '%/data.mdb'))::BIGINT,"
            " sum(major_ns + waited_ns) FILTER (path LIKE '%/data.mdb') / 1e9, sum(kept)::BIGINT"
            " FROM fault_counts WHERE process = 0"
        )
        lost = opened.sql("SELECT value FROM notes WHERE key = 'page faults lost'")
    off, attributed = abs(seen - major) / major, of_file / of_lmdb
    size = f"{SIZE_BYTES / 1e6:.0f} MB"
    sentence = f"{seen:,} of {major:,}, {lost[0][0] if lost else 0} lost, {kept:,} kept singly"
    return [
        Bar(
            f"major faults of a cold LMDB of {size}, against getrusage",
            f"within {MOST_OFF:.0%}",
            f"{off:.2%} off: {sentence}",
            off <= MOST_OFF,
            COMMAND,
        ),
        Bar(
            "of the faults while reading, attributed to the LMDB's file",
            f"≥ {LEAST_ATTRIBUTED:.0%}",
            f"{attributed:.2%}",
            LEAST_ATTRIBUTED <= attributed <= 2 - LEAST_ATTRIBUTED,  # more would be others' faults
            COMMAND,
        ),
        Bar(
            "time in these faults, of the time that reading took",
            "",
            f"{file_s:.2f} s of {spent_s:.2f} s",
            None,
            COMMAND,
        ),
    ]


def _cost(folder: Path) -> list[Bar]:
    """Measure the sampler alone: a program without and with the sampler; no recorder in either."""
    program, warm = folder / "program", folder / "warm"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-Wall", "-o", program, source], check=True)
    warm.write_bytes(os.urandom(64 << 20))
    beside = (
        "import subprocess, sys, tempfile\n"
        "from pathlib import Path\n"
        "from penstock.recording.beside import PageFaultWatch\n"
        "with tempfile.TemporaryDirectory(dir=sys.argv[1]) as folder:\n"
        "    with PageFaultWatch(Path(folder)) as faults:\n"
        "        subprocess.run(sys.argv[2:], check=True)\n"
        "    assert faults.state == 'measured', faults.state\n"
    )
    bars = []
    for what, bar_ns, arguments in (
        ("a page fault that finds its page in memory", MOST_FAULT_NS, [warm, ROUNDS]),
        ("a fork, an exit and a wait", None, ["forks", FORKS]),
    ):
        command = [program, *arguments]
        sampled = [sys.executable, "-c", beside, folder, *command]
        measured = pairs(
            lambda command=command: float(output(command)),
            lambda sampled=sampled: float(output(sampled)),
            PAIRS,
        )
        low, high = measured.spread
        bars.append(
            Bar(
                f"{what}, sampled",
                "" if bar_ns is None else f"≤ +{bar_ns:,} ns",
                f"+{measured.difference:,.0f} ns ({low:,.0f} to {high:,.0f}) "
                f"on {min(measured.off):,.0f}",
                None if bar_ns is None else measured.difference <= bar_ns,
                COMMAND,
            )
        )
    return bars


if __name__ == "__main__":
    report(main())
