"""Penstock in Python as a user sees it: the names, their page, their types, notebooks."""

import abc
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
REFERENCE = PAGE.with_name("api.md")
PACKAGES = ("adapters", "feed", "save", "stage")
MISTYPED = (
    "penstock.open_runs",
    "penstock.save.Checkpointers",
    "penstock.adapters.tourch",
    "penstock.adapters.torch.FeedDatasets",
)

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
        if inspect.isclass(kind) and issubclass(kind, BaseException)
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


def test_the_reference_has_each_name_and_no_other() -> None:
    shown = re.findall(r"^::: penstock\.([\w.]+)$", REFERENCE.read_text(), re.MULTILINE)
    assert sorted(name for name in shown if "." not in name) == sorted(penstock.__all__)
    for package in PACKAGES:
        names = [name.split(".")[1] for name in shown if name.startswith(f"{package}.")]
        assert sorted(names) == sorted(getattr(penstock, package).__all__), package


def test_help_shows_these_names_and_no_other() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import penstock; help(penstock)"],
        capture_output=True,
        text=True,
        check=True,
    )
    entries = re.findall(r"^    (?:class )?(\w+)\(.*$", done.stdout, re.MULTILINE)
    functions = {"compare_runs", "open_run", "span", "step"}
    classes = set(penstock.__all__) - functions - {"__version__", *PACKAGES}
    assert set(entries) == functions | classes
    assert penstock.__version__ in done.stdout
    for inherited in ("with_traceback", "__getattr__", "_recorder", "TYPE_CHECKING"):
        assert inherited not in done.stdout
    assert done.stdout.count("\n") < 520  # Report alone has 110 lines, OpenRun 50


def test_an_error_of_a_user_may_be_an_abstract_class() -> None:
    class Refused(penstock.PenstockError, abc.ABC):
        pass

    with pytest.raises(penstock.PenstockError, match="full"):
        raise Refused("full")


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


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What mypy --strict says about the page's example, and about each name, as a user runs it."""
    pytest.importorskip("mypy", reason="mypy is not installed: make lint installs it")
    folder = tmp_path_factory.mktemp("types")
    example = re.search(r"\n\n((?:    .*\n)+)", PAGE.read_text())
    assert example
    (folder / "example.py").write_text(inspect.cleandoc(example[1]))
    (folder / "names.py").write_text(
        "\n".join(
            [
                "import penstock",
                "import penstock.save",
                "import penstock.adapters.torch",
                *(f"reveal_type(penstock.{name})" for name in penstock.__all__),
                "report = penstock.open_run('run').report()",
                "reveal_type(report._repr_html_())",
                "reveal_type(report.verdict._repr_html_())",
                "reveal_type(report.tables[0]._repr_html_())",
                *(f"print({name})" for name in MISTYPED),
            ]
        )
    )
    # The types of PyTorch, of which no name above speaks, would take minutes.
    (folder / "mypy.ini").write_text(
        "[mypy]\nstrict = True\n[mypy-torch.*,numpy.*,duckdb.*]\nfollow_imports = skip\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "example.py", "names.py"],
        capture_output=True, text=True, cwd=folder,
    )  # fmt: skip
    assert not done.stderr, done.stderr
    return done.stdout


def test_the_example_of_the_page_has_types(types: str) -> None:
    assert "names.py" in types
    assert "example.py" not in types


def test_each_name_has_its_type_and_a_mistyped_name_is_an_error(types: str) -> None:
    revealed = re.findall(r'Revealed type is "(.*)"', types)
    of_name = dict(zip(penstock.__all__, revealed, strict=False))
    assert len(revealed) == len(penstock.__all__) + 3
    for name, kind in of_name.items():
        if name in PACKAGES:
            assert kind.endswith("ModuleType"), name
        elif inspect.isclass(getattr(penstock, name)):
            assert re.search(rf"-> (penstock[\w.]+\.)?{name}$", kind), (name, kind)
        else:
            assert kind not in ("Any", "builtins.object"), name
    assert of_name["open_run"].endswith("-> penstock.api.OpenRun")
    for kind in (of_name["__version__"], *revealed[-3:]):
        assert kind in ("str", "builtins.str")
    errors_at = re.findall(r"^names\.py:\d+: error: (.*)$", types, re.MULTILINE)
    assert len(errors_at) == len(MISTYPED), types
    for name, error in zip(MISTYPED, errors_at, strict=True):
        assert name.rsplit(".", 1)[1] in error
        assert "[attr-defined]" in error


def test_the_packages_of_the_face_are_the_packages_of_the_same_name() -> None:
    for name in PACKAGES:
        assert getattr(penstock, name) is importlib.import_module(f"penstock.{name}")
