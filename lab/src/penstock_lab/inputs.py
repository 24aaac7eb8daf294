"""Studies of a training job's input: `bench read` (threads) and `bench train` (prefetch, and the
computing time of a step).  Chien et al. 2018.

Knows the cases and the pictures; the pipeline reads, places make the storage slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from penstock_lab import data, places, storage, study
from penstock_lab.pipeline import PipelineJob, PipelineResult, files_below
from penstock_lab.places import Place
from penstock_lab.study import (
    Case,
    KeptRuns,
    Measure,
    PhaseProgress,
    Point,
    Row,
    Study,
    StudyResult,
)

__all__ = [
    "READ",
    "READ_FILES",
    "TRAIN",
    "TRAIN_FILES",
    "InputsSettings",
    "loaded",
    "needed_to_read",
    "needed_to_train",
    "needs_to_read",
    "needs_to_train",
    "read",
    "relative_files",
    "train",
    "usual_threads",
]

TIMEOUT_S = 900.0
PICTURES = {"PIL": "making pictures"}
FRAMEWORKS = {
    "torch": "torch", "tf.data": "tensorflow", "alexnet": "torch",
    "alexnet-tensorflow": "tensorflow",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputsSettings:
    """model: the computation of a `train` step, one of pipeline.MODELS.  loaders: see
    pipeline.LOADERS.  threads: how many; None is the scale's own."""

    scale: str = "small"
    places: tuple[str, ...] = ("disk", "latency")
    repeats: int = 3
    seed: int = 1
    loaders: tuple[str, ...] = ("threads",)
    model: str = "sleep"
    threads: tuple[int, ...] | None = None


def loaded(
    place: Place,
    job: PipelineJob,
    before: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    copies: Sequence[Path] = (),
    fast: Place | None = None,
) -> tuple[PipelineResult, Row]:
    """Run a job cold, with files relative to the place; return the common results of every study.
    copies: files read in place of some, on a fast place: cold as well.

    Raises TierError: not cold; RunError.
    """
    files = [place.path / file for file in job.files]
    seen: list[float] = []

    def at_ready() -> None:
        if copies and fast is not None:
            places.made_cold(copies, fast)
        seen.append(places.made_cold(files, place))
        seen.extend(places.device(place))

    job = replace(job, files=tuple(map(str, files)))
    answer = places.answer_of(
        "penstock_lab.pipeline",
        asdict(job),
        place,
        at_ready,
        TIMEOUT_S,
        before,
        environment,
    )
    done = PipelineResult(**answer)
    resident, reads, read_bytes = seen
    reads_after, read_bytes_after = places.device(place)
    samples = max(1, done.samples)
    return done, {
        "samples": done.samples,
        "images_hz": done.samples / done.wall_s,
        "bandwidth_bps": done.read_bytes / done.wall_s,
        "wall_s": done.wall_s,
        "epoch_s": done.wall_s / job.epochs,
        "stall": done.wait_s / done.wall_s,
        "cpu_s": done.cpu_s / samples,
        "requests": (reads_after - reads) / samples if reads >= 0 else None,
        "amplification": (read_bytes_after - read_bytes) / max(1, done.read_bytes)
        if reads >= 0
        else None,
        "resident": resident,
    }


def relative_files(folder: Path) -> tuple[str, ...]:
    return tuple(str(path.relative_to(folder)) for path in files_below(folder))


# By study, and by the loader's owner: other loaders start processes or a framework for each case.
THREADS = {
    ("read", True): {"ci": (1, 8), "small": (1, 2, 4, 8, 16, 32), "full": (1, 2, 4, 8, 16, 32)},
    ("read", False): {"ci": (2,), "small": (1, 4), "full": (1, 4, 16)},
    ("train", True): {"ci": (4,), "small": (1, 4), "full": (1, 2, 4, 8, 16)},
}


def usual_threads(name: str, loader: str, scale: str) -> tuple[int, ...]:
    """Return the usual thread counts of a scale."""
    return THREADS[name, loader == "threads"][scale]


def _mark(name: str, settings: InputsSettings) -> dict[str, Any]:
    """Return the common settings of a folder's runs: further places, repeats, loaders and threads
    may be added."""
    values = {field.name: getattr(settings, field.name) for field in fields(InputsSettings)}
    return {"study": name} | {
        key: values[key] for key in values if key not in ("places", "repeats", "loaders", "threads")
    }


# --- bench read ----------------------------------------------------------------------------------

# Chien 2018: 16,384 JPEG files, median 112 kB; batches of 64 give 256 batches.
READ_FILES = {"ci": 64, "small": 256, "full": 16_384}
READ_WORKS = {"ci": ("read", "resize"), "small": ("read", "decode", "resize")}
READ_BATCH = 64


def _read_cases(settings: InputsSettings) -> list[Case]:
    cases = []
    works = READ_WORKS.get(settings.scale, READ_WORKS["small"])
    for place in settings.places:
        for loader in settings.loaders:
            own = loader == "threads"
            for work in works:
                # Without computing in a step, reading ahead can only pay beside computing threads.
                ahead = (0, 2) if work == "resize" else (0,)
                many = settings.threads or usual_threads("read", loader, settings.scale)
                for prefetch in ahead if own else (2,):
                    for threads in many:
                        cases.append({
                            "place": place, "loader": loader, "work": work, "prefetch": prefetch,
                            "threads": threads,
                        })  # fmt: skip
    return cases


def _read_derived(points: list[Point]) -> list[Point]:
    """Return each point beside the point with a single thread."""
    alone = {
        (point["place"], point["loader"], point["work"], point["prefetch"]): point["images_hz"]
        for point in points
        if point["threads"] == 1
    }
    derived = []
    for point in points:
        alone_hz = alone.get((point["place"], point["loader"], point["work"], point["prefetch"]))
        derived.append(
            study.with_value(point, "speedup", point["images_hz"] / alone_hz if alone_hz else None)
        )
    return derived


def _read_label(point: Point) -> str:
    return f"{point['work']}, prefetch {point['prefetch']}"


def _read_drawn(figure: Any, points: Sequence[Point]) -> None:
    wheres = list(dict.fromkeys((point["place"], point["loader"]) for point in points))
    names = [f"{place}, {loader}" for place, loader in wheres]
    labels = list(dict.fromkeys(map(_read_label, points)))
    for where, (_, axis) in zip(wheres, study.panels(figure, names), strict=True):
        mine = [point for point in points if (point["place"], point["loader"]) == where]
        study.lines_of(axis, mine, "threads", "images_hz", _read_label, labels=labels)
        axis.set(xlabel="threads", ylabel="images/s")
        study.logarithmic(axis.xaxis, "count", sorted({point["threads"] for point in points}))
        study.logarithmic(axis.yaxis, "count")
        axis.legend(fontsize=7, frameon=False)
    figure.tight_layout()


READ = Study(
    "read",
    "Reading with more threads",
    ("place", "loader", "work", "prefetch", "threads"),
    (
        Measure("images_hz", "images/s", "count", 1),
        Measure("bandwidth_bps", "bandwidth", "B/s", 1),
        Measure("speedup", "against 1 thread", "x", 1),
        storage.OF_CEILING,
        Measure("cpu_s", "CPU an image", "s", -1),
        Measure("requests", "requests/image", "count", -1),
        Measure("resident", "in memory before", "share"),
    ),
    _read_drawn,
    _read_derived,
)


def needed_to_read(folder: Path, settings: InputsSettings) -> int:
    """Return the most room of `read`: the files, and the ceilings' while measured."""
    sets = {"imagenet-chien": READ_FILES[settings.scale]}
    images = data.needed_bytes(sets, folder / "data", settings.seed)
    return images + storage.needed_bytes(settings.scale)


def needs_to_read(settings: InputsSettings) -> dict[str, str]:
    """See needs.look_for."""
    others = [loader for loader in settings.loaders if loader in FRAMEWORKS]
    return PICTURES | {FRAMEWORKS[loader]: f"--loader {loader}" for loader in others}


def read(
    folder: Path, settings: InputsSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Threads x work x place x prefetch, and the loaders of others.

    Raises TierError: no room, not cold, FOLDER holds other settings; MissingDependency.
    """
    kept = study.KeptRuns(folder, _mark("read", settings))
    machine = kept.machine()
    root = data.made(
        "imagenet-chien", folder / "data", READ_FILES[settings.scale], settings.seed, progress
    )
    ceilings = storage.ceilings_of(folder, settings.places, settings.scale, progress)
    files, cases = relative_files(root), _read_cases(settings)

    def run(place: Place, case: Case) -> Row:
        job = PipelineJob(
            files, case["threads"], case["work"], READ_BATCH, case["prefetch"],
            seed=settings.seed, side=64, loader=case["loader"],
        )  # fmt: skip
        return storage.beside_ceiling(loaded(place, job)[1], ceilings.get(place.name))

    return _found(READ, kept, root, settings, cases, run, machine, ceilings, progress)


def _found(
    which: Study, kept: KeptRuns, root: Path, settings: InputsSettings, cases: Sequence[Case],
    run: Any, machine: dict[str, Any], ceilings: dict[str, float], progress: PhaseProgress | None,
) -> StudyResult:  # fmt: skip
    size = sum(path.stat().st_size for path in files_below(root))
    rows, remarks = study.carried_out(
        kept, cases, run, lambda place: places.at(place, root, size, 200 << 20),
        repeats=settings.repeats, seed=settings.seed, progress=progress,
    )  # fmt: skip
    points = study.points_of(which, rows, cases)
    remarks += places.remarks_of(settings.places, rows)
    remarks += storage.remarks_of(ceilings)
    more = {"ceilings": ceilings, "data_bytes": size}
    return StudyResult(which, settings.scale, kept.settings, machine, points, rows, remarks, more)


# --- bench train ---------------------------------------------------------------------------------

# Chien 2018's mini-application: AlexNet on Caltech-101, files of 12 kB in the median, 224 x 224.
TRAIN_FILES = {"ci": 128, "small": 512, "full": 9144}
TRAIN_PREFETCH = {"ci": (0, 1), "small": (0, 1, 4), "full": (0, 1, 4)}
# Of a step, slept: from nothing to more than any tier here needs for a batch.
TRAIN_COMPUTE_S = {
    "ci": (0.0, 0.05, 0.2),
    "small": (0.0, 0.01, 0.03, 0.1, 0.3),
    "full": (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5),
}
TRAIN_BATCH, TRAIN_SIDE = 32, 224
# Seconds on a busy machine show storage, not processors.
TRAIN_WORK = {"ci": "read", "small": "resize", "full": "resize"}


def _train_cases(settings: InputsSettings) -> list[Case]:
    scale = settings.scale
    compute = TRAIN_COMPUTE_S[scale] if settings.model == "sleep" else (0.0, settings.model)
    return [
        {"place": place, "threads": threads, "prefetch": prefetch, "compute": compute_s}
        for place in settings.places
        for threads in settings.threads or usual_threads("train", "threads", scale)
        for prefetch in TRAIN_PREFETCH[scale]
        for compute_s in compute
    ]


def _train_derived(points: list[Point]) -> list[Point]:
    """Return each point beside the input alone, and the computing alone."""
    alone = {
        (point["place"], point["threads"]): point["epoch_s"]
        for point in points
        if not point["compute"] and not point["prefetch"]
    }
    derived = []
    for point in points:
        input_s = alone.get((point["place"], point["threads"]))
        computed_s = point["computed_s"]
        ratio = overlap = None
        if input_s and point["compute"]:
            ratio = computed_s / input_s
            hidden_s = input_s + computed_s - point["epoch_s"]
            overlap = max(0.0, min(1.0, hidden_s / min(input_s, computed_s)))
        point = study.with_value(point, "ratio", ratio)
        derived.append(study.with_value(point, "overlap", overlap))
    return derived


def _train_label(point: Point) -> str:
    threads = point["threads"]
    return f"{threads} thread{'s' * (threads != 1)}, prefetch {point['prefetch']}"


RATIO_TICKS: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30, 50, 100)


def _train_drawn(figure: Any, points: Sequence[Point]) -> None:
    names = list(dict.fromkeys(point["place"] for point in points))
    mine = [point for point in points if point["ratio"] is not None]
    for name, axis in study.panels(figure, names):
        here = sorted(
            (point for point in mine if point["place"] == name),
            key=lambda point: (point["threads"], point["prefetch"], point["ratio"]),
        )
        study.lines_of(axis, here, "ratio", "stall", _train_label, 100)
        least = min((point["ratio"] for point in here), default=0.1)
        most = max((point["ratio"] for point in here), default=10.0)
        ratios = [least * (most / least) ** (n / 50) for n in range(51)]
        axis.plot(ratios, [100 / (1 + r) for r in ratios], ":k", label="no overlap")
        axis.plot(ratios, [100 * max(0, 1 - r) for r in ratios], "--k", label="all hidden")
        axis.set(xscale="log", xlabel="compute / input", ylabel="stall fraction, %")
        ticks = [tick for tick in RATIO_TICKS if least <= tick <= most]
        if len(ticks) < 2:
            ticks = [least, most]
        axis.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
        axis.xaxis.minorticks_off()
        axis.legend(fontsize=6, frameon=False)
    figure.tight_layout()


TRAIN = Study(
    "train",
    "Input beside computing",
    ("place", "threads", "prefetch", "compute"),
    (
        Measure("epoch_s", "epoch", "s", -1),
        Measure("stall", "stall fraction", "share", -1),
        Measure("ratio", "compute / input", "x"),
        Measure("overlap", "overlap", "share", 1),
        Measure("images_hz", "images/s", "count", 1),
        storage.OF_CEILING,
        Measure("computed_s", "computed", "s"),
        Measure("resident", "in memory before", "share"),
    ),
    _train_drawn,
    _train_derived,
)


def needed_to_train(folder: Path, settings: InputsSettings) -> int:
    """Return the most room of `train`: the files, or before the files the ceilings'."""
    sets = {"caltech101": TRAIN_FILES[settings.scale]}
    images = data.needed_bytes(sets, folder / "data", settings.seed)
    return max(images, storage.needed_bytes(settings.scale))


def needs_to_train(settings: InputsSettings) -> dict[str, str]:
    """See needs.look_for."""
    if settings.model not in FRAMEWORKS:
        return PICTURES
    return PICTURES | {FRAMEWORKS[settings.model]: f"--model {settings.model}"}


def train(
    folder: Path, settings: InputsSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Prefetch x threads x place x how long a step computes.

    Raises TierError: no room, not cold, FOLDER holds other settings; MissingDependency.
    """
    kept = study.KeptRuns(folder, _mark("train", settings))
    machine = kept.machine()
    ceilings = storage.ceilings_of(folder, settings.places, settings.scale, progress)
    root = data.made(
        "caltech101", folder / "data", TRAIN_FILES[settings.scale], settings.seed, progress
    )
    files, cases = relative_files(root), _train_cases(settings)

    def run(place: Place, case: Case) -> Row:
        is_model = isinstance(case["compute"], str)
        job = PipelineJob(
            files, case["threads"], "resize" if is_model else TRAIN_WORK[settings.scale],
            TRAIN_BATCH, case["prefetch"],
            0.0 if is_model else case["compute"], seed=settings.seed, side=TRAIN_SIDE,
            model=case["compute"] if is_model else "sleep",
        )  # fmt: skip
        done, row = loaded(place, job)
        row |= {"computed_s": done.compute_s}
        return storage.beside_ceiling(row, ceilings.get(place.name))

    return _found(TRAIN, kept, root, settings, cases, run, machine, ceilings, progress)
