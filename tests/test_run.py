"""What open_run makes of run folders: many processes, clocks, paths, tables kept beside logs."""

import errno
import fcntl
import gc
import json
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from logwriter import (
    BOOT,
    HEADER_BYTES,
    OP,
    START_NS,
    UNIT_BYTES,
    Process,
    event,
    events_unit,
    header_page,
    text,
)
from penstock.errors import LogError, QueryError, RunError
from penstock.log.layout import OPS
from penstock.log.texts import FILE_TEXT
from penstock.places.classes import CLASSES as NAMES_OF_CLASSES
from penstock.places.classes import PATH_RULES, PathRule
from penstock.runs import manifest as run_manifest
from penstock.runs import run as run_module
from penstock.runs.run import Run, import_run, open_run
from penstock.runs.schema import TABLES, describe_tables
from penstock.runs.tables import build

Opener = Callable[..., Run]


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    return path


@pytest.fixture
def opened(folder):
    """Writes processes down and opens their run."""
    runs = []

    def opened(*processes: Process, **options: Any) -> Run:
        for serial, process in enumerate(processes):
            process.write(folder, serial)
        runs.append(open_run(folder, **options))
        return runs[-1]

    yield opened
    for run in runs:
        run.close()


def one(run: Run, query: str) -> Any:
    """The only value of the only row."""
    ((value,),) = run.sql(query)
    return value


def column(run: Run, query: str) -> list[Any]:
    return [value for (value,) in run.sql(query)]


# --- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_the_columns_that_are_documented(opened, table):
    process = Process()
    process.call("read", 1, 1, "/a")
    run = opened(process)
    actual = {name: kind for name, kind, *_ in run.sql(f"DESCRIBE {table}")}
    assert list(actual.items()) == [(name, kind) for name, (kind, _) in TABLES[table].items()]


def test_every_column_says_what_it_means_and_times_say_their_unit():
    for table, columns in TABLES.items():
        for name, (_, meaning) in columns.items():
            assert meaning, f"{table}.{name}"
            if name.endswith("_ns"):
                assert re.search(r"\bns\b", meaning), f"{table}.{name}"
    assert describe_tables().count("\n### ") == len(TABLES) - 1


def test_an_event_becomes_a_row(opened):
    process = Process()
    process.call("pread", 100, 50, "/data/a", offset=4096, asked=10, moved=9)
    process.call("open", 200, 20, "/data/b", errno=errno.ENOENT)
    run = opened(process)
    row = dict(zip(TABLES["events"], run.sql("FROM events WHERE op = 'pread'")[0], strict=True))
    assert row == {
        "process": 0,
        "thread": 0,
        "layer": "posix",
        "op": "pread",
        "op_group": "read",
        "file": row["file"],
        "path": "/data/a",
        "path_class": "data",
        "file_kind": "unknown",
        "other_path": None,
        "start_ns": 100,
        "duration_ns": 50,
        "offset_bytes": 4096,
        "asked_bytes": 10,
        "moved_bytes": 9,
        "result": None,
        "errno": 0,
        "step": None,
        "served_from": None,
    }
    assert run.sql("SELECT op, errno, offset_bytes FROM events WHERE errno <> 0") == [
        ("open", errno.ENOENT, None)
    ]


def test_what_is_no_number_of_bytes_is_not_among_them(opened):
    process = Process()
    process.call("readdir", 1, 1, "/d", moved=7)
    process.call("mmap", 2, 1, "/d/x", offset=0, asked=4096, moved=0x7F0000000000)
    process.call("munmap", 3, 1, asked=4096, moved=0x7F0000000000)
    process.call("fork", 4, 1, moved=1234)
    process.call("dup", 5, 1, "/d/x", offset=9)
    run = opened(process)
    query = "SELECT op, offset_bytes, moved_bytes, result FROM events ORDER BY start_ns"
    assert run.sql(query) == [
        ("readdir", None, 0, 7),
        ("mmap", 0, 0, 0x7F0000000000),
        ("munmap", None, 0, 0x7F0000000000),
        ("fork", None, 0, 1234),
        ("dup", None, 0, 9),
    ]


def test_a_call_on_two_files_names_both(opened):
    process = Process()
    process.call("rename", 1, 1, "/a", offset=process.file("/b"))
    process.call("sendfile", 2, 1, "/b", offset=process.file("/c"), asked=5, moved=5)
    run = opened(process)
    query = "SELECT path, other_path, offset_bytes FROM events ORDER BY start_ns"
    assert run.sql(query) == [("/a", "/b", None), ("/b", "/c", None)]


def test_a_call_in_flight_has_no_duration(opened):
    process = Process(header={"state": "running"})
    process.call("read", 1, 0, "/a")
    process.span("data wait", 2, 0)
    run = opened(process)
    assert run.sql("SELECT duration_ns FROM events UNION ALL SELECT duration_ns FROM spans") == [
        (None,),
        (None,),
    ]


def test_spans_are_a_table_of_their_own(opened):
    process = Process()
    process.span("data wait", 10, 5, 3, a=1, b=2)
    process.step(4, 20, 5, b=1)
    process.span("epoch", 30, 5, op="window")
    process.call("read", 40, 5, "/a")
    run = opened(process)
    assert run.sql("SELECT * EXCLUDE (process, thread) FROM spans ORDER BY start_ns") == [
        ("span", "data wait", 3, 1, 2, 10, 5),
        ("step", "step", 4, 0, 1, 20, 5),
        ("window", "epoch", None, 0, 0, 30, 5),
    ]
    assert one(run, "SELECT count(*) FROM events") == 1


def test_an_op_of_a_newer_recorder_is_kept(opened, folder):
    unit = events_unit([event(63, START_NS + 1), event("read", START_NS + 2)])
    (folder / "p.log").write_bytes(header_page(units=1) + unit)
    assert opened().sql("SELECT op, layer, op_group FROM events ORDER BY start_ns") == [
        ("op_63", None, None),
        ("read", "posix", "read"),
    ]


def test_a_run_without_a_single_event_has_all_tables(opened, folder):
    (folder / "p.log").write_bytes(header_page(units=0))
    run = opened()
    assert [one(run, f"SELECT count(*) FROM {table}") for table in TABLES] == [
        int(table == "processes") for table in TABLES
    ]


def test_parts_of_a_long_log_are_one_table(opened, monkeypatch):
    monkeypatch.setattr(build, "PART_BLOCKS", 3)
    first, second = Process(pid=1), Process(pid=2)
    for i in range(20_000):
        first.call("read", i, 1, "/a", offset=i, asked=1, moved=1)
        second.call("write", i, 1, "/b")
    run = opened(first, second)
    assert len(list((run.tables / "events").iterdir())) > 5
    query = "SELECT op, count(*), count(DISTINCT start_ns), min(start_ns), max(start_ns) "
    assert run.sql(query + "FROM events GROUP BY op ORDER BY op") == [
        ("read", 20_000, 20_000, 0, 19_999),
        ("write", 20_000, 20_000, 0, 19_999),
    ]


# --- clocks, processes, steps --------------------------------------------------------------------


def three_processes() -> tuple[Process, Process, Process]:
    """One moment, 1 s into the run, as three processes on two hosts write it down."""
    main = Process(pid=10, ppid=1, ticks_per_ns=2.5, start_ticks=10**12)
    # A worker of main on the same host, which started 0.4 s later: same counter, same boot.
    worker = Process(pid=11, ppid=10, ticks_per_ns=2.5, start_ticks=10**12 + 10**9)
    worker.start_ns, worker.unix_s = START_NS + 400_000_000, 0.4
    # Another host: a clock in ns, booted at another time, in the run 0.9 s later.
    other = Process(pid=10, ppid=1, start_ticks=7, start_ns=7, unix_s=0.9)
    other.header = {"boot_id": BOOT[::-1], "host": b"node2"}
    main.call("read", 1e9, 1000, "/main")
    worker.call("read", 0.6e9, 1000, "/worker")
    other.call("read", 0.1e9, 1000, "/other")
    return main, worker, other


def test_processes_of_different_clocks_share_one_time(opened):
    run = opened(*three_processes())
    assert run.sql("SELECT path, start_ns, duration_ns FROM events ORDER BY path") == [
        ("/main", 10**9, 1000),
        ("/other", 10**9, 1000),
        ("/worker", 10**9, 1000),
    ]
    assert run.start_unix_ns == 1_700_000_000_000_000_000
    assert column(run, "SELECT start_ns FROM processes ORDER BY process") == [
        0,
        4 * 10**8,
        9 * 10**8,
    ]


def test_a_parent_is_found_by_pid_on_its_own_host(opened):
    run = opened(*three_processes())
    query = "SELECT pid, host, parent FROM processes ORDER BY process"
    assert run.sql(query) == [(10, "node1", None), (11, "node1", 0), (10, "node2", None)]


def test_a_parent_of_a_reused_pid_is_the_latest_before_the_child(opened):
    def process(pid: int, ppid: int, at_s: float) -> Process:
        start = START_NS + round(at_s * 1e9)
        return Process(pid=pid, ppid=ppid, start_ns=start, start_ticks=start, unix_s=at_s)

    run = opened(process(10, 1, 0), process(10, 1, 2), process(11, 10, 1), process(12, 10, 3))
    query = "SELECT pid, parent FROM processes ORDER BY process"
    assert run.sql(query) == [(10, None), (11, 0), (10, None), (12, 2)]


def test_the_rate_of_a_short_log_is_that_of_the_longest_of_its_boot(opened):
    long = Process(pid=1, ticks_per_ns=2.0, start_ticks=10**12)
    short = Process(pid=2, ticks_per_ns=2.0, start_ticks=10**12)
    # Killed before it read the clocks again; its nominal rate is off by one in a thousand.
    short.header = {"last_ns": START_NS, "last_ticks": 10**12, "ticks_per_s": 2_002_000_000}
    short.call("read", 10**9, 1000, "/a")
    assert opened(long, short).sql("SELECT start_ns, duration_ns FROM events") == [(10**9, 1000)]


def test_setting_the_wall_clock_reorders_no_processes(opened):
    first = Process(pid=1)
    second = Process(pid=2, start_ns=START_NS + 10**9, start_ticks=START_NS + 10**9, unix_s=-3600)
    run = opened(first, second)
    assert column(run, "SELECT start_ns FROM processes ORDER BY pid") == [0, 10**9]


def test_a_call_belongs_to_the_step_that_holds_its_start(opened):
    process = Process()
    process.step(7, 100, 100)
    process.step(8, 250, 0)
    for start in (50, 100, 199, 200, 249, 250, 9999):
        process.call("read", start, 1, "/a")
    run = opened(process)
    assert column(run, "SELECT step FROM events ORDER BY start_ns") == [
        *(None, 7, 7, None, None),
        *(8, 8),
    ]


def test_a_worker_has_the_steps_of_its_nearest_ancestor_that_has_any(opened):
    main = Process(pid=10)
    main.step(0, 0, 100)
    between = Process(pid=11, ppid=10)
    worker = Process(pid=12, ppid=11, unix_s=1e-9, start_ns=START_NS + 1, start_ticks=START_NS + 1)
    worker.call("read", 48, 1, "/w")
    stranger = Process(pid=13, ppid=99)
    stranger.call("read", 50, 1, "/s")
    run = opened(main, between, worker, stranger)
    assert run.sql("SELECT path, start_ns, step FROM events ORDER BY path") == [
        ("/s", 50, None),
        ("/w", 49, 0),
    ]


def test_steps_marked_by_hand_outrank_those_an_adapter_found(opened):
    process = Process()
    process.step(0, 0, 1000, b=0)
    process.step(5, 100, 100, b=1)
    process.call("read", 50, 1, "/a")
    process.call("read", 150, 1, "/a")
    assert column(opened(process), "SELECT step FROM events ORDER BY start_ns") == [None, 5]


def test_threads_are_numbered_across_processes(opened):
    first, second = Process(pid=10), Process(pid=20)
    for process in (first, second):
        process.call("read", 1, 1, "/a", thread=1)
        process.call("write", 2, 1, "/a", thread=2)
    run = opened(first, second)
    assert run.sql("SELECT * EXCLUDE name FROM threads ORDER BY thread") == [
        (0, 0, 10, True),
        (1, 0, 11, False),
        (2, 1, 20, True),
        (3, 1, 21, False),
    ]
    assert run.sql("SELECT thread, op FROM events ORDER BY thread") == [
        *((0, "read"), (1, "write"), (2, "read")),
        (3, "write"),
    ]


def test_a_process_tells_how_it_ended(opened):
    states = ("stopped", "exited", "execed", "failed", "running")
    host = socket.gethostname().encode()
    reason = b"no space left"
    processes = [
        Process(pid=i + 1, header={"state": state, "reason": reason * (i == 3), "host": host})
        for i, state in enumerate(states)
    ]
    processes[4].call("read", 20e9, 5e9, "/late")
    run = opened(*processes)
    assert run.sql("SELECT state, reason, end_ns FROM processes ORDER BY pid") == [
        ("stopped", None, 10**10),
        ("exited", None, 10**10),
        ("execed", None, 10**10),
        ("failed", "no space left", 10**10),
        ("killed", "when is not known: the end is that of its last event", 25 * 10**9),
    ]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (-9, ("killed", "by SIGKILL")),
        (-64, ("killed", "by SIGRTMAX")),
        (-99, ("killed", "by signal 99")),
        (3, ("exited", "with status 3, without a last word to the recorder")),
    ],
)
def test_the_program_of_a_run_ends_when_penstock_run_saw_it_end(opened, folder, status, says):
    facts = {"host": "node1", "launcher_pid": 77, "status": status}
    facts["end_monotonic_ns"] = START_NS + 31 * 10**9
    (folder / "run.json").write_text(json.dumps(facts))
    program = Process(pid=1, header={"state": "running", "ppid": 77})
    program.call("read", 20e9, 5e9, "/late")
    worker = Process(pid=2, header={"state": "running", "ppid": 1})
    worker.call("read", 20e9, 6e9, "/late")
    run = opened(program, worker)
    assert run.sql("SELECT state, reason, end_ns FROM processes ORDER BY pid") == [
        (*says, 31 * 10**9),
        ("unknown", "on host node1: ask there whether it is alive", 26 * 10**9),
    ]
    # No earlier than its last event, whatever run.json says.
    facts["end_monotonic_ns"] = START_NS
    (folder / "run.json").write_text(json.dumps(facts))
    assert one(opened(program, worker), "SELECT end_ns FROM processes WHERE pid = 1") == 25 * 10**9


@pytest.mark.parametrize(
    "facts", ["", "[]", '{"host": 5, "launcher_pid": 77}', '{"host": "node1", "streams": 3}']
)
def test_a_run_json_that_says_nothing_changes_nothing(opened, folder, facts):
    (folder / "run.json").write_text(facts)
    run = opened(Process(header={"state": "running", "ppid": 77}))
    assert column(run, "SELECT state FROM processes") == ["unknown"]


def test_a_process_of_another_host_is_unknown_unless_its_log_tells_its_end(opened):
    far = {"state": "running", "host": b"far"}
    run = opened(of_this_process(host=b"far"), Process(pid=7, header=far), Process(pid=8))
    assert run.sql("SELECT state, reason FROM processes ORDER BY pid = 8, pid = 7") == [
        ("unknown", "on host far: ask there whether it is alive"),
        ("unknown", "on host far: ask there whether it is alive"),
        ("exited", None),
    ]
    assert not run.is_running


def test_a_damaged_log_is_read_and_says_so(opened, folder):
    good = events_unit([event("read", START_NS + 1)], round=1)
    bad = b"\1" * UNIT_BYTES
    (folder / "a.log").write_bytes(header_page(pid=1, units=3) + good + bad + good[:1000])
    (folder / "b.log").write_bytes(header_page(pid=2, units=1) + good)
    run = opened()
    query = "SELECT log, is_torn, damaged_units FROM processes ORDER BY log"
    assert run.sql(query) == [("a.log", True, 1), ("b.log", False, 0)]
    assert one(run, "SELECT count(*) FROM events") == 2


# --- a run that goes on --------------------------------------------------------------------------


def of_this_process(**fields: Any) -> Process:
    """A log of the process that runs the test, as if it were recorded now."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    now = time.monotonic_ns()
    process = Process(pid=os.getpid(), start_ns=now, start_ticks=now)
    process.header = {
        "state": "running",
        "boot_id": bytes.fromhex(boot),
        "host": socket.gethostname().encode(),
        **fields,
    }
    return process


def test_a_run_that_goes_on_is_read_as_it_is_and_not_kept(opened, folder):
    process = of_this_process()
    process.call("read", 1, 1, "/a")
    run = opened(process)
    assert run.is_running
    assert run.sql("SELECT state, end_ns FROM processes") == [("running", None)]
    assert not (folder / "tables").exists()
    tables = run.tables
    assert tables.exists()
    run.close()
    assert not tables.exists()
    process.header["state"] = "exited"
    again = opened(process)
    assert not again.is_running
    assert (folder / "tables").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"pid": 2**22 + 1},  # no such process
        {"boot_id": BOOT},  # another boot
        {"start_ns": 1, "start_ticks": 1},  # a pid that was given again after the log began
    ],
    ids=["gone", "booted", "reused"],
)
def test_a_process_that_is_no_longer_there_was_killed(opened, fields):
    run = opened(of_this_process(**fields))
    assert not run.is_running
    assert column(run, "SELECT state FROM processes") == ["killed"]


def test_a_process_that_nobody_waited_for_was_killed(opened):
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    try:
        assert not opened(of_this_process(pid=child.pid)).is_running
    finally:
        child.wait()


# --- paths ---------------------------------------------------------------------------------------


def test_one_path_is_one_file_whoever_opened_it(opened):
    first, second = Process(pid=1), Process(pid=2)
    data = second.file("/data")
    first.call("read", 1, 1, "/data/x/a")
    second.call("read", 2, 1, file=second.file("x//./a", base=data))
    second.call("read", 3, 1, file=second.file("../data/x/a", base=data))
    run = opened(first, second)
    assert run.sql("SELECT path, count(*) FROM events GROUP BY path") == [("/data/x/a", 3)]
    assert one(run, "SELECT count(DISTINCT file) FROM events") == 1


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("/a/b", "/a/b"),
        ("//a//b/", "/a/b"),
        ("/a/./b/../c", "/a/c"),
        ("/../a", "/a"),
        ("/a/..b/.c", "/a/..b/.c"),
        ("/", "/"),
        ("pipe:", "pipe:"),
        ("relative/to/what", "relative/to/what"),
        (b"/data/caf\xc3\xa9", "/data/café"),
        (b"/data/caf\xe9", "/data/caf\\xe9"),
        (b"/\xff\xfe\xed\xa0\x80", "/\\xff\\xfe\\xed\\xa0\\x80"),
        (b"/a\nb\tc'd\"e;--", "/a\nb\tc'd\"e;--"),
    ],
)
def test_a_name_becomes_a_path(opened, name, path):
    process = Process()
    process.call("open", 1, 1, name)
    assert column(opened(process), "SELECT path FROM events") == [path]


def test_relative_names_start_from_folders_that_may_be_relative_themselves(opened):
    process = Process()
    top = process.file("/top")
    middle = process.file("middle", base=top)
    process.call("open", 1, 1, file=process.file("leaf", base=middle))
    process.call("open", 2, 1, file=process.file("leaf", base=4711))
    found = process.file("", "/found/here")
    process.call("open", 3, 1, file=process.file("x", base=found))
    run = opened(process)
    assert column(run, "SELECT path FROM events ORDER BY start_ns") == [
        *("/top/middle/leaf", "leaf"),
        "/found/here/x",
    ]


def test_folders_that_lead_in_a_circle_end(opened):
    process = Process()
    process.texts = [
        text(FILE_TEXT, 1, "a", base=2),
        text(FILE_TEXT, 2, "b", base=1),
        text(FILE_TEXT, 3, "c", base=3),
    ]
    for file in (1, 2, 3):
        process.call("open", file, 1, file=file)
    assert column(opened(process), "SELECT path FROM events ORDER BY start_ns") == ["a", "b", "c"]


def test_a_second_text_adds_what_the_first_open_showed(opened):
    process = Process()
    number = process.file("/data/a")
    details = {"mode": stat.S_IFREG | 0o644, "device": 3, "inode": 4, "size": 5}
    process.texts.append(text(FILE_TEXT, number, "", "/mnt/a", **details))
    same = process.file("/data/b")
    process.texts.append(text(FILE_TEXT, same, "", "", **details))
    process.file("/data/c")
    run = opened(process)
    assert run.sql("SELECT * EXCLUDE (file, path_class) FROM files ORDER BY path") == [
        ("/data/a", "/mnt/a", "regular", 3, 4, None, 5),
        ("/data/b", "/data/b", "regular", 3, 4, None, 5),
        ("/data/c", None, "unknown", None, None, None, None),
    ]


def test_a_path_that_was_opened_as_its_copy_too_has_two_numbers(opened):
    details = {"mode": stat.S_IFREG | 0o644, "device": 3, "size": 5}
    first, second = Process(pid=100), Process(pid=101)
    for process in (first, second):
        process.header = {"opens": [0, 1, 0, 0, 0, 2, *[0] * 10]}
        process.note("tier", "fast")
        process.call("read", 10, 5, "/data/a", moved=1)
        copy = process.file("/data/a/", "/fast/staged/data/a", inode=7, tier=1, **details)
        process.call("read", 20, 5, file=copy, moved=2)
    run = opened(first, second)
    assert run.sql("SELECT path, served_from, inode FROM files ORDER BY ALL") == [
        ("/data/a", "fast", 7),
        ("/data/a", None, None),
    ]
    assert run.sql(
        "SELECT served_from, sum(moved_bytes)::INTEGER FROM events GROUP BY 1 ORDER BY 1"
    ) == [("fast", 4), (None, 2)]
    assert run.sql("SELECT outcome, sum(opens)::INTEGER FROM staged GROUP BY 1 ORDER BY 1") == [
        ("gone", 4),
        ("served", 2),
    ]


@pytest.mark.parametrize(
    ("mode", "name", "kind", "path_class"),
    [
        (stat.S_IFREG, "/data/a", "regular", "data"),
        (stat.S_IFDIR, "/data", "directory", "data"),
        (stat.S_IFIFO, "pipe:", "pipe", "system"),
        (stat.S_IFIFO, "/tmp/fifo", "pipe", "system"),
        (stat.S_IFSOCK, "socket:", "socket", "system"),
        (stat.S_IFCHR, "/dev/pts/3", "terminal", "system"),
        (stat.S_IFCHR, "/dev/null", "device", "system"),
        (stat.S_IFBLK, "/dev/nvme0n1", "device", "system"),
        (0o600, "anon_inode:[eventpoll]", "other", "system"),
    ],
)
def test_a_file_has_a_kind(opened, mode, name, kind, path_class):
    process = Process()
    process.file(name, mode=mode | 0o600)
    assert opened(process).sql("SELECT kind, path_class FROM files") == [(kind, path_class)]


def test_a_call_on_a_file_that_the_log_does_not_name_has_no_path(opened):
    process = Process()
    process.file("/a")
    for number in (0, 77, 2**32 - 1):
        process.call("read", number, 1, file=number)
    assert opened(process).sql("SELECT DISTINCT file, path, path_class FROM events") == [
        (None, None, None)
    ]


def test_the_size_of_a_file_is_the_largest_that_is_known(opened):
    first, second = Process(pid=1), Process(pid=2)
    regular = {"mode": stat.S_IFREG | 0o644, "device": 3, "inode": 4}
    first.file("/grown", size=100, **regular)
    second.file("/grown", size=300, **regular)
    first.file("/read", size=100, **regular)
    first.call("pread", 1, 1, "/read", offset=400, moved=50)
    first.call("pread", 2, 1, "/read", offset=900, asked=50)  # beyond the end: nothing came
    first.file("/shrunk", size=100, **regular)
    first.call("truncate", 3, 1, "/shrunk", offset=10)
    first.file("/cut to more", size=100, **regular)
    first.call("truncate", 4, 1, "/cut to more", offset=5000)
    first.call("pwrite", 5, 1, "/failed", offset=70, moved=9, errno=errno.EIO)
    first.call("pread", 6, 1, "/hostile", offset=2**63 - 1, moved=2**48 - 1)
    folded = {"file": first.file("/folded"), "op": "read", "calls": 1, "max_end": 80}
    first.fold({**folded, "moved": 80})
    run = opened(first, second)
    assert dict(run.sql("SELECT path, size_bytes FROM files")) == {
        "/grown": 300,
        "/read": 450,
        "/shrunk": 100,
        "/cut to more": 5000,
        "/failed": None,
        "/hostile": None,
        "/folded": 80,
    }


def test_ids_may_be_any_numbers(opened):
    process = Process()
    numbers = [1, 2, 40_000, 2**31, 2**32 - 1]
    process.texts = [text(FILE_TEXT, number, f"/f{number}") for number in numbers]
    for number in numbers:
        process.call("read", number, 1, file=number)
        process.call("read", number, 1, file=number - 1 if number > 2 else 3)
    run = opened(process)
    query = "SELECT path FROM events WHERE path IS NOT NULL ORDER BY start_ns"
    assert column(run, query) == [f"/f{number}" for number in numbers]


# --- path classes --------------------------------------------------------------------------------

CLASSES = {
    "/home/me/runs/a/node7.example.org.1415.0.events": "penstock",
    "/home/me/runs/a/train.log": "data",
    "/nvme/me/.penstock": "penstock",
    "/nvme/me/.penstock/manifest.jsonl": "penstock",
    "/nvme/me/.penstock/running-a1b2c3": "penstock",
    "/nvme/me/staged/0a1b/a.JPEG": "data",
    "/data/.set.tar.penstock-index": "penstock",
    "/data/..set.tar.penstock-index.4711": "penstock",
    "/data/a.penstock-index": "data",  # of no name that feed gives
    "/home/me/.cache/penstock/index": "penstock",
    "/home/me/.cache/penstock/index/0123456789abcdef0123456789abcdef.idx": "penstock",
    "/scratch/indexes/.0123456789abcdef0123456789abcdef.idx.4711": "penstock",
    "/data/shard-00000.idx": "data",
    "/data/0123456789abcdef.idx": "data",
    "/out/step-00000100/penstock-manifest.json": "penstock",
    "/out/step-00000100/.penstock-manifest.json.penstock-part": "penstock",
    "/out/last.ckpt.penstock.json": "penstock",
    "/out/last.ckpt": "data",
    "/out/.last.ckpt.penstock-part": "data",  # the checkpoint's own bytes, until it is whole
    "/nvme/me/.penstock-costs-x1/read": "penstock",
    "/home/me/.config/penstock/tiers.json": "penstock",
    "/data/tiers.json": "data",
    "/nvme/me/burst/data/18ea4aa88321465800058701-checkpoint-1.pt": "output",
    "/nvme/me/burst/data/checkpoint-1.pt": "data",
    "/data/imagenet/train/n01/a.JPEG": "data",
    "/home/me/train.lmdb/data.mdb": "data",
    "/dev/shm/dataset/a.bin": "data",
    "/scratch/libs/a.tar": "data",
    "/data/solutions.json": "data",
    "/proc/self/status": "system",
    "/sys/devices/system/cpu/online": "system",
    "/dev/nvidia0": "system",
    "/dev/shm/torch_1234_5678": "system",
    "/dev/shm/psm_abcdef": "system",
    "/dev/shm/sem.mp-x": "system",
    "/run/user/1000/bus": "system",
    "pipe:": "system",
    "/memfd:x (deleted)": "system",
    "/home/me/train.py": "library",
    "/home/me/__pycache__/train.cpython-311.pyc": "library",
    "/opt/conda/lib/python3.11/json/__init__.py": "library",
    "/opt/conda/lib/python311.zip": "library",
    "/opt/conda/lib/python3.11": "library",
    "/venv/lib/python3.12/site-packages/torch/version": "library",
    "/venv/lib/python3.12/site-packages": "library",
    "/opt/x/libcudart.so.12.1": "library",
    "/opt/x/libx.so": "library",
    "/usr/lib/x86_64-linux-gnu/gconv": "library",
    "/usr/share/zoneinfo/UTC": "library",
    "/etc/nsswitch.conf": "library",
    "/usr/share/dict/words": "data",
    "/usr/lib/nltk_data/corpora/brown/ca01": "data",
    "/usr/local/share/speech/a.flac": "data",
    "/usr/local/share/ca-certificates/a.crt": "library",
    "/usr/local/share/fonts/a": "library",
    "/usr/local/lib/libx": "library",
    "/venv/bin/python3.11": "library",
    "/home/me/.triton/cache/x.cubin": "library",
}


@pytest.mark.parametrize(("path", "path_class"), CLASSES.items(), ids=CLASSES.keys())
def test_a_path_has_a_class(opened, path, path_class):
    process = Process()
    process.call("read", 1, 1, path)
    assert column(opened(process), "SELECT path_class FROM events") == [path_class]


def test_every_rule_says_why_or_belongs_to_the_one_before():
    assert PATH_RULES[0].reason
    for rule in PATH_RULES:
        assert rule.path_class in NAMES_OF_CLASSES
        re.compile(rule.pattern)


def test_what_the_job_wrote_is_output(opened):
    process = Process()
    process.call("write", 1, 1, "/out/log.txt", moved=5)
    process.call("write", 2, 1, "/out/full", errno=errno.ENOSPC)
    process.call("fsync", 3, 1, "/data/only-synced", moved=1)
    process.call("truncate", 4, 1, "/out/sparse", offset=100)
    process.call("copy_range", 5, 1, "/data/from", offset=process.file("/out/to"), moved=9)
    process.call("write", 6, 1, "/out/model.tmp", moved=5)
    process.call("link", 7, 1, "/out/model.tmp", offset=process.file("/out/model.old"))
    process.call("rename", 8, 1, "/out/model.old", offset=process.file("/out/model.pt"))
    process.call("rename", 9, 1, "/data/a", offset=process.file("/data/b"))
    process.call("write", 10, 1, "/home/me/__pycache__/m.cpython-311.pyc.123", moved=5)
    process.call("write", 11, 1, "/dev/null", moved=5)
    process.call("mkdir", 12, 1, "/out/new")
    run = opened(process)
    by_class = defaultdict(set)
    for path, path_class in run.sql("SELECT path, path_class FROM files"):
        by_class[path_class].add(path)
    out = {"log.txt", "sparse", "to", "model.tmp", "model.old", "model.pt", "new"}
    assert by_class["output"] == {f"/out/{name}" for name in out}
    assert by_class["library"] == {"/home/me/__pycache__/m.cpython-311.pyc.123"}
    assert by_class["system"] == {"/dev/null"}


def test_where_standard_output_goes_is_output_though_nothing_was_written(opened, folder):
    facts = {"host": "node1", "launcher_pid": 1, "streams": ["/logs/it's.out", "/mnt/err"]}
    (folder / "run.json").write_text(json.dumps(facts))
    process = Process()
    process.call("fstat", 1, 1, "/logs/it's.out")
    process.call("fstat", 2, 1, file=process.file("/logs/err", "/mnt/err", mode=stat.S_IFREG))
    process.call("write", 2, 1, "/logs/err", moved=7)
    process.call("read", 3, 1, "/data/a", moved=5)
    run = opened(process)
    assert sorted(run.sql("SELECT path, path_class FROM files")) == [
        ("/data/a", "data"),
        ("/logs/err", "output"),
        ("/logs/it's.out", "output"),
    ]
    noted = run.sql("SELECT value FROM notes WHERE key = 'stream' ORDER BY value")
    assert list(noted) == [("/logs/it's.out",), ("/mnt/err",)]


def test_a_file_of_which_a_mapping_was_synced_is_output(opened):
    process, other = Process(pid=1), Process(pid=2)
    process.call("mmap", 1, 1, "/data/before", asked=8192, moved=0x7000)
    process.call("mmap", 3, 1, "/db/synced", asked=8192, moved=0x7000)
    process.call("mmap", 4, 1, "/data/beside", asked=4096, moved=0x9000)
    process.call("msync", 5, 1, asked=4096, moved=0x8000)
    process.call("mmap", 6, 1, "/data/after", asked=8192, moved=0x7000)
    process.call("msync", 7, 1, asked=4096, moved=0x9000, errno=errno.EIO)
    other.call("mmap", 4, 1, "/data/elsewhere", asked=8192, moved=0x7000)
    run = opened(process, other)
    outputs = column(run, "SELECT path FROM files WHERE path_class = 'output'")
    assert outputs == ["/db/synced"]


def a_folder(process, path):
    process.file(path, mode=stat.S_IFDIR | 0o755)
    process.call("opendir", 1, 1, path)


def test_folders_that_are_examined_for_libraries_are_no_data(opened):
    """Each path with its class, by hand: what follows it is why."""
    process = Process()
    expected = {
        "/": "library",  # above libraries, examined only
        "/w": "library",
        "/w/venv/lib": "library",
        "/w/venv/lib/python3.11/os.py": "library",
        "/w/job": "library",  # listed; train.py, model.py against config.json
        "/w/job/train.py": "library",
        "/w/job/model.py": "library",
        "/w/job/config.json": "data",
        "/w/src": "library",  # listed; a package folder in it
        "/w/src/package/a.py": "library",
        "/w/bin/nvidia-smi": "library",  # looked for in vain, also in /usr/bin
        "/usr/bin/nvidia-smi": "library",
        "/w/tool": "library",  # started
        "/w/here": "library",  # above a program that was started
        "/w/here/tool": "library",
        "/w/set": "data",  # listed, as the job's data set is; a script in it, more data
        "/w/set/loader.py": "library",
        "/w/set/train/1.bin": "data",
        "/w/set/val/1.bin": "data",
        "/w/mixed": "data",  # examined only, above a library; two data files against one
        "/w/mixed/a.bin": "data",
        "/w/mixed/b.bin": "data",
        "/w/mixed/a.py": "library",
        "/d": "data",  # examined only, above data alone
        "/d/1.bin": "data",
        "/d/1.npy": "data",  # missing beside data: the job's own look-up
        "/d/exists": "data",  # examined only, a file
        "/w/opened-in-vain": "data",
    }
    for path in expected:
        if re.search(r"\.(py|bin|json)$", path):
            process.file(path, mode=stat.S_IFREG | 0o644)
            process.call("open", 1, 1, path)
    for path in ("/", "/w", "/w/venv/lib", "/w/here", "/w/mixed", "/d", "/d/exists"):
        process.call("lstat", 2, 1, path)
        process.call("stat", 2, 1, path)
    for path in ("/w/job", "/w/src", "/w/set"):
        a_folder(process, path)
        process.call("stat", 3, 1, path)
    for path in ("/w/bin/nvidia-smi", "/usr/bin/nvidia-smi", "/d/1.npy"):
        process.call("stat", 4, 1, path, errno=errno.ENOENT)
    process.call("open", 4, 1, "/w/opened-in-vain", errno=errno.ENOENT)
    process.call("exec", 5, 1, "/w/tool", errno=errno.ENOENT)
    process.call("exec", 5, 1, "/w/here/tool")
    assert dict(opened(process).sql("SELECT path, path_class FROM files")) == expected


def test_folders_examined_past_the_budget_are_judged_by_their_counters(opened):
    process = Process()
    process.file("/w/a.py", mode=stat.S_IFREG | 0o644)
    process.call("open", 1, 1, "/w/a.py")
    for path, op in (("/w", "lstat"), ("/w/b", "lstat")):
        process.fold({"file": process.file(path), "op": op, "calls": 7})
    found = dict(opened(process).sql("SELECT path, path_class FROM files"))
    assert found == {"/w": "library", "/w/a.py": "library", "/w/b": "data"}


def test_what_another_process_reads_of_an_output_is_output(opened):
    writer, reader = Process(pid=1), Process(pid=2)
    writer.call("write", 1, 1, "/out/a", moved=5)
    reader.call("read", 2, 1, "/out/a", moved=5)
    assert column(opened(writer, reader), "SELECT DISTINCT path_class FROM events") == ["output"]


def test_files_below_a_renamed_folder_are_output(opened):
    process = Process()
    process.call("mkdir", 1, 1, "/out/step5.tmp")
    process.call("write", 2, 1, "/out/step5.tmp/shard/a", moved=5)
    process.file("/out/step5.tmp", mode=stat.S_IFDIR | 0o755)
    directory = process.file("/out/step5.tmp")
    process.texts.append(text(FILE_TEXT, directory, "", "", mode=stat.S_IFDIR | 0o755))
    process.call("rename", 3, 1, "/out/step5.tmp", offset=process.file("/out/step5"))
    process.call("read", 4, 1, "/out/step5/shard/a", moved=5)
    process.call("write", 5, 1, "/out/step5.tmpb", moved=5)
    process.call("read", 6, 1, "/out/step5b", moved=5)
    run = opened(process)
    query = "SELECT path_class FROM files WHERE path = ?"
    assert run.sql(query, ["/out/step5/shard/a"]) == [("output",)]
    assert run.sql(query, ["/out/step5b"]) == [("data",)]


def test_events_that_were_folded_away_make_outputs_too(opened):
    process = Process()
    file = process.file("/out/a")
    process.fold({"file": file, "op": "write", "calls": 2, "moved": 7})
    assert column(opened(process), "SELECT path_class FROM files") == ["output"]


def test_the_users_rules_come_first(opened, folder):
    (folder / "classes.toml").write_text(
        'data = ["/site-packages/data/"]\nsystem = ["^/s/", "^/t/"]'
    )
    process = Process()
    for path in ("/x/site-packages/data/a", "/x/site-packages/b", "/s/a", "/t/a", "/u/a"):
        process.call("read", 1, 1, path)
    run = opened(process)
    query = "SELECT path_class FROM files ORDER BY path"
    assert column(run, query) == ["system", "system", "data", "library", "data"]
    assert column(run, "SELECT DISTINCT path_class FROM counters ORDER BY 1") == [
        *("data", "library"),
        "system",
    ]
    more = open_run(folder, classes=[PathRule("mine", "^/[su]/")])
    with more:
        assert column(more, query) == ["mine", "system", "mine", "library", "data"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("data = [", "classes.toml: cannot be read"),
        ('data = "x"', r'write data = \["pattern"'),
        (
            'data = ["("]',
            r"classes.toml: data = \['\('\] is no regular expression \(missing \).*; escape",
        ),
        ('data = ["(?=x)"]', r"classes.toml: data = .*\(invalid perl operator"),
        (
            'libary = ["^/opt/"]',
            "classes.toml: no class is called 'libary'; "
            "write data, output, library, system or penstock",
        ),
        ('data = ["a\'b"]', None),
    ],
)
def test_rules_that_make_no_sense_are_refused_in_a_sentence(opened, folder, content, says):
    (folder / "classes.toml").write_text(content)
    process = Process()
    process.call("read", 1, 1, "/a")
    if says is None:
        assert column(opened(process), "SELECT path_class FROM files") == ["data"]
        return
    with pytest.raises((RunError, QueryError), match=says):
        opened(process)


# --- counters ------------------------------------------------------------------------------------

COUNTED = (
    *("calls", "errors", "asked_bytes", "moved_bytes", "duration_ns", "max_duration_ns"),
    *("first_ns", "last_ns", "max_end_bytes", "sequential", "consecutive", "switches"),
    *("unaligned", "empty", *(f"bucket_{i}" for i in range(10))),
)
BOUNDS = (100, 1024, 10240, 102400, 1048576, 4194304, 10485760, 104857600, 1073741824)
MOVING = {"read": "read", "pread": "read", "write": "write"}


def counted(calls: list[dict[str, Any]]) -> dict[tuple[int, str], dict[str, Any]]:
    """The definition of counters.sql, slowly: calls in order of start, all of one process."""
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    ends: dict[tuple[int, str], int] = {}
    ways: dict[int, str] = {}
    for call in calls:
        if not call["duration"]:
            continue
        file, op, moved, offset = call["file"], call["op"], call["moved"], call["offset"]
        row = rows.setdefault((file, op), dict.fromkeys(COUNTED, 0) | {"sizes": Counter()})
        row.setdefault("strides", Counter())
        row["calls"] += 1
        row["errors"] += call["errno"] != 0
        row["asked_bytes"] += call["asked"]
        row["moved_bytes"] += moved
        row["duration_ns"] += call["duration"]
        row["max_duration_ns"] = max(row["max_duration_ns"], call["duration"])
        row["first_ns"] = min(row["first_ns"] or call["start"], call["start"])
        row["last_ns"] = max(row["last_ns"], call["start"] + call["duration"])
        if op not in MOVING or call["errno"]:
            continue
        if not moved:
            row["empty"] += 1
            continue
        row[f"bucket_{sum(moved > bound for bound in BOUNDS)}"] += 1
        row["sizes"][moved] += 1
        if offset < 0 or not file:
            continue
        end = ends.get((file, op))
        row["sequential"] += offset == 0 or (end is not None and offset >= end)
        row["consecutive"] += offset == 0 or offset == end
        row["unaligned"] += offset % 4096 != 0
        row["switches"] += ways.get(file, MOVING[op]) != MOVING[op]
        if end is not None:
            row["strides"][offset - end] += 1
        row["max_end_bytes"] = max(row["max_end_bytes"], offset + moved)
        ends[file, op] = offset + moved
        ways[file] = MOVING[op]
    return rows


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "op": st.sampled_from(["read", "pread", "write", "open", "fsync"]),
                "file": st.integers(0, 2),
                "offset": st.sampled_from([-1, 0, 100, 4096, 8192, 8292]),
                "moved": st.sampled_from([0, 1, 100, 101, 1024, 4096, 10241, 1 << 30, 1 << 31]),
                "asked": st.integers(0, 1 << 20),
                "errno": st.sampled_from([0, 0, 0, 5]),
                "duration": st.integers(0, 1000),
            }
        ),
        max_size=60,
    )
)
def test_counters_are_a_fold_of_the_events(tmp_path_factory, calls):
    folder = tmp_path_factory.mktemp("run")
    process = Process()
    names = [process.file(f"/f{i}") for i in (1, 2)]
    for i, call in enumerate(calls):
        call["start"] = 1000 * i + 1
        call["moved"] = 0 if call["errno"] or call["op"] not in MOVING else call["moved"]
        number = names[call["file"] - 1] if call["file"] else 0
        process.call(
            call["op"],
            call["start"],
            call["duration"],
            **{name: call[name] for name in ("offset", "moved", "asked", "errno")},
            file=number,
        )
    process.write(folder)
    expected = counted(calls)
    with open_run(folder) as run:
        query = f"SELECT path, op, {', '.join(COUNTED)}, sizes, strides, folded FROM counters"
        found = {}
        for path, op, *values in run.sql(query):
            found[int(path[2:]) if path else 0, op] = dict(
                zip((*COUNTED, "sizes", "strides", "folded"), values, strict=True)
            )
    assert found.keys() == expected.keys()
    for key, row in expected.items():
        told = found[key]
        assert not told.pop("folded")
        for name in ("sizes", "strides"):
            pairs = {pair["value"]: pair["calls"] for pair in told.pop(name) or []}
            common = row.pop(name)
            assert len(pairs) == min(4, len(common))
            assert all(common[value] == n for value, n in pairs.items())
            assert sorted(pairs.values()) == sorted(n for _, n in common.most_common(4))
        told["max_end_bytes"] = told["max_end_bytes"] or 0
        assert told == row


def test_reading_a_whole_file_is_sequential_in_every_epoch(opened):
    process = Process()
    for epoch in range(3):
        start = epoch * 1000
        process.call("read", start, 1, "/a", offset=0, asked=10_001, moved=10_000)
        process.call("read", start + 10, 1, "/a", offset=10_000, asked=10_001)
    query = "SELECT calls, sequential, consecutive, empty, bucket_2 FROM counters"
    assert opened(process).sql(query) == [(6, 3, 3, 3, 3)]


def test_folded_counters_are_added_to_the_events_that_were_kept(opened):
    process = Process(ticks_per_ns=2.0, start_ticks=1000)
    process.call("read", 10, 5, "/a", offset=0, asked=200, moved=100)
    record = {
        "file": process.file("/a"),
        "op": "read",
        "calls": 3,
        "errors": 1,
        "ticks": 60,
        "max_ticks": 40,
        "first": process.ticks(100),
        "last": process.ticks(200),
        "asked": 30,
        "moved": 20,
        "max_end": 4000,
        "sequential": 2,
        "buckets": [2, *[0] * 9],
        "sizes": [(100, 5), (7, 1), (0, 0), (0, 0)],
    }
    process.fold(record, record)
    process.fold(
        {"file": process.file("/a"), "op": "open", "calls": 2, "ticks": 8}, is_access=False
    )
    run = opened(process)
    query = (
        f"SELECT op, {', '.join(COUNTED[:12])}, bucket_0, sizes, folded FROM counters ORDER BY op"
    )
    pairs = [{"value": 100, "calls": 11}, {"value": 7, "calls": 2}]
    assert run.sql(query) == [
        ("open", 2, 0, 0, 0, 4, 0, -500, -500, None, 0, 0, 0, 0, [], True),
        ("read", 7, 2, 260, 140, 65, 20, 10, 200, 4000, 5, 1, 0, 5, pairs, True),
    ]


@pytest.mark.parametrize(
    ("first_offset", "sequential", "consecutive"), [(0, 2, 2), (100, 2, 2), (200, 2, 1), (50, 1, 1)]
)
def test_the_first_folded_access_follows_the_last_that_was_kept(
    opened, first_offset, sequential, consecutive
):
    process = Process()
    process.call("read", 10, 5, "/a", offset=0, asked=100, moved=100)
    process.fold(
        {"file": process.file("/a"), "op": "read", "calls": 1, "moved": 7}
        | {"first": process.ticks(50), "last": process.ticks(60)}
        | {"first_offset": first_offset, "last_end": first_offset + 7}
    )
    query = "SELECT calls, sequential, consecutive FROM counters"
    assert opened(process).sql(query) == [(2, sequential, consecutive)]


def test_what_a_sync_seemed_to_move_is_not_counted(opened):
    process = Process()
    process.fold({"file": 0, "op": "msync", "calls": 2, "moved": 1 << 46, "buckets": [2] * 10})
    query = "SELECT calls, moved_bytes, empty, bucket_0 FROM counters"
    assert opened(process).sql(query) == [(2, 0, 0, 0)]


def test_hostile_counters_do_not_overflow(opened):
    process = Process()
    most = 2**64 - 1
    process.fold(
        *[
            {"file": 1, "op": "read", "max_end": 2**63 - 1}
            | dict.fromkeys(("calls", "errors", "ticks", "max_ticks", "asked", "moved"), most)
            | dict.fromkeys(("first", "last", "sequential", "consecutive", "empty"), most)
        ]
        * 100
    )
    ((calls,),) = opened(process).sql("SELECT calls FROM counters")
    assert calls > 0


# --- programs that were not seen -----------------------------------------------------------------


def test_programs_that_left_no_log_are_named(opened):
    main = Process(pid=10)
    seen = Process(
        pid=21, ppid=10, start_ns=START_NS + 2000, start_ticks=START_NS + 2000, unix_s=2e-6
    )
    main.call("spawn", 1000, 500, "/bin/seen", moved=21)
    main.call("spawn", 2000, 500, "/bin/static", moved=22)
    main.call("spawn", 3000, 500, "/bin/missing", moved=0, errno=2)
    main.call("spawn", 4000, 500, "/bin/sh", moved=0)  # system(): the child's pid is not known
    main.call("exec", 10**7, 1, "/bin/borrowed", moved=23)
    seen.call("exec", 10**8, 1, "/bin/sealed", moved=21)
    main.note("unseen", "io_uring: 3 rings")
    run = opened(main, seen)
    static = "static, set-uid or started with a cleaned environment"
    assert run.sql("FROM unseen") == [
        (0, 22, "/bin/static", static),
        (0, 23, "/bin/borrowed", static),
        (0, None, None, "io_uring: 3 rings"),
        (1, 21, "/bin/sealed", static),
    ]


def test_a_log_of_the_process_before_the_exec_is_none_of_the_program(opened):
    forked = Process(pid=10, header={"state": "execed"})
    forked.call("exec", 5_000, 1, "/bin/static", moved=10)  # its log began with this call
    assert column(opened(forked), "SELECT program FROM unseen") == ["/bin/static"]


def test_a_program_that_an_exec_started_is_seen(opened):
    before = Process(pid=10, header={"state": "execed"})
    before.call("exec", 10**6, 1, "/bin/python", moved=10)
    after = Process(pid=10, start_ns=START_NS + 2 * 10**6, start_ticks=START_NS + 2 * 10**6)
    after.unix_s = 2e-3
    run = opened(before, after)
    assert one(run, "SELECT count(*) FROM unseen") == 0


def test_notes_are_told(opened):
    process = Process()
    process.note("torch", "2.13.0")
    process.note(b"bad".decode(), "caf\\xe9")
    assert opened(process).sql("FROM notes") == [(0, "bad", "caf\\xe9"), (0, "torch", "2.13.0")]


# --- folders that are no runs --------------------------------------------------------------------


def test_folders_without_logs_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "train.log").write_text("epoch 1")
    for name, says in (
        ("missing", "missing: not a run folder: No such file"),
        ("file", "file: not a run folder: Not a directory"),
        ("empty", "empty: no log of penstock in it"),
        ("foreign", "no log of penstock in it .*not a log of penstock"),
    ):
        with pytest.raises(RunError, match=says):
            open_run(tmp_path / name)


def test_files_that_are_no_logs_are_skipped_and_told(opened, folder):
    (folder / "train.log").write_text("epoch 1")
    (folder / "empty.log").write_bytes(b"")
    (folder / "cut.log").write_bytes(header_page()[:100])
    (folder / "folder.log").mkdir()
    (folder / "notes.txt").write_text("x")
    run = opened(Process())
    assert one(run, "SELECT count(*) FROM processes") == 1
    told = column(run, "SELECT value FROM notes WHERE key = 'skipped' AND process IS NULL")
    assert [note.rpartition("/")[2][:16] for note in sorted(told)] == [
        "cut.log: cut aft",
        "empty.log: no by",
        "train.log: not a",
    ]


def test_a_log_of_a_newer_format_is_not_passed_over(opened, folder):
    (folder / "new.log").write_bytes(header_page(version=2))
    with pytest.raises(LogError, match="written by format 2, newest known here is 1; upgrade"):
        opened(Process())
    assert not list(folder.glob(".tables*"))


def test_a_folder_whose_name_no_table_can_hold_is_refused_in_a_sentence(tmp_path):
    folder = tmp_path / os.fsdecode(b"\xff")
    folder.mkdir()
    Process().write(folder)
    with pytest.raises(RunError, match=r"\\xff: tables need a name in UTF-8"):
        open_run(folder)


def test_a_folder_may_have_any_name(tmp_path):
    folder = tmp_path / "it's [a] *run*? ü"
    # What its name would match as a pattern.
    other = tmp_path / "it's a my-runs ü"
    for path, calls in ((other, 5), (folder, 1)):
        path.mkdir()
        process = Process()
        for i in range(calls):
            process.call("read", i, 1, "/a")
        process.write(path)
        open_run(path).close()
    with open_run(folder) as run:
        assert one(run, "SELECT count(*) FROM events") == 1
        assert one(run, "SELECT count(*) FROM counters") == 1
    with open_run(str(folder)) as run:
        assert one(run, "SELECT count(*) FROM events") == 1


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 1)  # which log
            | st.just(1),
            st.integers(8, 600)
            | st.integers(HEADER_BYTES, HEADER_BYTES + 400)
            | st.integers(HEADER_BYTES + UNIT_BYTES - 400, HEADER_BYTES + UNIT_BYTES),
            st.sampled_from([b"\0" * 8, b"\xff" * 8, b"\xff", b"\x7f" + b"\xff" * 7])
            | st.binary(min_size=1, max_size=8),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_no_scribble_can_break_a_run(tmp_path_factory, scribbles):
    folder = tmp_path_factory.mktemp("run")
    logs = []
    for process in three_processes()[:2]:
        process.step(0, 0, 10**9)
        process.call("rename", 5, 5, "/a", offset=process.file("/b"))
        process.call("spawn", 6, 5, "/bin/x", moved=3)
        logs.append(bytearray(process.bytes()))
    for number, at, value in scribbles:
        logs[number][at : at + len(value)] = value
    for number, data in enumerate(logs):
        (folder / f"{number}.log").write_bytes(data)
    try:
        run = open_run(folder)
    except LogError:
        return
    with run:
        for table in TABLES:
            run.sql(f"FROM {table}")


# --- tables that are kept ------------------------------------------------------------------------


def built(folder: Path) -> int:
    return (folder / "tables" / "manifest.json").stat().st_ino


def test_tables_are_made_once(opened, folder):
    process = Process()
    process.call("read", 1, 1, "/a")
    steps: list[tuple[int, int]] = []
    opened(process, progress=lambda done, total: steps.append((done, total)))
    assert steps == sorted(steps)
    assert steps[-1][0] == steps[-1][1] > 0
    first = built(folder)
    again: list[tuple[int, int]] = []
    with open_run(folder, progress=lambda done, total: again.append((done, total))) as run:
        assert one(run, "SELECT count(*) FROM events") == 1
    assert built(folder) == first
    assert not again
    assert sorted(path.name for path in folder.iterdir()) == ["node1.100.0.events", "tables"]


def test_tables_are_made_again_when_a_log_changes(opened, folder):
    process = Process()
    process.call("read", 1, 1, "/a")
    opened(process).close()
    process.call("read", 2, 1, "/a")
    assert one(opened(process), "SELECT count(*) FROM events") == 2


def test_tables_are_made_again_when_only_a_mapped_header_changed(opened, folder):
    process = Process()
    process.call("read", 1, 1, "/a")
    opened(process).close()
    path = folder / "node1.100.0.events"
    before = path.stat()
    process.header = {"lost": 3}
    path.write_bytes(process.bytes())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert column(opened(), "SELECT lost_events FROM processes") == [3]


def test_tables_are_made_again_when_a_log_is_added_or_their_format_changed(
    opened, folder, monkeypatch
):
    opened(Process(pid=1)).close()
    opened(Process(pid=1), Process(pid=2)).close()
    assert one(opened(), "SELECT count(*) FROM processes") == 2
    first = built(folder)
    monkeypatch.setattr(run_manifest, "TABLES_FORMAT", 10**6)
    opened().close()
    assert built(folder) != first


@pytest.mark.parametrize("content", ["", "[]", '{"logs": 7}', "\0"])
def test_tables_with_a_damaged_manifest_are_made_again(opened, folder, content):
    opened(Process()).close()
    (folder / "tables" / "manifest.json").write_text(content)
    assert one(opened(), "SELECT count(*) FROM processes") == 1
    assert json.loads((folder / "tables" / "manifest.json").read_text())["logs"]


@pytest.mark.parametrize("name", ["files.parquet", "events/00000.parquet", "spans/00000.parquet"])
@pytest.mark.parametrize("is_removed", [True, False], ids=["removed", "damaged"])
def test_tables_that_were_meddled_with_are_made_again(opened, folder, name, is_removed):
    process = Process()
    process.call("read", 1, 1, "/a")
    opened(process).close()
    if is_removed:
        (folder / "tables" / name).unlink()
    else:
        (folder / "tables" / name).write_bytes(b"PAR1")
    assert column(opened(), "SELECT path FROM events") == ["/a"]


def test_a_failure_leaves_no_half_made_tables(opened, folder, monkeypatch):
    def fails(*_: object) -> None:
        raise RuntimeError("in the middle")

    monkeypatch.setattr(build, "process_row", fails)
    with pytest.raises(RuntimeError, match="in the middle"):
        opened(Process())
    assert [path.name for path in folder.iterdir()] == ["node1.100.0.events"]


def test_what_a_killed_maker_left_is_removed(opened, folder):
    host = os.uname().nodename.replace("/", "_")
    left = folder / f".tables-{host}-{2**22 + 1}-abc"
    (left / "tables").mkdir(parents=True)
    (left / run_module._MADE_HERE).touch()
    others = folder / f".tables-{host}-{os.getpid()}-abc", folder / ".tables-elsewhere-1-abc"
    for other in others:
        other.mkdir()
        (other / run_module._MADE_HERE).touch()
    opened(Process())
    assert not left.exists()
    assert all(other.exists() for other in others)


def test_a_folder_that_only_has_the_name_of_one_of_ours_stays(opened, folder):
    theirs = folder / f".tables-{os.uname().nodename.replace('/', '_')}-{2**22 + 1}-abc"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("x")
    opened(Process())
    assert (theirs / "thesis.txt").exists()


def test_a_run_removes_nothing_that_was_not_made_for_it(tmp_path, opened):
    process = Process()
    process.call("read", 1, 1, "/a")
    kept = opened(process)
    theirs = tmp_path / "theirs"
    shutil.copytree(kept.tables, theirs / "tables")
    (theirs / "thesis.txt").write_text("x")
    manifest = json.loads((theirs / "tables" / "manifest.json").read_text())
    # Tables that lie anywhere, of a run folder that is elsewhere: what surrounds them is not ours.
    for made_for_it in (None, theirs):
        run = Run(tmp_path, theirs / "tables", manifest, (), made_for_it)
        assert one(run, "SELECT count(*) FROM events") == 1
        run.close()
        del run
        gc.collect()
        assert (theirs / "thesis.txt").exists()
        assert (theirs / "tables" / "manifest.json").exists()


def test_a_closed_run_leaves_nothing_in_the_temporary_folder(tmp_path, opened, monkeypatch):
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    run = opened(of_this_process())
    assert len(list(temporary.iterdir())) == 2
    run.close()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("left", ["nothing", "tables of an older log", "damaged tables"])
def test_all_who_open_a_run_at_once_read_it(
    left: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process()
    process.call("read", 1, 1, "/a")
    process.write(folder)
    if left != "nothing":
        open_run(folder).close()
    if left == "damaged tables":
        (folder / "tables" / "processes.parquet").write_bytes(b"PAR1")
    for i in range(2, 5000):
        process.call("read", i, 1, "/a")
    if left != "damaged tables":
        process.write(folder)
    made = threading.Barrier(4, timeout=60)
    real = run_module.make_tables

    def make(*given: Any) -> Any:
        answer = real(*given)
        made.wait()  # all put their tables in place, and read, at about the same time
        return answer

    monkeypatch.setattr(run_module, "make_tables", make)

    def opens(_: int) -> tuple[int, int]:
        with open_run(folder) as run:
            n = one(run, "SELECT count(*) FROM processes")
            return n, (folder / "tables").stat().st_ino

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(opens, range(4)))
    assert [n for n, _ in answers] == [1] * 4
    assert len({inode for _, inode in answers}) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["node1.100.1.events", "tables"]


def test_tables_of_another_opener_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process()
    process.call("read", 1, 1, "/a")
    process.write(folder)
    real = run_module.make_tables
    inodes: list[int] = []

    def make(*given: Any) -> Any:
        answer = real(*given)
        if not inodes:
            inodes.append(0)
            open_run(folder).close()
            inodes.append((folder / "tables").stat().st_ino)
        return answer

    monkeypatch.setattr(run_module, "make_tables", make)
    open_run(folder).close()
    assert (folder / "tables").stat().st_ino == inodes[1]


def test_a_lock_that_somebody_holds_delays_a_run_a_little(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_module, "MOST_LOCK_S", 0.1)
    process = Process()
    process.call("read", 1, 1, "/a")
    process.write(folder)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        with open_run(folder) as run:
            assert one(run, "SELECT count(*) FROM events") == 1
    finally:
        os.close(descriptor)


def test_a_run_folder_that_cannot_be_written_is_read_all_the_same(opened, folder, monkeypatch):
    real = run_module.tempfile.mkdtemp

    def refuses(*args: Any, **options: Any) -> str:
        if options.get("dir"):
            raise OSError(errno.EROFS, "Read-only file system")
        return real(*args, **options)

    monkeypatch.setattr(run_module.tempfile, "mkdtemp", refuses)
    process = Process()
    process.call("read", 1, 1, "/a")
    run = opened(process)
    assert one(run, "SELECT count(*) FROM events") == 1
    assert not (folder / "tables").exists()
    tables = run.tables
    run.close()
    assert not tables.exists()


def test_a_full_disk_is_told_in_a_sentence(opened, folder, monkeypatch):
    def refuses(*_: Any, **__: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_module.tempfile, "mkdtemp", refuses)
    with pytest.raises(RunError, match="no tables can be made here: No space left on device"):
        opened(Process())


# --- questions -----------------------------------------------------------------------------------


def test_a_query_answers_rows_with_names(opened):
    process = Process()
    process.call("read", 1, 7, "/a", moved=5)
    run = opened(process)
    rows = run.sql("SELECT op, moved_bytes AS n FROM events WHERE op = ?", ["read"])
    assert rows == rows.fetchall() == [("read", 5)]
    assert rows.columns == ["op", "n"]
    arrays = run.arrays("SELECT duration_ns, step FROM events")
    assert arrays["duration_ns"].tolist() == [7]
    assert arrays["step"].mask.all()


def test_a_query_may_prepare_tables_for_the_next(opened):
    run = opened(Process())
    run.sql("CREATE OR REPLACE TEMP TABLE mine AS SELECT 7 AS x")
    assert run.sql("FROM mine") == [(7,)]


@pytest.mark.parametrize(
    "query",
    [
        "COPY (SELECT 1) TO '{folder}/tables/x.parquet'",
        "COPY (SELECT 1) TO '{folder}/x.csv'",
        "EXPORT DATABASE '{folder}/tables/x'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{folder}/tables/x.parquet'",
        "ATTACH '{folder}/tables/x.duckdb' AS x",
        "CREATE TABLE x AS SELECT 1",
        "DROP VIEW events",
        "SET enable_external_access = true",
        "INSTALL httpfs",
        "SELECT 1; COPY (SELECT 1) TO '{folder}/tables/x.parquet'",
        "FROM read_text('/etc/hostname')",
        "FROM read_csv('{folder}/../secret.csv')",
        "FROM '{folder}/../secret.csv'",
        "CREATE TEMP TABLE x AS FROM read_text('/etc/hostname')",
        "CALL pragma_version()",
    ],
)
def test_a_query_reads_nothing_but_the_tables_and_writes_nothing(opened, folder, query):
    (folder.parent / "secret.csv").write_text("a,b\n1,2\n")
    run = opened(Process())
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(QueryError) as caught:
        run.sql(query.format(folder=folder))
    assert "\n" not in str(caught.value)
    assert sorted(folder.parent.rglob("*")) == before
    assert one(run, "SELECT count(*) FROM processes") == 1


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("SELEC 1", 'syntax error at or near "SELEC"'),
        ("SELECT nothing FROM events", '"nothing" not found'),
        ("FROM nowhere", "nowhere does not exist"),
        ("SELECT 'x'::INTEGER", "Could not convert string 'x'"),
        ("", "one statement, this text has 0"),
        ("SELECT 1; SELECT 2", "one statement, this text has 2"),
        ("DELETE FROM files", "a query only reads"),
    ],
)
def test_a_query_that_cannot_be_answered_says_why_in_a_sentence(opened, query, says):
    with pytest.raises(QueryError, match=says) as caught:
        opened(Process()).sql(query)
    assert "\n" not in str(caught.value)


def test_the_log_of_this_test_is_the_format_it_claims(folder):
    # Guards the tests above: what they write has the size that FORMAT.md gives.
    path = Process().write(folder)
    assert (path.stat().st_size - HEADER_BYTES) % UNIT_BYTES == 0
    assert set(OP) >= {"read", "write", "open"}


# --- runs that another tool recorded -------------------------------------------------------------


def test_a_foreign_run_is_opened_as_its_columns_say(tmp_path: Path) -> None:
    read = next(op.number for op in OPS if op.name == "read")
    write = next(op.number for op in OPS if op.name == "write")
    columns = {
        "events": {
            "process": np.array([0, 0]),
            "thread": np.array([0, 0]),
            "op_number": np.array([read, write]),
            "errno": np.array([0, 0]),
            "file": np.array([0, 1]),
            "start_ns": np.array([10, 30]),
            "duration_ns": np.ma.array([20, 0], mask=[False, True]),
            "moved_bytes": np.array([4096, 7]),
        },
        "files": {
            "file": np.array([0, 1]),
            "path": np.array(["/data/a", "/out/b"], object),
            "kind": np.array(["regular", "regular"], object),
        },
        "processes": {"process": np.array([0]), "pid": np.array([42])},
    }
    folder = import_run(tmp_path / "run", "job.log", 5, columns)
    with open_run(folder) as run:
        assert run.start_unix_ns == 5
        assert run.sql("SELECT op, path, path_class, duration_ns, step FROM events ORDER BY 1") == [
            ("read", "/data/a", "data", 20, None),
            ("write", "/out/b", "output", None, None),
        ]
        assert run.sql("SELECT op, calls, moved_bytes FROM counters") == [("read", 1, 4096)]


def test_a_foreign_run_goes_into_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(RunError, match="not empty"):
        import_run(tmp_path, "job.log", 0, {})


def test_a_foreign_run_of_another_version_says_what_to_import_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = import_run(tmp_path / "run", "job.darshan", 0, {})
    monkeypatch.setattr(run_manifest, "TABLES_FORMAT", 10**6)
    with pytest.raises(RunError, match=r"import job\.darshan again"):
        open_run(folder)
