"""Markdown in a terminal: no line is wider than it, and nothing is lost."""

import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

from fixtures import PENSTOCK
from penstock.views.markdown import fitted

EXPERIMENTS = Path(__file__).parents[1] / "docs" / "experiments"


def test_a_table_that_fits_is_one_and_its_numbers_stand_at_the_right() -> None:
    text = "| place | reads | rate |\n| --- | ---: | ---: |\n| disk | 12 | 1.5 MB/s |\n"
    assert fitted(text, 80).splitlines() == [
        "place  reads      rate",
        "-----  -----  --------",
        "disk      12  1.5 MB/s",
    ]


def test_a_wide_table_is_several_that_begin_with_the_same_words() -> None:
    text = (
        "| place | first measure | second | third |\n| --- | ---: | ---: | ---: |\n"
        "| disk | 1,000 records | 2,000 | 3,000 |\n| seek | – | 20 | 30 |"
    )
    assert fitted(text, 30).splitlines() == [
        "place  first measure  second",
        "-----  -------------  ------",
        "disk   1,000 records   2,000",
        "seek               –      20",
        "",
        "place  third",
        "-----  -----",
        "disk   3,000",
        "seek      30",
    ]


def test_what_many_rows_have_in_common_is_a_heading_where_that_is_shorter() -> None:
    rows = [f"| shared | torchrun | {n} | {n} | {n} |" for n in range(6)]
    head = "| place | launcher | ranks | records | requests |"
    text = "\n".join([head, "| --- | --- | --- | ---: | ---: |", *rows])
    assert fitted(text, 30).splitlines() == [
        "ranks  records  requests",
        "-----  -------  --------",
        "",
        "place shared, launcher",
        "torchrun",
        *(f"{n}            {n}         {n}" for n in range(6)),
    ]


def test_what_would_move_the_cursor_is_escaped() -> None:
    assert "\x1b" not in fitted("A is \x1b[2J\n| a\x1b[H | b |\n| --- | --- |\n| \x1b | 1 |", 80)


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(
    "file", sorted(EXPERIMENTS.glob("*/*.md")), ids=lambda file: f"{file.parent.name}/{file.stem}"
)
def test_no_table_of_a_study_is_wider_than_the_terminal_and_none_loses_a_word(
    file: Path, width: int
) -> None:
    text = file.read_text()
    found = fitted(text, width)
    assert max(map(len, found.splitlines())) <= width

    def words(lines: str) -> set[str]:
        return set(re.sub(r"[|,]", " ", lines).replace("_", "_ ").split())

    lost = words(text.replace("\t", "\\t")) - words(found)
    assert not [word for word in lost if word.strip("-:")]


def test_in_a_terminal_tables_fit_and_elsewhere_they_stay_markdown(tmp_path: Path) -> None:
    result = EXPERIMENTS / "scale" / "scale.json"
    command = [PENSTOCK, "bench", "compare", str(result), str(result)]
    piped = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "| place | launcher |" in piped
    ours, theirs = pty.openpty()
    job = subprocess.Popen(command, stdout=theirs, env=os.environ | {"COLUMNS": "80"})
    os.close(theirs)
    seen = b""
    while chunk := _read(ours):
        seen += chunk
    assert job.wait() == 0
    lines = seen.decode().splitlines()
    assert max(map(len, lines)) <= 80
    assert not any(line.startswith("|") for line in lines)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # its other end is closed
        return b""
