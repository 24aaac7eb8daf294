"""A process that never heard of Penstock is recorded from some moment on, and goes on unharmed."""

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.errors import RunError
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.recording import attach, launch
from penstock.runs.run import open_run
from test_faults import MAPPED, samples

BUDGET = 1 << 24


def _why_not() -> str:
    if not launch.library().with_name("inject").is_file():
        return "no injector for this processor"
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            attach.leave(sleeper.pid)
        except RunError as error:
            return str(error)
        finally:
            sleeper.kill()
    return ""


WHY_NOT = _why_not()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)


class Target:
    """A Python program that works when it is told to, a line of its input at a time."""

    def __init__(self, source: str, folder: Path) -> None:
        text = textwrap.dedent(source) + "\nprint('ready', flush=True)\n"
        text += "import sys\nfor line in sys.stdin:\n    work()\n    print('done', flush=True)\n"
        self.process = subprocess.Popen(
            [sys.executable, "-c", text],
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self.process.pid
        self._expect("ready")

    def _expect(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{word}\n"

    def work(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self._expect("done")

    def end(self) -> None:
        said, _ = self.process.communicate(timeout=240)
        assert (self.process.returncode, said) == (0, "")


@pytest.fixture
def target(work: Path) -> Iterator[Callable[[str], Target]]:
    made: list[Target] = []

    def make(source: str) -> Target:
        made.append(Target(source, work))
        return made[-1]

    yield make
    for one in made:
        one.process.kill()
        one.process.communicate()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return launch.make_folder(["x"], tmp_path / "run")


READS = """
open("data", "wb").write(bytes(40960))
def work():
    with open("data", "rb", buffering=0) as file:
        while file.read(4096):
            pass
"""


def reads_of_data(run: Any) -> list[tuple[int, int]]:
    return list(
        run.sql(
            "select count(*), sum(moved_bytes) from events where op = 'read' and path like '%/data'"
        )
    )


def test_what_it_reads_between_joining_and_leaving_is_recorded_call_by_call(
    target: Callable[[str], Target], folder: Path
) -> None:
    program = target(READS)
    program.work()
    joined = attach.join(program.pid, folder, BUDGET)
    if joined.way == "sys.remote_exec":  # Python 3.14's own: no thread stands still
        assert joined.still_s is None
    else:
        assert joined.still_s is not None
        assert 0 < joined.still_s < 60
    program.work()
    assert attach.recorded(folder) == [program.pid]
    assert attach.leave(program.pid) is not None
    program.work()
    program.end()
    with open_run(folder) as run:
        assert reads_of_data(run) == [(11, 40960)]  # ten reads and the empty one at the end
        assert run.sql("select origin, state from processes") == [("attach", "stopped")]
        told = report_of(measure(run))
    gaps = [gap for gap in told.gaps if "joined a process that ran already" in gap.why]
    assert [gap.state for gap in gaps] == ["not measured"]
    assert re.fullmatch(r"its first \d+\.\d s", gaps[0].what)


def test_it_can_be_joined_again_and_not_twice_at_once(
    target: Callable[[str], Target], folder: Path, tmp_path: Path
) -> None:
    program = target(READS)
    attach.join(program.pid, folder, BUDGET)
    other = launch.make_folder(["x"], tmp_path / "other")
    with pytest.raises(RunError, match=f"process {program.pid} is recorded already"):
        attach.join(program.pid, other, BUDGET)
    program.work()
    attach.leave(program.pid)
    assert attach.leave(program.pid) is None
    attach.join(program.pid, other, BUDGET)
    program.work()
    attach.leave(program.pid)
    program.end()
    for one in (folder, other):
        with open_run(one) as run:
            assert reads_of_data(run) == [(11, 40960)]


def test_a_folder_that_was_removed_since_gets_a_log_again(
    target: Callable[[str], Target], folder: Path
) -> None:
    program = target(READS)
    attach.join(program.pid, folder, BUDGET)
    attach.leave(program.pid)
    shutil.rmtree(folder)
    launch.make_folder(["x"], folder)
    attach.join(program.pid, folder, BUDGET)
    program.work()
    attach.leave(program.pid)
    program.end()
    with open_run(folder) as run:
        assert reads_of_data(run) == [(11, 40960)]


def test_what_it_starts_afterwards_is_recorded_with_it_and_left_with_it(
    target: Callable[[str], Target], folder: Path
) -> None:
    program = target("""
        import os, signal, subprocess
        open("data", "wb").write(bytes(40960))
        def work():
            subprocess.run(["cat", "data"], stdout=subprocess.DEVNULL, check=True)
            if not os.fork():
                os.read(os.open("data", os.O_RDONLY), 4096)
                signal.pause()
    """)
    attach.join(program.pid, folder, BUDGET)
    program.work()
    (child,) = attach.descendants(program.pid)
    try:
        deadline = time.monotonic() + 240
        while child not in attach.recorded(folder):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for pid in attach.recorded(folder):
            assert attach.leave(pid) is not None
        assert attach.is_running(child)
    finally:
        os.kill(child, signal.SIGKILL)
    program.end()
    with open_run(folder) as run:
        rows = run.sql("select origin, count(*) from processes group by all order by all")
        assert rows == [("attach", 1), ("exec", 1), ("fork", 1)]
        assert run.sql(
            "select sum(moved_bytes) from events where op = 'read' and path like '%/data'"
        ) == [(40960 + 4096,)]


def test_a_framework_that_is_imported_already_is_patched(
    target: Callable[[str], Target], folder: Path
) -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    program = target("""
        import torch.utils.data
        loader = torch.utils.data.DataLoader(list(range(12)), batch_size=4)
        def work():
            for batch in loader:
                pass
    """)
    program.work()
    attach.join(program.pid, folder, BUDGET)
    program.work()
    program.work()
    attach.leave(program.pid)
    program.work()
    program.end()
    with open_run(folder) as run:
        assert [epoch.batches for epoch in measure(run).epochs] == [3, 3]


# The program is not harmed.  lab/benchmarks/soak_attach.py does hundreds of each kind.

MODES = [
    "computes",
    "computes in threads",
    "allocates",
    "loads",
    "forks",
    "waits",
    "hears alarms",
    "all at once",
]


@pytest.mark.parametrize("mode", MODES)
def test_a_program_that_checks_itself_finds_nothing_wrong(
    mode: str, workload: Callable[..., Path], folder: Path
) -> None:
    program = subprocess.Popen([workload("attached"), mode], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    try:
        for _ in range(3):
            attach.join(program.pid, folder, BUDGET)
            assert attach.leave(program.pid) is not None
        status = (attach.PROC / f"{program.pid}/status").read_text()
        assert re.search(r"^TracerPid:\t0$", status, re.MULTILINE)
        assert not re.search(r"^State:\t[tTZ]", status, re.MULTILINE)
        program.terminate()
        said, _ = program.communicate(timeout=240)
    finally:
        program.kill()
    assert (program.returncode, said.split()[0]) == (0, "fine"), said


@pytest.mark.parametrize("left_by", [[], ["allocator"]], ids=["loader", "allocator"])
def test_what_earlier_calls_have_left_on_a_stack_is_not_in_the_way(
    left_by: list[str], workload: Callable[..., Path], folder: Path
) -> None:
    # Newer C libraries leave returns into the loader on the stacks of most programs; Debian's
    # Python returns into free() below a fork and below input().
    command = [workload("leftover"), *left_by]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        try:
            attach.join(program.pid, folder, BUDGET)
            assert attach.leave(program.pid) is not None
            program.terminate()
            said, _ = program.communicate(timeout=240)
        finally:
            program.kill()
    assert (program.returncode, said) == (0, "fine\n")


def test_a_handler_that_may_have_interrupted_the_allocator_is_left_alone(
    workload: Callable[..., Path], folder: Path
) -> None:
    command = [workload("leftover"), "handler"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        try:
            with pytest.raises(RunError, match="no thread came to a safe point"):
                attach.join(program.pid, folder, BUDGET)
            program.terminate()
            said, _ = program.communicate(timeout=240)
        finally:
            program.kill()
    assert (program.returncode, said) == (0, "fine\n")


def test_a_thread_in_which_every_signal_waits_is_left_alone(
    target: Callable[[str], Target], folder: Path
) -> None:
    # So are the C library's and our own while they hold locks that a call in their name would want.
    program = target(
        """
        import ctypes

        SIG_SETMASK, RT_SIGPROCMASK = 2, 14

        def work():
            with open("seen", "w") as file:
                file.write("seen")

        def set_mask(mask):
            word = ctypes.c_uint64(mask)
            ctypes.CDLL(None).syscall(RT_SIGPROCMASK, SIG_SETMASK, ctypes.byref(word), None, 8)

        set_mask(2**64 - 1)
        """
    )
    with pytest.raises(RunError, match="no thread came to a safe point"):
        attach.join(program.pid, folder, BUDGET)
    program.work()
    program.end()


def test_gdb_does_it_where_there_is_no_injector(
    target: Callable[[str], Target], folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not shutil.which("gdb"):
        pytest.skip("there is no gdb, which serves where there is no injector")
    if not attach.gdb_can_call():
        pytest.skip("the gdb here cannot call a function in a process: older than this CPU")
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    shutil.copy(launch.library(), alone / "librec.so")
    monkeypatch.setenv("PENSTOCK_LIBRARY", str(alone / "librec.so"))
    program = target(READS)
    assert attach.join(program.pid, folder, BUDGET).way == "gdb"
    program.work()
    assert attach.leave(program.pid) is not None
    program.end()
    with open_run(folder) as run:
        assert reads_of_data(run) == [(11, 40960)]


def test_a_gdb_that_cannot_call_does_not_come_near_the_program(
    target: Callable[[str], Target], folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copy(launch.library(), tmp_path / "librec.so")
    monkeypatch.setenv("PENSTOCK_LIBRARY", str(tmp_path / "librec.so"))
    (tmp_path / "gdb").write_text('#!/bin/sh\necho "$@" >> "$0.asked"\n')
    (tmp_path / "gdb").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program = target(READS)
    with pytest.raises(RunError, match="cannot call a function in a process"):
        attach.join(program.pid, folder, BUDGET)
    assert f"-p {program.pid} " not in (tmp_path / "gdb.asked").read_text()
    program.work()
    program.end()


def test_a_python_with_a_door_of_its_own_is_given_a_script(
    target: Callable[[str], Target], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Stands for Python 3.14's, which is not everywhere: executes the script at a safe point.
    program = target(READS)
    given: list[str] = []

    def remote_exec(pid: int, script: str) -> None:
        assert pid == program.pid
        given.append(Path(script).read_text())
        Path(script).with_suffix(".result").write_text("0")

    monkeypatch.setattr(sys, "remote_exec", remote_exec, raising=False)
    assert attach.join(program.pid, folder, BUDGET).way == "sys.remote_exec"
    left = attach.leave(program.pid, folder)
    assert left is not None
    assert left.way == "sys.remote_exec"
    compile(given[0], "script", "exec")
    assert "penstock_stop(" in given[1]
    assert f"penstock_attach({os.fsencode(folder)!r}, {BUDGET})" in given[0]
    assert not list(folder.glob("attach-*"))


needs_remote_exec = pytest.mark.skipif(
    not hasattr(sys, "remote_exec"), reason="sys.remote_exec is of Python 3.14"
)


@needs_remote_exec
def test_a_python_that_runs_is_entered_and_left_by_its_own_door(folder: Path, work: Path) -> None:
    source = (
        "import os, time\n"
        "open('data', 'wb').write(bytes(40960))\n"
        "print('begun', flush=True)\n"
        "while not os.path.exists('over'):\n"
        "    with open('data', 'rb', buffering=0) as file:\n"
        "        while file.read(4096): pass\n"
        "    time.sleep(0.001)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", source],
        cwd=work, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        try:
            assert attach.join(program.pid, folder, BUDGET).way == "sys.remote_exec"
            time.sleep(0.2)
            left = attach.leave(program.pid, folder)
            (work / "over").touch()
            _, said = program.communicate(timeout=240)
        finally:
            program.kill()
    assert left is not None
    assert (left.way, program.returncode, said) == ("sys.remote_exec", 0, "")
    assert not list(folder.glob("attach-*"))
    with open_run(folder) as run:
        ((calls, moved),) = reads_of_data(run)
    assert calls >= 11
    assert moved >= 40960


@needs_remote_exec
def test_a_python_that_waits_is_entered_by_a_thread_and_complains_of_nothing(
    folder: Path, work: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "print('begun', flush=True); input(); sum(range(10**6))"],
        cwd=work, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as program:  # fmt: skip
        assert program.stdout is not None
        assert program.stdout.readline() == "begun\n"
        try:
            assert attach.join(program.pid, folder, BUDGET).way == "ptrace"
            assert attach.leave(program.pid, folder) is not None
            _, said = program.communicate("go on\n", timeout=240)
        finally:
            program.kill()
    assert (program.returncode, said) == (0, "")


def test_a_python_that_comes_late_to_its_script_does_nothing_then_and_finds_it(
    target: Callable[[str], Target], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its main thread waits in a call for longer than we wait: the thread is borrowed instead.
    program = target(READS)
    given: list[Path] = []
    monkeypatch.setattr(attach, "SCRIPT_S", 0.02)
    monkeypatch.setattr(
        sys, "remote_exec", lambda pid, script: given.append(Path(script)), raising=False
    )
    assert attach.join(program.pid, folder, BUDGET).way == "ptrace"
    (script,) = given
    assert [path.name for path in folder.glob("attach-*")] == [script.name]
    subprocess.run([sys.executable, script], check=True)  # one of ours would have called, and told
    assert not list(folder.glob("attach-*.result"))
    assert attach.leave(program.pid) is not None
    program.end()


def test_a_script_that_has_begun_is_waited_for(
    target: Callable[[str], Target], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = target(READS)
    began: list[Path] = []

    def begins_only(pid: int, script: str) -> None:
        began.append(Path(script))
        Path(script).with_suffix(".leave").unlink()

    class Clock:
        """Time passes by being looked at; the answer comes long after the script began."""

        now_s = 0.0

        def monotonic(self) -> float:
            self.now_s += 1.0
            if self.now_s > attach.SCRIPT_S + 20:
                began[0].with_suffix(".result").write_text("0")
            return self.now_s

        def sleep(self, seconds: float) -> None:
            pass

    monkeypatch.setattr(attach, "time", Clock())
    monkeypatch.setattr(sys, "remote_exec", begins_only, raising=False)
    assert attach.join(program.pid, folder, BUDGET).way == "sys.remote_exec"
    assert not list(folder.glob("attach-*"))
    program.end()


# What is refused, with the reason


def test_a_process_that_is_not_there(folder: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    with pytest.raises(RunError, match=f"process {gone.pid}: not there"):
        attach.join(gone.pid, folder, BUDGET)


def test_a_zombie(folder: Path) -> None:
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    with pytest.raises(RunError, match="has ended and only waits for its parent"):
        attach.join(zombie.pid, folder, BUDGET)
    zombie.wait()


def test_one_that_is_stopped_or_traced_already(
    target: Callable[[str], Target], folder: Path
) -> None:
    program = target(READS)
    os.kill(program.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, program.pid, os.WSTOPPED)
    with pytest.raises(RunError, match=f"is stopped.*kill -CONT {program.pid}"):
        attach.join(program.pid, folder, BUDGET)
    os.kill(program.pid, signal.SIGCONT)
    if shutil.which("strace"):
        with subprocess.Popen(
            ["strace", "-p", str(program.pid)], stderr=subprocess.PIPE, text=True
        ) as tracer:
            assert tracer.stderr is not None
            assert "attached" in tracer.stderr.readline()
            with pytest.raises(RunError, match=r"is traced by process \d+ \(strace\)"):
                attach.join(program.pid, folder, BUDGET)
            tracer.terminate()
    program.work()
    program.end()


def test_a_static_program(workload: Callable[..., Path], folder: Path) -> None:
    try:
        program = workload("attached", "-static")
    except subprocess.CalledProcessError:
        pytest.skip("there is no static C library to link with")
    with subprocess.Popen([program, "computes"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(RunError, match="static program or has another C library"):
            attach.join(process.pid, folder, BUDGET)
        process.terminate()
        assert process.stdout.read().startswith(b"fine")


def test_a_program_of_32_bits(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = tmp_path / "proc" / "17"
    (process / "task").mkdir(parents=True)
    (process / "status").write_text("Name:\told\nState:\tS (sleeping)\nTracerPid:\t0\n")
    (process / "exe").write_bytes(b"\x7fELF\x01\x01\x01" + bytes(11) + b"\x03\0")
    (process / "maps").write_text("")
    monkeypatch.setattr(attach, "PROC", tmp_path / "proc")
    with pytest.raises(RunError, match="32-bit"):
        attach.join(17, folder, BUDGET)


def test_one_that_sees_other_files(
    target: Callable[[str], Target], folder: Path, work: Path
) -> None:
    if os.geteuid():
        pytest.skip("only root can change a root")
    program = target("import os; os.chroot('.')\ndef work(): pass")
    with pytest.raises(RunError, match="as in a container"):
        attach.join(program.pid, folder, BUDGET)
    program.end()


@pytest.mark.parametrize(
    ("scope", "said"), [("3", "lets nobody attach"), ("2", "only root"), ("0", "CAP_SYS_PTRACE")]
)
def test_a_kernel_that_forbids_it_is_quoted(
    scope: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scope").write_text(f"{scope}\n")
    monkeypatch.setattr(attach, "PTRACE_SCOPE", tmp_path / "scope")
    assert said in attach._not_permitted(os.getpid())


def command(*words: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PENSTOCK, "attach", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=240,
        **options,
    )


def test_another_users_process(target: Callable[[str], Target], folder: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    program = target(READS)
    library = launch.library()
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setresuid(65534, 65534, 65534)
            attach._check(program.pid, library, folder)
        except RunError as error:
            os.write(theirs, str(error).encode())
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(theirs)
    with open(ours) as said:
        assert said.read() == (
            f"process {program.pid} belongs to user 0; attach as that user, or as root"
        )
    program.end()


# The command


def test_the_command_reports_after_the_time_and_the_program_goes_on(
    target: Callable[[str], Target], tmp_path: Path, work: Path
) -> None:
    program = target(READS)
    finished = command(program.pid, "--for", "200ms", "-o", tmp_path / "run", cwd=work)
    assert finished.returncode == 0, finished.stderr
    assert f"process {program.pid} is recorded into" in finished.stderr
    assert "Recorded in " in finished.stderr
    words = [PENSTOCK, "report", tmp_path / "run"]
    told = subprocess.run(words, capture_output=True, text=True, timeout=240).stdout
    assert "joined a process that ran already" in " ".join(told.split())
    program.work()
    program.end()


@samples
def test_the_page_faults_of_all_its_threads_are_sampled_meanwhile(
    target: Callable[[str], Target], tmp_path: Path
) -> None:
    program = target(
        MAPPED
        + """
import queue, threading
memory, turns, done = mapped("data.bin"), queue.Queue(), queue.Queue()
def follow():
    for places in iter(turns.get, None):
        touch(memory, places)
        done.put(None)
threading.Thread(target=follow, daemon=True).start()
at = 0
def work():
    global at
    touch(memory, range(at, at + 100))
    turns.put(range(at + 100, at + 150))
    done.get()
    child = os.fork()
    if not child:
        touch(memory, range(at + 200, at + 220))
        os._exit(0)
    os.waitpid(child, 0)
    at += 300
"""
    )
    program.work()
    words = [PENSTOCK, "attach", str(program.pid), "-q", "-o", tmp_path / "run"]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as attached:
        try:
            assert attached.stderr is not None
            while "Ctrl-C" not in attached.stderr.readline():
                assert attached.poll() is None
            program.work()
            attached.send_signal(signal.SIGINT)
            assert attached.wait(240) == 0
        finally:
            attached.kill()
    program.work()
    program.end()
    page = os.sysconf("SC_PAGESIZE")
    with open_run(tmp_path / "run") as run:
        rows = run.sql(
            "SELECT offset_bytes // ?, pid, duration_ns IS NULL FROM faults"
            " LEFT JOIN processes USING (process) WHERE path LIKE '%/data.bin'",
            [page],
        )
        assert measure(run).faults.quality == ("measured", "")
    places = [*range(300, 450), *range(500, 520)]
    assert sorted(place for place, _, _ in rows) == places
    assert {pid for place, pid, _ in rows if place < 450} == {program.pid}
    assert not any(has_no_begin for _, _, has_no_begin in rows)


def test_ctrl_c_leaves_the_process_and_its_children_running_and_unrecorded(
    target: Callable[[str], Target], tmp_path: Path
) -> None:
    program = target("""
        import os, time
        children = []
        for _ in range(2):
            if not (child := os.fork()):
                while True:
                    open("/dev/null").close()
                    time.sleep(0.01)
            children.append(child)
        import atexit, signal
        atexit.register(lambda: [os.kill(child, signal.SIGKILL) for child in children])
        def work(): pass
    """)
    run = tmp_path / "run"
    with subprocess.Popen(
        [PENSTOCK, "attach", str(program.pid), "--children", "-q", "-o", run],
        stderr=subprocess.PIPE,
        text=True,
    ) as attached:
        try:
            assert attached.stderr is not None
            while "Ctrl-C" not in attached.stderr.readline():
                assert attached.poll() is None
            assert len(attach.recorded(run)) == 3
            attached.send_signal(signal.SIGINT)
            assert attached.wait(240) == 0
        finally:
            attached.kill()
    assert attach.recorded(run) == []
    assert len(attach.descendants(program.pid)) == 2
    program.end()


def test_a_recording_whose_attach_was_killed_is_ended_by_another(
    target: Callable[[str], Target], tmp_path: Path
) -> None:
    program, run = target(READS), tmp_path / "run"
    said = command(program.pid, "--stop")
    assert (said.returncode, said.stderr) == (
        0,
        f"penstock: process {program.pid} was not recorded\n",
    )
    assert not attach.has_recorder(program.pid)
    with subprocess.Popen(
        [PENSTOCK, "attach", str(program.pid), "-o", run], stderr=subprocess.PIPE, text=True
    ) as attached:
        assert attached.stderr is not None
        while "Ctrl-C" not in attached.stderr.readline():
            assert attached.poll() is None
        attached.kill()
    again = command(program.pid, "-o", tmp_path / "again")
    assert again.returncode == 2
    assert f"`penstock attach {program.pid} --stop` ends that" in again.stderr
    program.work()
    said = command(program.pid, "--stop")
    assert (said.returncode, said.stderr) == (
        0,
        f"penstock: process {program.pid} is recorded no more\n",
    )
    assert attach.recorded(run) == []
    program.work()
    program.end()
    with open_run(run) as opened:
        assert reads_of_data(opened) == [(11, 40960)]


def test_without_proc_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "PROC", folder / "nothing")
    with pytest.raises(RunError, match="is not mounted here"):
        attach.join(17, folder, BUDGET)


def test_a_process_that_cannot_be_joined_leaves_no_folder(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    finished = command(gone.pid, "-o", tmp_path / "run")
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1
    assert not (tmp_path / "run").exists()
