"""Counts and bytes beside strace's: the comparing tests, as a line of the table."""

import re
import subprocess
import sys

from bars import ROOT, Bar, report


def main() -> list[Bar]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/test_strace.py",
    ]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    counts = {
        word: int(number)
        for number, word in re.findall(r"(\d+) (passed|failed|skipped|error)", finished.stdout)
    }
    programs = sum(counts.values())
    skipped = counts.get("skipped", 0)
    measured = f"equal in {counts.get('passed', 0)} of {programs} programs"
    if skipped:
        measured += f", {skipped} not run"
    return [
        Bar(
            what="counts and bytes against `strace -f`: Python, DataLoader, C, shell, tf.data",
            bar="equal",
            measured=measured,
            is_met=counts.get("passed", 0) == programs if programs else False,
            command="python lab/benchmarks/counts.py",
        )
    ]


if __name__ == "__main__":
    report(main())
