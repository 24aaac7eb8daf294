"""Rows about connections: data waits by endpoint, and what the endpoints did."""

from dataclasses import dataclass

__all__ = ["Endpoint", "NetworkPart"]


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
    is_accepted: bool
    is_own: bool
