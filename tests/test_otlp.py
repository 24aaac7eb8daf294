"""`penstock runs --otlp`: what a collector on loopback receives, read by OpenTelemetry's own
messages."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fixtures import PENSTOCK
from penstock.errors import ForeignError
from penstock.explain.fleet import fleet_of
from penstock.interop.otlp import HEADERS, RUNS_A_REQUEST, send
from test_fleet import ONE, TWO, kept


class Collector(HTTPServer):
    """Keeps requests; answers with the statuses and bodies that a test puts in."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.received: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[tuple[int, dict[str, str], bytes]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, dict(self.headers), body))
        answers = self.server.answers
        status, headers, text = answers.pop(0) if answers else (200, {}, b"{}")
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(text))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, *_: Any) -> None:
        pass


def runs(*words: str) -> subprocess.CompletedProcess[str]:
    command = [PENSTOCK, "runs", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def collector() -> Iterator[Collector]:
    server = Collector()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def points_of(body: bytes) -> dict[tuple[str, str, str], float]:
    """Return values by run, gauge and cause or rule, as OpenTelemetry's messages read them."""
    json_format = pytest.importorskip("google.protobuf.json_format", reason="no protobuf")
    service = pytest.importorskip(
        "opentelemetry.proto.collector.metrics.v1.metrics_service_pb2",
        reason="no opentelemetry-proto: pip install opentelemetry-proto",
    )
    message = json_format.Parse(body, service.ExportMetricsServiceRequest())
    points = {}
    for resource in message.resource_metrics:
        named = {word.key: word.value.string_value for word in resource.resource.attributes}
        for metric in resource.scope_metrics[0].metrics:
            for point in metric.gauge.data_points:
                assert point.time_unix_nano >= point.start_time_unix_nano > 0
                words = [word.value.string_value for word in point.attributes]
                points[named["penstock.run"], metric.name, "".join(words)] = point.as_double
    return points


def test_a_collector_receives_what_the_summaries_say(collector: Collector) -> None:
    assert send([ONE, TWO], collector.address) == 2
    ((path, headers, body),) = collector.received
    assert path == "/v1/metrics"
    assert headers["Content-Type"] == "application/json"
    points = points_of(body)
    assert points["a", "penstock.run.wall", ""] == 3600
    assert points["a", "penstock.run.wait", "data: storage"] == 1800
    assert points["a", "penstock.run.gain", "W1"] == 900
    assert points["b", "penstock.run.processes", ""] == 8
    assert ("b", "penstock.run.gain", "") not in points
    waits = {key: value for key, value in points.items() if key[1] == "penstock.run.wait"}
    assert sum(waits.values()) == sum([*ONE.waits_s.values(), *TWO.waits_s.values()])


def test_many_runs_are_sent_in_parts_each_once(collector: Collector) -> None:
    many = [replace(ONE, run=f"r{n}") for n in range(2 * RUNS_A_REQUEST + 1)]
    assert send(iter(many), collector.address) == len(many)
    sent = [key[0] for _, _, body in collector.received for key in points_of(body)]
    assert len(collector.received) == 3
    assert set(sent) == {run.run for run in many}
    assert sent.count("r7") == len(points_of(collector.received[0][2])) / RUNS_A_REQUEST


def test_a_busy_collector_is_asked_again_and_not_for_ever(collector: Collector) -> None:
    pauses: list[float] = []
    collector.answers = [(503, {"Retry-After": "3"}, b""), (429, {"Retry-After": "9999"}, b"")]
    assert send([ONE], collector.address, pauses.append) == 1
    assert pauses == [3, 10]
    assert len({body for _, _, body in collector.received}) == 1
    collector.answers = [(503, {}, b"")] * 9
    with pytest.raises(ForeignError, match="status 503"):
        send([ONE], collector.address, pauses.append)
    assert len(collector.answers) == 5


def test_rejected_points_and_refusals_are_errors(collector: Collector) -> None:
    told = {"partialSuccess": {"rejectedDataPoints": "3", "errorMessage": "too old"}}
    collector.answers = [(200, {}, json.dumps(told).encode()), (400, {}, b"no"), (200, {}, b"<ok>")]
    with pytest.raises(ForeignError, match="3 points were rejected: too old"):
        send([ONE], collector.address)
    with pytest.raises(ForeignError, match="status 400"):
        send([ONE], collector.address)
    assert send([ONE], collector.address) == 1


def test_credentials_go_to_the_named_collector_only(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEADERS, "authorization=Bearer%20abc, x-scope = 7")
    collector.answers = [(302, {"Location": f"{collector.address}/elsewhere"}, b"")]
    with pytest.raises(ForeignError, match="status 302"):
        send([ONE], collector.address)
    ((_, headers, _),) = collector.received
    received = {name.lower(): value for name, value in headers.items()}
    assert received["authorization"] == "Bearer abc"
    assert received["x-scope"] == "7"


@pytest.mark.parametrize(
    "address",
    ["", "collector:4318", "file:///etc/passwd", "http://", "http://u:secret@host:1", "http://h:x"],
)
def test_an_address_of_no_collector_is_refused_without_its_password(address: str) -> None:
    with pytest.raises(ForeignError, match="no address of a collector") as error:
        send([ONE], address)
    assert "secret" not in str(error.value)


def test_nobody_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ForeignError, match=r"not sent: .*refused"):
        send([ONE], "http://127.0.0.1:9", lambda _: None)


def test_the_command_sends_the_runs_that_it_sums(tmp_path: Path, collector: Collector) -> None:
    kept(tmp_path / "a", ONE)
    kept(tmp_path / "b", TWO)
    ended = runs(str(tmp_path), "--otlp", f"{collector.address}/v1/metrics", "--json")
    assert ended.returncode == 0, ended.stderr
    assert "2 runs sent" in ended.stderr
    assert {key[0] for key in points_of(collector.received[0][2])} == {"a", "b"}
    assert json.loads(ended.stdout)["n_runs"] == fleet_of(tmp_path).n_runs == 2
    failed = runs(str(tmp_path), "--otlp", "http://127.0.0.1:9")
    assert failed.returncode == 2
    assert "not sent" in failed.stderr
