"""Answer requests of urllib3 and aiohttp from copies on a fast tier.

urllib3 is the base of requests and botocore (boto3); aiohttp of aiobotocore (s3fs), gcsfs and
fsspec's HTTP.  Imports no client.  Imported only where the run serves objects.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from types import ModuleType
from typing import Any

from penstock.adapters.marks import quietly, wrap
from penstock.adapters.staged_objects import TierAnswer, Wanted, forget, look

__all__ = ["PATCHES", "forget"]

Method = Callable[..., Any]
MOST_AIOHTTP_BYTES = 64 << 20  # aiohttp's answers are whole in memory
# Options of aiohttp's requests without an effect on the bytes.
USUAL_OPTIONS = frozenset(
    (
        *("headers", "allow_redirects", "timeout", "ssl", "verify_ssl", "chunked", "data"),
        *("proxy", "proxy_headers", "skip_auto_headers", "read_bufsize", "trace_request_ctx"),
        *("raise_for_status", "compress", "expect100", "server_hostname", "params", "auth"),
    )
)
NEEDED_NONE = ("data", "params", "auth", "proxy", "chunked", "compress")


# urllib3


def _patch_pool(module: ModuleType) -> None:
    wrap("staged objects", module, "HTTPConnectionPool.urlopen", _wrap_urlopen)


def _wrap_urlopen(original: Method) -> Method:
    @functools.wraps(original)
    def urlopen(self: Any, *args: Any, **kwargs: Any) -> Any:
        wanted = _look_at(self, args, kwargs)
        if wanted is None:
            return original(self, *args, **kwargs)
        if wanted.part is None:
            response = original(self, *args, **kwargs)
            wanted.judge(response.status, response.headers)
            return response
        if wanted.condition or wanted.is_head:
            changed = _with(self, args, kwargs, wanted)
            if changed is None:
                return original(self, *args, **kwargs)
            response = original(self, *changed[0], **changed[1])
            is_same = wanted.judge(response.status, response.headers)
            if not is_same and not wanted.is_head and response.status in (200, 206):
                return response
            _drain(response)
            if not is_same:
                return original(self, *args, **kwargs)
        answered = _answer(self, args, kwargs, wanted)
        return original(self, *args, **kwargs) if answered is None else answered

    return urlopen


NAMES = ("method", "url", "body", "headers", "retries")


def _asked(args: Any, kwargs: Any) -> dict[str, Any]:
    found: dict[str, Any] = dict(zip(NAMES, args, strict=False)) | kwargs
    return found


@quietly
def _look_at(pool: Any, args: Any, kwargs: Any) -> Wanted | None:
    asked = _asked(args, kwargs)
    url = str(asked["url"])
    if not url.startswith("/"):
        return None  # through a proxy
    headers = asked.get("headers")
    is_plain = not asked.get("body") and not asked.get("chunked")
    found: Wanted | None = look(
        *(str(asked["method"]).upper(), pool.scheme, pool.host, pool.port, url),
        pool.headers if headers is None else headers,
        is_plain,
    )
    return found


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
    return ("HEAD" if wanted.is_head else asked["method"], asked["url"], *args[5:]), more


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
        if wanted.part is None:
            response = await original(self, method, url, **kwargs)
            wanted.judge(response.status, response.headers)
            return response
        if wanted.condition or wanted.is_head:
            asking = "HEAD" if wanted.is_head else method
            response = await original(self, asking, url, **_with_async(kwargs, wanted))
            is_same = wanted.judge(response.status, response.headers)
            if not is_same and not wanted.is_head and response.status in (200, 206):
                return response
            response.release()
            if not is_same:
                return await original(self, method, url, **kwargs)
        answered = _answer_async(self, method, url, kwargs, wanted)
        return await original(self, method, url, **kwargs) if answered is None else answered

    return request


@quietly
def _look_at_async(session: Any, method: Any, url: Any, kwargs: Any) -> Wanted | None:
    if session.closed or not kwargs.keys() <= USUAL_OPTIONS:
        return None
    full = session._build_url(url)
    headers = [*session.headers.items(), *dict(kwargs.get("headers") or {}).items()]
    is_plain = all(kwargs.get(name) is None for name in NEEDED_NONE)
    is_plain = is_plain and session.auth is None and not session.cookie_jar.filter_cookies(full)
    is_plain = is_plain and not full.user and not full.raw_fragment
    found: Wanted | None = look(
        *(str(method).upper(), full.scheme, full.raw_host, full.port, full.raw_path_qs),
        headers,
        is_plain,
    )
    if found is not None and found.part is not None and found.part.length > MOST_AIOHTTP_BYTES:
        return None
    return found


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


PATCHES: dict[str, Callable[[ModuleType], None]] = {
    "urllib3.connectionpool": _patch_pool,
    "aiohttp.client": _patch_aiohttp,
}
