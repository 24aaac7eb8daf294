"""Choose the checkpoints to remove from a tier, and make room for the next checkpoint.

`doomed_*` and `plan` judge and change nothing; `prune` removes the chosen checkpoints.  Three
promises stand above every rule.  The fast tier gives up only checkpoints verified on the slow tier.
The last whole checkpoint stays, where whole means read in full.  Checkpoints that Penstock did not
commit or drain are not removed.  A checkpoint from which a restart has failed counts for no rule:
the job continues from an older checkpoint, and the next saves have lower steps.
"""

import errno
import logging
import math
import numbers
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from penstock.errors import SaveError, TierError, TierFull
from penstock.places.stores import LocalStore, Store, StoredFile, beside
from penstock.save.checkpoint import (
    HALF,
    INCOMPLETE,
    Checkpoint,
    is_of_one_file,
    line_of,
    origins,
    own_and_others,
)
from penstock.save.commit import discard, discard_as_found
from penstock.save.find.formats import find, remains_of
from penstock.save.find.links import is_link, is_linked, targets_of_links
from penstock.save.find.steps import rows_at_once
from penstock.save.find.usual import LEAST_SAVES, is_doubted, of_equal_number
from penstock.save.unit.folders import place_of
from penstock.save.unit.names import number_of_folder
from penstock.save.unit.order import Count, counts_of, newest_first
from penstock.save.unit.shapes import shape_of
from penstock.save.unit.shared import of_two_saves_by_state
from penstock.save.verify import failure_of, remembered, verify

__all__ = [
    "ON_FULL",
    "Keep",
    "Proven",
    "Pruned",
    "as_full",
    "doomed_on_fast",
    "doomed_on_slow",
    "doomed_safely",
    "full_said",
    "is_by_itself",
    "make_room",
    "own_copies",
    "plan",
    "prune",
    "remove",
]

ON_FULL = ("wait", "skip", "direct")
LOOK_S = 0.5  # between two looks of a save waiting for room
MAY_GO_ON_S = 600.0  # after the last write, a save without a step may get more files
TOLD_AFTER_S = 5.0  # of waiting for room

log = logging.getLogger("penstock.save")


@dataclass(frozen=True, slots=True)
class Keep:
    """The rules for the checkpoints to keep on each tier.

    fast: the number of newest checkpoints to keep on the fast tier, drained or not.  On the slow
    tier, last: the number of newest checkpoints to keep; every: keep also each checkpoint with a
    step that is a multiple of `every`; best, best_n: keep also the best_n best checkpoints by a
    metric of the manifest, such as "loss" (small is good) or "-accuracy" (large is good).

    None for `last` keeps all checkpoints on the slow tier.  A checkpoint without a step, such as a
    Trainer's last model, is not counted on the slow tier; only a newer copy with an equal name
    replaces the checkpoint.  foreign: checkpoints of other programs may also be removed from the
    fast tier, after a verification on the slow tier.
    """

    fast: int = 2
    last: int | None = None
    every: int = 0
    best: str = ""
    best_n: int = 1
    foreign: bool = False

    def __post_init__(self) -> None:
        for name, least in (("fast", 0), ("last", 1), ("every", 0), ("best_n", 1)):
            value = getattr(self, name)
            if name == "last" and value is None:
                continue
            is_whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
            if not is_whole or value < least:
                raise SaveError(f"Keep({name}={value!r}): a whole number, {least} or more")
        if not isinstance(self.best, str) or (self.best and not self.best.lstrip("-")):
            raise SaveError(
                f"Keep(best={self.best!r}): the name of a metric, as 'loss' (small is good) or "
                "'-accuracy' (large is good)"
            )
        if not isinstance(self.foreign, bool):
            raise SaveError(f"Keep(foreign={self.foreign!r}): True or False")


@dataclass(frozen=True, slots=True)
class Pruned:
    """The removed checkpoints: names by tier, and the freed bytes."""

    fast: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    freed_bytes: int = 0


class Proven:
    """Remember the checkpoints that this process has read in full.  Each checkpoint is read
    once."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], bool] = {}

    def note(self, where: str, identity: str) -> None:
        """Note that a checkpoint was read and is whole."""
        self._found[where, identity] = True

    def knows(self, checkpoint: Checkpoint) -> bool:
        return self._found.get((checkpoint.where, checkpoint.identity), False)

    def is_whole(self, checkpoint: Checkpoint) -> bool:
        key = (checkpoint.where, checkpoint.identity)
        if key in self._found:
            return self._found[key]
        verdict = verify(checkpoint, "full")
        # A read error may pass: the checkpoint is read again next time.
        if not any("cannot be read" in problem for problem in verdict.problems):
            self._found[key] = verdict.is_whole
        return verdict.is_whole


def doomed_on_slow(
    checkpoints: Sequence[Checkpoint], keep: Keep, failed: Mapping[str, str] | None = None
) -> list[Checkpoint]:
    """Return the checkpoints that the rules do not keep on the slow tier, newest first.

    failed: failed restarts, in the form of verify.failure_of.  Checkpoints with a failed restart
    are not counted, and are removed together with the checkpoints older than a newer good
    checkpoint.

    A checkpoint without a step counts for no rule.  A newer good checkpoint with an equal name from
    the same fast tier, possibly as a copy NAME.2, replaces the checkpoint.
    """
    if keep.last is None:
        return []
    failed = failed or {}
    ours = [
        checkpoint
        for checkpoint in newest_first(checkpoints)
        if checkpoint.is_ours and not checkpoint.problem
    ]
    steps = [checkpoint for checkpoint in ours if checkpoint.step is not None]
    good = [checkpoint for checkpoint in steps if _counts(checkpoint, failed)]
    stepless = [checkpoint for checkpoint in ours if checkpoint.step is None]
    return _doomed_by_step(steps, good, keep, stepless) + _replaced(stepless, failed)


def _counts(checkpoint: Checkpoint, failed: Mapping[str, str]) -> bool:
    """Return True for a copy that may replace an older copy."""
    return not (checkpoint.torn or checkpoint.doubt or failure_of(checkpoint, failed))


def _doomed_by_step(
    steps: Sequence[Checkpoint],
    good: Sequence[Checkpoint],
    keep: Keep,
    stepless: Sequence[Checkpoint],
) -> list[Checkpoint]:
    """Return the checkpoints with a step that the rules do not keep.  good: the checkpoints that
    count for the rules.  stepless: the checkpoints without a step."""
    if not good or keep.last is None:
        return []
    # The earlier saves show what a doubted save lacks.
    n_shown = LEAST_SAVES - 1 if _is_newest_doubted(steps, good) else 0
    kept = _newest_saves(good, keep.last + n_shown) | _kept_by_rule(good, keep)
    newest = {line_of(checkpoint): checkpoint for checkpoint in good[::-1]}.values()
    kept |= {checkpoint.name for checkpoint in newest} | _of_equal_steps(newest, good)
    kept |= _with_a_part_of_their_own(good, kept) | _with_all_parts(good) | _at_once(steps)
    kept |= {checkpoint.name for checkpoint in steps if _may_be_a_run(checkpoint)}
    kept |= _with_their_state(good, stepless)
    return [
        checkpoint for checkpoint in steps[steps.index(good[0]) :] if checkpoint.name not in kept
    ]


def _is_newest_doubted(rows: Sequence[Checkpoint], good: Sequence[Checkpoint]) -> bool:
    """Return True if a checkpoint that lacks a file of the earlier saves is newer than each good
    checkpoint.  rows: all checkpoints, newest first."""
    return any(map(is_doubted, rows[: rows.index(good[0])]))


def _of_equal_steps(rows: Iterable[Checkpoint], good: Sequence[Checkpoint]) -> set[str]:
    """Return the names of the checkpoints that may be the other parts of older saves, by the step,
    the place and the time: the newest save of one part may be older than that of another part.
    rows: checkpoints of unlike names."""
    of_step: defaultdict[int | None, list[Checkpoint]] = defaultdict(list)
    for checkpoint in good:
        of_step[checkpoint.step].append(checkpoint)
    kept = set[str]()
    for checkpoint in rows:
        if checkpoint.step != good[0].step:
            near = of_equal_number(checkpoint, of_step[checkpoint.step])
            kept |= {other.name for other in (checkpoint, *near)} if near else set()
    return kept


def _may_be_a_run(checkpoint: Checkpoint) -> bool:
    """Return True for a folder of no known format with a number and a word of any language: the
    number may be the number of a run, or a size (`Breite_128`)."""
    name = (checkpoint.called or checkpoint.name).rpartition("/")[2]
    return checkpoint.kind == "folder" and number_of_folder(name) is not None


def _replaced(stepless: Iterable[Checkpoint], failed: Mapping[str, str]) -> list[Checkpoint]:
    """Return the checkpoints without a step for which a newer good checkpoint of the line
    exists."""
    newer, doomed = set[tuple[str, str] | None](), list[Checkpoint]()
    for checkpoint in stepless:
        if _line(checkpoint) in newer:
            doomed.append(checkpoint)
        elif not failure_of(checkpoint, failed):
            newer.add(_line(checkpoint))
    return doomed


def _newest_saves(good: Sequence[Checkpoint], n: int) -> set[str]:
    """Return the names of the newest n saves, by order, by step and by time.

    The three orders differ if a training went back to an older checkpoint, or if a clock was set.
    Checkpoints of equal step, as in `model/300` and `optim/300`, count together: only the program
    knows the meaning of each.  A checkpoint without a step counts separately.
    """
    counts = counts_of(good)
    saves = {
        id(checkpoint): checkpoint.name if checkpoint.step is None else counts[id(checkpoint)]
        for checkpoint in good
    }
    kept = set[Count | str]()
    for order in (
        good,
        sorted(good, key=lambda checkpoint: counts[id(checkpoint)], reverse=True),
        sorted(good, key=lambda checkpoint: checkpoint.mtime_ns, reverse=True),
    ):
        kept |= set(list(dict.fromkeys(saves[id(checkpoint)] for checkpoint in order))[:n])
    return {checkpoint.name for checkpoint in good if saves[id(checkpoint)] in kept}


def _with_a_part_of_their_own(good: Sequence[Checkpoint], kept: set[str]) -> set[str]:
    """Return the names of checkpoints with the newest copy of some part, for example of an
    optimizer saved only with each third model."""
    parts, names = defaultdict[tuple[str, ...], set[str]](set), set[str]()
    for is_kept in (True, False):
        for checkpoint in good:
            if (checkpoint.name in kept) == is_kept:
                start = f"{checkpoint.name}/" if checkpoint.is_folder else ""
                roles = shape_of(checkpoint.step or 0, checkpoint.files, start).components
                own = {role.partition(" ")[0] for role in roles} - parts[line_of(checkpoint)]
                parts[line_of(checkpoint)] |= own
                names |= {checkpoint.name} if own else set()
    return names


def _with_all_parts(good: Sequence[Checkpoint]) -> set[str]:
    """Return the names of the newest save with the most parts, of each training with parts in
    several folders: a newer save that lacks a part may be incomplete."""
    families: defaultdict[object, dict[int, list[Checkpoint]]] = defaultdict(dict)
    parts = defaultdict[tuple[object, int], set[object]](set)
    for checkpoint in good:  # newest first
        if checkpoint.step is not None:
            family, part = place_of(checkpoint.called or checkpoint.name, checkpoint.is_folder)
            families[family].setdefault(checkpoint.step, []).append(checkpoint)
            parts[family, checkpoint.step].add(part)
    kept = set[str]()
    for key, saves in families.items():
        most = max(len(parts[key, step]) for step in saves)
        if most > 1:
            newest = next(step for step in saves if len(parts[key, step]) == most)
            kept |= {save.name for save in saves[newest]}
    return kept


def _with_their_state(good: Sequence[Checkpoint], others: Sequence[Checkpoint]) -> set[str]:
    """Return the names of the newest save that can be resumed as a whole, of each training with a
    state that all steps share, if the state was not written with the newest save.  others: with the
    checkpoints without a step."""
    stepless = [other for other in others if other.step is None]
    counts, kept, saves = counts_of(good), set[str](), [*good, *stepless]
    lines = defaultdict[tuple[str, ...], list[Checkpoint]](list)
    for checkpoint in good if stepless else ():
        if checkpoint.step is not None:
            lines[line_of(checkpoint)].append(checkpoint)
    for line in lines.values():  # newest first
        is_whole = (
            checkpoint for checkpoint in line if not of_two_saves_by_state(checkpoint, saves)
        )
        if (newest := next(is_whole, None)) not in (None, line[0]):
            kept |= {
                checkpoint.name
                for checkpoint in good
                if counts[id(checkpoint)] == counts[id(newest)]
            }
    return kept


def _at_once(good: Sequence[Checkpoint]) -> set[str]:
    """Return the names of checkpoints whose numbers may count the parts of one save."""
    return {checkpoint.name for row in rows_at_once(good) for checkpoint in row}


def _kept_by_rule(good: Sequence[Checkpoint], keep: Keep) -> set[str]:
    """Return the names of the checkpoints that stay at any age."""
    kept = set[str]()
    if keep.every:
        kept |= {
            checkpoint.name
            for checkpoint in good
            if checkpoint.step is not None and checkpoint.step % keep.every == 0
        }
    if keep.best:
        metric, sign = keep.best.lstrip("-"), -1.0 if keep.best.startswith("-") else 1.0
        judged = [
            (sign * checkpoint.manifest.metrics[metric], -(checkpoint.step or 0), checkpoint.name)
            for checkpoint in good
            if checkpoint.manifest is not None
            and not math.isnan(checkpoint.manifest.metrics.get(metric, math.nan))
        ]
        kept |= {name for _, _, name in sorted(judged)[: keep.best_n]}
    return kept


def _line(checkpoint: Checkpoint) -> tuple[str, str] | None:
    """Return the key of the line of a checkpoint; within a line a newer checkpoint replaces an
    older checkpoint.

    None: the line of all checkpoints with a step.  Otherwise the fast tier of origin and the name
    of the save, whatever the names of the copies.
    """
    if checkpoint.step is not None:
        return None
    return (
        checkpoint.manifest.origin if checkpoint.manifest is not None else "",
        checkpoint.called or checkpoint.name,
    )


def doomed_safely(
    checkpoints: Sequence[Checkpoint],
    keep: Keep,
    failed: Mapping[str, str],
    proven: Proven,
    unread: Store | None = None,
) -> list[Checkpoint]:
    """Return the checkpoints of doomed_on_slow, as far as a removal is safe: a newer checkpoint
    stays, was read in full and is whole.  A damaged checkpoint counts as failed.

    unread: a store with checkpoints that count as whole, because the copy reads all bytes.
    """
    failures, ordered = dict(failed), newest_first(checkpoints)
    places, counts = {id(checkpoint): n for n, checkpoint in enumerate(ordered)}, counts_of(ordered)
    while doomed := doomed_on_slow(checkpoints, keep, failures):
        gone = {checkpoint.name for checkpoint in doomed}
        stays = [
            checkpoint
            for checkpoint in ordered
            if checkpoint.is_ours and not checkpoint.problem
            and checkpoint.name not in gone and _counts(checkpoint, failures)
        ]  # fmt: skip
        newest = {_line(checkpoint): checkpoint for checkpoint in doomed[::-1]}  # doomed, by line
        for first in newest.values():
            rows = [checkpoint for checkpoint in stays if _line(checkpoint) == _line(first)]
            newer = [
                checkpoint for checkpoint in rows if places[id(checkpoint)] < places[id(first)]
            ]
            if not newer:  # two checkpoints with an equal name
                return []
            # A training that went back has two rows: the newer checkpoints, and the checkpoints of
            # a higher step.
            higher = [
                checkpoint for checkpoint in rows if counts[id(checkpoint)] > counts[id(first)]
            ]
            damaged = _damaged_first((newer, higher), proven, unread)
            if damaged is not None:
                failures[f"{damaged.name} {damaged.identity}"] = "damaged"
                break
        else:
            return doomed
    return []


def _damaged_first(
    rows: Iterable[Sequence[Checkpoint]], proven: Proven, unread: Store | None
) -> Checkpoint | None:
    """Return the first damaged checkpoint among the first checkpoints of the rows; None: all are
    whole.  A row with a checkpoint already known to be whole is not read."""
    for row in filter(None, rows):
        if any(checkpoint.store is unread or proven.knows(checkpoint) for checkpoint in row):
            continue
        if not proven.is_whole(row[0]):
            return row[0]
    return None


def doomed_on_fast(
    fast: Sequence[Checkpoint],
    slow: Sequence[Checkpoint],
    keep: Keep,
    failed: Mapping[str, str] | None = None,
) -> list[tuple[Checkpoint, Checkpoint]]:
    """Return the checkpoints that the fast tier may give up, oldest first, each with the verified
    copy on the slow tier."""
    copies = {}
    for copy in slow:
        if copy.manifest is not None and copy.manifest.verified_unix_ns and not copy.problem:
            copies[copy.manifest.source] = copy
            copies[copy.manifest.identity] = copy
    candidates = [
        checkpoint
        for checkpoint in newest_first(fast, slow)
        if (checkpoint.is_ours or keep.foreign)
    ]
    # An unfinished checkpoint does not make the earlier checkpoint superfluous.
    good = [
        checkpoint
        for checkpoint in candidates
        if not checkpoint.problem and not failure_of(checkpoint, failed or {})
    ]
    kept = _newest_saves(good, keep.fast) | _at_once(good) | _sure_on_fast(good, keep)
    if keep.fast:
        kept |= _in_use(good) | _with_all_parts(good) | _with_their_state(good, fast)
    doomed = []
    for checkpoint in candidates:
        on_slow = copies.get(checkpoint.identity) or remains_of(checkpoint, copies.values())
        if checkpoint.name not in kept and on_slow is not None:
            doomed.append((checkpoint, on_slow))
    return doomed[::-1]


def _sure_on_fast(good: Sequence[Checkpoint], keep: Keep) -> set[str]:
    """Return the names of the newest checkpoints without a doubt, with the parts of an equal step
    and, if the newest save is doubted, with the saves that show what it lacks."""
    sure = [checkpoint for checkpoint in good if not checkpoint.doubt]
    if not sure or not keep.fast:
        return set()
    n_shown = LEAST_SAVES - 1 if _is_newest_doubted(good, sure) else 0
    newest = {line_of(checkpoint): checkpoint for checkpoint in sure[::-1]}.values()
    return _of_equal_steps(newest, good) | _newest_saves(sure, keep.fast + n_shown)


def _in_use(good: Sequence[Checkpoint]) -> set[str]:
    """Return the names of checkpoints without a step from which the program may continue.

    A program starts from a file that is rewritten under a fixed name (`checkpoint.pth`); of equal
    names in several folders only the newest counts.  Without a step, nothing shows the end of a
    save: for some minutes the program may write more files.
    """
    newest, names = dict[str, Checkpoint](), set[str]()
    for checkpoint in good:
        if checkpoint.step is not None:
            continue
        last = checkpoint.name.rpartition("/")[2]
        is_fixed = not any(map(str.isdigit, last.partition(".")[0]))
        if is_fixed and (last not in newest or newest[last].mtime_ns < checkpoint.mtime_ns):
            newest[last] = checkpoint
        if not checkpoint.is_ours and time.time() - checkpoint.mtime_ns / 1e9 < MAY_GO_ON_S:
            names.add(checkpoint.name)
    return names | {checkpoint.name for checkpoint in newest.values()}


def plan(
    fast: Store, slow: Store | None, keep: Keep, proven: Proven | None = None
) -> tuple[list[tuple[Checkpoint, Checkpoint]], list[Checkpoint]]:
    """Return the checkpoints that prune() would remove: from the fast tier, each with the copy, and
    from the slow tier.  Copies from the fast tier of another run stay, and do not count.

    The sizes of a copy on the slow tier are checked again before the checkpoint on the fast tier is
    removed.  proven: checkpoints already read in full.  A checkpoint named by a link in the tier
    stays.  Raises TierError.
    """
    on_slow, rest, failed = list[Checkpoint](), list[StoredFile](), remembered(fast)
    if slow is not None:
        on_slow = find(slow, rest=rest)
        failed |= remembered(slow)
    # The copies show parts missing from a newer save; a checkpoint copied as whole is whole.
    copied = {
        checkpoint.manifest.source
        for checkpoint in on_slow
        if checkpoint.manifest and not checkpoint.problem
    }
    on_fast = [
        replace(checkpoint, problem="")
        if not checkpoint.is_broken and checkpoint.identity in copied
        else checkpoint
        for checkpoint in find(fast, others=on_slow, other_rest=rest)
    ]
    on_slow = _with_doubts_of(on_fast, on_slow)
    doomed = doomed_on_fast(on_fast, on_slow, keep, failed)
    from_fast = [row for row in doomed if verify(row[1], "sizes").is_whole and is_by_itself(row[0])]
    from_slow = doomed_safely(own_copies(fast, on_slow), keep, failed, proven or Proven())
    if from_fast or from_slow:
        from_fast, from_slow = _without_linked(fast, slow, from_fast, from_slow)
    rows = _at_once([*on_fast, *on_slow]) if from_slow else set()  # some may not be copied yet
    return from_fast, [
        checkpoint
        for checkpoint in from_slow
        if is_by_itself(checkpoint) and checkpoint.name not in rows
    ]


def _with_doubts_of(
    on_fast: Iterable[Checkpoint], on_slow: Iterable[Checkpoint]
) -> list[Checkpoint]:
    """Return the copies with the doubts of their sources: a file without a copy shows on the fast
    tier only."""
    doubts = {checkpoint.identity: checkpoint.doubt for checkpoint in on_fast if checkpoint.doubt}
    return [
        replace(copy, doubt=doubts[copy.manifest.source])
        if copy.manifest is not None and copy.manifest.source in doubts
        else copy
        for copy in on_slow
    ]


def own_copies(fast: Store, on_slow: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the checkpoints of a slow tier without the copies from the fast tiers of other runs.
    Raises TierError."""
    own = ("", *origins(fast))
    return [
        checkpoint
        for checkpoint in on_slow
        if checkpoint.manifest is None or checkpoint.manifest.origin in own
    ]


def _without_linked(
    fast: Store,
    slow: Store | None,
    from_fast: Iterable[tuple[Checkpoint, Checkpoint]],
    from_slow: Sequence[Checkpoint],
) -> tuple[list[tuple[Checkpoint, Checkpoint]], list[Checkpoint]]:
    """Return the checkpoints that no link in a tier names.  Raises TierError."""
    named, on_both = targets_of_links(fast), targets_of_links(fast, only_folders=True)
    on_both |= targets_of_links(slow) if from_slow else set()
    return (
        [row for row in from_fast if not (is_link(row[0]) or is_linked(row[0], named))],
        [checkpoint for checkpoint in from_slow if not is_linked(checkpoint, on_both)],
    )


def prune(fast: Store, slow: Store | None, keep: Keep, proven: Proven | None = None) -> Pruned:
    """Remove the checkpoints of plan(): from the fast tier first.  Raises TierError, after the
    other removals."""
    from_fast, from_slow = plan(fast, slow, keep, proven)
    gone, errors = list[Checkpoint](), list[TierError]()
    for checkpoint in (*(checkpoint for checkpoint, _ in from_fast), *from_slow):
        try:
            gone += [checkpoint] if _is_removed(checkpoint) else []
        except TierError as error:  # owned by another user, or in a bad sector: continue
            errors.append(error)
    if errors:
        raise errors[0]
    return Pruned(
        tuple(checkpoint.name for checkpoint in gone if checkpoint.store is fast),
        tuple(checkpoint.name for checkpoint in gone if checkpoint.store is not fast),
        sum(checkpoint.size_bytes for checkpoint in gone),
    )


def _is_removed(checkpoint: Checkpoint) -> bool:
    """Remove a checkpoint.  Return False if the checkpoint stays, or if another process was
    faster.  Raises TierError."""
    try:
        return remove(checkpoint)
    except TierError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.ENOENT:
            return False
        raise


def is_by_itself(checkpoint: Checkpoint) -> bool:
    """Return True if a removal would remove no other checkpoint: a model's folder may contain the
    Trainer's checkpoints.  Raises TierError."""
    if not checkpoint.is_folder or checkpoint.kind != "hf":
        return True
    own_names = map(checkpoint.inner, _own(checkpoint))
    try:
        _, others = own_and_others(checkpoint.store, checkpoint.name, checkpoint.kind, own_names)
    except TierError as error:
        if is_of_one_file(error):  # the folder has unreadable content
            return False
        raise
    return not others


def _own(checkpoint: Checkpoint) -> set[StoredFile]:
    """Return the files of a checkpoint: with a manifest, only the files in the manifest."""
    if checkpoint.manifest is None:
        return set(checkpoint.files)
    names = {file.name for file in checkpoint.manifest.files}
    return {file for file in checkpoint.files if checkpoint.inner(file) in names}


def _is_as_found(checkpoint: Checkpoint) -> bool:
    """Return True if nobody has written to the checkpoint since the listing.  Judging may have
    taken minutes: another checkpoint may have the name now, or the folder may have a new file.
    Raises TierError."""
    store, files = checkpoint.store, _own(checkpoint)
    if checkpoint.is_folder:
        own_names = map(checkpoint.inner, files)
        own, _ = own_and_others(store, checkpoint.name, checkpoint.kind, own_names)
        return files <= set(own) <= {*checkpoint.files, *checkpoint.drafts}
    return all(store.stat(file.name) == file for file in files)


def remove(checkpoint: Checkpoint) -> bool:
    """Remove a checkpoint; from the start of the removal the checkpoint does not count.

    Return False if the checkpoint stays: the files have changed since the listing, or the folder
    contains other checkpoints.  Raises TierError."""
    store = checkpoint.store
    if isinstance(store, LocalStore) and not _is_as_found(checkpoint):
        return False
    if not is_by_itself(checkpoint):
        return False
    if isinstance(store, LocalStore) and checkpoint.is_folder:
        discard(store.path(checkpoint.name), store.folder)
        return True
    return _are_removed(checkpoint)


def _are_removed(checkpoint: Checkpoint) -> bool:
    store, files = checkpoint.store, checkpoint.files[::-1]  # the completing file first
    if checkpoint.is_folder and checkpoint.manifest is not None:
        # A store without renames: a folder without manifest would look like a framework's folder.
        store.put(f"{checkpoint.name}/{INCOMPLETE}", b"{}")
        store.delete(checkpoint.manifest_name)
        for file in files:
            store.delete(file.name)
        store.delete(f"{checkpoint.name}/{INCOMPLETE}")
        return True
    if not all(_is_gone(store, file) for file in files):
        return False
    if checkpoint.manifest is not None:
        store.delete(checkpoint.manifest_name)
    else:  # perhaps a copy interrupted before the manifest
        store.delete(beside(checkpoint.name, HALF))
    return True


def _is_gone(store: Store, file: StoredFile) -> bool:
    """Remove a file.  Return False if another file has the name now."""
    if isinstance(store, LocalStore):
        facts = file.size_bytes, file.mtime_ns
        return discard_as_found(store.path(file.name), store.folder, *facts)
    store.delete(file.name)
    return True


# --- room -----------------------------------------------------------------------------------------


def make_room(
    fast: Store,
    slow: Store | None,
    wanted_bytes: int,
    keep: Keep,
    on_full: str = "wait",
    *,
    most_s: float = 3600.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Make room for a save.  Return "fast" (there is room), "skip" or "slow" (save straight to the
    slow tier).

    The fast tier is pruned first.  on_full: "wait" for the drain, "skip" the save, or "direct":
    save to the slow tier.  Raises TierFull: after most_s of waiting, or if waiting cannot help;
    SaveError: on_full has another value.
    """
    if on_full not in ON_FULL:
        raise SaveError(f"{on_full!r} is not among {', '.join(ON_FULL)}")
    begun_s, is_told = clock(), False
    while True:
        free = fast.free_bytes()
        if free is None or free >= wanted_bytes:
            return "fast"
        with suppress(TierError):  # the slow tier may be unreachable for a while
            prune(fast, slow, replace(keep, last=None))  # the slow tier needs no room
        free = fast.free_bytes()
        if free is None or free >= wanted_bytes:
            return "fast"
        if on_full != "wait":
            return "skip" if on_full == "skip" else "slow"
        backlog = [checkpoint for checkpoint in find(fast) if checkpoint.is_ours][keep.fast :]
        if clock() - begun_s >= most_s or not backlog:
            direct = ", or on_full='direct'" if isinstance(slow, LocalStore) else ""
            why = f"nothing was freed in {most_s:.0f} s" if backlog else "no drain can free any"
            raise TierFull(
                f"{fast.url}: a checkpoint of {wanted_bytes:,} bytes, {free:,} are free; {why}: "
                f"use a larger tier, keep fewer{direct}",
                fast.url,
                wanted_bytes - free,
            )
        if not is_told and clock() - begun_s >= TOLD_AFTER_S:
            is_told = True
            log.warning(
                "%s: no room for a checkpoint of %s bytes, %s are free; the save waits for the "
                "drain, which has %d checkpoints to go (at most %.0f s)",
                fast.url, f"{wanted_bytes:,}", f"{free:,}", len(backlog), most_s,
            )  # fmt: skip
        sleep(LOOK_S)


FULL_WORDS = ("unexpected pos", "os error 28", "No space left on device")


def as_full(error: BaseException, path: str) -> TierFull | None:
    """Translate the error of torch, DCP, safetensors or TensorFlow on a full disk to TierFull;
    None: another error.

    torch reports "unexpected pos 704 vs 598", safetensors "os error 28".
    """
    seen: BaseException | None = error
    while seen is not None:
        is_full = isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or any(words in str(seen) for words in FULL_WORDS):
            free = LocalStore(path).free_bytes()
            left = "" if free is None else f" ({free:,} bytes are free)"
            return TierFull(
                f"{path}: no room for the checkpoint{left}: {str(seen)[:200]}; free some, keep "
                "fewer, or use a larger tier",
                path,
                0,
            )
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def full_said(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise TierFull if the disk is full while another library writes, whatever error the library
    raises."""
    try:
        yield
    except Exception as error:
        full = as_full(error, os.fspath(path)) if not isinstance(error, TierFull) else None
        if full is None:
            raise
        raise full from error
