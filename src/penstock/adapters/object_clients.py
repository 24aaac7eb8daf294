"""Record calls of obstore and s3torchconnector, with HTTP inside Rust and the CRT.

Imports no client.  A row is a call.  A call may be several requests and retries, which cannot be
seen.  A returning call gets the status of a success; an error gets a status if the error's name
stands for a single status.  A GET ends when the program has read the body.  pyarrow's file systems
(unchangeable types) and tensorstore's drivers (no call per request) are seen as connections only.
"""

from __future__ import annotations

import atexit
import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters.marks import quietly
from penstock.adapters.requests import OPERATION, Ask, HttpRequest, clean, now_ns, wrap_all
from penstock.recording import recorder

__all__ = ["PATCHES", "forget"]

Method = Callable[..., Any]
MOST_OPEN = 1000  # most open bodies kept at a time
ERRORS = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "PermissionDeniedError": 403,
    "UnauthenticatedError": 401,
    "PreconditionError": 412,
    "NotModifiedError": 304,
}

# Requests by id of the object that yields the body: such objects take no attributes and no weak
# references.  If an id appears again, the earlier object has been dropped.
_open: dict[int, HttpRequest] = {}


def forget() -> None:
    """Forget the bodies of the parent in a forked child."""
    _open.clear()


def _keep(body: Any, request: HttpRequest) -> None:
    if not _open:
        atexit.unregister(_drop_all)
        atexit.register(_drop_all)
    before = _open.pop(id(body), None)
    if before is None and len(_open) >= MOST_OPEN:
        before = _open.pop(next(iter(_open)))
    if before is not None:
        before.end(is_part=True, flags=OPERATION)
    request.last_ns = now_ns()
    _open[id(body)] = request


@quietly
def _drop_all() -> None:
    while _open:
        _open.popitem()[1].end(is_part=True, flags=OPERATION)


@quietly
def _count(body: Any, piece: Any, is_end: bool) -> None:
    request = _open.get(id(body))
    if request is None:
        return
    request.received += len(piece)
    request.last_ns = now_ns()
    if not request.status:
        request.first_byte_ns = request.last_ns - request.begun_ns
        _succeed(request)
    if is_end:
        del _open[id(body)]
        request.end(flags=OPERATION)


@quietly
def _fail_body(body: Any, error: BaseException) -> None:
    if isinstance(error, StopIteration | StopAsyncIteration):
        _count(body, b"", True)
        return
    request = _open.pop(id(body), None)
    if request is not None:
        request.error = type(error).__name__
        request.end(is_part=True, flags=OPERATION)


@quietly
def _fail(request: HttpRequest | None, error: BaseException) -> None:
    if request is not None and not isinstance(error, StopIteration):
        request.error = type(error).__name__
        request.status = ERRORS.get(request.error, 0)
        request.end(flags=OPERATION)


class _Failing:
    """A block with exceptions noted by `fail`, and then raised on.

    of: the request or the body of the block.
    """

    __slots__ = ("fail", "of")

    def __init__(self, fail: Callable[[Any, BaseException], None], of: Any) -> None:
        self.fail = fail
        self.of = of

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            self.fail(self.of, error)


def _succeed(request: HttpRequest) -> None:
    has_range = request.method == "GET" and request.range != (-1, -1)
    request.status = 206 if has_range else 200


def _read(original: Method, is_end: bool) -> Method:
    """Wrap a method that returns the next piece of a body; is_end: the rest of the body."""

    @functools.wraps(original)
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Failing(_fail_body, self):
            got = original(self, *args, **kwargs)
        _count(self, got, is_end)
        return got

    return read


def _read_async(original: Method, is_end: bool) -> Method:
    @functools.wraps(original)
    async def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Failing(_fail_body, self):
            got = await original(self, *args, **kwargs)
        _count(self, got, is_end)
        return got

    return read


# obstore

# By name of the function: the operation.
OBSTORE = {
    "get": "GET",
    "get_range": "GET",
    "get_ranges": "GET",
    "put": "PUT",
    "head": "HEAD",
    "delete": "DELETE",
    "list_with_delimiter": "LIST",
}


def _patch_obstore(module: ModuleType) -> None:
    wrappers: dict[str, Callable[[Any], Any]] = {}
    for name, operation in OBSTORE.items():
        wrappers[name] = functools.partial(_wrap_call, name, operation)
        wrappers[f"{name}_async"] = functools.partial(_wrap_async_call, name, operation)
    wrap_all("obstore", module, wrappers)


def _wrap_call(name: str, operation: str, original: Method) -> Method:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        request = _asked(name, operation, args, kwargs)
        with _Failing(_fail, request):
            got = original(*args, **kwargs)
        _returned(name, request, got)
        return got

    return call


def _wrap_async_call(name: str, operation: str, original: Method) -> Method:
    @functools.wraps(original)
    async def call(*args: Any, **kwargs: Any) -> Any:
        request = _asked(name, operation, args, kwargs)
        with _Failing(_fail, request):
            got = await original(*args, **kwargs)
        _returned(name, request, got)
        return got

    return call


@quietly
def _asked(name: str, operation: str, args: Any, kwargs: Any) -> HttpRequest | None:
    """Return the state of a call f(store, path, …); None for a local store."""
    if not recorder.is_recording():
        return None
    store = args[0] if args else kwargs["store"]
    place = _place(store)
    if place is None:
        return None
    endpoint, bucket, prefix = place
    key = args[1] if len(args) > 1 else kwargs.get("path", kwargs.get("paths", ""))
    path = clean(f"{prefix}/{key if isinstance(key, str) else ''}")[1]
    method = "GET" if operation == "LIST" else operation
    request = HttpRequest("obstore", now_ns(), method, endpoint, path)
    request.take(Ask("obstore", operation, bucket))
    if name == "get_range":
        end, length, start = kwargs.get("end"), kwargs.get("length"), int(kwargs["start"])
        request.range = start, int(length if length is not None else end - start)
    elif name == "put":
        request.sent = _length_of(args[2] if len(args) > 2 else kwargs.get("file"))
    return request


def _length_of(body: Any) -> int:
    """Return the bytes of a body; -1: not known before reading."""
    return body.nbytes if isinstance(body, memoryview) else len(body) if _is_bytes(body) else -1


def _is_bytes(body: Any) -> bool:
    return isinstance(body, bytes | bytearray)


def _place(store: Any) -> tuple[str, str, str] | None:
    """Return endpoint, bucket and path prefix of a store; None: not behind HTTP."""
    kind = type(store).__name__
    if kind == "HTTPStore":
        endpoint, path, _ = clean(store.url)
        return endpoint, "", path.rstrip("/")
    config = getattr(store, "config", None)
    if config is None:
        return None
    prefix = f"/{store.prefix.strip('/')}" if getattr(store, "prefix", None) else ""
    bucket = str(config.get("bucket") or config.get("container_name") or "")
    url = config.get("endpoint") or config.get("base_url") or ""
    if not url and kind == "S3Store":
        url = f"https://s3.{config.get('region') or 'us-east-1'}.amazonaws.com"
    elif not url and kind == "GCSStore":
        url = "https://storage.googleapis.com"
    elif not url and kind == "AzureStore":
        url = f"https://{config.get('account_name') or 'azure'}.blob.core.windows.net"
    return (clean(url)[0], bucket, prefix) if url else None


@quietly
def _returned(name: str, request: HttpRequest | None, got: Any) -> None:
    if request is None:
        return
    _succeed(request)
    if name == "get":
        size, (first, end) = int(got.meta["size"]), got.range
        request.first_byte_ns = now_ns() - request.begun_ns
        request.object_bytes = size
        if (first, end) != (0, size):
            request.range, request.status = (first, end - first), 206
        _wrap_result(type(got))
        _keep(got, request)
        return
    if name == "get_range":
        request.received = len(got)
    elif name == "get_ranges":
        request.received = sum(map(len, got))
        request.status = 206
    elif name == "head":
        request.object_bytes = int(got["size"])
    request.end(flags=OPERATION)


_wrapped: set[type] = set()


def _wrap_result(kind: type) -> None:
    """Wrap the methods of the type of a GET's result; no module names the type."""
    if kind in _wrapped:
        return
    _wrapped.add(kind)
    result: Any = kind
    for name in ("bytes", "buffer"):
        if hasattr(kind, name):
            setattr(kind, name, _read(getattr(kind, name), True))
        if hasattr(kind, f"{name}_async"):
            setattr(kind, f"{name}_async", _read_async(getattr(kind, f"{name}_async"), True))
    for name in ("stream", "__iter__", "__aiter__"):
        setattr(kind, name, _wrap_stream(getattr(result, name)))


def _wrap_stream(original: Method) -> Method:
    @functools.wraps(original)
    def stream(self: Any, *args: Any, **kwargs: Any) -> Any:
        pieces = original(self, *args, **kwargs)
        _hand_over(self, pieces)
        return pieces

    return stream


@quietly
def _hand_over(result: Any, pieces: Any) -> None:
    request = _open.pop(id(result), None)
    if request is None or result is pieces:
        return
    kind: Any = type(pieces)
    if kind not in _wrapped:
        _wrapped.add(kind)
        kind.__next__ = _read(kind.__next__, False)
        kind.__anext__ = _read_async(kind.__anext__, False)
    _keep(pieces, request)


# s3torchconnector


def _patch_connector(module: ModuleType) -> None:
    client = {
        "get_object": "GET",
        "head_object": "HEAD",
        "delete_object": "DELETE",
    }
    wrappers: dict[str, Callable[[Any], Any]] = {
        f"MountpointS3Client.{name}": functools.partial(_wrap_connector, operation)
        for name, operation in client.items()
    }
    wrappers["GetObjectStream.__next__"] = functools.partial(_read, is_end=False)
    wrappers["MountpointS3Client.put_object"] = _wrap_put
    wrappers["PutObjectStream.write"] = _wrap_write
    wrappers["PutObjectStream.close"] = _wrap_close
    wrappers["MountpointS3Client.list_objects"] = _wrap_list
    wrappers["ListObjectStream.__next__"] = _wrap_page
    wrap_all("s3torchconnector", module, wrappers)


@quietly
def _begun(client: Any, operation: str, bucket: str, key: str, place: str = "") -> Any:
    if not recorder.is_recording():
        return None
    method = "GET" if operation == "LIST" else operation
    endpoint = place or _endpoint_of(client)
    request = HttpRequest("s3torchconnector", now_ns(), method, endpoint, clean(f"/{key}")[1])
    request.take(Ask("s3torchconnector", operation, bucket))
    return request


def _endpoint_of(client: Any) -> str:
    url = client.endpoint or f"https://s3.{client.region or 'us-east-1'}.amazonaws.com"
    return clean(url)[0]


def _wrap_connector(operation: str, original: Method) -> Method:
    @functools.wraps(original)
    def call(self: Any, bucket: str, key: str, *args: Any, **kwargs: Any) -> Any:
        request = _begun(self, operation, bucket, key)
        with _Failing(_fail, request):
            got = original(self, bucket, key, *args, **kwargs)
        _handed_out(operation, request, got, args, kwargs)
        return got

    return call


@quietly
def _handed_out(
    operation: str, request: HttpRequest | None, got: Any, args: Any, kwargs: Any
) -> None:
    if request is None:
        return
    if operation == "GET":
        first = args[0] if args else kwargs.get("start")
        end = args[1] if len(args) > 1 else kwargs.get("end")
        if first is not None:
            request.range = int(first), int(end) - int(first) if end is not None else -1
        _keep(got, request)  # the status is known once the first piece arrives
        return
    _succeed(request)
    if operation == "HEAD":
        request.object_bytes = int(got.size)
    request.end(flags=OPERATION)


def _wrap_put(original: Method) -> Method:
    @functools.wraps(original)
    def put_object(self: Any, bucket: str, key: str, *args: Any, **kwargs: Any) -> Any:
        request = _begun(self, "PUT", bucket, key)
        got = original(self, bucket, key, *args, **kwargs)
        if request is not None:
            _keep(got, request)
        return got

    return put_object


def _wrap_write(original: Method) -> Method:
    @functools.wraps(original)
    def write(self: Any, data: Any) -> Any:
        with _Failing(_fail_body, self):
            got = original(self, data)
        _send(self, data)
        return got

    return write


@quietly
def _send(body: Any, data: Any) -> None:
    request = _open.get(id(body))
    if request is not None:
        request.sent += len(data)


def _wrap_close(original: Method) -> Method:
    @functools.wraps(original)
    def close(self: Any) -> Any:
        with _Failing(_fail_body, self):
            got = original(self)
        _stored(self)
        return got

    return close


@quietly
def _stored(body: Any) -> None:
    request = _open.get(id(body))
    if request is not None:
        _succeed(request)
        _count(body, b"", True)


# The endpoint of a listing, by id of the listing.
_listed: dict[int, str] = {}


def _wrap_list(original: Method) -> Method:
    @functools.wraps(original)
    def list_objects(self: Any, *args: Any, **kwargs: Any) -> Any:
        got = original(self, *args, **kwargs)
        if len(_listed) >= MOST_OPEN:
            _listed.clear()
        _listed[id(got)] = _endpoint_of(self)
        return got

    return list_objects


def _wrap_page(original: Method) -> Method:
    """Wrap a method that requests the next page of a listing."""

    @functools.wraps(original)
    def page(self: Any) -> Any:
        place = _listed.get(id(self))
        request = None
        if place and not self.complete:
            request = _begun(None, "LIST", self.bucket, "", place)
        with _Failing(_fail, request):
            got = original(self)
        if request is not None:
            _succeed(request)
            request.end(flags=OPERATION)
        return got

    return page


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "obstore": _patch_obstore,
    "s3torchconnectorclient._mountpoint_s3_client": _patch_connector,
}
