"""The seal of a log: checksums of the header and of blocks without checksums.

`penstock run` seals the logs of ended processes, even of killed ones.  Knows the positions of heads
and blocks; knows no event.  Python writes nothing else into a log.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from penstock.errors import LogError
from penstock.log.texts import (
    CLOSED_BLOCK,
    HEADER_BYTES,
    HEADER_PAGE_BYTES,
    MAGIC,
    UNIT_BYTES,
    VERSION,
    LogFile,
    heads_in,
    logs_in,
)
from penstock.safe.checksums import crc32c

__all__ = ["NO_SEAL", "Seal", "is_running", "seal_ended", "sealed_page"]

SEAL_MAGIC, SEAL_VERSION = b"PENSEAL\0", 1
# magic, version, sum of the header, units in use, pairs, lost, sum of the seal
HEAD = struct.Struct("<8sIIIIQII")
PAIR = struct.Struct("<II")  # a unit without a checksum, and the computed checksum
MOST_PAIRS = (HEADER_BYTES - HEADER_PAGE_BYTES - HEAD.size) // PAIR.size
# Of the header's page: pid, units, start_ns, lost, boot_id.
PID, UNITS, START_NS, LOST, BOOT_ID = 24, 48, 64, 128, slice(176, 192)


class Seal(NamedTuple):
    """sums: CRC-32C of units, by number.  units: how many are not empty; None: no seal."""

    sums: Mapping[int, int]
    units: int | None


NO_SEAL = Seal({}, None)


def sealed_page(file: LogFile, page: bytes) -> tuple[bytes, Seal]:
    """Return a log's header page as sealed, and the seal; NO_SEAL without a seal.

    A damaged seal counts as none.  `lost` is taken from the seal: children without a log may add to
    the count after the end of the process.  Raises LogError: the header is damaged.
    """
    head = file.read(HEADER_PAGE_BYTES, HEAD.size)
    if len(page) < HEADER_PAGE_BYTES or len(head) < HEAD.size or head[:8] != SEAL_MAGIC:
        return page, NO_SEAL
    _, version, header_sum, units, n, lost, total, _ = HEAD.unpack(head)
    if version != SEAL_VERSION or n > MOST_PAIRS:
        return page, NO_SEAL
    pairs = file.read(HEADER_PAGE_BYTES + HEAD.size, n * PAIR.size)
    if len(pairs) < n * PAIR.size or _sum_of(head, pairs) != total:
        return page, NO_SEAL
    page = page[:LOST] + lost.to_bytes(8, "little") + page[LOST + 8 :]
    if crc32c(page) != header_sum:
        raise LogError(
            f"{file.path}: its header is damaged: it differs from its checksum; copy the file again"
            " or remove it to read the others"
        )
    return page, Seal(dict(PAIR.iter_unpack(pairs)), units)


def _sum_of(head: bytes, pairs: bytes) -> int:
    return crc32c(pairs, crc32c(head[: HEAD.size - 8] + bytes(8)))


def is_running(boot_id: bytes, pid: int, start_ns: int) -> bool:
    """Return True if the process of a log still exists, as far as the local host can know."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip().replace("-", "")
        if boot != boot_id.hex():
            return False
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            status = file.read()
    except OSError:
        return False
    # The name before the last parenthesis may hold anything; the state is field 3, the start 22.
    fields = status.rpartition(")")[2].split()
    start_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    # Field 22 counts time in suspend and the log's clock does not; a suspended host makes a process
    # look younger, so both times are compared on a single clock.
    asleep_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)
    return fields[0] not in "ZX" and start_s - asleep_s <= start_ns / 1e9 + 1


def seal_ended(folder: Path) -> None:
    """Seal the logs of ended processes of the local host in a run folder.

    Call only for logs with pids of the local host.  If the write fails, the log stays without a
    seal.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = bytes.fromhex(file.read().strip().replace("-", ""))
    except (OSError, ValueError):
        return
    for path in logs_in(folder):
        with contextlib.suppress(OSError, LogError):
            _seal(path, boot_id)


def _seal(path: Path, boot_id: bytes) -> None:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    file = LogFile(str(path))
    file.fd = os.open(path, flags)
    try:
        status = os.fstat(file.fd)
        page = file.read(0, HEADER_PAGE_BYTES)
        version, pid = (int.from_bytes(page[at : at + 4], "little") for at in (8, PID))
        start_ns, units = (int.from_bytes(page[at : at + 8], "little") for at in (START_NS, UNITS))
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_nlink != 1
            or len(page) < HEADER_PAGE_BYTES
            or page[:8] != MAGIC
            or version != VERSION
            or page[BOOT_ID] != boot_id
            or status.st_size < HEADER_BYTES + units * UNIT_BYTES  # cut: without a seal
            or is_running(boot_id, pid, start_ns)
            or sealed_page(file, page)[1].units is not None
        ):
            return
        total, sums = _unit_sums(file, (status.st_size - HEADER_BYTES) // UNIT_BYTES)
        pairs = b"".join(PAIR.pack(unit, crc) for unit, crc in list(sums.items())[:MOST_PAIRS])
        lost = int.from_bytes(page[LOST : LOST + 8], "little")
        fields = [SEAL_MAGIC, SEAL_VERSION, crc32c(page), total, len(pairs) // PAIR.size, lost]
        head = HEAD.pack(*fields, _sum_of(HEAD.pack(*fields, 0, 0), pairs), 0)
        os.pwrite(file.fd, pairs, HEADER_PAGE_BYTES + HEAD.size)
        os.pwrite(file.fd, head, HEADER_PAGE_BYTES)
    finally:
        os.close(file.fd)


def _unit_sums(file: LogFile, units: int) -> tuple[int, dict[int, int]]:
    """Return the number of units in use, and the checksums of units without a checksum."""
    rows, damaged = heads_in(file, units, 0)
    numbers = sorted({row[0] for row in rows} | damaged)
    sums = {}
    for unit in numbers:
        kind = file.read(HEADER_BYTES + unit * UNIT_BYTES + 4, 4)
        if int.from_bytes(kind, "little") != CLOSED_BLOCK:
            sums[unit] = crc32c(file.read(HEADER_BYTES + unit * UNIT_BYTES, UNIT_BYTES))
    return len(numbers), sums
