"""`bench burst`: an unchanged program whose saves go to a fast tier, by the ratio of the tiers.

Knows the cases and the line of a save's time; both tiers are slow file systems with set bandwidths,
so that the ratio is known.  The program saves with torch.save or with TensorFlow's own saver to a
path on the slow tier; `penstock run --burst-buffer` is put before the program and nothing in the
program is changed.  Chien et al. 2018.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from penstock.errors import RunError
from penstock_lab import places, study
from penstock_lab import tier as slow_tiers
from penstock_lab.checkpoint import ALEXNET, SAVERS, STATE_BYTES
from penstock_lab.folders import refuse_without_room, work_in
from penstock_lab.needs import imported
from penstock_lab.places import Place
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = [
    "PUBLISHED_GAIN",
    "RATIOS",
    "STUDY",
    "WAYS",
    "BurstSettings",
    "Line",
    "line_of",
    "measured",
    "needed_bytes",
    "needs",
]

PUBLISHED_GAIN = 2.6
WAYS = {
    "none": "no save",
    "slow": "the program's own saves, straight to the slow tier",
    "burst": "the same program under `penstock run --burst-buffer`",
    "drain": "the program saves to the fast tier, `penstock save drain` beside it",
    "checkpointer": "`penstock.save.Checkpointer` in the program",
}
OF_TENSORFLOW = ("none", "slow", "burst")
RATIOS = {"ci": (1.0, 8.0), "small": (1.0, 2.0, 3.0, 5.0, 10.0),
          "full": (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)}  # fmt: skip
# Both tiers are slower than a saver on one CPU, so that the program waits for the tiers.
FAST_BPS = 100e6
SHARE = {"ci": 0.01, "small": 0.05, "full": 0.2}  # of AlexNet's state with Adam's two moments
SAVES = {"ci": 2, "small": 3, "full": 5}
EVERY, COMPUTE_S = 4, 0.1
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class BurstSettings:
    """See study."""

    scale: str = "small"
    places: tuple[str, ...] = ("tiers",)
    repeats: int = 2
    seed: int = 1
    savers: tuple[str, ...] = ("torch", "tensorflow")


def _derived(points: list[Point]) -> list[Point]:
    """The overhead of each way, and how many times as much saving straight to the slow tier
    costs."""
    quiet = {p["saver"]: p["total_s"] for p in points if p["way"] == "none"}
    over: dict[tuple[str, float, str], float] = {}
    derived_points = []
    for point in points:
        if point["way"] != "none" and point["saver"] in quiet:
            more_s = point["total_s"] - quiet[point["saver"]]
            over[point["saver"], point["ratio"], point["way"]] = more_s
            point = study.with_value(point, "overhead_s", more_s)
        derived_points.append(point)
    for number, point in enumerate(derived_points):
        slow_s = over.get((point["saver"], point["ratio"], "slow"))
        mine_s = over.get((point["saver"], point["ratio"], point["way"]))
        if slow_s is not None and mine_s is not None and mine_s > 0:
            derived_points[number] = study.with_value(point, "gain", slow_s / mine_s)
    return derived_points


STUDY = Study(
    "burst",
    "A burst buffer for an unchanged program",
    ("place", "saver", "way", "ratio"),
    (
        Measure("total_s", "loop", "s", -1),
        Measure("overhead_s", "overhead", "s", -1),
        Measure("save_s", "a save blocks", "s", -1),
        Measure("durable_s", "last save on the slow tier after", "s", -1),
        Measure("gain", "slow's overhead / this", "x", 1),
        Measure("predicted", "predicted", "x"),
    ),
    derive=_derived,
)


def needs(settings: BurstSettings) -> dict[str, str]:
    """See needs.look_for."""
    return {name: f"--saver {name}" for name in settings.savers}


def needed_bytes(settings: BurstSettings) -> float:
    """Room for all saves of a run on both tiers."""
    return 2.5 * (SAVES[settings.scale] + 1) * SHARE[settings.scale] * STATE_BYTES


def _cases(settings: BurstSettings) -> list[Case]:
    cases = []
    for saver in settings.savers:
        ways = OF_TENSORFLOW if saver == "tensorflow" else tuple(WAYS)
        plain = {"place": "tiers", "saver": saver}
        cases.append(plain | {"way": "none", "ratio": 1.0})
        for ratio in RATIOS[settings.scale]:
            cases += [plain | {"way": way, "ratio": ratio} for way in ways if way != "none"]
    return cases


@contextmanager
def _at(name: str) -> Iterator[Place]:
    yield Place(name, Path())


def measured(
    folder: Path, settings: BurstSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Run every way on every ratio of the tiers, and find the ratio from which the paper's gain
    holds.

    Raises TierError: no room, FOLDER holds other settings; MissingDependency.
    """
    mark = {"study": "burst", "scale": settings.scale, "seed": settings.seed}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    refuse_without_room(folder, needed_bytes(settings))
    cases = _cases(settings)

    def run(place: Place, case: Case) -> Row:
        return _run(folder, case, settings)

    rows, remarks = study.carried_out(
        kept, cases, run, _at, repeats=settings.repeats, seed=settings.seed, progress=progress,
        is_warmed=False, together="way",
    )  # fmt: skip
    points, lines = _predicted(study.points_of(STUDY, rows, cases))
    remarks += _remarks(points, lines, settings)
    more = {
        "lines": {saver: asdict(line) for saver, line in lines.items()},
        "least_ratio": {saver: line.from_ratio(PUBLISHED_GAIN) for saver, line in lines.items()},
        "fast_bps": FAST_BPS,
    }
    which = replace(STUDY, draw=partial(_drawn, lines=lines))
    return StudyResult(which, settings.scale, mark, machine, points, rows, remarks, more)


# --- one run -------------------------------------------------------------------------------------


def _run(folder: Path, case: Case, settings: BurstSettings) -> Row:
    scale = settings.scale
    with work_in(folder) as work:
        for name in ("fast", "slow"):
            (work / name).mkdir()
        with (
            slow_tiers.slow(work / "fast", bandwidth=FAST_BPS) as fast,
            slow_tiers.slow(work / "slow", bandwidth=FAST_BPS / case["ratio"]) as slow,
        ):
            job = {
                "saver": case["saver"], "way": case["way"], "fast": fast.path, "slow": slow.path,
                "share": SHARE[scale], "saves": SAVES[scale], "answer": str(work / "answer.json"),
            }  # fmt: skip
            row = _answer(work, job)
            if case["way"] != "none":
                _checked(Path(slow.path), job)
    return row


def _answer(work: Path, job: dict[str, Any]) -> Row:
    """Run the program and return its answer.  Raises RunError."""
    (work / "job.json").write_text(json.dumps(job))
    words = [sys.executable, "-m", "penstock_lab.bursts", str(work / "job.json")]
    if job["way"] == "burst":
        before = [sys.executable, "-m", "penstock", "run", "-o", str(work / "recording")]
        words = [*before, "--burst-buffer", f"{job['fast']}/", *words]
    program = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
        env=os.environ | places.OUR_PATH | {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )  # fmt: skip
    try:
        said, _ = program.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise RunError(f"{job['way']}: did not end in {TIMEOUT_S:.0f} s") from error
    finally:
        places.ended(program)
    ended_s = time.time()
    try:
        row: Row = json.loads(Path(job["answer"]).read_bytes())
    except (OSError, ValueError) as error:
        lines = said.strip().splitlines()
        raise RunError(f"{job['way']}: {lines[-1] if lines else error}") from error
    begun_s = row.pop("begun_unix_s")
    if job["way"] == "burst":  # `penstock run` ends when the last file is on the slow tier
        row["durable_s"] = ended_s - begun_s
    return row


def _checked(slow: Path, job: dict[str, Any]) -> None:
    """Raise RunError unless the last save is whole on the slow tier, and no link to the fast."""
    least_bytes = 0.9 * job["share"] * STATE_BYTES
    pattern = "*.data-*" if job["saver"] == "tensorflow" else "*.pt"
    files = sorted(path for path in slow.rglob(pattern) if not path.name.startswith("."))
    last = next((path for path in files[::-1] if _step(path, slow) == job["saves"] * EVERY), None)
    if last is None or last.is_symlink() or last.stat().st_size < least_bytes:
        raise RunError(f"{job['way']}: the last save is not on the slow tier")
    if job["saver"] == "torch":
        with zipfile.ZipFile(last) as archive:
            if archive.testzip() is not None:
                raise RunError(f"{job['way']}: the last save is not whole on the slow tier")


def _step(path: Path, top: Path) -> int:
    """Return the last number in the name below the tier."""
    words = str(path.relative_to(top)).partition(".data-")[0]
    digits = "".join(letter if letter.isdigit() else " " for letter in words).split()
    return int(digits[-1]) if digits else -1


# --- the program ---------------------------------------------------------------------------------


class _TensorFlowSaver:
    """TensorFlow's own saver, used as in a training: no sync."""

    def __init__(self, folder: Path, job: dict[str, Any]) -> None:
        self._tf = tf = imported("tensorflow", "--saver tensorflow")
        shapes = [(max(1, round(s[0] * job["share"])), *s[1:]) for s in ALEXNET]
        values = {
            f"{name}{number}": tf.Variable(tf.random.uniform(shape))
            for name in ("model", "exp_avg", "exp_avg_sq")
            for number, shape in enumerate(shapes)
        }
        with (
            TemporaryDirectory() as place
        ):  # the first save of a program makes TensorFlow's kernels
            tf.train.Checkpoint(small=tf.Variable(0.0)).write(f"{place}/small")
        self._checkpoint = tf.train.Checkpoint(**values)
        self._folder = folder
        self.durable: dict[int, float] = {}

    def save(self, step: int, state: Any) -> None:
        self._checkpoint.write(str(self._folder / f"model.ckpt-{step}"))
        self.durable[step] = time.perf_counter()

    def wait(self, steps: Sequence[int]) -> None:
        """Do nothing: the file was there when save() returned."""

    def __enter__(self) -> _TensorFlowSaver:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def _torch_state(share: float) -> dict[str, Any]:
    torch = imported("torch", "--saver torch")
    torch.set_num_threads(1)
    shapes = [(max(1, round(s[0] * share)), *s[1:]) for s in ALEXNET]
    return {
        name: {f"{number}": torch.rand(shape) for number, shape in enumerate(shapes)}
        for name in ("model", "exp_avg", "exp_avg_sq")
    }


def _train(job: dict[str, Any]) -> Row:
    """Sleep and save, as a training on an accelerator does."""
    fast, slow, way = Path(job["fast"]), Path(job["slow"]), job["way"]
    if job["saver"] == "tensorflow":
        saver, state = _TensorFlowSaver(slow, job), None
    else:
        state = _torch_state(job["share"])
        saver = SAVERS["slow" if way == "burst" else way](fast, slow)
    with saver as opened:
        saves: list[tuple[int, float]] = []
        begun_unix_s, begun_s = time.time(), time.perf_counter()
        for step in range(1, job["saves"] * EVERY + 1):
            time.sleep(COMPUTE_S)
            if step % EVERY == 0 and way != "none":
                before_s = time.perf_counter()
                opened.save(step, state)
                saves.append((step, time.perf_counter() - before_s))
        total_s = time.perf_counter() - begun_s
        opened.wait([step for step, _ in saves])
        durable_s = max(opened.durable.values(), default=begun_s) - begun_s
    return {
        "total_s": total_s,
        "save_s": median(seconds for _, seconds in saves) if saves else None,
        "durable_s": durable_s if saves else None,
        "begun_unix_s": begun_unix_s,
    }


def _main() -> None:
    job = json.loads(Path(sys.argv[1]).read_bytes())
    Path(job["answer"]).write_text(json.dumps(_train(job)))


# --- the line ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """The time of a save straight to a tier, cpu_s + ratio x fast_s: the saver's own time, and the
    time of the bytes at the fast tier's bandwidth over the ratio."""

    cpu_s: float
    fast_s: float

    def gain(self, ratio: float) -> float:
        """Return the time of a save to the slow tier over the time to the fast tier."""
        return (self.cpu_s + ratio * self.fast_s) / (self.cpu_s + self.fast_s)

    def from_ratio(self, gain: float) -> float:
        """Return the least ratio of the tiers with the gain."""
        return gain + (gain - 1) * self.cpu_s / self.fast_s


def line_of(saves: Sequence[tuple[float, float]]) -> Line | None:
    """Return the line with the least squares through (ratio, seconds of a save); None: fewer than
    two ratios, or no rising line."""
    if len({ratio for ratio, _ in saves}) < 2:
        return None
    mean = math.fsum(ratio for ratio, _ in saves) / len(saves)
    mean_s = math.fsum(seconds for _, seconds in saves) / len(saves)
    weight = math.fsum((ratio - mean) ** 2 for ratio, _ in saves)
    slope = math.fsum((ratio - mean) * (s - mean_s) for ratio, s in saves) / weight
    return Line(max(0.0, mean_s - slope * mean), slope) if slope > 0 else None


def _predicted(points: list[Point]) -> tuple[list[Point], dict[str, Line]]:
    """Return each point of `burst` beside the expectation from the saves straight to the slow
    tier."""
    lines: dict[str, Line] = {}
    for saver in dict.fromkeys(point["saver"] for point in points):
        slow = [p for p in points if (p["saver"], p["way"]) == (saver, "slow")]
        line = line_of([(p["ratio"], p["save_s"]) for p in slow])
        if line is not None:
            lines[saver] = line
    predicted_points = []
    for point in points:
        if point["way"] == "burst" and point["saver"] in lines:
            gain = lines[point["saver"]].gain(point["ratio"])
            point = study.with_value(point, "predicted", gain)
        predicted_points.append(point)
    return predicted_points, lines


def _remarks(points: Sequence[Point], lines: dict[str, Line], settings: BurstSettings) -> list[str]:
    share, saves = SHARE[settings.scale], SAVES[settings.scale]
    said = [f"`{way}`: {words}" for way, words in WAYS.items()]
    said.append(
        f"both tiers are FUSE tiers, the fast one of {FAST_BPS / 1e6:g} MB/s, the slow one of that "
        f"over the ratio; a state of {share * STATE_BYTES / 1e6:.0f} MB, {saves} saves, "
        f"{EVERY} steps of {1e3 * COMPUTE_S:g} ms, which sleep, before each"
    )
    for saver, line in lines.items():
        said.append(
            f"{saver}: a save to a tier takes {1e3 * line.cpu_s:.0f} ms and {1e3 * line.fast_s:.0f}"
            f" ms times the ratio; so {PUBLISHED_GAIN} times needs a ratio of "
            f"{line.from_ratio(PUBLISHED_GAIN):.1f}"
        )
        reached = [p["ratio"] for p in points if p["saver"] == saver and p["way"] == "burst"
                   and p["gain"] is not None and p["gain"] >= PUBLISHED_GAIN]  # fmt: skip
        least = f"from a ratio of {min(reached):g} on" if reached else "at none of these ratios"
        said.append(f"{saver}: `burst` was {PUBLISHED_GAIN} times ahead {least}")
    return said


# --- the picture ---------------------------------------------------------------------------------


def _drawn(figure: Any, points: Sequence[Point], lines: dict[str, Line]) -> None:
    """Draw the gain of each way by the ratio of the tiers, and the expected gain."""
    savers = list(dict.fromkeys(point["saver"] for point in points))
    for saver, axis in study.panels(figure, savers):
        mine = [p for p in points if p["saver"] == saver and p["gain"] is not None]
        study.lines_of(axis, [p for p in mine if p["way"] != "slow"], "ratio", "gain", _way)
        ratios = sorted({point["ratio"] for point in mine})
        with suppress(KeyError):
            gains = [lines[saver].gain(ratio) for ratio in ratios]
            axis.plot(ratios, gains, "k--", lw=0.9, label="expected of a burst buffer")
        axis.axhline(PUBLISHED_GAIN, color="grey", ls=":", lw=0.9, label="published: 2.6")
        axis.set(xlabel="fast tier's bandwidth / slow tier's", ylabel="slow's overhead / this")
        study.logarithmic(axis.yaxis, "x")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()


def _way(point: Point) -> str:
    return str(point["way"])


if __name__ == "__main__":
    _main()
