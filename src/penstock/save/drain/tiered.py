"""The fast and the slow tier of one job, for the Checkpointer and the adapters.

The module knows the two tiers.  Other modules decide whether a checkpoint counts, is whole, or is
removed.
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
from penstock.save.checkpoint import Checkpoint, is_of_one_file, origin_of, origins
from penstock.save.commit import STATE, Claim, claim
from penstock.save.drain.beside import Drain
from penstock.save.drain.drainer import same_device
from penstock.save.drain.recover import fetch
from penstock.save.drain.retention import Keep, Proven, doomed_safely, make_room, prune, remove
from penstock.save.find.formats import find, go_on
from penstock.save.find.tiermarks import refuse_strange
from penstock.save.manifest import INSIDE, parse
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
    """The checkpoint from which a restart begins.  path: None: no checkpoint.  rejected: newer
    checkpoints with the reason for the rejection, newest first."""

    path: Path | None
    step: int | None
    rejected: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Tiers:
    """The tiers of a job: saves are written to `fast`, and the drain copies saves to `slow`.  One
    tier may be absent."""

    fast: LocalStore | None
    slow: Store | None
    _proven: Proven = field(default_factory=Proven, repr=False, compare=False)

    @classmethod
    def of(cls, fast: AnyPath | None, slow: AnyPath | None) -> Tiers:
        """Make the tiers.  Raises SaveError: both tiers are absent, or `slow` alone is a URL;
        TierError: `fast` is a URL."""
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
        """Return the folder to which a save is written."""
        store = self.fast if self.fast is not None else self.slow
        assert isinstance(store, LocalStore)
        return os.fspath(store.folder)

    @property
    def slow_folder(self) -> Path | None:
        """Return the folder of the slow tier; None if the slow tier is absent or a URL."""
        return self.slow.folder if isinstance(self.slow, LocalStore) else None

    @property
    def has_both(self) -> bool:
        return self.fast is not None and self.slow is not None

    def named(self) -> str:
        return " and ".join(store.url for store in (self.fast, self.slow) if store is not None)

    def make(self, token: str) -> None:
        """Make the folders, and write into the first folder a file for which other ranks look.

        Raises TierError: a tier is missing, read-only or not mounted."""
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
        """Return True if this rank sees the file that rank 0 has written."""
        return (Path(self.root) / STATE / f"seen-{token}").exists()

    def settle(self, token: str) -> None:
        """Remove the file of make(), after all ranks have looked for the file."""
        (Path(self.root) / STATE / f"seen-{token}").unlink(missing_ok=True)

    def warning(self) -> str:
        """Return a warning if both tiers are on one device; else an empty string.  Raises
        SaveError: both tiers are one folder."""
        if self.fast is None or not isinstance(self.slow, LocalStore):
            return ""
        fast, slow = self.fast.folder, self.slow.folder
        if fast.resolve() == slow.resolve():
            raise SaveError(f"{fast}: fast and slow are one folder; give one of them only")
        return same_device(fast, slow)

    # Room and removal

    def room(self, wanted_bytes: int, keep: Keep, on_full: str) -> str | None:
        """Make room for a save and return the folder to save to; None: skip the save.  Raises
        TierFull."""
        store = self.fast if self.fast is not None else self.slow
        assert store is not None
        word = make_room(store, self.slow if self.fast else None, wanted_bytes, keep, on_full)
        if word == "slow":
            assert isinstance(self.slow, LocalStore)
            return os.fspath(self.slow.folder)
        return None if word == "skip" else self.root

    def prune(self, keep: Keep) -> None:
        """Remove the checkpoints that the rules do not keep.  The rules of a slow tier apply to a
        single tier.  A single fast tier without a rule `last` keeps as many checkpoints as the rule
        `fast` states, at least 1.  Raises TierError."""
        if self.fast is not None and self.slow is not None:
            prune(self.fast, self.slow, keep, self._proven)
            return
        store = self.fast if self.fast is not None else self.slow
        assert store is not None
        if self.fast is not None and keep.last is None:
            keep = replace(keep, last=max(1, keep.fast))
        for checkpoint in doomed_safely(find(store), keep, remembered(store), self._proven):
            remove(checkpoint)

    # The checkpoint for a restart

    def choose(self, level: str, wanted: Callable[[Checkpoint], bool]) -> Chosen:
        """Choose the newest whole checkpoint that the caller can load.  Raises PenstockError:
        neither tier can be read."""
        first, second = (self.fast, self.slow) if self.fast is not None else (self.slow, None)
        assert first is not None
        choice = latest_valid(first, second, level, wanted=wanted)
        if choice.checkpoint is not None:
            self._go_on(choice.checkpoint)
        return Chosen(self._here(choice), choice.step, choice.rejected)

    def written_last(self, name: str) -> Chosen:
        """Choose the whole checkpoint of this name that was written last.

        Every byte is read.  A checkpoint on the fast tier has priority over the copy.  Steps do not
        count: a restarted run writes lower steps under old names.  A copy from another fast tier
        is rejected if the run's own fast tier has a checkpoint of the name, or a copy."""
        candidates, rejected = self._found(lambda checkpoint: _is_called(checkpoint, name))
        others = self._others(candidates)
        rejected += [(other.where, _OF_OTHERS) for other in others]
        candidates = [checkpoint for checkpoint in candidates if checkpoint not in others]
        weak: list[Checkpoint] = []  # whole, but too little can be checked
        for checkpoint in sorted(
            candidates, key=lambda checkpoint: checkpoint.mtime_ns, reverse=True
        ):
            verdict = verify(checkpoint, "full")
            if verdict.is_checked:
                return self._chosen(checkpoint, rejected)
            if verdict.is_whole:
                weak.append(checkpoint)
            why = verdict.problems or (f"{verdict.state}, and an older one is checked",)
            rejected.append((checkpoint.where, "; ".join(why)))
        if weak:
            return self._chosen(weak[0], [kept for kept in rejected if kept[0] != weak[0].where])
        return Chosen(None, None, tuple(rejected))

    def _chosen(self, checkpoint: Checkpoint, rejected: Sequence[tuple[str, str]]) -> Chosen:
        assert isinstance(checkpoint.store, LocalStore)
        self._go_on(checkpoint)
        return Chosen(checkpoint.store.path(checkpoint.name), checkpoint.step, tuple(rejected))

    def _go_on(self, chosen: Checkpoint) -> None:
        if self.fast is None or self.slow is None or chosen.store.url == self.fast.url:
            return
        with suppress(TierError):  # then new copies get other names, as copies of another run do
            go_on(self.fast, self.slow, chosen)

    def others(self) -> str:
        """Return a sentence if the slow tier has checkpoints of another fast tier, and the run does
        not continue the other run; else an empty string.  Raises TierError."""
        if self.fast is None or self.slow is None:
            return ""
        origins_there = {
            checkpoint.manifest.origin
            for checkpoint in find(self.slow)
            if checkpoint.manifest is not None
        }
        others = sorted(origins_there - {"", *origins(self.fast)})
        if not others:
            return ""
        return (
            f"{self.slow.url}: has checkpoints of another fast tier, {others[0]}, too; which stay "
            "and which is restored goes by the step, whoever saved it: restore() before the first "
            "save goes on with that run, and another run needs a folder of its own"
        )

    def own_first(self, wanted: Callable[[Checkpoint], bool]) -> Callable[[Checkpoint], bool]:
        """Return a filter for wanted checkpoints without copies from another fast tier.

        Another fast tier belongs to another run, or to the run's earlier node with another path.
        If no checkpoint is from the run's own fast tier, the filter excludes nothing."""
        others = {other.where for other in self._others(self._found(wanted)[0])}
        for where in sorted(others):
            log.warning("passed over: %s: %s", where, _OF_OTHERS)
        return lambda checkpoint: wanted(checkpoint) and checkpoint.where not in others

    def _found(
        self, wanted: Callable[[Checkpoint], bool]
    ) -> tuple[list[Checkpoint], list[tuple[str, str]]]:
        """Return the wanted checkpoints of both tiers, and each unreadable tier with the reason."""
        checkpoints: list[Checkpoint] = []
        rejected: list[tuple[str, str]] = []
        for store in (self.fast, self.slow):
            try:
                checkpoints += [
                    checkpoint
                    for checkpoint in (find(store) if store else ())
                    if wanted(checkpoint)
                ]
            except TierError as error:
                rejected.append((store.url if store else "", str(error)))
        return checkpoints, rejected

    def _others(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Return the copies from another fast tier; empty if no checkpoint is from the run's own
        fast tier."""
        if self.fast is None:
            return []
        fast = origin_of(self.fast)
        came_from = [
            fast
            if checkpoint.store is self.fast
            else checkpoint.manifest.origin
            if checkpoint.manifest
            else ""
            for checkpoint in checkpoints
        ]
        if not {fast, self.fast.url} & set(came_from):
            return []
        ours = ("", *origins(self.fast))
        return [
            checkpoint
            for checkpoint, origin in zip(checkpoints, came_from, strict=True)
            if origin not in ours
        ]

    def _here(self, choice: RestartChoice) -> Path | None:
        """Return the path of the chosen checkpoint; first fetch a checkpoint behind a URL to the
        fast tier."""
        if choice.path is not None or choice.checkpoint is None:
            return choice.path
        assert self.fast is not None
        return fetch(choice.checkpoint, self.fast.folder)

    def fetch_as(self, path: Path, wanted: Path) -> None:
        """Give a checkpoint of either tier the path `wanted` on the fast tier, by one rename.  A
        checkpoint of the slow tier is fetched and checked first.  Raises TierError, SaveError."""
        assert self.fast is not None
        if not path.is_relative_to(self.fast.folder):
            assert isinstance(self.slow, LocalStore)
            name = os.fspath(path.relative_to(self.slow.folder))
            path = fetch(
                next(checkpoint for checkpoint in find(self.slow) if checkpoint.name == name),
                self.fast.folder,
            )
        try:
            path.rename(wanted)
            fsync_folder(wanted.parent)
        except OSError as error:
            raise TierError(f"{wanted}: {error.strerror}") from error

    def damage(self, chosen: Chosen, why: str) -> str:
        """Read in full a chosen checkpoint that could not be loaded.  Return the damage; empty if
        the checkpoint is whole.  A damaged checkpoint is recorded and not chosen again."""
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

    # Copies on the slow tier

    def on_slow(self, name: str, content: str, is_over: bool) -> str | None:
        """Return the path of a whole copy with a name and content on the slow tier; None: the copy
        has not arrived yet.

        The manifest is the evidence: the drain writes the manifest after the comparison.  is_over:
        the drain has ended.  Then the content may have another name, as the drain does not copy
        equal bytes twice, and as another run may have the name.  Raises TierError."""
        assert self.slow is not None
        inside = f"{name}/{INSIDE}"
        try:
            if self.slow.stat(inside) is not None:
                with suppress(SaveError):  # a damaged manifest is not from the last comparison
                    if parse(self.slow.read(inside), self.slow.where(inside)).content == content:
                        return self.slow.where(name)
        except TierError as error:
            if not is_of_one_file(error):  # else the drain gives the copy another name
                raise
        return self._elsewhere(content) if is_over else None

    def _elsewhere(self, content: str) -> str | None:
        assert self.slow is not None
        for checkpoint in find(self.slow):
            if (
                checkpoint.manifest is not None
                and checkpoint.manifest.content == content
                and not checkpoint.problem
            ):
                return checkpoint.where
        return None


_OF_OTHERS = "drained from another fast tier, and this one has its own; it may be another run's"


def _is_called(checkpoint: Checkpoint, name: str) -> bool:
    """Return True if a checkpoint has a name, or was saved under the name and got another name on
    the slow tier because another run has the name."""
    return name in (checkpoint.name, checkpoint.called)


def content_at(path: str) -> tuple[str | None, str]:
    """Return the content of a committed checkpoint, and an empty string.

    An empty content: the checkpoint is gone (the drain's rules have removed the checkpoint), or the
    manifest is damaged.  None: the manifest cannot be read now; the second value is the reason."""
    try:
        return parse((Path(path) / INSIDE).read_bytes(), path).content, ""
    except (FileNotFoundError, SaveError):
        return "", ""
    except OSError as error:
        return None, str(error)


_jobs: dict[str, Claim] = {}


def claim_for_process(fast: AnyPath) -> None:
    """Claim a folder for the job in this process, until the process ends.  A second call does
    nothing.  A Checkpointer needs no call: the writer makes the claim.  Raises SaveError: another
    job saves to the folder; TierError."""
    key = os.path.realpath(fast)
    if key not in _jobs:
        _jobs[key] = claim(fast, "job")


_drains: dict[tuple[str, str], Drain] = {}


def drain_beside(
    fast: AnyPath, slow: AnyPath, keep: Keep | None = None, rate: str | None = None
) -> Drain:
    """Return this process's drain of two tiers; start a drain if none is alive.

    A drain with other rules, left by an earlier Checkpointer, is replaced.  The drain goes on after
    the training for at most Drain.grace_s seconds.  Raises TierError, SaveError."""
    # Under `penstock run` the drain knows the run, and pauses while the run's data wait rises.
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
    """Return an equal text for all spellings of a place."""
    text = os.fspath(place)
    return text if "://" in text else os.path.realpath(text)


def rate_bps(text: str | None) -> float | None:
    """Return a rate such as "300MB/s" in bytes per second; None: no limit.  Raises SaveError."""
    if text is None:
        return None
    is_text = isinstance(text, str)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B/s\s*", text) if is_text else None
    if not match or not float(match[1]):
        raise SaveError(f"{text!r} is no rate; say one such as 300MB/s, or None for no limit")
    base = 1024.0 if match[3] else 1000.0
    return float(match[1]) * float(base ** " kMGT".index(match[2] or " "))


def to_text(chosen: Chosen) -> str:
    """Return the choice as text for the other ranks."""
    path = None if chosen.path is None else os.fspath(chosen.path)
    return json.dumps([path, chosen.step, chosen.rejected])


def from_text(text: str) -> Chosen:
    path, step, rejected = json.loads(text)
    return Chosen(
        None if path is None else Path(path), step, tuple((where, why) for where, why in rejected)
    )
