"""The ladder on more processes than are here: a simulation from the ladder's measurements.

Knows points of a ladder and a cluster described by seven numbers; reads no storage.  `ASSUMPTIONS`
lists the assumptions; `checked` puts the simulation beside every measured point.
"""

from __future__ import annotations

import heapq
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any

from penstock.errors import TierError
from penstock_lab import ladder
from penstock_lab.ladder import PLACES, LadderPoint, LadderRun
from penstock_lab.rungs import COALESCED_BYTES, READERS, RUNGS
from penstock_lab.study import logarithmic, pyplot

__all__ = [
    "ASSUMPTIONS",
    "Behaviour",
    "Cluster",
    "FitCheck",
    "ModelTraining",
    "SharedStorage",
    "Trained",
    "behaviours",
    "checked",
    "extended",
    "markdown_of",
    "picture_of",
    "read_points",
    "simulated_hz",
    "storages",
    "to_json",
    "trained",
    "write_results",
]

PhaseProgress = Callable[[str, float], None]

ASSUMPTIONS = (
    "Storage is one shared server: bytes pass at its bandwidth, requests at its rate, each waits "
    "its latency. It does not slow down when more readers come: staggering gains nothing.",
    "A record's bytes are those of one process on that storage; its requests are those that the "
    "latency tier counted, elsewhere as many as read-ahead makes of the bytes. Neither changes "
    "with the number of processes.",
    "Requests of one reader overlap as much as they did on the latency tier with one process.",
    "CPU time of a record is what one process used, plus the measured growth with each further "
    "process of the node; cores are shared fairly, and no process runs on another node's.",
    "Processes that walk step over every record of all others. With read-ahead (skip) each node "
    "reads the whole data set, and its processes wait for the same pages; without (skip-random) "
    "each reads its own records and a page of every other, which a node reads once.",
    "Staggered readers wait for each other on their node only.",
    "Nothing is in memory before it is read, no record is read twice, and no barrier or training "
    "step is between reads. Epochs end for all at once.",
    "Nodes have equal links, and share nothing but the storage.",
)

LEAST_LATENCY_S = 20e-6  # of a local disk: less would be the disk's cache
PAGE_BYTES = 4096
UNITS = 24  # of each actor: after some ten the rate no longer changes by a per cent
BATCH = 32


@dataclass(frozen=True, slots=True)
class Behaviour:
    """The work of a rung for a record: see ladder.Run.  cpu_s grows by growth_s for each further
    process of the node.  overlap: requests of a reader in flight, as a mean."""

    rung: str
    requests: float
    device_bytes: float
    record_bytes: float
    cpu_s: float
    growth_s: float
    overlap: float


@dataclass(frozen=True, slots=True)
class SharedStorage:
    """The storage shared by all nodes, and each node's link."""

    bandwidth_bps: float
    requests_hz: float
    latency_s: float
    link_bps: float = math.inf


@dataclass(frozen=True, slots=True)
class Cluster:
    """nodes x per_node processes, and the cores of each node."""

    nodes: int
    per_node: int
    cores: int


@dataclass(frozen=True, slots=True)
class FitCheck:
    """A measured point and its simulation.  is_fitted: the point gave a parameter."""

    place: str
    rung: str
    processes: int
    measured_hz: float
    simulated_hz: float
    is_fitted: bool

    @property
    def error(self) -> float:
        return self.simulated_hz / self.measured_hz - 1


# --- parameters from points ----------------------------------------------------------------------


def read_points(path: Path) -> tuple[list[LadderPoint], dict[str, Any]]:
    """Return the points of a ladder.json, and the machine.  Raises TierError."""
    try:
        value = json.loads(path.read_bytes())
        names = {field.name for field in fields(LadderRun)}
        needed = {field.name for field in fields(LadderRun) if field.default is MISSING}
        points = []
        for row in value["points"]:
            run = row["run"]
            is_run = needed <= set(run) <= names
            if not is_run or run["rung"] not in RUNGS or run["place"] not in PLACES:
                raise ValueError("a point of another version")
            numbers = [run[name] for name in set(run) - {"rung", "place"}]
            if not all(isinstance(number, int | float) for number in numbers):
                raise ValueError("a point without numbers")
            points.append(
                LadderPoint(LadderRun(**run), row["least_hz"], row["most_hz"], row["repeats"])
            )
        machine = dict(value["machine"])
    except OSError as error:
        raise TierError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise TierError(f"{path}: no ladder.json of penstock bench ladder: {error}") from error
    return [point for point in points if point.run.records and point.run.records_hz], machine


def storages(points: Sequence[LadderPoint]) -> dict[str, SharedStorage]:
    """Return the storage of each place: latency from single faults, limits as set, or the most that
    any run reached."""
    by_place = {}
    for place in PLACES:
        runs = [point.run for point in points if point.run.place == place]
        if not runs:
            continue
        latency_s = _latency_s(runs)
        bandwidth = max(run.device_bytes / run.wall_s for run in runs)
        rate = max(run.device_requests / run.wall_s for run in runs)
        if place == "throttled":
            bandwidth, rate = ladder.THROTTLED_BPS, ladder.THROTTLED_HZ
        if place == "latency":
            # 64 servers of a millisecond; the rate of our FUSE program is the most that was seen.
            bandwidth, rate = ladder.LATENCY_BPS, 64 / latency_s
        by_place[place] = SharedStorage(bandwidth, rate if rate > 0 else math.inf, latency_s)
    if "throttled" in by_place:  # each fault there waits for the limit, not for the disk
        disk = by_place.get("disk", by_place["throttled"])
        own_s = disk.latency_s - (0 if "disk" in by_place else 1 / ladder.THROTTLED_HZ)
        by_place["throttled"] = replace(
            by_place["throttled"], latency_s=max(LEAST_LATENCY_S, own_s)
        )
    return by_place


def _latency_s(runs: Sequence[LadderRun]) -> float:
    """Return the latency of a request of a page: from a process that waits for each, less
    computing."""
    for rung in ("get-random", "skip-random"):
        for run in runs:
            if run.rung == rung and run.processes == 1 and run.major_faults:
                waited_s = run.wall_s - run.user_s - run.system_s
                return max(1e-6, waited_s / run.major_faults)
    raise TierError("the model needs the rung get-random with one process of each place")


def behaviours(points: Sequence[LadderPoint]) -> dict[str, Behaviour]:
    """Return each rung's behaviour, from the place with an exact count of requests: the latency
    tier.

    Raises TierError: the ladder was not run there with a single process.
    """
    there = [point.run for point in points if point.run.place == "latency"]
    latency_s = _latency_s(there) if there else 0.0
    by_rung = {}
    for rung in RUNGS:
        mine = sorted((r for r in there if r.rung == rung), key=lambda run: run.processes)
        if not mine or mine[0].processes != 1:
            continue
        first = mine[0]
        requests = first.device_requests / first.records
        device_bytes = first.device_bytes / first.records
        cpu_s, growth_s = _line([(run.processes, _cpu_s(run)) for run in mine])
        each_s = 1 / first.records_hz
        transfer_s = device_bytes / ladder.LATENCY_BPS
        beside_s = 0.0 if _computes_beside(rung) else cpu_s
        waited_s = max(each_s - beside_s - transfer_s, 0.02 * each_s)
        by_rung[rung] = Behaviour(
            rung, requests, device_bytes, first.record_bytes / first.records, cpu_s, growth_s,
            max(0.1, requests * latency_s / waited_s),
        )  # fmt: skip
    if not by_rung:
        raise TierError("the model needs a ladder with the place latency and one process")
    return by_rung


def _computes_beside(rung: str) -> bool:
    """Return whether the next records are read during the use of the present records."""
    return RUNGS[rung].portions > 1 or RUNGS[rung].source in ("feed", "node")


def _cpu_s(run: LadderRun) -> float:
    return (run.user_s + run.system_s) / run.records


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Return a line through the first point, with the slope fitted to the others; never falling."""
    (first, start), *rest = points
    weight = sum((x - first) ** 2 for x, _ in rest)
    slope = sum((x - first) * (y - start) for x, y in rest) / weight if weight else 0.0
    return start, max(0.0, slope)


# --- the simulation ------------------------------------------------------------------------------


class _Lines:
    """The shared server and the links, as clocks of the admitted work so far."""

    def __init__(self, storage: SharedStorage, nodes: int) -> None:
        self.storage = storage
        self.bytes_s = self.requests_s = 0.0
        self.links_s = [0.0] * nodes

    def passed(self, now: float, node: int, requests: float, moved: float, overlap: float) -> float:
        """Return when so many requests, one after the other or overlapping, are through."""
        storage = self.storage
        self.bytes_s = max(self.bytes_s, now) + moved / storage.bandwidth_bps
        self.requests_s = max(self.requests_s, now) + requests / storage.requests_hz
        alone = now + requests * storage.latency_s / overlap + moved / storage.bandwidth_bps
        end = max(self.bytes_s, self.requests_s, alone)
        if storage.link_bps < math.inf:
            self.links_s[node] = max(self.links_s[node], now) + moved / storage.link_bps
            end = max(end, self.links_s[node])
        return end


@dataclass(frozen=True, slots=True)
class _Actor:
    """An independent reader.  unit: records between two looks at the clock.  users: processes that
    compute for the reader at once."""

    node: int
    unit: int
    users: int


def simulated_hz(behaviour: Behaviour, storage: SharedStorage, cluster: Cluster) -> float:
    """Records per second of the whole cluster, discrete events in order of time."""
    rung = RUNGS[behaviour.rung]
    world = cluster.nodes * cluster.per_node
    is_node_wide = rung.source == "cursor" and rung.readahead
    actors = _actors(behaviour, cluster)
    lines = _Lines(storage, cluster.nodes)
    requests, device_bytes = behaviour.requests, behaviour.device_bytes
    if is_node_wide:
        # growth_s is a process' step over an unused record.
        used = max(behaviour.cpu_s - behaviour.growth_s, 0.0) / world
        cpu_s = used + behaviour.growth_s * max(1.0, cluster.per_node / cluster.cores)
    elif rung.source == "cursor":
        cpu_s = behaviour.cpu_s + behaviour.growth_s * (world - 1)
        requests += cluster.nodes - 1
        device_bytes += PAGE_BYTES * (cluster.nodes - 1)
    else:
        cpu_s = behaviour.cpu_s + behaviour.growth_s * (cluster.per_node - 1)
    tokens = [[0.0] * (rung.at_once or len(actors)) for _ in range(cluster.nodes)]
    busy = [[0.0] * cluster.cores for _ in range(cluster.nodes)]
    queue = [(1e-6 * number / len(actors), number) for number in range(len(actors))]
    heapq.heapify(queue)
    left = [UNITS] * len(actors)
    half_s, half, done, last_s = 0.0, 0, 0, 0.0
    total = sum(actor.unit for actor in actors) * UNITS
    while queue:
        now, number = heapq.heappop(queue)
        actor = actors[number]
        start_s = max(now, tokens[actor.node][0]) if rung.at_once else now
        read_s = lines.passed(
            start_s, actor.node, requests * actor.unit, device_bytes * actor.unit,
            behaviour.overlap,
        )  # fmt: skip
        if rung.at_once:
            heapq.heapreplace(tokens[actor.node], read_s)
        begin_s = now if _computes_beside(rung.name) else read_s
        end_s = max(read_s, _computed(busy[actor.node], begin_s, cpu_s * actor.unit, actor.users))
        done += actor.unit
        last_s = max(last_s, end_s)
        if half_s == 0.0 and done >= total / 2:  # the first half fills the lines
            half_s, half = end_s, done
        left[number] -= 1
        if left[number]:
            heapq.heappush(queue, (end_s, number))
    rate = (done - half) / (last_s - half_s) if last_s > half_s else done / last_s
    return rate / cluster.nodes if is_node_wide else rate


def _actors(behaviour: Behaviour, cluster: Cluster) -> list[_Actor]:
    rung = RUNGS[behaviour.rung]
    nodes = range(cluster.nodes)
    if rung.source == "cursor" and rung.readahead:  # a node's processes wait for the same pages
        return [_Actor(node, BATCH, 1) for node in nodes]
    if rung.source in ("cursor", "get", "feed", "node"):
        return [_Actor(node, BATCH, 1) for node in nodes for _ in range(cluster.per_node)]
    readers = min(rung.readers, cluster.per_node, READERS)
    users = max(1, cluster.per_node // readers)
    unit = BATCH * users
    if rung.coalesced:
        unit *= max(1, round(COALESCED_BYTES / (behaviour.record_bytes * unit)))
    return [_Actor(node, unit, users) for node in nodes for _ in range(readers)]


def _computed(cores: list[float], begin_s: float, cpu_s: float, users: int) -> float:
    """Return when so much CPU time, split over the users, is done on the first free cores."""
    split = min(users, len(cores))
    end_s = begin_s
    for _ in range(split):
        free = heapq.heapreplace(cores, 0.0)
        mine = max(free, begin_s) + cpu_s / split
        heapq.heapreplace(cores, mine)
        end_s = max(end_s, mine)
    return end_s


# --- a training in step --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelTraining:
    """The work of each process in a step: so many records, computing, and a sum over all processes;
    each doubling of the processes costs collective_s.  ahead: batches read during a step's
    computing."""

    batch: int
    compute_s: float
    collective_s: float
    ahead: int = 1


@dataclass(frozen=True, slots=True)
class Trained:
    """records_hz: of all processes.  stall: the mean of all processes' data wait over the time, and
    the least and the most wait of a process."""

    records_hz: float
    stall: float
    stall_least: float
    stall_most: float


def trained(
    behaviour: Behaviour,
    storage: SharedStorage,
    cluster: Cluster,
    training: ModelTraining,
    steps: int = UNITS,
    is_from_start: bool = False,
) -> Trained:
    """Simulate a training with common begins and ends of steps, by a feed in each process.

    A process reads batch after batch, at most `ahead` further than its step; its CPU works on the
    read batch while others read.  The first steps fill the lines and count for nothing, unless
    is_from_start: then the first batch's wait counts, as in a short run.
    """
    world = cluster.nodes * cluster.per_node
    lines = _Lines(storage, cluster.nodes)
    busy = [[0.0] * cluster.cores for _ in range(cluster.nodes)]
    collective_s = training.collective_s * math.log2(world)
    skipped = 0 if is_from_start else min(steps - 1, max(2, steps // 4))
    waits = [0.0] * world
    ready: list[dict[int, float]] = [{} for _ in range(steps)]
    ended = [0.0] * steps
    n_ended, counted_from = 0, 0.0
    queue = [(1e-9 * number, number, 0) for number in range(world)]
    resting: list[tuple[float, int, int]] = []  # waiting for the end of a step
    while n_ended < steps:
        now, number, batch = heapq.heappop(queue)
        node = number // cluster.per_node
        read_s = lines.passed(
            now, node, behaviour.requests * training.batch,
            behaviour.device_bytes * training.batch, behaviour.overlap,
        )  # fmt: skip
        ready[batch][number] = _computed(
            busy[node], read_s, behaviour.cpu_s * training.batch, 1
        )  # fmt: skip
        if batch + 1 < steps:
            resting.append((ready[batch][number], number, batch + 1))
        while n_ended < steps and len(ready[n_ended]) == world:
            begun = ended[n_ended - 1] if n_ended else 0.0
            ended[n_ended] = (
                max(begun, *ready[n_ended].values()) + training.compute_s + collective_s
            )
            if n_ended >= skipped:
                for waiting, at in ready[n_ended].items():
                    waits[waiting] += max(0.0, at - begun)
            else:
                counted_from = ended[n_ended]
            n_ended += 1
        still = []
        for free_s, waiting, wanted in resting:
            # Batch b may be read after the end of step b - ahead - 1: the memory is then free.
            gate = wanted - training.ahead - 1
            if gate < n_ended:
                begin_s = max(free_s, ended[gate]) if gate >= 0 else free_s
                heapq.heappush(queue, (begin_s, waiting, wanted))
            else:
                still.append((free_s, waiting, wanted))
        resting = still
    took_s = ended[-1] - counted_from
    stalls = [wait / took_s for wait in waits]
    return Trained(
        (steps - skipped) * world * training.batch / took_s,
        math.fsum(stalls) / world, min(stalls), max(stalls),
    )  # fmt: skip


# --- beside the measurements, and beyond ----------------------------------------------------------


def checked(points: Sequence[LadderPoint], cores: int, read_ahead_bytes: int) -> list[FitCheck]:
    """The simulation of every measured point.  read_ahead_bytes: the disk's.  Raises TierError."""
    rung_behaviours, places = behaviours(points), storages(points)
    checks = []
    for point in points:
        run = point.run
        if run.rung not in rung_behaviours:
            continue
        behaviour = _of_place(rung_behaviours[run.rung], points, run.place, read_ahead_bytes)
        simulated = simulated_hz(behaviour, places[run.place], Cluster(1, run.processes, cores))
        is_fitted = run.processes == 1 and run.place == "latency"
        checks.append(
            FitCheck(run.place, run.rung, run.processes, run.records_hz, simulated, is_fitted)
        )
    return checks


def _of_place(
    behaviour: Behaviour, points: Sequence[LadderPoint], place: str, read_ahead_bytes: int
) -> Behaviour:
    """Return the behaviour with the bytes of a record on the place, with a single process.  A disk
    counts requests for the whole machine: read-ahead gives their number from the bytes, or each
    page a fault."""
    if place == "latency":
        return behaviour
    for point in points:
        run = point.run
        if (run.place, run.rung, run.processes) == (place, behaviour.rung, 1):
            device_bytes = run.device_bytes / run.records
            requests = max(device_bytes / read_ahead_bytes, run.major_faults / run.records)
            if behaviour.rung.endswith("-shuffled"):  # a request a record, on every disk
                requests = behaviour.requests
            return replace(behaviour, device_bytes=device_bytes, requests=requests)
    return behaviour


def extended(
    points: Sequence[LadderPoint],
    storage: SharedStorage,
    per_node: int,
    cores: int,
    most: int,
    progress: PhaseProgress | None = None,
) -> dict[str, list[tuple[int, float]]]:
    """Return each rung's (processes, records/s) from one process to `most`, doubling; whole
    nodes."""
    rung_behaviours = behaviours(points)
    sizes = _sizes(per_node, most)
    steps, done = len(rung_behaviours) * sum(sizes), 0
    curves: dict[str, list[tuple[int, float]]] = {}
    for rung, behaviour in rung_behaviours.items():
        curves[rung] = []
        for processes in sizes:
            if progress:
                progress(f"simulating {rung}, {processes} processes", done / steps)
            cluster = Cluster(-(-processes // per_node), min(processes, per_node), cores)
            curves[rung].append((processes, simulated_hz(behaviour, storage, cluster)))
            done += processes
    return curves


def _sizes(per_node: int, most: int) -> list[int]:
    """Return 1, 2, 4 ... of a node, then whole nodes, doubling."""
    sizes = []
    size = 1
    while size < min(per_node, most):
        sizes.append(size)
        size *= 2
    size = per_node
    while size < most:
        sizes.append(size)
        size *= 2
    return [*sizes, most if most <= per_node else -(-most // per_node) * per_node]


def markdown_of(
    checks: Sequence[FitCheck],
    curves: dict[str, list[tuple[int, float]]],
    storage: SharedStorage,
    cluster: str,
) -> str:
    """Return the assumptions, the error where measurable, and the prediction beyond."""
    errors = [abs(check.error) for check in checks if not check.is_fitted]
    lines = ["**Assumed**", "", *[f"* {text}" for text in ASSUMPTIONS], ""]
    lines += [f"**Beyond: {cluster}**, storage {_storage_words(storage)}: records/s", ""]
    sizes = [size for size, _ in next(iter(curves.values()), [])]
    lines.append("| rung | " + " | ".join(f"{size:,}" for size in sizes) + " |")
    lines.append("| --- |" + " ---: |" * len(sizes))
    for rung, curve in curves.items():
        lines.append(f"| {rung} | " + " | ".join(f"{rate:,.0f}" for _, rate in curve) + " |")
    lines += ["", f"**Beside the {len(checks)} measured points**", ""]
    if errors:
        lines += [
            f"Error of the {len(errors)} that gave no parameter: median {median(errors):.0%}, "
            f"largest {max(errors):.0%}.".replace("%", " %"),
            "",
        ]
    lines.append("| place | rung | processes | measured | simulated | error |")
    lines.append("| --- | --- | ---: | ---: | ---: | ---: |")
    for check in checks:
        error = "fitted" if check.is_fitted else f"{check.error:+.0%}".replace("%", " %")
        lines.append(
            f"| {check.place} | {check.rung} | {check.processes} | {check.measured_hz:,.0f} | "
            f"{check.simulated_hz:,.0f} | {error} |"
        )
    return "\n".join(lines) + "\n"


def _storage_words(storage: SharedStorage) -> str:
    return (
        f"{storage.bandwidth_bps / 1e9:g} GB/s, {storage.requests_hz:,.0f} requests/s, "
        f"{storage.latency_s * 1e3:g} ms, links of {storage.link_bps / 1e9:g} GB/s"
    )


def to_json(
    checks: Sequence[FitCheck], curves: dict[str, list[tuple[int, float]]], storage: SharedStorage
) -> str:
    """Return the whole simulation as a JSON object."""
    value = {
        "assumptions": list(ASSUMPTIONS),
        "storage": asdict(storage),
        "checks": [{**asdict(check), "error": check.error} for check in checks],
        "curves": curves,
    }
    return json.dumps(value, indent=1)


def picture_of(
    points: Sequence[LadderPoint],
    curves: dict[str, list[tuple[int, float]]],
    place: str,
    path: Path,
) -> None:
    """Plot the simulated curves, beside the measured points of a place.

    Raises MissingDependency.
    """
    plt = pyplot()
    figure, axis = plt.subplots(figsize=(8.5, 5))
    for rung, curve in curves.items():
        colour, mark = ladder.LOOKS[rung]
        axis.plot(
            [size for size, _ in curve], [rate for _, rate in curve],
            color=colour, label=rung, marker=mark, markersize=3.5, linewidth=0.8,
            markerfacecolor="none" if mark != "o" else colour,
        )  # fmt: skip
        mine = [point.run for point in points if (point.run.rung, point.run.place) == (rung, place)]
        axis.plot(
            [run.processes for run in mine], [run.records_hz for run in mine],
            linestyle="", marker="o", markersize=8, markerfacecolor="none", color=colour,
        )  # fmt: skip
    axis.set(xlabel="processes", ylabel="records/s")
    logarithmic(axis.xaxis, "count")
    logarithmic(axis.yaxis, "count")
    axis.set_title(
        "lines: simulated, of nodes and a storage that are assumed\n"
        f"circles: measured, on another machine ({place})",
        fontsize=10,
    )
    axis.grid(alpha=0.3)
    axis.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def write_results(
    folder: Path,
    text: str,
    points: Sequence[LadderPoint],
    checks: Sequence[FitCheck],
    curves: dict[str, list[tuple[int, float]]],
    storage: SharedStorage,
) -> list[Path]:
    """model.md, .json and .png.  Raises TierError; MissingDependency."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "model.md").write_text(text)
        (folder / "model.json").write_text(to_json(checks, curves, storage))
    except OSError as error:
        raise TierError(f"{folder}: cannot be written: {error.strerror}") from error
    picture_of(points, curves, "latency", folder / "model.png")
    return [folder / f"model.{end}" for end in ("md", "json", "png")]
