"""What is said before the verdict: how the job ended, and which process was killed, with what."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.adapters import processes
from penstock.explain.incidents import Incident
from penstock.explain.measures import measure
from penstock.explain.report import Report, from_json, report_of, to_json
from penstock.recording.endings import (
    Ended,
    Endings,
    Sent,
    ended_by_note,
    endings_in,
    sent_by_note,
)
from penstock.recording.system import Sample
from penstock.runs.run import open_run
from penstock.views import html, terminal
from synthetic import Synthetic

MS = 1_000_000


def said(run: Any) -> tuple[Incident, ...]:
    return report_of(measure(run)).incidents


def ended(*statuses: int, ranks: bool = False) -> Synthetic:
    """A run whose launchers noted these statuses."""
    run = Synthetic()
    run.process(1, end=2000 * MS)
    for rank, status in enumerate(statuses):
        run.note("ended", f"{status}\t{rank if ranks else ''}\t{100 + rank}\tnode1", process=None)
    return run


# --- how the job ended ---------------------------------------------------------------------------


def test_a_job_that_ended_well_has_no_incident() -> None:
    assert said(ended(0)) == said(ended()) == said(ended(0, 0, ranks=True)) == ()


@pytest.mark.parametrize(
    ("statuses", "headline"),
    [
        ((1,), "THE JOB ENDED WITH STATUS 1"),
        ((137,), "THE JOB ENDED WITH STATUS 137 (SIGKILL)"),
        ((255,), "THE JOB ENDED WITH STATUS 255"),
        ((-9,), "THE JOB WAS ENDED BY SIGKILL"),
        ((-70,), "THE JOB WAS ENDED BY signal 70"),
        ((0, 0, 1, 0), "1 OF 4 RANKS ENDED WITH STATUS 1 (rank 2)"),
        ((-9, 1, 1, 0), "2 OF 4 RANKS ENDED WITH STATUS 1, 1 otherwise"),
    ],
)
def test_another_status_than_0_is_the_first_thing_that_is_said(
    statuses: Sequence[int], headline: str
) -> None:
    (incident,) = said(ended(*statuses, ranks=len(statuses) > 1))
    assert (incident.kind, incident.headline) == ("failed", headline)
    assert incident.sentence == "no recorded process was killed: its own output says why"


def test_a_damaged_note_of_an_end_says_nothing() -> None:
    run = ended()
    for value in ("", "\t\t", "one\t\t1\tnode1", "9" * 40 + "\t\t\t"):
        run.note("ended", value, process=None)
    assert said(run) == ()


def killed(run: Synthetic, process: int, status: int, **more: Any) -> None:
    reason = f"by {signal.Signals(-status).name}{more.pop('also', '')}"
    run.process(process, parent=1, state="killed", reason=reason, status=status, **more)


def test_the_first_that_was_killed_is_named_first() -> None:
    run = ended(1)
    killed(run, 2, -15, end=1900 * MS)
    killed(run, 3, -9, end=1500 * MS)
    for process in (2, 3):
        run.span("worker", 0, None, process=process, index=process - 2)
    (incident,) = said(run)
    assert incident.sentence == (
        "worker 1 (pid 1003) was killed by SIGKILL 1.50 s after the run began; "
        "worker 0 (pid 1002) was killed by SIGTERM 1.90 s after the run began"
    )


def test_a_process_that_its_parent_ended_is_no_incident() -> None:
    run = ended(0)
    killed(run, 2, -15, end=1500 * MS, also=", sent by its parent")
    run.span("worker", 0, None, process=2, index=0)
    assert said(run) == ()


def test_a_helper_that_ended_by_a_signal_or_a_status_is_no_incident_but_a_crash_is() -> None:
    def helped() -> Synthetic:
        run = ended(0)
        killed(run, 2, -15, end=1500 * MS)
        run.process(3, parent=1, end=1500 * MS, status=1)
        return run

    assert said(helped()) == ()
    run = helped()
    killed(run, 4, -11, end=1500 * MS)
    (incident,) = said(run)
    assert incident.headline == "1 PROCESS FAILED"
    assert (
        incident.sentence == "a process (pid 1004) was killed by SIGSEGV 1.50 s after the run began"
    )


def test_a_rank_that_ended_with_a_status_is_named_below_its_launcher() -> None:
    run = ended(1)
    for rank in range(2):
        run.process(2 + rank, parent=1, end=1500 * MS, rank=rank, world_size=2, status=rank)
    (incident,) = said(run)
    assert incident.sentence == (
        "a process of rank 1 (pid 1003) ended with status 1 1.50 s after the run began"
    )


def test_what_it_had_in_memory_is_told() -> None:
    run = ended(1)
    killed(run, 2, -7, end=1500 * MS)
    run.span("worker", 0, None, process=2, index=0)
    for kind, device, quantity, value in (
        ("process", "1002", "rss_bytes", 310e6),
        ("process", "1002", "shm_used_bytes", 64e6),
        ("process", "1002", "shm_bytes", 64e6),
        ("process", "1002", "oom_kills", 1),
        ("process", "1003", "oom_kills", 5),
        ("memory", "", "available_bytes", 2e9),
    ):
        run.system(1600, kind, device, quantity, value)
    run.system(9000, "memory", "", "available_bytes", 7e9)  # later
    (incident,) = said(run)
    assert incident.sentence.endswith(
        "SIGBUS 1.50 s after the run began (it had 310 MB in memory, 2.00 GB of the host's memory "
        "was available, 64.0 MB of 64.0 MB of /dev/shm was in use, the kernel killed 1 process for "
        "want of memory in that second)"
    )


# --- real ends -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("ends", "status"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), 9)", -9)])
def test_the_status_of_a_program_is_in_its_report(
    recorded: Callable[..., Any], ends: str, status: int
) -> None:
    run = recorded(f"import os, sys\n{ends}", status=status)
    (incident,) = said(run)
    assert (
        incident.headline
        == f"THE JOB {'ENDED WITH STATUS 3' if status > 0 else 'WAS ENDED BY SIGKILL'}"
    )
    assert run.sql("SELECT status FROM processes") == [(status,)]


def test_a_program_that_ends_well_says_nothing(recorded: Callable[..., Any]) -> None:
    run = recorded("import subprocess\nsubprocess.run(['false'])")
    assert said(run) == ()
    assert (0,) in run.sql("SELECT status FROM processes")


KILL = {"x86_64": 62, "aarch64": 129}[os.uname().machine]  # by number, past libc's symbols

# The worker is a zombie until the launcher, which looks each second, has seen it.
LOOKED_AT = """
import ctypes, multiprocessing, os, pathlib, signal, sys, time

def wait(is_so):
    while not is_so():
        time.sleep(0.01)

if __name__ == "__main__":
    lines = lambda: sum((p.read_text().splitlines() for p in run.glob("*.system")), [])
    run = pathlib.Path(os.environ["PENSTOCK_RUN"])
    worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
    worker.start()
    began = len(lines())
    wait(lambda: len(lines()) > began + 1)  # it was seen alive
    ctypes.CDLL(None).syscall(int(sys.argv[1]), worker.pid, signal.SIGSEGV)  # unseen: a stranger's
    wait(lambda: any(f'"{worker.pid}":' in line for line in lines()))
    print(worker.pid)
"""


def test_a_child_that_nobody_asked_for_is_seen_from_beside(
    recorded: Callable[..., Any], capfd: Any
) -> None:
    run = recorded(LOOKED_AT, args=(str(KILL),))
    ((pid, reason, status),) = run.sql(
        "SELECT pid, reason, status FROM processes WHERE state = 'killed'"
    )
    assert (reason, status) == ("by SIGSEGV", -11)
    (incident,) = said(run)
    assert incident.sentence.startswith(f"a process (pid {pid}) was killed by SIGSEGV ")
    assert "in memory" in incident.sentence


# Each worker is a zombie until the launcher has seen the end.
SENT = """
import ctypes, multiprocessing, os, pathlib, signal, subprocess, sys, time

def wait(is_so):
    while not is_so():
        time.sleep(0.01)

def work(ready, suicide):
    os.setpgid(0, 0)
    ready.set()
    wait(suicide.is_set)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    run = pathlib.Path(os.environ["PENSTOCK_RUN"])
    text = lambda: "".join(p.read_text() for p in run.glob("*.system"))
    number = int(sys.argv[1])
    end = {
        "call": lambda worker, _: os.kill(worker.pid, signal.SIGKILL),
        "program": lambda worker, _: subprocess.run(["sh", "-c", f"kill -9 {worker.pid}"]),
        "group": lambda worker, _: os.killpg(worker.pid, signal.SIGKILL),
        "stranger": lambda worker, _: ctypes.CDLL(None).syscall(number, worker.pid, 9),
        "other": lambda worker, _: (
            os.kill(worker.pid, signal.SIGWINCH), ctypes.CDLL(None).syscall(number, worker.pid, 9)
        ),
        "itself": lambda worker, suicide: suicide.set(),
        "late": lambda worker, suicide: (
            suicide.set(), wait(lambda: state(worker) == "Z"), os.kill(worker.pid, signal.SIGKILL)
        ),
    }
    stat = lambda worker: pathlib.Path(f"/proc/{worker.pid}/stat").read_text()
    state = lambda worker: stat(worker).rpartition(") ")[2][0]
    context = multiprocessing.get_context("fork")
    workers = {}
    for how in end:
        ready, suicide = context.Event(), context.Event()
        workers[how] = context.Process(target=work, args=(ready, suicide)), suicide
        workers[how][0].start()
        ready.wait()
    began = text().count("\\n")
    wait(lambda: text().count("\\n") > began + 1)  # they were seen alive
    for how, (worker, suicide) in workers.items():
        end[how](worker, suicide)
    wait(lambda: all(f'"{worker.pid}":' in text() for worker, _ in workers.values()))
    for how, (worker, _) in workers.items():
        (run / f"worker-{how}").write_text(str(worker.pid))
"""


def test_a_process_that_the_job_ends_is_no_failed_process(
    recorded: Callable[..., Any],
) -> None:
    run = recorded(SENT, args=(str(KILL),))
    pids = {
        path.name.removeprefix("worker-"): int(path.read_text())
        for path in Path(run.folder).glob("worker-*")
    }
    ends = dict(run.sql("SELECT pid, reason FROM processes WHERE state = 'killed'"))
    ((sender,),) = run.sql(
        f"SELECT DISTINCT pid FROM processes JOIN notes USING (process) WHERE key = 'signal sent' "
        f"AND starts_with(value, '{pids['program']}')"
    )
    assert {how: ends[pid] for how, pid in pids.items()} == {
        "call": "by SIGKILL, sent by its parent",
        "program": f"by SIGKILL, sent by process {sender} of this run",
        "group": "by SIGKILL, sent by its parent",
        "stranger": "by SIGKILL",
        "other": "by SIGKILL",
        "itself": "by SIGKILL",
        "late": "by SIGKILL",
    }
    (incident,) = said(run)
    assert incident.headline == "4 PROCESSES FAILED"
    for how in ("call", "program", "group"):
        assert f"(pid {pids[how]})" not in incident.sentence


def test_a_parent_that_ends_a_worker_which_has_ended_did_not_end_it() -> None:
    for number, is_sent in ((signal.SIGKILL, True), (signal.SIGSEGV, False)):
        child = subprocess.Popen(["sleep", "600"])
        if not is_sent:
            os.kill(child.pid, number)  # past the adapter, which a test before may have installed
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        processes._remember(child, number)
        assert hasattr(child, "_penstock_sent") == is_sent
        child.kill()
        child.wait()


TRAINING = """
import os, signal, sys, torch
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == int(sys.argv[1]):
            os.kill(os.getpid(), getattr(signal, sys.argv[2]))
        return torch.zeros(8)

if __name__ == "__main__":
    for batch in DataLoader(Data(), 4, num_workers=2):
        pass
"""


def test_a_killed_worker_of_a_loader_is_named_with_its_signal(
    recorded: Callable[..., Any],
) -> None:
    pytest.importorskip("torch")
    run = recorded(TRAINING, args=("28", "SIGKILL"), status=1)  # batch 7 is worker 1's
    (incident,) = said(run)
    assert incident.headline == "THE JOB ENDED WITH STATUS 1"
    ((pid,),) = run.sql("SELECT pid FROM processes WHERE status = -9")
    assert incident.sentence.startswith(f"worker 1 (pid {pid}) was killed by SIGKILL ")
    assert "/dev/shm was in use" in incident.sentence


def test_workers_that_a_loader_ends_itself_are_no_incident(recorded: Callable[..., Any]) -> None:
    pytest.importorskip("torch")
    run = recorded(TRAINING, args=("-1", ""))
    assert said(run) == ()


# --- what is seen, and what is not believed ------------------------------------------------------


def test_a_process_is_looked_for_by_the_log_that_it_has(tmp_path: Path) -> None:
    child = subprocess.Popen(["sleep", "600"])
    host = os.uname().nodename.replace("/", "_")
    for name in (f"{host}.{child.pid}.0.events", f"other.{os.getpid()}.0.events", "x.log", ".log"):
        (tmp_path / name).touch()
    endings = Endings(tmp_path)
    assert endings.look() == {}
    child.kill()
    while Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.01)
    gone = endings.look()  # a zombie: it can still be asked for
    child.wait()
    assert list(gone) == [str(child.pid)]
    number, silent_s, rss_bytes, *_ = gone[str(child.pid)]
    assert (number, bool(rss_bytes)) == (9, True)
    assert silent_s is not None
    assert silent_s >= 0
    assert endings.look() == {}


@pytest.mark.parametrize(
    "text",
    ["", "1", "1\t-9\t0", "a\t-9\t0\t5", "1\t-9\t0\t" + "9" * 30, "-1\t-9\t0\t5", "1\t--9\t0\t5"],
)
def test_a_damaged_note_of_a_child_is_none(text: str) -> None:
    assert ended_by_note(text) is None


@pytest.mark.parametrize(
    "text",
    ["", "1\t9", "a\t9\t5", "0\t9\t5", "1\t0\t5", "1\t-9\t5", "1\t9\t" + "9" * 30, "1\t9\t5\t6"],
)
def test_a_damaged_note_of_a_signal_is_none(text: str) -> None:
    assert sent_by_note(text) is None


def test_a_note_of_a_signal_to_a_group_is_read() -> None:
    assert sent_by_note("-7\t15\t5000") == Sent(-7, 15, 5000)


def test_who_knows_how_and_who_knows_when_are_joined() -> None:
    noted = ended_by_note("7\t-9\t0\t5000\t1\t2")
    (looked,) = endings_in(
        [Sample(6000, "process", "7", "silent_s", 2e-6), Sample(6000, "disk", "vda", "reads", 1.0)]
    )
    assert noted == Ended(7, 5000, -9)
    assert looked == Ended(7, 6000, None, alive_ns=4000)
    for both in (looked.joined(noted), noted.joined(looked)):
        assert (both.status, both.alive_ns, both.by) == (-9, 4000, "by SIGKILL")


# --- where it is shown ---------------------------------------------------------------------------


@pytest.fixture
def failed() -> Report:
    return report_of(measure(ended(1)))


def test_views_say_it_before_the_verdict(failed: Report) -> None:
    for drawn in (terminal.render(failed), html.render(failed)):
        text = " ".join(drawn.split())
        assert text.index("THE JOB ENDED WITH STATUS 1") < text.index(failed.verdict.headline)


def test_a_report_of_an_earlier_release_has_no_incidents(failed: Report) -> None:
    plain = json.loads(to_json(failed))
    assert plain["incidents"][0]["headline"] == "THE JOB ENDED WITH STATUS 1"
    del plain["incidents"]
    assert from_json(json.dumps(plain)).incidents == ()


def test_a_run_without_an_end_in_its_facts_is_read(tmp_path: Path) -> None:
    """`penstock run` was killed: its program's end is not known."""
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent("import sys\nsys.exit(1)"))
    command = [PENSTOCK, "run", "-q", "-o", tmp_path / "run", sys.executable, program]
    assert subprocess.run(command, cwd=tmp_path).returncode == 1
    facts = json.loads((tmp_path / "run/run.json").read_text())
    for key in ("status", "end_unix_ns", "end_monotonic_ns"):
        del facts[key]
    (tmp_path / "run/run.json").write_text(json.dumps(facts))
    with open_run(tmp_path / "run") as run:
        assert said(run) == ()
