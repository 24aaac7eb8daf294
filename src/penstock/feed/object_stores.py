"""Object stores by address: location of an object, signed requests, listing of a prefix.

s3://bucket/key, gs://bucket/key, az://container/key, http(s)://host/path.  A store's own library,
if installed, finds the credentials, which only sign requests and appear in no message and no index.
This module reads no object.
"""

from __future__ import annotations

import email.utils
import errno
import hashlib
import os
import threading
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from html.parser import HTMLParser
from typing import Any, NamedTuple

from penstock.errors import FeedError, FeedRefused, MissingDependency
from penstock.feed.arguments import SCHEMES
from penstock.feed.signing import ServerClock, presigned
from penstock.feed.transfer import Headers, HttpTarget, Seen, fetched

__all__ = ["Bucket", "Listed", "StoredObject", "object_at", "server_at", "store_of"]

SIGNED_S = 3600  # validity of a signature; renewed after half of the time
KEPT_SIGNATURES = 4096
TRY_GS = "PENSTOCK_FEED_GS"  # set: gs:// is read, though not ready
REFUSED = (errno.EACCES, errno.EPROTO, errno.EREMOTE)
MOST_FOLDERS = 10_000  # limit of a web server's pages of links


class Listed(NamedTuple):
    """An object below a prefix.  seen: None if the listing does not state a version."""

    key: str
    seen: Seen | None


class StoredObject(NamedTuple):
    """An object by store and key: a Remote for `transfer`."""

    store: Bucket
    key: str

    @property
    def url(self) -> str:
        return self.store.root + self.key

    def target(self, method: str) -> HttpTarget:
        return self.store.target(self.key, method)

    def seen(self, headers: Headers, size: int) -> Seen:
        return self.store.seen(headers, size)

    def state(self) -> Seen:
        """Return the present version.  Raises FeedError: no such object, or no permission."""
        headers = self._head()
        length = headers.get("Content-Length", "")
        if not length.isdigit():
            raise FeedRefused(f"{self.url}: the server does not tell its length")
        return self.seen(headers, int(length))

    def _head(self) -> Headers:
        """Return the headers of a HEAD.

        An answer to a HEAD has no body, so a refusal does not say why.  A GET of a byte does.
        """
        try:
            return fetched(self.url, lambda: self.target("HEAD"), "HEAD")[0]
        except FeedError as error:
            if getattr(error.__cause__, "errno", 0) in REFUSED:
                byte = {"Range": "bytes=0-0"}
                fetched(self.url, lambda: self.target("GET"), "GET", headers=byte)
            raise


class Bucket(ABC):
    """A bucket, a container or a web server.  root: the common start of all addresses."""

    mark_header = "ETag"
    clock: ServerClock | None = None  # of signatures with a time

    def __init__(self, root: str, is_tls: bool, host: str, port: int, base: str) -> None:
        self.root = root
        self.is_tls, self.host, self.port = is_tls, host, port
        self.base = base  # of the paths, encoded, with a slash at its end

    def path(self, key: str) -> str:
        return self.base + urllib.parse.quote(key, safe="/~")

    def target(self, key: str, method: str) -> HttpTarget:
        signed = self.signed(method, self.path(key), {})
        return HttpTarget(self.is_tls, self.host, self.port, *signed, self.clock)

    def signed(
        self, method: str, path: str, query: Mapping[str, str]
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return (path with query, headers) of a signed request."""
        return _with_query(path, query), ()

    def seen(self, headers: Headers, size: int) -> Seen:
        written = headers.get("Last-Modified")
        return Seen(size, _seconds_ns(written), mark_of(headers.get(self.mark_header)))

    @abstractmethod
    def listed(self, prefix: str) -> Iterator[Listed]:
        """Yield all objects whose key begins with the prefix, unordered.  Raises FeedError."""

    def _page(self, path: str, query: Mapping[str, str], where: str) -> bytes:
        def target() -> HttpTarget:
            signed = self.signed("GET", path, query)
            return HttpTarget(self.is_tls, self.host, self.port, *signed, self.clock)

        return fetched(where, target)[1]


def _with_query(path: str, query: Mapping[str, str]) -> str:
    if not query:
        return path
    return f"{path}?{urllib.parse.urlencode(query, quote_via=urllib.parse.quote, safe='~')}"


def mark_of(text: str | None) -> int:
    """Return a number of 63 bits for an ETag, without quotes; -1: no ETag."""
    text = (text or "").strip().removeprefix("W/").strip('"')
    if not text:
        return -1
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1


def _seconds_ns(text: str | None) -> int:
    """Return a header's date in ns since 1970; 0: no date."""
    try:
        return int(email.utils.parsedate_to_datetime(text or "").timestamp()) * 1_000_000_000
    except (ValueError, TypeError, OverflowError):
        return 0


def _iso_ns(text: str | None) -> int:
    """Return a listing's date in ns since 1970, cut to whole seconds as in headers."""
    try:
        moment = datetime.fromisoformat((text or "").strip())
    except ValueError:
        return _seconds_ns(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000


def _xml(body: bytes, where: str) -> Any:
    from xml.etree import ElementTree

    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:  # never from a store; entities expand
        raise FeedError(f"{where}: the listing is no listing of a store")
    try:
        root = ElementTree.fromstring(body.removeprefix(b"\xef\xbb\xbf"))
    except ElementTree.ParseError as error:
        raise FeedError(f"{where}: the listing cannot be read: {error}") from error
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def _endpoint(url: str) -> tuple[bool, str, int, str]:
    """Return (is TLS, host, port, path) of a service's address."""
    parsed = urllib.parse.urlsplit(url if "//" in url else f"http://{url}")
    if parsed.scheme not in ("http", "https") or not parsed.hostname:
        raise FeedError(f"{url!r} is no address of a service; such is http://host:port")
    is_tls = parsed.scheme == "https"
    try:
        port = parsed.port or (443 if is_tls else 80)
    except ValueError as error:
        raise FeedError(f"{url!r}: {error}") from error
    return is_tls, parsed.hostname, port, parsed.path.rstrip("/") + "/"


# --- S3 ------------------------------------------------------------------------------------------


class _Signature(NamedTuple):
    """A signed path.  of: the keys and the clock's difference it was made with."""

    made_at: float
    of: tuple[Any, float]
    path: str


class S3Bucket(Bucket):
    """S3 and compatible stores.

    The class reads AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, AWS_REGION; botocore finds the
    credentials.  Requests without credentials are not signed.
    """

    def __init__(self, bucket: str) -> None:
        env = os.environ
        self._credentials, self.region = _aws()
        endpoint = env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL")
        if endpoint:
            is_tls, host, port, base = _endpoint(endpoint)
            base += bucket + "/"
        else:
            is_tls, port = True, 443
            domain = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
            host, base = f"{bucket}.s3.{self.region}.{domain}", "/"
            if "." in bucket:  # certificates cover a single level of names
                host, base = f"s3.{self.region}.{domain}", f"/{bucket}/"
        super().__init__(f"s3://{bucket}/", is_tls, host, port, base)
        self._begin_signing()

    def _begin_signing(self) -> None:
        self._signatures: dict[tuple[str, str], _Signature] = {}
        self._lock = threading.Lock()
        if self._credentials is not None:
            self.clock = ServerClock(self.host)

    def signed(
        self, method: str, path: str, query: Mapping[str, str]
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        path = _with_query(path, query)
        if self._credentials is None:
            return path, ()
        # Keys of a role change while a signature would still be valid, and their token ends.
        keys, clock = self._credentials.get_frozen_credentials(), self.clock
        assert clock is not None
        of = (keys, clock.ahead_s)
        now = time.monotonic()
        kept = self._signatures.get((method, path))
        if kept is None or kept.of != of or now - kept.made_at > SIGNED_S / 2:
            made = presigned(method, self._host(), path, keys, self.region, clock.now(), SIGNED_S)
            kept = _Signature(now, of, made)
            with self._lock:
                while len(self._signatures) >= KEPT_SIGNATURES:
                    del self._signatures[next(iter(self._signatures))]
                self._signatures[method, path] = kept
        return kept.path, ()

    def _host(self) -> str:
        """Return the header Host."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.is_tls else 80) else f"{host}:{self.port}"

    def listed(self, prefix: str) -> Iterator[Listed]:
        where, query = self.root + prefix, {"list-type": "2", "prefix": prefix}
        while True:
            page = _xml(self._page(self.base, query, where), where)
            for each in page.iter("Contents"):
                seen = Seen(
                    int(each.findtext("Size", "0")),
                    _iso_ns(each.findtext("LastModified")),
                    mark_of(each.findtext("ETag")),
                )
                yield Listed(each.findtext("Key", ""), seen)
            token = page.findtext("NextContinuationToken")
            if page.findtext("IsTruncated") != "true" or not token:
                return
            query["continuation-token"] = token


class SignedServer(S3Bucket):
    """A server of S3 by host and port; a key is the encoded path of a request."""

    def __init__(self, is_tls: bool, host: str, port: int) -> None:
        self._credentials, self.region = _aws()
        parts = host.split(".")
        if host.endswith((".amazonaws.com", ".amazonaws.com.cn")) and "s3" in parts[:-2]:
            after = parts[parts.index("s3") + 1]
            self.region = after if "-" in after else self.region
        scheme = "https" if is_tls else "http"
        Bucket.__init__(self, f"{scheme}://{host}:{port}/", is_tls, host, port, "/")
        self._begin_signing()

    def path(self, key: str) -> str:
        return self.base + key


def _aws() -> tuple[Any, str]:
    """Return (credentials or None, region)."""
    env = os.environ
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    try:
        from botocore.session import Session
    except ModuleNotFoundError as error:
        if env.get("AWS_ACCESS_KEY_ID") or env.get("AWS_PROFILE"):
            raise MissingDependency(
                "to sign requests to S3 needs botocore: pip install 'penstock[objects]'"
            ) from error
        return None, region or "us-east-1"
    session = Session()
    region = region or session.get_config_variable("region") or "us-east-1"
    return session.get_credentials(), region


# --- Google Cloud Storage ------------------------------------------------------------------------


class GoogleBucket(Bucket):
    """Google Cloud Storage by the JSON interface.

    The class reads STORAGE_EMULATOR_HOST; google-auth finds the default credentials.  Requests
    without credentials are not signed.
    """

    mark_header = "x-goog-generation"

    def __init__(self, bucket: str) -> None:
        endpoint = os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"
        is_tls, host, port, base = _endpoint(endpoint)
        self._credentials = None if os.environ.get("STORAGE_EMULATOR_HOST") else _google()
        self._lock = threading.Lock()
        base += f"storage/v1/b/{urllib.parse.quote(bucket, safe='')}/o/"
        super().__init__(f"gs://{bucket}/", is_tls, host, port, base)

    def path(self, key: str) -> str:
        return self.base + urllib.parse.quote(key, safe="")

    def target(self, key: str, method: str) -> HttpTarget:
        query = {} if method == "HEAD" else {"alt": "media"}
        signed = self.signed(method, self.path(key), query)
        return HttpTarget(self.is_tls, self.host, self.port, *signed)

    def signed(
        self, method: str, path: str, query: Mapping[str, str]
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        headers: tuple[tuple[str, str], ...] = ()
        if self._credentials is not None:
            with self._lock:
                if not self._credentials.valid:
                    from google.auth.transport.requests import Request

                    self._credentials.refresh(Request())
                headers = (("Authorization", f"Bearer {self._credentials.token}"),)
        return _with_query(path, query), headers

    def listed(self, prefix: str) -> Iterator[Listed]:
        import json

        where, query = self.root + prefix, {"prefix": prefix, "maxResults": "1000"}
        while True:
            try:
                page = json.loads(self._page(self.base.removesuffix("/"), query, where))
                for each in page.get("items", []):
                    seen = Seen(
                        int(each["size"]),
                        _iso_ns(each.get("updated")),
                        mark_of(str(each.get("generation") or "")),
                    )
                    yield Listed(str(each["name"]), seen)
                token = page.get("nextPageToken")
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise FeedError(f"{where}: the listing cannot be read: {error}") from error
            if not token:
                return
            query["pageToken"] = str(token)


def _google() -> Any:
    try:
        import google.auth
        from google.auth.exceptions import DefaultCredentialsError
    except ModuleNotFoundError as error:
        if os.environ.get("GOOGLE_APPLICATION_CREDENTIALS"):
            raise MissingDependency(
                "to sign requests to Google needs google-auth: pip install 'penstock[objects]'"
            ) from error
        return None
    scope = "https://www.googleapis.com/auth/devstorage.read_only"
    try:
        return google.auth.default(scopes=[scope])[0]
    except DefaultCredentialsError:
        return None


# --- Azure ---------------------------------------------------------------------------------------


class AzureContainer(Bucket):
    """Azure Blob Storage.

    The class reads AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME with
    AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_ACCOUNT_KEY (with azure-storage-blob).  Without these
    variables, requests are not signed.
    """

    def __init__(self, container: str) -> None:
        env, said = os.environ, {}
        for part in env.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";"):
            name, _, value = part.partition("=")
            said[name.strip()] = value.strip()
        account = said.get("AccountName") or env.get("AZURE_STORAGE_ACCOUNT_NAME") or ""
        self._account, self._container = account, container
        self._key = said.get("AccountKey") or env.get("AZURE_STORAGE_ACCOUNT_KEY")
        token = said.get("SharedAccessSignature") or env.get("AZURE_STORAGE_SAS_TOKEN") or ""
        self._token, self._made_at = token.removeprefix("?"), 0.0
        self._lock = threading.Lock()
        endpoint = said.get("BlobEndpoint")
        if not endpoint and not account:
            raise FeedError(
                f"az://{container}: the account is not known; set AZURE_STORAGE_ACCOUNT_NAME or "
                "AZURE_STORAGE_CONNECTION_STRING"
            )
        endpoint = endpoint or f"https://{account}.blob.core.windows.net"
        is_tls, host, port, base = _endpoint(endpoint)
        super().__init__(f"az://{container}/", is_tls, host, port, f"{base}{container}/")

    def signed(
        self, method: str, path: str, query: Mapping[str, str]
    ) -> tuple[str, tuple[tuple[str, str], ...]]:
        path = _with_query(path, query)
        token = self._signature()
        if token:
            path += ("&" if "?" in path else "?") + token
        return path, (("x-ms-version", "2021-08-06"),)

    def _signature(self) -> str:
        """Return the signature, which is valid for the whole container."""
        with self._lock:
            now = time.monotonic()
            if self._key and (not self._token or now - self._made_at > SIGNED_S / 2):
                try:
                    from azure.storage.blob import generate_container_sas
                except ModuleNotFoundError as error:
                    raise MissingDependency(
                        "to sign requests to Azure needs azure-storage-blob: "
                        "pip install 'penstock[azure]'"
                    ) from error
                self._token = generate_container_sas(
                    self._account,
                    self._container,
                    account_key=self._key,
                    permission="rl",
                    expiry=datetime.now(UTC) + timedelta(seconds=SIGNED_S),
                )
                self._made_at = now
            return self._token

    def listed(self, prefix: str) -> Iterator[Listed]:
        where = self.root + prefix
        query = {"restype": "container", "comp": "list", "prefix": prefix}
        while True:
            page = _xml(self._page(self.base.removesuffix("/"), query, where), where)
            for each in page.iter("Blob"):
                about = each.find("Properties")
                if about is None:
                    continue
                seen = Seen(
                    int(about.findtext("Content-Length", "0")),
                    _seconds_ns(about.findtext("Last-Modified")),
                    mark_of(about.findtext("Etag")),
                )
                yield Listed(each.findtext("Name", ""), seen)
            marker = page.findtext("NextMarker")
            if not marker:
                return
            query["marker"] = marker


# --- web servers ---------------------------------------------------------------------------------


class WebServer(Bucket):
    """A web server of files.  A folder is a page of links, without sizes."""

    def listed(self, prefix: str) -> Iterator[Listed]:
        folder = prefix.rpartition("/")[0]
        waiting, seen = [f"{folder}/" if folder else ""], set()
        while waiting:
            inside = waiting.pop()
            if inside in seen:
                continue
            seen.add(inside)
            if len(seen) > MOST_FOLDERS:
                raise FeedRefused(f"{self.root}{prefix}: more than {MOST_FOLDERS:,} folders")
            where = self.root + inside
            for link in _links(self._page(self.path(inside), {}, where)):
                key = inside + link
                if link.endswith("/"):
                    waiting.append(key)
                elif key.startswith(prefix):
                    yield Listed(key, None)


class EncodedServer(WebServer):
    """A web server; a key is the encoded path of a request."""

    def path(self, key: str) -> str:
        return self.base + key


def server_at(is_tls: bool, host: str, port: int, is_s3: bool) -> Bucket:
    """Return a server whose keys are encoded paths.  is_s3: sign requests, if there are credentials
    for S3."""
    if is_s3:
        return SignedServer(is_tls, host, port)
    scheme = "https" if is_tls else "http"
    return EncodedServer(f"{scheme}://{host}:{port}/", is_tls, host, port, "/")


def _links(page: bytes) -> list[str]:
    """Return the names of files and folders (with a slash) in a page of links."""
    names: list[str] = []

    class Links(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            link = dict(attrs).get("href") or ""
            name = urllib.parse.unquote(link.partition("#")[0])
            is_below = name and name[0] not in "?/." and "://" not in name and "?" not in name
            if tag == "a" and is_below and "/" not in name[:-1] and name not in names:
                names.append(name)

    Links().feed(page.decode("utf-8", "replace"))
    return names


# --- by address ----------------------------------------------------------------------------------


SETTINGS = ("AWS_", "AZURE_STORAGE_", "GOOGLE_", "STORAGE_EMULATOR_")


@cache
def _store_at(scheme: str, place: str, settings: tuple[tuple[str, str], ...]) -> Bucket:
    """Return the store, made once for each address and environment."""
    if scheme == "s3":
        return S3Bucket(place)
    if scheme == "gs":
        return GoogleBucket(place)
    if scheme == "az":
        return AzureContainer(place)
    is_tls, host, port, base = _endpoint(f"{scheme}://{place}")
    return WebServer(f"{scheme}://{place}/", is_tls, host, port, base)


os.register_at_fork(after_in_child=_store_at.cache_clear)  # a fork may copy a held lock


def store_of(url: str) -> tuple[Bucket, str]:
    """Return (store, key) of an address.  Raises FeedError: no address of a known store."""
    scheme, _, rest = url.partition("://")
    scheme = scheme.lower()
    place, _, key = rest.partition("/")
    if scheme not in SCHEMES or not place:
        raise FeedError(f"{url} is no address of an object; such is s3://bucket/key")
    if scheme == "gs" and not os.environ.get(TRY_GS):
        raise FeedRefused(
            f"{url}: gs:// is not ready: against an emulator one reading in some thirty differed, "
            f"for an unknown reason; {TRY_GS}=1 reads it all the same"
        )
    if scheme in ("http", "https"):
        if "@" in place or "?" in key:
            shown = f"{scheme}://{place.rpartition('@')[2]}/{key.partition('?')[0]}"
            raise FeedRefused(
                f"{shown}: an address with a password or a query is refused: it would stand in "
                "messages and in indexes; use the store's own scheme, or a proxy that signs"
            )
        key = urllib.parse.unquote(key)
    settings = tuple((name, text) for name, text in os.environ.items() if name.startswith(SETTINGS))
    return _store_at(scheme, place, settings), key


def object_at(url: str) -> StoredObject:
    """Return the object at an address."""
    return StoredObject(*store_of(url))
