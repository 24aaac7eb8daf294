"""Page faults of mapped files, against what the system counts and what was touched."""

import contextlib
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock.errors import LogError
from penstock.explain.findings import judge
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.interop.timeline import timeline_of
from penstock.log import faults
from penstock.recording import beside, faultwatch
from penstock.runs.run import open_run
from penstock.safe.checksums import crc32c
from penstock.views import terminal
from synthetic import MS, Synthetic, training_job

PARANOID = Path("/proc/sys/kernel/perf_event_paranoid")
LIBRARY = Path(beside.__file__).with_name("librec.so")


def _is_allowed() -> bool:
    try:
        return int(PARANOID.read_text()) <= 2
    except (OSError, ValueError):
        return False


samples = pytest.mark.skipif(
    not (_is_allowed() and LIBRARY.exists()),
    reason="this kernel gives no page faults to users, or the recorder is not built",
)

# What every program here begins with: PAGES pages of a file that is out of memory, touched singly.
MAPPED = """
import json, mmap, os, random, resource, sys, time
PAGES = 2000
def mapped(path, pages=PAGES):
    with open(path, "wb") as file:
        file.write(os.urandom(pages * mmap.PAGESIZE))
        os.fsync(file.fileno())
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    # A page that is written to is a copy of its own: no fault brings its neighbours too.
    memory = mmap.mmap(fd, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE)
    memory.madvise(mmap.MADV_RANDOM)
    os.close(fd)
    return memory
def counted():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_majflt, used.ru_minflt
def touch(memory, places):
    for place in places:
        memory[place * mmap.PAGESIZE] = 1
"""


def of_file(run: Any, name: str) -> tuple[int, int]:
    """(major, minor) by the exact counts."""
    ((major, minor),) = run.sql(
        "SELECT coalesce(sum(major), 0)::BIGINT, coalesce(sum(minor), 0)::BIGINT"
        " FROM fault_counts WHERE path LIKE '%/' || ?",
        [name],
    )
    return major, minor


@samples
def test_each_fault_is_counted_and_has_its_file_and_offset(
    recorded: Callable[..., Any], work: Path
) -> None:
    run = recorded(
        MAPPED
        + """
a, b = mapped("a.bin"), mapped("b.bin")
places = random.Random(1).sample(range(PAGES), 1000)
before, start = counted(), time.monotonic()
touch(a, places)
touch(b, places[:100])
spent, after = time.monotonic() - start, counted()
json.dump([places, spent, after[0] - before[0], after[1] - before[1]], open("truth", "w"))
"""
    )
    places, spent_s, major, minor = json.loads((work / "truth").read_text())
    found = {name: of_file(run, name) for name in ("a.bin", "b.bin")}
    assert sum(found["a.bin"]) == 1000
    assert sum(found["b.bin"]) == 100
    # The program's own pages fault too, hardly ever major ones.
    assert abs(sum(n for n, _ in found.values()) - major) <= 2 + major // 100
    assert sum(map(sum, found.values())) <= major + minor
    offsets = run.sql("SELECT offset_bytes FROM faults WHERE path LIKE '%/a.bin' ORDER BY start_ns")
    assert [offset // os.sysconf("SC_PAGESIZE") for (offset,) in offsets] == places
    ((unknown, ns),) = run.sql(
        "SELECT count(*) FILTER (thread IS NULL OR duration_ns IS NULL), sum(duration_ns)"
        " FROM faults WHERE path LIKE '%.bin'"
    )
    assert unknown == 0
    assert 0 < ns / 1e9 <= spent_s
    if major > 900:  # the disk was read, so the loop's time is that of the faults
        assert ns / 1e9 > 0.5 * spent_s
    ((sums,),) = run.sql(
        "SELECT sum(major_ns + minor_ns) FROM fault_counts WHERE path LIKE '%.bin'"
    )
    assert sums == ns
    assert run.sql("SELECT value FROM notes WHERE key = 'page faults'") == [("measured",)]


@samples
def test_threads_and_forked_children_fault_for_themselves(recorded: Callable[..., Any]) -> None:
    run = recorded(
        MAPPED
        + """
import threading
memory = mapped("shared.bin")
thread = threading.Thread(target=touch, args=(memory, range(300)))
thread.start(); thread.join()
pid = os.fork()
if not pid:
    open("mine", "w").close()
    touch(memory, range(1000, 1500))
    os._exit(0)
os.waitpid(pid, 0)
"""
    )
    rows = run.sql(
        "SELECT p.parent IS NULL, (major + minor)::INT FROM fault_counts c JOIN processes p"
        " USING (process) WHERE path LIKE '%/shared.bin' ORDER BY 1 DESC"
    )
    assert rows == [(True, 300), (False, 500)]


@samples
def test_a_mapping_that_takes_anothers_place_takes_its_faults(
    recorded_command: Callable[..., Any], workload: Callable[..., Path], work: Path
) -> None:
    page = os.sysconf("SC_PAGESIZE")
    for name in ("old", "new"):
        (work / name).write_bytes(b"x" * 64 * page)
    run = recorded_command([workload("remaps"), "old", "new"])
    where = (
        "SELECT array_agg(DISTINCT offset_bytes // ? ORDER BY offset_bytes // ?) FROM faults"
        " WHERE path LIKE '%/' || ?"
    )
    assert run.sql(where, [page, page, "new"]) == [([3, 4, 5, 6],)]
    # Pages on both sides of the hole that memory without a file made in the old mapping.
    assert run.sql(where, [page, page, "old"]) == [([0, 1, 40, 63],)]


@samples
def test_nothing_is_sampled_in_a_pause(recorded: Callable[..., Any], tmp_path: Path) -> None:
    run = recorded(
        MAPPED
        + """
from pathlib import Path
from penstock.recording import control
memory = mapped("paused.bin", 900)
run = os.environ["PENSTOCK_RUN"]

def rests():
    # How often each thread of `penstock run` has given up its processor by itself.
    said = {}
    for task in Path(f"/proc/{os.getppid()}/task").iterdir():
        line = next(x for x in (task / "status").read_text().split("\\n") if x[:9] == "voluntary")
        said[task.name] = int(line.split()[1])
    return said

def ask(wish):
    control.ask(run, wish)
    # The thread that samples looks at the page each time that it has waited for samples: twice is
    # once behind us, however slow the machine is.
    before = rests()
    time.sleep(0.7)
    while not any(n > before.get(task, n) + 2 for task, n in rests().items()):
        time.sleep(0.05)

touch(memory, range(300))
ask(control.PAUSE)
touch(memory, range(300, 600))
ask(control.RECORD)
touch(memory, range(600, 900))
"""
    )
    page = os.sysconf("SC_PAGESIZE")
    offsets = run.sql("SELECT offset_bytes // ? FROM faults WHERE path LIKE '%/paused.bin'", [page])
    assert {n for (n,) in offsets} == {*range(300), *range(600, 900)}


@samples
def test_samples_that_found_no_room_are_counted_as_lost(recorded: Callable[..., Any]) -> None:
    run = recorded(
        MAPPED
        + """
import signal
memory = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(getattr(mmap, "MADV_NOHUGEPAGE", 15))
os.kill(os.getppid(), signal.SIGSTOP)
for _ in range(5):
    for place in range(0, len(memory), mmap.PAGESIZE):
        memory[place] = 1
    memory.madvise(mmap.MADV_DONTNEED)
os.kill(os.getppid(), signal.SIGCONT)
"""
    )
    ((lost,),) = run.sql("SELECT value::INT FROM notes WHERE key = 'page faults lost'")
    ((seen,),) = run.sql("SELECT sum(major + minor)::INT FROM fault_counts")
    touched = 5 * (64 << 20) // os.sysconf("SC_PAGESIZE")
    assert lost > 1000
    assert touched <= seen + lost <= touched + 20_000
    known = measure(run).faults
    assert known.lost == lost
    assert known.quality[0] == "incomplete"
    assert any(gap.what == "page faults" for gap in report_of(measure(run)).gaps)


# A process that records itself: what samples it is started beside it.
ITSELF = (
    MAPPED
    + """
import threading
import penstock
memory = mapped("own.bin")
go = threading.Event()
def wait_and_touch():
    go.wait()
    touch(memory, range(1000, 1100))
waiting = threading.Thread(target=wait_and_touch)
waiting.start()
touch(memory, range(100))
open_before = os.listdir("/proc/self/fd")
with penstock.record(sys.argv[1], faults=True):
    touch(memory, range(100, 400))
    go.set()
    waiting.join()
    started = threading.Thread(target=touch, args=(memory, range(1100, 1150)))
    started.start(); started.join()
    pid = os.fork()
    if not pid:
        touch(memory, range(1200, 1230))
        os._exit(0)
    os.waitpid(pid, 0)
touch(memory, range(400, 500))
with penstock.record(sys.argv[1], faults=True):
    touch(memory, range(500, 700))
print(os.listdir("/proc/self/fd") == open_before)
try:
    print(os.waitpid(-1, os.WNOHANG))
except ChildProcessError:
    print("no child")
"""
)


def ran_alone(work: Path, *words: str | Path) -> str:
    """What a program that `penstock run` does not know of printed."""
    finished = subprocess.run(
        [sys.executable, *words], cwd=work, capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@samples
def test_a_process_that_records_itself_has_the_faults_of_its_windows_and_no_others(
    tmp_path: Path, work: Path
) -> None:
    (work / "itself.py").write_text(ITSELF)
    assert ran_alone(work, "itself.py", tmp_path / "run") == "True\nno child\n"
    page = os.sysconf("SC_PAGESIZE")
    with open_run(tmp_path / "run") as run:
        assert sum(of_file(run, "own.bin")) == 680
        rows = run.sql(
            "SELECT offset_bytes // ?, process IS NULL, duration_ns IS NULL FROM faults"
            " WHERE path LIKE '%/own.bin'",
            [page],
        )
        told = measure(run).faults
    places = [*range(100, 400), *range(500, 700), *range(1000, 1150), *range(1200, 1230)]
    assert sorted(place for place, _, _ in rows) == places
    assert {place for place, is_unknown, _ in rows if is_unknown} <= set(range(1200, 1230))
    assert not any(has_no_begin for _, _, has_no_begin in rows)
    assert told.quality == ("measured", "")


# Starts threads as fast as it can, from before the window is asked for until after it is open.
STARTING = """
import threading
import penstock
memory, go, is_open, started = mapped("own.bin"), threading.Event(), threading.Event(), []
def wait_and_touch(place):
    go.wait()
    touch(memory, [place])
def start():
    while not is_open.is_set() and len(started) < PAGES:
        started.append(time.monotonic_ns())
        threads.append(threading.Thread(target=wait_and_touch, args=(len(started) - 1,)))
        threads[-1].start()
        time.sleep(0.0001)
threads = []
starter = threading.Thread(target=start)
starter.start()
while len(started) < 20:
    time.sleep(0.001)
asked_ns = time.monotonic_ns()
window = penstock.record(sys.argv[1], faults=True)
is_open.set()
starter.join()
go.set()
for thread in threads:
    thread.join()
window.stop()
json.dump([asked_ns, started], sys.stdout)
"""


@samples
def test_threads_that_start_while_sampling_begins_are_sampled_once(
    tmp_path: Path, work: Path
) -> None:
    (work / "starting.py").write_text(MAPPED + STARTING)
    meanwhile = 0
    for number in range(5):
        folder = tmp_path / f"run-{number}"
        asked_ns, started = json.loads(ran_alone(work, "starting.py", folder))
        (path,) = folder.glob("*.faults")
        sampled_ns = faults.read_faults(path).start_ns  # when all threads had been found
        with open_run(folder) as run:
            assert sum(of_file(run, "own.bin")) == len(started)
            assert measure(run).faults.quality == ("measured", "")
        meanwhile += sum(asked_ns < ns < sampled_ns for ns in started)
        if meanwhile >= 50:
            break
    assert meanwhile >= 50  # or nothing was tried


@samples
def test_what_samples_a_process_ends_with_it(tmp_path: Path, work: Path) -> None:
    (work / "killed.py").write_text(
        MAPPED
        + """
import penstock
memory = mapped("own.bin")
window = penstock.record(sys.argv[1], faults=True)
touch(memory, range(300))
print(os.getpid(), flush=True)
os._exit(0)
"""
    )
    pid = ran_alone(work, "killed.py", tmp_path / "run").strip()
    (path,) = (tmp_path / "run").glob(f"*.{pid}.faults")
    until_s = time.monotonic() + 30
    while not (read := faults.read_faults(path).state) or not read["is_ended"]:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    with open_run(tmp_path / "run") as run:
        assert sum(of_file(run, "own.bin")) == 300


def test_a_window_whose_faults_nobody_asked_for_says_so(tmp_path: Path, work: Path) -> None:
    (work / "itself.py").write_text(ITSELF.replace(", faults=True", ""))
    assert ran_alone(work, "itself.py", tmp_path / "run") == "True\nno child\n"
    with open_run(tmp_path / "run") as run:
        assert measure(run).faults.quality == (
            "not measured",
            "not asked for: penstock.record(folder, faults=True)",
        )


def test_a_window_opens_where_its_faults_may_not_be_sampled(tmp_path: Path, work: Path) -> None:
    (work / "itself.py").write_text(ITSELF)
    (work / "forbid.py").write_text(FORBIDDING)
    words = ("forbid.py", sys.executable, "itself.py", tmp_path / "run")
    assert ran_alone(work, *words) == "True\nno child\n"
    with open_run(tmp_path / "run") as run:
        state, why = measure(run).faults.quality
    assert state == "not measured"
    assert why.startswith(("perf_event_open is forbidden", "perf_event_paranoid"))


# A classic BPF program for seccomp: perf_event_open fails with EPERM, all else is allowed.
FORBIDDING = """
import ctypes, os, platform, struct, sys
number = {"x86_64": 298, "aarch64": 241}[platform.machine()]
code = b"".join(struct.pack("<HBBI", *line) for line in [
    (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)])
filters = ctypes.create_string_buffer(code)
program = struct.pack("<HxxxxxxQ", 4, ctypes.addressof(filters))
libc = ctypes.CDLL(None, use_errno=True)
assert not libc.prctl(38, 1, 0, 0, 0)
assert not libc.prctl(22, 2, ctypes.c_char_p(program), 0, 0), os.strerror(ctypes.get_errno())
os.execv(sys.argv[1], sys.argv[1:])
"""


def test_where_the_kernel_forbids_it_the_run_goes_on_and_the_report_says_so(
    tmp_path: Path, work: Path
) -> None:
    from fixtures import PENSTOCK

    finished = subprocess.run(
        [sys.executable, "-c", FORBIDDING, PENSTOCK, "run", "-o", tmp_path / "run"]
        + [sys.executable, "-c", "print('ran')"],
        cwd=work,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert (finished.returncode, finished.stdout) == (0, "ran\n"), finished.stderr
    assert not list((tmp_path / "run").glob("*.faults"))
    facts = json.loads((tmp_path / "run" / "run.json").read_text())
    assert facts["page_faults"].startswith(("perf_event_open is forbidden", "perf_event_paranoid"))
    run = Synthetic()
    run.process(1, end=MS)
    run.note("page faults", "perf_event_paranoid = 3")
    (gap,) = [gap for gap in report_of(measure(run)).gaps if gap.what == "page faults"]
    assert (gap.state, gap.why) == ("not measured", "perf_event_paranoid = 3")


@pytest.mark.parametrize("level", [3, 4])
def test_a_kernel_closed_to_users_is_named_by_its_setting(
    level: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "level").write_text(f"{level}\n")
    monkeypatch.setattr(faultwatch, "PARANOID", str(tmp_path / "level"))
    assert faultwatch.why_not(13) == f"perf_event_paranoid = {level}"


# The bytes


def chunk_of(kind: int, *records: bytes, version: int = 2) -> bytes:
    body = b"".join(records)
    body += b"\0" * (-len(body) % 8)
    if version == 1:
        return struct.pack("<II", kind, 8 + len(body)) + body
    head = struct.pack("<II", kind, 16 + len(body))
    return head + struct.pack("<II", crc32c(head), crc32c(body)) + body


def written(version: int = 2) -> bytes:
    """Two images, two files, three faults, counts that are written twice."""
    chunk = partial(chunk_of, version=version)
    head = np.zeros(1, faults.HEADER)
    head["magic"], head["version"], head["header_bytes"] = b"PENFAULT", version, 256
    head["page_bytes"], head["start_ns"] = 4096, 1000
    counts = np.zeros(3, faults.COUNTS)
    counts["image"], counts["file"] = 1, [1, 2, 1]
    counts["major"], counts["minor"], counts["kept"] = [1, 0, 2], [0, 1, 0], [1, 1, 2]
    singles = np.zeros(3, faults.FAULT)
    singles["start_ns"], singles["duration_ns"], singles["image"] = [5, 6, 7], 9, 1
    singles["file"], singles["kind"], singles["tid"] = [1, 1, 2], [2, 2, 1], 77
    images = np.zeros(2, faults.IMAGE)
    images["image"], images["pid"], images["start_ns"] = [1, 2], [70, 71], [1, 2]
    state = np.zeros(1, faults.STATE)
    state["counted_major"], state["counted_minor"] = 2, 4
    state["seen_major"], state["seen_minor"], state["is_ended"] = 2, 1, 1
    if version > 1:
        head["sum"] = crc32c(head.tobytes().ljust(256, b"\0"))
    return b"".join(
        [
            head.tobytes().ljust(256, b"\0"),
            chunk(2, images.tobytes()),
            chunk(1, struct.pack("<IIIIQ", 1, 8, 1, 0, 99), b"/data/a\0"),
            chunk(1, struct.pack("<IIIIQ", 2, 8, 1, 0, 98), b"/data/\xff\0"),
            chunk(3, singles.tobytes()),
            chunk(4, counts.tobytes()),
            chunk(9, b"a kind of later"),
            chunk(5, state.tobytes()),
        ]
    )


@pytest.mark.parametrize("version", [1, 2])
def test_what_is_written_is_read(version: int, tmp_path: Path) -> None:
    path = tmp_path / "host.1.faults"
    path.write_bytes(written(version))
    read = faults.read_faults(path)
    assert read.files == {1: "/data/a", 2: "/data/\udcff"}
    assert read.images["pid"].tolist() == [70, 71]
    assert read.faults["start_ns"].tolist() == [5, 6, 7]
    rows = sorted((int(c["file"]), int(c["major"]), int(c["minor"])) for c in read.counts)
    assert rows == [(1, 2, 0), (2, 0, 1)]
    assert (read.missing, read.is_torn, read.is_user_only) == (3, False, False)


@pytest.mark.parametrize("version", [1, 2])
def test_any_prefix_is_a_file_of_page_faults(version: int, tmp_path: Path) -> None:
    path, data = tmp_path / "cut.faults", written(version)
    for cut in range(256, len(data)):
        path.write_bytes(data[:cut])
        read = faults.read_faults(path)
        assert len(read.faults) in (0, 3)
    for cut in (0, 8, 255):
        path.write_bytes(data[:cut])
        with pytest.raises(LogError, match="no page faults of penstock, or cut"):
            faults.read_faults(path)
    path.write_bytes(data[:8] + struct.pack("<I", 3) + data[12:])
    with pytest.raises(LogError, match="upgrade penstock"):
        faults.read_faults(path)


@pytest.mark.parametrize("version", [1, 2])
def test_damaged_bytes_are_read_or_refused_and_nothing_else(version: int, tmp_path: Path) -> None:
    path, data = tmp_path / "damaged.faults", written(version)
    draws = np.random.default_rng(7)
    for _ in range(300):
        damaged = bytearray(data)
        for place in draws.integers(0, len(data), 4):
            damaged[place] = int(draws.integers(256))
        path.write_bytes(damaged)
        with contextlib.suppress(LogError):
            faults.read_faults(path)


# What is made of them


def job_that_faults() -> Synthetic:
    """Ten steps of 10 ms; each batch takes 100 ms, 60 of them in a page of /data/train/data.mdb."""
    run = Synthetic()
    run.process(1, end=1200 * MS)
    run.worker(2, end=1200 * MS)
    run.file("/data/train/data.mdb", size=500_000_000)
    run.call("mmap", 0, MS, path="/data/train/data.mdb", process=2)
    run.note("page faults", "measured")
    for index in range(10):
        start = 10 * MS + index * 110 * MS
        run.wait(start, start + 100 * MS, index)
        run.fetch(start, start + 100 * MS, index, cpu=30 * MS, delay=0)
        run.fault("/data/train/data.mdb", start + 10 * MS, 60 * MS, process=2)
        run.step(start + 100 * MS, start + 110 * MS, index)
    return run


def test_a_wait_for_a_page_is_told_as_such_and_the_finding_names_file_count_and_remedy() -> None:
    measures = measure(job_that_faults())
    # The first batch is start-up.
    assert measures.wait_parts["page fault"] == pytest.approx(0.54)
    assert sum(measures.wait_parts.values()) == pytest.approx(measures.training.data_wait_s)
    assert measures.faults.blocking_s == pytest.approx(0.54, rel=0.01)
    (finding,) = [f for f in judge(measures).findings if f.rule == "D7"]
    assert finding.gain.value == pytest.approx(0.54, rel=0.01)
    assert finding.evidence[0].startswith("/data/train/data.mdb: 10 major page faults")
    assert finding.remedies[0].word == "feed"
    assert finding.remedies[0].command == "penstock feed bench /data/train/data.mdb"
    text = terminal.render(report_of(measures), 100)
    assert "page fault" in text
    assert "Page faults of mapped files" in text
    assert measures.storage_fraction.state == "derived"


def test_a_run_without_page_faults_says_why_and_has_no_part_for_them() -> None:
    measures = measure(training_job(20, compute_ms=5))
    assert not measures.faults.is_measured
    assert measures.faults.quality == ("not measured", "nobody sampled them")
    assert "page fault" not in measures.wait_parts


def test_the_timeline_shows_a_fault_that_waited_on_its_thread() -> None:
    job = job_that_faults()
    measure(job)
    drawn = timeline_of(job.run)
    names = [drawn.name_of_call(place) for place in range(len(drawn.calls))]
    assert names.count(("page fault", "fault,data")) == 10
