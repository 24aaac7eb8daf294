"""The report as people see it: in a terminal, in a job's log, in a browser."""

import html.parser
import io
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.explain.measures import measure
from penstock.explain.report import (
    Check,
    Finding,
    Mark,
    Number,
    Remedy,
    Report,
    from_json,
    report_of,
    to_json,
)
from penstock.views import html as page
from penstock.views import terminal
from penstock.views.paper import SEGMENTS
from synthetic import Synthetic, training_job

SNAPSHOT = Path(__file__).parent / "logs" / "report-80.txt"
HOSTILE = "/data/<script>alert(1)</script>\x1b[31m\u202e\"'&[bold]\n.bin"
MS = 1_000_000


def job(**more: float) -> Synthetic:
    kind = {"compute_ms": 25, "read_ms": 4, "decode_ms": 1, "save_every": 40} | more
    return training_job(120, **kind)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def report() -> Report:
    return report_of(measure(job()))


@pytest.fixture(scope="module")
def hostile() -> Report:
    run = job()
    run.rows["processes"].clear()
    run.process(1, end=10**11, command=f"python {HOSTILE}.py", folder="/w<b>")
    run.note("<img src=x>", "<script>alert(2)</script>")
    run.rows["unseen"].append((1, 5, HOSTILE, HOSTILE))
    run.call("read", 0, 90 * MS, path=HOSTILE, moved=5000)
    return report_of(measure(run))


@pytest.fixture(scope="module")
def empty() -> Report:
    run = Synthetic()
    run.process(1, end=MS, command="true")
    return report_of(measure(run))


class Page(html.parser.HTMLParser):
    """The elements, attributes and text of a page."""

    VOID = ("meta", "wbr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"closes {tag}"

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_no_line_is_wider_than_the_terminal_or_a_hundred_columns(
    report: Report, width: int
) -> None:
    lines = terminal.render(report, width).split("\n")
    assert max(map(len, lines)) <= min(width, 100)
    assert not any(line.endswith(" ") for line in lines)


def test_what_a_terminal_of_80_columns_shows(
    report: Report, request: pytest.FixtureRequest
) -> None:
    """Look at the difference; if it is meant, write the new text into the file."""
    assert terminal.render(report, 80) == SNAPSHOT.read_text()


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", ["report", "hostile", "empty"])
def test_the_end_of_a_run_is_one_screen(
    name: str, width: int, request: pytest.FixtureRequest
) -> None:
    shown = request.getfixturevalue(name)
    lines = terminal.render(shown, width, is_brief=True).splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= width
    text = " ".join(line.strip("│ ") for line in lines)
    assert f"{shown.verdict.headline}:" in text
    for finding in shown.findings[:2]:
        assert f"({finding.rule})" in text
    assert "penstock report RUN" in text


def test_a_long_verdict_and_many_findings_fit_the_screen(report: Report) -> None:
    """What is left out first: blank rows, evidence, the second finding; never a command."""
    finding = replace(
        report.findings[0],
        evidence=("one " * 60, "two " * 60),
        remedies=(Remedy("feed", "do " * 60, "penstock feed bench /data"),),
    )
    verdict = replace(report.verdict, sentence="so it is " * 60)
    shown = replace(report, findings=(finding,) * 7, verdict=verdict, run="/scratch/" + "a" * 90)
    text = terminal.render(shown, 60, is_brief=True)
    lines = [line[at : at + 60] for line in text.splitlines() for at in range(0, len(line), 60)]
    assert len(lines) <= 24  # on the screen, which wraps lines
    assert f"  penstock report {shown.run}\n" in text, "a command that was cut is another"
    assert any("penstock feed bench /data" in line for line in lines)
    assert any("…" in line for line in lines)


def test_a_stretch_under_a_second_has_no_headline_in_capitals() -> None:
    headlines = []
    for steps in (5, 10):  # 0.5 s and 1.3 s of training
        made = training_job(steps, compute_ms=10, read_ms=19, decode_ms=1)
        headlines.append(report_of(measure(made)).verdict.headline)
    assert headlines == [
        "Highly input bound, highly I/O bound",
        "HIGHLY INPUT BOUND, highly I/O bound",
    ]


def test_the_verdict_is_the_first_thing_said(report: Report) -> None:
    first = terminal.render(report, 100).split("\n")[1]
    assert report.verdict.headline in first
    assert report.verdict.sentence in first


def test_without_colour_each_segment_has_its_own_letter(report: Report) -> None:
    text = terminal.render(report, 80)
    assert "\x1b" not in text
    bar = next(line for line in text.split("\n") if "####" in line).strip("│ ")
    assert len(bar) == 76
    letters = [SEGMENTS[segment.key][0] for segment in report.wall]
    assert re.fullmatch("".join(f"{re.escape(letter)}+" for letter in letters), bar)


def test_a_run_without_steps_shows_what_was_looked_for() -> None:
    run = Synthetic()
    for number in range(50):
        run.file(f"/data/{number}", size=60_000)
        at = 20 * number * MS
        run.call("open", at, at + MS, path=f"/data/{number}")
        run.call("read", at + MS, at + 11 * MS, path=f"/data/{number}", moved=60_000)
    run.process(1, end=2000 * MS, command="python convert.py")
    text = terminal.render(report_of(measure(run)), 80)
    assert "small reads, bound by latency (D2)" in text
    fine = "  metadata storm · the same bytes again · file calls that failed"
    assert f"Checked and fine  1 rule not applicable to this run\n{fine}" in text
    assert "25 rules: no training steps seen" in text


def test_one_call_is_no_calls() -> None:
    run = job()
    run.file("/data/once", size=8 << 20)
    run.call("pwrite", 0, MS, path="/data/once", moved=8 << 20)
    text = terminal.render(report_of(measure(run)), 100) + page.render(report_of(measure(run)))
    assert re.findall(r"(?<![\d,.])1 (?:calls|files)\b", text) == []


def test_with_colour_the_letters_stay(report: Report) -> None:
    text = terminal.render(report, 80, color=True)
    assert "\x1b[" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text).split() == terminal.render(report, 80).split()


def test_a_stream_that_takes_no_utf8_gets_ascii(report: Report) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    terminal.show_on(report, stream)
    stream.flush()
    text = raw.getvalue().decode("ascii")
    assert "HIGHLY I/O BOUND" in text
    assert max(map(len, text.split("\n"))) <= 80


def test_a_long_path_loses_its_middle(report: Report) -> None:
    text = terminal.render(report, 80)
    assert re.search(r"/scratch/proj\S*…\S*/step-000040\.pt", text)


def test_a_path_below_the_working_folder_is_shown_as_typed(report: Report) -> None:
    below = replace(report, folder="/scratch/project_465001234")
    assert " imagenet/train " in terminal.render(below, 100)


def test_a_hostile_name_moves_no_cursor(hostile: Report) -> None:
    text = terminal.render(hostile, 100)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "[bold]" in text  # and is no markup


@pytest.mark.parametrize("name", ["report", "hostile", "empty"])
def test_each_report_is_a_page_and_a_text(name: str, request: pytest.FixtureRequest) -> None:
    shown = request.getfixturevalue(name)
    Page(page.render(shown))
    assert shown.verdict.headline in Page(page.render(shown)).text
    for width in (60, 80, 100):
        assert shown.verdict.headline.split(",")[0] in terminal.render(shown, width)


def test_a_hostile_name_is_text_and_nothing_else(hostile: Report) -> None:
    text = page.render(hostile)
    found = Page(text)
    assert found.tags.count("script") == 1
    assert "img" not in found.tags
    assert "<script>alert" not in text
    assert "<script>alert(1)</script>" in found.text
    assert not [name for name, _ in found.attributes if name.startswith("on")]
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_the_page_loads_nothing(report: Report) -> None:
    text = page.render(report)
    found = Page(text)
    assert not {"link", "img", "iframe", "object", "embed"} & set(found.tags)
    assert not [v for name, v in found.attributes if name in ("src", "srcset", "data")]
    assert all(str(v).startswith("#") for name, v in found.attributes if name == "href")
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text.replace("url(#hatch)", "")
    policy = next(
        v for name, v in found.attributes if name == "content" and "default-src" in str(v)
    )
    assert "default-src 'none'" in str(policy)


def test_verdict_and_tables_need_no_script(report: Report) -> None:
    text = re.sub(r"<script.*?</script>", "", page.render(report), flags=re.DOTALL)
    found = Page(text)
    assert report.verdict.sentence in found.text
    assert found.tags.count("table") >= 7
    assert "step-000040.pt" in found.text


def test_each_picture_has_its_words(report: Report) -> None:
    text = page.render(report)
    for picture in report.pictures:
        if picture.kind != "lanes" or picture.key == "lanes_wait":  # one heat stands for all
            assert picture.title in text
    for svg in re.findall(r"<svg[^>]*>", text):
        assert 'aria-hidden="true"' in svg or "aria-label=" in svg


def test_what_is_incomplete_says_so_in_both_views(report: Report) -> None:
    run = job()
    run.rows["processes"].clear()
    run.process(1, end=10**11, folded_events=1234)
    run.process(2, end=10**11)
    run.process(3, end=10**11)
    shown = report_of(measure(run))
    assert "Incomplete: 1,234 calls" in terminal.render(shown, 100)
    assert "Incomplete: 1,234 calls" in page.render(shown)


def test_a_finding_is_a_card_with_its_evidence_gain_command_and_picture(report: Report) -> None:
    remedy = Remedy("stage", "copy it <first>", "penstock stage '/data/<x>'")
    gain, share = Number(2.5, "s", "derived"), Number(0.09, "share", "derived")
    found = Finding("D2", "small files & more", ("3,000 files",), gain, share, (remedy,), "files")
    other = replace(found, rule="C1", gain=Number(None, "s", "not measured", "why"), shown="no")
    checks = (Check("D1", "metadata storm", "not judged", "no calls <seen>"),)
    text = page.render(replace(report, findings=(found, other), checks=checks))
    shown = Page(text)
    for words in ("small files & more", "3,000 files", "gain up to 2.50 s (9.0 % of the wall"):
        assert words in shown.text
    assert "gain not measured: why" in shown.text
    assert "penstock stage '/data/<x>'" in shown.text
    assert "no calls <seen>" in shown.text
    links = [v for name, v in shown.attributes if name == "href"]
    assert links.count("#files") == 2  # of the contents, and of the finding
    assert ("id", "files") in shown.attributes
    seen = (replace(checks[0], state="fine"),)
    report = replace(report, verdict=replace(report.verdict, level="not"))
    nothing = Page(page.render(replace(report, findings=(), checks=seen))).text
    assert "Nothing found that costs enough" in nothing
    assert "could not be judged" not in nothing
    unjudged = (*seen, Check("D9", "tail", "not judged", "no events"))
    nothing = Page(page.render(replace(report, findings=(), checks=unjudged))).text
    assert "1 of 2 rules could not be judged" in nothing


def test_the_page_begins_with_contents_and_folds_its_details_away(report: Report) -> None:
    text = page.render(report)
    shown = Page(text)
    ids = [value for name, value in shown.attributes if name == "id"]
    sections = re.findall(r'<section id="([^"]+)"', text)
    contents = text[text.index("<nav") : text.index("</nav>")]
    assert re.findall(r'href="#([^"]+)"', contents) == sections
    links = [value for name, value in shown.attributes if name == "href"]
    assert all(link is not None and link.removeprefix("#") in ids for link in links)
    above, details = text.split('<details id="details">')
    assert 'id="findings"' in above
    assert 'id="files"' not in above
    assert 'id="files"' in details
    # A word of the waits leads to its definition.
    place, *_ = re.findall(r'href="#word-(\d+)">CPU \(decode\)', text)
    assert f'<dt id="word-{place}">CPU (decode)</dt>' in text


def test_what_cannot_be_typed_as_it_stands_has_no_button(report: Report) -> None:
    commands = ("penstock whatif runs/a --tier /dev/shm", "penstock save drain FAST SLOW --watch")
    remedies = tuple(Remedy("save", "do", command) for command in commands)
    one = Finding("D1", "d", ("e",), Number(1.0, "s"), Number(0.1, "share"), remedies)
    text = page.render(replace(report, findings=(one,)))
    assert f'<p class="command"><code>{commands[0]}' in text
    assert f'<p class="command template"><code>{commands[1]}' in text


def test_a_mark_is_a_dashed_line_unless_it_is_far_beyond_what_was_reached(report: Report) -> None:
    picture = report.picture("bandwidth")
    most = max(v or 0 for s in picture.series for v in s.values if s.key.startswith("read"))
    near, far = Mark("near ceiling", 1.2 * most, "read"), Mark("far ceiling", 9 * most, "read")
    marked = replace(picture, marks=(near, far))
    pictures = tuple(marked if p.key == "bandwidth" else p for p in report.pictures)
    text = page.render(replace(report, pictures=pictures))
    assert text.count('class="mark"') == 1
    assert "dashed: near ceiling" in text
    assert "Beyond the picture: far ceiling." in text  # its label tells the value


def test_each_string_of_a_chart_is_in_a_block_that_no_browser_runs(hostile: Report) -> None:
    text = page.render(hostile, b"var Plotly;</script><script>alert(3)</script>")
    found = Page(text)
    kinds = [v for name, v in found.attributes if name == "type"]
    assert kinds == ["application/gzip", "application/gzip", "module"]
    assert "alert(" not in text.replace("&lt;script&gt;alert(", "")


def test_a_page_of_a_large_run_is_small(report: Report) -> None:
    shown = report_of(measure(training_job(1500, compute_ms=5, save_every=5, save_ms=10)))
    assert len(shown.table("checkpoints").rows) == 300
    assert len(page.render(shown).encode()) < 300_000


def test_a_run_of_hardly_a_call_is_told_in_a_few_lines() -> None:
    run = Synthetic()
    run.process(1, end=20 * MS, command="cp /data/a /out/b")
    run.file("/lib/libc.so.6", path_class="library")
    run.file("/out/b", path_class="output")
    run.call("open", 0, MS, path="/lib/libc.so.6")
    run.call("read", MS, 2 * MS, path="/lib/libc.so.6", moved=832)
    run.call("read", 3 * MS, 4 * MS, moved=300)
    run.call("write", 4 * MS, 5 * MS, path="/out/b", moved=300)
    text = terminal.render(report_of(measure(run)), 80)
    assert text.count("\n") < 20
    assert "No training steps seen: 4 POSIX calls on files took 4.00 ms of 20.0 ms" in text
    assert "read 300 B (data and output files)" in text
    assert "/data/a" in text
    for absent in ("libc", "Sizes and latencies", "Operations", "Largest directories"):
        assert absent not in text
    assert "libc.so.6" not in text
    assert "page faults, page cache" in text
    # What takes a moment is worth its tables, whoever's files they are.
    run = Synthetic()
    run.process(1, end=2000 * MS, command="find /usr")
    run.file("/usr/lib", path_class="library", kind="directory")
    run.call("list", 0, 1500 * MS, path="/usr/lib")
    assert "Operations" in terminal.render(report_of(measure(run)), 80)


def test_a_directory_has_one_row_on_the_screen_and_both_layers_in_the_page() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS)
    run.call("read", 0, 200 * MS, path="/data/read/a", moved=300)
    run.call("fread", 0, 100 * MS, path="/data/read/a", moved=200)
    run.call("stat", 0, 100 * MS, path="/data/written/a")
    run.call("fwrite", 0, 300 * MS, path="/data/written/a", moved=200)
    run.call("fread", 0, 100 * MS, path="/data/alone/a", moved=7)
    shown = report_of(measure(run))
    text = terminal.render(shown, 100).split("Largest directories")[1].split("\n\n")[0]
    rows = [line.split()[:2] for line in text.split("\n")[2:]]
    assert sorted(rows) == [
        ["/data/alone", "(STDIO)"],
        ["/data/read", "200"],
        ["/data/written", "(STDIO)"],
    ]
    assert len(shown.table("directories").rows) == 5
    assert Page(page.render(shown)).text.count("/data/written") >= 2


def test_files_without_a_row_of_their_own_are_counted_and_told_in_every_view() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS)
    for number in range(103):  # by hand: 103 files, the first two read in both layers
        size = 3000 if number < 100 else 10
        run.call("read", number * MS, (number + 1) * MS, path=f"/data/{number:03}", moved=size)
    for number in range(2):
        run.call("fread", 0, 200 * MS, path=f"/data/{number:03}", moved=10)
    shown = report_of(measure(run))
    table = shown.table("files")
    assert (len(table.rows), table.n_all) == (100, 103)
    assert [(rest.n, rest.cells[0]) for rest in table.rest] == [(5, "5 other files")]
    assert from_json(to_json(shown)) == shown
    text = terminal.render(shown, 100).split("Largest files")[1].split("\n\n")[0]
    # Two rows of STDIO and four of POSIX are of four files.
    assert text.split("\n")[0] == "  4 of 103"
    assert text.split("\n")[-1].split()[:3] == ["99", "other", "files"]
    read = (96 * 3000 + 3 * 10) / 1000
    assert f"{read:.0f} kB" in text.split("\n")[-1]
    section = page.render(shown).split('<section id="files"')[1].split("</section>")[0]
    assert "The first 98 of 103." in section
    assert "5 other files" in section.split("<tfoot>")[1]
    assert section.split("<tfoot>")[0].count("<tr>") == 101


def test_a_report_of_an_earlier_release_lacks_what_came_later(report: Report) -> None:
    plain = json.loads(to_json(report))
    for table in plain["tables"]:
        del table["rest"], table["n_all"]
    tables = from_json(json.dumps(plain)).tables
    assert [table.rows for table in tables] == [table.rows for table in report.tables]


def test_latencies_of_a_buffer_are_no_latencies_of_storage() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS)
    run.call("read", 0, 200 * MS, moved=300)
    for number in range(200):
        run.call("fread", number * 1000, number * 1000 + 8, moved=1)
    run.call("fread", MS, 2 * MS, moved=1)
    run.call("fwrite", 3 * MS, 4 * MS, path="/data/b", moved=1)
    shown = report_of(measure(run))
    text = terminal.render(shown, 100)
    assert "latencies, read " in text
    assert "latencies, read (STDIO)" not in text
    assert "latencies, write (STDIO)" in text
    assert len(shown.picture("latencies").series) == 3


def test_the_times_of_requests_are_drawn_beside_their_table() -> None:
    run = Synthetic()
    run.process(1, end=2000 * MS)
    run.call("read", 0, 200 * MS, moved=300)
    for number in range(100):
        ms = 20 if number < 98 else 320
        run.request(number * MS, (number + ms) * MS, f"/{number}", endpoint="a.example:80")
        run.request(number * MS, (number + 1) * MS, f"/{number}", endpoint="b.example:80")
    shown = report_of(measure(run))
    picture = shown.picture("request_times")
    assert [one.label for one in picture.series] == [
        "first byte, a.example:80", "whole, a.example:80",
        "first byte, b.example:80", "whole, b.example:80",
    ]  # fmt: skip
    assert "whole, a.example:80: 100 requests, median 20.0 ms, 99th percentile 320 ms" in (
        picture.words
    )
    whole = picture.series[1].values
    places = [place for place, n in enumerate(whole) if n]
    assert [whole[place] for place in places] == [98, 2]
    assert (picture.edge(places[0]), picture.edge(places[1])) == ("17 ms", "270 ms")
    text = page.render(shown)
    section = text[text.index('<section id="remote_requests"') :]
    section = section[: section.index("</section>")]
    assert section.count("<figure") == 4
    text = terminal.render(shown, 100)
    assert "Time of requests" in text
    assert "99th percentile 320 ms" in text


def test_a_column_that_says_nothing_is_not_shown(report: Report) -> None:
    head = terminal.render(report, 100).split("Operations")[1].split("\n")[1]
    assert "errors" not in head
    assert "median" in head


# How much a colour-blind eye receives of linear red, green and blue: Machado, Oliveira, Fernandes
# 2009, table 1, severity 1.0.
SIGHTS = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protan": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deutan": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritan": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# CIE76 units; two colours side by side are told apart from about 2.3 on, at a glance from some 10.
FAR_APART = 20
TOGETHER = {
    "time": "compute own data-storage data-cpu data-other checkpoint-storage checkpoint-other",
    "ops": "read write metadata",
}


def lab(color: str, sight: str) -> tuple[float, float, float]:
    linear = []
    for place in (1, 3, 5):
        value = int(color[place : place + 2], 16) / 255
        linear.append(value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4)
    seen = [sum(a * b for a, b in zip(row, linear, strict=True)) for row in SIGHTS[sight]]
    r, g, b = (min(1.0, max(0.0, value)) for value in seen)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


@pytest.mark.parametrize("sight", SIGHTS)
def test_colours_that_meet_are_told_apart_by_every_eye(sight: str) -> None:
    themes = re.findall(r":root \{(.*?)\}", page.asset("page.css"), re.DOTALL)
    assert len(themes) == 2
    for theme in themes:
        colors = dict(re.findall(r"--([\w-]+): (#\w{6})", theme))
        for group in TOGETHER.values():
            for one, other in itertools.combinations(group.split(), 2):
                apart = math.dist(lab(colors[one], sight), lab(colors[other], sight))
                assert apart >= FAR_APART, f"{one} and {other}: {apart:.0f}"
