"""What a framework says may go, as Lightning's save_top_k does, goes without a loss.

The framework counts what it has written, and not what has arrived: with one checkpoint to keep and
a slow tier that lags, the only one that survives the node would go for one that does not yet.  So a
removal is noted on the fast tier, and carried out by the drain: on the slow tier once a newer one
is verified there, on the fast one once a newer one is anywhere.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.errors import TierError
from penstock.places.stores import LocalStore, Store
from penstock.save.checkpoint import Checkpoint, is_of_one_file, origins
from penstock.save.commit import STATE
from penstock.save.formats import find
from penstock.save.order import newest_first
from penstock.save.retention import remove
from penstock.save.verify import verify

__all__ = ["Removals"]

FOLDER = f"{STATE}/removed"
NOTE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class _Note:
    """name: on the fast tier.  identities: of it, and of what it is a copy of."""

    name: str
    identities: tuple[str, ...]
    file: str = field(compare=False)

    def means(self, one: Checkpoint) -> bool:
        return not set(_marks(one)).isdisjoint(self.identities)


class Removals:
    """Notes on the fast tier, one file each, so that two processes may write and remove them."""

    def __init__(
        self, fast: LocalStore, slow: Store, look: Callable[[], None] = lambda: None
    ) -> None:
        """look: raises TierError where the slow tier is not there: in its mount point, nothing is
        left to remove."""
        self._fast, self._slow, self._look = fast, slow, look
        self._on_slow: Sequence[Checkpoint] = ()
        self._judged: set[_Note] = set()  # what the slow tier was asked about

    def note(self, name: str) -> bool:
        """The checkpoint of this name may go; on the slow tier it is left where it came from
        another run's fast one.  False: neither tier has one.  Raises TierError."""
        for store in (self._fast, self._slow):
            for one in find(store):
                if one.name != name:
                    continue
                origin = one.manifest.origin if one.manifest is not None else ""
                if store is self._fast or origin in ("", *origins(self._fast)):
                    row = {"name": name, "identities": _marks(one)}
                    self._fast.put(f"{FOLDER}/{time.time_ns()}.json", [json.dumps(row).encode()])
                return True
        return False

    def saw(self, on_slow: Sequence[Checkpoint]) -> None:
        """What the slow tier was found to have."""
        self._on_slow = [one for one in on_slow if _is_verified(one)]

    def _notes(self) -> list[_Note]:
        notes: list[_Note] = []
        try:
            there = list(self._fast.list(FOLDER))
        except TierError as error:
            if is_of_one_file(error):  # what may go stays; what is to be copied is not kept by it
                return notes
            raise
        for found in there:
            with suppress(TierError, ValueError, TypeError, KeyError, RecursionError):
                row = json.loads(self._fast.read(found.name, 0, NOTE_BYTES))
                identities = tuple(str(one) for one in row["identities"])
                notes.append(_Note(str(row["name"]), identities, found.name))
        return notes

    def is_over(self, one: Checkpoint) -> bool:
        """Whether nobody needs the copy that is being made of it: it may go, and a newer one was
        verified on the slow tier when that was looked at last."""
        notes = self._notes()
        is_noted = any(note.means(one) for note in notes)
        return is_noted and bool(_newer(one, self._on_slow, notes))

    def carry_out(self, is_new: bool = True) -> None:
        """Between two copies.  is_new: the slow tier may have something that it had not before.
        Raises TierError."""
        notes = self._notes()
        self.thin(notes=notes)
        if not notes or (not is_new and set(notes) <= self._judged):
            return
        self._look()
        on_slow = find(self._slow)
        self.saw(on_slow)
        for note in notes:
            there = [one for one in on_slow if note.means(one)]
            gone = [one for one in there if self._is_replaced(one, notes) and _is_removed(one)]
            if len(gone) == len(there) and not any(map(note.means, find(self._fast))):
                self._fast.delete(note.file)
        self._judged = set(notes)

    def thin(self, current: Checkpoint | None = None, notes: Sequence[_Note] = ()) -> None:
        """The fast tier's part, also beside a copy of `current`, which stays to its end: else a
        drain slower than the saves would never end one.  Raises TierError."""
        notes = notes or self._notes()
        if not notes:
            return
        on_fast = [one for one in find(self._fast) if not one.problem]
        for one in on_fast:
            is_current = current is not None and one.identity == current.identity
            is_noted = any(note.means(one) for note in notes)
            if is_noted and not is_current and _newer(one, [*on_fast, *self._on_slow], notes):
                _is_removed(one)

    def _is_replaced(self, one: Checkpoint, notes: Sequence[_Note]) -> bool:
        """By a newer one that is on the slow tier still, looked at again."""
        return any(verify(other, "sizes").is_whole for other in _newer(one, self._on_slow, notes))


def _is_removed(one: Checkpoint) -> bool:
    """False: it stays.  One that cannot go keeps no other on the fast tier.  Raises TierError."""
    try:
        return remove(one)
    except TierError as error:
        if is_of_one_file(error):
            return False
        raise


def _marks(one: Checkpoint) -> list[str]:
    source = one.manifest.source if one.manifest is not None else ""
    return [mark for mark in (one.identity, source) if mark]


def _is_verified(one: Checkpoint) -> bool:
    """The drain has compared it."""
    return not one.problem and one.manifest is not None and bool(one.manifest.verified_unix_ns)


def _newer(
    one: Checkpoint, others: Iterable[Checkpoint], notes: Sequence[_Note]
) -> list[Checkpoint]:
    """Those that stay and that a restart would take before it."""
    return [
        other
        for other in others
        if newest_first([one, other])[0] is other
        and not (any(note.means(other) for note in notes) or set(_marks(one)) & set(_marks(other)))
    ]
