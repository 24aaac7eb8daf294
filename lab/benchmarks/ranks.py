"""A job of ten thousand ranks: time and memory of the report, from the reduced logs of the ranks.

The logs are synthetic (tests/logwriter.py): each rank takes 40 steps, waits for each batch, saves
once and reads private and common files.  The bars: a report in 60 s and 2 GB.  A number of ranks as
argument makes a smaller trial.
"""

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import duckdb
from bars import PENSTOCK, ROOT, Bar, report, scratch

sys.path.insert(0, str(ROOT / "tests"))
import logwriter

RANKS = 10_000
STEPS = 40
MS = 1_000_000
WALL_S, MEMORY_BYTES = 60.0, 2e9


@dataclass(frozen=True, slots=True)
class RankCost:
    """The resources of a command: seconds, and the largest process' memory in bytes."""

    s: float
    memory_bytes: int


def main(n: int = RANKS) -> list[Bar]:
    with tempfile.TemporaryDirectory(dir=scratch("ranks")) as place:
        return measured(Path(place), n)


def measured(place: Path, n: int) -> list[Bar]:
    run = place / "run"
    write_logs(run, n)
    reduced = place / "one.reduced"
    first = alone(place, run)
    by_one = took([PENSTOCK, "reduce", first, "-o", reduced])
    pieces = copies(reduced, place / "pieces", n)
    merged, whole = place / "merged.reduced", place / "whole.reduced"
    merging = took([PENSTOCK, "reduce", *pieces, "-o", merged])
    showing = took([PENSTOCK, "report", merged])
    from_logs = took([PENSTOCK, "reduce", run, "-o", whole])
    command = "python lab/benchmarks/ranks.py"
    both_s, most = merging.s + showing.s, max(merging.memory_bytes, showing.memory_bytes)
    subject = f"{n:,} ranks"
    return [
        Bar(f"{subject}: their reduced files merged, and the report", f"≤ {WALL_S:.0f} s",
            f"{both_s:.1f} s", both_s <= WALL_S if n == RANKS else None, command),
        Bar(f"{subject}: memory of that", "≤ 2 GB", f"{most / 1e9:.2f} GB",
            most <= MEMORY_BYTES if n == RANKS else None, command),
        Bar(f"for comparison, {subject} in one file", "–", f"{merged.stat().st_size / 1e6:.1f} MB",
            None, command),
        Bar("for comparison, one rank reducing its own log", "–",
            f"{by_one.s:.2f} s, {by_one.memory_bytes / 1e6:.0f} MB", None, command),
        Bar(f"for comparison, {subject} reduced from their logs by one process", "–",
            f"{from_logs.s:.0f} s, {from_logs.memory_bytes / 1e9:.2f} GB", None, command),
    ]  # fmt: skip


def write_logs(run: Path, n: int) -> None:
    run.mkdir(parents=True)
    for rank in range(n):
        node = rank // 8
        process = logwriter.Process(
            pid=100 + rank % 8,
            unix_s=1e-4 * node,
            header={"rank": rank, "local_rank": rank % 8, "world_size": n,
                    "host": f"node{node}".encode(), "boot_id": node.to_bytes(16, "big")},
        )  # fmt: skip
        process.span("loader", 0, 9000 * MS, 1, 0, 8)
        at = 10 * MS
        for step in range(STEPS):
            wait_ns = (5 + rank % 7) * MS
            process.span("data wait", at, wait_ns, step, 1, 1000)
            process.span("fetch", at + 100, wait_ns - 200, step, 1, MS)
            for path in (f"/data/own-{rank}-{step % 10}", f"/data/common-{step % 10}"):
                process.file(path, mode=0o100644, inode=1, size=1 << 20)
                process.call("read", at + 200, wait_ns // 3, path, asked=1 << 20, moved=1 << 20)
                at += wait_ns // 2
            process.step(step, at, 100 * MS, b=1)
            at += 100 * MS
        process.span("checkpoint", at, 50 * MS, 0)
        path = run / f"node{node}.{100 + rank % 8}.1.events"
        path.write_bytes(process.bytes())


def alone(place: Path, run: Path) -> Path:
    """A run of the first rank."""
    folder = place / "first"
    folder.mkdir()
    (folder / "node0.100.1.events").symlink_to(run / "node0.100.1.events")
    return folder


def copies(reduced: Path, place: Path, n: int) -> list[Path]:
    """Make the files of further ranks: copies of the first rank's with other ranks, hosts and
    names."""
    place.mkdir()
    files = []
    with duckdb.connect() as engine:
        engine.execute(f"CREATE TABLE one AS FROM read_parquet('{reduced}')")
        for rank in range(n):
            files.append(place / f"{rank}.reduced")
            engine.execute(
                "COPY (SELECT * REPLACE (replace(name, 'own-0', ?) AS name) FROM"
                " (SELECT * REPLACE (CASE WHEN rank IS NOT NULL THEN ? END AS rank,"
                " CASE WHEN rank IS NOT NULL THEN ? ELSE host END AS host,"
                " CASE WHEN rank IS NOT NULL THEN ? ELSE name END AS name) FROM one))"
                f" TO '{files[-1]}' (FORMAT parquet, COMPRESSION zstd)",
                [f"own-{rank}", rank, f"node{rank // 8}", f"rank {rank}"],
            )
    return files


def took(command: list[str | Path]) -> RankCost:
    begun_s = time.monotonic()
    process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[:3]} ended with {status}")
    return RankCost(time.monotonic() - begun_s, usage.ru_maxrss * 1024)


if __name__ == "__main__":
    report(main(*map(int, sys.argv[1:])))
