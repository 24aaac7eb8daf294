"""The ladder: LMDB readers from Caffe's to Penstock's, a change at a time, on fast and slow tiers.

Knows rungs (programs that read), places (storage, and how it is made slow) and what a run gave.
A run counts as cold when less than 2 % of the file was in memory before it; else there is no run.
Each result is kept when it is there: the same command goes on where an interrupted one ended.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from penstock import tiers
from penstock.bench import tier as slow_tiers
from penstock.bench.groups import Group, device_of
from penstock.bench.rungs import RUNGS, Done, Job
from penstock.bench.tier import SlowTier
from penstock.errors import MissingDependency, TierError
from penstock.feed import pages
from penstock.words import show

__all__ = [
    "LOOKS",
    "PLACES",
    "Point",
    "Run",
    "Settings",
    "climb",
    "make_lmdb",
    "markdown_of",
    "picture_of",
    "points_of",
    "pyplot",
    "read_results",
    "write_results",
]

Progress = Callable[[str, float], None]

# Bae 2019's LMDB of JPEG images: 30.67 kB a record.
RECORD_BYTES = 30_670
DATA_BYTES = 2_000_000_000

# A common cloud volume, and a parallel or remote file system's order of magnitude.
THROTTLED_BPS, THROTTLED_HZ = 200e6, 2000.0
LATENCY_S, LATENCY_BPS = 1e-3, 1e9
MEMORY_SHARE = 0.25
# Of each process: its buffers (rungs.FEED_BYTES at most) and what Python touches.
PROCESS_BYTES = 48 << 20
PLACES = ("disk", "throttled", "latency", "memory")

READY_WITHIN_S = 60.0


@dataclass(frozen=True, slots=True)
class Settings:
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
class Run:
    """One run of one rung: sums over its processes, of which `processes` use records.

    records_hz: the set-up (finding the offsets) is shared out over the records it was made for.
    device_requests: -1 where the storage does not count them.  sleep_s: wall of all processes less
    their user and system time.  resident_share: of the file in memory before it began.
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


@dataclass(frozen=True, slots=True)
class Point:
    """The repeats of one (place, rung, processes): the median run by records/s, and the spread."""

    run: Run
    least_hz: float
    most_hz: float
    repeats: int


class _Place(NamedTuple):
    """Storage under one condition.  path: of the LMDB there."""

    name: str
    path: Path
    tier: SlowTier | None
    group: Group | None


# --- the data ------------------------------------------------------------------------------------


def make_lmdb(
    folder: Path,
    data_bytes: int = DATA_BYTES,
    record_bytes: int = RECORD_BYTES,
    seed: int = 1,
    progress: Progress | None = None,
) -> None:
    """An LMDB of random records, sizes ± 30 %, keys in order, 1,000 a commit; unless it is there.

    Raises TierError: no room, or something else is there; MissingDependency.
    """
    try:
        import lmdb
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "the ladder needs py-lmdb: pip install 'penstock[bench]'"
        ) from error
    if (folder / "data.mdb").exists():
        return
    draft = folder.with_name(f"{folder.name}.partial")
    if folder.exists() and any(folder.iterdir()):
        raise TierError(f"{folder}: is there and no LMDB; name a folder that is not")
    draft.mkdir(parents=True, exist_ok=True)
    for left in draft.iterdir():
        left.unlink()
    try:
        if tiers.free_bytes(draft) < 1.2 * data_bytes + (64 << 20):
            raise TierError(f"{folder}: needs {show(1.2 * data_bytes, 'B')} of room")
        chance = random.Random(seed)
        pool = chance.randbytes(max(1 << 20, 4 * record_bytes))
        n = max(1, data_bytes // record_bytes)
        with lmdb.open(str(draft), map_size=3 * data_bytes + (64 << 20), sync=False) as database:
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
        if folder.exists():
            folder.rmdir()
        draft.replace(folder)
    except OSError as error:
        raise TierError(f"{folder}: cannot be written: {error.strerror}") from error
    finally:
        if draft.exists():
            for left in draft.iterdir():
                left.unlink()
            draft.rmdir()


# --- all runs ------------------------------------------------------------------------------------


def climb(
    lmdb: Path, settings: Settings, output: Path, progress: Progress | None = None
) -> tuple[list[Run], list[str]]:
    """Makes every run that OUTPUT does not hold yet, and gives all that it holds then: places can
    be measured one at a time.  Also says which places were left out and why.

    Raises TierError: a run was not cold, the file changed, the rungs disagree on a record, OUTPUT
    holds runs of other settings.
    """
    _refuse_empty(lmdb)
    known = _known(output, settings, lmdb)
    remarks: list[str] = []
    wanted = [
        (place, rung, processes, repeat)
        for place in settings.places
        for repeat in range(settings.repeats)
        for rung, processes in _mixed(settings, repeat)
    ]
    left = [key for key in wanted if key not in known]
    truth: dict[int, tuple[int, int]] = {}
    done = 0
    with open(output / "runs.jsonl", "a") as kept:
        if kept.tell():
            kept.write("\n")  # the last line may have been cut off
        for place in settings.places:
            mine = [key for key in left if key[0] == place]
            if not mine:
                continue
            try:
                with _at(place, lmdb, max(settings.processes)) as there:
                    for key in mine:
                        what = f"{place}: {key[1]}, {key[2]} processes"
                        if progress:
                            progress(what, done / len(left))
                        job = Job(
                            key[1], str(there.path), key[2], settings.batch, settings.seconds,
                            settings.compute_s, settings.seed,
                        )  # fmt: skip
                        done += 1
                        try:
                            known[key] = _run(there, job, key[3], truth)
                        except _RunError as error:
                            remarks.append(f"{what}: no result: {error}")
                            continue
                        kept.write(json.dumps(asdict(known[key])) + "\n")
                        kept.flush()
            except (_PlaceError, MissingDependency) as error:
                remarks.append(f"{place}: left out: {error}")
    return sorted(known.values(), key=lambda run: PLACES.index(run.place)), remarks


def _refuse_empty(lmdb: Path) -> None:
    file = str(lmdb / "data.mdb")
    with pages.opened(file) as descriptor:
        n_entries = pages.read_meta(descriptor, file).main.entries
    if not n_entries:
        raise TierError(f"{lmdb}: holds no record, so there is nothing to measure; name another")


class _PlaceError(TierError):
    """This machine or this user cannot have such a place."""


class _RunError(TierError):
    """A run that gave no result.  The others go on."""


def _mixed(settings: Settings, repeat: int) -> list[tuple[str, int]]:
    """Runs in another order each time: a machine that slows down slows all of them."""
    runs = [(rung, processes) for rung in settings.rungs for processes in settings.processes]
    random.Random(settings.seed + repeat).shuffle(runs)
    return runs


def _known(output: Path, settings: Settings, lmdb: Path) -> dict[tuple[str, str, int, int], Run]:
    """The runs that are there already, if they are of the same settings and file."""
    output.mkdir(parents=True, exist_ok=True)
    status = (lmdb / "data.mdb").stat()
    mark = {
        "seconds": settings.seconds, "batch": settings.batch, "compute_s": settings.compute_s,
        "seed": settings.seed, "size": status.st_size, "mtime_ns": status.st_mtime_ns,
    }  # fmt: skip
    head = output / "settings.json"
    if head.exists() and json.loads(head.read_bytes()) != mark:
        raise TierError(f"{output}: holds runs of other settings or data; name another folder")
    head.write_text(json.dumps(mark))
    runs = read_results(output)
    return {(run.place, run.rung, run.processes, run.repeat): run for run in runs}


def read_results(output: Path) -> list[Run]:
    """The runs that a folder holds; a last line that was cut off is left out."""
    names = {field.name for field in fields(Run)}
    found = []
    try:
        lines = (output / "runs.jsonl").read_bytes().split(b"\n")
    except OSError:
        return []
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict) and set(value) == names:
            found.append(Run(**value))
    return found


@contextmanager
def _at(name: str, lmdb: Path, processes: int) -> Iterator[_Place]:
    """The place for as long as the block runs.  Raises _PlaceError."""
    size = (lmdb / "data.mdb").stat().st_size
    with ExitStack() as stack:
        try:
            if name == "disk":
                place = _Place(name, lmdb, None, None)
            elif name == "throttled":
                group = stack.enter_context(
                    slow_tiers.capped(lmdb, bandwidth=THROTTLED_BPS, iops=THROTTLED_HZ)
                )
                place = _Place(name, lmdb, None, group)
            elif name == "memory":
                memory_bytes = int(size * MEMORY_SHARE)
                if memory_bytes < processes * PROCESS_BYTES:
                    least = processes * PROCESS_BYTES / MEMORY_SHARE
                    raise TierError(
                        f"a quarter of the data is {show(memory_bytes, 'B')}, less than {processes}"
                        f" processes need themselves; --data {show(least, 'B')} has room"
                    )
                group = stack.enter_context(slow_tiers.capped(lmdb, memory_bytes=memory_bytes))
                place = _Place(name, lmdb, None, group)
            else:
                tier = stack.enter_context(
                    slow_tiers.slow(lmdb, bandwidth=LATENCY_BPS, latency_s=LATENCY_S)
                )
                place = _Place(name, Path(tier.path), tier, None)
        except TierError as error:
            raise _PlaceError(str(error)) from error
        yield place


# --- one run -------------------------------------------------------------------------------------


def _run(place: _Place, job: Job, repeat: int, truth: dict[int, tuple[int, int]]) -> Run:
    file = place.path / "data.mdb"
    program = subprocess.Popen(
        [sys.executable, "-m", "penstock.bench.rungs"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert program.stdin
        assert program.stdout
        program.stdin.write(json.dumps(asdict(job)) + "\n")
        program.stdin.flush()
        if program.stdout.readline() != "ready\n":
            raise TierError(f"{job.rung}: cannot be run: {_said(program)}")
        resident = _made_cold(file, place)
        if place.group is not None:
            place.group.add(program.pid)
        before = _device(place)
        answer, _ = program.communicate("go\n", timeout=job.seconds + 400)
        after = _device(place)
    except subprocess.TimeoutExpired as error:
        raise _RunError(f"{job.rung}: did not end in time") from error
    finally:
        program.kill()
        program.wait()
    try:
        found = json.loads(answer)
    except ValueError as error:
        raise _RunError(f"killed or failed: {_said(program)}") from error
    if "error" in found:
        raise _RunError(found["error"])
    done = [Done(**one) for one in found["done"]]
    _compared(job, done, truth)
    return _summed(place, job, repeat, done, resident, (before, after))


def _said(program: subprocess.Popen[str]) -> str:
    try:
        lines = program.stderr.read().strip().splitlines() if program.stderr else []
    except ValueError:
        lines = []
    return lines[-1] if lines else "it said nothing"


def _made_cold(file: Path, place: _Place) -> float:
    """Evicts the file and looks.  Raises TierError: it is not cold.

    It is read before: where a host lends memory, the first touch of a page costs more than a disk
    read, and that is nobody's I/O.  Below a FUSE tier its bytes stay in memory: the tier is what is
    measured, not the disk.
    """
    _warm(file if place.tier is None else Path(place.tier.folder) / file.name)
    tiers.evict(file)
    warmth = tiers.warmth_of([file])
    if not warmth.is_cold:
        raise TierError(
            f"{file}: not cold: {warmth.why_not_cold}; does another program have it mapped?"
        )
    return (warmth.resident_bytes or 0) / max(1, warmth.size_bytes)


def _warm(file: Path) -> None:
    if (tiers.resident_bytes(file) or 0) >= file.stat().st_size:
        return
    buffer = bytearray(1 << 20)
    with open(file, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass


def _device(place: _Place) -> tuple[int, int]:
    """Reads so far, and their bytes: of the tier, or of the whole disk."""
    if place.tier is not None:
        asked = place.tier.requests()
        return asked.reads, asked.read_bytes
    try:
        numbers = Path(f"/sys/dev/block/{device_of(str(place.path))}/stat").read_text().split()
        return int(numbers[0]), 512 * int(numbers[2])
    except (TierError, OSError):
        return -1, 0


def _compared(job: Job, done: Sequence[Done], truth: dict[int, tuple[int, int]]) -> None:
    """Whatever way it was read, a record has one length and one checksum."""
    for one in done:
        for record, length, crc in one.sample:
            if truth.setdefault(record, (length, crc)) != (length, crc):
                raise TierError(f"{job.rung}: record {record} is not what another rung read")


def _summed(
    place: _Place,
    job: Job,
    repeat: int,
    done: Sequence[Done],
    resident: float,
    device: tuple[tuple[int, int], tuple[int, int]],
) -> Run:
    users = [one for one in done if one.role == "process"]
    setup_s = max(one.setup_s for one in done)
    wall_s = max(one.wall_s for one in done)
    records = sum(one.records for one in users)
    record_bytes = sum(one.record_bytes for one in users)
    planned = max(records, sum(one.planned for one in users if RUNGS[job.rung].source != "cursor"))
    # Found for all records: a run that ended early pays its share.
    seconds = wall_s - setup_s + setup_s * records / max(1, planned)
    (reads, moved), (reads_after, moved_after) = device
    is_tier = place.tier is not None
    own_bytes = moved_after - moved if is_tier else sum(one.device_bytes for one in done)
    user_s, system_s = sum(one.user_s for one in done), sum(one.system_s for one in done)
    return Run(
        place.name, job.rung, job.processes, repeat, records, record_bytes, wall_s, setup_s,
        records / seconds if seconds > 0 else 0.0,
        record_bytes / seconds if seconds > 0 else 0.0,
        own_bytes,
        reads_after - reads if reads >= 0 else -1,
        user_s, system_s,
        max(0.0, sum(one.wall_s for one in done) - user_s - system_s),
        sum(one.major_faults for one in done),
        sum(one.minor_faults for one in done),
        sum(one.voluntary_switches for one in done),
        sum(one.involuntary_switches for one in done),
        resident,
    )  # fmt: skip


# --- what it looks like --------------------------------------------------------------------------


def points_of(runs: Sequence[Run]) -> list[Point]:
    """The repeats of each point, in the order of the rungs."""
    groups: dict[tuple[str, str, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.place, run.rung, run.processes), []).append(run)
    points = []
    for repeats in groups.values():
        ordered = sorted(repeats, key=lambda run: run.records_hz)
        rates = [run.records_hz for run in ordered]
        points.append(Point(ordered[len(ordered) // 2], rates[0], rates[-1], len(rates)))
    names = list(RUNGS)
    return sorted(
        points,
        key=lambda point: (
            PLACES.index(point.run.place), names.index(point.run.rung), point.run.processes,
        ),
    )  # fmt: skip


def machine_of(lmdb: Path) -> dict[str, Any]:
    """What the numbers were measured on; no name of it."""
    from penstock import machine

    known = dict(fact for fact in machine.facts() if fact[0] != "mount")
    mount = tiers.mount_of(lmdb)
    try:
        queue = Path(f"/sys/dev/block/{device_of(str(lmdb))}/queue/read_ahead_kb")
        ahead: int | None = int(queue.read_text())
    except (TierError, OSError):
        ahead = None
    return {
        **known,
        "kernel": platform.release().split("-")[0],
        "python": platform.python_version(),
        "lmdb": _lmdb_version(),
        "file_system": mount.kind,
        "read_ahead_kib": ahead,
        "data_bytes": (lmdb / "data.mdb").stat().st_size,
        "load_at_start": os.getloadavg()[0],
        "unix_s": int(time.time()),
    }


def _lmdb_version() -> str:
    from importlib import metadata

    return metadata.version("lmdb")


COLUMNS: tuple[tuple[str, Callable[[Point], str]], ...] = (
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


def _switches(run: Run) -> int:
    return run.voluntary_switches + run.involuntary_switches


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _per(run: Run, number: float) -> str:
    if number < 0 or not run.records:
        return "–"
    each = number / run.records
    return f"{each:,.0f}" if each >= 100 else f"{each:.2f}"


def _asleep(run: Run) -> float:
    return _share(run.sleep_s, run.sleep_s + run.user_s + run.system_s)


def markdown_of(runs: Sequence[Run], machine: dict[str, Any], remarks: Sequence[str] = ()) -> str:
    """Tables, one for each place."""
    points = points_of(runs)
    lines = ["| machine | |", "| --- | --- |"]
    lines += [f"| {key} | {value} |" for key, value in machine.items()]
    for place in PLACES:
        mine = [point for point in points if point.run.place == place]
        if not mine:
            continue
        names = [name for name, _ in COLUMNS]
        lines += ["", f"**{place}**", "", f"| rung | processes | {' | '.join(names)} |"]
        lines.append("| --- |" + " ---: |" * (len(names) + 1))
        for point in mine:
            cells = [cell(point) for _, cell in COLUMNS]
            lines.append(f"| {point.run.rung} | {point.run.processes} | {' | '.join(cells)} |")
    lines += ["", *[f"* {remark}" for remark in remarks]]
    lines += [f"* `{rung.name}`: {rung.says}" for rung in RUNGS.values()]
    return "\n".join(lines) + "\n"


def csv_of(runs: Sequence[Run]) -> str:
    """Every run, every number."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Run)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(asdict, runs))
    return text.getvalue()


def write_results(
    output: Path, runs: Sequence[Run], machine: dict[str, Any], remarks: Sequence[str] = ()
) -> list[Path]:
    """ladder.json, .csv, .md and, with matplotlib, .png.  Raises TierError."""
    points = points_of(runs)
    if not points:
        why = f": {remarks[0]}" if remarks else ""
        raise TierError(f"{output}: no run gave a number{why}")
    value = {
        "machine": machine,
        "settings": _settings(output),
        "remarks": list(remarks),
        "points": [asdict(point) for point in points],
    }
    texts = {
        "ladder.json": json.dumps(value, indent=1),
        "ladder.csv": csv_of(runs),
        "ladder.md": markdown_of(runs, machine, remarks),
    }
    written = []
    try:
        for name, text in texts.items():
            (output / name).write_text(text)
            written.append(output / name)
    except OSError as error:
        raise TierError(f"{output}: cannot be written: {error.strerror}") from error
    picture_of(points, output / "ladder.png")
    return [*written, output / "ladder.png"]


# What is alike has one colour, and each of it a mark of its own.
LOOKS = {
    "skip": ("tab:red", "o"), "skip-random": ("tab:red", "v"),
    "get": ("tab:orange", "o"), "get-random": ("tab:orange", "v"),
    "lmm": ("tab:purple", "o"), "dio": ("tab:purple", "v"), "index": ("tab:purple", "s"),
    "coal": ("tab:blue", "o"), "readers": ("tab:blue", "v"), "stag": ("tab:blue", "s"),
    "overlap": ("tab:blue", "D"),
    "feed": ("tab:green", "o"), "feed-shuffled": ("tab:green", "v"),
}  # fmt: skip


def _settings(output: Path) -> dict[str, Any]:
    """What the runs of a folder have in common; empty where it holds none."""
    try:
        found: dict[str, Any] = json.loads((output / "settings.json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found


def picture_of(points: Sequence[Point], path: Path) -> None:
    """Time for 1,000 records by processes, a panel for each place: the paper's picture.

    Rungs stand side by side at each number of processes: many are as fast as their neighbours.
    Raises MissingDependency.
    """
    plt = pyplot()
    places = [place for place in PLACES if any(point.run.place == place for point in points)]
    columns = min(2, len(places))
    rows = -(-len(places) // columns)
    width = 5.2 * columns + 1.8
    figure, axes = plt.subplots(
        rows, columns, figsize=(width, 4.4 * rows), sharey=True, squeeze=False
    )
    names = [name for name in RUNGS if any(point.run.rung == name for point in points)]
    ticks = sorted({point.run.processes for point in points})
    panels = list(axes.flat)
    for axis in panels[len(places) :]:
        axis.set_visible(False)
    for axis, place in zip(panels, places, strict=False):
        for number, name in enumerate(names):
            mine = [p for p in points if p.run.place == place and p.run.rung == name]
            mine = [point for point in mine if point.run.records_hz]
            places_at = [_slot(ticks, p.run.processes, number, len(names)) for p in mine]
            colour, mark = LOOKS[name]
            axis.errorbar(
                places_at,
                [1000 / point.run.records_hz for point in mine],
                [
                    [1000 / p.run.records_hz - 1000 / p.most_hz for p in mine],
                    [1000 / max(p.least_hz, 1e-9) - 1000 / p.run.records_hz for p in mine],
                ],
                label=name, color=colour, marker=mark, markersize=4.5, capsize=2, linewidth=0.5,
                markerfacecolor="none" if mark != "o" else colour,
            )  # fmt: skip
        axis.set(title=place, xlabel="processes", yscale="log", xlim=(-0.55, len(ticks) - 0.45))
        axis.set_xticks(range(len(ticks)), [str(tick) for tick in ticks])
        for edge in range(1, len(ticks)):
            axis.axvline(edge - 0.5, color="0.85", linewidth=0.8)
        axis.grid(axis="y", alpha=0.3)
    for row in axes:
        row[0].set_ylabel("seconds for 1,000 records")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="center right", frameon=False)
    figure.tight_layout(rect=(0, 0, 1 - 1.6 / width, 1))
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _slot(ticks: Sequence[int], processes: int, number: int, n: int) -> float:
    """Where the number-th of n rungs stands: around its number of processes."""
    return ticks.index(processes) + 0.8 * ((number + 0.5) / n - 0.5)


def pyplot() -> Any:
    try:
        import matplotlib as mpl

        mpl.use("agg")
        import matplotlib.pyplot as plt
    except ModuleNotFoundError as error:
        raise MissingDependency(
            "pictures need matplotlib: pip install 'penstock[bench]'"
        ) from error
    return plt


def spread_of(rates: Sequence[float]) -> float:
    """Of repeats: the largest difference from the median, as a share of it."""
    middle = median(rates)
    return max(abs(rate - middle) for rate in rates) / middle if middle else 0.0
