"""A store in S3: multipart uploads with checksums."""

from __future__ import annotations

import errno
import hashlib
import re
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from penstock.errors import TierError
from penstock.places.stores.remote import RemoteStore, move_in_store
from penstock.places.stores.store import BLOCK_BYTES, Upload, pieces, translated

if TYPE_CHECKING:
    from penstock.places.stores.store import Source

__all__ = ["S3Store"]

S3_LEAST_PIECE_BYTES = 5 << 20  # of a multipart upload; the last may be smaller
S3_MOST_PIECES = 10_000


class S3Store(RemoteStore):
    """S3 by S3's own calls: a multipart upload survives the uploading process."""

    durable = (
        "S3 has confirmed the whole object, part by part with their MD5; how often it keeps it is "
        "its storage class"
    )

    def _place(self, name: str) -> dict[str, str]:
        bucket, _, key = self._path(name).partition("/")
        return {"Bucket": bucket, "Key": key}

    def call(self, method: str, **arguments: Any) -> Any:
        return self._fs.call_s3(method, **arguments)

    def begun(self, prefix: str) -> Iterator[dict[str, Any]]:
        """Yield unfinished multipart uploads of keys with the prefix."""
        page: dict[str, Any] = {}
        asked = {"Bucket": self._root.partition("/")[0], "Prefix": prefix}
        while True:
            page = self.call("list_multipart_uploads", **asked)
            yield from page.get("Uploads", [])
            if not page.get("IsTruncated") or not page.get("NextKeyMarker"):
                return
            asked["KeyMarker"] = page["NextKeyMarker"]
            asked["UploadIdMarker"] = page.get("NextUploadIdMarker", "")

    def end_uploads(self, wanted: Collection[str], most_s: float) -> int:
        place = self._place("any")
        start = place["Key"].removesuffix("any")
        n_ended = 0
        with translated(self.where(""), "cleared of old uploads"):
            for upload in list(self.begun(start)):
                age_s = time.time() - upload["Initiated"].timestamp()
                if upload["Key"][len(start) :] not in wanted and age_s > most_s:
                    _Parts(self, {**place, "Key": upload["Key"]}, upload["UploadId"]).abort()
                    n_ended += 1
        return n_ended

    def put(self, name: str, source: Source) -> int:
        parts: _Parts | None = None
        try:
            with translated(self.where(name), "written"):
                held, size, number = bytearray(), 0, 0
                for data in pieces(source):
                    held += data
                    size += len(data)
                    if len(held) >= S3_LEAST_PIECE_BYTES << number // 1000:  # 10,000 hold 50 TB
                        parts = parts or _Parts(self, self._place(name), None)
                        parts.write(number, bytes(held))
                        number += 1
                        held.clear()
                if parts is None:
                    answer = self.call("put_object", **self._place(name), **_body(bytes(held)))
                    _compare(answer, _md5(bytes(held)).hexdigest())
                    return size
                if held:
                    parts.write(number, bytes(held))
                parts.complete()
                return size
        except BaseException:
            if parts is not None:
                with suppress(Exception):
                    parts.abort()
            raise

    def move(self, name: str, to: str) -> None:
        move_in_store(self, self._fs, (self._path(name), self._path(to)), (name, to))

    def upload(self, name: str, size_bytes: int, piece_bytes: int = BLOCK_BYTES) -> Upload:
        least = max(S3_LEAST_PIECE_BYTES, -(-size_bytes // S3_MOST_PIECES))
        piece_bytes *= -(-least // piece_bytes)
        return _S3Upload(self, self.where(name), self._place(name), size_bytes, piece_bytes)


def _md5(data: bytes | memoryview) -> Any:
    return hashlib.md5(data, usedforsecurity=False)


def _body(data: bytes | memoryview) -> dict[str, Any]:
    """Return the body of a request with a digest; S3 compares the digest with the received
    bytes."""
    import base64

    return {"Body": bytes(data), "ContentMD5": base64.b64encode(_md5(data).digest()).decode()}


def _compare(answer: dict[str, Any], wanted: str) -> None:
    """Compare the ETag from S3 with the digest of the bytes sent.  With a KMS key or a key of the
    client, the ETag is not an MD5 and is not compared.  Raises OSError."""
    is_plain = not answer.get("SSECustomerAlgorithm") and "kms" not in str(
        answer.get("ServerSideEncryption", "")
    )
    there = str(answer.get("ETag", "")).strip('"')
    if wanted and is_plain and re.fullmatch(r"[0-9a-f]{32}(-\d+)?", there) and there != wanted:
        raise OSError(errno.EIO, f"has other bytes than were sent (ETag {there}, not {wanted})")


class _Parts:
    """A multipart upload, new or continued."""

    def __init__(self, store: S3Store, place: dict[str, str], upload: str | None) -> None:
        self._store, self._place, self.marks = store, place, dict[int, str]()
        if upload is None:
            upload = store.call("create_multipart_upload", **place)["UploadId"]
        self._upload = {**place, "UploadId": upload}

    @classmethod
    def last_of(cls, store: S3Store, place: dict[str, str], n_parts: int) -> _Parts | None:
        """Return the last unfinished upload of exactly the name, with the parts up to n_parts; end
        older uploads of the name."""
        begun = [upload for upload in store.begun(place["Key"]) if upload["Key"] == place["Key"]]
        if not begun:
            return None
        for upload in begun[:-1]:
            cls(store, place, upload["UploadId"]).abort()
        parts = cls(store, place, begun[-1]["UploadId"])
        marker = 0
        while True:
            page = store.call("list_parts", **parts._upload, PartNumberMarker=marker)
            for part in page.get("Parts", []):
                if part["PartNumber"] <= n_parts:
                    parts.marks[part["PartNumber"] - 1] = part["ETag"]
            if not page.get("IsTruncated"):
                return parts
            marker = page["NextPartNumberMarker"]

    def write(self, number: int, data: bytes | memoryview) -> None:
        answer = self._store.call(
            "upload_part", **self._upload, PartNumber=number + 1, **_body(data)
        )
        _compare(answer, _md5(data).hexdigest())
        self.marks[number] = answer["ETag"]

    def abort(self) -> None:
        self._store.call("abort_multipart_upload", **self._upload)

    def complete(self) -> str:
        """Complete the upload.  Return the expected ETag of the object, if the ETags of the parts
        are MD5s."""
        marks = sorted(self.marks.items())
        parts = [{"PartNumber": number + 1, "ETag": mark} for number, mark in marks]
        self._store.call(
            "complete_multipart_upload", **self._upload, MultipartUpload={"Parts": parts}
        )
        sums = [mark.strip('"') for _, mark in marks]
        is_plain = all(re.fullmatch(r"[0-9a-f]{32}", digest) for digest in sums)
        return f"{_md5(bytes.fromhex(''.join(sums))).hexdigest()}-{len(sums)}" if is_plain else ""


class _S3Upload(Upload):
    """An upload by parts.  Existing parts are recognised by MD5; a file smaller than a part goes in
    one call."""

    is_ordered = False
    is_confirmed = True

    def __init__(
        self, store: S3Store, where: str, place: dict[str, str], size_bytes: int, piece_bytes: int
    ) -> None:
        super().__init__(where, size_bytes, piece_bytes)
        self._store, self._place = store, place
        self._whole = b""
        self._parts: _Parts | None = None
        if size_bytes > piece_bytes:
            with translated(where, "written"):
                n_parts = -(-size_bytes // piece_bytes)
                self._parts = _Parts.last_of(store, place, n_parts) or _Parts(store, place, None)

    def holds(self, number: int, data: memoryview) -> bool:
        import hashlib

        mark = self._parts.marks.get(number) if self._parts else None
        if mark is None:
            return False
        return hashlib.md5(data, usedforsecurity=False).hexdigest() == mark.strip('"')

    def write(self, number: int, data: memoryview) -> None:
        if self._parts is None:
            self._whole = bytes(data)
            return
        with translated(self.where, "written", len(data)):
            self._parts.write(number, data)

    def finish(self) -> None:
        if self.replacing is not None:
            self.replacing()
        with translated(self.where, "written", len(self._whole)):
            if self._parts is None:
                answer = self._store.call("put_object", **self._place, **_body(self._whole))
                wanted = _md5(self._whole).hexdigest()
                _compare(answer, wanted)
            else:
                wanted = self._parts.complete()
            there = self._store.call("head_object", **self._place)
            _compare(there, wanted)
        if there["ContentLength"] != self.size_bytes:
            raise TierError(
                f"{self.where}: has {there['ContentLength']} bytes where {self.size_bytes} were put"
            )

    def close(self) -> None:
        self._whole = b""
