"""What may go from a tier, and whether the next checkpoint has room.

`doomed_*` judge and change nothing; `prune` removes what they name.  Three promises stand above
every rule: the fast tier gives up only what is verified on the slow one; the last whole checkpoint
stays; what we did not commit or drain is not ours to remove.
"""

import errno
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from penstock.errors import SaveError, TierError, TierFull
from penstock.save.commit import discard
from penstock.save.formats import INCOMPLETE, Checkpoint, find, newest_first
from penstock.save.verify import verify
from penstock.stores import LocalStore, Store

__all__ = [
    "ON_FULL",
    "Keep",
    "Pruned",
    "as_full",
    "doomed_on_fast",
    "doomed_on_slow",
    "expected_bytes",
    "make_room",
    "prune",
    "remove",
]

ON_FULL = ("wait", "skip", "direct")
# A checkpoint grows a little from save to save (step counts, random states): room beyond the last.
GROWTH = 1.05
LOOK_S = 0.5  # how often a save that waits for room looks again


@dataclass(frozen=True, slots=True)
class Keep:
    """What stays.  fast: the newest so many on the fast tier, drained or not.  On the slow tier:
    last: the newest so many; every: also each whose step is a multiple of it; best: also the best
    so many by a metric of the manifest, as "loss" (small is good) or "-accuracy" (large is good).

    None for last keeps everything on the slow tier.  foreign: checkpoints that other programs wrote
    may go from the fast tier too, once they are verified on the slow one.
    """

    fast: int = 2
    last: int | None = None
    every: int = 0
    best: str = ""
    best_n: int = 1
    foreign: bool = False

    def __post_init__(self) -> None:
        if self.fast < 0 or (self.last is not None and self.last < 1) or self.every < 0:
            raise SaveError(
                f"{self}: keeps nothing; fast is 0 or more, last 1 or more, every 0 or more steps"
            )


@dataclass(frozen=True, slots=True)
class Pruned:
    """What went: names, and bytes that are free now."""

    fast: tuple[str, ...] = ()
    slow: tuple[str, ...] = ()
    freed_bytes: int = 0


def doomed_on_slow(checkpoints: Sequence[Checkpoint], keep: Keep) -> list[Checkpoint]:
    """What the rules do not keep on the slow tier, newest first."""
    if keep.last is None:
        return []
    ours = [one for one in newest_first(checkpoints) if one.is_ours and not one.problem]
    kept = {one.name for one in ours[: keep.last]}
    if keep.every:
        kept |= {one.name for one in ours if one.step is not None and one.step % keep.every == 0}
    if keep.best:
        metric, sign = keep.best.lstrip("-"), -1.0 if keep.best.startswith("-") else 1.0
        judged = [
            (sign * one.manifest.metrics[metric], -(one.step or 0), one.name)
            for one in ours
            if one.manifest is not None and metric in one.manifest.metrics
        ]
        kept |= {name for _, _, name in sorted(judged)[: keep.best_n]}
    return [one for one in ours if one.name not in kept]


def doomed_on_fast(
    fast: Sequence[Checkpoint], slow: Sequence[Checkpoint], keep: Keep
) -> list[tuple[Checkpoint, Checkpoint]]:
    """What the fast tier may give up, each with its verified copy on the slow one; oldest first."""
    copies = {}
    for copy in slow:
        if copy.manifest is not None and copy.manifest.verified_unix_ns and not copy.problem:
            copies[copy.manifest.source] = copy
            copies[copy.manifest.identity] = copy
    candidates = [one for one in newest_first(fast) if (one.is_ours or keep.foreign)]
    doomed = [
        (one, copies[one.identity]) for one in candidates[keep.fast :] if one.identity in copies
    ]
    return doomed[::-1]


def prune(fast: Store, slow: Store | None, keep: Keep) -> Pruned:
    """Removes what the rules name: from the fast tier first, then from the slow one.

    A copy on the slow tier is looked at again (sizes) before the fast one goes.  Raises TierError.
    """
    on_fast = find(fast)
    on_slow = find(slow) if slow is not None else []
    gone_fast, gone_slow, freed = [], [], 0
    for one, copy in doomed_on_fast(on_fast, on_slow, keep):
        if verify(copy, "sizes").is_whole:
            freed += _removed(one)
            gone_fast.append(one.name)
    doomed = doomed_on_slow(on_slow, keep)
    names = {one.name for one in doomed}
    stays = [one for one in on_slow if one.name not in names]
    if doomed and not any(verify(one, "sizes").is_whole for one in newest_first(stays)):
        spared = next((one for one in doomed if verify(one, "sizes").is_whole), None)
        doomed = [one for one in doomed if one is not spared]
    for one in doomed:
        freed += _removed(one)
        gone_slow.append(one.name)
    return Pruned(tuple(gone_fast), tuple(gone_slow), freed)


def _removed(checkpoint: Checkpoint) -> int:
    """Bytes freed; 0 where another process was faster."""
    size = checkpoint.size_bytes
    try:
        remove(checkpoint)
    except TierError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno == errno.ENOENT:
            return 0
        raise
    return size


def remove(checkpoint: Checkpoint) -> None:
    """Removes a checkpoint: from the moment this begins it no longer counts.  Raises TierError."""
    store = checkpoint.store
    if isinstance(store, LocalStore) and checkpoint.is_folder:
        discard(store.path(checkpoint.name), store.folder)
        return
    files = [found.name for found in checkpoint.files][::-1]  # what makes it one goes first
    if checkpoint.manifest is None:
        for name in files:
            store.delete(name)
        return
    if checkpoint.is_folder:
        # On a store without renames: a folder without manifest would look like one of a framework.
        store.put(f"{checkpoint.name}/{INCOMPLETE}", b"{}")
        store.delete(checkpoint.manifest_name)
        for name in files:
            store.delete(name)
        store.delete(f"{checkpoint.name}/{INCOMPLETE}")
        return
    for name in files:
        store.delete(name)
    store.delete(checkpoint.manifest_name)


# --- room -----------------------------------------------------------------------------------------


def expected_bytes(store: Store) -> int | None:
    """What the next checkpoint will need, by the newest one; None: there is none yet."""
    for one in find(store):
        if not one.problem:
            return int(one.size_bytes * GROWTH)
    return None


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
    """Before a save: "fast" (there is room), "skip" or "slow" (save straight to the slow tier).

    The fast tier first gives up what it may.  on_full: wait for the drain, skip this save, or
    direct: save to the slow tier.  Raises TierFull: after most_s of waiting, or where waiting
    cannot help; SaveError: no such on_full.
    """
    if on_full not in ON_FULL:
        raise SaveError(f"{on_full!r} is not among {', '.join(ON_FULL)}")
    begun_s = clock()
    while True:
        free = fast.free_bytes()
        if free is None or free >= wanted_bytes:
            return "fast"
        with suppress(TierError):  # the slow tier may be gone for a while
            prune(fast, slow, keep)
        free = fast.free_bytes()
        if free is None or free >= wanted_bytes:
            return "fast"
        if on_full != "wait":
            return "skip" if on_full == "skip" else "slow"
        backlog = [one for one in find(fast) if one.is_ours][keep.fast :]
        if clock() - begun_s >= most_s or not backlog:
            why = f"nothing was freed in {most_s:.0f} s" if backlog else "no drain can free any"
            raise TierFull(
                f"{fast.url}: a checkpoint of {wanted_bytes:,} bytes, {free:,} are free; {why}: "
                "use a larger tier, keep fewer, or on_full='direct'",
                fast.url,
                wanted_bytes - free,
            )
        sleep(LOOK_S)


def as_full(error: BaseException, path: str, wanted_bytes: int) -> TierFull | None:
    """What torch, DCP or safetensors say when a disk is full, as what it is; None: not that.

    torch says "unexpected pos 704 vs 598", safetensors "os error 28".
    """
    seen: BaseException | None = error
    while seen is not None:
        is_full = isinstance(seen, OSError) and seen.errno in (errno.ENOSPC, errno.EDQUOT)
        if is_full or "unexpected pos" in str(seen) or "os error 28" in str(seen):
            return TierFull(
                f"{path}: no room for {wanted_bytes:,} bytes; free some, keep fewer, or "
                "on_full='direct'",
                path,
                wanted_bytes,
            )
        seen = seen.__cause__ or seen.__context__
    return None
