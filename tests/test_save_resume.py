"""Test what `recover` and `drain` print for layouts of programs: one path that the training takes,
and each sentence once."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from penstock import cli
from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import HOW_TO_RULE
from penstock.save.find.formats import find
from penstock.save.unit.names import parts_of
from saves import drained, state

T = 1_700_000_000


def ran(*words: object) -> Result:
    return CliRunner().invoke(cli.cli, ["save", *map(str, words)])


def pickled(path: Path, at_s: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x80\x04N." if path.suffix == ".pkl" else b"")
    os.utime(path, (at_s, at_s))


@pytest.mark.parametrize("more", [(), ("--fetch",)])
def test_of_a_dated_folder_with_a_mark_the_folder_is_named(
    fast: Path, slow: Path, more: tuple[str, ...]
) -> None:
    """DreamerV3 loads `ckpt/DATE/` as a whole."""
    fast.mkdir(exist_ok=True)
    tier = slow if more else fast
    for hour in (11, 12):
        for place, name in enumerate(("agent.pkl", "replay.pkl", "step.pkl", "done")):
            at_s = T + 3600 * hour + place
            pickled(tier / f"ckpt/20251128T{hour}0000F77/{name}", at_s)
    slow.mkdir(exist_ok=True)
    ended = ran("recover", fast, slow, *more)
    assert ended.stdout == f"{fast}/ckpt/20251128T120000F77\n", ended.output


@pytest.mark.parametrize(
    ("name", "step", "coarse"),
    [
        ("epoch0epochstep4globalstep500", 500, ("epoch0", "epochstep4")),  # AReaL
        ("chkpnt30000.pth", 30000, ()),  # 3D Gaussian Splatting
        ("epoch3step4.pt", 4, ("epoch3",)),
        ("resnet50vit16.pt", None, ()),
    ],
)
def test_words_and_numbers_without_a_mark_between(
    name: str, step: int | None, coarse: tuple[str, ...]
) -> None:
    found = parts_of(name)
    assert (found.step, found.coarse) == (step, coarse)


def test_the_state_of_gaussian_splatting_is_the_checkpoint(fast: Path, slow: Path) -> None:
    for step in (7000, 30000):
        ply = fast / f"point_cloud/iteration_{step}/point_cloud.ply"
        ply.parent.mkdir(parents=True)
        ply.write_bytes(b"ply\n" + os.urandom(300))
        (fast / f"chkpnt{step}.pth").write_bytes(b"\x01" + os.urandom(300))
    names = {one.name for one in find(LocalStore(fast)) if one.step == 30000}
    assert names == {"chkpnt30000.pth"}
    assert drained(fast, slow) == []
    assert (slow / "point_cloud/iteration_7000/point_cloud.ply").exists()


def test_a_rule_is_advised_only_if_several_saves_lack_a_part(fast: Path, slow: Path) -> None:
    """One save without a part was killed; two at a time may be a layout that needs a rule."""

    def saved(folder: str, *steps: int, last: int) -> None:
        for step in steps:
            state(fast / f"{folder}/model-{step}.safetensors", step, at_s=T + step)
            if step < last:
                state(fast / f"{folder}/optim-{step}.safetensors", step, at_s=T + step + 1)

    saved("a", 100, 200, 300, 400, last=400)
    (left,) = drained(fast, slow)
    assert "no optim.safetensors, which step 300 has" in left
    assert HOW_TO_RULE not in left
    saved("b", 100, 200, 300, 400, last=400)
    left = drained(fast, slow)
    assert len(left) == 2
    assert sum(HOW_TO_RULE in line for line in left) == 1


def test_a_new_name_is_said_once(fast: Path, slow: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    state(other / "last.safetensors", 1, at_s=T)
    assert drained(other, slow) == []
    state(fast / "last.safetensors", 2, at_s=T + 5)
    ended = ran(
        "drain", fast, slow, "--watch", "--share-slow", "--follow", 1 << 22, "--grace", "5s"
    )
    assert ended.output.count("another run has the name there") == 1, ended.output


ONE_BY_ONE = {
    "Marian": ("model.npz", "model.npz.optimizer.npz", "model.npz.progress.yml"),
    "skorch": ("params.pt", "optimizer.pt", "history.json"),
}


def one_by_one(tier: Path, names: Sequence[str], save: int, at_s: float) -> None:
    for place, name in enumerate(names):
        path = tier / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".npz"):
            np.savez(path, w=np.full(50, save))
        elif name.endswith(".pt"):
            with zipfile.ZipFile(path, "w") as file:
                file.writestr("a/data.pkl", bytes([save]) * 1000)
        else:
            path.write_text(f"[{save}]" if name.endswith(".json") else f"eta: {save}\n")
        os.utime(path, (at_s + place / 100, at_s + place / 100))


@pytest.mark.parametrize("kind", ONE_BY_ONE)
def test_files_rewritten_one_by_one_are_never_named_as_one_save(
    fast: Path, slow: Path, tmp_path: Path, kind: str
) -> None:
    names = ONE_BY_ONE[kind]
    one_by_one(fast, names, 1, T)
    assert drained(fast, slow) == []
    before = {name: (fast / name).read_bytes() for name in names}
    one_by_one(fast, names[:1], 2, T + 100)  # killed after the first file
    (left,) = drained(fast, slow)
    assert left.startswith(names[0])
    assert {name: (slow / name).read_bytes() for name in names} == before
    ended = ran("recover", fast, slow)
    assert ended.stdout == f"{slow}/{names[0]}\n", ended.output
    # Without a copy only a pause shows the two saves.
    apart = tmp_path / "apart"
    one_by_one(apart, names, 1, T)
    one_by_one(apart, names[:1], 2, T + 100)
    (one,) = find(LocalStore(apart))
    assert "of one save or of two" in one.doubt
