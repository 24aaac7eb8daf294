"""The objects of one server as a store to copy from: named by the paths of requests.

Knows transfers and the headers of answers; knows no tier.  An object without a reliable version or
with varying answers is in no listing; the reason is kept.
"""

from __future__ import annotations

import email.utils
import functools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from penstock.errors import FeedError, TierError
from penstock.feed.object_stores import StoredObject, server_at
from penstock.feed.transfer import Headers, ObjectRange, Patience, fetched, transfers
from penstock.places.stores import Store, StoredFile, Upload

__all__ = ["ObjectFacts", "ServedObjects"]

ASKED_AT_ONCE = 16
AT_ONCE = 8  # parts of a piece of 4 MiB, for each of the threads that copy
PATIENCE = Patience(tries=3)  # with a question: a run may wait for the answers to begin
SETTLED_S = 2.0  # a server's time of change has whole seconds: a younger object may change unseen

# Headers that an answer from a copy repeats: no lengths, dates, numbers of requests or cookies.
KEPT = (
    *("content-type", "content-language", "content-disposition", "cache-control", "expires"),
    *("etag", "last-modified", "x-amz-version-id", "x-amz-storage-class"),
)
KEPT_STARTS = ("x-amz-meta-", "x-amz-server-side-encryption", "x-goog-meta-", "x-ms-meta-")
UNVARIED = ("origin", "access-control-request-headers", "access-control-request-method")


@dataclass(frozen=True, slots=True)
class ObjectFacts:
    """An object as its server described it.

    path: encoded, with the first slash.  etag: with its quotes, "" without one.  headers: of an
    answer, as far as they describe the object.
    """

    path: str
    size_bytes: int
    etag: str
    last_modified: str
    headers: tuple[tuple[str, str], ...]


class ServedObjects(Store):
    """Objects of a server, by path.

    facts: found by `look`, by name.  skipped: the number of other objects by reason.
    """

    durable = "nothing is stored there"

    def __init__(
        self, is_tls: bool, endpoint: str, paths: Sequence[str], is_s3: bool = False
    ) -> None:
        host, _, port = endpoint.rpartition(":")
        if not host or not port.isdigit():
            raise TierError(f"{endpoint}: no HOST:PORT of a server")
        self.url = f"{'https' if is_tls else 'http'}://{endpoint}"
        self._server = server_at(is_tls, host, int(port), is_s3)
        self._paths = paths
        self.facts: dict[str, ObjectFacts] = {}
        self.skipped: dict[str, int] = {}

    def look(self) -> None:
        """Ask for each object by a HEAD request."""

        def ask(path: str) -> ObjectFacts | str:
            try:
                return self._asked(path.removeprefix("/"))
            except FeedError as error:
                return _reason(error)

        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            for answer in pool.map(ask, dict.fromkeys(self._paths)):
                if isinstance(answer, str):
                    self.skipped[answer] = self.skipped.get(answer, 0) + 1
                    continue
                self.facts[answer.path.removeprefix("/")] = answer

    def list(self, prefix: str = "") -> Iterator[StoredFile]:
        """Yield the objects that `look` has found."""
        for name, facts in self.facts.items():
            if name.startswith(prefix):
                yield _file(name, facts)

    def _asked(self, name: str) -> ObjectFacts | str:
        target = functools.partial(self._server.target, name, "HEAD")
        headers, _ = fetched(self.where(name), target, "HEAD", PATIENCE)
        return _facts(f"/{name}", headers)

    def stat(self, name: str) -> StoredFile | None:
        try:
            answer = self._asked(name)
        except FeedError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return None
            raise TierError(str(error)) from error
        return None if isinstance(answer, str) else _file(name, answer)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """Return bytes of the version that `look` has seen.  Raises TierError."""
        facts = self.facts[name]
        source = StoredObject(self._server, name)
        end = facts.size_bytes if length is None else min(facts.size_bytes, offset + length)
        data = bytearray(max(0, end - offset))
        if data:
            part = ObjectRange(source, self._seen(facts), offset, memoryview(data))
            transfers().read([part], AT_ONCE)
            if part.error:
                raise TierError(f"{self.where(name)}: {part.why}")
        return bytes(data)

    def _seen(self, facts: ObjectFacts) -> Any:
        headers = Headers()
        headers["ETag"], headers["Last-Modified"] = facts.etag, facts.last_modified
        return self._server.seen(headers, facts.size_bytes)

    def put(self, name: str, source: Any) -> int:
        raise TierError(f"{self.where(name)}: is only read")

    def upload(self, name: str, size_bytes: int, piece_bytes: int = 0) -> Upload:
        raise TierError(f"{self.where(name)}: is only read")

    def delete(self, name: str) -> None:
        raise TierError(f"{self.where(name)}: is only read")


def _file(name: str, facts: ObjectFacts) -> StoredFile:
    written_ns = int(_unix_s(facts.last_modified) or 0) * 1_000_000_000
    mark = "\n".join((facts.etag, facts.last_modified))
    return StoredFile(name, facts.size_bytes, written_ns, mark)


def _reason(error: FeedError) -> str:
    if isinstance(error.__cause__, FileNotFoundError):
        return "gone"
    if isinstance(error.__cause__, OSError) and error.__cause__.strerror:
        return error.__cause__.strerror
    return "the server gave no answer to a HEAD request"


def _facts(path: str, headers: Headers) -> ObjectFacts | str:
    """Return the object as described by an answer, or the reason against a copy."""
    length, etag = headers.get("Content-Length", ""), headers.get("ETag", "").strip()
    written = headers.get("Last-Modified", "").strip()
    varied = {word.strip().lower() for word in headers.get("Vary", "").split(",") if word.strip()}
    if not length.isdigit():
        return "the server tells no length"
    if not int(length):
        return "empty"
    if headers.get("Content-Encoding", "identity").strip().lower() not in ("identity", ""):
        return "sent compressed"
    if not varied <= set(UNVARIED):
        return "its answers vary with the request"
    if etag.startswith("W/") or not etag:
        etag = ""
        written_s, now_s = _unix_s(written), _unix_s(headers.get("Date", ""))
        if written_s is None or now_s is None:
            return "no ETag and no time of change"
        if now_s - written_s < SETTLED_S:
            return "no ETag, and changed a moment ago"
    kept = tuple(
        (name, value)
        for name, value in headers.items()
        if name.lower() in KEPT or name.lower().startswith(KEPT_STARTS)
    )
    return ObjectFacts(path, int(length), etag, written, kept)


def _unix_s(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
