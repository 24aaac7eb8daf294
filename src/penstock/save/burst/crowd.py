"""A batch of small files of a burst buffer, brought home by the native copier.

The steps of penstock.save.small.batch, for hundreds of files in a call; files that need more than a
copy are handed back to the drain.  Knows paths and states; the drain (penstock.save.burst.home)
selects due files and records arrivals.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Protocol, Self

from penstock.errors import TierError
from penstock.save.find.tree import kind_of
from penstock.save.small import copier
from penstock.save.small.batch import LEAST_SYNCED_TOGETHER, Syncs, full_or
from penstock.save.small.copier import Copier

__all__ = ["LEAST", "MOST_FILES", "Act", "Crowd", "CrowdFile", "is_for_crowd"]

# The smallest batch: with fewer files the native copier saves less than a millisecond.
LEAST = 64
# Per batch; bounds the work that a kill loses.  penstock.save.small.batch.MOST_BYTES bounds the
# memory.
MOST_FILES = 32_768
# Files per part.  While a part is synced, and waits for the device, the next part is copied.  A
# sync takes some ms, however few the files.
PART = 2048
MOST_FOLDERS = 256  # each takes a descriptor; a process usually has 1,024


class CrowdFile(Protocol):
    """A file on the tier, as penstock.save.burst.file.BurstFile."""

    @property
    def name(self) -> str: ...

    @property
    def home_at(self) -> str: ...

    @property
    def data_at(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Act:
    """The drain's actions for a file whose path changed during the exchange.

    A thread of the copier calls an action at once.
    give_way: the exchange brought another file than the link; the action puts the other file back.
    Receives the file's number and a descriptor of the copy.
    lead_back: the copy is at the path, and a process waits to write to the file on the tier; the
    action leads the path to the tier again.  Receives the number and the copy's status.
    """

    give_way: Callable[[int, int], None]
    lead_back: Callable[[int, os.stat_result], None]


def is_for_crowd(folders: Sequence[str], syncs: Syncs) -> bool:
    """Return True if the native copier may copy files to the folders.

    A single sync of the file system must make all files durable.
    """
    if len(folders) < LEAST or not copier.is_built() or len(set(folders)) > MOST_FOLDERS:
        return False
    counts: dict[int, int] = {}
    of_folder: dict[str, int] = {}
    try:
        for folder in folders:
            if folder not in of_folder:
                of_folder[folder] = os.stat(folder).st_dev  # noqa: PTH116 - a text
            device = of_folder[folder]
            counts[device] = counts.get(device, 0) + 1
    except OSError:
        return False
    is_any_few = min(counts.values()) < LEAST_SYNCED_TOGETHER
    devices = {device: folder for folder, device in of_folder.items()}
    return not is_any_few and all(
        syncs.is_together(*device_files) for device_files in devices.items()
    )


def _flags_of(name: str) -> int:
    kind = kind_of(name)
    if kind in ("safetensors", "hdf5"):
        return copier.IS_JUDGED
    return copier.IS_TORCH if kind == "torch" else 0


class Crowd:
    """Files on the way home together.  Use as a context.

    before: receives the number of bytes before a write or a read back; an exception from `before`
    ends the step.  Raises OSError.
    """

    def __init__(
        self,
        tier_folder: str,
        members: Sequence[CrowdFile],
        settle_s: float,
        before: Callable[[int], None],
    ) -> None:
        self._members, self._torn = members, list[int]()
        self._syncing = ThreadPoolExecutor(1)
        places = []
        for member in members:
            folder, _, base = member.home_at.rpartition("/")
            places.append((folder or "/", base))
        flags = [_flags_of(base) for _, base in places]
        self._copier = Copier(
            tier_folder,
            [member.name for member in members],
            places,
            flags,
            settle_s,
            lambda start, end: before(int(self._rows["size_bytes"][start:end].sum())),
        )
        self._rows = self._copier.rows

    def __enter__(self) -> Self:
        self._copier.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._copier.__exit__(*error)

    def states(self) -> list[int]:
        """Return the state of each file, by the constants of penstock.save.small.copier."""
        states: list[int] = self._rows["state"].tolist()
        return states

    def numbers(self, state: int, part: range | None = None) -> list[int]:
        """Return the numbers of the files in a state, of a part or of all."""
        part = range(len(self._rows)) if part is None else part
        states = self._rows["state"][part.start : part.stop]
        numbers: list[int] = ((states == state).nonzero()[0] + part.start).tolist()
        return numbers

    def set_state(self, at: int, state: int) -> None:
        self._rows["state"][at] = state

    @property
    def size_bytes(self) -> list[int]:
        """The size of each file."""
        sizes: list[int] = self._rows["size_bytes"].tolist()
        return sizes

    def facts(self, part: range) -> list[tuple[int, int]]:
        """Return the size and the time in ns of each file of a part."""
        rows = self._rows[part.start : part.stop]
        return list(zip(rows["size_bytes"].tolist(), rows["mtime_ns"].tolist(), strict=True))

    # --- steps

    def parts(self) -> list[range]:
        """Return the numbers of the files, part by part."""
        n = len(self._rows)
        return [range(start, min(start + PART, n)) for start in range(0, n, PART)]

    def bring(
        self, is_torn: Callable[[Path, str], bool], syncs: Syncs, act: Act
    ) -> Generator[range, None, None]:
        """Copy, sync and place the files; yield each part after the placement.

        The next part is copied while a part is synced.  Files without their end are not copied, see
        torn().  The calling thread makes all changes in the program's folder: several threads would
        wait for each other at the folder's lock, once per file.  is_torn: called where the first
        bytes are not enough.  Close the iterator before the end of the context.
        """
        parts = self.parts()
        try:
            self._copy(is_torn, parts[0])
            for part, following in zip_longest(parts, parts[1:]):
                synced = self._syncing.submit(self._copier.sync, syncs, part)
                if following is not None:
                    self._copy(is_torn, following)
                synced.result()
                self._place(act, part)
                yield part
        finally:
            self._syncing.shutdown()

    def torn(self) -> list[int]:
        """Return the numbers of the files without their end, for the drain to handle."""
        return sorted(self._torn)

    def _copy(self, is_torn: Callable[[Path, str], bool], part: range) -> None:
        self._copier.copy(part)
        has_cleared = False
        for at in self.numbers(copier.OPEN, part):
            member = self._members[at]
            if is_torn(Path(member.data_at), member.home_at.rpartition("/")[2]):
                self._torn.append(at)
                self.set_state(at, copier.LARGE)
            else:
                has_cleared = True
                self._rows["flags"][at] |= copier.IS_CLEARED
                self.set_state(at, copier.READ)
        if has_cleared:
            self._copier.copy(part)

    def _place(self, act: Act, part: range) -> None:
        def change(at: int) -> None:
            if self._rows["state"][at] == copier.TAKEN:
                act.give_way(at, int(self._rows["descriptor"][at]))
                self.set_state(at, copier.LATE)
            else:
                act.lead_back(at, self.put(at))
                self.set_state(at, copier.CHANGED)

        self._copier.place(change, part)

    def clear(self, part: range) -> None:
        """Remove the hidden names of the placed files."""
        self._copier.clear(part)

    def sync_folders(self) -> None:
        """Make the new names durable.  A file whose folder cannot be synced is FAILED."""
        self._copier.sync_folders()

    def drop(self, part: range, stay: Sequence[int]) -> None:
        """Remove the placed files of a part from the tier, except the files `stay`.

        A file with a possible writer, and a file with a newer file at the path, stay too: kept().
        """
        for at in stay:
            self.set_state(at, copier.KEPT)
        self._copier.drop(part)

    def kept(self) -> list[int]:
        """Return the numbers of the placed files that stay on the tier."""
        return self.numbers(copier.KEPT)

    # --- a single file

    def before(self, at: int) -> os.stat_result:
        """Return the status of the file on the tier before the copy."""
        row = self._rows[at]
        return _status(row, int(row["inode"]), int(row["device"]))

    def put(self, at: int) -> os.stat_result:
        """Return the status of the copy."""
        row = self._rows[at]
        return _status(row, int(row["new_inode"]), int(row["new_device"]))

    def error(self, at: int, new: str) -> Exception | None:
        """Return why a file was not copied; None: copied, or not yet due.  new: the copy's path."""
        row = self._rows[at]
        state, number = int(row["state"]), int(row["error"])
        home = self._members[at].home_at
        if state == copier.DIFFERS:
            return TierError(
                f"{new}: reads back other bytes than were written; the fast copy stays"
            )
        if state == copier.CHANGED:
            return TierError(f"{home}: is being written again; drained after that")
        if state == copier.FAILED:
            error = OSError(number or errno.EIO, os.strerror(number or errno.EIO), new)
            return full_or(error, new, int(row["size_bytes"]))
        return None


def _status(row: object, inode: int, device: int) -> os.stat_result:
    facts = {name: int(row[name]) for name in ("mode", "n_links", "size_bytes")}  # type: ignore[index]
    times_ns = [int(row[f"{name}_ns"]) for name in ("atime", "mtime", "ctime")]  # type: ignore[index]
    return os.stat_result(
        (facts["mode"], inode, device, facts["n_links"], 0, 0, facts["size_bytes"])
        + tuple(ns // 10**9 for ns in times_ns),
        {
            f"st_{name}{end}": value
            for name, ns in zip(("atime", "mtime", "ctime"), times_ns, strict=True)
            for end, value in (("", ns / 1e9), ("_ns", ns))
        },
    )
