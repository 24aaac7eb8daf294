"""Serve the ranks of a node: a few reader processes fill memory shared by all ranks.

    with NodeFeed("train.lmdb", 256, ranks=range(8), world_size=8) as node:
        for batch in attach(node.token, rank): ...          # in each rank's process

The design is LMDBIO's "localized mmap" without barriers.  Each rank has a few slots.  Each slot has
a number: the portion in the slot.  Each rank has a number: the count of consumed portions.  Readers
take tickets in the order in which the portions will be needed.

The memory is a memfd without a name.  The kernel frees a memfd with the last process that holds the
memfd, however the process ends.  Waiting ranks notice the end of a reader or of the owner and name
the process in an error.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed import arguments, plan
from penstock.feed.feed import (
    Batch,
    RankEpoch,
    Request,
    Stand,
    check,
    epoch_of,
    index_of,
    refuse_too_large,
    stand_of,
    state_of,
)
from penstock.feed.index import Index, described, to_bytes
from penstock.feed.node_memory import (
    ACTIVE,
    FILLED,
    HEAD,
    LOOK_MS,
    MAGIC,
    MOST_FAILURES,
    PAGE,
    SENTENCE_AT,
    SLOT_HEAD,
    SLOTS,
    STOP,
    WORDS,
    Node,
    Terms,
    held_bytes,
    is_alive,
)
from penstock.feed.plan import Order
from penstock.feed.read import Options, available_bytes, table_of
from penstock.feed.state import MOST_DEALT, MOST_EPOCH

__all__ = ["NodeFeed", "RankFeed", "attach"]

# Bytes per read, below Feed's 4 MiB: a rank's portion is only a part of the node's memory, and
# several reads should be in flight per portion.
COALESCE_BYTES = 1 << 20
MOST_READERS = 64  # processes per node
STARTED_S = 60.0  # readers and ranks import numpy, possibly from a slow file system
MOST_OF_MEMORY = 0.5  # the training's own memory has priority


# Readers at the start.  Each reader waits for the end of a portion, so the number of readers keeps
# the device busy.  On two CPUs, four readers gave two to four times the throughput of a single
# reader, from a disk and with 1 ms of latency; eight readers gave less than four.
FIRST_READERS = 4


# --- ranks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Taken:
    """A portion in use by a rank.

    at: offset of each record in view; bad: records that failed.
    """

    portion: int
    view: memoryview
    records: NDArray[np.int64]
    at: NDArray[np.int64]
    bad: NDArray[np.int64]

    def batch(self, index: Index, first: int, end: int) -> Batch:
        numbers, starts = self.records[first:end], self.at[first:end]
        if len(self.bad):
            is_good = ~np.isin(numbers, self.bad)
            numbers, starts = numbers[is_good], starts[is_good]
        return Batch(index, self.view, numbers, starts)


class RankFeed:
    """The batches of a rank, read by the node's readers; each `for` is one epoch.

    A batch is valid until the next batch is requested.  Raises FeedError: a record cannot be read,
    or a reader has ended.
    """

    def __init__(self, node: Node, rank: int) -> None:
        rank = arguments.whole("rank", rank)
        if rank not in node.terms.ranks:
            ranks = ", ".join(map(str, node.terms.ranks))
            raise FeedError(f"rank={rank} is not of this node, which feeds {ranks}")
        self.rank = rank
        self.n_failed = 0
        self._node = node
        self._place = node.terms.ranks.index(rank)
        if node.get(node.gone(self._place)) or node.get(node.process(self._place)):
            raise FeedError(f"rank {rank} of this node was attached before; each has one reader")
        node.put(node.process(self._place), os.getpid())
        self._stand = node.stand()
        self._portion = 0  # portions consumed by the rank since the start
        self._mine: RankEpoch | None = None  # the epoch in progress
        self._taken: _Taken | None = None  # the portion of the current batches
        self._passes = 0
        self._process = os.getpid()
        self.close = weakref.finalize(self, _leave, node, self._place, os.getpid())

    @property
    def index(self) -> Index:
        """Return the index shared by all processes of the node."""
        return self._node.index

    @property
    def epoch(self) -> int:
        return self._stand.epoch

    def __repr__(self) -> str:
        request, stand = self._node.terms.request, self._stand
        return (
            f"<RankFeed of {described(self.index)}: batch_size={request.batch_size}, "
            f"shuffle={request.order.shuffle!r}, rank {self.rank} of {request.world_size}, "
            f"next is batch {stand.steps:,} of epoch {stand.epoch}>"
        )

    def __len__(self) -> int:
        """Return the number of batches of the current or next epoch, from the beginning."""
        return len(self._node.plan(self._place, self._stand).share)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of an epoch; after a `for` that ended early, the remaining batches."""
        self._passes += 1
        return self._batches(self._passes)

    def _batches(self, number: int) -> Iterator[Batch]:
        self._refuse_other(number)
        node = self._node
        check(node.index, node.terms.request)
        if self._mine is None:
            if len(self):  # else no reader may be left to publish `held`
                held = node.held(self._stand.epoch, self._look)
                self._stand = replace(self._stand, held=held)
            self._mine = self._planned()
        mine = self._mine
        while (step := max(self._stand.steps, mine.first)) < len(mine.share):
            portion = int(np.searchsorted(mine.edges, step, side="right")) - 1
            if self._taken is None or self._taken.portion != portion:
                self._give_back()
                self._taken = self._next(mine, portion)
            first = (step - int(mine.edges[portion])) * mine.share.batch_size
            self._stand = replace(self._stand, steps=step + 1)
            yield self._taken.batch(node.index, first, first + mine.share.batch_size)
            self._refuse_other(number)
        self._give_back()
        check(node.index, node.terms.request)
        self._stand, self._mine = Stand(self._stand.epoch + 1), None

    def _planned(self) -> RankEpoch:
        """Return the plan of the epoch.

        Raises FeedError: a batch does not fit.  The other ranks continue without this rank.
        """
        node = self._node
        epoch, request = node.plan(self._place, self._stand), node.request(self._place)
        try:
            refuse_too_large(node.index, request, epoch, node.terms.portion_bytes)
        except FeedError:
            self.close()
            raise
        return epoch

    def _refuse_other(self, number: int) -> None:
        """Raise FeedError if another iterator has replaced iterator `number`, or after a fork."""
        if self._process != os.getpid():  # a child would consume the parent's portions
            raise FeedError(f"rank {self.rank} was attached before a fork; attach() here")
        if number != self._passes:
            raise FeedError("this pass over the data set was ended by another one")

    def _next(self, mine: RankEpoch, portion: int) -> _Taken:
        slot, records = self._waited_for(), mine.portion(portion)
        bad = self._failures(slot)
        at = PAGE + self._node.layout(records).at
        return _Taken(portion, slot.data.toreadonly(), records, at, bad)

    def _give_back(self) -> None:
        """Mark the current portion as consumed."""
        if self._taken is not None:
            self._taken = None
            self._portion += 1
            self._node.put(self._node.consumed(self._place), self._portion)

    def _waited_for(self) -> NDArray[np.uint8]:
        """Wait for the next portion and return the slot."""
        node, number = self._node, self._portion % SLOTS
        word = node.ready(self._place, number)
        begun = time.monotonic()
        while (seen := node.get(word)) != self._portion + 1:
            if not node.wait(word, seen) or node.get(STOP):
                self._look(time.monotonic() - begun)
        return node.slot(self._place, number)

    def _look(self, waited_s: float = 0.0) -> None:
        """Raise FeedError if the feed was closed, a process ended, or a rank never attached.

        The processes are the readers and the owner.  A missing rank blocks the others, because
        readers wait for free slots.
        """
        node = self._node
        if not self.close.alive or node.get(STOP):  # readers end by design here
            raise FeedError(f"rank {self.rank}: the node's feed was closed")
        late = [
            rank
            for place, rank in enumerate(node.terms.ranks)
            if not node.get(node.process(place)) and not node.get(node.gone(place))
        ]
        if late and waited_s > STARTED_S:
            raise FeedError(
                f"rank {self.rank} has waited for {waited_s:.0f} s: rank {late[0]} of this node "
                "has not attached, and readers run no more than three portions ahead of it"
            )
        # Check the owner first: readers end with the owner.
        if not is_alive(node.terms.owner):
            raise FeedError(
                f"process {node.terms.owner}, which owns the readers of {node.index.path}, has "
                "ended; begin again from the latest state_dict"
            )
        for number in range(node.terms.n_readers):
            process = node.get(node.reader(number))
            if process and not is_alive(process):
                raise FeedError(
                    f"reader {number} of {node.index.path} (process {process}) has ended while "
                    f"rank {self.rank} waited for portion {self._portion}; was it killed for "
                    "memory? Begin again from the latest state_dict"
                )

    def _failures(self, slot: NDArray[np.uint8]) -> NDArray[np.int64]:
        head = slot[:PAGE].tobytes()
        status, n = SLOT_HEAD.unpack_from(head)
        why = head[SENTENCE_AT:].rstrip(b"\0").decode(errors="replace")
        if status != FILLED:
            self.close()
            raise FeedError(why)
        self.n_failed += n
        return np.frombuffer(head, "<i8", min(n, MOST_FAILURES), SLOT_HEAD.size)

    def state_dict(self) -> dict[str, Any]:
        """Return the rank's state, in Feed's format; Feed can also resume from the state."""
        return state_of(self._node.index, self._node.request(self._place), self._stand)


def _leave(node: Node, place: int, process: int) -> None:
    if process == os.getpid():
        node.put(node.gone(place), 1)
        node.put(node.consumed(place), node.get(node.consumed(place)))  # wakes waiting readers


def attach(token: str, rank: int) -> RankFeed:
    """Return the feed of a rank, in any process of the node with the token.

    Raises FeedError: a wrong token, an owner that has ended, no access in /proc, a rank of another
    node, or a rank attached before.
    """
    try:
        name, process, descriptor, started = token.split(":")
        if name != "penstock-feed":
            raise ValueError(name)
        path = f"/proc/{int(process)}/fd/{int(descriptor)}"
        if _started(int(process)) != int(started):
            raise FeedError(f"process {process}, which owned the feed {token}, has ended")
        opened = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except (ValueError, AttributeError) as error:
        said = arguments.shown(token)
        raise FeedError(f"token={said} is no token of a feed; NodeFeed.token is one") from error
    except OSError as error:
        raise FeedError(
            f"the feed of process {process} cannot be attached: {error.strerror}; ranks must be "
            "of the same user and see its processes"
        ) from error
    try:
        node = Node(opened)
    finally:
        os.close(opened)  # the mapping keeps the memory alive
    return RankFeed(node, rank)


def _started(process: int) -> int:
    """Return a process's start time in kernel ticks; -1: no such process.

    The start time tells a process from a later process with an equal number.
    """
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return -1
    return int(text.rpartition(")")[2].split()[19])


# --- the owner -----------------------------------------------------------------------------------


class NodeFeed:
    """Reader processes and shared memory, for the ranks of one node.

    kind, database: for a path, see open_index.
    ranks: the ranks of world_size that run on this node and call attach().
    readers: number of processes.  None: start with four (two for one rank), or with one per two
    CPUs, at most one per rank, if more; then halve while throughput is unchanged.
    stagger: the most portions read at a time, in ascending order; 0: as many as readers.
    state: the starting point, from a state_dict().  Others: as for Feed; buffer_bytes is for the
    whole node, coalesce_bytes is 1 MiB by default.

    Keep the NodeFeed alive while the ranks read.  Raises FeedError.
    """

    def __init__(
        self,
        data: Index | str | os.PathLike[str] | Sequence[Any],
        batch_size: int,
        *,
        ranks: Sequence[int],
        world_size: int,
        kind: str | None = None,
        database: bytes | str | None = None,
        shuffle: str = "none",
        seed: int = 0,
        epoch: int = 0,
        state: dict[str, Any] | None = None,
        readers: int | None = None,
        stagger: int = 0,
        tail: str = "short",
        on_error: str = "raise",
        buffer_bytes: int = 256 << 20,
        block_bytes: int = 1 << 20,
        pool_bytes: int = 16 << 20,
        engine: str = "auto",
        direct: bool | None = None,
        coalesce_bytes: int = COALESCE_BYTES,
        gap_bytes: int | None = None,
        depth: int | None = None,
    ) -> None:
        ranks = _ranks_of_node(ranks, world_size, shuffle)
        epoch = arguments.whole("epoch", epoch, 0, MOST_EPOCH)
        stagger = arguments.whole("stagger", stagger)
        n_readers, slot_bytes = _dealt(len(ranks), readers, buffer_bytes)
        request = Request(
            batch_size=batch_size,
            order=Order(shuffle, seed, block_bytes, pool_bytes),
            rank=ranks[0],
            world_size=world_size,
            tail=tail,
            on_error=on_error,
            buffer_bytes=slot_bytes * SLOTS,
            readers=SLOTS - 1,
            options=Options(engine, direct, coalesce_bytes, gap_bytes, depth),
        )
        self.index = index_of(data, kind, database)
        check(self.index, request)
        stand = Stand(epoch) if state is None else stand_of(self.index, request, state)
        self._terms = Terms(
            request=request,
            ranks=ranks,
            n_readers=n_readers,
            is_tuned=readers is None,
            stagger=stagger,
            slot_bytes=slot_bytes,
            epoch=stand.epoch,
            steps=stand.steps,
            history=stand.history,
            owner=os.getpid(),
        )
        self._refuse_too_large(stand)
        self._descriptor = self._made()
        self._node = Node(self._descriptor)
        if stand.held is not None:
            self._node.put_held(stand.epoch, stand.held)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.close = weakref.finalize(
            self, _end, self._node, self._processes, self._descriptor, os.getpid()
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _refuse_too_large(self, stand: Stand) -> None:
        """Check the batch sizes before any rank attaches.

        Each rank repeats the check for later epochs and for an order not yet known.  Raises
        FeedError: a batch does not fit.
        """
        index, terms, size = self.index, self._terms, self._terms.request.batch_size
        is_unknown = terms.request.order.shuffle == "cache-aware" and stand.held is None
        if is_unknown or plan.all_fit(table_of(index), size, terms.portion_bytes):
            return
        for place in range(len(terms.ranks)):
            request = terms.request_of(place)
            epoch = epoch_of(index, request, stand)
            refuse_too_large(index, request, epoch, terms.portion_bytes)

    def _made(self) -> int:
        """Allocate the memory and write the terms and the index.

        Raises FeedError: not enough memory.
        """
        terms, listed = self._terms.to_bytes(), to_bytes(self.index)
        terms += b" " * (-(HEAD.size + len(terms)) % 8)
        n_words = WORDS + (3 + SLOTS) * len(self._terms.ranks) + self._terms.n_readers
        words_at = -(-(HEAD.size + len(terms) + len(listed)) // PAGE) * PAGE
        n_held = 2 * held_bytes(self._terms.request, len(self.index))
        slots_at = words_at + -(-(4 * n_words + n_held) // PAGE) * PAGE
        size = slots_at + len(self._terms.ranks) * SLOTS * self._terms.slot_bytes
        # Check first: the kernel does not refuse shared memory, but kills processes when memory is
        # short.
        free = available_bytes()
        if size > MOST_OF_MEMORY * free:
            raise FeedError(
                f"no shared memory for {size:,} bytes: {free:,} are free here, of which a feed "
                f"takes {MOST_OF_MEMORY:.0%} at the most; lower buffer_bytes"
            )
        descriptor = os.memfd_create("penstock-feed", os.MFD_CLOEXEC)
        try:
            os.truncate(descriptor, size)
            head = HEAD.pack(MAGIC, len(terms), len(listed), words_at, slots_at)
            with open(os.dup(descriptor), "wb") as file:
                file.write(head + terms + listed)
            # Allocate now: a page fault without free memory would kill the process.
            os.posix_fallocate(descriptor, 0, size)
        except OSError as error:
            os.close(descriptor)
            raise FeedError(
                f"no shared memory for {size:,} bytes: {error.strerror}; lower buffer_bytes, or "
                "give the job's control group more memory"
            ) from error
        return descriptor

    def _start(self) -> None:
        if not sys.executable:
            raise FeedError("this Python does not know its own program: no reader can be started")
        self._node.put(ACTIVE, self._terms.n_readers)
        source = str(Path(__file__).parent.parent.parent)
        before = os.environ.get("PYTHONPATH")
        paths = source if not before else f"{source}{os.pathsep}{before}"
        for number in range(self._terms.n_readers):
            call = f"from penstock.feed.serve import serve; serve({self._descriptor}, {number})"
            self._processes.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-c", call],
                    pass_fds=[self._descriptor],
                    stdin=subprocess.DEVNULL,
                    env=os.environ | {"PYTHONPATH": paths},
                    start_new_session=True,  # Ctrl-C goes to the owner only
                )
            )
        self._wait_for_readers()

    def _wait_for_readers(self) -> None:
        deadline = time.monotonic() + STARTED_S
        for number, process in enumerate(self._processes):
            word = self._node.reader(number)
            while not self._node.get(word):
                if process.poll() is not None or time.monotonic() > deadline:
                    status = process.returncode
                    raise FeedError(f"reader {number} did not start (status {status}); see stderr")
                self._node.wait(word, 0)

    @property
    def token(self) -> str:
        """Return the token for attach(); any means may carry the token to other processes."""
        process = os.getpid()
        return f"penstock-feed:{process}:{self._descriptor}:{_started(process)}"

    @property
    def n_active(self) -> int:
        """Return the number of readers in use now."""
        return self._node.get(ACTIVE)

    @property
    def processes(self) -> tuple[int, ...]:
        """Return the process numbers of the readers."""
        return tuple(process.pid for process in self._processes)

    def rank(self, rank: int) -> RankFeed:
        """Return the feed of a rank in the current process."""
        return attach(self.token, rank)

    def wait(self) -> None:
        """Wait until every attached rank of other processes has left or ended."""
        node, own = self._node, os.getpid()
        for place in range(len(self._terms.ranks)):
            while not node.get(node.gone(place)):
                process = node.get(node.process(place))
                if process in (0, own) or not is_alive(process):
                    break
                node.wait(node.gone(place), 0)

    def __repr__(self) -> str:
        request, ranks = self._terms.request, self._terms.ranks
        return (
            f"<NodeFeed of {described(self.index)}: batch_size={request.batch_size}, "
            f"shuffle={request.order.shuffle!r}, {len(ranks)} of {request.world_size} ranks, "
            f"{self._terms.n_readers} readers>"
        )

    def __enter__(self) -> NodeFeed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _dealt(n_ranks: int, readers: int | None, buffer_bytes: int) -> tuple[int, int]:
    """Return the number of readers and the bytes of a slot.

    Raises FeedError: an argument is out of range.
    """
    by_machine = min(n_ranks, len(os.sched_getaffinity(0)) // 2, MOST_READERS)
    n_readers = arguments.whole("readers", readers, 1, MOST_READERS, or_none=True)
    if n_readers is None:
        n_readers = min(max(FIRST_READERS, by_machine), (SLOTS - 1) * n_ranks)
    # A portion takes a third of a rank's part: one slot without its first page.
    least = 4 * PAGE * SLOTS * n_ranks
    buffer_bytes = arguments.whole("buffer_bytes", buffer_bytes)
    if buffer_bytes < least:
        raise FeedError(
            f"buffer_bytes={buffer_bytes} is too few for {n_ranks} ranks: {least:,} or more"
        )
    return n_readers, buffer_bytes // (n_ranks * SLOTS) // PAGE * PAGE


def _ranks_of_node(ranks: Sequence[int], world_size: int, shuffle: str) -> tuple[int, ...]:
    """Return the ranks of this node, checked.

    Raises FeedError: the ranks are no list, repeat, or do not fit the shuffle.
    """
    world_size = arguments.whole("world_size", world_size, 1, MOST_DEALT)
    try:
        if isinstance(ranks, str | bytes):  # a str is a sequence of letters
            raise TypeError(ranks)
        ranks = tuple(arguments.whole("rank", rank, 0, world_size - 1) for rank in ranks)
    except TypeError as error:
        said = arguments.shown(ranks)
        raise FeedError(f"ranks={said} is no list; it takes this node's, as range(8)") from error
    if not ranks or len(set(ranks)) < len(ranks):
        raise FeedError(f"ranks={list(ranks)} of {world_size}: name each of this node once")
    if shuffle == "cache-aware" and len(ranks) < world_size:
        raise FeedError(
            f"cache-aware with {len(ranks)} of {world_size} ranks: other nodes hold other "
            "records, and the order must be one; use Feed and set_held"
        )
    return ranks


def _end(node: Node, processes: list[subprocess.Popen[bytes]], descriptor: int, owner: int) -> None:
    if os.getpid() != owner:  # a fork of the owner ends: keep the readers
        return
    node.put(STOP, 1)
    for word in range(node.ready(len(node.terms.ranks), 0)):
        node.library.penstock_feed_add(node.word(word), 0)  # wakes waiting processes
    for process in processes:
        try:
            process.wait(4 * LOOK_MS / 1000)
        except subprocess.TimeoutExpired:  # the reader waits for an unresponsive disk
            process.kill()
            process.wait()
    os.close(descriptor)
