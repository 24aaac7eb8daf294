"""The list of objects with copies on a tier: by address, with the version that was copied.

One reader for the tier's list and for a run's own list.  Reads and writes these lists; knows no
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
# Each byte becomes 1 and stays so: no process of a run can undo what another has found.
UNCHANGED, CHANGED, STATE_BYTES = 0, 1, 2
# What each process did, in a file of its own in the run's folder, which ends in COUNTS_NAME.
COUNTS = struct.Struct("<5Q")  # served, served bytes, asked, changed, left to the network
COUNTS_NAME = ".objects"
MOST_LINE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class ObjectCopy:
    """An object and its copy.

    address: scheme://HOST:PORT/path, the path as it is sent.  copy: in a tier's list below staged/,
    in a run's list the whole path.  etag: with quotes, "" without one; then last_modified tells
    versions apart.  headers: those of an answer that describe the object.
    is_frozen: the version is asked once, at a run's start.  is_signed: with credentials for S3.
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

    def line(self) -> bytes:
        """Return the copy as a line of a list."""
        facts = {name: getattr(self, name) for name in self.__slots__}
        return checksums.line(json.dumps(facts).encode()) + b"\n"


def mark_of(etag: str, last_modified: str) -> str:
    """Return the version of an object, as a store of the copying tells it."""
    return f"{etag}\n{last_modified}"


def read(path: Path) -> list[ObjectCopy]:
    """Return the copies in a list; damaged lines count as none.  Raises TierError."""
    found = []
    try:
        with bounded.opened(path) as file:
            while text := file.readline(MOST_LINE_BYTES):
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    found.append(_copy_in(text.rstrip(b"\n")))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}") from error
    return found


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
    headers = tuple((name, value) for name, value in facts["headers"])
    words = (*texts, *(word for pair in headers for word in pair))
    if not all(isinstance(word, str) and word.isprintable() for word in words):
        raise ValueError("a text that is none")
    if any(type(size) is not int or not 0 <= size < 1 << 63 for size in sizes):
        raise ValueError("a number that is none")
    if ".." in texts[1].split("/") or not (texts[2] or texts[3]) or not sizes[0]:
        raise ValueError("a copy of no known version, or outside of the tier")
    flags = facts["is_frozen"] is True, facts["is_signed"] is True
    return ObjectCopy(texts[0], texts[1], *sizes, texts[2], texts[3], headers, *flags)


def _valid(tier: Tier, copies: Iterable[ObjectCopy]) -> list[ObjectCopy]:
    """Return the copies that the tier's manifest has of exactly these versions."""
    from penstock.stage.manifest import TierPlace, hash_of

    entries = TierPlace(tier).entries()
    found = []
    for one in copies:
        entry = entries.get(one.copy)
        version = hash_of(mark_of(one.etag, one.last_modified).encode())
        if (
            entry is not None
            and entry.source == one.address
            and (entry.identity.size_bytes, entry.identity.ino) == (one.size_bytes, version)
        ):
            found.append(replace(one, mtime_ns=entry.identity.mtime_ns))
    return found


def tell(tier: Tier, copies: Iterable[ObjectCopy]) -> int:
    """Add copies to the tier's list; copies that the manifest has no longer leave the list.

    Return the number of added copies.  Raises TierError.
    """
    from penstock.stage.manifest import TierPlace

    place = TierPlace(tier)
    path = place.own / LIST
    try:
        with place.locked():
            added = _valid(tier, copies)
            known = {one.copy: one for one in [*_valid(tier, read(path)), *added]}
            with drafts.draft(path, 0o600) as file:
                file.writelines(one.line() for one in known.values())
    except OSError as error:
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error
    return len(added)


def present(tier: Tier) -> list[ObjectCopy]:
    """Return the copies on a tier, with whole paths, whose size and time are those of the copying.

    Raises TierError.
    """
    from penstock.stage.manifest import TierPlace

    place = TierPlace(tier)
    found = []
    for one in _valid(tier, read(place.own / LIST)):
        path = f"{place.copies}/{one.copy}"
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            size_and_time = status.st_size, status.st_mtime_ns
            if stat.S_ISREG(status.st_mode) and size_and_time == (one.size_bytes, one.mtime_ns):
                found.append(replace(one, copy=path))
    return found


Asked = tuple[int, str, str]  # size, ETag, time of change


def begin(folder: Path, found: Sequence[ObjectCopy], asked: Mapping[str, Asked]) -> None:
    """Write the list of a run that is served from copies.

    asked: what the servers told of objects at the run's start, by address.  Raises TierError.
    """
    states = bytearray(STATE_BYTES * len(found))
    for number, one in enumerate(found):
        answer = asked.get(one.address)
        if answer is not None:
            is_same = answer == (one.size_bytes, one.etag, one.last_modified)
            states[STATE_BYTES * number + (UNCHANGED if is_same else CHANGED)] = 1
    try:
        with drafts.draft_in_run(folder / LIST) as file:
            file.writelines(one.line() for one in found)
        drafts.write_in_run(folder / ASKED, bytes(states))
    except OSError as error:
        raise TierError(f"{folder}: cannot be written: {error.strerror}") from error


def counted(folder: Path) -> dict[str, int]:
    """Return what the processes of a run were served: requests, bytes, requests that asked for a
    version, and requests for listed objects that went to the network."""
    total = [0] * 5
    for path in folder.glob(f"*{COUNTS_NAME}"):
        with contextlib.suppress(OSError, ValueError, struct.error):
            values = COUNTS.unpack(bounded.read(path, COUNTS.size))
            total = [before + more for before, more in zip(total, values, strict=True)]
    requests, n_bytes, asked, _, left = total
    return {"requests": requests, "bytes": n_bytes, "asked": asked, "left": left}


def changed_in(folder: Path, listed: Sequence[ObjectCopy]) -> list[ObjectCopy]:
    """Return the objects of a run's list that a process of the run found changed, or wrote to."""
    try:
        states = bounded.read(folder / ASKED, STATE_BYTES * len(listed))
    except (OSError, ValueError):
        return []
    flags = states[CHANGED::STATE_BYTES]
    return [one for one, is_changed in zip(listed, flags, strict=False) if is_changed]
