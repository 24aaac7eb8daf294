"""The connections and requests of a running job, by endpoint, from the texts of growing logs."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from penstock.explain.live.shape import RemoteTraffic
from penstock.log.layout import CONNECTION, CONNECTION_FLAGS, REQUEST, REQUEST_FLAGS
from penstock.log.texts import CONNECTION_TEXT, FILE_TEXT, REQUEST_TEXT, Text

__all__ = ["KeptRemote", "remote_traffic"]

ENDPOINT = "socket:"  # prefix of the file name of an endpoint
MOST_ENDPOINTS = 20  # in a Live; the most bytes first
MOST_NAMES = 65536  # endpoints of a process


@dataclass(slots=True)
class _Sum:
    """The sums of an endpoint."""

    connections: int = 0
    open_connections: int = 0
    received_bytes: int = 0
    sent_bytes: int = 0
    requests: dict[str, int] = field(default_factory=dict)  # by class of status
    retries: int = 0
    request_ns: int = 0
    backoff_ns: int = 0


class _Connection(NamedTuple):
    order: int
    file: int
    received: int
    sent: int
    is_closed: bool
    summed: int
    is_accepted: bool


@dataclass(slots=True)
class KeptRemote:
    """The latest records of a process.

    connections: by number and descriptor.  sums: records that stand for several requests, by
    number.  seen: numbers of single requests already counted, as a text may come twice.
    """

    endpoints: dict[int, str] = field(default_factory=dict)
    connections: dict[tuple[int, int], _Connection] = field(default_factory=dict)
    sums: dict[int, tuple[str, Any]] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    counted: dict[str, _Sum] = field(default_factory=dict)

    def learn(self, texts: Iterable[Text]) -> None:
        for text in texts:
            if text.kind == FILE_TEXT and text.name.startswith(ENDPOINT):
                if len(self.endpoints) < MOST_NAMES:
                    self.endpoints[text.id] = text.name.removeprefix(ENDPOINT)
            elif text.kind == CONNECTION_TEXT and text.more:
                record = np.frombuffer(text.more, CONNECTION)[0]
                key = int(record["number"]), int(record["fd"])
                latest = _Connection(
                    int(record["told"]),
                    text.id,
                    int(record["received"]),
                    int(record["sent"]),
                    bool(record["closed"]),
                    int(record["summed"]),
                    bool(int(record["flags"]) & CONNECTION_FLAGS["accepted"]),
                )
                if key not in self.connections or self.connections[key].order <= latest.order:
                    self.connections[key] = latest
            elif text.kind == REQUEST_TEXT and text.more:
                self._request(text)

    def _request(self, text: Text) -> None:
        record = np.frombuffer(text.more, REQUEST)[0]
        number = int(record["number"])
        endpoint = text.name.partition("\t")[0]
        if int(record["flags"]) & REQUEST_FLAGS["folded"]:
            before = self.sums.get(number)
            if before is None or before[1]["told"] <= record["told"]:
                self.sums[number] = endpoint, record
        elif number not in self.seen:
            self.seen.add(number)
            _add(self.counted.setdefault(endpoint, _Sum()), record)


def _add(total: _Sum, record: Any) -> None:
    status = int(record["status"])
    of = f"{status // 100}xx" if status else "no answer"
    n = int(record["requests"])
    total.requests[of] = total.requests.get(of, 0) + n
    total.retries += n if int(record["attempt"]) else 0
    total.request_ns += int(record["duration"])
    total.backoff_ns += int(record["backoff"])


def remote_traffic(processes: Iterable[KeptRemote]) -> tuple[RemoteTraffic, ...]:
    """Return the sums of all processes by endpoint, the most bytes first."""
    totals: dict[str, _Sum] = {}
    for process in processes:
        _add_connections(totals, process)
        for endpoint, counted in process.counted.items():
            total = totals.setdefault(endpoint, _Sum())
            for of, n in counted.requests.items():
                total.requests[of] = total.requests.get(of, 0) + n
            total.retries += counted.retries
            total.request_ns += counted.request_ns
            total.backoff_ns += counted.backoff_ns
        for endpoint, record in process.sums.values():
            _add(totals.setdefault(endpoint, _Sum()), record)
    rows = [
        RemoteTraffic(
            endpoint,
            total.connections,
            total.open_connections,
            total.received_bytes,
            total.sent_bytes,
            tuple(sorted(total.requests.items())),
            total.retries,
            total.request_ns / 1e9,
            total.backoff_ns / 1e9,
        )
        for endpoint, total in totals.items()
        if endpoint
    ]
    rows.sort(key=lambda row: (-row.received_bytes - row.sent_bytes, row.endpoint))
    return tuple(rows[:MOST_ENDPOINTS])


def _add_connections(totals: dict[str, _Sum], process: KeptRemote) -> None:
    counted: set[int] = set()
    still_open: set[int] = set()
    for (number, _), latest in process.connections.items():
        endpoint = process.endpoints.get(latest.file)
        if endpoint is None or latest.is_accepted:
            continue
        total = totals.setdefault(endpoint, _Sum())
        total.received_bytes += latest.received
        total.sent_bytes += latest.sent
        if number not in counted:
            counted.add(number)
            total.connections += max(1, latest.summed)
        if not latest.is_closed and not latest.summed and number not in still_open:
            still_open.add(number)
            total.open_connections += 1
