"""Files of a run or of a tier are cut while the job runs: the job goes on as if unrecorded, and the
rest of the recording says so.  A closed block that is damaged later is told from a whole one."""

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.log.events import read_log
from penstock.log.header import read_header
from penstock.log.texts import CLOSED_BLOCK, HEADER_BYTES, UNIT_BYTES, logs_in

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


def test_a_flipped_bit_in_a_closed_block_is_damage_and_no_event(
    recorded: Callable[..., Any],
) -> None:
    """Full blocks, and those of threads that have ended, have a checksum."""
    run = recorded(
        "import os, threading\n"
        "def read():\n"
        "    fd = os.open('/etc/hostname', os.O_RDONLY)\n"
        "    for _ in range(5000):\n"
        "        os.pread(fd, 1, 0)\n"
        "threads = [threading.Thread(target=read) for _ in range(2)]\n"
        "[thread.start() for thread in threads]\n"
        "[thread.join() for thread in threads]\n"
    )
    (path,) = logs_in(Path(run.folder))
    whole = path.read_bytes()
    intact = read_log(path)
    assert intact.damaged_units == 0
    kinds = {
        unit: whole[HEADER_BYTES + unit * UNIT_BYTES + 4] for unit in intact.event_blocks["unit"]
    }
    closed = [int(unit) for unit, kind in kinds.items() if kind == CLOSED_BLOCK]
    assert len(closed) >= 6  # two full ones and the last one of each thread
    assert len(kinds) - len(closed) <= 1  # the main thread's
    chance = random.Random(7)
    for unit in closed:
        start = HEADER_BYTES + unit * UNIT_BYTES
        used, _, texts = struct.unpack_from("<III", whole, start + 16)
        # A byte of the head that is no magic or kind, of the records, of the texts.
        places = [chance.randrange(8, 64), chance.randrange(64, 64 + 32 * used)]
        if texts < UNIT_BYTES:
            places.append(chance.randrange(texts, UNIT_BYTES))
        for place in places:
            damaged = bytearray(whole)
            damaged[start + place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            log = read_log(path)
            assert log.damaged_units == 1, (unit, place)
            assert unit not in log.event_blocks["unit"]
    path.write_bytes(whole)
