"""A network between programs in separate network name spaces: known latency, bandwidth.

Packets of a TUN device in each name space go through this program, which delays the packets; a
kernel without `tc netem` has TUN too.  Needs root and /dev/net/tun.  A name space ends with its
program.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from penstock.errors import TierError

__all__ = ["INTERFACE", "address_of", "entered", "refuse_without", "routed"]

TUN = Path("/dev/net/tun")
INTERFACE = "wire0"
MTU = 65_000  # a packet of any size costs this program about 50 us
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
DESTINATION = slice(16, 20)  # of an IPv4 header
WAIT_S = 0.1


def refuse_without() -> None:
    """Raise TierError unless programs can have a network of their own here."""
    if os.geteuid() != 0:
        raise TierError("a network between name spaces needs root")
    if not TUN.exists():
        raise TierError(f"{TUN} is not there: the kernel has no TUN devices")
    if not shutil.which("ip"):
        raise TierError("ip is not there: apt install iproute2")


def address_of(rank: int) -> str:
    """Return the address of a program in the network."""
    return f"10.77.0.{rank + 1}"


def entered(rank: int, parent: socket.socket) -> None:
    """Move this process into a separate network name space and hand the device to the parent.

    Call before any thread is started: a thread stays in the old name space.  Raises TierError.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise TierError(f"no network name space: {os.strerror(ctypes.get_errno())}")
    device = os.open(TUN, os.O_RDWR | os.O_CLOEXEC)
    request = struct.pack("16sH22x", INTERFACE.encode(), IFF_TUN | IFF_NO_PI)
    try:
        fcntl.ioctl(device, TUNSETIFF, request)
        for words in (
            f"addr add {address_of(rank)}/24 dev {INTERFACE}",
            f"link set {INTERFACE} mtu {MTU} txqueuelen 10000 up",
            "link set lo up",
        ):
            subprocess.run(["ip", *words.split()], check=True, capture_output=True, text=True)
        socket.send_fds(parent, [b"x"], [device])
    except (OSError, subprocess.CalledProcessError) as error:
        raise TierError(f"no TUN device: {getattr(error, 'stderr', '') or error}") from error
    finally:
        os.close(device)


class _Router(threading.Thread):
    """Takes packets from each device and gives the packets to the addressed device, late.

    A packet leaves its sender after the earlier packets, at the bandwidth, and arrives a latency
    later.
    """

    def __init__(self, devices: Sequence[int], latency_s: float, bandwidth_bps: float) -> None:
        super().__init__(daemon=True)
        self._devices = list(devices)
        self._latency_s, self._bandwidth_bps = latency_s, bandwidth_bps
        self._over = threading.Event()
        self._free_s = [0.0] * len(devices)
        self._due: list[tuple[float, int, int, bytes]] = []
        self._number = 0

    def run(self) -> None:
        receivers = {
            socket.inet_aton(address_of(rank)): device for rank, device in enumerate(self._devices)
        }
        senders = {device: rank for rank, device in enumerate(self._devices)}
        for device in self._devices:
            os.set_blocking(device, False)
        while not self._over.is_set():
            now = time.monotonic()
            wait_s = min(WAIT_S, max(0.0, self._due[0][0] - now)) if self._due else WAIT_S
            for device in select.select(self._devices, [], [], wait_s)[0]:
                self._taken(senders[device], device, receivers)
            now = time.monotonic()
            while self._due and self._due[0][0] <= now:
                _, _, device, packet = heapq.heappop(self._due)
                with suppress(OSError):  # the program has ended, or its queue is full
                    os.write(device, packet)

    def _taken(self, rank: int, device: int, receivers: dict[bytes, int]) -> None:
        with suppress(OSError):
            while True:
                packet = os.read(device, MTU + 100)
                if packet[0] >> 4 != 4:
                    continue  # the kernel's own IPv6
                receiver = receivers.get(packet[DESTINATION])
                if receiver is None:
                    continue
                begin_s = max(time.monotonic(), self._free_s[rank])
                self._free_s[rank] = begin_s + len(packet) / self._bandwidth_bps
                due_s = self._free_s[rank] + self._latency_s
                self._number += 1
                heapq.heappush(self._due, (due_s, self._number, receiver, packet))

    def stop(self) -> None:
        self._over.set()
        self.join()


@contextmanager
def routed(
    parents: Sequence[socket.socket], latency_s: float, bandwidth_bps: float
) -> Iterator[None]:
    """Connect the programs at the other ends of the sockets; each program calls `entered`.

    Raises TierError: a program ended before it had a device.
    """
    devices: list[int] = []
    try:
        for parent in parents:
            parent.settimeout(60)
            _, received, _, _ = socket.recv_fds(parent, 1, 1)
            if not received:
                raise TierError("a program of the network ended early")
            devices += received
        router = _Router(devices, latency_s, bandwidth_bps)
        router.start()
        try:
            yield
        finally:
            router.stop()
    finally:
        for device in devices:
            os.close(device)
