"""`bench diagnosis`: jobs with waits known by construction, and whether the report is right.

Each job is a loader on a storage with a fault.  The truth is the job's own clocks and the fault
itself.  A job is *confidently wrong* where the report asserts a false level or cause; not to judge
is no such fault, and is counted apart.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from penstock.errors import TierError
from penstock.explain.measures import STORAGE_PARTS
from penstock.explain.report import Report
from penstock.explain.verdict import HIGHLY, MODERATELY, level_of
from penstock_lab import data, diagnosed_drishti, diagnosed_traceml, groups, places, study
from penstock_lab.diagnosed import BATCH, LOADERS, SAVE_EVERY, SAVED_BYTES
from penstock_lab.folders import work_in
from penstock_lab.inputs import PICTURES
from penstock_lab.pipeline import files_below
from penstock_lab.places import Place
from penstock_lab.study import Case, Measure, PhaseProgress, Point, Row, Study, StudyResult

__all__ = ["STUDY", "DiagnosisSettings", "cases_of", "judged", "measured", "needed_bytes", "needs"]

# The fault of a job, on the places where the fault is possible.  busy: four other programs use the
# CPUs.  quota: the job's control group has 0.6 CPUs.
ON_PLACE = {
    "disk": (
        "none", "decode", "remote", "checkpoint", "busy", "quota", "straggler", "worker start",
    ),
    "latency": ("storage", "mapped", "listing"),
    "seek": ("storage",),
    "narrow": ("storage",),
    "throttled": ("storage",),
}  # fmt: skip
# Faults of a loader; the others are of all loaders.
OF_LOADER = {"worker start": ("DataLoader, 2 workers",)}
FILES = {"ci": 80, "small": 160, "full": 400}
# Twenty jobs: each loader with a fault that the loader once hid, and the controls.
IN_CI = tuple(
    (place, loader, fault)
    for place, fault, loaders in (
        ("disk", "none", ("DataLoader", "threads", "generator")),
        ("disk", "decode", ("DataLoader, 2 workers", "background thread")),
        ("disk", "remote", tuple(LOADERS)[:7]),
        ("disk", "busy", ("DataLoader", "threads")),
        ("disk", "checkpoint", ("DataLoader",)),
        ("latency", "storage", ("threads", "asyncio", "process and queue", "pipe", "DataLoader")),
    )
    for loader in loaders
)
NEIGHBOURS = 4
QUOTA_CPUS = 0.6

# The right parts of a wait for each fault.  Two are right where both take part: a page of a slow
# file is a page fault or a read, and with busy CPUs any part may be the largest.
CAUSES = {
    "storage": {"read", "metadata", "page fault"},
    "mapped": {"page fault", "read", "metadata"},
    "listing": {"metadata"},
    "decode": {"cpu", "not scheduled"},
    "remote": {"network"},
    "worker start": {"loader start", "worker start", "not scheduled"},
}
# Parts without an asserted cause.
OPEN = {"blocked", "not observed", "idle", "hand-over"}
FROM_FILES = ("storage", "mapped", "listing")  # faults with waits for file calls
FROM_STORAGE = {"D1", "D2", "D3", "D4", "D9", "E2"}
# A level is right so close to the truth, in shares of the wall time.
NEAR = 0.02
CAUSE_FROM = 0.10  # the main cause of a smaller wait does not matter
# The loaders known to Penstock, and the permitted error of a stated wait for known and for other
# loaders, in shares of the wall time.
KNOWN = {"DataLoader", "DataLoader, 2 workers"}
OFF_KNOWN, OFF_OTHERS = 0.02, 0.10


def _drawn(figure: Any, points: Sequence[Point]) -> None:
    """Plot each job: the wait by the job's clocks, and the reported wait; a report without a value
    stands below."""
    whose = [("Penstock", "truth", "told", "o", "C0")]
    if any(point["traceml_truth"] is not None for point in points):
        whose.append(("TraceML", "traceml_truth", "traceml_told", "x", "C1"))
    for _, axis in study.panels(figure, [""]):
        axis.plot([0, 100], [0, 100], color="0.6", linewidth=0.8)
        for level in (MODERATELY, HIGHLY):
            axis.axvline(100 * level, color="0.85", linewidth=0.8)
            axis.axhline(100 * level, color="0.85", linewidth=0.8)
        for number, (name, truth, estimate, marker, color) in enumerate(whose):
            jobs = [point for point in points if point[truth] is not None]
            judged = [point for point in jobs if point[estimate] is not None]
            left = [point for point in jobs if point[estimate] is None]
            style = {"marker": marker, "color": color, "alpha": 0.7, "s": 28}
            axis.scatter(
                [100 * point[truth] for point in judged],
                [100 * point[estimate] for point in judged],
                label=f"{name}: {len(judged)} of {len(jobs)} with a value", **style,
            )  # fmt: skip
            below = -6 - 5 * number
            axis.scatter([100 * point[truth] for point in left], [below] * len(left), **style)
        axis.axhline(-2, color="0.6", linewidth=0.8)
        axis.set(
            xlabel="waits, by the job's own clocks (% of the wall time)",
            ylabel="waits, reported (%); below: a bound, or not judged",
            xlim=(-3, 103), ylim=(-15, 103),
        )  # fmt: skip
        axis.legend(loc="upper left", fontsize=8)
    figure.set_size_inches(6.0, 6.0)
    figure.tight_layout()


STUDY = Study(
    "diagnosis",
    "Jobs with a known wait, and what the report says of them",
    ("place", "loader", "fault"),
    (
        Measure("truth", "waits, by its own clocks", "share"),
        Measure("told", "waits, reported", "share"),
        Measure("off", "difference", "share", -1),
        Measure("is_judged", "judged", "count", 1),
        Measure("is_level", "level right", "count", 1),
        Measure("is_cause", "cause right", "count", 1),
        Measure("is_wrong", "confidently wrong", "count", -1),
        Measure("traceml_truth", "waits for input where TraceML runs it, by its clocks", "share"),
        Measure("traceml_told", "waits for input, by TraceML", "share"),
        Measure(
            "drishti_is_storage", "critical issue about reads or metadata, by Drishti", "count"
        ),
    ),
    _drawn,
)


@dataclass(frozen=True, slots=True)
class DiagnosisSettings:
    """See study.  neighbours: other programs that use a CPU each beside every job; traceml: the
    program that runs each job once more; drishti: the program that gets a Darshan log of each job;
    "": no program."""

    scale: str = "small"
    places: tuple[str, ...] = ("disk", "latency", "seek", "narrow", "throttled")
    repeats: int = 3
    seed: int = 1
    neighbours: int = 0
    traceml: str = ""
    drishti: str = ""


def needed_bytes(folder: Path, settings: DiagnosisSettings) -> int:
    """Return the most room of `measured`: the files, and the checkpoints of a job."""
    files = data.needed_bytes(
        {"imagenet-alexnet": FILES[settings.scale]}, folder / "data", settings.seed
    )
    saves = FILES[settings.scale] // (BATCH * SAVE_EVERY) + 1
    return files + saves * SAVED_BYTES


def needs(settings: DiagnosisSettings) -> dict[str, str]:
    """See needs.look_for."""
    packages = PICTURES | {"torch": "the jobs"}
    if settings.drishti:
        packages |= {settings.drishti: "--drishti", "darshan": "--drishti"}
    return packages | ({settings.traceml: "--traceml"} if settings.traceml else {})


def cases_of(settings: DiagnosisSettings) -> list[Case]:
    """Return every job, as its place, loader and fault."""
    every = [
        {"place": place, "loader": loader, "fault": fault}
        for place in settings.places
        for fault in ON_PLACE.get(place, ())
        for loader in OF_LOADER.get(fault, LOADERS)
    ]
    if settings.scale != "ci":
        return every
    return [case for case in every if tuple(case.values()) in IN_CI]


def measured(
    folder: Path, settings: DiagnosisSettings, progress: PhaseProgress | None = None
) -> StudyResult:
    """Run each job under `penstock run` and compare its report with the truth.

    Raises TierError: no room, FOLDER holds other settings; MissingDependency.
    """
    mark = {"study": "diagnosis", "scale": settings.scale, "seed": settings.seed}
    peers = [name for name in ("traceml", "drishti") if getattr(settings, name)]
    mark |= {"beside": " ".join(peers)} if peers else {}
    mark |= {"neighbours": settings.neighbours} if settings.neighbours else {}
    kept = study.KeptRuns(folder, mark)
    machine = kept.machine()
    root = data.made(
        "imagenet-alexnet", folder / "data", FILES[settings.scale], settings.seed, progress
    )
    cases, remarks = _possible(cases_of(settings))

    def run(place: Place, case: Case) -> Row:
        with work_in(folder) as work:
            return _measured(place, work, case, settings)

    rows, more = study.carried_out(
        kept, cases, run, lambda name: places.at(name, root),
        repeats=settings.repeats, seed=settings.seed, progress=progress, is_warmed=False,
    )  # fmt: skip
    rows = [_with_its_cause(row, rows) for row in rows]
    points = study.points_of(STUDY, rows, cases)
    remarks = [
        *_scorecard(rows),
        *diagnosed_traceml.scorecard(rows),
        *diagnosed_drishti.scorecard(rows),
        *remarks,
        *more,
        *places.remarks_of(settings.places, rows),
    ]
    return StudyResult(STUDY, settings.scale, mark, machine, points, rows, remarks, {})


def _possible(cases: list[Case]) -> tuple[list[Case], list[str]]:
    """Return the cases permitted for this user, and the reasons for missing cases."""
    try:
        groups.make(groups.own_name(), cpus=QUOTA_CPUS).remove()
    except TierError as error:
        left = [case for case in cases if case["fault"] != "quota"]
        return left, [f"`quota` was left out: {error}"] if len(left) < len(cases) else []
    return cases, []


def _measured(place: Place, work: Path, case: Case, settings: DiagnosisSettings) -> Row:
    files = files_below(place.path)
    recorded = work / "recorded"
    fault = "none" if case["fault"] in ("busy", "quota") else case["fault"]
    job = {
        "files": [str(path) for path in files], "work": str(work), "loader": case["loader"],
        "fault": fault,
    }  # fmt: skip
    command = [sys.executable, "-m", "penstock", "run", "-q", "-o", str(recorded), "--"]

    def make_ready() -> None:
        if place.name == "disk":
            places.warmed(files)
        else:
            places.made_cold(files, place)

    with (
        _neighbours(max(settings.neighbours, NEIGHBOURS if case["fault"] == "busy" else 0)),
        _limited(command, case["fault"] == "quota") as command,
    ):
        clocks = places.answer_of("penstock_lab.diagnosed", job, place, make_ready, 600, command)
        row = judged(_report(recorded), clocks, case["fault"])
        if settings.drishti:
            log = _darshan_log(recorded, work)
            waits = row["truth"] >= CAUSE_FROM and case["fault"] in FROM_FILES
            row |= diagnosed_drishti.verdict_of(
                diagnosed_drishti.issues(settings.drishti, log), waits_for_storage=waits
            )
        if settings.traceml:
            make_ready()
            its_clocks, summary = diagnosed_traceml.trained(settings.traceml, place, work, job)
            right = _levels(its_clocks["wait_s"] / its_clocks["wall_s"])
            row |= diagnosed_traceml.verdict_of(summary, its_clocks, right)
    return row


@contextmanager
def _limited(command: list[str], is_limited: bool) -> Iterator[list[str]]:
    """The command, in a control group with QUOTA_CPUS if asked; the group is removed at the end."""
    if not is_limited:
        yield command
        return
    group = groups.make(groups.own_name(), cpus=QUOTA_CPUS)
    try:
        yield group.wrapped(command)
    finally:
        group.remove()


@contextmanager
def _neighbours(n: int) -> Iterator[None]:
    """Run n programs that use a CPU each, while the block runs."""
    command = [sys.executable, "-c", "while True: pass"]
    programs = [subprocess.Popen(command) for _ in range(n)]
    try:
        yield
    finally:
        for program in programs:
            program.kill()
            with suppress(subprocess.TimeoutExpired):
                program.wait(timeout=60)


def _report(recorded: Path) -> Report:
    from penstock.explain.measures import measure
    from penstock.explain.report import report_of
    from penstock.runs.run import open_run

    with open_run(recorded) as run:
        return report_of(measure(run))


def _darshan_log(recorded: Path, work: Path) -> Path:
    from penstock.interop import darshan
    from penstock.runs.run import open_run

    path = work / "job.darshan"
    with open_run(recorded) as run:
        darshan.export(run, path)
    return path


# --- the judge -----------------------------------------------------------------------------------


def _levels(share: float) -> set[str]:
    """Return the right levels for a share, within the precision of clocks."""
    return {level_of(near_share) for near_share in (share - NEAR, share, share + NEAR)}


def judged(report: Report, clocks: dict[str, float], fault: str) -> Row:
    """Compare a report with the job's clocks (seconds) and its fault.

    is_judged, is_bound ("at least" or "at most" a level), is_level, is_cause, is_wrong: 1 or 0;
    None where nothing is judged.
    """
    truth = (clocks["wait_s"] + clocks["save_s"]) / clocks["wall_s"]
    verdict = report.verdict
    own = {segment.key: segment.share for segment in report.wall}.get("own", 0.0)
    stall = verdict.stall.value
    right = _levels(truth)
    is_level = None if verdict.level == "unknown" else verdict.level in right
    headline = verdict.headline.upper()  # in lower case for a short training
    is_bound = headline.startswith(("AT LEAST", "AT MOST"))
    if headline.startswith("AT LEAST"):
        is_level = is_level or "highly" in right
    elif is_bound:
        is_level = right != {"highly"}
    is_judged = is_level is not None
    parts = _parts(report)
    cause = _cause(report, parts, own)
    is_cause = None
    if is_judged and stall is not None and truth >= CAUSE_FROM and fault in CAUSES:
        # On a busy machine a thread without a CPU may be the main cause of the wait.
        no_cpu_s = parts.get("not scheduled", 0.0) * clocks["wait_s"]
        is_late = cause == "not scheduled" and no_cpu_s <= clocks.get("delay_s", 0.0)
        is_cause = cause in CAUSES[fault] or is_late
    is_wrong = is_level is False or (is_cause is False and cause not in OPEN)
    return {
        "truth": truth, "told": stall, "off": None if stall is None else abs(stall - truth),
        "is_judged": int(is_judged), "is_bound": int(is_bound),
        "is_level": None if is_level is None else int(is_level),
        "is_cause": None if is_cause is None else int(is_cause),
        "is_wrong": int(is_wrong),
        "cause": cause, "headline": verdict.headline,
        "first": report.findings[0].rule if report.findings else "",
        "is_harmless": int(_is_harmless(report, fault, truth)),
    }  # fmt: skip


def _with_its_cause(row: Row, rows: Sequence[Row]) -> Row:
    """The row; without a cause to be right about if the same loader waits at least half as long
    without the fault, and the report leaves the cause open."""
    without = [
        other["truth"] for other in rows
        if (other["place"], other["loader"], other["fault"]) == ("disk", row["loader"], "none")
    ]  # fmt: skip
    is_own = bool(without) and sum(without) / len(without) >= 0.5 * row["truth"]
    is_open = row["is_cause"] == 0 and row["cause"] in OPEN
    return row | {"is_cause": None} if is_own and is_open else row


def _parts(report: Report) -> dict[str, float]:
    """The shares of the wait; the phases of the network ("network connect", …) together."""
    parts: dict[str, float] = {}
    for part in report.wait:
        key = "network" if part.key.startswith("network ") else part.key
        parts[key] = parts.get(key, 0.0) + (part.share or 0.0)
    return parts


def _cause(report: Report, parts: dict[str, float], own: float) -> str:
    """Return the asserted main cause: the largest part, with storage's parts taken together, or the
    training thread's calls."""
    waits = {segment.key: segment.share for segment in report.wall}
    data_wait = sum(share for key, share in waits.items() if key.startswith("data "))
    if own > data_wait:
        return "read"
    of_storage = {key: share for key, share in parts.items() if key in STORAGE_PARTS}
    others = {key: share for key, share in parts.items() if key not in STORAGE_PARTS}
    is_storage = sum(of_storage.values()) > max(others.values(), default=0.0)
    largest = of_storage if is_storage else others
    return max(largest, key=lambda key: largest[key], default="")


def _is_harmless(report: Report, fault: str, truth: float) -> bool:
    """The first finding names the fault, or does not send the user to buy storage for nothing."""
    if not report.findings:
        return True
    rule = report.findings[0].rule
    return rule not in FROM_STORAGE or fault in FROM_FILES


def _scorecard(rows: Sequence[Row]) -> list[str]:
    """The bars of the study, in words."""
    n = len(rows)
    if not n:
        return []
    judged_rows = [row for row in rows if row["is_judged"]]
    causes = [row for row in rows if row["is_cause"] is not None]
    wrong = [row for row in rows if row["is_wrong"]]
    lines = [
        f"{n} jobs; judged: {len(judged_rows)} ({len(judged_rows) / n:.0%}), of these with one "
        f"bound only (at least, at most): {sum(row['is_bound'] for row in judged_rows)}",
        f"level right where judged: {sum(row['is_level'] for row in judged_rows)} of "
        f"{len(judged_rows)}",
        f"confidently wrong: {len(wrong)}",
        f"main cause right where the job waits for {CAUSE_FROM:.0%} or more: "
        f"{sum(row['is_cause'] for row in causes)} of {len(causes)}",
        f"first finding right or harmless: {sum(row['is_harmless'] for row in rows)} of {n}",
        *_accuracy([row for row in rows if row["off"] is not None]),
    ]
    kinds = Counter(f"{row['place']}, {row['loader']}, {row['fault']}" for row in wrong)
    lines += [f"confidently wrong: {kind} ({count} times)" for kind, count in kinds.items()]
    return [line.replace("%", " %") for line in lines]


def _accuracy(rows: Sequence[Row]) -> list[str]:
    """How far the stated waits are from the jobs' own clocks."""
    if not rows:
        return []
    offs = sorted(row["off"] for row in rows)
    lines = [
        f"difference to the job's clocks, points of the wall time: median "
        f"{100 * offs[len(offs) // 2]:.1f}, nine in ten within "
        f"{100 * offs[min(len(offs) - 1, int(0.9 * len(offs)))]:.1f}"
    ]
    for whose, is_known, most in (("known", True, OFF_KNOWN), ("other", False, OFF_OTHERS)):
        of_these = [row for row in rows if (row["loader"] in KNOWN) == is_known]
        if of_these:
            near = sum(row["off"] <= most for row in of_these)
            lines.append(
                f"{whose} loaders: {near} of {len(of_these)} within {100 * most:.0f} points, the "
                f"largest difference {100 * max(row['off'] for row in of_these):.1f}"
            )
    return lines
