"""The report in a real browser: what opens, what it says, what it costs.  Chromium, headless."""

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from browser import CHROMIUM, Browser
from penstock.explain.measures import measure
from penstock.explain.report import (
    Check,
    Finding,
    Mark,
    Number,
    Remedy,
    Report,
    about_rule,
    report_of,
    show,
)
from penstock.views import html as page
from synthetic import training_job

pytest.importorskip("plotly", reason="there is no plotly: pip install 'penstock[html]'")

needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no chromium: make setup-system"
)

HOSTILE = "<img src=x onerror=alert(1)>"
DRAWN = "document.documentElement.dataset.ready"
MOST_BYTES = 3_000_000
MOST_DRAW_S = 1.5

FINDINGS = (
    Finding(
        "C1",
        "checkpoints block the step loop",
        ("3 saves of 0.79 s", "96 MB each at 122 MB/s"),
        Number(2.36, "s", "derived"),
        Number(0.13, "share", "derived"),
        (Remedy("save", "write to memory first", "penstock save --buffer /dev/shm 'a b'"),),
        "checkpoints",
    ),
    Finding(
        "D2",
        f"small files {HOSTILE}",
        ("1,870 files",),
        Number(None, "s", "not measured", "no ceiling known"),
        Number(None, "share", "not measured"),
        (Remedy("code", "read larger pieces"),),
        "lanes_time",
    ),
)
CHECKS = (Check("D1", "metadata storm", "fine", "0.3 % of the wait"),)


def judged(report: Report, *marks: Mark) -> Report:
    """The report with findings, checks and marks made by hand."""
    pictures = tuple(
        replace(picture, marks=marks) if picture.key == "bandwidth" else picture
        for picture in report.pictures
    )
    return replace(report, findings=FINDINGS, checks=CHECKS, pictures=pictures)


@pytest.fixture(scope="module")
def report() -> Report:
    mark = Mark(f"ceiling {HOSTILE}", 60e6, "read")
    return judged(report_of(measure(training_job(120, save_every=40))), mark)


@pytest.fixture(scope="module")
def largest(report: Report) -> Report:
    """As much as a report can hold, whatever the run's size, in values that do not compress."""
    rng = random.Random(1)

    def noise(n: int) -> tuple[float, ...]:
        return tuple(float(f"{rng.lognormvariate(10, 4):.4g}") for _ in range(n))

    pictures = []
    for picture in report.pictures:
        one = picture.series[0]
        if picture.kind == "lanes":
            series = tuple(
                replace(one, label=f"rank {n // 4} worker {n % 4}", values=noise(140))
                for n in range(256)
            )
            picture = replace(picture, series=series, x_step=21.0)
        elif picture.kind == "stack":
            series = tuple(replace(s, values=noise(1000)) for s in picture.series)
            at_s = tuple(5.0 * n for n in range(1001))
            picture = replace(picture, series=series, at_s=at_s, x_step=5000)
        elif picture.kind == "lines":
            series = tuple(
                replace(one, key=f"{group} {n}", label=f"{group} {n}", values=noise(600))
                for group in ("read", "write")
                for n in range(4)
            )
            picture = replace(picture, series=series, x_step=8.3)
        pictures.append(picture)
    tables = []
    for table in report.tables:
        rows = tuple(table.rows[n % len(table.rows)] for n in range(500)) if table.rows else ()
        tables.append(replace(table, rows=rows))
    return replace(report, pictures=tuple(pictures), tables=tuple(tables))


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with Browser() as one:
        yield one


def opened(browser: Browser, folder: Path, text: str) -> None:
    path = folder / "page.html"
    path.write_text(text, encoding="utf-8")
    browser.open(f"file://{path}")
    browser.wait(DRAWN)


@needs_browser
def test_charts_are_drawn_without_a_complaint_and_without_a_network(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    opened(browser, tmp_path, page.render(report, page.chart_library()))
    assert browser.problems == []
    assert [url for url in browser.requested if not url.startswith(("file:", "data:"))] == []
    assert browser.run("document.querySelectorAll('.drawn .live .main-svg').length") >= 3
    still = "getComputedStyle(document.querySelector('#steps .still')).display"
    assert browser.run(still) == "none"


@needs_browser
def test_what_is_shown_is_what_the_report_says(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    opened(browser, tmp_path, page.render(report, page.chart_library()))
    text = browser.run("document.body.innerText")
    assert report.verdict.headline in text
    for fact in report.stretches:
        assert fact.number.value is not None
        assert show(fact.number.value, fact.number.unit) in text
    for finding in FINDINGS:
        assert finding.title in text
        assert all(line in text for line in finding.evidence)
    drawn = browser.run("document.querySelector('#steps .live').data.map(t => [t.name, t.y])")
    steps = report.picture("steps")
    for series, (name, values) in zip(steps.series, drawn, strict=True):
        assert name == series.label
        assert values[:-1] == pytest.approx(series.values, rel=1e-3)
    heat = browser.run("document.querySelector('#lanes .live.js-plotly-plot').data[0].z")
    for series, row in zip(report.picture("lanes_wait").series, heat, strict=True):
        said = [value or 0 for value in row]
        assert said == pytest.approx([v or 0 for v in series.values], rel=5e-3)


@needs_browser
def test_zooming_one_chart_zooms_all(browser: Browser, report: Report, tmp_path: Path) -> None:
    opened(browser, tmp_path, page.render(report, page.chart_library()))
    ranges = "[...document.querySelectorAll('.live.js-plotly-plot')].map(p => p.layout.xaxis.range)"
    whole = browser.run(ranges)
    assert len(whole) == 3
    assert all(one == whole[0] for one in whole)
    browser.run(
        "Plotly.relayout(document.querySelector('#lanes .live.js-plotly-plot'),"
        " {'xaxis.range[0]': 4, 'xaxis.range[1]': 6}).then(() => 1)"
    )
    browser.wait(f"({ranges}).every(range => range[0] === 4 && range[1] === 6)")


@needs_browser
def test_each_heat_can_be_chosen(browser: Browser, report: Report, tmp_path: Path) -> None:
    opened(browser, tmp_path, page.render(report, page.chart_library()))
    for place, key in enumerate(("lanes_wait", "lanes_time", "lanes_bytes", "lanes_calls")):
        browser.run(f"document.querySelectorAll('.heats input')[{place}].click()")
        shown = browser.run("document.querySelector('#lanes .live.js-plotly-plot').data[0].z[1]")
        values = report.picture(key).series[1].values
        assert [v or 0 for v in shown] == pytest.approx([v or 0 for v in values], rel=5e-3)
        words = browser.run("document.querySelector('#lanes figcaption').textContent")
        assert report.picture(key).words in words
    assert browser.problems == []


@needs_browser
def test_a_heading_sorts_its_table_and_a_command_can_be_copied(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    opened(browser, tmp_path, page.render(report, page.chart_library()))
    column = (
        "[...document.querySelectorAll('#operations tbody tr')].map(r => +r.cells[1].dataset.v)"
    )
    browser.run("document.querySelectorAll('#operations th button')[1].click()")
    found = browser.run(column)
    assert len(found) > 3
    assert found == sorted(found, reverse=True)
    browser.run("document.querySelectorAll('#operations th button')[1].click()")
    assert browser.run(column) == sorted(found)
    browser.run("navigator.clipboard.writeText = (text) => { window.got = text; }")
    browser.run("document.querySelector('.command button').click()")
    assert browser.wait("window.got") == "penstock save --buffer /dev/shm 'a b'"


@needs_browser
def test_without_scripts_and_on_paper_the_still_pictures_are_there(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    text = page.render(report, page.chart_library())
    opened(browser, tmp_path, text)
    browser.ask("Emulation.setEmulatedMedia", media="print")
    display = "getComputedStyle(document.querySelector('#lanes .{}')).display"
    assert browser.run(display.format("still")) == "block"
    assert browser.run(display.format("live")) == "none"
    browser.resize(703, 900)  # A4 less its margins: what is wider would be cut off
    tables = (
        "[...document.querySelectorAll('.scroll')].map(box => box.scrollWidth - box.clientWidth)"
    )
    assert set(browser.run(tables)) == {0}
    browser.resize(1100, 900)
    browser.ask("Emulation.setEmulatedMedia", media="")
    browser.scripts(False)
    try:
        browser.open(f"file://{tmp_path / 'page.html'}")
        browser.wait("document.readyState === 'complete'")
        assert browser.run(display.format("still")) == "block"
        assert report.verdict.sentence in browser.run("document.body.innerText")
    finally:
        browser.scripts(True)


@needs_browser
def test_a_rule_links_to_its_condition_and_limits(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    opened(browser, tmp_path, page.render(report, page.chart_library()))
    look = "document.querySelector('details.about').open"
    assert browser.run(look) is False
    browser.run("document.querySelector('a.rule[href=\"#rule-C1\"]').click()")
    browser.wait(look)
    text = browser.run("document.querySelector('#rule-C1').parentElement.innerText")
    for limit in about_rule("C1")[1]:
        assert limit.replace("`", "") in text


@needs_browser
@pytest.mark.parametrize("width", [360, 768, 1600])
def test_nothing_is_wider_than_the_window(
    browser: Browser, report: Report, tmp_path: Path, width: int
) -> None:
    browser.resize(width, 800)
    try:
        opened(browser, tmp_path, page.render(report, page.chart_library()))
        assert browser.run("document.documentElement.scrollWidth") <= width
    finally:
        browser.resize(1100, 900)


@needs_browser
def test_at_1100_pixels_no_table_is_cut_and_no_name_of_a_pass_is_struck_through(
    browser: Browser, tmp_path: Path
) -> None:
    run = training_job(120, save_every=40)
    for number in range(40):  # both layers: the column of layers is there
        path = f"/scratch/project_465001234/a-long-name-of-a-folder/tokens-{number:05}-of-00040.bin"
        run.file(path, size=12_345_678)
        run.call("open", 10**9, 10**9 + 10**6, path=path)
        run.call("fread", 10**9, 11 * 10**8, path=path, moved=123_456_789)
    run.span("loader", 34 * 10**8, None, index=2)
    browser.resize(1100, 900)
    opened(browser, tmp_path, page.render(report_of(measure(run)), page.chart_library()))
    heads = browser.run(
        "[...document.querySelectorAll('#files th')].map(cell => cell.textContent.trim())"
    )
    assert heads[-1] == "layer"
    over = (
        "[...document.querySelectorAll('section[id]')].filter(one => one.querySelector('.scroll'))"
        ".map(one => [one.id, one.querySelector('.scroll').scrollWidth"
        " - one.querySelector('.scroll').clientWidth]).filter(([, over]) => over > 0)"
    )
    assert browser.run(over) == []
    names = browser.run(
        "document.querySelector('#steps .live').layout.annotations"
        ".map(one => [one.text, one.bgcolor])"
    )
    card = "getComputedStyle(document.documentElement).getPropertyValue('--card').trim()"
    assert names
    assert {color for _, color in names} == {browser.run(card)}


@pytest.mark.alone
@needs_browser
def test_the_largest_page_is_small_and_soon_drawn(
    browser: Browser, largest: Report, tmp_path: Path
) -> None:
    text = page.render(largest, page.chart_library())
    assert len(text.encode()) <= MOST_BYTES
    times = []
    for _ in range(3):
        # The page's own processor time: what else the machine does is not the page's.
        browser.ask("Performance.enable", timeDomain="threadTicks")
        opened(browser, tmp_path, text)
        found = browser.ask("Performance.getMetrics")["metrics"]
        times.append(next(one["value"] for one in found if one["name"] == "TaskDuration"))
        browser.ask("Performance.disable")
    print(
        f"{len(text.encode()):,} bytes, {times} s of the page's thread; clock {browser.run(DRAWN)}"
    )
    assert min(times) <= MOST_DRAW_S
    assert browser.problems == []


@needs_browser
def test_a_page_has_at_most_six_screens_before_its_details_and_a_link_opens_them(
    browser: Browser, report: Report, tmp_path: Path
) -> None:
    browser.resize(1400, 900)
    opened(browser, tmp_path, page.render(report, page.chart_library()))
    assert browser.run("document.documentElement.scrollHeight") <= 6 * 900
    assert browser.run("document.getElementById('details').open") is False
    browser.run("location.hash = '#gaps'")
    browser.wait("document.getElementById('details').open")
    # An axis of shares is in per cent.
    texts = browser.run("[...document.querySelectorAll('.live text')].map(t => t.textContent)")
    assert not [text for text in texts if "share" in text]
    browser.resize(1100, 900)
