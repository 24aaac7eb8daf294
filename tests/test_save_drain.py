"""The drain, what it gives up, and `penstock save`: against kills, full tiers and real servers."""

import importlib
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import textwrap
import threading
import time
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SaveError, TierError, TierFull
from penstock.places.stores import LocalStore, Store, draft_of, open_store
from penstock.places.tiers import evict, resident_bytes
from penstock.save.commit import (
    PART_SUFFIX,
    STATE,
    begin,
    commit,
    discard_as_found,
    is_strange,
    sweep,
)
from penstock.save.copy.copying import (
    DrainPace,
    DrainStopped,
    Trip,
    Unwanted,
    _Pieces,
    copy_checkpoint,
)
from penstock.save.drain import retention
from penstock.save.drain.adopting import adopt_files, forget_orphans
from penstock.save.drain.beside import Drain
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import fetch, recover
from penstock.save.drain.retention import (
    Keep,
    Proven,
    as_full,
    doomed_on_fast,
    doomed_on_slow,
    doomed_safely,
    make_room,
    prune,
    remove,
)
from penstock.save.drain.working import (
    DrainSettings,
    DrainStatus,
    Yielding,
    open_metrics,
    read_status,
    sentence,
)
from penstock.save.find.formats import find
from penstock.save.manifest import CHUNK_BYTES, INSIDE, parse, to_json
from penstock.save.verify import latest_valid, remember_failure, verify
from remote import gs, gs_server, s3, s3_server, sftp_server

__all__ = ["gs", "gs_server", "s3", "s3_server", "sftp_server"]

NO_PACE = Trip(DrainPace(None))


def saved(root: Path, step: int, data: bytes | None = None, **facts: Any) -> Path:
    part = begin(root, step)
    part.write("model.pt", [data if data is not None else b"%d" % step * 1000])
    part.write("deep/state.json", [b"{}"])
    return commit(part, **facts)


def drained(fast: Path, slow: Any, **settings: Any) -> DrainStatus:
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1, **settings)) as working:
        failed = working.once()
        assert failed == []
        return working.status


def foreign(path: Path, data: bytes = b"theirs") -> Path:
    """As torch.save writes it: a zip archive, without a manifest."""
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("data.pkl", "data/0", "data/1"):
            archive.writestr(f"archive/{name}", data * 1000)
    return path


def raiser(error: BaseException) -> Any:
    def fails(*given: Any) -> Any:
        raise error

    return fails


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


def test_the_page_cache_is_left_to_the_training(fast: Path, slow: Path) -> None:
    """Reading through it costs twenty times as much of a processor, too."""
    original = saved(fast, 1, os.urandom(4 * CHUNK_BYTES + 12345)) / "model.pt"
    evict(original)
    if resident_bytes(original):
        pytest.skip("this file system keeps pages: nothing can be read past it")
    try:
        os.close(os.open(original, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    drained(fast, slow)
    copy = slow / "step-00000001" / "model.pt"
    for path in (original, copy):
        # The tail that is no whole sector, and what the kernel reads ahead with it.
        assert (resident_bytes(path) or 0) <= CHUNK_BYTES // 2
    assert copy.read_bytes() == original.read_bytes()


def test_foreign_checkpoints_are_drained_as_they_are(fast: Path, slow: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.distributed.checkpoint as dcp

    state = {"w": torch.randn(300), "step": torch.tensor(7)}
    (fast / "version_0" / "checkpoints").mkdir(parents=True)
    torch.save(state, fast / "version_0" / "checkpoints" / "epoch=1-step=7.ckpt")
    dcp.save(state, checkpoint_id=fast / "step-8")
    (fast / "half.pt").write_bytes(b"PK\x03\x04 a save that is going on")
    (fast / "notes.txt").write_text("not a checkpoint")
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
        assert [line.partition(":")[0] for line in working.once()] == ["half.pt"]
    (fast / "half.pt").unlink()
    assert sorted(names(slow)) == ["step-8", "version_0/checkpoints/epoch=1-step=7.ckpt"]
    there = torch.load(slow / "version_0/checkpoints/epoch=1-step=7.ckpt", weights_only=True)
    assert torch.equal(there["w"], state["w"])
    loaded = {"w": torch.zeros(300), "step": torch.tensor(0)}
    dcp.load(loaded, checkpoint_id=slow / "step-8")
    assert torch.equal(loaded["w"], state["w"])
    assert drained(fast, slow).drained == 0


def test_what_its_own_checksums_call_damaged_gets_no_copy_that_vouches_for_it(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(fast / "model_1.pt")
    torn = foreign(fast / "model_2.pt")
    good = torn.read_bytes()
    torn.write_bytes(good[:6000] + bytes(3000) + good[9000:])  # never written, as zeros
    reads: list[Any] = []
    settings = DrainSettings(settle_s=0, tries=3)
    with Drainer(fast, slow, settings, clock=lambda: 0.0) as working:
        working._rest = reads.append  # type: ignore[method-assign]
        (line,) = working.once()
        assert line.startswith("model_2.pt: ")
        assert "CRC-32 does not fit" in line
        assert working.status.damaged == ("model_2.pt",)
        assert working.status.backlog == ()
        monkeypatch.setattr("penstock.save.drain.drainer.verify", None)  # each is read once
        assert working.once() == [line]
        assert working.watch(lambda: True, math.inf) == [line]
        assert (working.status.state, working.status.error) == ("idle", line)
        monkeypatch.undo()
    assert reads == []
    assert names(slow) == ["model_1.pt"]
    assert latest_valid(fast, slow, "full").step == 1
    torn.write_bytes(good)
    drained(fast, slow)
    assert names(slow) == ["model_2.pt", "model_1.pt"]


def test_a_file_that_is_written_again_replaces_its_copy(fast: Path, slow: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for value in (1.0, 2.0):
        torch.save({"w": torch.full((1000,), value)}, fast / "last.pt")
        drained(fast, slow)
        assert torch.load(slow / "last.pt", weights_only=True)["w"][0] == value
        assert verify(find(LocalStore(slow))[0], "full").is_whole


def test_what_is_written_while_it_is_copied_takes_no_whole_one_s_place(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = foreign(fast / "last.ckpt")
    drained(fast, slow)
    foreign(path, b"again")
    read = _Pieces.read

    def written_meanwhile(self: Any, start: int, length: int) -> memoryview:
        with path.open("r+b") as file:
            file.write(bytes(20))
        return read(self, start, length)

    monkeypatch.setattr(_Pieces, "read", written_meanwhile)
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
        assert "changed while it was copied" in working.once()[0]
    [one] = find(LocalStore(slow))
    assert one.is_ours
    assert verify(one, "full").is_whole


def trained(root: Path, name: str, data: bytes = b"theirs") -> Path:
    """As the Trainer leaves a checkpoint, or, above those, its last model."""
    (root / name).mkdir(parents=True, exist_ok=True)
    (root / name / "config.json").write_text("{}")
    (root / name / "trainer_state.json").write_text('{"global_step": 5}')
    return foreign(root / name / "pytorch_model.bin", data)


def test_what_is_replaced_more_often_than_it_can_be_copied_arrives(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, read = foreign(fast / "last.pt"), _Pieces.read

    def replaced_meanwhile(self: Any, start: int, length: int) -> memoryview:
        foreign(fast / "draft", b"the next").replace(path)
        return read(self, start, length)

    monkeypatch.setattr(_Pieces, "read", replaced_meanwhile)
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
        working.once()
    [one] = find(LocalStore(slow))
    assert one.is_ours
    assert verify(one, "full").is_whole


def test_a_copy_that_is_not_committed_yet_is_as_old_as_what_it_is_a_copy_of(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for unix_s, name in ((1000, "last.ckpt"), (2000, "last.pt")):
        os.utime(foreign(fast / name), (unix_s, unix_s))
    [_, older] = find(LocalStore(fast))

    def stopped(*given: Any, **more: Any) -> None:
        raise DrainStopped

    monkeypatch.setattr("penstock.save.copy.copying._read_back", stopped)
    with pytest.raises(DrainStopped):
        copy_checkpoint(older, LocalStore(slow), Trip(DrainPace(None)))
    assert latest_valid(fast, slow).path == fast / "last.pt"


def test_a_kill_as_a_copy_takes_its_name_leaves_one_that_can_be_believed(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = foreign(fast / "last.ckpt")
    drained(fast, slow)
    foreign(path, b"again")
    renamed = Path.rename

    def killed(self: Path, target: Path) -> Any:
        renamed(self, target)
        if target == slow / "last.ckpt":
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", killed)
        with pytest.raises(KeyboardInterrupt):
            copy_checkpoint(find(LocalStore(fast))[0], LocalStore(slow), Trip(DrainPace(None)))
    path.write_bytes(b"the program ended as it wrote")
    assert latest_valid(fast, slow, "full").path == slow / "last.ckpt"


def test_a_model_s_folder_does_not_take_the_checkpoints_in_it_with_it(
    fast: Path, slow: Path
) -> None:
    trained(fast, "out")
    drained(fast, slow)
    trained(fast, "out/checkpoint-5")
    drained(fast, slow)
    trained(fast, "out/checkpoint-6")
    prune(LocalStore(fast), LocalStore(slow), Keep(fast=1, last=1, foreign=True))
    assert names(fast) == ["out/checkpoint-6", "out"]
    assert names(slow) == ["out/checkpoint-5", "out"]
    shutil.rmtree(fast / "out" / "checkpoint-6")
    trained(fast, "out", b"again")
    drained(fast, slow)
    assert sorted(names(slow)) == ["out", "out.2", "out/checkpoint-5"]


@pytest.mark.parametrize("name", ["tokenizer.json", "adapter/adapter_config.json"])
def test_what_is_added_to_a_model_that_was_brought_back_is_drained(
    fast: Path, slow: Path, name: str
) -> None:
    trained(slow, "model")
    fetch(find(LocalStore(slow))[0], fast)
    inner = fast / "model" / name
    inner.parent.mkdir(exist_ok=True)
    inner.write_text("{}")
    drained(fast, slow)
    assert (slow / "model.2" / name).exists()


def test_what_another_program_has_on_the_slow_tier_comes_back_and_not_again(
    fast: Path, slow: Path
) -> None:
    slow.mkdir()
    foreign(slow / "step-5.ckpt")
    fetch(find(LocalStore(slow))[0], fast)
    assert drained(fast, slow).drained == 0
    foreign(slow / "step-5.ckpt", b"by another")
    assert drained(fast, slow).drained == 1
    assert sorted(names(slow)) == ["step-5.2.ckpt", "step-5.ckpt"]


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


def test_a_pointer_that_comes_after_its_checkpoint_is_copied_too(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def round_after(pointer: str) -> str:
        (fast / "latest").write_text(pointer)
        working._round()
        return (slow / "latest").read_text()

    now = [0.0]
    monkeypatch.setattr("penstock.save.drain.stillness.LOOK_SHARE", 0)  # each look is a dear one
    monkeypatch.setattr("penstock.save.drain.stillness.MOST_BLIND_S", math.inf)
    monkeypatch.setattr("penstock.save.drain.stillness.Stillness._cost_s", 1.0, raising=False)
    with Drainer(fast, slow, DrainSettings(settle_s=900), clock=lambda: now[0]) as working:
        saved(fast, 1)
        working._round()
        assert round_after("step-00000001") == "step-00000001"
        assert round_after("./step-00000001") == "./step-00000001"  # in place
        foreign(fast / "step-2.pt")  # settles for a while
        assert round_after("step-2.pt") == "./step-00000001"
        now[0] += 901
        assert round_after("step-2.pt") == "step-2.pt"
        foreign(fast / "step-3.pt")
        os.truncate(fast / "step-3.pt", 400)
        os.utime(fast / "step-3.pt", (1, 1))
        assert round_after("step-3.pt") == "step-2.pt"
        assert working.status.damaged == ("step-3.pt",)
        assert round_after("step-1.pt") == "step-1.pt"


def test_what_was_brought_back_is_its_program_s_again_when_it_writes_into_it(
    fast: Path, slow: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import torch.distributed.checkpoint as dcp

    def save(value: int) -> None:
        torch.save({"w": torch.full((9,), value)}, fast / "last.ckpt")
        dcp.save({"w": torch.full((9,), value)}, checkpoint_id=fast / "current")

    def both(tier: Path) -> dict[str, Any]:
        return {one.name: one for one in find(LocalStore(tier))}

    save(1)
    drained(fast, slow)
    shutil.rmtree(fast)
    fast.mkdir()
    for one in both(slow).values():
        fetch(one, fast)
    assert [one.is_ours for one in both(fast).values()] == [True, True]
    assert drained(fast, slow).drained == 0
    (fast / "current" / "more.json").write_text("{}")
    assert drained(fast, slow).drained == 1
    assert (slow / "current" / "more.json").exists()
    flip(slow / "last.ckpt", 700)
    with pytest.raises(SaveError, match=f"not what was saved: {slow} has changed it"):
        fetch(both(slow)["last.ckpt"], fast.with_name("third"))
    size = (fast / "last.ckpt").stat().st_size
    save(2)
    assert (fast / "last.ckpt").stat().st_size == size
    assert {one.kind for one in both(fast).values() if not one.is_ours} == {"torch", "dcp"}
    assert latest_valid(fast, slow, "full").path.parent == fast
    assert drained(fast, slow).drained == 2
    assert sorted(both(slow)) == ["current", "last.ckpt"]
    assert torch.load(slow / "last.ckpt")["w"][0] == 2
    loaded = {"w": torch.zeros(9, dtype=torch.int64)}
    dcp.load(loaded, checkpoint_id=slow / "current")
    assert loaded["w"][0] == 2
    (fast / "last.ckpt").write_bytes(b"PK\x03\x04 a save that was killed")
    assert fetch(both(slow)["last.ckpt"], fast) == fast / "last.2.ckpt"
    assert (fast / "last.ckpt").read_bytes().endswith(b"killed")


def test_a_fetch_that_does_not_end_leaves_what_is_damaged_known_as_that(
    fast: Path, slow: Path
) -> None:
    """Of a format without checksums: only the manifest tells."""
    name, head = "step-5.safetensors", b'{"w":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}}'
    (fast / name).write_bytes(len(head).to_bytes(8, "little") + head + b"w" * 9)
    drained(fast, slow)
    good = (slow / name).read_bytes()
    (fast / name).unlink()
    fetch(find(LocalStore(slow))[0], fast)
    times = (fast / name).stat().st_mtime_ns
    flip(fast / name, -1)
    os.utime(fast / name, ns=(times, times))

    def die(n_bytes: int, was_there: bool) -> None:
        raise TierError("full")

    with pytest.raises(TierError):
        copy_checkpoint(
            find(LocalStore(slow))[0], LocalStore(fast), replace_told(die), is_fetched=True
        )
    assert not verify(find(LocalStore(fast))[0], "full").is_whole
    for left in ("ckpt-1.penstock.half", "ckpt-1.data-00000-of-00002"):  # to be taken up
        (fast / left).write_bytes(b"{}")
    recover(fast, slow, DrainSettings(settle_s=0))
    assert not list(fast.glob("step-5.*.half"))
    assert (fast / "ckpt-1.penstock.half").exists()
    (fast / "ckpt-1.penstock.half").unlink()
    (fast / "ckpt-1.data-00000-of-00002").unlink()
    assert (slow / name).read_bytes() == good
    assert fetch(find(LocalStore(slow))[0], fast).read_bytes() == good
    assert sorted(os.listdir(fast)) == [STATE, name, f"{name}.penstock.json"]


def test_a_name_that_was_given_to_a_copy_tells_no_step(fast: Path, slow: Path) -> None:
    foreign(fast / "last.ckpt")
    drained(fast, slow)
    (fast / "last.ckpt").write_bytes(b"PK\x03\x04 a save that was killed")
    assert fetch(find(LocalStore(slow))[0], fast) == fast / "last.2.ckpt"
    foreign(fast / "last.ckpt", b"later")
    assert {one.name: one.step for one in find(LocalStore(fast))} == {
        "last.ckpt": None,
        "last.2.ckpt": None,
    }
    assert latest_valid(fast, slow).path == fast / "last.ckpt"


def killed_before_its_manifest(fast: Path, slow: Path, patched: pytest.MonkeyPatch) -> None:
    def killed(self: Any, manifest: bytes) -> None:
        raise DrainStopped

    with patched.context() as here:
        here.setattr("penstock.save.copy.target.CopyTarget.commit", killed)
        with pytest.raises(DrainStopped):
            drained(fast, slow)


@pytest.mark.parametrize("is_recovering", [True, False])
@pytest.mark.parametrize("name", ["last.ckpt", f"{'long' * 60}.ckpt"])
def test_the_mark_of_a_copy_that_was_killed_as_it_got_its_manifest_goes(
    fast: Path, slow: Path, is_recovering: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(fast / name)
    with monkeypatch.context() as patched:
        patched.setattr(LocalStore, "delete", raiser(DrainStopped()))
        with pytest.raises(DrainStopped):
            drained(fast, slow)
    assert list(slow.glob("*.half")) + list(slow.glob(".*.half"))
    (fast / name).write_bytes(b"PK\x03\x04 a save that was killed")
    if is_recovering:
        choice, _ = recover(fast, slow, DrainSettings(settle_s=0, tries=1))
        assert choice.path == slow / name
    else:
        with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
            working.once()
    assert not [one for one in os.listdir(slow) if one.endswith(".half")]
    assert find(LocalStore(slow))[0].manifest is not None


def test_a_copy_that_was_killed_before_its_manifest_gets_one_where_nothing_else_ends_it(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(fast / "last.ckpt")
    killed_before_its_manifest(fast, slow, monkeypatch)
    foreign(fast / "flipped.ckpt")
    (fast / "last.ckpt").rename(fast.parent / "kept.ckpt")
    killed_before_its_manifest(fast, slow, monkeypatch)
    assert [one.manifest for one in find(LocalStore(slow))] == [None, None]
    flip(slow / "flipped.ckpt", -300)
    (fast / "flipped.ckpt").unlink()  # as a node that is lost
    recover(fast, slow, DrainSettings(settle_s=0))
    assert sorted(path.name for path in slow.glob("*.ckpt*")) == [
        "flipped.ckpt", "flipped.ckpt.penstock.half", "last.ckpt", "last.ckpt.penstock.json",
    ]  # fmt: skip
    (there,) = (one for one in find(LocalStore(slow)) if one.name == "last.ckpt")
    assert there.is_ours
    assert verify(there, "full").is_whole
    assert (slow / "last.ckpt").read_bytes() == (fast.parent / "kept.ckpt").read_bytes()
    # Brought back, it is its program's again as soon as that writes into it.
    fetch(there, fast)
    assert drained(fast, slow).drained == 0
    foreign(fast / "last.ckpt", b"later")
    assert drained(fast, slow).drained == 1
    assert (slow / "last.ckpt").read_bytes() == (fast / "last.ckpt").read_bytes()
    assert names(slow).count("last.2.ckpt") == 0


def test_the_limit_bounds_the_reading_of_what_a_killed_drain_has_copied(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(is_source_there: bool) -> float:
        """Bytes that the pace let go, as shares of the file."""
        killed_before_its_manifest(fast, slow, monkeypatch)
        if not is_source_there:
            (fast / "last.ckpt").unlink()
        counts: list[int] = []
        with Drainer(fast, slow, DrainSettings(settle_s=0)) as working:
            working._judged = {one.name: (one.identity, "") for one in find(working.fast)}
            monkeypatch.setattr(working._pace, "take", counts.append)
            assert working.once() == []
        (manifest,) = (one.manifest for one in find(LocalStore(slow)))
        assert manifest is not None
        return sum(counts) / manifest.size_bytes

    foreign(fast / "last.ckpt")
    assert taken(is_source_there=True) > 1.8  # compared with its source, then read back
    foreign(fast / "last.ckpt", b"later")
    assert taken(is_source_there=False) > 1.8  # by its own format, then for its checksums


def test_a_run_goes_on_with_another_fast_tier_as_each_job_of_a_batch_system_has_its_own(
    tmp_path: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for job in ("job-1", "job-2", "job-3"):
        fast = tmp_path / job
        fast.mkdir()
        choice, failed = recover(fast, slow, DrainSettings(settle_s=0))
        assert failed == []
        assert choice.path == (None if job == "job-1" else slow / "last.ckpt")
        foreign(fast / "last.ckpt", job.encode())
        saved = (fast / "last.ckpt").read_bytes()
        if job == "job-2":
            killed_before_its_manifest(fast, slow, monkeypatch)
        else:
            drained(fast, slow)
        assert (slow / "last.ckpt").read_bytes() == saved
    assert sorted(os.listdir(slow)) == [STATE, "last.ckpt", "last.ckpt.penstock.json"]
    # Nobody has said that this one goes on with it.
    other = tmp_path / "other"
    other.mkdir()
    foreign(other / "last.ckpt", b"another run's")
    told = penstock("drain", other, slow, "--share-slow").stderr
    assert f"last.ckpt is last.2.ckpt on {slow}: another run has the name there" in told
    assert (slow / "last.2.ckpt").exists()
    assert (slow / "last.ckpt").read_bytes() == saved


def test_a_run_goes_on_with_a_fast_tier_that_it_had_two_jobs_ago(
    tmp_path: Path, slow: Path
) -> None:
    for step, node in enumerate(("node-1", "node-2", "node-1", "node-2", "node-1")):
        fast = tmp_path / node
        shutil.rmtree(fast, ignore_errors=True)
        fast.mkdir()
        choice, failed = recover(fast, slow, DrainSettings(settle_s=0))
        assert (choice.step, failed) == (step - 1 if step else None, [])
        for name in ("last.ckpt", f"step_{step}.ckpt"):
            foreign(fast / name, f"{name} of job {step}".encode())
        drained(fast, slow)
        assert (slow / "last.ckpt").read_bytes() == (fast / "last.ckpt").read_bytes()
        assert not (slow / "last.2.ckpt").exists()


def test_some_of_several_files_that_nothing_ends_any_more_go(fast: Path, slow: Path) -> None:
    slow.mkdir()
    for name in ("ckpt-1.penstock.half", "ckpt-1.data-00000-of-00002", "ckpt-1", "x.data"):
        (slow / name).write_bytes(b"ckpt-1")
    (slow / "ckpt-2.penstock.half").write_bytes(b"ckpt-2\0/another/run")
    (slow / "ckpt-2.data-00000-of-00002").write_bytes(b"its own")
    drained(fast, slow)
    assert sorted(os.listdir(slow)) == [
        STATE, "ckpt-1", "ckpt-2.data-00000-of-00002", "ckpt-2.penstock.half", "x.data",
    ]  # fmt: skip


def test_a_copy_that_was_killed_before_its_manifest_is_taken_up_by_none_of_another_name(
    fast: Path, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.mkdir()
    foreign(slow / "last.ckpt", b"another run's")
    foreign(fast / "last.ckpt")
    killed_before_its_manifest(fast, slow, monkeypatch)
    data = (slow / "last.2.ckpt").read_bytes()
    (fast / "last.ckpt").rename(tmp_path / "kept.ckpt")
    foreign(fast / "last.2.ckpt", b"the program's own")
    drained(fast, slow)
    assert (slow / "last.2.ckpt").read_bytes() == data
    assert (slow / "last.2.2.ckpt").read_bytes() == (fast / "last.2.ckpt").read_bytes()
    # Nor by one of this name from another tier.
    fast.rename(tmp_path / "before")
    fast.mkdir()
    (slow / "last.2.ckpt.penstock.half").write_bytes(b"last.ckpt\0/another/run")
    (slow / "last.2.ckpt.penstock.json").unlink()
    foreign(fast / "last.ckpt", b"of another run")
    drained(fast, slow)
    assert (slow / "last.2.ckpt").read_bytes() == data
    assert (slow / "last.3.ckpt").read_bytes() == (fast / "last.ckpt").read_bytes()


def test_a_mark_in_a_bad_sector_keeps_nothing_from_the_slow_tier(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(fast / "last.ckpt")
    killed_before_its_manifest(fast, slow, monkeypatch)
    monkeypatch.setattr(Path, "open", opened_badly(slow / "last.ckpt.penstock.half", 5))
    assert drained(fast, slow).last == "last.ckpt"
    assert verify(find(LocalStore(slow))[0], "full").is_whole
    assert (slow / "last.2.ckpt.penstock.json").exists()


def test_the_name_given_to_a_copy_that_was_killed_before_its_manifest_tells_no_step(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.mkdir()
    foreign(slow / "last.ckpt", b"another run's")
    foreign(fast / "last.ckpt")
    killed_before_its_manifest(fast, slow, monkeypatch)
    half = next(one for one in find(LocalStore(slow)) if one.name == "last.2.ckpt")
    assert (half.manifest, half.step) == (None, None)
    (fast / "last.ckpt").unlink()
    assert fetch(half, fast) == fast / "last.2.ckpt"
    assert find(LocalStore(fast))[0].step is None
    # Brought back, it is one that the slow tier does not have yet.
    assert names(slow) == ["last.2.ckpt", "last.ckpt"]
    assert drained(fast, slow).drained == 1
    there = next(one for one in find(LocalStore(slow)) if one.name == "last.2.ckpt")
    assert there.manifest is not None
    assert (there.manifest.called, there.step) == ("last.ckpt", None)
    assert not list(slow.glob("*.half"))


def test_the_name_given_to_a_fetch_that_was_killed_before_its_manifest_tells_no_step(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(self: Any, manifest: bytes) -> None:
        raise DrainStopped

    slow.mkdir()
    foreign(slow / "last.ckpt")
    (fast / "last.ckpt").write_bytes(b"PK\x03\x04 a save that was killed")
    with monkeypatch.context() as patched:
        patched.setattr("penstock.save.copy.target.CopyTarget.commit", killed)
        with pytest.raises(DrainStopped):
            fetch(find(LocalStore(slow))[0], fast)
    foreign(fast / "last.ckpt", b"later")
    choice, failed = recover(fast, slow, DrainSettings(settle_s=0))
    assert (choice.path, failed) == (fast / "last.ckpt", [])
    # It goes from the fast tier as what was fetched does, and leaves nothing there.
    recover(fast, slow, DrainSettings(settle_s=0, keep=Keep(fast=0, last=None, foreign=True)))
    assert names(fast) == []
    assert os.listdir(fast) == [STATE]


def test_what_takes_a_name_as_the_one_before_goes_has_it_after(
    fast: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = foreign(fast / "last.pt")
    one = find(LocalStore(fast))[0]

    def replaced(checkpoint: Any) -> bool:  # once it was looked at for the last time
        foreign(fast / "new", b"newer").replace(path)
        return True

    monkeypatch.setattr("penstock.save.drain.retention.is_by_itself", replaced)
    assert not remove(one)
    with zipfile.ZipFile(path) as archive:
        assert archive.read("archive/data/0") == b"newer" * 1000
    assert os.listdir(fast / STATE / "trash") == []
    monkeypatch.undo()
    assert remove(find(LocalStore(fast))[0])
    assert not path.exists()


def test_what_is_brought_back_is_read_in_full_before(fast: Path, slow: Path) -> None:
    slow.mkdir()
    foreign(slow / "step-4.pt")
    with zipfile.ZipFile(slow / "step-5.pt", "w") as archive:
        for number in range(100):  # of which a sample misses most
            archive.writestr(f"archive/data/{number}", b"%d" % number * 1000)
    for place in range(20, 90):
        flip(slow / "step-5.pt", (slow / "step-5.pt").stat().st_size * place // 100)
        if latest_valid(slow).step == 5:
            break
        flip(slow / "step-5.pt", (slow / "step-5.pt").stat().st_size * place // 100)
    told = penstock("recover", fast, slow, "--fetch")
    assert told.stdout == f"{fast}/step-4.pt\n"
    assert f"passed over {slow}/step-5.pt: " in told.stderr
    assert names(fast) == ["step-4.pt"]
    assert verify(find(LocalStore(fast))[0], "full").is_whole


def test_a_bad_sector_under_what_is_brought_back_leads_to_the_one_before(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.cli.draining import fetch_choice as _fetched

    for step in (1, 2):
        saved(slow, step)
    fast.mkdir(exist_ok=True)
    choice, read = latest_valid(fast, slow), os.preadv
    bad = (slow / "step-00000002" / "model.pt").stat().st_ino

    def shaky(number: int, *given: Any) -> int:
        if os.fstat(number).st_ino == bad:
            raise OSError(5, os.strerror(5))
        return read(number, *given)

    monkeypatch.setattr(os, "preadv", shaky)
    assert choice.step == 2
    earlier, where = _fetched(choice, fast, str(slow))
    assert (earlier.step, where) == (1, str(fast / "step-00000001"))


def test_a_full_fast_tier_is_no_reason_to_begin_from_an_older_one(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.cli.draining import fetch_choice as _fetched

    def full(*given: Any, **named: Any) -> Path:
        raise TierFull("full", "", 1)

    saved(slow, 1)
    fast.mkdir(exist_ok=True)
    monkeypatch.setattr("penstock.save.drain.fetching.fetch", full)
    with pytest.raises(TierFull):
        _fetched(latest_valid(fast, slow), fast, str(slow))


def test_a_fast_copy_that_has_changed_is_not_drained(fast: Path, slow: Path) -> None:
    saved(fast, 1)
    flip(saved(fast, 2) / "model.pt", 100)
    with Drainer(fast, slow, DrainSettings(tries=1)) as working:
        (line,) = working.once()
        assert "step-00000002" in line
        assert f"{fast} has changed it" in line
        assert working.status.damaged == ("step-00000002",)
    assert names(slow) == ["step-00000001"]
    assert latest_valid(fast, slow, "full").step == 1


def test_what_a_look_finds_broken_is_named_and_no_pointer_names_what_is_not_there(
    fast: Path, slow: Path
) -> None:
    flip(saved(fast, 2) / INSIDE, 99)
    for name in ("ckpt-2.index", "ckpt-3.index", "ckpt-3.data-00000-of-00002"):
        (fast / name).write_bytes(b"of TensorFlow")
    (fast / "checkpoint").write_text('model_checkpoint_path: "ckpt-2"\n')
    (fast / "run" / "step-7").mkdir(parents=True)
    (fast / "run" / "step-7" / "__0_0.distcp").write_bytes(b"is still written")
    (fast / "run" / "latest").write_text("step-7")
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
        failed = working.once()
        assert sorted(line.partition(":")[0] for line in failed) == [
            "ckpt-2", "ckpt-3", "run/step-7", "step-00000002"
        ]  # fmt: skip
        assert sorted(working.status.damaged) == ["ckpt-2", "ckpt-3", "step-00000002"]
    assert not (slow / "checkpoint").exists()
    assert not (slow / "run" / "latest").exists()


def test_a_damaged_one_keeps_the_others_of_no_verdict(fast: Path, slow: Path) -> None:
    saved(fast, 1)
    flip(saved(fast, 2) / "model.pt", 100)
    ends = iter((False, True))
    with Drainer(fast, slow, DrainSettings(tries=1)) as working:
        assert len(working.watch(lambda: next(ends, True), 0)) == 1
        assert (working.status.state, working.status.damaged) == ("idle", ("step-00000002",))


def opened_badly(bad: Path, number: int) -> Any:
    """In place of Path.open."""
    opened = Path.open

    def shaky(path: Path, *given: Any, **named: Any) -> Any:
        if path == bad:
            raise OSError(number, os.strerror(number), str(path))
        return opened(path, *given, **named)

    return shaky


def test_a_manifest_in_a_bad_sector_hides_its_checkpoint_and_no_other(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(fast, 1)
    bad = saved(fast, 2) / INSIDE
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", opened_badly(bad, 5))
        choice = latest_valid(fast)
        assert choice.step == 1
        assert "its manifest cannot be read" in choice.rejected[0][1]
        with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
            assert "Input/output error" in working.once()[0]
            assert working.status.damaged == ()  # it may pass
        assert names(slow) == ["step-00000001"]
    assert drained(fast, slow).drained == 1


@pytest.mark.parametrize("name", [INSIDE, "model.pt"])
def test_what_can_never_be_read_is_named_as_damaged_and_tried_still(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    now_s = 0.0
    saved(fast, 1)
    bad = saved(fast, 2) / name
    inode, read = bad.stat().st_ino, os.preadv

    def shaky(number: int, *given: Any) -> int:
        if os.fstat(number).st_ino == inode:
            raise OSError(5, os.strerror(5))
        return read(number, *given)

    with Drainer(fast, slow, DrainSettings(settle_s=0), clock=lambda: now_s) as working:
        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", opened_badly(bad, 5))
            patch.setattr(os, "preadv", shaky)
            for _ in range(4):
                assert "Input/output error" in working._round()["step-00000002"]
                assert working.status.damaged == ()
                now_s += 60
            working._round()
            assert working.status.damaged == ("step-00000002",)
            assert "Input/output error" in working.status.damage[0]
            assert working._owed() == []
        assert names(slow) == ["step-00000001"]
        now_s += 60
        assert working._round() == {}
        assert working.status.damaged == ()
    assert names(slow) == ["step-00000002", "step-00000001"]


def unlisted(bad: Path, number: int = 5) -> Any:
    """In place of os.scandir."""
    scan = os.scandir

    def shaky(path: Any = ".") -> Any:
        if not isinstance(path, int) and os.fspath(path) == os.fspath(bad):
            raise OSError(number, os.strerror(number), str(path))
        return scan(path)

    return shaky


def test_a_folder_that_cannot_be_listed_hides_itself_and_no_other(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    for step in (1, 2):
        saved(fast, step)
    for name in ("out", "out/checkpoint-5"):
        trained(fast, name)
    bad = [saved(fast, 3), saved(fast, 4) / "deep", fast / "out" / "checkpoint-5"]
    with monkeypatch.context() as patch:
        for path in bad:
            patch.setattr(os, "scandir", unlisted(path))
        choice = latest_valid(fast)
        assert choice.step == 2
        assert ["cannot be listed: Input/output error" in why for _, why in choice.rejected] == [
            True, True, True,
        ]  # fmt: skip
        with Drainer(fast, slow, DrainSettings(settle_s=0), clock=lambda: now_s) as working:
            for _ in range(5):
                working._round()
                now_s += 60
            assert {*working.status.damaged} == {
                "step-00000003", "step-00000004", "out/checkpoint-5",
            }  # fmt: skip
            assert all("cannot be listed" in why for why in working.status.damage)
            assert working._owed() == []
        assert names(slow) == ["step-00000002", "step-00000001", "out"]
        patch.setattr(os, "scandir", unlisted(fast / "step-00000001", 107))  # the tier is gone
        with pytest.raises(TierError):
            find(LocalStore(fast))
    assert drained(fast, slow).drained == 3


def test_a_file_that_cannot_be_seen_hides_its_checkpoint_and_no_other(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a.ckpt", "b.ckpt"):
        foreign(fast / name)
    bad = [saved(fast, 1) / INSIDE, saved(fast, 2) / "model.pt", fast / "a.ckpt"]
    seen = LocalStore._found

    def shaky(store: LocalStore, name: str, entry: Any) -> Any:
        if store.path(name) in bad:
            raise TierError(f"{name}: cannot be seen") from OSError(5, os.strerror(5))
        return seen(store, name, entry)

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "_found", shaky)
        with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
            failed = working.once()
        assert sorted(one.partition(": ")[0] for one in failed) == [
            str(fast / name) for name in ("a.ckpt", "step-00000001", "step-00000002")
        ]
    assert names(slow) == ["b.ckpt"]


def test_a_folder_that_cannot_be_listed_ends_no_recovery_and_no_pruning(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        saved(fast, step)
    for name in ("out", "out/checkpoint-5"):
        trained(fast, name)
    monkeypatch.setattr(os, "scandir", unlisted(fast / "out" / "checkpoint-5"))
    settings = DrainSettings(settle_s=0, tries=1, keep=Keep(fast=1, last=2, foreign=True))
    choice, failed = recover(fast, slow, settings)
    assert choice.step == 3
    assert [one.partition(":")[0] for one in failed] == [str(fast / "out/checkpoint-5")]
    assert {*names(fast)} == {"step-00000003", "out", "out/checkpoint-5"}
    assert {*names(slow)} == {"step-00000003", "step-00000002", "out"}


def test_notes_of_what_may_go_that_cannot_be_listed_keep_nothing_on_the_fast_tier(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(fast, 1)
    folder = fast / STATE / "removed"
    folder.mkdir()
    monkeypatch.setattr(os, "scandir", unlisted(folder))
    assert drained(fast, slow).drained == 1


def test_the_age_of_what_cannot_be_seen_is_not_told(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "scandir", unlisted(saved(fast, 1)))
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1)) as working:
        working._round()
        assert working.status.backlog == ("step-00000001",)
        assert working.status.at_risk_s == 0


@pytest.mark.parametrize("where", ["fast", "slow"])
def test_a_pointer_in_a_bad_sector_ends_no_recovery(
    where: str, fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(fast, 1)
    slow.mkdir()
    for tier in (fast, slow):
        (tier / "latest").write_text(f"step-00000001 of {tier}")
    bad = (fast if where == "fast" else slow) / "latest"
    monkeypatch.setattr(Path, "open", opened_badly(bad, 5))
    choice, failed = recover(fast, slow, DrainSettings(settle_s=0, tries=1))
    assert choice.step == 1
    assert [line for line in failed if "latest: cannot be read" not in line] == []
    assert len(failed) == 1


@pytest.mark.parametrize("what", ["its mark", "a file", "a draft"])
def test_half_a_copy_in_a_bad_sector_keeps_nothing_from_the_slow_tier(
    what: str, fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(fast, 1)
    killed_before_its_manifest(fast, slow, monkeypatch)
    part = slow / "step-00000001.part"
    path, stat, pread = part / "model.pt", Path.stat, os.pread
    if what == "a draft":
        path = path.rename(draft_of(path))
    bad = path.stat()

    def shaky_stat(path: Path, **named: Any) -> Any:
        if what == "its mark" and part in path.parents:
            raise OSError(5, os.strerror(5), str(path))
        return stat(path, **named)

    def shaky_pread(descriptor: int, *given: Any) -> bytes:
        found = os.fstat(descriptor)  # its number is given to another file when it is gone
        is_bad = (found.st_ino, found.st_size) == (bad.st_ino, bad.st_size)
        if what != "its mark" and is_bad:
            raise OSError(5, os.strerror(5))
        return pread(descriptor, *given)

    monkeypatch.setattr(Path, "stat", shaky_stat)
    monkeypatch.setattr(os, "pread", shaky_pread)
    assert drained(fast, slow).drained == 1
    assert names(slow) == ["step-00000001.2" if what == "its mark" else "step-00000001"]


def test_a_copy_whose_folder_cannot_be_read_keeps_none_from_the_slow_tier(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(fast, 1)
    drained(fast, slow)
    bad, stat = slow / "step-00000001", Path.stat

    def shaky(path: Path, **named: Any) -> Any:
        if bad in path.parents:
            raise OSError(5, os.strerror(5), str(path))
        return stat(path, **named)

    monkeypatch.setattr(os, "scandir", unlisted(bad))
    monkeypatch.setattr(Path, "stat", shaky)
    saved(fast, 2)
    assert drained(fast, slow).drained == 2
    assert {*names(slow)} == {"step-00000001", "step-00000001.2", "step-00000002"}


def test_a_copy_with_a_manifest_in_a_bad_sector_keeps_no_other_from_the_slow_tier(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(fast, 1)
    drained(fast, slow)
    monkeypatch.setattr(Path, "open", opened_badly(slow / "step-00000001" / INSIDE, 5))
    assert drained(fast, slow).last == "step-00000001"
    assert (slow / "step-00000001.2" / INSIDE).exists()


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_manifest_that_goes_while_it_is_looked_at_hides_no_tier(
    fast: Path, slow: Path, is_folder: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(fast, 1)
    foreign(fast / "last.ckpt")
    drained(fast, slow)
    gone = slow / ("step-00000001/" + INSIDE if is_folder else "last.ckpt.penstock.json")
    monkeypatch.setattr(Path, "open", opened_badly(gone, 2))
    [first, last] = find(LocalStore(slow))
    assert (first.name, last.name) == ("step-00000001", "last.ckpt")
    assert (first.problem != "", last.is_ours) == (is_folder, is_folder)
    assert verify(last, "full").is_whole


def test_a_copy_that_ends_leaves_the_one_that_it_would_have_replaced(
    fast: Path, slow: Path
) -> None:
    path = foreign(fast / "last.ckpt")
    drained(fast, slow)
    foreign(path, b"again")

    def unwanted() -> None:
        raise Unwanted

    with pytest.raises(Unwanted):
        copy_checkpoint(
            find(LocalStore(fast))[0], LocalStore(slow), Trip(DrainPace(None), 1, unwanted)
        )
    assert verify(find(LocalStore(slow))[0], "full").is_whole
    assert sorted(os.listdir(slow)) == [STATE, "last.ckpt", "last.ckpt.penstock.json"]


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
            raise DrainStopped

    with pytest.raises(DrainStopped):
        copy_checkpoint(one, LocalStore(slow), replace_told(once_six))
    assert find(LocalStore(slow)) == []
    there, new = [], []
    told = lambda n_bytes, was_there: (there if was_there else new).append(n_bytes)  # noqa: E731
    copy_checkpoint(one, LocalStore(slow), replace_told(told))
    assert sum(there) == 5 * CHUNK_BYTES + 2
    assert sum(there) + sum(new) == len(data) + 2
    assert (slow / "step-00000001" / "model.pt").read_bytes() == data


def replace_told(told: Any) -> Trip:
    return Trip(DrainPace(None), progress=told)


def test_strace_sees_no_verified_piece_written_twice(fast: Path, slow: Path) -> None:
    if subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True).returncode:
        pytest.skip("strace is missing or may not trace here: make setup-system")
    saved(fast, 1, os.urandom(12 * CHUNK_BYTES))
    program = textwrap.dedent("""
        import os, signal, sys
        from penstock.save.drain import drainer as drain
        from penstock.save.drain import recover
        from penstock.save.drain.working import DrainSettings
        left = int(sys.argv[3])
        class Killing(drain.Drainer):
            def _through(self, n_bytes, was_there):
                global left
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
        with Killing(sys.argv[1], sys.argv[2], DrainSettings(concurrency=1)) as working:
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
    from penstock.save.drain import drainer as drain, retention
    from penstock.save.drain import recover
    from penstock.save.drain.working import DrainSettings
    from penstock.save.commit import begin, commit
    from penstock.places.stores import LocalStore
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
            recover.recover(fast, slow, DrainSettings(settle_s=0, tries=1))
        else:
            with drain.Drainer(fast, slow, DrainSettings(settle_s=0, tries=1, keep=keep)) as one:
                one.once()
"""


def test_random_kills_lose_nothing_that_was_durable(fast: Path, slow: Path) -> None:
    """A short round; lab/benchmarks/soak_save.py does a thousand."""
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
    choice, failed = recover(fast, slow, DrainSettings(settle_s=0))
    assert (choice.step, failed) == (newest, [])
    parts = [path for path in (*fast.rglob("*"), *slow.rglob("*")) if "part" in path.name]
    assert parts == []


# Order, pace, pauses


def test_an_idle_drain_asks_folders_where_a_look_at_all_files_takes_long(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, looks = [0.0], [0]
    (fast / "epochs" / "7").mkdir(parents=True)
    last, ours = fast / "last.pt", saved(fast, 5)

    def dear(store: Store, **more: Any) -> Any:
        looks[0] += store.url == str(fast)
        now[0] += 0.5
        return find(store, **more)

    def seen() -> bool:
        """Whether a round looks; what it finds is drained by it or by those that follow."""
        before = looks[0], working.status.looked_unix_ns
        working._round()
        has_looked = looks[0] > before[0]
        assert (working.status.looked_unix_ns > before[1]) == has_looked  # a job waits for that
        while has_looked and working.backlog():
            working._round()
        now[0] += 1
        return has_looked

    def written(path: Path, content: str) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", content)

    monkeypatch.setattr("penstock.save.drain.drainer.find", dear)
    with Drainer(fast, slow, DrainSettings(settle_s=0), clock=lambda: now[0]) as working:
        assert seen()
        assert not seen()
        written(last, "a name")
        assert seen()
        assert not seen()
        written(last, "and the same name")  # in place
        assert seen()
        assert not seen()
        written(fast / "epochs" / "7" / "a.pt", "in a folder without any checkpoint")
        assert seen()
        assert not seen()
        shutil.rmtree(ours)
        assert seen()
        assert not seen()
        # Where folders have no times.
        still = {os.sep: os.stat(os.sep).st_ctime_ns}
        monkeypatch.setattr("penstock.save.drain.stillness._times_of_folders", lambda root: still)
        saved(fast, 6)
        assert seen()
        assert not seen()
        saved(fast, 7)
        n_rounds = next(n for n in range(100) if seen())
        assert 0 < n_rounds * 1.0 < 60
    made = {f"step-{step:08}" for step in (5, 6, 7)}
    assert set(names(slow)) == made | {"last.pt", "epochs/7"}


def test_two_drains_of_one_tier_are_refused(fast: Path, slow: Path, tmp_path: Path) -> None:
    with Drainer(fast, slow), pytest.raises(SaveError, match="another drain has this folder"):
        Drainer(fast, tmp_path / "else").__enter__()
    first = Drainer(fast, slow)
    said: list[str] = []
    with first:
        threading.Timer(0.5, first.__exit__).start()  # as one that a killed training has left
        with Drainer(fast, slow, patience_s=60, listener=lambda one: said.append(one.warning)):
            assert "waiting for it to end" in said[0]
    with pytest.raises(SaveError, match="one lies in the other"):
        Drainer(fast, fast / "below")
    with pytest.raises(SaveError, match="one lies in the other"):
        Drainer(fast, fast)
    with pytest.raises(TierError, match="no such folder"):
        Drainer(tmp_path / "none", slow)


@pytest.mark.parametrize(
    ("name", "why", "told"),
    [
        ("step-5", "/fast/step-5: cannot be read: EIO", "/fast/step-5: cannot be read: EIO"),
        ("step-5", "step-5: cut short", "step-5: cut short"),
        ("step-5", "model.pt: not what was saved", "step-5: model.pt: not what was saved"),
        ("", "/lustre: no such folder", "/lustre: no such folder"),
    ],
)
def test_what_could_not_be_drained_is_named_once(name: str, why: str, told: str) -> None:
    assert sentence(name, why) == told


def test_the_pace_is_a_limit_over_time() -> None:
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    pace = DrainPace(100e6, lambda: now[0], sleep)
    for _ in range(100):
        pace.take(4 << 20)
    assert 100 * (4 << 20) / 100e6 - 0.5 <= now[0] <= 100 * (4 << 20) / 100e6 + 0.1
    DrainPace(None, lambda: now[0], sleep).take(1 << 40)


def test_a_rising_data_wait_pauses_and_a_usual_one_does_not() -> None:
    now = [0.0]
    share: list[float | None] = [0.10]

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
    share[0] = None  # the training has ended
    assert not after(1)
    share[0] = 0.40
    assert after(1)
    assert after(0.1)
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

    def told(status: DrainStatus) -> None:
        states.append(status.state)
        if states.count("paused") == 3:
            working.stop()

    share = lambda: next(shares, 0.9)  # noqa: E731
    working = Drainer(fast, slow, DrainSettings(tries=1), share=share, listener=told, clock=clock)
    with working, pytest.raises(DrainStopped):
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
    text = open_metrics(DrainStatus(backlog=("a",), backlog_bytes=5, rate_bps=1.5e8, error="x"))
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


@pytest.mark.parametrize("in_its_place", ["nothing", "a file", "an empty mount point"])
def test_a_slow_tier_that_is_gone_is_waited_for(
    fast: Path, slow: Path, in_its_place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.save.drain.working.LOOK_S", 0.1)
    saved(fast, 1)
    drained(fast, slow)
    away = slow.with_name("away")
    is_over = threading.Event()
    said = []

    def told(status: DrainStatus) -> None:
        if status.state != "waiting":
            return
        said.append(status)
        if len(said) == 3:
            if in_its_place != "nothing":
                assert not slow.is_dir() or not list(slow.iterdir())
                slow.unlink() if slow.is_file() else slow.rmdir()
            away.rename(slow)
            is_over.set()

    with Drainer(fast, slow, DrainSettings(tries=1), listener=told) as working:
        working.once()
        slow.rename(away)
        if in_its_place == "a file":
            slow.write_text("as good as gone")
        elif in_its_place != "nothing":
            slow.mkdir()
        saved(fast, 2)
        assert working.watch(is_over.is_set, 240) == []
    assert sorted(names(slow)) == ["step-00000001", "step-00000002"]
    assert all(str(slow) in status.error for status in said)
    # What is only on the fast tier is told while the slow one cannot be looked at.
    assert {status.backlog for status in said} == {("step-00000002",)}
    ages = [status.at_risk_s for status in said]
    assert 0 < ages[0] < ages[1] < ages[2]


def test_a_slow_tier_that_is_not_mounted_when_a_drain_begins_gets_nothing(
    fast: Path, slow: Path
) -> None:
    saved(fast, 1)
    drained(fast, slow)
    away = slow.with_name("away")
    for is_there in (True, False):
        slow.rename(away)
        if is_there:
            slow.mkdir()
        with pytest.raises(TierError, match=r"is it\n? ?mounted\?"):
            drained(fast, slow)
        assert not slow.exists() or not list(slow.iterdir())
        if is_there:
            slow.rmdir()
        away.rename(slow)
    saved(fast, 2)
    drained(fast, slow)
    assert sorted(names(slow)) == ["step-00000001", "step-00000002"]
    # Another one on purpose, as the message says.
    slow.rename(away)
    (fast / ".penstock" / "drains-to.json").unlink()
    drained(fast, slow)
    assert sorted(names(slow)) == ["step-00000001", "step-00000002"]


def test_a_save_that_waits_for_room_says_so_once(
    fast: Path, slow: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(fast, 1)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    stores = LocalStore(fast), LocalStore(slow)
    with pytest.raises(TierFull, match="nothing was freed in 60 s"):
        make_room(
            *stores, 1 << 60, Keep(fast=0), most_s=60, clock=lambda: now[0], sleep=sleep
        )  # fmt: skip
    [said] = [one.getMessage() for one in caplog.records]
    assert f"{fast}: no room for a checkpoint of" in said
    assert "which has 1 checkpoints to go (at most 60 s)" in said


@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_goes_whatever_it_leads_to(fast: Path, is_there: bool) -> None:
    foreign(fast / "epoch.pt")
    (fast / "last.pt").symlink_to("epoch.pt")
    status = (fast / "last.pt").stat()
    facts = status.st_size, status.st_mtime_ns
    if not is_there:
        (fast / "epoch.pt").unlink()
    else:  # it is another one's by now
        assert not discard_as_found(fast / "last.pt", fast, facts[0] + 1, facts[1])
        assert (fast / "last.pt").readlink() == Path("epoch.pt")
    assert discard_as_found(fast / "last.pt", fast, *facts)
    assert names(fast) == (["epoch.pt"] if is_there else [])
    assert not list((fast / ".penstock" / "trash").iterdir())


def test_a_mark_that_cannot_be_read_is_not_written_anew(
    fast: Path, slow: Path, tmp_path: Path
) -> None:
    saved(fast, 1)
    drained(fast, slow)
    mark = slow / ".penstock" / "tier-id"
    away = mark.rename(mark.with_name("away"))
    mark.symlink_to(mark)  # an error, as of a mount
    (tmp_path / "other").mkdir()
    saved(tmp_path / "other", 2)
    with pytest.raises(TierError, match="tier-id: cannot be seen"):
        drained(tmp_path / "other", slow)
    assert mark.is_symlink()
    away.rename(mark)
    drained(fast, slow)


def test_a_slow_tier_that_goes_while_another_drain_has_it_gets_nothing(
    fast: Path, slow: Path, tmp_path: Path
) -> None:
    saved(fast, 1)
    drained(fast, slow)
    saved(fast, 2)
    other = tmp_path / "other"
    other.mkdir()
    away = slow.with_name("away")

    def unmount(status: DrainStatus) -> None:
        if status.state == "waiting" and not away.exists():
            assert "another drain has this folder" in status.error
            waiting = read_status(fast)
            assert waiting is not None
            assert waiting.error == status.error
            assert waiting.backlog == ("step-00000002",)
            assert waiting.at_risk_s > 0
            slow.rename(away)
            slow.mkdir()

    waits = Drainer(fast, slow, DrainSettings(settle_s=0), patience_s=60, listener=unmount)
    with Drainer(other, slow), pytest.raises(TierError, match="is it mounted"), waits:
        pass
    assert not (slow / ".penstock" / "tier-id").exists()
    shutil.rmtree(slow)
    away.rename(slow)
    drained(fast, slow)


def test_a_drain_at_work_begins_anew_where_the_folder_is_another_on_purpose(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.save.drain.working.LOOK_S", 0.1)
    saved(fast, 1)
    is_over = threading.Event()

    def told(status: DrainStatus) -> None:
        if status.state == "waiting":
            (fast / ".penstock" / "drains-to.json").unlink()  # as the error says
            is_over.set()

    with Drainer(fast, slow, DrainSettings(tries=1), listener=told) as working:
        working.once()
        slow.rename(slow.with_name("away"))
        saved(fast, 2)
        assert working.watch(is_over.is_set, 60) == []
    assert sorted(names(slow)) == ["step-00000001", "step-00000002"]


def test_a_pointer_is_not_copied_into_an_empty_mount_point(fast: Path, slow: Path) -> None:
    saved(fast, 1)
    with Drainer(fast, slow, DrainSettings(tries=1)) as working:
        working.once()
        away = slow.rename(slow.with_name("away"))
        slow.mkdir()
        (fast / "latest").write_text("step-00000001")
        with pytest.raises(TierError, match="is it mounted"):
            working.once()
        assert list(slow.iterdir()) == []
        slow.rmdir()
        away.rename(slow)
        working.once()
    assert (slow / "latest").read_text() == "step-00000001"


def test_a_fast_tier_without_any_room_is_drained(
    small_disk: Callable[[int], AbstractContextManager[Path]], slow: Path
) -> None:
    with small_disk(1 << 20) as disk:
        saved(disk, 1)
        with suppress(OSError), (disk / "full").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        drained(disk, slow)
    assert names(slow) == ["step-00000001"]


def test_what_loads_another_model_on_the_slow_tier_stays_as_it_is(
    fast: Path, slow: Path, tmp_path: Path
) -> None:
    said = []
    left = "model.safetensors.index.json is another program's, and stays"
    for number, folder in enumerate((fast, tmp_path / "other")):
        folder.mkdir(exist_ok=True)
        (folder / "model.safetensors").write_bytes(
            struct.pack("<Q", 2 + number) + b"{}" + b" " * number
        )
        (folder / "model.safetensors.index.json").write_text(f"of {number}")
        with Drainer(folder, slow, DrainSettings(settle_s=0)) as working:
            assert [left in line for line in working.once()] == [True] * number
            said.append(working.status.warning)
    assert names(slow) == ["model.2.safetensors", "model.safetensors"]
    assert (slow / "model.safetensors.index.json").read_text() == "of 0"
    assert said[0] == ""
    assert left in said[1]


def test_a_tier_that_is_a_model_s_own_folder_is_drained_with_what_loads_the_model(
    fast: Path, slow: Path
) -> None:
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in shards:
        (fast / name).write_bytes(struct.pack("<Q", 2) + b"{}")
    beside = ["config.json", "model.safetensors.index.json", "tokenizer.model", "vocab.txt"]
    for name in beside:
        (fast / name).write_text(json.dumps({"weight_map": dict.fromkeys(shards, shards[0])}))
    (fast / "train.log").write_text("grows with each step")
    drained(fast, slow)
    there = {path.name for path in slow.iterdir() if not path.name.startswith(".")}
    assert there == {*shards, *beside, "train.log", f"{shards[0]}.penstock.json"}
    (fast / "vocab.txt").write_text("another")
    drained(fast, slow)
    assert (slow / "vocab.txt").read_text() == "another"


def test_one_folder_that_is_spelled_in_two_ways_is_one(fast: Path, slow: Path) -> None:
    link = fast.with_name("link")
    link.symlink_to(fast)
    for spelled in (link, fast, link):
        foreign(fast / "last.pt", os.urandom(100))
        drained(spelled, slow)
    assert names(slow) == ["last.pt"]


def test_a_drain_finds_the_package_that_started_it(
    fast: Path, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "else" / "penstock").mkdir(parents=True)
    (tmp_path / "else" / "penstock" / "__init__.py").write_text("raise ImportError('another')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "else"))
    saved(fast, 1)
    drain = Drain(fast, slow)
    drain.start()
    try:
        end_s = time.monotonic() + 60
        while names(slow) != ["step-00000001"] and drain.is_alive() and time.monotonic() < end_s:
            time.sleep(0.05)
    finally:
        drain.stop()
    assert names(slow) == ["step-00000001"]


def test_what_has_just_failed_is_still_at_risk(fast: Path, slow: Path) -> None:
    saved(fast, 1)

    class Gone(LocalStore):
        def upload(self, *given: Any) -> Any:
            raise TierError("of a mount")

    with Drainer(fast, slow, DrainSettings(tries=1)) as working:
        working.slow = Gone(slow)
        assert working.once()
        assert working.status.backlog == ("step-00000001",)
        assert working.status.at_risk_s > 0


def test_a_long_outage_is_told_in_one_line_however_many_wait(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round once told of all the others' errors in the name of each: twice as long a time."""
    for step in (1, 2, 3, 4):
        saved(fast, step)
    monkeypatch.setattr("penstock.save.drain.working.LOOK_S", 0.001)
    errors: list[str] = []
    is_over = threading.Event()

    def told(status: DrainStatus) -> None:
        if status.state == "waiting":
            errors.append(status.error)
        if len(errors) == 40:
            is_over.set()

    class Failing(LocalStore):
        def upload(self, *given: Any) -> Any:
            if not is_over.is_set():
                raise TierError("of a mount")
            return super().upload(*given)

    with Drainer(fast, slow, DrainSettings(settle_s=0), listener=told) as working:
        working.slow = Failing(slow)
        assert working.watch(is_over.is_set, 240) == []
    assert sorted(names(slow)) == [f"step-{step:08d}" for step in (1, 2, 3, 4)]
    assert {len(error.splitlines()) for error in errors} == {1}
    assert max(map(len, errors)) < 1000
    assert "and 3 more" in errors[39]  # after the outage fewer wait


# What may go


def test_the_fast_tier_gives_up_only_what_is_verified_on_the_slow_one(
    fast: Path, slow: Path
) -> None:
    for step in (1, 2, 3, 4):
        saved(fast, step)
    foreign(fast / "theirs.pt")
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


@pytest.mark.parametrize("is_adopted", [False, True])
def test_what_was_written_again_while_it_was_judged_does_not_go(
    fast: Path, slow: Path, is_adopted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(data: bytes) -> None:
        foreign(fast / "draft", data).replace(fast / "last.ckpt")
        if is_adopted:
            adopt_files(fast, "last.ckpt", ["last.ckpt"], 1, "torch")

    written(b"first")
    foreign(fast / "step-5.ckpt")
    drained(fast, slow)
    judged = retention.doomed_safely

    def slowly(*given: Any) -> Any:
        written(b"second")
        return judged(*given)

    monkeypatch.setattr(retention, "doomed_safely", slowly)
    done = prune(LocalStore(fast), LocalStore(slow), Keep(fast=0, last=3, foreign=True))
    assert done.fast == ("step-5.ckpt",)
    assert names(fast) == ["last.ckpt"]
    assert b"second" in (fast / "last.ckpt").read_bytes()


def test_a_model_to_which_a_file_came_while_it_was_judged_does_not_go(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained(fast, "model")
    drained(fast, slow)
    judged = retention.doomed_safely

    def slowly(*given: Any) -> Any:
        (fast / "model" / "tokenizer.json").write_text("{}")
        return judged(*given)

    monkeypatch.setattr(retention, "doomed_safely", slowly)
    assert not prune(LocalStore(fast), LocalStore(slow), Keep(fast=0, foreign=True)).fast
    assert (fast / "model" / "tokenizer.json").exists()


def test_one_that_cannot_be_removed_keeps_no_other_from_going(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2, 3):
        saved(fast, step)
    drained(fast, slow)
    removed = retention.remove

    def shaky(one: Any) -> bool:
        if one.step == 1:
            raise TierError("of another user")
        return removed(one)

    monkeypatch.setattr(retention, "remove", shaky)
    with pytest.raises(TierError, match="of another user"):
        prune(LocalStore(fast), LocalStore(slow), Keep(fast=1))
    assert names(fast) == ["step-00000003", "step-00000001"]


def test_one_that_is_being_written_is_not_counted_among_those_that_stay(
    fast: Path, slow: Path
) -> None:
    for name in ("out/checkpoint-5", "out/checkpoint-6"):
        trained(fast, name)
    drained(fast, slow)
    trained(fast, "out/checkpoint-7")
    (fast / "out" / "checkpoint-7" / "trainer_state.json").unlink()
    done = prune(LocalStore(fast), LocalStore(slow), Keep(fast=1, foreign=True))
    assert done.fast == ("out/checkpoint-5",)


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
    for name, wrong in (
        ("last", (0, 1.5, "2", True)), ("fast", (-1, 2.5, None, "2")), ("every", (-1, 0.5, None)),
        ("best_n", (0, -1, 1.5)), ("best", ("-", None)), ("foreign", ("no",)),
    ):  # fmt: skip
        for value in wrong:
            with pytest.raises(SaveError, match=rf"Keep\({name}={value!r}\): "):
                Keep(**{name: value})


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
    with Drainer(fast, slow, DrainSettings(settle_s=0, tries=1, keep=Keep(last=1))) as working:
        working.once()
        working.once()
    assert [one.step for one in find(LocalStore(slow))] == [1]


@pytest.mark.parametrize("damage", ["cut", "flip"])
@pytest.mark.parametrize("is_foreign", [True, False])
def test_a_damaged_newest_of_another_program_keeps_no_older_one_from_arriving(
    fast: Path, slow: Path, damage: str, is_foreign: bool
) -> None:
    foreign(fast / "step-1.pt")
    newest = foreign(fast / "step-2.pt")
    size = newest.stat().st_size
    flip(newest, size // 2) if damage == "flip" else os.truncate(newest, size // 2)
    keep = Keep(fast=2, last=1, foreign=is_foreign)
    with Drainer(fast, slow, DrainSettings(settle_s=0, keep=keep)) as working:
        (line,) = working.once()
        assert line.startswith("step-2.pt: ")
    assert names(slow) == ["step-1.pt"]


def test_no_older_one_stays_at_home_for_what_is_still_being_written(fast: Path, slow: Path) -> None:
    for step in (1, 2, 3):
        foreign(fast / f"step-{step}.pt")
        os.utime(fast / f"step-{step}.pt", (time.time() - 1000, time.time() - 1000))
    (fast / "step-9.pt").write_bytes(b"PK\x03\x04 a save that is going on")
    keep = Keep(fast=4, last=1, foreign=True)
    with Drainer(fast, slow, DrainSettings(settle_s=900, keep=keep)) as working:
        assert working._round() == {}
        assert working._round() == {}
        assert names(slow) == ["step-3.pt"]
        assert working.status.drained == 1  # what the slow tier would drop at once stays at home
        foreign(fast / "step-9.pt")
        os.utime(fast / "step-9.pt", (time.time() - 950, time.time() - 950))
        working._round()
    assert names(slow) == ["step-9.pt"]


def test_a_recovery_begins_from_nothing_that_its_own_drain_has_found_damaged(
    fast: Path, slow: Path
) -> None:
    foreign(fast / "step-1.pt")
    with zipfile.ZipFile(fast / "step-2.pt", "w") as archive:
        for number in range(100):  # of which a sample misses most
            archive.writestr(f"archive/data/{number}", b"%d" % number * 1000)
    flip(fast / "step-2.pt", (fast / "step-2.pt").stat().st_size // 2)
    settings = DrainSettings(settle_s=0)
    choice, (line,) = recover(fast, slow, settings, level="sizes")
    assert choice.step == 1
    assert [where for where, _ in choice.rejected] == [f"{fast}/step-2.pt"]
    assert choice.rejected[0][1] in line
    told = penstock("drain", fast, slow, status=1)
    assert "not drained: step-2.pt: " in told.stderr
    assert "is there again" not in told.stderr


def test_all_that_a_keep_says_is_said_to_the_drain_beside(fast: Path, slow: Path) -> None:
    commands: Any = importlib.import_module("penstock.cli.save")
    keep = Keep(fast=1, last=2, every=3, best="-acc", best_n=4, foreign=True)
    words = Drain(fast, slow, keep=keep).command()
    told = commands.drain_command.make_context("drain", words[words.index("drain") + 1 :]).params
    assert keep == commands._keep(*(told[name] for name in (
        "keep_fast", "keep_last", "every", "best", "best_n", "foreign",
    )))  # fmt: skip


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
    with Drainer(fast, slow, DrainSettings(keep=Keep(fast=2, last=3))) as working:
        working.once()
        assert [one.step for one in find(working.fast)] == [7, 6]
        assert [one.step for one in find(working.slow)] == [7, 6, 5]
        before = working.status.drained
        working.once()
        assert working.status.drained == before


def test_a_model_s_folder_that_stays_for_what_is_in_it_is_not_drained_again_and_again(
    fast: Path, slow: Path
) -> None:
    for name in ("out", "out/checkpoint-5", "out/checkpoint-10"):
        trained(fast, name)
    keep = Keep(fast=1, last=1, foreign=True)
    assert drained(fast, slow, keep=keep).drained <= 3
    assert drained(fast, slow, keep=keep).drained == 0
    assert names(fast) == ["out/checkpoint-10", "out"]
    assert names(slow) == ["out/checkpoint-10", "out.2"]


def test_a_model_without_a_step_counts_for_no_rule_and_goes_for_a_newer_one_alone(
    fast: Path, slow: Path
) -> None:
    keep = Keep(fast=1, last=3, foreign=True)
    for name in ("out", "out/checkpoint-1", "out/checkpoint-2"):
        trained(fast, name)
    drained(fast, slow, keep=keep)
    assert names(slow) == ["out/checkpoint-2", "out/checkpoint-1", "out.2"]
    # Before the next model has come, its checkpoints have.
    for step in (3, 4):
        trained(fast, f"out/checkpoint-{step}")
    before = (slow / "out.2" / "pytorch_model.bin").read_bytes()
    drained(fast, slow, keep=keep)
    assert names(slow) == [*(f"out/checkpoint-{step}" for step in (4, 3, 2)), "out.2"]
    assert (slow / "out.2" / "pytorch_model.bin").read_bytes() == before
    trained(fast, "out", b"again")
    drained(fast, slow, keep=keep)
    assert names(slow) == [*(f"out/checkpoint-{step}" for step in (4, 3, 2)), "out.2"]
    assert (slow / "out.2" / "pytorch_model.bin").read_bytes() != before


def test_of_copies_without_a_step_the_last_whole_one_of_a_name_stays(fast: Path) -> None:
    pytest.importorskip("fsspec")
    """Earlier versions gave each save a name of its own on a store without renames."""
    store, before = open_store("memory://models"), open_store("memory://before")
    there = lambda: sorted(one.name for one in find(store))  # noqa: E731
    trained(fast, "other")
    drained(fast, store.url)
    for number, name in enumerate(("out", "out.2", "out.3")):
        trained(fast, "out", b"%d" % number)
        drained(fast, before.url)
        for found in before.list("out"):
            data = before.read(found.name)
            if found.name.endswith(INSIDE):
                manifest = parse(data, found.name)
                data = to_json(replace(manifest, called="" if name == "out" else "out"))
            store.put(found.name.replace("out/", f"{name}/", 1), data)
    assert there() == ["other", "out", "out.2", "out.3"]
    newest = "out.3/pytorch_model.bin"
    store.put(newest, store.read(newest)[:-1] + b"?")
    assert prune(LocalStore(fast), store, Keep(last=1)).slow == ("out",)
    assert there() == ["other", "out.2", "out.3"]


def test_what_a_rule_keeps_of_old_is_no_successor_of_a_newer_one(fast: Path, slow: Path) -> None:
    for step in (900, 1000):
        saved(fast, step)
    drained(fast, slow)
    flip(slow / "step-00001000" / "model.pt", 100)
    shutil.rmtree(fast)  # a node that is lost; the next begins from an older one
    saved(fast, 500)
    drained(fast, slow, keep=Keep(last=1, every=500))
    assert names(slow) == ["step-00000500", "step-00000900"]
    assert latest_valid(slow, level="full").step == 500  # what the training saved last


def test_a_model_arrives_also_while_an_older_one_of_its_name_cannot_go(
    fast: Path, slow: Path
) -> None:
    model = fast / "out"
    for time_s in (1, 2, 3):
        trained(fast, "out", b"%d" % time_s)
        if time_s == 2:  # from now on the first one's folder has another checkpoint in it
            trained(fast, "out/checkpoint-5")
        drained(fast, slow, keep=Keep(last=1))
    assert {*names(slow)} == {"out", "out/checkpoint-5", "out.2"}
    there = slow / "out.2" / "pytorch_model.bin"
    assert there.read_bytes() == (model / "pytorch_model.bin").read_bytes()


def test_of_two_with_one_name_none_goes_for_the_other(fast: Path) -> None:
    (one,) = find(LocalStore(saved(fast, 1).parent))
    assert one.manifest is not None
    newer, older = (
        replace(one, step=None, manifest=replace(one.manifest, created_unix_ns=created_unix_ns))
        for created_unix_ns in (2, 1)
    )
    assert doomed_safely([newer, older], Keep(last=1), {}, Proven()) == []


def test_foreign_ones_that_stay_on_fast_are_not_drained_again_and_again(
    fast: Path, slow: Path
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for step in range(1, 6):
        torch.save({"w": torch.ones(10)}, fast / f"step-{step}.pt")
    with Drainer(fast, slow, DrainSettings(settle_s=0, keep=Keep(fast=1, last=2))) as working:
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
        with Drainer(fast, slow, DrainSettings(tries=1)) as working:
            (line,) = working.once()
        assert "no room for" in line
        assert str(slow) in line
        assert latest_valid(slow, level="full").step == 1
        (fast / "step-00000002").rename(fast.parent / "gone")
        drained(fast, slow)
        assert sorted(os.listdir(slow)) == [".penstock", "step-00000001"]
    finally:
        subprocess.run(["umount", slow], check=True)


def test_on_a_nearly_full_slow_tier_the_newest_save_gets_the_room_of_all_drafts(
    fast: Path, slow: Path
) -> None:
    slow.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", slow]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small tmpfs can be mounted by root only")
    try:
        saved(fast, 1, os.urandom(1_900_000))
        drained(fast, slow)
        saved(fast, 2, os.urandom(900_000))
        (slow / "filler").write_bytes(bytes(400_000))
        with Drainer(fast, slow, DrainSettings(tries=1)) as working:
            assert len(working.once()) == 1
        assert list(slow.glob("step-00000002.part/*"))
        (slow / "filler").unlink()  # room for a save, not for a save and a draft
        saved(fast, 3, os.urandom(900_000))
        with Drainer(fast, slow, DrainSettings(tries=1)) as working:
            (line,) = working.once()
        assert "step-00000002" in line
        assert latest_valid(slow, level="full").step == 3
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
            raise DrainStopped

        with pytest.raises(DrainStopped):
            copy_checkpoint(one, remote, replace_told(stop))
        assert latest_valid(remote).path is None
        assert latest_valid(remote).checkpoint is None
        copy_checkpoint(one, remote, NO_PACE)
        assert latest_valid(remote, level="full").step == 1

    def test_several_files_count_together_and_are_replaced_together(
        self, remote: Store, fast: Path
    ) -> None:
        def save(number: int) -> Any:
            for place, part in enumerate(("ema", "model", "optim")):
                (fast / f"last_{part}.bin").write_bytes(b"%d" % number * (1000 + place))
            (one,) = find(LocalStore(fast))
            return one

        pieces = [0]

        def stop(n_bytes: int, was_there: bool) -> None:
            pieces[0] += 1
            if pieces[0] > 1:
                raise DrainStopped

        with pytest.raises(DrainStopped):
            copy_checkpoint(save(1), remote, replace_told(stop))
        assert latest_valid(remote).checkpoint is None
        copy_checkpoint(save(1), remote, NO_PACE)
        (copy,) = find(remote)
        assert (len(copy.files), verify(copy, "full").is_whole) == (3, True)
        pieces[0] = 0
        with pytest.raises(DrainStopped):
            copy_checkpoint(save(2), remote, replace_told(stop))
        choice = latest_valid(remote, level="full")  # the copy before, or none
        if choice.checkpoint is not None:
            assert {remote.read(one.name)[:1] for one in choice.checkpoint.files} == {b"1"}
        copy_checkpoint(save(2), remote, NO_PACE)
        # The new copy was complete by keys of its own before it took the place of the copy before.
        (copy,) = find(remote)
        assert verify(copy, "full").is_whole
        assert {remote.read(one.name)[:1] for one in copy.files} == {b"2"}

    def test_a_name_of_another_run_is_not_written_into(self, remote: Store, fast: Path) -> None:
        for data in (b"first", b"second"):
            tier = fast / data.decode()
            saved(tier, 1, data)
            copy_checkpoint(find(LocalStore(tier))[0], remote, NO_PACE)
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


class TestDrainToGs(RemoteContract):
    @pytest.fixture
    def remote(self, gs: Store) -> Store:
        return gs


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
    assert "same device" not in found.stderr  # the drain has said so
    gone = penstock("prune", fast, slow, "--keep-fast", 0, "--dry-run").stdout.splitlines()
    assert gone == [f"{fast}/step-0000000{step}" for step in (1, 2, 3)]
    penstock("prune", fast, slow, "--keep-fast", 2)
    assert names(fast) == ["step-00000003", "step-00000002"]


def test_what_cannot_be_asked_is_answered_in_a_sentence(fast: Path, slow: Path) -> None:
    for words in (
        ("prune", fast), ("drain", fast, fast), ("drain", fast, slow, "--every", 5),
        ("verify", fast / "none"), ("drain", fast, slow, "--limit", "fast"),
        ("drain", fast, slow, "--follow", 1), ("ls", "nonsense://x"),
        # A variable that is not set: not the folder where the command runs.
        ("drain", fast, ""), ("recover", "", slow), ("recover", fast, ""), ("prune", fast, ""),
    ):  # fmt: skip
        assert penstock(*words, status=2).stderr.count("\n") == 1, words
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
    (fast / "a\nb.pt").write_bytes(b"PK\x03\x04")
    for path in fast.iterdir():  # nobody writes them any more, however fast this machine is
        os.utime(path, (1e9, 1e9))
    fast.with_name("slow").mkdir()
    said = penstock("recover", fast, fast.with_name("slow"), status=1).stderr
    for start in ("passed over", "not drained"):
        assert [line.count("a\\nb.pt") > 0 for line in said.splitlines() if start in line].count(1)
    assert "\nb.pt" not in said.replace("a\\nb.pt", "")


def test_one_file_is_listed_and_a_metric_that_no_manifest_has_is_told(
    fast: Path, slow: Path
) -> None:
    foreign(fast / "step-1.pt")
    rows = json.loads(penstock("ls", fast / "step-1.pt", "--json").stdout)
    assert [row["name"] for row in rows] == ["step-1.pt"]
    saved(slow, 1, metrics={"loss": 1.0})
    words = ["prune", fast, slow, "--keep-last", 1, "--dry-run", "--best"]
    assert "has a metric 'nosuch'" in penstock(*words, "-nosuch").stderr
    assert "metric" not in penstock(*words, "loss").stderr


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
        from penstock.save.drain.beside import Drain
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
        raise DrainStopped

    with pytest.raises(DrainStopped):
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

    for step in (1, 2):  # a minute apart: written at once they may be parts of one save
        with zipfile.ZipFile(tmp_path / f"model_{step}.pt", "w") as file:
            file.writestr("archive/data.pkl", b"x")
        os.utime(tmp_path / f"model_{step}.pt", (1e9 + 60 * step, 1e9 + 60 * step))
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


def test_a_checkpoint_of_several_files_is_asked_for_by_its_prefix_or_by_any_of_them(
    tmp_path: Path,
) -> None:
    from click.testing import CliRunner

    from penstock.cli.save import save as command

    for step in (1, 2):
        files = [f"ckpt-{step}.data-00000-of-00001", f"ckpt-{step}.index"]
        for name in files:
            (tmp_path / name).write_bytes(b"x")
        adopt_files(tmp_path, f"ckpt-{step}", files, step, "tensorflow")
    for name in ("ckpt-2", *files):
        said = CliRunner().invoke(command, ["verify", str(tmp_path / name)])
        assert said.output == "ckpt-2: whole (tensorflow, sample), 0.0 MB compared\n", name
    assert CliRunner().invoke(command, ["verify", str(tmp_path / "ckpt-3")]).exit_code


def test_a_pointer_that_names_thousands_of_checkpoints_is_copied(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for name in ("ckpt-1.index", "ckpt-1.data-00000-of-00001"):
        (fast / name).parent.mkdir(exist_ok=True)
        (fast / name).write_bytes(b"x")
    rows = [f'all_model_checkpoint_paths: "ckpt-{step}"' for step in range(4000)]
    (fast / "checkpoint").write_text("\n".join(rows))
    with Drainer(fast, slow) as drainer:
        drainer.backlog()
        drainer._beside.copy(Trip(DrainPace(None)), (), 0)
    assert (slow / "checkpoint").read_bytes() == (fast / "checkpoint").read_bytes()


def test_what_keep_fast_cannot_let_go_is_said(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    for step in range(3):
        with zipfile.ZipFile(fast / f"model_{100 * step}.pt", "w") as file:
            file.writestr("archive/data.pkl", b"x")
    ended = penstock("drain", fast, slow, "--keep-fast", 2, status=0)  # slow is not there yet
    assert "--foreign lets them go" in ended.stderr
    assert "same device" in ended.stderr
    assert len(list(fast.glob("*.pt"))) == 3
    ended = penstock("drain", fast, slow, "--keep-fast", 2, "--foreign", status=0)
    assert "--foreign" not in ended.stderr
    assert len(list(fast.glob("*.pt"))) == 2
    none = tmp_path / "none"
    assert "does not exist" in penstock("drain", fast, slow, "--run", none, status=2).stderr


@pytest.mark.parametrize("is_there", [True, False])
def test_what_durable_means_on_a_server_is_said_after_its_first_answer(
    fast: Path, s3: Store, s3_server: str, monkeypatch: pytest.MonkeyPatch, is_there: bool
) -> None:
    foreign(fast / "last.ckpt")
    from click.testing import CliRunner

    from penstock import cli

    where = s3_server if is_there else "http://127.0.0.1:1"
    for key, value in {
        "AWS_ENDPOINT_URL": where, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "1",
    }.items():  # fmt: skip
        monkeypatch.setenv(key, value)
    os.utime(fast / "last.ckpt", (1, 1))
    ended = CliRunner().invoke(cli.cli, ["save", "drain", str(fast), s3.url])
    assert ended.output.count("durable on s3://") == is_there
    if not is_there:
        assert ended.exit_code
        assert f"{s3.url}: does not answer" in ended.output + str(ended.exception)
