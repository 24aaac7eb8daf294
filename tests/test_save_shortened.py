"""Files that nothing can check: a copy proves nothing, a short file replaces no longer copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.saves import drained, safetensors

from penstock.places.stores import LocalStore
from penstock.save.drain.recover import fetch, recover
from penstock.save.drain.retention import Keep
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.verify import BY_NAME, NOT_WHOLE, UNCHECKED, WHOLE, latest_valid, verify

NOW = DrainSettings(settle_s=0, tries=1)
LENGTH = 30_000


def _raw(save: int, length: int = LENGTH) -> bytes:
    return (bytes([200 + save, 255, save]) * length)[:length]


def _save(fast: Path, names: tuple[str, ...], save: int, last: int = LENGTH) -> None:
    """Write the files of a save; the last file has `last` bytes."""
    at_s = 1_700_000_000 + 1000 * save
    for name in names:
        path = fast / name.format(k=save)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_raw(save, last if name == names[-1] else LENGTH))
        os.utime(path, (at_s, at_s))


def _states(tier: Path) -> dict[str, str]:
    return {one.name: verify(one, "full").state for one in find(LocalStore(tier))}


FIXED = ("last_model.bin", "last_optim.bin")
STEPS = ("it_{k}/model.raw", "it_{k}/optim.raw")


def test_a_copy_of_unchecked_contents_is_unchecked_on_each_tier(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    _save(fast, FIXED, 1)
    assert drained(fast, slow) == []
    assert _states(fast) == _states(slow) == {"last_model.bin": UNCHECKED}
    [copy] = find(LocalStore(slow))
    fetched = tmp_path / "fetched"
    fetch(copy, fetched)
    assert _states(fetched) == {"last_model.bin": UNCHECKED}
    choice = latest_valid(fast, slow)
    assert choice.path == fast / "last_model.bin"
    assert choice.state == UNCHECKED
    assert choice.rejected == ()


def test_a_copy_of_checked_contents_is_whole_and_of_a_part_complete_by_name(
    tmp_path: Path,
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for name in ("step_1/model.safetensors", "step_2/model.safetensors"):
        (fast / name).parent.mkdir(parents=True)
        (fast / name).write_bytes(safetensors(1))
    (fast / "step_2/small.raw").write_bytes(b"\xff\x00")
    assert drained(fast, slow) == []
    assert _states(slow) == {"step_2": BY_NAME, "step_1": WHOLE}


def test_a_short_file_under_a_fixed_name_replaces_no_longer_copy(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for save in (1, 2, 3):
        _save(fast, FIXED, save)
        assert drained(fast, slow) == []
    _save(fast, FIXED, 4, LENGTH // 2)
    assert drained(fast, slow) == []
    assert (slow / FIXED[1]).read_bytes() == _raw(3)
    assert (slow / "last_optim.2.bin").read_bytes() == _raw(4, LENGTH // 2)
    choice, _ = recover(fast, slow, NOW)
    assert choice.path == slow / FIXED[0]
    assert "15,000 bytes, and 30,000 or more in the save before" in str(choice.rejected)
    _save(fast, FIXED, 5)  # the next whole save replaces the older whole copy
    assert drained(fast, slow) == []
    assert (slow / FIXED[1]).read_bytes() == _raw(5)
    choice, _ = recover(fast, slow, NOW)
    assert choice.path == fast / FIXED[0]


@pytest.mark.parametrize("names", [STEPS, ("net-{k}.bin", "optim-{k}.bin")])
def test_a_short_file_of_a_step_takes_no_place_of_the_step_before(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    keep = Keep(last=1, fast=1, foreign=True)
    for save in (1, 2, 3):
        _save(fast, names, save)
        assert drained(fast, slow, keep) == []
    _save(fast, names, 4, LENGTH // 2)
    assert drained(fast, slow, keep) == []
    assert (slow / names[1].format(k=3)).read_bytes() == _raw(3)
    choice, _ = recover(fast, slow, NOW)
    assert choice.step == 3


@pytest.mark.parametrize("share", [0.95, 1.0, 1.5])
def test_lengths_that_differ_a_little_are_no_sign(tmp_path: Path, share: float) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for save in (1, 2, 3):
        _save(fast, FIXED, save)
        assert drained(fast, slow) == []
    _save(fast, FIXED, 4, round(share * LENGTH))
    assert drained(fast, slow) == []
    assert (slow / FIXED[1]).read_bytes() == _raw(4, round(share * LENGTH))


def test_a_second_save_of_the_shorter_length_is_no_sign(tmp_path: Path) -> None:
    for save, length in ((1, LENGTH), (2, LENGTH), (3, LENGTH // 2), (4, LENGTH // 2)):
        _save(tmp_path, STEPS, save, length)
    doubts = {one.step: bool(one.doubt) for one in find(LocalStore(tmp_path))}
    assert doubts == {1: False, 2: False, 3: True, 4: False}


def test_a_format_that_shows_its_length_is_judged_by_the_format(tmp_path: Path) -> None:
    import numpy as np

    for save, length in ((1, 5000), (2, 5000), (3, 100)):
        at = tmp_path / f"step_{save}"
        at.mkdir()
        np.save(at / "model.npy", np.full(length, save))
        os.utime(at / "model.npy", (1_700_000_000 + 1000 * save,) * 2)
    assert not any(one.doubt for one in find(LocalStore(tmp_path)))


def test_a_cut_file_of_a_known_format_is_damaged_and_ends_no_search(tmp_path: Path) -> None:
    for save, length in ((1, 5000), (2, 5000), (3, 100)):
        path = tmp_path / f"step_{save}.npz"
        path.write_bytes(b"PK\3\4" + bytes([save]) * length)
        os.utime(path, (1_700_000_000 + 1000 * save,) * 2)
    assert not any(one.doubt for one in find(LocalStore(tmp_path)))


ORBAX_STEP = (
    "run/{k}/_CHECKPOINT_METADATA", "run/{k}/default/_METADATA", "run/{k}/default/d/ab",
    "run/{k}/default/manifest.ocdbt",
)  # fmt: skip
TENSORFLOW = ("ckpt-{k}.data-00000-of-00001", "ckpt-{k}.index")
SAVED_MODEL = (
    "export/{k}/saved_model.pb", "export/{k}/variables/variables.data-00000-of-00001",
    "export/{k}/variables/variables.index",
)  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "names"),
    [("orbax", ORBAX_STEP), ("tensorflow", TENSORFLOW), ("savedmodel", SAVED_MODEL)],
)
def test_a_file_whose_length_an_index_states_may_be_shorter_than_before(
    tmp_path: Path, kind: str, names: tuple[str, ...]
) -> None:
    """The manifest of a whole save of Orbax has 230 to 290 bytes.  One that was cut short does not
    pass `verify`, as the manifests of this test."""
    for save in (1, 2, 3):
        _save(tmp_path, names, save, 230 if save == 3 else 290)
    found = find(LocalStore(tmp_path))
    assert [(one.kind, one.step, one.doubt) for one in found] == [
        (kind, save, "") for save in (3, 2, 1)
    ]
    assert {verify(one, "sizes").state for one in found} == {NOT_WHOLE}
