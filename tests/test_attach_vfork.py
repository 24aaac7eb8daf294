"""A child between vfork and exec, on its parent's memory, is not taken for its parent."""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.log.header import read_header
from penstock.recording import attach, launch
from penstock.runs.run import open_run
from test_attach import BUDGET, pytestmark  # noqa: F401 - where nobody may attach, these cannot run

ENDS = ("exec", "missing", "leave")


class Program:
    """tests/workloads/vfork_waits.c, which does what it is told."""

    def __init__(self, program: Path, folder: Path) -> None:
        (folder / "data").write_bytes(bytes(100))
        (folder / "kept").write_bytes(bytes(100))
        self.process = subprocess.Popen(
            [program], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self.process.pid

    def do(self, *lines: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        for line in lines:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            assert self.process.stdout.readline() == "done\n"


@pytest.fixture
def program(workload: Callable[..., Path], work: Path) -> Iterator[Program]:
    made = Program(workload("vfork_waits"), work)
    maps = Path("/proc", str(made.pid), "maps")
    while "/libc" not in maps.read_text():  # which is loaded after the exec
        time.sleep(0.01)
    yield made
    made.process.kill()
    made.process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return launch.make_folder(["x"], tmp_path / "run")


def state(folder: Path, pid: int) -> list[str]:
    return [read_header(path).state for path in folder.glob(f"*.{pid}.*.events")]


def reads(folder: Path) -> list[tuple[str, int]]:
    """What the program's own process read, and which other files it is said to have touched."""
    with open_run(folder) as run:
        return run.sql(
            "select regexp_extract(path, '[^/]*$') as name, count(*) from events"
            " where op in ('open', 'pread', 'dup') and process = 0 group by name order by name"
        )


@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_waits_while_the_recorder_comes_in_ends_no_log_but_its_own(
    program: Program, folder: Path, end: str
) -> None:
    program.do("vfork")
    attach.join(program.pid, folder, BUDGET)
    program.do(end)
    program.do("read")
    assert state(folder, program.pid) == ["running"]
    assert attach.recorded(folder) == [program.pid]
    assert attach.leave_all(folder, [program.pid]) == {}
    assert state(folder, program.pid) == ["stopped"]
    program.do("read")
    assert reads(folder) == [("data", 2), ("kept", 1)]


@pytest.mark.parametrize("end", ENDS)
def test_a_child_of_between_two_windows_of_one_log_is_no_part_of_it(
    program: Program, folder: Path, end: str
) -> None:
    attach.join(program.pid, folder, BUDGET)
    program.do("read")  # the thread has its place in the log from now on
    attach.leave(program.pid)
    program.do("vfork")
    attach.join(program.pid, folder, BUDGET)
    program.do(end, "read")
    assert state(folder, program.pid) == ["running"]
    assert attach.leave_all(folder, [program.pid]) == {}
    assert reads(folder) == [("data", 4), ("kept", 2)]


# Between fork and exec of the program itself, its map of memory is that of who started it.
@pytest.mark.flaky(reruns=2)
@pytest.mark.parametrize("end", ENDS)
def test_a_child_that_was_seen_to_begin_is_none_either(
    program: Program, folder: Path, end: str
) -> None:
    attach.join(program.pid, folder, BUDGET)
    program.do("vfork", end, "read")
    program.do("vfork")
    assert attach.leave_all(folder, [program.pid]) == {}  # it goes on when nobody records
    program.do(end, "read")
    assert state(folder, program.pid) == ["stopped"]
    assert reads(folder) == [("data", 2), ("kept", 1)]


def test_a_process_that_was_killed_after_a_child_had_gone_on_is_a_killed_one(
    program: Program, folder: Path
) -> None:
    program.do("vfork")
    attach.join(program.pid, folder, BUDGET)
    program.do("exec")
    program.process.kill()
    program.process.wait()
    with open_run(folder) as run:
        assert run.sql("select state from processes where process = 0") == [("killed",)]


@pytest.mark.skipif(not shutil.which("strace"), reason="strace is missing: make setup-system")
def test_a_process_that_cannot_be_left_is_named(program: Program, folder: Path) -> None:
    attach.join(program.pid, folder, BUDGET)
    with subprocess.Popen(
        ["strace", "-f", "-o", "/dev/null", "-p", str(program.pid)],
        stderr=subprocess.PIPE,
        text=True,
    ) as tracer:
        try:
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            assert list(attach.leave_all(folder, [program.pid])) == [program.pid]
        finally:
            tracer.terminate()
    assert attach.leave_all(folder, [program.pid]) == {}
