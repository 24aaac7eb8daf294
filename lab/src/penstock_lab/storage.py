"""`bench ceiling`: the most that a path gives, by the requests of IOR, fio and mdtest; also beside
fio.

Knows cases and a file that the study makes and removes.  Each measurement is a separate program
(`requests`), in the place's group.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from penstock.errors import RunError, TierError
from penstock.words import show
from penstock_lab import places, study
from penstock_lab.folders import refuse_without_room, work_in
from penstock_lab.places import Place
from penstock_lab.requests import METADATA, RequestsJob
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = [
    "OF_CEILING",
    "STUDY",
    "StorageSettings",
    "beside_ceiling",
    "ceiling_of",
    "ceilings_of",
    "measured",
    "needed_bytes",
    "needs",
    "remarks_of",
]

KIB = 1 << 10
LARGE, SMALL, MIDDLE = 1 << 20, 4 * KIB, 64 * KIB
FILE_BYTES = {"ci": 32 << 20, "small": 256 << 20, "full": 2 << 30}
# Three of a kind by default; a case takes about three seconds at `full`.
SECONDS = {"ci": 0.2, "small": 1.0, "full": 3.0}


def _requests(scale: str) -> Iterator[tuple[str, str, int, int, int, bool]]:
    """op, order, request_bytes, threads, depth, is_direct."""
    threads = {"ci": (4,), "small": (1, 8), "full": (1, 2, 4, 8, 16)}[scale]
    depths = {"ci": (8,), "small": (8, 32), "full": (4, 8, 32, 128)}[scale]
    for op in ("read", "write"):
        for order, size in (("sequential", LARGE), ("random", SMALL), ("random", MIDDLE)):
            for n in threads:
                yield op, order, size, n, 1, True
                if op == "read" or order == "sequential":
                    yield op, order, size, n, 1, False
    for depth in depths:
        yield "read", "random", SMALL, 1, depth, True
        yield "read", "sequential", LARGE, 1, depth, True


def cases_of(scale: str, names: Sequence[str]) -> list[Case]:
    cases = []
    for place in names:
        for op, order, size, threads, depth, direct in _requests(scale):
            cases.append({
                "place": place, "op": op, "order": order, "request_bytes": size,
                "threads": threads, "depth": depth, "cache": "direct" if direct else "buffered",
            })  # fmt: skip
        for op in METADATA:
            for threads in (1,) if scale == "ci" else (1, 8):
                cases.append({
                    "place": place, "op": op, "order": "", "request_bytes": 0,
                    "threads": threads, "depth": 1, "cache": "",
                })  # fmt: skip
    return cases


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """is_beside_fio: each direct case is measured by fio too, see `_beside`."""

    scale: str = "small"
    places: tuple[str, ...] = ("disk",)
    repeats: int = 3
    seed: int = 1
    is_beside_fio: bool = False


def needed_bytes(scale: str) -> int:
    """Return the room of a path's ceilings during the measurement: a file, and its old blocks in
    file systems that never overwrite."""
    return 2 * FILE_BYTES[scale]


def needs(settings: StorageSettings) -> dict[str, str]:
    """See needs.look_for."""
    return {"fio": "--fio"} if settings.is_beside_fio else {}


def _label(point: Point) -> str:
    return f"{point['order']} {point['request_bytes'] >> 10} KiB {point['cache']}"


def _draw(figure: Any, points: Sequence[Point]) -> None:
    data = [point for point in points if point["op"] in ("read", "write") and point["depth"] == 1]
    kinds = dict.fromkeys((point["place"], point["op"]) for point in data)
    titles = [" ".join(kind) for kind in kinds]
    labels = list(dict.fromkeys(map(_label, data)))
    for (place, op), (_, axis) in zip(kinds, study.panels(figure, titles), strict=True):
        mine = [point for point in data if (point["place"], point["op"]) == (place, op)]
        study.lines_of(axis, mine, "threads", "bandwidth_bps", _label, 1e-6, labels)
        axis.set(xlabel="threads", ylabel="MB/s")
        study.logarithmic(axis.xaxis, "count", sorted({point["threads"] for point in data}))
        study.logarithmic(axis.yaxis, "count")
    lines = {
        label: line
        for axis in figure.axes
        for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    # inches: the longest label, at the present size
    columns = max(1, int(figure.get_figwidth() / 2.3))
    columns = min(columns, len(lines))
    figure.legend(
        lines.values(), lines, loc="lower center", ncols=columns, fontsize=8, frameon=False
    )
    rows = -(-len(lines) // max(1, columns))
    figure.tight_layout(rect=(0, 0.02 + 0.05 * rows, 1, 1))


STUDY = Study(
    "ceiling",
    "What storage gives at most",
    ("place", "op", "order", "request_bytes", "threads", "depth", "cache"),
    (
        Measure("bandwidth_bps", "bandwidth", "B/s", 1),
        Measure("calls_hz", "calls/s", "count", 1),
        Measure("fio_bps", "fio", "B/s"),
        Measure("of_fio", "of fio's", "share"),
        Measure("fio_of_fio", "fio of fio's", "share"),
    ),
    _draw,
)


def measured(
    folder: Path, settings: StorageSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Make every measurement missing in FOLDER.

    Raises TierError: no room, FOLDER holds other settings, not cold.
    """
    kept = study.KeptRuns(folder, _mark(settings))
    machine = kept.machine()
    cases = cases_of(settings.scale, settings.places)
    with _file(folder, settings.scale) as file:

        def run(place: Place, case: Case) -> Row:
            done = sum(all(row.get(key) == case[key] for key in case) for row in kept.rows)
            return _measured(place, file, case, settings, is_ours_first=done % 2 == 0)

        rows, remarks = study.carried_out(
            kept, cases, run, lambda name: places.at(name, file.parent),
            repeats=settings.repeats, seed=settings.seed, progress=progress,
        )  # fmt: skip
    points = study.points_of(STUDY, rows, cases)
    return StudyResult(STUDY, settings.scale, _mark(settings), machine, points, rows, remarks, {})


def _mark(settings: StorageSettings) -> dict[str, Any]:
    return {"study": "ceiling"} | {
        field.name: getattr(settings, field.name)
        for field in fields(StorageSettings)
        if field.name not in ("repeats", "places")
    }


def _measured(
    place: Place, file: Path, case: Case, settings: StorageSettings, is_ours_first: bool
) -> Row:  # fmt: skip
    seen = place.path / file.name
    is_metadata = case["op"] in METADATA
    job = RequestsJob(
        str(place.path if is_metadata else seen), case["op"], case["order"] or "sequential",
        case["request_bytes"] or LARGE, case["threads"], case["depth"], case["cache"] == "direct",
        SECONDS[settings.scale], settings.seed,
    )  # fmt: skip

    def at_ready() -> None:
        if case["cache"] == "buffered" and case["op"] == "read":
            places.made_cold([seen], place)

    def ours() -> Row:
        return places.answer_of(
            "penstock_lab.requests", asdict(job), place, at_ready, 60 + 10 * job.seconds
        )

    if is_metadata:
        return ours() | {"bandwidth_bps": None}
    if settings.is_beside_fio and job.is_direct:
        return _beside(ours, lambda: _by_fio(job, place), is_ours_first)
    return ours()


def _beside(ours: Callable[[], Row], fio: Callable[[], float], is_ours_first: bool) -> Row:
    """Run ours and a third fio between two runs of fio, by turns: a drifting machine affects all
    alike, and fio's own repeatability is found like ours."""
    before = fio()
    if is_ours_first:
        row, again = ours(), fio()
    else:
        again, row = fio(), ours()
    around = (before + fio()) / 2
    return row | {
        "fio_bps": around,
        "of_fio": row["bandwidth_bps"] / around if around else None,
        "fio_of_fio": again / around if around else None,
    }


def _by_fio(job: RequestsJob, place: Place) -> float:
    """The same by fio.  Raises RunError."""
    words = {"sequential": {"read": "read", "write": "write"}}.get(
        job.order, {"read": "randread", "write": "randwrite"}
    )
    path = Path(job.path)  # fio splits names at ":", and so receives the last part alone
    engine = "io_uring" if job.depth > 1 else "psync"
    size = path.stat().st_size
    share = size // job.threads // job.request_bytes * job.request_bytes
    # Sequential: each thread has a separate part, as in ours.
    part = [f"--size={share}", f"--offset_increment={share}"] if job.order == "sequential" else []
    command = [
        "fio", "--name=x", f"--filename={path.name}", f"--rw={words[job.op]}", "--direct=1",
        "--time_based", f"--runtime={1e3 * job.seconds:.0f}ms", "--ramp_time=300ms",
        f"--ioengine={engine}",
        f"--iodepth={job.depth}", "--thread", "--group_reporting", "--output-format=json",
        "--norandommap", f"--randseed={job.seed}", f"--bs={job.request_bytes}",
        f"--numjobs={job.threads}", *part,
    ]  # fmt: skip
    if place.group is not None:
        command = place.group.wrapped(command)
    done = subprocess.run(
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=path.parent
    )
    try:
        fio_result = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0][job.op]
        return float(fio_result["bw_bytes"])
    except (ValueError, KeyError, IndexError) as error:
        why = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise RunError(f"fio failed: {why}") from error


@contextmanager
def _file(folder: Path, scale: str) -> Iterator[Path]:
    """Make a file of random bytes in a separate folder, and remove the folder at the end."""
    size = FILE_BYTES[scale]
    refuse_without_room(folder, needed_bytes(scale))
    with work_in(folder) as work:
        try:
            data = os.urandom(LARGE)
            with open(work / "file", "wb", buffering=0) as file:
                for _ in range(size // LARGE):
                    file.write(data)
                os.fsync(file.fileno())
            yield work / "file"
        except OSError as error:
            raise TierError(f"{folder}: cannot be written: {error.strerror}") from error


# --- of a place, for the other studies -----------------------------------------------------------

OF_CEILING = Measure("of_ceiling", "of the ceiling", "share", 1)


def beside_ceiling(row: Row, ceiling_bps: float | None, moved_bps: float | None = None) -> Row:
    """Return a run's row with OF_CEILING.  moved_bps: default: the row's bandwidth."""
    moved_bps = row["bandwidth_bps"] if moved_bps is None else moved_bps
    return row | {OF_CEILING.key: moved_bps / ceiling_bps if ceiling_bps else None}


def remarks_of(ceilings: Mapping[str, float]) -> list[str]:
    """Explain the shares, since a shared disk has another ceiling each time."""
    return [
        f"`of the ceiling` on `{name}` is of {show(ceiling, 'B/s')}: large sequential reads past "
        "the page cache, measured once before the runs; on a disk that is shared it is another "
        "within minutes, and shares of two results cannot be compared"
        if name in places.ON_DISK
        else f"`of the ceiling` on `{name}` is of {show(ceiling, 'B/s')}, measured before the runs"
        for name, ceiling in ceilings.items()
    ]


def ceiling_of(folder: Path, name: str, scale: str) -> float:
    """Return the bytes a second of large sequential reads past the page cache at a place, the best
    of one, four and sixteen threads: the base of a study's fraction.

    Raises TierError; PlaceError.
    """
    size = FILE_BYTES[scale]
    with _file(folder, scale) as file, places.at(name, file.parent, 64 * size) as place:
        best = 0.0
        for threads in (1, 4, 16):
            job = RequestsJob(
                str(place.path / "file"), "read", threads=threads, seconds=SECONDS[scale]
            )
            answer = places.answer_of("penstock_lab.requests", asdict(job), place, lambda: None, 60)
            best = max(best, answer["bandwidth_bps"])
    return best


def ceilings_of(
    folder: Path, names: Sequence[str], scale: str, progress: PhaseProgress | None = None
) -> dict[str, float]:
    """Return the ceiling of each possible place, measured once and kept in FOLDER.

    Raises TierError.
    """
    kept = folder / "ceilings.json"
    try:
        ceilings = dict(json.loads(kept.read_bytes()))
    except (OSError, ValueError, TypeError):
        ceilings = {}
    for number, name in enumerate(names):
        if name not in ceilings:
            if progress:
                progress(f"the ceiling of {name}", number / len(names))
            with suppress(places.PlaceError):
                ceilings[name] = ceiling_of(folder, name, scale)
    study.write_texts(folder, {kept.name: json.dumps(ceilings)})
    return {name: float(ceilings[name]) for name in names if name in ceilings}
