"""A checkpoint of many small files is copied between tiers as one unit: one sync for all files."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.places.stores import LocalStore
from penstock.save.copy import copying
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.manifest import INSIDE
from penstock.save.small import batch
from penstock.save.small.batch import Copy, Syncs
from penstock.save.verify import verify

N = 40
NAME = "checkpoint-100"


@pytest.fixture
def tiers(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("fast", "slow"):
        (tmp_path / name).mkdir()
    return tmp_path / "fast", tmp_path / "slow"


@pytest.fixture
def by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copy without the native copier; tests/test_save_partfiles.py tests the native copier."""
    monkeypatch.setattr(copying, "is_for_part", lambda *words: False)


def made(fast: Path, size_bytes: int = 258) -> None:
    folder = fast / NAME
    (folder / "inner").mkdir(parents=True)
    (folder / "trainer_state.json").write_text('{"global_step": 100}')
    (folder / "config.json").write_text("{}")
    for number in range(N):
        place = folder / "inner" if number % 2 else folder
        (place / f"part-{number:02d}.bin").write_bytes(bytes([number]) * size_bytes)
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - 100,) * 2)


def drained(tiers: Sequence[Path]) -> list[str]:
    with Drainer(*tiers, DrainSettings(settle_s=0.0, tries=1)) as drain:
        return drain.once()


def content(folder: Path) -> dict[str, bytes]:
    return {
        os.fspath(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and "penstock" not in path.name
    }


def assert_home(tiers: Sequence[Path]) -> None:
    fast, slow = tiers
    assert content(slow / NAME) == content(fast / NAME)
    assert [path.name for path in slow.iterdir() if NAME in path.name] == [NAME]
    [copy] = find(LocalStore(slow))
    assert verify(copy, "full").is_whole


@pytest.mark.usefixtures("by_threads")
@pytest.mark.parametrize("is_together", [True, False])
def test_all_files_of_a_checkpoint_are_synced_before_one_has_its_name(
    tiers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, is_together: bool
) -> None:
    fast, slow = tiers
    made(fast)
    done: list[str] = []
    reals = os.fsync, os.replace, batch.syncfs

    def fsync(descriptor: int) -> None:
        done.append(f"sync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        reals[0](descriptor)

    def replace(old: str, new: str) -> None:
        done.append(f"name {os.fspath(new)}")
        reals[1](old, new)

    def syncfs(descriptor: int, folder: str) -> None:
        done.append("all")
        reals[2](descriptor, folder)

    for module, name, instead in (
        (os, "fsync", fsync),
        (os, "replace", replace),
        (batch, "syncfs", syncfs),
    ):
        monkeypatch.setattr(module, name, instead)
    monkeypatch.setattr(Syncs, "is_together", lambda *words: is_together)
    assert drained(tiers) == []
    parts = [
        word for word in done if word == "all" or ("part-" in word and os.fspath(slow) in word)
    ]
    kinds = [word.partition(" ")[0] for word in parts]
    if is_together:
        assert kinds == ["all", *["name"] * N]
    else:
        assert kinds == [*["sync"] * N, *["name"] * N]
    monkeypatch.undo()
    assert_home(tiers)
    modes = {path.stat().st_mode & 0o777 for path in (slow / NAME).rglob("part-*")}
    assert modes == {(fast / NAME / "config.json").stat().st_mode & 0o777}  # as of a new file


@pytest.mark.usefixtures("by_threads")
def test_a_copy_that_is_killed_before_any_of_its_steps_names_nothing_and_goes_on(
    tiers: tuple[Path, Path],
) -> None:
    fast, slow = tiers
    made(fast)
    for step in range(1, 400, 9):
        child = os.fork()
        if not child:
            _kill_at(step)
            drained(tiers)
            os._exit(0)
        is_done = os.waitpid(child, 0)[1] == 0
        if not (slow / NAME / INSIDE).exists():
            assert not (slow / NAME).exists(), step
        assert drained(tiers) == [], step
        assert_home(tiers)
        shutil.rmtree(slow / NAME)
        if is_done:
            break
    assert 40 < step < 390, step


def _kill_at(step: int) -> None:
    import sys

    seen = 0

    def count(event: str, words: Any) -> None:
        nonlocal seen
        if event in ("os.rename", "os.remove", "os.symlink", "os.chmod", "os.utime", "os.mkdir"):
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def test_a_full_slow_tier_in_the_middle_names_nothing(tiers: tuple[Path, Path]) -> None:
    fast, slow = tiers
    made(fast, 50_000)
    words = ["mount", "-t", "tmpfs", "-o", "size=900k", "tmpfs", slow]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: needs root")
    try:
        [told] = drained(tiers)
        assert "no room" in told
        assert not (slow / NAME).exists()
    finally:
        subprocess.run(["umount", "-l", slow], check=True)
    (fast / ".penstock/drains-to.json").unlink()  # another folder from here on
    assert drained(tiers) == []
    assert_home(tiers)


def _written_to(fast: Path) -> Callable[..., Any]:
    real = batch.Copy.read

    def read(copy: Copy, *words: Any) -> None:
        if copy.source.endswith("part-07.bin"):
            Path(copy.source).write_bytes(b"other")
        real(copy, *words)

    return read


def _flipped(fast: Path) -> Callable[..., Any]:
    real = batch.Copy.read_back

    def read_back(copy: Copy) -> None:
        if copy.source.endswith("part-07.bin"):
            Path(copy.new).write_bytes(b"flip")
        real(copy)

    return read_back


@pytest.mark.usefixtures("by_threads")
@pytest.mark.parametrize(
    ("step", "instead", "words"),
    [
        ("read", _written_to, "changed while it was copied"),
        ("read_back", _flipped, "reads back other bytes"),
    ],
)
def test_a_file_that_changes_or_is_damaged_ends_the_copy(
    tiers: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    instead: Callable[..., Any],
    words: str,
) -> None:
    fast, slow = tiers
    made(fast)
    monkeypatch.setattr(copying.Copy, step, instead(fast))
    [told] = drained(tiers)
    assert words in told
    assert not (slow / NAME).exists()
    monkeypatch.undo()
    assert drained(tiers) == []
    assert_home(tiers)


@pytest.mark.usefixtures("by_threads")
def test_a_file_that_cannot_be_written_names_nothing(
    tiers: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = tiers
    made(fast)
    real = os.open

    def refusing(path: Any, flags: int, *words: Any, **named: Any) -> int:
        if flags & os.O_CREAT and "part-07.bin" in os.fspath(path):
            raise PermissionError(13, os.strerror(13), os.fspath(path))
        return real(path, flags, *words, **named)

    monkeypatch.setattr(os, "open", refusing)
    [told] = drained(tiers)
    assert "part-07.bin" in told
    assert "Permission denied" in told
    assert not (slow / NAME).exists()
    monkeypatch.undo()
    assert drained(tiers) == []
    assert_home(tiers)
