"""The table of headline figures in docs/experiments/README.md, from the kept results.

    python lab/benchmarks/headlines.py

A row is a published figure of one of the five works, the figure measured here, and their ratio.
Every measured figure is computed from a result in docs/experiments; a figure without a result is
"not measured".
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from study_page import EXPERIMENTS, command_of

from penstock.words import per_cent
from penstock_lab import nodes, scale, study
from penstock_lab.study import Point, table_of

BEGIN = "<!-- measured: python lab/benchmarks/headlines.py -->\n"
END = "<!-- measured ends -->\n"
PAGE = EXPERIMENTS / "README.md"
NOT_MEASURED = "not measured"


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure of the kept results.  value: in the unit of the published figure, None without a
    number.  note: the meaning of the figure."""

    text: str
    value: float | None
    command: str


@dataclass(frozen=True, slots=True)
class Headline:
    """A published figure.  least, most: the published range; None where the work has no number.
    page: of docs/experiments.  measured: reads the kept results; None where there are none."""

    work: str
    figure: str
    published: str
    least: float | None
    most: float | None
    page: str
    measured: Callable[[Path], Measured] | None
    why: str

    def ratio(self, value: float | None) -> str:
        """Return the measured figure over the published one; over the nearer end of a range."""
        if value is None or self.least is None or self.most is None:
            return "–"
        if self.least <= value <= self.most:
            return "1.00" if self.least == self.most else "within"
        end = self.least if value < self.least else self.most
        return f"{value / end:.2f}"


# --- the kept results ----------------------------------------------------------------------------


def _found(folder: Path, of: str) -> study.Read:
    return study.read_found(folder / of / f"{of.partition('-')[0]}.json")


def _points(folder: Path, of: str, **factors: Any) -> tuple[list[Point], str]:
    """Return the points of a result with these factors, and the command of the result."""
    result = _found(folder, of)
    chosen = [
        point
        for point in result.points
        if all(point.factors.get(key) == value for key, value in factors.items())
    ]
    return chosen, command_of(result, of)


def _one(folder: Path, of: str, **factors: Any) -> tuple[Point, str]:
    (point,), command = _points(folder, of, **factors)
    return point, command


def _times(folder: Path, of: str, key: str, **factors: Any) -> Measured:
    """Return the largest ratio of the points with these factors."""
    points, command = _points(folder, of, **factors)
    value = max(point[key] for point in points if point[key] is not None)
    return Measured(f"{value:.2f} times", value, command)


def _over(
    folder: Path, of: str, key: str, above: dict[str, Any], below: dict[str, Any]
) -> Measured:
    point, command = _one(folder, of, **above)
    other, _ = _one(folder, of, **below)
    value = point[key] / other[key]
    return Measured(f"{value:.2f} times", value, command)


def _share(folder: Path, of: str, key: str, **factors: Any) -> Measured:
    point, command = _one(folder, of, **factors)
    return Measured(per_cent(point[key]), point[key], command)


def _hidden(folder: Path) -> Measured:
    points, command = _points(folder, "train-full")
    enough = [p for p in points if p["prefetch"] and p["ratio"] is not None and p["ratio"] >= 1]
    value = median(point["overlap"] for point in enough)
    return Measured(f"{per_cent(value)} of the input hidden", value, command)


def _verdict(folder: Path) -> Measured:
    point, command = _one(folder, "control", recorder="penstock")
    verdict = "I/O-bound" if point["is_io_bound"] else "not I/O-bound"
    return Measured(f"{verdict}; {per_cent(point['stall'])} of the run is I/O", None, command)


def _checkpoints(folder: Path) -> Measured:
    point, command = _one(folder, "control", recorder="penstock")
    made = point["checkpoints_made"]
    text = f"{point['checkpoints']:.0f} of {made:.0f} checkpoints reported"
    return Measured(text, None, command)


def _room(folder: Path) -> Measured:
    ours, command = _one(folder, "control", recorder="penstock")
    kept, _ = _one(folder, "control", recorder="darshan")
    partial = ", log marked partial" if kept["is_partial"] else ""
    text = f"{ours['files']:,.0f} files opened, {kept['files']:,.0f} kept by Darshan{partial}"
    return Measured(text, kept["files"], command)


def _deviation(folder: Path) -> Measured:
    points, command = _points(folder, "window", recorder="windows")
    value = median(point["deviation"] for point in points if point["deviation"] is not None)
    return Measured(f"{per_cent(value)} off the device's counter", None, command)


def _overhead(folder: Path, recorder: str) -> Measured:
    points, command = _points(folder, "window", recorder=recorder)
    value = max(point["overhead"] for point in points)
    return Measured(f"at most {per_cent(value)} longer", value, command)


def _parallel(folder: Path) -> Measured:
    """Return the gain of 28 threads on servers side by side, and on one head."""
    many = _times(folder, "cases-parallel", "against", data="images", how="28 threads")
    one_head = _times(folder, "cases", "against", data="images", how="28 threads")
    text = f"{many.text} on servers side by side, {one_head.text} on one head"
    return Measured(text, many.value, many.command)


def _staged(folder: Path) -> Measured:
    kept = json.loads((folder / "staging" / "tf-darshan.json").read_bytes())
    value = kept["policies"]["small"]["more"]
    text = per_cent(value)
    if "frozen" in kept["policies"]:  # a result of before has none
        value, asked = kept["policies"]["frozen"]["more"], text
        text = f"{per_cent(value)} with frozen copies, {asked} without"
    return Measured(text, value, "python lab/benchmarks/stage.py tf-darshan")


def _threads(folder: Path, place: str) -> Measured:
    """Return the gain of more threads: of decoding, as measured by the published work, and of
    reading."""
    decoded = _times(folder, "read-full", "speedup", place=place, work="decode")
    alone = _times(folder, "read-full", "speedup", place=place, work="read")
    text = f"`{place}`: {decoded.text} with decoding, {alone.text} reading alone"
    return Measured(text, decoded.value, decoded.command)


def _smaller(folder: Path) -> Measured:
    large, command = _one(folder, "factors-full", place="shared", data="D1", shuffle="global",
                          inside="host")  # fmt: skip
    small, _ = _one(folder, "factors-full", place="shared", data="D3", shuffle="global",
                    inside="host")  # fmt: skip
    value = large["needed_bps"] / small["needed_bps"]
    return Measured(f"{value:.1f} times", value, command)


def _burst(folder: Path) -> Measured:
    """Return the gain on tiers of 3 to 1 and of 5 to 1, and the ratio that 2.6 times needs."""
    points, command = _points(folder, "burst", saver="torch", way="burst")
    gains = {point["ratio"]: point["gain"] for point in points}
    kept = json.loads((folder / "burst" / "burst.json").read_bytes())
    least = kept["more"]["least_ratio"]["torch"]
    text = (
        f"program unchanged: {gains[3.0]:.2f} times on tiers of 3 to 1, {gains[5.0]:.2f} of 5 to "
        f"1; 2.6 times is expected from {least:.1f} to 1 on"
    )
    return Measured(text, gains[3.0], command)


def _exchange(folder: Path) -> tuple[dict[str, float], str]:
    kept = json.loads((folder / "exchange" / "exchange.json").read_bytes())
    return kept["more"]["nurion"], command_of(_found(folder, "exchange"), "exchange")


def _strong(folder: Path) -> Measured:
    solved, command = _exchange(folder)
    text = (
        f"computed, by the published link: {solved['ring']:.2f} times by a ring, "
        f"{solved['tree']:.2f} times by a tree"
    )
    return Measured(text, solved["ring"], command)


def _minutes(folder: Path) -> Measured:
    solved, command = _exchange(folder)
    text = f"computed, 90 epochs of the step that gives 2.60: {solved['minutes']:.1f} minutes"
    return Measured(text, solved["minutes"], command)


def _nodes(folder: Path, above: str, below: str) -> Measured:
    """Return the ratio of two rungs on the most nodes."""
    points, command = _points(folder, "nodes")
    most = max((point["nodes"], point["per_node"]) for point in points)
    rates = {p["rung"]: p["records_hz"] for p in points if (p["nodes"], p["per_node"]) == most}
    value = rates[above] / rates[below]
    return Measured(f"{value:.2f} times on {most[0]} nodes", value, command)


def _extended(folder: Path) -> Measured:
    """Return the ratio of all steps on the most nodes, and at 9,216 processes."""
    here = _nodes(folder, nodes.AFTER, nodes.BEFORE)
    kept = json.loads((folder / "nodes" / "nodes.json").read_bytes())
    beyond = kept["more"]["beyond"]
    text = (
        f"{here.text}; extended to 256 nodes: {beyond['gain']:.0f} times, {beyond['least']:.0f} to "
        f"{beyond['most']:.0f}"
    )
    return Measured(text, beyond["gain"], here.command)


def _waiting(folder: Path) -> Measured:
    """Return the share of reading in the time of a batch that computes as long as in `scale`."""
    points, command = _points(folder, "nodes", rung="skip")
    most = max(points, key=lambda point: (point["nodes"], point["per_node"]))
    read_s = nodes.BATCH * most["nodes"] * most["per_node"] / most["records_hz"]
    value = read_s / (read_s + scale.COMPUTE_S)
    text = (
        f"computed, {most['nodes']} nodes and {1e3 * scale.COMPUTE_S:g} ms of computing a batch: "
        f"{per_cent(value)}"
    )
    return Measured(text, value, command)


# --- the published figures -----------------------------------------------------------------------

CHIEN, LAYTON, DARSHAN = "Chien 2018", "Layton 2021", "tf-Darshan 2020"
BAE, LMDBIO = "Bae 2019", "LMDBIO 2019"
D1 = {"data": "D1", "shuffle": "global", "inside": "host"}
SHARED_D1 = D1 | {"place": "shared"}

HEADLINES = (
    Headline(
        CHIEN, "more input threads, workstation", "2.3 times", 2.3, 2.3, "read",
        lambda folder: _threads(folder, "disk"),
        "two CPUs decode about twice as fast as one",
    ),
    Headline(
        CHIEN, "more input threads, cluster with Lustre", "7.8 times", 7.8, 7.8, "read",
        lambda folder: _threads(folder, "latency"),
        "two CPUs bound the decoding here; more threads then only overlap the waits",
    ),
    Headline(
        CHIEN, "input hidden by prefetching", "complete", 1.0, 1.0, "train", _hidden,
        "the first batch of an epoch has no step before it to hide in",
    ),
    Headline(
        CHIEN, "burst buffer against the slow tier", "2.6 times", 2.6, 2.6, "burst", _burst,
        "the tiers' ratio decides; the saver's own CPU time is no shorter on a faster tier",
    ),
    Headline(
        CHIEN, "burst buffer, 733 MB on the disk, beside a drain", "2.6 times", 2.6, 2.6,
        "checkpoint",
        lambda folder: _times(folder, "checkpoint", "gain", way="drain"),
        "`torch.save` used a sixth of the fast tier's bandwidth: the tiers differed by 1.2 times "
        "for it, not by 3.85",
    ),
    Headline(
        LAYTON, "CIFAR-10 training", "not I/O-bound", None, None, "control", _verdict,
        "the verdicts agree",
    ),
    Headline(
        LAYTON, "the writes", "probably the checkpoint of each epoch", None, None, "control",
        _checkpoints, "the recording names each checkpoint",
    ),
    Headline(
        LAYTON, "files that Darshan can hold", "1,024", 1024, 1024, "control", _room,
        "1,024 of each interface; the others are of C's streams",
    ),
    Headline(
        LAYTON, "larger data sets exceed Darshan's room", "yes", None, None, "control", None, "",
    ),
    Headline(
        DARSHAN, "windows against the device", "close (a picture)", None, None, "window",
        _deviation, "median over four data sets",
    ),
    Headline(
        DARSHAN, "overhead, whole run recorded", "10 to 20 %", 0.1, 0.2, "window",
        lambda folder: _overhead(folder, "whole run"),
        "nothing is analysed inside the job; one run of each, so that 1 % is noise",
    ),
    Headline(
        DARSHAN, "overhead, in windows", "0.6 to 7 %", 0.006, 0.07, "window",
        lambda folder: _overhead(folder, "windows"), "one run of each",
    ),
    Headline(
        DARSHAN, "bandwidth of malware over ImageNet", "about 10 times", 10, 10, "window",
        lambda folder: _over(
            folder, "window", "bandwidth_bps",
            {"data": "malware", "files": 1600, "recorder": "none"},
            {"data": "imagenet-stream", "files": 12800, "recorder": "none"},
        ),
        "16 threads make the one imitated head jump between large files",
    ),
    Headline(
        DARSHAN, "ImageNet, 28 threads over 1", "about 8 times", 8, 8, "cases",
        _parallel,
        "four imitated servers side by side, whose set rates decide; one head serves no thread "
        "sooner",
    ),
    Headline(
        DARSHAN, "malware, 16 threads over 1", "0.82 times (77 of 94 MB/s)", 77 / 94, 77 / 94,
        "cases",
        lambda folder: _times(folder, "cases", "against", data="malware", how="16 threads"),
        "no queue of the drive or the kernel sorts the requests of the imitated head",
    ),
    Headline(
        DARSHAN, "malware, files below 2 MB staged", "19 %", 0.19, 0.19, "staging", _staged,
        "an open of a copy still asks the slow tier; the paper moved the files",
    ),
    Headline(
        BAE, "nodes' own disks over Lustre", "1.4 times", 1.4, 1.4, "factors",
        lambda folder: _over(
            folder, "factors", "images_hz", D1 | {"place": "local"}, SHARED_D1
        ),
        "raw records need 2.5 times the bandwidth of the shared tier here",
    ),
    Headline(
        BAE, "raw records from Lustre, of the ideal", "not reached", None, None, "factors",
        lambda folder: _share(folder, "factors", "of_ideal", **SHARED_D1), "agrees",
    ),
    Headline(
        BAE, "JPEG records from Lustre, of the ideal", "reached", 1.0, 1.0, "factors",
        lambda folder: _share(folder, "factors", "of_ideal", **(SHARED_D1 | {"data": "D3"})),
        "the mean over all steps is set against the ideal's median step",
    ),
    Headline(
        BAE, "raw over JPEG, bytes per record", "6.4 times", 6.4, 6.4, "factors", _smaller,
        "the records have the published sizes",
    ),
    Headline(
        BAE, "without a shuffle, last epoch: Lustre over local disks", "equal", 1.0, 1.0,
        "factors",
        lambda folder: _over(
            folder, "factors", "last_hz", SHARED_D1 | {"shuffle": "none"},
            D1 | {"place": "local", "shuffle": "none"},
        ),
        "agrees: each node has its share in memory",
    ),
    Headline(
        BAE, "in a container over outside", "nearly 1", 1.0, 1.0, "factors",
        lambda folder: _over(
            folder, "factors", "images_hz", SHARED_D1 | {"inside": "namespaces"}, SHARED_D1
        ),
        "name spaces only, no image is mounted",
    ),
    Headline(
        BAE, "2,048 nodes over 512", "2.60 times", 2.6, 2.6, "exchange", _strong,
        "2.60 needs 177 ms a step that nodes do not divide: a tree has them, a ring does not; "
        "which one ran is not published",
    ),
    Headline(
        BAE, "time to 73.0 % top-1", "23 minutes", 23, 23, "exchange", _minutes,
        "90 epochs are assumed; nothing is trained to 73.0 %",
    ),
    Headline(
        LMDBIO, "one reader per node (LMM) over Caffe's reader", "up to 20 times", 20, 20, "nodes",
        lambda folder: _nodes(folder, "lmm", "skip"),
        "the ratio is that of the nodes, 8 here; on one node of two CPUs 1.3 times at most",
    ),
    Headline(
        LMDBIO, "distributed cursor (DM) over LMM", "2 times", 2, 2, "nodes",
        lambda folder: _nodes(folder, "index", "lmm"),
        "here `lmm` looks up a batch's first record by its key: it walks over no other reader's",
    ),
    Headline(
        LMDBIO, "all steps over Caffe's reader, 9,216 processes", "65 times", 65, 65, "nodes",
        _extended, "the interval is wide: that its middle is near 65 is chance (see the page)",
    ),
    Headline(
        LMDBIO, "Caffe's reader, I/O of the training time", "up to 90 %", 0.9, 0.9, "nodes",
        _waiting, "the time of computing is that of scale.md, not the paper's",
    ),
)  # fmt: skip


def row_of(headline: Headline, folder: Path) -> list[str]:
    """Return the cells of one row."""
    page = f"[{headline.page}]({headline.page}.md)"
    if headline.measured is None:
        here = Measured(NOT_MEASURED, None, "–")
    else:
        here = headline.measured(folder)
    command = "–" if here.command == "–" else f"`{here.command}`"
    return [
        headline.work, headline.figure, headline.published, here.text,
        headline.ratio(here.value), headline.why or "–", page, command,
    ]  # fmt: skip


def table(folder: Path = EXPERIMENTS) -> str:
    """Return the table of all headlines."""
    heads = ["work", "figure", "published", "here", "here / published", "why they differ", "page",
             "command"]  # fmt: skip
    rows = [row_of(headline, folder) for headline in HEADLINES]
    measured = sum(headline.measured is not None for headline in HEADLINES)
    note = f"{measured} of {len(HEADLINES)} figures are measured or simulated here."
    return f"{note}\n\n{table_of(heads, rows, [False] * 4 + [True] + [False] * 3)}"


def main() -> None:
    before, mark, rest = PAGE.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not mark or not end:
        raise SystemExit(f"{PAGE}: the two marks of the measured part are missing")
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n\n{END}{after}")


if __name__ == "__main__":
    main()
