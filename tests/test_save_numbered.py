"""Numbers in names that count parts and no steps: layouts with the checkpoints that they are."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.working import DrainSettings
from penstock.save.find.formats import find

SAFETENSORS = b'\x40\0\0\0\0\0\0\0{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
BEGIN_S, STEP_S = 1_700_000_000, 100
Files = tuple[str, ...]


@cache
def _torch() -> bytes:
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, file)
    return file.getvalue()


def _write(folder: Path, saves: Iterable[Files], begin_s: float = BEGIN_S) -> None:
    for number, save in enumerate(saves):
        for place, name in enumerate(save):
            data = SAFETENSORS.ljust(72) + bytes(4) if name.endswith(".safetensors") else _torch()
            data = b'{"step": 1}' if name.endswith(".json") else data
            (folder / name).write_bytes(data)
            at_s = begin_s + number * STEP_S + place / 10
            os.utime(folder / name, (at_s, at_s))


def _found(folder: Path) -> dict[Files, int | None]:
    return {tuple(sorted(f.name for f in one.files)): one.step for one in find(LocalStore(folder))}


def _of(steps: Iterable[int], files_of: Callable[[int], Files]) -> dict[Files, int | None]:
    return {files_of(step): step for step in steps}


LAST = ("last.pt", *(f"last_optim{number}.pt" for number in range(1, 6)))
# Saves with STEP_S between them.  Each set of names is one checkpoint, with its step.
LAYOUTS: dict[str, dict[Files, int | None]] = {
    "last with numbered optimizers": {LAST: None},
    "best and last, numbered": {
        tuple(f"{which}{part}.pt" for part in ("", "_optim1", "_optim2")): None
        for which in ("best", "last")
    },
    "last with words": {
        ("last_model.pt", "last_opt_0.pt", "last_opt_1.pt", "last_rng0.pt", "last_rng1.pt"): None
    },
    "optimizers and schedulers from 0": {
        ("model.pt", "optimizer_0.pt", "optimizer_1.pt", "scheduler_0.pt", "scheduler_1.pt"): None
    },
    "the first optimizer without a number": {
        ("model.pt", "optimizer.pt", "optimizer_1.pt", "optimizer_2.pt"): None
    },
    "averages": {("model.pt", "ema1.pt", "ema2.pt", "optim.pt"): None},
    "critics": {
        ("actor.pt", "critic1.pt", "critic2.pt", "target_critic1.pt", "target_critic2.pt"): None
    },
    "encoders": {("encoder_1.pt", "encoder_2.pt", "decoder.pt", "optimizer.pt"): None},
    "random states of ranks": {
        ("model.pt", "optim.pt", "dataloader0.pt", "dataloader1.pt", "rng0.pt", "rng1.pt"): None
    },
    "layers": {tuple(f"layer_{number:02d}-model.pt" for number in range(4)): None},
    "experts": {("model.pt", *(f"expert_{number}.pt" for number in range(4))): None},
    "folds": {tuple(f"model_fold{number}.pt" for number in range(5)): None},
    "a step, and random states of ranks": _of(
        (10, 20), lambda s: tuple(f"step_{s}_{part}.pt" for part in ("model", "rng_0", "rng_1"))
    ),
    "a step, and numbered critics": _of(
        (500, 1000),
        lambda s: tuple(f"{part}_{s}.pt" for part in ("actor", "qf1", "qf2", "qf1_target")),
    ),
    "averages with a decay": _of(
        (1000, 2000), lambda s: (f"model_{s}.pt", f"ema_0.9999_{s}.pt", f"opt_{s}.pt")
    ),
    "steps with zeros": _of((100, 200), lambda s: (f"model_{s:06d}.pt", f"optim_{s:06d}.pt")),
    "small steps": _of((1, 2, 3), lambda s: (f"model-{s}.pt", f"optim-{s}.pt")),
    "steps beside last": {
        **_of((1, 2, 3), lambda s: (f"model-{s}.pt", f"optim-{s}.pt")),
        ("last.pt",): None,
    },
    "one file a step": _of((1, 2, 3), lambda s: (f"model-{s}.pt",)),
    "epoch and step": {("epoch=3-step=400.ckpt",): 400, ("epoch=4-step=500.ckpt",): 500},
    "times of day": {
        tuple(f"{part}_20261125_{hour}1500.pt" for part in ("model", "optim")): None
        for hour in (10, 11)
    },
    "a generator and discriminators": _of(
        (1000, 2000), lambda s: (f"G_{s}.pth", f"D_{s}.pth", f"DUR_{s}.pth")
    ),
    "only an optimizer keeps its steps": {
        ("model.pt",): None,
        **_of((1, 2, 3), lambda s: (f"optim{s}.pt",)),
    },
    "safetensors": {("model.safetensors", "optimizer_0.bin", "optimizer_1.bin"): None},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_files_of_a_layout_are_the_checkpoints_that_they_are(
    layout: str, tmp_path: Path
) -> None:
    truth = LAYOUTS[layout]
    _write(tmp_path, truth)
    assert _found(tmp_path) == {tuple(sorted(files)): step for files, step in truth.items()}


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_an_alias_of_the_last_step_takes_no_part_from_it(
    link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    _write(tmp_path, [("model_100.pt", "optim_100.pt"), ("model_200.pt", "optim_200.pt")])
    for part in ("model", "optim"):
        link(tmp_path / f"{part}_200.pt", tmp_path / f"last_{part}.pt")
    found = _found(tmp_path)
    for step in (100, 200):
        assert found[f"model_{step}.pt", f"optim_{step}.pt"] == step


def test_the_checkpoint_stays_one_while_a_save_goes_on(tmp_path: Path) -> None:
    """A save in the order of the names, and one against it."""
    for row in (LAST, LAST[::-1]):
        _write(tmp_path, [LAST])
        for place, name in enumerate(row):
            at_s = BEGIN_S + 500 + place
            os.utime(tmp_path / name, (at_s, at_s))
            assert _found(tmp_path) == {LAST: None}


def test_numbered_parts_are_drained_as_one_also_after_a_drain_of_the_first(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    for begin_s, names in ((0, LAST[:2]), (10, LAST), (1000, LAST)):
        _write(fast, [names], BEGIN_S + begin_s)
        with Drainer(fast, slow, DrainSettings(settle_s=0)) as working:
            assert working.once() == []
    [copy] = find(LocalStore(slow))
    assert sorted(file.name for file in copy.files) == sorted(LAST)
    assert copy.manifest is not None and not copy.problem  # noqa: PT018


def test_a_save_that_lacks_a_numbered_part_replaces_no_whole_copy(tmp_path: Path) -> None:
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    fast.mkdir()
    _write(fast, [LAST])
    with Drainer(fast, slow, DrainSettings(settle_s=0)) as working:
        assert working.once() == []
    for name in LAST[:3]:
        at_s = BEGIN_S + 500
        (fast / name).write_bytes(_torch() + bytes(2))
        os.utime(fast / name, (at_s, at_s))
    with Drainer(fast, slow, DrainSettings(settle_s=0)) as working:
        [why] = working.once()
    assert "the save has not ended" in why
    assert (slow / "last.pt").read_bytes() == _torch()
