"""CPU time that the recorder adds to calls on a connection, beside what it adds to a pread.

By CPU time of the process (getrusage), so that other programs on the machine hardly count.
"""

import shutil
import subprocess
from pathlib import Path

from bars import Bar, Pairs, output, paired, report, scratch

import penstock

PAIRS = 41
CALLS = 20_000
LIBRARY = Path(penstock.__file__).with_name("librec.so")

# A measured difference of two differences: what two rounds of one case are apart.
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
    pread = _measured(program, "pread")
    return [_bar(what, _measured(program, name), pread) for name, what in CASES.items()]


def _measured(program: Path, name: str) -> Pairs:
    folder = scratch("network") / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    command = [program, name, CALLS, LIBRARY, folder, PAIRS]
    rounds = output(list(map(str, command))).split()
    shutil.rmtree(folder)
    return paired(list(map(float, rounds)))


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
