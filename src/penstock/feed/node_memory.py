"""Lay out the memory shared by a node's readers and ranks: head, words, slots, processes."""

from __future__ import annotations

import json
import mmap
import os
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from penstock.errors import FeedError
from penstock.feed import plan
from penstock.feed.feed import RankEpoch, Request, Stand, epoch_of
from penstock.feed.index import from_bytes
from penstock.feed.plan import Order, PartialEpoch, PortionLayout
from penstock.feed.read import Options, gap_for, library, table_of

__all__ = [
    "ACTIVE",
    "DONE",
    "FAILED",
    "FILLED",
    "HEAD",
    "HELD",
    "LOOK_MS",
    "MAGIC",
    "MOST_FAILURES",
    "PAGE",
    "SENTENCE_AT",
    "SLOTS",
    "SLOT_HEAD",
    "STOP",
    "TICKET",
    "WORDS",
    "Node",
    "Terms",
    "held_bytes",
    "is_alive",
]

MAGIC = b"PENSTNOD"
HEAD = struct.Struct("<8sQQQQ")  # magic, bytes of JSON, bytes of index; offset of words, of slots
PAGE = plan.PAGE_BYTES
SLOTS = 3  # portions per rank: a consumed, a ready and a filling portion
LOOK_MS = 500  # how often a waiting process looks for processes gone


# Words of 4 bytes, shared by all processes.  HELD and the next word: 1 + the epoch whose `held`
# bits are in the first and in the second area.
STOP, TICKET, DONE, ACTIVE, HELD = 0, 1, 2, 3, 4
WORDS = 6  # then per rank: consumed, is gone, process; per reader: process


# The first page of a slot: status, number of failures, failed records, error text.
FILLED, FAILED = 0, 1
SLOT_HEAD = struct.Struct("<II")
MOST_FAILURES = 256
SENTENCE_AT = SLOT_HEAD.size + 8 * MOST_FAILURES


@dataclass(frozen=True, slots=True)
class Terms:
    """The parameters agreed by the processes of a node, as stored in memory."""

    request: Request
    ranks: tuple[int, ...]
    n_readers: int
    is_tuned: bool
    stagger: int
    slot_bytes: int
    epoch: int
    steps: int
    history: tuple[PartialEpoch, ...]
    owner: int

    @property
    def portion_bytes(self) -> int:
        """Return the bytes for a portion's records: the slot without the first page."""
        return self.slot_bytes - PAGE

    def request_of(self, place: int) -> Request:
        return replace(self.request, rank=self.ranks[place])

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Terms:
        facts = json.loads(data)
        asked = facts["request"]
        asked["order"] = Order(**asked["order"])
        asked["options"] = Options(**asked["options"])
        facts["request"] = Request(**asked)
        facts["ranks"] = tuple(facts["ranks"])
        facts["history"] = tuple(
            PartialEpoch(plan.Deal(**part["deal"]), part["steps"]) for part in facts["history"]
        )
        return Terms(**facts)


class Node:
    """The shared memory, as mapped in a process."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        magic, text_bytes, index_bytes, words_at, slots_at = HEAD.unpack_from(self.memory)
        if magic != MAGIC:
            raise FeedError("this memory is no feed's; is the token of this program?")
        start = HEAD.size
        self.terms = Terms.from_bytes(self.memory[start : start + text_bytes])
        start += text_bytes
        whole = memoryview(self.memory)
        self.index = from_bytes(whole[start : start + index_bytes].toreadonly())
        self._table = table_of(self.index)
        self._gap_bytes = gap_for(self.index, self._table)
        self.bytes = np.frombuffer(self.memory, np.uint8)
        self.base = self.bytes.ctypes.data
        self.words_at, self.slots_at = words_at, slots_at
        self.library = library()

    # Words

    def word(self, number: int) -> int:
        address: int = self.base + self.words_at + 4 * number
        return address

    def get(self, number: int) -> int:
        return int(self.library.penstock_feed_load(self.word(number)))

    def put(self, number: int, value: int) -> None:
        self.library.penstock_feed_store(self.word(number), value)

    def add(self, number: int, value: int = 1) -> int:
        return int(self.library.penstock_feed_add(self.word(number), value))

    def wait(self, number: int, seen: int) -> bool:
        """Wait until a word changes; return False if LOOK_MS passed first."""
        return bool(self.library.penstock_feed_wait(self.word(number), seen, LOOK_MS) == 0)

    def consumed(self, place: int) -> int:
        return WORDS + 3 * place

    def gone(self, place: int) -> int:
        return WORDS + 3 * place + 1

    def process(self, place: int) -> int:
        return WORDS + 3 * place + 2

    def reader(self, number: int) -> int:
        return WORDS + 3 * len(self.terms.ranks) + number

    def ready(self, place: int, slot: int) -> int:
        n = WORDS + 3 * len(self.terms.ranks) + self.terms.n_readers
        return n + place * SLOTS + slot

    # Records in memory at the start of an epoch, for shuffle="cache-aware"

    def _held_at(self, epoch: int) -> slice:
        """Return the byte range of an epoch's `held` bits.

        Consecutive epochs use alternate areas.
        """
        size = held_bytes(self.terms.request, len(self.index))
        start = self.words_at + 4 * self.ready(len(self.terms.ranks), 0) + epoch % 2 * size
        return slice(start, start + size)

    def put_held(self, epoch: int, held: NDArray[np.bool_]) -> None:
        self.bytes[self._held_at(epoch)] = np.packbits(held)
        self.put(HELD + epoch % 2, epoch + 1)

    def held(self, epoch: int, look: Callable[[], None]) -> NDArray[np.bool_] | None:
        """Return a flag per record, as published by reader 0: in memory at the epoch's start.

        None: the shuffle is not "cache-aware".  look: called while waiting.  Raises FeedError: a
        later epoch has begun.
        """
        if self.terms.request.order.shuffle != "cache-aware":
            return None
        word = HELD + epoch % 2
        while (value := self.get(word)) != epoch + 1:
            if value > epoch + 1:
                raise FeedError(f"epoch {epoch} is over for all ranks but this one; begin again")
            self.wait(word, value)
            look()
        return np.unpackbits(self.bytes[self._held_at(epoch)])[: len(self.index)].astype(bool)

    # Slots

    def slot(self, place: int, slot: int) -> NDArray[np.uint8]:
        """Return a slot: a page of status, then the records."""
        start = self.slots_at + (place * SLOTS + slot) * self.terms.slot_bytes
        return self.bytes[start : start + self.terms.slot_bytes]

    def stand(self) -> Stand:
        return Stand(self.terms.epoch, self.terms.steps, self.terms.history)

    def plan(self, place: int, stand: Stand) -> RankEpoch:
        return epoch_of(self.index, self.request(place), stand)

    def request(self, place: int) -> Request:
        return self.terms.request_of(place)

    def layout(self, records: NDArray[np.int64]) -> PortionLayout:
        """Return a portion's layout, equal in the reader of the portion and in the rank."""
        options = self.terms.request.options
        # Do not use Reader's adaptive gap: the gap depends on earlier reads, so reader and rank
        # would disagree.
        gap = self._gap_bytes if options.gap_bytes is None else options.gap_bytes
        return plan.fitted(
            self._table, records, options.coalesce_bytes, gap, self.terms.portion_bytes
        )


def held_bytes(request: Request, n_records: int) -> int:
    """Return the bytes of an epoch's `held` bits: a bit per record."""
    return -(-n_records // 8) if request.order.shuffle == "cache-aware" else 0


def is_alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not count as running."""
    try:
        text = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")
