"""CPU time that the recorder adds to calls on a connection, beside the time added to a pread.

By CPU time of the process (getrusage), so that other programs on the machine hardly count.
"""

import subprocess
from pathlib import Path

from bars import Bar, Pairs, report, rounds, scratch

PAIRS = 41
CALLS = 20_000

# A difference of two differences: the distance of two rounds of a case.
NOISE_NS = 3
CASES = {
    "recv": "recv of 64 bytes that are there",
    "read": "read of 64 bytes that are there, from a connection",
    "send": "send of 64 bytes",
}


def main() -> list[Bar]:
    program = scratch("network") / "network"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-Wall", "-o", program, source, "-ldl"], check=True)
    pread = rounds(program, "pread", CALLS, PAIRS)
    return [_bar(what, rounds(program, name, CALLS, PAIRS), pread) for name, what in CASES.items()]


def _bar(what: str, measured: Pairs, pread: Pairs) -> Bar:
    low, high = measured.spread
    return Bar(
        what=f"{what}: CPU time added",
        bar=f"≤ that of a pread, {pread.difference:.1f} ns",
        measured=f"{measured.difference:+.1f} ns ({low:.1f} to {high:.1f})",
        is_met=measured.difference <= pread.difference + NOISE_NS,
        command="python lab/benchmarks/network.py",
    )


if __name__ == "__main__":
    report(main())
