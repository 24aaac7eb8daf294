"""Test that a checkpoint is not copied while a program has a file of the checkpoint open for
writing, and that the question does not disturb the program."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from penstock.places.stores import LocalStore
from penstock.save.copy import writers
from penstock.save.copy.writers import is_open_for_writing
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find

BURSTS = """
    import sys
    with open(sys.argv[1], "wb", buffering=0) as file:
        file.write(b"first half" * 100)
        print("half", flush=True)
        sys.stdin.readline()
        file.write(b"other half" * 100)
    print("all", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def program(source: str, *words: object) -> Iterator[Any]:
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source), *map(str, words)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as running:  # fmt: skip
        try:
            yield running
        finally:
            running.kill()


def said(running: Any) -> str:
    return str(running.stdout.readline().strip())


def go_on(running: Any) -> None:
    running.stdin.write("\n")
    running.stdin.flush()


def drained(fast: Path, slow: Path) -> list[str]:
    with Drainer(fast, slow, DrainSettings(settle_s=0.05, tries=2)) as working:
        return working.once()


@pytest.mark.parametrize("name", ["state_100.bin", "step_100/state.bin"])
def test_a_pause_in_the_middle_of_a_file_is_not_its_end(tmp_path: Path, name: str) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    (fast / name).parent.mkdir(parents=True)
    with program(BURSTS, fast / name) as running:
        assert said(running) == "half"
        time.sleep(0.1)  # longer than the quiet time
        (line,) = drained(fast, slow)
        assert "open for writing" in line
        assert find(LocalStore(slow)) == []
        go_on(running)
        assert said(running) == "all"
        time.sleep(0.1)
        assert drained(fast, slow) == []
    assert (slow / name).stat().st_size == 2000


def test_a_log_that_stays_open_keeps_no_checkpoint_back(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for folder in ("step_100", "step_200"):
        (fast / folder).mkdir(parents=True)
        (fast / folder / "state.bin").write_bytes(os.urandom(100))
    with (
        (fast / "train.log").open("w"),
        (fast / "step_200" / "metrics.jsonl").open("w"),
        (fast / "step_200" / "state.bin").open("rb"),
    ):
        time.sleep(0.1)
        assert drained(fast, slow) == []
    assert {one.name for one in find(LocalStore(slow))} == {"step_100", "step_200"}


def test_a_state_that_is_open_for_ever_is_copied_at_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    monkeypatch.setattr("penstock.save.drain.drainer.MOST_OPEN_S", 5.0)
    with (fast / "state_1.bin").open("wb", buffering=0) as file:
        file.write(bytes(range(100)))
        os.utime(fast / "state_1.bin", (time.time() - 10, time.time() - 10))
        assert drained(fast, slow) == []
    assert [one.name for one in find(LocalStore(slow))] == ["state_1.bin"]


def test_only_writers_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    assert not is_open_for_writing(os.fspath(path))
    with path.open("rb"):
        assert not is_open_for_writing(os.fspath(path))
    with path.open("ab"):
        assert is_open_for_writing(os.fspath(path))
        with monkeypatch.context() as patched:  # as on NFS, which refuses each lease
            patched.setattr(writers, "_LOCAL", {"nfs"})
            writers._is_local.cache_clear()
            assert not is_open_for_writing(os.fspath(path))
        writers._is_local.cache_clear()
    assert not is_open_for_writing(os.fspath(tmp_path / "missing"))
    (tmp_path / "link").symlink_to(path)
    assert not is_open_for_writing(os.fspath(tmp_path / "link"))


def test_a_writer_that_opens_the_file_meanwhile_goes_on(tmp_path: Path) -> None:
    """Each open succeeds; none waits for a lease break of the kernel (45 s)."""
    path = tmp_path / "file"
    path.write_bytes(b"x")
    is_over, longest_s, n_opened = threading.Event(), 0.0, 0

    def ask() -> None:
        while not is_over.is_set():
            is_open_for_writing(os.fspath(path))

    asking = threading.Thread(target=ask)
    asking.start()
    end_s = time.monotonic() + 1.0
    try:
        while time.monotonic() < end_s:
            begun_s = time.perf_counter()
            os.close(os.open(path, os.O_WRONLY))
            longest_s = max(longest_s, time.perf_counter() - begun_s)
            n_opened += 1
    finally:
        is_over.set()
        asking.join()
    assert n_opened > 10
    assert longest_s < 2.0
