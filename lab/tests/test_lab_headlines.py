"""The table of headline figures: each figure is a result's, and the page shows the results."""

import json
import shutil
import sys
from pathlib import Path
from statistics import median

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import headlines
from headlines import EXPERIMENTS, HEADLINES, NOT_MEASURED, Headline


def row_of(figure: str, folder: Path = EXPERIMENTS) -> list[str]:
    (headline,) = [line for line in HEADLINES if line.figure == figure]
    return headlines.row_of(headline, folder)


def test_the_page_shows_the_table_of_the_kept_results() -> None:
    _, mark, rest = headlines.PAGE.read_text().partition(headlines.BEGIN)
    shown, end, _ = rest.partition(headlines.END)
    assert mark
    assert end
    assert shown.strip() == headlines.table().strip()


def test_a_figure_is_that_of_the_runs_themselves() -> None:
    """Recompute from each run, not from the points of the table."""
    runs = json.loads((EXPERIMENTS / "checkpoint" / "checkpoint.json").read_bytes())["runs"]
    totals = {(run["way"], run["repeat"]): run["total_s"] for run in runs}
    repeats = {repeat for _, repeat in totals}

    def overhead_s(way: str) -> float:
        return median(totals[way, n] - totals["none", n] for n in repeats)

    gain = overhead_s("slow") / overhead_s("drain")
    assert f"{gain:.2f} times" in row_of("burst buffer, 733 MB on the disk, beside a drain")[3]
    assert row_of("burst buffer, 733 MB on the disk, beside a drain")[4] == f"{gain / 2.6:.2f}"


def test_another_result_is_another_row(tmp_path: Path) -> None:
    figure = "ImageNet, 28 threads over 1"
    for of in ("cases", "cases-parallel"):
        shutil.copytree(EXPERIMENTS / of, tmp_path / of)
    assert row_of(figure, tmp_path) == row_of(figure)
    file = tmp_path / "cases-parallel" / "cases.json"
    result = json.loads(file.read_bytes())
    for point in result["points"]:
        if point["factors"]["how"] == "28 threads":
            point["values"]["against"] = 8.4
    file.write_text(json.dumps(result))
    shown, ratio = row_of(figure, tmp_path)[3:5]
    assert shown.startswith("8.40 times on servers side by side")
    assert ratio == "1.05"


@pytest.mark.parametrize(
    ("value", "ratio"),
    [(0.15, "within"), (0.05, "0.50"), (0.4, "2.00"), (None, "–"), (0.1, "within")],
)
def test_a_ratio_is_over_the_nearer_end_of_the_published_range(
    value: float | None, ratio: str
) -> None:
    published = Headline("work", "figure", "10 to 20 %", 0.1, 0.2, "page", None, "")
    assert published.ratio(value) == ratio


def test_a_figure_without_a_result_is_not_measured() -> None:
    for headline in HEADLINES:
        row = headlines.row_of(headline, EXPERIMENTS)
        assert (row[3] == NOT_MEASURED) == (headline.measured is None) == (row[7] == "–")
        assert (EXPERIMENTS / f"{headline.page}.md").exists()
