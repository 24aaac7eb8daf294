"""Sign requests to S3 in their address (Signature Version 4), with the clock of the server.

A signature holds the time, and a server refuses one that is a quarter of an hour off.  A server's
answer has its own time, so a wrong clock here costs one request: `ServerClock` keeps the
difference.  The module reads no environment and finds no credentials.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
import urllib.parse
import warnings
from datetime import UTC, datetime
from typing import Protocol

__all__ = ["Keys", "ServerClock", "presigned"]

ALGORITHM = "AWS4-HMAC-SHA256"
NOTED_S = 300.0  # a smaller difference is no reason for a refusal


class Keys(Protocol):
    """Credentials, as botocore freezes them.  token: None or "" if there is none."""

    @property
    def access_key(self) -> str: ...

    @property
    def secret_key(self) -> str: ...

    @property
    def token(self) -> str | None: ...


class ServerClock:
    """The clock of one server, as far as it differs from this machine's."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.ahead_s = 0.0  # the server's time minus this machine's
        self._lock = threading.Lock()

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time() + self.ahead_s, UTC)

    def corrected(self, server_s: float) -> str:
        """Note the server's time from a refusal; return the difference in words, "" for none.

        The difference to the time of the signatures so far decides, so a second refusal with an
        equal time is no reason to try again.
        """
        with self._lock:
            if abs(server_s - self.now().timestamp()) < NOTED_S:
                return ""
            self.ahead_s = server_s - time.time()
            return difference(-self.ahead_s)

    def warn(self, said: str) -> None:
        """Warn of the difference; Python shows equal warnings of a place once."""
        warnings.warn(
            f"{said} of {self.host}: requests are signed with the server's time; set this "
            "machine's clock (NTP)",
            RuntimeWarning,
            stacklevel=2,
        )


def difference(ahead_s: float) -> str:
    """Return a difference of clocks in words.  ahead_s: of this machine's clock."""
    minutes = round(abs(ahead_s) / 60)
    long = f"{minutes:,} minutes" if minutes < 120 else f"{minutes / 60:,.0f} hours"
    return f"this machine's clock is {long} {'ahead of' if ahead_s > 0 else 'behind'} the clock"


def presigned(
    method: str,
    host: str,
    target: str,
    keys: Keys,
    region: str,
    now: datetime,
    valid_s: int,
) -> str:
    """Return a target (encoded path and query) with a signature for S3.

    host: as in the header Host, with a port that is not the usual one.  The signature is of method,
    host, path and query, so it is valid for every range of an object.
    """
    path, _, query = target.partition("?")
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{stamp[:8]}/{region}/s3/aws4_request"
    fields = urllib.parse.parse_qsl(query, keep_blank_values=True)
    fields += [
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", f"{keys.access_key}/{scope}"),
        ("X-Amz-Date", stamp),
        ("X-Amz-Expires", str(valid_s)),
        ("X-Amz-SignedHeaders", "host"),
    ]
    if keys.token:
        fields.append(("X-Amz-Security-Token", keys.token))
    encoded = sorted((_encoded(name), _encoded(text)) for name, text in fields)
    signed = "&".join(f"{name}={text}" for name, text in encoded)
    request = f"{method}\n{path}\n{signed}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    digest = hashlib.sha256(request.encode()).hexdigest()
    key = f"AWS4{keys.secret_key}".encode()
    for part in (*scope.split("/"), f"{ALGORITHM}\n{stamp}\n{scope}\n{digest}"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return f"{path}?{signed}&X-Amz-Signature={key.hex()}"


def _encoded(text: str) -> str:
    return urllib.parse.quote(text, safe="~")
