"""The page and the figures of the staging experiments, from the results of lab/benchmarks/stage.py.

python lab/benchmarks/stage_page.py        docs/experiments/staging.md and staging/*.png
"""

import json
from pathlib import Path
from typing import Any

from bars import ROOT

PAGE = ROOT / "docs" / "experiments" / "staging.md"
KEPT = PAGE.with_suffix("")
INK, SOFT, ONE, OTHER = "#1f2933", "#9aa5b1", "#2b6cb0", "#dd6b20"
WORKLOADS = {
    "imagenet": "ImageNet-like: log-normal sizes, median 100 kB",
    "malware": "Malware-like: a few hundred files, median 4 MB, 40 % below 2 MB",
    "mixed": "Mixed: half of the one, half of the other",
}

HEAD = """# Staging: what was said and what came

    python lab/benchmarks/stage.py imagenet malware mixed tf-darshan fill    # some eight minutes
    python lab/benchmarks/stage_page.py                                      # this page

tf-Darshan (Chien, Podobas, Peng, Markidis, CLUSTER 2020) moved the files below 2 MB of a data set,
40 % of its files and 8 % of its bytes, from a disk to a faster one by hand, and gained 19 % of
bandwidth. `penstock stage plan` makes such a choice from a recorded run and says what it will
bring; here the same program is run on the copies, and what was said stands beside what came.

The slow tier is a FUSE file system that delays each request and shares a bandwidth; the fast one is
in memory. A run reads every file once in a random order, in batches, by two worker processes; a
step sleeps. Each run has a mount of its own, so that nothing is remembered of the one before. What
is called predicted was written by the plan before the copies were made.
"""


def main() -> None:
    """Write the page from the present results, and list the missing results."""
    facts = {path.stem: json.loads(path.read_text()) for path in sorted(KEPT.glob("*.json"))}
    shown = {name: facts[name] for name in WORKLOADS if name in facts}
    parts = [HEAD]
    if shown:
        curves(shown, KEPT / "curves.png")
        parts.append(summary(shown))
        parts += [workload(name, result) for name, result in shown.items()]
    if "tf-darshan" in facts:
        gains(facts["tf-darshan"], KEPT / "tf-darshan.png")
        parts.append(paper(facts["tf-darshan"]))
    if "fill" in facts:
        parts.append(fill(facts["fill"]))
    missing = [name for name in (*WORKLOADS, "tf-darshan", "fill") if name not in facts]
    if missing:
        parts.append(f"\nNot run yet: `python lab/benchmarks/stage.py {' '.join(missing)}`.\n")
    PAGE.write_text("\n".join(parts))


def off(result: dict[str, Any]) -> float:
    measured = result["before"]["wait_s"] - result["after"]["wait_s"]
    return abs(result["plan"]["gain_s"] - measured) / measured if measured else float("inf")


def by_size(result: dict[str, Any]) -> str:
    """Return the wait removed by all files below a size: tf-Darshan's choice."""
    if "small" not in result:
        return "not measured"
    return f"{result['before']['wait_s'] - result['small']['wait_s']:.2f} s"


def summary(shown: dict[str, Any]) -> str:
    rows = [
        f"| {name} | {result['files']:,} | {result['bytes'] / 1e6:,.0f} MB | "
        f"{result['plan']['files']:,} | "
        f"{result['plan']['size_bytes'] / 1e6:,.0f} MB | {result['before']['wait_s']:.2f} s | "
        f"{result['plan']['gain_s']:.2f} s | "
        f"{result['before']['wait_s'] - result['after']['wait_s']:.2f} s | {off(result):.1%} | "
        f"{by_size(result)} |"
        for name, result in shown.items()
    ]
    head = [
        "| workload | files | bytes | staged | bytes | data wait | predicted | measured | off | "
        "by size, measured |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    words = (
        "![The wait that is expected to be gone, by bytes staged](staging/curves.png)\n\n"
        "The line takes files by what each byte of them brings, one after the other. Circle: the "
        "choice under the budget, which may lie above the line: it also tries to take all files "
        "below a size, and exchanges. Cross: what was measured. By size: all files below the size "
        "that fits, staged and run too. Every file is read once, so that the hottest are the "
        "smallest."
    )
    return "\n".join(["## Three workloads\n", *head, *rows, "", words, ""])


def workload(name: str, result: dict[str, Any]) -> str:
    tier, loader, plan = result["tier"], result["loader"], result["plan"]
    rows = [
        f"| {row['policy']} | {row['files']:,} | {row['size_bytes'] / 1e6:,.0f} MB | "
        f"{row['gain_s']:.2f} s |"
        for row in (plan, *plan["compared"])
    ]
    return "\n".join(
        [
            f"### {WORKLOADS[name]}\n",
            f"{result['files']:,} files, {result['bytes'] / 1e6:,.0f} MB, median "
            f"{result['sizes'][50] / 1e3:,.0f} kB. Slow tier: {tier['latency_s'] * 1e3:g} ms a "
            f"request, {tier['bandwidth_bps'] / 1e6:g} MB/s; {loader['workers']} workers, batches "
            f"of {loader['batch']}, steps of {loader['step_ms']:g} ms. {result['machine']}. "
            f"{result['day']}.\n",
            "| chosen by | files | bytes | expected to remove |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            *others(result),
            f"`penstock stage copy`: {copied(result)}. `penstock compare before after`:\n",
            "```",
            *(line.rstrip() for line in result["compare"].rstrip().splitlines()),
            "```",
            "",
        ]
    )


def copying_said(plan: Any) -> str:
    """Return the plan's time for copying."""
    least_s, most_s = plan.get("copy_least_s"), plan["copy_s"]
    if most_s is None:
        return "not known"
    if least_s is None or least_s == most_s:
        return f"{most_s:.2f} s"
    return f"{least_s:.2f} to {most_s:.2f} s"


def copied(result: dict[str, Any]) -> str:
    """Return the time of copying, beside the plan's time."""
    copying = result["copied"]
    if isinstance(copying, str):  # in the printed form
        taken, said = copying, "before it counted what files cost"
    else:
        taken = (
            f"{copying['copied']:,} files, {copying['copied_bytes'] / 1e6:,.0f} MB in "
            f"{copying['seconds']:.2f} s"
        )
        said = ""
    return (
        f"{taken}; the plan{', ' + said + ',' if said else ''} said {copying_said(result['plan'])}"
    )


def others(result: dict[str, Any]) -> list[str]:
    """Return whether the second run was disturbed: files in their old place should take equal
    time."""
    if "others" not in result:
        return []
    other_files = result["others"]
    return [
        "Below the slow tier the files were in memory before each run. Those that were not staged "
        f"took {other_files['more']:+.1%} in the second; "
        f"{other_files['by_few']:+.1%} in those that took 10 ms and a fifth more than in the "
        "first. The tier is the same, so that is what else went on in the machine.\n"
    ]


def paper(result: dict[str, Any]) -> str:
    published, mine = result["paper"], result["policies"]
    small, gain, frozen = mine["small"], mine["gain"], mine.get("frozen")
    before = published["bps"], result["bps"], result["bps"]
    mores = published["more"], small["more"], gain["more"]

    def row(*cells: str) -> str:
        return f"| {' | '.join(cells)} |"

    return "\n".join(
        [
            "## tf-Darshan's malware case\n",
            f"Its counts and the shares of its bytes, sizes divided by {result['shrunk']}; one "
            "thread, batches of 32, no time for steps. The paper's disk is not described beyond "
            "its 94 MB/s in this case. Here it is a disk of 7,200 rpm that takes "
            f"{result['disk']['seek_s'] * 1e3:g} ms for a file (8.5 ms of seeking and half a turn, "
            f"divided like the sizes) and {result['disk']['bandwidth_bps'] / 1e6:.0f} MB/s, which "
            "together are 94 MB/s for files of the paper's sizes. Its 19 % went into nothing.\n",
            row("", "paper", "small: below 2 MB, as there", "gain: as the plan chooses"),
            row("---", "---", "---", "---"),
            row(
                "files of the data set",
                f"{published['files']:,}",
                f"{result['files']:,}",
                f"{result['files']:,}",
            ),
            row(
                "moved",
                f"{published['small_files']:,} (40 %)",
                f"{small['files']:,} ({small['files'] / result['files']:.0%})",
                f"{gain['files']:,} ({gain['files'] / result['files']:.0%})",
            ),
            row(
                "of the bytes",
                f"{published['small_bytes'] / published['bytes']:.1%}",
                f"{small['bytes'] / result['bytes']:.1%}",
                f"{gain['bytes'] / result['bytes']:.1%}",
            ),
            row("bandwidth before", *(f"{bps / 1e6:.0f} MB/s" for bps in before)),
            row("bandwidth gained", *(f"{more:.1%}" for more in mores)),
            row(
                "wait removed, predicted",
                "",
                f"{small['predicted_s']:.2f} s",
                f"{gain['predicted_s']:.2f} s",
            ),
            row(
                "wait removed, measured",
                "",
                f"{result['before']['wait_s'] - small['wait_s']:.2f} s",
                f"{result['before']['wait_s'] - gain['wait_s']:.2f} s",
            ),
            "",
            *(["The plan took the files below 2 MB too: that run is the same, and stands in both "
               "columns.\n"] if gain.get("is_same") else []),
            *([f"With `stage copy --frozen` no open of a copy asks for its source: the same files "
               f"then gain {frozen['more']:.1%}; the wait is "
               f"{result['before']['wait_s'] - frozen['wait_s']:.2f} s shorter.\n"]
              if frozen else []),
            "On this disk with seeks prediction and measurement differ more than in the three "
            "workloads, whose bar is 10 %. A staged open still asks for its source, which takes as "
            "long there as opening it, and the prediction counts that. What is left to gain is so "
            "small a part of the wait that a few per cent by which the other files take longer or "
            "shorter in the second run, as they do where other programs have the processors, count "
            "as much: the benchmark tells them.\n",
            "![Bandwidth gained](staging/tf-darshan.png)",
            "",
        ]
    )  # fmt: skip


def fill(result: dict[str, Any]) -> str:
    rows = []
    for row in result["filling"]:
        slower = (
            "" if row["slower"] is None else f"{row['slower']:+.1%} ± {row['slower_error']:.1%}"
        )
        copied = "" if row["copied_bytes"] is None else f"{row['copied_bytes'] / 1e6:,.0f} MB"
        mean = "" if row["mean_read_s"] is None else f"{row['mean_read_s'] * 1e3:.2f} ms"
        share = "" if row["wait_share"] is None else f"{row['wait_share']:.1%}"
        rows.append(
            f"| {row['filling']} | {row['seconds']:.1f} s | {copied} | {row['reads']:,} | {mean} | "
            f"{slower} | {share} |"
        )
    waits = ", ".join(f"{row['data_wait_s']:.1f} s" for row in result["epochs"])
    return "\n".join(
        [
            "## Filling while the first epoch reads\n",
            f"`penstock run --fill`, {result['files']:,} files, {result['bytes'] / 1e6:,.0f} MB, "
            "two epochs: what the job has read is copied meanwhile, with pauses to compare with.\n",
            "| | time | copied | reads of the files themselves | mean | longer | data wait |",
            "| --- | --- | --- | --- | --- | --- | --- |",
            *rows,
            "",
            f"Data wait by epoch: {waits}. Most of that fall is the page cache's: the slow tier "
            "keeps what was read, and without filling a second epoch waits less, too. What filling "
            "is shown to do here is not to disturb the first. `longer` compares reads of the same "
            "size; the mean is over whichever files came then.",
            "",
        ]
    )


# --- figures -------------------------------------------------------------------------------------


def _axes(columns: int) -> Any:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, columns, figsize=(4.2 * columns, 3.2), squeeze=False)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(colors=INK, labelsize=8)
        axis.grid(axis="y", color="#e4e7eb", linewidth=0.8)
        axis.set_axisbelow(True)
    return figure, axes[0]


def curves(shown: dict[str, Any], path: Path) -> None:
    """Plot the gain by bytes of each workload, the choice, and the measurement."""
    figure, axes = _axes(len(shown))
    for place, (axis, (name, result)) in enumerate(zip(axes, shown.items(), strict=True)):
        plan = result["plan"]
        x = [point["size_bytes"] / 1e6 for point in plan["curve"]]
        axis.plot(x, [point["gain_s"] for point in plan["curve"]], color=ONE, linewidth=1.8)
        chosen = plan["size_bytes"] / 1e6
        measured = result["before"]["wait_s"] - result["after"]["wait_s"]
        axis.plot(chosen, plan["gain_s"], "o", color=ONE, markersize=7, label="predicted")
        axis.plot(chosen, measured, "x", color=OTHER, markersize=9, markeredgewidth=2.2,
                  label="measured")  # fmt: skip
        axis.axhline(result["before"]["wait_s"], color=SOFT, linewidth=1, linestyle="--")
        axis.text(x[-1], result["before"]["wait_s"], "all wait", color=SOFT, fontsize=8, ha="right",
                  va="bottom")  # fmt: skip
        axis.set_title(name, fontsize=10, color=INK, loc="left")
        axis.set_xlabel("MB staged", fontsize=9)
        axis.set_ylim(0, 1.12 * result["before"]["wait_s"])
        if not place:
            axis.set_ylabel("s of data wait removed", fontsize=9)
            axis.legend(frameon=False, fontsize=8, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def gains(result: dict[str, Any], path: Path) -> None:
    """Plot the gained bandwidth: the paper's, by the paper's threshold here, by the plan."""
    figure, (axis,) = _axes(1)
    names = ["paper", "below 2 MB", "plan"]
    values = [
        result["paper"]["more"],
        *(result["policies"][key]["more"] for key in ("small", "gain")),
    ]
    axis.bar(names, [100 * value for value in values], color=[SOFT, ONE, OTHER], width=0.55)
    for place, value in enumerate(values):
        axis.text(place, 100 * value, f"{value:.1%}", ha="center", va="bottom", fontsize=9)
    axis.set_ylabel("% more bandwidth", fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
