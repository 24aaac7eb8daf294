"""`bench mlperf`: accelerator utilisation (AU) for MLPerf Storage's three training workloads.

Knows the published shapes and DLIO's definition of AU; computes nothing: a step sleeps, as in DLIO.
Samples are files that dlio_benchmark can read as well: dlio_benchmark can run beside, over equal
bytes.
"""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np

from penstock.errors import RunError, TierError
from penstock.feed.tfrecord import framed
from penstock_lab import inputs, places, storage, study
from penstock_lab.data import example_of
from penstock_lab.folders import refuse_without_room, scratch, work_in
from penstock_lab.pipeline import PipelineJob, PipelineResult
from penstock_lab.places import Place
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = [
    "ACCELERATORS",
    "STUDY",
    "WORKLOADS",
    "MlperfSettings",
    "Workload",
    "measured",
    "needed_bytes",
    "needs",
    "utilisation",
]

ACCELERATORS = ("a100", "h100")
# By program; dlio_benchmark is compared with itself, as our program is compared with
# dlio_benchmark.
OURS, DLIO, DLIO_AGAIN = "penstock", "dlio_benchmark", "dlio_benchmark again"
POOL_BYTES = 16 << 20  # samples are cut from the pool


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload of dlio_benchmark 2.0's configurations and MLPerf Storage 2.0's rules: bytes of a
    sample, samples of a batch and of a file, seconds of computing in a step, the demanded AU.
    calls, buffer: of TFRecord files, batches parsed at once, records in a shuffle.  side: of the
    picture given in a sample's place.

    sizes: of each scale: the batch, the divisor of a sample's bytes, and the steps.  Where a scale
    changes batch or bytes, the computing of a step changes alike: the bytes requested per second of
    computing stay.
    """

    name: str
    loader: str
    suffix: str
    sample_bytes: int
    deviation_bytes: int
    file_samples: int
    batch: int
    threads: int
    target: float
    compute_s: dict[str, float]
    calls: int
    buffer: int
    side: int
    sizes: dict[str, tuple[int, int, int]]

    @property
    def prefetch(self) -> int:
        """Return dlio_benchmark's two batches; torch counts batches for each process."""
        return max(1, 2 // self.threads) if self.loader == "torch" else 2

    @property
    def ahead(self) -> int:
        """Return the batches that may be read before the first step ends: waiting batches, batches
        being parsed, and a batch being made."""
        if self.loader == "torch":
            return self.threads * self.prefetch
        return self.prefetch + self.calls + 1


# MLPerf's rules demand at least 500 steps an epoch.
WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("unet3d", "torch", "npz", 146_600_628, 68_341_808, 1, 7, 4, 0.9,
                 {"a100": 0.636, "h100": 0.323}, 1, 0, 1448,
                 {"ci": (1, 16, 24), "small": (1, 1, 32), "full": (7, 1, 500)}),
        Workload("resnet50", "tfrecord", "tfrecord", 114_660, 0, 1251, 400, 8, 0.9,
                 {"a100": 0.435, "h100": 0.224}, 8, 0, 387,
                 {"ci": (25, 1, 24), "small": (400, 1, 25), "full": (400, 1, 500)}),
        Workload("cosmoflow", "tfrecord", "tfrecord", 2_828_486, 71_311, 1, 1, 4, 0.7,
                 {"a100": 0.00551, "h100": 0.0035}, 1, 2, 1681,
                 {"ci": (1, 1, 48), "small": (1, 1, 400), "full": (1, 1, 500)}),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MlperfSettings:
    """See study.  dlio: the program dlio_benchmark, run before and after each case; "": not."""

    scale: str = "small"
    places: tuple[str, ...] = ("disk", "latency")
    repeats: int = 3
    seed: int = 1
    workloads: tuple[str, ...] = tuple(WORKLOADS)
    accelerators: tuple[str, ...] = ACCELERATORS
    dlio: str = ""


def utilisation(done: PipelineResult, compute_s: float, skipped: int = 1) -> float | None:
    """Return DLIO's AU: computing over the time between the ends of the first and the last step.

    skipped: steps skipped at the beginning; DLIO skips one.  None: no step remains.
    """
    counted = len(done.ends_s) - skipped
    if counted < 1:
        return None
    return counted * compute_s / (done.ends_s[-1] - done.ends_s[skipped - 1])


# --- the samples ---------------------------------------------------------------------------------


def _sizes(workload: Workload, scale: str, seed: int) -> list[int]:
    """Bytes of each sample: quantiles of a normal distribution, none below a tenth of the mean."""
    batch, divisor, steps = workload.sizes[scale]
    n = batch * steps
    mean, deviation = workload.sample_bytes / divisor, workload.deviation_bytes / divisor
    normal = NormalDist()
    sizes = [
        round(max(mean / 10, mean + deviation * normal.inv_cdf((number + 0.5) / n)))
        for number in range(n)
    ]
    random.Random(seed).shuffle(sizes)
    return sizes


def _place_of(workload: Workload, folder: Path, settings: MlperfSettings) -> Path:
    return folder / "data" / f"{workload.name}-{settings.scale}-{settings.seed}"


def needed_bytes(folder: Path, settings: MlperfSettings) -> int:
    """Return the most room of `measured`: the missing data sets, or before the data sets the
    ceilings'."""
    sets = sum(
        sum(_sizes(workload, settings.scale, settings.seed))
        for workload in map(WORKLOADS.__getitem__, settings.workloads)
        if not _place_of(workload, folder, settings).exists()
    )
    return max(sets, storage.needed_bytes(settings.scale))


def needs(settings: MlperfSettings) -> dict[str, str]:
    """See needs.look_for."""
    framework = {"torch": "torch", "tfrecord": "tensorflow"}
    packages: dict[str, str] = {}
    for name in settings.workloads:
        packages.setdefault(framework[WORKLOADS[name].loader], f"--workload {name}")
    return packages | ({settings.dlio: "--dlio"} if settings.dlio else {})


def _made(
    workload: Workload, folder: Path, settings: MlperfSettings, progress: PhaseProgress | None
) -> tuple[Path, ...]:
    """Return the files of a workload, relative to the folder `data`; make missing files.

    Raises TierError: no room.
    """
    place = _place_of(workload, folder, settings)
    sizes = _sizes(workload, settings.scale, settings.seed)
    if not place.exists():
        refuse_without_room(place, sum(sizes))
        with scratch(place.with_name(f"{place.name}.partial")) as work:
            draft = work / "set"
            try:
                (draft / "train").mkdir(parents=True)
                (draft / "valid").mkdir()  # dlio_benchmark looks for both
                _write(workload, draft / "train", sizes, settings.seed, progress)
                draft.replace(place)
            except OSError as error:
                where = error.filename or draft
                raise TierError(f"{where}: cannot be written: {error.strerror}") from error
    return tuple(path.relative_to(folder / "data") for path in sorted((place / "train").iterdir()))


def _write(
    workload: Workload,
    folder: Path,
    sizes: Sequence[int],
    seed: int,
    progress: PhaseProgress | None,
) -> None:
    """Write files with the published number of samples, or so few that each thread has a file."""
    chance = random.Random(seed)
    pool = chance.randbytes(POOL_BYTES)
    each = min(workload.file_samples, math.ceil(len(sizes) / workload.threads))
    for number, first in enumerate(range(0, len(sizes), each)):
        if progress:
            progress(f"making {workload.name}", first / len(sizes))
        with open(folder / f"img_{number:06}.{workload.suffix}", "wb") as file:
            for size in sizes[first : first + each]:
                start = chance.randrange(POOL_BYTES)
                _SAMPLES[workload.suffix](file, pool, start, size)


def _npz(file: IO[bytes], pool: bytes, start: int, size: int) -> None:
    """Write a square of bytes as the array x, as dlio_benchmark makes and reads the files."""
    side = math.isqrt(size)
    with zipfile.ZipFile(file, "w") as archive, archive.open("x.npy", "w") as member:
        shape = {"descr": "|u1", "fortran_order": False, "shape": (side, side, 1)}
        np.lib.format.write_array_header_1_0(member, shape)
        for piece in _pieces(pool, start, side * side):
            member.write(piece)


def _record(file: IO[bytes], pool: bytes, start: int, size: int) -> None:
    data = b"".join(_pieces(pool, start, size))
    file.write(framed(example_of({"image": data, "size": math.isqrt(size)})))


def _pieces(pool: bytes, start: int, size: int) -> Iterator[bytes]:
    while size:
        piece = pool[start : start + size]
        yield piece
        size -= len(piece)
        start = 0


_SAMPLES = {"npz": _npz, "tfrecord": _record}


# --- the runs ------------------------------------------------------------------------------------

STUDY = Study(
    "mlperf",
    "Accelerator utilisation of MLPerf Storage's workloads",
    ("place", "workload", "accelerator", "by"),
    (
        Measure("au", "AU", "share", 1),
        Measure("target", "AU asked for", "share"),
        Measure("against_dlio", "over DLIO's", "x"),
        Measure("au_settled", "AU without reading ahead", "share", 1),
        Measure("settled_against_dlio", "that over DLIO's", "x"),
        Measure("images_hz", "samples/s", "count", 1),
        Measure("bandwidth_bps", "bandwidth", "B/s", 1),
        Measure("asked_bps", "asked for", "B/s"),
        storage.OF_CEILING,
        Measure("steps", "steps", "count"),
        Measure("resident", "in memory before", "share"),
    ),
)


def measured(
    folder: Path, settings: MlperfSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Measure each workload for each accelerator, on each place; beside dlio_benchmark where named.

    Raises TierError: no room, not cold, FOLDER holds other settings.
    """
    mark = {"study": "mlperf", "scale": settings.scale, "seed": settings.seed}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    ceilings = storage.ceilings_of(folder, settings.places, settings.scale, progress)
    files = {
        name: _made(WORKLOADS[name], folder, settings, progress) for name in settings.workloads
    }
    cases = [
        {"place": place, "workload": name, "accelerator": accelerator, "by": by}
        for place in settings.places
        for name in settings.workloads
        for accelerator in settings.accelerators
        for by in ((DLIO, OURS, DLIO_AGAIN) if settings.dlio else (OURS,))
    ]

    def run(place: Place, case: Case) -> Row:
        workload = WORKLOADS[case["workload"]]
        arguments = files[workload.name], workload, case["accelerator"], settings
        if case["by"] == OURS:
            row = _by_pipeline(place, *arguments)
        else:
            with work_in(folder) as work:
                row = _by_dlio(place, work / "dlio", *arguments)
        asked_bps = _asked_bps(workload, case["accelerator"], settings.scale)
        # Of the steps counted in AU, for every program.
        moved_bps = (row["au"] or 0.0) * asked_bps
        row |= {"target": workload.target, "asked_bps": asked_bps}
        return storage.beside_ceiling(row, ceilings.get(place.name), moved_bps)

    rows, remarks = study.carried_out(
        kept, cases, run, lambda name: places.at(name, folder / "data"),
        repeats=settings.repeats, seed=settings.seed, progress=progress, together="by",
    )  # fmt: skip
    which = Study(STUDY.name, STUDY.title, STUDY.factors, STUDY.measures, _drawn, _derived)
    points = study.points_of(which, rows, cases)
    remarks += places.remarks_of(settings.places, rows)
    remarks += storage.remarks_of(ceilings)
    remarks += [_told(WORKLOADS[name], settings.scale) for name in settings.workloads]
    return StudyResult(
        which, settings.scale, mark, machine, points, rows, remarks, {"ceilings": ceilings}
    )


def _told(workload: Workload, scale: str) -> str:
    batch, divisor, steps = workload.sizes[scale]
    of = "as published" if batch == workload.batch else f"where {workload.batch} are published"
    smaller = f", bytes and computing of a sample divided by {divisor}" if divisor > 1 else ""
    return (
        f"{workload.name}: {steps} steps, each of {batch} sample{'s' * (batch != 1)} {of}{smaller};"
        f" up to {workload.ahead} batches are read during the first step, which is not counted"
    )


def _derived(points: list[Point]) -> list[Point]:
    """Return ours and DLIO's second run beside DLIO's first of each case: the ratio of two runs of
    one program shows the precision of a ratio of two programs."""
    theirs = {
        (point["place"], point["workload"], point["accelerator"]): point
        for point in points
        if point["by"] == DLIO
    }
    derived = []
    for point in points:
        other = theirs.get((point["place"], point["workload"], point["accelerator"]))
        for key, against in (("au", "against_dlio"), ("au_settled", "settled_against_dlio")):
            ratio = None
            if other and point["by"] != DLIO and point[key] and other[key]:
                ratio = point[key] / other[key]
            point = study.with_value(point, against, ratio)
        derived.append(point)
    return derived


def _compute_s(workload: Workload, accelerator: str, scale: str) -> float:
    batch, divisor, _ = workload.sizes[scale]
    return workload.compute_s[accelerator] * batch / workload.batch / divisor


def _asked_bps(workload: Workload, accelerator: str, scale: str) -> float:
    """Return the bytes requested by a second of computing."""
    batch, divisor, _ = workload.sizes[scale]
    return batch * workload.sample_bytes / divisor / _compute_s(workload, accelerator, scale)


def _by_pipeline(
    place: Place, files: Sequence[Path], workload: Workload, accelerator: str,
    settings: MlperfSettings,
) -> Row:  # fmt: skip
    batch, _, steps = workload.sizes[settings.scale]
    compute_s = _compute_s(workload, accelerator, settings.scale)
    job = PipelineJob(
        tuple(map(str, _ordered(workload, files, settings.seed))), workload.threads, "stand-in",
        batch, workload.prefetch, compute_s, steps=steps, seed=settings.seed, side=workload.side,
        loader=workload.loader, is_shuffled=False, calls=workload.calls, buffer=workload.buffer,
        record_bytes=sum(_sizes(workload, settings.scale, settings.seed)) / (batch * steps),
    )  # fmt: skip
    done, row = inputs.loaded(place, job)
    return row | {
        "au": utilisation(done, compute_s),
        "au_settled": utilisation(done, compute_s, 1 + workload.ahead),
        "steps": len(done.ends_s),
    }


def _ordered(workload: Workload, files: Sequence[Path], seed: int) -> list[Path]:
    """Return the files in dlio_benchmark's order: the sampler for PyTorch shuffles with NumPy's old
    generator; files of many records are read in the order of their names."""
    order = list(range(len(files)))
    if workload.loader == "torch":
        np.random.RandomState(seed).shuffle(order)
    return [files[number] for number in order]


def _by_dlio(
    place: Place, output: Path, files: Sequence[Path], workload: Workload, accelerator: str,
    settings: MlperfSettings,
) -> Row:  # fmt: skip
    """The same files, batch and computing by dlio_benchmark's own program."""
    batch, divisor, steps = workload.sizes[settings.scale]
    there = [place.path / path for path in files]
    overrides = {
        "workflow.generate_data": False,
        "workflow.checkpoint": False,
        "dataset.data_folder": there[0].absolute().parent.parent,
        "dataset.num_files_train": len(there),
        "dataset.num_samples_per_file": batch * steps // len(there),
        "dataset.record_length": workload.sample_bytes // divisor,
        "dataset.record_length_stdev": workload.deviation_bytes // divisor,
        "reader.batch_size": batch,
        "reader.read_threads": workload.threads,
        "train.epochs": 1,
        "train.computation_time": _compute_s(workload, accelerator, settings.scale),
        "train.seed": settings.seed,
    }
    words = [settings.dlio, f"workload={workload.name}_{accelerator}", f"hydra.run.dir={output}"]
    words += [f"++workload.{key}={value}" for key, value in overrides.items()]
    resident, said = places.made_cold(there, place), b""
    try:
        # dlio_benchmark prints a line each step: no process is to be woken up by the line.
        with TemporaryFile() as log:
            try:
                with _in_place(words, place, log) as program:
                    program.communicate(b"go\n", timeout=inputs.TIMEOUT_S)
            finally:
                log.seek(0)
                said = log.read()
        summary = json.loads((output / "summary.json").read_bytes())["metric"]
        return {
            "au": float(summary["train_au_mean_percentage"]) / 100,
            "au_settled": _settled(
                output, workload, _compute_s(workload, accelerator, settings.scale)
            ),
            "images_hz": float(summary["train_throughput_mean_samples_per_second"]),
            "steps": steps,
            "resident": resident,
        }
    except subprocess.TimeoutExpired as error:
        raise RunError(f"dlio_benchmark: did not end in {inputs.TIMEOUT_S:.0f} s") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        lines = said.decode(errors="replace").strip().splitlines()
        raise RunError(f"dlio_benchmark: {lines[-1] if lines else error}") from error


def _settled(output: Path, workload: Workload, compute_s: float) -> float | None:
    """Return the AU without reading ahead, from the seconds of each step in the output: work
    between steps, a line of the log each, is not included."""
    try:
        dlio_output = json.loads((output / "0_output.json").read_bytes())
        steps_s = [float(step) for step in dlio_output["1"]["proc"]["block1"]][1 + workload.ahead :]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return len(steps_s) * compute_s / sum(steps_s) if steps_s else None


@contextmanager
def _in_place(
    words: Sequence[str], place: Place, log: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """Start a program that begins after reading a line, by then in the place's group."""
    program = subprocess.Popen(
        ["sh", "-c", 'read -r _ && exec "$@"', "sh", *words],
        stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT,
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}, start_new_session=True,
    )  # fmt: skip
    try:
        if place.group is not None:
            place.group.add(program.pid)
        yield program
    finally:
        places.ended(program)


def _drawn(figure: Any, points: Sequence[Point]) -> None:
    """Draw a bar for each, and a line at the demanded AU."""
    names = list(dict.fromkeys(point["place"] for point in points))
    for name, axis in study.panels(figure, names):
        mine = [point for point in points if point["place"] == name]
        labels = list(dict.fromkeys((point["workload"], point["accelerator"]) for point in mine))
        programs = list(dict.fromkeys(point["by"] for point in points))
        for number, by in enumerate(programs):
            width = 0.8 / len(programs)
            shift = width * (number - (len(programs) - 1) / 2)
            shown = [point for point in mine if point["by"] == by]
            places_x = [
                labels.index((point["workload"], point["accelerator"])) + shift for point in shown
            ]
            spread = [
                [100 * abs(point["au"] - (side["au"] or point["au"])) for point, side in sides]
                for sides in (
                    [(point, point.least) for point in shown],
                    [(point, point.most) for point in shown],
                )
            ]
            heights = [100 * point["au"] for point in shown]
            axis.bar(places_x, heights, 0.95 * width, label=by, yerr=spread, capsize=3)
        for number, (workload, _) in enumerate(labels):
            asked = 100 * WORKLOADS[workload].target
            label = "asked for" if not number else None
            axis.plot([number - 0.4, number + 0.4], [asked, asked], "k--", lw=1, label=label)
        axis.set(ylabel="AU, %", ylim=(0, 105))
        ticks = [f"{workload}\n{accelerator}" for workload, accelerator in labels]
        axis.set_xticks(range(len(labels)), ticks, fontsize=7)
        axis.grid(alpha=0.3, axis="y")
        axis.legend(fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(0, -0.12), ncol=2)
    figure.tight_layout()
