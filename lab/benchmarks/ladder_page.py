"""The measured part of docs/experiments/ladder.md, from docs/experiments/ladder/*.json.

    python lab/benchmarks/ladder_page.py                          the page again
    python lab/benchmarks/ladder_page.py build/experiments/ladder  the present results of the folder

Everything between the two marks of the page is replaced; nothing there is typed.  An incomplete
ladder is shown as far as measured.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import median

from bars import PENSTOCK, ROOT
from study_page import command_of, machine_words, with_machine

from penstock_lab import ladder as climbing
from penstock_lab import model, study
from penstock_lab.ladder import PLACES, LadderPoint
from penstock_lab.rungs import RUNGS

FOLDER = ROOT / "docs" / "experiments" / "ladder"
PAGE = ROOT / "docs" / "experiments" / "ladder.md"
BEGIN, END = "<!-- measured: python lab/benchmarks/ladder_page.py -->\n", "<!-- measured ends -->\n"
AGAINST = (  # rung, the reference rung, in words
    ("feed-shuffled", "get-random", "shuffled, Feed against py-lmdb with `readahead=False`"),
    ("feed-shuffled", "get", "shuffled, Feed against py-lmdb with read-ahead"),
    ("feed", "skip", "in order, Feed against Caffe's way"),
    ("overlap", "skip", "in order, all of LMDBIO's steps against Caffe's way"),
)


def measured(folder: Path = FOLDER) -> str:
    ladder = json.loads((folder / "ladder.json").read_text())
    points, machine = model.read_points(folder / "ladder.json")
    checks = json.loads((folder / "model.json").read_text())["checks"]
    settings, repeats = ladder["settings"], sorted({point.repeats for point in points})
    runs = " to ".join(map(str, sorted({repeats[0], repeats[-1]})))
    lines = [
        f"    {command_of(study.read_found(folder / 'ladder.json'))}",
        "",
        f"LMDB of {machine['data_bytes'] / 1e9:.1f} GB, batches of {settings['batch']}, each run "
        f"{settings['seconds']:g} s after its set-up, {runs} of each. {machine_words(machine)}",
        "",
        *[f"* {remark}" for remark in ladder["remarks"]],
        "",
        "![Seconds for 1,000 records by processes, for each storage](ladder/ladder.png)",
        "",
        "Records a second, with one process and with the most:",
        "",
        *_rates(points),
        "",
        "Bytes from the device for each byte of a record, with the most processes:",
        "",
        *_amplification(points),
        "",
        "How many times faster:",
        "",
        *_ratios(points),
        "",
        "All numbers of each run, switches, faults and times among them:",
        "[ladder.md](ladder/ladder.md) and [ladder.csv](ladder/ladder.csv).",
        "",
        "### The model",
        "",
        *_errors(checks),
        "",
        "![Records a second up to 9,216 processes](ladder/model.png)",
        "",
        "What is assumed, of which storage, and every point: [model.md](ladder/model.md).",
    ]
    return "\n".join(lines) + "\n"


def _found(points: list[LadderPoint], place: str, rung: str, processes: int) -> LadderPoint | None:
    for point in points:
        if (point.run.place, point.run.rung, point.run.processes) == (place, rung, processes):
            return point
    return None


def _columns(points: list[LadderPoint]) -> list[tuple[str, int]]:
    columns = []
    for place in PLACES:
        sizes = sorted({point.run.processes for point in points if point.run.place == place})
        columns += [(place, size) for size in sorted({sizes[0], sizes[-1]})] if sizes else []
    return columns


def _rates(points: list[LadderPoint]) -> list[str]:
    columns = _columns(points)
    lines = [
        "| rung | " + " | ".join(f"{place}, {size}" for place, size in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    for rung in RUNGS:
        cells = [_found(points, place, rung, size) for place, size in columns]
        shown = [f"{cell.run.records_hz:,.0f}" if cell else "–" for cell in cells]
        lines.append(f"| `{rung}` | {' | '.join(shown)} |")
    return lines


def _amplification(points: list[LadderPoint]) -> list[str]:
    most = [column for number, column in enumerate(_columns(points)) if number % 2]
    lines = ["| rung | " + " | ".join(f"{place}, {size}" for place, size in most) + " |"]
    lines.append("| --- |" + " ---: |" * len(most))
    for rung in RUNGS:
        cells = [_found(points, place, rung, size) for place, size in most]
        shown = [
            f"{cell.run.device_bytes / max(1, cell.run.record_bytes):.2f}" if cell else "–"
            for cell in cells
        ]
        lines.append(f"| `{rung}` | {' | '.join(shown)} |")
    return lines


def _ratios(points: list[LadderPoint]) -> list[str]:
    columns = _columns(points)
    lines = ["| | " + " | ".join(f"{place}, {size}" for place, size in columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    for rung, other, words in AGAINST:
        shown = []
        for place, size in columns:
            point, other_point = (
                _found(points, place, rung, size),
                _found(points, place, other, size),
            )
            ratio = (
                point.run.records_hz / other_point.run.records_hz if point and other_point else None
            )
            shown.append("–" if ratio is None else f"×{ratio:.3g}")
        lines.append(f"| {words} | {' | '.join(shown)} |")
    return lines


def _errors(checks: list[dict]) -> list[str]:
    predicted = [check for check in checks if not check["is_fitted"]]
    lines = [
        f"Of {len(checks)} measured points {len(checks) - len(predicted)} gave parameters; from "
        "the others the simulation is off by (of the measured rate):",
        "",
        "| storage | points | median | nine in ten within | worst | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for place in [*PLACES, "all"]:
        mine = sorted(
            (check for check in predicted if place in (check["place"], "all")),
            key=lambda check: abs(check["error"]),
        )
        if not mine:
            continue
        sizes = [abs(check["error"]) for check in mine]
        ninth = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
        worst = mine[-1]
        lines.append(
            f"| {place} | {len(mine)} | {median(sizes):.0%} | {ninth:.0%} | "
            f"{worst['error']:+.0%} | `{worst['rung']}`, {worst['processes']} |".replace("%", " %")
        )
    return lines


def taken(source: Path) -> None:
    """Copy tables, pictures and the model from a ladder's folder into docs/experiments."""
    runs = climbing.read_results(source)
    kept = study.KeptRuns(source, {"study": "ladder"})
    facts = climbing.machine_of(source / "lmdb", kept)
    sizes = {run.processes for run in runs}
    done = Counter((run.place, run.rung, run.processes) for run in runs)
    left = Counter(
        place for place in PLACES for rung in RUNGS for size in sizes if not done[place, rung, size]
    )
    whole = len(RUNGS) * len(sizes)
    remarks = [
        f"{place}: {n} of {whole} points have not been measured" for place, n in left.items()
    ]
    result_file = source / "ladder.json"
    if result_file.exists():  # the file has the reason for a missing place or point
        points = {
            f"place {place}, rung {rung}, processes {size}"
            for place in left for rung in RUNGS for size in sizes if not done[place, rung, size]
        }  # fmt: skip
        said = json.loads(result_file.read_text())["remarks"]
        remarks += [
            remark for remark in said
            if remark.partition(": left out")[0] in left
            or remark.partition(": no result")[0] in points
        ]  # fmt: skip
    climbing.write_results(source, runs, facts, remarks)
    subprocess.run(
        [PENSTOCK, "bench", "model", source / "ladder.json"], check=True, stdout=subprocess.DEVNULL
    )
    FOLDER.mkdir(exist_ok=True)
    for name in ("ladder.md", "ladder.csv", "ladder.json", "ladder.png"):
        shutil.copy(source / name, FOLDER)
    for name in ("model.md", "model.json", "model.png"):
        shutil.copy(source / name, FOLDER)


def main(source: Path | None) -> None:
    if source is not None:
        taken(source)
    for name in ("ladder", "node"):
        (FOLDER / f"{name}.md").write_text(with_machine(FOLDER, name))
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n" + measured() + "\n" + END + after)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
