"""Send the order of a PyTorch loader's coming samples to the reader of `penstock run --ahead`.

The reader runs beside the job.  The loader, its data set and the state of every random number
generator stay as they are: the order is computed from copies of samplers, and only of samplers
whose class is known here.  Of other samplers the samples of a batch are sent when the batch is
handed to a worker.  A sample is sent as paths of files, or as ranges of mapped files.  A wrong
guess costs time, never data; a guess that differs from the sampler's own numbers is dropped.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import os
import socket
import struct
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.adapters.marks import quietly
from penstock.adapters.torch_ranges import NAME, Mapped, Range, arrow_rows, records

__all__ = ["wrap_next_index"]

MAGIC = 0x31414850  # keep in step with native/ahead/loader.c
HEAD = struct.Struct("<IIIIQQQ")  # magic, list, flags, entries; samples done, dispatched, in all
ENTRY = struct.Struct("<QI")  # position in the pass, bytes of the path, which follows
# position, file, kind, bytes of the text that follows, then the numbers of a Range
RANGE = struct.Struct("<QIBHIQQQ")
ROOT = 0xFFFFFFFF  # the number of a file that stands for all files
ANSWER = struct.Struct("<II")  # list, what to send of it: all, one sample of FEW, nothing
SEND_FEW, SEND_NOTHING = 1, 2
FEW = 16
NEW_PASS, ONLY_DISPATCHED, RANGES, GUESS = 1, 2, 4, 8
MESSAGE_BYTES = 32 << 10  # the reader takes at most 64 KiB
# 1,024 files of 100 KB are 100 MB, and a second of a reader with 16 threads on storage with 10 ms.
AHEAD_SAMPLES = 1024
# A copied order of so many numbers takes 1 s; torch's own needs 36 bytes for each.
MOST_SAMPLES = 20_000_000
MOST_DEPTH = 4  # of data sets within data sets
ITERABLE = 1  # torch's _DatasetKind.Iterable

Place = str | Range


@dataclass(frozen=True, slots=True)
class _Samples:
    """The places, by its number, that a sample is read from: paths of files, or ranges.

    is_guess: ranges that the reader must not read before the program was seen there.
    """

    places: Callable[[int], Sequence[Place]]
    is_ranges: bool = False
    is_guess: bool = False


# The files of a sample


def _samples_of(dataset: Any, depth: int = 0) -> _Samples | None:
    """Return where samples are probably read from; None: not known."""
    if depth == MOST_DEPTH:
        return None
    inner, indices = getattr(dataset, "dataset", None), getattr(dataset, "indices", None)
    if inner is not None and indices is not None:  # torch's Subset
        return _samples_of_subset(_samples_of(inner, depth + 1), indices)
    parts, ends = getattr(dataset, "datasets", None), getattr(dataset, "cumulative_sizes", None)
    if isinstance(parts, list) and isinstance(ends, list):  # ConcatDataset
        return _samples_of_parts([_samples_of(part, depth + 1) for part in parts], ends)
    columns = _columns(dataset)
    if columns:
        return _Samples(functools.partial(_row, columns))
    mapped = Mapped()
    if (rows := arrow_rows(dataset, mapped)) is not None:
        return _Samples(rows, is_ranges=True)
    for value in _attributes(dataset):  # a wrapper that changes samples
        if (
            hasattr(value, "__getitem__")
            and hasattr(value, "__dict__")
            and _is_as_long(value, dataset)
        ):
            samples = _samples_of(value, depth + 1)
            if samples is not None:
                return replace(samples, is_guess=samples.is_ranges)
    if (rows := records(dataset, mapped)) is not None:
        return _Samples(rows, is_ranges=True, is_guess=True)
    return None


def _samples_of_subset(samples: _Samples | None, indices: Any) -> _Samples | None:
    if samples is None:
        return None
    of_inner = samples.places
    return replace(samples, places=lambda number: of_inner(int(indices[number])))


def _samples_of_parts(parts: Sequence[_Samples | None], ends: Sequence[int]) -> _Samples | None:
    """Return the samples of several data sets; those of another kind than the first have none."""
    first = next((part for part in parts if part is not None), None)
    if first is None:
        return None
    from bisect import bisect_right

    alike = [part if part and part.is_ranges == first.is_ranges else None for part in parts]

    def places(number: int) -> Sequence[Place]:
        part = bisect_right(ends, number)
        of_part = alike[part]
        if of_part is None:
            return ()
        return of_part.places(number - (ends[part - 1] if part else 0))

    return replace(first, places=places, is_guess=any(part.is_guess for part in alike if part))


def _row(columns: Sequence[Callable[[int], str]], number: int) -> Sequence[str]:
    return [column(number) for column in columns]


def _attributes(dataset: Any) -> list[Any]:
    return list(getattr(dataset, "__dict__", {}).values())


def _is_as_long(value: Any, dataset: Any) -> bool:
    try:
        return len(value) == len(dataset) > 0
    except TypeError:
        return False


def _columns(dataset: Any) -> list[Callable[[int], str]]:
    """Return the lists of paths among a data set's attributes, each once."""
    attributes = _attributes(dataset)
    folders = [text for text in map(_text, attributes) if text and Path(text).is_dir()]
    columns: list[Callable[[int], str]] = []
    firsts = set()
    for value in attributes:
        if isinstance(value, str | bytes | dict) or not _is_as_long(value, dataset):
            continue
        for rows, place in _of_paths(value):
            prefix = _prefix(_at(rows, place, 0), folders)
            if prefix is None or (first := prefix + _at(rows, place, 0)) in firsts:
                continue
            firsts.add(first)
            columns.append(functools.partial(_path, rows, place, prefix))
    return columns


def _of_paths(value: Any) -> Iterator[tuple[Any, int | None]]:
    """Yield sequences with a text for each sample: a list, an item of tuples, a table's column."""
    if hasattr(value, "iloc") and hasattr(value, "columns"):  # of pandas
        for name in list(value.columns):
            texts = value[name].tolist()
            if texts and _text(texts[0]):
                yield texts, None
        return
    if not isinstance(value, list | tuple) and type(value).__name__ != "ndarray":
        return  # an item of another kind may be read, or drawn at random, by the program's code
    first = value[0]
    if _text(first):
        yield value, None
    elif isinstance(first, tuple | list):
        yield from ((value, place) for place, part in enumerate(first) if _text(part))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    path = os.fspath(value) if isinstance(value, os.PathLike) else ""
    return path if isinstance(path, str) else ""


def _at(rows: Any, place: int | None, number: int) -> str:
    value = rows[number] if place is None else rows[number][place]
    return value if type(value) is str else _text(value)


def _prefix(name: str, folders: Sequence[str]) -> str | None:
    """Return what makes a name the path of a file; None: nothing does."""
    for folder in ("", *(f"{folder}/" for folder in folders)):
        if Path(folder + name).is_file():
            return folder
    return None


def _path(rows: Any, place: int | None, prefix: str, number: int) -> str:
    return prefix + _at(rows, place, number)


# The coming numbers


def _coming(sampler: Any) -> Any:
    """Return what a sampler will yield, computed without it; None: its class is not known."""
    data: Any = sys.modules.get("torch.utils.data")
    kind = type(sampler)
    if kind in (list, tuple, range):
        return sampler
    if kind is data.SequentialSampler:
        return range(len(sampler.data_source))
    drawn = (data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler)
    if kind not in (data.BatchSampler, data.distributed.DistributedSampler, *drawn):
        return None
    if len(sampler) > MOST_SAMPLES:
        return None
    copied = copy.copy(sampler)
    if kind is data.BatchSampler:
        copied.sampler = _coming(sampler.sampler)
        return None if copied.sampler is None else copied
    if kind in drawn:
        copied.generator = _same_generator(sampler, kind is data.RandomSampler)
    return copied  # a DistributedSampler has a generator of its own for each pass


def _same_generator(sampler: Any, is_seeded: bool) -> Any:
    """Return a generator in the state of that which a sampler will use.

    is_seeded: without a generator of its own, the sampler seeds one by a number of the default one.
    """
    import torch

    source = sampler.generator
    same = torch.Generator()
    same.set_state(torch.get_rng_state() if source is None else source.get_state())
    if source is None and is_seeded:
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=same).item())
        same.manual_seed(seed)
    return same


def _numbers(item: Any) -> list[int]:
    """Return the numbers of what a sampler yields: a number, or a list of numbers."""
    if type(item) is int:
        return [item]
    listed = item.tolist() if hasattr(item, "tolist") else item
    each = listed if isinstance(listed, list | tuple) else [listed]
    return [int(number) for number in each if isinstance(number, int)]


# A pass over a loader


class _Reader:
    """The socket of the reader beside the job; messages are dropped rather than waited for."""

    def __init__(self, address: str) -> None:
        self._address = b"\0" + os.fsencode(address)  # in the abstract name space
        self._socket: socket.socket | None = None
        self._pid = 0
        self._name: Any = ""
        self.is_gone = False
        self.wishes: dict[int, int] = {}  # by list

    def send(self, message: bytes) -> bool:
        """Return whether the reader will get the message."""
        try:
            if self._socket is None or self._pid != os.getpid():
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
                self._socket.bind("")  # a name of the kernel's choice, for answers
                self._name = self._socket.getsockname()
                self._socket.connect(self._address)  # nobody else's messages are received
                self._pid = os.getpid()
            if self._socket.getsockname() != self._name:
                raise OSError("the program closed the descriptor and opened another one")
            self._socket.send(message)
            self._take_answers(self._socket)
        except BlockingIOError:
            return False
        except OSError:
            self.is_gone = True
            if self._socket is not None:
                self._socket.detach()  # the number may be of a descriptor of the program
                self._socket = None
            return False
        return True

    def _take_answers(self, of: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(text := of.recv(ANSWER.size)) == ANSWER.size:
                number, wish = ANSWER.unpack(text)
                self.wishes[number] = wish


class _Pass:
    """A pass over a loader: which samples were handed out, and which come next."""

    def __init__(self, reader: _Reader, number: int, samples: _Samples, size: int, iterator: Any):
        self._reader = reader
        self._list = number
        self._samples = samples
        self._places = samples.places
        self._size = size
        self._sizes: deque[int] = deque()  # of batches handed out, not yet done
        self._n_batches_done = self._n_done = self._n_dispatched = 0
        self._expected: deque[int] = deque()  # numbers sent, not yet handed out
        self._unsent: deque[bytes] = deque()
        self._numbers_of: dict[str, int] = {}  # of the files of ranges
        self._named: set[str] = set()  # files whose names were sent
        self._folder = Path.cwd()
        self._flags = NEW_PASS
        self._kind = (RANGES if samples.is_ranges else 0) | (GUESS if samples.is_guess else 0)
        coming = _coming(iterator._index_sampler)
        self._coming: Iterator[int] | None = None
        if coming is not None:
            self._coming = itertools.chain.from_iterable(map(_numbers, coming))
            self._look_ahead()

    def note(self, item: Any, n_batches_done: int) -> None:
        """Take what the sampler yielded, before a worker has it."""
        if self._reader.is_gone or self._reader.wishes.get(self._list) == SEND_NOTHING:
            return
        numbers = _numbers(item)
        while self._n_batches_done < n_batches_done and self._sizes:
            self._n_batches_done += 1
            self._n_done += self._sizes.popleft()
        self._sizes.append(len(numbers))
        if len(numbers) > len(self._expected):
            self._look_ahead(len(numbers))
        if self._coming is not None and not self._is_expected(numbers):
            self._coming = None
            self._expected.clear()
            self._forget()
            self._flags = NEW_PASS
        first = self._n_dispatched
        self._n_dispatched += len(numbers)
        if self._coming is None:
            self._add(first, numbers)
        else:
            self._look_ahead()
        if self._unsent or self._flags or self._reader.wishes.get(self._list) != SEND_FEW:
            self._send()

    def _is_expected(self, numbers: Sequence[int]) -> bool:
        expected = self._expected
        return len(numbers) <= len(expected) and all(
            expected.popleft() == number for number in numbers
        )

    def _look_ahead(self, batch: int = 0) -> None:
        if self._coming is None:
            return
        missing = max(AHEAD_SAMPLES, 4 * batch) - len(self._expected)
        if missing < AHEAD_SAMPLES // 8:  # a few at once
            return
        more = list(itertools.islice(self._coming, missing))
        self._add(self._n_dispatched + len(self._expected), more)
        self._expected.extend(more)

    def _add(self, first: int, numbers: Sequence[int]) -> None:
        wish = self._reader.wishes.get(self._list)
        for position, number in enumerate(numbers, first):
            if wish == SEND_FEW and position % FEW:
                continue
            for place in self._places(number):
                if isinstance(place, str):
                    path = place if place[:1] == "/" else f"{self._folder}/{place}"
                    encoded = os.fsencode(path)
                    self._unsent.append(ENTRY.pack(position, len(encoded)) + encoded)
                else:
                    self._add_range(position, place)

    def _add_range(self, position: int, place: Range) -> None:
        path, kind, *numbers = place
        number = self._numbers_of.setdefault(path, len(self._numbers_of))
        if path not in self._named:
            self._named.add(path)
            self._unsent.append(_named(number, path))
        self._unsent.append(RANGE.pack(position, number, kind, 0, *numbers))

    def _forget(self) -> None:
        self._unsent.clear()
        self._named.clear()

    def _send(self) -> None:
        unsent = self._unsent
        while True:
            entries: list[bytes] = []
            n_bytes = 0
            if self._flags & NEW_PASS:
                entries.append(self._root())
            n_root = len(entries)
            for entry in unsent:
                n_bytes += len(entry)
                if n_bytes > MESSAGE_BYTES:
                    break
                entries.append(entry)
            flags = self._flags | self._kind | (ONLY_DISPATCHED if self._coming is None else 0)
            head = HEAD.pack(
                *(MAGIC, self._list, flags, len(entries)),
                *(self._n_done, self._n_dispatched, self._size),
            )
            if not self._reader.send(head + b"".join(entries)):
                self._bound()
                return
            self._flags = 0
            for _ in entries[n_root:]:
                unsent.popleft()
            if not unsent:
                return

    def _bound(self) -> None:
        """Forget old places if the reader does not take them."""
        if self._samples.is_ranges:  # of several columns
            if len(self._unsent) > 16 * AHEAD_SAMPLES:
                self._forget()  # with the names of files
            return
        while len(self._unsent) > 4 * AHEAD_SAMPLES:
            self._unsent.popleft()

    def _root(self) -> bytes:
        """Return the entry with what the report shows: the folder of some of the files."""
        if self._samples.is_ranges:
            paths = list(self._named)
            return _named(ROOT, paths[0] if len(paths) == 1 else f"{_folder_of(paths)}/")
        entries = itertools.islice(self._unsent, 256)
        root = os.fsencode(_folder_of([os.fsdecode(entry[ENTRY.size :]) for entry in entries]))
        return ENTRY.pack(0, len(root)) + root


def _named(number: int, path: str) -> bytes:
    text = os.fsencode(path)
    return RANGE.pack(0, number, NAME, len(text), 0, 0, 0, 0) + text


def _folder_of(paths: Sequence[str]) -> str:
    return os.path.commonpath([path.rpartition("/")[0] for path in paths]) if paths else ""


class _Passes:
    """The passes of a process; what is known of each data set is kept."""

    def __init__(self, address: str) -> None:
        self._reader = _Reader(address)
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, _Samples | None]] = (
            weakref.WeakKeyDictionary()
        )
        self._n_lists = 0

    def begin(self, iterator: Any) -> _Pass | None:
        """Return the pass that an iterator begins; None: nothing is known of its files."""
        dataset = iterator._dataset
        if iterator._dataset_kind == ITERABLE or self._reader.is_gone:
            return None
        lists = self._known.get(dataset)
        if lists is None:
            samples = None
            with contextlib.suppress(Exception):  # of a data set with attributes of any kind
                samples = _samples_of(dataset)
            self._n_lists += 1
            lists = self._known[dataset] = (self._n_lists, samples)
        number, samples = lists
        if samples is None or self._reader.wishes.get(number) == SEND_NOTHING:
            return None
        return _Pass(self._reader, number, samples, len(dataset), iterator)


def wrap_next_index(address: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Return a wrapper of _BaseDataLoaderIter._next_index.  address: the reader's socket."""
    passes = _Passes(address)

    def wrapper(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @functools.wraps(original)
        def following(self: Any) -> Any:
            begun = self.__dict__.get("_penstock_ahead")
            if begun is None or begun[0] is not self._sampler_iter:
                # before the sampler draws its first random number
                begun = self._penstock_ahead = (self._sampler_iter, _begin(passes, self))
            item = original(self)
            if begun[1] is not None:
                _note(begun[1], item, self)
            return item

        return following

    return wrapper


@quietly
def _begin(passes: _Passes, iterator: Any) -> _Pass | None:
    return passes.begin(iterator)


@quietly
def _note(begun: _Pass, item: Any, iterator: Any) -> None:
    try:
        begun.note(item, int(iterator._num_yielded))
    except Exception:  # of a data set with attributes of any kind
        iterator._penstock_ahead = (iterator._sampler_iter, None)
