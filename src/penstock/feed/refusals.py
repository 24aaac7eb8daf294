"""Turn a store's refusal into one sentence: what is wrong, and what to do.

Of the answer only its code and the name of a region are taken, so that no secret and no text of a
server stands in a message.
"""

from __future__ import annotations

import email.utils
import re
from email.message import Message
from typing import NamedTuple

__all__ = ["Refusal", "refusal_of", "sentence", "server_seconds"]

# For the codes of S3 and of services like it.
CURES = {
    "SignatureDoesNotMatch": "the secret key is not the one of this access key, or a proxy changes "
    "the request: set AWS_SECRET_ACCESS_KEY anew",
    "InvalidAccessKeyId": "the store does not know the access key: set AWS_ACCESS_KEY_ID and what "
    "belongs to it (AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN)",
    "ExpiredToken": "the session token has expired: get new credentials (AWS_SESSION_TOKEN, or "
    "`aws sso login`)",
    "TokenRefreshRequired": "the session token has expired: get new credentials "
    "(AWS_SESSION_TOKEN, or `aws sso login`)",
    "InvalidToken": "the session token does not belong to the access key: set AWS_SESSION_TOKEN, "
    "or leave it out",
    "RequestTimeTooSkewed": "this machine's clock differs from the store's: set it (NTP)",
    "AccessDenied": "these credentials may not read it: ask for s3:GetObject and s3:ListBucket",
    "AllAccessDisabled": "the store has closed it to everybody",
}
# Codes of an answer with another status than 403 that a new try does not change.
OF_REGION = ("AuthorizationHeaderMalformed", "AuthorizationQueryParametersError",
             "PermanentRedirect", "IllegalLocationConstraintException")  # fmt: skip


class Refusal(NamedTuple):
    """A store's answer.  code, region: "" if the answer has none."""

    status: int
    code: str
    region: str

    @property
    def said(self) -> str:
        return f"HTTP status {self.status}" + (f" {self.code}" if self.code else "")


def refusal_of(status: int, headers: Message, body: str) -> Refusal:
    """Return code and region of an answer, of which nothing else is believed."""
    code = _between(body, "<Code>", "</Code>")
    region = headers.get("x-amz-bucket-region") or _between(body, "<Region>", "</Region>")
    return Refusal(
        status,
        code if re.fullmatch(r"[A-Za-z0-9.]{1,60}", code) else "",
        region if re.fullmatch(r"[a-z0-9-]{1,30}", region) else "",
    )


def _between(body: str, begin: str, end: str) -> str:
    return body.partition(begin)[2].partition(end)[0].strip()


def sentence(refusal: Refusal, skew: str) -> str:
    """Return what is wrong and what to do, "" for no known refusal.

    skew: the difference of the clocks in words, "" for none.
    """
    said, code = refusal.said, refusal.code
    if skew:
        return f"the server refuses it ({said}): {skew} of the server; set it (NTP)"
    if code in OF_REGION or (refusal.status in (301, 400) and refusal.region):
        where = f"the bucket is in {refusal.region}: set AWS_REGION={refusal.region}"
        cure = where if refusal.region else "the region is wrong: set AWS_REGION"
        return f"the store sends it elsewhere ({said}): {cure}"
    if code in CURES:
        return f"the server refuses it ({said}): {CURES[code]}"
    if refusal.status in (401, 403):
        return f"the server refuses it ({said}); are the credentials right?"
    return ""


def server_seconds(headers: Message) -> float | None:
    """Return the server's time, in seconds since 1970; None: not told, or by a cache."""
    if headers.get("Age"):
        return None
    try:
        return email.utils.parsedate_to_datetime(headers.get("Date") or "").timestamp()
    except (ValueError, TypeError, OverflowError):
        return None
