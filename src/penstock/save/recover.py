"""After a node is lost: halves put away, the newest whole checkpoint named and fetched."""

import os
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, Store, beside, open_store
from penstock.save.checkpoint import (
    HALF,
    Checkpoint,
    half_of,
    halves,
)
from penstock.save.commit import (
    claim,
    sweep,
)
from penstock.save.copying import (
    DrainPace,
    Trip,
    copy_checkpoint,
)
from penstock.save.drain import Drainer, manifest_beside
from penstock.save.formats import find_unended, go_on
from penstock.save.tiermarks import refuse_strange
from penstock.save.verify import RestartChoice, latest_valid, verify
from penstock.save.working import (
    DrainSettings,
    DrainStatus,
)

__all__ = ["fetch", "recover", "take"]

# --- from elsewhere -------------------------------------------------------------------------------


def fetch(checkpoint: Checkpoint, fast: str | os.PathLike[str]) -> Path:
    """Brings a checkpoint from the slow tier to the fast one, verified; where it then lies.

    Raises TierError; SaveError: it is damaged.
    """
    if checkpoint.manifest is None:  # else what is copied is compared with that
        problems = verify(checkpoint, "full").problems
        if problems:
            raise SaveError(f"{checkpoint.where}: {problems[0]}; not brought to the fast tier")
    store = LocalStore(fast)
    name, _ = copy_checkpoint(checkpoint, store, Trip(DrainPace(None), 4), is_fetched=True)
    return store.path(name)


def take(name: str, fast: str | os.PathLike[str], slow: str | os.PathLike[str] | Store) -> Path:
    """Copy a folder of the slow tier to the fast one by its name, also if its own copy did not end
    and its source is lost.  The format's index and the lengths of the files are checked; the copy
    counts as unchecked.  Return its path.  Raises TierError; SaveError: no checkpoint, or damaged.
    """
    store = slow if isinstance(slow, Store) else open_store(slow)
    one = find_unended(store, name)
    if one is None:
        raise SaveError(f"{store.where(name)}: no checkpoint in a folder")
    return fetch(one, fast)


def _forget_halves(fast: LocalStore) -> None:
    """Marks of fetches that did not end: what they had begun is swept.  One that has filled some of
    several files needs its mark, to be taken up; so does one under a name that it was given, which
    tells no step.  Raises TierError."""
    for mark, names in halves(fast).items():
        with suppress(TierError):  # of this one
            is_filled = any(".data-" in name for name in names)
            is_given = bool(names) and beside(half_of(fast, mark)[0], HALF) != mark
            if fast.stat(manifest_beside(mark)) is not None or not (is_filled or is_given):
                fast.delete(mark)


def recover(
    fast: str | os.PathLike[str],
    slow: str | os.PathLike[str],
    settings: DrainSettings | None = None,
    *,
    level: str = "sample",
    patience_s: float = 0.0,
    told: Callable[[DrainStatus], None] = lambda status: None,
    drainer: Callable[[Drainer], None] = lambda drainer: None,
    makes_slow: bool = True,
) -> tuple[RestartChoice, list[str]]:
    """After a job, or before the next: sweeps what it left, drains the rest, and says from which
    checkpoint to begin, and what could not be drained.

    patience_s: as of Drainer; told: of its warnings, too.  drainer: is given the Drainer, to stop
    it.  makes_slow: False: a slow folder that is not there is a failure, and the choice is of the
    fast tier.  Raises SaveError: a job saves there, or another drain is at work;
    TierError, Stopped.
    """
    if not makes_slow and (lost := _without_folder(LocalStore(fast), slow)):
        return latest_valid(fast, None, level), [lost]
    with ExitStack() as stack:
        working = Drainer(fast, slow, settings, patience_s=patience_s, told=told)
        stack.enter_context(claim(fast, "job"))
        stack.enter_context(working)
        drainer(working)
        sweep(fast)
        with suppress(TierError):  # the next recover() comes back to it
            _forget_halves(working.fast)
        failed = working.once()
        if isinstance(working.slow, LocalStore):
            sweep(working.slow.folder, keep=[one.name for one in working.backlog()])
        with suppress(TierError):
            working.end_halves()
    choice = latest_valid(fast, slow, level, damaged=working.damaged())
    if choice.checkpoint is not None and choice.checkpoint.store.url != working.fast.url:
        with suppress(TierError):  # its copies get names of their own, as another run's
            go_on(working.fast, working.slow, choice.checkpoint)
    return choice, failed


def _without_folder(fast: LocalStore, slow: str | os.PathLike[str]) -> str:
    """Return a sentence if the slow folder is not there: not mounted, or mistyped.  Raises
    TierError if the fast tier was drained to a folder of this name."""
    store = open_store(slow)
    if not isinstance(store, LocalStore) or store.folder.is_dir():
        return ""
    refuse_strange(fast, store)
    return (
        f"{store.url}: no such folder; is it mounted, and is the name right?  Nothing was drained "
        f"(a new run: mkdir -p {store.url})"
    )
