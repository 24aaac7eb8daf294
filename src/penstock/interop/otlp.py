"""Send summaries of runs to a collector, by OpenTelemetry's protocol: OTLP over HTTP, in JSON.

Knows summaries and the protocol (opentelemetry.io/docs/specs/otlp, metrics, 1.x).  Each run is a
resource with gauges at the time of the run's end, so a second sending repeats equal points.
"""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote, urlsplit

from penstock.errors import ForeignError
from penstock.explain.summary import CAUSES, RunSummary

__all__ = ["HEADERS", "metrics_of", "send"]

HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"  # name=value pairs, as for every exporter
PATH = "/v1/metrics"
RUNS_A_REQUEST = 200
TRIES = 4
TRY_AGAIN = (429, 502, 503, 504)
LONGEST_PAUSE_S = 10.0
TIMEOUT_S = 30.0
MOST_ANSWER_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class _Gauge:
    name: str
    unit: str
    says: str
    values: Callable[[RunSummary], Iterable[tuple[dict[str, str], float]]]


def _of_a_run(pick: Callable[[RunSummary], float]) -> Callable[[RunSummary], Any]:
    return lambda run: [({}, pick(run))]


GAUGES = (
    _Gauge("penstock.run.life", "s", "from start to end", _of_a_run(lambda run: run.life_s)),
    _Gauge("penstock.run.wall", "s", "wall time of the training", _of_a_run(lambda r: r.wall_s)),
    _Gauge("penstock.run.read", "By", "read from data files", _of_a_run(lambda r: r.read_bytes)),
    _Gauge("penstock.run.steps", "{step}", "of one process", _of_a_run(lambda r: r.steps)),
    _Gauge(
        "penstock.run.processes", "{process}", "training processes", _of_a_run(lambda r: r.n_mains)
    ),
    _Gauge(
        "penstock.run.wait",
        "s",
        "wall time of one training process by cause of the wait",
        lambda run: [({"cause": CAUSES[key]}, s) for key, s in run.waits_s.items()],
    ),
    _Gauge(
        "penstock.run.gain",
        "s",
        "largest possible gain by rule",
        lambda run: [({"rule": rule}, s) for rule, s in run.findings.items()],
    ),
)


def send(
    runs: Iterable[RunSummary], address: str, pause: Callable[[float], None] = time.sleep
) -> int:
    """Send runs to a collector, and return their number.

    address: of the collector, http://host:4318; the path /v1/metrics is added to an address without
    a path.  Raises ForeignError: no such address, no answer, or the collector rejects points.
    """
    url = _url(address)
    headers = {"Content-Type": "application/json", **_headers(os.environ.get(HEADERS, ""))}
    n_sent = 0
    for part in _parts(iter(runs)):
        _post(url, json.dumps(metrics_of(part)).encode(), headers, pause)
        n_sent += len(part)
    return n_sent


def metrics_of(runs: Iterable[RunSummary]) -> dict[str, Any]:
    """Return an ExportMetricsServiceRequest in OTLP's JSON."""
    return {"resourceMetrics": [_resource(run) for run in runs]}


def _resource(run: RunSummary) -> dict[str, Any]:
    named = {
        "service.name": "penstock",
        "host.name": run.host,
        **{f"penstock.{name}": getattr(run, name) for name in ("run", "title", "user", "data")},
        **{f"penstock.{name}": getattr(run, name) for name in ("job", "partition", "account")},
        "penstock.verdict": run.level,
    }
    times = {
        "startTimeUnixNano": str(int(run.start_unix_s * 1e9)),
        "timeUnixNano": str(int((run.start_unix_s + run.life_s) * 1e9)),
    }
    metrics = []
    for gauge in GAUGES:
        points = [
            {"attributes": _attributes(words), **times, "asDouble": float(value)}
            for words, value in gauge.values(run)
        ]
        if points:
            facts = {"name": gauge.name, "unit": gauge.unit, "description": gauge.says}
            metrics.append({**facts, "gauge": {"dataPoints": points}})
    return {
        "resource": {"attributes": _attributes({k: v for k, v in named.items() if v})},
        "scopeMetrics": [{"scope": {"name": "penstock"}, "metrics": metrics}],
    }


def _attributes(words: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in words.items()]


def _parts(runs: Iterator[RunSummary]) -> Iterator[list[RunSummary]]:
    while part := list(islice(runs, RUNS_A_REQUEST)):
        yield part


def _url(address: str) -> str:
    parts = urlsplit(address)
    try:
        is_sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        is_sound = False
    if not is_sound or parts.username is not None or parts.query or parts.fragment:
        raise ForeignError(
            f"{parts.hostname or address}: no address of a collector; as http://host:4318, and"
            f" credentials in {HEADERS}"
        )
    return address if parts.path.strip("/") else f"{address.rstrip('/')}{PATH}"


def _headers(text: str) -> dict[str, str]:
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    return {name.strip(): unquote(value.strip()) for name, _, value in pairs if name.strip()}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuse redirects: headers may hold credentials, and no other host may get the credentials."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _post(url: str, body: bytes, headers: dict[str, str], pause: Callable[[float], None]) -> None:
    opener = urllib.request.build_opener(_NoRedirect)
    request = urllib.request.Request(url, body, headers, method="POST")
    for again in range(TRIES):
        try:
            with opener.open(request, timeout=TIMEOUT_S) as answer:
                _look_for_rejected(url, answer.read(MOST_ANSWER_BYTES))
            return
        except urllib.error.HTTPError as error:
            why, wanted_s = f"status {error.code}", error.headers.get("Retry-After", "")
            is_last = error.code not in TRY_AGAIN or again == TRIES - 1
            error.close()
        except (OSError, ValueError) as error:
            why, wanted_s, is_last = str(getattr(error, "reason", error)), "", again == TRIES - 1
        if is_last:
            raise ForeignError(f"{url}: not sent: {why}")
        wait_s = float(wanted_s) if wanted_s.isdecimal() else 2.0**again
        pause(min(wait_s, LONGEST_PAUSE_S))


def _look_for_rejected(url: str, answer: bytes) -> None:
    """Raise ForeignError if the collector did not take all points."""
    try:
        part = json.loads(answer or b"{}").get("partialSuccess") or {}
        n_rejected, why = (
            int(part.get("rejectedDataPoints") or 0),
            str(part.get("errorMessage", "")),
        )
    except (ValueError, AttributeError, TypeError):
        return  # no JSON: by the status all points were taken
    if n_rejected:
        raise ForeignError(f"{url}: {n_rejected:,} points were rejected: {why[:200]}")
