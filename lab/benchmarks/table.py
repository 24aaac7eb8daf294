"""Runs the benchmarks and writes docs/performance.md: `make bench`.

    python lab/benchmarks/table.py  all benchmarks: an hour or two, on a quiet machine
    python lab/benchmarks/table.py overhead reading   only these; other sections stay
    python lab/benchmarks/table.py feed feed:hot      all parts of a benchmark, or a single part

The measurements lie in docs/performance.json, a section for each benchmark with machine and day;
the page is made from the file.
"""

import importlib
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime

from bars import ROOT, Bar, machine, report
from peers import compared, versions

RESULTS = ROOT / "docs" / "performance.json"
PAGE = ROOT / "docs" / "performance.md"

BENCHMARKS = {
    "overhead": "What a recorded call costs",
    "waits": "What a call that could block costs",
    "network": "What a call on a connection costs",
    "dataloader": "What a recorded training costs",
    "attach": "What a window costs to open and close",
    "counts": "Counts, against strace",
    "imports": "What the command line costs",
    "reading": "Fifty million events",
    "views": "Reports and exports",
    "watch": "Watching a run",
    "ranks": "Ten thousand ranks",
    "faults": "Page faults of mapped files",
    "ahead:disk": "Mapped files read ahead: the disk",
    "ahead:latency": "Mapped files read ahead: storage with 1 ms latency",
    "ahead:order": "Mapped files read in the order of a loader: storage with 1 ms latency",
    "ahead:small": "Small files read ahead: storage with 1 and 10 ms latency",
    "ahead:warm": "Mapped files read ahead: data in memory",
    "redirect": "Staged files: what an open costs",
    "feed_index": "Feed: the index",
    "feed:disk": "Feed: reading from the disk",
    "feed:processes": "Feed: many processes on the disk",
    "feed:hot": "Feed: data in memory",
    "feed:throttled": "Feed: a volume of 200 MB/s and 2,000 requests a second",
    "feed:latency": "Feed: storage with 1 ms latency",
    "feed:memory": "Feed: data of four times the memory",
    "feed:counts": "Feed: bytes from the device, and memory",
    "feed:others": "Feed: files, tar and TFRecord",
    "feed_parquet": "Feed: rows of Parquet, in memory and over S3",
    "feed_training": "Feed: a training on slow storage",
    "stage:imagenet": "Stage: an ImageNet-like data set",
    "stage:malware": "Stage: a malware-like data set",
    "stage:mixed": "Stage: small and large files",
    "stage:tf-darshan": "Stage: tf-Darshan's malware case",
    "stage:copy": "Stage: copying",
    "stage:million": "Stage: choosing",
    "stage:fill": "Stage: filling while a job reads",
    "save": "Save: verify and drain",
    "checkpointer": "Save: the block and the time to durable",
    "checkpointer_training": "Save: beside a training",
    "small_files:drain": "Save: many small files, drained",
    "small_files:folder": "Save: a folder of many small files, drained",
    "small_files:write": "Save: many small files, written",
}

PREFACE = """# Performance

Written by `make bench`; `missed` stands here as plainly as `met`. Each section is one run on one
machine that did nothing else. The sections on calls that could block, on the command line, on
many small files and on Parquet ran beside other programs: the first measures CPU time, as does the
second but for `import penstock`; of the last two the ratios count.

A difference is the median of paired differences, its range the quartiles: the command with the
recorder and the one without alternate, and each is compared with its neighbours in time. What the
recorder's benchmarks read is hot and in memory, which is its worst case: on a real disk the
nanoseconds stay and the ratios shrink.

A ratio of the feed's lines is the median of the pairs' ratios, so it is not the quotient of the two
medians that stand beside it.
"""

REASONS = """
## What is missed, and why

- With every core busy, a save costs a quarter of a blocking torch.save + fsync until it is on the
  fast tier, and with the drain beside the steps (a copy to the slow tier, checksummed and read
  back, at 200 MB/s) about as much as the other's whole save, which is on one tier then: ×0.2 to
  ×1.07 in six runs of 2026-11-25, ×2.08 before the drain read past the page cache. Modes are
  chosen by the part up to the fast tier: the drain is there in either.
- A pread costs two readings of the processor's counter (17 ns), two dozen stores, and its share of
  writing full blocks to the log's file (10 to 14 ns of the kernel). By processor time it adds
  32 to 34 ns where the call itself does nothing; beside a copy of 4 KiB, which pushes the block out
  of the cache, the same binary added 39 to 52 ns on one virtual machine and 65 to 150 ns on
  others of the same kind, whose bare call took longer too.
- Of open + read + close, about 130 ns is one cache miss in the table of paths, which 20,000 files
  spread over half a megabyte; the three events themselves are some 45 ns each.
- dftracer keeps every call, as Penstock does, Darshan counters of each file, here with room for
  all of them. Their rows stand where they are installed: dftracer comes with `make bench`;
  Darshan's runtime is built from its source, without MPI, and found by its `darshan-config`.
- A two-worker epoch lies within the noise of two cores that two workers and the main process
  share: x0.975, x0.955 and x1.019 in three runs. `only reading` is a loader that does nothing with
  what it reads.
- Of the demonstration's 58,510 events nine in ten are the imports of torch; half of the report's
  second is the start of Python, DuckDB and NumPy and the making of tables.
- Small files were measured under load: the ratios within a round count, and scatter. The drain
  makes about 40 system calls per file (three leases, the copy, its reading back from the device, an
  exchange of names, the removal of the link, of the file and of the note on the tier), `cp -r` 11;
  a quarter of the CPU time is the interpreter's. Creating a file, exchanging two names and removing
  a link change the folder three times where `cp` changes it once, and hold its lock: more threads
  only wait for each other. Of 73 µs of CPU per file, on an empty ext4, 12 µs are for removing three
  names, 12 µs for five opens (5 µs of these for making the copy), 6 µs for the exchange, 5 µs for
  reading four links, 4 µs for lists of folders, 3 µs for dropping and reading ahead the copy's
  pages, and 18 µs are the interpreter's; `cp -r` takes 14 µs in all. A program under the burst
  buffer makes a file and two links for each new file. On an empty ext4 with the tier in memory this
  takes 24 µs of CPU, the plain file 13 µs and the plain file under `penstock run` 16.5 µs: the link
  at the path takes as long as a plain file, and the recorder takes three quarters of what the bar
  allows in addition. The rest is the file on the tier, the link to its path (3 µs each) and two
  questions for paths to /proc/self/fd (1.5 µs each). On an ext4 without a journal in which files
  were removed in the last minutes, a plain file takes 34 to 95 µs, and the ratio says little. Both
  bars need one entry on the tier per folder instead of one per file: a link in the place of a new
  folder. That was not built. `..` below such a link, a program's current folder and its descriptors
  of the folder lead to the tier, and no lease shows the drain that a program is about to make a
  file through them.
- Rows of Parquet in memory: RowFeed reads column chunks into memory of its own, where pyarrow maps
  the file, and holds windows of 50 MB, where pyarrow's reader has one row group of 2 MB in the
  processor's cache. Mixing the rows of a window is what shuffling adds: taking the rows batch by
  batch from one chunk is 1.6 times as fast as mixing a whole window (six pairs under load).
  pyarrow.dataset reads in the order of the files, without mixing, and several files at once; over
  S3 the shuffled feed is bound by the processor, not by requests, on two busy cores.
- What has no figure yet was not run on a quiet machine: a number taken under load says nothing.
- A line's machine is that of its day. On 2026-11-22 the same machine took twice as long as on
  2026-11-20 for any work of a processor (a report, an import, a loop); a line says how long a loop
  took. What is bound by the processor is slower by that beside a device that is not, as are
  the processor's time a record and 3 KB in block order.
- On the throttled volume three times py-lmdb with its read-ahead cannot be: the volume itself is
  2.9 times as fast as that.
- A copy of a record goes to memory of its own until its batch is over. py-lmdb's copies, of which
  each is gone before the next one comes, stay in the processor's cache; held for a batch, as a
  batch iterator's are, they are slower than Feed's, but for 3 KB in order. What is looked at in
  full is bound by memory; what is not, `mapped=True` gives sooner than py-lmdb gives views.
"""


def main(names: list[str]) -> None:
    asked = [benchmark for name in names for benchmark in BENCHMARKS if is_asked(benchmark, name)]
    unknown = [
        name for name in names if not any(is_asked(benchmark, name) for benchmark in BENCHMARKS)
    ]
    if unknown:
        raise SystemExit(f"{', '.join(unknown)}: no such benchmark; known: {', '.join(BENCHMARKS)}")
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for name in asked or BENCHMARKS:
        here = machine()
        module, _, part = name.partition(":")
        bars = importlib.import_module(module).main(*([part] if part else []))
        report(bars)
        day = str(datetime.now(UTC).date())
        results[name] = {
            "machine": here, "day": day, "peers": versions(name),
            "bars": [asdict(bar) for bar in bars],
        }  # fmt: skip
        # Kept at once: a later failure does not lose an hour of results.
        RESULTS.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        PAGE.write_text(page(results))


def is_asked(benchmark: str, name: str) -> bool:
    return name in (benchmark, benchmark.partition(":")[0])


def page(results: dict[str, dict]) -> str:
    sections = [PREFACE]
    for name, title in BENCHMARKS.items():
        if name not in results:
            sections.append(
                f"\n## {title}\n\nNot measured yet: `python lab/benchmarks/table.py {name}`.\n"
            )
            continue
        result = results[name]
        beside = compared(name, result.get("peers", {}))
        said = [f"{result['machine']}. {result['day']}.", *([beside] if beside else [])]
        sections.append(f"\n## {title}\n\n{' '.join(said)}\n\n")
        sections.append("| what | bar | measured | | command |\n| --- | --- | --- | --- | --- |\n")
        for bar in (Bar(**kept) for kept in result["bars"]):
            verdict = {True: "met", False: "**missed**", None: ""}[bar.is_met]
            sections.append(
                f"| {bar.what} | {bar.bar} | {bar.measured} | {verdict} | `{bar.command}` |\n"
            )
    return "".join(sections) + REASONS


if __name__ == "__main__":
    main(sys.argv[1:])
