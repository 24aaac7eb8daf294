"""The common parts of all studies: cases and repeats, kept results, tables, pictures, JSON.

Knows factors, measures and the machine; knows no storage and no workload.  A result is kept at
once: after an interruption, the same command continues.
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import platform
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from penstock.errors import LogError, MissingDependency, QueryError, RunError, TierError
from penstock.places import tiers
from penstock.safe import drafts
from penstock.safe.harmless import cell
from penstock.words import show
from penstock_lab.folders import nearest
from penstock_lab.groups import device_of
from penstock_lab.needs import imported
from penstock_lab.places import Place, PlaceError

__all__ = [
    "SCALES",
    "KeptRuns",
    "Measure",
    "Point",
    "Read",
    "Study",
    "StudyResult",
    "bars_of",
    "carried_out",
    "csv_of",
    "data_in",
    "host_of",
    "lines_of",
    "logarithmic",
    "machine_facts",
    "machine_of",
    "machine_table",
    "markdown_of",
    "mixed",
    "panels",
    "points_of",
    "pyplot",
    "read_found",
    "refuse_folder",
    "rows_of",
    "table_of",
    "value_of",
    "with_value",
    "write_files",
    "write_found",
    "write_texts",
]

T = TypeVar("T")
Case = dict[str, Any]  # a value for each factor
Row = dict[str, Any]  # the factors, the repeat, and a number for each measure
PhaseProgress = Callable[[str, float], None]

SCALES = ("ci", "small", "full")


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of each run.  unit: as in words.show.  better: 1: more is better, -1: less, 0:
    neither."""

    key: str
    title: str
    unit: str
    better: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """The repeats of a case: the median of each measure, the least and the most."""

    factors: dict[str, Any]
    repeats: int
    values: dict[str, float | None]
    least: dict[str, float | None]
    most: dict[str, float | None]

    def __getitem__(self, key: str) -> Any:
        return self.factors[key] if key in self.factors else self.values[key]


@dataclass(frozen=True, slots=True)
class Study:
    """The factors and measures of a study.  derive: adds measures to points, such as ratios to a
    point.  draw: a picture on a matplotlib figure."""

    name: str
    title: str
    factors: tuple[str, ...]
    measures: tuple[Measure, ...]
    draw: Callable[[Any, Sequence[Point]], None] | None = None
    derive: Callable[[list[Point]], list[Point]] | None = None


@dataclass(frozen=True, slots=True)
class StudyResult:
    """All results of a study.  settings: the requested settings.  more: results outside tables."""

    study: Study
    scale: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    points: list[Point]
    rows: list[Row]
    remarks: list[str]
    more: dict[str, Any]


# --- kept runs ------------------------------------------------------------------------------------

SETTINGS = "settings.json"  # every folder of a study has the file


def refuse_folder(folder: Path) -> None:
    """Check FOLDER, which may be missing.  Raises TierError: not a place for a study's results."""
    there = nearest(folder)
    if not there.is_dir():
        raise TierError(f"{there}: is there and no folder; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise TierError(f"{there}: cannot be written; name another folder")
    if folder.is_dir() and not (folder / SETTINGS).exists() and any(folder.iterdir()):
        raise TierError(
            f"{folder}: is not empty, and what is in it is no study's; name a folder that is not "
            "there yet, or an empty one"
        )


class KeptRuns:
    """The runs of a folder, a line each; a truncated last line is skipped.

    mark: the common settings of all runs; `settings` has the mark, and the additions of
    `add_settings`.  Raises TierError, and makes nothing: the folder is not empty and no study's, or
    holds runs of another study or other settings.
    """

    def __init__(self, folder: Path, mark: Mapping[str, Any]) -> None:
        self.folder = folder
        self.file = folder / "runs.jsonl"
        self.head = folder / SETTINGS
        refuse_folder(folder)
        try:
            self.rows = rows_of(self.file)
            self.settings = self._known()
            wanted = _plain(mark)
            # Before 0.1.0's end the ladder and checkpoint did not write the name of the study, and
            # checkpoint no seed.
            kept_settings = {"study": wanted.get("study"), "seed": 1} | self.settings
            if self.settings and any(
                kept_settings.get(key) != value for key, value in wanted.items()
            ):
                raise self._other()
            self.add_settings(wanted)
            with open(self.file, "a") as file:
                if file.tell():
                    file.write("\n")  # the last line may have been cut off
        except OSError as error:
            raise TierError(f"{folder}: cannot be written: {error.strerror}") from error

    def _known(self) -> dict[str, Any]:
        """Return the settings of the existing runs; empty for a folder without runs.  Raises
        TierError."""
        if not self.head.exists():
            return {}
        head = _json(self.head.read_bytes())
        if not isinstance(head, dict):
            raise TierError(
                f"{self.head}: is cut off, or no study's: which runs are kept cannot be known; "
                "name another folder"
            )
        return head if self.rows or "study" not in head else {}  # no run: nothing to keep apart

    def add_settings(self, more: Mapping[str, Any]) -> None:
        """Add settings known only later, such as of data that is made first.

        Raises TierError: the existing runs have other settings.
        """
        wanted = _plain(more)
        if any(self.settings.get(key, value) != value for key, value in wanted.items()):
            raise self._other()
        self.settings |= wanted
        write_texts(self.folder, {self.head.name: json.dumps(self.settings)})

    def _other(self) -> TierError:
        return TierError(
            f"{self.folder}: holds runs of other settings or data, or of another study; "
            "name another folder"
        )

    def machine(self, path: Path | None = None) -> dict[str, Any]:
        """Return the machine of the runs, as at the begin of the first run.  path: of the data;
        default: FOLDER."""
        file = self.folder / "machine.json"
        kept_machine = _json(file.read_bytes()) if self.rows and file.exists() else None
        if isinstance(kept_machine, dict):
            return kept_machine
        machine = machine_of(path or self.folder)
        write_texts(self.folder, {file.name: json.dumps(machine)})
        return machine

    def add(self, row: Row) -> None:
        """Add a row.  Raises TierError: no room."""
        self.rows.append(row)
        try:
            with open(self.file, "a") as file:
                file.write(json.dumps(row) + "\n")
        except OSError as error:
            raise TierError(f"{self.file}: cannot be written: {error.strerror}") from error


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values as read back."""
    return dict(json.loads(json.dumps(dict(values))))


def _json(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        return None


def rows_of(file: Path) -> list[Row]:
    """Return every line with a JSON object."""
    try:
        lines = file.read_bytes().split(b"\n")
    except OSError:
        return []
    return [row for row in map(_json, lines) if isinstance(row, dict)]


def data_in(folder: Path) -> Path | None:
    """Return the place of a study's complete data; half-made data is gone with its program."""
    for place in (folder / "data", folder / "lmdb"):
        with suppress(OSError):
            if any(not path.name.endswith(".partial") for path in place.iterdir()):
                return place
    return None


def mixed(cases: Sequence[T], seed: int, repeat: int) -> list[T]:
    """Return cases in another order each time, every second time backwards: a slower machine slows
    down all cases."""
    shuffled = list(cases)
    random.Random(seed + repeat // 2).shuffle(shuffled)
    return shuffled[::-1] if repeat % 2 else shuffled


def _in_turn(cases: Sequence[Case], together: str, seed: int, repeat: int) -> list[Case]:
    """Return cases as `mixed`, except for a factor whose values stay side by side; every second
    time the values, too, run backwards."""
    groups: dict[str, list[Case]] = {}
    for number, case in enumerate(cases):
        others = {key: value for key, value in case.items() if key != together}
        groups.setdefault(json.dumps(others) if together else str(number), []).append(case)
    step = -1 if repeat % 2 else 1
    return [case for group in mixed([*groups.values()], seed, repeat) for case in group[::step]]


class _StudyRuns:
    """The runs of a study: kept runs, runs still to make, and the reasons for missing rows."""

    def __init__(
        self,
        kept: KeptRuns,
        cases: Sequence[Case],
        wanted: list[Case],
        progress: PhaseProgress | None,
    ) -> None:
        self._kept = kept
        self._factors = sorted({key for case in cases for key in case})
        self._progress = progress
        self._rows = {self._name(row): row for row in kept.rows}
        self._wanted = wanted
        self._left = [case for case in wanted if self._name(case) not in self._rows]
        self._done = 0
        self.remarks: list[str] = []

    def _name(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(json.dumps(row.get(key)) for key in (*self._factors, "repeat"))

    @property
    def rows(self) -> list[Row]:
        """Return the row of each wanted run with a row, in the order of the runs."""
        return [self._rows[self._name(c)] for c in self._wanted if self._name(c) in self._rows]

    def left_at(self, place: str) -> list[Case]:
        return [case for case in self._left if case["place"] == place]

    def make(self, case: Case, run: Callable[[Case], Row], is_counted: bool) -> None:
        """Make a run.  is_counted: keep the row; a run to warm up the machine is not kept."""
        words = ", ".join(f"{key} {case[key]}" for key in case if key in self._factors)
        if self._progress:
            self._progress(words, self._done / len(self._left))
        try:
            row = case | run({key: value for key, value in case.items() if key != "repeat"})
        except (RunError, LogError, QueryError) as error:
            if is_counted:
                self.remarks.append(f"{words}: no result: {error}")
            return
        finally:
            self._done += is_counted
        if is_counted:
            self._kept.add(row)
            self._rows[self._name(case)] = row


def carried_out(
    kept: KeptRuns,
    cases: Sequence[Case],
    run: Callable[[Place, Case], Row],
    at: Callable[[str], AbstractContextManager[Place]],
    *,
    repeats: int,
    seed: int,
    progress: PhaseProgress | None = None,
    is_warmed: bool = True,
    together: str = "",
) -> tuple[list[Row], list[str]]:
    """Make every missing run, all cases of a place together; return the rows, and remarks about
    runs without a row.

    Each case names its place as `place`.  is_warmed: run the first case of a place once more
    before, and drop the result.  together: a factor with compared values, and so with consecutive
    runs.  Raises TierError: see `run`; a PlaceError, a RunError or an unreadable recording becomes
    a remark.
    """
    wanted = [
        case | {"repeat": repeat}
        for repeat in range(repeats)
        for case in _in_turn(cases, together, seed, repeat)
    ]
    runs = _StudyRuns(kept, cases, wanted, progress)
    for place in dict.fromkeys(case["place"] for case in cases):
        left = runs.left_at(place)
        if not left:
            continue
        try:
            with at(place) as there:
                run_there = partial(run, there)
                for case in left[:is_warmed]:
                    runs.make(case, run_there, is_counted=False)
                for case in left:
                    runs.make(case, run_there, is_counted=True)
        except (PlaceError, MissingDependency) as error:
            runs.remarks.append(f"{place}: left out: {error}")
    return runs.rows, runs.remarks


# --- points --------------------------------------------------------------------------------------


def points_of(study: Study, rows: Sequence[Row], order: Sequence[Case]) -> list[Point]:
    """The repeats of each case, in the order of the cases."""
    points = []
    for case in order:
        mine = [row for row in rows if all(row.get(key) == case[key] for key in study.factors)]
        if not mine:
            continue
        numbers = {
            measure.key: [row[measure.key] for row in mine if row.get(measure.key) is not None]
            for measure in study.measures
        }
        points.append(
            Point(
                {key: case[key] for key in study.factors},
                len(mine),
                *(
                    {key: how(values) if values else None for key, values in numbers.items()}
                    for how in (median, min, max)
                ),
            )
        )
    return study.derive(points) if study.derive else points


def with_value(
    point: Point,
    key: str,
    value: float | None,
    spread: tuple[float | None, float | None] = (None, None),
) -> Point:
    return replace(
        point,
        values=point.values | {key: value},
        least=point.least | {key: spread[0]},
        most=point.most | {key: spread[1]},
    )


# --- the machine ---------------------------------------------------------------------------------


def machine_of(path: Path) -> dict[str, Any]:
    """Describe the machine of the figures, without its name."""
    try:
        queue = Path(f"/sys/dev/block/{device_of(str(path))}/queue/read_ahead_kb")
        ahead: int | None = int(queue.read_text())
    except (TierError, OSError):
        ahead = None
    return {
        **host_of(path),
        "cpu": _cpu(),
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        **libraries(),
        "file_system": tiers.mount_of(path).kind,
        "read_ahead_kib": ahead,
        "load_at_start": round(os.getloadavg()[0], 1),
        "unix_s": int(time.time()),
    }


# Libraries of studies' reads, trainings and comparisons: the package with the counting version.
LIBRARIES = {"torch": ("torch",), "tensorflow": ("tensorflow-cpu", "tensorflow"), "lmdb": ("lmdb",)}


def libraries() -> dict[str, str]:
    """Return the versions of the installed libraries."""
    from importlib import metadata

    versions: dict[str, str] = {}
    for name, packages in LIBRARIES.items():
        for package in packages:
            with suppress(metadata.PackageNotFoundError):
                versions.setdefault(name, metadata.version(package).partition("+")[0])
    return versions


def host_of(path: Path) -> dict[str, str]:
    """Describe CPUs, memory, and the device beneath the mount of a path, without place and name."""
    from penstock.recording import machine

    mount = tiers.mount_of(path).point
    facts = {}
    for key, value in machine.facts():
        place, _, fact = value.partition("\t")
        if key == "beneath" and place == mount:
            facts[key] = fact
        elif key in ("cpus", "memory_bytes"):
            facts[key] = value
    return facts


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


# --- the presentation -----------------------------------------------------------------------------


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Every run, every number."""
    text = io.StringIO()
    names = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: cell(value) for key, value in row.items()} for row in rows)
    return text.getvalue()


def table_of(names: Sequence[str], rows: Sequence[Sequence[str]], is_number: Sequence[bool]) -> str:
    """A Markdown table; numbers stand at the right."""
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("|" + "|".join(" ---: " if number else " --- " for number in is_number) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def markdown_of(result: StudyResult) -> str:
    """Return the machine, a table, the remarks."""
    study = result.study
    shown = [
        measure
        for measure in study.measures
        if any(point.values.get(measure.key) is not None for point in result.points)
    ]
    factors = [
        key
        for key in study.factors
        if len({str(point.factors[key]) for point in result.points}) > 1 or key == "place"
    ]
    # Ratios to another case have no spread of their own.
    spread = next((m for m in shown if any(_has_spread(p, m) for p in result.points)), None)
    rows = []
    for point in result.points:
        cells = [_factor(point.factors[key]) for key in factors]
        for measure in shown:
            cells.append(show(point.values.get(measure.key), measure.unit))
            if measure is spread and _has_spread(point, measure):
                least, most = point.least[measure.key], point.most[measure.key]
                cells[-1] += f" ({show(least, measure.unit)} to {show(most, measure.unit)})"
        rows.append(cells)
    names = [*factors, *(measure.title for measure in shown)]
    numbers = [False] * len(factors) + [True] * len(shown)
    lines = [
        f"`penstock bench {study.name}` at scale {result.scale}, "
        f"{_times(max((point.repeats for point in result.points), default=0))}.",
        "",
        machine_table(result.machine),
        "",
        table_of(names, rows, numbers),
        "",
    ]
    lines += [f"* {remark}" for remark in result.remarks]
    return "\n".join(lines).rstrip() + "\n"


def _has_spread(point: Point, measure: Measure) -> bool:
    return point.repeats > 1 and point.least.get(measure.key) is not None


def machine_facts(machine: Mapping[str, Any]) -> dict[str, str]:
    """Return the known facts of a machine in readable form.  Two machines that people would call
    equal have equal facts."""
    facts: dict[str, str] = {}
    for key, value in machine.items():
        if value is None or (key == "read_ahead_kib" and "read-ahead" in facts.get("disk", "")):
            continue
        if key.endswith("_bytes"):
            facts[key.removesuffix("_bytes")] = show(int(value), "B")  # machine.facts has words
        elif key == "unix_s":
            facts["begun"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(value))
        elif key == "beneath":
            facts["disk"] = _disk(str(value))
        elif key == "cpu" and "processors" in facts:
            facts["processors"] += f" x {value}"
        else:
            facts[CALLED.get(key, key)] = " ".join(str(value).split())
    return facts


CALLED = {
    "cpus": "processors", "file_system": "file system", "read_ahead_kib": "read-ahead, KiB",
    "load_at_start": "load before",
}  # fmt: skip


def _disk(beneath: str) -> str:
    """Return the disk's words; earlier results contain the mount, and a longer word."""
    words = beneath.rpartition("\t")[2].replace("turns, or does not say", "may seek")
    name, *rest = words.split(", ")
    return f"{name} ({'; '.join(rest)})" if rest else name


def machine_table(machine: Mapping[str, Any]) -> str:
    facts = [[name, words] for name, words in machine_facts(machine).items()]
    return table_of(["machine", ""], facts, [False] * 2)


def _times(repeats: int) -> str:
    if repeats == 1:
        return "one run of each case"
    return f"the median of {repeats} runs of each case, with the least and the most"


def _factor(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def value_of(result: StudyResult) -> dict[str, Any]:
    """Return the result as JSON, for `read_found`."""
    return {
        "study": result.study.name,
        "scale": result.scale,
        "settings": result.settings,
        "machine": result.machine,
        "factors": list(result.study.factors),
        "measures": [asdict(measure) for measure in result.study.measures],
        "points": [asdict(point) for point in result.points],
        "remarks": result.remarks,
        "more": result.more,
    }


@dataclass(frozen=True, slots=True)
class Read:
    """A study's JSON, read back."""

    name: str
    scale: str
    settings: dict[str, Any]
    machine: dict[str, Any]
    measures: tuple[Measure, ...]
    points: list[Point]


def read_found(path: Path) -> Read:
    """Read a study's JSON.  Raises TierError: not a study, or of another version."""
    try:
        value = json.loads(path.read_bytes())
        measures = tuple(Measure(**row) for row in value["measures"])
        names = [field.name for field in fields(Point)]
        points = [Point(**{name: row[name] for name in names}) for row in value["points"]]
        for point in points:
            numbers = [*point.values.values(), *point.least.values(), *point.most.values()]
            if not all(isinstance(number, int | float | None) for number in numbers):
                raise ValueError("a point without numbers")
            if set(point.factors) != set(value["factors"]):
                raise ValueError("a point of other factors")
        return Read(
            str(value["study"]), str(value["scale"]), dict(value["settings"]),
            dict(value["machine"]), measures, points,
        )  # fmt: skip
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TierError(f"{path}: no result of a study of penstock bench: {error}") from error


def write_texts(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """See write_files."""
    return write_files(folder, {name: text.encode() for name, text in texts.items()})


def write_files(folder: Path, files: Mapping[str, bytes]) -> list[Path]:
    """Files by name, each whole or not at all.  Raises TierError."""
    written = []
    for name, data in files.items():
        path = folder / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
            drafts.write(path, data)
        except OSError as error:
            raise TierError(f"{path}: cannot be written: {error.strerror}") from error
        written.append(path)
    return written


def write_found(folder: Path, result: StudyResult) -> list[Path]:
    """NAME.json, .csv, .md and, with matplotlib, .png.  Raises TierError: no run gave a number;
    MissingDependency."""
    if not result.points:
        why = f": {result.remarks[0]}" if result.remarks else ""
        raise TierError(f"{folder}: no run gave a number{why}")
    name = result.study.name
    texts = {
        f"{name}.json": json.dumps(value_of(result), indent=1),
        f"{name}.csv": csv_of(result.rows),
        f"{name}.md": markdown_of(result),
    }
    written = write_texts(folder, texts)
    if result.study.draw:
        plt = pyplot()
        figure = plt.figure()
        result.study.draw(figure, result.points)
        picture = io.BytesIO()
        figure.savefig(picture, format="png", dpi=110)
        plt.close(figure)
        written += write_files(folder, {f"{name}.png": picture.getvalue()})
    return written


def lines_of(
    axis: Any,
    points: Sequence[Point],
    x: str,
    y: str,
    label_of: Callable[[Point], str],
    scale: float = 1.0,
    labels: Sequence[str] = (),
) -> None:
    """Draw a line for each label, with the spread of the repeats.  labels: of all panels, so that a
    label has the same colour in each."""
    for label in dict.fromkeys(map(label_of, points)):
        mine = [point for point in points if label_of(point) == label and point[y] is not None]
        spreads = [
            [
                abs((point[y] - (side[y] if side[y] is not None else point[y])) * scale)
                for point, side in ((point, getattr(point, which)) for point in mine)
            ]
            for which in ("least", "most")
        ]
        axis.errorbar(
            [point[x] for point in mine], [point[y] * scale for point in mine], spreads,
            label=label, marker="o", markersize=4, capsize=2,
            color=f"C{labels.index(label)}" if labels else None,
        )  # fmt: skip
    axis.grid(alpha=0.3)


def bars_of(
    axis: Any,
    points: Sequence[Point],
    y: str,
    label_of: Callable[[Point], str],
    scale: float = 1.0,
) -> None:
    """Draw a bar for each point, the first on top, with the spread of the repeats."""
    shown = [point for point in points if point[y] is not None]
    for number, point in enumerate(shown):
        ends = [side[y] if side[y] is not None else point[y] for side in (point.least, point.most)]
        spread = [[abs(point[y] - end) * scale] for end in ends]
        axis.barh(number, point[y] * scale, xerr=spread, color="C0", ecolor="black", capsize=3)
    axis.set_yticks(range(len(shown)), [label_of(point) for point in shown], fontsize=8)
    axis.invert_yaxis()
    axis.grid(alpha=0.3, axis="x")


# Where an axis ends at less than so many times its begin, a power of ten has the ticks here.
TICKS = ((10, (1, 2, 3, 4, 6, 8)), (300, (1, 2, 5)), (math.inf, (1,)))


def logarithmic(axis: Any, unit: str, ticks: Sequence[float] = ()) -> None:
    """Set up an axis.xaxis or .yaxis with all data drawn: numbers as in words.show, at the given
    ticks; without ticks, at powers of ten, and in between where there are few."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    getattr(axis.axes, f"set_{axis.axis_name}scale")("log")
    if ticks:
        axis.set_ticks(ticks)
        axis.minorticks_off()
    else:
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=next(n for most, n in TICKS if high < most * low)))
        axis.set_minor_formatter(NullFormatter())
    # 10.0 kB is a measurement's; a tick is at 10 kB.
    words = FuncFormatter(lambda value, _: re.sub(r"\.0+(?= |$)", "", show(value, unit)))
    axis.set_major_formatter(words)


def panels(figure: Any, names: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """An axis for each name, side by side; more than four in rows of three."""
    columns = len(names) if len(names) <= 4 else 3
    rows = -(-len(names) // max(1, columns))
    figure.set_size_inches(4.2 * columns + 1.0, 4.2 * rows)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for axis in axes[len(names) :]:
        axis.set_axis_off()
    for name, axis in zip(names, axes, strict=False):
        axis.set_title(name, fontsize=10)
        yield name, axis
    figure.tight_layout()


def pyplot() -> Any:
    imported("matplotlib", "a picture").use("agg")
    return imported("matplotlib.pyplot", "a picture")
