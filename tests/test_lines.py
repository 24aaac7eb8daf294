"""The lines of code on which fetches spend CPU time, against the fetching threads' own clocks."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from findings_examples import decoding
from fixtures import UNCOMPILED, thorough
from penstock.adapters import lines
from penstock.explain.measures import Measures, measure
from penstock.explain.report import report_of
from penstock.explain.report.anonymous import RUN, anonymous
from penstock.explain.report.shape import to_json
from synthetic import Synthetic

Recorded = Callable[..., Any]

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'penstock[torch]'")
pytestmark = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)

# Three functions that use the CPU: Python, C that holds the lock of the interpreter and C that does
# not.  Each call is much longer than the 5 ms for which a thread may keep the lock: looks are late
# by as much.  The program prints the CPU time of each.
PROGRAM = (
    UNCOMPILED
    + """
import hashlib, os, sys, time, zlib
import torch
from torch.utils.data import DataLoader, Dataset

BLOB = os.urandom(1 << 20)

def python():
    n = 0
    for i in range(1_200_000):
        n += i
    return n

def holds_the_lock():
    return sorted(BLOB[:300_000])

def leaves_the_lock():
    return hashlib.sha256(BLOB * 16).digest()

class Data(Dataset):
    def __len__(self):
        return 20

    def __getitem__(self, index):
        clock = [time.thread_time()]
        python()
        clock.append(time.thread_time())
        holds_the_lock()
        clock.append(time.thread_time())
        leaves_the_lock()
        clock.append(time.thread_time())
        return torch.tensor([b - a for a, b in zip(clock, clock[1:])])

def main():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    cpu_s = torch.zeros(3)
    options = {"multiprocessing_context": sys.argv[2]} if sys.argv[1] != "0" else {}
    for times in DataLoader(Data(), 4, num_workers=int(sys.argv[1]), **options):
        cpu_s += times.sum(0)
        optimizer.zero_grad()
        model(times).sum().backward()
        optimizer.step()
    with open(sys.argv[3], "w") as file:
        print(*(cpu_s / cpu_s.sum()).tolist(), file=file)

if __name__ == "__main__":
    main()
"""
)


@pytest.mark.parametrize(
    ("workers", "start"),
    [(2, "fork"), *(thorough(*how, like="fork") for how in [(0, "fork"), (1, "spawn")])],
)
def test_cpu_time_by_line_is_what_the_threads_clock_says(
    recorded: Recorded, tmp_path: Path, workers: int, start: str
) -> None:
    run = recorded(PROGRAM, args=[str(workers), start, tmp_path / "clock"])
    clock = list(map(float, (tmp_path / "clock").read_text().split()))
    rows = measure(run).fetch_lines
    assert sum(row.samples for row in rows) >= 25
    cpu_s = sum(row.cpu_s for row in rows)
    names = ("python", "holds_the_lock", "leaves_the_lock")
    shares = [sum(row.cpu_s for row in rows if row.function == name) / cpu_s for name in names]
    assert shares == pytest.approx(clock, abs=0.12)
    (at,) = {row.line for row in rows if row.function == "leaves_the_lock"}
    assert PROGRAM.splitlines()[at - 1].strip().startswith("return hashlib")


def test_the_finding_names_the_line(recorded: Recorded, tmp_path: Path) -> None:
    program = PROGRAM.replace("holds_the_lock()\n        clock", "clock").replace(
        "leaves_the_lock()\n        clock", "clock"
    )
    report = report_of(measure(recorded(program, args=["0", "fork", tmp_path / "clock"])))
    (finding,) = [finding for finding in report.findings if finding.rule == "W2"]
    lines = range(program.splitlines().index("    for i in range(1_200_000):"), 99)[1:5]
    (at,) = re.findall(r"program-0\.py:(\d+), python$", "\n".join(finding.evidence), re.MULTILINE)
    assert int(at) in lines


@pytest.mark.parametrize(
    "environment", [{"PENSTOCK_LINES": "0"}, thorough({"PENSTOCK_LINES": ""}, like="0")]
)
def test_the_samples_can_be_turned_off(
    recorded: Recorded, tmp_path: Path, environment: dict[str, str]
) -> None:
    run = recorded(PROGRAM, args=["0", "fork", tmp_path / "clock"], environment=environment)
    assert measure(run).fetch_lines == ()


def test_a_program_that_waits_for_its_storage_has_no_line(tmp_path: Path) -> None:
    few = [f"{n}\t{n * 20000}\t/home/me/train.py\t{n}\tread\t" for n in (9, 10)]
    run = decoding(0.9, 0.05)
    for value in few:
        run.note("fetch line", value)
    (finding,) = [finding for finding in report_of(measure(run)).findings if finding.rule == "W2"]
    assert not any("train.py" in text for text in finding.evidence)
    assert "profiler" in finding.remedies[0].says


def test_a_report_for_strangers_has_no_name_of_a_function() -> None:
    run = decoding(0.9, 0.05)
    run.note("fetch line", "90\t600000\t/home/me/secretly.py\t12\tSecret.decode\tmine.codec")
    text = to_json(anonymous(report_of(measure(run), RUN)))
    assert "function1" in text
    assert not re.search("secret|decode[^d]*mine|codec", text, re.IGNORECASE)


# The program forks in a fetch, looks at its threads after it, and at the signals that they block.
FORKS = """
import os, signal, sys, threading, time
import torch
from torch.utils.data import DataLoader, Dataset

def ours():
    return [thread for thread in threading.enumerate() if thread.name == "penstock lines"]

def burn(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))

class Data(Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        burn(0.1)
        (sampler,) = ours()
        status = open(f"/proc/self/task/{sampler.native_id}/status").read()
        blocked = int(status.split("SigBlk:")[1].split()[0], 16)
        assert all(blocked >> number - 1 & 1 for number in (2, 10, 12, 14, 15, 17)), hex(blocked)
        left = []
        os.register_at_fork(after_in_parent=lambda: left.extend(ours()))
        before = time.monotonic()
        child = os.fork()
        if child == 0:
            os._exit(len(ours()))
        took = time.monotonic() - before
        assert os.waitpid(child, 0)[1] == 0
        assert left == [], left
        assert took < 1, took
        burn(0.1)
        return index

for batch in DataLoader(Data(), 1):
    pass
"""


def test_the_thread_ends_before_a_fork_and_takes_no_signal(recorded: Recorded) -> None:
    rows = measure(recorded(FORKS)).fetch_lines
    assert "burn" in {row.function for row in rows}


def counted(sampler: lines.LineSampler, name: str) -> None:
    """Count a sample of a function of a file that belongs to no package."""
    source = f"""
def {name}(look):
    look()

def fetch(look):
    {name}(look)
"""
    space: dict[str, Any] = {}
    exec(compile(source, f"/home/me/{name}.py", "exec"), space)
    fetch = space["fetch"]

    def look() -> None:
        frame = sys._getframe().f_back
        assert frame is not None
        sampler._count(frame, fetch.__code__, 1000)

    fetch(look)


def test_the_lines_of_a_process_are_bounded() -> None:
    sampler = lines.LineSampler()
    for number in range(10 * lines.MOST_LINES):
        counted(sampler, f"f{number}")
    assert sampler._lines["/home/me/f7.py", 3, "f7", ""] == (1, 1000)
    assert len(sampler._lines) == lines.MOST_LINES + 1
    assert sampler._lines[lines.OTHERS] == (9 * lines.MOST_LINES, 9000 * lines.MOST_LINES)


def noted(*values: str) -> Measures:
    run = Synthetic()
    for value in values:
        run.note("fetch line", value)
    return measure(run)


def test_the_last_sum_of_each_process_counts_and_damaged_ones_do_not() -> None:
    measures = noted(
        "2\t20000\t/home/me/train.py\t12\tdecode\tPIL.Image.open",
        "30\t600000\t/home/me/train.py\t12\tdecode\tPIL.Image.open",
        "4\t80000\t\t0\t\t",
        "x\t80000\t/home/me/train.py\t13\tdecode\t",
        "3",
        "-3\t80000\t/home/me/train.py\t13\tdecode\t",
    )
    assert [
        (row.path, row.line, row.called, row.samples, row.cpu_s) for row in measures.fetch_lines
    ] == [
        ("/home/me/train.py", 12, "PIL.Image.open", 30, 0.6),
        (None, 0, None, 4, 0.08),
    ]


# A collection may begin at any allocation, and lets other threads run.
COLLECTING = """
import gc, threading, time
from penstock.adapters import lines
over = time.monotonic() + 2
def starts():
    while time.monotonic() < over:
        thread = threading.Thread(target=int)
        thread.start()
        thread.join()
starting = threading.Thread(target=starts)
starting.start()
gc.callbacks.append(lambda phase, info: time.sleep(0.001))
gc.set_threshold(1)
while time.monotonic() < over:
    assert threading.get_ident() in lines._frames()
starting.join()
assert gc.isenabled()
gc.disable()
assert lines._frames() and not gc.isenabled()
"""


def test_a_look_during_a_garbage_collection_stops_no_thread_for_ever() -> None:
    """Without care, CPython 3.11 stands still here: a thread that starts waits for a lock that the
    looking thread has, with the GIL that the looking thread wants."""
    subprocess.run([sys.executable, "-c", COLLECTING], check=True, timeout=120)
