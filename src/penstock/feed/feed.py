"""Yield a data set as batches: planned, read ahead by threads of this process, without a copy.

    feed = Feed("train.lmdb", batch_size=256, shuffle="block", seed=7, rank=r, world_size=n)
    for batch in feed:
        batch[0].key, memoryview(batch[0])          # valid until the next batch

The module uses the plan and the reader, and is independent of formats and frameworks.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed import arguments, plan
from penstock.feed.index import Index, described
from penstock.feed.plan import Order
from penstock.feed.read import Buffer, Loaded, Options, Reader, SharedReading, Tally, held_in_memory
from penstock.feed.state import (
    BUFFER_BYTES,
    MOST_EPOCH,
    RankEpoch,
    Request,
    Stand,
    check,
    deal_of,
    epoch_of,
    index_of,
    refuse_too_large,
    stand_of,
    state_of,
)

if TYPE_CHECKING:
    from penstock.feed.state import RankEpoch

__all__ = [
    "Batch",
    "Feed",
    "RankEpoch",
    "Record",
    "Request",
    "Stand",
    "check",
    "deal_of",
    "epoch_of",
    "index_of",
    "load",
    "refuse_too_large",
    "stand_of",
    "state_of",
]

LOOKED_AT = 2048  # records per look-up, while all records so far were in memory
CANCELLED_AGAIN_S = 0.2
NO_SLOT = -1  # for a portion in the page cache


# --- records and batches -------------------------------------------------------------------------


class Record(np.ndarray):  # (length,) of uint8
    """A record: an array of the bytes, also as memoryview(record); valid until the next batch.

    key: as in the data set.  number: in the index.  A slice or a copy has neither key nor number.
    """

    __slots__ = ("_index", "number")

    _index: Index
    number: int

    @property
    def key(self) -> bytes:
        try:
            return self._index.key(self.number)
        except AttributeError:
            raise AttributeError(
                "a part or a copy of a record has no key: ask the record itself"
            ) from None

    def owned(self) -> Record:
        """Return a copy in separate memory, writable and valid without limit."""
        record = np.ndarray.__new__(Record, self.shape, self.dtype)
        record[...] = self
        with suppress(AttributeError):  # a slice has neither
            record._index, record.number = self._index, self.number
        return record

    @property
    def where(self) -> str:
        """Return key, file and offset, for a message."""
        try:
            index, number = self._index, self.number
        except AttributeError:
            raise AttributeError(
                "a part or a copy of a record has no place: ask the record itself"
            ) from None
        path, offset = index.files[index.file[number]], int(index.offset[number])
        return f"record {self.key[:80]!r} of {path} at {offset:,} with {self.size:,} bytes"


class Batch(Sequence[Record]):
    """Records in read-only memory, overwritten by the request for the next batch.

    records: numbers in the index, (n,) int64, without failed records.
    """

    __slots__ = ("_index", "_memory", "ends", "records", "starts")

    def __init__(
        self,
        index: Index,
        memory: memoryview,
        records: NDArray[np.int64],
        starts: NDArray[np.int64],
    ) -> None:
        self._index = index
        self._memory = memory
        self.records = records
        self.starts = starts
        self.ends = starts + index.length[records]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = int(self.records[place])
        start = int(self.starts[place])
        length = int(self.ends[place]) - start
        record = np.ndarray.__new__(Record, (length,), np.uint8, self._memory, start)
        record._index, record.number = self._index, number
        return record

    def __iter__(self) -> Iterator[Record]:
        return (self[place] for place in range(len(self)))

    def __repr__(self) -> str:
        n_bytes = int((self.ends - self.starts).sum())
        return f"<Batch of {len(self):,} records, {n_bytes:,} bytes>"

    @property
    def keys(self) -> list[bytes]:
        return [self._index.key(number) for number in self.records.tolist()]

    def views(self) -> list[memoryview]:
        """Return all records as memoryviews: the fastest access to all records of a batch."""
        memory = self._memory
        starts, ends = self.starts.tolist(), self.ends.tolist()
        return [memory[start:end] for start, end in zip(starts, ends, strict=True)]

    def as_bytes(self) -> list[bytes]:
        """Return copies of all records; copies stay valid."""
        memory = self._memory
        starts, ends = self.starts.tolist(), self.ends.tolist()
        return [memory[start:end].tobytes() for start, end in zip(starts, ends, strict=True)]


# --- reading ahead -------------------------------------------------------------------------------


class _Ahead:
    """Portions of one epoch, read ahead by threads; the threads refer to no other object.

    A slot is free, being filled, ready, or consumed.  Portions are claimed in sequence, so the next
    portion always has a slot.
    """

    def __init__(
        self, epoch: RankEpoch, readers: list[Reader], slots: list[Buffer], first: int = 0
    ) -> None:
        self.epoch = epoch
        self.readers = readers
        self.slots = slots
        self.free = deque(range(len(slots)))
        self.claimed = first
        self.ready: dict[int, tuple[int, Loaded] | BaseException] = {}
        self.is_closed = False
        self.changed = threading.Condition()
        self.pid = os.getpid()
        self.threads = [
            threading.Thread(
                target=self._fetch, args=(reader,), name=f"penstock-feed-{i}", daemon=True
            )
            for i, reader in enumerate(readers)
        ]
        for thread in self.threads:
            thread.start()

    def _fetch(self, reader: Reader) -> None:
        while True:
            with self.changed:
                while not self.is_closed and self.claimed < self.epoch.n_portions and not self.free:
                    self.changed.wait()
                if self.is_closed or self.claimed >= self.epoch.n_portions:
                    return
                portion, slot = self.claimed, self.free.popleft()
                self.claimed += 1
            try:
                answer: Any = (slot, load(reader, self.epoch.portion(portion), self.slots[slot]))
            except BaseException as error:
                answer = error
            with self.changed:
                self.ready[portion] = answer
                self.changed.notify_all()

    def take(self, portion: int) -> tuple[int, Loaded]:
        """Wait for a portion and return the slot and the records."""
        with self.changed:
            while portion not in self.ready:
                if self.is_closed:
                    raise FeedError("this pass over the data set was ended; begin another one")
                self.changed.wait()
            answer = self.ready.pop(portion)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def give_back(self, slot: int) -> None:
        with self.changed:
            self.free.append(slot)
            self.changed.notify_all()

    def close(self) -> None:
        if self.pid != os.getpid():  # forked: no threads here, and the lock may be held for ever
            return
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        for thread in self.threads:
            while thread is not threading.current_thread() and thread.is_alive():
                for reader in self.readers:  # a store may be slow to answer
                    reader.cancel()
                thread.join(CANCELLED_AGAIN_S)


class _Asked:
    """Portions of one epoch, each read on request."""

    def __init__(self, epoch: RankEpoch, reader: Reader, slot: Buffer) -> None:
        self.epoch = epoch
        self.reader = reader
        self.slot = slot

    def take(self, portion: int) -> tuple[int, Loaded]:
        return 0, load(self.reader, self.epoch.portion(portion), self.slot)

    def give_back(self, slot: int) -> None:
        pass

    def close(self) -> None:
        pass


class _InPlace:
    """Portions of one epoch, in place in the page cache, without read-ahead.

    After the first portion not wholly in the page cache, the rest of the epoch is read ahead.
    While all records are in memory, several portions are looked up together and confirmed one by
    one.
    """

    def __init__(self, epoch: RankEpoch, readers: list[Reader], slots: list[Buffer]) -> None:
        self.epoch = epoch
        self.readers = readers
        self.slots = slots
        self.ahead: _Ahead | None = None
        self.first = self.end = 0  # the portions found
        self.loaded: Loaded | None = None

    def take(self, portion: int) -> tuple[int, Loaded]:
        if self.ahead is None:
            if portion >= self.end:
                self._look(portion)
            given = self._given(portion)
            if given is not None:
                return NO_SLOT, given
            self.ahead = _Ahead(self.epoch, self.readers, self.slots, portion)
        return self.ahead.take(portion)

    def _look(self, portion: int) -> None:
        """Look up several portions; after a failed record, only the given portion."""
        reader, edges = self.readers[0], self.epoch.edges
        self.first, self.end = portion, portion + 1
        if reader.reading.is_held:
            most = int(edges[portion]) + LOOKED_AT // self.epoch.share.batch_size
            self.end = max(self.end, int(np.searchsorted(edges, most, side="right")) - 1)
        self.loaded = reader.in_place(self.epoch.portion(portion, self.end))
        if self.loaded is not None and self.loaded.failures:
            self.end = portion + 1
            self.loaded = reader.in_place(self.epoch.portion(portion))

    def _given(self, portion: int) -> Loaded | None:
        loaded = self.loaded
        if loaded is None:
            return None
        if self.end > self.first + 1:
            size = self.epoch.share.batch_size
            begin, first, end = self.epoch.edges[[self.first, portion, portion + 1]].tolist()
            loaded = loaded.part((first - begin) * size, (end - begin) * size)
        return self.readers[0].given(loaded)

    def give_back(self, slot: int) -> None:
        assert self.ahead is not None
        self.ahead.give_back(slot)

    def close(self) -> None:
        if self.ahead is not None:
            self.ahead.close()


_Source = _Ahead | _Asked | _InPlace


def load(reader: Reader, records: NDArray[np.int64], slot: Buffer) -> Loaded:
    """Return a portion: in place from the page cache, else read into a slot.

    Raises FeedError: the portion does not fit the slot, or the data set has changed since indexing.
    """
    loaded = reader.in_place(records)
    given = reader.given(loaded) if loaded is not None else None
    if given is not None:
        return given
    layout = reader.layout(records, slot.limit_bytes)
    if layout.room > slot.limit_bytes:
        largest = int(records[np.argmax(reader.table.length[records])])
        bytes_ = int(reader.table.length[largest])
        raise FeedError(
            f"{reader.index.path}: {len(records):,} records need {layout.room:,} bytes, the "
            f"largest is {reader.index.key(largest)[:80]!r} with {bytes_:,}; a portion may have "
            f"{slot.limit_bytes:,}: raise buffer_bytes, or lower batch_size"
        )
    return reader.confirmed(reader.read(records, slot.room(layout.room), layout))


class _Pass:
    """An iterator over the batches of one epoch."""

    def __init__(self, feed: Feed, epoch: RankEpoch, source: _Source) -> None:
        self._feed = feed
        self._epoch = epoch
        self._source = source
        self._portion = -1
        self._batch = epoch.first
        self._slot = NO_SLOT
        self._loaded: Loaded | None = None
        self._is_over = False
        self._pid = os.getpid()
        self._in_use = threading.Lock()
        self._bad: NDArray[np.int64] = np.zeros(0, np.int64)
        # Also runs at the interpreter's exit, as a thread may be reading into memory about to be
        # freed.
        self.close = weakref.finalize(self, source.close)

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __len__(self) -> int:
        return len(self._epoch.share) - self._batch

    def __next__(self) -> Batch:
        if self._pid != os.getpid():  # forked: no reading threads here
            raise FeedError(
                "this pass over the data set was begun in another process, before a fork; begin a "
                "new `for` over the feed here"
            )
        if not self._in_use.acquire(blocking=False):
            raise FeedError(
                "another thread is being given a batch of this pass, and the next one overwrites "
                "it: a pass is for one thread; give each a Feed of its own, with rank its number "
                "and world_size the number of threads, or share a FeedDataset"
            )
        try:
            return self._following()
        finally:
            self._in_use.release()

    def _following(self) -> Batch:
        if self._is_over:
            raise StopIteration
        if not self.close.alive:
            raise FeedError("this pass was ended by another one, by set_epoch or by an error")
        if self._batch >= len(self._epoch.share):
            self._end()
            raise StopIteration
        if self._portion < 0 or self._batch >= self._epoch.edges[self._portion + 1]:
            self._next_portion()
        first = (self._batch - int(self._epoch.edges[self._portion])) * self._epoch.share.batch_size
        batch = self._given(first, first + self._epoch.share.batch_size)
        self._batch += 1
        self._feed._note_batch(self._batch)
        return batch

    def _next_portion(self) -> None:
        if self._slot >= 0:
            self._source.give_back(self._slot)
            self._slot = NO_SLOT
        self._portion += 1
        try:
            self._slot, loaded = self._source.take(self._portion)
        except BaseException:
            self.close()
            raise
        self._loaded = loaded
        self._bad = np.array([failure.record for failure in loaded.failures], np.int64)
        if not loaded.failures:
            return
        if self._feed.request.on_error == "raise":
            self.close()
            raise FeedError(loaded.failures[0].why)
        self._feed._note_failures(loaded)

    def _given(self, first: int, last: int) -> Batch:
        loaded = self._loaded
        assert loaded is not None
        records, at = loaded.records[first:last], loaded.at[first:last]
        if len(self._bad):
            is_good = ~np.isin(records, self._bad)
            records, at = records[is_good], at[is_good]
        return Batch(self._feed.index, loaded.memory, records, at)

    def _end(self) -> None:
        self._is_over = True
        if self._slot >= 0:
            self._source.give_back(self._slot)
        self.close()
        self._feed._epoch_ended()


# --- the feed ------------------------------------------------------------------------------------


class Feed:
    """The batches of a data set for one rank; each `for` is one epoch.

    data: a path, a folder, a pattern, a list of these, or an Index.
    kind, database: for a path, see open_index.
    shuffle: none; block: blocks of block_bytes in random sequence, mixed in pools of pool_bytes;
    global: every record separately; cache-aware: global, with records in memory first.
    seed, epoch, rank, world_size: fix the order; every record comes once per epoch.
    tail: treatment of the last batches: short; drop (equal numbers of full batches per rank); pad
    (equal numbers, with the first records repeated).
    on_error: for an unreadable record: raise, or skip and count in `failures`.
    buffer_bytes: all memory for records.
    readers: threads for read-ahead; 0: read on request.
    engine, direct, coalesce_bytes, gap_bytes, depth: see read.Options.
    mapped: return records of the page cache in place, without a copy.  As with py-lmdb, truncation
    of a mapped file in use ends the process with SIGBUS.

    A batch is valid until the next request; a Feed runs one iterator at a time, in one thread at a
    time.  Raises FeedError.
    """

    def __init__(
        self,
        data: Index | str | os.PathLike[str] | Sequence[Any],
        batch_size: int,
        *,
        kind: str | None = None,
        database: bytes | str | None = None,
        shuffle: str = "none",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        tail: Literal["short", "drop", "pad"] = "short",
        on_error: Literal["raise", "skip"] = "raise",
        buffer_bytes: int = BUFFER_BYTES,
        readers: int = 2,
        block_bytes: int = 1 << 20,
        pool_bytes: int = 16 << 20,
        engine: str = "auto",
        direct: bool | None = None,
        coalesce_bytes: int = 4 << 20,
        gap_bytes: int | None = None,
        depth: int | None = None,
        mapped: bool = False,
    ) -> None:
        self.request = Request(
            batch_size=batch_size,
            order=Order(shuffle, seed, block_bytes, pool_bytes),
            rank=rank,
            world_size=world_size,
            tail=tail,
            on_error=on_error,
            buffer_bytes=buffer_bytes,
            readers=readers,
            options=Options(engine, direct, coalesce_bytes, gap_bytes, depth, mapped),
        )
        self.index = index_of(data, kind, database)
        self.failures: deque[str] = deque(maxlen=1000)  # the latest messages; n_failed counts all
        self.n_failed = 0
        self._stand = Stand()
        self._make_readers()

    def _make_readers(self) -> None:
        first = Reader(self.index, self.request.options)
        self._reading: SharedReading = first.reading
        more = max(0, self.request.readers - 1)
        others = [Reader(self.index, self.request.options, first.reading) for _ in range(more)]
        self._readers = [first, *others]
        self._slots = [Buffer(self.request.slot_bytes) for _ in range(self.request.slots)]
        self._pass: Callable[[], _Pass | None] = lambda: None
        self._pid = os.getpid()

    # Reading

    def __len__(self) -> int:
        """Return the number of batches of the current or next epoch, from the beginning."""
        n_left = len(self.index)
        if self._stand.history:
            numbers, how = np.arange(n_left), self.request.order
            n_left = len(plan.remaining(numbers, how, self._stand.epoch, self._stand.history))
        return plan.n_batches(n_left, deal_of(self.index, self.request), self.request.rank)

    def __iter__(self) -> Iterator[Batch]:
        if self._pid != os.getpid():  # a fork has none of the parent's threads
            self._make_readers()
        previous = self._pass()
        if previous is not None:
            previous.close()
        check(self.index, self.request)
        epoch = self._plan()
        source: _Source
        if not self.request.readers:
            source = _Asked(epoch, self._readers[0], self._slots[0])
        elif self.request.options.mapped:
            source = _InPlace(epoch, self._readers, self._slots)
        else:
            source = _Ahead(epoch, self._readers, self._slots)
        begun = _Pass(self, epoch, source)
        self._pass = weakref.ref(begun)
        return begun

    def _plan(self) -> RankEpoch:
        is_by_memory = self.request.order.shuffle == "cache-aware"
        if is_by_memory and self._stand.held is None:
            if self.request.world_size > 1:
                raise FeedError(
                    "cache-aware with several ranks needs one answer for all: send rank 0's "
                    "feed.held() to each and give it to feed.set_held()"
                )
            self.set_held(self.held())
        request, epoch = self.request, epoch_of(self.index, self.request, self._stand)
        if not request.options.mapped:  # records in place need no buffer
            refuse_too_large(self.index, request, epoch, request.slot_bytes)
        return epoch

    def _epoch_ended(self) -> None:
        check(self.index, self.request)  # changed files make the records invalid
        self.set_epoch(self._stand.epoch + 1)

    def _note_batch(self, steps: int) -> None:
        stand = self._stand  # five times as fast as `replace`; runs per batch
        self._stand = Stand(stand.epoch, steps, stand.history, stand.held)

    def _note_failures(self, loaded: Loaded) -> None:
        self.n_failed += len(loaded.failures)
        self.failures.extend(failure.why for failure in loaded.failures)

    # Position and state

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterator, from the beginning; end a running iterator."""
        epoch = arguments.whole("epoch", epoch, 0, MOST_EPOCH)
        previous = self._pass()
        if previous is not None:
            previous.close()  # else later batches would count for this epoch
        self._stand = Stand(epoch)

    @property
    def epoch(self) -> int:
        """Return the current or next epoch."""
        return self._stand.epoch

    def held(self) -> NDArray[np.bool_]:
        """Return a flag per record, (n,) bool: in memory now.

        All flags are False if the kernel does not report.
        """
        held = held_in_memory(self.index)
        return held if held is not None else np.zeros(len(self.index), bool)

    def set_held(self, held: NDArray[np.bool_]) -> None:
        """Set the records assumed in memory by `cache-aware` in the next epoch; equal on all ranks.

        Raises FeedError: `held` is not a flag per record.
        """
        try:
            flags = np.asarray(held)
        except (TypeError, ValueError) as error:  # rows of unequal lengths
            said = arguments.shown(held)
            raise FeedError(f"held={said} is no array; feed.held() gives one") from error
        is_truth = flags.dtype.kind in "biu" and bool(((flags == 0) | (flags == 1)).all())
        if flags.ndim != 1 or not (is_truth or not len(flags)):
            said = arguments.shown(held)
            raise FeedError(f"held={said} is no list of True and False; feed.held() gives one")
        if len(flags) != len(self.index):
            raise FeedError(
                f"held says {len(flags):,} records, the data set has {len(self.index):,}"
            )
        self._stand = replace(self._stand, held=flags.astype(bool))

    def state_dict(self) -> dict[str, Any]:
        """Return the rank's position as numbers and strings; batches returned so far are done.

        Ranks with equal numbers of batches have equal states.  A state also loads with another
        world_size or batch_size; each record of the epoch still comes once.
        """
        return state_of(self.index, self.request, self._stand)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises FeedError and keeps the current position: the state is invalid, or of another data
        set or order.
        """
        stand = stand_of(self.index, self.request, state)
        previous = self._pass()
        if previous is not None:
            previous.close()
        self._stand = stand

    @property
    def tally(self) -> Tally:
        """Return the counts of reads so far."""
        return self._reading.tally

    @property
    def depth(self) -> int:
        """Return the current number of requests in flight per reader."""
        return self._reading.depth.value

    def close(self) -> None:
        """End the reading; free memory and descriptors."""
        previous = self._pass()
        if previous is not None:
            previous.close()
        for reader in self._readers:
            reader.close()
        self._slots = [Buffer(self.request.slot_bytes) for _ in range(self.request.slots)]

    def __repr__(self) -> str:
        request, stand = self.request, self._stand
        return (
            f"<Feed of {described(self.index)}: batch_size={request.batch_size}, "
            f"shuffle={request.order.shuffle!r}, rank {request.rank} of {request.world_size}, "
            f"next is batch {stand.steps:,} of epoch {stand.epoch}>"
        )

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self.index, self.request, self.state_dict())


def _remade(index: Index, request: Request, state: dict[str, Any]) -> Feed:
    feed = object.__new__(Feed)
    feed.request, feed.index = request, index
    feed.failures, feed.n_failed = deque(maxlen=1000), 0
    feed._stand = stand_of(index, request, state)
    feed._make_readers()
    return feed
