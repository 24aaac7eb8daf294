"""Test that the contents decide, not the times and not the manifest alone, whether a checkpoint and
its copy are of one save."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from penstock.places.stores import LocalStore
from penstock.save.drain.drainer import Drainer
from penstock.save.drain.recover import recover
from penstock.save.drain.working import DrainSettings
from penstock.save.find.contents import has_content
from penstock.save.manifest import BESIDE, INSIDE, Summing, parse
from penstock.save.verify import latest_valid
from saves import drained, state

T = 1_700_000_000
NOW = DrainSettings(settle_s=0, tries=1)
LAYOUTS = {
    "folder": (("step_3/a.safetensors", "step_3/b.safetensors"), f"step_3/{INSIDE}"),
    "pair": (("model.safetensors", "optim.safetensors"), f"model.safetensors{BESIDE}"),
    "one": (("last.safetensors",), f"last.safetensors{BESIDE}"),
}


def files(tier: Path) -> set[str]:
    paths = [path for path in tier.rglob("*") if path.is_file()]
    names = {os.fspath(path.relative_to(tier)) for path in paths}
    return {name for name in names if not name.startswith(".penstock/")}


def warned(fast: Path, slow: Path) -> str:
    with Drainer(fast, slow, NOW) as working:
        assert working.once() == []
        return working.status.warning


@pytest.mark.parametrize(("names", "manifest"), LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("loss", ["gone", "cut"])
def test_a_lost_manifest_is_written_anew_where_the_contents_agree(
    fast: Path, slow: Path, names: tuple[str, ...], manifest: str, loss: str
) -> None:
    for name in names:
        state(fast / name, 3, at_s=T)
    drained(fast, slow)
    before = files(slow)
    data = (slow / manifest).read_bytes()
    (slow / manifest).unlink() if loss == "gone" else (slow / manifest).write_bytes(data[:99])
    assert warned(fast, slow) == ""
    assert files(slow) == before
    parse((slow / manifest).read_bytes(), manifest)
    assert latest_valid(slow, level="full").path == slow / names[0].partition("/")[0]


@pytest.mark.parametrize(("names", "manifest"), LAYOUTS.values(), ids=LAYOUTS)
def test_files_with_other_contents_and_no_manifest_are_not_called_another_run_s(
    fast: Path, slow: Path, names: tuple[str, ...], manifest: str
) -> None:
    for name in names:
        state(fast / name, 3, at_s=T)
    drained(fast, slow)
    (slow / manifest).unlink()
    state(slow / names[0], 9, at_s=T)
    said = warned(fast, slow)
    assert "without a manifest and with other contents" in said
    assert "another run" not in said
    assert len(files(slow)) == 2 * len(names) + 1


@pytest.mark.parametrize("change", ["touch", "put back"])
@pytest.mark.parametrize("layout", ["folder", "pair", "folders"])
def test_a_file_with_a_new_time_and_the_same_content_is_no_second_save(
    fast: Path, slow: Path, layout: str, change: str
) -> None:
    names = LAYOUTS[layout][0] if layout in LAYOUTS else ("weights/net.pt", "states/opt.pt")
    names = tuple(name.replace(".pt", ".safetensors") for name in names)
    for save in (1, 2, 3):  # by one drain each: nothing is remembered between them
        for name in names:
            state(fast / name, save, at_s=T + 60 * save)
        assert drained(fast, slow) == []
    if change == "touch":
        os.utime(fast / names[0])
    else:
        (fast / names[0]).unlink()
        shutil.copyfile(slow / names[0], fast / names[0])
    assert drained(fast, slow) == []
    choice, failed = recover(fast, slow, NOW)
    assert (failed, choice.rejected) == ([], ())
    assert choice.path is not None
    assert choice.path.is_relative_to(fast)
    for save in (4, 5):  # and a torn one is refused still
        state(fast / names[0], save)
        assert drained(fast, slow), save
        state(fast / names[1], save)
        assert drained(fast, slow) == [], save


def test_a_third_file_is_compared_by_time(fast: Path, slow: Path) -> None:
    """Of three files one was touched, one was written again, and one was not."""
    names = [f"step_3/{part}.safetensors" for part in "abc"]
    for name in names:
        state(fast / name, 3, at_s=T)
    drained(fast, slow)
    os.utime(fast / names[0])
    state(fast / names[1], 4)
    (left,) = drained(fast, slow)
    assert "were written again" in left


@pytest.mark.parametrize("damage", ["cut", "gone"])
@pytest.mark.parametrize("layout", ["folder", "pair"])
def test_damage_of_the_copy_says_nothing_of_the_original(
    fast: Path, slow: Path, layout: str, damage: str
) -> None:
    names, _ = LAYOUTS[layout]
    for name in names:
        state(fast / name, 3, at_s=T)
    drained(fast, slow)
    if damage == "cut":
        os.truncate(slow / names[0], 100)
    else:
        (slow / names[0]).unlink()
    choice, failed = recover(fast, slow, NOW)
    assert (failed, choice.rejected) == ([], ())
    assert choice.path == fast / names[0].partition("/")[0]
    shutil.rmtree(fast)
    assert latest_valid(slow, level="full").path == slow / names[0].partition("/")[0]


def test_a_content_is_compared_up_to_the_first_difference(tmp_path: Path) -> None:
    data = os.urandom(3 * (4 << 20) + 5)
    (tmp_path / "a").write_bytes(data)
    summing = Summing()
    summing.add(data)
    wanted, store = summing.end("a"), LocalStore(tmp_path)
    found = store.stat("a")
    assert found is not None
    assert has_content(store, found, wanted)
    with (tmp_path / "a").open("r+b") as file:
        file.seek(len(data) - 1)
        file.write(bytes([data[-1] ^ 1]))
    changed = store.stat("a")
    assert changed is not None
    assert not has_content(store, changed, wanted)
