"""penstock ceiling URL: a server with 1, 8 and 64 requests at once, against its delay and rate."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.errors import TierError
from penstock.explain.measures import measure
from penstock.explain.report import report_of
from penstock.runs.run import open_run
from penstock.trial.endpoint import ceilings_of_url
from penstock_lab.objects import ObjectServer

DELAY_S = 0.02
RATE_BPS = 60e6


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    folder = tmp_path / "served" / "bucket"
    folder.mkdir(parents=True)
    for number in range(3):
        (folder / f"{number}.bin").write_bytes(os.urandom(5 << 20))
    return folder


def test_a_server_s_delay_and_rate_are_measured(bucket: Path) -> None:
    with ObjectServer(bucket.parent, DELAY_S, RATE_BPS) as server:
        found = ceilings_of_url(f"{server.url}/bucket/", 3.0)
        asked = server.counts.gets
    by = {(one.request_bytes, one.threads): one for one in found}
    assert sorted(by) == [(size, n) for size in (64 << 10, 1 << 20) for n in (1, 8, 64)]
    assert {one.mount for one in found} == {server.url.removeprefix("http://")}
    alone, eight = by[64 << 10, 1], by[64 << 10, 8]
    assert 0.3 / DELAY_S < alone.calls_hz < 1 / DELAY_S
    assert 3 * alone.calls_hz < eight.calls_hz < 8 / DELAY_S
    assert by[1 << 20, 64].bandwidth_bps == pytest.approx(RATE_BPS, rel=0.25)
    counted = sum(one.calls_hz * one.seconds for one in found)
    assert counted < asked  # the requests that opened connections are not in the result


def test_an_object_by_its_bucket(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    (bucket / "small").write_bytes(b"few bytes")
    with ObjectServer(bucket.parent) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        found = ceilings_of_url("s3://bucket/small", 0.5)
    assert {one.request_bytes for one in found} == {9}


def test_what_cannot_be_measured_is_said(bucket: Path) -> None:
    (bucket / "empty").touch()
    with ObjectServer(bucket.parent) as server:
        for url, why in (
            (f"{server.url}/bucket/empty", "no object with bytes"),
            (f"{server.url}/bucket/absent", "is not there"),
            ("ftp://host/file", "no address of an object"),
            ("http://127.0.0.1:9/file", "refused"),
        ):
            with pytest.raises(TierError, match=why):
                ceilings_of_url(url, 0.5)
        server.choose = lambda asked: "500" if asked.end >= 0 else ""
        with pytest.raises(TierError, match="HTTP status 500 SlowDown; 3 tries"):
            ceilings_of_url(f"{server.url}/bucket/0.bin", 0.5)


JOB = """
import http.client, sys, time, penstock
to = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
for number in range(30):
    to.request("GET", "/bucket/0.bin", headers={"Range": f"bytes={number}-{number + 65535}"})
    data = to.getresponse().read()
    with penstock.step(number):
        time.sleep(0.002)
"""


def test_a_report_knows_what_its_server_gives(
    bucket: Path, recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text(JOB)
    with ObjectServer(bucket.parent, DELAY_S) as server:
        port = server.url.rpartition(":")[2]
        run = recorded_command([sys.executable, program, port])
        before = {one.rule: one for one in report_of(measure(run)).findings}
        assert "the endpoint answered" not in " ".join(before["N1"].evidence)
        made = subprocess.run(
            [PENSTOCK, "ceiling", f"{server.url}/bucket/", "--for", "2s", "--keep", run.folder]
            + ["--json"],
            capture_output=True,
            check=True,
        )
        rows = json.loads(made.stdout)
    assert len(rows) == 6
    with open_run(run.folder) as again:
        findings = {one.rule: one for one in report_of(measure(again)).findings}
    assert "the endpoint answered" in " ".join(findings["N1"].evidence)


AT_ONCE = """
import http.client, sys, threading, time, penstock
from concurrent.futures import ThreadPoolExecutor
local = threading.local()
def get(number):
    if not hasattr(local, "to"):
        local.to = http.client.HTTPConnection("127.0.0.1", int(sys.argv[1]))
    local.to.request("GET", f"/bucket/{number}.bin", headers={"Range": "bytes=0-524287"})
    return len(local.to.getresponse().read())
pool = ThreadPoolExecutor(8)
for number in range(30):
    list(pool.map(get, [n % 3 for n in range(8)]))
    with penstock.step(number):
        time.sleep(0.002)
"""


def test_a_job_at_its_server_s_rate_is_bound_by_it_and_not_by_latency(
    bucket: Path, recorded_command: Callable[..., Any], tmp_path: Path
) -> None:
    program = tmp_path / "job.py"
    program.write_text(AT_ONCE)
    with ObjectServer(bucket.parent, 0.01, 60e6) as server:
        run = recorded_command([sys.executable, program, server.url.rpartition(":")[2]])
        before = {one.rule for one in report_of(measure(run)).findings}
        subprocess.run(
            [PENSTOCK, "ceiling", f"{server.url}/bucket/", "--for", "2s", "--keep", run.folder],
            capture_output=True,
            check=True,
        )
    assert not before & {"N1", "N2"}  # N2 is not judged without a ceiling
    with open_run(run.folder) as again:
        findings = {one.rule: one for one in report_of(measure(again)).findings}
    assert "N1" not in findings
    assert "MB/s while waiting" in findings["N2"].evidence[0]
