"""`bench exchange`: sums over ranks by gloo, beside formulas, and Bae 2019's speed-up.

Knows the networks and the cases; `allreduce` has the formulas, `allreduce_rank` is a rank, `wire` a
network of known latency and bandwidth.  Half of the measured points fit two parameters of each
network, the others are predicted.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from penstock.errors import RunError, TierError
from penstock_lab import allreduce, places, study, wire
from penstock_lab.allreduce import Network, StrongScaling, Sum
from penstock_lab.allreduce_rank import AllreduceJob
from penstock_lab.folders import work_in
from penstock_lab.places import Place, PlaceError
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = [
    "NETWORKS",
    "NURION",
    "PUBLISHED_SPEEDUP",
    "STUDY",
    "ExchangeSettings",
    "measured",
    "needs",
]

# Slow enough for two cores to keep the bandwidth with eight ranks.  Loopback has no set values.
NETWORKS: dict[str, tuple[float, float] | None] = {
    "loopback": None,
    "near": (1e-3, 25e6),
    "far": (5e-3, 12.5e6),
}
RANKS = {"ci": (2, 4), "small": (2, 4, 8), "full": (2, 3, 4, 6, 8)}
SIZES = {
    "ci": (4_096, 262_144),
    "small": (4_096, 65_536, 524_288, 2_097_152),
    "full": (1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216),
}
SUMS = {"ci": 3, "small": 5, "full": 15}
BACKWARD_S, BUCKETS = 0.2, 4
# Each measured sum and its formula.
MEASURED = {"ring": "asked-ring", "tree": "tree", "overlapped": "asked-ring"}
SIMULATED = ("ring", "tree", "halving")
TIMEOUT_S = 240.0

# Bae 2019: ResNet-50's 25 million parameters in fp32, a batch of 32 K, 1.620 s for 512 images on
# four nodes: a node computes an image in 12.7 ms.
NURION = StrongScaling(32_768, 1.620 / 128, 25e6 * 4)
NODES = (512, 1024, 2048)
PUBLISHED_SPEEDUP = 2.60
PUBLISHED_S = 23 * 60.0
# Nurion's published link: Omni-Path, 100 Gb/s a node.  The latency of a message is the order of
# magnitude of MPI over Omni-Path; nobody published a latency for these runs.
LINK_BPS, LINK_LATENCY_S = 12.5e9, 1e-6
# Of ImageNet-1K; the usual number of epochs, as the paper gives none.
EPOCHS, IMAGES = 90, 1_281_167


@dataclass(frozen=True, slots=True)
class ExchangeSettings:
    """See study."""

    scale: str = "small"
    places: tuple[str, ...] = tuple(NETWORKS)
    repeats: int = 3
    seed: int = 1


STUDY = Study(
    "exchange",
    "Sums over ranks",
    ("place", "algorithm", "ranks", "n_bytes"),
    (
        Measure("seconds", "a sum", "s", -1),
        Measure("predicted_s", "formula", "s"),
        Measure("error", "error", "share"),
        Measure("set_s", "formula with the set values", "s"),
        Measure("set_error", "its error", "share"),
        Measure("is_fitted", "gave a parameter", "count"),
        Measure("step_s", "a step", "s", -1),
        Measure("speedup", "over 512 nodes", "x", 1),
    ),
)


def needs(settings: ExchangeSettings) -> dict[str, str]:
    """See needs.look_for."""
    return {"torch": "gloo"}


def _cases(settings: ExchangeSettings) -> list[Case]:
    return [
        {"place": place, "algorithm": algorithm, "ranks": ranks, "n_bytes": size}
        for place in settings.places
        for ranks in RANKS[settings.scale]
        for algorithm in MEASURED
        for size in SIZES[settings.scale]
    ]


def measured(
    folder: Path, settings: ExchangeSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Sum over ranks on each network, beside the formulas, and apply the formulas to Bae's nodes.

    Raises TierError: FOLDER holds other settings; MissingDependency.
    """
    mark = {"study": "exchange", "scale": settings.scale, "seed": settings.seed}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    cases = _cases(settings)
    launched = _Launched(folder, settings)

    def run(place: Place, case: Case) -> Row:
        done = sum(all(row.get(key) == case[key] for key in case) for row in kept.rows)
        return launched.row(case, done)

    rows, remarks = study.carried_out(
        kept, cases, run, _at, repeats=settings.repeats, seed=settings.seed, progress=progress,
        is_warmed=False,
    )  # fmt: skip
    points = study.points_of(STUDY, rows, cases)
    points, networks = _predicted(points)
    remarks += _remarks(points, networks)
    beyond = _nurion()
    solved = _solved()
    more = {
        "networks": {name: asdict(network) for name, network in networks.items()},
        "nurion": solved,
    }
    remarks += _solved_words(solved)
    which = replace(STUDY, draw=_drawn)
    return StudyResult(which, settings.scale, mark, machine, points + beyond, rows, remarks, more)


# --- the measured sums ----------------------------------------------------------------------------


@contextmanager
def _at(name: str) -> Iterator[Place]:
    if NETWORKS[name] is not None:
        try:
            wire.refuse_without()
        except TierError as error:
            raise PlaceError(str(error)) from error
    yield Place(name, Path())


class _Launched:
    """The sums of a start of the ranks: a start gives a row to each case."""

    def __init__(self, folder: Path, settings: ExchangeSettings) -> None:
        self._folder, self._settings = folder, settings
        self._seconds: dict[tuple[str, int, int], dict[tuple[str, int], float]] = {}

    def row(self, case: Case, repeat: int) -> Row:
        key = (case["place"], case["ranks"], repeat)
        if key not in self._seconds:
            self._seconds[key] = self._start(case["place"], case["ranks"])
        return {"seconds": self._seconds[key][case["algorithm"], case["n_bytes"]]}

    def _start(self, place: str, ranks: int) -> dict[tuple[str, int], float]:
        scale = self._settings.scale
        job = AllreduceJob(ranks, tuple(MEASURED), SIZES[scale], SUMS[scale], BACKWARD_S, BUCKETS)
        with work_in(self._folder) as work:
            (work / "job.json").write_text(json.dumps(asdict(job)))
            answers = _ranks(work, place, ranks)
        seconds: dict[tuple[str, int], list[float]] = {}
        for answer in answers:
            for row in answer["rows"]:
                if not row["is_right"]:
                    raise RunError(f"{row['algorithm']}: a sum over {ranks} ranks is wrong")
                seconds.setdefault((row["algorithm"], row["bytes"]), []).append(row["seconds"])
        return {key: median(values) for key, values in seconds.items()}


def _ranks(work: Path, place: str, ranks: int) -> list[dict[str, Any]]:
    """Start the ranks and return their answers.  Raises RunError."""
    network = NETWORKS[place]
    environment = os.environ | places.OUR_PATH | {"OMP_NUM_THREADS": "1"}
    programs: list[subprocess.Popen[str]] = []
    with ExitStack() as stack:
        ours: list[socket.socket] = []
        for rank in range(ranks):
            words = [sys.executable, "-m", "penstock_lab.allreduce_rank"]
            words += [str(work / "job.json"), str(rank)]
            theirs: tuple[int, ...] = ()
            if network is not None:
                mine, other = socket.socketpair()
                ours.append(stack.enter_context(mine))
                stack.enter_context(other)
                theirs = (other.fileno(),)
                words.append(str(other.fileno()))
            program = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                text=True, env=environment, pass_fds=theirs, start_new_session=True,
            )  # fmt: skip
            programs.append(program)
            stack.callback(_ended, program)
        between = wire.routed(ours, *network) if network is not None else nullcontext()
        try:
            with between:
                for program in programs:
                    program.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"gloo: did not end in {TIMEOUT_S:.0f} s") from error
        except TierError as error:
            raise RunError(str(error)) from error
    answers = []
    for rank in range(ranks):
        try:
            answers.append(json.loads((work / f"sums-{rank}.json").read_bytes()))
        except (OSError, ValueError) as error:
            raise RunError(f"gloo: rank {rank} gave no answer") from error
    for answer in answers:
        if "error" in answer:
            raise RunError(f"gloo: {answer['error']}")
    return answers


def _ended(program: subprocess.Popen[str]) -> None:
    if program.poll() is None:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    if program.stderr:
        program.stderr.close()


# --- beside the formulas -------------------------------------------------------------------------


def _sum_of(point: Point) -> Sum:
    algorithm = MEASURED[point["algorithm"]]
    return Sum(algorithm, point["ranks"], point["n_bytes"], point["seconds"])


def _formula_s(point: Point, network: Network) -> float:
    ranks, n_bytes = point["ranks"], point["n_bytes"]
    algorithm = MEASURED[point["algorithm"]]
    if point["algorithm"] == "overlapped":
        return allreduce.exposed_s(algorithm, network, ranks, n_bytes, BACKWARD_S, BUCKETS)
    return allreduce.exchange_s(algorithm, network, ranks, n_bytes)


def _predicted(points: Sequence[Point]) -> tuple[list[Point], dict[str, Network]]:
    """Return each point beside the formulas, and the fitted network of each place.

    Every second ring and every second tree of a place, by ranks and bytes as on a chess board, fit
    its network; no overlapped sum does.
    """
    ranks = sorted({point["ranks"] for point in points})
    sizes = sorted({point["n_bytes"] for point in points})
    networks: dict[str, Network] = {}
    fit: set[int] = set()
    for place in dict.fromkeys(point["place"] for point in points):
        mine = [
            point
            for point in points
            if point["place"] == place
            and point["algorithm"] != "overlapped"
            and (ranks.index(point["ranks"]) + sizes.index(point["n_bytes"])) % 2 == 0
        ]
        fit |= {id(point) for point in mine}
        networks[place] = allreduce.fitted([_sum_of(point) for point in mine])
    predicted_points = []
    for point in points:
        values: dict[str, float | None] = {
            "is_fitted": float(id(point) in fit),
            "predicted_s": _formula_s(point, networks[point["place"]]),
        }
        values["error"] = _off(values["predicted_s"], point["seconds"])
        known_network = NETWORKS.get(point["place"])
        if known_network is not None:
            values["set_s"] = _formula_s(point, Network(*known_network))
            values["set_error"] = _off(values["set_s"], point["seconds"])
        for key, value in values.items():
            point = study.with_value(point, key, value)
        predicted_points.append(point)
    return predicted_points, networks


def _off(predicted_s: float | None, seconds: float) -> float | None:
    return predicted_s / seconds - 1 if predicted_s is not None and seconds > 0 else None


def _errors(points: Sequence[Point], key: str, algorithms: Sequence[str]) -> list[float]:
    return [
        abs(point[key])
        for point in points
        if point["algorithm"] in algorithms
        and point.values.get(key) is not None
        and (key != "error" or not point["is_fitted"])
    ]


def _remarks(points: Sequence[Point], networks: dict[str, Network]) -> list[str]:
    said = []
    for place, network in networks.items():
        mine = [point for point in points if point["place"] == place]
        words = NETWORKS[place]
        kind = (
            f"name spaces, {1e3 * words[0]:g} ms and {words[1] / 1e6:g} MB/s per rank"
            if words is not None
            else "processes of one machine over its loopback device"
        )
        bandwidth = network.bandwidth_bps / 1e6
        said.append(
            f"`{place}`: {kind}; fitted: {1e3 * network.latency_s:.3g} ms and {bandwidth:.3g} MB/s"
        )
        for key, what in (("error", "points that fitted nothing"), ("set_error", "set values")):
            errors = sorted(_errors(mine, key, ("ring", "tree")))
            if len(errors) > 1:
                said.append(
                    f"`{place}`, {what}: error of {len(errors)} sums: median "
                    f"{median(errors):.0%}, nine in ten within "
                    f"{quantiles(errors, n=10, method='inclusive')[-1]:.0%}".replace("%", " %")
                )
    said.append(
        f"`overlapped`: what a ring in {BUCKETS} parts beside a pass of {1e3 * BACKWARD_S:g} ms "
        "takes after the end of the pass"
    )
    return said


# --- Bae's nodes ---------------------------------------------------------------------------------


def _nurion() -> list[Point]:
    """The formulas at Bae's nodes with the published link, without and with overlap."""
    link = Network(LINK_LATENCY_S, LINK_BPS)
    points = []
    for algorithm in SIMULATED:
        for nodes in NODES:
            step_s = allreduce.step_s(NURION, algorithm, link, nodes)
            values: dict[str, float | None] = dict.fromkeys(m.key for m in STUDY.measures)
            values |= {
                "predicted_s": allreduce.exchange_s(algorithm, link, nodes, NURION.gradient_bytes),
                "step_s": step_s,
                "speedup": allreduce.speedup(NURION, algorithm, link, (NODES[0], nodes)),
            }
            factors = {
                "place": "nurion", "algorithm": algorithm, "ranks": nodes,
                "n_bytes": int(NURION.gradient_bytes),
            }  # fmt: skip
            none = dict.fromkeys(values)
            points.append(Point(factors, 1, values, none, none))
    return points


def _solved() -> dict[str, float]:
    """Return the values with which 2,048 nodes are 2.60 times as fast as 512, each alone.

    The speed-up of steps with an extra cost c on any number of nodes is (a + c) / (b + c), and 2.60
    and 23 minutes together give the extra cost of each number of nodes.
    """
    ends = (NODES[0], NODES[-1])
    few, many = (NURION.sample_s * NURION.batch / nodes for nodes in ends)
    exposed_s = (few - PUBLISHED_SPEEDUP * many) / (PUBLISHED_SPEEDUP - 1)

    def by_latency(value: float) -> float:
        return allreduce.speedup(NURION, "ring", Network(value, LINK_BPS), ends)

    def by_bandwidth(value: float) -> float:
        return allreduce.speedup(NURION, "ring", Network(LINK_LATENCY_S, value), ends)

    steps = EPOCHS * IMAGES / NURION.batch
    link = Network(LINK_LATENCY_S, LINK_BPS)
    return {
        **{name: allreduce.speedup(NURION, name, link, ends) for name in SIMULATED},
        "exposed_s": exposed_s,
        "latency_s": allreduce.needed(PUBLISHED_SPEEDUP, by_latency, 1e-8, 1.0),
        "bandwidth_bps": allreduce.needed(PUBLISHED_SPEEDUP, by_bandwidth, 1e6, LINK_BPS),
        "minutes": steps * (many + exposed_s) / 60,
        "minutes_free": steps * many / 60,
        "exposed_many_s": PUBLISHED_S / steps - many,
        "exposed_few_s": PUBLISHED_SPEEDUP * PUBLISHED_S / steps - few,
    }


def _solved_words(solved: dict[str, float]) -> list[str]:
    return [
        f"`nurion`: {NURION.gradient_bytes / 1e6:g} MB of gradients, 100 Gb/s a node (published) "
        f"and {1e6 * LINK_LATENCY_S:g} us a message (assumed), nothing overlapped: 2,048 nodes are "
        f"{solved['ring']:.2f} times as fast as 512 by a ring, {solved['halving']:.2f} by halving, "
        f"{solved['tree']:.2f} by a tree; the paper: {PUBLISHED_SPEEDUP:.2f}",
        f"{PUBLISHED_SPEEDUP:.2f} needs {1e3 * solved['exposed_s']:.0f} ms more a step on any "
        f"number of nodes; by a ring, {solved['bandwidth_bps'] / 1e9:.2f} GB/s a node "
        f"({solved['bandwidth_bps'] / LINK_BPS:.0%} of the published link) or "
        f"{1e6 * solved['latency_s']:.0f} us a message".replace("%", " %"),
        f"{EPOCHS} epochs of ImageNet-1K (assumed) take {solved['minutes']:.1f} minutes by the "
        f"step that gives {PUBLISHED_SPEEDUP:.2f}, {solved['minutes_free']:.1f} if the exchange "
        f"costs nothing; the paper: {PUBLISHED_S / 60:.0f}. Both published figures "
        f"together need {1e3 * solved['exposed_few_s']:.0f} ms more a step on 512 nodes and "
        f"{1e3 * solved['exposed_many_s']:.0f} ms on 2,048",
    ]


# --- the picture ---------------------------------------------------------------------------------


def _drawn(figure: Any, points: Sequence[Point]) -> None:
    """Draw each network's sums and formulas, and the speed-up by the extra cost of a step."""
    here = [point for point in points if point["place"] != "nurion"]
    names = list(dict.fromkeys(point["place"] for point in here))
    panels = study.panels(figure, [*names, "2,048 nodes over 512"])
    for name, axis in panels:
        if name not in names:
            _speedups(axis)
            continue
        mine = [p for p in here if p["place"] == name and p["algorithm"] != "overlapped"]
        labels = list(dict.fromkeys((p["algorithm"], p["ranks"]) for p in mine))
        for number, (algorithm, ranks) in enumerate(labels):
            group = [p for p in mine if (p["algorithm"], p["ranks"]) == (algorithm, ranks)]
            at = [p["n_bytes"] for p in group]
            look = {"color": f"C{number}"}
            axis.plot(at, [p["seconds"] for p in group], "o", ms=4, **look)
            label = f"{algorithm}, {ranks}"
            axis.plot(at, [p["predicted_s"] for p in group], "-", lw=0.9, label=label, **look)
        axis.set(xlabel="bytes", ylabel="seconds (lines: formula)")
        study.logarithmic(axis.xaxis, "B")
        study.logarithmic(axis.yaxis, "s")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()


def _speedups(axis: Any) -> None:
    """Draw the speed-up over the bandwidth of a ring, for several latencies of a message."""
    ends = (NODES[0], NODES[-1])
    speeds = [10 ** (8 + n / 20) for n in range(43)]
    for latency_s in (1e-6, 10e-6, 30e-6, 100e-6):
        ratios = [allreduce.speedup(NURION, "ring", Network(latency_s, bps), ends)
                  for bps in speeds]  # fmt: skip
        axis.plot(speeds, ratios, label=f"{1e6 * latency_s:g} us a message")
    axis.axhline(PUBLISHED_SPEEDUP, color="black", ls=":", lw=0.9, label="published: 2.60")
    axis.axvline(LINK_BPS, color="grey", ls="--", lw=0.9, label="published link")
    axis.set(xlabel="bandwidth of a node, B/s", ylabel="times as fast")
    study.logarithmic(axis.xaxis, "B/s", (1e8, 1e9, 1e10))
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7, frameon=False)
