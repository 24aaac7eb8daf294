"""`bench nodes`: rungs of the ladder on several nodes with separate page caches, and one server.

Knows the cases and the parts of a record's time; `rungs` reads, `places` makes the nodes: mounts
that share a storage server's bandwidth.  Half of the points give the times, the others are
predicted.  Pumma et al. 2017 to 2019.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from penstock_lab import ladder, places, study
from penstock_lab.places import Place
from penstock_lab.rungs import RUNGS, RungJob, RungResult
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = [
    "AFTER",
    "BATCH",
    "BEFORE",
    "PUBLISHED_GAIN",
    "STUDY",
    "NodesSettings",
    "RecordTime",
    "fitted",
    "measured",
    "needed_bytes",
    "needs",
]

RUNG_NAMES = {
    "ci": ("skip", "feed"),
    "small": ("skip", "get-random", "lmm", "index", "stag", "feed"),
    "full": tuple(name for name, rung in RUNGS.items()
                  if rung.source != "node" and name not in ("get", "feed-shuffled")),
}  # fmt: skip
NODES = {"ci": (1, 2), "small": (1, 2, 4, 8), "full": (1, 2, 4, 8, 16)}
PER_NODE = {"ci": (1, 2), "small": (1, 2), "full": (1, 2, 4)}
DATA_BYTES = {"ci": 40_000_000, "small": 200_000_000, "full": 1_000_000_000}
SECONDS = {"ci": 1.0, "small": 2.0, "full": 5.0}
BATCH = 32
# The paper's largest run: 9,216 processes, 36 on each node.
PUBLISHED_GAIN, PUBLISHED_NODES, PUBLISHED_PER_NODE = 65.0, 256, 36
BEFORE, AFTER = "skip", "stag"  # Caffe's reader; all of LMDBIO's steps


@dataclass(frozen=True, slots=True)
class NodesSettings:
    """See study."""

    scale: str = "small"
    places: tuple[str, ...] = ("server",)
    repeats: int = 2
    seed: int = 1


STUDY = Study(
    "nodes",
    "Nodes with page caches of their own, one server",
    ("place", "rung", "nodes", "per_node"),
    (
        Measure("records_hz", "records/s", "count", 1),
        Measure("predicted_hz", "predicted", "count"),
        Measure("error", "error", "share"),
        Measure("is_fitted", "gave a parameter", "count"),
        Measure("amplification", "server's bytes/byte used", "x", -1),
        Measure("requests", "requests/record", "count", -1),
        Measure("major_faults", "major faults/record", "count", -1),
        Measure("switches", "switches/record", "count", -1),
        Measure("cpu", "CPU, of the processes' time", "share"),
        Measure("asleep", "asleep", "share"),
    ),
)


def needs(settings: NodesSettings) -> dict[str, str]:
    """See needs.look_for."""
    return ladder.NEEDS


def _lmdb_of(folder: Path, settings: NodesSettings) -> Path:
    return folder / "data" / f"{settings.scale}-{settings.seed}"


def needed_bytes(folder: Path, settings: NodesSettings) -> int:
    """Return the bytes that `measured` would write for a missing LMDB."""
    if (_lmdb_of(folder, settings) / "data.mdb").exists():
        return 0
    return ladder.lmdb_bytes(DATA_BYTES[settings.scale])


def _cases(settings: NodesSettings) -> list[Case]:
    return [
        {"place": place, "rung": rung, "nodes": nodes, "per_node": per_node}
        for place in settings.places
        for rung in RUNG_NAMES[settings.scale]
        for nodes in NODES[settings.scale]
        for per_node in PER_NODE[settings.scale]
    ]


@contextmanager
def _at(name: str) -> Iterator[Place]:
    yield Place(name, Path())


def measured(
    folder: Path, settings: NodesSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Measure each rung on each number of nodes and processes, and extend the result to 256 nodes.

    Raises TierError: no room, not cold, FOLDER holds other settings; MissingDependency.
    """
    mark = {"study": "nodes", "scale": settings.scale, "seed": settings.seed}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    lmdb = _lmdb_of(folder, settings)
    lmdb.parent.mkdir(exist_ok=True)
    ladder.make_lmdb(lmdb, DATA_BYTES[settings.scale], ladder.RECORD_BYTES, settings.seed, progress)
    cases = _cases(settings)
    truth: dict[int, tuple[int, int]] = {}

    def run(place: Place, case: Case) -> Row:
        return _measured(lmdb, case, settings, truth)

    rows, remarks = study.carried_out(
        kept, cases, run, _at, repeats=settings.repeats, seed=settings.seed, progress=progress,
        is_warmed=False,
    )  # fmt: skip
    points, times = _predicted(study.points_of(STUDY, rows, cases))
    remarks += places.remarks_of(settings.places, rows)
    beyond = _beyond(points)
    remarks += _remarks(points, beyond)
    more = {"times": {rung: asdict(time) for rung, time in times.items()}, "beyond": beyond}
    which = replace(STUDY, draw=_drawn)
    return StudyResult(which, settings.scale, mark, machine, points, rows, remarks, more)


def _measured(
    lmdb: Path, case: Case, settings: NodesSettings, truth: dict[int, tuple[int, int]]
) -> Row:
    places.warmed([lmdb / "data.mdb"])  # the server, not the disk below, serves the reads
    with places.nodes(case["place"], lmdb, case["nodes"]) as made:
        job = RungJob(
            case["rung"], str(lmdb), case["nodes"] * case["per_node"], BATCH,
            SECONDS[settings.scale], seed=settings.seed,
            nodes=[str(place.path) for place in made],
        )  # fmt: skip

        def counted() -> tuple[int, int]:
            each = [places.device(place) for place in made]
            return sum(reads for reads, _ in each), sum(moved for _, moved in each)

        seen: list[tuple[int, int]] = []
        answer = places.answer_of(
            "penstock_lab.rungs", asdict(job), made[0], lambda: seen.append(counted()),
            job.seconds + 120,
        )  # fmt: skip
        done = [RungResult(**result) for result in answer["done"]]
        ladder.compared(job, done, truth)
        total = ladder.summed(made[0], job, done, 0.0, (seen[0], counted()))
    records, total_s = total["records"], total["total_s"]
    if not records:
        return {measure.key: None for measure in STUDY.measures}
    return {
        "records_hz": total["records_hz"],
        "amplification": total["device_bytes"] / total["record_bytes"],
        "requests": total["device_requests"] / records,
        "major_faults": total["major_faults"] / records,
        "switches": (total["voluntary_switches"] + total["involuntary_switches"]) / records,
        "cpu": (total["user_s"] + total["system_s"]) / total_s,
        "asleep": total["sleep_s"] / total_s,
    }


# --- the parts of a record's time -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RecordTime:
    """Seconds of the cluster for a used record: own_s on every cluster; node_s for each node, as a
    node reads for itself; process_s for each process, which steps over the record on the machine's
    cores; alone_s divided by the processes, which wait side by side."""

    own_s: float
    node_s: float
    process_s: float
    alone_s: float

    def seconds(self, nodes: int, per_node: int) -> float:
        terms = _terms(nodes, per_node)
        times = (self.own_s, self.node_s, self.process_s, self.alone_s)
        return sum(term * time for term, time in zip(terms, times, strict=True))


def _terms(nodes: int, per_node: int) -> tuple[float, ...]:
    return 1.0, nodes, nodes * per_node, 1 / (nodes * per_node)


Measured = tuple[int, int, float]  # nodes, processes of each, records/s


def fitted(points: Sequence[Measured]) -> RecordTime:
    """Return the times, none negative and at most three, with the least squares of the relative
    errors."""
    # A record's time is 1 / hz: each row is over the measured time.
    rows = [[hz * term for term in _terms(nodes, per_node)] for nodes, per_node, hz in points]
    best: tuple[float, tuple[float, ...]] = (math.inf, (0.0,) * 4)
    for n_terms in (1, 2, 3):
        for terms in combinations(range(4), n_terms):
            solution = _least_squares([[row[term] for term in terms] for row in rows])
            if solution is None or min(solution) < 0:
                continue
            times = [0.0] * 4
            for term, value in zip(terms, solution, strict=True):
                times[term] = value
            off = sum(
                (sum(a * b for a, b in zip(row, times, strict=True)) - 1.0) ** 2 for row in rows
            )
            if off < best[0] * (1 - 1e-9):
                best = (off, tuple(times))
    return RecordTime(*best[1])


def _least_squares(rows: Sequence[Sequence[float]]) -> list[float] | None:
    """Return x with the least squares of rows · x - 1; None: x is not unique."""
    import numpy as np

    matrix = np.array(rows)
    scale = np.abs(matrix).max(axis=0)
    if len(rows) < len(scale) or not scale.all():
        return None
    solution, _, rank, _ = np.linalg.lstsq(matrix / scale, np.ones(len(rows)), rcond=1e-9)
    return (solution / scale).tolist() if rank == len(scale) else None


def _of(points: Sequence[Point], rung: str) -> list[Point]:
    return [point for point in points if point["rung"] == rung and point["records_hz"]]


def _measured_of(points: Sequence[Point]) -> list[Measured]:
    return [(p["nodes"], p["per_node"], p["records_hz"]) for p in points]


def _predicted(points: list[Point]) -> tuple[list[Point], dict[str, RecordTime]]:
    """Return each point beside a prediction from every second point, by nodes and processes as on a
    chess board."""
    nodes = sorted({point["nodes"] for point in points})
    each = sorted({point["per_node"] for point in points})
    times: dict[str, RecordTime] = {}
    predicted_points = []

    def gives(point: Point) -> bool:
        return (nodes.index(point["nodes"]) + each.index(point["per_node"])) % 2 == 0

    for rung in dict.fromkeys(point["rung"] for point in points):
        mine = _of(points, rung)
        times[rung] = fitted(_measured_of([point for point in mine if gives(point)]))
        for point in mine:
            predicted_s = times[rung].seconds(point["nodes"], point["per_node"])
            if predicted_s:
                predicted_hz = 1 / predicted_s
                point = study.with_value(point, "predicted_hz", predicted_hz)
                off = predicted_hz / point["records_hz"] - 1
                point = study.with_value(point, "error", off)
            predicted_points.append(study.with_value(point, "is_fitted", float(gives(point))))
    return predicted_points, times


def _gain(before: RecordTime, after: RecordTime, nodes: int) -> float:
    """Return how many times as fast the second is on so many nodes.

    Here all nodes share two cores; there each process steps over records on a separate core, so
    that only the time of a single process counts.
    """
    processes = nodes * PUBLISHED_PER_NODE
    before_s = before.own_s + before.node_s * nodes + before.process_s + before.alone_s / processes
    after_s = after.own_s + after.node_s * nodes + after.process_s + after.alone_s / processes
    return before_s / after_s if after_s else math.inf


def _beyond(points: Sequence[Point]) -> dict[str, float] | None:
    """Return the gain at 9,216 processes from all points, and the middle nine tenths of the gains
    from every choice of half of the points."""
    before, after = (_measured_of(_of(points, rung)) for rung in (BEFORE, AFTER))
    half = len(before) // 2
    if half < 3 or len(after) != len(before):
        return None

    def gain_of(chosen: Sequence[int]) -> float:
        times = [fitted([mine[n] for n in chosen]) for mine in (before, after)]
        return _gain(times[0], times[1], PUBLISHED_NODES)

    every = range(len(before))
    gains = sorted(gain_of(chosen) for chosen in list(combinations(every, half))[:2000])
    edges = quantiles([gain for gain in gains if gain < math.inf], n=20, method="inclusive")
    return {"gain": gain_of(every), "least": edges[0], "most": edges[-1]}


def _remarks(points: Sequence[Point], beyond: dict[str, float] | None) -> list[str]:
    said = []
    errors = sorted(
        abs(p["error"]) for p in points if p["error"] is not None and not p["is_fitted"]
    )
    if len(errors) > 1:
        nine = quantiles(errors, n=10, method="inclusive")[-1]
        said.append(
            f"prediction of the {len(errors)} points that gave no parameter: off by "
            f"{median(errors):.0%} in the median, nine in ten within {nine:.0%}".replace("%", " %")
        )
    if beyond:
        said.append(
            f"extended to {PUBLISHED_NODES * PUBLISHED_PER_NODE:,} processes on {PUBLISHED_NODES} "
            f"nodes, the same server: `{AFTER}` is {beyond['gain']:.0f} times as fast as "
            f"`{BEFORE}` ({beyond['least']:.0f} to {beyond['most']:.0f} by half of the points); "
            f"the paper: {PUBLISHED_GAIN:.0f}"
        )
    return said


def _drawn(figure: Any, points: Sequence[Point]) -> None:
    """Draw the records/s and the server's bytes by nodes, of the most processes on each."""
    keys = {"records_hz": "records/s", "amplification": "server's bytes per byte used"}
    most = max(point["per_node"] for point in points)
    shown = [point for point in points if point["per_node"] == most]
    for key, (_, axis) in zip(keys, study.panels(figure, list(keys.values())), strict=True):
        study.lines_of(axis, [p for p in shown if p[key]], "nodes", key, _rung)
        axis.set(xlabel="nodes", ylabel=keys[key])
        study.logarithmic(axis.xaxis, "count", sorted({p["nodes"] for p in points}))
        study.logarithmic(axis.yaxis, "count")
        axis.grid(alpha=0.3)
    figure.axes[0].legend(fontsize=7, frameon=False)
    figure.tight_layout()


def _rung(point: Point) -> str:
    return str(point["rung"])
