"""Programs of a free-threaded Python (PEP 703): no call is lost or counted twice without the GIL.

Needs python3.13t or newer in PATH, such as `./configure --disable-gil` makes from CPython's source.
"""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from fixtures import PENSTOCK
from penstock.runs.run import Run, open_run

PYTHON = next(filter(None, map(shutil.which, ("python3.15t", "python3.14t", "python3.13t"))), None)
N_THREADS, N_FILES, SIZE = 8, 200, 4096
READING = f"""
import os, sys, threading
os.mkdir("set")
def work(thread):
    for number in range({N_FILES}):
        path = f"set/{{thread}}-{{number}}"
        with open(path, "wb") as file:
            file.write(bytes({SIZE}))
        descriptor = os.open(path, os.O_RDONLY)
        os.pread(descriptor, 100, number)
        os.read(descriptor, {SIZE})
        os.close(descriptor)
threads = [threading.Thread(target=work, args=(number,)) for number in range({N_THREADS})]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not sys._is_gil_enabled()
"""
SPANS = """
import sys, threading
import penstock
def work(number):
    for _ in range(500):
        with penstock.span(f"part {number}"):
            open("/etc/hostname").close()
with penstock.record(sys.argv[1]):
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    for number in range(20):
        with penstock.step(number): pass
assert not sys._is_gil_enabled()
"""
pytestmark = pytest.mark.skipif(PYTHON is None, reason="no free-threaded Python in PATH")


def rows(run: Run, text: str) -> dict[Any, Any]:
    return dict(run.sql(text).fetchall())


def test_every_call_and_byte_of_eight_threads_is_recorded(
    recorded_command: Callable[..., Any],
) -> None:
    run = recorded_command([PYTHON, "-c", READING])
    calls = "SELECT op, {} FROM events WHERE path LIKE '%/set/%' GROUP BY op"
    n = N_THREADS * N_FILES
    counts = rows(run, calls.format("count(*)"))
    assert {op: counts[op] for op in ("write", "pread", "read")} == {
        "write": n, "pread": n, "read": n
    }  # fmt: skip
    assert counts["open"] == counts["close"] == 2 * n
    n_bytes = rows(run, calls.format("sum(moved_bytes)"))
    assert (n_bytes["write"], n_bytes["read"], n_bytes["pread"]) == (n * SIZE, n * SIZE, n * 100)


def test_spans_and_steps_of_threads_at_once_are_recorded(tmp_path: Path) -> None:
    """The face inside of the program, which keeps the GIL off."""
    place = Path(penstock.__file__).parent.parent
    command = [PYTHON, "-c", f"import sys; sys.path.append({str(place)!r})\n{SPANS}"]
    subprocess.run([*map(str, command), tmp_path / "run"], check=True, timeout=100)
    with open_run(tmp_path / "run") as run:
        spans = rows(run, "SELECT name, count(*) FROM spans GROUP BY name")
    assert [spans[f"part {number}"] for number in range(4)] == [500] * 4
    assert spans["step"] == 20


def test_a_free_threaded_program_is_attached_to(tmp_path: Path) -> None:
    program = "import time\nwhile True: open('/etc/hostname').close(); time.sleep(0.01)"
    assert PYTHON is not None
    with subprocess.Popen([PYTHON, "-c", program]) as job:
        try:
            command = [PENSTOCK, "attach", "-o", tmp_path / "run", "--for", "2", str(job.pid)]
            subprocess.run(command, check=True, timeout=100, capture_output=True)
            assert job.poll() is None
        finally:
            job.kill()
    with open_run(tmp_path / "run") as run:
        opens = rows(
            run, "SELECT op, count(*) FROM events WHERE path = '/etc/hostname' GROUP BY op"
        )
    assert opens["open"] > 50
