"""An object server on loopback: reads of S3, GCS and HTTP from a folder, with delay and faults.

    python -m penstock_lab.objects FOLDER --delay-ms 20 --rate-mb 200       # prints the address

A bucket is a folder below FOLDER, a key a path in the bucket.  The server lists (V2 of the
protocol), answers HEAD and GET with ranges, conditions and ETags, and counts.  No signature is
checked.  A function chooses a fault for each request, so that a test knows the failed requests.
"""

from __future__ import annotations

import argparse
import asyncio
import email.utils
import gzip
import json
import os
import random
import re
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

__all__ = [
    "FAULTS",
    "Asked",
    "Counts",
    "ObjectServer",
    "Served",
    "certificate",
    "faults_at",
    "server_process",
]

# The possible faults of an answer.
FAULTS = (
    "503",  # SlowDown
    "429",  # with Retry-After: 0
    "500",
    "reset",  # before the first byte
    "reset-mid",  # half way through the body
    "hang",  # no byte ever
    "hang-mid",  # half of the body, then nothing
    "half-open",  # the connection ends without an answer
    "short",  # fewer bytes than Content-Length says
    "long",  # more bytes than were asked for, and Content-Length says so
    "redirect",  # to itself
    "gzip",  # Content-Encoding: gzip, although nobody asked
    "whole",  # status 200 with the whole object, for every requested range
    "other-range",  # status 206 with other bytes than requested, as in Content-Range
    "garbage",  # no HTTP
)
OF_BODIES = ("short", "long", "gzip", "whole", "other-range", "reset-mid", "hang-mid")
GCS_OBJECT = re.compile(r"^(?:/download)?/storage/v1/b/([^/]+)/o/")  # the JSON protocol's paths
PIECE_BYTES = 256 << 10  # the rate is kept piece by piece
KEYS_A_PAGE = 1000
STATUS = {200: "OK", 206: "Partial Content", 302: "Found", 304: "Not Modified", 404: "Not Found"}


class Asked(NamedTuple):
    """A request.  number: of all, from 0 on.  first, end: the requested range, end -1: none."""

    number: int
    method: str
    path: str
    first: int
    end: int


class Served(NamedTuple):
    """A request with the answer.  path: of a listing, the path and the prefix.  status: 200, or the
    fault.  begun_s, ended_s: by time.monotonic, when the request had come and when the answer's
    last byte was written."""

    method: str
    path: str
    begun_s: float
    ended_s: float
    status: str


Choose = Callable[[Asked], str]  # the fault of a request, "": none


def faults_at(rate: float, seed: int, kinds: tuple[str, ...] = FAULTS) -> Choose:
    """A share of all requests for objects, each with a kind of fault by chance."""
    chance = random.Random(seed)

    def choose(asked: Asked) -> str:
        is_object = asked.method == "GET" and asked.end >= 0
        return chance.choice(kinds) if is_object and chance.random() < rate else ""

    return choose


@dataclass
class Counts:
    """The answers of a server.  statuses: count of each; a fault without a status counts by
    name."""

    requests: int = 0
    gets: int = 0
    lists: int = 0
    bytes: int = 0
    in_flight: int = 0
    most_in_flight: int = 0
    connections: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


class _Pace:
    """A rate shared by all connections: each piece has a turn."""

    def __init__(self, rate_bps: float) -> None:
        self.rate_bps = rate_bps
        self.free_at = 0.0

    async def take(self, n_bytes: int) -> None:
        if not self.rate_bps:
            return
        now = asyncio.get_running_loop().time()
        self.free_at = max(self.free_at, now) + n_bytes / self.rate_bps
        if self.free_at - now > 0.002:  # the loop's clock is no finer than a millisecond
            await asyncio.sleep(self.free_at - now)


class ObjectServer:
    """A server in a thread of this process.  delay_s: of each request, before the first byte.
    rate_bps: of all bodies together, 0: unlimited.  choose: may be set at any time.  served: all
    requests, if keep is true."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        delay_s: float = 0.0,
        rate_bps: float = 0.0,
        choose: Choose | None = None,
        tls: ssl.SSLContext | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        keep: bool = False,
    ) -> None:
        self.root = Path(root)
        self.served: list[Served] = []
        self._keep = keep
        self.delay_s = delay_s
        self.choose = choose
        self.counts = Counts()
        self._pace = _Pace(rate_bps)
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()

        async def begin() -> asyncio.Server:
            return await asyncio.start_server(
                self._connection, host, port, ssl=tls, limit=64 << 10, backlog=512
            )

        def run() -> None:
            asyncio.set_event_loop(self._loop)
            self._server = self._loop.run_until_complete(begin())
            ready.set()
            self._loop.run_forever()
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

        self._thread = threading.Thread(target=run, daemon=True, name="object-server")
        self._thread.start()
        ready.wait()
        self.port = int(self._server.sockets[0].getsockname()[1])
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{shown}:{self.port}"

    def __enter__(self) -> ObjectServer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ", 2)
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in head[1:] if line)
                }
                length = int(headers.get("content-length", 0))
                if length:
                    await reader.readexactly(length)
                if not await self._answer(writer, method, target, headers):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, ValueError, ssl.SSLError):
            pass
        except asyncio.CancelledError:  # the server ends
            pass
        finally:
            with suppress(Exception):
                writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, method: str, target: str, headers: dict[str, str]
    ) -> bool:
        """Whether the connection goes on."""
        counts = self.counts
        path, _, query = target.partition("?")
        path = GCS_OBJECT.sub(r"/\1/", urllib.parse.unquote(path))
        if path == "/__count":
            body = json.dumps({**vars(counts), "statuses": dict(counts.statuses)}).encode()
            if query == "reset":
                self.counts = Counts(connections=1)
            _send(writer, 200, len(body), {"Content-Type": "application/json"})
            writer.write(body)
            await writer.drain()
            return True
        asked = Asked(counts.requests, method, path, *_range_of(headers.get("range", "")))
        fields = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        begun_s = time.monotonic()
        counts.requests += 1
        counts.in_flight += 1
        counts.most_in_flight = max(counts.most_in_flight, counts.in_flight)
        fault = self.choose(asked) if self.choose is not None else ""
        try:
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            if "list-type" in fields or ("prefix" in fields and method == "GET"):
                counts.lists += 1
                return await self._list(writer, path, fields, method)
            return await self._object(writer, asked, headers, fault)
        finally:
            counts.in_flight -= 1
            if self._keep:
                path = f"{path}/{fields.get('prefix', '')}"
                row = Served(method, path, begun_s, time.monotonic(), fault or "200")
                self.served.append(row)

    async def _list(
        self, writer: asyncio.StreamWriter, path: str, fields: dict[str, str], method: str
    ) -> bool:
        bucket, prefix = path.strip("/").partition("/")[0], fields.get("prefix", "")
        after = fields.get("continuation-token") or fields.get("start-after", "")
        delimiter = fields.get("delimiter", "")
        most = int(fields.get("max-keys", KEYS_A_PAGE))
        root, keys, folders = self.root / bucket, [], set()
        for folder, _, names in os.walk(root):
            inside = os.path.relpath(folder, root)
            for name in names:
                key = name if inside == "." else f"{inside}/{name}"
                if not key.startswith(prefix) or key <= after:
                    continue
                rest = key[len(prefix) :]
                if delimiter and delimiter in rest:
                    folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                else:
                    keys.append(key)
        keys.sort()
        page = keys[:most]
        parts = [
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix>"
            f"<KeyCount>{len(page)}</KeyCount><MaxKeys>{most}</MaxKeys>"
            f"<IsTruncated>{'true' if len(keys) > most else 'false'}</IsTruncated>"
        ]
        if len(keys) > most:
            token = escape(page[-1])
            parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
        for key in page:
            state = (root / key).stat()
            written = _iso(state.st_mtime)
            parts.append(
                f"<Contents><Key>{escape(key)}</Key><LastModified>{written}</LastModified>"
                f"<ETag>&quot;{_etag(state)}&quot;</ETag><Size>{state.st_size}</Size>"
                "<StorageClass>STANDARD</StorageClass></Contents>"
            )
        parts += [
            f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>"
            for each in sorted(folders)
        ]
        body = ("".join(parts) + "</ListBucketResult>").encode()
        self.counts.statuses["200"] += 1
        _send(writer, 200, len(body), {"Content-Type": "application/xml"})
        writer.write(body)
        await writer.drain()
        return True

    async def _object(
        self, writer: asyncio.StreamWriter, asked: Asked, headers: dict[str, str], fault: str
    ) -> bool:
        counts = self.counts
        if fault and fault not in OF_BODIES:
            return await self._fail(writer, asked, fault)
        path = self.root / asked.path.lstrip("/")
        if asked.path.endswith("/") and path.is_dir():
            return await self._links(writer, path)
        if not path.is_file():
            return await self._status(writer, 404)
        state = path.stat()
        mark = f'"{_etag(state)}"'
        if refused := _refused(headers, mark):
            return await self._status(writer, refused)
        first, end, status = 0, state.st_size, 200
        if asked.end >= 0:
            first, end, status = asked.first, min(asked.end, state.st_size), 206
            if first >= state.st_size:
                return await self._status(writer, 416)
        if fault == "whole":
            first, end, status = 0, state.st_size, 200
        if fault == "other-range":
            first, end = max(0, first - 1), max(1, end - 1)
        with open(path, "rb") as file:
            body = os.pread(file.fileno(), end - first, first)
        fields = {
            "ETag": mark,
            "Last-Modified": email.utils.formatdate(state.st_mtime, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        if status == 206:
            fields["Content-Range"] = f"bytes {first}-{end - 1}/{state.st_size}"
        length = len(body)
        if fault == "long":
            body, length = body + b"?" * 100, length + 100
        elif fault == "short":
            body = body[: length // 2]
        elif fault == "gzip":
            body = gzip.compress(body, 1)
            length, fields["Content-Encoding"] = len(body), "gzip"
        elif fault in ("reset-mid", "hang-mid"):
            body = body[: length // 2]
        counts.statuses[str(status)] += 1
        _send(writer, status, length, fields)
        if asked.method == "HEAD":
            await writer.drain()
            return True
        counts.gets += 1
        for start in range(0, len(body), PIECE_BYTES):
            piece = body[start : start + PIECE_BYTES]
            await self._pace.take(len(piece))
            counts.bytes += len(piece)
            writer.write(piece)
            await writer.drain()
        if fault == "hang-mid":
            await asyncio.sleep(3600)
        if fault == "reset-mid":
            writer.transport.abort()
        return fault not in ("short", "reset-mid")

    async def _links(self, writer: asyncio.StreamWriter, folder: Path) -> bool:
        """Send a page of links, as web servers make for a folder."""
        names = sorted(each.name + "/" * each.is_dir() for each in folder.iterdir())
        links = "".join(f'<a href="{urllib.parse.quote(name)}">{name}</a>' for name in names)
        body = f"<html><a href='../'>..</a>{links}</html>".encode()
        self.counts.statuses["200"] += 1
        _send(writer, 200, len(body), {"Content-Type": "text/html"})
        writer.write(body)
        await writer.drain()
        return True

    async def _fail(self, writer: asyncio.StreamWriter, asked: Asked, fault: str) -> bool:
        self.counts.statuses[fault] += 1
        if fault == "hang":
            await asyncio.sleep(3600)
        if fault == "reset":
            writer.transport.abort()
            return False
        if fault == "half-open":
            return False
        if fault == "garbage":
            writer.write(b"\x16\x03\x01 this is no HTTP\r\n\r\n")
            await writer.drain()
            return False
        if fault == "redirect":
            _send(writer, 302, 0, {"Location": urllib.parse.quote(asked.path)})
        else:
            body = b"<Error><Code>SlowDown</Code></Error>"
            _send(writer, int(fault), len(body), {"Retry-After": "0"})
            writer.write(body)
        await writer.drain()
        return True

    async def _status(self, writer: asyncio.StreamWriter, status: int) -> bool:
        self.counts.statuses[str(status)] += 1
        _send(writer, status, 0, {})
        await writer.drain()
        return True


def _send(writer: asyncio.StreamWriter, status: int, length: int, fields: dict[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} {STATUS.get(status, 'Refused')}", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in fields.items()]
    writer.write("\r\n".join([*lines, "", ""]).encode())


def _refused(headers: dict[str, str], mark: str) -> int:
    """The status by the conditions of a request, 0: none is against an answer."""
    if headers.get("if-match", mark) not in (mark, "*"):
        return 412
    return 304 if headers.get("if-none-match") in (mark, "*") else 0


def _etag(state: os.stat_result) -> str:
    return f"{state.st_size:x}-{state.st_mtime_ns:x}-{state.st_ino:x}"


def _iso(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _range_of(text: str) -> tuple[int, int]:
    if not text.startswith("bytes="):
        return 0, -1
    first, _, last = text[6:].partition("-")
    return int(first), int(last) + 1 if last else 1 << 62


def certificate(folder: Path) -> tuple[ssl.SSLContext, Path]:
    """Return a server's context, and the file of the signing authority, by openssl's program."""
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=localhost", "-keyout", str(key)),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


@contextmanager
def server_process(
    root: str | os.PathLike[str], delay_ms: float = 0.0, rate_mb: float = 0.0, tls: bool = False
) -> Iterator[str]:
    """Run the server in a separate process, for measurements.  Yields the address."""
    command = [sys.executable, "-m", "penstock_lab.objects", os.fspath(root)]
    command += ["--delay-ms", str(delay_ms), "--rate-mb", str(rate_mb)]
    if tls:
        command.append("--tls")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("root")
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--rate-mb", type=float, default=0.0)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--tls", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tls = certificate(Path(folder))[0] if asked.tls else None
        server = ObjectServer(
            asked.root, asked.delay_ms / 1e3, asked.rate_mb * 1e6, tls=tls, port=asked.port
        )
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
