"""Two saves under the same names, of which only the times of writing show the first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find
from penstock.save.verify import UNCHECKED, WHOLE, latest_valid, verify
from saves import drained, state

LAYOUTS = {
    "pair": ("last_model.pt", "last_optim.pt"),
    "parts": ("model.pt", "optim.pt", "sched.pt"),
    "folder": ("last/model.pt", "last/optim.pt", "last/rng.pt"),
    "ranks": ("last/rank_0.pt", "last/rank_1.pt", "last/rank_2.pt"),
}
NOW = DrainSettings(settle_s=0, tries=1)
T = 1_700_000_000.0


def _saved(folder: Path, names: tuple[str, ...], save: int, gaps_s: tuple[float, ...]) -> None:
    at_s = 1_700_000_000.0 + 1000 * save
    for name, gap_s in zip(names, gaps_s, strict=False):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        at_s += gap_s
        (folder / name).write_bytes(_torch(save))
        os.utime(folder / name, (at_s, at_s))


def _torch(save: int) -> bytes:
    import io

    import torch

    file = io.BytesIO()
    torch.save({"weight": torch.full((4,), float(save))}, file)
    return file.getvalue()


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("gap_s", [5, 10, 50, 500])
def test_files_with_a_pause_between_them_are_unchecked(
    tmp_path: Path, names: tuple[str, ...], gap_s: float
) -> None:
    _saved(tmp_path, (*names[1:], names[0]), 1, (*[0.1] * (len(names) - 1), gap_s))
    [one] = find(LocalStore(tmp_path))
    assert one.doubt.endswith("of one save or of two")
    verdict = verify(one, "full")
    assert verdict.is_whole
    assert verdict.state == UNCHECKED


@pytest.mark.parametrize("names", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("gaps_s", [(0, 0, 0), (1, 1.5, 1), (20, 25, 12)])
def test_files_of_one_save_are_whole(
    tmp_path: Path, names: tuple[str, ...], gaps_s: tuple[float, ...]
) -> None:
    """Also of a slow save, if it is slow throughout."""
    gaps_s = gaps_s if len(names) > 2 else (0, min(gaps_s[1], 1.5))  # nothing to compare with
    _saved(tmp_path, names, 1, gaps_s)
    [one] = find(LocalStore(tmp_path))
    assert not one.doubt


def test_a_restart_begins_from_an_older_save_that_is_checked(tmp_path: Path) -> None:
    _saved(tmp_path, ("best_model.pt", "best_optim.pt"), 1, (0, 1))
    _saved(tmp_path, ("last_model.pt", "last_optim.pt"), 2, (0, 10))
    choice = latest_valid(tmp_path)
    assert choice.checkpoint is not None
    assert choice.checkpoint.name == "best_model.pt"
    assert any("last_model.pt" in str(one) for one in choice.rejected)


def test_the_only_checkpoint_is_named_also_unchecked(tmp_path: Path) -> None:
    _saved(tmp_path, ("last_model.pt", "last_optim.pt"), 2, (0, 10))
    choice = latest_valid(tmp_path)
    assert choice.checkpoint is not None


def test_a_copy_is_unchecked_until_a_save_without_doubt(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    for save, gap_s in ((1, 10), (2, 1), (3, 10)):
        _saved(fast, LAYOUTS["pair"], save, (0, gap_s))
        with Drainer(fast, slow, NOW) as working:
            assert any(one.doubt for one in working.backlog()) == (save == 1)
            assert working.once() == []
        [copy] = find(LocalStore(slow))
        assert bool(copy.doubt) == (save == 1)
        assert verify(copy, "full").state == (UNCHECKED if save == 1 else WHOLE)
    assert {(slow / name).read_bytes() for name in LAYOUTS["pair"]} == {_torch(3)}


def test_the_rest_of_a_save_that_was_copied_too_early_comes_later(tmp_path: Path) -> None:
    """The copy is of the model of a save and the optimizer of the save before."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    _saved(fast, ("last_optim.pt",), 1, (0,))
    _saved(fast, ("last_model.pt",), 2, (0,))
    for is_early in (True, False):
        if not is_early:
            _saved(fast, ("last_optim.pt",), 2, (1,))
        with Drainer(fast, slow, NOW) as working:
            assert working.once() == []
        [copy] = find(LocalStore(slow))
        assert bool(copy.doubt) == is_early
    assert {(slow / name).read_bytes() for name in LAYOUTS["pair"]} == {_torch(2)}


@pytest.mark.parametrize("usual_s", [0.05, 2, 9])
def test_an_order_that_begins_again_shows_two_saves_after_a_slow_save_too(
    tmp_path: Path, usual_s: float
) -> None:
    """The copied save paused between its two files, as on a busy machine."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for name, at_s in (("model", T), ("optim", T + usual_s)):
        state(fast / f"{name}.safetensors", 4, at_s=at_s)
    assert drained(fast, slow) == []
    state(fast / "optim.safetensors", 5, at_s=T + 100)
    state(fast / "model.safetensors", 6, at_s=T + 104)
    left = drained(fast, slow)
    choice = latest_valid(fast, slow)
    if usual_s < 4:
        assert "of two saves" in left[0]
        assert choice.path == slow / "model.safetensors"
    else:  # the pause is not longer than those of the program
        assert choice.state == UNCHECKED
        assert choice.checkpoint is not None
        assert choice.checkpoint.doubt.endswith("of one save or of two")
