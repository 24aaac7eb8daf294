"""Attaches to running programs again and again: is a program ever harmed, or left stopped?

    python lab/benchmarks/soak_attach.py [ATTACHES]      default: 500, some minutes

Programs that check their own work (tests/workloads/attached.c: computing, allocating, forking,
loading, waiting, interrupted), a Python with busy threads, and a loader of torch with workers that
are forked all the time, each joined and left many times at random moments.  Each program must go on
during and after the recording, and end as without a recording.  A refusal ("no thread came to a
safe point in time") is counted and is no harm.  SEED=N repeats the choices.
"""

import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from penstock.errors import RunError
from penstock.recording import attach, launch

ROOT = Path(__file__).parents[2]
WORKLOAD = ROOT / "tests" / "workloads" / "attached.c"
MODES = (
    *("computes", "computes in threads", "allocates", "loads"),
    *("forks", "waits", "hears alarms", "all at once"),
)
ROUND = 15  # attaches to a program before the next of its kind
GO_ON_S = 30.0

PYTHON = """
import hashlib, signal, sys, threading, time
over = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: over.set())
data = bytes(range(256)) * 4000
wanted = hashlib.sha256(data).hexdigest()
rounds = 0
def work(number):
    global rounds
    path = f"{sys.argv[1]}-{number}"
    while not over.is_set():
        with open(path, "wb") as file:
            file.write(data)
        with open(path, "rb") as file:
            if hashlib.sha256(file.read()).hexdigest() != wanted:
                print("wrong: bytes", flush=True)
                over.set()
                return
        if sorted(range(2000), key=lambda n: -n)[0] != 1999:
            print("wrong: a list", flush=True)
        rounds += 1
threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
for thread in threads:
    thread.start()
print("begun", flush=True)
while not over.wait(0.01):
    pass
for thread in threads:
    thread.join()
print("fine", rounds)
"""

TORCH = """
import signal, sys
import torch
from torch.utils.data import DataLoader, Dataset
over = []
signal.signal(signal.SIGTERM, lambda *_: over.append(1))
class Files(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, number):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with open(sys.argv[1], "rb") as file:
            return len(file.read()) + number
open(sys.argv[1], "wb").write(bytes(10_000))
print("begun", flush=True)
rounds = 0
while not over:
    numbers = [int(n) for batch in DataLoader(Files(), batch_size=4, num_workers=2) for n in batch]
    if numbers != [10_000 + n for n in range(64)]:
        print("wrong: batches", numbers, flush=True)
    rounds += 1
print("fine", rounds)
"""


@dataclass
class AttachTally:
    attaches: int = 0
    refused: int = 0
    still_ms: list[float] = field(default_factory=list)
    harmed: list[str] = field(default_factory=list)


def cpu_and_switches(pid: int) -> tuple[int, ...]:
    """Grows in all threads together while a process does anything at all."""
    total = [0, 0]
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            stat = (task / "stat").read_text().rpartition(")")[2].split()
            lines = (task / "status").read_text().splitlines()
        except OSError:
            continue
        total[0] += int(stat[11]) + int(stat[12])
        total[1] += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return tuple(total)


def goes_on(pid: int) -> bool:
    """Return whether the process is neither stopped nor traced, and works."""
    before, until_s = cpu_and_switches(pid), time.monotonic() + GO_ON_S
    while time.monotonic() < until_s:
        status = attach._status(pid)
        is_free = status.get("TracerPid") == "0" and status.get("State", "Z")[0] not in "tTZ"
        if is_free and cpu_and_switches(pid) != before:
            return True
        time.sleep(0.005)
    return False


def left(pid: int, tally: AttachTally) -> None:
    """Leave at last: a process without a safe point in time is recorded until there is a safe
    point."""
    for _ in range(5):
        try:
            attach.leave(pid)
            return
        except RunError:
            tally.refused += 1
    attach.leave(pid)


def attacked(
    name: str,
    command: Sequence[str],
    n: int,
    chance: random.Random,
    folder: Path,
    tally: AttachTally,
) -> None:
    """Lead a program through n attaches; keep every failure."""
    program = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert program.stdout is not None
    try:
        first = program.stdout.readline()
        if first != "begun\n":
            raise SystemExit(f"{name} does not begin: {first}")
        for _ in range(n):
            time.sleep(chance.random() * 0.02)
            run = launch.make_folder([name], folder / "run")
            try:
                joined = attach.join(program.pid, run, 1 << 22)
                tally.attaches += 1
                tally.still_ms.append((joined.still_s or 0) * 1e3)
                if not goes_on(program.pid):
                    tally.harmed.append(f"{name}: stands still while it is recorded")
                time.sleep(chance.random() * 0.02)
                for pid in (program.pid, *attach.recorded(run)):
                    left(pid, tally)
            except RunError as error:
                tally.refused += 1
                if program.poll() is not None:
                    tally.harmed.append(f"{name}: {error}")
                    break
            if not goes_on(program.pid):
                tally.harmed.append(f"{name}: stands still after it was left")
            shutil.rmtree(run)
        program.terminate()
        said, _ = program.communicate(timeout=60)
        if program.returncode or not said.startswith("fine"):
            tally.harmed.append(f"{name}: status {program.returncode}: {said[-500:]}")
    except subprocess.TimeoutExpired:
        tally.harmed.append(f"{name}: does not end")
    finally:
        program.kill()
        program.communicate()


def main() -> None:
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    seed = int(os.environ.get("SEED", "1"))
    chance, tally = random.Random(seed), AttachTally()
    folder = Path(tempfile.mkdtemp(prefix="penstock-soak-attach-"))
    workload = folder / "attached"
    compiler = os.environ.get("CC", "cc")
    subprocess.run(
        [compiler, "-std=gnu11", "-O2", "-pthread", WORKLOAD, "-o", workload, "-ldl"], check=True
    )
    programs = {mode: [str(workload), mode] for mode in MODES}
    programs["Python threads"] = [sys.executable, "-c", PYTHON, str(folder / "file")]
    programs["torch loader"] = [sys.executable, "-c", TORCH, str(folder / "data")]
    try:
        while tally.attaches < wanted and not tally.harmed:
            for name, command in programs.items():
                n = min(ROUND, wanted - tally.attaches)
                if n > 0:
                    attacked(name, command, n, chance, folder, tally)
                    print(f"{tally.attaches} attaches, last to: {name}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    still = sorted(tally.still_ms)
    print(
        f"{tally.attaches} attaches and as many leaves, {tally.refused} refused, "
        f"{len(tally.harmed)} harmed (SEED={seed}); a thread stood still for "
        f"{statistics.median(still):.0f} ms, at most {still[-1]:.0f} ms"
    )
    for line in tally.harmed:
        print(line, file=sys.stderr)
    sys.exit(bool(tally.harmed))


if __name__ == "__main__":
    main()
