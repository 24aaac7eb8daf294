"""Many small files come home together: each file is durable, and failures stay separate."""

import errno
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from burstkills import AT_ONCE
from bursts import is_drained_before, make_old
from penstock.save import batch as module
from penstock.save.batch import Copy, copy_together
from penstock.save.burst import Burst, finish, prepare
from penstock.save.working import Settings

N = 20


@pytest.fixture
def fast(tmp_path: Path) -> Path:
    path = tmp_path / "fast"
    path.mkdir()
    prepare(path)
    return path


def made(fast: Path, work: Path, n_files: int = N, turn: int = 0) -> list[Path]:
    """Make new files as native/burst.c does.  Return the paths on the tier."""
    paths = []
    for number in range(n_files):
        home = work / f"part-{number:02d}.pt"
        name = f"{time.time_ns():016x}{turn * 1000 + number:08x}-{home.name}"
        (fast / "burst/home" / name).symlink_to(home)
        path = fast / "burst/data" / name
        path.write_bytes(b"PK%d" % number * (number * 100))
        path.chmod(0o604)
        os.utime(path, (1000, 1000 + number))
        home.symlink_to(path)
        paths.append(path)
    return paths


def assert_home(work: Path, numbers: Sequence[int] = range(N)) -> None:
    for number in numbers:
        path = work / f"part-{number:02d}.pt"
        status = path.lstat()
        assert path.read_bytes() == b"PK%d" % number * (number * 100)
        assert (status.st_mode & 0o7777, status.st_mtime) == (0o604, 1000 + number)


def test_small_files_come_home_with_one_sync_each(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(fast, work)
    synced: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(str(work)):
            synced.append(path)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert finish(fast, AT_ONCE)[1] == []
    assert_home(work)
    assert sorted(path.name for path in work.iterdir()) == [f"part-{n:02d}.pt" for n in range(N)]
    # Each draft is synced before the rename, and the folder is synced once after all renames.
    assert len(synced) == len(set(synced)) == N + 1
    assert synced[-1] == str(work)
    assert not any((fast / "burst/data").iterdir())


def test_a_file_that_fails_keeps_no_other_one(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures: written to meanwhile, read back as other bytes, removed, torn on the tier."""
    paths = made(fast, work)
    real = module.Copy.read_back

    def read_back(copy: Copy) -> None:
        number = int(copy.source.name[-5:-3])
        if number == 3:
            with copy.source.open("ab") as file:
                file.write(b"more")
        elif number == 4:
            os.pwrite(copy._descriptor, b"flip", 0)
        elif number == 5:
            (work / "part-05.pt").unlink()
        real(copy)

    monkeypatch.setattr(module.Copy, "read_back", read_back)
    with Burst(fast, AT_ONCE) as drain:
        failed = drain._round()
        assert drain.status.drained == N - 3
    told = {name[-5:-3]: why for name, why in failed.items()}
    assert set(told) == {"03", "04"}
    assert "is being written again" in told["03"]
    assert "reads back other bytes" in told["04"]
    assert_home(work, [number for number in range(N) if number not in (3, 4, 5)])
    assert not (work / "part-05.pt").exists()
    assert (work / "part-04.pt").is_symlink()
    assert not [path for path in work.iterdir() if path.name.startswith(".")]
    monkeypatch.undo()
    left = finish(fast, AT_ONCE)[1]
    assert [line.partition(":")[0] for line in left] == [str(work / "part-05.pt")]
    assert (work / "part-03.pt").read_bytes().endswith(b"more")
    assert paths[5].exists()


def test_a_full_slow_tier_takes_what_it_has_room_for(fast: Path, tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", slow]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: needs root")
    try:
        for path in made(fast, slow):
            path.write_bytes(os.urandom(50_000))
        with Burst(fast, AT_ONCE) as drain:
            failed = drain._round()
            assert failed
            assert drain.status.reason == "full"
            assert {"no room" in why for why in failed.values()} == {True}
            assert drain.status.drained == N - len(failed) > 0
        assert not [path for path in slow.iterdir() if path.name.startswith(".")]
    finally:
        subprocess.run(["umount", "-l", slow], check=True)


def test_a_drain_of_many_may_be_killed_before_any_of_its_steps(fast: Path, work: Path) -> None:
    for step in range(1, 200, 3):
        made(fast, work, 6, step)
        is_done = is_drained_before(fast, step)
        make_old(fast)
        for number, path in enumerate(sorted((fast / "burst/data").glob("*-part-*"))):
            os.utime(path, (1000, 1000 + int(path.name[-5:-3])))
            assert number < 6
        assert finish(fast, AT_ONCE)[1] == [], step
        assert_home(work, range(6))
        assert not [path for path in work.iterdir() if path.name.startswith(".")], step
        assert not any((fast / "burst/data").iterdir()), step
        for path in work.iterdir():
            path.unlink()
        if is_done:
            break
    assert 20 < step < 199, step


def test_a_limit_of_the_rate_bounds_what_waits_together(fast: Path, work: Path) -> None:
    for path in made(fast, work):
        path.write_bytes(b"x" * 1000)
    with Burst(fast, Settings(settle_s=0.0, limit_bps=5000.0)) as drain:
        sizes = [len(batch) for batch in drain._batches(drain.backlog(), {})]
    assert sizes == [5, 5, 5, 5]


def test_an_error_of_a_sync_is_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = []
    for number in range(3):
        source = tmp_path / f"{number}"
        source.write_bytes(b"x")
        copies.append(Copy(source, tmp_path / f"new-{number}", source.stat()))
    real = Copy.sync

    def sync(copy: Copy) -> None:
        if copy.source.name == "1":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(copy)

    monkeypatch.setattr(Copy, "sync", sync)
    copy_together(copies, lambda copy: None)
    assert [copy.error is None for copy in copies] == [True, False, True]
    assert [copy.new.exists() for copy in copies] == [True, False, True]
