"""Calls of object clients whose HTTP is native code, against the log of the server."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from netservers import Store, object_store
from penstock_lab.objects import ObjectServer

OBSTORE = """
import asyncio, sys, obstore
from obstore.store import S3Store
store = S3Store("bucket", endpoint=f"http://localhost:{sys.argv[1]}", region="us-east-1",
    access_key_id="SECRETSECRET", secret_access_key="SECRETSECRET",
    client_options={"allow_http": True}, prefix="data")
for n in range(3):
    assert len(store.get(str(n)).bytes()) == 65536
assert sum(map(len, store.get("3").stream())) == 65536
assert len(obstore.get_range(store, "4", start=100, end=300)) == 200
assert len(obstore.get_range(store, "4", start=100, length=200)) == 200
assert sum(map(len, store.get_ranges("5", starts=[0, 60000], lengths=[10, 10]))) == 20
store.put("new", b"x" * 1000)
async def main():
    assert len(await (await store.get_async("6")).bytes_async()) == 65536
    assert sum([len(part) async for part in await store.get_async("7")]) == 65536
    assert len(await store.get_range_async("8", start=0, end=10)) == 10
asyncio.run(main())
try:
    store.get("missing")
except FileNotFoundError:
    pass
"""
CONNECTOR = """
import os, sys
os.environ |= {"AWS_ACCESS_KEY_ID": "SECRETSECRET", "AWS_SECRET_ACCESS_KEY": "SECRETSECRET"}
from s3torchconnector._s3client import S3Client, S3ClientConfig
client = S3Client("us-east-1", endpoint=f"http://127.0.0.1:{sys.argv[1]}",
    s3client_config=S3ClientConfig(force_path_style=True))
for n in range(4):
    assert len(client.get_object("bucket", str(n)).read()) == 65536
assert client.head_object("bucket", "4").size == 65536
assert sum(len(page.object_info) for page in client.list_objects("bucket")) == 5
try:
    client.get_object("bucket", "missing").read()
except Exception as error:
    print(error)
"""


def rows(run: Any, columns: str, where: str = "TRUE") -> list[tuple[Any, ...]]:
    text = f"SELECT {columns} FROM requests WHERE {where} ORDER BY process, request"
    return list(run.sql(text).fetchall())


def test_calls_of_obstore_are_the_server_s_requests(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("obstore", reason="pip install obstore")
    program = tmp_path / "client.py"
    program.write_text(OBSTORE)
    # The answer to the eleventh GET: obstore merges two near ranges into one request.
    with object_store(Store(delay_s=0.02, statuses=[*[200] * 10, 404])) as store:
        run = recorded_command([sys.executable, program, str(store.port)])
    of_server = Counter(
        (method, path.removeprefix("/bucket"), status, size if status != 404 else 0)
        for method, path, status, size in store.requests
        if not path.endswith("/5")
    )
    seen = rows(run, "method, path, status, received_bytes", "path NOT LIKE '%/5'")
    assert Counter(seen) == of_server
    assert sum(path.endswith("/5") for _, path, *_ in store.requests) == 1
    assert rows(run, "method, received_bytes", "path = '/data/5'") == [("GET", 20)]
    assert {*rows(run, "client, endpoint, bucket, is_operation")} == {
        ("obstore", f"localhost:{store.port}", "bucket", True)
    }
    assert rows(run, "sent_bytes", "method = 'PUT'") == [(1000,)]
    assert rows(run, "error, is_part", "status = 404") == [("FileNotFoundError", False)]
    assert not rows(run, "path", "duration_ns < 19e6 OR is_part")
    assert rows(run, "range_offset_bytes, range_bytes", "path = '/data/4'") == [(100, 200)] * 2
    assert not [path for path in Path(run.folder).rglob("*") if path.is_file() and
                b"SECRETSECRET" in path.read_bytes()]  # fmt: skip


def test_calls_of_s3torchconnector_are_the_server_s_requests(
    recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    pytest.importorskip("s3torchconnector", reason="pip install s3torchconnector")
    program = tmp_path / "client.py"
    program.write_text(CONNECTOR)
    (tmp_path / "bucket").mkdir()
    for n in range(5):
        (tmp_path / "bucket" / str(n)).write_bytes(bytes(65536))
    with ObjectServer(tmp_path, 0.02) as server:
        run = recorded_command([sys.executable, program, str(server.port)])
    # Each failing GET is also one request; the head and four GETs come from the adapter's rows.
    seen = rows(run, "operation, path, status, received_bytes", "error IS NULL")
    assert Counter(seen) == Counter(
        [("HEAD", "/4", 200, 0), *(("GET", f"/{n}", 200, 65536) for n in range(4)),
         ("LIST", "/", 200, 0)]
    )  # fmt: skip
    counts = server.counts
    assert (counts.requests, counts.lists, counts.bytes) == (7, 1, 4 * 65536)
    assert rows(run, "path, status", "error IS NOT NULL") == [("/missing", None)]
    assert {*rows(run, "client, endpoint, bucket, is_operation")} == {
        ("s3torchconnector", f"127.0.0.1:{server.port}", "bucket", True)
    }


def test_a_folder_behind_obstore_is_no_request(recorded: Callable[..., Any]) -> None:
    pytest.importorskip("obstore", reason="pip install obstore")
    run = recorded(
        """
        from obstore.store import LocalStore, MemoryStore
        for store in (MemoryStore(), LocalStore(".")):
            store.put("a", b"x")
            assert store.get("a").bytes() == b"x"
        """
    )
    assert rows(run, "path") == []
