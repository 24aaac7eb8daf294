"""Logs into tables and pages: time, size and memory, as bars.  consolidate.py does the work.

A freshly started browser draws the page; the time is the CPU time of the browser's thread.
"""

import re
import statistics
import sys
from pathlib import Path

from bars import ROOT, Bar, output, report, scratch

sys.path.insert(0, str(ROOT / "tests"))
from browser import CHROMIUM, Browser

EVENTS = 50_000_000
COMMAND = "python lab/benchmarks/consolidate.py"

# An hour of a busy job in a minute, its report in the time of a coffee cup's filling, on a log-in
# node's share of memory.
TABLES_S = 60
REPORT_S = 15
MEMORY_GB = 2
PARQUET_BYTES = 10
RAW_BYTES = 40  # the event's 32, the blocks' headers and the files' names
PAGE_S = 20
PAGE_MB = 3
DRAW_S = 1.5
DRAWN = "document.documentElement.dataset.ready"


def main() -> list[Bar]:
    consolidate = Path(__file__).with_name("consolidate.py")
    page = scratch("reading") / "page.html"
    said = output([sys.executable, consolidate, "--repeats", "2", "--page", page])
    what = f"{EVENTS // 1_000_000} million events"
    return [
        _bar(f"{what} into tables", _number(r"([\d.]+) s median of", said), TABLES_S, "s"),
        _bar(f"{what} into tables, memory", _number(r"memory +([\d.]+)", said), MEMORY_GB, "GB"),
        _bar(f"{what}, the report", _number(r"report +([\d.]+)", said), REPORT_S, "s"),
        _bar(f"{what}, the report, memory", _number(r"in ([\d.]+) GB", said), MEMORY_GB, "GB"),
        _bar("an event in Parquet", _number(r"Parquet +([\d.]+)", said), PARQUET_BYTES, "B"),
        _bar("an event in the log", _number(r"raw +([\d.]+)", said), RAW_BYTES, "B"),
        _bar(f"{what}, the page", _number(r"page +([\d.]+)", said), PAGE_S, "s"),
        _bar(f"{what}, the page's size", page.stat().st_size / 1e6, PAGE_MB, "MB"),
        *_drawn(page, what),
    ]


def _drawn(page: Path, what: str) -> list[Bar]:
    """Return how long the first look takes: each time with a fresh browser."""
    if CHROMIUM is None:
        return []
    times = []
    for _ in range(5):
        with Browser() as browser:
            browser.ask("Performance.enable", timeDomain="threadTicks")
            browser.open(f"file://{page}")
            browser.wait(DRAWN)
            metrics = browser.ask("Performance.getMetrics")["metrics"]
            times.append(
                next(metric["value"] for metric in metrics if metric["name"] == "TaskDuration")
            )
    return [_bar(f"{what}, the page drawn", statistics.median(times), DRAW_S, "s")]


def _number(pattern: str, text: str) -> float:
    match = re.search(pattern, text)
    if not match:
        raise SystemExit(f"consolidate.py no longer says {pattern!r}:\n{text}")
    return float(match[1])


def _bar(what: str, measured: float, limit: float, unit: str) -> Bar:
    return Bar(what, f"≤ {limit:g} {unit}", f"{measured:.3g} {unit}", measured <= limit, COMMAND)


if __name__ == "__main__":
    report(main())
