"""Record requests of aiohttp, the base of s3fs, gcsfs and adlfs, and of httpx and httpx2.

Imports no client.  A request of aiohttp begins when the connection exists, and ends when the end of
the body arrives; a request of httpx begins before the search for a connection.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from types import ModuleType
from typing import Any

from penstock.adapters.http_client import botocore_ask
from penstock.adapters.marks import quietly, wrap
from penstock.adapters.requests import (
    HttpRequest,
    asking,
    clean,
    count_retry,
    now_ns,
    object_bytes_of,
    operation_of,
    range_of,
    wrap_all,
)
from penstock.recording import recorder

__all__ = ["PATCHES"]

Method = Callable[..., Any]
DEFAULT_PORTS = {"http": 80, "https": 443}


@quietly
def _begun(client: str, request: Any, path: str, port: int | None) -> HttpRequest:
    """Return the state of a request of aiohttp or httpx; the path may have a query."""
    _, path, is_list = clean(path)
    url = request.url
    endpoint = f"{url.host}:{port or DEFAULT_PORTS.get(url.scheme, '')}"
    begun = HttpRequest(client, now_ns(), str(request.method), endpoint, path)
    if begun.operation == begun.method:
        begun.operation = operation_of(begun.method, is_list)
    headers = request.headers
    asked = headers.get("Range")
    if asked:
        begun.range = range_of(asked)
    length = headers.get("Content-Length") or ""
    begun.sent = int(length) if length.isdigit() else -1 if "Transfer-Encoding" in headers else 0
    return begun


def _answered(begun: HttpRequest, status: int, headers: Any) -> None:
    begun.first_byte_ns = now_ns() - begun.begun_ns
    begun.status = int(status)
    if begun.status == 206:
        begun.object_bytes = object_bytes_of(headers.get("Content-Range"))
    elif begun.status == 200 and "Content-Encoding" not in headers:
        length = headers.get("Content-Length") or ""
        begun.object_bytes = int(length) if length.isdigit() else -1


@quietly
def _fail(begun: HttpRequest, error: BaseException) -> None:
    begun.error = type(error).__name__
    begun.end(is_part=begun.status != 0)


# aiohttp


def _patch_aiohttp(module: ModuleType) -> None:
    wrappers = {
        "ClientRequest.send": _wrap_send,
        "ClientResponse.start": _wrap_start,
        "ClientResponse._notify_content": _wrap_notify,
    }
    wrap_all("aiohttp", module, wrappers)


def _wrap_send(original: Method) -> Method:
    @functools.wraps(original)
    async def send(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_recording():
            return await original(self, *args, **kwargs)
        begun = _begun("aiohttp", self, self.url.raw_path_qs, self.url.port)
        try:
            response = await original(self, *args, **kwargs)
        except BaseException as error:
            if begun is not None:
                _fail(begun, error)
            raise
        _keep(response, begun)
        return response

    return send


@quietly
def _keep(answer: Any, begun: HttpRequest | None) -> None:
    answer._penstock = begun


def _wrap_start(original: Method) -> Method:
    @functools.wraps(original)
    async def start(self: Any, connection: Any) -> Any:
        begun = self.__dict__.get("_penstock")
        if begun is None:
            return await original(self, connection)
        _connect(begun, connection)
        try:
            result = await original(self, connection)
        except BaseException as error:
            self._penstock = None
            _fail(begun, error)
            raise
        _follow(self, begun)
        return result

    return start


@quietly
def _connect(begun: HttpRequest, connection: Any) -> None:
    sock = connection.transport.get_extra_info("socket")
    begun.connection = recorder.connection(sock.fileno()) if sock is not None else 0


@quietly
def _follow(answer: Any, begun: HttpRequest) -> None:
    _answered(begun, answer.status, answer.headers)
    content = answer.content

    @quietly
    def ended() -> None:
        answer._penstock = None
        begun.received = _arrived(content)
        begun.end()

    content.on_eof(ended)


def _arrived(content: Any) -> int:
    """Return the bytes of a body received so far, as sent (before decoding)."""
    raw_bytes = getattr(content, "total_raw_bytes", None)
    return int(content.total_bytes if raw_bytes is None else raw_bytes)


def _wrap_notify(original: Method) -> Method:
    """Wrap a method that closes a body, at the end of the body or before."""

    @functools.wraps(original)
    def notify_content(self: Any) -> Any:
        begun = self.__dict__.get("_penstock")
        if begun is not None:
            _dropped(self, begun)
        return original(self)

    return notify_content


@quietly
def _dropped(answer: Any, begun: HttpRequest) -> None:
    answer._penstock = None
    content = answer.content
    if content is None:
        begun.error = "closed"
        begun.end()
        return
    error = content.exception()
    begun.received = _arrived(content)
    begun.error = type(error).__name__ if error is not None else ""
    begun.last_ns = now_ns()
    begun.end(is_part=True)


# httpx


def _patch_httpx(module: ModuleType) -> None:
    client = module.__name__.partition(".")[0]
    wrappers = {
        "HTTPTransport.handle_request": _wrap_handle(client),
        "AsyncHTTPTransport.handle_async_request": _wrap_handle_async(client),
        "ResponseStream.__iter__": _wrap_iteration,
        "AsyncResponseStream.__aiter__": _wrap_async_iteration,
        "ResponseStream.close": _wrap_close,
        "AsyncResponseStream.aclose": _wrap_async_close,
    }
    wrap_all(client, module, wrappers)


@quietly
def _asked(client: str, request: Any) -> HttpRequest | None:
    if not recorder.is_recording():
        return None
    path = request.url.raw_path.decode("ascii", "replace")
    begun: HttpRequest | None = _begun(client, request, path, request.url.port)
    return begun


def _wrap_handle(client: str) -> Callable[[Method], Method]:
    def wrapper(original: Method) -> Method:
        @functools.wraps(original)
        def handle_request(self: Any, request: Any) -> Any:
            begun = _asked(client, request)
            if begun is None:
                return original(self, request)
            try:
                response = original(self, request)
            except BaseException as error:
                _fail(begun, error)
                raise
            _streams(begun, response)
            return response

        return handle_request

    return wrapper


def _wrap_handle_async(client: str) -> Callable[[Method], Method]:
    def wrapper(original: Method) -> Method:
        @functools.wraps(original)
        async def handle_async_request(self: Any, request: Any) -> Any:
            begun = _asked(client, request)
            if begun is None:
                return await original(self, request)
            try:
                response = await original(self, request)
            except BaseException as error:
                _fail(begun, error)
                raise
            _streams(begun, response)
            return response

        return handle_async_request

    return wrapper


@quietly
def _streams(begun: HttpRequest, response: Any) -> None:
    _answered(begun, response.status_code, response.headers)
    response.stream._penstock = begun
    begun.last_ns = now_ns()
    stream = response.extensions.get("network_stream")
    sock = stream.get_extra_info("socket") if stream is not None else None
    if sock is not None:
        begun.connection = recorder.connection(sock.fileno())


def _wrap_iteration(original: Method) -> Method:
    @functools.wraps(original)
    def iterate(self: Any) -> Iterator[bytes]:
        begun = self.__dict__.get("_penstock")
        return original(self) if begun is None else _counted(original(self), self, begun)

    return iterate


def _counted(parts: Any, stream: Any, begun: HttpRequest) -> Iterator[bytes]:
    try:
        for part in parts:
            begun.received += len(part)
            begun.last_ns = now_ns()
            yield part
    except GeneratorExit:
        parts.close()
        raise
    except BaseException as error:
        stream._penstock = None
        _fail(begun, error)
        raise
    stream._penstock = None
    begun.end()


def _wrap_async_iteration(original: Method) -> Method:
    @functools.wraps(original)
    def iterate(self: Any) -> AsyncIterator[bytes]:
        begun = self.__dict__.get("_penstock")
        return original(self) if begun is None else _counted_async(original(self), self, begun)

    return iterate


async def _counted_async(parts: Any, stream: Any, begun: HttpRequest) -> AsyncIterator[bytes]:
    try:
        async for part in parts:
            begun.received += len(part)
            begun.last_ns = now_ns()
            yield part
    except GeneratorExit:
        await parts.aclose()
        raise
    except BaseException as error:
        stream._penstock = None
        _fail(begun, error)
        raise
    stream._penstock = None
    begun.end()


@quietly
def _closed(stream: Any) -> None:
    begun = stream.__dict__.get("_penstock")
    if begun is not None:
        stream._penstock = None
        begun.end(is_part=True)


def _wrap_close(original: Method) -> Method:
    @functools.wraps(original)
    def close(self: Any) -> Any:
        _closed(self)
        return original(self)

    return close


def _wrap_async_close(original: Method) -> Method:
    @functools.wraps(original)
    async def aclose(self: Any) -> Any:
        _closed(self)
        return await original(self)

    return aclose


# aiobotocore


def _patch_aiobotocore(module: ModuleType) -> None:
    wrap("aiobotocore", module, "AioEndpoint._send_request", _wrap_operation)
    wrap("aiobotocore", module, "AioEndpoint._needs_retry", _wrap_needs_retry)


def _wrap_operation(original: Method) -> Method:
    @functools.wraps(original)
    async def send_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        ask = botocore_ask(args, kwargs) if recorder.is_recording() else None
        if ask is None:
            return await original(self, *args, **kwargs)
        ask.client = "aiobotocore"
        token = asking.set(ask)
        try:
            return await original(self, *args, **kwargs)
        finally:
            asking.reset(token)

    return send_request


def _wrap_needs_retry(original: Method) -> Method:
    @functools.wraps(original)
    async def needs_retry(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun_ns = now_ns()
        is_needed = await original(self, *args, **kwargs)
        if is_needed:
            count_retry(begun_ns)
        return is_needed

    return needs_retry


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "aiohttp.client_reqrep": _patch_aiohttp,
    "httpx._transports.default": _patch_httpx,
    "httpx2._transports.default": _patch_httpx,
    "aiobotocore.endpoint": _patch_aiobotocore,
}
