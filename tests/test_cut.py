"""Files of a run or of a tier are cut while the job runs: the job goes on as if unrecorded, and what
is left of the recording says so."""

import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PENSTOCK
from penstock.log import read_header
from penstock.texts import logs_in

# Cuts what it is told of its own run after some steps, in the main thread or below it.
PROGRAM = """
import faulthandler, glob, os, sys, threading
import penstock

which, size, how = sys.argv[1:]
faulthandler.enable()  # takes SIGBUS, as training frameworks do

def steps(n):
    for _ in range(n):
        with penstock.step():
            with open(__file__, 'rb') as file:
                for _ in range(100):
                    file.read(1)

def cut():
    names = glob.glob(os.path.join(os.environ['PENSTOCK_RUN'], which))
    assert names
    for name in names:
        os.truncate(name, int(size))

steps(20)
if how == 'thread':
    thread = threading.Thread(target=lambda: (steps(5), cut(), steps(200)))
    thread.start()
    thread.join()
elif how == 'fork':
    pid = os.fork()
    if not pid:
        steps(5); cut(); steps(200)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    steps(200)
else:
    cut()
steps(200)
print('done')
"""


@pytest.mark.parametrize("how", ["main", "thread", "fork"])
@pytest.mark.parametrize(("which", "size"), [("*.events", 0), ("*.events", 70000), ("control", 0)])
def test_a_job_outlives_what_is_cut(tmp_path: Path, which: str, size: int, how: str) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    ran = subprocess.run(
        [PENSTOCK, "run", "-o", "run", sys.executable, "program.py", which, str(size), how],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (ran.returncode, ran.stdout) == (0, "done\n"), ran.stderr[-4000:]
    headers = [read_header(path) for path in logs_in(tmp_path / "run")]
    if which == "control":
        assert {header.state for header in headers} == {"exited"}
        assert "has cut" not in ran.stderr
    else:
        assert "has cut a log" in ran.stderr
        assert ran.stderr.count("has cut a log") == 1
        said = [header.reason for header in headers if header.state == "failed"]
        assert said
        assert all("another program has cut a log" in reason for reason in said)
        assert "recording incomplete" in ran.stderr
