"""Two results of one study, side by side: `penstock bench compare A.json B.json`.

Knows points and their spread; knows no study.  What lies within the spread of the repeats of either
is called the same, and so is what differs by less than repeats of one run usually do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from penstock.bench import study
from penstock.bench.study import Measure, Point, Read
from penstock.errors import TierError
from penstock.words import show

__all__ = ["SAME", "Compared", "Difference", "compared", "markdown_of", "to_json"]

# Between repeats of one case on a machine that did nothing else; a result of one repeat has no
# spread of its own.
SAME = 0.05


@dataclass(frozen=True, slots=True)
class Difference:
    """One measure of one case.  ratio: b / a.  verdict: better, worse, same: of B."""

    factors: dict[str, Any]
    measure: str
    unit: str
    a: float
    b: float
    ratio: float
    verdict: str


@dataclass(frozen=True, slots=True)
class Compared:
    """only_a, only_b: cases that the other has not.  machine: what differs between the two."""

    study: str
    differences: list[Difference]
    only_a: int
    only_b: int
    machine: dict[str, tuple[Any, Any]]
    settings: dict[str, tuple[Any, Any]]


def compared(path_a: Path, path_b: Path) -> Compared:
    """B beside A.  Raises TierError: no results, of two studies, or without a common case."""
    a, b = study.read_found(path_a), study.read_found(path_b)
    if a.name != b.name:
        raise TierError(f"{path_a} is of the study {a.name}, {path_b} of {b.name}: not comparable")
    others = {_name(point): point for point in b.points}
    found: list[Difference] = []
    common = 0
    for point in a.points:
        other = others.get(_name(point))
        if other is None:
            continue
        common += 1
        for measure in a.measures:
            difference = _difference(measure, point, other)
            if difference is not None:
                found.append(difference)
    if not common:
        raise TierError(f"{path_a} and {path_b} have no case in common; run both with one --scale")
    return Compared(
        a.name, found, len(a.points) - common, len(b.points) - common,
        _different(a.machine | {"scale": a.scale}, b.machine | {"scale": b.scale}),
        _different(_settings(a), _settings(b)),
    )  # fmt: skip


def _name(point: Point) -> str:
    return repr(sorted(point.factors.items()))


def _settings(read: Read) -> dict[str, Any]:
    return {key: value for key, value in read.settings.items() if key != "scale"}


def _different(a: dict[str, Any], b: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    ignored = ("unix_s", "load_at_start")
    return {
        key: (a.get(key), b.get(key))
        for key in dict.fromkeys([*a, *b])
        if a.get(key) != b.get(key) and key not in ignored
    }


def _difference(measure: Measure, a: Point, b: Point) -> Difference | None:
    left, right = a.values.get(measure.key), b.values.get(measure.key)
    if not measure.better or not left or right is None:
        return None
    return Difference(
        a.factors, measure.title, measure.unit, left, right, right / left,
        _verdict(measure, a, b),
    )  # fmt: skip


def _verdict(measure: Measure, a: Point, b: Point) -> str:
    key = measure.key
    left, right = a[key], b[key]
    ranges = [
        (point.least.get(key) or point[key], point.most.get(key) or point[key]) for point in (a, b)
    ]
    (least_a, most_a), (least_b, most_b) = ranges
    is_apart = least_b > most_a or most_b < least_a
    if not is_apart or abs(right / left - 1) < SAME:
        return "same"
    return "better" if (right > left) == (measure.better > 0) else "worse"


def markdown_of(found: Compared, names: tuple[str, str]) -> str:
    """What differs between the machines, a summary, and each case."""
    lines = [f"`{found.study}`: A is {names[0]}, B is {names[1]}.", ""]
    facts = [[key, str(a), str(b)] for key, (a, b) in {**found.machine, **found.settings}.items()]
    if facts:
        lines += [study.table_of(["", "A", "B"], facts, [False] * 3), ""]
    lines += [_summary(found.differences), ""]
    keys = list(found.differences[0].factors) if found.differences else []
    rows = [
        [
            *(str(one.factors[key]) for key in keys), one.measure, show(one.a, one.unit),
            show(one.b, one.unit), show(one.ratio, "x"), one.verdict,
        ]
        for one in found.differences
    ]  # fmt: skip
    names_of = [*keys, "measure", "A", "B", "B / A", "B is"]
    is_number = [False] * (len(keys) + 1) + [True] * 3 + [False]
    lines.append(study.table_of(names_of, rows, is_number))
    for which, number in (("A", found.only_a), ("B", found.only_b)):
        if number:
            lines += ["", f"* {number} cases are only in {which}."]
    return "\n".join(lines) + "\n"


def _summary(differences: Sequence[Difference]) -> str:
    rows = []
    for name in dict.fromkeys(one.measure for one in differences):
        mine = [one for one in differences if one.measure == name]
        ratios = [one.ratio for one in mine if one.ratio > 0]
        verdicts = [one.verdict for one in mine]
        rows.append([
            name, show(geometric_mean(ratios), "x") if ratios else "–",
            *(str(verdicts.count(verdict)) for verdict in ("better", "same", "worse")),
        ])  # fmt: skip
    names = ["measure", "B / A, geometric mean", "better", "same", "worse"]
    return study.table_of(names, rows, [False, True, True, True, True])


def to_json(found: Compared) -> dict[str, Any]:
    """All of it."""
    return asdict(found)
