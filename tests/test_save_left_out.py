"""One file missing of a format with an index of its own: the checkpoint is not whole, is not copied
over an older one, and is not used for a restart; or the verdict states what was not checked."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures import needs
from penstock.places.stores import LocalStore
from penstock.save.drain.retention import Keep
from penstock.save.find.formats import find
from penstock.save.verify import (
    BY_LENGTH,
    BY_NAME,
    FORMATS,
    NOT_WHOLE,
    UNCHECKED,
    WHOLE,
    latest_valid,
    verify,
)
from saves import drained, state

torch = pytest.importorskip("torch", reason="most of the files are torch's")

T = 1_700_000_000
STEPS = (1, 2, 3)
Loss = Callable[[str], bool]


def saved(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path)


def dcp(root: Path, step: int) -> None:
    """Write a folder of DCP with data files of two ranks."""
    code = """
        import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
        from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
        rank, meeting, folder, step = int(sys.argv[1]), *sys.argv[2:]
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method="file://" + meeting)
        mesh = init_device_mesh("cpu", (2,))
        w = distribute_tensor(torch.full((64, 64), float(step)), mesh, [Shard(0)])
        dcp.save({"w": w, "step": torch.tensor(int(step))}, checkpoint_id=folder)
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    meeting = root.parent / f"meeting-{step}"
    command = [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())]
    ranks = [
        subprocess.Popen([*command, str(rank), str(meeting), str(root), str(step)])
        for rank in (0, 1)
    ]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    meeting.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def dcp_step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of DCP that two ranks wrote."""
    folder = tmp_path_factory.mktemp("dcp") / "written"
    dcp(folder, 1)
    assert sorted(one.name for one in folder.iterdir()) == [
        ".metadata", "__0_0.distcp", "__1_0.distcp",
    ]  # fmt: skip
    return folder


def of_dcp(root: Path, step: int, written: Path) -> None:
    shutil.copytree(written, root / f"step-{step}")


def of_lightning(root: Path, step: int, written: Path) -> None:
    folder = root / f"epoch=0-step={step}.ckpt"
    shutil.copytree(written, folder)
    saved(folder / "meta.pt", {"global_step": step})


def of_megatron_dcp(root: Path, step: int, written: Path) -> None:
    folder = root / f"iter_{step:07d}"
    shutil.copytree(written, folder)
    saved(folder / "common.pt", {"iteration": step})
    (folder / "metadata.json").write_text('{"sharded_backend": "torch_dist"}')
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def of_nemo(root: Path, step: int, written: Path) -> None:
    folder = root / f"model-step={step}"
    of_megatron_dcp(folder, step, written)
    (folder / f"iter_{step:07d}").rename(folder / "weights")
    (folder / "latest_checkpointed_iteration.txt").unlink()
    (folder / "context").mkdir()
    (folder / "context" / "io.json").write_text("{}")
    (folder / "context" / "model.yaml").write_text("a: 1")  # for readers; loading needs io.json


def of_deepspeed(root: Path, step: int, written: Path) -> None:
    folder = root / f"global_step{step}"
    saved(folder / "mp_rank_00_model_states.pt", {"dp_world_size": 3, "param_shapes": [{}]})
    for rank in range(3):
        saved(folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt", {"step": step})
    (root / "latest").write_text(f"global_step{step}")


def of_zero_3(root: Path, step: int, written: Path) -> None:
    folder = root / f"global_step{step}"
    for rank in range(3):
        name = f"zero_pp_rank_{rank}_mp_rank_00"
        saved(folder / f"{name}_model_states.pt", {"dp_world_size": 3, "param_shapes": [{}]})
        saved(folder / f"{name}_optim_states.pt", {"step": step})
    (root / "latest").write_text(f"global_step{step}")


def of_pipeline(root: Path, step: int, written: Path) -> None:
    of_deepspeed(root, step, written)
    for layer in (1, 2, 5):
        name = f"layer_{layer:02d}-model_00-model_states.pt"
        saved(root / f"global_step{step}" / name, {"step": step})


def of_experts(root: Path, step: int, written: Path) -> None:
    of_deepspeed(root, step, written)
    folder = root / f"global_step{step}"
    for one in range(3):
        saved(folder / f"expp_rank_{one}_mp_rank_00_optim_states.pt", {"step": step})
        for layer in (0, 1):
            saved(folder / f"layer_{layer}_expert_{one}_mp_rank_00_model_states.pt", {"s": step})


def of_megatron(root: Path, step: int, written: Path) -> None:
    arguments = Namespace(
        tensor_model_parallel_size=2, pipeline_model_parallel_size=2, use_distributed_optimizer=True
    )
    for tensor in (0, 1):
        for stage in (0, 1):
            folder = root / f"iter_{step:07d}" / f"mp_rank_{tensor:02d}_{stage:03d}"
            saved(folder / "model_optim_rng.pt", {"args": arguments, "iteration": step})
            saved(folder / "distrib_optim.pt", {"step": step})
    (root / "latest_checkpointed_iteration.txt").write_text(str(step))


def of_zarr_2(root: Path, step: int, written: Path, version: int = 2) -> None:
    zarr = pytest.importorskip("zarr", minversion="3", reason="zarr is not installed")
    group = zarr.open_group(root / f"step_{step}.zarr", mode="w", zarr_format=version)
    for name, shape in {"w": (40, 40), "opt/m": (80,)}.items():
        array = group.create_array(name, shape=shape, chunks=(20,) * len(shape), dtype="f4")
        array[:] = step


def of_zarr_3(root: Path, step: int, written: Path) -> None:
    of_zarr_2(root, step, written, 3)


def nothing(name: str) -> bool:
    return False


def a_chunk(name: str) -> bool:
    return name.rpartition("/")[2].replace(".", "").isdigit()


def attributes(name: str) -> bool:
    return name.endswith(".zattrs")  # optional


def chunk_or_attributes(name: str) -> bool:
    return a_chunk(name) or attributes(name)


# Of each format: how to write a step, the state of a whole step alone, the files whose loss only
# another save shows, and the files whose loss no comparison shows.
CASES: dict[str, tuple[Callable[[Path, int, Path], None], str, Loss, Loss]] = {
    "DCP": (of_dcp, WHOLE, nothing, nothing),
    "Lightning, sharded": (of_lightning, WHOLE, nothing, nothing),
    "Megatron, distributed": (of_megatron_dcp, WHOLE, nothing, nothing),
    "NeMo": (of_nemo, BY_LENGTH, nothing, lambda name: name.endswith("model.yaml")),
    "DeepSpeed": (of_deepspeed, WHOLE, nothing, nothing),
    "DeepSpeed ZeRO-3": (of_zero_3, WHOLE, nothing, nothing),
    "DeepSpeed, pipeline": (of_pipeline, UNCHECKED, lambda name: "/layer_" in name, nothing),
    "DeepSpeed, experts": (of_experts, UNCHECKED, lambda name: "expert_2" in name
                           or "expp_rank_2" in name, nothing),
    "Megatron": (of_megatron, WHOLE, nothing, nothing),
    "Zarr 2": (of_zarr_2, BY_LENGTH, chunk_or_attributes, attributes),
    "Zarr 3": (of_zarr_3, BY_LENGTH, a_chunk, nothing),
}  # fmt: skip


def written_steps(root: Path, write: Callable[[Path, int, Path], None], source: Path) -> list[Path]:
    """Write the steps one after the other.  Return the files of the last step."""
    root.mkdir()
    for step in STEPS:
        known = set(root.rglob("*"))
        write(root, step, source)
        for path in sorted(set(root.rglob("*")) - known):
            at_s = T + 60 * step + (path.name == ".metadata")
            os.utime(path, (at_s, at_s))
    now = T + 60 * STEPS[-1] + 2
    for pointer in ("latest", "latest_checkpointed_iteration.txt"):
        if (root / pointer).exists():
            os.utime(root / pointer, (now, now))
    return [path for path in sorted(known ^ set(root.rglob("*"))) if path.is_file()]


def states(root: Path) -> dict[int | None, tuple[str, bool]]:
    """Return the state of each checkpoint, and whether the check is strong, by step."""
    verdicts = [verify(one, "full") for one in find(LocalStore(root))]
    return {one.checkpoint.step: (one.state, one.is_checked) for one in verdicts}


@pytest.mark.parametrize("name", CASES)
def test_a_checkpoint_without_one_of_its_files_is_not_whole(
    name: str, dcp_step: Path, tmp_path: Path
) -> None:
    write, intact, by_another, by_none = CASES[name]
    whole = tmp_path / "whole"
    files = written_steps(whole, write, dcp_step)
    assert len(files) > 2
    assert {state for state, _ in states(whole).values()} <= {WHOLE, BY_LENGTH}
    fast, alone = tmp_path / "fast", tmp_path / "alone"
    for lost in files:
        inner = lost.relative_to(whole)
        for root in (fast, alone):
            shutil.rmtree(root, ignore_errors=True)
            shutil.copytree(whole, root)
        for other in alone.iterdir():
            if other.is_dir() and other.name != inner.parts[0]:
                shutil.rmtree(other)
        assert states(alone)[3][0] == intact
        (fast / inner).unlink()
        (alone / inner).unlink()
        beside = states(fast).get(3, (NOT_WHOLE, False))
        lone = states(alone).get(3, (NOT_WHOLE, False))
        if by_none(str(inner)):
            continue
        if by_another(str(inner)):
            assert lone[0] in (UNCHECKED, BY_NAME, NOT_WHOLE), inner
        else:
            assert lone[0] == NOT_WHOLE, inner
        # A chunk that each earlier save has may be a chunk of fill values.
        assert beside[0] == NOT_WHOLE or (a_chunk(str(inner)) and beside == (UNCHECKED, False))
        assert latest_valid(fast, level="full").step == 2, inner


@pytest.mark.parametrize("name", ["DCP", "DeepSpeed, experts", "Megatron", "NeMo", "Zarr 3"])
def test_such_a_checkpoint_removes_no_older_copy(name: str, dcp_step: Path, tmp_path: Path) -> None:
    write = CASES[name][0]
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    files = written_steps(fast, write, dcp_step)
    lost = next(path for path in files if path.name not in (".metadata", "zarr.json", "io.json"))
    lost.unlink()
    failed = drained(fast, slow, Keep(fast=0, last=1, foreign=True))
    is_chunk = a_chunk(str(lost))
    assert bool(failed) != is_chunk, failed  # an absent chunk is allowed
    on_slow = {one.step for one in find(LocalStore(slow))}
    assert on_slow == ({2, 3} if is_chunk else {2})
    assert 3 in {one.step for one in find(LocalStore(fast))} or is_chunk
    shutil.rmtree(fast)
    assert latest_valid(slow).step == 2


def test_a_half_removed_checkpoint_shows_no_part_to_be_unneeded(tmp_path: Path) -> None:
    """A drain killed while it removed step 2 from the fast tier left some files: step 3, which was
    killed in its save, was copied as whole, and took the place of step 2."""
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    parts = ("critic", "generator", "model", "optim")
    for step in (1, 2):
        for part in parts:
            state(fast / f"{part}-{step}.safetensors", step, at_s=T + 60 * step)
    assert drained(fast, slow, Keep(fast=9, last=1, foreign=True)) == []
    assert {one.step for one in find(LocalStore(slow))} == {2}
    for part in parts[2:]:
        (fast / f"{part}-2.safetensors").unlink()
    for part in parts[:3]:
        state(fast / f"{part}-3.safetensors", 3, at_s=T + 180)
    (failed, *_) = drained(fast, slow, Keep(fast=9, last=1, foreign=True))
    assert "no optim.safetensors" in failed
    assert {one.step for one in find(LocalStore(slow))} == {2}
    assert latest_valid(fast, slow).step == 2


def test_fewer_experts_or_ranks_by_choice_are_no_lost_files(tmp_path: Path) -> None:
    """A job that goes on with fewer data-parallel ranks has fewer files of the optimizer."""
    for step in (1, 2, 3, 4):
        n_ranks = 4 if step < 4 else 2
        folder = tmp_path / f"global_step{step}"
        saved(folder / "mp_rank_00_model_states.pt", {"dp_world_size": n_ranks})
        for one in range(n_ranks):
            saved(folder / f"zero_pp_rank_{one}_mp_rank_00_optim_states.pt", {"step": step})
            saved(folder / f"expp_rank_{one}_mp_rank_00_optim_states.pt", {"step": step})
        for expert in range(4):
            saved(folder / f"layer_0_expert_{expert}_mp_rank_00_model_states.pt", {"step": step})
    assert states(tmp_path) == dict.fromkeys((1, 2, 3, 4), (WHOLE, True))


def test_a_cut_chunk_is_found_by_its_own_length(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", minversion="3", reason="zarr is not installed")
    codecs = {
        "raw": {"compressors": None, "zarr_format": 3},
        "zstd": {"compressors": zarr.codecs.ZstdCodec(checksum=True), "zarr_format": 3},
        "gzip": {"compressors": zarr.codecs.GzipCodec(), "zarr_format": 3},
        "blosc": {"compressors": zarr.codecs.BloscCodec(), "zarr_format": 3},
        "raw 2": {"compressors": None, "zarr_format": 2},
    }
    import numpy as np

    for name, settings in codecs.items():
        root = tmp_path / name
        values = np.random.default_rng(0).normal(size=(300, 300)).astype("f4")
        array = zarr.create_array(
            root / "step_1.zarr", shape=(300, 300), chunks=(150, 300), dtype="f4", **settings
        )
        array[:] = values
        assert states(root)[1][0] in (BY_LENGTH, WHOLE), name
        chunk = max(root.rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
        data = chunk.read_bytes()
        for n_bytes in (1, len(data) // 2, len(data) - 1):
            chunk.write_bytes(data[:n_bytes])
            assert states(root)[1][0] == NOT_WHOLE, (name, n_bytes)
        chunk.write_bytes(data + b"\1")
        assert states(root)[1][0] == NOT_WHOLE, name


def test_an_array_with_absent_chunks_is_copied_and_the_verdict_says_so(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr", minversion="3", reason="zarr is not installed")
    fast, slow = tmp_path / "fast", tmp_path / "slow"
    for step in STEPS:
        group = zarr.open_group(fast / f"step_{step}.zarr", mode="w", zarr_format=3)
        array = group.create_array("w", shape=(100,), chunks=(10,), dtype="f4")
        array[20:30] = step  # the other chunks are zeros and have no files
    (newest, *_) = find(LocalStore(fast))
    verdict = verify(newest, "full")
    assert verdict.state == BY_NAME
    assert any("9 of 10 chunks" in remark for remark in verdict.remarks)
    assert drained(fast, slow) == []
    assert latest_valid(slow).step == 3


@pytest.fixture(scope="module")
def orbax_steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with steps of Orbax: items in trees, and arrays in files of their own."""
    needs("orbax")
    root = tmp_path_factory.mktemp("orbax")
    code = """
        import sys, jax.numpy as np, orbax.checkpoint as ocp
        from pathlib import Path
        root = Path(sys.argv[1])
        manager = ocp.CheckpointManager(root / "items", item_names=("state", "meta"))
        arrays = ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False))
        for step in (1, 2, 3):
            tree = {"w": np.full((100, 100), float(step)), "o": {"m": np.zeros(50)}}
            items = {"state": ocp.args.StandardSave(tree), "meta": ocp.args.JsonSave({"s": step})}
            manager.save(step, args=ocp.args.Composite(**items))
            manager.wait_until_finished()
            arrays.save(root / "arrays" / str(step), tree)
        manager.close()
    """
    command = [sys.executable, "-c", "\n".join(line[8:] for line in code.splitlines())]
    subprocess.run([*command, str(root)], check=True, capture_output=True, timeout=240)
    return root


# What Orbax 0.12.8 needs to load a step: found by leaving out each file and loading the step.
NEEDED = {
    "items": {"meta/metadata", "state/manifest.ocdbt", "state/d/"},
    "arrays": {"_METADATA", "o.m/.zarray", "o.m/0", "w/.zarray", "w/0.0"},
}
SEEN_BESIDE = {"_CHECKPOINT_METADATA", "_METADATA", "_sharding"}


@pytest.mark.parametrize("kind", NEEDED)
def test_a_step_of_orbax_without_a_file_that_loading_needs_is_not_whole(
    kind: str, orbax_steps: Path, tmp_path: Path
) -> None:
    source = orbax_steps / kind
    files = [path.relative_to(source) for path in (source / "3").rglob("*") if path.is_file()]
    assert states(source) == {step: states(source)[3] for step in STEPS}
    assert states(source)[3][0] in (BY_LENGTH, BY_NAME)
    seen = set[str]()
    for lost in files:
        shutil.rmtree(tmp_path / "fast", ignore_errors=True)
        shutil.copytree(source, tmp_path / "fast")
        (tmp_path / "fast" / lost).unlink()
        inner = "/".join(lost.parts[1:])
        needed = [one for one in NEEDED[kind] if inner == one or inner.startswith(one)]
        if needed or lost.name in SEEN_BESIDE:
            seen.update(needed)
            assert states(tmp_path / "fast")[3][0] == NOT_WHOLE, lost
            assert latest_valid(tmp_path / "fast", level="full").step == 2, lost
            for step in ("1", "2"):
                shutil.rmtree(tmp_path / "fast" / step)
            if needed and inner != "_METADATA":
                assert states(tmp_path / "fast")[3][0] == NOT_WHOLE, lost
    assert seen == NEEDED[kind]


def test_the_items_of_a_step_without_the_step_s_metadata_are_one_checkpoint(
    orbax_steps: Path, tmp_path: Path
) -> None:
    """Older versions of Orbax write no metadata of a step."""
    shutil.copytree(orbax_steps / "items", tmp_path / "fast")
    for path in list((tmp_path / "fast").rglob("_CHECKPOINT_METADATA")):
        path.unlink()
    found = find(LocalStore(tmp_path / "fast"))
    assert [(one.name, one.step, one.kind, one.problem) for one in found] == [
        (str(step), step, "orbax", "") for step in (3, 2, 1)
    ]
    assert all(verify(one, "full").is_whole for one in found)
    assert json.loads((tmp_path / "fast/3/meta/metadata").read_text()) == {"s": 3}


def test_the_table_of_formats_has_a_row_for_each_kind() -> None:
    root = Path(__file__).parents[1]
    table = (
        (root / "docs/save.md").read_text().partition("### Formats\n")[2].partition("\n\nZarr")[0]
    )
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    documented = [kind for row in rows for kind in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(documented) == sorted(FORMATS)
    found = set[str]()
    for name in ("unit/recognise", "find/tree"):
        source = (root / f"src/penstock/save/{name}.py").read_text()
        found |= set(re.findall(r'\.checkpoint\(\s*\w+, "(\w+)"', source))
    assert len(found) > 8
    assert found <= set(FORMATS)
