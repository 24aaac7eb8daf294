"""Rows about connections: data waits by endpoint, and the activity of the endpoints."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = [
    "Endpoint",
    "EndpointCeiling",
    "EndpointRequests",
    "NetworkPart",
    "RemoteRequests",
    "RequestLatency",
    "by_phase",
]


@dataclass(frozen=True, slots=True)
class NetworkPart:
    """queries/network_parts.sql"""

    in_wall: bool
    endpoint: str | None
    phase: str | None
    is_remote: bool
    s: float
    longest_s: float = 0.0


def by_phase(parts: Mapping[str, float], network: Sequence[NetworkPart]) -> dict[str, float]:
    """Return the seconds of a wait by part, and of the network by phase where known."""
    seconds = dict(parts)
    for part in network:
        if part.phase:
            s = min(part.s, seconds.get("network", 0.0))
            seconds["network"] = seconds.get("network", 0.0) - s
            seconds[f"network {part.phase}"] = seconds.get(f"network {part.phase}", 0.0) + s
    if seconds.get("network", 0.0) < 1e-6:  # a rounding error
        seconds.pop("network", None)
    return seconds


@dataclass(frozen=True, slots=True)
class Endpoint:
    """queries/endpoints.sql"""

    endpoint: str
    connections: int
    summed: int
    failed: int
    reopened: int
    processes: int
    received_bytes: int
    sent_bytes: int
    unseen_bytes: int | None
    answers: int
    waited_s: float
    first_byte_s: float
    transfer_s: float
    connect_s: float | None
    handshake_s: float | None
    rtt_s: float | None
    min_rtt_s: float | None
    retransmits: int | None
    most_at_once: int
    open_s: float | None
    is_accepted: bool
    is_own: bool


@dataclass(frozen=True, slots=True)
class RemoteRequests:
    """queries/remote_requests.sql"""

    endpoint: str | None
    bucket: str | None
    operation: str | None
    requests: int
    unanswered: int
    ok: int
    moved: int
    refused: int
    broken: int
    throttled: int
    partial: int
    retries: int
    backoff_s: float
    lost_s: float
    received_bytes: int
    sent_bytes: int
    busy_s: float
    first_byte_p50_s: float | None
    first_byte_p99_s: float | None
    duration_p50_s: float | None
    duration_p99_s: float | None
    bytes_p50: float | None
    object_bytes_p50: float | None
    paths: int
    processes: int
    most_at_once: int
    is_operation: bool


@dataclass(frozen=True, slots=True)
class RequestLatency:
    """queries/request_latencies.sql: 2^exponent <= ns < 2^(exponent + 1)"""

    endpoint: str
    what: str
    exponent: int
    n: int
    p50_s: float
    p99_s: float


@dataclass(frozen=True, slots=True)
class EndpointCeiling:
    """queries/endpoint_ceilings.sql"""

    endpoint: str
    request_bytes: int
    at_once: int
    bandwidth_bps: float
    requests_hz: float


@dataclass(frozen=True, slots=True)
class EndpointRequests:
    """queries/endpoint_requests.sql"""

    endpoint: str
    requests: int
    failed: int
    throttled: int
    retries: int
    lost_s: float
    asked_s: float
    looks: int
    look_s: float
    fetches: int
    fetch_s: float
    fetched_bytes: int
    objects: int
    again_bytes: int
    most_times: int
    most_processes: int
    first_s: float | None
    slow: int
    slow_s: float
    pieces: int
    piece_s: float
