"""A reader's waiting time: the report of a short run from nothing, and a million events in the
formats of other tools.

The short run is the demonstration's training; the tables are removed before every report, and the
time is the whole command's, with the start of Python.
"""

import os
import shutil
import statistics
import sys
import time
from pathlib import Path

from bars import PENSTOCK, Bar, output, report, scratch
from consolidate import write_log

REPEATS = 5
COMMAND = "python lab/benchmarks/views.py"
EVENTS = 1_000_000
LOGS = 4

# Times of other tools for an equal question: PyDarshan 5 to 10 s, DFAnalyzer 36 to 40 s.
REPORT_S = 1.0
REPORT_MB = 200
EXPORTS = (
    ("to Darshan's log", ("export", "--to", "darshan"), ".darshan", 3.0),
    ("to Perfetto's timeline", ("timeline", "--max-events", f"{EVENTS}"), ".pftrace", 10.0),
    ("to DFTracer's trace", ("export", "--to", "dftracer"), ".pfw.gz", None),
)


def main() -> list[Bar]:
    return [*_short_report(), *_exports()]


def _short_report() -> list[Bar]:
    folder = scratch("views") / "demo"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    run = folder / "run"
    training = [sys.executable, "-m", "penstock_lab.demo", "--folder", folder, "--files", "200"]
    output([PENSTOCK, "run", "-q", "-o", run, *training])
    rounds = [_seconds_and_mb([str(PENSTOCK), "report", str(run)], run) for _ in range(REPEATS)]
    events = output([PENSTOCK, "sql", run, "--csv", "select count(*) from events"]).split()[-1]
    seconds = statistics.median(s for s, _ in rounds)
    memory = max(mb for _, mb in rounds)
    what = f"the report of the demonstration, {int(events):,} events"
    return [
        Bar(what, f"≤ {REPORT_S} s", f"{seconds:.2f} s", seconds <= REPORT_S, COMMAND),
        Bar(
            f"{what}, memory", f"≤ {REPORT_MB} MB", f"{memory:.0f} MB", memory <= REPORT_MB, COMMAND
        ),
    ]


def _exports() -> list[Bar]:
    folder = scratch("views") / "million"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for n in range(LOGS):
        write_log(folder, 100 + n, EVENTS // LOGS)
    output([PENSTOCK, "sql", folder, "select count(*) from events"])  # tables are made once a run
    bars = []
    for name, arguments, suffix, limit_s in EXPORTS:
        target = folder.parent / f"million{suffix}"
        command = [str(PENSTOCK), arguments[0], str(folder), *arguments[1:], "-o", str(target)]
        rounds = []
        for _ in range(REPEATS):
            target.unlink(missing_ok=True)
            rounds.append(_seconds_and_mb(command)[0])
        seconds, size = statistics.median(rounds), target.stat().st_size / 1e6
        bars.append(
            Bar(
                f"a million events {name}",
                "–" if limit_s is None else f"≤ {limit_s:.0f} s",
                f"{seconds:.2f} s, {size:.1f} MB",
                None if limit_s is None else seconds <= limit_s,
                COMMAND,
            )
        )
    shutil.rmtree(folder)
    return bars


def _seconds_and_mb(command: list[str], run: Path | None = None) -> tuple[float, float]:
    """Return the time and the most memory of a whole process.  run: its tables are removed
    first."""
    if run is not None:
        shutil.rmtree(run / "tables", ignore_errors=True)
    begun = time.perf_counter()
    with open(os.devnull, "w") as nothing:
        pid = os.posix_spawn(
            command[0],
            command,
            os.environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, nothing.fileno(), n) for n in (1, 2)],
        )
        _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: status {os.waitstatus_to_exitcode(status)}")
    return time.perf_counter() - begun, used.ru_maxrss / 1e3


if __name__ == "__main__":
    report(main())
