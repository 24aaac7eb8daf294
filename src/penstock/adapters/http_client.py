"""Record requests of http.client, and retries of urllib3 and botocore.  Imports no client.

http.client is the base of urllib, urllib3, requests and botocore.  A request begins with the first
line, and ends with the end of the body, a close or an error.  The reads of the program, or of the
layer above, count the bytes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters.marks import quietly, wrap
from penstock.adapters.requests import (
    Ask,
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

NAME = "http.client"
Method = Callable[..., Any]
FIELDS = {b"range": "range", b"content-length": "length", b"transfer-encoding": "encoding"}
OPERATIONS = {
    "GetObject": "GET",
    "PutObject": "PUT",
    "UploadPart": "PUT",
    "HeadObject": "HEAD",
    "ListObjects": "LIST",
    "ListObjectsV2": "LIST",
    "DeleteObject": "DELETE",
    "DeleteObjects": "DELETE",
}


def _patch(module: ModuleType) -> None:
    readers = ("read", "read1", "readline", "readinto")
    wrap_all(
        NAME,
        module,
        {
            "HTTPConnection.putrequest": _wrap_begin,
            "HTTPConnection.endheaders": _wrap_sending,
            "HTTPConnection.getresponse": _wrap_answer,
            "HTTPConnection.close": _wrap_close,
            "HTTPResponse._read_status": _wrap_first_byte,
            "HTTPResponse._close_conn": _wrap_body_end,
            **{f"HTTPResponse.{name}": _wrap_read for name in readers},
        },
    )


# The connection, up to the headers of the answer


def _wrap_begin(original: Method) -> Method:
    @functools.wraps(original)
    def putrequest(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun_ns = now_ns()
        result = original(self, *args, **kwargs)
        if recorder.is_recording():
            _begin(self, begun_ns, args, kwargs)
        return result

    return putrequest


@quietly
def _begin(connection: Any, begun_ns: int, args: Any, kwargs: Any) -> None:
    method = args[0] if args else kwargs["method"]
    url = args[1] if len(args) > 1 else kwargs["url"]
    endpoint, path, is_list = clean(url)
    if not endpoint:
        host, port = connection.host, connection.port
        if getattr(connection, "_tunnel_host", None):
            host, port = connection._tunnel_host, connection._tunnel_port or 443
        endpoint = f"{host}:{port}"
    request = HttpRequest(NAME, begun_ns, method, endpoint, path)
    if request.operation == method:
        request.operation = operation_of(method, is_list)
    connection._penstock = request


def _wrap_sending(original: Method) -> Method:
    @functools.wraps(original)
    def endheaders(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.__dict__.pop("_penstock", None)
        if request is None:
            return original(self, *args, **kwargs)
        _look_at_headers(self, request)
        try:
            result = original(self, *args, **kwargs)
        except BrokenPipeError as error:
            request.error = type(error).__name__
            self._penstock = request  # the server may have answered before the pipe broke
            raise
        except BaseException as error:
            _fail(request, error)
            raise
        self._penstock = request
        return result

    return endheaders


@quietly
def _look_at_headers(connection: Any, request: HttpRequest) -> None:
    """Keep the range and the body length from the request's headers."""
    for line in connection._buffer[1:]:
        name, _, value = line.partition(b":")
        field = FIELDS.get(name.lower())
        if field == "range":
            request.range = range_of(value.decode("latin-1"))
        elif field == "length":
            request.sent = int(value)
        elif field == "encoding":
            request.sent = -1


def _wrap_answer(original: Method) -> Method:
    @functools.wraps(original)
    def getresponse(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.__dict__.pop("_penstock", None)
        if request is None:
            return original(self, *args, **kwargs)
        request.connection = _connection_of(self.sock) or 0
        try:
            response = original(self, *args, **kwargs)
        except BaseException as error:
            _fail(request, error)
            raise
        _answered(request, response)
        return response

    return getresponse


@quietly
def _connection_of(sock: Any) -> int:
    return recorder.connection(sock.fileno()) if sock is not None else 0


@quietly
def _answered(request: HttpRequest, answer: Any) -> None:
    # urllib3 puts an answer object of urllib3 around the answer of http.client.
    response = getattr(answer, "_original_response", None) or answer
    request.error = ""
    request.status = int(response.status)
    first_ns = response.__dict__.get("_penstock_ns") or now_ns()
    request.first_byte_ns = max(0, first_ns - request.begun_ns)
    length = response.length
    if request.status == 206:
        request.object_bytes = object_bytes_of(response.headers.get("content-range"))
    elif request.status == 200 and request.method == "HEAD":
        size = response.headers.get("content-length") or ""
        request.object_bytes = int(size) if size.isdigit() else -1
    elif request.status == 200 and length is not None and request.method == "GET":
        request.object_bytes = length
    if length == 0 or request.method == "HEAD" or response.isclosed():
        request.end()
    else:
        response._penstock = request


@quietly
def _fail(request: HttpRequest, error: BaseException) -> None:
    request.error = type(error).__name__
    request.end(is_part=request.status != 0)


def _wrap_close(original: Method) -> Method:
    @functools.wraps(original)
    def close(self: Any) -> Any:
        request = self.__dict__.pop("_penstock", None)
        if request is not None:
            _drop(request)
        return original(self)

    return close


@quietly
def _drop(request: HttpRequest) -> None:
    """End a request without an answer when the connection is closed."""
    request.error = request.error or "closed"
    request.end()


# The body of the answer


def _wrap_first_byte(original: Method) -> Method:
    @functools.wraps(original)
    def read_status(self: Any) -> Any:
        result = original(self)
        self._penstock_ns = now_ns()
        return result

    return read_status


def _wrap_read(original: Method) -> Method:
    @functools.wraps(original)
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = self.__dict__.get("_penstock")
        if request is None or request.depth:
            return original(self, *args, **kwargs)
        request.depth = 1
        try:
            got = original(self, *args, **kwargs)
        except BaseException as error:
            _lost(self, request, error)
            raise
        request.depth = 0
        request.received += got if type(got) is int else len(got or b"")
        if request.is_closed:
            _ended(self, request)
        else:
            request.last_ns = now_ns()
        return got

    return read


@quietly
def _lost(response: Any, request: HttpRequest, error: BaseException) -> None:
    request.depth = 0
    response.__dict__.pop("_penstock", None)
    request.received += len(getattr(error, "partial", b""))
    _fail(request, error)


def _wrap_body_end(original: Method) -> Method:
    @functools.wraps(original)
    def close_conn(self: Any) -> Any:
        request = self.__dict__.get("_penstock")
        if request is not None:
            request.is_closed = True
            if not request.depth:
                _closed(self, request)
        return original(self)

    return close_conn


@quietly
def _ended(response: Any, request: HttpRequest) -> None:
    """End a request after the last read of the body."""
    response.__dict__.pop("_penstock", None)
    request.end(is_part=bool(response.length))


@quietly
def _closed(response: Any, request: HttpRequest) -> None:
    """End a request when the program closes the body."""
    response.__dict__.pop("_penstock", None)
    is_whole = response.length == 0
    if request.chunks is not None:  # urllib3 reads chunk by chunk
        is_whole = request.chunks.chunk_left == 0
    request.end(is_part=not is_whole)


# urllib3


def _patch_answers(module: ModuleType) -> None:
    wrap("urllib3", module, "HTTPResponse._update_chunk_length", _wrap_chunk_length)
    wrap("urllib3", module, "HTTPResponse._handle_chunk", _wrap_chunk)


def _request_of(answer: Any) -> HttpRequest | None:
    response = getattr(answer, "_original_response", None) or getattr(answer, "_fp", None)
    request = getattr(response, "_penstock", None)
    return request if isinstance(request, HttpRequest) else None


def _wrap_chunk_length(original: Method) -> Method:
    @functools.wraps(original)
    def update_chunk_length(self: Any) -> Any:
        request = _request_of(self)
        if request is not None:
            request.chunks = self
        return original(self)

    return update_chunk_length


def _wrap_chunk(original: Method) -> Method:
    @functools.wraps(original)
    def handle_chunk(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = _request_of(self)
        try:
            got = original(self, *args, **kwargs)
        except BaseException as error:
            if request is not None:
                _lost(self._fp, request, error)
            raise
        if request is not None:
            request.received += len(got or b"")
        return got

    return handle_chunk


def _patch_pool(module: ModuleType) -> None:
    wrap("urllib3", module, "HTTPConnectionPool.urlopen", _wrap_urlopen)


def _wrap_urlopen(original: Method) -> Method:
    """Wrap a function of urllib3; each retry and redirect calls the function again."""

    @functools.wraps(original)
    def urlopen(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not recorder.is_recording():
            return original(self, *args, **kwargs)
        ask = asking.get()
        token = None
        if ask is None:
            ask = Ask("urllib3")
            token = asking.set(ask)
        _count_tries(ask, args[4] if len(args) > 4 else kwargs.get("retries"))
        try:
            return original(self, *args, **kwargs)
        finally:
            if token is not None:
                asking.reset(token)

    return urlopen


@quietly
def _count_tries(ask: Ask, retries: Any) -> None:
    history = getattr(retries, "history", None)
    if history:
        ask.attempt = sum(1 for answer in history if not answer.redirect_location)


def _patch_retry(module: ModuleType) -> None:
    wrap("urllib3", module, "Retry.sleep", _wrap_sleep)


def _wrap_sleep(original: Method) -> Method:
    @functools.wraps(original)
    def sleep(self: Any, *args: Any, **kwargs: Any) -> Any:
        ask = asking.get()
        begun_ns = now_ns()
        try:
            return original(self, *args, **kwargs)
        finally:
            if ask is not None:
                ask.backoff_ns += now_ns() - begun_ns

    return sleep


# botocore


def _patch_botocore(module: ModuleType) -> None:
    wrap("botocore", module, "Endpoint._send_request", _wrap_operation)
    wrap("botocore", module, "Endpoint._needs_retry", _wrap_needs_retry)


def _wrap_operation(original: Method) -> Method:
    @functools.wraps(original)
    def send_request(self: Any, *args: Any, **kwargs: Any) -> Any:
        ask = botocore_ask(args, kwargs) if recorder.is_recording() else None
        if ask is None:
            return original(self, *args, **kwargs)
        token = asking.set(ask)
        try:
            return original(self, *args, **kwargs)
        finally:
            asking.reset(token)

    return send_request


@quietly
def botocore_ask(args: Any, kwargs: Any) -> Ask:
    """Return operation and bucket of a call of _send_request(request_dict, operation_model)."""
    request = args[0] if args else kwargs["request_dict"]
    model = args[1] if len(args) > 1 else kwargs["operation_model"]
    bucket = ""
    context = request.get("context") or {}
    for place in ("s3_redirect", "signing"):
        bucket = bucket or str((context.get(place) or {}).get("bucket") or "")
    return Ask("botocore", OPERATIONS.get(model.name, str(model.name)), bucket)


def _wrap_needs_retry(original: Method) -> Method:
    """Wrap a function of botocore that sleeps before a retry."""

    @functools.wraps(original)
    def needs_retry(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun_ns = now_ns()
        is_needed = original(self, *args, **kwargs)
        if is_needed:
            count_retry(begun_ns)
        return is_needed

    return needs_retry


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "http.client": _patch,
    "urllib3.response": _patch_answers,
    "urllib3.connectionpool": _patch_pool,
    "urllib3.util.retry": _patch_retry,
    "botocore.endpoint": _patch_botocore,
}
