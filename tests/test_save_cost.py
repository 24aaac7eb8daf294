"""Test what a search of many files costs, by counts of calls."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock import cli
from penstock.places.stores import LocalStore
from penstock.save import checkpoint, formats, names, tree
from penstock.save.drain import Drainer
from penstock.save.formats import find
from penstock.save.working import DrainSettings

N = 500


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the calls of functions that take most of the time."""
    counted: Counter[str] = Counter()

    def count(module: Any, name: str) -> None:
        original: Callable[..., Any] = getattr(module, name)

        def counting(*words: Any, **named: Any) -> Any:
            counted[name] += 1
            return original(*words, **named)

        monkeypatch.setattr(module, name, counting)

    for name in ("compared", "_shape_of"):
        count(formats, name)
    count(tree, "_noted")
    count(checkpoint, "content_of")
    count(names, "_pieces")
    count(os, "scandir")
    names.parts_of.cache_clear()
    names.is_state.cache_clear()
    checkpoint._identity_of.cache_clear()
    return counted


def test_a_name_is_parsed_once_whatever_the_number_of_looks(
    tmp_path: Path, calls: Counter[str]
) -> None:
    for step in range(N):
        for role in ("model", "optim"):
            (tmp_path / f"{role}_{step:06d}.pt").touch()
    for _ in range(3):
        assert len(find(LocalStore(tmp_path))) == N
    assert calls["_pieces"] == 2 * N
    assert calls["scandir"] == 3
    assert calls["_shape_of"] == calls["_noted"] == 0


def test_a_look_of_the_drain_compares_once_and_asks_each_file_once(
    tmp_path: Path, calls: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fast").mkdir()
    for step in range(N):
        (tmp_path / "fast" / f"model_{step:06d}.pt").touch()
    with Drainer(tmp_path / "fast", tmp_path / "slow", DrainSettings(settle_s=0)) as working:
        working.backlog()
        before, digests = calls["compared"], calls["content_of"]
        for _ in range(3):
            assert len(working.backlog()) == N
        assert calls["compared"] - before <= 2 * 3  # of each tier
        assert calls["content_of"] == digests


def test_a_long_list_of_checkpoints_is_printed_without_layout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rich.table.Table.add_row", lambda *cells: pytest.fail("a row of rich"))
    for step in range(1, 1002):
        (tmp_path / f"model_{step}.pt").touch()
    said = CliRunner().invoke(cli.cli, ["save", "ls", str(tmp_path)]).output.splitlines()
    assert len(said) == 1003
    assert said[0].split()[:3] == ["tier", "name", "step"]
    assert said[2].split()[1:3] == ["model_1001.pt", "1001"]
    assert said[-1].split()[1:3] == ["model_1.pt", "1"]
