"""Answer requests for unchanged objects from copies on a fast tier.

Imports no client.  Only a GET without a query, without conditions and with the usual headers is
answered; every other request goes to the network.  The version of an object is asked once a run: by
a HEAD of the program, or by the first GET, with the condition of another ETag than the copy's.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from penstock.adapters.marks import quietly
from penstock.stage import catalog
from penstock.stage.catalog import (
    CHANGED,
    COUNTS,
    COUNTS_NAME,
    STATE_BYTES,
    UNCHANGED,
    ObjectCopy,
)

__all__ = ["CopyRange", "TierAnswer", "Wanted", "forget", "look"]

SERVED, BYTES, ASKED_FOR, CHANGES, LEFT = range(5)
WHOLE_BYTES = 8 << 20  # read before the answer begins; of larger parts, as the program reads

# Headers of a request that change nothing in the bytes of an answer.
USUAL = frozenset(
    (
        *(
            "host",
            "user-agent",
            "accept",
            "accept-encoding",
            "connection",
            "range",
            "content-length",
        ),
        *("authorization", "x-amz-date", "x-amz-content-sha256", "x-amz-security-token"),
        *("x-amz-checksum-mode", "x-amz-user-agent", "amz-sdk-invocation-id", "amz-sdk-request"),
        *("x-amzn-trace-id", "traceparent", "tracestate", "content-type"),
    )
)
SIGNED = "aws4-hmac-sha256"  # other ways of authorization may decide on the content
DEFAULT_PORTS = {"http": 80, "https": 443}
REASONS = {200: "OK", 206: "Partial Content"}


class CopyRange(NamedTuple):
    """A part of a copy, as an answer.  status: 200, or 206 for a range."""

    copy: ObjectCopy
    number: int
    first: int
    length: int
    status: int


class TierAnswer(NamedTuple):
    """An answer from a copy.  body: bytes, or a reader for a large part."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: Any


class Wanted(NamedTuple):
    """A request for an object with a copy.

    part: None for a HEAD of the program.  condition: headers to add to a GET that asks for the
    version; empty after an earlier question.  is_head: a separate HEAD request asks for the
    version.
    """

    run: _Run
    number: int
    copy: ObjectCopy
    part: CopyRange | None
    condition: Mapping[str, str]
    is_head: bool

    def judge(self, status: int, headers: Any) -> bool:
        """Return True if an answer of the server has the version of the copy.

        Mark the object for all processes of the run.
        """
        return bool(self.run.judge(self, status, headers))

    def answer(self) -> TierAnswer | None:
        """Return the answer from the copy; None: the copy cannot be read."""
        served: TierAnswer | None = self.run.answer(self)
        return served


class _Run:
    """The objects with copies, and the counts of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        copies = catalog.read(folder / catalog.LIST)
        self.by_address = {copy.address: (number, copy) for number, copy in enumerate(copies)}
        with open(folder / catalog.ASKED, "r+b") as file:
            self._states = mmap.mmap(file.fileno(), STATE_BYTES * len(copies))
        self.servers = {address[: address.index("/", 8)] for address in self.by_address}
        self._bad: set[int] = set()
        self._lock = threading.Lock()
        self._counts: mmap.mmap | None = None

    def forget(self) -> None:
        """Count anew in a forked child."""
        self._counts, self._lock = None, threading.Lock()

    def is_dropped(self, number: int) -> bool:
        return number in self._bad or bool(self._states[STATE_BYTES * number + CHANGED])

    def is_unchanged(self, number: int) -> bool:
        """Return True if a process of the run has asked for the object."""
        is_asked = bool(self._states[STATE_BYTES * number + UNCHANGED])
        return is_asked and not self.is_dropped(number)

    def drop(self, number: int) -> None:
        """Read an object from the network from now on, in all processes."""
        self._states[STATE_BYTES * number + CHANGED] = 1

    def drop_server(self, server: str) -> None:
        for address, (number, _) in self.by_address.items():
            if address.startswith(server + "/"):
                self.drop(number)

    def count(self, which: int, more: int = 1) -> None:
        with self._lock:
            if self._counts is None:
                name = f"{os.getpid()}-{time.monotonic_ns()}{COUNTS_NAME}"
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                descriptor = os.open(self._folder / name, flags, 0o600)
                try:
                    os.ftruncate(descriptor, COUNTS.size)
                    self._counts = mmap.mmap(descriptor, COUNTS.size)
                finally:
                    os.close(descriptor)
            values = list(COUNTS.unpack(self._counts))
            values[which] += more
            COUNTS.pack_into(self._counts, 0, *values)

    @quietly
    def judge(self, wanted: Wanted, status: int, headers: Any) -> bool:
        self.count(ASKED_FOR)
        copy = wanted.copy
        tags = {name: str(headers.get(name) or "").strip() for name in ("ETag", "Last-Modified")}
        is_same = status == 304 or (status == 200 and (wanted.part is None or wanted.is_head))
        if status == 304 and not tags["ETag"]:
            tags["ETag"] = copy.etag  # the condition named the ETag
        if status == 200:
            is_same = is_same and str(headers.get("Content-Length")) == str(copy.size_bytes)
        is_same = is_same and tags["ETag"] == copy.etag
        if copy.last_modified and (tags["Last-Modified"] or not copy.etag):
            is_same = is_same and tags["Last-Modified"] == copy.last_modified
        if is_same:
            self._states[STATE_BYTES * wanted.number + UNCHANGED] = 1
        elif status in (200, 206, 304, 404, 410, 412):
            self.count(CHANGES)
            self.drop(wanted.number)
        return is_same and self.is_unchanged(wanted.number)

    @quietly
    def answer(self, wanted: Wanted) -> TierAnswer | None:
        part = wanted.part
        if part is None:
            return None
        descriptor = -1
        try:
            descriptor = os.open(part.copy.copy, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            status = os.fstat(descriptor)
            state = status.st_size, status.st_mtime_ns, status.st_ino, status.st_ctime_ns
            listed = part.copy
            is_listed = state == (
                *(listed.size_bytes, listed.mtime_ns, listed.copy_ino, listed.copy_ctime_ns),
            )
            if not stat.S_ISREG(status.st_mode) or not is_listed:
                raise OSError("the copy has changed")
            body: Any
            if part.length <= WHOLE_BYTES:
                body = os.pread(descriptor, part.length, part.first)
                if len(body) != part.length:
                    raise OSError("the copy is cut")
            else:
                body = _Body(descriptor, part, self._fail)
                descriptor = -1
        except OSError:
            self._bad.add(wanted.number)
            self.count(LEFT)
            return None
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        self.count(SERVED)
        self.count(BYTES, part.length)
        return TierAnswer(part.status, REASONS[part.status], _headers(part), body)

    def _fail(self, number: int) -> None:
        self._bad.add(number)


class _Body:
    """The bytes of a large part, read piece by piece.  An unreadable part ends as a broken
    connection, and the next request for the object goes to the network."""

    def __init__(self, descriptor: int, part: CopyRange, fail: Callable[[int], None]) -> None:
        self._descriptor, self._part, self._fail = descriptor, part, fail
        self._at = part.first
        self._end = part.first + part.length
        self.closed = False

    def read(self, size: int | None = None) -> bytes:
        """Return so many bytes, fewer at the end.  Raises OSError."""
        if self.closed:
            return b""
        size = self._end - self._at if size is None or size < 0 else min(size, self._end - self._at)
        pieces = []
        while size:
            try:
                piece = os.pread(self._descriptor, min(size, WHOLE_BYTES), self._at)
                if not piece:
                    raise OSError("the copy is cut")
            except OSError:
                self._fail(self._part.number)
                raise
            pieces.append(piece)
            self._at += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    read1 = read

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)

    def __del__(self) -> None:
        self.close()


def _headers(part: CopyRange) -> list[tuple[str, str]]:
    last = part.first + part.length - 1
    headers = [*part.copy.headers, ("Content-Length", str(part.length)), ("Accept-Ranges", "bytes")]
    if part.status == 206:
        headers.append(("Content-Range", f"bytes {part.first}-{last}/{part.copy.size_bytes}"))
    return headers


# --- requests ------------------------------------------------------------------------------------

_of_process: dict[str, _Run | None] = {}


def _run() -> _Run | None:
    folder = os.environ.get("PENSTOCK_OBJECTS", "")
    if folder not in _of_process:
        run = None
        with contextlib.suppress(Exception):  # a missing tier, a removed folder: the network
            run = _Run(Path(folder)) if folder else None
        _of_process[folder] = run
    return _of_process[folder]


def forget() -> None:
    """Count anew in a forked child."""
    for run in _of_process.values():
        if run is not None:
            run.forget()


@quietly
def look(
    method: str, scheme: str, host: str, port: int | None, target: str, headers: Any, is_plain: bool
) -> Wanted | None:
    """Return a request for an object with a copy; None: the request goes to the network unchanged.

    target: path and query.  headers: a mapping or pairs.  is_plain: no body and no unusual option.
    """
    run = _run()
    if run is None:
        return None
    server = _server(scheme, host, port)
    if server not in run.servers:
        return None
    path, _, query = target.partition("?")
    entry = run.by_address.get(server + path)
    if method == "POST" and "delete" in query:  # the body names many objects
        run.drop_server(server)
    if entry is None:
        return None
    number, copy = entry
    if method not in ("GET", "HEAD"):
        run.drop(number)
        return None
    names = _names(headers)
    if run.is_dropped(number) or "?" in target or not is_plain or not _are_usual(names):
        run.count(LEFT)
        return None
    is_asked = run.is_unchanged(number)
    if method == "HEAD":
        return None if is_asked else Wanted(run, number, copy, None, {}, False)
    part = _part(copy, number, names.get("range"))
    if part is None:
        run.count(LEFT)
        return None
    if is_asked:
        return Wanted(run, number, copy, part, {}, False)
    return Wanted(run, number, copy, part, _condition(copy), not copy.etag)


def _server(scheme: str, host: str, port: int | None) -> str:
    host = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"{scheme}://{host.lower()}:{port or DEFAULT_PORTS.get(scheme, 0)}"


def _condition(copy: ObjectCopy) -> Mapping[str, str]:
    return {"If-None-Match": copy.etag} if copy.etag else {}


def _are_usual(names: Mapping[str, str]) -> bool:
    """Return True if all headers of a request leave the bytes of the answer alone."""
    is_signed = names.get("authorization", SIGNED).lower().startswith(SIGNED)
    return is_signed and names.keys() <= USUAL


def _names(headers: Any) -> dict[str, str]:
    pairs: Iterable[Any] = headers.items() if hasattr(headers, "items") else headers or ()
    return {_text(name).lower(): _text(value) for name, value in pairs}


def _text(word: Any) -> str:
    return word.decode("latin-1") if isinstance(word, bytes) else str(word)


def _part(copy: ObjectCopy, number: int, asked: str | None) -> CopyRange | None:
    """Return the part of a copy by a Range header's value; None: no such part."""
    size = copy.size_bytes
    if asked is None:
        return CopyRange(copy, number, 0, size, 200)
    unit, _, span = asked.strip().partition("=")
    first, dash, last = span.partition("-")
    if unit != "bytes" or not dash or not (first + last).isascii():
        return None
    if first.isdigit() and (not last or last.isdigit()):
        begin, end = int(first), min(size, int(last) + 1 if last else size)
    elif not first and last.isdigit():
        begin, end = max(0, size - int(last)), size
    else:
        return None
    return CopyRange(copy, number, begin, end - begin, 206) if begin < end else None
