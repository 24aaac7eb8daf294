"""The cost of redirected opens: nothing when off, and the time for an open of a staged file.

    python lab/benchmarks/redirect.py

Sources and copies lie in memory, so that only the redirection itself is seen: a real run stages
from a slow tier to a fast one.
"""

import shutil
import statistics
import subprocess
import sys
from pathlib import Path

from bars import ROOT, Bar, Pairs, output, pairs, report, scratch

import penstock

sys.path.insert(0, str(ROOT / "tests"))
from stagedmap import Tier  # the tests' own writer of maps

OFF_NS = 2  # the bar of an open without a staged file
FROZEN_NS = 500  # the bar of an open without a question to the source: issue 28
FROZEN, FLAGS_AT = 2, 80  # docs/FORMAT-stage.md
FILES, REPETITIONS, CHECKS = 5_000, 15, 50_000_000
COMMAND = "python lab/benchmarks/redirect.py"


def main() -> list[Bar]:
    program = scratch("redirect") / "redirect"
    source = Path(__file__).with_suffix(".c")
    subprocess.run(["cc", "-O2", "-Wall", "-o", program, source, "-ldl"], check=True)
    memory = Path("/dev/shm/penstock-bench-redirect")
    shutil.rmtree(memory, ignore_errors=True)
    try:
        return [_off(program), *_on(program, memory)]
    finally:
        shutil.rmtree(memory, ignore_errors=True)


def _off(program: Path) -> Bar:
    added = []
    for _ in range(REPETITIONS):
        without, asked = map(float, output([program, "check", str(CHECKS)]).split())
        added.append(asked - without)
    ns = statistics.median(added)
    what = "an open when nothing is staged"
    return Bar(what, f"<= {OFF_NS} ns", f"{ns:.2f} ns added", ns <= OFF_NS, COMMAND)


def _on(program: Path, memory: Path) -> list[Bar]:
    data, other = memory / "data", memory / "other"
    for folder in (data, other):
        folder.mkdir(parents=True)
        for number in range(FILES):
            (folder / str(number)).write_bytes(bytes(4096))
    tier = Tier(memory / "tier", [data / str(number) for number in range(FILES)])
    frozen = Tier(memory / "frozen", [data / str(number) for number in range(FILES)])
    _freeze(frozen)
    bars = []
    for what, folder, on in (
        ("staged", data, tier),
        ("staged and frozen", data, frozen),
        ("not staged, beside staged ones", other, tier),
    ):
        measured = pairs(
            lambda folder=folder: _opens(program, folder),  # type: ignore[misc]
            lambda folder=folder, on=on: _opens(program, folder, on.map),  # type: ignore[misc]
            REPETITIONS,
        )
        bars.append(_bar(f"open + read + close of a file: {what}", measured, on is frozen))
    return bars


def _freeze(tier: Tier) -> None:
    with tier.map.open("r+b") as file:
        for at in tier.slot_at.values():
            file.seek(at + FLAGS_AT)
            flags = file.read(1)[0]
            file.seek(at + FLAGS_AT)
            file.write(bytes([flags | FROZEN]))


def _opens(program: Path, folder: Path, *maps: Path) -> float:
    run = scratch("redirect") / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    library = Path(penstock.__file__).with_name("librec.so")
    said = output([program, "opens", folder, str(FILES), library, run, *maps])
    shutil.rmtree(run)
    return float(said)


def _bar(what: str, measured: Pairs, is_frozen: bool) -> Bar:
    low, high = measured.spread
    said = f"{measured.difference:.0f} ns added ({low:.0f} to {high:.0f})"
    if is_frozen:
        is_met = measured.difference <= FROZEN_NS
        return Bar(what, f"<= {FROZEN_NS} ns", said, is_met, COMMAND)
    return Bar(what, "none", said, None, COMMAND)


if __name__ == "__main__":
    report(main())
