"""Requests of HTTP clients, against the log of the server that answered them."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from netservers import HALF, RESET, Store, make_certificate, object_store
from penstock.adapters import http_async
from penstock.explain.measures import measure
from penstock.recording import recorder
from penstock_lab.objects import Asked, ObjectServer

SECRET = "SECRETSECRET"
HTTP_CLIENT = """
import http.client, sys
PORT = int(sys.argv[1])
to = http.client.HTTPConnection("localhost", PORT)
for n in range(6):
    headers = {"Authorization": "SECRETSECRET"}
    to.request("GET", f"/data/{n}?X-Amz-Signature=SECRETSECRET", headers=headers)
    to.getresponse().read()
to.request("GET", "/data/9", headers={"Range": "bytes=100-299"})
assert len(to.getresponse().read()) == 200
to.request("HEAD", "/data/9")
to.getresponse().read()
to.request("PUT", "/new", body=b"x" * 1000)
to.getresponse().read()
"""
URLLIB = """
import sys, urllib.error, urllib.request
PORT = int(sys.argv[1])
for n in range(6):
    try:
        with urllib.request.urlopen(f"http://localhost:{PORT}/data/{n}?sig=SECRETSECRET") as body:
            while body.read(10_000):
                pass
    except urllib.error.HTTPError as error:
        error.read()
"""
URLLIB3 = """
import sys, urllib3
PORT = int(sys.argv[1])
pool = urllib3.PoolManager()
for n in range(6):
    pool.request("GET", f"http://localhost:{PORT}/data/{n}", fields={"sig": "SECRETSECRET"})
"""
REQUESTS = """
import sys, requests
PORT = int(sys.argv[1])
with requests.Session() as session:
    for n in range(6):
        url = f"http://SECRETSECRET:SECRETSECRET@localhost:{PORT}/data/{n}?sig=SECRETSECRET"
        with session.get(url, stream=True) as answer:
            sum(map(len, answer.iter_content(4096)))
"""
BOTO3 = """
import sys, boto3
from botocore.config import Config
PORT = int(sys.argv[1])
s3 = boto3.client("s3", endpoint_url=f"http://localhost:{PORT}", region_name="us-east-1",
    aws_access_key_id="SECRETSECRET", aws_secret_access_key="SECRETSECRET",
    config=Config(retries={"total_max_attempts": 1}))
for n in range(6):
    try:
        s3.get_object(Bucket="bucket", Key=f"data/{n}")["Body"].read()
    except Exception as error:
        assert "404" in str(error) or "503" in str(error), error
s3.head_object(Bucket="bucket", Key="data/9")
s3.put_object(Bucket="bucket", Key="new", Body=b"x" * 1000)
s3.get_object(Bucket="bucket", Key="data/9", Range="bytes=100-299")["Body"].read()
"""
AIOHTTP = """
import asyncio, sys, aiohttp
PORT = int(sys.argv[1])
async def main():
    async with aiohttp.ClientSession() as session:
        for n in range(6):
            url = f"http://localhost:{PORT}/data/{n}?sig=SECRETSECRET"
            async with session.get(url, headers={"Authorization": "SECRETSECRET"}) as answer:
                await answer.read()
        url = f"http://localhost:{PORT}/data/9"
        async with session.get(url, headers={"Range": "bytes=100-299"}) as answer:
            assert len(await answer.read()) == 200
        async with session.head(url):
            pass
        async with session.put(f"http://localhost:{PORT}/new", data=b"x" * 1000):
            pass
asyncio.run(main())
"""
HTTPX = """
import sys, httpx2
PORT = int(sys.argv[1])
with httpx2.Client() as client:
    for n in range(6):
        url = f"http://SECRETSECRET:SECRETSECRET@localhost:{PORT}/data/{n}?sig=SECRETSECRET"
        client.get(url).content
    url = f"http://localhost:{PORT}/data/9"
    assert len(client.get(url, headers={"Range": "bytes=100-299"}).content) == 200
    client.head(url)
    client.put(f"http://localhost:{PORT}/new", content=b"x" * 1000)
"""
HTTPX_ASYNC = """
import asyncio, sys, httpx2
PORT = int(sys.argv[1])
async def main():
    async with httpx2.AsyncClient() as client:
        async def get(n):
            url = f"http://localhost:{PORT}/data/{n}?sig=SECRETSECRET"
            async with client.stream("GET", url) as answer:
                return sum([len(part) async for part in answer.aiter_bytes()])
        for n in range(6):
            await get(n)
        url = f"http://localhost:{PORT}/data/9"
        await client.get(url, headers={"Range": "bytes=100-299"})
        await client.head(url)
        await client.put(f"http://localhost:{PORT}/new", content=b"x" * 1000)
asyncio.run(main())
"""
CLIENTS = {
    "http.client": HTTP_CLIENT,
    "urllib": URLLIB,
    "urllib3": URLLIB3,
    "requests": REQUESTS,
    "boto3": BOTO3,
    "aiohttp": AIOHTTP,
    "httpx2": HTTPX,
    "httpx2 async": HTTPX_ASYNC,
    "httpx": HTTPX.replace("httpx2", "httpx"),
}
NAMES = {
    "urllib": "http.client",
    "requests": "urllib3",
    "boto3": "botocore",
    "httpx2 async": "httpx2",
}


def rows(run: Any, columns: str, where: str = "TRUE") -> list[tuple[Any, ...]]:
    text = f"SELECT {columns} FROM requests WHERE {where} ORDER BY process, request"
    return list(run.sql(text).fetchall())


def holds(folder: Path, secret: bytes) -> list[Path]:
    """The files of a run folder that hold these bytes."""
    return [path for path in folder.rglob("*") if path.is_file() and secret in path.read_bytes()]


@pytest.mark.parametrize("client", CLIENTS)
def test_requests_bytes_and_statuses_are_the_server_s(
    client: str, recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    if client.startswith(("aiohttp", "httpx")):
        pytest.importorskip(client.split()[0])
    program = tmp_path / "client.py"
    program.write_text(CLIENTS[client])
    with object_store(Store(delay_s=0.02, statuses=[200, 404, 200, 503])) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    said = rows(run, "method, path, status, received_bytes")
    assert Counter(said) == Counter(
        (method, path.partition("?")[0], status, 0 if method == "HEAD" else size)
        for method, path, status, size in store.requests
    )
    assert {row[0] for row in rows(run, "endpoint")} == {f"localhost:{store.port}"}
    assert {row[0] for row in rows(run, "client")} == {NAMES.get(client, client)}
    assert not rows(run, "request", "error IS NOT NULL OR is_part OR attempt > 0")
    assert not rows(run, "request", "first_byte_ns < 19e6 OR first_byte_ns > duration_ns")
    assert not rows(run, "request", "thread IS NULL OR requests <> 1")
    assert not holds(Path(run.folder), SECRET.encode())
    counted = run.sql(
        "SELECT c.connection, any_value(c.answers), count(*) FROM requests JOIN connections AS c "
        "USING (process, connection) GROUP BY 1"
    ).fetchall()
    assert sum(n for *_, n in counted) == len(store.requests)
    is_put = client == "boto3"  # which awaits a "100 continue"
    assert all(n <= answers <= n + is_put for _, answers, n in counted)
    if client not in ("urllib", "urllib3", "requests"):
        [asked] = rows(run, "range_offset_bytes, range_bytes", "status = 206")
        assert asked == (100, 200)
        [(sent,)] = rows(run, "sent_bytes", "method = 'PUT'")
        assert sent >= 1000  # in chunks with a checksum, where botocore adds one
    if client == "boto3":
        assert {row[0] for row in rows(run, "bucket")} == {"bucket"}
        assert Counter(row[0] for row in rows(run, "operation")) == {"GET": 7, "HEAD": 1, "PUT": 1}


KINDS = """
import sys, {module}
PORT = int(sys.argv[1])
for name in ("chunks", "gzip", "redirect", "data"):
    for n in range(3):
        {get}
"""
GET_BY_AIOHTTP = """
import aiohttp, asyncio
async def get(url):
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.read()
"""
READERS = {
    "aiohttp": "asyncio.run(get(f'http://localhost:{PORT}/{name}/{n}'))",
    "httpx2": "httpx2.get(f'http://localhost:{PORT}/{name}/{n}', follow_redirects=True).content",
    "urllib": "urllib.request.urlopen(f'http://localhost:{PORT}/{name}/{n}').read()",
    "urllib3": "urllib3.request('GET', f'http://localhost:{PORT}/{name}/{n}').data",
    "requests": "requests.get(f'http://localhost:{PORT}/{name}/{n}').content",
}


@pytest.mark.parametrize("module", READERS)
def test_bodies_in_chunks_compressed_and_redirected_are_counted_as_sent(
    module: str, recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    program = tmp_path / "client.py"
    imported = "urllib.request" if module == "urllib" else module
    text = KINDS.format(module=imported, get=READERS[module])
    program.write_text(GET_BY_AIOHTTP + text if module == "aiohttp" else text)
    with object_store(Store(delay_s=0.001, body=bytes(range(256)) * 300)) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    said = rows(run, "method, path, status, received_bytes")
    assert Counter(said) == Counter(store.requests)
    assert not rows(run, "request", "error IS NOT NULL OR is_part OR attempt > 0")
    assert len(store.requests) == 15


HELPER = """
import sys, time
PORT = int(sys.argv[1])
slept, sleep = 0.0, time.sleep
def counting(s):
    global slept
    begun = time.perf_counter()
    sleep(s)
    slept += time.perf_counter() - begun
time.sleep = counting
"""
RETRIES = {
    "urllib3": """
import urllib3
pool = urllib3.PoolManager(retries=urllib3.Retry(10, status_forcelist=[503], backoff_factor=0.05))
for n in range(30):
    assert len(pool.request("GET", f"http://localhost:{PORT}/data/{n}").data) == 65536
""",
    "boto3": """
import boto3, random
from botocore.config import Config
random.seed(3)
s3 = boto3.client("s3", endpoint_url=f"http://localhost:{PORT}", region_name="us-east-1",
    aws_access_key_id="x", aws_secret_access_key="x",
    config=Config(retries={"max_attempts": 10, "mode": "standard"}))
for n in range(30):
    assert len(s3.get_object(Bucket="data", Key=str(n))["Body"].read()) == 65536
""",
    "own loop": """
import urllib.request
def get(n):
    while True:
        try:
            with urllib.request.urlopen(f"http://localhost:{PORT}/data/{n}") as body:
                return len(body.read())
        except OSError:
            time.sleep(0.1)
for n in range(30):
    assert get(n) == 65536
""",
}


@pytest.mark.parametrize("client", RETRIES)
def test_retries_and_lost_seconds_are_those_of_the_faults_injected(
    client: str, recorded_command: Callable[..., Any], tmp_path: Path, work: Path
) -> None:
    program = tmp_path / "client.py"
    end = "\nprint(slept, file=open('slept', 'w'))\n"
    program.write_text(HELPER + RETRIES[client] + end)
    faults = [503 if n % 10 in (3, 4) else RESET if n % 10 == 7 else 200 for n in range(40)]
    with object_store(Store(delay_s=0.02, statuses=faults)) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    failed = [row for row in store.requests if row[2] != 200]
    assert len(failed) >= 6
    [row] = measure(run).remote_requests
    assert row.retries == len(failed) == row.broken + row.unanswered
    assert row.throttled == row.broken == sum(status == 503 for *_, status, _ in store.requests)
    assert row.requests == len(store.requests) == row.ok + len(failed)
    slept_s = float((work / "slept").read_text())
    assert row.backoff_s == pytest.approx(slept_s, rel=0.05)
    assert row.lost_s == pytest.approx(slept_s + 0.0215 * len(failed), rel=0.06)
    assert 0.02 <= row.first_byte_p50_s <= row.first_byte_p99_s <= row.duration_p99_s


def test_a_body_that_is_lost_or_not_read_to_its_end_is_marked(recorded_command: Any) -> None:
    program = """
import http.client, sys, urllib.request
url = f"http://localhost:{sys.argv[1]}/data"
try:
    urllib.request.urlopen(url).read()
except (http.client.IncompleteRead, ConnectionResetError):
    pass
body = urllib.request.urlopen(url)
body.read(1000)
body.close()
try:
    urllib.request.urlopen("http://localhost:1/data")
except OSError:
    pass
"""
    with object_store(Store(delay_s=0.001, statuses=[HALF])) as store:
        run = recorded_command([sys.executable, "-c", program, str(store.port)])
    lost, closed, refused = rows(run, "status, received_bytes, is_part, error")
    assert (lost[0], lost[2]) == (200, True)
    assert lost[3] in ("IncompleteRead", "ConnectionResetError")
    assert closed == (200, 1000, True, None)
    assert refused == (None, 0, False, "ConnectionRefusedError")


BAD_ANSWERS = """
import sys, os, urllib.request, urllib3
PORT = int(sys.argv[1])
pool = urllib3.PoolManager(retries=False, timeout=0.3)
for n in range(5):
    try:
        pool.request("GET", f"http://localhost:{PORT}/data/{n}").data
    except Exception as error:
        print(n, type(error).__name__)
try:
    urllib.request.urlopen(f"http://localhost:{PORT}/data/0").read()
except Exception as error:
    print("circle", type(error).__name__)
"""


def test_answers_that_are_late_cut_false_or_in_circles_are_recorded_as_the_client_met_them(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / str(number)).write_bytes(bytes(65536))
    program = tmp_path / "client.py"
    program.write_text(BAD_ANSWERS)
    faults = ["half-open", "hang", "short", "hang-mid", ""]

    def choose(asked: Asked) -> str:
        return faults[asked.number] if asked.number < len(faults) else "redirect"

    with ObjectServer(tmp_path, 0.001, choose=choose) as server:
        run = recorded_command([sys.executable, program, str(server.port)])
        asked = server.counts.requests
    said = rows(run, "path, status, received_bytes, error, is_part")
    half_open, hung, short, hung_mid, whole, *circle = said
    assert half_open == ("/data/0", None, 0, "RemoteDisconnected", False)
    assert hung == ("/data/1", None, 0, "TimeoutError", False)
    assert short[:2] == ("/data/2", 200)
    assert 0 < short[2] < 65536
    assert short[4]
    assert hung_mid[:2] == ("/data/3", 200)
    assert hung_mid[3:] == ("TimeoutError", True)
    assert whole == ("/data/4", 200, 65536, None, False)
    assert {row[1] for row in circle} == {302}
    assert len(said) == asked
    [row] = measure(run).remote_requests
    assert (row.requests, row.unanswered, row.moved) == (asked, 2, len(circle))


THROUGH_A_PROXY = """
import os, sys, urllib.request
os.environ["http_proxy"] = f"http://user:SECRETSECRET@localhost:{sys.argv[1]}"
os.environ.pop("no_proxy", None)
for n in range(3):
    urllib.request.urlopen(f"http://far.example/data/{n}?sig=SECRETSECRET").read()
"""


def test_a_request_through_a_proxy_is_one_to_the_host_behind_it(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    program = tmp_path / "client.py"
    program.write_text(THROUGH_A_PROXY)
    with object_store(Store(delay_s=0.001)) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    assert rows(run, "endpoint, path, status, received_bytes") == [
        ("far.example:80", f"/data/{n}", 200, 65536) for n in range(3)
    ]
    asked = {endpoint for (endpoint,) in run.sql("SELECT endpoint FROM connections").fetchall()}
    assert asked == {f"localhost:{store.port}"}
    assert not holds(Path(run.folder), SECRET.encode())


DOTTED = """
import sys, boto3
s3 = boto3.client("s3", endpoint_url=f"http://localhost:{sys.argv[1]}", region_name="us-east-1",
    aws_access_key_id="x", aws_secret_access_key="x")
for n in range(2):
    s3.get_object(Bucket="data.set.v1", Key=f"a.b/{n}.tar")["Body"].read()
"""


def test_a_bucket_with_dots_in_its_name_is_named_whole(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("boto3")
    program = tmp_path / "client.py"
    program.write_text(DOTTED)
    with object_store(Store(delay_s=0.001)) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    assert rows(run, "bucket, path, operation") == [
        ("data.set.v1", f"/data.set.v1/a.b/{n}.tar", "GET") for n in range(2)
    ]


def test_threads_forked_processes_and_loaders_ask_for_themselves(recorded: Any) -> None:
    pytest.importorskip("torch")
    with object_store(Store(delay_s=0.01)) as store:
        run = recorded(
            f"""
            import http.client, os, threading, urllib.request, torch
            def get(n):
                urllib.request.urlopen("http://localhost:{store.port}/d/%d" % n).read()
            kept = http.client.HTTPConnection("localhost", {store.port})
            kept.request("GET", "/kept")
            answer = kept.getresponse()
            threads = [threading.Thread(target=get, args=(n,)) for n in range(3)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
            if not os.fork():
                get(10)
                answer.close()
                os._exit(0)
            os.wait()
            answer.read()
            class Data(torch.utils.data.Dataset):
                def __len__(self): return 8
                def __getitem__(self, n):
                    get(100 + n)
                    return n
            list(torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=2))
            """
        )
    assert len(rows(run, "request")) == len(store.requests) == 13
    assert len(set(rows(run, "process"))) == 4
    assert len(set(rows(run, "thread", "path IN ('/d/0', '/d/1', '/d/2')"))) == 3
    assert rows(run, "received_bytes", "path = '/kept'") == [(65536,)]
    batches = dict(rows(run, "path, batch", "batch IS NOT NULL"))
    assert batches == {f"/d/{100 + n}": n // 2 for n in range(8)}


def test_a_request_over_tls_is_seen(recorded_command: Any, made_once: Any) -> None:
    certificate = made_once(("certificate.pem",), make_certificate)
    program = """
import http.client, ssl, sys
to = http.client.HTTPSConnection(
    "localhost", int(sys.argv[1]), context=ssl._create_unverified_context())
for n in range(3):
    to.request("GET", f"/{n}?sig=SECRETSECRET")
    to.getresponse().read()
"""
    with object_store(Store(delay_s=0.001), certificate) as store:
        run = recorded_command([sys.executable, "-c", program, str(store.port)])
    assert rows(run, "path, received_bytes") == [(f"/{n}", 65536) for n in range(3)]
    assert not holds(Path(run.folder), SECRET.encode())


def test_requests_of_event_loops_that_fail_or_are_not_read_are_marked(
    recorded_command: Any,
) -> None:
    for module in ("aiohttp", "httpx2", "aiobotocore"):
        pytest.importorskip(module)
    program = """
import asyncio, sys, aiohttp, httpx2
from aiobotocore.session import get_session
PORT = int(sys.argv[1])
async def main():
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://localhost:{PORT}/data") as answer:
                await answer.read()
        except aiohttp.ClientError:
            pass
    async with httpx2.AsyncClient() as client:
        for _ in range(2):
            try:
                await client.get(f"http://localhost:{PORT}/data")
            except httpx2.HTTPError:
                pass
        async with client.stream("GET", f"http://localhost:{PORT}/data") as answer:
            async for _ in answer.aiter_raw():
                break
    async with get_session().create_client("s3", endpoint_url=f"http://localhost:{PORT}",
            region_name="r", aws_access_key_id="x", aws_secret_access_key="x") as s3:
        answer = await s3.get_object(Bucket="b", Key="k")
        assert len(await answer["Body"].read()) == 65536
asyncio.run(main())
"""
    faults = [HALF, RESET, HALF, 200, 503, 200]
    with object_store(Store(delay_s=0.02, statuses=faults, body=bytes(65536))) as store:
        run = recorded_command([sys.executable, "-c", program, str(store.port)])
    said = rows(run, "client, status, is_part, error IS NULL, operation, bucket, attempt")
    failed = [
        (client, status, status is not None, False, "GET", None, 0)
        for client, status in (("aiohttp", 200), ("httpx2", None), ("httpx2", 200))
    ]
    assert said[:3] == failed
    assert said[3] == ("httpx2", 200, True, True, "GET", None, 0)
    assert said[4:] == [
        ("aiobotocore", 503, False, True, "GET", "b", 0),
        ("aiobotocore", 200, False, True, "GET", "b", 1),
    ]
    [(backoff_ns,)] = rows(run, "backoff_ns", "attempt = 1")
    assert backoff_ns > 0


def test_a_client_of_another_shape_is_left_alone_and_said(monkeypatch: Any) -> None:
    notes: list[str] = []
    monkeypatch.setattr(recorder, "note", lambda key, value: notes.append(f"{key}: {value}"))

    class HTTPTransport:
        def handle_request(self, request: Any) -> Any:
            return request

    module = ModuleType("httpx._transports.default")
    module.HTTPTransport = HTTPTransport  # type: ignore[attr-defined]
    before = HTTPTransport.handle_request
    for patch in http_async.PATCHES.values():
        patch(module)
    assert HTTPTransport.handle_request is before
    assert any(note.startswith("not measured: requests of httpx: this version") for note in notes)
