"""Logs into tables: time, size and memory, as bars.  The work itself is consolidate.py's."""

import re
import sys
from pathlib import Path

from bars import Bar, output, report

EVENTS = 50_000_000
COMMAND = "python benchmarks/consolidate.py"

# An hour of a busy job in a minute, its report in the time of a coffee cup's filling, on a log-in
# node's share of memory.
TABLES_S = 60
REPORT_S = 15
MEMORY_GB = 2
PARQUET_BYTES = 10
RAW_BYTES = 40  # the event's 32, the blocks' headers and the files' names


def main() -> list[Bar]:
    consolidate = Path(__file__).with_name("consolidate.py")
    said = output([sys.executable, consolidate, "--repeats", "2"])
    what = f"{EVENTS // 1_000_000} million events"
    return [
        _bar(f"{what} into tables", _number(r"([\d.]+) s median of", said), TABLES_S, "s"),
        _bar(f"{what} into tables, memory", _number(r"memory +([\d.]+)", said), MEMORY_GB, "GB"),
        _bar(f"{what}, the report", _number(r"report +([\d.]+)", said), REPORT_S, "s"),
        _bar(f"{what}, the report, memory", _number(r"in ([\d.]+) GB", said), MEMORY_GB, "GB"),
        _bar("an event in Parquet", _number(r"Parquet +([\d.]+)", said), PARQUET_BYTES, "B"),
        _bar("an event in the log", _number(r"raw +([\d.]+)", said), RAW_BYTES, "B"),
    ]


def _number(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    if not found:
        raise SystemExit(f"consolidate.py no longer says {pattern!r}:\n{text}")
    return float(found[1])


def _bar(what: str, measured: float, limit: float, unit: str) -> Bar:
    return Bar(what, f"≤ {limit:.0f} {unit}", f"{measured:g} {unit}", measured <= limit, COMMAND)


if __name__ == "__main__":
    report(main())
