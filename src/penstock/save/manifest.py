"""The manifest of a checkpoint: names, sizes, and a checksum for every 4 MiB, in a JSON file.

Knows bytes and JSON; knows no folder, no store and no format of a framework.  Any program may have
altered, cut or written a manifest: parse() checks every field.
"""

import json
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from penstock.errors import SaveError

__all__ = [
    "BESIDE",
    "CHUNK_BYTES",
    "INSIDE",
    "LEAST_KEPT_BYTES",
    "FileSum",
    "Manifest",
    "Summing",
    "checksum",
    "content_of",
    "crc32",
    "n_chunks",
    "parse",
    "to_json",
]

Buffer = bytes | bytearray | memoryview

MOST_TEXT = 4096  # letters
INSIDE = "penstock-manifest.json"  # inside a checkpoint folder
BESIDE = ".penstock.json"  # suffix to the name of a checkpoint file, or to the prefix of files
VERSION = 1
# xxh3: 30 GB/s on a core (CRC-32 of zlib 1.2.13 3, SHA-256 2, the disk 2.6).  xxh3 detects
# accidental damage; xxh3 is no signature.
ALGORITHM = "xxh3-64"
SUM_BYTES = 8
CHUNK_BYTES = 4 << 20
MOST_BYTES = 256 << 20  # of a manifest: at 16 digits per 4 MiB, enough for 64 TiB of data
MOST_RANKS = 10_000_000
MOST_SIZE = 1 << 62


@dataclass(frozen=True, slots=True)
class FileSum:
    """A file.  sums: SUM_BYTES for each chunk, in order; the last chunk may be shorter."""

    name: str
    size_bytes: int
    sums: bytes

    def sum_of(self, chunk: int) -> bytes:
        return self.sums[chunk * SUM_BYTES : (chunk + 1) * SUM_BYTES]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of a checkpoint.  step: None if unknown.  kind: the format of the files.

    source: the copied checkpoint, as named by the source tier.  Manifests with equal sources
    describe the same checkpoint.
    verified_unix_ns: the time of the last complete read and comparison; 0: never.
    origin: the tier of the copied checkpoint; empty: not copied, or unknown.
    as_fetched: the layout of the files after a fetch of another program's save.  If the layout
    differs now, the program has written into the files since, and the manifest is out of date.
    called: the saved name, where a copy needed another name; the new name holds no step.
    saved: for each of files, the name and the time of writing (mtime_ns) at the source, for another
    program's save; empty: unknown.
    doubt: why the files may belong to different saves, as seen at the copy; empty: no doubt.
    state: the verdict on the source, if weaker than "complete by length": the checksums show only
    that the copy has the bytes of the source.
    """

    files: tuple[FileSum, ...]
    step: int | None = None
    world_size: int = 1
    kind: str = "files"
    metrics: dict[str, float] = field(default_factory=dict)
    created_unix_ns: int = 0
    verified_unix_ns: int = 0
    source: str = ""
    chunk_bytes: int = CHUNK_BYTES
    origin: str = ""
    as_fetched: str = ""
    called: str = ""
    saved: tuple[tuple[str, int], ...] = ()
    doubt: str = ""
    state: str = ""
    _content: str = field(default="", init=False, repr=False, compare=False)  # once asked

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def by_saved_name(self) -> dict[str, FileSum]:
        """Return the files by their names at the source, which differ in a copy NAME.2."""
        names = [name for name, _ in self.saved] or [file.name for file in self.files]
        return dict(zip(names, self.files, strict=True))

    @property
    def content(self) -> str:
        """Return a digest of names, sizes and checksums: equal for equal files."""
        if not self._content:
            rows = ((file.name, file.size_bytes, file.sums.hex()) for file in self.files)
            object.__setattr__(self, "_content", content_of(rows))
        return self._content

    @property
    def identity(self) -> str:
        """Return the identity of a checkpoint and the copies; equal files at two steps differ."""
        return f"content:{self.content}:{self.step}:{self.created_unix_ns}"

    def now(self) -> "Manifest":
        return replace(self, created_unix_ns=time.time_ns())


def content_of(facts: Iterable[tuple[Any, ...]]) -> str:
    """Return a digest of rows; the order of the rows does not matter."""
    import xxhash

    rows = sorted(map(_row, facts))
    return xxhash.xxh3_128_hexdigest("\n".join(rows).encode("utf-8", "surrogatepass"))


_quoted = json.encoder.encode_basestring_ascii


def _row(row: tuple[Any, ...]) -> str:
    """Return json.dumps(row), sooner for texts and whole numbers."""
    texts = []
    for value in row:
        if type(value) is str:
            texts.append(_quoted(value))
        elif type(value) is int:
            texts.append(str(value))
        else:
            return json.dumps(row)
    return f"[{', '.join(texts)}]"


def checksum(data: Buffer) -> bytes:
    """Return the checksum of a chunk, SUM_BYTES long."""
    import xxhash

    return xxhash.xxh3_64_digest(data)


def crc32(data: Buffer, before: int = 0) -> int:
    """Return the CRC-32 of a zip archive, continued from `before`, the CRC-32 of preceding data.

    zlib's crc32 (2 to 3 GB/s), together with the checksum above, was no faster than the disk.
    """
    from isal.isal_zlib import crc32

    return crc32(data, before)


def n_chunks(size_bytes: int, chunk_bytes: int = CHUNK_BYTES) -> int:
    return -(-size_bytes // chunk_bytes)


class Summing:
    """Checksums of bytes that arrive in order, in pieces of any size."""

    def __init__(self, chunk_bytes: int = CHUNK_BYTES) -> None:
        import xxhash

        self._new = xxhash.xxh3_64
        self._state, self._room, self._chunk_bytes = self._new(), chunk_bytes, chunk_bytes
        self._sums = bytearray()
        self.size_bytes = 0

    def add(self, data: Buffer) -> None:
        rest = memoryview(data).cast("B")
        while len(rest):
            now = rest[: self._room]
            self._state.update(now)
            self.size_bytes += len(now)
            self._room -= len(now)
            rest = rest[len(now) :]
            if not self._room:
                self._close_chunk()

    def _close_chunk(self) -> None:
        self._sums += self._state.digest()
        self._state, self._room = self._new(), self._chunk_bytes

    def end(self, name: str) -> FileSum:
        if self._room < self._chunk_bytes:
            self._close_chunk()
        return FileSum(name, self.size_bytes, bytes(self._sums))


# --- as JSON --------------------------------------------------------------------------------------


def to_json(manifest: Manifest) -> bytes:
    """Return the manifest as JSON.  The seal in the last line detects any changed character."""
    body = {
        "penstock": VERSION,
        "algorithm": ALGORITHM,
        "chunk_bytes": manifest.chunk_bytes,
        "step": manifest.step,
        "world_size": manifest.world_size,
        "kind": manifest.kind,
        "metrics": manifest.metrics,
        "created_unix_ns": manifest.created_unix_ns,
        "verified_unix_ns": manifest.verified_unix_ns,
        "source": manifest.source,
        "origin": manifest.origin,
        **({"as_fetched": manifest.as_fetched} if manifest.as_fetched else {}),
        **({"called": manifest.called} if manifest.called else {}),
        **({"saved": [list(row) for row in manifest.saved]} if manifest.saved else {}),
        **({"doubt": manifest.doubt[:MOST_TEXT]} if manifest.doubt else {}),
        **({"state": manifest.state} if manifest.state else {}),
    }
    # The encoder in C cannot indent; Python's takes ten times as long: not for the rows.
    rows = [
        {"name": file.name, "size_bytes": file.size_bytes, "sums": file.sums.hex()}
        for file in manifest.files
    ]
    seal = _seal({**body, "files": rows})
    head = json.dumps(body, indent=1).removesuffix("\n}")
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    files = f"[\n{lines}\n ]" if rows else "[]"
    return f'{head},\n "files": {files},\n "seal": {json.dumps(seal)}\n}}\n'.encode()


def _seal(body: dict[str, Any]) -> str:
    import xxhash

    return xxhash.xxh3_128_hexdigest(json.dumps(body, sort_keys=True).encode())


def parse(data: bytes, where: str) -> Manifest:
    """Parse and check a manifest.  where: the path for messages.  Raises SaveError."""
    try:
        if LEAST_KEPT_BYTES <= len(data) <= MOST_KEPT_BYTES:
            with suppress(SaveError, _Wrong):  # below with the path
                return _kept(data)
        return _parsed(data, where)
    except _Wrong as error:
        raise SaveError(f"{where}: {error}; the checkpoint cannot be trusted") from None


class _Wrong(Exception):  # noqa: N818 - never leaves this module
    """A defect of a manifest."""


# A drain parses the manifest of thousands of files at each look.
LEAST_KEPT_BYTES, MOST_KEPT_BYTES = 16 << 10, 16 << 20


@lru_cache(4)
def _kept(data: bytes) -> Manifest:
    return _parsed(data, "")


def _parsed(data: bytes, where: str) -> Manifest:
    if len(data) > MOST_BYTES:
        raise _Wrong(f"a manifest of {len(data):,} bytes")
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _Wrong("the manifest is no JSON: cut short or damaged") from error
    if not isinstance(body, dict) or not isinstance(body.get("penstock"), int):
        raise _Wrong("no manifest of penstock")
    if body["penstock"] > VERSION:
        raise SaveError(
            f"{where}: written by format {body['penstock']}, newest known here is {VERSION}; "
            "upgrade penstock to read it"
        )
    seal = body.pop("seal", None)
    try:
        # The seal does not cover the last byte, and a missing last byte counts as a cut.
        is_sealed = seal == _seal(body) and data.endswith(b"\n")
    except (ValueError, RecursionError) as error:
        raise _Wrong("the manifest cannot be read") from error
    if not is_sealed:
        raise _Wrong("the manifest was altered or damaged: its seal does not fit")
    if body.get("algorithm") != ALGORITHM:
        raise _Wrong(f"checksums of an unknown kind, {body.get('algorithm')!r}")
    chunk_bytes = _whole(body, "chunk_bytes", 1 << 12, 1 << 30)
    rows = body.get("files")
    if not isinstance(rows, list):
        raise _Wrong("no list of files")
    files = tuple(_file(row, chunk_bytes) for row in rows)
    if len({file.name for file in files}) != len(files):
        raise _Wrong("a file is named twice")
    step = body.get("step")
    return Manifest(
        files=files,
        step=None if step is None else _whole(body, "step", 0, MOST_SIZE),
        world_size=_whole(body, "world_size", 1, MOST_RANKS),
        kind=_text(body, "kind"),
        metrics=_metrics(body.get("metrics")),
        created_unix_ns=_whole(body, "created_unix_ns", 0, MOST_SIZE),
        verified_unix_ns=_whole(body, "verified_unix_ns", 0, MOST_SIZE),
        source=_text(body, "source"),
        chunk_bytes=chunk_bytes,
        origin=_text({"origin": "", **body}, "origin"),
        as_fetched=_text({"as_fetched": "", **body}, "as_fetched"),
        called=_text({"called": "", **body}, "called"),
        saved=_saved(body.get("saved", []), len(files)),
        doubt=_text({"doubt": "", **body}, "doubt"),
        state=_text({"state": "", **body}, "state"),
    )


def _saved(rows: Any, n_files: int) -> tuple[tuple[str, int], ...]:
    if rows == []:
        return ()
    if not isinstance(rows, list) or len(rows) != n_files:
        raise _Wrong("the names at the source are of another number of files")
    pairs = []
    for row in rows:
        if not isinstance(row, list) or len(row) != 2:
            raise _Wrong("a name at the source without a time")
        name, mtime_ns = row
        if not isinstance(name, str) or not isinstance(mtime_ns, int):
            raise _Wrong("a name at the source is no text, or a time is no number")
        pairs.append((name, mtime_ns))
    return tuple(pairs)


def _whole(body: dict[str, Any], key: str, least: int, most: int) -> int:
    value = body.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _Wrong(f"{key} is {str(value)[:40]}")
    return value


def _text(body: dict[str, Any], key: str) -> str:
    value = body.get(key)
    if not isinstance(value, str) or len(value) > MOST_TEXT:
        raise _Wrong(f"{key} is no text")
    return value


def _metrics(value: Any) -> dict[str, float]:
    if not isinstance(value, dict) or not all(
        isinstance(metric, int | float) and not isinstance(metric, bool)
        for metric in value.values()
    ):
        raise _Wrong("metrics are no numbers")
    try:
        return {str(key): float(metric) for key, metric in value.items()}
    except OverflowError as error:
        raise _Wrong("a metric is no number of this world") from error


# No dot at the start of a part of the name, and no manifest: such a name needs no closer look.
_PLAIN = re.compile(r"(?!penstock-)[\w-][\w.-]*(?:/[\w-][\w.-]*)*", re.ASCII)
_DIGITS = re.compile(r"[0-9a-f]*")


def _file(row: Any, chunk_bytes: int) -> FileSum:
    if not isinstance(row, dict):
        raise _Wrong("a file without name")
    name, sums = _text(row, "name"), row.get("sums")
    if not _PLAIN.fullmatch(name) and (
        not name
        or "\0" in name
        or (path := PurePosixPath(name)).is_absolute()
        or ".." in path.parts
        or str(path) != name
        or name == INSIDE
    ):
        raise _Wrong(f"a file may not be named {name[:80]!r}")
    size = _whole(row, "size_bytes", 0, MOST_SIZE)
    if not isinstance(sums, str) or not _DIGITS.fullmatch(sums):
        raise _Wrong(f"{name[:80]}: checksums are no digits")
    if len(sums) != 2 * SUM_BYTES * n_chunks(size, chunk_bytes):
        raise _Wrong(f"{name[:80]}: {size:,} bytes and checksums of another number of chunks")
    return FileSum(name, size, bytes.fromhex(sums))
