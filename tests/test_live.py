"""A run while it goes on: what is known of the last minute, and that it ends as the report says."""

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from fixtures import UNCOMPILED
from logwriter import BOOT, Process
from penstock.errors import LogError, PenstockError, RunError
from penstock.explain import live as live_module
from penstock.explain.live import Blocked, Live, Monitor, RemoteTraffic, Second, Stall, Traffic
from penstock.explain.measures import measure
from penstock.runs.run import open_run
from penstock.views import live as view
from penstock.views import metrics
from watching import watched_to_its_end

needs_library = pytest.mark.skipif(
    not Path(penstock.__file__).with_name("librec.so").exists(),
    reason="the recorder is not built: make native",
)
MS = 1_000_000


def training(folder: Path, steps: int = 20) -> None:
    """A main process and a worker.  A step is 100 ms: 40 of waiting, of which the worker reads 30,
    then 60 of computing; every tenth step saves for 20 ms, all of it a write."""
    main, worker = Process(pid=100), Process(pid=101, ppid=100)
    worker.header["origin"] = "fork"
    worker.span("worker", 0, 5e9, 0, 1, 100)
    main.span("data wait", 50 * MS, 50 * MS, 0, 1)
    worker.span("fetch", 0, 95 * MS, 0, 1)
    for n in range(1, steps + 1):
        start = n * 100 * MS
        main.span("data wait", start, 40 * MS, n, 1)
        worker.call("read", start + 2 * MS, 30 * MS, "/data/a", moved=1000)
        worker.span("fetch", start + MS, 38 * MS, n, 1)
        if n % 10 == 0:
            main.call("write", start + 60 * MS, 20 * MS, "/out/c", moved=5000)
            main.span("checkpoint", start + 60 * MS, 20 * MS, n)
        main.step(n, start + (0 if n > 1 else -1), 100 * MS)
    # In the order of their starts, as one thread makes them.
    for process in (main, worker):
        process.events[1].sort(key=lambda event: event.start)
        process.write(folder)


def over(folder: Path) -> Live:
    monitor = Monitor(folder)
    for _ in range(4):
        value = monitor.look()
    return value


def test_a_run_that_is_over_has_the_numbers_that_were_put_in(tmp_path: Path) -> None:
    training(tmp_path)
    value = over(tmp_path)
    assert value.state == "over"
    assert value.steps == 20
    total = value.total
    assert total.wall_s == pytest.approx(2.0, abs=1e-3)
    assert total.data_wait_s == pytest.approx(20 * 0.040, abs=1e-6)
    assert total.data_storage_s == pytest.approx(20 * 0.030, abs=1e-6)
    assert total.checkpoint_s == pytest.approx(2 * 0.020, abs=1e-6)
    assert total.checkpoint_storage_s == pytest.approx(2 * 0.020, abs=1e-6)
    assert total.own_s == pytest.approx(0, abs=1e-6)
    assert value.traffic[0] == Traffic("posix", 22, 0, 20_000, 10_000)
    assert value.traffic[1].calls == 0


def test_the_live_totals_are_those_of_the_report(tmp_path: Path) -> None:
    training(tmp_path)
    value = over(tmp_path)
    with open_run(tmp_path) as run:
        measures = measure(run)
    assert value.total.stall == pytest.approx(measures.stall_fraction.value, abs=1e-4)
    assert value.total.storage == pytest.approx(measures.storage_fraction.value, abs=1e-4)
    assert value.total.data_storage_s == pytest.approx(measures.data_storage_s, abs=1e-6)
    assert value.steps == measures.training.steps


def alive(monkeypatch: pytest.MonkeyPatch, now_ns: int) -> None:
    """All processes live, and it is now_ns after the logs' start."""
    from logwriter import START_NS

    monkeypatch.setattr(live_module, "is_alive", lambda header: True)
    monkeypatch.setattr(live_module.time, "monotonic_ns", lambda: START_NS + now_ns)


def test_a_wait_under_way_is_stall_and_what_blocks_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    main, worker = Process(pid=100), Process(pid=101, ppid=100)
    worker.span("worker", 1, 0)
    worker.span("fetch", 10 * MS, 80 * MS, 0, 1)
    main.span("data wait", 20 * MS, 80 * MS, 0, 1)
    main.step(0, 20 * MS, 200 * MS)
    worker.span("fetch", 200 * MS, 0, 1)
    worker.call("open", 300 * MS, 0, "/data/slow")
    main.span("data wait", 220 * MS, 0, 1)
    for process in (main, worker):
        process.header["state"] = "running"
        process.events[1].sort(key=lambda event: event.start)
        process.write(tmp_path)
    alive(monkeypatch, 12_300 * MS + live_module.SLACK_NS)
    value = Monitor(tmp_path).look()
    assert value.state == "running"
    assert value.workers == 1
    (call,) = value.blocked
    assert (call.op, call.path, call.pid) == ("open", "/data/slow", 101)
    assert call.s == pytest.approx(12.0, abs=0.1)
    # 120 ms of compute after the first batch, then waiting for 12.08 s, 12.0 s of it in the open.
    assert value.total.wall_s == pytest.approx(12.2, abs=1e-3)
    assert value.total.data_wait_s == pytest.approx(12.08, abs=1e-3)
    assert value.total.data_storage_s == pytest.approx(12.0, abs=1e-3)


def test_a_read_of_a_pipe_blocks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Process(header={"state": "running"})
    process.file("pipe", "pipe:[123]", mode=0o010600)
    process.call("read", MS, 0, "pipe")
    process.ids[(0, "pipe")] = 1
    process.write(tmp_path)
    alive(monkeypatch, 60_000 * MS)
    assert Monitor(tmp_path).look().blocked == ()


def test_time_that_was_paused_is_in_no_number(tmp_path: Path) -> None:
    process = Process()
    for n in range(4):
        start = (1000 + 100 * n + (5000 if n > 1 else 0)) * MS
        process.step(n, start, 100 * MS)
    process.span("paused", 1200 * MS, 5000 * MS, 1, op="window")
    process.events[1].sort(key=lambda event: event.start)
    process.write(tmp_path)
    total = over(tmp_path).total
    assert total.wall_s == pytest.approx(0.4, abs=1e-6)
    assert total.data_wait_s == 0


def test_the_stall_of_steps_without_a_loader_is_not_measured(tmp_path: Path) -> None:
    process = Process()
    for n in range(4):
        process.step(n, (1000 + 100 * n) * MS, 100 * MS)
    process.write(tmp_path)
    value = over(tmp_path)
    assert value.total.stall is None
    assert any("no loader" in gap for gap in value.gaps)
    assert "stall not measured" in view.line(value)


def test_a_process_of_which_nothing_is_recorded_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process(header={"state": "stopped"})
    process.span("paused", MS, 0, 1, op="window")
    process.write(tmp_path)
    alive(monkeypatch, 5_000 * MS)
    value = Monitor(tmp_path).look()
    assert value.state == "paused"
    assert value.total.stall is None


def test_calls_past_the_budget_are_said_to_be_missing(tmp_path: Path) -> None:
    Process(header={"folded": 1234}).write(tmp_path)
    assert any("1,234 calls past the trace budget" in gap for gap in over(tmp_path).gaps)


def test_a_second_process_is_found_while_watching(tmp_path: Path) -> None:
    Process(pid=100).write(tmp_path)
    monitor = Monitor(tmp_path)
    assert len(monitor.look().traffic) == 2
    late = Process(pid=300)
    late.call("read", MS, MS, "/data/b", moved=77)
    late.write(tmp_path)
    assert monitor.look().traffic[0].read_bytes == 77


def test_what_is_kept_does_not_grow_with_the_job(tmp_path: Path) -> None:
    process = Process()
    for n in range(30_000):
        process.call("read", 1000 * (n + 1), 500, "/data/a", moved=1)
    process.write(tmp_path)
    monitor = Monitor(tmp_path)
    for _ in range(3):
        value = monitor.look()
    assert value.traffic[0].read_bytes == 30_000
    (kept,) = monitor._processes.values()
    assert sum(len(calls._start) for calls in kept.calls.values()) == 0


def test_no_folder_no_log_and_a_foreign_log_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        Monitor(tmp_path / "absent")
    with pytest.raises(RunError, match="no log of penstock in it"):
        Monitor(tmp_path).was_over()
    (tmp_path / "a.log").write_bytes(b"something else" * 1000)
    with pytest.raises(LogError, match="not a log of penstock"):
        Monitor(tmp_path).look()


def test_a_run_that_has_just_been_launched_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"start_unix_ns": time.time_ns()}))
    monitor = Monitor(tmp_path)
    assert not monitor.was_over()
    assert monitor.look().state == "starting"


JOB = """
import os, sys, time, torch
from torch.utils.data import DataLoader, Dataset

def spin(s):
    end = time.perf_counter() + s
    while time.perf_counter() < end:
        pass

class Files(Dataset):
    def __len__(self):
        return 240

    def __getitem__(self, number):
        end = time.perf_counter() + 0.003
        fd = os.open("item", os.O_RDONLY)
        while time.perf_counter() < end:
            os.pread(fd, 200000, 0)
        os.close(fd)
        spin(0.002)
        return torch.zeros(1)

open("item", "wb").write(bytes(200000))
net = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(2):
    for n, batch in enumerate(DataLoader(Files(), batch_size=4, num_workers=int(sys.argv[1]))):
        optimizer.zero_grad()
        net(batch.reshape(-1, 1)).sum().backward()
        optimizer.step()
        spin(0.01)
        if n % 25 == 24:
            torch.save({"net": torch.zeros(500_000)}, "checkpoint")
"""


@needs_library
@pytest.mark.parametrize("workers", [0, 2])
def test_a_watched_training_ends_with_the_shares_of_its_report(
    tmp_path: Path, workers: int
) -> None:
    pytest.importorskip("torch", reason="pip install 'penstock[torch]'")
    (tmp_path / "job.py").write_text(UNCOMPILED + JOB)
    values = watched_to_its_end(tmp_path, str(workers))
    with open_run(tmp_path / "run") as run:
        measures = measure(run)
    last = values[-1]
    assert last.steps == measures.training.steps == 120
    assert last.total.wall_s == pytest.approx(measures.training.wall_s, rel=0.001)
    # The report also counts waits that no loader told: a lock that is held while the CPUs are busy.
    assert last.total.stall == pytest.approx(measures.stall_fraction.value, abs=0.02)
    assert last.total.storage == pytest.approx(measures.storage_fraction.value, abs=0.02)
    assert last.total.wait_in_calls == pytest.approx(
        measures.data_storage_s / (measures.training.data_wait_s or 1), abs=0.02
    )
    assert sum(value.total.stall is not None for value in values) > 5
    steps = [value.steps for value in values]
    assert steps == sorted(steps)


# Views


def some(**changes: Any) -> Live:
    seconds = tuple(Second(0.2, 0.1, 10**7, 10**6, 5, 0.01) for _ in range(60))
    value = Live(
        run="runs/tuesday",
        command="/usr/bin/python train.py --epochs 3",
        host="node1",
        state="running",
        elapsed_s=372.0,
        watched_s=372.0,
        processes=3,
        mains=1,
        workers=2,
        steps=2048,
        step_s=0.155,
        recent=Stall(60.0, 11.4, 6.2, 7.2, 5.9, 0.4),
        total=Stall(372.0, 50.0, 30.0, 40.0, 30.0, 2.0),
        recent_traffic=(Traffic("posix", 3000, 2, 1_500_000_000, 2000), Traffic("stdio")),
        traffic=(Traffic("posix", 30000, 2, 15_000_000_000, 9000), Traffic("stdio")),
        seconds=seconds,
        blocked=(),
        gaps=(),
    )
    return replace(value, **changes)


def test_a_line_says_the_stall_its_parts_and_the_rate() -> None:
    said = view.line(some())
    assert (
        said == "io: step 2,048, stall 32 % (data 19, checkpoint 12, own calls 1), read 25.0 MB/s"
    )


def test_a_line_without_training_says_not_measured_and_never_0() -> None:
    said = view.line(some(recent=Stall()))
    assert "stall not measured yet" in said
    assert "0 %" not in said


def test_lines_come_for_so_many_steps_and_when_something_blocks() -> None:
    stuck = Blocked("open", "/x", 12.3, 9)
    lives = [some(steps=n, elapsed_s=n / 10) for n in range(0, 300, 10)]
    lives.append(some(steps=290, elapsed_s=30.0, blocked=(stuck,)))
    lives.append(some(steps=290, elapsed_s=31.0, blocked=(stuck,)))
    lives.append(some(steps=290, elapsed_s=31.0, state="over"))
    stream = io.StringIO()
    assert view.show_on(lives, stream, every=100) is lives[-1]
    lines = stream.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines[:3]] == [
        "io: step 0",
        "io: step 100",
        "io: step 200",
    ]
    assert lines[3].endswith("blocked in open /x for 12 s")
    assert "no step since the last line" not in lines[2]
    assert lines[4].startswith("io: over after 31.0 s, 290 steps, stall 25 %")
    assert len(lines) == 5


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_of_the_panel_is_wider_than_the_paper(width: int) -> None:
    long = Blocked("open", "/scratch/" + "very/deep/" * 30 + "file\x1b[31m", 1234.0, 4194304)
    far = RemoteTraffic("\x1b[31m" + "x" * 240 + ":80", 3, 1, 10**9, 5, (("2xx", 7),), 1, 2.0, 0.1)
    drawn = view.render(some(blocked=(long,), gaps=("much " * 40,), remote=(far,)), width)
    assert all(len(line) <= width for line in drawn.splitlines())
    assert "\x1b" not in drawn
    assert "Of the last 60 s 32 % stalled" in drawn


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state": "starting", "mains": 0, "recent": Stall()}, "no log yet"),
        ({"state": "paused"}, "nothing is being recorded"),
        ({"mains": 0, "recent": Stall(), "total": Stall()}, "NO TRAINING STEPS SEEN YET"),
        ({"state": "over"}, "Of the whole run 25 % stalled"),
        ({"elapsed_s": 12.0, "watched_s": 12.0}, "Of the run so far 25 % stalled"),
        ({"watched_s": 100.0}, "watched: stall 25 %"),
    ],
)
def test_the_panel_says_what_state_the_run_is_in(changes: dict[str, Any], said: str) -> None:
    assert said in view.render(some(**changes), 80)


# Metrics


def scrape(address: str) -> dict[str, dict[tuple[str, ...], float]]:
    from prometheus_client.openmetrics.parser import text_string_to_metric_families

    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    request = urllib.request.Request(f"http://{address}/metrics", headers=accept)
    with urllib.request.urlopen(request, timeout=240) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        body = answer.read().decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(body):
        for sample in family.samples:
            labels = tuple(sample.labels.values()) if sample.name != "penstock_run_info" else ()
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


@pytest.fixture
def server() -> Any:
    pytest.importorskip("prometheus_client", reason="pip install 'penstock[metrics]'")
    with metrics.Metrics("0") as one:
        yield one


def test_a_scrape_gives_every_metric_with_the_values_that_were_told(server: Any) -> None:
    requests = (("2xx", 7), ("5xx", 2))
    far = RemoteTraffic("store:443", 3, 1, 10**9, 500, requests, 2, 2.5, 0.125)
    server.tell(some(remote=(far,)))
    found = scrape(server.address)
    assert sorted(found) == sorted(metrics.METRICS)
    assert found["penstock_remote_received_bytes_total"] == {("store:443",): 1e9}
    assert found["penstock_remote_requests_total"] == {
        ("store:443", "2xx"): 7, ("store:443", "5xx"): 2,
    }  # fmt: skip
    assert found["penstock_remote_open_connections"] == {("store:443",): 1}
    assert found["penstock_remote_backoff_seconds_total"] == {("store:443",): 0.125}
    assert found["penstock_steps_total"] == {(): 2048}
    assert found["penstock_data_wait_seconds_total"] == {(): 50.0}
    assert found["penstock_read_bytes_total"] == {("posix",): 15e9, ("stdio",): 0}
    assert found["penstock_stall_ratio"][()] == pytest.approx(19 / 60)
    assert found["penstock_recording"] == {(): 1}


def test_what_was_not_measured_is_absent_and_counters_never_fall(server: Any) -> None:
    server.tell(some())
    assert scrape(server.address)["penstock_steps_total"] == {(): 2048}
    server.tell(some(steps=3, total=Stall(1.0), recent=Stall(1.0, is_fed=False)))
    found = scrape(server.address)
    assert "penstock_stall_ratio" not in found
    assert found["penstock_stall_is_measured"] == {(): 0}
    assert found["penstock_steps_total"] == {(): 2048}
    assert found["penstock_wall_seconds_total"] == {(): 372.0}


def test_metrics_are_for_this_machine_unless_a_host_is_given(server: Any) -> None:
    assert server.address.startswith("127.0.0.1:")


def test_before_the_first_look_a_scrape_is_empty(server: Any) -> None:
    assert scrape(server.address) == {}


def test_a_port_that_is_taken_is_a_sentence(server: Any) -> None:
    with pytest.raises(PenstockError, match=r"metrics cannot be served: .*; choose another"):
        metrics.Metrics(server.address)


@pytest.mark.parametrize("address", ["", "localhost", "x:y", ":70000", "-1", ":"])
def test_what_is_no_address_is_a_sentence(address: str) -> None:
    with pytest.raises(PenstockError, match="is no address; write 9108"):
        metrics.Metrics(address)


# The command


def watch(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock", "watch", *words],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_a_run_that_was_over_before_is_said_to_be(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    training(tmp_path / "run")
    finished = watch("run", cwd=tmp_path)
    assert finished.returncode == 0
    assert finished.stdout == "run is over; `penstock report run` explains it\n"


def test_a_folder_without_a_run_is_one_line_and_status_2(tmp_path: Path) -> None:
    finished = watch(str(tmp_path), cwd=tmp_path)
    assert finished.returncode == 2
    assert finished.stderr.count("\n") == 1


@needs_library
def test_the_command_follows_a_job_to_its_end_and_serves_it(tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="pip install 'penstock[metrics]'")
    job = "import sys, penstock\nfor line in sys.stdin:\n    with penstock.step():\n        pass\n"
    (tmp_path / "job.py").write_text(job)
    program = [sys.executable, "-m", "penstock"]
    with (
        subprocess.Popen(
            [*program, "run", "-q", "-o", "run", sys.executable, "job.py"],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        while not list(tmp_path.glob("run/*.events")):
            assert process.poll() is None
        with subprocess.Popen(
            [*program, "watch", "run", "--every", "1", "--metrics", "0"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as watcher:
            assert watcher.stderr is not None
            said = watcher.stderr.readline()
            address = said.split("http://")[1].split("/")[0]
            print("step\n" * 10, file=process.stdin, flush=True)
            deadline = time.monotonic() + 240
            while scraped(address) != 11:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            process.stdin.close()
            assert process.wait(timeout=240) == 0
            out, _ = watcher.communicate(timeout=240)
    assert "io: over after" in out
    assert out.endswith("`penstock report run` explains it\n")


@needs_library
def test_ctrl_c_ends_the_watch_leaves_the_terminal_clean_and_the_job_alone(
    tmp_path: Path,
) -> None:
    job = "import sys, penstock\nfor line in sys.stdin:\n    with penstock.step():\n        pass\n"
    (tmp_path / "job.py").write_text(job)
    program = [sys.executable, "-m", "penstock"]
    with subprocess.Popen(
        [*program, "run", "-q", "-o", "run", sys.executable, "job.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        while not list(tmp_path.glob("run/*.events")):
            assert process.poll() is None
        ours, theirs = pty.openpty()
        watcher = subprocess.Popen(
            [*program, "watch", "run"], cwd=tmp_path, stdout=theirs, stderr=theirs, stdin=theirs
        )
        os.close(theirs)
        shown = b""
        while b"Ctrl-C ends the watch" not in shown:
            shown += os.read(ours, 65536)
        assert b"\x1b[?25l" in shown  # the cursor is hidden meanwhile
        watcher.send_signal(signal.SIGINT)
        with contextlib.suppress(OSError):  # the terminal's other end is closed
            while more := os.read(ours, 65536):
                shown += more
        os.close(ours)
        assert watcher.wait(timeout=240) == 130
        assert shown.rstrip().endswith(b"penstock: interrupted")
        assert shown.rfind(b"\x1b[?25h") > shown.rfind(b"\x1b[?25l")
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(timeout=240) == 0


def scraped(address: str) -> float | None:
    try:
        return scrape(address).get("penstock_steps_total", {}).get(())
    except urllib.error.URLError:
        return None


def test_the_boot_of_the_logs_here_is_no_boot_of_this_host() -> None:
    assert BOOT.hex() not in Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")
