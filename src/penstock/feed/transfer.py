"""Read ranges of objects into memory over HTTP: in parallel, verified, with retries.

The module handles connections, answers and retries, not stores, formats or records.  A range is
written only into the caller's memory.  An answer counts only with exactly the requested bytes of
the indexed version; any other answer is an error with the object's name.

The module uses threads with blocking sockets, chosen by measurement (docs/experiments/objects.md):
at 20 ms per request, threads reach the rate of a native client, and unlike a native client survive
a fork.
"""

from __future__ import annotations

import errno
import http.client
import os
import random
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

from penstock.errors import FeedError
from penstock.feed import refusals
from penstock.feed.signing import NOTED_S, ServerClock, difference

__all__ = [
    "Headers",
    "HttpTarget",
    "ObjectRange",
    "Ongoing",
    "Patience",
    "Remote",
    "Seen",
    "Transfers",
    "changed",
    "fetched",
    "transfers",
]

RETRIED = (408, 425, 429, 500, 502, 503, 504)
REDIRECTS = (301, 302, 303, 307, 308)
MOST_REDIRECTS = 5
MOST_IN_FLIGHT = 128  # plan.MOST_DEPTH
IDLE_S = 20.0  # a thread without work ends
KEPT_CONNECTIONS = 4  # per thread, each to another host
PART_BYTES = 8 << 20  # a larger range is read in parallel parts
LEAST_BPS = 64 << 10  # slower answers are given up, as from a server that hangs between bytes
MOST_ANSWER_BYTES = 64 << 20  # of a listing


Headers = http.client.HTTPMessage


class Seen(NamedTuple):
    """An object's version.

    mark: a number from the ETag or generation, -1: none.  written_ns: time of the last change in ns
    since 1970, in whole seconds, 0: unknown.
    """

    size: int
    written_ns: int
    mark: int


class HttpTarget(NamedTuple):
    """Target of a request.  path: encoded, with the query.  clock: of its signature, if any."""

    is_tls: bool
    host: str
    port: int
    path: str
    headers: tuple[tuple[str, str], ...] = ()
    clock: ServerClock | None = None


class Remote(Protocol):
    """An object of a store."""

    @property
    def url(self) -> str: ...

    def target(self, method: str) -> HttpTarget:
        """Return the signed target of a request."""

    def seen(self, headers: Headers, size: int) -> Seen:
        """Return the object's version according to an answer."""


@dataclass(frozen=True, slots=True)
class Patience:
    """Limits for one request.

    timeout_s: wait without a byte.  tries: at most so many.  The pause before try n is random, up
    to first_pause_s * 2**n and at most most_pause_s.
    """

    timeout_s: float = 20.0
    tries: int = 10
    first_pause_s: float = 0.1
    most_pause_s: float = 10.0

    @staticmethod
    def of_environment() -> Patience:
        """Read PENSTOCK_FEED_TIMEOUT_S and PENSTOCK_FEED_TRIES."""
        usual = Patience()
        timeout_s = _number("PENSTOCK_FEED_TIMEOUT_S", usual.timeout_s)
        tries = _number("PENSTOCK_FEED_TRIES", usual.tries)
        return Patience(timeout_s, max(1, int(tries)))


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        number = float(text) if text else default
    except ValueError as error:
        raise FeedError(f"{name}={text!r} is no number") from error
    if not 0 < number < 1e6:
        raise FeedError(f"{name}={text!r} is no number of seconds or tries")
    return number


class _Retried(Exception):  # noqa: N818 - no error yet
    """The answer is no result; a new try may help.  after_s: pause requested by the server."""

    def __init__(self, why: str, after_s: float = 0.0) -> None:
        super().__init__(why)
        self.after_s = after_s


class _Refused(Exception):  # noqa: N818 - becomes a FeedError where the record is known
    """The answer is final: a new try would not help."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class ObjectRange:
    """A range of an object, the memory for the bytes, and the outcome.

    expected: the version of the object, None: any.  error: errno of a failed read, 0: success.
    """

    __slots__ = ("error", "expected", "first", "latency_ns", "length", "remote", "view", "why")

    def __init__(self, remote: Remote, expected: Seen | None, first: int, view: memoryview) -> None:
        self.remote = remote
        self.expected = expected
        self.first = first
        self.view = view
        self.length = len(view)
        self.latency_ns = 0
        self.error = 0
        self.why = ""

    def split(self) -> list[ObjectRange]:
        """Return the range, divided if large."""
        if self.length <= PART_BYTES:
            return [self]
        return [
            ObjectRange(
                self.remote, self.expected, self.first + at, self.view[at : at + PART_BYTES]
            )
            for at in range(0, self.length, PART_BYTES)
        ]


# --- one connection ------------------------------------------------------------------------------


@cache
def _tls() -> ssl.SSLContext:
    """Return a TLS context, by AWS_CA_BUNDLE, REQUESTS_CA_BUNDLE or the machine's authorities."""
    bundle = os.environ.get("AWS_CA_BUNDLE") or os.environ.get("REQUESTS_CA_BUNDLE")
    return ssl.create_default_context(cafile=bundle or None)


def _connected(target: HttpTarget, timeout_s: float) -> http.client.HTTPConnection:
    scheme = "https" if target.is_tls else "http"
    proxy = None
    if not urllib.request.proxy_bypass(target.host):
        proxy = urllib.request.getproxies().get(scheme)
    host, port = target.host, target.port
    if proxy:
        parsed = urllib.parse.urlsplit(proxy if "//" in proxy else f"http://{proxy}")
        host, port = parsed.hostname or "", parsed.port or 80
    made: http.client.HTTPConnection
    if target.is_tls:
        made = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=_tls())
        if proxy:
            made.set_tunnel(target.host, target.port)
    else:
        made = http.client.HTTPConnection(host, port, timeout=timeout_s)
        made.is_proxied = bool(proxy)  # type: ignore[attr-defined]
    return made


class _Connections:
    """The connections of a thread.

    A connection with an unread rest of an answer is closed.
    """

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self._open: dict[tuple[bool, str, int], http.client.HTTPConnection] = {}

    def answer(
        self, target: HttpTarget, method: str, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        """Return the head of an answer.

        A connection closed by the server is opened again; the reopening is no new try.
        """
        where = target[:3]
        kept = self._open.pop(where, None)
        for connection in (kept, None):
            if connection is None:
                connection = _connected(target, self.patience.timeout_s)
            elif connection.sock is None:
                continue
            path = target.path
            if getattr(connection, "is_proxied", False):
                path = f"http://{target.host}:{target.port}{path}"
            try:
                connection.request(method, path, headers={**dict(target.headers), **headers})
                answer = connection.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                connection.close()
                if connection is not kept:
                    raise
                continue
            except BaseException:
                connection.close()
                raise
            self._open[where] = connection
            while len(self._open) > KEPT_CONNECTIONS:
                self._open.pop(next(iter(self._open))).close()
            return answer
        raise AssertionError("the second connection answers or raises")

    def drop(self, target: HttpTarget) -> None:
        connection = self._open.pop(target[:3], None)
        if connection is not None:
            connection.close()

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()


def _followed(
    connections: _Connections, target: HttpTarget, method: str, headers: Mapping[str, str]
) -> tuple[HttpTarget, http.client.HTTPResponse]:
    """Return the answer after all redirects, and the last target."""
    for _ in range(MOST_REDIRECTS + 1):
        answer = connections.answer(target, method, headers)
        location = answer.getheader("Location", "")
        if answer.status not in REDIRECTS or not location:
            return target, answer
        answer.read(MOST_ANSWER_BYTES)
        scheme, authority = ("https" if target.is_tls else "http"), target.host
        base = f"{scheme}://{authority}:{target.port}{target.path}"
        parsed = urllib.parse.urlsplit(urllib.parse.urljoin(base, location))
        if parsed.scheme not in ("http", "https") or (target.is_tls and parsed.scheme == "http"):
            raise _Refused(errno.EPROTO, f"is redirected to {parsed.scheme}://, which is refused")
        is_tls = parsed.scheme == "https"
        port = parsed.port or (443 if is_tls else 80)
        path = urllib.parse.urlunsplit(("", "", parsed.path or "/", parsed.query, ""))
        host = parsed.hostname or ""
        is_same = (is_tls, host, port) == target[:3]
        # A signature is valid for a single host, and a secret must not go to another host.
        own = (target.headers, target.clock) if is_same else ()
        target = HttpTarget(is_tls, host, port, path, *own)
    raise _Retried(f"is redirected more than {MOST_REDIRECTS} times")


def _pause_asked(answer: http.client.HTTPResponse) -> float:
    text = (answer.getheader("Retry-After") or "").strip()
    return float(text) if text.isdigit() else 0.0


def _refuse_status(answer: http.client.HTTPResponse, target: HttpTarget) -> None:
    """Raise _Retried or _Refused for an answer without bytes."""
    status, after_s = answer.status, _pause_asked(answer)
    if status in (200, 206):
        return
    body = answer.read(4096).decode("utf-8", "replace")
    refusal = refusals.refusal_of(status, answer.headers, body)
    said = refusal.said
    if status in RETRIED:
        raise _Retried(f"the server answers {said}", after_s)
    if status in (404, 410):
        raise _Refused(errno.ENOENT, f"the object is not there ({said})")
    skew = _skew(answer, target) if status in (400, 401, 403) else ""
    why = refusals.sentence(refusal, skew)
    if why:
        is_elsewhere = status in REDIRECTS or status == 400
        raise _Refused(errno.EREMOTE if is_elsewhere else errno.EACCES, why)
    if status in (412, 416):
        raise _Refused(errno.ESTALE, f"the object has changed since it was indexed ({said})")
    if status in REDIRECTS:
        raise _Refused(errno.EREMOTE, f"the store sends it elsewhere ({said})")
    raise _Refused(errno.EPROTO, f"the server answers {said}")


def _skew(answer: http.client.HTTPResponse, target: HttpTarget) -> str:
    """Return the difference between the server's clock and this machine's, "" for none.

    Raises _Retried: a signature was made with the wrong time, and the next one is made with the
    server's.
    """
    server_s = refusals.server_seconds(answer.headers)
    if server_s is None:
        return ""
    if target.clock is None:
        ahead_s = time.time() - server_s
        return difference(ahead_s) if abs(ahead_s) >= NOTED_S else ""
    said = target.clock.corrected(server_s)
    if said:
        target.clock.warn(said)
        raise _Retried(f"the server refuses the time of the signature: {said} of the server")
    return ""


def _refuse_encoding(answer: http.client.HTTPResponse) -> None:
    encoding = (answer.getheader("Content-Encoding") or "identity").strip().lower()
    if encoding not in ("identity", "", "aws-chunked"):
        raise _Retried(f"the server sends it compressed ({encoding[:20]}), which has no ranges")


def _range_in(answer: http.client.HTTPResponse) -> tuple[int, int, int]:
    """Return (first byte, end, size of the object) of an answer."""
    if answer.status == 200:
        length = answer.getheader("Content-Length", "")
        if not length.isdigit():
            raise _Retried("the server gives no length")
        return 0, int(length), int(length)
    said = answer.getheader("Content-Range", "")
    unit, _, rest = said.partition(" ")
    span, _, size = rest.partition("/")
    first, _, last = span.partition("-")
    if unit.lower() != "bytes" or not (first.isdigit() and last.isdigit() and size.isdigit()):
        raise _Retried(f"the server answers with the range {said[:60]!r}")
    return int(first), int(last) + 1, int(size)


def changed(expected: Seen, now: Seen) -> str:
    """Return the difference between an object and the index; "" if none."""
    if expected.size != now.size:
        return f"it had {expected.size:,} bytes and has {now.size:,}"
    if -1 not in (expected.mark, now.mark):
        return "" if expected.mark == now.mark else "it has another ETag"
    if expected.written_ns and now.written_ns and expected.written_ns != now.written_ns:
        return "it was written to"
    return ""


def _attempt(
    connections: _Connections, part: ObjectRange, is_cancelled: Callable[[], bool]
) -> None:
    """Try once.

    Raises _Retried, _Refused, OSError or HTTPException.
    """
    first, end = part.first, part.first + part.length
    target, answer = _followed(
        connections, part.remote.target("GET"), "GET", {"Range": f"bytes={first}-{end - 1}"}
    )
    try:
        _refuse_status(answer, target)
        got_first, got_end, size = _range_in(answer)
        if part.expected is not None:
            now = part.remote.seen(answer.headers, size)
            how = changed(part.expected, now)
            if how:
                raise _Refused(errno.ESTALE, f"the object has changed since it was indexed ({how})")
        _refuse_encoding(answer)
        if (got_first, got_end) != (first, end):
            if answer.status == 200:
                raise _Retried("the server gives whole objects and no ranges")
            raise _Retried(
                f"the server gives bytes {got_first:,} to {got_end:,}, "
                f"and {first:,} to {end:,} were asked for"
            )
        length = answer.getheader("Content-Length")
        if length is not None and length != str(part.length):
            raise _Retried(f"the server announces {length[:20]} bytes of {part.length:,}")
        _received(connections, answer, part, is_cancelled)
    except BaseException:
        connections.drop(target)
        raise
    if answer.will_close:
        connections.drop(target)


def _received(
    connections: _Connections,
    answer: http.client.HTTPResponse,
    part: ObjectRange,
    is_cancelled: Callable[[], bool],
) -> None:
    done, view = 0, part.view
    give_up = time.monotonic() + connections.patience.timeout_s + part.length / LEAST_BPS
    while done < part.length:
        n_bytes = answer.readinto(view[done:])
        if not n_bytes:
            raise _Retried(f"the answer ends after {done:,} of {part.length:,} bytes")
        done += n_bytes
        if time.monotonic() > give_up:
            raise _Retried(f"{done:,} of {part.length:,} bytes came in time")
        if is_cancelled():
            raise _Refused(errno.ECANCELED, "the reading was ended")
    if answer.chunked and answer.read(1):
        raise _Retried("the answer is longer than what was asked for")


def _said(error: BaseException, patience: Patience) -> str:
    if isinstance(error, TimeoutError):
        return f"the server has sent nothing for {patience.timeout_s:g} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the server's certificate is not trusted: {error.verify_message}"
    if isinstance(error, socket.gaierror):
        return f"the server's name is not known: {error.strerror}"
    if isinstance(error, OSError) and error.strerror:
        return f"the connection failed: {error.strerror}"
    if isinstance(error, http.client.IncompleteRead):
        return "the answer ends too soon"
    return str(error) or type(error).__name__


def _tried(
    attempt: Callable[[], None], patience: Patience, pause: Callable[[float], bool]
) -> tuple[int, str]:
    """Return (errno or 0, reason) after all tries; pause: waits, returns False if cancelled."""
    why, code = "", errno.EIO
    for number in range(patience.tries):
        try:
            attempt()
            return 0, ""
        except _Refused as refused:
            return refused.code, str(refused)
        except ssl.SSLCertVerificationError as error:
            return errno.EACCES, _said(error, patience)
        except socket.gaierror as error:
            why, code = _said(error, patience), errno.EHOSTUNREACH
            if error.errno == socket.EAI_NONAME:
                return code, why
            pause_s = random.uniform(0, patience.most_pause_s)
        except (_Retried, OSError, http.client.HTTPException, ValueError) as error:
            why = _said(error, patience)
            code = errno.ETIMEDOUT if isinstance(error, TimeoutError) else errno.EIO
            most_s = min(patience.most_pause_s, patience.first_pause_s * 2**number)
            asked_s = error.after_s if isinstance(error, _Retried) else 0.0
            pause_s = min(asked_s, patience.most_pause_s) + random.uniform(0, most_s)
        if number + 1 < patience.tries and not pause(pause_s):
            return errno.ECANCELED, "the reading was ended"
    return code, f"{why}; {patience.tries} tries"


# --- many at once --------------------------------------------------------------------------------


class _Batch:
    """The parts of a read."""

    def __init__(self, n_parts: int) -> None:
        self.left = n_parts
        self.is_cancelled = False
        self.changed = threading.Condition()

    def done(self, n_parts: int = 1) -> None:
        with self.changed:
            self.left -= n_parts
            if not self.left:
                self.changed.notify_all()

    def cancel(self) -> None:
        with self.changed:
            self.is_cancelled = True
            self.changed.notify_all()

    def pause(self, seconds: float) -> bool:
        with self.changed:
            self.changed.wait_for(lambda: self.is_cancelled, seconds)
            return not self.is_cancelled

    def wait(self) -> None:
        with self.changed:
            while self.left:
                self.changed.wait()


class Ongoing:
    """A read in progress, with a way for another thread to end the read."""

    def __init__(self) -> None:
        self.batch: _Batch | None = None

    def cancel(self) -> None:
        """End the read: missing parts fail."""
        batch = self.batch
        if batch is not None:
            batch.cancel()


class Transfers:
    """Threads of this process for reads of parts.

    All callers share a queue, so at the end of a portion the connections continue with the next
    portion.
    """

    def __init__(self, patience: Patience | None = None) -> None:
        self.patience = patience or Patience.of_environment()
        self._queue: deque[tuple[ObjectRange, _Batch]] = deque()
        self._changed = threading.Condition()
        self._n_threads = self._n_idle = self._n_running = 0
        self._limit = 1

    def read(
        self,
        parts: Sequence[ObjectRange],
        depth: int,
        ongoing: Ongoing | None = None,
    ) -> None:
        """Read all parts, at most depth at once; each part has its error afterwards.

        ongoing: lets another thread end the read.
        """
        pieces = [piece for part in parts for piece in part.split()]
        batch = _Batch(len(pieces))
        if ongoing is not None:
            ongoing.batch = batch
        if pieces:
            self._submit(pieces, batch, depth)
        try:
            batch.wait()
        except BaseException:  # on return, the memory belongs to the caller again
            batch.cancel()
            batch.wait()
            raise
        finally:
            if ongoing is not None:
                ongoing.batch = None
        if len(pieces) > len(parts):
            _gather(parts, pieces)

    def _submit(self, pieces: list[ObjectRange], batch: _Batch, depth: int) -> None:
        with self._changed:
            self._limit = max(1, min(depth, MOST_IN_FLIGHT))
            self._queue.extend((piece, batch) for piece in pieces)
            wanted = min(self._limit - self._n_threads, len(self._queue) - self._n_idle)
            for _ in range(wanted):
                self._n_threads += 1
                thread = threading.Thread(target=self._work, daemon=True, name="penstock-object")
                thread.start()
            self._changed.notify(len(pieces))

    def _take(self) -> tuple[ObjectRange, _Batch] | None:
        def may_run() -> bool:
            return bool(self._queue) and self._n_running < self._limit

        with self._changed:
            self._n_idle += 1
            is_there = self._changed.wait_for(may_run, IDLE_S)
            self._n_idle -= 1
            if not is_there:
                self._n_threads -= 1
                return None
            self._n_running += 1
            return self._queue.popleft()

    def _work(self) -> None:
        connections = _Connections(self.patience)
        while (job := self._take()) is not None:
            part, batch = job
            begun = time.perf_counter_ns()
            try:
                self._fetch(connections, part, batch)
            except BaseException as error:  # an ended thread would leave the caller waiting
                part.error, part.why = errno.EIO, f"{error!r}; please report it"
            part.latency_ns = time.perf_counter_ns() - begun
            with self._changed:
                self._n_running -= 1
                if self._queue:
                    self._changed.notify()
            batch.done()
            del job, part, batch  # releases the caller's memory
        connections.close()

    def _fetch(self, connections: _Connections, part: ObjectRange, batch: _Batch) -> None:
        if batch.is_cancelled:
            part.error, part.why = errno.ECANCELED, "the reading was ended"
        elif part.length:
            part.error, part.why = _tried(
                lambda: _attempt(connections, part, lambda: batch.is_cancelled),
                self.patience,
                batch.pause,
            )


def _gather(parts: Sequence[ObjectRange], pieces: Sequence[ObjectRange]) -> None:
    """Set the outcome of each part from the outcomes of the pieces."""
    number = 0
    for part in parts:
        n_pieces = max(1, -(-part.length // PART_BYTES))
        own = pieces[number : number + n_pieces]
        number += n_pieces
        part.latency_ns = max(piece.latency_ns for piece in own)
        failed = next((piece for piece in own if piece.error), None)
        if failed is not None:
            part.error, part.why = failed.error, failed.why


_of_process: dict[int, Transfers] = {}
_lock = threading.Lock()


def _forget() -> None:
    """Begin anew in a forked child: without threads and without the parent's connections."""
    global _lock
    _lock = threading.Lock()
    _of_process.clear()


os.register_at_fork(after_in_child=_forget)


def transfers() -> Transfers:
    """Return the transfers of this process."""
    with _lock:
        transfers_here = _of_process.get(os.getpid())
        if transfers_here is None:
            transfers_here = _of_process[os.getpid()] = Transfers()
        return transfers_here


_of_thread = threading.local()


def _own_connections(patience: Patience) -> _Connections:
    """Return this thread's connections for listings, new after a fork."""
    kept: tuple[int, _Connections] | None = getattr(_of_thread, "kept", None)
    if kept is None or kept[0] != os.getpid() or kept[1].patience != patience:
        kept = _of_thread.kept = (os.getpid(), _Connections(patience))
    return kept[1]


def fetched(
    url: str,
    target: Callable[[], HttpTarget],
    method: str = "GET",
    patience: Patience | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[http.client.HTTPMessage, bytes]:
    """Return (headers, body) of a small answer, from a listing or a HEAD.

    Raises FeedError: no answer; the __cause__ is a FileNotFoundError or a PermissionError if
    reported by the server.
    """
    connections = _own_connections(patience or transfers().patience)
    patience = connections.patience
    answers: list[tuple[http.client.HTTPMessage, bytes]] = []

    def attempt() -> None:
        source, answer = _followed(connections, target(), method, headers or {})
        try:
            _refuse_status(answer, source)
            body = answer.read(MOST_ANSWER_BYTES)  # HEAD has no body; frees the connection
        except BaseException:
            connections.drop(source)
            raise
        answers.append((answer.headers, body))

    def pause(seconds: float) -> bool:
        time.sleep(seconds)
        return True

    code, why = _tried(attempt, patience, pause)
    if code:
        raise FeedError(f"{url}: {why}") from OSError(code, why)
    return answers[-1]
