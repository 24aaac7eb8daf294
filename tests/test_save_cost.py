"""Test what a search of many files costs, by counts of calls."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from penstock import cli
from penstock.places.stores import LocalStore, StoredFile
from penstock.save import checkpoint
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find import formats, tree
from penstock.save.find.formats import find
from penstock.save.small.batch import Syncs
from penstock.save.unit import names
from penstock.save.unit.progress import written_over
from penstock.save.verify import verify

N = 150


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
    count(os, "fsync")
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


MANY = 6000  # files; a comparison of each file with each other takes seconds


@pytest.mark.parametrize(
    "name", ["rank-{:05d}.pt", "m/model-{:05d}-of-06000.safetensors", "w_3.model.part{}.npy"]
)
def test_a_checkpoint_of_thousands_of_files_is_found_in_linear_time(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "m").mkdir()
    for number in range(1, MANY + 1):
        (tmp_path / name.format(number)).touch()
    begun_s = time.process_time()
    [one] = find(LocalStore(tmp_path))
    assert time.process_time() - begun_s < 2
    assert len(one.files) == MANY


def test_two_saves_of_thousands_of_files_are_compared_in_linear_time() -> None:
    before = {f"{n}.raw": StoredFile(f"{n}.raw", 8, n) for n in range(MANY)}
    begun_s = time.process_time()
    assert not written_over(before, before)
    assert time.process_time() - begun_s < 2


def test_a_file_that_another_name_continues_is_written_by_each_save() -> None:
    def file(name: str, second: int) -> StoredFile:
        return StoredFile(name, 8, second * 10**9)

    old = {name: file(name, 1) for name in ("w2v.bin", "w2v.bin.vectors.npy", "words.txt")}
    new = {**old, "w2v.bin": file("w2v.bin", 2)}
    assert written_over(new, old).startswith("1 of its 2 files were written again and 1 were not")


def test_many_small_files_are_written_out_by_one_sync_before_they_are_read(
    tmp_path: Path, calls: Counter[str]
) -> None:
    (tmp_path / "step_1").mkdir()
    for number in range(N):
        (tmp_path / "step_1" / f"{number}.bin").write_bytes(b"x")
    [one] = find(LocalStore(tmp_path))
    assert verify(one, "full").is_whole
    is_together = Syncs().is_together(tmp_path.stat().st_dev, os.fspath(tmp_path))
    assert calls["fsync"] == 0 if is_together else N


def test_a_drain_of_many_checkpoints_does_not_search_after_each(
    tmp_path: Path, calls: Counter[str]
) -> None:
    (tmp_path / "fast").mkdir()
    for step in range(N):
        (tmp_path / "fast" / f"model_{step:06d}.bin").write_bytes(b"weights")
    with Drainer(tmp_path / "fast", tmp_path / "slow", DrainSettings(settle_s=0)) as working:
        assert working.once() == []
        assert working.status.drained == N
    assert calls["compared"] < N
    assert len(find(LocalStore(tmp_path / "slow"))) == N
