"""A plan: which files of a run go to a tier, what that is expected to bring, and the curve of it.

Knows evidence, tiers, choices and predictions; copies nothing.  A plan is a file of JSON lines, the
first of them what it is as a whole, so that a million files can be read one by one.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from penstock import tiers
from penstock.errors import MissingDependency, TierError
from penstock.registry import Tier
from penstock.stage.choose import POLICIES, Choice, by_density, choose, exchanged, worth
from penstock.stage.duration import duration
from penstock.stage.evidence import Evidence
from penstock.stage.held import stored_bytes
from penstock.stage.manifest import Place
from penstock.stage.predict import UNLIKE, Expected, Prediction, Predictor, expected
from penstock.stage.source import Wanted
from penstock.words import count, per_cent, show

__all__ = [
    "Compared",
    "Plan",
    "Point",
    "facts_of",
    "is_plan",
    "load",
    "picture",
    "plan",
    "store",
    "table_of",
]

Array = NDArray[Any]
Progress = Callable[[str, float], None]

VERSION = 1
MOST_LINE_BYTES = 1 << 20
CURVE_POINTS = 10
ASKED_FILES, ASKED_LEAST = 100, 5  # of each device: a fifth of a second where asking takes 2 ms
# Exchanging files: what it may take is half a second; a gain of less than this is chance.
TRIES, TRIED_BATCHES, MOST_EXCHANGED, LEAST_MORE = 600, 200_000, 2000, 0.005
KEPT_FREE_BYTES = 64 << 20  # of a tier without a stated capacity


@dataclass(frozen=True, slots=True)
class Point:
    """If the best of this many bytes were staged: the data wait that would be gone."""

    size_bytes: int
    gain_s: float


@dataclass(frozen=True, slots=True)
class Compared:
    """What another policy would bring with the same room."""

    policy: str
    files: int
    size_bytes: int
    gain_s: float


class Files(Sequence[Wanted]):
    """Files to be copied: columns, of which rows are made as they are asked for."""

    def __init__(self, paths: Sequence[str], gain_s: Array) -> None:
        self._paths, self._gain_s = paths, gain_s

    def __len__(self) -> int:
        return len(self._paths)

    @overload
    def __getitem__(self, place: int) -> Wanted: ...

    @overload
    def __getitem__(self, place: slice) -> Files: ...

    def __getitem__(self, place: int | slice) -> Wanted | Files:
        if isinstance(place, slice):
            return Files(self._paths[place], self._gain_s[place])
        return Wanted(self._paths[place], float(self._gain_s[place]))

    def __iter__(self) -> Iterator[Wanted]:
        return map(Wanted, self._paths, self._gain_s.tolist())


@dataclass(frozen=True, slots=True)
class Plan:
    """gain_s: data wait that is expected to be gone, of wait_s in wall_s (None: not measured).

    how: remade or summed, see Prediction.  of_best: at least this share of what any choice could
    reach.  files, size_bytes: chosen, with those of the run that are there and stay; all_files,
    all_bytes: what the run read.  copy_s, copy_least_s: of those that are not there yet, at most
    and at least, see Duration; None: not known.  wanted: the files, by gain per byte, each under
    all names by which the run opened it.
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
    curve: tuple[Point, ...]
    compared: tuple[Compared, ...]
    notes: tuple[str, ...]
    wanted: Sequence[Wanted] = field(default=(), repr=False)


def plan(
    run: str,
    evidence: Evidence,
    tier: Tier,
    *,
    budget_bytes: int | None = None,
    policy: str = "gain",
    slow_bps: float | None = None,
    progress: Progress | None = None,
) -> Plan:
    """Chooses files of a run for a tier.  budget_bytes: None is the tier's capacity, or what is
    free.  slow_bps: what the source gives at most, for the time of copying.

    Raises TierError: a tier that was not measured, one without room, nothing to stage.
    """
    if tier.costs is None:
        raise TierError(f"{tier.name}: not measured; penstock tiers measure {tier.name}")
    if policy not in POLICIES:
        raise TierError(f"{policy}: no such policy; one of {', '.join(POLICIES)}")
    tell = progress or (lambda what, share: None)
    notes = list(evidence.notes)
    is_twin, is_here = _served(evidence, tier)
    n_files = len(evidence) - int(is_twin.sum())
    evidence = _with_gainless(evidence, tier, is_twin, is_here, notes)
    size = stored_bytes(evidence.size_bytes)
    budget, is_held = _budget(tier, budget_bytes, evidence, is_twin, notes)
    size = np.where(is_held, 0, size)  # a copy that is there takes no more room
    _say_served(evidence, is_twin, is_here, is_held, tier, notes)
    tell("asking files", 0.05)
    evidence = replace(evidence, check_s=_check_s(evidence, notes))
    tell("weighing files", 0.1)
    is_fit = _fit(evidence, size, budget, is_held, notes)
    size = np.where(is_fit, size, budget + 1)
    known = expected(evidence, tier.costs)
    predictor = Predictor(known)
    tell("remaking the loader", 0.3)

    def by(policy: str, weighed: _Weighed) -> _Found:
        choice = choose(evidence, weighed.value, size, budget, policy, order=weighed.order)
        choice = replace(choice, is_chosen=choice.is_chosen | is_held)  # what is there stays
        return _Found(choice, predictor.predict(choice.is_chosen), weighed)

    weighed = []
    for value in _worths(known):
        value = np.where(is_fit, value, 0.0)
        weighed.append(_Weighed(value, by_density(value, size)))
    ours = max((by(policy, one) for one in weighed), key=lambda one: one.expected.gain_s)
    others = {other: by(other, ours.weighed) for other in POLICIES if other != policy}
    if policy == "gain":
        ours = _or_small(ours, others["small"], notes)
        ours = _exchanged(size, budget, predictor, ours, is_held, notes)
    _say_how(ours.expected, predictor, notes)
    value, order = ours.weighed.value, ours.weighed.order
    curve = _curve(predictor, value, size, order, tell)
    chosen = order[ours.choice.is_chosen[order]]
    if not len(chosen) and not np.all(evidence.is_gainless):
        notes.append("nothing is worth staging: no file's reads were waited for")
    total = int(evidence.size_bytes[chosen].sum())
    copying = duration(evidence, ours.choice.is_chosen & ~is_held, tier, slow_bps)
    return Plan(
        run, tier.name, policy, budget, len(chosen), total, n_files,
        int(evidence.size_bytes.sum()), ours.expected.gain_s, ours.expected.how, ours.expected.off,
        ours.choice.of_best, evidence.wait_s, evidence.wall_s, evidence.epochs,
        copying.least_s if copying else None, copying.most_s if copying else None, tuple(curve),
        tuple(_compared(name, evidence, one) for name, one in others.items()), tuple(notes),
        _files(evidence, chosen, value[chosen]),
    )  # fmt: skip


def _files(evidence: Evidence, chosen: Array, gain_s: Array) -> Files:
    """Under all their names: opens are served by the name that they use."""
    paths = [_real_path(evidence.paths[place]) for place in chosen.tolist()]
    if evidence.names:
        more = [evidence.names.get(place, ()) for place in chosen.tolist()]
        counts = np.array([1 + len(names) for names in more], np.int64)
        paths = [
            path
            for first, names in zip(paths, more, strict=True)
            for path in (first, *map(_real_path, names))
        ]
        # What a file brings is told once.
        each_s = np.zeros(len(paths))
        each_s[np.cumsum(counts) - counts] = gain_s
        gain_s = each_s
    return Files(paths, gain_s)


def _served(evidence: Evidence, tier: Tier) -> tuple[Array, Array]:
    """Which rows are of a copy whose file has a row of its own; which other ones of this tier's."""
    none = np.zeros(len(evidence), bool)
    if not any(evidence.served_by):
        return none, none
    is_served = np.array([one is not None for one in evidence.served_by])
    pairs = list(zip(evidence.paths, is_served.tolist(), strict=True))
    themselves = {path for path, is_copy in pairs if not is_copy}
    is_twin = np.array([is_copy and path in themselves for path, is_copy in pairs])
    is_here = np.array([one == tier.name for one in evidence.served_by])
    return is_twin, is_here & ~is_twin


def _with_gainless(
    evidence: Evidence, tier: Tier, is_twin: Array, is_here: Array, notes: list[str]
) -> Evidence:
    """Of which files a copy changes nothing: they lie on its device, or it was read already."""
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
    """What a run that read copies does not tell of their files."""
    stays, gone = int((is_here & is_held).sum()), int((is_here & ~is_held).sum())
    if stays:
        notes.append(
            f"{count(stays, 'file')} read from copies on {tier.name}, which stay: what they bring "
            "is gone from this run's wait already, and counts as nothing here"
        )
    if gone:
        notes.append(
            f"{count(gone, 'file')} read from copies that {tier.name} does not hold any more: what "
            "reading them where they lie costs this run does not tell; plan from a run that did"
        )
    others = {one for one in evidence.served_by if one not in (None, tier.name)}
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
    """What files are worth, and their numbers by worth per byte."""

    value: Array
    order: Array


@dataclass(frozen=True, slots=True, eq=False)
class _Found:
    """A choice, what it is expected to bring, and the worths that it was chosen by."""

    choice: Choice
    expected: Prediction
    weighed: _Weighed


def _worths(known: Expected) -> Iterator[Array]:
    """What files are worth by the waits for each, and by those for all that workers fetched: which
    of the two guides better shows the remade loader."""
    yield worth(known)
    if known.evidence.batches is not None:
        yield worth(known, is_shared=True)


def _or_small(ours: _Found, small: _Found, notes: list[str]) -> _Found:
    """Ours, or all files below a size, unless ours surely brings more: single times are chance, and
    among files that were opened once a size may say more."""
    if small.expected.gain_s * (1 + LEAST_MORE) < ours.expected.gain_s:
        return ours
    if small.expected.gain_s > ours.expected.gain_s * (1 + LEAST_MORE):
        more = "more here than"
    else:
        more = "as much here as"
    notes.append(f"all files below a size: expected to bring {more} the most worth per byte")
    return _Found(_instead(ours, small.choice.is_chosen), small.expected, small.weighed)


def _instead(ours: _Found, is_chosen: Array) -> Choice:
    """Another choice, with its share of the worth that any could have."""
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
    """Ours with files exchanged, where the remade loader then waits less: what files bring together
    is not the sum of their worths.  Among thousands no single exchange shows."""
    evidence = predictor.evidence
    if evidence.batches is None or len(evidence) > MOST_EXCHANGED:
        return ours
    tries = min(TRIES, TRIED_BATCHES // len(evidence.batches))
    better, gain_s = exchanged(
        ours.choice.is_chosen,
        size,
        budget,
        lambda one: predictor.predict(one | is_held).gain_s,
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
    tier: Tier, told: int | None, evidence: Evidence, is_twin: Array, notes: list[str]
) -> tuple[int, Array]:
    """What may be copied: what is told, within what the copies there leave of the capacity and what
    is free; and which of the run's files have a copy there."""
    entries = Place(tier).entries().values()
    held = {name: entry for entry in entries for name in (entry.source, *entry.names)}
    is_held = np.zeros(len(evidence), bool)
    if held:
        pairs = zip(evidence.paths, evidence.resolved, strict=True)
        is_held[:] = [path in held or resolved in held for path, resolved in pairs]
        for place, names in evidence.names.items():
            is_held[place] |= not held.keys().isdisjoint(names)
        is_held &= ~is_twin
    taken = sum(int(stored_bytes(one.identity.size_bytes)) for one in entries)
    theirs = int(stored_bytes(evidence.size_bytes[is_held]).sum())
    room = tiers.free_bytes(tier.path) - KEPT_FREE_BYTES
    if tier.capacity_bytes is not None:
        room = min(room, tier.capacity_bytes - taken)
    if taken:
        notes.append(
            f"{show(taken, 'B')} are staged on {tier.name} already, {show(theirs, 'B')} of them "
            f"this run's: they stay; penstock stage evict {tier.name} lets the plan choose anew"
        )
    if told is not None and told > room + theirs:
        notes.append(
            f"the budget of {show(told, 'B')} is more than {tier.name} has room for: "
            f"{show(max(0, room + theirs), 'B')}"
        )
    budget = room if told is None else min(told - theirs, room)
    if budget <= 0 and not theirs:
        raise TierError(
            f"{tier.name}: full: {tier.path} has no room; penstock stage evict {tier.name}"
        )
    return max(0, budget), is_held


def _fit(evidence: Evidence, size: Array, budget: int, is_held: Array, notes: list[str]) -> Array:
    """Which files may be staged at all, with those that are; says why others may not."""
    is_able = ~is_held & ~evidence.is_gainless
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


def _check_s(evidence: Evidence, notes: list[str]) -> Array:
    """What it costs to ask for a source at each open: by device, of files that are asked now, but
    no more than opening one took in the run; where none is there, as much as that.  Where the
    program itself asks before it opens, it is what asking again costs."""
    found = np.zeros(len(evidence))
    missing = 0
    for device in np.unique(evidence.device).tolist():
        files = np.flatnonzero(evidence.device == device)
        opens = max(1.0, float(evidence.opens[files].sum()))
        most_s = float(evidence.open_s[files].sum()) / opens
        step = max(1, len(files) // ASKED_FILES)
        told_s = list(_stat_s(evidence.paths[place] for place in files[::step].tolist()))
        missing += len(files[::step]) - len(told_s)
        if len(told_s) >= min(ASKED_LEAST, len(files)):
            first_s, again_s = (
                min(most_s, sum(one) / len(told_s)) for one in zip(*told_s, strict=True)
            )
            found[files] = np.where(evidence.is_asked[files], again_s, first_s)
        else:
            found[files] = most_s
    if missing:
        notes.append(f"of the files that were asked for, {missing:,} are not there any more")
    return found


def _stat_s(paths: Iterable[str]) -> Iterator[tuple[float, float]]:
    """Seconds to ask for each file that is there, and to ask again at once."""
    for told in paths:
        path = _real_path(told)
        try:
            # A job has asked for its folders long before: the way there is no part of the cost.
            os.stat(path.rpartition("/")[0] or "/")  # noqa: PTH116
            begun_s = time.perf_counter()
            tiers.ask_anew(path)
            middle_s = time.perf_counter()
            tiers.ask_anew(path)
        except OSError:
            continue
        yield middle_s - begun_s, time.perf_counter() - middle_s


def _say_how(found: Prediction, predictor: Predictor, notes: list[str]) -> None:
    evidence = predictor.evidence
    if found.how == "summed" and evidence.batches is None and evidence.wait_s is not None:
        notes.append(
            "no worker fetched batches: the gain is the wait in calls of the files, less what is "
            "left of it on the tier"
        )
    if predictor.off is not None and predictor.off > UNLIKE:
        notes.append(
            f"the remade loader waits {per_cent(predictor.off)} more or less than the run did: "
            "take the gain for a guess"
        )


def _compared(policy: str, evidence: Evidence, found: _Found) -> Compared:
    is_chosen = found.choice.is_chosen
    return Compared(
        policy,
        int(is_chosen.sum()),
        int(evidence.size_bytes[is_chosen].sum()),
        found.expected.gain_s,
    )


def _curve(
    predictor: Predictor, value: Array, size: Array, order: Array, tell: Progress
) -> Iterator[Point]:
    """The gain by bytes: of the files of most value per byte, more and more of them."""
    order = order[value[order] > 0]
    yield Point(0, 0.0)
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
        yield Point(total, predictor.predict(is_chosen).gain_s)


def _real_path(told: str) -> str:
    r"""The path that a table tells: there bytes that are no UTF-8 stand as \xff."""
    if "\\x" not in told or os.path.lexists(told):
        return told
    data = re.sub(rb"\\x([89a-f][0-9a-f])", lambda match: bytes([int(match[1], 16)]), told.encode())
    return os.fsdecode(data)


# --- as a file -----------------------------------------------------------------------------------


def store(made: Plan, path: Path) -> None:
    """Writes a plan, whole or not at all.  Raises TierError."""
    facts = {"penstock_plan": VERSION, **_facts(made)}
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "w", encoding="ascii") as file:
            file.write(json.dumps(facts) + "\n")
            for one in made.wanted:
                file.write(json.dumps({"path": one.path, "gain_s": one.gain_s}) + "\n")
        draft.replace(path)
    except OSError as error:
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def is_plan(path: Path) -> bool:
    """Whether a file begins as a plan does."""
    try:
        with open(path, "rb") as file:
            return file.read(17) == b'{"penstock_plan":'
    except OSError:
        return False


def load(path: Path) -> tuple[Wanted, ...]:
    """The files of a plan.  Raises TierError: not one, of another version, a damaged line."""
    try:
        with open(path, "rb") as file:
            head = json.loads(file.readline(MOST_LINE_BYTES))
            if not isinstance(head, dict) or head.get("penstock_plan") != VERSION:
                raise TierError(f"{path}: no plan of this version; penstock stage plan makes one")
            return tuple(_lines(file))
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise TierError(f"{path}: damaged ({error}); penstock stage plan makes it anew") from error


def _lines(file: Iterable[bytes]) -> Iterator[Wanted]:
    for line in file:
        told = json.loads(line)
        wanted = Wanted(told["path"], float(told["gain_s"]))
        if not isinstance(wanted.path, str) or not math.isfinite(wanted.gain_s):
            raise ValueError("a line that is no file")
        if not wanted.path.startswith("/") or ".." in wanted.path.split("/"):
            raise ValueError(f"{wanted.path!r}: no absolute path")
        yield wanted


# --- shown ---------------------------------------------------------------------------------------


def table_of(made: Plan) -> Any:
    """A plan as something that rich prints."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    of_wait = f" of {show(made.wait_s, 's')} data wait" if made.wait_s is not None else ""
    lines: list[Any] = [
        Text(
            f"{count(made.files, 'file')} of {made.all_files:,}, {show(made.size_bytes, 'B')} of "
            f"{show(made.all_bytes, 'B')}: expected to remove {show(made.gain_s, 's')}{of_wait}",
            "bold",
        ),
        Text(_sentence(made)),
        Text(""),
    ]
    curve = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name, justify in (("staged", "right"), ("removes", "right"), ("", "left")):
        curve.add_column(name, justify=justify)  # type: ignore[arg-type]
    most = max((point.gain_s for point in made.curve), default=0.0)
    for point in made.curve[1:]:
        bar = "█" * round(30 * point.gain_s / most) if most > 0 else ""
        curve.add_row(show(point.size_bytes, "B"), show(point.gain_s, "s"), Text(bar, "cyan"))
    lines += [curve, Text("")]
    others = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("by", "files", "bytes", "removes"):
        others.add_column(name, justify="left" if name == "by" else "right")
    mine = Compared(made.policy, made.files, made.size_bytes, made.gain_s)
    for one in (mine, *made.compared):
        others.add_row(
            one.policy, f"{one.files:,}", show(one.size_bytes, "B"), show(one.gain_s, "s")
        )
    lines.append(others)
    lines += [Text(note, "dim") for note in made.notes]
    return Group(*lines)


def _sentence(made: Plan) -> str:
    parts = []
    if made.of_best is not None:
        share = f"{100 * made.of_best:.1f} %"
        parts.append(f"at least {share} of the files' worth that any choice could have")
    if made.copy_s is None or made.copy_least_s is None:
        parts.append("the time of copying is not known")
    else:
        least, most = show(made.copy_least_s, "s"), show(made.copy_s, "s")
        span = least if least == most else f"{least} to {most} (penstock ceiling RUN tells more)"
        parts.append(f"copying takes {span}")
        per_epoch_s = made.gain_s / made.epochs
        if per_epoch_s > 0:
            epochs = math.ceil(made.copy_s / per_epoch_s)
            parts.append(f"paid back after {count(max(1, epochs), 'epoch')}")
    return ", ".join(parts)


def picture(made: Plan, path: Path) -> None:
    """The curve as a page (.html) or a picture (.png, .svg, .pdf).

    Raises MissingDependency; TierError: another suffix, a file that cannot be written.
    """
    gb = [point.size_bytes / 1e9 for point in made.curve]
    gain_s = [point.gain_s for point in made.curve]
    marks = [(one.policy, one.size_bytes / 1e9, one.gain_s) for one in made.compared]
    marks.append((made.policy, made.size_bytes / 1e9, made.gain_s))
    try:
        if path.suffix == ".html":
            _page(gb, gain_s, marks, path)
        elif path.suffix in (".png", ".svg", ".pdf"):
            _figure(gb, gain_s, marks, path)
        else:
            raise TierError(f"{path}: choose a name that ends in .html, .png, .svg or .pdf")
    except OSError as error:
        raise TierError(f"{path}: cannot be written: {error.strerror}") from error


X_TITLE, Y_TITLE = "staged (GB)", "data wait removed (s)"
Marks = Sequence[tuple[str, float, float]]
MARKS = ("s", "^", "v", "d", "o")
SYMBOLS = ("square-open", "triangle-up-open", "triangle-down-open", "diamond-open", "circle-open")


def _page(gb: Sequence[float], gain_s: Sequence[float], marks: Marks, path: Path) -> None:
    try:
        import plotly.graph_objects as go
    except ModuleNotFoundError as error:
        raise MissingDependency("a page needs an extra: pip install 'penstock[html]'") from error
    figure = go.Figure(go.Scatter(x=gb, y=gain_s, mode="lines+markers", name="best by gain"))
    for number, (name, x, y) in enumerate(marks):
        symbol = SYMBOLS[number % len(SYMBOLS)]
        figure.add_scatter(
            x=[x], y=[y], mode="markers", name=name, marker={"size": 10, "symbol": symbol}
        )
    figure.update_layout(xaxis_title=X_TITLE, yaxis_title=Y_TITLE, template="simple_white")
    text = figure.to_html(include_plotlyjs=True)
    path.write_text(text, encoding="utf-8")


def _figure(gb: Sequence[float], gain_s: Sequence[float], marks: Marks, path: Path) -> None:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "a picture needs an extra: pip install 'penstock[bench]'; a page (.html) does not"
        ) from error
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(gb, gain_s, marker="o", markersize=3, label="best by gain")
    # A legend: names beside marks that lie on each other cannot be read.
    for number, (name, x, y) in enumerate(marks):
        axes.plot([x], [y], MARKS[number % len(MARKS)], markersize=7, label=name, fillstyle="none")
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    axes.set_xlabel(X_TITLE)
    axes.set_ylabel(Y_TITLE)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    figure.savefig(path)


def facts_of(made: Plan) -> Mapping[str, Any]:
    """A plan as what JSON holds, without its files."""
    return {**_facts(made), "wanted": len(made.wanted)}


def _facts(made: Plan) -> dict[str, Any]:
    facts = asdict(replace(made, wanted=()))  # asdict copies whatever there is
    del facts["wanted"]
    return facts
