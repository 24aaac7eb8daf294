"""Ctrl-C during a query ends a command with the usual sentence and status, and leaves nothing."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK

INTERRUPTED = 130
SLOW = "SELECT count(*) FROM range(100000000000000) a WHERE a.range % 7 = 3"

# The first query of the command takes very long; meanwhile the command sends Ctrl-C to its own
# process.
DRIVER = f"""
import os, signal, sys, threading
import duckdb

class Slow:
    def __init__(self, connection):
        self._connection = connection
    def __getattr__(self, name):
        return getattr(self._connection, name)
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self._connection.close()
    def cursor(self):
        return Slow(self._connection.cursor())
    def execute(self, *asked):
        if threading.current_thread() is not threading.main_thread():
            return self._connection.execute(*asked)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        return self._connection.execute({SLOW!r})

connect = duckdb.connect
duckdb.connect = lambda *given, **ways: Slow(connect(*given, **ways))
from penstock.cli import main
main()
"""


@pytest.fixture(scope="module")
def run_folder(made_once: Callable[..., Path]) -> Path:
    def make(path: Path) -> None:
        program = (
            "import penstock\nfor i in range(20):\n    open('/etc/hosts').read(); penstock.step()"
        )
        asked = [PENSTOCK, "run", "-q", "-o", path, "--", sys.executable, "-c", program]
        subprocess.run(asked, check=True, timeout=120)

    return made_once(["run of Ctrl-C"], make)


def copied(run_folder: Path, to: Path) -> Path:
    """A run without tables: the command has to make them, with queries."""
    to.mkdir()
    for log in run_folder.iterdir():
        if log.is_file():
            (to / log.name).write_bytes(log.read_bytes())
    return to


def tables_made(folder: Path) -> Path:
    from penstock.runs.run import open_run

    open_run(folder).close()
    return folder


def left_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def interrupted(command: Sequence[Any], work: Path, temporary: Path) -> None:
    temporary.mkdir()
    before = left_in(work)
    ended = subprocess.run(
        [sys.executable, "-c", DRIVER, *command],
        cwd=work,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (ended.returncode, ended.stdout) == (INTERRUPTED, ""), ended.stderr
    assert ended.stderr == "\npenstock: interrupted\n"
    assert left_in(work) == before
    assert left_in(temporary) == set()


@pytest.mark.parametrize(
    ("command", "has_tables"),
    [
        (["report", "run"], False),
        (["report", "run"], True),
        (["sql", "run", "SELECT 1"], True),
        (["timeline", "run"], True),
        (["check", "run", "--max-stall", "10"], True),
        (["compare", "run", "run"], False),
        (["export", "run", "--to", "darshan", "-o", "made"], True),
        (["reduce", "run", "-o", "made.reduced"], False),
        (["tensorboard", "run", "--logdir", "made"], True),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else f"tables {value}",
)
def test_ctrl_c_in_a_query_ends_any_command(
    run_folder: Path, work: Path, tmp_path: Path, command: list[str], has_tables: bool
) -> None:
    folder = copied(run_folder, work / "run")
    if has_tables:
        tables_made(folder)
    interrupted(command, work, tmp_path / "temporary")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_ctrl_c_ends_a_long_query_of_a_user(run_folder: Path, work: Path, tmp_path: Path) -> None:
    folder = tables_made(copied(run_folder, work / "run"))
    before = left_in(work)
    (tmp_path / "temporary").mkdir()
    asking = subprocess.Popen(
        [PENSTOCK, "sql", folder, SLOW],
        env=os.environ | {"TMPDIR": str(tmp_path / "temporary")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        # All that precedes the query takes less CPU time.
        while asking.poll() is None and cpu_s(asking.pid) < 4:
            time.sleep(0.05)
        asking.send_signal(signal.SIGINT)
        said, wrong = asking.communicate(timeout=60)
    finally:
        asking.kill()
        asking.wait()
    assert (asking.returncode, said, wrong) == (INTERRUPTED, "", "\npenstock: interrupted\n")
    assert left_in(work) == before
    assert left_in(tmp_path / "temporary") == set()


def test_an_error_of_another_kind_stays_an_error() -> None:
    from penstock.errors import QueryError
    from penstock.runs import ctrl_c

    with pytest.raises(RuntimeError, match="something else"), ctrl_c.heard():
        raise RuntimeError("something else")
    with pytest.raises(QueryError), ctrl_c.heard():
        raise QueryError("Query interrupted")
    interrupted = QueryError("queries/x.sql")
    interrupted.__cause__ = RuntimeError("Query interrupted")
    with pytest.raises(KeyboardInterrupt), ctrl_c.heard():
        raise interrupted
