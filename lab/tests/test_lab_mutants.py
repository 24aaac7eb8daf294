"""The faults of `make mutants`: each has one place in the sources of today, a row in the page."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "lab" / "benchmarks"


def test_the_text_of_each_fault_stands_once_in_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("mutants", BENCHMARKS / "mutants.py")
    assert spec
    assert spec.loader
    mutants = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "mutants", mutants)
    spec.loader.exec_module(mutants)
    page = (ROOT / "docs" / "mutants.md").read_text()
    assert re.findall(r"^\| ([a-z-]+) \| `", page, re.MULTILINE) == [
        m.name for m in mutants.MUTANTS
    ]
    places = {
        mutant.name: (ROOT / mutant.file).read_text().count(mutant.before)
        for mutant in mutants.MUTANTS
    }
    assert places == dict.fromkeys(places, 1)
