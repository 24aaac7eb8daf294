"""Data waits on the network: jobs that train from object stores, against what their server did."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from netservers import Store, make_certificate, object_store
from penstock.explain.live import Monitor
from penstock.explain.measures import measure
from penstock.explain.report import Report, report_of
from penstock_lab.objects import Asked, ObjectServer
from test_unknown_loaders import MS, READER, STEP, job

Spans = Sequence[Sequence[float]]  # of a start and an end each

# Each trains 20 steps of 10 ms on batches of two objects, and times its own waits.
TRAINING = """
import sys, time, penstock
PORT = int(sys.argv[1])

def train(batches):
    waited, begun = 0.0, time.perf_counter()
    batches = iter(batches)
    for number in range(20):
        start = time.perf_counter()
        next(batches)
        waited += time.perf_counter() - start
        with penstock.step(number):
            end = time.perf_counter() + 0.01
            while time.perf_counter() < end:
                pass
    print(waited / (time.perf_counter() - begun), file=open("share", "w"))
"""
KEPT = """
import http.client
to = http.client.HTTPConnection("localhost", PORT)
def get(number):
    to.request("GET", f"/data/{number}")
    return len(to.getresponse().read())
train([get(2 * n), get(2 * n + 1)] for n in range(20))
"""
OVER_TLS = """
import ssl, http.client
to = http.client.HTTPSConnection("localhost", PORT, context=ssl._create_unverified_context())
def get(number):
    to.request("GET", f"/data/{number}")
    return len(to.getresponse().read())
train([get(2 * n), get(2 * n + 1)] for n in range(20))
"""
IN_THREADS = """
import http.client, threading
from concurrent.futures import ThreadPoolExecutor
local = threading.local()
def get(number):
    if not hasattr(local, "to"):
        local.to = http.client.HTTPConnection("localhost", PORT)
    local.to.request("GET", f"/data/{number}")
    return len(local.to.getresponse().read())
pool = ThreadPoolExecutor(2)
train(list(pool.map(get, (2 * n, 2 * n + 1))) for n in range(20))
"""
IN_AN_EVENT_LOOP = """
import asyncio
loop = asyncio.new_event_loop()
async def get(number):
    reader, writer = await asyncio.open_connection("localhost", PORT)
    writer.write(b"GET /data/%d HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" % number)
    data = await reader.read()
    writer.close()
    return len(data)
async def both(n):
    return await asyncio.gather(get(2 * n), get(2 * n + 1))
train(loop.run_until_complete(both(n)) for n in range(20))
"""


def reported(run: Any) -> Report:
    return report_of(measure(run))


def in_report(report: Report, endpoint: str) -> dict[str, Any]:
    """The row of an endpoint in the table "Connections"."""
    table = report.table("endpoints")
    for row in table.rows:
        cells = dict(zip((column.key for column in table.columns), row, strict=True))
        if cells["endpoint"] == endpoint:
            return cells
    raise AssertionError(f"no {endpoint} in {table.rows}")


@pytest.mark.parametrize(
    ("loop", "connections"),
    [(KEPT, 1), (OVER_TLS, 1), (IN_THREADS, 2), (IN_AN_EVENT_LOOP, 40)],
    ids=["kept", "tls", "threads", "event loop"],
)
def test_a_job_that_trains_over_the_network_waits_on_remote_storage(
    loop: str,
    connections: int,
    recorded_command: Callable[..., Any],
    work: Path,
    tmp_path: Path,
    made_once: Callable[..., Path],
) -> None:
    certificate = made_once(("certificate.pem",), make_certificate) if loop == OVER_TLS else None
    program = tmp_path / "job.py"
    program.write_text(TRAINING + loop)
    with object_store(Store(delay_s=0.05), certificate) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    report = reported(run)
    endpoint = f"localhost:{store.port}"
    verdict = report.verdict
    assert verdict.headline.endswith("HIGHLY INPUT BOUND, waits on remote storage")
    assert f"on remote storage: {endpoint}" in verdict.sentence
    network = sum(part.s or 0.0 for part in report.wait if part.key.startswith("network"))
    wall_s = next(fact.number.value for fact in report.stretches if fact.key == "wall_s")
    true_share = float((work / "share").read_text())
    # The job's wait has the client's own work too, the more the slower the machine is.
    assert 0.85 * true_share < network / wall_s < true_share + 0.08
    first_byte = next(part.s for part in report.wait if part.key == "network first byte")
    assert first_byte > 0.5 * network
    row = in_report(report, endpoint)
    assert row["connections"] == store.connections == connections
    assert row["received_bytes"] == pytest.approx(store.answered_bytes, rel=0.02)
    assert len(store.requests) == 40
    assert 40 <= row["answers"] <= 43  # a handshake's, too
    assert row["wait_s"] == pytest.approx(network, rel=0.05)
    assert row["whose"] is None


LOADED = """
import torch
class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 80
    def __getitem__(self, number):
        return get(number)
train(iter(torch.utils.data.DataLoader(Items(), 2)))
"""
BY_A_LOOP_IN_A_THREAD = """
import asyncio, threading
loop = asyncio.new_event_loop()
threading.Thread(target=loop.run_forever, daemon=True).start()
async def fetch(number, done):
    reader, writer = await asyncio.open_connection("localhost", PORT)
    writer.write(b"GET /data/%d HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" % number)
    await reader.read()
    writer.close()
    done.set()
def get(number):
    done = threading.Event()
    # A loop has weak references to its tasks: without this one a collection may end the fetch.
    fetching = asyncio.run_coroutine_threadsafe(fetch(number, done), loop)
    while not done.wait(1):  # as fsspec waits
        pass
    return number
"""
BY_CURL = """
import subprocess
def get(number):
    url = f"http://localhost:{PORT}/data/{number}"
    return len(subprocess.run(["curl", "-s", url], stdout=subprocess.PIPE, check=True).stdout)
"""
BY_CURL_IN_A_SHELL = BY_CURL.replace('["curl", "-s", url]', 'f"curl -s {url}; true", shell=True')


@pytest.mark.parametrize(
    "get",
    [BY_A_LOOP_IN_A_THREAD, BY_CURL, BY_CURL_IN_A_SHELL],
    ids=["event loop in a thread", "curl", "curl in a shell"],
)
def test_a_fetch_whose_thread_or_program_waits_for_the_network_waits_on_remote_storage(
    get: str, recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    if "curl" in get and not shutil.which("curl"):
        pytest.skip("there is no curl")
    program = tmp_path / "job.py"
    program.write_text(TRAINING + get + LOADED)
    with object_store(Store(delay_s=0.1)) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    report = reported(run)
    assert report.verdict.headline == "HIGHLY INPUT BOUND, waits on remote storage"
    network = sum(part.s or 0.0 for part in report.wait if part.key.startswith("network"))
    # 40 fetches, of which the first batch's come before the training; a program also starts.
    assert 0.9 * 38 * 0.1 <= network <= 1.4 * 40 * 0.1
    first_byte = next(part.s for part in report.wait if part.key == "network first byte")
    assert first_byte > 0.9 * network


BY_PYARROW = """
from pyarrow import fs
files = fs.S3FileSystem(endpoint_override=f"127.0.0.1:{PORT}", scheme="http", region="us-east-1",
    access_key="id", secret_key="secret")
def get(number):
    return len(files.open_input_stream(f"data/{number}").read())
train(get(n) for n in range(20))
"""
BY_TENSORSTORE = """
import tensorstore
at = {"driver": "http", "base_url": f"http://127.0.0.1:{PORT}/data/"}
store = tensorstore.KvStore.open(at).result()
def get(number):
    return len(store.read(str(number)).result().value)
train(get(n) for n in range(20))
"""


@pytest.mark.parametrize(
    ("loop", "client", "requests"),
    [(BY_PYARROW, "pyarrow", 40), (BY_TENSORSTORE, "tensorstore", 20)],
)
def test_requests_that_no_adapter_saw_are_said_to_be_missing(
    loop: str,
    client: str,
    requests: int,
    recorded_command: Callable[..., Any],
    tmp_path: Path,
) -> None:
    pytest.importorskip(client)
    program = tmp_path / "job.py"
    program.write_text(TRAINING + loop)
    with object_store(Store(delay_s=0.05)) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    assert len(store.requests) == requests
    report = reported(run)
    endpoint = f"127.0.0.1:{store.port}"
    assert f"on remote storage: {endpoint}" in report.verdict.sentence
    [gap] = [gap for gap in report.gaps if gap.what.startswith("network requests")]
    assert gap.what == f"network requests to {endpoint}"
    assert "only the connections are recorded" in gap.why


# Two processes, half a period apart: each fetches a batch in 0.05 s and then works on it for 0.1 s.
AHEAD = """
import http.client, json, multiprocessing, os
def fill(which, put):
    time.sleep(0.075 * which)
    to = http.client.HTTPConnection("localhost", PORT)
    for number in range(which, 20, 2):
        data = fetched(to, number)
        time.sleep(0.1)
        put(data)
def fetched(to, number):
    start = time.monotonic()
    to.request("GET", f"/data/{number}")
    data = to.getresponse().read()
    json.dump((start, time.monotonic()), open(f"fetch{number}", "w"))
    return data
fork = multiprocessing.get_context("fork")
def timed(batches):
    waits = []
    for number in range(20):
        start = time.monotonic()
        batch = next(batches)
        waits.append((start, time.monotonic()))
        if number == 19:
            json.dump(waits, open("waits", "w"))
        yield batch
"""
BY_QUEUES = """
def ahead():
    queues = [fork.Queue(1) for _ in range(2)]
    for which in range(2):
        fork.Process(target=fill, args=(which, queues[which].put), daemon=True).start()
    for number in range(20):
        yield queues[number % 2].get()
train(timed(ahead()))
"""
BY_PIPES = """
def ahead():
    pipes = [fork.Pipe() for _ in range(2)]
    for which in range(2):
        fork.Process(target=fill, args=(which, pipes[which][1].send), daemon=True).start()
    for number in range(20):
        yield pipes[number % 2][0].recv()
train(timed(ahead()))
"""
BY_A_POOL = """
to = None
def get(number):
    global to
    if to is None:
        time.sleep(0.075 * (number % 2))
        to = http.client.HTTPConnection("localhost", PORT)
    data = fetched(to, number)
    time.sleep(0.1)
    return data
with fork.Pool(2) as pool:
    train(timed(pool.imap(get, range(20))))
"""


@pytest.mark.parametrize(
    "loop", [BY_QUEUES, BY_PIPES, BY_A_POOL], ids=["queues", "pipes", "a pool"]
)
def test_a_wait_for_one_process_is_not_explained_by_the_requests_of_another(
    loop: str, recorded_command: Callable[..., Any], work: Path, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / "data" / str(number)).write_bytes(bytes(65536))
    program = tmp_path / "job.py"
    program.write_text(TRAINING + AHEAD + loop)
    with ObjectServer(tmp_path, 0.05, keep=True) as server:
        run = recorded_command([sys.executable, program, str(server.port)])
    served = {row.path.rstrip("/"): (row.begun_s, row.ended_s) for row in server.served}
    waits = json.loads((work / "waits").read_text())
    fetches = [json.loads((work / f"fetch{number}").read_text()) for number in range(20)]
    waited_s = sum(end - start for start, end in waits[1:])
    # A request takes longer for its client than for its server, on a busy machine much longer.
    least_s = shared_s(waits[1:], [served[f"/data/{number}"] for number in range(1, 20)])
    most_s = shared_s(waits[1:], fetches[1:])
    network_s = sum(part.s or 0.0 for part in reported(run).wait if part.key.startswith("network"))
    assert most_s < 0.5 * waited_s
    assert least_s - 0.1 * waited_s < network_s < most_s + 0.1 * waited_s


def shared_s(waits: Spans, fetches: Spans) -> float:
    """Return the time of the waits in which the fetch of the same number was under way."""
    return sum(
        max(0.0, min(end, fetched) - max(start, asked))
        for (start, end), (asked, fetched) in zip(waits, fetches, strict=True)
    )


def test_a_server_of_the_job_itself_is_no_remote_storage(recorded: Callable[..., Any]) -> None:
    run = recorded(
        TRAINING.replace("PORT = int(sys.argv[1])", "")
        + """
import http.client, http.server, multiprocessing, os, time
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def do_GET(self):
        time.sleep(0.05)
        self.send_response(200)
        self.send_header("Content-Length", "60000")
        self.end_headers()
        self.wfile.write(bytes(60000))
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
child = multiprocessing.get_context("fork").Process(target=server.serve_forever, daemon=True)
child.start()
to = http.client.HTTPConnection(*server.server_address)
def get(number):
    to.request("GET", f"/data/{number}")
    return len(to.getresponse().read())
train(get(n) for n in range(20))
"""
    )
    report = reported(run)
    assert report.verdict.headline.endswith("HIGHLY INPUT BOUND, waits on the network")
    assert "remote storage" not in report.verdict.sentence
    table = report.table("endpoints")
    assert table.title == "Connections"  # both ends are in the job: no remote storage
    assert "the job's own" in [row[-1] for row in table.rows]


def waiting(endpoint: str, phase: str | None, **connection: Any) -> Report:
    run = job(
        "receive", descriptor=f"socket:{endpoint}", received=16_000, phase=phase, has_stretches=True
    )
    run.connected(endpoint, received_bytes=640_000, answers=40, **connection)
    return reported(run)


def test_the_parts_of_a_wait_say_what_it_waited_for() -> None:
    report = waiting("data.example:443", "first byte")
    assert {part.key for part in report.wait} == {"network first byte"}
    assert report.verdict.headline == "HIGHLY INPUT BOUND, waits on remote storage"
    assert "on remote storage: data.example:443" in report.verdict.sentence
    assert in_report(report, "data.example:443")["answers"] == 40
    assert {part.key for part in waiting("data.example:443", None).wait} == {"network"}


def test_an_endpoint_of_the_job_or_one_that_connected_to_it_is_no_storage() -> None:
    for endpoint, peer in (("127.0.0.1:5000", 1), ("accepted:8888", None)):
        verdict = waiting(endpoint, "transfer", peer_process=peer).verdict
        assert verdict.headline == "HIGHLY INPUT BOUND, waits on the network"


@pytest.mark.parametrize(("received", "headline"), [(0, "the network"), (1, "remote storage")])
def test_a_connect_that_was_refused_does_not_make_an_end_of_the_job_remote(
    received: int, headline: str
) -> None:
    run = job(
        "receive",
        descriptor="socket:192.0.2.2:5000",
        received=16_000,
        phase="transfer",
        has_stretches=True,
    )
    run.connected("192.0.2.2:5000", received_bytes=640_000, answers=40, peer_process=1)
    run.connected("192.0.2.2:5000", received_bytes=received, sent_bytes=0)
    report = reported(run)
    assert report.verdict.headline == f"HIGHLY INPUT BOUND, waits on {headline}"


def test_of_several_endpoints_the_one_that_was_waited_for_longest_is_named() -> None:
    run = job(waker=READER)
    for number in range(40):
        start = number * STEP + 5 * MS
        for endpoint, begin, end in (("a.example:80", 0, 20), ("b.example:80", 20, 60)):
            run.blocked(
                "receive",
                start + begin * MS,
                start + end * MS,
                thread=READER,
                descriptor=f"socket:{endpoint}",
                received=16_000,
                phase="transfer",
            )
    sentence = reported(run).verdict.sentence
    assert "on remote storage: b.example:80 and 1 more" in sentence


def test_a_smaller_part_of_the_network_is_named_beside_the_largest_part() -> None:
    run = job(waker=READER)
    for number in range(40):
        start = number * STEP + 5 * MS
        run.blocked(
            "receive",
            start,
            start + 20 * MS,
            thread=READER,
            descriptor="socket:a.example:80",
            received=16_000,
            phase="first byte",
        )
    run.connected("a.example:80", received_bytes=640_000, answers=40)
    sentence = reported(run).verdict.sentence
    assert ", 20 % on remote storage: a.example:80)" in sentence


REFUSED_AT_TIMES = """
import urllib3
pool = urllib3.PoolManager(retries=urllib3.Retry(5, status_forcelist=[503], backoff_factor=0.1))
def get(number):
    return len(pool.request("GET", f"http://localhost:{PORT}/data/{number}").data)
train([get(2 * n), get(2 * n + 1)] for n in range(20))
"""


def test_refused_requests_and_the_time_that_they_cost(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text(TRAINING + REFUSED_AT_TIMES)
    statuses = [503 if n % 5 == 4 else 200 for n in range(45)]
    with object_store(Store(delay_s=0.02, statuses=statuses)) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
        refused = sum(status == 503 for _, _, status, _ in store.requests)
    watched = Monitor(run.folder)
    for _ in range(3):
        [far] = watched.look().remote
    assert dict(far.requests) == {"2xx": len(store.requests) - refused, "5xx": refused}
    assert far.endpoint == f"localhost:{store.port}"
    assert (far.connections, far.open_connections) == (store.connections, 0)
    assert far.received_bytes == pytest.approx(store.answered_bytes, rel=0.02)
    assert far.retries == refused
    assert far.request_s > 0.02 * len(store.requests)
    measures = measure(run)
    [row] = measures.endpoint_requests
    assert (row.endpoint, row.throttled, row.retries) == (
        f"localhost:{store.port}", refused, refused,
    )  # fmt: skip
    assert row.requests == len(store.requests) - 2  # those of the first batch come before
    assert not [gap for gap in report_of(measures).gaps if "network requests" in gap.what]
    finding = {one.rule: one for one in report_of(measures).findings}["N3"]
    assert f"{refused} of them refused as too many" in finding.evidence[0]


BY_BOTO3 = """
import boto3
from botocore.config import Config
config = Config(retries={"mode": "standard", "max_attempts": 6})
at = f"http://localhost:{PORT}"
s3 = boto3.client("s3", endpoint_url=at, region_name="us-east-1", config=config,
    aws_access_key_id="id", aws_secret_access_key="secret")
def get(n):
    return len(s3.get_object(Bucket="data", Key=str(n))["Body"].read())
"""
BY_URLLIB3 = """
import urllib3
pool = urllib3.PoolManager(retries=urllib3.Retry(6, status_forcelist=[503], backoff_factor=0.1))
def get(n):
    return len(pool.request("GET", f"http://localhost:{PORT}/data/{n}").data)
"""
# Retries that no client counts.
BY_HAND = """
import http.client
to = None
def get(n):
    global to
    while True:
        try:
            to = to or http.client.HTTPConnection("localhost", PORT)
            to.request("GET", f"/data/{n}")
            answer = to.getresponse()
            data = answer.read()
            if answer.status == 200:
                return len(data)
        except OSError:
            to = None
        time.sleep(0.1)
"""
IN_A_LOOP = """
import asyncio, aiohttp
loop, session = asyncio.new_event_loop(), None
async def asleep(s):
    global slept
    begun = time.perf_counter()
    await asyncio.sleep(s)
    slept += time.perf_counter() - begun
async def get_later(n):
    global session
    session = session or aiohttp.ClientSession()
    while True:
        try:
            async with session.get(f"http://localhost:{PORT}/data/{n}") as answer:
                data = await answer.read()
                if answer.status == 200:
                    return len(data)
        except aiohttp.ClientError:
            pass
        await asleep(0.1)
def get(n):
    return loop.run_until_complete(get_later(n))
"""
THREE_A_STEP = """
train([get(3 * n), get(3 * n + 1), get(3 * n + 2)] for n in range(20))
print(slept, file=open("slept", "w"))
"""
COUNTS_SLEEP = """
slept, sleep = 0.0, time.sleep
def counting(s):
    global slept
    begun = time.perf_counter()
    sleep(s)
    slept += time.perf_counter() - begun
time.sleep = counting
"""


@pytest.mark.parametrize(
    "get",
    [BY_BOTO3, BY_URLLIB3, BY_HAND, IN_A_LOOP],
    ids=["boto3", "urllib3", "by hand", "event loop"],
)
def test_seconds_lost_to_refusals_and_resets_are_those_of_the_server_s_log(
    get: str, recorded_command: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    for client in ("boto3", "aiohttp"):
        if f"import {client}" in get:
            pytest.importorskip(client)
    (tmp_path / "data").mkdir()
    for number in range(60):
        (tmp_path / "data" / str(number)).write_bytes(bytes(65536))
    program = tmp_path / "job.py"
    program.write_text(TRAINING + COUNTS_SLEEP + get + THREE_A_STEP)

    def choose(asked: Asked) -> str:
        # A tenth of all, none of them in the first batch, which comes before the training; of two
        # in a row the second is a retry: urllib3 sleeps before the second retry only.
        faults = {7: "503", 8: "503", 2: "reset"} if get == BY_URLLIB3 else {7: "503", 2: "reset"}
        return faults.get(asked.number % 20, "") if asked.number > 4 else ""

    with ObjectServer(tmp_path, 0.02, choose=choose, keep=True) as server:
        run = recorded_command([sys.executable, program, str(server.port)])
    asked = sorted(server.served, key=lambda row: row.begun_s)
    lost_s = 0.0
    for n, row in enumerate(asked):
        if row.status != "200":
            again = next(later for later in asked[n + 1 :] if later.path == row.path)
            lost_s += again.begun_s - row.begun_s
    failed = [row.status for row in asked if row.status != "200"]
    measures = measure(run)
    [row] = measures.endpoint_requests
    assert (row.requests, row.failed, row.throttled, row.retries) == (
        len(asked) - 3, len(failed), failed.count("503"), len(failed),
    )  # fmt: skip
    assert row.lost_s == pytest.approx(lost_s, rel=0.05)
    report = report_of(measures)
    backoff_s = next(part.s for part in report.wait if part.key == "network back-off")
    assert backoff_s == pytest.approx(float((work / "slept").read_text()), rel=0.05)
    assert backoff_s > 0.05
    assert all(part.key.startswith("network") for part in report.wait[:2])
    finding = {one.rule: one for one in report_of(measures).findings}["N3"]
    assert f"{len(failed)} retries" in finding.evidence[0]
