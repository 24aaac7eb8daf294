"""`bench control`: a job that is not I/O-bound must be reported as such.  Layton 2021, CIFAR-10.

Knows the job (a program of `places.answer_of`: CIFAR-10 in memory, a small network, a checkpoint an
epoch) and the right words of a recording.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError, RunError
from penstock_lab import data, places, study, windows
from penstock_lab.folders import work_in
from penstock_lab.places import Place
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = [
    "STUDY",
    "ControlSettings",
    "darshan_library",
    "kept_by_darshan",
    "measured",
    "needed_bytes",
    "needs",
]

RECORDS = {"ci": 640, "small": 10_000, "full": 60_000}
EPOCHS = {"ci": 3, "small": 5, "full": 10}
BATCH = 128
# The room of Darshan 3.2, the article's version, for each kind of record; and the folders that it
# skips.
DARSHAN_FILES = 1024
DARSHAN_SKIPS = ("etc", "dev", "usr", "bin", "boot", "lib", "opt", "sbin", "sys", "proc", "var")


def _drawn(figure: Any, points: Sequence[Point]) -> None:
    """Plot the time of the training, and the bytes moved."""
    titles = ["training", "bytes, of the recorded job"]
    for title, axis in study.panels(figure, titles):
        if title == "training":
            study.bars_of(axis, points, "wall_s", lambda point: f"recorder: {point['recorder']}")
            axis.set(xlabel="s")
            continue
        recorded_points = [point for point in points if point["checkpoint_bytes"] is not None]
        for number, key in enumerate(("data_bytes", "checkpoint_bytes")):
            axis.barh(
                [number] * len(recorded_points), [point[key] / 1e6 for point in recorded_points]
            )
        axis.set_yticks([0, 1], ["data read", "checkpoints"], fontsize=8)
        axis.invert_yaxis()
        axis.set(xlabel="MB")
        axis.grid(alpha=0.3, axis="x")
    figure.tight_layout()


STUDY = Study(
    "control",
    "A job that is not I/O-bound",
    ("place", "recorder"),
    (
        Measure("wall_s", "training", "s", -1),
        Measure("stall", "stall fraction", "share", -1),
        Measure("is_io_bound", "called I/O-bound", "count"),
        Measure("checkpoints", "checkpoints named", "count"),
        Measure("checkpoints_made", "made", "count"),
        Measure("checkpoint_bytes", "in them", "B"),
        Measure("checkpoint_bytes_made", "on disk", "B"),
        Measure("data_bytes", "data read", "B"),
        Measure("files", "files opened", "count"),
        Measure("files_skipped", "where Darshan does not look", "count"),
        Measure("is_partial", "more than Darshan had room for", "count"),
        Measure("checkpoints_kept", "checkpoints in Darshan's log", "count"),
    ),
    _drawn,
)


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """See study."""

    scale: str = "small"
    places: tuple[str, ...] = ("disk",)
    repeats: int = 3
    seed: int = 1


def needed_bytes(folder: Path, settings: ControlSettings) -> int:
    """Return the data bytes that `measured` would write; a checkpoint is small beside the data."""
    return data.needed_bytes({"cifar10": RECORDS[settings.scale]}, folder / "data", settings.seed)


def needs(settings: ControlSettings) -> dict[str, str]:
    """See needs.look_for."""
    return {"torch": "the job"}


def measured(
    folder: Path, settings: ControlSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Run the job with and without a recorder, and with Darshan where installed.

    Raises TierError: no room, FOLDER holds other settings.
    """
    mark = {"study": "control", "scale": settings.scale, "seed": settings.seed}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    n = RECORDS[settings.scale]
    root = data.made("cifar10", folder / "data", n, settings.seed, progress)
    cases = [
        {"place": place, "recorder": recorder}
        for place in settings.places
        for recorder in ("none", "penstock", "darshan")[: 3 if darshan_library() else 2]
    ]

    def run(place: Place, case: Case) -> Row:
        with work_in(folder) as work:
            return _measured(place, work, case["recorder"], settings)

    rows, remarks = study.carried_out(
        kept, cases, run, lambda name: places.at(name, root),
        repeats=settings.repeats, seed=settings.seed, progress=progress,
        is_warmed=settings.scale != "ci",
    )  # fmt: skip
    points = study.points_of(STUDY, rows, cases)
    versions = {row["darshan"] for row in rows if row.get("darshan")}
    if versions:
        machine["Darshan"] = ", ".join(sorted(versions))
    verdicts = [row["verdict"] for row in rows if row.get("verdict")]
    remarks += [f"Penstock: {verdict}" for verdict in verdicts[-1:]]
    files = [point["files"] for point in points if point["recorder"] == "penstock"]
    if files:
        is_run = any(point["recorder"] == "darshan" for point in points)
        remarks.append(
            f"Darshan 3.2, the article's, had room for {DARSHAN_FILES:,} files by default: this "
            f"job opens {files[0]:,.0f}, most of them while Python and PyTorch start, as the "
            "recording counts them"
            + ("" if is_run else "; Darshan is not installed here and was not run")
        )
    return StudyResult(STUDY, settings.scale, mark, machine, points, rows, remarks, {})


def _measured(
    place: Place, work: Path, recorder: str, settings: ControlSettings
) -> Row:  # fmt: skip
    saved, recorded, log = work / "saved", work / "recorded", work / "job.darshan"
    saved.mkdir()
    files = sorted(place.path.glob("*.bin"))
    job = {
        "files": [str(path) for path in files], "saved": str(saved), "seed": settings.seed,
        "epochs": EPOCHS[settings.scale],
    }  # fmt: skip
    command = [sys.executable, "-m", "penstock", "run", "-q", "-o", str(recorded), "--"]
    preloaded = {
        "LD_PRELOAD": darshan_library(), "DARSHAN_ENABLE_NONMPI": "1",
        "DARSHAN_LOGFILE": str(log.absolute()),
    }  # fmt: skip
    answer = places.answer_of(
        "penstock_lab.control", job, place,
        lambda: None if place.tier else _evicted(files, place),
        600, command if recorder == "penstock" else (),
        preloaded if recorder == "darshan" else None,
    )  # fmt: skip
    on_disk = [path.stat().st_size for path in saved.iterdir()]
    row: Row = {
        "wall_s": answer["wall_s"], "checkpoints_made": len(on_disk),
        "checkpoint_bytes_made": sum(on_disk),
    }  # fmt: skip
    if recorder == "penstock":
        row |= _told(recorded)
    elif recorder == "darshan":
        row |= kept_by_darshan(log, saved)
    return row


def _evicted(files: list[Path], place: Place) -> None:
    places.made_cold(files, place)


def darshan_library() -> str:
    """Return the library to preload for Darshan: beside darshan-config, or where the loader finds
    the library; "": not installed."""
    from ctypes.util import find_library

    config = shutil.which("darshan-config")
    for folder in ("lib", "lib64") if config else ():
        beside = Path(str(config)).resolve().parents[1] / folder / "libdarshan.so"
        if beside.exists():
            return str(beside)
    return find_library("darshan") or ""


def kept_by_darshan(log: Path, saved: Path) -> Row:
    """Return the files of a log, whether there were more than Darshan had room for, how many lie
    below saved, and the version of the runtime.  Raises RunError."""
    try:
        import darshan
    except ModuleNotFoundError as error:
        raise RunError(
            "reading Darshan's log needs PyDarshan: pip install 'penstock[darshan]'"
        ) from error
    if not log.exists():
        raise RunError("Darshan wrote no log")
    with darshan.DarshanReport(str(log), read_all=False) as report:
        record_ids: set[int] = set()
        modules = [name for name in ("POSIX", "STDIO") if name in report.modules]
        for name in modules:
            report.mod_read_all_records(name)
            record_ids |= set(report.records[name].to_df()["counters"]["id"])
        is_partial = any(report.modules[name]["partial_flag"] for name in modules)
        names = [report.name_records.get(record_id, "") for record_id in record_ids]
        version = str(report.metadata["job"]["metadata"].get("lib_ver", ""))
    below = sum(name.startswith(f"{saved.resolve()}/") for name in names)
    return {
        "files": len(record_ids), "is_partial": int(is_partial), "checkpoints_kept": below,
        "darshan": version,
    }  # fmt: skip


def _told(recorded: Path) -> Row:
    """Return the recording's words about the job."""
    from penstock.explain.measures import measure
    from penstock.explain.report import report_of
    from penstock.runs.run import open_run

    with open_run(recorded) as run:
        measures = measure(run)
        ((files, skipped),) = run.sql(
            "SELECT count(*), count(*) FILTER (split_part(coalesce(resolved_path, path), '/', 2) "
            f"IN {DARSHAN_SKIPS!r}) FROM files WHERE kind = 'regular'"
        )
    verdict = report_of(measures).verdict
    return {
        "verdict": f"{verdict.headline} {verdict.sentence}",
        "stall": verdict.stall.value,
        "is_io_bound": int(verdict.level != "not" and verdict.bound in ("I/O", "input")),
        "checkpoints": len(measures.checkpoints),
        "checkpoint_bytes": sum(checkpoint.written_bytes for checkpoint in measures.checkpoints),
        "data_bytes": windows.data_bytes(recorded),
        "files": files,
        "files_skipped": skipped,
    }


# --- the job -------------------------------------------------------------------------------------


def trained(job: dict[str, Any], is_ready: Callable[[], None]) -> float:
    """Train in the usual way, without any knowledge of Penstock; return the seconds."""
    import numpy as np
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(job["seed"])
    is_ready()
    begun = time.perf_counter()
    records = np.concatenate([np.fromfile(path, np.uint8) for path in job["files"]])
    records = records.reshape(-1, 3073)
    labels = torch.from_numpy(records[:, 0].astype(np.int64) % 10)
    pixels = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).astype(np.float32)) / 255
    layers: list[Any] = []
    for narrow, wide in ((3, 32), (32, 64)):
        layers += [nn.Conv2d(narrow, wide, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 64, 128), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(pixels, labels), batch_size=BATCH, shuffle=True)
    for epoch in range(job["epochs"]):
        for some, wanted in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(some), wanted).backward()
            optimizer.step()
        torch.save(model.state_dict(), f"{job['saved']}/epoch-{epoch}.pt")
    return time.perf_counter() - begun


def main() -> None:
    """Read a job from standard input, wait for a line, print the time of the training, as JSON."""
    job = json.loads(sys.stdin.readline())

    def is_ready() -> None:
        print("ready", flush=True)
        sys.stdin.readline()

    try:
        answer: dict[str, Any] = {"wall_s": trained(job, is_ready)}
    except (OSError, PenstockError) as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
