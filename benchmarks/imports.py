"""What it costs to have Penstock in a program, and to ask it for help."""

import resource
import shutil
import statistics
import sys
import time

from bars import PENSTOCK, Bar, output, pairs, report, scratch

REPETITIONS = 21
IMPORT_MS = 30
HELP_MS = 150
RUN_MS = 120


def _seconds(*command: str) -> float:
    start_s = time.perf_counter()
    output(command)
    return time.perf_counter() - start_s


def _cpu_s(*command: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _recorded_cpu_s() -> float:
    """CPU time of a run that records a program which does nothing, and makes no report."""
    folder = scratch("imports") / "run"
    shutil.rmtree(folder, ignore_errors=True)
    return _cpu_s(str(PENSTOCK), "run", "-q", "-o", str(folder), "true")


def main() -> list[Bar]:
    bare = [sys.executable, "-c", "pass"]
    ours = [sys.executable, "-c", "import penstock"]
    imported = pairs(lambda: _seconds(*bare), lambda: _seconds(*ours), REPETITIONS)
    _seconds(str(PENSTOCK), "--help")
    help_ms = statistics.median(_seconds(str(PENSTOCK), "--help") for _ in range(REPETITIONS)) * 1e3
    run = pairs(lambda: _cpu_s("true"), _recorded_cpu_s, REPETITIONS)
    low_ms, high_ms = (1e3 * s for s in run.spread)
    return [
        Bar(
            what="penstock run -q, its own CPU time",
            bar=f"≤ {RUN_MS} ms",
            measured=f"{run.difference * 1e3:.0f} ms ({low_ms:.0f} to {high_ms:.0f})",
            is_met=run.difference * 1e3 <= RUN_MS,
            command="python benchmarks/imports.py",
        ),
        Bar(
            what="import penstock",
            bar=f"≤ {IMPORT_MS} ms",
            measured=f"{imported.difference * 1e3:.1f} ms",
            is_met=imported.difference * 1e3 <= IMPORT_MS,
            command="python benchmarks/imports.py",
        ),
        Bar(
            what="penstock --help, the whole process",
            bar=f"≤ {HELP_MS} ms",
            measured=f"{help_ms:.0f} ms",
            is_met=help_ms <= HELP_MS,
            command="python benchmarks/imports.py",
        ),
    ]


if __name__ == "__main__":
    report(main())
