"""Many small files of a checkpoint folder, copied natively into the unfinished copy."""

import ctypes
import errno
import os
import signal
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from penstock.errors import TierError
from penstock.places.stores import LocalStore
from penstock.save.copy.copying import DrainStopped
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.small import copier, partfiles
from penstock.save.small.partfiles import FILE

pytestmark = pytest.mark.skipif(not copier.is_built(), reason="`make native` builds the copier")

HEADER = Path(__file__).parent.parent / "native" / "copier" / "copier.h"
N = 700  # several calls


@pytest.fixture
def tiers(tmp_path):
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    folder = fast / "checkpoint-100"
    for number in range(N):
        path = folder / f"layer_{number % 7}" / f"part-{number:05d}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([number % 251]) * (number % 5 * 100))
        os.utime(path, ns=(10**18, 10**18 + number))
    slow.mkdir()
    return fast, slow


def contents(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*.bin")
    }


def assert_the_next_drain_copies_all(fast, slow):
    with Drainer(fast, slow) as drain:
        assert drain.once() == []
    assert contents(slow / "checkpoint-100") == contents(fast / "checkpoint-100")


def drafts(folder):
    return list(folder.rglob(".part-*.penstock-part"))


def before_each(monkeypatch, act):
    """Call act(step) before each call of the native library."""
    real = copier.call

    def call(name, *arguments):
        act(name)
        return real(name, *arguments)

    monkeypatch.setattr(copier, "call", call)


def test_the_layout_is_that_of_the_header():
    assert f"sizeof(struct copier_part_file) == {FILE.itemsize}," in HEADER.read_text()


def test_small_files_of_a_folder_are_copied_natively_with_a_sync_for_many(tiers, monkeypatch):
    fast, slow = tiers
    steps, syncs, real = [], [], partfiles.syncfs
    before_each(monkeypatch, steps.append)
    monkeypatch.setattr(partfiles, "syncfs", lambda *arguments: (syncs.append(1), real(*arguments)))
    with Drainer(fast, slow) as drain:
        assert drain.once() == []
    wanted = contents(fast / "checkpoint-100")
    assert len(wanted) == N
    assert contents(slow / "checkpoint-100") == wanted
    assert steps.count("part_place") == -(-N // partfiles.IN_A_CALL)
    assert len(syncs) == 1
    [copy] = find(LocalStore(slow))
    assert copy.manifest is not None
    assert len(copy.manifest.files) == N


def test_a_copy_that_reads_back_other_bytes_does_not_count(tiers, monkeypatch):
    fast, slow = tiers

    def damage(step):
        if step == "part_place":
            for path in slow.rglob(".part-00004.bin*"):
                path.write_bytes(b"x" * path.stat().st_size)

    before_each(monkeypatch, damage)
    with Drainer(fast, slow) as drain:
        failed = drain.once()
    assert "reads back other bytes" in str(failed)
    assert not (slow / "checkpoint-100").exists()


def test_a_link_in_the_place_of_a_draft_is_not_followed(tiers, tmp_path, monkeypatch):
    fast, slow = tiers
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")

    def plant(step):
        for folder in slow.glob("checkpoint-100.*/layer_*") if step == "part_write" else ():
            draft = folder / f".part-{int(folder.name[-1]):05d}.bin.penstock-part"
            if not os.path.lexists(draft):
                draft.symlink_to(victim)

    before_each(monkeypatch, plant)
    with Drainer(fast, slow) as drain:
        assert drain.once() == []
    assert victim.read_bytes() == b"precious"
    assert contents(slow / "checkpoint-100") == contents(fast / "checkpoint-100")


def test_a_file_that_is_a_link_is_left_to_the_copy_of_a_single_file(tiers):
    fast, slow = tiers
    path = fast / "checkpoint-100/layer_0/part-00007.bin"
    path.unlink()
    path.symlink_to("part-00014.bin")
    with Drainer(fast, slow) as drain:
        assert drain.once() == []
    copy = slow / "checkpoint-100/layer_0/part-00007.bin"
    assert copy.read_bytes() == path.read_bytes() != b""
    assert not copy.is_symlink()


def test_a_file_written_to_during_the_copy_ends_the_copy(tiers, monkeypatch):
    fast, slow = tiers
    done = threading.Event()

    def write(step):
        if step == "part_read" and not done.is_set():
            done.set()
            path = fast / "checkpoint-100/layer_1/part-00001.bin"
            path.write_bytes(b"y" * path.stat().st_size)

    before_each(monkeypatch, write)
    with Drainer(fast, slow, DrainSettings(tries=1)) as drain:
        failed = drain.once()
        assert "changed while it was copied" in str(failed)
        assert not (slow / "checkpoint-100").exists()


def test_an_interrupted_copy_goes_on_with_the_files_that_are_there(tiers, monkeypatch):
    fast, slow = tiers
    calls = []

    def stop(step):
        calls.append(step)
        if calls.count("part_place") == 2:
            raise TierError("stopped")

    before_each(monkeypatch, stop)
    with Drainer(fast, slow) as drain:
        drain.once()
    part = [path for path in slow.glob("checkpoint-100.*/*/*") if path.is_file()]
    assert len(part) == partfiles.IN_A_CALL
    assert not any("penstock-part" in path.name for path in part)
    inodes = {path.stat().st_ino for path in part}
    monkeypatch.undo()
    assert_the_next_drain_copies_all(fast, slow)
    kept = {path.stat().st_ino for path in (slow / "checkpoint-100").rglob("*.bin")}
    assert inodes <= kept


def test_a_kill_before_any_call_names_nothing_and_the_next_drain_goes_on(tiers, monkeypatch):
    fast, slow = tiers
    for at in range(1, 3 * -(-N // partfiles.IN_A_CALL) + 1):
        child = os.fork()
        if not child:
            calls = []

            def kill(step, calls=calls, at=at):
                calls.append(step)
                if len(calls) == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            before_each(monkeypatch, kill)
            with Drainer(fast, slow) as drain:
                drain.once()
            os._exit(0)
        if not os.waitpid(child, 0)[1]:  # fewer calls: files of the attempts before are there
            break
        assert not (slow / "checkpoint-100").exists()
    assert at > 2 * -(-N // partfiles.IN_A_CALL) + 1  # a kill between two calls of the last step
    with Drainer(fast, slow) as drain:
        assert drain.once() == []
    assert contents(slow / "checkpoint-100") == contents(fast / "checkpoint-100")
    assert not any("penstock-part" in path.name for path in (slow / "checkpoint-100").rglob("*"))


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_tier_without_room_at_any_call_names_nothing_and_says_so(tiers, monkeypatch, at):
    fast, slow = tiers
    calls, real = [], copier.call

    def call(name, *arguments):
        real(name, *arguments)
        if name == "part_write":
            calls.append(name)
            if len(calls) == at:
                _, pointer, n, _ = arguments
                room = (ctypes.c_char * (n * FILE.itemsize)).from_address(pointer)
                rows = np.frombuffer(room, FILE)
                rows["state"][n - 1], rows["error"][n - 1] = copier.FAILED, errno.ENOSPC

    monkeypatch.setattr(copier, "call", call)
    with Drainer(fast, slow, DrainSettings(tries=1)) as drain:
        [failed] = drain.once()
    assert "no room" in failed
    assert not (slow / "checkpoint-100").exists()
    assert drafts(slow) == []
    monkeypatch.undo()
    assert_the_next_drain_copies_all(fast, slow)


def test_a_tier_that_is_full_names_nothing(tiers):
    fast, slow = tiers
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", slow]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here: needs root")
    try:
        with Drainer(fast, slow, DrainSettings(tries=1)) as drain:
            [failed] = drain.once()
        assert "no room" in failed
        assert not (slow / "checkpoint-100").exists()
    finally:
        subprocess.run(["umount", "-l", slow], check=True)


@pytest.mark.parametrize("step", ["part_write", "part_place"])
def test_an_order_to_stop_ends_the_copy_in_both_threads(tiers, monkeypatch, step):
    fast, slow = tiers
    monkeypatch.setattr(partfiles, "PART_FILES", 200)  # one part is placed, one is written
    with Drainer(fast, slow) as drain:
        before_each(monkeypatch, lambda name: drain.stopping.set() if name == step else None)
        with pytest.raises(DrainStopped):
            drain.once()
    assert not (slow / "checkpoint-100").exists()
    assert drafts(slow) == []
    monkeypatch.undo()
    assert_the_next_drain_copies_all(fast, slow)


def test_a_copy_counts_only_after_the_sync_of_each_part(tiers, monkeypatch):
    """No draft gets its name, and no manifest is written, before the bytes are durable."""
    fast, slow = tiers
    monkeypatch.setattr(partfiles, "PART_FILES", 200)
    events, real = [], partfiles.syncfs

    def synced(*arguments):
        real(*arguments)
        events.append("synced")

    monkeypatch.setattr(partfiles, "syncfs", synced)
    before_each(monkeypatch, lambda name: events.append(name) if name == "part_place" else None)
    with Drainer(fast, slow) as drain:
        assert drain.once() == []
    n_parts = -(-N // 200)
    assert events == ["synced", "part_place"] * n_parts


def test_a_sync_that_fails_names_nothing(tiers, monkeypatch):
    fast, slow = tiers
    monkeypatch.setattr(partfiles, "PART_FILES", 200)

    def fails(*arguments):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(partfiles, "syncfs", fails)
    with Drainer(fast, slow, DrainSettings(tries=1)) as drain:
        [failed] = drain.once()
    assert "cannot be written" in failed
    assert not (slow / "checkpoint-100").exists()
    assert not [path for path in slow.glob("checkpoint-100.*/layer_*/*") if path.is_file()]
