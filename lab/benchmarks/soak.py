"""An hour of a job's self-inflicted events, chosen at random: kills, forks, signals, small disks.

    python lab/benchmarks/soak.py [SECONDS]      default: an hour

Each round runs a program of tests/workloads with known I/O, and compares.  The first difference
ends the soak with the folder of the difference; nothing is kept otherwise.
"""

import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bars import PENSTOCK, ROOT, scratch

from penstock.runs.run import open_run

WORKLOADS = ROOT / "tests" / "workloads"
DATA_BYTES = 40960


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 3600.0
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    chance = random.Random(seed)
    folder = scratch("soak")
    end_s = time.monotonic() + seconds
    rounds = 0
    print(f"seed {seed}; SEED={seed} repeats the choices", flush=True)
    while time.monotonic() < end_s:
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "work").mkdir(parents=True)
        (folder / "work" / "data").write_bytes(bytes(DATA_BYTES))
        chance.choice(ROUNDS)(folder, chance)
        rounds += 1
        if rounds % 20 == 0:
            print(f"{rounds} rounds, {end_s - time.monotonic():.0f} s left", flush=True)
    shutil.rmtree(folder)
    print(f"{rounds} rounds, no difference")


def killed(folder: Path, chance: random.Random) -> None:
    """SIGKILL at any moment: no acknowledged event may be missing."""
    (folder / "work" / "acknowledged").write_bytes(bytes(4096))
    launched = subprocess.Popen(_command(folder, "acknowledged"), cwd=folder / "work")
    while not _acknowledged(folder):
        if launched.poll() is not None:
            raise SystemExit(f"{folder}: the program ended by itself")
    time.sleep(chance.random() * 0.5)
    log = next((folder / "run").glob("*.events"))
    os.kill(int(log.name.rsplit(".", 3)[1]), signal.SIGKILL)
    launched.wait()
    done, finished = _acknowledged(folder), _calls(folder, "pread")
    _expect(folder, done <= finished <= done + 4, f"{finished} of {done} acknowledged preads")


def forked(folder: Path, chance: random.Random) -> None:
    _run(folder, "fork_threads")
    _expect(folder, _calls(folder, "pread") == 2400, "fork_threads: not 2,400 preads")


def interrupted(folder: Path, chance: random.Random) -> None:
    _run(folder, "signals")
    preads, _ = map(int, (folder / "work" / "counts").read_text().split())
    _expect(folder, _calls(folder, "pread") == preads, f"signals: not {preads} preads")


def crowded(folder: Path, chance: random.Random) -> None:
    _run(folder, "many_threads")
    _expect(folder, _calls(folder, "pread") == 5120, "many_threads: not 5,120 preads")


def small_budget(folder: Path, chance: random.Random) -> None:
    """Past the budget the counters go on: the sum stays exact."""
    files = chance.randrange(100, 20_000)
    _run(folder, "many_files", str(files), budget=f"{chance.randrange(1, 5)}MiB")
    _expect(folder, _calls(folder, "read") == files, f"many_files: not {files} reads")


ROUNDS: tuple[Callable[[Path, random.Random], None], ...] = (
    killed,
    forked,
    interrupted,
    crowded,
    small_budget,
)


def _command(folder: Path, name: str, *arguments: str, budget: str = "1GiB") -> list[str | Path]:
    program = scratch("soak-programs") / name
    if not program.exists():
        source = WORKLOADS / f"{name}.c"
        subprocess.run(["cc", "-O2", "-pthread", "-o", program, source], check=True)
    record = [PENSTOCK, "run", "-q", "--budget", budget, "-o", folder / "run", "--"]
    return [*record, program, *arguments]


def _run(folder: Path, name: str, *arguments: str, budget: str = "1GiB") -> None:
    command = _command(folder, name, *arguments, budget=budget)
    status = subprocess.run(command, cwd=folder / "work", timeout=600).returncode
    _expect(folder, status == 0, f"{name}: status {status}")


def _acknowledged(folder: Path) -> int:
    acknowledged = (folder / "work" / "acknowledged").read_bytes()[:32]
    return sum(struct.unpack("4Q", acknowledged))


def _calls(folder: Path, op: str) -> int:
    """Count finished calls of the op on data files, single and folded events together."""
    with open_run(folder / "run") as run:
        [(calls,)] = run.sql(
            "select sum(calls) from counters where op = ? and starts_with(path, ?)",
            [op, str(folder / "work")],
        )
    return int(calls or 0)


def _expect(folder: Path, claim: bool, otherwise: str) -> None:
    if not claim:
        raise SystemExit(f"{otherwise}; {folder} shows it")


if __name__ == "__main__":
    main()
