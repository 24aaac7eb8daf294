"""The small files of a checkpoint on a local store, read by the native library for a check.

A call reads hundreds of files, and the check then takes each file from memory.  The native library
follows no link; a link, a changed file and a large file are read as in any other store.  Knows
stores and descriptors; knows no format.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from typing import BinaryIO

import numpy as np

from penstock.errors import TierError
from penstock.places import tiers
from penstock.places.stores import LocalStore, StoredFile
from penstock.save.small import copier
from penstock.save.small.batch import MOST_BYTES
from penstock.save.small.partfiles import FILE, IN_A_CALL, MOST_FOLDERS, open_folder

__all__ = ["TINY_BYTES", "SmallFileStore", "can_read_together"]

LEAST_READ_TOGETHER = 16
TINY_BYTES = 64 << 10  # the kernel reads as much ahead of the first bytes anyway
PART_BYTES = 16 << 20  # of files in a call


def can_read_together(store: object, files: Sequence[StoredFile], most_bytes: int) -> bool:
    """Return True if the files of a store are worth a SmallFileStore."""
    n_small = sum(file.size_bytes <= most_bytes for file in files)
    is_local = type(store) is LocalStore
    return is_local and n_small >= LEAST_READ_TOGETHER and copier.is_built()


class SmallFileStore(LocalStore):
    """A local store whose small files come from memory, up to MOST_BYTES at a time.

    files: as listed.  most_bytes: of a small file, SMALL_BYTES or less.  is_from_device: read each
    file from the device, not from the page cache; the files must be written out.
    """

    def __init__(
        self, store: LocalStore, files: Sequence[StoredFile], most_bytes: int, is_from_device: bool
    ) -> None:
        super().__init__(store.folder)
        self._is_from_device = is_from_device
        self._parts = list(_parts([file for file in files if file.size_bytes <= most_bytes]))
        self._part_of = {
            file.name: number for number, part in enumerate(self._parts) for file in part
        }
        self._held: dict[int, dict[str, bytes]] = {}  # contents by number of the part and name
        self._held_bytes = 0
        self._cut = dict[str, bool]()  # by name, once read

    def is_cut(self, name: str) -> bool | None:
        """Return True if a file ends in a hole; None: the file was not read here."""
        if name not in self._cut and name in self._part_of:
            self._read_part(self._part_of[name])
        return self._cut.get(name)

    def content(self, name: str) -> bytes | None:
        """Return the bytes of a file; None: the file was not read here."""
        number = self._part_of.get(name)
        if number is None:
            return None
        if number not in self._held:
            self._read_part(number)
        return self._held[number].get(name)

    def open(self, name: str) -> BinaryIO:
        data = self.content(name)
        return super().open(name) if data is None else io.BytesIO(data)

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self.content(name)
        if data is None:
            return super().read(name, offset, length)
        return data[offset:] if length is None else data[offset : offset + length]

    def _read_part(self, number: int) -> None:
        files = self._parts[number]
        size_bytes = sum(file.size_bytes for file in files)
        if self._held_bytes + size_bytes > MOST_BYTES:
            self._held, self._held_bytes = {}, 0
        rows = np.zeros(len(files), FILE)
        sizes = [file.size_bytes for file in files]
        rows["size_bytes"] = sizes
        ends = np.cumsum(rows["size_bytes"] + 1)
        rows["offset"][1:] = ends[:-1]
        room, names = np.empty(int(ends[-1]), np.uint8), list[str]()
        is_first = files[0].name not in self._cut
        with ExitStack() as opened:
            folders, froms = dict[str, int](), list[int]()
            for file in files:
                folder, _, base = file.name.rpartition("/")
                if folder not in folders:
                    folders[folder] = open_folder(opened, self, folder)
                froms.append(folders[folder])
                names.append(base)
            rows["from"] = froms
            copier.call(
                "part_look", copier.joined(names), rows.ctypes.data, len(files), room.ctypes.data,
                self._is_from_device and is_first,
            )  # fmt: skip
        held, data = dict[str, bytes](), room.tobytes()
        states, cuts = rows["state"].tolist(), rows["is_cut"].tolist()
        for file, state, start, is_cut in zip(
            files, states, rows["offset"].tolist(), cuts, strict=True
        ):
            if state == copier.READ:
                held[file.name] = data[start : start + file.size_bytes]
                self._cut[file.name] = bool(is_cut)
            elif self._is_from_device and is_first:
                with suppress(TierError):
                    tiers.evict(self.path(file.name), is_synced=True)
        self._held[number] = held
        self._held_bytes += size_bytes


def _parts(files: Sequence[StoredFile]) -> Iterator[list[StoredFile]]:
    part, n_bytes, folders = list[StoredFile](), 0, set[str]()
    for file in files:
        folder = file.name.rpartition("/")[0]
        is_full = len(part) >= IN_A_CALL or n_bytes + file.size_bytes > PART_BYTES
        if part and (is_full or (len(folders) >= MOST_FOLDERS and folder not in folders)):
            yield part
            part, n_bytes, folders = [], 0, set()
        part.append(file)
        n_bytes += file.size_bytes
        folders.add(folder)
    if part:
        yield part
