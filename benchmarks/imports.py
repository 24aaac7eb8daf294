"""What it costs to have Penstock in a program, and to ask it for help."""

import statistics
import sys
import time

from bars import PENSTOCK, Bar, output, pairs, report

REPETITIONS = 21
IMPORT_MS = 30
HELP_MS = 150


def _seconds(*command: str) -> float:
    start_s = time.perf_counter()
    output(command)
    return time.perf_counter() - start_s


def main() -> list[Bar]:
    bare = [sys.executable, "-c", "pass"]
    ours = [sys.executable, "-c", "import penstock"]
    imported = pairs(lambda: _seconds(*bare), lambda: _seconds(*ours), REPETITIONS)
    _seconds(str(PENSTOCK), "--help")
    help_ms = statistics.median(_seconds(str(PENSTOCK), "--help") for _ in range(REPETITIONS)) * 1e3
    return [
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
