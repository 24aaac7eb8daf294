"""A job that stands still, and what looks like one and is none."""

import os
import platform
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
from penstock.explain import standing
from penstock.explain.compare import limits
from penstock.explain.live import Monitor
from penstock.explain.measures import Measures, measure
from penstock.explain.report import report_of
from penstock.explain.standing import still_of
from penstock.recording.threads import Look, doing, in_words
from penstock.runs import run as runs
from penstock.runs.run import open_run
from synthetic import Synthetic

MS = 1_000_000
S = 1000 * MS


def hanging(now_s: int = 40, **main: Any) -> Synthetic:
    """Two steps in two seconds; the wait for batch 2 is open since, and worker 0's fetch of it."""
    run = Synthetic()
    run.process(1, **{"state": "running", "read": now_s * S} | main)
    run.process(2, state="running", read=now_s * S, parent=1)
    run.span("worker", 0, None, process=2, index=0)
    run.span("loader", 0, None, index=1)
    for step in range(2):
        run.wait(step * S, step * S + 50 * MS, step)
        run.fetch(step * S, step * S + 40 * MS, step)
        run.step(step * S + 50 * MS, (step + 1) * S, step)
    run.wait(2 * S, None, 2)
    run.fetch(2 * S, None, 2)
    return run


def does(
    run: Synthetic, process: int, state: str, call: str, cpu: float = 0.0, path: str = ""
) -> None:
    still = "" if cpu else "38.0"
    words = (1000 + process, state, cpu, still, call, "python", path)
    run.note("doing", "\t".join(map(str, words)), process=process)


def asleep(now_s: int = 40) -> Synthetic:
    run = hanging(now_s)
    does(run, 1, "S", "poll", cpu=0.001)
    does(run, 2, "S", "futex")
    return run


def test_a_job_that_reads_a_mapped_checkpoint_into_its_model_is_told_by_that() -> None:
    run = Synthetic()
    run.process(1, state="running", read=40 * S)
    for step in range(2):
        run.wait(step * S, step * S + 50 * MS, step)
        run.step(step * S + 50 * MS, (step + 1) * S, step)
    run.span("load state", 2 * S, None, index=0)
    does(run, 1, "D", "page fault", cpu=0.001)
    (incident,) = report_of(measure(run)).incidents
    assert "puts a checkpoint into its model" in incident.sentence


def test_a_wait_that_does_not_end_is_told_with_who_is_waited_for() -> None:
    report = report_of(measure(asleep()))
    (incident,) = report.incidents
    assert incident.headline == "THE JOB STANDS STILL"
    assert incident.sentence == (
        "the main process (pid 1001) waits for data (batch 2) for 38.0 s, its latest step ended "
        "38.0 s ago, worker 0 (pid 1002) sleeps in futex: a lock, a queue or a future for 38.0 s"
    )
    assert (report.verdict.headline, report.verdict.level) == ("NOT JUDGED", "unknown")
    assert report.verdict.stall.value == pytest.approx(38.05 / 39.95, abs=0.01)
    assert "the job stands still" in {check.says for check in report.checks}


def test_the_open_wait_counts_until_the_log_was_read() -> None:
    assert measure(asleep()).training.data_wait_s == pytest.approx(38.05)
    ended = hanging(state="killed", read=None, end=5 * S)
    assert measure(ended).training.data_wait_s == pytest.approx(3.05)


def test_a_worker_in_a_file_call_decides_that_it_is_storage() -> None:
    run = asleep()
    run.call("read", 2 * S + 10 * MS, None, process=2)
    report = report_of(measure(run))
    assert report.incidents[0].headline == "THE JOB STANDS STILL"
    assert (report.verdict.level, report.verdict.bound) == ("highly", "I/O")


def test_a_call_of_the_training_thread_that_hangs_is_named() -> None:
    run = Synthetic()
    run.process(1, state="running", read=40 * S)
    for step in range(2):
        run.step(step * S, (step + 1) * S, step)
    run.call("read", 2 * S, None, path="/data/a")
    does(run, 1, "D", "read", path="/data/a")
    report = report_of(measure(run))
    assert report.incidents[0].sentence == (
        "the main process (pid 1001) is in read /data/a for 38.0 s, its latest step ended 38.0 s "
        "ago"
    )


def busy() -> Synthetic:
    run = hanging()
    does(run, 1, "S", "poll")
    does(run, 2, "R", "", cpu=0.9)
    return run


def reading() -> Synthetic:
    run = asleep()
    run.call("read", 35 * S, 36 * S, process=2)
    return run


def computing() -> Synthetic:
    """A step of a minute without a call: no wait is open."""
    run = Synthetic()
    run.process(1, state="running", read=70 * S)
    for step in range(2):
        run.step(step * S, (step + 1) * S, step)
    run.step(2 * S, None, 2)
    does(run, 1, "S", "futex")
    return run


def slow_before() -> Synthetic:
    """An earlier wait took as long, and ended."""
    run = asleep(now_s=40)
    run.wait(-60 * S, -30 * S, 3)
    return run


def unseen() -> Synthetic:
    """Of another host, or of another name space: nobody looked at it."""
    return hanging()


def dead() -> Synthetic:
    return hanging(state="killed", read=None, end=40 * S)


@pytest.mark.parametrize(
    "job", [busy, reading, computing, slow_before, unseen, dead, lambda: asleep(now_s=11)]
)
def test_what_works_or_is_not_seen_does_not_stand_still(job: Callable[[], Synthetic]) -> None:
    measures = measure(job())
    assert still_of(measures) is None
    assert not any(one.kind == "still" for one in report_of(measures).incidents)


def test_a_job_that_was_ended_in_a_wait_says_in_which() -> None:
    run = dead()
    run.note("ended", "-15\t\t1\tnode1", process=None)
    (incident,) = report_of(measure(run)).incidents
    assert incident.headline == "THE JOB WAS ENDED BY SIGTERM"
    assert "the main process (pid 1001) waits for data (batch 2) for 38.0 s" in incident.sentence


# In a queue, a lock or at a pipe of the program's own: nobody told a wait.


def own_queue(op: str = "sem_wait", now_s: int = 40, *, end: int | None = None, errno: int = 0,
              by: str = "/usr/lib/libpython3.11.so.1.0", **main: Any) -> Synthetic:  # fmt: skip
    """Two steps with a loader in two seconds; blocked in a call since."""
    run = Synthetic()
    run.process(1, **{"state": "running", "read": now_s * S} | main)
    for step in range(2):
        run.wait(step * S, step * S + MS, step)
        run.blocked(op, step * S + MS, step * S + 30 * MS, by=by)
        run.step(step * S + 50 * MS, (step + 1) * S, step)
    run.blocked(op, 2 * S, end, errno=errno, by=by)
    return run


def test_a_hang_in_the_programs_own_queue_is_told_and_no_limit_is_kept() -> None:
    run = own_queue()
    does(run, 1, "S", "futex")
    report = report_of(measure(run))
    (incident,) = report.incidents
    assert incident.headline == "THE JOB STANDS STILL"
    assert incident.sentence == (
        "the main process (pid 1001) waits for another thread (a lock, a queue, a future) for "
        "38.0 s, its latest step ended 38.0 s ago, its thread sleeps in futex: a lock, a queue or "
        "a future for 38.0 s"
    )
    assert report.verdict.headline == "NOT JUDGED"
    assert limits(report, max_stall=0.10)[0].state == "not measured"
    assert all(check.state != "fine" for check in report.checks if check.rule == "D2")


@pytest.mark.parametrize(
    "more",
    [
        {"state": "killed", "read": None, "end": 40 * S},
        {"state": "exited", "read": None, "end": 41 * S, "status": 1},
    ],
    ids=["killed", "interrupted"],
)
def test_a_hang_of_its_own_that_was_ended_is_no_measure_of_the_training(more: Any) -> None:
    is_failed = more["state"] == "exited"
    run = own_queue(end=40 * S if is_failed else None, errno=4 if is_failed else 0)
    run.rows["processes"].clear()
    run.rows["threads"].clear()
    run.process(1, **more)
    run.note("ended", "1\t\t1\tnode1", process=None)
    report = report_of(measure(run))
    assert report.verdict.headline == "NOT JUDGED"
    assert "waits for another thread" in report.verdict.sentence
    assert "waits for another thread" in report.incidents[0].sentence
    assert limits(report, max_stall=0.10)[0].state == "not measured"


def child_computes() -> Synthetic:
    """What it waits for is made by another process, that works."""
    run = own_queue()
    run.process(2, state="running", read=40 * S, parent=1)
    does(run, 1, "S", "futex")
    does(run, 2, "R", "", cpu=0.9)
    return run


@pytest.mark.parametrize(
    "job",
    [
        child_computes,
        lambda: own_queue("epoll"),  # an event loop: a notebook
        lambda: own_queue("sync", by="/usr/lib/libcudart.so.12"),  # computes
        lambda: own_queue("sleep"),  # ends by itself
        lambda: own_queue(now_s=11),
        lambda: own_queue(end=3 * S),  # and computes since
        lambda: own_queue(end=40 * S, state="exited", read=None, status=0),
    ],
    ids=["child", "event loop", "accelerator", "sleep", "short", "computes", "ended well"],
)
def test_what_is_blocked_and_does_not_hang_is_no_hang(job: Callable[[], Synthetic]) -> None:
    run = job()
    if not any(row[1] == "doing" for row in run.rows["notes"]):
        does(run, 1, "S", "futex")
    report = report_of(measure(run))
    assert not report.incidents
    assert "still" not in report.verdict.sentence


def test_a_stopped_job_is_suspended_and_no_other() -> None:
    run = hanging()
    for process in (1, 2):
        does(run, process, "T", "poll")
    (incident,) = report_of(measure(run)).incidents
    assert incident.headline == "THE JOB IS SUSPENDED"


def test_one_rank_that_stands_while_others_step_is_named() -> None:
    run = hanging(rank=3, world_size=4)
    does(run, 1, "S", "poll")
    does(run, 2, "S", "futex")
    run.process(5, state="running", read=40 * S, rank=0, world_size=4)
    for step in range(39):
        run.step(step * S, (step + 1) * S, step, process=5)
    does(run, 5, "R", "", cpu=1.0)
    (incident,) = report_of(measure(run)).incidents
    assert incident.headline == "RANK 3 STANDS STILL"


@pytest.mark.parametrize("words", ["", "\t" * 9, "x\tS\tmuch\tlong\tpoll\tp\t/a"])
def test_a_damaged_note_of_a_thread_is_no_thread_that_runs(words: str) -> None:
    run = hanging()
    run.note("doing", words, process=1)
    measure(run)


# --- real processes ------------------------------------------------------------------------------

HANGING = """
import sys, threading, time
import penstock

lock = threading.Lock()
for _ in range(3):
    with penstock.step():
        time.sleep(0.01)
    with penstock.span("data wait"):
        pass
with penstock.span("data wait"):
    print("waits", flush=True)
    if sys.argv[1] == "hangs":
        lock.acquire()
        lock.acquire()
    while True:
        pass
"""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Callable[[str], tuple[Path, int]]]:
    """Starts the program in a run of its own; its folder and its pid when it waits."""
    launchers: list[subprocess.Popen[str]] = []

    def start(how: str) -> tuple[Path, int]:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(HANGING))
        folder = tmp_path / how
        launchers.append(
            subprocess.Popen(
                [PENSTOCK, "run", "-q", "-o", folder, sys.executable, program, how],
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        )
        assert launchers[-1].stdout is not None
        assert launchers[-1].stdout.readline() == "waits\n"
        (child,) = (
            Path(f"/proc/{launchers[-1].pid}/task/{launchers[-1].pid}/children").read_text().split()
        )
        return folder, int(child)

    yield start
    for launcher in launchers:
        os.killpg(launcher.pid, signal.SIGKILL)
        launcher.wait()


def measured(folder: Path) -> Measures:
    with open_run(folder) as run:
        return measure(run)


def test_a_job_that_hangs_is_told_while_it_does_and_not_elsewhere_or_afterwards(
    started: Callable[[str], tuple[Path, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(standing, "STILL_S", 0.5)
    folder, pid = started("hangs")
    still = None
    until_s = time.monotonic() + 60
    while still is None and time.monotonic() < until_s:
        still = still_of(measured(folder))
    assert still is not None
    assert f"the main process (pid {pid}) waits for data" in still.sentence
    assert "its thread sleeps in futex: a lock, a queue or a future for " in still.sentence

    monitor = Monitor(folder)
    monkeypatch.setattr("penstock.explain.live.STILL_NS", 0)
    monitor.look()
    (said,) = monitor.look().still
    assert f"process {pid} waits for data for " in said
    assert "it sleeps in futex" in said

    os.kill(pid, signal.SIGSTOP)
    while in_words(doing(Look([pid]))[0].state, "", "") != "is stopped":
        time.sleep(0.01)
    stopped = still_of(measured(folder))
    assert stopped is not None
    assert stopped.headline == "THE JOB IS SUSPENDED"
    os.kill(pid, signal.SIGCONT)

    shutil.copytree(folder, tmp_path / "copy")
    node = platform.node()
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(runs.platform, "node", lambda: f"not-{node}")
        measures = measured(tmp_path / "copy")
    assert (measures.hung, measures.doing) == ((), ())

    os.kill(pid, signal.SIGKILL)
    ended = measured(folder)
    while any(one.is_running for one in ended.hung):
        ended = measured(folder)
    assert still_of(ended) is None


def test_a_job_that_computes_in_its_wait_does_not_stand_still(
    started: Callable[[str], tuple[Path, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standing, "STILL_S", 0.5)
    folder, _ = started("spins")
    while (measures := measured(folder)).hung[0].open_s < 1.0:
        pass
    assert still_of(measures) is None
    assert measures.training.data_wait_s is not None
    assert measures.training.data_wait_s >= 1.0


def test_what_threads_do_is_seen_from_outside(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    cat = subprocess.Popen(["cat"], stdin=reader)
    try:
        look = Look([cat.pid])
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s:
            (one,) = doing(look)
            if one.call == "read" and one.still_s is not None:
                break
            look = Look([cat.pid])
        assert (one.call, one.state) == ("read", "S")
        assert one.path.startswith("pipe:")
        assert in_words(one.state, one.call, one.path) == f"sleeps in read {one.path}"
    finally:
        os.close(writer)
        cat.wait()
    assert doing(look) == []  # it has ended
    assert doing(Look([cat.pid])) == []
