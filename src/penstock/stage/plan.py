"""Plan the staging: which files of a run go to a tier, the expected gain, and gain by bytes staged.

Knows evidence, tiers, choices and predictions; copies nothing.  A plan is a file of JSON lines.
The first line is about the whole plan, so a reader can take a million files line by line.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from penstock.errors import TierError
from penstock.places import tiers
from penstock.places.registry import Tier
from penstock.stage.choose import POLICIES, Choice, by_density, choose, exchanged, worth
from penstock.stage.duration import duration
from penstock.stage.evidence import Evidence
from penstock.stage.held import past, taken_bytes
from penstock.stage.manifest import Identity, StagedCopy, TierPlace, stored_bytes
from penstock.stage.predict import UNLIKE, Expected, Prediction, Predictor, expected
from penstock.stage.source import Kinds, WantedFile
from penstock.stage.today import GONE, NOW, now_of, real_path
from penstock.words import count, per_cent, show

__all__ = ["ComparedPolicy", "Plan", "RoomPoint", "plan"]

Array = NDArray[Any]
PhaseProgress = Callable[[str, float], None]
Look = Callable[[Sequence[str]], Array]
CURVE_POINTS = 10
ASKED_FILES, ASKED_LEAST = 100, 5  # of each device: a fifth of a second where asking takes 2 ms


# Exchanging files may take half a second; a smaller gain is chance.
TRIES, TRIED_BATCHES, MOST_EXCHANGED, LEAST_MORE = 600, 200_000, 2000, 0.005
LEAST_SHARE = 0.001  # of the data wait: less is chance, about the time of reading from memory
KEPT_FREE_BYTES = 64 << 20  # of a tier without a stated capacity


@dataclass(frozen=True, slots=True)
class RoomPoint:
    """A point of the curve: the data wait the best files of size_bytes would remove."""

    size_bytes: int
    gain_s: float


@dataclass(frozen=True, slots=True)
class ComparedPolicy:
    """The gain of another policy with equal room."""

    policy: str
    files: int
    size_bytes: int
    gain_s: float


class Files(Sequence[WantedFile]):
    """Files to copy as columns; rows are made on access."""

    def __init__(self, paths: Sequence[str], gain_s: Array) -> None:
        self._paths, self._gain_s = paths, gain_s

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, place: int) -> WantedFile: ...

    @overload
    def __getitem__(self, place: slice) -> Files: ...

    def __getitem__(self, place: int | slice) -> WantedFile | Files:
        if isinstance(place, slice):
            return Files(self._paths[place], self._gain_s[place])
        return WantedFile(self._paths[place], float(self._gain_s[place]))

    def __iter__(self) -> Iterator[WantedFile]:
        return map(WantedFile, self._paths, self._gain_s.tolist())


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan.  gain_s: data wait expected to go, out of wait_s in wall_s (None: not measured).

    how: remade or summed, see Prediction.  of_best: at least this share of the best possible
    choice.  files, size_bytes: chosen, including the run's files already staged.  all_files,
    all_bytes: read by the run.  copy_s, copy_least_s: time for files without a copy, at most and at
    least, see Duration; None: not known.  wanted: the files by gain per byte, each under all names
    used in the run.
    """

    run: str
    tier: str
    policy: str
    budget_bytes: int
    files: int
    size_bytes: int
    all_files: int
    all_bytes: int
    gain_s: float
    how: str
    off: float | None
    of_best: float | None
    wait_s: float | None
    wall_s: float | None
    epochs: int
    copy_least_s: float | None
    copy_s: float | None
    curve: tuple[RoomPoint, ...]
    compared: tuple[ComparedPolicy, ...]
    notes: tuple[str, ...]
    wanted: Sequence[WantedFile] = field(default=(), repr=False)


def plan(
    run: str,
    evidence: Evidence,
    tier: Tier,
    *,
    budget_bytes: int | None = None,
    policy: str = "gain",
    slow_bps: float | None = None,
    progress: PhaseProgress | None = None,
    look: Look = now_of,
) -> Plan:
    """Choose files of a run for a tier.

    budget_bytes: None means the tier's capacity, or its free room.  slow_bps: the source's ceiling,
    for the time of copying.  look: as `now_of`; missing files are not chosen, grown files take more
    room.  Raises TierError: no measured costs, no room, nothing to stage.
    """
    if tier.costs is None:
        raise TierError(f"{tier.name}: not measured; penstock tiers measure {tier.name}")
    if policy not in POLICIES:
        raise TierError(f"{policy}: no such policy; one of {', '.join(POLICIES)}")
    tell = progress or (lambda what, share: None)
    notes = list(evidence.notes)
    tell("asking files", 0.02)
    first = _looked(evidence.paths, evidence.device, look)
    is_twin, is_here = _served(evidence, tier, first)
    evidence, now, is_gone = _as_now(evidence, is_twin, first, look, notes)
    evidence = _with_gainless(evidence, tier, is_twin, is_here, notes)
    budget, is_held = _budget(tier, budget_bytes, evidence, now, is_twin | is_gone, notes)
    size = np.where(is_held, 0, stored_bytes(evidence.size_bytes))  # a copy there takes no more
    _say_served(evidence, is_twin, is_here & ~is_gone, is_held, tier, notes)
    evidence = replace(evidence, check_s=_check_s(evidence))
    tell("weighing files", 0.1)
    is_fit = _fit(evidence, size, budget, is_held, is_gone, notes)
    size = np.where(is_fit, size, budget + 1)
    predictor = Predictor(forecast := expected(evidence, tier.costs))
    tell("remaking the loader", 0.3)
    taking = np.where(is_gone, 0, size)  # missing files do not make a folder incomplete

    def by(policy: str, weighed: _Weighed) -> _Found:
        choice = choose(evidence, weighed.value, taking, budget, policy, order=weighed.order)
        is_chosen = (choice.is_chosen & ~is_gone) | is_held  # existing copies stay
        return _Found(replace(choice, is_chosen=is_chosen), predictor.predict(is_chosen), weighed)

    choices = (by(policy, weighed) for weighed in _weighed(forecast, is_fit, size))
    ours = max(choices, key=lambda choice: choice.expected.gain_s)
    others = {other: by(other, ours.weighed) for other in POLICIES if other != policy}
    more: list[str] = []
    if policy == "gain":
        ours = _or_small(ours, others["small"], more)
        ours = _exchanged(size, budget, predictor, ours, is_held, more)
    value, order = ours.weighed.value, ours.weighed.order
    curve = tuple(_curve(predictor, value, size, order, tell))
    if _is_nothing(evidence, curve, (ours, *others.values())):
        ours, others, curve = _nothing(ours, is_held), {}, ()
    if ours.expected.gain_s > 0:
        _say_how(ours.expected, predictor, notes := [*notes, *more])
    else:
        _say_nothing(forecast, tier, is_fit & ~is_held, is_twin | is_gone, is_held, notes)
    chosen = order[ours.choice.is_chosen[order]]
    copying = duration(evidence, ours.choice.is_chosen & ~is_held, tier, slow_bps)
    return Plan(
        run, tier.name, policy, budget, int(now.files[chosen].sum()),
        int(evidence.size_bytes[chosen].sum()), int(now.files[~is_twin].sum()),
        int(evidence.size_bytes.sum()), ours.expected.gain_s, ours.expected.how, ours.expected.off,
        ours.choice.of_best, evidence.wait_s, evidence.wall_s, evidence.epochs,
        copying.least_s if copying else None, copying.most_s if copying else None, curve,
        tuple(_compared(name, evidence, now.files, other) for name, other in others.items()),
        tuple(notes), _files(evidence, chosen, value[chosen]),
    )  # fmt: skip


def _files(evidence: Evidence, chosen: Array, gain_s: Array) -> Files:
    """Return the chosen files under all names: an open finds a copy by the name in the open."""
    named = [evidence.paths[place] for place in chosen.tolist()]
    paths = [real_path(path) if "\\x" in path else path for path in named]
    if evidence.names:
        more = [evidence.names.get(place, ()) for place in chosen.tolist()]
        counts = np.array([1 + len(names) for names in more], np.int64)
        paths = [
            path
            for first, names in zip(paths, more, strict=True)
            for path in (first, *map(real_path, names))
        ]
        # The gain of a file counts once.
        each_s = np.zeros(len(paths))
        each_s[np.cumsum(counts) - counts] = gain_s
        gain_s = each_s
    return Files(paths, gain_s)


def _served(evidence: Evidence, tier: Tier, first: Array) -> tuple[Array, Array]:
    """Return the rows of existing copies.

    The first array marks rows of a copy whose file has a row too; the second marks other rows of
    copies on the tier.  first: rows of NOW of the paths.
    """
    none = np.zeros(len(evidence), bool)
    if not any(evidence.served_by):
        return none, none
    is_served = np.array([tier_name is not None for tier_name in evidence.served_by])
    kinds = Kinds()

    def keys(at: int) -> Iterator[Any]:
        """Yield keys shared by rows of one file: names in the run, and the current identity, as the
        run may have read a hard link or another path."""
        path = evidence.paths[at]
        yield from (path, *evidence.names.get(at, ()))
        if first[at]["size_bytes"] >= 0:
            now = Identity(*first[at].item())
            yield now, kinds.one_name(now.dev, real_path(path))

    themselves = {key for at in np.flatnonzero(~is_served).tolist() for key in keys(at)}
    is_twin = np.zeros(len(evidence), bool)
    for at in np.flatnonzero(is_served).tolist():
        is_twin[at] = not themselves.isdisjoint(keys(at))
    is_here = np.array([tier_name == tier.name for tier_name in evidence.served_by])
    return is_twin, is_here & ~is_twin


@dataclass(frozen=True, slots=True, eq=False)
class _Now:
    """The current state of a run's files: columns of the evidence's length.

    first: rows of NOW, of the first name with a file.  others: by row number, further files of
    names that belonged to a single file in the run.  files: number of files of each row.
    """

    first: Array
    files: Array
    others: Mapping[int, tuple[_Other, ...]]


@dataclass(frozen=True, slots=True)
class _Other:
    """A link of another file in the run, now a separate file."""

    names: tuple[str, ...]
    identity: Identity


def _as_now(
    evidence: Evidence, is_twin: Array, first: Array, look: Look, notes: list[str]
) -> tuple[Evidence, _Now, Array]:
    """Return the evidence with current sizes and names, the current files, and a mark for missing
    files.

    first: rows of NOW of the paths.
    """
    evidence, others = _apart(evidence, first, look)
    now = first["size_bytes"]
    files, more_bytes = np.ones(len(now), np.int64), np.zeros(len(now), np.int64)
    for at, apart in others.items():
        files[at] += len(apart)
        more_bytes[at] = sum(int(stored_bytes(other.identity.size_bytes)) for other in apart)
    is_gone = (now < 0) & ~is_twin
    is_other = (now >= 0) & (evidence.size_bytes > 0) & (now != evidence.size_bytes) & ~is_twin
    n_gone, n_unseen = (int((is_gone & is_one).sum()) for is_one in (now == GONE, now != GONE))
    if n_gone and n_gone == len(evidence) - is_twin.sum():
        notes.append("none of the run's files is there: plan where they are, or from another run")
    elif n_gone:
        notes.append(f"{count(n_gone, 'file')} of the run not there any more: left out")
    if n_unseen:
        notes.append(
            f"{count(n_unseen, 'file')} not to be looked at, or of a time out of reach: left out"
        )
    if is_other.any():
        notes.append(
            f"{count(int(is_other.sum()), 'file')} of another size than in the run: room is "
            "planned for what they have now, gain as they were"
        )
    if others:
        notes.append(
            f"{count(len(others), 'file')} of which some names lead to another file by now, or to "
            "what cannot be told from one: room is planned for all that they lead to, gain as they "
            "were"
        )
    size = np.where(now >= 0, now + more_bytes, evidence.size_bytes)
    return replace(evidence, size_bytes=size), _Now(first, files, others), is_gone


def _looked(paths: Sequence[str], device: Array, look: Look) -> Array:
    """Look at the files of each file system in turn."""
    devices = np.unique(device).tolist()
    if len(devices) == 1:
        return look(paths)
    rows = np.empty(len(paths), NOW)
    for one_device in devices:
        files = np.flatnonzero(device == one_device)
        rows[files] = look([paths[at] for at in files.tolist()])
    return rows


def _apart(
    evidence: Evidence, first: Array, look: Look
) -> tuple[Evidence, dict[int, tuple[_Other, ...]]]:
    """Return the evidence with the remaining names of each file, and the names that are separate
    files now.

    Write the state of the first remaining name into `first`.
    """
    if not evidence.names:
        return evidence, {}
    pairs = [(at, name) for at, more in evidence.names.items() for name in more]
    device = evidence.device[[at for at, _ in pairs]]
    seen = _looked([name for _, name in pairs], device, look)
    kinds = Kinds()
    files: dict[int, dict[tuple[Identity, str], list[str]]] = {}
    rows = [(at, evidence.paths[at], first[at]) for at in evidence.names]
    rows += [(at, name, row) for (at, name), row in zip(pairs, seen, strict=True)]
    for at, name, row in rows:
        if row["size_bytes"] >= 0:
            identity = Identity(*row.item())
            key = identity, kinds.one_name(identity.dev, real_path(name))
            files.setdefault(at, {}).setdefault(key, []).append(name)
    paths, names, others = list(evidence.paths), {}, {}
    for at, apart in files.items():
        paths[at], *left = itertools.chain.from_iterable(apart.values())
        names[at] = tuple(left)
        identities = [_Other(tuple(places), identity) for (identity, _), places in apart.items()]
        first[at] = astuple(identities[0].identity)
        if identities[1:]:
            others[at] = tuple(identities[1:])
    return replace(evidence, paths=tuple(paths), names=names), others


def _with_gainless(
    evidence: Evidence, tier: Tier, is_twin: Array, is_here: Array, notes: list[str]
) -> Evidence:
    """Mark files without a gain from a copy: on the tier's device, or read from a copy already."""
    is_same = (evidence.device == tiers.device_of(tier.path)) & ~is_here & ~is_twin
    if is_same.any():
        notes.append(
            f"{count(int(is_same.sum()), 'file')} on the same device as {tier.name}: no gain"
        )
    size = np.where(is_twin, 0, np.maximum(evidence.size_bytes, 0))
    return replace(evidence, size_bytes=size, is_gainless=is_same | is_here | is_twin)


def _say_served(
    evidence: Evidence,
    is_twin: Array,
    is_here: Array,
    is_held: Array,
    tier: Tier,
    notes: list[str],
) -> None:
    """Add notes on the limits of a run with reads from copies, as evidence about the source
    files."""
    stays, gone = int((is_here & is_held).sum()), int((is_here & ~is_held).sum())
    if stays:
        notes.append(
            f"{count(stays, 'file')} read from copies on {tier.name}, which stay: what they bring "
            "is gone from this run's wait already, and counts as nothing here"
        )
    if gone:
        notes.append(
            f"{count(gone, 'file')} read from copies that {tier.name} does not hold any more, or "
            "not as the files are now: what reading them where they lie costs this run does not "
            "tell; plan from a run that did"
        )
    others = {tier_name for tier_name in evidence.served_by if tier_name not in (None, tier.name)}
    if others:
        notes.append(
            f"some files were read from copies on {', '.join(map(str, sorted(others)))}: "
            "their gain is against reading those"
        )
    if is_twin.any():
        notes.append(
            f"{count(int(is_twin.sum()), 'file')} read in part from copies: only what was read "
            "from themselves counts"
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Weighed:
    """The worth of files, and their numbers by worth per byte."""

    value: Array
    order: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A choice, its expected gain, and the worths that led to it."""

    choice: Choice
    expected: Prediction
    weighed: _Weighed


def _worths(forecast: Expected) -> Iterator[Array]:
    """Yield two estimates of the gain by file: by the waits for each file, and by the waits for all
    fetched files.  The remade loader shows the better estimate."""
    yield worth(forecast)
    if forecast.evidence.batches is not None:
        yield worth(forecast, is_shared=True)


def _weighed(forecast: Expected, is_fit: Array, size: Array) -> list[_Weighed]:
    values = [np.where(is_fit, value, 0.0) for value in _worths(forecast)]
    return [_Weighed(value, by_density(value, size)) for value in values]


def _or_small(ours: _Found, small: _Found, notes: list[str]) -> _Found:
    """Return `ours`, or all files below a size, unless `ours` surely gains more.

    Single times are chance: among files opened once a size may predict more.
    """
    if small.expected.gain_s * (1 + LEAST_MORE) < ours.expected.gain_s:
        return ours
    if small.expected.gain_s > ours.expected.gain_s * (1 + LEAST_MORE):
        more = "more here than"
    else:
        more = "as much here as"
    notes.append(f"all files below a size: expected to bring {more} the most worth per byte")
    return _Found(_instead(ours, small.choice.is_chosen), small.expected, small.weighed)


def _instead(ours: _Found, is_chosen: Array) -> Choice:
    """Return another choice, with its share of the best possible worth."""
    value, of_best = ours.weighed.value, ours.choice.of_best
    most_s = float(value[ours.choice.is_chosen].sum())
    if of_best is None or most_s <= 0:
        return Choice(is_chosen, of_best)
    return Choice(is_chosen, min(1.0, of_best * float(value[is_chosen].sum()) / most_s))


def _exchanged(
    size: Array,
    budget: int,
    predictor: Predictor,
    ours: _Found,
    is_held: Array,
    notes: list[str],
) -> _Found:
    """Return `ours` with files exchanged, where the remade loader then waits less.

    The joint gain of files is not the sum of their worths.  Among thousands of files no single
    exchange has a visible effect.
    """
    evidence = predictor.evidence
    if evidence.batches is None or len(evidence) > MOST_EXCHANGED:
        return ours
    tries = min(TRIES, TRIED_BATCHES // len(evidence.batches))
    better, gain_s = exchanged(
        ours.choice.is_chosen,
        size,
        budget,
        lambda choice: predictor.predict(choice | is_held).gain_s,
        tries,
    )
    better = better | is_held
    if gain_s <= ours.expected.gain_s * (1 + LEAST_MORE):
        return ours
    notes.append(
        f"exchanging files is expected to bring {show(gain_s - ours.expected.gain_s, 's')} more "
        "than the most worth"
    )
    expects = replace(ours.expected, gain_s=gain_s)
    return _Found(_instead(ours, better), expects, ours.weighed)


def _budget(
    tier: Tier,
    asked_bytes: int | None,
    evidence: Evidence,
    now: _Now,
    is_out: Array,
    notes: list[str],
) -> tuple[int, Array]:
    """Return the bytes to copy, and a mark for each of the run's files with a copy on the tier.

    The budget is the given number, limited by the capacity left by existing copies and by free
    room.
    """
    place = TierPlace(tier)
    entries = place.entries().values()
    is_held = np.zeros(len(evidence), bool)
    if entries:
        is_held = np.array(list(_held(evidence, now, place, entries)), bool) & ~is_out
    taken = taken_bytes(entries)
    # Rows of the run's files are reused: asking a server about a million files takes minutes.
    seen = {path: at for at, path in enumerate(evidence.paths)} if entries else {}
    stale = past(entries, seen, now.first)
    stale_bytes = taken_bytes(stale)  # the copying removes stale copies where room is needed
    theirs = int(stored_bytes(evidence.size_bytes[is_held]).sum())
    room = tiers.free_bytes(tier.path) - KEPT_FREE_BYTES + stale_bytes
    if tier.capacity_bytes is not None:
        room = min(room, tier.capacity_bytes - taken + stale_bytes)
    if taken:
        ours = f"{show(theirs, 'B')} of them this run's: they stay"
        notes.append(
            f"{show(taken, 'B')} are staged on {tier.name} already, "
            f"{ours if theirs else 'none of them files of this run as they are now'}; "
            f"penstock stage evict {tier.name} lets the plan choose anew"
        )
    if stale:
        notes.append(
            f"copies of {count(len(stale), 'file')}, {show(stale_bytes, 'B')}, are of what was "
            "there before: they serve nothing, and their room counts as free"
        )
    if asked_bytes is not None and asked_bytes > room + theirs:
        notes.append(
            f"the budget of {show(asked_bytes, 'B')} is more than {tier.name} has room for: "
            f"{show(max(0, room + theirs), 'B')}"
        )
    budget = room if asked_bytes is None else min(asked_bytes - theirs, room)
    if budget <= 0 and not theirs:
        raise TierError(
            f"{tier.name}: full: {tier.path} has no room; penstock stage evict {tier.name}"
        )
    return max(0, budget), is_held


def _held(
    evidence: Evidence, now: _Now, place: TierPlace, entries: Collection[StagedCopy]
) -> Iterator[bool]:
    """Yield for each file whether a current copy of it is on the tier.

    A copy is found by any name of the file, by the path of a copy read in the run, or by the file's
    identity, as the run may have used other names than the staging.
    """
    copies = _Copies(entries, now.first["ino"])
    if any(evidence.served_by):
        copies.add_paths_on(place)
    for at, (path, resolved) in enumerate(zip(evidence.paths, evidence.resolved, strict=True)):
        names = (path, resolved or "")
        copy = copies.named(*names)
        if copy is None and ("\\x" in path or at in evidence.names):
            copy = copies.named(*map(real_path, (*names, *evidence.names.get(at, ()))))
        if copy is None and not copies.may_be_held[at]:
            yield False
            continue
        yield copies.is_current(copy, Identity(*now.first[at].item())) and all(
            copies.is_current(copies.named(*other.names), other.identity)
            for other in now.others.get(at, ())
        )


class _Copies:
    """The copies on a tier by the names and by the identities of their sources.

    may_be_held: for each file of the plan whether a copy has the file's inode number.
    """

    def __init__(self, entries: Collection[StagedCopy], inos: Array) -> None:
        self._entries = entries
        self._by_name = {name: copy for copy in entries for name in (copy.source, *copy.names)}
        # An inode number made up by the file system at each mount may belong to another file by
        # now.
        self._sources = {copy.identity for copy in entries if not copy.is_url and copy.is_ino_kept}
        copied_inos = np.array([source.ino for source in self._sources], np.uint64)
        self.may_be_held: list[bool] = np.isin(inos, copied_inos).tolist()

    def add_paths_on(self, place: TierPlace) -> None:
        """Let `named` also find each copy by the copy's path on the tier."""
        self._by_name |= {f"{place.copies}/{copy.copy}": copy for copy in self._entries}

    def named(self, *names: str) -> StagedCopy | None:
        """Return the copy of the first name with a copy."""
        return next((self._by_name[name] for name in names if name in self._by_name), None)

    def is_current(self, copy: StagedCopy | None, identity: Identity) -> bool:
        """Return True if the copy, or any other copy, is of the file with the given identity."""
        if copy is not None and identity.is_same(copy.identity, copy.is_ino_kept):
            return True
        return identity in self._sources


def _fit(
    evidence: Evidence,
    size: Array,
    budget: int,
    is_held: Array,
    is_gone: Array,
    notes: list[str],
) -> Array:
    """Return the files allowed to be staged, including staged files; note the reasons against other
    files."""
    is_able = ~is_held & ~is_gone & ~np.broadcast_to(evidence.is_gainless, len(evidence))
    is_large = is_able & (size > budget)
    n_large = int(is_large.sum())
    if n_large and n_large == is_able.sum() and is_held.any():
        left = f"but for {show(budget, 'B')}" if budget else "all of it"
        notes.append(
            f"the budget is used up, {left}, by what is held: none of {n_large:,} other files fits"
        )
    elif n_large:
        largest = show(int(evidence.size_bytes[is_large].max()), "B")
        notes.append(
            f"{count(n_large, 'file')} larger than the budget, up to {largest}: a file "
            "is staged whole"
        )
    fit: Array = is_held | (is_able & ~is_large)
    return fit


def _check_s(evidence: Evidence) -> Array:
    """Estimate the seconds to check a source at each open, for each file.

    A sample of each device is asked now.  The cost is at most the time of an open in the run, and
    equal to the time of an open where no file exists now.  Where the program itself asks before the
    open, the cost is the time of asking again.
    """
    seconds = np.zeros(len(evidence))
    for device in np.unique(evidence.device).tolist():
        files = np.flatnonzero(evidence.device == device)
        opens = max(1.0, float(evidence.opens[files].sum()))
        most_s = float(evidence.open_s[files].sum()) / opens
        step = max(1, len(files) // ASKED_FILES)
        told_s = list(_stat_s(evidence.paths[place] for place in files[::step].tolist()))
        if len(told_s) >= min(ASKED_LEAST, len(files)):
            first_s, again_s = (
                min(most_s, sum(row) / len(told_s)) for row in zip(*told_s, strict=True)
            )
            seconds[files] = np.where(evidence.is_asked[files], again_s, first_s)
        else:
            seconds[files] = most_s
    return seconds


def _stat_s(paths: Iterable[str]) -> Iterator[tuple[float, float]]:
    """Yield the seconds to ask about each existing file, and to ask again at once."""
    for name in paths:
        path = real_path(name)
        try:
            # A job has asked about its folders long before: looking up the folder is not part of
            # the cost.
            os.stat(path.rpartition("/")[0] or "/")  # noqa: PTH116
            begun_s = time.perf_counter()
            tiers.ask_anew(path)
            middle_s = time.perf_counter()
            tiers.ask_anew(path)
        except OSError:
            continue
        yield middle_s - begun_s, time.perf_counter() - middle_s


def _is_nothing(evidence: Evidence, curve: Iterable[RoomPoint], choices: Iterable[_Found]) -> bool:
    """Return True if no choice with any budget gains more than chance."""
    of_s = evidence.wait_s if evidence.wait_s is not None else float(evidence.time_s.sum())
    gains_s = [*(point.gain_s for point in curve), *(choice.expected.gain_s for choice in choices)]
    return max(gains_s) <= LEAST_SHARE * of_s


def _nothing(ours: _Found, is_held: Array) -> _Found:
    """Return a choice of the existing copies, with no gain."""
    none = Choice(is_held, None)
    return _Found(none, replace(ours.expected, gain_s=0.0), ours.weighed)


def _say_how(prediction: Prediction, predictor: Predictor, notes: list[str]) -> None:
    evidence = predictor.evidence
    if prediction.how == "summed" and evidence.batches is None and evidence.wait_s is not None:
        notes.append(
            "no worker fetched batches: the gain is the wait in calls of the files, less what is "
            "left of it on the tier"
        )
    if predictor.off is not None and predictor.off > UNLIKE:
        notes.append(
            f"the remade loader waits {per_cent(predictor.off)} more or less than the run did: "
            "take the gain for a guess"
        )


def _say_nothing(
    forecast: Expected,
    tier: Tier,
    is_able: Array,
    is_out: Array,
    is_held: Array,
    notes: list[str],
) -> None:
    """Note the reasons for a plan without gain.

    is_able: files allowed to be staged.  is_out: missing files, and files with a note already.
    """
    evidence = forecast.evidence
    is_gainless = np.broadcast_to(evidence.is_gainless, len(evidence))
    waited_s = evidence.blocking_s[is_able].sum()
    if is_out.all():
        return  # noted already, with the reason
    if is_held[~is_out].all():
        why = f"all of these files are staged on {tier.name} already"
    elif is_gainless[~is_out & ~is_held].all():
        why = f"these files lie on {tier.name}'s own device: name a tier on another"
    elif not is_able.any():
        why = "no file fits into the room that there is"
    elif evidence.wait_s is not None and waited_s <= 0:
        why = "the step loop waited for none of their reads"
    elif (forecast.kept[is_able] >= 1).all():
        why = (
            f"the run read them no slower than {tier.name} would give them; had they been in "
            "memory? (penstock report RUN)"
        )
    else:
        why = "with any of them staged the run is expected to wait as long"
    notes.insert(0, f"nothing {'more ' if is_held.any() else ''}to gain: {why}")


def _compared(policy: str, evidence: Evidence, files: Array, choice: _Found) -> ComparedPolicy:
    is_chosen = choice.choice.is_chosen
    return ComparedPolicy(
        policy,
        int(files[is_chosen].sum()),
        int(evidence.size_bytes[is_chosen].sum()),
        choice.expected.gain_s,
    )


def _curve(
    predictor: Predictor, value: Array, size: Array, order: Array, tell: PhaseProgress
) -> Iterator[RoomPoint]:
    """Yield the gain by bytes staged, adding files by value per byte."""
    order = order[value[order] > 0]
    yield RoomPoint(0, 0.0)
    if not len(order):
        return
    ends = np.cumsum(size[order])
    is_chosen = np.zeros(len(value), bool)
    done = 0
    for step in range(1, CURVE_POINTS + 1):
        n = max(1, int(np.searchsorted(ends, ends[-1] * step / CURVE_POINTS, side="right")))
        if n <= done:
            continue
        is_chosen[order[done:n]] = True
        done = n
        tell("drawing the curve", 0.4 + 0.6 * step / CURVE_POINTS)
        total = int(predictor.evidence.size_bytes[order[:n]].sum())
        yield RoomPoint(total, predictor.predict(is_chosen).gain_s)
