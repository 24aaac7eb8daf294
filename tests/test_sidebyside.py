"""How `make test` divides the tests: nothing runs beside a test marked alone, and none is lost."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xdist", reason="pytest-xdist is not installed")
from sidebyside import dealt

TESTS = Path(__file__).parent
# Each test writes that it began and that it ended; a write of a line is not divided.
SUITE = """
import os, pytest, time

def note(word, name):
    with open({notes!r}, "ab", buffering=0) as file:
        file.write(f"{{word}} {{name}}\\n".encode())

@pytest.fixture
def noted(request):
    note("begin", request.node.name)
    yield
    note("end", request.node.name)

@pytest.mark.alone
@pytest.mark.parametrize("n", range({n_alone}))
def test_alone(noted, n):
    if n == {crash}:
        os._exit(9)
    time.sleep(0.01)

@pytest.mark.parametrize("n", range({n_beside}))
def test_beside(noted, n):
    time.sleep(0.01)
    assert n != {fail}
"""


def divided(
    folder: Path,
    *options: str,
    n_alone: int = 5,
    n_beside: int = 20,
    crash: int = -1,
    fail: int = -1,
    status: int = 0,
) -> tuple[list[str], str]:
    """What began and ended, in order, and what pytest said."""
    notes = folder / "notes"
    notes.touch()
    text = SUITE.format(
        notes=str(notes), n_alone=n_alone, n_beside=n_beside, crash=crash, fail=fail
    )
    (folder / "test_suite.py").write_text(textwrap.dedent(text))
    (folder / "conftest.py").write_text((TESTS / "conftest.py").read_text())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  alone\n  slow\n")
    outer = ("PYTEST_XDIST_WORKER", "PYTEST_ADDOPTS")
    environment = {key: os.environ[key] for key in os.environ if not key.startswith(outer)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # they cost a second each time
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", *options, folder],
        cwd=folder,
        env=environment | {"PYTHONPATH": f"{TESTS}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    said = finished.stdout + finished.stderr
    assert finished.returncode == status, said
    return notes.read_text().splitlines(), said


def check_alone(lines: list[str]) -> None:
    """No test is under way when an alone one begins, and none begins before it ends."""
    open_tests: set[str] = set()
    for line in lines:
        word, name = line.split()
        if word == "begin":
            together = {*open_tests, name}
            assert len(together) == 1 or not any("alone" in one for one in together), together
            open_tests.add(name)
        else:
            open_tests.discard(name)


@pytest.mark.parametrize(
    ("workers", "n_alone", "n_beside"),
    [("2", 5, 20), ("2", 1, 5), ("2", 0, 3), ("2", 3, 0), ("3", 2, 2), ("1", 2, 2)],
)
def test_each_test_runs_once_and_the_alone_ones_alone(
    tmp_path: Path, workers: str, n_alone: int, n_beside: int
) -> None:
    lines, said = divided(tmp_path, "-n", workers, n_alone=n_alone, n_beside=n_beside)
    check_alone(lines)
    begun = [line for line in lines if line.startswith("begin")]
    assert len(begun) == len(set(begun)) == n_alone + n_beside
    assert f"{n_alone + n_beside} passed" in said


def test_a_failure_is_counted_and_gives_the_exit_status(tmp_path: Path) -> None:
    lines, said = divided(tmp_path, "-n", "2", fail=7, status=1)
    check_alone(lines)
    assert "1 failed, 24 passed" in said


def test_a_worker_that_dies_in_an_alone_test_is_replaced_for_the_others(tmp_path: Path) -> None:
    lines, said = divided(tmp_path, "-n", "2", crash=2, status=1)
    check_alone([line for line in lines if "test_alone[@alone-2]" not in line])
    assert "1 failed, 24 passed" in said
    assert "crashed while running" in said


def test_with_one_process_the_mark_changes_nothing(tmp_path: Path) -> None:
    lines, said = divided(tmp_path)
    assert lines[0] == "begin test_alone[@alone-0]"
    assert "25 passed" in said


class Marked:
    """A test with marks."""

    def __init__(self, name: str) -> None:
        self.name = name

    def get_closest_marker(self, mark: str) -> str | None:
        return mark if mark in self.name else None


def test_each_worker_begins_with_its_part_of_the_slow_tests() -> None:
    names = [f"{n}" for n in range(9)]
    names[2:2] = ["slow 1", "slow 2", "slow alone", "alone 1", "slow timeout 3", "slow 4"]
    items: list[Any] = [Marked(name) for name in names]
    order = [item.name for item in dealt(items, 2)]
    pieces = [order[:6], order[6:13]]  # as SideBySide hands them out
    assert pieces[0] == ["slow timeout 3", "slow 1", "0", "1", "2", "3"]
    assert pieces[1] == ["slow 2", "slow 4", "4", "5", "6", "7", "8"]
    assert order[13:] == ["slow alone", "alone 1"]
    for n_workers in (1, 3, 20):
        assert sorted(item.name for item in dealt(items, n_workers)) == sorted(names)
