"""Run a reader process of a node: fill portions in the memory shared by ranks."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed.feed import Stand
from penstock.feed.node_memory import (
    ACTIVE,
    DONE,
    FAILED,
    FILLED,
    HELD,
    MOST_FAILURES,
    PAGE,
    SENTENCE_AT,
    SLOT_HEAD,
    SLOTS,
    STOP,
    TICKET,
    Node,
    is_alive,
)
from penstock.feed.read import Reader, held_in_memory

__all__ = ["Readers", "serve"]

WORTH_A_READER = 0.95  # fewer readers with so much of the best rate are enough
JUDGED_PORTIONS = 8  # per reader, before the number of readers is judged


@dataclass(frozen=True, slots=True)
class Readers:
    """The number of active readers of a node: halved while throughput stays nearly unchanged.

    tried: (readers, portions per second).  active: the number being measured, or the final number.
    """

    active: int
    is_settled: bool = False
    tried: tuple[tuple[int, float], ...] = ()

    def after(self, portions_hz: float) -> Readers:
        """Return the state after a measurement with `active` readers."""
        if self.is_settled:
            return self
        tried = (*self.tried, (self.active, portions_hz))
        best = max(hz for _, hz in tried)
        enough = [n for n, hz in tried if hz >= WORTH_A_READER * best]
        if self.active > 1 and portions_hz >= WORTH_A_READER * best:
            return Readers(self.active // 2, tried=tried)
        return Readers(min(enough), is_settled=True, tried=tried)


def serve(descriptor: int, number: int) -> None:
    """Run a reader process until a stop request or the owner's end."""
    node = Node(descriptor)
    owner = os.getppid()
    if owner != node.terms.owner:
        return  # the owner ended during start
    reader = Reader(node.index, node.terms.request.options)
    with suppress(FeedError):  # a later read reports the error
        reader.open()  # opens equal files in all readers, before any change
    node.put(node.reader(number), os.getpid())
    with suppress(_Ended):
        _Server(node, number, owner, reader).run()


class _Ended(Exception):  # noqa: N818 - it is no error: the reading is over
    """No process needs this reader any more."""


class _Server:
    """One reader process: takes a ticket, waits for the slot, fills the slot."""

    def __init__(self, node: Node, number: int, owner: int, reader: Reader) -> None:
        self.node = node
        self.number = number
        self.owner = owner
        self.reader = reader
        self.stand = node.stand()
        self.base = 0  # the first ticket of the epoch
        self.begun = [0] * len(node.terms.ranks)  # portions of each rank in earlier epochs
        self.over = list(self.begun)  # portions up to the epoch before the previous
        self.tuner = Readers(node.terms.n_readers, is_settled=not node.terms.is_tuned)
        self.judged: tuple[int, float] | None = (
            None  # start of the measurement: portions done, time
        )
        self._plan_epoch()

    def _plan_epoch(self) -> None:
        node = self.node
        if self.number == 0:
            self._say_held()
        self.stand = replace(self.stand, held=node.held(self.stand.epoch, self._look))
        places = range(len(node.terms.ranks))
        self.plans = [node.plan(place, self.stand) for place in places]
        # Order tickets by each portion's first batch.  Ranks in step then never wait for a portion
        # behind another rank's portion without a free slot.  Portion numbers would not work:
        # portions hold different numbers of batches per rank.
        begins = sorted(
            (begin, place, portion)
            for place, part in enumerate(self.plans)
            for portion, begin in enumerate(part.edges[:-1].tolist())
        )
        self.tickets = [(place, portion) for _, place, portion in begins]

    def _say_held(self) -> None:
        """Publish the records in memory now to all processes, unless a state has done so."""
        node, epoch = self.node, self.stand.epoch
        is_asked = node.terms.request.order.shuffle == "cache-aware"
        if not is_asked or node.get(HELD + epoch % 2) == epoch + 1:
            return
        for place, portions in enumerate(self.over):  # ranks that may still read the old bits
            while (consumed := node.get(node.consumed(place))) < portions:
                if self._is_gone(place):
                    break
                node.wait(node.consumed(place), consumed)
                self._look()
        try:
            held = held_in_memory(node.index)
        except FeedError:  # a later read reports the error
            held = None
        node.put_held(epoch, np.zeros(len(node.index), bool) if held is None else held)

    def run(self) -> None:
        node = self.node
        while True:
            while self.number >= (active := node.get(ACTIVE)):
                node.wait(ACTIVE, active)
                self._look()
            self._look()
            ticket = node.add(TICKET)
            while ticket - self.base >= len(self.tickets):
                self._next_epoch()
            place, portion = self.tickets[ticket - self.base]
            self._fill(ticket, place, portion)
            node.add(DONE)
            if self.number == 0 and not self.tuner.is_settled:
                self._tune()

    def _next_epoch(self) -> None:
        is_whole = not self.stand.steps and not self.stand.history
        if not self.tickets and is_whole:
            raise _Ended  # no rank has a batch in a whole epoch
        self.base += len(self.tickets)
        self.over = list(self.begun)
        for place, part in enumerate(self.plans):
            self.begun[place] += part.n_portions
        self.stand = Stand(self.stand.epoch + 1)
        self._plan_epoch()

    def _fill(self, ticket: int, place: int, portion: int) -> None:
        node = self.node
        number = self.begun[place] + portion  # number since the rank's start
        stagger = node.terms.stagger
        while stagger and ticket - (done := node.get(DONE)) >= stagger:
            node.wait(DONE, done)
            self._look()
        while number - (consumed := node.get(node.consumed(place))) >= SLOTS:
            if self._is_gone(place):
                return
            node.wait(node.consumed(place), consumed)
            self._look()
        if node.get(node.gone(place)):
            return
        slot = node.slot(place, number % SLOTS)
        try:
            self._read(self.plans[place].portion(portion), slot)
        except FeedError as error:
            sentence_of(slot, FAILED, [], str(error))
        except Exception as error:  # the waiting rank gets the error; other ranks continue
            sentence_of(slot, FAILED, [], f"reader {self.number}: {error!r}; please report it")
        node.put(node.ready(place, number % SLOTS), number + 1)

    def _read(self, records: NDArray[np.int64], slot: NDArray[np.uint8]) -> None:
        layout = self.node.layout(records)
        room = self.node.terms.portion_bytes
        if layout.room > room:  # the rank has refused its own plan
            raise FeedError(
                f"{self.node.index.path}: {len(records):,} records need {layout.room:,} bytes, a "
                f"portion may have {room:,}: raise buffer_bytes, or lower batch_size"
            )
        loaded = self.reader.confirmed(self.reader.read(records, slot[PAGE:], layout))
        failed = loaded.failures
        if failed and self.node.terms.request.on_error == "raise":
            raise FeedError(failed[0].why)
        if len(failed) > MOST_FAILURES:
            raise FeedError(f"{failed[0].why}; and {len(failed) - 1:,} more of one portion")
        numbers = [failure.record for failure in failed]
        sentence_of(slot, FILLED, numbers, failed[0].why if failed else "")

    def _look(self) -> None:
        """Raise _Ended if no process needs this reader."""
        node = self.node
        if node.get(STOP) or os.getppid() != self.owner:
            raise _Ended
        if all(node.get(node.gone(place)) for place in range(len(node.terms.ranks))):
            raise _Ended

    def _is_gone(self, place: int) -> bool:
        """Return whether a rank has left, or has attached and ended."""
        node = self.node
        process = node.get(node.process(place))
        if process and not node.get(node.gone(place)) and not is_alive(process):
            node.put(node.gone(place), 1)
        return bool(node.get(node.gone(place)))

    def _tune(self) -> None:
        node, now_s = self.node, time.monotonic()
        now = node.get(DONE)
        if self.judged is None:
            # Before the first rank consumes, readers wait for ranks: the rate would not be the
            # readers'.
            if any(node.get(node.consumed(place)) for place in range(len(node.terms.ranks))):
                self.judged = (now, now_s)
            return
        done, since = self.judged
        if now - done < JUDGED_PORTIONS * self.tuner.active:
            return
        self.tuner = self.tuner.after((now - done) / max(now_s - since, 1e-9))
        self.judged = (now, now_s)
        node.put(ACTIVE, self.tuner.active)


def sentence_of(slot: NDArray[np.uint8], status: int, failed: list[int], why: str) -> None:
    head = bytearray(PAGE)
    SLOT_HEAD.pack_into(head, 0, status, len(failed))
    numbers = np.array(failed, "<i8").tobytes()
    head[SLOT_HEAD.size : SLOT_HEAD.size + len(numbers)] = numbers
    text = why.encode()[: PAGE - SENTENCE_AT - 1]
    head[SENTENCE_AT : SENTENCE_AT + len(text)] = text
    slot[:PAGE] = np.frombuffer(head, np.uint8)
