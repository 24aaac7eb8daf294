"""Penstock in Python as a user sees it: the names, their page, their types, notebooks."""

import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import errors

PAGE = Path(__file__).parent.parent / "docs" / "python.md"

LOOP = """
    import time
    import penstock

    for _ in range(20):
        with open("data", "rb") as file:
            file.read()
        with penstock.step():
            time.sleep(0.01)
"""


def test_the_face_has_every_error_and_every_name_can_be_had() -> None:
    kinds = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and kind.__module__ == errors.__name__
    }
    assert kinds <= set(penstock.__all__)
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    assert set(penstock.__all__) <= set(dir(penstock))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = penstock.nothing  # type: ignore[attr-defined]


def test_the_page_describes_each_name_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(rows) == sorted(penstock.__all__)


def test_help_shows_these_names() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import penstock; help(penstock)"],
        capture_output=True,
        text=True,
        check=True,
    )
    for name in ("open_run", "compare_runs", "class OpenRun", "class record"):
        assert name in done.stdout
    assert "_load_adapters" not in done.stdout


def test_a_run_is_opened_reported_asked_and_compared(
    recorded: Callable[..., Any], work: Path
) -> None:
    (work / "data").write_bytes(b"x" * 10_000)
    folder = recorded(LOOP).folder
    with penstock.open_run(folder) as run:
        report = run.report()
        assert isinstance(report, penstock.Report)
        assert report.verdict.headline
        rows = run.sql("SELECT path, count(*) AS n FROM events WHERE op = 'read' GROUP BY path")
        assert "<th>path</th><th>n</th>" in rows._repr_html_()
    compared = penstock.compare_runs(folder, [folder, report])
    assert len(compared.b.runs) == 2


def test_rows_become_a_dataframe(recorded: Callable[..., Any], work: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    (work / "data").write_bytes(b"x")
    found = recorded(LOOP).sql("SELECT 1 AS one, 'a' AS name UNION ALL SELECT 2, 'b' ORDER BY one")
    frame = found.df()
    assert isinstance(frame, pandas.DataFrame)
    assert frame.to_dict("list") == {"one": [1, 2], "name": ["a", "b"]}


def test_a_notebook_gets_harmless_html(recorded: Callable[..., Any], work: Path) -> None:
    (work / "data").write_bytes(b"x" * 10_000)
    run = penstock.open_run(recorded(LOOP, args=["<script>alert(1)</script>"]).folder)
    report = run.report()
    shown = report._repr_html_()
    assert report.verdict.headline in shown
    assert report.verdict._repr_html_() in shown
    hostile = run.sql("SELECT '<script>' AS \"<b>\", chr(27) || '[2J' AS e, NULL AS nothing")
    assert "<script>" not in hostile._repr_html_()
    assert "\x1b" not in hostile._repr_html_()
    many = run.sql("SELECT range AS n FROM range(1000)")._repr_html_()
    assert many.count("<tr>") == 51
    assert "50 of 1,000 rows" in many
    for table in report.tables:
        assert table._repr_html_().startswith("<p>")


def test_the_example_of_the_page_has_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed: make lint installs it")
    example = tmp_path / "example.py"
    text = PAGE.read_text()
    example.write_text(inspect.cleandoc(re.search(r"\n\n((?:    .*\n)+)", text)[1]))  # type: ignore[index]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent",
         "--ignore-missing-imports", example],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "Success" in done.stdout


def test_the_packages_of_the_face_are_the_packages_of_the_same_name() -> None:
    for name in ("adapters", "feed", "save", "stage"):
        assert getattr(penstock, name) is importlib.import_module(f"penstock.{name}")
