"""The records of connections in the logs, as rows of the table `connections`.  Knows no engine."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import numpy as np

from penstock.log.layout import CONNECTION, CONNECTION_FLAGS
from penstock.log.texts import Text
from penstock.runs.tables.sources import LogSource, bounded
from penstock.runs.tables.stored import utf8

__all__ = ["Connections", "connection_rows"]

ENDPOINT = "socket:"  # prefix of the file name of an endpoint

Row = dict[str, Any]


@dataclass(slots=True)
class Connections:
    """The records of connections in the texts of a log.

    records: the latest record of each number and descriptor.  endpoints: names of files, by id."""

    records: dict[tuple[int, int], tuple[int, Any]] = field(default_factory=dict)
    endpoints: dict[int, str] = field(default_factory=dict)

    def add(self, text: Text) -> None:
        """Keep a connection's text, unless a later text of the number and descriptor is known."""
        if not text.more:
            return
        record = np.frombuffer(text.more, CONNECTION)[0]
        key = int(record["number"]), int(record["fd"])
        if key not in self.records or self.records[key][1]["told"] <= record["told"]:
            self.records[key] = text.id, record

    def add_file(self, text: Text) -> None:
        """Keep the name of an endpoint; skip other files."""
        if text.name.startswith(ENDPOINT):
            self.endpoints.setdefault(text.id, utf8(text.name.removeprefix(ENDPOINT)))


def connection_rows(
    logs: Iterable[tuple[LogSource, Connections, Mapping[int, str]]],
) -> list[tuple[Any, ...]]:
    """Return the rows of the table, in the order of the table's columns.

    logs: with each log, the paths of the log's objects by id.
    """
    rows: list[Row] = []
    for source, connections, objects in logs:
        by_number: dict[int, list[tuple[int, Any]]] = {}
        for (number, _), record in sorted(connections.records.items(), key=lambda item: item[0]):
            by_number.setdefault(number, []).append(record)
        rows += [_row(source, records, connections, objects) for records in by_number.values()]
    ends = {(*_end(row, "local"), *_end(row, "peer")): row["process"] for row in rows}
    own: dict[tuple[Any, Any], set[int | None]] = {}
    for row in rows:
        row["peer_process"] = ends.get((*_end(row, "peer"), *_end(row, "local")))
        if row["local_port"]:
            key = row["process"], row["endpoint"]
            own.setdefault(key, set()).add(row["peer_process"])
    for row in rows:
        if not row["local_port"]:  # a sum: as the single connections to the endpoint
            peers = own.get((row["process"], row["endpoint"]), {None})
            row["peer_process"] = min(peer or 0 for peer in peers) or None
    return [tuple(row.values()) for row in rows]


def _end(row: Row, which: str) -> tuple[str, int]:
    return row[f"{which}_address"], row[f"{which}_port"]


def _address(data: Any) -> IPv4Address | IPv6Address:
    address = IPv6Address(data.tobytes())
    return address.ipv4_mapped or address


def _row(
    source: LogSource,
    numbered: Sequence[tuple[int, Any]],
    connections: Connections,
    objects: Mapping[int, str],
) -> Row:
    """Return the row of a connection: the sum over the connection's descriptors (dup)."""
    records = [record for _, record in numbered]
    first = records[0]
    peer, local = _address(first["peer"]), _address(first["local"])
    path = objects.get(int(first["object"]))
    closed = [int(record["closed"]) for record in records]
    opened, connected = int(first["opened"]), int(first["connected"])
    n = max(1, int(first["summed"]))
    has_kernel = any(int(record["rtt_us"]) for record in records)

    def ns(ticks: int) -> int | None:
        if not ticks:
            return None
        at = source.log.to_ns(np.array([ticks], np.uint64), source.ns_per_tick)
        return bounded(int(at[0])) + source.shift_ns

    def total(name: str) -> int:
        return bounded(sum(int(record[name]) for record in records))

    def total_ns(ticks: Iterable[float]) -> int:
        return bounded(round(sum(ticks) * source.ns_per_tick))

    def of_kernel(name: str, factor: int = 1) -> int | None:
        return bounded(factor * max(int(r[name]) for r in records)) if has_kernel else None

    def waited(phase: int) -> int:
        return total_ns(int(record["waited"][phase]) for record in records)

    return {
        "process": source.process,
        "connection": bounded(int(first["number"])),
        "connections": n,
        "endpoint": connections.endpoints.get(numbered[0][0]),
        "peer_address": str(peer),
        "peer_port": int(first["peer_port"]),
        "local_address": str(local),
        "local_port": int(first["local_port"]),
        "is_accepted": bool(first["flags"] & CONNECTION_FLAGS["accepted"]),
        "is_earlier": bool(first["flags"] & CONNECTION_FLAGS["earlier"]),
        "is_loopback": peer.is_loopback or peer == local,
        "peer_process": None,
        "object": path.rpartition("/")[2] if path else None,
        "opened_ns": ns(opened),
        "connect_ns": total_ns([(connected - opened) / n]) if 0 < opened <= connected else None,
        "handshake_ns": total_ns(int(record["handshake"]) for record in records) or None,
        "closed_ns": ns(max(closed)) if all(closed) else None,
        "counted_ns": ns(max(int(record["told"]) for record in records)),
        "received_bytes": total("received"),
        "sent_bytes": total("sent"),
        "receives": total("receives"),
        "sends": total("sends"),
        "answers": total("answers"),
        "first_byte_ns": total_ns(int(record["first_byte"]) for record in records),
        "transfer_ns": total_ns(int(record["transfer"]) for record in records),
        "waited_connect_ns": waited(1),
        "waited_send_ns": waited(2),
        "waited_first_byte_ns": waited(3),
        "waited_transfer_ns": waited(4),
        "kernel_received_bytes": of_kernel("kernel_received"),
        "kernel_sent_bytes": of_kernel("kernel_sent"),
        "rtt_ns": of_kernel("rtt_us", 1000),
        "min_rtt_ns": of_kernel("rtt_min_us", 1000),
        "retransmits": of_kernel("retransmits"),
    }
