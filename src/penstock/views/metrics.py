"""Export a running job's numbers for Prometheus and readers of Prometheus's format.  Sees Live
values only."""

import re
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import MissingDependency, PenstockError
from penstock.explain.live import Live, RemoteTraffic, Stall, Traffic

__all__ = ["METRICS", "Metrics"]

SECONDS: dict[str, tuple[str, Callable[[Stall], float]]] = {
    "wall": ("Training time of all main processes.", lambda stall: stall.wall_s),
    "data_wait": (
        "Of it in data waits; where main processes wait for each other, lost to data waits by all.",
        lambda stall: stall.data_wait_s,
    ),
    "data_wait_storage": (
        "Of the data wait in file calls of whoever fetched the batch.",
        lambda stall: stall.data_storage_s,
    ),
    "checkpoint_block": (
        "Of it blocked by checkpoints, counted likewise.",
        lambda stall: stall.checkpoint_s,
    ),
    "checkpoint_storage": (
        "Of the checkpoint block in file calls.",
        lambda stall: stall.checkpoint_storage_s,
    ),
    "training_calls": (
        "Of it in file calls of the training thread outside waits and checkpoints.",
        lambda stall: stall.own_s,
    ),
    "mean_stall": (
        "Of it in each main process's own data waits and checkpoints, whoever waits for whom.",
        lambda stall: (
            stall.data_wait_s + stall.checkpoint_s
            if stall.mean_stall_s is None
            else stall.mean_stall_s
        ),
    ),
}
BY_LAYER: dict[str, tuple[str, str, Callable[[Traffic], int]]] = {
    "read": ("bytes", "Bytes read by file calls.", lambda traffic: traffic.read_bytes),
    "written": ("bytes", "Bytes written by file calls.", lambda traffic: traffic.written_bytes),
    "file_calls": ("", "File calls that have ended.", lambda traffic: traffic.calls),
    "file_call_errors": ("", "Of them with an error.", lambda traffic: traffic.errors),
}
BY_ENDPOINT: dict[str, tuple[str, str, Callable[[RemoteTraffic], float]]] = {
    "remote_received": (
        "bytes",
        "Bytes received on connections to the endpoint; of an open one, of at most 64 s before.",
        lambda remote: remote.received_bytes,
    ),
    "remote_sent": ("bytes", "Bytes sent likewise.", lambda remote: remote.sent_bytes),
    "remote_connections": ("", "Connections opened.", lambda remote: remote.connections),
    "remote_retries": ("", "Requests after one that failed.", lambda remote: remote.retries),
    "remote_request": (
        "seconds",
        "Time in requests, all threads together.",
        lambda remote: remote.request_s,
    ),
    "remote_backoff": (
        "seconds",
        "Time that clients slept before retries.",
        lambda remote: remote.backoff_s,
    ),
}
GAUGES: dict[str, tuple[str, str, Callable[[Live], float | None]]] = {
    "stall": (
        "ratio",
        "(data wait + checkpoint block + own file calls) / wall of the last minute: what the job"
        " lost.",
        lambda live: live.recent.stall,
    ),
    "mean_stall": (
        "ratio",
        "The mean over main processes of their own stalls in the last minute.",
        lambda live: live.recent.mean_stall,
    ),
    "stall_least": (
        "ratio",
        "The last minute's stall if main processes do not wait for each other, where not known.",
        lambda live: live.recent.stall_between[0],
    ),
    "stall_most": (
        "ratio",
        "The last minute's stall if they wait for each other in every step, where not known.",
        lambda live: live.recent.stall_between[1],
    ),
    "stall_is_measured": (
        "",
        "1 if a known loader feeds every process that trains and whether these wait for each other "
        "is known or makes no difference, else 0.",
        lambda live: float(live.recent.is_fed and live.recent.is_joined),
    ),
    "storage_stall": (
        "ratio",
        "Of the last minute's wall time blocked by file calls.",
        lambda live: live.recent.storage,
    ),
    "processes": ("", "Recorded processes that are alive.", lambda live: live.processes),
    "main_processes": ("", "Processes that train.", lambda live: live.mains),
    "worker_processes": ("", "Loader workers that are alive.", lambda live: live.workers),
    "recording": (
        "",
        "1 while something is recorded, else 0.",
        lambda live: float(live.state == "running"),
    ),
    "blocked_calls": (
        "",
        "File calls under way for more than a second, at most 5.",
        lambda live: len(live.blocked),
    ),
    "longest_blocked_call": (
        "seconds",
        "How long the oldest of them has been under way.",
        lambda live: max((call.s for call in live.blocked), default=0.0),
    ),
}


def _named(name: str, unit: str) -> str:
    return "_".join(filter(None, ("penstock", name, unit)))


# Every exported name, as in a scrape.
METRICS = tuple(
    sorted(
        [
            *(f"{_named(name, 'seconds')}_total" for name in SECONDS),
            *(f"{_named(name, unit)}_total" for name, (unit, *_) in BY_LAYER.items()),
            *(f"{_named(name, unit)}_total" for name, (unit, *_) in BY_ENDPOINT.items()),
            *(_named(name, unit) for name, (unit, *_) in GAUGES.items()),
            "penstock_remote_requests_total",
            "penstock_remote_open_connections",
            "penstock_steps_total",
            "penstock_run_info",
        ]
    )
)


class Metrics:
    """An HTTP server at an address, with the latest value in OpenMetrics.

    address: PORT, :PORT or HOST:PORT; without a host only the local machine can connect.  Use as a
    context manager, or call close.  Raises PenstockError: an invalid address, a port in use;
    MissingDependency without prometheus-client.
    """

    def __init__(self, address: str) -> None:
        host, port = _parsed(address)
        try:
            from prometheus_client import CollectorRegistry, start_http_server
        except ModuleNotFoundError as error:
            raise MissingDependency(
                "serving metrics needs an extra: pip install 'penstock[metrics]'"
            ) from error
        self._lock = threading.Lock()
        self._live: Live | None = None
        self._most: dict[str, float] = {}
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
            self._server.set_app(_for_us_only(self._server.get_app(), host))
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise PenstockError(
                f"{host}:{port}: metrics cannot be served: {reason}; choose another address"
            ) from error
        self.address = f"{host}:{self._server.server_port}"

    def tell(self, live: Live) -> None:
        """Export the value from now on."""
        with self._lock:
            self._live = live

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def describe(self) -> list[Any]:
        """Return nothing: no metric is known before the first scrape; part of prometheus_client's
        interface."""
        return []

    def collect(self) -> Iterator[Any]:
        """Yield the metrics of one scrape; part of prometheus_client's interface."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
        )

        with self._lock:
            live = self._live
        if live is None:
            return
        info = InfoMetricFamily("penstock_run", "The run that is watched.")
        info.add_metric([], {"run": live.run, "host": live.host})
        yield info
        yield CounterMetricFamily(
            "penstock_steps", "Training steps that have ended.", value=self._up("steps", live.steps)
        )
        for name, (says, of_stall) in SECONDS.items():
            value = self._up(name, of_stall(live.total))
            yield CounterMetricFamily(f"penstock_{name}_seconds", says, value=value, unit="seconds")
        yield from self._counters("layer", BY_LAYER, [(row.layer, row) for row in live.traffic])
        yield from self._remote(live)
        for name, (unit, says, of_live) in GAUGES.items():
            value_now = of_live(live)
            if value_now is not None:  # unmeasured values are absent, not zero
                yield GaugeMetricFamily(_named(name, unit), says, value=value_now, unit=unit)

    def _counters(
        self,
        label: str,
        wanted: Mapping[str, tuple[str, str, Callable[[Any], float]]],
        rows: Sequence[tuple[str, Any]],
    ) -> Iterator[Any]:
        """Yield a family of counters for each name, with a value for each row (label's value,
        row)."""
        from prometheus_client.core import CounterMetricFamily

        for name, (unit, says, of_row) in wanted.items():
            family = CounterMetricFamily(_named(name, unit), says, labels=[label], unit=unit)
            for value, row in rows:
                family.add_metric([value], self._up(f"{name} {value}", of_row(row)))
            yield family

    def _remote(self, live: Live) -> Iterator[Any]:
        """Yield the metrics by endpoint; nothing without a connection or request."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        if not live.remote:
            return
        rows = [(remote.endpoint, remote) for remote in live.remote]
        yield from self._counters("endpoint", BY_ENDPOINT, rows)
        says = "Requests that have ended, of HTTP clients with an adapter, by class of status."
        family = CounterMetricFamily(
            "penstock_remote_requests", says, labels=["endpoint", "status"]
        )
        for remote in live.remote:
            for status, n in remote.requests:
                value = self._up(f"requests {status} {remote.endpoint}", n)
                family.add_metric([remote.endpoint, status], value)
        yield family
        says = "Connections that are open, as far as recorded."
        gauge = GaugeMetricFamily("penstock_remote_open_connections", says, labels=["endpoint"])
        for remote in live.remote:
            gauge.add_metric([remote.endpoint], remote.open_connections)
        yield gauge

    def _up(self, key: str, value: float) -> float:
        """Return the largest value so far: a counter never falls, even if a wait under way turns
        out to be none."""
        self._most[key] = max(value, self._most.get(key, 0.0))
        return self._most[key]


def _for_us_only(serve: Any, host: str) -> Any:
    """Refuse requests under foreign host names, as a browser sends for a page of another site (DNS
    rebinding).  Accepted names: an address in digits, the local host's name and `host`."""
    own = {host.lower(), "localhost", socket.gethostname().lower()}

    def app(environ: Any, start_response: Any) -> Any:
        name = re.sub(r":\d*$", "", str(environ.get("HTTP_HOST", ""))).strip("[]").lower()
        is_digits = re.fullmatch(r"[\d.]+|[0-9a-f:.]*:[0-9a-f:.]*", name)
        if name and not is_digits and name not in own and name.split(".")[0] not in own:
            start_response("421 Misdirected Request", [("Content-Type", "text/plain")])
            return [b"this server is asked by another name\n"]
        return serve(environ, start_response)

    return app


def _parsed(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise PenstockError(f"{address!r} is no address; write 9108, :9108 or HOST:9108")
    return host.strip("[]") or "127.0.0.1", int(port)
