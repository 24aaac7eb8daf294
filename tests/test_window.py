"""A job that is asked to record and to pause while it runs, and what its numbers are then."""

import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import penstock
from fixtures import UNCOMPILED
from penstock.cli import cli
from penstock.errors import RunError
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.recording import control, recorder
from penstock.recording.window import Answer, window
from penstock.runs.run import open_run
from synthetic import Synthetic

pytestmark = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)
ROOT = Path(__file__).parent.parent

# Steps until told to finish; says how many it has made, and at the end when each began and ended.
JOB = """
import itertools, os, sys, threading, time
kind = sys.argv[1]
truth, pause = [], threading.Event()

def said(name):
    return os.path.exists(name)

def tell(n):
    fd = os.open("count", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, n.to_bytes(8, "little"), 0)
    os.close(fd)

def by_hand():
    import penstock
    for n in itertools.count():
        with penstock.step():
            begun = time.monotonic_ns()
            fd = os.open("item", os.O_RDONLY)
            os.read(fd, 1000)
            os.close(fd)
            pause.wait(0.002)
            truth.append((begun, time.monotonic_ns()))
        tell(n)
        if said("finish"):
            break

def by_torch(workers, start):
    import torch
    from job_data import Items
    net = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    # Several passes, but where each starts Python anew.
    loader = torch.utils.data.DataLoader(
        Items(40000 if start == "spawn" else 40), batch_size=2, num_workers=workers,
        multiprocessing_context=start)
    n = 0
    for batch in itertools.chain.from_iterable(itertools.repeat(loader)):
        begun = time.monotonic_ns()
        optimizer.zero_grad()
        net(batch.reshape(-1, 1)).sum().backward()
        pause.wait(0.002)
        truth.append((begun, time.monotonic_ns()))
        optimizer.step()
        tell(n := n + 1)
        if said("finish"):
            break

if __name__ == "__main__":
    open("item", "wb").write(bytes(1000))
    if kind == "hand":
        by_hand()
    else:
        by_torch(0 if kind == "none" else 1, None if kind == "none" else kind)
    open("truth", "w").write(repr(truth))
"""
DATA = """
import os, torch

class Items(torch.utils.data.Dataset):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, number):
        with open("item", "rb") as file:
            return torch.tensor([float(len(file.read()))])
"""


class Job:
    """A recorded job that goes on until it is told to finish."""

    def __init__(self, folder: Path, kind: str, *options: str) -> None:
        self.folder, self.run = folder, folder / "run"
        (folder / "job.py").write_text(UNCOMPILED + JOB)
        (folder / "job_data.py").write_text(DATA)
        command = [sys.executable, "-m", "penstock", "run", "-q", "-o", "run", *options]
        self.process = subprocess.Popen(
            [*command, sys.executable, "job.py", kind],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def steps(self) -> int:
        try:
            return int.from_bytes((self.folder / "count").read_bytes(), "little")
        except FileNotFoundError:
            return 0

    def make_steps(self, n: int) -> None:
        """Waits until it has made so many more; it is the job that is waited for, not a time."""
        wanted, deadline = self.steps() + n, time.monotonic() + 120
        while self.steps() < wanted:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "the job makes no steps"
            time.sleep(0.005)

    def finish(self) -> list[tuple[int, int]]:
        (self.folder / "finish").touch()
        assert self.process.wait(timeout=240) == 0
        truth: list[tuple[int, int]] = eval((self.folder / "truth").read_text())
        return truth


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def start(kind: str, *options: str) -> Job:
        jobs.append(Job(tmp_path, kind, *options))
        return jobs[-1]

    yield start
    for one in jobs:
        if one.process.poll() is None:
            (one.folder / "finish").touch()
            one.process.communicate(timeout=240)


def rows(run: Any, query: str) -> list[tuple[Any, ...]]:
    return list(run.sql(query))


KINDS = ["hand", "none", "fork", "spawn"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_paused_job_is_recorded_from_start_to_stop_and_nothing_else(
    job: Callable[..., Job], kind: str
) -> None:
    if kind != "hand":
        pytest.importorskip("torch", reason="pip install 'penstock[torch]'")
    one = job(kind, "--paused")
    one.make_steps(10)
    for _ in range(2):
        started = window(one.run, control.RECORD, 240)
        assert started.answered, started
        one.make_steps(30)
        assert window(one.run, control.PAUSE, 240).answered
        one.make_steps(10)
    truth = one.finish()
    with open_run(one.run) as run:
        check_windows(run, truth, kind)
        measures = measure(run)
    assert measures.training.wall_s is not None
    assert len(measures.pauses) == 3
    report = report_of(measures)
    assert any("not recorded" in gap.what for gap in report.gaps)
    recorded_s = sum(segment.s for segment in report.wall)
    assert recorded_s == pytest.approx(measures.training.wall_s, rel=1e-6)


def check_windows(run: Any, truth: list[tuple[int, int]], kind: str) -> None:
    """Each process: no call begins in its pauses.  The main: exactly the steps between them."""
    begun = (
        "select count(*) from {} e join spans p on p.process = e.process and p.name = 'paused'"
        " and e.start_ns between p.start_ns and p.start_ns + coalesce(p.duration_ns, 1e18) {}"
    )
    assert rows(run, begun.format("events", "")) == [(0,)]
    assert rows(run, begun.format("spans", "where e.name <> 'paused'")) == [(0,)]
    (main,) = rows(run, "select process from spans where kind = 'step' group by 1")[0]
    shift = rows(run, f"select start_ns from processes where process = {main}")[0][0]
    pauses = rows(
        run,
        "select start_ns, start_ns + coalesce(duration_ns, 1e18::bigint) from spans"
        f" where name = 'paused' and process = {main} order by 1",
    )
    assert len(pauses) == 3
    steps = rows(
        run,
        "select start_ns, start_ns + duration_ns from spans where kind = 'step'"
        f" and duration_ns is not null and process = {main} order by 1",
    )
    assert all(not (a < end and start < b) for start, end in steps for a, b in pauses)
    # The job's own clock: CLOCK_MONOTONIC, as the log's before it counts from the run's start.
    header_ns = monotonic_of_start(run) - shift
    mine = [
        (a - header_ns, b - header_ns)
        for a, b in truth
        if all(not (p < b - header_ns and a - header_ns < q) for p, q in pauses)
    ]
    assert len(steps) == len(mine)
    assert len(steps) >= 60 - 2
    # Opened by name in the main process by hand, in whoever fetches by torch: once an item.
    opened = rows(run, "select count(*) from events where op = 'open' and path like '%/item'")[0][0]
    assert opened >= len(steps) if kind == "hand" else opened >= 2 * (len(steps) - 8)


def monotonic_of_start(run: Any) -> int:
    from penstock.log.header import read_header

    headers = [read_header(path) for path in Path(run.folder).glob("*.events")]
    return min(headers, key=lambda header: header.start_ns).start_ns


def test_a_running_job_pauses_and_the_wall_time_is_without_the_pause(
    job: Callable[..., Job],
) -> None:
    one = job("hand")
    one.make_steps(20)
    assert window(one.run, control.PAUSE, 240).answered
    one.make_steps(50)
    assert window(one.run, control.RECORD, 240).answered
    one.make_steps(20)
    truth = one.finish()
    with open_run(one.run) as run:
        measures = measure(run)
        (pause,) = measures.pauses
    assert pause.end_s - pause.start_s > 50 * 0.002
    whole_s = (truth[-1][1] - truth[0][0]) / 1e9
    assert measures.training.wall_s == pytest.approx(
        whole_s - (pause.end_s - pause.start_s), abs=0.01
    )
    longest = max(step.max_step_s for step in measures.step_times)
    assert longest < pause.end_s - pause.start_s


MS = 1_000_000


def paused(run: Synthetic, start: float, end: float | None, process: int = 1) -> None:
    to = None if end is None else int(end * MS)
    run.span("paused", int(start * MS), to, process=process, index=1, kind="window")


def stepping() -> Synthetic:
    """Steps of 100 ms, ten before a pause of a second and ten after it, then paused to the end."""
    run = Synthetic()
    run.process(1, end=5000 * MS)
    paused(run, 0, 100)
    for n in range(20):
        start = 100 + 100 * n + (1000 if n > 9 else 0)
        run.step(start * MS, (start + 100) * MS, n)
        run.call("read", (start + 10) * MS, (start + 20) * MS, moved=1000)
    paused(run, 1100, 2100)
    paused(run, 3100, None)
    return run


def test_paused_time_is_in_no_stretch_and_in_no_step() -> None:
    measures = measure(stepping())
    training = measures.training
    assert training.wall_s == pytest.approx(2.0)
    assert training.startup_s == pytest.approx(0.0, abs=1e-9)
    assert training.after_s == pytest.approx(0.0, abs=1e-9)
    assert [step.step_s for step in measures.step_times] == pytest.approx([0.1] * 20)
    edges = [edge for pause in measures.pauses for edge in (pause.start_s, pause.end_s)]
    assert edges == pytest.approx([0, 0.1, 1.1, 2.1, 3.1, 5.0])


def test_the_report_names_the_pauses_and_draws_nothing_in_them() -> None:
    report = report_of(measure(stepping()))
    gap = report.gaps[0]
    assert gap.what == "3.00 s not recorded"
    assert (gap.state, gap.why) == ("not measured", "as asked: 3 pauses")
    bandwidth = report.picture("bandwidth")
    (series,) = bandwidth.series
    inside = [
        value
        for place, value in enumerate(series.values)
        if place * bandwidth.x_step >= 1.1 and (place + 1) * bandwidth.x_step <= 2.1
    ]
    assert inside
    assert set(inside) == {None}
    # The line ends with the last byte; a bin that lies in a pause only in part is none of it.
    n_missing = sum(value is None for value in series.values)
    assert n_missing == pytest.approx(1.1 / bandwidth.x_step, abs=4)
    assert sum(segment.s for segment in report.wall) == pytest.approx(2.0)


def test_a_wait_for_a_worker_that_was_paused_is_not_observed() -> None:
    run = Synthetic()
    run.process(1, end=1000 * MS)
    run.worker(2, start=0, end=900 * MS)
    run.wait(0, 10 * MS, 0)
    run.fetch(0, 10 * MS, 0)
    run.step(10 * MS, 100 * MS, 0)
    for n, start in ((1, 100), (2, 300)):
        run.wait(start * MS, (start + 100) * MS, n)
        run.fetch((start + 50) * MS, (start + 100) * MS, n)
        run.call("read", (start + 50) * MS, (start + 100) * MS, process=2, moved=1)
        run.step((start + 100) * MS, (start + 200) * MS, n)
    paused(run, 90, 140, process=2)
    parts = measure(run).wait_parts
    assert parts == pytest.approx({"not observed": 0.1, "idle": 0.05, "read": 0.05})


def test_a_job_without_steps_is_named_and_gives_status_1(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "-q", "-o", "run", "cat"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
    ) as process:
        while not list(tmp_path.glob("run/*.events")):
            assert process.poll() is None
        asked = subprocess.run(
            [sys.executable, "-m", "penstock", "window", "run", "stop", "--timeout", "0.2"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert asked.returncode == 1
        assert "cannot be asked, no step and no batch so far" in asked.stderr
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=240) == 0
    over = subprocess.run(
        [sys.executable, "-m", "penstock", "window", "run", "stop"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert over.returncode == 2
    assert "no process of it is alive on this host" in over.stderr


def test_asking_ends_with_the_last_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "penstock", "run", "-q", "-o", "run", "cat"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
    ) as process:
        while not list(tmp_path.glob("run/*.events")):
            assert process.poll() is None
        looks = []

        def end_the_job(s: float) -> None:
            looks.append(s)
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=240)

        answer = window(tmp_path / "run", control.PAUSE, 1e9, sleep=end_the_job)
    assert (answer.answered, answer.silent, answer.deaf) == ((), (), ())
    assert len(looks) == 1


def test_the_command_says_that_the_job_ended_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.recording.window.window", lambda *_: Answer((), (), (), 0.1))
    asked = CliRunner().invoke(cli, ["window", str(tmp_path), "stop"])
    assert "its last process ended before it answered" in asked.stderr


def test_a_page_that_is_damaged_or_absent_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not started by `penstock run`"):
        control.ask(tmp_path, control.PAUSE)
    (tmp_path / "control").write_bytes(b"short")
    with pytest.raises(RunError, match="5 bytes where 4096 belong"):
        control.ask(tmp_path, control.PAUSE)


def test_the_page_counts_how_often_it_was_asked(tmp_path: Path) -> None:
    control.make(tmp_path, control.PAUSE)
    assert [control.ask(tmp_path, control.RECORD) for _ in range(3)] == [2, 3, 4]
    word = int.from_bytes((tmp_path / "control").read_bytes()[:8], "little")
    assert (word >> 32, word & 0xFFFFFFFF) == (4, control.RECORD)


def test_the_wishes_are_those_of_the_header() -> None:
    header = (ROOT / "native" / "recorder.h").read_text()
    said = f"enum {{ PENSTOCK_RECORD = {control.RECORD}, PENSTOCK_PAUSE = {control.PAUSE} }};"
    assert said in header
    assert (recorder.RECORD, recorder.PAUSE) == (control.RECORD, control.PAUSE)


def test_an_answer_tells_processes_apart() -> None:
    answer = Answer((1,), (2,), (3,), 0.5)
    assert (answer.answered, answer.silent, answer.deaf) == ((1,), (2,), (3,))


def test_looking_at_the_page_costs_a_few_calls_of_nothing(tmp_path: Path) -> None:
    # A ratio, so that a busy machine slows both.  2.7 was measured, 57 ns for 21 ns; what loads the
    # library again, opens a file or makes a system call takes a hundred times as long.
    program = """
        import sys, timeit
        import penstock
        from penstock.recording import control, recorder
        control.make(sys.argv[1])
        with penstock.record(sys.argv[1]):
            recorder.attend()
            assert isinstance(recorder._process.page, memoryview)
            looks = min(timeit.repeat(recorder.attend, number=20000, repeat=9))
            nothing = min(timeit.repeat(lambda: None, number=20000, repeat=9))
        print(looks / nothing)
    """
    told = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), tmp_path],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert float(told) < 20
