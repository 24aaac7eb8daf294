"""The common part of the adapters of HTTP clients: an ended request becomes a record in the log.

Imports no client.  docs/FORMAT.md describes the record.  Of a URL only host, port and path reach a
log: no query, fragment, user or password; of headers and bodies only lengths.
"""

from __future__ import annotations

import atexit
import struct
import time
from _thread import get_native_id
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from penstock.adapters.marks import quietly, thread, wrap
from penstock.recording import recorder

__all__ = [
    "OPERATION",
    "Ask",
    "HttpRequest",
    "asking",
    "clean",
    "count_retry",
    "forget",
    "now_ns",
    "object_bytes_of",
    "operation_of",
    "range_of",
    "wrap_all",
]

RECORD = struct.Struct("<7Q4q2QqI2H2I")
PART, FAILED, FOLDED, OPERATION = 1, 2, 4, 8
NONE = (1 << 64) - 1
PATH_BYTES, WORD_BYTES = 1024, 200
MOST_SINGLE = 50_000  # per process; later requests are recorded as sums
MOST_SUMS = 1000  # distinct sums; all further requests become a single sum
SUMS_NS = 1_000_000_000  # sums of a killed process are at most this old

DEFAULT_PORTS = {"http": "80", "https": "443", "ws": "80", "wss": "443"}
LISTS = ("list-type=", "comp=list", "delimiter=", "prefix=")  # in queries of object stores

Wrappers = Mapping[str, Callable[[Any], Any]]
now_ns = time.monotonic_ns


def wrap_all(adapter: str, module: ModuleType, wrappers: Wrappers) -> None:
    """Wrap all the named functions of a client, or none: a part of the functions counts wrongly."""
    for path in wrappers:
        owner: Any = module
        for step in path.split("."):
            owner = getattr(owner, step, None)
        if owner is None:
            recorder.note("not measured", f"requests of {adapter}: this version has no {path}")
            return
    for path, wrapper in wrappers.items():
        wrap(adapter, module, path, wrapper)


class Ask:
    """The call of a layer above HTTP, common to all tries."""

    __slots__ = ("attempt", "backoff_ns", "bucket", "client", "operation")

    def __init__(self, client: str, operation: str = "", bucket: str = "") -> None:
        self.client = client
        self.operation = operation
        self.bucket = bucket
        self.attempt = 0
        self.backoff_ns = 0


asking: ContextVar[Ask | None] = ContextVar("penstock_asking", default=None)


def count_retry(begun_ns: int) -> None:
    """Count a retry by the layer above, decided at begun_ns, and the sleep since."""
    ask = asking.get()
    if ask is not None:
        ask.attempt += 1
        ask.backoff_ns += now_ns() - begun_ns


class HttpRequest:
    """A request under way, written once, at the end."""

    __slots__ = (
        "_ask",
        "_epoch",
        "attempt",
        "backoff_ns",
        "batch",
        "begun_ns",
        "chunks",
        "connection",
        "depth",
        "endpoint",
        "error",
        "first_byte_ns",
        "is_closed",
        "last_ns",
        "method",
        "object_bytes",
        "operation",
        "path",
        "range",
        "received",
        "sent",
        "status",
        "tid",
    )

    def __init__(self, client: str, begun_ns: int, method: str, endpoint: str, path: str) -> None:
        ask = asking.get()
        self._epoch = recorder.epoch()
        self._ask = ask or Ask(client)
        self.attempt = self.backoff_ns = 0
        if ask is not None:
            self.attempt = ask.attempt
            self.backoff_ns, ask.backoff_ns = ask.backoff_ns, 0
        self.begun_ns = begun_ns
        self.method = method
        self.endpoint = endpoint
        self.path = path
        self.operation = self._ask.operation or method
        self.tid = get_native_id()
        self.batch = thread.batch
        self.connection = 0
        self.error = ""
        self.first_byte_ns = NONE
        self.range = (-1, -1)
        self.object_bytes = -1
        self.last_ns = 0  # time of the latest read
        self.received = 0
        self.sent = 0
        self.status = 0
        self.depth = 0  # 1 inside a read of the body
        self.is_closed = False
        self.chunks: Any = None  # urllib3's answer object, for a body in chunks

    def take(self, ask: Ask) -> None:
        """Make the request a call of the client in `ask`."""
        self._ask = ask
        self.operation = ask.operation

    def end(self, is_part: bool = False, flags: int = 0) -> None:
        """End the request now, and write the record."""
        if self._epoch is not recorder.epoch():
            return  # begun in another window, or in the parent
        self._epoch = None
        ask = self._ask
        words = self.endpoint, self.method, self.operation, ask.client, ask.bucket, self.error
        name = _names.get(words) or _name(words)
        if is_part:
            flags |= PART
        if self.error:
            flags |= FAILED
        ago_ns = duration_ns = now_ns() - self.begun_ns
        if is_part and not self.error:  # closed, perhaps long after the last use
            duration_ns = max(self.last_ns - self.begun_ns, self.first_byte_ns)
        _tell(name, self, ago_ns, duration_ns, flags)


_names: dict[tuple[str, ...], bytes] = {}


def _name(words: tuple[str, ...]) -> bytes:
    if len(_names) >= MOST_SUMS:
        _names.clear()
    name = "\t".join(map(_word, words)).encode("utf-8", "backslashreplace")
    _names[words] = name
    return name


def _word(text: str) -> str:
    if text.isprintable() and len(text) <= WORD_BYTES:
        return text
    return "".join(letter if letter.isprintable() else "?" for letter in text[:WORD_BYTES])


# Writing


class _Sum:
    """The sum of requests beyond MOST_SINGLE, equal but for time and size."""

    __slots__ = ("number", "told_ns", "values")

    def __init__(self, number: int) -> None:
        self.number = number
        self.told_ns = 0
        self.values = [0] * 6  # first byte, duration, received, sent, back-off, requests


class _Told:
    """The requests of this process so far."""

    def __init__(self) -> None:
        self.number = 0
        self.sums: dict[tuple[bytes, int, int], _Sum] = {}
        self.epoch: object = None


_told = _Told()


def forget() -> None:
    """Count requests anew in a forked child."""
    _told.number = 0
    _told.sums = {}


@quietly
def _tell(name: bytes, request: HttpRequest, ago_ns: int, duration_ns: int, flags: int) -> None:
    _told.number += 1
    number = _told.number
    if number > MOST_SINGLE:
        _add(name, request, duration_ns, flags)
        return
    record = RECORD.pack(
        number,
        0,
        request.connection,
        ago_ns,
        request.first_byte_ns,
        duration_ns,
        request.received,
        request.sent,
        *request.range,
        request.object_bytes,
        request.backoff_ns,
        1,
        request.batch,
        request.tid,
        request.status & 0xFFFF,
        min(request.attempt, 0xFFFF),
        flags,
        0,
    )
    path = request.path.encode("utf-8", "backslashreplace")[:PATH_BYTES]
    recorder.request(name, path, record)


def _add(name: bytes, request: HttpRequest, duration_ns: int, flags: int) -> None:
    key = name, request.status, flags
    if _told.epoch is not recorder.epoch():  # another window has another log
        _told.epoch, _told.sums = recorder.epoch(), {}
    if key not in _told.sums and len(_told.sums) >= MOST_SUMS:
        key = b"", 0, 0
    total = _told.sums.get(key)
    if total is None:
        if not _told.sums:
            atexit.unregister(_tell_sums)
            atexit.register(_tell_sums)
        total = _told.sums[key] = _Sum(_told.number)
    first_byte_ns = request.first_byte_ns if request.first_byte_ns != NONE else 0
    new = first_byte_ns, duration_ns, request.received, max(0, request.sent), request.backoff_ns, 1
    total.values = [before + more for before, more in zip(total.values, new, strict=True)]
    if now_ns() - total.told_ns > SUMS_NS:
        _tell_sum(key, total)


@quietly
def _tell_sums() -> None:
    for key, total in list(_told.sums.items()):
        _tell_sum(key, total)


def _tell_sum(key: tuple[bytes, int, int], total: _Sum) -> None:
    name, status, flags = key
    first_byte_ns, duration_ns, received, sent, backoff_ns, requests = total.values
    total.told_ns = now_ns()
    record = RECORD.pack(
        total.number,
        0,
        0,
        0,
        first_byte_ns,
        duration_ns,
        received,
        sent,
        -1,
        -1,
        -1,
        backoff_ns,
        requests,
        -1,
        get_native_id(),
        status & 0xFFFF,
        0,
        flags | FOLDED,
        0,
    )
    recorder.request(name, b"", record)


# Parts of a URL and of headers


def clean(url: str) -> tuple[str, str, bool]:
    """Return endpoint ("" of a path), path, and whether the query asks for a listing."""
    path, _, query = url.partition("?")
    endpoint = ""
    path = path.partition("#")[0].partition(";")[0]
    if not path.startswith("/") and "://" in path:
        scheme, _, rest = path.partition("://")
        authority, slash, rest = rest.partition("/")
        endpoint = authority.rpartition("@")[2].lower()
        if ":" not in endpoint.rpartition("]")[2]:
            endpoint += ":" + DEFAULT_PORTS.get(scheme.lower(), "")
        endpoint = endpoint.replace("[", "").replace("]", "")
        path = slash + rest
    elif not path.startswith("/") and "@" in path:
        path = path.rpartition("@")[2]  # no URL, but perhaps a user and a password
    return endpoint, path or "/", any(word in query for word in LISTS)


def operation_of(method: str, is_list: bool) -> str:
    """Return the operation by method and query."""
    return "LIST" if is_list and method == "GET" else method


def range_of(value: str) -> tuple[int, int]:
    """Return first byte and length of a Range header's value; -1: not given."""
    unit, _, asked = value.strip().partition("=")
    first, dash, last = asked.partition("-")
    first, last = first.strip(), last.strip()
    if unit.strip() != "bytes" or not dash or not first.isdigit():
        return -1, -1
    return int(first), int(last) - int(first) + 1 if last.isdigit() else -1


def object_bytes_of(content_range: str | None) -> int:
    """Return the whole object's bytes from a Content-Range header's value; -1: not known."""
    total = (content_range or "").rpartition("/")[2].strip()
    return int(total) if total.isdigit() else -1
