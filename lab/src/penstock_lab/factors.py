"""`bench factors`: whether a data-parallel training reaches its ideal throughput, and why.

Storage, number and size of records, order, container.  Bae et al. 2019.  Knows the cases, change
points and the expected content of page caches; `epochs` trains, `places.nodes` gives each node a
page cache.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from penstock.errors import RunError, TierError
from penstock.places import tiers
from penstock.words import show
from penstock_lab import epochs, ladder, places, study
from penstock_lab.epochs import EpochsJob
from penstock_lab.places import Place
from penstock_lab.storage import OF_CEILING, beside_ceiling
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = [
    "DATA",
    "STUDY",
    "FactorsSettings",
    "change_points",
    "expected_hits",
    "measured",
    "needed_bytes",
    "needs",
]

NODES = 4  # the paper's test bed
BATCH = 32  # of all nodes; the paper has 960 in 0.375 s

# The paper's four LMDBs: records and bytes of a record, 256 x 256 pixels raw or as JPEG.
DATA = {
    "D1": (380_000, 196_080, "raw"),
    "D2": (190_000, 196_080, "raw"),
    "D3": (1_281_167, 30_670, "JPEG"),
    "D4": (600_000, 30_600, "JPEG"),
}
DIVISOR = {"ci": 1000, "small": 200, "full": 40}
EPOCHS = {"ci": 4, "small": 5, "full": 6}
# A step computes by the paper's ratio: raw records need 2.5 times the server's rate (the paper: 514
# MB/s), JPEG 0.4 times.
COMPUTE_S = 0.025
TIMEOUT_S = 900.0
# Points of a curve: more points would hide the curve, as neighbours differ by more than curves do.
# Change points of a curve: more come from the machine, and fill the plot with triangles.
MOST_DRAWN, MOST_CHANGES = 75, 20

IN_NAMESPACES = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts")

LEAST_STEPS = 4  # between two change points
# A change counts when the change explains so many times more than chance would by a step of noise:
# the penalty of binary segmentation, in units of variance x ln(steps).
PENALTY = 6.0
LEAST_JUMP = 0.1  # and moves the throughput by a tenth


@dataclass(frozen=True, slots=True)
class FactorsSettings:
    """See study."""

    scale: str = "small"
    places: tuple[str, ...] = places.NODE_PLACES
    repeats: int = 3
    seed: int = 1


# --- the content of caches, and the changes of a curve --------------------------------------------


def expected_hits(shuffle: str, nodes: int, epoch: int) -> float:
    """Return the share of an epoch's records (counted from 0) that their node has read before, with
    memory for all records: Bae et al. 2019's staircase for a global shuffle."""
    if not epoch:
        return 0.0
    return 1 - (1 - 1 / nodes) ** epoch if shuffle == "global" else 1.0


def change_points(values: Sequence[float]) -> list[int]:
    """Return where a series changes its level: the first place of each new level.

    Binary segmentation by least squares.  The noise is the difference of neighbours, so that a
    changing level does not count as noise.
    """
    if len(values) < 2 * LEAST_STEPS:
        return []
    steps = [abs(b - a) for a, b in pairwise(values)]
    # 1.4826 makes a median of deviations a standard deviation; a difference has twice the variance.
    noise = (1.4826 * median(steps)) ** 2 / 2
    # A series without noise still has clock noise.
    floor = (0.01 * median(map(abs, values))) ** 2
    penalty = PENALTY * max(noise, floor) * math.log(len(values))
    changes: list[int] = []
    todo = [(0, len(values))]
    while todo:
        first, last = todo.pop()
        place, gain = _best_split(values[first:last])
        if place and gain > penalty:
            changes.append(first + place)
            todo += [(first, first + place), (first + place, last)]
    return _lasting(values, sorted(changes))


def _best_split(values: Sequence[float]) -> tuple[int, float]:
    """Where two means explain most, and by how much the squares fall."""
    n, total = len(values), math.fsum(values)
    best, gain, left = 0, 0.0, 0.0
    for place in range(1, n):
        left += values[place - 1]
        if min(place, n - place) < LEAST_STEPS:
            continue
        apart = left / place - (total - left) / (n - place)
        explained = apart * apart * place * (n - place) / n
        if explained > gain:
            best, gain = place, explained
    return best, gain


def _lasting(values: Sequence[float], changes: list[int]) -> list[int]:
    """Return the change points whose two sides differ by more than LEAST_JUMP in their medians."""
    while True:
        edges = [0, *changes, len(values)]
        levels = [median(values[a:b]) for a, b in pairwise(edges)]
        small = [
            (abs(b - a) / max(abs(a), abs(b), 1e-12), place)
            for a, b, place in zip(levels, levels[1:], changes, strict=False)
        ]
        least = min(small, default=(1.0, 0))
        if least[0] >= LEAST_JUMP:
            return changes
        changes = [place for place in changes if place != least[1]]


# --- the runs ------------------------------------------------------------------------------------

STUDY = Study(
    "factors",
    "What decides whether ideal throughput is reached",
    ("place", "data", "shuffle", "inside"),
    (
        Measure("of_ideal", "of the ideal", "share", 1),
        Measure("images_hz", "records/s", "count", 1),
        Measure("median_hz", "of the median step", "count", 1),
        Measure("first_hz", "first epoch", "count", 1),
        Measure("last_hz", "last epoch", "count", 1),
        Measure("stall", "stall fraction", "share", -1),
        Measure("hits", "in memory, last epoch", "share", 1),
        Measure("expected_hits", "expected", "share"),
        Measure("hits_error", "largest error", "share", -1),
        Measure("device", "device/asked", "x", -1),
        OF_CEILING,
        Measure("changes", "change points", "count"),
        Measure("at_epochs", "at an epoch's end", "count"),
        Measure("needed_bps", "needed", "B/s"),
    ),
)


def _records(name: str, scale: str) -> int:
    """Whole steps of all nodes: each record is read in each epoch."""
    return DATA[name][0] // DIVISOR[scale] // BATCH * BATCH


def needed_bytes(folder: Path, settings: FactorsSettings) -> int:
    """Return the bytes that `measured` would write for missing LMDBs."""
    return sum(
        ladder.lmdb_bytes(_records(name, settings.scale) * DATA[name][1])
        for name in _names(settings.scale)
        if not (_lmdb_of(folder, name, settings) / "data.mdb").exists()
    )


def _names(scale: str) -> tuple[str, ...]:
    return ("D1", "D4") if scale == "ci" else tuple(DATA)


def _lmdb_of(folder: Path, name: str, settings: FactorsSettings) -> Path:
    return folder / "data" / f"{name}-{settings.scale}-{settings.seed}"


def _cases(settings: FactorsSettings) -> list[Case]:
    plain = {"data": "D1", "shuffle": "global", "inside": "host"}
    changed: list[Case] = [plain]
    changed += [plain | {"data": name} for name in _names(settings.scale) if name != "D1"]
    changed += [plain | {"shuffle": shuffle} for shuffle in epochs.SHUFFLES if shuffle != "global"]
    changed += [plain | {"inside": "namespaces"}]
    ideal = [plain | {"place": "ideal", "data": name} for name in _names(settings.scale)]
    return ideal + [{"place": place} | case for place in settings.places for case in changed]


def needs(settings: FactorsSettings) -> dict[str, str]:
    """See needs.look_for."""
    return ladder.NEEDS


def measured(
    folder: Path, settings: FactorsSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Measure each factor alone beside D1, shuffled globally, on the host; on each place.

    Raises TierError: no room, not cold, FOLDER holds other settings; MissingDependency.
    """
    mark = {"study": "factors", "scale": settings.scale, "seed": settings.seed}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    for name in _names(settings.scale):
        record_bytes = DATA[name][1]
        n_bytes = _records(name, settings.scale) * record_bytes
        lmdb = _lmdb_of(folder, name, settings)
        lmdb.parent.mkdir(exist_ok=True)
        ladder.make_lmdb(lmdb, n_bytes, record_bytes, settings.seed, progress)
    cases = _cases(settings)

    def run(place: Place, case: Case) -> Row:
        return _measured(folder, case, settings)

    rows, remarks = study.carried_out(
        kept, cases, run, lambda name: _there(name, folder),
        repeats=settings.repeats, seed=settings.seed, progress=progress,
    )  # fmt: skip
    rows = [row | {"median_hz": median(row["step_hz"])} for row in rows]
    which = replace(STUDY, derive=_derived)
    points = study.points_of(which, rows, cases)
    curves = _curves(rows, points)
    if curves:
        which = replace(which, draw=lambda figure, points: _drawn(figure, points, curves))
    remarks += places.remarks_of(settings.places, rows)
    remarks += [
        f"`of the ceiling` on `{place}`: bytes from the tiers, of the "
        f"{show(_ceiling_bps(place), 'B/s')} that they are set to"
        for place in settings.places
    ]
    remarks += [
        f"`ideal`: the data in memory before, {NODES} nodes, {BATCH} records a step, which sleeps "
        f"{1e3 * COMPUTE_S:g} ms",
        "`namespaces`: mount, process, IPC and host name space of its own (unshare), which is "
        "what a container is made of; no image is mounted",
    ]
    return StudyResult(which, settings.scale, mark, machine, points, rows, remarks, {})


@contextmanager
def _there(name: str, folder: Path) -> Iterator[Place]:
    """Check whether mounts are possible: each run makes new mounts, as a mount is a cache."""
    if name == "ideal":
        yield Place(name, folder)
        return
    with places.nodes(name, folder, 1) as (place,):
        yield place


def _measured(folder: Path, case: Case, settings: FactorsSettings) -> Row:
    lmdb = _lmdb_of(folder, case["data"], settings)
    before: tuple[str, ...] = ()
    if case["inside"] == "namespaces":
        before = IN_NAMESPACES
        _refuse_without(before)
    job = EpochsJob(
        str(lmdb), (), case["shuffle"], BATCH, EPOCHS[settings.scale], COMPUTE_S, settings.seed
    )
    files = [path for path in lmdb.iterdir() if path.suffix == ".mdb"]
    places.warmed(files)  # below the tiers, which have new caches
    if case["place"] == "ideal":
        done = _trained(replace(job, roots=(str(lmdb),) * NODES), Place("ideal", lmdb), before)
        return beside_ceiling(_row(done, case, None), None, 0.0)
    with places.nodes(case["place"], lmdb, NODES) as nodes:
        done = _trained(
            replace(job, roots=tuple(str(node.path) for node in nodes)), nodes[0], before
        )
        device_bytes = sum(places.device(node)[1] for node in nodes)
    if done.hits[0] >= tiers.COLD_SHARE:
        raise TierError(f"{lmdb}: not cold: {done.hits[0]:.0%} was in memory".replace("%", " %"))
    row = _row(done, case, device_bytes)
    return beside_ceiling(row, _ceiling_bps(case["place"]), device_bytes / done.wall_s)


def _ceiling_bps(place: str) -> float:
    """Return the set bandwidth of the tiers, together."""
    return NODES * places.NODE_BPS if place == "local" else places.SERVER_BPS


def _trained(job: EpochsJob, place: Place, before: tuple[str, ...]) -> epochs.EpochsResult:
    answer = places.answer_of(
        "penstock_lab.epochs", asdict(job), place, lambda: None, TIMEOUT_S, before
    )
    return epochs.EpochsResult(**answer)


def _refuse_without(command: tuple[str, ...]) -> None:
    """Raises RunError: name spaces cannot be made."""
    if not shutil.which(command[0]):
        raise RunError(f"{command[0]} is not there")
    tried = subprocess.run([*command, "true"], capture_output=True, text=True)
    if tried.returncode:
        raise RunError((tried.stderr.strip().splitlines() or ["refused"])[-1])


def _row(done: epochs.EpochsResult, case: Case, device_bytes: int | None) -> Row:
    rates = [BATCH / step for step in done.steps_s]
    n = done.epoch_steps
    ends = [epoch * n for epoch in range(1, len(done.hits))]
    changes = change_points(rates)
    expected = [expected_hits(case["shuffle"], NODES, epoch) for epoch in range(len(done.hits))]
    is_ideal = case["place"] == "ideal"
    # A feed reads a few batches ahead: a new epoch shows up to so many steps late.
    near = [any(abs(change - end) <= 3 for change in changes) for end in ends]
    return {
        "images_hz": done.samples / done.wall_s,
        "first_hz": BATCH * n / sum(done.steps_s[:n]),
        "last_hz": BATCH * n / sum(done.steps_s[-n:]),
        "stall": done.wait_s / done.wall_s,
        "hits": done.hits[-1],
        "expected_hits": None if is_ideal else expected[-1],
        "hits_error": None if is_ideal else max(
            abs(hits - wanted) for hits, wanted in zip(done.hits, expected, strict=True)
        ),
        "device": device_bytes / done.read_bytes if device_bytes is not None else None,
        "changes": len(changes),
        "at_epochs": sum(near),
        "needed_bps": done.read_bytes / len(done.steps_s) / COMPUTE_S,
        "epoch_hits": done.hits,
        "step_hz": [round(rate, 2) for rate in rates],
        "change_steps": changes,
        "epoch_steps": n,
    }  # fmt: skip


def _derived(points: list[Point]) -> list[Point]:
    """Return each point beside a step of equal data from memory, as in the paper: by the median,
    since a memory lent by a host is slow at the first touch."""
    ideal = {point["data"]: point["median_hz"] for point in points if point["place"] == "ideal"}
    derived = []
    for point in points:
        best = ideal.get(point["data"])
        derived.append(
            study.with_value(point, "of_ideal", point["images_hz"] / best if best else None)
        )
    return derived


def _curves(rows: Sequence[Row], points: Sequence[Point]) -> dict[tuple[str, ...], Row]:
    """Return the first run of each case: its steps and epochs."""
    curves: dict[tuple[str, ...], Row] = {}
    for row in rows:
        curves.setdefault(tuple(row[key] for key in STUDY.factors), row)
    return curves


# --- the picture ---------------------------------------------------------------------------------


def _levels(values: Sequence[float]) -> tuple[list[float], ...]:
    """Return at most MOST_DRAWN groups of neighbours, as more would be a blot: for each the place,
    the tenth, the median and nine tenths."""
    size = -(-len(values) // MOST_DRAWN)
    groups = [sorted(values[at : at + size]) for at in range(0, len(values), size)]
    at = [number * size + (len(group) - 1) / 2 for number, group in enumerate(groups)]
    tenths = ([group[len(group) * tenth // 10] for group in groups] for tenth in (1, 5, 9))
    return at, *tenths


def _drawn(figure: Any, points: Sequence[Point], curves: dict[tuple[str, ...], Row]) -> None:
    """Draw the paper's figures: storage, data, container; and the caches, as the text supposes."""
    figure.set_size_inches(11, 7.5)
    axes = figure.subplots(2, 2)
    names = [name for name in dict.fromkeys(point["place"] for point in points) if name != "ideal"]
    slow = names[-1] if names else "ideal"
    best = curves.get(("ideal", "D1", "global", "host"))

    def line(axis: Any, key: tuple[str, ...], label: str, style: str = "-") -> None:
        row = curves.get(key)
        if row is None:
            return
        steps, low, middle, high = _levels(row["step_hz"])
        n = row["epoch_steps"]  # by epochs, so that data sets of other lengths stand side by side
        at = [1 + step / n for step in steps]
        color = axis.plot(at, middle, style, lw=1.2, label=label)[0].get_color()
        axis.fill_between(at, low, high, color=color, alpha=0.15, lw=0)
        if len(row["change_steps"]) > MOST_CHANGES:
            return
        for change in row["change_steps"]:
            level = middle[min(len(middle) - 1, change * len(middle) // len(row["step_hz"]))]
            axis.plot(1 + change / n, level, "v", ms=5, color=color)

    for name in names:
        line(axes[0][0], (name, "D1", "global", "host"), name)
    for name in dict.fromkeys(point["data"] for point in points):
        line(axes[0][1], (slow, name, "global", "host"), f"{name}, {DATA[name][2]}")
    for number, inside in enumerate(("host", "namespaces")):
        line(axes[1][0], (slow, "D1", "global", inside), inside, ("-", "--")[number])
    for axis, title in (
        (axes[0][0], "D1: storage"), (axes[0][1], f"data sets on {slow}"),
        (axes[1][0], f"D1 on {slow}: container"),
    ):  # fmt: skip
        if best is not None:
            middle = median(best["step_hz"])
            axis.axhline(middle, color="k", ls="--", lw=0.9, label="ideal, median step")
        axis.plot([], [], "kv", ms=5, ls="", label="change point")
        axis.set(xlabel="epoch", ylabel="records/s", title=title, ylim=(0, None))
        axis.xaxis.get_major_locator().set_params(integer=True)
    axis = axes[1][1]
    # Orders with equal content stand side by side; as lines, only the last order would be seen.
    width, last = 0.8 / len(epochs.SHUFFLES), 0
    for number, shuffle in enumerate(epochs.SHUFFLES):
        row = curves.get((slow, "D1", shuffle, "host"))
        if row is not None:
            hits = [100 * share for share in row["epoch_hits"]]
            last = len(hits)
            at = [epoch - 0.4 + (number + 0.5) * width for epoch in range(1, last + 1)]
            axis.bar(at, hits, width, label=shuffle)
            if shuffle == "global" and slow != "ideal":
                wanted = [100 * expected_hits(shuffle, NODES, epoch) for epoch in range(last)]
                axis.plot(at, wanted, "k_", ms=14, mew=1.5, label=r"global: $1-(1-1/P)^e$")
    axis.set(
        xlabel="epoch", ylabel="in memory when it begins, %", title=f"D1 on {slow}: order",
        xticks=range(1, last + 1), ylim=(0, 125), yticks=range(0, 101, 20),
    )  # fmt: skip
    for axis in axes.flat:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False, ncols=3 if axis is axes[1][1] else 1)
    figure.tight_layout()
