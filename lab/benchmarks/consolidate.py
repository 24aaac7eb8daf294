"""Time, size and memory for turning the logs of a large run into tables.

    python lab/benchmarks/consolidate.py [--events 50000000] [--logs 4] [--repeats 3] [--folder DIR]
        [--page FILE]

Writes synthetic logs (a training job of small files: open, fstat, read, empty read and close of
100,000 files in random order), opens the run in a separate process, and prints the least and the
median of the repeats.  Needs 50 bytes of disk an event; removes the logs at the end.  The logs are
in the page cache if memory suffices.
"""

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from logwriter import Process, block_head, header_page  # noqa: E402  tests/ is no package
from penstock.log import layout  # noqa: E402
from penstock.log import texts as of_texts  # noqa: E402
from penstock.log.layout import OPS  # noqa: E402

FILES = 100_000
TICKS_PER_NS = 2.5
SAMPLE = ("open", "fstat", "read", "read", "close")
UNITS_AT_ONCE = 256
REPORT_RUN = """
import resource, sys, time
begin = time.perf_counter()
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.runs.run import open_run
from penstock.views import terminal
with open_run(sys.argv[1]) as run:
    assert terminal.render(report_of(measure(run)), width=100, color=False)
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""
WRITE_PAGE = """
import resource, sys, time
begin = time.perf_counter()
from pathlib import Path
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.runs.run import open_run
from penstock.views import html
with open_run(sys.argv[1]) as run:
    page = html.render(report_of(measure(run)), html.chart_library())
Path(sys.argv[2]).write_text(page)
print(time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""
OPEN_RUN = """
import sys
from penstock.runs.run import open_run
with open_run(sys.argv[1]) as run:
    (answer,) = run.sql("SELECT count(*), count(step), sum(moved_bytes) FROM events")
    print(*answer)
"""


def events(first: int, count: int, random: np.random.Generator) -> np.ndarray:
    """Return count events in order of time, as in the log, all in one block that begins at 0."""
    number = {op.name: op.number for op in OPS}
    sample, part = np.divmod(np.arange(first, first + count), len(SAMPLE))
    chosen = (sample * 2654435761 >> 7) % FILES  # every event of a sample finds the same file
    size = (chosen * 40503 % 190_000 + 10_000).astype(np.uint64)  # 10 to 200 kB, fixed for a file
    file = (chosen + 1).astype(np.uint64)
    duration = (random.lognormal(8.5, 1.0, count)).astype(np.uint64) + np.uint64(1)  # about 2 µs
    gaps = random.lognormal(8.0, 1.0, count).astype(np.uint64)
    op = np.array([number[name] for name in SAMPLE], np.uint64)[part]
    is_read, is_empty = part == 2, part == 3
    rows = np.zeros(count, layout.EVENT)
    rows["begun"] = np.cumsum(duration + gaps) << np.uint64(24) | op << np.uint64(16)
    rows["begun"] |= file & np.uint64(0xFFFF)
    rows["done"] = duration << np.uint64(24) | file >> np.uint64(16)
    rows["offset"] = np.where(is_read, 0, np.where(is_empty, size.astype(np.int64), -1))
    rows["asked"] = np.where(is_read | is_empty, size + np.uint64(1), np.uint64(0))
    rows["moved"] = np.where(is_read, size, np.uint64(0))
    return rows


def write_log(folder: Path, pid: int, count: int) -> None:
    """Write a worker's log, or with pid 100 the log of the main process, with steps."""
    random = np.random.default_rng(pid)
    process = Process(pid=pid, ppid=1 if pid == 100 else 100, ticks_per_ns=TICKS_PER_NS)
    for i in range(FILES):
        process.file(f"/data/train/class{i % 1000:04}/image_{i:07}.jpg")
    if pid == 100:
        for step in range(20_000):
            process.step(step, step * 10_000_000, 9_000_000)
    head = process.bytes()
    each = layout.EVENTS_PER_UNIT
    with open(folder / f"host.{pid}.1.events", "wb") as file:
        file.write(head)
        start, done = process.start_ticks, 0
        while done < count:
            n = min(count - done, UNITS_AT_ONCE * each)
            rows = events(done, n, random)
            end = start + int(rows["begun"][-1] >> np.uint64(24))
            units = np.zeros((-(-n // each), of_texts.UNIT_BYTES), np.uint8)
            for i, unit in enumerate(units):
                part = rows[i * each : (i + 1) * each]
                since_start = part["begun"][0] >> np.uint64(24)
                part["begun"] -= since_start << np.uint64(24)
                block = block_head(
                    kind=of_texts.EVENTS_BLOCK,
                    round=1_000_000 + done + i,
                    used=len(part),
                    limit=each,
                    texts=of_texts.UNIT_BYTES,
                    thread=1,
                    tid=pid,
                    first=start + int(since_start),
                    name=b"python",
                )
                unit[:64] = np.frombuffer(block, np.uint8)
                unit[64 : 64 + part.nbytes] = part.view(np.uint8)
            file.write(units)
            start, done = end, done + n
        units_written = (file.tell() - of_texts.HEADER_BYTES) // of_texts.UNIT_BYTES
        file.seek(0)
        last = {"last_ticks": start, "last_ns": round(5e9 + (start - 5e9) / TICKS_PER_NS)}
        file.write(
            header_page(
                pid=pid,
                ppid=process.ppid,
                clock="tsc",
                ticks_per_s=round(1e9 * TICKS_PER_NS),
                units=units_written,
                **last,
            )
        )


def bytes_below(folder: Path, pattern: str) -> int:
    return sum(path.stat().st_size for path in folder.glob(pattern))


def said(program: str, *arguments: Path) -> list[str]:
    """Return the words that a program in a separate process prints about the run."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment
    ).stdout.split()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--events", type=int, default=50_000_000)
    parser.add_argument("--logs", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where 50 bytes an event fit")
    parser.add_argument("--page", type=Path, help="the report as a page, timed too and left here")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="consolidate-", dir=args.folder))
    try:
        for i in range(args.logs):
            write_log(folder, 100 + i, args.events // args.logs)
        raw = bytes_below(folder, "*.events")
        times, cpu = [], []
        for _ in range(args.repeats):
            shutil.rmtree(folder / "tables", ignore_errors=True)
            begin, spent = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            answer = said(OPEN_RUN, folder)
            times.append(time.perf_counter() - begin)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu.append(after.ru_utime + after.ru_stime - spent.ru_utime - spent.ru_stime)
        tables = bytes_below(folder, "tables/events/*.parquet")
        n = int(answer[0])
        least, median = min(times), statistics.median(times)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        print(f"events      {n:,} in {args.logs} logs; {int(answer[1]):,} in a step")
        print(f"cores       {len(os.sched_getaffinity(0))}")
        print(f"time        {least:.1f} s least, {median:.1f} s median of {args.repeats}")
        print(f"            {least / n * 1e9:.0f} ns an event; {min(cpu):.1f} s of processors")
        print(f"raw         {raw / n:.1f} B an event")
        print(f"Parquet     {tables / n:.2f} B an event")
        print(f"memory      {peak:.2f} GB at most")
        reports = [tuple(map(float, said(REPORT_RUN, folder))) for _ in range(args.repeats)]
        print(f"report      {statistics.median(time_s for time_s, _ in reports):.1f} s median,")
        print(f"            in {max(gb for _, gb in reports):.2f} GB")
        if args.page:
            time_s, gb = map(float, said(WRITE_PAGE, folder, args.page))
            print(f"page        {time_s:.1f} s, in {gb:.2f} GB, {args.page.stat().st_size} bytes")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
