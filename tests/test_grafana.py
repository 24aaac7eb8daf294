"""contrib/grafana/penstock.json: each panel has values in a Prometheus that reads the watch."""

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.explain.live import Live, RemoteTraffic, Stall
from penstock.views import metrics
from test_live import some

DASHBOARD = Path(__file__).parent.parent / "contrib/grafana/penstock.json"
EVERY_S = 0.5


def panels() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return rows


def expressions() -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]]


def test_the_dashboard_asks_for_names_that_the_watch_serves() -> None:
    asked = {name for _, text in expressions() for name in re.findall(r"penstock_\w+", text)}
    assert asked <= set(metrics.METRICS)
    assert len(asked) > 15


def test_no_two_panels_overlap_and_each_says_what_it_shows() -> None:
    taken = set[tuple[int, int]]()
    for panel in panels():
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        assert panel["description"].endswith(".")
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())


def at_second(elapsed_s: float) -> Live:
    """A job of which a quarter of the time is data wait, at 10 steps/s and 1 MB/s."""
    done = int(elapsed_s * 1e6)
    stall = Stall(elapsed_s, elapsed_s / 4, elapsed_s / 8, 0.0, 0.0, 0.0)
    store = RemoteTraffic("store:443", 1, 1, done, 10, (("2xx", int(elapsed_s * 4)),), 0, 1.0, 0.0)
    value = some(steps=int(elapsed_s * 10), total=stall, recent=stall, remote=(store,))
    (posix, *others) = value.traffic
    return replace(value, traffic=(replace(posix, read_bytes=done), *others))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list[Any]]]:
    """What Prometheus answers to each expression when its scrapes fill the window of a rate."""
    pytest.importorskip("prometheus_client", reason="pip install 'penstock[metrics]'")
    if not shutil.which("prometheus"):
        pytest.skip("needs Prometheus: apt-get install prometheus, which also starts a server")
    folder = tmp_path_factory.mktemp("prometheus")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with metrics.Metrics("0") as server:
        (folder / "prometheus.yml").write_text(
            f"global: {{scrape_interval: {int(EVERY_S * 1000)}ms}}\n"
            "scrape_configs:\n"
            f"- {{job_name: training, static_configs: [{{targets: ['{server.address}']}}]}}\n"
        )
        with subprocess.Popen(
            ["prometheus", "--config.file=prometheus.yml", "--storage.tsdb.path=data",
             f"--web.listen-address=127.0.0.1:{port}"],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        ) as prometheus:  # fmt: skip
            try:
                begun_s = time.monotonic()
                while _scrapes(port) < 9:
                    elapsed_s = time.monotonic() - begun_s
                    assert elapsed_s < 120
                    server.tell(at_second(elapsed_s))
                    time.sleep(EVERY_S / 5)
                yield {text: _asked(port, text) for _, text in expressions()}
            finally:
                prometheus.terminate()


def _scrapes(port: int) -> int:
    try:
        rows = _asked(port, "count_over_time(penstock_steps_total[5s])")
    except OSError:  # Prometheus begins to listen after some seconds
        return 0
    return int(rows[0]["value"][1]) if rows else 0


def _asked(port: int, text: str) -> list[Any]:
    query = text.replace("$job", ".*").replace("$__rate_interval", "5s")
    url = f"http://127.0.0.1:{port}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=60) as answer:
        rows: list[Any] = json.load(answer)["data"]["result"]
        return rows


@pytest.mark.alone
def test_every_expression_has_a_value(answers: dict[str, list[Any]]) -> None:
    assert [text for text, rows in answers.items() if not rows] == []


@pytest.mark.alone
def test_the_rates_are_those_of_the_job(answers: dict[str, list[Any]]) -> None:
    def value_of(title: str, part: str) -> float:
        (text,) = (text for name, text in expressions() if name == title and part in text)
        return float(answers[text][0]["value"][1])

    assert value_of("Steps per second", "steps") == pytest.approx(10, rel=0.2)
    assert value_of("Stall", "stall_ratio") == pytest.approx(0.25, abs=0.01)
    assert value_of("Where the time goes", "data_wait_seconds") == pytest.approx(0.25, abs=0.01)
    assert value_of("Bytes from endpoints", "received") == pytest.approx(1e6, rel=0.2)
    rows = answers[next(text for _, text in expressions() if "read_bytes" in text)]
    read = {row["metric"]["layer"]: float(row["value"][1]) for row in rows}
    assert read["posix"] == pytest.approx(1e6, rel=0.2)
