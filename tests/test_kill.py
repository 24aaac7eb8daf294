"""A process that is killed at any moment leaves every call that had returned, once."""

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import penstock
from penstock.log.events import read_log
from penstock.log.layout import OPS

ROUNDS = 200
PREAD = next(op.number for op in OPS if op.name == "pread")
LIBRARY = Path(penstock.__file__).parent / "librec.so"


def test_two_hundred_kills_lose_no_finished_call_and_double_none(
    workload: Callable[..., Path], tmp_path: Path
) -> None:
    program = workload("numbered")
    chance = random.Random(os.getpid())
    (tmp_path / "data").write_bytes(b"x")
    n_calls = 0
    for _ in range(ROUNDS):
        told = killed(program, tmp_path, chance.randrange(5000), chance.uniform(0, 0.02))
        found = recorded(tmp_path / "run")
        for thread, calls in enumerate(told):
            numbers = np.sort(found[thread])
            # What had returned was told; one more may have returned and not been told.
            assert calls <= len(numbers) <= calls + 1
            assert np.array_equal(numbers, np.arange(len(numbers)))
            n_calls += calls
    assert n_calls > ROUNDS * 1000  # blocks were emptied while it was killed


def killed(program: Path, folder: Path, after_calls: int, after_s: float) -> list[int]:
    """How many calls each thread was told to have finished when SIGKILL came: so long after so many
    of them."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    (folder / "run").mkdir()
    (folder / "told").write_bytes(bytes(4096))
    environment = {"LD_PRELOAD": str(LIBRARY), "PENSTOCK_RUN": str(folder / "run")}
    process = subprocess.Popen([program], cwd=folder, env=environment)
    told = np.memmap(folder / "told", np.uint64, "r")
    while told[:32:8].sum() < after_calls:
        os.sched_yield()
    until_s = time.monotonic() + after_s
    while time.monotonic() < until_s:
        os.sched_yield()
    process.kill()
    process.wait()
    return np.array(told[:32:8]).astype(int).tolist()


def recorded(folder: Path) -> list[np.ndarray]:
    """The numbers of the finished calls of each thread; a process may die before it has a log."""
    numbers: list[list[np.ndarray]] = [[], [], [], []]
    for path in folder.glob("*.events"):
        if path.stat().st_size < 65536:
            continue
        for events in read_log(path).events():
            done = events.offset[(events.op == PREAD) & (events.duration_ns >= 0)]
            for thread in range(4):
                numbers[thread].append(done[done >> 40 == thread] & ((1 << 40) - 1))
    return [np.concatenate([np.empty(0, np.int64), *parts]) for parts in numbers]
