"""The drain, what it gives up, and `penstock save`: against kills, full tiers and real servers."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SaveError, TierError, TierFull
from penstock.save.adopting import adopt_files, forget_orphans
from penstock.save.commit import PART_SUFFIX, STATE, begin, commit, is_strange, sweep
from penstock.save.drain import (
    Drain,
    Drainer,
    Pace,
    Settings,
    Status,
    Stopped,
    Trip,
    Yielding,
    copy_checkpoint,
    fetch,
    open_metrics,
    read_status,
    recover,
)
from penstock.save.formats import find
from penstock.save.manifest import CHUNK_BYTES, INSIDE
from penstock.save.retention import (
    Keep,
    as_full,
    doomed_on_fast,
    doomed_on_slow,
    make_room,
    prune,
    remove,
)
from penstock.save.verify import latest_valid, remember_failure, verify
from penstock.stores import LocalStore, Store, open_store
from remote import s3, s3_server, sftp_server

__all__ = ["s3", "s3_server", "sftp_server"]

NO_PACE = Trip(Pace(None))


def saved(root: Path, step: int, data: bytes | None = None, **facts: Any) -> Path:
    part = begin(root, step)
    part.write("model.pt", [data if data is not None else b"%d" % step * 1000])
    part.write("deep/state.json", [b"{}"])
    return commit(part, **facts)


def drained(fast: Path, slow: Any, **settings: Any) -> Status:
    with Drainer(fast, slow, Settings(settle_s=0, tries=1, **settings)) as working:
        failed = working.once()
        assert failed == []
        return working.status


def names(root: Path) -> list[str]:
    return [one.name for one in find(LocalStore(root))]


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    return tmp_path / "slow"


# Copying


def test_every_checkpoint_arrives_whole_verified_and_once(fast: Path, slow: Path) -> None:
    data = os.urandom(2 * CHUNK_BYTES + 12345)
    saved(fast, 1, data)
    saved(fast, 2)
    assert drained(fast, slow).drained == 2
    for one in find(LocalStore(slow)):
        assert verify(one, "full").is_whole
        assert one.manifest.verified_unix_ns > 0
    assert (slow / "step-00000001" / "model.pt").read_bytes() == data
    assert sorted(os.listdir(slow / "step-00000001")) == ["deep", "model.pt", INSIDE]
    again = drained(fast, slow)
    assert (again.drained, again.done_bytes) == (0, 0)


def test_foreign_checkpoints_are_drained_as_they_are(fast: Path, slow: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.randn(300), "step": torch.tensor(7)}
    (fast / "version_0" / "checkpoints").mkdir(parents=True)
    torch.save(state, fast / "version_0" / "checkpoints" / "epoch=1-step=7.ckpt")
    dcp.save(state, checkpoint_id=fast / "step-8")
    (fast / "half.pt").write_bytes(b"PK\x03\x04 a save that is going on")
    (fast / "notes.txt").write_text("not a checkpoint")
    with Drainer(fast, slow, Settings(settle_s=0, tries=1)) as working:
        assert working.once() == []
    assert sorted(names(slow)) == ["step-8", "version_0/checkpoints/epoch=1-step=7.ckpt"]
    there = torch.load(slow / "version_0/checkpoints/epoch=1-step=7.ckpt", weights_only=True)
    assert torch.equal(there["w"], state["w"])
    loaded = {"w": torch.zeros(300), "step": torch.tensor(0)}
    dcp.load(loaded, checkpoint_id=slow / "step-8")
    assert torch.equal(loaded["w"], state["w"])
    assert drained(fast, slow).drained == 0


def test_a_file_that_is_written_again_replaces_its_copy(fast: Path, slow: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for value in (1.0, 2.0):
        torch.save({"w": torch.full((1000,), value)}, fast / "last.pt")
        drained(fast, slow)
        assert torch.load(slow / "last.pt", weights_only=True)["w"][0] == value
        assert verify(find(LocalStore(slow))[0], "full").is_whole


def test_a_folder_that_is_written_again_changes_in_one_moment(fast: Path, slow: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.distributed.checkpoint as dcp

    for value in (1.0, 2.0):
        dcp.save({"w": torch.full((100,), value)}, checkpoint_id=fast / "current")
        drained(fast, slow)
        loaded = {"w": torch.zeros(100)}
        dcp.load(loaded, checkpoint_id=slow / "current")
        assert loaded["w"][0] == value
    assert sorted(os.listdir(slow)) == [".penstock", "current"]


def test_a_part_has_its_mark_from_its_first_moment(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drain killed between the two would leave what nobody may sweep."""
    make = Path.mkdir

    def watched(path: Path, *args: Any, **options: Any) -> None:
        make(path, *args, **options)
        assert not [part for part in slow.rglob(f"*{PART_SUFFIX}") if is_strange(part)]

    monkeypatch.setattr(Path, "mkdir", watched)
    saved(fast / "of/a/run", 1)
    drained(fast, slow)
    assert names(slow) == ["of/a/run/step-00000001"]


@pytest.mark.parametrize("is_drained_by_another", [False, True])
def test_what_another_run_has_left_under_the_same_name_stays(
    fast: Path, slow: Path, is_drained_by_another: bool
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    other = fast.parent / "other"
    for number, tier in enumerate((other if is_drained_by_another else slow, fast)):
        import torch.distributed.checkpoint as dcp

        tier.mkdir(exist_ok=True)
        dcp.save({"w": torch.full((9,), number)}, checkpoint_id=tier / "step-5")
        torch.save({"w": torch.full((9,), number)}, tier / "last.ckpt")
    if is_drained_by_another:
        drained(other, slow)
    before = {path: path.read_bytes() for path in slow.rglob("*") if path.is_file()}
    drained(fast, slow)
    assert {path: path.read_bytes() for path in before if STATE not in path.parts} == {
        path: data for path, data in before.items() if STATE not in path.parts
    }
    assert sorted(names(slow)) == ["last.2.ckpt", "last.ckpt", "step-5", "step-5.2"]
    assert torch.load(slow / "last.2.ckpt")["w"][0] == 1
    assert all(verify(one, "full").is_whole for one in find(LocalStore(slow)))
    assert drained(fast, slow).drained == 0
    torch.save({"w": torch.full((9,), 3)}, fast / "last.ckpt")
    drained(fast, slow)
    assert torch.load(slow / "last.2.ckpt")["w"][0] == 3
    assert len(names(slow)) == 4


@pytest.mark.parametrize("n_bytes", [210, 241, 242, 255])
def test_a_file_with_the_longest_names_there_are_is_drained_replaced_and_pruned(
    fast: Path, slow: Path, n_bytes: int
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    name = "x" * (n_bytes - 3) + ".pt"
    for value in (1.0, 2.0):
        torch.save({"w": torch.full((1000,), value)}, fast / name)
        drained(fast, slow)
        assert torch.load(slow / name, weights_only=True)["w"][0] == value
        assert names(slow) == [name]
        assert verify(find(LocalStore(slow))[0], "full").is_whole
    assert drained(fast, slow).drained == 0
    flip(slow / name, 2000)
    assert not verify(find(LocalStore(slow))[0], "full").is_whole
    store = LocalStore(slow)
    [one] = find(store)
    remove(one)
    assert [path.name for path in slow.iterdir()] == [STATE]


@pytest.mark.parametrize("n_bytes", [20, 255])
def test_a_manifest_goes_when_its_file_has_been_removed_and_not_before(
    tmp_path: Path, n_bytes: int
) -> None:
    kept, gone = (letter * (n_bytes - 5) + ".ckpt" for letter in "kg")
    for name in (kept, gone):
        (tmp_path / name).write_bytes(b"x")
        adopt_files(tmp_path, name, [name], 1, "torch")
    before = {path.name for path in tmp_path.iterdir()}
    assert len(before) == 4
    forget_orphans(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == before
    (tmp_path / gone).unlink()
    forget_orphans(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2
    assert [one.manifest is not None for one in find(LocalStore(tmp_path))] == [True]


def test_pointers_follow_when_all_they_can_name_is_there(fast: Path, slow: Path) -> None:
    saved(fast, 1)
    (fast / "latest").write_text("step-00000001")
    drained(fast, slow)
    assert (slow / "latest").read_text() == "step-00000001"


def test_a_fast_copy_that_has_changed_is_not_drained(fast: Path, slow: Path) -> None:
    saved(fast, 1)
    flip(saved(fast, 2) / "model.pt", 100)
    with Drainer(fast, slow, Settings(tries=1)) as working:
        (line,) = working.once()
        assert "step-00000002" in line
        assert "the fast tier has changed it" in line
        assert working.status.damaged == ("step-00000002",)
    assert names(slow) == ["step-00000001"]
    assert latest_valid(fast, slow, "full").step == 1


def test_a_copy_that_reads_back_wrong_is_not_committed(fast: Path, slow: Path) -> None:
    saved(fast, 1, bytes(3 * CHUNK_BYTES))
    (one,) = find(LocalStore(fast))

    class Bad(LocalStore):
        def upload(self, *args: Any) -> Any:
            made = super().upload(*args)
            write = made.write
            made.write = lambda number, data: write(number, b"x" * len(data))
            return made

    with pytest.raises(TierError, match="reads back other bytes"):
        copy_checkpoint(one, Bad(slow), NO_PACE)
    assert names(slow) == []
    copy_checkpoint(one, LocalStore(slow), NO_PACE)
    assert verify(find(LocalStore(slow))[0], "full").is_whole


def test_an_interrupted_copy_goes_on_and_moves_no_verified_piece_twice(
    fast: Path, slow: Path
) -> None:
    data = os.urandom(10 * CHUNK_BYTES)
    saved(fast, 1, data)
    (one,) = find(LocalStore(fast))
    moved = []

    def once_six(n_bytes: int, was_there: bool) -> None:
        moved.append(n_bytes)
        if len(moved) == 6:
            raise Stopped

    with pytest.raises(Stopped):
        copy_checkpoint(one, LocalStore(slow), replace_told(once_six))
    assert find(LocalStore(slow)) == []
    there, new = [], []
    told = lambda n_bytes, was_there: (there if was_there else new).append(n_bytes)  # noqa: E731
    copy_checkpoint(one, LocalStore(slow), replace_told(told))
    assert sum(there) == 5 * CHUNK_BYTES + 2
    assert sum(there) + sum(new) == len(data) + 2
    assert (slow / "step-00000001" / "model.pt").read_bytes() == data


def replace_told(told: Any) -> Trip:
    return Trip(Pace(None), told=told)


def test_strace_sees_no_verified_piece_written_twice(fast: Path, slow: Path) -> None:
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("strace is missing or may not trace here: make setup-system")
    saved(fast, 1, os.urandom(12 * CHUNK_BYTES))
    program = textwrap.dedent("""
        import os, signal, sys
        from penstock.save import drain
        left = int(sys.argv[3])
        class Killing(drain.Drainer):
            def _through(self, n_bytes, was_there):
                global left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
        with Killing(sys.argv[1], sys.argv[2], drain.Settings(concurrency=1)) as working:
            working.once()
    """)
    written = 0
    for left in (5, 1000):
        trace = slow.with_name("trace")
        subprocess.run(
            ["strace", "-f", "-y", "-o", trace, "-e", "trace=pwrite64", sys.executable, "-c",
             program, fast, slow, str(left)],
        )  # fmt: skip
        for line in trace.read_text().splitlines():
            if "model.pt.penstock-part" in line and " = " in line:
                written += int(line.rsplit("=", 1)[1].split()[0])
    assert written == 12 * CHUNK_BYTES
    assert verify(find(LocalStore(slow))[0], "full").is_whole


# Kills


KILLED = """
    import os, random, signal, sys, threading, time
    from penstock.save import drain, retention
    from penstock.save.commit import begin, commit
    from penstock.stores import LocalStore
    def die():
        time.sleep(float(sys.argv[4]))
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Thread(target=die, daemon=True).start()
    fast, slow, what = sys.argv[1:4]
    keep = retention.Keep(fast=1, last=2)
    for step in range(int(sys.argv[5]), 1 << 30):
        if what == "save":
            if step > int(sys.argv[5]) + 4:
                threading.Event().wait()
            part = begin(fast, step)
            part.write("model.pt", [b"%08d" % step * 200_000])
            commit(part)
            os.write(1, b"durable %d\\n" % step)
        elif what == "recover":
            drain.recover(fast, slow, drain.Settings(settle_s=0, tries=1))
        else:
            with drain.Drainer(fast, slow, drain.Settings(settle_s=0, tries=1, keep=keep)) as one:
                one.once()
"""


def test_random_kills_lose_nothing_that_was_durable(fast: Path, slow: Path) -> None:
    """A short round; benchmarks/soak_save.py does a thousand."""
    chance = random.Random(5)
    newest = 0
    for n in range(6):
        for what in ("save", "drain") if n % 3 else ("save", "recover"):
            command = [sys.executable, "-c", textwrap.dedent(KILLED), fast, slow, what]
            delay = 0.25 + 0.3 * chance.random()
            finished = subprocess.run(
                [*map(str, command), str(delay), str(newest + 1)], capture_output=True, text=True
            )
            assert finished.returncode == -signal.SIGKILL, finished.stderr
            for line in finished.stdout.splitlines():
                newest = int(line.split()[1])
            choice = latest_valid(fast, slow, "full")
            if newest:
                assert choice.step in (newest, newest + 1)
                assert (choice.path / "model.pt").read_bytes() == b"%08d" % choice.step * 200_000
                newest = max(newest, choice.step)
    choice, failed = recover(fast, slow, Settings(settle_s=0))
    assert (choice.step, failed) == (newest, [])
    parts = [path for path in (*fast.rglob("*"), *slow.rglob("*")) if "part" in path.name]
    assert parts == []


# Order, pace, pauses


def test_two_drains_of_one_tier_are_refused(fast: Path, slow: Path, tmp_path: Path) -> None:
    with Drainer(fast, slow), pytest.raises(SaveError, match="another drain has this folder"):
        Drainer(fast, tmp_path / "else").__enter__()
    with pytest.raises(SaveError, match="one lies in the other"):
        Drainer(fast, fast / "below")
    with pytest.raises(SaveError, match="one lies in the other"):
        Drainer(fast, fast)
    with pytest.raises(TierError, match="no such folder"):
        Drainer(tmp_path / "none", slow)


def test_the_pace_is_a_limit_over_time() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = Pace(100e6, lambda: now[0], sleep)
    for _ in range(100):
        pace.take(4 << 20)
    assert 100 * (4 << 20) / 100e6 - 0.5 <= now[0] <= 100 * (4 << 20) / 100e6 + 0.1
    Pace(None, lambda: now[0], sleep).take(1 << 40)


def test_a_rising_data_wait_pauses_and_a_usual_one_does_not() -> None:
    now, share = [0.0], [0.10]

    def after(seconds: float) -> bool:
        now[0] += seconds
        return yielding.should_pause()

    yielding = Yielding(lambda: share[0], lambda: now[0])
    for _ in range(10):
        now[0] += 1
        yielding.quiet()
    assert not after(1)
    share[0] = 0.13
    assert not after(1)
    share[0] = 0.30
    assert after(1)
    share[0] = 0.11
    assert not after(1)
    share[0] = 0.40
    assert after(1)
    assert after(20)
    assert not after(15)  # it waits without us too: that is how this job is
    assert not after(5)
    unknown = Yielding(lambda: None, lambda: now[0])
    assert not unknown.should_pause()


def test_a_drain_that_pauses_says_so_and_ends_when_told(fast: Path, slow: Path) -> None:
    saved(fast, 1, bytes(2 * CHUNK_BYTES))
    shares = iter([0.0])
    states: list[str] = []
    now = [0.0]

    def clock() -> float:
        now[0] += 0.6
        return now[0]

    def told(status: Status) -> None:
        states.append(status.state)
        if states.count("paused") == 3:
            working.stop()

    share = lambda: next(shares, 0.9)  # noqa: E731
    working = Drainer(fast, slow, Settings(tries=1), share=share, told=told, clock=clock)
    with working, pytest.raises(Stopped):
        working.once()
    assert "paused" in states
    assert read_status(fast).state == "ended"


def test_the_newest_goes_first_and_the_status_tells_what_is_at_risk(fast: Path, slow: Path) -> None:
    for step in (1, 2, 3):
        saved(fast, step)
    with Drainer(fast, slow) as working:
        assert [one.step for one in working.backlog()] == [3, 2, 1]
        working._backlog(working.backlog())
        assert working.status.backlog_bytes == 3 * (1000 + 2)
        assert 0 <= working.status.at_risk_s < 60
        working.once()
    status = read_status(fast)
    assert (status.drained, status.backlog, status.last) == (3, (), "step-00000001")


def test_metrics_are_read_by_prometheus_own_parser() -> None:
    parser = pytest.importorskip(
        "prometheus_client.openmetrics.parser", reason="prometheus-client is not installed"
    )
    text = open_metrics(Status(backlog=("a",), backlog_bytes=5, rate_bps=1.5e8, error="x"))
    found = {
        sample.name: sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["penstock_drain_backlog_bytes"] == 5
    assert found["penstock_drain_rate_bytes_per_second"] == 1.5e8
    assert found["penstock_drain_failing"] == 1


def test_a_status_that_was_damaged_is_no_status(fast: Path) -> None:
    (fast / ".penstock").mkdir()
    for text in ("", "[1]", "{", '{"pid": 1}' * 2, "[" * 100_000):
        (fast / ".penstock" / "drain.json").write_text(text)
        assert read_status(fast) is None


def test_a_slow_tier_that_is_gone_is_waited_for(fast: Path, slow: Path) -> None:
    saved(fast, 1)
    slow.write_text("a file where the tier should be: as good as gone")
    is_over = threading.Event()
    states = []

    def told(status: Status) -> None:
        states.append((status.state, status.error))
        if status.state == "waiting" and slow.is_file():
            slow.unlink()
            is_over.set()

    with Drainer(fast, slow.parent / "other", Settings(tries=1)) as working:
        working.slow = LocalStore(slow)
        working._told = told
        assert working.watch(is_over.is_set, 240) == []
    assert names(slow) == ["step-00000001"]
    assert any(state == "waiting" and "slow" in error for state, error in states)


def test_a_long_outage_is_told_in_one_line_however_many_wait(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round once told of all the others' errors in the name of each: twice as long a time."""
    for step in (1, 2, 3, 4):
        saved(fast, step)
    slow.mkdir()
    away = slow.with_name("away")
    monkeypatch.setattr("penstock.save.drain.LOOK_S", 0.001)
    errors: list[str] = []
    is_over = threading.Event()

    def told(status: Status) -> None:
        if status.state == "waiting":
            errors.append(status.error)
        if len(errors) == 40 and away.exists():
            slow.unlink()
            away.rename(slow)
            is_over.set()

    with Drainer(fast, slow, Settings(settle_s=0), told=told) as working:
        slow.rename(away)
        slow.write_text("a file where the tier should be")
        assert working.watch(is_over.is_set, 240) == []
    assert sorted(names(slow)) == [f"step-{step:08d}" for step in (1, 2, 3, 4)]
    assert {len(error.splitlines()) for error in errors} == {1}
    assert max(map(len, errors)) < 1000
    assert "and 3 more" in errors[-1]


# What may go


def test_the_fast_tier_gives_up_only_what_is_verified_on_the_slow_one(
    fast: Path, slow: Path
) -> None:
    for step in (1, 2, 3, 4):
        saved(fast, step)
    (fast / "theirs.pt").write_bytes(b"PK\x03\x04")
    stores = LocalStore(fast), LocalStore(slow)
    keep = Keep(fast=1)
    assert prune(*stores, keep).fast == ()
    drained(fast, slow)
    (slow / "step-00000001" / "model.pt").unlink()
    unverified = replace(find(stores[1])[2].manifest, verified_unix_ns=0)
    from penstock.save.manifest import to_json

    (slow / "step-00000002" / INSIDE).write_bytes(to_json(unverified))
    gone = prune(*stores, keep)
    assert gone.fast == ("step-00000003",)
    assert gone.freed_bytes == 1002
    assert sorted(names(fast)) == [
        "step-00000001", "step-00000002", "step-00000004", "theirs.pt",
    ]  # fmt: skip


def test_the_slow_tier_keeps_last_every_and_best(fast: Path, slow: Path) -> None:
    for step, loss in ((10, 0.1), (20, 0.9), (30, 0.8), (40, 0.7), (50, 0.6)):
        saved(slow, step, metrics={"loss": loss})
    found = find(LocalStore(slow))
    steps = lambda keep: sorted(one.step for one in doomed_on_slow(found, keep))  # noqa: E731
    assert steps(Keep(last=2)) == [10, 20, 30]
    assert steps(Keep(last=2, every=20)) == [10, 30]
    assert steps(Keep(last=2, best="loss")) == [20, 30]
    assert steps(Keep(last=1, best="-loss")) == [10, 30, 40]
    assert steps(Keep()) == []
    with pytest.raises(SaveError, match="keeps nothing"):
        Keep(last=0)


def test_the_last_whole_one_stays_whatever_the_rules_say(fast: Path, slow: Path) -> None:
    saved(slow, 1)
    (saved(slow, 2) / "model.pt").unlink()
    gone = prune(LocalStore(fast), LocalStore(slow), Keep(last=1))
    assert gone.slow == ()
    assert latest_valid(fast, slow).step == 1


def test_one_that_only_looks_whole_is_not_the_one_that_stays(fast: Path, slow: Path) -> None:
    saved(slow, 1)
    flip(saved(slow, 2) / "model.pt", 77)
    command = [sys.executable, "-m", "penstock", "save", "prune", fast, slow, "--keep-last", "1"]
    for more in (["--dry-run"], []):
        told = subprocess.run([*command, *more], capture_output=True, text=True, check=True)
        assert told.stdout == ""
    assert latest_valid(fast, slow, "full").step == 1


@pytest.mark.parametrize("is_remembered", [True, False])
def test_after_a_failed_restart_the_older_step_and_what_follows_it_count(
    fast: Path, slow: Path, is_remembered: bool
) -> None:
    saved(slow, 1000)
    path = saved(slow, 2000)
    if is_remembered:
        remember_failure(find(LocalStore(slow))[0], "diverged")
    else:
        flip(path / "model.pt", 77)
    assert latest_valid(fast, slow, "full").step == 1000
    for step in (1100, 1200, 1300):
        saved(fast, step)
        drained(fast, slow, keep=Keep(fast=2, last=1))
        assert latest_valid(slow, level="full").step == step
    assert [one.step for one in find(LocalStore(slow))] == [2000, 1300]


def test_a_newest_that_the_fast_tier_has_damaged_keeps_no_older_one_from_arriving(
    fast: Path, slow: Path
) -> None:
    saved(fast, 1)
    flip(saved(fast, 2) / "model.pt", 77)
    with Drainer(fast, slow, Settings(settle_s=0, tries=1, keep=Keep(last=1))) as working:
        working.once()
        working.once()
    assert [one.step for one in find(LocalStore(slow))] == [1]


def test_a_best_is_no_number_that_is_none(slow: Path) -> None:
    for step, loss in ((1, 0.5), (2, 0.1), (3, float("nan")), (4, 0.4), (5, 0.45)):
        saved(slow, step, metrics={"loss": loss})
    doomed = doomed_on_slow(find(LocalStore(slow)), Keep(last=1, best="loss"))
    assert [one.step for one in doomed] == [4, 3, 1]


def test_a_damaged_copy_says_nothing_of_the_other_tier_s(fast: Path, slow: Path) -> None:
    saved(fast, 1)
    drained(fast, slow)
    remember_failure(find(LocalStore(fast))[0], "torn", is_copy=True)
    assert latest_valid(fast, slow).path == slow / "step-00000001"
    remember_failure(find(LocalStore(fast))[0], "diverged")
    assert latest_valid(fast, slow).path is None


def test_what_is_not_ours_stays_unless_it_was_drained_and_they_say_so(
    fast: Path, slow: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for step in (1, 2):
        torch.save({"w": torch.ones(10)}, fast / f"step-{step}.pt")
    torch.save({"w": torch.ones(10)}, slow.parent / "other.pt")
    drained(fast, slow)
    stores = LocalStore(fast), LocalStore(slow)
    assert prune(*stores, Keep(fast=0)).fast == ()
    assert prune(*stores, Keep(fast=1, foreign=True)).fast == ("step-1.pt",)
    assert sorted(names(slow)) == ["step-1.pt", "step-2.pt"]
    (pair,) = doomed_on_fast(find(stores[0]), find(stores[1]), Keep(fast=0, foreign=True))
    assert pair[0].name == pair[1].name == "step-2.pt"


def test_retention_and_drain_come_to_rest(fast: Path, slow: Path) -> None:
    for step in range(1, 8):
        saved(fast, step)
    with Drainer(fast, slow, Settings(keep=Keep(fast=2, last=3))) as working:
        working.once()
        assert [one.step for one in find(working.fast)] == [7, 6]
        assert [one.step for one in find(working.slow)] == [7, 6, 5]
        before = working.status.drained
        working.once()
        assert working.status.drained == before


def test_foreign_ones_that_stay_on_fast_are_not_drained_again_and_again(
    fast: Path, slow: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for step in range(1, 6):
        torch.save({"w": torch.ones(10)}, fast / f"step-{step}.pt")
    with Drainer(fast, slow, Settings(settle_s=0, keep=Keep(fast=1, last=2))) as working:
        working.once()
        working.once()
        assert working.status.drained == 2
    assert sorted(names(slow)) == ["step-4.pt", "step-5.pt"]
    assert len(names(fast)) == 5


# Room


def test_room_is_made_or_waited_for_or_the_save_is_skipped(fast: Path, slow: Path) -> None:
    free, now = [0], [0.0]

    class Small(LocalStore):
        def free_bytes(self) -> int:
            return free[0]

    def sleep(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 3:
            free[0] = 5000

    small, keep = Small(fast), Keep(fast=1)
    room = lambda on_full, most_s=9.0: make_room(  # noqa: E731
        small, LocalStore(slow), 4000, keep, on_full, most_s=most_s, clock=lambda: now[0],
        sleep=sleep,
    )  # fmt: skip
    assert room("skip") == "skip"
    assert room("direct") == "slow"
    with pytest.raises(TierFull, match="no drain can free any"):
        room("wait")
    saved(fast, 1)
    saved(fast, 2)
    with pytest.raises(TierFull, match=r"a checkpoint of 4,000 bytes, 0 are free.*in 2 s") as full:
        room("wait", 2.0)
    assert (full.value.path, full.value.wanted_bytes) == (str(fast), 4000)
    assert room("wait") == "fast"
    with pytest.raises(SaveError, match="not among"):
        room("guess")


def test_what_torch_says_of_a_full_disk_is_told_as_what_it_is(tmp_path: Path) -> None:
    said = RuntimeError("[enforce fail at inline_container.cc:664] . unexpected pos 704 vs 598")
    found = as_full(said, f"{tmp_path}/step-1")
    assert isinstance(found, TierFull)
    assert f"{tmp_path}/step-1: no room for the checkpoint (" in str(found)
    outer = ValueError("a wrapper")
    outer.__cause__ = OSError(28, "No space left on device")
    assert as_full(outer, "x") is not None
    assert as_full(ValueError("other"), "x") is None


def test_a_full_slow_tier_leaves_all_old_ones_and_no_leftovers(fast: Path, slow: Path) -> None:
    slow.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", slow]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small tmpfs can be mounted by root only")
    try:
        saved(fast, 1, os.urandom(1 << 20))
        drained(fast, slow)
        saved(fast, 2, os.urandom(4 << 20))
        with Drainer(fast, slow, Settings(tries=1)) as working:
            (line,) = working.once()
        assert "no room for" in line
        assert str(slow) in line
        assert latest_valid(slow, level="full").step == 1
        (fast / "step-00000002").rename(fast.parent / "gone")
        drained(fast, slow)
        assert sorted(os.listdir(slow)) == [".penstock", "step-00000001"]
    finally:
        subprocess.run(["umount", slow], check=True)


# Stores that are no folder


class RemoteContract:
    """A drain to a URL: resumed, verified, chosen from, fetched back, pruned."""

    def test_checkpoints_arrive_and_come_back(self, remote: Store, fast: Path) -> None:
        data = os.urandom(3 * CHUNK_BYTES + 5)
        saved(fast, 1, data)
        saved(fast, 2, b"two")
        for one in find(LocalStore(fast)):
            copy_checkpoint(one, remote, NO_PACE)
        found = find(remote)
        assert [one.step for one in found] == [2, 1]
        assert all(verify(one, "full").is_whole for one in found)
        (fast / "step-00000002" / "model.pt").unlink()
        choice = latest_valid(fast, remote)
        assert (choice.path, choice.step) == (None, 2)
        assert choice.where.endswith("step-00000002")
        for path in fast.iterdir():
            path.rename(fast.parent / path.name)
        path = fetch(found[1], fast)
        assert (path / "model.pt").read_bytes() == data
        assert latest_valid(fast).step == 1

    def test_what_has_not_all_arrived_does_not_count(self, remote: Store, fast: Path) -> None:
        saved(fast, 1, os.urandom(2 * CHUNK_BYTES))
        (one,) = find(LocalStore(fast))

        def stop(n_bytes: int, was_there: bool) -> None:
            raise Stopped

        with pytest.raises(Stopped):
            copy_checkpoint(one, remote, replace_told(stop))
        assert latest_valid(remote).path is None
        assert latest_valid(remote).checkpoint is None
        copy_checkpoint(one, remote, NO_PACE)
        assert latest_valid(remote, level="full").step == 1

    def test_a_name_that_is_taken_is_not_written_into(self, remote: Store, fast: Path) -> None:
        for data in (b"first", b"second"):
            for path in fast.glob("step-*"):
                path.rename(fast.parent / "old")
            saved(fast, 1, data)
            copy_checkpoint(find(LocalStore(fast))[0], remote, NO_PACE)
        assert {one.name for one in find(remote)} == {"step-00000001", "step-00000001.2"}
        assert remote.read("step-00000001/model.pt") == b"first"

    def test_retention_removes_all_of_it(self, remote: Store, fast: Path) -> None:
        for step in (1, 2):
            saved(fast, step)
        for one in find(LocalStore(fast)):
            copy_checkpoint(one, remote, NO_PACE)
        assert prune(LocalStore(fast), remote, Keep(fast=1, last=1)).slow == ("step-00000001",)
        assert {found.name.split("/")[0] for found in remote.list()} == {"step-00000002"}


class TestDrainToS3(RemoteContract):
    @pytest.fixture
    def remote(self, s3: Store) -> Store:
        return s3


class TestDrainToSftp(RemoteContract):
    @pytest.fixture
    def remote(self, sftp_server: tuple[int, Path], tmp_path: Path) -> Store:
        url = f"sftp://me@127.0.0.1:{sftp_server[0]}/{tmp_path.name}"
        return open_store(url, password="-", host_key_policy="auto_add")


# The command


def penstock(*words: Any, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "penstock", "save", *map(str, words)]
    finished = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert finished.returncode == status, finished.stderr
    assert "Traceback" not in finished.stderr
    return finished


def test_the_commands_from_save_to_restart(fast: Path, slow: Path) -> None:
    for step in (1, 2, 3):
        saved(fast, step)
    assert penstock("drain", fast, slow, "--limit", "300MB/s").stdout.startswith("3 drained")
    rows = json.loads(penstock("ls", fast, slow, "--json").stdout)
    assert [(row["step"], row["is_verified_copy"]) for row in rows] == [
        (3, False), (2, False), (1, False), (3, True), (2, True), (1, True),
    ]  # fmt: skip
    assert "step-00000003: whole (files, full)" in penstock("verify", slow, "--full").stdout
    flip(slow / "step-00000003" / "model.pt", 5)
    (fast / "step-00000003" / "model.pt").unlink()
    said = penstock("verify", slow, "--full", status=1).stdout
    assert "step-00000003: NOT WHOLE: model.pt: bytes 0 and on are not what was saved" in said
    assert penstock("verify", slow / "step-00000002").stdout.count("\n") == 1
    found = penstock("recover", fast, slow, status=0)
    assert found.stdout == f"{fast}/step-00000002\n"
    assert "passed over" in found.stderr
    assert "same device" in found.stderr
    gone = penstock("prune", fast, slow, "--keep-fast", 0, "--dry-run").stdout.splitlines()
    assert gone == [f"{fast}/step-0000000{step}" for step in (1, 2, 3)]
    penstock("prune", fast, slow, "--keep-fast", 2)
    assert names(fast) == ["step-00000003", "step-00000002"]


def test_what_cannot_be_asked_is_answered_in_a_sentence(fast: Path, slow: Path) -> None:
    for words in (
        ("prune", fast), ("drain", fast, fast), ("drain", fast, slow, "--every", 5),
        ("verify", fast / "none"), ("drain", fast, slow, "--limit", "fast"),
        ("drain", fast, slow, "--follow", 1), ("ls", "nonsense://x"),
    ):  # fmt: skip
        assert penstock(*words, status=2).stderr.count("\n") == 1
    assert "no whole checkpoint" in penstock("recover", fast, slow, status=1).stderr


def test_a_tier_that_is_not_there_and_names_that_move_the_cursor(fast: Path) -> None:
    command = [sys.executable, "-m", "penstock", "save"]
    told = subprocess.run([*command, "ls", fast / "no"], capture_output=True, text=True)
    assert (told.returncode, told.stdout) == (2, "")
    assert "no such folder" in told.stderr
    (fast / "a\x1b[2Jb.pt").write_bytes(b"PK\x03\x04")
    told = subprocess.run([*command, "verify", fast], capture_output=True, text=True)
    assert "NOT WHOLE" in told.stdout
    assert "\x1b" not in told.stdout


def test_a_drain_with_nothing_to_copy_still_prunes(fast: Path, slow: Path) -> None:
    for step in (1, 2):
        saved(fast, step)
    drained(fast, slow)
    assert penstock("drain", fast, slow, "--keep-fast", 1).stdout.startswith("0 drained")
    assert names(fast) == ["step-00000002"]


def test_a_drain_beside_the_training_follows_it_and_ends_after_it(fast: Path, slow: Path) -> None:
    program = textwrap.dedent("""
        import sys
        from penstock.save.commit import begin, commit
        from penstock.save.drain import Drain
        drain = Drain(sys.argv[1], sys.argv[2])
        drain.start()
        for step in (1, 2):
            part = begin(sys.argv[1], step)
            part.write("model.pt", [b"x" * 100_000])
            commit(part)
        print(drain._process.pid)
    """)
    finished = subprocess.run(
        [sys.executable, "-c", program, fast, slow], capture_output=True, text=True, check=True
    )
    pid = int(finished.stdout)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        threading.Event().wait(0.1)
    assert not Path(f"/proc/{pid}").exists()
    assert sorted(names(slow)) == ["step-00000001", "step-00000002"]
    assert read_status(fast).state == "ended"


def test_a_drain_is_stopped_and_says_what_it_did(fast: Path, slow: Path) -> None:
    saved(fast, 1)
    drain = Drain(fast, slow, limit_bps=50e6, keep=Keep(fast=2, last=3, best="loss"))
    drain.start()
    try:
        deadline = time.monotonic() + 240
        while time.monotonic() < deadline and not names(slow):
            threading.Event().wait(0.1)
        assert drain.is_alive()
    finally:
        assert drain.stop() == 130
    assert names(slow) == ["step-00000001"]
    assert drain.status().state == "ended"


def test_sweeping_leaves_parts_that_are_still_to_be_filled(fast: Path, slow: Path) -> None:
    saved(fast, 1, bytes(2 * CHUNK_BYTES))
    (one,) = find(LocalStore(fast))

    def stop(n_bytes: int, was_there: bool) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        copy_checkpoint(one, LocalStore(slow), replace_told(stop))
    sweep(slow, keep=["step-00000001"])
    assert (slow / "step-00000001.part").exists()
    sweep(slow)
    assert not (slow / "step-00000001.part").exists()


def test_verify_shows_restarts_that_failed_and_forgives_one_or_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    from penstock.cli.save import save as command
    from penstock.save.verify import remember_failure

    def verified(*arguments: Any) -> str:
        return CliRunner().invoke(command, ["verify", *map(str, arguments)]).output

    for name in ("model_1.pt", "model_2.pt"):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            file.writestr("archive/data.pkl", b"x")
    for one in find(LocalStore(tmp_path)):
        remember_failure(one, "loss is nan")
    assert verified(tmp_path).count("loss is nan (--forgive") == 2
    assert all("nan" in row["failed_restart"] for row in json.loads(verified(tmp_path, "--json")))
    listed: list[str] = []
    monkeypatch.setattr(LocalStore, "list", lambda *any: listed.append("all") or iter(()))
    assert "1 failed restarts forgotten" in verified(tmp_path / "model_2.pt", "--forgive")
    assert not listed  # the folder around a file is not looked at
    monkeypatch.undo()
    said = verified(tmp_path)
    assert said.count("loss is nan") == 1
    assert "model_1.pt: whole (torch, sample), 0.0 MB compared, but passed over: a restart" in said
    assert "1 failed restarts forgotten" in verified(tmp_path, "--forgive")
    assert "nan" not in verified(tmp_path)


def test_a_pointer_that_names_thousands_of_checkpoints_is_copied(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001"):
        (fast / name).parent.mkdir(exist_ok=True)
        (fast / name).write_bytes(b"x")
    rows = [f'all_model_checkpoint_paths: "ckpt-{step}"' for step in range(4000)]
    (fast / "checkpoint").write_text("\n".join(rows))
    with Drainer(fast, slow) as drainer:
        drainer._copy_hints()
    assert (slow / "checkpoint").read_bytes() == (fast / "checkpoint").read_bytes()


def test_what_keep_fast_cannot_let_go_is_said(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    slow.mkdir()
    for step in range(3):
        with zipfile.ZipFile(fast / f"model_{step}.pt", "w") as file:
            file.writestr("archive/data.pkl", b"x")
    ended = penstock("drain", fast, slow, "--keep-fast", 2, status=0)
    assert "--foreign lets them go" in ended.stderr
    assert "same device" in ended.stderr
    assert len(list(fast.glob("*.pt"))) == 3
    ended = penstock("drain", fast, slow, "--keep-fast", 2, "--foreign", status=0)
    assert "--foreign" not in ended.stderr
    assert len(list(fast.glob("*.pt"))) == 2
    none = tmp_path / "none"
    assert "does not exist" in penstock("drain", fast, slow, "--run", none, status=2).stderr
