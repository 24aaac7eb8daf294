"""How long a training process stands still while a window begins and ends, with torch loaded."""

import shutil
import statistics
import sys

from bars import Bar, output, report, scratch

REPETITIONS = 11
START_MS = 15  # a probe took 4 to 10 ms for 63 objects
STOP_MS = 15

JOB = """
import sys, time
import torch, penstock
start = time.perf_counter()
window = penstock.record(sys.argv[1])
middle = time.perf_counter()
window.stop()
end = time.perf_counter()
again = penstock.record(sys.argv[1] + "-again")
print(middle - start, end - middle, time.perf_counter() - end)
"""


def main() -> list[Bar]:
    folder = scratch("attach")
    starts, stops, later = [], [], []
    for i in range(REPETITIONS):
        start_s, stop_s, again_s = map(
            float, output([sys.executable, "-c", JOB, str(folder / f"run-{i}")]).split()
        )
        starts.append(start_s * 1e3)
        stops.append(stop_s * 1e3)
        later.append(again_s * 1e3)
    shutil.rmtree(folder)
    return [
        _bar("first window begins, torch loaded", START_MS, starts),
        _bar("a window ends", STOP_MS, stops),
        _bar("a later window begins", START_MS, later),
    ]


def _bar(what: str, limit_ms: float, measured_ms: list[float]) -> Bar:
    median = statistics.median(measured_ms)
    return Bar(
        what=what,
        bar=f"≤ {limit_ms} ms",
        measured=f"{median:.1f} ms (worst {max(measured_ms):.1f})",
        is_met=median <= limit_ms,
        command="python lab/benchmarks/attach.py",
    )


if __name__ == "__main__":
    report(main())
