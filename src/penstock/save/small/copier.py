"""Many small files of a fast tier, copied to their paths by native/copier, hundreds in a call.

The steps are the steps of penstock.save.small.batch: read, write, sync, read back, place; then the
files are removed from the tier.  The native library makes the system calls of each file, without
the interpreter's lock; Python orders the calls and the syncs.  The caller selects the files, and
decides about the state of each file.  Knows paths and descriptors.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import cache
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from penstock.installed import native_part
from penstock.save.small.batch import Syncs, syncfs

__all__ = [
    "BUSY",
    "CHANGED",
    "DIFFERS",
    "DROPPED",
    "FAILED",
    "FILE",
    "KEPT",
    "LARGE",
    "LATE",
    "NEW",
    "NO_EXCHANGE",
    "OPEN",
    "PLACED",
    "READ",
    "TAKEN",
    "WANTED",
    "WRITTEN",
    "Copier",
    "call",
    "is_built",
    "joined",
    "leading",
    "look",
]

# struct copier_file of native/copier/copier.h.
FILE = np.dtype(
    [
        *((name, np.int64) for name in ("size_bytes", "mtime_ns", "atime_ns", "ctime_ns")),
        *((name, np.uint64) for name in ("device", "inode", "new_device", "new_inode")),
        *((name, np.uint32) for name in ("mode", "n_links")),
        *((name, np.int32) for name in ("folder", "state", "error", "descriptor")),
        *((name, np.uint32) for name in ("flags", "is_sparse")),
    ]
)
SEEN = np.dtype([("size_bytes", np.int64), ("mtime_ns", np.int64)])
# enum copier_state.
NEW, READ, WRITTEN, PLACED, DROPPED, BUSY, LARGE, LATE, CHANGED, DIFFERS = range(10)
NO_EXCHANGE, KEPT, FAILED, TAKEN, WANTED, OPEN = range(10, 16)
# enum copier_flags.
IS_JUDGED, IS_TORCH, IS_CLEARED = 1, 2, 4
HOME_BYTES = 4096
# Files per call: a stop of the drain waits for a call to end.  Placing holds a descriptor per file.
IN_A_CALL, PLACED_IN_A_CALL = 256, 128
LOOKED_AT_IN_A_CALL = 256


@cache
def _library() -> Any:
    """Return the functions of native/copier/copier.h; None: the library is not built."""
    import ctypes

    try:
        library = ctypes.CDLL(native_part("libcopier.so"))
    except OSError:
        return None
    pointer, text, number, count = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_uint32
    for name, result, takes in (
        ("open", pointer, (text, count, pointer, pointer, text, number, number, ctypes.c_double)),
        ("close", None, (pointer,)),
        ("copy", None, (pointer, count, count)),
        ("place", count, (pointer, count, count)),
        ("clear", None, (pointer, count, count)),
        ("drop", None, (pointer, count, count)),
        ("look", ctypes.c_uint64, (number, number, text, count, pointer, pointer)),
        ("lead", None, (text, count, pointer)),
        ("part_read", None, (text, pointer, count, pointer)),
        ("part_write", None, (text, pointer, count, pointer)),
        ("part_place", None, (text, pointer, count, pointer)),
        ("part_look", None, (text, pointer, count, pointer, count)),
    ):
        function = getattr(library, f"penstock_copier_{name}")
        function.restype, function.argtypes = result, takes
    return library


def is_built() -> bool:
    """Return True if the native library exists."""
    return _library() is not None


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the native library by its name without the prefix."""
    return getattr(_library(), f"penstock_copier_{name}")(*arguments)


def joined(texts: Sequence[str]) -> bytes:
    """Return the texts, each followed by a zero byte.  No path contains a zero byte."""
    return os.fsencode("\0".join(texts)) + b"\0"


def look(data: str, home: str, ways: Sequence[str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield name, target, size and time for each link in the folder `home`.

    Size in bytes and time in ns of the link's file in `data`.  Size -1: no file; -2: the look
    failed.  Raises OSError.
    """
    import ctypes

    with ExitStack() as opened:
        folders = [_opened(opened, path) for path in (data, home)]
        homes = ctypes.create_string_buffer(LOOKED_AT_IN_A_CALL * HOME_BYTES)
        for start in range(0, len(ways), LOOKED_AT_IN_A_CALL):
            part = ways[start : start + LOOKED_AT_IN_A_CALL]
            seen = np.zeros(len(part), SEEN)
            n_bytes = _library().penstock_copier_look(
                *folders, joined(part), len(part), seen.ctypes.data, homes
            )
            targets = os.fsdecode(ctypes.string_at(homes, n_bytes)).split("\0")
            yield from zip(
                part, targets, seen["size_bytes"].tolist(), seen["mtime_ns"].tolist(), strict=False
            )


def leading(paths_and_targets: Sequence[str]) -> list[bool]:
    """Return for each pair of a path and a target whether the path is a link to the target."""
    n = len(paths_and_targets) // 2
    leads = np.zeros(n, np.uint8)
    _library().penstock_copier_lead(joined(paths_and_targets), n, leads.ctypes.data)
    flags: list[bool] = leads.astype(bool).tolist()
    return flags


def _opened(stack: ExitStack, path: str) -> int:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, descriptor)
    return descriptor


class Copier:
    """Files of a tier on the way to their paths.  Use as a context.

    names: on the tier.  places: for each file the folder of the program's path and the name there.
    flags: for each file, see enum copier_flags.  before: receives the numbers of the first and last
    file before each call of a step; an exception from `before` ends the step.
    rows: of FILE; the steps leave the state of each file there.
    Raises OSError: a folder of the tier cannot be opened.
    """

    def __init__(
        self,
        tier_folder: str,
        names: Sequence[str],
        places: Sequence[tuple[str, str]],
        flags: Sequence[int],
        settle_s: float,
        before: Callable[[int, int], None],
    ) -> None:
        self.rows: NDArray[np.void] = np.zeros(len(names), FILE)
        self._tier_folder, self._names, self._places = tier_folder, names, places
        self._settle_s, self._before = settle_s, before
        self.rows["flags"], self.rows["descriptor"] = flags, -1
        self._folders: dict[str, int] = {}  # numbers, by path
        self._paths: list[str] = []  # by number
        self._unsynced = dict[int, int]()  # errors of the syncs, by device
        self._stack = ExitStack()
        self._descriptors = np.zeros(0, np.int32)
        self._handle: Any = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._open(stack)
            self._stack = stack.pop_all()
        return self

    def _open(self, stack: ExitStack) -> None:
        opened: list[int] = []
        for folder in dict.fromkeys(folder for folder, _ in self._places):
            self._folders[folder] = len(opened)
            try:
                opened.append(_opened(stack, folder))
            except OSError as error:
                opened.append(-1)
                self._fail_folder(folder, error.errno or errno.EIO)
        self._descriptors = np.array(opened, np.int32)
        self._paths = list(self._folders)
        numbers = self._folders
        self.rows["folder"] = [numbers[folder] for folder, _ in self._places]
        for number in np.flatnonzero(self._descriptors < 0).tolist():
            self.rows["state"][self.rows["folder"] == number] = FAILED
        data_path = f"{self._tier_folder}/data"
        texts = [
            text for name, (_, base) in zip(self._names, self._places, strict=True)
            for text in (name, base)
        ]  # fmt: skip
        data, home = _opened(stack, data_path), _opened(stack, f"{self._tier_folder}/home")
        self._handle = _library().penstock_copier_open(
            joined(texts), len(self._names), self.rows.ctypes.data, self._descriptors.ctypes.data,
            os.fsencode(data_path), data, home, self._settle_s,
        )  # fmt: skip
        if not self._handle:
            raise MemoryError
        stack.callback(_library().penstock_copier_close, self._handle)

    def _fail_folder(self, folder: str, number: int) -> None:
        self.rows["error"][[at == folder for at, _ in self._places]] = number

    def __exit__(self, *error: object) -> None:
        """Remove the copies that were not placed."""
        with self._stack:
            states = self.rows["state"].tolist()
            for at, state in enumerate(states):
                if state not in (NEW, READ, OPEN, BUSY, LARGE, PLACED, DROPPED, KEPT):
                    self.remove_copy(at)

    def remove_copy(self, at: int) -> None:
        folder = int(self._descriptors[self.rows["folder"][at]])
        if folder >= 0:
            with suppress(OSError):
                os.unlink(f".{self._names[at]}.penstock-new", dir_fd=folder)

    # --- steps of a part of the files; several threads may treat different parts

    def copy(self, part: range) -> None:
        """Read the files without a writer, and write the copies.

        If the tier is full, write the failed files again, until a file fails for lack of room: a
        file removed meanwhile may have left room.
        """
        copy = _library().penstock_copier_copy
        self._in_calls(copy, part, IN_A_CALL)
        states, errors = (self.rows[name][part.start : part.stop] for name in ("state", "error"))
        is_full = np.isin(errors, (errno.ENOSPC, errno.EDQUOT)) & (states == FAILED)
        for at in (np.flatnonzero(is_full) + part.start).tolist():
            self.rows["state"][at], self.rows["error"][at] = READ, 0
            copy(self._handle, at, at + 1)
            if self.rows["state"][at] == FAILED:
                break

    def sync(self, syncs: Syncs, part: range) -> None:
        """Make the copies of a part durable: sync each file system once.

        After an error all later files of the file system fail too, and `syncs` distrusts the file
        system: the kernel reports an error only once, also for bytes of the next parts.
        """
        rows = self.rows[part.start : part.stop]
        written = rows["state"] == WRITTEN
        for device in np.unique(rows["new_device"][written]).tolist():
            ours = written & (rows["new_device"] == device)
            number = int(rows["folder"][ours][0])
            if device not in self._unsynced:
                try:
                    syncfs(int(self._descriptors[number]), self._paths[number])
                except OSError as error:
                    syncs.distrust(device)
                    self._unsynced[device] = error.errno or errno.EIO
            if device in self._unsynced:
                rows["error"][ours] = self._unsynced[device]
                rows["state"][ours] = FAILED

    def place(self, act: Callable[[int], None], part: range) -> None:
        """Read the copies back and put the copies at their paths.

        act: called for a file in the state TAKEN or WANTED; must be quick.  Afterwards the file's
        descriptor is closed.
        """
        library = _library()

        def place(handle: Any, start: int, end: int) -> None:
            while start < end:
                start = library.penstock_copier_place(handle, start, end)
                self._act(start - 1, act)

        self._in_calls(place, part, PLACED_IN_A_CALL)

    def _act(self, at: int, act: Callable[[int], None]) -> None:
        descriptor = int(self.rows["descriptor"][at])
        if descriptor < 0:
            return
        try:
            act(at)
        finally:
            self.rows["descriptor"][at] = -1
            os.close(descriptor)

    def clear(self, part: range) -> None:
        """Remove the hidden names of the placed files."""
        self._in_calls(_library().penstock_copier_clear, part, IN_A_CALL, is_held=False)

    def sync_folders(self) -> None:
        """Make the new names durable; a file in a folder with a failed sync is FAILED."""
        for number in np.unique(self.rows["folder"][self.rows["state"] == PLACED]).tolist():
            try:
                os.fsync(int(self._descriptors[number]))
            except OSError as error:
                ours = (self.rows["folder"] == number) & (self.rows["state"] == PLACED)
                self.rows["state"][ours], self.rows["error"][ours] = (
                    FAILED,
                    error.errno or errno.EIO,
                )

    def drop(self, part: range) -> None:
        """Remove the PLACED files from the tier, except files written to meanwhile."""
        self._in_calls(_library().penstock_copier_drop, part, IN_A_CALL, is_held=False)

    def _in_calls(
        self, step: Callable[[Any, int, int], object], part: range, size: int, is_held: bool = True
    ) -> None:
        for start in range(part.start, part.stop, size):
            end = min(start + size, part.stop)
            if is_held:
                self._before(start, end)
            step(self._handle, start, end)
