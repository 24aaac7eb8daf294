"""Sort checkpoints by age, and so find the newest save.

The step decides, as a clock may have been set back; with `epoch_2/step_50` the epoch decides first.
A training may go back to an older checkpoint and save lower steps again: a save that was written
after all higher steps had been copied is newer than the higher steps.  The module knows names,
times and the marks of copies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.save.checkpoint import Checkpoint

__all__ = ["Count", "counts_of", "newest_first", "without_epoch"]

# Epoch and step of a checkpoint; -1: none.
Count = tuple[int, int]
_NONE: Count = (-1, -1)
_EPOCH = re.compile(r"(?:^|[^A-Za-z])(?:epoch|ep)s?[-_=]?(\d{1,9})(?!\d)", re.IGNORECASE)
# Most saves to compare with all other saves of the turn.  If more saves are out of order, the times
# are no evidence.
MOST_OUT_OF_ORDER = 1000


def newest_first(
    checkpoints: Iterable[Checkpoint], others: Iterable[Checkpoint] = ()
) -> list[Checkpoint]:
    """Sort by turn, epoch and step; equal steps, and checkpoints without a step, by time.

    A turn begins where the training went back.  others: copies of the checkpoints.
    """
    rows = list(checkpoints)
    counts = counts_of(rows)
    turns = _turns_of(rows, counts, [*rows, *others])
    return sorted(
        rows,
        key=lambda checkpoint: (
            turns.get(id(checkpoint), 0),
            counts[id(checkpoint)],
            checkpoint.mtime_ns,
            checkpoint.name,
        ),
        reverse=True,
    )


def counts_of(rows: Sequence[Checkpoint]) -> dict[int, Count]:
    """Return epoch and step of each checkpoint, by id().  Epochs count only if every checkpoint
    with a step has an epoch: else a comparison of epochs means nothing."""
    stepped = [checkpoint for checkpoint in rows if checkpoint.step is not None]
    epochs = [_epoch_of(checkpoint) for checkpoint in stepped]
    if None in epochs:
        epochs = [-1] * len(stepped)
    counts = dict.fromkeys(map(id, rows), _NONE)
    for checkpoint, epoch in zip(stepped, epochs, strict=True):
        counts[id(checkpoint)] = (-1 if epoch is None else epoch, checkpoint.step or 0)
    return counts


def _epoch_of(checkpoint: Checkpoint) -> int | None:
    """Return the epoch in a checkpoint's path; None: none, or the epoch is the step."""
    *folders, last = (checkpoint.called or checkpoint.name).split("/")
    if match := _EPOCH.search(last):
        rest = last[: match.start(1)] + last[match.end(1) :]
        has_step = any(int(number[:18]) == checkpoint.step for number in re.findall(r"\d+", rest))
        return int(match[1]) if has_step else None
    for folder in reversed(folders):
        if match := _EPOCH.search(folder):
            return int(match[1])
    return None


def without_epoch(folder: str) -> str:
    """Return a folder's path, equal for all epochs of a training."""
    return _EPOCH.sub(lambda match: match[0].replace(match[1], "#"), folder)


def _turns_of(
    rows: Sequence[Checkpoint], counts: dict[int, Count], copies: Iterable[Checkpoint]
) -> dict[int, int]:
    """Return the turn of each checkpoint with a step, by id()."""
    copied = _copied_ns(copies)
    if not copied:
        return {}
    stepped = sorted(
        (checkpoint for checkpoint in rows if checkpoint.step is not None and checkpoint.mtime_ns),
        key=lambda checkpoint: (checkpoint.mtime_ns, counts[id(checkpoint)]),
    )
    turns, turn, left = dict[int, int](), 0, MOST_OUT_OF_ORDER
    members, highest, latest = list[tuple[Count, float]](), _NONE, 0.0
    for checkpoint in stepped:
        count = counts[id(checkpoint)]
        if count < highest and left:
            is_back = latest < checkpoint.mtime_ns
            if not is_back:
                left -= 1
                is_back = all(at < checkpoint.mtime_ns for other, at in members if other > count)
            if is_back:
                turn, highest, latest = turn + 1, _NONE, 0.0
                members.clear()
        at = copied.get(checkpoint.identity, math.inf)
        members.append((count, at))
        highest, latest = max(highest, count), max(latest, at)
        turns[id(checkpoint)] = turn
    return turns


def _copied_ns(copies: Iterable[Checkpoint]) -> dict[str, float]:
    """Return the time at which each checkpoint had been copied, in ns, by the identity of the copy
    and by the identity of the source."""
    times = dict[str, float]()
    for copy in copies:
        manifest = copy.manifest
        if manifest is None or not manifest.verified_unix_ns or copy.problem:
            continue
        for identity in filter(None, (manifest.source, manifest.identity)):
            times[identity] = float(manifest.verified_unix_ns)
    return times
