"""Measure how fast the server of an address answers: small and large ranges, 1, 8 and 64 at once.

Knows object stores and their transfers.  Only reads; nothing is stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from penstock.errors import FeedError, TierError
from penstock.feed.object_stores import StoredObject, object_at, store_of
from penstock.feed.transfer import ObjectRange, Ongoing, Patience, Transfers
from penstock.places.tiers import Ceiling

__all__ = ["MEASUREMENTS", "ceilings_of_url", "is_url"]

AT_ONCE = (1, 8, 64)
SMALL_BYTES = 64 << 10
LARGE_BYTES = 1 << 20  # 64 at once: 2 s at 32 MB/s
MEASUREMENTS = 2 * len(AT_ONCE)
LISTED = 2000  # most objects of a prefix
ASKED = 64  # of a listing without sizes
PILOT = 2  # requests of each thread, to open the connections
MOST_S = 60.0  # of a measurement, if the server grows slow
PATIENCE = Patience(timeout_s=20.0, tries=3)


def is_url(place: str) -> bool:
    """Return True for an address of an object store or web server."""
    return "://" in place


@dataclass(frozen=True, slots=True)
class _Readable:
    source: StoredObject
    size: int


def ceilings_of_url(
    url: str, for_s: float = 30.0, progress: Callable[[str, float], None] | None = None
) -> list[Ceiling]:
    """Measure reads of an object, or of the objects below a prefix; some for_s seconds in all.

    Ranges of 64 KiB, and of 1 MiB where objects are as large, are read by 1, 8 and 64 threads.  The
    mount of a Ceiling is the endpoint, HOST:PORT.  Raises TierError: no object, no permission, a
    failed request.
    """
    try:
        objects = _objects(url)
    except FeedError as error:
        raise TierError(str(error)) from error
    largest = max(item.size for item in objects)
    sizes = sorted({min(largest, SMALL_BYTES), min(largest, LARGE_BYTES)})
    ceilings: list[Ceiling] = []
    for n_bytes in sizes:
        large_enough = [item for item in objects if item.size >= n_bytes]
        for at_once in AT_ONCE:
            if progress:
                done = len(ceilings) / (len(sizes) * len(AT_ONCE))
                progress(f"{n_bytes >> 10} KiB, {at_once} at once", done)
            each_s = for_s / (len(sizes) * len(AT_ONCE))
            ceilings.append(_measured(url, large_enough, n_bytes, at_once, each_s))
    return ceilings


def _objects(url: str) -> list[_Readable]:
    """Return objects with bytes.  Raises FeedError, TierError."""
    if not url.endswith("/"):
        source = object_at(url)
        try:
            return _with_bytes([_Readable(source, source.state().size)], url)
        except FeedError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
            url += "/"
    store, prefix = store_of(url)
    listed = list(islice(store.listed(prefix), LISTED))
    unknown = [item for item in listed if item.seen is None][:ASKED]
    readables = [
        _Readable(StoredObject(store, item.key), item.seen.size) for item in listed if item.seen
    ]
    for item in unknown:
        source = StoredObject(store, item.key)
        readables.append(_Readable(source, source.state().size))
    return _with_bytes(readables, url)


def _with_bytes(objects: Sequence[_Readable], url: str) -> list[_Readable]:
    filled = [item for item in objects if item.size]
    if not filled:
        raise TierError(f"{url}: there is no object with bytes to read")
    return filled


def _measured(
    url: str, objects: Sequence[_Readable], n_bytes: int, at_once: int, seconds: float
) -> Ceiling:
    """Read ranges for the given time, after a few reads to open the connections."""
    target = objects[0].source.target("GET")
    transfers = Transfers(PATIENCE)
    memory = memoryview(bytearray(n_bytes))  # of all answers; nobody reads the answers
    first = 0

    def read(n: int, most_s: float) -> tuple[int, float]:
        """Return (requests answered, seconds)."""
        nonlocal first
        parts = []
        for number in range(first, first + n):
            item = objects[number % len(objects)]
            at = number // len(objects) * n_bytes % (item.size - n_bytes + 1)
            parts.append(ObjectRange(item.source, None, at, memory))
        first += n
        ongoing = Ongoing()
        guard = threading.Timer(most_s, ongoing.cancel)
        guard.daemon = True
        begun = time.perf_counter()
        guard.start()
        try:
            transfers.read(parts, at_once, ongoing)
        finally:
            guard.cancel()
        took_s = time.perf_counter() - begun
        failed = next((part for part in parts if part.error and took_s < most_s), None)
        if failed is not None:
            raise TierError(f"{failed.remote.url}: {failed.why}")
        return sum(not part.error for part in parts), took_s

    pilot, pilot_s = answered, took_s = read(PILOT * at_once, MOST_S)
    if pilot and pilot_s < seconds:
        wanted = max(PILOT * at_once, int(pilot / pilot_s * seconds))
        answered, took_s = read(wanted, MOST_S)
    if not answered:
        raise TierError(f"{url}: no answer within {took_s:.0f} s")
    return Ceiling(
        path=url,
        mount=f"{target.host}:{target.port}",
        kind="remote",
        op="read",
        order="random",
        request_bytes=n_bytes,
        threads=at_once,
        bandwidth_bps=answered * n_bytes / took_s,
        calls_hz=answered / took_s,
        is_cold=False,
        why_not_cold="the server's, not known",
        seconds=took_s,
        unix_ns=time.time_ns(),
    )
