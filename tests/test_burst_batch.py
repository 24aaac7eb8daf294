"""Many small files come home together: each file is durable, and failures stay separate."""

import errno
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from burstkills import AT_ONCE
from bursts import is_drained_before, make_old
from penstock.errors import TierFull
from penstock.places.tiers import Mount, mount_of
from penstock.save.burst import file as burstfile
from penstock.save.burst.drain import finish
from penstock.save.burst.file import NEW
from penstock.save.burst.home import Burst
from penstock.save.burst.tier import prepare
from penstock.save.drain.working import DrainSettings
from penstock.save.small import batch as module
from penstock.save.small.batch import Copy, Syncs, copy_together, read_all
from test_burst import small_disk

N = 20


@pytest.fixture
def fast(fast: Path) -> Path:
    prepare(fast)
    return fast


def made(fast: Path, work: Path, n_files: int = N, turn: int = 0) -> list[Path]:
    """Make new files as native/burst.c does.  Return the paths on the tier."""
    paths = []
    for number in range(n_files):
        home = work / f"part-{number:02d}.pt"
        name = f"{time.time_ns():016x}{turn * 1000 + number:08x}-{home.name}"
        (fast / "burst/home" / name).symlink_to(home)
        path = fast / "burst/data" / name
        path.write_bytes(b"PK%d" % number * (number * 100 + 1))
        path.chmod(0o604)
        os.utime(path, (1000, 1000 + number))
        home.symlink_to(path)
        paths.append(path)
    return paths


def assert_home(work: Path, numbers: Sequence[int] = range(N)) -> None:
    for number in numbers:
        path = work / f"part-{number:02d}.pt"
        status = path.lstat()
        assert path.read_bytes() == b"PK%d" % number * (number * 100 + 1)
        assert (status.st_mode & 0o7777, status.st_mtime) == (0o604, 1000 + number)


@pytest.mark.parametrize("is_together", [True, False])
def test_small_files_come_home_with_one_sync_for_all_or_one_each(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch, is_together: bool
) -> None:
    made(fast, work)
    synced: list[str] = []
    real, real_syncfs, real_exchange = os.fsync, module.syncfs, burstfile.exchange

    def fsync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(str(work)):
            synced.append(path)
        real(descriptor)

    def syncfs(descriptor: int, folder: str) -> None:
        assert len([path for path in work.iterdir() if path.name.endswith(NEW)]) == N
        synced.append("all")
        real_syncfs(descriptor, folder)

    def exchange(new: str, old: str) -> None:
        assert len(synced) == (1 if is_together else N), "an unsynced file got its name"
        real_exchange(new, old)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(module, "syncfs", syncfs)
    monkeypatch.setattr(module.Syncs, "is_together", lambda *words: is_together)
    monkeypatch.setattr(burstfile, "exchange", exchange)
    assert finish(fast, AT_ONCE)[1] == []
    assert_home(work)
    assert sorted(path.name for path in work.iterdir()) == [f"part-{n:02d}.pt" for n in range(N)]
    # All drafts are synced before the first rename, and the folder is synced once after the last.
    assert len(synced) == len(set(synced)) == (2 if is_together else N + 1)
    assert synced[-1] == str(work)
    assert not any((fast / "burst/data").iterdir())
    assert not any((fast / "burst/draft").iterdir())


def test_a_file_that_fails_keeps_no_other_one(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failures: written to meanwhile, read back as other bytes, removed, torn on the tier."""
    paths = made(fast, work)
    real = module.Copy.read_back

    def read_back(copy: Copy) -> None:
        number = int(copy.source[-5:-3])
        if number == 3:
            with Path(copy.source).open("ab") as file:
                file.write(b"more")
        elif number == 4:
            Path(copy.new).write_bytes(b"flip")
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
    with small_disk(tmp_path / "slow", 400 << 10) as slow:
        for path in made(fast, slow):
            path.write_bytes(b"x" + os.urandom(49_999))  # of no known format
        with Burst(fast, AT_ONCE) as drain:
            failed = drain._round()
            assert failed
            assert drain.status.reason == "full"
            assert {"no room" in why for why in failed.values()} == {True}
            assert drain.status.drained == N - len(failed) > 0
        assert not [path for path in slow.iterdir() if path.name.startswith(".")]


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
    with Burst(fast, DrainSettings(settle_s=0.0, limit_bps=5000.0)) as drain:
        sizes = [len(batch) for batch in drain._batches(drain.backlog(), {})]
    assert sizes == [5, 5, 5, 5]


def copies_in(folder: Path, n_files: int = 3) -> list[Copy]:
    copies = []
    for number in range(n_files):
        source = folder / f"{number}"
        source.write_bytes(b"x")
        copies.append(Copy(f"{number}", str(source), str(folder / f"new-{number}"), str(folder)))
    read_all(copies, lambda part: None, 0.0, lambda copy, data: True)
    return copies


def placed(copy: Copy, descriptor: int) -> os.stat_result:
    return os.fstat(descriptor)


def test_an_error_of_a_sync_is_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = copies_in(tmp_path)
    real = Copy.sync

    def sync(copy: Copy) -> None:
        if copy.name == "1":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(copy)

    monkeypatch.setattr(Copy, "sync", sync)
    monkeypatch.setattr(Syncs, "is_together", lambda *words: False)
    copy_together(copies, lambda part: None, placed, Syncs())
    assert [copy.error is None for copy in copies] == [True, False, True]
    assert [Path(copy.new).exists() for copy in copies] == [True, False, True]
    assert [copy.put is not None for copy in copies] == [True, False, True]


def test_after_an_error_of_the_common_sync_no_file_counts_and_each_is_synced_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def syncfs(descriptor: int, folder: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), folder)

    monkeypatch.setattr(module, "SYNCED_TOGETHER", {mount_of(tmp_path).kind})
    monkeypatch.setattr(module, "syncfs", syncfs)
    syncs = Syncs()
    copies = copies_in(tmp_path, N)
    copy_together(copies, lambda part: None, placed, syncs)
    assert [(copy.put, Path(copy.new).exists()) for copy in copies] == [(None, False)] * N
    assert all(isinstance(copy.error, OSError) for copy in copies)
    again = copies_in(tmp_path, N)
    copy_together(again, lambda part: None, placed, syncs)
    assert all(copy.error is None and copy.put for copy in again)


def test_on_a_full_tier_a_file_that_finds_room_later_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threads took the room from each other: the first write of each file fails."""
    copies = copies_in(tmp_path)
    real, seen = os.pwrite, set[int]()

    def write(descriptor: int, data: Any, offset: int) -> int:
        name = int(os.readlink(f"/proc/self/fd/{descriptor}")[-1])
        if name not in seen or name == 2:
            seen.add(name)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data, offset)

    monkeypatch.setattr(os, "pwrite", write)
    copy_together(copies, lambda part: None, placed, Syncs())
    monkeypatch.undo()
    assert [copy.put is not None for copy in copies] == [True, True, False]
    assert isinstance(copies[2].error, TierFull)
    assert [Path(copy.new).exists() for copy in copies] == [True, True, False]


def test_a_few_files_are_synced_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "syncfs", lambda *words: pytest.fail("other programs' data too"))
    copies = copies_in(tmp_path)
    copy_together(copies, lambda part: None, placed, Syncs())
    assert all(copy.put for copy in copies)


def test_a_file_system_that_is_not_known_to_wait_is_synced_file_by_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = tmp_path.stat().st_dev
    for kind, release, is_together in (
        ("ext4", "6.1.0", True),
        ("ext4", "5.7.19-generic", False),
        ("fuse.sshfs", "6.1.0", False),
        ("nfs4", "6.1.0", False),
    ):
        monkeypatch.setattr(module, "mount_of", lambda path, kind=kind: Mount("/", kind, "x"))
        monkeypatch.setattr(os, "uname", lambda release=release: Release(release))
        assert Syncs().is_together(device, str(tmp_path)) is is_together, (kind, release)


class Release(NamedTuple):
    release: str


def test_a_folder_that_cannot_be_written_keeps_no_other_one(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "closed").mkdir()
    made(fast, work)
    [other] = made(fast, work / "closed", 1, 1)
    other.write_bytes(b"closed")
    real = os.open

    def refusing(path: Any, flags: int, *words: Any, **named: Any) -> int:
        if flags & os.O_CREAT and "/closed/" in os.fspath(path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags, *words, **named)

    with Burst(fast, AT_ONCE) as drain:
        monkeypatch.setattr(os, "open", refusing)
        failed = drain._round()
        assert list(failed) == [str(work / "closed/part-00.pt")]
        assert drain.status.drained == N
        monkeypatch.undo()
        assert (work / "closed/part-00.pt").read_bytes() == b"closed"
        drain._attempts.clear()
        assert drain.once() == []
    assert_home(work)
    assert not (work / "closed/part-00.pt").is_symlink()


def test_what_a_killed_batch_has_left_goes_though_the_program_removed_the_file(
    fast: Path, work: Path
) -> None:
    """Killed after the third file was written: the program then renames the folder and removes the
    files."""
    paths = made(fast, work)
    child = os.fork()
    if not child:
        real = os.utime

        def utime(*words: Any, **named: Any) -> None:
            real(*words, **named)
            if sum(path.name.endswith(NEW) for path in work.iterdir()) >= 3:
                os.kill(os.getpid(), signal.SIGKILL)

        os.utime = utime
        with Burst(fast, AT_ONCE) as drain:
            drain._round()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    moved = work.with_name("moved")
    work.rename(moved)
    [note] = (fast / "burst/draft").glob("many-*")
    assert note.readlink() == work / "."
    note.unlink()
    note.symlink_to(f"{moved}/.")  # as native/burst.c does
    for path in paths:
        (fast / "burst/home" / path.name).unlink()
        path.unlink()
    for number in range(N):
        (moved / f"part-{number:02d}.pt").unlink()
    assert any(moved.iterdir())
    assert finish(fast, AT_ONCE)[1] == []
    assert not any(moved.iterdir())
    assert not any((fast / "burst/draft").iterdir())


def test_the_drain_waits_while_a_save_of_many_small_files_grows(fast: Path, work: Path) -> None:
    paths = made(fast, work, 70)
    now_s = time.time()
    for path in paths:
        os.utime(path, (now_s, now_s))
    with Burst(fast, AT_ONCE) as drain:
        assert len(list(drain._batches(drain.backlog(), {}))) == 1  # by hand: nothing will come
        drain._is_following = True
        assert list(drain._batches(drain.backlog(), {})) == []
        assert not drain._is_idle({})
        os.utime(paths[0], (now_s - 11, now_s - 11))
        assert len(list(drain._batches(drain.backlog(), {}))) == 1  # it has waited for long enough
        for path in paths:
            os.utime(path, (now_s - 2, now_s - 2))
        assert len(list(drain._batches(drain.backlog(), {}))) == 1  # the save has ended


def test_a_new_file_has_a_link_that_fits_into_an_inode_and_one_that_replaces_keeps_its_name(
    recorded: Callable[..., Any], work: Path
) -> None:
    """A shortened name holds the end of the program's name, and whole letters."""
    fast = Path(tempfile.mkdtemp(prefix="", dir="/dev/shm"))  # a short path
    names = ["long-name-of-a-part-00001.pt", "long-name-of-a-part-0000ü.pt", "b.pt"]
    try:
        recorded(
            """
            import os, sys
            for turn in range(2):
                for name in sys.argv[1:]:
                    with open(name, "wb") as file:
                        file.write(b"%d" % turn)
                        target = os.readlink(f"/proc/self/fd/{file.fileno()}")
                    with open("said", "a") as said:
                        print(len(os.fsencode(target)), target.rpartition("/")[2][25:], file=said)
            """,
            options=["--burst-buffer", str(fast)],
            args=names,
        )
        said = [line.split() for line in (work / "said").read_text().splitlines()]
        first, again = said[:3], said[3:]
        assert [name for _, name in again] == names
        assert first[2][1] == "b.pt"
        for (length, name), whole in zip(first[:2], names, strict=False):
            assert int(length) <= 59
            assert name[0] == "~"
            assert whole.endswith(name[1:])
            assert len(os.fsencode(name)) >= 4
        for name in names:
            assert (work / name).read_bytes() == b"1"
        assert sorted(path.name for path in work.iterdir() if path.suffix == ".pt") == sorted(names)
        assert not any((fast / "burst/data").iterdir())
    finally:
        shutil.rmtree(fast)
