"""Answer requests of HTTP clients from copies on a fast tier.

urllib3 is the base of requests and botocore (boto3); aiohttp of aiobotocore (s3fs), gcsfs and
fsspec's HTTP; httpx of huggingface_hub.  urllib.request is of the standard library.  Imports no
client.  Imported only where the run serves objects.
"""

from __future__ import annotations

import copy
import functools
import importlib
import io
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from types import ModuleType
from typing import Any, NamedTuple

from penstock.adapters.marks import quietly, wrap
from penstock.adapters.staged_objects import TierAnswer, Wanted, forget, look

__all__ = ["PATCHES", "forget"]

Method = Callable[..., Any]
MOST_AIOHTTP_BYTES = 64 << 20  # aiohttp's answers are whole in memory
PIECE_BYTES = 1 << 20  # of an answer of httpx
# Options of aiohttp's requests without an effect on the bytes.
USUAL_OPTIONS = frozenset(
    (
        *("headers", "allow_redirects", "timeout", "ssl", "verify_ssl", "chunked", "data"),
        *("proxy", "proxy_headers", "skip_auto_headers", "read_bufsize", "trace_request_ctx"),
        *("raise_for_status", "compress", "expect100", "server_hostname", "params", "auth"),
    )
)
NEEDED_NONE = ("data", "params", "auth", "proxy", "chunked", "compress")


# The course of a request, equal for all clients


class _Request(NamedTuple):
    """A request to send: the arguments of the client's own function."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class _Unread(NamedTuple):
    """A response that nobody reads, to be closed."""

    response: Any


Course = Generator[_Request | _Unread, Any, Any]


def _course(
    wanted: Wanted,
    asked: _Request,
    question: Callable[[], _Request | None],
    answer: Callable[[], Any],
) -> Course:
    """Yield what to send and to close; the response is sent back.  Return the program's response.

    asked: the program's request.  question: returns a request for the version, None: not possible.
    answer: returns a response from the copy, None: the copy cannot be read.
    """
    if wanted.part is None:
        response = yield asked
        wanted.judge(_status(response), response.headers)
        return response
    if wanted.condition or wanted.is_head:
        changed = question()
        if changed is None:
            return (yield asked)
        response = yield changed
        is_same = wanted.judge(_status(response), response.headers)
        if not is_same and not wanted.is_head and _status(response) in (200, 206):
            return response
        yield _Unread(response)
        if not is_same:
            return (yield asked)
    answered = answer()
    return (yield asked) if answered is None else answered


def _status(response: Any) -> int:
    return int(response.status_code if hasattr(response, "status_code") else response.status)


def _follow(course: Course, send: Method, close: Method) -> Any:
    """Return the response of a course.  Raises the errors of the client."""
    response = None
    try:
        while True:
            step = course.send(response)
            if isinstance(step, _Unread):
                response = close(step.response)
            else:
                response = send(*step.args, **step.kwargs)
    except StopIteration as ended:
        return ended.value


async def _follow_async(course: Course, send: Method, close: Method) -> Any:
    """Do as _follow(); send and close return awaitables."""
    response = None
    try:
        while True:
            step = course.send(response)
            if isinstance(step, _Unread):
                response = await close(step.response)
            else:
                response = await send(*step.args, **step.kwargs)
    except StopIteration as ended:
        return ended.value


# urllib3


def _patch_pool(module: ModuleType) -> None:
    wrap("staged objects", module, "HTTPConnectionPool.urlopen", _wrap_urlopen)


def _wrap_urlopen(original: Method) -> Method:
    @functools.wraps(original)
    def urlopen(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = _look_at(self, args, kwargs)
        if wanted is None:
            return original(self, *args, **kwargs)
        course = _course(
            wanted,
            _Request((self, *args), kwargs),
            lambda: _with(self, args, kwargs, wanted),
            lambda: _answer(self, args, kwargs, wanted),
        )
        return _follow(course, original, _drain)

    return urlopen


NAMES = ("method", "url", "body", "headers", "retries")


def _asked(args: Any, kwargs: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = dict(zip(NAMES, args, strict=False)) | kwargs
    return arguments


@quietly
def _look_at(pool: Any, args: Any, kwargs: Any) -> Wanted | None:
    asked = _asked(args, kwargs)
    url = str(asked["url"])
    if not url.startswith("/"):
        return None  # through a proxy
    headers = asked.get("headers")
    is_plain = not asked.get("body") and not asked.get("chunked")
    wanted: Wanted | None = look(
        *(str(asked["method"]).upper(), pool.scheme, pool.host, pool.port, url),
        pool.headers if headers is None else headers,
        is_plain,
    )
    return wanted


@quietly
def _with(pool: Any, args: Any, kwargs: Any, wanted: Wanted) -> Any:
    """Return the arguments of a request for the version."""
    asked = _asked(args, kwargs)
    headers = asked.get("headers")
    asked["headers"] = dict(pool.headers if headers is None else headers) | dict(wanted.condition)
    more = {name: value for name, value in asked.items() if name not in NAMES[:2]}
    if wanted.is_head:
        more["headers"] = {
            name: value for name, value in more["headers"].items() if name.lower() != "range"
        }
    method = "HEAD" if wanted.is_head else asked["method"]
    return _Request((pool, method, asked["url"], *args[5:]), more)


@quietly
def _drain(response: Any) -> None:
    response.drain_conn()
    response.release_conn()


@quietly
def _answer(pool: Any, args: Any, kwargs: Any, wanted: Wanted) -> Any:
    from urllib3.response import HTTPResponse

    served = wanted.answer()
    if served is None:
        return None
    asked = _asked(args, kwargs)
    body = io.BytesIO(served.body) if isinstance(served.body, bytes) else served.body
    return HTTPResponse(
        body=body,
        headers=dict(served.headers),
        status=served.status,
        version=11,
        reason=served.reason,
        preload_content=asked.get("preload_content", True),
        decode_content=asked.get("decode_content", True),
        retries=asked.get("retries") if not isinstance(asked.get("retries"), bool | int) else None,
        request_method=asked["method"],
        request_url=asked["url"],
    )


# aiohttp


def _patch_aiohttp(module: ModuleType) -> None:
    wrap("staged objects", module, "ClientSession._request", _wrap_request)


def _wrap_request(original: Method) -> Method:
    @functools.wraps(original)
    async def request(self: Any, method: Any, url: Any, **kwargs: Any) -> Any:
        wanted = _look_at_async(self, method, url, kwargs)
        if wanted is None:
            return await original(self, method, url, **kwargs)
        asking = "HEAD" if wanted.is_head else method
        course = _course(
            wanted,
            _Request((self, method, url), kwargs),
            lambda: _Request((self, asking, url), _with_async(kwargs, wanted)),
            lambda: _answer_async(self, method, url, kwargs, wanted),
        )
        return await _follow_async(course, original, _release)

    return request


async def _release(response: Any) -> None:
    response.release()


@quietly
def _look_at_async(session: Any, method: Any, url: Any, kwargs: Any) -> Wanted | None:
    if session.closed or not kwargs.keys() <= USUAL_OPTIONS:
        return None
    full = session._build_url(url)
    headers = [*session.headers.items(), *dict(kwargs.get("headers") or {}).items()]
    is_plain = all(kwargs.get(name) is None for name in NEEDED_NONE)
    is_plain = is_plain and session.auth is None and not session.cookie_jar.filter_cookies(full)
    is_plain = is_plain and not full.user and not full.raw_fragment
    wanted: Wanted | None = look(
        *(str(method).upper(), full.scheme, full.raw_host, full.port, full.raw_path_qs),
        headers,
        is_plain,
    )
    if wanted is not None and wanted.part is not None and wanted.part.length > MOST_AIOHTTP_BYTES:
        return None
    return wanted


def _with_async(kwargs: Any, wanted: Wanted) -> Any:
    headers = dict(kwargs.get("headers") or {})
    if wanted.is_head:
        headers = {name: value for name, value in headers.items() if name.lower() != "range"}
    return kwargs | {"headers": headers | dict(wanted.condition), "raise_for_status": False}


@quietly
def _answer_async(session: Any, method: Any, url: Any, kwargs: Any, wanted: Wanted) -> Any:
    served = wanted.answer()
    return None if served is None else _response(session, str(method), url, kwargs, served)


class _Sent:
    """The writer of an unsent request."""

    output_size = 0


def _response(session: Any, method: str, url: Any, kwargs: Any, served: TierAnswer) -> Any:
    import asyncio

    import aiohttp
    from aiohttp.base_protocol import BaseProtocol
    from aiohttp.client_reqrep import ClientResponse
    from aiohttp.helpers import TimerNoop
    from multidict import CIMultiDict, CIMultiDictProxy

    loop = asyncio.get_running_loop()
    full = session._build_url(url)
    sent = CIMultiDictProxy(CIMultiDict(kwargs.get("headers") or {}))
    writer: Any = _Sent()
    response: Any = ClientResponse(
        *(method, full),
        writer=None,
        continue100=None,
        timer=TimerNoop(),
        request_info=aiohttp.RequestInfo(full, method, sent, full),
        traces=[],
        loop=loop,
        session=session,
        stream_writer=writer,
    )
    body = served.body if isinstance(served.body, bytes) else served.body.read()
    content = aiohttp.StreamReader(BaseProtocol(loop), len(body) + 1, loop=loop)
    content.feed_data(body)
    content.feed_eof()
    response.version, response.status = aiohttp.HttpVersion11, served.status
    response.reason, response.content = served.reason, content
    response._headers = CIMultiDictProxy(CIMultiDict(served.headers))
    response._raw_headers = tuple(
        (name.encode(), value.encode("utf-8", "surrogateescape")) for name, value in served.headers
    )
    return response


# httpx: below redirects, cookies and authorization


def _patch_httpx(module: ModuleType) -> None:
    wrap("staged objects", module, "HTTPTransport.handle_request", _wrap_handle)
    wrap("staged objects", module, "AsyncHTTPTransport.handle_async_request", _wrap_handle_async)


def _wrap_handle(original: Method) -> Method:
    @functools.wraps(original)
    def handle_request(self: Any, request: Any) -> Any:
        wanted = _look_at_httpx(self, request)
        if wanted is None:
            return original(self, request)
        course = _course_of_httpx(self, request, wanted)
        return _follow(course, original, _close)

    return handle_request


def _wrap_handle_async(original: Method) -> Method:
    @functools.wraps(original)
    async def handle_async_request(self: Any, request: Any) -> Any:
        wanted = _look_at_httpx(self, request)
        if wanted is None:
            return await original(self, request)
        course = _course_of_httpx(self, request, wanted)
        return await _follow_async(course, original, _aclose)

    return handle_async_request


def _course_of_httpx(transport: Any, request: Any, wanted: Wanted) -> Course:
    return _course(
        wanted,
        _Request((transport, request), {}),
        lambda: _with_httpx(transport, request, wanted),
        lambda: _answer_httpx(transport, wanted),
    )


def _close(response: Any) -> None:
    response.close()


async def _aclose(response: Any) -> None:
    await response.aclose()


@quietly
def _look_at_httpx(transport: Any, request: Any) -> Wanted | None:
    pool = transport._pool
    if type(pool).__name__.endswith("Proxy") or getattr(pool, "_uds", None) is not None:
        return None
    url = request.url
    is_plain = not request.headers.get("content-length") and not request.headers.get(
        "transfer-encoding"
    )
    wanted: Wanted | None = look(
        *(str(request.method).upper(), url.scheme, url.raw_host.decode("ascii"), url.port),
        url.raw_path.decode("ascii"),
        request.headers.raw,
        is_plain,
    )
    return wanted


@quietly
def _with_httpx(transport: Any, request: Any, wanted: Wanted) -> Any:
    """Return a request for the version."""
    headers = request.headers.copy()
    headers.update(dict(wanted.condition))
    if wanted.is_head:
        headers.pop("range", None)
    changed = type(request)(
        "HEAD" if wanted.is_head else request.method,
        request.url,
        headers=headers,
        stream=request.stream,
        extensions=request.extensions,
    )
    return _Request((transport, changed), {})


@quietly
def _answer_httpx(transport: Any, wanted: Wanted) -> Any:
    served = wanted.answer()
    if served is None:
        return None
    module = importlib.import_module(type(transport).__module__.partition(".")[0])
    return module.Response(
        served.status,
        headers=served.headers,
        stream=_stream_class(module)(served.body),
        extensions={"http_version": b"HTTP/1.1", "reason_phrase": served.reason.encode()},
    )


@functools.cache
def _stream_class(module: Any) -> Any:
    """Return a class for the bodies of httpx or httpx2, made of bytes or a reader."""

    class StagedBody(module.SyncByteStream, module.AsyncByteStream):  # type: ignore[misc]
        def __init__(self, body: Any) -> None:
            self._body = io.BytesIO(body) if isinstance(body, bytes) else body

        def __iter__(self) -> Iterator[bytes]:
            while piece := self._body.read(PIECE_BYTES):
                yield piece

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in self:
                yield piece

        def close(self) -> None:
            self._body.close()

        async def aclose(self) -> None:
            self._body.close()

    return StagedBody


# urllib.request


def _patch_urllib(module: ModuleType) -> None:
    wrap("staged objects", module, "AbstractHTTPHandler.do_open", _wrap_open)


def _wrap_open(original: Method) -> Method:
    @functools.wraps(original)
    def do_open(self: Any, http_class: Any, req: Any, **kwargs: Any) -> Any:
        wanted = _look_at_urllib(req)
        if wanted is None:
            return original(self, http_class, req, **kwargs)
        course = _course(
            wanted,
            _Request((self, http_class, req), kwargs),
            lambda: _with_urllib(self, http_class, req, kwargs, wanted),
            lambda: _answer_urllib(req, wanted),
        )
        return _follow(course, original, _close)

    return do_open


@quietly
def _look_at_urllib(req: Any) -> Wanted | None:
    from urllib.parse import urlsplit

    if req._tunnel_host or req.has_proxy():
        return None
    place = urlsplit(f"//{req.host}")
    wanted: Wanted | None = look(
        *(req.get_method().upper(), req.type, place.hostname or "", place.port, req.selector),
        {**req.headers, **req.unredirected_hdrs},
        req.data is None and place.username is None,
    )
    return wanted


@quietly
def _with_urllib(handler: Any, http_class: Any, req: Any, kwargs: Any, wanted: Wanted) -> Any:
    """Return a request for the version."""
    changed = copy.copy(req)
    changed.headers = {**req.headers, **wanted.condition}
    changed.unredirected_hdrs = dict(req.unredirected_hdrs)
    if wanted.is_head:
        changed.method = "HEAD"
        for headers in (changed.headers, changed.unredirected_hdrs):
            headers.pop("Range", None)  # urllib writes names this way
    return _Request((handler, http_class, changed), kwargs)


class _Connection:
    """A connection with one answer, as far as http.client reads it."""

    def __init__(self, served: TierAnswer) -> None:
        lines = [f"HTTP/1.1 {served.status} {served.reason}"]
        lines += [f"{name}: {value}" for name, value in served.headers]
        head = "\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1")
        body = io.BytesIO(served.body) if isinstance(served.body, bytes) else served.body
        self._parts = [io.BytesIO(head), body]

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Parts(self._parts))


class _Parts(io.RawIOBase):
    """The bytes of several files, one after the other."""

    def __init__(self, parts: list[Any]) -> None:
        self._parts = parts

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while self._parts:
            if n := int(self._parts[0].readinto(buffer)):
                return n
            self._parts.pop(0).close()
        return 0

    def close(self) -> None:
        for part in self._parts:
            part.close()
        self._parts = []
        super().close()


@quietly
def _answer_urllib(req: Any, wanted: Wanted) -> Any:
    from http.client import HTTPResponse

    served = wanted.answer()
    if served is None:
        return None
    sock: Any = _Connection(served)
    response: Any = HTTPResponse(sock, method=req.get_method(), url=req.get_full_url())
    response.begin()
    response.url, response.msg = req.get_full_url(), response.reason
    return response


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "urllib3.connectionpool": _patch_pool,
    "aiohttp.client": _patch_aiohttp,
    "httpx._transports.default": _patch_httpx,
    "httpx2._transports.default": _patch_httpx,
    "urllib.request": _patch_urllib,
}
