"""Servers on loopback for tests of the network, which count what passes: the truth beside a run.

They run in threads of the test's own process, which is not recorded.
"""

import gzip
import http.server
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

RESET, HALF = 0, 1  # statuses that no server sends
ASK = struct.Struct("<III")  # bytes wanted, ms before the first, ms between its two halves


@dataclass
class Counts:
    """What one connection brought and took, by the client's port."""

    received: dict[int, int] = field(default_factory=dict)
    sent: dict[int, int] = field(default_factory=dict)

    def add(self, port: int, received: int, sent: int) -> None:
        self.received[port] = self.received.get(port, 0) + received
        self.sent[port] = self.sent.get(port, 0) + sent


def _receive(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (more := peer.recv(size - len(data))):
        data += more
    return data


def _answer(peer: socket.socket, port: int, counts: Counts) -> None:
    with peer:
        while ask := _receive(peer, ASK.size):
            size, first_ms, between_ms = ASK.unpack(ask)
            time.sleep(first_ms / 1000)
            peer.sendall(bytes(size // 2))
            time.sleep(between_ms / 1000)
            peer.sendall(bytes(size - size // 2))
            counts.add(port, len(ask), size)


@contextmanager
def counting_server(family: int = socket.AF_INET) -> Iterator[tuple[int, Counts]]:
    """Answer each ASK of a connection with as many bytes; yields the port and the counts."""
    counts = Counts()
    address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    listener = socket.create_server((address, 0), family=family)

    def accept() -> None:
        while True:
            try:
                peer, (_, port, *_) = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=_answer, args=(peer, port, counts), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listener.getsockname()[1], counts
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


@dataclass
class Store:
    """An object store's stand-in.  delay_s: before each answer.  statuses: of the next answers,
    taken from the front; 200 when there are none left, RESET resets the connection, HALF after half
    of the body.  Bodies are in chunks, compressed, or moved to /moved/… as the path says it."""

    delay_s: float = 0.05
    body: bytes = bytes(65536)
    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[str, str, int, int]] = field(default_factory=list)  # method, path, status
    lock: threading.Lock = field(default_factory=threading.Lock)
    port: int = 0
    connections: int = 0

    @property
    def answered_bytes(self) -> int:
        return sum(size for *_, size in self.requests)


def _handler(store: Store) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # else a body after its headers comes 40 ms later

        def log_message(self, *_: object) -> None:
            pass

        def setup(self) -> None:
            super().setup()
            with store.lock:
                store.connections += 1

        def do_GET(self) -> None:
            with store.lock:
                status = store.statuses.pop(0) if store.statuses else 200
            time.sleep(store.delay_s)
            body = store.body if status == 200 else b"slow down"
            asked = self.headers.get("Range")
            if asked and status == 200:
                first, last = asked.split("=")[1].split("-")
                last = last or str(len(body) - 1)
                self.content_range = f"bytes {first}-{last}/{len(body)}"
                body, status = body[int(first) : int(last) + 1], 206
            if status == 200 and self.path.startswith("/gzip"):
                body = gzip.compress(body)
            if status == 200 and self.path.startswith("/redirect"):
                body, status = b"", 302
            size = len(body) // 2 if status == HALF else len(body)
            with store.lock:
                store.requests.append((self.command, self.path, status, size))
            if status != RESET:
                _send(self, status, store.body if status == HALF else body)
            if status in (RESET, HALF):
                _reset(self, status)

        do_HEAD = do_GET  # noqa: N815 - the name that the base class looks for

        def do_PUT(self) -> None:
            """Take a body, of a length or in chunks, and answer without one."""
            size = int(self.headers.get("Content-Length") or 0)
            self.rfile.read(size)
            while not size and self.headers.get("Transfer-Encoding") == "chunked":
                more = int(self.rfile.readline().partition(b";")[0], 16)
                self.rfile.read(more)
                self.rfile.readline()
                if not more:
                    break
            time.sleep(store.delay_s)
            with store.lock:
                store.requests.append((self.command, self.path, 200, 0))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.send_header("ETag", '"1"')
            self.end_headers()

    return Handler


def _send(self: http.server.BaseHTTPRequestHandler, status: int, body: bytes) -> None:
    self.send_response(200 if status == HALF else status)
    is_chunked = status == 200 and self.path.startswith("/chunks")
    if is_chunked:
        self.send_header("Transfer-Encoding", "chunked")
    else:
        self.send_header("Content-Length", str(len(body)))
    if self.path.startswith("/gzip"):
        self.send_header("Content-Encoding", "gzip")
    if status == 206:
        self.send_header("Content-Range", self.content_range)  # type: ignore[attr-defined]
    if status == 302:
        self.send_header("Location", self.path.replace("/redirect", "/moved"))
    self.end_headers()
    if self.command == "HEAD":
        return
    if is_chunked:
        for at in range(0, len(body), 10_000):
            part = body[at : at + 10_000]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
        self.wfile.write(b"0\r\n\r\n")
    else:
        self.wfile.write(body[: len(body) // 2] if status == HALF else body)


def _reset(self: http.server.BaseHTTPRequestHandler, status: int) -> None:
    self.wfile.flush()
    if status == HALF:
        time.sleep(0.02)  # a reset would take what the client has not read
    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    self.connection.close()
    self.close_connection = True


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """A client may leave in mid-answer."""


class _Server6(_Server):
    address_family = socket.AF_INET6


@contextmanager
def object_store(
    store: Store, certificate: Path | None = None, address: str = "127.0.0.1"
) -> Iterator[Store]:
    """Serve GET, HEAD and PUT of any path over HTTP, over TLS with a certificate."""
    kind = _Server6 if ":" in address else _Server
    server = kind((address, 0), _handler(store))
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(
            server.socket, server_side=True, do_handshake_on_connect=False
        )
    store.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def make_certificate(path: Path) -> None:
    """A key and a certificate of localhost, in one file."""
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl: make setup-system")
    made = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    key, part = path.with_suffix(".key"), path.with_suffix(".part")
    subprocess.run(
        ["openssl", *made, "-keyout", key, "-out", part], check=True, capture_output=True
    )
    path.write_bytes(key.read_bytes() + part.read_bytes())
