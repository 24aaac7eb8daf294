"""The Checkpointer: what it blocks for, what it leaves, what it says when something is wrong."""

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from penstock.errors import SaveError, TierError, TierFull
from penstock.places.stores import LocalStore, open_store
from penstock.save.drain.beside import Drain
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.tiered import Tiers, drain_beside, rate_bps
from penstock.save.drain.working import DrainStatus, read_status
from penstock.save.find.formats import find
from penstock.save.training.checkpointer import Checkpointer, Keep
from penstock.save.training.gather import WriterSession
from penstock.save.training.ledger import Ledger
from penstock.save.training.writer import Writer
from penstock.save.verify import latest_valid, verify
from remote import BUCKET, s3_server

__all__ = ["s3_server"]

torch = pytest.importorskip("torch", reason="most states are torch's")


def state(step: int = 1, n: int = 1000) -> dict[str, Any]:
    return {"w": np.full(n, float(step)), "step": step}


def saved(folder: Path, *steps: int, **options: Any) -> None:
    with Checkpointer(folder, **options) as ckpt:
        for step in steps:
            ckpt.save(step, state(step)).local.result(240)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


def test_a_model_and_its_optimizer_come_back_and_training_goes_on_alike(tmp_path: Path) -> None:
    def training(until: int, ckpt: Checkpointer) -> list[float]:
        torch.manual_seed(3)
        model = torch.nn.Linear(20, 1)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        everything: dict[str, Any] = {
            "model": model,
            "optimizer": optimizer,
            "random": torch.get_rng_state(),
            "losses": [],
        }
        first = ckpt.restore(everything, default=0)
        torch.set_rng_state(everything["random"])
        losses: list[float] = list(everything["losses"])
        for step in range(first, until):
            loss = (model(torch.randn(8, 20)) - 1).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            everything |= {"random": torch.get_rng_state(), "losses": losses}
            ckpt.save(step + 1, everything)
        return losses

    with Checkpointer(tmp_path / "whole") as ckpt:
        whole = training(12, ckpt)
    with Checkpointer(tmp_path / "cut") as ckpt:
        training(5, ckpt)
    with Checkpointer(tmp_path / "cut") as ckpt:
        assert training(12, ckpt) == whole
        assert ckpt.restored is not None
        assert ckpt.restored.step == 5


def test_what_lies_there_loads_with_torch_alone(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    with Checkpointer(tmp_path) as ckpt:
        path = ckpt.save(7, {"model": model, "note": "x"}).local.result(240)
        model.weight.data.zero_()
    program = f"""
import torch
found = torch.load({str(Path(str(path)) / "state.pt")!r}, weights_only=True)
assert found["note"] == "x" and found["model"]["weight"].abs().sum() > 0
import sys
assert not any(name.startswith("penstock") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PATH": os.environ["PATH"]})


def test_the_three_futures_come_in_order_and_say_where(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    with Checkpointer(fast, slow) as ckpt:
        handle = ckpt.save(3, state(3))
        assert handle.staged.done()
        assert handle.local.result(240) == str(fast / "step-00000003")
        assert handle.durable.result(240) == str(slow / "step-00000003")
        assert ckpt.at_risk().step == 3
        assert ckpt.at_risk().backlog == 0
        [known] = ckpt.saves
        assert known.block_s is not None
        assert known.local_s is not None
        assert known.durable_s is not None
        assert known.block_s < known.local_s < known.durable_s
    assert all(verify(one, "full").is_whole for one in find(LocalStore(slow)))


def test_where_another_run_has_the_name_the_handle_says_the_other_one(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    for number, name in enumerate(("step-00000001", "step-00000001.2", "step-00000001.3")):
        with Checkpointer(tmp_path / f"fast-{number}", slow) as ckpt:
            assert ckpt.save(1, state(number)).durable.result(240) == str(slow / name)
        (slow / "step-00000001" / "penstock-manifest.json").write_text("{")  # theirs, damaged


def test_two_runs_on_one_slow_tier_are_told_of_each_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    slow, told = tmp_path / "slow", "has checkpoints of another fast tier"
    for number, is_restored in enumerate((True, True, False)):
        with Checkpointer(tmp_path / f"fast-{number}", slow) as ckpt:
            if is_restored:
                ckpt.restore(state(), default=0)
            ckpt.save(number, state(number)).durable.result(240)
        assert (told in caplog.text) == (not is_restored)


def raises(error: BaseException) -> Callable[..., Any]:
    def broken(*given: Any, **named: Any) -> Any:
        raise error

    return broken


UNFORESEEN, ENDING = ZeroDivisionError("unforeseen"), SystemExit("unforeseen")


@pytest.mark.parametrize(
    ("where", "what", "error"),
    [
        (Tiers, "prune", UNFORESEEN), (Tiers, "on_slow", UNFORESEEN),
        (Drain, "is_alive", UNFORESEEN), (Drain, "status", UNFORESEEN),
        (Writer, "finished", UNFORESEEN), (Ledger, "note_costs", UNFORESEEN),
        (Checkpointer, "_durable", UNFORESEEN), (Tiers, "prune", ENDING),
        (Tiers, "on_slow", ENDING), (Writer, "finished", ENDING),
    ],
)  # fmt: skip
def test_whatever_the_following_thread_meets_no_future_and_no_writer_is_left(
    where: Any, what: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = None if what == "prune" else tmp_path / "slow"
    ckpt = Checkpointer(tmp_path / "fast", slow, keep=Keep(last=1), on_error="warn")
    assert ckpt._writer is not None
    writer = ckpt._writer._process
    with monkeypatch.context() as patch:
        patch.setattr(where, what, raises(error))
        handle = ckpt.save(1, state())
        for future in (handle.staged, handle.local, handle.durable):
            assert isinstance(future.exception(60), SaveError | None)
        if isinstance(error, Exception) and what in ("prune", "note_costs"):
            assert handle.durable.exception(0) is None
        elif what != "prune":
            with pytest.raises(SaveError, match="unforeseen"):
                handle.durable.result(0)
            assert not ckpt.wait(0)
        ckpt._thread.join(60 if isinstance(error, SystemExit) else 0)
        assert ckpt._thread.is_alive() == isinstance(error, Exception)
    if isinstance(error, Exception):
        assert ckpt.save(2, state(2)).local.result(60) == str(tmp_path / "fast" / "step-00000002")
    else:
        with pytest.raises(SaveError, match="make another"):
            ckpt.save(2, state(2))
    ckpt.close()
    assert writer.poll() is not None
    Checkpointer(tmp_path / "fast").close()


@pytest.mark.parametrize("where", [Tiers, Path])
def test_an_error_of_a_tier_passes(
    where: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, what = [5, 116], "on_slow" if where is Tiers else "stat"
    true, fast = getattr(where, what), tmp_path / "fast" / "step-00000001"

    def shaky(self: Any, *given: Any, **named: Any) -> Any:
        if errors and (where is Tiers or self == fast):
            raise OSError(errors.pop(), "of a mount")
        return true(self, *given, **named)

    with Checkpointer(tmp_path / "fast", tmp_path / "slow") as ckpt:
        with monkeypatch.context() as patch:
            patch.setattr(where, what, shaky)
            arrived = ckpt.save(1, state()).durable.result(60)
        assert ckpt.wait(0)
    assert arrived == str(tmp_path / "slow" / "step-00000001")
    assert not errors


def test_the_drain_goes_on_with_what_nobody_looks_for_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Tiers, "on_slow", raises(UNFORESEEN))
    with Checkpointer(tmp_path / "fast", tmp_path / "slow", drain="5B/s") as ckpt:
        assert isinstance(ckpt.save(1, state()).durable.exception(60), SaveError)
    assert ckpt._drain is not None
    assert ckpt._drain.is_alive()
    ckpt._drain.stop()


@pytest.mark.parametrize("is_first_rank", [True, False])
def test_a_save_that_the_fast_tier_has_spoilt_is_said_and_keeps_nobody_waiting(
    tmp_path: Path, is_first_rank: bool
) -> None:
    ckpt = Checkpointer(tmp_path / "fast", tmp_path / "slow", keep=Keep(fast=2, last=3))
    assert ckpt._drain is not None
    assert ckpt._drain._process is not None
    ckpt._drain._process.send_signal(signal.SIGSTOP)
    handle = ckpt.save(1, state())
    file = Path(str(handle.local.result(60))) / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-5] + b"spoil")
    ckpt._drain._process.send_signal(signal.SIGCONT)
    drain = ckpt._drain
    if not is_first_rank:
        ckpt._drain = None
    with pytest.raises(SaveError, match=r"step-00000001: .*not what was saved"):
        handle.durable.result(60)
    assert not ckpt.wait(0)
    with pytest.raises(SaveError, match=r"step-00000001: .*not what was saved"):
        ckpt.save(2, state(2))
    arrived = ckpt.save(2, state(2)).durable.result(60)
    ckpt.close()
    drain.stop()
    assert arrived == str(tmp_path / "slow" / "step-00000002")
    assert ckpt.saves[0].error


def test_a_manifest_that_cannot_be_read_for_a_moment_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, errors = Path.read_bytes, [5, 116]

    def shaky(path: Path) -> bytes:
        if errors and path == tmp_path / "fast" / "step-00000001" / "penstock-manifest.json":
            raise OSError(errors.pop(), "of a mount")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", shaky)
    with Checkpointer(tmp_path / "fast", tmp_path / "slow") as ckpt:
        arrived = ckpt.save(1, state()).durable.result(60)
    assert arrived == str(tmp_path / "slow" / "step-00000001")
    assert not errors


@pytest.mark.parametrize("what", ["read_bytes", "stat"])
def test_a_manifest_that_can_never_be_read_ends_the_wait_with_its_name(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, bad = getattr(Path, what), tmp_path / "fast" / "step-00000001"

    def shaky(path: Path, **named: Any) -> Any:
        if path in (bad, bad / "penstock-manifest.json"):
            raise OSError(5, "Input/output error", str(path))
        return true(path, **named)

    most_s = 1.0 if what == "read_bytes" else 60.0
    monkeypatch.setattr("penstock.save.training.arriving.UNREAD_S", most_s)
    monkeypatch.setattr(Path, what, shaky)
    ckpt = Checkpointer(tmp_path / "fast", tmp_path / "slow", on_error="warn")
    first = ckpt.save(1, state())
    if what == "stat":  # its manifest is known by then: what has arrived has
        assert first.durable.result(60) == str(tmp_path / "slow" / "step-00000001")
    else:
        with pytest.raises(SaveError, match=r"step-00000001: cannot be read: .*Input/output error"):
            first.durable.result(60)
    assert ckpt.save(2, state(2)).durable.result(60) == str(tmp_path / "slow" / "step-00000002")
    ckpt.close()


def test_tiers_that_are_refused_leave_the_folder_to_the_next(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="one lies in the other") as refused:
        Checkpointer(tmp_path / "fast", tmp_path / "fast" / "slow")
    begun_s = time.monotonic()
    saved(tmp_path / "fast", 1)
    assert time.monotonic() - begun_s < 60  # else it waits for the first to end
    assert "fast" in str(refused.value)


def test_a_refusal_in_the_background_names_its_step(tmp_path: Path) -> None:
    ckpt = Checkpointer(tmp_path / "fast", on_error="warn")
    tensors = {"w": torch.ones(1000)}
    ckpt.save(1, tensors).local.result(60)
    failed = ckpt.save(2, tensors | {"more": [lambda: 1]})
    with pytest.raises(SaveError, match=r"step 2 was not saved: state\['more'\]\[0\]: .*lambda"):
        failed.local.result(60)
    ckpt.close()


def test_what_has_its_name_on_the_slow_tier_and_cannot_be_read_keeps_nobody_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, opened = tmp_path / "slow", Path.open
    with Checkpointer(slow=slow) as ckpt:
        ckpt.save(1, state(2))

    def shaky(path: Path, *given: Any, **named: Any) -> Any:
        if path == slow / "step-00000001" / "penstock-manifest.json":
            raise OSError(5, "Input/output error", str(path))
        return opened(path, *given, **named)

    monkeypatch.setattr(Path, "open", shaky)
    with Checkpointer(tmp_path / "fast", slow) as ckpt:
        assert ckpt.save(1, state()).durable.result(60) == str(slow / "step-00000001.2")


@pytest.mark.parametrize("what", ["the checkpoint", "the tier"])
def test_a_fast_tier_that_can_never_be_read_again_keeps_nobody_waiting(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, stat, listdir = tmp_path / "fast", Path.stat, os.listdir
    bad = fast / "step-00000001" if what == "the checkpoint" else fast

    def shaky_stat(path: Path, **named: Any) -> Any:
        if path == bad != fast:
            raise OSError(5, "Input/output error", str(path))
        return stat(path, **named)

    def shaky_listdir(path: Any = ".") -> Any:
        if Path(path) == bad:
            raise OSError(5, "Input/output error", str(path))
        return listdir(path)

    monkeypatch.setattr("penstock.save.training.arriving.UNREAD_S", 1.0)
    ckpt = Checkpointer(fast, tmp_path / "slow", on_error="warn")
    assert ckpt._drain is not None
    assert ckpt._drain._process is not None
    ckpt._drain._process.send_signal(signal.SIGSTOP)  # it finds nothing either
    monkeypatch.setattr(Drain, "status", lambda drain: DrainStatus(state="waiting"))
    monkeypatch.setattr(Path, "stat", shaky_stat)
    monkeypatch.setattr(os, "listdir", shaky_listdir)
    handle = ckpt.save(1, state())
    with pytest.raises(SaveError, match=r"step-00000001: cannot be read: .*Input/output error"):
        handle.durable.result(30)
    drain = ckpt._drain
    ckpt.close()
    assert drain.is_alive()  # it goes on: an error may pass
    drain._process.send_signal(signal.SIGCONT)
    drain.stop()


def test_one_that_is_spoilt_keeps_nobody_waiting_for_one_that_stays_on_fast(
    tmp_path: Path,
) -> None:
    ckpt = Checkpointer(
        tmp_path / "fast", tmp_path / "slow", keep=Keep(fast=9, last=1), on_error="warn"
    )
    assert ckpt._drain is not None
    assert ckpt._drain._process is not None
    ckpt._drain._process.send_signal(signal.SIGSTOP)
    handles = [ckpt.save(step, state(step)) for step in (1, 2, 3)]
    for handle in handles:
        handle.local.result(60)
    file = tmp_path / "fast" / "step-00000003" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-5] + b"spoil")
    ckpt._drain._process.send_signal(signal.SIGCONT)
    with pytest.raises(SaveError, match="not what was saved"):
        handles[2].durable.result(60)
    assert handles[1].durable.result(60) == str(tmp_path / "slow" / "step-00000002")
    assert handles[0].durable.result(30) is None
    ckpt.close()


def test_close_closes_the_writer_though_a_progress_of_the_caller_s_fails(tmp_path: Path) -> None:
    ckpt = Checkpointer(
        tmp_path / "fast", tmp_path / "slow", progress=raises(ZeroDivisionError()), drain="5B/s"
    )
    handle = ckpt.save(1, state())
    handle.local.result(60)
    assert not handle.durable.cancel()  # as asyncio.wait_for would
    assert ckpt._writer is not None
    with pytest.raises(ZeroDivisionError):
        ckpt.close()
    assert ckpt._writer._process.poll() is not None
    assert isinstance(handle.durable.exception(0), SaveError)
    assert ckpt._drain is not None
    ckpt._drain.stop()


def test_a_drain_that_a_checkpointer_before_has_left_goes_on_by_the_new_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow, keep = tmp_path / "fast", tmp_path / "slow", Keep(fast=1, last=1)
    with Checkpointer(fast, slow, drain="5B/s", drain_timeout_s=0) as ckpt:
        ckpt.save(1, state())
    first = ckpt._drain
    with Checkpointer(fast, slow, keep=keep) as ckpt:
        assert ckpt._drain is not first
        assert ckpt.save(2, state()).durable.result(240)
        monkeypatch.chdir(tmp_path)
        assert drain_beside("fast", "slow", keep) is ckpt._drain
    assert names(slow) == ["step-00000002"]


@pytest.mark.parametrize("keep", [Keep(fast=1, last=1), Keep(fast=3, last=1)])
def test_saves_that_the_rules_give_up_keep_nobody_waiting(tmp_path: Path, keep: Keep) -> None:
    """Some arrive and go before anybody looks, some stay on fast: none is still to come."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    with Checkpointer(fast, slow, keep=keep) as ckpt:
        handles = [ckpt.save(step, state(step)) for step in range(8)]
        assert ckpt.wait(240)
        risk = ckpt.at_risk()
        assert (risk.step, risk.backlog) == (7, 0)
    last = slow / "step-00000007"
    assert handles[-1].durable.result(0) == str(last)
    assert {handle.durable.result(0) for handle in handles} <= {None} | {
        str(slow / f"step-{step:08d}") for step in range(8)
    }
    assert [one.name for one in find(LocalStore(slow))] == [last.name]


def test_the_slow_tier_alone_serves_a_restart_on_another_node(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "fast", tmp_path / "slow") as ckpt:
        ckpt.save(4, state(4)).durable.result(240)
    other = state(0)
    with Checkpointer(tmp_path / "other-node", tmp_path / "slow") as ckpt:
        assert ckpt.restore(other) == 4
        assert ckpt.restored is not None
        assert ckpt.restored.path == tmp_path / "slow" / "step-00000004"
    assert other["w"][0] == 4.0


def test_a_damaged_newest_is_passed_over_with_the_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, 1, 2, keep=Keep(last=5))
    file = tmp_path / "step-00000002" / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    found = state(0)
    with caplog.at_level(logging.WARNING), Checkpointer(tmp_path, level="full") as ckpt:
        assert ckpt.restore(found) == 1
    assert found["w"][0] == 1.0
    assert "step-00000002" in caplog.text


def test_a_file_that_cannot_be_loaded_is_looked_at_and_remembered(tmp_path: Path) -> None:
    with Checkpointer(tmp_path, keep=Keep(last=5)) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"w": torch.full((1000,), float(step))}).local.result(240)
    file = tmp_path / "step-00000002" / "state.pt"
    content = bytearray(file.read_bytes())
    content[content.index(b"data.pkl") + 60] ^= 0xFF  # in the pickle; sizes stay as they are
    file.write_bytes(content)
    found = {"w": torch.zeros(1000)}
    with Checkpointer(tmp_path, level="sizes") as ckpt:
        assert ckpt.restore(found) == 1
        assert found["w"][0] == 1
        assert ckpt.restore(found) == 1
        assert ckpt.restored is not None
        assert "a restart from it failed" in ckpt.restored.rejected[0][1]


def test_nothing_there_is_the_default_or_a_sentence(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as ckpt:
        assert ckpt.restore(state(), default=0) == 0
        with pytest.raises(SaveError, match="no checkpoint there"):
            ckpt.restore(state())


def test_when_nothing_is_whole_a_default_is_no_way_to_lose_the_run(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "step-00000001" / "state.safetensors").write_bytes(b"short")
    with Checkpointer(tmp_path) as ckpt, pytest.raises(SaveError, match="no checkpoint is whole"):
        ckpt.restore(state(), default=0)


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"model": torch.nn.Linear(4, 2)}, "(?s)model: does not fit.*size mismatch"),
        ({"model": torch.nn.Linear(3, 2), "new": 1}, "has no new"),
        ({"model": {"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}}, "shape"),
        ({"model": {"more": 1}}, "more was not saved"),
    ],
)
def test_a_program_that_has_changed_is_told_and_nothing_older_is_tried(
    tmp_path: Path, now: dict[str, Any], says: str
) -> None:
    with Checkpointer(tmp_path, keep=Keep(last=5)) as ckpt:
        for step in (1, 2):
            ckpt.save(step, {"model": torch.nn.Linear(3, 2)})
        ckpt.save(2, {"model": torch.nn.Linear(3, 2)}).local.result(240)
        with pytest.raises(SaveError, match=says):
            ckpt.restore(now)
        assert ckpt.restored is not None
        assert ckpt.restored.step == 2


def test_a_clock_set_back_changes_nothing_steps_decide(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, keep=Keep(last=5))
    for path in (tmp_path / "step-00000001").iterdir():
        os.utime(path, (2e9, 2e9))
    with Checkpointer(tmp_path) as ckpt:
        assert ckpt.restore(state()) == 2


def test_the_same_device_is_said_and_the_same_folder_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), Checkpointer(tmp_path / "a", tmp_path / "b"):
        pass
    assert "on the same device" in caplog.text
    with pytest.raises(SaveError, match="one folder"):
        Checkpointer(tmp_path / "a", tmp_path / "a")
    with pytest.raises(TierError, match="without a name"):
        Checkpointer(tmp_path / "a", "")  # else where the program runs


def test_a_tier_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TierError, match=r"file/run.*mounted"):
        Checkpointer(tmp_path / "file" / "run")
    with pytest.raises(SaveError, match="needs a folder"):
        Checkpointer()


def test_two_jobs_in_one_folder_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.save.training import gather

    monkeypatch.setattr(gather, "CLAIM_S", 0.3)
    with Checkpointer(tmp_path), pytest.raises(SaveError, match="another job has this folder"):
        WriterSession(str(tmp_path))


def test_a_second_one_of_this_process_is_refused_at_once_until_the_first_is_closed(
    tmp_path: Path,
) -> None:
    begin_s = time.monotonic()
    with Checkpointer(tmp_path):
        with pytest.raises(SaveError, match=r"close\(\) the first"):
            Checkpointer(tmp_path)
        assert time.monotonic() - begin_s < 60
    Checkpointer(tmp_path).close()


def test_one_that_the_program_has_lost_sight_of_is_closed_with_its_last_save(
    tmp_path: Path,
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    first: Any = Checkpointer(fast, slow)
    saved = first.save(1, state(1))
    del first
    second: Any = Checkpointer(fast, slow)
    assert saved.local.done()
    second.ring = [second]  # only the collector finds out
    saved = second.save(2, state(2))
    del second
    with Checkpointer(fast, slow) as third:
        assert saved.local.done()
        assert third.restore(state(0)) == 2


def test_arguments_of_the_wrong_kind_are_answered_in_a_sentence(tmp_path: Path) -> None:
    for wrong, words in (
        ({"keep": 3}, "Keep"), ({"drain": 300e6}, "300MB/s"), ({"progress": True}, "function"),
        ({"level": "everything"}, "level='everything' is not among sizes"),
        ({"on_full": "stop"}, "on_full='stop'"), ({"on_error": None}, "on_error=None"),
        ({"rank_timeout_s": -1}, "rank_timeout_s=-1: seconds, more"),
        ({"drain_timeout_s": "1"}, "drain_timeout_s='1': seconds, 0"),
        ({"slow": None, "on_full": "direct"}, "has to be a folder"),
    ):  # fmt: skip
        with pytest.raises(SaveError, match=words):
            Checkpointer(**{"fast": tmp_path / "fast", "slow": tmp_path / "slow", **wrong})
    assert not (tmp_path / "fast").exists()
    with Checkpointer(tmp_path / "one") as ckpt:
        for step in (7.9, 2**70, -1, "seven", float("nan"), None):
            with pytest.raises(SaveError, match="steps are 0 or more, whole"):
                ckpt.save(step, state())
        for metrics in (0.3, {"loss": "low"}, [1]):
            with pytest.raises(SaveError, match="numbers by name"):
                ckpt.save(7, state(), metrics)
        ckpt.save(np.int64(7), state(), {"loss": np.float32(0.5)})


def test_a_writer_that_dies_is_named_at_the_handle_and_at_the_next_save(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, state(1)).local.result(240)
        assert ckpt._writer is not None
        os.kill(ckpt._writer.pid, signal.SIGKILL)
        handle = ckpt.save(2, state(2))
        with pytest.raises(SaveError, match="killed by signal 9"):
            handle.local.result(240)
        with pytest.raises(SaveError, match="killed by signal 9"):
            ckpt.save(3, state(3))
        ckpt.save(4, state(4)).local.result(240)
    assert names(tmp_path)[-1] == "step-00000004"
    assert "step-00000002" not in names(tmp_path)


def test_a_failed_save_may_be_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING), Checkpointer(tmp_path, on_error="warn") as ckpt:
        assert ckpt._writer is not None
        os.kill(ckpt._writer.pid, signal.SIGKILL)
        assert isinstance(ckpt.save(1, state(1)).local.exception(30), SaveError)
        ckpt.save(2, state(2)).local.result(240)
    assert "killed by signal 9" in caplog.text


def test_a_full_tier_is_said_with_path_and_bytes_and_the_older_stays(
    tmp_path: Path, small_disk: Callable[[int], Any]
) -> None:
    with small_disk(24 << 20) as disk, Checkpointer(disk, keep=Keep(last=9)) as ckpt:
        ckpt.save(1, {"w": np.ones(1 << 20)}).local.result(240)
        with pytest.raises(
            TierFull, match=r"a checkpoint of 44,040,192 bytes, 1\d,\d+,\d+ are free"
        ):
            ckpt.save(2, {"w": np.ones(5 << 20)})
        ckpt._room = lambda whole: str(disk)  # type: ignore[method-assign]  # another took it since
        handle = ckpt.save(2, {"w": np.ones(5 << 20)})
        error = handle.local.exception(30)
        assert "state.safetensors" in str(error)
        assert "full after" in str(error)
        assert names(disk) == ["step-00000001"]
        found = {"w": np.zeros(1 << 20)}
        assert ckpt.restore(found) == 1


def test_no_room_skips_or_fails_as_it_was_told(
    tmp_path: Path, small_disk: Callable[[int], Any]
) -> None:
    with small_disk(24 << 20) as disk:
        with Checkpointer(disk, keep=Keep(last=9), on_full="skip") as ckpt:
            ckpt.save(1, {"w": np.ones(2 << 20)}).local.result(240)
            handle = ckpt.save(2, {"w": np.ones(2 << 20)})
            assert handle.local.result(240) is None
            assert ckpt.saves[-1].is_skipped
        with Checkpointer(disk, tmp_path / "slow", on_full="direct") as ckpt:
            path = ckpt.save(3, {"w": np.ones(10)}).local.result(240)
            assert path == str(disk / "step-00000003")
            path = ckpt.save(4, {"w": np.ones(5 << 20)}).local.result(240)
            assert path == str(tmp_path / "slow" / "step-00000004")


@pytest.mark.parametrize("made", [np.ones, torch.ones])
def test_the_first_save_knows_how_much_room_it_needs(
    tmp_path: Path, small_disk: Callable[[int], Any], made: Any
) -> None:
    with small_disk(24 << 20) as disk:
        weights = {"w": made(7 << 20)}
        with Checkpointer(disk, on_full="skip") as ckpt:
            assert ckpt.save(1, weights).local.result(240) is None
        with Checkpointer(disk, tmp_path / "slow", on_full="direct") as ckpt:
            path = ckpt.save(2, weights).local.result(240)
        assert path == str(tmp_path / "slow" / "step-00000002")
        with Checkpointer(disk, on_error="warn") as ckpt:
            handle = ckpt.save(3, weights)
            assert isinstance(handle.local.exception(30), TierFull)
            assert isinstance(ckpt.save(4, {"w": made(10)}).local.result(240), str)


def test_a_flipped_bit_is_found_before_it_is_trained_on(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, keep=Keep(last=5))
    file = tmp_path / "step-00000002" / "state.safetensors"
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)
    found = state(0)
    with Checkpointer(tmp_path) as ckpt:
        assert ckpt.restore(found) == 1
        assert ckpt.restored is not None
        assert "are not what was saved" in ckpt.restored.rejected[0][1]
    assert found["w"][0] == 1.0


def test_pretrained_weights_beside_them_are_no_checkpoint_to_begin_from(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    tmp_path.joinpath("deep").mkdir()
    for name in ("resnet50-0676ba61.pth", "deep/epoch=99.ckpt", "model.safetensors"):
        torch.save(torch.nn.Linear(9, 9).state_dict(), tmp_path / name)
    with Checkpointer(tmp_path) as ckpt:
        assert ckpt.restore({"model": model}, default=0) == 0
        ckpt.save(50, {"model": model}).local.result(240)
        assert ckpt.restore({"model": model}) == 50


class Moments(NamedTuple):
    mu: Any
    nu: Any
    more: tuple[Any, ...] = ()


def test_containers_come_back_as_they_were_saved_into_others(tmp_path: Path) -> None:
    full = {
        "history": [1, 2, 3], "seen": {"a": 1}, "by number": {7: "x"}, "none": [], "w": np.ones(3),
        "optim": (Moments(np.ones(2), [np.ones(2)]), Moments(1, 2, (3,))), "deep": [[1], {"b": []}],
    }  # fmt: skip
    with Checkpointer(tmp_path, keep=Keep(last=5)) as ckpt:
        ckpt.save(1, full).local.result(240)
        empty: dict[str, Any] = {
            "history": [0], "seen": {}, "by number": {}, "none": [4, 5], "w": np.zeros(3),
            "optim": (Moments(np.zeros(2), [np.zeros(2)]), Moments(0, 0, (0,))), "deep": [],
        }  # fmt: skip
        assert ckpt.restore(empty) == 1
        assert (empty["history"], empty["seen"]) == ([1, 2, 3], {"a": 1})
        assert (empty["by number"], empty["none"]) == ({7: "x"}, [])
        assert empty["deep"] == [[1], {"b": []}]
        assert type(empty["optim"][0]) is Moments
        assert empty["optim"][0].mu.tolist() == empty["optim"][0].nu[0].tolist() == [1, 1]
        assert empty["optim"][1] == Moments(1, 2, (3,))
        with pytest.raises(SaveError, match="where the program has a list"):
            ckpt.restore({"seen": [1]})
        with pytest.raises(SaveError, match="later was not saved"):
            ckpt.restore({"seen": {"later": 1}})


def test_what_would_not_be_found_again_is_refused_at_once(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as ckpt:
        with pytest.raises(SaveError, match="steps are 0 or more"):
            ckpt.save(-1, state())
        with pytest.raises(SaveError, match="nothing to save"):
            ckpt.save(1, {})


def test_a_drain_that_was_killed_is_said_and_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Checkpointer(tmp_path / "fast", tmp_path / "slow") as ckpt:
        ckpt.save(1, state()).durable.result(240)
        assert ckpt._drain is not None
        assert ckpt._drain._process is not None
        ckpt._drain._process.kill()
        ckpt._drain._process.wait()
        assert ckpt.save(2, state(2)).durable.result(240)
    assert "has ended: killed by signal 9" in caplog.text


def test_waiting_where_nothing_can_be_freed_is_an_error(
    tmp_path: Path, small_disk: Callable[[int], Any]
) -> None:
    with small_disk(24 << 20) as disk, Checkpointer(disk, keep=Keep(last=9)) as ckpt:
        ckpt.save(1, {"w": np.ones(2 << 20)}).local.result(240)
        with pytest.raises(TierFull, match=r"no drain can free any: .*, keep fewer$"):
            ckpt.save(2, {"w": np.ones(2 << 20)})


def test_what_the_rules_do_not_keep_goes(tmp_path: Path) -> None:
    saved(tmp_path, *range(1, 7), keep=Keep(last=2, every=3))
    assert names(tmp_path) == ["step-00000003", "step-00000005", "step-00000006"]


def test_a_fast_tier_alone_keeps_as_many_as_it_was_told(tmp_path: Path) -> None:
    saved(tmp_path / "told", 1, 2, 3, keep=Keep(fast=2))
    assert names(tmp_path / "told") == ["step-00000002", "step-00000003"]
    saved(tmp_path / "untold", 1, 2, 3)
    assert len(names(tmp_path / "untold")) == 3


def test_a_committed_name_is_never_written_again(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    before = (tmp_path / "step-00000001" / "state.safetensors").read_bytes()
    with Checkpointer(tmp_path, keep=Keep(last=5)) as ckpt:
        ckpt.save(1, state(9)).local.result(240)
    assert (tmp_path / "step-00000001" / "state.safetensors").read_bytes() == before
    assert names(tmp_path) == ["step-00000001", "step-00000001.2"]


def test_a_forked_worker_does_not_keep_the_writer_alive(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as ckpt:
        assert ckpt._writer is not None
        child = os.fork()
        if not child:
            time.sleep(200)
            os._exit(0)
        try:
            begin_s = time.monotonic()
            ckpt.close()
            assert time.monotonic() - begin_s < 150  # the worker sleeps on
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


JOB = """
import os, sys, time
import numpy as np
from penstock.save.training.checkpointer import Checkpointer, Keep
from penstock.save.drain.drainer import Drainer

fast, slow, until = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
mine = {"w": np.zeros(300_000), "step": 0}
with Checkpointer(fast, slow, keep=Keep(fast=2, last=2)) as ckpt:
    step = ckpt.restore(mine, default=0)
    assert (mine["w"] == step).all() and mine["step"] == step, "a mixture"
    print("began at", step, flush=True)
    while step < until:
        step += 1
        mine["w"][:] = step
        mine["step"] = step
        handle = ckpt.save(step, mine)
        handle.local.add_done_callback(lambda done, step=step: done.exception() or os.write(
            1, f"local {step}\\n".encode()))
"""


def shared() -> set[str]:
    """What of Python's or torch's is in /dev/shm; others use it meanwhile."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("psm_", "sem.", "torch_"))}


@pytest.mark.alone
@pytest.mark.parametrize("victims", ["training", "writer", "both"])
def test_killed_at_random_it_resumes_from_what_was_said_to_be_there(
    tmp_path: Path, victims: str
) -> None:
    """A short round; lab/benchmarks/soak_save.py does a thousand."""
    chance = random.Random(7)
    program = tmp_path / "job.py"
    program.write_text(JOB)
    before, promised = shared(), 0
    for turn in range(4):
        job = subprocess.Popen(
            [sys.executable, program, tmp_path / "fast", "", "100000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert job.stdout is not None
        first = job.stdout.readline()
        assert first.startswith("began at"), first + (job.stderr.read() if job.stderr else "")
        assert int(first.split()[-1]) >= promised
        if turn == 3:  # however slow the machine is, something is there in the end
            promised = max(promised, int(job.stdout.readline().split()[1]))
        time.sleep(chance.uniform(0.05, 0.6))
        writers = children(job.pid)
        for pid in (writers if victims != "training" else []) + (
            [job.pid] if victims != "writer" else []
        ):
            os.kill(pid, signal.SIGKILL)
        told, _ = job.communicate(timeout=240)
        said = [int(line.split()[1]) for line in told.splitlines() if line.startswith("local")]
        promised = max([promised, *said])
        for pid in writers:
            gone(pid)
    left = [path for path in (tmp_path / "fast").glob("*") if path.suffix != ".part"]
    assert all(verify(one, "full").is_whole for one in find(LocalStore(tmp_path / "fast")))
    assert left
    assert shared() <= before


def children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


def gone(pid: int) -> None:
    """Returns when a process has ended: a writer finishes what it was given."""
    end_s = time.monotonic() + 240
    while time.monotonic() < end_s:
        try:
            if ") Z" in Path(f"/proc/{pid}/stat").read_text():
                return
        except (FileNotFoundError, ProcessLookupError):
            return
        time.sleep(0.01)
    raise AssertionError(f"process {pid} does not end")


def test_the_report_shows_the_block_and_the_writer_s_own_writes(
    recorded: Callable[..., Any], tmp_path: Path
) -> None:
    run = recorded(
        textwrap.dedent(
            f"""
            import torch
            from penstock.save.training.checkpointer import Checkpointer
            model = torch.nn.Linear(1000, 1000)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with Checkpointer({str(tmp_path / "fast")!r}) as ckpt:
                for step in range(12):
                    model(torch.randn(8, 1000)).sum().backward()
                    optimizer.step()
                    if step in (4, 8):
                        ckpt.save(step, {{"model": model}}).local.result(240)
                [first, second] = ckpt.saves
                assert first.is_first and not second.is_first
            """
        )
    )
    spans = run.sql(
        "select name, count(*), count(distinct process) from spans "
        "where name in ('checkpoint', 'snapshot', 'local commit') group by name order by name"
    ).fetchall()
    assert spans == [("checkpoint", 2, 1), ("local commit", 2, 1), ("snapshot", 2, 1)]


def test_what_is_known_of_each_save_is_left_in_the_run_s_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []
    monkeypatch.setattr("penstock.recording.recorder.is_recording", lambda: True)
    monkeypatch.setattr("penstock.recording.recorder.begin", lambda *facts: None)
    monkeypatch.setattr(
        "penstock.recording.recorder.note",
        lambda key, said: told.append(said.split()) if key == "save" else None,
    )
    with Checkpointer(tmp_path / "fast", tmp_path / "slow") as ckpt:
        for number in range(2):
            for _ in range(20):
                time.sleep(0.002)
                ckpt.tick()
            ckpt.save(10 * number, {"x": np.zeros(1000)}).durable.result(60)
        for _ in range(20):
            ckpt.tick()
    saves = ckpt.saves
    assert [int(said[0]) for said in told] == list(range(1, len(told) + 1))
    for number, save in enumerate(saves):
        begin_ns = int(save.begin_unix_s * 1e9)
        last = [said for said in told if said[2] == str(number)][-1]
        assert last[3:8] == [str(save.step), str(begin_ns), "good", str(int(number == 0)), last[7]]
        assert int(last[7]) == save.size_bytes
        known = (save.block_s, save.waited_s, save.local_s, save.durable_s)
        assert last[8:12] == [f"{one:.6f}" for one in known]
        assert last[12:14] == [f"{one:.6f}" for one in (save.lost_s, save.lost_to_durable_s)]
        assert last[14:] == ["background"]


def modes(folder: Path, is_busy: bool, n_saves: int, **options: Any) -> list[bool]:
    """Which of n_saves blocked, where a save's writing holds a step up for as long as it takes."""
    large = {"w": np.zeros(2 << 20)}
    with Checkpointer(folder, **options) as ckpt:
        for number in range(n_saves):
            handle = ckpt.save(number, large)
            for _ in range(12):
                if is_busy:
                    handle.local.result(60)
                time.sleep(0.01)
                ckpt.tick()
            handle.local.result(60)
        return [save.is_blocking for save in ckpt.saves]


def test_saves_block_where_in_the_background_they_cost_the_training_more(tmp_path: Path) -> None:
    # The first makes the arena; what the fourth cost is known while the fifth is written.
    assert modes(tmp_path / "busy", True, 8) == [False] * 5 + [True] * 3
    assert modes(tmp_path / "free", False, 8) == [False] * 8
    assert modes(tmp_path / "said", True, 6, mode="background") == [False] * 6
    assert modes(tmp_path / "asked", False, 2, mode="blocking") == [True] * 2


def test_a_save_that_blocks_is_local_when_it_returns(tmp_path: Path) -> None:
    with Checkpointer(tmp_path / "fast", mode="blocking") as ckpt:
        handle = ckpt.save(1, state())
        assert handle.local.done()
        assert latest_valid(tmp_path / "fast").step == 1
        save = ckpt.saves[-1]
        assert save.block_s == save.local_s


def test_what_a_save_that_blocks_has_met_is_raised_by_it(tmp_path: Path) -> None:
    good, bad = {"w": torch.ones(9)}, {"w": torch.ones(9), "more": [lambda: 1]}
    with Checkpointer(tmp_path / "fast", mode="blocking") as ckpt:
        ckpt.save(1, good)
        with pytest.raises(SaveError, match=r"step 2 was not saved: .*lambda"):
            ckpt.save(2, bad)
        ckpt.save(3, good)  # it was told already
        assert [save.step for save in ckpt.saves if not save.error] == [1, 3]
    with Checkpointer(tmp_path / "warned", mode="blocking", on_error="warn") as ckpt:
        ckpt.save(1, good)
        assert ckpt.save(2, bad).local.exception() is not None
        assert not ckpt.wait()


def test_a_slow_tier_that_is_not_mounted_is_told_when_a_job_begins(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    with Checkpointer(fast, slow) as ckpt:
        ckpt.save(1, state()).durable.result(60)
    away = slow.rename(tmp_path / "away")
    with pytest.raises(TierError, match="is it mounted"):
        Checkpointer(fast, slow)
    assert not slow.exists()
    away.rename(slow)
    with Checkpointer(fast, slow) as ckpt:
        assert ckpt.restore(state(2)) == 1


def test_another_run_s_is_passed_over_also_where_the_fast_tier_is_named_through_a_link(
    tmp_path: Path,
) -> None:
    slow = tmp_path / "slow"
    for step, name in enumerate(("one", "two"), 1):
        with Checkpointer(tmp_path / name, slow) as ckpt:
            ckpt.save(step, state(step)).durable.result(60)
    shutil.rmtree(tmp_path / "one")
    (tmp_path / "one").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "one")
    is_wanted = Tiers.of(tmp_path / "link", slow).own_first(lambda one: True)
    assert [one.name for one in find(LocalStore(slow)) if is_wanted(one)] == ["step-00000001"]


def test_a_drain_that_a_job_before_has_left_at_work_is_no_reason_to_give_up(
    tmp_path: Path,
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    words = ["save", "drain", "--watch", str(fast), str(slow)]
    left = subprocess.Popen([sys.executable, "-m", "penstock", *words], stderr=subprocess.DEVNULL)
    try:
        while read_status(fast) is None:
            time.sleep(0.05)
        with Checkpointer(fast, slow) as ckpt:
            assert ckpt.save(1, state()).durable.result(60)  # by the one that was left
            time.sleep(3.0)  # once our own had ended and was started again by now
            left.terminate()
            left.wait(60)
            assert ckpt.save(2, state()).durable.result(60)
            assert ckpt._n_restarts == 0
            assert ckpt._drain is not None
            assert ckpt._drain.is_alive()
    finally:
        left.kill()
        left.wait()


def test_a_home_is_spelled_out_for_the_drain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "fast").mkdir()
    drain = drain_beside("~/fast", "~/slow")
    drain.stop()
    assert (drain.fast, drain.slow) == (str(tmp_path / "fast"), str(tmp_path / "slow"))


def test_arrays_that_come_back_may_be_written_into(tmp_path: Path) -> None:
    saved(tmp_path, 7)
    found: dict[str, Any] = {"w": None, "step": 0}
    with Checkpointer(tmp_path) as ckpt:
        assert ckpt.restore(found) == 7
    found["w"] += 1
    assert found["w"].tolist() == [8.0] * 1000


def test_views_of_several_lengths_at_one_address_are_saved(tmp_path: Path) -> None:
    whole = np.arange(10.0)
    views = {str(n): torch.from_numpy(whole[:n]) for n in (4, 10, 7)}
    with Checkpointer(tmp_path) as ckpt:
        for step in (1, 2):  # the second by the plan of the first
            ckpt.save(step, views).local.result(240)
        found = {name: torch.zeros(len(one)) for name, one in views.items()}
        assert ckpt.restore(found) == 2
    assert {name: one.tolist() for name, one in found.items()} == {
        name: one.tolist() for name, one in views.items()
    }


def test_the_step_of_one_whose_manifest_is_gone_is_told_by_its_folder(tmp_path: Path) -> None:
    with Checkpointer(tmp_path) as ckpt:
        ckpt.save(5, {"w": torch.ones(3)}).local.result(240)
    (tmp_path / "step-00000005" / "penstock-manifest.json").unlink()
    with Checkpointer(tmp_path) as ckpt:
        assert ckpt.restore({"w": torch.zeros(3)}, default=0) == 5


def test_a_program_that_waits_for_the_drain_is_told_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.save.training.checkpointer.TOLD_AFTER_S", 0.2)
    with Checkpointer(tmp_path / "fast", tmp_path / "slow", drain="0.1MB/s") as ckpt:
        ckpt.save(1, {"w": np.ones(20_000)})
    said = [one.getMessage() for one in caplog.records if "are durable" in one.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"waiting until 1 checkpoints of {tmp_path}/fast are durable")


def test_a_mode_that_there_is_none_of_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="mode='fast' is not among auto, background, blocking"):
        Checkpointer(tmp_path / "fast", mode="fast")


def test_lost_time_is_measured_from_the_optimizer_s_own_steps(tmp_path: Path) -> None:
    model = torch.nn.Linear(10, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    other = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)

    def step() -> None:
        model(torch.randn(8, 10)).sum().backward()
        optimizer.step()
        other.step()  # a second optimizer makes no second step

    with Checkpointer(tmp_path) as ckpt:
        for _ in range(30):
            step()
        ckpt.save(30, {"model": model}).local.result(240)
        assert ckpt.saves[-1].lost_s is None  # no step has ended since
        for _ in range(5):
            step()
        assert len(ckpt._ledger.steps) == 35
        lost_s = ckpt.saves[-1].lost_s
        block_s = ckpt.saves[-1].block_s
        assert lost_s is not None
        assert block_s is not None
        assert lost_s >= block_s * 0.9


@pytest.mark.parametrize(
    ("text", "bps"),
    [
        ("300MB/s", 300e6),
        ("1.5 GiB/s", 1.5 * 2**30),
        ("20 kB/s", 20e3),
        ("5B/s", 5.0),
        (None, None),
    ],
)
def test_rates_are_read(text: str | None, bps: float | None) -> None:
    assert rate_bps(text) == bps


@pytest.mark.parametrize("text", ["fast", "300", "MB/s", "-5MB/s", "0MB/s"])
def test_what_is_no_rate_is_refused(text: str) -> None:
    with pytest.raises(SaveError, match="is no rate"):
        rate_bps(text)


def test_a_restore_right_after_a_save_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Checkpointer(tmp_path) as ckpt:
        write = ckpt._write

        def late(*going: Any) -> None:
            time.sleep(0.3)
            write(*going)

        monkeypatch.setattr(ckpt, "_write", late)
        ckpt.save(1, {"step": 1})
        assert ckpt.restore({"step": 0}) == 1


def test_jax_arrays_come_back_where_they_were(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="JAX's arrays need JAX")
    import jax.numpy as jnp

    parameters = {"w": jnp.arange(6.0).reshape(2, 3), "b": jnp.ones(3, jnp.bfloat16)}
    with Checkpointer(tmp_path) as ckpt:
        ckpt.save(1, {"params": parameters, "step": 1})
        found: dict[str, Any] = {
            "params": jax.tree.map(jnp.zeros_like, parameters),
            "step": 0,
        }
        assert ckpt.restore(found) == 1
    assert jax.tree.all(
        jax.tree.map(lambda a, b: bool((a == b).all()), found["params"], parameters)
    )
    assert found["params"]["b"].dtype == jnp.bfloat16
    assert found["step"] == 1


def test_a_checkpoint_behind_s3_serves_a_restart_on_another_node(
    s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    slow = f"s3://{BUCKET}-restored/run"
    store: Any = open_store(slow)
    store.call("create_bucket", Bucket=f"{BUCKET}-restored")
    with Checkpointer(tmp_path / "node-1", slow) as ckpt:
        for step in (1, 2):
            ckpt.save(step, state(step)).durable.result(240)
    with Checkpointer(tmp_path / "node-2", slow) as ckpt:
        found = state(0)
        assert ckpt.restore(found) == 2
        assert found["w"].tolist() == [2.0] * 1000


def test_a_tier_that_is_mounted_read_only_is_read_and_named(
    tmp_path: Path, small_disk: Callable[[int], Any]
) -> None:
    with small_disk(8 << 20) as disk:
        saved_apart = tmp_path / "apart"
        saved_apart.mkdir()
        saved(disk, 1, 2)
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        assert latest_valid(tmp_path / "none", disk, "full").step == 2
        with pytest.raises(TierError, match="Read-only file system"):
            Checkpointer(disk)
        with pytest.raises(TierError, match="Read-only file system"):
            Drainer(saved_apart, disk).__enter__()


@pytest.mark.parametrize(
    ("why", "told"),
    [
        ("step 4 was given up: rank 1 has ended", "step 4 was given up: rank 1 has ended"),
        ("step 4: the state is empty", "step 4: the state is empty"),
        ("step 40 is newer", "step 4 was not saved: step 40 is newer"),
        ("/nvme: no room", "step 4 was not saved: /nvme: no room"),
    ],
)
def test_a_save_that_failed_names_its_step_once(why: str, told: str) -> None:
    from penstock.save.training.arguments import of_step as _of_step

    assert _of_step(4, why, " was not saved:") == told


INTERRUPTED = """
import signal, sys
import numpy as np
from penstock.save.training.checkpointer import Checkpointer

ckpt = Checkpointer(sys.argv[1])
ckpt._place.is_idle.clear = lambda: signal.raise_signal(signal.SIGINT)  # just then
try:
    ckpt.save(1, {"w": np.ones(10)})
except KeyboardInterrupt:
    print("interrupted")
del ckpt._place.is_idle.clear
ckpt.close()
"""


def test_an_interrupt_as_a_save_is_handed_over_loses_nothing_and_hangs_nothing(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", INTERRUPTED, tmp_path / "fast"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "interrupted\n"
    assert latest_valid(tmp_path / "fast").step == 1


def test_one_whose_manifest_was_removed_is_still_the_newest_by_its_folder_s_name(
    tmp_path: Path,
) -> None:
    saved(tmp_path / "fast", 3, 700)
    (tmp_path / "fast" / "step-00000700" / "penstock-manifest.json").unlink()
    found = state(9)
    with Checkpointer(tmp_path / "fast") as ckpt:
        assert ckpt.restore(found) == 700
    assert found["step"] == 700
