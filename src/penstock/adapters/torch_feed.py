"""FeedDataset: a data set for torch's DataLoader, read by penstock.feed.

Subclasses torch's Dataset if torch is installed; works without torch too.  A call per batch
(`__getitems__`) allows merging and depth in unchanged training code: the DataLoader makes the call,
in the workers or in the training process.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from penstock.errors import FeedError, MissingDependency
from penstock.feed import arguments, ranks
from penstock.feed.feed import Batch, Feed, Record, index_of, load
from penstock.feed.index import Index, described
from penstock.feed.parquet import RowGroups
from penstock.feed.plan import PAGE_BYTES
from penstock.feed.read import Buffer, Options, Reader, SharedReading
from penstock.feed.rows import RowAccess, RowBatch, RowFeed
from penstock.feed.share import RankFeed
from penstock.feed.state import BUFFER_BYTES, MOST_EPOCH

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

try:
    from torch.utils.data import Dataset
except ModuleNotFoundError:
    Dataset = object

__all__ = ["FeedDataset", "feed_stream", "node_feed", "shared_index"]

Decode = Callable[[Any], Any]  # of a Record, or of a row of Parquet

# State shared by the copies of a stream: the epoch; how often an epoch was set; the workers with
# the loaded state (the seed of their loader); whether workers read; and for each worker whether the
# worker has used the state.
EPOCH, N_SET, USER, BY_WORKERS, USED = range(5)
NOBODY = -1
MOST_WORKERS = 4096


def _as_bytes(record: Record) -> bytes:
    return record.tobytes()


def _as_row(row: dict[str, Any]) -> dict[str, Any]:
    return row


def _of_a_copy(decode: Decode, record: Record) -> Any:
    return decode(record.owned())


def _decoded(decode: Decode, record: Any, row: int = -1) -> Any:
    """Return the decoded record; row: the number of a row of Parquet."""
    try:
        return decode(record)
    except Exception as error:
        error.add_note(f"while decoding {record.where if row < 0 else f'row {row:,}'}")
        raise


def _records_of(index: Index, keys: Sequence[bytes | str]) -> NDArray[np.int64]:
    """Return the record of each key.  Raises FeedError: a key without a record."""
    import numpy as np

    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise FeedError(f"keys={arguments.shown(keys)} is no list of keys")
    asked = [arguments.key(f"keys[{place}]", key) for place, key in enumerate(keys)]
    by_key = dict.fromkeys(asked, -1)
    for record in range(len(index)):
        key = index.key(record)
        if by_key.get(key) == -1:
            by_key[key] = record
    records = np.array([by_key[key] for key in asked], np.int64)
    if (records < 0).any():
        lacking = asked[int(np.argmin(records))]
        raise FeedError(f"{index.path}: holds no record with the key {lacking!r}")
    return records


class _OfThread(threading.local):
    """The reader and the memory of a thread; each serves one thread at a time.

    Both are freed at the end of the thread.
    """

    def __init__(
        self, index: Index, options: Options, reading: SharedReading, buffer_bytes: int
    ) -> None:  # called in each new thread
        self.reader = Reader(index, options, reading)
        self.buffer = Buffer(buffer_bytes, spares=True)
        self.pid = os.getpid()


class _RowsOfThread(threading.local):
    """The rows of a thread, made anew after a fork."""

    def __init__(self, groups: RowGroups, options: Options, buffer_bytes: int) -> None:
        self._arguments = (groups, options, buffer_bytes)
        self._rows = RowAccess(*self._arguments)
        self._pid = os.getpid()

    def here(self) -> RowAccess:
        if self._pid != os.getpid():
            self._rows, self._pid = RowAccess(*self._arguments), os.getpid()
        return self._rows


def _groups_of(
    index: Index, columns: Sequence[str] | None, keys: Sequence[bytes | str] | None
) -> RowGroups | None:
    """Return the row groups of Parquet; None: another kind."""
    if index.kind != "parquet":
        _refuse_columns(index, columns)
        return None
    if keys is not None:
        raise FeedError(f"{index.path}: rows of Parquet have no keys; leave keys= out")
    return RowGroups.of(index, columns)


def _refuse_columns(index: Index, columns: Sequence[str] | None) -> None:
    if columns is not None:
        raise FeedError(
            f"columns={arguments.shown(columns)} is about Parquet, {index.path} is {index.kind}"
        )


class FeedDataset(Dataset):  # type: ignore[misc]
    """A map-style data set: item i is decode(record i), in key order for LMDB.

    data: a path, a pattern, a list, or an Index.  kind, database: of a path, see open_index.
    decode: takes a Record (bytes as an array of uint8, `.key`).  References in the result of decode
    stay valid, and keep the memory of the batch.  Without decode, items are bytes.  buffer_bytes:
    memory in each reading thread, besides the items' references; larger batches are read in parts.
    keys: item i is the record with keys[i] instead, for sets with keys `str(i)` or with further
    records (`__len__`).

    Of Parquet, item i is decode(row i), or the row, a dict of the chosen columns.  columns: the
    columns to read, None: all.  Row groups are read and decoded as a whole, and stay in half of
    buffer_bytes: for an order that leaps from row group to row group, use feed_stream.

    Works with workers by fork and by spawn, with samplers of any kind, with DistributedSampler, and
    with threads that share the data set.  Raises FeedError: a record cannot be read.
    """

    def __init__(
        self,
        data: Index | str | os.PathLike[str] | Sequence[Any],
        decode: Decode | None = None,
        *,
        kind: str | None = None,
        database: bytes | str | None = None,
        columns: Sequence[str] | None = None,
        keys: Sequence[bytes | str] | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        engine: str = "auto",
        direct: bool | None = None,
        coalesce_bytes: int = 4 << 20,
        gap_bytes: int | None = None,
        depth: int | None = None,
        mapped: bool = False,
    ) -> None:
        arguments.function("decode", decode)
        self._options = Options(engine, direct, coalesce_bytes, gap_bytes, depth, mapped)
        self._buffer_bytes = arguments.whole("buffer_bytes", buffer_bytes, PAGE_BYTES)
        self.index = index_of(data, kind, database, rows=None)
        self._groups = _groups_of(self.index, columns, keys)
        self.decode = decode or (_as_bytes if self._groups is None else _as_row)
        self._records = None if keys is None else _records_of(self.index, keys)
        self._begin()
        # other data was opened just now, in this constructor
        if isinstance(data, Index) and not data.is_remote:
            self.index.check()

    def _begin(self) -> None:
        if self._groups is not None:
            self._rows_of_thread = _RowsOfThread(self._groups, self._options, self._buffer_bytes)
            self._rows_of_thread.here()
            return
        reading = Reader(self.index, self._options).reading
        self._of_thread = _OfThread(self.index, self._options, reading, self._buffer_bytes)

    def __len__(self) -> int:
        if self._groups is not None:
            return self._groups.n_rows
        return len(self.index if self._records is None else self._records)

    def __repr__(self) -> str:
        if self._groups is not None:
            return f"<FeedDataset of {self.index.path[:80]}, {len(self):,} rows>"
        n_items = "" if self._records is None else f", {len(self):,} of them by keys"
        return f"<FeedDataset of {described(self.index)}{n_items}>"

    def record_of(self, number: int) -> int:
        """Return the record number of item `number` in the index."""
        return number if self._records is None else int(self._records[number])

    @property
    def is_direct(self) -> bool:
        """Return True if records are read past the page cache."""
        if self._groups is not None:
            return self._rows_of_thread.here().is_direct
        return self._of_thread.reader.is_direct and self.index.kind != "folder"

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        """Return the items of a batch, read together, in the requested order."""
        import numpy as np

        asked = np.asarray(numbers).reshape(-1)
        if len(asked) and asked.dtype.kind not in "iu":
            raise TypeError(f"items {numbers!r}: an item is named by a whole number")
        records = asked.astype(np.int64)
        n = len(self)
        records = np.where(records < 0, records + n, records)
        if len(records) and not 0 <= records.min() <= records.max() < n:
            raise IndexError(f"item {numbers} of a data set of {n:,}")
        if self._groups is not None:
            rows = self._rows_of_thread.here().rows(records)
            return [
                _decoded(self.decode, *pair) for pair in zip(rows, records.tolist(), strict=True)
            ]
        if self._records is not None:
            records = self._records[records]
        mine = self._of_thread
        # after a fork, a write would copy the pages shared with the parent
        if mine.pid != os.getpid():
            mine.buffer, mine.pid = Buffer(self._buffer_bytes, spares=True), os.getpid()
        # Local references: close() in another thread removes both from `mine`.
        reader, buffer = mine.reader, mine.buffer
        items: list[Any] = []
        for part in self._parts(reader, records):
            items += self._read(reader, part, buffer)
        return items

    def _parts(self, reader: Reader, records: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield halves of halves, until each part fits the buffer."""
        if len(records) < 2 or reader.fits(records, self._buffer_bytes):
            yield records
            return
        half = len(records) // 2
        yield from self._parts(reader, records[:half])
        yield from self._parts(reader, records[half:])

    def _read(self, reader: Reader, records: NDArray[np.int64], buffer: Buffer) -> list[Any]:
        loaded = load(reader, records, buffer)
        if loaded.failures:
            raise FeedError(loaded.failures[0].why)
        batch = Batch(self.index, loaded.memory, records, loaded.at)
        if self.decode is _as_bytes:  # making all bytes at once takes a third of the time
            return batch.as_bytes()
        return [_decoded(self.decode, record) for record in batch]

    def close(self) -> None:
        """Free the descriptors and memory of all threads; the next item opens the files again."""
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_of_thread", "_rows_of_thread"):
            state.pop(name, None)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


def feed_stream(
    data: Index | str | os.PathLike[str] | Sequence[Any],
    batch_size: int,
    decode: Decode | None = None,
    *,
    kind: str | None = None,
    database: bytes | str | None = None,
    columns: Sequence[str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    copy: bool = True,
    **options: Any,
) -> Any:
    """Return an IterableDataset over a Feed: decoded records in the feed's order.

    For DataLoader(stream, batch_size=...), or batch_size=None for single items.  batch_size: of the
    reading.  rank, world_size: give both, or neither to use torch.distributed if initialised.  Each
    worker of a DataLoader is a separate rank below the given rank.  Call set_epoch(epoch) before
    each epoch to vary the order, as with DistributedSampler, also with persistent workers; for the
    epoch of a just loaded state, set_epoch keeps the state.

    decode: takes a copy of the record; the result may refer to the copy.  copy=False passes the
    record in the read buffer, which will be overwritten: decode must then return data without
    references to the buffer.  Other options: see Feed.

    Of Parquet, decode takes a row, a dict of the columns (columns: None: all), and other options
    are those of RowFeed.

    state_dict and load_state_dict serve torchdata's StatefulDataLoader: the items returned so far
    are done; with another world or batch size, items of the begun batch come again.  A state can be
    continued once.  Raises FeedError: state_dict where workers read, because only the workers know
    their position.
    """
    arguments.function("decode", decode)
    copy = arguments.flag("copy", copy)
    index = index_of(data, kind, database, rows=None)
    is_rows = index.kind == "parquet"
    if is_rows:
        options["columns"] = columns
    else:
        _refuse_columns(index, columns)
    if rank is None and world_size is None:
        rank, world_size = _rank_and_world()
    if rank is None or world_size is None:  # the missing number cannot be known
        said, lacks = ("world_size", "rank") if rank is None else ("rank", "world_size")
        raise FeedError(
            f"{said}={arguments.shown(world_size if rank is None else rank)} is said without "
            f"{lacks}: say both, or neither, to take torch.distributed's"
        )
    # raises an error for wrong options
    _feed_of(index)(index, batch_size, rank=rank, world_size=world_size, **options)
    if decode is None:
        decode = _as_row if is_rows else _as_bytes
    elif copy and not is_rows:
        decode = functools.partial(_of_a_copy, decode)
    return _stream_class()(index, batch_size, decode, rank, world_size, options)


def _feed_of(index: Index) -> Any:
    """Return the class that reads a data set."""
    return RowFeed if index.kind == "parquet" else Feed


def _torch() -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "a stream for torch needs torch: pip install 'penstock[torch]'"
        ) from error
    return torch


def _worker() -> Any:
    """Return torch's facts about this worker process; None: not a worker."""
    return _torch().utils.data.get_worker_info()


def _rank_and_world() -> tuple[int, int]:
    distributed = _torch().distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def _make_stream(*arguments: Any) -> Any:
    return _stream_class()(*arguments)


def _gone_on(feed: Feed | RowFeed, state: dict[str, Any]) -> int:
    """Load the state; return how many items of the feed's next batch are done.

    The done items were returned before the state was taken.
    """
    feed.load_state_dict(state)
    given = state.get("given", 0)
    is_same_batch = feed.state_dict()["parts"] == state["parts"]  # another world has other batches
    return given if is_same_batch and isinstance(given, int) and given > 0 else 0


class _Stream:
    """The stream of feed_stream, without torch's base class."""

    def __init__(
        self,
        index: Index,
        batch_size: int,
        decode: Decode,
        rank: int,
        world_size: int,
        options: dict[str, Any],
        state: dict[str, Any] | None = None,
        asked: Any = None,
    ) -> None:
        self._arguments = (index, batch_size, decode, rank, world_size, options)
        self._state = state  # the state to continue from
        # pid of the process that loaded the state; other processes got the state with a copy
        self._loaded_in = 0
        # In shared memory: workers have copies of this object, and set_epoch() does not reach the
        # copies.
        if asked is None:
            asked = _torch().zeros(USED + MOST_WORKERS, dtype=_torch().int64)
            asked[USER] = NOBODY
        self._asked = asked.share_memory_()
        self._n_asked = 0
        self._next_epoch = 0  # of a persistent worker
        self._feed: Feed | RowFeed | None = None
        self._given = 0  # returned items of the begun batch

    def set_epoch(self, epoch: int) -> None:
        epoch = arguments.whole("epoch", epoch, 0, MOST_EPOCH)
        state = self._unused()
        if state is not None and state.get("epoch") != epoch:
            self._state = None
        self._asked[EPOCH] = epoch
        self._asked[N_SET] += 1
        self._asked[BY_WORKERS] = 0

    def _unused(self) -> dict[str, Any] | None:
        """Return the loaded state, if nobody has continued the state yet."""
        worker, user = _worker(), int(self._asked[USER])
        if self._state is None or (worker and self._loaded_in == os.getpid()):
            return self._state
        if worker is None:
            is_used = user != NOBODY
        else:  # used by workers of an earlier pass, or by a worker with the same number and seed
            is_used = user not in (NOBODY, worker.seed - worker.id)
            is_used = is_used or bool(self._asked[USED + worker.id % MOST_WORKERS])
        if is_used:
            self._state = None
        return self._state

    def _use(self) -> None:
        """Mark the loaded state as used."""
        worker = _worker()
        if worker and self._loaded_in != os.getpid():
            self._asked[USER] = worker.seed - worker.id
            self._asked[USED + worker.id % MOST_WORKERS] = 1
        self._state = None

    def _opened(self) -> Feed | RowFeed:
        index, batch_size, _, rank, world_size, options = self._arguments
        worker = _worker()
        n_workers, number = (worker.num_workers, worker.id) if worker else (1, 0)
        place, n_places = rank * n_workers + number, world_size * n_workers
        feed = self._feed
        if feed is None or feed.request.world_size != n_places:
            make = _feed_of(index)
            feed = make(index, batch_size, rank=place, world_size=n_places, **options)
            self._feed, self._n_asked = feed, 0
        epoch, n_asked = self._asked[[EPOCH, N_SET]].tolist()
        if n_asked != self._n_asked:
            feed.set_epoch(epoch)
            self._n_asked, self._given, self._next_epoch = n_asked, 0, epoch
        return feed

    def __iter__(self) -> Iterator[Any]:
        decode, feed, n_done = self._arguments[2], self._opened(), 0
        state, is_worker = self._unused(), _worker() is not None
        self._asked[BY_WORKERS] = int(is_worker)
        if state is not None:
            n_done = _gone_on(feed, state)
            self._use()
        elif is_worker:
            # An abandoned pass loses the read-ahead, so each pass begins anew.
            feed.set_epoch(self._next_epoch)
            self._given = 0
        elif self._given:
            n_done = _gone_on(feed, self._stand(feed))
        self._next_epoch = feed.epoch + 1
        for batch in feed:
            for place in range(n_done, len(batch)):
                self._given = place + 1
                row = int(batch.rows[place]) if isinstance(batch, RowBatch) else -1
                yield _decoded(decode, batch[place], row)
            n_done = self._given = 0

    def state_dict(self) -> dict[str, Any]:
        feed, loaded = self._opened(), self._unused()
        if loaded is not None:
            return loaded
        if _worker() is None and self._asked[BY_WORKERS]:
            raise FeedError(
                "the stream is read by workers, and only they know how far: use torchdata's "
                "StatefulDataLoader and its state_dict(), or num_workers=0"
            )
        return self._stand(feed)

    def _stand(self, feed: Feed | RowFeed) -> dict[str, Any]:
        state = feed.state_dict()
        if self._given:  # the feed counts the whole batch as done
            state["parts"][-1][-1] -= 1
            state["given"] = self._given
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        index, batch_size, _, rank, world_size, options = self._arguments
        feed = _feed_of(index)(index, batch_size, rank=rank, world_size=world_size, **options)
        feed.load_state_dict(state)  # raises an error for a wrong state
        self._state, self._loaded_in = state, os.getpid()
        if _worker() is None:
            self._asked[USER], self._asked[BY_WORKERS] = NOBODY, 0
            self._asked[USED:] = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _make_stream, (*self._arguments, self._state, self._asked)


@functools.cache
def _stream_class() -> Any:
    """Return the stream class, made once torch is present.

    DataLoader checks for the base class IterableDataset.
    """

    class FeedStream(_Stream, _torch().utils.data.IterableDataset):  # type: ignore[misc]
        """The class of the stream: see feed_stream."""

    return FeedStream


class _TorchRanks:
    """The ranks of torch.distributed's default group, for feed.ranks.

    Data travels in tensors, without pickling.
    """

    def __init__(self) -> None:
        self._torch = _torch()
        self._distributed = self._torch.distributed
        self.rank, self.size = _rank_and_world()
        # NCCL moves GPU memory only.
        is_nccl = self.size > 1 and self._distributed.get_backend() == "nccl"
        self._place = "cuda" if is_nccl else "cpu"

    def _tensor(self, data: bytes) -> Any:
        if not data:
            return self._torch.zeros(0, dtype=self._torch.uint8, device=self._place)
        return self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8).to(self._place)

    def _number(self, number: int) -> Any:
        return self._torch.tensor([number], dtype=self._torch.int64, device=self._place)

    def broadcast(self, data: bytes) -> bytes:
        if self.size == 1:
            return data
        length = self._number(len(data))
        self._distributed.broadcast(length, 0)
        body = self._tensor(data if self.rank == 0 else bytes(int(length)))
        self._distributed.broadcast(body, 0)
        content: bytes = body.cpu().numpy().tobytes()
        return content

    def gather(self, data: bytes) -> list[bytes]:
        if self.size == 1:
            return [data]
        lengths = [self._number(0) for _ in range(self.size)]
        self._distributed.all_gather(lengths, self._number(len(data)))
        most = max(map(int, lengths))
        parts = [self._tensor(bytes(most)) for _ in range(self.size)]
        self._distributed.all_gather(parts, self._tensor(data.ljust(most, b"\0")))
        return [
            part.cpu().numpy().tobytes()[: int(length)]
            for part, length in zip(parts, lengths, strict=True)
        ]


def shared_index(
    data: str | os.PathLike[str] | Sequence[Any],
    *,
    kind: str | None = None,
    database: bytes | str | None = None,
) -> Index:
    """Return the index of a data set on every rank of torch.distributed, made by rank 0 alone.

    kind, database: see open_index.  Raises FeedError, on every rank: rank 0 cannot make the index.
    """
    return ranks.shared_index(data, _TorchRanks(), kind, database)


def node_feed(
    data: Index | str | os.PathLike[str] | Sequence[Any], batch_size: int, **options: Any
) -> AbstractContextManager[RankFeed]:
    """Return the feed of a rank in a job of torch.distributed: `with node_feed(...) as feed`.

    The ranks of a node share readers and memory.  See feed.ranks.node_feed.
    """
    return ranks.node_feed(data, batch_size, _TorchRanks(), **options)
