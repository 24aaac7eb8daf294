"""Hint the next records to the kernel; the data set and the loader's reads stay unchanged.

    loader = hinted(loader)             # a DataLoader over py-lmdb, tar or files
    for i in Hints("train.lmdb").along(order): txn.get(key(i))

The module needs an index and a sequence of numbers, and reads no data.  A wrong hint costs time,
never data.
"""

from __future__ import annotations

import copy
import operator
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed import arguments
from penstock.feed.feed import index_of
from penstock.feed.index import Index
from penstock.feed.read import library

__all__ = ["Hints", "hinted"]

Item = TypeVar("Item")

AHEAD_RECORDS = 32  # measured: 16 to 64 perform alike, 4 is a sixth slower
PIECE_BYTES = 128 << 10  # the kernel's usual read-ahead and limit per hint
# So many records are hinted at once, and grouped if a sampler yields single numbers: one library
# call per record takes 10 % of py-lmdb's own time per record.  Hints from the thread came too late
# if the thread waited for a CPU: measured with two CPUs and other load.
FEW = 8
ENVIRONMENTS_IN = ("lmdb", "penstock.feed.lmdb")
WAITING = 64  # batches with pending hints; a sampler is faster than any disk


class Hints:
    """Hints for the records of one data set, from a separate thread.

    The thread is needed because a hint waits while a device's queue is full.  record_of: maps a
    number of the data set to a record of the index, by position or key; without record_of, number i
    is record i in key order.  kind, database: for a path, see open_index.
    """

    def __init__(
        self,
        data: Index | str | os.PathLike[str] | Sequence[Any],
        record_of: Callable[[int], int | bytes | str] | None = None,
        ahead: int = AHEAD_RECORDS,
        *,
        kind: str | None = None,
        database: bytes | str | None = None,
    ) -> None:
        self._descriptors: dict[int, int] = {}
        self.ahead = arguments.whole("ahead", ahead, 1)
        arguments.function("record_of", record_of)
        self.index = index_of(data, kind, database)
        self.n_hinted = 0
        self.why_not = ""  # the reason, after the kernel refused
        self._record_of = record_of
        self._queue: queue.Queue[list[int]] | None = None
        self._pid = 0

    def along(self, order: Iterable[Item]) -> Iterator[Item]:
        """Yield an order's items, each after the hints for the item and the next `ahead` records.

        An item is a number or a list of numbers.
        """
        waiting: deque[tuple[Item, int]] = deque()
        n_hinted = 0  # among the waiting items
        together = min(FEW, self.ahead)
        not_hinted: list[int] = []
        for item in order:
            numbers = _numbers(item)
            waiting.append((item, len(numbers)))
            not_hinted += numbers
            if len(not_hinted) < together:
                continue
            # Hint the first records at once: a new thread would come too late.
            self.give(not_hinted, at_once=n_hinted < self.ahead)
            n_hinted += len(not_hinted)
            not_hinted = []
            while n_hinted - waiting[0][1] >= self.ahead:
                first, n = waiting.popleft()
                n_hinted -= n
                yield first
        if not_hinted:
            self.give(not_hinted)
        while waiting:
            yield waiting.popleft()[0]

    def give(self, numbers: list[int], at_once: bool = False) -> None:
        """Hint some numbers of the data set; never raise.

        More than FEW numbers go to the thread, unless at_once is True.
        """
        if at_once or len(numbers) <= FEW:
            if not self.why_not:
                self._try(self.hint_now, numbers)
            return
        if self._queue is None or self._pid != os.getpid():
            self._start()
        assert self._queue is not None
        try:
            self._queue.put_nowait(numbers)
        except queue.Full:  # drop the hints: a wait would cost more than a late read
            return

    def _start(self) -> None:
        self._queue, self._pid = queue.Queue(WAITING), os.getpid()
        thread = threading.Thread(
            target=self._run, args=(self._queue,), name="penstock-hints", daemon=True
        )
        thread.start()

    def _run(self, numbers: queue.Queue[list[int]]) -> None:
        while not self.why_not:
            self._try(self.hint_now, numbers.get())

    def _try(self, hint: Callable[[Sequence[int]], None], numbers: Sequence[int]) -> None:
        """Hint, and store an error in why_not: a failed hint must not end a training."""
        try:
            hint(numbers)
        except Exception as error:
            self.why_not = str(error)

    def hint_now(self, numbers: Sequence[int]) -> None:
        """Hint some numbers in the calling thread.

        Raises FeedError: a file cannot be opened, or the kernel refuses.
        """
        records = self._records(numbers)
        files = self.index.file[records]
        for number in np.unique(files).tolist():
            of_file = records[files == number]
            self._hint(number, self.index.offset[of_file], self.index.length[of_file])
        self.n_hinted += len(records)

    def _records(self, numbers: Sequence[int]) -> NDArray[np.int64]:
        records = np.array(
            numbers if self._record_of is None else [*map(self._place_of, numbers)], np.int64
        )
        return records[(records >= 0) & (records < len(self.index))]

    def _place_of(self, number: int) -> int:
        assert self._record_of is not None
        record = self._record_of(number)
        if isinstance(record, str | bytes):
            return self.index.find(record)
        try:
            return operator.index(record)
        except TypeError as error:
            said = arguments.shown(record)
            raise FeedError(
                f"record_of({number}) gives {said}, which is no record; a place or a key is"
            ) from error

    def _hint(self, number: int, offset: NDArray[np.int64], length: NDArray[np.int64]) -> None:
        is_kept = len(self.index.files) <= 128  # else each file is opened per hint
        descriptor = self._descriptors.get(number, -1)
        if descriptor < 0:
            path = self.index.files[number]
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise FeedError(f"{path}: cannot be hinted: {error.strerror}") from error
        failed = library().penstock_feed_hint(
            descriptor, offset.ctypes.data, length.ctypes.data, len(offset), PIECE_BYTES
        )
        if is_kept:
            self._descriptors[number] = descriptor
        else:
            os.close(descriptor)
        if failed:
            raise FeedError(f"{self.index.files[number]}: no hints: {os.strerror(-failed)}")

    def close(self) -> None:
        """Close the descriptors; the next hint opens new descriptors."""
        opened, self._descriptors = self._descriptors, {}
        for descriptor in opened.values():
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Hints, (self.index, self._record_of, self.ahead)


def _numbers(item: Any) -> list[int]:
    """Return the numbers in a sampler's item, a number or a list; else an empty list."""
    if isinstance(item, list | tuple | np.ndarray) or hasattr(item, "tolist"):
        listed = item.tolist() if hasattr(item, "tolist") else item
        each = listed if isinstance(listed, list | tuple) else [listed]
        return [int(number) for number in each if isinstance(number, int | np.integer)]
    return [int(item)] if isinstance(item, int | np.integer) else []


class _Hinted:
    """A sampler with hints for its order; other attributes are the sampler's."""

    def __init__(self, sampler: Any, hints: Hints) -> None:
        self._sampler = sampler
        self._hints = hints

    def __iter__(self) -> Iterator[Any]:
        return self._hints.along(self._sampler)

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._sampler, name)


def hinted(
    loader: Any,
    path: Index | str | os.PathLike[str] | Sequence[Any] | None = None,
    *,
    record_of: Callable[[int], int | bytes | str] | None = None,
    ahead: int = AHEAD_RECORDS,
    kind: str | None = None,
    database: bytes | str | None = None,
) -> Any:
    """Return a copy of a torch DataLoader that hints its next records to the kernel.

    path: the data set's path, if not found in the data set's attributes (an lmdb.Environment, a
    path, ImageFolder's samples).
    record_of: maps a number of the data set to a record, by position or key; needed if number i is
    not record i in key order and the data set has no list `keys`.
    ahead: records.
    kind, database: for the path, see open_index.

    A FeedDataset needs no hints.  Raises FeedError: the loader has no sampler, the data set's path
    is unknown, or a FeedDataset reads with O_DIRECT.
    """
    is_batched = getattr(loader, "batch_sampler", None) is not None
    which = "batch_sampler" if is_batched else "sampler"
    sampler = getattr(loader, which, None)
    dataset = getattr(loader, "dataset", None)
    is_stream = any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
    if sampler is None or is_stream or not hasattr(dataset, "__getitem__"):
        raise FeedError(
            f"{type(loader).__name__} has no order that is known ahead: hinted() takes a "
            "DataLoader over a data set with __getitem__; Feed reads streams"
        )
    base, place_of = _unwrapped(dataset)
    if getattr(base, "is_direct", False) is True:
        raise FeedError(
            f"{type(base).__name__} reads past the page cache (O_DIRECT), and many records at a "
            "time: what is hinted would be read twice; it needs no hints"
        )
    index = _index_for(base, path, kind, database)
    if record_of is None:
        record_of = _mapping(base, index)
    mine = record_of
    if place_of is not None:
        outer = place_of
        mine = outer if record_of is None else lambda number: record_of(int(outer(number)))
    if isinstance(sampler, _Hinted):
        sampler = sampler._sampler
    changed = copy.copy(loader)
    # DataLoader's setter refuses the change, because an existing iterator would not follow; the
    # copy has no iterator.
    object.__setattr__(changed, which, _Hinted(sampler, Hints(index, mine, ahead)))
    object.__setattr__(changed, "_iterator", None)
    return changed


def _unwrapped(dataset: Any) -> tuple[Any, Callable[[int], int] | None]:
    """Return the data set inside torch's Subset, and a map from Subset's numbers."""
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is None or indices is None or not hasattr(inner, "__getitem__"):
        return dataset, None
    base, deeper = _unwrapped(inner)
    if deeper is None:
        return base, lambda number: int(indices[number])
    return base, lambda number: deeper(int(indices[number]))


def _index_for(dataset: Any, path: Any, kind: str | None, database: bytes | str | None) -> Index:
    if path is None and isinstance(getattr(dataset, "index", None), Index):
        path = dataset.index
    if path is not None:
        return index_of(path, kind, database)
    places = [place for place in map(_place, _attributes(dataset)) if place]
    if len(set(places)) != 1:
        what = "names no path" if not places else f"names several: {', '.join(sorted(set(places)))}"
        raise FeedError(
            f"{type(dataset).__name__} {what}; say where its data lies: hinted(loader, path)"
        )
    return index_of(places[0], kind, database)


def _attributes(dataset: Any) -> list[Any]:
    return list(getattr(dataset, "__dict__", {}).values())


def _place(value: Any) -> str | None:
    """Return the path in an attribute of a data set, or None."""
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        return path if isinstance(path, str) and os.path.exists(path) else None
    if _is_environment(value):
        try:
            place = value.path()
        except Exception:  # closed: no path
            return None
        return os.fsdecode(place) if isinstance(place, bytes) else str(place)
    return None


def _is_environment(value: Any) -> bool:
    """Return whether a value is an Environment of py-lmdb or penstock; import neither."""
    kinds = [getattr(sys.modules.get(name), "Environment", None) for name in ENVIRONMENTS_IN]
    return any(isinstance(value, kind) for kind in kinds if isinstance(kind, type))


def _mapping(dataset: Any, index: Index) -> Callable[[int], int | bytes | str] | None:
    """Return a map from the data set's numbers to records of the index.

    None: number i is record i.  Raises FeedError: the map is unknown.
    """
    record_of: Callable[[int], int] | None = getattr(dataset, "record_of", None)
    if callable(record_of):  # FeedDataset has record_of
        return record_of
    keys = getattr(dataset, "keys", None)
    if isinstance(keys, np.ndarray):
        keys = keys.tolist()
    if isinstance(keys, list | tuple) and keys and isinstance(keys[0], bytes | str):
        named = [key.encode() if isinstance(key, str) else key for key in keys]
        return lambda number: named[number]
    samples = getattr(dataset, "samples", None)
    if index.kind == "folder" and isinstance(samples, list) and samples:
        places = {path: number for number, path in enumerate(index.files)}
        # -1 is no record: samples outside the index get no hint
        numbers = [places.get(os.path.abspath(sample[0]), -1) for sample in samples]
        return lambda number: numbers[number]
    if len(dataset) != len(index):
        raise FeedError(
            f"{type(dataset).__name__} has {len(dataset):,} items, {index.path} {len(index):,} "
            "records; say which is which: hinted(loader, record_of=...)"
        )
    return None
