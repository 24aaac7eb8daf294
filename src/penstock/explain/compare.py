"""Compare the Reports of two sides.  Pure; knows no run, no file, no screen.

A side is one run or several repetitions.  The value of a side is the median, and the noise is the
spread.  A difference inside the spread of either side is called noise.  Incomparable numbers are
named and get no ratio.  `limits` judges a report for CI.
"""

import json
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, get_args

from penstock.errors import PenstockError
from penstock.explain.findings import Finding
from penstock.explain.report import Number, Report, Segment, Verdict

__all__ = [
    "VERSION",
    "Comparison",
    "Delta",
    "FindingChange",
    "FindingSays",
    "Limit",
    "Side",
    "baseline_limit",
    "compare",
    "limits",
    "to_json",
]

VERSION = 1

# Means of steps less than 2 % apart count as equal.  No shared machine on which Penstock's
# benchmarks ran shows smaller differences; only repetitions (several runs per side) can.
SAME = 0.02
SAME_BYTES = 0.001  # a slightly longer file does not change the work

Better = Literal["less", "more", "neither"]
FindingSays = Literal[
    "new",
    "gone",
    "kept",
    "suppressed in A",
    "suppressed in B",
    "not judged in A",
    "not judged in B",
    "other program",
]
Change = Literal["better", "worse", "changed", "same", "within noise", "not comparable"]


@dataclass(frozen=True, slots=True)
class Side:
    """A side: the runs, and the bar of a typical run."""

    runs: tuple[str, ...]
    title: str
    steps: int | None
    subtitle: tuple[str, ...]
    verdict: str
    wall: tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Delta:
    """A number of both sides; None: not measured on the side.

    a, b: medians of a side with several runs.  a_spread, b_spread: (least, most), None with one
    run.  ratio: b / a.  change: the judgement of the difference.  why: why there is no judgement.
    """

    key: str
    label: str
    unit: str
    a: float | None
    b: float | None
    a_spread: tuple[float, float] | None
    b_spread: tuple[float, float] | None
    ratio: float | None
    better: Better
    change: Change
    why: str


@dataclass(frozen=True, slots=True)
class FindingChange:
    """A finding of one side or of both.

    change: gone or new, if the rule was judged fine on the other side; kept; else why the other
    side lacks it: not judged, explained by another finding, or another program.  share: of the wall
    time, on each side.
    """

    rule: str
    title: str
    change: FindingSays
    a_share: float | None
    b_share: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The changes from a to b.  doubts: sentences on incomparable parts, with the reason."""

    comparison: int
    a: Side
    b: Side
    headline: str
    deltas: tuple[Delta, ...]
    findings: tuple[FindingChange, ...]
    doubts: tuple[str, ...]

    def delta(self, key: str) -> Delta:
        """Return the delta with this key.  Raises KeyError."""
        return {delta.key: delta for delta in self.deltas}[key]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit for CI.

    state: "kept", "passed" (the measured value is beyond the limit) or "not measured".  says: the
    line about the limit.
    """

    key: str
    state: Literal["kept", "passed", "not measured"]
    says: str


# --- numbers of one report ------------------------------------------------------------------------


def _fact(report: Report, key: str) -> float | None:
    for fact in (*report.stretches, *report.reading):
        if fact.key == key:
            return fact.number.value
    return None


def _steps(report: Report) -> int | None:
    """Return the number of training steps, read from the report's words."""
    for fact in report.stretches:
        if fact.key == "wall_s":
            number = fact.remark.split(" ", 1)[0].replace(",", "")
            return int(number) if number.isdecimal() and int(number) else None
    return None


def _per_step(key: str) -> Callable[[Report], float | None]:
    def value(report: Report) -> float | None:
        whole, steps = _fact(report, key), _steps(report)
        return whole / steps if whole is not None and steps else None

    return value


def _own_calls_step_s(report: Report) -> float | None:
    """Return the time of the training thread's own file calls, in seconds per step."""
    steps, wall_s = _steps(report), _fact(report, "wall_s")
    if not steps or wall_s is None:
        return None
    return wall_s * sum(part.share for part in report.wall if part.key == "own") / steps


def _share(key: str) -> Callable[[Report], float | None]:
    def value(report: Report) -> float | None:
        part, wall = _fact(report, key), _fact(report, "wall_s")
        return part / wall if part is not None and wall else None

    return value


def _column(table: str, key: str, where: dict[str, object]) -> Callable[[Report], float | None]:
    """Return a function for the sum of a column over rows with the cells `where`.

    The function returns None without matching rows.
    """

    def value(report: Report) -> float | None:
        shown_table = report.table(table)
        places = {column.key: place for place, column in enumerate(shown_table.columns)}
        cells = [
            row[places[key]]
            for row in shown_table.rows
            if all(row[places[name]] == wanted for name, wanted in where.items())
        ]
        numbers = [cell for cell in cells if isinstance(cell, int | float)]
        return float(sum(numbers)) if numbers else None

    return value


def _data_read(report: Report) -> float | None:
    """Return the bytes of data files by the layer with more reads; None if data files were mapped.

    Reads of a mapping make no call.
    """
    if _fact(report, "mapped_files"):
        return None
    posix, stdio = (read(report) for read in _DATA_READ)
    by_file = _fact(report, "read_bytes") if posix is not None or stdio is not None else None
    measured = [value for value in (posix, stdio, by_file) if value is not None]
    return max(measured) if measured else None


def _storage(report: Report) -> float | None:
    """Return the share of waits on storage.

    None if unsampled faults of mapped files may be most of the waits.
    """
    number = report.verdict.storage
    is_unseen = any(part.key == "page fault" and part.s is None for part in report.wait)
    return None if is_unseen and number.state == "incomplete" else number.value


def _read_bps(report: Report) -> float | None:
    """Return the data bytes read per second of the training's wall time."""
    n_bytes, wall = _data_read(report), _fact(report, "wall_s")
    return n_bytes / wall if n_bytes is not None and wall else None


def _io_s(report: Report) -> float | None:
    """Return the seconds in calls on data and output files, of all threads."""
    parts = [
        _column("classes", key, {"path_class": name})(report)
        for name in ("data", "output")
        for key in ("read_s", "write_s", "metadata_s")
    ]
    measured = [value for value in parts if value is not None]
    return sum(measured) if measured else None


def _opens(report: Report) -> float | None:
    calls = [_column("operations", "calls", {"op": op})(report) for op in ("open", "fopen")]
    measured = [value for value in calls if value is not None]
    return sum(measured) if measured else None


def _served(report: Report) -> float:
    return _column("staged", "opens", {"outcome": "served"})(report) or 0.0


_DATA_READ = tuple(
    _column("classes", "read_bytes", {"path_class": "data", "layer": layer})
    for layer in ("POSIX", "STDIO")
)


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of the delta table.

    needs: properties that must be equal on both sides: steps (equal amount of work), program (equal
    kind of work). is_rare: omitted if 0 on both sides.  without_steps: how many sides must be
    without steps for the line to appear, as other lines say more about sides with steps.
    """

    key: str
    label: str
    unit: str
    better: Better
    of: Callable[[Report], float | None]
    needs: tuple[str, ...] = ()
    is_rare: bool = False
    without_steps: Literal["none", "one", "both"] = "none"


ROWS = (
    _Row("wall_s", "wall", "s", "less", lambda r: _fact(r, "wall_s"), ("program", "steps")),
    _Row(
        "life_s",
        "life",
        "s",
        "less",
        lambda r: _fact(r, "life_s"),
        ("program", "steps"),
        without_steps="both",  # a report with steps has the wall time of the steps instead
    ),
    _Row(
        "io_s",
        "in calls on files",
        "s",
        "less",
        _io_s,
        ("program", "steps"),
        without_steps="one",
    ),
    _Row("step_s", "wall per step", "s", "less", _per_step("wall_s"), ("program",)),
    _Row("wait_step_s", "data wait per step", "s", "less", _per_step("data_wait_s"), ("program",)),
    _Row(
        "calls_step_s",
        "own file calls per step",
        "s",
        "less",
        _own_calls_step_s,
        ("program",),
        is_rare=True,
    ),
    _Row(
        "data_wait_s",
        "data wait time",
        "s",
        "less",
        lambda r: _fact(r, "data_wait_s"),
        ("program", "steps"),
    ),
    _Row("stall", "stall", "share", "less", lambda r: r.verdict.stall.value),
    _Row("storage", "waits on storage", "share", "less", _storage),
    _Row(
        "remote",
        "waits on remote storage",
        "share",
        "less",
        lambda r: r.verdict.remote.value,
        is_rare=True,
    ),
    # The share of a part grows when other parts shrink: a larger share is not worse.
    _Row("data_wait", "data wait", "share", "neither", _share("data_wait_s")),
    _Row("checkpoint", "checkpoint block", "share", "neither", _share("checkpoint_block_s")),
    _Row(
        "checkpoint_s",
        "checkpoint time",
        "s",
        "less",
        lambda r: _fact(r, "checkpoint_block_s"),
        ("program", "steps"),
    ),
    _Row("startup_s", "start-up", "s", "neither", lambda r: _fact(r, "startup_s"), ("program",)),
    _Row("read_bps", "data read bandwidth", "B/s", "neither", _read_bps),
    _Row("read_bytes", "data read", "B", "neither", _data_read, ("steps", "data")),
    _Row("files", "data files read", "count", "neither", lambda r: _fact(r, "files"), ("data",)),
    _Row("opens", "opens", "count", "neither", _opens, ("steps", "data")),
    _Row("staged", "opens served from a tier", "count", "neither", _served, is_rare=True),
)


# --- two sides ------------------------------------------------------------------------------------


def compare(a: Sequence[Report], b: Sequence[Report]) -> Comparison:
    """Return the changes from a to b; a side has one run or several runs of a job.

    Raises PenstockError: a side without a report.
    """
    if not a or not b:
        raise PenstockError("a comparison needs a run on each side")
    doubts, unequal = _doubts(a, b)
    deltas = tuple(_delta(row, a, b, unequal) for row in ROWS)
    lacks = [_fact(report, "wall_s") is None for report in (*a, *b)]
    fit = {"none": True, "one": any(lacks), "both": all(lacks)}
    shown = tuple(
        delta
        for row, delta in zip(ROWS, deltas, strict=True)
        if fit[row.without_steps]
        and (delta.a or delta.b if row.is_rare else delta.a is not None or delta.b is not None)
    )
    return Comparison(
        comparison=VERSION,
        a=_side(a),
        b=_side(b),
        headline=_headline(shown, doubts),
        deltas=shown,
        findings=_finding_changes(a, b),
        doubts=doubts,
    )


def _side(reports: Sequence[Report]) -> Side:
    first = _typical(reports)
    return Side(
        runs=tuple(report.run for report in reports),
        title=first.title,
        steps=_steps(first),
        subtitle=first.subtitle,
        verdict=f"{first.verdict.headline}: {first.verdict.sentence}",
        wall=first.wall,
    )


def _typical(reports: Sequence[Report]) -> Report:
    """Return the run with the median wall time per step."""
    steps = [(_per_step("wall_s")(report), place) for place, report in enumerate(reports)]
    ordered = sorted((value, place) for value, place in steps if value is not None)
    return reports[ordered[(len(ordered) - 1) // 2][1]] if ordered else reports[0]


def _doubts(a: Sequence[Report], b: Sequence[Report]) -> tuple[tuple[str, ...], set[str]]:
    """Return sentences, and which of program, steps, data differ between the runs of both sides."""
    unequal: set[str] = set()
    every = (*a, *b)
    doubts = [
        *_program_doubts(every, unequal),
        *_step_doubts(every, unequal),
        *_data_doubts(a, b, unequal),
        *_host_doubts(every),
        *_recording_doubts(every),
    ]
    return tuple(doubts), unequal


def _program_doubts(every: Sequence[Report], unequal: set[str]) -> list[str]:
    """Find different programs; add all properties that then differ to `unequal`."""
    titles = {report.title for report in every}
    if len(titles) < 2:
        return []
    unequal |= {"program", "steps", "data"}
    names = " and ".join(sorted(titles))
    return [f"different programs ({names}): times and amounts of work are not compared"]


def _step_doubts(every: Sequence[Report], unequal: set[str]) -> list[str]:
    """Find runs without steps, or different numbers of steps; add the difference to `unequal`."""
    is_one_program = "program" not in unequal
    steps = {_steps(report) for report in every}
    if None in steps:
        doubt = "a run without training steps: nothing per step is compared"
        if steps == {None} and is_one_program and _is_same_reading(every):
            return [f"{doubt}; all read the same number of bytes, so that their times are"]
        unequal |= {"steps", "program"}
        return [doubt]
    if len(steps) > 1 and is_one_program:
        unequal.add("steps")
        numbers = " and ".join(f"{n:,}" for n in sorted(step for step in steps if step))
        return [f"different numbers of steps ({numbers}): compare per step, not wall"]
    return []


def _host_doubts(every: Sequence[Report]) -> list[str]:
    hosts = {report.host for report in every if report.host}
    if len(hosts) < 2:
        return []
    return [f"different hosts ({', '.join(sorted(hosts))}): speed may be the machine's"]


def _recording_doubts(every: Sequence[Report]) -> list[str]:
    """Find running or failed runs, and incomplete recordings."""
    doubts = []
    unfinished = [report.run for report in every if "still running" in report.subtitle]
    if unfinished:
        doubts.append(f"still running: {', '.join(unfinished)}; its numbers are of this moment")
    for report in every:
        doubts += [
            f"{report.run}: {incident.headline}: {incident.sentence}"
            for incident in report.incidents
        ]
    incomplete = [r for r in every if r.verdict.storage.state == "incomplete"]
    if incomplete:
        why = incomplete[0].verdict.storage.why
        names = ", ".join(report.run for report in incomplete)
        doubts.append(f"incomplete: {names}; {why}".rstrip("; "))
    return doubts


def _is_same_reading(every: Sequence[Report]) -> bool:
    """Return True if all runs requested equally many bytes of data.

    Equal bytes mean equal work, with or without steps.
    """
    read = [_data_read(report) or 0.0 for report in every]
    return min(read) > 0 and max(read) - min(read) <= SAME_BYTES * max(read)


def _data_doubts(a: Sequence[Report], b: Sequence[Report], unequal: set[str]) -> list[str]:
    """Find data sets of different size.

    Shuffling and stopping early explain a difference of at most a twentieth.
    """
    if "data" in unequal:
        return []
    counts = [statistics.median([_fact(r, "files") or 0.0 for r in side]) for side in (a, b)]
    if min(counts) == max(counts) or min(counts) > 0.95 * max(counts):
        return []
    unequal.add("data")
    files = " and ".join(f"{count:,.0f}" for count in counts)
    return [f"different data ({files} files read): bytes, files and opens are not compared"]


def _delta(row: _Row, a: Sequence[Report], b: Sequence[Report], unequal: set[str]) -> Delta:
    values_a, values_b = ([row.of(report) for report in side] for side in (a, b))
    median_a, spread_a = _middle(values_a)
    median_b, spread_b = _middle(values_b)
    ratio = median_b / median_a if median_a and median_b is not None else None
    lacks = [what for what in row.needs if what in unequal]
    change, why = _change(row, median_a, median_b, spread_a, spread_b)
    if median_a is not None and median_b is not None and lacks:
        change, why = "not comparable", f"different {', '.join(lacks)}"
        ratio = None
    if change in ("better", "worse") and "program" in unequal:
        change = "changed"  # less is not better for another program
    return Delta(
        key=row.key,
        label=row.label,
        unit=row.unit,
        a=median_a,
        b=median_b,
        a_spread=spread_a,
        b_spread=spread_b,
        ratio=ratio,
        better=row.better,
        change=change,
        why=why,
    )


def _middle(values: Sequence[float | None]) -> tuple[float | None, tuple[float, float] | None]:
    """Return the median, and the spread of several values; None if a value was not measured."""
    seen = [value for value in values if value is not None]
    if len(seen) < len(values) or not seen:
        return None, None
    return statistics.median(seen), (min(seen), max(seen)) if len(seen) > 1 else None


def _change(
    row: _Row,
    a: float | None,
    b: float | None,
    a_spread: tuple[float, float] | None,
    b_spread: tuple[float, float] | None,
) -> tuple[Change, str]:
    if a is None or b is None:
        sides = " and ".join(name for name, value in (("A", a), ("B", b)) if value is None)
        return "not comparable", f"not measured in {sides}"
    if a == b:
        return "same", ""
    low_a, high_a = a_spread or (a, a)
    low_b, high_b = b_spread or (b, b)
    if (a_spread or b_spread) and low_a <= high_b and low_b <= high_a:
        return "within noise", "the runs of both sides overlap"
    is_small = abs(b - a) < (SAME if row.unit == "share" else SAME * max(abs(a), abs(b)))
    if is_small and not (a_spread and b_spread):
        return "same", f"less than {SAME:.0%} apart".replace("%", " %")
    if row.better == "neither":
        return "changed", ""
    return ("better" if (b < a) == (row.better == "less") else "worse"), ""


def _headline(deltas: Sequence[Delta], doubts: Sequence[str]) -> str:
    """Return a sentence about wall time per step and the stall.

    Names the data wait instead of the wall time per step if the wall times are not comparable.
    """
    by_key = {delta.key: delta for delta in deltas}
    step, stall, wait = by_key.get("step_s"), by_key.get("stall"), by_key.get("data_wait_s")
    parts = []
    if step is not None and step.a is not None and step.b and step.change != "not comparable":
        parts.append(_speed(step))
    elif wait is not None and wait.change in ("better", "worse"):
        parts.append(f"data wait {wait.a:.3g} s → {wait.b:.3g} s")
    if stall is not None and stall.a is not None and stall.b is not None:
        noise = ", within noise" if stall.change == "within noise" else ""
        parts.append(f"stall {stall.a * 100:.0f} % → {stall.b * 100:.0f} %{noise}")
    return ", ".join(parts) or (doubts[0] if doubts else "nothing that both sides measured")


def _speed(step: Delta) -> str:
    a, b = step.a or 0.0, step.b or 0.0
    if step.change in ("same", "within noise"):
        return "B is as fast as A" + (" (within noise)" if step.change != "same" else "")
    faster = a / b if b < a else b / a
    if b > a:
        return f"B takes {faster:.2f}x as long as A per step"
    return f"B is {faster:.2f}x as fast as A per step"


def _finding_changes(a: Sequence[Report], b: Sequence[Report]) -> tuple[FindingChange, ...]:
    """Compare the findings of the typical run of each side.

    A finding of an untypical repetition does not count.
    """
    old_report, new_report = _typical(a), _typical(b)
    pairs: dict[str, list[Finding | None]] = {}
    for side, report in enumerate((old_report, new_report)):
        for finding in report.findings:
            pairs.setdefault(finding.rule, [None, None])[side] = finding
    is_other = old_report.title != new_report.title
    changes = []
    for rule, (old, new) in pairs.items():
        latest = new or old
        assert latest is not None
        change: FindingSays = "kept"
        if not (old and new) and is_other:
            change = "other program"
        elif new is None:
            change = _without(rule, new_report, "gone", "suppressed in B", "not judged in B")
        elif old is None:
            change = _without(rule, old_report, "new", "suppressed in A", "not judged in A")
        changes.append(
            FindingChange(
                rule=rule,
                title=latest.title,
                change=change,
                a_share=old.share.value if old else None,
                b_share=new.share.value if new else None,
            )
        )
    order = get_args(FindingSays)
    return tuple(
        sorted(changes, key=lambda c: (order.index(c.change), -(c.b_share or c.a_share or 0.0)))
    )


def _without(
    rule: str, report: Report, fine: FindingSays, suppressed: FindingSays, unjudged: FindingSays
) -> FindingSays:
    """Return why a side lacks a finding: the rule may not have been judged."""
    state = next((check.state for check in report.checks if check.rule == rule), "fine")
    return {"suppressed": suppressed, "not judged": unjudged}.get(state, fine)


def to_json(comparison: Comparison, indent: int | None = 2) -> str:
    """Return the comparison as JSON text; keys are stable, `comparison` is the version."""
    return json.dumps(asdict(comparison), indent=indent, ensure_ascii=True, allow_nan=False)


# --- limits for CI --------------------------------------------------------------------------------


def limits(
    report: Report,
    max_stall: float | None = None,
    max_storage: float | None = None,
    max_remote: float | None = None,
) -> tuple[Limit, ...]:
    """Judge shares of the wall time against limits; an unmeasured share does not pass."""
    verdict = report.verdict
    asked = (
        ("stall", "stall", max_stall, verdict.stall),
        ("storage", "waits on storage", max_storage, verdict.storage),
        ("remote", "waits on remote storage", max_remote, verdict.remote),
    )
    limits_judged = []
    for key, label, most, number in asked:
        if most is None:
            continue
        if verdict.stall_most.value is not None:
            limits_judged.append(_limit_between(key, label, most, number, verdict))
        elif number.value is None or number.state == "not measured":
            why = number.why or "not in the run"
            limits_judged.append(Limit(key, "not measured", f"{label}: not measured: {why}"))
        else:
            limits_judged.append(_limit(key, label, number.value, most, number.state))
    return tuple(limits_judged)


def _limit_between(key: str, label: str, most: float, number: Number, verdict: Verdict) -> Limit:
    """Judge a limit by bounds: the upper bound of all waiting also bounds waiting for storage."""
    least = verdict.stall_least if number.value is None and key == "stall" else number
    if least.value is not None and least.value > most:
        return _limit(key, f"{label}: at least", least.value, most, "incomplete")
    highest = verdict.stall_most.value or 0.0
    if highest <= most:
        return _limit(key, f"{label}: at most", highest, most, "derived")
    sentence = f"{label}: not judged: at most {highest:.1%}, limit {most:.1%}".replace("%", " %")
    return Limit(key, "not measured", f"{sentence}: {verdict.stall.why}")


def _limit(key: str, label: str, value: float, most: float, state: str) -> Limit:
    """Judge a limit for a number that may be incomplete.

    An incomplete number is a lower bound: above the limit the number counts, below the limit the
    number proves nothing.
    """
    sentence = f"{label} {value:.1%}, limit {most:.1%}".replace("%", " %")
    if value > most:
        over = f"{value - most:.1%}".replace("%", " points")
        return Limit(key, "passed", f"{sentence}: {over} over")
    if state == "incomplete":
        return Limit(
            key, "not measured", f"{sentence}: the number is incomplete, the run may wait more"
        )
    return Limit(key, "kept", sentence)


def baseline_limit(report: Report, baseline: Report, tolerance: float) -> tuple[Limit, ...]:
    """Judge that a run is no slower per step than the baseline, and stalls no more.

    tolerance: a share.
    """
    comparison = compare([baseline], [report])
    judged = []
    for key, label in (("step_s", "wall per step"), ("stall", "stall")):
        delta = {change.key: change for change in comparison.deltas}.get(key)
        if delta is None or delta.a is None or delta.b is None or delta.change == "not comparable":
            why = delta.why if delta is not None and delta.why else "not in the runs"
            judged.append(
                Limit(key, "not measured", f"{label}: cannot be compared to the baseline: {why}")
            )
            continue
        # Times in proportion, shares in points: 5 % of a stall of 1 % would be too little.
        most = delta.a + tolerance if delta.unit == "share" else delta.a * (1 + tolerance)
        over = delta.b - delta.a if delta.unit == "share" else delta.b / delta.a - 1
        unit = " points" if delta.unit == "share" else " %"
        sentence = (
            f"{label} {_number(delta.b, delta.unit)}, baseline {_number(delta.a, delta.unit)}"
        )
        more = f"{over * 100:+.1f}{unit}, allowed {tolerance * 100:g}{unit}"
        is_over = delta.b > most and not math.isclose(delta.b, most)
        if not is_over and report.verdict.stall.state == "incomplete":
            why = f"the run is incomplete: {report.verdict.stall.why}"
            judged.append(Limit(key, "not measured", f"{sentence}, but {why}"))
            continue
        judged.append(Limit(key, "passed" if is_over else "kept", f"{sentence}: {more}"))
    return tuple(judged)


def _number(value: float, unit: str) -> str:
    return f"{value:.1%}".replace("%", " %") if unit == "share" else f"{value * 1000:.1f} ms"
