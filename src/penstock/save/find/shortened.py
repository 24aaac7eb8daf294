"""Find files that nothing can check and that are much shorter than in the saves before.

A program that was killed in its last write leaves such a file.  The module knows names and lengths,
and opens a file only after a comparison of lengths.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import closing

from penstock.errors import PenstockError
from penstock.places.stores import StoredFile
from penstock.save.check.foreign import Damage, Scope
from penstock.save.check.judges import check_file
from penstock.save.checkpoint import SHORTENED, Checkpoint, line_of

__all__ = ["with_shortened"]

# The contents of a training change their length little from save to save; compressed contents by a
# few per cent.
SHORT_SHARE = 0.9
MOST_EARLIER = 4  # saves to compare with, as for missing files
# Files whose length the index of the format states: `verify` finds a file that was cut short.
_TOLD = {
    "orbax": re.compile(r"(?:^|/)(?:manifest\.ocdbt$|d/|ocdbt_[^/]+/)"),
    "tensorflow": re.compile(r"\.index$|\.data-\d+-of-\d+$"),
    "savedmodel": re.compile(r"^variables/variables\."),
}


def with_shortened(
    checkpoints: Iterable[Checkpoint], others: Iterable[Checkpoint] = ()
) -> dict[int, str]:
    """Return doubts by id of checkpoint, for checkpoints without a manifest and with a file that is
    shorter than SHORT_SHARE of its length in each earlier save.  Files with a format that shows the
    length are not compared here."""
    checkpoints = list(checkpoints)
    lines = defaultdict[tuple[str, ...], list[Checkpoint]](list)
    for checkpoint in (*checkpoints, *others):
        if not checkpoint.problem:
            lines[_line_of(checkpoint)].append(checkpoint)
    said = dict[int, str]()
    for checkpoint in checkpoints:
        line = (
            lines[_line_of(checkpoint)]
            if checkpoint.manifest is None and not checkpoint.problem
            else ()
        )
        if len(line) > 1 and (why := _shortened(checkpoint, _earlier(checkpoint, line))):
            said[id(checkpoint)] = why
    return said


def _line_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    return (
        line_of(checkpoint)
        if checkpoint.step is not None
        else ("", checkpoint.called or checkpoint.name)
    )


def _earlier(checkpoint: Checkpoint, line: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the last saves before a checkpoint, newest first, each once."""
    marks, rows = {checkpoint.identity}, list[Checkpoint]()
    for other in sorted(line, key=lambda other: other.mtime_ns, reverse=True):
        source = other.manifest.source if other.manifest is not None else ""
        if other.mtime_ns <= checkpoint.mtime_ns and marks.isdisjoint(
            (other.identity, source or "-")
        ):
            rows.append(other)
        marks |= {other.identity, source} - {""}
    return rows[:MOST_EARLIER]


def _shortened(checkpoint: Checkpoint, earlier: Sequence[Checkpoint]) -> str:
    if not earlier:
        return ""
    lengths = [_lengths_of(other) for other in earlier]
    for file in checkpoint.files:
        key = _key_of(checkpoint.inner(file))
        least = min((lengths_of.get(key, 0) for lengths_of in lengths), default=0)
        if file.size_bytes < SHORT_SHARE * least and _is_uncheckable(checkpoint, file):
            name = checkpoint.inner(file)
            n_saves = f"{len(earlier)} saves" if len(earlier) > 1 else "the save"
            return (
                f"{name} has {file.size_bytes:,} bytes, and {least:,} or more in "
                f"{n_saves} before: {SHORTENED}"
            )
    return ""


def _key_of(name: str) -> str:
    """Return a name that is equal in each save of a training."""
    return re.sub(r"\d+", "#", name)


def _lengths_of(checkpoint: Checkpoint) -> dict[str, int]:
    """Return the length of the shortest file of each key."""
    if checkpoint.manifest is not None:
        rows = [(name, made.size_bytes) for name, made in checkpoint.manifest.by_saved_name.items()]
    else:
        rows = [(checkpoint.inner(file), file.size_bytes) for file in checkpoint.files]
    lengths = dict[str, int]()
    for name, size_bytes in rows:
        key = _key_of(name)
        lengths[key] = min(size_bytes, lengths.get(key, size_bytes))
    return lengths


def _is_uncheckable(checkpoint: Checkpoint, file: StoredFile) -> bool:
    """Return True if neither the file's format nor an index shows the length."""
    scope = Scope("sizes", random.Random(0), lambda n_bytes: None)
    name = checkpoint.inner(file)
    if checkpoint.kind in _TOLD and _TOLD[checkpoint.kind].search(name):
        return False
    try:
        with closing(checkpoint.store.open(file.name)) as opened:
            check_file(opened, name, file.size_bytes, scope)
    except (Damage, PenstockError, OSError):  # the check of the whole checkpoint reports the damage
        return False
    return name in scope.unchecked
