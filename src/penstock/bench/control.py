"""`bench control`: a job that is not I/O-bound must be called so.  Layton 2021, CIFAR-10.

Knows the job (a program of `places.answer_of`: CIFAR-10 in memory, a small network, a checkpoint an
epoch) and what a recording of it must say.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.bench import data, places, study, windows
from penstock.bench.places import Place
from penstock.bench.study import Case, Found, Measure, Progress, Row, Study
from penstock.errors import MissingDependency, PenstockError

__all__ = ["STUDY", "Settings", "measured"]

RECORDS = {"ci": 640, "small": 10_000, "full": 60_000}
EPOCHS = {"ci": 3, "small": 5, "full": 10}
BATCH = 128
# What Darshan 3.2, the article's, had room for, of each kind of record; and where it did not look.
DARSHAN_FILES = 1024
DARSHAN_SKIPS = ("etc", "dev", "usr", "bin", "boot", "lib", "opt", "sbin", "sys", "proc", "var")

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
    ),
)


@dataclass(frozen=True, slots=True)
class Settings:
    """See study."""

    scale: str = "small"
    places: tuple[str, ...] = ("disk",)
    repeats: int = 3
    seed: int = 1


def measured(folder: Path, settings: Settings, progress: Progress | None = None) -> Found:
    """The job with and without a recorder.

    Raises TierError: no room, FOLDER holds other settings; MissingDependency: no PyTorch.
    """
    try:
        import torch  # noqa: F401 - so that its absence is told before anything is made
    except ModuleNotFoundError as error:
        raise MissingDependency("the control job needs PyTorch: pip install torch") from error
    machine = study.machine_of(_there(folder))
    n = RECORDS[settings.scale]
    root = data.made("cifar10", folder / "data", n, settings.seed, progress)
    mark = {"study": "control", "scale": settings.scale, "seed": settings.seed}
    kept = study.Kept(folder, mark)
    cases = [
        {"place": place, "recorder": recorder}
        for place in settings.places
        for recorder in ("none", "penstock")
    ]
    verdicts: list[str] = []

    def run(place: Place, case: Case) -> Row:
        return _measured(place, folder, case["recorder"] == "penstock", settings, verdicts)

    rows, remarks = study.carried_out(
        kept, cases, run, lambda name: places.at(name, root),
        repeats=settings.repeats, seed=settings.seed, progress=progress,
        is_warmed=settings.scale != "ci",
    )  # fmt: skip
    points = study.points_of(STUDY, rows, cases)
    remarks += [f"Penstock: {verdict}" for verdict in dict.fromkeys(verdicts[-1:])]
    files = max((point["files"] or 0 for point in points), default=0)
    if files:
        remarks.append(
            f"Darshan 3.2, the article's, had room for {DARSHAN_FILES:,} files by default: this "
            f"job opens {files:,.0f}, most of them while Python and PyTorch start. Counted from "
            "the recording; Darshan itself was not run."
        )
    return Found(STUDY, settings.scale, mark, machine, points, rows, remarks, {})


def _there(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _measured(
    place: Place, folder: Path, is_recorded: bool, settings: Settings, verdicts: list[str]
) -> Row:
    saved, recorded = folder / "saved", folder / "recorded"
    for made in (saved, recorded):
        shutil.rmtree(made, ignore_errors=True)
    saved.mkdir()
    files = sorted(place.path.glob("*.bin"))
    job = {
        "files": [str(path) for path in files], "saved": str(saved), "seed": settings.seed,
        "epochs": EPOCHS[settings.scale],
    }  # fmt: skip
    command = [sys.executable, "-m", "penstock", "run", "-q", "-o", str(recorded), "--"]
    answer = places.answer_of(
        "penstock.bench.control", job, place,
        lambda: None if place.tier else _evicted(files, place),
        600, command if is_recorded else (),
    )  # fmt: skip
    on_disk = [path.stat().st_size for path in saved.iterdir()]
    row: Row = {
        "wall_s": answer["wall_s"], "checkpoints_made": len(on_disk),
        "checkpoint_bytes_made": sum(on_disk),
    }  # fmt: skip
    if is_recorded:
        row |= _told(recorded, verdicts)
    shutil.rmtree(saved, ignore_errors=True)
    return row


def _evicted(files: list[Path], place: Place) -> None:
    places.made_cold(files, place)


def _told(recorded: Path, verdicts: list[str]) -> Row:
    """What the recording says of the job."""
    from penstock.measures import measure
    from penstock.report import report_of
    from penstock.run import open_run

    with open_run(recorded) as run:
        measures = measure(run)
        ((files, skipped),) = run.sql(
            "SELECT count(*), count(*) FILTER (split_part(coalesce(resolved_path, path), '/', 2) "
            f"IN {DARSHAN_SKIPS!r}) FROM files WHERE kind = 'regular'"
        )
    verdict = report_of(measures).verdict
    verdicts.append(f"{verdict.headline} {verdict.sentence}")
    return {
        "stall": verdict.stall.value,
        "is_io_bound": int(verdict.level != "not" and verdict.bound in ("I/O", "input")),
        "checkpoints": len(measures.checkpoints),
        "checkpoint_bytes": sum(one.written_bytes for one in measures.checkpoints),
        "data_bytes": windows.data_bytes(recorded),
        "files": files,
        "files_skipped": skipped,
    }


# --- the job -------------------------------------------------------------------------------------


def trained(job: dict[str, Any], is_ready: Callable[[], None]) -> float:
    """Seconds of the training: as anyone would write it, and it knows nothing of Penstock."""
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
    """Reads a job from standard input, waits for a line, prints how long it trained, as JSON."""
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
