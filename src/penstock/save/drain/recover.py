"""After the loss of a node: remove unfinished copies, find and fetch the newest checkpoint."""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, Store, beside, open_store
from penstock.save.checkpoint import HALF, Checkpoint, half_of, halves, origins
from penstock.save.commit import claim, sweep
from penstock.save.copy.copying import DrainPace, Trip, copy_checkpoint
from penstock.save.drain.drainer import Drainer, manifest_beside
from penstock.save.drain.retention import remove
from penstock.save.drain.working import DrainSettings, DrainStatus
from penstock.save.find.formats import find, go_on
from penstock.save.find.tiermarks import refuse_strange
from penstock.save.find.unended import find_unended
from penstock.save.find.unfetched import FETCH, UNFETCHED, end_fetch, marks_of
from penstock.save.unit.shared import of_two_saves_by_state
from penstock.save.verify import RestartChoice, latest_valid, verify

__all__ = ["fetch", "recover", "take"]

# --- copies from the slow tier --------------------------------------------------------------------


def fetch(checkpoint: Checkpoint, fast: str | os.PathLike[str]) -> Path:
    """Copy a checkpoint from the slow tier to the fast tier, verify the copy, return its path.

    Raises TierError; SaveError: the checkpoint is damaged.
    """
    if checkpoint.manifest is None:  # with a manifest, copy_checkpoint() compares the checksums
        verdict = verify(checkpoint, "full")
        if verdict.problems:
            why = verdict.problems[0]
            raise SaveError(f"{checkpoint.where}: {why}; not brought to the fast tier")
        checkpoint = replace(checkpoint, judged=verdict.weakness)
    store = LocalStore(fast)
    name, _ = copy_checkpoint(checkpoint, store, Trip(DrainPace(None), 4), is_fetched=True)
    return store.path(name)


def take(name: str, fast: str | os.PathLike[str], slow: str | os.PathLike[str] | Store) -> Path:
    """Copy a folder of the slow tier to the fast tier by name.

    For a checkpoint with an unfinished drain and a lost source.  The format's index and the lengths
    of the files are checked; the copy counts as unchecked.  Return the path of the copy.
    Raises TierError; SaveError: no checkpoint, or damaged.
    """
    store = slow if isinstance(slow, Store) else open_store(slow)
    checkpoint = find_unended(store, name)
    if checkpoint is None:
        raise SaveError(f"{store.where(name)}: no checkpoint in a folder")
    return fetch(checkpoint, fast)


def _forget_halves(fast: LocalStore) -> None:
    """Delete the marks of unfinished fetches, so that sweep() removes the files.

    Two kinds of mark stay: of a fetch that has filled some of several files, which a later fetch
    continues, and of a fetch under a new name (such as NAME.2), because the new name holds no step.
    Raises TierError.
    """
    for mark, names in halves(fast).items():
        with suppress(TierError):  # a failure must not stop the work on the other marks
            is_filled = any(".data-" in name for name in names)
            is_given = bool(names) and beside(half_of(fast, mark)[0], HALF) != mark
            if fast.stat(manifest_beside(mark)) is not None or not (is_filled or is_given):
                fast.delete(mark)


def _remove_unfetched(fast: LocalStore, slow: Store) -> None:
    """Remove the copies of a fetch that was killed, if the slow tier has the sources.  Raises
    TierError; SaveError: another process is fetching."""
    with claim(fast.folder, FETCH):
        lone = [checkpoint for checkpoint in find(fast) if checkpoint.problem == UNFETCHED]
        sources = [copy for copy in find(slow) if not copy.problem] if lone else []
        marks_there = {mark for copy in sources for mark in marks_of(copy)}
        if all(
            not marks_there.isdisjoint(marks_of(checkpoint)) and remove(checkpoint)
            for checkpoint in lone
        ):
            end_fetch(fast)


def recover(
    fast: str | os.PathLike[str],
    slow: str | os.PathLike[str],
    settings: DrainSettings | None = None,
    *,
    level: str = "sample",
    patience_s: float = 0.0,
    listener: Callable[[DrainStatus], None] = lambda status: None,
    drainer: Callable[[Drainer], None] = lambda drainer: None,
    makes_slow: bool = True,
) -> tuple[RestartChoice, list[str]]:
    """After a job or before the next job: sweep, drain the backlog and choose a restart checkpoint.

    Return the choice, and a message for each checkpoint that could not be drained.
    patience_s: as for Drainer.  listener: receives each status and warning.  drainer: receives the
    Drainer, to stop the drain.  makes_slow: False: a missing slow folder is a failure, and only the
    fast tier is searched for the restart checkpoint.  Raises SaveError: a job saves there, or
    another drain is running; TierError, Stopped.
    """
    if not makes_slow and (lost := _without_folder(LocalStore(fast), slow)):
        return latest_valid(fast, None, level), [lost]
    with ExitStack() as stack:
        working = Drainer(fast, slow, settings, patience_s=patience_s, listener=listener)
        stack.enter_context(claim(fast, "job"))
        stack.enter_context(working)
        drainer(working)
        sweep(fast)
        with suppress(TierError):  # the next recover() tries again
            _forget_halves(working.fast)
        with suppress(TierError, SaveError):  # another process may be fetching
            _remove_unfetched(working.fast, working.slow)
        failed = working.once()
        if isinstance(working.slow, LocalStore):
            sweep(working.slow.folder, keep=[checkpoint.name for checkpoint in working.backlog()])
        with suppress(TierError):
            working.end_halves()
    choice = latest_valid(fast, slow, level, damaged=working.damaged())
    chosen = choice.checkpoint
    if chosen is not None and chosen.step is not None:
        with suppress(TierError):
            said = of_two_saves_by_state(chosen, find(chosen.store))
            choice = replace(choice, other_run=said and f"{said}: the state is of the older save")
    if chosen is not None and chosen.store.url != working.fast.url:
        with suppress(TierError):
            said = _other_run(chosen, working, level)
            choice = replace(choice, other_run=said or choice.other_run)
        with suppress(TierError):  # later copies get names of their own, like a new run's
            go_on(working.fast, working.slow, chosen)
    return choice, failed


def _other_run(chosen: Checkpoint, tiers: Drainer, level: str) -> str:
    """Return a sentence if a checkpoint on the slow tier may be of another run; else "".

    The copy of another fast tier is usual after a restart on another node.  With copies of FAST on
    the slow tier too, two runs may share the slow tier.  Raises TierError.
    """
    own = origins(tiers.fast)
    if chosen.manifest is None or chosen.manifest.origin in ("", *own):
        return ""

    def is_own(copy: Checkpoint) -> bool:
        return copy.manifest is not None and copy.manifest.origin in own

    newest = latest_valid(tiers.slow, level=level, wanted=is_own)
    if newest.checkpoint is None:
        return ""
    return (
        f"{chosen.where} is a copy from {chosen.manifest.origin}, not from {tiers.fast.url}: if "
        f"another run saves there, begin from {newest.where} instead"
    )


def _without_folder(fast: LocalStore, slow: str | os.PathLike[str]) -> str:
    """Return a message if the slow folder is missing: not mounted, or mistyped.

    Raises TierError if the fast tier was drained to a folder with the same name.
    """
    store = open_store(slow)
    if not isinstance(store, LocalStore) or store.folder.is_dir():
        return ""
    refuse_strange(fast, store)
    return (
        f"{store.url}: no such folder; is it mounted, and is the name right?  Nothing was drained "
        f"(a new run: mkdir -p {store.url})"
    )
