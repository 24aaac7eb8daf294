"""Two results of a study, side by side: `penstock bench compare A.json B.json`.

Knows points and their spread; knows no study.  A difference within the spread of the repeats of
either is called "same", and so is a difference smaller than usual between repeats of a run.  A
larger difference without a spread (a single run, a ratio of two cases) is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from penstock.errors import TierError
from penstock.words import show
from penstock_lab import study
from penstock_lab.study import Measure, Point, Read

__all__ = ["SAME", "ComparedStudies", "Difference", "compared", "markdown_of", "to_json"]

# Facts of a result's machine that its settings repeat, as study.machine_facts names them.
ALSO_ASKED = {
    "steps": "n_steps", "a save every": "every", "a step": "compute_s", "state": "scale",
    "data": "data_bytes",
}  # fmt: skip

# Between repeats of a case on an otherwise idle machine.
SAME = 0.05

BETTER, SAME_AS, WORSE, NO_SPREAD = "better", "same", "worse", "no spread"
ONLY_A, ONLY_B = "only in A", "only in B"
VERDICTS = (BETTER, SAME_AS, WORSE, NO_SPREAD, ONLY_A, ONLY_B)


@dataclass(frozen=True, slots=True)
class Difference:
    """A measure of a case.  a, b: None without a number.  ratio: b / a, None without a number.
    verdict: one of VERDICTS, of B."""

    factors: dict[str, Any]
    measure: str
    unit: str
    a: float | None
    b: float | None
    ratio: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class ComparedStudies:
    """only_a, only_b: cases missing in the other.  machine: the differences between the two."""

    study: str
    differences: list[Difference]
    only_a: int
    only_b: int
    machine: dict[str, tuple[Any, Any]]
    settings: dict[str, tuple[Any, Any]]


def compared(path_a: Path, path_b: Path) -> ComparedStudies:
    """B beside A.  Raises TierError: no results, of two studies, or without a common case."""
    a, b = _read(path_a), _read(path_b)
    if a.name != b.name:
        raise TierError(f"{path_a} is of the study {a.name}, {path_b} of {b.name}: not comparable")
    others = {_name(point): point for point in b.points}
    measures = {measure.key: measure for measure in (*b.measures, *a.measures)}.values()
    differences: list[Difference] = []
    common = 0
    for point in a.points:
        other = others.get(_name(point))
        if other is None:
            continue
        common += 1
        for measure in measures:
            difference = _difference(measure, point, other)
            if difference is not None:
                differences.append(difference)
    if not common:
        raise TierError(
            f"{path_a} and {path_b} have no case in common{_apart(a, b)}; run both with the same "
            "options"
        )
    return ComparedStudies(
        a.name, differences, len(a.points) - common, len(b.points) - common,
        _different(_machine(a), _machine(b)),
        _different(_settings(a), _settings(b)),
    )  # fmt: skip


def _apart(a: Read, b: Read) -> str:
    """Return the factors without a common value."""
    said = []
    for key in dict.fromkeys(key for point in (*a.points, *b.points) for key in point.factors):
        left, right = (
            list(dict.fromkeys(str(point.factors.get(key)) for point in read.points))
            for read in (a, b)
        )
        if not set(left) & set(right):
            said.append(f"{key} is {', '.join(left)} in one, {', '.join(right)} in the other")
    return f": {'; '.join(said)}" if said else ""


def _read(path: Path) -> Read:
    """Return a result for computing.  Raises TierError."""
    read = study.read_found(path)
    for measure in read.measures:
        texts = (measure.key, measure.title, measure.unit)
        if not all(isinstance(text, str) for text in texts) or measure.better not in (-1, 0, 1):
            raise TierError(f"{path}: {measure.key!r} is no measure of penstock bench")
    for point in read.points:
        for key, number in _numbers(point):
            if not _is_finite(number):
                raise TierError(f"{path}: {key}: no finite number, so nothing to compare")
    return read


def _numbers(point: Point) -> Iterator[tuple[str, Any]]:
    yield "repeats", point.repeats
    for numbers in (point.values, point.least, point.most):
        yield from ((key, number) for key, number in numbers.items() if number is not None)


def _is_finite(number: Any) -> bool:
    try:
        return math.isfinite(number)
    except (OverflowError, TypeError):  # an integer beyond all floats; no number
        return False


def _name(point: Point) -> str:
    return repr(sorted(point.factors.items()))


def _settings(read: Read) -> dict[str, Any]:
    return {"scale": read.scale} | read.settings


def _machine(read: Read) -> dict[str, Any]:
    asked = {fact for fact, setting in ALSO_ASKED.items() if setting in read.settings}
    facts = study.machine_facts(read.machine)
    return {name: words for name, words in facts.items() if name not in asked}


def _different(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    ignored = ("begun", "load before", "mtime_ns", "study")  # of the time, and of the kind
    return {
        key: (a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key) and key not in ignored
    }


def _difference(measure: Measure, a: Point, b: Point) -> Difference | None:
    left, right = a.values.get(measure.key), b.values.get(measure.key)
    if not measure.better or (left is None and right is None):
        return None
    if left is None or right is None:
        ratio, verdict = None, ONLY_B if left is None else ONLY_A
    else:
        ratio = right / left if left else math.inf
        ratio = ratio if math.isfinite(ratio) else None
        verdict = _verdict(measure, a, b)
    return Difference(a.factors, measure.title, measure.unit, left, right, ratio, verdict)


def _verdict(measure: Measure, a: Point, b: Point) -> str:
    left, right = a[measure.key], b[measure.key]
    # Of A and not of B / A: A may be 0.
    if left == right or abs(right - left) < SAME * abs(left):
        return SAME_AS
    spread_a, spread_b = _spread(a, measure.key), _spread(b, measure.key)
    if spread_a is None or spread_b is None:
        return NO_SPREAD
    if spread_b[0] <= spread_a[1] and spread_b[1] >= spread_a[0]:
        return SAME_AS
    return BETTER if (right > left) == (measure.better > 0) else WORSE


def _spread(point: Point, key: str) -> tuple[float, float] | None:
    """Return None for a single run, or for a number computed from several cases."""
    least, most = point.least.get(key), point.most.get(key)
    return None if point.repeats < 2 or least is None or most is None else (least, most)


def markdown_of(comparison: ComparedStudies, names: tuple[str, str]) -> str:
    """Return the differences between the machines, a summary, and each case."""
    lines = [f"`{comparison.study}`: A is {names[0]}, B is {names[1]}.", ""]
    facts = [
        [key, str(a), str(b)]
        for key, (a, b) in {**comparison.machine, **comparison.settings}.items()
    ]
    if facts:
        lines += [study.table_of(["", "A", "B"], facts, [False] * 3), ""]
    if comparison.settings:
        settings = ", ".join(comparison.settings)
        lines += [f"* They were not asked for the same ({settings}): a verdict may be of that.", ""]
    if comparison.differences:
        lines += [_summary(comparison.differences), "", _table(comparison.differences)]
    else:
        lines.append("No number of this study is better or worse than another.")
    for which, number in (("A", comparison.only_a), ("B", comparison.only_b)):
        if number:
            lines += ["", f"* {number} case{'s are' if number > 1 else ' is'} only in {which}."]
    return "\n".join(lines) + "\n"


def _table(differences: Sequence[Difference]) -> str:
    keys = list(differences[0].factors)
    rows = [
        [
            *(str(difference.factors[key]) for key in keys), difference.measure,
            show(difference.a, difference.unit), show(difference.b, difference.unit),
            show(difference.ratio, "x"), difference.verdict,
        ]
        for difference in differences
    ]  # fmt: skip
    names = [*keys, "measure", "A", "B", "B / A", "B is"]
    return study.table_of(names, rows, [False] * (len(keys) + 1) + [True] * 3 + [False])


def _summary(differences: Sequence[Difference]) -> str:
    """Count each verdict; a verdict without a case has no column."""
    there = {difference.verdict for difference in differences}
    shown = [verdict for verdict in VERDICTS if verdict in (*VERDICTS[:3], *there)]
    rows = []
    for name in dict.fromkeys(difference.measure for difference in differences):
        mine = [difference for difference in differences if difference.measure == name]
        ratios = [
            difference.ratio
            for difference in mine
            if difference.ratio is not None and difference.ratio > 0
        ]
        verdicts = [difference.verdict for difference in mine]
        mean = geometric_mean(ratios) if ratios else None
        rows.append([name, show(mean, "x"), *(str(verdicts.count(verdict)) for verdict in shown)])
    names = ["measure", "B / A, geometric mean", *shown]
    return study.table_of(names, rows, [False, *[True] * (len(names) - 1)])


def to_json(comparison: ComparedStudies) -> dict[str, Any]:
    """Return the whole comparison."""
    return asdict(comparison)
