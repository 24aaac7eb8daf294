"""Rows about connections: data waits by endpoint, and what the endpoints did."""

from dataclasses import dataclass

__all__ = ["Endpoint", "EndpointCeiling", "NetworkPart"]


@dataclass(frozen=True, slots=True)
class NetworkPart:
    """queries/network_parts.sql"""

    endpoint: str | None
    phase: str | None
    is_remote: bool
    s: float


@dataclass(frozen=True, slots=True)
class Endpoint:
    """queries/endpoints.sql"""

    endpoint: str
    connections: int
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
    rtt_s: float | None
    min_rtt_s: float | None
    retransmits: int | None
    most_at_once: int
    open_s: float | None
    is_accepted: bool
    is_own: bool


@dataclass(frozen=True, slots=True)
class EndpointCeiling:
    """queries/endpoint_ceilings.sql"""

    endpoint: str
    request_bytes: int
    at_once: int
    bandwidth_bps: float
    requests_hz: float
