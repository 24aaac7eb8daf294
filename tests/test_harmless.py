"""Nothing foreign moves a terminal's cursor, becomes a tag of a page or a spreadsheet's formula."""

import copy
import csv
import io
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.explain.report import from_json
from penstock.safe.harmless import CONTROLS, Shown, cell, plain
from penstock.views.html import parts
from penstock.views.tensorboard import TABS
from penstock_lab.study import csv_of

PENSTOCK = Path(sys.executable).with_name("penstock")
EVIL = "\x1b]0;PWN\x07\x1b[31m\u202e"


def ends_harmless(output: bytes) -> bool:
    return not CONTROLS.search(output.decode(errors="replace").replace("\r\n", "\n"))


def test_letters_stay_and_controls_are_escaped() -> None:
    kept = "Zürich 数据 — “x”\t1\u202f000\n"
    assert plain(kept) == kept
    assert plain("\x1b[31m\x07\u202e\x85") == r"\x1b[31m\x07\u202e\x85"
    assert plain(os.fsdecode(b"a\xff\xfe")) == r"a\xff\xfe"


def test_a_stream_that_a_person_reads_lets_no_control_through() -> None:
    stream = io.StringIO()
    shown = Shown(stream)
    print(EVIL, "fine", file=shown)  # type: ignore[call-overload]
    shown.writelines(["a\rb\n"])
    assert stream.getvalue() == "\\x1b]0;PWN\\x07\\x1b[31m\\u202e fine\na\\rb\n"
    assert Shown.through(shown) is stream  # type: ignore[arg-type]
    assert Shown.through(stream) is stream


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder whose log has a name with escapes; a run."""
    place = tmp_path_factory.mktemp("evil")
    (place / "run1").mkdir()
    for suffix in ("log", "plog"):
        (place / f"run1/{EVIL}.{suffix}").write_text("x" * 5000)
    (place / EVIL).mkdir()
    words = ["run", "-q", "-o", "run", "cat", "/etc/hostname"]
    subprocess.run([PENSTOCK, *words], cwd=place, check=True, capture_output=True, timeout=120)
    return place


@pytest.fixture(scope="module")
def reported(place: Path) -> str:
    """The report of the run, as JSON."""
    words = [PENSTOCK, "report", "run", "--json"]
    return subprocess.run(words, cwd=place, capture_output=True, check=True, text=True).stdout


@pytest.mark.parametrize(
    "words",
    [
        ["report", "run1"],
        ["watch", "run1"],
        ["sql", "run1", "select 1"],
        ["report", EVIL],
        ["report", f"{EVIL}/none"],
        ["timeline", "run", "--with", f"{EVIL}.json"],
        ["import", f"{EVIL}.darshan", "-o", "imported"],
        ["sql", "run", f"select '{EVIL}' from nothing"],
        ["feed", "inspect", EVIL],
    ],
    ids=repr,
)
def test_an_error_line_is_harmless_wherever_it_goes(words: list[str], place: Path) -> None:
    done = subprocess.run([PENSTOCK, *words], cwd=place, capture_output=True, timeout=120)
    assert done.returncode == 2
    assert b"penstock: " in done.stderr
    assert ends_harmless(done.stderr), done.stderr


def on_a_terminal(words: list[str], folder: Path) -> bytes:
    main, side = pty.openpty()
    with subprocess.Popen([PENSTOCK, *words], cwd=folder, stdout=side, stdin=side) as program:
        os.close(side)
        output = b""
        while True:
            try:
                output += (more := os.read(main, 65536))
            except OSError:  # the program has ended
                break
            if not more:
                break
        program.wait(timeout=60)
    os.close(main)
    return output


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_rows_for_a_terminal_are_harmless_and_in_a_file_as_they_are(form: str, place: Path) -> None:
    words = ["sql", "run", f"select '{EVIL}' as x", form]
    assert ends_harmless(on_a_terminal(words, place))
    done = subprocess.run([PENSTOCK, *words], cwd=place, capture_output=True, check=True)
    if form == "--csv":
        assert EVIL in done.stdout.decode()
    else:
        assert json.loads(done.stdout) == [{"x": EVIL}]


def test_colours_of_our_own_still_reach_a_terminal(place: Path) -> None:
    assert b"\x1b[" in on_a_terminal(["report", "run"], place)


# --- pages ---------------------------------------------------------------------------------------


def _texts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _texts(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value[:3]):
            yield from _texts(item, (*path, number))
    elif isinstance(value, str):
        yield path


def test_no_text_of_a_report_becomes_a_tag(reported: str) -> None:
    tag = "<img/src=x>"
    source = json.loads(reported)
    source["findings"] = [
        {
            "rule": "D1",
            "title": "t",
            "evidence": ["e"],
            "shown": "files",
            "of": "the wall",
            "gain": {"value": 1.0, "unit": "s", "state": "measured", "why": ""},
            "share": {"value": 0.5, "unit": "share", "state": "measured", "why": ""},
            "remedies": [],
        }
    ]
    seen, tried = set(), 0
    for path in _texts(source):
        shape = tuple("*" if isinstance(part, int) else part for part in path)
        if shape in seen:
            continue
        seen.add(shape)
        changed = copy.deepcopy(source)
        inner = changed
        for part in path[:-1]:
            inner = inner[part]
        inner[path[-1]] = tag
        try:
            report = from_json(json.dumps(changed))
        except PenstockError:
            continue
        tried += 1
        for _, wanted, _ in TABS.values():
            try:
                assert tag not in parts(report, wanted), shape
            except KeyError:  # a table that is looked for has another key
                continue
    assert tried > 30


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("verdict", "level"), "very"),
        (("verdict", "level"), None),
        (("gaps", 0, "state"), "guessed"),
        (("title",), 7),
        (("subtitle",), "text"),
        (("tables",), {}),
        (("tables", 0, "n_all"), "3"),
        (("verdict", "storage", "value"), "0"),
        (("verdict", "storage", "value"), True),
        (("cost", 0), 1),
        (("verdict",), []),
    ],
)
def test_a_report_with_another_kind_of_value_is_refused(
    path: tuple[Any, ...], value: Any, reported: str
) -> None:
    source = json.loads(reported)
    from_json(reported)
    inner = source
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    with pytest.raises(PenstockError, match="no report of Penstock"):
        from_json(json.dumps(source))


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "3", '{"report": 1, "run": NaN}', ""])
def test_a_text_that_is_no_report_is_refused(text: str) -> None:
    with pytest.raises(PenstockError):
        from_json(text)


# --- spreadsheets --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["=1+1", "+1", "-x", "@SUM(A1)", "\t=1"])
def test_a_cell_that_a_spreadsheet_would_run_is_text(text: str, place: Path) -> None:
    assert cell(text) == f"'{text}"
    words = ["sql", "run", f"select '{text}' as x, -1 as n", "--csv"]
    done = subprocess.run([PENSTOCK, *words], cwd=place, capture_output=True, check=True)
    assert list(csv.reader(io.StringIO(done.stdout.decode(), newline="")))[1] == [f"'{text}", "-1"]
    assert f"'{text}" in csv_of([{"x": text, "n": -1.5}])


def test_a_carriage_return_begins_no_row() -> None:
    assert cell("a\r=1") == "a\\r=1"


def test_numbers_and_other_texts_stay_as_they_are() -> None:
    assert [cell(value) for value in (-1, -1.5, None, "a=b", "", "1")] == [
        *(-1, -1.5, None, "a=b", "", "1")
    ]
