"""`bench window`: windows of a recording beside the device's own counters, and their cost.
tf-Darshan's STREAM (Chien et al. 2020).

Knows the cases and a sampler; the pipeline reads and makes the windows.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from penstock_lab import data, inputs, places, storage, study
from penstock_lab.folders import work_in
from penstock_lab.pipeline import PipelineJob, PipelineResult, files_below
from penstock_lab.places import Place
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = [
    "STUDY",
    "WindowsSettings",
    "data_bytes",
    "deviation_of",
    "measured",
    "needed_bytes",
    "needs",
]

# The paper's: 16 threads, 10 batches ahead, a window every 5 steps, batches of 128; 100 steps of
# ImageNet's files and 50 of the malware's.  (files, batch) at each scale.
SETS = {
    "imagenet-stream": {"ci": (120, 4), "small": (1600, 32), "full": (12_800, 128)},
    "malware": {"ci": (20, 1), "small": (160, 4), "full": (1600, 32)},
}
THREADS, PREFETCH, WINDOW_STEPS = 16, 10, 5
SAMPLE_S = {"ci": 0.05, "small": 0.25, "full": 1.0}
SEGMENT_BYTES = 1 << 20  # TensorFlow reads files in segments of about 1 MB
# Reading is ahead of the steps: in the last windows of a job the device has nothing left to give.
LEAST_OF_MEAN = 0.1
RECORDERS = ("none", "whole run", "windows")
SHARES = (4, 1)  # overhead by the number of files: every fourth, and all

STUDY = Study(
    "window",
    "Windows beside the device, and what they cost",
    ("place", "data", "files", "recorder"),
    (
        Measure("overhead", "longer than without", "share", -1),
        Measure("epoch_s", "reading", "s", -1),
        Measure("bandwidth_bps", "bandwidth", "B/s", 1),
        storage.OF_CEILING,
        Measure("deviation", "windows off the device, median", "share", -1),
        Measure("deviation_most", "at most", "share", -1),
        Measure("seen", "bytes recorded", "share"),
        Measure("windows", "windows", "count"),
        Measure("window_s", "to begin and end them", "s", -1),
        Measure("report_s", "report afterwards", "s", -1),
    ),
)


@dataclass(frozen=True, slots=True)
class WindowsSettings:
    """See study."""

    scale: str = "small"
    places: tuple[str, ...] = ("seek",)
    repeats: int = 5
    seed: int = 1


def needed_bytes(folder: Path, settings: WindowsSettings) -> int:
    """Return the most room of `measured`: both data sets, or before the data sets the ceilings'."""
    sets = {kind: sizes[settings.scale][0] for kind, sizes in SETS.items()}
    of_data = data.needed_bytes(sets, folder / "data", settings.seed)
    return max(of_data, storage.needed_bytes(settings.scale))


def needs(settings: WindowsSettings) -> dict[str, str]:
    """See needs.look_for."""
    return inputs.PICTURES


def measured(
    folder: Path, settings: WindowsSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """STREAM over both data sets, recorded in three ways.

    Raises TierError: no room, not cold, FOLDER holds other settings; MissingDependency.
    """
    mark = {"study": "window", "scale": settings.scale, "seed": settings.seed}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    ceilings = storage.ceilings_of(folder, settings.places, settings.scale, progress)
    sets = {
        kind: data.made(
            kind, folder / "data", sizes[settings.scale][0], settings.seed, progress
        )
        for kind, sizes in SETS.items()
    }  # fmt: skip
    cases = [
        {
            "place": place,
            "data": kind,
            "files": sizes[settings.scale][0] // share,
            "recorder": recorder,
        }
        for place in settings.places
        for kind, sizes in SETS.items()
        for share in SHARES
        for recorder in RECORDERS
    ]

    def run(place: Place, case: Case) -> Row:
        with work_in(folder) as work:
            row = _measured(place, work / "recorded", sets[case["data"]], case, settings)
        return storage.beside_ceiling(row, ceilings.get(place.name))

    rows, remarks = study.carried_out(
        kept, cases, run, lambda name: places.at(name, folder / "data"),
        repeats=settings.repeats, seed=settings.seed, progress=progress,
    )  # fmt: skip
    # The last run of each data set, whole: a continued study has earlier runs, too.
    curves = {
        row["data"]: row["curve"]
        for row in rows
        if row.get("curve") and row["files"] == SETS[row["data"]][settings.scale][0]
    }
    drawn = (lambda figure, points: _drawn(figure, curves)) if curves else None
    which = replace(STUDY, draw=drawn, derive=_derived)
    points = study.points_of(which, rows, cases)
    remarks += places.remarks_of(settings.places, rows)
    remarks += storage.remarks_of(ceilings)
    remarks.append(
        f"the device is sampled every {SAMPLE_S[settings.scale]:g} s: windows shorter than two "
        "samples are compared together with the next ones, and one in which the device had next to "
        "nothing to do is not"
    )
    return StudyResult(
        which, settings.scale, mark, machine, points, rows, remarks, {"curves": curves}
    )


def _derived(points: list[Point]) -> list[Point]:
    """Return each point beside the runs without a recorder."""
    plain = {
        (point["place"], point["data"], point["files"]): point["epoch_s"]
        for point in points
        if point["recorder"] == "none"
    }
    derived = []
    for point in points:
        without = plain.get((point["place"], point["data"], point["files"]))
        if not without or point["recorder"] == "none":
            derived.append(study.with_value(point, "overhead", None))
            continue
        sides = point.values, point.least, point.most
        share, least, most = (
            side["epoch_s"] / without - 1 if side["epoch_s"] is not None else None for side in sides
        )
        derived.append(study.with_value(point, "overhead", share, (least, most)))
    return derived


def _measured(
    place: Place, recorded: Path, root: Path, case: Case, settings: WindowsSettings
) -> Row:  # fmt: skip
    most, batch = SETS[case["data"]][settings.scale]
    files = files_below(root)[:: most // case["files"]]
    names = tuple(str(path.relative_to(root.parent)) for path in files)
    job = PipelineJob(
        names, THREADS, "read", batch, PREFETCH, seed=settings.seed, read_bytes=SEGMENT_BYTES
    )
    before: Sequence[str] = ()
    if case["recorder"] == "whole run":
        before = (sys.executable, "-m", "penstock", "run", "-q", "-o", str(recorded), "--")
    elif case["recorder"] == "windows":
        recorded.mkdir()
        job = replace(job, window_steps=WINDOW_STEPS, record=str(recorded))
    with _Sampler(place, SAMPLE_S[settings.scale]) as sampler:
        done, row = inputs.loaded(place, job, before)
    done.windows = _of_steps(done)
    row["windows"] = len(done.windows) or (1 if before else None)
    if case["recorder"] == "none":
        return row
    begun = time.perf_counter()
    folders = [Path(window) for window in done.windows] or [recorded]
    seen = [data_bytes(folder) for folder in folders]
    row["report_s"] = time.perf_counter() - begun
    row["seen"] = sum(seen) / done.read_bytes
    if done.windows:
        row["window_s"] = done.window_s
        together = joined(_spans(done), seen, 2 * SAMPLE_S[settings.scale])
        deviations = deviation_of(together, sampler.samples)
        if deviations:
            row |= {"deviation": median(deviations), "deviation_most": max(deviations)}
        row["curve"] = _curve(together, sampler.samples)
    return row


def data_bytes(folder: Path) -> int:
    """Return the bytes read from data files, as recorded.  Reads through stdio show there, or in
    the calls below too: the larger sum counts."""
    from penstock.runs.run import open_run

    with open_run(folder) as run:
        ((n_bytes,),) = run.sql(
            "WITH layers AS (SELECT file, layer, sum(moved_bytes) AS bytes FROM events "
            "JOIN files USING (file) WHERE op_group = 'read' AND files.path_class = 'data' "
            "GROUP BY file, layer), each AS (SELECT max(bytes) AS bytes FROM layers GROUP BY file) "
            "SELECT coalesce(sum(bytes), 0) FROM each"
        )
    return int(n_bytes)


def _of_steps(done: PipelineResult) -> list[str]:
    """Return the windows, without a window begun after the last step."""
    return done.windows[: -(-len(done.ends_s) // WINDOW_STEPS)]


def _spans(done: PipelineResult) -> list[tuple[float, float]]:
    """Return the time of each open window: from the last step before to the window's last step."""
    first = done.ends_s[0] - done.waits_s[0]
    marks = [first, *done.ends_s[WINDOW_STEPS - 1 :: WINDOW_STEPS]]
    if len(marks) < len(done.windows) + 1:
        marks.append(done.ends_s[-1])
    return list(pairwise(marks))[: len(done.windows)]


class _Sampler:
    """Samples the device's bytes so far, at intervals."""

    def __init__(self, place: Place, every_s: float) -> None:
        self.samples: list[tuple[float, int]] = []
        self._place, self._every_s = place, every_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            self.samples.append((time.time(), places.device(self._place)[1]))
            self._is_over.wait(self._every_s)
        self.samples.append((time.time(), places.device(self._place)[1]))

    def __enter__(self) -> _Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._is_over.set()
        self._thread.join()


Windows = Sequence[tuple[tuple[float, float], int]]  # from when to when, and the bytes seen


def deviation_of(windows: Windows, samples: Sequence[tuple[float, int]]) -> list[float]:
    """Return the distance of each window's bytes from the device's bytes in the time, as a share of
    the device's.

    samples: (time, bytes so far); between two samples the device is taken to be even.  Windows with
    an almost idle device are skipped.
    """
    given = [_at(samples, end) - _at(samples, start) for (start, end), _ in windows]
    least = LEAST_OF_MEAN * sum(given) / max(1, len(given))
    return [
        abs(read_bytes / moved - 1)
        for (_, read_bytes), moved in zip(windows, given, strict=True)
        if moved > least
    ]


def joined(spans: Sequence[tuple[float, float]], seen: Sequence[int], least_s: float) -> Windows:
    """Join neighbours, until long enough; a shorter rest at the end is dropped: read-ahead before a
    short window is not in the window's time."""
    windows = []
    begun, read_bytes = None, 0
    for (start, end), n_bytes in zip(spans, seen, strict=True):
        begun = start if begun is None else begun
        read_bytes += n_bytes
        if end - begun >= least_s:
            windows.append(((begun, end), read_bytes))
            begun, read_bytes = None, 0
    return windows


def _at(samples: Sequence[tuple[float, int]], when: float) -> float:
    place = bisect_left(samples, (when, -1))
    if not place:
        return samples[0][1]
    if place == len(samples):
        return samples[-1][1]
    (before, low), (after, high) = samples[place - 1], samples[place]
    return low + (high - low) * (when - before) / max(1e-9, after - before)


def _curve(windows: Windows, samples: Sequence[tuple[float, int]]) -> dict[str, Any] | None:
    """Return the compared data, for drawing; None: no window is long enough."""
    if not windows:
        return None
    (start, _), _ = windows[0]
    (_, over), _ = windows[-1]
    return {
        "windows": [
            ((begun + end) / 2 - start, n_bytes / max(1e-9, end - begun))
            for (begun, end), n_bytes in windows
        ],
        "device": [
            (after - start, (high - low) / (after - before))
            for (before, low), (after, high) in pairwise(samples)
            if before >= start - 1 and after <= over + 1
        ],
    }


def _drawn(figure: Any, curves: dict[str, Any]) -> None:
    for kind, axis in study.panels(figure, list(curves)):
        for name, style in (("device", "-"), ("windows", "o")):
            axis.plot(
                [at for at, _ in curves[kind][name]],
                [rate / 1e6 for _, rate in curves[kind][name]],
                style, label=name, markersize=4,
            )  # fmt: skip
        axis.set(xlabel="s", ylabel="MB/s")
        axis.set_ylim(bottom=0)
        axis.legend(frameon=False)
        axis.grid(alpha=0.3)
    figure.tight_layout()
