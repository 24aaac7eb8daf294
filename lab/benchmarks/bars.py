"""A fair comparison of two commands, and the bar of a figure.  Knows no workload.

A speed is a ratio or a difference from one run on one machine: the command with and the command
without the recorder alternate, and each measurement is compared with its neighbours in time, so
that a slower machine slows down both.
"""

import os
import platform
import shutil
import statistics
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import penstock

__all__ = [
    "PENSTOCK",
    "ROOT",
    "Bar",
    "Pairs",
    "machine",
    "output",
    "paired",
    "pairs",
    "report",
    "rounds",
    "scratch",
    "timed_program",
]

ROOT = Path(__file__).parents[2]
PENSTOCK = Path(sysconfig.get_path("scripts")) / "penstock"


@dataclass(frozen=True, slots=True)
class Bar:
    """A line of docs/performance.md.  is_met is None where no bar is set: a peer, for
    comparison."""

    what: str
    bar: str
    measured: str
    is_met: bool | None
    command: str


@dataclass(frozen=True, slots=True)
class Pairs:
    """Measurements without and with: off[i] and on[i] are neighbours in time."""

    off: tuple[float, ...]
    on: tuple[float, ...]

    @property
    def difference(self) -> float:
        """The median of the paired differences."""
        return statistics.median(on - off for off, on in zip(self.off, self.on, strict=True))

    @property
    def ratio(self) -> float:
        return statistics.median(on / off for off, on in zip(self.off, self.on, strict=True))

    @property
    def ratio_spread(self) -> tuple[float, float]:
        """The quartiles of the paired ratios."""
        ratios = [on / off for off, on in zip(self.off, self.on, strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        return low, high

    @property
    def spread(self) -> tuple[float, float]:
        """The quartiles of the paired differences."""
        differences = [on - off for off, on in zip(self.off, self.on, strict=True)]
        low, _, high = statistics.quantiles(differences, n=4)
        return low, high


def pairs(off: Callable[[], float], on: Callable[[], float], repetitions: int) -> Pairs:
    """Run the two alternately, once more without, so that each `on` has two neighbours."""
    off()  # fills the caches, so that all later runs find full caches
    rounds = [off()]
    for _ in range(repetitions):
        rounds += [on(), off()]
    return paired(rounds)


def paired(rounds: Sequence[float]) -> Pairs:
    """Return measurements in order of time, off on off on ... off: each `on` beside the mean around
    it."""
    off, on = rounds[0::2], rounds[1::2]
    means = [(before + after) / 2 for before, after in pairwise(off)]
    return Pairs(tuple(means), tuple(on))


def scratch(name: str) -> Path:
    """Return a folder on the checkout's disk, or in BENCH_FOLDER: a log in memory would flatter the
    recorder."""
    folder = Path(os.environ.get("BENCH_FOLDER") or ROOT / "build" / "bench") / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def timed_program(
    folder: Path, source: str, path: Path, options: Sequence[str] | None = None
) -> float:
    """Run a program with a path as its argument; return the seconds that the program measures and
    prints last.  options: of `penstock run`; None: without Penstock."""
    program = folder / "program.py"
    program.write_text(source)
    command: list[str | Path] = [sys.executable, program, path]
    if options is not None:
        run = folder / "run"
        shutil.rmtree(run, ignore_errors=True)
        command = [PENSTOCK, "run", "-q", *options, "-o", run, *command]
    return float(output(command).split()[-1])


def output(command: Sequence[str | Path], environment: dict[str, str] | None = None) -> str:
    finished = subprocess.run(
        list(map(str, command)),
        env=os.environ | (environment or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if finished.returncode:
        failed = f"{' '.join(map(str, command))}: status {finished.returncode}"
        raise SystemExit("\n".join([failed, *finished.stderr.strip().splitlines()[-5:]]))
    return finished.stdout


def machine() -> str:
    """Describe the machine in a line, without its name."""
    cpu = _first("/proc/cpuinfo", "model name") or platform.machine()
    memory = int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20
    disk = output(["df", "--output=fstype", scratch(".")]).split()[-1]
    system = f"Linux {platform.release().split('-')[0]}, {' '.join(platform.libc_ver())}"
    python = f"Python {platform.python_version()}"
    load = f"load {os.getloadavg()[0]:.1f} and {_loop_ms():.0f} ms a million additions at the start"
    machine = f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB"
    return f"{machine}, {system}, {python}, logs on {disk}, {load}"


def _loop_ms() -> float:
    """Distinguish two days of a rented machine: under one name the days differed by a factor of
    2."""

    def seconds() -> float:
        start, total = time.perf_counter(), 0
        for i in range(1_000_000):
            total += i
        return time.perf_counter() - start

    return 1e3 * min(seconds() for _ in range(5))


def _first(path: str, key: str) -> str | None:
    for line in Path(path).read_text().splitlines():
        if line.startswith(key):
            return line.partition(":")[2].strip()
    return None


def report(bars: Sequence[Bar]) -> None:
    """Print the bars of a benchmark that runs alone."""
    for bar in bars:
        verdict = {True: "met", False: "missed", None: ""}[bar.is_met]
        print(f"{bar.what:58} {bar.bar:11} {bar.measured:34} {verdict}", flush=True)


def rounds(program: Path, case: str, calls: int, n_pairs: int) -> Pairs:
    """Return the CPU time per call, in ns, of a program made with rounds.h."""
    folder = scratch(program.name) / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    library = Path(penstock.__file__).with_name("librec.so")
    printed = output(list(map(str, [program, case, calls, library, folder, n_pairs]))).split()
    shutil.rmtree(folder)
    return paired(list(map(float, printed)))
