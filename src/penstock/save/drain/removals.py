"""Remove the checkpoints given up by a framework, as by Lightning's save_top_k, without a loss.

A framework counts the written checkpoints, not the copied checkpoints.  With one checkpoint to keep
and a slow tier that lags, an immediate removal would take the only checkpoint able to survive the
node, while the newer checkpoint is not copied yet.  For this reason a removal is noted on the fast
tier, and the drain carries out the removal: on the slow tier after a newer checkpoint is verified
there, on the fast tier as soon as a newer checkpoint is on either tier.
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
from penstock.save.drain.retention import remove
from penstock.save.find.formats import find
from penstock.save.unit.order import newest_first
from penstock.save.verify import verify

__all__ = ["Removals"]

FOLDER = f"{STATE}/removed"
NOTE_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class _Note:
    """A note about a checkpoint to be removed.  name: on the fast tier.  identities: of the
    checkpoint and, for a copy, of the source."""

    name: str
    identities: tuple[str, ...]
    file: str = field(compare=False)

    def means(self, checkpoint: Checkpoint) -> bool:
        return not set(_marks(checkpoint)).isdisjoint(self.identities)


class Removals:
    """The notes on the fast tier.  Each note is a separate file, so that two processes may write
    and remove notes."""

    def __init__(
        self, fast: LocalStore, slow: Store, look: Callable[[], None] = lambda: None
    ) -> None:
        """Keep the notes of two tiers.  look: raises TierError if the slow tier is absent; without
        look(), an empty mount point would look like a tier without checkpoints."""
        self._fast, self._slow, self._look = fast, slow, look
        self._on_slow: Sequence[Checkpoint] = ()
        self._judged: set[_Note] = set()  # notes compared with the slow tier

    def note(self, name: str) -> bool:
        """Note that the checkpoint of this name may be removed.  No note is made for a checkpoint
        that only the slow tier has, copied from the fast tier of another run.  Return False if
        neither tier has the checkpoint.  Raises TierError."""
        for store in (self._fast, self._slow):
            for checkpoint in find(store):
                if checkpoint.name != name:
                    continue
                origin = checkpoint.manifest.origin if checkpoint.manifest is not None else ""
                if store is self._fast or origin in ("", *origins(self._fast)):
                    row = {"name": name, "identities": _marks(checkpoint)}
                    self._fast.put(f"{FOLDER}/{time.time_ns()}.json", [json.dumps(row).encode()])
                return True
        return False

    def saw(self, on_slow: Sequence[Checkpoint]) -> None:
        """Remember the checkpoints found on the slow tier."""
        self._on_slow = [checkpoint for checkpoint in on_slow if _is_verified(checkpoint)]

    def _notes(self) -> list[_Note]:
        notes: list[_Note] = []
        try:
            there = list(self._fast.list(FOLDER))
        except TierError as error:
            if is_of_one_file(error):  # nothing is removed, and the copies continue
                return notes
            raise
        for file in there:
            with suppress(TierError, ValueError, TypeError, KeyError, RecursionError):
                row = json.loads(self._fast.read(file.name, 0, NOTE_BYTES))
                identities = tuple(str(identity) for identity in row["identities"])
                notes.append(_Note(str(row["name"]), identities, file.name))
        return notes

    def is_over(self, checkpoint: Checkpoint) -> bool:
        """Return True if nobody needs the copy under way: the checkpoint may be removed, and the
        last look at the slow tier found a newer verified checkpoint."""
        notes = self._notes()
        is_noted = any(note.means(checkpoint) for note in notes)
        return is_noted and bool(_newer(checkpoint, self._on_slow, notes))

    def carry_out(self, is_new: bool = True) -> None:
        """Carry out the removals between two copies.  is_new: the slow tier may have a new
        checkpoint.  Raises TierError."""
        notes = self._notes()
        self.thin(notes=notes)
        if not notes or (not is_new and set(notes) <= self._judged):
            return
        self._look()
        on_slow = find(self._slow)
        self.saw(on_slow)
        for note in notes:
            there = [checkpoint for checkpoint in on_slow if note.means(checkpoint)]
            gone = [
                checkpoint
                for checkpoint in there
                if self._is_replaced(checkpoint, notes) and _is_removed(checkpoint)
            ]
            if len(gone) == len(there) and not any(map(note.means, find(self._fast))):
                self._fast.delete(note.file)
        self._judged = set(notes)

    def thin(self, current: Checkpoint | None = None, notes: Sequence[_Note] = ()) -> None:
        """Carry out the removals on the fast tier, also during a copy of `current`.  `current`
        stays to the end of the copy: otherwise a drain slower than the saves would never end a
        copy.  Raises TierError."""
        notes = notes or self._notes()
        if not notes:
            return
        on_fast = [checkpoint for checkpoint in find(self._fast) if not checkpoint.problem]
        for checkpoint in on_fast:
            is_current = current is not None and checkpoint.identity == current.identity
            is_noted = any(note.means(checkpoint) for note in notes)
            if (
                is_noted
                and not is_current
                and _newer(checkpoint, [*on_fast, *self._on_slow], notes)
            ):
                _is_removed(checkpoint)

    def _is_replaced(self, checkpoint: Checkpoint, notes: Sequence[_Note]) -> bool:
        """Return True if a newer checkpoint is still whole on the slow tier.  The sizes are checked
        again."""
        return any(
            verify(other, "sizes").is_whole for other in _newer(checkpoint, self._on_slow, notes)
        )


def _is_removed(checkpoint: Checkpoint) -> bool:
    """Remove a checkpoint.  Return False if the checkpoint stays.  An error of a single
    file does not stop the other removals.  Raises TierError: another error."""
    try:
        return remove(checkpoint)
    except TierError as error:
        if is_of_one_file(error):
            return False
        raise


def _marks(checkpoint: Checkpoint) -> list[str]:
    source = checkpoint.manifest.source if checkpoint.manifest is not None else ""
    return [mark for mark in (checkpoint.identity, source) if mark]


def _is_verified(checkpoint: Checkpoint) -> bool:
    """Return True if the drain has verified the copy."""
    return (
        not checkpoint.problem
        and checkpoint.manifest is not None
        and bool(checkpoint.manifest.verified_unix_ns)
    )


def _newer(
    checkpoint: Checkpoint, others: Iterable[Checkpoint], notes: Sequence[_Note]
) -> list[Checkpoint]:
    """Return the remaining checkpoints that a restart would prefer to this checkpoint."""
    return [
        other
        for other in others
        if newest_first([checkpoint, other])[0] is other
        and not (
            any(note.means(other) for note in notes) or set(_marks(checkpoint)) & set(_marks(other))
        )
    ]
