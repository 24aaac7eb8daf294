"""Signatures of requests to S3, held against botocore's signer: one by one, and by a server that
checks each one, its time, its region and its token as S3 does."""

import email.message
import email.utils
import itertools
import os
import threading
import time
import urllib.parse
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import FeedError
from penstock.feed import Feed, object_stores, transfer
from penstock.feed.refusals import Refusal, refusal_of, sentence
from penstock.feed.signing import ServerClock, presigned
from test_feed_objects import caches, put_objects, records_of

auth = pytest.importorskip("botocore.auth")
from botocore.awsrequest import AWSRequest  # noqa: E402
from botocore.credentials import Credentials, ReadOnlyCredentials  # noqa: E402

__all__ = ["caches"]

KEY, SECRET, TOKEN, REGION = "AKIDEXAMPLE", "wJalr/secret+key", "tok/en+of=one session", "eu-west-1"
MOST_SKEW_S = 900  # S3's own


class _SignerOfThen(auth.S3SigV4QueryAuth):  # type: ignore[misc,name-defined]
    """botocore's signer at a time that the caller says."""

    def signed_at(self, request: Any, then: datetime) -> str:
        patched = pytest.MonkeyPatch()
        try:
            for name in ("get_current_datetime",):
                patched.setattr(auth, name, lambda *_, **__: then.replace(tzinfo=None))
            self.add_auth(request)
        finally:
            patched.undo()
        url: str = request.url
        return url


def by_botocore(
    method: str, url: str, keys: Any, region: str, then: datetime, valid_s: int
) -> dict[str, str]:
    """The fields of a signed address."""
    request = AWSRequest(method=method, url=url)
    signer = _SignerOfThen(keys, "s3", region, expires=valid_s)
    return dict(urllib.parse.parse_qsl(signer.signed_at(request, then).partition("?")[2]))


@settings(max_examples=200, deadline=None)
@given(
    key=st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=30),
    prefix=st.text(st.characters(codec="utf-8"), max_size=12),
    method=st.sampled_from(["GET", "HEAD"]),
    token=st.sampled_from([None, TOKEN]),
    host=st.sampled_from(["bucket.s3.eu-west-1.amazonaws.com", "127.0.0.1:9000", "[::1]:9000"]),
    second=st.integers(0, 1 << 31),
)
def test_a_signature_is_botocore_s(
    key: str, prefix: str, method: str, token: str | None, host: str, second: int
) -> None:
    then = datetime.fromtimestamp(second, UTC)
    keys = ReadOnlyCredentials(KEY, SECRET, token)
    path = "/" + urllib.parse.quote(key, safe="/~")
    query = urllib.parse.urlencode({"prefix": prefix}, quote_via=urllib.parse.quote, safe="~")
    for target in (path, f"{path}?{query}"):
        ours = presigned(method, host, target, keys, REGION, then, 600)
        theirs = by_botocore(method, f"http://{host}{target}", keys, REGION, then, 600)
        got = dict(urllib.parse.parse_qsl(ours.partition("?")[2]))
        got.setdefault("prefix", prefix)
        theirs.setdefault("prefix", prefix)
        assert got == theirs


# --- a server that checks ------------------------------------------------------------------------


class CheckingServer:
    """S3 from a folder, with a clock of its own; botocore's signer checks every signature."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ahead_s = 0.0  # of this machine's clock
        self.has_date = True
        self.token_ends = False
        self.asked: list[tuple[str, int]] = []
        checking = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def date_time_string(self, timestamp: float | None = None) -> str:
                return email.utils.formatdate(checking.now().timestamp(), usegmt=True)

            def send_response(self, code: int, message: str | None = None) -> None:
                self.send_response_only(code, message)
                if checking.has_date:
                    self.send_header("Date", self.date_time_string())

            def do_GET(self) -> None:
                checking.answer(self)

            def do_HEAD(self) -> None:
                checking.answer(self)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time() + self.ahead_s, UTC)

    def refused(self, method: str, target: str) -> tuple[int, str, str]:
        """(status, code, more of the body); status 0: nothing is wrong."""
        path, _, query = target.partition("?")
        fields = urllib.parse.parse_qsl(query, keep_blank_values=True)
        said = {name: text for name, text in fields if name.startswith("X-Amz-")}
        if "X-Amz-Signature" not in said:
            return 403, "AccessDenied", ""
        key, day, region, *_ = said["X-Amz-Credential"].split("/")
        if region != REGION:
            return 400, "AuthorizationQueryParametersError", f"<Region>{REGION}</Region>"
        if key != KEY:
            return 403, "InvalidAccessKeyId", f"<AWSAccessKeyId>{key}</AWSAccessKeyId>"
        if said.get("X-Amz-Security-Token") not in (None, TOKEN):
            return 400, "InvalidToken", ""
        if self.token_ends:
            return 400, "ExpiredToken", f"<Token-0>{said['X-Amz-Security-Token']}</Token-0>"
        then = datetime.strptime(said["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        assert day == said["X-Amz-Date"][:8]
        if abs((self.now() - then) / timedelta(seconds=1)) > MOST_SKEW_S:
            return 403, "RequestTimeTooSkewed", ""
        bare = [(name, text) for name, text in fields if name not in said]
        url = f"{self.url}{path}"
        if bare:
            url += "?" + urllib.parse.urlencode(bare, quote_via=urllib.parse.quote, safe="~")
        keys = Credentials(KEY, SECRET, said.get("X-Amz-Security-Token"))
        valid_s = int(said["X-Amz-Expires"])
        with LOCK:
            right = by_botocore(method, url, keys, REGION, then, valid_s)
        if right["X-Amz-Signature"] != said["X-Amz-Signature"]:
            return 403, "SignatureDoesNotMatch", f"<StringToSign>{SECRET}</StringToSign>"
        return 0, "", ""

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        status, code, more = self.refused(handler.command, handler.path)
        path = self.root / urllib.parse.unquote(handler.path.partition("?")[0]).strip("/")
        headers, body = {}, b""
        if status:
            body = f"<Error><Code>{code}</Code><Message>{KEY}</Message>{more}</Error>".encode()
        elif "list-type" in handler.path:
            status, body = 200, self._listing(path)
        elif path.is_file():
            status, body = 200, path.read_bytes()
            headers["ETag"] = f'"{len(body)}-{path.stat().st_mtime_ns}"'
            span = handler.headers.get("Range", "").removeprefix("bytes=")
            if span:
                first, last = map(int, span.split("-"))
                headers["Content-Range"] = f"bytes {first}-{last}/{len(body)}"
                status, body = 206, body[first : last + 1]
        else:
            status, body = 404, b"<Error><Code>NoSuchKey</Code></Error>"
        self.asked.append((handler.command, status))
        handler.send_response(status)
        for name, text in headers.items():
            handler.send_header(name, text)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def _listing(self, bucket: Path) -> bytes:
        rows = "".join(
            f"<Contents><Key>{escape(str(path.relative_to(bucket)))}</Key><Size>{path.stat().st_size}</Size>"
            f"<ETag>{path.stat().st_size}-{path.stat().st_mtime_ns}</ETag></Contents>"
            for path in sorted(bucket.rglob("*"))
            if path.is_file()
        )
        return f"<ListBucketResult>{rows}</ListBucketResult>".encode()


LOCK = threading.Lock()


@pytest.fixture
def checking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckingServer]:
    server = CheckingServer(tmp_path)
    for name, text in {
        "AWS_ENDPOINT_URL": server.url,
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_REGION": REGION,
    }.items():
        monkeypatch.setenv(name, text)
    monkeypatch.delenv("AWS_SESSION_TOKEN", raising=False)
    object_stores._store_at.cache_clear()
    transfer._of_process[os.getpid()] = transfer.Transfers(
        transfer.Patience(timeout_s=5, tries=4, first_pause_s=0.001)
    )
    yield server
    server.server.shutdown()
    server.server.server_close()
    object_stores._store_at.cache_clear()


def refused(name: str = "s3://data/") -> str:
    """The one sentence of an error, which holds no secret."""
    with pytest.raises(FeedError) as caught:
        records_of(Feed(name, 8))
    said = str(caught.value)
    for secret in (SECRET, TOKEN, KEY):
        assert secret not in said
    assert "\n" not in said
    return said


@pytest.mark.parametrize("token", [None, TOKEN])
def test_a_server_that_checks_takes_every_request(
    checking: CheckingServer, monkeypatch: pytest.MonkeyPatch, token: str | None
) -> None:
    if token:
        monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    contents = put_objects(checking.root / "data" / "a b+c~d(e)", 30)
    (checking.root / "data" / "a b+c~d(e)" / "é=&.bin").write_bytes(b"1")
    contents["é=&.bin".encode()] = b"1"
    feed = Feed("s3://data/a b+c~d(e)/", 8, shuffle="global")
    assert sorted(records_of(feed)) == sorted(contents.items())
    assert {status for _, status in checking.asked} <= {200, 206}


@pytest.mark.parametrize(
    ("ahead_s", "said"),
    [
        (-2700.0, "this machine's clock is 45 minutes ahead of the clock of 127.0.0.1"),
        (2700.0, "this machine's clock is 45 minutes behind the clock of 127.0.0.1"),
        (3 * 86400.0, "this machine's clock is 72 hours behind the clock of 127.0.0.1"),
    ],
)
def test_a_wrong_clock_is_said_once_and_corrected(
    checking: CheckingServer, ahead_s: float, said: str
) -> None:
    contents = put_objects(checking.root / "data", 60)
    checking.ahead_s = ahead_s
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        feed = Feed("s3://data/", 4)
        assert records_of(feed) == sorted(contents.items())
    (one,) = [str(each.message) for each in caught if "clock" in str(each.message)]
    assert one.startswith(said)
    assert "set this machine's clock (NTP)" in one
    assert [status for _, status in checking.asked].count(403) == 1  # the first request's


def test_a_clock_that_goes_wrong_in_mid_epoch_costs_some_requests(checking: CheckingServer) -> None:
    contents = put_objects(checking.root / "data", 60)
    feed = Feed("s3://data/", 4, depth=2)
    checking.ahead_s = 4000.0
    with pytest.warns(RuntimeWarning, match="67 minutes behind"):
        assert records_of(feed) == sorted(contents.items())
    assert [status for _, status in checking.asked].count(403) <= 4


def test_a_wrong_clock_without_a_date_is_an_error_at_once(checking: CheckingServer) -> None:
    put_objects(checking.root / "data", 3)
    checking.ahead_s, checking.has_date = 2700.0, False
    said = refused()
    assert "RequestTimeTooSkewed" in said
    assert "this machine's clock differs from the store's: set it (NTP)" in said
    assert len(checking.asked) == 1


def test_a_server_whose_clock_leaps_ends_the_tries(checking: CheckingServer) -> None:
    put_objects(checking.root / "data", 3)
    now, days = checking.now, itertools.count()

    def leaping() -> datetime:
        return now() + timedelta(days=next(days))

    checking.now = leaping  # type: ignore[method-assign]
    checking.ahead_s = 5000.0
    with pytest.warns(RuntimeWarning):
        said = refused()
    assert "refuses the time of the signature" in said
    assert len(checking.asked) == 4


@pytest.mark.parametrize("name", ["s3://data/", "s3://data/000/00009.bin"])
@pytest.mark.parametrize(
    ("settings_", "code", "cure"),
    [
        (
            {"AWS_SECRET_ACCESS_KEY": "another"},
            "SignatureDoesNotMatch",
            "set AWS_SECRET_ACCESS_KEY",
        ),
        ({"AWS_ACCESS_KEY_ID": "AKIDOTHER"}, "InvalidAccessKeyId", "set AWS_ACCESS_KEY_ID"),
        ({"AWS_SESSION_TOKEN": "another"}, "InvalidToken", "set AWS_SESSION_TOKEN"),
        (
            {"AWS_REGION": "us-east-1"},
            "AuthorizationQueryParametersError",
            "the bucket is in eu-west-1: set AWS_REGION=eu-west-1",
        ),
    ],
)
def test_each_refusal_is_one_sentence_with_a_cure(
    checking: CheckingServer,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    settings_: dict[str, str],
    code: str,
    cure: str,
) -> None:
    put_objects(checking.root / "data", 12)
    for variable, text in settings_.items():
        monkeypatch.setenv(variable, text)
    said = refused(name)
    assert code in said
    assert cure in said
    assert said.startswith(name)
    assert len(checking.asked) <= 2  # no tries again: a HEAD, and a GET for the reason


def test_a_token_that_ends_in_mid_epoch_is_one_sentence(
    checking: CheckingServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", TOKEN)
    put_objects(checking.root / "data", 30)
    feed = Feed("s3://data/", 4, depth=1)
    checking.token_ends = True
    with pytest.raises(FeedError, match=r"ExpiredToken\): the session token has expired") as caught:
        records_of(feed)
    assert TOKEN not in str(caught.value)


def test_new_keys_of_a_role_make_new_signatures(checking: CheckingServer) -> None:
    """A signature is kept for half an hour; a token may end before."""
    bucket, _ = object_stores.store_of("s3://data/x")
    assert isinstance(bucket, object_stores.S3Bucket)
    first = bucket.target("x", "GET").path
    assert bucket.target("x", "GET").path == first
    bucket._credentials = Credentials(KEY, SECRET, "the next token")
    assert "the%20next%20token" in bucket.target("x", "GET").path


def test_a_wrong_clock_is_named_where_nothing_was_signed_with_a_time() -> None:
    headers = email.message.Message()
    headers["Date"] = email.utils.formatdate(time.time() - 7200, usegmt=True)

    class Answer:
        status = 403

        def __init__(self) -> None:
            self.headers = headers

        def read(self, _: int) -> bytes:
            return b""

        def getheader(self, _: str) -> None:
            return None

    target = transfer.HttpTarget(True, "host", 443, "/x")
    with pytest.raises(transfer._Refused, match="clock is 2 hours ahead of the clock of"):
        transfer._refuse_status(Answer(), target)  # type: ignore[arg-type]
    headers["Age"] = "7200"  # an answer that a cache kept
    with pytest.raises(transfer._Refused, match="are the credentials right"):
        transfer._refuse_status(Answer(), target)  # type: ignore[arg-type]


def test_a_second_refusal_with_an_equal_time_is_no_reason_to_try_again() -> None:
    clock = ServerClock("store")
    server_s = time.time() + 3000
    assert clock.corrected(server_s) == "this machine's clock is 50 minutes behind the clock"
    assert clock.corrected(server_s) == ""
    assert "50 minutes ahead" in clock.corrected(server_s - 6000)


@pytest.mark.parametrize(
    ("code", "region", "refusal"),
    [
        ("A" * 60, "eu-west-1", ("A" * 60, "eu-west-1")),
        ("A" * 61, "e" * 31, ("", "")),
        ("Slow Down", "https://elsewhere", ("", "")),
        ("", "", ("", "")),
    ],
)
def test_of_a_refusal_only_a_code_and_a_region_are_believed(
    code: str, region: str, refusal: tuple[str, str]
) -> None:
    body = f"<Error><Code>{code}</Code><Message>secret</Message><Region>{region}</Region></Error>"
    assert refusal_of(403, email.message.Message(), body) == (403, *refusal)
    headers = email.message.Message()
    headers["x-amz-bucket-region"] = region
    assert refusal_of(403, headers, "").region == refusal[1]


@pytest.mark.parametrize(
    ("refusal", "cure"),
    [
        (Refusal(401, "", ""), "are the credentials right?"),
        (Refusal(403, "Odd", ""), "(HTTP status 403 Odd); are the credentials right?"),
        (Refusal(400, "Odd", "eu-west-1"), "set AWS_REGION=eu-west-1"),
        (Refusal(301, "", "eu-west-1"), "set AWS_REGION=eu-west-1"),
    ],
)
def test_a_refusal_without_a_well_known_code_has_a_cure_too(refusal: Refusal, cure: str) -> None:
    assert sentence(refusal, "").endswith(cure)
    assert sentence(Refusal(400, "Odd", ""), "") == ""
