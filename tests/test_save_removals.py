"""What a framework removes by its own count goes when nothing durable is lost by it."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import SaveError, TierError
from penstock.places.stores import LocalStore
from penstock.save.drain.adopting import adopt_files, adopt_folder
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.removals import Removals
from penstock.save.drain.working import DrainSettings, DrainStatus
from penstock.save.find.formats import find
from penstock.save.manifest import CHUNK_BYTES, INSIDE
from penstock.save.verify import latest_valid


@pytest.fixture
def slow(tmp_path: Path) -> Path:
    (tmp_path / "slow").mkdir()
    return tmp_path / "slow"


def saved(fast: Path, step: int, n_bytes: int = 1000) -> str:
    name = f"step={step}.ckpt"
    (fast / name).write_bytes(b"%d" % (step % 10) * n_bytes)
    adopt_files(fast, name, [name], step, "torch")
    return name


def removals(fast: Path, slow: Path) -> Removals:
    return Removals(LocalStore(fast), LocalStore(slow))


def drain(fast: Path, slow: Path, **options: Any) -> None:
    with Drainer(fast, slow, DrainSettings(concurrency=1), **options) as drainer:
        assert drainer.once() == []


def files(folder: Path) -> list[str]:
    """All of them, unfinished ones too."""
    found = [path.name for path in folder.iterdir() if path.name != ".penstock"]
    return sorted(found)


def whole(folder: Path) -> list[str]:
    return sorted(one.name for one in find(LocalStore(folder)) if one.manifest and not one.problem)


def test_what_may_go_from_a_slow_tier_that_is_not_mounted_goes_later(
    fast: Path, slow: Path
) -> None:
    old, new = saved(fast, 10), saved(fast, 20)
    with Drainer(fast, slow, DrainSettings(concurrency=1, tries=1)) as drainer:
        assert drainer.once() == []
        away = slow.rename(slow.with_name("away"))
        slow.mkdir()
        assert removals(fast, slow).note(old)
        last = saved(fast, 30)
        with pytest.raises(TierError, match="is it mounted"):
            drainer.once()
        assert drainer.status.backlog == (last,)  # also where something is to be removed
        slow.rmdir()
        away.rename(slow)
        assert drainer.once() == []
    assert whole(slow) == [new, last]


def test_the_only_durable_one_stays_until_a_newer_one_is_durable(fast: Path, slow: Path) -> None:
    old = saved(fast, 10)
    drain(fast, slow)
    new = saved(fast, 20)
    assert removals(fast, slow).note(old)
    removals(fast, slow).carry_out()
    assert whole(fast) == [new]  # it has served there
    assert whole(slow) == [old]
    drain(fast, slow)
    assert whole(fast) == whole(slow) == [new]
    assert files(slow) == [new, f"{new}.penstock.json"]
    assert not list((fast / ".penstock" / "removed").iterdir())


def test_the_last_one_stays_on_both_until_there_is_another(fast: Path, slow: Path) -> None:
    old = saved(fast, 10)
    assert removals(fast, slow).note(old)
    drain(fast, slow)
    assert whole(fast) == whole(slow) == [old]
    saved(fast, 20)
    drain(fast, slow)
    assert whole(fast) == whole(slow) == ["step=20.ckpt"]


def test_a_newer_one_that_was_removed_too_or_is_damaged_replaces_none(
    fast: Path, slow: Path
) -> None:
    saved(fast, 10)
    saved(fast, 20)
    drain(fast, slow)
    notes = removals(fast, slow)
    notes.note("step=10.ckpt")
    notes.note("step=20.ckpt")
    saved(fast, 30)
    notes.carry_out()
    assert whole(slow) == ["step=10.ckpt", "step=20.ckpt"]
    drain(fast, slow)
    assert whole(slow) == ["step=30.ckpt"]
    removals(fast, slow).note("step=30.ckpt")
    saved(fast, 40)
    drain_only = removals(fast, slow)
    (slow / "step=40.ckpt").write_bytes(b"4")  # no copy of ours: nobody has compared it
    drain_only.carry_out()
    assert "step=30.ckpt" in whole(slow)


def test_a_copy_of_what_was_removed_ends_when_a_newer_one_is_there(fast: Path, slow: Path) -> None:
    old = saved(fast, 10, 4 * CHUNK_BYTES)
    saved(fast, 20)
    most = 0

    def told(status: DrainStatus) -> None:
        nonlocal most
        if status.current == old and status.done_bytes:
            if not most:
                removals(fast, slow).note(old)
            most = max(most, status.done_bytes)

    drain(fast, slow, listener=told, clock=itertools.count().__next__)
    assert 0 < most < 4 * CHUNK_BYTES, "it went on to its end"
    assert files(fast) == files(slow) == ["step=20.ckpt", "step=20.ckpt.penstock.json"]


def test_a_drain_slower_than_the_saves_still_makes_some_of_them_durable(
    fast: Path, slow: Path
) -> None:
    saved(fast, 10, 8 * CHUNK_BYTES)
    steps = iter((20, 30, 40))
    durable: set[str] = set()
    removed: list[str] = []

    def told(status: DrainStatus) -> None:
        """During the first copy three more are saved, each in place of the one before."""
        now = set(whole(slow))
        assert now or not durable, "there was a durable one, and there is none"
        durable.update(now)
        if status.current == "step=10.ckpt" and status.done_bytes:
            for step in itertools.islice(steps, 1):
                new = saved(fast, step, 2 * CHUNK_BYTES)
                removed.append(f"step={step - 10}.ckpt")
                removals(fast, slow).note(removed[-1])
                assert new in whole(fast)

    drain(fast, slow, listener=told, clock=itertools.count().__next__)
    assert removed == ["step=10.ckpt", "step=20.ckpt", "step=30.ckpt"]
    assert durable == {"step=10.ckpt", "step=40.ckpt"}
    assert files(fast) == files(slow) == ["step=40.ckpt", "step=40.ckpt.penstock.json"]


def test_what_came_from_elsewhere_is_left(fast: Path, slow: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    saved(other, 10)
    drain(other, slow)
    saved(fast, 20)
    assert removals(fast, slow).note("step=10.ckpt")
    drain(fast, slow)
    assert whole(slow) == ["step=10.ckpt", "step=20.ckpt"]


def test_notes_that_are_damaged_remove_nothing(fast: Path, slow: Path) -> None:
    saved(fast, 10)
    saved(fast, 20)
    folder = fast / ".penstock" / "removed"
    folder.mkdir(parents=True)
    for number, text in enumerate(("", "[]", '{"name": "step=10.ckpt"}', "[" * 100_000, "\xff")):
        (folder / f"{number}.json").write_text(text)
    drain(fast, slow)
    assert whole(fast) == whole(slow) == ["step=10.ckpt", "step=20.ckpt"]


def test_lightning_keeps_one_and_one_is_durable_all_the_while(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning", reason="make test installs it")
    from penstock.adapters.save import lightning

    started = []
    monkeypatch.setattr(lightning, "drain_beside", lambda *places: started.append(places))
    plugin = lightning.TieredCheckpointIO(fast, slow)
    for step in (10, 20, 30):
        plugin.save_checkpoint({"global_step": step}, slow / f"step={step}.ckpt")
        if step > 10:
            plugin.remove_checkpoint(slow / f"step={step - 10}.ckpt")
            assert latest_valid(slow).step == step - 10
        drain(fast, slow)
        assert latest_valid(slow).step == step
        assert plugin.latest() == str(slow / f"step={step}.ckpt")
    assert len(started) == 5
    assert whole(fast) == whole(slow) == ["step=30.ckpt"]


def test_lightning_loads_from_the_tier_that_was_chosen(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning", reason="make test installs it")
    import torch

    from penstock.adapters.save import lightning

    monkeypatch.setattr(lightning, "drain_beside", lambda *places: None)
    plugin = lightning.TieredCheckpointIO(fast, slow)
    path, near = slow / "last.ckpt", fast / "last.ckpt"

    def save(step: int) -> None:
        plugin.save_checkpoint({"global_step": step}, path)

    def put_back() -> None:
        shutil.rmtree(fast)
        shutil.copytree(fast.with_name("before"), fast)

    save(8)
    drain(fast, slow)
    shutil.copytree(fast, fast.with_name("before"))
    save(16)
    drain(fast, slow)
    put_back()
    for chosen in (plugin.latest(), path):  # and without having asked
        assert plugin.load_checkpoint(str(chosen))["global_step"] == 16
    save(4)  # a run begun anew: what it has written itself, though its step is lower
    assert plugin.load_checkpoint(path)["global_step"] == 4

    content = bytearray(near.read_bytes())
    content[len(content) // 2] ^= 1
    near.write_bytes(content)
    assert plugin.load_checkpoint(str(plugin.latest()))["global_step"] == 16
    (slow / "last.ckpt").write_bytes(content)
    with pytest.raises(SaveError, match=r"fast/last.ckpt: .*slow/last.ckpt: "):
        plugin.load_checkpoint(path)
    near.unlink()
    path.rename(slow / "weights")
    torch.save({"global_step": 1}, slow / "weights")  # no checkpoint by its name
    assert plugin.load_checkpoint(slow / "weights")["global_step"] == 1


@pytest.mark.parametrize("tier", ["fast", "slow"])
def test_what_cannot_be_removed_keeps_no_other_on_the_fast_tier(
    tier: str, fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, old = Path.rename, saved(fast, 10)
    bad = (fast if tier == "fast" else slow) / old

    def shaky(path: Path, target: Path) -> Path:
        if path == bad:
            raise OSError(13, "Permission denied", str(path))
        return rename(path, target)

    drain(fast, slow)
    monkeypatch.setattr(Path, "rename", shaky)
    assert removals(fast, slow).note(old)
    for step in (20, 30):
        saved(fast, step)
        drain(fast, slow)
    assert {"step=20.ckpt", "step=30.ckpt"} <= {*whole(slow)}
    monkeypatch.undo()
    drain(fast, slow)
    assert old not in {*whole(fast), *whole(slow)}


def test_lightning_loads_its_own_where_the_slow_tier_had_to_name_it_anew(
    fast: Path, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("lightning", reason="make test installs it")
    from penstock.adapters.save import lightning

    monkeypatch.setattr(lightning, "drain_beside", lambda *places: None)
    (tmp_path / "other").mkdir()
    for folder, whose in ((tmp_path / "other", "theirs"), (fast, "ours")):
        plugin = lightning.TieredCheckpointIO(folder, slow)
        plugin.save_checkpoint({"global_step": 1, "whose": whose}, slow / "last.ckpt")
        drain(folder, slow)
    assert whole(slow) == ["last.2.ckpt", "last.ckpt"]
    (fast / "last.ckpt").unlink()
    (fast / "last.ckpt.penstock.json").unlink()
    assert plugin.load_checkpoint(slow / "last.ckpt")["whose"] == "ours"
    assert torch.load(slow / "last.ckpt", weights_only=True)["whose"] == "theirs"


def test_lightning_takes_no_newer_one_of_another_run_while_it_has_its_own(
    fast: Path, slow: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning", reason="make test installs it")
    from penstock.adapters.save import lightning

    monkeypatch.setattr(lightning, "drain_beside", lambda *places: None)
    (tmp_path / "other").mkdir()

    def save(folder: Path, step: int, whose: str) -> lightning.TieredCheckpointIO:
        plugin = lightning.TieredCheckpointIO(folder, slow)
        state = {"global_step": step, "whose": whose}
        plugin.save_checkpoint(state, slow / "last.ckpt")
        drain(folder, slow)
        return plugin

    save(tmp_path / "other", 1, "theirs")
    plugin = save(fast, 5, "ours")
    save(tmp_path / "other", 9, "theirs")
    shutil.rmtree(fast)  # a node that is lost
    fast.mkdir()
    assert whole(slow) == ["last.2.ckpt", "last.ckpt"]
    for path in (slow / "last.ckpt", str(plugin.latest())):
        assert plugin.load_checkpoint(path)["whose"] == "ours"
    content = bytearray((slow / "last.2.ckpt").read_bytes())
    content[len(content) // 2] ^= 1
    (slow / "last.2.ckpt").write_bytes(content)
    with pytest.raises(SaveError, match=r"last\.2\.ckpt.*|it may be another run's"):
        plugin.load_checkpoint(slow / "last.ckpt")
    # While none of ours is whole, another's is more than a new beginning.
    assert plugin.load_checkpoint(str(plugin.latest()))["global_step"] == 9
    # Of a node with another path there is nothing of ours: it goes on with the newest.
    (tmp_path / "third").mkdir()
    moved = lightning.TieredCheckpointIO(tmp_path / "third", slow)
    assert moved.load_checkpoint(slow / "last.ckpt")["global_step"] == 9


def test_tensorflow_gives_up_on_fast_only_what_has_arrived(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorflow", reason="make test installs it")
    import tensorflow as tf

    from penstock.adapters.save import tensorflow

    keeps = []
    monkeypatch.setattr(tensorflow, "drain_beside", lambda *places: keeps.append(places[2]))
    step = tf.Variable(0, dtype=tf.int64)
    made = tf.train.Checkpoint(step=step)
    manager = tensorflow.TieredCheckpointManager(made, slow, 2, fast=fast)
    for number in range(1, 6):
        step.assign(number)
        manager.save(number)
    kept = [str(fast / f"ckpt-{number}") for number in range(1, 6)]
    assert manager.checkpoints == kept, "the drain has had none of them"
    with Drainer(fast, slow, DrainSettings(keep=keeps[-1])) as drainer:
        assert drainer.once() == []
    assert whole(slow) == [f"ckpt-{number}" for number in range(1, 6)]
    assert manager.checkpoints == kept[3:]


def orbax_step(root: Path, step: int, data: bytes, is_adopted: bool = False) -> None:
    folder = root / str(step)
    folder.mkdir()
    (folder / "_CHECKPOINT_METADATA").write_text("{}")
    (folder / "data").write_bytes(data)
    if is_adopted:
        adopt_folder(folder, step, "orbax")


def test_a_torn_step_of_the_run_before_is_not_vouched_for(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.adapters.save import orbax

    monkeypatch.setattr(orbax, "drain_beside", lambda *places: None)
    steps = orbax.TieredSteps(fast, slow)
    for step in (1, 2, 3):
        orbax_step(fast, step, b"x", is_adopted=step == 1)
    (fast / "2" / "_CHECKPOINT_METADATA").write_bytes(b"")  # Orbax does not sync it

    class Manager:
        def wait_until_finished(self) -> None: ...

        def all_steps(self) -> list[int]:
            return [1, 2, 3]

    assert steps.finished(Manager()) == [3]
    assert not (fast / "2" / INSIDE).exists()
    (fast / "3" / "data").unlink()
    found = steps.latest()
    assert found is not None
    assert found.step == 1


def test_orbax_is_never_given_another_run_s_step(
    fast: Path, slow: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.adapters.save import orbax

    monkeypatch.setattr(orbax, "drain_beside", lambda *places: None)
    for step in (1, 2):
        orbax_step(slow, step, b"theirs")
        orbax_step(fast, step, b"ours", is_adopted=True)
    drain(fast, slow)
    shutil.rmtree(fast)  # the node is lost
    found = orbax.TieredSteps(fast, slow).latest()
    assert found is not None
    assert found.step == 2
    assert (found.folder / "2" / "data").read_bytes() == b"ours"
    (fast / "2" / "data").write_bytes(b"new!")  # damaged, and has the name
    with pytest.raises(SaveError, match=r"Orbax would restore .*/fast/2, .* move"):
        orbax.TieredSteps(fast, slow).latest()
