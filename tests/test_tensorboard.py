"""Penstock in TensorBoard: curves and words in its own files, a tab that finds runs by itself."""

import gzip
import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from browser import CHROMIUM, Browser
from penstock.errors import MissingDependency, RunError
from penstock.explain.measures import measure
from penstock.explain.report import Finding, Number, Remedy, Report, report_of, show, to_json
from penstock.views.tensorboard import TABS, Pages, scalars, summary, write_events
from synthetic import Synthetic, training_job

pytest.importorskip(
    "tensorboard", reason="there is no tensorboard: pip install penstock[tensorboard]"
)

from penstock.interop.tensorboard import Plugin, Runs
from tensorboard_server import without_tensorflow

without_tensorflow()

SERVER = Path(__file__).parent / "tensorboard_server.py"
LOGS = Path(__file__).parent / "logs"
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)> | `x` **y** [z](javascript:q)"
MS = 1_000_000


@pytest.fixture(scope="module")
def report() -> Report:
    made = report_of(measure(training_job(120, save_every=40)), "runs/a")
    gain, share = Number(2.36, "s", "derived"), Number(0.13, "share", "derived")
    remedy = Remedy("save", "write to memory first", "penstock save --buffer /dev/shm")
    found = Finding("C1", "checkpoints block", ("3 saves",), gain, share, (remedy,), "checkpoints")
    return replace(made, findings=(found,))


@pytest.fixture(scope="module")
def faster(report: Report) -> Report:
    made = report_of(measure(training_job(120, save_every=40, save_ms=80)), "runs/b")
    return replace(made, title="other.py", findings=())


@pytest.fixture(scope="module")
def hostile(report: Report) -> Report:
    finding = replace(report.findings[0], title=HOSTILE, evidence=(HOSTILE,))
    return replace(report, title=HOSTILE, findings=(finding,), host=HOSTILE)


# Event files


def read_back(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    found.Reload()
    return found


def curve(found: Any, tag: str) -> list[tuple[int, float]]:
    from tensorboard.util import tensor_util

    points = found.Tensors(f"penstock/{tag}")
    return [(p.step, float(tensor_util.make_ndarray(p.tensor_proto))) for p in points]


def test_curves_are_the_reports_numbers_by_step(report: Report, tmp_path: Path) -> None:
    write_events(report, tmp_path, 1_700_000_000.0)
    found = read_back(tmp_path)
    steps = report.picture("steps")
    of = {series.key: series.values for series in steps.series}
    assert curve(found, "data_wait_s") == [
        (place + 1, pytest.approx(value, rel=1e-6)) for place, value in enumerate(of["data"])
    ]
    assert sum(value for _, value in curve(found, "checkpoint_s")) == pytest.approx(
        sum(value or 0 for value in of["checkpoint"]), rel=1e-6
    )
    [(last, stall)] = curve(found, "run_stall_share")
    assert (last, stall) == (120, pytest.approx(report.verdict.stall.value))
    first = found.Tensors("penstock/step_s")[0]
    assert first.wall_time == pytest.approx(1_700_000_000 + steps.at_s[1])


def test_what_is_read_during_steps_is_what_was_read_then(report: Report) -> None:
    steps, bandwidth = report.picture("steps"), report.picture("bandwidth")
    points = [point for point in scalars(report) if point.tag == "penstock/read_MB_per_s"]
    lengths = [b - a for a, b in zip(steps.at_s, steps.at_s[1:], strict=False)]
    read = sum(p.value * 1e6 * s for p, s in zip(points, lengths, strict=True))
    [series] = [s for s in bandwidth.series if s.key.startswith("read")]
    inside = 0.0
    for place, value in enumerate(series.values):
        start = bandwidth.x_start + place * bandwidth.x_step
        shared = min(start + bandwidth.x_step, steps.at_s[-1]) - max(start, steps.at_s[0])
        inside += (value or 0) * max(0.0, shared)
    assert read == pytest.approx(inside)


def test_writing_twice_leaves_one_file_and_touches_no_other(report: Report, tmp_path: Path) -> None:
    other = tmp_path / "events.out.tfevents.1.theirs"
    other.write_bytes(b"theirs")
    write_events(report, tmp_path, 0.0)
    write_events(report, tmp_path, 0.0)
    assert other.read_bytes() == b"theirs"
    assert len(list(tmp_path.glob("*.penstock"))) == 1


def test_the_text_says_verdict_findings_and_what_to_do(report: Report, tmp_path: Path) -> None:
    from tensorboard.util import tensor_util

    write_events(report, tmp_path, 0.0)
    [said] = read_back(tmp_path).Tensors("penstock/findings")
    text = tensor_util.make_ndarray(said.tensor_proto).item().decode()
    assert text == summary(report)
    for words in (report.verdict.sentence, "C1 checkpoints block", "3 saves", "13 % of the wall"):
        assert words in text
    assert "`penstock save --buffer /dev/shm`" in text


def test_a_hostile_name_is_no_markup_in_the_text(hostile: Report) -> None:
    from tensorboard.plugin_util import markdown_to_safe_html

    shown = markdown_to_safe_html(summary(hostile))
    assert not re.search(r"<(script|img|a)\b", shown)
    assert "<strong>y" not in shown
    assert "alert(1)" in shown


def test_a_run_without_steps_has_a_text_and_no_curve_of_zeros(tmp_path: Path) -> None:
    run = Synthetic()
    run.process(1, end=MS)
    write_events(report_of(measure(run)), tmp_path, 0.0)
    assert read_back(tmp_path).Tags()["tensors"] == ["penstock/findings"]


def test_without_tensorboard_the_extra_is_named(
    report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer.record_writer", None)
    with pytest.raises(MissingDependency, match=r"penstock\[tensorboard\]"):
        write_events(report, tmp_path, 0.0)


def test_a_folder_that_cannot_be_written_is_named(report: Report, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file"):
        write_events(report, tmp_path / "file" / "below", 0.0)


# Which runs there are


@pytest.fixture
def logdir(tmp_path: Path, report: Report, faster: Report) -> Path:
    """Two reports, and much that is none."""
    folder = tmp_path / "logs"
    (folder / "week" / "tables").mkdir(parents=True)
    (folder / "week" / "before.json").write_text(to_json(report))
    (folder / "week" / "after.json").write_text(to_json(faster, indent=None))
    (folder / "other.json").write_text('{"reports": 1}')
    (folder / "train.log").write_text("epoch 1\n" * 2000)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "run.json").write_text(to_json(report))
    os.mkfifo(folder / "pipe.json")
    (tmp_path / "outside.json").write_text(to_json(report))
    return folder


def test_runs_are_reports_and_folders_with_logs_and_nothing_else(
    logdir: Path, report: Report, faster: Report
) -> None:
    (logdir / "recorded" / "below").mkdir(parents=True)
    log = gzip.decompress((LOGS / "v1.log.gz").read_bytes())
    (logdir / "recorded" / "1.log").write_bytes(log)
    (logdir / "recorded" / "below" / "2.log").write_bytes(log)
    runs = Runs({"": logdir})
    assert runs.names() == ["recorded", "week/after.json", "week/before.json"]
    assert runs.report("week/before.json") == report
    assert runs.report("week/after.json") == faster
    assert runs.report("recorded").table("processes").rows


def test_runs_are_sorted_as_people_count(tmp_path: Path, report: Report) -> None:
    for name in ("d10", "d2", "d1b", "e"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text(to_json(report))
    names = [name.split("/")[0] for name in Runs({"": tmp_path}).names()]
    assert names == ["d1b", "d2", "d10", "e"]


@pytest.mark.parametrize(
    "name",
    [
        "../outside.json",
        "week/../week/before.json",
        "/etc/passwd",
        "",
        "week/before.json\0",
        "week",
    ],
)
def test_a_name_that_is_not_listed_is_no_run_whatever_path_it_spells(
    logdir: Path, name: str
) -> None:
    with pytest.raises(KeyError):
        Runs({"": logdir}).report(name)


def test_a_report_is_made_again_when_its_file_has_changed(
    logdir: Path, report: Report, faster: Report
) -> None:
    runs = Runs({"": logdir})
    first = runs.report("week/before.json")
    assert runs.report("week/before.json") is first
    (logdir / "week" / "before.json").write_text(to_json(faster))
    assert runs.report("week/before.json") == faster


def test_a_broken_report_is_refused_in_a_sentence(logdir: Path) -> None:
    (logdir / "half.json").write_text('{"report": 1, "run": "x"')
    with pytest.raises(RunError, match=r"half\.json: no report of Penstock"):
        Runs({"": logdir}).report("half.json")


def test_a_logdir_spec_names_several_folders_and_no_logdir_is_not_the_working_folder(
    logdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(logdir)
    spec = f"mine:{logdir},{logdir / 'week'}"
    flags = SimpleNamespace(logdir_spec=spec)
    routes = Plugin(SimpleNamespace(logdir="", flags=flags)).get_plugin_apps()
    listed = json.loads(b"".join(routes["/runs"]({}, lambda *_: None)))["runs"]
    week = str(logdir / "week")
    assert listed == sorted(
        [f"mine/week/{name}.json" for name in ("after", "before")]
        + [f"{week}/{name}.json" for name in ("after", "before")]
    )
    nowhere = SimpleNamespace(logdir="", flags=SimpleNamespace(logdir_spec=""))
    assert not Plugin(nowhere).is_active()


# Its answers


@pytest.fixture
def answer(report: Report, hostile: Report) -> Callable[..., tuple[str, dict[str, str], bytes]]:
    known = {"a": report, HOSTILE: hostile}

    def find(name: str) -> Report:
        if name == "broken":
            raise RunError("broken: cannot be read")
        return known[name]

    routes = Pages(lambda: [*known], find, "logs").routes()

    def ask(path: str, query: str = "", **more: str) -> tuple[str, dict[str, str], bytes]:
        heard: list[Any] = []
        environ = {"REQUEST_METHOD": "GET", "QUERY_STRING": query, **more}
        body = b"".join(routes[path](environ, lambda *said: heard.append(said)))
        [(status, headers)] = heard
        return status, dict(headers), body

    ask.routes = routes  # type: ignore[attr-defined]
    return ask


def test_every_answer_says_its_type_and_that_it_is_not_to_be_guessed(answer: Any) -> None:
    kinds = {"": "application/json", "js": "text/javascript", "css": "text/css"}
    for path in answer.routes:
        status, headers, body = answer(path, "run=a&tab=overview&before=a&after=a")
        assert status == "200 OK", path
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Content-Type"].startswith(kinds[path.partition(".")[2]])
        assert int(headers["Content-Length"]) == len(body)


@pytest.mark.parametrize(
    "query",
    ["run=../a&tab=overview", "run=a&tab=../x", "run=a", "tab=overview", "", "run=%00&tab=x"],
)
def test_what_is_not_there_is_not_found(answer: Any, query: str) -> None:
    assert answer("/page", query)[0] == "404 Not Found"


def test_without_plotly_its_script_says_which_extra_brings_it(
    answer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    status, _, body = answer("/plotly.js")
    assert status == "200 OK"
    assert body.startswith(b"console.info(")
    assert b"penstock[html]" in body


def test_only_get_is_answered(answer: Any) -> None:
    assert answer("/runs", REQUEST_METHOD="POST")[0] == "405 Method Not Allowed"


def test_a_run_that_cannot_be_read_says_why(answer: Any) -> None:
    status, _, body = answer("/page", "run=broken&tab=overview")
    assert (status, json.loads(body)) == ("200 OK", {"error": "broken: cannot be read"})


def test_a_hostile_run_is_text_on_every_page(answer: Any) -> None:
    from urllib.parse import quote

    for tab in TABS:
        _, _, body = answer("/page", f"run={quote(HOSTILE)}&tab={tab}")
        markup = json.loads(body)["html"]
        assert not re.search(r"<(script|img)\b", markup)
    _, _, body = answer("/compare", f"before={quote(HOSTILE)}&after=a")
    assert not re.search(r"<(script|img)\b", json.loads(body)["html"])


def test_every_table_and_picture_of_a_report_is_on_some_page(answer: Any, report: Report) -> None:
    markup = "".join(json.loads(answer("/page", f"run=a&tab={tab}")[2])["html"] for tab in TABS)
    for table in report.tables:
        assert not table.rows or f'id="{table.key}"' in markup
    for picture in report.pictures:
        name = "lanes" if picture.kind == "lanes" else picture.key
        assert f'id="{name}"' in markup


def test_two_programs_compared_are_said_to_be_two(answer: Any, report: Report) -> None:
    from urllib.parse import quote

    _, _, body = answer("/compare", f"before={quote(HOSTILE)}&after=a")
    assert "different programs" in json.loads(body)["html"]
    _, _, body = answer("/compare", "before=a&after=a")
    same = json.loads(body)["html"]
    assert "different programs" not in same
    assert "still there" in same


# In a browser


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Path], str]]:
    """Starts TensorBoard over a folder; its address."""
    started = []

    def start(logdir: Path) -> str:
        command = [sys.executable, SERVER, "--logdir", logdir, "--port", "0", "--load_fast=false"]
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        started.append(server)
        assert server.stderr
        for line in server.stderr:
            found = re.search(r"http://\S+", line)
            if found:
                return found[0].replace("localhost", "127.0.0.1")
        raise AssertionError("TensorBoard did not start")

    yield start
    for server in started:
        server.terminate()
        assert server.stderr
        server.stderr.close()
        server.wait(240)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("there is no chromium: make setup-system")
    with Browser(1300, 1000) as one:
        yield one


FRAME = "document.querySelector('iframe').contentDocument"
# TensorBoard's own complaints, of its other pages.
THEIRS = ("Three.js", "software WebGL")


def complaints(browser: Browser) -> list[str]:
    return [said for said in browser.problems if not any(their in said for their in THEIRS)]


def opened(browser: Browser, address: str) -> None:
    browser.open(f"{address}#penstock")
    browser.wait(f"{FRAME}.documentElement.dataset.ready")


def chosen(browser: Browser, tab: str) -> str:
    """Goes to a tab; what it says."""
    browser.run(f"{FRAME}.getElementById('tab-{tab}').click()")
    browser.wait(f"{FRAME}.documentElement.dataset.ready?.startsWith('{tab} ')")
    text: str = browser.run(f"{FRAME}.getElementById('page').innerText")
    return text


def test_all_pages_open_and_say_the_reports_numbers(
    browser: Browser, board: Any, logdir: Path, report: Report
) -> None:
    opened(browser, board(logdir))
    select = f"{FRAME}.getElementById('choose-run')"
    browser.run(f"{select}.value = 'week/before.json'")
    browser.run(f"{select}.dispatchEvent(new Event('change'))")
    text = chosen(browser, "overview")
    assert report.verdict.sentence in text
    assert "penstock save --buffer /dev/shm" in text
    for fact in report.stretches:
        assert show(fact.number.value, fact.number.unit) in text
    assert report.picture("steps").words in chosen(browser, "steps")
    drawn = browser.run(f"{FRAME}.querySelector('#steps .live').data.map(t => t.y.slice(0, -1))")
    for series, values in zip(report.picture("steps").series, drawn, strict=True):
        assert values == pytest.approx(series.values, rel=1e-3)
    text = chosen(browser, "timeline")
    assert report.picture("lanes_wait").words in text
    assert browser.run(f"{FRAME}.querySelectorAll('.live.js-plotly-plot').length") == 3
    text = chosen(browser, "files")
    assert show(report.table("files").rows[0][1], "s") in text
    text = chosen(browser, "checkpoints")
    assert len(report.table("checkpoints").rows) == 3
    assert text.count("step-0000") >= 2
    text = chosen(browser, "compare")
    assert "different programs" in text
    assert "before: week/after.json" in text
    assert "after: week/before.json" in text
    assert "C1 checkpoints block: the other is another program" in text
    assert complaints(browser) == []
    ours = ("http://127.0.0.1", "data:", "blob:")
    assert [url for url in browser.requested if not url.startswith(ours)] == []


def test_the_pages_follow_tensorboards_own_switch_and_not_the_browser(
    browser: Browser, board: Any, logdir: Path
) -> None:
    browser.prefer("light")
    try:
        opened(browser, board(logdir))
        chosen(browser, "timeline")
        seen = {}
        for choice in ("Light", "Dark", "Browser default"):
            browser.run("document.querySelector('app-header-dark-mode-toggle button').click()")
            items = "[...document.querySelectorAll('[role=menu] button')]"
            one = f"{items}.find(item => item.innerText.includes('{choice}'))"
            browser.wait(f"{one} && ({one}.click(), true)")
            browser.wait(
                f"document.body.classList.contains('dark-mode') === {str(choice == 'Dark').lower()}"
            )
            browser.wait(f"{items}.length === 0")
            plot = f"{FRAME}.querySelector('.live.js-plotly-plot')"
            seen[choice] = browser.run(
                f"new Promise(done => setTimeout(() => done([getComputedStyle({FRAME}.body)"
                f".backgroundColor, {plot}.layout.font.color]), 300))"
            )
        assert seen["Light"] == seen["Browser default"] == ["rgb(250, 249, 247)", "#59636e"]
        assert seen["Dark"] == ["rgb(20, 23, 27)", "#a0a9b3"]
        assert complaints(browser) == []
    finally:
        browser.prefer("")


def test_a_finding_leads_to_the_page_that_shows_it(
    browser: Browser, board: Any, logdir: Path
) -> None:
    opened(browser, board(logdir))
    select = f"{FRAME}.getElementById('choose-run')"
    browser.run(f"{select}.value = 'week/before.json'")
    browser.run(f"{select}.dispatchEvent(new Event('change'))")
    chosen(browser, "overview")
    browser.run(f"{FRAME}.querySelector('.see a').click()")
    browser.wait(f"{FRAME}.documentElement.dataset.ready?.startsWith('checkpoints ')")
    assert browser.run(f"{FRAME}.getElementById('checkpoints') !== null")


def test_a_log_folder_without_runs_says_so_and_what_to_do(
    browser: Browser, board: Any, tmp_path: Path
) -> None:
    opened(browser, board(tmp_path))
    for tab in ("overview", "compare"):
        text = chosen(browser, tab)
        assert f"There is no run of Penstock below {tmp_path}" in text
        assert "penstock run -o" in text
    assert complaints(browser) == []


def test_a_run_without_steps_or_saves_says_so_on_their_pages(
    browser: Browser, board: Any, tmp_path: Path
) -> None:
    run = Synthetic()
    run.process(1, end=MS, command="true")
    (tmp_path / "empty.json").write_text(to_json(report_of(measure(run))))
    opened(browser, board(tmp_path))
    assert "No training steps were seen" in chosen(browser, "steps")
    assert "No checkpoint was seen" in chosen(browser, "checkpoints")
    assert "There is one run here" in chosen(browser, "compare")
    assert complaints(browser) == []


def test_a_port_in_use_is_said_and_ends_tensorboard(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, SERVER, "--logdir", tmp_path, "--port", str(port)]
        ended = subprocess.run(
            [*command, "--host", "127.0.0.1", "--load_fast=false"],
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert ended.returncode != 0
    assert re.search(rf"port {port}", ended.stderr)
    assert "Traceback" not in ended.stderr
