"""Calls that block: what is recorded of them, by programs whose waits were counted by hand."""

import errno
import gzip
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.log.events import read_log
from penstock.log.follow import Follower
from penstock.log.layout import OPS
from penstock.runs.run import open_run

TIMEOUT = errno.ETIMEDOUT
OF_MAIN = "FROM blocked JOIN threads USING (process, thread) WHERE process = 0 AND is_main"


def waits_of_main(run: Any, columns: str) -> list[Any]:
    return list(run.sql(f"SELECT {columns} {OF_MAIN} ORDER BY start_ns").fetchall())


def test_every_call_that_blocks_is_one_wait(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("waits")])
    woken, late, cut = (0, True), (TIMEOUT, False), (errno.EINTR, False)
    unknown = (0, False)
    assert waits_of_main(run, "op, errno, waker IS NOT NULL, descriptor") == [
        ("sem_wait", *woken, None),
        ("sem_wait", *woken, None),
        ("sem_wait", *late, None),
        ("cond_wait", *woken, None),
        ("cond_wait", *woken, None),
        ("cond_wait", *late, None),
        ("futex", *woken, None),
        ("futex", *late, None),
        ("poll", *unknown, "pipe:"),
        ("poll", *late, "socket:unix"),
        ("select", *unknown, "anon_inode:[eventfd]"),
        ("epoll", *unknown, None),
        *[("sleep", *unknown, None)] * 5,
        *[("waitpid", *unknown, None)] * 3,
        ("join", *woken, None),
        *[("mutex", *unknown, None)] * 2,
        ("barrier", *unknown, None),
        *[("receive", *unknown, "socket:unix")] * 2,
        ("signal", *late, None),
        ("sem_wait", *cut, None),
        ("poll", *cut, "pipe:"),
        ("sleep", *cut, None),
    ]
    assert set(waits_of_main(run, "object, object_path[-5:], duration_ns >= 50000")) == {
        ("waits", "waits", True)
    }
    # Who woke is another thread each time: the one that ended, too.
    assert len({waker for (waker,) in waits_of_main(run, "waker")} - {None}) == 6
    assert set(waits_of_main(run, "waker <> thread")) == {(True,), (None,)}
    with_address = {op for op, has in waits_of_main(run, "op, address IS NOT NULL") if has}
    assert with_address == {"sem_wait", "cond_wait", "futex", "join", "mutex", "barrier"}


def test_waits_are_no_calls_on_files(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("waits")])
    numbers = ", ".join(str(op.number) for op in OPS if op.layer == "wait")
    for table in ("events_raw", "folded_raw"):
        calls = run.sql(f"SELECT count(*) FROM {table} WHERE op_number IN ({numbers})")
        assert calls.fetchall() == [(0,)]
    layers = run.sql("SELECT DISTINCT layer FROM counters ORDER BY layer").fetchall()
    assert layers == [("posix",), ("process",)]
    named = run.sql("SELECT path FROM files WHERE path IN (SELECT name FROM objects)")
    assert named.fetchall() == []


def test_a_wait_that_is_left_otherwise_ends_or_is_taken_back(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("waits_left")])
    cancelled = run.sql(
        "SELECT op, errno, count(*), count(waker), count(duration_ns) FROM blocked"
        " JOIN threads USING (thread) WHERE NOT is_main GROUP BY ALL ORDER BY op"
    ).fetchall()
    assert cancelled == [
        (op, errno.ECANCELED, 20, 0, 20) for op in ("cond_wait", "poll", "sem_wait")
    ]
    # Joining the thread that was cancelled before it could wait may be a wait.  What was jumped out
    # of is not there, what the handler slept lies within the wait that it interrupted.
    rows = waits_of_main(run, "op, errno, waker IS NOT NULL, duration_ns IS NOT NULL")
    assert [row for row in rows if row[0] != "join"] == [
        ("sem_wait", 0, True, True),
        ("cond_wait", 0, True, True),
        ("sem_wait", errno.EINTR, False, True),
        ("waitpid", 0, False, True),
    ]
    # The child that was forked within a wait has none but its own.
    child = "SELECT op, errno FROM blocked WHERE process = 1"
    assert run.sql(child).fetchall() == [("sleep", 0)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="glibc has two versions on x86-64 only")
def test_condition_variables_of_old_are_left_alone(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("waits_old")])
    assert [op for (op,) in waits_of_main(run, "op") if op != "mutex"] == ["sleep"]


def test_who_wakes_is_right_or_not_known(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    (work / "data").write_bytes(bytes(8192))
    run = recorded_command([workload("waits_many")])
    woken = run.sql(
        """
        WITH reads AS (
            SELECT thread, offset_bytes AS place, start_ns FROM events WHERE path LIKE '%/data'),
        told AS (
            SELECT w.waker, min_by(r.place - 1000, r.start_ns) AS by_number
            FROM blocked AS w
            JOIN reads AS r ON r.thread = w.thread AND r.start_ns >= w.start_ns + w.duration_ns
            WHERE w.op = 'sem_wait' AND w.errno = 0
            GROUP BY w.thread, w.start_ns, w.waker),
        wakers AS (SELECT thread, min(place) AS number FROM reads GROUP BY thread)
        SELECT t.waker IS NULL, t.by_number = k.number, count(*)
        FROM told AS t LEFT JOIN wakers AS k ON k.thread = t.waker GROUP BY ALL
        """
    ).fetchall()
    assert {row[:2] for row in woken} == {(False, True)}
    # Each waiter slept in each round when it was woken, but on a busy machine not for long.
    assert woken[0][2] > 64 * 20 / 2
    both = run.sql(
        """
        SELECT max(r.offset_bytes) FILTER (r.offset_bytes < 4000) AS returned, max(b.offset_bytes)
        FROM blocked AS w JOIN events AS r ON r.thread = w.thread AND r.path LIKE '%/data'
        LEFT JOIN events AS b ON b.thread = w.waker AND b.path LIKE '%/data'
        WHERE w.op = 'cond_wait' GROUP BY w.thread ORDER BY returned
        """
    ).fetchall()
    # A signal wakes one of two, the next wakes the other: either may have woken the other.
    assert both == [(3001, 2001), (3002, None)]


def test_waits_in_libstdcxx_are_its_callers(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    run = recorded_command([workload("waits_through.cc")])
    rows = waits_of_main(run, "op, object, duration_ns >= 10000000")
    found = {(op, by) for op, by, is_long in rows if is_long}
    # A future's thread is joined through pthread_once: who began that is not on the stack's top.
    assert found - {("join", "libc.so.6"), ("futex", "waits_through")} == {
        ("cond_wait", "waits_through"),
        ("join", "waits_through"),
    }


def test_past_the_budget_waits_are_counted(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    (work / "data").write_bytes(b"x")
    run = recorded_command([workload("waits_folded")], options=["--budget", "70kB"])
    ((single, single_ns),) = run.sql(
        "SELECT count(*), sum(duration_ns) FROM blocked WHERE op = 'sleep'"
    ).fetchall()
    (folded,) = run.sql(
        "SELECT op, op_group, object, calls, errors, duration_ns, max_duration_ns < duration_ns,"
        " last_ns - first_ns >= duration_ns FROM blocked_totals"
    ).fetchall()
    assert folded[:3] == ("sleep", "sleep", "waits_folded")
    assert folded[3:5] == (12000 - single, 0)
    assert folded[6:] == (True, True)
    assert single_ns + folded[5] > 12000 * 60_000
    # Waits are no calls, also where they are folded.
    (calls,) = run.sql("SELECT sum(calls)::INTEGER FROM counters")[0]
    (single,) = run.sql("SELECT count(*)::INTEGER FROM events WHERE duration_ns IS NOT NULL")[0]
    assert run.sql("SELECT sum(folded_events)::INTEGER FROM processes") == [(calls - single,)]


PYTHON = """
    import asyncio, concurrent.futures, multiprocessing, queue, select, socket, subprocess
    import threading, time

    def later(what):
        timer = threading.Timer(0.03, what)
        timer.start()
        return timer

    def put(there):
        there.put("x")

    if __name__ == "__main__":
        for _ in range(100):  # blocks nowhere
            q = queue.Queue()
            q.put(1)
            q.get()
        mark = open("/dev/null")
        q = queue.Queue()
        later(lambda: q.put(1))
        q.get()
        mark.fileno(); open("/dev/null").close()
        event = threading.Event()
        later(event.set)
        event.wait()
        open("/dev/null").close()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(time.sleep, 0.03).result()
        open("/dev/null").close()
        context = multiprocessing.get_context("fork")
        there = context.Queue()
        later(lambda: there.put(1))
        there.get()
        open("/dev/null").close()
        asyncio.run(asyncio.sleep(0.03))
        open("/dev/null").close()
        one, other = socket.socketpair()
        later(lambda: other.send(b"x"))
        one.recv(1)
        open("/dev/null").close()
        subprocess.run(["sleep", "0.03"])
"""


def test_what_python_waits_for(recorded: Callable[..., Any]) -> None:
    run = recorded(PYTHON)
    marks = run.sql(
        "SELECT start_ns FROM events WHERE path = '/dev/null' AND op = 'open' AND process = 0"
        " ORDER BY start_ns"
    ).fetchall()
    marks = [start for (start,) in marks][-7:]
    found = []
    for begin, end in zip(marks, [*marks[1:], 1 << 62], strict=True):
        found.append(
            waits_of_main(
                run,
                f"op, op_group, object, waker IS NOT NULL, start_ns BETWEEN {begin} AND {end}"
                ", duration_ns > 10000000",
            )
        )
    longest = [{row[:4] for row in rows if row[4] and row[5]} for rows in found]
    ((python,),) = run.sql("SELECT name FROM objects WHERE is_interpreter").fetchall()
    assert ("sem_wait", "wait", python, True) in longest[0]
    assert ("sem_wait", "wait", python, True) in longest[1]
    assert ("sem_wait", "wait", python, True) in longest[2]
    (asyncs,) = [row for row in longest[4] if row[0] == "epoll"]
    assert asyncs[2].startswith(("select.", "libpython", "python"))
    assert [row[0] for row in longest[5]] == ["receive"]
    assert ("waitpid", "wait", python, False) in longest[6]
    groups = run.sql("SELECT DISTINCT op_group, object FROM blocked WHERE op = 'cond_wait'")
    assert set(groups.fetchall()) <= {("interpreter lock", python)}


RECEIVES = """
    import socket, threading, time

    one, other = socket.socketpair()

    def send():
        time.sleep(0.03)
        other.sendall(bytes(3000))
        time.sleep(0.3)
        other.sendall(bytes(50))

    sender = threading.Thread(target=send)
    sender.start()
    assert len(one.recv(1000)) == 1000
    assert len(one.recv(1500)) + len(one.recv(500)) == 2000  # at once
    assert len(one.recv(100)) == 50
    sender.join()
"""


def test_a_wait_for_a_socket_tells_what_its_thread_received_since_the_last(
    recorded: Callable[..., Any],
) -> None:
    run = recorded(RECEIVES)
    received = [got for op, got in waits_of_main(run, "op, received_bytes") if op == "receive"]
    # Where the CPUs are busy a call that finds its bytes may take as long as a wait.
    assert (received[0], sum(received)) == (1000, 3050)
    others = {got for op, got in waits_of_main(run, "op, received_bytes") if op != "receive"}
    assert others <= {None}


ANSWERED = """
    import socket, threading, time

    one, other = socket.socketpair()

    def answer():
        assert len(other.recv(5000, socket.MSG_WAITALL)) == 5000
        time.sleep(0.03)
        other.sendall(bytes(1000))
        time.sleep(0.3)
        other.sendall(bytes(7000))

    answering = threading.Thread(target=answer)
    answering.start()
    one.sendall(bytes(2000))
    one.sendmsg([bytes(3000)])
    assert len(one.recv(1000)) == 1000
    assert len(one.recv(7000, socket.MSG_WAITALL)) == 7000
    answering.join()
"""


def test_what_a_thread_sent_is_taken_off_what_it_received(recorded: Callable[..., Any]) -> None:
    run = recorded(ANSWERED)
    received = [got for op, got in waits_of_main(run, "op, received_bytes") if op == "receive"]
    assert received == [0, 3000]


def test_a_hang_is_in_the_log_of_a_running_process(tmp_path: Path, work: Path) -> None:
    program = (
        "import threading; lock = threading.Lock(); lock.acquire(); open('/dev/null').close();"
        " print(1, flush=True); lock.acquire()"
    )
    folder = tmp_path / "run"
    command = [PENSTOCK, "run", "-q", "-o", folder, "--", sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout
        assert job.stdout.readline() == "1\n"
        number = next(op.number for op in OPS if op.name == "sem_wait")
        (log,) = folder.glob("*.events")
        follower = Follower(log)
        deadline = time.monotonic() + 120
        stuck = None
        while stuck is None and time.monotonic() < deadline:
            news = follower.look()
            if (news.in_flight.op == number).any():
                stuck = news.in_flight
        assert stuck is not None
        pid = read_log(log).header.pid
        os.kill(pid, signal.SIGKILL)
        job.wait()
    with open_run(folder) as run:
        assert waits_of_main(run, "op, duration_ns, waker")[-1] == ("sem_wait", None, None)
        assert run.sql("SELECT state FROM processes WHERE process = 0").fetchall() == [("killed",)]


def test_an_old_log_says_that_its_waits_were_not_recorded(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    golden = Path(__file__).parent / "logs" / "v1.log.gz"
    (tmp_path / "old.log").write_bytes(gzip.decompress(golden.read_bytes()))
    assert read_log(tmp_path / "old.log").header.waits_from_ns == 0
    run = recorded_command(["/bin/true"])
    assert run.sql("SELECT DISTINCT waits_from_ns FROM processes").fetchall() == [(50_000,)]


def test_waits_for_an_accelerator_and_for_ranks_are_known_by_name(
    recorded_command: Callable[..., Any], workload: Callable[..., Path]
) -> None:
    libraries = [workload(name, "-shared", "-fPIC") for name in ("libcudart_known", "libmpi_known")]
    paths = [f"-Wl,-rpath,{library.parent}" for library in libraries]
    run = recorded_command([workload("sync", *map(str, libraries), *paths)])
    # Within them the libraries sleep, poll and wait for a condition: that is the same wait.
    rows = waits_of_main(run, "op, op_group, object, errno, duration_ns >= 5000000")
    assert [row for row in rows if row[4]] == [
        *[("sync", "sync", "sync", 0, True)] * 3,
        ("sync", "sync", "sync", errno.EIO, True),
        *[("collective", "exchange", "sync", 0, True)] * 2,
    ]
    assert {row[0] for row in rows} == {"sync", "collective"}
