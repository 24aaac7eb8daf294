"""Time without a CPU, and on one, is no wait for storage: programs that lose their CPU on purpose.

Each program takes its own truth: the clock and the kernel's run-queue delay around its calls.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.findings import judge
from penstock.explain.measures import Measures, measure
from penstock.explain.report import report_of
from penstock.recording import recorder

HAS_DELAY = Path("/proc/self/schedstat").exists()
pytestmark = pytest.mark.skipif(not HAS_DELAY, reason="the kernel tells no run-queue delay")

# The program and its neighbours share the first CPU that they may use.
NEIGHBOURS = """
import json, os, signal, sys, time
import penstock

cpu = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {cpu})
hogs = []
for _ in range(int(sys.argv[1])):
    pid = os.fork()
    if not pid:
        signal.alarm(120)
        while True:
            pass
    hogs.append(pid)
names = sys.argv[3:]
schedstat = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
held = delayed = 0.0

def look():
    return time.perf_counter(), int(os.pread(schedstat, 99, 0).split()[1]) / 1e9

def took(before):
    global held, delayed
    now, delay_s = look()
    held += now - before[0]
    delayed += delay_s - before[1]

def end():
    for pid in hogs:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with open(sys.argv[2], "w") as file:
        json.dump({"in_calls_s": held, "delay_s": delayed}, file)
"""

FROM_MEMORY = """
while held < 0.7:  # long enough for the scheduler to give all their turns
    with penstock.step():
        before = look()
        for name in 8 * names:  # longer than a turn: between steps a turn ends at no cost here
            fd = os.open(name, os.O_RDONLY)
            while os.read(fd, 16384):
                pass
            os.close(fd)
        took(before)
end()
"""

SLOW = """
for number in range(40):
    with penstock.step():
        fd = os.open(names[number % len(names)], os.O_RDONLY)
        before = look()
        os.read(fd, 4096)
        took(before)
        os.close(fd)
        for _ in range(2000):  # so that it is not always rested when its read is done
            sum(range(60))
end()
"""


def files(folder: Path, n: int = 8, size: int = 1 << 20) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = [folder / f"{number}.bin" for number in range(n)]
    for path in paths:
        path.write_bytes(bytes(size))
    return paths


@pytest.fixture
def beside(
    recorded: Callable[..., Any], work: Path, tmp_path: Path
) -> Callable[..., tuple[Measures, dict[str, float]]]:
    """Runs a program beside so many neighbours: what was measured, and its own truth."""

    def run(program: str, neighbours: int, **options: Any) -> tuple[Measures, dict[str, float]]:
        truth = tmp_path / "truth.json"
        names = files(work / "slow")
        made = recorded(NEIGHBOURS + program, args=[str(neighbours), truth, *names], **options)
        return measure(made), json.loads(truth.read_text())

    return run


def test_files_in_memory_are_no_storage_however_long_their_reads_take(beside: Any) -> None:
    known, truth = beside(FROM_MEMORY, 3)
    assert truth["delay_s"] > 0.1 * truth["in_calls_s"], "the neighbours took no CPU"
    assert known.training.training_calls_s < 0.1 * truth["in_calls_s"]
    assert known.storage_fraction.value < 0.1
    assert {"D1", "D2", "D9"}.isdisjoint(finding.rule for finding in judge(known).findings)
    assert report_of(known).verdict.bound != "I/O" or report_of(known).verdict.level != "highly"


def test_without_neighbours_they_are_no_storage_either(beside: Any) -> None:
    known, truth = beside(FROM_MEMORY, 0)
    assert known.training.training_calls_s < 0.1 * truth["in_calls_s"]


@pytest.mark.parametrize("neighbours", [0, 3])
def test_a_slow_file_is_waited_for_as_long_as_it_is_slow_and_no_longer(
    beside: Any, workload: Callable[..., Path], neighbours: int
) -> None:
    slow = workload("slow", "-shared", "-fPIC")
    known, truth = beside(
        SLOW,
        neighbours,
        environment={"LD_PRELOAD": str(slow), "SLOW_UNDER": "slow/", "SLOW_READ_US": "10000"},
    )
    waited_s = truth["in_calls_s"] - truth["delay_s"]
    assert waited_s > 0.3
    # What a call has to do with it is known to 1 ms, a call.
    assert known.training.training_calls_s == pytest.approx(waited_s, rel=0.1, abs=0.02)
    (row,) = [row for row in known.directories if row.path.endswith("slow")]
    assert row.blocking_s == pytest.approx(known.training.training_calls_s, rel=0.05)


def test_what_threads_of_one_process_read_from_memory_is_told_by_call(
    recorded: Callable[..., Any], work: Path
) -> None:
    """Four threads read and one spins, all on one CPU: most long calls had none of it."""
    names = files(work / "data", 4)
    run = recorded(
        """
        import os, sys, threading
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        read, write = os.pipe()
        is_over = threading.Event()
        def spin():
            pid = os.fork()
            if not pid:
                while os.getppid() != 1:
                    pass
                os._exit(0)
            return pid
        hogs = [spin() for _ in range(3)]
        def reader(name):
            for _ in range(300):
                fd = os.open(name, os.O_RDONLY)
                while os.read(fd, 1 << 18):
                    pass
                os.close(fd)
        threads = [threading.Thread(target=reader, args=[name]) for name in sys.argv[1:]]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        for pid in hogs:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
        """,
        args=names,
    )
    with run.connection.cursor() as engine:
        from penstock.explain.questions import prepare

        prepare(engine, ("file_waits",))
        long_s, held_s, threads = engine.execute(
            "SELECT sum(w.duration_ns) / 1e9, sum(w.held_ns) / 1e9, count(DISTINCT w.thread)"
            " FROM file_waits AS w JOIN files AS f ON f.file = w.file"
            " WHERE ends_with(f.path, '.bin') AND w.duration_ns >= 2000000"
        ).fetchone()
    if not long_s:
        pytest.skip("no call took 2 ms: the neighbours took no CPU")
    assert threads >= 1
    assert held_s < 0.25 * long_s


def test_the_delay_of_all_threads_is_what_the_kernel_counts_of_each() -> None:
    """Several threads on one CPU, of which one ends during the measurement."""
    import subprocess

    told = subprocess.run(
        [sys.executable, "-c", DELAYS, recorder._library()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    ours, kernels, again, child, busy = map(int, told.split())
    assert kernels > 20_000_000
    assert ours == pytest.approx(kernels, rel=0.05, abs=5e6)
    assert again == -1, "asking before a wait again at once would cost too much"
    assert child >= 0, "a forked child has other threads"
    assert busy >= 0


DELAYS = r"""
import ctypes, os, sys, threading, time
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
library = ctypes.CDLL(sys.argv[1])
ask = library.penstock_run_delays
ask.restype, ask.argtypes = ctypes.c_int64, [ctypes.c_int]
library.penstock_start.argtypes = [ctypes.c_char_p, ctypes.c_uint64]
import tempfile
folder = tempfile.mkdtemp()
assert library.penstock_start(folder.encode(), 0) == 0

def kernels():
    total = 0
    for tid in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{tid}/schedstat") as file:
            total += int(file.read().split()[1])
    return total

# Threads that compute without Python's lock: a hash of a large buffer.
import hashlib
data = bytes(8 << 20)
is_over = False
def spin():
    while not is_over:
        hashlib.sha256(data).digest()

threads = [threading.Thread(target=spin) for _ in range(4)]
for thread in threads: thread.start()
time.sleep(0.05)
first, begin = ask(1), kernels()
end = time.monotonic() + 0.5
while time.monotonic() < end: hashlib.sha256(data).digest()
before, last = ask(0), kernels()
is_over = True
def asks_at_once():
    ask(0)
    return ask(1)
again = min(asks_at_once() for _ in range(200))  # others may take the CPU between the two
for thread in threads: thread.join()
read, write = os.pipe()
if not os.fork():
    os.write(write, str(ask(0)).encode())
    os._exit(0)
child = int(os.read(read, 99))
os.wait()
busy = ask(0)
library.penstock_stop()
print(before - first, last - begin, again, child, busy)
import shutil; shutil.rmtree(folder)
"""


def test_a_process_says_how_many_cpus_it_may_use(recorded: Callable[..., Any]) -> None:
    """Not how many its launcher may: it was bound after that."""
    cpu = min(os.sched_getaffinity(0))
    run = recorded(
        f"""
        import os, penstock
        os.sched_setaffinity(0, {{{cpu}}})
        for _ in range(3):
            with penstock.step():
                pass
        """
    )
    assert measure(run).machine.cpus == 1
