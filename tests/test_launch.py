"""`penstock run` stands in for the program: what goes in and out is the program's own."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import penstock
from fixtures import PENSTOCK
from penstock.errors import RunError, StartError
from penstock.recording import launch

Run = Callable[..., subprocess.CompletedProcess[str]]

needs_library = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)


@pytest.fixture
def penstock_run(tmp_path: Path) -> Run:
    """`penstock run -q` of a command in tmp_path, output captured, any status."""

    def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [PENSTOCK, "run", "-q", *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            **options,
        )

    return run


# Status, arguments, streams


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_the_exit_status_is_the_programs(penstock_run: Run, status: int) -> None:
    assert penstock_run("sh", "-c", f"exit {status}").returncode == status


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_a_program_that_a_signal_ended_ends_us_by_the_same_signal(
    penstock_run: Run, number: signal.Signals
) -> None:
    # sh resets SIGINT, for which Python has a handler.
    program = f"exec sh -c 'kill -{int(number)} $$'"
    assert penstock_run("sh", "-c", program).returncode == -number


def test_a_program_that_is_not_there_gives_127_and_leaves_no_folder(
    penstock_run: Run, tmp_path: Path
) -> None:
    finished = penstock_run("no-such-program")
    assert finished.returncode == 127
    assert finished.stderr == "penstock: no-such-program: not found; nothing was run\n"
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_executed_gives_126(penstock_run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    finished = penstock_run("./file")
    assert finished.returncode == 126
    assert finished.stderr == "penstock: ./file: Permission denied; nothing was run\n"


def test_a_script_without_a_first_line_runs_in_sh_as_env_and_nohup_do_it(
    penstock_run: Run, tmp_path: Path
) -> None:
    script = tmp_path / "script"
    script.write_text('echo "$0 $1"\n')
    script.chmod(0o755)
    assert penstock_run("./script", "one").stdout.endswith("script one\n")


def test_arguments_pass_through_untouched(penstock_run: Run) -> None:
    arguments = ["--help", "-h", "-o", "x", "--output=y", "-q", "--", "a b", "", "*", "--budget"]
    program = "import sys, json; print(json.dumps(sys.argv[1:]))"
    finished = penstock_run(sys.executable, "-c", program, *arguments)
    assert json.loads(finished.stdout) == arguments
    finished = penstock_run("--", sys.executable, "-c", program, *arguments)
    assert json.loads(finished.stdout) == arguments


def test_standard_streams_are_the_programs_own(penstock_run: Run) -> None:
    finished = penstock_run("sh", "-c", "cat; echo err >&2", input="line\n")
    assert finished.stdout == "line\n"
    assert finished.stderr == "err\n"


def test_the_program_starts_with_the_signals_and_descriptors_it_would_have(
    penstock_run: Run, tmp_path: Path
) -> None:
    # SIGPIPE and SIGXFSZ, which Python ignores, and the mask, which we use, are as without us.
    program = r"grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -l"
    alone = subprocess.run(["sh", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    under_us = penstock_run("sh", "-c", program).stdout
    assert without_libcs_signals(under_us) == without_libcs_signals(alone.stdout)


def without_libcs_signals(status: str) -> str:
    """glibc keeps signals 32 and 33 to itself: its posix_spawn and its threads change them."""
    return re.sub(
        r"(?<=SigIgn:\t)\w+", lambda bits: f"{int(bits[0], 16) & ~0x180000000:016x}", status
    )


# Signals


COUNTING = """
    import collections, os, signal, sys, time
    counts = collections.Counter()
    def count(number, frame): counts[signal.Signals(number).name] += 1
    for name in sys.argv[1:]:
        signal.signal(getattr(signal, name), count)
    print(os.getpid(), flush=True)
    deadline = time.monotonic() + 240
    while not counts["SIGTERM"] and time.monotonic() < deadline:
        signal.sigtimedwait([], 0.02)  # handlers run here
    print(sorted(counts.items()), flush=True)
"""


def counting(tmp_path: Path, *names: str) -> list[str | Path]:
    program = tmp_path / "counting.py"
    program.write_text(textwrap.dedent(COUNTING))
    return [sys.executable, program, *names]


def test_signals_sent_to_us_reach_the_program_once(tmp_path: Path) -> None:
    names = ["SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGTERM"]
    with subprocess.Popen(
        [PENSTOCK, "run", "-q", *counting(tmp_path, *names)],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        for name in names:
            process.send_signal(getattr(signal, name))
        said = process.stdout.read()
    assert said == f"{sorted((name, 1) for name in names)}\n"
    assert process.returncode == 0


def test_a_launcher_that_is_stopped_for_a_while_goes_on_and_sends_nothing_by_itself(
    tmp_path: Path,
) -> None:
    """CPython's sigtimedwait took what lay in memory for a signal then."""
    with subprocess.Popen(
        [PENSTOCK, "run", "-q", *counting(tmp_path, "SIGUSR1", "SIGTERM")],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        program = int(process.stdout.readline())
        try:
            process.send_signal(signal.SIGUSR1)
            for _ in range(2):
                time.sleep(0.2)
                process.send_signal(signal.SIGSTOP)
                time.sleep(1.5)
                process.send_signal(signal.SIGCONT)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            said, error = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.kill(program, signal.SIGKILL)
    assert (said, error, process.returncode) == ("[('SIGTERM', 1), ('SIGUSR1', 1)]\n", "", 0)


def test_a_signal_that_the_program_sends_to_its_group_is_not_sent_back(penstock_run: Run) -> None:
    program = textwrap.dedent("""
        import os, signal, time
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
        os.killpg(0, signal.SIGUSR1)
        for _ in range(25):
            signal.sigtimedwait([], 0.02)
        print(len(seen))
    """)
    finished = penstock_run(sys.executable, "-c", program, start_new_session=True)
    assert finished.stdout == "1\n"
    assert finished.returncode == 0


class Terminal:
    """A command on a pseudo-terminal of its own, as a shell would start it in the foreground."""

    def __init__(self, command: list[str | Path], folder: Path) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execv(command[0], [str(word) for word in command])
        self.text = ""

    def read_until(self, wanted: str) -> str:
        deadline = time.monotonic() + 240
        while wanted not in self.text:
            ready, _, _ = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))
            assert ready, f"{wanted!r} did not come, but {self.text!r}"
            self.text += os.read(self.fd, 4096).decode()
        return self.text

    def type(self, keys: bytes) -> None:
        os.write(self.fd, keys)

    def wait(self, options: int = 0) -> int:
        return os.waitpid(self.pid, options)[1]


def test_control_c_reaches_the_program_once(tmp_path: Path) -> None:
    terminal = Terminal([PENSTOCK, "run", "-q", *counting(tmp_path, "SIGINT", "SIGTERM")], tmp_path)
    program = int(terminal.read_until("\n").split()[-1])
    terminal.type(b"\x03")
    terminal.read_until("^C")
    deadline = time.monotonic() + 0.5  # long enough for a second one to come, if it comes
    while time.monotonic() < deadline:
        select.select([], [], [], 0.05)
    os.kill(program, signal.SIGTERM)
    assert "('SIGINT', 1)" in terminal.read_until("]")
    assert os.waitstatus_to_exitcode(terminal.wait()) == 0


def test_control_z_stops_both_and_they_go_on_together(tmp_path: Path) -> None:
    # An outer process plays the shell: a group leader with no one above would ignore ^Z.
    shell = tmp_path / "shell.py"
    shell.write_text(
        textwrap.dedent("""
        import os, signal, sys
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.tcsetpgrp(0, os.getpid())
            signal.signal(signal.SIGTTOU, signal.SIG_DFL)
            os.execv(sys.argv[1], sys.argv[1:])
        _, status = os.waitpid(pid, os.WUNTRACED)
        print("stopped", os.WIFSTOPPED(status), flush=True)
        os.tcsetpgrp(0, pid)
        os.killpg(pid, signal.SIGCONT)
        _, status = os.waitpid(pid, 0)
        print("ended", os.waitstatus_to_exitcode(status), flush=True)
        """)
    )
    terminal = Terminal(
        [Path(sys.executable), shell, PENSTOCK, "run", "-q", "sh", "-c", "echo up; read x; exit 5"],
        tmp_path,
    )
    terminal.read_until("up")
    terminal.type(b"\x1a")
    terminal.read_until("stopped True")
    terminal.type(b"go\n")
    terminal.read_until("ended 5")
    terminal.wait()


# The folder and the environment


@needs_library
def test_the_recorder_goes_ahead_of_what_the_user_preloads(penstock_run: Run) -> None:
    theirs = "/lib/x86_64-linux-gnu/libm.so.6"
    if not Path(theirs).exists():
        theirs = "libm.so.6"
    program = "import os; print(os.environ['LD_PRELOAD'])"
    finished = penstock_run(
        sys.executable, "-c", program, env=os.environ | {"LD_PRELOAD": f"{theirs} {theirs}"}
    )
    ours = Path(penstock.__file__).with_name("librec.so")
    assert finished.stdout == f"{ours}:{theirs}:{theirs}\n"


def test_the_environment_is_the_users_and_five_variables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "librec.so"
    library.touch()
    monkeypatch.setenv("PENSTOCK_LIBRARY", str(library))
    assert launch.environment(Path("/run"), 5, {"A": "b"}) == {
        "A": "b",
        "LD_PRELOAD": str(library),
        "PENSTOCK_RUN": "/run",
        "PENSTOCK_BUDGET": "5",
        "PENSTOCK_LINES": "1",
        "ASAN_OPTIONS": "verify_asan_link_order=0",
    }
    theirs = {"LD_PRELOAD": f"{library}:/x.so", "ASAN_OPTIONS": "detect_leaks=0"}
    again = launch.environment(Path("/other"), 5, theirs)
    assert again["LD_PRELOAD"] == f"{library}:/x.so"
    assert again["ASAN_OPTIONS"] == "detect_leaks=0:verify_asan_link_order=0"
    assert launch.environment(Path("/other"), 5, again)["ASAN_OPTIONS"] == again["ASAN_OPTIONS"]


def test_a_library_whose_path_the_loader_cannot_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "with space" / "librec.so"
    library.parent.mkdir()
    library.touch()
    monkeypatch.setenv("PENSTOCK_LIBRARY", str(library))
    with pytest.raises(RunError, match="a space or a colon"):
        launch.library()


def test_a_folder_that_cannot_be_written_is_told_in_a_line_and_the_program_runs(
    penstock_run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    finished = penstock_run("-o", "file/run", "sh", "-c", "echo ran; exit 4")
    assert finished.returncode == 4
    assert finished.stdout == "ran\n"
    assert finished.stderr.startswith(f"penstock: {tmp_path}/file/run: Not a directory; ")
    assert finished.stderr.endswith("the program runs unrecorded\n")
    assert finished.stderr.count("\n") == 1


def test_a_run_is_never_added_to_another(penstock_run: Run, tmp_path: Path) -> None:
    for _ in range(3):
        finished = penstock_run("-o", "run", "true")
        assert finished.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-2", "run-3"]
    assert finished.stderr == "penstock: run is not empty; this run goes to run-3\n"


def test_run_json_says_what_ran_where_when_and_how_it_ended(
    penstock_run: Run, tmp_path: Path
) -> None:
    before = time.time_ns()
    penstock_run("-o", "run", "sh", "-c", "exit 3")
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["command"] == ["sh", "-c", "exit 3"]
    assert facts["folder"] == str(tmp_path)
    assert facts["status"] == 3
    assert before <= facts["start_unix_ns"] <= facts["end_unix_ns"] <= time.time_ns()
    assert set(facts) >= {"host", "penstock"}


@needs_library
def test_a_killed_program_lives_until_penstock_run_saw_it_end(
    penstock_run: Run, tmp_path: Path
) -> None:
    from penstock.runs.run import open_run

    program = """
import os, signal, time
open("/dev/null").close()
before = time.monotonic()
while time.monotonic() < before + 0.3:
    pass
os.kill(os.getpid(), signal.SIGKILL)
"""
    with open(tmp_path / "out", "w") as out:
        subprocess.run(
            [PENSTOCK, "run", "-q", "-o", "run", sys.executable, "-c", program],
            cwd=tmp_path,
            stdout=out,
            check=False,
        )
    with open_run(tmp_path / "run") as run:
        ((state, reason, after_ns),) = run.sql(
            "SELECT state, reason, end_ns - (SELECT max(start_ns + duration_ns) FROM events"
            " WHERE path = '/dev/null') FROM processes"
        )
        classes = run.sql("SELECT path_class FROM files WHERE path LIKE '%/out'")
    assert (state, reason) == ("killed", "by SIGKILL")
    assert after_ns > 300_000_000
    assert list(classes) == [("output",)]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["./train"], "train"),
        (["python", "train.py", "--model", "x.py"], "train"),
        (["/usr/bin/python3.11", "-u", "-W", "ignore", "a/train.py"], "train"),
        (["python", "-m", "package.train"], "train"),
        (["python", "-c", "print(1)"], "python"),
        (["python"], "python"),
        (["torchrun", "--nproc-per-node", "2", "train.py"], "torchrun"),
        (["a b;c"], "a-b-c"),
    ],
)
def test_a_folder_is_named_after_what_runs(
    command: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    folder = launch.make_folder(command, None, now_s=0.0)
    assert folder == tmp_path / "penstock-runs" / f"{name}-19700101-000000"


def test_starting_nothing_raises_with_the_status_of_a_shell(tmp_path: Path) -> None:
    with pytest.raises(StartError) as caught:
        launch.run([str(tmp_path / "absent")], os.environ)
    assert caught.value.status == 127
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()


# The report at the end


@needs_library
def test_a_report_that_fails_changes_neither_output_nor_status(tmp_path: Path) -> None:
    finished = subprocess.run(
        [PENSTOCK, "run", "-o", "run", "sh", "-c", "rm -rf run; echo out; exit 6"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 6
    assert finished.stdout == "out\n"
    assert finished.stderr.startswith("penstock: no report: ")
    assert "Traceback" not in finished.stderr


@needs_library
def test_a_run_folder_that_was_moved_away_is_told_with_what_to_do(tmp_path: Path) -> None:
    finished = subprocess.run(
        [PENSTOCK, "run", "-o", "run", "sh", "-c", "mv run elsewhere"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0
    assert finished.stderr == (
        f"penstock: no report: {tmp_path}/run: not there any more; if it was moved, its logs are "
        "whole: penstock report, with the folder's new name\n"
    )
    again = subprocess.run(
        [PENSTOCK, "report", "elsewhere"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.returncode == 0, again.stderr


@needs_library
@pytest.mark.parametrize("has_failed", [True, False])
def test_a_disk_that_is_full_at_the_end_is_told_of_once_and_leaves_no_draft(
    has_failed: bool, tmp_path: Path
) -> None:
    """`failed` is left by the recorder when it has told of the disk."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "none", tmp_path / "disk"]
    (tmp_path / "disk").mkdir()
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs a small file system")
    try:
        _fill_the_disk(has_failed, tmp_path / "disk")
    finally:
        subprocess.run(["umount", tmp_path / "disk"], check=True)


def _fill_the_disk(has_failed: bool, tmp_path: Path) -> None:
    program = "cat /dev/zero > run/zeros 2> /dev/null; true" + "; touch run/failed" * has_failed
    for options in (["-q"], []):
        finished = subprocess.run(
            [PENSTOCK, "run", *options, "-o", "run", "sh", "-c", program],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert finished.returncode == 0
        lines = [line for line in finished.stderr.split("\n") if line.startswith("penstock: ")]
        where = f"penstock: {tmp_path}/run/run.json: No space left on device"
        expected = [] if has_failed else [f"{where}; the log itself is not touched"]
        assert lines == expected
        assert ("No training steps seen" in finished.stderr) == (not options)
        assert not list((tmp_path / "run").glob(".run.json.*"))
        assert "status" not in (tmp_path / "run/run.json").read_text()
        shutil.rmtree(tmp_path / "run")


@needs_library
def test_the_report_goes_to_standard_error_and_can_be_had_again(tmp_path: Path) -> None:
    finished = subprocess.run(
        [PENSTOCK, "run", "-o", "run", sys.executable, "-c", "print(open('run/run.json').name)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0
    assert finished.stdout == "run/run.json\n"
    again = subprocess.run(
        [PENSTOCK, "report", "run"], cwd=tmp_path, capture_output=True, text=True
    )
    assert again.stdout.splitlines()[:2] == finished.stderr.splitlines()[:2]
    assert "  penstock report run  " in finished.stderr


def test_ctrl_c_after_the_report_leaves_the_exit_status_of_the_job(tmp_path: Path) -> None:
    """The interpreter takes a while to end; the key used to end it by the signal."""
    with subprocess.Popen(
        [PENSTOCK, "run", "-o", "run", "sh", "-c", "exit 7"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    ) as job:
        assert job.stderr is not None
        while "penstock watch NEXT" not in job.stderr.readline():
            assert job.poll() is None
        for _ in range(20):
            job.send_signal(signal.SIGINT)
            time.sleep(0.01)
    assert job.returncode == 7


def test_an_end_that_another_thread_was_told_of_is_seen() -> None:
    """The kernel gives a SIGCHLD that the main thread blocks, and does not wait for just then, to
    any other thread, where it is thrown away."""
    program = """
import os, threading, time
from pathlib import Path
from penstock.recording import launch
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
child = launch._Program(["sh", "-c", "exit 7"], os.environ)
while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.01)
print(child.wait(), flush=True)
os._exit(0)
"""
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=40
    )
    assert told.stdout == "7\n", told.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="takes /proc away: needs root"
)
def test_without_proc_the_program_runs_and_the_reason_is_said(tmp_path: Path) -> None:
    away = 'mount --make-rprivate / && umount -l /proc && exec "$@"'
    words = ["unshare", "-m", "sh", "-c", away, "sh", PENSTOCK, "run", "-o", tmp_path / "run"]
    done = subprocess.run([*words, "sh", "-c", "exit 5"], capture_output=True, text=True)
    if "umount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"/proc stays: {done.stderr.strip()}")
    assert done.returncode == 5
    assert "/proc is not mounted here" in " ".join(done.stderr.split())
