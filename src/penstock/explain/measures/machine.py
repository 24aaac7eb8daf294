"""Rows about the host: devices, memory, storage and ceilings."""

from dataclasses import dataclass
from typing import Literal

from penstock.explain.measures.number import Number

__all__ = [
    "AheadFile",
    "Devices",
    "Flash",
    "Machine",
    "Residency",
    "Storage",
    "SystemRate",
    "TierCeiling",
]


@dataclass(frozen=True, slots=True)
class Devices:
    """queries/devices.sql"""

    job_read_bytes: int | None
    disk_read_bytes: int | None
    disk_written_bytes: int | None
    asked_bytes: int
    faulted: int
    accelerators: int

    @property
    def read_amplification(self) -> Number:
        """Return the ratio of bytes from devices to bytes requested by calls."""
        if self.job_read_bytes is None:
            return Number(None, "x", "not measured", "only `penstock run` asks the kernel for it")
        if not self.asked_bytes:
            return Number(None, "x", "not measured", "no call read from a file")
        if self.faulted:
            why = "mapped files were read too, and what was wanted of them no call says"
            return Number(None, "x", "not measured", why)
        return Number(self.job_read_bytes / self.asked_bytes, "x", "derived")


@dataclass(frozen=True, slots=True)
class Residency:
    """queries/residency.sql"""

    moment: Literal["before", "after"]
    hosts: int
    files: int
    size_bytes: int
    resident_bytes: int
    left_out: bool
    is_named: bool


@dataclass(frozen=True, slots=True)
class AheadFile:
    """queries/ahead.sql"""

    path: str | None
    access: str
    ahead_bytes: int
    hit_bytes: int
    touched_bytes: int
    size_bytes: int
    why: str | None


@dataclass(frozen=True, slots=True)
class SystemRate:
    """queries/system_rates.sql"""

    what: str
    unit: str
    bin: int
    bin_s: float
    value: float


@dataclass(frozen=True, slots=True)
class Machine:
    """queries/machine.sql"""

    cpus: float | None
    quota_cpus: float | None
    throttled: int | None
    throttled_s: float | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class Storage:
    """queries/storage.sql"""

    mount: str | None
    kind: str | None
    path_class: str
    files: int
    size_bytes: int
    read_bytes: int
    written_bytes: int
    read_ceiling_bps: float | None
    write_ceiling_bps: float | None
    beneath: str | None = None


@dataclass(frozen=True, slots=True)
class Flash:
    """queries/flash.sql"""

    mount: str
    device: str
    free_bytes: int


@dataclass(frozen=True, slots=True)
class TierCeiling:
    """queries/ceilings.sql"""

    mount: str
    kind: str
    op: str
    bandwidth_bps: float
