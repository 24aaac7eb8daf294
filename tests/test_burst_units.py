"""The files of one save under `--burst-buffer` come home together and are put back together.

Programs that save repeatedly under the same names lose their fast tier in the middle of a drain.
After the loss, all tensors are of one save, or no checkpoint is named.
"""

import json
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from burstkills import AT_ONCE
from penstock.places.stores import LocalStore
from penstock.save.burst.drain import finish
from penstock.save.burst.file import HOME
from penstock.save.burst.home import Burst
from penstock.save.burst.mend import mend
from penstock.save.burst.tier import prepare
from penstock.save.overwritten.earlier import NEWER, QUIET_S, WAS, EarlierFolders, group_of, was_of
from penstock.save.overwritten.putback import MARK, put_back


@pytest.fixture
def fast(fast: Path) -> Path:
    prepare(fast)
    return fast


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != MARK)


def values(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in names(folder)}


_made = 0


def written(fast: Path, home: Path, data: bytes) -> Path:
    """Overwrite a path as native/burst.c does: the file there stays as the earlier file, unless the
    earlier file of a previous save is kept."""
    global _made  # two files in one clock tick need two names
    _made += 1
    name = f"{time.time_ns():016x}{_made:08x}-{home.name}"
    (fast / "burst/home" / name).symlink_to(home)
    path = fast / "burst/data" / name
    path.write_bytes(data)
    was = was_of(home)
    if home.is_symlink():
        way = fast / "burst/home" / home.readlink().name
        way.replace(way.with_name(way.name + HOME))
        home.unlink()
    elif home.exists() and not os.path.lexists(was):
        home.rename(was)
    elif home.exists():
        home.unlink()
    home.symlink_to(path)
    return path


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


# The files of a save


def test_names_that_differ_by_parts_are_of_one_save_and_by_steps_of_several() -> None:
    shards = [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    ranks = ["mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"]
    dcp = ["__0_0.distcp", "__1_0.distcp", ".metadata"]
    accelerate = ["model.safetensors", "optimizer.bin", "optimizer_1.bin", "random_states_0.pkl"]
    for unit in (shards, ranks, dcp, accelerate, ["model.pt", "optim.pt", "model.pt.tmp"]):
        assert len({group_of(name) for name in unit}) == 1, unit
    assert group_of("model-300.pt") == group_of("optim-300.pt") != group_of("model-400.pt")
    lightning = ["last.ckpt", "epoch=1-step=20.ckpt", "epoch=2-step=40.ckpt", "best.ckpt"]
    assert len({group_of(name) for name in lightning}) == 4


# The files a drain keeps, and for how long


def test_earlier_files_stay_until_all_of_the_save_are_home(fast: Path, work: Path) -> None:
    for name in "abc":
        (work / f"{name}.pt").write_bytes(b"1")
    made = [written(fast, work / f"{name}.pt", b"2") for name in "abc"]
    with Burst(fast, AT_ONCE) as drain, open(made[0], "ab"):  # a writer keeps this file on the tier
        assert drain._round() == {}
        assert (work / "b.pt").read_bytes() == b"2"
        assert [was_of(work / f"{name}.pt").read_bytes() for name in "abc"] == [b"1"] * 3
    assert finish(fast, AT_ONCE)[1] == []
    assert values(work) == {f"{name}.pt": b"2" for name in "abc"}
    assert sorted(path.name for path in (fast / "burst").iterdir()) == ["data", "draft", "home"]


def test_a_lost_tier_leaves_one_save_also_of_files_that_were_home(fast: Path, work: Path) -> None:
    for name in "abc":
        (work / f"{name}.pt").write_bytes(b"1")
    (work / "config.json").write_text("{}")
    made = [written(fast, work / f"{name}.pt", b"2") for name in "abcd"]
    with Burst(fast, AT_ONCE) as drain, open(made[0], "ab"):
        drain._round()
    shutil.rmtree(fast)
    mended = {one.place.name: (one.is_back, one.newer) for one in mend(work, fast)}
    assert mended == {
        "a.pt": (True, None),
        "b.pt": (True, work / f"b.pt{NEWER}"),
        "c.pt": (True, work / f"c.pt{NEWER}"),
        "d.pt": (False, work / f"d.pt{NEWER}"),
    }
    assert {name: values(work)[name] for name in ("a.pt", "b.pt", "c.pt")} == {
        f"{name}.pt": b"1" for name in "abc"
    }
    assert not (work / "d.pt").exists()
    assert (work / f"b.pt{NEWER}").read_bytes() == b"2"
    assert [name for name in names(work) if WAS in name] == []
    assert mend(work, fast) == []


def test_what_has_no_earlier_file_any_more_marks_its_folder_as_mixed(
    fast: Path, work: Path
) -> None:
    """Leave a folder as a drain of older code does, which removed each earlier file separately."""
    for name in "abc":
        (work / f"{name}.pt").write_bytes(b"1")
        os.utime(work / f"{name}.pt", (1000, 1000))
    written(fast, work / "a.pt", b"2")
    (work / "b.pt").write_bytes(b"2")  # this file is home
    shutil.rmtree(fast)
    mend(work, fast)
    assert values(work) == {"a.pt": b"1", "b.pt": b"2", "c.pt": b"1"}
    assert set(put_back(LocalStore(work))) == {"a.pt", "c.pt"}


def test_a_third_save_keeps_what_the_last_whole_one_was(fast: Path, work: Path) -> None:
    """The second save is home in part; files that are new in the second save are no part of the
    first."""
    for name in "ab":
        (work / f"{name}.pt").write_bytes(b"1")
    clock = Clock()
    with Burst(fast, AT_ONCE, clock=clock) as drain:
        drain._let_go = lambda left=None: drain._saves.earlier.let_go(  # type: ignore[method-assign]
            {one.name: one.home_at for one in drain.backlog()}, False, dict
        )
        made = [written(fast, work / f"{name}.pt", b"2") for name in "abc"]
        with open(made[0], "ab"):
            drain._round()
            for name in "abc":
                written(fast, work / f"{name}.pt", b"3")
    shutil.rmtree(fast)
    mend(work, fast)
    assert values(work) == {"a.pt": b"1", "b.pt": b"1"}


def test_a_whole_newest_file_stays_where_another_save_beside_it_is_lost(
    fast: Path, work: Path
) -> None:
    """Lightning's last.ckpt is home; the checkpoint of a step beside last.ckpt is not."""
    (work / "last.ckpt").write_bytes(b"1")
    (work / "model.pt").write_bytes(b"1")
    written(fast, work / "last.ckpt", b"2")
    written(fast, work / "model.pt", b"2")
    made = written(fast, work / "epoch=2-step=40.ckpt", b"2")
    draft = written(fast, work / "model.pt.tmp", b"3")  # draft of the next save
    with Burst(fast, AT_ONCE) as drain, open(made, "ab"), open(draft, "ab"):
        drain._let_go = lambda left=None: None  # type: ignore[method-assign]
        drain._round()
    shutil.rmtree(fast)
    mend(work, fast)
    assert (work / "last.ckpt").read_bytes() == b"2"
    assert (work / "model.pt").read_bytes() == b"2"


def test_earlier_files_go_once_the_program_is_quiet_or_all_names_have_come(tmp_path: Path) -> None:
    folder, clock = tmp_path / "out", Clock()
    folder.mkdir()
    kept = EarlierFolders(tmp_path, clock)
    homes = [folder / "a.pt", folder / "b.pt"]

    def come(*which: Path) -> None:
        for home in which:
            home.write_bytes(b"")
            was_of(home).write_bytes(b"")
            kept.keep(home)
            kept.came(f"{clock.now_s:025}", home, True)
        kept.let_go({}, False, dict)

    come(*homes)
    assert was_of(homes[0]).exists()  # the program may be about to write the rest of this save
    clock.now_s += QUIET_S
    kept.let_go({}, False, dict)
    assert names(folder) == ["a.pt", "b.pt"]
    come(homes[0])
    assert was_of(homes[0]).exists()
    come(homes[1])  # all names of the save before
    assert names(folder) == ["a.pt", "b.pt"]
    assert not (tmp_path / "kept").exists()
    for _ in range(5):  # saves without a quiet period of QUIET_S
        come(homes[0])
        clock.now_s += 1
    assert names(folder) == [f".a.pt{WAS}", "a.pt", "b.pt"]
    come(homes[1])
    assert names(folder) == ["a.pt", "b.pt"]


def test_a_drain_that_comes_after_a_killed_one_lets_go_what_that_kept(
    fast: Path, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "a.pt").write_bytes(b"1")
    written(fast, work / "a.pt", b"2")
    with Burst(fast, AT_ONCE) as drain:
        drain._let_go = lambda left=None: None  # type: ignore[method-assign]
        assert drain.once() == []
    assert names(work) == [f".a.pt{WAS}", "a.pt"]
    assert finish(fast, AT_ONCE)[1] == []
    assert names(work) == ["a.pt"]


def test_what_a_drain_was_killed_in_removing_never_comes_back(fast: Path, work: Path) -> None:
    """Some earlier files were removed already; the remaining earlier files are of the same save."""
    for name in "ab":
        (work / f"{name}.pt").write_bytes(b"2")
    was_of(work / "a.pt").write_bytes(b"1")
    (work / ".let-go.penstock-new").touch()
    for name in "ab":
        written(fast, work / f"{name}.pt", b"3")
    shutil.rmtree(fast)
    mend(work, fast)
    assert values(work) == {"b.pt": b"2"}


def _safetensors(value: int, is_torn: bool = False) -> bytes:
    head = json.dumps({"w": {"dtype": "U8", "shape": [1000], "data_offsets": [0, 1000]}}).encode()
    data = len(head).to_bytes(8, "little") + head + bytes([value]) * 1000
    return data[:-500] if is_torn else data


@pytest.mark.parametrize("is_home", [False, True])
@pytest.mark.parametrize("is_first_torn", [False, True])
def test_a_save_of_which_one_file_is_torn_gives_way_to_the_one_before(
    fast: Path, work: Path, is_home: bool, is_first_torn: bool
) -> None:
    """The program was killed during the write of the torn file; the other files may or may not be
    home."""
    homes = [work / f"{name}.safetensors" for name in "abcd"]
    for home in homes[:3]:
        home.write_bytes(_safetensors(1))
        os.utime(home, (1000, 1000))
    torn = homes[0] if is_first_torn else homes[1]
    with Burst(fast, AT_ONCE) as drain:
        drain._let_go = lambda left=None: None  # type: ignore[method-assign]
        for home in (homes[0], homes[3]):
            if home != torn:
                written(fast, home, _safetensors(2))
        if is_home:
            drain._round()
    made = written(fast, torn, _safetensors(2, is_torn=True))
    os.utime(made, (1000, 1000))
    assert finish(fast, AT_ONCE)[1] == []
    assert [home.read_bytes() for home in homes[:3]] == [_safetensors(1)] * 3
    assert not any(path.is_symlink() for path in work.iterdir())
    assert torn.with_name(f"{torn.name}.torn").exists()
    if not is_first_torn:
        assert homes[0].with_name(f"{homes[0].name}{NEWER}").read_bytes() == _safetensors(2)
    assert "a.safetensors" in put_back(LocalStore(work))


# The program's side


def test_the_last_whole_save_is_kept_however_often_a_program_overwrites(
    recorded: Callable[..., Any], fast: Path, work: Path
) -> None:
    def saves(value: int, how: str) -> None:
        recorded(
            f"""
            import os
            for name in ("a.pt", "b.pt"):
                with open(name + {how!r}, "wb") as file:
                    file.write(b"{value}")
                if {how!r}:
                    os.replace(name + {how!r}, name)
            """,
            environment={
                "PENSTOCK_BURST": str(fast / "burst"),
                "PENSTOCK_BURST_PATTERNS": "*.pt:*.pt.*",
            },
        )

    for name in "ab":
        (work / f"{name}.pt").write_bytes(b"0")
    for value, how in enumerate(("", ".tmp", "", ".tmp"), start=1):
        saves(value, how)
        with Burst(fast, AT_ONCE) as drain:  # drains a.pt only
            drain._let_go = lambda left=None: None  # type: ignore[method-assign]
            for one in drain.backlog():
                if one.home.name == "a.pt":
                    drain._drain(one)
            drain._arrivals.forget_committed()
        assert (work / "a.pt").read_bytes() == b"%d" % value
        assert not (work / "a.pt").is_symlink()
        assert [was_of(work / name).read_bytes() for name in ("a.pt", "b.pt")] == [b"0", b"0"]
    shutil.rmtree(fast)
    mend(work, fast)
    assert [(work / name).read_bytes() for name in ("a.pt", "b.pt")] == [b"0", b"0"]


# With real kills

SHARDS = """
    import json, os, sys, time, torch
    out, n = "d/out", 6
    os.makedirs(out, exist_ok=True)
    json.dump({"model_type": "bert"}, open(out + "/config.json", "w"))
    names = [f"pytorch_model-{i + 1:05d}-of-{n:05d}.bin" for i in range(n)]
    for step in (1, 2):
        for i, name in enumerate(names):
            torch.save({f"w{i}": torch.full((300, 100), float(step))}, f"{out}/{name}")
        index = {"metadata": {"total_size": n * 120000}}
        index["weight_map"] = {f"w{i}": name for i, name in enumerate(names)}
        json.dump(index, open(out + "/pytorch_model.bin.index.json", "w"))
        print("saved", step, flush=True)
        sys.stdin.readline()
"""
DCP = """
    import sys, torch, torch.distributed.checkpoint as dcp
    for step in (1, 2):
        state = {f"w{i}": torch.full((300, 100), float(step)) for i in range(6)}
        writer = dcp.FileSystemWriter("d/out", single_file_per_rank=False)
        dcp.save(state, storage_writer=writer)
        print("saved", step, flush=True)
        sys.stdin.readline()
"""
LOADED = {
    "shards": """
        import glob, torch
        for file in sorted(glob.glob("d/out/*.bin")):
            for value in torch.load(file).values():
                print(sorted({float(one) for one in (value.min(), value.max())}))
    """,
    "dcp": """
        import torch, torch.distributed.checkpoint as dcp
        state = {f"w{i}": torch.zeros((300, 100)) for i in range(6)}
        dcp.load(state, checkpoint_id="d/out")
        for value in state.values():
            print(sorted({float(one) for one in (value.min(), value.max())}))
    """,
}


def _await(has_come: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end_s = time.monotonic() + 120
    while not has_come():
        assert process.poll() is None
        assert time.monotonic() < end_s
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shards", "dcp"])
def test_a_node_that_is_lost_in_the_middle_of_a_drain_leaves_one_save(
    tmp_path: Path, work: Path, kind: str
) -> None:
    pytest.importorskip("torch")
    fast = tmp_path / "fast"
    fast.mkdir()
    source = textwrap.dedent({"shards": SHARDS, "dcp": DCP}[kind])
    words = ["-q", "-o", str(tmp_path / "run"), "--burst-buffer", str(fast)]
    command = [sys.executable, "-m", "penstock", "run", *words, "--burst-limit", "200KB/s"]
    program = subprocess.Popen(
        [*command, sys.executable, "-c", source],
        cwd=work, start_new_session=True, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert program.stdin is not None
    assert program.stdout is not None
    out = work / "d/out"

    def links() -> int:
        return sum(path.is_symlink() and not path.name.startswith(".") for path in out.iterdir())

    assert program.stdout.readline() == "saved 1\n"
    _await(lambda: links() == 0, program)
    program.stdin.write("\n")
    program.stdin.flush()
    assert program.stdout.readline() == "saved 2\n"
    _await(lambda: links() <= 3, program)
    drain_pid = json.loads((fast / ".penstock/drain.json").read_text())["pid"]
    for kill in (lambda: os.kill(drain_pid, 9), lambda: os.killpg(program.pid, 9)):
        kill()
    program.wait()
    assert links() > 0
    shutil.rmtree(fast)
    told = subprocess.run(
        [sys.executable, "-m", "penstock", "save", "recover", str(fast), "d"],
        cwd=work, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert told.stdout == f"{out}\n", told.stderr
    loaded = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LOADED[kind])],
        cwd=work, text=True, capture_output=True, check=True,
    )  # fmt: skip
    assert loaded.stdout.split("\n")[:-1] == ["[1.0]"] * 6


def test_a_mixture_that_older_code_has_left_is_never_named(tmp_path: Path, work: Path) -> None:
    """The earlier files of the files at home were removed already: the rest comes from an older
    save."""
    fast = tmp_path / "fast"
    fast.mkdir()
    prepare(fast)
    out = work / "out"
    out.mkdir()
    (out / "config.json").write_text('{"model_type": "bert"}')
    shards = [out / f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
    for shard in shards:
        shard.write_bytes(_safetensors(1))
        os.utime(shard, (1000, 1000))
    weights = {f"w{number}": shard.name for number, shard in enumerate(shards)}
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    for shard in shards[:2]:
        written(fast, shard, _safetensors(2))
    shards[2].write_bytes(_safetensors(2))  # home; the earlier file was removed
    shutil.rmtree(fast)
    told = subprocess.run(
        [sys.executable, "-m", "penstock", "save", "recover", str(fast), str(work)],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert (told.returncode, told.stdout) == (1, ""), told.stderr
    assert "mixed: 2 of its 3 files were put back from an older save" in told.stderr
    for shard in shards[:2]:  # until a whole save replaces the mixture
        shard.write_bytes(_safetensors(2))
    assert put_back(LocalStore(out))  # the list is obsolete: no file matches its entry
    again = subprocess.run(
        [sys.executable, "-m", "penstock", "save", "recover", str(fast), str(work)],
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert "mixed" not in again.stderr
