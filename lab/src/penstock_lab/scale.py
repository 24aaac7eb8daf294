"""`bench scale`: a data-parallel training on more and more ranks, and a simulation far beyond.

Knows the cases and the source of the simulation's parameters; `trainer` is a rank, `model`
simulates.  Bae et al. 2019 (nodes), Pumma et al. 2019 (processes).
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from penstock.errors import RunError, TierError
from penstock.places import tiers
from penstock_lab import ladder, model, places, study
from penstock_lab.folders import work_in
from penstock_lab.model import Behaviour, Cluster, ModelTraining, SharedStorage
from penstock_lab.places import Place
from penstock_lab.storage import OF_CEILING, beside_ceiling
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult
from penstock_lab.trainer import LAUNCHERS, TrainerJob, TrainerResult

__all__ = ["PLACES", "STUDY", "ScaleSettings", "measured", "needed_bytes", "needs"]

PLACES = ("shared", "latency")
RECORD_BYTES = 30_600  # Bae 2019's D4
BATCH = 32  # of a rank in weak scaling, and of each of four in strong
COMPUTE_S = 0.025  # of so many records
MOST = 4  # ranks, unless more are asked for
GRADIENTS = 250_000  # numbers: a megabyte, summed after each step
STEPS = {"ci": 16, "small": 60, "full": 240}
RANKS = {"ci": (1, 2, 4), "small": (1, 2, 3, 4), "full": (1, 2, 3, 4)}
TIMEOUT_S = 300.0
# For repeats of the rank that only reads, (most - least) / median: a disturbed machine is no
# calibration for 9,216 processes.
DISTURBED = 0.25
SIMULATED = ("bandwidth_bps", "requests_hz", "latency_s", "link_bps")  # the storage, of Settings

# The simulation beyond: Bae 2019's strong scaling of ResNet-50 (a batch of 32 K on 512 to 2,048
# nodes, 1.620 s for 512 images on four), and Pumma 2019's most processes, 36 a node.
STRONG_NODES, STRONG_BATCH, NODE_IMAGE_S = (512, 1024, 2048), 32_768, 1.620 / 128
WEAK_PROCESSES, PER_NODE = (36, 144, 576, 2304, 9216), 36


@dataclass(frozen=True, slots=True)
class ScaleSettings:
    """See study.  ranks: how many; None is the scale's own.  bandwidth_bps, requests_hz, latency_s,
    link_bps: of the storage shared by simulated nodes, and of each node's link."""

    scale: str = "small"
    places: tuple[str, ...] = PLACES
    repeats: int = 3
    seed: int = 1
    launchers: tuple[str, ...] = LAUNCHERS
    ranks: tuple[int, ...] | None = None
    bandwidth_bps: float = 10e9
    requests_hz: float = 200_000.0
    latency_s: float = 1e-3
    link_bps: float = 10e9


STUDY = Study(
    "scale",
    "More ranks",
    ("place", "launcher", "scaling", "ranks"),
    (
        Measure("images_hz", "records/s", "count", 1),
        Measure("efficiency", "efficiency", "share", 1),
        Measure("stall", "stall fraction", "share", -1),
        Measure("stall_least", "of the rank with the least", "share"),
        Measure("stall_most", "with the most", "share"),
        Measure("sum_s", "a sum over ranks", "s", -1),
        Measure("simulated_hz", "simulated", "count"),
        Measure("error", "error", "share"),
        Measure("requests", "requests/record", "count"),
        Measure("device_bytes", "bytes/record", "B", -1),
        OF_CEILING,
        Measure("cpu_s", "CPU a record", "s", -1),
    ),
)


def _most(settings: ScaleSettings) -> int:
    """Return the most ranks with records in the LMDB, in weak scaling."""
    return max(MOST, *settings.ranks) if settings.ranks else MOST


def _lmdb_of(folder: Path, settings: ScaleSettings) -> Path:
    more = f"-{_most(settings)}" if _most(settings) > MOST else ""
    return folder / "data" / f"{settings.scale}-{settings.seed}{more}"


def _data_bytes(settings: ScaleSettings) -> int:
    return BATCH * _most(settings) * STEPS[settings.scale] * RECORD_BYTES


def needed_bytes(folder: Path, settings: ScaleSettings) -> int:
    """Return the bytes that `measured` would write for a missing LMDB."""
    if (_lmdb_of(folder, settings) / "data.mdb").exists():
        return 0
    return ladder.lmdb_bytes(_data_bytes(settings))


def needs(settings: ScaleSettings) -> dict[str, str]:
    """See needs.look_for."""
    of = {"torchrun": ("torch",), "mpirun": ("mpirun", "mpi4py")}
    wanted = [(name, launcher) for launcher in settings.launchers for name in of[launcher]]
    return ladder.NEEDS | {name: f"--launcher {launcher}" for name, launcher in wanted}


def _cases(settings: ScaleSettings) -> list[Case]:
    """Return the cases.  reading: a rank without computing, which shows the cost of a record."""
    cases = []
    for place in settings.places:
        for launcher in settings.launchers:
            plain = {"place": place, "launcher": launcher}
            cases.append(plain | {"scaling": "reading", "ranks": 1})
            for ranks in settings.ranks or RANKS[settings.scale]:
                cases.append(plain | {"scaling": "weak", "ranks": ranks})
                if BATCH * MOST % ranks == 0:
                    cases.append(plain | {"scaling": "strong", "ranks": ranks})
    return cases


def _undivided(settings: ScaleSettings) -> list[str]:
    """Why cases of strong scaling are not there."""
    ranks = settings.ranks or RANKS[settings.scale]
    odd = ", ".join(str(n) for n in ranks if BATCH * MOST % n)
    return [f"strong scaling by {odd} ranks: left out: {BATCH * MOST} records of a step are not "
            "divided by so many"] if odd else []  # fmt: skip


def _step(case: Case) -> tuple[int, float]:
    """Return the records of a rank in a step, and the computing time."""
    if case["scaling"] == "reading":
        return BATCH, 0.0
    batch = BATCH if case["scaling"] == "weak" else BATCH * MOST // case["ranks"]
    return batch, COMPUTE_S * batch / BATCH


def measured(
    folder: Path, settings: ScaleSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Measure weak and strong scaling by each launcher on each place; simulate there, and far
    beyond.

    Raises TierError: no room, not cold, FOLDER holds other settings; MissingDependency.
    """
    mark = {
        "study": "scale", "scale": settings.scale, "seed": settings.seed,
        "most_ranks": _most(settings),
    }  # fmt: skip
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    lmdb = _lmdb_of(folder, settings)
    lmdb.parent.mkdir(exist_ok=True)
    ladder.make_lmdb(lmdb, _data_bytes(settings), RECORD_BYTES, settings.seed, progress)
    cases = _cases(settings)

    def run(place: Place, case: Case) -> Row:
        return _measured(folder, lmdb, case, settings)

    rows, remarks = study.carried_out(
        kept, cases, run, lambda name: _at(name, lmdb),
        repeats=settings.repeats, seed=settings.seed, progress=progress,
    )  # fmt: skip
    points = study.points_of(replace(STUDY, derive=_derived), rows, cases)
    points, behaviours = _checked(points, STEPS[settings.scale])
    calibration, calibrated_by = _calibration(points)
    beyond = _beyond(behaviours[calibration], settings, progress) if calibration else []
    # The simulation was made from a single rank: no error there.
    errors = [
        abs(point["error"]) for point in points if point["error"] is not None and point["ranks"] > 1
    ]
    remarks += _undivided(settings)
    remarks += places.remarks_of(settings.places, rows)
    remarks.append("`of the ceiling`: bytes from the tier, of the bandwidth that it is set to")
    remarks += [*_told(points, beyond, errors, settings), calibrated_by]
    more = {
        "calibration": calibrated_by,
        "assumptions": list(model.ASSUMPTIONS),
        "behaviours": {key: asdict(behaviour) for key, behaviour in behaviours.items()},
    }
    which = replace(STUDY, draw=_drawn)
    # Not of `mark`: measurements do not depend on the simulation beside.
    all_settings = mark | {key: getattr(settings, key) for key in SIMULATED}
    return StudyResult(
        which, settings.scale, all_settings, machine, points + beyond, rows, remarks, more
    )


# --- the measurement ------------------------------------------------------------------------------


@contextmanager
def _at(name: str, folder: Path) -> Iterator[Place]:
    """Provide a single mount for all ranks: processes of one node."""
    if name in places.NODE_PLACES:
        with places.nodes(name, folder, 1) as (place,):
            yield place
    else:
        with places.at(name, folder) as place:
            yield place


def _measured(folder: Path, lmdb: Path, case: Case, settings: ScaleSettings) -> Row:
    batch, compute_s = _step(case)
    places.warmed([path for path in lmdb.iterdir() if path.suffix == ".mdb"])
    # A new mount: the cache is empty.
    with work_in(folder) as work, _at(case["place"], lmdb) as place:
        job = TrainerJob(
            str(lmdb), str(place.path), case["launcher"], batch, STEPS[settings.scale], compute_s,
            GRADIENTS, settings.seed,
        )  # fmt: skip
        before = places.device(place)
        done = _ranks(work, job, case["ranks"])
        after = places.device(place)
    samples = sum(rank.samples for rank in done)
    if any(rank.held >= max(1, tiers.COLD_SHARE * samples) for rank in done):
        raise TierError(f"{lmdb}: not cold: records were in memory before")
    wall_s = max(rank.wall_s for rank in done)
    moved_bytes = after[1] - before[1]
    stalls = [sum(rank.waits_s) / rank.wall_s for rank in done]
    # The last rank at a sum waits for nobody: its time is the sum's cost.
    sums = [min(step) for step in zip(*(rank.sum_s for rank in done), strict=True)]
    row = {
        "images_hz": samples / wall_s,
        "stall": sum(stalls) / len(stalls),
        "stall_least": min(stalls),
        "stall_most": max(stalls),
        "stalls": [round(stall, 4) for stall in stalls],
        "sum_s": median(sums),
        "requests": (after[0] - before[0]) / samples,
        "device_bytes": moved_bytes / samples,
        "cpu_s": sum(rank.cpu_s for rank in done) / samples,
    }
    ceiling_bps = _storage_of(case["place"]).bandwidth_bps
    return beside_ceiling(row, ceiling_bps, moved_bytes / wall_s)


def _ranks(work: Path, job: TrainerJob, ranks: int) -> list[TrainerResult]:
    """Start the ranks of a job as users do.  Raises RunError."""
    (work / "job.json").write_text(json.dumps(asdict(job)))
    program = [str(work / "job.json")]
    if job.launcher == "mpirun":
        if not shutil.which("mpirun"):
            raise RunError("mpirun is not there: apt install openmpi-bin")
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)]
        command += ["--allow-run-as-root"] if os.geteuid() == 0 else []
        command += [sys.executable, "-m", "penstock_lab.trainer", *program]
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={ranks}", "-m", "penstock_lab.trainer", *program]
    environment = os.environ | places.OUR_PATH | {"OMP_NUM_THREADS": "1"}
    if job.launcher == "torchrun":  # torchrun leaves a folder for logs there
        environment["TMPDIR"] = str(work.absolute())
    started = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, env=environment, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = started.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{job.launcher}: did not end in {TIMEOUT_S:.0f} s") from error
    finally:
        if started.poll() is None:  # launchers end their ranks at the signal
            os.killpg(started.pid, signal.SIGTERM)
            started.wait()
    answers = []
    for rank in range(ranks):
        try:
            answers.append(json.loads((work / f"rank-{rank}.json").read_bytes()))
        except (OSError, ValueError) as error:
            lines = said.strip().splitlines()
            raise RunError(f"{job.launcher}: {lines[-1] if lines else error}") from error
    for answer in answers:
        if "error" in answer:
            raise RunError(answer["error"])
    return [TrainerResult(**answer) for answer in answers]


def _derived(points: list[Point]) -> list[Point]:
    """Return each point beside the point of a single rank."""
    alone = {
        (point["place"], point["launcher"], point["scaling"]): point["images_hz"]
        for point in points
        if point["ranks"] == 1
    }
    derived = []
    for point in points:
        alone_hz = alone.get((point["place"], point["launcher"], point["scaling"]))
        share = point["images_hz"] / alone_hz / point["ranks"] if alone_hz else None
        point = study.with_value(point, "efficiency", share)
        derived.append(point)
    return derived


# --- the simulation -------------------------------------------------------------------------------


def _storage_of(name: str) -> SharedStorage:
    """Return the settings of a place."""
    latency_s, bandwidth = places.LATENCY_S, places.LATENCY_BPS
    if name == "shared":
        latency_s, bandwidth = places.SERVER_LATENCY_S, places.SERVER_BPS
    return SharedStorage(bandwidth, places.SLOTS / latency_s, latency_s)


def _behaviour(point: Point, storage: SharedStorage) -> Behaviour:
    """Return the cost of a record, from a rank that only reads: in the form of model.behaviours."""
    each_s = 1 / point["images_hz"]
    device_bytes = point["device_bytes"]
    waited_s = max(each_s - device_bytes / storage.bandwidth_bps, 0.02 * each_s)
    overlap = max(0.1, point["requests"] * storage.latency_s / waited_s)
    return Behaviour(
        "feed-shuffled", point["requests"], device_bytes, RECORD_BYTES, point["cpu_s"], 0.0, overlap
    )


def _checked(points: list[Point], steps: int) -> tuple[list[Point], dict[str, Behaviour]]:
    """Return every measured point beside its simulation, and the simulation's inputs from the
    points: a record's cost from `reading`, a sum's from two ranks.  Input points have no error."""
    behaviours: dict[str, Behaviour] = {}
    checked = []
    cores = len(os.sched_getaffinity(0))
    for point in points:
        place, launcher = point["place"], point["launcher"]
        mine = [p for p in points if (p["place"], p["launcher"]) == (place, launcher)]
        reading = next((p for p in mine if p["scaling"] == "reading"), None)
        if reading is None or point is reading:
            checked.append(point)
            continue
        storage = _storage_of(place)
        behaviour = _behaviour(reading, storage)
        behaviours[f"{place}, {launcher}"] = behaviour
        two = [p["sum_s"] for p in mine if p["ranks"] == 2]
        batch, compute_s = _step(point.factors)
        simulated = model.trained(
            behaviour, storage, Cluster(1, point["ranks"], cores),
            ModelTraining(batch, compute_s, median(two) if two else 0.0), steps, is_from_start=True,
        )  # fmt: skip
        point = study.with_value(point, "simulated_hz", simulated.records_hz)
        error = simulated.records_hz / point["images_hz"] - 1
        checked.append(study.with_value(point, "error", error))
    return checked, behaviours


def _calibration(points: Sequence[Point]) -> tuple[str, str]:
    """Return the run behind the simulated cluster, and a description: of the ranks that only read,
    the run with the closest repeats.  "": none, and the reason."""
    runs = [
        (_spread(point), f"{point['place']}, {point['launcher']}", point)
        for point in points
        if point["scaling"] == "reading"
    ]
    if not runs:
        return "", "`cluster`: not simulated: no rank that only reads gave a result"
    spread, name, point = min(runs, key=lambda run: run[0])
    said = (
        f"what a record costs is from one rank that only reads, `{point['place']}` by "
        f"{point['launcher']}: {point['images_hz']:,.0f} records/s and "
        f"{1e6 * point['cpu_s']:.0f} us of processor time each"
    )
    if point.repeats < 2:
        return name, f"`cluster`: {said}; one run: whether it was disturbed is not known"
    said += f", {point.repeats} runs, of which the farthest are {100 * spread:.0f} % apart"
    if spread > DISTURBED:
        return "", (
            f"`cluster`: not simulated: {said}, more than {100 * DISTURBED:.0f} %: the machine did "
            "something else meanwhile; measure again, in another folder, when it does not"
        )
    return name, f"`cluster`: {said}"


def _spread(point: Point) -> float:
    """Return the distance of a point's repeats, in records/s or in CPU time, as a share."""
    shares = [0.0]
    for key in ("images_hz", "cpu_s"):
        least, most = point.least[key], point.most[key]
        if point[key] and least is not None and most is not None:
            shares.append((most - least) / point[key])
    return max(shares)


def _beyond(
    behaviour: Behaviour, settings: ScaleSettings, progress: PhaseProgress | None
) -> list[Point]:  # fmt: skip
    """Simulate the papers' numbers of nodes and processes on the described storage."""
    storage = SharedStorage(*(getattr(settings, key) for key in SIMULATED))
    wanted = [
        ("strong", nodes, Cluster(nodes, 1, 1), STRONG_BATCH // nodes,
         NODE_IMAGE_S * STRONG_BATCH / nodes)
        for nodes in STRONG_NODES
    ] + [
        ("weak", ranks, Cluster(max(1, ranks // PER_NODE), PER_NODE, PER_NODE), BATCH, COMPUTE_S)
        for ranks in WEAK_PROCESSES
    ]  # fmt: skip
    points = []
    for number, (scaling, ranks, cluster, batch, compute_s) in enumerate(wanted):
        if progress:
            progress(f"simulating {ranks:,} ranks", number / len(wanted))
        simulated = model.trained(behaviour, storage, cluster, ModelTraining(batch, compute_s, 0.0))
        ideal_hz = ranks * batch / compute_s
        values: dict[str, float | None] = {measure.key: None for measure in STUDY.measures}
        values |= {
            "simulated_hz": simulated.records_hz,
            "efficiency": simulated.records_hz / ideal_hz,
            "stall": simulated.stall,
            "stall_least": simulated.stall_least,
            "stall_most": simulated.stall_most,
        }
        factors = {"place": "cluster", "launcher": "simulated", "scaling": scaling, "ranks": ranks}
        none = dict.fromkeys(values)
        points.append(Point(factors, 1, values, none, none))
    return points


def _told(
    points: Sequence[Point],
    beyond: Sequence[Point],
    errors: Sequence[float],
    settings: ScaleSettings,
) -> list[str]:
    said = []
    if errors:
        said.append(
            f"error of the simulation on the {len(errors)} measured "
            f"point{'s' * (len(errors) > 1)} of more than one rank: median "
            f"{median(errors):.0%}, largest {max(errors):.0%}".replace("%", " %")
        )
    strong = {p["ranks"]: p["simulated_hz"] for p in beyond if p["scaling"] == "strong"}
    if len(strong) > 1:
        least, most = min(strong), max(strong)
        said.append(
            f"simulated: {most:,} nodes train {strong[most] / strong[least]:.2f} times as fast as "
            f"{least:,}, of input alone; the paper: about 2.60 times, of everything"
        )
    if not beyond:
        return said
    said.append(
        f"`cluster`: {settings.bandwidth_bps / 1e9:g} GB/s, {settings.requests_hz:,.0f} requests/s "
        f"and {1e3 * settings.latency_s:g} ms for all, {settings.link_bps / 1e9:g} GB/s for each "
        f"node; strong: a batch of {STRONG_BATCH:,}, {1e3 * NODE_IMAGE_S:.1f} ms an image, a node; "
        f"weak: {BATCH} records in {1e3 * COMPUTE_S:g} ms a process, {PER_NODE} of them a node; "
        "sums over ranks cost nothing there. Its efficiency is beside computing alone"
    )
    return said


# --- the picture ---------------------------------------------------------------------------------


def _drawn(figure: Any, points: Sequence[Point]) -> None:
    """Draw records/s as measured and as simulated, larger simulated clusters, and each rank's
    loss."""
    here = [point for point in points if point["launcher"] != "simulated"]
    names = list(dict.fromkeys(point["place"] for point in here))
    beyond = [point for point in points if point["launcher"] == "simulated"]
    losses = {f"{name}: efficiency, stall": name for name in names}
    for name, axis in study.panels(figure, [*names, *["simulated"][: len(beyond)], *losses]):
        if name in losses:
            _losses(axis, [p for p in here if p["place"] == losses[name]])
        elif name == "simulated":
            _clusters(axis, beyond)
        else:
            _rates(axis, [p for p in here if p["place"] == name and p["scaling"] != "reading"])
        axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()


def _clusters(axis: Any, points: Sequence[Point]) -> None:
    """Draw the efficiency and the stall of simulated clusters."""
    for key, label in (("efficiency", "efficiency"), ("stall_most", "stall, slowest rank")):
        study.lines_of(axis, points, "ranks", key, partial(_called, label), 100)
    axis.set(xlabel="nodes (strong), processes (weak)", ylabel="%")
    study.logarithmic(axis.xaxis, "count")


def _rates(axis: Any, points: Sequence[Point]) -> None:
    """Draw the records/s of the points of a place, and a cross for each simulated value."""
    study.lines_of(axis, points, "ranks", "images_hz", _label)
    for number, label in enumerate(dict.fromkeys(map(_label, points))):
        simulated = [p for p in points if _label(p) == label and p["simulated_hz"]]
        ranks = [p["ranks"] for p in simulated]
        axis.plot(ranks, [p["simulated_hz"] for p in simulated], "x", color=f"C{number}")
    axis.plot([], [], "kx", label="simulated")
    axis.set(xlabel="ranks", ylabel="records/s", ylim=(0, None))
    axis.set_xticks(sorted({point["ranks"] for point in points}))


def _losses(axis: Any, points: Sequence[Point]) -> None:
    """Draw efficiency, and the stall of the ranks: the mean, from the least to the most.  Ways
    stand side by side, as overlapping ways would hide each other."""
    mine = [point for point in points if point["scaling"] != "reading"]
    labels = list(dict.fromkeys(map(_label, mine)))
    for number, label in enumerate(labels):
        labelled_points = [point for point in mine if _label(point) == label]
        shift = 0.05 * (number - (len(labels) - 1) / 2)
        at = [point["ranks"] * (1 + shift) for point in labelled_points]
        color = f"C{number}"
        axis.plot(
            at,
            [100 * p["efficiency"] for p in labelled_points],
            "o-",
            ms=4,
            color=color,
            label=label,
        )
        ends = [
            [100 * (p["stall"] - p["stall_least"]) for p in labelled_points],
            [100 * (p["stall_most"] - p["stall"]) for p in labelled_points],
        ]
        stalls = [100 * p["stall"] for p in labelled_points]
        axis.errorbar(at, stalls, ends, fmt="s:", ms=3, lw=0.9, capsize=2, color=color)
    axis.plot([], [], "ko-", ms=4, label="efficiency")
    axis.plot([], [], "ks:", ms=3, label="stall: ranks' mean, least to most")
    axis.set(xlabel="ranks", ylabel="%", ylim=(0, 105))
    study.logarithmic(axis.xaxis, "count", sorted({point["ranks"] for point in mine}))
    axis.grid(alpha=0.3)


def _called(what: str, point: Point) -> str:
    return f"{point['scaling']}: {what}"


def _label(point: Point) -> str:
    return f"{point['launcher']}, {point['scaling']}"
