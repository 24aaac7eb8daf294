"""What goes wrong around a recorded job must not go wrong in it, and must be said."""

import glob
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.measures import measure
from penstock.log.events import read_log
from penstock.log.layout import CALLS, OPS
from penstock.runs.run import open_run

PENSTOCK = Path(sysconfig.get_path("scripts")) / "penstock"
IS_ROOT = os.geteuid() == 0

READER = """
import os, sys
fd = os.open("data", os.O_RDONLY)
for i in range(int(sys.argv[1])):
    os.pread(fd, 100 + i % 3, i)
os.close(fd)
print("done")
"""


@pytest.fixture
def data(work: Path) -> Path:
    (work / "data").write_bytes(bytes(100_000))
    return work / "data"


def run_in(folder: Path, work: Path, *command: str | Path, **options: Any) -> Any:
    return subprocess.run(
        [PENSTOCK, "run", "-q", "-o", folder, "--", *command],
        cwd=work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
        **options,
    )


# Other libraries in the process


@pytest.mark.usefixtures("data")
def test_a_foreign_allocator_is_neither_hurt_nor_missed(recorded: Callable[..., Any]) -> None:
    found = glob.glob("/usr/lib/*/libjemalloc.so.2")
    if not found:
        pytest.skip("needs libjemalloc2 (make setup-system)")
    run = recorded(READER, args=["3000"], environment={"LD_PRELOAD": found[0]})
    rows = run.sql(
        "select count(*) from events where op = 'pread' and parse_filename(path) = 'data'"
    )
    assert [tuple(row) for row in rows] == [(3000,)]
    opened = run.sql("select count(*) from events where op = 'open' and path like '%jemalloc%'")
    assert opened is not None


def test_daemon_threads_that_read_at_exit_leave_a_whole_log(
    recorded: Callable[..., Any], data: Path
) -> None:
    run = recorded(f"""
        import os, threading
        started = threading.Barrier(5)

        def read():
            fd = os.open({str(data)!r}, os.O_RDONLY)
            os.pread(fd, 7, 0)
            started.wait()
            while True:
                os.pread(fd, 9, 0)

        for _ in range(4):
            threading.Thread(target=read, daemon=True).start()
        started.wait()
    """)
    rows = run.sql(
        "select count(*) from events where op = 'pread' and moved_bytes = 7 and path like '%/data'"
    )
    assert [tuple(row) for row in rows] == [(4,)]


# Programs that ask for trouble, or make it


@pytest.mark.parametrize("name", ["bad_pointers", "fork_in_handler"])
@pytest.mark.usefixtures("data")
def test_what_a_program_survives_it_survives_recorded(
    name: str, workload: Callable[..., Path], work: Path, recorded_command: Callable[..., Any]
) -> None:
    subprocess.run([workload(name)], cwd=work, check=True)
    recorded_command([workload(name)])


@pytest.mark.usefixtures("data")
def test_a_number_that_comes_back_as_another_file_is_that_file(
    workload: Callable[..., Path], recorded_command: Callable[..., Any]
) -> None:
    run = recorded_command([workload("reused")])
    rows = run.sql(
        """
        select regexp_extract(path, '(memfd|temporary|data$|passwd)'), op, sum(moved_bytes)
        from events where moved_bytes in (5, 77, 100, 10) and op in ('read', 'write')
            and regexp_matches(path, '(memfd|temporary|/data$|passwd)')
        group by all order by all
        """
    )
    assert [tuple(row) for row in rows] == [
        ("data", "read", 5),
        ("memfd", "write", 77),
        ("passwd", "read", 10),
        ("temporary", "write", 100),
    ]


def test_the_recorders_last_word_goes_to_standard_error_or_nowhere(
    work: Path, tmp_path: Path
) -> None:
    program = """
import os, shutil, sys
os.close(2)
fd = os.open("precious", os.O_RDWR | os.O_CREAT)
assert fd == 2
shutil.rmtree(sys.argv[1])
for i in range(10_000):
    os.pwrite(fd, b"0123456789", 0)
"""
    folder = tmp_path / "run"
    run_in(folder, work, sys.executable, "-c", program, folder)
    assert (work / "precious").read_bytes() == b"0123456789"


def test_a_childs_folder_is_not_its_parents(recorded: Callable[..., Any], work: Path) -> None:
    (work / "other").mkdir()
    shutil.copy(shutil.which("true") or "", work / "other" / "program")
    run = recorded(
        """
        import os, subprocess
        os.chdir("/"); os.chdir(os.environ["OLDPWD_OF_TEST"])
        subprocess.run(["./program"], cwd="other", close_fds=False, check=True)
        open("after", "w").write("x")
    """,
        environment={"OLDPWD_OF_TEST": str(work)},
    )
    rows = run.sql("select distinct path from events where parse_filename(path) = 'after'")
    assert [row[0] for row in rows] == [str(work / "after")]


def test_the_environment_is_the_programs_while_a_shell_runs(recorded: Callable[..., Any]) -> None:
    recorded("""
        import ctypes, os, threading, tempfile, penstock
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        for name in list(os.environ):
            del os.environ[name]
        threads = [threading.Thread(target=os.system, args=("exit 0",)) for _ in range(20)]
        for thread in threads:
            thread.start()
            os.environ["NEW"] = "1"
            assert libc.getenv(b"LD_PRELOAD") is None
        for thread in threads:
            thread.join()
        assert libc.getenv(b"LD_PRELOAD") is None and libc.getenv(b"NEW") == b"1"
    """)


# Programs that the loader keeps to itself


@pytest.mark.skipif(
    not IS_ROOT, reason="making a set-uid program and being somebody else needs root"
)
def test_a_set_uid_program_runs_and_is_named_as_unseen() -> None:
    if not shutil.which("setpriv"):
        pytest.skip("needs setpriv (util-linux)")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        folder = Path(name)
        folder.chmod(0o777)
        program = folder / "privileged-true"
        shutil.copy(shutil.which("true") or "", program)
        program.chmod(0o4755)
        (folder / "run").mkdir()
        (folder / "run").chmod(0o777)
        import penstock

        library = folder / "librec.so"
        shutil.copy(Path(penstock.__file__).parent / "librec.so", library)
        library.chmod(0o755)
        subprocess.run(
            ["setpriv", "--reuid=65534", "--clear-groups", "--", "env", "-i"]
            + [f"LD_PRELOAD={library}", f"PENSTOCK_RUN={folder / 'run'}"]
            + ["/bin/sh", "-c", f"{program}; exit 0"],
            check=True,
        )
        with open_run(folder / "run") as run:
            rows = run.sql("select program, reason from unseen")
            assert any(row[0].endswith("privileged-true") and "set-uid" in row[1] for row in rows)


# Room


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", place], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mounting a small file system needs root")
    yield place
    subprocess.run(["umount", place], check=True)


@pytest.mark.usefixtures("data")
def test_a_full_disk_ends_the_recording_and_not_the_job(small_disk: Path, work: Path) -> None:
    finished = run_in(small_disk / "run", work, sys.executable, "-c", READER, "200000")
    assert (finished.returncode, finished.stdout) == (0, "done\n")
    said = [line for line in finished.stderr.splitlines() if "the program goes on" in line]
    assert len(said) == 1
    assert "no space left" in said[0]
    with open_run(small_disk / "run") as run:
        [(state, reason)] = run.sql("select state, reason from processes")
        assert state == "failed"
        assert "no space left" in reason
        [(kept,)] = run.sql("select count(*) from events where op = 'pread' and path like '%/data'")
        assert 10_000 < kept < 200_000
        # Ours are the preads, the close, and what Python calls between the failure and its end.
        [(counted,)] = run.sql("select lost_events from processes")
        assert 200_000 - kept + 1 <= counted <= 200_000 - kept + 100
        assert measure(run).counts_state[0] == "incomplete"


@pytest.mark.usefixtures("data")
def test_a_run_folder_in_memory_records_as_any(work: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        finished = run_in(Path(name) / "run", work, sys.executable, "-c", READER, "5000")
        assert finished.returncode == 0
        with open_run(Path(name) / "run") as run:
            [(n,)] = run.sql(
                "select count(*) from events where op = 'pread' and path like '%/data'"
            )
            assert n == 5000


def test_a_file_size_limit_of_the_job_does_not_end_it(work: Path, tmp_path: Path) -> None:
    (work / "data").write_bytes(bytes(100_000))
    limited = f"ulimit -f 600; exec {sys.executable} -c '{READER}' 100000"
    finished = run_in(tmp_path / "run", work, "bash", "-c", limited)
    assert (finished.returncode, finished.stdout) == (0, "done\n")


# The budget


@pytest.mark.usefixtures("data")
def test_past_the_budget_every_count_is_what_it_would_have_been(
    recorded: Callable[..., Any],
) -> None:
    question = """
        select parse_filename(path), op, sum(calls), sum(errors), sum(asked_bytes),
            sum(moved_bytes), max(max_end_bytes), sum(sequential), sum(consecutive),
            sum(switches), sum(unaligned), sum(empty), sum(bucket_0), sum(bucket_1)
        from counters where parse_filename(path) = 'data' group by all order by all
    """
    whole = recorded(READER, args=["50000"])
    thinned = recorded(READER, args=["50000"], options=["--budget", "256KiB"])
    assert [tuple(row) for row in thinned.sql(question)] == [
        tuple(row) for row in whole.sql(question)
    ]
    [(kept,)] = thinned.sql("select count(*) from events where op = 'pread' and path like '%/data'")
    [(folded,)] = thinned.sql("select sum(folded_events) from processes")
    assert kept < 15_000
    assert folded > 30_000


CONSECUTIVE = """
import os
fd = os.open("data", os.O_RDONLY)
for place in range(20000):
    os.pread(fd, 4, 4 * place)
"""


@pytest.mark.usefixtures("data")
def test_past_the_budget_a_read_where_the_last_one_ended_is_in_order(
    recorded: Callable[..., Any],
) -> None:
    run = recorded(CONSECUTIVE, options=["--budget", "256KiB"])
    [(folded,)] = run.sql("select sum(folded_events) from processes")
    assert folded > 10_000
    question = """
        select sum(calls), sum(sequential), sum(consecutive) from counters
        where op = 'pread' and parse_filename(path) = 'data'
    """
    assert [tuple(row) for row in run.sql(question)] == [(20_000, 20_000, 20_000)]


SYNCING = """
import os
fd = os.memfd_create("data")  # in memory: a sync has nothing to do
for _ in range(20000):
    os.fsync(fd)
"""


def test_past_the_budget_a_sync_is_counted_and_is_no_access(recorded: Callable[..., Any]) -> None:
    """Counters of accesses tell sizes, places and what moved nothing: of calls that move bytes."""
    run = recorded(SYNCING, options=["--budget", "256KiB"])
    [(folded,)] = run.sql("select sum(folded_events) from processes")
    assert folded > 10_000
    [(calls,)] = run.sql("select sum(calls) from counters where op = 'fsync'")
    assert calls == 20_000
    number = {op.name: op.number for op in OPS}["fsync"]
    kinds = {
        counters.dtype
        for path in run.folder.glob("*.events")
        for counters in read_log(path).counters()
        if (counters["op"] == number).any()
    }
    assert kinds == {CALLS}
