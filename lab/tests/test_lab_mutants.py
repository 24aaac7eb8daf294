"""The faults of `make mutants`: each has one place in the sources of today, a row in the page."""

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "lab" / "benchmarks"


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("mutants", BENCHMARKS / "mutants.py")
    assert spec
    assert spec.loader
    mutants = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", mutants)
    spec.loader.exec_module(mutants)
    return mutants


def test_the_text_of_each_fault_stands_once_in_its_file(mutants: ModuleType) -> None:
    page = (ROOT / "docs" / "mutants.md").read_text()
    assert re.findall(r"^\| ([a-z-]+) \| `", page, re.MULTILINE) == [
        m.name for m in mutants.MUTANTS
    ]
    places = {
        mutant.name: (ROOT / mutant.file).read_text().count(mutant.before)
        for mutant in mutants.MUTANTS
    }
    assert places == dict.fromkeys(places, 1)


def test_a_test_that_fails_without_a_fault_is_named(mutants: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_sound.py").write_text("def test_sound():\n    pass\n")
    (tmp_path / "test_broken.py").write_text("def test_broken():\n    assert False\n")
    some_mutants = [
        mutants.Mutant("", "", "", "", f"test_{name}.py") for name in ("sound", "broken", "none")
    ]
    failing = mutants.failing_without_fault(some_mutants, tmp_path)
    assert failing == ["test_broken.py (failed)", "test_none.py (no tests (pytest: 4))"]
    assert mutants.failing_without_fault(some_mutants[:1], tmp_path) == []
