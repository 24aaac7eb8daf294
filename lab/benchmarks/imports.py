"""The cost of having Penstock in a program, and of asking Penstock for help."""

import resource
import shutil
import statistics
import sys
import time
from pathlib import Path

from bars import PENSTOCK, Bar, output, pairs, report, scratch

import penstock

REPETITIONS = 21
IMPORT_MS = 30
HELP_MS = 150
RUN_MS = 120
START_MS = 2
LIBRARY = Path(penstock.__file__).with_name("librec.so")


def _seconds(*command: str) -> float:
    start_s = time.perf_counter()
    output(command)
    return time.perf_counter() - start_s


def _cpu_s(*command: str, environment: dict[str, str] | None = None) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output(command, environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _recorded_cpu_s() -> float:
    """Return the CPU time of a run that records an idle program, and makes no report."""
    folder = scratch("imports") / "run"
    shutil.rmtree(folder, ignore_errors=True)
    return _cpu_s(str(PENSTOCK), "run", "-q", "-o", str(folder), "true")


def _started_cpu_s() -> float:
    """Return the CPU time of an idle program with the recorder."""
    folder = scratch("imports") / "started"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return _cpu_s("true", environment={"LD_PRELOAD": str(LIBRARY), "PENSTOCK_RUN": str(folder)})


def main() -> list[Bar]:
    bare = [sys.executable, "-c", "pass"]
    ours = [sys.executable, "-c", "import penstock"]
    imported = pairs(lambda: _seconds(*bare), lambda: _seconds(*ours), REPETITIONS)
    _cpu_s(str(PENSTOCK), "--help")
    help_ms = statistics.median(_cpu_s(str(PENSTOCK), "--help") for _ in range(REPETITIONS)) * 1e3
    run = pairs(lambda: _cpu_s("true"), _recorded_cpu_s, REPETITIONS)
    low_ms, high_ms = (1e3 * s for s in run.spread)
    start = pairs(lambda: _cpu_s("true"), _started_cpu_s, REPETITIONS)
    return [
        Bar(
            what="the recorder's start in a process: CPU time added",
            bar=f"≤ {START_MS} ms",
            measured=f"+{start.difference * 1e3:.1f} ms",
            is_met=start.difference * 1e3 <= START_MS,
            command="python lab/benchmarks/imports.py",
        ),
        Bar(
            what="penstock run -q, its own CPU time",
            bar=f"≤ {RUN_MS} ms",
            measured=f"{run.difference * 1e3:.0f} ms ({low_ms:.0f} to {high_ms:.0f})",
            is_met=run.difference * 1e3 <= RUN_MS,
            command="python lab/benchmarks/imports.py",
        ),
        Bar(
            what="import penstock",
            bar=f"≤ {IMPORT_MS} ms",
            measured=f"{imported.difference * 1e3:.1f} ms",
            is_met=imported.difference * 1e3 <= IMPORT_MS,
            command="python lab/benchmarks/imports.py",
        ),
        Bar(
            what="penstock --help, the whole process: CPU time",
            bar=f"≤ {HELP_MS} ms",
            measured=f"{help_ms:.0f} ms",
            is_met=help_ms <= HELP_MS,
            command="python lab/benchmarks/imports.py",
        ),
    ]


if __name__ == "__main__":
    report(main())
