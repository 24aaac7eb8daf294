"""The ladder: LMDB readers from Caffe's to Penstock's, a change at a time, on fast and slow tiers.

Knows rungs (programs that read), places (storage, and how it is made slow) and what a run gave.
A run counts as cold when less than 2 % of the file was in memory before it; else there is no run.
Each result is kept when it is there: the same command goes on where an interrupted one ended.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from penstock.errors import TierError
from penstock.feed import byte_file, pages
from penstock_lab import places, study
from penstock_lab.folders import refuse_without_room, scratch
from penstock_lab.needs import imported
from penstock_lab.places import LATENCY_BPS, THROTTLED_BPS, THROTTLED_HZ, Place
from penstock_lab.rungs import RUNGS, RungJob, RungResult

__all__ = [
    "LATENCY_BPS",
    "LOOKS",
    "NEEDS",
    "PLACES",
    "THROTTLED_BPS",
    "THROTTLED_HZ",
    "LadderPoint",
    "LadderRun",
    "LadderSettings",
    "climb",
    "compared",
    "lmdb_bytes",
    "make_lmdb",
    "markdown_of",
    "opened",
    "picture_of",
    "points_of",
    "read_results",
    "summed",
    "write_results",
]

PhaseProgress = Callable[[str, float], None]

# Bae 2019's LMDB of JPEG images: 30.67 kB a record.
RECORD_BYTES = 30_670
DATA_BYTES = 2_000_000_000

MADE = "made.json"  # beside data.mdb: what was asked for

# Of each process: its buffers (rungs.FEED_BYTES at most) and what Python touches.
PROCESS_BYTES = 48 << 20
PLACES = ("disk", "throttled", "latency", "memory")
NEEDS = {"lmdb": "making and reading LMDBs"}  # see needs.look_for


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """What is run.  seconds: of each run at most.  compute_s: slept after each batch."""

    rungs: tuple[str, ...]
    processes: tuple[int, ...] = (1, 2, 4, 8)
    places: tuple[str, ...] = PLACES
    repeats: int = 3
    seconds: float = 5.0
    batch: int = 32
    compute_s: float = 0.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class LadderRun:
    """One run of one rung: sums over its processes, of which `processes` use records.

    records_hz: the set-up (finding the offsets) is shared out over the records it was made for.
    device_requests: -1 where the storage does not count them.  user_s, system_s: of all threads.
    sleep_s: what of total_s, the wall of all processes, their own threads did not compute; threads
    that read ahead for them are not counted.  resident_share: of the file in memory before.
    """

    place: str
    rung: str
    processes: int
    repeat: int
    records: int
    record_bytes: int
    wall_s: float
    setup_s: float
    records_hz: float
    bandwidth_bps: float
    device_bytes: int
    device_requests: int
    user_s: float
    system_s: float
    sleep_s: float
    major_faults: int
    minor_faults: int
    voluntary_switches: int
    involuntary_switches: int
    resident_share: float
    total_s: float = 0.0  # 0: of a result of an earlier release, which did not tell


@dataclass(frozen=True, slots=True)
class LadderPoint:
    """The repeats of one (place, rung, processes): the median run by records/s, and the spread."""

    run: LadderRun
    least_hz: float
    most_hz: float
    repeats: int


# --- the data ------------------------------------------------------------------------------------


def lmdb_bytes(data_bytes: int) -> int:
    """What an LMDB of records of so many bytes together takes: its pages are never full."""
    return int(1.2 * data_bytes)


def make_lmdb(
    folder: Path,
    data_bytes: int = DATA_BYTES,
    record_bytes: int = RECORD_BYTES,
    seed: int = 1,
    progress: PhaseProgress | None = None,
) -> None:
    """An LMDB of random records, sizes ± 30 %, keys in order, 1,000 a commit; unless it is there.

    Raises TierError: no room, or something else is there; MissingDependency.
    """
    lmdb = imported("lmdb", NEEDS["lmdb"])
    if (folder / "data.mdb").exists():
        return
    if folder.exists() and any(folder.iterdir()):
        raise TierError(f"{folder}: is there and no LMDB; name a folder that is not")
    chance = random.Random(seed)
    pool = chance.randbytes(max(1 << 20, 4 * record_bytes))
    n = max(1, data_bytes // record_bytes)
    refuse_without_room(folder, lmdb_bytes(data_bytes), "less data")
    with scratch(folder.with_name(f"{folder.name}.partial")) as work:
        draft, room = work / "lmdb", 3 * data_bytes + (64 << 20)
        try:
            with lmdb.open(str(draft), map_size=room, sync=False) as database:
                for first in range(0, n, 1000):
                    with database.begin(write=True) as transaction:
                        for record in range(first, min(n, first + 1000)):
                            size = max(8, round(record_bytes * chance.uniform(0.7, 1.3)))
                            start = chance.randrange(len(pool) - size)
                            value = record.to_bytes(8, "big") + pool[start : start + size - 8]
                            transaction.put(b"%08d" % record, value, append=True)
                    if progress:
                        progress("making the LMDB", first / n)
                database.sync(True)
            (draft / "lock.mdb").unlink(missing_ok=True)
            asked = {"data_bytes": data_bytes, "record_bytes": record_bytes}
            study.write_texts(draft, {MADE: json.dumps(asked)})
            if folder.exists():
                folder.rmdir()
            draft.replace(folder)
        except OSError as error:
            raise TierError(f"{folder}: cannot be written: {error.strerror}") from error
        except lmdb.Error as error:
            raise TierError(
                f"{folder}: cannot be written, the disk may be full: {error}"
            ) from error


# --- all runs ------------------------------------------------------------------------------------


def climb(
    lmdb: Path, settings: LadderSettings, output: Path, progress: PhaseProgress | None = None
) -> tuple[list[LadderRun], list[str]]:
    """Makes every run that OUTPUT does not hold yet, and gives all that it holds then: places can
    be measured one at a time.  Also says which places were left out and why.

    Raises TierError: a run was not cold, the file changed, the rungs disagree on a record, OUTPUT
    holds runs of other settings.
    """
    _refuse_empty(lmdb)
    kept = opened(output, settings)
    kept.add_settings(_facts(lmdb))
    kept.rows = [row for row in kept.rows if _is_run(row)]
    cases = [
        {"place": place, "rung": rung, "processes": processes}
        for place in settings.places
        for rung in settings.rungs
        for processes in settings.processes
    ]
    truth: dict[int, tuple[int, int]] = {}

    def run(place: Place, case: dict[str, Any]) -> dict[str, Any]:
        job = RungJob(
            case["rung"], str(place.path), case["processes"], settings.batch, settings.seconds,
            settings.compute_s, settings.seed,
        )  # fmt: skip
        return _run(place, job, truth)

    def at(name: str) -> Any:
        size = (lmdb / "data.mdb").stat().st_size
        return places.at(name, lmdb, size, max(settings.processes) * PROCESS_BYTES)

    _, remarks = study.carried_out(
        kept, cases, run, at, repeats=settings.repeats, seed=settings.seed, progress=progress,
        is_warmed=False,
    )  # fmt: skip
    rows = sorted(kept.rows, key=lambda row: PLACES.index(row["place"]))
    return [LadderRun(**row) for row in rows], remarks


def _refuse_empty(lmdb: Path) -> None:
    file = str(lmdb / "data.mdb")
    with byte_file.opened(file) as source:
        n_entries = pages.read_meta(source, file).main.entries
    if not n_entries:
        raise TierError(f"{lmdb}: holds no record, so there is nothing to measure; name another")


def opened(output: Path, settings: LadderSettings) -> study.KeptRuns:
    """The runs that a folder holds; before its LMDB is made.

    Raises TierError: they are of other settings, or the folder is no study's.
    """
    mark = {
        "study": "ladder", "seconds": settings.seconds, "batch": settings.batch,
        "compute_s": settings.compute_s, "seed": settings.seed,
    }  # fmt: skip
    return study.KeptRuns(output, mark)


def _facts(lmdb: Path) -> dict[str, Any]:
    """Of the file that all runs of one folder read, and what was asked for where we made it."""
    status = (lmdb / "data.mdb").stat()
    try:
        asked = json.loads((lmdb / MADE).read_bytes())
    except (OSError, ValueError):
        asked = {}
    return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, **asked}


def _is_run(row: dict[str, Any]) -> bool:
    return set(row) == {field.name for field in fields(LadderRun)}


def read_results(output: Path) -> list[LadderRun]:
    """The runs that a folder holds; a last line that was cut off is left out."""
    return [LadderRun(**row) for row in study.rows_of(output / "runs.jsonl") if _is_run(row)]


# --- one run -------------------------------------------------------------------------------------


def _run(place: Place, job: RungJob, truth: dict[int, tuple[int, int]]) -> dict[str, Any]:
    file = place.path / "data.mdb"
    seen: list[Any] = []

    def at_ready() -> None:
        seen.extend([places.made_cold([file], place), places.device(place)])

    answer = places.answer_of("penstock_lab.rungs", asdict(job), place, at_ready, job.seconds + 400)
    resident, before = seen
    after = places.device(place)
    done = [RungResult(**result) for result in answer["done"]]
    compared(job, done, truth)
    return summed(place, job, done, resident, (before, after))


def compared(job: RungJob, done: Sequence[RungResult], truth: dict[int, tuple[int, int]]) -> None:
    """Check that a record has a fixed length and checksum in every rung.  Raises TierError."""
    for result in done:
        for record, length, crc in result.sample:
            if truth.setdefault(record, (length, crc)) != (length, crc):
                raise TierError(f"{job.rung}: record {record} is not what another rung read")


def summed(
    place: Place,
    job: RungJob,
    done: Sequence[RungResult],
    resident: float,
    device: tuple[tuple[int, int], tuple[int, int]],
) -> dict[str, Any]:
    """Return the sums over the processes of a run, as a LadderRun without the repeat.

    done: a result of each process, also of readers for other processes.  device: requests and bytes
    of the device before and after the run, -1 without a count.
    """
    users = [result for result in done if result.role == "process"]
    setup_s = max(result.setup_s for result in done)
    wall_s = max(result.wall_s for result in done)
    records, record_bytes = _total(users, "records"), _total(users, "record_bytes")
    has_plan = RUNGS[job.rung].source != "cursor"
    planned = max(records, _total(users, "planned") if has_plan else 0)
    # The set-up is for all records: a run that ended early is charged its share.
    seconds = wall_s - setup_s + setup_s * records / max(1, planned)
    (reads, moved), (reads_after, moved_after) = device
    total_s = sum(result.wall_s * result.stands_for for result in done)
    run = LadderRun(
        place.name, job.rung, job.processes, 0, records, record_bytes, wall_s, setup_s,
        records / seconds if seconds > 0 else 0.0,
        record_bytes / seconds if seconds > 0 else 0.0,
        moved_after - moved if place.tier is not None else _total(done, "device_bytes"),
        reads_after - reads if reads >= 0 else -1,
        _total(done, "user_s"),
        _total(done, "system_s"),
        total_s - _total(done, "own_cpu_s"),
        _total(done, "major_faults"),
        _total(done, "minor_faults"),
        _total(done, "voluntary_switches"),
        _total(done, "involuntary_switches"),
        resident,
        total_s,
    )  # fmt: skip
    measured = asdict(run)
    del measured["repeat"]
    return measured


def _total(results: Sequence[RungResult], name: str) -> Any:
    return sum(getattr(result, name) for result in results)


# --- the presentation -----------------------------------------------------------------------------


def points_of(runs: Sequence[LadderRun]) -> list[LadderPoint]:
    """The repeats of each point, in the order of the rungs."""
    groups: dict[tuple[str, str, int], list[LadderRun]] = {}
    for run in runs:
        groups.setdefault((run.place, run.rung, run.processes), []).append(run)
    points = []
    for repeats in groups.values():
        ordered = sorted(repeats, key=lambda run: run.records_hz)
        rates = [run.records_hz for run in ordered]
        points.append(LadderPoint(ordered[len(ordered) // 2], rates[0], rates[-1], len(rates)))
    names = list(RUNGS)
    return sorted(
        points,
        key=lambda point: (
            PLACES.index(point.run.place), names.index(point.run.rung), point.run.processes,
        ),
    )  # fmt: skip


def machine_of(lmdb: Path, kept: study.KeptRuns | None = None) -> dict[str, Any]:
    """Describe the machine of the figures, as kept or now, without its name."""
    return {
        **(kept.machine(lmdb) if kept else study.machine_of(lmdb)),
        "lmdb": _lmdb_version(),
        "data_bytes": (lmdb / "data.mdb").stat().st_size,
    }


def _lmdb_version() -> str:
    from importlib import metadata

    return metadata.version("lmdb")


COLUMNS: tuple[tuple[str, Callable[[LadderPoint], str]], ...] = (
    ("records/s", lambda point: f"{point.run.records_hz:,.0f}"),
    ("spread", lambda point: f"{point.least_hz:,.0f}–{point.most_hz:,.0f}"),
    ("MB/s", lambda point: f"{point.run.bandwidth_bps / 1e6:,.1f}"),
    ("device/asked", lambda point: f"{_share(point.run.device_bytes, point.run.record_bytes):.2f}"),
    ("requests/record", lambda point: _per(point.run, point.run.device_requests)),
    ("switches/record", lambda point: _per(point.run, _switches(point.run))),
    ("major faults/record", lambda point: _per(point.run, point.run.major_faults)),
    ("minor faults/record", lambda point: _per(point.run, point.run.minor_faults)),
    ("user µs/record", lambda point: _per(point.run, 1e6 * point.run.user_s)),
    ("system µs/record", lambda point: _per(point.run, 1e6 * point.run.system_s)),
    ("asleep µs/record", lambda point: _per(point.run, 1e6 * point.run.sleep_s)),
    ("asleep", lambda point: f"{_asleep(point.run):.0%}".replace("%", " %")),
    ("wall s", lambda point: f"{point.run.wall_s:.2f}"),
    ("set-up s", lambda point: f"{point.run.setup_s:.2f}"),
)


def _switches(run: LadderRun) -> int:
    return run.voluntary_switches + run.involuntary_switches


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _per(run: LadderRun, number: float) -> str:
    if number < 0 or not run.records:
        return "–"
    each = number / run.records
    return f"{each:,.0f}" if each >= 100 else f"{each:.2f}"


def _asleep(run: LadderRun) -> float:
    return _share(run.sleep_s, run.total_s or run.sleep_s + run.user_s + run.system_s)


def markdown_of(
    runs: Sequence[LadderRun], machine: dict[str, Any], remarks: Sequence[str] = ()
) -> str:
    """Return tables, one for each place."""
    points = points_of(runs)
    lines = [study.machine_table(machine)]
    for place in PLACES:
        mine = [point for point in points if point.run.place == place]
        if not mine:
            continue
        names = [name for name, _ in COLUMNS]
        lines += ["", f"**{place}**", "", f"| rung | processes | {' | '.join(names)} |"]
        lines.append("| --- | --- |" + " ---: |" * len(names))
        for point in mine:
            cells = [cell(point) for _, cell in COLUMNS]
            lines.append(f"| {point.run.rung} | {point.run.processes} | {' | '.join(cells)} |")
    lines += ["", *[f"* {remark}" for remark in remarks]]
    lines += [f"* `{rung.name}`: {rung.says}" for rung in RUNGS.values()]
    return "\n".join(lines) + "\n"


MEASURES = (
    study.Measure("records_hz", "records/s", "count", 1),
    study.Measure("bandwidth_bps", "bandwidth", "B/s", 1),
    study.Measure("sleep_s", "asleep", "s"),
)


def _told(point: LadderPoint) -> dict[str, Any]:
    """Return a point in the common form of all studies, for `penstock bench compare`."""
    run = point.run
    rates = {"records_hz": (point.least_hz, point.most_hz)}
    return {
        "factors": {"place": run.place, "rung": run.rung, "processes": run.processes},
        "values": {measure.key: getattr(run, measure.key) for measure in MEASURES},
        "least": {key: least for key, (least, _) in rates.items()},
        "most": {key: most for key, (_, most) in rates.items()},
    }


def write_results(
    output: Path, runs: Sequence[LadderRun], machine: dict[str, Any], remarks: Sequence[str] = ()
) -> list[Path]:
    """ladder.json, .csv, .md and, with matplotlib, .png.  Raises TierError."""
    points = points_of(runs)
    if not points:
        why = f": {remarks[0]}" if remarks else ""
        raise TierError(f"{output}: no run gave a number{why}")
    value = {
        "study": "ladder",
        "scale": "",
        "machine": machine,
        "settings": _settings(output),
        "factors": ["place", "rung", "processes"],
        "measures": [asdict(measure) for measure in MEASURES],
        "remarks": list(remarks),
        "points": [asdict(point) | _told(point) for point in points],
    }
    texts = {
        "ladder.json": json.dumps(value, indent=1),
        "ladder.csv": study.csv_of([asdict(run) for run in runs]),
        "ladder.md": markdown_of(runs, machine, remarks),
    }
    written = study.write_texts(output, texts)
    picture_of(points, output / "ladder.png")
    return [*written, output / "ladder.png"]


# Similar rungs share a colour; each rung has a separate mark.
LOOKS = {
    "skip": ("tab:red", "o"), "skip-random": ("tab:red", "v"),
    "get": ("tab:orange", "o"), "get-random": ("tab:orange", "v"),
    "lmm": ("tab:purple", "o"), "dio": ("tab:purple", "v"), "index": ("tab:purple", "s"),
    "coal": ("tab:blue", "o"), "readers": ("tab:blue", "v"), "stag": ("tab:blue", "s"),
    "overlap": ("tab:blue", "D"),
    "feed": ("tab:green", "o"), "node": ("tab:green", "s"), "feed-shuffled": ("tab:green", "v"),
}  # fmt: skip


def _settings(output: Path) -> dict[str, Any]:
    """Return the common settings of a folder's runs; empty without runs."""
    try:
        settings: dict[str, Any] = json.loads((output / "settings.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return settings


def picture_of(points: Sequence[LadderPoint], path: Path) -> None:
    """Draw the time for 1,000 records by processes, a panel for each place, as the paper does.

    Rungs stand side by side at each number of processes: many are as fast as their neighbours.
    Raises MissingDependency.
    """
    plt = study.pyplot()
    places = [place for place in PLACES if any(point.run.place == place for point in points)]
    columns = min(2, len(places))
    rows = -(-len(places) // columns)
    width = 5.2 * columns + 1.8
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, 4.4 * rows), sharey=True, squeeze=False
    )
    rungs = [name for name in RUNGS if any(point.run.rung == name for point in points)]
    ticks = sorted({point.run.processes for point in points})
    panels = list(axes.flat)
    for axis in panels[len(places) :]:
        axis.set_visible(False)
    for axis, place in zip(panels, places, strict=False):
        here = [point for point in points if point.run.place == place and point.run.records_hz]
        _panel(axis, place, here, rungs, ticks)
    study.logarithmic(panels[0].yaxis, "s")  # shared by all panels
    for row in axes:
        row[0].set_ylabel("time for 1,000 records")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="center right", frameon=False)
    figure.tight_layout(rect=(0, 0, 1 - 1.6 / width, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(
    axis: Any,
    place: str,
    points: Sequence[LadderPoint],
    rungs: Sequence[str],
    ticks: Sequence[int],
) -> None:
    """Draw the points of a place: medians, with bars from the fastest to the slowest repeat."""
    for number, name in enumerate(rungs):
        mine = [point for point in points if point.run.rung == name]
        colour, mark = LOOKS[name]
        axis.errorbar(
            [_slot(ticks, point.run.processes, number, len(rungs)) for point in mine],
            [1000 / point.run.records_hz for point in mine],
            [
                [1000 / p.run.records_hz - 1000 / p.most_hz for p in mine],
                [1000 / max(p.least_hz, 1e-9) - 1000 / p.run.records_hz for p in mine],
            ],
            label=name, color=colour, marker=mark, markersize=4.5, capsize=2, linewidth=0.5,
            markerfacecolor="none" if mark != "o" else colour,
        )  # fmt: skip
    axis.set(title=place, xlabel="processes", xlim=(-0.55, len(ticks) - 0.45))
    axis.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
    for edge in range(1, len(ticks)):
        axis.axvline(edge - 0.5, color="0.85", linewidth=0.8)
    axis.grid(axis="y", alpha=0.3)


def _slot(ticks: Sequence[int], processes: int, number: int, n: int) -> float:
    """Return the place of the number-th of n rungs: around its number of processes."""
    return ticks.index(processes) + 0.8 * ((number + 0.5) / n - 0.5)
