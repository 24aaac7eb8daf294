"""Requests of HTTP clients, against the log of the server that answered them."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netservers import Store, object_store

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
CLIENTS = {
    "http.client": HTTP_CLIENT,
    "urllib": URLLIB,
    "urllib3": URLLIB3,
    "requests": REQUESTS,
    "boto3": BOTO3,
}
NAMES = {"urllib": "http.client", "requests": "urllib3", "boto3": "botocore"}


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
    if client in ("http.client", "boto3"):
        [asked] = rows(run, "range_offset_bytes, range_bytes", "status = 206")
        assert asked == (100, 200)
        [(sent,)] = rows(run, "sent_bytes", "method = 'PUT'")
        assert sent >= 1000  # in chunks with a checksum, where botocore adds one
    if client == "boto3":
        assert {row[0] for row in rows(run, "bucket")} == {"bucket"}
        assert Counter(row[0] for row in rows(run, "operation")) == {"GET": 7, "HEAD": 1, "PUT": 1}
