"""The cost of watching for the job: a training beside `penstock watch`, and without.

Both runs are recorded; the job's own clock measures the steps.  The bar is of issue 3: < 0.1 %. The
watcher's CPU time is reported besides: where the job uses every core, the job loses the time.
"""

import subprocess
import sys
import time

from bars import Bar, Pairs, output, pairs, report, scratch

PAIRS = 15
BAR = 0.001
SAID = {"cpu_s": 0.0, "wall_s": 0.0}

JOB = """
import os, sys, time, threading
import penstock
path = sys.argv[1]
open(path, "wb").write(bytes(1 << 20))
fd = os.open(path, os.O_RDONLY)
def work(n):
    x = 0
    for i in range(n):
        x += i * i
    return x
begun = time.perf_counter()
for step in range(600):
    with penstock.step():
        for n in range(100):
            os.pread(fd, 4096, 4096 * n)
        work(100_000)
print(time.perf_counter() - begun)
"""


def main() -> list[Bar]:
    measured: Pairs = pairs(lambda: run_s(False), lambda: run_s(True), PAIRS)
    share = measured.ratio - 1
    low, high = measured.spread
    mean = sum(measured.off) / len(measured.off)
    cpu = SAID["cpu_s"] / SAID["wall_s"]
    return [
        Bar(
            what="a training beside `penstock watch`",
            bar=f"< {BAR:.1%}",
            measured=f"{share:+.2%} ({low / mean:+.2%} to {high / mean:+.2%})",
            is_met=share < BAR,
            command="python lab/benchmarks/watch.py",
        ),
        Bar(
            what="for comparison, the watch itself, of one core",
            bar="–",
            measured=f"{cpu:.1%}",
            is_met=None,
            command="python lab/benchmarks/watch.py",
        ),
    ]


def run_s(is_watched: bool) -> float:
    """Return the seconds of the job's steps, by the job's own clock."""
    folder = scratch("watch") / f"run-{time.monotonic_ns()}"
    watcher = None
    if is_watched:
        begun_s = time.monotonic()
        watch = "import time; from penstock.explain.live import Monitor; from pathlib import Path"
        loop = (
            f"\np = Path({str(folder)!r})\nwhile not list(p.glob('*.events')): time.sleep(0.01)"
            "\nm = Monitor(p)\nwhile m.look().state != 'over': time.sleep(1)"
            "\nprint(time.process_time())"
        )
        watcher = subprocess.Popen([sys.executable, "-c", watch + loop], stdout=subprocess.PIPE)
    took = output(
        [sys.executable, "-m", "penstock", "run", "-q", "-o", folder]
        + [sys.executable, "-c", JOB, scratch("watch") / "data"]
    )
    if watcher is not None:
        SAID["cpu_s"] += float(watcher.communicate()[0])
        SAID["wall_s"] += time.monotonic() - begun_s
    return float(took.split()[-1])


if __name__ == "__main__":
    report(main())
