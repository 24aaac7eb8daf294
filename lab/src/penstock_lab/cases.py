"""`bench cases`: tf-Darshan's two cases, and a third beyond the paper: Penstock's own choice.

Small files wait for each open: more threads help.  Large files share a head: more threads are
slower, and the smallest files, on a fast tier, bring more than their bytes.  Chien et al. 2020.

Knows the cases; records, stages and runs by a user's commands.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import RunError
from penstock_lab import data, inputs, places, storage, study, windows
from penstock_lab import tier as slow_tiers
from penstock_lab.folders import work_in
from penstock_lab.pipeline import PipelineJob, files_below
from penstock_lab.places import Place
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult
from penstock_lab.tier import SlowTier

__all__ = ["PAPER", "STUDY", "CasesSettings", "measured", "needed_bytes", "needs"]

# Files and batch: the paper's ImageNet case has 128,000 and 256, the malware case 10,868 and 32.
IMAGES = {"ci": (60, 20), "small": (400, 50), "full": (12_800, 256)}
MALWARE = {"ci": (25, 5), "small": (100, 10), "full": (10_868, 32)}
PREFETCH = 10
SMALL_BYTES = 2_000_000  # the paper's threshold
# The fast tier is imitated like the slow tier, with the bytes in memory below: cold reads from this
# machine's disk are not the subject.  Chien 2018's Optane gave IOR 1,603 MB/s.
FAST_BPS, FAST_LATENCY_S = 1.6e9, 2e-5
BLOCK_BYTES = 4096  # the unit of a copy's size
MANY = {"images": 28, "malware": 16}

# The paper's figures, in MB/s where given: the page shows both.
PAPER = {
    ("images", "1 thread"): "3 MB/s",
    ("images", "28 threads"): "24 MB/s",
    ("malware", "1 thread"): "94 MB/s",
    ("malware", "16 threads"): "77 MB/s",
    ("malware", "1 thread, files below 2 MB staged"): "about 19 % more than 1 thread",
    ("malware", "1 thread, files below 2 MB staged, frozen"): "about 19 % more than 1 thread",
}

STUDY = Study(
    "cases",
    "Two cases of tf-Darshan",
    ("place", "data", "how"),
    (
        Measure("bandwidth_bps", "bandwidth", "B/s", 1),
        Measure("against", "against 1 thread", "x", 1),
        storage.OF_CEILING,
        Measure("epoch_s", "epoch", "s", -1),
        Measure("staged_files", "files staged", "count"),
        Measure("staged_share", "of the files", "share"),
        Measure("staged_bytes", "bytes staged", "B"),
        Measure("bytes_share", "of the bytes", "share"),
        Measure("requests", "requests/file", "count", -1),
    ),
)


@dataclass(frozen=True, slots=True)
class CasesSettings:
    """See study."""

    scale: str = "small"
    places: tuple[str, ...] = ("seek", "parallel")
    repeats: int = 3
    seed: int = 1


def needed_bytes(folder: Path, settings: CasesSettings) -> int:
    """Return the most room of `measured`: both data sets and the copies of a run, or before the
    data sets the ceilings'."""
    sets = {"imagenet-alexnet": IMAGES[settings.scale][0], "malware": MALWARE[settings.scale][0]}
    share = sets["malware"] / data.KINDS["malware"].n
    copies = _budget(data.plan("malware", scale=share, seed=settings.seed).sizes)
    of_data = data.needed_bytes(sets, folder / "data", settings.seed)
    return max(of_data + copies, storage.needed_bytes(settings.scale))


def _budget(sizes: Sequence[int]) -> int:
    """Return the size of copies of the small files."""
    return sum(-(-size // BLOCK_BYTES) * BLOCK_BYTES for size in sizes if size < SMALL_BYTES)


def needs(settings: CasesSettings) -> dict[str, str]:
    """See needs.look_for."""
    return inputs.PICTURES


def measured(
    folder: Path, settings: CasesSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Both cases on each place.

    Raises TierError: no room, not cold, FOLDER holds other settings; MissingDependency.
    """
    mark = {"study": "cases", "scale": settings.scale, "seed": settings.seed}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    ceilings = storage.ceilings_of(folder, settings.places, settings.scale, progress)
    sets = {
        "images": data.made(
            "imagenet-alexnet", folder / "data", IMAGES[settings.scale][0], settings.seed, progress
        ),
        "malware": data.made(
            "malware", folder / "data", MALWARE[settings.scale][0], settings.seed, progress
        ),
    }
    cases = [
        {"place": place, "data": kind, "how": how}
        for place in settings.places
        for kind, how in (
            ("images", "1 thread"),
            ("images", f"{MANY['images']} threads"),
            ("malware", "1 thread"),
            ("malware", f"{MANY['malware']} threads"),
            ("malware", "1 thread, files below 2 MB staged"),
            ("malware", "1 thread, files below 2 MB staged, frozen"),
            ("malware", "1 thread, as many bytes of Penstock's choice staged"),
        )
    ]

    def run(place: Place, case: Case) -> Row:
        with work_in(folder) as work:
            row = _measured(place, work, sets[case["data"]], case, settings)
        return storage.beside_ceiling(row, ceilings.get(place.name))

    rows, remarks = study.carried_out(
        kept, cases, run, lambda name: places.at(name, folder / "data"),
        repeats=settings.repeats, seed=settings.seed, progress=progress, is_warmed=False,
    )  # fmt: skip
    points = study.points_of(STUDY_DERIVED, rows, cases)
    remarks += places.remarks_of(settings.places, rows)
    remarks += storage.remarks_of(ceilings)
    remarks.append(
        f"the fast tier: a FUSE tier of {1e6 * FAST_LATENCY_S:g} us a call and "
        f"{FAST_BPS / 1e9:g} GB/s"
    )
    remarks += [f"the paper: {kind}, {how}: {value}" for (kind, how), value in PAPER.items()]
    return StudyResult(STUDY_DERIVED, settings.scale, mark, machine, points, rows, remarks, {})


def _derived(points: list[Point]) -> list[Point]:
    """Return each point beside the point of one thread over equal files."""
    alone = {
        (point["place"], point["data"]): point["bandwidth_bps"]
        for point in points
        if point["how"] == "1 thread"
    }
    derived = []
    for point in points:
        alone_bps = alone.get((point["place"], point["data"]))
        derived.append(
            study.with_value(
                point, "against", point["bandwidth_bps"] / alone_bps if alone_bps else None
            )
        )
    return derived


def _drawn(figure: Any, points: Sequence[Point]) -> None:
    kinds = list(dict.fromkeys((point["place"], point["data"]) for point in points))
    for (place, kind), (_, axis) in zip(
        kinds, study.panels(figure, [f"{kind} on {place}" for place, kind in kinds]), strict=True
    ):
        mine = [point for point in points if (point["place"], point["data"]) == (place, kind)]
        study.bars_of(axis, mine, "bandwidth_bps", _label, 1e-6)
        axis.set(xlabel="MB/s")
    figure.tight_layout()


def _label(point: Point) -> str:
    return str(point["how"]).replace(", ", ",\n", 1)


STUDY_DERIVED = Study(STUDY.name, STUDY.title, STUDY.factors, STUDY.measures, _drawn, _derived)


def _measured(place: Place, work: Path, root: Path, case: Case, settings: CasesSettings) -> Row:
    threads = int(case["how"].split()[0])
    batch = (IMAGES if case["data"] == "images" else MALWARE)[settings.scale][1]
    names = tuple(str(path.relative_to(root.parent)) for path in files_below(root))
    job = PipelineJob(
        names,
        threads,
        "read",
        batch,
        PREFETCH,
        seed=settings.seed,
        read_bytes=windows.SEGMENT_BYTES,
    )
    if "staged" not in case["how"]:
        return inputs.loaded(place, job)[1]
    if place.tier is None:
        raise RunError("a slow place is needed, for the fast one to be faster: --on seek")
    sizes = [path.stat().st_size for path in files_below(root)]
    # Mounted at a fixed path each time: the path identifies the tier.
    fast, below = work.absolute() / "fast", work / "fast-below"
    for made in (fast, below):
        made.mkdir()
    with slow_tiers.slow(below, bandwidth=FAST_BPS, latency_s=FAST_LATENCY_S, at=fast) as tier:
        row, copying = _staged(place, work, fast, tier, job, case, _budget(sizes))
    return row | {
        "staged_files": copying["copied"],
        "staged_share": copying["copied"] / len(names),
        "staged_bytes": copying["copied_bytes"],
        "bytes_share": copying["copied_bytes"] / sum(sizes),
    }


def _staged(
    place: Place, work: Path, fast: Path, tier: SlowTier, job: PipelineJob, case: Case, budget: int
) -> tuple[Row, dict[str, Any]]:
    """Run the job again, with the files staged from the recording; return the output of staging
    too."""
    recorded, again = work / "recorded", work / "recorded-staged"
    policy = "small" if "below" in case["how"] else "gain"
    # Tiers of this study only: the user's list of tiers stays.
    own = {"XDG_CONFIG_HOME": str(work / "config")}
    _called(own, "tiers", "add", "fast", str(fast))
    inputs.loaded(place, job, [*PENSTOCK, "run", "-q", "-o", str(recorded), "--"])
    copying = _called(
        own, "stage", "copy", str(recorded), "--to", "fast", "--budget", str(budget),
        "--policy", policy, "--json", *(["--frozen"] if "frozen" in case["how"] else []),
    )  # fmt: skip
    copies = [path for path in (fast / "staged").rglob("*") if path.is_file()]
    command = [*PENSTOCK, "run", "-q", "--staged", "fast", "-o", str(again), "--"]
    row = inputs.loaded(place, job, command, own, copies, Place("fast", fast, tier))[1]
    return row, copying


def _called(own: dict[str, str], *words: str) -> dict[str, Any]:
    """Run a command of ours, as a user would type it; return the answer in JSON.  Raises
    RunError."""
    done = subprocess.run(
        [*PENSTOCK, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env=os.environ | places.OUR_PATH | own,
    )  # fmt: skip
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise RunError(f"penstock {words[0]} {words[1]}: {why}")
    answer = json.loads(done.stdout) if "--json" in words else {}
    return dict(answer)


PENSTOCK = (sys.executable, "-m", "penstock")
