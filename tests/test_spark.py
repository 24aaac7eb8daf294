"""Every question gives the same rows on DuckDB and on Spark with two threads; some questions also
on a standalone cluster of two workers."""

import json
import math
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fixtures import times
from penstock.errors import MissingDependency, QueryError, RunError
from penstock.explain import questions, spark
from penstock.explain.questions import PREPARED, VIEWS, query
from penstock.explain.spark import in_sparks_words, open_on_spark
from penstock.interop import darshan_counters as counters
from penstock.runs.run import Run, import_run, open_run
from penstock.runs.tables import PARTED
from penstock.safe import checksums
from synthetic import MS, NUMBERS, Synthetic, training_job

S = 1000 * MS
# A JVM that lives two minutes: no time for the second compiler's work, nor for collecting aside.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"
# Cleaning up compiled code and young objects took a sixth of the driver's time.
ROOMY = f"{QUICK} -XX:ReservedCodeCacheSize=240m -Xmn400m"
ALL = {*questions.names(), "counters"}
# Asked before those that read them; in this order.
BESIDE = (
    "darshan_ranks", "darshan_names", "darshan_kinds", "darshan_renames", "timeline_family",
    "stage_mounts",
)  # fmt: skip
WORDS = {"kinds": list(counters.KINDS), "timers": list(counters.TIMERS)}
PARAMETERS: dict[str, dict[str, Any]] = {
    "darshan_kinds": WORDS,
    "darshan_calls": {**WORDS, "parts": 1, "part": 0},
    "darshan_heatmap": {"width_ns": S // 10, "bins": 60},
    "timeline_bandwidth": {"from_ns": 0, "to_ns": 8 * S, "bin_ns": 50 * MS},
    "timeline_calls": {"pixel_ns": 5 * MS},
    "timeline_requests": {"from_ns": 0, "to_ns": 8 * S},
    "timeline_slices": {"pixel_ns": 5 * MS},
    "timeline_spans": {"from_ns": 0, "to_ns": 8 * S},
}
# What this run has nothing of: batches that a graph asked for, ranks that wait for each other or
# share files, bytes that are read again, calls of a fetch that blocked, and processes that hand
# over batches by pipes.
EMPTY = {
    "locked_calls", "graph_waits", "held_up", "pool_bystanders", "pool_makers", "rereads",
    "sharing", "stretch_stands", "own_hidden", "program_starts",
}  # fmt: skip
VARIABLES = {"start_unix_ns": "0", "from_ns": "0", "to_ns": str(8 * S), "pids": "[1, 2]::BIGINT[]"}


def why_no_spark() -> str:
    if not shutil.which("java"):
        return "no Java: make setup-system"
    try:
        import pyspark  # noqa: F401
    except ModuleNotFoundError:
        return "no pyspark: make test installs it"
    return ""


needs_spark = pytest.mark.skipif(bool(why_no_spark()), reason=why_no_spark())


def add_network(run: Synthetic) -> None:
    """A batch that a worker receives from a store, connections, a file that was read ahead."""
    store = "socket:store:443"
    begin = 4600 * MS
    run.wait(begin, begin + 100 * MS, 12)
    run.fetch(begin + MS, begin + 98 * MS, 12, process=2, cpu=MS, delay=0)
    for number, phase in enumerate(("connect", "first byte", "transfer")):
        start = begin + (5 + 30 * number) * MS
        run.blocked(
            "receive", start, start + 28 * MS, process=2, descriptor=store, received=9, phase=phase
        )
    run.step(begin + 100 * MS, begin + 120 * MS, 12)
    for number in range(30):
        start = begin + number * 3 * MS
        run.request(start, start + MS * (40 if number == 9 else 2), f"/b/{number % 9}", process=2,
                    thread=1, endpoint="store:443", status=503 if number == 4 else 200,
                    attempt=int(number == 5), backoff_ns=MS, object_bytes=1 << 30,
                    range_offset_bytes=0, range_bytes=9)  # fmt: skip
    run.endpoint_ceiling("store:443", 65_536, 8, 1e8)
    run.note("ahead", "on")
    run.note("ahead file", "random\t9000\t7000\t8000\t10000\t\t/data/mapped.mdb")
    for process in (2, 3):
        run.connected("store:443", process=process, received_bytes=300_000, answers=75,
                      opened_ns=3300 * MS, closed_ns=5 * S, connect_ns=MS, rtt_ns=MS)  # fmt: skip
    run.process(11, start=4600 * MS, end=4700 * MS, parent=1, command="curl", origin="preload")
    run.connected("store:443", process=11, received_bytes=9_000, opened_ns=4600 * MS)
    run.connected("rank:29500", process=2, peer_process=10, opened_ns=3300 * MS, sent_bytes=900)
    for number, status in enumerate((200, 503, 200, 404, None)):
        start = 4600 * MS + 20 * number * MS
        run.requested("store:443", start, 12 * MS, process=2, thread=1, status=status, bucket="b",
                      path=f"/k{number // 3}", received_bytes=9_000, attempt=number % 2,
                      error=None if status else "timeout", backoff_ns=number * MS)  # fmt: skip


def add_balances(run: Synthetic) -> None:
    """A second optimizer that goes on with a step; balances and input stretches; a thread that
    feeds the steps; failures."""
    run.span("data wait", 3500 * MS, 3510 * MS, process=1, thread=4, index=0, a=7)
    add_failures(run)
    add_own_batches(run)
    short_of_cpus(run)
    run.span("step", 3580 * MS, 3595 * MS, process=10, index=1, b=3, kind="step")
    run.span("step balance", 3500 * MS, 3595 * MS, process=10, index=1, a=40 * MS, b=5 * MS)
    run.span("step balance", 3595 * MS, 3770 * MS, process=10, index=2, a=40 * MS, b=2**63 - 1)
    run.span("input stretch", 3500 * MS, 3510 * MS, process=10, index=0, a=1, b=MS)
    run.span("input stretch", 3520 * MS, 3530 * MS, process=10, index=2, a=5, b=MS)
    run.span("clear gradients", 3502 * MS, 3504 * MS, process=10, index=0, b=MS)


def add_own_batches(run: Synthetic) -> None:
    """A process that reads and decodes its batches in the thread that takes the steps."""
    run.process(23, end=5 * S)
    for number in range(4):
        start = 4 * S + number * 50 * MS
        run.span("input stretch", start, start + 30 * MS, process=23, index=0, a=1, b=20 * MS)
        run.call("read", start + 5 * MS, start + 9 * MS, process=23, moved=5000)
        run.step(start, start + 50 * MS, number, process=23)


def add_failures(run: Synthetic) -> None:
    """A rank that runs and waits, a worker that was killed, calls and saves that failed."""
    run.process(20, state="running", read=20 * S, rank=2, world_size=3)
    run.wait(4 * S, 4100 * MS, 0, process=20)
    run.step(4100 * MS, 4200 * MS, 0, process=20)
    run.wait(4200 * MS, None, 1, process=20)
    run.note("doing", "1020\tS\t0.001\t\tpoll\tpython\t", process=20)
    run.process(21, state="killed", reason="by SIGKILL", status=-9, end=5 * S, parent=20)
    run.note("fetch line", "30\t600000\t/home/me/train.py\t12\tdecode\tPIL.Image.open", process=20)
    run.note("child ended", "1021\t-9\t0\t5\t10\t20\t30", process=20)
    run.sample(5 * S, "process", "1021", silent_s=0.5, rss_bytes=1e6, oom_kills=1)
    run.process(22, end=5 * S, status=1)
    run.call("open", 4900 * MS, 4901 * MS, path="/data/none", errno=2, process=22)
    run.call("write", 4910 * MS, 4911 * MS, path="/out/full", errno=28, process=22)
    run.span("checkpoint", 4900 * MS, 4950 * MS, index=9, a=28, b=1, process=22)
    run.span("save failed", 4960 * MS, 4960 * MS + 1, index=10, a=5, b=1, process=22)
    run.note("ended", "1\t2\t7\tnode1", process=None)
    run.note("still", "00 it slept", process=None)


def short_of_cpus(run: Synthetic) -> None:
    """A quota that stopped it, a call whose thread had no CPU, waits that tell their delay."""
    for index, end in ((0, 3500), (2, 3960)):
        run.span("wait delay", end * MS + 3, end * MS + 4, process=10, index=index, b=9 * MS)
    run.account(3300 * MS, 3380 * MS, cpu=MS, delay=30 * MS, process=2, thread=5)
    run.note("cpus of process", "4\tf\t1.5\t/sys/fs/cgroup/job")
    run.note("cpus of process", "2\t30\t\t", process=10)
    run.note("cpu throttled", "7\t1.25\t/sys/fs/cgroup/job")


def add_startup(run: Synthetic) -> None:
    """A start-up with imports, loads (one failed), a file that is made, a listing and a set-up."""
    run.span("restore", 100 * MS, 900 * MS)
    run.call("pread", 200 * MS, 300 * MS, path="/ckpt/one.safetensors", moved=4096, offset=0)
    run.fault("/ckpt/one.safetensors", 1200 * MS, 3 * MS)
    run.span("load state", S, 1100 * MS)
    run.span("restore", 1110 * MS, 1120 * MS, a=5, b=1)
    run.span("import torch", 1500 * MS, 1900 * MS, a=1, b=200 * MS)
    run.span("import numpy", 1600 * MS, 1700 * MS, a=2, b=50 * MS)
    run.span("import numpy", 3290 * MS, 3300 * MS, process=2, a=1, b=5 * MS)
    run.span("worker setup", 3320 * MS, 3330 * MS, process=2)
    run.span("thread cpu", 3150 * MS, 3150 * MS + 1, a=S, b=1 + 200 * MS)
    run.file("/cache/one.arrow", path_class="output")
    run.call("open", 2 * S, 2 * S + MS, path="/cache/one.arrow")
    run.call("write", 2100 * MS, 2200 * MS, path="/cache/one.arrow", moved=2 << 20)
    run.call("stat", 2400 * MS, 2450 * MS, path="/data/big.bin")


def rich_job() -> Synthetic:
    """Two ranks, one with workers and helper threads, one with a loader that says nothing; faults,
    pauses, copies, a folded counter, samples of the host, programs without a log."""
    run = training_job(12, save_every=5)
    for number, (start, end, cpu) in enumerate(
        [(3400, 3500, 0), (3600, 3720, 30), (3900, 3960, 5)]
    ):
        run.wait(start * MS, end * MS, number, process=10)
        run.span("wait cpu", end * MS + 1, end * MS + 2, process=10, index=number, a=1, b=cpu * MS)
        run.step(end * MS, end * MS + 50 * MS, number, process=10)
        run.call("pread", start * MS, (start + 40) * MS, process=10, thread=7, moved=9, offset=0)
        run.call("pread", (start + 20) * MS, (end + 9) * MS, process=10, thread=8, moved=1)
    run.process(10, end=5 * S, rank=1, world_size=2, command="python graph.py")
    run.call("read", 3 * S, None, path="/data/stuck", process=10)
    run.call("pread", 3300 * MS, 3380 * MS, path="/data/helped", process=2, thread=5, moved=4096)
    run.file("/data/big.bin", size=64 << 20)
    for number in range(40):
        place = number * 7919 * 4096 % (60 << 20)
        run.call("pread", 3300 * MS + number * 9 * MS, 3302 * MS + number * 9 * MS,
                 path="/data/big.bin", process=3, moved=65536, offset=place)  # fmt: skip
    run.call("fread", 3500 * MS, 3501 * MS, path="/data/big.bin", moved=512, offset=0)
    for number in range(6):
        run.fault(
            "/data/mapped.mdb", 3300 * MS + number * 30 * MS, 2 * MS, process=2, offset=number
        )
    add_balances(run)
    add_network(run)
    run.span("fetch faults", 3700 * MS, 3700 * MS + 1, process=2, index=0, b=6)
    run.span("paused", 3950 * MS, 4 * S, process=1, kind="window")
    run.fold("pread", 500, path="/data/folded", moved_bytes=1 << 20, duration_ns=S, process=2)
    for second in range(3, 6):
        run.sample(second * S, "disk", "vda", read_bytes=second * 10**8, written_bytes=5 * second)
        run.sample(second * S, "processors", busy_s=2.0 * second, iowait_s=0, idle_s=6.0 * second)
        run.sample(second * S, "memory", total_bytes=100, available_bytes=75 - second)
        run.sample(second * S, "accelerator", "0", busy_share=second / 10, processes=1)
        run.sample(second * S, "job", read_bytes=1000 + second, written_bytes=0)
        run.sample(second * S, "nfs", "/data", read_bytes=second * 10**6, reads=second * 9,
                   reads_ms=70 * second, sent_again=1)  # fmt: skip
    for mount in ("/\text4\t/dev/vda", "/data\tnfs\tserver:/export"):
        run.note("mount", mount)
    run.note("beneath", "/\tvda, no seeks")
    for flash in (f"/local\tnvme0n1\t{900 << 30}", "/damaged\tnvme1n1\tmuch"):
        run.note("flash", flash)
    for key, text in (("cpus", "8"), ("memory_bytes", str(16 << 30)), ("event_cost_ns", "31.5")):
        run.note(key, text)
    run.note("checkpointer", '{"life": 1000, "rank": 0, "fast": "/fast", "slow": null}')
    run.note("checkpointer", "{no JSON")
    run.note("save", "1 1000 0 5 3000 good 1 4096 0.1 0.0 0.5 0.9 0.15 -")
    run.note("save", "2 1000 1 9 900000000 good 0 4096 0.1 0.0 - - - -")
    run.note("save", "3 1000 0 5 3000 good 1 4096 0.1 0.0 0.5 2.5 0.15 0.3")
    run.note("save", "nothing")
    run.ceiling("/data", "read", 5e8)
    add_startup(run)
    run.span("validation", 4 * S, 4100 * MS)
    run.span("graph", 3400 * MS, 3400 * MS + 1, process=10, a=S)
    run.rows["staged"] += [(1, "served", 5), (2, "changed", 1)]
    run.rows["threads"] += [(5, 2, 25, "decode-1", False)]
    run.span("barrier", 3450 * MS, 3460 * MS)
    run.note("a blind spot", "of a kind of its own")
    run.note("clock", "node1\treference\t0\t0\t0\t12")
    run.note("clock", "node2\tsteps\t1500\t20\t900\t12")
    run.note("burst tier", "/fast")
    run.note("drained", "4096 0.5")
    run.note("drain left", "1 100 2.5")
    run.note("resident before", "3\t300\t120\tall\tnamed")
    moved = (1, 1, NUMBERS["rename"], 0, run.file("/data/stuck"), run.file("/data/new"))
    run.call("pread", 3100 * MS, 3101 * MS, path="/data/stuck", moved=1, offset=0)
    run.rows["events/00000"].append((*moved, 3200 * MS, MS, None, 0, 0, None, None))
    run.rows["unseen"].append((1, 4711, "/usr/bin/static", "a static program"))
    return run


def _wait(run: Synthetic) -> None:
    run.blocked("sem_wait", 3410 * MS, 3490 * MS, process=10, waker=8, address=4096)
    run.blocked("cond_wait", 3500 * MS, 3505 * MS, process=10, errno=110)
    run.blocked("poll", 3600 * MS, None, by="/usr/lib/libgloo.so", descriptor="socket:")
    for by, start, end in ((9, 3590, 3715), (11, 3710, 3718)):
        run.blocked("receive", start * MS, end * MS, process=10, thread=by, descriptor="socket:")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """The rich job's run, at a path that the workers see."""
    made = rich_job()
    _wait(made)
    assert made.connection
    folder = tmp_path_factory.mktemp("spark") / "run"
    shutil.copytree(made.run.folder, folder)
    windows = [[-S, S, 4096, True], [S, 2 * S, 0, False], [2 * S, 9 * S, 512, True]]
    told = {"version": 1, "tier": "fast", "limit_bps": 1e6, "windows": windows, "is_whole": False}
    (folder / "fill.json").write_text(json.dumps(told))
    manifest = {"start_unix_ns": 0, "running": [], "parts": dict.fromkeys(PARTED, 1)}
    with Run(folder, folder / "tables", manifest, ()) as opened:
        yield opened


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A master and two worker processes on loopback: the master's address."""
    import pyspark

    folder = tmp_path_factory.mktemp("cluster")
    starter = Path(pyspark.__file__).parent / "bin" / "spark-class"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"spark://127.0.0.1:{port}"
    environment = os.environ | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_DAEMON_MEMORY": "256m"}
    environment["SPARK_DAEMON_JAVA_OPTS"] = QUICK
    environment |= {"SPARK_WORKER_DIR": str(folder), "PYSPARK_PYTHON": sys.executable}
    deploy = "org.apache.spark.deploy"
    commands = [
        ["master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        *[["worker.Worker", "--host", "127.0.0.1", "--cores", "1", "--memory", "900m",
           "--webui-port", "0", address]] * 2,
    ]  # fmt: skip
    started = []
    with pytest.MonkeyPatch.context() as patched, open(folder / "log", "w") as log:
        patched.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        try:
            for words in commands:
                # A test that is killed leaves no cluster behind.
                command = ["setpriv", "--pdeathsig", "KILL", starter]
                command += [f"{deploy}.{words[0]}", *words[1:]]
                started.append(
                    subprocess.Popen(
                        command, env=environment, stdout=log, stderr=log, start_new_session=True
                    )
                )
            yield address
        finally:
            for process in reversed(started):
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


LOCAL, CLUSTER = "local[2]", "cluster"
on_threads = pytest.mark.parametrize("session", [LOCAL], indirect=True)
on_a_cluster = pytest.mark.parametrize("session", [CLUSTER], indirect=True)


@pytest.fixture(scope="module")
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    """One for all tests of a master.  What makes large jobs fast makes small ones slow: it is left
    out."""
    from pyspark.sql import SparkSession

    master = request.getfixturevalue("cluster") if request.param == CLUSTER else request.param
    builder = SparkSession.builder.master(master).appName("test")
    for key, value in {
        "spark.cores.max": "2",
        "spark.driver.memory": "1500m",
        "spark.executor.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.default.parallelism": "2",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.log.level": "OFF",
        "spark.sql.maxPlanStringLength": "100",
        "spark.locality.wait": "0s",
        "spark.driver.extraJavaOptions": ROOMY,
        "spark.executor.extraJavaOptions": QUICK,
    }.items():
        builder = builder.config(key, value)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        made = builder.getOrCreate()
        yield made
        made.stop()


def same(one: Any, other: Any) -> bool:
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return isinstance(one, bool) == isinstance(other, bool) and math.isclose(
            one, other, rel_tol=1e-9, abs_tol=1e-9
        )
    return bool(one == other)


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """By all columns; numbers as such, so that 1 and 1.0 stand at one place."""

    def key(cell: Any) -> tuple[bool, float, str]:
        is_number = isinstance(cell, int | float)
        return cell is None, round(cell, 6) if is_number else 0, "" if is_number else str(cell)

    return sorted(rows, key=lambda row: tuple(map(key, row)))


def difference(mine: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]]) -> str:
    if len(mine) != len(theirs):
        return f"{len(mine)} rows, {len(theirs)} on Spark"
    for one, other in zip(ordered(mine), ordered(theirs), strict=True):
        if not same(one, other):
            return f"{one} is {other} on Spark"
    return ""


class Both:
    """Asks two engines the same and keeps what they do not agree in."""

    def __init__(self, duck: Any, spark: Any) -> None:
        self.duck = duck
        self.spark = spark
        self.asked: set[str] = set()
        self.rows: dict[str, int] = {}
        self.wrong: dict[str, str] = {}

    def prepare_all(self, names: Iterable[str]) -> None:
        """Make prepared tables, each after the variable that it reads."""
        for name in names:
            if variable := questions.VARIABLES.get(name):
                self.compare(variable, query(variable))
                self.each(f"SET VARIABLE {variable} = ({query(variable)})")
            self.prepare(name)

    def prepare(self, name: str) -> None:
        kind = "VIEW" if name in VIEWS or name == "timeline_shown" else "TABLE"
        try:
            self.each(f"CREATE TEMP {kind} {name} AS\n{query(name)}", PARAMETERS.get(name))
        except QueryError as error:
            self.asked.add(name)
            self.wrong[name] = str(error)[:300]
            return
        self.compare(name, f"SELECT * FROM {name}")

    def each(self, text: str, parameters: dict[str, Any] | None = None) -> None:
        self.duck.execute(text, parameters)
        self.spark.execute(text, parameters)

    def compare(self, name: str, text: str, parameters: dict[str, Any] | None = None) -> None:
        self.asked.add(name)
        mine = self.duck.execute(text, parameters).fetchall()
        self.rows[name] = len(mine)
        try:
            theirs = self.spark.execute(text, parameters).fetchall()
        except QueryError as error:
            self.wrong[name] = str(error)[:300]
        else:
            if found := difference(mine, theirs):
                self.wrong[name] = found


@needs_spark
@on_threads
@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_question_has_the_same_rows_on_both_engines(run: Run, session: Any) -> None:
    with open_on_spark(run, LOCAL) as there, run.connection.cursor() as duck:
        assert session.sparkContext.master == LOCAL
        assert session.conf.get(spark.UNION_SETTING) == "false"
        both = Both(duck, there.connection)
        both.prepare_all(PREPARED)
        for name, value in VARIABLES.items():
            both.each(f"SET VARIABLE {name} = {value}")
        for name in (*BESIDE, "timeline_shown"):
            both.prepare(name)
        both.compare("counters", "SELECT * FROM counters")
        for name in sorted(ALL - both.asked):
            both.compare(name, query(name), PARAMETERS.get(name))
    assert session.conf.get(spark.UNION_SETTING) != "false"  # as it was
    assert both.wrong == {}
    assert both.asked == ALL
    # Questions that found nothing were compared in nothing.
    empty = {name for name, rows in both.rows.items() if not rows}
    assert empty <= EMPTY


@needs_spark
@on_a_cluster
@pytest.mark.slow
@pytest.mark.thorough("local[2]: a master and two workers are three more virtual machines")
def test_workers_of_a_cluster_answer_as_duckdb_does(run: Run, session: Any, cluster: str) -> None:
    """What differs from threads: tasks, rows and broadcast tables go to other processes, which read
    the files themselves."""
    asked = ("job", "operations", "timeline_family")
    needed = set().union(*(questions._reads(name) for name in asked))
    with open_on_spark(run, cluster) as there, run.connection.cursor() as duck:
        assert session.sparkContext.master == cluster
        both = Both(duck, there.connection)
        both.prepare_all(name for name in PREPARED if name in needed)
        both.each(f"SET VARIABLE pids = {VARIABLES['pids']}")
        for name in asked:
            both.compare(name, query(name))
        both.compare("counters", "SELECT * FROM counters")
    assert both.wrong == {}
    assert len(both.asked) > 15
    assert all(both.rows[name] for name in asked)


@needs_spark
@on_threads
@pytest.mark.slow
def test_a_part_that_is_missing_is_named(run: Run, session: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    (folder / "tables" / "events" / "00000.parquet").unlink()
    (folder / "tables" / "manifest.json").write_text(
        checksums.sealed_json({**spark.made_by(), **run.manifest})
    )
    with pytest.raises(RunError, match=r"a part of the tables is missing: .*events/00000.parquet"):
        open_on_spark(folder.as_uri(), "spark")
    with pytest.raises(RunError, match=r"cannot be read: .*make the tables"):
        open_on_spark((tmp_path / "none").as_uri(), "spark")


@needs_spark
@on_threads
@pytest.mark.slow
def test_a_flipped_bit_of_tables_at_a_url_is_refused(
    run: Run, session: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    made = import_run(folder, "job.log", 5, {"notes": {"key": np.array(["a"], object)}}) / "tables"
    open_on_spark(folder.as_uri(), "spark").close()
    chance = random.Random(2)
    for name in ("manifest.json", "notes.parquet", "events/00000.parquet", "files.parquet"):
        path = made / name
        data = path.read_bytes()
        tail = [len(data) - 4096 + chance.randrange(4096) for _ in range(times(4))]
        for place in (*(max(at, 0) for at in tail), chance.randrange(len(data))):
            damaged = bytearray(data)
            damaged[place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            with pytest.raises(RunError, match=r"cannot be read|is missing"):
                open_on_spark(folder.as_uri(), "spark")
        path.write_bytes(data)
    manifest = json.loads((made / "manifest.json").read_text())
    del manifest["sum"]
    (made / "manifest.json").write_text(json.dumps(manifest))  # of an earlier release
    (made / "notes.parquet").write_bytes(
        (made / "notes.parquet").read_bytes().replace(b"penstock-crc32", b"something-else")
    )
    open_on_spark(folder.as_uri(), "spark").close()


# --- without a cluster ---------------------------------------------------------------------------


def test_a_master_that_is_not_there_is_told_at_once() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"spark://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(RunError, match=r"no master of Spark answers .*refused"):
            spark._answers(address)


def test_spark_that_is_absent_or_too_old_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    pyspark = pytest.importorskip("pyspark")
    monkeypatch.setattr(pyspark, "__version__", "3.5.4")
    with pytest.raises(MissingDependency, match=r"pyspark 3.5.4 is too old, 4.1 is needed"):
        open_on_spark("file:///none", "spark")
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingDependency, match=r"pip install 'penstock\[spark\]'"):
        open_on_spark("file:///none", "spark")


def test_a_part_that_is_missing_is_made_again_on_duckdb(recorded: Any, tmp_path: Path) -> None:
    folder = recorded("open('a', 'w').write('b')").folder
    part = folder / "tables" / "events" / "00000.parquet"
    part.unlink()
    with open_run(folder) as again:
        assert part.exists()
        assert again.sql("SELECT count(*) FROM events WHERE path LIKE '%/a'").fetchall() != [(0,)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT a // 2", "SELECT a DIV 2"),
        ("SELECT parts[n + 1] FROM t", "SELECT GET(parts, (n + 1) - 1) FROM t"),
        ("SELECT list_position(['x'], a)", "SELECT NULLIF(ARRAY_POSITION(ARRAY('x'), a), 0)"),
        ("SELECT getvariable('v') + $p", "SELECT 7 + 8"),
        (
            "SELECT arg_max(a, b) FROM t",
            "SELECT MAX_BY(a, b) FILTER(WHERE NOT a IS NULL AND NOT b IS NULL) FROM t",
        ),
        (
            "SELECT a, 2 * unnest([b, c]) AS d FROM t",
            "SELECT a, 2 * unnested.unnested_0 AS d FROM t"
            " LATERAL VIEW EXPLODE(ARRAY(b, c)) unnested AS unnested_0",
        ),
        (
            "SELECT t.a FROM t ASOF JOIN u AS o ON o.k = t.k AND o.at <= t.ns",
            "SELECT t.a FROM t JOIN (SELECT *, LEAD(at) OVER (PARTITION BY k ORDER BY at) AS"
            " following_ FROM u) AS o ON (o.k = t.k AND o.at <= t.ns)"
            " AND (o.following_ IS NULL OR t.ns < o.following_)",
        ),
    ],
)
def test_what_spark_has_no_words_for_is_said_in_others(text: str, said: str) -> None:
    pytest.importorskip("sqlglot")
    assert in_sparks_words(text, {"v": 7}, {"p": 8}) == said


def test_a_text_that_is_no_sql_is_refused() -> None:
    pytest.importorskip("sqlglot")
    with pytest.raises(QueryError, match="sqlglot does not read it"):
        in_sparks_words("SELECT FROM WHERE (", {}, {})
