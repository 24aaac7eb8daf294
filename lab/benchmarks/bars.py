"""Two commands compared fairly, and what a bar is.  Knows no workload.

A speed is a ratio or a difference from one run on one machine: the command with and the one without
the recorder alternate, and each is compared with its neighbours in time, so that a machine that
slows down slows both.
"""

import os
import platform
import shutil
import statistics
import subprocess
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
]

ROOT = Path(__file__).parents[2]
PENSTOCK = Path(sysconfig.get_path("scripts")) / "penstock"


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of docs/performance.md.  is_met is None where no bar is set: a peer, for
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
    """Runs the two alternately, once more without, so that each `on` has two neighbours."""
    off()  # fills the caches that all find full
    rounds = [off()]
    for _ in range(repetitions):
        rounds += [on(), off()]
    return paired(rounds)


def paired(rounds: Sequence[float]) -> Pairs:
    """Measurements in order of time, off on off on ... off: each `on` beside the mean around it."""
    off, on = rounds[0::2], rounds[1::2]
    means = [(before + after) / 2 for before, after in pairwise(off)]
    return Pairs(tuple(means), tuple(on))


def scratch(name: str) -> Path:
    """A folder on the disk that the checkout is on, or in BENCH_FOLDER: a log in memory would
    flatter the recorder."""
    folder = Path(os.environ.get("BENCH_FOLDER") or ROOT / "build" / "bench") / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
    """The machine in a line; no name of it."""
    cpu = _first("/proc/cpuinfo", "model name") or platform.machine()
    memory = int((_first("/proc/meminfo", "MemTotal") or "0 kB").split()[0]) / 2**20
    disk = output(["df", "--output=fstype", scratch(".")]).split()[-1]
    system = f"Linux {platform.release().split('-')[0]}, {' '.join(platform.libc_ver())}"
    python = f"Python {platform.python_version()}"
    load = f"load {os.getloadavg()[0]:.1f} and {_loop_ms():.0f} ms a million additions at the start"
    machine = f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB"
    return f"{machine}, {system}, {python}, logs on {disk}, {load}"


def _loop_ms() -> float:
    """Tells two days of a rented machine apart: under one name they differed by a factor of 2."""

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
    """What a benchmark prints when it is run alone."""
    for bar in bars:
        verdict = {True: "met", False: "missed", None: ""}[bar.is_met]
        print(f"{bar.what:58} {bar.bar:11} {bar.measured:34} {verdict}", flush=True)


def rounds(program: Path, case: str, calls: int, n_pairs: int) -> Pairs:
    """Return the CPU time a call, in ns, of a program that is made with rounds.h."""
    folder = scratch(program.name) / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    library = Path(penstock.__file__).with_name("librec.so")
    printed = output(list(map(str, [program, case, calls, library, folder, n_pairs]))).split()
    shutil.rmtree(folder)
    return paired(list(map(float, printed)))
