"""The measured part of a study's page, from the output of `penstock bench NAME FOLDER`.

    python lab/benchmarks/study_page.py read build/experiments/read    a result, and its page
    python lab/benchmarks/study_page.py train build/alexnet alexnet  beside the page's first
    python lab/benchmarks/study_page.py                                all pages again, from docs

Takes NAME.md, .csv, .json and .png into docs/experiments/NAME, or NAME-MORE, and replaces the text
between the two marks of docs/experiments/NAME.md; nothing there is typed.
"""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bars import ROOT

from penstock.words import per_cent, show
from penstock_lab import inputs, ladder, mlperf, nodes, study
from penstock_lab.cases import PAPER
from penstock_lab.checkpoint import WAYS
from penstock_lab.rungs import RUNGS
from penstock_lab.scale import RANKS
from penstock_lab.study import Point, Read

EXPERIMENTS = ROOT / "docs" / "experiments"
STUDIES = (
    "data", "ceiling", "read", "train", "checkpoint", "control", "diagnosis", "window", "cases",
    "factors", "scale", "mlperf", "exchange", "burst", "nodes",
)  # fmt: skip
BEGIN = "<!-- measured: python lab/benchmarks/study_page.py -->\n"
END = "<!-- measured ends -->\n"
INLINE = 16  # rows of a table in the page itself
BUSY = 0.5  # of the CPUs at the start of a study: the study may then measure other programs

# Settings with their own options: the option, the usual value, and the unit.
NUMBERS = {
    "seed": ("--seed", 1, 1, ""),
    "neighbours": ("--neighbours", 0, 1, ""),
    "n_steps": ("--steps", 100, 1, ""),
    "every": ("--every", 20, 1, ""),
    "compute_s": ("--compute", 0.2, 1e3, "ms"),
    "ratio": ("--ratio", 3.85, 1, ""),
    "bandwidth_bps": ("--bandwidth", 10e9, 1e-9, "GB/s"),
    "requests_hz": ("--iops", 200_000, 1, ""),
    "latency_s": ("--latency", 1e-3, 1e3, "ms"),
    "link_bps": ("--link", 10e9, 1e-9, "GB/s"),
}

FILE_CALLS = {"create": "made", "stat": "looked at", "open": "opened", "unlink": "removed"}

Beside = list[tuple[str, str, str]]  # measure, in the paper, here
Points = Sequence[Point]


def measured(name: str) -> str:
    """Return the content of docs/experiments/NAME, and of each later NAME-MORE, in the form of a
    page."""
    more = [folder.name for folder in sorted(EXPERIMENTS.glob(f"{name}-*")) if folder.is_dir()]
    return "\n".join(
        [_measured(name, name), *(_measured(name, folder_name) for folder_name in more)]
    )


def _measured(name: str, of: str) -> str:
    folder = EXPERIMENTS / of
    try:
        result = study.read_found(folder / f"{name}.json")
    except study.TierError:
        return f"No result is kept here yet: `make experiments STUDY={name}` makes one.\n"
    result_json = json.loads((folder / f"{name}.json").read_bytes())
    machine = result.machine
    lines = [f"    {command_of(result, of)}", "", machine_words(machine), ""]
    beside = BESIDE[name](result.points, result_json)
    if beside:
        rows = [list(row) for row in beside]
        lines += [study.table_of(["", "the study", "here"], rows, [False, True, True]), ""]
    if (folder / f"{name}.png").exists():
        lines += [f"![{TITLES[name]}]({of}/{name}.png)", ""]
    table = [line for line in (folder / f"{name}.md").read_text().splitlines() if line]
    # The machine's table comes first, the study's second: each has a head and a rule.
    rules = [number for number, line in enumerate(table) if set(line) <= set("| :-")]
    whole = table[rules[1] - 1 :]
    if len([line for line in whole if line.startswith("|")]) - 2 <= INLINE:
        rows_end = next((n for n, line in enumerate(whole) if line[0] != "|"), len(whole))
        lines += [*whole[:rows_end], "", *whole[rows_end:], ""]
    else:
        lines += [*(f"{remark}" for remark in whole if remark.startswith("*")), ""]
    lines += [f"Every case: [{name}.md]({of}/{name}.md); every run: [{name}.csv]({of}/{name}.csv)."]
    return "\n".join(lines) + "\n"


def command_of(result: Read, folder: str = "") -> str:
    """Return the command that repeats a result."""
    words = ["penstock", "bench", result.name, folder or result.name, *_number_words(result)]
    if result.name == "data":
        return " ".join(_data_words(words, result.settings))
    if result.name == "checkpoint":
        words += _checkpoint_words(result)
    elif result.name == "ladder":
        words += _ladder_words(result)
    else:
        words += ["--scale", result.scale, *_tier_words(result)]
    words += _factor_words(result)
    if result.name == "scale":
        words += _rank_words(result)
    if result.name in ("read", "train"):
        words += _thread_words(result)
    words += _peer_words(result)
    repeats = max((point.repeats for point in result.points), default=1)
    return " ".join([*words, "--repeats", str(repeats)])


def _values(result: Read, factor: str) -> list[Any]:
    """Return the values of a factor, each once."""
    values = (point.factors.get(factor) for point in result.points)
    return list(dict.fromkeys(value for value in values if value is not None))


def _number_words(result: Read) -> list[str]:
    words = []
    for key, (option, usual, factor, unit) in NUMBERS.items():
        if result.name == "ladder" and key == "compute_s":
            usual = 0  # nothing computes there
        if result.settings.get(key, usual) != usual:
            words += [option, f"{factor * result.settings[key]:.12g}{unit}"]
    return words


def _data_words(words: list[str], settings: dict[str, Any]) -> list[str]:
    most = show(settings["most_bytes"], "B").replace(" ", "")
    share = ["--scale", f"{settings['share']:g}"] if settings["share"] != 1 else []
    return [*words[:3], "all", "data", "--most", most, *words[4:], *share]


def _checkpoint_words(result: Read) -> list[str]:
    settings, ways = result.settings, _values(result, "way")
    words = [] if set(ways) == set(WAYS) else ["--ways", ",".join(ways)]
    words += ["--slow", settings["slow"]] if settings.get("slow") else []
    words += ["--scale", f"{settings['scale']:g}"] if settings.get("scale", 1) != 1 else []
    return words + (["--asleep"] if settings.get("is_asleep") else [])


def _tier_words(result: Read) -> list[str]:
    simulated = ("ideal", "cluster", "nurion", "tiers")
    places = [place for place in _values(result, "place") if place not in simulated]
    return [word for place in places for word in ("--on", place)]


def _factor_words(result: Read) -> list[str]:
    words: list[str] = []
    for factor, usual in (
        ("loader", ["threads"]), ("workload", 3), ("accelerator", 2), ("launcher", 2),
        ("saver", 2),
    ):  # fmt: skip
        values = [value for value in _values(result, factor) if value != "simulated"]
        if result.name != "diagnosis" and values and values != usual and len(values) != usual:
            words += [word for value in values for word in (f"--{factor}", str(value))]
    return words


def _rank_words(result: Read) -> list[str]:
    ranks = {point["ranks"] for point in result.points if point["launcher"] != "simulated"}
    if ranks - {1} == set(RANKS[result.scale]) - {1}:
        return []
    return ["--ranks", ",".join(map(str, sorted(ranks)))]


def _thread_words(result: Read) -> list[str]:
    first = result.points[0].factors
    usual = inputs.usual_threads(result.name, first.get("loader", "threads"), result.scale)
    mine = [p for p in result.points if p.factors.get("loader") == first.get("loader")]
    threads = {p["threads"] for p in mine}
    return [] if threads == set(usual) else ["--threads", ",".join(map(str, sorted(threads)))]


def _peer_words(result: Read) -> list[str]:
    """Return the options for a model that computes, and for the other programs beside ours."""
    settings, words = result.settings, []
    if settings.get("model", "sleep") != "sleep":
        words += ["--model", settings["model"]]
    words += ["--fio"] if settings.get("is_beside_fio") else []
    words += ["--dlio", "dlio_benchmark"] if "dlio_benchmark" in _values(result, "by") else []
    for peer in str(settings.get("beside", "")).split():
        words += [f"--{peer}", peer]
    return words


def _ladder_words(result: Read) -> list[str]:
    settings = result.settings
    if "data_bytes" in settings:
        words = ["--data", show(settings["data_bytes"], "B").replace(" ", "")]
        words += _unless("--record", settings["record_bytes"], ladder.RECORD_BYTES)
    else:
        words = ["--lmdb", "DATA"]
    places = _values(result, "place")
    if set(places) != set(ladder.PLACES):
        words += [word for place in places for word in ("--on", place)]
    words += ["--processes", ",".join(map(str, sorted(_values(result, "processes"))))]
    if set(_values(result, "rung")) != set(RUNGS):
        words += ["--rungs", ",".join(_values(result, "rung"))]
    words += ["--for", f"{settings['seconds']:g}s"]
    return words + _unless("--batch", settings["batch"], 32)


def _unless(option: str, value: int, usual: int) -> list[str]:
    return [option, str(value)] if value != usual else []


def machine_words(machine: dict[str, Any]) -> str:
    load, cpus = machine.get("load_at_start"), int(machine.get("cpus") or 1)
    facts = [
        f"{name} {words}"
        for name, words in study.machine_facts(machine).items()
        if name not in ("begun", "load before")
    ]
    said = f"Machine: {', '.join(facts)}."
    if load is not None:
        said += f" Load in the minute before: {load:g}" + (
            "; if that went on, the figures have it in them." if load > BUSY * cpus else "."
        )
    return said


# --- beside the papers: the finding of each study, and the number of these points -----------------


def _of(points: Points, **factors: Any) -> list[Point]:
    """Return the points with the factors; points without a factor have no match."""
    return [
        point
        for point in points
        if all(key in point.factors and point[key] == value for key, value in factors.items())
    ]


def _places(points: Points) -> list[str]:
    return list(dict.fromkeys(point["place"] for point in points))


def _data(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for point in points:
        off = [point["median_off"], point["total_off"], point["count_off"]]
        largest = max(abs(deviation) for deviation in off if deviation is not None)
        rows.append((
            f"`{point['kind']}` as {point['form']}, {point['content']}: median of "
            f"{show(point['records'], 'count')}",
            show(point["published_median_bytes"], "B"),
            f"{show(point['median_bytes'], 'B')}; largest deviation {per_cent(largest)}",
        ))  # fmt: skip
    return rows


def _ceiling(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for place in _places(points):
        mine = [p for p in _of(points, place=place) if p["bandwidth_bps"]]
        for op, paper in (("read", "163 to 1,968 MB/s (IOR; disk to Lustre)"), ("write", "–")):
            chosen = [
                p["bandwidth_bps"] for p in _of(mine, op=op, cache="direct", order="sequential")
            ]
            best = max(chosen, default=None)
            what = f"`{place}`: sequential {op}s past the page cache"
            rows.append((what, paper, show(best, "B/s")))
        for kind, chosen in (
            ("by a queue", [p for p in mine if p["depth"] > 1]),
            ("by threads", [p for p in mine if p["depth"] == 1]),
        ):
            rows += _beside_fio(f"`{place}`: {kind}", [p for p in chosen if p["of_fio"]])
        said = []
        for op, what in FILE_CALLS.items():
            best = max((p["calls_hz"] for p in _of(points, place=place, op=op)), default=None)
            said += [f"{show(best, 'count')} {what}"] if best is not None else []
        if said:
            rows.append((f"`{place}`: files a second, at most", "–", ", ".join(said)))
    return rows


def _beside_fio(what: str, cases: Points) -> Beside:
    """Count the cases within 5 % of fio, fio's own within 5 %, and the cases of fio alone."""
    if not cases:
        return []

    def is_near(ratio: float | None) -> bool:
        return ratio is not None and abs(ratio - 1) <= 0.05

    ratios = [p["of_fio"] for p in cases]
    again = [p.values.get("fio_of_fio") for p in cases]
    said = f"{sum(map(is_near, ratios))} of {len(cases)} cases are within 5 %"
    if any(again):
        said += f", {sum(map(is_near, again))} of fio beside itself"
    rows = [(f"{what}, beside fio", "–", f"{said}; the median is {show(median(ratios), 'x')}")]
    apart = [
        f"{p['op']} {p['order']} {p['request_bytes'] >> 10} KiB, "
        + (f"depth {p['depth']}" if p["depth"] > 1 else f"threads {p['threads']}")
        + f": {show(ratio, 'x')}"
        for p, ratio, own in zip(cases, ratios, again, strict=True)
        if is_near(own) and not is_near(ratio)
    ]
    if apart:
        rows.append((f"{what}, farther from fio where fio itself is not", "–", "; ".join(apart)))
    return rows


def _read(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    ceilings = result_json.get("more", {}).get("ceilings", {})
    for point in points:
        group = [p for p in points if all(p[key] == point[key] for key in
                 ("place", "loader", "work", "prefetch")) and p["speedup"]]  # fmt: skip
        if not group or point is not group[0]:
            continue
        best = max(group, key=lambda p: p["speedup"])
        ceiling = ceilings.get(point["place"])
        ahead = f", {point['prefetch']} batches ahead" if point["prefetch"] else ""
        rows.append((
            f"`{point['place']}`, {point['loader']}: {point['work']}{ahead}, most threads over one",
            "2.3 and 7.8 times, on two machines" if point["work"] != "read" else "–",
            f"{best['speedup']:.3g} times, {best['threads']} threads; "
            f"{per_cent(best['of_ceiling'] or 0)} of the ceiling"
            + (f" of {show(ceiling, 'B/s')}" if ceiling else ""),
        ))  # fmt: skip
    return rows


def _train(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for place in _places(points):
        mine = [p for p in _of(points, place=place) if p["ratio"] is not None]
        for threads in dict.fromkeys(p["threads"] for p in mine):
            group = [p for p in mine if p["threads"] == threads]
            rows += _hidden(f"`{place}`, threads {threads}", group)
    return rows


def _hidden(where: str, group: Points) -> Beside:
    """Return a row for each way to compute beside the input, with the hidden share."""
    ahead = [p for p in group if p["prefetch"]]
    enough = [p for p in ahead if p["ratio"] >= 1]
    short = [p for p in ahead if p["ratio"] < 0.5]
    none = [p for p in group if not p["prefetch"] and p["ratio"] >= 1]
    rows: Beside = []
    for words, chosen, paper in (
        ("compute >= input, nothing read ahead", none, "input and computing add up"),
        ("compute >= input, read ahead", enough, "input is hidden completely"),
        ("compute < half of the input, read ahead", short, "–"),
    ):
        if chosen:
            stalls = [p["stall"] for p in chosen]
            hidden = median(p["overlap"] for p in chosen)
            rows.append((
                f"{where}: {words}", paper,
                f"stalled {_span(stalls)}; "
                f"{per_cent(hidden)} of what can be is hidden",
            ))  # fmt: skip
    return rows


def _span(shares: Sequence[float]) -> str:
    """Return the range from the least to the most, where the two read differently."""
    return " to ".join(dict.fromkeys(per_cent(share) for share in (min(shares), max(shares))))


def _checkpoint(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for point in points:
        if point["overhead_s"] is not None:
            gain = point["gain"]
            papers = {"slow": "1", "drain": "2.6 times faster", "checkpointer": "–", "fast": "–"}
            rows.append((
                f"`{point['way']}`: overhead of saving straight to the slow tier over this one's",
                papers[point["way"]],
                f"{gain:.1f} times; {show(point['overhead_s'], 's')} over no checkpoint, a save "
                f"blocks {show(point['save_s'], 's')}" if gain is not None else "below the noise",
            ))  # fmt: skip
    return rows


def _control(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for p in _of(points, recorder="penstock"):
        rows += [
            ("is it I/O-bound?", "no", "yes" if p["is_io_bound"] else "no"),
            ("time without progress by I/O", "very little", show(p["stall"], "share")),
            ("its writes", "probably the checkpoint of each epoch",
             f"{show(p['checkpoints'], 'count')} checkpoints named of "
             f"{show(p['checkpoints_made'], 'count')} made, {show(p['checkpoint_bytes'], 'B')}"),
            ("files the job opens", "more than Darshan's room for 1,024",
             f"{show(p['files'], 'count')}, of them {show(p['files_skipped'], 'count')} where "
             "Darshan does not look"),
        ]  # fmt: skip
    for p in _of(points, recorder="darshan"):
        rows.append((
            "what Darshan kept of them", "room for 1,024, used up",
            f"{show(p['files'], 'count')} files, of them {show(p['checkpoints_kept'], 'count')} of "
            f"the {show(p['checkpoints_made'], 'count')} checkpoints"
            + ("; it says that more had no room" if p["is_partial"] else ""),
        ))  # fmt: skip
    return rows


def _window(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for p in points:
        where = f"`{p['place']}`, {p['data']}"
        if "files" in p.factors:  # earlier results have no such factor
            where += f", {p['files']:,} files"
        if p["recorder"] == "whole run":
            rows.append((f"{where}: recorded whole", "10 to 20 % longer", _longer(p["overhead"])))
        elif p["recorder"] == "windows":
            rows.append((f"{where}: in windows", "0.6 to 7 % longer", _longer(p["overhead"])))
            rows.append((
                f"{where}: windows off the device's counters", "close (a figure)",
                f"{show(p['deviation'], 'share')} in the median, "
                f"{show(p['deviation_most'], 'share')} at most"
                if p["deviation"] is not None else "no window could be compared, see below",
            ))  # fmt: skip
    return rows


def _longer(share: float | None) -> str:
    return "–" if share is None else f"{per_cent(share)} longer" if share > 0 else "no longer"


def _cases(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for p in points:
        paper = PAPER.get((p["data"], p["how"]), "not tried")
        rows.append((
            f"`{p['place']}`, {p['data']}: {p['how']}", paper,
            f"{show(p['bandwidth_bps'], 'B/s')}, {show(p['against'], 'x')}",
        ))  # fmt: skip
    return rows


def _factors(points: Points, result_json: dict[str, Any]) -> Beside:
    by = {tuple(p.factors.values()): p for p in points}
    rows: Beside = []

    def ratio(what: str, paper: str, first: Point | None, second: Point | None) -> None:
        if first is not None and second is not None:
            rows.append((what, paper, f"{first['images_hz'] / second['images_hz']:.2f} times"))

    def at(place: str, name: str = "D1", shuffle: str = "global", inside: str = "host") -> Any:
        return by.get((place, name, shuffle, inside))

    ratio("D1: nodes' own disks over the shared one", "1.4 times", at("local"), at("shared"))
    for place in [place for place in _places(points) if place != "ideal"]:
        for name, paper in (
            ("D1", "not reached"), ("D2", "reached sooner than with D1"),
            ("D3", "reached after a few epochs"), ("D4", "reached after a few epochs"),
        ):  # fmt: skip
            p = at(place, name)
            if p is not None:
                rows.append((
                    f"`{place}`, {name}: of the ideal throughput", paper,
                    f"{per_cent(p['of_ideal'])}; last epoch {show(p['last_hz'], 'count')} records/s"
                    f" after {show(p['first_hz'], 'count')} in the first",
                ))  # fmt: skip
        plain, still = at(place), at(place, shuffle="none")
        ratio(
            f"`{place}`: not shuffled over shuffled", "faster, from the second epoch", still, plain
        )
        aware = at(place, shuffle="cache-aware")
        ratio(f"`{place}`: shuffled as caches are over shuffled", "left for later", aware, plain)
        inside = at(place, inside="namespaces")
        ratio(f"`{place}`: in a container's name spaces over outside", "nearly 1", inside, plain)
        if plain is not None:
            rows.append((
                f"`{place}`: in memory at the last epoch", "–",
                f"{per_cent(plain['hits'])}, by the formula {per_cent(plain['expected_hits'])}; "
                f"largest error of any epoch {per_cent(plain['hits_error'])}",
            ))  # fmt: skip
    return rows


def _scale(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    strong = {p["ranks"]: p for p in _of(points, launcher="simulated", scaling="strong")}
    if 512 in strong and 2048 in strong:
        ratio = strong[2048]["simulated_hz"] / strong[512]["simulated_hz"]
        rows.append(("2,048 nodes over 512, strong (simulated, input alone)", "2.60 times",
                     f"{ratio:.2f} times"))  # fmt: skip
    for p in _of(points, launcher="simulated", scaling="weak", ranks=9216):
        rows.append((
            "9,216 processes, weak: waiting for input (simulated)",
            "up to 90 % of the time, LMDB's readers",
            f"{per_cent(p['stall_most'])}, the slowest rank, for which the others wait; "
            f"{per_cent(p['efficiency'])} efficient; Penstock's readers",
        ))  # fmt: skip
    for place in [place for place in _places(points) if place != "cluster"]:
        for launcher in dict.fromkeys(p["launcher"] for p in _of(points, place=place)):
            for scaling in ("weak", "strong"):
                mine = _of(points, place=place, launcher=launcher, scaling=scaling)
                if mine:
                    most = max(mine, key=lambda p: p["ranks"])
                    rows.append((
                        f"`{place}`, {launcher}: efficiency of {most['ranks']} ranks, {scaling}",
                        "–",
                        f"{per_cent(most['efficiency'])}; "
                        f"stalled {_span([most['stall_least'], most['stall_most']])}",
                    ))  # fmt: skip
    told_of = [p for p in points if p.values.get("error") is not None and p["ranks"] > 1]
    errors = [abs(p["error"]) for p in told_of]
    if errors:
        rows.append((
            "the simulation beside what was measured with more than one rank", "–",
            f"off by {per_cent(median(errors))} in the median, {per_cent(max(errors))} at most",
        ))  # fmt: skip
    return rows


def _exchange(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    solved = result_json["more"]["nurion"]
    for name in ("ring", "halving", "tree"):
        rows.append((
            f"2,048 nodes over 512 by the published link, {name} (formula)", "2.60 times",
            f"{solved[name]:.2f} times",
        ))  # fmt: skip
    rows.append((
        "a step's time that is not divided by the nodes, for 2.60 times", "–",
        f"{show(solved['exposed_s'], 's')}; by a ring {show(solved['bandwidth_bps'], 'B/s')} a "
        f"node or {show(solved['latency_s'], 's')} a message",
    ))  # fmt: skip
    rows.append((
        "90 epochs by the step that gives 2.60", "23 minutes", f"{solved['minutes']:.1f} minutes",
    ))  # fmt: skip
    for place in [place for place in _places(points) if place != "nurion"]:
        for key, what in (("set_error", "set values"), ("error", "fit of the other half")):
            for algorithm in ("ring", "tree", "overlapped"):
                errors = [
                    abs(p[key])
                    for p in _of(points, place=place, algorithm=algorithm)
                    if p[key] is not None and (key == "set_error" or not p["is_fitted"])
                ]
                if errors:
                    rows.append((
                        f"`{place}`, {algorithm}: the formula, by {what}", "–",
                        f"off by {per_cent(median(errors))} in the median, "
                        f"{per_cent(max(errors))} at most, {len(errors)} points",
                    ))  # fmt: skip
    return rows


def _nodes(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    beyond = result_json["more"]["beyond"]
    if beyond:
        rows.append((
            f"`{nodes.AFTER}` over `{nodes.BEFORE}`, extended to 9,216 processes on 256 nodes",
            "65 times (LMDBIO over Caffe's reader)",
            f"{beyond['gain']:.0f} times, {beyond['least']:.0f} to {beyond['most']:.0f} by half of "
            "the points",
        ))  # fmt: skip
    errors = [abs(p["error"]) for p in points if p["error"] is not None and not p["is_fitted"]]
    if errors:
        near = sum(error <= 0.25 for error in errors)
        rows.append((
            "points that gave no parameter, predicted", "–",
            f"off by {per_cent(median(errors))} in the median; {near} of {len(errors)} are within "
            "25 %",
        ))  # fmt: skip
    most = max(p["nodes"] for p in points)
    for p in points:
        alone = _of(points, rung=p["rung"], nodes=1, per_node=p["per_node"])
        if p["nodes"] == most and alone and alone[0]["records_hz"]:
            rows.append((
                f"`{p['rung']}`, {p['per_node']} a node: {most} nodes over one", "–",
                f"{p['records_hz'] / alone[0]['records_hz']:.2f} times the records/s; "
                f"{show(p['amplification'], 'x')} of the bytes that are used",
            ))  # fmt: skip
    return rows


def _burst(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for p in points:
        if p["way"] in ("burst", "drain", "checkpointer") and p["gain"] is not None:
            expected = f"; {show(p['predicted'], 'x')} expected" if p["predicted"] else ""
            rows.append((
                f"{p['saver']}, tiers {p['ratio']:g} to 1: `{p['way']}` against `slow`",
                "2.6 times" if p["way"] == "burst" else "–",
                f"{p['gain']:.2f} times{expected}; a save blocks {show(p['save_s'], 's')}",
            ))  # fmt: skip
    for saver, ratio in result_json["more"]["least_ratio"].items():
        rows.append((
            f"{saver}: the tiers' ratio from which 2.6 times are expected", "–", f"{ratio:.1f}",
        ))  # fmt: skip
    return rows


def _mlperf(points: Points, result_json: dict[str, Any]) -> Beside:
    rows: Beside = []
    for p in _of(points, by=mlperf.OURS):
        theirs = p["against_dlio"]
        case = {key: p[key] for key in ("place", "workload", "accelerator")}
        own = [q["against_dlio"] for q in _of(points, by=mlperf.DLIO_AGAIN, **case)]
        said = per_cent(p["au"])
        said += f"; {theirs:.3f} times dlio_benchmark's" if theirs is not None else ""
        said += f", which run again gives {own[0]:.3f} times its own" if own and own[0] else ""
        rows.append((
            f"`{p['place']}`, {p['workload']}, {p['accelerator']}: AU",
            f"{per_cent(p['target'])} are asked for", said,
        ))  # fmt: skip
    return rows


def _diagnosis(points: Points, _: dict[str, Any]) -> Beside:
    def share(key: str) -> str:
        values = [p[key] for p in points if p[key] is not None]
        return f"{per_cent(sum(values) / len(values))} of {len(values)}" if values else "none"

    rows = [
        ("jobs that it is confidently wrong about", "0 are asked for", share("is_wrong")),
        ("jobs that are judged", "90 % are asked for", share("is_judged")),
        ("level right where judged", "98 % are asked for", share("is_level")),
        ("main cause right", "95 % are asked for", share("is_cause")),
    ]
    theirs = [p for p in points if p["traceml_truth"] is not None]
    if theirs:
        judged = [p for p in theirs if p["traceml_told"] is not None]
        rows.append(("jobs that TraceML judges", "", f"{len(judged)} of {len(theirs)}"))
    return rows


BESIDE: dict[str, Callable[[Points, dict[str, Any]], Beside]] = {
    "data": _data,
    "ceiling": _ceiling,
    "read": _read,
    "train": _train,
    "checkpoint": _checkpoint,
    "control": _control,
    "diagnosis": _diagnosis,
    "window": _window,
    "cases": _cases,
    "factors": _factors,
    "scale": _scale,
    "mlperf": _mlperf,
    "exchange": _exchange,
    "burst": _burst,
    "nodes": _nodes,
}
TITLES = {
    "data": "Sizes of the records beside what was published",
    "ceiling": "Bandwidth by threads, requests and caching",
    "read": "Images a second by threads",
    "train": "Stall fraction over compute / input",
    "checkpoint": "What each way takes, and what is written when",
    "control": "Training, and what was written of it",
    "diagnosis": "Reported wait by measured wait, a point per job",
    "window": "Bandwidth by time: windows and the device",
    "cases": "Bandwidth of each case",
    "factors": "Records a second by step, and what caches hold",
    "scale": "Records a second by ranks, measured and simulated",
    "mlperf": "Accelerator utilisation",
    "exchange": "Sums over ranks beside their formulas, and the speed-up of 2,048 nodes",
    "nodes": "Records a second and the server's bytes, by nodes",
    "burst": "Gain of each way by the ratio of the tiers",
}


def taken(name: str, source: Path, more: str = "") -> None:
    """A result into docs/experiments."""
    there = EXPERIMENTS / (f"{name}-{more}" if more else name)
    there.mkdir(exist_ok=True)
    for ending in ("md", "csv", "json", "png"):
        if (source / f"{name}.{ending}").exists():
            shutil.copyfile(source / f"{name}.{ending}", there / f"{name}.{ending}")


def with_machine(folder: Path, name: str) -> str:
    """Return NAME.md of a result, with the machine described as today."""
    text = (folder / f"{name}.md").read_text()
    machine = json.loads((folder / f"{name}.json").read_bytes())["machine"]
    before, _, rest = text.partition("| machine |")
    after = rest[rest.index("\n\n") :]
    return f"{before}{study.machine_table(machine)}{after}"


def written(name: str) -> None:
    for folder in (EXPERIMENTS / name, *EXPERIMENTS.glob(f"{name}-*")):
        if (folder / f"{name}.json").exists():
            text = with_machine(folder, name)
            (folder / f"{name}.md").write_text(text)
    page = EXPERIMENTS / f"{name}.md"
    before, mark, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{page}: the two marks of what is measured are not there")
    page.write_text(f"{before}{BEGIN}\n{measured(name)}\n{END}{after}")


def main(words: list[str]) -> None:
    if len(words) not in (0, 2, 3) or not set(words[:1]) <= set(STUDIES):
        raise SystemExit(__doc__)
    if words:
        taken(words[0], Path(words[1]), *words[2:])
    for name in words[:1] or STUDIES:
        written(name)


if __name__ == "__main__":
    main(sys.argv[1:])
