"""Runs every benchmark and writes docs/performance.md from this one run: `make bench`."""

import importlib
from datetime import UTC, datetime

from bars import ROOT, Bar, machine, report

BENCHMARKS = ("overhead", "dataloader", "attach", "counts", "imports", "reading", "watch")

PREFACE = """# Performance

Written by `make bench` from one run on one machine; `missed` stands here as plainly as `met`.

Machine: {machine}.
Run on {day}.  A difference is the median of paired differences, its range the quartiles: the
command with the recorder and the one without alternate, and each is compared with its neighbours
in time.  What is read is hot and in memory, which is the recorder's worst case: on a real disk the
nanoseconds stay and the ratios shrink.

| what | bar | measured | | command |
| --- | --- | --- | --- | --- |
"""

REASONS = """
What is missed, and why:

- A pread costs two readings of the processor's counter (17 ns), two dozen stores, and its share of
  writing full blocks to the log's file (10 to 14 ns of the kernel). By processor time it adds
  32 to 34 ns where the call itself does nothing; beside a copy of 4 KiB, which pushes the block out
  of the cache, 39 to 52 ns were measured on this machine from run to run.
- Of open + read + close, about 130 ns is one cache miss in the table of paths, which 20,000 files
  spread over half a megabyte; the three events themselves are some 45 ns each.
- An event is 32 bytes; names of files and the heads of blocks make the rest.
- The two-worker epoch is within the machine's noise, which is larger than the bar: two workers and
  the main process share two cores. `only reading` is a loader that does nothing with what it reads.
"""


def main() -> None:
    bars: list[Bar] = []
    here = machine()
    for name in BENCHMARKS:
        found = importlib.import_module(name).main()
        report(found)
        bars += found
    text = PREFACE.format(machine=here, day=datetime.now(UTC).date())
    for bar in bars:
        verdict = {True: "met", False: "**missed**", None: ""}[bar.is_met]
        text += f"| {bar.what} | {bar.bar} | {bar.measured} | {verdict} | `{bar.command}` |\n"
    (ROOT / "docs" / "performance.md").write_text(text + REASONS)


if __name__ == "__main__":
    main()
