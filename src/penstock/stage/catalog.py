"""The list of objects with copies on a tier: by address, with the copied version.

Lists of tiers and of runs have one format.  Reads and writes these lists; knows no
server and copies nothing.  Importable in a training process: no numpy at import.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import TierError
from penstock.safe import bounded, checksums, drafts

if TYPE_CHECKING:
    from penstock.places.registry import Tier

__all__ = [
    "ASKED",
    "CHANGED",
    "COUNTS",
    "COUNTS_NAME",
    "LIST",
    "STATE_BYTES",
    "UNCHANGED",
    "ObjectCopy",
    "begin",
    "changed_in",
    "counted",
    "mark_of",
    "present",
    "read",
    "tell",
]

LIST, ASKED = "objects.jsonl", "objects.asked"  # the list; for each line the two bytes below
# Each byte becomes 1 and stays 1: no process of a run can undo the answer of another process.
UNCHANGED, CHANGED, STATE_BYTES = 0, 1, 2
# The counts of a process, in a file of the run's folder with a name that ends in COUNTS_NAME.
COUNTS = struct.Struct("<5Q")  # served, served bytes, asked, changed, left to the network
COUNTS_NAME = ".objects"
MOST_LINE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ObjectCopy:
    """An object and its copy.

    address: scheme://HOST:PORT/path, the path as sent.  copy: in a tier's list below staged/,
    in a run's list the whole path.  etag: with quotes, "" without one; then last_modified tells
    versions apart.  headers: of an answer, as far as they describe the object.
    is_frozen: the version is asked once, at a run's start.  is_signed: with credentials for S3.
    copy_ino, copy_ctime_ns: of the copy, in a run's list: a later copy of another version may have
    the size and the time of this copy.
    """

    address: str
    copy: str
    size_bytes: int
    mtime_ns: int
    etag: str
    last_modified: str
    headers: tuple[tuple[str, str], ...] = ()
    is_frozen: bool = False
    is_signed: bool = False
    copy_ino: int = 0
    copy_ctime_ns: int = 0

    def line(self) -> bytes:
        """Return the copy as a line of a list."""
        facts = {name: getattr(self, name) for name in self.__slots__}
        return checksums.line(json.dumps(facts).encode()) + b"\n"


def mark_of(etag: str, last_modified: str) -> str:
    """Return the version of an object, as in StoredFile.mark."""
    return f"{etag}\n{last_modified}"


def read(path: Path) -> list[ObjectCopy]:
    """Return the copies in a list; damaged lines count as none.  Raises TierError."""
    copies = []
    try:
        with bounded.opened(path) as file:
            while text := file.readline(MOST_LINE_BYTES):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    copies.append(_copy_in(text.rstrip(b"\n")))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}") from error
    return copies


def _copy_in(text: bytes) -> ObjectCopy:
    """Return the copy of a line.  Raises ValueError, KeyError, TypeError: another text."""
    if not checksums.line_is_sound(text):
        raise ValueError("a line that differs from its checksum")
    try:
        facts: Mapping[str, Any] = json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    texts = tuple(facts[name] for name in ("address", "copy", "etag", "last_modified"))
    sizes = facts["size_bytes"], facts["mtime_ns"]
    marks = facts.get("copy_ino", 0), facts.get("copy_ctime_ns", 0)
    headers = tuple((name, value) for name, value in facts["headers"])
    words = (*texts, *(word for pair in headers for word in pair))
    if not all(isinstance(word, str) and word.isprintable() for word in words):
        raise ValueError("a text that is none")
    if any(type(size) is not int or not 0 <= size < 1 << 63 for size in sizes):
        raise ValueError("a number that is none")
    if any(type(mark) is not int for mark in marks):
        raise ValueError("a number that is none")
    if ".." in texts[1].split("/") or not (texts[2] or texts[3]) or not sizes[0]:
        raise ValueError("a copy of no known version, or outside of the tier")
    flags = facts["is_frozen"] is True, facts["is_signed"] is True
    return ObjectCopy(texts[0], texts[1], *sizes, texts[2], texts[3], headers, *flags, *marks)


def _valid(tier: Tier, copies: Iterable[ObjectCopy]) -> list[ObjectCopy]:
    """Return the copies with an entry of the same version in the tier's manifest."""
    from penstock.stage.manifest import TierPlace, hash_of

    entries = TierPlace(tier).entries()
    kept = []
    for copy in copies:
        entry = entries.get(copy.copy)
        version = hash_of(mark_of(copy.etag, copy.last_modified).encode())
        if (
            entry is not None
            and entry.source == copy.address
            and (entry.identity.size_bytes, entry.identity.ino) == (copy.size_bytes, version)
        ):
            kept.append(replace(copy, mtime_ns=entry.identity.mtime_ns))
    return kept


def tell(tier: Tier, copies: Iterable[ObjectCopy]) -> int:
    """Add copies to the tier's list; remove copies without an entry in the manifest.

    Return the number of added copies.  Raises TierError.
    """
    from penstock.stage.manifest import TierPlace

    place = TierPlace(tier)
    path = place.own / LIST
    try:
        with place.locked():
            added = _valid(tier, copies)
            by_copy = {copy.copy: copy for copy in [*_valid(tier, read(path)), *added]}
            with drafts.draft(path, 0o600) as file:
                file.writelines(copy.line() for copy in by_copy.values())
    except OSError as error:
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error
    return len(added)


def present(tier: Tier) -> list[ObjectCopy]:
    """Return the copies on a tier with unchanged size and time, with whole paths.

    Raises TierError.
    """
    from penstock.stage.manifest import TierPlace

    place = TierPlace(tier)
    copies = []
    for copy in _valid(tier, read(place.own / LIST)):
        path = f"{place.copies}/{copy.copy}"
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            size_and_time = status.st_size, status.st_mtime_ns
            if stat.S_ISREG(status.st_mode) and size_and_time == (copy.size_bytes, copy.mtime_ns):
                marked = replace(copy, copy_ino=status.st_ino, copy_ctime_ns=status.st_ctime_ns)
                copies.append(replace(marked, copy=path))
    return copies


Asked = tuple[int, str, str]  # size, ETag, time of change


def begin(folder: Path, copies: Sequence[ObjectCopy], asked: Mapping[str, Asked]) -> None:
    """Write the list of a staged run.

    asked: the answers of servers at the run's start, by address.  Raises TierError.
    """
    states = bytearray(STATE_BYTES * len(copies))
    for number, copy in enumerate(copies):
        answer = asked.get(copy.address)
        if answer is not None:
            is_same = answer == (copy.size_bytes, copy.etag, copy.last_modified)
            states[STATE_BYTES * number + (UNCHANGED if is_same else CHANGED)] = 1
    try:
        with drafts.draft_in_run(folder / LIST) as file:
            file.writelines(copy.line() for copy in copies)
        drafts.write_in_run(folder / ASKED, bytes(states))
    except OSError as error:
        raise TierError(f"{folder}: cannot be written: {error.strerror}") from error


def counted(folder: Path) -> dict[str, int]:
    """Return sums over a run's processes: requests and bytes answered from copies, requests for a
    version, and requests for listed objects that went to the network."""
    total = [0] * 5
    for path in folder.glob(f"*{COUNTS_NAME}"):
        with contextlib.suppress(OSError, ValueError, struct.error):
            values = COUNTS.unpack(bounded.read(path, COUNTS.size))
            total = [before + more for before, more in zip(total, values, strict=True)]
    requests, n_bytes, asked, _, left = total
    return {"requests": requests, "bytes": n_bytes, "asked": asked, "left": left}


def changed_in(folder: Path, listed: Sequence[ObjectCopy]) -> list[ObjectCopy]:
    """Return the objects of a run's list that have changed or that the run has written."""
    try:
        states = bounded.read(folder / ASKED, STATE_BYTES * len(listed))
    except (OSError, ValueError):
        return []
    flags = states[CHANGED::STATE_BYTES]
    return [copy for copy, is_changed in zip(listed, flags, strict=False) if is_changed]
