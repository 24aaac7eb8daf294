"""Measure how far the clocks of two hosts differ while a job runs.

The launcher that made the run folder answers; the first launcher of each other host asks.  Runs in
launchers, never in the job.  Knows sockets; knows nothing of logs, tables or screens.

RUN/clock holds the address, and a secret word that the asker must send.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import re
import secrets
import signal
import socket
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from penstock.recording.kernel_clock import monotonic_ns
from penstock.safe import bounded, drafts

__all__ = ["Offset", "ask"]

NAME = "clock"
WORD_BYTES, NUMBER_BYTES = 32, 8
# Of ASKS answers, the quickest has the smallest delay and thus the smallest error.
ASKS = 40
WAIT_S = 1.0
MOST_ADDRESSES = 8
MOST_TOLD_BYTES = 1 << 16


class Offset:
    """Answers or asks for the time while the context is open.

    is_first: this launcher made the run folder.  facts: the result for run.json; empty on the first
    host, on an unreachable host, or if all ranks share a host.
    """

    def __init__(self, folder: Path, is_first: bool) -> None:
        self.folder = folder
        self.is_first = is_first
        self.facts: dict[str, Any] = {}
        self._ends = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Offset:
        with contextlib.suppress(OSError):
            if self.is_first:
                self._listener = socket.create_server(("", 0), backlog=64)
                self._listener.settimeout(0.2)
                self._word = secrets.token_bytes(WORD_BYTES)
                self._tell()
            work = self._answer if self.is_first else self._ask
            self._thread = threading.Thread(target=work, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.set()
        if self._thread is not None:
            self._thread.join()
        if self.is_first and self._thread is not None:
            self._listener.close()
            with contextlib.suppress(OSError):
                (self.folder / NAME).unlink(missing_ok=True)

    def _tell(self) -> None:
        place = {
            "boot_id": _boot_id(),
            "addresses": _addresses(),
            "port": self._listener.getsockname()[1],
            "word": self._word.hex(),
        }
        drafts.write(self.folder / NAME, json.dumps(place), mode=0o600)

    def _answer(self) -> None:
        # Block signals here: the launcher's main thread receives and forwards them.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._ends.is_set():
            with contextlib.suppress(OSError):
                asking, _ = self._listener.accept()
                with asking:
                    asking.settimeout(WAIT_S)
                    asking.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    if hmac.compare_digest(_received(asking, WORD_BYTES), self._word):
                        for _ in range(ASKS):
                            _received(asking, NUMBER_BYTES)
                            asking.sendall(monotonic_ns().to_bytes(NUMBER_BYTES, "big"))

    def _ask(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        until_s = time.monotonic() + 10 * WAIT_S  # the folder's launcher is about to write the file
        while not (self.folder / NAME).exists() and time.monotonic() < until_s:
            if self._ends.wait(0.05):
                return
        self.facts = ask(self.folder)


def ask(folder: Path, is_same_boot_too: bool = False) -> dict[str, Any]:
    """Return the entry of run.json for the CLOCK_MONOTONIC of this host.

    The entry holds the other host's boot, the other clock minus ours in ns, and the largest error.
    Empty: no answer, or both hosts share a clock.
    """
    try:
        place = bounded.json_of(folder / NAME, MOST_TOLD_BYTES)
        other, port, word = place["boot_id"], int(place["port"]), bytes.fromhex(place["word"])
        addresses = [str(address) for address in place["addresses"]][:MOST_ADDRESSES]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    own = _boot_id()
    if (
        not isinstance(other, str)
        or not own
        or not other
        or (own == other and not is_same_boot_too)
    ):
        return {}
    for address in addresses:
        with contextlib.suppress(OSError, ValueError, OverflowError):
            offset_ns, error_ns = _measured(address, port, word)
            place = {"offset_ns": offset_ns, "error_ns": error_ns}
            return {"clock": {"boot_id": own, "other_boot_id": other, **place}}
    return {}


def _measured(address: str, port: int, word: bytes) -> tuple[int, int]:
    """Return the other host's clock minus ours, and the largest error, both in ns.

    The other host reads the clock at an unknown moment of the round trip, so the largest error is
    half the round trip; the quickest round trip counts.  Raises OSError.
    """
    best: tuple[int, int] | None = None
    with socket.create_connection((address, port), WAIT_S) as to:
        to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        to.sendall(word)
        for number in range(ASKS):
            asked_ns = monotonic_ns()
            to.sendall(number.to_bytes(NUMBER_BYTES, "big"))
            there_ns = int.from_bytes(_received(to, NUMBER_BYTES), "big")
            came_ns = monotonic_ns()
            error_ns = (came_ns - asked_ns + 1) // 2
            if best is None or error_ns < best[1]:
                best = there_ns - (asked_ns + came_ns) // 2, error_ns
    if best is None:
        raise OSError("no answer")
    return best


def _received(of: socket.socket, n_bytes: int) -> bytes:
    """Receive exactly n_bytes.  Raises OSError: the peer closed the connection."""
    data = b""
    while len(data) < n_bytes:
        more = of.recv(n_bytes - len(data))
        if not more:
            raise ConnectionError("closed")
        data += more
    return data


def _addresses() -> list[str]:
    """Return the IPv4 addresses of this host except loopback, and the host name."""
    addresses: dict[str, None] = {}
    with contextlib.suppress(OSError):
        text = Path("/proc/net/fib_trie").read_text()
        for address in re.findall(r"\|-- ([\d.]+)\n\s+/32 host LOCAL", text):
            if not address.startswith("127."):
                addresses[address] = None
    return [*list(addresses)[: MOST_ADDRESSES - 1], socket.gethostname()]


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return ""
