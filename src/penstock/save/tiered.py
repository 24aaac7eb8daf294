"""The two places of one job's checkpoints, as the Checkpointer and the adapters need them.

Knows which tier is which, and asks those who know the rest: what counts, what is whole, what goes.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore, Store, fsync_folder, open_store
from penstock.save.beside import Drain
from penstock.save.checkpoint import Checkpoint, is_of_one_file, origin_of, origins
from penstock.save.commit import STATE, Claim, claim
from penstock.save.drain import same_device
from penstock.save.formats import find, go_on
from penstock.save.manifest import INSIDE, parse
from penstock.save.recover import fetch
from penstock.save.retention import Keep, Proven, doomed_safely, make_room, prune, remove
from penstock.save.tiermarks import refuse_strange
from penstock.save.verify import RestartChoice, latest_valid, remember_failure, remembered, verify

__all__ = [
    "Chosen",
    "Tiers",
    "claim_for_process",
    "content_at",
    "drain_beside",
    "from_text",
    "rate_bps",
    "to_text",
]

AnyPath = str | os.PathLike[str]
log = logging.getLogger("penstock.save")


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which checkpoint a restart begins from.  path: None: there is none.  rejected: newer ones,
    and why not, newest first."""

    path: Path | None
    step: int | None
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Tiers:
    """fast: where a save is written; slow: where it is drained to.  One of them may be absent."""

    fast: LocalStore | None
    slow: Store | None
    _proven: Proven = field(default_factory=Proven, repr=False, compare=False)

    @classmethod
    def of(cls, fast: AnyPath | None, slow: AnyPath | None) -> Tiers:
        """Raises SaveError: neither; TierError: fast is no folder."""
        if fast is None and slow is None:
            raise SaveError("a Checkpointer needs a folder: fast=, slow= or both")
        stores = [None if place is None else open_store(place) for place in (fast, slow)]
        if fast is None and not isinstance(stores[1], LocalStore):
            raise SaveError(
                f"{slow}: checkpoints are written to a folder first; give fast= a folder on a "
                "local disk"
            )
        if stores[0] is not None and not isinstance(stores[0], LocalStore):
            raise TierError(f"{fast}: the fast tier is a folder on a local disk, and this is a URL")
        return cls(stores[0], stores[1])

    @property
    def root(self) -> str:
        """The folder that a save is written to."""
        store = self.fast if self.fast is not None else self.slow
        assert isinstance(store, LocalStore)
        return os.fspath(store.folder)

    @property
    def slow_folder(self) -> Path | None:
        """Where it is one, and no URL."""
        return self.slow.folder if isinstance(self.slow, LocalStore) else None

    @property
    def has_both(self) -> bool:
        return self.fast is not None and self.slow is not None

    def named(self) -> str:
        return " and ".join(store.url for store in (self.fast, self.slow) if store is not None)

    def make(self, token: str) -> None:
        """Makes the folders, and writes a word into the first that other ranks look for.  Raises
        TierError: missing, read-only, not mounted."""
        for store in (self.fast, self.slow):
            if not isinstance(store, LocalStore):
                continue
            if self.fast is not None and store is self.slow:
                refuse_strange(self.fast, store)
            folder = store.path(STATE)
            try:
                folder.mkdir(parents=True, exist_ok=True)
                probe = folder / f"seen-{token}"
                probe.write_text(token)
                if os.fspath(store.folder) != self.root:
                    probe.unlink()
            except OSError as error:
                raise TierError(
                    f"{store.url}: cannot be written: {error.strerror}; is the tier mounted, and "
                    "yours?"
                ) from error

    def sees(self, token: str) -> bool:
        """Whether this rank sees what rank 0 has written."""
        return (Path(self.root) / STATE / f"seen-{token}").exists()

    def settle(self, token: str) -> None:
        """All ranks have looked."""
        (Path(self.root) / STATE / f"seen-{token}").unlink(missing_ok=True)

    def warning(self) -> str:
        """What is odd about the two and is allowed all the same."""
        if self.fast is None or not isinstance(self.slow, LocalStore):
            return ""
        fast, slow = self.fast.folder, self.slow.folder
        if fast.resolve() == slow.resolve():
            raise SaveError(f"{fast}: fast and slow are one folder; give one of them only")
        return same_device(fast, slow)

    # What goes

    def room(self, wanted_bytes: int, keep: Keep, on_full: str) -> str | None:
        """The folder to save to; None: skip this save.  Raises TierFull."""
        store = self.fast if self.fast is not None else self.slow
        assert store is not None
        word = make_room(store, self.slow if self.fast else None, wanted_bytes, keep, on_full)
        if word == "slow":
            assert isinstance(self.slow, LocalStore)
            return os.fspath(self.slow.folder)
        return None if word == "skip" else self.root

    def prune(self, keep: Keep) -> None:
        """Removes what the rules do not keep.  A tier that stands alone is ruled as a slow one; a
        fast one that says no `last` keeps as many as it says for `fast`.  Raises TierError."""
        if self.fast is not None and self.slow is not None:
            prune(self.fast, self.slow, keep, self._proven)
            return
        store = self.fast if self.fast is not None else self.slow
        assert store is not None
        if self.fast is not None and keep.last is None:
            keep = replace(keep, last=max(1, keep.fast))
        for one in doomed_safely(find(store), keep, remembered(store), self._proven):
            remove(one)

    # Which one to begin from

    def choose(self, level: str, wanted: Callable[[Checkpoint], bool]) -> Chosen:
        """The newest that is whole, of those that the caller can load.  Raises PenstockError:
        neither tier can be looked at."""
        first, second = (self.fast, self.slow) if self.fast is not None else (self.slow, None)
        assert first is not None
        found = latest_valid(first, second, level, wanted=wanted)
        if found.checkpoint is not None:
            self._go_on(found.checkpoint)
        return Chosen(self._here(found), found.step, found.rejected)

    def written_last(self, name: str) -> Chosen:
        """Of what has this name, the one written last that is whole, every byte read; the fast
        tier's before its copy.  Not by step: a run begun anew writes lower steps under old names.
        None of another fast tier while there is one of ours."""
        found, rejected = self._found(lambda one: _is_called(one, name))
        others = self._others(found)
        rejected += [(one.where, _OF_OTHERS) for one in others]
        found = [one for one in found if one not in others]
        weak: list[Checkpoint] = []  # whole, but too little can be checked
        for one in sorted(found, key=lambda one: one.mtime_ns, reverse=True):
            verdict = verify(one, "full")
            if verdict.is_checked:
                return self._chosen(one, rejected)
            if verdict.is_whole:
                weak.append(one)
            why = verdict.problems or (f"{verdict.state}, and an older one is checked",)
            rejected.append((one.where, "; ".join(why)))
        if weak:
            return self._chosen(weak[0], [kept for kept in rejected if kept[0] != weak[0].where])
        return Chosen(None, None, tuple(rejected))

    def _chosen(self, one: Checkpoint, rejected: Sequence[tuple[str, str]]) -> Chosen:
        assert isinstance(one.store, LocalStore)
        self._go_on(one)
        return Chosen(one.store.path(one.name), one.step, tuple(rejected))

    def _go_on(self, chosen: Checkpoint) -> None:
        if self.fast is None or self.slow is None or chosen.store.url == self.fast.url:
            return
        with suppress(TierError):  # its copies get names of their own, as another run's
            go_on(self.fast, self.slow, chosen)

    def others(self) -> str:
        """A sentence where checkpoints of another fast tier lie on the slow one, with which this
        run does not go on; else empty.  Raises TierError."""
        if self.fast is None or self.slow is None:
            return ""
        found = {one.manifest.origin for one in find(self.slow) if one.manifest is not None}
        others = sorted(found - {"", *origins(self.fast)})
        if not others:
            return ""
        return (
            f"{self.slow.url}: has checkpoints of another fast tier, {others[0]}, too; which stay "
            "and which is restored goes by the step, whoever saved it: restore() before the first "
            "save goes on with that run, and another run needs a folder of its own"
        )

    def own_first(self, wanted: Callable[[Checkpoint], bool]) -> Callable[[Checkpoint], bool]:
        """Those that are wanted, without what came from another fast tier: another run's, or of
        this run on another node, where that had another path.  All, where none is of ours."""
        others = {one.where for one in self._others(self._found(wanted)[0])}
        for where in sorted(others):
            log.warning("passed over: %s: %s", where, _OF_OTHERS)
        return lambda one: wanted(one) and one.where not in others

    def _found(
        self, wanted: Callable[[Checkpoint], bool]
    ) -> tuple[list[Checkpoint], list[tuple[str, str]]]:
        """On both tiers; and those that cannot be looked at, and why."""
        found: list[Checkpoint] = []
        rejected: list[tuple[str, str]] = []
        for store in (self.fast, self.slow):
            try:
                found += [one for one in (find(store) if store else ()) if wanted(one)]
            except TierError as error:
                rejected.append((store.url if store else "", str(error)))
        return found, rejected

    def _others(self, found: Sequence[Checkpoint]) -> list[Checkpoint]:
        """What came from another run's fast tier, where something of ours is there, too."""
        if self.fast is None:
            return []
        fast = origin_of(self.fast)
        came_from = [
            fast if one.store is self.fast else one.manifest.origin if one.manifest else ""
            for one in found
        ]
        if not {fast, self.fast.url} & set(came_from):
            return []
        ours = ("", *origins(self.fast))
        return [one for one, origin in zip(found, came_from, strict=True) if origin not in ours]

    def _here(self, found: RestartChoice) -> Path | None:
        """The chosen one's path; one behind a URL is brought to the fast tier first."""
        if found.path is not None or found.checkpoint is None:
            return found.path
        assert self.fast is not None
        return fetch(found.checkpoint, self.fast.folder)

    def fetch_as(self, path: Path, wanted: Path) -> None:
        """A checkpoint on either tier takes this name on the fast one, checked and in one moment.
        Raises TierError, SaveError."""
        assert self.fast is not None
        if not path.is_relative_to(self.fast.folder):
            assert isinstance(self.slow, LocalStore)
            name = os.fspath(path.relative_to(self.slow.folder))
            path = fetch(next(one for one in find(self.slow) if one.name == name), self.fast.folder)
        try:
            path.rename(wanted)
            fsync_folder(wanted.parent)
        except OSError as error:
            raise TierError(f"{wanted}: {error.strerror}") from error

    def damage(self, chosen: Chosen, why: str) -> str:
        """Reads the chosen one, which could not be loaded, in full.  What is wrong with it, which
        is remembered, so that it is not chosen again; empty: it is whole."""
        for store in (self.fast, self.slow):
            if store is None or chosen.path is None:
                continue
            for checkpoint in find(store):
                if not isinstance(store, LocalStore) or store.path(checkpoint.name) != chosen.path:
                    continue
                problems = verify(checkpoint, "full").problems
                if problems:
                    remember_failure(checkpoint, why, is_copy=True)
                    return "; ".join(problems)
        return ""

    # What is where

    def on_slow(self, name: str, content: str, is_over: bool) -> str | None:
        """Where on the slow tier a checkpoint of this name and content is whole, by the manifest
        that the drain wrote after it had compared; None: not yet.

        is_over: the drain has done what it will: then the content may be there under another name,
        since equal bytes are not copied twice, and the name may be another run's.  Raises
        TierError."""
        assert self.slow is not None
        inside = f"{name}/{INSIDE}"
        try:
            if self.slow.stat(inside) is not None:
                with suppress(SaveError):  # a damaged one is not of what has just been compared
                    if parse(self.slow.read(inside), self.slow.where(inside)).content == content:
                        return self.slow.where(name)
        except TierError as error:
            if not is_of_one_file(error):  # else the drain gives the copy another name
                raise
        return self._elsewhere(content) if is_over else None

    def _elsewhere(self, content: str) -> str | None:
        assert self.slow is not None
        for one in find(self.slow):
            if one.manifest is not None and one.manifest.content == content and not one.problem:
                return one.where
        return None


_OF_OTHERS = "drained from another fast tier, and this one has its own; it may be another run's"


def _is_called(one: Checkpoint, name: str) -> bool:
    """Also where the slow tier had to give it another name, as another run's has that one."""
    return name in (one.name, one.called)


def content_at(path: str) -> tuple[str | None, str]:
    """Of a committed checkpoint; empty where there is none any more (the drain and its rules were
    faster than we, or its manifest is damaged); None: it cannot be told now, and why."""
    try:
        return parse((Path(path) / INSIDE).read_bytes(), path).content, ""
    except (FileNotFoundError, SaveError):
        return "", ""
    except OSError as error:
        return None, str(error)


_jobs: dict[str, Claim] = {}


def claim_for_process(fast: AnyPath) -> None:
    """Takes a folder for the job in this process, until it ends; again: nothing.  A Checkpointer's
    writer does so by itself.  Raises SaveError: another job saves there; TierError."""
    key = os.path.realpath(fast)
    if key not in _jobs:
        _jobs[key] = claim(fast, "job")


_drains: dict[tuple[str, str], Drain] = {}


def drain_beside(
    fast: AnyPath, slow: AnyPath, keep: Keep | None = None, rate: str | None = None
) -> Drain:
    """The drain of these two in this process, started if there is none, or none any more.  One that
    goes on by other rules, as a Checkpointer before may have left it, is replaced.

    It outlives the training by its own measure.  Raises TierError, SaveError."""
    # Under `penstock run` the drain knows the run, and pauses while its data wait rises.
    run = os.environ.get("PENSTOCK_RUN")
    made = Drain(_expanded(fast), _expanded(slow), rate_bps(rate), keep=keep, run=run)
    key = (_spelled(made.fast), _spelled(made.slow))
    drain = _drains.get(key)
    if drain is not None and drain.is_alive():
        if (drain.limit_bps, drain.keep, drain.run) == (made.limit_bps, keep, run):
            return drain
        log.info("the drain to %s begins again, by other rules", made.slow)
        drain.stop()
    _drains[key] = made
    made.start()
    return made


def _expanded(place: AnyPath) -> str:
    return os.path.expanduser(place)  # noqa: PTH111 - a URL is no path


def _spelled(place: AnyPath) -> str:
    """One place, one word."""
    text = os.fspath(place)
    return text if "://" in text else os.path.realpath(text)


def rate_bps(text: str | None) -> float | None:
    """ "300MB/s" in bytes a second; None for no limit.  Raises SaveError."""
    if text is None:
        return None
    is_text = isinstance(text, str)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B/s\s*", text) if is_text else None
    if not found or not float(found[1]):
        raise SaveError(f"{text!r} is no rate; say one such as 300MB/s, or None for no limit")
    base = 1024.0 if found[3] else 1000.0
    return float(found[1]) * float(base ** " kMGT".index(found[2] or " "))


def to_text(chosen: Chosen) -> str:
    """For the other ranks."""
    path = None if chosen.path is None else os.fspath(chosen.path)
    return json.dumps([path, chosen.step, chosen.rejected])


def from_text(text: str) -> Chosen:
    path, step, rejected = json.loads(text)
    return Chosen(
        None if path is None else Path(path), step, tuple((one, why) for one, why in rejected)
    )
