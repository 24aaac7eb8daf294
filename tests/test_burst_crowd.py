"""Small files that the native copier brings home: as durable, as whole and as separate as one file.

A proxy stands between the copier and its library: a test acts, or kills the drain, at the moment
before any step of any file.
"""

import errno
import os
import re
import signal
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from burstkills import AT_ONCE
from bursts import make_old
from penstock.errors import TierError
from penstock.save.burst import crowd
from penstock.save.burst import file as burstfile
from penstock.save.burst import links as burstlinks
from penstock.save.burst import small as burstsmall
from penstock.save.burst.drain import finish
from penstock.save.burst.file import HOME, NEW, entries
from penstock.save.burst.home import Burst
from penstock.save.burst.tier import prepare
from penstock.save.copy.copying import DrainStopped
from penstock.save.drain.working import DrainSettings
from penstock.save.overwritten import rounds
from penstock.save.small import batch, copier
from test_burst import small_disk

N = 70
STEPS = ("copy", "place", "clear", "drop")
HEADER = Path(__file__).parent.parent / "native" / "copier" / "copier.h"

pytestmark = pytest.mark.skipif(not copier.is_built(), reason="`make native` builds the copier")


@pytest.fixture
def fast(fast: Path) -> Path:
    prepare(fast)
    return fast


@pytest.fixture(autouse=True)
def synced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the file system of the tests for one that is synced together, whatever it is."""
    monkeypatch.setattr(batch.Syncs, "is_together", lambda self, device, folder: True)


def content(number: int, turn: int = 0) -> bytes:
    return b"%d of %d" % (number, turn) * (number * 50 + 1)


def made(fast: Path, work: Path, turn: int = 0, n_files: int = N) -> list[Path]:
    """Make new files as native/burst.c does.  Return the paths on the tier."""
    paths = []
    for number in range(n_files):
        home = work / f"part-{number:02d}.pt"
        name = f"{time.time_ns():016x}{turn * 1000 + number:08x}-{home.name}"
        (fast / "burst/home" / name).symlink_to(home)
        path = fast / "burst/data" / name
        path.write_bytes(content(number, turn))
        path.chmod(0o604)
        os.utime(path, (1000, 1000 + number))
        home.unlink(missing_ok=True)
        home.symlink_to(path)
        paths.append(path)
    return paths


def assert_home(work: Path, numbers: Iterator[int] | range = range(N), turn: int = 0) -> None:
    for number in numbers:
        path = work / f"part-{number:02d}.pt"
        status = path.lstat()
        assert path.read_bytes() == content(number, turn)
        assert (status.st_mode, status.st_mtime) == (0o100604, 1000 + number)


def assert_nothing_left(fast: Path, work: Path) -> None:
    assert not [path for path in work.iterdir() if path.name.startswith(".")]
    for folder in ("data", "home", "draft"):
        assert not list((fast / "burst" / folder).iterdir()), folder


class Proxy:
    """The library, one file in a call.  before: is called with the step and the file's number."""

    def __init__(self, before: Callable[[str, int, Any], bool | None]) -> None:
        self._real, self._before = copier._library(), before

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        step = name.removeprefix("penstock_copier_")
        if step not in STEPS:
            return real

        def call(handle: Any, start: int, end: int) -> Any:
            assert end - start == 1
            result = self._before(step, start, handle)
            return end if result else real(handle, start, end)

        return call


@pytest.fixture
def stepping(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., Any]], None]:
    def step(before: Callable[..., Any]) -> None:
        proxy = Proxy(before)
        monkeypatch.setattr(copier, "_library", lambda: proxy)
        monkeypatch.setattr(copier, "IN_A_CALL", 1)
        monkeypatch.setattr(copier, "PLACED_IN_A_CALL", 1)

    return step


def number_of(fast: Path, at: int) -> int:
    """Return the number in the file name: the newest file is the first of the batch."""
    return N - 1 - at


def test_many_files_come_home_by_the_native_copier_with_one_sync_for_all(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(fast, work)
    synced, real = [], copier.syncfs

    def syncfs(descriptor: int, folder: str) -> None:
        drafts = [path for path in work.iterdir() if path.name.endswith(NEW)]
        assert [path.is_file() and not path.is_symlink() for path in drafts] == [True] * N
        assert all((work / f"part-{number:02d}.pt").is_symlink() for number in range(N))
        synced.append(folder)
        real(descriptor, folder)

    monkeypatch.setattr(copier, "syncfs", syncfs)
    monkeypatch.setattr(burstsmall.SmallFiles, "_drain_together", None)
    with Burst(fast, AT_ONCE) as drain:
        assert drain.once() == []
        assert drain.status.drained == N
        assert drain.status.drained_bytes == sum(len(content(number)) for number in range(N))
    assert synced == [str(work)]
    assert_home(work)
    assert_nothing_left(fast, work)


def is_drained_before(fast: Path, call: int, stepping: Callable[..., None]) -> bool:
    """Drain once and return True; return False if killed just before call number `call`."""
    child = os.fork()
    if not child:
        seen = 0

        def before(step: str, at: int, handle: Any) -> None:
            nonlocal seen
            seen += 1
            if seen == call:
                os.kill(os.getpid(), signal.SIGKILL)

        stepping(before)
        with Burst(fast, AT_ONCE) as drain:
            drain._round()
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("part", [crowd.PART, 16])
def test_a_drain_may_be_killed_before_any_step_of_any_file(
    fast: Path,
    work: Path,
    stepping: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    part: int,
) -> None:
    """With parts of 16 files some files are at their paths, or gone from the tier's links, while
    others are not copied."""
    monkeypatch.setattr(crowd, "PART", part)
    for turn, killed_at in enumerate(range(1, 4 * N + 30, 29)):
        made(fast, work, turn)
        is_done = is_drained_before(fast, killed_at, stepping)
        for number in range(N):  # at every moment each path leads to a whole file
            assert (work / f"part-{number:02d}.pt").read_bytes() == content(number, turn)
        make_old(fast)
        for path in (fast / "burst/data").iterdir():
            number = int(path.name[-5:-3])
            os.utime(path, (1000, 1000 + number))
        assert finish(fast, AT_ONCE)[1] == [], killed_at
        assert_home(work, range(N), turn)
        assert finish(fast, AT_ONCE)[1] == []  # sweeps the notes of the killed drain
        assert_nothing_left(fast, work)
    assert is_done
    assert killed_at > 4 * N


def test_a_program_removes_files_after_the_drain_was_killed_with_all_at_their_paths(
    fast: Path, work: Path, stepping: Callable[..., None]
) -> None:
    """The note of placed files tells the next drain, which finds no link any more, that the files
    have arrived: a file that the program removed does not come back, and none is named as lost."""
    made(fast, work)
    child = os.fork()
    if not child:

        def before(step: str, at: int, handle: Any) -> None:
            if step == "drop":
                os.kill(os.getpid(), signal.SIGKILL)

        stepping(before)
        with Burst(fast, AT_ONCE) as drain:
            drain._round()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    assert [path.name[:7] for path in (fast / "burst/draft").glob("placed-*")] == ["placed-"]
    assert not any(one.is_home for one in entries(fast))
    (work / "part-07.pt").unlink()
    make_old(fast)
    assert finish(fast, AT_ONCE)[1] == []
    assert not (work / "part-07.pt").exists()
    assert_home(work, (number for number in range(N) if number != 7))
    assert finish(fast, AT_ONCE)[1] == []  # sweeps the notes of the killed drain
    assert_nothing_left(fast, work)


def test_a_file_that_fails_keeps_no_other_one(
    fast: Path, work: Path, stepping: Callable[..., None]
) -> None:
    """Before the exchange: written to, damaged on the slow tier, removed by the program."""
    paths = made(fast, work)

    def before(step: str, at: int, handle: Any) -> None:
        number = number_of(fast, at)
        if step == "place" and number == 3:
            with paths[3].open("ab") as file:
                file.write(b"more")
        elif step == "place" and number == 4:
            (work / f".{paths[4].name}{NEW}").write_bytes(b"flip")
        elif step == "place" and number == 5:
            (work / "part-05.pt").unlink()
        elif step == "copy" and number == 6:
            paths[6].unlink()

    stepping(before)
    with Burst(fast, AT_ONCE) as drain:
        failed = drain._round()
        assert drain.status.drained == N - 4
    told = {name[-5:-3]: why for name, why in failed.items()}
    assert set(told) == {"03", "04"}
    assert "is being written again" in told["03"]
    assert "reads back other bytes" in told["04"]
    assert_home(work, (number for number in range(N) if number not in (3, 4, 5, 6)))
    assert (work / "part-04.pt").is_symlink()
    assert not [path for path in work.iterdir() if path.name.startswith(".")]
    assert paths[5].exists()
    assert paths[3].exists()


def test_a_file_written_to_after_its_copy_was_placed_leads_to_the_tier_again(
    fast: Path, work: Path, stepping: Callable[..., None]
) -> None:
    """A program that opened the path just before the exchange writes to the file on the tier."""
    paths = made(fast, work)

    def before(step: str, at: int, handle: Any) -> None:
        if step == "drop" and number_of(fast, at) == 3:
            with paths[3].open("ab") as file:
                file.write(b"more")

    stepping(before)
    with Burst(fast, AT_ONCE) as drain:
        drain._round()
        assert paths[3].exists()
        drain._arrivals.forget_committed()
        assert (work / "part-03.pt").readlink() == paths[3]
        drain.once()
    assert (work / "part-03.pt").read_bytes() == content(3) + b"more"
    assert_home(work, (number for number in range(N) if number != 3))
    assert_nothing_left(fast, work)


def test_a_newer_file_at_a_path_keeps_the_older_one_until_it_counts(
    fast: Path, work: Path, stepping: Callable[..., None]
) -> None:
    paths = made(fast, work)

    def before(step: str, at: int, handle: Any) -> None:
        if step == "drop" and number_of(fast, at) == 3:
            name = f"{time.time_ns():016x}{3:08x}-part-03.pt"
            (fast / "burst/home" / name).symlink_to(work / "part-03.pt")
            (fast / "burst/data" / name).write_bytes(b"newer")
            (work / "part-03.pt").unlink()
            (work / "part-03.pt").symlink_to(fast / "burst/data" / name)

    stepping(before)
    with Burst(fast, AT_ONCE) as drain:
        drain._round()
        assert paths[3].exists() or (work / "part-03.pt").read_bytes() == b"newer"
        assert drain.once() == []
    assert (work / "part-03.pt").read_bytes() == b"newer"
    assert not (work / "part-03.pt").is_symlink()
    assert_nothing_left(fast, work)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The rows of each copier that is made."""
    seen: list[Any] = []
    real = copier.Copier.__enter__

    def enter(self: Any) -> Any:
        seen.append(self.rows)
        return real(self)

    monkeypatch.setattr(copier.Copier, "__enter__", enter)
    return seen


def test_what_the_exchange_took_from_a_quicker_program_goes_back(
    fast: Path, work: Path, stepping: Callable[..., None], rows: list[Any]
) -> None:
    made(fast, work)
    other = work / "other"

    def before(step: str, at: int, handle: Any) -> bool:
        if step != "place" or number_of(fast, at) != 3:
            return False
        home = work / "part-03.pt"
        [new] = work.glob(f".*-{home.name}{NEW}")
        other.write_bytes(b"the program's")
        other.rename(home)  # as the native library: exchanged, and then seen
        rows[0]["descriptor"][at] = os.open(new, os.O_RDONLY)
        burstfile.exchange(str(new), str(home))
        rows[0]["state"][at] = copier.TAKEN
        return True

    stepping(before)
    with Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
    assert (work / "part-03.pt").read_bytes() == b"the program's"
    assert_home(work, (number for number in range(N) if number != 3))
    assert not [path for path in work.iterdir() if path.name.startswith(".")]


def test_a_process_that_waits_to_write_writes_to_the_tier(
    fast: Path, work: Path, stepping: Callable[..., None], rows: list[Any]
) -> None:
    paths = made(fast, work)

    def before(step: str, at: int, handle: Any) -> bool:
        if step != "place" or number_of(fast, at) != 3:
            return False
        home = work / "part-03.pt"
        [new] = work.glob(f".*-{home.name}{NEW}")
        rows[0]["descriptor"][at] = os.open(paths[3], os.O_RDONLY)
        burstfile.exchange(str(new), str(home))
        rows[0]["state"][at] = copier.WANTED
        return True

    stepping(before)
    with Burst(fast, AT_ONCE) as drain:
        [(name, why)] = drain._round().items()
        assert name.endswith("part-03.pt")
        assert "is being written again" in why
        assert (work / "part-03.pt").readlink() == paths[3]
        assert not [path for path in work.iterdir() if path.name.startswith(".")]
        drain._attempts.clear()
        assert drain.once() == []
    assert_home(work)
    assert_nothing_left(fast, work)


def test_a_file_system_that_cannot_exchange_names_gets_each_file_by_a_rename(
    fast: Path, work: Path, stepping: Callable[..., None], rows: list[Any]
) -> None:
    made(fast, work)

    def before(step: str, at: int, handle: Any) -> bool:
        if step == "place":
            rows[0]["state"][at] = copier.NO_EXCHANGE
        return step == "place"

    def cannot(new: str, old: str) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    stepping(before)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(burstfile, "exchange", cannot)
        assert finish(fast, AT_ONCE)[1] == []
    assert_home(work)
    assert_nothing_left(fast, work)


def test_after_an_error_of_the_common_sync_no_file_counts(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(fast, work)
    distrusted = []

    def syncfs(descriptor: int, folder: str) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), folder)

    monkeypatch.setattr(copier, "syncfs", syncfs)
    monkeypatch.setattr(batch.Syncs, "distrust", lambda self, device: distrusted.append(device))
    with Burst(fast, AT_ONCE) as drain:
        assert len(drain._round()) == N
        assert drain.status.drained == 0
    assert distrusted == [work.stat().st_dev]
    assert all((work / f"part-{number:02d}.pt").is_symlink() for number in range(N))
    assert not [path for path in work.iterdir() if path.name.startswith(".")]


def test_after_an_error_of_a_common_sync_no_file_of_a_later_part_counts(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel reports a write error to one sync, also if the bytes are of the next part."""
    made(fast, work)
    monkeypatch.setattr(crowd, "PART", 16)
    n_syncs, real = 0, copier.syncfs

    def syncfs(descriptor: int, folder: str) -> None:
        nonlocal n_syncs
        n_syncs += 1
        if n_syncs == 2:
            raise OSError(errno.EIO, os.strerror(errno.EIO), folder)
        real(descriptor, folder)

    monkeypatch.setattr(copier, "syncfs", syncfs)
    with Burst(fast, AT_ONCE) as drain:
        assert len(drain._round()) == N - 16
        assert (n_syncs, drain.status.drained) == (2, 16)
    assert_home(work, range(N - 16, N))  # the newest are the first part
    assert all((work / f"part-{number:02d}.pt").is_symlink() for number in range(N - 16))
    assert not [path for path in work.iterdir() if path.name.startswith(".")]


def test_a_part_is_copied_while_the_part_before_is_synced(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(fast, work)
    monkeypatch.setattr(crowd, "PART", 16)
    n_drafts, real = list[int](), copier.syncfs

    def syncfs(descriptor: int, folder: str) -> None:
        if not n_drafts:  # wait for the next part, which needs no sync to be copied
            until_s = time.monotonic() + 60
            while time.monotonic() < until_s and drafts() < 32:
                time.sleep(0.001)
        n_drafts.append(drafts())
        real(descriptor, folder)

    def drafts() -> int:
        return sum(path.name.endswith(NEW) for path in work.iterdir())

    monkeypatch.setattr(copier, "syncfs", syncfs)
    assert finish(fast, AT_ONCE)[1] == []
    assert n_drafts[0] >= 32
    assert len(n_drafts) == 5
    assert_home(work)
    assert_nothing_left(fast, work)


@pytest.mark.parametrize("is_full", [False, True])
def test_a_mixture_is_marked_before_the_first_file_of_many_moves(
    fast: Path, work: Path, stepping: Callable[..., None], is_full: bool
) -> None:
    made(fast, work)
    marked: list[int] = []

    def mark(batch: Any) -> None:
        marked.append(len(batch))
        if is_full:
            raise TierError("no room for the mark")

    def before(step: str, at: int, handle: Any) -> None:
        assert marked == [N], step

    stepping(before)
    with Burst(fast, AT_ONCE) as drain:
        drain._saves.beforehand.mark = mark  # type: ignore[method-assign]
        failed = drain._round()
        assert len(failed) == (N if is_full else 0)
        assert drain.status.drained == (0 if is_full else N)


def test_files_of_a_folder_that_cannot_be_synced_stay_on_the_tier_until_it_is(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = made(fast, work)
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}") == str(work):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with Burst(fast, AT_ONCE) as drain:
        assert len(drain._round()) == N
        assert drain.status.drained == 0
        assert all(path.exists() for path in paths)
        monkeypatch.undo()
        make_old(fast)
        drain._attempts.clear()
        assert drain.once() == []
    assert not any((fast / "burst/data").iterdir())
    for number in range(N):
        assert (work / f"part-{number:02d}.pt").read_bytes() == content(number)
    assert_nothing_left(fast, work)


def test_a_drain_that_is_stopped_keeps_what_has_arrived(
    fast: Path, work: Path, stepping: Callable[..., None]
) -> None:
    made(fast, work)
    drain = Burst(fast, AT_ONCE)

    def before(step: str, at: int, handle: Any) -> None:
        if step == "place" and at == 40:
            drain.stop()

    stepping(before)
    with drain:
        with pytest.raises(DrainStopped):
            drain._round()
        home = [number for number in range(N) if not (work / f"part-{number:02d}.pt").is_symlink()]
        assert 40 < len(home) < N
        assert drain.status.drained == len(home)
        assert_home(work, iter(home))
        assert not [path for path in work.iterdir() if path.name.startswith(".")]
        assert len(list((fast / "burst/data").iterdir())) == N - len(home)
    assert finish(fast, AT_ONCE)[1] == []
    assert_home(work)


def test_a_torn_file_of_many_is_put_aside_and_whole_ones_of_its_format_come_home(
    fast: Path, work: Path
) -> None:
    paths = made(fast, work)
    for path in paths[:10]:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("data", path.name)
    whole = paths[3].read_bytes()
    paths[3].write_bytes(whole[: len(whole) // 2])
    make_old(fast)
    finish(fast, AT_ONCE)
    assert (work / "part-03.pt.torn").read_bytes() == whole[: len(whole) // 2]
    assert not (work / "part-03.pt").exists()
    for number in (0, 1, 2, 4, 9):
        with zipfile.ZipFile(work / f"part-{number:02d}.pt") as file:
            assert file.namelist() == ["data"]
    assert_home_bytes(work, range(10, N))


def assert_home_bytes(work: Path, numbers: range) -> None:
    for number in numbers:
        path = work / f"part-{number:02d}.pt"
        assert not path.is_symlink()
        assert path.read_bytes() == content(number)


def test_files_that_a_process_writes_to_stay(fast: Path, work: Path) -> None:
    paths = made(fast, work)
    with paths[3].open("ab") as file, Burst(fast, AT_ONCE) as drain:
        assert drain._round() == {}
        assert drain.status.drained == N - 1
        assert (work / "part-03.pt").readlink() == paths[3]
        file.write(b"more")
    assert finish(fast, AT_ONCE)[1] == []
    assert (work / "part-03.pt").read_bytes() == content(3) + b"more"


def test_a_second_save_over_the_same_names_keeps_the_first_until_all_is_home(
    fast: Path, work: Path
) -> None:
    """Files that replace others take the careful way: the earlier files go when the save has
    ended."""
    for turn in range(3):
        for number in range(N):
            home = work / f"part-{number:02d}.pt"
            if turn:
                home.rename(work / f".{home.name}.penstock-was")
        made(fast, work, turn)
        assert finish(fast, AT_ONCE)[1] == []
        assert_home(work, range(N), turn)
        assert_nothing_left(fast, work)


def test_a_full_slow_tier_takes_what_it_has_room_for(fast: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "slow", 400 << 10) as slow:
        for path in made(fast, slow):
            path.write_bytes(b"x" + os.urandom(9_999))
        with Burst(fast, AT_ONCE) as drain:
            failed = drain._round()
            assert failed
            assert drain.status.reason == "full"
            assert {"no room" in why for why in failed.values()} == {True}
            for _ in range(50):  # the drafts of copies side by side take room from each other
                assert drain.status.drained == N - len(failed)
                if drain.status.drained > 20:
                    break
                failed = drain._round()
            assert drain.status.drained > 20
        assert not [path for path in slow.iterdir() if path.name.startswith(".")]


def test_a_link_in_the_place_of_a_draft_or_of_a_file_is_not_followed(
    fast: Path, work: Path, tmp_path: Path
) -> None:
    """A stranger who can write beside the checkpoints plants links under the hidden names."""
    paths = made(fast, work)
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    (work / f".{paths[3].name}{NEW}").symlink_to(secret)
    paths[4].unlink()
    paths[4].symlink_to(secret)
    with Burst(fast, AT_ONCE) as drain:
        drain._round()
    assert secret.read_bytes() == b"secret"
    assert (work / "part-03.pt").read_bytes() == content(3)
    assert (work / "part-04.pt").is_symlink() or (work / "part-04.pt").read_bytes() != b"secret"


def test_a_limit_of_the_rate_is_kept(fast: Path, work: Path) -> None:
    made(fast, work)
    taken = []
    with Burst(fast, DrainSettings(settle_s=0.0, limit_bps=1e12)) as drain:
        real = drain._pace.take
        drain._pace.take = lambda n: taken.append(n) or real(n)  # type: ignore[method-assign,func-returns-value]
        assert drain.once() == []
    assert sum(taken) >= sum(len(content(number)) for number in range(N))


def test_the_look_of_the_native_library_is_the_look_of_python(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = made(fast, work)
    paths[2].unlink()
    ways = fast / "burst/home"
    (ways / paths[3].name).rename(ways / f"{paths[3].name}{HOME}")
    (ways / paths[4].name).unlink()
    (ways / paths[4].name).write_bytes(b"no link")
    (work / "part-05.pt").unlink()
    (work / "part-06.pt").unlink()
    (work / "part-06.pt").symlink_to("elsewhere")
    native = entries(fast)
    linked = burstlinks.linked_files(native)
    monkeypatch.setattr(copier, "is_built", lambda: False)
    assert entries(fast) == native
    assert burstlinks.linked_files(native) == linked
    assert len(native) == N - 1
    assert len(linked) == N - 4


def test_the_copier_and_its_header_agree() -> None:
    header = HEADER.read_text()
    numbers = {name: int(number) for name, number in re.findall(r"COPIER_(\w+) = (\d+)", header)}
    named = {name: getattr(copier, name) for name in numbers}
    assert numbers == named
    sizes = dict(re.findall(r"sizeof\(struct (\w+)\) == (\d+)", header))
    for kind, layout in (("copier_file", copier.FILE), ("copier_seen", copier.SEEN)):
        assert int(sizes[kind]) == layout.itemsize
        body = re.search(rf"struct {kind} {{(.*?)}};", header, re.DOTALL)
        assert body
        code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
        lines = re.findall(r"u?int\d+_t ([^;]+);", code)
        names = [name.strip() for line in lines for name in line.split(",")]
        assert names == list(layout.names or ())
    assert f"COPIER_LARGEST ({batch.SMALL_BYTES >> 20} << 20)" in header
    assert f"COPIER_HOME_BYTES {copier.HOME_BYTES}" in header
    assert crowd.LEAST <= N


@pytest.mark.parametrize(
    "base",
    ["part-00017.pt", "model-00001-of-00004.safetensors", "7.pt", "opt_00.npz", "last.ckpt",
     "step_100.pt", "m.pt.tmp3", "a.part1", "a.part", "rank3.bin", "__0_12.distcp", "best-9.pt",
     "x.incomplete", "30.weights.h5"],
)  # fmt: skip
def test_the_names_of_many_parts_are_followed_as_each_name_alone(base: str) -> None:
    alone = "" if rounds.is_draft(base) else rounds._family_of(f"/job/run/{base}")
    assert rounds._followed_in("/job/run", base) == alone
