"""Yield the rows of Parquet files as batches: row groups in random sequence, rows mixed in memory.

    feed = RowFeed("s3://bucket/train/*.parquet", 256, columns=["text"], shuffle="block", seed=7)
    for batch in feed:
        batch.table, batch[0]["text"]

A row has no place of its own in a file, so the unit of reading is the row group, of which only the
chosen columns are read.  A window of row groups is in memory at a time; one thread reads the bytes
of the next windows, another decodes.  `RowAccess` gives rows by number.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed import arguments, row_plan
from penstock.feed.feed import load
from penstock.feed.index import Index
from penstock.feed.parquet import Chunks, RowGroups, arrow
from penstock.feed.plan import Deal, Order, PartialEpoch
from penstock.feed.read import Buffer, Loaded, Options, Reader, Tally
from penstock.feed.row_plan import Pieces
from penstock.feed.state import (
    BUFFER_BYTES,
    INSTEAD,
    MOST_EPOCH,
    STATE_VERSION,
    Request,
    check,
    index_of,
    terms_of,
)

__all__ = ["RowAccess", "RowBatch", "RowFeed"]

SLOTS = 2  # of bytes as stored: one is read while the other is decoded
# Windows in memory: the given one and the next one; for a moment the next one twice, as mixing
# copies.
TABLES = {"none": 2, "block": 3}


class RowBatch(Sequence[dict[str, Any]]):
    """Rows of a Parquet data set.

    table: a pyarrow.Table of the chosen columns.  rows: their numbers in the data set, (n,) int64.
    A batch stays valid.  In the order of the files (shuffle="none") it keeps its window in memory.
    """

    __slots__ = ("_listed", "rows", "table")

    def __init__(self, table: Any, rows: NDArray[np.int64]) -> None:
        self.table = table
        self.rows = rows
        self._listed: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        if self._listed is None:  # all at once takes a fraction of the time
            self._listed = self.table.to_pylist()
        return self._listed[place]

    def __repr__(self) -> str:
        return f"<RowBatch of {len(self):,} rows, {self.table.num_columns} columns>"

    def numpy(self) -> dict[str, NDArray[Any]]:
        """Return each column as an array; nested columns and texts as arrays of objects."""
        return {name: self.table.column(name).to_numpy() for name in self.table.column_names}


class _PartReader(Reader):
    """A reader of column chunks, which names row group and column of a failed one."""

    def __init__(self, groups: RowGroups, options: Options) -> None:
        super().__init__(groups.parts, options)
        self.groups = groups

    def __reduce__(self) -> tuple[Any, ...]:
        return _PartReader, (self.groups, self.options)

    def _why(self, record: int, what: str) -> str:
        group = int(np.searchsorted(self.groups.first_part, record, side="right")) - 1
        offset, length = int(self.table.offset[record]), int(self.table.length[record])
        return f"{self.groups.said(group)}: a column at {offset:,} with {length:,} bytes: {what}"


def _read(reader: _PartReader, groups: Sequence[int], slot: Buffer) -> Loaded:
    """Read the column chunks of row groups.  Raises FeedError: some cannot be read."""
    loaded = load(reader, reader.groups.parts_of(groups), slot)
    if loaded.failures:
        raise FeedError(loaded.failures[0].why)
    return loaded


def _tables(
    groups: RowGroups, numbers: Sequence[int], loaded: Loaded, most_bytes: int
) -> Iterator[Any]:
    """Yield the decoded row groups of a read, at most most_bytes of them together."""
    first = 0
    for number in numbers:
        n_parts = int(groups.first_part[number + 1] - groups.first_part[number])
        parts, at = loaded.records[first : first + n_parts], loaded.at[first : first + n_parts]
        first += n_parts
        lengths = groups.parts.length[parts].tolist()
        chunks = [
            (offset, loaded.memory[start : start + length])
            for offset, start, length in zip(
                groups.parts.offset[parts].tolist(), at.tolist(), lengths, strict=True
            )
        ]
        size = groups.index.seen(int(groups.index.file[number])).size
        table = groups.table(number, Chunks(chunks, size), most_bytes)
        most_bytes -= table.nbytes
        yield table


# --- one epoch -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Window:
    """Decoded row groups.  place: of each row in the table, in the sequence of the batches; None:
    as in the table.  rows: the rows' numbers in the data set, in that sequence."""

    table: Any
    place: NDArray[np.int64] | None
    rows: NDArray[np.int64]

    def part(self, first: int, end: int) -> Any:
        """Return rows of the sequence, a table."""
        if self.place is None:
            return self.table.slice(first, end - first)
        pyarrow, _ = arrow()
        return self.table.take(pyarrow.array(self.place[first:end]))


@dataclass(frozen=True, slots=True, eq=False)
class _RowEpoch:
    """The windows of a rank's epoch.  edges: of the pieces.  upto: rows before each window."""

    groups: RowGroups
    how: Order
    epoch: int
    pieces: Pieces
    edges: list[int]
    upto: NDArray[np.int64]
    buffer_bytes: int

    @property
    def n_windows(self) -> int:
        return len(self.edges) - 1

    def window(self, number: int) -> Pieces:
        pieces: Pieces = self.pieces[self.edges[number] : self.edges[number + 1]]
        return pieces

    def groups_of(self, number: int) -> list[int]:
        """Return the row groups of a window, each once, in the order of the files."""
        groups: list[int] = np.unique(self.window(number)[:, 0]).tolist()
        return groups

    def slot_bytes(self) -> int:
        """Return the bytes as stored of the largest window."""
        return max(
            (
                int(self.groups.stored[self.groups_of(number)].sum())
                for number in range(self.n_windows)
            ),
            default=0,
        )

    def decoded(self, number: int, loaded: Loaded) -> _Window:
        """Return a window, which is mixed batch by batch: a mixed copy of it would be as large."""
        pyarrow, _ = arrow()
        groups, pieces = self.groups, self.window(number)
        numbers = self.groups_of(number)
        stored = int(groups.stored[numbers].sum())
        most_bytes = (self.buffer_bytes - SLOTS * stored) // TABLES[self.how.shuffle]
        tables = dict(zip(numbers, _tables(groups, numbers, loaded, most_bytes), strict=True))
        piece, row = row_plan.mixed(pieces, self.how, self.epoch)
        rows = groups.first_row[pieces[piece, 0]] + row
        if self.how.shuffle == "none":
            parts = [
                tables[group].slice(first, end - first) for group, first, end in pieces.tolist()
            ]
            return _Window(pyarrow.concat_tables(parts), None, rows)
        begin = np.cumsum([0] + [tables[group].num_rows for group in numbers])
        place = begin[np.searchsorted(numbers, pieces[piece, 0])] + row
        table = pyarrow.concat_tables([tables.pop(group) for group in numbers])
        # pyarrow takes 256 rows from one chunk in 60 µs, from 27 chunks in 3 ms.
        return _Window(table.combine_chunks(), place, rows)


def _cost(groups: RowGroups, shuffle: str) -> NDArray[np.int64]:
    """Return the memory of each row group in a window, with all windows and copies."""
    most = (1 << 62) // (SLOTS + TABLES[shuffle])  # a footer may lie
    stored, decoded = np.minimum(groups.stored, most), np.minimum(groups.decoded, most)
    cost: NDArray[np.int64] = SLOTS * stored + TABLES[shuffle] * decoded
    return cost


def _refuse_large(groups: RowGroups, cost: NDArray[np.int64], buffer_bytes: int) -> None:
    if not len(cost) or int(cost.max()) <= buffer_bytes:
        return
    group = int(np.argmax(cost))
    raise FeedError(
        f"{groups.said(group)} takes {int(groups.stored[group]):,} bytes as stored and "
        f"{int(groups.decoded[group]):,} in memory, {int(cost[group]):,} with the next ones; "
        f"buffer_bytes={buffer_bytes:,} does not hold it: raise it, or name fewer columns="
    )


class _WindowsAhead:
    """Windows of one epoch, made ahead by two threads, which refer to no other object.

    A window is read into a free slot, then decoded, then given.  At most two tables are in memory.
    """

    def __init__(self, plan: _RowEpoch, reader: _PartReader, slots: list[Buffer], first: int):
        self.plan = plan
        self.reader = reader
        self.free = deque(slots)
        self.loaded: deque[tuple[int, Buffer, Loaded]] = deque()
        self.ready: deque[_Window] = deque()
        self.first = first
        self.n_tables = 0
        self.failed: BaseException | None = None
        self.is_closed = False
        self.changed = threading.Condition()
        self.pid = os.getpid()
        self.threads = [
            threading.Thread(target=self._until_error, args=(work,), name=name, daemon=True)
            for work, name in ((self._read, "penstock-rows"), (self._decode, "penstock-decode"))
        ]
        for thread in self.threads:
            thread.start()

    def _until_error(self, work: Any) -> None:
        try:
            work()
        except BaseException as error:
            with self.changed:
                self.failed = self.failed or error
                self.changed.notify_all()

    def _read(self) -> None:
        for number in range(self.first, self.plan.n_windows):
            with self.changed:
                self.changed.wait_for(lambda: self.free or self.is_closed)
                if self.is_closed:
                    return
                slot = self.free.popleft()
            loaded = _read(self.reader, self.plan.groups_of(number), slot)
            with self.changed:
                self.loaded.append((number, slot, loaded))
                self.changed.notify_all()

    def _decode(self) -> None:
        for _ in range(self.first, self.plan.n_windows):
            with self.changed:
                self.changed.wait_for(
                    lambda: (self.loaded and self.n_tables < 2) or self.is_closed or self.failed
                )
                if self.is_closed or not self.loaded:
                    return
                number, slot, loaded = self.loaded.popleft()
                self.n_tables += 1
            made = self.plan.decoded(number, loaded)
            del loaded
            with self.changed:
                self.free.append(slot)
                self.ready.append(made)
                self.changed.notify_all()
            del made

    def take(self) -> _Window:
        """Wait for the next window."""
        with self.changed:
            self.changed.wait_for(lambda: self.ready or self.failed or self.is_closed)
            if self.ready:
                return self.ready.popleft()
            if self.failed is not None:
                raise self.failed
            raise FeedError("this pass over the data set was ended; begin another one")

    def give_back(self) -> None:
        """Say that a window is no longer used."""
        with self.changed:
            self.n_tables -= 1
            self.changed.notify_all()

    def close(self) -> None:
        if self.pid != os.getpid():  # forked: no threads here, and the lock may be held for ever
            return
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()
        for thread in self.threads:
            while thread is not threading.current_thread() and thread.is_alive():
                self.reader.cancel()  # a store may be slow to answer
                thread.join(0.2)
        self.loaded.clear()
        self.ready.clear()


class _RowPass:
    """An iterator over the batches of one epoch."""

    def __init__(self, feed: RowFeed, plan: _RowEpoch, source: _WindowsAhead, steps: int) -> None:
        self._feed = feed
        self._plan = plan
        self._source = source
        self._steps = steps
        self._n_rows = int(plan.upto[-1])
        done = min(steps * feed.request.batch_size, self._n_rows)
        self._done = done
        self._skip = done - int(plan.upto[source.first])
        self._window: _Window | None = None
        self._at = 0  # rows of the window that were given
        self._is_over = False
        self._pid = os.getpid()
        self._in_use = threading.Lock()
        # Also runs at the interpreter's exit.
        self.close = weakref.finalize(self, source.close)

    def __iter__(self) -> Iterator[RowBatch]:
        return self

    def __next__(self) -> RowBatch:
        if self._pid != os.getpid():
            raise FeedError(
                "this pass over the data set was begun in another process, before a fork; begin a "
                "new `for` over the feed here"
            )
        if not self._in_use.acquire(blocking=False):
            raise FeedError(
                "another thread is being given a batch of this pass: give each thread a RowFeed "
                "of its own, with rank its number and world_size the number of threads"
            )
        try:
            return self._following()
        finally:
            self._in_use.release()

    def _following(self) -> RowBatch:
        if self._is_over:
            raise StopIteration
        if not self.close.alive:
            raise FeedError("this pass was ended by another one, by set_epoch or by an error")
        if self._done >= self._n_rows:
            self._is_over = True
            self.close()
            self._feed._epoch_ended()
            raise StopIteration
        try:
            batch = self._batch(min(self._feed.request.batch_size, self._n_rows - self._done))
        except BaseException:
            self.close()
            raise
        self._done += len(batch)
        self._steps += 1
        self._feed._note_batch(self._steps)
        return batch

    def _batch(self, n_rows: int) -> RowBatch:
        pyarrow, _ = arrow()
        parts: list[Any] = []
        numbers: list[NDArray[np.int64]] = []
        while n_rows:
            window = self._window
            if window is None or self._at == len(window.rows):
                del window
                self._next_window()
                continue
            end = min(self._at + n_rows, len(window.rows))
            parts.append(window.part(self._at, end))
            numbers.append(window.rows[self._at : end])
            n_rows -= end - self._at
            self._at = end
        table = parts[0]
        if len(parts) > 1:  # a copy: a view would keep several windows in memory
            table = pyarrow.concat_tables(parts).combine_chunks()
        return RowBatch(self._plan.groups.plain(table), np.concatenate(numbers))

    def _next_window(self) -> None:
        if self._window is not None:
            self._window = None
            self._source.give_back()
        self._window = self._source.take()
        self._at = min(self._skip, len(self._window.rows))
        self._skip -= self._at


# --- the feed ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _RowStand:
    """The position of a rank: see state.Stand."""

    epoch: int = 0
    steps: int = 0
    history: tuple[PartialEpoch, ...] = ()


class RowFeed:
    """The rows of Parquet files in batches, for one rank; each `for` is one epoch.

    data: a path, a pattern, an address, a list of these, or an Index.
    columns: the columns to read; None: all.  Of the others no byte is read.
    shuffle: none; block: row groups in random sequence, the rows of as many as buffer_bytes holds
    mixed.
    seed, epoch, rank, world_size: fix the order; every row comes once per epoch.
    tail: see Feed.
    buffer_bytes: all memory for rows, as stored and decoded, but for what the batches in use keep.
    engine, direct, coalesce_bytes, gap_bytes, depth: see read.Options.

    Raises FeedError.
    """

    def __init__(
        self,
        data: Index | str | os.PathLike[str] | Sequence[Any],
        batch_size: int,
        *,
        columns: Sequence[str] | None = None,
        shuffle: str = "none",
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        tail: Literal["short", "drop", "pad"] = "short",
        buffer_bytes: int = BUFFER_BYTES,
        engine: str = "auto",
        direct: bool | None = None,
        coalesce_bytes: int = 4 << 20,
        gap_bytes: int | None = None,
        depth: int | None = None,
    ) -> None:
        if shuffle in ("global", "cache-aware"):
            raise FeedError(
                f"shuffle={shuffle!r}: a row of Parquet has no place of its own; 'block' takes row "
                "groups in random sequence and mixes the rows of as many as buffer_bytes holds"
            )
        self.request = Request(
            batch_size=batch_size,
            order=Order(shuffle, seed),
            rank=rank,
            world_size=world_size,
            tail=tail,
            buffer_bytes=buffer_bytes,
            readers=1,
            options=Options(engine, direct, coalesce_bytes, gap_bytes, depth),
        )
        self.index = index_of(data, "parquet" if not isinstance(data, Index) else None, rows=True)
        self.groups = RowGroups.of(self.index, columns)
        if not self.groups.n_rows:
            raise FeedError(f"{self.index.path}: holds no row; nothing can be read from it")
        self._cost = _cost(self.groups, shuffle)
        _refuse_large(self.groups, self._cost, self.request.buffer_bytes)
        self._stand = _RowStand()
        self._make_reader()

    def _make_reader(self) -> None:
        self._reader = _PartReader(self.groups, self.request.options)
        self._pass: Any = lambda: None
        self._pid = os.getpid()

    @property
    def schema(self) -> Any:
        """Return the columns of the batches, a pyarrow.Schema."""
        return self.groups.schema

    @property
    def tally(self) -> Tally:
        """Return the counts of reads so far."""
        return self._reader.reading.tally

    @property
    def epoch(self) -> int:
        """Return the current or next epoch."""
        return self._stand.epoch

    def _pieces(self) -> Pieces:
        how, stand = self.request.order, self._stand
        whole = row_plan.whole(self.groups.rows, how, stand.epoch)
        return row_plan.remaining(
            whole, how, stand.epoch, stand.history, self._cost, self.request.buffer_bytes
        )

    def _plan(self) -> _RowEpoch:
        request = self.request
        deal = (request.world_size, request.batch_size, request.tail, request.rank)
        pieces = row_plan.share(self._pieces(), *deal).pieces
        edges = row_plan.windows(pieces, self._cost, request.buffer_bytes)
        rows = np.append(0, np.cumsum(pieces[:, 2] - pieces[:, 1]))
        return _RowEpoch(
            self.groups,
            request.order,
            self._stand.epoch,
            pieces,
            edges,
            rows[edges],
            request.buffer_bytes,
        )

    def __len__(self) -> int:
        """Return the number of batches of the current or next epoch, from the beginning."""
        request = self.request
        deal = (request.world_size, request.batch_size, request.tail, request.rank)
        return row_plan.n_batches(self._pieces(), *deal)

    def __iter__(self) -> Iterator[RowBatch]:
        if self._pid != os.getpid():  # a fork has none of the parent's threads
            self._make_reader()
        self._end_pass()
        check(self.index, self.request)
        plan = self._plan()
        done = min(self._stand.steps * self.request.batch_size, int(plan.upto[-1]))
        first = int(np.searchsorted(plan.upto, done, side="right")) - 1
        slots = [Buffer(plan.slot_bytes()) for _ in range(SLOTS)]
        source = _WindowsAhead(plan, self._reader, slots, first)
        begun = _RowPass(self, plan, source, self._stand.steps)
        self._pass = weakref.ref(begun)
        return begun

    def _end_pass(self) -> None:
        previous = self._pass()
        if previous is not None:
            previous.close()

    def _epoch_ended(self) -> None:
        check(self.index, self.request)  # changed files make the rows invalid
        self.set_epoch(self._stand.epoch + 1)

    def _note_batch(self, steps: int) -> None:
        self._stand = replace(self._stand, steps=steps)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iterator, from the beginning; end a running iterator."""
        epoch = arguments.whole("epoch", epoch, 0, MOST_EPOCH)
        self._end_pass()
        self._stand = _RowStand(epoch)

    def _order(self) -> list[Any]:
        how = self.request.order
        return ["rows", how.shuffle, how.seed, self.request.buffer_bytes, *self.groups.names]

    def state_dict(self) -> dict[str, Any]:
        """Return the rank's position as numbers and strings; batches returned so far are done.

        A state also loads with another world_size or batch_size; each row of the epoch still comes
        once.
        """
        request, stand = self.request, self._stand
        deal = Deal(request.world_size, request.batch_size, 1, request.tail)
        parts = (*stand.history, PartialEpoch(deal, stand.steps))
        return {
            "version": STATE_VERSION,
            "n_records": self.groups.n_rows,
            "total_bytes": self.index.total_bytes,
            "order": self._order(),
            "epoch": stand.epoch,
            "parts": [
                [p.deal.world_size, p.deal.batch_size, 1, p.deal.tail, p.steps] for p in parts
            ],
            "held": None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state.

        Raises FeedError and keeps the current position: the state is invalid, or of another data
        set, of other columns or of another order.
        """
        stand = self._stand_of(state)
        self._end_pass()
        self._stand = stand

    def _stand_of(self, state: dict[str, Any]) -> _RowStand:
        n, total, parts, epoch, order = terms_of(state)
        last = parts.pop()
        if (n, total) != (self.groups.n_rows, self.index.total_bytes):
            raise FeedError(
                f"the state is of a data set of {n:,} rows and {total:,} bytes, {self.index.path} "
                f"has {self.groups.n_rows:,} and {self.index.total_bytes:,}; begin the epoch anew "
                "with set_epoch"
            )
        if order != self._order():
            raise FeedError(
                f"the state is of the order {arguments.shown(order)}, this feed has "
                f"{arguments.shown(self._order())} (shuffle, seed, buffer_bytes, columns); an "
                "epoch cannot change its order half way"
            )
        self._refuse_impossible([*parts, last], epoch)
        request = self.request
        if last.deal == Deal(request.world_size, request.batch_size, 1, request.tail):
            return _RowStand(epoch, last.steps, tuple(parts))
        return _RowStand(epoch, 0, (*parts, last))

    def _refuse_impossible(self, parts: Sequence[PartialEpoch], epoch: int) -> None:
        how, most = self.request.order, self.request.buffer_bytes
        pieces = row_plan.whole(self.groups.rows, how, epoch)
        for part in parts:
            deal = part.deal
            last_rank = (deal.world_size, deal.batch_size, deal.tail, deal.world_size - 1)
            n_most = row_plan.n_batches(pieces, *last_rank)
            if part.steps > n_most:
                raise FeedError(
                    f"this state of a feed is damaged ({part.steps:,} batches were taken of a "
                    f"rank's {n_most:,}); {INSTEAD}"
                )
            pieces = row_plan.remaining(pieces, how, epoch, [part], self._cost, most)

    def close(self) -> None:
        """End the reading; free memory and descriptors."""
        self._end_pass()
        self._reader.close()

    def __repr__(self) -> str:
        request, stand = self.request, self._stand
        return (
            f"<RowFeed of {self.groups.n_rows:,} rows of {self.index.path[:80]}: "
            f"batch_size={request.batch_size}, shuffle={request.order.shuffle!r}, "
            f"rank {request.rank} of {request.world_size}, "
            f"next is batch {stand.steps:,} of epoch {stand.epoch}>"
        )

    def __enter__(self) -> RowFeed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# --- rows by number ------------------------------------------------------------------------------


class RowAccess:
    """Rows by number, for one thread at a time; row groups stay in memory while there is room.

    buffer_bytes: half for row groups that stay, half for reading others.
    """

    def __init__(self, groups: RowGroups, options: Options, buffer_bytes: int) -> None:
        self._groups = groups
        self._half = buffer_bytes // 2
        self._cost = _cost(groups, "none")
        _refuse_large(groups, 2 * self._cost, buffer_bytes)
        self._reader = _PartReader(groups, options)
        self._slot = Buffer(self._half)
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self._kept_bytes = 0

    @property
    def is_direct(self) -> bool:
        """Return True if row groups are read past the page cache."""
        return self._reader.is_direct

    def rows(self, numbers: NDArray[np.int64]) -> RowBatch:
        """Return rows in the requested order."""
        pyarrow, _ = arrow()
        groups = self._groups
        of = np.searchsorted(groups.first_row, numbers, side="right") - 1
        sort = np.argsort(of, kind="stable")
        parts = []
        for group, table in self._found(np.unique(of).tolist()):
            wanted = numbers[sort][of[sort] == group] - int(groups.first_row[group])
            parts.append(groups.plain(table.take(pyarrow.array(wanted))))
        if not parts:
            return RowBatch(groups.schema.empty_table(), numbers)
        back = np.empty_like(sort)
        back[sort] = np.arange(len(sort))
        table = pyarrow.concat_tables(parts).take(pyarrow.array(back))
        return RowBatch(table, numbers)

    def _found(self, wanted: list[int]) -> Iterator[tuple[int, Any]]:
        """Yield the tables of row groups, in order.

        As many are read at once as half the buffer holds.
        """
        at = 0
        while at < len(wanted):
            together: list[int] = []
            spent = 0
            for group in wanted[at:]:
                price = 0 if group in self._kept else int(self._cost[group])
                if together and spent + price > self._half:
                    break
                together.append(group)
                spent += price
            at += len(together)
            yield from self._together(together)

    def _together(self, together: list[int]) -> Iterator[tuple[int, Any]]:
        here = {group: self._kept[group] for group in together if group in self._kept}
        missing = [group for group in together if group not in here]
        if missing:
            loaded = _read(self._reader, missing, self._slot)
            made = _tables(self._groups, missing, loaded, self._half)
            for group, table in zip(missing, made, strict=True):
                here[group] = table
                self._keep(group, table)
        for group in together:
            if group in self._kept:
                self._kept.move_to_end(group)
            yield group, here.pop(group)

    def _keep(self, group: int, table: Any) -> None:
        self._kept[group] = table
        self._kept_bytes += table.nbytes
        while self._kept_bytes > self._half and len(self._kept) > 1:
            _, gone = self._kept.popitem(last=False)
            self._kept_bytes -= gone.nbytes

    def close(self) -> None:
        self._kept.clear()
        self._kept_bytes = 0
        self._reader.close()
