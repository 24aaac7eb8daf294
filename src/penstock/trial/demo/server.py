"""A web server on loopback with some milliseconds of delay for each object, as in object stores.

    python -m penstock.trial.demo.server FOLDER --delay-ms 15      # prints its port

Serves the files of one folder: a page of links, HEAD, and GET with one range.
"""

from __future__ import annotations

import argparse
import re
import sys
import threading
import time
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["main"]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class _Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    wbufsize = -1  # an answer leaves in a single piece
    disable_nagle_algorithm = True

    def __init__(self, folder: Path, delay_s: float, *words: Any) -> None:
        self._folder, self._delay_s = folder, delay_s
        super().__init__(*words)

    def log_message(self, *_words: object) -> None:
        """Print no line for each request."""

    def do_HEAD(self) -> None:
        """Answer the size of an object."""
        self._answer(is_with_body=False)

    def do_GET(self) -> None:
        """Answer an object, a range of an object, or the page of links."""
        self._answer(is_with_body=True)

    def _answer(self, is_with_body: bool) -> None:
        name = self.path.strip("/")
        if not name:
            names = sorted(path.name for path in self._folder.iterdir())
            page = "".join(f'<a href="{name}">{name}</a>\n' for name in names).encode()
            self._send(200, page, len(page), {"Content-Type": "text/html"}, is_with_body)
            return
        path = self._folder / name
        if "/" in name or not path.is_file():
            self._send(404, b"", 0, {}, is_with_body)
            return
        if is_with_body:
            time.sleep(self._delay_s)
        size = path.stat().st_size
        headers = {"ETag": f'"{path.stat().st_mtime_ns:x}"', "Accept-Ranges": "bytes"}
        asked = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", self.headers.get("Range", ""))
        status, first, last = 200, 0, size - 1
        if asked:
            status, first = 206, int(asked[1])
            last = min(size - 1, int(asked[2] or size))
            headers["Content-Range"] = f"bytes {first}-{last}/{size}"
        if first > last:
            self._send(416, b"", 0, {"Content-Range": f"bytes */{size}"}, is_with_body)
            return
        content = b""
        if is_with_body:
            with path.open("rb") as file:
                file.seek(first)
                content = file.read(last + 1 - first)
        self._send(status, content, last + 1 - first, headers, is_with_body)

    def _send(
        self, status: int, content: bytes, length: int, headers: dict[str, str], is_with_body: bool
    ) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
        if is_with_body:
            self.wfile.write(content)
        self.wfile.flush()


def main() -> None:
    """Serve until standard input ends, as when the parent process has ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay-ms", type=float, default=15.0)
    options = parser.parse_args()
    answers = partial(_Objects, options.folder, options.delay_ms / 1000)
    with _Server(("127.0.0.1", 0), answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        sys.stdin.read()


if __name__ == "__main__":
    main()
